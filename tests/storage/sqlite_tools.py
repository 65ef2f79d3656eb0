"""Hands on the embedded engine: its writer's connection, its file."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from storage.engines import SqliteStore
from support.waiting import SECONDS

from kop.storage.sqlite import writer
from kop.storage.sqlite.engine import SqliteEngine
from kop.storage.sqlite.log import SqliteLog
from kop.storage.sqlite.schema import segments_of


class InterceptedStore(SqliteStore):
    """An embedded engine of which a test sees each statement of the writer before it is executed."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.before: Callable[[str], None] | None = None
        self.values: dict[str, tuple[Any, ...]] = {}
        """What each statement of the writer was last executed with."""

    async def open(self) -> SqliteEngine:
        store = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                if store.before is not None:
                    store.before(sql)
                store.values[sql] = args
                return super().execute(sql, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
            return await super().open()

    def intercept(self, before: Callable[[str], None]) -> Callable[[], None]:
        """Call `before(sql)` on the writer's thread from now on; returns the undo. What it raises SQLite did."""
        self.before = before

        def undo() -> None:
            self.before = None

        return undo


@asynccontextmanager
async def held_writer(engine: SqliteEngine) -> AsyncIterator[None]:
    """The writer stands still inside the block: what is queued there becomes one commit."""
    entered, go = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> bool:
        entered.set()
        return go.wait(SECONDS)

    held = engine.writer.run(hold, transaction=False)
    await asyncio.to_thread(entered.wait)
    try:
        yield
    finally:
        go.set()
        assert await held


def fail_inserts(sql: str) -> None:
    if sql.startswith("INSERT INTO batch"):
        raise sqlite3.OperationalError("database or disk is full")


async def pragma(engine: SqliteEngine, name: str) -> Any:
    return await engine.writer.run(lambda conn: conn.execute(f"PRAGMA {name}").fetchone()[0], transaction=False)


async def stored_bytes(path: Path, log: SqliteLog) -> int:
    """The bytes of all batches, counted in the files."""
    with closing(sqlite3.connect(path)) as conn:
        query = "SELECT length(data), size, base, segment, position FROM batch WHERE log = ?"
        rows = conn.execute(query, (log.log_id,)).fetchall()
    for length, size, base, segment, position in rows:
        if segment is None:
            assert length == size
        else:
            assert length == 0
            stored = segments_of(path).joinpath(f"{segment:010d}").read_bytes()[position : position + size]
            assert (len(stored), int.from_bytes(stored[:8], "big")) == (size, base)
    return sum(row[1] for row in rows)


def size_of(path: Path, suffix: str = "") -> int:
    file = Path(f"{path}{suffix}")
    return file.stat().st_size if file.exists() else 0


def content(path: Path, suffix: str) -> bytes:
    return Path(f"{path}{suffix}").read_bytes()


def add_content(path: Path, suffix: str, data: bytes) -> None:
    with open(f"{path}{suffix}", "ab") as file:
        file.write(data)


class Disk:
    """What the writer is told of the disk when it asks, which it does at every commit: `free` bytes.

    With `size` the free bytes are what the files leave of a disk of that size.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int | None = None) -> None:
        self.free = 1 << 40
        self.size = size
        monkeypatch.setattr(writer, "SPACE_CHECK_SECONDS", 0.0)
        monkeypatch.setattr(os, "statvfs", self.statvfs)

    def statvfs(self, directory: Path) -> SimpleNamespace:
        taken = sum(file.stat().st_size for file in directory.rglob("*"))
        return SimpleNamespace(
            f_frsize=1, f_blocks=self.size or self.free, f_bavail=self.free if self.size is None else self.size - taken
        )


def image(engine: SqliteEngine, directory: Path) -> SqliteStore:
    """What a crash would leave now: the database with its files. Only from the writer's thread."""
    directory.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{engine.path}{suffix}", directory / f"kop.db{suffix}")
    if segments_of(engine.path).exists():
        shutil.copytree(segments_of(engine.path), segments_of(directory / "kop.db"))
    return SqliteStore(directory)


async def images_of(sqlite: InterceptedStore, engine: SqliteEngine, directory: Path, now_ms: int) -> list[SqliteStore]:
    """Crash images from before each commit of `maintain`, and from its end."""
    images: list[SqliteStore] = []

    def take(sql: str) -> None:
        if sql == "COMMIT" and len(images) < 60:
            images.append(image(engine, directory / str(len(images))))

    undo = sqlite.intercept(take)
    await engine.maintain(now_ms)
    undo()
    images.append(await engine.writer.run(lambda conn: image(engine, directory / "end"), transaction=False))
    return images
