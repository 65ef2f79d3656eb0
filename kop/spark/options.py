"""The options of a read, under the names that Spark's Kafka source gives them.

Owns: every option's name, its values, and which options exclude each other. What those of the connection mean is
`kop.client.properties`.
Must not know: pyspark, sockets.

Names are matched without regard to case, as Spark does. An option that is not known, or that cannot be kept, is an
error that says what to do: a read never runs with less than it was asked for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kop.client.offsets import EARLIEST, LATEST, TopicPartition
from kop.client.properties import PROPERTIES, ConnectionProperties, PropertyError, connection, one_of, text, whole
from kop.client.properties import REFUSED as REFUSED_PROPERTIES
from kop.client.read_client import FetchSettings
from kop.schemas.access import PulsarAccess
from kop.spark.bounds import Bound
from kop.spark.clients import in_options
from kop.spark.decoding import DecoderOptions
from kop.spark.formats import (
    FORMAT_OPTIONS,
    PULSAR_OPTIONS,
    Formats,
    pulsar_access,
    take_formats,
    wants_schemas,
)
from kop.spark.given import Given, OptionError, flag
from kop.spark.offsets import parse_assignment, parse_offsets

if TYPE_CHECKING:
    from kop.spark.message_ids import PulsarAdmin

INT32: Final = 2**31 - 1
"""The largest value of Kafka's fields of 32 bits, such as a request's limit of bytes or milliseconds."""
UNITS_OF_TIME: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS_OF_SIZE: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}

SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
OPTIONS: Final = (
    *SUBSCRIPTIONS,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingTimestampInclusive",
    "endingTimestampInclusive",
    "startingEventTime",
    "endingEventTime",
    "startingEventTimeInclusive",
    "endingEventTimeInclusive",
    "startingMessageId",
    "endingMessageId",
    "startingMessageIdInclusive",
    "endingMessageIdInclusive",
    *PULSAR_OPTIONS,
    "pulsar.offsets",
    "topicNamespace",
    "topicDomain",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "includeMetadata",
    "decoder",
    "decoderSchema",
    "mode",
    *FORMAT_OPTIONS,
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partitionDiscoveryInterval",
    "neverAvailableNow",
)
"""The names of all options of a read but `kafka.*`."""

REFUSED: Final = {
    "kafka.auto.offset.reset": "set startingOffsets instead: Spark keeps track of what was read",
    "kafka.enable.auto.commit": "leave it out: Spark's checkpoint keeps the offsets",
    "kafka.key.deserializer": "set keyFormat instead: no Java class runs in this source",
    "kafka.value.deserializer": "set valueFormat instead: no Java class runs in this source",
    "kafka.interceptor.classes": "leave it out: no Java class runs in this source",
    "kafka.partition.assignment.strategy": "leave it out: no group is joined, Spark assigns the partitions",
    "kafka.group.protocol": "leave it out: no group is joined, Spark assigns the partitions",
    "kafka.group.instance.id": "leave it out: no group is joined, Spark assigns the partitions",
    "kafka.session.timeout.ms": "leave it out: no group is joined, Spark assigns the partitions",
    "kafka.heartbeat.interval.ms": "leave it out: no group is joined, Spark assigns the partitions",
    "kafka.max.poll.interval.ms": "leave it out: no group is joined, Spark assigns the partitions",
    **{f"kafka.{name}": in_options(advice) for name, advice in REFUSED_PROPERTIES.items()},
    "columnNameOfCorruptRecord": "leave it out: the column is decodeError",
    "deadLetterTopic": "filter the rows that have a decodeError, and write them with another query: a task that is "
    "repeated would write them twice",
    "readCompacted": "leave it out: what is read is what the topic keeps, without what compaction removed",
    "keys": "filter the rows by their key: a range of offsets is read whole",
    "startFrom": "set startingOffsets instead: no group is asked for offsets",
    "resetGroup": "leave it out: no group is asked for offsets",
    "waitForTopics": "set subscribePattern instead: a topic that begins to match it is read then",
    "verifyStartingOffsets": "set failOnDataLoss instead",
    "maxFilesPerTrigger": "set maxOffsetsPerTrigger instead: a topic has no files",
    "topic": "set subscribe instead: topic is an option of writes",
    "topics": "set subscribe instead",
    "subscriptionType": "leave it out: Spark reads ranges of offsets; use a share group where consumers compete",
    "subscriptionName": "leave it out, and call kop.spark.track_progress: it shows the progress as a group's",
}
"""The options of other connectors that this one cannot honour, each with advice on what to do."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options of a read. One of `topics`, `pattern` and `assign` is set; times in ms."""

    connection: ConnectionProperties
    fetch: FetchSettings
    starting: Bound
    ending: Bound | None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: tuple[TopicPartition, ...] = ()
    late_start_is_latest: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    fail_on_data_loss: bool = True
    include_headers: bool = False
    poll_timeout_ms: int = 120_000
    discovery_ms: int = 5_000
    event_times: tuple[int | None, int | None] = (None, None)
    """The event times, in ms, of the first row that is wanted and of the first later one that is not; None for no
    limit.
    """
    decoder: DecoderOptions | None = None
    formats: Formats | None = None
    """The options of typed columns; None if keys and values are bytes."""
    permissive: bool = False
    """True if a bad record gets null and the error's text, instead of ending the read."""
    pulsar: PulsarAdmin | None = None
    """The access to Pulsar's admin REST, if a bound is given by message ids; else None."""
    never_available_now: bool = False
    """True if the query never runs with Trigger.AvailableNow, which PySpark before 4.2 does not tell its readers."""

    @property
    def limited(self) -> bool:
        """True if the options limit a batch of a stream, so that it may take less than all there is."""
        return bool(self.max_offsets_per_trigger or self.min_offsets_per_trigger or self.max_bytes_per_trigger)


