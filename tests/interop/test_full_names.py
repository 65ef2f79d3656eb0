"""Topics by their full names: `tenant/namespace/topic` and `persistent://...`, of the home namespace and of others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from interop.interop_kit import SECONDS, Interop, fetch, raw, run
from support.gateway import RawClient, batch, fetch_fields, gateway, produce_fields
from support.pulsar_gateway import PulsarGateway
from support.waiting import wait_until

from kop.errors import ErrorCode
from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import FOREVER
from kop.storage.pulsar.layout import NAMED_PREFIX
from kop.wire.messages import REQUESTS

KAFKA_RULE = ErrorCode.INVALID_TOPIC_EXCEPTION
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture(scope="module")
def elsewhere(interop: Interop) -> str:
    """A namespace that is no gateway's home; it goes with the home one."""
    namespace = f"{interop.pulsar.namespace}-elsewhere"
    interop.admin(lambda admin: admin.create_namespace(namespace))
    interop.admin(lambda admin: admin.set_namespace_retention(namespace, FOREVER))
    return namespace


@pytest.fixture
def foreign(interop: Interop, elsewhere: str) -> str:
    """`tenant/namespace/topic` of two partitions that Pulsar's tools made in the other namespace."""
    name = f"{elsewhere}/{interop.name('theirs')}"
    interop.admin(lambda admin: admin.create_partitioned(f"persistent://{name}", 2, {}))
    return name


async def metadata(client: RawClient, *names: str | None, ids: tuple[Any, ...] = (), create: bool = False) -> Any:
    """The topics of a Metadata answer, version 12."""
    row = REQUESTS[3].MetadataRequestTopic
    asked = [row(version=12, name=name, topic_id=None) for name in names]
    asked += [row(version=12, name=None, topic_id=topic_id) for topic_id in ids]
    fields = {"allow_auto_topic_creation": create, "include_topic_authorized_operations": False}
    return (await client.call(3, 12, topics=asked, **fields)).topics


def ask(gateway: PulsarGateway, *names: str, ids: tuple[Any, ...] = (), create: bool = False) -> Any:
    async def do() -> Any:
        async with raw(gateway) as client:
            return await metadata(client, *names, ids=ids, create=create)

    return run(do())


