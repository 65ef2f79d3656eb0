"""What a partition remembers of idempotent producers, so that a retried batch is stored once (KIP-98, KIP-360).

Owns: epochs, sequences, the window of the last five batches, undoing what could not be committed.
Must not know: storage, futures, clocks.

How it stays right when commits fail: a producer's state is a value that is replaced, never changed. Each append keeps
the value that it replaced, in order; a rollback puts those values back, newest first. So a window after a rollback is
the very window of before, whatever happened: a new producer, a new epoch, a batch that fell out of the window.

As in Kafka 4.3: a producer that is not known may start at any sequence and epoch, a new epoch starts at sequence 0,
2147483647 is followed by 0, a batch that is not the next one is OUT_OF_ORDER_SEQUENCE_NUMBER, also one that is older
than the window. Retention and DeleteRecords do not forget producers, only time does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from kop.errors import ErrorCode, InternalError, PeerError
from kop.records.batch import BatchHeader, add_sequence

WINDOW: Final = 5
"""Batches remembered of each producer: as many as a client may have in flight."""

Snapshot: TypeAlias = list[Any]
"""Committed state as JSON can hold it: [producer_id, epoch, last_used, [[base_sequence, ...], ...]] each."""


@dataclass(slots=True, eq=False)
class Entry:
    """One batch in a producer's window. Duplicates of it are answered with its offsets."""

    producer_id: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """The batch's max timestamp (ms), for DescribeProducers."""
    pending: bool = True
    """Not durable yet: a duplicate has to wait for it."""
    owner: object = None
    """The caller's, untouched here: the future of a pending batch, say."""


class Kind(Enum):
    """What a batch is, seen from the window."""

    NEW = "new"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


class Verdict(NamedTuple):
    """The answer of `check`."""

    kind: Kind
    entry: Entry | None = None
    """The original of a DUPLICATE."""
    error: PeerError | None = None
    """Why it is REFUSED."""


