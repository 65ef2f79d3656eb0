"""The offsets that groups committed, how they are written, and when they expire (KIP-211).

Owns: what is durable by topic and partition, which keys are being written, their records, Kafka's rule of expiry, and
what becomes of offsets that are committed in a transaction when it ends (KIP-98).
Must not know: requests, which groups there are, how a group's state machine works.

What is being written is not yet committed: nobody reads it. But it counts where offsets are deleted, so that a
tombstone follows every commit that was taken before it.

An offset that is committed in a transaction is pending until the transaction ends. Of a plain commit and a pending one
the later in the log wins, wherever the end of the transaction comes. So a plain commit supersedes the pending ones
before it: these are dropped when their transactions end. Where a transaction that ends commits a key that a later
pending offset waits for, that one is written again behind it: the log alone says what superseded what, also after
compaction, and a replay in the order of the log gives the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from kop.cluster.client_topics import ClientTopics
from kop.coordination.state_log import KeyValue, StateLog, Written
from kop.errors import ErrorCode
from kop.groups.classic.group import ClassicGroup
from kop.wire.state import (
    OffsetCommitValue,
    PendingOffsetKey,
    PendingOffsetValue,
    encode_key,
    encode_offset_key,
    encode_offset_value,
    encode_pending_value,
)

Key: TypeAlias = tuple[str, int]
"""The type of a key of committed offsets: the name of a topic, and a partition."""
CountedT = TypeVar("CountedT")
ItemT = TypeVar("ItemT")
_NO_RETENTION: Final = -1
_LAST_MS: Final = 2**63 - 1
"""The latest time in ms since the epoch that an offset record can hold."""
WRITE_RECORDS: Final = 2000
"""The most records of one write that ends a transaction or deletes offsets: storage may have a limit for a batch."""
WRITE_BYTES: Final = 512 * 1024
"""The most bytes of one write that ends a transaction or deletes offsets. Any storage takes that much at once, so that
no part of it can be stored alone.
"""


class Commit(NamedTuple):
    """An offset of one partition that a group asks to commit."""

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(slots=True)
class PendingOffset:
    """A durable offset that a transaction commits, while that transaction has not ended."""

    value: PendingOffsetValue
    superseded: bool = False
    """True if a plain commit came later, so that the transaction's offset is dropped when it ends."""

    def is_of(self, storage_transaction: bytes) -> bool:
        """Return true if the offset belongs to the transaction that storage gives this name. An empty name fits any
        offset, and an offset whose record has no name fits any transaction.
        """
        own = self.value.storage_transaction
        return not own or not storage_transaction or own == storage_transaction


class EndedOffset(NamedTuple):
    """The outcome for a pending offset when its transaction ends."""

    key: Key
    committed: OffsetCommitValue | None
    """The offset that is committed; None if the pending one is dropped."""


