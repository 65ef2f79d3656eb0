"""Every Prometheus collector of the gateway.

Owns: names, labels and help texts. Counters are fed by the code that does the work; what can be read off (group
states, log sizes, lag) is collected when somebody scrapes.
Must not know: who feeds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LATENCY_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The collectors of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        reg = self.registry
        self.requests = Counter("kop_requests", "Requests by API and version.", ["api", "version"], registry=reg)
        self.errors = Counter(
            "kop_request_errors",
            "Error codes answered; one count a code and response.",
            ["api", "error"],
            registry=reg,
        )
        self.latency = Histogram(
            "kop_request_latency_seconds",
            "From the arrival of a request to its answer, waits included, by API.",
            ["api"],
            buckets=_LATENCY_BUCKETS,
            registry=reg,
        )
        self.produced_bytes = Counter("kop_produced_bytes", "Bytes of record batches accepted.", registry=reg)
        self.produced_records = Counter("kop_produced_records", "Records accepted.", registry=reg)
        self.throttled = Counter(
            "kop_produce_throttled",
            "Produce answers with a throttle time: the storage holds writes back.",
            registry=reg,
        )
        self.fetched_bytes = Counter("kop_fetched_bytes", "Bytes of record batches handed out.", registry=reg)
        self.connections = Gauge("kop_connections", "Open client connections.", registry=reg)
        self.connections_total = Counter("kop_connections_accepted", "Client connections accepted.", registry=reg)
        self.connections_refused = Counter(
            "kop_connections_refused",
            "Connections closed on arrival by a limit.",
            ["limit"],
            registry=reg,
        )
        self.bad_frames = Counter(
            "kop_bad_frames", "Connections closed because of what the peer sent, by reason.", ["reason"], registry=reg
        )
        self.slow_readers = Counter(
            "kop_slow_readers_closed",
            "Connections closed for a peer too slow to send or to read, while memory was short.",
            registry=reg,
        )
        self.internal_errors = Counter(
            "kop_internal_errors",
            "Requests that a fault of our own failed; see the log.",
            ["api"],
            registry=reg,
        )
        self.fetch_sessions = Gauge("kop_fetch_sessions", "Incremental fetch sessions kept (KIP-227).", registry=reg)
        self.fetch_sessions_evicted = Counter("kop_fetch_sessions_evicted", "Fetch sessions evicted.", registry=reg)

    def collect_with(self, source: Callable[[], Iterable[Metric]]) -> None:
        """Ask `source` for metric families at every scrape."""
        self.registry.register(_Scrape(source))


class _Scrape(Collector):
    def __init__(self, source: Callable[[], Iterable[Metric]]) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._source()


def counter_value(name: str, documentation: str, value: float) -> CounterMetricFamily:
    """A counter that somebody else counts, as it stands at scrape time."""
    return CounterMetricFamily(name, documentation, value=value)


def counter_family(name: str, documentation: str, labels: list[str]) -> CounterMetricFamily:
    """A counter with labels that is read off at a scrape."""
    return CounterMetricFamily(name, documentation, labels=labels)


def gauge_family(name: str, documentation: str, labels: list[str]) -> GaugeMetricFamily:
    """A gauge to be filled at scrape time with `add_metric(label_values, value)`."""
    return GaugeMetricFamily(name, documentation, labels=labels)
