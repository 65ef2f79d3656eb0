"""The files beside the database: how they are written, what goes into them, and what becomes of them."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from storage.batches import LIMIT, NOW, append, batch, fill, first, make, put, read_all, read_values, refused
from storage.engines import BESIDE, SqliteStore
from storage.sqlite_tools import (
    Disk,
    InterceptedStore,
    add_content,
    content,
    fail_inserts,
    held_writer,
    image,
    stored_bytes,
)
from support.waiting import until

from kop.errors import BackendError, ErrorCode
from kop.records.batch import read_header
from kop.storage.base import Buffer
from kop.storage.sqlite import maintenance, reader, writer
from kop.storage.sqlite.engine import SqliteEngine
from kop.storage.sqlite.schema import segments_of
from kop.storage.sqlite.segments import ALIGNMENT, BUFFER_BYTES, Place, Segments, files_in

LARGE = "x" * 20_000
BLOCK = "x" * 4000
"""A value whose batch fills a block of a file."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def sqlite(tmp_path: Path) -> InterceptedStore:
    """An engine that puts each batch into a file; a file takes those of four commits at most."""
    return InterceptedStore(tmp_path, **BESIDE)


def files(engine: SqliteEngine) -> list[int]:
    return sorted(files_in(segments_of(engine.path)))


def read(store: Segments, segment: int, position: int, size: int) -> bytes:
    (data,) = store.read(segment, [(position, size)])
    return data


async def beside(engine: SqliteEngine) -> list[bool]:
    """Of each batch in the order of appends, whether it lies in a file."""
    query = "SELECT segment IS NOT NULL FROM batch ORDER BY id"
    rows = await engine.writer.run(lambda conn: conn.execute(query).fetchall(), transaction=False)
    return [bool(row[0]) for row in rows]


# A folder of files


def test_what_was_appended_is_read_from_its_place(folder: Path) -> None:
    store = Segments(folder, roll_bytes=1 << 30)
    first_batches: list[Buffer] = [b"a" * 10, bytearray(b"b" * 5000), memoryview(b"xcccx")[1:4]]
    places = store.append(first_batches)
    assert places == [Place(1, 0), Place(1, 10), Place(1, 5010)]
    large = os.urandom(2 * BUFFER_BYTES + 123)
    behind = store.append([b"d", large, b"e"])
    assert behind[0] == Place(1, 2 * ALIGNMENT)
    for data, place in zip([*first_batches, b"d", large, b"e"], [*places, *behind], strict=True):
        assert read(store, *place, len(data)) == data
    assert store.read(1, [(5, 5008), (0, 2)]) == [b"a" * 5 + b"b" * 5000 + b"ccc", b"aa"]
    assert files_in(folder) == {1: 2 * ALIGNMENT + 2 * BUFFER_BYTES + ALIGNMENT}
    store.release()
    assert store.append([b"f"]) == [Place(1, 3 * ALIGNMENT + 2 * BUFFER_BYTES)]
    store.close()


def test_a_batch_of_exactly_the_buffer(folder: Path) -> None:
    store = Segments(folder, roll_bytes=1 << 30)
    data = os.urandom(BUFFER_BYTES)
    assert store.append([data]) == [Place(1, 0)]
    assert store.append([data, b"y"]) == [Place(1, BUFFER_BYTES), Place(1, 2 * BUFFER_BYTES)]
    assert read(store, 1, BUFFER_BYTES, BUFFER_BYTES) == data
    store.close()


def test_a_full_file_takes_no_more(folder: Path) -> None:
    store = Segments(folder, roll_bytes=2 * ALIGNMENT, last=7)
    assert store.complete() == {}
    numbers = [store.append([b"x"])[0].segment for _ in range(5)]
    assert numbers == [8, 8, 9, 9, 10]
    assert store.complete() == {8: 2 * ALIGNMENT, 9: 2 * ALIGNMENT}
    store.close()
    assert set(store.complete()) == {8, 9, 10}
    assert store.append([b"x"]) == [Place(11, 0)]
    store.remove(9)
    store.remove(9)
    assert set(store.complete()) == {8, 10}
    store.close()


