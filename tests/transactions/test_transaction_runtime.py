"""The transaction coordinator over storage that does what the test says, in simulated time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.examples import ALL_EXAMPLES
from support.faulty_engine import FaultyLog, FaultyStore
from support.waiting import until

from kop import background
from kop.cluster.producer_ids import ProducerIds
from kop.coordination import ownership
from kop.errors import BackendError, KopError, PeerError
from kop.errors import ErrorCode as E
from kop.records.batch import build, read_header
from kop.records.record import Record
from kop.storage.base import EndedTransaction
from kop.transactions.machine import LAST_EPOCH, Transaction
from kop.transactions.runtime import CONFIRM_MS, ProducerIdentity, TransactionCoordinator, VerifiedPartitions
from kop.transactions.settings import TransactionSettings
from kop.wire.transaction_state import (
    TransactionStatus,
    TransactionValue,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)

ORDERS, BILLS = ("orders", 0), ("bills", 1)
MINUTE = 60_000


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.001)


class WrittenMarkers:
    """Notes the markers that it is to write; fails, or waits, as the test says."""

    def __init__(self) -> None:
        self.written: list[EndedTransaction] = []
        self.taken_over_at: list[float] = []
        self.decided: list[float] = []
        """Of each try."""
        self.failures = 0
        self.open = asyncio.Event()
        self.open.set()

    async def write(self, ended: EndedTransaction, taken_over_at: float, decided: float) -> None:
        self.decided.append(decided)
        await self.open.wait()
        if self.failures:
            self.failures -= 1
            raise BackendError("the partition is away")
        self.written.append(ended)
        self.taken_over_at.append(taken_over_at)


class PreparedPartitions:
    """A `TransactionStorage` that notes what is asked of it; fails, or waits, as the test says."""

    refusal: str | None = None

    def __init__(self) -> None:
        self.begun = 0
        self.added: list[tuple[bytes, set[tuple[str, int]]]] = []
        self.confirmed: list[tuple[bytes, set[tuple[str, int]]]] = []
        self.error: KopError | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def begin(self, timeout_ms: int) -> bytes:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.begun += 1
        return b"transaction %d" % self.begun

    async def add(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.added.append((storage_transaction, set(partitions)))

    async def confirm(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        await self.open.wait()
        self.confirmed.append((storage_transaction, set(partitions)))
        if self.error is not None:
            raise self.error

    def stop_writes(self, storage_transaction: bytes) -> None:
        raise AssertionError("markers end a transaction, the coordinator does not")

    async def nobody_else_writes(self, ended: EndedTransaction) -> bool:
        raise AssertionError("markers wait for others, the coordinator does not")

    async def end(self, ended: EndedTransaction) -> None:
        raise AssertionError("markers end a transaction, the coordinator does not")


class World:
    """Storage with one partition of `__transactions`, markers, and a coordinator with its clock."""

    def __init__(self) -> None:
        self.store = FaultyStore()
        self.now = 1_700_000_000_000
        self.wall_ahead = 0
        """Milliseconds by which the wall clock was set forward; negative: back."""
        self.markers = WrittenMarkers()
        self.storage = PreparedPartitions()
        self.settings = TransactionSettings(transaction_state_log_num_partitions=1)
        self.coordinator: TransactionCoordinator

    async def start(self) -> None:
        engine = await self.store.open()
        engine.transactions = self.storage
        self.coordinator = TransactionCoordinator(
            engine,
            ProducerIds(engine),
            self.markers,
            self.settings,
            clock=lambda: self.now,
            wall=lambda: self.now + self.wall_ahead,
        )
        await self.coordinator.start()

    async def stop(self) -> None:
        await self.coordinator.stop()
        await self.store.engine.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def init(self, name: str = "tx", *, timeout: int = MINUTE, **values: Any) -> ProducerIdentity:
        return await self.coordinator.init_producer_id(name, timeout, **values)

    async def begun(self, *partitions: tuple[str, int], version: int = 2) -> ProducerIdentity:
        """A producer with an open transaction."""
        who = await self.init()
        assert not who.error
        assert await self.add(who, *(partitions or (ORDERS,)), version=version) == E.NONE
        return who

    async def exhausted(self) -> ProducerIdentity:
        """A producer in the last epoch that a client is given, after a restart."""
        who = await self.init()
        key = encode_transaction_key("tx")
        last = Transaction(who.producer_id, LAST_EPOCH - 1, MINUTE, client_version=2)
        written: list[E] = []
        self.coordinator.state_log.write(0, [(key, encode_transaction_value(last.value))], written.append)
        await until(lambda: written == [E.NONE])
        await self.restart()
        return ProducerIdentity(E.NONE, who.producer_id, LAST_EPOCH - 1)

    async def add(self, who: ProducerIdentity, *partitions: tuple[str, int], version: int = 2, name: str = "tx") -> E:
        return await self.coordinator.add_partitions(name, who.producer_id, who.producer_epoch, partitions, version)

    async def end(self, who: ProducerIdentity, *, commit: bool = True, version: int = 2) -> ProducerIdentity:
        return await self.coordinator.end(
            "tx", who.producer_id, who.producer_epoch, commit=commit, client_version=version
        )

    @property
    def transaction(self) -> Transaction:
        transaction = dict(self.coordinator.all()).get("tx")
        assert transaction is not None
        return transaction

    @property
    def newest_record(self) -> TransactionValue:
        """What the topic says of the transactional id."""
        key, value = self.store.log("__transactions").records()[-1]
        assert key is not None
        assert value is not None
        assert decode_transaction_key(key) == "tx"
        return decode_transaction_value(value)

    async def reaches(self, status: TransactionStatus) -> None:
        await until(lambda: self.transaction.status is status)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_ends_in_markers_and_a_bumped_epoch(commit: bool) -> None:
    async with world() as w:
        who = await w.begun(ORDERS, BILLS)
        after = await w.end(who, commit=commit)
        assert after == ProducerIdentity(E.NONE, who.producer_id, who.producer_epoch + 1)
        await w.reaches(TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT)
        assert w.markers.written == [
            EndedTransaction(
                "tx", who.producer_id, who.producer_epoch + 1, frozenset({ORDERS, BILLS}), commit, 2, b"transaction 1"
            )
        ]
        assert await w.end(who, commit=commit) == after  # the answer was lost
        assert await w.add(after, BILLS) == E.NONE


async def test_under_version_1_the_epoch_stays() -> None:
    async with world() as w:
        who = await w.begun(version=1)
        assert await w.end(who, version=1) == who
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert w.markers.written[0].producer_epoch == who.producer_epoch
        assert await w.add(who, BILLS, version=1) == E.NONE


async def test_an_end_is_answered_before_its_markers_and_nothing_passes_it() -> None:
    async with world() as w:
        who = await w.begun()
        w.markers.open.clear()
        after = await w.end(who)
        assert not after.error
        assert await w.add(after, ORDERS) == E.CONCURRENT_TRANSACTIONS
        assert (await w.end(who)).error == E.CONCURRENT_TRANSACTIONS
        assert (await w.init()).error == E.CONCURRENT_TRANSACTIONS
        w.markers.open.set()
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert await w.add(after, ORDERS) == E.NONE


async def test_the_next_transaction_waits_for_the_end_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kop.transactions.runtime.CONCURRENT_SECONDS", 60.0)
    async with world() as w:
        who = await w.begun(version=1)
        w.markers.open.clear()
        assert await w.end(who, version=1) == who
        adding = [asyncio.ensure_future(w.add(who, topics, version=1)) for topics in (ORDERS, BILLS)]
        await asyncio.sleep(0)
        w.markers.open.set()
        assert await asyncio.gather(*adding) == [E.NONE, E.NONE]
        assert w.markers.written[0].partitions


async def test_an_end_that_comes_in_the_same_turn_as_partitions_is_not_written_over() -> None:
    async with world() as w:
        who = await w.begun(version=1)
        added, ended = await asyncio.gather(w.add(who, BILLS, version=1), w.end(who, version=1))
        assert (added, ended) == (E.CONCURRENT_TRANSACTIONS, who)
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert w.markers.written[0].commit


async def test_what_is_still_being_prepared_comes_before_the_end() -> None:
    """Behind the end it would open the transaction again, on a partition of which the client was told nothing."""
    async with world() as w:
        who = await w.begun(version=1)
        w.storage.open.clear()
        adding = asyncio.ensure_future(w.add(who, BILLS, version=1))
        await until(lambda: BILLS in w.transaction.partitions and not w.transaction.pending)
        assert await w.end(who, version=1) == who
        await asyncio.sleep(0)
        assert not w.markers.written
        w.storage.open.set()
        assert await adding == E.CONCURRENT_TRANSACTIONS
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert w.markers.written[0].partitions == {ORDERS, BILLS}


async def test_markers_are_tried_until_they_are_written() -> None:
    async with world() as w:
        who = await w.begun()
        w.markers.failures = 3
        assert not (await w.end(who)).error
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert len(w.markers.written) == 1
        assert w.markers.decided == [w.markers.decided[0]] * 4


@pytest.mark.parametrize("leads", [True, False])
async def test_markers_are_written_by_the_broker_that_surely_coordinates(leads: bool) -> None:
    """Another one may have ended the transaction, and the producer's next one may bear the same epoch."""
    async with world() as w:
        who = await w.begun(version=1)
        log = w.store.log("__transactions")
        log.doubtful = log.no_answer = True
        assert await w.end(who, version=1) == who
        await asyncio.sleep(0.01)  # what must not be written has no event
        assert w.markers.written == []
        if leads:
            log.no_answer = False
            await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        else:
            log.lose_lead(keep=True)
            log.doubtful = False
            await asyncio.sleep(0.01)  # as above
        assert bool(w.markers.written) is leads
        log.free_lead()


