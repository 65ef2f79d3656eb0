"""The offsets that a group committed, and when they expire (KIP-211).

Owns: what is durable by topic and partition, which keys are being written, and Kafka's rule of expiry.
Must not know: requests, the log.

What is being written is not yet committed: nobody reads it. But it counts where offsets are deleted, so that a
tombstone follows every commit that was taken before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from kop.groups.classic import ClassicGroup
from kop.groups.states import State
from kop.groups.subscription import CONSUMER_PROTOCOL_TYPE
from kop.wire.state import OffsetCommitValue

Key: TypeAlias = tuple[str, int]
"""Topic and partition."""


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
        """A commit of `key` is on its way to the log."""
        self.writing[key] += 1

    def end(self, key: Key) -> None:
        """That commit is durable, or failed."""
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
        found = {(topic, partition) for partition in self.by_topic.get(topic, ())}
        return sorted(found | {key for key in self.writing if key[0] == topic})

    def expired(self, group: ClassicGroup, now: int, retention_ms: int) -> list[Key]:
        """What has expired. `now` and the group's `state_since` are milliseconds since the epoch.

        - A group without members: counted from when it became empty; where that is not known, from the commit.
        - Offsets of a group that only stores them, or of topics that a stable consumer group no longer subscribes to:
          counted from the commit.
        - Any other group that is at work keeps its offsets.
        - An offset that was committed with a retention time of its own goes by that, within the same groups.
        """
        since = -1
        if group.protocol_type is not None:
            if group.state is State.EMPTY:
                since = group.state_since
            elif not (
                group.protocol_type == CONSUMER_PROTOCOL_TYPE
                and group.state is State.STABLE
                and group.roster.subscribed is not None
            ):
                return []
        expired: list[Key] = []
        for topic, partitions in self.by_topic.items():
            if group.roster.is_subscribed_to(topic):
                continue
            for partition, value in partitions.items():
                if value.expire_timestamp >= 0:
                    over = now >= value.expire_timestamp
                else:
                    over = now - (value.commit_timestamp if since < 0 else since) >= retention_ms
                if over and (topic, partition) not in self.writing:
                    expired.append((topic, partition))
        return expired
