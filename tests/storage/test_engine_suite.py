"""What every engine does, in terms of `kop.storage.base` only."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar
from uuid import uuid4

import pytest
from crc32c import crc32c
from storage.batches import (
    LIMIT,
    NOW,
    Told,
    append,
    attached,
    batch,
    fill,
    first,
    make,
    read_all,
    read_values,
    records,
    refused,
)
from storage.engines import Store
from support.examples import ALL_EXAMPLES
from support.waiting import until

from kop.errors import ErrorCode, KopError
from kop.records.batch import read_header
from kop.storage.base import TopicInfo
from kop.storage.pulsar.partition import producer as producer_module

T = TypeVar("T")
DAY = 86_400_000


# Engine


async def test_cluster_id_is_stable(store: Store) -> None:
    async with store.opened() as engine:
        cluster_id = engine.cluster_id
        assert engine.healthy is None
    assert len(cluster_id) == 22
    assert not cluster_id.startswith("-")
    async with store.opened() as engine:
        assert engine.cluster_id == cluster_id


async def test_producer_ids_are_given_once(store: Store) -> None:
    seen: set[int] = set()
    for _ in range(3):
        async with store.opened() as engine:
            for block in await asyncio.gather(*[engine.reserve_producer_ids() for _ in range(3)]):
                assert block
                assert block[0] >= 0
                assert seen.isdisjoint(block)
                seen.update(block)


async def test_small_values_are_kept(store: Store) -> None:
    async with store.opened() as engine:
        assert await engine.get_state("a") is None
        await engine.put_state("a", "1")
        await engine.put_state("a", "2")
        await engine.put_state("b", "ü")
        await engine.put_state("c", "x")
        await engine.put_state("c", None)
        assert await engine.get_state("a") == "2"
    async with store.opened() as engine:
        assert [await engine.get_state(key) for key in "abc"] == ["2", "ü", None]


async def test_close_finishes_what_was_taken(store: Store) -> None:
    engine = await store.open()
    log = await make(engine)
    futures = [append(log, batch([str(i)])) for i in range(100)]
    await engine.close()
    assert [future.result().base_offset for future in futures] == list(range(100))
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await append(log, batch(["late"]))
    assert engine.healthy is not None
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await engine.reserve_producer_ids()
    await engine.close()
    async with store.opened() as engine:
        assert await read_values(await attached(engine)) == [str(i) for i in range(100)]


# Topics


async def test_topics_come_and_go(store: Store) -> None:
    async with store.opened() as engine:
        topics = engine.topics
        changes: list[tuple[TopicInfo | None, TopicInfo | None]] = []
        topics.on_change(lambda old, new: changes.append((old, new)))
        versions = [topics.version]
        b = await topics.create("b", 2, {"x": "1"})
        a = await topics.create("a", 1, {}, internal=True)
        versions.append(topics.version)
        assert (b.name, b.partitions, dict(b.configs), b.internal) == ("b", 2, {"x": "1"}, False)
        assert a.internal
        assert list(topics.all()) == [a, b]
        assert topics.get("a") is a
        assert topics.by_id(b.topic_id) is b
        assert topics.get("c") is None
        assert topics.by_id(uuid4()) is None
        with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
            await topics.create("a", 1, {})
        with refused(ErrorCode.INVALID_PARTITIONS):
            await topics.create("c", 0, {})
        changed = await topics.set_configs(b.topic_id, {"y": "2"})
        assert dict(changed.configs) == {"y": "2"}
        assert topics.get("b") == changed
        assert first(engine, "b", 1).topic == changed
        versions.append(topics.version)
        grown = await topics.grow(b.topic_id, 5)
        assert grown.partitions == 5
        assert first(engine, "b", 4).topic == grown == first(engine, "b", 0).topic
        for count in (5, 4, 0):
            with refused(ErrorCode.INVALID_PARTITIONS):
                await topics.grow(b.topic_id, count)
        await topics.delete(a.topic_id)
        versions.append(topics.version)
        assert topics.get("a") is None
        assert engine.log(a.topic_id, 0) is None
        for call in (topics.delete(a.topic_id), topics.grow(a.topic_id, 9), topics.set_configs(uuid4(), {})):
            with refused(ErrorCode.UNKNOWN_TOPIC_ID):
                await call
        assert versions == sorted(set(versions))
        assert changes == [(None, b), (None, a), (b, changed), (changed, grown), (a, None)]
    async with store.opened() as engine:
        assert list(engine.topics.all()) == [grown]
        assert engine.topics.version >= versions[-1]
        assert first(engine, "b", 4).topic == grown
        assert engine.log(b.topic_id, 5) is None
        assert engine.log(b.topic_id, -1) is None


async def test_two_creations_of_one_name(store: Store) -> None:
    async with store.opened() as engine:
        results = await asyncio.gather(*[engine.topics.create("t", 1, {}) for _ in range(5)], return_exceptions=True)
        errors = [result for result in results if isinstance(result, KopError)]
        assert [error.code for error in errors] == [ErrorCode.TOPIC_ALREADY_EXISTS] * 4


async def test_a_failed_change_whose_caller_went_is_no_forgotten_exception(store: Store) -> None:
    forgotten: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context["message"]))
    async with store.opened() as engine:
        made, refused_one = (asyncio.ensure_future(engine.topics.create("t", 1, {})) for _ in range(2))
        await asyncio.sleep(0)
        refused_one.cancel()
        await asyncio.wait({made, refused_one})
        assert refused_one.cancelled() or isinstance(refused_one.exception(), KopError)
        await engine.topics.create("u", 1, {})
    del made, refused_one  # which hold what they waited for
    gc.collect()
    assert forgotten == []


async def test_a_change_ends_although_its_caller_went(store: Store) -> None:
    async with store.opened() as engine:
        task = asyncio.ensure_future(engine.topics.create("t", 1, {}))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: engine.topics.get("t") is not None)
        await fill(first(engine), "works")
    async with store.opened() as engine:
        assert await read_values(await attached(engine)) == ["works"]


async def test_a_deleted_topic_is_gone_at_once_and_another_when_made_again(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine, partitions=2)
        old = log.topic
        await fill(log, "old")
        told: list[bool] = []
        log.on_advance(lambda: told.append(engine.log(old.topic_id, 0) is None))
        await engine.topics.delete(old.topic_id)
        assert told[-1] is True
        for attempt in (
            append(log, batch(["late"])),
            log.read(0, LIMIT, min_one=True),
            log.find_by_time(0),
            log.max_timestamp(),
            log.delete_records(-1),
        ):
            with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                await attempt
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            log.read_cached(0, LIMIT, min_one=True)
        log = await make(engine, partitions=2)
        assert log.topic.topic_id != old.topic_id
        assert (log.log_start_offset, log.high_watermark, log.size_bytes) == (0, 0, 0)
        await fill(log, "new")
        await store.maintain(engine, NOW)
        assert await read_values(log) == ["new"]
    async with store.opened() as engine:
        assert await read_values(first(engine)) == ["new"]


async def test_appends_that_wait_end_with_the_topic(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        deletion = asyncio.ensure_future(engine.topics.delete(log.topic.topic_id))
        futures = []
        while not deletion.done():  # a slow disk may take seconds: as many are in flight as no engine refuses
            futures.append(append(log, batch(["x" * 1000] * 10)))
            await (asyncio.sleep(0) if len(futures) < 1000 else asyncio.wait([deletion]))
        await deletion
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert len(results) == len(futures)
        for result in results:
            assert not isinstance(result, BaseException) or (
                isinstance(result, KopError) and result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )


@pytest.mark.timeout(600)
async def test_a_thousand_partitions(store: Store) -> None:
    """Each is there in the end: what waits long for its partition's turn is told so, and comes again as clients do."""

    async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except KopError as error:
                if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                    raise

    async with store.opened() as engine:
        log = await make(engine, partitions=1000)
        logs = [first(engine, log.topic, i) for i in range(1000)]
        await asyncio.gather(*[patiently(partial(append, log, batch([str(i)]))) for i, log in enumerate(logs)])
    async with store.opened() as engine:
        logs = await asyncio.gather(*[patiently(partial(attached, engine, partition=i)) for i in range(1000)])
        assert all(log.high_watermark for log in logs)
        assert set(await read_values(logs[777])) == {"777"}


