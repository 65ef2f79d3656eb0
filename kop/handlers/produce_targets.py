"""The topics that Produce requests name, as they were looked up, kept from one request to the next.

Owns: the topic, the rules and the logs of each topic that is produced to, and when they have to be looked up again; the
answer for a partition whose batch was not stored.
Must not know: how batches are read or sent.
"""

from __future__ import annotations

from collections.abc import Hashable
from uuid import UUID

from kop.cluster.client_topics import ClientTopics
from kop.cluster.topic_configs import ProduceRules, TopicConfigs
from kop.errors import ErrorCode, KopError
from kop.handlers.access import AccessControl
from kop.records.validation import RecordsRejectedError
from kop.security.audit import Peer
from kop.security.rights import AclOperation
from kop.storage.base import PartitionLog, TopicInfo
from kop.wire.produce import ProducePartitionAnswer


class ProduceTarget:
    """A topic that a client may produce to: its rules for batches, and its logs."""

    __slots__ = ("_topics", "logs", "rules", "topic")

    def __init__(self, topics: ClientTopics, topic: TopicInfo, rules: ProduceRules) -> None:
        self._topics = topics
        self.topic = topic
        self.rules = rules
        self.logs: dict[int, PartitionLog] = {}
        """The logs of the topic by partition, those of them that batches went to."""

    def log(self, partition: int) -> PartitionLog | None:
        """Return the log of a partition, None if there is none, and keep it in `logs`, where callers look first."""
        log = self._topics.log(self.topic.topic_id, partition)
        if log is not None:
            self.logs[partition] = log
        return log


class ProduceTargets:
    """The topics that clients produce to, by their name in the request or the 16 bytes of their id."""

    def __init__(self, access: AccessControl, topics: ClientTopics, configs: TopicConfigs) -> None:
        self._access = access
        self._topics = topics
        self._configs = configs
        self._kept: dict[Hashable, dict[str | bytes, ProduceTarget]] = {}
        """The topics that were looked up, for each group of clients with the same rights."""
        self._versions: Hashable = None

    @property
    def versions(self) -> Hashable:
        """A value that changes with every change of topics, configs or rights, which make the targets void."""
        return self._topics.version, self._configs.version, self._access.version

    def current(self, peer: Peer) -> dict[str | bytes, ProduceTarget]:
        """Return the targets that were looked up for clients with this one's rights, by name or id; none are kept if
        each decision has to be audited. Do not keep the result: the next change of topics, configs or rights replaces
        it.
        """
        if self._versions != (versions := self.versions):
            self._versions = versions
            self._kept = {}
        if self._access.decides_each_time:
            return {}
        return self._kept.setdefault(self._access.who(peer), {})

    def find(self, peer: Peer, name_or_id: str | bytes) -> ProduceTarget | ErrorCode:
        """Look a topic up for this client and keep it for later requests; return the error if the client may not
        produce to it, it does not exist, or is internal (INVALID_TOPIC_EXCEPTION).
        """
        key = UUID(bytes=name_or_id) if isinstance(name_or_id, bytes) else name_or_id
        topic = self._access.topic(peer, key, AclOperation.WRITE)
        if isinstance(topic, ErrorCode):
            return topic
        if topic.internal:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        target = ProduceTarget(self._topics, topic, self._configs.produce_rules(topic))
        self.current(peer)[name_or_id] = target
        return target

    def log_start_offset(self, name_or_id: str | bytes, partition: int) -> int:
        """Return the log start offset of a partition; -1 if the partition does not exist any more."""
        topic = (
            self._topics.by_id(UUID(bytes=name_or_id))
            if isinstance(name_or_id, bytes)
            else self._topics.get(name_or_id)
        )
        log = None if topic is None else self._topics.log(topic.topic_id, partition)
        return -1 if log is None else log.log_start_offset


def refused_partition(partition: int, error: KopError) -> ProducePartitionAnswer:
    """Return the answer for a partition whose batch was refused before its log had it."""
    rejected = error.records if isinstance(error, RecordsRejectedError) else ()
    return ProducePartitionAnswer(partition, error.code, message=error.message or None, record_errors=rejected)


def refused_by_log(
    targets: ProduceTargets, name_or_id: str | bytes, partition: int, error: KopError
) -> ProducePartitionAnswer:
    """Return the answer for a partition whose log did not store the batch, or does not know if it did. For
    UNKNOWN_PRODUCER_ID it has the log start, without which Java's client sends the batch again and again.
    """
    answer = refused_partition(partition, error)
    if error.code != ErrorCode.UNKNOWN_PRODUCER_ID:
        return answer
    # The Java client sends the same batch again and again where it is not told the log start (KIP-360).
    return answer._replace(log_start_offset=targets.log_start_offset(name_or_id, partition))
