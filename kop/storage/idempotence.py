"""The memory of a partition of idempotent producers, so that a retried batch is stored once (KIP-98, KIP-360).

Owns: epochs, sequences, the window of the last five batches of a producer, and for engines that keep the windows
themselves those of a whole partition with its transactions, undoing what could not be committed.
Must not know: storage, futures, clocks.

`ProducerWindow` is the rule, one for all engines. Behind it each engine has its store: `ProducerStates` holds the
windows of a partition that one process writes; where other processes write, too, the engine makes windows from what its
storage knows of a producer.

How `ProducerStates` stays right when commits fail: a window is a value that is replaced, never changed. Each append
keeps the value that it replaced, in order; a rollback puts those values back, newest first. So a window after a
rollback is the very window of before, whatever happened: a new producer, a new epoch, a batch that fell out of it. The
value that is replaced is kept before anything is changed, so a rollback also undoes an append that has failed halfway.

When a producer was last seen is told by a clock that does not jump (`used_ms`), since a window that expired too early
lets a retried batch be stored twice. A snapshot holds that as wall time, for another process.

As in Kafka 4.3: a producer that is not known may start at any sequence and epoch, but for a transactional one that goes
by version 2 of transactions, whose first batch may be refused while its next one is on its way; a new epoch starts at
sequence 0, 2147483647 is followed by 0, a batch that is not the next one is OUT_OF_ORDER_SEQUENCE_NUMBER, also one that
is older than the window. Retention and DeleteRecords do not forget producers, only time does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from kop.errors import ErrorCode, InternalError, PeerError
from kop.records.batch import BatchHeader, add_sequence
from kop.records.markers import EndMarker
from kop.storage.base import ProducerView
from kop.storage.transaction_index import AbortedTransaction, TransactionIndex

WINDOW: Final = 5
"""The number of batches that are remembered of each producer: as many as a client may have in flight."""

_FOREVER: Final = 2**63 - 1
IN_TRANSACTION: Final = "has an open transaction, and the batch is not transactional"
"""The text of the error for a batch without a transaction from a producer that has one open."""

Snapshot: TypeAlias = list[Any]
"""The type of committed producer states as JSON can hold them: [producer_id, epoch, last_used, [[base_sequence, ...],
...], begins, last_timestamp] each.

`begins` is the first offset of the producer's open transaction, or -1.
"""


class Sequenced(Protocol):
    """The sequences that a window needs of a batch to remember it."""

    @property
    def base_sequence(self) -> int:
        """The sequence of the first record."""

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record."""


BatchT = TypeVar("BatchT", bound=Sequenced)


@dataclass(slots=True, eq=False)
class BatchMetadata:
    """A batch in a producer's window. Duplicates of it are answered with its offsets."""

    producer_id: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """The batch's max timestamp (ms)."""
    pending: bool = True
    """True if the batch is not durable yet, so that a duplicate has to wait for it."""
    owner: object = None
    """An object of the caller's, untouched here, such as the waiter to be told when the pending batch is durable."""


class IdempotenceVerdict(NamedTuple, Generic[BatchT]):
    """The result of `check`: the batch's original, or its error; a batch that has neither is new."""

    batch: BatchT | None = None
    """The original of a duplicate."""
    error: PeerError | None = None
    """The error of a batch that is refused."""


_NEW: Final[IdempotenceVerdict[Any]] = IdempotenceVerdict()


class ProducerWindow(NamedTuple, Generic[BatchT]):
    """The state of an idempotent producer in a partition: its epoch, last sequence and last batches. An immutable
    value.
    """

    epoch: int
    last_sequence: int
    """The sequence of the producer's last record in `epoch`."""
    batches: tuple[BatchT, ...] = ()
    """The last batches, oldest first, at most `WINDOW`, all of `epoch`. Empty if only `last_sequence` is known."""

    def check(self, header: BatchHeader) -> IdempotenceVerdict[BatchT]:
        """Return if a batch is new, a duplicate of a batch in the window, or refused: with INVALID_PRODUCER_EPOCH (an
        older epoch) or OUT_OF_ORDER_SEQUENCE_NUMBER. Nothing changes: `then` adds a batch.
        """
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        if epoch < self.epoch:
            return _refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {self.epoch}, the batch is of epoch {epoch}",
            )
        expected = add_sequence(self.last_sequence, 1) if epoch == self.epoch else 0
        if sequence == expected:
            return _NEW
        last_sequence = header.last_sequence
        for batch in self.batches if epoch == self.epoch else ():
            if batch.base_sequence == sequence and batch.last_sequence == last_sequence:
                return IdempotenceVerdict(batch)
        return _refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} in epoch {epoch} sent sequence {sequence}, {expected} comes next",
        )

    def then(self, epoch: int, batch: BatchT) -> ProducerWindow[BatchT]:
        """Return a new window with one more batch, which is of `epoch`. The last five batches stay; those of an earlier
        epoch go.
        """
        older = self.batches[1 - WINDOW :] if epoch == self.epoch else ()
        return ProducerWindow(epoch, batch.last_sequence, (*older, batch))


