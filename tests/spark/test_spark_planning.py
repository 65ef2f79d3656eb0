"""How ranges are cut into tasks, and how a limit is shared among partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kop.spark.planning import OffsetRange, count_new, limit, limit_bytes, split

SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=20)


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", None, partition, 100, 100 + size) for partition, size in enumerate(sizes)]


def bounds(pieces: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(r.partition, r.start, r.end) for r in pieces]


def test_a_partition_is_a_task_and_an_empty_one_is_none() -> None:
    assert bounds(split(ranges(5, 0, 3), None, None)) == [(0, 100, 105), (2, 100, 103)]


def test_a_task_has_no_more_records_than_it_may() -> None:
    assert bounds(split(ranges(50), None, 20)) == [(0, 100, 116), (0, 116, 133), (0, 133, 150)]
    assert len(split(ranges(100, 50), 3, 20)) == 8


def test_there_are_as_many_tasks_as_are_wanted_and_large_partitions_have_more_of_them() -> None:
    pieces = split(ranges(90, 10), 10, None)
    assert len(pieces) == 10
    assert [sum(r.partition == p for r in pieces) for p in (0, 1)] == [9, 1]
    assert len(split(ranges(2, 1), 8, None)) == 3


@given(SIZES, st.integers(0, 50), st.integers(0, 100))
def test_every_offset_is_in_one_task_and_the_tasks_are_as_asked(sizes: list[int], least: int, most: int) -> None:
    whole = ranges(*sizes)
    pieces = split(whole, least or None, most or None)
    offsets = [(r.partition, offset) for r in pieces for offset in range(r.start, r.end)]
    assert offsets == [(r.partition, offset) for r in whole for offset in range(r.start, r.end)]
    assert all(r.size for r in pieces)
    assert len(pieces) >= min(least, sum(sizes))
    assert not most or max((r.size for r in pieces), default=0) <= most


def test_a_limit_is_shared_by_what_is_new() -> None:
    start, latest = {("t", 0): 0, ("t", 1): 10}, {("t", 0): 300, ("t", 1): 110}
    assert limit(start, latest, 40) == {("t", 0): 30, ("t", 1): 20}
    assert limit(start, latest, 400) == latest
    assert limit(start, latest, 1) == {("t", 0): 1, ("t", 1): 11}, "as Spark's Kafka source has it"


@given(SIZES, st.integers(1, 500))
def test_a_limited_batch_is_as_large_as_it_may_be(sizes: list[int], most: int) -> None:
    start = {("t", partition): 7 for partition in range(len(sizes))}
    latest = {("t", partition): 7 + size for partition, size in enumerate(sizes)}
    end = limit(start, latest, most)
    assert count_new(start, end) == min(max(most, sum(size > 0 for size in sizes)), sum(sizes))
    assert all(end[p] > start[p] for p in latest if latest[p] > start[p]), "none waits for the others"
    assert all(start[p] <= end[p] <= latest[p] for p in latest)


def test_a_partition_with_one_record_does_not_wait_for_a_long_one() -> None:
    start, latest = {("t", 0): 0, ("t", 1): 10}, {("t", 0): 1_000_000, ("t", 1): 11}
    assert limit(start, latest, 1000) == {("t", 0): 999, ("t", 1): 11}
    assert limit_bytes(start, latest, {("t", 0): 100.0, ("t", 1): 100.0}, 100_000) == {("t", 0): 999, ("t", 1): 11}


def test_a_log_that_got_shorter_takes_no_share() -> None:
    assert limit({("t", 0): 50, ("t", 1): 0}, {("t", 0): 4, ("t", 1): 100}, 10) == {("t", 0): 4, ("t", 1): 10}
