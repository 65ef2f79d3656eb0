"""Numbers that brokers keep of one partition, in its topic's properties: the largest one counts.

Owns: reading and keeping them; removing those that a larger one has made meaningless.
Must not know: what a number means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from kop.errors import BackendError
from kop.storage.base import TopicInfo
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.layout import all_remembered, outdated, remembered
from kop.storage.pulsar.topics.table import PulsarTopics

_TRIES: Final = 5
"""The number of times that a number is written until it is read back."""


class PartitionNumbers:
    """The kept numbers of all partitions; `kind` is one of the kinds that `layout.py` names."""

    def __init__(self, context: PulsarContext, topics: PulsarTopics) -> None:
        self._context = context
        self._topics = topics
        self._parsed: dict[UUID, tuple[Mapping[str, str], dict[tuple[str, int], int]]] = {}
        """The properties of each topic, by its id, and the numbers in exactly these properties."""

    def largest(self, topic_id: UUID, partition: int, kind: str) -> int:
        """Return the largest number of a kind that a broker kept of a partition, as far as this broker has read the
        topic's properties; 0 if there is none. UNKNOWN_TOPIC_ID if the topic is gone.
        """
        properties = self._topics.pulsar(topic_id).properties
        parsed = self._parsed.get(topic_id)
        if parsed is None or parsed[0] is not properties:
            parsed = self._parsed[topic_id] = properties, all_remembered(properties)
        return parsed[1].get((kind, partition), 0)

    async def keep(self, topic: TopicInfo, partition: int, kind: str, value: int) -> None:
        """Keep a number of a kind of a partition in the topic's properties, for all brokers; smaller ones of that kind
        are removed in the background. KopError if Pulsar does not keep it, or refuses.
        """
        topic_id = topic.topic_id
        name = remembered(kind, partition, value)
        for _ in range(_TRIES):
            await self._topics.set_property(topic_id, name, str(value))
            kept = await self._topics.properties_now(topic_id)
            largest = all_remembered(kept).get((kind, partition), 0)
            if largest >= value:
                break
        else:
            self._context.faults.count(Fault.TOPIC_SETTINGS_PROPERTY_NOT_KEPT)
            raise BackendError(f"Pulsar does not keep the property {name} of {topic.name}: clients try again")
        # This broker's own number goes, too, where another broker has kept a larger one meanwhile.
        old = outdated(kept, kind, partition, largest)
        if old and remembered(kind, partition, largest) in kept:
            self._context.spawn(self._topics.remove_properties(topic_id, old))

    def forget(self, topic_id: UUID) -> None:
        """Forget the numbers of a topic that is gone."""
        self._parsed.pop(topic_id, None)
