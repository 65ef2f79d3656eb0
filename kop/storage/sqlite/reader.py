"""Reading from the database: a few threads, each with a connection of its own, and the queries of a log.

Owns: every SELECT on batches. Must not know: the writer, the cache, what a log does with the answers.

Each query is its own short read transaction: a long one keeps checkpoints from emptying the write-ahead log. A read is
two of them, how many batches fit and then those; so no batch is brought up only to be too much.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from kop.errors import BackendError
from kop.storage.sqlite.schema import connect

T = TypeVar("T")

_MAX_BATCHES = 4096
"""The most batches of one read."""


class BatchRow(NamedTuple):
    """What the index knows of a batch."""

    id: int
    base: int
    last: int
    timestamp: int
    size: int


class Readers:
    """A pool of reading threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, threads: int, name: str) -> None:
        self._loop = loop
        self._path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"kop-sqlite-{name}")

    async def run(self, query: Callable[..., T], *args: object) -> T:
        """Run `query(connection, *args)` on a thread. An sqlite3.Error becomes BackendError."""
        try:
            job = self._loop.run_in_executor(self._pool, self._call, query, args)
        except RuntimeError as error:
            raise BackendError("the storage engine is closed") from error
        try:
            return await job
        except sqlite3.Error as error:
            raise BackendError(f"the database failed: {error}") from error

    def _call(self, query: Callable[..., T], args: tuple[object, ...]) -> T:
        conn: sqlite3.Connection | None = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._local.conn = connect(self._path, write=False)
            self._connections.append(conn)
        return query(conn, *args)

    async def close(self) -> None:
        """Wait for running reads, close the connections."""
        await self._loop.run_in_executor(None, self._pool.shutdown)
        for conn in self._connections:
            conn.close()


def scan(
    conn: sqlite3.Connection, log_id: int, first_offset: int, before_offset: int, limit: int = 1000
) -> list[BatchRow]:
    """Batches that hold or follow `first_offset` and end before `before_offset`, in order, without their bytes."""
    return list(
        map(
            BatchRow._make,
            conn.execute(
                "SELECT id, base, last, timestamp, size FROM batch INDEXED BY batch_of_log"
                " WHERE log = ? AND last >= ? AND last < ? ORDER BY last LIMIT ?",
                (log_id, first_offset, before_offset, limit),
            ),
        )
    )


def _fitting(
    conn: sqlite3.Connection, log_id: int, offset: int, end: int, max_bytes: int, min_one: bool
) -> tuple[int, int]:
    """How many batches from `offset` on fit in `max_bytes`, by the index alone, and their bytes."""
    count = total = 0
    for (size,) in conn.execute(
        "SELECT size FROM batch INDEXED BY batch_of_log WHERE log = ? AND last >= ? AND last < ? ORDER BY last LIMIT ?",
        (log_id, offset, end, _MAX_BATCHES),
    ):
        if total + size > max_bytes and (count or not min_one):
            break
        count += 1
        total += size
    return count, total


def read(
    conn: sqlite3.Connection, log_id: int, offset: int, high_watermark: int, max_bytes: int, min_one: bool
) -> list[bytes]:
    """Whole batches from the one that holds `offset`, or follows where it is gone, up to `max_bytes`."""
    count, size = _fitting(conn, log_id, offset, high_watermark, max_bytes, min_one)
    if not count:
        return []
    rows = conn.execute(
        "SELECT data FROM batch INDEXED BY batch_of_log WHERE log = ? AND last >= ? AND last < ? ORDER BY last LIMIT ?",
        (log_id, offset, high_watermark, count),
    ).fetchall()
    batches: list[bytes] = [row[0] for row in rows]
    while len(batches) > 1 and sum(map(len, batches)) > max(size, max_bytes):
        batches.pop()  # batches went between the two queries, larger ones took their places
    return batches


def read_rows(
    conn: sqlite3.Connection, log_id: int, offset: int, end: int, max_bytes: int
) -> list[tuple[BatchRow, bytes]]:
    """As `read`, at least one batch, with what the index knows of each. One more may be brought up than fits."""
    rows: list[tuple[BatchRow, bytes]] = []
    for *row, data in conn.execute(
        "SELECT id, base, last, timestamp, size, data FROM batch INDEXED BY batch_of_log"
        " WHERE log = ? AND last >= ? AND last < ? ORDER BY last LIMIT ?",
        (log_id, offset, end, _MAX_BATCHES),
    ):
        max_bytes -= len(data)
        if max_bytes < 0 and rows:
            break
        rows.append((BatchRow._make(row), data))
    return rows


def read_one(conn: sqlite3.Connection, log_id: int, last: int) -> bytes | None:
    """The batch that ends at offset `last`, or None where it is gone."""
    row = conn.execute(
        "SELECT data FROM batch INDEXED BY batch_of_log WHERE log = ? AND last = ?", (log_id, last)
    ).fetchone()
    return None if row is None else row[0]


def first_at(conn: sqlite3.Connection, log_id: int, timestamp: int, start: int, end: int) -> BatchRow | None:
    """The first batch of [start, end) whose max timestamp is at or after `timestamp`, by the index alone."""
    row = conn.execute(
        "SELECT id, base, last, timestamp, size FROM batch INDEXED BY batch_of_log"
        " WHERE log = ? AND last >= ? AND last < ? AND timestamp >= ? ORDER BY last LIMIT 1",
        (log_id, start, end, timestamp),
    ).fetchone()
    return None if row is None else BatchRow._make(row)


def newest(conn: sqlite3.Connection, log_id: int, start: int, end: int) -> int | None:
    """The largest max timestamp among the batches of [start, end), or None where no batch has one."""
    timestamp: int | None = conn.execute(
        "SELECT max(timestamp) FROM batch INDEXED BY batch_of_log WHERE log = ? AND last >= ? AND last < ?",
        (log_id, start, end),
    ).fetchone()[0]
    return None if timestamp is None or timestamp < 0 else timestamp


def get_state(conn: sqlite3.Connection, key: str) -> str | None:
    """A small value of the gateway's own, or None."""
    row = conn.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]