def batch_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of `spark.read`. OptionError, which says what to do, if one is unknown, wrong, missing or
    contradicts another.
    """
    return _read_options(options, streaming=False)


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of `spark.readStream`. OptionError, which says what to do, if one is unknown, wrong, missing
    or contradicts another.
    """
    return _read_options(options, streaming=True)


def refuse_unknown(given: Given, known: Mapping[str, object] | tuple[str, ...], what: str) -> None:
    """Raise OptionError if an option is left over: with the reason why it is refused, or with that one of the `known`
    names that is nearest to it. `what` names these in the error, such as `the options of a read`.
    """
    for name in given.left():
        for refused, advice in REFUSED.items():
            if refused.lower() == name.lower():
                raise OptionError(f'option {name} of format("kop"): {advice}')
        names = {option.lower(): option for option in known}
        close = difflib.get_close_matches(name.lower(), names, 1, 0.6)
        hint = f"did you mean {names[close[0]]}?" if close else "the options are listed in docs/spark.md of kop"
        raise OptionError(f'option {name} is none of {what} of format("kop"): {hint}')


# -- values


def _with_unit(value: str, units: Mapping[str, int], what: str) -> int:
    match = re.fullmatch(r"\s*(-?\d+)\s*([a-z]*)\s*", value.lower())
    if match is None or match[2] not in units:
        raise ValueError(f"is no {what}, as in {', '.join('10' + unit for unit in list(units)[1:5])}")
    return int(match[1]) * units[match[2]]


def duration(value: str) -> int:
    """Return a duration such as `500`, `500ms`, `30s`, `15m` or `2h` in milliseconds; it may be below 0. ValueError for
    another text.
    """
    return _with_unit(value, UNITS_OF_TIME, "duration")


def size(value: str) -> int:
    """Return a size such as `1048576`, `64k`, `16m` or `1g` in bytes, by 1024 each. ValueError for another text, or
    below 1.
    """
    byte_count = _with_unit(value, UNITS_OF_SIZE, "size")
    if byte_count < 1:
        raise ValueError("is below 1")
    return byte_count


# -- connection


CONNECTION_OPTIONS: Final = tuple(f"kafka.{name}" for name in PROPERTIES)
"""The names of the options of the connection, which a read and a write share."""


def connection_options(given: Given) -> ConnectionProperties:
    """Take the options of the connection out of those that were given, and return them. OptionError if one is wrong,
    with its name, or if `kafka.bootstrap.servers` is missing.
    """
    if not given.has("kafka.bootstrap.servers"):
        table = (
            ""
            if given.left()
            else "; PySpark does not pass on those of a table, spark.read.options(...).table(...) does"
        )
        raise OptionError(f"set kafka.bootstrap.servers to HOST:PORT of a server, with commas between several{table}")
    properties = {name: given.take(f"kafka.{name}", str, "") for name in PROPERTIES if given.has(f"kafka.{name}")}
    try:
        return connection(properties, "kop-spark")
    except PropertyError as error:
        raise OptionError(in_options(str(error))) from None


