"""The Pulsar transactions that ended a short while ago: nothing is written into them any more.

Owns: which these are, and for how long that is kept.
Must not know: who ends transactions, batches.

A batch may wait for seconds between `submit` and its sending, while its log attaches or its producer is opened, and its
transaction may end meanwhile. Sent then, it would be stored behind the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kop.pulsar_client import TxnId
from kop.records.transcode import EntryTransaction

KEPT_SECONDS: Final = 120.0
"""The seconds for which a transaction is kept: more than any batch waits for its log and for its producer."""


class EndedTransactions:
    """The Pulsar transactions of which this broker learned that they end; one object for all partitions. `clock` gives
    seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: dict[TxnId, float] = {}
        """The times at which they ended, the oldest first."""

    def add(self, txn: TxnId) -> None:
        """Add a transaction whose end is decided. It is kept for 120 seconds."""
        now = self._clock()
        self._ended.pop(txn, None)
        self._ended[txn] = now
        while now - self._ended[oldest := next(iter(self._ended))] > KEPT_SECONDS:
            del self._ended[oldest]

    def __contains__(self, txn: EntryTransaction) -> bool:
        """Return true if this broker learned within the last 120 seconds that the transaction that a batch belongs to
        ends.
        """
        return TxnId(txn.most, txn.least) in self._ended
