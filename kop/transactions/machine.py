"""The state machine of one transactional id: Kafka 4.3's transaction coordinator, pure.

Owns: epochs and producer ids of a transactional id, the states of its transaction, which request is refused with which
error (KIP-98, KIP-360 and both parts of KIP-890).
Must not know: sockets, clocks, storage, how a record is written, what the versions of requests look like.

A request is a function of the present `Transaction`, the request's values and `now` (milliseconds since the epoch). It
gives a `Decision`: the transaction that has to become durable, if any, and what the client is told once it is. While
that is being written the caller passes the transaction with `pending` set: no other request passes meanwhile.

The versions of transactions (`transaction.version`) live side by side. The client's request says which it goes by:
- 0 and 1: the epoch stays through a transaction, partitions are added before data is sent to them.
- 2: each end of a transaction bumps the epoch, so that nothing of an earlier transaction passes for a later one.

Fencing: InitProducerId and the coordinator's own timeout abort an open transaction under a bumped epoch, as an end of
version 2 does whatever the client goes by. The client that asked is told CONCURRENT_TRANSACTIONS and asks again. A
producer that runs on with the epoch before (KIP-360) is given the bumped one, unless a new instance was given one
meanwhile. Epochs end at 32767, which no client is ever given: a producer id whose epoch came to 32766 gets a successor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kop.errors import ErrorCode, InternalError
from kop.storage.base import EPOCH_BUMPED_AT_END
from kop.wire.transaction_state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    STORAGE_TRANSACTION,
    TransactionStatus,
    TransactionValue,
)

Partition = tuple[str, int]
"""The type of a partition's key: topic name and partition number."""

LAST_EPOCH: Final = 32_767
"""The largest producer epoch. It fences a producer, and no client is given it."""
_LONG_OPEN_MS: Final = 60_000
"""The ms below which no open transaction is worth a line in the log."""

_PREPARED: Final = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
_COMPLETE: Final = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id and its present transaction: an immutable value, of which each step makes a new one."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch of the producer; -1 until the first InitProducerId is durable."""
    timeout_ms: int = 0
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[Partition] = field(default_factory=frozenset)
    last_update_timestamp: int = -1
    start_timestamp: int = -1
    last_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last bump, from which a running client comes to the present one: it asks again, or its
    transaction was aborted. -1 after the bump of a new instance, which fences all others. It is in no record."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    pending: bool = False
    """True while a step, or the markers of an end, are being written. It is in no record."""
    storage_transaction: bytes = b""
    """The name in storage of the open transaction, or of the one that is being ended; see `kop.storage.base`."""

    @property
    def epoch_exhausted(self) -> bool:
        """True if no client may be given the next epoch, so that another producer id has to replace this one."""
        return self.producer_epoch >= LAST_EPOCH - 1

    @property
    def value(self) -> TransactionValue:
        """The value for the transactional id's record."""
        return TransactionValue(
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            self.status,
            self.partitions,
            self.last_update_timestamp,
            self.start_timestamp,
            self.previous_producer_id,
            self.next_producer_id,
            self.client_version,
            own={STORAGE_TRANSACTION: self.storage_transaction} if self.storage_transaction else {},
        )

    @classmethod
    def of(cls, value: TransactionValue) -> Transaction:
        """Return the transaction as a record's value says. One that is being ended is pending until its markers are
        written.
        """
        return cls(
            value.producer_id,
            value.producer_epoch,
            value.timeout_ms,
            value.status,
            value.partitions,
            value.last_update_timestamp,
            value.start_timestamp,
            NO_PRODUCER_EPOCH,
            value.previous_producer_id,
            value.next_producer_id,
            value.client_version,
            pending=value.status in _PREPARED,
            storage_transaction=value.own.get(STORAGE_TRANSACTION, b""),
        )


class Decision(NamedTuple):
    """The outcome of a request: the next state to be written, and the answer for the client."""

    error: ErrorCode = ErrorCode.NONE
    """The error for the client, NONE if there is none; if `next` is set, the answer waits until that is durable."""
    next: Transaction | None = None
    """The state that has to become durable; None if nothing changes."""
    needs_producer_id: bool = False
    """True if a new producer id is needed: the caller takes one and asks again with it."""
    fences: bool = False
    """True if `next` aborts an open transaction that its producer did not end; see `fence`."""


_CONCURRENT: Final = Decision(ErrorCode.CONCURRENT_TRANSACTIONS)
_NEEDS_PRODUCER_ID: Final = Decision(needs_producer_id=True)


