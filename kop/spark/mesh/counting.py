"""The counts of a mesh's functions, put together from what its tasks tell.

Owns: sums over tasks and batches, rates, counts of the last minute, the last failures.
Must not know: sockets, Spark.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from kop import clock

SUMS: Final = (
    *("received", "processed", "user_exceptions", "system_exceptions"),
    *("latency_sum_ms", "latency_count"),
)
_LATEST: Final = ("latest_user_exceptions", "latest_system_exceptions")
_PROCESSED: Final = ""
"""The flow of all records that a function processes, beside those of topics, which have names."""
_KEPT_FAILURES: Final = 10
RATE_SECONDS: Final = 10.0
"""Over which time a rate is taken."""


class Counting:
    """The counts of all functions. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[str, dict[str, Any]] = {}
        """The counts of all tasks that have ended, added up, by function."""
        self._live: dict[Any, list[Mapping[str, Any]]] = {}
        """The counts of each task that runs: a mapping for each of its functions."""
        self._past: deque[tuple[float, dict[str, dict[str, int]]]] = deque()

    def told(self, task: Any, functions: list[Mapping[str, Any]]) -> None:
        """Note the counts that a task has since its beginning, one mapping a function, in place of earlier ones."""
        with self._lock:
            self._live[task] = functions

    def over(self, task: Any) -> None:
        """Note that a task has ended: its last counts stay in the sums. Nothing happens if it has told none."""
        with self._lock:
            for counts in self._live.pop(task, []):
                name = str(counts["function"])
                self._done[name] = _sum(self._done.get(name, {}), counts)

    def functions(self, now: float) -> dict[str, dict[str, Any]]:
        """Return the counts of each function, by its full name, over all tasks since the driver began. Its `rate` is
        the records that it processes a second, its `handed_rates` those that others hand to it, by topic: both since
        the call of this method about 10 s ago, or since the first call, which has 0. `now` is in seconds of the
        monotonic clock.
        """
        with self._lock:
            totals = {name: dict(counts) for name, counts in self._done.items()}
            for told in self._live.values():
                for counts in told:
                    name = str(counts["function"])
                    totals[name] = _sum(totals.get(name, {}), counts) | _calling(totals.get(name, {}), counts)
        self._past.append((now, {name: _flows(counts) for name, counts in totals.items()}))
        while len(self._past) > 2 and self._past[1][0] <= now - RATE_SECONDS:
            self._past.popleft()
        before, processed = self._past[0]
        for name, counts in totals.items():
            seconds, first = now - before, processed.get(name, {})
            rates = {
                flow: (count - first.get(flow, 0)) / seconds if seconds > 0 else 0.0
                for flow, count in _flows(counts).items()
            }
            counts["rate"] = rates.pop(_PROCESSED)
            counts["handed_rates"] = rates
        return totals


class MinuteCounts:
    """The counts of the last whole minute, for counts that are told again and again. For one thread."""

    def __init__(self) -> None:
        self._minutes: dict[str, int] = {}
        """The minute in which each name was told of last."""
        self._began: dict[str, dict[str, float]] = {}
        """The counts of each name when that minute began."""
        self._last: dict[str, dict[str, float]] = {}

    def of(self, name: str, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was counted for `name` in the last whole minute of the clock, each count under its name with
        `_1min` behind it; all are 0 if this was not called for `name` in that minute. `counts` are the sums up to now,
        which are kept if this is the first call of a minute.
        """
        minute = int(clock.wall() // 60)
        now: dict[str, float] = {count: counts.get(count, 0) for count in SUMS}
        zero: dict[str, float] = {count: 0 for count in SUMS}  # noqa: C420 (ints, as they are counted)
        if (before := self._minutes.get(name)) != minute:
            began = self._began.get(name, zero)
            is_next = before is not None and minute == before + 1
            self._last[name] = {count: now[count] - began[count] for count in SUMS} if is_next else zero
            self._began[name] = zero if before is None else now
            self._minutes[name] = minute
        return {f"{count}_1min": value for count, value in self._last[name].items()}


def _flows(counts: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of records of which a function has rates: those that it has processed, and those of each
    topic that other functions have handed to it.
    """
    return {_PROCESSED: counts["processed"], **counts["handed"]}


def _calling(before: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record that a function is called with now, as `at`; empty if it is in no call. `before` has the counts
    of other tasks of the function, whose record goes first, `other` those of one task.
    """
    at = before.get("at") or other.get("at")
    return {"at": at} if at else {}


def _sum(before: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {name: before.get(name, 0) + other.get(name, 0) for name in SUMS}
    made["last_invocation_ms"] = max(before.get("last_invocation_ms", 0), other.get("last_invocation_ms", 0))
    for name in _LATEST:
        failures = [*before.get(name, ()), *other.get(name, ())]
        made[name] = sorted(failures, key=lambda failure: failure["at_ms"])[-_KEPT_FAILURES:]
    made["handed"] = {**before.get("handed", {})}
    for topic, count in other.get("handed", {}).items():
        made["handed"][topic] = made["handed"].get(topic, 0) + count
    metrics = dict(before.get("user_metrics", {}))
    for name, (count, total) in other.get("user_metrics", {}).items():
        known = metrics.get(name, (0, 0.0))
        metrics[name] = [known[0] + count, known[1] + total]
    made["user_metrics"] = metrics
    return made
