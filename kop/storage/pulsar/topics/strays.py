"""Partitions in Pulsar that belong to no topic: a producer that came back behind a deletion has made them.

Owns: whether a partition was ever used, deleting such partitions, making a topic whole again.
Must not know: why a partition is suspected, logs, the table of topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from kop.pulsar_client import PulsarError
from kop.pulsar_client.errors import NOT_THERE, Ignoring
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.layout import ID_PROPERTY, namespace_of

_PAUSES: Final = (0.02, 0.1, 0.3, 1.0)
"""The seconds between attempts to delete a partition: clients may use it, or another broker may be deleting it."""
_DEDUPLICATION_CURSOR: Final = "pulsar.dedup"

log = logging.getLogger(__name__)


def is_unused(stored: Mapping[str, Any]) -> bool:
    """Return true if nothing was ever written to a partition, and nobody has a subscription, by its internal stats."""
    cursors = set(stored.get("cursors", ())) - {_DEDUPLICATION_CURSOR}
    return not stored["entriesAddedCounter"] and not stored["numberOfEntries"] and not cursors


class StrayPartitions:
    """The search for partitions that belong to no topic, and their deletion. Methods raise PulsarError."""

    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    async def id_or_none(self, full_name: str) -> str | None:
        """Return the id of a partitioned topic, empty if it has none; None if there is no such topic."""
        with Ignoring(*NOT_THERE):
            return (await self._context.admin.partitioned_metadata(full_name)).properties.get(ID_PROPERTY, "")
        return None

    async def complete(self, full_name: str) -> None:
        """Make the missing partitions of a topic, if the topic exists: another broker may have created it while a stray
        was deleted. It is counted and logged if any was missing.
        """
        admin = self._context.admin
        partitions = None
        with Ignoring(*NOT_THERE):
            partitions = (await admin.partitioned_metadata(full_name)).partitions
        if partitions is None:
            return
        listed = await admin.list_topics(namespace_of(full_name))
        await admin.create_missed_partitions(full_name)  # in any case: a partition may be listed and not be there
        if {f"{full_name}-partition-{index}" for index in range(partitions)}.issubset(listed):
            return
        self._context.faults.count(Fault.TOPICS_RECREATED_PARTITION_MISSING)
        log.warning(
            "topic %s was made while partitions of a deleted topic of its name were removed: the partitions that it "
            "lost by that are made again",
            full_name,
        )

    async def clear(self, full_name: str) -> bool:
        """Delete unused partitions that belong to no topic, of this topic name: while they exist, Pulsar makes no topic
        of that name. Nothing is done if the topic exists; the first partition that cannot be deleted ends it, with a
        warning.

        Return true if there were any and all are gone.
        """
        admin = self._context.admin
        with Ignoring(*NOT_THERE):
            await admin.partitioned_metadata(full_name)
            return False
        prefix = f"{full_name}-partition-"
        strays = [name for name in await admin.list_topics(namespace_of(full_name)) if name.startswith(prefix)]
        for name in strays:
            if not await self._clear(name):
                log.warning(
                    "topic %s cannot be made while Pulsar has %s, which is not empty or in use: delete that in Pulsar",
                    full_name,
                    name,
                )
                return False
        return bool(strays)

    async def _clear(self, name: str) -> bool:
        admin = self._context.admin
        for pause in _PAUSES:
            try:
                if not is_unused(await admin.internal_stats(name)):
                    return False
                await admin.delete_plain(name, force=False)
                self._context.faults.count(Fault.TOPICS_RECREATED_CAME_BACK)
                return True
            except PulsarError as error:
                if error.code in NOT_THERE:
                    if name not in await admin.list_topics(namespace_of(name)):
                        return True
                    # docs/quirks.md, "A topic is listed and not found"; once it is loaded again, it can be deleted
                    await (await self._context.client.open_producer(name)).close()
                elif error.code in {"PreconditionFailed", "ServerFailure"}:
                    await asyncio.sleep(pause)  # clients use it, or another broker deletes it at this moment
                else:
                    raise
        return False
