"""From rows to Produce requests: which partition a row goes to, record batches with their sequences, transactions.

Owns: the choice of partitions, the sequences of a producer, how much is sent at once.
Must not know: pyspark, batches of a query, how requests are sent again.

Rows come as batches of `kop.spark.sink_columns`. Each is written before the next is taken, so a slow cluster slows the
query down and no rows pile up here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kop import clock
from kop.client.batches import BATCH_BYTES
from kop.client.errors import ClientError
from kop.client.offsets import TopicPartition
from kop.client.write_client import REQUEST_BYTES, Identity, WriteClient
from kop.errors import PeerError
from kop.records.arrow import EncodeSettings, encode, partitions
from kop.records.batch import Codec, add_sequence
from kop.spark.clients import naming_options
from kop.spark.exactly_once import MARKER_TOPIC, SinkError, SinkTask

if TYPE_CHECKING:
    import pyarrow as pa

CODECS: Final = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """The settings by which records are written; sizes in bytes, times in milliseconds."""

    codec: int = Codec.NONE
    max_batch_bytes: int = BATCH_BYTES
    max_request_bytes: int = REQUEST_BYTES
    acks: int = -1
    transaction_timeout_ms: int = 300_000


def partitions_of(keys: pa.Array, given: pa.Array, count: int, turn: int) -> pa.Array:
    """Return the partition of each row of a topic that has `count` partitions, int32: the one in `given`, if it is not
    null, else by the key, murmur2 of it as Kafka's Java client has it. All rows that have neither get the partition
    `turn`, modulo `count`.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    return compute.coalesce(given, partitions(keys, count), pa.scalar(turn % count, pa.int32()))


