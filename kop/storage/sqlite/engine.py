"""The embedded engine: puts writer, readers, cache, topics and maintenance together; opens and closes them.

Owns: `open_engine`, producer ids, the gateway's own small values, what a commit or its failure means for the logs.
Must not know: what a batch holds, how a commit goes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from prometheus_client.core import Metric

from kop import clock
from kop.errors import BackendError, KopError
from kop.metrics import gauge_value
from kop.read_budget import ReadBudget
from kop.records.batch import read_header
from kop.records.markers import read_marker
from kop.storage.base import LogPolicy, Promises, TopicInfo
from kop.storage.idempotence import ProducerStates
from kop.storage.local import PRODUCER_IDS, LocalEngine
from kop.storage.marked_transactions import MarkedTransactions
from kop.storage.sqlite import losses, reader, schema
from kop.storage.sqlite import topics as catalogue
from kop.storage.sqlite.lock import DatabaseLock, lock
from kop.storage.sqlite.log import LogContext, SqliteLog, SqliteLogTable
from kop.storage.sqlite.losses import Losses
from kop.storage.sqlite.maintenance import Maintenance
from kop.storage.sqlite.reader import Readers
from kop.storage.sqlite.segments import Segments, files_in
from kop.storage.sqlite.settings import SqliteSettings
from kop.storage.sqlite.topics import SqliteTopics
from kop.storage.sqlite.wal import LostCommits
from kop.storage.sqlite.writer import Destination, QueuedAppend, Writer
from kop.storage.steady_time import steady_ms, wall_ahead_ms
from kop.storage.tail_cache import TailCache, reads_bytes
from kop.storage.topic_table import new_cluster_id
from kop.storage.transaction_index import AbortedTransaction
from kop.threads import Ended, tell

_logger = logging.getLogger(__name__)
T = TypeVar("T")

SWITCH_INTERVAL = 0.0002
"""The seconds between CPython's switches of threads. With its default of 5 ms the writer thread waits that long for the
GIL, several times a commit, while the loop is busy: a twentieth of the throughput.
"""


class SqliteEngine(LocalEngine):
    """An `Engine` on an SQLite database. Made by `open_engine`."""

    promises = Promises(
        checks_records=False,
        durable=True,
        writes_markers=True,
    )
    topics: SqliteTopics
    transactions: MarkedTransactions

    def __init__(
        self,
        path: Path,
        held: DatabaseLock,
        conn: sqlite3.Connection,
        token: int,
        segments: Segments,
        lost: Losses,
        policy: Callable[[TopicInfo], LogPolicy],
        settings: SqliteSettings,
        ended: Ended,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._ended = ended
        self.path = path
        self.directory = path.parent
        self.settings = settings
        self.cluster_id = ""
        page_size: int = conn.execute("PRAGMA page_size").fetchone()[0]
        self.cache = TailCache(settings.kop_cache_bytes)
        self.read_budget = ReadBudget(
            reads_bytes(settings.kop_cache_bytes), on_change=partial(self.cache.leave, "reads")
        )
        self.readers = Readers(self.loop, path, segments, settings.reader_threads, "reader", self._thread_ended)
        self.writer = Writer(
            self.loop,
            conn,
            token,
            path,
            segments,
            settings,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
            ended=self._thread_ended,
        )
        context = LogContext(self.loop, self.writer, self.readers, self.cache, self._refusal, self._move_start)
        self.logs = SqliteLogTable(context, policy)
        self.maintenance = Maintenance(
            self.loop,
            path,
            page_size,
            settings,
            self.writer,
            segments,
            self.cache,
            self.logs.all,
            self._thread_ended,
        )
        self._lock = held
        self._lost = lost
        self._closed = False
        self._failing = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # For handlers and coordinators: see kop.storage.base.Engine.

    def log(self, topic_id: UUID, partition: int) -> SqliteLog | None:
        """Return the log of a partition, the same object each time; None if there is no such partition."""
        return self.logs.log(topic_id, partition)

    async def reserve_producer_ids(self) -> range:
        """Return 1000 producer ids that were never given before, also not before a restart. BackendError if they cannot
        be written.
        """

        def write(conn: sqlite3.Connection) -> range:
            end: int = conn.execute(
                "UPDATE meta SET value = value + ? WHERE key = 'producer_id.next' RETURNING value", (PRODUCER_IDS,)
            ).fetchone()[0]
            return range(end - PRODUCER_IDS, end)

        return await self.writer.run(write)

    async def get_state(self, key: str) -> str | None:
        """Return a small durable value by its key; None if there is none."""
        return await self.readers.run(reader.get_state, key)

    async def put_state(self, key: str, value: str | None) -> None:
        """Set a small durable value by its key, or remove it with None."""
        if value is None:
            await self.writer.execute("DELETE FROM state WHERE key = ?", (key,))
        else:
            await self.writer.execute("REPLACE INTO state (key, value) VALUES (?, ?)", (key, value))

    @property
    def healthy(self) -> str | None:
        """None if the last commit succeeded; else the reason why it failed, or why no more are made: the engine is
        closed, or one of its threads has ended.
        """
        return "the storage engine is closed" if self._closed else self.writer.ended or self.writer.failure

    @property
    def losses(self) -> str | None:
        """One line about stored records that this start has found to be lost; None if none are."""
        return self._lost.text

    async def close(self) -> None:
        """Commit the batches that were submitted, store the producers' windows, empty the write-ahead log, and unlock
        the file.
        """
        if self._closed:
            return
        self._closed = True
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
            await self.maintenance.close()
            await self.writer.stop()
            await self.readers.close()
        finally:
            self._lock.close()

    async def maintain(self, now_ms: int) -> None:
        """Do all that is due at `now_ms`: retention, deletes, compaction, vacuum, removal of files of batches.
        Producers expire by a clock of their own, and snapshots of logs that have changed are stored.
        """
        await self.maintenance.run(now_ms)

    def policies_changed(self) -> None:
        """Ask for every topic's policy again: a broker default was altered."""
        for topic in self.topics.all():
            self.logs.update(topic)

    def collect(self) -> Iterable[Metric]:
        """Return metrics of the engine: those of every engine, and the losses that the start has found."""
        return (
            *super().collect(),
            gauge_value("kop_lost_batches", "Batches whose file was not there at the start.", self._lost.batches),
            gauge_value("kop_lost_commits", "Commits that the start found lost in a damaged log.", self._lost.commits),
        )

    @property
    def queued_bytes(self) -> int:
        """The bytes of batches that were submitted and are not durable yet: a server may stop reading if they grow."""
        return self.writer.queued_bytes

    # For the parts of the engine.

    def _refusal(self, size: int) -> KopError | None:
        """Return KAFKA_STORAGE_ERROR for a batch of `size` bytes that cannot be accepted now, since the engine is
        closed, one of its threads has ended or too many bytes wait for the disk; None if it can.
        """
        if self._closed:
            return BackendError("the storage engine is closed")
        if self.writer.ended is not None:
            return BackendError(self.writer.ended)
        if self.writer.queued_bytes + size > self.settings.max_queued_bytes:
            return BackendError(f"{self.writer.queued_bytes >> 20} MiB wait for the disk already")
        return None

    async def _move_start(self, log: SqliteLog, offset: int) -> None:
        await self._finish(self.maintenance.move_start(log, offset))

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end even if the caller is cancelled. BackendError if the engine is closed."""
        if self._closed:
            work.close()
            raise BackendError("the storage engine is closed")
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; where nobody is left it is not a stray

    def restore(self, state: _State) -> None:
        """Set the engine's state, such as topics and logs, to what was read from the file."""
        self.cluster_id = state.cluster_id
        self.topics = SqliteTopics(
            state.version,
            state.topics,
            writer=self.writer,
            logs=self.logs,
            finish=self._finish,
            on_removed=self.maintenance.wake,
        )
        self.transactions = MarkedTransactions(self.topics, self.log, clock.wall_ms)
        topics = dict(state.topics)
        for row, rows in itertools.groupby(state.logs, key=lambda log: log.topic):
            topic = topics[row]
            of_topic = list(rows)
            self.logs.add(topic, [stored.log_id for stored in of_topic])
            for log, stored in zip(self.logs.of(topic.topic_id), of_topic, strict=True):
                log.log_start_offset = stored.log_start
                log.high_watermark = log.end_offset = stored.end
                log.size_bytes = stored.size
                log.clean_offset = stored.clean_offset
                log.snapshot_offset = stored.snapshot_offset
                log.producer_states = stored.producers

    def _thread_ended(self, name: str, error: BaseException) -> None:
        """Call `ended` of `open_engine`, and refuse batches from now on, because a thread of the engine has ended
        unexpectedly. Called on that thread.
        """
        self._ended(name, error)
        try:
            self.loop.call_soon_threadsafe(self.writer.fail, f"the thread {name} has ended: {error!r}")
        except RuntimeError:
            pass  # the loop was closed meanwhile: nobody is left to be told

    def _on_committed(self, group: Sequence[QueuedAppend]) -> None:
        if self._failing and self.writer.failure is None:
            self._failing = False
            _logger.warning("batches are stored again")
        size = 0
        for entry in group:
            entry.log.committed(entry)
            if entry.stored_at is None:
                size += entry.size
        logs = dict.fromkeys(entry.log for entry in group)
        for log in logs:
            log.tell()
        self.maintenance.on_committed(len(group), len(logs), size)

    def _on_failed(self, lost: Sequence[QueuedAppend], error: BackendError) -> None:
        if not self._failing:
            self._failing = True
            _logger.error("%d batch(es) could not be stored, more may follow: %s", len(lost), error.message)
        by_log: dict[Destination, list[QueuedAppend]] = {}
        for entry in lost:
            by_log.setdefault(entry.log, []).append(entry)
        for log, entries in by_log.items():
            log.failed(entries, error)


