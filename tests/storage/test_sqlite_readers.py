"""Reads that share a thread: which of them do, and what each of them is answered."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kop.errors import BackendError, ErrorCode
from kop.storage.sqlite.reader import TOGETHER, LostBatchError, Readers
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
    """The running loop, which notes the number of reads of each job in `jobs`."""

    def __init__(self, jobs: list[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs = jobs

    def run_in_executor(self, executor: Any, call: Any, *args: Any) -> Any:
        """Note the number, and run the job."""
        self._jobs.append(len(args[0]) if args else 0)
        return self._loop.run_in_executor(executor, call, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def number_of_thread(_connection: Any, _segments: Any) -> int:
    return threading.get_ident()


@pytest.mark.parametrize(
    ("threads", "asked", "expected"),
    [(3, 1, [1]), (3, 3, [1, 1, 1]), (3, 8, [3, 3, 2]), (2, 3, [2, 1]), (1, 10, [TOGETHER, TOGETHER, 2])],
)
async def test_reads_of_one_turn_are_dealt_to_the_threads(
    tmp_path: Path, threads: int, asked: int, expected: list[int]
) -> None:
    jobs: list[int] = []
    async with pool(tmp_path, threads, CountingLoop(jobs)) as readers:
        results = await asyncio.gather(*(readers.read_together(lambda *args: args[2:], n) for n in range(asked)))
    assert results == [(n,) for n in range(asked)]
    assert jobs[:-1] == expected, "the last job closes the readers"


async def test_each_read_of_a_thread_has_its_own_result_or_error(tmp_path: Path) -> None:
    def refuse(error: Exception) -> Any:
        def query(*_: Any) -> None:
            raise error

        return query

    async with pool(tmp_path, 1) as readers:
        lost = LostBatchError("lost")
        answers = await asyncio.gather(
            readers.read_together(lambda *_: b"first"),
            readers.read_together(refuse(lost)),
            readers.read_together(refuse(OSError(5, "Input/output error"))),
            readers.read_together(lambda *_: b"last"),
            return_exceptions=True,
        )
        assert answers[0] == b"first"
        assert answers[1] is lost
        assert lost.code is ErrorCode.CORRUPT_MESSAGE
        assert isinstance(answers[2], BackendError)
        assert "reading the database failed: [Errno 5] Input/output error" in str(answers[2])
        assert answers[3] == b"last"


async def test_a_mistake_in_a_query_is_logged_and_refuses_those_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool(tmp_path, 1) as readers:
        answers = await asyncio.gather(
            readers.read_together(lambda *_: b""), readers.read_together(lambda: b""), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [BackendError, BackendError]
        assert await readers.read_together(lambda *_: b"later") == b"later"
    assert "reads have failed by a mistake of this program" in caplog.text


async def test_a_read_that_nobody_waits_for_is_left_out(tmp_path: Path) -> None:
    called: list[str] = []
    async with pool(tmp_path, 1) as readers:
        go_on = threading.Event()
        held = asyncio.ensure_future(readers.read_together(lambda *_: go_on.wait(30)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        dropped = asyncio.ensure_future(readers.read_together(lambda *_: called.append("dropped")))
        kept = asyncio.ensure_future(readers.read_together(lambda *_: called.append("kept")))
        await asyncio.sleep(0)
        dropped.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(held, kept)
    assert called == ["kept"]
    assert dropped.cancelled()


async def test_closed_readers_refuse_reads(tmp_path: Path) -> None:
    async with pool(tmp_path, 1) as readers:
        pass
    with pytest.raises(BackendError, match="the storage engine is closed"):
        await readers.read_together(number_of_thread)
