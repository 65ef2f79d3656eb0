"""The log cleaner: of each key the newest record stays; offsets do not change.

Owns: which part of a log is due, and the steps in which batches are rewritten.
Must not know: which records survive (`kop.storage.compaction`), how a batch is laid out.

Batches are taken in log order and each step is one transaction, so a crash leaves a log in which some superseded
records are gone, and the next pass begins again. An aborted transaction is forgotten in the step that takes the last
of its records. Where the keys of the dirty part do not fit into memory there are
several passes, with other work between them. A rewritten batch lies in its row, wherever it lay before.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kop import clock
from kop.errors import PeerError
from kop.records.batch import BatchHeader, read_header
from kop.storage.base import Buffer, LogPolicy
from kop.storage.compaction import NewestOffsets, delete_horizon, is_due
from kop.storage.sqlite import reader
from kop.storage.sqlite.log import SqliteLog, head_of
from kop.storage.sqlite.reader import BatchRow, LostBatchError, Readers
from kop.storage.sqlite.segments import Segments
from kop.storage.sqlite.writer import Writer
from kop.storage.tail_cache import TailCache
from kop.storage.transaction_index import AbortedTransaction

_log = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
"""The bytes of batches that one step of compaction reads: it holds no more of a partition in memory."""
_UPDATE_ROWS = 128
_UPDATE_BYTES = 256 << 10
_ROW = "(?,?,?,?,?,?)"


class Part(NamedTuple):
    """The part of a log that is due for compaction."""

    first_dirty: int
    end: int
    """The offset from which on records supersede none in this pass: they are too young, or come later."""
    last_base: int
    """The base offset of the log's last batch."""


class Change(NamedTuple):
    """A change of one batch by compaction: it becomes another batch, or is deleted."""

    row: BatchRow
    data: Buffer | None
    timestamp: int
    head: bytes


@dataclass(frozen=True, slots=True)
class Cleaner:
    """The log cleaner: it compacts logs, one at a time, in passes."""

    writer: Writer
    threads: Readers
    """The threads on which batches are read and cleaned."""
    cache: TailCache
    most_keys: int
    """The number of keys that one pass holds in memory."""
    snapshot: Callable[[Sequence[SqliteLog]], Awaitable[None]]
    """A function that stores size and producers of logs: a restart needs them of batches that are rewritten."""
    closing: Callable[[], bool]
    """A function that returns true if no further step shall begin."""

    async def clean(self, log: SqliteLog, target: int, now_ms: int) -> bool:
        """Compact `log` up to the offset `target` in one pass, or as far as memory holds the keys of its dirty part;
        return false if nothing is due, or if the pass did not end.
        """
        if log.deleted or self.closing():
            return False
        start, first_dirty = log.log_start_offset, max(log.clean_offset, log.log_start_offset)
        part = await self.threads.run(
            find, log.log_id, log.policy, first_dirty, target, log.high_watermark, log.size_bytes, now_ms
        )
        if part is None:
            return False
        newest = await self.threads.run(_nothing_yet, self.most_keys, log.aborted_copy())
        offset = part.first_dirty
        while offset < part.end and not self.closing():
            began = clock.monotonic()
            reached, full = await self.threads.read(collect, log.log_id, offset, part.end, newest)
            await asyncio.sleep(clock.monotonic() - began)  # the loop and the threads share one interpreter lock
            if full or reached == offset:
                offset = reached
                break
            offset = reached
        end = min(offset, part.last_base)
        if end <= part.first_dirty:
            return False
        if log.snapshot_offset < end:
            await self.snapshot([log])
        if not await self._rewrite(log, start, end, newest, now_ms):
            return False
        await self.writer.execute("UPDATE log SET clean_offset = ? WHERE id = ?", (end, log.log_id))
        log.clean_offset = end
        log.forget_aborted(end)
        return True

    async def _rewrite(self, log: SqliteLog, start: int, end: int, newest: NewestOffsets, now_ms: int) -> bool:
        """Rewrite the batches of a log before `end`, step by step; return false if that did not come to its end because
        the topic was deleted or the engine closes.
        """
        offset = start
        horizon = delete_horizon(log.policy, now_ms)
        while offset < end:
            if log.deleted or self.closing():
                return False
            began = clock.monotonic()
            changes, reached = await self.threads.read(plan, log.log_id, offset, end, newest, now_ms, horizon)
            if changes:
                freed = await self.writer.run(apply, log.log_id, changes, reached)
                log.size_bytes -= freed
                if log.tail is not None:
                    self.cache.drop(log.tail, reached)
            if reached == offset:
                break  # nothing left up to `end`
            offset = reached
            await asyncio.sleep(clock.monotonic() - began)
        return True


