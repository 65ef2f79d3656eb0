"""The counts of a mesh's functions, put together from what its tasks tell.

Owns: sums over tasks and batches, rates, the last failures.
Must not know: sockets, Spark.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

SUMS: Final = (
    *("received", "processed", "user_exceptions", "system_exceptions"),
    *("latency_sum_ms", "latency_count"),
)
_LATEST: Final = ("latest_user_exceptions", "latest_system_exceptions")
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
        self._past: deque[tuple[float, dict[str, int]]] = deque()

    def told(self, task: Any, functions: list[Mapping[str, Any]]) -> None:
        """Note the counts that a task has since its beginning."""
        with self._lock:
            self._live[task] = functions

    def over(self, task: Any) -> None:
        """Note that a task has ended."""
        with self._lock:
            for counts in self._live.pop(task, []):
                name = str(counts["function"])
                self._done[name] = _sum(self._done.get(name, {}), counts)

    def functions(self, now: float) -> dict[str, dict[str, Any]]:
        """Return the counts of each function, and the records that it processes a second."""
        with self._lock:
            totals = {name: dict(counts) for name, counts in self._done.items()}
            for told in self._live.values():
                for counts in told:
                    name = str(counts["function"])
                    totals[name] = _sum(totals.get(name, {}), counts)
        self._past.append((now, {name: counts["processed"] for name, counts in totals.items()}))
        while len(self._past) > 2 and self._past[1][0] <= now - RATE_SECONDS:
            self._past.popleft()
        before, processed = self._past[0]
        for name, counts in totals.items():
            seconds = now - before
            counts["rate"] = (counts["processed"] - processed.get(name, 0)) / seconds if seconds > 0 else 0.0
        return totals


def _sum(before: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {name: before.get(name, 0) + other.get(name, 0) for name in SUMS}
    made["last_invocation_ms"] = max(before.get("last_invocation_ms", 0), other.get("last_invocation_ms", 0))
    for name in _LATEST:
        failures = [*before.get(name, ()), *other.get(name, ())]
        made[name] = sorted(failures, key=lambda failure: failure["at_ms"])[-_KEPT_FAILURES:]
    metrics = dict(before.get("user_metrics", {}))
    for name, (count, total) in other.get("user_metrics", {}).items():
        known = metrics.get(name, (0, 0.0))
        metrics[name] = [known[0] + count, known[1] + total]
    made["user_metrics"] = metrics
    return made
