"""Messages are divided around the record at which a process has ended."""

from __future__ import annotations

import pytest

from kop.functions.poison_record import PoisonRecord, divided
from kop.functions.reading import Taken

PLACE = ("in", 0)


def records(*offsets: int) -> list[tuple[int, bytes]]:
    return [(offset, b"x") for offset in offsets]


@pytest.mark.parametrize(
    ("partition", "offsets", "place"),
    [
        (PLACE, (3, 4, 7), 2),
        (PLACE, (7, 9), 0),
        (PLACE, (8, 9), None),
        (PLACE, (5, 6, 8), None),
        (PLACE, (), None),
        (("in", 1), (7,), None),
    ],
)
def test_the_record_is_known_by_its_offset(
    partition: tuple[str, int], offsets: tuple[int, ...], place: int | None
) -> None:
    assert PoisonRecord(PLACE, 7).place_in(Taken(partition, records(*offsets), 10)) == place


def test_each_part_ends_where_the_next_one_begins() -> None:
    taken = Taken(PLACE, records(3, 4, 7), 10)
    assert divided(taken, 2) == (Taken(PLACE, records(3, 4), 7), Taken(PLACE, records(7), 10))
    assert divided(taken, 3) == (taken, None)
