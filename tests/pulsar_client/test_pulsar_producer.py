"""Producers: order, resending, refusals, exclusive access."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from pulsar_client.pulsar_kit import T, client, metadata, numbers, send
from support.fake_pulsar import Command, Session, fails, fake_pulsar
from support.waiting import until

from kop.pulsar_client import DUPLICATE, Position, Producer, PulsarError, TxnId
from kop.pulsar_client.connection import Connection
from kop.pulsar_client.frames import Frames
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Access, Receipt


async def test_entries_are_stored_in_the_order_of_send() -> None:
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, properties={"made-by": "kop"})
            assert producer.last_sequence_id == -1
            assert producer.topic_epoch is None
            futures = [send(producer, number * 3, messages=3) for number in range(200)]
            assert producer.pending == 200
            assert await asyncio.gather(*futures) == [Position(100, number) for number in range(200)]
            assert producer.pending == 0
            assert broker.payloads(T) == [b"%d" % (number * 3) for number in range(200)]
            assert topic.index == 599
            asked = next(c.producer for s in broker.ever for c in s.seen if c.type == Command.PRODUCER)
            assert [(p.key, p.value) for p in asked.metadata] == [("made-by", "kop")]
            assert not asked.user_provided_producer_name


async def test_a_known_entry_is_a_duplicate() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            assert await send(producer, 5) == Position(100, 0)
            assert await send(producer, 5) == DUPLICATE
            await producer.close()
            again = await made.open_producer(T, name="p")
            assert (again.name, again.last_sequence_id) == ("p", 5)


class Transport(asyncio.Transport):
    """It notes what is written, each call by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[bytes]] = []

    def write(self, data: Any) -> None:
        self.writes.append([data])

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(list(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        pass


async def test_entries_of_one_turn_of_the_loop_are_one_write_and_commands_stand_behind_them() -> None:
    connection = Connection(
        "a test", auth=None, client_version="", proxy_to=None, keepalive=9, shared=Frames.shared_buffer(),
        on_closed=lambda *_: None,
    )  # fmt: skip
    transport = Transport()
    connection.connection_made(transport)
    for frame in (b"a", b"b", b"c"):
        connection.outgoing.push(frame)
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [[b"abc"]], "small ones are one buffer"
    connection.outgoing.push(b"d")
    connection.write_frame(b"a command")
    assert transport.writes[1:] == [[b"d"], [b"a command"]]
    large = bytes(2 << 20)
    connection.outgoing.push(large)
    assert transport.writes[3:] == [[large]], "the socket has to say when it is full"
    await asyncio.sleep(0)
    assert len(transport.writes) == 4
    halves = [bytes(40_000), bytes(40_001)]
    for frame in halves:
        connection.outgoing.push(frame)
    await asyncio.sleep(0)
    assert transport.writes[4:] == [halves], "large ones are not copied once more"


class Told:
    """A producer of a connection, with a defect where `fails`."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.told: list[str] = []

    def tell(self, name: str) -> None:
        self.told.append(name)
        if self.fails:
            raise RuntimeError("so says the test")

    def on_receipts(self, receipts: Sequence[Receipt]) -> None:
        self.tell("on_receipts")

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        self.tell("on_send_error")

    def on_disconnect(self, error: PulsarError, assigned: str | None) -> None:
        self.tell("on_disconnect")

    def on_writable(self) -> None:
        self.tell("on_writable")


async def test_a_user_of_a_connection_that_fails_keeps_no_other_from_being_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = Connection(
        "a test", auth=None, client_version="", proxy_to=None, keepalive=9, shared=Frames.shared_buffer(),
        on_closed=lambda *_: None,
    )  # fmt: skip
    connection.connection_made(Transport())
    users = [Told(fails=True), Told(fails=False)]
    for number, user in enumerate(users):
        connection.producers[number] = user
        connection.when_writable(number, user)
    connection.resume_writing()
    connection.abort(PulsarError("ConnectionLost", "so says the test"))
    assert [user.told for user in users] == [["on_writable", "on_disconnect"]] * 2
    assert [record.levelname for record in caplog.records].count("ERROR") == 2


async def test_a_sequence_id_may_be_pending_once() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T)
            first = send(producer, 5)
            with pytest.raises(ValueError, match="5 is pending already"):
                send(producer, 5)
            await first


async def test_what_is_too_large_is_not_sent() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        broker.max_message_size = 100
        async with client(broker.url) as made:
            producer = await made.open_producer(T)
            room = 100 - len(metadata(producer, 1))
            assert await fails(send(producer, 1, b"x" * (room + 1))) == "MessageTooLarge"
            assert await send(producer, 1, b"x" * room) == Position(100, 0)


@pytest.mark.parametrize("messages", [1, 5])
@pytest.mark.parametrize("error", [pb.NotAllowedError, pb.TopicTerminatedError, pb.ChecksumError])
async def test_a_refused_entry_fails_alone(error: pb.ServerError, messages: int) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T)
            await send(producer, 0)
            broker.refusals[Command.SEND] = [error]
            refused, accepted = send(producer, 10, messages=messages), send(producer, 20, messages=messages)
            assert await fails(refused) == pb.ServerError.Name(error)
            await accepted
            assert broker.payloads(T) == [b"0", b"20"]


async def test_what_is_pending_is_sent_again_in_order() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            await send(producer, 0)
            broker.hold_receipts = True
            sent = [send(producer, number) for number in range(1, 4)]
            await until(lambda: len(broker.held) == 3)
            broker.hang_up()
            await until(lambda: not producer.connected)
            sent += [send(producer, number) for number in range(4, 7)]
            broker.hold_receipts = False
            assert await asyncio.gather(*sent) == [DUPLICATE] * 3 + [Position(100, n) for n in (4, 5, 6)]
            assert broker.payloads(T) == numbers(7)
            assert producer.attached_times == 2
            asked = [c.producer for s in broker.ever for c in s.seen if c.type == Command.PRODUCER]
            assert [(a.producer_id, a.producer_name, a.epoch) for a in asked] == [(1, "p", 0), (2, "p", 1)]


async def test_a_producer_moves_to_another_connection_behind_what_is_on_the_wire() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            await send(producer, 0)
            broker.hold_receipts = True
            sent = [send(producer, number) for number in range(1, 4)]
            await until(lambda: len(broker.held) == 3)
            made.move_producer(producer, "slow")
            sent += [send(producer, number) for number in range(4, 7)]
            made.move_producer(producer, "slow")
            assert await made.partitions(T) == 0, "the broker has answered something else since"
            assert broker.payloads(T) == numbers(4), "what comes later waits"
            broker.release()
            assert await asyncio.gather(*sent) == [Position(100, number) for number in range(1, 7)]
            assert broker.payloads(T) == numbers(7)
            before, after = (s for s in broker.ever if any(c.type == Command.PRODUCER for c in s.seen))
            assert [s.count(Command.SEND) for s in (before, after)] == [4, 3]
            assert before.count(Command.CLOSE_PRODUCER) == 1
            assert producer.attached_times == 2


@pytest.mark.parametrize("when", ["waiting", "closing"])
async def test_a_producer_that_moves_survives_the_loss_of_its_connection(when: str) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            await send(producer, 0)
            broker.hold_receipts = when == "waiting"
            broker.silent.add(Command.CLOSE_PRODUCER)
            sent = [send(producer, 1)]
            if when == "waiting":
                await until(lambda: len(broker.held) == 1)
            else:
                await asyncio.gather(*sent)
            made.move_producer(producer, "slow")
            sent.append(send(producer, 2))
            if when == "closing":
                await until(lambda: broker.count(Command.CLOSE_PRODUCER) == 1)
            broker.hold_receipts = False
            broker.hang_up()
            await asyncio.gather(*sent)
            assert broker.payloads(T) == numbers(3)
            assert producer.attached_times == 2


async def test_a_producer_that_moves_can_be_closed() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            broker.silent.add(Command.CLOSE_PRODUCER)
            made.move_producer(producer, "slow")
            await until(lambda: broker.count(Command.CLOSE_PRODUCER) == 1)
            waits = send(producer, 0)
            await producer.close()
            assert await fails(waits) == "Closed"


async def test_a_producer_comes_back_though_entries_that_it_takes_for_pending_are_stored() -> None:
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            broker.hold_receipts = True
            sent = send(producer, 0, messages=5)
            await until(lambda: len(broker.held) == 1)
            broker.hold_receipts = False
            broker.hang_up()
            assert await sent == DUPLICATE
            assert topic.last_sequence["p"] == 4
            assert producer.attached_times == 2


async def test_a_producer_under_whose_name_another_wrote_meanwhile_is_lost() -> None:
    """What this one and its owner know of sequence ids is no longer true: the owner has to begin with a new one."""
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        topic.last_sequence["p"] = 6
        lost: list[PulsarError] = []
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p", on_lost=lost.append)
            await send(producer, 7, messages=3)
            broker.hang_up()
            await until(lambda: producer.attached_times == 2)  # up to 9 is its own
            topic.last_sequence["p"] = 12
            broker.hang_up()
            await until(lambda: not producer.connected)
            pending = send(producer, 10)
            assert await fails(pending) == "ProducerFenced"
            assert [error.code for error in lost] == ["ProducerFenced"]
            assert "up to 12" in lost[0].message
            assert "up to 10" in lost[0].message
            await until(lambda: not topic.producers)
            again = await made.open_producer(T, name="p")
            assert again.last_sequence_id == 12


@pytest.mark.parametrize("assigned", [False, True])
async def test_an_unloaded_topic_is_followed(assigned: bool) -> None:
    async with fake_pulsar() as first, fake_pulsar() as second:
        first.create(T)
        second.create(T)
        async with client(first.url) as made:
            producer = await made.open_producer(T)
            await send(producer, 0)
            if not assigned:
                first.owner = second.url
            lookups = first.count(Command.LOOKUP)
            first.unload(T, assigned=second.url if assigned else None)
            await asyncio.gather(*(send(producer, number) for number in range(1, 50)))
            assert (first.payloads(T) + second.payloads(T)) == numbers(50)
            assert second.payloads(T)
            assert first.count(Command.LOOKUP) - lookups == (0 if assigned else 1)


async def test_a_resent_entry_that_the_broker_has_not_finished_with_is_sent_once_more() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            broker.hold_receipts = True
            sent = [send(producer, number) for number in range(3)]
            await until(lambda: len(broker.held) == 3)
            broker.hold_receipts = False
            broker.refusals[Command.SEND] = [pb.PersistenceError]
            broker.hang_up()
            assert await asyncio.gather(*sent) == [DUPLICATE] * 3
            assert broker.payloads(T) == numbers(3)
            assert producer.attached_times == 3


async def test_entries_whose_receipts_could_not_be_taken_are_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, int, int]] = []
    failing = [True]

    def take(stored: Sequence[tuple[Any, int, int]]) -> None:
        for item, ledger, entry in stored:
            if item.sequence_id == 1 and failing:
                failing.clear()
                raise RuntimeError("so says the test")
            item.frame = b""
            told.append((item.sequence_id, ledger, entry))

    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p", on_stored=take)
            broker.hold_receipts = True
            for number in range(3):
                send(producer, number)
            await until(lambda: len(broker.held) == 3)
            broker.release()
            await until(lambda: len(told) == 3)
            assert told == [(0, 100, 0), (1, *DUPLICATE), (2, *DUPLICATE)]
            assert broker.payloads(T) == numbers(3)
            assert producer.attached_times == 2
    assert "could not be handled, the connection is closed" in caplog.text


@pytest.mark.parametrize("messages", [1, 5])
@pytest.mark.parametrize("error", [pb.PersistenceError, pb.ServiceNotReady, pb.UnknownError])
async def test_what_an_unloading_topic_refuses_is_sent_again_in_order(error: pb.ServerError, messages: int) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            await send(producer, 0)
            broker.refusals[Command.SEND] = [error] * 3
            sent = [send(producer, 10 * number, messages=messages) for number in range(1, 4)]
            assert await asyncio.gather(*sent) == [Position(100, number) for number in range(1, 4)]
            assert broker.payloads(T) == [b"0", b"10", b"20", b"30"]
            assert producer.attached_times == 2


async def test_what_is_withdrawn_while_it_comes_back_is_not_sent_again() -> None:
    async def withdraw_the_first(producer: Producer) -> None:
        for entry in producer.unanswered()[:1]:
            producer.withdraw(entry.sequence_id)
            entry.stored(DUPLICATE)

    async with fake_pulsar() as broker:
        topic = broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p", confirm=withdraw_the_first)
            broker.hold_receipts = True
            sent = [send(producer, number) for number in range(2)]
            await until(lambda: len(topic.log) == 2)
            broker.hold_receipts = False
            topic.last_sequence.clear()  # the broker forgets what is stored
            broker.unload(T)
            assert await asyncio.gather(*sent) == [DUPLICATE, Position(101, 0)]
            assert broker.payloads(T) == [b"0", b"1", b"1"]


async def test_a_full_backlog_is_told_at_once() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T)
            broker.refusals[Command.PRODUCER] = [pb.ProducerBlockedQuotaExceededException] * 2
            broker.unload(T)
            await until(lambda: not producer.connected)
            sent = [send(producer, number) for number in range(3)]
            assert [await fails(future) for future in sent] == ["ProducerBlockedQuotaExceededError"] * 3
            await until(lambda: producer.connected)
            await send(producer, 3)
            assert broker.payloads(T) == [b"3"]


async def test_no_receipt_in_time_fails_all_in_order() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, send_timeout=1.0)
            broker.hold_receipts = True
            failed: list[int] = []

            def fail(number: int, _: object) -> None:
                failed.append(number)

            sent = [send(producer, number) for number in range(3)]
            await asyncio.sleep(0.1)  # its own time limit ends later
            sent.append(send(producer, 3))  # behind an expired one nothing may be stored
            for number, future in enumerate(sent):
                future.add_done_callback(partial(fail, number))
            assert [await fails(future) for future in sent] == ["Timeout"] * 4
            await asyncio.sleep(0)
            assert failed == [0, 1, 2, 3]
            assert not producer.unanswered()
            broker.release()  # too late, nothing waits
            await until(lambda: producer.connected)
            assert await send(producer, 4) == Position(100, 4)


async def test_a_producer_that_the_broker_forgot_without_a_word_is_made_again() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        broker.hook = lambda session, command: command.type == Command.SEND and command.send.producer_id == 1
        async with client(broker.url) as made:
            producer = await made.open_producer(T, send_timeout=1.0)
            assert await fails(send(producer, 0)) == "Timeout"
            await until(lambda: producer.connected)
            assert await send(producer, 0) == Position(100, 0)
            assert producer.attached_times == 2


async def test_no_broker_in_time_fails_all_in_order() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, send_timeout=1.0)
            broker.refusals[Command.PRODUCER] = [pb.ServiceNotReady] * 1000
            broker.hang_up()
            await until(lambda: not producer.connected)
            sent = [send(producer, number) for number in range(3)]
            assert [await fails(future) for future in sent] == ["Timeout"] * 3
            broker.refusals[Command.PRODUCER].clear()
            await until(lambda: producer.connected)
            await send(producer, 3)
            assert broker.payloads(T) == [b"3"]


async def test_the_guard_is_asked_before_each_return_and_may_end_it() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            asked = 0
            lost: list[PulsarError] = []

            async def guard() -> None:
                nonlocal asked
                asked += 1
                if asked == 2:
                    raise PulsarError("Timeout", "passing")
                if asked == 4:
                    raise LookupError("another topic of that name")

            producer = await made.open_producer(T, before_attach=guard, on_lost=lost.append)
            assert asked == 0
            broker.unload(T)
            await send(producer, 0)
            assert asked == 1
            broker.unload(T)
            await until(lambda: not producer.connected)
            await send(producer, 1)
            assert asked == 3
            broker.hold_receipts = True
            pending = send(producer, 2)
            await until(lambda: broker.held)
            broker.unload(T)
            assert await fails(pending) == "GuardFailed"
            assert [error.code for error in lost] == ["GuardFailed"]
            assert await fails(send(producer, 3)) == "GuardFailed"


async def test_a_deleted_topic_ends_the_producer() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            lost: list[PulsarError] = []
            producer = await made.open_producer(T, on_lost=lost.append)
            broker.delete(T)
            await until(lambda: lost)
            assert lost[0].code == "TopicNotFound"
            assert await fails(send(producer, 0)) == "TopicNotFound"


async def test_close_answers_what_is_pending() -> None:
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T)
            stored = send(producer, 0)
            await producer.close()
            assert await stored == Position(100, 0)
            assert topic.producers == {}
            assert await fails(send(producer, 1)) == "Closed"
            await producer.close()
            other = await made.open_producer(T)
            broker.hold_receipts = True
            unknown = send(other, 0)
            await other.close()
            assert await fails(unknown) == "Closed"


@pytest.mark.parametrize("error", [pb.ProducerBusy, pb.ProducerBlockedQuotaExceededException, pb.AuthorizationError])
async def test_a_refused_producer_is_told_at_once(error: pb.ServerError) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            broker.refusals[Command.PRODUCER] = [error]
            code = await fails(made.open_producer(T))
            assert code == pb.ServerError.Name(error).replace("Exception", "Error")
            assert broker.count(Command.PRODUCER) == 1


async def test_opening_outlasts_a_moment_of_trouble() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            broker.refusals[Command.PRODUCER] = [pb.ServiceNotReady]
            broker.refusals[Command.LOOKUP] = [pb.ServiceNotReady]
            await send(await made.open_producer(T), 0)


async def test_a_producer_that_is_not_answered_is_closed_at_the_broker() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url, request_timeout=1.0) as made:
            broker.silent.add(Command.PRODUCER)

            async def asks_in_vain() -> bool:
                assert await fails(made.open_producer(T)) == "Timeout"
                return broker.count(Command.PRODUCER) > 0  # not where the lookup had no answer in time

            await until(asks_in_vain)
            await until(lambda: broker.count(Command.CLOSE_PRODUCER) == broker.count(Command.PRODUCER))


# --- exclusive access


async def test_the_epoch_is_shown_again() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p", access="exclusive")
            assert producer.topic_epoch == 0
            broker.hang_up()
            await until(lambda: producer.attached_times == 2)
            asked = [c.producer for s in broker.ever for c in s.seen if c.type == Command.PRODUCER]
            assert [a.producer_access_mode for a in asked] == [pb.Exclusive, pb.Exclusive]
            assert [a.HasField("topic_epoch") for a in asked] == [False, True]
            assert producer.topic_epoch == 0
            assert await fails(made.open_producer(T, name="q")) == "ProducerBusy"
            assert await fails(made.open_producer(T, name="q", access="exclusive")) == "ProducerFenced"


async def test_a_fenced_producer_is_lost_with_all_that_is_pending() -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            lost: list[PulsarError] = []
            old = await made.open_producer(
                T, name="old", access="exclusive_with_fencing", lane="a", on_lost=lost.append
            )
            new = await made.open_producer(T, name="new", access="exclusive_with_fencing", lane="b")
            assert (old.topic_epoch, new.topic_epoch) == (0, 1)
            sent = [send(old, number) for number in range(3)]
            assert [await fails(future) for future in sent] == ["ProducerFenced"] * 3
            assert [error.code for error in lost] == ["ProducerFenced"]
            await send(new, 0)
            assert new.attached_times == 1, "the one that came too late did not push it out"
            assert len(broker.payloads(T)) == 1
            assert await fails(made.open_producer(T, access="exclusive_with_fencing", epoch=0)) == "ProducerFenced"


async def test_who_waits_gets_the_topic_when_it_is_free() -> None:
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        async with client(broker.url, request_timeout=4.0) as made:
            holder = await made.open_producer(T, name="holder", access="exclusive", lane="a")
            waiting = asyncio.create_task(made.open_producer(T, name="next", access="wait_for_exclusive", lane="b"))
            await asyncio.sleep(4.2)  # longer than requests may take
            assert not waiting.done()
            await holder.close()
            heir = await waiting
            assert heir.topic_epoch == 1
            assert list(topic.producers) == ["next"]
            await send(heir, 0)


@pytest.mark.parametrize("how", ["hang up", "unload"])
async def test_who_waits_waits_again_after_a_loss(how: str) -> None:
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        async with client(broker.url) as made:
            holder = await made.open_producer(T, name="holder", access="exclusive", lane="a")
            waiting = asyncio.create_task(made.open_producer(T, name="next", access="wait_for_exclusive", lane="b"))
            await until(lambda: topic.waiting)
            session = topic.waiting.pop()[0]
            if how == "hang up":
                session.hang_up()
            else:
                gone = pb.CommandCloseProducer(producer_id=2, request_id=2**64 - 1)
                session.send(Command(type=Command.CLOSE_PRODUCER, close_producer=gone))
            await until(lambda: topic.waiting)
            await holder.close()
            assert (await waiting).topic_epoch == 1


async def test_who_stops_waiting_tells_the_broker() -> None:
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        async with client(broker.url) as made:
            await made.open_producer(T, name="holder", access="exclusive", lane="a")
            waiting = asyncio.create_task(made.open_producer(T, name="next", access="wait_for_exclusive", lane="b"))
            await until(lambda: topic.waiting)
            waiting.cancel()
            await asyncio.wait([waiting])
            await until(lambda: broker.count(Command.CLOSE_PRODUCER) == 1)


async def test_both_answers_to_who_waits_may_come_in_one_read() -> None:
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        topic.epoch = 4

        def both(session: Session, command: Command) -> bool:
            if command.type != Command.PRODUCER:
                return False
            waits = pb.CommandProducerSuccess(
                request_id=command.producer.request_id, producer_name="p", producer_ready=False
            )
            session.send(Command(type=Command.PRODUCER_SUCCESS, producer_success=waits))
            broker.produce(session, command.producer, topic)
            return True

        broker.hook = both
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p", access="wait_for_exclusive")
            assert producer.topic_epoch == 5


async def test_a_producer_that_was_fenced_out_finds_out_when_it_asks() -> None:
    loop = asyncio.get_running_loop()
    lost: list[PulsarError] = []
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            before = loop.time()
            first = await made.open_producer(T, name="first", access="exclusive_with_fencing", on_lost=lost.append)
            assert before <= first.sure_at <= loop.time()
            await send(first, 0)
            asked = loop.time()
            await first.verify()
            assert first.sure_at >= asked
            second = await made.open_producer(T, name="second", access="exclusive_with_fencing")
            assert not lost, "brokers do not tell"
            with pytest.raises(PulsarError, match="ProducerFenced"):
                await first.verify()
            assert [error.code for error in lost] == ["ProducerFenced"]
            assert await fails(send(first, 1)) == "ProducerFenced"
            assert await send(second, 0) == Position(100, 1), "and its successor is left alone"
            await second.verify()
            broker.hang_up()
            await until(lambda: not second.connected)
            with pytest.raises(PulsarError, match="not attached"):
                await second.verify()


@pytest.mark.parametrize("loss", ["connection", "unload", "refusal"])
async def test_a_producer_that_sends_nothing_again_ends_with_what_is_under_way(loss: str) -> None:
    async with fake_pulsar() as broker:
        broker.create(T)
        async with client(broker.url) as made:
            lost: list[PulsarError] = []
            producer = await made.open_producer(T, name="p", resend=False, on_lost=lost.append)
            await send(producer, 0)
            broker.unload(T)
            await until(lambda: producer.attached_times == 2)
            await send(producer, 1)
            assert not lost, "nothing was under way"
            if loss == "refusal":
                broker.refusals[Command.SEND] = [pb.PersistenceError]
            else:
                broker.silent.add(Command.SEND)
            sent = [send(producer, number) for number in (2, 3)]
            if loss != "refusal":
                await until(lambda: broker.count(Command.SEND) == 4)
                broker.hang_up() if loss == "connection" else broker.unload(T)
            assert [await fails(each) for each in sent] == [lost[0].code] * 2
            assert broker.count(Command.PRODUCER) == 2
            assert broker.count(Command.SEND) <= 4


async def test_a_marker_names_its_transaction_twice() -> None:
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        async with client(broker.url) as made:
            producer = await made.open_producer(T, name="p")
            await producer.send_marker(77, sequence_id=3, txn=TxnId(2, 2**63 + 5))
        command = next(c.send for s in broker.ever for c in s.seen if c.type == Command.SEND)
        assert (command.txnid_most_bits, command.txnid_least_bits, command.sequence_id) == (2, 2**63 + 5, 3)
        data = topic.log[0].data
        stored = pb.MessageMetadata.FromString(data[10 : 10 + int.from_bytes(data[6:10], "big")])
        assert (stored.txnid_most_bits, stored.txnid_least_bits, stored.marker_type) == (2, 2**63 + 5, 77)


async def test_a_producer_that_drops_its_connection_asks_nothing_and_the_others_of_its_lane_come_back() -> None:
    """A Pulsar broker may hang for ever where an exclusive producer is closed while another pushes it out."""
    other_topic = f"{T}-2"
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        broker.create(other_topic)
        async with client(broker.url) as made:
            leaves = await made.open_producer(T, name="leaves", access="exclusive", lane="a")
            stays = await made.open_producer(other_topic, name="stays", access="exclusive", lane="a")
            await leaves.close(drops_connection=True)
            assert not leaves.connected
            await until(lambda: stays.attached_times == 2)
            await send(stays, 0)
            await until(lambda: not topic.producers)
            assert not broker.count(Command.CLOSE_PRODUCER)
            successor = await made.open_producer(T, name="successor", access="exclusive")
            await send(successor, 0)


async def test_of_many_that_drop_one_connection_none_comes_back() -> None:
    async with fake_pulsar() as broker:
        topics = [f"{T}-{number}" for number in range(20)]
        for topic in topics:
            broker.create(topic)
        async with client(broker.url) as made:
            producers = [await made.open_producer(topic, name="p", access="exclusive", lane="a") for topic in topics]
            await asyncio.gather(*(producer.close(drops_connection=True) for producer in producers))
            await until(lambda: not any(broker.topics[topic].producers for topic in topics))
            assert not broker.count(Command.CLOSE_PRODUCER)
            assert broker.count(Command.PRODUCER) == len(topics)


@pytest.mark.parametrize("access", ["shared", "exclusive"])
async def test_a_broker_may_send_a_producer_away_before_it_says_that_it_has_it(access: Access) -> None:
    """Pulsar 4.0.8 does so where a topic is unloaded at that moment; what is sent to such a producer gets no answer."""
    sent_away: list[int] = []
    async with fake_pulsar() as broker:
        topic = broker.create(T)
        topic.epoch = 0

        def unloads(session: Session, command: Command) -> bool:
            if command.type != Command.PRODUCER or sent_away:
                return False
            sent_away.append(command.producer.producer_id)
            gone = pb.CommandCloseProducer(producer_id=command.producer.producer_id, request_id=2**64 - 1)
            session.send(Command(type=Command.CLOSE_PRODUCER, close_producer=gone))
            answer = pb.CommandProducerSuccess(
                request_id=command.producer.request_id, producer_name="p", last_sequence_id=-1, topic_epoch=0
            )
            session.send(Command(type=Command.PRODUCER_SUCCESS, producer_success=answer))
            return True

        async with client(broker.url) as made:
            broker.hook = unloads
            producer = await made.open_producer(T, name="p", access=access)
            assert list(topic.producers) == ["p"], "it asked again"
            assert producer.id not in sent_away
            sent_away.clear()
            broker.hang_up()
            await until(lambda: sent_away and producer.connected)
            assert producer.id not in sent_away
            await send(producer, 0)