def test_other_files_of_the_folder_do_not_count(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "0000000003").write_bytes(b"old")
    assert files_in(folder) == {3: 3}


def fails_once(monkeypatch: pytest.MonkeyPatch, name: str, code: int, when: Callable[..., bool]) -> list[int]:
    """The first call of a function of `os` for which `when` holds fails; the list has one item then."""
    real: Callable[..., Any] = getattr(os, name)
    failed: list[int] = []

    def call(*args: Any) -> Any:
        if not failed and when(*args):
            failed.append(code)
            raise OSError(code, os.strerror(code))
        return real(*args)

    monkeypatch.setattr(os, name, call)
    return failed


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("name", ["open", "pwrite"])
def test_a_file_system_without_o_direct(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, code: int
) -> None:
    caplog.set_level("INFO")
    store = Segments(folder, roll_bytes=1 << 30)
    failed = fails_once(monkeypatch, name, code, lambda *args: name == "pwrite" or bool(args[1] & os.O_CREAT))
    data = os.urandom(3 * BUFFER_BYTES // 2)
    assert store.append([data]) == [Place(1, 0)]
    assert failed
    assert store.append([b"y"]) == [Place(1, 3 * BUFFER_BYTES // 2)]
    assert read(store, 1, 0, len(data)) == data
    assert caplog.text.count("its cache is used") == 1
    store.close()


def test_a_write_that_is_cut_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:ALIGNMENT], at))
    store = Segments(folder, roll_bytes=1 << 30)
    data = os.urandom(5 * ALIGNMENT + 1)
    place = store.append([data])[0]
    assert read(store, *place, len(data)) == data
    store.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_after_a_failed_write_another_file_is_begun(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store = Segments(folder, roll_bytes=1 << 30)
    kept = store.append([b"kept"])[0]
    fails_once(monkeypatch, "pwrite", code, lambda *_: True)
    with pytest.raises(OSError, match=os.strerror(code)):
        store.append([b"lost"])
    assert files_in(folder) == {1: ALIGNMENT}
    assert store.append([b"after"]) == [Place(2, 0)]
    assert read(store, *kept, 4) == b"kept"
    store.close()


def test_failed_writes_leave_no_bytes_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Segments(folder, roll_bytes=1 << 30)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        for _ in range(3):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                store.append([b"lost"])
    assert files_in(folder) == {}
    assert store.append([b"after"]) == [Place(4, 0)]
    store.close()


async def test_rows_that_sqlite_refuses_leave_one_group_in_a_file(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        undo = sqlite.intercept(fail_inserts)
        for _ in range(5):
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                await append(log, batch([LARGE]))
        undo()
        assert sum(files_in(segments_of(engine.path)).values()) < 2 * len(LARGE)
        await fill(log, "row", "file")
        await fill(log, "file")
        assert (await beside(engine))[-1]
        assert await read_values(log) == ["row", "file", "file"]


def test_a_file_that_cannot_be_closed_is_let_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor is free all the same: used again, it would be that of another file."""
    store = Segments(folder, roll_bytes=1)
    store.append([b"a"])
    failed = fails_once(monkeypatch, "close", errno.EIO, lambda *_: True)
    assert store.append([b"b"]) == [Place(2, 0)]
    assert failed
    assert store.append([b"c"]) == [Place(3, 0)]
    store.close()
    assert not store.takes_batches


def test_a_span_that_cannot_be_read_keeps_none_before_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Segments(folder, roll_bytes=1 << 30)
    store.append([b"a" * 10, b"b" * 10])
    store.close()
    real = os.pread

    def pread(file: int, size: int, position: int) -> bytes:
        if position >= 10:
            raise OSError(errno.EIO, "the disk fails")
        return real(file, size, position)

    monkeypatch.setattr(os, "pread", pread)
    assert store.read(1, [(0, 10), (10, 10), (0, 10)]) == [b"a" * 10]
    with pytest.raises(OSError, match="the disk fails"):
        store.read(1, [(10, 10), (0, 10)])


def test_a_file_that_is_too_short(folder: Path) -> None:
    store = Segments(folder, roll_bytes=1 << 30)
    place = store.append([b"x" * 100])[0]
    store.close()
    os.truncate(store.path(1), 50)
    assert read(store, *place, 100) == b"x" * 50
    store.remove(1)
    with pytest.raises(FileNotFoundError):
        read(store, *place, 100)


# What goes into files


async def test_many_bytes_of_large_batches_go_into_a_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    async with store.opened() as engine:
        log = await make(engine)
        for count, small in ((20, 0), (10, 0), (3, 30), (20, 3)):
            async with held_writer(engine):
                futures = [append(log, batch([LARGE])) for _ in range(count)]
                futures += [append(log, batch(["small"])) for _ in range(small)]
            await asyncio.gather(*futures)
        expected = [*[True] * 20, *[False] * 10, *[False] * 33, *[True] * 20, *[False] * 3]
        assert await beside(engine) == expected
        values = await read_values(log)
        assert len(values) == len(expected)
        assert await stored_bytes(engine.path, log) == log.size_bytes
        assert await read_values(log, max_bytes=50_000) == values
    async with store.opened() as engine:
        assert await read_values(first(engine)) == values
        record = await first(engine).find_by_time(NOW)
        assert record is not None
        assert record.offset == 0


async def test_batches_that_lie_behind_one_another_are_read_at_once(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    read = Segments.read

    def seen(store: Segments, segment: int, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        sizes.extend(size for _, size in spans)
        return read(store, segment, spans)

    async with sqlite.opened() as engine:
        log = await make(engine)
        async with held_writer(engine):
            futures = [append(log, batch([str(i)])) for i in range(50)]
        await asyncio.gather(*futures)
        monkeypatch.setattr(Segments, "read", seen)
        result = await log.read(0, LIMIT, min_one=True)
        assert len(result.buffers) == 50
        assert sizes == [result.size]
        assert [record.value for record in await read_all(log)] == [b"%d" % i for i in range(50)]


async def test_batches_before_one_that_the_disk_does_not_give_are_read(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        async with held_writer(engine):
            futures = [append(log, batch([str(i)])) for i in range(9)]
        await asyncio.gather(*futures)
        bad = sum(len(data) for data in (await log.read(0, LIMIT, min_one=True)).buffers[:6])
        real = os.pread

        def pread(file: int, size: int, position: int) -> bytes:
            if position <= bad < position + size:
                raise OSError(errno.EIO, "the disk fails")
            return real(file, size, position)

        monkeypatch.setattr(os, "pread", pread)
        offset = 0
        while offset < 6:
            offset += len((await log.read(offset, LIMIT, min_one=True)).buffers)
        assert offset == 6
        with pytest.raises(BackendError, match="the disk fails"):
            await log.read(6, LIMIT, min_one=True)
        assert len((await log.read(7, LIMIT, min_one=True)).buffers) == 2


@pytest.mark.parametrize(("name", "code"), [("pwrite", errno.ENOSPC), ("fdatasync", errno.EIO), ("open", errno.EMFILE)])
async def test_where_a_file_cannot_be_written_batches_go_into_rows_for_a_while(
    sqlite: InterceptedStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    code: int,
) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        for i in range(4):  # the file is full then: the next batch opens another
            await append(log, batch([BLOCK], producer=1, sequence=i))
        failed = fails_once(monkeypatch, name, code, lambda *args: name != "open" or bool(args[1] & os.O_CREAT))
        for i in (4, 5):
            await append(log, batch([str(i)], producer=1, sequence=i))
        assert failed
        assert engine.healthy is None
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"{os.strerror(code)}" in caplog.text
        assert await beside(engine) == [True] * 4 + [False] * 2
    async with sqlite.opened() as engine:
        log = first(engine)
        await append(log, batch(["6"], producer=1, sequence=6))
        assert await beside(engine) == [True] * 4 + [False] * 2 + [True]
        assert await read_values(log) == [BLOCK] * 4 + list("456")
        assert await stored_bytes(engine.path, log) == log.size_bytes


async def test_files_are_written_again_a_while_after_one_could_not_be(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BESIDE_AGAIN_SECONDS", 0.01)
    async with sqlite.opened() as engine:
        log = await make(engine)
        fails_once(monkeypatch, "pwrite", errno.EIO, lambda *_: True)
        await fill(log, "row")

        async def is_beside() -> bool:
            await fill(log, "next")
            return (await beside(engine))[-1]

        await until(is_beside)


async def test_a_crash_between_the_file_and_its_rows(sqlite: InterceptedStore, tmp_path: Path) -> None:
    images: list[SqliteStore] = []
    async with sqlite.opened() as engine:
        log = await make(engine)
        for _ in range(4):
            await fill(log, BLOCK)  # the file is full then

        def take(sql: str) -> None:
            if sql.startswith("INSERT INTO batch") and not images:
                images.append(image(engine, tmp_path / "killed"))

        undo = sqlite.intercept(take)
        await append(log, batch(["lost"]))
        undo()
    store = SqliteStore(images[0].path.parent, **BESIDE)
    async with store.opened() as engine:
        log = first(engine)
        assert files(engine) == [1, 2]
        assert await read_values(log) == [BLOCK] * 4
        assert (await append(log, batch(["next"]))).base_offset == 4
        await engine.maintain(NOW)
        assert files(engine) == [1, 3]
        assert await read_values(log) == [*[BLOCK] * 4, "next"]


# What becomes of files


async def test_files_go_with_their_last_batch(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        for _ in range(17):
            await fill(log, BLOCK)
        assert files(engine) == [1, 2, 3, 4, 5]
        await log.delete_records(12)
        await engine.maintain(NOW)
        assert files(engine) == [4, 5]
        await log.delete_records(-1)
        await engine.maintain(NOW)
        assert files(engine) == [5]  # it still takes batches
        await engine.topics.delete(log.topic.topic_id)
        await engine.maintain(NOW)
    async with sqlite.opened() as engine:
        await engine.maintain(NOW)
        assert files(engine) == []


async def test_files_go_in_the_background(sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.01)
    sqlite.settings["maintain"] = True
    async with sqlite.opened() as engine:
        log = await make(engine)
        for _ in range(9):
            await fill(log, BLOCK)
        assert files(engine) == [1, 2, 3]
        await log.delete_records(8)
        await until(lambda: files(engine) == [3])
        assert await read_values(log) == [BLOCK]


async def test_files_are_emptied_in_several_rounds(sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(maintenance, "MOST_MOVED", 1)
    sqlite.settings["maintain"] = True
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2)
        other = first(engine, partition=1)
        for i in range(20):
            await fill(other if i % 4 == 3 else log, BLOCK)
        assert files(engine) == [1, 2, 3, 4, 5]
        await log.delete_records(-1)
        await until(lambda: files(engine) == [5])
        assert await read_values(other) == [BLOCK] * 5
        assert await stored_bytes(engine.path, other) == other.size_bytes


async def test_a_file_without_a_byte_goes(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        await fill(await make(engine), BLOCK)
    (segments_of(sqlite.path) / "0000000002").touch()
    async with sqlite.opened() as engine:
        await engine.maintain(NOW)
        assert files(engine) == [1]


async def test_a_short_disk_gets_the_file_back_that_takes_batches(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.02)
    Disk(monkeypatch, size=8 << 20)
    sqlite.settings.update(maintain=True, kop_min_free_bytes=1 << 20, kop_wal_bytes=400 << 10, segment_bytes=64 << 20)
    async with sqlite.opened() as engine:
        log = await make(engine)
        sent = 0
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            while sent < 100:
                await append(log, batch([LARGE * 10]))
                sent += 1
        assert len(files(engine)) > 1
        await log.delete_records(-1)
        await until(lambda: engine.healthy is None and not files(engine))
        assert (await append(log, batch(["next"]))).base_offset == sent


async def test_what_little_is_left_in_a_file_is_moved_into_the_database(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MOVE_BYTES", 1)
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2)
        other = first(engine, partition=1)
        for i in range(12):
            await append(first(engine, partition=int(i % 4 == 3)), batch([BLOCK], producer=i, timestamp=NOW + i))
        kept, others = await read_all(log), await read_all(other)
        await engine.maintain(NOW)
        assert files(engine) == [1, 2, 3]
        await log.delete_records(-1)
        await engine.maintain(NOW)
        assert files(engine) == [3]  # it takes batches still
        assert await beside(engine) == [False, False, True]
        assert await read_all(log) == []
        assert await read_all(other) == others
        assert len(kept) == 9
        assert await stored_bytes(engine.path, other) == other.size_bytes
    async with sqlite.opened() as engine:
        assert await read_all(first(engine, partition=1)) == others


async def test_a_read_that_moving_overtakes(sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has the place of a batch; before it opens the file, the batch is moved and the file removed."""
    real = Segments.read
    async with sqlite.opened() as engine:
        log = await make(engine)
        for i in range(5):
            await fill(log, str(i))
        await log.delete_records(3)
        loop = asyncio.get_running_loop()
        overtaken: list[int] = []

        def read(store: Segments, segment: int, spans: Sequence[tuple[int, int]]) -> list[bytes]:
            if not overtaken:
                overtaken.append(segment)
                asyncio.run_coroutine_threadsafe(engine.maintain(NOW), loop).result(30)
            return real(store, segment, spans)

        monkeypatch.setattr(Segments, "read", read)
        assert await read_values(log) == ["3", "4"]
        assert overtaken == [1]
        assert files(engine) == [2]


async def test_compacted_batches_leave_their_files(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        for i in range(20):
            await append(log, batch([f"{i}", BLOCK], keys=[f"k{i}", "same"]))
        await put(log, "last", "z")
        assert files(engine) == [1, 2, 3, 4, 5, 6]
        await engine.maintain(NOW)
        assert files(engine) == [6]
        kept = [record.key for record in await read_all(log)]
        assert kept == [*(b"k%d" % i for i in range(20)), b"same", b"last"]
        assert await stored_bytes(engine.path, log) == log.size_bytes


async def test_a_file_that_cannot_be_emptied_does_not_keep_others(
    sqlite: InterceptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2)
        for i in range(12):
            await fill(first(engine, partition=int(i % 4 == 0)), str(i))
        (segments_of(engine.path) / "0000000001").write_bytes(bytes(4 * ALIGNMENT))
        await fill(log, "last")
        await log.delete_records(-1)
        await engine.maintain(NOW)
        assert files(engine) == [1, 4]
        assert "0000000001 is damaged" in caplog.text
        other = first(engine, partition=1)
        with refused(ErrorCode.CORRUPT_MESSAGE):
            await other.read(0, LIMIT, min_one=True)
        assert len((await other.read(1, LIMIT, min_one=True)).buffers) == 2


async def test_a_file_that_cannot_be_emptied_does_not_keep_others_in_later_rounds(
    sqlite: InterceptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(maintenance, "MOST_MOVED", 1)
    sqlite.settings["maintain"] = True
    async with sqlite.opened() as engine:
        log = await make(engine, partitions=2)
        for i in range(12):
            await fill(first(engine, partition=int(i % 4 == 0)), BLOCK)
        (segments_of(engine.path) / "0000000001").write_bytes(bytes(4 * ALIGNMENT))
        await fill(log, BLOCK)
        await log.delete_records(-1)
        await until(lambda: files(engine) == [1, 4])


# What others do to files


async def test_compaction_goes_on_beside_and_behind_a_damaged_file(
    sqlite: InterceptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with sqlite.opened() as engine:
        damaged = await make(engine, "damaged", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        for _ in range(4):
            await put(damaged, "k", BLOCK)
        for value in ("1", "2", "3"):
            await put(damaged, "k", value)
        (segments_of(engine.path) / "0000000001").write_bytes(bytes(4 * ALIGNMENT))
        fine = await make(engine, "fine", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        for value in ("1", "2", "3"):
            await put(fine, "k", value)
        await engine.maintain(NOW)
        assert [record.offset for record in await read_all(fine)] == [2]
        assert damaged.clean_offset == 6
        assert "batch at offset 0 of log 1 stays as it is" in caplog.text
        assert "0000000001 is damaged" in caplog.text
        with refused(ErrorCode.CORRUPT_MESSAGE):
            await damaged.read(3, LIMIT, min_one=True)
        result = await damaged.read(4, LIMIT, min_one=True)
        assert [read_header(data).base_offset for data in result.buffers] == [6]


async def test_a_new_database_does_not_take_the_files_of_another_one(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        await fill(await make(engine), "a")
    sqlite.path.rename(sqlite.path.with_name("elsewhere"))
    for _ in range(2):
        with pytest.raises(
            BackendError, match=r"kop.db is new, but .*kop.db-batches holds batches of another database"
        ):
            await sqlite.open()
    sqlite.path.with_name("elsewhere").rename(sqlite.path)
    async with sqlite.opened() as engine:
        assert await read_values(first(engine)) == ["a"]


async def test_a_folder_that_cannot_be_read(sqlite: InterceptedStore) -> None:
    segments_of(sqlite.path).write_text("a file, not a folder")
    with pytest.raises(BackendError, match=r"cannot read .*kop.db-batches"):
        await sqlite.open()


async def test_a_database_without_its_files_is_refused(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        await fill(await make(engine), "a")
        path = engine.path
    segments_of(path).rename(path.with_name("elsewhere"))
    with pytest.raises(
        BackendError, match=r"1 file\(s\) of .*kop.db-batches that are not there, the first is 0000000001"
    ):
        await sqlite.open()
    path.with_name("elsewhere").rename(segments_of(path))
    async with sqlite.opened() as engine:
        assert await read_values(first(engine)) == ["a"]
        assert engine.losses is None


@pytest.mark.parametrize("left", ["nothing", "an empty file", "half of it"])
async def test_batches_of_a_lost_file_are_unreadable_and_all_else_goes_on(
    sqlite: InterceptedStore, caplog: pytest.LogCaptureFixture, left: str
) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        for i in range(9):
            await append(log, batch([str(i), "more"], timestamp=NOW + i))
        lost = segments_of(engine.path) / "0000000002"
    size = lost.stat().st_size
    lost.unlink()
    if left != "nothing":
        lost.write_bytes(bytes(size // 2 if left == "half of it" else 0))
    async with sqlite.opened() as engine:
        log = first(engine)
        if left != "half of it":
            assert "1 file(s)" in caplog.text
            assert "4 batch(es) cannot be read" in caplog.text
            assert engine.losses == "4 batch(es) cannot be read: their files are not there"
            values = {metric.name: metric.samples[0].value for metric in engine.collect()}
            assert values == {"kop_lost_batches": 4, "kop_lost_commits": 0, "kop_storage_writable": 1}
        assert len((await log.read(0, LIMIT, min_one=True)).buffers) == 4, "those before"
        for batch_offset in (8, 10, 12, 14):
            with pytest.raises(BackendError, match=f"goes on behind it, at offset {batch_offset + 2}") as error:
                await log.read(batch_offset + 1, LIMIT, min_one=True)
            assert error.value.code is ErrorCode.CORRUPT_MESSAGE
        assert len((await log.read(16, LIMIT, min_one=True)).buffers) == 1
        behind = await log.find_by_time(NOW + 5)
        assert behind is not None
        assert (behind.offset, behind.timestamp) == (16, NOW + 8), "look-ups pass them"
        assert await log.max_timestamp() == behind
        assert (await append(log, batch(["next"]))).base_offset == 18
        await log.delete_records(16)
        await engine.maintain(NOW)
    async with sqlite.opened() as engine:
        assert engine.losses is None, "retention took them"
        assert await read_values(first(engine)) == ["8", "more", "next"]


# Files and commits that fail


async def test_a_file_stays_while_recovery_may_bring_its_rows_back(
    sqlite: InterceptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sync of a commit fails when its frames are in the write-ahead log: SQLite takes them at the next start."""
    query = (
        "INSERT INTO batch (log, base, last, timestamp, size, data, segment, position) VALUES (?, 1, 1, ?, ?, '', ?, 0)"
    )
    lost = batch(["ghost"])
    monkeypatch.setattr(maintenance, "TICK_SECONDS", 0.01)
    sqlite.settings["maintain"] = True

    def fail(sql: str) -> None:
        if sql.startswith(("INSERT INTO batch", "COMMIT", "PRAGMA wal_checkpoint")):
            raise sqlite3.OperationalError("disk I/O error")

    async with sqlite.opened() as engine:
        log = await make(engine)
        await fill(log, BLOCK)
        await engine.writer.end_segment()
        undo = sqlite.intercept(fail)
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            await append(log, lost)
        assert files(engine) == [1, 2]
        # What the commit would have written, behind what the log holds now.
        copied = await engine.writer.run(lambda _: image(engine, tmp_path / "copy"), transaction=False)
        conn = sqlite3.connect(copied.path)
        conn.execute("PRAGMA wal_autocheckpoint = 0")
        conn.execute(query, (log.log_id, NOW, len(lost), 2))
        conn.commit()
        there, ghost = content(engine.path, "-wal"), content(copied.path, "-wal")
        conn.close()
        assert ghost.startswith(there)
        add_content(engine.path, "-wal", ghost[len(there) :])
        await until(lambda: "removing files of batches failed" in caplog.text)
        assert files(engine) == [1, 2]
        killed = await engine.writer.run(lambda _: image(engine, tmp_path / "killed"), transaction=False)
        undo()
        await until(lambda: files(engine) == [1])
        later = await engine.writer.run(lambda _: image(engine, tmp_path / "later"), transaction=False)
    async with killed.opened() as engine:
        assert await read_values(first(engine)) == [BLOCK, "ghost"]
    async with later.opened() as engine:
        assert await read_values(first(engine)) == [BLOCK]
        assert engine.losses is None


async def test_damaged_files_are_told(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        log = await make(engine)
        for i in range(9):
            await fill(log, str(i))
        second, third = (segments_of(engine.path) / f"{number:010d}" for number in (2, 3))
        with second.open("r+b") as file:
            file.seek(ALIGNMENT)
            file.write(b"\xff" * 8)
        third.unlink()
        for offset, told in ((5, "the batch at offset 5 is not at byte 4096"), (8, "0000000003 is not there any more")):
            with pytest.raises(BackendError, match=told):
                await log.read(offset, 1, min_one=True)
        assert len((await log.read(0, LIMIT, min_one=True)).buffers) == 5, "those before the damage"
        assert len((await log.read(6, LIMIT, min_one=True)).buffers) == 2


async def test_numbers_go_on_behind_what_is_there(sqlite: InterceptedStore) -> None:
    async with sqlite.opened() as engine:
        await fill(await make(engine), "a")
        (segments_of(engine.path) / "0000000041").write_bytes(b"")
    async with sqlite.opened() as engine:
        await fill(first(engine), "b")
        assert files(engine) == [1, 41, 42]
        assert await engine.writer.run(reader.referenced, transaction=False) == [1, 42]
        assert await read_values(first(engine)) == ["a", "b"]


def test_the_files_of_no_batch(tmp_path: Path) -> None:
    conn = sqlite3.connect(tmp_path / "x.db")
    conn.execute("CREATE TABLE batch (segment INTEGER, size INTEGER)")
    conn.execute("CREATE INDEX batch_of_segment ON batch (segment, size) WHERE segment IS NOT NULL")
    assert reader.referenced(conn) == []
    conn.executemany("INSERT INTO batch VALUES (?, 1)", [(None,), (3,), (3,), (9,), (1,)])
    assert reader.referenced(conn) == [1, 3, 9]
    conn.close()
