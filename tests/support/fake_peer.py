"""A connection without a socket: a transport and a pipeline that do what a test says, and a server around them.

Owns: the fakes, and the rules of order that every start of a request is held against.
Must not know: real requests; a frame here is a header and padding.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kop.errors import FrameError
from kop.handlers.api import Answer, Api, ConnectionInfo, Later
from kop.metrics import Latencies, Metrics
from kop.security.quotas import Quotas
from kop.security.throttling import Throttling
from kop.server.connection import ClientConnection
from kop.server.listener import Server
from kop.server.settings import ServerSettings
from support.settings import settings_of

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, JOIN_GROUP, LEAVE_GROUP = 0, 1, 3, 8, 11, 13
KEYS = {
    "produce": PRODUCE,
    "acks0": PRODUCE,
    "now": METADATA,
    "wait": LEAVE_GROUP,
    "later": OFFSET_COMMIT,
    "poll": FETCH,
    "join": JOIN_GROUP,
}
"""The kinds of requests. `wait` has a future that is cancelled when the connection goes, `later` has none."""
_ACKS0 = 99
"""The version that marks a Produce without an answer."""


TRAITS = {
    PRODUCE: Api(PRODUCE, 0, 99, print, (), encodes=True, overlaps=True),
    FETCH: Api(FETCH, 0, 99, print, (), long_poll=True, reads=lambda call: 0),
    METADATA: Api(METADATA, 0, 99, print, ()),
    OFFSET_COMMIT: Api(OFFSET_COMMIT, 0, 99, print, ()),
    LEAVE_GROUP: Api(LEAVE_GROUP, 0, 99, print, ()),
    JOIN_GROUP: Api(JOIN_GROUP, 0, 99, print, (), long_poll=True),
}
"""What the connection knows of each kind of request; the handler is never called."""


def frame(kind: str, number: int, size: int = 10) -> bytes:
    """A request with its size; `number` is its correlation id."""
    version = _ACKS0 if kind == "acks0" else 1
    head = struct.pack(">hhih", KEYS[kind], version, number, -1)
    return struct.pack(">i", max(size, 10)) + head + bytes(max(0, size - 10))


class FakeTransport(asyncio.Transport):
    """Notes what is written; `reading`, `unsent` and `closed` are what the connection made of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str = "10.0.0.1") -> None:
        super().__init__()
        self.loop = loop
        self.host = host
        self.protocol: ClientConnection | None = None
        self.written: list[bytes] = []
        self.reading = True
        self.unsent = 0
        self.high = 0
        self.closing = False
        self.eof_written = False
        self.lost = False
        self.on_write: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (self.host, 40_000), "sockname": ("127.0.0.1", 9092)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing
        self.written.append(bytes(data))
        if self.on_write is not None:
            self.on_write()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.eof_written = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        assert self.reading
        assert not self.closing
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        assert not self.closing
        self.reading = True

    def abort(self) -> None:
        self._close(None)

    def close(self) -> None:
        self._close(None)

    def fail(self) -> None:
        """The peer resets the connection."""
        self._close(ConnectionResetError())

    def _close(self, error: BaseException | None) -> None:
        if self.closing:
            return
        self.closing = True
        self.loop.call_soon(self._lose, error)

    def _lose(self, error: BaseException | None) -> None:
        assert self.protocol is not None
        self.lost = True
        self.protocol.connection_lost(error)


