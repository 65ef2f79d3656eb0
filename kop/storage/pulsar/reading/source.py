"""The source that the entries of one partition are read from.

Owns: what every reader of the partition is given, what Pulsar is asked about the partition, and the end of a ledger
whose entries packed offsets cannot number any more.
Must not know: what is done with the entries; `OffsetMapping.closes_ledger` tells when a ledger has to end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from kop.errors import KopError
from kop.pulsar_client import Position, PulsarError
from kop.pulsar_client.admin import RECOVERED
from kop.storage.base import LogPolicy
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, Refused
from kop.storage.pulsar.offsets.mapping import OffsetMapping

_log = logging.getLogger(__name__)


class LogBounds(Protocol):
    """The bounds of the log, which its readers need."""

    policy: LogPolicy
    log_start_offset: int
    high_watermark: int

    @property
    def last_position(self) -> Position:
        """The position of the entry before the high watermark."""


class PartitionSource:
    """The source of entries of one partition, for its readers.

    `check_exists` is called before anything subscribes, and raises if the topic is gone; see `Client.open_reader`.
    """

    def __init__(
        self,
        context: PulsarContext,
        partition_name: str,
        title: str,
        mapping: OffsetMapping,
        check_exists: Callable[[], Awaitable[None]],
    ) -> None:
        self.context = context
        self.partition_name = partition_name
        self.title = title
        self.mapping = mapping
        self.check_exists = check_exists

    async def close_ledger(self, ledger: int) -> None:
        """Unload the partition, so that Pulsar closes its ledger, unless a newer ledger exists.

        Both that and failures are counted and logged; nothing is raised.
        """
        admin, faults, title = self.context.admin, self.context.faults, self.title
        try:
            stats = await admin.internal_stats(self.partition_name)
            if stats["ledgers"] and stats["ledgers"][-1]["ledgerId"] != ledger:
                return  # another broker has closed the ledger already
            faults.count(Fault.PACKED_OFFSETS_LEDGER_CLOSED)
            _log.info(
                "%s: ledger %d has nearly all entries that packed offsets can number: the partition is unloaded, so "
                "that Pulsar begins a new ledger",
                title,
                ledger,
            )
            await admin.unload(self.partition_name)
        except PulsarError as error:
            faults.count(Fault.PACKED_OFFSETS_LEDGER_NOT_CLOSED)
            faults.tell(
                ("close", title),
                f"{title}: ledger {ledger} has nearly all entries that packed offsets can number and cannot be closed: "
                f"{error}; "
                "unload it (pulsar-admin topics unload), or lower managedLedgerMinLedgerRolloverTimeMinutes",
            )

    async def internal_stats(self) -> dict[str, Any]:
        """Return Pulsar's internal statistics of the partition: its ledgers, entries and bytes. PulsarError if Pulsar
        refuses it or does not answer.
        """
        return await self.context.admin.internal_stats(self.partition_name)

    async def last_readable(self) -> Position:
        """Return the last position up to which no open transaction holds readers back.

        Entries that readers do not get may be the last ones before it. PulsarError, also if Pulsar does not know yet
        which transactions are open.
        """
        buffer = await self.context.admin.transaction_buffer(self.partition_name)
        if buffer["state"] not in RECOVERED:
            text = f"the transaction buffer of {self.partition_name} is {buffer['state']}"
            raise PulsarError("ServiceNotReady", text, retriable=True)
        return stats_position(buffer["maxReadPosition"])

    async def is_aborted(self, position: Position) -> bool:
        """Return true if the entry at `position` is of an aborted transaction; false if it is not, or Pulsar does not
        tell.

        A broker that was asked for its last entry names such a one if it came after the end of its transaction.
        """
        try:
            return (await self.context.admin.entry_head(self.partition_name, *position)).aborted
        except PulsarError:
            return False

    def refused(self, error: PulsarError, doing: str) -> KopError:
        """Count and log a read that Pulsar refused, and return the Kafka error for it."""
        return self.context.faults.refused(error, Refused.READS, doing)


def stats_position(text: str) -> Position:
    """Parse a position as Pulsar's statistics write it, `ledger:entry`."""
    return Position(*map(int, text.split(":")))
