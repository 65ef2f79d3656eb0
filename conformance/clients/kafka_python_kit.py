"""What the cases of kafka-python share: the suite, its clients, topics, and a group member in a thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from suite import Run, Suite, same

logging.getLogger("kafka").setLevel(logging.CRITICAL)
suite = Suite("kafka-python", kafka.__version__)

POLL_MS = 1000
RACE = 2
"""Attempts at a case with groups. kafka-python 3.0.12 forgets a SyncGroup answer that comes between two polls: its
need_rejoin() says no by then, and the assignment is never taken up. So few polls (one ends as soon as there are
records), and a second attempt."""
METADATA_MS = 1000
"""How old a consumer's metadata may get. A consumer of kafka-python 3.0.12 that has no group forgets its topics where
it names them while a Metadata request of its own is on its way (one goes out 100 ms after the bootstrap): the answer
clears the wish for another request, and the consumer has no partitions for `metadata_max_age_ms`, which is five minutes
unless it is set."""


@contextlib.contextmanager
def admin(run: Run) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(**run.kafka_python)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def producer(run: Run, **config: Any) -> Iterator[KafkaProducer]:
    client = KafkaProducer(**run.kafka_python, **config)
    try:
        yield client
    finally:
        client.close(timeout=5)


@contextlib.contextmanager
def consumer(run: Run, *topics: str, **config: Any) -> Iterator[KafkaConsumer]:
    defaults: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "metadata_max_age_ms": METADATA_MS,
    }
    client = KafkaConsumer(*topics, **(run.kafka_python | defaults | config))
    try:
        yield client
    finally:
        client.close(timeout_ms=5000)


def make_topic(run: Run, hint: str = "t", partitions: int = 1, **configs: str) -> str:
    topic = run.name(hint)
    with admin(run) as client:
        client.create_topics(
            {
                topic: {
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": {k.replace("_", "."): v for k, v in configs.items()},
                }
            },
            wait_for_metadata=True,
        )
    return topic


def fill(run: Run, topic: str, count: int, partition: int = 0, start: int = 0, **config: Any) -> None:
    with producer(run, **config) as p:
        futures = [
            p.send(topic, f"v{i}".encode(), f"k{i}".encode(), partition=partition) for i in range(start, start + count)
        ]
        for future in futures:
            future.get(timeout=10)


def take(client: KafkaConsumer, count: int, seconds: float = 15) -> list[Any]:
    """Exactly `count` records: waits for them, then a moment longer for one too many."""
    records: list[Any] = []
    end = time.monotonic() + seconds
    while len(records) < count and time.monotonic() < end:
        for batch in client.poll(timeout_ms=POLL_MS).values():
            records += batch
    same(len(records), count, f"records consumed, subscribed {client.subscription()}, assigned {client.assignment()}")
    return records


def clean(run: Run, topics: list[str]) -> None:
    with admin(run) as client:
        client.delete_topics(topics, raise_errors=False)


suite.cleanup = clean


class Member(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """A consumer that polls in a thread of its own until told to leave."""

    def __init__(self, run: Run, group: str, topic: str, **config: Any) -> None:
        self.values: list[bytes] = []
        self.revoked: list[int] = []
        self.assigned = 0
        self.error: BaseException | None = None
        self._leave = threading.Event()
        self._args = (run, group, topic, config)
        self.client: KafkaConsumer | None = None
        self.thread = threading.Thread(target=self._poll, daemon=True)
        self.thread.start()

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.revoked += [tp.partition for tp in revoked]

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned += 1

    def _poll(self) -> None:
        run, group, topic, config = self._args
        defaults: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
        try:
            with consumer(run, group_id=group, **(defaults | config)) as c:
                self.client = c
                c.subscribe([topic], listener=self)
                while not self._leave.is_set():
                    for batch in c.poll(timeout_ms=POLL_MS).values():
                        self.values += [r.value for r in batch]
        except BaseException as error:
            self.error = error

    @property
    def partitions(self) -> set[int]:
        if self.error:
            raise self.error
        return {tp.partition for tp in self.client.assignment()} if self.client else set()

    def leave(self) -> None:
        self._leave.set()
        self.thread.join(10)
