"""The embedded engine on failing disks, after crashes between two steps, and in its background work."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from storage.batches import LIMIT, NOW, append, batch, fill, first, make, put, read_all, read_values, refused
from storage.sqlite_tools import Disk, InterceptedStore, fail_inserts, images_of, pragma, stored_bytes
from support.waiting import until

from kop.errors import ErrorCode, KopError
from kop.records.batch import read_header
from kop.storage.sqlite import compaction, maintenance, writer
from kop.storage.sqlite.compaction import Cleaner
from kop.storage.sqlite.log import SqliteLog

# Failing disks


@pytest.mark.parametrize("count", [5, 600])
async def test_a_failed_commit_is_rolled_back(sqlite: InterceptedStore, count: int) -> None:
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

        undo = sqlite.intercept(fail_the_second)
        entered, go = threading.Event(), threading.Event()

        def hold(_: sqlite3.Connection) -> bool:
            entered.set()
            return go.wait(30)

        held = engine.writer.run(hold, transaction=False)
        await asyncio.to_thread(entered.wait)  # until all are queued: one commit
        lost = [append(log, batch(["lost"], producer=1, sequence=3 + i)) for i in range(count)]
        lost.append(append(log, batch(["lost"], producer=1, sequence=2 + count)))
        lost.append(append(other, batch(["lost"], producer=2)))
        go.set()
        assert await held
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
        assert await stored_bytes(engine.path, first(engine)) == first(engine).size_bytes


async def test_what_queues_behind_a_failed_commit_fails_with_it_and_nothing_else(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2)
        other = first(engine, partition=1)
        entered, go = threading.Event(), threading.Event()

        def fail_first(sql: str) -> None:
            if sql.startswith("INSERT INTO batch") and not go.is_set():
                entered.set()
                assert go.wait(30)
                raise sqlite3.OperationalError("disk I/O error")

        undo = sqlite.intercept(fail_first)
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


@pytest.mark.parametrize("sqlite", ["rows"], indirect=True)
async def test_a_full_disk_heals(sqlite: InterceptedStore) -> None:
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


async def test_room_is_kept_for_what_has_to_go_on(sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    sqlite.settings["kop_min_free_bytes"] = 5 << 20
    async with sqlite.opened() as engine:
        log = await make(engine)
        internal = first(engine, await engine.topics.create("__offsets", 1, {}, internal=True))
        await fill(log, "before")
        disk.free = 0
        futures = [append(target, batch([name])) for target, name in ((log, "a"), (internal, "offset"), (log, "b"))]
        assert (await futures[1]).base_offset == 0
        for future in (futures[0], futures[2], append(log, batch(["c"]))):
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await future
        await log.delete_records(-1)
        await engine.put_state("k", "v")
        disk.free = 1 << 40
        assert (await append(log, batch(["d"]))).base_offset == 1


async def test_deleting_records_makes_room_on_a_full_disk(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Disk(monkeypatch, size=8 << 20)
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.02)
    sqlite.settings.update(maintain=True, kop_min_free_bytes=1 << 20, kop_wal_bytes=400 << 10)
    async with sqlite.opened() as engine:
        log = await make(engine)
        internal = first(engine, await engine.topics.create("__offsets", 1, {}, internal=True))
        sent = 0
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            while sent < 100:
                await append(log, batch(["x" * 200_000], producer=1, sequence=sent))
                sent += 1
        assert 5 < sent < 35
        await fill(internal, "offset")
        assert engine.healthy is not None
        assert caplog.text.count("could not be stored") == 1
        await log.delete_records(sent - 2)
        await until(lambda: engine.healthy is None)

        async def goes_on() -> bool:
            try:
                await append(log, batch(["x" * 200_000], producer=1, sequence=sent))
            except KopError as error:  # the write-ahead log of the deletion itself may take the room for a moment
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                return False
            return True

        await until(goes_on)
        assert len(await read_all(log)) == 3


@pytest.mark.parametrize("sqlite", ["rows"], indirect=True)
async def test_a_disk_that_the_write_ahead_log_fills_has_room_again_after_a_deletion(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is as large as the rest, since a reader kept it from being emptied; as much room is kept beside it."""
    Disk(monkeypatch, size=8 << 20)
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.02)
    sqlite.settings.update(maintain=True, kop_min_free_bytes=1 << 20)
    async with sqlite.opened() as engine:
        log = await make(engine)
        internal = first(engine, await engine.topics.create("__offsets", 1, {}, internal=True))
        with closing(sqlite3.connect(engine.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM meta").fetchall()
            sent = 0
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                while sent < 100:
                    await append(log, batch(["x" * 200_000], producer=1, sequence=sent))
                    sent += 1
            for number in range(5):  # this goes on where the disk runs short
                await fill(internal, f"{number}" * 200_000)
            # While the reader is there: behind it the file may be empty at once.
            assert engine.path.with_name(engine.path.name + "-wal").stat().st_size > 7 << 19
        await log.delete_records(sent - 2)
        await until(lambda: engine.healthy is None)
        await append(log, batch(["x" * 200_000], producer=1, sequence=sent))
        assert len(await read_all(log)) == 3


async def test_health_comes_back_without_an_append(sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.01)
    disk = Disk(monkeypatch)
    sqlite.settings.update(maintain=True, kop_min_free_bytes=5 << 20)
    async with sqlite.opened() as engine:
        log = await make(engine)
        disk.free = 0
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, batch(["a"]))
        await asyncio.sleep(0.1)  # nothing can be waited for: for some ticks it must not be called healthy
        assert engine.healthy is not None
        disk.free = 1 << 40
        await until(lambda: engine.healthy is None)


async def test_a_failed_change_of_the_catalogue_changes_nothing(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        topic = log.topic

        def fail(sql: str) -> None:
            if sql == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")

        undo = sqlite.intercept(fail)
        version = engine.topics.version
        for change in (
            engine.topics.create("new", 2, {}),
            engine.topics.delete(topic.topic_id),
            engine.topics.grow(topic.topic_id, 4),
            engine.topics.set_configs(topic.topic_id, {"a": "b"}),
            engine.reserve_producer_ids(),
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


async def test_queued_bytes_are_bounded(sqlite: InterceptedStore) -> None:
    sqlite.settings["max_queued_bytes"] = 50_000
    async with sqlite.opened() as engine:
        log = await make(engine)
        futures = [append(log, batch(["x" * 10_000])) for _ in range(10)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [isinstance(result, KopError) for result in results] == [False] * 4 + [True] * 6
        assert engine.queued_bytes == 0
        assert (await append(log, batch(["y"]))).base_offset == 4


# Crashes between two steps


async def test_a_crash_in_compaction(sqlite: InterceptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "STEP_BYTES", 2000)
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0", delete_retention_ms="0")
        expected: dict[bytes, tuple[int, bytes | None]] = {}
        for i in range(60):
            key, value = f"k{i % 7}", None if i % 5 == 0 else str(i) * 50
            offset = await put(log, key, value)
            expected[key.encode()] = (offset, None if value is None else value.encode())
        live = {key: row for key, row in expected.items() if row[1] is not None}
        images = await images_of(sqlite, engine, tmp_path, NOW)
    assert len(images) > 5
    for store in images:
        async with store.opened() as engine:
            log = first(engine)
            for _ in range(2):
                assert (log.log_start_offset, log.high_watermark) == (0, 60)
                newest = {r.key: (r.offset, r.value) for r in await read_all(log)}
                assert {key: row for key, row in newest.items() if row[1] is not None} == live
                assert await stored_bytes(engine.path, log) == log.size_bytes
                await engine.maintain(NOW)
            assert len(await read_all(log)) <= 8


async def test_a_crash_in_retention(sqlite: InterceptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "REMOVE_ROWS", 4)
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2, retention_ms="1000")
        gone = await make(engine, "gone", 3)
        for i in range(20):
            await append(log, batch([str(i)], producer=3, sequence=i, timestamp=NOW + i))
            await append(first(engine, partition=1), batch(["x"], timestamp=NOW))
            await fill(gone, "gone")
        await engine.topics.delete(gone.topic.topic_id)
        images = await images_of(sqlite, engine, tmp_path, NOW + 1015)
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
            assert await stored_bytes(engine.path, log) == log.size_bytes
            assert (await append(other, batch(["y"]))).base_offset == 20
            rows = await engine.writer.run(lambda conn: conn.execute("SELECT count(*) FROM log").fetchone()[0])
            assert rows == 2
    assert starts == {0, 15}


async def test_a_deleted_topics_rows_go_in_the_background(sqlite: InterceptedStore) -> None:
    sqlite.settings["maintain"] = True
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=3)
        await asyncio.gather(*[append(first(engine, partition=i % 3), batch(["x" * 100])) for i in range(300)])
        await engine.topics.delete(log.topic.topic_id)
        with closing(sqlite3.connect(engine.path)) as conn:
            query = "SELECT (SELECT count(*) FROM batch) + (SELECT count(*) FROM log)"
            await until(lambda: conn.execute(query).fetchone() == (0,))


async def test_rows_still_to_be_removed_do_not_count_for_retention(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        size = len(batch(["x" * 100]))
        log = await make(engine, retention_bytes=str(5 * size))
        await fill(log, *["x" * 100] * 10)
        await log.delete_records(4)
        await engine.maintain(NOW)
        assert log.log_start_offset == 5


async def test_deleted_topics_do_not_keep_retention_waiting(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("DEAD_STEPS", 1), ("REMOVE_ROWS", 2), ("REMOVE_LOGS", 2), ("TICK_SECONDS", 0.01)):
        monkeypatch.setattr(maintenance, name, value)
    sqlite.settings.update(maintain=True, log_retention_check_interval_ms=10)
    async with sqlite.opened() as engine:
        log = await make(engine, retention_bytes="0")
        for name in ("a", "b"):
            dead = await make(engine, name, 20)
            await asyncio.gather(*[append(first(engine, name, i % 20), batch(["x"])) for i in range(60)])
            await engine.topics.delete(dead.topic.topic_id)
        await fill(log, "x")
        await until(lambda: log.log_start_offset == 1)
        with closing(sqlite3.connect(engine.path)) as conn:
            assert conn.execute("SELECT count(*) FROM log WHERE topic IS NULL").fetchone()[0] > 0
            await until(lambda: conn.execute("SELECT count(*) FROM log WHERE topic IS NULL").fetchone() == (0,))
            assert conn.execute("SELECT count(*) FROM batch").fetchone() == (0,)


# Compaction with little memory, and with what it cannot read


async def test_compaction_in_several_passes(sqlite: InterceptedStore) -> None:
    sqlite.settings["cleaner_keys"] = 10
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        expected = {}
        for i in range(150):
            expected[f"k{i * 11 % 40}"] = await put(log, f"k{i * 11 % 40}", str(i))
        await sqlite.maintain(engine, NOW)
        kept = await read_all(log)
        assert {record.key.decode(): record.offset for record in kept if record.key} == expected
        assert len(kept) == 40


async def test_compaction_does_not_keep_retention_waiting(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        await asyncio.gather(*[append(log, batch(["x"], keys=[f"k{i % 50}"])) for i in range(100)])
        await make(engine, "other", retention_bytes="0")
    starts: list[int] = []
    clean = Cleaner.clean

    async def seen(cleaner: Cleaner, log: SqliteLog, target: int, now_ms: int) -> bool:
        other = first(engine, "other")
        starts.append(other.log_start_offset)
        if len(starts) == 1:
            await fill(other, "x")
        return await clean(cleaner, log, target, now_ms)

    monkeypatch.setattr(Cleaner, "clean", seen)
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.01)
    sqlite.settings.update(maintain=True, log_retention_check_interval_ms=0, cleaner_keys=10)
    async with sqlite.opened() as engine:
        await until(lambda: first(engine).clean_offset == 99)
    assert starts[0] == 0
    assert len(starts) > 5
    assert set(starts[1:]) == {1}, "retention has its turn between two passes"


async def test_compaction_leaves_alone_what_it_cannot_read(
    sqlite: InterceptedStore, caplog: pytest.LogCaptureFixture
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


async def test_compaction_writes_many_batches_with_few_statements(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        futures = [append(log, batch(["x", str(i)], keys=["same", str(i)])) for i in range(500)]
        futures += [append(log, batch(["x" * i], keys=["same"])) for i in range(500)]
        await asyncio.gather(*futures)
        await append(log, batch(["y" * 300_000, "y"], keys=["large", "same"]))
        await append(log, batch(["y"], keys=["large"]))
        await put(log, "last", "z")
        statements: list[str] = []
        undo = sqlite.intercept(statements.append)
        await engine.maintain(NOW)
        undo()
        assert len(statements) < 100, "not one for each of 1,000 batches"
        kept = await read_all(log)
        assert [record.key for record in kept] == [b"%d" % i for i in range(500)] + [b"same", b"large", b"last"]
        assert await stored_bytes(engine.path, log) == log.size_bytes
    async with sqlite.opened() as engine:
        assert await read_all(first(engine)) == kept
        assert await stored_bytes(engine.path, first(engine)) == first(engine).size_bytes