async def test_a_decided_end_is_carried_through_after_a_restart() -> None:
    async with world() as w:
        who = await w.begun()
        w.markers.open.clear()
        await w.end(who, commit=False)
        await w.restart()
        assert w.markers.written == []
        w.markers.open.set()
        await w.reaches(TransactionStatus.COMPLETE_ABORT)
        assert [(ended.producer_epoch, ended.commit) for ended in w.markers.written] == [(1, False)]


async def test_only_what_began_before_the_take_over_is_ended_as_taken_over() -> None:
    async with world() as w:
        before = time.monotonic()
        who = await w.begun(version=1)
        await w.restart()
        for _ in range(2):
            assert await w.end(who, version=1) == who
            await w.reaches(TransactionStatus.COMPLETE_COMMIT)
            assert await w.add(who, BILLS, version=1) == E.NONE
        assert [at > -math.inf for at in w.markers.taken_over_at] == [True, False]
        assert before <= w.markers.taken_over_at[0] <= time.monotonic()


@pytest.mark.parametrize("stops", [False, True])
async def test_the_topic_says_that_a_transaction_is_complete(stops: bool) -> None:
    async with world() as w:
        await w.end(await w.begun())
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        if stops:
            await w.coordinator.stop()
        await until(lambda: w.newest_record.status is TransactionStatus.COMPLETE_COMMIT)


