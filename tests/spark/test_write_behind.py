"""Writes in a thread of their own: one after the other, errors to whoever settles."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kop.spark.mesh.write_behind import WriteBehind

PATIENCE = 10.0


@pytest.fixture
def behind() -> Iterator[WriteBehind]:
    made = WriteBehind()
    yield made
    made.close()


def test_a_write_goes_on_meanwhile_and_is_settled_by_who_began_it(behind: WriteBehind) -> None:
    go_on, told = threading.Event(), list[object]()

    def write() -> None:
        assert go_on.wait(PATIENCE)
        told.append("written")

    behind.begin(write, lambda: told.append(threading.current_thread()))
    behind.settle(0.0)
    assert behind.is_busy
    assert told == []
    go_on.set()
    behind.settle()
    assert not behind.is_busy
    assert told == ["written", threading.current_thread()]
    behind.settle()
    assert len(told) == 2, "once"


def test_the_next_write_waits_for_the_one_before(behind: WriteBehind) -> None:
    told = list[str]()
    for name in "ab":
        behind.begin(lambda name=name: told.append(name), lambda name=name: told.append(name.upper()))  # type: ignore[misc]
    behind.settle()
    assert told == ["a", "A", "b", "B"]


def test_an_error_is_raised_once_and_nothing_counts_as_done(behind: WriteBehind) -> None:
    told = list[str]()

    def fail() -> None:
        raise ValueError("no")

    behind.begin(fail, lambda: told.append("done"))
    with pytest.raises(ValueError, match="no"):
        behind.begin(lambda: told.append("not begun"), lambda: None)
    behind.settle()
    assert not behind.is_busy
    assert told == []
