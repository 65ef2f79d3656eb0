"""The partitions of a read as they are now, and the offsets at which it starts and ends.

Owns: how topics are found by name and pattern, and how options become offsets by asking the servers.
Must not know: pyspark, how records are read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from kop import clock
from kop.client.connection import RETRY_SECONDS, SETTLE_SECONDS
from kop.client.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from kop.client.read_client import TopicMetadata
from kop.spark.bounds import Bound
from kop.spark.fetching import lost
from kop.spark.given import OptionError
from kop.spark.options import ReadOptions
from kop.spark.planning import OffsetRange

PARTITION: Final = re.compile(r"(.+)-partition-(\d+)")
"""The pattern of Pulsar's names for a topic's partitions; no topic of a gateway over Pulsar has such a name."""

Partitions: TypeAlias = dict[TopicPartition, str | None]
"""The type of all partitions of a read, each with the id of its topic, or None if the servers have no ids."""


class OffsetLookup(Protocol):
    """The questions of a read to the servers; `kop.client.read_client.ReadClient` answers them."""

    def topics(self, names: Collection[str] | None) -> dict[str, TopicMetadata]:
        """Return those topics of these names that exist, by name, or all topics if `names` is None."""

    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation: int) -> Offsets:
        """Return for each partition the first offset at or after a time (ms since the epoch), or at EARLIEST or LATEST;
        -1 if no record is that late. With `isolation` 1 (read committed) LATEST is before the first record of an open
        transaction, with 0 it is the end of the log.
        """

    def log_sizes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes that each partition's log takes, as its server tells; 0 if it does not."""

    def server_configs(self, names: Collection[str]) -> dict[str, str]:
        """Return the values of those of the named settings that a server has and tells this user."""


