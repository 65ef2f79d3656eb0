"""Kafka and Pulsar clients where offsets are packed from message ids: on a broker whose index nobody looks at, and on
one that sends none."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiokafka
import confluent_kafka as ck
import pulsar as native
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic
from interop.interop_kit import run
from support.pulsar import OwnBroker, Pulsar, Urls, fresh_namespace
from support.pulsar_gateway import PulsarGateway
from support.slowness import beyond_slowness
from support.waiting import wait_until

from kop.cli.main import cli
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.packed import unpack

SECONDS = 100.0
T = TypeVar("T")


class PackedGateway(PulsarGateway):
    def __init__(self, pulsar: Pulsar) -> None:
        super().__init__(pulsar, "packed", kop_pulsar_offsets="packed")
        self.pulsar = pulsar


@contextlib.contextmanager
def packed(pulsar: Pulsar) -> Iterator[PackedGateway]:
    gateway = PackedGateway(pulsar)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture(scope="module")
def gateway(pulsar_urls: Urls) -> Iterator[PackedGateway]:
    with fresh_namespace(pulsar_urls) as pulsar, packed(pulsar) as served:
        yield served


def create(gateway: PackedGateway, partitions: int = 1, **configs: str) -> str:
    topic = f"packed-{secrets.token_hex(4)}"
    made = NewTopic(topic, partitions, config={name.replace("_", "."): value for name, value in configs.items()})
    client = AdminClient({"bootstrap.servers": gateway.bootstrap})
    client.create_topics([made])[topic].result(SECONDS)
    return topic


def produce(gateway: PackedGateway, topic: str, values: Sequence[str], **settings: Any) -> list[int]:
    """All to partition 0; their offsets."""
    producer = ck.Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 5, **settings})
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    assert producer.flush(SECONDS) == 0
    return offsets


@contextlib.contextmanager
def consumer(gateway: PackedGateway, group: str, **settings: Any) -> Iterator[ck.Consumer]:
    config = {
        "bootstrap.servers": gateway.bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        **settings,
    }
    client = ck.Consumer(config)
    try:
        yield client
    finally:
        client.close()


def take(client: ck.Consumer, count: int) -> list[tuple[int, str]]:
    """Offset and value of the next records."""
    got: list[tuple[int, str]] = []
    end = time.monotonic() + SECONDS
    while len(got) < count:
        assert time.monotonic() < end, f"{len(got)} of {count} records came"
        message = client.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            got.append((message.offset(), message.value().decode()))
    return got


def take_and_commit(gateway: PackedGateway, group: str, topic: str, count: int) -> list[tuple[int, str]]:
    """A member comes, reads so many, commits and leaves."""
    with consumer(gateway, group) as member:
        member.subscribe([topic])
        got = take(member, count)
        member.commit(asynchronous=False)
    return got


def admin(gateway: PackedGateway, call: Callable[[Admin], Awaitable[T]]) -> T:
    async def do() -> T:
        async with Admin(gateway.pulsar.admin_url, timeout=SECONDS) as client:
            return await call(client)

    return run(do())


def compaction_ended(gateway: PackedGateway, partition: str) -> bool:
    return admin(gateway, partial(Admin.compaction_status, partition=partition)).status != "RUNNING"


def committed_is_the_end(gateway: PackedGateway, group: str, topic: str) -> None:
    with consumer(gateway, group) as looker:
        (position,) = looker.committed([ck.TopicPartition(topic, 0)], SECONDS)
        assert position.offset == looker.get_watermark_offsets(ck.TopicPartition(topic, 0), SECONDS)[1]


# --- what holds on any broker


def story(gateway: PackedGateway) -> None:
    """Produce, consume, commit, restart, unload, seek, list offsets by time."""
    topic, group = create(gateway), secrets.token_hex(4)
    told = produce(gateway, topic, [f"a{i}" for i in range(50)], **{"enable.idempotence": True})
    assert told == sorted(set(told))
    got = take_and_commit(gateway, group, topic, 50)
    assert got == [(offset, f"a{i}") for i, offset in enumerate(told)]
    committed_is_the_end(gateway, group, topic)

    middle = int(time.time() * 1000) + 1
    wait_until(lambda: time.time() * 1000 > middle, "a millisecond")
    gateway.restart()
    told += produce(gateway, topic, [f"b{i}" for i in range(50)], **{"compression.type": "lz4"})
    got += take_and_commit(gateway, group, topic, 50)
    log = gateway.log(topic)
    admin(gateway, lambda client: client.unload(log.partition_name))
    told += produce(gateway, topic, [f"c{i}" for i in range(50)])
    gateway.restart()
    got += take_and_commit(gateway, group, topic, 50)
    assert got == [(offset, f"{'abc'[i // 50]}{i % 50}") for i, offset in enumerate(told)]
    assert told == sorted(set(told))
    assert unpack(told[0])[0].ledger != unpack(told[-1])[0].ledger
    committed_is_the_end(gateway, group, topic)

    with consumer(gateway, secrets.token_hex(4), **{"auto.offset.reset": "error"}) as seeker:
        assert seeker.get_watermark_offsets(ck.TopicPartition(topic, 0), SECONDS) == (told[0], told[-1] + 1)
        (position,) = seeker.offsets_for_times([ck.TopicPartition(topic, 0, middle)], SECONDS)
        assert position.offset == told[50]
        seeker.assign([ck.TopicPartition(topic, 0, told[49] + 1)])
        assert take(seeker, 1) == [(told[50], "b0")]
        for number in (120, 7, 99):
            seeker.seek(ck.TopicPartition(topic, 0, told[number]))
            assert take(seeker, 2)[0] == got[number]
    counted = beyond_slowness(gateway.engine.counts)
    assert not {name for name in counted if "offset" in name or "entries" in name}, counted


def aiokafka_story(gateway: PackedGateway) -> None:
    """The same with a client that has another idea of positions."""
    topic, group = create(gateway, 2), secrets.token_hex(4)

    async def do() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=gateway.bootstrap, enable_idempotence=True)
        await producer.start()
        sent = [await producer.send_and_wait(topic, b"%d" % i, partition=i % 2) for i in range(40)]
        await producer.stop()
        seen: dict[bytes, tuple[int, int]] = {}
        for part in range(2):
            member = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=gateway.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                session_timeout_ms=30_000,  # as comes 10 s, in which a slow machine may not get to a heartbeat
            )
            await member.start()
            async with asyncio.timeout(SECONDS):
                while len(seen) < 20 * (part + 1):
                    for records in (
                        await member.getmany(timeout_ms=200, max_records=20 * (part + 1) - len(seen))
                    ).values():
                        seen |= {record.value: (record.partition, record.offset) for record in records}
            await member.commit()
            if part:
                for partition in member.assignment():
                    assert await member.position(partition) == (await member.end_offsets([partition]))[partition]
            await member.stop()
        assert seen == {b"%d" % i: (told.partition, told.offset) for i, told in enumerate(sent)}

    run(do())


# --- on the shared broker


def test_produce_consume_commit_restart_seek(gateway: PackedGateway) -> None:
    story(gateway)


def test_aiokafka_too(gateway: PackedGateway) -> None:
    aiokafka_story(gateway)


def test_what_pulsar_clients_write_has_the_offsets_of_its_message_ids(gateway: PackedGateway) -> None:
    topic = create(gateway)
    full = gateway.log(topic).partition_name
    client = native.Client(gateway.pulsar.service_url, logger=native.ConsoleLogger(native.LoggerLevel.Error))
    ids: list[native.MessageId] = []
    try:
        single = client.create_producer(full, batching_enabled=False, chunking_enabled=True)
        ids.append(single.send(b"single"))
        batched = client.create_producer(full, batching_enabled=True, batching_max_publish_delay_ms=200)
        for number in range(3):
            batched.send_async(b"batched %d" % number, lambda result, message_id: ids.append(message_id))
        batched.flush()
        wait_until(lambda: len(ids) == 4, "the batch is stored")
        ids.append(single.send(b"x" * (12 << 20)))
        ids.append(single.send(b"last"))
    finally:
        client.close()
    big = {"fetch.message.max.bytes": 32 << 20, "receive.message.max.bytes": 64 << 20}
    with consumer(gateway, secrets.token_hex(4), **big) as reader:
        reader.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
        got = take(reader, 6)
        assert [value for _, value in got if len(value) < 99] == [
            "single",
            "batched 0",
            "batched 1",
            "batched 2",
            "last",
        ]
        for (offset, _), message_id in zip(got, ids, strict=True):
            position, place = unpack(offset)
            assert (*position, place) == (
                message_id.ledger_id(),
                message_id.entry_id(),
                max(message_id.batch_index(), 0),
            )
        reader.seek(ck.TopicPartition(topic, 0, got[4][0]))  # its first chunks lie before it
        assert take(reader, 1) == [got[4]]
    assert "entries_unreadable/not_decoded" not in gateway.engine.counts


def test_commits_survive_compaction(gateway: PackedGateway) -> None:
    topic, group = create(gateway), secrets.token_hex(4)
    told = produce(gateway, topic, [str(i) for i in range(20)])
    with consumer(gateway, group) as member:
        for offset in told:
            member.commit(offsets=[ck.TopicPartition(topic, 0, offset + 1)], asynchronous=False)
    offsets = gateway.engine.topics.get("__offsets")
    assert offsets is not None
    logs = [gateway.log("__offsets", i) for i in range(offsets.partitions)]
    written = [log.partition_name for log in logs if log.attached and log.high_watermark > log.log_start_offset]
    assert written
    for name in written:
        admin(gateway, partial(Admin.compact, topic=name))
    for name in written:
        wait_until(partial(compaction_ended, gateway, name), "compaction ends")
    gateway.restart()
    committed_is_the_end(gateway, group, topic)
    assert take_nothing(gateway, group, topic)


def take_nothing(gateway: PackedGateway, group: str, topic: str) -> bool:
    with consumer(gateway, group, **{"enable.partition.eof": True}) as member:
        member.subscribe([topic])
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            message = member.poll(0.2)
            if message is not None:
                return bool(message.error() and message.error().code() == ck.KafkaError._PARTITION_EOF)
    return False


def test_a_batch_that_cannot_have_offsets_is_too_large(gateway: PackedGateway) -> None:
    topic = create(gateway)
    producer = ck.Producer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "linger.ms": 60_000,  # all of them are one batch, however slow the machine is
            "batch.num.messages": 20_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    errors: list[Any] = []
    for _ in range(20_000):
        producer.produce(topic, b"v", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    assert {error.name() for error in errors} == {"MSG_SIZE_TOO_LARGE"}
    assert gateway.engine.counts["packed_offsets/batch_beyond"] >= 1
    assert len(produce(gateway, topic, ["small"])) == 1


def test_kop_offsets_packs_and_unpacks(gateway: PackedGateway) -> None:
    topic = create(gateway)
    told = produce(gateway, topic, ["a", "b", "c"])
    asked = [
        "offsets", topic, "--numbering", "packed", "--admin-url", gateway.pulsar.admin_url,
        "--namespace", gateway.pulsar.namespace,
    ]  # fmt: skip
    position, place = unpack(told[2])
    message_id = f"{position.ledger}:{position.entry}:{place}"

    def call(*more: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, [*asked, *more])
        return result.exit_code, result.output.strip()

    assert call("--message-id", message_id) == (0, str(told[2]))
    assert call("--offset", str(told[2])) == (0, message_id)
    for wrong in (told[-1] + 9, told[-1] + (1 << 14)):
        code, text = call("--offset", str(wrong))
        assert code == 1
        assert f"no message of persistent://{gateway.pulsar.namespace}/{topic}-partition-0 has offset" in text


# --- on a broker as it comes


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_a_broker_that_sends_no_index(pulsar_urls: Urls, tmp_path: Path) -> None:
    broker = OwnBroker(tmp_path / "broker", index=False)
    try:
        with fresh_namespace(broker.start()) as pulsar:
            with pytest.raises(Exception, match=r"(?s)AppendIndexMetadataInterceptor.*exposing.*kop\.pulsar\.offsets"):
                PulsarGateway(pulsar, "packed").start()
            # That attempt does not keep the namespace from being used so:
            with packed(pulsar) as gateway:
                story(gateway)
                aiokafka_story(gateway)
                appended = create(gateway, message_timestamp_type="LogAppendTime")
                before = time.time() * 1000
                produce(gateway, appended, ["timed"])
                with consumer(gateway, secrets.token_hex(4)) as reader:
                    reader.assign([ck.TopicPartition(appended, 0, ck.OFFSET_BEGINNING)])
                    message = reader.poll(SECONDS)
                    assert message is not None
                    kind, stamp = message.timestamp()
                    assert kind == ck.TIMESTAMP_LOG_APPEND_TIME
                    assert before - 1000 < stamp < time.time() * 1000 + 1000
    finally:
        broker.kill()
