"""`kop.coordination` under a coordinator that is not the one of groups: replay, writes, lost leads, takeovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from coordination.counters import TOPIC, CounterCoordinator
from support.faulty_engine import FaultyStore
from support.waiting import until

from kop.coordination import ownership
from kop.errors import ErrorCode as E


class GivenTo:
    """The live brokers' choice, as the test says: which partitions this broker is given."""

    def __init__(self, *partitions: int) -> None:
        self.partitions = set(partitions)
        self._listeners: list[Callable[[], None]] = []

    def is_leader(self, topic_id: UUID, partition: int) -> bool:
        return partition in self.partitions

    def leader(self, topic_id: UUID, partition: int) -> int:
        return 1 if partition in self.partitions else 2

    def on_change(self, callback: Callable[[], None]) -> None:
        self._listeners.append(callback)

    def give(self, *partitions: int) -> None:
        self.partitions = set(partitions)
        for callback in self._listeners:
            callback()


@asynccontextmanager
async def started(counters: CounterCoordinator) -> AsyncIterator[CounterCoordinator]:
    await counters.ownership.start()
    try:
        yield counters
    finally:
        await counters.stop()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "FIRST_PAUSE_SECONDS", 0.001)


def names(counters: CounterCoordinator) -> list[str]:
    """A name in each partition."""
    wanted: dict[int, str] = {}
    for number in range(100):
        wanted.setdefault(counters.state_log.partition_of(f"n{number}"), f"n{number}")
    return [wanted[partition] for partition in range(TOPIC.partitions)]


async def test_the_topic_is_made_as_its_user_says_and_found_at_the_next_start() -> None:
    store = FaultyStore()
    engine = await store.open()
    async with started(CounterCoordinator(engine)):
        topic = engine.topics.get("__counters")
        assert topic is not None
        assert (topic.partitions, topic.configs, topic.internal) == (2, TOPIC.configs, True)
        async with started(CounterCoordinator(engine)) as other:
            assert other.state_log.topic_id == topic.topic_id


async def test_what_was_written_is_there_after_a_restart() -> None:
    store = FaultyStore()
    async with started(CounterCoordinator(await store.open())) as counters:
        assert [await counters.add("a", 1), await counters.add("a", 2), await counters.add("b", 5)] == [1, 3, 5]
    await store.engine.close()
    async with started(CounterCoordinator(await store.open())) as counters:
        assert (counters.get("a"), counters.get("b"), counters.get("c")) == (3, 5, 0)


async def test_nothing_is_served_before_the_start_and_after_the_end() -> None:
    counters = CounterCoordinator(await FaultyStore().open())
    assert await counters.add("a", 1) == E.COORDINATOR_LOAD_IN_PROGRESS
    assert counters.ownership.waiting_for == "the topic __counters is being opened"
    async with started(counters):
        assert counters.ownership.waiting_for is None
        assert counters.ownership.refusal_of_all == E.NONE
    assert await counters.add("a", 1) == E.COORDINATOR_NOT_AVAILABLE


async def test_each_partition_goes_to_the_broker_that_it_is_given_to_with_all_that_was_written() -> None:
    engine = await FaultyStore().open()
    here, there = GivenTo(0, 1), GivenTo()
    async with (
        started(CounterCoordinator(engine, here)) as first_broker,
        started(CounterCoordinator(engine, there)) as other,
    ):
        first, second = names(first_broker)
        assert [await first_broker.add(first, 1), await first_broker.add(second, 2)] == [1, 2]
        assert other.get(first) == E.NOT_COORDINATOR
        here.give(0)
        there.give(1)
        await until(lambda: other.get(second) == 2)
        assert first_broker.get(second) == E.NOT_COORDINATOR
        assert await other.add(second, 1) == 3
        assert first_broker.get(first) == 1, "a partition that stays is served on"