# -- reads

FETCH_OPTIONS: Final = (
    "kafka.isolation.level",
    "kafka.group.id",
    "kafka.fetch.min.bytes",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.max.partition.fetch.bytes",
    "kafka.client.rack",
    "kafka.max.poll.records",
    "kafka.check.crcs",
    "kafka.allow.auto.create.topics",
    "kafka.retry.backoff.ms",
)


def _fetch(given: Given) -> FetchSettings:
    levels = ("read_uncommitted", "read_committed")
    level = given.take("kafka.isolation.level", one_of(*levels), levels[0])
    default = FetchSettings()
    return FetchSettings(
        isolation=levels.index(level),
        partition_bytes=given.take("kafka.max.partition.fetch.bytes", whole(1, INT32), default.partition_bytes),
        max_bytes=given.take("kafka.fetch.max.bytes", whole(1, INT32), default.max_bytes),
        min_bytes=given.take("kafka.fetch.min.bytes", whole(1, INT32), default.min_bytes),
        wait_ms=given.take("kafka.fetch.max.wait.ms", whole(0, INT32), default.wait_ms),
        rack=given.take("kafka.client.rack", str.strip, ""),
        places=given.take("includeMetadata", flag, False),
    )


def _read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    given = Given(options)
    connection = connection_options(given)
    fetch = _fetch(given)
    _take_without_effect(given)
    subscribed = [name for name in SUBSCRIPTIONS if given.has(name)]
    if not subscribed:
        raise OptionError("set one of subscribe, subscribePattern and assign: nothing says which topics to read")
    if len(subscribed) > 1:
        raise OptionError(f"set one of {' and '.join(subscribed)}, not both: each says which topics to read")
    place = _namespace(given, subscribed[0])
    topics = tuple(map(place, given.take("subscribe", _names, tuple[str, ...]())))
    pattern = given.take("subscribePattern", _pattern, None)
    assign = tuple((place(t), p) for t, p in given.take("assign", _assignment, tuple[TopicPartition, ...]()))
    if subscribed == ["assign"] and not assign:
        raise OptionError('set assign to partitions, as in {"topic": [0, 1]}: it names none')
    event_times = _event_times(given, streaming)
    # A time of an event says nothing of its place in the log.
    first = LATEST if streaming and event_times[0] is None else EARLIEST
    starting = _bound(given, "starting", streaming) or Bound("startingOffsets", everywhere=first)
    ending = _bound(given, "ending", streaming)
    if ending is not None:
        _refuse_backwards(starting, ending)
    by_message = starting.messages is not None or (ending is not None and ending.messages is not None)
    strategy = given.take("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error")
    least = given.take("minOffsetsPerTrigger", whole(1), 0) or None
    most = given.take("maxOffsetsPerTrigger", whole(1), 0) or None
    if least and most and least > most:
        raise OptionError(f"set minOffsetsPerTrigger to no more than maxOffsetsPerTrigger ({most}), not {least}")
    access = pulsar_access(given) if given.has("pulsar.admin.url") and (by_message or wants_schemas(given)) else None
    formats = take_formats(given, access if wants_schemas(given) else None)
    mode = given.take("mode", one_of("failfast", "permissive"), "")
    decoder = _decoder(given, formats, mode)
    made = ReadOptions(
        connection,
        fetch,
        starting,
        ending,
        topics=topics,
        pattern=pattern,
        assign=assign,
        late_start_is_latest=strategy == "latest",
        min_partitions=given.take("minPartitions", whole(1), 0) or None,
        max_records_per_partition=given.take("maxRecordsPerPartition", whole(1), 0) or None,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_bytes_per_trigger=given.take("maxBytesPerTrigger", size, 0) or None,
        max_trigger_delay_ms=given.take("maxTriggerDelay", duration, 15 * 60_000),
        fail_on_data_loss=given.take("failOnDataLoss", flag, True),
        include_headers=given.take("includeHeaders", flag, False),
        poll_timeout_ms=given.take("kafkaConsumer.pollTimeoutMs", whole(1), 120_000),
        discovery_ms=given.take("partitionDiscoveryInterval", duration, 5_000),
        event_times=event_times,
        decoder=decoder,
        pulsar=_pulsar(given, by_message, access),
        formats=formats,
        permissive=mode == "permissive",
        never_available_now=given.take("neverAvailableNow", flag, False),
    )
    refuse_unknown(given, (*OPTIONS, *CONNECTION_OPTIONS, *FETCH_OPTIONS), "the options of a read")
    return made


