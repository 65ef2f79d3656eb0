"""One log for both kinds of client: its order, its ends, its times, and that all of it is exact over unload, restart,
trimming and deletion."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiokafka
import confluent_kafka as ck
import pulsar as native
import pytest
from interop.interop_kit import (
    AGAIN,
    NOW,
    PATIENT_MS,
    SECONDS,
    Interop,
    fetch,
    list_topic,
    raw,
    read_fetched,
    run,
    take,
)
from interop.test_deleted_topics import gone
from support.gateway import fetch_fields, produce_fields
from support.pulsar_gateway import PulsarGateway
from support.waiting import wait_until

from kop.errors import ErrorCode
from kop.pulsar_client import PulsarError
from kop.records.batch import build
from kop.records.record import Record
from kop.wire.messages import OffsetForLeaderEpochRequest

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


@contextmanager
def fresh(interop: Interop) -> Iterator[PulsarGateway]:
    """A gateway that has just been started and remembers nothing."""
    gateway = PulsarGateway(interop.pulsar, interop.name("fresh"))
    try:
        yield gateway.start()
    finally:
        gateway.stop()


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def mixed(interop: Interop, topic: str, rounds: int = 3) -> list[bytes]:
    """A Kafka batch of two, a native single message, a native batch of two, and again."""
    end, wrote = interop.ends(topic)[1], []
    for number in range(rounds):
        interop.write(topic, [Record(i, NOW + end + i, b"k", b"kafka %d.%d" % (number, i)) for i in range(2)])
        single = {"content": b"single %d" % number, "event_timestamp": NOW + end + 2}
        interop.send(interop.partition(topic), [single])
        batch = [
            {"content": b"batch %d.%d" % (number, i), "event_timestamp": NOW + end + 3 + i, "partition_key": "k"}
            for i in range(2)
        ]
        interop.send(interop.partition(topic), batch, batching_enabled=True, batching_max_publish_delay_ms=100)
        wrote += [b"kafka %d.%d" % (number, i) for i in range(2)]
        wrote += [b"single %d" % number] + [b"batch %d.%d" % (number, i) for i in range(2)]
        end += 5
    return wrote


def is_unknown(gateway: PulsarGateway, topic: str) -> bool:
    return gateway.engine.topics.get(topic) is None


# --- order


def test_both_kinds_of_client_see_one_order(interop: Interop) -> None:
    topic = interop.create(interop.name("order"))
    wrote = mixed(interop, topic)
    assert [message.data() for message in interop.receive(interop.full(topic), 15)] == wrote
    for gateway in (interop.gateway, interop.other):
        records = interop.read(topic, 0, 15, gateway)
        assert values(records) == wrote
        assert [record.offset for record in records] == list(range(15))


def test_one_order_while_both_write_at_once(interop: Interop) -> None:
    topic = interop.create(interop.name("race"))
    producer = interop.native.create_producer(interop.partition(topic), batching_enabled=True, block_if_queue_full=True)

    def write() -> None:
        for number in range(300):
            producer.send_async(b"n%d" % number, lambda *_: None)
        producer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    told = interop.produce(topic, [{"value": b"k%d" % i} for i in range(300)], {"linger.ms": 0, "acks": "all"})
    thread.join()
    producer.close()
    interop.ended(topic, 600)
    records = interop.read(topic, 0, 600, interop.gateway)
    assert [record.offset for record in records] == list(range(600))
    assert interop.read(topic, 0, 600, interop.other) == records
    native_view = [message.data() for message in interop.receive(interop.full(topic), 600)]
    assert values(records) == native_view
    for kind in (b"n", b"k"):
        assert [value for value in native_view if value[:1] == kind] == [b"%c%d" % (kind[0], i) for i in range(300)]
    by_offset = {record.offset: record.value for record in records}
    assert [by_offset[offset] for offset in told] == [b"k%d" % i for i in range(300)]  # what producers were told
    assert interop.gateway.engine.counts.get("offsets_told_wrong", 0) == 0


# --- the long poll


def test_a_long_poll_is_woken_at_once_by_a_record_of_a_pulsar_producer(interop: Interop) -> None:
    topic = interop.create(interop.name("poll"))
    producer = interop.native.create_producer(interop.partition(topic))
    took = []

    async def rounds() -> None:
        async with raw(interop.gateway) as client:
            for number in range(9):
                fields = fetch_fields(topic, number, version=12, max_wait_ms=60_000)
                asked = asyncio.ensure_future(client.call(1, 12, **fields))
                await asyncio.sleep(0.05)  # nothing can be waited for: it must not be answered
                assert not asked.done()
                began = time.perf_counter()
                await asyncio.to_thread(producer.send, b"%d" % number)
                fetched = read_fetched(await asked)
                took.append(time.perf_counter() - began)
                assert values(fetched.records) == [b"%d" % number]

    try:
        run(rounds())
    finally:
        producer.close()
    assert max(took) < 30, took  # not by the end of its wait


# --- ends and times


def test_list_offsets_on_a_topic_of_both_kinds(interop: Interop) -> None:
    topic = interop.create(interop.name("times"))
    interop.write(topic, [Record(0, NOW, None, b"a"), Record(1, NOW + 10, None, b"b")])
    interop.send(interop.partition(topic), [{"content": b"c", "event_timestamp": NOW + 20}])
    interop.write(topic, [Record(0, NOW + 50, None, b"d")])
    interop.send(interop.partition(topic), [{"content": b"e", "event_timestamp": NOW + 40}])
    interop.ended(topic, 5)
    expected = {
        EARLIEST: (0, -1),
        LATEST: (5, -1),
        MAX_TIMESTAMP: (3, NOW + 50),
        NOW - 1: (0, NOW),
        NOW: (0, NOW),
        NOW + 1: (1, NOW + 10),
        NOW + 11: (2, NOW + 20),
        NOW + 20: (2, NOW + 20),
        NOW + 21: (3, NOW + 50),
        NOW + 50: (3, NOW + 50),
        NOW + 51: (-1, -1),
    }
    interop.ended(topic, 5, interop.other)
    for gateway in (interop.gateway, interop.other):
        assert dict(zip(expected, interop.offsets(topic, *expected, gateway=gateway), strict=True)) == expected


def test_list_offsets_by_the_time_of_now(interop: Interop) -> None:
    topic = interop.create(interop.name("now"))
    interop.send(interop.partition(topic), [{"content": b"before"}])
    time.sleep(0.05)  # Pulsar counts in milliseconds
    between = int(time.time() * 1000)
    time.sleep(0.05)  # the same
    interop.send(interop.partition(topic), [{"content": b"after"}])
    interop.ended(topic, 2)
    assert interop.offsets(topic, between)[0][0] == 1
    assert interop.offsets(topic, between, gateway=interop.other)[0][0] == 1


def test_what_one_gateway_acknowledged_any_other_finds_at_once(interop: Interop) -> None:
    """By its time, as the log's end, as the end of the epoch: an older end there would mean truncation to a client."""
    topic = interop.create(interop.name("at-once"))
    interop.ends(topic, interop.other)

    def by_time(timestamp: int) -> Any:
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        return {"replica_id": -1, "isolation_level": 0, "topics": [list_topic(topic, part)]}

    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    epoch = of_topic.OffsetForLeaderPartition(version=4, partition=0, current_leader_epoch=0, leader_epoch=0)
    by_epoch = {"replica_id": -1, "topics": [of_topic(version=4, topic=topic, partitions=[epoch])]}

    async def do() -> None:
        async with raw(interop.gateway) as writer, raw(interop.other) as asker:
            for number in range(60):
                data = bytes(build([Record(0, NOW + number, None, b"v")]))
                await writer.call(0, 9, **produce_fields(topic, data, version=9))
                if number % 3 == 0:
                    answer = await asker.call(23, 4, **by_epoch)
                    newest = answer.topics[0].partitions[0].end_offset - 1
                else:
                    asked = by_time(MAX_TIMESTAMP if number % 3 == 1 else NOW + number)
                    newest = (await asker.call(2, 7, **asked)).topics[0].partitions[0].offset
                assert newest == number

    run(do())


