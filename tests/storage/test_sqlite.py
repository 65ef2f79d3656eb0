"""What is the embedded engine's own: durability, its file, its memory."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from storage.batches import LIMIT, NOW, append, batch, fill, first, make, read_all
from storage.engines import BESIDE, SqliteStore
from storage.sqlite_tools import InterceptedStore, content, held_writer, pragma, size_of, stored_bytes
from support.waiting import SECONDS, until

from kop.errors import BackendError
from kop.storage.base import LogPolicy
from kop.storage.sqlite import maintenance, schema, writer
from kop.storage.sqlite.engine import open_engine
from kop.storage.sqlite.settings import SqliteSettings
from kop.storage.tail_cache import Tail, TailCache

# Durability


async def test_the_writers_connection_commits_to_disk(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        assert await pragma(engine, "journal_mode") == "wal"
        assert await pragma(engine, "synchronous") == 2  # FULL
        assert await pragma(engine, "page_size") == schema.PAGE_SIZE
        assert await pragma(engine, "secure_delete") == 0
        assert await pragma(engine, "auto_vacuum") == 2  # INCREMENTAL
        assert await pragma(engine, "wal_autocheckpoint") == 0
        assert sys.getswitchinterval() <= 0.0002 + 1e-9


@pytest.mark.parametrize("count", [1, 300])
async def test_no_acknowledgement_before_the_commit_returns(sqlite: InterceptedStore, count: int) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        entered, go = threading.Event(), threading.Event()
        begun = False

        def hold(sql: str) -> None:
            nonlocal begun
            begun = begun or sql.startswith("BEGIN")
            if sql.startswith("COMMIT" if begun else "INSERT INTO batch"):
                entered.set()
                assert go.wait(SECONDS)

        undo = sqlite.intercept(hold)
        woken: list[int] = []
        log.on_advance(lambda: woken.append(log.high_watermark))
        data = batch(["a"], producer=1)
        futures = [append(log, data), append(log, bytes(data)), *[append(log, batch(["b"])) for _ in range(count - 1)]]
        await asyncio.to_thread(entered.wait)
        await asyncio.sleep(0.05)  # nothing can be waited for: nothing shall be acknowledged
        assert not any(future.done() for future in futures)
        assert log.high_watermark == 0
        assert log.read_cached(0, LIMIT, min_one=True) == await log.read(0, LIMIT, min_one=True)
        assert log.producers() == []
        assert woken == []
        go.set()
        await asyncio.gather(*futures)
        # The writer may have been awake, and have taken some of the batches before the others were there.
        assert woken == sorted(set(woken))
        assert woken[-1] == count
        assert await stored_bytes(engine.path, log) == log.size_bytes
        undo()


async def test_one_insert_a_commit(sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "IDLE_SECONDS", SECONDS)  # an idle writer runs statements of its own
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=8)
        statements: list[str] = []
        async with held_writer(engine):
            undo = sqlite.intercept(statements.append)
            queued = [append(first(engine, partition=i % 8), batch(["x"])) for i in range(100)]
        await asyncio.gather(*queued)
        undo()
        assert [statement.startswith("INSERT INTO batch") for statement in statements] == [True]
        assert log.high_watermark == 13


async def test_a_duplicate_does_not_lose_its_answer_with_the_originals_caller(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        data = batch(["a"], producer=1)
        futures = [append(log, bytes(data)) for _ in range(4)]
        futures[0].cancel()
        futures[2].cancel()
        assert [(await futures[i]).base_offset for i in (1, 3)] == [0, 0]
        assert log.high_watermark == 1


async def test_close_waits_for_a_step_of_the_background_work(sqlite: InterceptedStore) -> None:
    sqlite.settings["maintain"] = True
    engine = await sqlite.open()
    log = await make(engine)
    await asyncio.gather(*[append(log, batch(["x" * 1000])) for _ in range(3000)])
    await log.delete_records(2990)
    await asyncio.sleep(0.002)  # some step may be under way then, whichever
    await engine.close()
    async with sqlite.opened() as engine:
        await engine.maintain(NOW)
        assert await stored_bytes(engine.path, first(engine)) == first(engine).size_bytes
        assert [record.offset for record in await read_all(first(engine))] == list(range(2990, 3000))


async def test_an_idle_writer_lets_go_of_what_it_wrote(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.05)
    async with sqlite.opened() as engine:
        log = await make(engine)
        changes = await engine.writer.run(lambda conn: conn.total_changes, transaction=False)
        for count in (1, 3, 300):
            await asyncio.gather(*[append(log, batch(["x"])) for _ in range(count)])
        wal = content(engine.path, "-wal")

        def held() -> dict[str, bool]:
            """Of each prepared INSERT, whether it still holds what it wrote last."""
            inserts = {sql: values for sql, values in sqlite.values.items() if sql.startswith("INSERT INTO batch")}
            return {sql: any(value is not None for value in values) for sql, (values,) in inserts.items()}

        assert len(held()) > 2
        await until(lambda: not any(held().values()))
        assert await engine.writer.run(lambda conn: conn.total_changes, transaction=False) == changes + 304
        assert content(engine.path, "-wal") == wal
        await fill(log, "y")
        assert len(await read_all(log)) == 305


CHILD = [sys.executable, "-m", "storage.crash_child"]
TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("settings", [{}, BESIDE], ids=["rows", "files"])
def test_kill_9_under_load_loses_nothing(tmp_path: Path, seed: int, settings: dict[str, int]) -> None:
    """Idempotent producers, killed with their engine, go on behind what was acknowledged: each record once."""
    store = SqliteStore(tmp_path)
    acked: dict[int, int] = {}  # partition -> sequence up to which everything was acknowledged
    for round_ in range(3):
        child = subprocess.Popen(
            [*CHILD, str(store.path), json.dumps(acked), json.dumps(settings)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        out = "".join(child.stdout.readline() for _ in range(200 + 300 * seed + 200 * round_))
        child.send_signal(signal.SIGKILL)
        out += child.communicate()[0]
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
                    kept = await read_all(log)
                    assert log.high_watermark >= count
                    assert [int(r.value or b"") for r in kept] == list(range(log.high_watermark))
                    assert [r.offset for r in kept] == list(range(log.high_watermark))
                    assert await stored_bytes(engine.path, log) == log.size_bytes
                    assert log.producers()[0].last_sequence == log.high_watermark - 1

        asyncio.run(check())


# The file


async def test_a_second_engine_is_refused(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        await make(engine)
        with pytest.raises(BackendError, match=f"in use by another kop process .pid {os.getpid()}"):
            await sqlite.open()
        code = (
            "import asyncio, sys\n"
            "from kop.storage.base import LogPolicy\n"
            "from kop.storage.sqlite.engine import open_engine\n"
            "asyncio.run(open_engine(sys.argv[1], policy=lambda topic: LogPolicy()))"
        )
        child = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code, str(sqlite.path)], capture_output=True, text=True, check=False
        )
        assert child.returncode != 0
        assert "in use by another kop process" in child.stderr
    async with sqlite.opened() as engine:
        assert engine.topics.get("t") is not None


async def test_files_that_are_not_ours_are_refused(sqlite: InterceptedStore, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    conn = sqlite3.connect(other)
    conn.execute("CREATE TABLE t (x)")
    conn.commit()
    conn.close()
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database" * 1000)
    for path, text in ((other, "another program"), (garbage, "not a database"), (tmp_path, "it is a directory")):
        with pytest.raises(BackendError, match=text):
            await open_engine(path, policy=lambda topic: pytest.fail("not reached"))
    assert garbage.read_bytes() == b"not a database" * 1000
    beside = tmp_path.with_name(f"{tmp_path.name}.lock")
    assert not beside.exists()
    async with sqlite.opened():
        pass
    for version, text in ((0, "unreleased"), (1, "unreleased"), (2, "unreleased.*begin anew"), (99, "that wrote it")):
        conn = sqlite3.connect(sqlite.path)
        conn.execute(f"PRAGMA user_version = {version}")
        conn.close()
        with pytest.raises(BackendError, match=f"schema version {version},.*{text}"):
            await sqlite.open()


async def test_a_database_that_was_brought_up_from_an_older_schema_is_refused(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        await make(engine)
    with closing(sqlite3.connect(sqlite.path)) as conn:
        conn.execute("UPDATE log SET transactions_from = 7")
        conn.commit()
    before = sqlite.path.read_bytes()
    with pytest.raises(BackendError, match=r"an earlier schema version once: an unreleased kop wrote it.*begin anew"):
        await sqlite.open()
    assert sqlite.path.read_bytes() == before


async def test_the_write_ahead_log_stays_small(sqlite: InterceptedStore) -> None:
    sqlite.settings["kop_wal_bytes"] = 512 << 10
    async with sqlite.opened() as engine:
        log = await make(engine)
        for _ in range(40):
            await asyncio.gather(*[append(log, batch(["x" * 20_000])) for _ in range(10)])
            await log.read(0, 1 << 20, min_one=True)
        assert log.size_bytes > 8_000_000
        assert size_of(engine.path, "-wal") < 6 << 20
    assert size_of(engine.path, "-wal") == 0


async def test_the_file_shrinks(sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "VACUUM_FROM_BYTES", 256 << 10)
    async with sqlite.opened() as engine:
        log = await make(engine)
        await asyncio.gather(*[append(log, batch(["x" * 1_000_000])) for _ in range(20)])
        await log.delete_records(19)
        await engine.maintain(NOW)
        assert log.size_bytes < 2 << 20
    assert size_of(sqlite.path) < 4 << 20
    async with sqlite.opened() as engine:
        assert [record.offset for record in await read_all(first(engine))] == [19]


async def test_settings_of_a_topic_reach_its_logs(sqlite: InterceptedStore) -> None:
    policies = {"5": LogPolicy(retention_ms=5)}
    engine = await open_engine(
        sqlite.path,
        policy=lambda topic: policies[topic.configs["retention.ms"]],
        settings=SqliteSettings(maintain=False),
    )
    log = await make(engine, retention_ms="5")
    assert log.policy.retention_ms == 5
    policies["5"] = LogPolicy(retention_ms=77)
    engine.policies_changed()
    assert log.policy.retention_ms == 77
    await engine.close()


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


async def test_windows_of_idempotent_producers_hold_no_batch(tmp_path: Path) -> None:
    """Forty batches of 256 KiB are remembered by their numbers, also those that came twice before they were durable."""
    async with SqliteStore(tmp_path, kop_cache_bytes=0).opened() as engine:
        logs = [await make(engine, f"t{index}") for index in range(8)]
        await append(logs[0], batch(["warm"], producer=99))
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for sequence in range(5):
                for number, log in enumerate(logs):
                    data = bytes(batch(["v" * (256 << 10)], producer=number, sequence=sequence))
                    await asyncio.gather(append(log, data), append(log, data))
            del data
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert after - before < 1 << 20
        for number, log in enumerate(logs):
            again = await append(log, batch(["v" * (256 << 10)], producer=number, sequence=4))
            assert again.base_offset == log.high_watermark - 1


async def test_the_tail_is_served_from_memory_without_a_copy(sqlite: InterceptedStore) -> None:
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
