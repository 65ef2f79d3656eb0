"""How a row is measured on a server: the loads that its name stands for, and what they cost.

Owns: topics of a run, which load process a row starts, when CPU is read.
Must not know: which servers there are, the table.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from conformance.bench import client
from conformance.bench.figures import Run
from conformance.bench.measure import cpu_seconds, load, settle
from conformance.bench.pulsar_side import PulsarPerf, Rest
from conformance.bench.rows import RECORD_BYTES, Row, Source
from conformance.servers import Kafka, Kop

RATE = 1000
"""Records a second, where latency is measured."""
FILL = Row("fill", "produce")
WARM_UP = (Row("warm-up-small", "produce", batch_bytes=1024, idempotent=True), Row("warm-up-large", "produce"))
MEMORY_RECORDS = 40_000
"""A gateway keeps the newest 50 MiB of a partition: all of it comes from memory."""
MEMORY_TIMES = 10
BEHIND_RECORDS = 200_000
"""Of the writer that a reader is behind."""


@dataclass(frozen=True)
class Sizes:
    """How much a load is."""

    seconds: float
    perf_seconds: float
    """Longer, because its code gets compiled meanwhile and all of the run counts."""
    warm_up_seconds: float
    cold_records: int
    broker_cold_records: int
    """More than the broker's cache holds."""


QUICK = Sizes(seconds=1.5, perf_seconds=5, warm_up_seconds=1, cold_records=120_000, broker_cold_records=130_000)
USUAL = Sizes(seconds=4, perf_seconds=10, warm_up_seconds=10, cold_records=300_000, broker_cold_records=400_000)


@dataclass
class Server:
    """A server that speaks Kafka's protocol, under its name in the table."""

    name: str
    process: Kop | Kafka
    address: str = ""
    namespace: str = ""
    """Where a gateway's topics lie in Pulsar."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def topic(self, row: Row) -> str:
        """A topic for a row that nobody has used."""
        name = f"{row.name}-{next(self.numbers)}"
        client.create(self.address, name, row.partitions)
        return name

    def forget(self, topic: str) -> None:
        """Delete it."""
        client.delete(self.address, topic)

    def restart(self) -> None:
        """A gateway starts again with nothing in memory; a Kafka goes on."""
        if isinstance(self.process, Kop):
            self.process.stop()
            self.process.start()

    def run_with(self, cache_bytes: int | None, sizes: Sizes) -> None:
        """A gateway that has another cache starts again with this one, and is warmed up; a Kafka goes on."""
        if not isinstance(self.process, Kop):
            return
        settings = {} if cache_bytes is None else {"kop.cache.bytes": str(cache_bytes)}
        if self.process.more_settings != settings:
            self.process.more_settings = settings
            self.restart()
            warm_up(self, sizes)

    def timed(self, module: str, *command: object, at_once: bool = False) -> Run:
        """A load, and what this server used while it ran. With `at_once` also what it still had to do, if any."""
        if not at_once:
            settle(self.process.pid)
        before = cpu_seconds(self.process.pid)
        result = load(module, *command)
        return Run(**({"cpu_seconds": cpu_seconds(self.process.pid) - before} | result))


def raw_produce(server: Server, row: Row, topic: str, **limit: float) -> tuple[str, str, str]:
    """The command of the raw client that sends what a row says."""
    spec = {
        "address": server.address,
        "topic": topic,
        "records": row.records,
        "record_bytes": row.record_bytes,
        "codec": row.codec,
        "idempotent": row.idempotent,
        "connections": row.connections,
        "partitions": row.partitions,
        "batches": row.batches,
        "in_flight": row.in_flight,
    }
    return "raw", "produce", json.dumps(spec | limit)


def fill(server: Server, row: Row, records: int) -> tuple[str, int]:
    """A topic with that many records at least, and how many it has."""
    topic = server.topic(row)
    requests = -(-records // FILL.records)
    load(*raw_produce(server, FILL, topic, requests=requests))
    return topic, requests * FILL.records


def warm_up(server: Server, sizes: Sizes) -> None:
    """Small and large batches, so that no figure is of a JVM that has just started or of imports at first use."""
    for row in WARM_UP:
        topic = server.topic(row)
        load(*raw_produce(server, row, topic, seconds=sizes.warm_up_seconds / len(WARM_UP)))
        server.forget(topic)


def produce(server: Server, row: Row, sizes: Sizes) -> Run:
    """The raw client for some seconds, or librdkafka."""
    topic = server.topic(row)
    if row.load == "librdkafka":
        run = server.timed("client", "produce", server.address, topic, sizes.seconds, row.batch_bytes)
    else:
        run = server.timed(*raw_produce(server, row, topic, seconds=sizes.seconds * row.longer))
    server.forget(topic)
    return run


def commit(server: Server, row: Row, sizes: Sizes) -> Run:
    """As many commits as the groups get answered."""
    topic = server.topic(row)
    spec = {"address": server.address, "topic": topic, "seconds": sizes.seconds, "groups": row.groups}
    run = server.timed("raw", "commit", json.dumps(spec))
    server.forget(topic)
    return run


def latency(server: Server, row: Row, sizes: Sizes) -> Run:
    """From the producer's call to the consumer's hands."""
    topic = server.topic(row)
    seconds = sizes.seconds + 2  # two do not count
    run = server.timed("client", "latency", server.address, topic, seconds, RATE)
    server.forget(topic)
    return run


def transactions(server: Server, row: Row, sizes: Sizes) -> Run:
    """librdkafka's transactions, one after another, or the same records with a flush in the place of each commit."""
    topic = server.topic(row)
    run = server.timed("client", row.load, server.address, topic, sizes.seconds, row.transaction_records)
    server.forget(topic)
    return run


