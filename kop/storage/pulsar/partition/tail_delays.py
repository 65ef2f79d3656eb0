"""The reasons for a partition's late tail: those in Pulsar that hold readers back and not producers.

Owns: that question, how often it is asked, the line in the log and the metric of each reason.
Must not know: appends, offsets.

See docs/quirks.md, "What holds readers or writers back says nothing".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kop.pulsar_client import Position, PulsarError
from kop.repeats import Lasting
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.reading.source import PartitionSource, stats_position

_ASK_SECONDS: Final = 30.0
_COMPARE_SECONDS: Final = 60.0
"""The least age in seconds of counts of throttled reads that later ones are compared with. A throttled read is tried,
and counted, once a second.
"""
_NOTHING_COUNTED: Final[Mapping[tuple[str, str], int]] = {}

_TEXTS: Final[Mapping[Fault, str]] = {
    Fault.TAIL_LATE_DISPATCH_RATE: "a dispatch rate holds readers back, consumers of Kafka, too: raise it "
    "(pulsar-admin topics set-dispatch-rate, namespaces set-dispatch-rate, or set-subscription-dispatch-rate)",
    Fault.TAIL_LATE_TRANSACTION: "a transaction is open, and Pulsar shows nobody what lies behind its first record "
    "until it ends (pulsar-admin transactions transaction-buffer-stats, coordinator-stats)",
    Fault.TAIL_LATE_TRANSACTION_BUFFER: "its transaction buffer is not recovered yet, until then Pulsar gives "
    "nothing to readers",
}


def throttled_reads(stats: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return the number of times that dispatch rates held reads back, by subscription and kind, ever since the topic
    was opened.
    """
    return {
        (subscription, name): value
        for subscription, counts in (stats.get("subscriptions") or {}).items()
        for name, value in counts.items()
        if value and name.startswith("dispatchThrottled")
    }


def reason(
    stats: Mapping[str, Any],
    buffer: Mapping[str, Any],
    last: Position | None = None,
    before: Mapping[tuple[str, str], int] = _NOTHING_COUNTED,
) -> Fault:
    """Return the reason why readers are held back, from a topic's statistics and those of its transaction buffer;
    TAIL_LATE_NO_REASON if none is seen.

    `last` is the entry that the tail is to come to; no transaction holds it back if it lies before all open ones.
    `before` are `throttled_reads` of a while ago: a rate holds readers back if there are more of them now.
    """
    if buffer.get("state") in {"None", "Initializing", "FirstSnapshotting"}:
        return Fault.TAIL_LATE_TRANSACTION_BUFFER
    readable = last is not None and "maxReadPosition" in buffer and last <= stats_position(buffer["maxReadPosition"])
    if not readable and (stats.get("ongoingTxnCount") or buffer.get("ongoingTxnSize")):
        return Fault.TAIL_LATE_TRANSACTION
    if any(value > before.get(kind, 0) for kind, value in throttled_reads(stats).items()):
        return Fault.TAIL_LATE_DISPATCH_RATE
    return Fault.TAIL_LATE_NO_REASON


class TailDelays:
    """The questions why one partition's tail is late, and their log lines."""

    def __init__(self, source: PartitionSource) -> None:
        self._partition = source.partition_name
        self._title = source.title
        self._context = source.context
        self._clock = source.context.loop.time
        self._asked = self._counted_at = float("-inf")
        self._lasting = Lasting()
        self._before = self._counted = _NOTHING_COUNTED
        """The counts of throttled reads to compare with, and those of `_counted_at`, to compare with later."""

    def late(self) -> None:
        """Ask Pulsar in the background, every 30 seconds at most, for the reason why the tail did not deliver an entry
        in time. The reason is counted and logged; one that lies in a transaction is logged only if it lasts.
        """
        now = self._clock()
        if now - self._asked >= _ASK_SECONDS:
            self._asked = now
            self._context.spawn(self._ask())

    async def held(self, last: Position) -> bool:
        """Ask Pulsar if it holds the entry at `last` back from readers; return true if so, false if it does not, or on
        an error. The reason is counted and logged, but not during an outage; one that lies in a transaction is logged
        only if it lasts.
        """
        self._asked = self._clock()
        return await self._ask(last)

    async def _ask(self, last: Position | None = None) -> bool:
        buffer: Mapping[str, Any] = {}
        admin, faults = self._context.admin, self._context.faults
        try:
            stats = await admin.stats(self._partition)
            try:
                buffer = await admin.transaction_buffer(self._partition)
            except PulsarError as error:
                if error.retriable:
                    raise
        except PulsarError:
            return False  # Pulsar does not answer; other parts log that
        if self._clock() - self._counted_at >= _COMPARE_SECONDS:
            self._before, self._counted, self._counted_at = self._counted, throttled_reads(stats), self._clock()
        why = reason(stats, buffer, last, self._before)
        if faults.outage.active:  # Pulsar recovers what it has of the topic
            return why != Fault.TAIL_LATE_NO_REASON
        faults.count(why)
        if why == Fault.TAIL_LATE_NO_REASON:  # a busy machine is late now and then
            return False
        place = str(buffer.get("maxReadPosition"))
        if why != Fault.TAIL_LATE_DISPATCH_RATE and not self._lasting.lasts((why, place), self._clock()):
            return True  # every transaction does so, and ends
        faults.tell(
            (why, self._title),
            f"{self._title}: Pulsar stores records that it does not give to readers: {_TEXTS[why]}. Producers are "
            "answered meanwhile, by asking Pulsar for each offset",
            why,
        )
        return True
