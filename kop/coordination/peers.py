"""Calls to the other brokers of the cluster, over their Kafka ports, with the requests that Kafka's brokers send.

Owns: a connection to each broker that was called, the time limit of a call, the client id by which a broker is known.
Must not know: what is asked, and when.

What Kafka's schemas have no field for is in tagged fields of the answer's header, from the number 10,000 on.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from kop.errors import BackendError, ErrorCode, KopError
from kop.wire import codec
from kop.wire.messages import RESPONSES, Message
from kop.wire.primitives import DecodeError, read_tags

CALL_SECONDS: Final = 10.0
"""The time limit of a call, its connection included."""
_LARGEST_ANSWER: Final = 1 << 24
_CLIENT_ID: Final = re.compile(r"kop-broker-(\d+)\Z")


def broker_of(client_id: str | None) -> int | None:
    """The id of the broker that calls itself so; None for any other client."""
    match = _CLIENT_ID.match(client_id or "")
    return None if match is None else int(match[1])


class PeerAnswer(NamedTuple):
    """The answer of a broker."""

    message: Message
    tags: Mapping[int, bytes]
    """Of its header."""


class _PeerConnection:
    """A connection to one broker. Calls may overlap; answers come in their order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count(1)
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def lost(self) -> bool:
        """Whether no answer can come any more."""
        return self._reading.done()

    async def call(self, client_id: str, message: Message) -> bytes:
        """The answer, behind its correlation id. ConnectionError where the connection ends before it came."""
        if self.lost:
            raise ConnectionError("the connection was lost")
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(codec.encode_request(number, client_id, message))
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                if not 4 <= size <= _LARGEST_ANSWER:
                    raise ConnectionError(f"an answer of {size} bytes")
                frame = await self._reader.readexactly(size)
                answer = self._waiting.get(int.from_bytes(frame[:4], "big"))
                if answer is not None and not answer.done():
                    answer.set_result(frame[4:])
        except (OSError, EOFError):
            pass
        finally:
            self._writer.transport.abort()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the connection was lost"))

    async def close(self) -> None:
        """End the connection; calls under way fail."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading


class Peers:
    """The other brokers, by their ids."""

    def __init__(self, broker_id: int, address: Callable[[int], tuple[str, int] | None]) -> None:
        """`address` gives host and port of a live broker, None for one that is not live."""
        self._client_id = f"kop-broker-{broker_id}"
        self._address = address
        self._connections: dict[int, tuple[tuple[str, int], _PeerConnection]] = {}
        self._connecting: dict[int, asyncio.Lock] = {}

    async def call(self, broker_id: int, message: Message) -> PeerAnswer:
        """Send a request whose version is flexible, and wait for its answer.

        KopError with NETWORK_EXCEPTION where none came: it is not known whether the broker did what it was asked.
        """
        address = self._address(broker_id)
        if address is None:
            raise BackendError(f"broker {broker_id} is not live", ErrorCode.NETWORK_EXCEPTION)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                connection = await self._connected(broker_id, address)
                body = memoryview(await connection.call(self._client_id, message))
            tags, begin = read_tags(body, 0, len(body))
            return PeerAnswer(codec.decode(RESPONSES[message.API_KEY], message.API_VERSION, body, begin), tags)
        except (OSError, TimeoutError, DecodeError) as error:
            why = str(error) or f"no answer within {CALL_SECONDS:g} s"
        await self._drop(broker_id)
        raise KopError(
            f"broker {broker_id} at {address[0]}:{address[1]} does not answer: {why}", ErrorCode.NETWORK_EXCEPTION
        )

    async def _connected(self, broker_id: int, address: tuple[str, int]) -> _PeerConnection:
        async with self._connecting.setdefault(broker_id, asyncio.Lock()):
            known = self._connections.get(broker_id)
            if known is not None:
                if known[0] == address and not known[1].lost:
                    return known[1]
                await self._drop(broker_id)
            reader, writer = await asyncio.open_connection(*address)
            connection = _PeerConnection(reader, writer)
            self._connections[broker_id] = address, connection
            return connection

    async def _drop(self, broker_id: int) -> None:
        known = self._connections.pop(broker_id, None)
        if known is not None:
            await known[1].close()

    async def close(self) -> None:
        """End all connections."""
        for broker_id in list(self._connections):
            await self._drop(broker_id)
