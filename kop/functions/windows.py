"""Windows of messages: which message is in which window, when a window is due, what is kept for the next ones.

Owns: windows by count and by time, tumbling and sliding; the watermark and late messages; the mark by which a later
instance goes on, and what it makes of messages that are read a second time.
Must not know: clocks, topics, functions. The time is given, in milliseconds since the epoch.

A window by time has the messages from its beginning up to, and without, its end; ends are multiples of the sliding
interval. By count a window is due after every so many messages, as Pulsar has it: the first ones of a sliding window
are shorter. With event time the watermark is the newest time of the partition that is furthest behind, less the lag. A
window is due once the watermark has reached its end; a message is late if all windows that it would be in are over.

The topic keeps the messages. What is not needed any more may be committed; the rest is read again by the next instance.
The mark says how far messages were taken when the last window was over, and which of them were still kept: so the next
instance puts those where they were, and drops the others. It takes no new message until all of them are there.
"""

from __future__ import annotations

import heapq
import json
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

from kop.client.offsets import TopicPartition
from kop.functions.spec import WindowSpec

IDLE_INTERVALS: Final = 10
"""The intervals of the watermark, without a message, after which a partition does not hold it back any more."""


class Element(NamedTuple):
    """A message in windows."""

    time: int
    """Of the event, or at which it was read."""
    partition: TopicPartition
    offset: int
    value: Any
    record: Any
    """The message as it was read."""


class Fate(Enum):
    """The fate of a message that was added."""

    KEPT = "kept"
    LATE = "late"
    OVER = "over"
    """It is in no window that is still to come."""


