"""Transactions in engines whose logs have markers: what readers may see, what ends what, what a restart keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from storage.batches import LIMIT, NOW, append, refused
from storage.engines import EngineStore, MemoryStore, SqliteStore
from storage.marked_producer import TransactionalProducer, committed_values, keyed, kinds

from kop.errors import ErrorCode, KopError
from kop.handlers.isolation import aborted_in
from kop.records.batch import build, read_header
from kop.records.markers import EndMarker, read_marker
from kop.storage.base import Engine, MarkedLog

MarkedStore = EngineStore[Any]


@pytest.fixture(params=["memory", "sqlite"])
def marked_store(request: pytest.FixtureRequest, tmp_path: Path) -> MarkedStore:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path)


@asynccontextmanager
async def opened(store: MarkedStore, **configs: str) -> AsyncIterator[tuple[Engine, MarkedLog]]:
    async with store.opened() as engine:
        topic = engine.topics.get("t") or await engine.topics.create("t", 1, configs)
        log = engine.log(topic.topic_id, 0)
        assert log is not None
        yield engine, log


async def test_readers_of_committed_records_wait_for_the_oldest_transaction(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (_, log):
        first, second = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
        assert log.last_stable_offset == 0
        await append(log, build(keyed("plain")))
        assert log.last_stable_offset == 1
        assert (await first.put("a", "b")).base_offset == 1
        await second.put("c")
        await append(log, build(keyed("plain")))
        assert (log.last_stable_offset, log.high_watermark) == (1, 5)
        await second.end(commit=True)
        assert (log.last_stable_offset, log.high_watermark) == (1, 6)
        await first.end(commit=False)
        assert (log.last_stable_offset, log.high_watermark) == (7, 7)
        assert kinds(await log.read(0, LIMIT, min_one=True)) == ["data", "data", "data", "data", "commit", "abort"]
        assert [transaction.first_offset for transaction in log.aborted_between(0, 7)] == [1]
        assert log.aborted_between(7, 7) == []


async def test_a_marker_is_a_record_of_its_own(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (_, log):
        writer = TransactionalProducer(log, 7)
        await writer.put("a")
        await log.end_transaction(7, 3, commit=True, coordinator_epoch=9, bumps_epoch=True, now_ms=NOW + 5)
        marker = (await log.read(1, LIMIT, min_one=True)).buffers[0]
        header = read_header(marker)
        assert (header.base_offset, header.producer_id, header.producer_epoch) == (1, 7, 3)
        assert (header.control, header.transactional, header.max_timestamp) == (True, True, NOW + 5)
        assert read_marker(marker) == EndMarker(True, 9)


async def test_a_marker_has_the_append_time_of_its_topic(marked_store: MarkedStore) -> None:
    async with opened(marked_store, **{"message.timestamp.type": "LogAppendTime"}) as (_, log):
        writer = TransactionalProducer(log, 7)
        await writer.put("a")
        await writer.end(commit=False, now_ms=NOW + 5)
        marker = (await log.read(1, LIMIT, min_one=True)).buffers[0]
        header = read_header(marker)
        assert (header.base_offset, header.log_append_time, header.max_timestamp) == (1, True, NOW + 5)
        assert read_marker(marker) == EndMarker(False, 0)
    async with opened(marked_store) as (_, log):
        assert log.last_stable_offset == 2
        assert [aborted.first_offset for aborted in log.aborted_between(0, 2)] == [0]


async def test_an_end_is_the_last_that_is_told_of_its_producer(marked_store: MarkedStore) -> None:
    def told() -> list[tuple[int, int, int, int]]:
        return [
            (view.producer_id, view.producer_epoch, view.last_sequence, view.last_timestamp) for view in log.producers()
        ]

    ended = [(1, 0, 0, NOW + 5), (2, 1, -1, NOW + 6)]
    async with opened(marked_store) as (_, log):
        first, second = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
        await first.put("a")
        await second.put("b")
        assert told() == [(1, 0, 0, NOW), (2, 0, 0, NOW)]
        await log.end_transaction(1, 0, commit=True, coordinator_epoch=0, bumps_epoch=False, now_ms=NOW + 5)
        await second.end(commit=True, now_ms=NOW + 6)
        assert told() == ended
    async with opened(marked_store) as (_, log):
        assert told() == ended


async def test_what_comes_late_is_refused(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (_, log):
        writer = TransactionalProducer(log, 1)
        await writer.put("a")
        late = build(keyed("b"), producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)
        await writer.end(commit=True)
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            await append(log, late)
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            await writer.end(commit=False, epoch=0)
        assert log.high_watermark == 2
        await writer.put("c")
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            await writer.end(commit=True, epoch=1)  # that of its data: a marker of version 2 lies above it
        assert log.last_stable_offset == 2


async def test_what_is_not_transactional_is_refused_while_its_producer_has_an_open_transaction(
    marked_store: MarkedStore,
) -> None:
    async with opened(marked_store) as (_, log):
        first = build(keyed("a"), producer_id=1, producer_epoch=0, base_sequence=0)
        assert (await append(log, first)).base_offset == 0
        writer = TransactionalProducer(log, 1)
        writer.sequence = 1
        await writer.put("b")
        plain = build(keyed("c"), producer_id=1, producer_epoch=0, base_sequence=2)
        with refused(ErrorCode.INVALID_TXN_STATE):
            await append(log, plain)
        assert (await append(log, first)).base_offset == 0  # it is a duplicate
        assert (await append(log, build(keyed("d"), producer_id=2, producer_epoch=0, base_sequence=0))).base_offset == 2
        await log.end_transaction(1, 0, commit=True, coordinator_epoch=0, bumps_epoch=False, now_ms=NOW)
        assert (await append(log, plain)).base_offset == 4


async def test_a_marker_that_is_asked_for_again_is_there_once(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (_, log):
        writer = TransactionalProducer(log, 1)
        await writer.put("a")
        await asyncio.gather(writer.end(commit=True), writer.end(commit=True, epoch=1))
        await writer.end(commit=True, epoch=1)
        assert kinds(await log.read(0, LIMIT, min_one=True)) == ["data", "commit"]


async def test_a_partition_without_data_learns_the_epoch(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (_, log):
        writer = TransactionalProducer(log, 1)
        late = writer.put  # sent before the end, and taken after it
        await writer.end(commit=False)
        assert kinds(await log.read(0, LIMIT, min_one=True)) == ["abort"]
        writer.epoch = 0
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            await late("a")


async def test_a_restart_keeps_what_is_open_and_what_was_aborted(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (_, log):
        first, second = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
        await first.put("a")
        await first.end(commit=False)
        await second.put("b")
    async with opened(marked_store) as (_, log):
        assert (log.last_stable_offset, log.high_watermark) == (2, 3)
        assert [aborted.producer_id for aborted in log.aborted_between(0, 3)] == [1]
        assert [view.current_txn_start_offset for view in log.producers()] == [-1, 2]
        second.log = log
        await second.end(commit=True)
        assert log.last_stable_offset == 4


async def test_an_open_transaction_before_the_log_start_holds_nobody_back(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (_, log):
        writer = TransactionalProducer(log, 1)
        await writer.put("a")
        await append(log, build(keyed("plain")))
        await log.delete_records(1)
        assert (log.log_start_offset, log.last_stable_offset) == (1, 1)


async def test_observers_hear_of_a_marker(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (_, log):
        writer = TransactionalProducer(log, 1)
        await writer.put("a")
        heard: list[int] = []
        log.on_advance(lambda: heard.append(log.last_stable_offset))
        await writer.end(commit=True)
        assert heard == [2]


async def test_compaction_stops_at_what_is_open_and_takes_what_was_aborted(marked_store: MarkedStore) -> None:
    async with opened(marked_store, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}) as (engine, log):
        first, second = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
        await append(log, build(keyed("old", "kept")))
        await first.put("old")
        await first.end(commit=False)
        await second.put("open")
        await append(log, build(keyed("old")))
        await append(log, build(keyed("last")))
        await engine.maintain(NOW)
        assert kinds(await log.read(0, LIMIT, min_one=True)) == ["data", "abort", "data", "data", "data"]
        assert log.last_stable_offset == 4


async def test_the_end_of_a_topic_ends_markers(marked_store: MarkedStore) -> None:
    async with opened(marked_store) as (engine, log):
        writer = TransactionalProducer(log, 1)
        await writer.put("a")
        waiting = writer.end(commit=True)
        await engine.topics.delete(log.topic.topic_id)
        (end,) = await asyncio.gather(waiting, return_exceptions=True)  # it may be durable before the topic goes
        if isinstance(end, BaseException):
            assert isinstance(end, KopError)
            assert end.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await writer.end(commit=True)


async def test_readers_of_committed_records_see_the_same_after_compaction(marked_store: MarkedStore) -> None:
    async with opened(marked_store, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}) as (engine, log):
        producers = [TransactionalProducer(log, number) for number in range(3)]
        for i in range(30):
            await producers[i % 3].put(f"{i}")
            if i % 2:
                await producers[i % 5 % 3].end(commit=i % 4 == 1)
        before = await committed_values(log)
        stable = log.last_stable_offset
        assert len(log.aborted_between(0, stable)) > 3
        for _ in range(3):
            await engine.maintain(NOW)
            assert await committed_values(log) == before
    async with opened(marked_store) as (engine, log):
        assert (log.last_stable_offset, await committed_values(log)) == (stable, before)


async def test_nothing_is_told_of_an_aborted_transaction_that_compaction_took(marked_store: MarkedStore) -> None:
    """Readers would look for its marker, and take the later records of its producer for aborted ones."""
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
    async with opened(marked_store, **configs) as (engine, log):
        writer = TransactionalProducer(log, 1)
        await append(log, build(keyed("first")))
        await writer.put("aborted")
        await writer.end(commit=False)
        await writer.put("committed")
        await writer.end(commit=True)
        assert aborted_in(log, await log.read(0, LIMIT, min_one=True)) == [(1, 1)]
        # The first pass takes the aborted record, a later one its marker: a pass after its horizon was set.
        for now_ms in (NOW + 1, NOW + 2, NOW + 3):
            await append(log, build(keyed("last")))
            await engine.maintain(now_ms)
        read = await log.read(0, LIMIT, min_one=True)
        assert (kinds(read), aborted_in(log, read)) == (["data", "data", "commit", "data"], [])
