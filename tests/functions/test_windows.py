"""Windows, with simulated time: what is in them, when they are due, and what a later instance makes of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from kop.client.offsets import TopicPartition
from kop.functions.spec import WindowSpec
from kop.functions.windows import Element, Fate, Windows

P0, P1, P2 = ("in", 0), ("in", 1), ("in", 2)


def count(length: int, slide: int | None = None, **fields: Any) -> WindowSpec:
    return WindowSpec(length_count=length, sliding_count=slide or length, **fields)


def time(length: int, slide: int | None = None, **fields: Any) -> WindowSpec:
    return WindowSpec(length_ms=length, sliding_ms=slide or length, **fields)


def of_events(lag: int = 0, interval: int = 1) -> dict[str, Any]:
    return {"timestamp_extractor": "f.time", "max_lag_ms": lag, "watermark_ms": interval}


def element(offset: int, at: int = 0, partition: TopicPartition = P0) -> Element:
    return Element(at, partition, offset, f"{partition[1]}/{offset}", None)


def due(windows: Windows, now: int) -> list[list[int]]:
    """The offsets of all windows that are due."""
    fired = []
    while window := windows.due(now):
        fired.append([element.offset for element in window])
        windows.fired()
    return fired


@pytest.mark.parametrize(
    ("length", "slide", "expected"),
    [
        (3, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (4, 2, [[0, 1], [0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]),
        (2, 4, [[2, 3], [6, 7]]),
        (1, 1, [[n] for n in range(10)]),
        (20, 20, []),
    ],
)
def test_windows_by_count(length: int, slide: int, expected: list[list[int]]) -> None:
    windows = Windows(count(length, slide), {P0: 0}, None)
    fired = []
    for offset in range(10):
        assert windows.add(element(offset), 0) is Fate.KEPT
        fired += due(windows, 0)
    assert fired == expected
    assert windows.next_due(0) is None


@pytest.mark.parametrize(
    ("length", "slide", "reads", "expected"),
    [
        (10, 10, {0: 3, 1: 9, 2: 10, 3: 35}, {10: [[0, 1]], 20: [[2]], 40: [[3]]}),
        (10, 5, {0: 3, 1: 9, 2: 10}, {5: [[0]], 10: [[0, 1]], 15: [[1, 2]], 20: [[2]]}),
        (5, 10, {0: 3, 1: 7, 2: 15}, {10: [[1]], 20: [[2]]}),
    ],
)
def test_windows_by_the_time_of_reading(
    length: int, slide: int, reads: dict[int, int], expected: dict[int, list[list[int]]]
) -> None:
    windows = Windows(time(length, slide), {P0: 0}, None)
    fired = {}
    for now in range(50):
        for offset, read_at in reads.items():
            if read_at == now:
                windows.add(element(offset, now), now)
        next_due = windows.next_due(now)
        assert next_due is None or next_due >= now
        if some := due(windows, now):
            assert next_due == now
            fired[now] = some
    assert fired == expected


def test_windows_by_the_time_of_events() -> None:
    """A window is due once the watermark, at most once an interval, has reached its end."""
    windows = Windows(time(10, **of_events(lag=5, interval=100)), {P0: 0}, None)
    for offset, at in enumerate([1, 12, 3, 14, 24]):
        assert windows.add(element(offset, at), 1000 + offset) is Fate.KEPT
    assert due(windows, 1050) == []
    assert windows.next_due(1050) == 1100
    assert due(windows, 1100) == [[0, 2]]
    assert windows.add(element(5, 9), 1101) is Fate.LATE
    assert windows.add(element(6, 10), 1101) is Fate.KEPT
    windows.add(element(7, 25), 1102)
    assert due(windows, 1199) == []
    assert due(windows, 1200) == [[6, 1, 3]]
    assert due(windows, 9999) == []
    assert windows.next_due(9999) is None


def test_a_message_is_late_if_all_its_windows_are_over() -> None:
    windows = Windows(time(10, 5, **of_events()), {P0: 0}, None)
    windows.add(element(0, 12), 0)
    assert due(windows, 10) == []
    assert windows.add(element(1, 4), 11) is Fate.LATE
    assert windows.add(element(2, 5), 11) is Fate.KEPT
    windows.add(element(3, 20), 12)
    assert due(windows, 20) == [[2, 0], [0]]


def test_windows_by_count_of_events_are_in_the_order_of_time() -> None:
    windows = Windows(count(2, **of_events(lag=3)), {P0: 0, P1: 0}, None)
    for offset, at in enumerate([5, 4, 9, 8, 12]):
        windows.add(element(offset, at), 0)
    assert due(windows, 5) == [[1, 0], [3, 2]]
    assert windows.add(element(5, 8), 6) is Fate.LATE
    assert windows.add(element(6, 11), 6) is Fate.KEPT
    windows.add(element(7, 30), 7)
    assert due(windows, 10) == [[6, 4]]


def test_the_watermark_is_that_of_the_partition_that_is_furthest_behind() -> None:
    windows = Windows(time(10, **of_events(interval=100)), {P0: 0, P1: 0}, None)
    windows.add(element(0, 25), 0)
    windows.add(element(0, 5, P1), 0)
    assert due(windows, 100) == []
    windows.add(element(1, 26), 700)
    assert due(windows, 999) == []
    assert due(windows, 1100) == [[0]], "the other partition is idle"
    assert windows.next_due(1100) == 1200
    assert windows.next_due(1900) is None


# -- another instance goes on


def moved(windows: Windows, spec: WindowSpec, log: dict[TopicPartition, list[int]], kept: set[Any]) -> Windows:
    mark = windows.mark()
    starts = {p: min((o for q, o in kept if q == p), default=len(times)) for p, times in log.items()}
    return Windows(spec, starts, mark)


def test_a_later_instance_takes_nothing_new_until_what_was_kept_is_there() -> None:
    spec = count(4, 2)
    first = Windows(spec, {P0: 0, P1: 0}, None)
    for made in [element(0), element(0, 0, P1), element(1), element(1, 0, P1)]:
        first.add(made, 0)
    assert due(first, 0) == [[0, 0, 1, 1]]
    second = Windows(spec, {P0: 1, P1: 1}, first.mark())
    assert not second.waits(P0)
    second.add(element(1), 0)
    assert second.waits(P0)
    assert not second.waits(P1)
    second.passed(P1, 9)
    assert not second.waits(P0)
    second.add(element(2), 0)
    assert due(second, 0) == []
    second.add(element(3), 0)
    assert due(second, 0) == [[1, 2, 3]], "the one that is gone is left out"


def test_a_late_message_is_told_once() -> None:
    spec = time(10, **of_events())
    first = Windows(spec, {P0: 0}, None)
    for offset, at in enumerate([5, 15]):
        first.add(element(offset, at), 0)
    assert due(first, 10) == [[0]]
    assert first.mark() is not None
    assert first.mark() is None
    assert first.add(element(2, 7), 11) is Fate.LATE
    second = Windows(spec, {P0: 1}, first.mark())
    assert [second.add(element(offset, at), 20) for offset, at in ((1, 15), (2, 7), (3, 8))] == [
        Fate.KEPT,
        Fate.OVER,
        Fate.LATE,
    ]


class Run:
    """Instances one after the other that read a log; each dies between two batches, or in the middle of one."""

    def __init__(self, spec: WindowSpec, log: dict[TopicPartition, list[int]], seed: int, crashes: float) -> None:
        self.chance = random.Random(seed)
        self.spec, self.log, self.crashes = spec, log, crashes
        self.now = 1_000
        self.windows: list[list[tuple[TopicPartition, int]]] = []
        """What has come out, committed."""
        self.committed = dict.fromkeys(log, 0)
        self.mark: bytes | None = None

    def run(self) -> None:
        while not self._instance():
            pass

    def _instance(self) -> bool:
        windows = Windows(self.spec, self.committed, self.mark)
        positions, open_ = dict(self.committed), dict[tuple[TopicPartition, int], None]()
        end = False
        while not end:
            out: list[list[tuple[TopicPartition, int]]] = []
            for _ in range(self.chance.randrange(1, 4)):
                self.now += self.chance.randrange(8)
                left = [p for p in self.log if positions[p] < len(self.log[p]) and not windows.waits(p)]
                if left:
                    self._take(windows, self.chance.choice(left), positions, open_, out)
            if all(positions[p] == len(self.log[p]) for p in self.log):
                end = True
                for _ in range(40):
                    self.now += 100
                    self._fire(windows, open_, out)
            if self.chance.random() < self.crashes:
                return False
            mark = windows.mark()
            self.mark = mark or self.mark
            self.windows += out
            for partition, position in positions.items():
                self.committed[partition] = min((o for p, o in open_ if p == partition), default=position)
        return True

    def _take(self, windows: Windows, partition: Any, positions: Any, open_: Any, out: Any) -> None:
        for _ in range(self.chance.randrange(1, 6)):
            offset = positions[partition]
            if offset == len(self.log[partition]) or windows.waits(partition):
                return
            positions[partition] += 1
            at = self.log[partition][offset] if self.spec.timestamp_extractor else self.now
            made = element(offset, at, partition)
            if windows.add(made, self.now) is Fate.KEPT:
                open_[partition, offset] = None
            self._fire(windows, open_, out)

    def _fire(self, windows: Windows, open_: Any, out: Any) -> None:
        while window := windows.due(self.now):
            out.append([(element.partition, element.offset) for element in window])
            self._forget(windows.fired(), open_)
        self._forget(windows.dropped(), open_)

    @staticmethod
    def _forget(elements: Iterable[Element], open_: Any) -> None:
        for over in elements:
            del open_[over.partition, over.offset]


def places(windows: Sequence[Sequence[tuple[TopicPartition, int]]]) -> Counter[tuple[TopicPartition, int]]:
    return Counter(place for window in windows for place in window)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("length", "slide"), [(5, 5), (6, 2), (3, 7), (7, 3)])
def test_windows_by_count_outlive_instances(length: int, slide: int, seed: int) -> None:
    log = {P0: [0] * 100}
    run = Run(count(length, slide), log, seed, 0.3)
    run.run()
    ends = range(slide, 101, slide)
    assert run.windows == [[(P0, offset) for offset in range(max(0, end - length), end)] for end in ends]


@pytest.mark.parametrize("seed", range(3))
def test_windows_by_count_over_partitions_outlive_instances(seed: int) -> None:
    log = {P0: [0] * 60, P1: [0] * 33, P2: [0] * 27}
    run = Run(count(6, 2), log, seed, 0.3)
    run.run()
    assert len(run.windows) == 60
    for before, after in zip(run.windows[2:], run.windows[3:], strict=False):
        assert before[2:] == after[:4]
    assert places([window[-2:] for window in run.windows]) == Counter((p, o) for p in log for o in range(len(log[p])))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("length", "slide"), [(20, 20), (20, 10), (30, 10)])
def test_windows_by_the_time_of_reading_outlive_instances(length: int, slide: int, seed: int) -> None:
    """Each message is in as many windows as without a crash."""
    log = {P0: [0] * 60, P1: [0] * 40}
    run = Run(time(length, slide), log, seed, 0.3)
    run.run()
    assert places(run.windows) == {(p, o): length // slide for p in log for o in range(len(log[p]))}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("length", "slide"), [(20, 20), (20, 10), (10, 20)])
def test_windows_by_the_time_of_events_outlive_instances(length: int, slide: int, seed: int) -> None:
    chance = random.Random(seed)
    log = {p: [max(0, n * 3 + chance.randrange(-20, 20)) for n in range(60)] + [100_000] for p in (P0, P1)}
    run = Run(time(length, slide, **of_events(lag=1_000, interval=20)), log, seed, 0.3)
    run.run()
    times = sorted((at, p, o) for p in log for o, at in enumerate(log[p]))
    expected = [[(p, o) for at, p, o in times if end - length <= at < end] for end in range(slide, 300 + length, slide)]
    assert run.windows == [window for window in expected if window]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("length", "slide"), [(4, 4), (6, 2), (2, 5)])
def test_windows_by_count_of_events_outlive_instances(length: int, slide: int, seed: int) -> None:
    chance = random.Random(seed)
    log = {p: [n * 3 + chance.randrange(0, 40) for n in range(60)] + [100_000] for p in (P0, P1)}
    run = Run(count(length, slide, **of_events(lag=1_000, interval=20)), log, seed, 0.3)
    run.run()
    times = [(p, o) for _, p, o in sorted((at, p, o) for p in log for o, at in enumerate(log[p])) if o < 60]
    assert run.windows == [times[max(0, end - length) : end] for end in range(slide, len(times) + 1, slide)]