# Append and read


async def test_offsets_follow_the_order_of_calls(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        assert engine.log(log.topic.topic_id, 0) is log
        await log.attach()
        assert log.attached
        futures = [append(log, batch([f"{i}-{j}" for j in range(i % 3 + 1)])) for i in range(30)]
        assert log.high_watermark == 0
        assert log.read_cached(0, LIMIT, min_one=True) == await log.read(0, LIMIT, min_one=True)
        results = [await future for future in futures]
        offset = 0
        for i, result in enumerate(results):
            assert result.base_offset == offset
            assert result.log_append_time == -1
            assert result.log_start_offset == 0
            offset += i % 3 + 1
        assert log.high_watermark == offset
        everything = await read_all(log)
        assert [record.offset for record in everything] == list(range(offset))
        assert everything == await read_all(log, cached=True)
        assert [r.value for r in everything] == [f"{i}-{j}".encode() for i in range(30) for j in range(i % 3 + 1)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_any_buffer_is_taken_and_stamped(store: Store, kind: type) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        await fill(log, "before")
        data = batch(["a", "b"])
        await append(log, kind(bytes(data)) if kind is not bytearray else data)
        for result in (log.read_cached(1, LIMIT, min_one=True), await log.read(1, LIMIT, min_one=True)):
            assert result is not None
            (buffer,) = result.buffers
            header = read_header(buffer)
            assert (header.base_offset, header.leader_epoch, header.last_offset) == (1, 0, 2)
            assert crc32c(bytes(buffer)[21:]) == header.crc


async def test_reads_take_whole_batches_up_to_a_limit(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        sizes = []
        for i in range(10):
            data = batch([str(i)] * 10)
            sizes.append(len(data))
            await append(log, data)
        for method in ("read", "read_cached"):

            async def read(offset: int, max_bytes: int, min_one: bool, method: str = method) -> list[int]:
                result = getattr(log, method)(offset, max_bytes, min_one=min_one)
                result = await result if method == "read" else result
                if result is None and offset > 100:  # another gateway may know more: `read` asks
                    result = await log.read(offset, max_bytes, min_one=min_one)
                assert result.size == sum(map(len, result.buffers))
                return [read_header(buffer).base_offset for buffer in result.buffers]

            assert await read(0, LIMIT, False) == list(range(0, 100, 10))
            assert await read(0, sum(sizes[:3]), False) == [0, 10, 20]
            assert await read(0, sum(sizes[:3]) - 1, True) == [0, 10]
            assert await read(35, sum(sizes[3:5]), False) == [30, 40]
            assert await read(99, 1, True) == [90]
            assert await read(99, 1, False) == []
            assert await read(5, 0, True) == [0]
            assert await read(100, LIMIT, True) == []
            for offset in (101, -1):
                with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
                    await read(offset, LIMIT, True)


async def test_listeners_hear_of_every_move(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        seen: list[tuple[int, int]] = []
        undo = log.on_advance(lambda: seen.append((log.log_start_offset, log.high_watermark)))

        def broken() -> None:
            raise RuntimeError("a listener's own failure")

        undo_broken = log.on_advance(broken)
        await fill(log, "a")
        undo_broken()
        await fill(log, "b")
        await log.delete_records(1)
        assert seen == [(0, 1), (0, 2), (1, 2)]
        undo()
        undo()
        await fill(log, "c")
        assert len(seen) == 3


async def test_log_append_time(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine, message_timestamp_type="LogAppendTime")
        data = batch(["a", "b"], timestamp=5, producer=9)
        result, again = await asyncio.gather(append(log, data, NOW + 7), append(log, bytes(data), NOW + 9))
        time = result.log_append_time
        assert time == again.log_append_time
        assert time == NOW + 7 if store.is_local else time > NOW
        assert (await append(log, batch(["a", "b"], timestamp=5, producer=9), NOW + 99)) == result
        await until(lambda: log.high_watermark == 2)  # Pulsar may tell producers the time before it tells readers
        (buffer,) = (await log.read(0, LIMIT, min_one=True)).buffers
        header = read_header(buffer)
        assert header.log_append_time
        assert header.max_timestamp == time
        assert crc32c(buffer[21:]) == header.crc
        assert [record.timestamp for record in records([buffer])] == [time] * 2
        position = await log.find_by_time(6)
        assert position is not None
        assert (position.offset, position.timestamp) == (0, time)
        await engine.topics.set_configs(log.topic.topic_id, {})
        assert (await append(log, batch(["c"]))).log_append_time == -1


async def test_restart_keeps_everything(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine, partitions=3)
        for i in range(3):
            await fill(first(engine, partition=i), *[f"{i}.{j}" for j in range(i * 5)])
        sizes = [first(engine, partition=i).size_bytes for i in range(3)]
        topic = log.topic
    for _ in range(2):
        async with store.opened() as engine:
            assert engine.topics.get("t") == topic
            for i in range(3):
                log = await attached(engine, partition=i)
                assert (log.log_start_offset, log.high_watermark) == (0, i * 5)
                if store.is_local:
                    assert log.size_bytes == sizes[i]
                assert await read_values(log) == [f"{i}.{j}" for j in range(i * 5)]


# Idempotent producers


async def test_a_duplicate_joins_its_original(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        first_batch = batch(["a", "b"], producer=1)
        second_batch = batch(["c"], producer=1, sequence=2)
        futures = [
            append(log, data)
            for data in (
                first_batch,
                bytes(first_batch),
                second_batch,
                bytes(second_batch),
                batch(["a", "b"], producer=1),
            )
        ]
        offsets = [(await future).base_offset for future in futures]
        assert offsets == [0, 0, 2, 2, 0]
        assert (await append(log, batch(["c"], producer=1, sequence=2))).base_offset == 2
        assert log.high_watermark == 3
        assert await read_values(log) == ["a", "b", "c"]


async def test_one_waiter_is_told_once_of_each_of_its_batches(store: Store) -> None:
    """Also of a duplicate of a batch that is under way, and of one that is refused before it is queued."""
    async with store.opened() as engine:
        log = await make(engine)
        told = Told()
        batches = [
            batch(["a", "b"], producer=7),
            batch(["c"], producer=7, sequence=2),
            batch(["c"], producer=7, sequence=2),
            batch(["gap"], producer=7, sequence=9),
            batch(["d"], producer=7, sequence=3),
        ]
        for place, data in enumerate(batches):
            log.submit(data, read_header(data), now_ms=NOW, waiter=told, place=place)
        await until(lambda: len(told.ends) >= len(batches))
        assert sorted(told.ends) == [(0, 0), (1, 2), (2, 2), (3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (4, 3)]
        assert [place for place, _ in told.ends if place in {0, 1, 4}] == [0, 1, 4]
        again = batch(["d"], producer=7, sequence=3)
        log.submit(again, read_header(again), now_ms=NOW, waiter=told, place=5)
        await until(lambda: len(told.ends) > len(batches))
        assert told.ends[-1] == (5, 3)
        await append(log, batch(["last"]))
        assert len(told.ends) == 6
        assert await read_values(log) == ["a", "b", "c", "d", "last"]


async def test_where_each_epoch_begins_at_0_no_batch_of_a_new_producer_comes_before_that(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "ASK_AGAIN_AFTER", (0.01,))
    async with store.opened() as engine:
        log, told = await make(engine), Told()
        for place, sequence in enumerate((1, 0, 1)):
            data = batch([str(sequence)], producer=7, sequence=sequence)
            log.submit(data, read_header(data), now_ms=NOW, waiter=told, place=place, from_zero=True)
        await until(lambda: len(told.ends) == 3)
        assert sorted(told.ends) == [(0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (1, 0), (2, 1)]
        assert await read_values(log) == ["0", "1"]


async def test_sequences_and_epochs(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        await append(log, batch(["a"], producer=1, sequence=40))
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            await append(log, batch(["gap"], producer=1, sequence=42))
        await append(log, batch(["b"], producer=1, sequence=41))
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            await append(log, batch(["c"], producer=1, epoch=1, sequence=42))
        await append(log, batch(["c"], producer=1, epoch=1, sequence=0))
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            await append(log, batch(["d"], producer=1, epoch=0, sequence=42))
        views = {view.producer_id: view for view in log.producers()}
        assert (views[1].producer_epoch, views[1].last_sequence, views[1].last_timestamp) == (1, 0, NOW)
        assert log.high_watermark - log.log_start_offset == 3
        # the last sequence is followed by 0
        await append(log, batch(["e"] * 3, producer=2, sequence=2**31 - 3))
        await append(log, batch(["f"], producer=2, sequence=0))
        assert log.high_watermark == 7
        (view,) = (view for view in log.producers() if view.producer_id == 2)
        assert (view.producer_epoch, view.last_sequence, view.last_timestamp) == (0, 0, NOW)


async def test_other_records_under_stored_sequences_are_no_duplicates_after_a_restart(store: Store) -> None:
    """As before it, and as in Kafka: a duplicate has the sequences of a whole batch."""
    stored = (["a", "b", "c", "d"], 0), (["e", "f"], 4), (["g"], 6)
    async with store.opened() as engine:
        log = await make(engine)
        told = [await append(log, batch(values, producer=1, sequence=sequence)) for values, sequence in stored]
    async with store.opened() as engine:
        log = await attached(engine)
        for values, sequence in ((["a"], 0), (["b"], 1), (["d"], 3), (["c", "d"], 2), (["d", "x"], 3), (["f", "g"], 5)):
            with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
                await append(log, batch(values, producer=1, sequence=sequence))
        again = [await append(log, batch(values, producer=1, sequence=sequence)) for values, sequence in stored]
        assert [each.base_offset for each in again] == [each.base_offset for each in told]
        await append(log, batch(["h"], producer=1, sequence=7))
        assert await read_values(log) == list("abcdefgh")


@pytest.mark.parametrize("orderly", [True, False])
async def test_windows_survive(store: Store, orderly: bool) -> None:
    if not store.is_local:
        pytest.skip("Pulsar keeps the last sequence of a producer alone: see test_pulsar_sequences.py")
    async with store.opened() as engine:
        log = await make(engine)
        for sequence in range(7):
            await append(log, batch(["x"], producer=1, sequence=sequence))
        await append(log, batch(["y"], producer=2, sequence=9))
        views = log.producers()
        if not orderly:
            await store.maintain(engine, NOW)
            await append(log, batch(["x"], producer=1, sequence=7))
            views = log.producers()
    async with store.opened() as engine:
        log = first(engine)
        assert log.producers() == views
        end = log.high_watermark
        last = 6 if orderly else 7
        for sequence in range(last - 4, last + 1):
            result = await append(log, batch(["x"], producer=1, sequence=sequence))
            assert result.base_offset == sequence if orderly or sequence < 7 else result.base_offset == 8
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            await append(log, batch(["x"], producer=1, sequence=last - 5))
        assert log.high_watermark == end
        await append(log, batch(["x"], producer=1, sequence=last + 1))
        assert log.high_watermark == end + 1


# Look-ups by time


async def test_look_ups_by_time(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        assert await log.find_by_time(0) is None
        assert await log.max_timestamp() is None
        await append(log, batch(["-"] * 3, timestamp=-1))
        assert await log.find_by_time(0) is None
        assert await log.max_timestamp() is None
        await append(log, batch(["-"] * 3, timestamp=[100, 300, 200]))  # 3 4 5
        await append(log, batch(["-"] * 3, timestamp=[150, 250, 400], codec=4))  # 6 7 8
        await append(log, batch(["-"] * 2, timestamp=[400, 50]))  # 9 10

        async def at(timestamp: int) -> tuple[int, int] | None:
            position = await log.find_by_time(timestamp)
            return None if position is None else (position.offset, position.timestamp)

        assert await at(0) == (3, 100)
        assert await at(101) == (4, 300)
        assert await at(300) == (4, 300)
        assert await at(301) == (8, 400)
        assert await at(401) is None
        newest = await log.max_timestamp()
        assert newest is not None
        assert (newest.offset, newest.timestamp) == (8, 400)
        await log.delete_records(5)
        assert await at(0) == (5, 200)
        assert await at(201) == (7, 250)
        await log.delete_records(9)
        assert await at(0) == (9, 400)
        await log.delete_records(10)
        assert await at(0) == (10, 50)
        assert await at(51) is None
        newest = await log.max_timestamp()
        assert newest is not None
        assert (newest.offset, newest.timestamp) == (10, 50)
        await log.delete_records(-1)
        assert await at(0) is None
        assert await log.max_timestamp() is None


# All of it at random


@pytest.mark.parametrize("seed", range(6 if ALL_EXAMPLES else 2))
async def test_a_log_is_a_list(store: Store, seed: int) -> None:
    """Random appends, duplicates, deletes and restarts beside a model: a list of records and a log start."""
    rng = random.Random(seed)
    model: dict[int, list[str]] = {0: [], 1: []}
    starts = {0: 0, 1: 0}
    sequences: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], tuple[list[str], int, int]] = {}
    engine = await store.open()
    await make(engine, partitions=2)
    try:
        for step in range(250):
            partition = rng.randrange(2)
            log, values = first(engine, partition=partition), model[partition]
            action = rng.random()
            if action < 0.55:
                waiting = []
                for _ in range(rng.randint(1, 6)):
                    new = [f"{step}.{i}" * rng.choice([1, 1, 50]) for i in range(rng.randint(1, 5))]
                    producer = rng.choice([-1, 1, 2])
                    key = (partition, producer)
                    sequence = sequences.get(key, 0)
                    waiting.append((append(log, batch(new, producer=producer, sequence=sequence)), len(values)))
                    if producer >= 0:
                        sequences[key] = sequence + len(new)
                        last[key] = (new, sequence, len(values))
                    values += new
                    if not store.is_local:
                        await asyncio.wait([waiting[-1][0]])
                for future, base in waiting:
                    assert (await future).base_offset == base
            elif action < 0.65:
                key = (partition, rng.choice([1, 2]))
                if key in last:
                    new, sequence, base = last[key]
                    again = await append(log, batch(new, producer=key[1], sequence=sequence))
                    assert again.base_offset == base
            elif action < 0.75 and values:
                offset = rng.randint(0, len(values))
                starts[partition] = max(starts[partition], offset)
                assert await log.delete_records(offset) == starts[partition]
            elif action < 0.8:
                if store.is_local:
                    await store.maintain(engine, NOW)
            elif action < 0.85:
                await engine.close()
                engine = await store.open()
                await asyncio.gather(*[attached(engine, partition=i) for i in (0, 1)])
                if not store.is_local:
                    last.clear()
            else:
                await log.refresh()  # where Pulsar began a new ledger, producers may be answered before its tail comes
                offset = rng.randint(starts[partition], len(values))
                result = await log.read(offset, rng.choice([1, 500, 5000]), min_one=True)
                cached = log.read_cached(offset, 5000, min_one=True)
                for buffers in [result.buffers] + ([cached.buffers] if cached else []):
                    got = [record for record in records(buffers) if record.offset >= offset]
                    assert [r.value.decode() for r in got if r.value] == values[offset : offset + len(got)]
                    assert bool(got) == (offset < len(values))
        for partition, values in model.items():
            log = first(engine, partition=partition)
            await log.refresh()
            assert (log.log_start_offset, log.high_watermark) == (starts[partition], len(values))
            assert await read_values(log) == values[starts[partition] :]
    finally:
        await engine.close()
