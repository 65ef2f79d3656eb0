"""What two clients do that use the same names in two spaces of names, with aiokafka and confluent-kafka at once.

Owns: the names, and what each client has to see of its own.
Must not know: how clients come into a space, which engine serves.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

TOPIC: Final = "orders"
GROUP: Final = "readers"
TRANSACTIONAL_ID: Final = "writer"
_RECORDS: Final = 3
_SECONDS: Final = 60.0


async def side_by_side(*bootstraps: str) -> None:
    """Have a client of each space make the topic, write to it in a transaction and read it in a group, all at the same
    time, and check that each sees its own things alone.
    """
    await asyncio.gather(*(_work(bootstrap, str(number)) for number, bootstrap in enumerate(bootstraps)))


async def _work(bootstrap: str, mark: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    beside = set(await asyncio.to_thread(_topics, admin))
    await asyncio.to_thread(_make, admin)
    wanted = [f"{mark} {number}".encode() for number in range(_RECORDS)]
    writing = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=TRANSACTIONAL_ID)
    async with writing as producer, producer.transaction():
        for value in wanted:
            await producer.send_and_wait(TOPIC, value, partition=0)
    async with AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id=GROUP,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    ) as consumer:
        got = [await anext(consumer) for _ in wanted]
        assert [message.value for message in got] == wanted
        assert {message.topic for message in got} == {TOPIC}
        await consumer.commit()
        assert await consumer.topics() - beside == {TOPIC}
    await asyncio.to_thread(_go_on, bootstrap, wanted, mark)
    await asyncio.to_thread(_look, admin, beside)


def _make(admin: AdminClient) -> None:
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(_SECONDS)
    admin.create_partitions([NewPartitions(TOPIC, 2)])[TOPIC].result(_SECONDS)


def _go_on(bootstrap: str, before: list[bytes], mark: str) -> None:
    """Go on with the same group and transactional id, by another library."""
    config: dict[str, Any] = {"bootstrap.servers": bootstrap}
    of_group = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(config | of_group)
    producer = Producer(config | {"transactional.id": TRANSACTIONAL_ID})
    try:
        producer.init_transactions(_SECONDS)
        producer.begin_transaction()
        producer.produce(TOPIC, f"{mark} last".encode(), partition=0)
        producer.send_offsets_to_transaction(
            [TopicPartition(TOPIC, 1, 0)], consumer.consumer_group_metadata(), _SECONDS
        )
        producer.commit_transaction(_SECONDS)
        consumer.subscribe(["^ord.*"])  # offsets were committed without a member: to an empty group
        message = consumer.poll(_SECONDS)
        assert message is not None
        assert message.error() is None, message.error()
        assert (message.topic(), message.value()) == (TOPIC, f"{mark} last".encode())
        committed = consumer.committed([TopicPartition(TOPIC, index) for index in range(2)], _SECONDS)
        # A marker follows the records of a transaction where storage writes one.
        assert committed[0].offset in {len(before), len(before) + 1}
        assert committed[1].offset == 0
    finally:
        consumer.close()


def _topics(admin: AdminClient) -> dict[str, int]:
    """Return the topics that a client is told of, each with the number of its partitions."""
    topics = admin.list_topics(timeout=_SECONDS).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _look(admin: AdminClient, beside: set[str]) -> None:
    assert {name: count for name, count in _topics(admin).items() if name not in beside} == {TOPIC: 2}
    groups = admin.list_consumer_groups(request_timeout=_SECONDS).result(_SECONDS)
    assert [group.group_id for group in groups.valid] == [GROUP]
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(_SECONDS)
    assert described.group_id == GROUP
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    configs = admin.describe_configs([resource])
    assert [each.name for each in configs] == [TOPIC]
    assert "retention.ms" in configs[resource].result(_SECONDS)
