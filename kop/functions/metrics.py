"""The metrics of the instances of a worker, under the names that Pulsar's runtime gives them.

Owns: names, labels and help texts. The label `error` of Pulsar's, which grows with every text of an exception, is left
out; the status has these texts.
Must not know: who counts, HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kop.metrics import counter_family, gauge_family, summary_family

Instances = Mapping[tuple[str, int], Mapping[str, Any]]
"""InstanceStatus, as JSON, by name and number."""


def exposition(instances: Instances, cluster: str) -> bytes:
    """Return the metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_InstanceScrape(instances, cluster))
    return generate_latest(registry)


class _InstanceScrape(Collector):
    def __init__(self, instances: Instances, cluster: str) -> None:
        self._instances = instances
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        yield from families(self._instances, self._cluster)


def families(instances: Instances, cluster: str) -> Iterable[Metric]:
    """Return the metrics of these instances; one without statistics has only that it runs, and its restarts."""
    labels = ["tenant", "namespace", "name", "instance_id", "cluster", "fqfn"]
    running = gauge_family("kop_function_running", "1 while an instance runs.", labels)
    restarts = counter_family("kop_function_restarts", "Restarts of an instance.", labels)
    counts = {
        "received": counter_family("pulsar_function_received", "Messages received.", labels),
        "processed": counter_family("pulsar_function_processed_successfully", "Messages processed.", labels),
        "system_exceptions": counter_family("pulsar_function_system_exceptions", "System exceptions.", labels),
        "user_exceptions": counter_family("pulsar_function_user_exceptions", "Exceptions of a function.", labels),
    }
    minute = {
        "received": gauge_family("pulsar_function_received_1min_total", "Received, last minute.", labels),
        "processed": gauge_family("pulsar_function_processed_successfully_1min_total", "Last minute.", labels),
        "system_exceptions": gauge_family(
            "pulsar_function_system_exceptions_1min_total", "System exceptions, last minute.", labels
        ),
        "user_exceptions": gauge_family(
            "pulsar_function_user_exceptions_1min_total", "Exceptions of a function, last minute.", labels
        ),
    }
    latency = summary_family("pulsar_function_process_latency_ms", "Latency of calls.", labels)
    latency_minute = summary_family("pulsar_function_process_latency_ms_1min", "Latency, last minute.", labels)
    last = gauge_family("pulsar_function_last_invocation", "When the function was called last.", labels)
    user = summary_family("pulsar_function_user_metric", "What functions gave to record_metric.", [*labels, "metric"])
    lag = gauge_family("kop_function_lag", "Messages that an instance has before it.", [*labels, "topic", "partition"])
    for (fqfn, number), status in sorted(instances.items()):
        tenant, namespace, name = fqfn.split("/")
        values = [tenant, f"{tenant}/{namespace}", name, str(number), cluster, fqfn]
        running.add_metric(values, int(bool(status["running"])))
        restarts.add_metric(values, status.get("restarts", 0))
        stats = status.get("stats")
        if not stats:
            continue
        for field, family in counts.items():
            family.add_metric(values, stats[field])
        for field, gauge in minute.items():
            gauge.add_metric(values, stats[f"{field}_1min"])
        latency.add_metric(values, stats["latency_count"], stats["latency_sum_ms"])
        latency_minute.add_metric(values, stats["latency_count_1min"], stats["latency_sum_ms_1min"])
        if stats.get("last_invocation_ms"):
            last.add_metric(values, stats["last_invocation_ms"])
        for metric, (count, total) in stats["user_metrics"].items():
            user.add_metric([*values, metric], count, total)
        for partition, messages in stats["lag"].items():
            topic, _, index = partition.rpartition("-")
            lag.add_metric([*values, topic, index], messages)
    return [running, restarts, *counts.values(), *minute.values(), latency, latency_minute, last, user, lag]
