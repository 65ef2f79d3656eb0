"""Kafka's table of the transaction coordinator, cell by cell, and its promises under random requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.errors import ErrorCode, InternalError
from kop.transactions.machine import (
    LAST_EPOCH,
    Decision,
    Transaction,
    add_partitions,
    completed,
    end,
    expires_at,
    fence,
    init_producer_id,
    is_long_open_after,
    times_out_after,
    verify_partitions,
)
from kop.wire.transaction_state import TransactionStatus

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = list(TransactionStatus)[:6]
NONE, FENCED, CONCURRENT = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
BAD_STATE, BAD_ID = ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
ORDERS, BILLS = ("orders", 0), ("bills", 3)
ID, EPOCH, NOW = 4000, 5, 1_000_000


def at(status: TransactionStatus, **values: Any) -> Transaction:
    """The transactional id in a state, at epoch 5 of producer 4000; what is being ended is pending, as it always is."""
    begun = status in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
    fields: dict[str, Any] = {
        "producer_id": ID,
        "producer_epoch": EPOCH,
        "partitions": frozenset({ORDERS}) if begun else frozenset(),
        "start_timestamp": NOW - 10 if begun else -1,
        "last_update_timestamp": NOW - 5,
        "timeout_ms": 60_000,
        "client_version": 2,
        "pending": status in (PREPARE_COMMIT, PREPARE_ABORT),
    } | values
    return Transaction(status=status, **fields)


def ended(transaction: Transaction, *, commit: bool, version: int = 2, **request: Any) -> Decision:
    request = {"producer_id": ID, "epoch": EPOCH} | request
    return end(transaction, NOW, commit=commit, client_version=version, **request)


def then(decision: Decision) -> Transaction:
    assert decision.next is not None
    return decision.next


# --- EndTxn

# The request of an end under version 2: a retry says the epoch before the state's, a current one the state's.
# Rows: (state, abort or commit, retry or current) -> error, and whether the epoch is bumped.
VERSION_2 = [
    (EMPTY, "abort", "retry", FENCED, False),
    (EMPTY, "abort", "current", NONE, True),
    (EMPTY, "commit", "retry", FENCED, False),
    (EMPTY, "commit", "current", BAD_STATE, False),
    (ONGOING, "abort", "retry", FENCED, False),
    (ONGOING, "abort", "current", NONE, True),
    (ONGOING, "commit", "retry", FENCED, False),
    (ONGOING, "commit", "current", NONE, True),
    (COMPLETE_ABORT, "abort", "retry", NONE, False),
    (COMPLETE_ABORT, "abort", "current", NONE, True),
    (COMPLETE_ABORT, "commit", "retry", BAD_STATE, False),
    (COMPLETE_ABORT, "commit", "current", BAD_STATE, False),
    (COMPLETE_COMMIT, "abort", "retry", BAD_STATE, False),
    (COMPLETE_COMMIT, "abort", "current", NONE, True),
    (COMPLETE_COMMIT, "commit", "retry", NONE, False),
    (COMPLETE_COMMIT, "commit", "current", BAD_STATE, False),
    *((state, kind, which, CONCURRENT, False)
      for state in (PREPARE_COMMIT, PREPARE_ABORT)
      for kind in ("abort", "commit")
      for which in ("retry", "current")),
]  # fmt: skip


@pytest.mark.parametrize(("state", "kind", "which", "error", "bumps"), VERSION_2)
def test_end_under_version_2(state: TransactionStatus, kind: str, which: str, error: ErrorCode, bumps: bool) -> None:
    decision = ended(at(state), commit=kind == "commit", epoch=EPOCH - (which == "retry"))
    assert decision.error == error
    assert (decision.next is not None) == bumps
    if decision.next is not None:
        assert decision.next.status is (PREPARE_COMMIT if kind == "commit" else PREPARE_ABORT)
        assert (decision.next.producer_epoch, decision.next.last_epoch) == (EPOCH + 1, EPOCH)
        assert decision.next.partitions == (frozenset({ORDERS}) if state is ONGOING else frozenset())


VERSION_1 = [
    (EMPTY, "abort", BAD_STATE, False),
    (EMPTY, "commit", BAD_STATE, False),
    (ONGOING, "abort", NONE, True),
    (ONGOING, "commit", NONE, True),
    (PREPARE_COMMIT, "abort", CONCURRENT, False),
    (PREPARE_COMMIT, "commit", CONCURRENT, False),
    (PREPARE_ABORT, "abort", CONCURRENT, False),
    (PREPARE_ABORT, "commit", CONCURRENT, False),
    (COMPLETE_COMMIT, "abort", BAD_STATE, False),
    (COMPLETE_COMMIT, "commit", NONE, False),
    (COMPLETE_ABORT, "abort", NONE, False),
    (COMPLETE_ABORT, "commit", BAD_STATE, False),
]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("state", "kind", "error", "prepares"), VERSION_1)
def test_end_under_versions_0_and_1(
    state: TransactionStatus, kind: str, error: ErrorCode, prepares: bool, version: int
) -> None:
    decision = ended(at(state, client_version=version), commit=kind == "commit", version=version)
    assert decision.error == error
    assert (decision.next is not None) == prepares
    if decision.next is not None:
        assert decision.next.status is (PREPARE_COMMIT if kind == "commit" else PREPARE_ABORT)
        assert decision.next.producer_epoch == EPOCH  # no bump: the client goes on with it


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT])
@pytest.mark.parametrize("commit", [False, True])
def test_end_of_somebody_else(state: TransactionStatus, commit: bool, version: int) -> None:
    transaction = at(state, client_version=version)
    assert ended(transaction, commit=commit, version=version, producer_id=ID + 1).error == BAD_ID
    for epoch in (EPOCH - 2, EPOCH + 1, EPOCH + 2):
        decision = ended(transaction, commit=commit, version=version, epoch=epoch)
        assert decision == Decision(FENCED)


def test_the_last_epoch_has_a_successor() -> None:
    open_one = at(ONGOING, producer_epoch=LAST_EPOCH - 1)
    asked = ended(open_one, commit=True, epoch=LAST_EPOCH - 1)
    assert asked.needs_producer_id
    assert asked.next is None
    prepared = then(ended(open_one, commit=True, epoch=LAST_EPOCH - 1, fresh_id=5000))
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (ID, LAST_EPOCH, 5000)
    after = completed(prepared, NOW + 1)
    assert (after.producer_id, after.producer_epoch, after.previous_producer_id) == (5000, 0, ID)
    assert after.next_producer_id == -1
    # The answer was lost, and the client asks again as who it was.
    assert ended(after, commit=True, epoch=LAST_EPOCH - 1) == Decision()
    assert ended(after, commit=False, epoch=LAST_EPOCH - 1) == Decision(BAD_STATE)
    assert ended(after, commit=True, epoch=LAST_EPOCH - 2) == Decision(BAD_ID)


# --- InitProducerId


def init(transaction: Transaction, **request: Any) -> Decision:
    return init_producer_id(transaction, NOW, **{"timeout_ms": 30_000, **request})


def test_the_first_epoch_is_0() -> None:
    first = then(init(Transaction(ID)))
    assert (first.producer_id, first.producer_epoch, first.status, first.timeout_ms) == (ID, 0, EMPTY, 30_000)
    assert first.last_update_timestamp == NOW


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_a_new_instance_bumps_the_epoch(state: TransactionStatus) -> None:
    decision = init(at(state))
    assert decision.error == NONE
    assert (then(decision).producer_epoch, then(decision).status, then(decision).last_epoch) == (EPOCH + 1, EMPTY, -1)


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_a_new_instance_waits_for_what_is_being_ended(state: TransactionStatus) -> None:
    assert init(at(state)) == Decision(CONCURRENT)
    assert init(at(state, pending=False)) == Decision(CONCURRENT)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_new_instance_aborts_what_is_open_and_bumps_once(version: int) -> None:
    decision = init(at(ONGOING, client_version=version))
    assert (decision.error, decision.fences) == (CONCURRENT, True)
    aborting = then(decision)
    assert (aborting.status, aborting.producer_epoch, aborting.partitions) == (PREPARE_ABORT, EPOCH + 1, {ORDERS})
    after = then(init(completed(aborting, NOW)))
    assert (after.producer_id, after.producer_epoch) == (ID, EPOCH + 2)


@pytest.mark.parametrize(
    ("expected", "error", "epoch"),
    [
        ((ID, EPOCH), NONE, EPOCH + 1),
        ((ID, EPOCH - 1), NONE, EPOCH),  # asked again: the answer was lost
        ((ID, EPOCH - 2), FENCED, None),
        ((ID, EPOCH + 1), FENCED, None),
        ((ID + 1, EPOCH), FENCED, None),
    ],
)
def test_a_running_client_bumps_its_own_epoch(expected: tuple[int, int], error: ErrorCode, epoch: int | None) -> None:
    decision = init(at(EMPTY, last_epoch=EPOCH - 1), expected=expected)
    assert decision.error == error
    assert (None if decision.next is None else decision.next.producer_epoch) == epoch


def test_a_running_client_is_not_fenced_by_an_id_that_was_forgotten() -> None:
    decision = init(Transaction(ID), expected=(77, 3))
    assert (then(decision).producer_id, then(decision).producer_epoch) == (ID, 0)


def test_an_exhausted_epoch_gets_a_new_producer_id() -> None:
    old = at(COMPLETE_COMMIT, producer_epoch=LAST_EPOCH - 1)
    assert init(old).needs_producer_id
    assert init(old, expected=(ID, LAST_EPOCH - 1)).needs_producer_id
    new = then(init(old, expected=(ID, LAST_EPOCH - 1), fresh_id=5000))
    assert (new.producer_id, new.producer_epoch, new.last_epoch, new.previous_producer_id) == (
        5000, 0, LAST_EPOCH - 1, ID,
    )  # fmt: skip
    again = then(init(new, expected=(ID, LAST_EPOCH - 1)))  # the answer was lost
    assert (again.producer_id, again.producer_epoch) == (5000, 0)
    assert init(new, expected=(ID, LAST_EPOCH - 2)) == Decision(FENCED)


def test_nothing_passes_while_a_step_is_written() -> None:
    for state in TransactionStatus:
        if state in (EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT):
            waiting = at(state, pending=True)
            assert init(waiting) == Decision(CONCURRENT)
            assert added(waiting).error == CONCURRENT
            assert ended(waiting, commit=True) == Decision(CONCURRENT)
            assert ended(waiting, commit=True, producer_id=1) == Decision(CONCURRENT)


# --- partitions


def added(transaction: Transaction, *partitions: tuple[str, int], **request: Any) -> Decision:
    values = {"producer_id": ID, "epoch": EPOCH, "client_version": 2} | request
    return add_partitions(transaction, NOW, partitions=partitions or (ORDERS,), **values)


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(state: TransactionStatus) -> None:
    begun = then(added(at(state, client_version=0), ORDERS, client_version=2))
    assert (begun.status, begun.partitions, begun.start_timestamp) == (ONGOING, {ORDERS}, NOW)
    assert (begun.client_version, begun.producer_epoch) == (2, EPOCH)


def test_further_partitions_leave_the_beginning() -> None:
    more = then(added(at(ONGOING), BILLS))
    assert (more.partitions, more.start_timestamp) == ({ORDERS, BILLS}, NOW - 10)
    assert added(at(ONGOING), ORDERS) == Decision()  # it is in already: nothing is written


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_partitions_wait_for_what_is_being_ended(state: TransactionStatus) -> None:
    assert added(at(state)).error == CONCURRENT
    assert added(at(state, pending=False)).error == CONCURRENT


@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_partitions_of_somebody_else(state: TransactionStatus) -> None:
    assert added(at(state), producer_id=1) == Decision(BAD_ID)
    assert added(at(state), epoch=EPOCH - 1) == Decision(FENCED)
    assert added(at(state), epoch=EPOCH + 1) == Decision(FENCED)


def test_verifying_tells_of_each_partition() -> None:
    def verified(transaction: Transaction, **request: Any) -> Any:
        request = {"producer_id": ID, "epoch": EPOCH} | request
        return verify_partitions(transaction, partitions=(ORDERS, BILLS), **request)

    assert verified(at(ONGOING)) == {ORDERS: NONE, BILLS: ABORTABLE}
    assert verified(at(ONGOING, pending=True)) == {ORDERS: NONE, BILLS: ABORTABLE}  # another one is being added
    for state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        assert verified(at(state)) == {ORDERS: ABORTABLE, BILLS: ABORTABLE}
    for state in (PREPARE_COMMIT, PREPARE_ABORT):
        assert verified(at(state)) == CONCURRENT
    assert verified(at(ONGOING), producer_id=1) == BAD_ID
    assert verified(at(ONGOING), epoch=EPOCH - 1) == FENCED


# --- the coordinator's own


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("by_init", [False, True])
def test_a_running_client_goes_on_after_its_transaction_was_aborted(version: int, by_init: bool) -> None:
    open_one = at(ONGOING, client_version=version)
    decision = init(open_one, expected=(ID, EPOCH)) if by_init else fence(open_one, NOW)
    assert (decision.error, decision.fences) == (CONCURRENT if by_init else NONE, True)
    after = completed(then(decision), NOW)
    for _ in range(2):  # the answer may be lost
        goes_on = init(after, expected=(ID, EPOCH))
        assert (goes_on.error, then(goes_on).producer_id, then(goes_on).producer_epoch) == (NONE, ID, EPOCH + 1)
        after = then(goes_on)
    assert init(after, expected=(ID, EPOCH - 1)) == Decision(FENCED)


@pytest.mark.parametrize("version", [0, 2])
def test_a_client_that_a_new_instance_fenced_stays_fenced(version: int) -> None:
    fenced = completed(then(init(at(ONGOING, client_version=version))), NOW)
    new = then(init(fenced))
    assert (new.producer_epoch, new.last_epoch) == (EPOCH + 2, -1)
    for epoch in (EPOCH - 1, EPOCH, EPOCH + 1):
        assert init(new, expected=(ID, epoch)) == Decision(FENCED)
    again = completed(then(fence(then(added(new, epoch=EPOCH + 2)), NOW)), NOW)
    assert init(again, expected=(ID, EPOCH)) == Decision(FENCED)


@pytest.mark.parametrize("version", [0, 2])
def test_a_fence_at_the_last_epoch_gives_a_new_producer_id(version: int) -> None:
    open_one = at(ONGOING, producer_epoch=LAST_EPOCH - 1, client_version=version)
    assert fence(open_one, NOW).needs_producer_id
    prepared = then(fence(open_one, NOW, fresh_id=5000))
    assert (prepared.producer_id, prepared.producer_epoch) == (ID, LAST_EPOCH)
    after = completed(prepared, NOW)
    assert (after.producer_id, after.producer_epoch, after.previous_producer_id) == (5000, 0, ID)
    goes_on = then(init(after, expected=(ID, LAST_EPOCH - 1)))
    assert (goes_on.producer_id, goes_on.producer_epoch) == (5000, 0)
    assert init(after, expected=(ID, LAST_EPOCH - 2)) == Decision(FENCED)
    assert completed(then(fence(at(ONGOING), NOW, fresh_id=5000)), NOW).producer_id == ID, "none was asked for"


@pytest.mark.parametrize("state", [EMPTY, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_only_an_open_transaction_is_fenced(state: TransactionStatus) -> None:
    with pytest.raises(InternalError, match=state.label):
        fence(at(state), NOW)


@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_only_a_prepared_transaction_is_completed(state: TransactionStatus) -> None:
    with pytest.raises(InternalError, match=state.label):
        completed(at(state), NOW)


def test_clocks() -> None:
    assert times_out_after(at(ONGOING)) == 60_000
    for state in (EMPTY, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT):
        assert times_out_after(at(state)) is None
    for state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        assert expires_at(at(state), 1000) == NOW - 5 + 1000
        assert expires_at(at(state, pending=True), 1000) is None
    for state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT):
        assert expires_at(at(state), 1000) is None
    assert is_long_open_after(at(ONGOING)) is None, "it is aborted after a minute"
    assert is_long_open_after(at(ONGOING, timeout_ms=60_001)) == 60_000
    assert is_long_open_after(at(ONGOING, timeout_ms=900_000)) == 450_000
    assert is_long_open_after(at(PREPARE_COMMIT, timeout_ms=900_000)) is None


@pytest.mark.parametrize("state", list(TransactionStatus)[:6])
def test_what_a_record_says_is_what_it_was(state: TransactionStatus) -> None:
    transaction = at(state, previous_producer_id=3000, next_producer_id=5000 if state is PREPARE_COMMIT else -1)
    assert Transaction.of(transaction.value) == transaction


# --- any requests in any order


@given(st.lists(st.tuples(st.sampled_from(["init", "bump", "add", "end", "fence", "late"]), st.integers(0, 5))),
       st.integers(0, LAST_EPOCH - 1), st.sampled_from([0, 2]))  # fmt: skip
def test_epochs_only_grow_and_none_is_given_twice(steps: list[tuple[str, int]], first: int, version: int) -> None:
    transaction = Transaction(ID, first, 1000, client_version=version)
    fresh = iter(range(5000, 9999))
    given_out: set[tuple[int, int]] = set()
    client = (ID, first)
    seen = {ID: first}
    for now, (step, choice) in enumerate(steps):
        mine = client if step != "late" else (client[0], max(client[1] - 1 - choice, 0))
        for fresh_id in (None, next(fresh)):
            if step == "init":
                decision = init_producer_id(transaction, now, timeout_ms=1000, fresh_id=fresh_id)
            elif step == "bump":
                decision = init_producer_id(transaction, now, timeout_ms=1000, expected=mine, fresh_id=fresh_id)
            elif step in ("add", "late"):
                decision = add_partitions(
                    transaction, now, producer_id=mine[0], epoch=mine[1], partitions=[("t", choice)],
                    client_version=version,
                )  # fmt: skip
            elif step == "end":
                decision = end(
                    transaction, now, producer_id=mine[0], epoch=mine[1], commit=choice > 2, client_version=version,
                    fresh_id=fresh_id,
                )  # fmt: skip
            elif transaction.status is ONGOING:
                decision = fence(transaction, now, fresh_id=fresh_id)
            else:
                decision = Decision()
            if not decision.needs_producer_id:
                break
        assert not decision.needs_producer_id
        if step == "late" and mine != (transaction.producer_id, transaction.producer_epoch):
            assert decision.next is None
        if decision.next is None:
            continue
        transaction = decision.next
        if transaction.status in (PREPARE_COMMIT, PREPARE_ABORT):
            transaction = completed(replace(transaction, pending=True), now)
        assert 0 <= transaction.producer_epoch <= LAST_EPOCH
        assert transaction.producer_epoch >= seen.get(transaction.producer_id, 0)
        seen[transaction.producer_id] = transaction.producer_epoch
        now_is = (transaction.producer_id, transaction.producer_epoch)
        if step in ("init", "bump") and decision.error == NONE:
            assert now_is[1] < LAST_EPOCH
            assert step == "bump" or now_is not in given_out
            given_out.add(now_is)
            client = now_is
        elif step == "end" and version == 2:
            assert now_is[1] < LAST_EPOCH
            client = now_is
