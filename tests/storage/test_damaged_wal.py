"""A damaged write-ahead log: SQLite drops all behind the damage without a word, the engine does not."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from storage.batches import LIMIT, NOW, append, batch, fill, first, make, read_values
from storage.engines import SqliteStore
from storage.sqlite_tools import InterceptedStore, content, image

from kop.errors import BackendError
from kop.records.batch import iter_batches
from kop.storage.sqlite import wal
from kop.storage.sqlite.engine import SqliteEngine
from kop.storage.sqlite.schema import segments_of
from kop.storage.sqlite.segments import files_in

PARTITIONS = 3
COMMITS = 30
HEADER = 32
FRAME = 24


def value(number: int) -> str:
    """What a commit stores: its batch fills a block of a file."""
    return str(number).ljust(4000, "x")


async def killed(store: InterceptedStore, directory: Path, *, restarted: bool = False) -> SqliteStore:
    """What a kill leaves behind ten commits of one record in each of three partitions.

    With `restarted` the log has been used before, by more commits than now.
    """
    async with store.opened() as engine:
        await make(engine, partitions=PARTITIONS)
        await engine.put_state("k", "v" * 100_000)
        if restarted:
            for _ in range(COMMITS * 2):
                await engine.put_state("k", "w" * 100_000)
        await restart_log(engine)
        for i in range(COMMITS):
            await append(first(engine, partition=i % PARTITIONS), batch([value(i)]))
        return await engine.writer.run(lambda _: image(engine, directory / "killed"), transaction=False)


async def restart_log(engine: SqliteEngine) -> None:
    """Let the next commit begin the log again."""
    await engine.writer.run(lambda conn: conn.execute("PRAGMA wal_checkpoint(RESTART)").fetchone(), transaction=False)


def again(store: SqliteStore, directory: Path, damage: Callable[[bytearray], None], **settings: bool) -> SqliteStore:
    """A copy of a store with a damaged log."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(store.path.parent, directory)
    data = bytearray(content(store.path, "-wal"))
    damage(data)
    Path(f"{directory / 'kop.db'}-wal").write_bytes(data)
    return SqliteStore(directory, **settings)


def page_size(data: bytes | bytearray) -> int:
    return int.from_bytes(data[8:12], "big")


def frames(data: bytes) -> list[tuple[int, bool]]:
    """Where each frame of the present use begins, and whether it ends a commit."""
    places = range(HEADER, len(data), FRAME + page_size(data))
    return [(at, data[at + 4 : at + 8] != bytes(4)) for at in places if data[at + 8 : at + 16] == data[16:24]]


def flip(at: int, bit: int = 0) -> Callable[[bytearray], None]:
    def damage(data: bytearray) -> None:
        data[at] ^= 1 << bit

    return damage


