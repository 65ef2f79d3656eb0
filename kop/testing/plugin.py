"""The pytest plugin: fixtures that give a test a running broker. pytest finds it wherever kop is installed.

Owns: the fixtures `kop_broker`, `kop_shared_broker`, `kop_broker_factory`, `kop_cluster` and `kop_functions`, the
marker `kop`, and the part of a failing test's report that says what its brokers have.
Must not know: how a broker runs. It imports nothing that would slow down a test run that uses none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import kop.testing

if TYPE_CHECKING:
    from kop.testing.broker import Broker
    from kop.testing.cluster import Cluster
    from kop.testing.functions import Functions

_BROKERS = pytest.StashKey[list["Broker"]]()
"""The key under which pytest keeps the brokers of a test, or, on the session, those that all tests share."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `kop` with pytest, for runs with --strict-markers."""
    config.addinivalue_line(
        "markers",
        "kop(**settings): settings of the broker of kop_broker, or of kop_cluster, with _ for . in their names",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a section about its brokers to the report of a failed test: topics, groups, last requests."""
    report = yield
    if report.failed and report.when == "call":
        brokers = item.stash.get(_BROKERS, [])
        if "kop_shared_broker" in getattr(item, "fixturenames", ()):
            brokers = [*brokers, *item.session.stash.get(_BROKERS, [])]
        for broker in brokers:
            title = broker.bootstrap if broker.is_running else broker.node_id
            try:
                report.sections.append((f"kop broker {title}", broker.report()))
            except Exception as error:  # the test's own failure is what counts
                report.sections.append((f"kop broker {title}", f"its report failed: {error!r}"))
    return report


@pytest.fixture
def kop_broker_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """Give the test a function that starts brokers with settings of their own: `kop_broker_factory(num_partitions=3)`.
    They stop with the test.
    """
    with ExitStack() as stack:

        def start(**settings: Any) -> Broker:
            broker = stack.enter_context(kop.testing.Broker(**settings))
            request.node.stash.setdefault(_BROKERS, []).append(broker)
            return broker

        yield start


@pytest.fixture
def kop_broker(request: pytest.FixtureRequest, kop_broker_factory: Callable[..., Broker]) -> Broker:
    """Return a running broker of the test alone, empty; with the settings of the marker `kop` if the test has one."""
    return kop_broker_factory(**_settings(request))


@pytest.fixture
def kop_functions(request: pytest.FixtureRequest, kop_broker: Broker) -> Iterator[Functions]:
    """Give the test a function that starts functions on `kop_broker`, each in a thread: `kop_functions(process,
    inputs="a")`.

    They stop with the test, which fails if one of them ended by an error.
    """
    from kop.testing.functions import Functions  # noqa: PLC0415 (it takes the clients along)

    with Functions(kop_broker.bootstrap, request.path.parent) as functions:
        yield functions


@pytest.fixture
def kop_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yield a cluster of the test alone, empty: three brokers, or as many as `brokers` in the marker `kop` says."""
    with kop.testing.Cluster(**_settings(request)) as cluster:
        request.node.stash.setdefault(_BROKERS, []).extend(cluster.brokers)
        yield cluster


@pytest.fixture(scope="session")
def kop_shared_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Yield one running broker for all tests of the run; each test takes topics and groups of its own names."""
    with kop.testing.Broker() as broker:
        request.session.stash[_BROKERS] = [broker]
        yield broker


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker("kop")
    return {} if marker is None else dict(marker.kwargs)
