"""The settings of the embedded engine, on SQLite. Owns: their names, defaults and limits."""

from __future__ import annotations

from kop.storage.settings import LocalSettings
from kop.values import Long, Settings, setting


class SqliteOptions(Settings):
    """The settings of the engine on SQLite that people can set."""

    kop_wal_bytes: Long = setting(
        "kop.wal.bytes",
        33_554_432,
        "Bytes of SQLite's write-ahead log at which it is written back into the database file.",
        ge=1_048_576,
    )
    kop_refuse_damaged_log: bool = setting(
        "kop.refuse.damaged.log",
        False,
        "Do not start if SQLite's write-ahead log is damaged; else the broker starts without the commits behind that.",
    )
    kop_min_free_bytes: Long = setting(
        "kop.min.free.bytes",
        268_435_456,
        "Bytes of the disk that records leave free for deletes, commits of offsets and the write-ahead log; "
        "at most an eighth of the disk.",
        ge=0,
    )


class SqliteSettings(SqliteOptions, LocalSettings):
    """The settings that the engine on SQLite gets. Sizes in bytes, times in milliseconds."""

    kop_cache_bytes: int = 64 << 20
    """The bytes for the newest batches, and for results of reads that wait for their reader."""
    max_queued_bytes: int = 256 << 20
    """The bytes of batches submitted and not committed beyond which appends fail with KAFKA_STORAGE_ERROR, which
    clients retry.
    """
    beside_batch_bytes: int = 8 << 10
    """The size in bytes from which on a batch may lie in a segment file beside the database."""
    beside_commit_bytes: int = 256 << 10
    """The size in bytes of all such batches of a commit from which on they do: that costs a second sync and spares
    SQLite bytes.
    """
    segment_bytes: int = 64 << 20
    """The size in bytes from which on a segment file takes no more batches; a sixteenth of a small disk."""
    reader_threads: int = 3
    cleaner_keys: int = 200_000
    """The number of keys that one pass of the cleaner holds in memory, some 150 bytes each."""
