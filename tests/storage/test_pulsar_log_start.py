"""Where a log begins: what gateways delete at once, and what retention takes from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from storage.batches import append, attached, batch, fill, first, make, refused
from storage.engines import PulsarStore
from support.pulsar import Urls, fresh_namespace
from support.waiting import until

from kop.errors import ErrorCode
from kop.storage.base import ReadResult, TimestampOffset
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.layout import all_remembered
from kop.storage.pulsar.partition.log import PulsarLog

pytestmark = pytest.mark.pulsar


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


async def properties(engine: PulsarEngine) -> dict[str, str]:
    full_name = engine.topics.pulsar(first(engine).topic.topic_id).full_name
    return dict((await engine.admin.partitioned_metadata(full_name)).properties)


async def test_two_gateways_that_delete_at_once_never_move_the_log_start_back(pulsar_store: PulsarStore) -> None:
    rounds = 20
    async with pulsar_store.opened() as first_engine, pulsar_store.opened() as second_engine:
        here = await make(first_engine)
        await fill(here, *map(str, range(4 * rounds + 4)))
        await until(lambda: second_engine.topics.get("t"))
        there = await attached(second_engine)
        for number in range(1, rounds + 1):
            offsets = (4 * number, 4 * number + 2) if number % 2 else (4 * number + 2, 4 * number)
            answers = await asyncio.gather(here.delete_records(offsets[0]), there.delete_records(offsets[1]))
            for offset, answer in zip(offsets, answers, strict=True):
                assert answer >= offset
            assert all_remembered(await properties(first_engine))["log_start", 0] == 4 * number + 2
        for engine, log in ((first_engine, here), (second_engine, there)):
            await engine.topics.refresh(log.topic.topic_id)
            assert log.log_start_offset == 4 * rounds + 2

        async def tidy() -> bool:
            return len([key for key in await properties(first_engine) if key.startswith("kop.log_start.")]) == 1

        await until(tidy)
    async with pulsar_store.opened() as engine:
        assert (await attached(engine)).log_start_offset == 4 * rounds + 2


async def test_a_log_start_beyond_what_the_tail_has_brought_is_not_forgotten(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine, pulsar_store.opened() as other:
        here = await make(engine)
        await fill(here, "0", "1")
        await until(lambda: other.topics.get("t"))
        there = await attached(other)
        assert there.tail.stream is not None
        there.tail.stream.pause()
        for number in range(2, 60):
            await append(here, batch([str(number)]))
        await here.delete_records(58)
        await other.topics.refresh(there.topic.topic_id)
        there.tail.stream.go_on()
        await until(lambda: there.high_watermark == 60)
        await until(lambda: there.log_start_offset == 58)


async def test_the_start_that_retention_left_is_known_to_whoever_asks(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await fill(log, *map(str, range(10)))
        await engine.admin.unload(log.partition_name)
        await until_appended(log, "10")
        await asyncio.gather(*(log.refresh_start() for _ in range(5)))
        assert log.log_start_offset == 0
        await truncate(engine, log)
        await asyncio.sleep(1.1)  # an answer is shared for a second
        await log.refresh_start()
        assert log.log_start_offset == 10
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.read_cached(3, 1000, min_one=True)


async def test_a_fetch_from_before_what_retention_left_is_out_of_range(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        await fill(log, *map(str, range(10)))
        await engine.admin.unload(log.partition_name)
        await until_appended(log, "10")
        await truncate(engine, log)
        engine.cache.drop(log.tail.cached)
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            await log.read(3, 1000, min_one=True)
        assert log.log_start_offset == 10


async def truncate(engine: PulsarEngine, log: PulsarLog) -> None:
    """Have Pulsar delete all ledgers but the newest one."""
    await engine.admin.truncate(log.partition_name)

    async def moved() -> bool:  # the broker deletes ledgers a moment later
        stats = await engine.admin.internal_stats(log.partition_name)
        return len(stats["ledgers"]) == 1

    await until(moved)


async def until_appended(log: PulsarLog, value: str) -> None:
    """Append a record; the topic is unloaded at this moment."""

    async def stored() -> bool:
        try:
            await append(log, batch([value]))
        except Exception:
            return False
        return True

    await until(stored)


async def test_a_look_up_of_the_largest_timestamp_goes_on_where_one_was_given_up(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        for number in range(20):
            await append(log, batch([str(number)], timestamp=1000 + number % 7))
        read, begun = PulsarLog.read, []

        async def slow(self: PulsarLog, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
            begun.append(offset)
            if len(begun) == 6:
                await self.loop.create_future()
            return await read(self, offset, 1, min_one=True)

        monkeypatch.setattr(PulsarLog, "read", slow)
        given_up = asyncio.ensure_future(log.max_timestamp())
        await until(lambda: len(begun) == 6)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await log.max_timestamp() == TimestampOffset(6, 1006)
        assert begun == [*range(6), *range(5, 20)]
        await append(log, batch(["new"], timestamp=2000))
        assert await log.max_timestamp() == TimestampOffset(20, 2000)
        assert begun[-1:] == [20]
