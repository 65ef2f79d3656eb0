"""A sparse index from offsets to positions of entries that were seen, and the arithmetic of a search between them.

Owns: which entries are kept, how many, where a search looks next. A pure machine: it does no I/O.
Must not know: how an entry is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final

from kop.pulsar_client import Position

MOST_KEPT: Final = 512
NEAR: Final = 64
"""The number of entries between two known ones up to which reading them is cheaper than searching."""


class SparseIndex:
    """The entries that were seen, in order: an offset of each, mostly its last one, and its position."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._positions: list[Position] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: Position) -> None:
        """Remember the position of an entry, by an offset of it. One at the same offset is replaced; if there are more
        than 512, every second one goes.
        """
        at = bisect_left(self._offsets, offset)
        if at < len(self._offsets) and self._offsets[at] == offset:
            self._positions[at] = position
            return
        self._offsets.insert(at, offset)
        self._positions.insert(at, position)
        if len(self._offsets) > MOST_KEPT:
            del self._offsets[1:-1:2], self._positions[1:-1:2]

    def floor(self, offset: int) -> tuple[int, Position] | None:
        """Return offset and position of the last known entry before `offset`: a reader that begins there meets the
        entry that holds `offset`. None if there is none.
        """
        at = bisect_left(self._offsets, offset) - 1
        return (self._offsets[at], self._positions[at]) if at >= 0 else None

    def above(self, offset: int) -> tuple[int, Position] | None:
        """Return offset and position of the first known entry at or behind `offset`; None if there is none."""
        at = bisect_left(self._offsets, offset)
        return (self._offsets[at], self._positions[at]) if at < len(self._offsets) else None

    def drop_before(self, offset: int) -> None:
        """Forget the entries before an offset: retention took them."""
        at = bisect_left(self._offsets, offset)
        del self._offsets[:at], self._positions[:at]


class Ledgers:
    """The entries of a partition, over all its ledgers, as one line: each position has a place on it."""

    def __init__(self, ledgers: Sequence[tuple[int, int]]) -> None:
        """Keep the `ledgers`: id and number of entries, in order; the number of the last, open one does not count."""
        self._ids = [ledger for ledger, _ in ledgers]
        self._starts: list[int] = []
        total = 0
        for _, entries in ledgers:
            self._starts.append(total)
            total += entries

    @property
    def newest(self) -> int:
        """The id of the ledger that takes the next entry; 0 if there is none."""
        return max(self._ids, default=0)

    def place(self, position: Position) -> int | None:
        """Return the number of entries before a position; None for a ledger that does not exist."""
        at = bisect_left(self._ids, position.ledger)
        if at == len(self._ids) or self._ids[at] != position.ledger:
            return None
        return self._starts[at] + position.entry

    def position(self, place: int) -> Position:
        """Return the position of the entry at a place, which has so many entries before it."""
        at = bisect_right(self._starts, place) - 1
        return Position(self._ids[at], place - self._starts[at])


def ledgers_with_entries(stats: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the ids of the ledgers that have entries, with the numbers of these, by Pulsar's internal statistics.

    While the newest ledger is open, its last entry gives its number.
    """
    ledgers = [(int(each["ledgerId"]), int(each["entries"])) for each in stats["ledgers"]]
    if ledgers and not ledgers[-1][1]:
        ledger, _, entry = str(stats.get("lastConfirmedEntry", "-1:-1")).partition(":")
        if int(ledger) == ledgers[-1][0]:
            ledgers[-1] = ledgers[-1][0], int(entry) + 1
    return [(ledger, entries) for ledger, entries in ledgers if entries > 0]


def next_probe(
    low: tuple[int, Position], high: tuple[int, Position], offset: int, ledgers: Ledgers, *, halve: bool
) -> Position | None:
    """Return the position to look at next for `offset`, between two known entries, `low` and `high` (offset and
    position): in the middle with `halve`, else by proportion. None if reading from `low` on is cheaper, because few
    entries lie between, or if a ledger is gone.

    Proportion is right at once if entries are alike; taking turns with the middle bounds the bad cases.
    """
    from_place, to_place = ledgers.place(low[1]), ledgers.place(high[1])
    if from_place is None or to_place is None or to_place - from_place <= NEAR:
        return None
    if halve:
        place = (from_place + to_place) // 2
    else:
        share = (offset - low[0]) / max(high[0] - low[0], 1)
        place = from_place + int((to_place - from_place) * share) - NEAR // 4
    return ledgers.position(min(max(place, from_place + 1), to_place - 1))
