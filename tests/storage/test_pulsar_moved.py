"""Readers that fall behind: Pulsar moves their cursors on, or retention takes what they have not read yet.

Pulsar lets messages expire (message TTL, `expire-messages`) for readers as for subscriptions. To a Kafka consumer
only retention takes records: what is there is read, what is not is OFFSET_OUT_OF_RANGE, never a silent gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from storage.batches import append, attached, batch, first, make, records, refused
from storage.engines import PulsarStore
from support.native_transactions import NativeTransactions
from support.pulsar import Urls, fresh_namespace
from support.pulsar_admin import PulsarAdmin
from support.slowness import beyond_slowness
from support.waiting import SECONDS, until

from kop.errors import ErrorCode
from kop.records.batch import read_header
from kop.storage.base import PartitionLog
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading.source import stats_position

MOVED = "readers_moved_past_entries"


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        store = PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)
        store.settings = store.settings.model_copy(update={"idle_seconds": 60.0})  # readers stay while a test waits
        yield store


@asynccontextmanager
async def writer_and_reader(store: PulsarStore) -> AsyncIterator[tuple[PartitionLog, PulsarLog, PulsarEngine]]:
    """The log of one engine, which writes, the same of another, which reads, and that engine."""
    async with store.opened() as writer, store.opened() as engine:
        topic = await writer.topics.create("t", 1, {})
        await until(lambda: engine.topics.get("t") is not None)
        log = await attached(engine)
        yield first(writer, topic), log, engine


async def put(log: PartitionLog, begin: int, end: int, size: int = 10) -> None:
    for number in range(begin, end):
        assert (await append(log, batch([str(number).ljust(size)]))).base_offset == number


async def read_on(log: PulsarLog, offset: int, end: int) -> list[tuple[int, int]]:
    """Offset and number of each record, read as a fetch does."""
    rows = []
    while offset < end:
        result = log.read_cached(offset, 1 << 20, min_one=True) or await log.read(offset, 1 << 20, min_one=True)
        if not result.buffers:
            await asyncio.sleep(0.01)  # as a long poll: Pulsar is being asked what lies there
            continue
        rows += [(record.offset, int(record.value or b"-1")) for record in records(result.buffers)]
        offset = read_header(result.buffers[-1]).next_offset
    return rows


def same(begin: int, end: int) -> list[tuple[int, int]]:
    return [(number, number) for number in range(begin, end)]


async def expire(store: PulsarStore, log: PulsarLog) -> None:
    """Let what is older than a second expire for all subscriptions, those of readers too."""
    await asyncio.sleep(1.2)  # Pulsar goes by the age of messages, in whole seconds
    async with PulsarAdmin(store.urls[1], timeout=SECONDS) as admin:
        last = stats_position((await admin.internal_stats(log.partition_name))["lastConfirmedEntry"])

        async def readers_are_moved() -> bool:
            cursors = (await admin.internal_stats(log.partition_name))["cursors"]
            readers = [cursor for name, cursor in cursors.items() if name.startswith("kop-reader-")]
            return all(stats_position(cursor["readPosition"]) > last for cursor in readers)

        await admin.expire_all(log.partition_name, 1)
        await until(readers_are_moved)  # after the answer


async def test_a_slow_reader_reads_what_expired_for_it(
    pulsar_store: PulsarStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with writer_and_reader(pulsar_store) as (writer, log, engine):
        await put(writer, 0, 30, 500_000)  # more than a reader reads ahead, and than the cache keeps
        await until(lambda: log.high_watermark == 30)
        engine.cache.drop(log.tail.cached)
        result = await log.read(0, 1, min_one=True)
        assert [record.offset for record in records(result.buffers)] == [0]
        await expire(pulsar_store, log)
        await put(writer, 30, 31)
        await until(lambda: log.high_watermark == 31)
        assert await read_on(log, 1, 31) == same(1, 31)
        assert beyond_slowness(engine.counts) == {MOVED: 1}
        assert "message TTL" in caplog.text


async def test_a_reader_that_is_moved_between_transactions_misses_no_record(pulsar_store: PulsarStore) -> None:
    rounds = 30
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await log.attach()
        async with NativeTransactions(pulsar_store.urls[0], log.partition_name) as native:
            for number in range(rounds):  # more than a reader reads ahead
                await native.write(str(number).ljust(500_000).encode())
            await until(lambda: log.high_watermark == 2 * rounds - 1)
            engine.cache.drop(log.tail.cached)
            result = await log.read(0, 1, min_one=True)
            assert [record.offset for record in records(result.buffers)] == [0]
            await expire(pulsar_store, log)
            await native.plain(str(rounds).encode())
        await until(lambda: log.high_watermark == 2 * rounds + 1)
        assert await read_on(log, 1, 2 * rounds + 1) == [(2 * number, number) for number in range(1, rounds + 1)]


async def test_a_tail_that_was_moved_past_entries_leaves_no_hole(pulsar_store: PulsarStore) -> None:
    async with writer_and_reader(pulsar_store) as (writer, log, _):
        stood = await stand_still(writer, log, 60)
        await expire(pulsar_store, log)
        assert log.tail.stream is not None
        log.tail.stream.go_on()
        await put(writer, 60, 62)
        await until(lambda: log.high_watermark == 62)
        await until(lambda: log.read_cached(stood, 1000, min_one=True) is None)  # not answered from memory
        assert await read_on(log, 0, 62) == same(0, 62)
        assert log.log_start_offset == 0


@pytest.mark.parametrize("how", ["expired", "truncated"])
async def test_a_tail_that_waits_behind_the_last_entry_is_given_up(pulsar_store: PulsarStore, how: str) -> None:
    """Pulsar's statistics tell it: nothing more comes to it, and nobody says so."""
    async with writer_and_reader(pulsar_store) as (writer, log, engine):
        stood = await stand_still(writer, log, 60)
        stream = log.tail.stream
        assert stream is not None
        if how == "expired":
            await expire(pulsar_store, log)
        else:
            await engine.admin.truncate(log.partition_name)
        stream.go_on()
        await log.refresh()
        assert log.high_watermark == 60 > stood
        assert engine.counts["tails_moved_past_entries"] == 1
        assert "tails_stuck" not in engine.counts
        assert await read_on(log, 0, 60) == same(0, 60)


async def stand_still(writer: PartitionLog, log: PulsarLog, end: int) -> int:
    """Pulsar sends the tail no more than was asked for, as to a gateway that stands still; the end that it knows."""
    assert log.tail.stream is not None
    log.tail.stream.pause()
    await put(writer, 0, end)
    await until(lambda: log.high_watermark > 0)
    await asyncio.sleep(0.3)  # nothing can be waited for: no more shall come
    assert log.high_watermark < end
    return log.high_watermark


async def test_what_retention_took_before_the_tail_saw_it_is_out_of_range(pulsar_store: PulsarStore) -> None:
    async with writer_and_reader(pulsar_store) as (writer, log, engine):
        stood = await stand_still(writer, log, 60)
        stream = log.tail.stream
        assert stream is not None
        await engine.admin.unload(log.partition_name)  # what comes next begins a new ledger
        await put(writer, 60, 61)
        await engine.admin.truncate(log.partition_name)
        stream.go_on()
        await put(writer, 61, 63)
        await until(lambda: log.high_watermark == 63)
        await until(lambda: log.log_start_offset == 60)
        for offset in (0, stood, 59):
            with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
                log.read_cached(offset, 1000, min_one=True) or await log.read(offset, 1000, min_one=True)
        assert await read_on(log, 60, 63) == same(60, 63)
