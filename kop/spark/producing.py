"""From rows to Produce requests: which partition a row goes to, record batches with their sequences, transactions.

Owns: the choice of partitions, the sequences of a producer, how much is sent at once.
Must not know: pyspark, batches of a query, how requests are sent again.

Rows come as batches of `kop.spark.columns`. Each is written before the next is taken, so a slow cluster slows the
query down and no rows pile up here.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.partitioner.default import murmur2

from kop.errors import PeerError
from kop.records.arrow import encode
from kop.records.batch import Codec, add_sequence
from kop.spark.cluster import Cluster, Identity, Place
from kop.spark.exactly_once import MARKER_TOPIC, SinkError, SinkTask

if TYPE_CHECKING:
    import pyarrow as pa

CODECS: Final = {codec.name.lower(): codec for codec in Codec}
_KNOWN_KEYS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """How records are written; bytes and milliseconds."""

    codec: int = Codec.NONE
    max_batch_bytes: int = 900_000
    """Below max.message.bytes of a topic, which is 1 MiB unless it was set."""
    acks: int = -1
    transaction_timeout_ms: int = 300_000


class Partitioner:
    """Chooses partitions as Kafka's Java client does: by murmur2 of the key; rows without one in turns of a batch."""

    def __init__(self) -> None:
        self._hashes: dict[bytes, int] = {}
        self._turn = itertools.count()

    def partitions(self, keys: list[bytes | None], given: list[int | None], count: int) -> list[int]:
        """The partition of each row of a topic that has `count` partitions."""
        turn = next(self._turn) % count
        hashes = self._hashes
        found = []
        for key, chosen in zip(keys, given, strict=True):
            if chosen is not None:
                found.append(chosen)
            elif key is None:
                found.append(turn)
            else:
                hashed = hashes.get(key)
                if hashed is None:
                    if len(hashes) >= _KNOWN_KEYS:
                        hashes.clear()
                    hashed = hashes[key] = murmur2(key) & 0x7FFFFFFF
                found.append(hashed % count)
        return found


class RowProducer:
    """Writes rows as one idempotent producer (KIP-98): each record once in its partition however often it is sent."""

    def __init__(self, cluster: Cluster, identity: Identity, settings: ProduceSettings) -> None:
        self.identity = identity
        self._cluster = cluster
        self._settings = settings
        self._sequences: dict[Place, int] = {}
        self._added: set[Place] = set()
        self._partitioner = Partitioner()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch; returns when they are durable."""
        waiting: dict[Place, deque[bytearray]] = {}
        now = time.time_ns() // 1_000_000
        transactional = self.identity.transactional_id is not None
        for place, rows in self._placed(batch).items():
            sequence = self._sequences.get(place, 0)
            of_place = waiting[place] = deque()
            try:
                for encoded in encode(
                    rows,
                    max_bytes=self._settings.max_batch_bytes,
                    now=now,
                    codec=self._settings.codec,
                    producer_id=self.identity.producer_id,
                    producer_epoch=self.identity.epoch,
                    base_sequence=sequence,
                    transactional=transactional,
                ):
                    of_place.append(encoded.batch)
                    sequence = add_sequence(sequence, encoded.records)
            except PeerError as error:
                raise SinkError(
                    f"a row for {place[0]}-{place[1]} cannot be written: {error}. Make it smaller, or raise "
                    "kafka.max.request.size here and max.message.bytes of the topic."
                ) from error
            self._sequences[place] = sequence
        if transactional and (new := waiting.keys() - self._added):
            self._cluster.add_partitions(self.identity, new)
            self._added |= new
        while waiting:
            now_due = {place: ready.popleft() for place, ready in waiting.items()}
            self._cluster.produce(self.identity, now_due, self._settings.acks)
            waiting = {place: ready for place, ready in waiting.items() if ready}

    def _placed(self, batch: pa.RecordBatch) -> Mapping[Place, pa.RecordBatch]:
        """The rows of each partition, in their order."""
        import pyarrow as pa  # noqa: PLC0415

        indices: dict[Place, list[int]] = {}
        names = batch.column("topic").unique().to_pylist()
        topics = batch.column("topic").to_pylist() if len(names) > 1 else None
        keys, given = _column(batch, "key"), _column(batch, "partition")
        for name in names:
            count = len(self._cluster.leaders(name))
            if topics is None:
                rows: Sequence[int] = range(batch.num_rows)
                chosen = self._partitioner.partitions(keys, given, count)
            else:
                rows = [row for row, topic in enumerate(topics) if topic == name]
                chosen = self._partitioner.partitions([keys[row] for row in rows], [given[row] for row in rows], count)
            for row, partition in zip(rows, chosen, strict=True):
                indices.setdefault((name, partition), []).append(row)
            if wrong := [partition for partition in set(chosen) if not 0 <= partition < count]:
                raise SinkError(
                    f"the column partition says {wrong[0]}, and the topic {name} has {count} partitions: choose a "
                    "smaller one, leave the column out, or give the topic more partitions"
                )
        if len(indices) == 1:
            return dict.fromkeys(indices, batch)
        return {place: batch.take(pa.array(rows, pa.int64())) for place, rows in indices.items()}


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


class ClusterTransactions:
    """The transactions of one task of an exactly-once sink; see `kop.spark.exactly_once.TaskTransactions`."""

    def __init__(self, cluster: Cluster, task: SinkTask, settings: ProduceSettings) -> None:
        self._cluster = cluster
        self._task = task
        self._settings = settings
        self._producer: RowProducer | None = None

    def fence(self) -> None:
        """FindCoordinator and InitProducerId."""
        self._cluster.partitions_at_least(MARKER_TOPIC, self._task.tasks)
        made = self._cluster.init_producer(self._task.transactional_id, self._settings.transaction_timeout_ms)
        self._producer = RowProducer(self._cluster, made, self._settings)

    def read_markers(self) -> Mapping[int, tuple[int, str]]:
        """OffsetFetch with require_stable."""
        task = self._task
        return self._cluster.committed(task.group, MARKER_TOPIC, range(task.tasks), stable=task.task)

    def produce(self, rows: Iterable[pa.RecordBatch]) -> None:
        """AddPartitionsToTxn for each new partition, and Produce."""
        for batch in rows:
            self._fenced.write(batch)

    def commit_marker(self, offset: int, metadata: str) -> None:
        """AddOffsetsToTxn and TxnOffsetCommit."""
        place = MARKER_TOPIC, self._task.task
        self._cluster.commit_in_transaction(self._fenced.identity, self._task.group, place, offset, metadata)

    def end(self) -> None:
        """EndTxn with commit."""
        self._cluster.end_transaction(self._fenced.identity)

    @property
    def _fenced(self) -> RowProducer:
        assert self._producer is not None, "fence() comes first"
        return self._producer