@dataclass(slots=True)
class _StoredLog:
    topic: int
    log_id: int
    log_start: int
    end: int
    size: int
    clean_offset: int
    snapshot_offset: int
    producers: ProducerStates | None


@dataclass(slots=True)
class _State:
    cluster_id: str
    version: int
    topics: list[tuple[int, TopicInfo]]
    logs: list[_StoredLog]


def _take_over(
    conn: sqlite3.Connection, path: Path, token: int, kept: Collection[int], lost: LostCommits | None, now_ms: int
) -> None:
    """Make this process the only writer: commits of any other process that opened the file fail from now on. Make the
    first rows of a new database; note the files that are `kept`, and skip the offsets and producer ids of lost commits.

    It is the first commit of a start, and in the write-ahead log it overwrites lost commits.
    """
    conn.execute("BEGIN IMMEDIATE")
    conn.executemany(
        "INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)",
        [("cluster.id", new_cluster_id()), ("producer_id.next", 0), ("topics.version", 0)],
    )
    conn.executemany("REPLACE INTO meta (key, value) VALUES (?, ?)", [("writer", token), ("path", os.fsencode(path))])
    losses.keep_files(conn, kept)
    if lost is not None:
        losses.skip_what_was_given_out(conn, lost, PRODUCER_IDS, now_ms)
    conn.execute("COMMIT")


