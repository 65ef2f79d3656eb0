"""The settings of this broker and of topics. Owns: their names, defaults and limits."""

from __future__ import annotations

from typing import Annotated, Literal

from kop.values import LONG_MAX, Int, Long, OptionalInt, OptionalLong, Policies, Settings, setting


class ClusterSettings(Settings):
    """The broker's id, and defaults of topics. `BrokerConfigs` has those in force: they may be altered at run time."""

    node_id: Int = setting("node.id", 1, "Id of this broker, as clients see it.", ge=0)
    num_partitions: Int = setting("num.partitions", 1, "Partitions of a topic that does not say how many.", ge=1)
    default_replication_factor: Int = setting(
        "default.replication.factor", 1, "Has no effect: every partition has one replica.", ge=1
    )
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = setting(
        "compression.type", "producer", "Codec of stored batches; producer: as they came."
    )
    message_max_bytes: Int = setting(
        "message.max.bytes", 1_048_588, "Largest record batch, in bytes as sent (compressed).", ge=0
    )
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = setting(
        "log.message.timestamp.type", "CreateTime", "Whether records keep the producer's time or get the broker's."
    )
    log_message_timestamp_before_max_ms: Long = setting(
        "log.message.timestamp.before.max.ms",
        LONG_MAX,
        "How many milliseconds a record's CreateTime may lie behind the broker's clock.",
        ge=0,
    )
    log_message_timestamp_after_max_ms: Long = setting(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How many milliseconds a record's CreateTime may lie ahead of the broker's clock.",
        ge=0,
    )
    log_cleanup_policy: Policies = setting(
        "log.cleanup.policy", "delete", "What happens to old records: delete (by time and size), compact, or both."
    )
    log_retention_ms: OptionalLong = setting(
        "log.retention.ms",
        None,
        "How many milliseconds records are kept, -1 for ever; wins over log.retention.minutes, that over .hours.",
    )
    log_retention_minutes: OptionalInt = setting("log.retention.minutes", None, "How many minutes records are kept.")
    log_retention_hours: Int = setting("log.retention.hours", 168, "How many hours records are kept.")
    log_retention_bytes: Long = setting(
        "log.retention.bytes", -1, "How many bytes of a partition are kept; -1: no limit.", ge=-1
    )
    log_cleaner_backoff_ms: Long = setting(
        "log.cleaner.backoff.ms", 15_000, "Milliseconds between two looks for partitions to compact.", ge=0
    )
    log_cleaner_min_cleanable_ratio: Annotated[float, "double"] = setting(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "Share of a compacted log, 0 to 1, that must be new before it is compacted again.",
        ge=0,
        le=1,
    )
    log_cleaner_min_compaction_lag_ms: Long = setting(
        "log.cleaner.min.compaction.lag.ms", 0, "Milliseconds that a record stays before compaction may take it.", ge=0
    )
    log_cleaner_max_compaction_lag_ms: Long = setting(
        "log.cleaner.max.compaction.lag.ms",
        LONG_MAX,
        "Milliseconds after which a record is compacted whatever the ratio of new ones.",
        ge=1,
    )
    log_cleaner_delete_retention_ms: Long = setting(
        "log.cleaner.delete.retention.ms", 86_400_000, "Milliseconds that a tombstone outlives its compaction.", ge=0
    )
    kop_entry_format: Literal["pulsar", "kafka"] = setting(
        "kop.entry.format",
        "pulsar",
        "How batches are stored in Pulsar: pulsar, as messages, or kafka, as they came, but not on compacted topics.",
    )
