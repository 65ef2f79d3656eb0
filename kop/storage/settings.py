"""What can be set of engines whose data is on this machine. Owns: the settings that they share."""

from __future__ import annotations

from collections.abc import Callable

from kop.values import Int, Long, Settings, setting


class StorageOptions(Settings):
    """The settings for people."""

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
    """All that each of these engines is told."""

    cleaner_interval_ms: Callable[[], int] = lambda: 15_000
    """Tells the time between looks for logs to compact, which may change while the engine runs."""
    maintain: bool = True
    """Run retention, compaction and the like in the background; without it only `maintain()` does."""
