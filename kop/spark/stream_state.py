"""The progress of a stream, and the extent of its next batch: the state that a query's driver keeps between batches.

Owns: discovery of partitions, the limits of a batch, stop points, and what counts as lost between two batches.
Must not know: pyspark, how records are read.

Spark keeps the offsets; what is here can be rebuilt from them and from the servers, but for the ids of topics. So a
topic that was made again is noticed by its id while a query runs, and after a restart only where its log is shorter
than the checkpoint says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kafka import errors

from kop import clock
from kop.client.connection import SETTLE_SECONDS
from kop.client.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from kop.client.read_client import GONE
from kop.spark.bounds import Bound
from kop.spark.options import ReadOptions
from kop.spark.planning import DataLossError, OffsetRange, count_new, limit, limit_bytes
from kop.spark.subscription import (
    MissingTopicError,
    OffsetLookup,
    Partitions,
    find_offsets,
    find_start,
    settle_partitions,
)

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 0.1
"""The seconds between two looks for new records: a query without a trigger would ask at once again after it found
none.
"""
OFFSETS_SETTING: Final = "kop.pulsar.offsets"


class StreamState:
    """The state of one streaming query: how far it has read, in the driver. `now` is a clock in seconds that never goes
    back.
    """

    def __init__(
        self,
        lookup: OffsetLookup,
        options: ReadOptions,
        now: Callable[[], float] = clock.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.latest: Offsets | None = None
        """The end offset of each log as last seen, without any limits of a batch."""
        self._lookup = lookup
        self._options = options
        self._now = now
        self._sleep = sleep
        self._initial: Offsets | None = None
        self._at_latest: set[TopicPartition] = set()
        self._planned = False
        self._partitions: Partitions = {}
        self._gone: set[TopicPartition] = set()
        self._missing: tuple[str, ...] = ()
        """The names that the last discovery did not find although other partitions were there; no look-up waits for
        them again.
        """
        self._discovered = -float("inf")
        self._asked = -float("inf")
        self._idle = False
        self._reached: Offsets | None = None
        self._last_batch = -float("inf")
        self._ends: Offsets = {}
        self._ends_asked = False
        self._target: Offsets | None = None

    def initial(self) -> Offsets:
        """Return the offsets at which a new query starts; the same each time it is asked. MissingTopicError if a topic
        or partition that an option names does not exist, OptionError if the starting option does not fit the
        partitions.
        """
        if self._initial is None:
            self._discover(strict=True)
            self._initial, self._at_latest = find_start(self._lookup, self._options, self._partitions.keys())
            self._reached = self._reached or dict(self._initial)
        return dict(self._initial)

    def stop_at_latest(self) -> None:
        """Make the present ends of the logs the end of the query, and add no partition from now on."""
        self._discover()
        self._target = self._ask_latest(self._partitions)

    def next_end(self, start: Offsets | None = None, *, limited: bool = True) -> Offsets:
        """Return the offsets at which the next batch ends; those of `start` if there is nothing to read. With `limited`
        the options' limits of a batch count.

        Without `start` the batch goes on where the last one ended, according to earlier calls of this method or of
        `ranges`; without such calls the query is a new one. If the call before found nothing new, this one waits until
        0.1 s have passed since then; if a log has become shorter than `start` says, up to 3 s for it to be there again.
        """
        start = start if start is not None else self._reached
        start = self.initial() if start is None else start
        latest = self._next_latest(start)
        capped = self._before_stop_points(latest, start)
        if self._is_first(start):
            capped |= {p: start[p] for p in self._at_latest & capped.keys()}
        self._reached = self._within_limits(start, capped) if limited else capped
        self._idle = self._reached == start
        if not self._idle:
            self._last_batch = self._now()
        return dict(self._reached)

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Return the ranges of offsets that a batch reads, from `start` up to `end`, and remember `end` as where the
        query stands. Partitions that `start` does not have are read from their first offset on. DataLossError, or a
        warning with failOnDataLoss off, if partitions or records between the two are gone, or the two have no partition
        in common.
        """
        self._reached = end
        if self._is_first(start):  # and may have been planned by a driver that found an earlier latest
            start = {p: min(offset, end.get(p, offset)) for p, offset in start.items()}
        self._planned = self._initial is not None  # PySpark 4.0 plans (end, end) before it asks for the start
        if not end.keys() <= self._partitions.keys():
            self._discover(start.keys() | end.keys())
        if start and end and not start.keys() & end.keys():
            self._lost(
                f"the checkpoint is of {_listed(list(start))}, and the query reads {_listed(list(end))}",
                "give the query a checkpointLocation of its own",
            )
        new = [p for p in end if p not in start]
        unknown = [p for p in new if p not in self._partitions]
        if unknown:
            self._lost(f"{_listed(unknown)} are gone")
            end = {p: offset for p, offset in end.items() if p not in unknown}
            new = [p for p in new if p in end]
        first = self._lookup.list_offsets(dict.fromkeys(new, EARLIEST), 0) if new else {}
        for (topic, partition), offset in first.items():
            if offset > 0 and not self._has_packed_offsets():
                self._lost(f"topic {topic} partition {partition} is new to the query and begins at {offset}, not 0")
        gone = [p for p in start if p not in end]
        if gone:
            self._lost(f"{_listed(gone)} are gone")
        ranges = []
        for (topic, partition), stop in end.items():
            begin = start.get((topic, partition), first.get((topic, partition), 0))
            if stop < begin:
                self._lost(
                    f"the end of topic {topic} partition {partition}: its offset was changed from {begin} to {stop}",
                    "give the query a checkpointLocation of its own if this one is of another cluster, or set "
                    "failOnDataLoss to false to go on without them",
                )
            ranges.append(OffsetRange(topic, self._partitions.get((topic, partition)), partition, begin, stop))
        return ranges

    def _has_packed_offsets(self) -> bool:
        """Return true if the gateway makes offsets of Pulsar's message ids, so that no log begins at 0."""
        return self._lookup.server_configs([OFFSETS_SETTING]).get(OFFSETS_SETTING) == "packed"

    def _is_first(self, start: Offsets) -> bool:
        """Return true if the batch from `start` on is the first of a query some of whose partitions start at their
        latest offset.

        Spark keeps the end of a batch, and asks anew for the start of the first one if that was not finished: by then
        latest is another offset, and nobody would read what lies between. So the first batch reads nothing of these
        partitions, and its end says where the query began.
        """
        by_now = bool(self._at_latest) or self._options.late_start_is_latest
        return by_now and not self._planned and start == self._initial

    # -- the end of the logs

    def _discover(self, read: Collection[TopicPartition] = (), *, strict: bool = False) -> None:
        """Look for the partitions of the read, and keep them. One that was known and is gone, or whose topic is another
        one now, is lost data, and so is a named topic that is missing; with `strict` that is MissingTopicError.

        A server may not have heard yet of partitions that another one knows: of those that were there, or that `read`
        names, it is believed after 3 s that they are gone.
        """
        known = {*self._partitions, *read}
        partitions, missing = settle_partitions(
            self._lookup,
            self._options,
            self._now,
            self._sleep,
            known=known - self._gone,
            given_up=self._missing,
        )
        if missing:
            error = MissingTopicError(missing)
            if strict:
                raise error
            self._lost(f"a topic is not there: {error}")
        self._missing = missing
        self._gone = known - partitions.keys()
        for partition, topic_id in partitions.items():
            before = self._partitions.get(partition)
            if before is not None and topic_id != before:
                self._lost(f"topic {partition[0]} was deleted and made again: its id was {before} and is {topic_id}")
        self._partitions = partitions
        self._discovered = self._now()

    def _next_latest(self, start: Mapping[TopicPartition, int]) -> Offsets:
        interval = self._options.discovery_ms / 1000
        if self._target is None and (
            not self._partitions or (interval >= 0 and self._now() - self._discovered >= interval)
        ):
            self._discover(start)
        early = self._asked + IDLE_SECONDS - self._now()
        if self._idle and early > 0 and self._target is None:
            self._sleep(early)
        shorter_since: float | None = None
        while True:
            try:
                latest = self._ask_latest(self._partitions)
            except GONE:
                self._discover(start)
                latest = self._ask_latest(self._partitions)
            shorter = any(end < start.get(partition, 0) for partition, end in latest.items())
            if shorter:
                shorter_since = self._now() if shorter_since is None else shorter_since
                if self._now() - shorter_since < SETTLE_SECONDS:
                    self._sleep(IDLE_SECONDS)
                    continue
            self.latest, self._asked = latest, self._now()
            return latest

    def _ask_latest(self, partitions: Partitions) -> Offsets:
        return self._lookup.list_offsets(dict.fromkeys(partitions, LATEST), self._options.fetch.isolation)

    # -- how far a batch goes

    def _before_stop_points(self, latest: Offsets, start: Mapping[TopicPartition, int]) -> Offsets:
        if self._target is not None:
            latest = _no_further(latest, self._target, start)
            latest = {p: end for p, end in latest.items() if p in self._target}
        bound = self._options.ending
        if bound is not None:
            if bound.named is not None:  # nothing says where a partition ends that came later
                latest = {p: end for p, end in latest.items() if p in bound.named or p in start}
            latest = _no_further(latest, self._known_ends(bound, latest), start)
        return latest

    def _known_ends(self, bound: Bound, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the stop offsets of those partitions, now or in earlier calls, that have one already; they are kept. A
        stop time may still be to come: such a partition is asked for again by the next call.
        """
        left = [p for p in partitions if p not in self._ends]
        if left:
            asked = bound.only(left) if self._ends_asked else bound
            ends = find_offsets(self._lookup, self._options, asked, left)
            self._ends |= {p: end for p, end in ends.items() if end >= 0}
            self._ends_asked = True
        return self._ends

    def _within_limits(self, start: Offsets, end: Offsets) -> Offsets:
        options = self._options
        if not options.limited:
            return end
        new = [p for p in end if p not in start]
        begin = start | (self._lookup.list_offsets(dict.fromkeys(new, EARLIEST), 0) if new else {})
        least = options.min_offsets_per_trigger
        waited = self._now() - self._last_batch
        if (
            least
            and self._target is None
            and count_new(begin, end) < least
            and waited < options.max_trigger_delay_ms / 1000
        ):
            return dict(start)
        most = options.max_offsets_per_trigger
        end = limit(begin, end, most) if most else end
        return self._within_bytes(begin, end, options.max_bytes_per_trigger) if options.max_bytes_per_trigger else end

    def _within_bytes(self, begin: Offsets, end: Offsets, most: int) -> Offsets:
        """Return offsets at which the batch from `begin` takes about `most` bytes, and none behind `end`, supposing
        that all records of a log have the same size. The servers are asked for the sizes of the logs;
        AuthorizationError, with the option's name, if the user may not.
        """
        new = [p for p, offset in end.items() if offset > begin[p]]
        if not new:
            return end
        try:
            sizes = self._lookup.log_sizes(new)
        except errors.AuthorizationError as error:
            raise type(error)("DescribeLogDirs, for maxBytesPerTrigger") from error
        first = self._lookup.list_offsets(dict.fromkeys(new, EARLIEST), 0)
        last = self._lookup.list_offsets(dict.fromkeys(new, LATEST), 0)
        each = {p: max(1.0, sizes[p] / max(1, last[p] - first[p])) for p in new}
        return limit_bytes(begin, end, each, most)

    def _lost(self, what: str, advice: str = "set failOnDataLoss to false to go on without them") -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{advice}: some data may have been lost, {what}")
        log.warning("some data may have been lost, %s: the query goes on, failOnDataLoss is false", what)


def _no_further(latest: Offsets, ends: Offsets, start: Mapping[TopicPartition, int]) -> Offsets:
    """Return the end of a batch, cut to the stop offsets `ends` of those partitions that have one, but never before its
    start.
    """
    return {p: min(end, max(ends.get(p, end), start.get(p, 0))) for p, end in latest.items()}


def _listed(partitions: list[TopicPartition]) -> str:
    return ", ".join(f"topic {topic} partition {partition}" for topic, partition in sorted(partitions))
