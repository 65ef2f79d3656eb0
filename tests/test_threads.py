"""Threads that end unexpectedly: their pool, the embedded engine, the process of `kop serve`."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import uvloop
from storage.batches import append, batch, first, make, read_values, refused
from storage.engines import SqliteStore
from storage.sqlite_tools import InterceptedStore
from support.waiting import SECONDS, until

from kop import threads
from kop.errors import BackendError, ErrorCode
from kop.storage.sqlite import writer
from kop.storage.sqlite.log import SqliteLog
from kop.threads import Threads

ROOT = Path(__file__).parent.parent


class Ends:
    """Who is told of threads that have ended."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, name: str, error: BaseException) -> None:
        self.told.append((name, repr(error)))


def fail(*_: object, **__: object) -> Any:
    raise MemoryError


# --- the pool


def test_all_threads_of_a_pool_begin_with_it() -> None:
    pool = Threads(3, "begun", Ends())
    assert {thread.name for thread in threading.enumerate()} >= {"begun_0", "begun_1", "begun_2"}
    at_once = threading.Barrier(3)
    assert [future.result(60) for future in [pool.submit(at_once.wait, 60) for _ in range(3)]] != []
    assert pool.submit(divmod, 7, 2).result(60) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 7, 0).result(60)
    pool.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("begun")]
    with pytest.raises(RuntimeError):
        pool.submit(print)


def test_the_end_of_a_thread_is_told_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends()
    pool = Threads(1, "ending", ends)
    entered, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        entered.set()
        assert go.wait(60)
        raise MemoryError

    monkeypatch.setattr(threads, "do", hold)
    pool.submit(print)
    assert entered.wait(60)
    waits = pool.submit(print)
    go.set()
    with pytest.raises(BackendError, match="the thread ending_0 has ended"):
        waits.result(60)
    assert ends.told == [("ending_0", "MemoryError()")]
    with pytest.raises(RuntimeError):
        pool.submit(print)


def test_a_thread_that_ends_during_the_shutdown_leaves_the_others_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends()
    pool = Threads(2, "closing", ends)
    entered, go, fails = threading.Semaphore(0), threading.Semaphore(0), iter((True, False))

    def hold(*_: object) -> None:
        entered.release()
        assert go.acquire(timeout=60)
        if next(fails):
            raise MemoryError

    monkeypatch.setattr(threads, "do", hold)
    for _ in range(2):
        pool.submit(print)
    for _ in range(2):
        assert entered.acquire(timeout=60)
    waits = pool.submit(print)
    pool.shutdown(wait=False)
    go.release()
    with pytest.raises(BackendError, match="has ended"):
        waits.result(60)
    go.release()
    for thread in threading.enumerate():
        if thread.name.startswith("closing_"):
            thread.join(10)
            assert not thread.is_alive()
    assert len(ends.told) == 1


def test_it_may_be_the_executor_of_a_loop() -> None:
    pool = Threads(2, "side", Ends())

    async def use() -> str:
        asyncio.get_running_loop().set_default_executor(pool)
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    assert uvloop.run(use()).startswith("side_")
    with pytest.raises(RuntimeError):
        pool.submit(print)  # the end of the loop has ended it


# --- the embedded engine


async def test_reading_threads_begin_when_the_store_opens(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with SqliteStore(tmp_path, reader_threads=3).opened():
        names = {thread.name for thread in threading.enumerate() if thread not in before}
        assert names >= {
            "kop-sqlite-writer",
            *(f"kop-sqlite-reader_{number}" for number in range(3)),
            "kop-sqlite-maintenance_0",
            "kop-sqlite-checkpoint_0",
        }


async def test_the_end_of_the_writer_is_told_and_ends_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends()
    store = SqliteStore(tmp_path, ended=ends)
    async with store.opened() as engine:
        log = await make(engine)
        await append(log, batch(["before"], producer=1))
        with monkeypatch.context() as patch:
            patch.setattr(writer, "MAX_COMMIT_BYTES", None)
            changed = asyncio.ensure_future(engine.put_state("a", "b"))
            for waiting in [append(log, batch(["lost"], producer=1, sequence=1 + at)) for at in range(2)]:
                with pytest.raises(BackendError, match="kop-sqlite-writer has ended"):
                    await waiting
            with pytest.raises(BackendError, match="kop-sqlite-writer has ended"):
                await changed
        assert [name for name, _ in ends.told] == ["kop-sqlite-writer"]
        assert "kop-sqlite-writer has ended" in str(engine.healthy)
        assert (engine.queued_bytes, log.high_watermark) == (0, 1)
        for _ in range(2):
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await append(log, batch(["lost"], producer=1, sequence=1))
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await engine.put_state("a", "b")
        assert await read_values(log) == ["before"]
    async with store.opened() as engine:
        assert engine.healthy is None
        assert (await append(first(engine), batch(["lost"], producer=1, sequence=1))).base_offset == 1


async def test_what_the_loop_could_not_take_ends_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends()
    store = InterceptedStore(tmp_path)
    store.ended = ends
    async with store.opened() as engine:
        log = await make(engine)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        store.before = lambda sql: fail() if sql.startswith("INSERT INTO batch") else None
        monkeypatch.setattr(SqliteLog, "failed", fail)
        lost = append(log, batch(["lost"]))
        await until(lambda: bool(ends.told))
        store.before = None
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await engine.put_state("a", "b")
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, batch(["behind"]))
        assert not lost.done()
        assert log.high_watermark == 0
    async with store.opened() as engine:
        assert await read_values(first(engine)) == []


