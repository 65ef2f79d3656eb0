"""Writes in a thread of their own: one after the other, errors to whoever settles."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kop.errors import InternalError
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


def test_two_are_under_way_in_order_and_the_third_waits_for_the_first(behind: WriteBehind) -> None:
    go_on, told = threading.Event(), list[str]()

    def write(name: str) -> None:
        assert go_on.wait(PATIENCE)
        told.append(name)

    behind.begin(lambda: write("a"), lambda: told.append("A"))
    behind.begin(lambda: write("b"), lambda: told.append("B"))
    assert told == []
    go_on.set()
    behind.begin(lambda: write("c"), lambda: told.append("C"))
    assert told[:1] == ["a"]
    assert "A" in told
    behind.settle()
    assert [name for name in told if name.islower()] == ["a", "b", "c"]
    assert [name for name in told if name.isupper()] == ["A", "B", "C"]


def test_an_error_is_raised_once_and_nothing_counts_as_done(behind: WriteBehind) -> None:
    told = list[str]()

    def fail() -> None:
        raise ValueError("no")

    behind.begin(fail, lambda: told.append("done"))
    behind.begin(lambda: told.append("written behind it"), lambda: told.append("done"))
    with pytest.raises(ValueError, match="no"):
        behind.settle()
    behind.settle()
    assert not behind.is_busy
    behind.begin(lambda: told.append("written later"), lambda: told.append("done"))
    with pytest.raises(InternalError, match="behind one that has failed"):
        behind.settle()
    assert told == []
