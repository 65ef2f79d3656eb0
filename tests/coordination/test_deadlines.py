"""One timer for many deadlines, in simulated time."""

from __future__ import annotations

import asyncio

import pytest
from support.waiting import until

from kop.coordination.deadlines import MOST_VOID, Deadlines


class Clock:
    """Simulated time, and what was due when."""

    def __init__(self) -> None:
        self.now = 0
        self.due: list[tuple[str, int]] = []
        self.deadlines = Deadlines[str](lambda: self.now, lambda item, now: self.due.append((item, now)))

    def at(self, now: int) -> list[tuple[str, int]]:
        self.now, self.due = now, []
        self.deadlines.tick()
        return self.due


async def test_each_item_is_due_once_at_the_earliest_of_its_deadlines() -> None:
    clock = Clock()
    for item, deadline in (("a", 300_000), ("b", 200_000), ("a", 100_000), ("a", 400_000)):
        clock.deadlines.arm(item, deadline)
    assert clock.at(99_999) == []
    assert clock.at(250_000) == [("a", 250_000), ("b", 250_000)]
    assert clock.at(1_000_000) == []
    assert len(clock.deadlines) == 0
    clock.deadlines.stop()


async def test_a_disarmed_item_is_not_due_until_it_is_armed_again() -> None:
    clock = Clock()
    clock.deadlines.arm("a", 100_000)
    clock.deadlines.disarm("a")
    clock.deadlines.disarm("never armed")
    assert clock.at(200_000) == []
    clock.deadlines.arm("a", 300_000)
    assert clock.at(300_000) == [("a", 300_000)]
    clock.deadlines.stop()


async def test_deadlines_that_are_disarmed_do_not_pile_up() -> None:
    clock = Clock()
    armed = [f"armed {number}" for number in range(100)]
    for number, item in enumerate(armed):
        clock.deadlines.arm(item, 1_000_000 + number)
    for number in range(20_000):
        clock.deadlines.arm("a", 2_000_000 + number)
        clock.deadlines.disarm("a")
        assert len(clock.deadlines) <= 2 * len(armed) + MOST_VOID + 1
    assert clock.at(3_000_000) == [(item, 3_000_000) for item in armed]
    assert len(clock.deadlines) == 0
    clock.deadlines.stop()


async def test_a_fault_in_one_item_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    turns = []

    def due(item: str, now: int) -> None:
        turns.append(item)
        if item == "bad":
            raise ValueError

    deadlines = Deadlines[str](lambda: 10, due)
    for item, deadline in (("bad", 1), ("good", 2)):
        deadlines.arm(item, deadline)
    deadlines.tick()
    assert turns == ["bad", "good"]
    assert "what was due for 'bad' failed: ValueError()" in caplog.text
    deadlines.stop()


async def test_what_could_not_do_what_was_due_is_due_again_a_second_later() -> None:
    now, fails, turns = 10, True, []

    def due(item: str, now: int) -> None:
        turns.append(now)
        if fails:
            raise ValueError

    deadlines = Deadlines[str](lambda: now, due)
    deadlines.arm("a", 1)
    for now in (10, 1009, 1010, 2010):
        fails = now < 1010
        deadlines.tick()
    assert turns == [10, 1010]
    deadlines.stop()


async def test_the_timer_comes_for_the_earliest_deadline_and_no_more_after_the_stop() -> None:
    loop = asyncio.get_running_loop()
    due: list[str] = []
    deadlines = Deadlines[str](lambda: int(loop.time() * 1000), lambda item, now: due.append(item))
    now = int(loop.time() * 1000)
    deadlines.arm("late", now + 60_000_000)
    deadlines.arm("soon", now + 5)
    await until(lambda: due == ["soon"])
    deadlines.stop()
    deadlines.arm("never", now)
    await asyncio.sleep(0.02)  # nothing can be waited for: nothing shall come
    assert due == ["soon"]
