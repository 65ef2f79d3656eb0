"""Outputs on their way to the topics: partitions, record batches, sequences, transactions.

Owns: to which partition a record goes, the sequences of the producer, which partitions its transaction has.
Must not know: functions, when offsets are committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kop import clock
from kop.client.batches import BATCH_BYTES, NewRecord, NewRecords, build, build_rows
from kop.client.offsets import TopicPartition
from kop.client.write_client import Identity, WriteClient
from kop.functions import origins
from kop.functions.output_sizes import record_bytes
from kop.records import arrow
from kop.records.batch import Codec, add_sequence
from kop.records.columns import MAX_BYTES, RowsIn
from kop.records.partitioning import partition_of

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_ROOM: Final = 100
"""The most bytes that a record alone in a batch takes beside those of `record_bytes`."""
DEFAULT_MOST_BYTES: Final = 1_048_588
LIMIT_SECONDS: Final = 60.0
_MOST_BYTES: Final = "max.message.bytes"


class _Alone(NamedTuple):
    """A record that has a batch for itself."""

    rows: RowsIn
    codec: int


_Piece: TypeAlias = NewRecords | RowsIn | _Alone


class Outputs:
    """The records that one producer has to write. `add...` collects, `write` writes what was collected.

    A record without a key goes to the partition of the same number as the one that its input came from, modulo how
    many there are: so results stay in the order of their inputs.
    """

    def __init__(self, client: WriteClient, identity: Identity, codec: int) -> None:
        self._client = client
        self._identity = identity
        self._codec = codec
        self._process = os.getpid()
        self._waiting: dict[TopicPartition, list[_Piece]] = {}
        self._counts: dict[str, int] = {}
        self._limits: dict[str, tuple[int, float]] = {}
        """The most bytes of a batch of topics that were asked for it, and the time of the answer."""
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()

    @property
    def is_transactional(self) -> bool:
        """True if what is written does not count until its transaction is committed."""
        return self._identity.transactional_id is not None

    def use(self, identity: Identity) -> None:
        """Write as another producer from here on, whose sequences begin at 0. Outputs that were added and not taken are
        written by it, too.
        """
        self._identity = identity
        self._sequences.clear()
        self._added.clear()

    def discard(self) -> None:
        """Forget the outputs that were added and not taken."""
        self._waiting = {}

    def count(self, topic: str) -> int:
        """Return how many partitions a topic has; the server is asked once until the next `take`. A copy of the process
        that a function has forked ends here, with exit code 0: it would ask over the connection of the other one, and
        take its answer.
        """
        if os.getpid() != self._process:
            os._exit(0)
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._ask_count(topic)
        return count

    def _ask_count(self, topic: str) -> int:
        return len(self._client.leaders(topic))

    def add(self, topic: str, source: int, record: NewRecord, *, alone: int | None = None) -> None:
        """Add a record for a topic. Its key chooses the partition; without one that is `source`, the number of the
        partition that its input came from, modulo how many the topic has. `alone`: the codec of a batch for this record
        alone, which may have any size.
        """
        count, key = self.count(topic), record[0]
        place = topic, partition_of(key, count) if key is not None else source % count
        if alone is None:
            self._records(place).add(record)
        else:
            self._waiting.setdefault(place, []).append(_Alone(NewRecords([record]).rows(), alone))

    def add_first_that_fits(self, topic: str, source: int, records: Sequence[NewRecord]) -> bool:
        """Add the first of some records that the topic takes, as `add` does, in a batch of its own if it is large;
        return False if it takes none of them, by its max.message.bytes.
        """
        limit = self.most_bytes(topic)
        for record in records:
            if record_bytes(record[0], record[1], record[2]) + RECORD_ROOM <= min(limit, BATCH_BYTES):
                self.add(topic, source, record)
                return True
            for codec in dict.fromkeys((self._codec, Codec.LZ4)):
                ((batch, _),) = build([record], self._identity, 0, now=0, codec=codec, max_bytes=MAX_BYTES)
                if len(batch) <= limit:
                    self.add(topic, source, record, alone=codec)
                    return True
        return False

    def most_bytes(self, topic: str) -> int:
        """Return the most bytes that a batch of a topic may have, Kafka's default if this user may not ask; the servers
        are asked once in 60 s.
        """
        limit, asked_at = self._limits.get(topic, (0, float("-inf")))
        if clock.monotonic() >= asked_at + LIMIT_SECONDS:
            self.count(topic)  # so that it is there
            limit = self.ask_limit(topic)
            self._limits[topic] = limit, clock.monotonic()
        return limit

    def ask_limit(self, topic: str) -> int:
        """Ask the servers for what `most_bytes` returns."""
        return int(self._client.topic_configs(topic, [_MOST_BYTES]).get(_MOST_BYTES, DEFAULT_MOST_BYTES))

    def add_results(self, topic: str, source: TopicPartition, values: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Add results of messages of the partition `source`, each a record without key with headers that name its
        message. `offsets` are those of the messages, ascending.
        """
        if values:
            place = topic, source[1] % self.count(topic)
            self._records(place).extend(values, origins.header_runs(*source, offsets))

    def add_to(self, place: TopicPartition, record: NewRecord) -> None:
        """Add a record for the topic and partition `place`."""
        self._records(place).add(record)

    def add_batch(self, place: TopicPartition, source: int, batch: pa.RecordBatch) -> None:
        """Add a batch of rows for the topic and partition `place`; `source` is the number of the partition that their
        input came from, which counts for subclasses alone.
        """
        self._waiting.setdefault(place, []).append(arrow.rows_in(batch))

    def _records(self, place: TopicPartition) -> NewRecords:
        pieces = self._waiting.setdefault(place, [])
        if not pieces or not isinstance(pieces[-1], NewRecords):
            pieces.append(NewRecords())
        last = pieces[-1]
        assert isinstance(last, NewRecords)
        return last

    def write(self, group: str | None = None) -> bool:
        """Write the outputs that were added, and return True once they are durable; False if there were none.

        `group`: the one whose offsets will be committed in the same transaction, if the producer has one.
        """
        batches = self.take()
        if batches:
            self.send(batches, group)
        return bool(batches)

    def take(self) -> Mapping[TopicPartition, Sequence[bytearray]]:
        """Take the outputs that were added, and return them as record batches with the next sequences of the producer,
        which `send` has to write. Later outputs are not part of them.
        """
        taken, self._waiting = self._waiting, {}
        self._counts.clear()
        now = clock.wall_ms()
        return {place: self._batches(place, pieces, now) for place, pieces in taken.items()}

    def send(self, batches: Mapping[TopicPartition, Sequence[bytearray]], group: str | None = None) -> None:
        """Write the batches of one `take`, in their order; returns when they are durable. Further outputs may be added
        meanwhile, by another thread. `group`: the one whose offsets will be committed in the same transaction.
        """
        if self._identity.transactional_id is not None and (new := batches.keys() - self._added):
            self._client.add_partitions(self._identity, sorted(new), group)
            self._added |= new
        self._client.produce_all(self._identity, batches)

    def _batches(self, place: TopicPartition, pieces: Iterable[_Piece], now: int) -> list[bytearray]:
        sequence = self._sequences.get(place, 0)
        batches = []
        most = min(BATCH_BYTES, self._limits.get(place[0], (BATCH_BYTES, 0.0))[0])
        for piece in pieces:
            if isinstance(piece, _Alone):
                rows, codec, max_bytes = piece.rows, piece.codec, MAX_BYTES
            else:
                rows, codec, max_bytes = piece.rows() if isinstance(piece, NewRecords) else piece, self._codec, most
            for batch, count in build_rows(rows, self._identity, sequence, now=now, codec=codec, max_bytes=max_bytes):
                batches.append(batch)
                sequence = add_sequence(sequence, count)
        self._sequences[place] = sequence
        return batches

    def end_transaction(self) -> None:
        """Commit the producer's transaction."""
        self._client.end_transaction(self._identity)
        self._added.clear()