class CountWindows:
    """Windows by count: every `slide` messages, the last `length`."""

    def __init__(self, length: int, slide: int) -> None:
        self.new = 0
        """The number of messages that came after the last window."""
        self._length = length
        self._slide = slide
        self._kept: deque[Element] = deque()
        self._dropped: list[Element] = []

    def add(self, element: Element) -> Fate:
        """Add a message, which is always KEPT. Older ones beyond the length of a window are left to `dropped`."""
        self._kept.append(element)
        self.new += 1
        while len(self._kept) > self._length:
            self._dropped.append(self._kept.popleft())
        return Fate.KEPT

    def restore(self, elements: Iterable[Element], new: int) -> None:
        """Put back messages that an earlier instance has kept, of which the last `new` came after the last window."""
        self._kept.extend(elements)
        self.new = new

    @property
    def is_full(self) -> bool:
        """True if the next window has all its messages."""
        return self.new >= self._slide

    def due(self, _time: int | None) -> Sequence[Element]:
        """Return the messages of the next window if it has all of them, else none; it stays due until `fired`. The time
        does not count.
        """
        return list(self._kept) if self.is_full else ()

    def fired(self) -> list[Element]:
        """Note that the window that was due is over; returns the messages that no window needs any more."""
        self.new = 0
        while len(self._kept) > max(0, self._length - self._slide):
            self._dropped.append(self._kept.popleft())
        return self.dropped()

    def dropped(self) -> list[Element]:
        """Return the messages that no window needs any more and that were not returned yet."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def kept(self) -> Iterable[Element]:
        """Return the messages that windows to come still need."""
        return self._kept


class TimeWindows:
    """Windows by time: every `slide` milliseconds, those of the last `length`."""

    def __init__(self, length: int, slide: int, closed: int | None, *, by_time: bool) -> None:
        """`length`, `slide`: milliseconds. `closed`: the end of the last window that is over, None if there is none.
        `by_time`: a window gives its messages in the order of their times, else in that of their adding.
        """
        self.closed = closed
        self.pane = math.gcd(length, slide)
        """All messages within so many milliseconds are in the same windows."""
        self._length = length
        self._slide = slide
        self._by_time = by_time
        self._panes: dict[int, list[Element]] = {}
        self._next: int | None = None
        """The end of the next window that has messages."""

    def add(self, element: Element) -> Fate:
        """Add a message, and return what became of it: KEPT; LATE if all windows that it would be in are over; OVER if
        it lies between two windows.
        """
        last = (element.time + self._length) // self._slide * self._slide
        end = self._first_end(element.time)
        if end > last:
            return Fate.OVER  # it is in the gap between two windows
        if self.closed is not None:
            if last <= self.closed:
                return Fate.LATE
            end = max(end, self.closed + self._slide)
        self._next = end if self._next is None else min(self._next, end)
        self._panes.setdefault(element.time // self.pane, []).append(element)
        return Fate.KEPT

    def _first_end(self, time: int) -> int:
        return (time // self._slide + 1) * self._slide

    def due(self, time: int | None) -> Sequence[Element]:
        """Return the messages of the next window if `time` has reached its end; it stays due until `fired`. Windows
        without messages are skipped. Else return none, and note that the windows up to `time` are over.
        """
        if time is None:
            return ()
        end = self._next
        if end is None or end > time:
            reached = time // self._slide * self._slide
            self.closed = reached if self.closed is None else max(self.closed, reached)
            return ()
        panes = range((end - self._length) // self.pane, end // self.pane)
        some = sorted(pane for pane in self._panes if pane in panes)
        window = [element for pane in some for element in self._panes[pane]]
        if self._by_time:
            window.sort(key=_order)
        return window

    def next_end(self) -> int | None:
        """Return the end of the next window that has messages, in milliseconds; None if there is none."""
        return self._next

    def fired(self) -> list[Element]:
        """Note that the window that was due is over; returns the messages that no window needs any more."""
        assert self._next is not None
        self.closed = self._next
        start = (self.closed + self._slide - self._length) // self.pane
        over = sorted(pane for pane in self._panes if pane < start)
        done = [element for pane in over for element in self._panes.pop(pane)]
        self._next = None
        if self._panes:
            self._next = max(self._first_end(min(self._panes) * self.pane), self.closed + self._slide)
        return done

    def kept(self) -> Iterable[Element]:
        """Return the messages that windows to come still need, those of a partition in their order."""
        return (element for pane in sorted(self._panes) for element in self._panes[pane])


def _order(element: Element) -> tuple[int, TopicPartition, int]:
    return element[:3]


class Windows:
    """The windows of some partitions. `starts` are the offsets that are read first; a partition may come later. Of
    those that are `fresh` an earlier instance has taken nothing, whatever the mark says: their topics were made anew.

    A message is given to `add`. As long as `due` returns a window, that is to be processed, and `fired` is to be called
    once it was. `mark` returns what the changelog has to have together with what the windows gave.
    """

    def __init__(
        self,
        spec: WindowSpec,
        starts: Mapping[TopicPartition, int],
        mark: bytes | None,
        fresh: Collection[TopicPartition] = (),
    ) -> None:
        self._of_events = bool(spec.timestamp_extractor)
        self._lag = spec.max_lag_ms
        self._interval = spec.watermark_ms
        self._shape_told = [spec.length_count, spec.sliding_count, spec.length_ms, spec.sliding_ms, self._of_events]
        self._known = _Mark.read(mark, self._shape_told)
        shape: CountWindows | TimeWindows
        if spec.length_count is not None:
            shape = CountWindows(spec.length_count, spec.sliding_count or spec.length_count)
        else:
            length = spec.length_ms or 1
            shape = TimeWindows(length, spec.sliding_ms or length, self._known.closed, by_time=self._of_events)
        self._shape = shape
        self._counts = shape if isinstance(shape, CountWindows) else None
        self._times = shape if isinstance(shape, TimeWindows) else None
        self._positions = dict(starts)
        self._taken = {
            partition: self._known.taken[partition]
            for partition in starts
            if partition in self._known.taken and partition not in fresh
        }
        """The offset behind the last message that an earlier instance had taken."""
        self._behind = {partition for partition, taken in self._taken.items() if starts[partition] < taken}
        """Partitions of which messages are to be read a second time."""
        self._again: list[tuple[int, Element]] = []
        """Messages that were kept, with their place among them, until all are there."""
        self._held: list[tuple[tuple[int, TopicPartition, int], Element]] = []
        """With windows by count of events: what the watermark has not reached, a heap."""
        self._released = self._known.released
        """The place of the last message that the watermark has reached."""
        self._newest: dict[TopicPartition, tuple[int, int]] = {}
        """Of each partition the newest time, and when its last message came."""
        self._watermark: int | None = None
        self._next_watermark = 0
        self._changed = False

    # -- messages

    def waits(self, partition: TopicPartition) -> bool:
        """Return True if a partition has to wait, because messages that an earlier instance had taken are still to be
        read again from other partitions.
        """
        return bool(self._behind) and partition not in self._behind

    def add(self, element: Element, now: int) -> Fate:
        """Add a message, and return what became of it. `now` is the time at which it is read; without event time the
        message has to have it as its own. The partition is noted as read to behind the message.
        """
        partition, offset = element.partition, element.offset
        if self._of_events:
            self._next_watermark = self._next_watermark or now + self._interval
            newest, _ = self._newest.get(partition, (element.time, now))
            self._newest[partition] = max(newest, element.time), now
        elif self._times is not None and self._times.closed is not None and now < self._times.closed:
            element = element._replace(time=self._times.closed)  # somebody has set the clock back
        if self.was_taken(partition, offset):
            fate = self._add_again(element)
        else:
            fate = self._add_new(element)
            self._changed = self._changed or fate is Fate.LATE
        self.passed(partition, offset + 1)
        return fate

    def was_taken(self, partition: TopicPartition, offset: int) -> bool:
        """Return True if an earlier instance has taken the message at an offset."""
        return offset < self._taken.get(partition, 0)

    def leave_out(self, partition: TopicPartition, offset: int) -> None:
        """Note that a message has been given up before it came into a window: it is in none."""
        self._changed = True
        self.passed(partition, offset + 1)

    def passed(self, partition: TopicPartition, next_offset: int) -> None:
        """Note that there is no further message before an offset. Once this has reached what an earlier instance had
        taken, in all partitions, the messages that it had kept are put back into the windows.
        """
        self._positions[partition] = max(next_offset, self._positions.get(partition, 0))
        if self._behind and next_offset >= self._taken.get(partition, 0):
            self._behind.discard(partition)
            if not self._behind:
                self._put_back()

    def _add_new(self, element: Element) -> Fate:
        if self._counts is None or not self._of_events:
            return self._shape.add(element)
        if self._released is not None and _order(element) <= self._released:
            return Fate.LATE
        heapq.heappush(self._held, (_order(element), element))
        return Fate.KEPT

    def _add_again(self, element: Element) -> Fate:
        """Add a message that an earlier instance had taken: KEPT if it was still in windows, where it gets the place
        that it had; else OVER.
        """
        if self._times is not None and self._of_events:
            return Fate.KEPT if self._times.add(element) is Fate.KEPT else Fate.OVER
        kept = self._known.find(element)
        if kept is not None:
            place, time = kept
            self._again.append((place, element if self._of_events else element._replace(time=time)))
            return Fate.KEPT
        if self._of_events and (self._released is None or _order(element) > self._released):
            return self._add_new(element)
        return Fate.OVER

    def _put_back(self) -> None:
        """Put the messages that an earlier instance had kept into the windows, in the order that they had then."""
        again = sorted(self._again, key=lambda kept: (kept[0], kept[1].offset))
        self._again.clear()
        if self._counts is not None:
            new = sum(place >= self._known.first_new for place, _ in again)
            self._counts.restore((element for _, element in again), new + self._known.new_ones_over)
        elif self._times is not None:
            for _, element in again:
                self._times.add(element)

    # -- windows

    @property
    def is_full(self) -> bool:
        """True if a window by count is due because of the last message, and has to be processed before the next one is
        added.
        """
        counts = self._counts
        return counts is not None and not self._of_events and counts.is_full

    def due(self, now: int) -> Sequence[Element]:
        """Return the messages of the next window that is due, which stays so until `fired`; nothing if none is, or
        while messages of an earlier instance are still to be read again. Moves the watermark on.
        """
        if self._behind:
            return ()
        if not self._of_events:
            return self._shape.due(now)
        self._move_watermark(now)
        if self._counts is None:
            return self._shape.due(self._watermark)
        while not (window := self._counts.due(None)):
            if not self._held or self._watermark is None or self._held[0][1].time > self._watermark:
                break
            self._released, element = heapq.heappop(self._held)
            self._counts.add(element)
        return window

    def fired(self) -> list[Element]:
        """Note that the window that was due is over; returns the messages that are not needed any more."""
        self._changed = True
        return self._shape.fired()

    def dropped(self) -> list[Element]:
        """Return messages that were added between two windows by count, and are not needed any more; each is returned
        once.
        """
        dropped = self._counts.dropped() if self._counts is not None else []
        self._changed = self._changed or bool(dropped)
        return dropped

    def next_due(self, now: int) -> int | None:
        """Return the time in milliseconds at which `due` is to be asked again if no message comes; None if only a
        message can make a window due.
        """
        if self._behind:
            return None
        if not self._of_events:
            return self._times.next_end() if self._times is not None else None
        if not any(came > now - self._interval * (IDLE_INTERVALS + 1) for _, came in self._newest.values()):
            return None  # the watermark moves no more until a message comes
        return max(self._next_watermark, now)

    def _move_watermark(self, now: int) -> None:
        """Move the watermark to the newest time of the partition that is furthest behind, less the lag: at most once in
        an interval, never back. Partitions without a message for ten intervals do not count.
        """
        if now < self._next_watermark:
            return
        last, self._next_watermark = self._next_watermark - self._interval, now + self._interval
        idle_since = min(last, now - self._interval * IDLE_INTERVALS)
        times = [newest for newest, came in self._newest.values() if came >= idle_since]
        if times:
            watermark = min(times) - self._lag
            self._watermark = watermark if self._watermark is None else max(self._watermark, watermark)

    # -- the mark

    def mark(self) -> bytes | None:
        """Return the mark, which tells a later instance what the windows hold, if it has changed since the last call;
        else None.
        """
        if not self._changed:
            return None
        self._changed = False
        taken = {partition: offset for partition, offset in self._positions.items() if offset > 0}
        kept: list[Element] = []
        new = self._counts.new if self._counts is not None else 0
        if not (self._of_events and self._times is not None):  # the time says of those in which windows they are
            kept = list(self._shape.kept())
        new_and_kept = min(new, len(kept))
        return _Mark(
            taken,
            None if self._times is None else self._times.closed,
            self._released,
            *_Mark.runs_of(
                kept, new_and_kept, pane=self._times.pane if self._times is not None else 0, gaps=not self._of_events
            ),
            new - new_and_kept,
        ).write(self._shape_told)


class _Run(NamedTuple):
    """Messages of one partition, one after the other, that were kept."""

    partition: TopicPartition
    first: int
    last: int
    time: int


@dataclass(frozen=True)
class _Mark:
    """The mark about its windows that an instance leaves to the next one."""

    VERSION: ClassVar[int] = 1

    taken: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offset behind the last message that was taken, of each partition."""
    closed: int | None = None
    released: tuple[int, TopicPartition, int] | None = None
    runs: Sequence[_Run] = ()
    """The messages that were kept, in their order, but for windows by time of events."""
    first_new: int = 0
    """The index in `runs` of the first run that came after the last window; the number of runs if there is none."""
    new_ones_over: int = 0
    """The number of messages that came after the last window, and were not kept."""

    @cached_property
    def _by_partition(self) -> dict[TopicPartition, list[tuple[int, int, int, int]]]:
        by_partition: dict[TopicPartition, list[tuple[int, int, int, int]]] = {}
        for place, run in sorted(enumerate(self.runs), key=lambda placed: placed[1][1:3]):
            by_partition.setdefault(run.partition, []).append((run.first, run.last, place, run.time))
        return by_partition

    def find(self, element: Element) -> tuple[int, int] | None:
        """Return the index of the run that a message of an earlier instance is in, and the run's time; None if the
        message was not kept.
        """
        runs = self._by_partition.get(element.partition, [])
        index = bisect_right(runs, (element.offset, math.inf)) - 1
        if index < 0 or runs[index][1] < element.offset:
            return None
        return runs[index][2], runs[index][3]

    @staticmethod
    def runs_of(kept: Sequence[Element], new: int, *, pane: int, gaps: bool) -> tuple[list[_Run], int]:
        """Return messages as runs of successive offsets, and the index of the first run among the last `new` messages.

        `pane`: times within so many milliseconds count as the same; 0 if times do not count. `gaps`: offsets between
        two kept messages of a partition have no other message.
        """
        runs: list[_Run] = []
        first_new = -1
        partition, first, last, time = ("", -1), 0, -2, 0
        for index, (read_at, of, offset, _, _) in enumerate(kept):
            at = read_at // pane * pane if pane else 0
            is_first_new = index == len(kept) - new
            is_next = offset == last + 1 or (gaps and offset > last)
            if not is_next or of != partition or at != time or is_first_new:
                if index:
                    runs.append(_Run(partition, first, last, time))
                if is_first_new:
                    first_new = len(runs)
                partition, first, time = of, offset, at
            last = offset
        if kept:
            runs.append(_Run(partition, first, last, time))
        return runs, len(runs) if first_new < 0 else first_new

    def write(self, shape: Sequence[Any]) -> bytes:
        """Return the mark as JSON. `shape` describes the windows, so that a mark of others is not read."""
        partitions = sorted({*self.taken, *(run.partition for run in self.runs)})
        numbers = {partition: number for number, partition in enumerate(partitions)}
        told = {
            "version": self.VERSION,
            "shape": shape,
            "partitions": [[*partition, self.taken.get(partition, 0)] for partition in partitions],
            "closed": self.closed,
            "released": self.released,
            "runs": [[numbers[run.partition], run.first, run.last, run.time] for run in self.runs],
            "new": [self.first_new, self.new_ones_over],
        }
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def read(cls, data: bytes | None, shape: Sequence[Any]) -> _Mark:
        """Return the mark of an earlier instance; an empty one if there was none, or if its windows had another shape.
        ValueError, KeyError, TypeError or IndexError if `data` is no mark, or of another version.
        """
        told = None if data is None else json.loads(data)
        if told is not None and told["version"] != cls.VERSION:
            raise ValueError(f"its version is {told['version']}")
        if told is None or told["shape"] != shape:
            return cls()
        partitions = [(topic, number) for topic, number, _ in told["partitions"]]
        taken = {(topic, number): offset for topic, number, offset in told["partitions"]}
        released = told["released"]
        return cls(
            taken,
            told["closed"],
            released and (released[0], (released[1][0], released[1][1]), released[2]),
            [_Run(partitions[number], first, last, time) for number, first, last, time in told["runs"]],
            *told["new"],
        )
