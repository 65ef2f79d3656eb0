"""What Pulsar's own client writes, as Kafka clients read it, through a gateway's tail and from storage."""

from __future__ import annotations

import random
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pulsar as native
import pytest
from interop.interop_kit import NOW, PATIENT_MS, SECONDS, Interop, Kafka, fetch, take
from support.pulsar_gateway import PulsarGateway
from support.waiting import wait_until

from kop.errors import ErrorCode
from kop.pulsar_client import Position
from kop.records.record import Record

COMPRESSIONS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]
BATCHED = {"batching_enabled": True, "batching_max_publish_delay_ms": 100}


def topic_of(interop: Interop, what: str = "in", partitions: int = 1) -> str:
    """A topic that is made by Kafka, so that both gateways know it at once."""
    return interop.known(interop.create(interop.name(what), partitions), interop.other)


def both(interop: Interop, topic: str, count: int, offset: int = 0) -> list[Record]:
    """By the tail of one gateway and from storage by the other, which must not differ."""
    tail = interop.read(topic, offset, offset + count, interop.gateway)
    assert interop.read(topic, offset, offset + count, interop.other) == tail
    return tail


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_batched_and_single_is_read(interop: Interop, compression: str, batching: bool) -> None:
    topic = topic_of(interop)
    assert interop.ends(topic) == (0, 0)  # so its tail follows
    settings = {"compression_type": getattr(native.CompressionType, compression), **(BATCHED if batching else {})}
    messages = [
        {"content": b"%d" % i * 500, "partition_key": f"k{i}", "event_timestamp": NOW + i, "properties": {"p": str(i)}}
        for i in range(10)
    ]
    interop.send(interop.full(topic), messages, **settings)
    expected = [Record(i, NOW + i, b"k%d" % i, b"%d" % i * 500, ((b"p", b"%d" % i),)) for i in range(10)]
    assert both(interop, topic, 10) == expected
    records = interop.consume(topic, 10, gateway=interop.other)
    assert records == [Kafka(i, b"k%d" % i, b"%d" % i * 500, NOW + i, [("p", b"%d" % i)]) for i in range(10)]


def test_keys_as_text_as_base64_bytes_and_as_ordering_key(interop: Interop) -> None:
    topic = topic_of(interop)
    v: dict[str, Any] = {"content": b"v", "event_timestamp": NOW}
    messages = [
        {**v, "partition_key": "schlüssel"},
        {**v, "ordering_key": "o"},
        {**v, "partition_key": "k", "ordering_key": "o"},
        v,
    ]
    interop.send(interop.full(topic), messages)
    interop.send(interop.full(topic), messages, **BATCHED)
    # pulsar-client for Python cannot send bytes as a key; the Java client does so:
    binary = {"partition_key": "/wAB", "partition_key_b64_encoded": True}
    interop.send_made(
        interop.partition(topic),
        (binary, b"v"),
        ({"null_partition_key": True}, b"v"),
        ({"ordering_key": b"\xff"}, b"v"),
    )
    keys = ["schlüssel".encode(), b"o", b"k", None] * 2 + [b"\xff\x00\x01", None, b"\xff"]
    assert [record.key for record in both(interop, topic, 11)] == keys


def test_null_values_are_tombstones_and_empty_ones_are_not(interop: Interop) -> None:
    topic = topic_of(interop)
    interop.send_made(
        interop.partition(topic), ({"partition_key": "k", "null_value": True}, b""), ({"partition_key": "k"}, b"")
    )
    assert [record.value for record in both(interop, topic, 2)] == [None, b""]


def test_without_event_time_the_publish_time_counts(interop: Interop) -> None:
    topic = topic_of(interop)
    interop.send(interop.full(topic), [{"content": b"a"}, {"content": b"b"}])
    interop.send(interop.full(topic), [{"content": b"c"}, {"content": b"d", "event_timestamp": NOW}], **BATCHED)
    published = [message.publish_timestamp() for message in interop.receive(interop.full(topic), 4)]
    assert [record.timestamp for record in both(interop, topic, 4)] == [*published[:3], NOW]


def test_properties_are_headers(interop: Interop) -> None:
    topic = topic_of(interop)
    properties = {"a": "1", "größe": "10 µm", "empty": ""}
    interop.send(interop.full(topic), [{"content": b"v", "properties": properties}])
    (record,) = both(interop, topic, 1)
    assert dict(record.headers) == {name.encode(): value.encode() for name, value in properties.items()}


