"""The servers of one engine, started for a run: gateways, peers, the Pulsar below them; and a round of a row on them.

Must not know: how a load works, the table.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.bench import loads
from conformance.bench.figures import Run
from conformance.bench.loads import SIMPLE, Native, Server, Sizes
from conformance.bench.measure import LoadFailed
from conformance.bench.pulsar_side import PulsarPerf, Rest
from conformance.bench.rows import Row
from conformance.servers import HERE, Kafka, Kop, KopOverPulsar, Pulsar, StartFailed

KOP, OTHER, KAFKA, PERF = "kop", "other", "Apache Kafka", "pulsar-perf"
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
"""All else as the gateway comes."""
BROKER_MEMORY = "-Xms1g -Xmx2g -XX:MaxDirectMemorySize=1g"


@dataclass
class Engines:
    """What runs while the rows of one engine are measured. The first server is the checkout that this file is in."""

    sizes: Sizes
    servers: list[Server]
    """Gateways."""
    kafka: Server | None = None
    native: Native | None = None
    pulsar: Pulsar | None = None

    def can(self, row: Row) -> str:
        """Why a row cannot be measured here; empty where it can."""
        if row.source == "broker-cold" and (self.pulsar is None or not self.pulsar.own):
            return "it restarts the broker, which is not the benchmark's own"
        if row.load.startswith("bare") and self.native is None:
            return "its client is this checkout's in any case"
        return ""

    def round(self, row: Row, number: int) -> dict[str, Run]:
        """Each server once, and the row's peers where there are any; every second round in the opposite order."""
        if row.load.startswith("bare"):
            assert self.native is not None
            return {KOP: self.native.bare(row, self.sizes)}
        for server in self.servers:
            server.run_with(row.cache_bytes, self.sizes)
        servers = [*self.servers, *([self.kafka] if self.kafka and row.beside_kafka else [])]
        if number % 2 == 0:
            servers.reverse()
        if row.load == "fetch":
            return self._read(row, servers)
        if row.load == "behind":
            return self._behind(row, servers)
        runs = {server.name: SIMPLE[row.load](server, row, self.sizes) for server in servers}
        if self.native is not None and row.beside_perf and (peer := self.native.peer(row, self.sizes)):
            runs["pulsar-client" if row.load == "latency" else PERF] = peer
        return runs

    def _read(self, row: Row, servers: list[Server]) -> dict[str, Run]:
        records, times = loads.amount(row.source, self.sizes)
        filled = {server.name: loads.fill(server, row, records) for server in servers}
        if row.source == "broker-cold":
            assert self.pulsar is not None
            self.pulsar.restart()
        runs = {}
        for server in servers:
            if row.source != "memory":
                server.restart()
            runs[server.name] = loads.fetch(server, *filled[server.name], times)
        if (peer := self._perf_reads(row, *filled[KOP])) is not None:
            runs[PERF] = peer
        for server in servers:
            server.forget(filled[server.name][0])
        return runs

    def _behind(self, row: Row, servers: list[Server]) -> dict[str, Run]:
        topics, runs = {}, {}
        for server in servers:
            topics[server.name], runs[server.name] = loads.behind(server, row)
        if (peer := self._perf_reads(row, topics[KOP], loads.BEHIND_RECORDS)) is not None:
            runs[PERF] = peer
        for server in servers:
            server.forget(topics[server.name])
        return runs

    def _perf_reads(self, row: Row, topic: str, records: int) -> Run | None:
        """What pulsar-perf needs for what a gateway has put into Pulsar; None if it is no peer of the row."""
        if self.native is None or self.native.perf is None or not row.beside_perf:
            return None
        return self.native.perf.consume(f"{self.servers[0].namespace}/{topic}", records)


@contextmanager
def started(rows: list[Row], sizes: Sizes, other: Path | None, peers: bool) -> Iterator[Engines]:
    """The servers of rows of one engine, with those of the checkout `other` beside them, or with their peers.

    StartFailed.
    """
    checkouts = {KOP: HERE.parent} | ({OTHER: other} if other else {})
    peers = peers and not other
    with ExitStack() as stack:
        if rows[0].engine == "embedded":
            servers = [Server(name, Kop(checkout=path, settings=SETTINGS)) for name, path in checkouts.items()]
            engines = Engines(sizes, servers)
        else:
            engines = _over_pulsar(stack, sizes, checkouts, peers)
        for server in engines.servers:
            server.address = stack.enter_context(server.process)
        if peers and any(row.beside_kafka for row in rows):
            engines.kafka = Server(KAFKA, Kafka())
            try:
                engines.kafka.address = stack.enter_context(engines.kafka.process)
            except StartFailed as error:
                print(f"{KAFKA} is left out: {error}", file=sys.stderr)
                engines.kafka = None
        for server in [*engines.servers, *([engines.kafka] if engines.kafka else [])]:
            loads.warm_up(server, sizes)
        yield engines


def _over_pulsar(stack: ExitStack, sizes: Sizes, checkouts: dict[str, Path], peers: bool) -> Engines:
    """A Pulsar that runs, and gateways over it that do not run yet, each in a namespace of its own."""
    pulsar = Pulsar(MEM=os.environ.get("MEM", BROKER_MEMORY), KEEP="1")
    urls = stack.enter_context(pulsar)
    rest = Rest(urls[1])
    base = f"public/bench-{os.getpid()}-{int(time.time())}"
    servers = []
    for name, path in checkouts.items():
        namespace, cluster = f"{base}-{name}", f"{base}-{name}-cluster"
        stack.enter_context(_namespace(rest, namespace))
        stack.enter_context(_namespace(rest, cluster))
        gateway = KopOverPulsar(urls, namespace, cluster, checkout=path, settings=SETTINGS)
        servers.append(Server(name, gateway, namespace=namespace))
    native = None
    if len(checkouts) == 1:
        namespace = stack.enter_context(_namespace(rest, f"{base}-native"))
        native = Native(urls[0], rest, namespace, _perf(urls[0], rest) if peers else None)
    return Engines(sizes, servers, native=native, pulsar=pulsar)


def _perf(service: str, rest: Rest) -> PulsarPerf | None:
    try:
        return PulsarPerf(service, rest)
    except LoadFailed as error:
        print(f"{PERF} is left out: {error}", file=sys.stderr)
        return None


@contextmanager
def _namespace(rest: Rest, name: str) -> Iterator[str]:
    """A namespace that keeps what it is given; it goes with all that is in it."""
    rest.create_namespace(name)
    try:
        yield name
    finally:
        try:
            rest.delete_namespace(name)
        except OSError as error:
            print(f"the namespace {name} could not be deleted: {error}", file=sys.stderr)
