"""What a read of PySpark with includeMetadata is told of each record: Pulsar's own message id and publish time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import confluent_kafka as ck
import pulsar as native
import pytest
from interop.interop_kit import Interop
from support.pulsar import Urls, fresh_namespace
from support.pulsar_gateway import PulsarGateway
from support.waiting import wait_until

from kop.client.offsets import LATEST
from kop.client.read_client import ReadClient
from kop.spark.fetching import ReadSettings, read_range
from kop.spark.options import batch_options
from kop.spark.planning import OffsetRange

pytestmark = pytest.mark.pulsar


class Told(NamedTuple):
    """What is known of a message."""

    value: bytes
    message_id: str
    publish_time: int
    """Milliseconds."""


@pytest.fixture(scope="module")
def packed(pulsar_urls: Urls) -> Iterator[PulsarGateway]:
    """A gateway whose offsets are packed message ids."""
    with fresh_namespace(pulsar_urls) as pulsar:
        gateway = PulsarGateway(pulsar, kop_pulsar_offsets="packed").start()
        try:
            yield gateway
        finally:
            gateway.stop()


def read(gateway: PulsarGateway, topic: str, start: int = 0, end: int | None = None, **more: str) -> list[Told]:
    """The records of partition 0 as a task of PySpark reads them."""
    said = {"kafka.bootstrap.servers": gateway.bootstrap, "subscribe": topic, "includeMetadata": "true"}
    options = batch_options(said | {f"kafka.{name.replace('_', '.')}": value for name, value in more.items()})
    settings = ReadSettings(options.fetch, headers=False, fail_on_data_loss=True, poll_timeout_ms=100_000)
    client = ReadClient(options.connection.settings, 100_000)
    try:
        topic_id = client.topics({topic})[topic].topic_id
        stop = client.list_offsets({(topic, 0): LATEST}, options.fetch.isolation)[topic, 0] if end is None else end
        batches = list(read_range(client, OffsetRange(topic, topic_id, 0, start, stop), settings))
    finally:
        client.close()
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [Told(row["value"], row["metadata"]["message_id"], milliseconds(row)) for row in rows]


def milliseconds(row: dict[str, Any]) -> int:
    return round(row["metadata"]["publish_time"].timestamp() * 1000)


def of_pulsar(message: native.Message) -> Told:
    """The same of what a consumer of Pulsar got."""
    place = message.message_id()
    return Told(
        message.data(), f"{place.ledger_id()}:{place.entry_id()}:{place.batch_index()}", message.publish_timestamp()
    )


def test_messages_of_both_sides_have_the_ids_and_times_that_a_consumer_of_pulsar_sees(interop: Interop) -> None:
    topic = interop.create(interop.name())
    interop.produce(topic, [{"value": b"kafka-%d" % number} for number in range(5)])
    partition = interop.partition(topic)
    interop.send(partition, [{"content": b"alone"}], batching_enabled=False)
    interop.send(
        partition,
        [{"content": b"batched-%d" % number} for number in range(4)],
        batching_enabled=True,
        batching_max_publish_delay_ms=200,
    )
    interop.send(partition, [{"content": b"c" * 6_000_000}], chunking_enabled=True, batching_enabled=False)
    interop.produce(topic, [{"value": b"%d" % number} for number in range(50)], {"compression.type": "zstd"})
    expected = [of_pulsar(message) for message in interop.receive(partition, 61)]
    wait_until(lambda: interop.ends(topic)[1] >= 61, "what was sent beside the gateway")
    interop.known(topic, interop.other)
    # Of the gateway that wrote them, whose memory holds them, and of another one; whole, and from within batches.
    for gateway in (interop.gateway, interop.other):
        assert read(gateway, topic) == expected
        assert read(gateway, topic, 7, 41) == expected[7:40]  # the message in two chunks has two offsets
    assert read(interop.gateway, topic, max_partition_fetch_bytes="100", fetch_max_bytes="100") == expected


def ended(producer: ck.Producer, topic: str, commit: bool) -> bool:
    """One transaction. False where it had to be aborted: Pulsar may close a producer of the gateway meanwhile."""
    producer.begin_transaction()
    try:
        for number in range(3):
            producer.produce(topic, b"%s-%d" % (str(commit).encode(), number), partition=0)
        producer.flush(100)
        if commit:
            producer.commit_transaction(100)
            return True
    except ck.KafkaException as failure:
        error = failure.args[0]
        if not error.txn_requires_abort() and error.code() != ck.KafkaError._STATE:
            raise
    producer.abort_transaction(100)
    return not commit


def test_transactions_that_were_committed_have_theirs(interop: Interop) -> None:
    topic = interop.create(interop.name())
    producer = ck.Producer({"bootstrap.servers": interop.gateway.bootstrap, "transactional.id": topic})
    producer.init_transactions(100)
    for commit in (True, False, True):
        wait_until(partial(ended, producer, topic, commit), "the transaction ends")
    expected = [of_pulsar(message) for message in interop.receive(interop.partition(topic), 6)]
    assert [told.value for told in expected] == [b"True-%d" % number for number in range(3)] * 2
    interop.known(topic, interop.other)
    assert read(interop.gateway, topic, isolation_level="read_committed") == expected
    assert read(interop.other, topic) == expected


def test_packed_offsets_have_them_too(packed: PulsarGateway, pulsar_urls: Urls) -> None:
    producer = ck.Producer({"bootstrap.servers": packed.bootstrap, "linger.ms": 50})
    for number in range(10):
        producer.produce("t", b"%d" % number, partition=0)
    assert producer.flush(100) == 0
    full_name = packed.engine.context.naming.full_name("t", False)
    client = native.Client(pulsar_urls[0], logger=native.ConsoleLogger(native.LoggerLevel.Error))
    try:
        reader = client.create_reader(f"{full_name}-partition-0", native.MessageId.earliest)
        expected = [of_pulsar(reader.read_next(100_000)) for _ in range(10)]
    finally:
        client.close()
    assert read(packed, "t") == expected
