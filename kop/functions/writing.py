"""What calls of a function give, on its way to the topics: partitions, record batches, sequences, transactions.

Owns: to which partition a record goes, the sequences of the producer, which partitions its transaction has.
Must not know: functions, when offsets are committed.
"""

from __future__ import annotations

from collections import deque

from kop import clock
from kop.client.batches import NewRecord, build
from kop.client.offsets import TopicPartition
from kop.client.write_client import Identity, WriteClient
from kop.records.batch import add_sequence
from kop.records.partitioning import partition_of


class Outputs:
    """The records that one producer has to write. `add` collects, `write` writes what was collected.

    A record without a key goes to the partition of the same number as the one that its input came from, modulo how
    many there are: so results stay in the order of their inputs.
    """

    def __init__(self, client: WriteClient, identity: Identity, codec: int) -> None:
        self._client = client
        self._identity = identity
        self._codec = codec
        self._waiting: dict[TopicPartition, list[NewRecord]] = {}
        self._counts: dict[str, int] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()

    @property
    def is_transactional(self) -> bool:
        """True if what is written counts once its transaction is committed."""
        return self._identity.transactional_id is not None

    def use(self, identity: Identity) -> None:
        """Write as another producer from here on."""
        self._identity = identity
        self._sequences.clear()
        self._added.clear()

    def add(self, topic: str, source: int, record: NewRecord) -> None:
        """Take a record for a topic; `source` is the partition that its input came from."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = len(self._client.leaders(topic))
        key = record[0]
        self.add_to((topic, partition_of(key, count) if key is not None else source % count), record)

    def add_to(self, place: TopicPartition, record: NewRecord) -> None:
        """Take a record for a partition."""
        records = self._waiting.get(place)
        if records is None:
            records = self._waiting[place] = []
        records.append(record)

    def write(self) -> bool:
        """Write what was taken; returns when it is durable, False if there was nothing."""
        if not self._waiting:
            return False
        taken, self._waiting = self._waiting, {}
        self._counts.clear()
        now = clock.wall_ms()
        waiting: dict[TopicPartition, deque[bytearray]] = {}
        for place, records in taken.items():
            sequence = self._sequences.get(place, 0)
            ready = waiting[place] = deque()
            for batch, count in build(records, self._identity, sequence, now=now, codec=self._codec):
                ready.append(batch)
                sequence = add_sequence(sequence, count)
            self._sequences[place] = sequence
        if self._identity.transactional_id is not None and (new := waiting.keys() - self._added):
            self._client.add_partitions(self._identity, sorted(new))
            self._added |= new
        while waiting:
            due = {place: ready.popleft() for place, ready in waiting.items()}
            self._client.produce(self._identity, due)
            waiting = {place: ready for place, ready in waiting.items() if ready}
        return True

    def end_transaction(self) -> None:
        """Commit the producer's transaction."""
        self._client.end_transaction(self._identity)
        self._added.clear()
