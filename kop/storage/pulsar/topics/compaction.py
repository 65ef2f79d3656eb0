"""Compaction of the gateway's own topics: that it runs, what it has not seen yet, and what may be dropped after it.

Owns: the look at each partition, the alarm, the retention of these topics.
Must not know: what their records mean.

Pulsar compacts a partition when so many bytes have come since the last time, into a ledger beside the log. Its cursor
`__compaction` is there from the topic's first moment and, as any subscription, keeps what it has not passed.

- Until a compaction has succeeded the topic is kept for ever: nobody knows yet whether compaction works here.
- Then `AFTERWARDS` is enough: whatever no compaction has seen is held by the cursors, the newest record of each key is
  in the compacted ledger, and readers begin there. Where a cursor is missing (somebody deleted that subscription) the
  topic is kept for ever again.
- A partition whose uncompacted part is large and old is looked after here, too: the broker that leads it says so and
  starts a compaction itself. What has not been compacted is read whole by whoever takes the partition over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from prometheus_client.core import Metric

from kop.background import for_each, tell
from kop.errors import KopError
from kop.metrics import gauge_family
from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import FOREVER, Retention
from kop.pulsar_client.errors import Ignoring
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.layout import PulsarTopic
from kop.storage.pulsar.partition.services import PartitionView
from kop.storage.pulsar.topics import policies

CURSOR: Final = "__compaction"
AFTERWARDS: Final = Retention(24 * 60, -1)
"""The retention of a state topic once a compaction has succeeded: a day, for people who want to see what was
written.
"""
LATE_BYTES: Final = 2 * policies.OWN_COMPACTION_THRESHOLD
LATE_SECONDS: Final = 900.0
"""The age in seconds above which an uncompacted part that is larger than `LATE_BYTES` counts as late: Pulsar brokers
look every minute if they have to compact, and need a while for it.
"""
RETENTION_EVERY: Final = 600.0
"""The seconds between two looks at all partitions of a state topic, from which its retention follows."""

LOOK_SECONDS: Final = 60.0
"""The seconds that the look at one partition may take, with that at its topic's retention."""
AT_ONCE: Final = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Uncompacted:
    """The part of a partition that no compaction has seen."""

    size: int
    """The bytes of records that no compaction has seen."""
    seconds: float
    """The age of the oldest of these records in seconds; 0 if there is none."""

    @property
    def late(self) -> bool:
        """True if the partition should have been compacted long ago: it is 32 MiB or more, the oldest of it 15 minutes
        old.
        """
        return self.size >= LATE_BYTES and self.seconds >= LATE_SECONDS


def uncompacted(stats: Mapping[str, Any], now_ms: int) -> Uncompacted | None:
    """Return the part that no compaction has seen, from a partition's stats with backlogs; None if compaction has no
    cursor.
    """
    cursor = stats.get("subscriptions", {}).get(CURSOR)
    if cursor is None:
        return None
    size = max(cursor.get("backlogSize", 0), 0)
    oldest = cursor.get("earliestMsgPublishTimeInBacklog", 0)
    return Uncompacted(size, max(now_ms - oldest, 0) / 1000 if size and oldest > 0 else 0.0)


def retention_of(partitions: Sequence[Mapping[str, Any]]) -> Retention:
    """Return the retention that a state topic needs, from the internal stats of all its partitions: a day if each has a
    cursor of compaction, and one was compacted before; else without end.
    """
    held = have_cursors(partitions)
    proven = any(stats.get("compactedLedger", {}).get("ledgerId", -1) >= 0 for stats in partitions)
    return AFTERWARDS if held and proven else FOREVER


def have_cursors(partitions: Sequence[Mapping[str, Any]]) -> bool:
    """Return true if compaction has a cursor in each partition, by the partitions' internal stats."""
    return all(CURSOR in stats.get("cursors", {}) for stats in partitions)