def test_an_empty_topic(interop: Interop) -> None:
    topic = interop.create(interop.name("empty"))
    for gateway in (interop.gateway, interop.other):
        interop.known(topic, gateway)
        assert interop.offsets(topic, EARLIEST, LATEST, MAX_TIMESTAMP, NOW, gateway=gateway) == [
            (0, -1), (0, -1), (-1, -1), (-1, -1),
        ]  # fmt: skip


# --- unload, restart


def test_offsets_are_the_same_after_an_unload_and_a_restart(interop: Interop) -> None:
    topic = interop.create(interop.name("unload"))
    wrote = mixed(interop, topic, 2)
    before = interop.read(topic, 0, 10, interop.gateway)
    interop.admin(lambda admin: admin.unload(interop.partition(topic)))
    wrote += mixed(interop, topic, 1)
    interop.ended(topic, 15)
    after = interop.read(topic, 0, 15, interop.gateway)
    assert after[:10] == before
    assert values(after) == wrote
    assert interop.read(topic, 0, 15, interop.other) == after
    interop.admin(lambda admin: admin.unload(interop.full(topic)))
    with fresh(interop) as gateway:
        assert interop.ends(topic, gateway) == (0, 15)
        assert interop.read(topic, 0, 15, gateway) == after
        assert interop.write(topic, [Record(0, NOW, None, b"next")], gateway=gateway) == [15]
        gateway.restart()
        assert interop.read(topic, 14, 16, gateway)[0] == after[14]
    interop.ended(topic, 16)
    for _ in range(3):
        interop.admin(lambda admin: admin.unload(interop.partition(topic)))
        assert interop.ended(topic, 16) == (0, 16)