def test_a_message_of_nearly_five_mebibytes(interop: Interop) -> None:
    topic = topic_of(interop)
    value = bytes(range(256)) * (5 * 4096 - 40)
    interop.send(interop.full(topic), [{"content": value, "partition_key": "k"}, {"content": b"next"}])
    first, second = both(interop, topic, 2)
    assert (first.key, first.value == value, second.value) == (b"k", True, b"next")
    assert interop.consume(topic, 1, {"fetch.message.max.bytes": 1000})[0].value == value


@pytest.mark.parametrize("compression", ["NONE", pytest.param("ZSTD", marks=pytest.mark.slow)])
def test_a_chunked_message_has_the_offset_of_its_last_chunk(interop: Interop, compression: str) -> None:
    topic = topic_of(interop)
    interop.ends(topic)
    value = random.Random(1).randbytes(12 << 20)
    messages: list[dict[str, Any]] = [
        {"content": b"before"},
        {"content": value, "partition_key": "k"},
        {"content": b"after"},
    ]
    settings = {"chunking_enabled": True, "compression_type": getattr(native.CompressionType, compression)}
    _, where, _ = interop.send(interop.full(topic), messages, **settings)
    before, large, after = both(interop, topic, 5)
    assert (before.offset, large.offset, after.offset) == (0, 3, 4)
    assert (large.key, large.value == value) == (b"k", True)
    parts = [(1, 1, 0), (2, 2, 0), (3, 3, 1)]
    fetched = fetch(interop.other, topic, 1, max_bytes=1, max_wait_ms=PATIENT_MS)
    assert fetched.batches  # a consumer goes on in any case
    assert fetched.batches == parts[: len(fetched.batches)]
    for offset in (1, 2, 3):
        assert interop.read(topic, offset, 5)[0] == large
    assert [record.offset for record in interop.consume(topic, 3, gateway=interop.other)] == [0, 3, 4]
    log = interop.other.log(topic)

    def read_from_storage() -> bool:
        interop.other.call(forget_readers(interop.other, topic))
        batches = fetch(interop.other, topic, 1, max_bytes=1, max_wait_ms=PATIENT_MS).batches
        assert batches == parts[: len(batches)]
        return batches == parts

    # What is read from storage has a record: librdkafka takes an answer without one for a limit that was too small.
    # Only where Pulsar sends nothing for half a second the answer does not wait for more.
    wait_until(read_from_storage, "an answer with a record")
    # Where a reader would begin between the chunks it goes back for the first one.
    interop.other.call(forget_readers(interop.other, topic))
    log.search.index.add(2, Position(where.ledger_id(), where.entry_id() - 1))
    assert interop.read(topic, 3, 5)[0] == large


