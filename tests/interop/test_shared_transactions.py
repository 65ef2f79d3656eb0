"""Kafka's transactional producers and consumers on topics that Pulsar's own consumers read, too."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import confluent_kafka as ck
import pulsar as native
import pytest
from interop.interop_kit import SECONDS, Interop, raw, take
from support.pulsar_gateway import PulsarGateway
from support.waiting import until, wait_until

from kop.errors import ErrorCode
from kop.transactions import ends
from kop.wire.messages import DescribeProducersRequest


@pytest.fixture(scope="module")
def shared(interop: Interop) -> Iterator[Interop]:
    """Two gateways that share their coordinators."""
    gateways = [PulsarGateway(interop.pulsar, "transactions", node_id=str(number)).start() for number in (1, 2)]
    yield replace(interop, gateway=gateways[0], other=gateways[1])
    for gateway in gateways:
        gateway.stop()


class Transactional:
    """A transactional producer; it notes the offsets that it is told."""

    def __init__(self, gateway: PulsarGateway, name: str, **settings: object) -> None:
        self.producer = ck.Producer(
            {
                "bootstrap.servers": gateway.bootstrap,
                "transactional.id": name,
                "linger.ms": 5,
                "transaction.timeout.ms": 60_000,
                **settings,
            }
        )
        self.producer.init_transactions(SECONDS)

    def write(self, topic: str, *values: str, partition: int = 0) -> list[int]:
        told: list[int] = []

        def delivered(error: object, message: ck.Message) -> None:
            assert error is None, error
            told.append(message.offset())

        for value in values:
            self.producer.produce(topic, value, partition=partition, on_delivery=delivered)
        assert self.producer.flush(SECONDS) == 0
        return told


def consumed(interop: Interop, topic: str, count: int, isolation: str = "read_committed") -> list[tuple[int, str]]:
    with interop.consumer(topic, {"isolation.level": isolation}, gateway=interop.other) as consumer:
        return [(record.offset, (record.value or b"").decode()) for record in take(consumer, count)]


def producers_of(gateway: PulsarGateway, topic: str) -> list[Any]:
    """The active producers of partition 0 as a gateway describes them.

    It is asked again, as clients ask, where it does not know the topic yet, or another broker was silent.
    """

    async def ask() -> list[Any]:
        async with raw(gateway) as client:

            async def answered() -> list[Any]:
                rows = [DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])]
                (part,) = (await client.call(61, 0, topics=rows)).topics[0].partitions
                if part.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                    return []
                assert part.error_code == 0, part.error_message
                return [part]

            (part,) = await until(answered)
            producers: list[Any] = part.active_producers
            return producers

    return asyncio.run(ask())


def received(interop: Interop, topic: str, count: int) -> list[str]:
    return [message.data().decode() for message in interop.receive(interop.partition(topic), count)]


def test_both_kinds_of_consumer_get_what_was_committed_once_and_in_order(shared: Interop) -> None:
    topic = shared.create(shared.name())
    writer = Transactional(shared.gateway, shared.name())
    expected = []
    for number in range(6):
        writer.producer.begin_transaction()
        values = [f"{number}-{index}" for index in range(50)]
        offsets = writer.write(topic, *values)
        assert offsets == list(range(offsets[0], offsets[0] + 50))
        shared.produce(topic, [{"value": f"plain-{number}"}])
        if number % 2:
            writer.producer.abort_transaction(SECONDS)
        else:
            writer.producer.commit_transaction(SECONDS)
            expected += list(zip(offsets, values, strict=True))
        expected += [(offsets[-1] + 1, f"plain-{number}")]
    assert consumed(shared, topic, len(expected)) == expected
    assert consumed(shared, topic, len(expected), "read_uncommitted") == expected
    assert received(shared, topic, len(expected)) == [value for _, value in expected]


def test_nothing_is_seen_of_an_open_transaction(shared: Interop) -> None:
    topic = shared.create(shared.name())
    writer = Transactional(shared.gateway, shared.name())
    writer.producer.begin_transaction()
    writer.write(topic, "a", "b")
    for isolation in ("read_committed", "read_uncommitted"):
        with shared.consumer(topic, {"isolation.level": isolation}) as consumer:
            assert consumer.poll(0.5) is None  # what must not come has no event
    reader = shared.native.create_reader(shared.partition(topic), native.MessageId.earliest)
    assert not reader.has_message_available()
    writer.producer.commit_transaction(SECONDS)
    assert [reader.read_next(int(SECONDS * 1000)).data() for _ in range(2)] == [b"a", b"b"]
    reader.close()
    assert [value for _, value in consumed(shared, topic, 2)] == ["a", "b"]


def test_offsets_are_committed_with_what_was_made_of_them(shared: Interop) -> None:
    source, target, group = shared.create(shared.name("source")), shared.create(shared.name("target")), shared.name()
    shared.produce(source, [{"value": f"{number}"} for number in range(20)])
    consumer = ck.Consumer(
        {
            "bootstrap.servers": shared.gateway.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    writer = Transactional(shared.other, secrets.token_hex(4))
    for commit in (False, True):
        records = take(consumer, 20)
        writer.producer.begin_transaction()
        writer.write(target, *((record.value or b"").decode() + "!" for record in records))
        position = consumer.position(consumer.assignment())
        writer.producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), SECONDS)
        if commit:
            writer.producer.commit_transaction(SECONDS)
        else:
            writer.producer.abort_transaction(SECONDS)
            assert [each.offset for each in consumer.committed(consumer.assignment(), SECONDS)] == [ck.OFFSET_INVALID]
            consumer.seek(ck.TopicPartition(source, 0, 0))
    assert [each.offset for each in consumer.committed(consumer.assignment(), SECONDS)] == [20]
    consumer.close()
    assert [value for _, value in consumed(shared, target, 20)] == [f"{number}!" for number in range(20)]


def test_a_new_instance_ends_what_the_old_one_left_open(shared: Interop) -> None:
    topic, name = shared.create(shared.name()), shared.name()
    old = Transactional(shared.gateway, name)
    old.producer.begin_transaction()
    old.write(topic, "left open")
    new = Transactional(shared.other, name)
    new.producer.begin_transaction()
    new.write(topic, "mine")
    new.producer.commit_transaction(SECONDS)
    with pytest.raises(ck.KafkaException) as fenced:
        old.producer.commit_transaction(SECONDS)
    assert fenced.value.args[0].fatal()
    assert [value for _, value in consumed(shared, topic, 1)] == ["mine"]


def test_a_transaction_goes_on_after_an_unload(shared: Interop) -> None:
    topic = shared.create(shared.name())
    writer = Transactional(shared.gateway, shared.name())
    writer.producer.begin_transaction()
    offsets = writer.write(topic, "before")
    shared.admin(lambda admin: admin.unload(shared.partition(topic)))
    offsets += writer.write(topic, "after", "at the end")
    writer.producer.commit_transaction(SECONDS)
    expected = list(zip(offsets, ["before", "after", "at the end"], strict=True))
    assert consumed(shared, topic, 3) == expected
    assert received(shared, topic, 3) == ["before", "after", "at the end"]


def test_producers_are_told_by_the_broker_that_did_not_take_their_records(shared: Interop) -> None:
    topic = shared.create(shared.name())
    with_id = ck.Producer({"bootstrap.servers": shared.gateway.bootstrap, "enable.idempotence": True})
    with_id.produce(topic, "v", partition=0)
    assert with_id.flush(SECONDS) == 0

    def told(gateway: PulsarGateway) -> list[int]:
        return [producer.producer_id for producer in producers_of(gateway, topic)]

    (producer_id,) = told(shared.gateway)
    assert told(shared.other) == [producer_id]


def test_every_broker_names_the_producer_of_an_open_transaction(shared: Interop) -> None:
    topic = shared.create(shared.name())
    writer = Transactional(shared.gateway, shared.name())
    writer.producer.begin_transaction()
    (offset,) = writer.write(topic, "v")

    def begun(gateway: PulsarGateway) -> list[int]:
        """The offsets at which transactions are told to begin."""
        return [producer.current_txn_start_offset for producer in producers_of(gateway, topic)]

    for gateway in (shared.gateway, shared.other):
        assert begun(gateway) == [0]
    writer.producer.commit_transaction(SECONDS)
    assert consumed(shared, topic, 1) == [(offset, "v")]
    for gateway in (shared.gateway, shared.other):
        # The coordinator notes the end a moment after consumers see it. A producer that is idle is not named any more.
        wait_until(lambda: set(begun(gateway)) <= {-1})  # noqa: B023


def test_nobody_sees_an_open_transaction_on_a_topic_that_was_made_again(shared: Interop) -> None:
    topic = shared.create(shared.name())
    writer = Transactional(shared.gateway, shared.name())
    writer.producer.begin_transaction()
    writer.write(topic, "in the topic that is deleted")
    shared.delete(topic)
    shared.create(topic)
    writer.write(topic, "aborted")
    with shared.consumer(topic) as consumer:
        assert consumer.poll(0.5) is None  # what must not come has no event
    writer.producer.abort_transaction(SECONDS)
    shared.produce(topic, [{"value": "plain"}])
    assert [value for _, value in consumed(shared, topic, 1)] == ["plain"]


def test_what_a_gateway_left_open_ends_as_soon_as_the_next_one_has_loaded_it(
    interop: Interop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no lease, since Pulsar says that nobody else writes: gateways that live shortly get on, too."""
    monkeypatch.setattr(ends, "LEASE_SECONDS", 3600.0)
    topic = interop.create(interop.name())
    gateway = PulsarGateway(interop.pulsar, "short-lived").start()
    try:
        for number in range(3):
            producer = Transactional(gateway, "restarted")
            producer.producer.begin_transaction()
            producer.write(topic, f"committed {number}")
            producer.producer.commit_transaction(SECONDS)
            producer.producer.begin_transaction()
            producer.write(topic, f"left open {number}")
            gateway.restart()
        Transactional(gateway, "restarted")
    finally:
        gateway.stop()
    assert [value for _, value in consumed(interop, topic, 3)] == [f"committed {number}" for number in range(3)]