async def test_an_end_whose_completion_is_not_written_is_carried_out_once_more_after_a_restart() -> None:
    async with world() as w:
        who = await w.end(await w.begun())
        w.store.log("__transactions").append_error = E.KAFKA_STORAGE_ERROR
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert await w.add(who, BILLS) == E.NOT_COORDINATOR
        assert w.transaction.status is TransactionStatus.COMPLETE_COMMIT
        await w.coordinator.stop()
        assert w.newest_record.status is TransactionStatus.PREPARE_COMMIT
        await w.store.engine.close()
        await w.start()
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert [(ended.producer_epoch, ended.commit) for ended in w.markers.written] == [(1, True)] * 2
        assert w.transaction.producer_epoch == who.producer_epoch
        assert await w.add(who, BILLS) == E.NONE


async def test_a_completion_that_cannot_be_written_is_not_written_over_the_next_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kop.transactions.runtime.COMPLETE_SECONDS", 0.0)
    monkeypatch.setattr("kop.transactions.runtime.COMPLETE_AGAIN_SECONDS", 0.0)
    async with world() as w:
        who, log = await w.begun(), w.store.log("__transactions")
        who = await w.end(who)
        log.hold()
        await until(lambda: log.waiting == 1)
        log.pass_by()
        assert await w.add(who, BILLS) == E.NONE
        log.release(E.KAFKA_STORAGE_ERROR)
        assert await w.add(who, ORDERS) == E.NONE
        assert (w.newest_record.status, w.newest_record.partitions) == (TransactionStatus.ONGOING, {ORDERS, BILLS})


