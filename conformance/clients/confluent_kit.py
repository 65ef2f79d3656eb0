"""What the cases of confluent-kafka (librdkafka) share: the suite, its clients, topics, a group member in a thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from suite import Run, Suite, eventually, same

SILENT = logging.getLogger("confluent-silent")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

suite = Suite("confluent-kafka", f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})")


_ADMINS: dict[str, AdminClient] = {}
_admins_lock = threading.Lock()


def admin(run: Run) -> AdminClient:
    """One for all cases: a client that goes out of scope takes its pending futures with it."""
    with _admins_lock:
        if run.bootstrap not in _ADMINS:
            _ADMINS[run.bootstrap] = AdminClient(run.librdkafka, logger=SILENT)
        return _ADMINS[run.bootstrap]


class Sender:
    """A producer that remembers what was delivered, in order, and what was refused."""

    def __init__(self, run: Run, **config: Any) -> None:
        settings = run.librdkafka | {"linger.ms": 1}
        settings |= {k.replace("_", "."): v for k, v in config.items()}
        self.client = Producer(settings, logger=SILENT)
        self.delivered: list[Message] = []
        self.errors: list[KafkaError] = []

    def send(self, topic: str, value: bytes | None = None, key: bytes | None = None, **more: Any) -> None:
        while True:
            try:
                self.client.produce(topic, value, key, on_delivery=self._report, **more)
                return
            except BufferError:
                self.client.poll(0.1)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error:
            self.errors.append(error)
        else:
            self.delivered.append(message)

    def flush(self, seconds: float = 20) -> list[Message]:
        """Everything is delivered, or an AssertionError says what was not."""
        same(self.client.flush(seconds), 0, "messages still in the queue")
        same(self.errors, [], "delivery errors")
        return self.delivered


@contextlib.contextmanager
def consumer(run: Run, *topics: str, **config: Any) -> Iterator[Consumer]:
    settings = run.librdkafka | {
        "group.id": run.group(),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    client = Consumer(settings | {k.replace("_", "."): v for k, v in config.items()}, logger=SILENT)
    try:
        if topics:
            client.subscribe(list(topics))
        yield client
    finally:
        client.close()


def make_topic(run: Run, hint: str = "t", partitions: int = 1, **configs: str) -> str:
    topic = run.name(hint)
    a = admin(run)
    settings = {k.replace("_", "."): v for k, v in configs.items()}
    a.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(15)
    eventually(lambda: len(a.list_topics(topic, timeout=5).topics[topic].partitions) == partitions)
    return topic


def fill(run: Run, topic: str, count: int, partition: int = 0, start: int = 0, **config: Any) -> None:
    sender = Sender(run, **config)
    for i in range(start, start + count):
        sender.send(topic, b"v%d" % i, b"k%d" % i, partition=partition)
    sender.flush()


def take(client: Consumer, count: int, seconds: float = 15) -> list[Message]:
    records: list[Message] = []
    end = time.monotonic() + seconds
    while len(records) < count and time.monotonic() < end:
        for message in client.consume(count - len(records), 0.2):
            if message.error():
                raise KafkaException(message.error())
            records.append(message)
    same(len(records), count, "records consumed")
    return records


def refused(code: int, call: Callable[[], Any]) -> None:
    """The call must fail with exactly this error code."""
    try:
        answer = call()
    except KafkaException as error:
        same(error.args[0].name(), KafkaError(code).name(), "error")
        return
    raise AssertionError(f"no {KafkaError(code).name()} but {answer!r}")


class Member:
    """A consumer that polls in a thread of its own until told to leave."""

    def __init__(self, run: Run, group: str, topic: str, **config: Any) -> None:
        self.values: list[bytes] = []
        self.revoked: list[int] = []
        self.rounds = 0
        self.error: BaseException | None = None
        self.partitions: set[int] = set()
        self._leave = threading.Event()
        self._args = (run, group, topic, config)
        self.thread = threading.Thread(target=self._poll, daemon=True)
        self.thread.start()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.rounds += 1

    def _revoked(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += [p.partition for p in partitions]

    def _poll(self) -> None:
        run, group, topic, config = self._args
        defaults = {"group_id": group, "session_timeout_ms": 10_000, "heartbeat_interval_ms": 200}
        try:
            with consumer(run, **(defaults | config)) as client:
                client.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
                while not self._leave.is_set():
                    for message in client.consume(100, 0.1):
                        if message.error():
                            raise KafkaException(message.error())
                        self.values.append(message.value())
                    self.partitions = {p.partition for p in client.assignment()}
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        if self.error:
            raise self.error

    def leave(self) -> None:
        self._leave.set()
        self.thread.join(15)
        self.partitions = set()
        self.check()


def clean(run: Run, topics: list[str]) -> None:
    for future in admin(run).delete_topics(topics).values():
        with contextlib.suppress(KafkaException):
            future.result(10)


suite.cleanup = clean