class _Producer(NamedTuple):
    last_used: int
    """The time at which the producer was last seen, in ms of a clock that does not jump."""
    window: ProducerWindow[BatchMetadata]
    last_timestamp: int


class ProducerStates:
    """The idempotent producers of one partition. Calls come in log order: check, append, later commit or rollback."""

    def __init__(self) -> None:
        self.transactions = TransactionIndex()
        self._producers: dict[int, _Producer] = {}
        self._pending: deque[tuple[BatchMetadata, _Producer | None]] = deque()
        """The appends that are not committed yet, in log order, each with the producer state that it replaced."""

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader, *, from_zero: bool = False) -> IdempotenceVerdict[BatchMetadata]:
        """Return if a batch is new, a duplicate or refused, by its producer's window; new also without a producer id or
        of an unknown producer.

        `from_zero`: an unknown producer has to begin at sequence 0. While a producer has an open transaction, a new
        batch that is not transactional is INVALID_TXN_STATE.
        """
        known = self._producers.get(header.producer_id)
        if known is not None:
            verdict = known.window.check(header)
            if (
                verdict is _NEW
                and not header.transactional
                and self.transactions.first_offset(header.producer_id) is not None
            ):
                return _refused(ErrorCode.INVALID_TXN_STATE, f"producer {header.producer_id} {IN_TRANSACTION}")
            return verdict
        return _NO_BATCHES.check(header) if from_zero and header.producer_id >= 0 else _NEW

    def append(self, header: BatchHeader, offset: int, used_ms: int, owner: object = None) -> BatchMetadata | None:
        """Add a batch that `check` found new, to lie at `offset`, to its producer's window; return it for `commit`, or
        None if it has no producer id.

        It counts from now on, and is pending until `commit`. A transactional one begins a transaction if its producer
        has none. `used_ms` is the time at which the producer was last seen. If this raises, `rollback` of the offset
        undoes it.
        """
        if header.producer_id < 0:
            return None
        before = self._producers.get(header.producer_id)
        batch, after = with_batch(header, offset, used_ms, before, owner)
        self._pending.append((batch, before))
        self._producers[header.producer_id] = after
        if header.transactional:
            self.transactions.begin(header.producer_id, offset)
        return batch

    def check_marker(self, producer_id: int, epoch: int, *, bumps_epoch: bool) -> PeerError | None:
        """Return INVALID_PRODUCER_EPOCH if a marker of that epoch may not end the producer's transaction, else None.

        `bumps_epoch`: the producer's client goes by version 2 of transactions, where a marker's epoch lies above that
        of the data (KIP-890, KIP-1228).
        """
        known = self._producers.get(producer_id)
        lowest = -1 if known is None else known.window.epoch
        if bumps_epoch and self.transactions.first_offset(producer_id) is not None:
            lowest += 1
        if epoch >= lowest:
            return None
        return PeerError(
            f"a marker of producer {producer_id} has epoch {epoch}, {lowest} is the lowest that it may have",
            ErrorCode.INVALID_PRODUCER_EPOCH,
        )

    def needs_marker(self, producer_id: int, epoch: int) -> bool:
        """Return false if a marker of that epoch would change nothing, because it was written before and only the
        answer was lost.
        """
        known = self._producers.get(producer_id)
        open_one = self.transactions.first_offset(producer_id) is not None
        return open_one or known is None or known.window.epoch < epoch

    def pending_marker(self, producer_id: int) -> BatchMetadata | None:
        """Return the producer's last marker if it is not durable yet, else None."""
        return next(
            (
                batch
                for batch, _ in reversed(self._pending)
                if batch.producer_id == producer_id and batch.base_sequence == _MARKER
            ),
            None,
        )

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        offset: int,
        timestamp: int,
        used_ms: int,
        owner: object = None,
        *,
        commit: bool,
    ) -> BatchMetadata:
        """Add a marker that lies at `offset`: it ends the producer's transaction, and its epoch is the producer's from
        now on.

        `timestamp` is the marker's (ms). The result is for `commit`, as that of `append`, and is in no producer's
        window.
        """
        before = self._producers.get(producer_id)
        marker, after = _with_marker(producer_id, epoch, offset, timestamp, used_ms, before, owner)
        self._pending.append((marker, before))
        self._producers[producer_id] = after
        self.transactions.end(producer_id, offset, commit=commit)
        return marker

    def commit(self, batch: BatchMetadata) -> None:
        """Count a batch, and every pending one that lies before it in the log, as durable. Nothing happens if it counts
        so already; InternalError if a rollback has undone it.
        """
        if not batch.pending:
            return
        if all(pending is not batch for pending, _ in self._pending):
            raise InternalError(f"the batch at offset {batch.base_offset} was undone")
        self.transactions.commit(batch.last_offset + 1)
        while batch.pending:
            self._pending.popleft()[0].pending = False

    def rollback(self, offset: int) -> list[BatchMetadata]:
        """Undo every pending batch that lies at or beyond `offset`, since it was not stored, and what it did to
        transactions; return those batches, oldest first, without owners.
        """
        undone: list[BatchMetadata] = []
        while self._pending and self._pending[-1][0].base_offset >= offset:
            batch, before = self._pending.pop()
            if before is None:
                self._producers.pop(batch.producer_id, None)
            else:
                self._producers[batch.producer_id] = before
            batch.owner = None
            undone.append(batch)
        self.transactions.rollback(offset)
        undone.reverse()
        return undone

    def expire(self, used_ms: int, ttl_ms: int) -> int:
        """Forget producers not seen for `ttl_ms` (producer.id.expiration.ms); return their number.

        `used_ms` is now, by the clock of `append`. Those with pending batches or an open transaction stay.
        """
        busy = {batch.producer_id for batch, _ in self._pending} | self.transactions.open_transactions.keys()
        idle = [
            producer_id
            for producer_id, known in self._producers.items()
            if used_ms - known.last_used >= ttl_ms and producer_id not in busy
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        return len(idle)

    def replay(
        self,
        header: BatchHeader,
        offset: int,
        used_ms: int,
        marker: EndMarker | None = None,
    ) -> None:
        """Add a stored batch to the state, on start: batches in log order, from the offset of the snapshot on.

        Nothing is checked, the log is the truth; a batch that the snapshot holds already changes nothing. `marker` is
        the transaction's end that a control batch stands for.
        """
        if header.producer_id < 0:
            return
        before = self._producers.get(header.producer_id)
        if header.control:
            if marker is not None:
                _, self._producers[header.producer_id] = _with_marker(
                    header.producer_id, header.producer_epoch, offset, header.max_timestamp, used_ms, before
                )
                self.transactions.end(header.producer_id, offset, commit=marker.commit)
                self.transactions.commit(offset + 1)
            return
        if header.base_sequence < 0:
            return
        known = () if before is None else before.window.batches
        if known and known[-1].last_offset >= offset:
            return
        batch, self._producers[header.producer_id] = with_batch(header, offset, used_ms, before)
        batch.pending = False
        if header.transactional:
            self.transactions.begin(header.producer_id, offset)
            self.transactions.commit(offset + 1)

    def snapshot(self, wall_ahead_ms: int = 0) -> Snapshot:
        """Return the state without pending batches, those that are not stored yet, for `restore`, by way of JSON.

        `wall_ahead_ms` is the wall clock less the clock of `append`, now.
        """
        begun = self.transactions.open_transactions
        return [
            [
                producer_id,
                known.window.epoch,
                known.last_used + wall_ahead_ms,
                [
                    [batch.base_sequence, batch.last_sequence, batch.base_offset, batch.last_offset, batch.timestamp]
                    for batch in known.window.batches
                ],
                begun.get(producer_id, -1),
                known.last_timestamp,
            ]
            for producer_id, known in self._committed().items()
        ]

    @classmethod
    def restore(
        cls,
        snapshot: Snapshot,
        aborted: Iterable[AbortedTransaction] = (),
        *,
        wall_ahead_ms: int = 0,
        used_ms: int = _FOREVER,
    ) -> ProducerStates:
        """Return the producers of a snapshot. InternalError if it is malformed.

        `aborted` are the partition's aborted transactions, which no snapshot holds. The times in a snapshot are
        `wall_ahead_ms` ahead of the clock of `used_ms`, which is now: a producer that was seen later counts as seen
        now.
        """
        states = cls()
        begun: dict[int, int] = {}
        try:
            for producer_id, epoch, last_used, batches, begins, last_timestamp in snapshot:
                window = tuple(
                    BatchMetadata(
                        producer_id, base_sequence, last_sequence, base_offset, last_offset, timestamp, pending=False
                    )
                    for base_sequence, last_sequence, base_offset, last_offset, timestamp in batches
                )
                if len(window) > WINDOW:
                    raise ValueError(f"{len(window)} batches of producer {producer_id}")
                last_sequence = window[-1].last_sequence if window else -1
                seen = last_used - wall_ahead_ms  # later than now where the wall clock was ahead, or was set back
                states._producers[producer_id] = _Producer(
                    min(seen, used_ms), ProducerWindow(epoch, last_sequence, window), int(last_timestamp)
                )
                if begins >= 0:
                    begun[producer_id] = begins
        except (TypeError, ValueError) as error:
            raise InternalError(
                f"a snapshot of producers is damaged, or an unreleased kop wrote it ({error}): consume the records "
                "from the kop that wrote it, and begin with a new store"
            ) from error
        states.transactions = TransactionIndex(begun, aborted)
        return states

    def views(self) -> Sequence[ProducerView]:
        """Return what is known of the producers whose batches are stored, ordered by id. Batches that are still being
        stored are left out.
        """
        begun = self.transactions.open_transactions
        return [
            ProducerView(
                producer_id,
                known.window.epoch,
                known.window.last_sequence,
                known.last_timestamp,
                begun.get(producer_id, -1),
            )
            for producer_id, known in sorted(self._committed().items())
        ]

    def _committed(self) -> dict[int, _Producer]:
        producers = dict(self._producers)
        for batch, before in reversed(self._pending):
            if before is None:
                del producers[batch.producer_id]
            else:
                producers[batch.producer_id] = before
        return producers


_MARKER: Final = -1
"""The number that stands for the sequence of a marker, which has none."""
_NO_BATCHES: Final[ProducerWindow[BatchMetadata]] = ProducerWindow(-1, -1)


def with_batch(
    header: BatchHeader, offset: int, used_ms: int, before: _Producer | None, owner: object = None
) -> tuple[BatchMetadata, _Producer]:
    """Return a pending batch that lies at `offset`, and the state of its producer after it. `before` is the producer's
    state so far, None if there is none; `used_ms` the time at which it was last seen.
    """
    batch = BatchMetadata(
        header.producer_id,
        header.base_sequence,
        header.last_sequence,
        offset,
        offset + header.last_offset_delta,
        header.max_timestamp,
        owner=owner,
    )
    window = _NO_BATCHES if before is None else before.window
    return batch, _Producer(used_ms, window.then(header.producer_epoch, batch), header.max_timestamp)


def _with_marker(
    producer_id: int,
    epoch: int,
    offset: int,
    timestamp: int,
    used_ms: int,
    before: _Producer | None,
    owner: object = None,
) -> tuple[BatchMetadata, _Producer]:
    """Return a pending marker that lies at `offset`, and the state of its producer after it. `before` is the producer's
    state so far, None if there is none; a newer epoch begins an empty window.
    """
    window = _NO_BATCHES if before is None else before.window
    if epoch > window.epoch:
        window = ProducerWindow(epoch, -1)  # its next batch begins at sequence 0
    marker = BatchMetadata(producer_id, _MARKER, _MARKER, offset, offset, timestamp, owner=owner)
    return marker, _Producer(used_ms, window, timestamp)


def _refused(code: ErrorCode, text: str) -> IdempotenceVerdict[Any]:
    return IdempotenceVerdict(error=PeerError(text, code))
