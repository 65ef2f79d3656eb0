"""One partition as the topic table, the cluster and the upkeep see it.

Owns: the protocol that `PulsarLog` fulfils for them.
Must not know: how the log does what it says.
"""

from __future__ import annotations

from typing import Protocol

from kop.storage.base import LogPolicy, TopicInfo


class PartitionView(Protocol):
    """One partition of a topic in Pulsar."""

    topic: TopicInfo
    index: int
    partition_name: str
    """Pulsar's full name of the partition; of a topic that is not partitioned, the topic's own."""
    policy: LogPolicy
    attached: bool
    """Whether the log knows its bounds and follows its tail."""
    deleted: bool
    """Whether the topic is gone or being deleted: nothing may subscribe or produce, since that would bring it back."""

    @property
    def title(self) -> str:
        """The partition as log lines name it: `topic-index`."""

    @property
    def producing(self) -> bool:
        """Whether a Pulsar producer of this broker is attached to the partition, or being opened."""

    @property
    def holds_lease(self) -> bool:
        """Whether this broker holds the partition's exclusive producer, as far as it knows."""

    async def look_at_ends(self) -> None:
        """Ask whether retention has moved the log start, and whether the tail goes on."""

    def close_idle(self, now: float, seconds: float) -> None:
        """Close producers and readers that nobody used for `seconds`; `now` is the loop's time."""
