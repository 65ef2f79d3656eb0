"""Transactions in the embedded engine: what its file keeps of them, whatever fails and whenever it is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from storage.batches import NOW, append, batch, first, make, put, refused
from storage.engines import BESIDE, Clocks, SqliteStore
from storage.marked_producer import TransactionalProducer, batches_of, committed_records, committed_values, keyed, kinds
from storage.sqlite_tools import Disk, InterceptedStore, fail_inserts, held_writer, images_of, stored_bytes
from support.waiting import SECONDS, until

from kop.errors import ErrorCode
from kop.records.batch import read_header
from kop.storage.sqlite import compaction, maintenance, writer
from kop.storage.sqlite import log as sqlite_log
from kop.storage.sqlite.engine import SqliteEngine

DAY_MS = 86_400_000
CHILD = [sys.executable, "-m", "storage.transaction_crash_child"]
TESTS = Path(__file__).parent.parent


def query(path: Path, sql: str) -> Any:
    """The single value of a query, from the file."""
    with closing(sqlite3.connect(path)) as conn:
        return conn.execute(sql).fetchone()[0]


# Markers that are written, or not


async def test_a_marker_is_durable_before_it_is_answered(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        producer = TransactionalProducer(log, 1)
        await producer.put("a")
        entered, go = threading.Event(), threading.Event()

        def hold(sql: str) -> None:
            if sql.startswith("INSERT INTO batch"):
                entered.set()
                assert go.wait(SECONDS)

        undo = sqlite.intercept(hold)
        heard: list[int] = []
        log.on_advance(lambda: heard.append(log.last_stable_offset))
        ends = [producer.end(commit=True), producer.end(commit=True, epoch=1)]
        await asyncio.to_thread(entered.wait)
        ends.append(producer.end(commit=True, epoch=1))
        await asyncio.sleep(0.05)  # nothing can be waited for: nothing shall be answered
        assert not any(end.done() for end in ends)
        assert (log.last_stable_offset, heard) == (0, [])
        go.set()
        await asyncio.gather(*ends)
        undo()
        assert (log.last_stable_offset, heard) == (2, [2])
        assert kinds(await log.read(0, 1 << 20, min_one=True)) == ["data", "commit"]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_that_cannot_be_written_is_undone(sqlite: InterceptedStore, commit: bool) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        first_producer, second_producer = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
        await first_producer.put("a")
        await second_producer.put("b")
        views, stable = log.producers(), log.last_stable_offset
        undo = sqlite.intercept(fail_inserts)
        lost: list[Awaitable[object]] = [
            first_producer.end(commit=commit),
            first_producer.end(commit=commit, epoch=1),
            first_producer.put("c"),
            second_producer.end(commit=commit),
        ]
        for future in lost:
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await future
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await first_producer.end(commit=commit, epoch=1)
        undo()
        assert (log.producers(), log.last_stable_offset, log.high_watermark) == (views, stable, 2)
        assert log.aborted_between(0, 9) == []
        await first_producer.end(commit=commit, epoch=1)
        await second_producer.end(commit=commit, epoch=1)
        first_producer.sequence = 0
        assert (await first_producer.put("c")).base_offset == 4
    async with sqlite.opened() as engine:
        log = first(engine)
        assert (log.last_stable_offset, log.high_watermark) == (4, 5)
        assert await committed_values(log) == (["a", "b"] if commit else [])
        assert await stored_bytes(engine.path, log) == log.size_bytes


async def test_transactions_end_where_the_disk_is_full_for_others(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    sqlite.settings["kop_min_free_bytes"] = 5 << 20
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2)
        first_producer, second_producer, third_producer = (TransactionalProducer(log, number) for number in (1, 2, 3))
        other = TransactionalProducer(first(engine, partition=1), 1)
        for producer in (first_producer, second_producer, third_producer, other):
            await producer.put("a")
        disk.free = 0
        written = [first_producer.end(commit=True)]
        # A marker has its place behind a batch that is lost.
        lost: list[Awaitable[object]] = [first_producer.put("lost"), second_producer.end(commit=True)]
        written.append(other.end(commit=False))
        for future in lost:
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await future
        await asyncio.gather(*written)
        assert (log.high_watermark, log.last_stable_offset) == (4, 1)
        await second_producer.end(commit=True, epoch=1)
        await third_producer.end(commit=True)
        assert (log.high_watermark, log.last_stable_offset) == (6, 6)
        disk.free = 1 << 40
        first_producer.sequence = 0
        assert (await first_producer.put("again")).base_offset == 6
    async with sqlite.opened() as engine:
        assert (first(engine).last_stable_offset, await committed_values(first(engine))) == (6, ["a"] * 3)
        assert await committed_values(first(engine, partition=1)) == []


async def test_markers_of_a_closed_engine_are_refused(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        producer = TransactionalProducer(await make(engine), 1)
        await producer.put("a")
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await producer.end(commit=True)


# Crashes between two steps


async def fill_with_transactions(engine: SqliteEngine, **configs: str) -> list[tuple[str, int]]:
    """Committed, aborted, nested and open transactions between plain batches; returns what committed readers see."""
    log = await make(engine, "t", 1, **configs)
    producers = [TransactionalProducer(log, number) for number in range(4)]
    for i in range(24):
        producer = producers[i % 3]
        await producer.put(f"k{i % 5}", f"only{i}")
        if i % 2:
            await put(log, f"k{i % 4}", f"plain{i}")
        if i >= 3:
            await producers[(i + 1) % 3].end(commit=i % 4 > 1)
    for producer in producers[:3]:
        await producer.end(commit=True)
    await producers[3].put("k1", "open")
    await put(log, "k2", "behind")
    return [(record.key.decode(), record.offset) for record in await committed_records(log) if record.key is not None]


async def newest(log: Any) -> dict[bytes | None, int]:
    return {record.key: record.offset for record in await committed_records(log)}


async def test_a_crash_in_compaction_loses_no_transaction(
    sqlite: InterceptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "STEP_BYTES", 600)
    configs = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    async with sqlite.opened() as engine:
        await fill_with_transactions(engine, **configs)
        log = first(engine)
        before, stable, views = await newest(log), log.last_stable_offset, log.producers()
        aborted = len(log.aborted_between(0, stable))
        assert aborted > 3
        images = await images_of(sqlite, engine, tmp_path, NOW)
        assert await newest(log) == before
    assert len(images) > 10
    kept = set()
    for store in images:
        async with store.opened() as engine:
            log = first(engine)
            kept.add(len(log.aborted_between(0, stable)))
            for now_ms in (NOW, NOW, NOW + 2 * DAY_MS):
                assert await newest(log) == before
                assert (log.last_stable_offset, log.producers()[-1]) == (stable, views[-1])
                assert await stored_bytes(engine.path, log) == log.size_bytes
                await engine.maintain(now_ms)
            open_one = TransactionalProducer(log, 3)
            await open_one.end(commit=True)
            assert await newest(log) == before | {b"k1": stable, b"open": stable + 1, b"k2": stable + 2}
    assert {0, aborted} < kept
    assert query(images[-1].path, "SELECT count(*) FROM aborted") == 0


async def test_a_crash_in_retention_loses_no_transaction(
    sqlite: InterceptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "REMOVE_ROWS", 4)
    async with sqlite.opened() as engine:
        seen = await fill_with_transactions(engine, retention_bytes="1500")
        log = first(engine)
        stable, size = log.last_stable_offset, log.size_bytes
        images = await images_of(sqlite, engine, tmp_path, NOW)
        start = log.log_start_offset
        assert 0 < start < stable
        assert log.size_bytes < size
    assert len(images) > 8
    for store in images:
        async with store.opened() as engine:
            log = first(engine)
            for _ in range(2):
                assert log.log_start_offset in (0, start)
                kept = [((record.key or b"").decode(), record.offset) for record in await committed_records(log)]
                assert kept == [row for row in seen if row[1] >= log.log_start_offset]
                assert log.last_stable_offset == stable
                assert await stored_bytes(engine.path, log) == log.size_bytes
                await engine.maintain(NOW)
            assert query(engine.path, f"SELECT count(*) FROM aborted WHERE last_offset < {start}") == 0
            left = [aborted.last_offset for aborted in log.aborted_between(start, stable)]
            assert left
            assert query(engine.path, "SELECT count(*) FROM aborted") == len(left)


async def test_the_end_of_a_topic_takes_its_aborted_transactions(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        await fill_with_transactions(engine)
        await engine.maintain(NOW)
        assert query(engine.path, "SELECT count(*) FROM aborted") > 3
        await engine.topics.delete(first(engine).topic.topic_id)
        await engine.maintain(NOW)
        assert query(engine.path, "SELECT count(*) FROM aborted") == 0
        assert query(engine.path, "SELECT count(*) FROM log") == 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [{}, BESIDE], ids=["rows", "files"])
def test_kill_9_under_load_tears_no_transaction(tmp_path: Path, seed: int, settings: dict[str, int]) -> None:
    """Transactions on a compacted topic, with snapshots and compaction all the time: of each that was answered all or
    nothing is there, as it was answered; of the one that was under way all or nothing."""
    store = SqliteStore(tmp_path)
    ended: dict[int, int] = {}  # partition -> transactions up to which the end was answered
    for round_ in range(3):
        child = subprocess.Popen(
            [*CHILD, str(store.path), json.dumps(ended), json.dumps(settings)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        out = "".join(child.stdout.readline() for _ in range(60 + 100 * seed + 50 * round_))
        child.send_signal(signal.SIGKILL)
        out += child.communicate()[0]
        before = dict(ended)
        for line in out.splitlines(keepends=True):
            if line.endswith("\n"):
                partition, number = map(int, line.split())
                assert number == ended.get(partition, 0)
                ended[partition] = number + 1
        assert ended != before

        async def check(stables: dict[int, int]) -> None:
            async with store.opened() as engine:
                for partition, count in ended.items():
                    log = first(engine, partition=partition)
                    values = await committed_values(log)
                    sent = [[f"{number}-{i}" for i in range(number % 4 + 1)] for number in range(count + 1)]
                    certain = [value for number in range(count) if number % 3 for value in sent[number]]
                    assert values in (certain, certain + sent[count])
                    (view,) = log.producers()
                    open_one = view.current_txn_start_offset
                    assert log.last_stable_offset == (log.high_watermark if open_one < 0 else open_one)
                    assert stables.setdefault(partition, log.last_stable_offset) == log.last_stable_offset
                    assert await stored_bytes(engine.path, log) == log.size_bytes

        stables: dict[int, int] = {}
        asyncio.run(check(stables))
        asyncio.run(check(stables))


# What is kept, and for how long


async def test_many_small_transactions_leave_little(sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a compacted topic neither markers nor aborted transactions stay, on disk and in memory."""
    monkeypatch.setattr(sqlite_log, "ABORTED_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(compaction, "STEP_BYTES", 20_000)
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        producer = TransactionalProducer(log, 1)
        for round_ in range(8):
            now_ms = NOW + round_ * 2 * DAY_MS
            futures: list[asyncio.Future[Any]] = []
            for number in range(300):
                futures += [producer.put(f"k{number % 5}"), producer.end(commit=number % 3 > 0, now_ms=now_ms)]
            await asyncio.gather(*futures)
            await engine.maintain(now_ms)
        assert log.high_watermark == 8 * 600
        await until(lambda: not log.aborted_between(0, log.high_watermark))
        # The markers of the last round have their horizon; those of earlier ones are gone.
        assert len(await batches_of(log)) < 600 + 20
        assert query(engine.path, "SELECT count(*) FROM aborted") == 0
        assert await committed_values(log)
        await put(log, "k0", "last")
        await engine.maintain(now_ms + 2 * DAY_MS)
        assert len(await batches_of(log)) < 20
        assert query(engine.path, "SELECT coalesce(length(producers), 0) FROM log") < 500
    async with sqlite.opened() as engine:
        assert len(await committed_values(first(engine))) <= 7


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_the_file_does_not_grow_with_the_number_of_transactions(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty thousand of one record a day: after some days the file is as large as it will ever be."""
    monkeypatch.setattr(sqlite_log, "ABORTED_KEPT_SECONDS", 0.0)
    sizes: list[int] = []
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        producers = [TransactionalProducer(log, number) for number in range(1, 11)]
        for day in range(14):
            now_ms = NOW + day * DAY_MS
            for hundred in range(200):
                futures: list[asyncio.Future[Any]] = []
                for number in range(100):
                    producer = producers[number % 10]
                    futures.append(producer.put(f"k{hundred % 10 * 100 + number}"))
                    futures.append(producer.end(commit=number % 10 > 0, now_ms=now_ms))
                await asyncio.gather(*futures)
            await engine.maintain(now_ms)
            sizes.append(sum(file.stat().st_size for file in engine.directory.iterdir()))
        assert max(sizes[10:]) <= 1.1 * sizes[9]
        assert query(engine.path, "SELECT count(*) FROM aborted") == 0
        assert len(await batches_of(log)) < 20_000 + 2_000
    async with sqlite.opened() as engine:
        assert len(set(await committed_values(first(engine)))) == 900


async def test_compaction_leaves_the_windows_of_producers(sqlite: InterceptedStore) -> None:
    """The last batch of a producer may be gone: that it was stored is known, also after a restart."""
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        producer = TransactionalProducer(log, 1)
        await producer.put("a")
        sent = producer.batch(*keyed("a"))
        assert (await append(log, bytes(sent))).base_offset == 1
        await append(log, batch(["2"], keys=["a"], producer=2))
        await producer.put("b")
        other = TransactionalProducer(log, 3)
        await other.put("c")
        await other.end(commit=True)
        await fill_keys(log, "a", "b", "c", "z")
        await engine.maintain(NOW)
        assert len(await batches_of(log)) == 10  # a transaction is open from the begin on
        await producer.end(commit=False)
        await put(log, "z", "z")
    for _ in range(2):
        async with sqlite.opened() as engine:
            log = first(engine)
            assert log.last_stable_offset == log.high_watermark == 12
            await engine.maintain(NOW)
            assert [read_header(data).base_offset for data in await batches_of(log)] == [5, 6, 7, 8, 10, 11]
            assert (await append(log, batch(["2"], keys=["a"], producer=2))).base_offset == 2
            with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
                await append(log, bytes(sent))


async def fill_keys(log: Any, *keys: str) -> None:
    for key in keys:
        await put(log, key, key)


async def test_producers_of_open_transactions_are_remembered(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.settings["producer_id_expiration_ms"] = 1000
    clocks = Clocks(monkeypatch)
    async with sqlite.opened() as engine:
        log = await make(engine)
        producer = TransactionalProducer(log, 1)
        await producer.put("a")
        await append(log, batch(["b"], producer=2))
        clocks.advance(2000)
        await engine.maintain(NOW)
        assert [view.producer_id for view in log.producers()] == [1]
    async with sqlite.opened() as engine:
        log = first(engine)
        await engine.maintain(NOW)
        assert [view.current_txn_start_offset for view in log.producers()] == [0]
        await TransactionalProducer(log, 1).end(commit=False)
        clocks.advance(2000)
        await engine.maintain(NOW)
        assert list(log.producers()) == []
    async with sqlite.opened() as engine:
        log = first(engine)
        assert list(log.producers()) == []
        assert await committed_values(log) == ["b"]  # what was aborted is known without its producer


async def test_deleted_records_take_their_aborted_transactions(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "ABORTED_KEPT_SECONDS", 0.0)
    async with sqlite.opened() as engine:
        log = await make(engine)
        producer = TransactionalProducer(log, 1)
        for _ in range(5):
            await producer.put("a")
            await producer.end(commit=False)
        await engine.maintain(NOW)
        assert query(engine.path, "SELECT count(*) FROM aborted") == 5
        await log.delete_records(5)
        await until(lambda: len(log.aborted_between(0, 10)) == 3)
        await engine.maintain(NOW)
        assert query(engine.path, "SELECT count(*) FROM aborted") == 3
        await log.delete_records(-1)
        await engine.maintain(NOW)
        assert query(engine.path, "SELECT count(*) FROM aborted") == 0
    async with sqlite.opened() as engine:
        assert first(engine).aborted_between(0, 10) == []
        assert first(engine).last_stable_offset == 10


async def test_one_insert_a_commit_of_batches_and_markers(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "IDLE_SECONDS", SECONDS)  # an idle writer runs statements of its own
    async with sqlite.opened() as engine:
        log = await make(engine)
        producer = TransactionalProducer(log, 1)
        statements: list[str] = []
        async with held_writer(engine):
            undo = sqlite.intercept(statements.append)
            queued: list[asyncio.Future[Any]] = [
                append(log, batch(["a"])),
                producer.put("b"),
                producer.end(commit=False),
            ]
        await asyncio.gather(*queued)
        undo()
        assert [statement.startswith("INSERT INTO batch") for statement in statements] == [True]
        heads = await engine.writer.run(lambda conn: conn.execute("SELECT length(head) FROM batch").fetchall())
        assert [length for (length,) in heads][:2] == [None, 61]
