"""What a Produce finds under the name or the id of a topic, kept from one request to the next.

Owns: the topic, the rules and the logs of each topic that is produced to, and when they have to be looked up again.
Must not know: requests, batches.
"""

from __future__ import annotations

from uuid import UUID

from kop.cluster.client_topics import ClientTopics
from kop.cluster.topic_configs import ProduceRules, TopicConfigs
from kop.errors import ErrorCode
from kop.storage.base import PartitionLog, TopicInfo


class ProduceTarget:
    """A topic that may be produced to."""

    __slots__ = ("_topics", "logs", "rules", "topic")

    def __init__(self, topics: ClientTopics, topic: TopicInfo, rules: ProduceRules) -> None:
        self._topics = topics
        self.topic = topic
        self.rules = rules
        self.logs: dict[int, PartitionLog] = {}
        """By partition: those that were asked for."""

    def log(self, partition: int) -> PartitionLog | None:
        """The log of a partition, or None; look into `logs` first."""
        log = self._topics.log(self.topic.topic_id, partition)
        if log is not None:
            self.logs[partition] = log
        return log


class ProduceTargets:
    """The topics that are produced to, by what clients call them: a name, or the 16 bytes of an id."""

    def __init__(self, topics: ClientTopics, configs: TopicConfigs) -> None:
        self._topics = topics
        self._configs = configs
        self._kept: dict[str | bytes, ProduceTarget] = {}
        self._versions = (-1, -1)

    def current(self) -> dict[str | bytes, ProduceTarget]:
        """The targets that are known now. Do not keep the result: the next change of any topic replaces it."""
        versions = (self._topics.version, self._configs.version)
        if versions != self._versions:
            self._versions = versions
            self._kept = {}
        return self._kept

    def find(self, name_or_id: str | bytes) -> ProduceTarget | ErrorCode:
        """Look up a topic that is not among the known targets, or give the error why it cannot be produced to."""
        if isinstance(name_or_id, bytes):
            topic = self._topics.by_id(UUID(bytes=name_or_id))
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic = self._topics.get(name_or_id)
            missing = ErrorCode.NONE if topic is not None else self._topics.missing(name_or_id)
        if topic is None:
            return missing
        if topic.internal:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        target = ProduceTarget(self._topics, topic, self._configs.produce_rules(topic))
        self.current()[name_or_id] = target
        return target