class RowProducer:
    """A writer of rows as one idempotent producer (KIP-98): each record once in its partition however often it is sent.

    Rows without a key go to the partitions in turn, batch by batch. `first` is the one whose turn is first, modulo the
    number of partitions.
    """

    def __init__(self, client: WriteClient, identity: Identity, settings: ProduceSettings, first: int = 0) -> None:
        self.identity = identity
        self._client = client
        self._settings = settings
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._turn = itertools.count(first)

    @naming_options()
    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch, and return when they are durable. In a transaction, partitions that are new to it
        are added first. SinkError for a row that is too large, or whose column `partition` the topic does not have.
        After an error this producer cannot go on: it has counted the sequences of the batch already.
        """
        waiting: dict[TopicPartition, deque[bytearray]] = {}
        now = clock.wall_ms()
        transactional = self.identity.transactional_id is not None
        for place, rows in self._placed(batch).items():
            sequence = self._sequences.get(place, 0)
            of_place = waiting[place] = deque()
            try:
                settings = EncodeSettings(
                    max_bytes=self._settings.max_batch_bytes,
                    now=now,
                    codec=self._settings.codec,
                    producer_id=self.identity.producer_id,
                    producer_epoch=self.identity.epoch,
                    base_sequence=sequence,
                    transactional=transactional,
                )
                for encoded in encode(rows, settings):
                    of_place.append(encoded.batch)
                    sequence = add_sequence(sequence, encoded.records)
            except PeerError as error:
                raise SinkError(
                    f"a row for {place[0]}-{place[1]} cannot be written: {error}. Make it smaller, or raise "
                    "kafka.max.request.size here and max.message.bytes of the topic."
                ) from error
            self._sequences[place] = sequence
        if transactional and (new := waiting.keys() - self._added):
            self._client.add_partitions(self.identity, new)
            self._added |= new
        while waiting:
            now_due = {place: ready.popleft() for place, ready in waiting.items()}
            self._client.produce(self.identity, now_due, self._settings.acks, self._settings.max_request_bytes)
            waiting = {place: ready for place, ready in waiting.items() if ready}

    def _placed(self, batch: pa.RecordBatch) -> Mapping[TopicPartition, pa.RecordBatch]:
        """Return the rows of each partition, in their order. SinkError if the column `partition` says one that the
        topic does not have.
        """
        from pyarrow import compute  # noqa: PLC0415

        placed: dict[TopicPartition, pa.RecordBatch] = {}
        topics = batch.column("topic")
        names = topics.unique().to_pylist()
        for name in names:
            rows = batch if len(names) == 1 else batch.filter(compute.equal(topics, name))
            count = len(self._client.leaders(name))
            chosen = partitions_of(rows.column("key"), rows.column("partition"), count, next(self._turn))
            bounds = compute.min_max(chosen).as_py()
            for wrong in (bounds["min"], bounds["max"]):
                if not 0 <= wrong < count:
                    raise SinkError(
                        f"the column partition says {wrong}, and the topic {name} has {count} partitions: choose a "
                        "smaller one, leave the column out, or give the topic more partitions"
                    )
            if bounds["min"] < bounds["max"]:
                order = compute.array_sort_indices(chosen)  # it is stable
                rows, chosen = rows.take(order), chosen.take(order)
            start = 0
            for run in compute.value_counts(chosen).to_pylist():
                placed[name, run["values"]] = rows.slice(start, run["counts"])
                start += run["counts"]
        return placed


class ClientTransactions:
    """The transactions of one task of an exactly-once sink; see `kop.spark.exactly_once.TaskTransactions`."""

    def __init__(self, client: WriteClient, task: SinkTask, settings: ProduceSettings) -> None:
        self._client = client
        self._task = task
        self._settings = settings
        self._producer: RowProducer | None = None

    @naming_options()
    def fence(self) -> None:
        """Make the topic of the markers if it does not exist or has too few partitions, then send FindCoordinator and
        InitProducerId: fence earlier attempts of the task, and abort what they left open. SinkError if the topic cannot
        be made.
        """
        try:
            self._client.partitions_at_least(MARKER_TOPIC, self._task.tasks)
        except ClientError as error:
            raise SinkError(
                f"{error}: an exactly-once sink keeps its markers as committed offsets of that topic, which never "
                "holds a record"
            ) from error
        made = self._client.init_producer(self._task.transactional_id, self._settings.transaction_timeout_ms)
        # Each task of each batch is another producer: rows without a key go to other partitions the next time.
        first = self._task.batch + self._task.task
        self._producer = RowProducer(self._client, made, self._settings, first)

    @naming_options()
    def read_markers(self) -> Mapping[int, tuple[int, str]]:
        """Send OffsetFetch with require_stable: return offset and metadata of the committed markers, by the number of
        the task. The marker of this task is waited for while a transaction holds it; those of other tasks are left out
        then.
        """
        task = self._task
        places = [(MARKER_TOPIC, number) for number in range(task.tasks)]
        others = [place for place in places if place[1] != task.task]
        markers = self._client.committed(task.group, places, may_be_open=others)
        return {number: marker for (_, number), marker in markers.items()}

    def produce(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Write rows in the transaction: AddPartitionsToTxn is sent for each new partition, then Produce. Errors are
        those of `RowProducer.write`. `fence` has to be called first.
        """
        for batch in rows:
            self._fenced.write(batch)

    @naming_options()
    def commit_marker(self, offset: int, metadata: str) -> None:
        """Send AddOffsetsToTxn and TxnOffsetCommit: put the task's marker, the number of the next batch as `offset` and
        its metadata, into the transaction. It is committed by `end`, together with the rows.
        """
        place = MARKER_TOPIC, self._task.task
        self._client.commit_in_transaction(self._fenced.identity, self._task.group, {place: offset}, metadata)

    @naming_options()
    def end(self) -> None:
        """Send EndTxn: commit the transaction, with the rows and the marker."""
        self._client.end_transaction(self._fenced.identity)

    @property
    def _fenced(self) -> RowProducer:
        assert self._producer is not None, "fence() comes first"
        return self._producer
