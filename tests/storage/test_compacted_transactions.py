"""What compaction makes of transactions: aborted records go, markers follow when no record of theirs is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from kop.records.batch import TRANSACTIONAL_BIT, Buffer, Record, build, iter_records, read_header
from kop.records.markers import build_marker, read_marker
from kop.storage.compaction import NewestOffsets
from kop.storage.transaction_index import AbortedRecords, AbortedTransaction, TransactionIndex

NOW, HORIZON = 1_700_000_000_000, 1_700_000_086_400
BOUND = 1 << 20


class CompactedLog:
    """A log of single records and markers; all of it but its last batch is cleaned in each pass."""

    def __init__(self) -> None:
        self.batches: list[Buffer] = []
        self.index = TransactionIndex()
        self.end = 0

    def put(self, producer_id: int, key: str, value: str | None) -> None:
        record = Record(self.end, NOW, key.encode(), None if value is None else value.encode())
        transactional = producer_id >= 0
        self.batches.append(build([record], producer_id=producer_id, producer_epoch=0, transactional=transactional))
        if transactional:
            self.index.begin(producer_id, self.end)
        self._next()

    def mark(self, producer_id: int, *, commit: bool) -> None:
        marker = build_marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp=NOW, offset=self.end)
        self.batches.append(marker)
        self.index.end(producer_id, self.end, commit=commit)
        self._next()

    def _next(self) -> None:
        self.end += 1
        self.index.commit(self.end)

    def clean(self, now_ms: int = NOW) -> None:
        stable = self.end if self.index.first_open is None else self.index.first_open
        newest = NewestOffsets(aborted=self.index.aborted)
        part = [batch for batch in self.batches if read_header(batch).base_offset < min(stable, self.end - 1)]
        for batch in part:
            newest.add(batch, read_header(batch))
        cleaned = [newest.clean(batch, read_header(batch), now_ms=now_ms, delete_horizon_ms=HORIZON) for batch in part]
        self.batches = [batch for batch in cleaned if batch is not None] + self.batches[len(part) :]

    @property
    def markers(self) -> list[int]:
        return [read_header(batch).base_offset for batch in self.batches if read_header(batch).control]

    def committed(self) -> dict[bytes, bytes | None]:
        """What a reader of committed records makes of the log: the newest value of each key."""
        stable = self.end if self.index.first_open is None else self.index.first_open
        values: dict[bytes, bytes | None] = {}
        for record in _committed(self.batches, self.index.aborted, stable):
            assert record.key is not None
            values[record.key] = record.value
        return {key: value for key, value in values.items() if value is not None}


def _committed(batches: Iterable[Buffer], aborted: Sequence[AbortedTransaction], end: int) -> Iterable[Record]:
    gone = AbortedRecords(aborted)
    for batch in batches:
        header = read_header(batch)
        if header.control or header.base_offset >= end:
            continue
        if header.attributes & TRANSACTIONAL_BIT and gone.hold(header.producer_id, header.base_offset):
            continue
        yield from iter_records(batch, header, max_bytes=BOUND)


def test_aborted_records_supersede_nothing_and_go() -> None:
    log = CompactedLog()
    log.put(-1, "a", "old")
    log.put(1, "a", "aborted")
    log.mark(1, commit=False)
    log.put(-1, "z", "last")
    log.clean()
    assert log.committed() == {b"a": b"old", b"z": b"last"}
    assert [read_header(batch).base_offset for batch in log.batches] == [0, 2, 3]


def test_a_marker_goes_a_pass_after_its_horizon_when_no_record_of_its_transaction_is_left() -> None:
    log = CompactedLog()
    log.put(1, "a", "1")
    log.mark(1, commit=True)
    log.put(2, "a", "2")
    log.mark(2, commit=True)
    log.put(-1, "z", "last")
    log.clean()
    assert log.markers == [1, 3]  # that of producer 1 has its horizon now, the other one has a record
    marker = log.batches[0]
    assert read_header(marker).delete_horizon
    assert read_header(marker).base_timestamp == HORIZON
    told = read_marker(marker)
    assert told is not None
    assert told.commit
    log.clean(HORIZON - 1)
    assert log.markers == [1, 3]
    log.clean(HORIZON)
    assert log.markers == [3]
    assert log.committed() == {b"a": b"2", b"z": b"last"}


def test_what_lies_behind_an_open_transaction_is_not_looked_at() -> None:
    log = CompactedLog()
    log.put(-1, "a", "1")
    log.put(1, "b", "open")
    log.put(-1, "a", "2")
    log.put(-1, "z", "last")
    log.clean()
    assert len(log.batches) == 4
    log.mark(1, commit=False)
    log.put(-1, "z", "last")
    log.clean()
    assert log.committed() == {b"a": b"2", b"z": b"last"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "commit", "abort", "clean", "later"]),
            st.integers(-1, 2),
            st.sampled_from("abc"),
            st.one_of(st.none(), st.integers(0, 99)),
        ),
        max_size=50,
    )
)
def test_readers_of_committed_records_see_the_same_before_and_after(
    steps: list[tuple[str, int, str, int | None]],
) -> None:
    log, now = CompactedLog(), NOW
    for kind, producer_id, key, value in steps:
        if kind == "put":
            log.put(producer_id, key, None if value is None else str(value))
        elif kind in ("commit", "abort"):
            if producer_id >= 0:
                log.mark(producer_id, commit=kind == "commit")
        else:
            now = now if kind == "clean" else HORIZON + 1
            before = log.committed()
            log.clean(now)
            assert log.committed() == before
    open_ones = set(log.index.open_transactions)
    for batch in log.batches:  # each record of a transaction that has ended has its marker behind it
        header = read_header(batch)
        if header.transactional and not header.control and header.producer_id not in open_ones:
            assert any(
                read_header(marker).control
                and read_header(marker).producer_id == header.producer_id
                and read_header(marker).base_offset > header.base_offset
                for marker in log.batches
            )
