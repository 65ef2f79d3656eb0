"""Entries of Pulsar that are older than the index: written before the Pulsar brokers gave one, so without an offset.

Owns: which topics have some, and how many.
Must not know: how that is shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kop import clock

if TYPE_CHECKING:
    from kop.pulsar_client.admin import Admin

_AT_ONCE = 16
PERSISTENT = "persistent://"


def full_name(topic: str, namespace: str) -> str:
    """Return Pulsar's full name of a topic that is given as `orders`, `TENANT/NAMESPACE/orders` or by the full name
    itself; a short name is of `namespace`.
    """
    local = topic.removeprefix(PERSISTENT)
    return PERSISTENT + (local if "/" in local else f"{namespace}/{local}")


def ledgers_with_entries(stats: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the ledgers of `internalStats` that have entries, in its order, oldest first, each with the number of its
    entries.
    """
    ledger, _, last = stats["lastConfirmedEntry"].partition(":")
    ledgers = {int(row["ledgerId"]): int(row["entries"]) for row in stats["ledgers"]}
    if int(ledger) in ledgers:  # the count of the one that is open is 0
        ledgers[int(ledger)] = int(last) + 1
    return [(ledger, entries) for ledger, entries in ledgers.items() if entries > 0]


async def older_entries(admin: Admin, partition: str) -> int:
    """Count the entries at the beginning of a partition that have no index.

    A Pulsar broker is told to give an index by a restart, which begins another ledger: a ledger has it or not.
    """
    count = 0
    for ledger, entries in ledgers_with_entries(await admin.internal_stats(partition)):
        if (await admin.entry_head(partition, ledger, 0)).index is not None:
            break
        count += entries
    return count


async def older_entries_of(admin: Admin, topics: Iterable[str], namespace: str) -> dict[tuple[str, int], int]:
    """Count the entries without an index by topic and partition; topics that Pulsar does not know by these names are
    left out. Any other PulsarError is raised.
    """
    from kop.pulsar_client.errors import PulsarError

    counts = {}
    for name in topics:
        topic = full_name(name, namespace)
        try:
            partitions = (await admin.partitioned_metadata(topic)).partitions
            for number in range(partitions or 1):
                partition = f"{topic}-partition-{number}" if partitions else topic
                counts[name, number] = await older_entries(admin, partition)
        except PulsarError as error:
            if error.code != "NotFound":  # the server's own topics are elsewhere
                raise
    return counts


async def topics_with_older_entries(admin: Admin, namespace: str, seconds: float) -> tuple[list[str], int, int]:
    """Return the topics of a namespace that have entries without an index, the number of topics that were looked at
    within so many seconds, and the number of all topics. One that cannot be read counts as not looked at; Pulsar's own
    are left out.
    """
    from kop.pulsar_client.errors import PulsarError

    topics: dict[str, list[str]] = {}
    for name in await admin.list_topics(namespace):
        topic = re.sub(r"-partition-\d+$", "", name.removeprefix(PERSISTENT))
        if not topic.rpartition("/")[2].startswith("__"):  # Pulsar's own
            topics.setdefault(topic, []).append(name)
    end = clock.monotonic() + seconds
    turns = asyncio.Semaphore(_AT_ONCE)

    async def look(partitions: list[str]) -> bool | None:
        async with turns:
            if clock.monotonic() > end:
                return None
            try:
                for partition in partitions:
                    if await older_entries(admin, partition):
                        return True
            except PulsarError:  # deleted or trimmed meanwhile, or out of order: the others count
                return None
            return False

    answers = await asyncio.gather(*map(look, topics.values()))
    older = sorted(topic for topic, has in zip(topics, answers, strict=True) if has)
    return older, len(topics) - answers.count(None), len(topics)
