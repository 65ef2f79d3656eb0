"""Entries that no Kafka client can get: an error at their offsets, and the log goes on behind them."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator

import pytest
from storage.batches import attached, batch, read_values, records
from storage.engines import PulsarStore
from storage.fake_pulsar_client import STAMP, Broker, FakeEngine, settle
from support.pulsar import Urls, fresh_namespace
from support.waiting import until

from kop.errors import ErrorCode
from kop.pulsar_client import Entry, Position
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.packed import pack
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records.batch import read_header
from kop.storage.pulsar.faults import Faults
from kop.storage.pulsar.offsets import mapping
from kop.storage.pulsar.reading.batches import Converter, UnreadableEntryError

UNREADABLE = "entries_unreadable/not_decoded"
MIB = 1 << 20


def metadata(sequence_id: int = 0) -> bytes:
    return pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1).SerializeToString()


def chunk_metadata(uuid: str, number: int, chunks: int, size: int) -> bytes:
    """Of a chunk of a message that has `size` bytes."""
    return pb.MessageMetadata(
        producer_name="p",
        sequence_id=number,
        publish_time=1,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=chunks,
        total_chunk_msg_size=size,
    ).SerializeToString()


NO_MESSAGES = metadata() + b"\x58\x00"
"""num_messages_in_batch is 0: a broker stores it and hands it out."""
NO_METADATA = metadata() + b"\x00\x01"
"""A field with the number 0: a broker does not mind, a parser does."""


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


@pytest.mark.parametrize("offsets", ["index", "packed"])
async def test_metadata_that_does_not_parse_is_one_unreadable_entry(
    offsets: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker()
    broker.foreign()
    log = FakeEngine(broker, offsets).log()
    await log.attach()
    bad = broker.put(b"\xff" * 12, b"", 2, 2)
    broker.foreign()
    broker.tail.deliver()
    assert log.attached
    assert log.context.faults.counts[UNREADABLE] == 1
    assert f"entry {bad.ledger}:{bad.entry}" in caplog.text
    first = 3 if offsets == "index" else pack(bad)
    assert log.high_watermark == (8 if offsets == "index" else pack(broker.position) + 3)
    for offset in (first, first + 1):
        reading = asyncio.ensure_future(log.read(offset, 1000, min_one=True))
        await settle()
        broker.tail.deliver()
        with pytest.raises(UnreadableEntryError) as refused:
            await reading
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        assert refused.value.next_offset == first + 2
    behind = log.read_cached(first + 2 if offsets == "index" else pack(broker.position), 1000, min_one=True)
    assert behind is not None
    assert len(records(behind.buffers)) == 3
    await log.close()


@pytest.mark.parametrize("bad", [NO_MESSAGES, NO_METADATA], ids=["no messages", "no metadata"])
async def test_a_partition_of_a_real_pulsar_goes_on_behind_such_an_entry(bad: bytes, pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        await engine.topics.create("t", 1, {})
        log = await attached(engine)
        producer = await engine.client.open_producer(log.partition_name, name="p")
        for sequence, (data, payload) in enumerate([(metadata(0), b"a"), (bad, b"b"), (metadata(2), b"c")]):
            await producer.send(data, payload, sequence_id=sequence, highest_sequence_id=sequence, num_messages=1)
        await producer.close()
        await until(lambda: log.high_watermark == 3)
        result = log.read_cached(2, 1000, min_one=True)
        assert result is not None
        assert [record.value for record in records(result.buffers)] == [b"c"]
    async with pulsar_store.opened() as engine:  # and from storage
        log = await attached(engine)
        first = await log.read(0, 1000, min_one=True)
        assert [record.value for record in records(first.buffers)] == [b"a"]
        with pytest.raises(UnreadableEntryError) as refused:
            await log.read(1, 1000, min_one=True)
        assert refused.value.next_offset == 2
        last = await log.read(2, 1000, min_one=True)
        assert [record.value for record in records(last.buffers)] == [b"c"]
        by_time = await log.max_timestamp()
        assert by_time is not None, "what looks for times passes it"
        appended = batch(["d"])
        assert (await log.append(appended, read_header(appended), now_ms=0)).base_offset == 3


# --- chunked messages


class Chunked:
    """Chunks of messages, fed to a converter."""

    def __init__(self, largest: int) -> None:
        self.faults = Faults(lambda: 0.0, Outage())
        self.converter = Converter(
            "t-0",
            0,
            mapping.offset_mapping("index", self.faults),
            append_time=False,
            count=self.faults.count,
            max_message_bytes=largest,
        )
        self.index = -1

    def feed(self, chunks: int, size: int, *, total: int | None = None, uuid: str = "u") -> list[tuple[int, int]]:
        """Feed a message of `chunks` chunks of `size` bytes. First and last offset of each error."""
        payload = memoryview(bytes(size))
        errors = []
        for number in range(chunks):
            self.index += 1
            about = chunk_metadata(uuid, number, chunks, chunks * size if total is None else total)
            entry = Entry(Position(7, self.index), self.index, STAMP, 1, memoryview(about), payload)
            for made in self.converter.feed(self.converter.mapping.place(entry)):
                if made.error is not None:
                    errors.append((made.base, made.last))
        return errors


def test_a_chunked_message_beyond_the_limit_is_not_put_together() -> None:
    chunked = Chunked(64 * MIB)
    tracemalloc.start()
    try:
        errors = chunked.feed(80, 5 * MIB)  # 400 MiB
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert errors == [(79, 79)]
    assert peak < 8 * MIB, f"{peak / MIB:.0f} MiB"
    assert chunked.faults.counts[UNREADABLE] == 1
    assert chunked.feed(2, 1000) == [], "the log goes on"


def test_a_chunked_message_within_the_limit_is_held_twice_at_the_most() -> None:
    chunked = Chunked(64 * MIB)
    tracemalloc.start()
    try:
        errors = chunked.feed(12, 5 * MIB)  # 60 MiB
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert errors == []
    assert peak < 2.2 * 60 * MIB, f"{peak / MIB:.0f} MiB"
    assert chunked.converter.waiting_bytes == 0


def test_a_message_that_is_longer_than_it_says_is_not_put_together() -> None:
    chunked = Chunked(1 * MIB)
    assert chunked.feed(4, 1000, total=2500) == [(3, 3)]
    assert chunked.converter.waiting_bytes == 0


def test_chunks_of_messages_that_never_end_are_given_up() -> None:
    chunked = Chunked(1 * MIB)
    for number in range(2000):
        chunked.index += 1
        about = chunk_metadata(str(number), 0, 2, 200_000)
        entry = Entry(Position(7, number), chunked.index, STAMP, 1, memoryview(about), memoryview(bytes(100_000)))
        chunked.converter.feed(chunked.converter.mapping.place(entry))
        assert chunked.converter.waiting_bytes <= 1 * MIB


async def test_a_large_chunked_message_is_left_to_readers(pulsar_store: PulsarStore) -> None:
    size = 12 * MIB  # more than the tail puts together
    async with pulsar_store.opened() as engine:
        await engine.topics.create("t", 1, {})
        log = await attached(engine)
        producer = await engine.client.open_producer(log.partition_name, name="p")
        for number in range(4):
            about = chunk_metadata("u", number, 4, size)
            await producer.send(about, bytes(size // 4), sequence_id=number, highest_sequence_id=number, num_messages=1)
        await producer.close()
        await until(lambda: log.high_watermark == 4)
        assert engine.counts.get(UNREADABLE, 0) == 0
        values = await read_values(log, cached=True)
        assert [len(value or "") for value in values] == [size]
        assert engine.counts.get(UNREADABLE, 0) == 0
