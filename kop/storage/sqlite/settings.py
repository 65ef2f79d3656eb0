"""What can be set of the embedded engine.

Owns: the settings and their defaults.
Must not know: who reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _fifteen_seconds() -> int:
    return 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings:
    """What can be set of the embedded engine. Sizes in bytes, times in milliseconds."""

    cache_bytes: int = 64 << 20
    """For the newest batches, and for results of reads that wait for their reader."""
    """Newest batches kept in memory, over all partitions."""
    max_queued_bytes: int = 256 << 20
    """Batches taken and not committed; beyond it appends fail with KAFKA_STORAGE_ERROR, which clients retry."""
    wal_bytes: int = 32 << 20
    """Size of the write-ahead log from which it is brought into the database; a sixteenth of a small disk."""
    min_free_bytes: int = 256 << 20
    """Room on the disk that appends leave to deletes, commits of offsets and checkpoints; an eighth of a small disk."""
    beside_batch_bytes: int = 8 << 10
    """Size from which on a batch may lie in a file beside the database."""
    beside_commit_bytes: int = 256 << 10
    """Size of all such batches of a commit from which on they do: it costs a second sync and spares SQLite bytes."""
    segment_bytes: int = 64 << 20
    """Size from which on a file of batches takes no more; a sixteenth of a small disk."""
    reader_threads: int = 3
    retention_check_interval_ms: int = 300_000
    cleaner_interval_ms: Callable[[], int] = _fifteen_seconds
    """Tells the time between looks for logs to compact, which may change while the engine runs."""
    cleaner_keys: int = 200_000
    """Keys that one pass of the cleaner holds in memory, some 150 bytes each."""
    producer_id_expiration_ms: int = 86_400_000
    refuse_damaged_log: bool = False
    """True if a start is refused where the write-ahead log is damaged, so that commits are lost."""
    maintain: bool = True
    """Run retention, compaction and the like in the background; without it only `maintain()` does."""
