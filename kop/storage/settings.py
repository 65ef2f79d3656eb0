"""The settings that engines with their data on this machine share. Owns: their names, defaults and limits."""

from __future__ import annotations

from collections.abc import Callable

from kop.values import Int, Long, Settings, setting


class StorageOptions(Settings):
    """The settings of storage on this machine that people can set."""

    log_retention_check_interval_ms: Long = setting(
        "log.retention.check.interval.ms", 300_000, "Milliseconds between two looks for records past retention.", ge=1
    )
    producer_id_expiration_ms: Int = setting(
        "producer.id.expiration.ms",
        86_400_000,
        "Milliseconds after which a partition forgets an idempotent producer that is silent.",
        ge=1,
    )


class LocalSettings(StorageOptions):
    """The settings that each engine with its data on this machine gets."""

    cleaner_interval_ms: Callable[[], int] = lambda: 15_000
    """A function that returns the ms between looks for logs to compact, which may change while the engine runs."""
    maintain: bool = True
    """True to run retention, compaction and the like in the background; false to leave them to calls of
    `maintain()`.
    """
