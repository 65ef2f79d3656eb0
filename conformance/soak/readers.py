"""Readers of everything that is stored, each as a process: `python -m conformance.soak.readers READER FILE`.

Standard input is JSON: bootstrap, user, service_url, namespace, topics. FILE gets a line for each record (Stored),
standard output one JSON object: the partitions that were read, and those that could not be. Readers: `entries`
(kop/pulsar_client: every entry with the broker's index), `pulsar` (pulsar-client, which skips raw topics),
`confluent`, `aiokafka`.

Owns: what a reader is told of a record's place.
Must not know: what was written, and what is right.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lz4.block
import pulsar
import zstandard
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, TopicPartition

from conformance.harness import tenants
from conformance.soak.history import UNREADABLE, Stored, dump, record_of
from conformance.soak.workload import Topic
from kop.background import retried
from kop.pulsar_client import EARLIEST, Client, Entry, PulsarError
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records.batch import iter_batches, iter_records

PARTITION_SECONDS = 90.0
"""For one partition; transactions that were left open end within 30 s."""
_LARGEST = 32 * 1024 * 1024


class Incomplete(Exception):
    """A partition could not be read to its end."""


class Report:
    """What a reader found. A partition that it could not read wholly is named, and the others are read all the same."""

    def __init__(self, topics: list[Topic]) -> None:
        self._topics = topics
        self.stored: list[Stored] = []
        self.read: list[tuple[str, int]] = []
        self.unread: list[tuple[str, int, str]] = []

    def partitions(self) -> Iterator[tuple[Topic, int]]:
        """All of the run."""
        for topic in self._topics:
            for partition in topic.numbers:
                yield topic, partition

    @contextmanager
    def of(self, topic: Topic, partition: int) -> Iterator[list[Stored]]:
        """The list to put its records into."""
        stored: list[Stored] = []
        try:
            yield stored
        except Exception as error:
            self.unread.append((topic.name, partition, f"{type(error).__name__}: {error}, after {len(stored)} records"))
        else:
            self.read.append((topic.name, partition))
            self.stored += stored


# --- every entry, by the broker's index


class _Entries:
    """What the entries of a partition hold; chunks are put together, with the place of the last one."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._chunks: dict[str, list[bytes]] = {}
        self.stored: list[Stored] = []

    def add(self, entry: Entry) -> None:
        metadata = pb.MessageMetadata.FromString(bytes(entry.metadata))
        if metadata.HasField("marker_type"):
            return
        payload: bytes | None = bytes(entry.payload)
        if metadata.num_chunks_from_msg > 1:
            payload = self._whole(metadata, bytes(entry.payload))
        if payload is None:
            return
        values = list(_values(metadata, _inflated(metadata, payload)))
        assert entry.index is not None, "the broker sends no index"
        batched = metadata.HasField("num_messages_in_batch")
        base = entry.index - (metadata.num_messages_in_batch if batched else 1) + 1
        for place, value in enumerate(values):
            position = f"{entry.position.ledger}:{entry.position.entry}:{place if batched else -1}"
            self.stored.append(Stored(self._topic, self._partition, base + place, position, *record_of(value)))

    def _whole(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes | None:
        parts = self._chunks.setdefault(metadata.uuid, [])
        if metadata.chunk_id == 0:
            parts.clear()
        if metadata.chunk_id != len(parts):
            return None  # resent in part
        parts.append(payload)
        return b"".join(self._chunks.pop(metadata.uuid)) if len(parts) == metadata.num_chunks_from_msg else None


def _inflated(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """By libraries that share no code with the gateway's."""
    size = metadata.uncompressed_size
    if metadata.compression == pb.LZ4:
        return bytes(lz4.block.decompress(payload, uncompressed_size=size))
    if metadata.compression == pb.ZLIB:
        return zlib.decompress(payload)
    if metadata.compression == pb.ZSTD:
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=size)
    return payload


def _values(metadata: pb.MessageMetadata, payload: bytes) -> Iterator[bytes | None]:
    if any(property_.key == "entry.format" and property_.value == "kafka" for property_ in metadata.properties):
        for at, header in iter_batches(payload):
            yield from (record.value for record in iter_records(payload[at : at + header.size], max_bytes=_LARGEST))
    elif not metadata.HasField("num_messages_in_batch"):
        yield payload
    else:
        at = 0
        for _ in range(metadata.num_messages_in_batch):
            size = int.from_bytes(payload[at : at + 4])
            single = pb.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
            at += 4 + size
            yield payload[at : at + single.payload_size]
            at += single.payload_size


async def entries(run: dict[str, Any], report: Report) -> None:
    """Up to the last message of each partition: no transaction may be open, it would hide what follows."""
    client = Client(run["service_url"])
    await client.start()
    try:
        for topic, partition in report.partitions():
            with report.of(topic, partition) as stored:
                stored.extend(await _partition_entries(client, topic, partition, run["namespace"]))
    finally:
        await client.close()


async def _partition_entries(client: Client, topic: Topic, partition: int, namespace: str) -> list[Stored]:
    name = topic.native_name(namespace, partition)
    collected = _Entries(topic.name, partition)
    changed = asyncio.Event()

    def on_entry(entry: Entry) -> None:
        try:
            collected.add(entry)
        except Exception as error:
            print(f"{name}: entry {entry.position}: {error!r}", file=sys.stderr)
            position = f"{entry.position.ledger}:{entry.position.entry}:-1"
            collected.stored.append(Stored(topic.name, partition, entry.index or -1, position, UNREADABLE, -1))
        reader.flow(max(1, entry.num_messages))
        changed.set()

    reader = await client.open_reader(name, EARLIEST, permits=1000, on_entry=on_entry)
    try:
        async with asyncio.timeout(PARTITION_SECONDS):
            last = await retried(
                f"ask for the end of {name}",
                reader.last_position,  # Pulsar names none while it recovers a transaction buffer
                passes=lambda error: isinstance(error, PulsarError),
                seconds=PARTITION_SECONDS,
            )
            while last.entry >= 0 and (reader.position is None or reader.position < last):
                changed.clear()
                await changed.wait()
        return collected.stored
    except TimeoutError:
        raise Incomplete(f"entry {reader.position} of {last} within {PARTITION_SECONDS:g} s") from None
    finally:
        await reader.close()


# --- pulsar-client


def native(run: dict[str, Any], report: Report) -> None:
    """By Reader. It is told message ids and no offsets."""
    client = pulsar.Client(run["service_url"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for topic, partition in report.partitions():
        if topic.raw:
            continue
        with report.of(topic, partition) as stored:
            reader = client.create_reader(topic.native_name(run["namespace"], partition), pulsar.MessageId.earliest)
            end = time.monotonic() + PARTITION_SECONDS
            while True:
                if time.monotonic() > end:
                    raise Incomplete("pulsar-client goes on finding messages, or is not told of the last one")
                try:
                    if not reader.has_message_available():
                        break
                    message = reader.read_next(timeout_millis=1000)
                except pulsar.Timeout:
                    continue
                place = message.message_id()
                position = f"{place.ledger_id()}:{place.entry_id()}:{place.batch_index()}"
                stored.append(Stored(topic.name, partition, -1, position, *record_of(message.data())))
            reader.close()
    client.close()


# --- Kafka consumers


def confluent(run: dict[str, Any], report: Report) -> None:
    """Each partition from its log start to its high watermark."""
    consumer = Consumer(
        {
            "bootstrap.servers": run["bootstrap"],
            **tenants.librdkafka(run["user"]),
            "group.id": "soak",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": _LARGEST,
            "fetch.max.bytes": _LARGEST,
            "receive.message.max.bytes": 2 * _LARGEST,
            "log_level": 0,
        }
    )
    for topic, partition in report.partitions():
        with report.of(topic, partition) as stored:
            place = TopicPartition(topic.name, partition)
            low, high = _watermarks(consumer, place)
            consumer.assign([TopicPartition(topic.name, partition, low)])
            end = time.monotonic() + PARTITION_SECONDS
            while (at := _position(consumer, place, low)) < high:
                if time.monotonic() > end:
                    raise Incomplete(f"{at} of {low} to {high}")
                for message in consumer.consume(500, 0.5):
                    error = message.error()
                    if error is None:
                        offset = message.offset()
                        assert offset is not None
                        stored.append(Stored(topic.name, partition, offset, "", *record_of(message.value())))
                    elif not error.retriable() and error.code() > 0:
                        raise Incomplete(str(error))
        consumer.unassign()
    consumer.close()


def _watermarks(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    end = time.monotonic() + PARTITION_SECONDS
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=20)
            return low, high
        except KafkaException:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _position(consumer: Consumer, place: TopicPartition, low: int) -> int:
    """The offset that comes next; batches that hold no record are stepped over too."""
    offset: int = consumer.position([place])[0].offset
    return max(low, offset)


async def aiokafka(run: dict[str, Any], report: Report) -> None:
    """The same, by a client that shares no code with librdkafka."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=run["bootstrap"].split(","),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_LARGEST,
        fetch_max_bytes=_LARGEST,
        request_timeout_ms=60_000,
        **tenants.aiokafka(run["user"]),
    )
    await consumer.start()
    try:
        for topic, partition in report.partitions():
            with report.of(topic, partition) as stored:
                place = AioPartition(topic.name, partition)
                consumer.assign([place])
                high = (await consumer.end_offsets([place]))[place]
                await consumer.seek_to_beginning(place)
                end = time.monotonic() + PARTITION_SECONDS
                while (at := await consumer.position(place)) < high:
                    if time.monotonic() > end:
                        raise Incomplete(f"{at} of {high}")
                    for message in (await consumer.getmany(place, timeout_ms=500)).get(place, []):
                        stored.append(Stored(topic.name, partition, message.offset, "", *record_of(message.value)))
    finally:
        await consumer.stop()


def main() -> int:
    name, path = sys.argv[1], Path(sys.argv[2])
    run = json.load(sys.stdin)
    report = Report([Topic(**fields) for fields in run["topics"]])
    if name == "entries":
        asyncio.run(entries(run, report))
    elif name == "pulsar":
        native(run, report)
    elif name == "confluent":
        confluent(run, report)
    else:
        asyncio.run(aiokafka(run, report))
    dump(path, report.stored)
    print(json.dumps({"read": report.read, "unread": report.unread}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
