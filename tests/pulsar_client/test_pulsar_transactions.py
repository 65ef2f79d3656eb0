"""Transactions: what coordinators are asked and when again, and what a real Pulsar makes of batches that name one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pulsar_client.pulsar_kit import T, client
from support.fake_pulsar import Command, FakePulsar, Session, fails, fake_pulsar
from support.pulsar import Pulsar
from support.pulsar_admin import PulsarAdmin
from support.waiting import until

from kop.pulsar_client import EARLIEST, Client, Entry, Position, Producer, PulsarError, TxnId
from kop.pulsar_client.admin import RECOVERED
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.transactions import COORDINATORS

A_WEEK = 7 * 24 * 3600 * 1000


class FakeCoordinators:
    """Transaction coordinators for the broker in memory; errors are said in the answer, as brokers do."""

    def __init__(self, broker: FakePulsar, count: int = 2) -> None:
        broker.partitions[COORDINATORS] = count
        broker.hook = self._take
        self.errors: list[int] = []
        """Of the next requests but those to connect."""
        self.connected: list[int] = []
        self.here: set[tuple[Session, int]] = set()
        self.ttls: list[int] = []
        self.added: list[tuple[TxnId, list[str]]] = []
        self.ended: list[tuple[TxnId, bool]] = []
        self.on_partition: list[tuple[TxnId, str, bool]] = []
        self._next = 0

    def _take(self, session: Session, command: Command) -> bool:
        kind = command.type
        if kind == Command.TC_CLIENT_CONNECT_REQUEST:
            asked = command.tcClientConnectRequest
            self.connected.append(asked.tc_id)
            self.here.add((session, asked.tc_id))
            answer: Any = pb.CommandTcClientConnectResponse(request_id=asked.request_id)
            session.send(Command(type=Command.TC_CLIENT_CONNECT_RESPONSE, tcClientConnectResponse=answer))
        elif kind == Command.NEW_TXN:
            answer = pb.CommandNewTxnResponse(
                request_id=command.newTxn.request_id, txnid_most_bits=command.newTxn.tc_id
            )
            if not self._refuse(answer, session, command.newTxn.tc_id):
                self.ttls.append(command.newTxn.txn_ttl_seconds)
                answer.txnid_least_bits = self._next = self._next + 1
            session.send(Command(type=Command.NEW_TXN_RESPONSE, newTxnResponse=answer))
        elif kind == Command.ADD_PARTITION_TO_TXN:
            add = command.addPartitionToTxn
            answer = pb.CommandAddPartitionToTxnResponse(request_id=add.request_id)
            if not self._refuse(answer, session, add.txnid_most_bits):
                self.added.append((TxnId(add.txnid_most_bits, add.txnid_least_bits), list(add.partitions)))
            session.send(Command(type=Command.ADD_PARTITION_TO_TXN_RESPONSE, addPartitionToTxnResponse=answer))
        elif kind == Command.END_TXN:
            end = command.endTxn
            answer = pb.CommandEndTxnResponse(request_id=end.request_id)
            if not self._refuse(answer, session, end.txnid_most_bits):
                txn = TxnId(end.txnid_most_bits, end.txnid_least_bits)
                self.ended.append((txn, end.txn_action == pb.COMMIT))
            session.send(Command(type=Command.END_TXN_RESPONSE, endTxnResponse=answer))
        elif kind == Command.END_TXN_ON_PARTITION:
            alone = command.endTxnOnPartition
            txn = TxnId(alone.txnid_most_bits, alone.txnid_least_bits)
            self.on_partition.append((txn, alone.topic, alone.txn_action == pb.COMMIT))
            answer = pb.CommandEndTxnOnPartitionResponse(request_id=alone.request_id)
            session.send(Command(type=Command.END_TXN_ON_PARTITION_RESPONSE, endTxnOnPartitionResponse=answer))
        else:
            return False
        return True

    def _refuse(self, answer: Any, session: Session, number: int) -> bool:
        if (session, number) not in self.here:
            answer.error = pb.TransactionCoordinatorNotFound
        elif self.errors:
            answer.error = self.errors.pop(0)
        if answer.HasField("error"):
            answer.message = "as the test wants it"
            return True
        return False


async def test_coordinators_take_turns_and_a_name_tells_whose_it_is() -> None:
    async with fake_pulsar() as broker, client(broker.url) as made:
        fake, txns = FakeCoordinators(broker), made.transactions()
        names = [await txns.new(A_WEEK) for _ in range(4)]
        assert names == [TxnId(0, 1), TxnId(1, 2), TxnId(0, 3), TxnId(1, 4)]
        assert fake.ttls == [A_WEEK] * 4
        assert fake.connected == [0, 1], "each is connected to once"
        await txns.add(names[1], [T, f"{T}-partition-1"])
        await txns.end(names[1], commit=True)
        await txns.end(names[2], commit=False)
        await txns.end_on_partition(names[2], T, commit=False)
        assert fake.added == [(names[1], [T, f"{T}-partition-1"])]
        assert fake.ended == [(names[1], True), (names[2], False)]
        assert fake.on_partition == [(names[2], T, False)]


async def test_requests_at_the_same_time_connect_once() -> None:
    async with fake_pulsar() as broker, client(broker.url) as made:
        fake, txns = FakeCoordinators(broker, 1), made.transactions()
        assert len(set(await asyncio.gather(*(txns.new(1000) for _ in range(50))))) == 50
        assert fake.connected == [0]


async def test_a_coordinator_that_moves_is_looked_up_again() -> None:
    async with fake_pulsar() as broker, client(broker.url) as made:
        fake, txns = FakeCoordinators(broker, 1), made.transactions()
        txn = await txns.new(1000)
        fake.errors = [pb.TransactionCoordinatorNotFound, pb.ServiceNotReady]
        await txns.add(txn, [T])
        assert fake.connected == [0, 0, 0]
        broker.hang_up()
        await txns.end(txn, commit=True)
        assert fake.connected == [0] * 4
        assert fake.ended == [(txn, True)]


@pytest.mark.parametrize("code", ["TransactionNotFound", "InvalidTxnStatus", "AuthorizationError"])
async def test_a_final_refusal_is_said_at_once(code: str) -> None:
    async with fake_pulsar() as broker, client(broker.url) as made:
        fake, txns = FakeCoordinators(broker, 1), made.transactions()
        txn = await txns.new(1000)
        fake.errors = [pb.ServerError.Value(code)]
        with pytest.raises(PulsarError, match="as the test wants it") as refused:
            await txns.end(txn, commit=True)
        assert (refused.value.code, refused.value.retriable) == (code, False)
        assert fake.connected == [0]


async def test_a_refusal_that_passes_is_tried_again_for_a_time_only() -> None:
    async with fake_pulsar() as broker, client(broker.url, request_timeout=3.0) as made:
        fake, txns = FakeCoordinators(broker, 1), made.transactions()
        txn = await txns.new(1000)
        fake.errors = [pb.UnknownError] * 1000
        assert await fails(txns.add(txn, [T])) == "UnknownError"
        assert len(fake.errors) < 1000
        fake.errors.clear()
        await txns.add(txn, [T])


async def test_a_broker_that_does_not_answer_is_a_time_out() -> None:
    async with fake_pulsar() as broker, client(broker.url, request_timeout=3.0) as made:
        FakeCoordinators(broker, 1)
        txns = made.transactions()
        await txns.new(1000)
        broker.hook = lambda session, command: command.type == Command.NEW_TXN
        assert await fails(txns.new(1000)) == "Timeout"


@pytest.mark.parametrize("partitions", [None, 0])
async def test_a_cluster_without_coordinators_says_what_to_do(partitions: int | None) -> None:
    async with fake_pulsar() as broker, client(broker.url) as made:
        if partitions is not None:
            broker.partitions[COORDINATORS] = partitions
        with pytest.raises(PulsarError, match="transactionCoordinatorEnabled=true") as refused:
            await made.transactions().new(1000)
        assert (refused.value.code, refused.value.retriable) == ("NotAllowedError", False)


async def test_a_transaction_of_an_unknown_coordinator_is_not_taken_for_one_that_has_ended() -> None:
    async with fake_pulsar() as broker, client(broker.url, request_timeout=3.0) as made:
        fake, txns = FakeCoordinators(broker, 1), made.transactions()
        assert await fails(txns.end(TxnId(1, 7), commit=True)) == "TransactionCoordinatorNotFound"
        broker.partitions[COORDINATORS] = 2
        await txns.end(TxnId(1, 7), commit=True)
        assert fake.ended == [(TxnId(1, 7), True)]


# --- a real Pulsar


def batch(values: list[bytes]) -> bytes:
    singles = [(pb.SingleMessageMetadata(payload_size=len(value)).SerializeToString(), value) for value in values]
    return b"".join(len(single).to_bytes(4, "big") + single + value for single, value in singles)


@dataclass
class Partition:
    """A topic with a producer of batches, one of fences, and a reader that sees what readers may see."""

    client: Client
    admin: PulsarAdmin
    topic: str
    data: Producer
    fences: Producer
    seen: list[Entry] = field(default_factory=list)
    sequence: int = 0
    fence: int = 0

    async def send(self, count: int, txn: TxnId | None = None) -> Position:
        """A batch in one plain SEND, whose metadata alone names the transaction."""
        made = pb.MessageMetadata(
            producer_name=self.data.name,
            sequence_id=self.sequence,
            publish_time=1,
            num_messages_in_batch=count,
            highest_sequence_id=self.sequence + count - 1,
        )
        if txn is not None:
            made.txnid_most_bits, made.txnid_least_bits = txn
        first, self.sequence = self.sequence, self.sequence + count
        return await self.data.send(
            made.SerializeToString(),
            batch([b"%d" % (first + number) for number in range(count)]),
            sequence_id=first,
            highest_sequence_id=first + count - 1,
            num_messages=count,
        )

    async def hold(self, txn: TxnId) -> Position:
        """The fence: an entry that is sent in the transaction, a marker that no consumer sees."""
        made = pb.MessageMetadata(
            producer_name=self.fences.name, sequence_id=self.fence, publish_time=1, marker_type=77
        )
        made.txnid_most_bits, made.txnid_least_bits = txn
        self.fence += 1
        return await self.fences.send(made.SerializeToString(), b"", sequence_id=self.fence - 1, txn=txn)

    @property
    def indexes(self) -> list[tuple[int, int]]:
        """Index of the last message and number of messages of each entry that came."""
        return [(entry.index if entry.index is not None else -1, entry.num_messages) for entry in self.seen]

    async def held_back(self, position: Position) -> bool:
        """Whether readers are not given the entry now."""
        reader = await self.client.open_reader(self.topic, EARLIEST, permits=1, on_entry=lambda _: None)
        last = await reader.last_position()
        await reader.close()
        return last < position

    async def all(self) -> list[tuple[int, int]]:
        """What a reader from the start gets, up to the entry that is written last of all, which is left out."""
        end = await self.send(1)
        seen: list[Entry] = []
        reader = await self.client.open_reader(self.topic, EARLIEST, permits=1000, on_entry=seen.append)
        await until(lambda: seen and seen[-1].position == end)
        await reader.close()
        return [(entry.index if entry.index is not None else -1, entry.num_messages) for entry in seen[:-1]]


@contextlib.asynccontextmanager
async def partition(pulsar: Pulsar) -> AsyncIterator[Partition]:
    async with (
        PulsarAdmin(pulsar.admin_url, timeout=60) as admin,
        client(pulsar.service_url, request_timeout=60.0) as made,
    ):
        topic = pulsar.topic()
        await admin.create_plain(topic, {})
        await admin.set_deduplication(topic, True)
        await until(lambda: admin.get_deduplication(topic, applied=True))
        data = await made.open_producer(topic, name="data")
        fences = await made.open_producer(topic, name="fences", lane="fences")

        async def recovered() -> bool:
            """Whether the broker knows the topic's transactions. Under load that may take longer than a fence waits."""
            try:
                return (await admin.transaction_buffer(topic))["state"] in RECOVERED
            except PulsarError:
                return False  # it closes a topic where it cannot find them out, and the producers load that again

        await until(recovered)
        made_partition = Partition(made, admin, topic, data, fences)
        await made.open_reader(topic, EARLIEST, permits=1000, on_entry=made_partition.seen.append)
        yield made_partition


