"""Closing ledgers before their packed offsets are used up.

Owns: the request to Pulsar, and what is counted and told of it.
Must not know: which entries there are; `OffsetMapping.closes_ledger` tells when.
"""

from __future__ import annotations

import logging

from kop.pulsar_client import PulsarError
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault

_log = logging.getLogger(__name__)


async def close_ledger(context: PulsarContext, partition_name: str, title: str, ledger: int) -> None:
    """Unload the partition, so that Pulsar closes its ledger, unless a newer ledger is there.

    Failures are counted and logged.
    """
    faults = context.faults
    try:
        stats = await context.admin.internal_stats(partition_name)
        if stats["ledgers"] and stats["ledgers"][-1]["ledgerId"] != ledger:
            return  # another broker has closed the ledger already
        faults.count(Fault.PACKED_OFFSETS_LEDGER_CLOSED)
        _log.info(
            "%s: ledger %d has nearly all entries that packed offsets can number: the partition is unloaded, so that "
            "Pulsar begins a new ledger",
            title,
            ledger,
        )
        await context.admin.unload(partition_name)
    except PulsarError as error:
        faults.count(Fault.PACKED_OFFSETS_LEDGER_NOT_CLOSED)
        faults.tell(
            ("close", title),
            f"{title}: ledger {ledger} has nearly all entries that packed offsets can number and cannot be closed: "
            f"{error}; "
            "unload it (pulsar-admin topics unload), or lower managedLedgerMinLedgerRolloverTimeMinutes",
        )
