"""A topic as Pulsar has it.

Owns: the value beside a `TopicInfo`: the name in Pulsar, the properties, names of partitions.
Must not know: where such values are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kop.storage.pulsar.layout import CREATED_PROPERTY, UNFINISHED_PROPERTY, number

_YOUNG_SECONDS: Final = 3600.0
ABANDONED_SECONDS: Final = 60.0
"""How long a topic that has not all of its policies is left to the broker that makes it."""


@dataclass(frozen=True, slots=True)
class PulsarTopic:
    """What the engine knows of a topic beside its `TopicInfo`."""

    full_name: str
    """`persistent://tenant/namespace/name`."""
    plain: bool
    """Whether the topic is not partitioned. Its only partition then has the topic's own name."""
    properties: Mapping[str, str]

    def partition(self, index: int) -> str:
        """Pulsar's name of a partition."""
        return self.full_name if self.plain else f"{self.full_name}-partition-{index}"

    def is_young(self, now_ms: int) -> bool:
        """Return True if a broker made the topic within the last hour, by Pulsar's clock (`Rest.now_ms`).

        It deduplicates from its beginning, and Pulsar has forgotten no producer yet: that takes 6 idle hours
        (brokerDeduplicationProducerInactivityTimeoutMinutes).
        """
        created = number(self.properties, CREATED_PROPERTY, -1)
        return created >= 0 and now_ms - created < _YOUNG_SECONDS * 1000

    def is_being_made(self, now_ms: int) -> bool:
        """Return True if a broker is about to set the topic's policies, or was until a moment ago."""
        age_ms = now_ms - number(self.properties, CREATED_PROPERTY)
        return UNFINISHED_PROPERTY in self.properties and age_ms < ABANDONED_SECONDS * 1000
