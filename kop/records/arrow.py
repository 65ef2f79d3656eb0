"""Record batches <-> pyarrow: rows of a partition as Spark's Kafka source has them, and rows to produce.

    decode(records, *, topic, partition, start, end=None, aborted=None, headers=False,
           max_rows=16_384, max_bytes=16 MiB, max_inflated=256 MiB) -> Decoded, an iterator of pyarrow.RecordBatch
    encode(rows: pyarrow.RecordBatch, EncodeSettings(max_bytes, now, ...)) -> an iterator of Encoded(batch, records,
           max_timestamp)
    digest(rows: pyarrow.RecordBatch) -> int: the same for the same rows in any order
    partitions(keys: pyarrow.Array, count) -> pyarrow.Array of int32: where Kafka's default partitioner puts each key
    schema(headers=False) -> pyarrow.Schema of what `decode` gives

How a reader uses `decode`: it fetches from an offset, takes all batches, and fetches next from `next_offset`, until
that is its end:

    decoded = decode(response.records, topic="t", partition=0, start=offset, end=end, aborted=response.aborted)
    yield from decoded
    if decoded.next_offset == offset and decoded.cut_off:
        ...  # one batch is larger than the Fetch was allowed to be: fetch again with at least `cut_off` bytes
    offset = decoded.next_offset

Owns: the columns' names and types, and the wrapping of buffers; nothing is copied.
Must not know: what batches look like (`kop.records.columns`), requests, Spark.

This alone of the records' modules imports pyarrow, and only when a function is called: kop is installed without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kop.records.arrow_layout import Column, ColumnIn, EntriesIn, HeadersIn, Lists, NumbersIn, TimestampsIn
from kop.records.batch import Buffer
from kop.records.columns import (
    MAX_BYTES,
    MAX_INFLATED,
    Chunk,
    Encoded,
    EncodeSettings,
    FetchedColumns,
    RowsIn,
    UnreadableRecordsError,
    encode_columns,
    key_partitions,
    rows_digest,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MAX_BYTES",
    "MAX_INFLATED",
    "Decoded",
    "EncodeSettings",
    "Encoded",
    "UnreadableRecordsError",
    "decode",
    "digest",
    "encode",
    "partitions",
    "schema",
]

DEFAULT_ROWS: Final = 16_384
DEFAULT_BYTES: Final = 16 * 2**20
DEFAULT_INFLATED: Final = 256 * 2**20


def schema(headers: bool = False) -> pa.Schema:
    """Return the columns of Spark's Kafka source, in its order, all nullable; `headers` comes last where it is wanted.

    The timestamp is in microseconds of UTC, `timestampType` is 0 for CreateTime and 1 for LogAppendTime. `headers` is
    null for a record that has none.
    """
    import pyarrow as pa  # noqa: PLC0415

    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if headers:
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        fields.append(("headers", pa.list_(pa.field("element", header))))
    return pa.schema(fields)


class Decoded(Iterator["pa.RecordBatch"]):
    """The rows of a Fetch response, an iterator of pyarrow.RecordBatch; made by `decode`."""

    def __init__(self, columns: FetchedColumns, topic: str, partition: int, headers: bool) -> None:
        import pyarrow as pa  # noqa: PLC0415

        self._columns = columns
        self._schema = schema(headers)
        self._topic = pa.scalar(topic, pa.string())
        self._partition = pa.scalar(partition, pa.int32())

    @property
    def next_offset(self) -> int:
        """The first offset that no batch of rows so far reaches; once all batches were taken, the one to fetch from
        next.
        """
        return self._columns.next_offset

    @property
    def cut_off(self) -> int:
        """The size in bytes of the batch that the response ends in the middle of; 0 for none."""
        return self._columns.cut_off

    def __next__(self) -> pa.RecordBatch:
        return self._wrapped(next(self._columns))

    def _wrapped(self, chunk: Chunk) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415

        rows = chunk.rows
        columns = [
            _array(pa.binary(), rows, chunk.key),
            _array(pa.binary(), rows, chunk.value),
            pa.repeat(self._topic, rows),
            pa.repeat(self._partition, rows),
            _array(pa.int64(), rows, (0, None, chunk.offsets)),
            _array(pa.timestamp("us", tz="UTC"), rows, (0, None, chunk.timestamps)),
            _array(pa.int32(), rows, (0, None, chunk.timestamp_types)),
        ]
        if chunk.headers is not None:
            (nulls, validity, offsets), names, values = chunk.headers
            entries = len(names[2]) // 4 - 1
            kind = self._schema.field("headers").type
            entry = pa.StructArray.from_arrays(
                [_array(pa.string(), entries, names), _array(pa.binary(), entries, values)],
                fields=list(kind.value_type),
            )
            columns.append(_array(kind, rows, (nulls, validity, offsets), [entry]))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _array(
    kind: pa.DataType,
    rows: int,
    parts: Column | Lists,
    children: list[pa.Array] | None = None,
) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    nulls, *buffers = parts
    held = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, rows, held, nulls, 0, children)


def decode(
    records: Buffer,
    *,
    topic: str,
    partition: int,
    start: int,
    end: int | None = None,
    aborted: Sequence[tuple[int, int]] | None = None,
    headers: bool = False,
    max_rows: int = DEFAULT_ROWS,
    max_bytes: int = DEFAULT_BYTES,
    max_inflated: int = DEFAULT_INFLATED,
) -> Decoded:
    """Return the rows of the `records` of one partition in a Fetch response, from `start` to before `end`.

    `aborted` is the response's list of `(producer_id, first_offset)`, which makes this read_committed; None is
    read_uncommitted. A batch of rows has at most `max_rows` rows, and at most `max_bytes` of keys, values and headers
    unless it is of one record; it has no room for headers where they are not wanted. `max_inflated` bounds one Kafka
    batch without compression, which is in memory together with its rows. UnreadableRecordsError, on taking a batch,
    names topic, partition and offset: a wrong checksum, a malformed record, a timestamp that microseconds cannot
    hold, a message format before 2.
    """
    columns = FetchedColumns(
        records,
        topic=topic,
        partition=partition,
        start=start,
        end=end,
        aborted=aborted,
        headers=headers,
        max_rows=max_rows,
        max_bytes=max_bytes,
        max_inflated=max_inflated,
    )
    return Decoded(columns, topic, partition, headers)


def encode(rows: pa.RecordBatch, settings: EncodeSettings) -> Iterator[Encoded]:
    """Return the rows of one partition as record batches to produce; see `kop.records.columns.encode_columns`.

    Of the columns `key`, `value` (binary or string), `headers` (a list of structs of `key`, a string, and `value`,
    binary; null is none) and `timestamp` (any unit; null is `settings.now`) each may be missing; others are not
    looked at. TypeError if a column has another type.
    """
    return encode_columns(rows_in(rows), settings)


def digest(rows: pa.RecordBatch) -> int:
    """Return a number below 2**128 that the same rows give in any order; the sum of those of two batches, modulo
    2**128, is that of both.

    The columns are those of `encode`, and `topic` (string) and `partition` (int32). TypeError if one has another type.
    """
    import pyarrow as pa  # noqa: PLC0415

    columns = _columns(rows)
    return rows_digest(
        rows_in(rows),
        _bytes_in(columns.get("topic"), "topic"),
        _numbers_in(columns.get("partition"), pa.int32()),
        _numbers_in(columns.get("timestamp"), pa.int64()),
    )


def _columns(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return {name: rows.column(index) for index, name in enumerate(rows.schema.names)}


def rows_in(rows: pa.RecordBatch) -> RowsIn:
    """Return the columns of rows for `kop.records.columns`, which hold their memory. TypeError as in `encode`."""
    columns = _columns(rows)
    return RowsIn(
        rows.num_rows,
        _bytes_in(columns.get("key"), "key"),
        _bytes_in(columns.get("value"), "value"),
        _headers_in(columns.get("headers")),
        _timestamps_in(columns.get("timestamp")),
    )


def partitions(keys: pa.Array, count: int) -> pa.Array:
    """Return for each key the partition, of `count`, that Kafka's default partitioner chooses, as int32; null for a
    null key.

    `keys` is binary or string, TypeError else.
    """
    import pyarrow as pa  # noqa: PLC0415

    column = _bytes_in(keys, "key")
    if column is None:
        return pa.nulls(len(keys), pa.int32())
    return _array(pa.int32(), len(keys), key_partitions(len(keys), column, count))


def _view(buffer: pa.Buffer | None) -> Buffer:
    return b"" if buffer is None or not buffer.size else memoryview(buffer).cast("B")


def _validity(array: pa.Array) -> Buffer | None:
    buffer = array.buffers()[0]
    return None if buffer is None or not array.null_count else _view(buffer)


def _bytes_in(array: pa.Array | None, name: str) -> ColumnIn | None:
    import pyarrow as pa  # noqa: PLC0415

    if array is None or pa.types.is_null(array.type):
        return None
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_large_binary(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.binary())
    elif pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        raise TypeError(f"the column {name} is {array.type}, not binary or string: cast it")
    _, offsets, data = array.buffers()
    return array.offset, _validity(array), _view(offsets), _view(data)


def _numbers_in(array: pa.Array | None, kind: pa.DataType) -> NumbersIn | None:
    if array is None or array.null_count == len(array):
        return None
    array = array.cast(kind)
    return array.offset, _validity(array), _view(array.buffers()[1])


def _headers_in(array: pa.Array | None) -> HeadersIn | None:
    import pyarrow as pa  # noqa: PLC0415

    if array is None or pa.types.is_null(array.type):
        return None
    if not (pa.types.is_list(array.type) and pa.types.is_struct(array.type.value_type)):
        raise TypeError(f"the column headers is {array.type}, not a list of structs of key and value")
    entries = array.values
    parts: dict[str, Any] = {field.name: entries.field(at) for at, field in enumerate(array.type.value_type)}
    if parts.keys() != {"key", "value"}:
        raise TypeError(f"a header has the fields {', '.join(parts)}, not key and value")
    names, values = _bytes_in(parts["key"], "headers.key"), _bytes_in(parts["value"], "headers.value")
    if names is None:
        raise TypeError("headers have no names")
    if values is None:
        values = _bytes_in(pa.nulls(len(entries), pa.binary()), "headers.value")
        assert values is not None
    entries_in: EntriesIn = entries.offset, _validity(entries)
    return array.offset, _validity(array), _view(array.buffers()[1]), entries_in, names, values


def _timestamps_in(array: pa.Array | None) -> TimestampsIn | None:
    import pyarrow as pa  # noqa: PLC0415

    if array is None or pa.types.is_null(array.type):
        return None
    if not pa.types.is_timestamp(array.type):
        raise TypeError(f"the column timestamp is {array.type}, not a timestamp")
    if array.type.unit == "s":
        array = array.cast(pa.timestamp("ms", array.type.tz))
    divisor = {"ms": 1, "us": 1000, "ns": 1_000_000}[array.type.unit]
    return array.offset, _validity(array), _view(array.buffers()[1]), divisor