async def test_a_batch_behind_a_fence_is_hidden_until_the_commit_and_counts_all_its_messages(pulsar: Pulsar) -> None:
    async with partition(pulsar) as log:
        txns = log.client.transactions()
        await log.send(2)
        await until(lambda: log.seen)
        txn = await txns.new(A_WEEK)
        await txns.add(txn, [log.topic])
        fence = await log.hold(txn)
        held = await log.send(5, txn)
        plain = await log.send(3)
        assert (held, plain) == (Position(fence.ledger, fence.entry + 1), Position(fence.ledger, fence.entry + 2))
        # A broker tells each index by REST at once: 0-1, the fence 2, 3-7, 8-10.
        assert (await log.admin.entry_head(log.topic, *held)).index == 7
        assert (await log.admin.entry_head(log.topic, *plain)).index == 10
        buffer = await log.admin.transaction_buffer(log.topic)
        assert buffer["ongoingTxnSize"] == 1
        assert log.indexes == [(1, 2)], "nobody reads past the fence, plain entries included"
        await txns.end(txn, commit=True)
        await until(lambda: len(log.seen) == 3)
        assert log.indexes == [(1, 2), (7, 5), (10, 3)], "the fence and the broker's own marker are not handed out"
        assert await log.all() == [(1, 2), (7, 5), (10, 3)]
        assert (await log.admin.transaction_buffer(log.topic))["ongoingTxnSize"] == 0
        # END_TXN cannot be asked twice.
        assert await fails(txns.end(txn, commit=True)) == "TransactionNotFound"
        assert await fails(txns.end(txn, commit=False)) == "TransactionNotFound"
        assert await fails(txns.add(txn, [log.topic])) in {"TransactionNotFound", "InvalidTxnStatus"}


