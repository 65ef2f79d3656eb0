"""Fetches over many partitions of a real Pulsar of which a gateway has attached none yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.pulsar import Urls, fresh_namespace
from support.pulsar_gateway import PulsarGateway
from support.waiting import SECONDS

from kop.storage.pulsar.reading.search import PartitionEnds, PartitionSearch

PARTITIONS = 300


@pytest.fixture
def gateway(pulsar_urls: Urls) -> Iterator[PulsarGateway]:
    with fresh_namespace(pulsar_urls) as pulsar:
        gateway = PulsarGateway(pulsar, num_partitions=str(PARTITIONS))
        gateway.start()
        try:
            yield gateway
        finally:
            gateway.stop()


def consume(gateway: PulsarGateway, wanted: int, seconds: float) -> tuple[set[int], float]:
    """The partitions that gave a record, and after how many seconds the first one did."""
    settings = {"bootstrap.servers": gateway.bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings | {"auto.offset.reset": "error"})
    began = time.monotonic()
    first = 0.0
    seen: set[int] = set()
    try:
        consumer.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])
        while len(seen) < wanted and time.monotonic() - began < seconds:
            for message in consumer.consume(100, timeout=1):
                assert message.error() is None, message.error()
                first = first or time.monotonic() - began
                seen.add(message.partition())
    finally:
        consumer.close()
    return seen, first


@pytest.mark.timeout(240)
def test_records_of_many_cold_partitions_come_as_they_are_found_and_those_that_hang_delay_no_other(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "enable.idempotence": False})
    for partition in range(PARTITIONS):
        producer.produce("t", b"x", partition=partition)
    assert producer.flush(120) == 0
    del producer
    gateway.restart()
    ends = PartitionSearch.ends

    async def hang_or_look(search: PartitionSearch) -> PartitionEnds:
        topic, _, index = search.title.rpartition("-")
        if topic == "t" and int(index) < 100:
            await asyncio.get_running_loop().create_future()
        return await ends(search)

    monkeypatch.setattr(PartitionSearch, "ends", hang_or_look)
    seen, first = consume(gateway, PARTITIONS - 100, SECONDS)
    assert seen == set(range(100, PARTITIONS))
    assert first < 30
