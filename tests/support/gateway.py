"""A whole gateway on a free port, in this process and loop, and a raw client that can send anything to it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from kop.app import Serving, start
from kop.config import Config
from kop.records.batch import Record, build
from kop.storage.base import PartitionLog, TopicInfo
from kop.wire import codec
from kop.wire.messages import REQUESTS, RESPONSES
from support.bodies import encode_body
from support.waiting import SECONDS

T = TypeVar("T")

FAST = {
    "listen": "127.0.0.1:0",
    "http": "",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "1",
}


def run(main: Coroutine[Any, Any, T], seconds: float = 170) -> T:
    """Run a test's coroutine on uvloop, as the gateway does.

    TimeoutError after so many seconds: the alarm of pytest-timeout does not get through to a test in uvloop.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(main, seconds))


@asynccontextmanager
async def gateway(path: Path, **settings: str) -> AsyncIterator[Serving]:
    """Serve from `path`; settings by Kafka's names with `_` for `.`, over fast ones for tests."""
    chosen = FAST | {"store": f"sqlite:{path / 'kop.db'}"} | {k.replace("_", "."): v for k, v in settings.items()}
    if "listeners" in chosen:
        del chosen["listen"]
    async with AsyncExitStack() as stack:
        serving = await start(Config.load(overrides=chosen, environ={}), stack)
        clients = _clients[id(serving)] = []
        try:
            yield serving
        finally:
            del _clients[id(serving)]
            for client in clients:
                await client.close()


def topic_of(serving: Serving, name: str = "t") -> TopicInfo:
    """A topic that the gateway has."""
    topic = serving.gateway.topics.get(name)
    assert topic is not None, f"the gateway has no topic {name}"
    return topic


def log_of(serving: Serving, name: str = "t", partition: int = 0) -> PartitionLog:
    """The log of a partition that the gateway has."""
    log = serving.gateway.topics.log(topic_of(serving, name).topic_id, partition)
    assert log is not None, f"the topic {name} has no partition {partition}"
    return log


_clients: dict[int, list[RawClient]] = {}
"""Connections to each gateway, closed before it stops."""


class RawClient:
    """One connection that sends what it is told, legal or not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation = 0

    @classmethod
    async def connect(cls, serving: Serving) -> RawClient:
        """Connect to the first listener."""
        client = await cls.open(*serving.listeners[0])
        _clients[id(serving)].append(client)
        return client

    @classmethod
    async def open(cls, host: str, port: int, *, buffer: int = 2**28) -> RawClient:
        """Connect to any address; the caller closes. Of what comes about `buffer` bytes wait to be received."""
        return cls(*await asyncio.open_connection(host, port, limit=buffer))

    async def close(self) -> None:
        """Close the connection; what the gateway does not read is dropped."""
        if self.writer.transport.get_write_buffer_size():
            self.writer.transport.abort()
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    def send(self, api_key: int, version: int, **fields: Any) -> int:
        """Send a request built from a message's fields; returns its correlation id."""
        message = REQUESTS[api_key](version=version, **fields)
        return self.send_body(api_key, version, encode_body(message))

    def send_body(self, api_key: int, version: int, body: bytes) -> int:
        """Send a request with this body."""
        self._correlation += 1
        self.writer.write(frame(api_key, version, self._correlation, body))
        return self._correlation

    async def receive_frame(self, timeout: float = SECONDS) -> bytes:
        """The next frame without its size. IncompleteReadError where the connection was closed."""
        # Not `wait_for`: in Python 3.11 it loses a cancellation that comes at the same time as what it waits for.
        async with asyncio.timeout(timeout):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def receive(self, api_key: int, version: int, timeout: float = SECONDS) -> tuple[int, Any]:
        """The next response: correlation id and message."""
        data = memoryview(await self.receive_frame(timeout))
        (correlation,) = struct.unpack_from(">i", data)
        cls = RESPONSES[api_key]
        pos = 4
        if cls.flexible_version_q(version) and api_key != 18:
            assert data[4] == 0
            pos = 5
        return correlation, codec.decode(cls, version, data, pos)

    async def call(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send, and return the answer's message."""
        wanted = self.send(api_key, version, **fields)
        correlation, message = await self.receive(api_key, version)
        assert correlation == wanted
        return message

    async def closed(self, timeout: float = SECONDS) -> bool:
        """True when the gateway closes the connection without another byte."""
        try:
            async with asyncio.timeout(timeout):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True


def frame(api_key: int, version: int, correlation: int, body: bytes, client_id: str = "raw") -> bytes:
    """A request frame with its size."""
    name = client_id.encode()
    head = struct.pack(">hhih", api_key, version, correlation, len(name)) + name
    if REQUESTS[api_key].flexible_version_q(version):
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def batch(
    values: list[bytes | None], *, keys: list[bytes | None] | None = None, timestamp: int = 1_000, **how: Any
) -> bytes:
    """A record batch with these values, a millisecond apart."""
    keys = keys or [None] * len(values)
    records = [
        Record(index, timestamp + index, key, value, [])
        for index, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    return bytes(build(records, **how))


def produce_fields(
    topic: Any, records: bytes | None, *, version: int, acks: int = -1, partition: int = 0
) -> dict[str, Any]:
    """The fields of a Produce of one batch; `topic` is a name, or an id from version 13 on."""
    request = REQUESTS[0]
    data = request.TopicProduceData
    part = data.PartitionProduceData(version=version, index=partition, records=records)
    named = {"topic_id": topic} if version >= 13 else {"name": topic}
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [data(version=version, partition_data=[part], **named)],
    }


def fetch_fields(
    topic: Any,
    offset: int,
    *,
    version: int,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 2**20,
    partition_max_bytes: int = 2**20,
    partition: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    current_leader_epoch: int = -1,
    isolation_level: int = 0,
) -> dict[str, Any]:
    """The fields of a Fetch of one partition."""
    request = REQUESTS[1]
    part = request.FetchTopic.FetchPartition(
        version=version,
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=partition_max_bytes,
        current_leader_epoch=current_leader_epoch,
    )
    named = {"topic_id": topic} if version >= 13 else {"topic": topic}
    return {
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "isolation_level": isolation_level,
        "topics": [request.FetchTopic(version=version, partitions=[part], **named)],
    }
