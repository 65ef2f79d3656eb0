"""The raw client: requests encoded once, sent over plain connections, as a process of its own.

    python -m conformance.bench.raw produce|fetch|commit JSON

JSON holds `address`, `topic` and what the load needs (see the functions). One JSON object on stdout says what was seen:
`requests` and `records` that were acknowledged or read, `bytes` of records, and `seconds` from before the first
connection to the last answer, so that connecting and everything that a server does at first use are inside.
`client_cpu_seconds` is the client's own, with the start of its process.

It costs less than any server that it drives: nothing is encoded per record, answers are read for their error code, and
all requests that may go out are one write.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

import uvloop

from conformance.bench.kafka_frames import (
    CommitRequest,
    FetchRequest,
    ProduceRequest,
    batch,
    find_coordinator,
    init_producer_id,
    producer_of,
)

START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
RETRIABLE = {3, 5, 6, 7, 14, 15, 16, 41, 51, 56}
"""Errors that every client asks again after: what the request names is still being made, loaded or led."""


class LoadFailed(Exception):
    """The server did not take the load; the text says why."""


class Request(Protocol):
    """What a connection sends over and over."""

    def next(self, correlation: int) -> bytes: ...

    def error(self, answer: bytes) -> int: ...


class Connection(asyncio.Protocol):
    """One connection that has `in_flight` requests under way until `until` or until `most` are answered."""

    def __init__(self, in_flight: int, until: float, most: int) -> None:
        self.answered = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight, self._until, self._most = in_flight, until, most
        self._request: Request | None = None
        self._waiter: asyncio.Future[bytes] | None = None
        self._sent = 0
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self.done, self._waiter):
            if future is not None and not future.done():
                future.set_exception(LoadFailed(f"the server closed the connection: {error}"))

    async def ask(self, frame: bytes) -> bytes:
        """One request and its answer, with its length in front."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return await asyncio.wait_for(self._waiter, ANSWER_SECONDS)

    async def ask_until_taken(self, frame: bytes, error: Callable[[bytes], int]) -> bytes:
        """As `ask`, again while the server says that it is not ready for it. LoadFailed for other errors."""
        end = time.perf_counter() + START_SECONDS
        while code := error(answer := await self.ask(frame)):
            if code not in RETRIABLE or time.perf_counter() > end:
                raise LoadFailed(f"a request was answered by error {code}")
            await asyncio.sleep(0.05)
        return answer

    async def first(self, request: Request) -> None:
        """The first request alone, until it is taken."""
        await self.ask_until_taken(request.next(0), request.error)
        self.answered = self._sent = 1

    async def run(self, request: Request) -> None:
        """The first request alone; then as many as there may be."""
        await self.first(request)
        self._request = request
        self._fill()
        await self.done

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        pos = 0
        while len(buffer) - pos >= 4:
            end = pos + 4 + int.from_bytes(buffer[pos : pos + 4], "big")
            if end > len(buffer):
                break
            self._take(bytes(buffer[pos:end]))
            pos = end
        if pos:
            del buffer[:pos]
            if self._request is not None:
                self._fill()

    def _take(self, answer: bytes) -> None:
        if self._request is None:
            assert self._waiter is not None
            self._waiter.set_result(answer)
            return
        if answer[4:8] != struct.pack(">i", self.answered):
            self._fail(f"an answer came out of turn, as number {self.answered}")
        elif code := self._request.error(answer):
            self._fail(f"request {self.answered} was answered by error {code}")
        self.answered += 1

    def _fail(self, why: str) -> None:
        self._most = 0
        if not self.done.done():
            self.done.set_exception(LoadFailed(why))

    def _fill(self) -> None:
        assert self._request is not None
        frames = []
        if time.perf_counter() < self._until:
            for _ in range(min(self._in_flight - self._sent + self.answered, self._most - self._sent)):
                frames.append(self._request.next(self._sent))
                self._sent += 1
        if frames:
            self._transport.write(b"".join(frames))
        elif self._sent == self.answered and not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        self.done.cancel()
        self._transport.close()


