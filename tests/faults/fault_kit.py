"""Load by real clients while something breaks, and what must be true of it afterwards."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.child import Child
from support.pulsar import Pulsar
from support.waiting import SECONDS

PARTITIONS = 2
PATIENCE = 600.0
"""Seconds that a client goes on trying: longer than all outages of a test together, on a machine where a broker takes
minutes to come back, because a record may wait through several of them."""
WAITING_RECORDS = 50_000
"""Records that a client holds at most; during an outage it makes no more."""


def gateway(directory: Path, pulsar: Pulsar, node_id: int = 1, http: str = "", **settings: str) -> Child:
    """A gateway that is not started yet. Those of one namespace work on the same data."""
    directory.mkdir(parents=True, exist_ok=True)
    store = ["--store", pulsar.service_url, "--admin-url", pulsar.admin_url]
    named = {
        "kop_pulsar_namespace": pulsar.namespace,
        "kop_pulsar_metadata_namespace": f"{pulsar.namespace}-kop",
        "node_id": str(node_id),
    }
    return Child(directory, files=None, http=http, store=store, **named, **settings)


@contextmanager
def running(*children: Child) -> Iterator[None]:
    """Started, and killed at the end."""
    try:
        for child in children:
            child.start()
        yield
    finally:
        for child in children:
            child.kill()


def say(text: str) -> None:
    """What was measured, for `pytest -s`."""
    sys.stderr.write(f"\n  {text}")


def rest(pulsar: Pulsar, method: str, path: str, body: Any = None) -> Any:
    """One call of Pulsar's admin REST, again where the broker could not do it at that moment."""
    request = urllib.request.Request(
        f"{pulsar.admin_url}/admin/v2/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    end = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                text = answer.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in {429, 500, 502, 503, 504} or time.monotonic() > end:
                raise
        time.sleep(0.2)  # the broker has no event


def create(address: str, name: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(SECONDS)


def ascending(rows: list[tuple[int, int]]) -> None:
    """Each offset once. A broker that fails in the middle of a write leaves offsets out: it has counted them."""
    offsets = [offset for offset, _ in rows]
    assert offsets == sorted(set(offsets)), "offsets ascend"
    if offsets and offsets[-1] + 1 != len(offsets):
        say(f"{offsets[-1] + 1 - len(offsets)} of {offsets[-1] + 1} offsets hold no record")


class Idempotent:
    """Numbers by librdkafka's idempotent producer, acks=all, from `start` to `finish`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.given = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """Where each number was said to lie; offset -1: stored, the offset is not known."""
        self._unknown: dict[int, int] = {}
        self.refused: list[KafkaError] = []
        self.newest = 0.0
        self.stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.size": 4096,
                "message.timeout.ms": int(PATIENCE * 1000),
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 500,
                "socket.timeout.ms": 20_000,
                "request.timeout.ms": 20_000,
                "queue.buffering.max.messages": 1_000_000,
                "topic.metadata.refresh.interval.ms": 2000,
                "on_delivery": self._delivered,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        if offset is None or offset < 0:
            offset = self._unknown[partition] = -1
        elif self._unknown.get(partition) == offset - 1:
            # "Stored, the offset is not known": librdkafka counts on from the -1 within that batch.
            self._unknown[partition] = offset
            offset = -1
        else:
            self._unknown.pop(partition, None)
        self.acknowledged[int(message.value())] = (partition, offset)
        self.newest = time.monotonic()

    def _run(self) -> None:
        while not self.stopping.is_set():
            for _ in range(10 if len(self._producer) < WAITING_RECORDS else 0):
                self._producer.produce(self.topic, str(self.given).encode(), partition=self.given % PARTITIONS)
                self.given += 1
            self._producer.poll(0.005)

    def finish(self) -> None:
        self.stopping.set()
        self._thread.join()
        left = self._producer.flush(PATIENCE)
        assert not self.refused, f"{len(self.refused)} refused, the first: {self.refused[0]}"
        assert left == 0
        assert len(self.acknowledged) == self.given > 100

    def check(self, rows: dict[int, list[tuple[int, int]]]) -> None:
        """No acknowledged record lost, none twice, in order, each where its acknowledgement said."""
        for partition, stored_rows in rows.items():
            ascending(stored_rows)
            numbers = [number for _, number in stored_rows]
            expected = list(range(partition, self.given, PARTITIONS))
            if numbers != expected:
                counts = Counter(numbers)
                missing = [n for n in expected if n not in counts]
                twice = [n for n, count in counts.items() if count > 1]
                raise AssertionError(
                    f"partition {partition}: {len(missing)} of {len(expected)} missing {missing[:10]}, "
                    f"{len(twice)} twice {twice[:10]}, else out of order"
                )
        where = {number: (p, offset) for p, stored_rows in rows.items() for offset, number in stored_rows}
        wrong = {n: (p, o) for n, (p, o) in self.acknowledged.items() if o >= 0 and where[n] != (p, o)}
        assert not wrong, f"{len(wrong)} records do not lie where it was said: {list(wrong.items())[:5]}"

    @property
    def without_offset(self) -> int:
        return sum(offset < 0 for _, offset in self.acknowledged.values())


class Plain:
    """Numbers by aiokafka without idempotence: at least once."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.refused: list[BaseException] = []
        self.knows: Callable[[], set[int]] = set
        """The gateways that the client knows of: it asks nobody else."""
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def _run(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            acks="all",
            request_timeout_ms=40_000,
            retry_backoff_ms=100,
            metadata_max_age_ms=5000,
        )
        await producer.start()
        self.knows = lambda: {node.nodeId for node in producer.client.cluster.brokers()}
        try:
            number = 0
            while not self.stopping.is_set():
                numbers = range(number, number + 10)
                number += 10
                sent = [await producer.send(self.topic, str(n).encode(), partition=n % PARTITIONS) for n in numbers]
                for n, result in zip(numbers, await asyncio.gather(*sent, return_exceptions=True), strict=True):
                    if isinstance(result, BaseException):
                        self.refused.append(result)
                    else:
                        self.acknowledged[n] = (result.partition, result.offset)
                await asyncio.sleep(0.005)  # the pace of the load
        finally:
            await producer.stop()

    def finish(self) -> None:
        self.stopping.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert len(self.acknowledged) > 50

    def check(self, rows: dict[int, list[tuple[int, int]]]) -> None:
        """What was acknowledged is there, where it was said."""
        for partition, stored_rows in rows.items():
            ascending(stored_rows)
            there = {number for _, number in stored_rows}
            missing = [n for n, (p, _) in self.acknowledged.items() if p == partition and n not in there]
            assert not missing, f"{len(missing)} lost: {missing[:10]}"
        at = {(p, offset): number for p, stored_rows in rows.items() for offset, number in stored_rows}
        wrong = [(n, place) for n, place in self.acknowledged.items() if place[1] >= 0 and at.get(place) != n]
        assert not wrong, f"{len(wrong)} records do not lie where it was said: {wrong[:5]}"


class Commits:
    """A group's offsets, committed one after the other."""

    def __init__(self, bootstrap: str, topic: str, group: str = "commits") -> None:
        self.settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            "socket.timeout.ms": 10_000,
            "log_level": 0,
        }
        self.topic = topic
        self.tried = self.kept = 0
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        consumer = Consumer(self.settings)
        while not self.stopping.is_set():
            self.tried += 1
            try:
                consumer.commit(offsets=[TopicPartition(self.topic, 0, self.tried)], asynchronous=False)
                self.kept = self.tried
            except KafkaException:
                time.sleep(0.1)  # the pace of a client that was refused
            time.sleep(0.02)  # the pace of the load
        consumer.close()

    def finish(self) -> None:
        self.stopping.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert self.kept > 5

    def check(self, bootstrap: str) -> None:
        consumer = Consumer(self.settings | {"bootstrap.servers": bootstrap})
        try:
            committed = until(lambda: consumer.committed([TopicPartition(self.topic, 0)], timeout=10)[0].offset)
        finally:
            consumer.close()
        assert self.kept <= committed <= self.tried, (
            f"{committed} is committed, {self.kept} of {self.tried} was acknowledged"
        )


def until(ask: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The first answer of `ask` that is no exception and not False."""
    end = time.monotonic() + seconds
    while True:
        try:
            answer = ask()
            if answer is not False:
                return answer
        except (KafkaException, OSError):
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)  # the pause between two questions


def stored(address: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Offset and number of every record, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    by_partition: dict[int, list[tuple[int, int]]] = {}
    try:
        for partition in range(PARTITIONS):
            place = TopicPartition(topic, partition, 0)
            begin, end = until(partial(consumer.get_watermark_offsets, place, timeout=10))
            assert begin == 0
            consumer.assign([place])
            rows = by_partition[partition] = []
            deadline = time.monotonic() + SECONDS
            at_end = begin == end
            while not at_end:
                assert time.monotonic() < deadline, f"{rows[-1:]} of {end}, partition {partition}"
                for message in consumer.consume(1000, 0.2):
                    error = message.error()
                    if error is None:
                        rows.append((message.offset(), int(message.value())))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        at_end = message.offset() >= end
                    elif error.fatal():
                        raise KafkaException(error)
    finally:
        consumer.close()
    return by_partition


class Load:
    """All three at once on topics of their own, for gateways behind one bootstrap text."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.idempotent = Idempotent(bootstrap, "load")
        self.plain = Plain(bootstrap, "plain")
        self.commits = Commits(bootstrap, "load")

    def __enter__(self) -> Load:
        for topic in ("load", "plain"):
            create(self.bootstrap, topic)
        for client in (self.idempotent, self.plain, self.commits):
            client.start()
        self.flows()
        return self

    def __exit__(self, *error: object) -> None:
        self.idempotent.stopping.set()
        self.plain.stopping.set()
        self.commits.stopping.set()

    def flows(self, seconds: float = SECONDS) -> float:
        """Until new records are acknowledged and commits kept; the seconds that took."""
        begin = time.monotonic()
        acknowledged, plain, kept = len(self.idempotent.acknowledged), len(self.plain.acknowledged), self.commits.kept

        def moved() -> bool:
            assert not self.idempotent.refused, self.idempotent.refused[0]
            return (
                len(self.idempotent.acknowledged) > acknowledged + 50
                and len(self.plain.acknowledged) > plain + 10
                and self.commits.kept > kept
            )

        try:
            until(moved, seconds)
        except AssertionError:
            say(
                f"since then: {len(self.idempotent.acknowledged) - acknowledged} idempotent, "
                f"{len(self.plain.acknowledged) - plain} plain, {self.commits.kept - kept} commits"
            )
            raise
        return time.monotonic() - begin

    def check(self, addresses: Sequence[str]) -> None:
        """End the load; what each gateway says of it is the same, and right."""
        self.commits.finish()
        self.plain.finish()
        self.idempotent.finish()
        for address in addresses:
            self.idempotent.check(stored(address, "load"))
            self.plain.check(stored(address, "plain"))
            self.commits.check(address)
        say(
            f"{self.idempotent.given} numbers, {self.idempotent.without_offset} acknowledged without an offset; "
            f"plain {len(self.plain.acknowledged)}, {len(self.plain.refused)} refused; {self.commits.kept} commits"
        )
