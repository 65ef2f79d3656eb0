"""The bound on what readers behind the tails hold together."""

from __future__ import annotations

import asyncio

import pytest
from storage.batches import records
from storage.fake_pulsar_client import Broker, FakeEngine
from support.waiting import SECONDS, until

from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading.budget import BudgetShare, ReadBudget


class Pool:
    """A `ReadBudget` of 100 bytes and the names of the readers that it dropped."""

    def __init__(self, slow_seconds: float = SECONDS) -> None:
        self.bound = ReadBudget(100, slow_seconds)
        self.dropped: list[str] = []

    async def open(self, name: str, burst: int = 40) -> BudgetShare:
        share = BudgetShare(self.bound, lambda: self.dropped.append(name))
        await share.take(burst)
        return share


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


async def test_a_reader_that_is_closed_while_it_waits_takes_no_room() -> None:
    pool = Pool()
    first, _ = await pool.open("one"), await pool.open("two")
    closed = BudgetShare(pool.bound, lambda: None)
    third, fourth = asyncio.ensure_future(closed.take(40)), asyncio.ensure_future(pool.open("4"))
    await settle()
    closed.end()
    first.end()
    await third
    await fourth
    assert pool.bound.held == 80


async def test_readers_without_a_first_entry_keep_no_other_one_waiting() -> None:
    pool = Pool(slow_seconds=0.01)
    shares = [await pool.open(str(number)) for number in range(10)]
    assert pool.dropped == []
    await until(lambda: pool.bound.held == 0)
    shares[0].holds(40)
    assert pool.bound.held == 40


async def test_what_comes_late_has_to_find_room() -> None:
    pool = Pool(slow_seconds=0.01)
    late = [await pool.open(name) for name in ("one", "two", "three")]
    await until(lambda: pool.bound.held == 0)
    idle = await pool.open("idle")
    idle.holds(50)
    idle.idle()
    late[0].holds(60)
    assert (pool.dropped, pool.bound.held) == (["idle"], 60)
    late[1].holds(40)
    late[2].holds(1)
    assert (pool.dropped, pool.bound.held) == (["idle", "three"], 100)
    late[0].holds(0)
    late[1].holds(200)
    assert (pool.dropped, pool.bound.held) == (["idle", "three"], 200), "whatever the size of the only one"
    late[1].holds(50)
    late[1].idle()
    late[1].busy()
    late[0].holds(51)
    assert (pool.dropped, pool.bound.held) == (["idle", "three", "one"], 50), "one that was read from is as any other"


ENTRIES = 3


async def log_behind(budget: ReadBudget) -> tuple[PulsarLog, Broker]:
    """An attached log with nothing in memory, of which all readers share `budget`."""
    broker = Broker()
    for _ in range(ENTRIES):
        broker.foreign()
    engine = FakeEngine(broker)
    engine.services.read_budget = budget
    log = engine.log()
    await log.attach()
    return log, broker


@pytest.mark.parametrize("what", ["nothing", "the subscription"])
async def test_readers_that_a_broker_does_not_serve_keep_no_other_partition_waiting(what: str) -> None:
    budget = ReadBudget(20 << 20, 0.01)  # two readers before their first entries
    hung = [await log_behind(budget) for _ in range(5)]
    for _, broker in hung:
        broker.hangs = what == "nothing"
        broker.holds_readers = what == "the subscription"
    reads = [asyncio.ensure_future(log.read(3, 1, min_one=True)) for log, _ in hung]
    log, _ = await log_behind(budget)
    for offset in 3, 6:
        async with asyncio.timeout(SECONDS):
            result = await log.read(offset, 1, min_one=True)
        assert [record.offset for record in records(result.buffers)] == [offset, offset + 1, offset + 2]
    assert not any(read.done() for read in reads)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    for other in log, *(log for log, _ in hung):
        await other.close()
    assert budget.held == 0
