"""The listening sockets, and what all connections share: limits, memory, idle time, draining.

Owns: sockets that listen, the set of connections, what all connections together may use, which of them are closed
where memory is short.
Must not know: what a request means.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import Metric

from kop import allocator, clock
from kop.background import every
from kop.metrics import Metrics, counter_value, gauge_family
from kop.security.certificates import of_der
from kop.security.listener import OPEN, ListenerSecurity
from kop.security.tls import TlsContext
from kop.server.connection import ClientConnection
from kop.server.limits import MOST_HTTP_CONNECTIONS, MemoryBudget, ReadAdmission
from kop.server.peer import describe
from kop.server.request import RequestPipeline
from kop.server.settings import ServerSettings
from kop.server.tls import BUFFER_BYTES, TlsTransport

_RECEIVE_BUFFER = 256 * 1024
_SWEEP_SECONDS = 1.0
_SLOW_SECONDS = 30.0
"""The seconds after which a connection with an incomplete frame or unread answer is closed once half the memory is
used.
"""
_CLOSING_SECONDS = 10.0
"""The seconds that a connection which is being closed may take to send its last answers."""
_LINGER_SECONDS = 0.5
"""The seconds that clients have at the stop to close their side."""
_LINES_A_SECOND = 10
CERTIFICATE_SWEEPS = 5
"""Sweeps from one look at the files of certificates to the next."""
_QUIET_BYTES = 1024 * 1024
_QUIET_SECONDS = 60
"""The seconds without traffic after which the allocator's free memory is given back to the system. A load that comes
again earlier finds the memory of the last one: fresh pages cost a fifth of its CPU.
"""
_GROWN_BYTES = 16 * 1024 * 1024
_BY_CERTIFICATE = "SSL"
"""The word, in audit lines, for a login by a certificate."""
_OTHER_FILES = 64 + 2 * MOST_HTTP_CONNECTIONS
"""The number of open files that connections leave to storage and other parts if the system's limit is low. The HTTP
port has twice as many as it keeps for a moment, while it closes those that are too many.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """The numbers of all connections together, for a status page."""

    connections: int
    bytes_in: int
    """The bytes received from clients since the start."""
    bytes_out: int
    """The bytes handed to clients' sockets since the start."""
    memory_used: int
    """The bytes that requests not yet complete or answered hold."""


