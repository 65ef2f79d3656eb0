"""Topics as Kafka clients see them: `__offsets` goes by `__consumer_offsets`, names are checked, ids resolve.

Owns: which names are legal, internal or reserved, and the translation between the client's name and storage's.
Must not know: the wire, sockets, which engine serves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from kop.errors import ErrorCode, PeerError
from kop.storage.base import Engine, PartitionLog, TopicInfo

OFFSETS_TOPIC = "__offsets"
"""The name in storage, shared with Pulsar (the topic `public/kafka/__offsets` there)."""
KAFKA_OFFSETS_TOPIC = "__consumer_offsets"
"""The name that Kafka clients know."""
RESERVED = frozenset({OFFSETS_TOPIC, KAFKA_OFFSETS_TOPIC, "__transactions", "__transaction_state"})
"""Names that clients may neither create, delete nor write."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION where Kafka would (`org.apache.kafka.common.internals.Topic.validate`)."""
    if name in {".", ".."} or not _LEGAL.match(name):
        raise PeerError(
            f"topic name {name!r} is not legal: 1 to 249 of the characters a-z A-Z 0-9 . _ -, and not '.' or '..'",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )


class Catalog:
    """Look-ups by the client's name or id. Values are the engine's, with the name that clients use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def version(self) -> int:
        """Grows with every change of any topic."""
        return self._engine.topics.version

    def get(self, name: str) -> TopicInfo | None:
        """The topic that a client calls `name`, or None."""
        if name == KAFKA_OFFSETS_TOPIC:
            found = self._engine.topics.get(OFFSETS_TOPIC)
            return None if found is None else replace(found, name=KAFKA_OFFSETS_TOPIC)
        if name == OFFSETS_TOPIC:
            return None
        return self._engine.topics.get(name)

    def by_id(self, topic_id: UUID) -> TopicInfo | None:
        """The topic of that id, or None."""
        found = self._engine.topics.by_id(topic_id)
        return replace(found, name=KAFKA_OFFSETS_TOPIC) if found is not None and found.name == OFFSETS_TOPIC else found

    def all(self) -> Sequence[TopicInfo]:
        """Every topic, ordered by the client's name."""
        topics = (
            replace(t, name=KAFKA_OFFSETS_TOPIC) if t.name == OFFSETS_TOPIC else t for t in self._engine.topics.all()
        )
        return sorted(topics, key=lambda topic: topic.name)

    def log(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        """The log of a partition, or None."""
        return self._engine.log(topic_id, partition)
