"""The log cleaner: of each key the newest record stays; offsets do not change.

Owns: which part of a log is due, the map of keys, the rewriting of batches. Must not know: how a batch is laid out.

As Kafka's cleaner goes: a map from key to newest offset is built over the dirty part of the log, as far as the map has
room; then every batch from the log start to there is rewritten without the records that the map supersedes. Batches
are taken in log order and each step is one transaction, so a crash leaves a log in which some superseded records are
gone, and the next pass begins again. By the time a tombstone gets its delete horizon (KIP-534) all older records of
its key are gone, so it may go in any later pass after that time. The last batch is never rewritten: it holds the end.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from kop.errors import PeerError
from kop.records.batch import HEADER_SIZE, BatchHeader, iter_records, read_header, rewrite
from kop.records.record import Record
from kop.storage.base import Buffer, LogPolicy
from kop.storage.sqlite import reader
from kop.storage.sqlite.reader import BatchRow, Readers

if TYPE_CHECKING:
    from kop.storage.sqlite.engine import SqliteEngine
    from kop.storage.sqlite.log import SqliteLog

_log = logging.getLogger(__name__)

_STEP_BYTES = 4 << 20

KeyMap = dict[bytes, int]


class Part(NamedTuple):
    """The part of a log that is due."""

    first_dirty: int
    end: int
    """Nothing from here on may supersede: not old enough, or not there yet."""
    last_base: int
    """Base offset of the log's last batch."""


class Change(NamedTuple):
    """A batch that becomes another, or goes."""

    row: BatchRow
    data: Buffer | None
    timestamp: int


async def clean(
    log: SqliteLog,
    engine: SqliteEngine,
    threads: Readers,
    snapshot: Callable[[Sequence[SqliteLog]], Awaitable[None]],
    now_ms: int,
) -> None:
    """Compact `log` where it is due, in as many passes as the map of keys needs."""
    target = log.high_watermark  # not what comes in meanwhile: others wait for their turn
    while not (log.deleted or engine.maintenance.closing):
        start, first_dirty = log.log_start_offset, max(log.clean_offset, log.log_start_offset)
        part = await threads.run(find, log.log_id, log.policy, first_dirty, target, log.size_bytes, now_ms)
        if part is None:
            return
        keys: KeyMap = {}
        offset = part.first_dirty
        while offset < part.end and not engine.maintenance.closing:
            began = time.monotonic()
            reached, full = await threads.run(
                collect, log.log_id, offset, part.end, keys, engine.settings.cleaner_keys, engine.max_batch_bytes
            )
            await asyncio.sleep(time.monotonic() - began)  # the loop and the threads share one interpreter lock
            if full or reached == offset:
                offset = reached
                break
            offset = reached
        end = min(offset, part.last_base)
        if end <= part.first_dirty:
            return
        if log.snapshot_offset < end:
            await snapshot([log])
        if not await _rewrite(log, engine, threads, start, end, keys, now_ms):
            return
        await engine.writer.execute("UPDATE log SET clean_offset = ? WHERE id = ?", (end, log.log_id))
        log.clean_offset = end


async def _rewrite(
    log: SqliteLog, engine: SqliteEngine, threads: Readers, start: int, end: int, keys: KeyMap, now_ms: int
) -> bool:
    """False where it did not come to the end: the topic went, or the engine closes."""
    offset = start
    horizon = now_ms + log.policy.delete_retention_ms
    while offset < end:
        if log.deleted or engine.maintenance.closing:
            return False
        began = time.monotonic()
        changes, reached = await threads.run(
            plan, log.log_id, offset, end, keys, now_ms, horizon, engine.max_batch_bytes
        )
        if changes:
            freed = await engine.writer.run(apply, log.log_id, changes)
            log.size_bytes -= freed
            if log.tail is not None:
                engine.cache.drop(log.tail, reached)
        if reached == offset:
            break  # nothing left up to `end`
        offset = reached
        await asyncio.sleep(time.monotonic() - began)
    return True


