"""The order of answers, with no socket: whatever is ready first, each is written in the order of its request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kop.server.responses import ResponseOrder


def nothing() -> None:
    return


def test_an_answer_with_nothing_before_it_is_written_at_once() -> None:
    order = ResponseOrder()
    assert list(order.add((b"1",), nothing)) == [(b"1",)]


def test_an_answer_waits_for_the_one_before_it() -> None:
    order = ResponseOrder()
    slot = order.reserve(nothing)
    assert list(order.add((b"2",), nothing)) == []
    assert list(order.settle(slot, (b"1",))) == [(b"1",), (b"2",)]


def test_a_request_without_an_answer_holds_its_place_and_writes_nothing() -> None:
    order = ResponseOrder()
    first, second = order.reserve(nothing), order.reserve(nothing)
    assert list(order.settle(second, (b"2",))) == []
    assert list(order.settle(first, None)) == [(b"2",)]
    assert list(order.add(None, nothing)) == []


@given(st.permutations(range(8)))
def test_any_order_of_ends_writes_and_observes_in_the_order_of_requests(ends: list[int]) -> None:
    order = ResponseOrder()
    observed: list[int] = []
    slots = [order.reserve(lambda number=number: observed.append(number)) for number in range(8)]  # type: ignore[misc]
    written = [frame for number in ends for frame in order.settle(slots[number], (b"%d" % number,))]
    assert written == [(b"%d" % number,) for number in range(8)]
    assert observed == list(range(8))


def test_after_clear_nothing_is_written() -> None:
    order = ResponseOrder()
    slot = order.reserve(nothing)
    order.clear()
    assert list(order.settle(slot, (b"1",))) == []
