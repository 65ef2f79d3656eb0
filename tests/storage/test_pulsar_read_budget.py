"""The bound on what readers behind the tails hold together."""

from __future__ import annotations

import asyncio

from kop.storage.pulsar.reading.budget import BudgetShare, ReadBudget


class Pool:
    """A `ReadBudget` of 100 bytes and the names of the readers that it dropped."""

    def __init__(self) -> None:
        self.bound = ReadBudget(100)
        self.dropped: list[str] = []

    async def open(self, name: str, burst: int = 40) -> BudgetShare:
        return await self.bound.share(burst, lambda: self.dropped.append(name))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_burst_counts_until_it_is_known_what_came() -> None:
    pool = Pool()
    first = await pool.open("one")
    second = await pool.open("two")
    assert pool.bound.held == 80
    first.holds(10)
    assert pool.bound.held == 50
    second.end()
    second.end()
    second.holds(99)
    assert pool.bound.held == 10
    first.end()
    assert (pool.bound.held, pool.dropped) == (0, [])


async def test_the_one_that_was_left_longest_goes_first() -> None:
    pool = Pool()
    first, second = await pool.open("one"), await pool.open("two")
    first.idle()
    second.idle()
    first.busy()
    first.idle()
    await pool.open("three")
    assert pool.dropped == ["two"]
    await pool.open("four")
    assert pool.dropped == ["two", "one"]
    assert pool.bound.held == 80


async def test_a_reader_that_holds_more_than_was_thought_sends_idle_ones_away() -> None:
    pool = Pool()
    first, second = await pool.open("one"), await pool.open("two")
    first.idle()
    second.holds(90)
    assert (pool.dropped, pool.bound.held) == (["one"], 90)


async def test_where_all_are_read_from_the_next_one_waits_its_turn() -> None:
    pool = Pool()
    first, second = await pool.open("one"), await pool.open("two")
    third, fourth, given_up = (asyncio.ensure_future(pool.open(name)) for name in ("3", "4", "5"))
    await settle()
    assert not third.done()
    given_up.cancel()
    first.idle()
    await settle()
    assert third.done()
    assert not fourth.done()
    assert pool.dropped == ["one"]
    second.holds(0)
    await settle()
    assert fourth.done()
    assert given_up.cancelled()
    assert pool.bound.held == 80


async def test_a_turn_that_is_given_up_goes_to_the_next() -> None:
    pool = Pool()
    first, _ = await pool.open("one"), await pool.open("two")
    third, fourth = (asyncio.ensure_future(pool.open(name)) for name in ("3", "4"))
    await settle()
    first.end()  # it is the third one's turn
    third.cancel()
    await settle()
    assert third.cancelled()
    assert fourth.done()
    assert pool.bound.held == 80


async def test_one_larger_than_the_bound_is_let_in_alone() -> None:
    pool = Pool()
    assert (await pool.open("large", 1000)).held == 1000