def _load(conn: sqlite3.Connection) -> _State:
    meta = dict(conn.execute("SELECT key, value FROM meta").fetchall())
    aborted = _load_aborted(conn)
    logs = [
        _load_log(conn, aborted.get(row[1], ()), *row)
        for row in conn.execute(
            "SELECT topic, id, log_start, clean_offset, snapshot_offset, snapshot_size, producers"
            " FROM log WHERE topic IS NOT NULL ORDER BY topic, partition"
        ).fetchall()
    ]
    return _State(str(meta["cluster.id"]), int(meta["topics.version"]), catalogue.load(conn), logs)


def _load_aborted(conn: sqlite3.Connection) -> dict[int, list[AbortedTransaction]]:
    """Return the aborted transactions of each log, by its id, except those that end before the log start or in the
    part that compaction has seen: none of their records is left.
    """
    aborted: dict[int, list[AbortedTransaction]] = {}
    for log_id, *values in conn.execute(
        "SELECT aborted.log, producer_id, first_offset, last_offset, last_stable_offset"
        " FROM aborted JOIN log ON log.id = aborted.log"
        " WHERE last_offset >= max(log_start, clean_offset) ORDER BY aborted.log, last_offset"
    ):
        aborted.setdefault(log_id, []).append(AbortedTransaction(*values))
    return aborted


