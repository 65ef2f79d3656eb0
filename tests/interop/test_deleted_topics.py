"""A producer that comes too late must not bring a deleted topic back: Pulsar makes what PRODUCER names."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaException
from interop.interop_kit import NOW, Interop, raw, run
from support.gateway import produce_fields
from support.pulsar_admin import PulsarAdmin
from support.waiting import SECONDS, wait_until

from kop.errors import ErrorCode
from kop.pulsar_client import Client, PulsarError
from kop.records.batch import build
from kop.records.record import Record
from kop.storage.pulsar.layout import DELETING_PROPERTY
from kop.storage.pulsar.topics.strays import StrayPartitions

GONE = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR}
"""The tail may be the first to find out: then the client is told to try again."""


def names(interop: Interop, topic: str) -> list[str]:
    """What Pulsar has of the topic: itself where it is plain, its partitions."""
    return [name for name in interop.admin(lambda a: a.list_topics(interop.pulsar.namespace)) if topic in name]


def gone(interop: Interop, topic: str) -> None:
    """It goes and stays away. A producer that was being opened may bring it back once, until the gateway deletes it."""
    last_there = time.monotonic()

    def stays_away() -> bool:
        nonlocal last_there
        if names(interop, topic):
            last_there = time.monotonic()
        return time.monotonic() - last_there > 1  # a producer that brings it back would do so about now

    wait_until(stays_away, f"{topic} is gone")


def is_unknown(interop: Interop, topic: str) -> bool:
    return interop.gateway.engine.topics.get(topic) is None


def answer_to(interop: Interop, topic: str, batch: bytes) -> Any:
    """What a Produce of a batch is answered."""

    async def do() -> Any:
        async with raw(interop.gateway) as client:
            answer = await client.call(0, 9, **produce_fields(topic, batch, version=9))
            return answer.responses[0].partition_responses[0]

    return run(do())


def produce(interop: Interop, topic: str) -> ErrorCode:
    return ErrorCode(answer_to(interop, topic, bytes(build([Record(0, NOW, None, b"late")]))).error_code)


def between_guard_and_producer(
    interop: Interop, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[None]]
) -> None:
    """Let something happen once, after the guard found the topic alive and before the broker sees the producer."""
    client = interop.gateway.engine.client
    real = client.open_producer
    pending = [happens]

    async def open_producer(*args: Any, **how: Any) -> Any:
        if pending:
            await pending.pop()()
        return await real(*args, **how)

    monkeypatch.setattr(client, "open_producer", open_producer)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "partitioned"])
def test_a_topic_that_goes_while_a_producer_is_opened_stays_away(
    interop: Interop, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    topic = interop.name("late")
    full = interop.full(topic)
    admin = interop.gateway.engine.admin
    if plain:
        interop.admin(lambda a: a.create_plain(full, {}))
    else:
        interop.create(topic)
    interop.known(topic)
    interop.ends(topic)

    async def delete() -> None:
        await (admin.delete_plain(full) if plain else admin.delete_partitioned(full))

    between_guard_and_producer(interop, monkeypatch, delete)
    assert produce(interop, topic) in GONE
    gone(interop, topic)
    assert produce(interop, topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_plain_topic_that_somebody_made_again_meanwhile_is_left_alone(
    interop: Interop, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = interop.name("again")
    full = interop.full(topic)
    interop.admin(lambda a: a.create_plain(full, {}))
    interop.known(topic)
    interop.ends(topic)

    async def make_again() -> None:
        async with PulsarAdmin(interop.pulsar.admin_url) as admin:
            await admin.delete_plain(full)
            await admin.create_plain(full, {})
        await asyncio.sleep(0.2)  # what the gateway hears of it comes before it goes on, or behind

    between_guard_and_producer(interop, monkeypatch, make_again)
    assert produce(interop, topic) in GONE
    wait_until(lambda: produce(interop, topic) == ErrorCode.NONE, "the new topic takes records")
    assert interop.ends(topic) == (0, 1)


def test_topics_deleted_by_pulsar_under_producers_stay_away(interop: Interop) -> None:
    """Their partitions go one by one while the topic still looks alive: some producers come back in time for that."""
    topics = [interop.create(interop.name("under"), 4) for _ in range(6)]
    for topic in topics:
        sent = [{"partition": partition, "value": b"v"} for partition in range(4)]
        interop.produce(topic, sent, {"enable.idempotence": True})
    for topic in topics:
        interop.admin(partial(PulsarAdmin.delete_partitioned, topic=interop.full(topic)))
    for topic in topics:
        gone(interop, topic)
        wait_until(partial(is_unknown, interop, topic), "the gateway has heard of it")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_topic_that_is_made_again_at_once_keeps_its_partitions(
    interop: Interop, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """What the deleted one's producers may have brought back is looked for at that very moment."""
    guard, real = interop.gateway.engine.deletion_guard, StrayPartitions.id_or_none
    looked = threading.Event()

    async def slowly(self: StrayPartitions, full_name: str) -> str | None:
        topic_id = await real(self, full_name)
        if topic_id is None:
            looked.set()
            await asyncio.sleep(0.5)  # a slow answer: the topic is made again between it and what follows from it
        return topic_id

    engine = interop.gateway.engine
    topic = interop.create(interop.name("again"), 2)
    interop.produce(topic, [{"partition": partition, "value": b"v"} for partition in range(2)])
    log = interop.gateway.log(topic)
    monkeypatch.setattr(StrayPartitions, "id_or_none", slowly)
    interop.delete(topic)
    engine.loop.call_soon_threadsafe(guard.take_back, log)  # as where its producer was still open
    assert looked.wait(SECONDS)
    if elsewhere:
        interop.admin(lambda a: a.create_partitioned(interop.full(topic), 2, {}))
    else:
        interop.create(topic, 2)
    wait_until(
        lambda: not any(task.get_name().startswith("take back") for task in asyncio.all_tasks(engine.loop)),
        "all was looked at",
    )
    assert names(interop, topic) == [interop.partition(topic, 0), interop.partition(topic, 1)]
    interop.known(topic)
    wait_until(lambda: produce(interop, topic) == ErrorCode.NONE, "it takes records")
    assert interop.ends(topic) == (0, 1)