def init_producer_id(
    transaction: Transaction,
    now: int,
    *,
    timeout_ms: int,
    expected: tuple[int, int] | None = None,
    fresh_id: int | None = None,
) -> Decision:
    """Decide about InitProducerId: fence earlier instances of the producer and give the next epoch, or a new producer
    id at epoch 0. An open transaction is aborted first: CONCURRENT_TRANSACTIONS, and the client asks again.

    `expected` is the producer id and epoch that a running client has (KIP-360); None for a new instance. `fresh_id` is
    a new producer id, if an earlier decision asked for one.
    """
    if transaction.pending:
        return _CONCURRENT
    if expected is not None and not _may_be(transaction, *expected):
        return Decision(ErrorCode.PRODUCER_FENCED)
    if transaction.status in _PREPARED:
        return _CONCURRENT
    if transaction.status is TransactionStatus.ONGOING:
        decision = fence(transaction, now, fresh_id=fresh_id)
        return decision if decision.needs_producer_id else decision._replace(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    empty = replace(
        transaction,
        status=TransactionStatus.EMPTY,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_timestamp=-1,
        last_update_timestamp=now,
    )
    if transaction.epoch_exhausted and (expected is None or expected[1] == transaction.producer_epoch):
        if fresh_id is None:
            return _NEEDS_PRODUCER_ID
        return Decision(
            next=replace(
                empty,
                producer_id=fresh_id,
                producer_epoch=0,
                last_epoch=NO_PRODUCER_EPOCH if expected is None else transaction.producer_epoch,
                previous_producer_id=transaction.producer_id,
            )
        )
    epoch, last_epoch = transaction.producer_epoch + 1, NO_PRODUCER_EPOCH
    if expected is not None:
        if transaction.producer_epoch in (NO_PRODUCER_EPOCH, expected[1]):
            last_epoch = expected[1]
        elif transaction.last_epoch == expected[1]:  # the answer to the first request was lost
            epoch, last_epoch = transaction.producer_epoch, transaction.last_epoch
        else:
            return Decision(ErrorCode.PRODUCER_FENCED)
    return Decision(next=replace(empty, producer_epoch=epoch, last_epoch=last_epoch))


def _may_be(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return true if a client that goes on with this producer id can be the transactional id's producer: the id is the
    present one, or the former one with its last epoch.
    """
    return (
        transaction.producer_epoch == NO_PRODUCER_EPOCH
        or producer_id == transaction.producer_id
        or (producer_id == transaction.previous_producer_id and epoch >= LAST_EPOCH - 1)
    )


def add_partitions(
    transaction: Transaction,
    now: int,
    *,
    producer_id: int,
    epoch: int,
    partitions: Collection[Partition],
    client_version: int,
) -> Decision:
    """Decide about AddPartitionsToTxn or AddOffsetsToTxn: the partitions are in the transaction, which begins if none
    is open.
    """
    if error := _refusal(transaction, producer_id, epoch):
        return Decision(error)
    if transaction.status is TransactionStatus.ONGOING and transaction.partitions.issuperset(partitions):
        return Decision()
    begins = transaction.status is not TransactionStatus.ONGOING
    return Decision(
        next=replace(
            transaction,
            status=TransactionStatus.ONGOING,
            partitions=(frozenset() if begins else transaction.partitions).union(partitions),
            start_timestamp=now if begins else transaction.start_timestamp,
            last_update_timestamp=now,
            client_version=client_version,
            storage_transaction=b"" if begins else transaction.storage_transaction,
        )
    )


def verify_partitions(
    transaction: Transaction, *, producer_id: int, epoch: int, partitions: Collection[Partition]
) -> ErrorCode | dict[Partition, ErrorCode]:
    """Return an error for all partitions, or one for each: NONE for one in the open transaction (KIP-890, part 1)."""
    if error := _mismatch(transaction, producer_id, epoch):
        return error
    open_ones = transaction.partitions if transaction.status is TransactionStatus.ONGOING else frozenset[Partition]()
    return {
        partition: ErrorCode.NONE if partition in open_ones else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def _refusal(transaction: Transaction, producer_id: int, epoch: int) -> ErrorCode:
    # The pending step comes first: a producer may have been told a new id already that is not in force yet.
    if transaction.pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return _mismatch(transaction, producer_id, epoch)


def _mismatch(transaction: Transaction, producer_id: int, epoch: int) -> ErrorCode:
    if producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch != transaction.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if transaction.status in _PREPARED else ErrorCode.NONE


def end(
    transaction: Transaction,
    now: int,
    *,
    producer_id: int,
    epoch: int,
    commit: bool,
    client_version: int,
    fresh_id: int | None = None,
) -> Decision:
    """Decide about EndTxn. The `next` state is prepared: its markers are written once it is durable, then it is
    `completed`.

    `client_version` is 2 if the request is of version 5 or later. `fresh_id` is a new producer id, if an earlier
    decision asked for one.
    """
    if client_version < EPOCH_BUMPED_AT_END:
        return _end_with_one_epoch(transaction, now, producer_id, epoch, commit)
    if transaction.pending:
        return _CONCURRENT
    retried_over_overflow = (
        transaction.previous_producer_id == producer_id and epoch == LAST_EPOCH - 1 and transaction.producer_epoch == 0
    )
    retried = transaction.producer_epoch == epoch + 1 or retried_over_overflow
    if producer_id != transaction.producer_id and not retried_over_overflow:
        return Decision(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    status = transaction.status
    if not (epoch == transaction.producer_epoch or (status in _COMPLETE and retried)):
        return Decision(ErrorCode.PRODUCER_FENCED)
    if status is not TransactionStatus.ONGOING:
        if retried:
            same = status is (TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT)
            return Decision(ErrorCode.NONE if same else ErrorCode.INVALID_TXN_STATE)
        if commit:
            return Decision(ErrorCode.INVALID_TXN_STATE)
        # An abort of nothing bumps the epoch all the same: the client does not know whether something was added.
    if transaction.epoch_exhausted and fresh_id is None:
        return _NEEDS_PRODUCER_ID
    return Decision(
        next=replace(
            transaction,
            status=TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT,
            producer_epoch=transaction.producer_epoch + 1,
            last_epoch=transaction.producer_epoch,
            partitions=transaction.partitions if status is TransactionStatus.ONGOING else frozenset(),
            start_timestamp=transaction.start_timestamp if status is TransactionStatus.ONGOING else now,
            last_update_timestamp=now,
            next_producer_id=NO_PRODUCER_ID if fresh_id is None else fresh_id,
            client_version=client_version,
        )
    )


def _end_with_one_epoch(transaction: Transaction, now: int, producer_id: int, epoch: int, commit: bool) -> Decision:
    if producer_id != transaction.producer_id:
        return Decision(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if epoch != transaction.producer_epoch:
        return Decision(ErrorCode.PRODUCER_FENCED)
    if transaction.pending:
        return _CONCURRENT
    status = transaction.status
    if status in _COMPLETE:
        same = status is (TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT)
        return Decision(ErrorCode.NONE if same else ErrorCode.INVALID_TXN_STATE)
    if status is not TransactionStatus.ONGOING:
        return Decision(ErrorCode.INVALID_TXN_STATE)
    return Decision(
        next=replace(
            transaction,
            status=TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT,
            last_update_timestamp=now,
            client_version=min(transaction.client_version, EPOCH_BUMPED_AT_END - 1),
        )
    )


def fence(transaction: Transaction, now: int, *, fresh_id: int | None = None) -> Decision:
    """Decide to abort the open transaction under a bumped epoch: it timed out, or another instance of its producer has
    begun.

    The epoch is bumped once, whatever the version of the transaction is. `fresh_id` is a new producer id, if an earlier
    decision asked for one.
    """
    if transaction.status is not TransactionStatus.ONGOING or transaction.pending:
        raise InternalError(f"a transaction of the state {transaction.status.label} cannot be fenced")
    if transaction.epoch_exhausted and fresh_id is None:
        return _NEEDS_PRODUCER_ID
    return Decision(
        next=replace(
            transaction,
            status=TransactionStatus.PREPARE_ABORT,
            producer_epoch=min(transaction.producer_epoch + 1, LAST_EPOCH),
            last_epoch=transaction.producer_epoch,
            last_update_timestamp=now,
            next_producer_id=fresh_id if transaction.epoch_exhausted and fresh_id is not None else NO_PRODUCER_ID,
            client_version=EPOCH_BUMPED_AT_END,
        ),
        fences=True,
    )


def completed(transaction: Transaction, now: int) -> Transaction:
    """Return the state after all markers of an end are written, to be made durable; if a new producer id was chosen, it
    takes effect. InternalError if no end was decided.
    """
    if transaction.status not in _PREPARED:
        raise InternalError(f"a transaction of the state {transaction.status.label} cannot be completed")
    commit = transaction.status is TransactionStatus.PREPARE_COMMIT
    after = replace(
        transaction,
        status=TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_timestamp=now,
        next_producer_id=NO_PRODUCER_ID,
        pending=False,
        storage_transaction=b"",
    )
    if transaction.client_version >= EPOCH_BUMPED_AT_END and transaction.next_producer_id != NO_PRODUCER_ID:
        after = replace(
            after,
            producer_id=transaction.next_producer_id,
            producer_epoch=0,
            previous_producer_id=transaction.producer_id,
        )
    return after


def times_out_after(transaction: Transaction) -> int | None:
    """Return the ms after which the open transaction is aborted; None if none is open."""
    return transaction.timeout_ms if transaction.status is TransactionStatus.ONGOING else None


def is_long_open_after(transaction: Transaction) -> int | None:
    """Return the ms for which a transaction is open before a log line tells operators of it; None if it times out
    before, or is not open.

    Half of its timeout, and a minute at the least: what most clients set as their timeout.
    """
    if transaction.status is not TransactionStatus.ONGOING:
        return None
    after = max(transaction.timeout_ms // 2, _LONG_OPEN_MS)
    return after if after < transaction.timeout_ms else None


def expires_at(transaction: Transaction, expiration_ms: int) -> int | None:
    """Return the time, in ms since the epoch, from which the transactional id may be forgotten; None while it has an
    open transaction or one that is being ended.
    """
    if transaction.pending or not (transaction.status is TransactionStatus.EMPTY or transaction.status in _COMPLETE):
        return None
    return transaction.last_update_timestamp + expiration_ms
