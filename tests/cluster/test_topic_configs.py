"""The table of topic configs: which values are taken, which are not, and what follows for a topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from kop.cluster.topic_configs import (
    TOPIC_CONFIGS,
    Origin,
    Source,
    TopicConfigs,
    check_configs,
    spec_of,
    split_list,
)
from kop.errors import ErrorCode, KopError, PeerError
from kop.records.batch import Codec, build, check_produced, iter_records, read_header
from kop.records.record import Record
from kop.storage.base import LogPolicy, TopicInfo

NOW = 1_700_000_000_000
TOPIC = TopicInfo("t", UUID(int=7), 1)


class Defaults:
    """Broker settings without a broker."""

    def __init__(self, loaded: bool = True) -> None:
        self.loaded = loaded
        self.settings: dict[str, tuple[Origin, ...]] = {}
        self._listeners: list[Callable[[], None]] = []

    def origins(self, name: str) -> tuple[Origin, ...]:
        return self.settings.get(name, ())

    def on_change(self, callback: Callable[[], None]) -> None:
        self._listeners.append(callback)

    def put(self, name: str, value: str | None, source: Source = Source.STATIC_BROKER) -> None:
        self.settings[name] = (Origin(name, value, source),)
        for listener in self._listeners:
            listener()


def with_configs(**configs: str) -> TopicInfo:
    return replace(TOPIC, configs={name.replace("_", "."): value for name, value in configs.items()})


# Name, value, and what it is, as a real Kafka 4.3.1 takes it.
TAKEN: list[tuple[str, str, Any]] = [
    ("retention.ms", "-1", -1),
    ("retention.ms", " 5 ", 5),
    ("retention.ms", "+7", 7),
    ("retention.ms", "9223372036854775807", 2**63 - 1),
    ("retention.bytes", "-5", -5),
    ("cleanup.policy", "", []),
    ("cleanup.policy", "compact,delete", ["compact", "delete"]),
    ("cleanup.policy", " compact , delete", ["compact", "delete"]),
    ("cleanup.policy", "delete,compact, delete", ["delete", "compact"]),
    ("min.cleanable.dirty.ratio", ".5", 0.5),
    ("min.cleanable.dirty.ratio", "1e-1", 0.1),
    ("preallocate", "TRUE", True),
    ("preallocate", " true ", True),
    ("compression.type", "zstd", "zstd"),
    ("compression.gzip.level", "-1", -1),
    ("leader.replication.throttled.replicas", "*", ["*"]),
    ("leader.replication.throttled.replicas", "0:1,1:1", ["0:1", "1:1"]),
    ("follower.replication.throttled.replicas", "", []),
    ("local.retention.ms", "-2", -2),
    ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
    ("unclean.leader.election.enable", "true", True),
    ("min.insync.replicas", "1", 1),
    ("remote.storage.enable", "false", False),
    ("remote.log.copy.disable", "true", True),
    ("segment.bytes", "1048576", 1048576),
    ("kop.entry.format", "pulsar", "pulsar"),
    ("kop.entry.format", " kafka ", "kafka"),
]

# Name, value, and the end of the message of a real Kafka 4.3.1.
REFUSED: list[tuple[str, str, str]] = [
    ("retention.ms", "abc", "Not a number of type LONG"),
    ("retention.ms", "", "Not a number of type LONG"),
    ("retention.ms", "0x10", "Not a number of type LONG"),
    ("retention.ms", "1_000", "Not a number of type LONG"),
    ("retention.ms", "١", "Not a number of type LONG"),  # digits, but not Kafka's
    ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
    ("retention.ms", "-2", "Value must be at least -1"),
    ("cleanup.policy", "foo", "String must be one of: compact, delete"),
    ("cleanup.policy", "compact,", "values must not be empty."),
    ("cleanup.policy", "none", "String must be one of: compact, delete"),
    ("message.timestamp.type", "logappendtime", "String must be one of: CreateTime, LogAppendTime"),
    ("compression.type", "none", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
    ("max.message.bytes", "99999999999", "Not a number of type INT"),
    ("max.message.bytes", "1.5", "Not a number of type INT"),
    ("min.cleanable.dirty.ratio", "2", "Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
    ("min.insync.replicas", "0", "Value must be at least 1"),
    ("preallocate", "yes", "Expected value to be either true or false"),
    ("segment.bytes", "10", "Value must be at least 1048576"),
    ("segment.ms", "0", "Value must be at least 1"),
    ("max.compaction.lag.ms", "0", "Value must be at least 1"),
    ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    ("leader.replication.throttled.replicas", "x", "[partitionId]:[brokerId],..."),
    ("kop.entry.format", "mixed_kafka", "String must be one of: pulsar, kafka"),
    ("kop.entry.format", "", "String must be one of: pulsar, kafka"),
]


@pytest.mark.parametrize(("name", "text", "expected"), TAKEN)
def test_taken_values(name: str, text: str, expected: Any) -> None:
    assert spec_of(name).parse_wanted(text) == expected
    assert check_configs({name: text}) == {name: text}, "kept as it was written"


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused_values(name: str, text: str, message: str) -> None:
    with pytest.raises(PeerError) as caught:
        check_configs({name: text})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert caught.value.message.endswith(message)


@pytest.mark.parametrize(("name", "text"), [("min.insync.replicas", "2"), ("remote.storage.enable", "true")])
def test_promises_that_cannot_be_kept_are_refused_with_a_reason(name: str, text: str) -> None:
    with pytest.raises(
        PeerError, match=r"is not possible here: (there is no remote tier|a record is kept once)"
    ) as caught:
        check_configs({name: text})
    assert caught.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("name", "hint"),
    [("retention.mz", "retention.ms"), ("cleanup_policy", "cleanup.policy"), ("SEGMENT.BYTES", "segment.bytes")],
)
def test_unknown_names_get_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(PeerError, match="Unknown topic config name") as caught:
        check_configs({name: "1"})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert caught.value.message == f"Unknown topic config name: {name}; did you mean {hint}?"


def test_a_minimum_lag_above_the_maximum_is_a_conflict() -> None:
    with pytest.raises(KopError, match=r"min.compaction.lag.ms \(10\) > max.compaction.lag.ms \(5\)"):
        check_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


def test_every_default_passes_its_own_check_and_has_a_meaning() -> None:
    ours = {name for name in TOPIC_CONFIGS if name.startswith("kop.")}
    assert ours == {"kop.entry.format"}
    assert len(TOPIC_CONFIGS.keys() - ours) == 33, "all of Kafka 4.3's but internal.segment.bytes"
    for spec in TOPIC_CONFIGS.values():
        spec.parse_wanted(spec.default)
        assert spec.doc, spec.name
        assert spec.acts == ("Without effect" not in spec.doc), spec.name


@pytest.mark.parametrize(("text", "items"), [("", []), ("  ", []), ("a", ["a"]), ("a, b", ["a", "b"]), (",", ["", ""])])
def test_split_list(text: str, items: list[str]) -> None:
    assert split_list(text) == items


# --- effective values


def test_defaults_are_the_engines_defaults() -> None:
    assert TopicConfigs(Defaults()).policy(TOPIC) == LogPolicy()


def test_policy_from_a_topics_own_configs() -> None:
    topic = with_configs(
        cleanup_policy="compact, delete", retention_ms="-1", retention_bytes="-9", delete_retention_ms="1",
        message_timestamp_type="LogAppendTime", min_compaction_lag_ms="2", max_compaction_lag_ms="3",
        min_cleanable_dirty_ratio="0.25",
    )  # fmt: skip
    assert TopicConfigs(Defaults()).policy(topic) == LogPolicy(True, True, -1, -1, True, 1, 2, 3, 0.25)
    nothing = TopicConfigs(Defaults()).policy(with_configs(cleanup_policy=""))
    assert (nothing.delete, nothing.compact) == (False, False)


def test_nothing_is_deleted_before_altered_broker_settings_are_known() -> None:
    defaults = Defaults(loaded=False)
    configs = TopicConfigs(defaults)
    policy = configs.policy(with_configs(cleanup_policy="compact,delete"))
    assert (policy.delete, policy.compact) == (False, False)
    defaults.loaded = True
    policy = configs.policy(with_configs(cleanup_policy="compact,delete"))
    assert (policy.delete, policy.compact) == (True, True)


def test_a_topics_own_value_beats_the_brokers_beats_the_default() -> None:
    defaults = Defaults()
    configs = TopicConfigs(defaults)
    assert configs.produce_rules(TOPIC).max_message_bytes == 1_048_588
    defaults.put("message.max.bytes", "500")
    assert configs.produce_rules(TOPIC).max_message_bytes == 500
    assert configs.produce_rules(with_configs(max_message_bytes="9")).max_message_bytes == 9
    assert configs.text({"max.message.bytes": "9"}, "max.message.bytes") == "9"
    assert configs.text({}, "max.message.bytes") == "500"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "2", "log.retention.ms": None}, 7_200_000),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_retention_is_milliseconds_over_minutes_over_hours(settings: dict[str, str | None], expected: int) -> None:
    defaults = Defaults()
    for name, value in settings.items():
        defaults.put(name, value)
    assert TopicConfigs(defaults).policy(TOPIC).retention_ms == expected


def test_rules_are_kept_until_the_topic_or_the_broker_changes() -> None:
    defaults = Defaults()
    configs = TopicConfigs(defaults)
    first = configs.produce_rules(TOPIC)
    assert configs.produce_rules(TOPIC) is first
    assert configs.produce_rules(replace(TOPIC, name="public/default/t")) is first, "the same topic by its full name"
    changed = with_configs(max_message_bytes="9")
    assert configs.produce_rules(changed).max_message_bytes == 9
    assert configs.produce_rules(TOPIC) is not first
    kept = configs.produce_rules(TOPIC)
    defaults.put("message.max.bytes", "77")
    assert configs.produce_rules(TOPIC).max_message_bytes == 77 != kept.max_message_bytes


# --- the entry format


@pytest.mark.parametrize(
    ("own", "brokers", "raw"),
    [
        ({}, {}, False),
        ({"kop.entry.format": "kafka"}, {}, True),
        ({"kop.entry.format": "pulsar"}, {"kop.entry.format": "kafka"}, False),
        ({}, {"kop.entry.format": "kafka"}, True),
        ({"cleanup.policy": "compact"}, {"kop.entry.format": "kafka"}, False),
        ({"cleanup.policy": "delete,compact"}, {"kop.entry.format": "kafka"}, False),
        ({}, {"kop.entry.format": "kafka", "log.cleanup.policy": "compact"}, False),
    ],
)
def test_raw_entries_are_by_the_topics_format_and_never_compacted(
    own: dict[str, str], brokers: dict[str, str], raw: bool
) -> None:
    defaults = Defaults()
    for name, value in brokers.items():
        defaults.put(name, value)
    configs = TopicConfigs(defaults)
    assert configs.check(own) == own
    assert configs.policy(replace(TOPIC, configs=own)).raw_entries is raw
    defaults.loaded = False
    assert not configs.policy(replace(TOPIC, configs=own)).raw_entries


@pytest.mark.parametrize(
    ("own", "brokers"),
    [
        ({"kop.entry.format": "kafka", "cleanup.policy": "compact"}, {}),
        ({"kop.entry.format": " kafka ", "cleanup.policy": "delete, compact"}, {}),
        ({"kop.entry.format": "kafka"}, {"log.cleanup.policy": "compact"}),
    ],
)
def test_the_kafka_format_is_refused_on_a_compacted_topic(own: dict[str, str], brokers: dict[str, str]) -> None:
    defaults = Defaults()
    for name, value in brokers.items():
        defaults.put(name, value)
    configs = TopicConfigs(defaults)
    with pytest.raises(PeerError, match=r"entry.format=kafka is not possible with cleanup.policy=compact") as caught:
        configs.check(own)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert configs.check({**own, "cleanup.policy": "delete"})


def test_a_batch_may_grow_to_what_its_size_allows() -> None:
    configs = TopicConfigs(Defaults())
    for size, most in ((1000, 64 << 20), (8 << 20, 128 << 20)):
        topic = with_configs(max_message_bytes=str(size))
        assert configs.policy(topic).max_uncompressed_bytes == most
        assert configs.produce_rules(topic).max_uncompressed_bytes == most


# --- rules for producers


@pytest.mark.parametrize(
    ("base", "newest", "passes"),
    [
        (NOW, NOW, True),
        (NOW - 100, NOW + 50, True),
        (NOW - 101, NOW, False),
        (NOW, NOW + 51, False),
        (-1, -1, True),
    ],
)
def test_create_time_has_to_be_near_the_clock(base: int, newest: int, passes: bool) -> None:
    limits = {"message_timestamp_before_max_ms": "100", "message_timestamp_after_max_ms": "50"}
    configs = TopicConfigs(Defaults())
    append_time = configs.produce_rules(with_configs(message_timestamp_type="LogAppendTime", **limits))
    assert append_time.takes_times(base, newest, NOW)
    assert configs.produce_rules(with_configs(**limits)).takes_times(base, newest, NOW) == passes


def test_batches_are_stored_as_they_came_by_default() -> None:
    batch = build([Record(0, NOW, b"k", b"v")], codec=Codec.GZIP)
    header = read_header(batch)
    stored, after = TopicConfigs(Defaults()).produce_rules(TOPIC).stored(batch, header)
    assert stored is batch
    assert after is header


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_stored_in_the_codec_of_the_topic(name: str) -> None:
    records = [Record(index, NOW + index, b"k", b"v" * 100, ((b"h", None),)) for index in range(20)]
    rules = TopicConfigs(Defaults()).produce_rules(with_configs(compression_type=name))
    wanted = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    for codec in Codec:
        batch = build(records, codec=codec, producer_id=7, producer_epoch=1, base_sequence=5)
        stored, header = rules.stored(batch, read_header(batch))
        assert header.codec == wanted
        assert check_produced(stored, max_message_bytes=1 << 20, zstd_allowed=True) == header
        assert list(iter_records(stored, max_bytes=1 << 20)) == records
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 5)


def test_a_batch_that_is_too_large_in_the_other_codec_is_refused() -> None:
    rules = TopicConfigs(Defaults()).produce_rules(
        with_configs(compression_type="uncompressed", max_message_bytes="500")
    )
    batch = build([Record(0, NOW, b"k", b"v" * 1000)], codec=Codec.ZSTD)
    assert len(batch) < 500
    with pytest.raises(KopError) as caught:
        rules.stored(batch, read_header(batch))
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_that_cannot_be_decompressed_is_refused() -> None:
    rules = TopicConfigs(Defaults()).produce_rules(with_configs(compression_type="lz4"))
    batch = build([Record(0, NOW, b"k", b"v" * 1000)], codec=Codec.GZIP)
    del batch[-10:]
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    with pytest.raises(KopError) as caught:
        rules.stored(batch, read_header(batch))
    assert caught.value.code == ErrorCode.INVALID_RECORD, "clients send CORRUPT_MESSAGE again"


def test_a_value_that_no_client_could_have_set_is_the_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    configs = TopicConfigs(Defaults())
    topic = with_configs(retention_ms="soon", cleanup_policy="compact", no_such_config="x")
    for _ in range(3):
        assert configs.value(topic, "retention.ms") == 7 * 24 * 3_600_000
    assert configs.value(topic, "cleanup.policy") == ["compact"]
    assert configs.policy(topic).retention_ms == 7 * 24 * 3_600_000
    assert caplog.text.count("retention.ms") == 1
    assert "kafka-configs" in caplog.text
