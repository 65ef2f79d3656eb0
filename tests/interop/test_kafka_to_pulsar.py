"""What Kafka clients write, as Pulsar's own client reads it, and as a gateway that did not write it gives it back."""

from __future__ import annotations

import asyncio
import base64

import aiokafka
import pulsar as native
import pytest
from interop.interop_kit import NOW, Interop, run

from kop.records.batch import Codec
from kop.records.record import Record


def written(interop: Interop, *records: Record, codec: int = Codec.NONE) -> tuple[str, list[native.Message]]:
    """One batch, as a native consumer gets it; it comes back to Kafka byte for byte."""
    topic = interop.create(interop.name("out"))
    assert interop.write(topic, records, codec=codec) == [0]
    assert interop.read(topic, 0, len(records)) == list(records)
    return topic, interop.receive(interop.full(topic), len(records))


def test_a_text_key_reads_as_that_text(interop: Interop) -> None:
    keys = ["order-1", "schlüssel", "日本", "a b/c", "x" * 300]
    _, messages = written(interop, *(Record(i, NOW, key.encode(), b"v") for i, key in enumerate(keys)))
    assert [message.partition_key() for message in messages] == keys


def test_a_binary_key_reads_as_base64(interop: Interop) -> None:
    keys = [b"\xff\x00\x01", bytes(range(128, 256)), b"\xc3\x28"]
    _, messages = written(interop, *(Record(i, NOW, key, b"v") for i, key in enumerate(keys)))
    assert [base64.b64decode(message.partition_key()) for message in messages] == keys


def test_null_and_empty_keys_stay_apart(interop: Interop) -> None:
    _, messages = written(interop, Record(0, NOW, None, b"null"), Record(1, NOW, b"", b"empty"))
    assert [(message.data(), message.partition_key()) for message in messages] == [(b"null", ""), (b"empty", "")]


def test_null_and_empty_values_stay_apart(interop: Interop) -> None:
    _, (null, empty) = written(interop, Record(0, NOW, b"k", None), Record(1, NOW, b"k", b""))
    assert (null.has_null_value(), null.data()) == (True, b"")
    assert (empty.has_null_value(), empty.data()) == (False, b"")


def test_plain_headers_are_plain_properties(interop: Interop) -> None:
    headers = ((b"trace", b"abc"), ("größe".encode(), "10 µm".encode()), (b"empty", b""))
    _, (message,) = written(interop, Record(0, NOW, b"k", b"v", headers))
    assert message.properties() == {"trace": "abc", "größe": "10 µm", "empty": ""}


def test_binary_null_and_duplicate_headers_come_back_and_the_plain_ones_are_seen(interop: Interop) -> None:
    headers = ((b"z", b"1"), (b"bin", b"\xff\xfe"), (b"a", b"2"), (b"null", None), (b"z", b"3"), (b"\xff", b"x"))
    _, (message,) = written(interop, Record(0, NOW, b"k", b"v", headers))
    seen = {name: value for name, value in message.properties().items() if not name.startswith("__kop_")}
    assert seen == {"z": "3", "a": "2"}


def test_headers_keep_their_order(interop: Interop) -> None:
    names = [b"h%d" % number for number in (5, 3, 9, 1, 7)]
    written(interop, Record(0, NOW, b"k", b"v", tuple((name, b"v") for name in names)))  # read back in order there


def test_timestamps_are_event_times_to_the_millisecond(interop: Interop) -> None:
    times = [NOW, NOW + 1, 1, 0, -1, NOW - 86_400_000]
    _, messages = written(interop, *(Record(i, time, b"k", b"v") for i, time in enumerate(times)))
    assert [message.event_timestamp() for message in messages] == [NOW, NOW + 1, 1, 0, 0, NOW - 86_400_000]


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_every_codec_is_read(interop: Interop, codec: Codec) -> None:
    records = [Record(i, NOW + i, b"k%d" % i, b"value %d " % i * 200, ((b"n", b"%d" % i),)) for i in range(20)]
    topic, messages = written(interop, *records, codec=codec)
    assert [(m.partition_key(), m.data(), m.event_timestamp(), m.properties()) for m in messages] == [
        (f"k{i}", b"value %d " % i * 200, NOW + i, {"n": str(i)}) for i in range(20)
    ]
    size = interop.admin(lambda admin: admin.stats(interop.partition(topic)))["storageSize"]
    assert (size < 20_000) == (codec != Codec.NONE), size  # stored as it came


