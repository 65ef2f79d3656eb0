"""Both kinds of client on the same topics: Kafka's through a gateway, Pulsar's own beside it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import confluent_kafka as ck
import pulsar as native
import uvloop
from confluent_kafka.admin import AdminClient, NewTopic
from support.gateway import RawClient, fetch_fields, produce_fields
from support.pulsar import Pulsar
from support.pulsar_admin import PulsarAdmin
from support.pulsar_gateway import PulsarGateway
from support.waiting import wait_until

from kop.errors import ErrorCode
from kop.pulsar_client import Client
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records.batch import build, iter_batches, iter_records
from kop.records.record import Record
from kop.wire.messages import REQUESTS

T = TypeVar("T")
Settings = Mapping[str, str | int | bool]
"""Of a client of confluent-kafka, by librdkafka's names, which hold dots."""
NONE: Settings = MappingProxyType({})
NOW = 1_700_000_000_000
SECONDS = 100.0
"""For anything that should take a moment."""
PATIENT_MS = 60_000
"""`max_wait_ms` of a Fetch whose records or error have to come: until then it is answered without them."""
AGAIN = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the gateway may not have seen yet what another one made
}
"""Errors of a question after which a client asks again."""
AGAIN_SECONDS = 0.1
"""How long it waits before that."""


class Kafka(NamedTuple):
    """A record as a Kafka consumer got it. `headers` are None where there are none, as confluent-kafka has it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None


def run(work: Coroutine[Any, Any, T], seconds: float = 170) -> T:
    """A coroutine of a test, on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(work, seconds))