class Compactions:
    """The watch over the compaction of internal topics."""

    def __init__(
        self,
        context: PulsarContext,
        partitions: Callable[[], Iterable[PartitionView]],
        pulsar_topic: Callable[[UUID], PulsarTopic],
    ) -> None:
        """Begin to watch. `partitions` returns all partitions that there are now, `pulsar_topic` the Pulsar side of a
        topic by its id.
        """
        self.uncompacted: dict[tuple[str, int], Uncompacted] = {}
        """The parts that no compaction has seen, by topic and partition, of the partitions that this broker leads."""
        self._context = context
        self._partitions = partitions
        self._pulsar_topic = pulsar_topic
        self._late: set[tuple[str, int]] = set()
        self._due: dict[str, float] = {}

    def collect(self) -> Sequence[Metric]:
        """Return metrics of the bytes and the age of records that no compaction has seen."""
        labels = ["topic", "partition"]
        size = gauge_family(
            "kop_uncompacted_bytes", "Bytes that no compaction has seen, of partitions led here.", labels
        )
        age = gauge_family("kop_uncompacted_seconds", "Age of the oldest record that no compaction has seen.", labels)
        for (topic, index), uncompacted in self.uncompacted.items():
            size.add_metric([topic, str(index)], uncompacted.size)
            age.add_metric([topic, str(index)], uncompacted.seconds)
        return size, age

    async def look(self) -> None:
        """Look at each partition of a compacted state topic that this broker leads: warn, and start a compaction, if it
        is late. Every 10 minutes set the retention of the topics, too. A failed look is logged and counted, and
        repeated in the next round.
        """
        now = self._context.loop.time
        by_partition: dict[tuple[str, int], Uncompacted] = {}

        async def look(partition: PartitionView) -> None:
            if (seen := await self._look_at(partition)) is not None:
                by_partition[partition.topic.name, partition.index] = seen
            if partition.index == 0 and now() >= self._due.get(partition.topic.name, 0.0):
                await self._keep(partition)
                self._due[partition.topic.name] = now() + RETENTION_EVERY

        led = [partition for partition in self._partitions() if partition.topic.internal and partition.holds_lease]
        compacted = [partition for partition in led if partition.policy.compact and not partition.policy.delete]
        await for_each(compacted, look, at_once=AT_ONCE, limit=LOOK_SECONDS, failed=self._not_looked_at)
        self.uncompacted = by_partition
        self._late &= by_partition.keys()

    def _not_looked_at(self, partition: PartitionView, error: Exception) -> None:
        if self._context.faults.takes(error):
            return
        if isinstance(error, PulsarError | KopError | TimeoutError):
            log.warning(
                "cannot look after the compaction of %s: %s", partition.title, str(error) or "no answer in time"
            )
        else:
            tell(f"the look at the compaction of {partition.title}", error, kind="the look at a compaction")
        self._context.faults.count(Fault.COMPACTION_NOT_CHECKED)

    async def _look_at(self, partition: PartitionView) -> Uncompacted | None:
        stats = await self._context.admin.stats(partition.partition_name, backlogs=True)
        seen, key = uncompacted(stats, self._context.admin.now_ms()), (partition.topic.name, partition.index)
        if seen is None:
            self._context.faults.count(Fault.COMPACTION_WITHOUT_CURSOR)
            return None
        if not seen.late:
            self._late.discard(key)
            return seen
        self._context.faults.count(Fault.COMPACTION_LATE)
        if key not in self._late:
            self._late.add(key)
            status = await self._context.admin.compaction_status(partition.partition_name)
            log.warning(
                "no compaction has seen %d MiB of %s, the oldest of it %.0f minutes old (last compaction: %s %s). One "
                "is started now; if this comes again, see the Pulsar broker's log, and that "
                "brokerServiceCompactionMonitorIntervalInSeconds is not 0 in broker.conf. Until then taking the "
                "partition over takes longer, and it is kept whole",
                seen.size >> 20, partition.title, seen.seconds / 60, status.status, status.error,
            )  # fmt: skip
        with Ignoring("Conflict"):  # a compaction is running
            await self._context.admin.compact(partition.partition_name)
        return seen

    async def _keep(self, first_partition: PartitionView) -> None:
        """Set the topic's retention to what the state of its compaction allows, and log that; another one that somebody
        chose for the time after compaction stays. PulsarError if Pulsar refuses it or does not answer.
        """
        admin, known = self._context.admin, self._pulsar_topic(first_partition.topic.topic_id)
        full_name, partitions = known.full_name, map(known.partition, range(first_partition.topic.partitions))
        stored = [await admin.internal_stats(each) for each in partitions]
        wanted = retention_of(stored)
        now = await admin.get_retention(full_name, applied=True)
        if now == wanted or (wanted != FOREVER and now not in {None, FOREVER}):
            return  # somebody chose another retention for the time after compaction
        if wanted == FOREVER and have_cursors(stored):
            log.warning(
                "no compaction of %s has succeeded yet, and its retention was changed: all of it is kept until one has",
                full_name,
            )
        elif wanted == FOREVER:
            log.error(
                "a partition of %s has lost its subscription %s: all of it is kept from now on. Compaction makes a new "
                "one (pulsar-admin topics compact)",
                full_name, CURSOR,
            )  # fmt: skip
            self._context.faults.count(Fault.COMPACTION_WITHOUT_CURSOR)
        else:
            log.info("%s is compacted: its old records are kept for %d minutes from now on", full_name, wanted.minutes)
        await policies.set_retention(admin, full_name, wanted)
