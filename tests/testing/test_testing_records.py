"""Records, offsets and groups of a test's broker without a client, and what clients make of them."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from support.waiting import SECONDS

from kop.errors import ErrorCode, KopError
from kop.records.partitioning import partition_of
from kop.testing import Broker, KafkaRecord


def consumer(broker: Broker, group: str = "g", **more: object) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest", **more})


def test_a_client_reads_what_was_seeded(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=1)
    given = [
        b"bytes",
        "text",
        None,
        ("key", "value"),
        KafkaRecord(b"v", b"k", (("h", b"1"), ("h", None)), 1_700_000_000_000),
    ]
    stored = kop_broker.produce("t", given)
    assert [(record.partition, record.offset) for record in stored] == [(0, at) for at in range(5)]
    client = consumer(kop_broker)
    client.assign([TopicPartition("t", 0, 0)])
    messages: list[Message] = []
    while len(messages) < 5:
        messages += client.consume(5, SECONDS)
    client.close()
    assert [(message.key(), message.value()) for message in messages] == [
        (None, b"bytes"), (None, b"text"), (None, None), (b"key", b"value"), (b"k", b"v"),
    ]  # fmt: skip
    assert messages[4].headers() == [("h", b"1"), ("h", None)]
    assert messages[4].timestamp()[1] == 1_700_000_000_000


def test_a_log_that_stamps_records_itself_tells_its_time(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
    stored = kop_broker.produce("t", ["now", KafkaRecord(b"old", timestamp=1_700_000_000_000)])
    assert stored == kop_broker.records("t")
    assert stored[0].timestamp == stored[1].timestamp != 1_700_000_000_000


def test_records_are_placed_as_kafkas_producer_places_them(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=4)
    stored = kop_broker.produce("t", [(f"k{i}", "v") for i in range(50)] + [KafkaRecord(b"here", partition=3)])
    keyed = [record for record in stored if record.key is not None]
    assert len(keyed) == 50
    assert all(record.partition == partition_of(record.key or b"", 4) for record in keyed)
    assert kop_broker.records("t", 3)[-1].value == b"here"
    spread = kop_broker.produce("t", [b"x"] * 8)
    assert sorted(record.partition or 0 for record in spread) == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="no partition 9: the topic has 4"):
        kop_broker.produce("t", [KafkaRecord(b"v", partition=9)])


def test_records_of_clients_are_read(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=2)
    producer = Producer({"bootstrap.servers": kop_broker.bootstrap, "compression.type": "lz4"})
    for at in range(2500):
        producer.produce("t", b"%d" % at, b"k", headers=[("h", b"x")], partition=at % 2)
    assert producer.flush(SECONDS) == 0
    read = kop_broker.records("t")
    assert [record.offset for record in read] == [*range(1250)] * 2
    assert [int(record.value or b"") for record in read] == [*range(0, 2500, 2), *range(1, 2500, 2)]
    assert {(record.key, record.headers) for record in read} == {(b"k", (("h", b"x"),))}
    assert kop_broker.records("t", 1) == read[1250:]
    assert kop_broker.topics() == {"t": 2}


def test_records_of_open_and_aborted_transactions_are_told_apart(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=1)
    kop_broker.produce("t", ["before"])
    producer = Producer({"bootstrap.servers": kop_broker.bootstrap, "transactional.id": "x"})
    producer.init_transactions(SECONDS)
    for value, ends in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("t", value)
        assert producer.flush(SECONDS) == 0
        ends(SECONDS)
    producer.begin_transaction()
    producer.produce("t", b"open")
    assert producer.flush(SECONDS) == 0
    kop_broker.produce("t", ["behind"])
    values = [record.value for record in kop_broker.records("t")]
    assert values == [b"before", b"aborted", b"committed", b"open", b"behind"]
    committed = [record.value for record in kop_broker.records("t", isolation_level="read_committed")]
    assert committed == [b"before", b"committed"]
    assert "an open transaction holds readers of committed records at" in kop_broker.report()
    producer.abort_transaction(SECONDS)


def test_groups_and_what_they_committed(kop_broker: Broker) -> None:
    kop_broker.produce("t", ["a", "b", "c"])
    client = consumer(kop_broker, "billing", **{"client.id": "c1"})
    client.subscribe(["t"])
    while (message := client.poll(SECONDS)) is None or message.value() != b"c":
        pass
    client.commit(asynchronous=False)
    assert kop_broker.committed("billing") == {("t", 0): 3}
    assert kop_broker.groups() == [("billing", "Stable", ("c1",))]
    client.close()
    assert kop_broker.groups() == [("billing", "Empty", ())]
    assert kop_broker.committed("nobody") == {}


def test_mistakes_are_told_in_words(kop_broker: Broker) -> None:
    kop_broker.create_topic("orders", partitions=1)
    with pytest.raises(KopError, match="no topic 'order'; do you mean 'orders'") as caught:
        kop_broker.records("order")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KopError, match="orders has no partition 1; it has 1"):
        kop_broker.records("orders", 1)
    with pytest.raises(TypeError, match="a record is bytes, text"):
        kop_broker.produce("orders", [7])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="not 'committed'"):
        kop_broker.records("orders", isolation_level="committed")
