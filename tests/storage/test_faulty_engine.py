"""The engine by which other tests ask for faults: what it holds back or refuses leaves the log as the protocol says."""

from __future__ import annotations

import asyncio

from storage.batches import NOW, append, batch, make, read_values, refused
from support.faulty_engine import FaultyStore

from kop.errors import BackendError, ErrorCode


async def test_appends_that_are_held_go_on_in_their_order_or_fail_without_a_trace() -> None:
    store = FaultyStore()
    await make(await store.open())
    log = store.log("t")
    log.hold()
    first = [append(log, batch([value], producer=1, sequence=i)) for i, value in enumerate("ab")]
    await asyncio.sleep(0)
    assert (log.waiting, log.high_watermark) == (2, 0)
    log.release()
    assert [(await future).base_offset for future in first] == [0, 1]
    log.hold()
    lost = append(log, batch(["lost"], producer=1, sequence=2))
    log.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        await lost
    log.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await append(log, batch(["lost"], producer=1, sequence=2))
    log.append_error = None
    assert (await append(log, batch(["c"], producer=1, sequence=2))).base_offset == 2
    assert await read_values(log) == ["a", "b", "c"]


async def test_reads_wait_and_fail_as_the_test_says() -> None:
    store = FaultyStore()
    await make(await store.open())
    log = store.log("t")
    await append(log, batch(["a"]), NOW)
    log.cold, log.gate = True, asyncio.Event()
    assert log.read_cached(0, 100, min_one=True) is None
    read = asyncio.ensure_future(log.read(0, 100, min_one=True))
    await asyncio.sleep(0)
    assert (log.reads, log.reading, read.done()) == (1, 1, False)
    log.gate.set()
    assert len((await read).buffers) == 1
    log.read_error = BackendError("so says the test")
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await log.read(0, 100, min_one=True)


async def test_a_restart_finds_the_records_without_the_faults() -> None:
    store = FaultyStore()
    engine = await store.open()
    await make(engine)
    await append(store.log("t"), batch(["a"]))
    store.log("t").append_error = ErrorCode.KAFKA_STORAGE_ERROR
    await engine.close()
    await store.open()
    await append(store.log("t"), batch(["b"]))
    assert await read_values(store.log("t")) == ["a", "b"]
