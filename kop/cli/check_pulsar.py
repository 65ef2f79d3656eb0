"""The checks of a Pulsar cluster's broker settings, told in words of Kafka clients, for `kop check`.

Owns: which settings matter, what each of their values means, which are too small.
Must not know: how the settings are read.

The settings are those of broker.conf: https://pulsar.apache.org/reference/#/4.0.x/config/reference-configuration-broker
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from kop.cli.common import CliError, fail

Settings: TypeAlias = Mapping[str, str]
"""The Pulsar broker's settings in force, all as text."""

FEW_PRODUCERS = 1000
"""The number of idempotent producers that a partition of Pulsar should remember at least; below it the check
cautions.
"""
SHORT_IDLE_MINUTES = 60
MANY_ENTRIES = 100_000
"""The largest number of entries between two snapshots of Pulsar's deduplication before the check cautions: a Pulsar
broker reads all of them again when it takes a topic over.
"""
SMALL_MESSAGE = 1_048_588
"""The bytes of Kafka's largest batch by its defaults: a smaller maxMessageSize of Pulsar is cautioned of."""
_PACKAGE = "org.apache.pulsar.common.intercept"
_INDEX = "AppendIndexMetadataInterceptor"
_TIMES = "AppendBrokerTimestampMetadataInterceptor"
_INTERCEPTORS = "brokerEntryMetadataInterceptors"
_EXPOSING = "exposingBrokerEntryMetadataToClientEnabled"


class Caution(str):
    """The result of a check that something works, but that somebody should look at a detail of it."""

    __slots__ = ()


def entry_index(settings: Settings) -> str:
    """Check that Pulsar's brokers send the index of each entry, which is the Kafka offset, and the time at which they
    took it. Return a line about it, a `Caution` without the time. CliError, with lines for broker.conf, without the
    index.
    """
    given = [name.strip() for name in settings.get(_INTERCEPTORS, "").strip("[] ").split(",") if name.strip()]
    if f"{_PACKAGE}.{_INDEX}" not in given or not _is_on(settings, _EXPOSING):
        fail(
            "the Pulsar brokers send no entry index, so there are no offsets; add to broker.conf or standalone.conf, "
            f"and restart:\n{_remedy(given)}"
        )
    if f"{_PACKAGE}.{_TIMES}" not in given:
        return Caution(
            "the Pulsar brokers count messages and tell clients: there are offsets; they do not say when they took an "
            "entry, so LogAppendTime is by the clocks of producers; add to broker.conf or standalone.conf, and "
            f"restart:\n{_remedy(given)}"
        )
    return "the Pulsar brokers count messages and tell clients: there are offsets"


def _remedy(given: Sequence[str]) -> str:
    """Return the lines to paste into broker.conf: the two interceptors that the gateway needs, and behind them those of
    `given`, which the brokers have, that are others.
    """
    ours = [f"{_PACKAGE}.{name}" for name in (_INDEX, _TIMES)]
    names = ",\\\n".join([*ours, *(name for name in given if name not in ours)])
    return f"{_EXPOSING}=true\n{_INTERCEPTORS}={names}"


def topic_policies(settings: Settings) -> str:
    """Check that Pulsar lets each topic have its own retention, compaction and deduplication. Return a line that says
    so; CliError if one of the two settings for it is off.
    """
    off = [
        name
        for name in ("systemTopicEnabled", "topicLevelPoliciesEnabled")
        if name in settings and not _is_on(settings, name)
    ]
    if off:
        fail(
            f"{' and '.join(off)} must be true: without policies of their own, topics lose what no subscription holds "
            "(no retention.ms, no compaction)"
        )
    return "topics have their own retention, compaction and deduplication"


def deduplication(settings: Settings) -> str:
    """Return a line that says who turns Pulsar's deduplication on: the Pulsar brokers for all topics, or the gateway
    topic by topic.
    """
    if _is_on(settings, "brokerDeduplicationEnabled"):
        return "on for every topic"
    return "off by default; the gateway turns it on for each topic that it makes or an idempotent producer writes to"


