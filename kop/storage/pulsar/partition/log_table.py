"""The logs of all partitions, by topic.

Owns: which logs there are. They follow the table of topics: one log for each partition of each topic.
Must not know: what a log does, and what it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.pulsar.partition.log import PulsarLog


class LogTable:
    """The logs of all partitions. `make` makes one of topic, partition, Pulsar's name of the partition, and the topic's
    policy.
    """

    def __init__(
        self,
        make: Callable[[TopicInfo, int, str, LogPolicy], PulsarLog],
        policy: Callable[[TopicInfo], LogPolicy],
        removing: Callable[[PulsarLog], None],
    ) -> None:
        """Begin without logs. `make` makes a log, `policy` gives a topic's policy. `removing` is called with each log
        of a topic that is gone, before the log itself is told.
        """
        self._make = make
        self._policy = policy
        self._removing = removing
        self._logs: dict[UUID, list[PulsarLog]] = {}

    def get(self, topic_id: UUID, partition: int) -> PulsarLog | None:
        """Return the log of a partition, the same object each time; None if there is none."""
        logs = self._logs.get(topic_id)
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    def all(self) -> list[PulsarLog]:
        """Return the log of every partition."""
        return [log for logs in self._logs.values() for log in logs]

    def update(self, topic: TopicInfo, partition_name: Callable[[int], str]) -> None:
        """Make or update the logs of a topic that is new or changed, and have each read the topic's properties again
        (`learn`). `partition_name` returns Pulsar's name of a partition.
        """
        logs = self._logs.setdefault(topic.topic_id, [])
        policy = self._policy(topic)
        for log in logs:
            log.topic, log.policy = topic, policy
        for index in range(len(logs), topic.partitions):
            logs.append(self._make(topic, index, partition_name(index), policy))
        for log in logs:
            log.learn()

    def deleting(self, topic_id: UUID, *, undone: bool = False) -> None:
        """Mark the logs of a topic that is being deleted: its readers and producers must not bring it back. `undone`:
        the topic stays.
        """
        for log in self._logs.get(topic_id, ()):
            log.deleted = not undone

    def remove(self, topic_id: UUID) -> None:
        """Remove the logs of a topic that is gone, and close them; `removing` is called with each before."""
        for log in self._logs.pop(topic_id, ()):
            self._removing(log)
            log.remove()
