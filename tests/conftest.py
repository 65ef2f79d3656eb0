"""What all tests share."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from support.examples import ALL_EXAMPLES

from kop import background
from kop.repeats import Repeats

# On a slow machine examples take as long as they take.
settings.register_profile(
    "kop",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100 if ALL_EXAMPLES else 60,
)
settings.load_profile("kop")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background with SIGINT ignored, and processes under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("support.async_tests", "support.pulsar", "support.time_limits")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass by thousands of tests that stay for the whole run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def lines_are_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test made the gateway log keeps no line of the next one back."""
    monkeypatch.setattr(background, "log_lines", Repeats())


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    """Commands that a test runs in this process keep their handlers of SIGINT and SIGTERM to its end, so they would be
    those of all tests that follow.
    """
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