def _take_without_effect(given: Given) -> None:
    """Take out options that have no effect here, so that users of Spark's Kafka source need not remove them.
    OptionError if one has a wrong value, or if kafka.allow.auto.create.topics is true.
    """
    given.take("groupIdPrefix", text, "")
    given.take("kafka.group.id", text, "")
    given.take("kafka.max.poll.records", whole(1), 1)
    given.take("kafka.check.crcs", flag, True)
    given.take("kafka.retry.backoff.ms", whole(0), 0)
    given.take("fetchOffset.numRetries", whole(0), 0)
    given.take("fetchOffset.retryIntervalMs", whole(0), 0)
    if given.take("kafka.allow.auto.create.topics", flag, False):
        raise OptionError("leave kafka.allow.auto.create.topics out: a read makes no topic")


def _names(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text(name) for name in value.split(",")))


def _assignment(value: str) -> tuple[TopicPartition, ...]:
    return tuple(dict.fromkeys(parse_assignment(value)))


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression of Python ({error})") from None
    return text(value)


def _namespace(given: Given, subscribed: str) -> Callable[[str], str]:
    """Take topicNamespace and topicDomain out, and return a function that puts that namespace before a topic's name
    that has none; without the option it changes no name. OptionError if the domain is not persistent, or if the topics
    are given by a pattern.
    """
    if given.take("topicDomain", text, "persistent") != "persistent":
        raise OptionError("leave topicDomain out: only persistent topics have offsets to read by")
    namespace = given.take("topicNamespace", _namespace_name, "")
    if not namespace:
        return str
    if subscribed == "subscribePattern":
        raise OptionError("write the namespace into subscribePattern, and leave topicNamespace out: a pattern is whole")
    return lambda topic: topic if "/" in topic else f"{namespace}/{topic}"


def _namespace_name(value: str) -> str:
    if not re.fullmatch(r"[^/\s]+/[^/\s]+", value.strip()):
        raise ValueError("is not of the form TENANT/NAMESPACE")
    return value.strip()


def _decoder(given: Given, formats: Formats | None, mode: str) -> DecoderOptions | None:
    name = given.take("decoder", _function_name, "")
    schema = given.take("decoderSchema", text, "")
    if not name:
        if schema or (mode and formats is None):
            raise OptionError(
                "set decoder to module:function or valueFormat, or leave decoderSchema and mode out: nothing is decoded"
            )
        return None
    if formats is not None:
        raise OptionError("set one of decoder and valueFormat or keyFormat, not both: a decoder gets bytes")
    if not schema:
        raise OptionError('set decoderSchema to the columns that the decoder gives, as in "id BIGINT, name STRING"')
    if re.search(r"\bNOT\s+NULL\b", schema, re.IGNORECASE):
        raise OptionError("leave NOT NULL out of decoderSchema: a decoder may leave any field out")
    return DecoderOptions(name, schema, mode == "permissive")


def _function_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value.strip()):
        raise ValueError("is not of the form module:function")
    return value.strip()


def _pulsar(given: Given, wanted: bool, access: PulsarAccess | None) -> PulsarAdmin | None:
    if not wanted:
        for name in ("pulsar.admin.url", "pulsar.auth", "pulsar.tls.ca.file", "pulsar.offsets"):
            if given.has(name):
                raise OptionError(f"set startingMessageId, endingMessageId or valueFormat, or leave {name} out")
        return None
    from kop.spark.message_ids import PulsarAdmin  # noqa: PLC0415 (it takes an HTTP client along)

    if access is None:
        raise OptionError(
            "set pulsar.admin.url to Pulsar's admin REST, http://HOST:PORT: Kafka's protocol knows no message ids"
        )
    return PulsarAdmin(
        access.url, access.auth, access.ca_file, given.take("pulsar.offsets", one_of("index", "packed"), None)
    )


def _inclusive(given: Given, bound: str, *, when: bool, default: bool) -> bool:
    """Take the option `bound`Inclusive out, and return its value, `default` if it was not given. OptionError if it was
    given though the option `bound` was not (`when` is false).
    """
    name = f"{bound}Inclusive"
    if given.has(name) and not when:
        raise OptionError(f"set {bound} as well, or leave {name} out")
    return given.take(name, flag, default)