async def test_an_abort_hides_the_batches_for_good_after_an_unload_too(pulsar: Pulsar) -> None:
    async with partition(pulsar) as log:
        txns = log.client.transactions()
        txn = await txns.new(A_WEEK)
        await txns.add(txn, [log.topic])
        await log.hold(txn)
        await log.send(5, txn)
        await log.admin.unload(log.topic)
        await log.send(4, txn)
        last = await log.send(1)
        assert (await log.admin.entry_head(log.topic, *last)).index == 10
        assert log.indexes == []
        await txns.end(txn, commit=False)
        await until(lambda: log.seen)
        assert log.indexes == [(10, 1)]
        late = await log.send(2, txn)
        assert (await log.admin.entry_head(log.topic, *late)).index == 13, "the marker of the abort took 11"
        assert await log.all() == [(10, 1)], "a late write of an aborted transaction stays hidden, and blocks nothing"
        await log.admin.unload(log.topic)
        assert await log.all() == [(10, 1), (14, 1)]


async def test_a_transaction_on_several_partitions_ends_on_all_of_them(pulsar: Pulsar) -> None:
    async with partition(pulsar) as first, partition(pulsar) as second:
        txns = first.client.transactions()
        txn = await txns.new(A_WEEK)
        await txns.add(txn, [first.topic, second.topic])
        await txns.add(txn, [first.topic])  # again, as after a lost answer
        for log in (first, second):
            await log.hold(txn)
            await log.send(3, txn)
        await first.hold(txn)  # again, too
        assert first.indexes == second.indexes == []
        await txns.end(txn, commit=True)
        await until(lambda: first.seen and second.seen)
        assert first.indexes == second.indexes == [(3, 3)]