def isolation(server: Server, row: Row, sizes: Sizes) -> Run:
    """A topic of committed transactions, read from memory by librdkafka."""
    topic = server.topic(row)
    count = MEMORY_RECORDS // row.transaction_records
    load("client", "transactions", server.address, topic, 3600, row.transaction_records, count - 1)  # and the first one
    records = count * row.transaction_records
    times = max(1, round(MEMORY_TIMES * sizes.seconds / USUAL.seconds))
    run = server.timed("client", "read", server.address, topic, records, row.isolation, times)
    server.forget(topic)
    return run


def behind(server: Server, row: Row) -> tuple[str, Run]:
    """librdkafka reads a topic whose writer has just ended. Returns the topic, too, which stays."""
    topic = server.topic(row)
    written = server.timed("client", "produce", server.address, topic, 3600, row.batch_bytes, BEHIND_RECORDS)
    reading = ("client", "read", server.address, topic, BEHIND_RECORDS, row.isolation, 1, row.partitions)
    return topic, replace(server.timed(*reading, at_once=True), write_seconds=written.seconds)


def fetch(server: Server, topic: str, records: int, times: int) -> Run:
    """The raw client from the start of a topic, so many times."""
    spec = {"address": server.address, "topic": topic, "records": records, "record_bytes": RECORD_BYTES, "times": times}
    return server.timed("raw", "fetch", json.dumps(spec))


def amount(source: Source, sizes: Sizes) -> tuple[int, int]:
    """Records of a topic that is read, and how often."""
    if source == "memory":
        return MEMORY_RECORDS, MEMORY_TIMES
    return sizes.cold_records if source == "gateway-cold" else sizes.broker_cold_records, 1


SIMPLE: dict[str, Callable[[Server, Row, Sizes], Run]] = {
    "produce": produce,
    "librdkafka": produce,
    "commit": commit,
    "latency": latency,
    "transactions": transactions,
    "flushes": transactions,
    "isolation": isolation,
}
"""Loads that ask nothing but a server that speaks Kafka's protocol."""


@dataclass
class Native:
    """What goes to a Pulsar without a gateway: pulsar-perf, the bare client, pulsar-client."""

    service: str
    rest: Rest
    namespace: str
    perf: PulsarPerf | None
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def peer(self, row: Row, sizes: Sizes) -> Run | None:
        """pulsar-perf with the row's batches, or pulsar-client for latencies; None where pulsar-perf is left out."""
        name = f"{self.namespace}/{row.name}-{next(self.numbers)}"
        if row.load == "latency":
            return Run(**load("native", "latency", self.service, self._plain(name), sizes.seconds + 2, RATE))
        if self.perf is None:
            return None
        return self.perf.produce(row, name, sizes.perf_seconds)

    def bare(self, row: Row, sizes: Sizes) -> Run:
        """The bare client in; out is measured on what it has just sent."""
        topic = self._plain(f"{self.namespace}/{row.name}-{next(self.numbers)}")
        sent = load("native", "produce", self.service, topic, sizes.seconds, row.batch_bytes)
        run = Run(**sent)
        if row.load == "bare-out":
            run = Run(**load("native", "consume", self.service, topic, sent["records"]))
        self.rest.call("DELETE", f"{topic.replace('://', '/')}?force=true")
        return run

    def _plain(self, name: str) -> str:
        self.rest.call("PUT", f"persistent/{name}")
        return f"persistent://{name}"