async def connect(address: str, in_flight: int, until: float, most: int) -> Connection:
    """A connection to HOST:PORT."""
    host, port = address.rsplit(":", 1)
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(in_flight, until, most), host, int(port)
    )
    return connection


async def produce(
    address: str,
    topic: str,
    seconds: float = 3600,
    requests: int = 2**62,
    records: int = 1,
    record_bytes: int = 1024,
    codec: str = "none",
    idempotent: bool = False,
    connections: int = 1,
    partitions: int = 1,
    batches: int = 1,
    in_flight: int = 1,
) -> dict[str, float]:
    """Send requests of `batches` ready batches of `records` for `seconds`, or `requests` of them.

    `connections` have `in_flight` requests each, and the batches of their requests go to the partitions in turn.
    """
    plain = batch(records, record_bytes, codec)
    began = time.perf_counter()
    until = began + seconds
    opened: list[Connection] = []

    async def produce_on_a_connection(number: int) -> None:
        connection = await connect(address, in_flight, until, requests)
        opened.append(connection)
        content = plain
        if idempotent:
            answer = await connection.ask_until_taken(bytes(init_producer_id()), lambda body: producer_of(body)[0])
            content = batch(records, record_bytes, codec, producer_of(answer)[1:])
        names = sorted((number * batches + i) % partitions for i in range(batches))
        await connection.run(ProduceRequest(topic, names, content))

    await asyncio.gather(*(produce_on_a_connection(i) for i in range(connections)))
    taken = time.perf_counter() - began
    answered = sum(connection.answered for connection in opened)
    for connection in opened:
        connection.close()
    count = answered * batches * records
    return {"requests": answered, "records": count, "bytes": count * record_bytes, "seconds": taken}


async def fetch(address: str, topic: str, records: int, record_bytes: int, times: int = 1) -> dict[str, float]:
    """Read partition 0 from its start to offset `records`, `times` one after another, each over a new connection."""
    began = time.perf_counter()
    requests = 0
    for _ in range(times):
        wanted = FetchRequest(topic, 0, 4 * 2**20)
        connection = await connect(address, 1, 0, 0)
        await connection.first(wanted)
        while wanted.offset < records:
            await connection.ask_until_taken(wanted.next(connection.answered), wanted.error)
            connection.answered += 1
        requests += connection.answered
        connection.close()
    taken = time.perf_counter() - began
    count = records * times
    return {"requests": requests, "records": count, "bytes": count * record_bytes, "seconds": taken}


async def commit(address: str, topic: str, seconds: float, groups: int) -> dict[str, float]:
    """Commit one offset after the other in each of `groups`, each over a connection of its own."""
    began = time.perf_counter()
    opened: list[Connection] = []

    async def commit_in_a_group(number: int) -> None:
        connection = await connect(address, 1, began + seconds, 2**62)
        opened.append(connection)
        group = f"{topic}-{number}"
        await connection.ask(bytes(find_coordinator(group)))
        await connection.run(CommitRequest(group, topic, 0))

    await asyncio.gather(*(commit_in_a_group(i) for i in range(groups)))
    taken = time.perf_counter() - began
    answered = sum(connection.answered for connection in opened)
    for connection in opened:
        connection.close()
    return {"requests": answered, "records": answered, "bytes": 0, "seconds": taken}


def main() -> None:
    """Run one load."""
    what, arguments = sys.argv[1:]
    given: dict[str, Any] = json.loads(arguments)
    loads: dict[str, Callable[..., Coroutine[Any, Any, dict[str, float]]]]
    loads = {"produce": produce, "fetch": fetch, "commit": commit}
    try:
        seen = uvloop.run(loads[what](**given))
        print(json.dumps(seen | {"client_cpu_seconds": time.process_time()}))
    except (LoadFailed, OSError, TimeoutError) as error:
        sys.exit(f"{what} {arguments}: {error or type(error).__name__}")


if __name__ == "__main__":
    main()
