"""Connections to brokers, by what they are for.

Owns: which connection serves whom, made on demand and closed when nothing uses it.
Must not know: topics.

A broker stops reading a whole connection when one topic is throttled, and closes it when one producer is fenced. So
reads, lookups and sends never share a connection, and each lane of producers has its own.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import NamedTuple

from kop import clock
from kop.background import every
from kop.pulsar_client.address import PulsarAddress, parse
from kop.pulsar_client.connection import Connection, connect
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.frames import Frames
from kop.pulsar_client.outage import LOOK_SECONDS, Outage
from kop.pulsar_client.tls import TlsOptions
from kop.pulsar_client.types import Auth

LOOKUP = "lookup"
READ = "read"
SEND = "send"
TRANSACTIONS = "transactions"
WATCH = "watch"

TOGETHER_SECONDS = 0.1
"""The seconds within which lost connections are named in one log line."""

DOUBT_SECONDS = 1.0
"""The seconds after the loss of a connection in which failures count as its consequence."""
PULSE_SECONDS = 2.0
"""The seconds between two looks at each connection for a sign of life; if there was none the broker is asked for
one.
"""
_SILENT_LOOKS = 3
"""The number of looks without a sign of life on all connections to a broker after which an outage begins."""

log = logging.getLogger(__name__)


class BrokerRoute(NamedTuple):
    """The broker of a topic, and the address to connect to: its own, or that of a proxy."""

    address: PulsarAddress
    through: PulsarAddress


class Pool:
    """All connections of one client."""

    def __init__(
        self,
        url: str,
        *,
        auth: Auth | None,
        tls: TlsOptions | None,
        connect_timeout: float,
        keepalive: float,
        idle: float,
        client_version: str,
    ) -> None:
        self.service = parse(url)
        """The addresses in the URL that the client was given."""
        self.tls = self.service[0].tls
        self._auth = auth
        self._options = tls or TlsOptions()
        self._context: ssl.SSLContext | None = None
        self._connect_timeout = connect_timeout
        self._keepalive = keepalive
        self._idle = idle
        self._client_version = client_version
        self._shared = Frames.shared_buffer()
        self._open: dict[tuple[BrokerRoute, str], Connection] = {}
        self._opening: dict[tuple[BrokerRoute, str], asyncio.Task[Connection]] = {}
        self._preferred = clock.chance.randrange(len(self.service))
        self._end_timers: list[Callable[[], None]] = []
        self._closed = False
        self._refused: set[PulsarAddress] = set()
        """The addresses without TLS that a log line has named."""
        self.outage = Outage()
        self._certain: asyncio.TimerHandle | None = None
        self._silent: set[PulsarAddress] = set()
        """The brokers that have given no sign of life on any of their connections."""
        self._lost: list[tuple[str, int, PulsarError]] = []
        """The connections that were lost and that no log line has told of yet: name, number of users, reason."""
        self.proxied = False
        """True if brokers are reached through the service's address, a proxy, according to the last look-up."""

    async def any(self, kind: str) -> Connection:
        """Return a connection for the purpose `kind` to one of the service's addresses: the one that last worked, else
        the next. PulsarError: one that is not retriable at once, else the first of them after every address has failed.
        """
        first: PulsarError | None = None
        begin = self._preferred
        for step in range(len(self.service)):
            tried = (begin + step) % len(self.service)
            address = self.service[tried]
            try:
                connection = await self.get(BrokerRoute(address, address), kind)
            except PulsarError as error:
                if not error.retriable:
                    raise
                first = first or error
                if self._preferred == tried:  # else another caller, who shared the attempt, has gone on already
                    self._preferred = (tried + 1) % len(self.service)
            else:
                self._preferred = tried
                return connection
        assert first is not None
        raise first

    def broker(self, url: str) -> BrokerRoute:
        """Return the route to a broker whose URL another broker named: straight, or through the service's address if
        that is a proxy.

        PulsarError TlsError, and a log line once for each broker, for a route without TLS if the service has it:
        credentials would go there in clear text. A proxy keeps its own connection to the broker, whose address may be
        of either kind.
        """
        address = parse(url)[0]
        broker = BrokerRoute(address, self.service[self._preferred] if self.proxied else address)
        if self.tls and not broker.through.tls:
            text = (
                f"{self.service[self._preferred]} has TLS and names the broker pulsar://{address}, which has not: "
                "it is not connected to, credentials and records would be readable on the way. Let every broker "
                "advertise brokerServiceUrlTls (brokerServicePortTls=6651 in broker.conf)"
            )
            if address not in self._refused:
                self._refused.add(address)
                log.warning("%s", text)
            raise PulsarError("TlsError", text)
        return broker

    async def get(self, broker: BrokerRoute, kind: str) -> Connection:
        """Return the connection to `broker` for the purpose `kind`, and make it if there is none; callers at the same
        time share one attempt. PulsarError if Pulsar refuses it or does not answer, Closed if the client is closed.
        """
        if self._closed:
            raise PulsarError("Closed", "the client is closed")
        key = (broker, kind)
        connection = self._open.get(key)
        if connection is not None:
            connection.idle_since = None
            return connection
        task = self._opening.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(key), name=f"pulsar connect {broker.through}")
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(task)

    def _opened(self, key: tuple[BrokerRoute, str], task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # read the error, so that asyncio does not report it where all callers have gone

    async def _make(self, key: tuple[BrokerRoute, str]) -> Connection:
        broker, kind = key
        if broker.through.tls and self._context is None:
            self._context = await asyncio.to_thread(self._options.context)
        name = f"{broker.address} ({kind})" + ("" if broker.through == broker.address else f" through {broker.through}")

        def make() -> Connection:
            return Connection(
                name,
                auth=self._auth,
                client_version=self._client_version,
                proxy_to=None if broker.through == broker.address else str(broker.address),
                keepalive=self._keepalive,
                shared=self._shared,
                on_closed=lambda connection, error, users: self._forget(key, connection, error, users),
            )

        try:
            connection = await connect(
                make,
                broker.through.host,
                broker.through.port,
                context=self._context if broker.through.tls else None,
                server_hostname=self._options.server_hostname or broker.through.host,
                limit=self._connect_timeout,
            )
        except PulsarError as error:
            self._unanswered(broker.address, error)
            raise
        if self._closed:
            connection.abort(PulsarError("Closed", "the client is closed"))
            raise PulsarError("Closed", "the client is closed")
        if connection.closed:
            raise PulsarError("ConnectionLost", f"{name}: closed right after its first command")
        self._open[key] = connection
        loop = asyncio.get_running_loop()
        self.outage.answers(broker.address, loop.time())
        if not self._end_timers:
            self._end_timers = [
                every(loop, self._idle / 2, "closing connections to brokers that are idle", self._sweep),
                every(loop, PULSE_SECONDS, "the look for silent brokers", self._feel_pulse),
            ]
        log.debug("connected to %s, version %s", name, connection.server_version)
        return connection

    def _forget(self, key: tuple[BrokerRoute, str], connection: Connection, error: PulsarError, users: int) -> None:
        if self._open.get(key) is not connection:
            return
        del self._open[key]
        if error.code == "Closed":
            return
        loop = asyncio.get_running_loop()
        self.outage.lost(others=bool(self._open))
        if self._certain is not None:
            self._certain.cancel()
        self._certain = loop.call_later(DOUBT_SECONDS, self.outage.certain)
        if users and not self.outage.active:  # else that has told it
            self._lost.append((connection.name, users, error))
            if len(self._lost) == 1:
                loop.call_later(TOGETHER_SECONDS, self._tell_lost)

    def _tell_lost(self) -> None:
        lost, self._lost = self._lost, []
        names, users = ", ".join(name for name, _, _ in lost), sum(number for _, number, _ in lost)
        text = "connections to Pulsar are lost" if len(lost) > 1 else "connection to Pulsar is lost"
        log.info("%d %s, with %d producers, readers and watches: %s: %s", len(lost), text, users, names, lost[0][2])

    def _unanswered(self, broker: PulsarAddress, error: PulsarError) -> None:
        """Note that a broker accepts no connection, or is silent on all: an outage may begin, with a log line."""
        standing = {route.address for route, _ in self._open} - self._silent
        if self._closed or broker in standing:
            return
        loop, others = asyncio.get_running_loop(), bool(standing)
        if self.outage.fails(broker, error, loop.time(), others=others):
            log.warning(
                "%s: %s. Requests that need it fail, clients try again; what else fails is counted, and told when "
                "Pulsar answers again. See that the Pulsar brokers run, if this lasts",
                f"the Pulsar broker {broker} does not answer" if others else "no Pulsar broker answers", error,
            )  # fmt: skip
            loop.call_later(LOOK_SECONDS, self._look_at_outage)

    def _look_at_outage(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        over = self.outage.settled(loop.time())
        if over is not None:
            log.info("Pulsar answers again, after %.1f s; %d requests failed meanwhile", *over)
        else:
            loop.call_later(LOOK_SECONDS, self._look_at_outage)

    def _feel_pulse(self) -> None:
        """Look for brokers that answer nothing any more, long before their connections are given up for it: send a ping
        to each connection on which nothing came, and tell the outage which brokers answer and which are silent.
        """
        now = asyncio.get_running_loop().time()
        answering, silent = set(), set()
        for (route, kind), connection in self._open.items():
            if not connection.is_silent(_SILENT_LOOKS):
                answering.add(route.address)
            elif not kind.startswith(SEND):  # a broker reads nothing from a producer that it throttles
                silent.add(route.address)
        self._silent = silent - answering
        for broker in answering:
            self.outage.answers(broker, now)
        for broker in self._silent:
            self._unanswered(broker, PulsarError("Timeout", f"{broker} stands still: it does not answer a ping"))

    def _sweep(self) -> None:
        """Close connections that have had no user for `idle` seconds, except those for look-ups."""
        now = asyncio.get_running_loop().time()
        for (_, kind), connection in list(self._open.items()):
            if kind == LOOKUP or connection.in_use:
                connection.idle_since = None
            elif connection.idle_since is None:
                connection.idle_since = now
            elif now - connection.idle_since >= self._idle:
                connection.abort(PulsarError("Closed", "not in use"))

    async def close(self) -> None:
        """Close all connections; their users get the error Closed."""
        self._closed = True
        for end in self._end_timers:
            end()
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        for connection in list(self._open.values()):
            connection.abort(PulsarError("Closed", "the client is closed"))
        await asyncio.gather(*opening, return_exceptions=True)