class MissingTopicError(Exception):
    """An error for topics or partitions that an option names and that do not exist."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(f"create it, or name another one: there is no {', '.join(names)} (UnknownTopicOrPartition)")


def find_partitions(
    lookup: OffsetLookup,
    options: ReadOptions,
    now: Callable[[], float] = clock.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Partitions:
    """Return all partitions of the read, in order of topic and number. MissingTopicError if a topic or partition that
    an option names does not exist, which is believed after looking for it for 3 s.
    """
    partitions, missing = settle_partitions(lookup, options, now, sleep)
    if missing:
        raise MissingTopicError(missing)
    return partitions


def settle_partitions(
    lookup: OffsetLookup,
    options: ReadOptions,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    *,
    known: Collection[TopicPartition] = (),
    given_up: Collection[str] = (),
) -> tuple[Partitions, tuple[str, ...]]:
    """Return all partitions of the read, in order of topic and number, and the names of those topics and partitions
    that an option names and that do not exist.

    A server may not have heard of new ones yet. So the servers are asked again, every 0.1 s for up to 3 s, while one of
    the `known` partitions is missing, or a named one that is not in `given_up`. `now` is a clock in seconds.
    """
    end = now() + SETTLE_SECONDS
    while True:
        late = now() >= end
        partitions, missing = _look(lookup, options)
        if late or (partitions.keys() >= set(known) and set(given_up) >= set(missing)):
            return partitions, missing
        sleep(RETRY_SECONDS)


def _look(lookup: OffsetLookup, options: ReadOptions) -> tuple[Partitions, tuple[str, ...]]:
    missing: list[str] = []
    if options.pattern is not None:
        matches = re.compile(options.pattern).fullmatch
        topics = {name: t for name, t in lookup.topics(None).items() if matches(name) and not t.internal}
        wanted = _all_of(topics)
    elif options.assign:
        topics = lookup.topics(dict.fromkeys(topic for topic, _ in options.assign))
        wanted = list(options.assign)
    else:
        topics = lookup.topics(options.topics)
        wanted = _all_of(topics)
        missing = [topic for topic in options.topics if topic not in topics]
        partitions = [(m[1], int(m[2])) for m in map(PARTITION.fullmatch, missing) if m is not None]
        if partitions:
            topics |= lookup.topics({topic for topic, _ in partitions})
            wanted += [p for p in partitions if p not in wanted]
            missing = [topic for topic in missing if not PARTITION.fullmatch(topic)]
    there = [(t, p) for t, p in wanted if t in topics and p in topics[t].leaders]
    missing += [f"{t}-{p}" for t, p in wanted if (t, p) not in there]
    return {(topic, partition): topics[topic].topic_id for topic, partition in sorted(there)}, tuple(missing)


def _all_of(topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    return [(topic, partition) for topic, known in topics.items() for partition in known.leaders]


def find_ranges(
    lookup: OffsetLookup,
    options: ReadOptions,
    now: Callable[[], float] = clock.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[OffsetRange]:
    """Return the ranges that a batch query reads: each partition, as it is now, from its starting offset to its ending
    one.

    An ending offset behind the end of a log is cut to that end. DataLossError if an option names an offset behind the
    end of a log, or a warning if the read goes on after lost data. MissingTopicError if a topic or partition that an
    option names does not exist; OptionError as `find_start` and `resolve_end` raise it.
    """
    partitions = find_partitions(lookup, options, now, sleep)
    ending = options.ending or Bound("endingOffsets", everywhere=LATEST)
    starts, _ = find_start(lookup, options, partitions.keys())
    ends = resolve_end(lookup, options, ending, partitions.keys())
    bounds = [(bound, at) for bound, at in ((options.starting, starts), (ending, ends)) if bound.each is not None]
    if bounds:
        latest = lookup.list_offsets(dict.fromkeys(partitions, LATEST), options.fetch.isolation)
        for bound, offsets in bounds:
            for (topic, partition), offset in offsets.items():
                end = latest[topic, partition]
                if offset > end:
                    lost(
                        options.fail_on_data_loss,
                        f"{bound.option} has {offset} for topic {topic} partition {partition}, which ends at {end}",
                    )
        ends = {p: min(end, latest[p]) for p, end in ends.items()}
    return [OffsetRange(t, topic_id, p, starts[t, p], ends[t, p]) for (t, p), topic_id in partitions.items()]


def find_start(
    lookup: OffsetLookup, options: ReadOptions, partitions: Collection[TopicPartition]
) -> tuple[Offsets, set[TopicPartition]]:
    """Return the offset at which reading starts in each partition, by the read's starting option, and the partitions
    that start at the end of their logs, which moves. A partition without a record as late as the option's time starts
    there, too, if the read allows late starts; else OptionError. OptionError also if the option names other partitions
    than these.
    """
    bound = options.starting
    starts = find_offsets(lookup, options, bound, partitions)
    late = [p for p, offset in starts.items() if offset < 0]
    if late and not options.late_start_is_latest:
        raise OptionError(
            f"set startingOffsetsByTimestampStrategy to latest, or {bound.option} to an earlier time: "
            f"No offset matched in {_listed(late)}, no record is that late"
        )
    starts |= lookup.list_offsets(dict.fromkeys(late, LATEST), options.fetch.isolation) if late else {}
    each = bound.each or {}
    at_latest = {p for p in partitions if LATEST in (bound.everywhere, each.get(p))}
    return starts, at_latest | set(late)


def resolve_end(
    lookup: OffsetLookup, options: ReadOptions, bound: Bound, partitions: Collection[TopicPartition]
) -> Offsets:
    """Return, for each partition, the offset at which reading ends, which is the first that is not read. It is the
    present end of the log if no record is as late as the option's time. OptionError if the option names other
    partitions than these.
    """
    ends = find_offsets(lookup, options, bound, partitions)
    open_end = [p for p, offset in ends.items() if offset < 0]
    return ends | (lookup.list_offsets(dict.fromkeys(open_end, LATEST), options.fetch.isolation) if open_end else {})


def find_offsets(
    lookup: OffsetLookup, options: ReadOptions, bound: Bound, partitions: Collection[TopicPartition]
) -> Offsets:
    """Return the offset that `bound` names in each partition, for which the servers, or Pulsar, are asked; -1 if no
    record is as late as its time.

    OptionError if `bound` names other partitions than these; MessageBoundError if the offset of a message cannot be
    had.
    """
    isolation = options.fetch.isolation
    if bound.everywhere is not None:
        return lookup.list_offsets(dict.fromkeys(partitions, bound.everywhere), isolation)
    if bound.time is not None:
        return lookup.list_offsets(dict.fromkeys(partitions, bound.time), isolation)
    given: Mapping[TopicPartition, Any] | None = bound.messages or bound.times
    given = bound.each if given is None else given
    assert given is not None
    if given.keys() != set(partitions):
        raise OptionError(
            f"set {bound.option} for each partition that is read, and no other (-1 is latest, -2 earliest): "
            f"it has {_listed(given)}, and {_listed(partitions)} are read"
        )
    if bound.times is not None:
        return lookup.list_offsets(bound.times, isolation)
    if bound.messages is not None:
        from kop.spark.message_ids import SETTINGS, offsets_of  # noqa: PLC0415 (it takes an HTTP client along)

        assert options.pulsar is not None
        return offsets_of(options.pulsar, lookup.server_configs(SETTINGS), bound.messages, behind=bound.behind)
    asked = {p: offset for p, offset in given.items() if offset in {EARLIEST, LATEST}}
    return dict(given) | (lookup.list_offsets(asked, isolation) if asked else {})


def _listed(partitions: Iterable[TopicPartition], most: int = 10) -> str:
    names = [f"{topic}-{partition}" for topic, partition in sorted(partitions)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"
