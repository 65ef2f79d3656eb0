"""Topics whose batches are stored as Kafka clients sent them.

Owns: the property that says so of a topic, for good: Pulsar's compaction fails on such entries.
Must not know: how a batch becomes an entry.
"""

from __future__ import annotations

from uuid import UUID

from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.layout import RAW_PROPERTY
from kop.storage.pulsar.topics.table import PulsarTopics


class RawEntries:
    """Which topics may have such entries. The property is set before the first of them is written."""

    def __init__(self, context: PulsarContext, topics: PulsarTopics) -> None:
        self._context = context
        self._topics = topics
        self._marking: set[UUID] = set()

    def allowed(self, topic_id: UUID) -> bool:
        """Whether such an entry may be written now. Where it may not, the property is set on the side."""
        if self._is_marked(topic_id):
            return True
        self._context.spawn(self.mark(topic_id))
        return False

    async def mark(self, topic_id: UUID) -> None:
        """Set the property of a topic, unless it has it. KopError."""
        if self._is_marked(topic_id) or topic_id in self._marking:
            return
        self._marking.add(topic_id)
        try:
            await self._topics.set_property(topic_id, RAW_PROPERTY, "true")
        finally:
            self._marking.discard(topic_id)

    def _is_marked(self, topic_id: UUID) -> bool:
        return RAW_PROPERTY in self._topics.pulsar(topic_id).properties
