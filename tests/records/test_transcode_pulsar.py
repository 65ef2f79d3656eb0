"""pulsar-client, Pulsar's own client, as the other side: it reads what we write, we read what it writes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence

import pulsar as native
import pytest
from records.transcode_kit import MAX_SIZE, produced, raw_entry, read
from support.pulsar import Pulsar
from support.waiting import SECONDS

from kop.pulsar_client import EARLIEST, Client
from kop.pulsar_client.types import Entry
from kop.records import transcode
from kop.records.batch import Codec, Record
from kop.records.record import Record as KafkaRecord

NOW = 1_700_000_000_000
COMPRESSIONS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]


@pytest.fixture(scope="module")
def client(pulsar: Pulsar) -> Iterator[native.Client]:
    quiet = native.ConsoleLogger(native.LoggerLevel.Error)
    made = native.Client(pulsar.service_url, logger=quiet)
    yield made
    made.close()


async def send(pulsar: Pulsar, topic: str, batches: Sequence[tuple[Sequence[Record], Codec]]) -> None:
    async with asyncio.timeout(SECONDS):
        ours = Client(pulsar.service_url, request_timeout=SECONDS)
        await ours.start()
        producer = await ours.open_producer(topic)
        sequence = 0
        for records, codec in batches:
            batch, header = produced(records, codec)
            (entry,) = transcode.to_entries(
                batch, header, producer_name=producer.name, sequence_base=sequence, publish_time=NOW, max_size=MAX_SIZE
            )
            last = sequence + entry.num_messages - 1
            await producer.send(
                entry.metadata,
                entry.payload,
                sequence_id=sequence,
                highest_sequence_id=last,
                num_messages=entry.num_messages,
            )
            sequence = last + 1
        await producer.close()
        await ours.close()


async def stored(pulsar: Pulsar, topic: str, messages: int) -> list[Entry]:
    """The topic's entries, up to that of its `messages`th message."""
    async with asyncio.timeout(SECONDS):
        ours = Client(pulsar.service_url, request_timeout=SECONDS)
        await ours.start()
        entries: list[Entry] = []
        done = asyncio.Event()

        def on_entry(entry: Entry) -> None:
            entries.append(entry)
            if entry.index == messages - 1:
                done.set()

        reader = await ours.open_reader(topic, EARLIEST, permits=1000, on_entry=on_entry)
        await done.wait()
        await reader.close()
        await ours.close()
    return entries


def kafka_records(pulsar: Pulsar, topic: str, messages: int) -> list[KafkaRecord]:
    records: list[KafkaRecord] = []
    for entry in asyncio.run(stored(pulsar, topic, messages)):
        assert entry.index is not None
        base = entry.index - entry.num_messages + 1
        batch = transcode.to_batch(entry.metadata, entry.payload, base_offset=base, log_append_time=None)
        records += read(batch)[1]
    return records


def native_messages(client: native.Client, topic: str, count: int) -> list[native.Message]:
    consumer = client.subscribe(topic, "s", initial_position=native.InitialPosition.Earliest)
    messages = [consumer.receive(timeout_millis=int(SECONDS * 1000)) for _ in range(count)]
    consumer.close()
    return messages


