"""The order of answers, with no socket: whatever is ready first, each is written in the order of its request."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kop.handlers.api import Answer
from kop.server.responses import ResponseOrder


def kept(order: ResponseOrder, count: int) -> list[Answer]:
    answers = [Answer() for _ in range(count)]
    for answer in answers:
        order.append(answer)
    return answers


def test_an_answer_waits_for_the_one_before_it() -> None:
    order = ResponseOrder()
    first, second = kept(order, 2)
    second.give((b"2",))
    assert order.take_ready() == []
    first.give((b"1",))
    assert order.take_ready() == [first, second]
    assert not order


def test_a_request_without_an_answer_holds_its_place() -> None:
    order = ResponseOrder()
    first, second = kept(order, 2)
    second.give((b"2",))
    assert order.take_ready() == []
    first.give(None)
    assert [answer.frame for answer in order.take_ready()] == [None, (b"2",)]


@given(st.permutations(range(8)))
def test_any_order_of_ends_gives_the_order_of_requests(ends: list[int]) -> None:
    order = ResponseOrder()
    answers = kept(order, 8)
    taken: list[Answer] = []
    for number in ends:
        answers[number].give((b"%d" % number,))
        taken += order.take_ready()
    assert taken == answers


async def test_whoever_takes_the_answers_is_told_until_they_are_abandoned() -> None:
    class Taker:
        told = 0

        def answered(self, answer: Answer) -> None:
            self.told += 1

    order, taker = ResponseOrder(), Taker()
    first, second, third = kept(order, 3)
    for answer in (first, second, third):
        answer.taker = taker
    third.waiting = asyncio.get_running_loop().create_future()
    first.give((b"1",))
    order.abandon()
    second.give((b"2",))
    assert taker.told == 1
    assert third.waiting.cancelled()
    assert order.take_ready() == []