def _event_times(given: Given, streaming: bool) -> tuple[int | None, int | None]:
    bounds: list[int | None] = []
    for which in ("starting", "ending"):
        name = f"{which}EventTime"
        asked = given.has(name)
        if asked and streaming and which == "ending":
            raise OptionError(
                "set endingTimestamp to end the stream, and filter the rows by their timestamp: a later record may "
                "have an earlier time, so endingEventTime would never end it"
            )
        time = given.take(name, whole(0), 0)
        inclusive = _inclusive(given, name, when=asked, default=which == "starting")
        bounds.append(time + (inclusive != (which == "starting")) if asked else None)
    first, end = bounds
    if first is not None and end is not None and end < first:
        raise OptionError("set endingEventTime to no earlier than startingEventTime: no row would be left")
    return first, end


def _bound(given: Given, which: str, streaming: bool) -> Bound | None:
    """Take the options that say where a read starts or ends (`which`: starting or ending) out, and return the bound by
    the one that has precedence: a message for each partition, else as in Spark's source, one time for all, then times,
    then offsets. None if none was given. OptionError if a value cannot be, or if another one was given besides
    messages.
    """
    by_message, by_time = f"{which}MessageId", f"{which}Timestamp"
    asked = [given.has(name) for name in (by_message, by_time, f"{which}OffsetsByTimestamp")]
    starts = which == "starting"
    message_too = _inclusive(given, by_message, when=asked[0], default=starts)
    time_too = _inclusive(given, by_time, when=asked[1] or asked[2], default=starts)
    if asked[0]:
        from kop.spark.message_ids import parse_messages  # noqa: PLC0415 (it takes an HTTP client along)

        for name in (by_time, f"{which}OffsetsByTimestamp", f"{which}Offsets"):
            if given.has(name):
                raise OptionError(f"set one of {by_message} and {name}: each says where the read {which[:-3]}s")
        return Bound(by_message, messages=given.take(by_message, parse_messages, None), behind=message_too != starts)
    later = int(time_too != starts)  # times are whole milliseconds
    names = (f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets")
    wanted = "topic -> partition -> "
    time = given.take(names[0], whole(0), -1)
    times = given.take(names[1], parse_offsets, None)
    offsets = given.take(names[2], _offsets_or_word, None)
    if time >= 0:
        return Bound(names[0], time=time + later)
    if times is not None:
        if not times or min(times.values()) < 0:
            raise OptionError(f"set {names[1]} to {wanted}milliseconds since the epoch, none below 0")
        return Bound(names[1], times={place: time + later for place, time in times.items()})
    if offsets is None:
        return None
    made = Bound(names[2], everywhere=offsets) if isinstance(offsets, int) else Bound(names[2], each=offsets)
    values = [offsets] if made.each is None else list(made.each.values())
    if not values or min(values) < EARLIEST:
        raise OptionError(f"set {names[2]} to {wanted}an offset, -1 for latest or -2 for earliest")
    if (LATEST if starts else EARLIEST) in values and not (streaming and starts):
        _no_such_bound(names[2], which)
    return made


def _refuse_backwards(starting: Bound, ending: Bound) -> None:
    """Raise OptionError if a read ends before it starts, as far as the options alone show it."""
    first, end = starting.time, ending.time
    if first is not None and end is not None and end < first:
        raise OptionError(
            f"set {ending.option} to no earlier than {starting.option}: the read would end before it starts"
        )
    for starts, ends in ((starting.times, ending.times), (starting.each, ending.each)):
        for (topic, partition), at in (starts or {}).items():
            until = (ends or {}).get((topic, partition), LATEST)
            if at >= 0 and 0 <= until < at:
                raise OptionError(
                    f"set {ending.option} to no less than {starting.option}: the read of {topic} partition {partition} "
                    f"would end at {until}, before it starts at {at}"
                )


def _no_such_bound(name: str, which: str) -> NoReturn:
    if which == "starting":
        raise OptionError(f"set {name} to earliest or an offset: from latest (-1) on a batch has nothing to read")
    raise OptionError(f"set {name} to latest or an offset: up to earliest (-2) there is nothing to read")


def _offsets_or_word(value: str) -> Any:
    words = {"earliest": EARLIEST, "latest": LATEST}
    if value.strip().lower() in words:
        return words[value.strip().lower()]
    try:
        return parse_offsets(value)
    except ValueError as error:
        raise ValueError(f"is neither earliest nor latest, and {error}") from None
