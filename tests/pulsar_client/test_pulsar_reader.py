"""Readers: exact starts, permits, returning, damage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest
from pulsar_client.pulsar_kit import T, client, in_time, numbers
from support.fake_pulsar import Command, FakePulsar, Session, fails, fake_pulsar
from support.waiting import SECONDS, until

from kop.pulsar_client import EARLIEST, LATEST, Entry, Position, PulsarError, Received, position_in
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.turns import Turns


def payloads(entries: list[Entry]) -> list[bytes]:
    return [bytes(entry.payload) for entry in entries]


def fill(broker: FakePulsar, count: int, begin: int = 0, messages: int = 1) -> None:
    for payload in numbers(count, begin):
        broker.store(T, payload, messages=messages)


@pytest.mark.parametrize(
    ("start", "inclusive", "first"),
    [
        (EARLIEST, True, 0),
        (Position(100, 2), True, 2),
        (Position(100, 2), False, 3),
        (Position(100, 4), False, 5),  # behind the last of a ledger that is closed
        (Position(101, 0), True, 5),
        (LATEST, True, 10),
    ],
)
async def test_a_reader_begins_where_it_is_told(start: Position, inclusive: bool, first: int) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 5)
        broker.unload(T)
        fill(broker, 5, 5)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, start, inclusive=inclusive, permits=100, on_entry=seen.append)
            fill(broker, 2, 10)
            await until(lambda: seen and bytes(seen[-1].payload) == b"11")
            assert payloads(seen) == numbers(12 - first, first)
            assert [entry.index for entry in seen] == list(range(first, 12))
            assert reader.position == seen[-1].position == Position(101, 6)
            assert reader.permits == 100 - (12 - first)


async def test_entries_come_as_permits_allow() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 10, messages=5)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, EARLIEST, permits=0, on_entry=seen.append)
            await reader.last_position()
            assert seen == []
            reader.flow(7)
            await until(lambda: len(seen) == 2)
            assert reader.permits == -3
            reader.flow(4)
            await until(lambda: len(seen) == 3)
            await reader.last_position()
            assert (len(seen), reader.permits, seen[0].num_messages) == (3, -4, 5)


async def test_borrowed_bytes_are_there_during_the_call_only() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 5)
        async with client(broker.url) as made:
            kept: list[Entry] = []
            copied: list[bytes] = []

            def on_entry(entry: Entry) -> None:
                kept.append(entry)
                copied.append(bytes(entry.payload))

            await made.open_reader(T, EARLIEST, permits=100, on_entry=on_entry, borrow=True)
            await until(lambda: len(copied) == 5)
            assert copied == numbers(5)
            for entry in kept:
                with pytest.raises(ValueError, match="released"):
                    bytes(entry.payload)
                with pytest.raises(ValueError, match="released"):
                    bytes(entry.metadata)


@pytest.mark.parametrize("most", [0, 1, 3, 100])
async def test_entries_that_came_together_are_taken_together(most: int) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 30, messages=5)
        async with client(broker.url) as made:
            seen: list[bytes] = []
            room = most

            def on_many(received: Sequence[Received], at: int) -> tuple[int, int]:
                nonlocal room
                taken = [message for message in received[at : at + room] if isinstance(message, tuple)]
                seen.extend(bytes(message[7]) for message in taken)
                room = 0 if taken else most
                return len(taken), sum(message[5] for message in taken)

            def on_entry(entry: Entry) -> None:
                seen.append(bytes(entry.payload))

            reader = await made.open_reader(T, EARLIEST, permits=150, on_entry=on_entry, on_many=on_many)
            await until(lambda: len(seen) == 30)
            assert seen == numbers(30)
            assert (reader.permits, reader.position) == (0, Position(100, 29))


async def test_entries_that_come_again_are_not_taken_together() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 4)
        async with client(broker.url) as made:
            begun: list[Position] = []
            kept: list[Received] = []
            seen: list[Entry] = []

            def on_many(received: Sequence[Received], at: int) -> tuple[int, int]:
                begun.append(position_in(received, at))
                kept.append(received[at])
                return 1, 1

            reader = await made.open_reader(T, EARLIEST, permits=4, on_entry=seen.append, on_many=on_many)
            await until(lambda: len(begun) == 4)
            assert [reader.on_messages(kept, at) for at in (0, 3)] == [1, 1]
            assert begun == [Position(100, entry) for entry in range(4)]
            assert seen == []


async def test_who_takes_no_entries_together_is_asked_seldom() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 200)
        async with client(broker.url) as made:
            asked: list[int] = []
            seen: list[Entry] = []

            def on_many(received: Sequence[Received], at: int) -> tuple[int, int]:
                asked.append(position_in(received, at).entry)
                return 0, 0

            await made.open_reader(T, EARLIEST, permits=200, on_entry=seen.append, on_many=on_many)
            await until(lambda: len(seen) == 200)
            assert asked == [0, 2, 6, 14, 30, 62, 126, 190]


async def test_a_reader_whose_entries_together_cannot_be_handled_ends() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 2)
        async with client(broker.url) as made:
            lost: list[PulsarError] = []

            def on_many(received: Sequence[Received], at: int) -> tuple[int, int]:
                raise ValueError("no")

            await made.open_reader(
                T, EARLIEST, permits=4, on_entry=lambda entry: None, on_many=on_many, on_lost=lost.append
            )
            await until(lambda: lost)
            assert [error.code for error in lost] == ["HandlerFailed"]


async def test_a_broker_without_the_index_is_seen() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        broker.with_index = False
        broker.store(T, b"x", checksum=False)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            await made.open_reader(T, EARLIEST, permits=1, on_entry=seen.append)
            await until(lambda: seen)
            assert (seen[0].index, seen[0].broker_timestamp, bytes(seen[0].payload)) == (None, 0, b"x")


async def test_the_last_position() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            reader = await made.open_reader(T, EARLIEST, permits=0, on_entry=lambda entry: None)
            assert (await reader.last_position()).entry == -1
            fill(broker, 3)
            assert await reader.last_position() == Position(100, 2)


@pytest.mark.parametrize("told", ["before the question came", "behind the answer"])
async def test_the_last_position_of_a_topic_that_is_unloaded_meanwhile(told: str) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, EARLIEST, permits=100, on_entry=seen.append)
            fill(broker, 3)
            await until(lambda: len(seen) == 3)
            if told == "before the question came":
                broker.unload(T)  # the client has not read that yet
            else:
                for session in broker.sessions:
                    session.consumers.clear()
            assert await reader.last_position() == Position(100, 2)
            fill(broker, 1, 3)
            await until(lambda: len(seen) == 4)
            assert payloads(seen) == numbers(4)
            assert reader.attached_times == 2


async def test_a_reader_that_nobody_moved_is_marked_before_what_it_was_sent() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 5)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, Position(100, 2), permits=100, on_entry=seen.append)
            await until(lambda: len(seen) == 3)
            assert await reader.mark_delete_position() == Position(100, 1)


@pytest.mark.parametrize("how", ["hang up", "unload"])
async def test_a_reader_returns_just_behind_the_last_entry(how: str) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, EARLIEST, permits=12, on_entry=seen.append)
            for round_number in range(4):
                fill(broker, 3, round_number * 3)
                await until(lambda: len(seen) == (round_number + 1) * 3)  # noqa: B023
                if how == "hang up":
                    broker.hang_up()
                else:
                    broker.unload(T)
                await until(lambda: reader.attached_times == round_number + 2)  # noqa: B023
            fill(broker, 3, 12)
            assert await reader.last_position() == (Position(104, 2) if how == "unload" else Position(100, 14))
            assert payloads(seen) == numbers(12)
            assert reader.permits == 0
            reader.flow(2)
            await until(lambda: len(seen) == 14)
            assert payloads(seen) == numbers(14)


async def test_a_reader_from_the_end_misses_nothing_after_a_loss() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 3)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, LATEST, permits=10, on_entry=seen.append)
            broker.hang_up()
            await until(lambda: not reader.connected)
            fill(broker, 2, 3)  # while nobody reads
            await until(lambda: len(seen) == 2)
            assert payloads(seen) == numbers(2, 3)


async def test_a_return_goes_to_the_broker_that_was_named() -> None:
    async with fake_pulsar() as first, fake_pulsar() as second:
        for broker in (first, second):
            broker.create(T)
        second.store(T, b"there")
        async with client(first.url) as made:
            seen: list[Entry] = []
            await made.open_reader(T, EARLIEST, permits=10, on_entry=seen.append)
            first.unload(T, assigned=second.url)
            await until(lambda: seen)
            assert payloads(seen) == [b"there"]
            assert first.count(Command.LOOKUP) == 1


async def test_a_reader_does_not_bring_a_deleted_topic_back() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            lost: list[PulsarError] = []
            reader = await made.open_reader(T, EARLIEST, permits=1, on_entry=lambda entry: None, on_lost=lost.append)
            broker.delete(T)
            await until(lambda: lost)
            assert [error.code for error in lost] == ["TopicNotFound"]
            assert await fails(reader.last_position()) == "TopicNotFound"
            assert await fails(reader.seek(EARLIEST)) == "TopicNotFound"
            await reader.close()
            assert broker.topics == {}


async def test_a_guard_may_end_the_reader() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            lost: list[PulsarError] = []

            async def guard() -> None:
                raise PulsarError("TopicNotFound", "another id")

            reader = await made.open_reader(
                T, EARLIEST, permits=1, on_entry=lambda entry: None, before_attach=guard, on_lost=lost.append
            )
            broker.unload(T)
            await until(lambda: lost)
            assert lost[0].message == "another id"
            assert broker.count(Command.SUBSCRIBE) == 1
            assert not reader.connected


async def test_seek_delivers_nothing_of_before() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 100)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, EARLIEST, permits=1000, on_entry=seen.append)
            for place in (50, 3, 99, 0):
                await reader.seek(Position(100, place))
                seen.clear()
                await until(lambda: len(seen) == 100 - place)  # noqa: B023
                assert payloads(seen) == numbers(100 - place, place)
            await reader.seek(LATEST)
            seen.clear()
            fill(broker, 1, 100)
            await until(lambda: seen)
            assert payloads(seen) == [b"100"]
            assert sum(len(session.consumers) for session in broker.sessions) == 1


async def test_seek_during_a_loss() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 10)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, EARLIEST, permits=1000, on_entry=seen.append)
            await until(lambda: len(seen) == 10)
            broker.hang_up()
            await until(lambda: not reader.connected)
            seen.clear()
            await reader.seek(Position(100, 8))
            await until(lambda: len(seen) == 2)
            assert payloads(seen) == numbers(2, 8)


async def test_an_entry_damaged_on_its_way_is_fetched_again() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 5)
        broker.damage = 1
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, EARLIEST, permits=10, on_entry=seen.append)
            await until(lambda: len(seen) == 5)
            assert payloads(seen) == numbers(5)
            assert reader.attached_times == 2


async def test_an_entry_that_stays_damaged_ends_the_reader() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 2)
        broker.damage = 1000
        async with client(broker.url) as made:
            seen: list[Entry] = []
            lost: list[PulsarError] = []
            await made.open_reader(T, EARLIEST, permits=1, on_entry=seen.append, on_lost=lost.append)
            await until(lambda: lost)
            assert [error.code for error in lost] == ["ChecksumError"]
            assert seen == []


async def test_an_entry_that_cannot_be_handled_ends_the_reader(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 3)
        async with client(broker.url) as made:
            lost: list[PulsarError] = []
            calls: list[Entry] = []

            def on_entry(entry: Entry) -> None:
                calls.append(entry)
                raise RuntimeError("no room")

            await made.open_reader(T, EARLIEST, permits=10, on_entry=on_entry, on_lost=lost.append)
            await until(lambda: lost)
            assert [error.code for error in lost] == ["HandlerFailed"]
            assert len(calls) == 1
    assert "could not be handled" in caplog.text


async def test_after_close_nothing_is_delivered() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            seen: list[Entry] = []
            reader = await made.open_reader(T, EARLIEST, permits=10, on_entry=seen.append)
            fill(broker, 1)
            await reader.close()
            count = len(seen)
            fill(broker, 3, 1)
            await made.partitions(T)
            assert len(seen) == count
            assert await fails(reader.last_position()) == "Closed"
            assert all(not session.consumers for session in broker.sessions)


async def test_the_end_of_a_terminated_topic_is_noted() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            reader = await made.open_reader(T, EARLIEST, permits=1, on_entry=lambda entry: None)
            session = next(session for session in broker.sessions if session.consumers)
            told = pb.CommandReachedEndOfTopic(consumer_id=next(iter(session.consumers)))
            session.send(Command(type=Command.REACHED_END_OF_TOPIC, reachedEndOfTopic=told))
            await until(lambda: reader.ended)


async def test_read_compacted_and_the_kind_of_subscription_are_asked_for() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            await made.open_reader(T, Position(3, 4), read_compacted=True, permits=1, on_entry=lambda entry: None)
            asked = next(c.subscribe for s in broker.ever for c in s.seen if c.type == Command.SUBSCRIBE)
            assert asked.read_compacted
            assert asked.subType == pb.CommandSubscribe.Exclusive
            assert (asked.start_message_id.ledgerId, asked.start_message_id.entryId) == (3, 4)


async def test_views_outlive_the_connection() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        fill(broker, 50)
        seen: list[Entry] = []
        async with client(broker.url) as made:
            await made.open_reader(T, EARLIEST, permits=100, on_entry=seen.append)
            await until(lambda: len(seen) == 50)
        assert payloads(seen) == numbers(50)
        assert len({id(entry.payload.obj) for entry in seen}) == 50


async def test_a_reader_that_is_not_answered_is_closed_at_the_broker() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url, request_timeout=1.0) as made:
            broker.silent.add(Command.SUBSCRIBE)

            async def asks_in_vain() -> bool:
                opening = made.open_reader(T, EARLIEST, permits=1, on_entry=lambda entry: None)
                assert await fails(opening) == "Timeout"
                return broker.count(Command.SUBSCRIBE) > 0  # not where the lookup had no answer in time

            await until(asks_in_vain)
            await until(lambda: broker.count(Command.CLOSE_CONSUMER) == broker.count(Command.SUBSCRIBE))
            broker.silent.clear()
            broker.silent.add(Command.GET_LAST_MESSAGE_ID)
            reader = await in_time(lambda: made.open_reader(T, EARLIEST, permits=1, on_entry=lambda entry: None))
            assert await fails(reader.last_position()) == "Timeout"


async def test_a_caller_may_give_pulsar_another_time_to_name_the_last_position() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        broker.silent.add(Command.GET_LAST_MESSAGE_ID)
        async with client(broker.url, request_timeout=60.0) as made:
            reader = await made.open_reader(T, EARLIEST, permits=1, on_entry=lambda entry: None)
            with pytest.raises(PulsarError, match=r"the last position of .* within 0\.05 s"):
                await reader.last_position(within=0.05)


async def test_many_readers_return_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine no turn counts as over before the test has looked.
    monkeypatch.setattr("kop.pulsar_client.client.Turns", partial(Turns, slow_seconds=SECONDS))
    async with fake_pulsar() as broker:
        for number in range(300):
            broker.create(f"{T}{number}")
        async with client(broker.url) as made:
            readers = await asyncio.gather(
                *(made.open_reader(f"{T}{n}", EARLIEST, permits=1, on_entry=lambda entry: None) for n in range(300))
            )
            waiting: list[tuple[Session, Command]] = []

            def hold(session: Session, command: Command) -> bool:
                if command.type != Command.SUBSCRIBE:
                    return False
                waiting.append((session, command))
                return True

            broker.hook = hold
            broker.hang_up()
            await until(lambda: len(waiting) >= 64)
            for _ in range(100):
                await asyncio.sleep(0)  # turns of the loop in which others might come
            assert len(waiting) == 64
            broker.hook = None
            for session, command in waiting:
                broker.on_subscribe(session, command, b"")
            await until(lambda: all(reader.attached_times == 2 for reader in readers))
