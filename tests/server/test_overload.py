"""Clients that cost a gateway as much as they can, against one in a process of its own: its memory is measured there.

Each test has a limit of memory far below what the clients ask for, and another client that must not notice.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.bodies import encode_body
from support.child import Child, child
from support.gateway import RawClient, batch, fetch_fields, frame, produce_fields, run
from support.waiting import until, wait_until

from kop.wire.messages import REQUESTS

MIB = 2**20
NEWEST = 12


_open: list[RawClient] = []


def against(server: Child, main: Coroutine[Any, Any, None]) -> None:
    """Run a test; its connections are closed at the end, whatever it was."""

    async def whole() -> None:
        try:
            await main
        finally:
            await close(_open)
            _open.clear()
            await asyncio.sleep(0.01)  # the transports close

    run(whole())


async def connect(server: Child, count: int) -> list[RawClient]:
    clients: list[RawClient] = []
    for _ in range(0, count, 100):
        wanted = min(100, count - len(clients))
        clients += await asyncio.gather(*(RawClient.open("127.0.0.1", server.port) for _ in range(wanted)))
    _open.extend(clients)
    return clients


async def close(clients: list[RawClient]) -> None:
    for client in clients:
        client.writer.transport.abort()
    await asyncio.sleep(0)


async def make_topic(client: RawClient, name: str = "t", partitions: int = 1) -> None:
    row = REQUESTS[19].CreatableTopic(version=5, name=name, num_partitions=partitions, replication_factor=1)
    answer = await client.call(19, 5, topics=[row], timeout_ms=10_000)
    assert answer.topics[0].error_code == 0


async def produce(client: RawClient, value: bytes, partition: int = 0) -> None:
    data = batch([value], timestamp=int(time.time() * 1000))
    fields = produce_fields("t", data, version=NEWEST, partition=partition)
    answer = await client.call(0, NEWEST, **fields)
    assert answer.responses[0].partition_responses[0].error_code == 0


async def fetch(client: RawClient, offset: int = 0) -> Any:
    answer = await client.call(1, NEWEST, **fetch_fields("t", offset, version=NEWEST, partition_max_bytes=1000))
    return answer.responses[0].partitions[0]


async def make_large_topic(client: RawClient) -> dict[str, Any]:
    """A topic with 16 MB of records, and the fields of a Fetch that is answered with all of them."""
    await make_topic(client, partitions=4)
    fields: dict[str, Any] = {}
    for partition in range(4):
        for _ in range(4):
            await produce(client, bytes(1_000_000), partition)
        sizes = {"min_bytes": 16_000_000, "max_bytes": 20 * MIB, "partition_max_bytes": 20 * MIB}
        more = fetch_fields("t", 0, version=NEWEST, max_wait_ms=60_000, partition=partition, **sizes)
        fields = {**more, "topics": fields.get("topics", []) + more["topics"]}
    return fields


SERVED_SECONDS = 1.0
"""How long the others may keep one waiting: of the gateway's own time, not of the machine's that it has to share."""


async def slowest(server: Child, client: RawClient, seconds: float, least: int = 20) -> float:
    """The longest time of an ApiVersions, asked again and again for so long, or what of it the gateway was busy."""
    worst, count, end = 0.0, 0, time.monotonic() + seconds
    while time.monotonic() < end or count < least:
        began, busy = time.monotonic(), server.busy()
        assert (await client.call(18, 0)).error_code == 0
        worst = max(worst, min(time.monotonic() - began, server.busy() - busy))
        count += 1
        await asyncio.sleep(0.005)  # the pace of a client
    return worst


def test_clients_that_stop_reading_cost_no_more_than_the_limit_and_are_closed(tmp_path: Path) -> None:
    async def main(server: Child) -> None:
        (other,) = await connect(server, 1)
        many = await make_large_topic(other)
        before = server.memory()
        request = frame(1, NEWEST, 1, encode_body(REQUESTS[1](version=NEWEST, **many)))
        readers = []
        for _ in range(40):
            reader = socket.create_connection(("127.0.0.1", server.port))
            readers.append(reader)
            reader.sendall(request)
        assert await slowest(server, other, 3) < SERVED_SECONDS
        assert server.memory("VmHWM") - before < 300 * MIB  # 40 answers of 16 MB would be 640
        await fetch(other)
        await produce(other, b"still")
        await until(lambda: "leaves its answers unread" in server.log)
        for reader in readers:
            reader.close()

    with child(tmp_path, kop_request_memory_bytes=str(40 * MIB), kop_cache_bytes=str(4 * MIB)) as server:
        against(server, main(server))
        assert "memory is short" in server.log
        assert "leaves its answers unread" in server.log


STOOD_STILL_SECONDS = 0.9
"""A client that reads nothing between two sweeps of the gateway, which are a second apart, may be closed."""


async def reads_slowly(server: Child, fields: dict[str, Any]) -> bool:
    """A client reads a large answer slowly, and goes on. False where it was closed because this process stood still.

    The socket is read for about four of the client's reads at a time.
    """
    client = await RawClient.open("127.0.0.1", server.port, buffer=4096)
    _open.append(client)
    client.send(1, NEWEST, **fields)
    looks = [time.monotonic()]
    try:
        (size,) = struct.unpack(">i", await client.reader.readexactly(4))
        assert size > 16_000_000
        for _ in range(40):  # for some sweeps it reads less than the socket's buffer has to empty to take more
            looks.append(time.monotonic())
            size -= len(await client.reader.readexactly(64 * 1024))
            await asyncio.sleep(0.1)  # the pace of a slow client
        looks.append(time.monotonic())
        await client.reader.readexactly(size)
        await produce(client, b"next")
    except (asyncio.IncompleteReadError, ConnectionError):
        looks.append(time.monotonic())
        if max(looks[min(index + 4, len(looks) - 1)] - look for index, look in enumerate(looks)) < STOOD_STILL_SECONDS:
            raise
        return False
    return True


def test_a_client_that_reads_slowly_but_reads_gets_all_of_its_answer(tmp_path: Path) -> None:
    async def main(server: Child) -> None:
        (other,) = await connect(server, 1)
        many = await make_large_topic(other)
        while not await reads_slowly(server, many):
            pass

    with child(tmp_path, kop_request_memory_bytes=str(4 * MIB), kop_cache_bytes="0") as server:
        against(server, main(server))


def test_claims_of_100_mb_with_nothing_behind_them_cost_little(tmp_path: Path) -> None:
    async def main(server: Child) -> None:
        (other,) = await connect(server, 1)
        await make_topic(other)
        before = server.memory()
        liars = await connect(server, 600)
        for liar in liars:
            liar.writer.write(struct.pack(">ihhih", 100_000_000, 0, NEWEST, 1, -1))
        assert await slowest(server, other, 1) < SERVED_SECONDS
        await produce(other, bytes(900_000))
        assert server.memory() - before < 100 * MIB

    with child(tmp_path) as server:
        against(server, main(server))


def test_parts_of_huge_frames_cost_no_more_than_the_limit(tmp_path: Path) -> None:
    async def main(server: Child) -> None:
        (other,) = await connect(server, 1)
        await make_topic(other)
        before = server.memory()
        greedy = await connect(server, 12)
        data = struct.pack(">ihhih", 100_000_000, 0, NEWEST, 1, -1) + bytes(20 * MIB)
        for client in greedy:
            client.writer.write(data)
        assert await slowest(server, other, 3) < SERVED_SECONDS
        assert server.memory("VmHWM") - before < 140 * MIB  # 12 times 20 MiB would be 240
        await produce(other, b"goes on")
        await fetch(other)
        await until(lambda: "memory is short" in server.log)

    with child(tmp_path, kop_request_memory_bytes=str(48 * MIB)) as server:
        against(server, main(server))
        assert "memory is short" in server.log


def test_two_thousand_idle_connections_are_cheap_and_the_others_do_not_notice(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2500:
        if hard < 2500:
            pytest.skip(f"the system allows {hard} open files only")
        resource.setrlimit(resource.RLIMIT_NOFILE, (2500, hard))

    async def main(server: Child) -> None:
        (other,) = await connect(server, 1)
        await make_topic(other)
        before = server.memory()
        idle = await connect(server, 2000)
        for client in idle[::2]:
            client.send(18, 0)
        for client in idle[::2]:
            await client.receive(18, 0)
        assert await slowest(server, other, 2) < SERVED_SECONDS
        for number in range(50):
            await produce(other, b"%d" % number)
        assert (await fetch(other)).high_watermark == 50
        assert server.memory() - before < 40 * MIB
        await close(idle)
        await until(lambda: server.open_files() < 1000)
        again = await connect(server, 10)
        assert await slowest(server, again[0], 0.2) < SERVED_SECONDS

    try:
        with child(tmp_path) as server:
            against(server, main(server))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_opened_and_closed_by_the_thousand_leave_nothing(tmp_path: Path) -> None:
    async def main(server: Child) -> None:
        (other,) = await connect(server, 1)
        await close(await connect(server, 200))
        before = server.memory()
        for number in range(10):
            clients = await connect(server, 200)
            for client in clients:
                client.writer.write(b"GET / HTTP/1.1\r\n\r\n" if number % 2 else frame(18, 0, 1, b""))
            await asyncio.sleep(0.02)  # the gateway may read some of it before
            await close(clients)
        assert await slowest(server, other, 0.5) < SERVED_SECONDS
        assert server.memory() - before < 20 * MIB

    began = time.monotonic()
    with child(tmp_path) as server:
        against(server, main(server))
        wait_until(lambda: "more lines like these in the last second were left out" in server.log)
        lines = [line for line in server.log.splitlines() if "HTTP request" in line]
        assert 0 < len(lines) <= 10 * (time.monotonic() - began + 1), "ten a second"


def refused(client: RawClient) -> bool:
    """Whether the gateway has closed the connection."""
    return client.reader.at_eof() or client.reader.exception() is not None


def test_where_the_system_allows_few_files_connections_are_refused_and_storage_goes_on(tmp_path: Path) -> None:
    async def main(server: Child) -> None:
        (other,) = await connect(server, 1)
        await make_topic(other)
        crowd = await connect(server, 400)
        await until(lambda: sum(map(refused, crowd)) >= 400 - 200)
        for number in range(20):
            await produce(other, b"%d" % number)
        assert (await fetch(other)).high_watermark == 20
        await close(crowd)
        await until(lambda: server.open_files() < 100)
        again = await connect(server, 50)
        for client in again:
            assert (await client.call(18, 0)).error_code == 0

    with child(tmp_path, files=256) as server:
        against(server, main(server))
        assert "the system's limit of open files" in server.log


def test_a_flood_of_small_requests_of_one_client_leaves_turns_to_others(tmp_path: Path) -> None:
    async def main(server: Child) -> None:
        flood, other = await connect(server, 2)
        names = [REQUESTS[3].MetadataRequestTopic(version=1, name=f"none-{i}") for i in range(20)]
        body = encode_body(REQUESTS[3](version=1, topics=names))
        burst = b"".join(frame(3, 1, number, body) for number in range(4000))
        flood.writer.write(burst)
        draining = asyncio.ensure_future(flood.reader.read(-1))
        assert await slowest(server, other, 1.5) < SERVED_SECONDS
        draining.cancel()

    with child(tmp_path, auto_create_topics_enable="false") as server:
        against(server, main(server))
