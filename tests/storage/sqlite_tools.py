"""Hands on the embedded engine: its writer's connection, its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from kop.storage.sqlite import SqliteEngine
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


async def stored_bytes(path: Path, log: SqliteLog) -> int:
    """The bytes of all batches, counted in the file."""
    with closing(sqlite3.connect(path)) as conn:
        query = "SELECT coalesce(sum(length(data)), 0), coalesce(sum(size), 0) FROM batch WHERE log = ?"
        data, size = conn.execute(query, (log.log_id,)).fetchone()
    assert data == size
    return int(data)


def size_of(path: Path, suffix: str = "") -> int:
    file = Path(f"{path}{suffix}")
    return file.stat().st_size if file.exists() else 0


def content(path: Path, suffix: str) -> bytes:
    return Path(f"{path}{suffix}").read_bytes()
