"""A state topic: what shares a batch, what fails alone, what a replay gives."""

from __future__ import annotations

import asyncio

import pytest
from support.faulty_engine import FaultyLog, FaultyStore
from support.waiting import until

from kop import clock
from kop.coordination.state_log import StateLog, StateTopic
from kop.errors import ErrorCode as E
from kop.errors import InternalError, KopError
from kop.records.batch import iter_batches

MIB = 1 << 20


class Writer:
    """A state log with one partition, and what became of each write."""

    def __init__(self) -> None:
        self.store = FaultyStore()
        self.ended: list[tuple[int, E]] = []

    async def open(self) -> StateLog:
        self.log = StateLog(await self.store.open(), StateTopic("__state", 1, {}), lambda: 1_700_000_000_000)
        await self.log.open()
        return self.log

    def write(self, number: int, *records: tuple[bytes, bytes | None]) -> None:
        self.log.write(0, records, lambda code: self.ended.append((number, code)))

    def partition(self) -> FaultyLog:
        return self.store.log("__state")

    async def batches(self) -> list[int]:
        """How many records each batch holds."""
        log = self.partition()
        result = await log.read(0, 1 << 30, min_one=True)
        return [header.record_count for data in result.buffers for _, header in iter_batches(memoryview(data))]


async def test_writes_of_one_turn_share_a_batch_and_end_in_their_order() -> None:
    writer = Writer()
    await writer.open()
    writer.write(1, (b"a", b"1"), (b"b", b"1"))
    writer.write(2, (b"a", b"2"))
    assert writer.partition().appends == 0
    await until(lambda: len(writer.ended) == 2)
    assert writer.ended == [(1, E.NONE), (2, E.NONE)]
    assert await writer.batches() == [3]


async def test_the_records_of_one_write_are_in_one_batch_however_large_it_is() -> None:
    writer = Writer()
    await writer.open()
    writer.write(1, *((b"k%d" % index, bytes(MIB)) for index in range(3)))
    await until(lambda: writer.ended == [(1, E.NONE)])
    assert await writer.batches() == [3]


async def test_a_write_that_is_too_large_to_share_a_batch_has_one_of_its_own() -> None:
    writer = Writer()
    await writer.open()
    log = writer.partition()
    log.hold()
    writer.write(1, (b"a", b"1"))
    writer.write(2, (b"b", bytes(2 * MIB)))
    writer.write(3, (b"c", b"1"))
    await until(lambda: log.waiting == 3)
    log.release()
    await until(lambda: len(writer.ended) == 3)
    assert await writer.batches() == [1, 1, 1]


async def test_writes_share_no_batch_of_more_records_than_storage_takes() -> None:
    writer = Writer()
    await writer.open()
    for number in range(6):
        writer.write(number, *((b"%d" % index, b"") for index in range(4000)))
    await until(lambda: len(writer.ended) == 6)
    assert await writer.batches() == [8000, 8000, 8000]


async def test_a_replay_gives_the_newest_value_of_each_key_and_its_tombstone() -> None:
    writer = Writer()
    log = await writer.open()
    writer.write(1, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    await until(lambda: len(writer.ended) == 1)
    writer.write(2, (b"a", b"2"), (b"b", None))
    await until(lambda: len(writer.ended) == 2)
    assert await log.read(0) == {b"a": b"2", b"b": None, b"c": b"1"}


async def test_a_replay_gives_the_keys_in_the_order_of_their_newest_records() -> None:
    writer = Writer()
    log = await writer.open()
    for number, key in enumerate((b"a", b"b", b"c", b"a", b"d", b"b")):
        writer.write(number, (key, b"%d" % number))
    await until(lambda: len(writer.ended) == 6)
    assert list((await log.read(0)).items()) == [(b"c", b"2"), (b"a", b"3"), (b"d", b"4"), (b"b", b"5")]


async def test_a_fault_after_one_write_keeps_no_other_from_hearing() -> None:
    writer = Writer()
    log = await writer.open()

    def fail(code: E) -> None:
        raise ZeroDivisionError

    log.write(0, [(b"a", b"1")], fail)
    writer.write(2, (b"b", b"1"))
    await until(lambda: writer.ended == [(2, E.NONE)])


async def test_a_topic_made_again_without_one_of_its_partitions_leaves_the_partitions_of_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = await FaultyStore().open()
    log = StateLog(engine, StateTopic("__state", 3, {}), lambda: 1_700_000_000_000)
    await log.open()
    keys = {key: log.partition_of(key) for key in "abcdef"}
    await engine.topics.delete(log.topic_id)
    again = await engine.topics.create("__state", 3, {}, internal=True)
    with monkeypatch.context() as patch:
        find = engine.log
        patch.setattr(engine, "log", lambda topic_id, index: None if index == 1 else find(topic_id, index))
        with pytest.raises(InternalError, match="partition 1 of __state is missing"):
            await log.reopen()
    assert log.partitions == 3
    assert {key: log.partition_of(key) for key in keys} == keys
    await log.reopen()
    assert log.topic_id == again.topic_id


async def test_a_follower_takes_what_anybody_writes_and_everything_after_a_failure() -> None:
    writer = Writer()
    log = await writer.open()
    writer.write(1, (b"a", b"1"), (b"b", b"1"))
    await until(lambda: len(writer.ended) == 1)
    taken: list[tuple[dict[bytes, bytes | None], bool]] = []
    follower = log.follower(0, lambda newest, everything: taken.append((dict(newest), everything)))
    await follower.catch_up()
    assert taken == [({b"a": b"1", b"b": b"1"}, True)]
    await follower.catch_up()
    assert len(taken) == 1

    task = asyncio.create_task(follower.follow())
    writer.write(2, (b"a", None), (b"c", b"1"), (b"c", b"2"))
    await until(lambda: len(taken) == 2)
    assert taken[1] == ({b"a": None, b"c": b"2"}, False)

    partition = writer.partition()
    partition.cold, partition.read_error = True, KopError("away", E.KAFKA_STORAGE_ERROR)
    writer.write(3, (b"d", b"1"))
    await until(lambda: follower.age > 0)
    assert len(taken) == 2
    partition.cold, partition.read_error = False, None
    await until(lambda: len(taken) == 3)
    assert taken[2] == ({b"a": None, b"b": b"1", b"c": b"2", b"d": b"1"}, True)
    assert follower.age == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_log_that_never_rests_is_looked_at_and_not_read_from_its_beginning_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = Writer()
    log = await writer.open()
    partition = writer.partition()
    now, looks, ages = 1000.0, 0, []

    async def refresh() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(clock, "monotonic", lambda: now)
    monkeypatch.setattr(partition, "sole_writer", False)
    monkeypatch.setattr(partition, "refresh", refresh)
    taken: list[bool] = []
    follower = log.follower(0, lambda newest, everything: taken.append(everything))
    await follower.catch_up()
    task = asyncio.create_task(follower.follow())
    for number in range(100):  # 40 s of the clock, in which nothing rests for half a second
        now += 0.4
        writer.write(number, (b"k", b"%d" % number))
        await until(lambda: len(taken) == number + 2)  # noqa: B023 - it ends within this turn
        ages.append(follower.age)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert taken == [True] + [False] * 100
    assert max(ages) <= 1.0
    assert 40 <= looks <= 60