async def test_a_transaction_without_entries_ends(pulsar: Pulsar) -> None:
    """A spare one that is not needed, and a partition that was added and never written to."""
    async with partition(pulsar) as log:
        txns = log.client.transactions()
        spare = await txns.new(A_WEEK)
        await txns.end(spare, commit=False)
        txn = await txns.new(A_WEEK)
        await txns.add(txn, [log.topic])
        await txns.end(txn, commit=True)
        await log.send(1)
        await until(lambda: log.seen)


async def test_pulsar_aborts_what_is_open_for_longer_than_its_time_to_live(pulsar: Pulsar) -> None:
    async with partition(pulsar) as log:
        txns = log.client.transactions()

        async def begun() -> TxnId | None:
            """None where it was over before the partition was added, as where this process stands still for so long."""
            txn = await txns.new(2000)
            try:
                await txns.add(txn, [log.topic])
            except PulsarError as error:
                if error.code not in {"TransactionNotFound", "InvalidTxnStatus"}:
                    raise
                return None
            return txn

        txn = await until(begun)
        assert txn is not None
        await log.hold(txn)
        await log.send(5, txn)
        await log.send(1)
        await until(lambda: log.seen)
        assert log.indexes in ([(6, 1)], [(7, 1)]), "the marker of the abort lies behind it, or before it"

        async def over() -> bool:
            return await fails(txns.end(txn, commit=True)) == "TransactionNotFound"

        await until(over)


