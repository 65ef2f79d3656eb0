"""The database file: its schema, its pragmas, its lock.

Owns: every `CREATE`, the settings of a connection, and the refusal of files that are not ours to write.
Must not know: logs, threads, the event loop.

What lies where
- `meta`: cluster id, next producer id, version of the catalogue.
- `topic`: the catalogue. `log`: one row for each partition; a row without a topic is a deleted partition whose batches
  still have to go. `state`: small values of the gateway's own.
- `aborted`: the aborted transactions of which records may be left in a log, up to the log's `snapshot_offset`. Those
  behind it are told by the markers in the batches, as producers are.
- `batch`: one row for each batch, appended to the end of one b-tree, so that a commit writes few pages however many
  partitions it holds. The index on it answers every look-up that needs no records without touching the batches.
  A row has the batch in `data`, or names its place in a file beside the database (`segments`): `data` is empty then.

A batch's `timestamp` is its max timestamp; where it has none, minus the time of the append (age without a date).
`head` is the 61-byte header of an idempotent producer's batch, before the data so that it is read without it; of a
marker it is the whole batch. From a log's `transactions_from` on a transactional batch is one of a transaction that a
marker ends: version 1 stored such batches and no markers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from pathlib import Path
from typing import IO, Final

from kop.errors import BackendError

SCHEMA_VERSION = 3
APPLICATION_ID = 0x6B6F7031  # "kop1"
PAGE_SIZE = 32768
MIN_SQLITE = (3, 35, 0)
"""The oldest version of SQLite that has RETURNING."""
BUSY_TIMEOUT_MS = 5000
"""How long a connection waits for a lock. Only another program that opens the file (the sqlite3 shell, a backup) has
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
"""
_BATCH_OF_SEGMENT = "CREATE INDEX batch_of_segment ON batch (segment, size) WHERE segment IS NOT NULL;"
_ABORTED = """
CREATE TABLE aborted (
    log INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    last_stable_offset INTEGER NOT NULL,
    PRIMARY KEY (log, last_offset)
) WITHOUT ROWID;
"""
_UPGRADES: Final = {
    1: (
        "ALTER TABLE log ADD COLUMN transactions_from INTEGER NOT NULL DEFAULT 0",
        "UPDATE log SET transactions_from = max(log_start, snapshot_offset,"
        " coalesce((SELECT max(last) + 1 FROM batch INDEXED BY batch_of_log WHERE batch.log = log.id), 0))",
        _ABORTED,
    ),
    2: (
        "ALTER TABLE batch ADD COLUMN segment INTEGER",
        "ALTER TABLE batch ADD COLUMN position INTEGER",
        _BATCH_OF_SEGMENT,
    ),
}
"""What makes a database of each version one of the next."""

_log = logging.getLogger(__name__)


def lock(path: Path) -> IO[str]:
    """Take the lock that makes this process the only one on `path`; held until the file is closed.

    Raises BackendError where another process (or engine) holds it.
    """
    handle = open(f"{path}.lock", "a+", encoding="ascii")  # noqa: SIM115 - held for the engine's life
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.seek(0)
        holder = handle.read().strip()
        handle.close()
        raise BackendError(
            f"{path} is in use by another kop process{f' (pid {holder})' if holder else ''}: "
            "one database serves one process; stop that one or give another --store"
        ) from None
    handle.truncate(0)
    handle.write(f"{os.getpid()}\n")
    handle.flush()
    return handle


def segments_of(path: Path) -> Path:
    """The folder of the files that hold large batches of a database."""
    return Path(f"{path}-batches")


def connect(path: Path, *, write: bool, cache_kib: int = 2048) -> sqlite3.Connection:
    """Open a connection in autocommit mode, for one thread at a time."""
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
    """Open the writing connection; make the schema in a new file. Upgrades one of an older version, refuses what is
    not a database of ours."""
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
    if tables == 0 and application in {0, APPLICATION_ID}:
        # Before the first table, or they have no effect. page_size has to come before WAL.
        conn.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        conn.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _wal(conn, path)
        conn.executescript(
            f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
            f"{_SCHEMA}{_ABORTED}{_BATCH_OF_SEGMENT} COMMIT;"
        )
        _sync_directory(path.parent)
        return
    if application != APPLICATION_ID:
        raise BackendError(f"{path} is a database of another program, not of kop")
    if version != SCHEMA_VERSION and version not in _UPGRADES:
        raise BackendError(
            f"{path} has schema version {version}, this kop reads and writes version {SCHEMA_VERSION}: "
            f"use the kop {'that wrote it' if version > SCHEMA_VERSION else 'of that age'}"
        )
    _wal(conn, path)
    if version != SCHEMA_VERSION:
        size = path.stat().st_size >> 20
        _log.info("bringing %s to schema version %d reads all of its %d MiB once", path, SCHEMA_VERSION, size)
        _upgrade(conn, version)
        _log.info("%s has schema version %d now, it had %d: older kops refuse it", path, SCHEMA_VERSION, version)


def _upgrade(conn: sqlite3.Connection, version: int) -> None:
    """Bring the schema up to this version in one transaction. Who calls it closes the connection where it fails."""
    conn.execute("BEGIN IMMEDIATE")
    for older in range(version, SCHEMA_VERSION):
        for statement in _UPGRADES[older]:
            conn.execute(statement)
    conn.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    conn.execute("COMMIT")


def _wal(conn: sqlite3.Connection, path: Path) -> None:
    mode: str = conn.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise BackendError(f"{path} cannot be put in WAL mode (it is {mode}): is it on a network file system?")


def _sync_directory(directory: Path) -> None:
    # SQLite syncs the directory for its journals; the database's own entry, and a parent just made, are ours to see to.
    for part in (directory, directory.parent):
        fd = os.open(part, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
