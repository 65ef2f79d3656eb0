"""The raw client of the benchmark sends what Kafka's clients send, and counts what a broker has taken or given."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import pytest
import uvloop

from conformance.bench import client, raw
from conformance.bench.client import create, delete, read, transactions
from conformance.bench.kafka_frames import CommitRequest, FetchRequest, ProduceRequest, batch, read_uvarint, uvarint
from kop.records.batch import check_produced, iter_records, read_header
from kop.testing import Broker
from kop.wire import produce

_HEADER = 4 + 8 + 2 + 5 + 1
"""Length, API and version and correlation id, client id, tags."""
numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One for all tests of the module."""
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of 100 partitions."""
    name = f"bench-{next(numbers)}"
    create(broker.bootstrap, name, 100)
    return name


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_batch_is_taken_by_the_checks_of_a_broker(codec: str) -> None:
    made = batch(15, 1024, codec)
    header = check_produced(made, max_message_bytes=2**20, zstd_allowed=True)
    assert header.record_count == 15
    records = list(iter_records(made, header, max_bytes=2**20))
    assert [len(record.value or b"") for record in records] == [1024] * 15
    assert (len(made) < 15 * 1024 * 0.7) == (codec != "none")


@pytest.mark.parametrize("partitions", [[0], [3, 7, 99]])
def test_an_idempotent_request_gets_the_next_sequences_and_their_checksum(partitions: list[int]) -> None:
    made = ProduceRequest("t", partitions, batch(15, 100, producer=(7, 2)))
    for turn in range(3):
        frame = made.next(turn)
        assert struct.unpack_from(">ihhi", frame) == (len(frame) - 4, 0, 12, turn)
        call = produce.parse(memoryview(frame)[_HEADER:], 12)
        assert (call.acks, [entry.topic for entry in call.topics]) == (-1, ["t"])
        assert [entry.partition for entry in call.topics[0].partitions] == partitions
        for entry in call.topics[0].partitions:
            assert entry.records is not None
            header = read_header(entry.records)
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 15 * turn)
            assert struct.unpack_from(">I", entry.records, 17)[0] == crc32c.crc32c(entry.records[21:])


def test_sequences_begin_again_after_the_last_one() -> None:
    data = bytearray(batch(15, 100, producer=(7, 2)))
    struct.pack_into(">i", data, 57, 2**30)  # how many records it claims: two of it take all sequences that there are
    made = ProduceRequest("t", [0], bytes(data))
    sequences = []
    for turn in range(3):
        call = produce.parse(memoryview(made.next(turn))[_HEADER:], 12)
        records = call.topics[0].partitions[0].records
        assert records is not None
        sequences.append(read_header(records).base_sequence)
    assert sequences == [0, 2**30, 0]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**31])
def test_varints_come_back(value: int) -> None:
    assert read_uvarint(b"x" + uvarint(value), 1) == (value, 1 + len(uvarint(value)))


@pytest.mark.parametrize(
    "settings",
    [
        {"records": 1, "in_flight": 8},
        {"records": 15, "in_flight": 5, "idempotent": True},
        {"records": 15, "in_flight": 5, "idempotent": True, "codec": "zstd"},
        {"records": 1, "in_flight": 1, "idempotent": True, "connections": 20, "partitions": 10},
        {"records": 1, "in_flight": 2, "partitions": 100, "batches": 100},
    ],
    ids=lambda settings: ",".join(f"{name}={value}" for name, value in settings.items()),
)
def test_what_the_raw_client_counts_is_in_the_log(broker: Broker, topic: str, settings: dict[str, Any]) -> None:
    sent = uvloop.run(raw.produce(broker.bootstrap, topic, requests=20, record_bytes=100, **settings))
    connections, batches = settings.get("connections", 1), settings.get("batches", 1)
    assert sent["requests"] == 20 * connections
    assert sent["records"] == 20 * connections * batches * settings["records"]
    in_partition_0 = int(sent["records"]) // settings.get("partitions", 1)
    read = uvloop.run(raw.fetch(broker.bootstrap, topic, in_partition_0, 100, times=2))
    assert (read["records"], read["bytes"]) == (2 * in_partition_0, 200 * in_partition_0)
    assert end_of(broker, topic) == in_partition_0


def end_of(broker: Broker, topic: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)[1])
    finally:
        consumer.close()


def test_every_group_commits_what_it_was_told(broker: Broker, topic: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    done = uvloop.run(raw.commit(broker.bootstrap, topic, 0.5, 3))
    committed = 0
    for number in range(3):
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-{number}"})
        committed += consumer.committed([TopicPartition(topic, 0)], 30)[0].offset
        consumer.close()
    assert committed == done["requests"] >= 3


@pytest.mark.parametrize("plain", [False, True])
def test_transactions_and_flushes_count_all_but_the_first_and_are_read_by_both_kinds_of_consumers(
    broker: Broker, plain: bool
) -> None:
    name = f"bench-{next(numbers)}"
    create(broker.bootstrap, name, 1)
    sent = transactions(broker.bootstrap, name, 60, 10, 3, plain=plain)
    assert (sent["requests"], sent["records"], sent["bytes"]) == (3, 30, 30 * 1024)
    assert 0 < sent["p50_ms"] <= sent["p99_ms"]
    assert end_of(broker, name) == (40 if plain else 44)
    for isolation in ("read_committed", "read_uncommitted"):
        assert read(broker.bootstrap, name, 40, isolation, 2)["records"] == 80


def test_so_many_records_are_written_to_all_partitions_and_read_from_them(broker: Broker) -> None:
    name = f"bench-{next(numbers)}"
    create(broker.bootstrap, name, 3)
    assert client.produce(broker.bootstrap, name, 60, 16_384, 1000)["records"] == 1000
    assert read(broker.bootstrap, name, 1000, "read_committed", 1, 3)["bytes"] == 1000 * 1024


@pytest.mark.parametrize(
    "request_of", [lambda t: ProduceRequest(t, [5], batch(1, 10)), lambda t: FetchRequest(t, 5, 1)]
)
def test_an_error_ends_a_load_with_its_code(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[str], raw.Request]
) -> None:
    monkeypatch.setattr(raw, "START_SECONDS", 0.3)  # until then the topic might still be made

    async def ask() -> None:
        connection = await raw.connect(broker.bootstrap, 1, 0, 0)
        try:
            await connection.run(request_of("never-made"))
        finally:
            connection.close()

    with pytest.raises(raw.LoadFailed, match="error 3"):
        uvloop.run(ask())


def test_the_error_of_a_commit_is_read(broker: Broker, topic: str) -> None:
    async def ask() -> int:
        connection = await raw.connect(broker.bootstrap, 1, 0, 0)
        made = CommitRequest("g", topic, 200)
        code = made.error(await connection.ask(made.next(0)))
        connection.close()
        return code

    assert uvloop.run(ask()) == 3


def test_a_topic_can_be_deleted(broker: Broker, topic: str) -> None:
    delete(broker.bootstrap, topic)
    create(broker.bootstrap, topic, 1)
