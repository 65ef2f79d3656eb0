"""kill -9 under load: what was acknowledged is there, once, in order; and so are committed offsets."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sized
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.child import Child, child
from support.waiting import SECONDS, wait_until

PARTITIONS = 2
KILLS = 4
MOST_UNANSWERED = 50_000
"""Fewer than the producer's queue holds: a gateway on a busy machine takes seconds to come back."""


def create(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})  # its futures end with it
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(SECONDS)


def produce_while_it_dies(server: Child, rng: random.Random) -> tuple[dict[int, tuple[int, int]], int]:
    """Produce numbers while the server is killed and started again; returns what was acknowledged where, and how many
    numbers were given out."""
    acknowledged: dict[int, tuple[int, int]] = {}
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error)
            return
        acknowledged[int(message.value())] = (message.partition(), message.offset())

    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "batch.size": 4096,
            "message.timeout.ms": 150_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "on_delivery": delivered,
            "log_level": 0,
        }
    )
    killer = threading.Thread(target=kill_now_and_then, args=(server, rng, acknowledged))
    killer.start()
    number = 0
    while killer.is_alive():
        if number - len(acknowledged) < MOST_UNANSWERED:
            for _ in range(20):
                producer.produce("load", str(number).encode(), partition=number % PARTITIONS)
                number += 1
        producer.poll(0.002)
    killer.join()
    assert producer.flush(SECONDS) == 0
    assert not refused, refused[:3]
    return acknowledged, number


def kill_now_and_then(server: Child, rng: random.Random, acknowledged: Sized) -> None:
    """At any moment, but each time a few hundred records later."""

    def more(count: int) -> None:
        goal = len(acknowledged) + count
        wait_until(lambda: len(acknowledged) >= goal, f"{count} more acknowledgements")

    for _ in range(KILLS):
        more(rng.randrange(200, 2000))
        time.sleep(rng.uniform(0, 0.1))  # at any moment
        server.kill()
        time.sleep(rng.uniform(0, 0.2))  # some of the load meets nobody
        server.start()
    more(200)


def stored(address: str) -> dict[int, list[tuple[int, int]]]:
    """Offset and number of every record, by partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "check", "enable.auto.commit": False})
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for partition in range(PARTITIONS):
        place = TopicPartition("load", partition, 0)
        end = consumer.get_watermark_offsets(place, timeout=SECONDS)[1]
        consumer.assign([place])
        rows = by_partition[partition] = []
        deadline = time.monotonic() + SECONDS
        while len(rows) < end:
            assert time.monotonic() < deadline, f"{len(rows)} of {end} records of partition {partition}"
            for message in consumer.consume(1000, 0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                rows.append((message.offset(), int(message.value())))
    consumer.close()
    return by_partition


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_every_acknowledged_record_is_there_once_and_in_order_after_kill_9_under_load(
    tmp_path: Path, seed: int
) -> None:
    with child(tmp_path) as server:
        create(server.address, "load")
        acknowledged, given_out = produce_while_it_dies(server, random.Random(seed))
        assert len(acknowledged) == given_out > 500, "after the last start every record gets through"
        by_partition = stored(server.address)
    for partition, rows in by_partition.items():
        assert [offset for offset, _ in rows] == list(range(len(rows))), "offsets without a gap"
        numbers = [number for _, number in rows]
        assert numbers == sorted(set(numbers)), f"partition {partition}: each number once, in the order of sending"
    where = {number: (partition, offset) for partition, rows in by_partition.items() for offset, number in rows}
    assert acknowledged == where, "each record lies where its acknowledgement said"


def test_committed_offsets_survive_kill_9(tmp_path: Path) -> None:
    with child(tmp_path) as server:
        create(server.address, "load")
        settings = {"bootstrap.servers": server.address, "group.id": "g", "enable.auto.commit": False, "log_level": 0}
        for offset in range(1, 6):
            consumer = Consumer(settings)
            consumer.commit(
                offsets=[TopicPartition("load", p, offset * 10 + p) for p in range(PARTITIONS)], asynchronous=False
            )
            server.kill()
            server.start()
            consumer.close()
            consumer = Consumer(settings)
            kept = consumer.committed([TopicPartition("load", p) for p in range(PARTITIONS)], timeout=SECONDS)
            assert [place.offset for place in kept] == [offset * 10 + p for p in range(PARTITIONS)]
            consumer.close()


TRANSACTIONS = 40


def run_transaction(producer: Producer, number: int) -> bool:
    """A transaction with two records in each partition; every third one is aborted. Whether it was committed."""
    commit = number % 3 > 0
    producer.begin_transaction()
    try:
        for partition in range(PARTITIONS):
            for i in range(2):
                producer.produce("load", f"{number}-{i}".encode(), partition=partition)
        producer.flush(SECONDS)
        while commit:
            try:
                producer.commit_transaction(SECONDS)
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
            else:
                return True
    except KafkaException as failure:
        if not failure.args[0].txn_requires_abort():
            raise
    while True:
        try:
            producer.abort_transaction(SECONDS)
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise
        else:
            return False


@pytest.mark.timeout(300)
def test_transactions_are_whole_after_kill_9_under_load(tmp_path: Path) -> None:
    rng = random.Random(5)
    with child(tmp_path) as server:
        create(server.address, "load")
        producer = Producer(
            {
                "bootstrap.servers": server.address,
                "transactional.id": "x",
                "linger.ms": 1,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        producer.init_transactions(SECONDS)
        done: list[bool] = []
        killer = threading.Thread(target=kill_in_transactions, args=(server, rng, done))
        killer.start()
        for number in range(TRANSACTIONS):
            done.append(run_transaction(producer, number))
        killer.join()
        consumer = Consumer(
            {
                "bootstrap.servers": server.address,
                "group.id": "check",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition("load", partition, 0)])
            values: list[bytes] = []
            while (message := consumer.poll(SECONDS)) is not None:
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    break
                values.append(message.value())
            assert values == [
                f"{number}-{i}".encode() for number, committed in enumerate(done) if committed for i in range(2)
            ]
            position = consumer.position([TopicPartition("load", partition)])[0].offset
            assert position == consumer.get_watermark_offsets(TopicPartition("load", partition), timeout=SECONDS)[1]
        consumer.close()
    assert sum(done) > TRANSACTIONS // 4


def reached(done: Sized, goal: int) -> bool:
    return len(done) >= goal


def kill_in_transactions(server: Child, rng: random.Random, done: Sized) -> None:
    """At any moment, each time some transactions later."""
    for goal in (3, 9, 16, 24, 32):
        wait_until(partial(reached, done, goal), "the next transactions")
        time.sleep(rng.uniform(0, 0.05))  # at any moment within a transaction: nothing tells of its steps
        server.kill()
        server.start()
