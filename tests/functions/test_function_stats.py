"""What an instance counts, and what of it is of the last whole minute."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from kop import clock
from kop.functions import stats as stats_module
from kop.functions.stats import Stats

PARTITIONS = [("in", 0), ("in", 1)]


class Time:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 6_000.0
        monkeypatch.setattr(clock, "wall", lambda: self.now)
        monkeypatch.setattr(clock, "wall_ms", lambda: int(self.now * 1000))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_a_snapshot_is_plain_json(time: Time) -> None:
    calling = [4, 1, 17]
    stats = Stats(PARTITIONS, calling)
    stats.lag = lambda: {("in", 1): 5}
    stats.took(3)
    stats.called(2, 0.5)
    stats.failed(ValueError("no"), "in-0 offset 7", by_function=True)
    stats.failed(TypeError("serde"), "in-0 offset 8", by_function=False)
    stats.metric("size", 2.0)
    stats.metric("size", 3.0)
    snapshot = stats.snapshot()
    assert json.loads(json.dumps(dataclasses.asdict(snapshot))) == dataclasses.asdict(snapshot)
    assert (snapshot.received, snapshot.processed) == (3, 2)
    assert (snapshot.user_exceptions, snapshot.system_exceptions) == (1, 1)
    assert (snapshot.latency_sum_ms, snapshot.latency_count) == (500, 2)
    assert snapshot.latest_user_exceptions == [{"text": "ValueError: no (at in-0 offset 7)", "at_ms": 6_000_000}]
    assert snapshot.latest_system_exceptions == [{"text": "TypeError: serde (at in-0 offset 8)", "at_ms": 6_000_000}]
    assert snapshot.last_invocation_ms == 6_000_000
    assert snapshot.user_metrics == {"size": [2, 5.0]}
    assert snapshot.lag == {"in-1": 5}
    assert snapshot.at == ["in", 1, 17]
    calling[1] = -1
    assert stats.snapshot().at is None


def test_the_last_whole_minute(time: Time) -> None:
    stats = Stats(PARTITIONS, [0, -1, 0])
    for _ in range(3):  # of one minute
        stats.called(10, 0.01)
        time.now += 10
    assert (stats.snapshot().processed, stats.snapshot().processed_1min) == (30, 0)
    time.now += 30
    assert stats.snapshot().processed_1min == 30
    stats.called(5, 0.01)
    stats.failed(ValueError("no"), "in-0 offset 7", by_function=True)
    assert (stats.snapshot().processed_1min, stats.snapshot().user_exceptions_1min) == (30, 0)
    time.now += 60
    assert (stats.snapshot().processed_1min, stats.snapshot().user_exceptions_1min) == (5, 1)
    time.now += 60
    assert stats.snapshot().processed_1min == 0
    stats.called(1, 0.01)
    assert (stats.snapshot().processed, stats.snapshot().processed_1min) == (36, 0)


def test_what_is_kept_is_bounded(time: Time) -> None:
    stats = Stats(PARTITIONS, [0, -1, 0])
    for number in range(2_000):
        stats.metric(f"m{number}", 1)
        stats.failed(ValueError("x" * 10_000), "in-0 offset 7", by_function=True)
    snapshot = stats.snapshot()
    assert len(snapshot.user_metrics) == stats_module.METRICS
    assert len(snapshot.latest_user_exceptions) == stats_module.LATEST
    text = snapshot.latest_user_exceptions[0]["text"]
    assert len(text) == stats_module.TEXT_CHARACTERS + len(" (at in-0 offset 7)")


def test_the_sum_of_a_metric_stays_a_number_of_json(time: Time) -> None:
    stats = Stats(PARTITIONS, [0, -1, 0])
    for value in (1.7e308, 1.7e308, 1.0):
        stats.metric("large", value)
    told = json.dumps(dataclasses.asdict(stats.snapshot()), allow_nan=False)
    assert json.loads(told)["user_metrics"]["large"] == [3, sys.float_info.max]