def test_the_end_of_an_emptied_log_is_exact_after_unload_and_restart(interop: Interop) -> None:
    topic = interop.create(interop.name("emptied"))
    mixed(interop, topic, 2)
    partition = interop.partition(topic)
    interop.admin(lambda admin: admin.unload(partition))
    interop.admin(lambda admin: admin.truncate(partition))
    wait_until(lambda: entries(interop, partition) == 0, "the log is empty")
    with fresh(interop) as gateway:
        assert interop.ends(topic, gateway) == (10, 10)
        assert fetch(gateway, topic, 10).batches == []
        for offset in (0, 9, 11):
            assert fetch(gateway, topic, offset, max_wait_ms=PATIENT_MS).error == ErrorCode.OFFSET_OUT_OF_RANGE
        interop.admin(lambda admin: admin.unload(partition))
        assert interop.ends(topic, gateway) == (10, 10)
        gateway.restart()
        assert interop.ends(topic, gateway) == (10, 10)
        interop.send(partition, [{"content": b"next"}])
        assert interop.ended(topic, 11, gateway)[1] == 11
        assert values(interop.read(topic, 10, 11, gateway)) == [b"next"]
    # The gateway that was there all the time says the same, once it has asked.
    interop.ended(topic, 11)
    interop.gateway.call(interop.gateway.log(topic).ask_start())
    assert interop.ends(topic) == (10, 11)
    assert fetch(interop.gateway, topic, 3, max_wait_ms=PATIENT_MS).error == ErrorCode.OFFSET_OUT_OF_RANGE


def entries(interop: Interop, partition: str) -> int:
    stats = interop.admin(lambda admin: admin.internal_stats(partition))
    return int(stats["numberOfEntries"])


def test_below_the_log_start_is_out_of_range_and_never_another_record(interop: Interop) -> None:
    topic = interop.create(interop.name("trimmed"))
    partition = interop.partition(topic)
    mixed(interop, topic, 2)
    interop.read(topic, 0, 10, interop.other)
    interop.admin(lambda admin: admin.unload(partition))
    mixed(interop, topic, 1)
    interop.ended(topic, 15)
    interop.admin(lambda admin: admin.truncate(partition))
    wait_until(lambda: entries(interop, partition) == 3, "the closed ledger is gone")
    with fresh(interop) as gateway:
        assert interop.ends(topic, gateway) == (10, 15)
        for offset in (0, 9):
            assert fetch(gateway, topic, offset, max_wait_ms=PATIENT_MS).error == ErrorCode.OFFSET_OUT_OF_RANGE
        assert interop.read(topic, 10, 15, gateway)[0].value == b"kafka 0.0"
        with interop.consumer(topic, gateway=gateway) as consumer:  # auto.offset.reset=error
            with pytest.raises(ck.KafkaException) as caught:
                take(consumer, 1)
            assert caught.value.args[0].code() == ck.KafkaError._AUTO_OFFSET_RESET
        with interop.consumer(topic, {"auto.offset.reset": "earliest"}, gateway=gateway) as consumer:
            assert take(consumer, 1)[0].offset == 10
    # A gateway that was not told, with nothing of it in memory: it finds out when it reads.
    interop.other.call(forget(interop.other, topic))
    fetched = fetch(interop.other, topic, 3, max_wait_ms=PATIENT_MS)
    assert (fetched.error, fetched.batches) == (ErrorCode.OFFSET_OUT_OF_RANGE, [])
    assert interop.ends(topic, interop.other) == (10, 15)


