"""Topic configs: the one table for creating, altering and describing topics, and what follows from it for a topic.

Owns: every topic config of Kafka 4.3 and our own (`kop.`) with type, default, limits, meaning and the broker setting
behind it; which of them act here; their checks; and a topic's effective values, worked out once and kept until the
topic or a broker setting changes.
Must not know: the wire, who asks, where configs are kept.

Three kinds of configs
- Those that act: `acts` is true.
- Those that have nothing to act on: there are no segment files, indexes, replicas or a remote tier, every
  acknowledged batch is synced. They are checked as Kafka checks them, kept and read back, and change nothing.
- Those whose promise could not be kept are refused with INVALID_CONFIG and the reason: min.insync.replicas above 1 (a
  record is kept once) and remote.storage.enable=true.

Values are kept as the client wrote them, spaces included, and read back so, as Kafka does.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

from kop.errors import ErrorCode, PeerError
from kop.records.batch import CODEC_MASK, BatchHeader, Codec, read_header, seal
from kop.records.validation import TimeLimits, inflated
from kop.storage.base import Buffer, LogPolicy, TopicInfo
from kop.values import LONG_MAX

ENTRY_FORMAT: Final = "kop.entry.format"

_log = logging.getLogger(__name__)


class ConfigType(IntEnum):
    """The type of a config, as DescribeConfigs numbers it (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(IntEnum):
    """The place that a value of a config comes from, as DescribeConfigs numbers it (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


class Origin(NamedTuple):
    """One place that gives a config a value: the value, the place, and the config's `name` there. A value of None is
    not set, or a secret.
    """

    name: str
    value: str | None
    source: Source


class ConfigRow(NamedTuple):
    """A config as DescribeConfigs shows it."""

    name: str
    value: str | None
    read_only: bool
    source: Source
    type: ConfigType
    doc: str
    synonyms: tuple[Origin, ...]
    """Every place that has a value of the config, the one that is in force first."""

    @property
    def sensitive(self) -> bool:
        """True for a secret: its value is not shown."""
        return self.type is ConfigType.PASSWORD


Check: TypeAlias = Callable[[Any], str | None]
"""The type of a function that checks a parsed value: it returns the objection, or None."""


def _within(low: float | None, high: float | None = None) -> Check:
    def check(value: float) -> str | None:
        if low is not None and value < low:
            return f"Value must be at least {low}"
        if high is not None and value > high:
            return f"Value must be no more than {high}"
        return None

    return check


def _one_of(*allowed: str) -> Check:
    def check(value: str | list[str]) -> str | None:
        for item in [value] if isinstance(value, str) else value:
            if item not in allowed:
                return f"String must be one of: {', '.join(allowed)}"
        return None

    return check


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "Value must be between 1 and 9 or equal to -1"


_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def _throttled(value: list[str]) -> str | None:
    if value == ["*"] or all(_REPLICA.fullmatch(item) for item in value):
        return None
    return "must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],..."


_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_BITS = {ConfigType.INT: 32, ConfigType.LONG: 64}


@dataclass(frozen=True, slots=True)
class ConfigSpec:
    """One topic config: its name, type, default, limits and meaning."""

    name: str
    type: ConfigType
    default: str
    doc: str
    broker: str | None = None
    """The broker setting that holds the default for all topics (Kafka's synonym), or None."""
    acts: bool = False
    """True if the config has an effect; false if it is checked, kept and read back, and changes nothing here."""
    check: Check | None = None
    refused: Check | None = None
    """A check that returns the reason for which a legal value is refused here, or None; None if all legal values are
    taken.
    """
    distinct: bool = False
    """True if a repeated item of a LIST counts once (KIP-1161). The text is kept as it was written."""

    def parse(self, text: str) -> Any:
        """Return the value of `text`: bool, int, float, str, or list of str. INVALID_CONFIG, in Kafka's words, if it is
        not of the config's type or range.
        """
        value = self._read(text.strip())
        if self.check is not None and (reason := self.check(value)) is not None:
            raise self._invalid(text, reason)
        return value

    def parse_wanted(self, text: str) -> Any:
        """Return the value of a text that a client asks for, as `parse` does. INVALID_CONFIG if it cannot be parsed, or
        is legal in Kafka but not supported here.
        """
        value = self.parse(text)
        if self.refused is not None and (reason := self.refused(value)) is not None:
            raise PeerError(f"{self.name}={text.strip()} is not possible here: {reason}", ErrorCode.INVALID_CONFIG)
        return value

    def printed(self, text: str) -> str:
        """Return the text of a value as Kafka prints it after parsing, such as `true` for `TRUE`; a text that does not
        parse comes back as it is.
        """
        try:
            value = self._read(text.strip())
        except PeerError:
            return text
        match value:
            case bool():
                return str(value).lower()
            case list():
                return ",".join(value)
            case _:
                return str(value)

    def _read(self, text: str) -> Any:
        match self.type:
            case ConfigType.INT | ConfigType.LONG:
                half = 1 << _BITS[self.type] - 1
                if not _INTEGER.fullmatch(text) or not -half <= int(text) < half:
                    raise self._invalid(text, f"Not a number of type {self.type.name}")
                return int(text)
            case ConfigType.DOUBLE:
                if not _DOUBLE.fullmatch(text):
                    raise self._invalid(text, "Not a number of type DOUBLE")
                return float(text)
            case ConfigType.BOOLEAN:
                if text.lower() not in {"true", "false"}:
                    raise self._invalid(text, "Expected value to be either true or false")
                return text.lower() == "true"
            case ConfigType.LIST:
                items = split_list(text)
                if "" in items:
                    raise PeerError(f"Configuration '{self.name}' values must not be empty.", ErrorCode.INVALID_CONFIG)
                return list(dict.fromkeys(items)) if self.distinct else items
            case _:
                return text

    def _invalid(self, text: str, reason: str) -> PeerError:
        return PeerError(f"Invalid value {text} for configuration {self.name}: {reason}", ErrorCode.INVALID_CONFIG)


def split_list(text: str) -> list[str]:
    """Return the items of a LIST value, spaces around them dropped; none for an empty text."""
    text = text.strip()
    return [item.strip() for item in text.split(",")] if text else []


def _only_one_replica(value: int) -> str | None:
    return None if value == 1 else "a record is kept once, synced before it is acknowledged; there are no replicas"


def _no_remote_tier(value: bool) -> str | None:
    return "there is no remote tier" if value else None


def _table() -> Iterable[ConfigSpec]:
    boolean, string, integer = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
    long, double, list_ = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
    # -- retention and compaction
    yield ConfigSpec(
        "cleanup.policy", list_, "delete",
        "What happens to old records: delete (by retention.ms and retention.bytes), compact (the newest record of each "
        "key stays), both, or, when empty, nothing.",
        "log.cleanup.policy", True, _one_of("compact", "delete"), distinct=True,
    )  # fmt: skip
    yield ConfigSpec(
        "retention.ms", long, "604800000",
        "Milliseconds that records are kept under cleanup.policy delete; -1: for ever.",
        "log.retention.ms", True, _within(-1),
    )  # fmt: skip
    yield ConfigSpec(
        "retention.bytes", long, "-1",
        "Bytes of a partition that are kept under cleanup.policy delete; -1: no limit.",
        "log.retention.bytes", True,
    )  # fmt: skip
    yield ConfigSpec(
        "delete.retention.ms", long, "86400000",
        "Milliseconds that a tombstone stays readable after compaction has seen it.",
        "log.cleaner.delete.retention.ms", True, _within(0),
    )  # fmt: skip
    yield ConfigSpec(
        "min.cleanable.dirty.ratio", double, "0.5",
        "Share of a log, 0 to 1, that must be new before compaction runs.",
        "log.cleaner.min.cleanable.ratio", True, _within(0, 1),
    )  # fmt: skip
    yield ConfigSpec(
        "min.compaction.lag.ms", long, "0",
        "Milliseconds that a record stays as it is before compaction may take it.",
        "log.cleaner.min.compaction.lag.ms", True, _within(0),
    )  # fmt: skip
    yield ConfigSpec(
        "max.compaction.lag.ms", long, str(LONG_MAX),
        "Milliseconds after which a record is compacted whatever the share of new ones.",
        "log.cleaner.max.compaction.lag.ms", True, _within(1),
    )  # fmt: skip
    # -- what producers may write
    yield ConfigSpec(
        "max.message.bytes", integer, "1048588",
        "Largest record batch in bytes, as sent (compressed).",
        "message.max.bytes", True, _within(0),
    )  # fmt: skip
    yield ConfigSpec(
        "message.timestamp.type", string, "CreateTime",
        "CreateTime: records keep the producer's time. LogAppendTime: they get the broker's.",
        "log.message.timestamp.type", True, _one_of("CreateTime", "LogAppendTime"),
    )  # fmt: skip
    yield ConfigSpec(
        "message.timestamp.before.max.ms", long, str(LONG_MAX),
        "Milliseconds that a CreateTime may lie behind the broker's clock; a batch beyond is refused.",
        "log.message.timestamp.before.max.ms", True, _within(0),
    )  # fmt: skip
    yield ConfigSpec(
        "message.timestamp.after.max.ms", long, "3600000",
        "Milliseconds that a CreateTime may lie ahead of the broker's clock; a batch beyond is refused.",
        "log.message.timestamp.after.max.ms", True, _within(0),
    )  # fmt: skip
    yield ConfigSpec(
        "compression.type", string, "producer",
        "Codec of stored batches: one of gzip, snappy, lz4, zstd, uncompressed, or producer: as they came.",
        "compression.type", True,
        _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )  # fmt: skip
    yield ConfigSpec(
        ENTRY_FORMAT, string, "pulsar",
        "How new batches are stored in Pulsar; a topic may have both. pulsar: as messages, which Kafka's and Pulsar's "
        "clients read. kafka: as they came, KoP's entry format of that name. That is less work, but a batch that "
        "exceeds Pulsar's maxMessageSize is refused instead of split, and of Pulsar's clients only Java's with KoP's "
        "KafkaPayloadProcessor read it: without it they discard such batches, and those on the C++ library (Python) "
        "may crash. Not with cleanup.policy compact: there a broker-wide kafka has no effect, and a topic that had "
        "kafka cannot be compacted any more. The embedded engine keeps all batches as they came, whatever this says.",
        ENTRY_FORMAT, True, _one_of("pulsar", "kafka"),
    )  # fmt: skip
    # -- refused unless they ask for what is so anyway
    yield ConfigSpec(
        "min.insync.replicas", integer, "1",
        "Replicas that must have a record before it is acknowledged. Only 1: every partition has one replica.",
        None, True, _within(1), _only_one_replica,
    )  # fmt: skip
    yield ConfigSpec(
        "remote.storage.enable", boolean, "false", "Tiered storage. Only false: there is none.",
        None, True, None, _no_remote_tier,
    )  # fmt: skip
    # -- nothing here to act on
    level = "Level of the codec where compression.type asks for one. Without effect: the codec's usual level is used."
    yield ConfigSpec("compression.gzip.level", integer, "-1", level, "compression.gzip.level", check=_gzip_level)
    yield ConfigSpec("compression.lz4.level", integer, "9", level, "compression.lz4.level", check=_within(1, 17))
    yield ConfigSpec(
        "compression.zstd.level", integer, "3", level, "compression.zstd.level", check=_within(-131072, 22)
    )
    segment = "Without effect: a log is not made of segment files."
    yield ConfigSpec("segment.bytes", integer, "1073741824", segment, "log.segment.bytes", check=_within(1048576))
    yield ConfigSpec("segment.ms", long, "604800000", segment, "log.roll.ms", check=_within(1))
    yield ConfigSpec("segment.jitter.ms", long, "0", segment, "log.roll.jitter.ms", check=_within(0))
    yield ConfigSpec("segment.index.bytes", integer, "10485760", segment, "log.index.size.max.bytes", check=_within(4))
    yield ConfigSpec("index.interval.bytes", integer, "4096", segment, "log.index.interval.bytes", check=_within(0))
    yield ConfigSpec("file.delete.delay.ms", long, "60000", segment, "log.segment.delete.delay.ms", check=_within(0))
    yield ConfigSpec("preallocate", boolean, "false", segment, "log.preallocate")
    flush = "Without effect: every batch is synced before it is acknowledged."
    yield ConfigSpec("flush.messages", long, str(LONG_MAX), flush, "log.flush.interval.messages", check=_within(1))
    yield ConfigSpec("flush.ms", long, str(LONG_MAX), flush, "log.flush.interval.ms", check=_within(0))
    replica = "Without effect: every partition has one replica."
    yield ConfigSpec("unclean.leader.election.enable", boolean, "false", replica, "unclean.leader.election.enable")
    yield ConfigSpec("leader.replication.throttled.replicas", list_, "", replica, check=_throttled)
    yield ConfigSpec("follower.replication.throttled.replicas", list_, "", replica, check=_throttled)
    remote = "Without effect: there is no remote tier."
    yield ConfigSpec("local.retention.ms", long, "-2", remote, "log.local.retention.ms", check=_within(-2))
    yield ConfigSpec("local.retention.bytes", long, "-2", remote, "log.local.retention.bytes", check=_within(-2))
    yield ConfigSpec("remote.log.copy.disable", boolean, "false", remote)
    yield ConfigSpec("remote.log.delete.on.disable", boolean, "false", remote)


TOPIC_CONFIGS: Final[Mapping[str, ConfigSpec]] = {
    spec.name: spec for spec in sorted(_table(), key=lambda spec: spec.name)
}
"""Every topic config, ordered by name."""


def spec_of(name: str) -> ConfigSpec:
    """Return the config of that name. INVALID_CONFIG if there is none; its text names the most similar one."""
    spec = TOPIC_CONFIGS.get(name)
    if spec is None:
        near = difflib.get_close_matches(name.lower().replace("_", "."), TOPIC_CONFIGS, 1, 0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise PeerError(f"Unknown topic config name: {name}{hint}", ErrorCode.INVALID_CONFIG)
    return spec


def check_configs(configs: Mapping[str, str | None], *, internal: bool = False) -> dict[str, str]:
    """Check the configs that a topic is to have as its own, all of them, and return them as they were written.
    INVALID_CONFIG if one is unknown, None or wrong, or does not fit another one.

    `internal`: the topic holds the state of a coordinator, which only compaction may delete records from.
    """
    checked: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, text in configs.items():
        spec = spec_of(name)
        if text is None:
            raise PeerError(f"Null value not supported for topic configs: {name}", ErrorCode.INVALID_CONFIG)
        values[name] = spec.parse_wanted(text)
        checked[name] = text
    shortest = values.get("min.compaction.lag.ms", 0)
    longest = values.get("max.compaction.lag.ms", LONG_MAX)
    if shortest > longest:
        raise PeerError(
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})",
            ErrorCode.INVALID_CONFIG,
        )
    if internal and values.get("cleanup.policy") != ["compact"]:
        raise PeerError(
            "cleanup.policy of an internal topic has to be compact: anything else would lose committed offsets",
            ErrorCode.INVALID_CONFIG,
        )
    return checked


class BrokerDefaults(Protocol):
    """The broker settings that are defaults of topic configs (implemented by
    `kop.cluster.broker_configs.BrokerConfigs`).
    """

    @property
    def loaded(self) -> bool:
        """True once the settings that were altered in earlier runs are known."""

    def origins(self, name: str) -> tuple[Origin, ...]:
        """Return every place that sets the broker setting `name`, in the order of precedence, so that the first one is
        in force; empty for an unknown setting.
        """

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of a setting."""


_SYNONYMS: Final = {
    "retention.ms": (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
}
"""The broker settings that give a topic config its default, in falling precedence, each with its unit in the
config's.
"""
WALK_AT_LEAST: Final = 64 * 1024 * 1024
_WALK_RATIO: Final = 16
_MOST_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class ProduceRules:
    """The rules of one topic for the batches that are produced to it, from its effective configs."""

    max_message_bytes: int
    compact: bool
    """True if cleanup.policy holds `compact`, so that records need keys."""
    max_uncompressed_bytes: int
    """The most bytes that a batch's records may decompress to, if they have to be decompressed and looked at."""
    log_append_time: bool
    time_limits: TimeLimits
    codec: Codec | None
    """The codec in which batches are stored, by compression.type; None to keep the producer's."""

    def takes_times(self, earliest: int, latest: int, now_ms: int) -> bool:
        """Return true if timestamps of a batch (CreateTime) from `earliest` to `latest` are near enough to `now_ms`; -1
        stands for no timestamp, and is accepted. All are under LogAppendTime.
        """
        return self.log_append_time or self.time_limits.take(earliest, latest, now_ms)

    def changes_codec(self, header: BatchHeader) -> bool:
        """Return true if a batch has another codec than the topic's, so that it is compressed again before it is
        stored.
        """
        return self.codec is not None and header.codec != self.codec

    def stored(self, batch: Buffer, header: BatchHeader, records: Buffer | None = None) -> tuple[Buffer, BatchHeader]:
        """Return a checked batch as it is to be stored, and its header: `batch` itself unless its codec has to change.

        `records` are the batch's own without compression, if the caller has them. INVALID_RECORD if they cannot be
        decompressed, MESSAGE_TOO_LARGE if the batch is too large in the other codec.
        """
        if not self.changes_codec(header):
            return batch, header
        assert self.codec is not None
        if records is None:
            records = inflated(batch, header.codec, self.max_uncompressed_bytes)
        batch = seal(header._replace(attributes=header.attributes & ~CODEC_MASK | self.codec), records)
        header = read_header(batch)
        if header.size > self.max_message_bytes:
            raise PeerError(
                f"batch of {header.size} bytes in {self.codec.name.lower()}, the limit is {self.max_message_bytes}",
                ErrorCode.MESSAGE_TOO_LARGE,
            )
        return batch, header


def _may_grow_to(max_message_bytes: int) -> int:
    """Return the most bytes that the records of a batch may decompress to, if they have to be decompressed: sixteen
    times the largest batch, and at least 64 MiB.
    """
    return max(WALK_AT_LEAST, _WALK_RATIO * max_message_bytes)


_CODECS: Final = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class TopicConfigs:
    """The effective configs of topics: their own, then the broker's, then the defaults. Look-ups are cheap."""

    def __init__(self, broker_defaults: BrokerDefaults) -> None:
        self._broker_defaults = broker_defaults
        self.version = 0
        """A number that grows with every change of a broker setting: a key for cached rules, beside the version of the
        topics.
        """
        self._rules: dict[UUID, tuple[Mapping[str, str], ProduceRules]] = {}
        self._defaults: dict[str, tuple[Origin, ...]] = {}
        self._told: set[tuple[UUID, str, str]] = set()
        """The values of topics' own configs that do not parse and that a log line has told of."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        broker_defaults.on_change(self._forget)

    def lock_of(self, canonical_name: str) -> asyncio.Lock:
        """Return the lock of the topic of this name, always the same one while somebody holds it; it is for reading,
        changing and writing the topic's own configs, since storage may take long to answer.
        """
        return self._locks.setdefault(canonical_name, asyncio.Lock())

    def _forget(self) -> None:
        self.version += 1
        self._rules.clear()
        self._defaults.clear()

    def value(self, topic: TopicInfo, name: str) -> Any:
        """Return the effective value of a topic's config, parsed. If the topic's own does not parse, that is logged
        once, and the broker's default counts.
        """
        spec = TOPIC_CONFIGS[name]
        text = topic.configs.get(name)
        if text is not None:
            try:
                return spec.parse(text)
            except PeerError as error:  # what clients set was checked: this was set by other means
                self._tell(topic, name, error)
        return spec.parse(self._inherited(spec)[0].value or "")

    def _tell(self, topic: TopicInfo, name: str, error: PeerError) -> None:
        said = (topic.topic_id, name, topic.configs[name])
        if said in self._told:
            return
        if len(self._told) >= _MOST_KEPT:
            self._told.clear()
        self._told.add(said)
        _log.warning(
            "topic %s: %s; the default is used instead. Set the config again by a Kafka client (kafka-configs --alter)",
            topic.name,
            error.message,
        )

    def text(self, configs: Mapping[str, str], name: str) -> str:
        """Return the value, as text, of the config `name` that is in force on a topic with `configs` of its own: that
        of the topic, else the broker's default.
        """
        own = configs.get(name)
        return own if own is not None else self._inherited(TOPIC_CONFIGS[name])[0].value or ""

    def policy(self, topic: TopicInfo) -> LogPolicy:
        """Return the policy for the engine: which old records of the topic it deletes or compacts, and which timestamps
        it writes.

        Until the broker's altered settings are loaded nothing may be deleted, because one of them may forbid that.
        """
        loaded = self._broker_defaults.loaded
        cleanup = self.value(topic, "cleanup.policy") if loaded else []
        max_message_bytes = self.value(topic, "max.message.bytes")
        raw = loaded and self.value(topic, ENTRY_FORMAT) == "kafka" and "compact" not in cleanup
        return LogPolicy(
            delete="delete" in cleanup,
            compact="compact" in cleanup,
            retention_ms=self.value(topic, "retention.ms"),
            retention_bytes=max(self.value(topic, "retention.bytes"), -1),
            log_append_time=self.value(topic, "message.timestamp.type") == "LogAppendTime",
            delete_retention_ms=self.value(topic, "delete.retention.ms"),
            min_compaction_lag_ms=self.value(topic, "min.compaction.lag.ms"),
            max_compaction_lag_ms=self.value(topic, "max.compaction.lag.ms"),
            min_cleanable_dirty_ratio=self.value(topic, "min.cleanable.dirty.ratio"),
            raw_entries=raw,
            max_uncompressed_bytes=_may_grow_to(max_message_bytes),
            max_message_bytes=max_message_bytes,
            time_limits=self._time_limits(topic),
            limits_messages="max.message.bytes" in topic.configs,
        )

    def check(self, configs: Mapping[str, str | None], *, internal: bool = False) -> dict[str, str]:
        """Check configs as `check_configs` does, and also against what the topic inherits from the broker; return them.
        INVALID_CONFIG for kop.entry.format=kafka on a topic that is compacted.
        """
        checked = check_configs(configs, internal=internal)
        raw = checked.get(ENTRY_FORMAT, "").strip() == "kafka"
        if raw and "compact" in split_list(self.text(checked, "cleanup.policy")):
            raise PeerError(
                f"{ENTRY_FORMAT}=kafka is not possible with cleanup.policy=compact: "
                "Pulsar finds no keys in such batches",
                ErrorCode.INVALID_CONFIG,
            )
        return checked

    def produce_rules(self, topic: TopicInfo) -> ProduceRules:
        """Return the rules for batches that are produced to the topic; cached as long as it has these configs, under
        whatever name.
        """
        kept = self._rules.get(topic.topic_id)
        if kept is not None and kept[0] is topic.configs:
            return kept[1]
        max_message_bytes = self.value(topic, "max.message.bytes")
        rules = ProduceRules(
            max_message_bytes=max_message_bytes,
            compact="compact" in self.value(topic, "cleanup.policy"),
            max_uncompressed_bytes=_may_grow_to(max_message_bytes),
            log_append_time=self.value(topic, "message.timestamp.type") == "LogAppendTime",
            time_limits=self._time_limits(topic),
            codec=_CODECS[self.value(topic, "compression.type")],
        )
        if len(self._rules) >= _MOST_KEPT:  # topics that are gone leave theirs behind
            self._rules.clear()
        self._rules[topic.topic_id] = (topic.configs, rules)
        return rules

    def _time_limits(self, topic: TopicInfo) -> TimeLimits:
        return TimeLimits(
            self.value(topic, "message.timestamp.before.max.ms"), self.value(topic, "message.timestamp.after.max.ms")
        )

    def rows(self, configs: Mapping[str, str]) -> Iterable[ConfigRow]:
        """Yield every config of a topic that has `configs` of its own, each with the value in force and all places that
        give one, ordered by name.
        """
        for spec in TOPIC_CONFIGS.values():
            inherited = self._inherited(spec)
            own = configs.get(spec.name)
            synonyms = inherited if own is None else (Origin(spec.name, own, Source.DYNAMIC_TOPIC), *inherited)
            value, source = synonyms[0].value, synonyms[0].source
            yield ConfigRow(spec.name, value, False, source, spec.type, spec.doc, synonyms)

    def _inherited(self, spec: ConfigSpec) -> tuple[Origin, ...]:
        """Return the broker's values and the default of a config, in the config's own unit, in the order of precedence;
        never empty.
        """
        origins = self._defaults.get(spec.name)
        if origins is None:
            names = _SYNONYMS.get(spec.name, ((spec.broker, 1),) if spec.broker else ())
            origins = tuple(
                origin if unit == 1 else origin._replace(value=str(max(int(origin.value) * unit, -1)))
                for name, unit in names
                for origin in self._broker_defaults.origins(name)
                if origin.value is not None
            )
            self._defaults[spec.name] = origins = origins or (Origin(spec.name, spec.default, Source.DEFAULT),)
        return origins
