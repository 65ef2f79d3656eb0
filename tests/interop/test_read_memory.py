"""What a gateway over a real Pulsar has of the machine's memory while clients read what is in no cache."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.child import Child
from support.gateway import RawClient, batch, fetch_fields, produce_fields, run
from support.pulsar import Pulsar, Urls, fresh_namespace
from support.waiting import until

from kop.storage.tail_cache import reads_bytes
from kop.wire.messages import REQUESTS

MIB = 2**20
NEWEST = 12
RECORDS = 500
"""In each of the batches of 500 KB."""
BATCHES = 300
COLD = 150
"""So many of them at least are in no cache."""
MORE = 128 * MIB
CONNECTIONS = 50


@pytest.fixture
def server(pulsar_urls: Urls, tmp_path: Path) -> Iterator[Child]:
    with fresh_namespace(pulsar_urls) as pulsar:
        child = gateway(tmp_path, pulsar)
        try:
            child.start()
            yield child
        finally:
            child.kill()


def gateway(path: Path, pulsar: Pulsar) -> Child:
    store = ["--store", pulsar.service_url, "--admin-url", pulsar.admin_url]
    return Child(
        path,
        store=store,
        kop_pulsar_namespace=pulsar.namespace,
        kop_pulsar_metadata_namespace=f"{pulsar.namespace}-kop",
        kop_cache_bytes=str(64 * MIB),
    )


async def filled(server: Child) -> None:
    client = await RawClient.open("127.0.0.1", server.port)
    row = REQUESTS[19].CreatableTopic(version=5, name="t", num_partitions=1, replication_factor=1)
    assert (await client.call(19, 5, topics=[row], timeout_ms=60_000)).topics[0].error_code == 0
    noise = random.Random(1)
    data = batch([noise.randbytes(1000) for _ in range(RECORDS)], timestamp=int(time.time() * 1000))
    for _ in range(BATCHES):
        answer = await client.call(0, NEWEST, **produce_fields("t", data, version=NEWEST))
        assert answer.responses[0].partition_responses[0].error_code == 0
    await client.close()


async def read_and_leave(server: Child, offset: int) -> None:
    """One Fetch that reads, and one that waits at the end of the log; their client is gone after 50 ms."""
    client = await RawClient.open("127.0.0.1", server.port)
    sizes = {"max_bytes": MIB, "partition_max_bytes": MIB}
    client.send(1, NEWEST, **fetch_fields("t", offset, version=NEWEST, max_wait_ms=500, **sizes))
    client.send(1, NEWEST, **fetch_fields("t", BATCHES * RECORDS, version=NEWEST, max_wait_ms=30_000, **sizes))
    await asyncio.sleep(0.05)  # the case
    client.writer.transport.abort()


def test_fetches_whose_clients_leave_cost_no_more_than_the_budget_and_the_memory_goes_back(server: Child) -> None:
    async def main() -> None:
        await filled(server)
        before = server.memory()
        for apart in 0, 2:  # all from one place, and each from another one
            for _ in range(3):
                offsets = [place * apart * RECORDS % (COLD * RECORDS) for place in range(CONNECTIONS)]
                await asyncio.gather(*(read_and_leave(server, offset) for offset in offsets))
                await asyncio.sleep(0.3)  # what was asked of Pulsar comes
            grown = server.memory("VmHWM") - before
            assert grown < (reads_bytes(64 * MIB) if apart else 0) + MORE
        await until(lambda: server.memory() - before < MORE, seconds=30)

    run(main())
