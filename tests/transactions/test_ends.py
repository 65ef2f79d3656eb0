"""Ends of transactions that left something at several brokers, and verification of one that another coordinates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

import pytest
from support.waiting import until

from kop import repeats
from kop.coordination.peers import PeerAnswer
from kop.errors import ErrorCode as E
from kop.errors import KopError
from kop.storage.base import EndedTransaction
from kop.transactions import ends as module
from kop.transactions import verification
from kop.transactions.coordinators import TOPIC_IDS, TransactionCoordinators
from kop.transactions.ends import TransactionEnds
from kop.transactions.runtime import VerifiedPartitions
from kop.transactions.verification import TransactionalProducer, TransactionVerifier
from kop.wire.messages import AddPartitionsToTxnResponse, WriteTxnMarkersResponse
from kop.wire.transaction_state import STORAGE_TRANSACTION

OFFSETS = "__consumer_offsets"
TOPIC_ID = UUID(int=7)
ME = 1
BEGAN_HERE = float("-inf")
"""Instead of the time at which a transaction was taken over."""
NAME = b"name"
"""What storage calls the transaction."""


class Cluster:
    """Brokers, each of which leads the partitions with the remainder of its id."""

    broker_id = ME

    alone = False
    """Whether there can be no other broker."""

    def __init__(self, *others: int) -> None:
        self.ids = sorted({ME, *others})
        self.changed: Callable[[], None] = lambda: None

    def leader(self, topic_id: UUID, partition: int) -> int:
        return self.ids[partition % len(self.ids)]

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback


class World:
    """Notes in `done`, in order, what happened; brokers in `away` do not answer."""

    def __init__(self, *others: int) -> None:
        self.done: list[Any] = []
        self.away: set[int] = set()
        self.silent: set[int] = set()
        """Brokers that take a call and stand still, until `spoken`."""
        self.spoken = asyncio.Event()
        self.offsets_error = E.NONE
        self.refusal: E = E.NONE
        self.topic_id = TOPIC_ID
        self.cluster = Cluster(*others)
        self.peer_codes: dict[int, E] = {}
        self.codes: dict[tuple[str, int], E] = {}
        """Of single partitions, where it is another one than that of the peer."""
        self.tags: dict[int, bytes] = {}
        self.writers: bool | None = True
        """Whether others may write into the transaction; None: storage does not answer."""
        self.stopped_before: list[list[Any]] = []
        """What was in `done` each time that storage was told to write nothing more into the transaction."""
        self.asked = 0
        """How often storage was asked for that."""
        self.ends = TransactionEnds(
            self,  # type: ignore[arg-type]  # ends call these two alone of storage
            self,
            self.cluster,  # type: ignore[arg-type]  # Cluster has all that is used of a view
            self,  # type: ignore[arg-type]  # and `call` alone of peers
        )
        self.verifier = TransactionVerifier(
            TransactionCoordinators(
                self,  # type: ignore[arg-type]  # World has all that is used of a coordinator
                self.cluster,  # type: ignore[arg-type]  # and so has Cluster
                self,  # type: ignore[arg-type]  # `call` alone is used of peers
            )
        )
        self.ends.verifier = self.verifier

    # storage and groups

    async def confirm(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        raise AssertionError("it is confirmed before its end is decided")

    def stop_writes(self, storage_transaction: bytes) -> None:
        assert storage_transaction == NAME
        self.stopped_before.append(list(self.done))

    async def nobody_else_writes(self, ended: EndedTransaction) -> bool:
        assert ended.partitions <= {("t", 0)}
        self.asked += 1
        if self.writers is None:
            await asyncio.get_running_loop().create_future()
        return not self.writers

    async def end(self, ended: EndedTransaction) -> None:
        self.done.append(("records", set(ended.partitions)))

    async def end_transaction(
        self, partitions: Collection[int], producer_id: int, epoch: int, *, commit: bool, storage_transaction: bytes
    ) -> E:
        assert storage_transaction == NAME
        self.done.append(("offsets", set(partitions), commit))
        return self.offsets_error

    # the coordinator of this broker

    def coordinator_of(self, key: str) -> tuple[UUID, int]:
        return TOPIC_ID, int(key)

    def refusal_of(self, key: str) -> E:
        return E.NONE if self.cluster.leader(*self.coordinator_of(key)) == ME else E.NOT_COORDINATOR

    async def add_partitions(self, *asked: Any) -> E:
        self.done.append(("added here", asked[0]))
        return self.refusal

    async def verify_partitions(self, name: str, producer_id: int, epoch: int, partitions: Any) -> VerifiedPartitions:
        self.done.append(("verified here", name))
        return VerifiedPartitions(errors=dict.fromkeys(partitions, E.NONE))

    # other brokers

    async def call(self, broker_id: int, message: Any, tags: Mapping[int, bytes] | None = None) -> PeerAnswer:
        if broker_id in self.away:
            raise KopError("away", E.NETWORK_EXCEPTION)
        if broker_id in self.silent:
            await self.spoken.wait()
        code = self.peer_codes.get(broker_id, E.NONE)
        if message.API_KEY == 27:
            (marker,) = message.markers
            assert tags == {STORAGE_TRANSACTION: NAME}
            parts = {index for topic in marker.topics for index in topic.partition_indexes}
            self.done.append((broker_id, marker.producer_id, marker.transaction_result, parts))
            result = WriteTxnMarkersResponse.WritableTxnMarkerResult
            topic = result.WritableTxnMarkerTopicResult
            part = topic.WritableTxnMarkerPartitionResult
            rows = [part(version=2, partition_index=index, error_code=code) for index in parts]
            topics = [topic(version=2, name=OFFSETS, partitions=rows)]
            markers = [result(version=2, producer_id=marker.producer_id, topics=topics)]
            return PeerAnswer(WriteTxnMarkersResponse(version=2, markers=markers), {})
        (asked,) = message.transactions
        self.done.append((broker_id, "verified" if asked.verify_only else "added", asked.transactional_id))
        result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
        topic = result.AddPartitionsToTxnTopicResult
        part = topic.AddPartitionsToTxnPartitionResult
        topics = [
            topic(
                version=5,
                name=row.name,
                results_by_partition=[
                    part(version=5, partition_index=index, partition_error_code=self.codes.get((row.name, index), code))
                    for index in row.partitions
                ],
            )
            for row in asked.topics
        ]
        rows = [result(version=5, transactional_id=asked.transactional_id, topic_results=topics)]
        return PeerAnswer(AddPartitionsToTxnResponse(version=5, error_code=0, results_by_transaction=rows), self.tags)


def ended(*partitions: tuple[str, int]) -> EndedTransaction:
    return EndedTransaction("tx", 5, 3, frozenset(partitions), True, 2, NAME)


async def write(
    w: World, transaction: EndedTransaction, taken_over_at: float = BEGAN_HERE, decided: float | None = None
) -> None:
    """Carry the end out; it is decided now, unless the test says otherwise."""
    await w.ends.write(transaction, taken_over_at, time.monotonic() if decided is None else decided)


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.05)


async def test_alone_records_and_offsets_end_side_by_side() -> None:
    w = World()
    await write(w, ended(("t", 0), (OFFSETS, 4)))
    assert w.done == [("offsets", {4}, True), ("records", {("t", 0)})]
    assert w.stopped_before == [[]], "what waits is refused before anything ends"


async def test_other_brokers_are_told_first_and_end_the_offsets_that_they_coordinate() -> None:
    w = World(2)
    await write(w, ended(("t", 0), (OFFSETS, 3), (OFFSETS, 4)))
    assert w.done == [(2, 5, True, {3}), ("offsets", {4}, True), ("records", {("t", 0)})]


async def test_a_broker_that_is_away_delays_the_end_by_its_lease() -> None:
    w = World(2)
    w.away = {2}
    loop = asyncio.get_running_loop()
    began = loop.time()
    await write(w, ended(("t", 0)))
    assert loop.time() - began >= 0.04
    assert w.done == [("records", {("t", 0)})]


async def test_a_broker_that_is_away_is_a_warning_only_if_it_stays_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is restarted is away for each transaction that ends meanwhile."""
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.0)
    caplog.set_level("INFO", module.__name__)
    w = World(2)
    w.away = {2}
    for _ in range(5):
        await write(w, ended(("t", 0)))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    with monkeypatch.context() as stays:
        stays.setattr(repeats, "LASTS_SECONDS", 0.0)
        for _ in range(5):
            await write(w, ended(("t", 0)))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    w.away.clear()
    await write(w, ended(("t", 0)))
    w.away, before = {2}, len(caplog.records)
    await write(w, ended(("t", 0)))
    assert len(caplog.records) == before, "it was told a moment ago, and begins anew"


