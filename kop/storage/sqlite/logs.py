"""The logs of all topics.

Owns: which logs there are, and the policy that each is given.
Must not know: how a topic is stored, what is in a log.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from uuid import UUID

from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.sqlite.log import LogContext, SqliteLog


class SqliteLogTable:
    """Logs by topic id, one for each partition. `policy` gives a topic's effective configs."""

    def __init__(self, context: LogContext, policy: Callable[[TopicInfo], LogPolicy]) -> None:
        self._context = context
        self._policy = policy
        self._logs: dict[UUID, list[SqliteLog]] = {}

    def log(self, topic_id: UUID, partition: int) -> SqliteLog | None:
        """The log of a partition, or None; the same object each time."""
        logs = self._logs.get(topic_id)
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    def of(self, topic_id: UUID) -> Sequence[SqliteLog]:
        """The logs of a topic, in the order of its partitions."""
        return self._logs.get(topic_id, ())

    def all(self) -> list[SqliteLog]:
        """Every log of every topic."""
        return list(itertools.chain.from_iterable(self._logs.values()))

    def add(self, topic: TopicInfo, log_ids: Sequence[int]) -> None:
        """Make the logs of new partitions, the last ones of `topic`."""
        logs = self._logs.setdefault(topic.topic_id, [])
        policy = self._policy(topic)
        logs.extend(
            SqliteLog(self._context, topic, index, log_id, policy) for index, log_id in enumerate(log_ids, len(logs))
        )

    def update(self, topic: TopicInfo) -> None:
        """Give the logs of a topic its new value, and the policy that follows from it."""
        policy = self._policy(topic)
        for log in self._logs[topic.topic_id]:
            log.topic = topic
            log.policy = policy

    def remove(self, topic_id: UUID) -> None:
        """Drop the logs of a deleted topic, and tell those who wait for them."""
        for log in self._logs.pop(topic_id):
            log.remove()
