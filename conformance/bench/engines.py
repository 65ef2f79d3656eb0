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
from conformance.bench.rows import Engine, Row
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
    native: Native | None = None
    pulsar: Pulsar | None = None

    def can(self, row: Row) -> str:
        """Why a row cannot be measured here; empty where it can."""
        if row.source == "broker-cold" and (self.pulsar is None or not self.pulsar.own):
            return "it restarts the broker, which is not the benchmark's own"
        if row.load.startswith("bare") and self.native is None:
            return "its client is this checkout's in any case"
        return ""

    def round(self, row: Row) -> dict[str, Run]:
        """Each server once, one after the other, and the peer without a gateway where there is one."""
        if row.load == "fetch":
            return self._read(row)
        if row.load.startswith("bare"):
            assert self.native is not None
            return {KOP: self.native.bare(row, self.sizes)}
        found = {server.name: SIMPLE[row.load](server, row, self.sizes) for server in self.servers}
        if self.native is not None and (peer := self.native.peer(row, self.sizes)):
            found["pulsar-client" if row.load == "latency" else PERF] = peer
        return found

    def _read(self, row: Row) -> dict[str, Run]:
        records, times = loads.amount(row.source, self.sizes)
        topics = [loads.fill(server, row, records) for server in self.servers]
        if row.source == "broker-cold":
            assert self.pulsar is not None
            self.pulsar.restart()
        found = {}
        for server, (topic, count) in zip(self.servers, topics, strict=True):
            if row.source != "memory":
                server.restart()
            found[server.name] = loads.fetch(server, topic, count, times)
        if self.native is not None and self.native.perf is not None:
            topic, count = topics[0]
            found[PERF] = self.native.perf.consume(f"{self.servers[0].namespace}/{topic}", count)
        for server, (topic, _) in zip(self.servers, topics, strict=True):
            server.forget(topic)
        return found


@contextmanager
def started(engine: Engine, sizes: Sizes, other: Path | None, peers: bool) -> Iterator[Engines]:
    """The servers of an engine, with those of the checkout `other` beside them, or with their peers. StartFailed."""
    checkouts = {KOP: HERE.parent} | ({OTHER: other} if other else {})
    peers = peers and not other
    with ExitStack() as stack:
        if engine == "embedded":
            servers = [Server(name, Kop(checkout=path, settings=SETTINGS)) for name, path in checkouts.items()]
            found = Engines(sizes, servers)
            if peers:
                servers.append(Server(KAFKA, Kafka()))
        else:
            pulsar = Pulsar(MEM=os.environ.get("MEM", BROKER_MEMORY), KEEP="1")
            urls = stack.enter_context(pulsar)
            rest = Rest(urls[1])
            servers = []
            base = f"public/bench-{os.getpid()}-{int(time.time())}"
            for name, path in checkouts.items():
                namespace = stack.enter_context(_namespace(rest, f"{base}-{name}"))
                gateway = KopOverPulsar(urls, namespace, checkout=path, settings=SETTINGS)
                servers.append(Server(name, gateway, namespace=namespace))
            found = Engines(sizes, servers, pulsar=pulsar)
            if not other:
                namespace = stack.enter_context(_namespace(rest, f"{base}-native"))
                found.native = Native(urls[0], rest, namespace, _perf(urls[0], rest) if peers else None)
        for server in list(servers):
            try:
                server.address = stack.enter_context(server.process)
            except StartFailed as error:
                if server.name != KAFKA:
                    raise
                print(f"{server.name} is left out: {error}", file=sys.stderr)
                servers.remove(server)
        yield found


def _perf(service: str, rest: Rest) -> PulsarPerf | None:
    try:
        return PulsarPerf(service, rest)
    except LoadFailed as error:
        print(f"{PERF} is left out: {error}", file=sys.stderr)
        return None


@contextmanager
def _namespace(rest: Rest, name: str) -> Iterator[str]:
    """A namespace that keeps what it is given. It and that of its gateway go with all that is in them."""
    rest.create_namespace(name)
    try:
        yield name
    finally:
        for namespace in (name, f"{name}-kop"):
            try:
                rest.delete_namespace(namespace)
            except OSError as error:
                print(f"the namespace {namespace} could not be deleted: {error}", file=sys.stderr)
