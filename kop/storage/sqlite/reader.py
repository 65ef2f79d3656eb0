"""Reading from the database: a few threads, each with a connection of its own, the queries of a log, look-ups by time.

Owns: every SELECT on batches; which batch can hold the record that a look-up asks for.
Must not know: the writer, the cache, what a log does with the answers.

Each query is its own short read transaction: a long one keeps checkpoints from emptying the write-ahead log. A read is
two of them, how many batches fit and then those; so no batch is brought up only to be too much.

A batch that lies beside the database is read after its row. Its file may be gone by then, because what was left in it
was moved into the database: the row tells so when it is read again. A batch that is not in its place then is lost:
reads of it fail with CORRUPT_MESSAGE, and go on behind it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import operator
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from kop.errors import BackendError, ErrorCode, KopError, without_frames
from kop.records.batch import first_at_or_after, max_timestamp_record, read_header
from kop.storage.base import MOST_UNCOMPRESSED, Buffer
from kop.storage.sqlite.schema import connect
from kop.storage.sqlite.segments import Segments
from kop.threads import Ended, Threads

T = TypeVar("T")

_log = logging.getLogger(__name__)
_BEGINNING = struct.Struct(">qi")
"""The layout of the beginning of every batch: its base offset and the number of bytes that follow."""
_MAX_BATCHES = 4096
"""The most batches of one read."""
TOGETHER = 4
"""The most reads that one thread does before the first of them is answered."""
TOGETHER_BYTES = 4 << 20
"""The bytes from which on a thread answers the reads that it has done."""
TOGETHER_SECONDS = 0.01
"""The seconds after which the reads that a thread has done are answered, so that none waits longer for a slow one."""
_TRIES = 3
"""The number of times that rows are read whose files are gone. Twice is enough, unless moving overtakes the reading
again.
"""


class LostBatchError(BackendError):
    """An error CORRUPT_MESSAGE for a batch that is not at the place that its row names; the log goes on behind it."""

    default_code = ErrorCode.CORRUPT_MESSAGE


class BatchRow(NamedTuple):
    """The values of a batch's row that the index holds, without its bytes."""

    id: int
    base: int
    last: int
    timestamp: int
    size: int


_Place: TypeAlias = tuple[int, int, int | None, int, bytes]
"""The values of a batch's row by which it is brought up: base offset, size, segment, position there, data."""


class BatchInFile(NamedTuple):
    """A batch that lies in a segment file, with its row's id and its position there."""

    id: int
    position: int
    data: Buffer


class _Asked(NamedTuple):
    """A read that was asked for: the future of its result, and the arguments of `read` behind the first two."""

    answer: asyncio.Future[list[Buffer]]
    args: tuple[int, int, int, int, bool]


class _Done(NamedTuple):
    """The reads that a thread has taken, and their results in the same order: batches, or an error without frames. The
    one under way has no result yet. The thread adds to both, the loop reads them.
    """

    taken: list[_Asked]
    results: list[list[Buffer] | KopError]

    def answer(self) -> None:
        """Answer the reads that are done."""
        for asked, result in zip(self.taken, self.results, strict=False):
            _answer(asked, result)