@dataclass
class Interop:
    """One namespace, a gateway that writes and another that has to read all from Pulsar, a native client."""

    pulsar: Pulsar
    gateway: PulsarGateway
    other: PulsarGateway
    native: native.Client
    readers: dict[str, native.Reader] = field(default_factory=dict)

    # --- names

    def name(self, what: str = "t") -> str:
        """A topic that nobody has used."""
        return f"{what}-{secrets.token_hex(4)}"

    def full(self, topic: str) -> str:
        """Pulsar's name of it."""
        return f"persistent://{self.pulsar.namespace}/{topic}"

    def partition(self, topic: str, index: int = 0) -> str:
        """Pulsar's name of a partition of a topic that Kafka made."""
        return f"{self.full(topic)}-partition-{index}"

    # --- the Kafka side

    def create(self, topic: str, partitions: int = 1, **configs: str) -> str:
        """By CreateTopics."""
        admin = AdminClient({"bootstrap.servers": self.gateway.bootstrap})
        made = NewTopic(topic, partitions, config={name.replace("_", "."): value for name, value in configs.items()})
        admin.create_topics([made])[topic].result(SECONDS)
        return topic

    def delete(self, topic: str) -> None:
        """By DeleteTopics."""
        admin = AdminClient({"bootstrap.servers": self.gateway.bootstrap})
        admin.delete_topics([topic])[topic].result(SECONDS)

    def known(self, topic: str, gateway: PulsarGateway | None = None) -> str:
        """Wait until a gateway has found a topic that somebody else made."""
        engine = (gateway or self.gateway).engine

        def has_log() -> bool:
            info = engine.topics.get(topic)
            return info is not None and engine.log(info.topic_id, 0) is not None

        wait_until(has_log, f"{topic} is found")
        return topic

    def produce(self, topic: str, records: Sequence[Mapping[str, Any]], settings: Settings = NONE) -> list[int]:
        """Send all at once, so in as few batches as librdkafka makes of it; returns their offsets."""
        config = {"bootstrap.servers": self.gateway.bootstrap, "linger.ms": 20, **settings}
        producer = ck.Producer(config)
        offsets: list[int] = []
        failed: list[ck.KafkaError] = []

        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                offsets.append(message.offset())

        for record in records:
            producer.produce(topic, **{"partition": 0, **record}, on_delivery=delivered)
        assert producer.flush(SECONDS) == 0
        assert not failed
        return offsets

    def write(
        self,
        topic: str,
        *batches: Sequence[Record],
        codec: int = 0,
        gateway: PulsarGateway | None = None,
        acks: int = -1,
    ) -> list[int]:
        """Each batch as it is, in one Produce request after another; returns their base offsets."""

        async def do() -> list[int]:
            offsets = []
            async with raw(gateway or self.gateway) as client:
                for batch in batches:
                    data = bytes(build(batch, codec=codec))
                    answer = await client.call(0, 9, **produce_fields(topic, data, version=9, acks=acks))
                    part = answer.responses[0].partition_responses[0]
                    assert part.error_code == 0, part
                    offsets.append(part.base_offset)
            return offsets

        return run(do())

    def read(self, topic: str, offset: int, end: int, gateway: PulsarGateway | None = None) -> list[Record]:
        """The records from one offset to before another. By default by the gateway that did not write them.

        Its answers have no hole: each batch follows the one before it.
        """

        async def do() -> list[Record]:
            at, records = offset, []
            deadline = time.monotonic() + SECONDS
            async with raw(gateway or self.other) as client:
                while at < end:
                    fields = fetch_fields(
                        topic, at, version=12, max_wait_ms=5000, max_bytes=1 << 26, partition_max_bytes=1 << 26
                    )
                    got = read_fetched(await client.call(1, 12, **fields))
                    if time.monotonic() < deadline and (got.error in AGAIN or not (got.error or got.batches)):
                        await asyncio.sleep(AGAIN_SECONDS)  # nothing tells when the answer is another one
                        continue
                    assert got.error == 0, got.error
                    assert got.batches, f"nothing from {at} on, the log ends at {got.end}"
                    for base, last, _ in got.batches:
                        assert base <= at, f"a hole: {base} comes at {at}"
                        at = max(at, last + 1)
                    records += [record for record in got.records if offset <= record.offset < end]
            return records

        return run(do())

    def consume(
        self,
        topic: str,
        count: int,
        settings: Settings = NONE,
        *,
        offset: int = 0,
        gateway: PulsarGateway | None = None,
    ) -> list[Kafka]:
        """The next `count` records of partition 0. What a consumer reports as an error is raised."""
        with self.consumer(topic, settings, offset=offset, gateway=gateway) as consumer:
            return take(consumer, count)

    @contextlib.contextmanager
    def consumer(
        self, topic: str, settings: Settings = NONE, *, offset: int = 0, gateway: PulsarGateway | None = None
    ) -> Iterator[ck.Consumer]:
        """One that reads partition 0 from an offset on, in no group."""
        config = {
            "bootstrap.servers": (gateway or self.gateway).bootstrap,
            "group.id": secrets.token_hex(4),
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 32 << 20,
            "receive.message.max.bytes": 64 << 20,
            **settings,
        }
        consumer = ck.Consumer(config)
        try:
            consumer.assign([ck.TopicPartition(topic, 0, offset)])
            yield consumer
        finally:
            consumer.close()

    def offsets(self, topic: str, *timestamps: int, gateway: PulsarGateway | None = None) -> list[tuple[int, int]]:
        """ListOffsets of partition 0: (offset, timestamp) for each; -2 earliest, -1 latest, -3 max timestamp."""

        async def ask() -> list[tuple[int, int]]:
            rows: list[tuple[int, int]] = []
            deadline = time.monotonic() + SECONDS
            async with raw(gateway or self.gateway) as client:
                while len(rows) < len(timestamps):
                    part = {"partition_index": 0, "timestamp": timestamps[len(rows)], "current_leader_epoch": -1}
                    answer = await client.call(2, 7, replica_id=-1, isolation_level=0, topics=[list_topic(topic, part)])
                    partition = answer.topics[0].partitions[0]
                    if time.monotonic() < deadline and partition.error_code in AGAIN:
                        await asyncio.sleep(AGAIN_SECONDS)  # nothing tells when the answer is another one
                        continue
                    assert partition.error_code == 0, partition
                    rows.append((partition.offset, partition.timestamp))
            return rows

        return run(ask())

    def ends(self, topic: str, gateway: PulsarGateway | None = None) -> tuple[int, int]:
        """Log start and high watermark of partition 0, as ListOffsets has them."""
        (start, _), (end, _) = self.offsets(topic, -2, -1, gateway=gateway)
        return start, end

    def ended(self, topic: str, end: int, gateway: PulsarGateway | None = None) -> tuple[int, int]:
        """Log start and high watermark, once the tail has brought what lies before `end`."""
        wait_until(lambda: self.ends(topic, gateway)[1] >= end, f"{topic} ends at {end}")
        return self.ends(topic, gateway)

    # --- the Pulsar side

    def send(self, topic: str, messages: Sequence[Mapping[str, Any]], **settings: Any) -> list[native.MessageId]:
        """By a native producer, to be closed before the topic is looked at. `topic`: Pulsar's full name."""
        producer = self.native.create_producer(topic, **settings)
        sent: list[tuple[native.Result, native.MessageId]] = []
        for message in messages:
            producer.send_async(callback=lambda result, where: sent.append((result, where)), **message)
        producer.flush()
        wait_until(lambda: len(sent) == len(messages), "the receipts of native messages")
        producer.close()
        assert all(result == native.Result.Ok for result, _ in sent), sent
        return [where for _, where in sent]

    def receive(self, topic: str, count: int, **settings: Any) -> list[native.Message]:
        """The first messages as a native consumer gets them."""
        consumer = self.native.subscribe(
            topic, secrets.token_hex(4), initial_position=native.InitialPosition.Earliest, **settings
        )
        try:
            messages = []
            for _ in range(count):
                message = consumer.receive(timeout_millis=int(SECONDS * 1000))
                consumer.acknowledge(message)
                messages.append(message)
            return messages
        finally:
            consumer.close()

    def receive_from(self, topic: str, begin: int, end: int) -> list[native.Message]:
        """The messages that have these offsets, on a topic that has had one entry for each call of this."""
        reader = self.readers.get(topic)
        if reader is None:
            reader = self.native.create_reader(self.partition(topic), native.MessageId.earliest)
            self.readers[topic] = reader
        return [reader.read_next(timeout_millis=int(SECONDS * 1000)) for _ in range(end - begin)]

    def admin(self, work: Callable[[PulsarAdmin], Coroutine[Any, Any, T]]) -> T:
        """Admin calls to Pulsar."""

        async def do() -> T:
            async with PulsarAdmin(self.pulsar.admin_url, timeout=100) as admin:
                return await work(admin)

        return run(do())

    def send_made(self, topic: str, *messages: tuple[dict[str, Any], bytes], count: int = 1) -> None:
        """Entries with metadata that pulsar-client cannot make, each (fields of MessageMetadata, payload)."""

        async def do() -> None:
            client = Client(self.pulsar.service_url)
            await client.start()
            try:
                producer = await client.open_producer(topic)
                for number, (fields, payload) in enumerate(messages):
                    metadata = pb.MessageMetadata(
                        producer_name=producer.name, sequence_id=number, publish_time=NOW, **fields
                    )
                    await producer.send(
                        metadata.SerializeToString(),
                        payload,
                        sequence_id=number,
                        highest_sequence_id=None,
                        num_messages=count,
                    )
                await producer.close()
            finally:
                await client.close()

        run(do())


