"""Reads that share a thread: their number, answers and errors."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kop.errors import BackendError, ErrorCode
from kop.storage.sqlite import reader
from kop.storage.sqlite.reader import LostBatchError, Readers
from kop.storage.sqlite.segments import Segments


@asynccontextmanager
async def pool(folder: Path, threads: int, loop: Any = None) -> AsyncIterator[Readers]:
    """Give readers of an empty database."""
    path = folder / "kop.db"
    sqlite3.connect(path).close()
    loop = loop or asyncio.get_running_loop()
    readers = Readers(loop, path, Segments(folder / "files", roll_bytes=1 << 20), threads, "test", lambda *_: None)
    try:
        yield readers
    finally:
        await readers.close()


class CountingLoop:
    """The running loop, which notes the names of the jobs for threads in `jobs`."""

    def __init__(self, jobs: list[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs = jobs

    def run_in_executor(self, executor: Any, call: Any, *args: Any) -> Any:
        """Note the job, and run it."""
        self._jobs.append(call.__name__)
        return self._loop.run_in_executor(executor, call, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


Read = Callable[..., list[bytes]]


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """The queries that are run instead of reads: a read of the log N runs number N."""
    made: list[Read] = []

    def read(_connection: Any, _segments: Any, log_id: int, *_: Any) -> list[bytes]:
        return made[log_id]()

    monkeypatch.setattr(reader, "read", read)
    return made


async def all_of(readers: Readers, queries: list[Read]) -> list[Any]:
    """Read all logs in one turn, and return what came of each."""
    reads = (readers.read_batches(number, 0, 1, 1, True) for number in range(len(queries)))
    return await asyncio.gather(*reads, return_exceptions=True)


@pytest.mark.parametrize(("threads", "asked", "jobs"), [(3, 1, 1), (3, 3, 3), (2, 3, 2), (1, 10, 3)])
async def test_reads_of_one_turn_are_dealt_to_the_threads(
    tmp_path: Path, queries: list[Read], threads: int, asked: int, jobs: int
) -> None:
    queries += [lambda number=number: [b"%d" % number] for number in range(asked)]
    counted: list[str] = []
    async with pool(tmp_path, threads, CountingLoop(counted)) as readers:
        assert await all_of(readers, queries) == [[b"%d" % number] for number in range(asked)]
        assert len(counted) == jobs


async def test_a_slow_read_keeps_none_waiting_that_another_thread_can_do(tmp_path: Path, queries: list[Read]) -> None:
    go_on = threading.Event()
    queries += [lambda: [b"slow"] if go_on.wait(30) else []] + [lambda: [b"quick"]] * 11
    async with pool(tmp_path, 3) as readers:
        slow, *quick = (asyncio.ensure_future(readers.read_batches(number, 0, 1, 1, True)) for number in range(12))
        assert await asyncio.gather(*quick) == [[b"quick"]] * 11
        assert not slow.done()
        go_on.set()
        assert await slow == [b"slow"]


async def test_reads_that_are_done_are_answered_while_the_next_one_takes_its_time(
    tmp_path: Path, queries: list[Read]
) -> None:
    go_on = threading.Event()
    queries += [lambda: [b"quick"], lambda: [b"slow"] if go_on.wait(30) else []]
    async with pool(tmp_path, 1) as readers:
        quick, slow = (asyncio.ensure_future(readers.read_batches(number, 0, 1, 1, True)) for number in range(2))
        assert await quick == [b"quick"]
        assert not slow.done()
        go_on.set()
        assert await slow == [b"slow"]


async def test_reads_that_had_to_wait_for_a_thread_are_answered_so_too(
    tmp_path: Path, queries: list[Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TOGETHER_SECONDS", 0.001)
    first, second = threading.Event(), threading.Event()
    queries += [lambda: [b"first"] if first.wait(30) else [], lambda: [b"quick"]]
    queries += [lambda: [b"slow"] if second.wait(30) else []]
    async with pool(tmp_path, 1) as readers:
        held = asyncio.ensure_future(readers.read_batches(0, 0, 1, 1, True))
        await asyncio.sleep(0.01)  # until it is given to the thread
        quick, slow = (asyncio.ensure_future(readers.read_batches(number, 0, 1, 1, True)) for number in (1, 2))
        await asyncio.sleep(0.01)  # longer than the look at what is done
        first.set()
        assert await held == [b"first"]
        assert await quick == [b"quick"]
        assert not slow.done()
        second.set()
        assert await slow == [b"slow"]


async def test_large_results_are_answered_before_further_reads(
    tmp_path: Path, queries: list[Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TOGETHER_BYTES", 3)
    queries += [lambda: [b"ab"]] * 5
    counted: list[str] = []
    async with pool(tmp_path, 1, CountingLoop(counted)) as readers:
        assert await all_of(readers, queries) == [[b"ab"]] * 5
        assert len(counted) == 3


async def test_each_read_of_a_thread_has_its_own_batches_or_error(
    tmp_path: Path, queries: list[Read], caplog: pytest.LogCaptureFixture
) -> None:
    lost = LostBatchError("lost")

    def refuse(error: Exception) -> Read:
        def query() -> list[bytes]:
            raise error

        return query

    queries += [lambda: [b"first"], refuse(lost), refuse(OSError(5, "no")), refuse(KeyError("mistake"))]
    queries += [lambda: [b"last"]]
    async with pool(tmp_path, 1) as readers:
        first, second, third, fourth, last = await all_of(readers, queries)
    assert (first, last) == ([b"first"], [b"last"])
    assert second is lost
    assert lost.code is ErrorCode.CORRUPT_MESSAGE
    for error, text in ((third, "[Errno 5] no"), (fourth, "'mistake'")):
        assert isinstance(error, BackendError)
        assert error.message == f"reading the database failed: {text}"
    assert caplog.text.count("a read has failed by a mistake of this program") == 1


async def test_a_job_that_fails_refuses_what_it_had_and_what_is_left(tmp_path: Path, queries: list[Read]) -> None:
    def end() -> list[bytes]:
        raise SystemExit

    queries += [lambda: [b"first"], end] + [lambda: [b"later"]] * 6
    async with pool(tmp_path, 1) as readers:
        answers = await all_of(readers, queries)
    assert answers[0] == [b"first"]
    assert [type(answer) for answer in answers[1:]] == [BackendError] * 7


async def test_a_read_that_nobody_waits_for_is_left_out(tmp_path: Path, queries: list[Read]) -> None:
    go_on = threading.Event()
    called: list[str] = []

    def note(name: str) -> Read:
        def query() -> list[bytes]:
            called.append(name)
            return []

        return query

    queries += [lambda: [] if go_on.wait(30) else [b"late"], note("dropped"), note("kept")]
    async with pool(tmp_path, 1) as readers:
        held, dropped, kept = (asyncio.ensure_future(readers.read_batches(n, 0, 1, 1, True)) for n in range(3))
        await asyncio.sleep(0)  # they are asked for
        await asyncio.sleep(0)  # and dealt
        dropped.cancel()
        await asyncio.sleep(0)  # it is cancelled
        go_on.set()
        assert await asyncio.gather(held, kept) == [[], []]
    assert called == ["kept"]
    assert dropped.cancelled()


async def test_closed_readers_refuse_reads(tmp_path: Path, queries: list[Read]) -> None:
    queries += [list] * 2
    async with pool(tmp_path, 1) as readers:
        pass
    answers = await all_of(readers, queries)
    assert [answer.message for answer in answers] == ["the storage engine is closed"] * 2
