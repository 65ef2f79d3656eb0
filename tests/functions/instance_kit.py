"""Clients on both sides of a function, and instances that die."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.waiting import wait_until

from kop.client.write_client import WriteClient
from kop.testing import Broker


def produce(bootstrap: str, topic: str, values: Iterable[tuple[str | None, str]], partition: int = -1) -> None:
    """Write keys and values by librdkafka."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for key, value in values:
        producer.produce(topic, value.encode(), None if key is None else key.encode(), partition)
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str, count: int, partitions: int = 1, seconds: float = 30) -> list[Any]:
    """Read so many committed records by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    records: list[Any] = []

    def enough() -> bool:
        for message in consumer.consume(10_000, 0.1):
            assert message.error() is None
            records.append(message)
        return len(records) >= count

    try:
        wait_until(enough, f"{count} records of {topic}", seconds)
    finally:
        consumer.close()
    assert len(records) == count
    return records


def values(broker: Broker, topic: str) -> list[str]:
    """The committed values of a topic, partition by partition."""
    records = broker.records(topic, isolation_level="read_committed")
    return [(record.value or b"").decode() for record in records]


def no_retries(guarantee: str, dead_letter_topic: str = "") -> dict[str, Any]:
    """Return the flags of a function that tries no message again, whatever its guarantee."""
    if guarantee == "ATMOST_ONCE":
        return {}
    return {"max_message_retries": 0} | ({"dead_letter_topic": dead_letter_topic} if dead_letter_topic else {})


class KilledError(Exception):
    """What a killed instance meets wherever it goes on."""


class Killer:
    """Ends an instance before or after one of its requests, as kill -9 does: nothing of it gets out any more.

    Instances that begin while `spare` is set live on.
    """

    METHODS = ("add_partitions", "produce_all", "commit", "commit_in_transaction", "end_transaction")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed: tuple[str, str, int] | None = None
        self.dead = threading.Event()
        for name in self.METHODS:
            monkeypatch.setattr(WriteClient, name, self._guarded(name, getattr(WriteClient, name)))

    def arm(self, when: str, method: str, number: int = 1) -> None:
        """Kill at the `number`-th call of a method from now on."""
        self.armed = when, method, number

    def heal(self) -> None:
        """Let the next instance live."""
        self.armed = None
        self.dead.clear()

    def _guarded(self, name: str, real: Any) -> Any:
        def call(client: WriteClient, *args: Any, **kwargs: Any) -> Any:
            if self.dead.is_set():
                raise KilledError
            when, method, number = self.armed or ("", "", 0)
            hit = method == name
            if hit:
                self.armed = when, method, number - 1
            if hit and number == 1 and when == "before":
                self.dead.set()
                raise KilledError
            result = real(client, *args, **kwargs)
            if hit and number == 1:
                self.dead.set()
                raise KilledError
            return result

        return call