RECORDS = [
    Record(0, NOW, "schlüssel".encode(), b"text", ((b"trace", b"1"), (b"b", b"2"))),
    Record(1, 0, b"\xff\x00", b"x" * 3000, ((b"a", b"1"), (b"bin", b"\xff"), (b"a", b"2"), (b"n", None))),
    Record(2, -1, None, None),
    Record(3, NOW + 5, b"", b""),
]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_native_consumer_reads_what_kafka_clients_wrote(pulsar: Pulsar, client: native.Client, codec: Codec) -> None:
    topic = pulsar.topic("out")
    asyncio.run(send(pulsar, topic, [(RECORDS, codec), (RECORDS[:1], codec)]))
    text, binary, null, empty, again = native_messages(client, topic, 5)
    assert (text.partition_key(), text.data(), text.event_timestamp()) == ("schlüssel", b"text", NOW)
    assert text.properties() == {"trace": "1", "b": "2"}
    assert base64.b64decode(binary.partition_key()) == b"\xff\x00"
    assert (binary.data(), binary.event_timestamp()) == (b"x" * 3000, 0)
    assert {name: value for name, value in binary.properties().items() if not name.startswith("__kop_")} == {"a": "2"}
    assert null.has_null_value()
    assert not empty.has_null_value()
    assert (empty.partition_key(), empty.data()) == ("", b"")
    assert (again.data(), again.publish_timestamp()) == (b"text", NOW)
    expected = [record._replace(offset=index) for index, record in enumerate([*RECORDS, RECORDS[0]])]
    assert kafka_records(pulsar, topic, 5) == expected


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_we_read_what_a_native_producer_wrote(
    pulsar: Pulsar, client: native.Client, compression: str, batching: bool
) -> None:
    topic = pulsar.topic("in")
    producer = client.create_producer(
        topic,
        compression_type=getattr(native.CompressionType, compression),
        batching_enabled=batching,
        batching_max_publish_delay_ms=60_000,  # `flush` sends what came until then, however late this thread is
        block_if_queue_full=True,
    )
    sent: list[object] = []

    def on_sent(result: native.Result, _: object) -> None:
        sent.append(result)

    producer.send_async(b"a" * 2000, on_sent, partition_key="schlüssel", event_timestamp=NOW)
    producer.send_async(b"", on_sent, properties={"p": "1"}, ordering_key="o", event_timestamp=NOW + 1)
    producer.send_async(b"\x00\xff", on_sent, partition_key="k", ordering_key="o", properties={"ü": "ö"})
    producer.flush()
    producer.close()
    assert sent == [native.Result.Ok] * 3
    first, second, third = kafka_records(pulsar, topic, 3)
    assert first == Record(0, NOW, "schlüssel".encode(), b"a" * 2000)
    assert second == Record(1, NOW + 1, b"o", b"", ((b"p", b"1"),))
    assert third._replace(timestamp=0) == Record(2, 0, b"k", b"\x00\xff", (("ü".encode(), "ö".encode()),))
    assert third.timestamp > NOW  # the publish time
    assert len(asyncio.run(stored(pulsar, topic, 3))) == (1 if batching else 3)


def test_large_and_chunked_messages_of_a_native_producer(pulsar: Pulsar, client: native.Client) -> None:
    topic = pulsar.topic("chunks")
    value = bytes(range(256)) * 48 * 1024  # 12 MiB
    producer = client.create_producer(
        topic, chunking_enabled=True, batching_enabled=False, compression_type=native.CompressionType.NONE
    )
    producer.send(value[: 4 * 1024 * 1024])
    producer.send(value, partition_key="k", event_timestamp=NOW)
    producer.close()
    whole, *chunks = asyncio.run(stored(pulsar, topic, 4))
    batch = transcode.to_batch(whole.metadata, whole.payload, base_offset=0, log_append_time=None)
    assert read(batch)[1][0].value == value[: 4 * 1024 * 1024]
    views = [transcode.parse_entry(chunk.metadata) for chunk in chunks]
    assert [view.chunk_id for view in views] == [0, 1, 2]
    assert {(view.uuid, view.num_chunks, view.total_chunk_size) for view in views} == {(views[0].uuid, 3, len(value))}
    together = b"".join(chunk.payload for chunk in chunks)
    batch = transcode.to_batch(chunks[-1].metadata, together, base_offset=3, log_append_time=None)
    assert read(batch)[1] == [Record(3, NOW, b"k", value)]


def test_a_native_consumer_passes_messages_of_ours_on(pulsar: Pulsar, client: native.Client) -> None:
    """It knows properties as a map, and sends them in its own order: headers and time come through."""
    source, target = pulsar.topic("from"), pulsar.topic("to")
    asyncio.run(send(pulsar, source, [(RECORDS, Codec.NONE)]))
    producer = client.create_producer(target, batching_enabled=True)
    for message in native_messages(client, source, 2):
        producer.send(message.data(), properties=message.properties(), event_timestamp=message.event_timestamp())
    producer.close()
    text, binary = kafka_records(pulsar, target, 2)
    assert sorted(text.headers) == sorted(RECORDS[0].headers)
    assert (binary.timestamp, binary.headers) == (0, RECORDS[1].headers)


def test_raw_entries_are_stored_and_read(pulsar: Pulsar) -> None:
    topic = pulsar.topic("raw")

    async def write() -> None:
        ours = Client(pulsar.service_url, request_timeout=SECONDS)
        await ours.start()
        producer = await ours.open_producer(topic)
        batch, header = produced(RECORDS, Codec.ZSTD)
        entry = raw_entry(
            batch, header, producer_name=producer.name, sequence_base=0, publish_time=NOW, max_size=MAX_SIZE
        )
        await producer.send(entry.metadata, entry.payload, sequence_id=0, highest_sequence_id=3, num_messages=4)
        await producer.close()
        await ours.close()

    asyncio.run(write())
    assert kafka_records(pulsar, topic, 4) == RECORDS
