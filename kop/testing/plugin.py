"""The pytest plugin: fixtures that give a test a running broker. pytest finds it wherever kop is installed.

Owns: the fixtures `kop_broker`, `kop_shared_broker` and `kop_broker_factory`, and the marker `kop`.
Must not know: how a broker runs. It imports nothing that would slow down a test run that uses none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import kop.testing

if TYPE_CHECKING:
    from kop.testing.broker import Broker


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, for runs with --strict-markers."""
    config.addinivalue_line(
        "markers", "kop(**settings): settings of the broker of kop_broker, with _ for . in their names"
    )


@pytest.fixture
def kop_broker_factory() -> Iterator[Callable[..., Broker]]:
    """Start brokers with settings of their own: `kop_broker_factory(num_partitions=3)`. They stop with the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Broker:
            return stack.enter_context(kop.testing.Broker(**settings))

        yield start


@pytest.fixture
def kop_broker(request: pytest.FixtureRequest, kop_broker_factory: Callable[..., Broker]) -> Broker:
    """A running broker of the test alone, empty; with the settings of the marker `kop` where the test has one."""
    marker = request.node.get_closest_marker("kop")
    return kop_broker_factory(**({} if marker is None else marker.kwargs))


@pytest.fixture(scope="session")
def kop_shared_broker() -> Iterator[Broker]:
    """One running broker for all tests of the run; each test takes topics and groups of its own names."""
    with kop.testing.Broker() as broker:
        yield broker