def idempotent_producers(settings: Settings) -> str:
    """Return a line that says how many idempotent producers Pulsar remembers, and for how long; a `Caution` if that is
    little.
    """
    producers = _number(settings, "brokerDeduplicationMaxNumberOfProducers")
    minutes = _number(settings, "brokerDeduplicationProducerInactivityTimeoutMinutes")
    if producers is None or minutes is None:
        return Caution("this Pulsar broker does not say how long it remembers producers")
    text = (
        f"a partition remembers {producers:,} producers, each until it is idle for {_time(minutes)}; one that it has "
        "forgotten gets UNKNOWN_PRODUCER_ID or OUT_OF_ORDER_SEQUENCE_NUMBER, and a batch that it sends again then "
        "cannot be told from a new one"
    )
    small = []
    if producers < FEW_PRODUCERS:
        small.append(f"brokerDeduplicationMaxNumberOfProducers={producers} (10000 as it comes)")
    if minutes < SHORT_IDLE_MINUTES:
        small.append(f"brokerDeduplicationProducerInactivityTimeoutMinutes={minutes} (360 as it comes)")
    return Caution(f"{text}; small: raise {' and '.join(small)}") if small else text


def snapshots(settings: Settings) -> str:
    """Return a line about the snapshots of Pulsar's deduplication, since entries behind the last one outlive their
    retention and are read again when a topic moves; a `Caution` if snapshots are rare.
    """
    entries = _number(settings, "brokerDeduplicationEntriesInterval")
    seconds = _number(settings, "brokerDeduplicationSnapshotIntervalSeconds")
    if entries is None:
        return Caution("this Pulsar broker does not say how often it keeps what it knows of producers")
    often = f"every {entries:,} entries" + (f" or {seconds} s" if seconds else "")
    text = f"{often}; entries since the last one outlive their retention and are read again when a topic moves"
    if entries > MANY_ENTRIES:
        return Caution(f"{text}, which takes long: lower brokerDeduplicationEntriesInterval (1000 as it comes)")
    if not seconds:
        name = "brokerDeduplicationSnapshotIntervalSeconds"
        return Caution(f"{text}; a quiet topic never gets one: set {name} (120 as it comes)")
    return text


def message_size(settings: Settings) -> str:
    """Return a line about the largest entry that Pulsar takes; a `Caution` if Kafka's largest batch does not fit into
    one.
    """
    size = _number(settings, "maxMessageSize")
    if size is None:
        return Caution("this Pulsar broker does not say how large an entry may be")
    text = f"an entry may have {size:,} bytes; larger batches are split, a larger record is MESSAGE_TOO_LARGE"
    if size < SMALL_MESSAGE:
        return Caution(
            f"{text}; that is less than Kafka's message.max.bytes: raise maxMessageSize (5242880 as it comes)"
        )
    return text


LOOKS: tuple[tuple[str, Callable[[Settings], str]], ...] = (
    ("entry index", entry_index),
    ("topic policies", topic_policies),
    ("deduplication", deduplication),
    ("idempotence", idempotent_producers),
    ("snapshots", snapshots),
    ("message size", message_size),
)
"""The checks of the Pulsar brokers' settings, by their names. Each returns a line about what it saw, or a `Caution`, or
raises CliError.
"""


def _is_on(settings: Settings, name: str) -> bool:
    return settings.get(name, "").strip().lower() == "true"


def _number(settings: Settings, name: str) -> int | None:
    text = settings.get(name, "").strip()
    try:
        return int(text) if text else None
    except ValueError:
        raise CliError(f"{name} is {text!r}, which is no number") from None


def _time(minutes: int) -> str:
    hours, rest = divmod(minutes, 60)
    return f"{hours} h" if hours and not rest else f"{minutes} minutes"