@contextlib.asynccontextmanager
async def raw(gateway: PulsarGateway) -> AsyncIterator[RawClient]:
    """A raw client of a gateway."""
    client = await RawClient.open(*gateway.address)
    try:
        yield client
    finally:
        await client.close()


def list_topic(topic: str, part: dict[str, Any]) -> Any:
    """A topic of a ListOffsets request, version 7."""
    cls = REQUESTS[2].ListOffsetsTopic
    made = cls.ListOffsetsPartition(version=7, **part)
    return cls(version=7, name=topic, partitions=[made])


class Fetched(NamedTuple):
    """What one Fetch of partition 0 answered."""

    error: int
    start: int
    end: int
    batches: list[tuple[int, int, int]]
    """Of each batch: base offset, last offset, records."""
    records: list[Record]


def fetch(gateway: PulsarGateway, topic: str, offset: int, **how: Any) -> Fetched:
    """One Fetch of version 12."""

    async def do() -> Fetched:
        async with raw(gateway) as client:
            return read_fetched(await client.call(1, 12, **fetch_fields(topic, offset, version=12, **how)))

    return run(do())


def read_fetched(answer: Any) -> Fetched:
    """The one partition of an answer to Fetch."""
    assert answer.error_code == 0, answer
    part = answer.responses[0].partitions[0]
    data = bytes(part.records or b"")
    batches, records = [], []
    for pos, header in iter_batches(data):
        batches.append((header.base_offset, header.base_offset + header.last_offset_delta, header.record_count))
        if header.record_count:
            records += list(iter_records(data[pos : pos + header.size], header, max_bytes=1 << 28))
    return Fetched(part.error_code, part.log_start_offset, part.high_watermark, batches, records)


def take(consumer: ck.Consumer, count: int, seconds: float = SECONDS) -> list[Kafka]:
    """The next `count` records."""
    records: list[Kafka] = []
    end = time.monotonic() + seconds
    while len(records) < count:
        assert time.monotonic() < end, f"{len(records)} of {count} records within {seconds} s: {records[-3:]}"
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error():
            raise ck.KafkaException(message.error())
        kind, timestamp = message.timestamp()
        records.append(
            Kafka(
                message.offset(),
                message.key(),
                message.value(),
                timestamp if kind != ck.TIMESTAMP_NOT_AVAILABLE else -1,
                message.headers(),
            )
        )
    return records
