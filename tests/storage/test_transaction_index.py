"""Open and aborted transactions of a partition, against a model that looks at the whole log each time."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kop.storage.transaction_index import AbortedTransaction, TransactionIndex


@dataclass
class Entry:
    offset: int
    producer_id: int
    commit: bool | None
    """None: data."""


class Model:
    """A log of data and markers, one offset each."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.durable = 0

    def spans(self) -> list[tuple[int, int, int | None, bool | None]]:
        """Producer, first offset, offset of the marker, commit; the last two None while it is open."""
        rows: list[tuple[int, int, int | None, bool | None]] = []
        begun: dict[int, int] = {}
        for entry in self.log:
            if entry.commit is None:
                begun.setdefault(entry.producer_id, entry.offset)
            elif entry.producer_id in begun:
                rows.append((entry.producer_id, begun.pop(entry.producer_id), entry.offset, entry.commit))
        return rows + [(producer_id, first, None, None) for producer_id, first in begun.items()]

    def first_open(self) -> int | None:
        return min(
            (first for _, first, marker, _ in self.spans() if marker is None or marker >= self.durable), default=None
        )

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        return sorted(
            (marker, producer_id, first)
            for producer_id, first, marker, commit in self.spans()
            if marker is not None and not commit and marker < self.durable and marker >= start and first < end
        )


steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(0, 3)),
        st.tuples(st.just("commit"), st.integers(0, 3)),
        st.tuples(st.just("abort"), st.integers(0, 3)),
        st.tuples(st.just("durable"), st.integers(1, 6)),
        st.tuples(st.just("rollback"), st.integers(1, 6)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_it_says_what_the_log_says(done: list[tuple[str, int]]) -> None:
    model, index = Model(), TransactionIndex()
    for kind, number in done:
        offset = len(model.log)
        if kind == "data":
            model.log.append(Entry(offset, number, None))
            index.begin(number, offset)
        elif kind in ("commit", "abort"):
            model.log.append(Entry(offset, number, kind == "commit"))
            index.end(number, offset, commit=kind == "commit")
        elif kind == "durable":
            model.durable = min(model.durable + number, offset)
            index.commit(model.durable)
        elif kind == "rollback":
            to = max(model.durable, offset - number)
            del model.log[to:]
            index.rollback(to)
        else:  # what was not durable is gone
            index = TransactionIndex(index.open_transactions, index.aborted)
            del model.log[model.durable :]
        assert index.first_open == model.first_open()
        # A reader of committed records goes no further than the last stable offset.
        stable = index.first_open if index.first_open is not None else model.durable
        for start in range(0, stable + 1, 3):
            aborted = index.aborted_between(start, stable)
            assert [
                (transaction.last_offset, transaction.producer_id, transaction.first_offset) for transaction in aborted
            ] == model.aborted(start, stable)


@given(steps)
def test_what_is_told_for_a_part_of_the_log_covers_it(done: list[tuple[str, int]]) -> None:
    model, index = Model(), TransactionIndex()
    for kind, number in done:
        offset = len(model.log)
        if kind == "data":
            model.log.append(Entry(offset, number, None))
            index.begin(number, offset)
        elif kind in ("commit", "abort"):
            model.log.append(Entry(offset, number, kind == "commit"))
            index.end(number, offset, commit=kind == "commit")
        model.durable = len(model.log)
        index.commit(model.durable)
    stable = index.first_open if index.first_open is not None else model.durable
    for start in range(0, stable, 2):
        for end in range(start, stable + 1, 2):
            told = {
                (transaction.last_offset, transaction.producer_id, transaction.first_offset)
                for transaction in index.aborted_between(start, end)
            }
            assert told >= set(model.aborted(start, end))


def test_what_is_undone_hides_no_later_aborted_transaction() -> None:
    """Producer 2 began behind a marker that became durable, and is undone: another transaction takes its place."""
    index = TransactionIndex()
    index.begin(1, 0)
    index.end(1, 1, commit=False)
    index.begin(2, 20)
    index.commit(2)
    index.rollback(2)
    index.begin(3, 2)
    index.end(3, 5, commit=False)
    index.commit(6)
    assert [aborted.producer_id for aborted in index.aborted_between(0, 4)] == [1, 3]


def test_the_aborted_transactions_of_a_few_batches_are_found_among_many() -> None:
    """A look-up costs what it finds, and each transaction is kept in a few dozen bytes."""
    index, many = TransactionIndex(), 100_000
    tracemalloc.start()
    for number in range(many):
        index.begin(10**9 + number % 50, 10**9 + 2 * number)
        index.end(10**9 + number % 50, 10**9 + 2 * number + 1, commit=False)
        index.commit(10**9 + 2 * number + 2)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert [aborted.first_offset for aborted in index.aborted_between(10**9, 10**9 + 4)] == [10**9, 10**9 + 2]
    assert next(iter(index.aborted_from(10**9 + many))).last_offset == 10**9 + many + 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 64 * many
    assert peak - kept < 64 * 1024


def test_aborted_ones_go_behind_the_log_start() -> None:
    index = TransactionIndex()
    for producer_id in range(3):
        index.begin(producer_id, 10 * producer_id)
        index.end(producer_id, 10 * producer_id + 5, commit=False)
    index.commit(100)
    index.drop_before(6)
    assert [transaction.producer_id for transaction in index.aborted] == [1, 2]
    index.drop_before(15)
    assert [transaction.producer_id for transaction in index.aborted] == [1, 2]
    index.drop_before(1000)
    assert index.aborted == []


def test_a_marker_that_is_not_durable_lets_nobody_pass() -> None:
    index = TransactionIndex()
    index.begin(7, 4)
    index.end(7, 6, commit=False)
    assert (index.first_open, index.first_offset(7), index.aborted) == (4, None, [])
    index.begin(7, 8)  # the next transaction of the producer
    index.commit(7)
    assert (index.first_open, index.first_offset(7)) == (8, 8)
    assert index.aborted == [AbortedTransaction(7, 4, 6, 7)]
    assert index.open_transactions == {}  # the batch at 8 is not durable
    index.commit(9)
    assert index.open_transactions == {7: 8}