async def test_an_open_transaction_is_open_after_a_restart_and_times_out() -> None:
    async with world() as w:
        who = await w.begun()
        await w.restart()
        assert w.transaction.status is TransactionStatus.ONGOING
        verified = await w.coordinator.verify_partitions("tx", who.producer_id, 0, [ORDERS, BILLS])
        errors = {ORDERS: E.NONE, BILLS: E.TRANSACTION_ABORTABLE}
        assert verified == VerifiedPartitions(errors=errors, storage_transaction=b"transaction 1")
        assert w.storage.added == [(b"transaction 1", {ORDERS}), (b"transaction 1", {ORDERS})]
        w.now += MINUTE - 1
        w.coordinator.deadlines.tick()
        await asyncio.sleep(0)
        assert w.transaction.status is TransactionStatus.ONGOING
        w.now += 1
        w.coordinator.deadlines.tick()
        await w.reaches(TransactionStatus.COMPLETE_ABORT)
        assert w.coordinator.aborted == {"timeout": 1}
        assert w.transaction.producer_epoch == 1
        assert await w.add(who, BILLS) == E.PRODUCER_FENCED
        assert (await w.end(who)).error == E.INVALID_TXN_STATE  # by its epoch it is a retry, and the state is an abort
        assert (await w.init()).producer_epoch == 2


async def test_a_timeout_that_cannot_be_written_is_tried_again_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "is aborted: it is open" in record.getMessage()]

    async with world() as w:
        who = await w.begun()
        log = w.store.log("__transactions")
        log.append_error = E.KAFKA_STORAGE_ERROR
        w.now += MINUTE
        tries: list[int] = []
        for second in range(40):
            before = log.appends
            for _ in range(3):
                w.coordinator.deadlines.tick()
                for _ in range(10):
                    await asyncio.sleep(0)
            tries += [second] * (log.appends - before)
            w.now += 1000
        assert tries == [0, 1, 3, 7, 15, 25, 35]
        assert (w.transaction.status, w.transaction.producer_epoch, lines()) == (TransactionStatus.ONGOING, 0, [])
        log.append_error = None
        w.now += 10_000
        w.coordinator.deadlines.tick()
        await w.reaches(TransactionStatus.COMPLETE_ABORT)
        assert (w.transaction.producer_epoch, len(lines())) == (1, 1), "epochs do not run out while storage is away"
        assert await w.init(expected=(who.producer_id, 0)) == ProducerIdentity(E.NONE, who.producer_id, 1)


@pytest.mark.parametrize("error", [BackendError("storage reserves none"), ValueError("nobody thought of this")])
async def test_a_timeout_without_a_new_producer_id_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def refused(_: ProducerIds) -> int:
        raise error

    async with world() as w:
        who = await w.exhausted()
        assert await w.add(who, ORDERS) == E.NONE
        with monkeypatch.context() as patched:
            patched.setattr(ProducerIds, "take", refused)
            w.now += MINUTE
            w.coordinator.deadlines.tick()
            await asyncio.sleep(0)
            assert w.transaction.status is TransactionStatus.ONGOING
        w.now += 1000
        w.coordinator.deadlines.tick()
        await w.reaches(TransactionStatus.COMPLETE_ABORT)


