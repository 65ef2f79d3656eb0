"""Statistics of an instance: counts, failures, latencies, metrics of the function's own.

Owns: what is counted, over which time, and the plain values that others show.
Must not know: who shows them, what is called.

The threads of an instance write, others take snapshots. Times are noted once for many calls.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kop import clock
from kop.client.offsets import TopicPartition
from kop.functions.exception_text import text_of
from kop.functions.watch import Calling, place_of

LATEST: Final = 10
"""The number of failures that are kept."""
METRICS: Final = 1_000
"""The number of metrics that a function may have of its own; further ones are left out."""
MOST: Final = sys.float_info.max
TEXT_CHARACTERS: Final = 4_000
"""The number of characters that are kept of the text of a failure."""


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """The counts of an instance since its start, as plain JSON; `..._1min` are those of the last whole minute."""

    received: int
    processed: int
    user_exceptions: int
    """Number of calls that the function ended by an exception."""
    system_exceptions: int
    """Number of calls that failed for another reason: a serde, a result that cannot be written."""
    latency_sum_ms: float
    latency_count: int
    received_1min: int
    processed_1min: int
    user_exceptions_1min: int
    system_exceptions_1min: int
    latency_sum_ms_1min: float
    latency_count_1min: int
    latest_user_exceptions: list[dict[str, Any]]
    """The last failures, each with `text` and `at_ms`."""
    latest_system_exceptions: list[dict[str, Any]]
    last_invocation_ms: int
    """Time of the last call, 0 before the first."""
    user_metrics: dict[str, list[float]]
    """Count and sum of what `record_metric` was given, by name."""
    lag: dict[str, int]
    """Number of offsets of each partition, `TOPIC-NUMBER`, that are not done."""
    at: list[Any] | None
    """Topic, partition and offset of the record that the function is called with; None between calls."""


class Stats:
    """The counts of one instance.

    `partitions` are those that the instance reads. `calling` is the memory in which the instance notes its calls, see
    `kop.functions.watch`.
    """

    def __init__(self, partitions: Sequence[TopicPartition], calling: Calling) -> None:
        self.received = 0
        self.processed = 0
        self.user_exceptions = 0
        self.system_exceptions = 0
        self.lag: Callable[[], Mapping[TopicPartition, int]] = dict
        """The function that returns how many offsets of each partition are not done."""
        self._partitions = partitions
        self._calling = calling
        self._latency = (0.0, 0)
        self._last_ms = 0
        self._user: deque[dict[str, Any]] = deque(maxlen=LATEST)
        self._system: deque[dict[str, Any]] = deque(maxlen=LATEST)
        self._metrics: dict[str, tuple[int, float]] = {}
        self._minute = -1
        self._at_minute: tuple[float, ...] = self._all()
        """The counts when the minute began."""
        self._last_minute: tuple[float, ...] = (0,) * len(self._at_minute)

    @property
    def failures(self) -> int:
        """The number of calls that have failed."""
        return self.user_exceptions + self.system_exceptions

    # -- for the threads of the instance

    def took(self, count: int) -> None:
        """Count messages as received: the function is called with them for the first time."""
        self._turn()
        self.received += count

    def called(self, count: int, seconds: float) -> None:
        """Count calls that went well, and took so many seconds together; the time of the last call is now."""
        self._turn()
        self.processed += count
        self._latency = (self._latency[0] + seconds * 1000, self._latency[1] + count)
        self._last_ms = clock.wall_ms()

    def failed(self, error: BaseException, where: str, *, by_function: bool) -> None:
        """Count a call that failed, and keep its error among the latest. `where` names the record; `by_function`: True
        if the function itself has raised.
        """
        self._turn()
        now = clock.wall_ms()
        text = text_of(error)[:TEXT_CHARACTERS]
        told = {"text": f"{text} (at {where})", "at_ms": now}
        self._last_ms = now
        if by_function:
            self.user_exceptions += 1
            self._user.append(told)
        else:
            self.system_exceptions += 1
            self._system.append(told)

    def metric(self, name: str, value: float) -> None:
        """Count a value of a metric that the function names, and add it to the metric's sum. New names beyond 1000 are
        left out.
        """
        known = self._metrics.get(name)
        if known is None:
            if len(self._metrics) >= METRICS:
                return
            known = (0, 0.0)
        total = max(-MOST, min(known[1] + value, MOST))  # JSON has no infinity
        self._metrics[name] = (known[0] + 1, total)

    def _turn(self) -> None:
        """If the wall clock has come to another minute, keep the counts of the one that is over, and begin the next
        one.
        """
        minute = int(clock.wall() // 60)
        if minute != self._minute:
            self._last_minute, self._at_minute = self._minute_before(minute), self._all()
            self._minute = minute

    def _minute_before(self, minute: int) -> tuple[float, ...]:
        """Return the counts of the minute before the minute with this number (of the wall clock, since the epoch)."""
        if minute == self._minute:
            return self._last_minute
        if minute == self._minute + 1:
            return tuple(now - before for now, before in zip(self._all(), self._at_minute, strict=True))
        return (0,) * len(self._at_minute)

    def _all(self) -> tuple[float, ...]:
        return (self.received, self.processed, self.user_exceptions, self.system_exceptions, *self._latency)

    # -- for any thread

    def snapshot(self) -> StatsSnapshot:
        """Return all counts, the latest exceptions, the lag, and the record that is being called, as of now."""
        of_minute = self._minute_before(int(clock.wall() // 60))
        place = place_of(self._calling, self._partitions)
        return StatsSnapshot(
            self.received,
            self.processed,
            self.user_exceptions,
            self.system_exceptions,
            *self._latency,
            int(of_minute[0]),
            int(of_minute[1]),
            int(of_minute[2]),
            int(of_minute[3]),
            of_minute[4],
            int(of_minute[5]),
            list(self._user),
            list(self._system),
            self._last_ms,
            {name: [count, total] for name, (count, total) in list(self._metrics.items())},
            {f"{topic}-{number}": lag for (topic, number), lag in self.lag().items()},
            None if place is None else [*place[0], place[1]],
        )
