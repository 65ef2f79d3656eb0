"""Entries that Pulsar keeps back from every reader: markers of transactions, and what was written in aborted ones.

Owns: which gaps between the entries of one partition hold nothing else, and the questions by which that is known.
Must not know: who met a gap, what is answered for its offsets.

Each of these entries has an offset, so readers meet a gap. Pulsar also moves readers past records (message TTL), so a
gap is asked about: the broker shows each entry over REST, with what it is in the headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from kop.pulsar_client import Position, PulsarError
from kop.storage.pulsar.reading.source import PartitionSource

MOST_AT_ONCE: Final = 256
"""Gaps that are asked about together."""
_MOST_ENTRIES: Final = 64
"""Entries of a gap that is asked about; for a larger one another reader is cheaper."""
_SIDE_BY_SIDE: Final = 16
_MOST_KNOWN: Final = 5000
_MARKER: Final = "X-Pulsar-marker-type"
_ABORTED: Final = "X-Pulsar-txn-aborted"


class Gap(NamedTuple):
    """Offsets `base` to `last` between two entries that came, and where these two lie."""

    base: int
    last: int
    entry_before: Position
    entry_behind: Position

    @property
    def entries(self) -> int:
        """Entries that did not come, where each has one offset, as those have that are kept back; else 0."""
        between = self.entry_behind.entry - self.entry_before.entry - 1
        same_ledger = self.entry_before.ledger == self.entry_behind.ledger
        return between if same_ledger and between == self.last - self.base + 1 else 0

    @property
    def may_be_kept_back(self) -> bool:
        """Whether Pulsar is worth asking."""
        return 0 < self.entries <= _MOST_ENTRIES


class Gaps:
    """The gaps of one partition that are known to hold no records."""

    def __init__(self, source: PartitionSource) -> None:
        self._source = source
        self._known: dict[int, None] = {}
        self._places = asyncio.Semaphore(_SIDE_BY_SIDE)

    def __contains__(self, last: object) -> bool:
        """Whether nothing can be read from the gap that ends with offset `last`."""
        return last in self._known

    def add(self, last: int) -> None:
        """Nothing can be read from the gap that ends there."""
        self._known[last] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    async def ask(self, gaps: Sequence[Gap]) -> None:
        """Ask Pulsar what lies in some gaps, side by side; those that are explained by it are in here afterwards."""
        await asyncio.gather(*(self._ask_about(gap) for gap in gaps if gap.last not in self and gap.may_be_kept_back))

    async def _ask_about(self, gap: Gap) -> None:
        ledger, first = gap.entry_before.ledger, gap.entry_before.entry + 1
        kept_back = await asyncio.gather(*(self._is_kept_back(ledger, first + n) for n in range(gap.entries)))
        if all(kept_back):
            self.add(gap.last)

    async def _is_kept_back(self, ledger: int, entry: int) -> bool:
        async with self._places:
            try:
                found = await self._source.context.admin.entry(self._source.partition_name, ledger, entry)
            except PulsarError:
                return False  # whoever met the gap looks for another explanation
        headers = {name.lower(): value for name, value in found.headers.items()}
        return _MARKER.lower() in headers or headers.get(_ABORTED.lower()) == "true"
