"""Columns of records: slices, cuts by offset, and rows that are made once, if somebody looks."""

from __future__ import annotations

import pytest

from kop.client.record_columns import RecordColumns, StoredRecord, made_once

ROWS: list[StoredRecord] = [(offset, 5, None, b"%d" % offset, ()) for offset in (3, 4, 8, 9)]


def columns() -> tuple[RecordColumns, list[int]]:
    """Columns of ROWS, and a list that gets an item each time that rows are made."""
    made: list[int] = []

    def rows() -> list[StoredRecord]:
        made.append(len(made))
        return ROWS

    return RecordColumns([3, 4, 8, 9], [b"3", b"4", b"8", b"9"], made_once(rows)), made


def test_rows_are_made_once_and_only_if_somebody_looks() -> None:
    some, made = columns()
    assert (len(some), some[1:3].values, some.before(8).offsets, some.since(8).offsets) == (
        4, [b"4", b"8"], [3, 4], [8, 9],
    )  # fmt: skip
    assert not made
    assert [*some] == ROWS
    assert [*some[1:]] == ROWS[1:]
    assert made == [0]


def test_slices_of_slices_and_single_rows() -> None:
    some, _ = columns()
    assert some[1:][1:][0] == some[2] == ROWS[2]
    assert some[1:3][-1] == ROWS[2]
    assert [*some[9:]] == []
    with pytest.raises(IndexError):
        some[1:3][2]


@pytest.mark.parametrize(("offset", "before"), [(0, 0), (3, 0), (5, 2), (9, 3), (10, 4)])
def test_they_are_cut_at_an_offset(offset: int, before: int) -> None:
    some, _ = columns()
    assert [*some.before(offset)] == ROWS[:before]
    assert [*some.since(offset)] == ROWS[before:]


def test_rows_become_columns() -> None:
    some = RecordColumns.of(ROWS)
    assert (some.offsets, some.values, [*some]) == ([3, 4, 8, 9], [b"3", b"4", b"8", b"9"], ROWS)
    assert RecordColumns.of(some) is some
