"""What the tail cache keeps, drops and counts."""

from __future__ import annotations

from kop.storage.tail_cache import Tail, TailCache


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
