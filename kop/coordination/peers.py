"""Calls to the other brokers of the cluster, over their Kafka ports, with the requests that Kafka's brokers send.

Owns: the connections to each broker that was called, the time limit of a call, the client id by which a broker is
known.
Must not know: what is asked, and when.

What Kafka's schemas have no field for is in tagged fields of the headers, from the number 10,000 on.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from kop.errors import BackendError, ErrorCode, KopError
from kop.wire import codec
from kop.wire.messages import RESPONSES, Message
from kop.wire.primitives import DecodeError, encode_tags, read_tags

CALL_SECONDS: Final = 10.0
"""The time limit of a call, its connection included."""
LATE_SECONDS: Final = 0.2
"""The seconds without the next answer after which a connection gets no further calls, if there may be another
connection: answers come in order, and one call may wait for storage.
"""
_MOST_CONNECTIONS: Final = 8
"""The most connections to one other broker."""
_LARGEST_ANSWER: Final = 1 << 24
_CLIENT_ID: Final = re.compile(r"kop-broker-(\d+)\Z")


def broker_of(client_id: str | None) -> int | None:
    """Return the id of the broker whose client id this is; None for any other client."""
    match = _CLIENT_ID.match(client_id or "")
    return None if match is None else int(match[1])


Connect: TypeAlias = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a connection to host and port. OSError if that fails, also if the other side does not take the login."""


class PeerAnswer(NamedTuple):
    """The answer of another broker to a call: its body, and the tagged fields of its header."""

    message: Message
    tags: Mapping[int, bytes]
    """The tagged fields of the answer's header, by number."""


class _WaitingCall(NamedTuple):
    """A call to another broker that has no answer yet."""

    answer: asyncio.Future[bytes]
    began: float
    """The time of the event loop at which the call was made."""


class _PeerConnection:
    """A connection to one broker. Calls may overlap; answers come in their order."""

    def __init__(self, address: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, _WaitingCall] = {}
        """The calls without an answer by correlation id, the oldest first."""
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._reading = self._loop.create_task(self._read())
        self._reading.add_done_callback(self._ended)  # also called if the task is cancelled before its first step

    @property
    def lost(self) -> bool:
        """True if no answer can come any more."""
        return self._reading.done()

    @property
    def waiting(self) -> int:
        """The number of calls that wait for their answers."""
        return len(self._waiting)

    @property
    def is_late(self) -> bool:
        """True if the oldest call on this connection has waited for its answer for more than 0.2 s, so that no further
        call should be sent on it.
        """
        oldest = next(iter(self._waiting.values()), None)
        return oldest is not None and self._loop.time() - oldest.began > LATE_SECONDS

    async def call(self, client_id: str, message: Message, header_tags: bytes) -> bytes:
        """Send a request and return the answer without its correlation id. ConnectionError if the connection ends
        before the answer comes.
        """
        if self.lost:
            raise ConnectionError("the connection was lost")
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[number] = _WaitingCall(answer, self._loop.time())
        try:
            self._writer.write(codec.encode_request(number, client_id, message, header_tags))
            return await answer
        finally:
            del self._waiting[number]

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                if not 4 <= size <= _LARGEST_ANSWER:
                    raise ConnectionError(f"an answer of {size} bytes")
                frame = await self._reader.readexactly(size)
                call = self._waiting.get(int.from_bytes(frame[:4], "big"))
                if call is not None and not call.answer.done():
                    call.answer.set_result(frame[4:])
        except (OSError, EOFError):
            pass

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._writer.transport.abort()
        for call in self._waiting.values():
            if not call.answer.done():
                call.answer.set_exception(ConnectionError("the connection was lost"))

    async def close(self) -> None:
        """End the connection; calls under way fail."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading


class Peers:
    """The other brokers of the cluster, which can be called by their ids."""

    def __init__(
        self,
        broker_id: int,
        address: Callable[[int], tuple[str, int] | None],
        connect: Connect = asyncio.open_connection,
    ) -> None:
        """Begin without connections. `address` gives host and port of a live broker, None for one that is not live;
        `connect` opens a connection to such an address and logs in.
        """
        self._connect = connect
        self._client_id = f"kop-broker-{broker_id}"
        self._address = address
        self._connections: dict[int, list[_PeerConnection]] = {}
        self._connecting: dict[int, asyncio.Lock] = {}

    async def call(
        self, broker_id: int, message: Message, tags: Mapping[int, bytes] = MappingProxyType({})
    ) -> PeerAnswer:
        """Send a request whose version is flexible, with the tagged fields of its header, and return the answer.

        KopError with NETWORK_EXCEPTION if the broker is not live or no answer came within 10 s: it is not known if the
        broker has carried the request out. Its connection is closed then.
        """
        address = self._address(broker_id)
        if address is None:
            raise BackendError(f"broker {broker_id} is not live", ErrorCode.NETWORK_EXCEPTION)
        connection: _PeerConnection | None = None
        try:
            async with asyncio.timeout(CALL_SECONDS):
                connection = await self._connected(broker_id, address)
                body = memoryview(await connection.call(self._client_id, message, encode_tags(tags)))
            tags_of_answer, begin = read_tags(body, 0, len(body))
            answer = codec.decode(RESPONSES[message.API_KEY], message.API_VERSION, body, begin)
            return PeerAnswer(answer, tags_of_answer)
        except (OSError, TimeoutError, DecodeError) as error:
            why = str(error) or f"no answer within {CALL_SECONDS:g} s"
        if connection is not None:
            await self._drop(broker_id, connection)
        raise KopError(
            f"broker {broker_id} at {address[0]}:{address[1]} does not answer: {why}", ErrorCode.NETWORK_EXCEPTION
        )

    async def _connected(self, broker_id: int, address: tuple[str, int]) -> _PeerConnection:
        """Return a connection to the broker: one whose answers come in time, if there is one or a new one may be
        made.
        """
        async with self._connecting.setdefault(broker_id, asyncio.Lock()):
            for connection in tuple(self._connections.get(broker_id, ())):
                if connection.address != address or connection.lost:
                    await self._drop(broker_id, connection)
            known = self._connections.setdefault(broker_id, [])
            in_time = next((connection for connection in known if not connection.is_late), None)
            if in_time is not None:
                return in_time
            if len(known) >= _MOST_CONNECTIONS:
                return min(known, key=lambda connection: connection.waiting)
            connection = _PeerConnection(address, *await self._connect(*address))
            known.append(connection)
            return connection

    async def _drop(self, broker_id: int, connection: _PeerConnection) -> None:
        known = self._connections.get(broker_id, [])
        if connection in known:
            known.remove(connection)
            await connection.close()

    async def close(self) -> None:
        """End all connections to other brokers; calls under way fail."""
        for broker_id, known in self._connections.items():
            for connection in tuple(known):
                await self._drop(broker_id, connection)
