"""Which subscription keeps a partition over its backlog quota.

Owns: the question to Pulsar, its log line.
Must not know: the producers that are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kop.repeats import Repeats
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.partition.view import PartitionView

log = logging.getLogger(__name__)


def furthest_behind(stats: Mapping[str, Any]) -> str | None:
    """Return in words which subscription is furthest behind, and by how much; None if none is."""
    held: dict[str, Mapping[str, Any]] = {
        name: subscription
        for name, subscription in (stats.get("subscriptions") or {}).items()
        if subscription.get("durable", True)  # a reader's own one keeps nothing
    }
    name = max(held, key=lambda each: (held[each].get("backlogSize", 0), held[each].get("msgBacklog", 0)), default="")
    behind = held.get(name, {})
    if behind.get("backlogSize", 0) <= 0:
        return None
    entries, size = behind.get("msgBacklog", 0), behind["backlogSize"]
    return f"the subscription {name!r} is {entries:,} entries ({size:,} bytes) behind"


class BacklogTeller:
    """Logs who is behind, as often as the refusals themselves are logged."""

    def __init__(self, context: PulsarContext) -> None:
        self._context = context
        self._repeats = Repeats()

    def refused(self, partition: PartitionView) -> None:
        """Note a write that a backlog quota refused. The question to Pulsar holds nobody up."""
        if self._repeats.say(partition.partition_name, self._context.loop.time()) is not None:
            self._context.spawn(self._tell(partition))

    async def _tell(self, partition: PartitionView) -> None:
        stats = await self._context.admin.stats(partition.partition_name, backlogs=True)
        if (text := furthest_behind(stats)) is not None:
            log.warning("over its backlog quota, %s: %s", partition.title, text)