async def test_a_lost_lead_ends_what_is_in_force_and_another_takeover_reads_what_was_written_meanwhile() -> None:
    store = FaultyStore()
    async with started(CounterCoordinator(await store.open())) as counters:
        first, second = names(counters)
        assert [await counters.add(first, 1), await counters.add(second, 1)] == [1, 1]
        log = store.log("__counters", 0)
        log.lose_lead(keep=True)
        assert counters.get(first) == E.NOT_COORDINATOR
        assert first not in counters.values
        assert counters.get(second) == 1
        counters.state_log.write(0, [(first.encode(), b"41")], lambda code: None)  # as the other broker does meanwhile
        counters.state_log.flush()
        log.free_lead()
        await until(lambda: counters.get(first) == 41)
        assert await counters.add(first, 1) == 42


async def test_what_was_begun_in_a_lost_term_changes_nothing_in_the_next() -> None:
    store = FaultyStore()
    async with started(CounterCoordinator(await store.open())) as counters:
        first, _ = names(counters)
        assert await counters.add(first, 1) == 1
        log = store.log("__counters", 0)
        log.hold()
        adding = counters.add(first, 10)
        await until(lambda: log.waiting == 1)
        log.lose_lead()
        log.pass_by()
        await until(lambda: counters.get(first) == 1)
        log.release()
        assert await adding == 11
        assert counters.get(first) == 1


async def test_in_doubt_nothing_is_told_from_memory_until_storage_was_asked() -> None:
    store = FaultyStore()
    async with started(CounterCoordinator(await store.open())) as counters:
        first, second = names(counters)
        assert await counters.add(first, 1) == 1
        store.log("__counters", 0).doubtful = True
        assert counters.get(first) == E.COORDINATOR_LOAD_IN_PROGRESS
        assert counters.ownership.in_doubt([first, second]) == {0}
        await counters.ownership.verify({0})
        assert counters.get(first) == 1


async def test_a_refused_write_is_told_and_the_next_one_works(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = FaultyStore()
    async with started(CounterCoordinator(await store.open())) as counters:
        first, _ = names(counters)
        log = store.log("__counters", 0)
        log.append_error = E.NOT_ENOUGH_REPLICAS
        assert [await counters.add(first, 1), await counters.add(first, 1)] == [E.NOT_ENOUGH_REPLICAS] * 2
        assert caplog.text.count("cannot write to __counters-0") == 1
        log.append_error = None
        assert await counters.add(first, 1) == 1
        assert "__counters can be written again; 2 writes were refused meanwhile" in caplog.text


async def test_a_counter_that_nobody_changes_is_deleted_when_its_time_has_come() -> None:
    now = 0
    store = FaultyStore()
    counters = CounterCoordinator(await store.open(), clock=lambda: now, idle_ms=1_000_000)
    async with started(counters):
        assert await counters.add("a", 1) == 1
        now = 999_999
        counters.deadlines.tick()
        await asyncio.sleep(0)
        assert counters.get("a") == 1
        now = 1_000_000
        counters.deadlines.tick()
        await until(lambda: counters.get("a") == 0)


async def test_a_topic_that_was_deleted_and_made_again_is_served_again() -> None:
    engine = await FaultyStore().open()
    given = GivenTo(0)
    async with started(CounterCoordinator(engine, given)) as counters:
        first, second = names(counters)
        before = counters.state_log.topic_id
        assert await counters.add(first, 1) == 1
        await engine.topics.delete(before)
        await engine.topics.create("__counters", TOPIC.partitions, TOPIC.configs, internal=True)
        given.give(1)
        given.give(0, 1)
        await until(lambda: not counters.ownership.refusal(first) and not counters.ownership.refusal(second))
        assert counters.state_log.topic_id != before
        assert [await counters.add(first, 1), await counters.add(second, 5)] == [1, 5]


async def test_a_topic_that_was_made_again_with_other_partitions_is_not_served() -> None:
    engine = await FaultyStore().open()
    given = GivenTo()
    async with started(CounterCoordinator(engine, given)) as counters:
        await engine.topics.delete(counters.state_log.topic_id)
        await engine.topics.create("__counters", TOPIC.partitions + 1, TOPIC.configs, internal=True)
        given.give(0)
        await until(lambda: "restart the brokers" in (counters.ownership.waiting_for or ""))
