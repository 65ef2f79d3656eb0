"""What the tail cache keeps, drops and counts."""

from __future__ import annotations

import pytest

from kop.storage.tail_cache import Tail, TailCache, reads_bytes


def test_dropped_batches_leave_nothing_behind_in_a_cache_with_room() -> None:
    """Compaction and deletion drop batches of a log; its queue must not remember them for ever."""
    cache, tail, other = TailCache(64 << 20), Tail(), Tail()
    cache.push(other, 0, 0, b"kept")
    size = cache.size
    for i in range(10_000):
        cache.push(tail, i, i, b"x")
        if i % 100 == 99:
            cache.drop(tail)
    assert cache.size == size
    assert cache.places < 300
    assert other.get(0, 100, True) == ([b"kept"], 4)


def test_the_oldest_batch_goes_first_after_some_were_dropped() -> None:
    cache, first, second = TailCache(200 * 201), Tail(), Tail()
    for i in range(100):
        cache.push(first, i, i, b"x")
        cache.push(second, i, i, b"y")
    cache.drop(first, 80)
    assert first.get(80, 1000, True) == ([b"x"] * 20, 20)
    for i in range(100, 190):
        cache.push(second, i, i, b"y")
    # 80 places were free, so the ten oldest went: all of the second, whose first 80 are older than the rest.
    assert first.holds(80)
    assert (second.holds(9), second.holds(10)) == (False, True)
    assert cache.size == 200 * 201
    for i in range(190, 280):
        cache.push(second, i, i, b"y")
    assert not first.holds(99) or first.start > 80
    assert cache.size == 200 * 201


def test_what_others_hold_is_taken_off_its_bytes_up_to_half_of_them() -> None:
    cache, tail = TailCache(100 * 201), Tail()
    for i in range(100):
        cache.push(tail, i, i, b"x")
    cache.leave("reads", 30 * 201)
    assert (tail.start, cache.size) == (30, 70 * 201)
    cache.leave("open batches", 10 * 201)
    assert tail.start == 40
    cache.leave("reads", 1 << 40)
    assert (tail.start, cache.size) == (50, 50 * 201)
    cache.leave("reads", 0)
    for i in range(100, 150):
        cache.push(tail, i, i, b"x")
    assert (tail.start, cache.size) == (60, 90 * 201)


def test_versions_of_schemas_are_kept_as_long_as_their_batches() -> None:
    cache, tail = TailCache(6 * 201), Tail()
    for i, schema in enumerate((-1, 0, 0, 1, -1, 1)):
        cache.push(tail, i, i, b"x", schema)
    assert tail.schemas_between(0, 6) == [(1, 0), (3, 1), (4, -1), (5, 1)]
    assert tail.schemas_between(2, 4) == [(1, 0), (3, 1)]
    for i in range(6, 9):
        cache.push(tail, i, i, b"x")
    assert tail.start == 3
    assert tail.schemas == [(3, 1), (4, -1), (5, 1), (6, -1)]
    cache.drop(tail)
    cache.push(tail, 2, 2, b"x")
    assert tail.schemas == []


@pytest.mark.parametrize(
    ("cache", "reads"), [(0, 64), (64, 64), (256, 64), (400, 100), (1024, 256), (1 << 20, 256)], ids=str
)
def test_reads_have_a_quarter_of_it(cache: int, reads: int) -> None:
    assert reads_bytes(cache << 20) == reads << 20
