"""What is the embedded engine's own: durability, failing disks, crashes, its file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batches import LIMIT, NOW, append, batch, fill, put, read_all, read_values
from engines import SqliteStore
from test_engine_suite import first, make, refused

from kop.errors import BackendError, ErrorCode, KopError
from kop.records.batch import read_header
from kop.storage.base import LogPolicy
from kop.storage.sqlite import SqliteEngine, compaction, maintenance, open_engine, writer
from kop.storage.sqlite.cache import Tail, TailCache
from kop.storage.sqlite.log import SqliteLog


class Connection:
    """The writer's connection with something put before each call."""

    def __init__(self, inner: sqlite3.Connection, before: Callable[[str], None]) -> None:
        self._inner = inner
        self._before = before

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        self._before(sql)
        return self._inner.execute(sql, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def intercept(engine: SqliteEngine, before: Callable[[str], None]) -> Callable[[], None]:
    """Call `before(sql)` on the writer's thread; returns the undo."""
    inner = engine.writer._conn
    engine.writer._conn = Connection(inner, before)  # type: ignore[assignment]

    def undo() -> None:
        engine.writer._conn = inner

    return undo


def fail_inserts(sql: str) -> None:
    if sql.startswith("INSERT INTO batch"):
        raise sqlite3.OperationalError("database or disk is full")


async def pragma(engine: SqliteEngine, name: str) -> Any:
    return await engine.writer.run(lambda conn: conn.execute(f"PRAGMA {name}").fetchone()[0], transaction=False)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in the background."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def stored_bytes(log: SqliteLog) -> int:
    """The bytes of all batches, counted in the file."""
    with closing(sqlite3.connect(log._engine.path)) as conn:
        query = "SELECT coalesce(sum(length(data)), 0), coalesce(sum(size), 0) FROM batch WHERE log = ?"
        data, size = conn.execute(query, (log.log_id,)).fetchone()
    assert data == size
    return int(data)


def size_of(path: Path, suffix: str = "") -> int:
    file = Path(f"{path}{suffix}")
    return file.stat().st_size if file.exists() else 0


def content(path: Path, suffix: str) -> bytes:
    return Path(f"{path}{suffix}").read_bytes()


# Durability


async def test_the_writers_connection_commits_to_disk(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        assert await pragma(engine, "journal_mode") == "wal"
        assert await pragma(engine, "synchronous") == 2  # FULL
        assert await pragma(engine, "page_size") == 32768
        assert await pragma(engine, "secure_delete") == 0
        assert await pragma(engine, "auto_vacuum") == 2  # INCREMENTAL
        assert await pragma(engine, "wal_autocheckpoint") == 0
        assert sys.getswitchinterval() <= 0.0002 + 1e-9


@pytest.mark.parametrize("count", [1, 300])
async def test_no_acknowledgement_before_the_commit_returns(sqlite: SqliteStore, count: int) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        entered, go = threading.Event(), threading.Event()
        commits = "INSERT INTO batch" if count <= writer.ROWS_PER_INSERT else "COMMIT"

        def hold(sql: str) -> None:
            if sql.startswith(commits):
                entered.set()
                assert go.wait(30)

        undo = intercept(engine, hold)
        woken: list[int] = []
        log.on_advance(lambda: woken.append(log.high_watermark))
        data = batch(["a"], producer=1)
        futures = [append(log, data), append(log, bytes(data)), *[append(log, batch(["b"])) for _ in range(count - 1)]]
        await asyncio.to_thread(entered.wait)
        await asyncio.sleep(0.05)
        assert not any(future.done() for future in futures)
        assert log.high_watermark == 0
        assert log.read_cached(0, LIMIT, min_one=True) == await log.read(0, LIMIT, min_one=True)
        assert log.producers() == []
        assert woken == []
        go.set()
        await asyncio.gather(*futures)
        assert woken == [count]
        assert await stored_bytes(log) == log.size_bytes
        undo()


async def test_one_insert_a_commit(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=8)
        statements: list[str] = []
        undo = intercept(engine, statements.append)
        await asyncio.gather(*[append(first(engine, partition=i % 8), batch(["x"])) for i in range(100)])
        undo()
        assert len(statements) == 1
        assert log.high_watermark == 13


async def test_a_duplicate_does_not_lose_its_answer_with_the_originals_caller(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        data = batch(["a"], producer=1)
        futures = [append(log, bytes(data)) for _ in range(4)]
        futures[0].cancel()
        futures[2].cancel()
        assert [(await futures[i]).base_offset for i in (1, 3)] == [0, 0]
        assert log.high_watermark == 1


async def test_close_waits_for_a_step_of_the_background_work(sqlite: SqliteStore) -> None:
    sqlite.settings["maintain"] = True
    engine = await sqlite.open()
    log = await make(engine)
    await asyncio.gather(*[append(log, batch(["x" * 1000])) for _ in range(3000)])
    await log.delete_records(2990)
    await asyncio.sleep(0.002)
    await engine.close()
    async with sqlite.opened() as engine:
        await engine.maintain(NOW)
        assert await stored_bytes(first(engine)) == first(engine).size_bytes
        assert [record.offset for record in await read_all(first(engine))] == list(range(2990, 3000))


async def test_an_idle_writer_lets_go_of_what_it_wrote(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_IDLE_SECONDS", 0.05)
    async with sqlite.opened() as engine:
        log = await make(engine)
        for count in (1, 3, 300):
            await asyncio.gather(*[append(log, batch(["x"])) for _ in range(count)])
        assert engine.writer._bound
        changes = engine.writer._conn.total_changes
        wal = content(engine.path, "-wal")
        await until(lambda: not engine.writer._bound)
        await asyncio.sleep(0.05)
        assert engine.writer._conn.total_changes == changes
        assert content(engine.path, "-wal") == wal
        await fill(log, "y")
        assert len(await read_all(log)) == 305


CHILD = Path(__file__).with_name("crash_child.py")


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_under_load_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Idempotent producers, killed with their engine, go on behind what was acknowledged: each record once."""
    store = SqliteStore(tmp_path)
    acked: dict[int, int] = {}  # partition -> sequence up to which everything was acknowledged
    for round_ in range(3):
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(store.path), json.dumps(acked)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.2 + 0.15 * seed + 0.1 * round_)
        child.send_signal(signal.SIGKILL)
        out = child.communicate()[0]
        before = dict(acked)
        for line in out.splitlines(keepends=True):
            if line.endswith("\n"):
                partition, sequence, offset = map(int, line.split())
                assert sequence == offset  # one record for each sequence, nothing else in the log
                acked[partition] = max(acked.get(partition, 0), sequence + 1)
        assert acked != before

        async def check() -> None:
            async with store.opened() as engine:
                for partition, count in acked.items():
                    log = first(engine, partition=partition)
                    found = await read_all(log)
                    assert log.high_watermark >= count
                    assert [int(r.value or b"") for r in found] == list(range(log.high_watermark))
                    assert [r.offset for r in found] == list(range(log.high_watermark))
                    assert await stored_bytes(log) == log.size_bytes
                    assert log.producers()[0].last_sequence == log.high_watermark - 1

        asyncio.run(check())


# Failing disks


@pytest.mark.parametrize("count", [5, 600])
async def test_a_failed_commit_is_rolled_back(sqlite: SqliteStore, count: int) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2)
        other = first(engine, partition=1)
        for sequence in range(3):
            await append(log, batch(["before"], producer=1, sequence=sequence))
        views = log.producers()
        inserts = 0

        def fail_the_second(sql: str) -> None:
            nonlocal inserts
            inserts += sql.startswith("INSERT INTO batch")
            if inserts == 2 or count < writer.ROWS_PER_INSERT:
                fail_inserts(sql)

        undo = intercept(engine, fail_the_second)
        lost = [append(log, batch(["lost"], producer=1, sequence=3 + i)) for i in range(count)]
        lost.append(append(log, batch(["lost"], producer=1, sequence=2 + count)))
        lost.append(append(other, batch(["lost"], producer=2)))
        for future in lost:
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await future
        undo()
        assert engine.healthy is not None
        assert "disk is full" in engine.healthy
        assert engine.queued_bytes == 0
        assert (log.high_watermark, log.end_offset, other.end_offset) == (3, 3, 0)
        assert log.producers() == views
        assert other.producers() == []
        result = await append(log, batch(["after"], producer=1, sequence=3))
        assert result.base_offset == 3
        assert engine.healthy is None
        assert (await append(other, batch(["after"], producer=2, sequence=7))).base_offset == 0
        assert await read_values(log) == ["before"] * 3 + ["after"]
    async with sqlite.opened() as engine:
        assert await read_values(first(engine)) == ["before"] * 3 + ["after"]
        assert await stored_bytes(first(engine)) == first(engine).size_bytes


async def test_what_queues_behind_a_failed_commit_fails_with_it_and_nothing_else(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2)
        other = first(engine, partition=1)
        entered, go = threading.Event(), threading.Event()

        def fail_first(sql: str) -> None:
            if sql.startswith("INSERT INTO batch") and not go.is_set():
                entered.set()
                assert go.wait(30)
                raise sqlite3.OperationalError("disk I/O error")

        undo = intercept(engine, fail_first)
        futures = [append(log, batch(["first"], producer=1))]
        await asyncio.to_thread(entered.wait)
        futures += [append(log, batch(["behind"], producer=1, sequence=1 + i)) for i in range(3)]
        fine = [append(other, batch([str(i)])) for i in range(3)]
        go.set()
        for future in futures:
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await future
        assert [(await future).base_offset for future in fine] == [0, 1, 2]
        undo()
        assert (await append(log, batch(["again"], producer=1))).base_offset == 0
        assert await read_values(log) == ["again"]
        assert await read_values(other) == ["0", "1", "2"]


async def test_a_full_disk_heals(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, retention_bytes="100000")
        await append(log, batch(["x" * 200_000], producer=1))
        pages = await pragma(engine, "page_count")
        await pragma(engine, f"max_page_count = {pages + 20}")
        stored = 1
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            while stored < 50:
                await append(log, batch(["y" * 200_000], producer=1, sequence=stored))
                stored += 1
        assert 1 < stored < 50
        for _ in range(3):
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await append(log, batch(["y" * 200_000], producer=1, sequence=stored))
        assert len(await read_all(log)) == stored
        # what frees room works, and what it freed is enough to go on
        await sqlite.maintain(engine, NOW)
        assert log.log_start_offset == stored - 1
        await engine.topics.create("another", 3, {})
        await append(log, batch(["z" * 200_000], producer=1, sequence=stored))
        assert engine.healthy is None
        assert len(await read_all(log)) == 2


async def test_room_is_kept_for_what_has_to_go_on(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        internal = first(engine, await engine.topics.create("__offsets", 1, {}, internal=True))
        await fill(log, "before")
        monkeypatch.setattr(engine.writer, "_min_free_bytes", 1 << 60)
        engine.writer._next_space_check = 0.0
        futures = [append(one, batch([name])) for one, name in ((log, "a"), (internal, "offset"), (log, "b"))]
        assert (await futures[1]).base_offset == 0
        for future in (futures[0], futures[2], append(log, batch(["c"]))):
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await future
        await log.delete_records(-1)
        await engine.put_state("k", "v")
        monkeypatch.setattr(engine.writer, "_min_free_bytes", 0)
        assert (await append(log, batch(["d"]))).base_offset == 1


async def test_health_comes_back_without_an_append(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.01)
    sqlite.settings["maintain"] = True
    async with sqlite.opened() as engine:
        log = await make(engine)
        monkeypatch.setattr(engine.writer, "_min_free_bytes", 1 << 60)
        engine.writer._next_space_check = 0.0
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, batch(["a"]))
        await asyncio.sleep(0.1)
        assert engine.healthy is not None
        monkeypatch.setattr(engine.writer, "_min_free_bytes", 0)
        await until(lambda: engine.healthy is None)


async def test_a_failed_change_of_the_catalogue_changes_nothing(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        topic = log.topic

        def fail(sql: str) -> None:
            if sql == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")

        undo = intercept(engine, fail)
        version = engine.topics.version
        for change in (
            engine.topics.create("new", 2, {}),
            engine.topics.delete(topic.topic_id),
            engine.topics.grow(topic.topic_id, 4),
            engine.topics.set_configs(topic.topic_id, {"a": "b"}),
            engine.allocate_producer_ids(5),
            engine.put_state("k", "v"),
        ):
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await change
        undo()
        assert list(engine.topics.all()) == [topic]
        assert engine.topics.version == version
        await fill(log, "works")
        await engine.topics.create("new", 2, {})
        assert await engine.get_state("k") is None


async def test_queued_bytes_are_bounded(sqlite: SqliteStore) -> None:
    sqlite.settings["max_queued_bytes"] = 50_000
    async with sqlite.opened() as engine:
        log = await make(engine)
        futures = [append(log, batch(["x" * 10_000])) for _ in range(10)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [isinstance(result, KopError) for result in results] == [False] * 4 + [True] * 6
        assert engine.queued_bytes == 0
        assert (await append(log, batch(["y"]))).base_offset == 4


# Crashes between two steps


def image(engine: SqliteEngine, directory: Path) -> SqliteStore:
    """What a crash would leave now: the database and its write-ahead log. Only from the writer's thread."""
    directory.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{engine.path}{suffix}", directory / f"kop.db{suffix}")
    return SqliteStore(directory)


async def images_of(engine: SqliteEngine, directory: Path, now_ms: int) -> list[SqliteStore]:
    """Crash images from before each commit of `maintain`, and from its end."""
    found: list[SqliteStore] = []

    def take(sql: str) -> None:
        if sql == "COMMIT" and len(found) < 60:
            found.append(image(engine, directory / str(len(found))))

    undo = intercept(engine, take)
    await engine.maintain(now_ms)
    undo()
    found.append(await engine.writer.run(lambda conn: image(engine, directory / "end"), transaction=False))
    return found


async def test_a_crash_in_compaction(sqlite: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_STEP_BYTES", 2000)
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0", delete_retention_ms="0")
        expected: dict[bytes, tuple[int, bytes | None]] = {}
        for i in range(60):
            key, value = f"k{i % 7}", None if i % 5 == 0 else str(i) * 50
            offset = await put(log, key, value)
            expected[key.encode()] = (offset, None if value is None else value.encode())
        live = {key: found for key, found in expected.items() if found[1] is not None}
        images = await images_of(engine, tmp_path, NOW)
    assert len(images) > 5
    for store in images:
        async with store.opened() as engine:
            log = first(engine)
            for _ in range(2):
                assert (log.log_start_offset, log.high_watermark) == (0, 60)
                newest = {r.key: (r.offset, r.value) for r in await read_all(log)}
                assert {key: found for key, found in newest.items() if found[1] is not None} == live
                assert await stored_bytes(log) == log.size_bytes
                await engine.maintain(NOW)
            assert len(await read_all(log)) <= 8


async def test_a_crash_in_retention(sqlite: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_REMOVE_ROWS", 4)
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2, retention_ms="1000")
        gone = await make(engine, "gone", 3)
        for i in range(20):
            await append(log, batch([str(i)], producer=3, sequence=i, timestamp=NOW + i))
            await append(first(engine, partition=1), batch(["x"], timestamp=NOW))
            await fill(gone, "gone")
        await engine.topics.delete(gone.topic.topic_id)
        images = await images_of(engine, tmp_path, NOW + 1015)
        assert log.log_start_offset == 15
    assert len(images) > 8
    starts = set()
    for store in images:
        async with store.opened() as engine:
            log, other = first(engine), first(engine, partition=1)
            starts.add(log.log_start_offset)
            assert (log.high_watermark, other.high_watermark) == (20, 20)
            assert log.producers()[0].last_sequence == 19
            assert await read_values(log) == [str(i) for i in range(log.log_start_offset, 20)]
            await engine.maintain(NOW + 1015)
            assert (log.log_start_offset, other.log_start_offset, other.size_bytes) == (15, 20, 0)
            assert await stored_bytes(log) == log.size_bytes
            assert (await append(other, batch(["y"]))).base_offset == 20
            rows = await engine.writer.run(lambda conn: conn.execute("SELECT count(*) FROM log").fetchone()[0])
            assert rows == 2
    assert starts == {0, 15}


async def test_a_deleted_topics_rows_go_in_the_background(sqlite: SqliteStore) -> None:
    sqlite.settings["maintain"] = True
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=3)
        await asyncio.gather(*[append(first(engine, partition=i % 3), batch(["x" * 100])) for i in range(300)])
        await engine.topics.delete(log.topic.topic_id)
        with closing(sqlite3.connect(engine.path)) as conn:
            query = "SELECT (SELECT count(*) FROM batch) + (SELECT count(*) FROM log)"
            await until(lambda: conn.execute(query).fetchone() == (0,))


# Compaction with little memory, and with what it cannot read


async def test_compaction_in_several_passes(sqlite: SqliteStore) -> None:
    sqlite.settings["cleaner_keys"] = 10
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        expected = {}
        for i in range(150):
            expected[f"k{i * 11 % 40}"] = await put(log, f"k{i * 11 % 40}", str(i))
        await sqlite.maintain(engine, NOW)
        found = await read_all(log)
        assert {record.key.decode(): record.offset for record in found if record.key} == expected
        assert len(found) == 40


async def test_compaction_leaves_alone_what_it_cannot_read(
    sqlite: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact")
        await put(log, "a", "1")
        data = batch(["2"], keys=["a"], codec=4)
        data[70] ^= 0xFF
        await append(log, data)
        await put(log, "a", "3")
        await put(log, "b", "4")
        await sqlite.maintain(engine, NOW)
        result = await log.read(0, LIMIT, min_one=True)
        assert [read_header(buffer).base_offset for buffer in result.buffers] == [1, 2, 3]
        assert bytes(result.buffers[0]) == bytes(data)
    assert "stays as it is" in caplog.text


# The file


async def test_a_second_engine_is_refused(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        await make(engine)
        with pytest.raises(BackendError, match=f"in use by another kop process .pid {os.getpid()}"):
            await sqlite.open()
        code = (
            "import asyncio, sys; from kop.storage.sqlite import open_engine; from kop.storage.base import LogPolicy\n"
            "asyncio.run(open_engine(sys.argv[1], policy=lambda topic: LogPolicy()))"
        )
        child = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code, str(sqlite.path)], capture_output=True, text=True, check=False
        )
        assert child.returncode != 0
        assert "in use by another kop process" in child.stderr
    async with sqlite.opened() as engine:
        assert engine.topics.get("t") is not None


async def test_files_that_are_not_ours_are_refused(sqlite: SqliteStore, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    conn = sqlite3.connect(other)
    conn.execute("CREATE TABLE t (x)")
    conn.commit()
    conn.close()
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database" * 1000)
    for path, text in ((other, "something else"), (garbage, "not a database"), (tmp_path, "cannot")):
        with pytest.raises(BackendError, match=text):
            await open_engine(path, policy=lambda topic: pytest.fail("not reached"))
    assert garbage.read_bytes() == b"not a database" * 1000
    async with sqlite.opened():
        pass
    for version in (0, 99):
        conn = sqlite3.connect(sqlite.path)
        conn.execute(f"PRAGMA user_version = {version}")
        conn.close()
        with pytest.raises(BackendError, match=f"schema version {version}"):
            await sqlite.open()


async def test_the_write_ahead_log_stays_small(sqlite: SqliteStore) -> None:
    sqlite.settings["wal_bytes"] = 2 << 20
    async with sqlite.opened() as engine:
        log = await make(engine)
        for _ in range(40):
            await asyncio.gather(*[append(log, batch(["x" * 100_000])) for _ in range(10)])
            await log.read(0, 1 << 20, min_one=True)
        assert log.size_bytes > 40_000_000
        assert size_of(engine.path, "-wal") < 16 << 20
    assert size_of(engine.path, "-wal") == 0


async def test_the_file_shrinks(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_VACUUM_FROM_PAGES", 8)
    async with sqlite.opened() as engine:
        log = await make(engine)
        await asyncio.gather(*[append(log, batch(["x" * 1_000_000])) for _ in range(20)])
        await log.delete_records(19)
        await engine.maintain(NOW)
        assert log.size_bytes < 2 << 20
    assert size_of(sqlite.path) < 4 << 20
    async with sqlite.opened() as engine:
        assert [record.offset for record in await read_all(first(engine))] == [19]


async def test_settings_of_a_topic_reach_its_logs(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, retention_ms="5")
        assert log.policy.retention_ms == 5
        engine._policy = lambda topic: LogPolicy(retention_ms=77)
        engine.policies_changed()
        assert log.policy.retention_ms == 77


# The cache


def test_the_cache_is_bounded_and_forgets_the_oldest_first() -> None:
    cache = TailCache(10_000)
    tails = [Tail(), Tail()]
    for i in range(300):
        cache.push(tails[i % 2], i, i + 1, b"x" * 300)
        assert cache.size <= 10_000
    for i, tail in enumerate(tails):
        kept = [offset for offset in range(320) if tail.get(offset, 1 << 30, True) not in (None, ([], 0))]
        assert kept
        assert min(kept) >= 280
        assert tail.get(250 + i, 1 << 30, True) is None
    cache.drop(tails[0])
    assert tails[0].get(299, 1 << 30, True) is None
    left = cache.size
    for i in range(300, 400):
        cache.push(tails[1], i, i + 1, b"x" * 300)
        assert cache.size <= 10_000
    assert left < cache.size
    cache.drop(tails[1], 390)
    assert tails[1].get(388, 1 << 30, True) is None
    assert tails[1].get(390, 1 << 30, True) == ([b"x" * 300] * 11, 3300)
    cache.drop(tails[1])
    assert cache.size == 0


async def test_the_tail_is_served_from_memory_without_a_copy(sqlite: SqliteStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        data = batch(["a"])
        await append(log, data)
        result = log.read_cached(0, LIMIT, min_one=True)
        assert result is not None
        assert result.buffers[0] is data
    async with sqlite.opened() as engine:
        log = first(engine)
        assert log.read_cached(0, LIMIT, min_one=True) is None
        await fill(log, "b")
        assert log.read_cached(0, LIMIT, min_one=True) is None
        assert log.read_cached(1, LIMIT, min_one=True) is not None
