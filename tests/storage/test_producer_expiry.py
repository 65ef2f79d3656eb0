"""When idempotent producers are forgotten: by a clock that does not jump; a start goes by what was stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage.batches import NOW, append, batch
from storage.engines import Clocks, EngineStore, MemoryStore, SqliteStore

from kop.storage.base import Engine, PartitionLog

DAY = 86_400_000


@pytest.fixture(params=["memory", "sqlite"])
def one_process(request: pytest.FixtureRequest, tmp_path: Path) -> EngineStore[Engine]:
    make = MemoryStore if request.param == "memory" else lambda **settings: SqliteStore(tmp_path, **settings)
    store: EngineStore[Engine] = make(producer_id_expiration_ms=DAY)
    return store


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


async def log_of(engine: Engine) -> PartitionLog:
    topic = engine.topics.get("t") or await engine.topics.create("t", 1, {})
    log = engine.log(topic.topic_id, 0)
    assert log is not None
    return log


def ids(log: PartitionLog) -> list[int]:
    return [view.producer_id for view in log.producers()]


@pytest.mark.parametrize("jump", [400 * DAY, -400 * DAY])
async def test_a_jump_of_the_wall_clock_forgets_no_producer(
    one_process: EngineStore[Engine], clocks: Clocks, jump: int
) -> None:
    async with one_process.opened() as engine:
        log = await log_of(engine)
        await append(log, batch(["a"], producer=1))
        clocks.wall += jump
        await engine.maintain(NOW + jump)
        assert (await append(log, batch(["a"], producer=1))).base_offset == 0
        await append(log, batch(["b"], producer=2), now_ms=NOW + jump)
        clocks.advance(DAY - 1)
        await engine.maintain(NOW)
        assert ids(log) == [1, 2]
        await append(log, batch(["b"], producer=2, sequence=1))
        clocks.advance(1)
        await engine.maintain(NOW)
        assert ids(log) == [2]


async def test_a_start_goes_by_the_time_since_a_producer_was_seen(tmp_path: Path, clocks: Clocks) -> None:
    store = SqliteStore(tmp_path, producer_id_expiration_ms=DAY)
    async with store.opened() as engine:
        log = await log_of(engine)
        await append(log, batch(["a"], producer=1))
        clocks.wall += 400 * DAY  # it was wrong, and is set right
        clocks.advance(DAY // 2)
        await append(log, batch(["b"], producer=2))
    clocks.advance(DAY // 4)
    clocks.restart()
    async with store.opened() as engine:
        log = await log_of(engine)
        clocks.advance(DAY // 4 - 1)
        await engine.maintain(NOW)
        assert ids(log) == [1, 2]
        clocks.advance(1)
        await engine.maintain(NOW)
        assert ids(log) == [2]
    clocks.wall -= 800 * DAY  # what is stored lies ahead: the producer counts as seen now
    clocks.restart()
    async with store.opened() as engine:
        log = await log_of(engine)
        clocks.advance(DAY - 1)
        await engine.maintain(NOW)
        assert ids(log) == [2]
        clocks.advance(1)
        await engine.maintain(NOW)
        assert ids(log) == []