def find(
    conn: sqlite3.Connection,
    log_id: int,
    policy: LogPolicy,
    first_dirty: int,
    end: int,
    high_watermark: int,
    size: int,
    now_ms: int,
) -> Part | None:
    """Return the part of the log before `end` that is due for compaction; None if it is too small or too young."""
    last = conn.execute(
        "SELECT base FROM batch INDEXED BY batch_of_log WHERE log = ? AND last < ? ORDER BY last DESC LIMIT 1",
        (log_id, high_watermark),
    ).fetchone()
    if last is None or min(last[0], end) <= first_dirty:
        return None
    last_base: int = last[0]
    if policy.min_compaction_lag_ms > 0:
        young = conn.execute(
            "SELECT base FROM batch INDEXED BY batch_of_log WHERE log = ? AND last >= ? AND last < ?"
            " AND abs(timestamp) > ? ORDER BY last LIMIT 1",
            (log_id, first_dirty, end, now_ms - policy.min_compaction_lag_ms),
        ).fetchone()
        if young is not None:
            end = young[0]
    dirty, oldest = conn.execute(
        "SELECT sum(size), min(abs(timestamp)) FROM batch INDEXED BY batch_of_log"
        " WHERE log = ? AND last >= ? AND last < ?",
        (log_id, first_dirty, min(end, last_base)),
    ).fetchone()
    if not dirty:
        return None
    behind = conn.execute(
        "SELECT sum(size) FROM batch INDEXED BY batch_of_log WHERE log = ? AND last >= ?",
        (log_id, min(end, last_base)),
    ).fetchone()[0]
    cleanable = size - (behind or 0)
    due = is_due(policy, dirty_bytes=dirty, cleanable_bytes=cleanable, oldest_ms=oldest, now_ms=now_ms)
    return Part(first_dirty, end, last_base) if due else None


def _batches_with_headers(
    conn: sqlite3.Connection, segments: Segments, log_id: int, offset: int, end: int
) -> tuple[list[tuple[BatchRow, Buffer, BatchHeader]], int]:
    """Return the next batches from `offset` on and before `end`, up to the bytes of one step, with the offset of the
    first. Without batches, return the offset to go on from, which is behind a lost batch; that one is logged.
    """
    try:
        rows = reader.read_rows(conn, segments, log_id, offset, end, STEP_BYTES)
    except LostBatchError as error:
        lost = reader.scan(conn, log_id, offset, end, 1)
        if not lost:
            return [], offset  # gone since
        _log.warning("batch at offset %d of log %d stays as it is: %s", lost[0].base, log_id, error.message)
        return [], lost[0].last + 1
    return [(row, data, read_header(data)) for row, data in rows], offset


def _nothing_yet(_conn: sqlite3.Connection, most_keys: int, aborted: Iterable[AbortedTransaction]) -> NewestOffsets:
    return NewestOffsets(most_keys, aborted)


