"""200 topics of 8 partitions, as three clients see them. Runs last: a broker of one disk is busy with it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from suite import Run, Suite, eventually, same

logging.getLogger("kafka").setLevel(logging.CRITICAL)
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
suite = Suite("many-topics", "200 x 8", workers=1)

TOPICS = 200
PARTITIONS = 8
PREFIX = f"conf-many-{secrets.token_hex(4)}-"


NAMES = tuple(f"{PREFIX}{i:03d}" for i in range(TOPICS))
_made = threading.Event()


def topics(run: Run) -> tuple[str, ...]:
    """The topics, made by whichever case comes first; no two cases run at once."""
    if _made.is_set():
        return NAMES
    client = KafkaAdminClient(**run.kafka_python)
    try:
        client.create_topics(
            {n: {"num_partitions": PARTITIONS, "replication_factor": 1} for n in NAMES}, timeout_ms=120_000
        )
        eventually(lambda: set(NAMES) <= set(client.list_topics()), 60)
    finally:
        client.close()
    _made.set()
    return NAMES


@suite.case(limit=200)
def kafka_python_creates_and_describes_all(run: Run) -> None:
    names = topics(run)
    client = KafkaAdminClient(**run.kafka_python)
    try:
        brokers = {b["broker_id"] for b in client.describe_cluster()["brokers"]}
        for descriptions in (client.describe_topics(list(names)), client.describe_topics()):
            mine = {t["name"]: t for t in descriptions if t["name"] in names}
            same({(t["error_code"], len(t["partitions"])) for t in mine.values()}, {(0, PARTITIONS)})
            same(len({t["topic_id"] for t in mine.values()}), TOPICS, "topic ids")
            assert {p["leader_id"] for t in mine.values() for p in t["partitions"]} <= brokers, "a leader is no broker"
    finally:
        client.close()


@suite.case(limit=260)
def kafka_python_finds_the_ends_of_1600_partitions(run: Run) -> None:
    """A broker that has none of them open has to load each, and a request to be answered within kafka-python's 30 s."""
    partitions = [TopicPartition(name, p) for name in topics(run) for p in range(PARTITIONS)]
    client = KafkaConsumer(**run.kafka_python)
    try:
        same(set(client.beginning_offsets(partitions, timeout_ms=120_000).values()), {0})
        same(len(client.end_offsets(partitions, timeout_ms=120_000)), TOPICS * PARTITIONS)
    finally:
        client.close()


@suite.case(limit=150)
def confluent_lists_all_and_produces_to_each(run: Run) -> None:
    names = topics(run)
    listed = AdminClient(run.librdkafka).list_topics(timeout=20).topics
    same({len(listed[n].partitions) for n in names}, {PARTITIONS})
    producer = Producer(run.librdkafka | {"linger.ms": 5})
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    for name in names:
        for partition in range(PARTITIONS):
            producer.produce(name, b"x", partition=partition, on_delivery=delivered)
    same((producer.flush(120), errors), (0, []), "(not delivered, errors)")


@suite.case(limit=300)
async def aiokafka_consumes_one_record_of_each_partition_by_pattern(run: Run) -> None:
    await asyncio.to_thread(confluent_lists_all_and_produces_to_each, run)
    consumer = AIOKafkaConsumer(**run.aiokafka, group_id=run.group(), auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.subscribe(pattern=f"^{PREFIX}.*")
        missing = {(name, partition) for name in topics(run) for partition in range(PARTITIONS)}
        try:
            async with asyncio.timeout(120):  # Pulsar may take 30 s and more for a new partition's transaction buffer
                while missing:
                    batches = (await consumer.getmany(timeout_ms=500)).values()
                    missing -= {(record.topic, record.partition) for batch in batches for record in batch}
        except TimeoutError:
            raise AssertionError(f"no record of {len(missing)} partitions in 120 s: {sorted(missing)[:5]}") from None
    finally:
        await consumer.stop()


@suite.case(limit=200)
async def aiokafka_deletes_all(run: Run) -> None:
    names = topics(run)
    client = AIOKafkaAdminClient(**run.aiokafka)
    await client.start()
    try:
        answer = await client.delete_topics(list(names), timeout_ms=60_000)
        same({code[1] for code in answer.topic_error_codes}, {0})
        for _ in range(300):
            if not set(names) & set(await client.list_topics()):
                return
            await asyncio.sleep(0.2)
        raise AssertionError("some are still listed after 60 s")
    finally:
        await client.close()


if __name__ == "__main__":
    suite.main()
