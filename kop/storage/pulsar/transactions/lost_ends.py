"""The ends of transactions that Pulsar may have lost on a partition, and the times to look. A pure machine.

Owns: the ends of the last seconds by partition, when a partition is looked at, which ends are in doubt then.
Must not know: how Pulsar is asked, what is done about a lost end. Each call brings the time (s).

See docs/quirks.md, "The end of a transaction is lost at an unload". The partition is always loaded again after that,
and its transaction buffer tells when it was recovered. So an end is in doubt only where that time is another one than
it was when the partition was looked at before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kop.pulsar_client import TxnId

FIRST_SECONDS: Final = 1.0
"""The seconds after the end of a transaction at which its partitions are looked at. Most unloads are over by then."""
AGAIN_SECONDS: Final = 5.0
"""The seconds between two looks at a partition as long as one of its ends may be in doubt."""
SETTLED_SECONDS: Final = 10.0
"""The age in seconds from which an end is beyond doubt if the partition was not loaded again since. Between the moment
at which a bundle refuses lookups and the one at which its topics are closed lie seconds at most.
"""
RETRY_SECONDS: Final = 1.0
"""The seconds after which a partition is looked at again if Pulsar told nothing of it, and may be loading it."""
FRESH_SECONDS: Final = 30.0
"""The seconds after an end in which a partition may be being loaded. Later Pulsar tells nothing of it because nobody
uses it, or because it is deleted.
"""
KEPT_SECONDS: Final = 600.0
"""The seconds for which a partition is looked at if Pulsar tells nothing of it."""
IDLE_SECONDS: Final = 600.0
"""The seconds without an end after which a partition is forgotten, since it may be deleted. If a transaction ends on
it later, that end is in doubt until the partition has been looked at.
"""
MOST_AT_ONCE: Final = 10
"""The number of partitions that are looked at in one turn; the others wait for the next one."""


class End(NamedTuple):
    """The end of a transaction, commit or abort, and the time at which Pulsar answered that it has ended."""

    at: float
    txn: TxnId
    commit: bool


@dataclass(slots=True)
class _Watched:
    looked_at: float
    """The time of the next look at the partition."""
    recovered: int | None = None
    """The time at which its transaction buffer was recovered, by the Pulsar broker's clock (ms); None if that is not
    known.
    """
    ends: list[End] = field(default_factory=list)


class LostEnds:
    """The ends of transactions that one broker has asked for, and that Pulsar may have lost on a partition. Partitions
    go by their full names.
    """

    def __init__(self) -> None:
        self._partitions: dict[str, _Watched] = {}
        self._waiting = 0
        """The number of partitions that have ends."""

    def __bool__(self) -> bool:
        return self._waiting > 0

    def ended(self, txn: TxnId, partitions: Collection[str], now: float, *, commit: bool) -> None:
        """Add the end of a transaction, as Pulsar answered that it has ended, to its partitions."""
        end = End(now, txn, commit)
        for name in partitions:
            watched = self._partitions.get(name)
            if watched is None:
                watched = self._partitions[name] = _Watched(now)
            if not watched.ends:
                self._waiting += 1
                watched.looked_at = now + FIRST_SECONDS
            watched.ends.append(end)

    def due(self, now: float) -> list[str]:
        """Return up to 10 partitions to look at now, those first that have waited longest; each is due again 5 seconds
        later. Partitions without an end for 600 seconds are forgotten.
        """
        idle = [
            name
            for name, watched in self._partitions.items()
            if not watched.ends and now - watched.looked_at > IDLE_SECONDS
        ]
        for name in idle:
            del self._partitions[name]
        due = sorted(
            (watched.looked_at, name)
            for name, watched in self._partitions.items()
            if watched.ends and watched.looked_at <= now
        )
        names = [name for _, name in due[:MOST_AT_ONCE]]
        for name in names:
            self._partitions[name].looked_at = now + AGAIN_SECONDS
        return names

    def looked(self, name: str, recovered: int, asked: float) -> list[End]:
        """Return the ends on a partition that are in doubt: its buffer was `recovered` (ms, by the Pulsar broker) at
        another time than at the last look. Pulsar was asked at the time `asked`.

        `settled` has to be called when Pulsar was asked about all of them; if none is in doubt, old ends are forgotten
        here.
        """
        watched = self._partitions.get(name)
        if watched is None:
            return []
        if watched.recovered == recovered:
            self.settled(name, asked)
            return []
        watched.recovered = recovered
        return [end for end in watched.ends if end.at <= asked]

    def forget(self, name: str, end: End) -> None:
        """Forget an end on a partition: nothing can be done about it."""
        watched = self._partitions.get(name)
        if watched is not None and watched.ends:
            self._keep(watched, [each for each in watched.ends if each != end])

    def settled(self, name: str, asked: float) -> None:
        """Forget the ends of a partition that were 10 seconds old at the time `asked`: none of them held readers back
        then.
        """
        watched = self._partitions.get(name)
        if watched is not None and watched.ends:
            self._keep(watched, [end for end in watched.ends if end.at > asked - SETTLED_SECONDS])

    def failed(self, name: str, now: float) -> bool:
        """Keep the ends of a partition of which Pulsar told nothing, or not all, and look again after 1 second, or 5 if
        none is of the last 30. Return false if ends were given up, since they are older than 600 seconds.
        """
        watched = self._partitions.get(name)
        if watched is None:
            return True
        watched.recovered = None  # so that all of its ends are in doubt the next time
        fresh = any(end.at > now - FRESH_SECONDS for end in watched.ends)
        watched.looked_at = now + (RETRY_SECONDS if fresh else AGAIN_SECONDS)
        kept = [end for end in watched.ends if end.at > now - KEPT_SECONDS]
        given_up = len(kept) < len(watched.ends)
        self._keep(watched, kept)
        return not given_up

    def _keep(self, watched: _Watched, ends: list[End]) -> None:
        if watched.ends and not ends:
            self._waiting -= 1
        watched.ends = ends