def collect(
    conn: sqlite3.Connection, segments: Segments, log_id: int, offset: int, end: int, newest: NewestOffsets
) -> tuple[int, bool]:
    """Add the keys of the next batches to `newest`; return the offset reached, and true if there is no memory for more
    keys. A batch that cannot be read is logged and passed over.
    """
    batches, offset = _batches_with_headers(conn, segments, log_id, offset, end)
    for row, data, header in batches:
        if not newest.has_room_for(header):
            return row.base, True
        try:
            newest.add(data, header)
        except PeerError as error:
            _log.warning("batch at offset %d of log %d cannot be read: %s", row.base, log_id, error)
        offset = row.last + 1
    return offset, False


def plan(
    conn: sqlite3.Connection,
    segments: Segments,
    log_id: int,
    offset: int,
    end: int,
    newest: NewestOffsets,
    now_ms: int,
    horizon: int,
) -> tuple[list[Change], int]:
    """Clean the next batches, without writing anything; return those that change, and the offset reached. A batch that
    cannot be read is logged and stays as it is. `horizon` is the delete horizon (ms) of new tombstones.
    """
    changes: list[Change] = []
    batches, offset = _batches_with_headers(conn, segments, log_id, offset, end)
    for row, data, header in batches:
        offset = row.last + 1
        try:
            new = newest.clean(data, header, now_ms=now_ms, delete_horizon_ms=horizon)
        except PeerError as error:
            _log.warning("batch at offset %d of log %d stays as it is: %s", row.base, log_id, error)
            continue
        if new is not data:
            changes.append(_change(row, new))
    return changes, offset


def _change(row: BatchRow, data: Buffer | None) -> Change:
    if data is None:
        return Change(row, None, 0, b"")
    header = read_header(data)
    return Change(row, data, header.max_timestamp, head_of(data, header))


def apply(conn: sqlite3.Connection, log_id: int, changes: Sequence[Change], reached: int) -> int:
    """Write changes to batches, and delete the aborted transactions that end before `reached`, since no record of them
    is left; return the bytes that this frees.

    Few statements whatever the number of batches: each may wait for the interpreter's lock.
    """
    size_of_all = f"SELECT coalesce(sum(size), 0) FROM batch WHERE log = ? AND id IN ({_numbers(changes)})"
    before: int = conn.execute(size_of_all, (log_id,)).fetchone()[0]
    gone = [change for change in changes if change.data is None]
    if gone:
        conn.execute(f"DELETE FROM batch WHERE log = ? AND id IN ({_numbers(gone)})", (log_id,))
    for part in _parts([change for change in changes if change.data is not None]):
        rows = 1 << (len(part) - 1).bit_length()  # few statements are prepared: each keeps what it was bound to last
        values: list[Any] = []
        for row, data, timestamp, head in part:
            assert data is not None
            values += (row.id, row.base, data, len(data), timestamp if timestamp >= 0 else row.timestamp, head)
        values += [None] * (6 * (rows - len(part)))
        conn.execute(
            "UPDATE batch SET data = column3, segment = NULL, position = NULL, size = column4, timestamp = column5,"
            f" head = iif(head IS NULL, NULL, column6) FROM (VALUES {','.join([_ROW] * rows)})"
            " WHERE id = column1 AND base = column2 AND log = ?",
            [*values, log_id],
        )
    after: int = conn.execute(size_of_all, (log_id,)).fetchone()[0]
    conn.execute("UPDATE log SET snapshot_size = snapshot_size - ? WHERE id = ?", (before - after, log_id))
    conn.execute("DELETE FROM aborted WHERE log = ? AND last_offset < ?", (log_id, reached))
    return before - after


def _numbers(changes: Sequence[Change]) -> str:
    return ",".join(str(change.row.id) for change in changes)


def _parts(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Yield the changes in parts that one SQL statement writes each."""
    first = size = 0
    for i, change in enumerate(changes):
        if i > first and (i - first == _UPDATE_ROWS or size + change.row.size > _UPDATE_BYTES):
            yield changes[first:i]
            first, size = i, 0
        size += change.row.size
    if changes:
        yield changes[first:]