def test_every_fetch_tells_the_log_start(interop: Interop) -> None:
    topic = interop.create(interop.name("start"))
    partition = interop.partition(topic)
    mixed(interop, topic, 1)
    interop.ended(topic, 5)
    assert [fetch(interop.gateway, topic, offset).start for offset in (0, 3, 5)] == [0, 0, 0]
    interop.admin(lambda admin: admin.unload(partition))
    mixed(interop, topic, 1)
    interop.ended(topic, 10)
    interop.admin(lambda admin: admin.truncate(partition))
    wait_until(lambda: entries(interop, partition) == 3, "the closed ledger is gone")
    for gateway in (interop.gateway, interop.other):
        interop.known(topic, gateway)
        interop.ends(topic, gateway)
        gateway.call(gateway.log(topic).ask_start())  # `refresh_start` may share an answer from before, for a second
        assert [fetch(gateway, topic, offset).start for offset in (5, 8, 10)] == [5, 5, 5]


async def forget(gateway: PulsarGateway, topic: str) -> None:
    """Drop what is in memory of a log, as others would push it out: cached batches, and readers that nobody uses."""
    gateway.engine.cache.drop(gateway.log(topic).tail.cached)
    gateway.log(topic).close_idle(float("inf"), 0)


def test_a_reader_that_trimming_overtakes_leaves_no_hole(interop: Interop) -> None:
    """Truncating takes what readers still want, and moves their cursors to the end."""
    topic = interop.name("overtaken")
    full = interop.full(topic)
    interop.admin(lambda admin: admin.create_plain(full, {}))
    value = b"x" * 200_000
    for count in (60, 6):  # more than a reader takes in advance, in two ledgers
        interop.send(full, [{"content": value}] * count)
        if count == 60:
            interop.admin(lambda admin: admin.unload(full))
    interop.known(topic, interop.other)
    assert interop.ended(topic, 66, interop.other) == (0, 66)
    interop.other.call(forget(interop.other, topic))
    first = fetch(interop.other, topic, 0, max_wait_ms=PATIENT_MS, max_bytes=1)
    assert first.batches == [(0, 0, 1)]
    interop.admin(lambda admin: admin.truncate(full))
    wait_until(lambda: entries(interop, full) == 6, "the closed ledger is gone")
    at = 1
    while at < 66:
        fetched = fetch(interop.other, topic, at, max_wait_ms=5000, max_bytes=1 << 20)
        if fetched.error in AGAIN:
            continue
        if fetched.error:
            break
        for base, last, count in fetched.batches:
            assert (base, count) == (at, last - base + 1), "records are missing, and nobody said so"
            at = last + 1
    assert fetched.error in {0, ErrorCode.OFFSET_OUT_OF_RANGE}
    assert (fetched.error == 0) == (at == 66)
    assert interop.ends(topic, interop.other) == (60, 66)
    assert values(interop.read(topic, 60, 66)) == [value] * 6


# --- deleted


@pytest.mark.parametrize("plain", [False, True], ids=["partitioned", "plain"])
def test_a_topic_deleted_and_made_again_by_pulsar_is_a_new_one(interop: Interop, plain: bool) -> None:
    topic = interop.name("again")
    full = interop.full(topic)
    partition = full if plain else interop.partition(topic)

    def make() -> None:
        if plain:
            interop.admin(lambda admin: admin.create_plain(full, {}))
        else:
            interop.admin(lambda admin: admin.create_partitioned(full, 1, {}))

    make()
    interop.send(partition, [{"content": b"old %d" % i} for i in range(5)])
    interop.known(topic)
    assert interop.ended(topic, 5) == (0, 5)
    old = interop.gateway.log(topic).topic.topic_id
    if plain:
        interop.admin(lambda admin: admin.delete_plain(full))
    else:
        interop.admin(lambda admin: admin.delete_partitioned(full))
    make()
    interop.send(partition, [{"content": b"new"}])

    def seen() -> bool:
        for gateway in (interop.gateway, interop.other):
            info = gateway.engine.topics.get(topic)
            if info is None or info.topic_id == old or gateway.engine.log(info.topic_id, 0) is None:
                return False  # another thread than this one puts it into the table, and then its logs
        return True

    wait_until(seen, "both gateways see a new topic")
    assert interop.gateway.log(topic).topic.topic_id == interop.other.log(topic).topic.topic_id
    for gateway in (interop.gateway, interop.other):
        assert interop.ended(topic, 1, gateway) == (0, 1)
        assert values(interop.read(topic, 0, 1, gateway)) == [b"new"]
        assert fetch(gateway, topic, 5, max_wait_ms=PATIENT_MS).error == ErrorCode.OFFSET_OUT_OF_RANGE

    async def by_old_id() -> int:
        async with raw(interop.gateway) as client:
            answer = await client.call(1, 13, **fetch_fields(old, 0, version=13))
            return int(answer.responses[0].partitions[0].error_code)

    assert run(by_old_id()) == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("plain", [False, True], ids=["partitioned", "plain"])