async def forget_readers(gateway: PulsarGateway, topic: str) -> None:
    """So that the next read needs a new one."""
    gateway.engine.cache.drop(gateway.log(topic).tail.cached)
    gateway.log(topic).close_idle(float("inf"), 0)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Public and private, made by the openssl that is on every machine with a Pulsar of its own."""
    folder: Path = tmp_path_factory.mktemp("keys")
    private, public = str(folder / "private.pem"), str(folder / "public.pem")
    for command in (["genrsa", "-out", private, "2048"], ["rsa", "-in", private, "-pubout", "-out", public]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return public, private


def test_an_encrypted_message_is_an_error_and_what_follows_is_reached_by_a_seek(
    interop: Interop, keys: tuple[str, str]
) -> None:
    topic = topic_of(interop)
    interop.ends(topic)
    reader = native.CryptoKeyReader(*keys)
    interop.send(interop.full(topic), [{"content": b"before"}])
    interop.send(interop.full(topic), [{"content": b"secret"}], encryption_key="k", crypto_key_reader=reader)
    interop.send(interop.full(topic), [{"content": b"after"}])
    (message,) = interop.receive(interop.full(topic), 2, crypto_key_reader=reader)[1:]
    assert message.data() == b"secret"
    for gateway in (interop.gateway, interop.other):
        assert interop.ended(topic, 3, gateway) == (0, 3)
        assert fetch(gateway, topic, 0, max_wait_ms=PATIENT_MS).batches[0] == (0, 0, 1)
        for _ in range(2):  # it stays so, nobody slips over it
            assert fetch(gateway, topic, 1, max_wait_ms=PATIENT_MS).error == ErrorCode.CORRUPT_MESSAGE
        assert interop.read(topic, 2, 3, gateway)[0].value == b"after"
        with interop.consumer(topic, gateway=gateway) as consumer:
            assert take(consumer, 1)[0].value == b"before"
            with pytest.raises(ck.KafkaException) as caught:
                take(consumer, 1)
            assert caught.value.args[0].code() == ErrorCode.CORRUPT_MESSAGE
        assert interop.consume(topic, 1, offset=2, gateway=gateway)[0].value == b"after"
    assert interop.gateway.engine.counts["entries_unreadable/not_decoded"] >= 1


class Order(native.schema.Record):  # type: ignore[misc]  # pulsar-client has no types
    id = native.schema.Integer()
    item = native.schema.String()


def test_messages_with_a_schema_are_their_bytes(interop: Interop) -> None:
    topic = topic_of(interop)
    schema = native.schema.JsonSchema(Order)
    interop.send(interop.full(topic), [{"content": Order(id=1, item="a")}], schema=schema)
    (message,) = interop.receive(interop.full(topic), 1, schema=schema)
    (record,) = both(interop, topic, 1)
    assert record.value == message.data()
    # Kafka's own records lie beside them, and a native consumer with the schema still reads its own.
    assert interop.write(topic, [Record(0, NOW, None, b'{"id": 2, "item": "b"}')]) == [1]
    assert [message.value().item for message in interop.receive(interop.full(topic), 2, schema=schema)] == ["a", "b"]


def test_delayed_messages_are_there_for_kafka_at_once(interop: Interop) -> None:
    topic = topic_of(interop)
    delayed = {"content": b"later", "deliver_after": timedelta(hours=1)}
    interop.send(interop.full(topic), [{"content": b"now"}, delayed, {"content": b"then"}])
    assert [record.value for record in both(interop, topic, 3)] == [b"now", b"later", b"then"]


@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_a_topic_that_pulsar_made_is_found(interop: Interop, partitions: int) -> None:
    topic = interop.name("made")
    full = interop.full(topic)
    if partitions:
        interop.admin(lambda admin: admin.create_partitioned(full, partitions, {}))
    last = f"{full}-partition-{partitions - 1}" if partitions else full
    interop.send(last, [{"content": b"one"}, {"content": b"two"}])  # a plain topic is made by its first producer
    interop.known(topic)
    consumer = ck.Consumer({"bootstrap.servers": interop.gateway.bootstrap, "group.id": "g"})
    try:
        metadata = consumer.list_topics(topic, SECONDS).topics[topic]
    finally:
        consumer.close()
    assert sorted(metadata.partitions) == list(range(max(partitions, 1)))
    if partitions <= 1:
        interop.known(topic, interop.other)
        assert [record.value for record in both(interop, topic, 2)] == [b"one", b"two"]
        assert interop.write(topic, [Record(0, NOW, b"k", b"three")]) == [2]
        assert [message.data() for message in interop.receive(full, 3)] == [b"one", b"two", b"three"]
    interop.known(topic, interop.other)
    ids = {gateway.log(topic).topic.topic_id for gateway in (interop.gateway, interop.other)}
    assert len(ids) == 1


def test_a_batch_that_does_not_hold_what_it_says_is_a_named_error(interop: Interop) -> None:
    topic = topic_of(interop)
    interop.ends(topic)
    partition = interop.partition(topic)
    interop.send(partition, [{"content": b"before"}])
    interop.send_made(partition, ({"num_messages_in_batch": 1}, b""), count=1)  # a batch that holds no message
    interop.send(partition, [{"content": b"after"}])
    for gateway in (interop.gateway, interop.other):
        assert interop.ended(topic, 3, gateway) == (0, 3)
        assert fetch(gateway, topic, 1, max_wait_ms=PATIENT_MS).error == ErrorCode.CORRUPT_MESSAGE
        assert interop.read(topic, 2, 3, gateway)[0].value == b"after"


def test_an_index_that_moved_by_less_than_the_messages_is_a_named_error(interop: Interop) -> None:
    """Offsets cannot hold the records: an error for that range, never offsets that overlap."""
    topic = topic_of(interop)
    interop.ends(topic)
    partition = interop.partition(topic)
    interop.send(partition, [{"content": b"before"}])
    single = b"\0\0\0\x02\x18\x01x"  # size, SingleMessageMetadata{payload_size: 1}, the value
    interop.send_made(partition, ({"num_messages_in_batch": 3}, single * 3), count=1)
    interop.send(partition, [{"content": b"after"}])
    for gateway in (interop.gateway, interop.other):
        assert interop.ended(topic, 3, gateway) == (0, 3)
        assert interop.read(topic, 0, 1, gateway)[0].value == b"before"
        for _ in range(2):
            assert fetch(gateway, topic, 1, max_wait_ms=PATIENT_MS).error == ErrorCode.CORRUPT_MESSAGE
        assert interop.read(topic, 2, 3, gateway)[0].value == b"after"