def test_one_batch_is_one_entry(interop: Interop) -> None:
    topic = interop.create(interop.name("batches"))
    batches = [[Record(i, NOW, None, b"%d" % i) for i in range(size)] for size in (3, 1, 10)]
    assert interop.write(topic, *batches) == [0, 3, 4]
    messages = interop.receive(interop.full(topic), 14)
    places = [(message.message_id().entry_id(), message.message_id().batch_index()) for message in messages]
    assert [entry for entry, _ in places] == [places[0][0]] * 3 + [places[0][0] + 1] + [places[0][0] + 2] * 10
    assert [index for entry, index in places if entry == places[0][0]] == [0, 1, 2]


def test_a_value_of_more_than_one_mebibyte(interop: Interop) -> None:
    topic = interop.create(interop.name("large"), max_message_bytes=str(4 << 20))
    value = bytes(range(256)) * 4096 * 3  # 3 MiB
    assert interop.produce(topic, [{"value": value, "key": b"k"}], {"message.max.bytes": 8 << 20}) == [0]
    (message,) = interop.receive(interop.full(topic), 1)
    assert (message.partition_key(), message.data() == value) == ("k", True)
    assert interop.consume(topic, 1, gateway=interop.other)[0].value == value


def test_a_batch_beyond_the_brokers_limit_is_split(interop: Interop) -> None:
    topic = interop.create(interop.name("split"), max_message_bytes=str(16 << 20))
    records = [Record(i, NOW + i, b"k%d" % i, bytes([i]) * (1 << 20)) for i in range(12)]
    assert interop.write(topic, records) == [0]
    assert interop.write(topic, records[:1]) == [12]
    messages = interop.receive(interop.full(topic), 13)
    assert [message.data() for message in messages] == [record.value for record in records] + [records[0].value]
    assert len({message.message_id().entry_id() for message in messages}) == 4
    for gateway in (interop.gateway, interop.other):
        assert interop.read(topic, 0, 12, gateway) == records


def test_a_compressed_batch_beyond_the_limit_once_inflated_is_read(interop: Interop) -> None:
    topic = interop.create(interop.name("inflated"))
    records = [Record(i, NOW + i, b"k%d" % i, bytes([i]) * (1 << 20)) for i in range(12)]
    assert interop.write(topic, records, codec=Codec.ZSTD) == [0]
    messages = interop.receive(interop.full(topic), 12)
    assert [message.data() for message in messages] == [record.value for record in records]
    assert interop.read(topic, 0, 12) == records


def test_records_of_aiokafka_and_of_librdkafka_are_read_alike(interop: Interop) -> None:
    topic = interop.create(interop.name("clients"))

    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=interop.gateway.bootstrap, linger_ms=20)
        await producer.start()
        try:
            sent = [
                await producer.send(topic, b"a%d" % i, key=b"k", timestamp_ms=NOW + i, headers=[("h", b"\xff")])
                for i in range(5)
            ]
            acknowledged = await asyncio.gather(*sent)
            assert [metadata.offset for metadata in acknowledged] == [0, 1, 2, 3, 4]
        finally:
            await producer.stop()

    run(send())
    records = [{"value": b"c%d" % i, "key": b"k", "timestamp": NOW + i, "headers": [("h", b"\xff")]} for i in range(5)]
    assert interop.produce(topic, records) == [5, 6, 7, 8, 9]
    messages = interop.receive(interop.full(topic), 10)
    assert [message.data() for message in messages] == [b"%c%d" % (c, i) for c in b"ac" for i in range(5)]
    assert [message.event_timestamp() for message in messages] == [NOW + i for i in range(5)] * 2
    consumed = interop.consume(topic, 10, gateway=interop.other)
    assert {tuple(record.headers or ()) for record in consumed} == {(("h", b"\xff"),)}


def test_partitions_are_those_that_the_kafka_client_chose(interop: Interop) -> None:
    topic = interop.create(interop.name("partitions"), 3)
    for partition in range(3):
        records = [{"partition": partition, "value": b"%d-%d" % (partition, i)} for i in range(4)]
        assert interop.produce(topic, records) == [0, 1, 2, 3]
    for partition in range(3):
        messages = interop.receive(interop.partition(topic, partition), 4)
        assert [message.data() for message in messages] == [b"%d-%d" % (partition, i) for i in range(4)]
    whole = interop.receive(interop.full(topic), 12)
    assert {message.data() for message in whole} == {b"%d-%d" % (p, i) for p in range(3) for i in range(4)}
