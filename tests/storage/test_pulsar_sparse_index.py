"""Offset to position: the sparse index, the line of ledgers, and how fast a search ends."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.pulsar_client import Position
from kop.storage.pulsar.offsets.sparse_index import MOST_KEPT, NEAR, Ledgers, SparseIndex, next_probe

P = Position


def marks(*places: tuple[int, Position]) -> SparseIndex:
    index = SparseIndex()
    for offset, position in places:
        index.add(offset, position)
    return index


@pytest.mark.parametrize(
    ("offset", "floor", "above"),
    [
        (0, None, (5, P(1, 0))),
        (4, None, (5, P(1, 0))),
        (5, None, (5, P(1, 0))),
        (6, (5, P(1, 0)), (20, P(1, 9))),
        (20, (5, P(1, 0)), (20, P(1, 9))),
        (21, (20, P(1, 9)), (30, P(2, 0))),
        (30, (20, P(1, 9)), (30, P(2, 0))),
        (99, (30, P(2, 0)), None),
    ],
)
def test_marks_around_an_offset(
    offset: int, floor: tuple[int, Position] | None, above: tuple[int, Position] | None
) -> None:
    index = marks((20, P(1, 9)), (5, P(1, 0)), (30, P(2, 0)))
    assert index.floor(offset) == floor
    assert index.above(offset) == above


def test_a_mark_at_the_same_offset_is_replaced() -> None:
    index = marks((5, P(1, 0)), (5, P(1, 1)))
    assert len(index) == 1
    assert index.floor(6) == (5, P(1, 1))


@pytest.mark.parametrize(("before", "left"), [(0, 3), (5, 3), (6, 2), (30, 1), (31, 0)])
def test_what_retention_took_is_forgotten(before: int, left: int) -> None:
    index = marks((5, P(1, 0)), (20, P(1, 9)), (30, P(2, 0)))
    index.drop_before(before)
    assert len(index) == left
    assert left == 0 or index.floor(99) == (30, P(2, 0))


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=1500, unique=True))
def test_marks_are_bounded_and_ends_stay(offsets: list[int]) -> None:
    index = marks(*((offset, P(1, offset)) for offset in offsets))
    assert len(index) <= MOST_KEPT
    assert index.floor(10_001) == (max(offsets), P(1, max(offsets)))
    assert index.above(-1) == (min(offsets), P(1, min(offsets)))


LEDGERS = [(3, 10), (7, 0), (9, 200), (12, 5)]


@pytest.mark.parametrize(
    ("position", "place"),
    [(P(3, 0), 0), (P(3, 9), 9), (P(9, 0), 10), (P(9, 199), 209), (P(12, 0), 210), (P(4, 0), None), (P(13, 0), None)],
)
def test_the_line_of_ledgers(position: Position, place: int | None) -> None:
    ledgers = Ledgers(LEDGERS)
    assert ledgers.place(position) == place
    if place is not None:
        assert ledgers.position(place) == position


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=8),
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.data(),
)
def test_a_search_ends_near_every_offset(entries: list[int], counts: list[int], data: st.DataObject) -> None:
    """Entries of any sizes, over any ledgers: few probes, and then no more than NEAR entries to read over."""
    ledgers = Ledgers([(ledger * 3, number) for ledger, number in enumerate(entries)])
    lasts, offset = [], -1
    for i in range(sum(entries)):
        offset += counts[i % len(counts)]
        lasts.append(offset)
    offset = data.draw(st.integers(lasts[0] + 1, lasts[-1])) if len(lasts) > 1 else lasts[0] + 1
    known = marks((lasts[0], ledgers.position(0)), (lasts[-1], ledgers.position(len(lasts) - 1)))
    probes, halve = 0, False
    while True:
        low, high = known.floor(offset), known.above(offset)
        assert low is not None
        if high is None:
            break
        position = next_probe(low, high, offset, ledgers, halve=halve)
        if position is None:
            break
        place = ledgers.place(position)
        assert place is not None
        assert low[0] < lasts[place] < high[0], "each probe brings something new"
        known.add(lasts[place], position)
        probes += 1
        halve = not halve
    begin = ledgers.place(low[1])
    assert begin is not None
    assert 0 <= bisect_left(lasts, offset) - begin <= NEAR
    assert probes <= 25
