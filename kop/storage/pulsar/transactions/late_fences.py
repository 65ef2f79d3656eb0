"""The fences that may be stored behind the end of their transaction, and the times to ask. A pure machine.

Owns: these transactions and their partitions, when the next question is due, for how long it is asked.
Must not know: how Pulsar is asked, what is done about a late fence. Each call brings the time (s).

A fence is sent when its transaction is known to be open, and is stored a little later. Who ends the transaction may be
another broker, which took over from this one, so that the end may come in between. There are two ways to know:

- The broker that wrote the fence asks whether the transaction is open still. Then the fence came before the end. Where
  it ends the transaction itself, after it wrote the fence, it need not ask.
- The broker that ends a transaction that another one began looks at its partitions a few times: that other one may be
  dead, and what it sent last may be stored later.

Only the broker that ends a transaction knows how it ended, and Pulsar may carry that out later than it answers, on a
partition that is being unloaded. So a broker that learns that a transaction has ended, and not how, gives the other one
time to look before it looks itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from kop.pulsar_client import TxnId

SOON_SECONDS: Final = 1.0
"""The seconds after which Pulsar is asked about a fence. Most transactions have ended by then."""
LOOKS_AFTER: Final = (0.5, 2.0, 5.0, 12.0)
"""The seconds after its end at which the partitions of a transaction of another broker are looked at."""
UNKNOWN_SECONDS: Final = LOOKS_AFTER[-1] + 3.0
"""The seconds after which the partitions of a transaction are looked at that has ended in a way that is not known
here.
"""
ASK_SECONDS: Final = 600.0
"""The seconds for which Pulsar is asked again if it does not answer."""


class Due(NamedTuple):
    """A question about a transaction that has to be asked now."""

    txn: TxnId
    partitions: frozenset[str]
    """The full names of the partitions that may have a late fence."""
    ended: bool
    """True if the transaction has ended, so that only its partitions have to be looked at."""
    commit: bool = True
    """True if it ended by a commit, or if that is not known: then Pulsar has had the time to carry out an abort."""


@dataclass(slots=True)
class _Doubt:
    partitions: frozenset[str]
    at: float
    until: float
    looks: tuple[float, ...] = ()
    """The later times at which the partitions of a transaction that has ended are looked at."""
    ended: bool = False
    commit: bool = True


class LateFences:
    """The transactions of one broker whose fences may be stored behind their ends."""

    def __init__(self) -> None:
        self._doubts: dict[TxnId, _Doubt] = {}

    def __len__(self) -> int:
        return len(self._doubts)

    def stored(self, txn: TxnId, partitions: Collection[str], now: float, *, doubtful: bool = False) -> None:
        """Watch fences of this broker that are stored in a transaction, which was open a moment ago: a question about
        them is due a second later, at once if `doubtful`.

        `doubtful`: it is not known if they are stored, or that moment is long ago.
        """
        known = self._doubts.get(txn)
        names = frozenset(partitions)
        if known is not None:
            known.partitions |= names
            known.at = max(known.at, now + SOON_SECONDS) if not doubtful else now
            known.until = now + ASK_SECONDS
            known.ended = False
            return
        self._doubts[txn] = _Doubt(names, now if doubtful else now + SOON_SECONDS, now + ASK_SECONDS)

    def ended_here(self, txn: TxnId) -> None:
        """Stop watching the fences of a transaction that this broker has ended, after they were stored."""
        self._doubts.pop(txn, None)

    def ended_of_other(self, txn: TxnId, partitions: Collection[str], now: float, *, commit: bool) -> None:
        """Watch the partitions of a transaction that has ended, and that this broker did not begin or did not end:
        fences that another broker sent may be stored later. Four looks are due, up to 12 seconds later.
        """
        known = self._doubts.pop(txn, None)
        names = frozenset(partitions) | (known.partitions if known is not None else frozenset())
        if names:
            first, *rest = LOOKS_AFTER
            looks = tuple(now + each for each in rest)
            self._doubts[txn] = _Doubt(names, now + first, now + ASK_SECONDS, looks, ended=True, commit=commit)

    def ended_elsewhere(self, asked: Due, now: float) -> None:
        """Watch the partitions of a transaction that, as Pulsar answered, has ended in an unknown way; a look at them
        is due 15 seconds later.
        """
        doubt = self._doubts.get(asked.txn)
        if doubt is not None and not doubt.ended:
            doubt.ended, doubt.at = True, now + UNKNOWN_SECONDS

    def due(self, now: float) -> list[Due]:
        """Return the questions that have to be asked at the time `now`. Each is due again a second later, unless it is
        answered.
        """
        due = []
        for txn, doubt in self._doubts.items():
            if doubt.at <= now:
                doubt.at = now + SOON_SECONDS
                due.append(Due(txn, doubt.partitions, doubt.ended, doubt.commit))
        return due

    def answered(self, asked: Due, now: float) -> None:
        """Drop a question that is answered: the transaction is open, or it has ended and its partitions were looked at.
        Of a transaction with further looks the next one is planned.
        """
        doubt = self._doubts.get(asked.txn)
        if doubt is None or doubt.ended != asked.ended:
            return
        if doubt.looks:
            doubt.at, *rest = doubt.looks
            doubt.looks = tuple(rest)
        elif doubt.partitions == asked.partitions or doubt.ended:
            del self._doubts[asked.txn]

    def failed(self, asked: Due, now: float) -> bool:
        """Keep a question that Pulsar did not answer; return false, and drop it, if Pulsar has not answered it for 600
        seconds.
        """
        doubt = self._doubts.get(asked.txn)
        if doubt is None or now < doubt.until:
            return True
        del self._doubts[asked.txn]
        return False
