"""Whose password is hashed next: a stranger's guesses do not make others wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kop.security.login_turns import LoginTurns


async def served(asked: Sequence[tuple[str, str]], *, leave: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """Return those who ask while the only place is taken, in the order in which they get it; some `leave` before."""
    turns, order = LoginTurns(1), []

    async def wait(who: tuple[str, str]) -> None:
        async with turns.turn(*who):
            order.append(who)
            await asyncio.sleep(0)  # others may try to come in

    async with turns.turn("192.0.2.99", "first"):
        tasks = [(who, asyncio.create_task(wait(who))) for who in asked]
        await asyncio.sleep(0)  # all of them wait
        for who, task in tasks:
            if who in leave:
                task.cancel()
        await asyncio.gather(*(task for who, task in tasks if who in leave), return_exceptions=True)
    await asyncio.gather(*(task for who, task in tasks if who not in leave))
    async with asyncio.timeout(5), turns.turn("192.0.2.98", "last"):
        pass  # the place is free again
    return order


GUESSES = [("192.0.2.1", f"guess-{number}") for number in range(120)]


@pytest.mark.parametrize(
    ("guesses", "honest", "before"),
    [
        (GUESSES, ("192.0.2.2", "alice"), 1),
        ([("192.0.2.1", "admin")] * 120, ("192.0.2.1", "alice"), 1),
        ([(f"2001:db8::{number:x}", "admin") for number in range(1, 121)], ("2001:db8:1::1", "alice"), 1),
        ([("::ffff:192.0.2.1", "admin")] * 120, ("::ffff:192.0.2.2", "alice"), 1),
        ([(f"192.0.2.{number}", "admin") for number in range(10)] * 12, ("192.0.2.200", "alice"), 10),
        (GUESSES[:5], ("192.0.2.1", "alice"), 5),
    ],
)
def test_each_address_and_each_name_has_its_turn(
    guesses: list[tuple[str, str]], honest: tuple[str, str], before: int
) -> None:
    order = asyncio.run(served([*guesses, honest]))
    assert order.index(honest) == before
    assert sorted(order) == sorted([*guesses, honest])


def test_who_leaves_is_passed_over() -> None:
    honest = ("192.0.2.1", "alice")
    order = asyncio.run(served([*GUESSES, honest], leave=GUESSES[:-1]))
    assert order == [GUESSES[-1], honest]


def test_a_place_that_is_given_to_somebody_who_leaves_goes_on() -> None:
    async def main() -> bool:
        turns = LoginTurns(1)
        entered = asyncio.Event()

        async def wait(name: str) -> None:
            async with turns.turn("192.0.2.1", name):
                entered.set()

        async with turns.turn("192.0.2.1", "first"):
            leaving, staying = asyncio.create_task(wait("leaves")), asyncio.create_task(wait("stays"))
            await asyncio.sleep(0)  # both wait
        leaving.cancel()  # it was just given the place
        await asyncio.gather(leaving, return_exceptions=True)
        await asyncio.wait_for(staying, 5)
        return leaving.cancelled() and entered.is_set()

    assert asyncio.run(main())
