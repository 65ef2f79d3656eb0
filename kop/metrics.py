"""The Prometheus collectors that code of several rooms feeds, and the kinds of which rooms make their own.

Owns: names, labels and help texts of these. What one part alone can tell is collected by that part, in its `collect`:
groups, transactions, topics, the engine, the server, work in the background. Counters are fed by the code that does the
work; what can be read off (group states, log sizes, lag) is collected when somebody scrapes. What is counted with
every request is counted in plain numbers (`Count`, `Latencies`), which are collected then, too.
Must not know: who feeds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

_LATENCY_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Count:
    """A counter without a lock: a number that only grows, read at a scrape."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class CountFamily:
    """The counters of one metric, one for each combination of label values."""

    def __init__(self, name: str, documentation: str, labels: list[str]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._counts: dict[tuple[str, ...], Count] = {}

    def of(self, *labels: str) -> Count:
        """Return the counter for these label values; the caller may keep it."""
        return self._counts.setdefault(labels, Count())

    def collect(self) -> Iterable[Metric]:
        """Yield the counters for a scrape."""
        family = counter_family(self._name, self._documentation, self._labels)
        for labels, count in self._counts.items():
            family.add_metric(labels, count.value)
        yield family


class Latencies:
    """A histogram of durations, in plain numbers that are read at a scrape."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(_LATENCY_BUCKETS) + 1)
        """The number of durations in each bucket by itself, not cumulated; the last bucket has no bound."""
        self.seconds = 0.0
        """The sum of all durations."""

    def observe(self, seconds: float) -> None:
        """Count one duration, in seconds."""
        self.counts[bisect_left(_LATENCY_BUCKETS, seconds)] += 1
        self.seconds += seconds


class LatencyFamily:
    """The histograms of durations of one metric, one for each combination of label values."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: list[str],
        latencies: dict[tuple[str, ...], Latencies] | None = None,
    ) -> None:
        """Begin without histograms, or with `latencies`: durations that somebody else counts."""
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._latencies = {} if latencies is None else latencies

    def of(self, *labels: str) -> Latencies:
        """Return the histogram for these label values; the caller may keep it."""
        return self._latencies.setdefault(labels, Latencies())

    def collect(self) -> Iterable[Metric]:
        """Yield the histograms for a scrape."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, latencies in self._latencies.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*map(float, _LATENCY_BUCKETS), "+Inf"), latencies.counts, strict=True):
                total += count
                buckets.append((str(bound), total))
            family.add_metric(labels, buckets, latencies.seconds)
        yield family


class Metrics:
    """The collectors of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        reg = self.registry
        self.requests = CountFamily("kop_requests", "Requests by API and version.", ["api", "version"])
        self.errors = Counter(
            "kop_request_errors",
            "Error codes answered; one count a code and response.",
            ["api", "error"],
            registry=reg,
        )
        self.latency = LatencyFamily(
            "kop_request_latency_seconds",
            "From the arrival of a request to its answer, waits included, by API.",
            ["api"],
        )
        self.produced_bytes = Count()
        self.produced_records = Count()
        self.throttled = Count()
        self.fetched_bytes = Count()
        self._before_scrape: list[Callable[[], None]] = []
        self.collect_with(self._counted)
        self.connections = Gauge("kop_connections", "Open client connections.", registry=reg)
        self.connections_total = Counter("kop_connections_accepted", "Client connections accepted.", registry=reg)
        self.connections_refused = Counter(
            "kop_connections_refused",
            "Connections closed on arrival by a limit.",
            ["limit"],
            registry=reg,
        )
        self.login_failures = Counter(
            "kop_login_failures", "Logins that have failed, by mechanism.", ["mechanism"], registry=reg
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

    def before_scrape(self, count: Callable[[], None]) -> None:
        """Call `count` at the beginning of every scrape: it adds to the counters of this object what was counted
        elsewhere.
        """
        self._before_scrape.append(count)

    def _counted(self) -> Iterable[Metric]:
        for count in self._before_scrape:
            count()
        yield from self.requests.collect()
        yield from self.latency.collect()
        yield counter_value("kop_produced_bytes", "Bytes of record batches accepted.", self.produced_bytes.value)
        yield counter_value("kop_produced_records", "Records accepted.", self.produced_records.value)
        yield counter_value(
            "kop_produce_throttled",
            "Produce answers with a throttle time: the storage holds writes back.",
            self.throttled.value,
        )
        yield counter_value("kop_fetched_bytes", "Bytes of record batches handed out.", self.fetched_bytes.value)

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
    """Return a Prometheus counter without labels whose value somebody else counts, for a scrape."""
    return CounterMetricFamily(name, documentation, value=value)


def gauge_value(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    """Return a Prometheus gauge without labels that has this value, for a scrape."""
    return GaugeMetricFamily(name, documentation, value=value)


def counter_family(name: str, documentation: str, labels: list[str]) -> CounterMetricFamily:
    """Return a Prometheus counter with labels, to be filled at scrape time by `add_metric`."""
    return CounterMetricFamily(name, documentation, labels=labels)


def gauge_family(name: str, documentation: str, labels: list[str]) -> GaugeMetricFamily:
    """Return a gauge to be filled at scrape time with `add_metric(label_values, value)`."""
    return GaugeMetricFamily(name, documentation, labels=labels)


def summary_family(name: str, documentation: str, labels: list[str]) -> SummaryMetricFamily:
    """Return a summary, count and sum, to be filled at scrape time with `add_metric(label_values, count, sum)`."""
    return SummaryMetricFamily(name, documentation, labels=labels)
