"""What the measurement of transactions under kills counts."""

from __future__ import annotations

import math

from conformance.failover import count, first_behind


def test_the_first_one_behind_a_time_is_told() -> None:
    assert first_behind([1.0, 5.0, 3.0], 2.0) == 1.0
    assert first_behind([1.0, 2.0], 2.0) == math.inf
    assert first_behind([], 2.0) == math.inf


def test_what_lies_between_two_times_is_counted() -> None:
    assert count([1.0, 2.0, 2.5, 3.0], 2.0, 3.0) == 2
    assert count([], 0.0, 1.0) == 0
