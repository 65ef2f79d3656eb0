"""The logs of all partitions, by topic.

Owns: which logs there are. They follow the table of topics: one log for each partition of each topic.
Must not know: what a log does, and what it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from kop.storage.base import LogPolicy, TopicInfo


class TopicLog(Protocol):
    """What the table needs of a log."""

    topic: TopicInfo
    policy: LogPolicy
    deleted: bool
    """True if the topic is being deleted, or gone."""

    def learn(self) -> None:
        """Read the topic's properties again, which may have changed."""

    def remove(self) -> None:
        """Close the log: its topic is gone."""


L = TypeVar("L", bound=TopicLog)


class LogTable(Generic[L]):
    """Logs of partitions. `make` is given topic, partition, Pulsar's name of the partition, and the topic's policy."""

    def __init__(
        self,
        make: Callable[[TopicInfo, int, str, LogPolicy], L],
        policy: Callable[[TopicInfo], LogPolicy],
        removing: Callable[[L], None],
    ) -> None:
        """`removing` is called with each log of a topic that is gone, before the log itself is told."""
        self._make = make
        self._policy = policy
        self._removing = removing
        self._logs: dict[UUID, list[L]] = {}

    def get(self, topic_id: UUID, partition: int) -> L | None:
        """Return the log of a partition, or None; the same object each time."""
        logs = self._logs.get(topic_id)
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    def all(self) -> list[L]:
        """Return the log of every partition."""
        return [log for logs in self._logs.values() for log in logs]

    def update(self, topic: TopicInfo, partition_name: Callable[[int], str]) -> None:
        """Take a topic that is new or changed. `partition_name` tells Pulsar's name of each of its partitions."""
        logs = self._logs.setdefault(topic.topic_id, [])
        policy = self._policy(topic)
        for log in logs:
            log.topic, log.policy = topic, policy
        for index in range(len(logs), topic.partitions):
            logs.append(self._make(topic, index, partition_name(index), policy))
        for log in logs:
            log.learn()

    def deleting(self, topic_id: UUID, *, undone: bool = False) -> None:
        """Note that a topic is being deleted: its readers and producers must not bring it back. `undone`: it stays."""
        for log in self._logs.get(topic_id, ()):
            log.deleted = not undone

    def remove(self, topic_id: UUID) -> None:
        """Remove the logs of a topic that is gone."""
        for log in self._logs.pop(topic_id, ()):
            self._removing(log)
            log.remove()
