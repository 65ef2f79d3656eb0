"""Topics as Kafka clients see them: state topics go by Kafka's names, names of others are checked, ids resolve.

Owns: which names are legal, internal or reserved, and the translation between the client's name and storage's.
Must not know: the wire, sockets, which engine serves.

A stored name of a space of names other than the home space is TENANT/NAMESPACE/NAME. Where storage has namespaces the
space is one of them; where it has none, such names are those of spaces alone, and there are none without spaces.

The topics of coordinators have other names in storage than in Kafka: `__offsets` is `__consumer_offsets` to clients,
`__transactions` is `__transaction_state`. Their records are Kafka's own. No client sees the topic of users and ACLs.

Where storage has namespaces a topic has several names: `orders` of the home namespace is `public/default/orders` and
`persistent://public/default/orders`, too; a topic of another namespace has the two long ones. What is kept under a name
(committed offsets) goes by the shortest, the canonical name; answers carry the name that was asked. Each name has an id
of its own, because clients map ids back to names: the topic's id with one of its last two bits flipped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final
from uuid import UUID

from prometheus_client.core import Metric

from kop.errors import ErrorCode, PeerError
from kop.metrics import gauge_family, gauge_value
from kop.storage.base import Engine, PartitionLog, TopicInfo

OFFSETS_TOPIC = "__offsets"
"""The name in storage of the topic of group state; over Pulsar it is `public/kafka/__offsets`."""
KAFKA_OFFSETS_TOPIC = "__consumer_offsets"
"""The name under which Kafka clients know the topic of group state."""
TRANSACTIONS_TOPIC = "__transactions"
"""The name in storage of the topic of transaction state."""
KAFKA_TRANSACTIONS_TOPIC = "__transaction_state"
"""The name that Kafka clients know."""
SECURITY_TOPIC = "__kop_security"
"""The name in storage of the topic of users and ACLs, which no client sees."""
_STORED_NAMES: Final = {KAFKA_OFFSETS_TOPIC: OFFSETS_TOPIC, KAFKA_TRANSACTIONS_TOPIC: TRANSACTIONS_TOPIC}
_KAFKA_NAMES: Final = {stored: kafka for kafka, stored in _STORED_NAMES.items()}
RESERVED = frozenset({*_STORED_NAMES, *_KAFKA_NAMES, SECURITY_TOPIC})
"""Names that clients may neither create, delete nor write."""
_NAMES_OF_STORAGE: Final = frozenset({*_KAFKA_NAMES, SECURITY_TOPIC})
"""Names that are no topic's for clients."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_PARTITION_MARK = "-partition-"
"""The text that Pulsar puts between a topic's name and a partition's number; it refuses names of partitioned topics
that contain it.
"""
_LONGEST = 4000
"""The number of characters of a topic name beyond which storage is not asked: it would not fit into an address of
Pulsar's REST.
"""
_MOST_PARTITIONS_A_SCRAPE: Final = 10_000
_PERSISTENT = "persistent://"
_FULL_NAME = re.compile(rf"(?:{_PERSISTENT})?([-\w.=:]+/[-\w.=:]+)/([^/]+)\Z", re.ASCII)
_NAME_IN_SPACE = re.compile(r"[^/]+/[^/]+/([^/]+)\Z")
"""The stored name of a topic in a space of names, where storage has no namespaces."""
_FORMS = (1, 2)
"""The bits of a topic id that are flipped for a topic's longer names: the first for `tenant/namespace/topic` of the
home namespace, the second for `persistent://...` of any.
"""


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a name that Kafka refuses
    (`org.apache.kafka.common.internals.Topic.validate`).
    """
    if name in {".", ".."} or not _LEGAL_NAME.match(name):
        raise PeerError(
            f"topic name {name!r} is not legal: 1 to 249 of the characters a-z A-Z 0-9 . _ -, and not '.' or '..'",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )


@dataclass(frozen=True, slots=True)
class TopicsSnapshot:
    """The numbers of topics and partitions that are known."""

    topics: int
    partitions: int
    """The number of partitions of all topics, internal ones among them."""


class ClientTopics:
    """Look-ups of topics by the client's name or id. The results are the engine's topics, with the name that clients
    use.
    """

    def __init__(self, engine: Engine, *, has_spaces: bool = False) -> None:
        """`has_spaces`: there are other spaces of names than the home space."""
        self._engine = engine
        self._home = engine.topics.namespace
        self._has_spaces = has_spaces

    @property
    def version(self) -> int:
        """A number that grows with every change of any topic."""
        return self._engine.topics.version

    @property
    def has_namespaces(self) -> bool:
        """True if a topic has several names, and one of another namespace may have to be looked for."""
        return self._home is not None

    def get(self, name: str) -> TopicInfo | None:
        """Return the topic that a client calls `name`, or None."""
        if name in _NAMES_OF_STORAGE:
            return None
        if "/" not in name:
            topic = self._engine.topics.get(_STORED_NAMES.get(name, name))
            return None if topic is None else _as_clients_name_it(topic)
        canonical = self.canonical_name(name)
        topic = None if canonical in RESERVED else self._engine.topics.get(canonical)
        return topic if topic is None or canonical == name else replace(topic, name=name)

    def is_internal(self, name: str) -> bool:
        """Return true if the name is that of a topic of the gateway's own, even if that does not exist yet."""
        return name in RESERVED or ((topic := self.get(name)) is not None and topic.internal)

    def by_id(self, topic_id: UUID) -> TopicInfo | None:
        """Return the topic of that id, with the name that the id stands for, or None."""
        topic = self._engine.topics.by_id(topic_id)
        if topic is not None:
            return None if topic.name == SECURITY_TOPIC else _as_clients_name_it(topic)
        for form in _FORMS if self._home is not None else ():
            topic = self._engine.topics.by_id(UUID(int=topic_id.int ^ form))
            if topic is not None and not topic.internal:
                full = topic.name if "/" in topic.name else f"{self._home}/{topic.name}"
                return replace(topic, name=full if form == _FORMS[0] else _PERSISTENT + full)
        return None

    def id_of(self, topic: TopicInfo) -> UUID:
        """Return the id that clients are told for a topic under the name that `topic` has: its own, or one of those of
        its longer names.
        """
        if "/" not in topic.name or topic.name == self.canonical_name(topic.name):
            return topic.topic_id
        return UUID(int=topic.topic_id.int ^ _FORMS[topic.name.startswith(_PERSISTENT)])

    def canonical_name(self, name: str) -> str:
        """Return the shortest of a topic's names: what is kept for the topic is kept under it.

        A name that can be no topic's comes back as it is.
        """
        if "/" not in name or self._home is None or (full := _FULL_NAME.match(name)) is None:
            return name
        namespace, local = full.groups()
        return local if namespace == self._home else f"{namespace}/{local}"

    def canonical_prefix(self, prefix: str) -> str:
        """Return the common prefix of the canonical names of all topics that have some name beginning with `prefix`.

        INVALID_REQUEST if that means all topics of the home namespace: their canonical names have no beginning in
        common.
        """
        if "/" not in prefix or self._home is None:
            return prefix
        short = prefix.removeprefix(_PERSISTENT)
        if f"{self._home}/".startswith(short) or _PERSISTENT.startswith(prefix):
            raise PeerError(
                f"the prefix {prefix!r} means all topics of {self._home}, whose names here are those without a "
                "namespace: name all topics (*), or begin with their own names"
            )
        return short.removeprefix(f"{self._home}/")

    def check_name(self, name: str) -> None:
        """Raise INVALID_TOPIC_EXCEPTION if no topic of that name can be made here.

        Over Pulsar a topic that Pulsar's own clients made may have such a name all the same: look for it first.
        """
        full = None if self._home is None else _FULL_NAME.match(name)
        if full is not None:
            check_name(full[2])
        elif self._has_spaces and self._home is None and (in_space := _NAME_IN_SPACE.match(name)) is not None:
            check_name(in_space[1])
        elif "/" in name and self._home is not None:
            raise PeerError(
                f"topic name {name!r} is not legal: with slashes it is TENANT/NAMESPACE/TOPIC or "
                "persistent://TENANT/NAMESPACE/TOPIC",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )
        else:
            check_name(name)
        if self._home is not None and _PARTITION_MARK in name.rpartition("/")[2]:
            raise PeerError(
                f"topic name {name!r} is not legal: Pulsar names the partitions of its topics NAME-partition-NUMBER, "
                f"and makes no topic whose name contains {_PARTITION_MARK!r}",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )

    def names_to_find(self, names: Iterable[str | None]) -> Collection[str]:
        """Return those of `names` that may be topics of other namespaces not looked at yet: only after `find` can `get`
        say that there is no such topic.
        """
        if self._home is None:
            return ()
        topics = self._engine.topics
        canonical = {self.canonical_name(name) for name in names if name is not None and "/" in name}
        return [
            name
            for name in canonical
            if len(name) <= _LONGEST
            and _FULL_NAME.match(name)
            and topics.get(name) is None
            and topics.missing(name) is None
        ]

    async def find(self, names: Iterable[str | None]) -> None:
        """Ask storage to look for those of `names` that are topics of other Pulsar namespaces and not known yet."""
        if to_find := self.names_to_find(names):
            await self._engine.topics.find(to_find)

    async def look_again(self, names: Collection[str]) -> None:
        """Ask storage to look again for topics that are not known: another broker may have made them a moment ago."""
        await self._engine.topics.find(names)

    def missing(self, name: str) -> ErrorCode:
        """Return the error for a client that names a topic which `get` does not know: the one with which storage failed
        to find it, else UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self._engine.topics.missing(self.canonical_name(name)) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def may_exist(self, name: str) -> bool:
        """Return true if a topic that `get` does not know may exist all the same, because storage did not or could not
        look for it.
        """
        missing = self._engine.topics.missing(name)
        if "/" in name:
            return missing is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return missing is not None

    def listed(self, prefix: str = "", *, everywhere: bool = False) -> Sequence[TopicInfo]:
        """Return the topics for a client that asks for all: those of the space of names whose stored names begin with
        `prefix`, ordered by name. `everywhere`: those of all spaces, if there are others than the home space.

        Topics of other namespaces are there for those who name them: a topic that one client names must not change the
        subscription of another client by pattern.
        """
        if everywhere and self._has_spaces:
            return self.all()
        if prefix:
            return [topic for topic in self.all() if topic.name.startswith(prefix)]
        return [topic for topic in self.all() if "/" not in topic.name]

    def is_listed(self, prefix: str) -> bool:
        """Return true if `listed` has all topics of the space whose stored names begin with `prefix`."""
        return not prefix or self._engine.topics.is_listed(prefix.removesuffix("/"))

    async def list_space(self, prefix: str) -> None:
        """Ask storage to find all topics of a space. BackendError if it cannot."""
        await self._engine.topics.list_namespace(prefix.removesuffix("/"))

    def all(self) -> Sequence[TopicInfo]:
        """Return every topic that is known and that clients may see, ordered by the client's name."""
        topics = (topic for topic in self._engine.topics.all() if topic.name != SECURITY_TOPIC)
        return sorted(map(_as_clients_name_it, topics), key=lambda topic: topic.name)

    def log(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        """Return the log of a partition by its topic's id; None if there is none."""
        return self._engine.log(topic_id, partition)

    def snapshot(self) -> TopicsSnapshot:
        """Return how many topics and partitions are known."""
        topics = self.all()
        return TopicsSnapshot(len(topics), sum(topic.partitions for topic in topics))

    def collect(self) -> Iterable[Metric]:
        """Return metrics of the sizes and offsets of partitions, of the first 10,000 at most, and the number of all
        partitions, for a scrape.

        Of a partition over Pulsar that nobody asks for they are not known, and left out.
        """
        labels = ["topic", "partition"]
        size = gauge_family("kop_log_size_bytes", "Bytes of stored batches.", labels)
        start = gauge_family("kop_log_start_offset", "First offset that may be read.", labels)
        end = gauge_family("kop_log_high_watermark", "Offset after the last durable record.", labels)
        places = ((topic, index) for topic in self.all() for index in range(topic.partitions))
        for topic, index in islice(places, _MOST_PARTITIONS_A_SCRAPE):
            log = self.log(topic.topic_id, index)
            if log is None or not log.attached or (topic.internal and log.high_watermark == 0):
                continue
            values = [topic.name, str(index)]
            size.add_metric(values, log.size_bytes)
            start.add_metric(values, log.log_start_offset)
            end.add_metric(values, log.high_watermark)
        partitions = self.snapshot().partitions
        return size, start, end, gauge_value("kop_partitions", "Partitions of all topics.", partitions)


def _as_clients_name_it(topic: TopicInfo) -> TopicInfo:
    name = _KAFKA_NAMES.get(topic.name)
    return topic if name is None else replace(topic, name=name)
