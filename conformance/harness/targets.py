"""The servers that a run is about: somebody's, an embedded gateway, gateways over Apache Pulsar, Apache Kafka.

Owns: how they are started behind links, and which faults each can have.
Must not know: clients, and what is right.
"""

from __future__ import annotations

import argparse
import secrets
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from conformance.harness import tenants as of_tenants
from conformance.harness.faults import Rest, Server
from conformance.harness.kafka_markers import LostMarkers
from conformance.harness.links import Links
from conformance.servers import SETTINGS, Kafka, Kop, KopOverPulsar, Pulsar, StartFailed

SERVER_KINDS = ("kill", "terminate", "pause", "cut_clients", "cut_answers", "delay_clients")
PULSAR_KINDS = ("unload_topic", "unload_transactions", "unload_offsets", "unload_pulsar_coordinator", "cut_pulsar")
SEVERAL_KINDS = ("kill_all",)
BROKER_KINDS = ("restart_pulsar",)


@dataclass
class OverPulsar:
    """What faults need to know of the Pulsar behind gateways."""

    pulsar: Pulsar
    urls: tuple[str, str]
    """Of its service and of its admin REST."""
    rest: Rest
    namespace: str
    cluster: str
    port: int


@dataclass
class Target:
    """What clients connect to, and what can be broken."""

    bootstrap: str
    kinds: tuple[str, ...] = ()
    servers: list[Server] = field(default_factory=list)
    links: Links | None = None
    over: OverPulsar | None = None
    has_tracebacks: bool = False
    """A traceback in the servers' logs is a defect."""
    notes: list[str] = field(default_factory=list)
    """What had to be done for a server that is the control."""


def add_targets(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the options that name what a run is about; return their group."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--bootstrap", metavar="HOST:PORT", help="a server that runs; nothing of it is broken")
    where.add_argument("--start-kop", action="store_true", help="a gateway with the embedded engine (as without this)")
    where.add_argument(
        "--start-kop-pulsar", action="store_true", help="gateways over an Apache Pulsar that it starts (Java, Maven)"
    )
    where.add_argument("--start-kafka", action="store_true", help="an Apache Kafka, as the control (Java, Maven)")
    return where


def start(
    options: argparse.Namespace,
    stack: ExitStack,
    folder: Path,
    *,
    gateways: int = 1,
    restart: bool = False,
    tenants: bool = False,
) -> Target:
    """Start what the options name. `gateways` of them are over Pulsar, which `restart` allows to end; `tenants`: their
    clients log in, and are of two. StartFailed.
    """
    if tenants and (options.bootstrap or options.start_kafka):
        raise StartFailed("--tenants is for gateways that are started here")
    if options.bootstrap:
        return given(options.bootstrap)
    if options.start_kafka:
        return kafka(stack, folder)
    if options.start_kop_pulsar:
        return over_pulsar(stack, folder, gateways, restart, tenants=tenants)
    return embedded(stack, folder, tenants=tenants)


def given(bootstrap: str) -> Target:
    """A server that somebody else started: nothing of it is broken."""
    return Target(bootstrap)


def embedded(stack: ExitStack, folder: Path, *, tenants: bool = False) -> Target:
    """A gateway of this checkout with the embedded engine; `tenants`: its clients log in, and are of two."""
    links = stack.enter_context(Links())
    home = folder / "gateway-1"
    home.mkdir()
    port = free_port()
    address = f"127.0.0.1:{links.add(port)}"
    gateway = Kop(home, settings=SETTINGS | _listener(port, address, tenants))
    gateway.address = f"127.0.0.1:{port}"
    stack.enter_context(gateway)
    return Target(address, SERVER_KINDS, [gateway], links, has_tracebacks=True)


def _listener(port: int, advertised: str, tenants: bool) -> dict[str, str]:
    return of_tenants.settings(f"127.0.0.1:{port}", advertised) if tenants else {"advertise": advertised}


def pulsar(stack: ExitStack, folder: Path, name: str) -> OverPulsar:
    """An Apache Pulsar for gateways, with namespaces that nobody has."""
    server = Pulsar(KEEP="1")
    urls = stack.enter_context(server)
    stack.callback(server.copy_log, folder)
    rest = Rest(urls[1])
    namespace = f"public/{name}-{secrets.token_hex(4)}"
    rest.call("PUT", f"namespaces/{namespace}")
    port = urlsplit(urls[0]).port
    assert port is not None
    return OverPulsar(server, urls, rest, namespace, f"{namespace}-kop", port)


def make_namespaces(over: OverPulsar) -> None:
    """Make those namespaces of tenants that are not there."""
    there = over.rest.call("GET", "namespaces/public")
    for namespace in {of_tenants.namespace_of(tenant) for tenant in of_tenants.TENANTS} - set(there):
        over.rest.call("PUT", f"namespaces/{namespace}")


def gateways(
    over: OverPulsar, stack: ExitStack, folder: Path, count: int, links: Links | None, *, tenants: bool = False
) -> list[KopOverPulsar]:
    """Gateways of this checkout, which tell clients the addresses of links to them if there are such."""
    made = []
    for number in range(1, count + 1):
        home = folder / f"gateway-{number}"
        home.mkdir()
        settings = SETTINGS | {"node.id": str(number)}
        port = free_port()
        if links is not None or tenants:
            settings |= _listener(port, f"127.0.0.1:{links.add(port) if links is not None else port}", tenants)
        gateway = KopOverPulsar(over.urls, over.namespace, over.cluster, folder=home, settings=settings)
        gateway.address = f"127.0.0.1:{port}"
        made.append(gateway)
        stack.enter_context(gateway)
    return made


def over_pulsar(stack: ExitStack, folder: Path, count: int, restart: bool, *, tenants: bool = False) -> Target:
    """Gateways of this checkout over an Apache Pulsar, behind links; `tenants`: clients log in, and are of two."""
    over = pulsar(stack, folder, "checker")
    if tenants:
        make_namespaces(over)
    links = stack.enter_context(Links())
    servers = gateways(over, stack, folder, count, links, tenants=tenants)
    kinds = SERVER_KINDS + PULSAR_KINDS + (SEVERAL_KINDS if count > 1 else ())
    if tenants:
        kinds = tuple(kind for kind in kinds if kind != "unload_topic")  # theirs are in other namespaces
    kinds += BROKER_KINDS if restart and over.pulsar.own else ()
    return Target(",".join(links.addresses), kinds, list(servers), links, over, has_tracebacks=True)


def kafka(stack: ExitStack, folder: Path) -> Target:
    """An Apache Kafka of one node, which keeps its data: the control."""
    links = stack.enter_context(Links())
    home = folder / "kafka"
    home.mkdir()
    port = free_port()
    address = f"127.0.0.1:{links.add(port)}"
    server = Kafka(home, KAFKA_ADVERTISED=address)
    server.address = f"127.0.0.1:{port}"
    stack.enter_context(server)
    notes: list[str] = []
    stack.enter_context(LostMarkers(server.log, f"127.0.0.1:{port}", notes))
    return Target(address, SERVER_KINDS, [server], links, notes=notes)


def free_port() -> int:
    """A port below those of outgoing connections: a server that was killed wants its port again."""
    rng = secrets.SystemRandom()
    while True:
        port = rng.randrange(10_000, 32_000)
        with socket.socket() as taken, socket.socket() as next_one:
            try:
                taken.bind(("127.0.0.1", port))
                next_one.bind(("127.0.0.1", port + 1))  # of Kafka's controller
            except OSError:
                continue
        return port
