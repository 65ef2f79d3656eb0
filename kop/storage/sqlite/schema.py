"""The database file: its schema, its pragmas.

Owns: every `CREATE`, the settings of a connection, and the refusal of files that are not ours to write.
Must not know: logs, threads, the event loop.

What lies where
- `meta`: cluster id, next producer id, version of the catalogue; `writer`, a number that the last process to open the
  database chose, which each commit has to find there; `path`, the name by which that one did.
- `topic`: the catalogue. `log`: one row for each partition; a row without a topic is a deleted partition whose batches
  still have to go. `state`: small values of the gateway's own.
- `aborted`: the aborted transactions of which records may be left in a log, up to the log's `snapshot_offset`. Those
  behind it are told by the markers in the batches, as producers are.
- `batch`: one row for each batch, appended to the end of one b-tree, so that a commit writes few pages however many
  partitions it holds. The index on it answers every look-up that needs no records without touching the batches.
  A row has the batch in `data`, or names its place in a file beside the database (`segments`): `data` is empty then.

A batch's `timestamp` is its max timestamp; where it has none, minus the time of the append (age without a date).
`head` is the 61-byte header of an idempotent producer's batch, before the data so that it is read without it; of a
marker it is the whole batch. A log's `transactions_from` is 0. An unreleased version of kop wrote other numbers: a
database with one of them is refused, as are schemas of other versions.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from kop.errors import BackendError
from kop.storage.sqlite.segments import sync_path

SCHEMA_VERSION = 3
APPLICATION_ID = 0x6B6F7031  # "kop1"
PAGE_SIZE = 32768
"""The page size of new databases, in bytes. A commit writes each page that it changes as a whole."""
MIN_SQLITE = (3, 35, 0)
"""The oldest version of SQLite that is usable: it has RETURNING."""
BUSY_TIMEOUT_MS = 5000
"""The ms that a connection waits for a lock. Only another program that opens the file (the sqlite3 shell, a backup) has
one.
"""

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topic (
    id INTEGER PRIMARY KEY,
    uuid BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    internal INTEGER NOT NULL,
    configs TEXT NOT NULL
);
CREATE TABLE log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER,
    partition INTEGER NOT NULL,
    log_start INTEGER NOT NULL DEFAULT 0,
    clean_offset INTEGER NOT NULL DEFAULT 0,
    snapshot_offset INTEGER NOT NULL DEFAULT 0,
    snapshot_size INTEGER NOT NULL DEFAULT 0,
    producers TEXT,
    transactions_from INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX log_of_topic ON log (topic, partition) WHERE topic IS NOT NULL;
CREATE TABLE batch (
    id INTEGER PRIMARY KEY,
    log INTEGER NOT NULL,
    base INTEGER NOT NULL,
    last INTEGER NOT NULL,
    timestamp INTEGER NOT NULL,
    size INTEGER NOT NULL,
    head BLOB,
    data BLOB NOT NULL,
    segment INTEGER,
    position INTEGER
);
CREATE UNIQUE INDEX batch_of_log ON batch (log, last, base, timestamp, size);
CREATE INDEX batch_of_segment ON batch (segment, size) WHERE segment IS NOT NULL;
CREATE TABLE aborted (
    log INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    last_stable_offset INTEGER NOT NULL,
    PRIMARY KEY (log, last_offset)
) WITHOUT ROWID;
"""
_UNRELEASED: Final = (
    "an unreleased kop wrote it, and no other one reads it. Move it and the files beside it away to begin anew, or "
    "consume its records from the kop that wrote it"
)


def segments_of(path: Path) -> Path:
    """Return the folder of the files that hold large batches of a database."""
    return Path(f"{path}-batches")


def connect(path: Path, *, write: bool, cache_kib: int = 2048) -> sqlite3.Connection:
    """Open a connection in autocommit mode, for one thread at a time. Without `write` it can only read; with it each
    commit is synced, and no checkpoint comes by itself. `cache_kib` is its page cache in KiB.
    """
    conn = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=64, timeout=BUSY_TIMEOUT_MS / 1000
    )
    try:
        conn.execute(f"PRAGMA cache_size = {-cache_kib}")
        if not write:
            conn.execute("PRAGMA query_only = ON")
            return conn
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("PRAGMA secure_delete = OFF")
        conn.execute("PRAGMA wal_autocheckpoint = 0")
        conn.execute("PRAGMA foreign_keys = OFF")
    except BaseException:
        conn.close()
        raise
    return conn


def prepare(path: Path) -> sqlite3.Connection:
    """Open the writing connection, and make the schema in a new file. BackendError for a file that is no database of
    ours, that has another version of the schema or that cannot be opened, and for a SQLite that is too old.
    """
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        needed = ".".join(map(str, MIN_SQLITE))
        raise BackendError(f"this Python has SQLite {sqlite3.sqlite_version}, {needed} or newer is needed")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        conn = connect(path, write=True, cache_kib=8192)
    except sqlite3.Error as error:
        raise BackendError(f"cannot open {path}: {error}") from error
    try:
        _check(conn, path)
    except sqlite3.DatabaseError as error:
        conn.close()
        raise BackendError(f"cannot use {path}: {error}") from error
    except BaseException:
        conn.close()
        raise
    return conn


def _check(conn: sqlite3.Connection, path: Path) -> None:
    application: int = conn.execute("PRAGMA application_id").fetchone()[0]
    version: int = conn.execute("PRAGMA user_version").fetchone()[0]
    tables: int = conn.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    _check_names(conn, path, is_new=tables == 0)
    if tables == 0 and application in {0, APPLICATION_ID}:
        # Before the first table, or they have no effect. page_size has to come before WAL.
        conn.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        conn.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _wal(conn, path)
        conn.executescript(
            f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
            f"{_SCHEMA} COMMIT;"
        )
        _sync_directory(path.parent)
        return
    if application != APPLICATION_ID:
        raise BackendError(f"{path} is a database of another program, not of kop")
    if version != SCHEMA_VERSION:
        raise BackendError(
            f"{path} has schema version {version}, this kop reads and writes version {SCHEMA_VERSION}: "
            f"{'use the kop that wrote it' if version > SCHEMA_VERSION else _UNRELEASED}"
        )
    if conn.execute("SELECT max(transactions_from) FROM log").fetchone()[0]:
        raise BackendError(f"{path} was of an earlier schema version once: {_UNRELEASED}")
    _wal(conn, path)


def _check_names(conn: sqlite3.Connection, path: Path, *, is_new: bool) -> None:
    """Raise BackendError if a file has several names (hard links) and is not opened by the one of the last time; a new
    one may not have several.

    The other files of a database go by its name: opened by another one, it is without its write-ahead log.
    """
    names = path.stat().st_nlink
    if names == 1:
        return
    known = None
    if not is_new and conn.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone() is not None:
        known = conn.execute("SELECT value FROM meta WHERE key = 'path'").fetchone()
    if known is None or known[0] != os.fsencode(path):
        kept_as = "" if known is None else f" It was opened as {os.fsdecode(known[0])} last."
        raise BackendError(
            f"{path} has {names} names (hard links), and the write-ahead log and the files of large batches lie beside"
            f" one of them.{kept_as} Use that name, or remove all others"
        )


def _wal(conn: sqlite3.Connection, path: Path) -> None:
    mode: str = conn.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise BackendError(f"{path} cannot be put in WAL mode (it is {mode}): is it on a network file system?")


def _sync_directory(directory: Path) -> None:
    # SQLite syncs the directory for its journals; the database's own entry, and a parent just made, are ours to see to.
    for part in (directory, directory.parent):
        sync_path(part)