def find(
    conn: sqlite3.Connection, log_id: int, policy: LogPolicy, first_dirty: int, end: int, size: int, now_ms: int
) -> Part | None:
    """The part of the log that is due, or None where it is too little or too young."""
    last = conn.execute(
        "SELECT base FROM batch INDEXED BY batch_of_log WHERE log = ? AND last < ? ORDER BY last DESC LIMIT 1",
        (log_id, end),
    ).fetchone()
    if last is None or last[0] <= first_dirty:
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
    overdue = now_ms - oldest > policy.max_compaction_lag_ms
    if not overdue and dirty <= policy.min_cleanable_dirty_ratio * max(size - (behind or 0), dirty):
        return None
    return Part(first_dirty, end, last_base)


def _key(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()


def _batches(conn: sqlite3.Connection, log_id: int, offset: int, end: int) -> list[tuple[BatchRow, bytes, BatchHeader]]:
    found = reader.read_rows(conn, log_id, offset, end, _STEP_BYTES)
    return [(row, data, read_header(data)) for row, data in found]


def collect(
    conn: sqlite3.Connection, log_id: int, offset: int, end: int, keys: KeyMap, max_keys: int, max_bytes: int
) -> tuple[int, bool]:
    """Put the keys of some batches into `keys`; returns the offset reached and whether the map is full."""
    for row, data, header in _batches(conn, log_id, offset, end):
        if keys and len(keys) + header.record_count > max_keys:
            return row.base, True
        if not header.control:
            try:
                for record in iter_records(data, header, max_bytes=max_bytes):
                    if record.key is not None:
                        keys[_key(record.key)] = record.offset
            except PeerError as error:
                _log.warning("batch at offset %d of log %d cannot be read: %s", row.base, log_id, error)
        offset = row.last + 1
    return offset, False


def plan(
    conn: sqlite3.Connection,
    log_id: int,
    offset: int,
    end: int,
    keys: KeyMap,
    now_ms: int,
    horizon: int,
    max_bytes: int,
) -> tuple[list[Change], int]:
    """What becomes of some batches, and the offset reached."""
    changes: list[Change] = []
    for row, data, header in _batches(conn, log_id, offset, end):
        offset = row.last + 1
        if header.control:
            continue
        tombstones_go = header.delete_horizon and header.base_timestamp <= now_ms

        def keep(record: Record, tombstones_go: bool = tombstones_go) -> bool:
            if record.key is None or (tombstones_go and record.value is None):
                return False
            return keys.get(_key(record.key), -1) <= record.offset

        try:
            new = rewrite(data, header, keep, max_bytes=max_bytes, delete_horizon=horizon)
        except PeerError as error:
            _log.warning("batch at offset %d of log %d stays as it is: %s", row.base, log_id, error)
            continue
        if new is not data:
            changes.append(Change(row, new, 0 if new is None else read_header(new).max_timestamp))
    return changes, offset


def apply(conn: sqlite3.Connection, log_id: int, changes: Sequence[Change]) -> int:
    """Write the changes; returns the bytes that they free."""
    freed = 0
    for row, data, timestamp in changes:
        where = (row.id, log_id, row.base)
        if data is None:
            cursor = conn.execute("DELETE FROM batch WHERE id = ? AND log = ? AND base = ?", where)
            size = 0
        else:
            size = len(data)
            cursor = conn.execute(
                "UPDATE batch SET data = ?, size = ?, timestamp = ?, head = iif(head IS NULL, NULL, ?)"
                " WHERE id = ? AND log = ? AND base = ?",
                (data, size, timestamp if timestamp >= 0 else row.timestamp, bytes(data[:HEADER_SIZE]), *where),
            )
        freed += (row.size - size) * cursor.rowcount
    conn.execute("UPDATE log SET snapshot_size = snapshot_size - ? WHERE id = ?", (freed, log_id))
    return freed
