"""The table of topics in memory, changed at once.

Owns: what a change of a topic is. Must not know: batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

from kop.storage.base import TopicInfo
from kop.storage.topic_table import TopicTable, new_uuid


class MemoryTopics(TopicTable):
    """`Topics` of a memory engine. `changed(old, new)` gives the engine its turn before others are told."""

    def __init__(
        self, version: int, topics: Iterable[TopicInfo], changed: Callable[[TopicInfo | None, TopicInfo | None], None]
    ) -> None:
        super().__init__(version, topics)
        self._changed = changed

    @property
    def namespace(self) -> None:
        """There are no namespaces."""

    async def find(self, names: Collection[str]) -> None:
        """Nothing to do: all topics are known."""

    def missing(self, name: str) -> None:
        """Nothing to say: all topics are known."""

    async def differing_configs(self, topic_id: UUID) -> Mapping[str, str]:
        """None: nobody else changes topics."""
        return {}

    async def refresh(self, topic_id: UUID) -> None:
        """Nothing to do: nobody else changes topics."""

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False
    ) -> TopicInfo:
        """Make a topic; TOPIC_ALREADY_EXISTS where the name is taken, INVALID_PARTITIONS for none."""
        topic = TopicInfo(name, new_uuid(), partitions, MappingProxyType(dict(configs)), internal)
        self._check_new(topic)
        return self._put(None, topic)

    async def delete(self, topic_id: UUID) -> None:
        """Delete a topic and its records."""
        topic = self._find(topic_id)
        self._strike(topic)
        self._announce(topic, None)

    async def grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        """Raise the number of partitions; INVALID_PARTITIONS where it would not grow."""
        topic = self._find(topic_id)
        self._check_growth(topic, partitions)
        return self._put(topic, replace(topic, partitions=partitions))

    async def set_configs(self, topic_id: UUID, configs: Mapping[str, str], named: Collection[str] = ()) -> TopicInfo:
        """Replace the topic's own configs."""
        topic = self._find(topic_id)
        if configs == topic.configs:
            return topic
        return self._put(topic, replace(topic, configs=MappingProxyType(dict(configs))))

    def _put(self, old: TopicInfo | None, new: TopicInfo) -> TopicInfo:
        self._enter(new)
        self._announce(old, new)
        return new

    def _announce(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        self._version += 1
        self._changed(old, new)
        self._tell(old, new)
