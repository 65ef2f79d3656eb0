"""The one thread that writes: group commit of appends, and every other change of the database.

Owns: the queue between the event loop and the thread, the INSERT, the order of commits, what a failed commit means.
Must not know: topics, producers, reads; a batch is a `QueuedAppend` here.

How a commit goes
1. `append` queues an entry on the loop. The thread is woken once for a whole round of the loop.
2. The thread takes all that is queued (up to a bound) and writes it with ONE multi-row INSERT outside a transaction,
   so that SQLite commits and syncs within that one call: each call that gives up the GIL may wait a switch interval
   for it while the loop is busy. The same statement looks whether this is still the one writer. Many bytes of large
   batches go into a file beside the database first, which is synced; their rows name the places.
3. One `call_soon_threadsafe` brings the whole group back to the loop, where logs advance and futures end.
Where a commit fails the thread stands still until the loop has rolled back its logs and taken everything queued behind
the failed batches out of the queue; so no later batch of a log can be written over the hole.

Where the disk runs short, appends of clients' topics fail while there is still room for what must go on: offsets of
groups and other internal topics, the ends of transactions, deletes, checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from kop import clock
from kop.errors import BackendError, KopError
from kop.storage.base import AppendResult, AppendWaiter, Buffer, TopicInfo
from kop.storage.idempotence import BatchMetadata
from kop.storage.sqlite.segments import Place, Segments
from kop.storage.sqlite.settings import SqliteSettings
from kop.threads import Ended, begin

_log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_COMMIT_BYTES = 8 << 20
MAX_COMMIT_ROWS = 2048
ROWS_PER_INSERT = 256
"""The most rows of one INSERT. Prepared with so many it is some 100 KB; more batches than that are more INSERTs in one
transaction.
"""
_THREAD = "kop-sqlite-writer"
_ROW = "(?,?,?,?,?,?,?,?,?)"
_COLUMNS = _ROW.count("?")
_SPACE_CHECK_BYTES = 32 << 20
SPACE_CHECK_SECONDS = 0.5
BESIDE_AGAIN_SECONDS = 60.0
"""The seconds for which no segment files are written after one could not be."""
_TAKEN_OVER = (
    "another process has opened this database since, past the lock, and writes to it: this one stores nothing any more,"
    " one of the two has to be stopped"
)
IDLE_SECONDS = 1.0
"""The seconds without work after which the writer frees the bytes that prepared INSERTs hold."""


class Destination(Protocol):
    """The log that a batch is written to, as the writer knows it."""

    topic: TopicInfo
    log_id: int

    def committed(self, entry: QueuedAppend) -> None:
        """Handle that a batch is on disk: it becomes readable, and its waiter is told."""

    def failed(self, entries: Sequence[QueuedAppend], error: KopError) -> None:
        """Undo all queued batches of the log from the first one of a failed commit on, and tell their waiters of
        `error`.
        """

    def tell(self) -> None:
        """Call the callbacks of the log, because its high watermark has moved."""


@dataclass(slots=True, eq=False, repr=False)
class QueuedAppend:
    """An append of one batch on its way to the disk."""

    log: Destination
    data: Buffer
    base: int
    last: int
    timestamp: int
    size: int
    head: bytes | None
    log_append_time: int
    waiter: AppendWaiter
    place: int
    token: BatchMetadata | None = None
    """The batch's entry in its producer's window, if it has a producer id."""
    stored_at: Place | None = None
    """The place of the batch in a segment file; None if its row has it."""
    followers: list[tuple[AppendWaiter, int]] | None = None
    """The waiters of duplicates of this append, with the place of each."""
    goes_on: ClassVar[bool] = False
    """True if it is written even if the disk runs short of space."""

    def follow(self, waiter: AppendWaiter, place: int) -> None:
        """Note that `waiter`, whose batch is a duplicate of this one, is told of the end of this append, too."""
        self.followers = [*(self.followers or ()), (waiter, place)]

    def succeed(self, result: AppendResult) -> None:
        """Tell the batch's waiter, and those of its duplicates, that it is durable."""
        self.waiter.appended(self.place, result)
        for waiter, place in self.followers or ():
            waiter.appended(place, result)

    def fail(self, error: KopError) -> None:
        """Tell the batch's waiter, and those of its duplicates, that the append has failed."""
        self.waiter.append_failed(self.place, error)
        for waiter, place in self.followers or ():
            waiter.append_failed(place, error)


class QueuedMarker(QueuedAppend):
    """A marker of a transaction's end on its way to the disk."""

    __slots__ = ()
    goes_on = True


