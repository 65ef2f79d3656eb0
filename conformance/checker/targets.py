"""The servers that a run is about: somebody's, an embedded gateway, gateways over Apache Pulsar, Apache Kafka.

Owns: how they are started behind links, and which faults each can have.
Must not know: clients, and what is right.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from conformance.checker.links import Links
from conformance.servers import SETTINGS, Kafka, Kop, KopOverPulsar, Pulsar
from conformance.soak.faults import Rest

SERVER_KINDS = ("kill", "terminate", "pause", "cut_clients", "cut_answers", "delay_clients")
PULSAR_KINDS = ("unload_topic", "unload_transactions", "unload_offsets", "unload_pulsar_coordinator", "cut_pulsar")
SEVERAL_KINDS = ("kill_all",)
BROKER_KINDS = ("restart_pulsar",)


class Server(Protocol):
    """A process that can be ended and started again, on the port that it had."""

    @property
    def pid(self) -> int: ...
    @property
    def running(self) -> bool: ...
    @property
    def log(self) -> Path: ...
    def start(self) -> str: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...


@dataclass
class OverPulsar:
    """What faults need to know of the Pulsar behind gateways."""

    pulsar: Pulsar
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


def given(bootstrap: str) -> Target:
    """A server that somebody else started: nothing of it is broken."""
    return Target(bootstrap)


def embedded(stack: ExitStack, folder: Path) -> Target:
    """A gateway of this checkout with the embedded engine."""
    links = stack.enter_context(Links())
    home = folder / "gateway-1"
    home.mkdir()
    port = _free_port()
    address = f"127.0.0.1:{links.add(port)}"
    gateway = Kop(home, settings=SETTINGS | {"advertise": address})
    gateway.address = f"127.0.0.1:{port}"
    stack.enter_context(gateway)
    return Target(address, SERVER_KINDS, [gateway], links, has_tracebacks=True)


def over_pulsar(stack: ExitStack, folder: Path, gateways: int, restart: bool) -> Target:
    """Gateways of this checkout over an Apache Pulsar, in namespaces that nobody has."""
    pulsar = Pulsar(KEEP="1")
    urls = stack.enter_context(pulsar)
    stack.callback(pulsar.copy_log, folder)
    rest = Rest(urls[1])
    namespace = f"public/checker-{secrets.token_hex(4)}"
    cluster = f"{namespace}-kop"
    rest.call("PUT", f"namespaces/{namespace}")
    links = stack.enter_context(Links())
    servers: list[Server] = []
    addresses = []
    for number in range(1, gateways + 1):
        home = folder / f"gateway-{number}"
        home.mkdir()
        port = _free_port()
        address = f"127.0.0.1:{links.add(port)}"
        settings = SETTINGS | {"node.id": str(number), "advertise": address}
        gateway = KopOverPulsar(urls, namespace, cluster, folder=home, settings=settings)
        gateway.address = f"127.0.0.1:{port}"
        stack.enter_context(gateway)
        servers.append(gateway)
        addresses.append(address)
    kinds = SERVER_KINDS + PULSAR_KINDS + (SEVERAL_KINDS if gateways > 1 else ())
    kinds += BROKER_KINDS if restart and pulsar.own else ()
    port_of_pulsar = urlsplit(urls[0]).port
    assert port_of_pulsar is not None
    over = OverPulsar(pulsar, rest, namespace, cluster, port_of_pulsar)
    return Target(",".join(addresses), kinds, servers, links, over, has_tracebacks=True)


def kafka(stack: ExitStack, folder: Path) -> Target:
    """An Apache Kafka of one node, which keeps its data: the control."""
    links = stack.enter_context(Links())
    home = folder / "kafka"
    home.mkdir()
    port = _free_port()
    address = f"127.0.0.1:{links.add(port)}"
    server = Kafka(home, KAFKA_ADVERTISED=address)
    server.address = f"127.0.0.1:{port}"
    stack.enter_context(server)
    return Target(address, SERVER_KINDS, [server], links)


def _free_port() -> int:
    """Below those that the kernel gives to outgoing connections: a server that was killed wants its port again."""
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
