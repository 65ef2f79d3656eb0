"""The calls of a function that takes record batches of Arrow: `process_batch(record_batch, context)`.

Owns: what a batch is given as, what may come back, to which topics and partitions its rows go, and what becomes of a
batch that the function does not take: it fails as a whole.
Must not know: where batches come from, when outputs are written and offsets committed.

Nothing here makes a Python object for each record, but for dead letters and while a trigger is waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kop import clock
from kop.client.batches import NewRecord, build_rows
from kop.client.errors import ClientError
from kop.client.offsets import TopicPartition
from kop.client.write_client import Identity
from kop.errors import PeerError
from kop.functions.call_base import CallBase, NackedError, ends_instance
from kop.functions.context import InputRecord, Nacked, Publish
from kop.functions.output_sizes import RECORD_BYTES, OutputError, too_large
from kop.functions.reading import Taken
from kop.functions.spec import FunctionSpec
from kop.functions.state import StateChanges, StateLostError
from kop.functions.watch import GENERATION, NOT_CALLING, OFFSET, PARTITION
from kop.records import arrow

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("key", "value", "headers", "timestamp", "topic")
"""The columns that a result may have."""


class BatchCalls(CallBase):
    """The calls of one instance with record batches."""

    def __init__(self, spec: FunctionSpec, *arguments: Any, **options: Any) -> None:
        super().__init__(spec, *arguments, **options)
        # Acks have of each batch its first offset alone; the partition waits while a batch is tried again.
        self._open: dict[TopicPartition, pa.RecordBatch] = {}
        """The batches that are tried again."""

    def waiting(self) -> Collection[TopicPartition]:
        """Return the partitions of which no further batch is to be taken now, as one of them is to be tried again."""
        return self._open.keys()

    def take(self, taken: Taken, deadline: float) -> int:
        """Call the function with a batch, whatever the deadline, if the batch has rows; returns their number. A failure
        of the call is handled here.
        """
        partition, batch, behind = taken
        if len(batch):
            self._stats.took(len(batch))
            self._acks.taken(partition, _first(batch))
            self._call(partition, batch)
        self._acks.passed(partition, behind)
        return len(batch)

    def retry(self) -> bool:
        """Call the function again with the batches whose next attempt is due; returns True if any was due."""
        due = self._acks.due(clock.monotonic())
        for partition, _ in due:
            if self._stopping():
                break
            self._call(partition, self._open.pop(partition))
        return bool(due)

    # -- one batch

    def _call(self, partition: TopicPartition, batch: pa.RecordBatch) -> None:
        first, effects = _first(batch), self._effects
        effects.clear()
        self._calling[GENERATION] += 1
        self._calling[OFFSET] = first
        self._calling[PARTITION] = self._partitions[partition]
        began = clock.monotonic()
        try:
            self._context.begin(partition, (first, -1, None, None, ()))
            result = self._code.call(batch, self._context)
            rows = self._rows(partition, result)
            if any(isinstance(effect, Nacked) for effect in effects):
                raise NackedError("the function called context.nack")
        except BaseException as error:
            if ends_instance(error):
                raise
            self._failed(partition, batch, error)
            return
        finally:
            self._context.end()
            self._calling[PARTITION] = NOT_CALLING
        for place, some in rows:
            self._outputs.add_batch(place, partition[1], some)
        for effect in effects:
            if isinstance(effect, Publish):
                self._publish(partition[1], effect)
            elif isinstance(effect, StateChanges):
                effect.apply()
        self._acks.done(partition, first)
        self._stats.called(len(batch), clock.monotonic() - began)
        if self._triggers:
            self._answer(records_of(batch), None)

    def _failed(self, partition: TopicPartition, batch: pa.RecordBatch, error: BaseException) -> None:
        """Log and count a failure, and keep the batch for its next attempt, if it has one. Else give it up: it is done,
        and its messages go to the dead letter topic, or with ATMOST_ONCE are only logged as lost.
        """
        if isinstance(error, StateLostError):
            self._open[partition] = batch
            return
        first, now = _first(batch), clock.monotonic()
        where = f"{partition[0]}-{partition[1]} from offset {first} to {batch.column('offset')[len(batch) - 1]}"
        self._note_failure(records_of(batch), where, error)
        if self._tries and (due := self._acks.failed(partition, first, now)) is not None:
            self._tell_next_attempt(where, due - now, error)
            self._open[partition] = batch
            return
        self._give_up(partition, records_of(batch), f"the batch of {where}", error)
        self._acks.done(partition, first)

    # -- its result

    def _rows(self, source: TopicPartition, result: Any) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """Return the rows of a result that are to be written, by topic and partition; rows without a topic are left out
        if the function has no output. OutputError if the result is no record batch, or its columns cannot be written.
        """
        import pyarrow as pa  # noqa: PLC0415 - an extra, which functions that take batches alone need
        import pyarrow.compute as pc  # noqa: PLC0415

        if result is None:
            return []
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if isinstance(result, pa.Array):
            result = pa.RecordBatch.from_arrays([result], ["value"])
        if not isinstance(result, pa.RecordBatch):
            raise OutputError(
                f"process_batch returned a {type(result).__name__}: return a pyarrow.RecordBatch with a column value, "
                "an array of values, or None"
            )
        names = result.schema.names
        others = sorted(set(names) - {*COLUMNS})
        if others or "value" not in names or len(set(names)) != len(names):
            raise OutputError(
                f"the result has the columns {', '.join(names)}: select value, and if they are wanted "
                f"{', '.join(name for name in COLUMNS if name != 'value')}, once each"
            )
        self._check_types(result)
        placed: list[tuple[TopicPartition, pa.RecordBatch]] = []
        for topic, rows in self._by_topic(result):
            count = self._outputs.count(topic)
            if "key" not in names or count == 1:
                placed.append(((topic, source[1] % count), rows))
                continue
            numbers = pc.fill_null(arrow.partitions(rows.column("key"), count), source[1] % count)
            placed += [((topic, number), rows.filter(pc.equal(numbers, number))) for number in _values(numbers)]
        return [(place, rows) for place, rows in placed if len(rows)]

    def _by_topic(self, result: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        if "topic" not in result.schema.names:
            return [(self._spec.output, result)] if self._spec.output else []
        topics = pc.fill_null(result.column("topic").cast(pa.string()), self._spec.output)
        result = result.drop_columns(["topic"])
        return [(topic, result.filter(pc.equal(topics, topic))) for topic in _values(topics) if topic]

    @staticmethod
    def _check_types(result: pa.RecordBatch) -> None:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        try:
            arrow.rows_in(result)
            if "topic" in result.schema.names:
                result.column("topic").cast(pa.string())
        except (TypeError, pa.ArrowException) as error:
            raise OutputError(f"the result cannot be written: {error}") from None
        sizes = pa.scalar(0, pa.int64())
        for name in ("key", "value"):
            if name in result.schema.names and not pa.types.is_null(result.column(name).type):
                sizes = pc.add(sizes, pc.fill_null(pc.binary_length(result.column(name)).cast(pa.int64()), 0))
        largest = sizes.as_py() if isinstance(sizes, pa.Scalar) else pc.max(sizes).as_py()
        if (largest or 0) > RECORD_BYTES:
            raise too_large("a row of the result", largest)
        if "headers" in result.schema.names:
            try:
                for _ in build_rows(arrow.rows_in(result), Identity(-1, -1), -1, now=0):
                    pass
            except (ClientError, PeerError) as error:
                raise OutputError(f"the headers of the result cannot be written: {error}") from None


def _first(batch: pa.RecordBatch) -> int:
    first: int = batch.column("offset")[0].as_py()
    return first


def _values(array: pa.Array) -> Sequence[Any]:
    values: list[Any] = array.unique().to_pylist()
    return values


def batch_of(partition: TopicPartition, records: Sequence[InputRecord]) -> pa.RecordBatch:
    """Return messages of a partition as a record batch, with the same columns as a batch that was read from a topic."""
    import pyarrow as pa  # noqa: PLC0415

    rows = [
        {
            "key": key,
            "value": value,
            "topic": partition[0],
            "partition": partition[1],
            "offset": offset,
            "timestamp": timestamp * 1000,
            "timestampType": 0,
            "headers": [{"key": name, "value": given} for name, given in headers] or None,
        }
        for offset, timestamp, key, value, headers in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow.schema(headers=True))


def rows_of(batch: pa.RecordBatch) -> Iterable[NewRecord]:
    """Yield the rows of a result as single records to write; the timestamp is in milliseconds, None if the row has
    none.
    """
    for row in batch.to_pylist():
        time = row.get("timestamp")
        milliseconds = None if time is None else int(time.timestamp() * 1000) if hasattr(time, "timestamp") else time
        key, value = (_bytes(row.get(name)) for name in ("key", "value"))
        yield key, value, [(header["key"], header["value"]) for header in row.get("headers") or ()], milliseconds


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def records_of(batch: pa.RecordBatch) -> Iterable[InputRecord]:
    """Yield the rows of a batch that was read as single messages, with timestamps in milliseconds."""
    for row in batch.to_pylist():
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        yield row["offset"], int(row["timestamp"].timestamp() * 1000), row["key"], row["value"], headers
