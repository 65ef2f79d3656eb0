"""The transactions that are kept open so that Pulsar does not abort committed ones. A pure machine.

Owns: the anchors of each transaction coordinator of Pulsar, and the times at which they end by themselves.
Must not know: how they are begun. Times are the loop's (s).

When Pulsar ends a transaction on a partition, it aborts the oldest one that is still open there if its coordinator has
no transaction of that number or a lower one any more. So a commit that Pulsar lost on a partition (docs/quirks.md, "The
end of a transaction is lost at an unload") becomes an abort there as soon as another transaction ends, and the records
are gone. While an older transaction of that coordinator is open, Pulsar does not do so, and the end is carried out
again (`lost_ends.py`). An outage of Pulsar that is longer than anchors are open ends them at once when it is over.
"""

from __future__ import annotations

from typing import Final

from kop.pulsar_client import TxnId

DOUBT_SECONDS: Final = 120.0
"""The seconds behind the last moment at which a transaction may end for which an anchor has to be open: by then its end
has been carried out again where it was lost.
"""
SPAN_SECONDS: Final = 300.0
"""The seconds for which a new anchor serves later transactions of the same time limit. While it is open, readers wait
at a lost end that nobody carries out, since its gateway was killed meanwhile.
"""


class Anchors:
    """The open transactions without partitions that guard those which are begun after them."""

    def __init__(self) -> None:
        self._ends: dict[TxnId, float] = {}
        """The time from which on each anchor may have ended."""

    def guard(self, txn: TxnId, until: float) -> bool:
        """Return true if an anchor older than `txn`, of the same coordinator, stays open until then."""
        return any(
            each.most == txn.most and each.least < txn.least and end >= until for each, end in self._ends.items()
        )

    def stays(self, coordinator: int, until: float) -> bool:
        """Return true if an anchor of the coordinator of that number stays open until then, so that transactions that
        are begun from now on are guarded.
        """
        return any(each.most == coordinator and end >= until for each, end in self._ends.items())

    def add(self, anchor: TxnId, now: float, end: float) -> None:
        """Add a transaction that was begun, and that nobody ends before the time `end`; forget those that ended."""
        self._ends = {each: last for each, last in self._ends.items() if last > now}
        self._ends[anchor] = end
