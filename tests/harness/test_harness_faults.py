"""The order in which faults of a run are performed and undone."""

from __future__ import annotations

import time

import pytest

from conformance.harness.faults import Disturbance, Executor, Fault, nearest

PLAN = [Fault(1, "rate", "t", 20), Fault(5, "kill", "1", 3), Fault(10, "cut", "2", 0), Fault(30, "pause", "1", 8)]


class Recorded(Executor):
    """Writes down what it would break; a fault of the kind `broken` fails to begin."""

    def __init__(self) -> None:
        super().__init__([], overlapping=("rate",), aftermath=100.0)
        self.steps: list[str] = []

    def _begin(self, fault: Fault) -> None:
        self.steps.append(f"{fault.kind} {fault.target}")
        if fault.kind == "broken":
            raise OSError("it is not there")

    def _undo(self, fault: Fault) -> None:
        self.steps.append(f"undo {fault.kind}")


class Time:
    """The system's time; `stop` waits in it, and says from `ends` on that the run ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: float = 1e9) -> None:
        self.now = 500.0
        self._end = self.now + ends
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: self.now)

    def stop(self, seconds: float) -> bool:
        self.now = max(self.now, min(self.now + seconds, self._end))
        return self.now >= self._end


def test_a_fault_is_undone_before_the_next_one_but_for_those_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Recorded()
    executor.run(PLAN, Time(monkeypatch).stop)
    undone = ["undo kill", "cut 2", "undo cut", "undo rate", "pause 1", "undo pause"]
    assert executor.steps == ["rate t", "kill 1", *undone]
    assert executor.disturbances == [
        Disturbance("kill", "1", 505, 608),
        Disturbance("cut", "2", 510, 610),
        Disturbance("rate", "t", 501, 621),
        Disturbance("pause", "1", 530, 638),
    ]
    assert executor.current == "pause 1"
    assert not executor.failures


def test_at_the_end_of_a_run_all_is_undone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, clock = Recorded(), Time(monkeypatch, ends=6)
    executor.run(PLAN, clock.stop)
    assert executor.steps == ["rate t", "kill 1", "undo kill", "undo rate"]
    assert clock.now == 506


def test_a_fault_that_cannot_be_performed_is_told_of_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Recorded()
    executor.run([Fault(1, "broken", "t", 1), PLAN[1]], Time(monkeypatch).stop)
    assert executor.failures == ["broken t: it is not there"]
    assert executor.steps == ["broken t", "undo broken", "kill 1", "undo kill"]


def test_the_nearest_disturbance_is_the_last_one_that_had_begun() -> None:
    early, late = (Disturbance("kill", "1", at, at + 5) for at in (1010.0, 1020.0))
    assert nearest([late, early], 1019.0) == early
    assert nearest([late, early], 1021.0) == late
    assert nearest([late, early], 1000.0) == early
    assert nearest([late], 0.0) is None
    assert nearest([], 1000.0) is None