def _load_log(
    conn: sqlite3.Connection,
    aborted: Sequence[AbortedTransaction],
    topic: int,
    log_id: int,
    log_start: int,
    clean_offset: int,
    snapshot_offset: int,
    size: int,
    snapshot: str | None,
) -> _StoredLog:
    end, behind = conn.execute(
        "SELECT max(last) + 1, sum(size) FROM batch INDEXED BY batch_of_log WHERE log = ? AND last >= ?",
        (log_id, snapshot_offset),
    ).fetchone()
    producers, used_ms = None, steady_ms()
    if snapshot is not None or aborted:
        producers = ProducerStates.restore(
            json.loads(snapshot or "[]"),
            aborted,
            wall_ahead_ms=wall_ahead_ms(),
            used_ms=used_ms,
        )
    if end is not None:
        for (head,) in conn.execute(
            "SELECT head FROM batch INDEXED BY batch_of_log"
            " WHERE log = ? AND last >= ? AND head IS NOT NULL ORDER BY last",
            (log_id, snapshot_offset),
        ):
            header = read_header(head)
            marker = read_marker(head) if header.control else None
            if producers is None:
                producers = ProducerStates()
            producers.replay(header, header.base_offset, used_ms, marker)
    return _StoredLog(
        topic,
        log_id,
        log_start,
        max(log_start, snapshot_offset, end or 0),
        size + (behind or 0),
        clean_offset,
        snapshot_offset,
        producers,
    )


async def open_engine(
    path: str | Path,
    *,
    policy: Callable[[TopicInfo], LogPolicy],
    settings: SqliteSettings | None = None,
    ended: Ended = tell,
) -> SqliteEngine:
    """Open the database at `path`, or make it, and start the engine on the running loop.

    `policy` gives a topic's effective configs and is asked again after each change of the topic. `ended` is called if a
    thread of the engine ends unexpectedly; if it returns, the engine takes no more batches, and says so. Lowers the
    process's thread switch interval to 0.2 ms. Raises BackendError if the file is in use, is not ours, has another
    schema version or cannot be written.
    """
    settings = settings or SqliteSettings()
    loop = asyncio.get_running_loop()
    file, held = await loop.run_in_executor(None, _lock, Path(path))
    token = clock.randbits(63)
    conn: sqlite3.Connection | None = None
    now_ms = clock.wall_ms()
    try:
        lost = await loop.run_in_executor(None, _look_at_log, file, settings)
        conn = await loop.run_in_executor(None, schema.prepare, file)
        settings = await loop.run_in_executor(None, _fitted, settings, file.parent)
        segments, losses_at_start = await loop.run_in_executor(
            None, _segments, conn, file, settings.segment_bytes, lost
        )
        await loop.run_in_executor(None, _take_over, conn, file, token, segments.kept, lost, now_ms)
        state = await loop.run_in_executor(None, _load, conn)
    except BaseException as error:
        if conn is not None:
            conn.close()
        held.close()
        if isinstance(error, sqlite3.Error):
            raise BackendError(f"cannot read {file}: {error}") from error
        raise
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
    engine = SqliteEngine(file, held, conn, token, segments, losses_at_start, policy, settings, ended)
    engine.restore(state)
    engine.maintenance.start()
    return engine