class ProducerInfo(NamedTuple):
    """What DescribeProducers tells of a producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int


class _Producer(NamedTuple):
    epoch: int
    last_used: int
    window: tuple[Entry, ...]
    """Oldest first, never empty, all of `epoch`."""


_NEW: Final = Verdict(Kind.NEW)


class ProducerStates:
    """The producers of one partition. Calls come in log order: check, append, later commit or rollback."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._pending: deque[tuple[Entry, _Producer | None]] = deque()
        """Appends not committed yet in log order, each with the state that it replaced."""

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> Verdict:
        """NEW (also without a producer id), DUPLICATE of a batch in the window, or REFUSED.

        REFUSED with INVALID_PRODUCER_EPOCH (an older epoch) or OUT_OF_ORDER_SEQUENCE_NUMBER. Changes nothing.
        """
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        if producer_id < 0:
            return _NEW
        known = self._producers.get(producer_id)
        if known is None:
            return _NEW
        if epoch == known.epoch:
            expected = add_sequence(known.window[-1].last_sequence, 1)
            if sequence == expected:
                return _NEW
            last_sequence = header.last_sequence
            for entry in known.window:
                if entry.base_sequence == sequence and entry.last_sequence == last_sequence:
                    return Verdict(Kind.DUPLICATE, entry)
        elif epoch < known.epoch:
            return _refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {known.epoch}, the batch is of epoch {epoch}",
            )
        else:
            expected = 0
            if sequence == expected:
                return _NEW
        return _refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} in epoch {epoch} sent sequence {sequence}, {expected} comes next",
        )

    def append(self, header: BatchHeader, offset: int, now_ms: int) -> Entry | None:
        """Take a batch that `check` found NEW, to lie at `offset`; None where it has no producer id.

        It counts from now on, and is pending until `commit`. `now_ms` is when the producer was last seen.
        """
        if header.producer_id < 0:
            return None
        before = self._producers.get(header.producer_id)
        entry = self._put(header, offset, now_ms, before)
        self._pending.append((entry, before))
        return entry

    def commit(self, entry: Entry) -> None:
        """`entry`, and with it every pending batch before it, is durable."""
        if not entry.pending:
            return
        if all(pending is not entry for pending, _ in self._pending):
            raise InternalError(f"the batch at offset {entry.base_offset} was undone")
        while entry.pending:
            self._pending.popleft()[0].pending = False

    def rollback(self, offset: int) -> list[Entry]:
        """Undo every pending batch that lies at or beyond `offset`; returns them, oldest first."""
        undone: list[Entry] = []
        while self._pending and self._pending[-1][0].base_offset >= offset:
            entry, before = self._pending.pop()
            if before is None:
                del self._producers[entry.producer_id]
            else:
                self._producers[entry.producer_id] = before
            undone.append(entry)
        undone.reverse()
        return undone

    def expire(self, now_ms: int, ttl_ms: int) -> int:
        """Forget producers not seen for `ttl_ms` (producer.id.expiration.ms); returns how many. Pending ones stay."""
        busy = {entry.producer_id for entry, _ in self._pending}
        idle = [
            producer_id
            for producer_id, known in self._producers.items()
            if now_ms - known.last_used >= ttl_ms and producer_id not in busy
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        return len(idle)

    def replay(self, header: BatchHeader, offset: int, now_ms: int) -> None:
        """Take a stored batch into the state, on start: batches in log order, from where the snapshot was made.

        Nothing is checked, the log is the truth; a batch that the snapshot holds already changes nothing.
        """
        if header.producer_id < 0 or header.base_sequence < 0 or header.control:
            return
        before = self._producers.get(header.producer_id)
        if before is not None and before.window[-1].last_offset >= offset:
            return
        self._put(header, offset, now_ms, before).pending = False

    def snapshot(self) -> Snapshot:
        """The committed state; what is pending is not in it. For `restore`, by way of JSON."""
        return [
            [
                producer_id,
                known.epoch,
                known.last_used,
                [[e.base_sequence, e.last_sequence, e.base_offset, e.last_offset, e.timestamp] for e in known.window],
            ]
            for producer_id, known in self._committed().items()
        ]

    @classmethod
    def restore(cls, snapshot: Snapshot) -> ProducerStates:
        """The state that `snapshot` gave. InternalError where it is something else."""
        states = cls()
        try:
            for producer_id, epoch, last_used, batches in snapshot:
                window = tuple(
                    Entry(producer_id, base_sequence, last_sequence, base_offset, last_offset, timestamp, pending=False)
                    for base_sequence, last_sequence, base_offset, last_offset, timestamp in batches
                )
                if not 0 < len(window) <= WINDOW:
                    raise ValueError(f"{len(window)} batches of producer {producer_id}")
                states._producers[producer_id] = _Producer(epoch, last_used, window)
        except (TypeError, ValueError) as error:
            raise InternalError(f"snapshot of producers cannot be read: {error}") from error
        return states

    def views(self) -> Sequence[ProducerInfo]:
        """The committed producers, by id."""
        return [
            ProducerInfo(producer_id, known.epoch, known.window[-1].last_sequence, known.window[-1].timestamp)
            for producer_id, known in sorted(self._committed().items())
        ]

    def _put(self, header: BatchHeader, offset: int, now_ms: int, before: _Producer | None) -> Entry:
        entry = Entry(
            header.producer_id,
            header.base_sequence,
            header.last_sequence,
            offset,
            offset + header.last_offset_delta,
            header.max_timestamp,
        )
        older: tuple[Entry, ...] = ()
        if before is not None and before.epoch == header.producer_epoch:
            older = before.window[1 - WINDOW :]
        self._producers[header.producer_id] = _Producer(header.producer_epoch, now_ms, (*older, entry))
        return entry

    def _committed(self) -> dict[int, _Producer]:
        producers = dict(self._producers)
        for entry, before in reversed(self._pending):
            if before is None:
                del producers[entry.producer_id]
            else:
                producers[entry.producer_id] = before
        return producers


def _refused(code: ErrorCode, text: str) -> Verdict:
    return Verdict(Kind.REFUSED, error=PeerError(text, code))