async def test_the_end_of_a_reader_is_told_and_the_engine_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends()
    async with SqliteStore(tmp_path, ended=ends, reader_threads=1).opened() as engine:
        log = await make(engine)
        await append(log, batch(["before"]))
        with monkeypatch.context() as patch:
            patch.setattr(threads, "do", fail)
            reading = asyncio.ensure_future(engine.get_state("a"))
            await until(lambda: engine.healthy is not None)
        assert ends.told == [("kop-sqlite-reader_0", "MemoryError()")]
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, batch(["after"]))
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await engine.get_state("a")
        reading.cancel()


async def test_short_memory_fails_a_commit_and_what_that_bound_is_let_go(tmp_path: Path) -> None:
    ends = Ends()
    store = InterceptedStore(tmp_path)
    store.ended = ends
    async with store.opened() as engine:
        log = await make(engine)
        left = {"INSERT": 1, "unbind": 1}

        def short(sql: str) -> None:
            if not sql.startswith("INSERT INTO batch"):
                return
            for step in ("INSERT", "unbind"):
                if left[step]:
                    left[step] -= 1
                    raise MemoryError

        store.before = short
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, batch(["short"], producer=1))
        assert left == {"INSERT": 0, "unbind": 0}

        def bound() -> bool:
            return any(value is not None for sql, (values,) in inserts() for value in values)

        def inserts() -> list[tuple[str, Any]]:
            return [(sql, values) for sql, values in store.values.items() if sql.startswith("INSERT INTO batch")]

        await until(lambda: inserts() and not bound())
        assert (await append(log, batch(["short"], producer=1))).base_offset == 0
        assert engine.healthy is None
        assert ends.told == []


async def test_a_commit_that_cannot_be_rolled_back_ends_the_writer(tmp_path: Path) -> None:
    ends = Ends()
    store = InterceptedStore(tmp_path)
    store.ended = ends
    async with store.opened() as engine:
        log = await make(engine)
        steps: list[str] = []

        def short(sql: str) -> None:
            steps.append(sql.partition(" ")[0])
            if sql.startswith("UPDATE") or sql == "ROLLBACK":
                raise MemoryError

        store.before = short

        def write(conn: sqlite3.Connection) -> None:
            conn.execute("UPDATE meta SET value = value")

        with pytest.raises(BackendError):
            await engine.writer.run(write)
        assert steps == ["BEGIN", "SELECT", "UPDATE", "ROLLBACK"]
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, batch(["in an open transaction"]))
        assert [name for name, _ in ends.told] == ["kop-sqlite-writer"]


# --- the process

SERVE = """
import asyncio, sys
from kop import app, threads
from kop.config import Config
from kop.storage.sqlite.writer import Writer

def fail(*_, **__):
    raise MemoryError

async def start(*args, **kwargs):
    serving = await begin(*args, **kwargs)
    engine, loop = serving.gateway.engine, asyncio.get_running_loop()
    what = sys.argv[1]
    if what == "writer":
        Writer._operate = fail
        loop.create_task(engine.put_state("a", "b"))
    elif what == "loop":
        engine.writer._to_loop(fail)
    else:
        threads.do = fail
        loop.create_task(engine.get_state("a") if what == "reader" else asyncio.to_thread(print))
    return serving

begin, app.start = app.start, start
overrides = {"store": "sqlite:" + sys.argv[2], "listen": "127.0.0.1:0", "http": ""}
app.run(Config.load(overrides=overrides, environ={}))
"""


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("writer", "kop-sqlite-writer"),
        ("loop", "kop-sqlite-writer"),
        ("reader", "kop-sqlite-reader_"),
        ("side", "kop-side_"),
    ],
)
def test_a_thread_that_ends_ends_the_process_with_an_error(what: str, name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, what, str(tmp_path / "kop.db")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 1, done.stderr
    assert f"the thread {name}" in done.stderr
    assert "this process ends" in done.stderr
