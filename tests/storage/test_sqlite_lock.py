"""One process writes to a database of the embedded engine, whatever way another one tries to get in."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from storage.batches import append, batch, fill, first, make, read_values, refused
from storage.engines import BESIDE, SqliteStore
from storage.sqlite_tools import InterceptedStore

from kop.errors import BackendError, ErrorCode
from kop.storage.sqlite import engine as engine_module
from kop.storage.sqlite.schema import segments_of

TESTS = Path(__file__).parent.parent
OPENED_ELSEWHERE = """
import asyncio, sys
from pathlib import Path
from storage.batches import fill, first, make
from storage.engines import SqliteStore

async def main():
    store = SqliteStore(Path("/"))
    store.path = Path(sys.argv[1])
    engine = await store.open()
    await fill(first(engine) if engine.topics.get("t") else await make(engine), *sys.argv[2:])
    print("stored", flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


def elsewhere(path: Path, *values: str) -> subprocess.Popen[str]:
    """Another process that opens a database, stores records there, and holds it until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", OPENED_ELSEWHERE, str(path), *values],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=TESTS,
    )


def at(path: Path, **settings: int) -> SqliteStore:
    store = SqliteStore(path.parent, **settings)
    store.path = path
    return store


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}


async def test_only_the_owner_can_read_the_files_of_a_store(tmp_path: Path) -> None:
    former = os.umask(0o022)
    try:
        async with SqliteStore(tmp_path, **BESIDE).opened() as engine:
            await fill(await make(engine), "a")
            modes = modes_in(tmp_path)
    finally:
        os.umask(former)
    assert len(modes) > 3, "the database, its log, and a file of large batches"
    assert set(modes.values()) == {0o600}


async def test_links_lead_to_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with SqliteStore(tmp_path).opened() as engine:
        log = await make(engine)
        await fill(log, "a")
        soft, hard, folder = tmp_path / "soft.db", tmp_path / "other" / "kop.db", tmp_path / "folder"
        soft.symlink_to(engine.path)
        os.link(engine.path, hard)
        folder.symlink_to(tmp_path)
        for path in (soft, hard, folder / "kop.db"):
            with pytest.raises(BackendError, match=f"in use by another kop process .pid {os.getpid()}"):
                await at(path).open()
        children = [elsewhere(path, "b") for path in (soft, hard)]
        for child in children:
            _, told = await asyncio.to_thread(child.communicate)
            assert child.returncode != 0
            assert f"in use by another kop process (pid {os.getpid()})" in told
        await fill(log, "c")
        assert await read_values(log) == ["a", "c"]


async def test_a_refused_engine_leaves_the_locks_of_sqlite_alone(tmp_path: Path) -> None:
    """POSIX locks of a process go when it closes any descriptor of the file."""
    store = SqliteStore(tmp_path)
    async with store.opened() as engine:
        await make(engine)
        with pytest.raises(BackendError, match="in use"):
            await store.open()
        code = (
            "import fcntl, sys\n"
            "with open(sys.argv[1], 'r+b') as file: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)"
        )
        child = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=False
        )
        assert "BlockingIOError" in child.stderr


async def test_no_file_can_be_removed_that_keeps_others_out(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    async with store.opened() as engine:
        await make(engine)
        assert sorted(os.listdir(tmp_path)) == ["kop.db", "kop.db-shm", "kop.db-wal"]
    assert os.listdir(tmp_path) == ["kop.db"]


async def test_the_lock_file_of_an_unreleased_version_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    older = tmp_path / "kop.db.lock"
    older.touch()
    with pytest.raises(BackendError, match=r"kop.db.lock is the lock of an unreleased kop: .*then remove the file"):
        await store.open()
    assert os.listdir(tmp_path) == ["kop.db.lock"]
    older.unlink()
    async with store.opened():
        pass


async def test_a_store_behind_a_link_has_its_files_where_the_database_is(tmp_path: Path) -> None:
    real, link = tmp_path / "real" / "kop.db", tmp_path / "link.db"
    real.parent.mkdir()
    link.symlink_to(real)
    async with at(link, **BESIDE).opened() as engine:
        await fill(await make(engine), "a")
        assert engine.path == real
        assert engine.directory == real.parent
    assert not segments_of(link).exists()
    async with at(real, **BESIDE).opened() as engine:
        assert await read_values(first(engine)) == ["a"]
    segments_of(real).rename(segments_of(link))
    with pytest.raises(BackendError, match=f"move them into {segments_of(real)}"):
        await at(link, **BESIDE).open()
    segments_of(link).rename(segments_of(real))
    async with at(link, **BESIDE).opened() as engine:
        assert await read_values(first(engine)) == ["a"]


async def test_another_name_does_not_open_a_database_without_its_write_ahead_log(tmp_path: Path) -> None:
    path, other = tmp_path / "kop.db", tmp_path / "other.db"
    child = elsewhere(path, "a", "b")
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == "stored\n"
    child.send_signal(signal.SIGKILL)
    await asyncio.to_thread(child.communicate)
    os.link(path, other)
    for _ in range(2):
        with pytest.raises(BackendError, match=r"other.db has 2 names \(hard links\)"):
            await at(other).open()
    async with at(path).opened() as engine:
        assert await read_values(first(engine)) == ["a", "b"]
    with pytest.raises(BackendError, match=f"opened as {path} last"):
        await at(other).open()
    path.unlink()
    async with at(other).opened() as engine:
        assert await read_values(first(engine)) == ["a", "b"]


async def test_a_new_file_with_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kop.db").touch()
    os.link(tmp_path / "kop.db", tmp_path / "other.db")
    with pytest.raises(BackendError, match="has 2 names"):
        await SqliteStore(tmp_path).open()


async def test_of_two_writers_one_commits(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second one that no lock keeps out, as over a file system that carries none."""
    monkeypatch.setattr(engine_module, "lock", lambda _: SimpleNamespace(close=lambda: None))
    async with sqlite.opened() as former:
        log = await make(former)
        await fill(log, "a")
        async with sqlite.opened() as later:
            for count in (1, 300):
                lost = [append(log, batch(["lost"])) for _ in range(count)]
                for future in lost:
                    with refused(ErrorCode.KAFKA_STORAGE_ERROR) as error:
                        await future
                assert "another process has opened this database" in error.value.message
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await former.put_state("k", "v")
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await former.topics.create("new", 1, {})
            assert former.healthy is not None
            assert "another process has opened this database" in caplog.text
            assert (await append(first(later), batch(["b"]))).base_offset == 1
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await former.writer.probe()
            assert former.healthy is not None
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, batch(["lost"]))
    async with sqlite.opened() as engine:
        assert await read_values(first(engine)) == ["a", "b"]
        assert await engine.get_state("k") is None
        assert engine.topics.get("new") is None