class Server:
    """The listeners and connections of the process."""

    def __init__(self, requests: RequestPipeline, metrics: Metrics, settings: ServerSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self._throttling = requests.throttling
        self._quotas_seen = self._throttling.quotas.version
        self.requests = requests
        self.settings = settings
        self.memory = MemoryBudget(self.loop, settings.kop_request_memory_bytes)
        requests.reads = ReadAdmission(self.loop, self.memory)
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BUFFER))
        self.bytes_in = 0
        """The bytes received from clients since the start."""
        self.bytes_out = 0
        self._answered: list[ClientConnection] = []
        """The connections with answers that are ready and not written."""
        self._traffic_seen = 0
        self._metrics = metrics
        self._connections: set[ClientConnection] = set()
        self._by_host: Counter[str] = Counter()
        self._most_files = _most_files()
        self._listeners: list[asyncio.Server] = []
        self._certificates: list[TlsContext] = []
        self._encrypted = memoryview(bytearray(BUFFER_BYTES))
        """Encrypted bytes of any connection, for a moment."""
        self._sweeps = 0
        self._draining = False
        self._quiet_seconds = 0
        self._resident = allocator.resident_bytes()
        """The bytes of memory that the process had after free memory was given back to the system, or the least since
        then.
        """
        self._lines = 0
        self._suppressed = 0
        self._deadlocked = False
        self._looking: asyncio.Handle | None = None
        """The look at logins that comes soon, after a change of users."""
        self._end_sweeps = every(self.loop, _SWEEP_SECONDS, "the sweep of client connections", self.sweep)

    # --- listening

    async def listen(
        self,
        host: str,
        port: int,
        advertised: tuple[str, int] | None = None,
        *,
        shared: bool = False,
        security: ListenerSecurity = OPEN,
    ) -> tuple[str, int]:
        """Listen on an address, `*` for all addresses; return the host and port that were bound (port 0 picks one).
        OSError if it is taken.

        `advertised` is the address that clients are told. With `shared` other processes listen on the same address, and
        the system deals connections out.
        """

        def accepted() -> asyncio.BufferedProtocol:
            connection = ClientConnection(self, advertised, security)
            return connection if security.tls is None else self._with_tls(security.tls, security, connection)

        if security.tls is not None:
            self.watch(security.tls)
        listener = await self.loop.create_server(
            accepted,
            None if host in {"*", ""} else host,
            port,
            backlog=4096,
            reuse_address=True,
            reuse_port=shared or None,
        )
        self._listeners.append(listener)
        for sock in listener.sockets:  # accepted sockets inherit this option
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound = listener.sockets[0].getsockname()
        return bound[0], bound[1]

    def watch(self, tls: TlsContext) -> None:
        """Look at the files of certificates now and every five seconds from now on, to read them again when they have
        changed, and show in metrics for how many days the certificates are valid.
        """
        tls.look()
        self._certificates.append(tls)

    def _with_tls(self, tls: TlsContext, security: ListenerSecurity, connection: ClientConnection) -> TlsTransport:
        subject: str | None = None

        def failed(reason: str, of_certificate: bool) -> None:
            self.bad_frame(connection, reason, "tls")
            if of_certificate:
                info = connection.info
                self.requests.audit.login_failed(info, info.listener, _BY_CERTIFICATE, subject, reason)

        def shown(certificate: bytes) -> None:
            nonlocal subject
            if security.name_of is not None:
                subject = of_der(certificate).subject
                info = connection.info
                info.principal, info.space = security.identified(subject)
                self.requests.logged_in(info.principal)

        return TlsTransport(tls.context, connection, failed, self.loop, self._encrypted, shown)

    # --- what connections report

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def snapshot(self) -> ServerSnapshot:
        """Return the numbers of connections, bytes and memory for a status page."""
        return ServerSnapshot(len(self._connections), self.bytes_in, self.bytes_out, self.memory.used)

    def collect(self) -> Iterable[Metric]:
        """Return metrics for a scrape: the bytes received and sent, the connections of each tenant, and the days for
        which certificates are valid.
        """
        now = self.snapshot()
        return (
            self._days_left(),
            self._of_tenants(),
            counter_value("kop_bytes_in", "Bytes received from clients.", now.bytes_in),
            counter_value("kop_bytes_out", "Bytes handed to clients' sockets.", now.bytes_out),
        )

    def _of_tenants(self) -> Metric:
        family = gauge_family("kop_tenant_connections", "Connections of clients of each tenant.", ["namespace"])
        for name, count in Counter(connection.info.space.name for connection in self._connections).items():
            if name:
                family.add_metric([name], count)
        return family

    def _days_left(self) -> Metric:
        family = gauge_family(
            "kop_tls_certificate_days_left",
            "Days for which a certificate still holds.",
            ["listener", "store", "subject"],
        )
        wall = clock.wall()
        days = {
            (tls.name, stored.store, stored.certificate.subject): stored.certificate.days_left(wall)
            for tls in self._certificates
            for stored in tls.certificates
        }
        for labels, left in days.items():
            family.add_metric(labels, round(left, 2))
        return family

    def admit(self, connection: ClientConnection) -> bool:
        """Count a new connection and return true; return false, so that it is closed, if the server stops or a limit on
        connections is reached, which is logged and counted.
        """
        host = connection.info.client_host
        if self._draining:
            return False
        for limit, used, label, name in (
            (self.settings.max_connections, len(self._connections), "max_connections", "max.connections"),
            (
                self.settings.max_connections_per_ip,
                self._by_host[host],
                "max_connections_per_ip",
                "max.connections.per.ip",
            ),
            (self._most_files, len(self._connections), "open_files", "the system's limit of open files"),
        ):
            if used >= limit:
                self._metrics.connections_refused.labels(label).inc()
                self.log_line("closing a connection of %s: %s (%d) is reached", host, name, limit)
                return False
        self._connections.add(connection)
        self._by_host[host] += 1
        self._metrics.connections_total.inc()
        self._metrics.connections.set(len(self._connections))
        return True

    def held(self, connection: ClientConnection) -> float:
        """Count a new connection against the quota of its address; return the seconds after which it has to be closed
        because the address opens more than that allows, or 0.
        """
        return self._throttling.connected(connection.info.client_host)

    def release(self, connection: ClientConnection) -> None:
        """Stop counting a connection, which is closed."""
        if connection in self._connections:
            self._connections.discard(connection)
            host = connection.info.client_host
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]
            self._metrics.connections.set(len(self._connections))

    def cut_connections(self) -> int:
        """Close all connections at once, as a network failure does, for tests; return their number."""
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        return len(connections)

    def flush_soon(self, connection: ClientConnection) -> None:
        """Write the answers of a connection that are ready in the next turn of the loop: all that become ready in one
        turn, in one go.
        """
        if not self._answered:
            self.loop.call_soon(self._flush)
        self._answered.append(connection)

    def _flush(self) -> None:
        answered, self._answered = self._answered, []
        for connection in answered:
            connection.flush()

    def bad_frame(self, connection: ClientConnection, reason: str, kind: str) -> None:
        """Log a connection that is closed for what it sent, and count it in the metrics: as one of another protocol if
        the reason says so, else under `kind`.
        """
        self._metrics.bad_frames.labels("foreign_protocol" if reason.startswith("this is ") else kind).inc()
        self.log_line("closing the connection of %s: %s", describe(connection.info), reason)

    def log_line(self, text: str, *values: object) -> None:
        """Log a warning about a client's behaviour; of more than ten lines a second the rest is only counted, and their
        number is logged.
        """
        self._lines += 1
        if self._lines <= _LINES_A_SECOND:
            log.warning(text, *values)
        else:
            self._suppressed += 1

    # --- time

    def sweep(self) -> None:
        """Look at the traffic, at certificates and at logins; close connections that are idle, cannot be closed in
        time, or whose peer has gone, and stuck ones if memory is short. Called once a second.
        """
        if self._suppressed:
            log.warning("%d more lines like these in the last second were left out", self._suppressed)
        self._lines = self._suppressed = 0
        self._count_traffic()
        self._sweeps += 1
        if self._sweeps % CERTIFICATE_SWEEPS == 0:
            for certificate in self._certificates:
                certificate.look()
        self._look_at_logins()
        now = self.loop.time()
        quotas = self._throttling.quotas.version
        changed, self._quotas_seen = quotas != self._quotas_seen, quotas
        longest = self.settings.connections_max_idle_ms / 1000
        for connection in list(self._connections):
            connection.settle_unread()
            if changed:
                connection.quotas_changed(quotas)
            if (
                (0 <= longest < now - connection.last_active and not connection.busy)
                or (connection.closing_since and now - connection.closing_since > _CLOSING_SECONDS)
                or connection.gone_unnoticed()
            ):
                connection.abort()
        self._make_room(now)

    def users_changed(self) -> None:
        """Close, in the next turn of the loop, the connections whose users are gone or have another password, or whose
        tokens have ended.
        """
        if self._looking is None:
            self._looking = self.loop.call_soon(self._look_at_logins)

    def _look_at_logins(self) -> None:
        self._looking = None
        for connection in list(self._connections):
            if connection.info.is_valid is not None and not connection.info.is_valid():
                self.log_line(
                    "closing the connection of %s: the user of %r is gone or has another password, or a token ended",
                    describe(connection.info),
                    connection.info.principal,
                )
                connection.abort()

    def _count_traffic(self) -> None:
        """Give free memory back to the system after each minute in which less than 1 MiB a second came and went, if the
        process has grown by 16 MiB since it did so last.

        Clients may have read little of the bytes that were read from storage for them, so their traffic does not tell.
        """
        traffic = self.bytes_in + self.bytes_out - self._traffic_seen
        self._traffic_seen += traffic
        self._quiet_seconds = 0 if traffic > _QUIET_BYTES else self._quiet_seconds + 1
        if self._quiet_seconds and self._quiet_seconds % _QUIET_SECONDS == 0:
            resident = allocator.resident_bytes()
            if resident > self._resident + _GROWN_BYTES:
                allocator.give_back()
                self._resident = allocator.resident_bytes()
            self._resident = min(self._resident, resident)

    def _make_room(self, now: float) -> None:
        """Close connections that hold memory and make no progress, largest first, while memory is short.

        A connection whose request has been incomplete, or whose answers have been unread, for 30 s is closed as soon as
        half of the memory is used.
        """
        if self.memory.used <= self.memory.limit // 2:
            self._deadlocked = False
            return
        holders = [connection for connection in self._connections if connection.charged]
        stuck = [connection for connection in holders if connection.stuck()]  # it compares with the last time
        for connection in holders:
            if connection.frame_since and now - connection.frame_since > _SLOW_SECONDS:
                self._close_slow(connection, "sends a request too slowly")
            elif connection.unread_since and now - connection.unread_since > _SLOW_SECONDS:
                self._close_slow(connection, "reads its answers too slowly")
        enough = self.memory.limit
        waiting = [connection for connection in holders if connection.frame_since and not connection.busy]
        if self._deadlocked and not stuck:
            stuck = waiting
            enough //= 2  # so that those who stay have room to grow
        for connection in sorted(stuck, key=lambda connection: connection.charged, reverse=True):
            if self.memory.used <= enough:
                break
            what = "leaves its answers unread" if connection.unsent else "does not go on with its request"
            self._close_slow(connection, what)
        # Parts of frames that each wait for the others: nobody is to blame, and next time somebody has to go.
        parts = sum([connection.charged for connection in waiting])
        self._deadlocked = self.memory.short and 2 * parts > self.memory.limit

    def _close_slow(self, connection: ClientConnection, what: str) -> None:
        self._metrics.slow_readers.inc()
        held = connection.charged >> 10
        self.log_line(
            "closing the connection of %s: memory is short, it holds %d KiB and %s",
            describe(connection.info),
            held,
            what,
        )
        connection.abort()

    def _busy(self) -> int:
        """Tell all connections to start no more requests; return the number that still have some under way."""
        return sum([not connection.drain() for connection in self._connections])

    async def drain(self, timeout_ms: int) -> None:
        """Stop listening, let requests under way end for `timeout_ms` at most, then close the connections."""
        self._draining = True
        for listener in self._listeners:
            listener.close()
        deadline = self.loop.time() + timeout_ms / 1000
        while self._busy() and self.loop.time() < deadline:  # noqa: ASYNC110 - the sockets' buffers have no event
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.end()
        linger = min(deadline, self.loop.time() + _LINGER_SECONDS)
        while self._connections and self.loop.time() < linger:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
        self._end_sweeps()


def _most_files() -> int:
    """Return the number of connections for which the system's limit on open files leaves room."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else max(soft - _OTHER_FILES, soft // 2)
