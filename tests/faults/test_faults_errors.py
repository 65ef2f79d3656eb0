"""What Pulsar refuses: a named error for the client, a line that says what to do, a count."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import KafkaError, Producer
from fault_kit import PATIENCE, create, gateway, rest, until
from support.child import free_port
from support.pulsar import OwnBroker, Pulsar, Urls, fresh_namespace
from support.pulsar_gateway import PulsarGateway

from kop.pulsar_client.admin import Admin

T = TypeVar("T")


@pytest.fixture(scope="module")
def space(pulsar_urls: Urls) -> Iterator[Pulsar]:
    with fresh_namespace(pulsar_urls) as found:
        yield found


@pytest.fixture(scope="module")
def served(space: Pulsar) -> Iterator[PulsarGateway]:
    gateway = PulsarGateway(space, auto_create_topics_enable="false").start()
    yield gateway
    gateway.stop()


def admin(pulsar: Pulsar, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with Admin(pulsar.admin_url) as one:
            return await work(one)

    return asyncio.run(run())


class Client:
    """An idempotent producer that gives up only when told so."""

    def __init__(self, bootstrap: str, patience: float = 20, **settings: Any) -> None:
        self.results: list[KafkaError | int] = []
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(patience * 1000),
                "message.max.bytes": 20_000_000,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 300,
                "linger.ms": 0,
                "log_level": 0,
                "error_cb": lambda _: None,
                "on_delivery": lambda error, message: self.results.append(error or message.offset()),
            }
            | settings
        )

    def send(self, topic: str, *values: bytes) -> None:
        for value in values:
            self.producer.produce(topic, value, partition=0)
        self.producer.poll(0)

    def flush(self) -> list[KafkaError | int]:
        """What became of each record since the last time: its offset or the error."""
        assert self.producer.flush(PATIENCE) == 0
        found, self.results = self.results, []
        return found


def one(bootstrap: str, topic: str, value: bytes = b"v", **settings: Any) -> int | str:
    client = Client(bootstrap, **settings)
    client.send(topic, value)
    (found,) = client.flush()
    return found.name() if isinstance(found, KafkaError) else found


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


# --- the start


@pytest.mark.timeout(90)
def test_a_start_that_cannot_be_says_what_to_do(space: Pulsar, tmp_path: Path) -> None:
    nobody = free_port()
    absent = space.namespace + "-not-there"
    http_port = space.admin_url.removeprefix("http://")
    here, there = space.service_url, space.admin_url
    wrong = {
        "address": (f"pulsar://127.0.0.1:{nobody}", there, space.namespace, ["--store", str(nobody)]),
        "admin": (here, f"http://127.0.0.1:{nobody}", space.namespace, ["--admin-url", str(nobody)]),
        "protocol": (f"pulsar://{http_port}", there, space.namespace, ["6650"]),
        "namespace": (here, there, absent, [f"pulsar-admin namespaces create {absent}", "kop.pulsar.namespace"]),
    }
    children = {what: gateway(tmp_path / what, Pulsar(*urls)) for what, (*urls, _) in wrong.items()}
    try:
        for child in children.values():
            child.start(wait=False)
        for what, child in children.items():
            assert child.wait(60) == 1, what
            for text in wrong[what][-1]:
                assert text in child.log, f"{what}:\n{child.log}"
            assert "Traceback" not in child.log, what
    finally:
        for child in children.values():
            child.kill()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_broker_without_the_index_is_refused_with_the_settings_to_add(pulsar_urls: Urls, tmp_path: Path) -> None:
    broker = OwnBroker(tmp_path / "broker", index=False)
    try:
        urls = broker.start()
        child = gateway(tmp_path / "kop", Pulsar(*urls, "public/default"))
        child.start(wait=False)
        assert child.wait(60) == 1
        assert "brokerEntryMetadataInterceptors=" in child.log
        assert "exposingBrokerEntryMetadataToClientEnabled=true" in child.log
        assert "kop.pulsar.offsets=packed" in child.log
        assert "Traceback" not in child.log
    finally:
        broker.kill()


# --- topics


def test_deduplication_is_turned_on_for_a_native_topic(space: Pulsar, served: PulsarGateway) -> None:
    name = f"persistent://{space.namespace}/native-without"

    async def prepare(client: Admin) -> None:
        await client.create_partitioned(name, 1, {})
        await client.set_deduplication(name, False)

    admin(space, prepare)
    until(lambda: not admin(space, lambda client: client.get_deduplication(name, applied=True)), 20)
    until(lambda: served.engine.topics.get("native-without") is not None, 20)
    assert one(served.bootstrap, "native-without") == 0
    assert admin(space, lambda client: client.get_deduplication(name, applied=True)) is True


def test_a_publish_rate_makes_slow_and_does_not_fail(space: Pulsar, served: PulsarGateway) -> None:
    create(served.bootstrap, "throttled", 1)
    name = f"persistent://{space.namespace}/throttled"
    assert one(served.bootstrap, "throttled") == 0
    admin(space, lambda client: client.set_publish_rate(name, messages=100))
    time.sleep(0.5)
    client = Client(served.bootstrap, 50, **{"batch.num.messages": 20})
    begin = time.monotonic()
    for _ in range(20):
        client.send("throttled", *[b"v"] * 20)
    assert client.flush() == list(range(1, 401))
    assert time.monotonic() - begin > 1.5


def test_a_limit_of_the_topic_on_sizes(space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture) -> None:
    create(served.bootstrap, "small", 1)
    name = f"persistent://{space.namespace}/small"
    assert one(served.bootstrap, "small") == 0
    admin(space, lambda client: client.set_max_message_size(name, 2000))
    until(lambda: one(served.bootstrap, "small", b"x" * 5000) == "MSG_SIZE_TOO_LARGE", 20)
    assert said(caplog, "pulsar-admin topics get-max-message-size")
    assert isinstance(one(served.bootstrap, "small"), int)


def test_a_record_that_no_entry_can_hold(served: PulsarGateway) -> None:
    create(served.bootstrap, "large", 1)
    topic = served.engine.topics.get("large")
    assert topic is not None
    served.call(served.engine.topics.set_configs(topic.topic_id, {"max.message.bytes": "20000000"}))
    client = Client(served.bootstrap)
    client.send("large", b"x" * (6 << 20))
    (found,) = client.flush()
    assert isinstance(found, KafkaError)
    assert found.name() == "MSG_SIZE_TOO_LARGE"
    client.send("large", b"v")
    assert client.flush() == [0]


@pytest.mark.timeout(90)
def test_a_backlog_quota_is_retriable_and_heals(
    space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture
) -> None:
    create(served.bootstrap, "behind", 1)
    path = f"persistent/{space.namespace}/behind"
    rest(space, "PUT", f"{path}-partition-0/subscription/stuck", {"ledgerId": -1, "entryId": -1})
    client = Client(served.bootstrap)
    client.send("behind", *[b"x" * 10_000 for _ in range(10)])
    assert client.flush() == list(range(10))
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    rest(space, "POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota)
    blocked = Client(served.bootstrap, 60)
    count = "writes refused: ProducerBlockedQuotaExceededError"

    def refused() -> bool:
        if not served.engine.counts.get(count):
            blocked.send("behind", b"y")
            time.sleep(0.3)
        return bool(served.engine.counts.get(count))

    until(refused, 30)
    assert said(caplog, "raise the quota")
    stored = len(blocked.results)
    blocked.producer.poll(1)
    assert len(blocked.results) == stored, "it goes on trying"
    # Without the subscription the cursor of deduplication still counts, until its next snapshot.
    rest(space, "DELETE", f"{path}-partition-0/subscription/stuck?force=true")
    rest(space, "DELETE", f"{path}/backlogQuota?backlogQuotaType=destination_storage")
    found = blocked.flush()
    assert found == list(range(10, 10 + len(found)))


def test_a_terminated_topic(space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture) -> None:
    create(served.bootstrap, "ended", 1)
    assert one(served.bootstrap, "ended") == 0
    rest(space, "POST", f"persistent/{space.namespace}/ended/terminate/partitions")
    assert one(served.bootstrap, "ended") == "POLICY_VIOLATION"
    assert said(caplog, "takes no more messages")
    assert served.engine.counts["writes refused: TopicTerminatedError"] >= 1
    assert served.log("ended").high_watermark == 1, "what is there can be read"


def test_a_schema_required_of_producers(pulsar_urls: Urls, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with fresh_namespace(pulsar_urls) as strict:
        gateway = PulsarGateway(strict).start()
        try:
            create(gateway.bootstrap, "typed", 1)
            rest(strict, "POST", f"namespaces/{strict.namespace}/schemaValidationEnforced", True)
            schema = {"type": "STRING", "schema": "", "properties": {}}
            rest(strict, "POST", f"schemas/{strict.namespace}/typed/schema", schema)
            until(lambda: one(gateway.bootstrap, "typed") == "POLICY_VIOLATION", 20)
            assert said(caplog, "pulsar-admin schemas delete")
            assert gateway.engine.counts["writes refused: IncompatibleSchema"] >= 1
        finally:
            gateway.stop()


def test_a_topic_deleted_under_a_producer(space: Pulsar, served: PulsarGateway) -> None:
    create(served.bootstrap, "brief", 1)
    client = Client(served.bootstrap, 8, **{"topic.metadata.propagation.max.ms": 1000})
    client.send("brief", b"v")
    assert client.flush() == [0]
    admin(space, lambda one: one.delete_partitioned(f"persistent://{space.namespace}/brief"))
    client.send("brief", b"v")
    (found,) = client.flush()
    assert isinstance(found, KafkaError)
    assert found.name() in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_MSG_TIMED_OUT"}
    listed = rest(space, "GET", f"persistent/{space.namespace}/partitioned")
    assert not [name for name in listed if name.endswith("/brief")], "nobody brought it back"
    plain = rest(space, "GET", f"persistent/{space.namespace}")
    assert not [name for name in plain if "/brief" in name]
