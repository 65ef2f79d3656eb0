"""The clients of a run, none of them this project's: who writes the inputs, who reads all topics when it is over.

Owns: how inputs are written, some of them in transactions that are aborted; how a topic is read wholly.
Must not know: functions, faults, and what is right.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from conformance.functions.oracle import Message, Output, Place

ANSWER_SECONDS = 30.0
ABORTED = 0.15
"""The share of transactions that are aborted."""
KEYS = 23
BURST = 10
"""Messages that are written one after the other."""


class Source:
    """Writes two topics: one by an idempotent producer, one with keys in transactions.

    What is stored is read in the end, so nothing is noted here: where an answer was lost it may be there or not.
    """

    def __init__(self, bootstrap: str, plain: Place, keyed: Place, seed: int, rate: float) -> None:
        """`plain` and `keyed` are topics, with the number of their partitions."""
        self._settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "reconnect.backoff.max.ms": 200,
            "message.timeout.ms": 120_000,
            "log_level": 0,
        }
        self._plain = plain
        self._keyed = keyed
        self._rng = random.Random(f"{seed} source")
        self.pause = 2 * BURST / rate
        """Seconds between what is written of a topic at once."""
        self.sent = 0
        self._next = 0
        """The number of the next message of the topic without keys."""

    def write_plain(self, stop: threading.Event) -> None:
        """Write the topic without keys until `stop`."""
        producer = Producer(self._settings)
        while not stop.wait(self.pause):
            for _ in range(BURST):
                if len(producer) < 5_000:
                    self._write_next(producer)
            producer.poll(0)
        producer.flush(4 * ANSWER_SECONDS)

    def write_last(self) -> None:
        """Write one more message to each partition of the topic without keys."""
        producer = Producer(self._settings)
        for _ in range(self._plain[1]):
            self._write_next(producer)
        producer.flush(ANSWER_SECONDS)

    def _write_next(self, producer: Producer) -> None:
        topic, partitions = self._plain
        producer.produce(topic, f"plain-{self._next}", partition=self._next % partitions)
        self._next += 1
        self.sent += 1

    def write_keyed(self, stop: threading.Event) -> None:
        """Write the topic with keys until `stop`, transaction by transaction."""
        number = 0
        while not stop.is_set():
            producer = Producer(
                self._settings | {"transactional.id": f"{self._keyed[0]}-source", "message.timeout.ms": 30_000}
            )
            try:
                producer.init_transactions(ANSWER_SECONDS)
                while not stop.wait(self.pause):
                    producer.begin_transaction()
                    for _ in range(BURST):
                        key = f"key{self._rng.randrange(KEYS)}"
                        producer.produce(self._keyed[0], f"keyed-{number}", key)
                        number += 1
                        self.sent += 1
                    producer.flush(ANSWER_SECONDS)
                    if self._rng.random() < ABORTED:
                        producer.abort_transaction(ANSWER_SECONDS)
                    else:
                        _commit(producer)
            except KafkaException:
                time.sleep(0.2)  # the next producer does not come at once to a server that is away


def _commit(producer: Producer) -> None:
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            producer.commit_transaction(ANSWER_SECONDS)
            return
        except KafkaException as failed:
            error: KafkaError = failed.args[0]
            if error.txn_requires_abort():
                producer.abort_transaction(ANSWER_SECONDS)
                return
            if not error.retriable() or time.monotonic() > until:
                raise


class Stored(NamedTuple):
    """A record as a reader of committed ones finds it. `at`: seconds since 1970; `value` is None for a deletion."""

    offset: int
    at: float
    key: bytes
    value: bytes | None


class Reader:
    """Reads topics and offsets when nobody writes any more."""

    def __init__(self, bootstrap: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(self._settings | {"reconnect.backoff.max.ms": 500})

    def ends(self, places: Iterable[Place], *, stable: bool) -> dict[Place, int]:
        """Return the ends of partitions: the last stable offsets, or the high watermarks."""
        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(*place): OffsetSpec.latest() for place in places}
        answers = self._patiently(
            lambda: self._admin.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_SECONDS)
        )
        return {(place.topic, place.partition): answer.offset for place, answer in answers.items()}

    def committed(self, group: str) -> dict[Place, int]:
        """Return what a group has committed."""
        asked = [ConsumerGroupTopicPartitions(group)]
        answers = self._patiently(
            lambda: self._admin.list_consumer_group_offsets(asked, request_timeout=ANSWER_SECONDS)
        )
        (answer,) = answers.values()
        return {(place.topic, place.partition): place.offset for place in answer.topic_partitions}

    def _patiently(self, ask: Callable[[], dict]) -> dict:  # type: ignore[type-arg]  # its annotations have none
        until = time.monotonic() + 2 * ANSWER_SECONDS
        while True:
            try:
                return {asked: future.result() for asked, future in ask().items()}
            except KafkaException:
                if time.monotonic() > until:
                    raise
                time.sleep(0.3)  # a server that was started just now does not know all

    def messages(self, places: Sequence[Place]) -> list[Message]:
        """Return the committed records of some partitions, which are inputs."""
        return [
            Message(topic, partition, record.offset, record.key.decode(), (record.value or b"").decode())
            for (topic, partition), records in self.records(places).items()
            for record in records
        ]

    def outputs(self, places: Sequence[Place]) -> list[Output]:
        """Return the committed records of some partitions, which are outputs."""
        return [
            Output(topic, partition, record.offset, record.at, (record.value or b"").decode())
            for (topic, partition), records in self.records(places).items()
            for record in records
        ]

    def records(self, places: Sequence[Place]) -> dict[Place, list[Stored]]:
        """Return the committed records of each partition. OSError if the end of one was not reached."""
        consumer = Consumer(
            self._settings
            | {
                "group.id": "whole",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.assign([TopicPartition(*place, 0) for place in places])
        records: dict[Place, list[Stored]] = {place: [] for place in places}
        left = set(places)
        until = time.monotonic() + 2 * ANSWER_SECONDS
        try:
            while left and time.monotonic() < until:
                for message in consumer.consume(1_000, 0.05):
                    place, error = (message.topic(), message.partition()), message.error()
                    if error is None:
                        at = message.timestamp()[1] / 1000
                        records[place].append(Stored(message.offset(), at, message.key() or b"", message.value()))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(place)
        finally:
            consumer.close()
        if left:
            raise OSError(f"{sorted(left)} could not be read to their ends")
        return records
