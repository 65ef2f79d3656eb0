"""The offsets that groups committed, how they are written, and when they expire (KIP-211).

Owns: what is durable by topic and partition, which keys are being written, their records, and Kafka's rule of expiry.
Must not know: requests, which groups there are, how a group's state machine works.

What is being written is not yet committed: nobody reads it. But it counts where offsets are deleted, so that a
tombstone follows every commit that was taken before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from uuid import UUID

from kop.cluster.client_topics import ClientTopics
from kop.coordination.state_log import KeyValue, StateLog, Written
from kop.errors import ErrorCode
from kop.wire.state import OffsetCommitKey, OffsetCommitValue, encode_key, encode_offset_value

Key: TypeAlias = tuple[str, int]
"""The name of a topic, and a partition."""


class OffsetExpiry(Protocol):
    """What a group says of the expiry of its offsets, whatever its protocol is."""

    @property
    def offsets_age_since(self) -> int | None:
        """Since when the group's offsets age: ms since the epoch; -1: each since its commit; None: they do not age."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether offsets of `topic` are kept because members consume it, or may do so."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One partition's offset to be committed."""

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupOffsets:
    """Committed offsets of one group."""

    __slots__ = ("by_topic", "writing")

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, OffsetCommitValue]] = {}
        """Durable offsets by topic, then partition."""
        self.writing: Counter[Key] = Counter()

    def __bool__(self) -> bool:
        return bool(self.by_topic or self.writing)

    def __iter__(self) -> Iterator[tuple[str, int, OffsetCommitValue]]:
        for topic, partitions in self.by_topic.items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def get(self, topic: str, partition: int) -> OffsetCommitValue | None:
        """The durable offset, or None."""
        partitions = self.by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, value: OffsetCommitValue | None) -> None:
        """Take what became durable; None is a tombstone."""
        if value is not None:
            self.by_topic.setdefault(topic, {})[partition] = value
            return
        partitions = self.by_topic.get(topic)
        if partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self.by_topic[topic]

    def begin(self, key: Key) -> None:
        """Note that a commit of `key` is being written."""
        self.writing[key] += 1

    def end(self, key: Key) -> None:
        """Note that the commit is durable, or has failed."""
        left = self.writing[key] - 1
        if left:
            self.writing[key] = left
        else:
            del self.writing[key]

    def keys(self, topic: str | None = None) -> list[Key]:
        """What is committed or being committed, of one topic or of all."""
        if topic is None:
            durable = {(name, partition) for name, partition, _ in self}
            return sorted(durable | self.writing.keys())
        durable_of_topic = {(topic, partition) for partition in self.by_topic.get(topic, ())}
        return sorted(durable_of_topic | {key for key in self.writing if key[0] == topic})

    def expired(self, group: OffsetExpiry, now: int, retention_ms: int) -> list[Key]:
        """What has expired at `now`, in milliseconds since the epoch.

        Offsets of topics that members consume do not expire. An offset that was committed with a retention time of its
        own goes by that, within the same groups.
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
                if over and (topic, partition) not in self.writing:
                    expired.append((topic, partition))
        return expired


class OffsetStore:
    """Writes and deletes the offsets of groups: first in the log, then, once that is durable, in `GroupOffsets`."""

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

        `retention_ms`: how long to keep them whatever the broker's setting is, -1 for that setting.
        """
        now = self._wall_ms()
        expire = now + retention_ms if retention_ms >= 0 else -1
        values: list[tuple[Key, OffsetCommitValue]] = []
        records: list[KeyValue] = []
        for commit in commits:
            value = OffsetCommitValue(
                commit.offset, max(commit.leader_epoch, -1), commit.metadata, now, expire, commit.topic_id
            )
            values.append(((commit.topic, commit.partition), value))
            raw_key = encode_key(OffsetCommitKey(group_id, commit.topic, commit.partition))
            records.append((raw_key, encode_offset_value(value)))
        for key, _ in values:
            offsets.begin(key)

        def committed(code: ErrorCode) -> None:
            for key, value in values:
                offsets.end(key)
                if not code:
                    offsets.put(*key, value)
            written(code)

        self._log.write(log_partition, records, committed)

    def delete(
        self, log_partition: int, group_id: str, offsets: GroupOffsets, keys: Sequence[Key], written: Written
    ) -> None:
        """Write tombstones for offsets of a group; `written` is called once they are out of `offsets`, or failed."""

        def deleted(code: ErrorCode) -> None:
            if not code:
                for key in keys:
                    offsets.put(*key, None)
            written(code)

        self._log.write(log_partition, tombstones(group_id, keys), deleted)

    def of_missing_topics(self, offsets: GroupOffsets) -> list[Key]:
        """Offsets of topics that are not there: they were deleted just before a crash, the tombstones were not written.

        A topic of the same name that was made since is another topic.
        """
        missing: list[Key] = []
        for name, partition, value in offsets:
            topic = self._topics.get(name)
            if topic is None and self._topics.may_exist(name):
                continue
            if topic is None or (value.topic_id is not None and topic.topic_id != value.topic_id):
                missing.append((name, partition))
        return missing


def tombstones(group_id: str, keys: Iterable[Key]) -> list[KeyValue]:
    """The records that delete these offsets of a group."""
    return [(encode_key(OffsetCommitKey(group_id, topic, partition)), None) for topic, partition in keys]
