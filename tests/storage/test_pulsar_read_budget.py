"""The bound on what readers behind the tails hold together."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from storage.batches import records
from storage.fake_pulsar_client import Broker, FakeEngine
from support.waiting import SECONDS, until

from kop.pulsar_client import Position
from kop.read_budget import MOST_AHEAD, BudgetShare, ReadBudget
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading.batches import Batch


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


async def test_nobody_overtakes_a_reader_that_waits() -> None:
    pool = Pool()
    first, second = await pool.open("one"), await pool.open("two")
    large, small = asyncio.ensure_future(pool.open("large", 90)), asyncio.ensure_future(pool.open("small", 10))
    await settle()
    assert not large.done()
    assert not small.done()
    first.end()  # room for the small one, and not for the large one, which keeps its turn
    await settle()
    late = asyncio.ensure_future(pool.open("late", 10))
    await settle()
    assert [task.done() for task in (large, small, late)] == [False, False, False]
    second.end()
    await settle()
    assert [task.done() for task in (large, small, late)] == [True, True, False]
    assert pool.bound.held == 100
    large.result().end()
    await settle()
    assert late.done()


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


async def log_behind(budget: ReadBudget, gap: int = 0) -> tuple[PulsarLog, Broker]:
    """An attached log with nothing in memory, of which all readers share `budget`; `gap` offsets behind each entry."""
    broker = Broker()
    for _ in range(ENTRIES):
        broker.foreign()
        if gap:
            broker.gap(gap)
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


class Opened:
    """Counts the readers that a log opens behind its tail."""

    def __init__(self, broker: Broker) -> None:
        self.times = 0
        self._open = broker.open_reader
        broker.open_reader = self._opens  # type: ignore[method-assign]

    async def _opens(self, topic: str, start: Position, *, permits: int, **how: Any) -> Any:
        self.times += permits == 0  # the others are the tail and searches
        return await self._open(topic, start, permits=permits, **how)


async def first_offset(log: PulsarLog, offset: int) -> int:
    result = await log.read(offset, 1, min_one=True)
    return records(result.buffers)[0].offset


async def test_reads_of_one_place_share_one_reader_and_its_batches() -> None:
    log, broker = await log_behind(ReadBudget(1 << 30))
    opened = Opened(broker)
    for offset in 3, 6:
        results = await asyncio.gather(*(log.read(offset, 1, min_one=True) for _ in range(20)))
        assert {id(result.buffers[0]) for result in results} == {id(results[0].buffers[0])}
        assert records(results[0].buffers)[0].offset == offset
    assert opened.times == 1
    assert [await first_offset(log, offset) for offset in (3, 7, 4, 6)] == [3, 6, 3, 6]
    assert opened.times == 1, "what was handed out a moment ago is there still"
    await log.close()


async def test_a_read_that_is_given_up_leaves_its_reader_to_those_who_wait_for_it() -> None:
    log, broker = await log_behind(ReadBudget(1 << 30))
    opened = Opened(broker)
    broker.slow_readers = True
    first, second = (asyncio.ensure_future(first_offset(log, 3)) for _ in range(2))
    await until(lambda: opened.times)
    await settle()
    first.cancel()
    assert await second == 3
    assert first.cancelled()
    assert opened.times == 1
    await log.close()


async def test_a_reader_that_is_closed_lets_go_of_its_batches_at_once() -> None:
    budget = ReadBudget(1 << 30)
    log, _ = await log_behind(budget)
    result = await log.read(3, 1, min_one=True)
    log.close_idle(float("inf"), 0)
    assert budget.held == 0
    assert not [each for each in gc.get_referrers(result.buffers[0]) if isinstance(each, Batch)]
    await log.close()


async def test_what_is_asked_for_counts_until_the_end_of_the_log() -> None:
    budget = ReadBudget(1 << 30)
    log, _ = await log_behind(budget)
    await first_offset(log, 3)
    assert 0 < budget.held < 2000
    await log.close()


async def test_of_many_readers_each_reads_less_ahead() -> None:
    bound = ReadBudget(100 << 20)
    assert bound.ahead == MOST_AHEAD
    shares = [BudgetShare(bound, lambda: None) for _ in range(50)]
    for share in shares:
        await share.take(1)
    assert bound.ahead == (100 << 20) // 200
    for share in shares[:45]:
        share.end()
    assert bound.ahead == MOST_AHEAD


async def test_an_idle_share_that_holds_too_much_goes_when_it_becomes_idle() -> None:
    pool = Pool()
    first = await pool.open("one")
    first.holds(150)
    assert pool.dropped == []
    assert pool.bound.full
    first.idle()
    assert (pool.dropped, pool.bound.held) == (["one"], 0)


async def test_what_a_reader_has_read_ahead_is_at_hand() -> None:
    log, _ = await log_behind(ReadBudget(1 << 30))
    assert log.read_cached(3, 1, min_one=True) is None
    assert await first_offset(log, 3) == 3
    for offset in 6, 4:
        result = log.read_cached(offset, 1 << 20, min_one=True)
        assert result is not None
        assert records(result.buffers)[0].offset == offset - offset % 3
        assert result.size == sum(map(len, result.buffers))
    assert log.read_cached(6, 1, min_one=False) == ([], 0, (), None)
    log.close_idle(float("inf"), 0)
    assert log.read_cached(6, 1, min_one=True) is None
    await log.close()


async def test_offsets_without_an_entry_are_not_at_hand() -> None:
    log, _ = await log_behind(ReadBudget(1 << 30), gap=2)
    assert await first_offset(log, 5) == 5
    assert log.read_cached(8, 1 << 20, min_one=True) is None
    assert log.read_cached(9, 1 << 20, min_one=True) is None
    result = log.read_cached(5, 1 << 20, min_one=True)
    assert result is not None
    assert [record.offset for record in records(result.buffers)] == [5, 6, 7]
    await log.close()
