"""What fails between a producer's window and the queue of its log, as short memory makes it: no trace is left of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from storage.batches import NOW, append, batch, read_values
from storage.engines import EngineStore, MemoryStore, SqliteStore
from storage.marked_producer import TransactionalProducer, committed_values

from kop.errors import InternalError
from kop.records.batch import read_header
from kop.storage import idempotence
from kop.storage.memory import log as memory_log
from kop.storage.sqlite import log as sqlite_log
from kop.storage.sqlite.writer import Writer
from kop.storage.transaction_index import TransactionIndex

FAULTS: dict[str, list[tuple[Any, str]]] = {
    "memory": [
        (memory_log, "stamped"),
        (memory_log, "asyncio"),
        (idempotence, "with_batch"),
        (TransactionIndex, "begin"),
    ],
    "sqlite": [
        (sqlite_log, "stamped"),
        (sqlite_log, "QueuedAppend"),
        (Writer, "append"),
        (idempotence, "with_batch"),
        (TransactionIndex, "begin"),
    ],
}
MARKER_FAULTS: dict[str, list[tuple[Any, str]]] = {
    "memory": [(memory_log, "stamped"), (memory_log, "asyncio"), (TransactionIndex, "end")],
    "sqlite": [(sqlite_log, "stamped"), (sqlite_log, "QueuedMarker"), (Writer, "append"), (TransactionIndex, "end")],
}


def cases(faults: dict[str, list[tuple[Any, str]]]) -> list[Any]:
    return [
        pytest.param(engine, where, name, id=f"{engine}-{name}")
        for engine, places in faults.items()
        for where, name in places
    ]


def store_of(engine: str, directory: Path) -> EngineStore[Any]:
    return MemoryStore() if engine == "memory" else SqliteStore(directory)


class Failing:
    """A function, or a module of functions, for which there is no memory."""

    def __getattr__(self, _: str) -> Failing:
        return self

    def __call__(self, *_: object, **__: object) -> None:
        raise MemoryError


@contextmanager
def failing(where: Any, name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, Failing())
        yield


async def log_of(engine: Any) -> Any:
    topic = await engine.topics.create("t", 1, {})
    return engine.log(topic.topic_id, 0)


@pytest.mark.parametrize(("engine", "where", "name"), cases(FAULTS))
async def test_a_batch_that_was_not_queued_is_stored_when_it_is_sent_again(
    engine: str, where: Any, name: str, tmp_path: Path
) -> None:
    async with store_of(engine, tmp_path).opened() as opened:
        log = await log_of(opened)
        await append(log, batch(["plain"], producer=1))
        before = log.producers()
        data = [batch([value], producer=2, sequence=at, transactional=True) for at, value in enumerate("ab")]
        with failing(where, name), pytest.raises(MemoryError):
            append(log, bytearray(data[0]))
        await append(log, batch(["plain"], producer=1, sequence=1))
        assert [view.producer_id for view in log.producers()] == [1]
        assert log.producers()[0].last_sequence == before[0].last_sequence + 1
        assert (log.last_stable_offset, log.high_watermark) == (2, 2)
        # Both attempts are under way together: the second one waits for the first.
        stored = [append(log, bytearray(data[0])), append(log, bytearray(data[0])), append(log, bytearray(data[1]))]
        assert [(await future).base_offset for future in stored] == [2, 2, 3]
        assert await read_values(log) == ["plain", "plain", "a", "b"]
        assert (log.last_stable_offset, log.high_watermark) == (2, 4)


@pytest.mark.parametrize(("engine", "where", "name"), cases(MARKER_FAULTS))
async def test_a_marker_that_was_not_queued_is_written_when_it_is_asked_for_again(
    engine: str, where: Any, name: str, tmp_path: Path
) -> None:
    async with store_of(engine, tmp_path).opened() as opened:
        log = await log_of(opened)
        producer = TransactionalProducer(log, 1)
        await producer.put("a")
        with failing(where, name), pytest.raises(MemoryError):
            producer.end(commit=True)
        assert (log.last_stable_offset, log.high_watermark) == (0, 1)
        await producer.end(commit=True, epoch=producer.epoch)
        assert (log.last_stable_offset, log.high_watermark) == (2, 2)
        await producer.end(commit=True, epoch=producer.epoch)
        assert log.high_watermark == 2
        await producer.put("b")
        assert await committed_values(log) == ["a"]


async def test_a_duplicate_of_a_batch_that_nobody_writes_is_not_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqliteStore(tmp_path).opened() as engine:
        log = await log_of(engine)
        await TransactionalProducer(log, 1).put("a")
        assert log.producer_states is not None
        header = read_header(batch(["b"], producer=2))
        log.producer_states.append(header, 1, NOW)
        log.producer_states.append_marker(1, 1, 2, NOW, NOW, commit=True)
        with caplog.at_level(logging.ERROR), pytest.raises(InternalError):
            await append(log, batch(["b"], producer=2))
        with pytest.raises(InternalError):
            await log.end_transaction(1, 1, commit=True, coordinator_epoch=0, bumps_epoch=True, now_ms=NOW)
        assert [record.getMessage() for record in caplog.records] == [
            f"t-0: nobody writes the batch at offset {offset}, sent again now" for offset in (1, 2)
        ]
        log.producer_states.rollback(1)
        assert (await append(log, batch(["b"], producer=2))).base_offset == 1