def test_a_partition_that_is_missing_is_not_made_by_a_producer(
    interop: Interop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be part of a topic that is being deleted this moment; what to do where it is not is said after a while."""
    monkeypatch.setattr("kop.storage.pulsar.topics.deletion.MISSING_SECONDS", 0.2)
    topic = interop.create(interop.name("holes"))
    partition = interop.partition(topic)
    interop.admin(lambda a: a.delete_plain(partition, force=True))
    wait_until(
        lambda: produce(interop, topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition is seen to be gone"
    )
    wait_until(lambda: produce(interop, topic) and "create-missed-partitions" in caplog.text, "it is said what to do")
    assert names(interop, topic) == []
    interop.admin(lambda a: a.create_missed_partitions(interop.full(topic)))
    wait_until(lambda: produce(interop, topic) == ErrorCode.NONE, "it takes records again")


def test_no_producer_comes_to_a_topic_that_a_gateway_deletes(interop: Interop) -> None:
    topic = interop.create(interop.name("dying"))
    full = interop.full(topic)
    interop.admin(lambda a: a.set_properties(full, {DELETING_PROPERTY: str(int(time.time() * 1000))}))
    assert produce(interop, topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert names(interop, topic) == [interop.partition(topic)]
    # Whoever wanted to delete it has died meanwhile.
    interop.admin(lambda a: a.set_properties(full, {DELETING_PROPERTY: str(int(time.time() * 1000) - 3_600_000)}))
    wait_until(lambda: produce(interop, topic) == ErrorCode.NONE, "it takes records again")


def test_an_idempotent_producer_goes_on_where_its_topic_was_recreated(interop: Interop) -> None:
    topic = interop.create(interop.name("recreated"))
    interop.write(topic, [Record(0, NOW, None, b"somebody else's")])
    for sequence in (7, 8, 9):
        data = build([Record(0, NOW, None, b"v")], producer_id=990_000, producer_epoch=0, base_sequence=sequence)
        answer = answer_to(interop, topic, bytes(data))
        assert (answer.error_code, answer.base_offset) == (0, sequence - 6)


def test_an_idempotent_producer_that_is_not_known_is_told_where_the_log_begins(interop: Interop) -> None:
    """Of a topic made elsewhere the gateway cannot say that Pulsar has forgotten nothing.

    Without the log start the Java client sends the same batch again until its delivery time is over.
    """
    topic = interop.name("old")
    interop.admin(lambda a: a.create_partitioned(interop.full(topic), 1, {}))
    interop.known(topic)
    batch = build([Record(0, NOW, None, b"v")], producer_id=990_001, producer_epoch=0, base_sequence=7)
    answer = answer_to(interop, topic, bytes(batch))
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (ErrorCode.UNKNOWN_PRODUCER_ID, -1, 0)
    batch = build([Record(0, NOW, None, b"v")], producer_id=990_001, producer_epoch=1, base_sequence=0)
    answer = answer_to(interop, topic, bytes(batch))
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (0, 0, 0)


async def stray(interop: Interop, topic: str) -> None:
    """A partition of no topic, as a producer of any client leaves it behind."""
    client = Client(interop.pulsar.service_url)
    await client.start()
    producer = await client.open_producer(interop.partition(topic))
    await producer.close()
    await client.close()


def test_a_topic_is_made_where_a_partition_of_a_deleted_one_came_back(interop: Interop) -> None:
    topic = interop.name("stray")
    run(stray(interop, topic))
    interop.create(topic, 2)
    interop.write(topic, [Record(0, NOW, None, b"v")])
    assert interop.ends(topic) == (0, 1)


def test_a_name_that_deletions_left_behind_is_no_obstacle(interop: Interop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulsar may list a partition, refuse to make a topic over it, and say all the same that it is not there."""
    topic = interop.name("ghost")
    run(stray(interop, topic))
    admin, real = interop.gateway.engine.admin, interop.gateway.engine.admin.internal_stats
    asked: list[str] = []

    async def not_there_at_first(partition: str) -> dict[str, Any]:
        if partition == interop.partition(topic):  # upkeep asks for others now and then
            asked.append(partition)
            if len(asked) == 1:
                raise PulsarError("NotFound", "Partitioned Topic not found: it has zero partitions")
        return await real(partition)

    monkeypatch.setattr(admin, "internal_stats", not_there_at_first)
    interop.create(topic, 2)
    assert asked[:2] == [interop.partition(topic)] * 2
    interop.write(topic, [Record(0, NOW, None, b"v")])
    assert interop.ends(topic) == (0, 1)


def test_a_partition_of_no_topic_that_holds_records_is_nobodys_to_delete(interop: Interop) -> None:
    topic = interop.name("stray")
    interop.send(interop.partition(topic), [{"content": b"precious"}])
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        interop.create(topic, 2)
    assert [message.data() for message in interop.receive(interop.partition(topic), 1)] == [b"precious"]


def test_a_property_of_a_topic_that_is_not_there_is_refused_in_time(interop: Interop) -> None:
    """Brokers leave the request without an answer; whoever sets a property must not wait for it until the Timeout."""
    with pytest.raises(PulsarError, match="NotFound"):
        interop.admin(lambda a: a.set_properties(interop.full(interop.name("none")), {"a": "b"}))