class _Op(NamedTuple):
    """A change of the database other than an append, or a command to the writer thread."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    transaction: bool
    after: int
    """The number of batches that were queued before it."""
    future: asyncio.Future[Any]


def _execute(conn: sqlite3.Connection, sql: str, values: Sequence[Any]) -> None:
    conn.execute(sql, values)


def _insert_sql(rows: int, token: int) -> str:
    """Return an INSERT of up to so many rows; unused places are bound to NULL and skipped.

    It inserts nothing if another writer has put its token in the place of this one's.
    """
    values = ",".join([_ROW] * rows)
    return (
        "INSERT INTO batch (log,base,last,timestamp,size,head,data,segment,position) "
        f"SELECT * FROM (VALUES {values}) WHERE column1 IS NOT NULL AND EXISTS ({_writer_sql(token)})"
    )


def _writer_sql(token: int) -> str:
    """Return a SELECT that gives one row as long as the writer with this token is the one that writes."""
    return f"SELECT 1 FROM meta WHERE key = 'writer' AND value = {token}"


class Writer:
    """The writer thread and its queue. All methods but the private ones of the thread run on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        conn: sqlite3.Connection,
        token: int,
        path: Path,
        segments: Segments,
        settings: SqliteSettings,
        *,
        on_committed: Callable[[Sequence[QueuedAppend]], None],
        on_failed: Callable[[Sequence[QueuedAppend], BackendError], None],
        ended: Ended,
    ) -> None:
        """Start the thread. `ended` is called if the thread, or what it has the loop do, ends unexpectedly; `fail` has
        to follow.
        """
        self._loop = loop
        self._conn = conn
        self._is_writer_sql = _writer_sql(token)
        self._directory = path.parent
        self._wal_path = f"{path}-wal"
        self._segments = segments
        self._min_free_bytes = settings.kop_min_free_bytes
        self._beside_batch_bytes = settings.beside_batch_bytes
        self._beside_commit_bytes = settings.beside_commit_bytes
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._on_ended = ended
        self._group: Sequence[QueuedAppend] = ()  # what the thread writes now
        self._appends: deque[QueuedAppend] = deque()
        self._ops: deque[_Op] = deque()
        self._queued = 0  # batches ever queued: by the loop
        self._taken = 0  # batches ever taken out of the queue: by the thread, or the loop while the thread stands still
        self._wake = threading.Lock()
        self._wake.acquire()
        self._kick_planned = False
        self._stopping = False
        self._stopped = False
        self._halted = False
        self._next_space_check = 0.0
        self._since_space_check = 0
        self._short = False
        self._beside_from = 0.0
        # A prepared statement keeps a copy of the bytes that it was bound to last. So there are few of them: for 1, 2,
        # 4, ... rows and not for each number, of which a busy day would prepare all. When idle they are emptied.
        most = min(ROWS_PER_INSERT, conn.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // _COLUMNS)
        self._rows = 1 << (most.bit_length() - 1)
        self._sql = {1 << n: _insert_sql(1 << n, token) for n in range(most.bit_length())}
        self._bound: set[int] = set()
        self.failure: str | None = None
        """The reason why the last commit failed; None once one has succeeded again."""
        self.queued_bytes = 0
        """The bytes of batches that are queued and not committed."""
        self.ended: str | None = None
        """The reason why the writer writes no more; None as long as it does."""
        self._thread = begin(_THREAD, self._run, ended)

    # On the loop.

    def append(self, entry: QueuedAppend) -> None:
        """Queue a batch; the thread writes it after this round of the event loop. If this raises, the batch is not
        queued.
        """
        if not self._kick_planned:
            # At the end of this round of the loop: requests that came together share a commit.
            self._loop.call_soon(self._kick)
            self._kick_planned = True
        queued, queued_bytes = self._queued + 1, self.queued_bytes + entry.size
        self._appends.append(entry)  # from here on the thread may take it
        self._queued, self.queued_bytes = queued, queued_bytes

    def run(self, op: Callable[..., T], *args: Any, transaction: bool = True) -> asyncio.Future[T]:
        """Run `op(connection, *args)` on the writer's connection, after the batches and operations that are queued.

        It has a transaction of its own, durable at the end, unless `transaction` is false. The future has its result.
        An sqlite3.Error ends the future with BackendError, a KopError of `op` as it is; both undo the changes of `op`.
        BackendError also if the engine is closed.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self._stopping or self.ended is not None:
            future.set_exception(BackendError(self.ended or "the storage engine is closed"))
            return future
        self._ops.append(_Op(op, args, transaction, self._queued, future))
        self._kick()
        return future

    def execute(self, sql: str, values: Sequence[Any] = ()) -> asyncio.Future[None]:
        """Run one SQL statement, durable at its end, in the order of the queue."""
        return self.run(_execute, sql, values)

    def end_segment(self) -> asyncio.Future[None]:
        """Close the segment file that takes batches, so that it may be removed once no row names it."""
        return self.run(lambda _: self._segments.close(), transaction=False)

    def probe(self) -> asyncio.Future[None]:
        """Try if a failing disk takes writes again, by a small one; clear `failure` if it does. Else the future ends
        with BackendError.
        """

        def write(conn: sqlite3.Connection) -> None:
            shortage = self._shortage()
            if shortage is not None:
                raise shortage
            conn.execute("REPLACE INTO meta (key, value) VALUES ('probe', 0)")

        probe = self.run(write)
        probe.add_done_callback(self._probed)
        return probe

    def _probed(self, probe: asyncio.Future[None]) -> None:
        if not probe.cancelled() and probe.exception() is None:
            self.failure = None

    def fail(self, reason: str) -> None:
        """Accept no more batches, since a thread of the engine has ended. If that is the writer's, all that waits for
        it fails.
        """
        self.ended = self.ended or reason
        if not self._stopped:
            return  # another thread has ended: this one still writes what it was given
        error = BackendError(self.ended)
        lost = [*self._group, *self._appends]
        self._group = ()
        self._appends.clear()
        self.queued_bytes = 0
        while self._ops:
            _reject(self._ops.popleft().future, error.fresh_copy())
        if lost:
            self._on_failed(lost, error)

    async def stop(self) -> None:
        """Write what is queued, end the thread, and close the connection."""
        self._stopping = True
        self._kick()
        await self._loop.run_in_executor(None, self._thread.join)
        self._segments.close()
        self._conn.close()

    def _kick(self) -> None:
        self._kick_planned = False
        if self._wake.locked():
            self._wake.release()

    def _call(self, call: Callable[..., None], *args: Any) -> None:
        """Run a callback of the writer thread on the loop. If it fails, nobody knows what is written and what is not:
        the thread writes nothing more, `ended` is called, and the exception goes on.
        """
        try:
            call(*args)
        except Exception as error:
            self._halted = True
            self._on_ended(_THREAD, error)
            raise

    def _committed(self, group: Sequence[QueuedAppend], size: int, short: bool) -> None:
        self.queued_bytes -= size
        if not short:
            self.failure = None
        self._on_committed(group)

    def _failed(self, group: Sequence[QueuedAppend], error: BackendError) -> None:
        self.failure = error.message
        logs = {entry.log for entry in group}
        lost = [*group, *(entry for entry in self._appends if entry.log in logs)]
        kept = [entry for entry in self._appends if entry.log not in logs]
        self._appends.clear()
        self._appends.extend(kept)
        self._taken += len(lost) - len(group)
        self.queued_bytes -= sum(entry.size for entry in lost)
        self._on_failed(lost, error)

    # On the thread.

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._stopped = True

    def _work(self) -> None:
        while True:
            if not self._wake.acquire(timeout=IDLE_SECONDS if self._bound else -1):
                self._unbind()
                continue
            while self._appends or self._ops:
                if self._halted:  # what comes next may lie behind a hole
                    raise RuntimeError("the loop could not take what was written, or was not")
                if self._appends:
                    self._commit(*self._take())
                if self._ops and self._ops[0].after <= self._taken:
                    self._operate(self._ops[0])
                    self._ops.popleft()
            if self._stopping:
                return

    def _take(self) -> tuple[list[QueuedAppend], int]:
        queue, size = self._appends, 0
        group: list[QueuedAppend] = []
        self._group = group
        while queue and size < MAX_COMMIT_BYTES and len(group) < MAX_COMMIT_ROWS:
            group.append(queue[0])
            size += queue.popleft().size
        self._taken += len(group)
        return group, size

    def _commit(self, group: list[QueuedAppend], size: int) -> None:
        self._since_space_check += size
        often = min(_SPACE_CHECK_BYTES, self._min_free_bytes // 4)
        if self._since_space_check >= often or clock.monotonic() >= self._next_space_check:
            shortage = self._shortage()
            if shortage is not None:
                group, lost = _split(group)
                self._lose(lost, shortage)
                size = sum(entry.size for entry in group)
                if not group:
                    return
        try:
            self._write_beside(group)
            if len(group) <= self._rows:
                self._insert(group)
            else:
                self._begin()
                for i in range(0, len(group), self._rows):
                    self._insert(group[i : i + self._rows])
                self._conn.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            self._unbind()  # where memory is short, a failed commit must not keep its bytes
            self._lose(group, BackendError(f"cannot write: {_text(error)}"))
        else:
            self._to_loop(self._committed, group, size, self._short)
            self._group = ()

    def _write_beside(self, group: Sequence[QueuedAppend]) -> None:
        """Write the large batches of a group into a segment file, if they are many bytes together, and note their
        places in the entries.

        If that fails they go into their rows, as all large batches do for a minute then, and while commits fail: rows
        that SQLite refuses leave their batches in a file for nothing.
        """
        if self.failure is not None or clock.monotonic() < self._beside_from:
            return
        large = [entry for entry in group if entry.size >= self._beside_batch_bytes]
        if large and sum(entry.size for entry in large) >= self._beside_commit_bytes:
            try:
                places = self._segments.append([entry.data for entry in large])
            except OSError as error:
                self._beside_from = clock.monotonic() + BESIDE_AGAIN_SECONDS
                _log.warning(
                    "large batches go into the database, which costs more, because their file cannot be written: %s; "
                    "trying again in %.0f s",
                    error,
                    BESIDE_AGAIN_SECONDS,
                )
                return
            for entry, place in zip(large, places, strict=True):
                entry.stored_at = place

    def _insert(self, group: Sequence[QueuedAppend]) -> None:
        values: list[Any] = []
        for e in group:
            values += (e.log.log_id, e.base, e.last, e.timestamp, e.size, e.head)
            values += (e.data, None, None) if e.stored_at is None else (b"", *e.stored_at)
        rows = 1 << (len(group) - 1).bit_length()
        values += [None] * (_COLUMNS * (rows - len(group)))
        self._bound.add(rows)
        if self._conn.execute(self._sql[rows], values).rowcount != len(group):
            raise sqlite3.OperationalError(_TAKEN_OVER)

    def _unbind(self) -> None:
        """Free the bytes that prepared INSERTs hold: run each without a row, which writes nothing.

        An INSERT for which there is no memory keeps its bytes until the next time.
        """
        for rows in [*self._bound]:
            try:
                self._conn.execute(self._sql[rows], [None] * (_COLUMNS * rows))
            except sqlite3.Error:
                pass  # a disk that fails; the next commit tells
            except MemoryError:
                continue
            self._bound.discard(rows)
        self._segments.release()

    def _lose(self, group: Sequence[QueuedAppend], error: BackendError) -> None:
        if not group:
            return
        handled = threading.Event()
        self._to_loop(self._failed, group, error)
        self._group = ()
        self._to_loop(handled.set)
        while not handled.wait(0.5):
            if self._loop.is_closed():
                return

    def _begin(self) -> None:
        self._conn.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        if self._conn.in_transaction:
            try:
                self._conn.execute("ROLLBACK")
            except (sqlite3.Error, MemoryError):
                if self._conn.in_transaction:  # the next commit would be a part of it, and not durable
                    raise

    def _shortage(self) -> BackendError | None:
        try:
            disk = os.statvfs(self._directory)
        except OSError as error:
            return BackendError(f"cannot see how full the disk is: {error}")
        free = disk.f_bavail * disk.f_frsize
        # The next checkpoint may make the database larger by all that the write-ahead log holds.
        kept = self._min_free_bytes + self._wal_bytes() if self._min_free_bytes else 0
        if free < kept:
            self._short = True
            self._next_space_check = 0.0  # look again at every commit
            return BackendError(f"the disk is full: {free >> 20} MiB left in {self._directory}, {kept >> 20} are kept")
        self._short = False
        self._next_space_check = clock.monotonic() + SPACE_CHECK_SECONDS
        self._since_space_check = 0
        return None

    def _wal_bytes(self) -> int:
        try:
            return os.stat(self._wal_path).st_size
        except OSError:
            return 0

    def _operate(self, op: _Op) -> None:
        try:
            if op.transaction:
                self._begin()
                if self._conn.execute(self._is_writer_sql).fetchone() is None:
                    raise sqlite3.OperationalError(_TAKEN_OVER)
            result = op.call(self._conn, *op.args)
            if op.transaction:
                self._conn.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            expected = isinstance(error, sqlite3.Error | MemoryError)
            failure = BackendError(f"cannot write: {_text(error)}") if expected else error
            self._to_loop(_reject, op.future, failure)
        else:
            self._to_loop(_resolve, op.future, result)

    def _to_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._call, call, *args)
        except RuntimeError:
            pass  # the loop was closed meanwhile: nobody is left to be told


def _split(group: Sequence[QueuedAppend]) -> tuple[list[QueuedAppend], list[QueuedAppend]]:
    """Return the batches of a group that are written while the disk runs short of space, and those that are not.
    Written are those of internal topics, and ends of transactions, unless a batch before them in the same log is not.
    """
    written: list[QueuedAppend] = []
    lost: list[QueuedAppend] = []
    losers: set[Destination] = set()
    for entry in group:
        if entry.log.topic.internal or (entry.goes_on and entry.log not in losers):
            written.append(entry)
        else:
            lost.append(entry)
            losers.add(entry.log)
    return written, lost


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
