"""Which offsets are committed, and which messages are tried again when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.functions.acks import FIRST_SECONDS, LONGEST_SECONDS, Acks

IN = ("in", 0)
OTHER = ("other", 3)


def taken(acks: Acks, *offsets: int) -> None:
    for offset in offsets:
        acks.taken(IN, offset)


def test_nothing_is_committed_before_something_is_done() -> None:
    acks = Acks(None)
    assert acks.committable() == {}
    taken(acks, 5, 6)
    assert acks.committable() == {}


def test_the_offset_behind_what_is_done_is_committed_once() -> None:
    acks = Acks(None)
    taken(acks, 5, 6)
    acks.done(IN, 5)
    assert acks.committable() == {IN: 6}
    assert acks.committable() == {}
    acks.done(IN, 6)
    assert acks.committable() == {IN: 7}


def test_an_open_message_keeps_the_offset_of_its_partition_alone() -> None:
    acks = Acks(None)
    taken(acks, 5, 6, 9)
    acks.taken(OTHER, 0)
    acks.done(IN, 6)
    acks.done(IN, 9)
    acks.done(OTHER, 0)
    assert acks.committable() == {OTHER: 1}
    acks.done(IN, 5)
    assert acks.committable() == {IN: 10}


def test_offsets_without_messages_are_committed_once_all_before_them_is_done() -> None:
    acks = Acks(None)
    acks.passed(OTHER, 4)
    taken(acks, 5)
    acks.passed(IN, 8)
    assert acks.committable() == {OTHER: 4}
    acks.done(IN, 5)
    assert acks.committable() == {IN: 8}
    acks.passed(IN, 3)
    assert acks.committable() == {}


def test_it_counts_the_messages_behind_the_first_open_one() -> None:
    acks = Acks(None)
    assert acks.ahead(IN) == 0
    taken(acks, 10)
    assert acks.ahead(IN) == 0
    taken(acks, 20, 30, 40)
    acks.done(IN, 20)
    assert acks.ahead(IN) == 3
    acks.done(IN, 10)
    assert acks.ahead(IN) == 1
    acks.done(IN, 30)
    acks.done(IN, 40)
    assert acks.ahead(IN) == 0


def test_a_failed_message_is_due_later_each_time() -> None:
    acks = Acks(None)
    taken(acks, 5)
    waits = []
    now = 1_000.0
    for _ in range(2_000):
        due = acks.failed(IN, 5, now)
        assert due is not None
        waits.append(due - now)
        assert acks.due(now) == []
        assert acks.next_due() == due
        assert acks.due(due) == [(IN, 5)]
        assert acks.next_due() is None
        now = due
    assert waits[:3] == [
        pytest.approx(FIRST_SECONDS),
        pytest.approx(2 * FIRST_SECONDS),
        pytest.approx(4 * FIRST_SECONDS),
    ]
    assert waits[-1] == pytest.approx(LONGEST_SECONDS)
    assert acks.committable() == {}


def test_a_message_is_given_up_after_its_retries() -> None:
    acks = Acks(2)
    taken(acks, 5)
    assert acks.failed(IN, 5, 0) is not None
    assert acks.failed(IN, 5, 1) is not None
    assert acks.failed(IN, 5, 2) is None
    assert acks.next_due() is None
    acks.done(IN, 5)
    assert acks.committable() == {IN: 6}
    assert Acks(0).failed(IN, 5, 0) is None


def test_a_message_that_fails_twice_at_once_is_due_once() -> None:
    acks = Acks(None)
    taken(acks, 5)
    for _ in range(20):
        acks.failed(IN, 5, 0)
    assert acks.due(LONGEST_SECONDS + 1) == [(IN, 5)]
    assert acks.next_due() is None


def test_a_message_that_is_done_meanwhile_is_not_due() -> None:
    acks = Acks(None)
    taken(acks, 5, 6)
    acks.failed(IN, 5, 0)
    acks.failed(IN, 6, 0)
    acks.done(IN, 5)
    acks.done(IN, 5)
    assert acks.due(LONGEST_SECONDS) == [(IN, 6)]
    assert acks.committable() == {IN: 6}


def test_what_fails_again_after_it_was_done_begins_anew() -> None:
    acks = Acks(1)
    taken(acks, 5, 6)
    acks.failed(IN, 5, 0)
    acks.done(IN, 5)
    assert acks.failed(IN, 6, 0) is not None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30)), max_size=60), st.randoms(use_true_random=False))
def test_what_is_committed_is_the_first_offset_that_is_not_done(steps: list[tuple[int, int]], random: object) -> None:
    """The same as a plain model: sets of what was taken and of what is done."""
    acks = Acks(None)
    open_, next_, order = set[int](), 0, list[int]()
    committed: dict[tuple[str, int], int] = {}
    for gap, pick in steps:
        offset = next_ + gap - 1
        acks.taken(IN, offset)
        open_.add(offset)
        order.append(offset)
        next_ = offset + 1
        if pick < len(order):
            acks.done(IN, order[pick])
            open_.discard(order[pick])
        committed |= acks.committable()
        first = min(open_, default=next_)
        assert committed.get(IN, order[0]) == first
        assert acks.ahead(IN) == len([taken for taken in order if open_ and taken > first])


def test_what_waits_for_a_call_is_not_reached() -> None:
    acks = Acks(None)
    taken(acks, 0)
    acks.failed(IN, 0, 0.0)
    for offset in (1, 2):
        acks.waits(IN, offset)
        acks.taken(IN, offset)
    taken(acks, 3)
    assert acks.reached() == {IN: 0}
    assert acks.due(100.0) == [(IN, 0)]
    assert acks.reached() == {IN: 0}, "it is only being called again"
    acks.failed(IN, 0, 100.0)
    assert acks.reached() == {IN: 0}
    acks.called(IN, 0)
    assert acks.reached() == {IN: 1}
    acks.done(IN, 1)
    assert acks.reached() == {IN: 2}
    acks.called(IN, 2)
    assert acks.reached() == {IN: 4}
    assert acks.positions() == {IN: 0}