@contextlib.contextmanager
def group(gateway: PulsarGateway, name: str, topic: str) -> Iterator[ck.Consumer]:
    """A member of a group, subscribed; it begins at the earliest offset."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


def take(consumer: ck.Consumer, count: int) -> list[Any]:
    messages: list[Any] = []

    def more() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
        return len(messages) >= count

    wait_until(more, f"{count} records")
    return messages


# --- another namespace


def test_a_topic_of_another_namespace_is_produced_consumed_and_committed(interop: Interop, foreign: str) -> None:
    assert interop.produce(foreign, [{"value": b"%d" % n} for n in range(3)]) == [0, 1, 2]
    messages = interop.receive(f"persistent://{foreign}", 3)
    assert [message.data() for message in messages] == [b"0", b"1", b"2"]
    name = secrets.token_hex(4)
    with group(interop.gateway, name, f"persistent://{foreign}") as consumer:
        got = take(consumer, 3)
        assert {message.topic() for message in got} == {f"persistent://{foreign}"}
        consumer.commit(asynchronous=False)
    # What was committed under one name is committed under the other.
    with group(interop.gateway, name, foreign) as consumer:
        committed = consumer.committed([ck.TopicPartition(foreign, 0)], SECONDS)
        assert committed[0].offset == 3
        interop.produce(foreign, [{"value": b"3"}])
        assert [message.value() for message in take(consumer, 1)] == [b"3"]


def test_all_topics_are_those_of_the_home_namespace(interop: Interop, foreign: str) -> None:
    home = interop.create(interop.name("home"))
    interop.produce(foreign, [{"value": b"1"}])
    listed = AdminClient({"bootstrap.servers": interop.gateway.bootstrap}).list_topics(timeout=SECONDS).topics
    assert home in listed
    assert not [name for name in listed if "/" in name]


def test_a_restarted_gateway_knows_topics_by_id_and_keeps_their_commits(
    interop: Interop, foreign: str, caplog: pytest.LogCaptureFixture
) -> None:
    (topic,) = ask(interop.gateway, foreign)
    name = secrets.token_hex(4)
    mine = PulsarGateway(interop.pulsar, f"again-{secrets.token_hex(2)}")
    mine.start()
    try:
        assert interop.produce(foreign, [{"value": b"1"}]) == [0]
        with group(mine, name, foreign) as consumer:
            take(consumer, 1)
            consumer.commit(asynchronous=False)
        own_topic = mine.engine.context.naming.own_topic
        wait_until(
            lambda: NAMED_PREFIX + foreign in interop.admin(lambda a: a.partitioned_metadata(own_topic)).properties,
            "the name is kept",
        )
        mine.restart()

        async def by_id() -> Any:
            async with raw(mine) as client:
                answer = await client.call(1, 13, **fetch_fields(topic.topic_id, 0, version=13, max_wait_ms=5000))
                return answer.responses[0].partitions[0]

        assert run(by_id()).error_code == 0
        with group(mine, name, foreign) as consumer:
            assert consumer.committed([ck.TopicPartition(foreign, 0)], SECONDS)[0].offset == 1
    finally:
        mine.stop()


def test_gateways_of_one_cluster_tell_each_other(interop: Interop, foreign: str) -> None:
    cluster = f"two-{secrets.token_hex(2)}"
    first, second = PulsarGateway(interop.pulsar, cluster), PulsarGateway(interop.pulsar, cluster, node_id="2")
    try:
        first.start()
        second.start()
        (topic,) = ask(first, foreign)

        async def by_id() -> int:
            async with raw(second) as client:
                answer = await client.call(1, 13, **fetch_fields(topic.topic_id, 0, version=13))
                return int(answer.responses[0].partitions[0].error_code)

        wait_until(lambda: run(by_id()) == 0, "the other gateway knows the id that this one gave out")
    finally:
        first.stop()
        second.stop()


def test_a_topic_that_its_owner_deletes_is_gone_here_too(interop: Interop, foreign: str) -> None:
    interop.produce(foreign, [{"value": b"1"}])
    (before,) = ask(interop.gateway, foreign)
    interop.admin(lambda admin: admin.delete_partitioned(f"persistent://{foreign}"))
    wait_until(lambda: ask(interop.gateway, foreign)[0].error_code == UNKNOWN, "the topic is gone")

    def made_again() -> bool:
        try:
            interop.admin(lambda admin: admin.create_partitioned(f"persistent://{foreign}", 3, {}))
        except PulsarError as error:
            if error.code != "Conflict":
                raise
            return False  # the gateway's producer has brought a partition back, which the gateway deletes again
        return True

    wait_until(made_again, "the topic is made again")
    wait_until(lambda: ask(interop.gateway, foreign)[0].error_code == 0, "the new one is seen")
    (after,) = ask(interop.gateway, foreign)
    assert after.topic_id != before.topic_id
    assert len(after.partitions) == 3


def test_a_topic_of_another_namespace_is_made_and_changed_as_any(interop: Interop, elsewhere: str) -> None:
    name = f"{elsewhere}/{interop.name('ours')}"
    full = f"persistent://{name}"
    admin = AdminClient({"bootstrap.servers": interop.gateway.bootstrap})
    admin.create_topics([NewTopic(name, 1, config={"retention.ms": "3600000"})])[name].result(SECONDS)
    assert interop.admin(lambda pulsar: pulsar.get_retention(full, applied=True)) == (60, -1)
    with pytest.raises(ck.KafkaException, match="already exists"):
        admin.create_topics([NewTopic(full, 1)])[full].result(SECONDS)
    resource = ConfigResource(ResourceType.TOPIC, full)
    assert admin.describe_configs([resource])[resource].result(SECONDS)["retention.ms"].value == "3600000"
    admin.create_partitions([NewPartitions(full, 3)])[full].result(SECONDS)
    assert len(ask(interop.gateway, name)[0].partitions) == 3
    interop.produce(full, [{"value": b"%d" % n} for n in range(4)])
    first = ck.TopicPartition(name, 0, 2)
    assert admin.delete_records([first])[first].result(SECONDS).low_watermark == 2
    assert interop.ends(full) == (2, 4)
    admin.delete_topics([full])[full].result(SECONDS)
    with pytest.raises(PulsarError, match="NotFound"):
        interop.admin(lambda pulsar: pulsar.partitioned_metadata(full))


def test_a_topic_is_made_by_being_produced_to(interop: Interop, elsewhere: str) -> None:
    name = f"{elsewhere}/{interop.name('made')}"
    assert interop.produce(f"persistent://{name}", [{"value": b"1"}]) == [0]
    made = interop.admin(lambda admin: admin.partitioned_metadata(f"persistent://{name}"))
    assert made.partitions == 1


def test_aiokafka_produces_and_consumes_by_the_full_name(interop: Interop, foreign: str) -> None:
    async def trip() -> tuple[str, bytes | None]:
        where = {"bootstrap_servers": interop.gateway.bootstrap}
        async with AIOKafkaProducer(**where) as producer:
            await producer.send_and_wait(f"persistent://{foreign}", b"hello", partition=1)
        # Its session is as long as a slow machine may need from a heartbeat to the next; as it comes it has 10 s.
        member = {"group_id": secrets.token_hex(4), "auto_offset_reset": "earliest", "session_timeout_ms": 30_000}
        async with AIOKafkaConsumer(foreign, **member, **where) as consumer:
            message = await asyncio.wait_for(consumer.getone(), SECONDS)
            await consumer.commit()
            return message.topic, message.value

    assert run(trip()) == (foreign, b"hello")


# --- what is not there


def test_a_missing_namespace_is_an_unknown_topic_a_log_line_and_not_a_call_per_request(
    interop: Interop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "kop")
    name = f"public/absent-{secrets.token_hex(4)}/orders"
    calls: list[str] = []
    admin = interop.gateway.engine.admin
    asked, made = admin.partitioned_metadata, admin.create_partitioned

    async def counted(topic: str) -> Any:
        calls.append(topic)
        return await asked(topic)

    async def counted_too(topic: str, *rest: Any) -> Any:
        calls.append(topic)
        return await made(topic, *rest)

    monkeypatch.setattr(admin, "partitioned_metadata", counted)
    monkeypatch.setattr(admin, "create_partitioned", counted_too)
    began = time.monotonic()
    answers = [ask(interop.gateway, name, create=True)[0] for _ in range(20)]
    assert {(answer.error_code, answer.name) for answer in answers} == {(UNKNOWN, name)}
    # One look and one try, and as many again each five seconds: the requests may take so long on a slow machine.
    assert calls.count(f"persistent://{name}") <= 4 + 2 * ((time.monotonic() - began) // 5)
    said = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert said, "no line in the log"
    assert "amespace not found" in said[0]
    assert interop.gateway.engine.counts["topics_not_read/foreign_refused"] > 0


@pytest.mark.parametrize(
    "name",
    [
        "non-persistent://public/default/orders",
        "default/orders",
        "public/default/",
        "a/b/c/d",
        "persistent://public/default/or ders",
        "pulsar/system/transaction_coordinator_assign",
        "public/default/..",
    ],
)
def test_what_is_no_persistent_topics_name_is_refused(interop: Interop, name: str) -> None:
    (answer,) = ask(interop.gateway, name, create=True)
    assert (answer.error_code, answer.name) == (KAFKA_RULE, name)


def test_the_gateways_own_topics_and_partitions_have_no_full_names(interop: Interop, foreign: str) -> None:
    own = interop.gateway.engine.settings.kop_pulsar_metadata_namespace
    names = [f"{own}/__offsets", f"persistent://{own}/__kop", f"{foreign}-partition-0", f"{foreign[:-1]}/__x"]
    names += [f"{own}/__kop_security", f"persistent://{own}/__kop_security"]
    answers = ask(interop.gateway, *names, create=True)
    assert [answer.error_code for answer in answers] == [KAFKA_RULE] * 6


def test_the_embedded_engine_has_no_full_names(tmp_path: Path) -> None:
    async def do() -> list[int]:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            topics = await metadata(client, "public/default/a", "persistent://public/default/a", create=True)
            return [topic.error_code for topic in topics]

    assert run(do()) == [KAFKA_RULE] * 2


# --- several names of one topic


def names_of(interop: Interop, topic: str) -> tuple[str, str, str]:
    full = f"{interop.pulsar.namespace}/{topic}"
    return topic, full, f"persistent://{full}"


def test_the_names_of_a_home_topic_are_one_log_with_an_id_each(interop: Interop) -> None:
    names = names_of(interop, interop.create(interop.name("many"), 2))
    answers = ask(interop.gateway, *names)
    assert [answer.name for answer in answers] == list(names)
    assert [len(answer.partitions) for answer in answers] == [2] * 3
    # A client that knows two of the names maps ids back to names: Java's does not stand two names for one id.
    ids = [answer.topic_id for answer in answers]
    assert len(set(ids)) == 3
    assert [answer.name for answer in ask(interop.gateway, ids=tuple(ids))] == list(names)
    # Whichever gateway is asked.
    interop.known(names[0], interop.other)
    assert [answer.name for answer in ask(interop.other, ids=tuple(ids))] == list(names)

    async def produce() -> list[int]:
        async with raw(interop.gateway) as client:
            offsets = []
            for topic_id in ids:
                answer = await client.call(0, 13, **produce_fields(topic_id, batch([b"v"]), version=13))
                part = answer.responses[0].partition_responses[0]
                assert (answer.responses[0].topic_id, part.error_code) == (topic_id, 0)
                offsets.append(part.base_offset)
            return offsets

    assert run(produce()) == [0, 1, 2]
    assert [fetch(interop.gateway, name, 0, max_wait_ms=1000).end for name in names] == [3, 3, 3]


def test_the_names_of_a_topic_share_its_committed_offsets(interop: Interop) -> None:
    names = names_of(interop, interop.create(interop.name("commits")))
    interop.produce(names[0], [{"value": b"%d" % n} for n in range(3)])
    name = secrets.token_hex(4)
    with group(interop.gateway, name, names[2]) as consumer:
        take(consumer, 3)
        consumer.commit(asynchronous=False)

        async def delete() -> tuple[int, int]:
            row = REQUESTS[47].OffsetDeleteRequestTopic
            part = row.OffsetDeleteRequestPartition(version=0, partition_index=0)
            async with raw(interop.gateway) as client:
                topics = [row(version=0, name=names[0], partitions=[part])]
                answer = await client.call(47, 0, group_id=name, topics=topics)
                return answer.error_code, answer.topics[0].partitions[0].error_code

        # The group subscribes to the same topic under another name.
        assert run(delete()) == (0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    with group(interop.gateway, name, names[1]) as consumer:
        positions = consumer.committed([ck.TopicPartition(each, 0) for each in names], SECONDS)
        assert [(each.topic, each.offset) for each in positions] == [(each, 3) for each in names]


def test_two_names_of_a_topic_in_one_request(interop: Interop) -> None:
    short, full, url = names_of(interop, interop.name("twice"))
    create, row = REQUESTS[19], REQUESTS[19].CreatableTopic

    async def do() -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        async with raw(interop.gateway) as client:

            async def made(*names: str) -> list[Any]:
                wanted = [
                    row(version=5, name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
                    for name in names
                ]
                answer = await client.call(create.API_KEY, 5, topics=wanted, timeout_ms=10_000, validate_only=False)
                return [(topic.name, topic.error_code) for topic in answer.topics]

            async def deleted(*names: str) -> list[Any]:
                answer = await client.call(20, 5, topic_names=list(names), timeout_ms=10_000)
                return [(topic.name, topic.error_code) for topic in answer.responses]

            return await made(short, full), await made(url), await deleted(short, url), await deleted(full)

    twice, once, kept, gone = run(do())
    assert twice == [(short, ErrorCode.INVALID_REQUEST), (full, ErrorCode.INVALID_REQUEST)]
    assert once == [(url, 0)]
    assert sorted(kept) == sorted([(short, ErrorCode.INVALID_REQUEST), (url, ErrorCode.INVALID_REQUEST)])
    assert gone == [(full, 0)]
