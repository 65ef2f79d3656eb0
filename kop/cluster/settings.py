"""What can be set of this broker and of topics that do not say otherwise.

Owns: the settings and their defaults.
Must not know: who sets them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from kop.values import LONG_MAX, Int, Long, OptionalInt, OptionalLong, Policies, Settings, kafka, own


class ClusterSettings(Settings):
    """The broker's id, and defaults of topics. `BrokerConfigs` has those in force: they may be altered at run time."""

    node_id: Int = kafka("node.id", 1, "Id of this broker, as clients see it.", ge=0)
    num_partitions: Int = kafka("num.partitions", 1, "Partitions of a topic that does not say how many.", ge=1)
    default_replication_factor: Int = kafka(
        "default.replication.factor", 1, "Has no effect: every partition has one replica.", ge=1
    )
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = kafka(
        "compression.type", "producer", "Codec of stored batches; producer: as they came."
    )
    message_max_bytes: Int = kafka(
        "message.max.bytes", 1_048_588, "Largest record batch, in bytes as sent (compressed).", ge=0
    )
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = kafka(
        "log.message.timestamp.type", "CreateTime", "Whether records keep the producer's time or get the broker's."
    )
    log_message_timestamp_before_max_ms: Long = kafka(
        "log.message.timestamp.before.max.ms",
        LONG_MAX,
        "How many milliseconds a record's CreateTime may lie behind the broker's clock.",
        ge=0,
    )
    log_message_timestamp_after_max_ms: Long = kafka(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How many milliseconds a record's CreateTime may lie ahead of the broker's clock.",
        ge=0,
    )
    log_cleanup_policy: Policies = kafka(
        "log.cleanup.policy", "delete", "What happens to old records: delete (by time and size), compact, or both."
    )
    log_retention_ms: OptionalLong = kafka(
        "log.retention.ms",
        None,
        "How many milliseconds records are kept, -1 for ever; wins over log.retention.minutes, that over .hours.",
    )
    log_retention_minutes: OptionalInt = kafka("log.retention.minutes", None, "How many minutes records are kept.")
    log_retention_hours: Int = kafka("log.retention.hours", 168, "How many hours records are kept.")
    log_retention_bytes: Long = kafka(
        "log.retention.bytes", -1, "How many bytes of a partition are kept; -1: no limit.", ge=-1
    )
    log_cleaner_backoff_ms: Long = kafka(
        "log.cleaner.backoff.ms", 15_000, "Milliseconds between two looks for partitions to compact.", ge=0
    )
    log_cleaner_min_cleanable_ratio: Annotated[float, "double"] = kafka(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "Share of a compacted log, 0 to 1, that must be new before it is compacted again.",
        ge=0,
        le=1,
    )
    log_cleaner_min_compaction_lag_ms: Long = kafka(
        "log.cleaner.min.compaction.lag.ms", 0, "Milliseconds that a record stays before compaction may take it.", ge=0
    )
    log_cleaner_max_compaction_lag_ms: Long = kafka(
        "log.cleaner.max.compaction.lag.ms",
        LONG_MAX,
        "Milliseconds after which a record is compacted whatever the ratio of new ones.",
        ge=1,
    )
    log_cleaner_delete_retention_ms: Long = kafka(
        "log.cleaner.delete.retention.ms", 86_400_000, "Milliseconds that a tombstone outlives its compaction.", ge=0
    )
    kop_entry_format: Literal["pulsar", "kafka"] = own(
        "kop.entry.format",
        "pulsar",
        "How batches are stored in Pulsar: pulsar, as messages, or kafka, as they came, but not on compacted topics.",
    )
