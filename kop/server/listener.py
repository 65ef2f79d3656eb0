"""Listeners and the connections' common ground: limits, shared memory, idle time, draining.

Owns: sockets that listen, the set of connections, what all connections together may use.
Must not know: what a request means.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass

from kop.metrics import Metrics
from kop.server import memory
from kop.server.connection import Connection
from kop.server.dispatch import Dispatcher

_RECEIVE_BUFFER = 256 * 1024
_SWEEP_SECONDS = 1.0
_SLOW_SECONDS = 30.0
"""A frame or an answer that takes longer makes room for others when memory is short."""
_LINES_A_SECOND = 10
_QUIET_BYTES = 1024 * 1024
_QUIET_SECONDS = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may use."""

    request_bytes: int = 104_857_600
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    max_idle_ms: int = 600_000
    """-1: no limit."""
    unread_bytes: int = 16 * 1024 * 1024
    memory_bytes: int = 256 * 1024 * 1024
    """Incomplete frames and unanswered requests of all connections together."""

    @property
    def connection_bytes(self) -> int:
        """Unanswered requests of one connection."""
        return self.memory_bytes // 8


class Server:
    """All listeners and connections of the process."""

    def __init__(self, dispatcher: Dispatcher, metrics: Metrics, limits: Limits) -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatcher = dispatcher
        self.limits = limits
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BUFFER))
        self.frame_memory = 0
        """Bytes held by incomplete frames."""
        self.request_memory = 0
        """Bytes of Produce requests that are not answered yet."""
        self._metrics = metrics
        self._connections: set[Connection] = set()
        self._by_host: Counter[str] = Counter()
        self._listeners: list[asyncio.Server] = []
        self._draining = False
        self._traffic = 0
        self._quiet_seconds = 0
        self._lines = 0
        self._suppressed = 0
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    # --- listening

    async def listen(self, host: str, port: int, advertised: tuple[str, int] | None = None) -> tuple[str, int]:
        """Listen; `*` is every address. Returns the address bound (port 0 picks one). OSError where it is taken."""
        listener = await self.loop.create_server(
            lambda: Connection(self, advertised),
            None if host in {"*", ""} else host,
            port,
            backlog=4096,
            reuse_address=True,
        )
        self._listeners.append(listener)
        bound = listener.sockets[0].getsockname()
        return bound[0], bound[1]

    # --- what connections report

    def admit(self, connection: Connection) -> bool:
        """Count a connection in; False where a limit is reached."""
        host = connection.info.client_host
        if self._draining:
            return False
        for limit, used, name in (
            (self.limits.max_connections, len(self._connections), "max.connections"),
            (self.limits.max_connections_per_ip, self._by_host[host], "max.connections.per.ip"),
        ):
            if used >= limit:
                self._metrics.connections_refused.labels(name).inc()
                self.log_line("closing a connection of %s: %s (%d) is reached", host, name, limit)
                return False
        self._connections.add(connection)
        self._by_host[host] += 1
        self._metrics.connections_total.inc()
        self._metrics.connections.set(len(self._connections))
        return True

    def release(self, connection: Connection, pending_bytes: int) -> None:
        """Count a connection out."""
        self.request_memory -= pending_bytes
        if connection in self._connections:
            self._connections.discard(connection)
            host = connection.info.client_host
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]
            self._metrics.connections.set(len(self._connections))

    def count_in(self, nbytes: int) -> None:
        """Count bytes received."""
        self._traffic += nbytes
        self._metrics.bytes_in.inc(nbytes)

    def count_out(self, nbytes: int) -> None:
        """Count bytes sent."""
        self._traffic += nbytes
        self._metrics.bytes_out.inc(nbytes)

    def memory_is_short(self) -> bool:
        """True when requests under way hold all the memory they may."""
        return self.frame_memory + self.request_memory > self.limits.memory_bytes

    def bad_frame(self, connection: Connection, reason: str) -> None:
        """Log and count a connection that is closed for what it sent."""
        self._metrics.bad_frames.labels("foreign protocol" if reason.startswith("this is ") else "bad frame").inc()
        self.log_line("closing the connection of %s: %s", connection.describe(), reason)

    def log_line(self, text: str, *values: object) -> None:
        """Log what a peer did; ten lines a second at most, the rest are counted."""
        self._lines += 1
        if self._lines <= _LINES_A_SECOND:
            log.warning(text, *values)
        else:
            self._suppressed += 1

    # --- time

    def _sweep(self) -> None:
        """Once a second: close idle connections, and slow ones where memory is short."""
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)
        if self._suppressed:
            log.warning("%d more lines like these in the last second were left out", self._suppressed)
        self._lines = self._suppressed = 0
        self._give_back_when_quiet()
        now = self.loop.time()
        unsent = 0
        for connection in list(self._connections):
            idle_ms = (now - connection.last_active) * 1000
            if 0 <= self.limits.max_idle_ms < idle_ms and not connection.busy:
                connection.abort()
            if connection.unread_since:
                unsent += connection.unsent
        if unsent > self.limits.memory_bytes:
            self._close_slow(now, lambda c: c.unread_since, "leaves its answers unread")
        if self.frame_memory > self.limits.memory_bytes // 2:
            self._close_slow(now, lambda c: c.frame_since, "sends a request too slowly")

    def _give_back_when_quiet(self) -> None:
        """After a while without much traffic, return what the allocator kept from the busy time before."""
        if self._traffic > _QUIET_BYTES:
            self._quiet_seconds = _QUIET_SECONDS
        elif self._quiet_seconds:
            self._quiet_seconds -= 1
            if not self._quiet_seconds:
                memory.give_back()
        self._traffic = 0

    def _close_slow(self, now: float, since: object, what: str) -> None:
        assert callable(since)
        for connection in list(self._connections):
            began = since(connection)
            if began and now - began > _SLOW_SECONDS:
                self._metrics.slow_readers.inc()
                self.log_line("closing the connection of %s: memory is short and it %s", connection.describe(), what)
                connection.abort()

    def _busy(self) -> int:
        """Tell all connections to start nothing new; how many still have something under way."""
        return sum(not connection.drain() for connection in self._connections)

    async def drain(self, timeout_ms: int) -> None:
        """Stop listening, let requests under way end, then close the connections."""
        self._draining = True
        for listener in self._listeners:
            listener.close()
        deadline = self.loop.time() + timeout_ms / 1000
        while self._busy() and self.loop.time() < deadline:  # noqa: ASYNC110 - the sockets' buffers have no event
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.abort()
        self._sweeper.cancel()