@dataclass
class FakePipeline:
    """Starts requests, and asserts the rules of order at each start."""

    started: list[int] = field(default_factory=list)
    owned: list[bool] = field(default_factory=list)
    produces: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    silent: dict[int, bool] = field(default_factory=dict)
    of_connection: dict[int, dict[int, tuple[int, asyncio.Future[Any]]]] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    """Those that no cancellation ends, of Produce and OffsetCommit: a connection that is gone takes them no more."""
    bad: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    frames: list[memoryview] = field(default_factory=list)
    keep_frames: bool = False
    on_start: Any = None
    reads: Any = None
    metrics: Metrics = field(default_factory=Metrics)
    throttling: Throttling = field(default_factory=lambda: Throttling(Quotas(), asyncio.get_running_loop().time))
    arrived: float = 0.0
    pace: float = 0.0
    """Seconds that pass between two looks at the clock."""

    def start(self, request: memoryview, conn: ConnectionInfo, *, owned: bool) -> Answer:
        key, version, number, _ = struct.unpack_from(">hhih", request)
        before = self.of_connection.setdefault(id(conn), {})
        waits = {kind for kind, future in before.values() if not future.done()}
        assert waits <= {PRODUCE}, "started behind a request that waits"
        assert key == PRODUCE or not waits, "a request that is no Produce overtook one"
        assert bytes(request[10:]) == bytes(len(request) - 10)
        self.started.append(number)
        self.owned.append(owned)
        if self.keep_frames:
            self.frames.append(request)
        if self.on_start is not None:
            self.on_start(number)
        if number in self.bad:
            raise FrameError(f"request {number} is bad")
        if number in self.broken:
            raise ZeroDivisionError(f"request {number} is broken")
        made = Later() if key == OFFSET_COMMIT else Answer()
        made.started, made.latencies = self.arrived, Latencies()
        if key == METADATA:
            made.give((answer(number),))
            return made
        future = asyncio.get_running_loop().create_future()
        (self.produces if key == PRODUCE else self.waiting)[number] = future
        if key in (PRODUCE, OFFSET_COMMIT):
            self.answers[number] = made
        else:
            made.waiting = future
        before[number] = key, future
        self.silent[number] = version == _ACKS0

        def ended(done: asyncio.Future[Any]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is not None:
                made.refuse(error)
            else:
                made.give(done.result())

        future.add_done_callback(ended)
        return made

    def look_at_clocks(self) -> None:
        return

    def look_at_the_time(self) -> float:
        self.arrived += self.pace
        return self.arrived

    @staticmethod
    def pending(futures: dict[int, asyncio.Future[Any]]) -> list[int]:
        return [number for number, future in futures.items() if not future.done()]

    def complete(self, number: int) -> None:
        future = self.produces.get(number) or self.waiting[number]
        future.set_result(None if self.silent[number] else (answer(number),))

    def api(self, request: memoryview) -> Api:
        return TRAITS[request[1]]

    def check_size(self, start: memoryview, size: int) -> None:
        return


def answer(number: int, size: int = 8) -> bytes:
    """The answer to request `number`."""
    return struct.pack(">ii", size - 4, number) + bytes(size - 8)


class Peer:
    """One connection of a server, and its client's side: bytes go in as far as the connection reads."""

    def __init__(self, server: Server, host: str = "10.0.0.1") -> None:
        self.server = server
        self.transport = FakeTransport(server.loop, host)
        self.connection = ClientConnection(server, None)
        self.transport.protocol = self.connection
        self.kernel = bytearray()
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        """Put bytes into the socket's buffer, and let the connection read what it wants."""
        self.kernel += data
        self.pump()

    def pump(self) -> None:
        """What the event loop does while the socket is readable."""
        transport = self.transport
        while self.kernel and transport.reading and not transport.closing:
            room = self.connection.get_buffer(65536)
            assert len(room), "no room for what arrives"
            count = min(len(room), len(self.kernel))
            room[:count] = self.kernel[:count]
            del room  # else a growing frame could not let go of its memory
            del self.kernel[:count]
            self.connection.buffer_updated(count)

    def eof(self) -> None:
        """The client closes its half."""
        if not self.transport.closing and not self.connection.eof_received():
            self.transport.close()

    @property
    def answered(self) -> list[int]:
        """Correlation ids in the order of the answers."""
        numbers = []
        data = b"".join(self.transport.written)
        pos = 0
        while pos < len(data):
            size, number = struct.unpack_from(">ii", data, pos)
            numbers.append(number)
            pos += 4 + size
        return numbers


def fake_server(requests: FakePipeline | None = None, **settings: Any) -> Server:
    """A server without listeners, on the running loop. Call `close_server` at the end."""
    pipeline = requests or FakePipeline()
    return Server(
        pipeline,  # type: ignore[arg-type]  # FakePipeline has all that a server uses of a pipeline
        pipeline.metrics,
        settings_of(ServerSettings, **settings),
    )


async def close_server(server: Server) -> None:
    """Close its connections and stop its clock."""
    await server.drain(0)
    await settle()


async def settle(rounds: int = 10) -> None:
    """Let the loop run what is ready, and what that makes ready."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def play(main: Callable[[Server, FakePipeline], Coroutine[Any, Any, None]], **limits: Any) -> None:
    """Run a test with a fake server, and look that nothing is left in its account."""

    async def run() -> None:
        fake = FakePipeline()
        server = fake_server(fake, **limits)
        try:
            await main(server, fake)
        finally:
            await close_server(server)
        assert server.memory.used == 0
        assert server.connections == 0
        assert not server.memory.waiting

    asyncio.run(run())


async def finish(peer: Peer, fake: FakePipeline) -> None:
    """End whatever waits, until nothing does."""
    while fake.pending(fake.produces) or fake.pending(fake.waiting) or peer.kernel:
        for number in fake.pending(fake.produces) + fake.pending(fake.waiting):
            fake.complete(number)
        await settle()
        peer.pump()
    await settle()
