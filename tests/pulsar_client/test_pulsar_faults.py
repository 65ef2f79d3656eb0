"""A link that is cut, stalls, or passes crumbs: nothing acknowledged is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest
from pulsar_client.pulsar_kit import T, client, in_time, numbers, send
from support.fake_pulsar import Command, fake_pulsar
from support.waiting import SECONDS, until

from conformance.faulty_link import link
from kop.pulsar_client import EARLIEST, Entry
from kop.pulsar_client.connection import Connection


@pytest.mark.parametrize("seed", range(4))
async def test_cuts_anywhere_in_a_frame(seed: int) -> None:
    rng = random.Random(seed)
    total = 300
    async with fake_pulsar() as broker, link(broker.port) as wire:
        broker.create(T)
        broker.url = wire.url  # the broker that lookups name
        async with client(wire.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, EARLIEST, permits=total, on_entry=seen.append)
            producer = await made.open_producer(T, name="p")
            sent = []
            for begin in range(0, total, 30):
                sent += [send(producer, number) for number in range(begin, begin + 30)]
                wire.cut_after = rng.randrange(1, 1500)
                await asyncio.sleep(rng.random() / 50)  # what is sent goes into cuts at any moment
            await asyncio.wait_for(asyncio.gather(*sent), SECONDS)
            await until(lambda: len(seen) == total)
            assert broker.payloads(T) == numbers(total)
            assert [bytes(entry.payload) for entry in seen] == numbers(total)
            assert [entry.index for entry in seen] == list(range(total))
            assert producer.attached_times + reader.attached_times > 2


async def test_crumbs() -> None:
    async with fake_pulsar() as broker, link(broker.port) as wire:
        broker.create(T)
        broker.url = wire.url
        wire.crumbs = 3
        async with client(wire.url) as made:
            seen: list[Entry] = []
            await made.open_reader(T, EARLIEST, permits=50, on_entry=seen.append)
            producer = await made.open_producer(T)
            await asyncio.gather(*(send(producer, number) for number in range(20)))
            await until(lambda: len(seen) == 20)
            assert [bytes(entry.payload) for entry in seen] == numbers(20)


async def test_a_link_that_stalls_is_left() -> None:
    async with fake_pulsar() as broker, link(broker.port) as wire:
        broker.create(T)
        broker.url = wire.url
        async with client(wire.url, keepalive=0.1) as made:
            seen: list[Entry] = []
            await made.open_reader(T, EARLIEST, permits=50, on_entry=seen.append)
            producer = await made.open_producer(T, name="p")
            await send(producer, 0)
            wire.stall()
            sent = [send(producer, number) for number in range(1, 5)]
            await until(lambda: not producer.connected)
            wire.cut()  # the way is free again, for new connections
            await asyncio.gather(*sent)
            await until(lambda: len(seen) == 5)
            assert broker.payloads(T) == numbers(5)


async def test_a_broker_that_is_gone_for_a_while() -> None:
    async with fake_pulsar() as broker, link(broker.port) as wire:
        broker.create(T)
        broker.url = wire.url
        async with client(wire.url, request_timeout=0.5) as made:
            seen: list[Entry] = []
            await in_time(lambda: made.open_reader(T, EARLIEST, permits=50, on_entry=seen.append))
            producer = await in_time(lambda: made.open_producer(T, name="p"))
            wire.refuse = True
            wire.cut()
            await until(lambda: not producer.connected)
            sent = [send(producer, number) for number in range(5)]
            await asyncio.sleep(1)  # nothing can be waited for: nothing shall be told
            assert not any(future.done() for future in sent)
            wire.refuse = False
            await asyncio.gather(*sent)
            await until(lambda: len(seen) == 5)
            assert broker.payloads(T) == numbers(5)


async def test_a_broker_that_does_not_read_is_not_written_to_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Connection, asyncio.WriteTransport]] = []
    connection_made = Connection.connection_made

    def note(self: Connection, transport: asyncio.BaseTransport) -> None:
        opened.append((self, cast(asyncio.WriteTransport, transport)))
        connection_made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", note)
    async with fake_pulsar() as broker, link(broker.port) as wire:
        broker.create(T)
        broker.url = wire.url
        async with client(wire.url, keepalive=20) as made:
            producer = await made.open_producer(T)
            wire.stall()
            payload = bytes(1024 * 1024)
            sent = [send(producer, number, payload) for number in range(60)]
            assert producer.pending == 60
            await until(lambda: any(connection.outgoing.paused for connection, _ in opened))
            assert all(transport.get_write_buffer_size() < 8 * len(payload) for _, transport in opened)
            wire.go_on()
            await asyncio.gather(*sent)
            assert len(broker.payloads(T)) == 60
            assert producer.pending == 0


async def test_a_stalled_lane_does_not_hold_up_lookups_and_reads() -> None:
    async with fake_pulsar() as broker, link(broker.port) as wire:
        broker.create(T)
        async with client(broker.url) as made:
            broker.owner = wire.url  # what is looked up from now on lies behind the link
            producer = await made.open_producer(T, lane="slow")
            broker.owner = None
            wire.stall()
            stuck = send(producer, 0, bytes(2**20))
            seen: list[Entry] = []
            await made.open_reader(T, EARLIEST, permits=5, on_entry=seen.append)
            other = await made.open_producer(T)
            await send(other, 0)
            await until(lambda: seen)
            assert await made.partitions(T) == 0
            assert not stuck.done()
            wire.go_on()
            await stuck
            assert broker.count(Command.SEND) == 2
