"""LogAppendTime and look-ups by time on brokers that count messages and do not say when they took them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from storage.batches import append, attached, batch, make, read_all
from storage.engines import PulsarStore
from support.pulsar import OwnBroker, Urls, fresh_namespace

from kop.pulsar_client import Entry, Position
from kop.pulsar_client.outage import Outage
from kop.records import transcode
from kop.records.batch import read_header
from kop.storage.pulsar.faults import Faults
from kop.storage.pulsar.offsets import mapping

HOUR = 3_600_000
INDEX_ALONE = "brokerEntryMetadataInterceptors=org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor\n"


@pytest.mark.parametrize("offsets", ["index", "packed"])
@pytest.mark.parametrize(("broker_timestamp", "expected"), [(0, 1_234_567), (7_654_321, 7_654_321)])
def test_an_entry_without_the_brokers_time_has_its_producers(
    offsets: str, broker_timestamp: int, expected: int
) -> None:
    data = batch(["a", "b"])
    (made,) = transcode.to_entries(
        data, read_header(data), producer_name="p", sequence_base=0, publish_time=1_234_567, max_size=1 << 20
    )
    entry = Entry(Position(3, 4), 1, broker_timestamp, 2, memoryview(made.metadata), memoryview(made.payload))
    numbers: Any = mapping.offset_mapping(offsets, Faults(lambda: 0.0, Outage()))
    assert numbers.place(entry).append_time == expected


@pytest.fixture
def timeless(pulsar_urls: Urls, tmp_path: Path) -> Iterator[PulsarStore]:
    """A store on a broker that has the interceptor of the index alone."""
    broker = OwnBroker(tmp_path / "broker", settings=INDEX_ALONE)
    try:
        with fresh_namespace(broker.start()) as pulsar:
            yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)
    finally:
        broker.kill()


@pytest.mark.timeout(900)
async def test_times_on_a_broker_that_does_not_tell_them(
    timeless: PulsarStore, caplog: pytest.LogCaptureFixture
) -> None:
    begin = int(time.time() * 1000)
    async with timeless.opened() as engine:
        assert caplog.text.count("AppendBrokerTimestampMetadataInterceptor") == 1
        log = await make(engine, "appended", message_timestamp_type="LogAppendTime")
        await log.attach()
        answers = await asyncio.gather(*(append(log, batch([value], timestamp=5)) for value in ("a", "b")))
        end = int(time.time() * 1000)
        assert all(begin <= appended.log_append_time <= end for appended in answers)
        made = await make(engine, "made")
        await made.attach()
        for number in range(3):
            await append(made, batch([str(number)], timestamp=begin + number))
    async with timeless.opened() as engine:  # from Pulsar, not from memory
        log = await attached(engine, "appended")
        stamps = [record.timestamp for record in await read_all(log)]
        assert stamps == [appended.log_append_time for appended in answers]
        for timestamp, offset in ((stamps[0], 0), (1, 0), (begin, 0)):
            position = await log.find_by_time(timestamp)
            assert position is not None
            assert (position.offset, position.timestamp) == (offset, stamps[0])
        assert await log.find_by_time(end + HOUR) is None
        made = await attached(engine, "made")
        position = await made.find_by_time(begin + 1)
        assert position is not None
        assert (position.offset, position.timestamp) == (1, begin + 1)
