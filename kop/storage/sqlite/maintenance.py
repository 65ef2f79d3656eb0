"""The work beside the traffic: retention, removal of rows, snapshots of producers, checkpoints, vacuum, compaction.

Owns: when each of these is due, their steps, the background task.
Must not know: how appends go; a change here is an operation of the writer like any other.

Everything goes in steps that keep the writer for some ten milliseconds, and one piece of work at a time, so that sizes
and snapshots of a log agree. Compaction gives its turn back after each pass over a log. The log start moves first,
durably; rows go afterwards, also after a restart.
Files of batches beside the database are removed once no row names them, never while commits fail. Where little is left
in one, that is moved into the database first.
A snapshot of a log covers at least the rows that are removed or rewritten: what a restart needs of them is in it.
An aborted transaction is stored with the first snapshot that covers its marker, and goes with the last of its rows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kop import background, clock
from kop.errors import BackendError, KopError
from kop.storage.sqlite import reader
from kop.storage.sqlite.compaction import Cleaner
from kop.storage.sqlite.log import SqliteLog
from kop.storage.sqlite.reader import BatchInFile, Readers
from kop.storage.sqlite.schema import BUSY_TIMEOUT_MS
from kop.storage.sqlite.segments import Segments
from kop.storage.sqlite.settings import SqliteSettings
from kop.storage.sqlite.writer import Writer
from kop.storage.steady_time import steady_ms, wall_ahead_ms
from kop.storage.tail_cache import TailCache
from kop.threads import Ended

_log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
SNAPSHOT_BATCHES = 20_000
"""The number of batches after which producers are stored again. A start after a crash has to read about that many at
most.
"""
_SNAPSHOT_LOGS = 50
_REMOVE_BYTES = 32 << 20
REMOVE_ROWS = 500
REMOVE_LOGS = 100
"""The number of batches, and of partitions, that one step of removing takes at most: writes wait for no more than one
step.
"""
DEAD_STEPS = 20
"""The number of steps of removing rows of deleted topics before other work gets its turn again."""
_VACUUM_BYTES = 8 << 20
_VACUUM_STEPS = 64
VACUUM_FROM_BYTES = 64 << 20
"""The bytes of free pages from which on the file is made smaller; a quarter of all pages if that is more."""
_COMMIT_PAGES = 4
"""The number of pages, roughly, that a commit writes beside its batches."""
MOVE_BYTES = 4 << 20
"""The bytes of batches that one step moves out of a segment file into the database."""
MOST_MOVED = 32 << 20
"""The bytes of batches that are moved out of segment files before other work gets its turn again."""
_SEGMENTS_REST = 50
"""The least pause between two looks at the segment files, as a multiple of the time that a look takes: it reads a row
for each batch in them.
"""


class DeletableByRetention(NamedTuple):
    """A log, with the age and the size by which retention may delete its batches."""

    log_id: int
    start: int
    end: int
    size: int
    older_than: int | None
    """The time in ms: batches whose max timestamp is smaller are deleted; None for no limit."""
    max_size: int | None
    """The bytes: the oldest batches are deleted while the remaining ones have at least so many; None for no limit."""


class Removal(NamedTuple):
    """The rows that are deleted in one step."""

    ids: list[int]
    sizes: dict[int, int]
    """The bytes that the step frees of each log."""


class Maintenance:
    """The background work of one engine: retention, removal, snapshots, checkpoints, vacuum, compaction."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        page_size: int,
        settings: SqliteSettings,
        writer: Writer,
        segments: Segments,
        cache: TailCache,
        logs: Callable[[], Sequence[SqliteLog]],
        ended: Ended,
    ) -> None:
        """Prepare the work. `logs` returns every log of every topic; `ended` is told of threads that end
        unexpectedly.
        """
        self._loop = loop
        self._page_size = page_size
        self._settings = settings
        self._writer = writer
        self._segments = segments
        self._logs = logs
        self._threads = Readers(loop, path, segments, 1, "maintenance", ended)
        self._checkpointer = Readers(loop, path, segments, 1, "checkpoint", ended)
        self._cleaner = Cleaner(
            writer,
            self._threads,
            cache,
            settings.cleaner_keys,
            self._snapshot,
            lambda: self.closing,
        )
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._checkpointing: asyncio.Task[None] | None = None
        self._to_remove: dict[SqliteLog, None] = {}
        self._to_clean: deque[tuple[SqliteLog, int]] = deque()
        """The logs that compaction has still to look at, each up to an offset, so that later batches wait for the next
        round.
        """
        self._dead_logs = True  # there may be some
        self._look_at_segments = True  # rows went since the last look; a crash may have left files without any
        self._segments_at = 0.0
        self._moved = 0  # bytes moved out of segment files, in all
        self._batches = 0  # committed since the last snapshots
        self._wal = 0  # bytes in the write-ahead log, about
        self._wal_seen = 0
        self._log_places = 0  # places in the index written since the write-ahead log began, one a log and commit
        self._pages_per_log = 0.0  # pages that such a place costs: many share one while the index is small
        self._checkpoint_at = settings.kop_wal_bytes
        self._failing: set[str] = set()
        self.closing = False
        """True if the engine is being closed: steps under way end, no further ones begin."""

    def start(self) -> None:
        """Start the background task, unless the settings have it off. Its first round looks for what an earlier process
        left to do.
        """
        self._to_remove = dict.fromkeys(self._logs())
        if self._settings.maintain:
            self._task = self._loop.create_task(self._rounds())

    def wake(self) -> None:
        """Begin to remove rows soon, because a topic was deleted or a log start has moved."""
        self._dead_logs = True
        self._wake.set()

    def on_committed(self, batches: int, logs: int, size: int) -> None:
        """Count a commit of so many batches in so many logs, with `size` bytes in the write-ahead log. A checkpoint
        starts at once if it is due by that; a snapshot comes with the next round, within a second.
        """
        self._batches += batches
        self._log_places += logs
        self._count_wal(size + int((_COMMIT_PAGES + logs * self._pages_per_log) * self._page_size))

    async def run(self, now_ms: int) -> None:
        """Do all upkeep that is due at `now_ms`; producers expire by a clock of their own."""
        async with self._turn:
            await self._remove_due()
            while self._dead_logs and not self.closing:
                await self._remove_due()
            await self._expire_producers()
            await self._retain(now_ms)
            self._find_to_clean()
            while self._to_clean and not self.closing:
                await self._compact(now_ms)
            await self._snapshot_all()
            await self._clear_segments()
            await self._vacuum()

    async def close(self) -> None:
        """End the background work; store the snapshots of all logs and empty the write-ahead log."""
        # Never cancelled: what a step has done to the database has to be counted in memory too.
        self.closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        async with self._turn:
            if self._checkpointing is not None:
                await asyncio.wait([self._checkpointing])
            await self._guarded("snapshots", self._final_snapshots())
            await self._threads.close()
            await self._checkpointer.close()

    async def move_start(self, log: SqliteLog, offset: int) -> None:
        """Move the start of a log up to an offset, durably (never back); the rows before it are deleted in the
        background.
        """
        await self._move_starts([(log, offset)])
        self._to_remove[log] = None
        self.wake()

    async def _final_snapshots(self) -> None:
        await self._writer.execute("SELECT 1")  # what was queued before is counted now
        await self._snapshot_all()
        await self._writer.run(_checkpoint, "TRUNCATE", transaction=False)

    # Rounds.

    async def _rounds(self) -> None:
        settings = self._settings
        retention, cleaned = clock.monotonic(), -math.inf
        while True:
            try:
                await asyncio.wait_for(self._wake.wait(), TICK_SECONDS)
            except TimeoutError:
                pass
            self._wake.clear()
            if self.closing:
                return
            now, now_ms = clock.monotonic(), clock.wall_ms()
            async with self._turn:
                await self._guarded("removing batches", self._remove_due())
                if self._dead_logs:
                    self._wake.set()  # more than one round's steps
                if self._look_at_segments and now >= self._segments_at:
                    await self._guarded("the look at files of batches", self._clear_segments(MOST_MOVED))
                if self._writer.failure is not None:
                    await self._guarded("the look whether the disk works again", self._heal())
                if now >= retention:
                    retention = now + settings.log_retention_check_interval_ms / 1000
                    self._look_at_segments = True  # one may have taken batches still at the last look
                    await self._guarded("the expiry of producers", self._expire_producers())
                    await self._guarded("retention", self._retain(now_ms))
                    await self._guarded("vacuum", self._vacuum())
                if not self._to_clean and now >= cleaned + settings.cleaner_interval_ms() / 1000:
                    cleaned = now
                    self._find_to_clean()
                if self._to_clean:
                    await self._guarded("compaction", self._compact(now_ms))
                if self._to_clean:
                    self._wake.set()
                if self._batches >= SNAPSHOT_BATCHES:
                    await self._guarded("snapshots", self._snapshot_all())
            if self._wal and self._wal == self._wal_seen:
                self._start_checkpoint()  # idle
            self._wal_seen = self._wal

    async def _heal(self) -> None:
        """After a failed commit, give free pages and files back to a disk that may be full, then try to write.

        The write-ahead log's file goes back, too: the writer keeps as much room again beside it, so that a large one
        alone would have the disk count as full for ever.
        """
        try:
            if self._segments.takes_batches:
                await self._writer.end_segment()
                self._look_at_segments = True
            await self._vacuum(at_least=1)
            await self._checkpoint("TRUNCATE")
            await self._writer.probe()
        except KopError as error:
            _log.debug("the disk still fails: %s", error.message)

    async def _guarded(self, what: str, work: Awaitable[None]) -> None:
        """Await one piece of work, which `what` names. Its failure (a full disk, for example) is logged and does not
        end the others; a later round tries it again.
        """
        try:
            await work
            self._failing.discard(what)
        except KopError as error:
            level = logging.DEBUG if what in self._failing else logging.WARNING  # one line until it works again
            self._failing.add(what)
            _log.log(level, "%s failed, will be tried again: %s", what, error.message)
        except Exception as error:
            background.tell(what, error)

    # Retention and removal.

    async def _retain(self, now_ms: int) -> None:
        logs = [log for log in self._logs() if log.policy.delete and log.high_watermark > log.log_start_offset]
        limits = []
        for log in logs:
            policy = log.policy
            older_than = now_ms - policy.retention_ms if policy.retention_ms >= 0 else None
            max_size = policy.retention_bytes if 0 <= policy.retention_bytes < log.size_bytes else None
            limits.append(
                DeletableByRetention(
                    log.log_id, log.log_start_offset, log.high_watermark, log.size_bytes, older_than, max_size
                )
            )
        starts = await self._threads.run(_expired, limits)
        moves = [(log, start) for log, start in zip(logs, starts, strict=True) if start is not None]
        for i in range(0, len(moves), _SNAPSHOT_LOGS):
            await self._move_starts(moves[i : i + _SNAPSHOT_LOGS])
        await self._remove([log for log, _ in moves])

    async def _move_starts(self, moves: Sequence[tuple[SqliteLog, int]]) -> None:
        rows = [(start, log.log_id) for log, start in moves]
        await self._writer.run(_store_starts, rows)
        for log, start in moves:
            if start > log.log_start_offset and not log.deleted:
                log.log_start_offset = start
                log.forget_aborted(start)
                log.tell()

    async def _remove_due(self) -> None:
        logs = list(self._to_remove)
        self._to_remove.clear()
        try:
            await self._remove(logs)
        except BaseException:
            self._to_remove.update(dict.fromkeys(logs))
            raise
        if self._dead_logs:
            self._dead_logs = False
            try:
                self._dead_logs = not await self._remove_dead()
            except BaseException:
                self._dead_logs = True
                raise

    async def _remove(self, logs: Sequence[SqliteLog]) -> None:
        """Delete the rows of batches before the starts of these logs, step by step, after a snapshot of the logs that
        need one.
        """
        by_id = {log.log_id: log for log in logs if not log.deleted}
        todo = [(log.log_id, log.log_start_offset) for log in by_id.values()]
        await self._snapshot([log for log in by_id.values() if log.snapshot_offset < log.log_start_offset])
        while todo and not self.closing:
            step, todo = await self._threads.run(_next_removals, todo)
            if step is not None:
                await self._writer.run(_delete, step)
                self._look_at_segments = True
                for log_id, size in step.sizes.items():
                    by_id[log_id].size_bytes -= size
                self._count_wal((_COMMIT_PAGES + len(step.sizes)) * self._page_size)

    async def _remove_dead(self) -> bool:
        """Delete the batches of partitions whose topic is gone, then the partitions, in a bounded number of steps;
        return false if some are left to do.
        """
        todo = [(log_id, _NO_END) for log_id in await self._threads.run(_dead)]
        for _ in range(DEAD_STEPS):
            step, todo = await self._threads.run(_next_removals, todo)
            if step is None or self.closing:
                break
            await self._writer.run(_delete, step)
            self._look_at_segments = True
            self._count_wal((_COMMIT_PAGES + len(step.sizes)) * self._page_size)
        await self._writer.execute(_DELETE_EMPTY_DEAD)
        return not await self._threads.run(_dead)

    # Producers.

    async def _expire_producers(self) -> None:
        ttl, now_ms = self._settings.producer_id_expiration_ms, steady_ms()
        for log in self._logs():
            if log.producer_states is not None and log.producer_states.expire(now_ms, ttl):
                log.snapshot_outdated = True

    async def _snapshot_all(self) -> None:
        self._batches = 0
        await self._snapshot(self._logs())

    async def _snapshot(self, logs: Sequence[SqliteLog]) -> None:
        """Store size, producers and transactions of the logs that have changed."""
        changed = [
            log
            for log in logs
            if (log.snapshot_outdated or log.snapshot_offset != log.high_watermark) and not log.deleted
        ]
        for i in range(0, len(changed), _SNAPSHOT_LOGS):
            part = changed[i : i + _SNAPSHOT_LOGS]
            rows = [(log.high_watermark, log.size_bytes, _producers(log), log.log_id) for log in part]
            await self._writer.run(_store_snapshots, rows, [row for log in part for row in _new_aborted(log)])
            for log, row in zip(part, rows, strict=True):
                log.snapshot_offset = row[0]
                log.snapshot_outdated = False

    # Compaction.

    def _find_to_clean(self) -> None:
        self._to_clean.extend((log, log.last_stable_offset) for log in self._logs() if log.policy.compact)

    async def _compact(self, now_ms: int) -> None:
        """Make one compaction pass over the next log, if one is due. The log goes behind the others then: more may be
        due.
        """
        while self._to_clean and not self.closing:
            log, target = self._to_clean.popleft()
            if log.policy.compact and not log.deleted and target > log.clean_offset:
                try:
                    if await self._cleaner.clean(log, target, now_ms):
                        self._look_at_segments = True
                        self._to_clean.append((log, target))
                        return
                except Exception as error:
                    if isinstance(error, KopError) and self._writer.failure is not None:
                        self._to_clean.clear()  # the storage fails: it would fail for the next log, too
                        raise
                    # The other logs are cleaned all the same.
                    background.tell(f"compaction of {log.topic.name}-{log.index}", error, kind="compaction")

    # The file.

    def _count_wal(self, size: int) -> None:
        self._wal += size
        if self._wal >= self._checkpoint_at:
            self._start_checkpoint()

    def _start_checkpoint(self) -> None:
        if self._checkpointing is None or self._checkpointing.done():
            self._checkpointing = self._loop.create_task(self._guarded("a checkpoint", self._checkpoint()))

    async def _checkpoint(self, mode: str = "RESTART") -> None:
        """Copy the write-ahead log into the database beside commits; then begin the log anew, which blocks the writer.

        With the mode TRUNCATE its file becomes empty.
        """
        limit = self._settings.kop_wal_bytes
        try:
            for _ in range(4):
                before = self._wal
                _, pages = await self._checkpointer.run(_checkpoint, "PASSIVE")
                behind = self._wal - before
                self._learn(before, pages)
                self._wal = pages * self._page_size + behind
                if behind <= limit // 8 or self._wal >= 3 * limit:  # faster commits wait for the next step
                    break
            busy, _ = await self._writer.run(_checkpoint, mode, transaction=False)
        except BackendError:
            self._checkpoint_at = self._wal + limit
            raise
        if busy:  # a reader still uses the write-ahead log
            self._checkpoint_at = self._wal + limit // 8
        else:
            self._wal = self._wal_seen = self._log_places = 0
            self._checkpoint_at = limit

    def _learn(self, estimate: int, pages: int) -> None:
        """Correct the pages that a log's place in a commit is taken to cost: `pages` is the real size of the
        write-ahead log, `estimate` the bytes that were counted.
        """
        if self._log_places:
            wrong = (pages - estimate / self._page_size) / self._log_places
            self._pages_per_log = min(1.0, max(0.0, self._pages_per_log + wrong))

    async def _clear_segments(self, most_bytes: int | None = None) -> None:
        """Remove the segment files in which no batch is left, and those in which at most half is left, after that was
        moved into the database.

        It ends once it has moved `most_bytes`, so that other work has its turn; the next round goes on.
        """
        began = clock.monotonic()
        self._look_at_segments = False
        try:
            sparse = await self._threads.read(_sparse)
        except BaseException:
            self._look_at_segments = True
            raise
        now = clock.monotonic()
        self._segments_at = now + _SEGMENTS_REST * (now - began)
        await self._guarded(
            "removing files of batches", self._remove_segments([segment for segment, left in sparse if not left])
        )
        end = None if most_bytes is None else self._moved + most_bytes
        for segment, left in sparse:
            if not left:
                continue
            if self.closing:
                return
            if end is not None and self._moved >= end:
                self._look_at_segments = True
                return
            await self._guarded("clearing a file of batches", self._clear(segment))

    async def _clear(self, segment: int) -> None:
        """Move all batches that are left in a segment file into the database, and remove the file."""
        began = clock.monotonic()
        while moved := await self._threads.read(reader.rest_of, segment, MOVE_BYTES):
            await self._writer.run(_move, segment, moved)
            size = sum(len(row.data) for row in moved)
            self._moved += size
            self._count_wal(size + _COMMIT_PAGES * self._page_size)
            if self.closing:
                return
            await asyncio.sleep(clock.monotonic() - began)  # appends have as much time as this took
            began = clock.monotonic()
        await self._remove_segments([segment])

    async def _remove_segments(self, segments: Sequence[int]) -> None:
        """Remove segment files of which a look has found that no row names them.

        A commit comes between the look and this. Rows of one that failed are not seen, and yet SQLite's recovery would
        bring them back if the process died now, until a later commit has taken their place in the write-ahead log.
        """
        if not segments:
            return
        try:
            await self._writer.execute("REPLACE INTO meta (key, value) VALUES ('probe', 0)")
        except BaseException:
            self._look_at_segments = True
            raise
        for segment in segments:
            await self._threads.run(lambda _, segment=segment: self._segments.remove(segment))

    async def _vacuum(self, at_least: int | None = None) -> None:
        """Give free pages of the database back to the file system if there are `at_least` so many; without that, if
        they are 64 MiB and a quarter of the file. Else appends use them again.
        """
        free, pages = await self._threads.run(_page_counts)
        step = _VACUUM_BYTES // self._page_size
        for _ in range(_VACUUM_STEPS):
            if free < (at_least or max(VACUUM_FROM_BYTES // self._page_size, pages // 4)) or self.closing:
                return
            await self._writer.run(_vacuum, step, transaction=False)
            self._count_wal(step * self._page_size)
            free -= step
            pages -= step


_NO_END = 2**63 - 1
_DELETE_EMPTY_DEAD = "DELETE FROM log WHERE topic IS NULL AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.log = log.id)"


def _expired(conn: sqlite3.Connection, limits: Sequence[DeletableByRetention]) -> list[int | None]:
    """Return the new log start of each log by its retention; None if it stays."""
    return [_expired_of(conn, limit) for limit in limits]


def _expired_of(conn: sqlite3.Connection, limit: DeletableByRetention) -> int | None:
    start, size, new_start = limit.start, limit.size, None
    if limit.older_than is None and limit.max_size is None:
        return None
    # Rows before the log start may not be gone yet: they are in the size.
    size -= conn.execute(
        "SELECT coalesce(sum(size), 0) FROM batch INDEXED BY batch_of_log WHERE log = ? AND last < ?",
        (limit.log_id, start),
    ).fetchone()[0]
    while rows := reader.scan(conn, limit.log_id, start, limit.end, 1 if new_start is None else REMOVE_ROWS):
        for row in rows:
            old = limit.older_than is not None and abs(row.timestamp) < limit.older_than
            if not old and (limit.max_size is None or size - row.size < limit.max_size):
                return new_start
            size -= row.size
            new_start = start = row.last + 1
    return new_start


def _next_removals(
    conn: sqlite3.Connection, todo: Sequence[tuple[int, int]]
) -> tuple[Removal | None, list[tuple[int, int]]]:
    """Return a step of removing the rows of logs that end before an offset, None if there are none; and the logs that
    it leaves to do.
    """
    ids: list[int] = []
    sizes: dict[int, int] = {}
    room = _REMOVE_BYTES
    for i, (log_id, before) in enumerate(todo):
        if room <= 0 or len(ids) >= REMOVE_ROWS or len(sizes) >= REMOVE_LOGS:
            return Removal(ids, sizes), list(todo[max(i - 1, 0) :])
        for row in reader.scan(conn, log_id, 0, before, REMOVE_ROWS - len(ids)):
            ids.append(row.id)
            sizes[log_id] = sizes.get(log_id, 0) + row.size
            room -= row.size
            if room <= 0:
                break
    if not ids:
        return None, []
    return Removal(ids, sizes), list(todo[-1:])


def _delete(conn: sqlite3.Connection, step: Removal) -> None:
    """Delete the rows of batches of one step, with the aborted transactions that end in them, and take their bytes off
    the sizes of logs: three statements, however many rows, since each may wait for the interpreter's lock.
    """
    ids = _places(len(step.ids))
    conn.execute(
        f"DELETE FROM aborted WHERE (log, last_offset) IN (SELECT log, last FROM batch WHERE id IN ({ids}))", step.ids
    )
    conn.execute(f"DELETE FROM batch WHERE id IN ({ids})", step.ids)
    conn.execute(
        f"UPDATE log SET snapshot_size = snapshot_size - CASE id {'WHEN ? THEN ? ' * len(step.sizes)} END"
        f" WHERE id IN ({_places(len(step.sizes))})",
        [value for pair in step.sizes.items() for value in pair] + list(step.sizes),
    )


def _sparse(conn: sqlite3.Connection, segments: Segments) -> list[tuple[int, int]]:
    """Return the segment files that take no more batches and in which at most half of the bytes are batches that rows
    still name. Each with the bytes that are left, the emptiest first.
    """
    sizes = segments.complete()
    left = reader.bytes_left(conn) if sizes else {}
    sparse = [(segment, left.get(segment, 0)) for segment, size in sizes.items() if left.get(segment, 0) * 2 <= size]
    return sorted(sparse, key=lambda of_file: of_file[1])


def _move(conn: sqlite3.Connection, segment: int, moved: Sequence[BatchInFile]) -> None:
    sql = "UPDATE batch SET data = ?, segment = NULL, position = NULL WHERE id = ? AND segment = ? AND position = ?"
    conn.executemany(sql, [(row.data, row.id, segment, row.position) for row in moved])
    conn.execute(sql, (b"", None, None, None))  # writes nothing: the statement lets go of the last batch


def _places(count: int) -> str:
    return ",".join("?" * count)


def _dead(conn: sqlite3.Connection) -> list[int]:
    return [row[0] for row in conn.execute("SELECT id FROM log WHERE topic IS NULL LIMIT 1000")]


def _producers(log: SqliteLog) -> str | None:
    states = log.producer_states
    if states is None or not len(states):
        return None
    return json.dumps(states.snapshot(wall_ahead_ms()), separators=(",", ":"))


def _store_starts(conn: sqlite3.Connection, rows: Sequence[tuple[int, int]]) -> None:
    conn.executemany("UPDATE log SET log_start = max(log_start, ?) WHERE id = ?", rows)


def _new_aborted(log: SqliteLog) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield, as rows, the aborted transactions of a log whose markers lie behind its last snapshot: those that are not
    stored yet.
    """
    states = log.producer_states
    for aborted in () if states is None else states.transactions.aborted_from(log.snapshot_offset):
        yield (
            log.log_id,
            aborted.last_offset,
            aborted.first_offset,
            aborted.producer_id,
            aborted.last_stable_offset,
        )


def _store_snapshots(
    conn: sqlite3.Connection,
    rows: Sequence[tuple[int, int, str | None, int]],
    aborted: Sequence[tuple[int, int, int, int, int]],
) -> None:
    conn.executemany("UPDATE log SET snapshot_offset = ?, snapshot_size = ?, producers = ? WHERE id = ?", rows)
    if aborted:
        conn.executemany(
            "REPLACE INTO aborted (log, last_offset, first_offset, producer_id, last_stable_offset)"
            " VALUES (?, ?, ?, ?, ?)",
            aborted,
        )


def _checkpoint(conn: sqlite3.Connection, mode: str) -> tuple[bool, int]:
    """Checkpoint without waiting for readers; return true if one was in the way, and the number of pages in the
    write-ahead log.
    """
    conn.execute("PRAGMA busy_timeout = 0")
    try:
        busy, pages, _ = conn.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    finally:
        conn.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    return bool(busy), pages


def _vacuum(conn: sqlite3.Connection, pages: int) -> None:
    conn.executescript(f"PRAGMA incremental_vacuum({pages})")  # execute() takes one step only, which is one page


def _page_counts(conn: sqlite3.Connection) -> tuple[int, int]:
    free: int = conn.execute("PRAGMA freelist_count").fetchone()[0]
    pages: int = conn.execute("PRAGMA page_count").fetchone()[0]
    return free, pages