class Readers:
    """The pool of reading threads, all of which start when it is made. `segments` are the files of the database at
    `path`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        segments: Segments,
        threads: int,
        name: str,
        ended: Ended,
    ) -> None:
        self._loop = loop
        self._path = path
        self._segments = segments
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._count = threads
        self._pool = Threads(threads, f"kop-sqlite-{name}", ended)
        self._asked: list[_Asked] = []
        """The reads that were asked for in this turn of the loop."""

    async def run(self, query: Callable[..., T], *args: object) -> T:
        """Run `query(connection, *args)` on a thread. Errors of the database, the disk or memory become
        BackendError.
        """
        try:
            job = self._loop.run_in_executor(self._pool, self._call, query, args)
        except RuntimeError as error:
            raise BackendError("the storage engine is closed") from error
        try:
            return await job
        except (sqlite3.Error, OSError, MemoryError) as error:
            raise BackendError(_told(error)) from error

    async def read(self, query: Callable[..., T], *args: object) -> T:
        """Run a query that reads batches on a thread: `query(connection, segments, *args)`. Errors become
        BackendError.
        """
        return await self.run(query, self._segments, *args)

    async def read_batches(
        self, log_id: int, offset: int, high_watermark: int, max_bytes: int, min_one: bool
    ) -> list[Buffer]:
        """Return the batches that the function `read` of this module finds, on a thread. Errors become BackendError.

        Reads that are asked for in one turn of the loop are shared by the threads. A thread does up to four of them,
        or 4 MiB, before they are answered, because waking a thread, and then the loop, takes as much CPU as a small
        read. What is done after 10 ms is answered then.
        """
        answer: asyncio.Future[list[Buffer]] = self._loop.create_future()
        if not self._asked:
            self._loop.call_soon(self._deal)
        self._asked.append(_Asked(answer, (log_id, offset, high_watermark, max_bytes, min_one)))
        return await answer

    def _deal(self) -> None:
        try:
            left = deque(self._asked)
            self._asked.clear()
        except MemoryError as error:
            _refuse(self._asked, _told(error))
            return
        for _ in range(min(self._count, len(left))):
            self._begin(left)

    def _begin(self, left: deque[_Asked]) -> None:
        """Let a thread do some of the reads that are left; those that no thread has begun are refused if that fails."""
        try:
            done = _Done([], [])
            ended = partial(self._ended, left, done)
            job = self._loop.run_in_executor(self._pool, self._read_some, left, done)
            job.add_done_callback(ended)
            self._loop.call_later(TOGETHER_SECONDS, self._look, job, done)
        except RuntimeError:
            _refuse(left, "the storage engine is closed")
        except MemoryError as error:
            _refuse(left, _told(error))

    def _look(self, job: asyncio.Future[None], done: _Done) -> None:
        """Answer the reads of a job that are done, each 10 ms until it ends."""
        done.answer()
        if not job.done():
            self._loop.call_later(TOGETHER_SECONDS, self._look, job, done)

    def _read_some(self, left: deque[_Asked], done: _Done) -> None:
        """Do some of the reads that are left, from which other threads take, too. Those that nobody waits for any more
        are dropped.
        """
        size = 0
        while len(done.results) < TOGETHER and size < TOGETHER_BYTES:
            try:
                asked = left.popleft()
            except IndexError:
                break
            if asked.answer.cancelled():
                continue
            try:
                done.taken.append(asked)
            except MemoryError:
                left.append(asked)  # so that it is refused with the others
                raise
            result = self._read_one(asked)
            done.results.append(result)
            size += sum(map(len, result)) if isinstance(result, list) else 0

    def _read_one(self, asked: _Asked) -> list[Buffer] | KopError:
        try:
            return self._call(read, (self._segments, *asked.args))
        except KopError as error:
            return without_frames(error)
        except (sqlite3.Error, OSError, MemoryError) as error:
            return BackendError(_told(error))
        except Exception as error:
            _log.exception("a read has failed by a mistake of this program")
            return BackendError(_told(error))

    def _ended(self, left: deque[_Asked], done: _Done, job: asyncio.Future[None]) -> None:
        done.answer()
        done.results.clear()  # `_look` has them for some more milliseconds
        error = job.exception()
        if error is not None:  # memory is short, or a thread of the pool has ended
            _refuse(done.taken, _told(error))
            _refuse(left, _told(error))
        elif left:
            self._begin(left)

    def _call(self, query: Callable[..., T], args: tuple[object, ...]) -> T:
        conn: sqlite3.Connection | None = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._local.conn = connect(self._path, write=False)
            self._connections.append(conn)
        return query(conn, *args)

    async def close(self) -> None:
        """Wait for the reads that were given to threads, and close the connections. Further ones are refused."""
        await self._loop.run_in_executor(None, self._pool.shutdown)
        for conn in self._connections:
            conn.close()


def _told(error: BaseException) -> str:
    return f"reading the database failed: {str(error) or repr(error)}"


def _answer(asked: _Asked, result: list[Buffer] | KopError) -> None:
    if asked.answer.done():  # nobody waits any more
        return
    if isinstance(result, KopError):
        asked.answer.set_exception(result)
    else:
        asked.answer.set_result(result)


def _refuse(left: MutableSequence[_Asked], text: str) -> None:
    while left:
        error = BackendError(text)
        try:
            _answer(left.pop(), error)
        except IndexError:  # a thread was quicker
            return


def scan(
    conn: sqlite3.Connection, log_id: int, first_offset: int, before_offset: int, limit: int = 1000
) -> list[BatchRow]:
    """Return the rows of batches that hold or follow `first_offset` and end before `before_offset`, in order, without
    their bytes.
    """
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
    """Return the number of batches from `offset` on that fit in `max_bytes`, by the index alone, and their bytes."""
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
    conn: sqlite3.Connection,
    segments: Segments,
    log_id: int,
    offset: int,
    high_watermark: int,
    max_bytes: int,
    min_one: bool,
) -> list[Buffer]:
    """Return whole batches up to `max_bytes` before the high watermark, from the one that holds `offset` on, or the
    next one if that is gone. With `min_one` the first is taken whatever its size. LostBatchError if the first is lost.
    """
    count, size = _fitting(conn, log_id, offset, high_watermark, max_bytes, min_one)
    if not count:
        return []

    def query() -> list[Buffer]:
        return _bring_up(
            segments,
            conn.execute(
                "SELECT base, size, segment, position, data FROM batch INDEXED BY batch_of_log"
                " WHERE log = ? AND last >= ? AND last < ? ORDER BY last LIMIT ?",
                (log_id, offset, high_watermark, count),
            ).fetchall(),
        )

    try:
        batches = _again(query)
    except LostBatchError as lost:
        rows = scan(conn, log_id, offset, high_watermark, 1)
        if not rows:
            return []  # gone since
        raise LostBatchError(f"{lost.message}; the log goes on behind it, at offset {rows[0].last + 1}") from None
    while len(batches) > 1 and sum(map(len, batches)) > max(size, max_bytes):
        batches.pop()  # batches went between the two queries, larger ones took their places
    return batches


def read_rows(
    conn: sqlite3.Connection, segments: Segments, log_id: int, offset: int, end: int, max_bytes: int
) -> list[tuple[BatchRow, Buffer]]:
    """Return whole batches up to `max_bytes` from `offset` on and before `end`, each with its row; the first whatever
    its size. It ends before a lost batch; LostBatchError if that is the first.
    """

    def query() -> list[tuple[BatchRow, Buffer]]:
        rows: list[tuple[BatchRow, Buffer]] = []
        room = max_bytes
        for *values, segment, position, data in conn.execute(
            "SELECT id, base, last, timestamp, size, segment, position, data FROM batch INDEXED BY batch_of_log"
            " WHERE log = ? AND last >= ? AND last < ? ORDER BY last LIMIT ?",
            (log_id, offset, end, _MAX_BATCHES),
        ):
            row = BatchRow._make(values)
            room -= row.size
            if room < 0 and rows:
                break
            try:
                batches = _bring_up(segments, [(row.base, row.size, segment, position, data)])
            except (LostBatchError, FileNotFoundError):
                if rows:
                    break
                raise
            rows.append((row, batches[0]))
        return rows

    return _again(query)


def read_one(conn: sqlite3.Connection, segments: Segments, log_id: int, last: int) -> Buffer | None:
    """Return the batch that ends at offset `last`; None if it is gone or lost."""
    try:
        batches = read(conn, segments, log_id, last, last + 1, 0, True)
    except LostBatchError:
        return None
    return batches[0] if batches else None


def _again(query: Callable[[], T]) -> T:
    """Return the result of a query; run it again, up to two times, if a segment file went between a row and the look
    into the file. LostBatchError if it is still not there.
    """
    for _ in range(_TRIES - 1):
        try:
            return query()
        except FileNotFoundError:
            pass
    try:
        return query()
    except FileNotFoundError as error:
        raise LostBatchError(f"{error.filename} is not there any more: it holds batches of this database") from None


def _bring_up(segments: Segments, rows: Sequence[_Place]) -> list[Buffer]:
    """Return the batches of rows. A file is opened once for neighbours that lie in it, and batches that lie behind one
    another there are read at once.

    If a batch cannot be read, those before it are returned; an error is raised if it is the first.
    """
    batches: list[Buffer] = []
    try:
        for segment, neighbours in itertools.groupby(rows, key=operator.itemgetter(2)):
            if segment is None:
                batches += [row[4] for row in neighbours]
                continue
            places = list(neighbours)
            brought = _from_file(segments, segment, places)
            batches += brought
            if len(brought) < len(places):
                break
    except (BackendError, OSError):
        if not batches:
            raise
    return batches


def _from_file(segments: Segments, segment: int, rows: Sequence[_Place]) -> list[Buffer]:
    """Read batches from a segment file; return those before a damaged one. LostBatchError if the first is damaged,
    OSError if the disk does not give it.
    """
    spans: list[tuple[int, int]] = []
    ends: list[int] = []  # for each span the number of batches up to its end
    for count, (_, size, _, position, _) in enumerate(rows, 1):
        if spans and sum(spans[-1]) == position:
            spans[-1] = (spans[-1][0], spans[-1][1] + size)
            ends[-1] = count
        else:
            spans.append((position, size))
            ends.append(count)
    try:
        parts = segments.read(segment, spans)
    except FileNotFoundError:
        raise
    except OSError:
        if len(rows) == 1:
            raise
        return _from_file(segments, segment, rows[: len(rows) // 2])  # a later batch may be the one that fails
    batches: list[Buffer] = []
    for data, (begin, _), end in zip(parts, spans, ends, strict=False):
        whole = memoryview(data)
        for base, size, _, position, _ in rows[len(batches) : end]:
            batch = whole[position - begin : position - begin + size]
            if len(batch) < size or batch[:12] != _BEGINNING.pack(base, size - 12):
                if batches:
                    return batches
                raise LostBatchError(
                    f"{segments.path(segment)} is damaged: the batch at offset {base} is not at byte {position}"
                )
            batches.append(batch)
    return batches


def first_at(conn: sqlite3.Connection, log_id: int, timestamp: int, start: int, end: int) -> BatchRow | None:
    """Return the row of the first batch of [start, end) whose max timestamp is at or after `timestamp`, by the index
    alone.
    """
    row = conn.execute(
        "SELECT id, base, last, timestamp, size FROM batch INDEXED BY batch_of_log"
        " WHERE log = ? AND last >= ? AND last < ? AND timestamp >= ? ORDER BY last LIMIT 1",
        (log_id, start, end, timestamp),
    ).fetchone()
    return None if row is None else BatchRow._make(row)


def newest(conn: sqlite3.Connection, log_id: int, start: int, end: int) -> int | None:
    """Return the largest max timestamp of the batches in [start, end); None if none has one."""
    timestamp: int | None = conn.execute(
        "SELECT max(timestamp) FROM batch INDEXED BY batch_of_log WHERE log = ? AND last >= ? AND last < ?",
        (log_id, start, end),
    ).fetchone()[0]
    return None if timestamp is None or timestamp < 0 else timestamp


def referenced(conn: sqlite3.Connection) -> list[int]:
    """Return the numbers of the segment files in which batches lie. Looks into the index once for each of them."""
    numbers: list[int] = []
    query = "SELECT min(segment) FROM batch INDEXED BY batch_of_segment WHERE segment > ?"
    while (number := conn.execute(query, (numbers[-1] if numbers else 0,)).fetchone()[0]) is not None:
        numbers.append(number)
    return numbers


def count_in(conn: sqlite3.Connection, segment: int) -> int:
    """Return the number of batches that lie in a segment file."""
    count: int = conn.execute(
        "SELECT count(*) FROM batch INDEXED BY batch_of_segment WHERE segment = ?", (segment,)
    ).fetchone()[0]
    return count


def bytes_left(conn: sqlite3.Connection) -> dict[int, int]:
    """Return the bytes of batches in each segment file that has any, by its number."""
    return dict(
        conn.execute(
            "SELECT segment, sum(size) FROM batch INDEXED BY batch_of_segment"
            " WHERE segment IS NOT NULL GROUP BY segment"
        )
    )


def rest_of(conn: sqlite3.Connection, segments: Segments, segment: int, max_bytes: int) -> list[BatchInFile]:
    """Return the next batches that are left in a segment file, up to the one that reaches `max_bytes`; none if no batch
    is left. LostBatchError if one is damaged.
    """
    rest: list[BatchInFile] = []
    for row_id, base, size, position in conn.execute(
        "SELECT id, base, size, position FROM batch INDEXED BY batch_of_segment WHERE segment = ?", (segment,)
    ):
        (data,) = _from_file(segments, segment, [(base, size, segment, position, b"")])
        rest.append(BatchInFile(row_id, position, data))
        max_bytes -= size
        if max_bytes <= 0:
            break
    return rest


def get_state(conn: sqlite3.Connection, key: str) -> str | None:
    """Return one of the gateway's small values by its key; None if there is none."""
    row = conn.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def by_time(
    conn: sqlite3.Connection, segments: Segments, log_id: int, start: int, end: int, timestamp: int
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record of a log at or after `timestamp` (ms); None if there is none."""
    offset = start
    while (row := first_at(conn, log_id, timestamp, offset, end)) is not None:
        data = read_one(conn, segments, log_id, row.last)
        if data is not None:
            record = first_at_or_after(
                data, read_header(data), timestamp, max_bytes=MOST_UNCOMPRESSED, from_offset=start
            )
            if record is not None:
                return record
        # Gone since, lost, or the record lies before the log start.
        offset = row.last + 1
    return None


def max_timestamp(
    conn: sqlite3.Connection, segments: Segments, log_id: int, start: int, end: int
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record of a log with the largest timestamp; None if no record has
    one.
    """
    best: tuple[int, int] | None = None
    offset = start
    while (largest := newest(conn, log_id, offset, end)) is not None and (best is None or largest > best[1]):
        row = first_at(conn, log_id, largest, offset, end)
        if row is None:
            continue  # gone since
        data = read_one(conn, segments, log_id, row.last)
        if data is not None:
            record = max_timestamp_record(data, read_header(data), max_bytes=MOST_UNCOMPRESSED, from_offset=start)
            if record is not None and record[1] >= 0 and (best is None or record[1] > best[1]):
                best = record
                if best[1] == largest:
                    break
        # The log start cuts this batch, or it is lost: its largest is gone, go on behind it.
        offset = row.last + 1
    return best