class GroupOffsets:
    """The committed offsets of one group, and those that transactions are to commit."""

    __slots__ = ("by_topic", "ending", "pending", "unsure", "writing", "writing_pending")

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, OffsetCommitValue]] = {}
        """Durable committed offsets by topic, then partition."""
        self.pending: dict[Key, dict[int, PendingOffset]] = {}
        """Durable pending offsets by topic and partition, then producer id, in the order of the log."""
        self.writing: Counter[Key] = Counter()
        """The number of writes under way for each topic and partition, tombstones among them."""
        self.writing_pending: Counter[tuple[Key, int]] = Counter()
        """The number of writes of pending offsets under way, by topic and partition, and producer id."""
        self.unsure: set[tuple[Key, int]] = set()
        """The pending offsets, by topic and partition and producer id, whose write failed: they may be in the log all
        the same.
        """
        self.ending: Counter[Key] = Counter()
        """Topics and partitions whose writes under way the end of a transaction waits for. No further write of them may
        begin.
        """

    def __bool__(self) -> bool:
        return bool(self.by_topic or self.writing or self.pending)

    def __iter__(self) -> Iterator[tuple[str, int, OffsetCommitValue]]:
        for topic, partitions in self.by_topic.items():
            for partition, value in partitions.items():
                yield topic, partition, value

    @property
    def topics(self) -> set[str]:
        """The topics of all durable offsets, pending ones too."""
        return {*self.by_topic, *(topic for topic, _ in self.pending)}

    def get(self, topic: str, partition: int) -> OffsetCommitValue | None:
        """Return the committed offset of a partition; None if there is none."""
        partitions = self.by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def is_pending(self, topic: str, partition: int) -> bool:
        """Return true if a transaction that has not ended holds an offset of the partition."""
        return (topic, partition) in self.pending

    def put(self, topic: str, partition: int, value: OffsetCommitValue) -> None:
        """Apply a plain commit that became durable: it is the committed offset now, and supersedes the offsets of the
        partition that transactions hold.
        """
        self.by_topic.setdefault(topic, {})[partition] = value
        if pending := self.pending.get((topic, partition)):
            for earlier in pending.values():
                earlier.superseded = True

    def put_pending(self, topic: str, partition: int, producer_id: int, value: PendingOffsetValue) -> None:
        """Apply a transaction's pending offset that became durable: it replaces the producer's earlier one."""
        of_key = self.pending.setdefault((topic, partition), {})
        of_key.pop(producer_id, None)  # the dict keeps the order of the log
        of_key[producer_id] = PendingOffset(value)

    def put_ended(self, producer_id: int, ended: EndedOffset) -> None:
        """Apply the end of a producer's transaction for one partition, which became durable: its pending offset goes,
        and is committed if `ended` says so. Then it supersedes other transactions' offsets that are before it in the
        log.
        """
        key, committed = ended
        self.unsure.discard((key, producer_id))
        of_key = self.pending.get(key, {})
        if committed is not None:
            self.by_topic.setdefault(key[0], {})[key[1]] = committed
            for other_producer, earlier in of_key.items():
                if other_producer == producer_id:
                    break
                earlier.superseded = True
        of_key.pop(producer_id, None)
        if not of_key:
            self.pending.pop(key, None)

    def drop(self, keys: Iterable[Key]) -> None:
        """Drop the offsets, committed and pending ones, of keys whose tombstones became durable."""
        for key in keys:
            topic, partition = key
            partitions = self.by_topic.get(topic)
            if partitions is not None:
                partitions.pop(partition, None)
                if not partitions:
                    del self.by_topic[topic]
            self.pending.pop(key, None)
        gone = set(keys)
        self.unsure = {of_key for of_key in self.unsure if of_key[0] not in gone}

    def begin(self, key: Key) -> None:
        """Count one more write of records of `key` as under way, until `end`."""
        self.writing[key] += 1

    def end(self, key: Key) -> None:
        """Count one write of `key` less as under way: it has ended, durable or failed."""
        _less(self.writing, key)

    def release(self, key: Key) -> None:
        """Allow writes of `key` again: the end of a transaction no longer waits for them."""
        _less(self.ending, key)

    def keys(self, topic: str | None = None) -> list[Key]:
        """Return the keys of offsets that are committed, being written or pending, of one topic or of all."""
        other = self.writing.keys() | self.pending.keys() | {key for key, _ in self.unsure}
        if topic is None:
            durable = {(name, partition) for name, partition, _ in self}
            return sorted(durable | other)
        durable_of_topic = {(topic, partition) for partition in self.by_topic.get(topic, ())}
        return sorted(durable_of_topic | {key for key in other if key[0] == topic})

    def keys_of(self, producer_id: int, storage_transaction: bytes = b"") -> list[Key]:
        """Return the partitions for which the log holds, or may hold, pending offsets of the producer; with a name of a
        transaction, of that one only.
        """
        durable = {key for key, offset in self._pending_of(producer_id) if offset.is_of(storage_transaction)}
        other = {key for key, of in (*self.writing_pending, *self.unsure) if of == producer_id}
        return sorted(durable | other)

    def _pending_of(self, producer_id: int) -> Iterator[tuple[Key, PendingOffset]]:
        for key, of_key in self.pending.items():
            if (offset := of_key.get(producer_id)) is not None:
                yield key, offset

    def newest_epoch(self, producer_id: int, storage_transaction: bytes = b"") -> int:
        """Return the newest producer epoch of the producer's pending offsets, with a transaction's name in storage of
        that one's only; -1 if there are none.
        """
        of_producer = (offset for _, offset in self._pending_of(producer_id) if offset.is_of(storage_transaction))
        return max((offset.value.producer_epoch for offset in of_producer), default=-1)

    def ended(
        self, producer_id: int, committed_epoch: int | None, storage_transaction: bytes = b""
    ) -> list[EndedOffset]:
        """Return for each of the producer's pending offsets if it is committed or dropped when its transaction ends.

        `storage_transaction` is the transaction's name in storage: offsets of another one stay pending and are left
        out. Offsets of `committed_epoch` are committed, unless a plain commit superseded them; with None all are
        dropped.
        """
        ended: list[EndedOffset] = []
        for key in self.keys_of(producer_id, storage_transaction):
            offset = self.pending.get(key, {}).get(producer_id)
            value = None
            if offset is not None and not offset.superseded and offset.value.producer_epoch == committed_epoch:
                value = offset.value.offset
            ended.append(EndedOffset(key, value))
        return ended

    def end_records(self, group_id: str, producer_id: int, ended: EndedOffset) -> list[KeyValue]:
        """Return the records to write for one pending offset of the producer at the end of its transaction: the commit,
        if it is one, behind it the later pending offsets of other producers once more, and the pending one's tombstone.
        """
        (topic, partition), committed = ended
        records: list[KeyValue] = []
        if committed is not None:
            records.append((encode_offset_key(group_id, topic, partition), encode_offset_value(committed)))
            is_later = False
            for other_producer, offset in self.pending.get((topic, partition), {}).items():
                if is_later and not offset.superseded:
                    # It has to lie behind the commit in the log: a replay would take it for superseded otherwise.
                    other_key = PendingOffsetKey(group_id, topic, partition, other_producer)
                    records.append((encode_key(other_key), encode_pending_value(offset.value)))
                is_later = is_later or other_producer == producer_id
        # Behind the commit: where the tombstone is lost, a replay takes the pending one for superseded.
        records.append((encode_key(PendingOffsetKey(group_id, topic, partition, producer_id)), None))
        return records

    def tombstones(self, group_id: str, keys: Iterable[Key]) -> Iterator[tuple[Key, list[KeyValue]]]:
        """Yield for each of these keys the tombstones that delete its offsets, pending ones too."""
        unsettled: dict[Key, set[int]] = {}
        for key, producer_id in (*self.writing_pending, *self.unsure):
            unsettled.setdefault(key, set()).add(producer_id)
        for key in keys:
            topic, partition = key
            records: list[KeyValue] = [(encode_offset_key(group_id, topic, partition), None)]
            for producer_id in sorted(self.pending.get(key, {}).keys() | unsettled.get(key, set())):
                records.append((encode_key(PendingOffsetKey(group_id, topic, partition, producer_id)), None))
            yield key, records

    def expired(self, group: ClassicGroup, now: int, retention_ms: int) -> list[Key]:
        """Return the partitions whose offsets have expired at `now`, in ms since the epoch.

        Offsets of topics that members consume do not expire, nor those that are being written, or of which a
        transaction holds a pending one; none do while the group says that its offsets do not age. An offset that was
        committed with a retention time of its own goes by that, any other one by `retention_ms`.
        """
        since = group.offsets_age_since
        if since is None:
            return []
        expired: list[Key] = []
        for topic, partitions in self.by_topic.items():
            if group.is_subscribed_to(topic):
                continue
            for partition, value in partitions.items():
                if value.expire_timestamp >= 0:
                    over = now >= value.expire_timestamp
                else:
                    over = now - (value.commit_timestamp if since < 0 else since) >= retention_ms
                key = (topic, partition)
                if over and key not in self.writing and key not in self.pending:
                    expired.append(key)
        return expired