@pytest.mark.parametrize("wrote", ["native", "gateway"])
def test_gateways_do_not_bring_a_deleted_topic_back(interop: Interop, plain: bool, wrote: str) -> None:
    """Neither by a reader, also while somebody polls, nor by a producer that the gateway has on it."""
    topic = interop.name("gone")
    full = interop.full(topic)
    if plain:
        interop.admin(lambda admin: admin.create_plain(full, {}))
    else:
        interop.create(topic)
    for gateway in (interop.gateway, interop.other):
        interop.known(topic, gateway)
        interop.ends(topic, gateway)  # a tail follows it
    if wrote == "gateway":
        interop.write(topic, [Record(0, NOW, None, b"v")])
    else:
        interop.send(full, [{"content": b"v"}])
    interop.ended(topic, 1, interop.other)

    async def poll_over_the_end() -> int:
        async with raw(interop.other) as client:
            polled = asyncio.ensure_future(client.call(1, 12, **fetch_fields(topic, 1, version=12, max_wait_ms=60_000)))
            await asyncio.sleep(0.1)  # the Fetch may wait by then, or come later: both are answered
            if plain:
                await asyncio.to_thread(interop.admin, lambda admin: admin.delete_plain(full))
            else:
                await asyncio.to_thread(interop.delete, topic)
            answer = await polled
            return int(answer.responses[0].partitions[0].error_code)

    assert run(poll_over_the_end()) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if plain and wrote == "gateway":
        gone(interop, topic)  # nobody told the gateway's producer: it may be on its way back
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        time.sleep(0.1)  # nothing can be waited for: it must not come back
        names = interop.admin(lambda admin: admin.list_topics(interop.pulsar.namespace))
        assert not [name for name in names if topic in name]
    for gateway in (interop.gateway, interop.other):
        wait_until(partial(is_unknown, gateway, topic), "the gateway forgot it")
    with pytest.raises(PulsarError, match="NotFound"):
        interop.admin(lambda admin: admin.partitioned_metadata(full))


# --- native subscriptions beside Kafka groups


@pytest.mark.parametrize("kind", ["Shared", "Failover", "Exclusive", "KeyShared"])
def test_native_consumers_and_a_kafka_group_of_the_same_name_get_all(interop: Interop, kind: str) -> None:
    topic = interop.create(interop.name("groups"))
    name = interop.name("group")
    members = 1 if kind == "Exclusive" else 2
    consumers = [
        interop.native.subscribe(
            interop.full(topic),
            name,
            consumer_type=getattr(native.ConsumerType, kind),
            initial_position=native.InitialPosition.Earliest,
            consumer_name=f"c{number}",
        )
        for number in range(members)
    ]
    wrote = mixed(interop, topic, 2)

    async def group() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=interop.gateway.bootstrap,
            group_id=name,
            auto_offset_reset="earliest",
            session_timeout_ms=30_000,  # as comes 10 s, in which a slow machine may not get to a heartbeat
        )
        await consumer.start()
        try:
            values = [(await consumer.getone()).value for _ in range(10)]
            await consumer.commit()
            return values
        finally:
            await consumer.stop()

    assert run(group()) == wrote
    got: list[bytes] = []
    end = time.monotonic() + SECONDS
    while len(got) < 10 and time.monotonic() < end:
        for consumer in consumers:
            try:
                message = consumer.receive(timeout_millis=100)
            except native.Timeout:
                continue
            got.append(message.data())
            consumer.acknowledge(message)
    for consumer in consumers:
        consumer.close()
    assert sorted(got) == sorted(wrote)
    if members == 1:
        assert got == wrote
    stats = interop.admin(lambda admin: admin.stats(interop.partition(topic)))
    ours = [sub for sub in stats["subscriptions"] if sub == name]
    assert ours == [name]  # the native one; the gateway left none behind that would hold data back
    durable = [sub for sub, stats_of in stats["subscriptions"].items() if stats_of.get("isDurable", True)]
    assert durable == [name]
