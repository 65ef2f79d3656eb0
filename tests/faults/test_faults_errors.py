"""What Pulsar refuses: a named error for the client, a line that says what to do, a count."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from faults.fault_kit import PATIENCE, create, gateway, rest, until
from support.child import free_port
from support.pulsar import OwnBroker, Pulsar, Urls, fresh_namespace
from support.pulsar_admin import PulsarAdmin
from support.pulsar_gateway import PulsarGateway
from support.waiting import SECONDS

from kop.errors import BackendError, ErrorCode, KopError
from kop.pulsar_client import EARLIEST

T = TypeVar("T")


@pytest.fixture(scope="module")
def space(pulsar_urls: Urls) -> Iterator[Pulsar]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield pulsar


@pytest.fixture(scope="module")
def served(space: Pulsar) -> Iterator[PulsarGateway]:
    gateway = PulsarGateway(space, auto_create_topics_enable="false").start()
    yield gateway
    gateway.stop()


def admin(pulsar: Pulsar, work: Callable[[PulsarAdmin], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with PulsarAdmin(pulsar.admin_url) as admin:
            return await work(admin)

    return asyncio.run(run())


class Client:
    """An idempotent producer that gives up only when told so."""

    def __init__(self, bootstrap: str, patience: float = SECONDS, **settings: Any) -> None:
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
        results, self.results = self.results, []
        return results


def produce_one(bootstrap: str, topic: str, value: bytes = b"v", **settings: Any) -> int | str:
    client = Client(bootstrap, **settings)
    client.send(topic, value)
    (result,) = client.flush()
    return result.name() if isinstance(result, KafkaError) else result


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


# --- the start


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
            assert child.wait() == 1, what
            for text in wrong[what][-1]:
                assert text in child.log, f"{what}:\n{child.log}"
            assert "Traceback" not in child.log, what
    finally:
        for child in children.values():
            child.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_broker_without_the_index_is_refused_with_the_settings_to_add(pulsar_urls: Urls, tmp_path: Path) -> None:
    broker = OwnBroker(tmp_path / "broker", index=False)
    try:
        urls = broker.start()
        child = gateway(tmp_path / "kop", Pulsar(*urls, "public/default"))
        child.start(wait=False)
        assert child.wait() == 1
        assert "brokerEntryMetadataInterceptors=" in child.log
        assert "exposingBrokerEntryMetadataToClientEnabled=true" in child.log
        assert "kop.pulsar.offsets=packed" in child.log
        assert "Traceback" not in child.log
    finally:
        broker.kill()


# --- topics


def test_deduplication_is_turned_on_for_a_native_topic(space: Pulsar, served: PulsarGateway) -> None:
    name = f"persistent://{space.namespace}/native-without"

    async def prepare(client: PulsarAdmin) -> None:
        await client.create_partitioned(name, 1, {})
        await client.set_deduplication(name, False)

    admin(space, prepare)
    until(lambda: not admin(space, lambda client: client.get_deduplication(name, applied=True)))
    until(lambda: served.engine.topics.get("native-without") is not None)
    assert produce_one(served.bootstrap, "native-without") == 0
    assert admin(space, lambda client: client.get_deduplication(name, applied=True)) is True


def test_deduplication_that_somebody_turns_off_is_turned_on_again(
    space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.storage.pulsar.topics.write_checks.FRESH_SECONDS", 0.0)
    create(served.bootstrap, "twice", 1)
    name = f"persistent://{space.namespace}/twice"
    assert produce_one(served.bootstrap, "twice") == 0
    admin(space, lambda client: client.set_deduplication(name, False))
    until(lambda: not admin(space, lambda client: client.get_deduplication(name, applied=True)))
    assert produce_one(served.bootstrap, "twice") == 1
    assert admin(space, lambda client: client.get_deduplication(name, applied=True)) is True
    assert said(caplog, "was turned off")
    assert served.engine.counts["topic_settings/deduplication_turned_off"] == 1


def test_a_publish_rate_makes_slow_does_not_fail_and_is_told_to_the_client(
    space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(served.engine.counts)
    create(served.bootstrap, "throttled", 1)
    name = f"persistent://{space.namespace}/throttled"
    assert produce_one(served.bootstrap, "throttled") == 0
    admin(space, lambda client: client.set_publish_rate(name, messages=100))
    throttles: list[float] = []
    settings: dict[str, Any] = {
        "batch.num.messages": 20,
        "throttle_cb": lambda event: throttles.append(event.throttle_time),
    }
    client = Client(
        served.bootstrap,
        **settings,
    )

    def told() -> bool:
        if len(client.producer) < 1000:  # in 10 s, far below the time limit of a record
            client.send("throttled", *[b"v"] * 200)  # more than 100 a second also where this process gets little time
        client.producer.poll(0.1)
        return bool(throttles)

    until(told)
    sent = len(client.flush())
    begin = time.monotonic()
    for _ in range(30):
        client.send("throttled", *[b"v"] * 20)
    assert client.flush() == list(range(1 + sent, 601 + sent))
    took = time.monotonic() - begin
    assert took > 1, "600 records at 100 a second; what the Pulsar broker has read before it looks at the rate is free"
    assert max(throttles) <= 1.0
    assert served.engine.counts["writes_throttled/publish_rate"] >= 1
    assert served.serving is not None
    sample = served.serving.gateway.metrics.registry.get_sample_value
    assert (sample("kop_produce_throttled_total") or 0) >= 1
    assert (sample("kop_pulsar_faults_total", {"fault": "writes_throttled", "detail": "publish_rate"}) or 0) >= 1
    assert sum("publish rate" in record.getMessage() for record in caplog.records) == 1, "said once"
    more = [what for what, times in served.engine.counts.items() if times > before.get(what, 0)]
    assert not [what for what in more if "timeout" in what or "timed_out" in what]


def test_a_limit_of_the_topic_on_sizes(space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture) -> None:
    create(served.bootstrap, "small", 1)
    name = f"persistent://{space.namespace}/small"
    assert produce_one(served.bootstrap, "small") == 0
    admin(space, lambda client: client.set_max_message_size(name, 2000))
    until(lambda: produce_one(served.bootstrap, "small", b"x" * 5000) == "MSG_SIZE_TOO_LARGE")
    assert said(caplog, "pulsar-admin topics get-max-message-size")
    assert isinstance(produce_one(served.bootstrap, "small"), int)
    client = Client(served.bootstrap, **{"linger.ms": 200})
    client.send("small", *[b"x" * 900] * 5)
    begin = time.monotonic()
    results = client.flush()
    assert {str(error.name()) for error in results if isinstance(error, KafkaError)} == {"MSG_SIZE_TOO_LARGE"}
    assert len(results) == 5
    assert time.monotonic() - begin < SECONDS / 2, "not by the time limit of the message"


def test_a_record_that_no_entry_can_hold(served: PulsarGateway) -> None:
    create(served.bootstrap, "large", 1)
    topic = served.engine.topics.get("large")
    assert topic is not None
    served.call(served.engine.topics.set_configs(topic.topic_id, {"max.message.bytes": "20000000"}))
    client = Client(served.bootstrap)
    client.send("large", b"x" * (6 << 20))
    (error,) = client.flush()
    assert isinstance(error, KafkaError)
    assert error.name() == "MSG_SIZE_TOO_LARGE"
    client.send("large", b"v")
    assert client.flush() == [0]


@pytest.mark.parametrize("policy", ["producer_exception", "producer_request_hold"])
def test_a_backlog_quota_is_retriable_and_heals(
    policy: str, space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"behind-{policy}"
    create(served.bootstrap, topic, 1)
    path = f"persistent/{space.namespace}/{topic}"
    rest(space, "PUT", f"{path}-partition-0/subscription/stuck", {"ledgerId": -1, "entryId": -1})
    client = Client(served.bootstrap)
    client.send(topic, *[b"x" * 10_000 for _ in range(10)])
    assert client.flush() == list(range(10))
    quota = {"limitSize": 1000, "limitTime": -1, "policy": policy}
    rest(space, "POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota)
    blocked = Client(served.bootstrap)
    count = "writes_refused/producer_blocked_quota_exceeded_error"
    before = served.engine.counts.get(count, 0)

    def refused() -> bool:
        if served.engine.counts.get(count, 0) == before:
            blocked.send(topic, b"y")
            time.sleep(0.3)  # Pulsar applies quotas now and then, by its own clock
        return served.engine.counts.get(count, 0) > before

    until(refused)
    assert said(caplog, "raise the quota")
    until(lambda: said(caplog, "the subscription 'stuck' is"))
    while blocked.producer.poll(1):
        pass  # what was stored before the refusal
    stored = len(blocked.results)
    blocked.producer.poll(1)
    assert len(blocked.results) == stored, "it goes on trying"
    # Without the subscription the cursor of deduplication still counts, until its next snapshot.
    rest(space, "DELETE", f"{path}-partition-0/subscription/stuck?force=true")
    rest(space, "DELETE", f"{path}/backlogQuota?backlogQuotaType=destination_storage")
    results = blocked.flush()
    assert results == list(range(10, 10 + len(results)))


def test_a_terminated_topic(space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture) -> None:
    create(served.bootstrap, "ended", 1)
    assert produce_one(served.bootstrap, "ended") == 0
    rest(space, "POST", f"persistent/{space.namespace}/ended/terminate/partitions")
    assert produce_one(served.bootstrap, "ended") == "POLICY_VIOLATION"
    assert said(caplog, "takes no more messages")
    assert served.engine.counts["writes_refused/topic_terminated_error"] >= 1
    assert served.log("ended").high_watermark == 1, "what is there can be read"


def test_a_schema_required_of_producers(pulsar_urls: Urls, caplog: pytest.LogCaptureFixture) -> None:
    with fresh_namespace(pulsar_urls) as strict:
        gateway = PulsarGateway(strict).start()
        try:
            create(gateway.bootstrap, "typed", 1)
            schema = {"type": "STRING", "schema": "", "properties": {}}
            rest(strict, "POST", f"schemas/{strict.namespace}/typed/schema", schema)
            rest(strict, "POST", f"namespaces/{strict.namespace}/isAllowAutoUpdateSchema", False)
            assert produce_one(gateway.bootstrap, "typed") == 0, "a schema alone asks nothing of producers without one"
            rest(strict, "POST", f"namespaces/{strict.namespace}/schemaValidationEnforced", True)
            rest(strict, "PUT", f"persistent/{strict.namespace}/typed/unload")
            until(lambda: produce_one(gateway.bootstrap, "typed") == "POLICY_VIOLATION")
            for _ in range(5):
                assert produce_one(gateway.bootstrap, "typed") == "POLICY_VIOLATION"
            assert said(caplog, "pulsar-admin schemas delete")
            assert gateway.engine.counts["writes_refused/incompatible_schema"] >= 6
            lines = [record for record in caplog.records if "schemas delete" in record.getMessage()]
            assert len(lines) == 1, "once, not at each request"
            rest(strict, "POST", f"namespaces/{strict.namespace}/schemaValidationEnforced", False)
            until(lambda: isinstance(produce_one(gateway.bootstrap, "typed"), int))
        finally:
            gateway.stop()


def test_encryption_required_of_producers(pulsar_urls: Urls, caplog: pytest.LogCaptureFixture) -> None:
    with fresh_namespace(pulsar_urls) as strict:
        gateway = PulsarGateway(strict).start()
        try:
            create(gateway.bootstrap, "secret", 1)
            client = Client(gateway.bootstrap)
            client.send("secret", b"v")
            assert client.flush() == [0]
            rest(strict, "POST", f"namespaces/{strict.namespace}/encryptionRequired", True)

            def refused() -> bool:
                client.send("secret", b"w")
                (error,) = client.flush()
                return isinstance(error, KafkaError) and error.name() == "POLICY_VIOLATION"

            until(refused)
            assert produce_one(gateway.bootstrap, "secret") == "POLICY_VIOLATION"
            assert said(caplog, "set-encryption-required --disable")
            assert gateway.engine.counts["writes_refused/encryption_required"] >= 1
            assert gateway.log("secret").high_watermark >= 1, "what is there can be read"
            rest(strict, "POST", f"namespaces/{strict.namespace}/encryptionRequired", False)
            until(lambda: isinstance(produce_one(gateway.bootstrap, "secret"), int))
        finally:
            gateway.stop()


def test_a_limit_on_producers_is_retriable_and_heals(
    space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture
) -> None:
    create(served.bootstrap, "crowded", 1)
    limit = f"persistent/{space.namespace}/crowded/maxProducers"
    rest(space, "POST", limit, 1)
    until(lambda: rest(space, "GET", f"{limit}?applied=true") == 1)
    assert produce_one(served.bootstrap, "crowded") == 0  # its producer is there for ten seconds
    client = Client(served.bootstrap)

    def refused() -> bool:
        if "writes_refused/producer_busy" not in served.engine.counts:
            client.send("crowded", b"v")
            client.producer.poll(0.5)
        return "writes_refused/producer_busy" in served.engine.counts

    until(refused)
    assert said(caplog, "set-max-producers")
    rest(space, "DELETE", limit)
    results = client.flush()
    assert results == list(range(1, 1 + len(results)))


def test_a_limit_on_consumers_is_retriable_and_heals(
    space: Pulsar, served: PulsarGateway, caplog: pytest.LogCaptureFixture
) -> None:
    create(served.bootstrap, "watched", 1)
    limit = f"persistent/{space.namespace}/watched/maxConsumers"
    log = served.log("watched")
    served.call(log.attach())
    served.call(log.context.client.open_reader(log.partition_name, EARLIEST, permits=1, on_entry=lambda _: None))
    rest(space, "POST", limit, 1)
    until(lambda: rest(space, "GET", f"{limit}?applied=true") == 1)

    async def again() -> None:
        log.detach(BackendError("to attach again"))
        await log.attach()

    with pytest.raises(KopError) as raised:
        served.call(again())
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert said(caplog, "set-max-consumers")
    assert served.engine.counts["reads_refused/consumer_busy"] >= 1
    rest(space, "DELETE", limit)

    def heals() -> bool:
        outcome = produce_one(served.bootstrap, "watched")
        return isinstance(outcome, int)

    until(heals)


def test_a_limit_on_topics(pulsar_urls: Urls, caplog: pytest.LogCaptureFixture) -> None:
    with fresh_namespace(pulsar_urls) as small:
        gateway = PulsarGateway(small).start()
        try:
            rest(small, "POST", f"namespaces/{small.namespace}/maxTopicsPerNamespace", 2)
            create(gateway.bootstrap, "fits", 2)

            def refused() -> bool:
                try:
                    create(gateway.bootstrap, "too-many", 2)
                except KafkaException as error:
                    return bool(error.args[0].code() == KafkaError.POLICY_VIOLATION)
                return False

            assert refused()
            assert said(caplog, "set-max-topics-per-namespace")
            assert gateway.engine.counts["topic_changes_refused/precondition_failed"] >= 1
            assert gateway.engine.topics.get("too-many") is None
        finally:
            gateway.stop()


def test_an_evicted_backlog_takes_nothing_from_kafka_clients(space: Pulsar, served: PulsarGateway) -> None:
    """The policy `consumer_backlog_eviction` moves subscriptions on; records stay as long as retention says."""
    create(served.bootstrap, "evicted", 1)
    path = f"persistent/{space.namespace}/evicted"
    rest(space, "PUT", f"{path}-partition-0/subscription/stuck", {"ledgerId": -1, "entryId": -1})
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    rest(space, "POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota)
    client = Client(served.bootstrap)
    client.send("evicted", *[b"x" * 10_000 for _ in range(10)])
    assert client.flush() == list(range(10))
    rest(space, "POST", f"{path}-partition-0/subscription/stuck/skip_all")  # as the broker does once a minute
    log = served.log("evicted")
    served.engine.cache.drop(log.tail.cached)
    result = served.call(log.read(0, 1 << 20, min_one=True))
    assert result.size > 100_000
    assert produce_one(served.bootstrap, "evicted") == 10


def test_a_topic_deleted_under_a_producer(space: Pulsar, served: PulsarGateway) -> None:
    create(served.bootstrap, "brief", 1)
    client = Client(served.bootstrap, 30, **{"topic.metadata.propagation.max.ms": 1000})
    client.send("brief", b"v")
    assert client.flush() == [0]
    admin(space, lambda pulsar_admin: pulsar_admin.delete_partitioned(f"persistent://{space.namespace}/brief"))
    client.send("brief", b"v")
    (error,) = client.flush()
    assert isinstance(error, KafkaError)
    # The gateway's error, or librdkafka's own: _DESTROY is a message of a partition that it has just removed.
    of_librdkafka = {"_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_MSG_TIMED_OUT", "_DESTROY"}
    assert error.name() in {"UNKNOWN_TOPIC_OR_PART", *of_librdkafka}
    listed = rest(space, "GET", f"persistent/{space.namespace}/partitioned")
    assert not [name for name in listed if name.endswith("/brief")], "nobody brought it back"
    # A partition that a producer brought back while Pulsar deleted the others is deleted again.
    until(lambda: not [name for name in rest(space, "GET", f"persistent/{space.namespace}") if "/brief" in name])
