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
    """Behind the marker when it was stored: a transaction that ends later begins at or behind it."""


class _Step(NamedTuple):
    """A change that is not durable yet: a transaction began at `offset`, or ended there."""

    producer_id: int
    offset: int
    first_offset: int
    """The first offset of the transaction. It equals `offset` where the transaction began."""
    commit: bool | None
    """None: it began."""


_LAST_OFFSET: Final = attrgetter("last_offset")
_MARKERS: Final = AbortedTransaction._fields.index("last_offset")


class TransactionIndex:
    """The transactions of one partition."""

    def __init__(
        self, open_transactions: Mapping[int, int] | None = None, aborted: Iterable[AbortedTransaction] = ()
    ) -> None:
        """`open_transactions`: first offsets by producer id, as `open_transactions` gave them; `aborted` likewise."""
        begun = sorted((open_transactions or {}).items(), key=lambda item: item[1])
        self._first_offsets: OrderedDict[int, int] = OrderedDict((first, producer) for producer, first in begun)
        """Producer ids by the first offsets of transactions whose marker is not durable, in the order of the log."""
        self._producers: dict[int, int] = dict(begun)
        """First offsets by the ids of producers whose transaction has no marker yet."""
        self._aborted = _columns(aborted)
        """The aborted transactions in the order of their markers, as numbers: there may be hundreds of thousands."""
        self._steps: deque[_Step] = deque()

    @property
    def first_open(self) -> int | None:
        """The first offset of the oldest open transaction; None where none is open. It is the last stable offset."""
        return next(iter(self._first_offsets), None)

    def last_stable(self, log_start_offset: int, high_watermark: int) -> int:
        """Return the last stable offset of a log with those bounds."""
        first_open = self.first_open
        return high_watermark if first_open is None else min(max(first_open, log_start_offset), high_watermark)

    def first_offset(self, producer_id: int) -> int | None:
        """Return where a producer's open transaction begins; None where it has none."""
        return self._producers.get(producer_id)

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """First offsets by producer ids, of what is durable."""
        durable = {producer_id: first for first, producer_id in self._first_offsets.items()}
        for step in reversed(self._steps):
            if step.commit is None and durable.get(step.producer_id) == step.first_offset:
                del durable[step.producer_id]
            elif step.commit is not None:
                durable[step.producer_id] = step.first_offset
        return durable

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """All of them that may be read, in the order of their markers. Each call makes the list."""
        return [AbortedTransaction._make(row) for row in zip(*self._aborted, strict=True)]

    def aborted_copy(self) -> Iterator[AbortedTransaction]:
        """Return all of `aborted` as they are now, one by one, for another thread: a copy is taken at once, and is
        small.
        """
        columns = [column[:] for column in self._aborted]
        return map(AbortedTransaction._make, zip(*columns, strict=True))

    def aborted_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Yield those of `aborted` whose markers lie at or behind the offset, one by one; meanwhile nothing may
        change.
        """
        for index in range(self._aborted_before(offset), len(self._aborted[0])):
            yield AbortedTransaction._make(column[index] for column in self._aborted)

    def has_aborted_before(self, offset: int) -> bool:
        """Return true if there are aborted transactions whose markers lie before the offset."""
        return self._aborted_before(offset) > 0

    def _aborted_before(self, offset: int) -> int:
        return bisect_left(self._aborted[_MARKERS], offset)

    def begin(self, producer_id: int, offset: int) -> None:
        """Note that a transactional batch has the offset; it begins a transaction where the producer has none."""
        if producer_id not in self._producers:
            self._steps.append(_Step(producer_id, offset, offset, None))  # first: it undoes the rest
            self._producers[producer_id] = offset
            self._first_offsets[offset] = producer_id

    def end(self, producer_id: int, offset: int, *, commit: bool) -> None:
        """Note that a marker has the offset. Nothing changes where the producer has no transaction: markers may be
        repeated.
        """
        first_offset = self._producers.get(producer_id)
        if first_offset is not None:
            self._steps.append(_Step(producer_id, offset, first_offset, commit))
            del self._producers[producer_id]

    def commit(self, end: int) -> None:
        """Note that all that lies before the offset `end` is durable."""
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
        """Note that what lies at or behind the offset, and was not durable, is not stored."""
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
        """Forget the aborted transactions whose markers were at these offsets: compaction took all that was of them.

        A reader that was told of one would look for its marker, and take later records of the producer for aborted.
        """
        kept = [last_offset not in offsets for last_offset in self._aborted[_MARKERS]]
        self._aborted = tuple(array("q", compress(column, kept)) for column in self._aborted)

    def drop_before(self, log_start_offset: int) -> None:
        """Forget aborted transactions that end before the log starts. Open ones stay open."""
        before = self._aborted_before(log_start_offset)
        for column in self._aborted:
            del column[:before]


def _columns(aborted: Iterable[AbortedTransaction]) -> Sequence[array[int]]:
    """Return the fields of the transactions, each as an array."""
    columns = tuple(array("q") for _ in AbortedTransaction._fields)
    for transaction in aborted:
        for column, value in zip(columns, transaction, strict=True):
            column.append(value)
    return columns


class AbortedRecords:
    """Tells of batches whether they are of an aborted transaction."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._of_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in aborted:
            self._of_producer.setdefault(transaction.producer_id, []).append(transaction)

    def hold(self, producer_id: int, offset: int) -> bool:
        """Return true if a transactional batch of the producer at the offset is of an aborted transaction."""
        of_producer = self._of_producer.get(producer_id)
        if of_producer is None:
            return False
        index = bisect_left(of_producer, offset, key=_LAST_OFFSET)
        return index < len(of_producer) and of_producer[index].first_offset <= offset
