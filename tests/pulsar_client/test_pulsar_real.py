"""The client against a real Pulsar: what the fake broker could only suppose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from unittest import mock

import pytest
from pulsar_client.pulsar_kit import client, metadata, numbers, send
from support.fake_pulsar import fails
from support.pulsar import OwnBroker, Pulsar
from support.pulsar_admin import PulsarAdmin
from support.waiting import until

from conformance.faulty_link import Link, link
from kop.pulsar_client import DUPLICATE, EARLIEST, LATEST, Access, Client, Entry, Position, Producer, PulsarError
from kop.pulsar_client.address import PulsarAddress, parse
from kop.pulsar_client.pool import BrokerRoute, Pool
from kop.pulsar_client.proto import pulsar_pb2 as pb


@contextlib.asynccontextmanager
async def tools(pulsar: Pulsar, **options: object) -> AsyncIterator[tuple[Client, PulsarAdmin]]:
    async with (
        PulsarAdmin(pulsar.admin_url, timeout=60) as admin,
        client(pulsar.service_url, request_timeout=60.0, **options) as made,
    ):
        yield made, admin


async def create(admin: PulsarAdmin, topic: str) -> str:
    await admin.create_plain(topic, {})
    return topic


def batch(messages: int, size: int = 20) -> bytes:
    metadata = pb.SingleMessageMetadata(payload_size=size).SerializeToString()
    return (len(metadata).to_bytes(4, "big") + metadata + b"x" * size) * messages


def through(wire: Link) -> AbstractContextManager[object]:
    """Inside the block every further connection of clients goes through a link."""
    address = PulsarAddress("127.0.0.1", wire.port, False)
    return mock.patch.object(Pool, "broker", return_value=BrokerRoute(address, address))


async def test_a_topic_that_is_asked_for_or_read_is_not_created(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = pulsar.topic()
        assert await fails(made.partitions(topic)) == "TopicNotFound"
        assert await fails(made.open_reader(topic, EARLIEST, permits=1, on_entry=lambda e: None)) == "TopicNotFound"
        assert await fails(made.partitions(topic)) == "TopicNotFound"
        await create(admin, topic)
        assert await made.partitions(topic) == 0
        assert topic in await made.topics(pulsar.namespace)


async def test_positions_indexes_and_starts(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = await create(admin, pulsar.topic())
        seen: list[Entry] = []
        tail = await made.open_reader(topic, LATEST, permits=1000, on_entry=seen.append)
        assert (await tail.last_position()).entry == -1
        producer = await made.open_producer(topic)
        places = await asyncio.gather(*(send(producer, n * 5, batch(5), messages=5) for n in range(5)))
        await admin.unload(topic)
        places += await asyncio.gather(*(send(producer, n * 5, batch(5), messages=5) for n in range(5, 8)))
        assert places == sorted(places)
        assert places[0].ledger < places[-1].ledger
        await until(lambda: len(seen) == 8)
        assert [entry.position for entry in seen] == places
        assert [entry.index for entry in seen] == [4, 9, 14, 19, 24, 29, 34, 39]
        assert [entry.num_messages for entry in seen] == [5] * 8
        assert bytes(seen[0].metadata) == metadata(producer, 0, 5)
        assert bytes(seen[0].payload) == batch(5)
        assert all(entry.broker_timestamp > 1_600_000_000_000 for entry in seen)
        assert await tail.last_position() == places[-1]
        marked = await tail.mark_delete_position()
        assert marked is not None
        assert marked < places[5], "a reader acknowledges nothing, and nobody moved it"
        # 4 is the last of its ledger: behind it begins the next one.
        for start, inclusive, first in [
            (EARLIEST, True, 0),
            (places[2], True, 2),
            (places[2], False, 3),
            (places[4], False, 5),
        ]:
            got: list[Entry] = []
            reader = await made.open_reader(topic, start, inclusive=inclusive, permits=1000, on_entry=got.append)
            await until(lambda: len(got) == 8 - first)  # noqa: B023
            assert [entry.position for entry in got] == places[first:]
            got.clear()  # all has come; what comes next may be faster than the answer
            await reader.seek(places[6])
            await until(lambda: len(got) == 2)  # noqa: B023
            assert [entry.position for entry in got] == places[6:]
            await reader.close()


async def deduplicate(admin: PulsarAdmin, topic: str) -> None:
    """Turn it on, and wait until the policy is in force."""
    await admin.set_deduplication(topic, True)
    await until(lambda: admin.get_deduplication(topic, applied=True))


async def test_unloads_under_load_lose_and_double_nothing(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = await create(admin, pulsar.topic())
        await deduplicate(admin, topic)
        seen: list[Entry] = []
        reader = await made.open_reader(topic, EARLIEST, permits=10**6, on_entry=seen.append)

        async def withdraw_what_is_stored(coming_back: Producer) -> None:
            """Deduplication alone is not enough: Pulsar 4.0.8 forgets what is stored while it loads a topic."""
            if coming_back.pending:
                last = await reader.last_position()
                await until(lambda: last.entry < 0 or (bool(seen) and seen[-1].position >= last))
            for entry in coming_back.unanswered():
                if entry.sequence_id < len(seen):
                    coming_back.withdraw(entry.sequence_id)
                    entry.stored(DUPLICATE)

        producer = await made.open_producer(topic, name="under-load", confirm=withdraw_what_is_stored, send_timeout=100)
        sent: list[asyncio.Future[Position]] = []
        stop = False

        async def load() -> None:
            while not stop:
                if producer.pending < 5000:  # what a slow broker takes long before the time limit of an entry
                    sent.extend([send(producer, len(sent) + n) for n in range(50)])
                await asyncio.sleep(0.005)  # the pace of the load

        loading = asyncio.create_task(load())
        for _ in range(3):
            received = len(seen) + 100
            await until(lambda: len(seen) >= received)  # noqa: B023 - both are attached and records flow
            await admin.unload(topic)
        stop = True
        await loading
        places = await asyncio.gather(*sent)
        await until(lambda: len(seen) >= len(sent))
        await asyncio.sleep(0.1)  # anything doubled would come now
        assert [bytes(entry.payload) for entry in seen] == numbers(len(sent))
        assert [entry.index for entry in seen] == list(range(len(sent)))
        for place, entry in zip(places, seen, strict=True):
            assert place in (entry.position, DUPLICATE)
        assert reader.attached_times > 1
        assert producer.attached_times > 1


async def test_a_deleted_topic_is_not_brought_back_by_a_reader(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = await create(admin, pulsar.topic())
        lost: list[PulsarError] = []
        await made.open_reader(topic, EARLIEST, permits=1, on_entry=lambda entry: None, on_lost=lost.append)
        await admin.delete_plain(topic)
        await until(lambda: lost)
        assert lost[0].code == "TopicNotFound"
        assert await fails(made.partitions(topic)) == "TopicNotFound"


async def test_fencing(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = await create(admin, pulsar.topic())
        lost: list[PulsarError] = []
        first = await made.open_producer(topic, access="exclusive_with_fencing", lane="a", on_lost=lost.append)
        assert first.topic_epoch == 0
        assert await fails(made.open_producer(topic)) == "ProducerBusy"
        assert await fails(made.open_producer(topic, access="exclusive")) == "ProducerFenced"
        await send(first, 0)
        await admin.unload(topic)
        await send(first, 1)
        assert first.topic_epoch == 0
        assert first.attached_times > 1
        second = await made.open_producer(topic, access="exclusive_with_fencing", lane="b")
        assert second.topic_epoch == 1
        assert await fails(send(first, 2)) == "ProducerFenced"
        await until(lambda: lost)
        assert lost[0].code == "ProducerFenced"
        await send(second, 0)
        assert await fails(made.open_producer(topic, access="exclusive", epoch=0)) == "ProducerFenced"


async def test_waiting_for_a_topic(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = await create(admin, pulsar.topic())
        holder = await made.open_producer(topic, access="exclusive", lane="a")
        waiting = asyncio.create_task(made.open_producer(topic, access="wait_for_exclusive", lane="b"))
        await asyncio.sleep(0.3)  # nothing can be waited for: nothing shall come
        assert not waiting.done()
        await holder.close()
        heir = await waiting
        assert heir.topic_epoch == 1
        await send(heir, 0)


@pytest.mark.parametrize("access", ["shared", "exclusive", "exclusive_with_fencing"])
async def test_a_producer_takes_its_own_place_back_from_a_dead_connection(pulsar: Pulsar, access: Access) -> None:
    """The broker still sees the old connection, which only we know to be dead."""
    target = parse(pulsar.service_url)[0]
    async with tools(pulsar, keepalive=1.0) as (made, admin), link(target.port) as wire:
        topic = await create(admin, pulsar.topic())
        with through(wire):
            producer = await made.open_producer(topic, name="mine", access=access)
            await send(producer, 0)
            wire.stall()
            sent = [send(producer, number) for number in range(1, 4)]
            await until(lambda: not producer.connected)
        await asyncio.gather(*sent)
        assert producer.attached_times > 1


async def test_cuts_under_load(pulsar: Pulsar) -> None:
    target = parse(pulsar.service_url)[0]
    async with tools(pulsar) as (made, admin), link(target.port) as wire:
        topic = await create(admin, pulsar.topic())
        await deduplicate(admin, topic)
        with through(wire):
            seen: list[Entry] = []
            await made.open_reader(topic, EARLIEST, permits=10**6, on_entry=seen.append)
            producer = await made.open_producer(topic, name="cut")
            sent: list[asyncio.Future[Position]] = []
            for round_number in range(12):
                sent += [send(producer, len(sent) + number) for number in range(100)]
                wire.cut_after = 300 * round_number + 100
                await asyncio.sleep(0.05)  # what is sent goes into a cut
            await asyncio.gather(*sent)
            await until(lambda: len(seen) >= 1200)
            assert [bytes(entry.payload) for entry in seen] == numbers(1200)
            assert [entry.index for entry in seen] == list(range(1200))
            assert producer.attached_times > 1


async def test_the_largest_entry_and_chunks(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = await create(admin, pulsar.topic())
        seen: list[Entry] = []
        await made.open_reader(topic, EARLIEST, permits=10, on_entry=seen.append)
        producer = await made.open_producer(topic)
        room = made.max_message_size - len(metadata(producer, 0))
        await send(producer, 0, b"y" * room)
        assert await fails(send(producer, 1, b"y" * (room + 1))) == "MessageTooLarge"
        for chunk in range(2):
            made_of = pb.MessageMetadata(producer_name=producer.name, sequence_id=1 + chunk, publish_time=1, uuid="u")
            made_of.num_chunks_from_msg, made_of.chunk_id, made_of.total_chunk_msg_size = 2, chunk, 6
            await producer.send(
                made_of.SerializeToString(), b"abc", sequence_id=1 + chunk, highest_sequence_id=None, num_messages=1
            )
        await until(lambda: len(seen) == 3)
        assert len(seen[0].payload) == room
        read = [pb.MessageMetadata.FromString(bytes(entry.metadata)) for entry in seen[1:]]
        assert [(meta.uuid, meta.chunk_id, meta.total_chunk_msg_size) for meta in read] == [("u", 0, 6), ("u", 1, 6)]


async def test_a_batch_that_the_broker_refuses_is_told_at_once(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = await create(admin, pulsar.topic())
        await admin.set_max_message_size(topic, 1000)

        async def applied() -> bool:
            return await admin.get_max_message_size(topic, applied=True) == 1000

        await until(applied)
        producer = await made.open_producer(topic)
        sent = [send(producer, 0, messages=5), send(producer, 5, b"x" * 2000, messages=5), send(producer, 10)]
        assert await fails(sent[1]) == "NotAllowedError"
        assert [(await sending).entry for sending in (sent[0], sent[2])] == [0, 1]


async def test_a_producer_that_was_fenced_out_is_not_told_but_may_ask(pulsar: Pulsar) -> None:
    lost: list[PulsarError] = []
    async with tools(pulsar) as (old_client, admin), client(pulsar.service_url) as new_client:
        topic = await create(admin, pulsar.topic())
        first = await old_client.open_producer(
            topic, name="first", access="exclusive_with_fencing", on_lost=lost.append
        )
        await send(first, 0)
        before = asyncio.get_running_loop().time()
        await first.verify()
        await first.verify()
        assert first.sure_at >= before
        await send(first, 1)
        second = await new_client.open_producer(topic, name="second", access="exclusive_with_fencing")
        await asyncio.sleep(0.3)  # nothing can be waited for: nothing shall come
        assert not lost
        assert first.connected
        with pytest.raises(PulsarError, match="ProducerFenced"):
            await first.verify()
        assert [error.code for error in lost] == ["ProducerFenced"]
        assert (await send(second, 0)).entry == 2, "its successor is left alone"
        await second.verify()


async def test_a_producer_that_comes_back_too_late_leaves_its_successor_alone(pulsar: Pulsar) -> None:
    lost: list[PulsarError] = []
    port = parse(pulsar.service_url)[0].port
    async with tools(pulsar) as (old_client, admin), client(pulsar.service_url) as new_client, link(port) as wire:
        topic = await create(admin, pulsar.topic())
        with through(wire):
            first = await old_client.open_producer(
                topic, name="first", access="exclusive_with_fencing", on_lost=lost.append
            )
        await send(first, 0)
        second = await new_client.open_producer(topic, name="second", access="exclusive_with_fencing")
        await send(second, 0)
        wire.cut()
        await until(lambda: lost)
        assert lost[0].code == "ProducerFenced"
        await send(second, 1)
        assert second.attached_times == 1, "nobody disconnected it"


async def test_permits_hold_the_broker_back(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        topic = await create(admin, pulsar.topic())
        producer: Producer = await made.open_producer(topic)
        await asyncio.gather(*(send(producer, n) for n in range(500)))
        seen: list[Entry] = []
        reader = await made.open_reader(topic, EARLIEST, permits=10, on_entry=seen.append)
        await until(lambda: len(seen) == 10)
        await asyncio.sleep(0.1)  # nothing can be waited for: no more shall come
        assert (len(seen), reader.permits) == (10, 0)
        await admin.unload(topic)
        await until(lambda: reader.attached_times > 1)
        reader.flow(25)
        await until(lambda: len(seen) == 35)
        await asyncio.sleep(0.1)  # nothing can be waited for: no more shall come
        assert [bytes(entry.payload) for entry in seen] == numbers(35)


async def test_a_watch(pulsar: Pulsar) -> None:
    async with tools(pulsar) as (made, admin):
        changes: list[tuple[Sequence[str] | None, Sequence[str], Sequence[str]]] = []
        pattern = f"persistent://{pulsar.namespace}/seen-.*"
        watch = made.watch(pulsar.namespace, pattern, lambda *change: changes.append(change))
        await until(lambda: changes)
        assert changes[0][0] is not None
        topic = await create(admin, pulsar.topic("seen"))
        await create(admin, pulsar.topic("hidden"))
        await until(lambda: len(changes) > 1)
        await admin.delete_plain(topic)
        await until(lambda: len(changes) > 2)
        assert changes[1:] == [(None, [topic], []), (None, [], [topic])]
        await watch.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_broker_that_stops_for_a_while_and_one_that_is_killed(own_broker: OwnBroker) -> None:
    urls = await asyncio.to_thread(own_broker.start)
    pulsar = Pulsar(*urls, "public/default")
    async with tools(pulsar, keepalive=2.0) as (made, admin):
        topic = await create(admin, pulsar.topic())
        await deduplicate(admin, topic)
        seen: list[Entry] = []
        reader = await made.open_reader(topic, EARLIEST, permits=10**6, on_entry=seen.append)
        producer = await made.open_producer(topic, name="mine", send_timeout=120)
        sent = [send(producer, n) for n in range(100)]
        await asyncio.gather(*sent)
        os.kill(own_broker.pid, signal.SIGSTOP)
        sent += [send(producer, n) for n in range(100, 200)]
        await until(lambda: not producer.connected and not reader.connected)
        os.kill(own_broker.pid, signal.SIGCONT)
        await asyncio.gather(*sent)
        sent += [send(producer, n) for n in range(200, 300)]
        await asyncio.to_thread(own_broker.kill)
        await until(lambda: not producer.connected and not reader.connected)
        sent += [send(producer, n) for n in range(300, 400)]
        await asyncio.to_thread(own_broker.start)
        await asyncio.gather(*sent)
        await until(lambda: len(seen) >= 400)
        await asyncio.sleep(0.2)  # nothing can be waited for: no more shall come
        assert [bytes(entry.payload) for entry in seen] == numbers(400)
        assert [entry.index for entry in seen] == list(range(400))
