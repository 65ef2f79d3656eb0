"""Faults that a test wants of its broker, and what an application with a real client sees of them."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from support.waiting import SECONDS

from kop.testing import Broker


def consumer(broker: Broker, **more: object) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", **more})


def produced(broker: Broker, value: bytes, **more: object) -> KafkaError | None:
    """Produce one record with librdkafka; the error that its delivery report has."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 10, **more})
    producer.produce("t", value, on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(SECONDS) == 0
    return errors[0]


def polled(client: Consumer) -> Message:
    message = client.poll(SECONDS)
    assert message is not None
    assert message.error() is None, message.error()
    return message


def test_a_restart_keeps_port_records_and_groups(kop_broker: Broker) -> None:
    kop_broker.produce("t", ["a", "b"])
    client = consumer(kop_broker)
    client.subscribe(["t"])
    assert polled(client).value() == b"a"
    client.commit(asynchronous=False)
    before = kop_broker.bootstrap
    kop_broker.restart()
    assert kop_broker.bootstrap == before
    assert [record.value for record in kop_broker.records("t")] == [b"a", b"b"]
    assert produced(kop_broker, b"c", **{"enable.idempotence": True}) is None
    seen: list[bytes | None] = []
    while len(seen) < 2:  # the client connects again by itself
        message = client.poll(SECONDS)
        assert message is not None
        if message.error() is None:
            seen.append(message.value())
    assert seen == [b"b", b"c"]
    client.close()
    assert kop_broker.committed("g") == {("t", 0): 3}


def test_a_restart_in_an_asynchronous_test(kop_broker: Broker) -> None:
    async def main() -> list[bytes]:
        async with AIOKafkaProducer(bootstrap_servers=kop_broker.bootstrap, retry_backoff_ms=10) as producer:
            await producer.send_and_wait("t", b"before")
            await asyncio.to_thread(kop_broker.restart)
            await producer.send_and_wait("t", b"after")
        return [record.value or b"" for record in kop_broker.records("t")]

    assert asyncio.run(main()) == [b"before", b"after"]


def test_a_paused_broker_lets_clients_time_out_and_goes_on(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=1)

    async def main() -> int:
        address = kop_broker.bootstrap
        impatient = AIOKafkaProducer(bootstrap_servers=address, request_timeout_ms=3000, retry_backoff_ms=10)
        async with AIOKafkaProducer(bootstrap_servers=address) as producer, impatient:
            await producer.send_and_wait("t", b"before")
            await impatient.partitions_for("t")  # else it waits for those
            with kop_broker.pause():
                sent = asyncio.create_task(impatient.send_and_wait("t", b"meanwhile"))
                await asyncio.wait([sent], timeout=0.2)
                assert not sent.done()
                with pytest.raises((RequestTimedOutError, KafkaConnectionError)):
                    await sent
            return (await producer.send_and_wait("t", b"after")).offset

    assert asyncio.run(main()) >= 1
    assert kop_broker.records("t")[-1].value == b"after"


def test_cut_connections_are_made_again(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=1)
    producer = Producer({"bootstrap.servers": kop_broker.bootstrap, "reconnect.backoff.ms": 10, "log_level": 0})
    for value in (b"before", b"after"):
        errors: list[KafkaError | None] = []
        producer.produce("t", value, on_delivery=lambda error, message, errors=errors: errors.append(error))
        assert producer.flush(SECONDS) == 0
        assert errors == [None]
        assert kop_broker.cut_connections() >= 1
    assert [record.value for record in kop_broker.records("t")] == [b"before", b"after"]


def test_an_error_that_clients_try_again_is_tried_again(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=1)
    kop_broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert produced(kop_broker, b"v") is None
    outcomes = [seen.outcome for seen in kop_broker.requests() if seen.api == "Produce"]
    assert outcomes == ["NOT_LEADER_OR_FOLLOWER", "NOT_LEADER_OR_FOLLOWER", "ok"]
    assert len(kop_broker.records("t")) == 1


def test_an_error_that_is_final_reaches_the_application(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=1)
    kop_broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
    error = produced(kop_broker, b"v")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert kop_broker.records("t") == []
    kop_broker.heal()
    assert produced(kop_broker, b"v") is None


def test_a_commit_that_fails(kop_broker: Broker) -> None:
    kop_broker.produce("t", ["a"])
    client = consumer(kop_broker)
    client.subscribe(["t"])
    polled(client)
    kop_broker.fail("OffsetCommit", "UNKNOWN_MEMBER_ID")
    with pytest.raises(KafkaException) as caught:
        client.commit(asynchronous=False)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    assert kop_broker.committed("g") == {}
    client.close()


def test_fetches_that_are_late(kop_broker: Broker) -> None:
    kop_broker.produce("t", ["a"])
    kop_broker.delay("Fetch", 0.3, times=1)

    async def main() -> float:
        started = time.monotonic()
        async with AIOKafkaConsumer(
            "t", bootstrap_servers=kop_broker.bootstrap, auto_offset_reset="earliest"
        ) as client:
            assert (await client.getone()).value == b"a"
            return time.monotonic() - started

    assert 0.3 <= asyncio.run(main()) < SECONDS


def test_a_late_request_of_a_client_that_has_gone_is_dropped(kop_broker: Broker) -> None:
    kop_broker.create_topic("t", partitions=1)
    kop_broker.delay("Produce", 0.2, times=1)
    producer = Producer({"bootstrap.servers": kop_broker.bootstrap, "log_level": 0})
    producer.produce("t", b"v")
    producer.poll(0.1)
    while not any(seen.api == "Produce" for seen in kop_broker.requests()):
        time.sleep(0.01)  # nothing tells when the request comes
    kop_broker.cut_connections()
    assert producer.flush(SECONDS) == 0  # sent again on another connection
    assert [record.value for record in kop_broker.records("t")] == [b"v"]


def test_sessions_that_end_move_partitions_and_the_member_comes_back(kop_broker: Broker) -> None:
    kop_broker.produce("t", ["a"])
    lost: list[int] = []
    client = consumer(kop_broker, **{"heartbeat.interval.ms": 50})
    client.subscribe(["t"], on_lost=lambda client, partitions: lost.append(len(partitions)))
    polled(client)
    assert kop_broker.expire_sessions("g") == 1
    assert kop_broker.groups() == [("g", "Empty", ())]
    deadline = time.monotonic() + SECONDS
    while not lost and time.monotonic() < deadline:
        client.poll(0.05)
    assert lost == [1]
    while kop_broker.groups()[0].state != "Stable" and time.monotonic() < deadline:
        client.poll(0.05)
    assert kop_broker.groups()[0].state == "Stable"
    client.close()
    assert kop_broker.expire_sessions("nobody") == 0


def test_names_that_kafka_does_not_have_are_refused(kop_broker: Broker) -> None:
    with pytest.raises(ValueError, match="no API 'Produces'; do you mean 'Produce'"):
        kop_broker.fail("Produces", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(ValueError, match="no error 'NOT_LEADER'; do you mean 'NOT_LEADER_OR_FOLLOWER'"):
        kop_broker.fail("Produce", "NOT_LEADER")
    with pytest.raises(ValueError, match="no error 'NONE'"):
        kop_broker.fail("Produce", "NONE")


def test_faults_for_no_request_are_refused(kop_broker: Broker) -> None:
    for times in 0, -1:
        with pytest.raises(ValueError, match=f"times has to be 1 or more, or None for all requests, not {times}"):
            kop_broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times)
        with pytest.raises(ValueError, match="times has to be 1 or more"):
            kop_broker.delay("Produce", 0.0, times)
    assert produced(kop_broker, b"served") is None
