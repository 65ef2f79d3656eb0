"""Entries of a producer that are put on the wire past it: whose receipts they are, and when the producer has them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pulsar_client.pulsar_kit import T, client, metadata, numbers, send
from support.fake_pulsar import Command, FakePulsar, fails, fake_pulsar
from support.waiting import until

from kop.pulsar_client import DUPLICATE, Client, Position, Producer, PulsarError, wire
from kop.pulsar_client.pending import AwaitedEntry, PendingEntry
from kop.pulsar_client.producer import HandedEntries
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Receipt


class HeldEntries:
    """As compiled code: frames go to where the producer says, and their receipts come here."""

    def __init__(self, producer: Producer) -> None:
        outgoing = producer.direct_outgoing
        assert outgoing is not None
        self._outgoing = outgoing
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[AwaitedEntry, float]] = deque()
        self._highest = -1
        self.told: list[tuple[int, Position]] = []
        """Receipts that were taken."""
        self.takes = 1000
        """So many receipts are taken before one is left."""
        self.handed_over = 0
        producer.begin_direct(self)

    def put(
        self, sequence_id: int, messages: int = 1, *, sent: float | None = None, payload: bytes = b""
    ) -> asyncio.Future[Position]:
        """Send an entry. The future ends where the producer has the entry before its receipt comes."""
        assert not self.handed_over
        meta, payload = metadata(self._producer, sequence_id, messages), payload or b"%d" % sequence_id
        self._highest = sequence_id + messages - 1
        head = wire.send_head(self._producer.id, sequence_id, self._highest, messages, meta, payload)
        frame = b"".join((head, meta, payload))
        future: asyncio.Future[Position] = self._loop.create_future()
        size = len(meta) + len(payload)
        entry = AwaitedEntry(frame, size, self._producer.id, sequence_id, self._highest, future)
        self._held.append((entry, self._loop.time() if sent is None else sent))
        self._outgoing.push(frame)
        return future

    @property
    def in_flight(self) -> int:
        return len(self._held)

    @property
    def oldest(self) -> float | None:
        return self._held[0][1] if self._held else None

    def received(self, receipts: Sequence[Receipt]) -> int:
        taken = 0
        for _, sequence_id, _, *position in receipts:
            if taken == self.takes or not self._held or self._held[0][0].sequence_id != sequence_id:
                break
            if position == [*DUPLICATE]:
                break
            self._held.popleft()
            self.told.append((sequence_id, Position(*position)))
            taken += 1
        if taken < len(receipts):
            self._producer.end_direct()
        return taken

    def hand_over(self) -> HandedEntries:
        self.handed_over += 1
        held, self._held = self._held, deque()
        for entry, sent in held:
            entry.deadline = sent
        return HandedEntries([entry for entry, _ in held], [], self._highest)


@asynccontextmanager
async def opened(**how: Any) -> AsyncIterator[tuple[FakePulsar, Client, Producer]]:
    """A broker, a client, and a producer that has sent the entry 0."""
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p", **how)
            await send(producer, 0)
            yield broker, made, producer


async def test_receipts_go_to_who_holds_the_entries_and_all_count_as_pending() -> None:
    async with opened() as (broker, _, producer):
        broker.hold_receipts = True
        earlier = [send(producer, number) for number in (1, 2)]
        direct = HeldEntries(producer)
        for number in (3, 4, 5):
            direct.put(number)
        assert producer.pending == 5
        await until(lambda: len(broker.held) == 5)
        assert broker.payloads(T) == numbers(6)
        broker.release()
        assert await asyncio.gather(*earlier) == [Position(100, 1), Position(100, 2)]
        await until(lambda: len(direct.told) == 3)
        assert direct.told == [(number, Position(100, number)) for number in (3, 4, 5)]
        assert producer.pending == 0
        direct.put(6, messages=3)
        direct.put(9)
        assert producer.pending == 2
        await until(lambda: producer.pending == 0)
        assert direct.told[3:] == [(6, Position(100, 6)), (9, Position(100, 7))]
        assert not direct.handed_over


async def test_receipts_of_one_read_are_split_between_the_producers_own_entries_and_the_others() -> None:
    stored: list[list[int]] = []

    def take(entries: Sequence[tuple[PendingEntry, int, int]]) -> None:
        stored.append([entry.sequence_id for entry, _, _ in entries])
        for entry, *position in entries:
            entry.stored(Position(*position))

    async with opened(on_stored=take) as (broker, _, producer):
        stored.clear()
        broker.silent.add(Command.SEND)
        own = [send(producer, number) for number in (1, 2)]
        direct = HeldEntries(producer)
        others = [direct.put(number) for number in (3, 4, 5)]
        direct.takes = 2
        producer.on_receipts([(producer.id, number, number, 7, number) for number in range(1, 6)])
        assert [future.done() for future in own] == [True, True]
        assert direct.told == [(3, Position(7, 3)), (4, Position(7, 4))]
        assert direct.handed_over == 1, "one was not taken"
        assert stored == [[1, 2], [5]], "the producer tells that in the same turn"
        assert await others[2] == Position(7, 5)
        assert [future.done() for future in others[:2]] == [False, False]
        assert producer.pending == 0
        producer.on_receipts([(producer.id, 4, 4, 7, 4)])  # nobody waits for it any more
        assert [number for told in stored for number in told] == [1, 2, 5]


async def test_a_receipt_that_says_duplicate_is_the_producers() -> None:
    async with opened() as (broker, _, producer):
        direct = HeldEntries(producer)
        known = direct.put(0)
        behind = direct.put(1)
        assert await asyncio.gather(known, behind) == [DUPLICATE, Position(100, 1)]
        assert direct.handed_over == 1
        assert direct.told == []
        assert broker.payloads(T) == numbers(2)


# --- what ends it


@pytest.mark.parametrize("how", ["submit", "find", "unanswered", "end_direct"])
async def test_whoever_asks_the_producer_for_something_finds_all_entries_in_it(how: str) -> None:
    async with opened() as (broker, _, producer):
        broker.hold_receipts = True
        direct = HeldEntries(producer)
        sent = [direct.put(number) for number in (1, 2)]
        if how == "submit":
            sent.append(send(producer, 3))
        elif how == "find":
            entry = producer.find(2)
            assert entry is not None
            assert entry.sequence_id == 2
        elif how == "unanswered":
            assert [entry.sequence_id for entry in producer.unanswered()] == [1, 2]
        else:
            producer.end_direct()
        producer.end_direct()
        assert direct.handed_over == 1
        assert producer.pending == len(sent)
        assert producer.direct_outgoing is not None, "it may begin again"
        again = HeldEntries(producer)
        again.put(4)
        assert producer.pending == len(sent) + 1
        broker.release()
        assert await asyncio.gather(*sent) == [Position(100, number + 1) for number in range(len(sent))]
        await until(lambda: len(again.told) == 1)
        assert broker.payloads(T) == [*numbers(len(sent) + 1), b"4"]
        assert broker.count(Command.SEND) == len(sent) + 2, "nothing is sent twice"


async def test_a_sequence_id_that_is_under_way_past_the_producer_is_pending() -> None:
    async with opened() as (broker, _, producer):
        broker.hold_receipts = True
        direct = HeldEntries(producer)
        first = direct.put(1)
        with pytest.raises(ValueError, match="1 is pending already"):
            send(producer, 1)
        broker.release()
        assert await first == Position(100, 1)


async def test_a_producer_that_moves_waits_for_the_receipts_of_all_entries() -> None:
    async with opened() as (broker, made, producer):
        broker.hold_receipts = True
        direct = HeldEntries(producer)
        sent = [direct.put(number) for number in (1, 2)]
        await until(lambda: len(broker.held) == 2)
        made.move_producer(producer, "slow")
        assert direct.handed_over == 1
        assert producer.direct_outgoing is None
        sent.append(send(producer, 3))
        assert await made.partitions(T) == 0, "the broker has answered something else since"
        assert broker.payloads(T) == numbers(3), "what comes later waits"
        broker.release()
        assert await asyncio.gather(*sent) == [Position(100, number) for number in (1, 2, 3)]
        assert producer.attached_times == 2
        assert producer.direct_outgoing is not None


@pytest.mark.parametrize("messages", [1, 4])
async def test_an_entry_that_is_refused_for_good_fails_alone(messages: int) -> None:
    async with opened() as (broker, _, producer):
        direct = HeldEntries(producer)
        direct.put(10, messages)
        await until(lambda: len(direct.told) == 1)
        broker.refusals[Command.SEND] = [pb.NotAllowedError]
        refused, accepted = direct.put(20, messages), direct.put(30, messages)
        assert await fails(refused) == "NotAllowedError"
        assert await accepted == Position(100, 2)
        assert direct.handed_over == 1
        assert broker.payloads(T) == [b"0", b"10", b"30"]


@pytest.mark.parametrize("how", ["hang up", "unload", "refuse for now"])
async def test_what_has_no_receipt_is_sent_again_in_order_where_the_producer_comes_back(how: str) -> None:
    async with opened() as (broker, _, producer):
        direct = HeldEntries(producer)
        direct.put(1)
        await until(lambda: len(direct.told) == 1)
        broker.hold_receipts = True
        sent = [direct.put(number) for number in (2, 3)]
        await until(lambda: len(broker.held) == 2)
        broker.hold_receipts = False
        if how == "refuse for now":
            broker.refusals[Command.SEND] = [pb.PersistenceError] * 2
            sent += [direct.put(number) for number in (4, 5)]
        elif how == "unload":
            broker.unload(T)
        else:
            broker.hang_up()
        await until(lambda: direct.handed_over == 1)
        assert await asyncio.gather(*sent[:2]) == [DUPLICATE, DUPLICATE]
        sent.append(send(producer, 6))
        assert DUPLICATE not in await asyncio.gather(*sent[2:])
        assert broker.payloads(T) == [b"0", b"1", b"2", b"3", *([b"4", b"5"] if how == "refuse for now" else []), b"6"]
        assert producer.attached_times == 2
        assert producer.direct_outgoing is not None


@pytest.mark.parametrize("how", ["producer", "client", "topic"])
async def test_what_has_no_receipt_fails_with_the_producer(how: str) -> None:
    lost: list[str] = []
    async with opened(on_lost=lambda error: lost.append(error.code)) as (broker, made, producer):
        broker.hold_receipts = True
        direct = HeldEntries(producer)
        sent = [direct.put(number) for number in (1, 2)]
        await until(lambda: len(broker.held) == 2)
        if how == "producer":
            await producer.close()
        elif how == "client":
            await made.close()
        else:
            broker.delete(T)
        code = "TopicNotFound" if how == "topic" else "Closed"
        assert [await fails(future) for future in sent] == [code] * 2
        assert direct.handed_over == 1
        assert producer.pending == 0
        assert producer.direct_outgoing is None
        assert lost == ([] if how == "producer" else [code])
        broker.create(T)


async def test_what_is_answered_while_the_producer_closes_is_stored() -> None:
    async with opened() as (broker, _, producer):
        broker.hold_receipts = True
        direct = HeldEntries(producer)
        sent = [direct.put(number) for number in (1, 2)]
        await until(lambda: len(broker.held) == 2)
        broker.silent.add(Command.CLOSE_PRODUCER)
        closing = asyncio.ensure_future(producer.close())
        await until(lambda: broker.count(Command.CLOSE_PRODUCER) == 1)
        assert direct.handed_over == 1
        broker.release()
        assert await asyncio.gather(*sent) == [Position(100, 1), Position(100, 2)]
        broker.hang_up()
        await closing


async def test_a_producer_without_resending_ends_where_entries_were_under_way() -> None:
    lost: list[str] = []
    async with opened(resend=False, on_lost=lambda error: lost.append(error.code)) as (broker, _, producer):
        broker.hold_receipts = True
        direct = HeldEntries(producer)
        sent = direct.put(1)
        await until(lambda: len(broker.held) == 1)
        broker.hang_up()
        assert await fails(sent) == "ConnectionLost"
        assert lost == ["ConnectionLost"]


# --- who comes back


@pytest.mark.parametrize("receipts", [True, False])
async def test_a_producer_is_not_taken_for_fenced_by_what_went_past_it(receipts: bool) -> None:
    lost: list[PulsarError] = []
    async with opened(on_lost=lost.append) as (broker, _, producer):
        direct = HeldEntries(producer)
        broker.hold_receipts = not receipts
        sent = direct.put(1, messages=9)
        if receipts:
            await until(lambda: len(direct.told) == 1)
        else:
            await until(lambda: len(broker.held) == 1)
        broker.hold_receipts = False
        broker.hang_up()
        await until(lambda: producer.attached_times == 2)
        assert producer.last_sequence_id == 9
        assert await send(producer, 10) == Position(100, 2)
        if not receipts:
            assert await sent == DUPLICATE
        assert not lost


async def test_a_producer_under_whose_name_another_wrote_is_lost_with_what_went_past_it() -> None:
    lost: list[str] = []
    async with opened(on_lost=lambda error: lost.append(error.code)) as (broker, _, producer):
        broker.hold_receipts = True
        direct = HeldEntries(producer)
        sent = direct.put(1, messages=9)
        await until(lambda: len(broker.held) == 1)
        broker.topics[T].last_sequence["p"] = 12
        broker.hang_up()
        assert await fails(sent) == "ProducerFenced"
        assert lost == ["ProducerFenced"]
        await until(lambda: not broker.topics[T].producers)


# --- where frames may go


async def test_nothing_goes_past_a_producer_that_keeps_entries_back() -> None:
    async with opened() as (broker, _, producer):
        outgoing = producer.direct_outgoing
        assert outgoing is not None
        outgoing.paused = True
        assert producer.direct_outgoing is None
        waits = send(producer, 1)
        outgoing.paused = False
        assert producer.direct_outgoing is None, "an entry waits that has to go first"
        behind = send(producer, 2)
        assert producer.direct_outgoing is outgoing
        assert await asyncio.gather(waits, behind) == [Position(100, 1), Position(100, 2)]
        broker.refusals[Command.PRODUCER] = [pb.ServiceNotReady] * 1000
        broker.hang_up()
        await until(lambda: not producer.connected)
        assert producer.direct_outgoing is None
        broker.refusals[Command.PRODUCER].clear()
        await until(lambda: producer.direct_outgoing is not None)
        assert producer.direct_outgoing is not outgoing


# --- time


async def test_an_entry_without_a_receipt_expires_with_all_behind_it() -> None:
    async with opened(send_timeout=1.0) as (broker, _, producer):
        loop = asyncio.get_running_loop()
        broker.silent.add(Command.SEND)
        direct = HeldEntries(producer)
        begun = loop.time()
        sent = [direct.put(number) for number in (1, 2)]
        assert [await fails(future) for future in sent] == ["Timeout"] * 2
        assert loop.time() - begun >= 0.999  # the loop has whole milliseconds
        assert direct.handed_over == 1
        broker.silent.clear()
        await until(lambda: producer.connected)
        assert await send(producer, 3) == Position(100, 1)
        assert producer.attached_times == 2


async def test_an_entry_has_the_whole_time_from_its_own_sending_on() -> None:
    async with opened(send_timeout=0.4) as (broker, _, producer):
        loop = asyncio.get_running_loop()
        broker.silent.add(Command.SEND)
        direct = HeldEntries(producer)
        await asyncio.sleep(0.3)  # the timer of the producer has begun
        begun = loop.time()
        assert await fails(direct.put(1)) == "Timeout"
        assert loop.time() - begun >= 0.399  # the loop has whole milliseconds
        await until(lambda: producer.attached_times == 2)


async def test_an_entry_that_is_handed_over_keeps_its_deadline() -> None:
    async with opened() as (broker, _, producer):
        now = asyncio.get_running_loop().time()
        broker.hold_receipts = True
        direct = HeldEntries(producer)
        sent = [direct.put(1, sent=now - 20), direct.put(2, sent=now)]
        assert [entry.deadline - now for entry in producer.unanswered()] == pytest.approx([10, 30])
        await until(lambda: len(broker.held) == 2)
        broker.release()
        await asyncio.gather(*sent)


async def test_the_timer_goes_on_as_long_as_entries_may_go_past_the_producer() -> None:
    async with opened(send_timeout=0.5) as (broker, _, producer):
        direct = HeldEntries(producer)
        await asyncio.sleep(1.2)  # nothing is under way
        assert not direct.handed_over
        direct.put(1)
        await until(lambda: len(direct.told) == 1)
        broker.silent.add(Command.SEND)
        assert await fails(direct.put(2)) == "Timeout"
        await until(lambda: producer.attached_times == 2)


async def test_an_entry_of_the_producer_that_expires_takes_those_with_it_that_went_past_it() -> None:
    async with opened(send_timeout=2.0) as (broker, _, producer):
        broker.silent.add(Command.SEND)
        own = send(producer, 1)
        await asyncio.sleep(0.2)  # the other one's own time ends later
        direct = HeldEntries(producer)
        other = direct.put(2)
        await until(lambda: broker.count(Command.SEND) == 3)
        assert await fails(own) == "Timeout"
        assert other.done(), "it is not sent again without the one before it"
        assert await fails(other) == "Timeout"
        assert producer.pending == 0
        broker.silent.clear()
        await until(lambda: producer.connected)
        assert await send(producer, 3) == Position(100, 1)