def _look_at_log(path: Path, settings: SqliteSettings) -> LostCommits | None:
    try:
        return losses.look_at_log(path, refuse=settings.kop_refuse_damaged_log)
    except OSError as error:
        raise BackendError(f"cannot read {path}: {error.strerror or error}") from error


def _segments(
    conn: sqlite3.Connection, path: Path, roll_bytes: int, lost: LostCommits | None
) -> tuple[Segments, Losses]:
    """Return the files of large batches beside the database, and the losses that the start has found; batches whose
    file is missing are counted, and logged.

    BackendError if the files are those of another database, cannot be listed, or their whole folder is missing.
    """
    folder = schema.segments_of(path)
    try:
        there = files_in(folder)
    except OSError as error:
        raise BackendError(f"cannot read {folder}: {error}") from error
    if there and lost is None and conn.execute("SELECT 1 FROM meta").fetchone() is None:
        raise BackendError(
            f"{path} is new, but {folder} holds batches of another database: "
            "put that database back in its place, or remove the folder"
        )
    needed = reader.referenced(conn)
    missing = [number for number in needed if not there.get(number)]
    unread = 0
    if missing:
        text = (
            f"{path} has batches in {len(missing)} file(s) of {folder} that are not there, the first is"
            f" {missing[0]:010d}"
        )
        if not folder.is_dir():
            raise BackendError(
                f"{text}: a copy of the database needs that folder beside it. Where it is lost, make an empty one: "
                "consumers are told which batches cannot be read"
            )
        unread = sum(reader.count_in(conn, number) for number in missing)
        _logger.error(
            "%s: %d batch(es) cannot be read, consumers get CORRUPT_MESSAGE until they seek past them or retention "
            "takes them. Stop the broker and put the files back, where there is a copy of them",
            text,
            unread,
        )
    logs = losses.damaged_logs(path)
    kept = set(losses.kept_files(conn)) if logs else set()
    if lost is not None:
        # Those that no row names, and the last one that rows do name: lost rows may have named it, too.
        kept |= there.keys() - set(needed[:-1])
    segments = Segments(folder, roll_bytes=roll_bytes, last=max([0, *there, *needed]), kept=kept)
    return segments, Losses(unread, 0 if lost is None else lost.commits, logs)


def _fitted(settings: SqliteSettings, directory: Path) -> SqliteSettings:
    """Return the settings with smaller sizes if the disk is small: a log as large as the disk could never be
    emptied.
    """
    disk = os.statvfs(directory)
    total = disk.f_blocks * disk.f_frsize
    sizes = {
        "kop_min_free_bytes": min(settings.kop_min_free_bytes, total // 8),
        "kop_wal_bytes": min(settings.kop_wal_bytes, max(total // 16, 1 << 20)),
        "segment_bytes": min(settings.segment_bytes, max(total // 16, 1 << 20)),
    }
    return settings.model_copy(update=sizes)


def _lock(named: Path) -> tuple[Path, DatabaseLock]:
    """Lock the database that a name stands for, making its directory if need be; return its real path, beside which its
    other files lie, and the lock. BackendError if it is a directory, is in use or cannot be written, or if files of
    batches lie beside a link to it.
    """
    if named.is_dir():
        raise BackendError(f"cannot open {named}: it is a directory; name a file in it, as sqlite:{named / 'kop.db'}")
    file = Path(os.path.realpath(named))
    by_link, there = schema.segments_of(named), schema.segments_of(file)
    try:
        if os.path.realpath(by_link) != os.path.realpath(there) and files_in(by_link):
            raise BackendError(
                f"{named} is a link to {file}, and {by_link} has files of large batches, which belong beside {file}: "
                f"move them into {there}"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        return file, lock(file)
    except OSError as error:
        raise BackendError(f"cannot write in {file.parent}: {error.strerror or error}") from error