async def test_a_broker_that_left_delays_the_end_by_its_lease() -> None:
    w = World(2)
    w.cluster.ids = [ME]
    w.cluster.changed()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await write(w, ended(("t", 0)))
    assert loop.time() - began >= 0.04
    assert w.done == [("records", {("t", 0)})]


@pytest.mark.parametrize("others", [(), (2,), (2, 3)])
async def test_no_lease_is_waited_for_where_storage_knows_that_nobody_else_writes(
    others: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that is killed again and again would else end nothing: each one would begin to wait anew."""
    monkeypatch.setattr(module, "LEASE_SECONDS", 3600.0)
    w = World(*others, 4)
    w.writers = False
    w.away = {2}
    w.cluster.ids = [ME, *others]
    w.cluster.changed()
    async with asyncio.timeout(60):
        await write(w, ended(("t", 0), (OFFSETS, 4 * len(w.cluster.ids))), time.monotonic())
    assert w.done[-1] == ("records", {("t", 0)})
    assert w.asked == 1


@pytest.mark.parametrize("others", [(), (2,)])
async def test_a_lease_is_waited_for_where_storage_does_not_answer(others: tuple[int, ...]) -> None:
    w = World(*others)
    w.writers = None
    w.away = {2}
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(60):
        await write(w, ended(("t", 0)), time.monotonic())
    assert loop.time() - began >= 0.04
    assert w.done[-1] == ("records", {("t", 0)})


@pytest.mark.parametrize("others", [(), (2,)])
async def test_storage_is_not_asked_who_writes_where_every_broker_is_told(others: tuple[int, ...]) -> None:
    w = World(*others)
    await write(w, ended(("t", 0)))
    assert w.asked == 0


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_broker_that_stands_still_delays_the_end_by_its_lease_and_not_until_its_call_is_over(
    leaves: bool,
) -> None:
    w = World(2, 3)
    w.silent = {2}
    loop = asyncio.get_running_loop()
    began = loop.time()
    ending = loop.create_task(write(w, ended(("t", 0), (OFFSETS, 5))))
    await until(lambda: (3, 5, True, {5}) in w.done)
    if leaves:
        w.cluster.ids = [ME, 3]
        w.cluster.changed()
    async with asyncio.timeout(60):
        await ending
    assert loop.time() - began >= 0.04
    assert w.done[-1] == ("records", {("t", 0)})
    w.spoken.set()


async def test_an_end_that_is_tried_again_waits_from_its_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was verified since, whoever left meanwhile."""
    monkeypatch.setattr(module, "LEASE_SECONDS", 3600.0)
    decided = time.monotonic() - 3601
    for others in ((), (2,)):
        w = World(*others, 3)
        w.away = {2}
        w.cluster.ids = [ME, *others]
        w.cluster.changed()
        async with asyncio.timeout(60):
            await write(w, ended(("t", 0)), time.monotonic(), decided)
        assert w.done[-1] == ("records", {("t", 0)})


async def test_offsets_that_another_broker_ends_are_waited_for_beyond_all_leases() -> None:
    w = World(2)
    w.silent = {2}
    ending = asyncio.ensure_future(write(w, ended((OFFSETS, 3)), decided=time.monotonic() - 1))
    for _ in range(10):
        await asyncio.sleep(0)  # what must not be has no event
    assert not ending.done()
    w.spoken.set()
    await ending
    assert (2, 5, True, {3}) in w.done


@pytest.mark.parametrize(("others", "alone"), [((), False), ((2,), False), ((), True)])
async def test_a_transaction_that_was_taken_over_ends_once_no_lease_of_the_former_coordinator_is_good(
    others: tuple[int, ...], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may have verified it for a broker that this one does not see: it has just started, say."""
    w = World(*others)
    w.cluster.alone = alone
    if alone:
        monkeypatch.setattr(module, "LEASE_SECONDS", 3600.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(60):
        await write(w, ended(("t", 0)), time.monotonic() - 0.01)
    assert alone or loop.time() - began >= 0.03
    assert w.done[-1] == ("records", {("t", 0)})


@pytest.mark.parametrize("away", [True, False])
async def test_offsets_that_another_broker_does_not_end_are_an_error(away: bool) -> None:
    w = World(2)
    if away:
        w.away = {2}
    else:
        w.peer_codes[2] = E.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KopError):
        await write(w, ended((OFFSETS, 3)))
    assert ("records", set()) not in w.done


async def test_a_broker_that_answers_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 3600.0)
    w = World(2)
    w.peer_codes[2] = E.COORDINATOR_LOAD_IN_PROGRESS
    async with asyncio.timeout(60):
        with pytest.raises(KopError):
            await write(w, ended((OFFSETS, 3)))


async def test_offsets_that_cannot_be_written_here_are_an_error() -> None:
    w = World()
    w.offsets_error = E.NOT_COORDINATOR
    with pytest.raises(KopError):
        await write(w, ended((OFFSETS, 3)))
    w.offsets_error = E.INVALID_PRODUCER_EPOCH  # a newer transaction's offsets are pending: these are not any more
    await write(w, ended((OFFSETS, 3)))


STORED = {("t", 0): (UUID(int=1), 0)}


async def verified(w: World, name: str, *, add: bool = False, producer: int = 5) -> VerifiedPartitions:
    async with w.verifier.turn(producer):
        return await w.verifier.verify(TransactionalProducer(name, producer, 0), STORED, add=add)


async def test_what_was_verified_is_not_kept_where_no_end_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator does not reach this broker, which asks it for nothing more."""
    w = World(2)
    monkeypatch.setattr(verification, "LEASE_SECONDS", 0.0)
    for producer in range(100):
        await verified(w, "1", producer=producer)
    assert len(w.verifier) == 1


async def test_the_coordinator_is_asked_once_wherever_it_is() -> None:
    w = World(2)
    w.tags = {10_000: b"name"}
    for name, asked in (
        ("0", [("added here", "0"), ("verified here", "0")]),
        ("1", [(2, "added", "1"), (2, "verified", "1")]),
    ):
        w.done.clear()
        assert not w.verifier.holds(5, 0, STORED["t", 0])
        answer = await verified(w, name, add=True)
        assert answer.errors == {("t", 0): E.NONE}
        assert w.verifier.holds(5, 0, STORED["t", 0])
        assert not w.verifier.holds(5, 1, STORED["t", 0])
        await verified(w, name)
        assert w.done == asked
        w.verifier.forget(5)
    assert answer.storage_transaction == b"name"


@pytest.mark.parametrize("prepared", [STORED["t", 0][0], UUID(int=9), None])
async def test_what_is_prepared_of_another_topic_of_that_name_is_not_verified(prepared: UUID | None) -> None:
    """The topic was deleted and made again, and one of the two brokers has not seen it yet. Earlier versions of the
    gateway name no topic.
    """
    w = World(2)
    w.tags = {STORAGE_TRANSACTION: NAME} | ({TOPIC_IDS: prepared.bytes} if prepared is not None else {})
    same = prepared != UUID(int=9)
    answer = await verified(w, "1")
    assert answer.errors == {("t", 0): E.NONE if same else E.COORDINATOR_NOT_AVAILABLE}
    assert w.verifier.holds(5, 0, STORED["t", 0]) is same


async def test_what_another_broker_said_is_good_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(2)
    monkeypatch.setattr(verification, "LEASE_SECONDS", 0.0)
    await verified(w, "1")
    assert not w.verifier.holds(5, 0, STORED["t", 0])
    await verified(w, "1")
    assert len(w.done) == 2


@pytest.mark.parametrize("alone", [True, False])
async def test_what_this_broker_says_itself_is_good_for_a_while_where_there_can_be_others(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """Another one may take over that this broker does not see yet."""
    w = World()
    w.cluster.alone = alone
    monkeypatch.setattr(verification, "LEASE_SECONDS", 0.0)
    await verified(w, "0")
    assert w.verifier.holds(5, 0, STORED["t", 0]) is alone


async def test_the_error_of_another_coordinator_is_the_one_that_kept_it_from_adding() -> None:
    """The partitions beside the one that it does not know are OPERATION_NOT_ATTEMPTED, which clients do not retry."""
    w = World(2)
    w.codes = {("a", 0): E.OPERATION_NOT_ATTEMPTED, ("t", 0): E.UNKNOWN_TOPIC_OR_PARTITION}
    partitions = {each: (UUID(int=1), 0) for each in w.codes}
    async with w.verifier.turn(5):
        answer = await w.verifier.verify(TransactionalProducer("1", 5, 0), partitions, add=True)
    assert answer.error is E.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_coordinator_that_is_away_is_an_error() -> None:
    w = World(2)
    w.away = {2}
    assert (await verified(w, "1", add=True)).error is E.NETWORK_EXCEPTION
    assert (await verified(w, "1")).error is E.NETWORK_EXCEPTION


async def test_an_end_while_the_coordinator_is_asked_voids_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World(2)
    asked = 0
    call = w.call

    async def slow(broker_id: int, message: Any) -> PeerAnswer:
        nonlocal asked
        asked += 1
        if asked == 1:
            w.verifier.forget(5)
        else:
            w.peer_codes[2] = E.TRANSACTION_ABORTABLE
        return await call(broker_id, message)

    monkeypatch.setattr(w, "call", slow)
    answer = await verified(w, "1")
    assert (asked, answer.errors) == (2, {("t", 0): E.TRANSACTION_ABORTABLE})
    assert not w.verifier.holds(5, 0, STORED["t", 0])


async def test_what_is_known_is_asked_again_where_storage_has_lost_it() -> None:
    w = World()
    await verified(w, "0")
    async with w.verifier.turn(5):
        await w.verifier.verify(TransactionalProducer("0", 5, 0), STORED, add=False, again=True)
    assert w.done == [("verified here", "0")] * 2
    assert w.verifier.holds(5, 0, STORED["t", 0])
