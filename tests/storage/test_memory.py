"""What the memory engine alone does: its bound, what it frees, what it leaves behind, its upkeep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from storage.batches import LIMIT, NOW, append, attached, batch, fill, first, make, put, read_values, refused
from storage.engines import MemoryStore, policy_of
from storage.marked_producer import TransactionalProducer, committed_values
from support.settings import settings_of
from support.waiting import until

from kop import background
from kop.errors import ErrorCode
from kop.storage.memory.engine import MemoryEngine, open_engine
from kop.storage.memory.settings import MemorySettings

SIZE = len(batch(["x" * 100])) + 230
"""Bytes that the engine counts for a batch of one record of 100 bytes."""


async def engine_of(batches: int) -> MemoryEngine:
    """An engine with room for so many batches of one record of 100 bytes."""
    settings = settings_of(MemorySettings, kop_memory_bytes=batches * SIZE, maintain=False)
    return await open_engine(policy=policy_of, settings=settings)


async def test_small_batches_count_with_what_holds_them() -> None:
    """A batch of a few bytes takes several times as much memory as it has bytes."""
    engine = await open_engine(
        policy=policy_of, settings=settings_of(MemorySettings, kop_memory_bytes=30_000, maintain=False)
    )
    log = await make(engine)
    await fill(log, *["x"] * 90)
    assert log.size_bytes == 90 * len(batch(["x"])), "clients are told the bytes of the batches alone"
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await fill(log, *["x"] * 60)
    assert log.high_watermark < 120
    await log.delete_records(-1)
    await fill(log, *["x"] * 90)
    await engine.topics.delete(log.topic.topic_id)
    await fill(await make(engine, "other"), *["x"] * 90)
    await engine.close()


async def test_a_full_memory_is_one_warning_with_the_text_of_readyz(caplog: pytest.LogCaptureFixture) -> None:
    engine = await engine_of(1)
    log = await make(engine)
    await fill(log, "x" * 100)
    for _ in range(3):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, batch(["y" * 100]))
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [("WARNING", engine.healthy)]
    await engine.close()


async def test_beyond_its_bound_appends_are_refused_until_there_is_room_again() -> None:
    engine = await engine_of(3)
    log, other = await make(engine), await make(engine, "other")
    await fill(log, *["x" * 100] * 2)
    await fill(other, "x" * 100)
    assert engine.healthy is None
    for full_log in (log, other):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR) as failure:
            await append(full_log, batch(["y" * 100]))
        assert "kop.memory.bytes" in failure.value.message
    assert engine.healthy is not None
    assert (log.high_watermark, other.high_watermark) == (2, 1)
    await log.delete_records(1)
    assert engine.healthy is None
    await fill(other, "z" * 100)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await append(log, batch(["y" * 100]))
    await engine.topics.delete(log.topic.topic_id)
    await fill(other, "z" * 100)
    assert other.high_watermark == 3
    await engine.close()


async def test_a_memory_with_plenty_of_room_is_not_full_because_one_batch_is_too_large(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = settings_of(MemorySettings, kop_memory_bytes=4 << 20, maintain=False)
    engine = await open_engine(policy=policy_of, settings=settings)
    log = await make(engine)
    await fill(log, "x" * (1 << 20))
    with refused(ErrorCode.KAFKA_STORAGE_ERROR) as failure:
        await append(log, batch(["y" * (3 << 20)]))
    assert "has no room for a batch of 3145" in failure.value.message
    assert [line.getMessage() for line in caplog.records] == [failure.value.message]
    assert engine.healthy is None
    await fill(log, *["x" * (1 << 20)] * 2)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await append(log, batch(["y" * (3 << 20)]))
    assert engine.healthy is not None
    assert [line.getMessage() for line in caplog.records][1:] == [engine.healthy]
    await engine.close()


async def test_a_refused_batch_of_an_idempotent_producer_may_come_again() -> None:
    engine = await engine_of(1)
    log = await make(engine)
    await fill(log, "x" * 100)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await append(log, batch(["y" * 100], producer=1))
    await log.delete_records(-1)
    assert (await append(log, batch(["y" * 100], producer=1))).base_offset == 1
    assert (await append(log, batch(["y" * 100], producer=1))).base_offset == 1
    assert await read_values(log) == ["y" * 100]
    await engine.close()


async def test_topics_of_the_gateway_itself_go_beyond_the_bound() -> None:
    engine = await engine_of(1)
    log = await make(engine)
    own = await engine.topics.create("__offsets", 1, {}, internal=True)
    await fill(log, "x" * 100)
    await fill(first(engine, own), "x" * 100, "y" * 100)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await append(log, batch(["y"]))
    await engine.close()


async def test_what_retention_and_compaction_free_is_used_again() -> None:
    engine = await engine_of(6)
    old = await make(engine, "old", retention_ms="1000")
    compacted = await make(engine, "compacted", cleanup_policy="compact")
    await fill(old, *["x" * 100] * 2)
    for value in "abc":
        await put(compacted, "key", value * 90)
    await engine.maintain(NOW + 1001)
    assert old.size_bytes == 0
    assert await read_values(compacted) == ["c" * 90]
    await fill(old, *["x" * 100] * 4, timestamp=NOW + 1001)
    await engine.close()


async def test_a_batch_that_was_read_stays_as_it_was_when_compaction_rewrites_it() -> None:
    engine = await engine_of(100)
    log = await make(engine, cleanup_policy="compact")
    await append(log, batch(["a", "b"], keys=["1", "2"]))
    await put(log, "1", "c")
    (held, _) = (await log.read(0, LIMIT, min_one=True)).buffers
    before = bytes(held)
    await engine.maintain(NOW)
    assert await read_values(log) == ["b", "c"]
    assert bytes(held) == before
    await engine.close()


async def test_an_append_and_a_deletion_during_compaction_are_kept() -> None:
    engine = await engine_of(100)
    log = await make(engine, cleanup_policy="compact")
    for value in ("a", "b", "c", "d"):
        await put(log, "key", value)
    compaction = asyncio.ensure_future(engine.maintain(NOW))
    await asyncio.sleep(0)
    assert not compaction.done()
    await put(log, "other", "e")
    await log.delete_records(1)
    await compaction
    assert await read_values(log) == ["d", "e"]
    assert log.size_bytes == (await log.read(3, LIMIT, min_one=True)).size
    await engine.close()


async def test_upkeep_runs_by_itself() -> None:
    interval_ms = 3_600_000
    engine = await open_engine(policy=policy_of, settings=MemorySettings(cleaner_interval_ms=lambda: interval_ms))
    log = await make(engine, retention_ms="1000")
    await fill(log, "a")
    interval_ms = 1  # which holds at once
    await until(lambda: log.log_start_offset == 1)
    assert (log.log_start_offset, log.high_watermark, log.size_bytes) == (1, 1, 0)
    await engine.close()


async def test_upkeep_without_a_pause_leaves_the_loop_some(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def repeat(_what: str, _work: object, *, every: Callable[[], float]) -> None:
        pauses.append(every())

    monkeypatch.setattr(background, "repeat", repeat)
    engine = await open_engine(policy=policy_of, settings=MemorySettings(cleaner_interval_ms=lambda: 0))
    await until(lambda: pauses)
    assert pauses == [0.01]
    await engine.close()


async def test_the_engine_after_it_has_its_own_observers_and_bound() -> None:
    store = MemoryStore(kop_memory_bytes=2 * SIZE)
    told = []
    async with store.opened() as engine:
        log = await make(engine)
        log.on_advance(lambda: told.append(1))
        await fill(log, "x" * 100)
        assert told == [1]
    async with store.opened() as engine:
        log = await attached(engine)
        await fill(log, "x" * 100)
        assert told == [1]
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await fill(log, "x" * 100)


async def test_compaction_forgets_aborted_transactions() -> None:
    engine = await engine_of(1000)
    log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    producer = TransactionalProducer(log, 1)
    for _ in range(3):
        await producer.put("a")
        await producer.end(commit=False)
    await put(log, "z", "z")
    assert len(log.aborted_between(0, 7)) == 3
    await engine.maintain(NOW)
    assert log.aborted_between(0, 7) == []
    assert await committed_values(log) == ["z"]
    await engine.close()