async def test_a_timeout_that_waited_for_a_producer_id_does_nothing_once_the_lead_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another broker has ended the transaction meanwhile, and this one leads again."""
    monkeypatch.setattr(ownership, "FIRST_PAUSE_SECONDS", 0.001)
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def taken(_: ProducerIds) -> int:
        waits.set()
        await goes_on.wait()
        return 4711

    async with world() as w:
        who = await w.exhausted()
        assert await w.add(who, ORDERS) == E.NONE
        monkeypatch.setattr(ProducerIds, "take", taken)
        w.now += MINUTE
        w.coordinator.deadlines.tick()
        await waits.wait()
        log = w.store.log("__transactions")
        log.lose_lead(keep=True)
        await until(lambda: w.coordinator.refusal_of("tx") == E.NOT_COORDINATOR)
        successor = Transaction(4712, 0, MINUTE, TransactionStatus.COMPLETE_ABORT, client_version=2)
        await another_writes(log, "tx", successor)
        log.free_lead()
        await until(lambda: not w.coordinator.refusal_of("tx"))
        goes_on.set()
        for _ in range(10):
            await asyncio.sleep(0)  # what must not be written has no event
        assert w.transaction.producer_id == w.newest_record.producer_id == 4712


async def another_writes(log: FaultyLog, name: str, transaction: Transaction) -> None:
    """The broker that coordinates the id meanwhile writes its record."""
    batch = build([Record(0, 0, encode_transaction_key(name), encode_transaction_value(transaction.value))])
    await log.append(batch, read_header(batch), now_ms=0)


@pytest.mark.parametrize("step", [60 * MINUTE, -60 * MINUTE])
@pytest.mark.parametrize("when", ["before it begins", "while it is open", "before a restart"])
async def test_a_step_of_the_wall_clock_moves_no_timeout(step: int, when: str) -> None:
    async with world() as w:
        if when == "before it begins":
            w.wall_ahead = step
        who = await w.begun()
        w.now += MINUTE // 2
        w.coordinator.deadlines.tick()
        if when == "while it is open":
            w.wall_ahead = step
            assert await w.add(who, BILLS) == E.NONE
        elif when == "before a restart":
            w.wall_ahead = -abs(step)  # what began in the future begins when it is loaded
            await w.restart()
            w.now += MINUTE // 2
            w.coordinator.deadlines.tick()
        w.now += MINUTE // 2 - 1
        w.coordinator.deadlines.tick()
        await asyncio.sleep(0)
        assert w.transaction.status is TransactionStatus.ONGOING
        w.now += 1
        w.coordinator.deadlines.tick()
        await w.reaches(TransactionStatus.COMPLETE_ABORT)
        assert w.coordinator.aborted == {"timeout": 1}


@pytest.mark.parametrize("step", [60 * MINUTE, -60 * MINUTE])
async def test_a_step_of_the_wall_clock_does_not_change_what_storage_confirms(step: int) -> None:
    async with world() as w:
        for waits in (False, True):
            who = await w.begun()
            w.wall_ahead += step
            w.now += CONFIRM_MS if waits else 0
            assert not (await w.end(who)).error
            assert bool(w.storage.confirmed) is waits
            await w.reaches(TransactionStatus.COMPLETE_COMMIT)


async def test_the_log_tells_once_of_a_transaction_that_is_open_for_long(caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "holds readers back" in record.getMessage()]

    async with world() as w:
        for expected in (1, 2):  # once for each transaction
            who = await w.init(timeout=10 * MINUTE)
            assert await w.add(who, ORDERS) == E.NONE
            assert w.coordinator.open_for() == [0]
            for _ in range(9):
                w.now += MINUTE
                assert w.coordinator.snapshot().oldest_open_ms == w.coordinator.open_for()[0]
                w.coordinator.deadlines.tick()
                assert await w.add(who, BILLS) == E.NONE
            assert len(lines()) == expected
            assert (await w.end(who, commit=False)).error == E.NONE
            await w.reaches(TransactionStatus.COMPLETE_ABORT)
        assert "'tx', producer id" in lines()[0]
        assert "is open for 300 s and holds readers back: bills-1, orders-0; " in lines()[0]
        who = await w.begun()
        w.now += MINUTE
        w.coordinator.deadlines.tick()
        await w.reaches(TransactionStatus.COMPLETE_ABORT)
        assert len(lines()) == 2, "it timed out, which has a line of its own"
        assert w.coordinator.open_for() == []
        assert sum(w.coordinator.ends.counts) == 3


async def test_a_new_instance_fences_the_old_one() -> None:
    async with world() as w:
        old = await w.begun()
        assert (await w.init()).error == E.CONCURRENT_TRANSACTIONS
        await w.reaches(TransactionStatus.COMPLETE_ABORT)
        new = await w.init()
        assert new == ProducerIdentity(E.NONE, old.producer_id, old.producer_epoch + 2)
        assert await w.add(old, BILLS) == E.PRODUCER_FENCED
        assert (await w.end(old)).error == E.PRODUCER_FENCED
        assert w.coordinator.aborted == {"new_instance": 1}


async def test_a_record_that_cannot_be_written_changes_nothing() -> None:
    async with world() as w:
        who = await w.begun()
        log = w.store.log("__transactions")
        log.append_error = E.KAFKA_STORAGE_ERROR
        assert await w.add(who, BILLS) == E.NOT_COORDINATOR
        assert (await w.end(who)).error == E.NOT_COORDINATOR
        assert (w.transaction.status, w.transaction.partitions) == (TransactionStatus.ONGOING, {ORDERS})
        assert (await w.init()).error == E.NOT_COORDINATOR
        assert (await w.init("other")).error == E.NOT_COORDINATOR
        assert "other" not in dict(w.coordinator.all())
        log.append_error = None
        assert not (await w.end(who, commit=False)).error, "the fence that failed has fenced nobody"
        await w.reaches(TransactionStatus.COMPLETE_ABORT)
        assert w.transaction.producer_epoch == 1


async def test_partitions_that_are_added_at_once_are_all_in() -> None:
    async with world() as w:
        who = await w.init()
        added = await asyncio.gather(*(w.add(who, ("t", index)) for index in range(20)))
        assert set(added) == {E.NONE}
        assert w.transaction.partitions == {("t", index) for index in range(20)}


async def test_epochs_end_in_a_new_producer_id() -> None:
    async with world() as w:
        last = await w.exhausted()
        assert await w.add(last, ORDERS) == E.NONE
        after = await w.end(last)
        assert (after.error, after.producer_epoch) == (E.NONE, 0)
        assert after.producer_id != last.producer_id
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert w.markers.written[0][1:3] == (last.producer_id, LAST_EPOCH)
        assert await w.end(last) == after
        assert await w.add(after, ORDERS) == E.NONE


async def test_ids_that_nobody_uses_expire() -> None:
    async with world() as w:
        who = await w.init()
        w.now += w.settings.transactional_id_expiration_ms - 1
        await w.coordinator.expire()
        assert "tx" in dict(w.coordinator.all())
        w.now += 1
        await w.coordinator.expire()
        await until(lambda: "tx" not in dict(w.coordinator.all()))
        assert await w.add(who, ORDERS) == E.INVALID_PRODUCER_ID_MAPPING
        await w.restart()
        assert w.coordinator.all() == []
        assert (await w.init()).producer_epoch == 0


async def test_a_timeout_beyond_the_limit_makes_no_topic() -> None:
    async with world() as w:
        for timeout in (0, -1, w.settings.transaction_max_timeout_ms + 1):
            assert (await w.init(timeout=timeout)).error == E.INVALID_TRANSACTION_TIMEOUT
        assert w.store.engine.topics.get("__transactions") is None
        assert not (await w.init()).error


async def test_open_transactions_do_not_expire() -> None:
    async with world() as w:
        await w.begun()
        w.now += 2 * w.settings.transactional_id_expiration_ms
        await w.coordinator.expire()
        assert w.transaction.status is TransactionStatus.ONGOING


@pytest.mark.parametrize(
    ("name", "timeout", "error"),
    [
        ("", MINUTE, E.INVALID_REQUEST),
        ("tx", 0, E.INVALID_TRANSACTION_TIMEOUT),
        ("tx", -1, E.INVALID_TRANSACTION_TIMEOUT),
        ("tx", 900_001, E.INVALID_TRANSACTION_TIMEOUT),
        ("x" * 40_000, MINUTE, E.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_bad_requests(name: str, timeout: int, error: E) -> None:
    async with world() as w:
        assert (await w.init(name, timeout=timeout)).error == error
        assert w.coordinator.all() == []


async def test_a_coordinator_that_may_have_been_replaced_asks_before_it_says_that_a_transaction_is_open() -> None:
    """The broker that replaced it may have ended the transaction: records that go into it are lost."""
    async with world() as w:
        who, log = await w.begun(), w.store.log("__transactions")
        log.doubtful = True
        verified = await w.coordinator.verify_partitions("tx", who.producer_id, 0, [ORDERS])
        assert (verified.error, verified.errors, log.doubtful) == (E.NONE, {ORDERS: E.NONE}, False)
        log.doubtful = log.no_answer = True
        verified = await w.coordinator.verify_partitions("tx", who.producer_id, 0, [ORDERS])
        assert verified == VerifiedPartitions(E.COORDINATOR_LOAD_IN_PROGRESS)


async def test_a_transactional_id_is_not_described_while_it_is_in_doubt_who_coordinates_it() -> None:
    async with world() as w:
        await w.begun()
        log = w.store.log("__transactions")
        log.doubtful = log.no_answer = True
        for name in ("tx", "unknown"):
            assert await w.coordinator.described(name) == (None, E.COORDINATOR_LOAD_IN_PROGRESS)
        log.no_answer = False
        assert await w.coordinator.described("tx") == (w.transaction, E.NONE)
        assert await w.coordinator.described("unknown") == (None, E.TRANSACTIONAL_ID_NOT_FOUND)


async def test_unknown_ids() -> None:
    async with world() as w:
        nobody = ProducerIdentity(E.NONE, 1, 0)
        assert await w.add(nobody, ORDERS) == E.NOT_COORDINATOR
        assert await w.coordinator.ready()
        assert await w.add(nobody, ORDERS) == E.INVALID_PRODUCER_ID_MAPPING
        assert (await w.end(nobody)).error == E.INVALID_PRODUCER_ID_MAPPING
        verified = await w.coordinator.verify_partitions("tx", 1, 0, [ORDERS])
        assert verified.error == E.INVALID_PRODUCER_ID_MAPPING
        assert await w.add(nobody, ORDERS, name="") == E.INVALID_REQUEST


async def test_the_topic_holds_kafkas_records() -> None:
    async with world() as w:
        who = await w.begun()
        newest = await w.coordinator.state_log.read(0)
        assert [decode_transaction_key(key) for key in newest] == ["tx"]
        (raw,) = newest.values()
        assert raw is not None
        value = decode_transaction_value(raw)
        assert (value.producer_id, value.status, value.partitions) == (
            who.producer_id, TransactionStatus.ONGOING, {ORDERS},
        )  # fmt: skip
        assert w.coordinator.coordinator_of("tx") == (w.coordinator.state_log.topic_id, 0)


async def test_the_first_transactional_id_makes_the_topic() -> None:
    async with world() as w:
        assert w.store.engine.topics.get("__transactions") is None
        assert w.coordinator.waiting_for is None
        assert (await w.init()).error == E.NONE
        assert w.store.engine.topics.get("__transactions") is not None


async def test_nothing_is_served_after_the_end() -> None:
    w = World()
    await w.start()
    assert not (await w.init()).error
    await w.coordinator.stop()
    assert (await w.init()).error == E.COORDINATOR_NOT_AVAILABLE
    await w.store.engine.close()


async def test_storage_prepares_partitions_before_a_producer_may_write_to_them() -> None:
    async with world() as w:
        who = await w.init()
        w.storage.open.clear()
        adding = asyncio.create_task(w.add(who, ORDERS))
        further = asyncio.create_task(w.add(who, BILLS))
        await until(lambda: w.transaction.pending)
        assert (await w.end(who)).error == E.CONCURRENT_TRANSACTIONS
        w.storage.open.set()
        assert await adding == E.NONE
        assert await further == E.NONE
        assert w.storage.added == [(b"transaction 1", {ORDERS}), (b"transaction 1", {BILLS})]
        assert (await w.end(who)).error == E.NONE
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert [ended.storage_transaction for ended in w.markers.written] == [b"transaction 1"]
        assert w.transaction.storage_transaction == b""


async def test_partitions_that_storage_did_not_prepare_are_prepared_when_they_are_added_again() -> None:
    async with world() as w:
        who = await w.begun(ORDERS)
        w.storage.error = BackendError("Pulsar is away")
        assert await w.add(who, BILLS) == E.NOT_COORDINATOR
        assert await w.add(who, BILLS) == E.NOT_COORDINATOR
        w.storage.error = None
        assert await w.add(who, BILLS) == E.NONE
        assert w.storage.added[-1] == (b"transaction 1", {BILLS})
        assert await w.add(who, BILLS) == E.NONE
        assert len(w.storage.added) == 2


@pytest.mark.parametrize("adds", [True, False])
async def test_the_partitions_of_a_topic_that_was_made_again_are_prepared_again(adds: bool) -> None:
    """Nothing of what storage prepared for the topic before is in the new one."""
    async with world() as w:
        topics = w.store.engine.topics
        orders, _ = await topics.create("orders", 1, {}), await topics.create("bills", 2, {})
        who = await w.begun(ORDERS, BILLS)
        await topics.delete(orders.topic_id)
        await topics.create("orders", 1, {})
        if adds:
            assert await w.add(who, ORDERS, BILLS) == E.NONE
        else:
            verified = await w.coordinator.verify_partitions("tx", who.producer_id, who.producer_epoch, [ORDERS, BILLS])
            assert verified.errors == {ORDERS: E.NONE, BILLS: E.NONE}
            assert verified.topics == {
                name: topic.topic_id for name in ("orders", "bills") if (topic := topics.get(name))
            }
        assert w.storage.added == [(b"transaction 1", {ORDERS, BILLS}), (b"transaction 1", {ORDERS})]


async def test_a_transaction_that_storage_cannot_begin_is_not_open() -> None:
    async with world() as w:
        who = await w.init()
        w.storage.error = BackendError("Pulsar is away")
        assert await w.add(who, ORDERS) == E.NOT_COORDINATOR
        assert w.transaction.status is TransactionStatus.EMPTY
        assert not w.transaction.pending
        w.storage.error = None
        assert await w.add(who, ORDERS) == E.NONE


async def test_partitions_whose_record_was_written_as_the_lead_was_lost_are_not_prepared() -> None:
    """The broker that coordinates now has the record, and prepares them when it is asked again."""
    async with world() as w:
        who, log = await w.init(), w.store.log("__transactions")
        log.hold()
        adding = asyncio.create_task(w.add(who, ORDERS))
        await until(lambda: log.waiting == 1)
        log.lose_lead(keep=True)
        log.release()
        assert await adding in (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS)
        assert w.storage.added == []
        log.free_lead()


async def test_a_transaction_whose_record_cannot_be_written_is_begun_once_in_storage() -> None:
    """Clients ask again every 20 to 100 ms, and storage would keep each of these transactions open for a day."""
    async with world() as w:
        who = await w.init()
        log = w.store.log("__transactions")
        log.append_error = E.NOT_ENOUGH_REPLICAS
        for _ in range(3):
            assert await w.add(who, ORDERS) == E.COORDINATOR_NOT_AVAILABLE
        log.append_error = None
        assert await w.add(who, ORDERS) == E.NONE
        assert (w.storage.begun, w.transaction.storage_transaction) == (1, b"transaction 1")
        who = await w.end(who)
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        log.append_error = E.NOT_ENOUGH_REPLICAS
        assert await w.add(who, ORDERS) == E.COORDINATOR_NOT_AVAILABLE
        log.append_error = None
        w.now += MINUTE  # it may be too old to be given to another transaction
        assert await w.add(who, ORDERS) == E.NONE
        assert (w.storage.begun, w.transaction.storage_transaction) == (3, b"transaction 3")


async def test_a_transaction_that_ended_while_storage_prepared_it_takes_no_records() -> None:
    async with world() as w:
        who = await w.begun(ORDERS)
        w.storage.open.clear()
        adding = asyncio.create_task(w.add(who, BILLS))
        await until(lambda: ("bills", 1) in w.transaction.partitions and not w.transaction.pending)
        assert (await w.init()).error == E.CONCURRENT_TRANSACTIONS  # another instance fences it
        w.storage.open.set()
        assert await adding == E.CONCURRENT_TRANSACTIONS


async def test_what_storage_has_ended_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kop.transactions.runtime.CONFIRM_MS", 0)
    async with world() as w:
        who = await w.begun(ORDERS, ("__consumer_offsets", 3))
        w.storage.error = PeerError("an operator has ended it", E.TRANSACTION_ABORTABLE)
        assert (await w.end(who)).error == E.TRANSACTION_ABORTABLE
        assert w.storage.confirmed == [(b"transaction 1", {ORDERS})]
        assert w.transaction.status is TransactionStatus.ONGOING
        assert not (await w.end(who, commit=False)).error
        await w.reaches(TransactionStatus.COMPLETE_ABORT)


async def test_nothing_passes_while_storage_confirms_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kop.transactions.runtime.CONFIRM_MS", 0)
    async with world() as w:
        who = await w.begun()
        w.storage.open.clear()
        ending = asyncio.create_task(w.end(who))
        await until(lambda: w.transaction.pending)
        assert (await w.end(who, commit=False)).error == E.CONCURRENT_TRANSACTIONS
        w.now += 2 * MINUTE
        w.coordinator.deadlines.tick()
        w.storage.open.set()
        assert not (await ending).error
        await w.reaches(TransactionStatus.COMPLETE_COMMIT)
        assert not w.coordinator.aborted


async def test_thousands_of_open_transactions() -> None:
    """They are listed, go on after a restart, and are aborted when they are too old."""
    async with world() as w:
        assert not (await w.init()).error  # there is a topic
        names = [f"tx-{number}" for number in range(10_000 if ALL_EXAMPLES else 2_500)]
        producers = await asyncio.gather(*(w.init(name) for name in names))
        added = (w.add(who, ORDERS, name=name) for who, name in zip(producers, names, strict=True))
        assert set(await asyncio.gather(*added)) == {E.NONE}
        assert len(w.coordinator.open_for()) == len(names)
        await w.restart()
        assert len(w.coordinator.open_for()) == len(names)
        assert len(w.coordinator.all()) == len(names) + 1
        w.now += 2 * MINUTE
        w.coordinator.deadlines.tick()
        await until(lambda: len(w.markers.written) == len(names))
        assert {ended.producer_id for ended in w.markers.written} == {who.producer_id for who in producers}
        assert not any(ended.commit for ended in w.markers.written)
        await until(lambda: w.coordinator.open_for() == [])
        assert w.coordinator.aborted == {"timeout": len(names)}


async def test_without_transactions_in_storage_a_transactional_id_is_refused() -> None:
    async with world() as w:
        w.storage.refusal = "Pulsar has no transaction coordinator"
        assert w.coordinator.snapshot().waiting_for == "transactions are refused: Pulsar has no transaction coordinator"
        assert (await w.init()).error == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
