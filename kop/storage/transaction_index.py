"""The transactions of a partition: which are open, where readers of committed records have to stop, which were aborted.

Owns: the first offset of each open transaction, the aborted ones by their offsets, undoing what could not be stored.
Must not know: batches, storage, who coordinates.

Calls come in the order of the log: `begin` and `end` as batches are given their offsets, later `commit` once they are
durable, or `rollback`. A transaction is open until its marker is durable: nobody may read beyond its first record
before, however the marker was given its offset.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Final, NamedTuple


class AbortedTransaction(NamedTuple):
    """An aborted transaction of one producer: its records lie from `first_offset` to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the marker."""
    last_stable_offset: int
    """The last stable offset behind the marker when it was stored: a transaction that ends later begins at or behind
    it.
    """


class _Step(NamedTuple):
    """A change that is not durable yet: a transaction that began at `offset`, or ended there."""

    producer_id: int
    offset: int
    first_offset: int
    """The first offset of the transaction; equal to `offset` if the step is its begin."""
    commit: bool | None
    """True for a commit, false for an abort; None if the step is the transaction's begin."""


_LAST_OFFSET: Final = attrgetter("last_offset")
_MARKERS: Final = AbortedTransaction._fields.index("last_offset")


class TransactionIndex:
    """The open and the aborted transactions of one partition."""

    def __init__(
        self, open_transactions: Mapping[int, int] | None = None, aborted: Iterable[AbortedTransaction] = ()
    ) -> None:
        """Begin with the transactions of a stored state: `open_transactions` are first offsets by producer id, as the
        property of that name gives them; `aborted` likewise.
        """
        begun = sorted((open_transactions or {}).items(), key=lambda item: item[1])
        self._first_offsets: OrderedDict[int, int] = OrderedDict((first, producer) for producer, first in begun)
        """The producer ids by the first offsets of transactions whose marker is not durable, in the order of the
        log.
        """
        self._producers: dict[int, int] = dict(begun)
        """The first offsets by producer ids of transactions that have no marker yet."""
        self._aborted = _columns(aborted)
        """The aborted transactions in the order of their markers, as numbers: there may be hundreds of thousands."""
        self._steps: deque[_Step] = deque()

    @property
    def first_open(self) -> int | None:
        """The first offset of the oldest open transaction, at which readers of committed records stop; None if none is
        open.
        """
        return next(iter(self._first_offsets), None)

    def last_stable(self, log_start_offset: int, high_watermark: int) -> int:
        """Return the last stable offset of the log, given its log start offset and high watermark."""
        first_open = self.first_open
        return high_watermark if first_open is None else min(max(first_open, log_start_offset), high_watermark)

    def first_offset(self, producer_id: int) -> int | None:
        """Return the first offset of a producer's open transaction; None if it has none, or if a marker that ends it
        has its offset already, durable or not.
        """
        return self._producers.get(producer_id)

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offsets of the open transactions by producer ids, counting only durable batches and markers."""
        durable = {producer_id: first for first, producer_id in self._first_offsets.items()}
        for step in reversed(self._steps):
            if step.commit is None and durable.get(step.producer_id) == step.first_offset:
                del durable[step.producer_id]
            elif step.commit is not None:
                durable[step.producer_id] = step.first_offset
        return durable

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions that may still be read, in the order of their markers. Each call makes the list."""
        return [AbortedTransaction._make(row) for row in zip(*self._aborted, strict=True)]

    def aborted_copy(self) -> Iterator[AbortedTransaction]:
        """Return the present `aborted`, one by one, for another thread: a copy is taken at once, and is small."""
        columns = [column[:] for column in self._aborted]
        return map(AbortedTransaction._make, zip(*columns, strict=True))

    def aborted_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Yield those of `aborted` whose markers lie at or behind the offset, one by one; nothing may change
        meanwhile.
        """
        for index in range(self._aborted_before(offset), len(self._aborted[0])):
            yield AbortedTransaction._make(column[index] for column in self._aborted)

    def has_aborted_before(self, offset: int) -> bool:
        """Return true if there are aborted transactions whose markers lie before the offset."""
        return self._aborted_before(offset) > 0

    def _aborted_before(self, offset: int) -> int:
        return bisect_left(self._aborted[_MARKERS], offset)

    def begin(self, producer_id: int, offset: int) -> None:
        """Note that a transactional batch lies at the offset; it begins a transaction if its producer has none."""
        if producer_id not in self._producers:
            self._steps.append(_Step(producer_id, offset, offset, None))  # first: it undoes the rest
            self._producers[producer_id] = offset
            self._first_offsets[offset] = producer_id

    def end(self, producer_id: int, offset: int, *, commit: bool) -> None:
        """Note that a marker lies at the offset, which ends the producer's transaction. Nothing changes if it has none:
        markers may be repeated.
        """
        first_offset = self._producers.get(producer_id)
        if first_offset is not None:
            self._steps.append(_Step(producer_id, offset, first_offset, commit))
            del self._producers[producer_id]

    def commit(self, end: int) -> None:
        """Note that all batches and markers before the offset `end` are durable. Transactions whose markers are among
        them are no longer open, and those that were aborted are in `aborted` from now on.
        """
        while self._steps and self._steps[0].offset < end:
            step = self._steps.popleft()
            if step.commit is None:
                continue
            del self._first_offsets[step.first_offset]
            if not step.commit:
                stable = step.offset + 1  # one that begins behind the marker may still be undone
                if self.first_open is not None:
                    stable = min(stable, self.first_open)
                aborted = AbortedTransaction(step.producer_id, step.first_offset, step.offset, stable)
                for column, value in zip(self._aborted, aborted, strict=True):
                    column.append(value)

    def rollback(self, offset: int) -> None:
        """Undo the begins and ends of transactions at or behind the offset, since those batches and markers were not
        stored.
        """
        while self._steps and self._steps[-1].offset >= offset:
            step = self._steps.pop()
            if step.commit is None:
                self._producers.pop(step.producer_id, None)
                self._first_offsets.pop(step.first_offset, None)
            else:
                self._producers[step.producer_id] = step.first_offset

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions of which records may lie from the offset `start` on and before `end`."""
        overlapping = []
        for transaction in self.aborted_from(start):
            if transaction.first_offset < end:
                overlapping.append(transaction)
            if transaction.last_stable_offset >= end:
                break
        return overlapping

    def drop_markers(self, offsets: Container[int]) -> None:
        """Forget the aborted transactions whose markers were at these offsets: compaction has removed all of their
        records.

        A reader that was told of one would look for its marker, and take later records of the producer for aborted.
        """
        kept = [last_offset not in offsets for last_offset in self._aborted[_MARKERS]]
        self._aborted = tuple(array("q", compress(column, kept)) for column in self._aborted)

    def drop_before(self, log_start_offset: int) -> None:
        """Forget the aborted transactions that end before the log's new start. Open ones stay open."""
        before = self._aborted_before(log_start_offset)
        for column in self._aborted:
            del column[:before]


def _columns(aborted: Iterable[AbortedTransaction]) -> Sequence[array[int]]:
    """Return the fields of aborted transactions, each as an array over all transactions."""
    columns = tuple(array("q") for _ in AbortedTransaction._fields)
    for transaction in aborted:
        for column, value in zip(columns, transaction, strict=True):
            column.append(value)
    return columns


class AbortedRecords:
    """The aborted transactions of a partition, in a form that tells if a batch belongs to one."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._of_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in aborted:
            self._of_producer.setdefault(transaction.producer_id, []).append(transaction)

    def hold(self, producer_id: int, offset: int) -> bool:
        """Return true if a transactional batch of the producer at the offset belongs to an aborted transaction."""
        of_producer = self._of_producer.get(producer_id)
        if of_producer is None:
            return False
        index = bisect_left(of_producer, offset, key=_LAST_OFFSET)
        return index < len(of_producer) and of_producer[index].first_offset <= offset