def asides(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*-wal-damaged-*"))


def remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def metrics(engine: SqliteEngine) -> dict[str, float]:
    return {metric.name: metric.samples[0].value for metric in engine.collect()}


async def stored(engine: SqliteEngine) -> list[list[str | None]]:
    return [await read_values(first(engine, partition=index)) for index in range(PARTITIONS)]


def expected(count: int) -> list[list[str | None]]:
    """The values of each partition after so many commits."""
    return [[value(i) for i in range(count) if i % PARTITIONS == index] for index in range(PARTITIONS)]


@pytest.mark.parametrize("restarted", [False, True], ids=["first use", "used again"])
async def test_a_flipped_bit_is_told_and_nothing_is_given_out_again(
    sqlite: InterceptedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    store = await killed(sqlite, tmp_path, restarted=restarted)
    whole = content(store.path, "-wal")
    rng = random.Random(7)
    places = frames(whole)
    ends = [at for at, ends_commit in places if ends_commit]
    assert len(ends) == COMMITS
    damages = [rng.randrange(HEADER, places[-1][0]) for _ in range(2)]
    damages += [places[0][0] + 9, ends[4] + 6, ends[5] + 17, ends[6] + 23, ends[7] + 12]
    for at in damages:
        caplog.clear()
        last = max(i for i, end in enumerate(ends) if i == 0 or ends[i - 1] + FRAME + page_size(whole) <= at)
        damaged = again(store, tmp_path / "damaged", flip(at, rng.randrange(8)))
        bytes_there = content(damaged.path, "-wal")
        files = set(files_in(segments_of(damaged.path)))
        async with damaged.opened() as engine:
            assert await stored(engine) == expected(last), at
            if last == COMMITS - 1:
                assert engine.losses is None  # as if torn
                continue
            lost = metrics(engine)["kop_lost_commits"]
            assert COMMITS - last - 1 <= lost <= COMMITS - last
            assert f"{lost:.0f} commit(s) that were acknowledged are lost" in caplog.text
            assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
            kept = asides(damaged.path)
            assert [path.read_bytes() for path in kept] == [bytes_there]
            assert engine.losses is not None
            assert str(kept[0]) in engine.losses
            for index in range(PARTITIONS):
                log = first(engine, partition=index)
                assert log.high_watermark == COMMITS // PARTITIONS
                assert (await append(log, batch(["next"]))).base_offset == COMMITS // PARTITIONS
            await engine.maintain(NOW)
            assert files <= set(files_in(segments_of(damaged.path)))
        async with damaged.opened() as engine:
            await engine.maintain(NOW)
            assert files <= set(files_in(segments_of(damaged.path)))
            assert engine.losses is not None
            assert metrics(engine)["kop_lost_commits"] == 0
            assert [values[-1] for values in await stored(engine)] == ["next"] * PARTITIONS
        remove(kept)
        async with damaged.opened() as engine:
            await engine.maintain(NOW)
            assert engine.losses is None
            assert len(files_in(segments_of(damaged.path))) <= len(files)


@pytest.mark.parametrize("sqlite", ["rows"], indirect=True)
async def test_a_damaged_header(sqlite: InterceptedStore, tmp_path: Path) -> None:
    store = await killed(sqlite, tmp_path)
    for at in (0, 2, 3, 5, 9, 10, 14, 18, 22, 25, 31):
        damaged = again(store, tmp_path / "damaged", flip(at, at % 8))
        lost = wal.lost_commits(damaged.path)
        assert lost is not None, at
        assert lost.commits == COMMITS
        assert sorted(lost.offsets.values()) == [9, 9, 9]
    async with damaged.opened() as engine:
        assert await stored(engine) == expected(0)
        log = first(engine)
        result = await log.read(0, LIMIT, min_one=True)
        assert [header.next_offset for data in result.buffers for _, header in iter_batches(data)] == [10]
        producer_ids = await engine.reserve_producer_ids()
        assert producer_ids.start == COMMITS * 1000


async def test_a_start_may_be_refused(sqlite: InterceptedStore, tmp_path: Path) -> None:
    store = await killed(sqlite, tmp_path)
    at = frames(content(store.path, "-wal"))[5][0] + 100
    damaged = again(store, tmp_path / "damaged", flip(at), kop_refuse_damaged_log=True)
    before = {path: path.read_bytes() for path in damaged.path.parent.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(BackendError, match=r"commit\(s\) that were acknowledged are lost"):
            await damaged.open()
        after = {path: path.read_bytes() for path in damaged.path.parent.rglob("*") if path.is_file()}
        assert after == before
    del damaged.settings["kop_refuse_damaged_log"]
    async with damaged.opened() as engine:
        assert engine.losses is not None


async def test_what_a_power_loss_leaves_is_no_damage(
    sqlite: InterceptedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the last commit, which is not synced, any part may be there; of the rest of the log what was there before."""
    store = await killed(sqlite, tmp_path, restarted=True)
    whole = content(store.path, "-wal")
    places = frames(whole)
    ends = [index for index, (_, ends_commit) in enumerate(places) if ends_commit]
    last = [at for at, _ in places[ends[-2] + 1 :]]
    assert len(last) >= 2
    size = FRAME + page_size(whole)

    def cut(data: bytearray) -> None:
        del data[last[-1] + 100 :]

    def zeros(data: bytearray) -> None:
        data[last[0] : last[0] + size] = bytes(size)

    def half(data: bytearray) -> None:
        data[last[0] + 4096 : last[0] + size] = bytes(size - 4096)

    def other_salts(data: bytearray) -> None:
        data[last[-1] + 8 : last[-1] + 16] = bytes(8)

    def headers_alone(data: bytearray) -> None:
        for at in last:
            data[at + FRAME : at + size] = random.Random(1).randbytes(page_size(data))

    for damage in (cut, zeros, half, other_salts, headers_alone):
        async with again(store, tmp_path / "damaged", damage).opened() as engine:
            assert await stored(engine) == expected(COMMITS - 1)
            assert engine.losses is None
            assert asides(engine.path) == []
    assert not caplog.records


async def test_logs_without_damage(sqlite: InterceptedStore, tmp_path: Path) -> None:
    """Also one with the frames of a larger commit that was rolled back, behind those of a smaller one."""

    def too_much(conn: sqlite3.Connection) -> None:
        conn.execute("PRAGMA cache_size = 2")
        conn.executemany("INSERT INTO state VALUES (?, ?)", [(str(i), "x" * 100_000) for i in range(40)])
        raise BackendError("not at all")

    async with sqlite.opened() as engine:
        assert wal.lost_commits(engine.path) is None
        log = await make(engine)
        await fill(log, "a")
        size = len(content(engine.path, "-wal"))
        with pytest.raises(BackendError, match="not at all"):
            await engine.writer.run(too_much)
        assert len(content(engine.path, "-wal")) > size + (1 << 20)
        await fill(log, "b")
        left = await engine.writer.run(lambda _: image(engine, tmp_path / "killed"), transaction=False)
    assert wal.lost_commits(sqlite.path) is None, "there is none after a stop"
    async with left.opened() as engine:
        assert await read_values(first(engine)) == ["a", "b"]
        assert engine.losses is None


@pytest.mark.parametrize("sqlite", ["rows"], indirect=True)
async def test_a_database_that_its_cut_log_makes_inconsistent_is_refused(
    sqlite: InterceptedStore, tmp_path: Path
) -> None:
    """The log was copied into the database, all but one page, when the kill came: pages of lost commits, too."""
    async with sqlite.opened() as engine:
        log = await make(engine)
        await fill(log, "a")
        await restart_log(engine)
        await engine.put_state("k", "v")
        for _ in range(10):
            await fill(log, "x" * 60_000)
        store = await engine.writer.run(lambda _: image(engine, tmp_path / "killed"), transaction=False)
    whole = tmp_path / "whole"
    shutil.copytree(store.path.parent, whole)
    with closing(sqlite3.connect(whole / "kop.db")) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    places = frames(content(store.path, "-wal"))
    behind = 1 + next(index for index, (_, ends_commit) in enumerate(places) if ends_commit)
    damaged = again(store, tmp_path / "damaged", flip(places[behind][0] + 100))
    size = page_size(content(store.path, "-wal"))
    damaged.path.write_bytes(content(whole / "kop.db", "")[:-size])
    before = content(damaged.path, ""), content(damaged.path, "-wal")
    for _ in range(2):
        with pytest.raises(BackendError, match="is damaged, since its write-ahead log was"):
            await damaged.open()
        assert len(asides(damaged.path)) == 1
        assert (content(damaged.path, ""), content(damaged.path, "-wal")) == before


async def test_a_damaged_log_of_which_the_database_has_all_is_not_needed(
    sqlite: InterceptedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is idle has copied its log, and begins it again with the next commit."""
    store = await killed(sqlite, tmp_path)
    whole = tmp_path / "whole"
    shutil.copytree(store.path.parent, whole)
    with closing(sqlite3.connect(whole / "kop.db")) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    places = [at for at, _ in frames(content(store.path, "-wal"))]
    for at in (3, places[0] + 20, places[5] + 9, places[9] + 17, places[20] + 1000, places[30] + 5, places[-5] + 5000):
        damaged = again(store, tmp_path / "damaged", flip(at), kop_refuse_damaged_log=True)
        shutil.copy(whole / "kop.db", damaged.path)
        async with damaged.opened() as engine:
            assert await stored(engine) == expected(COMMITS), at
            assert engine.losses is None
            assert asides(engine.path) == []
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_pages_that_are_no_index() -> None:
    for page in (b"\x0a\x00\x00\xff\xff" + bytes(507), b"\x0d" + bytes(511), random.Random(3).randbytes(512)):
        assert list(wal.offsets_in(memoryview(page))) == []