async def test_a_coordinator_whose_topic_is_unloaded_goes_on(pulsar: Pulsar) -> None:
    async with partition(pulsar) as log:
        txns = log.client.transactions()
        txn = await txns.new(A_WEEK)
        await txns.add(txn, [log.topic])
        await log.hold(txn)
        await log.send(2, txn)
        await log.admin.unload(f"{COORDINATORS}-partition-{txn.most}")
        await txns.end(txn, commit=True)
        await until(lambda: log.seen)
        assert log.indexes == [(2, 2)]


@pytest.mark.parametrize("committed", [False, True])
async def test_a_fence_behind_the_end_of_its_transaction(pulsar: Pulsar, committed: bool) -> None:
    """It holds readers back where that was a commit, until the transaction ends on the partition once more.

    To end it as a commit is right for both: what was aborted stays hidden.
    """
    async with partition(pulsar) as log:
        txns = log.client.transactions()
        txn = await txns.new(A_WEEK)
        await txns.add(txn, [log.topic])
        await log.hold(txn)
        await log.send(2, txn)
        await txns.end(txn, commit=committed)
        shown = [(2, 2)] if committed else []
        await until(lambda: log.indexes == shown)
        await log.hold(txn)
        last = await log.send(3)
        assert (await log.admin.transaction_buffer(log.topic))["ongoingTxnSize"] == int(committed)
        if committed:
            assert await log.held_back(last)
        await txns.end_on_partition(txn, log.topic, commit=True)
        await until(lambda: log.seen and log.seen[-1].position == last)
        assert (await log.admin.transaction_buffer(log.topic))["ongoingTxnSize"] == 0
        shown.append((7, 3))
        assert log.indexes == shown
        assert await log.all() == shown
        await log.admin.unload(log.topic)
        assert await log.all() == [*shown, (9, 1)]
        await txns.end_on_partition(txn, log.topic, commit=True)
        assert await log.all() == [*shown, (9, 1), (10, 1)], "where nothing is open this changes nothing"