class OffsetStore:
    """The store of groups' offsets: it writes and deletes them first in the log, then, once that is durable, in
    `GroupOffsets`.
    """

    def __init__(self, log: StateLog, topics: ClientTopics, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` gives the times of commits, in milliseconds since the epoch."""
        self._log = log
        self._topics = topics
        self._wall_ms = wall_ms

    def commit(
        self,
        log_partition: int,
        group_id: str,
        offsets: GroupOffsets,
        commits: Iterable[Commit],
        retention_ms: int,
        written: Written,
    ) -> None:
        """Commit offsets of a group, all of them or none; `written` is called once they are in `offsets`, or failed.

        `retention_ms`: how long to keep them whatever the broker's setting is, -1 for that setting. StateRecordError if
        no record can hold them: nothing is written then.
        """
        values = self._values(commits, retention_ms)
        records = [(encode_offset_key(group_id, *key), encode_offset_value(value)) for key, value in values]
        for key, _ in values:
            offsets.begin(key)

        def committed(code: ErrorCode) -> None:
            for key, value in values:
                offsets.end(key)
                if not code:
                    offsets.put(*key, value)
            written(code)

        self._log.write(log_partition, records, committed)

    def commit_pending(
        self,
        log_partition: int,
        group_id: str,
        offsets: GroupOffsets,
        producer_id: int,
        producer_epoch: int,
        storage_transaction: bytes,
        commits: Iterable[Commit],
        written: Written,
    ) -> None:
        """Write offsets that become committed when the producer's transaction commits, all of them or none; `written`
        is called once they are pending in `offsets`, or failed. StateRecordError if no record can hold them.
        """
        values = [
            (key, PendingOffsetValue(producer_epoch, value, storage_transaction))
            for key, value in self._values(commits, _NO_RETENTION)
        ]
        records = [
            (encode_key(PendingOffsetKey(group_id, *key, producer_id)), encode_pending_value(value))
            for key, value in values
        ]
        for key, _ in values:
            offsets.begin(key)
            offsets.writing_pending[key, producer_id] += 1

        def is_pending(code: ErrorCode) -> None:
            for key, value in values:
                offsets.end(key)
                _less(offsets.writing_pending, (key, producer_id))
                if code:
                    offsets.unsure.add((key, producer_id))
                else:
                    offsets.put_pending(*key, producer_id, value)
            written(code)

        self._log.write(log_partition, records, is_pending)

    def end(
        self,
        log_partition: int,
        producer_id: int,
        ended: Sequence[tuple[str, GroupOffsets, Sequence[EndedOffset]]],
        written: Written,
    ) -> bool:
        """Write the end of a producer's transaction for its pending offsets in all groups of a log partition, as many
        as one write takes.

        Return true if that is all; else the caller asks again, once it is written, for what is left. All of the write
        or nothing becomes durable. Dropped offsets come first, so that what is left is of one transaction. `ended`
        gives for each group the result of `GroupOffsets.ended`. None of these keys may be being written.
        """
        wanted = [(group_id, offsets, of_key) for group_id, offsets, of_group in ended for of_key in of_group]
        wanted.sort(key=lambda each: each[2].committed is not None)
        of_each = ((each, each[1].end_records(each[0], producer_id, each[2])) for each in wanted)
        now_ended, records = next(_writes(of_each))
        for _, offsets, of_key in now_ended:
            offsets.begin(of_key.key)

        def is_ended(code: ErrorCode) -> None:
            for _, offsets, of_key in now_ended:
                offsets.end(of_key.key)
                if not code:
                    offsets.put_ended(producer_id, of_key)
            written(code)

        self._log.write(log_partition, records, is_ended)
        return len(now_ended) == len(wanted)

    def delete(
        self,
        log_partition: int,
        group_id: str,
        offsets: GroupOffsets,
        keys: Sequence[Key],
        written: Written,
        more: Sequence[KeyValue] = (),
    ) -> None:
        """Write tombstones for offsets of a group; `written` is called once, when they are out of `offsets`, or failed.

        `more` are records that are written behind them. Many keys are several writes: some may be deleted while others
        are not, and `written` is told that it failed then.
        """
        parts = list(_writes(offsets.tombstones(group_id, keys)))
        left, failure = len(parts), ErrorCode.NONE
        for key in keys:
            offsets.begin(key)

        def deleted(code: ErrorCode, of_part: Sequence[Key]) -> None:
            nonlocal left, failure
            for key in of_part:
                offsets.end(key)
            if not code:
                offsets.drop(of_part)
            failure = failure or code
            left -= 1
            if not left:
                written(failure)

        # All at once: what is committed from now on lies behind all of them.
        for number, (of_part, records) in enumerate(parts, 1):
            is_last = number == len(parts)
            self._log.write(log_partition, [*records, *more] if is_last else records, partial(deleted, of_part=of_part))

    def _values(self, commits: Iterable[Commit], retention_ms: int) -> list[tuple[Key, OffsetCommitValue]]:
        now = self._wall_ms()
        expire = min(now + retention_ms, _LAST_MS) if retention_ms >= 0 else -1
        return [
            (
                (topic, partition),
                OffsetCommitValue(offset, max(leader_epoch, -1), metadata, now, expire, topic_id),
            )
            for topic, topic_id, partition, offset, leader_epoch, metadata in commits
        ]

    def of_missing_topics(self, offsets: GroupOffsets) -> list[Key]:
        """Return the keys of committed and pending offsets of topics that do not exist any more: the topic was deleted
        just before a crash, and the tombstones were not written.

        A topic of the same name that was made since counts as another topic. One that storage could not look for counts
        as there.
        """
        durable = {(name, partition): value for name, partition, value in offsets}
        missing = [key for key, value in durable.items() if self._is_missing(key[0], value)]
        for key, of_key in offsets.pending.items():
            values = [offset.value.offset for offset in of_key.values()]
            if key not in durable and all(self._is_missing(key[0], value) for value in values):
                missing.append(key)
        return missing

    def _is_missing(self, name: str, value: OffsetCommitValue) -> bool:
        topic = self._topics.get(name)
        if topic is None:
            return not self._topics.may_exist(name)
        return value.topic_id is not None and topic.topic_id != value.topic_id


def _writes(
    of_each: Iterable[tuple[ItemT, Sequence[KeyValue]]],
) -> Iterator[tuple[list[ItemT], list[KeyValue]]]:
    """Yield items, each of which has some records, in parts with their records that storage takes in one write each.

    The records of one item stay together. There is at least one part, also of no items.
    """
    items: list[ItemT] = []
    records: list[KeyValue] = []
    size = 0
    for item, of_item in of_each:
        size_of_item = sum(len(key) + len(value or b"") for key, value in of_item)
        if items and (len(records) + len(of_item) > WRITE_RECORDS or size + size_of_item > WRITE_BYTES):
            yield items, records
            items, records, size = [], [], 0
        items.append(item)
        records += of_item
        size += size_of_item
    yield items, records


def _less(counts: Counter[CountedT], item: CountedT) -> None:
    left = counts[item] - 1
    if left:
        counts[item] = left
    else:
        del counts[item]
