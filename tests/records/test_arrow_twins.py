"""The compiled twin of records in Arrow against the plain one, byte for byte: on what is right, and on what is damaged.

The plain one against a model of what a consumer sees of a log, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records.arrow_kit import TWINS, batch_at, decode, rows_of
from records.transcode_kit import INT64_MAX, INT64_MIN
from support.damage import damaged
from support.examples import examples

from kop.compiled import compiled
from kop.errors import ErrorCode, KopError, PeerError
from kop.records import _pure_arrow, arrow, arrow_layout, columns
from kop.records.batch import HEADER_SIZE, Codec, Record, build, iter_records, read_header, records_of
from kop.records.markers import build_marker

native: Any = compiled(_pure_arrow)
only_with_two = pytest.mark.skipif(len(TWINS) < 2, reason="kop._native was not built: there is one twin")

int64 = st.integers(INT64_MIN, INT64_MAX)
seeds = st.integers(0, 2**32)
"""Of what is drawn without hypothesis, which takes ten times as long for it."""

BYTES = [None, b"", b"a", b"key", b"\xff\0", b"x" * 40, "ü".encode()]
NAMES = [b"", b"a", b"a", b"name", b"\xff", b"\xe2\x82", b"\xf0\x90\x80", b"\xed\xa0\x80", "ü€".encode()]
TIMES = [-1, 0, 1, 1_700_000_000_000, 1_700_000_000_123, -(2**53), 2**53]


def some_records(rng: random.Random) -> list[Record]:
    """Records with gaps between their offsets, as compaction leaves them."""
    records: list[Record] = []
    offset = -1
    for _ in range(rng.choice([1, 1, 2, 5, 9, 20])):
        offset += rng.choice([1, 1, 1, 2, 9])
        headers = [(rng.choice(NAMES), rng.choice(BYTES)) for _ in range(rng.choice([0, 0, 1, 4]))]
        records.append(Record(offset, rng.choice(TIMES), rng.choice(BYTES), rng.choice(BYTES), tuple(headers)))
    return records


def broken(part: Any, seed: int) -> Any:
    """Buffers of columns, each damaged as `seed` says; the largest stay whole."""
    if isinstance(part, tuple):
        return tuple(broken(each, seed) for each in part)
    if isinstance(part, bytes | memoryview) and len(part) < 10_000:
        return damaged(bytes(part), seed)
    return part


record_lists = st.builds(some_records, st.builds(random.Random, seeds))


def body_of(records: list[Record]) -> bytes:
    batch = bytes(build(records, base_offset=0))
    return records_of(batch, read_header(batch), max_bytes=1 << 20)


def outcome(function: Callable[..., Any], *args: object) -> Any:
    try:
        return function(*args)
    except KopError as error:
        return type(error), error.code, getattr(error, "offset", None)


def chunks(twin: ModuleType, limits: tuple[bool, int, int], calls: list[tuple[Any, ...]]) -> Any:
    builder = twin.RowBuilder(*limits)

    def all_of_them() -> list[Any]:
        return [part for call in calls for part in builder.add(*call)] + [builder.finish(), builder.finish()]

    return outcome(all_of_them)


limits = st.tuples(st.booleans(), st.integers(1, 20), st.integers(1, 300))
ranges = st.tuples(st.integers(0, 30), st.integers(0, 60))


@only_with_two
@settings(deadline=None, max_examples=examples(300))
@given(
    limits,
    st.lists(st.tuples(record_lists, st.integers(0, 40), st.none() | st.just(7), ranges), max_size=4),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_records_to_chunks(limits: tuple[bool, int, int], batches: list[Any], form: type) -> None:
    calls = [
        (
            form(body_of(records)), len(records), base, records[-1].offset, records[0].timestamp, append_time, low, high
        )
        for records, base, append_time, (low, high) in batches
    ]  # fmt: skip
    made = chunks(_pure_arrow, limits, calls)
    assert chunks(native, limits, calls) == made
    assert isinstance(made, list)


@only_with_two
@settings(deadline=None, max_examples=examples(1000))
@given(
    record_lists,
    seeds,
    limits,
    st.integers(-1, 1),
    st.integers(-1, 1),
    st.one_of(int64, st.just(0)),
    st.sampled_from([0, 5, INT64_MAX - 5]),
    st.one_of(st.none(), int64),
    ranges,
)
def test_damaged_records(
    records: list[Record], seed: int, limits: tuple[bool, int, int], more: int, further: int, base_timestamp: int,
    base_offset: int, append_time: int | None, wanted: tuple[int, int],
) -> None:  # fmt: skip
    until = INT64_MAX if base_offset > 5 else wanted[1]
    call = (
        damaged(body_of(records), seed), len(records) + more, base_offset, records[-1].offset + further,
        base_timestamp, append_time, wanted[0], until,
    )  # fmt: skip
    assert chunks(native, limits, [call]) == chunks(_pure_arrow, limits, [call])


@only_with_two
@settings(deadline=None, max_examples=examples(500))
@given(st.binary(max_size=40), st.integers(-1, 3), st.integers(-2, 5), limits)
def test_any_bytes(data: bytes, count: int, last: int, limits: tuple[bool, int, int]) -> None:
    calls = [(data, count, 0, last, 0, None, 0, 100)]
    assert chunks(native, limits, calls) == chunks(_pure_arrow, limits, calls)


@only_with_two
def test_small_batches_are_taken_together() -> None:
    good = [Record(at, 5, b"k", b"v", ((b"h", None),)) for at in range(16)]
    data = batch_at(3, good) + batch_at(19, good[:1], log_append_time=True) + batch_at(25, good[:2], last_offset=8)
    for other in (
        batch_at(34, good, codec=Codec.LZ4),
        batch_at(34, [*good, good[0]._replace(offset=16)]),
        batch_at(34, good)[:-1],
        batch_at(34, good)[:-1] + b"x",
        batch_at(34, [Record(0, 2**62, None, None)]),
        bytes(build_marker(1, 0, commit=True, coordinator_epoch=0, timestamp=1, offset=34)),
        b"",
        bytes(61),
    ):
        builder = native.RowBuilder(True, 10, 1000)
        full, pos, done = builder.add_small(data + other, 0, 5, 100, 1 << 20)
        assert (pos, done, len(full)) == (len(data), 34, 1)
        ((rows, next_offset, *_),) = full
        assert (rows, next_offset) == (10, 15)
        assert builder.finish()[:2] == (7, 27)
    builder = native.RowBuilder(True, 10, 1000)
    assert builder.add_small(data, 0, 5, 19, 1 << 20)[2] == 19
    assert builder.add_small(data, len(data), 19, 30, 1 << 20) == ([], len(data), 19)
    assert builder.add_small(data, 0, 5, 30, 10) == ([], 0, 5)


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows_by(rng: random.Random, names_may_miss: bool) -> pa.RecordBatch:
    """A slice of rows, of all columns or only some."""
    count = rng.randint(1, 20)

    def column(kind: pa.DataType, value: Callable[[], Any]) -> pa.Array:
        return pa.array([None if rng.random() < 0.2 else value() for _ in range(count)], kind)

    def header() -> Any:
        if names_may_miss and rng.random() < 0.02:
            return rng.choice([None, {"key": None, "value": b""}])
        return {"key": rng.choice(NAMES).decode(errors="replace"), "value": rng.choice(BYTES)}

    def timestamp() -> int:
        return rng.choice([-1, 0, 999, -1000, INT64_MIN, INT64_MAX, 1_700_000_000_123_456])

    made = {
        "key": column(pa.binary(), lambda: rng.choice(BYTES)),
        "value": column(pa.binary(), lambda: rng.choice(BYTES)),
        "headers": column(HEADERS, lambda: [header() for _ in range(rng.choice([0, 1, 3]))]),
        "timestamp": column(pa.timestamp(rng.choice(["ms", "us", "ns"])), timestamp),
    }
    made = {name: array for name, array in made.items() if rng.random() < 0.8} or {"value": pa.nulls(count)}
    rows = pa.RecordBatch.from_arrays(list(made.values()), names=list(made))
    return rows.slice(rng.randrange(count))


def some_rows(names_may_miss: bool = False) -> st.SearchStrategy[pa.RecordBatch]:
    return st.builds(rows_by, st.builds(random.Random, seeds), st.just(names_may_miss))


def pieces(rows: pa.RecordBatch, **how: Any) -> list[tuple[bytes, int, int]]:
    return [
        (bytes(piece.batch), piece.records, piece.max_timestamp)
        for piece in arrow.encode(rows, arrow.EncodeSettings(**how))
    ]


@settings(deadline=None, max_examples=examples(300))
@given(some_rows(names_may_miss=True), st.integers(HEADER_SIZE + 1, 200), int64)
def test_rows_to_batches(rows: pa.RecordBatch, max_bytes: int, now: int) -> None:
    answers = set()
    for param in TWINS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "twin", param.values[0])
            answers.add(str(outcome(lambda: pieces(rows, max_bytes=max_bytes, now=now))))
    assert len(answers) == 1


@settings(deadline=None, max_examples=examples(300))
@given(some_rows(), st.sampled_from(list(Codec)))
def test_rows_are_what_their_batches_hold(rows: pa.RecordBatch, codec: Codec) -> None:
    for param in TWINS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "twin", param.values[0])
            made = pieces(rows, max_bytes=1 << 20, now=5, codec=codec)
        records = [record for batch, _, _ in made for record in iter_records(batch, max_bytes=1 << 20)]
        assert len(records) == rows.num_rows == sum(count for _, count, _ in made)
        have = rows.schema.names
        plain = rows.drop_columns(["timestamp"]).to_pylist() if "timestamp" in have else rows.to_pylist()
        for record, row in zip(records, plain or [{}] * len(records), strict=True):
            assert (record.key, record.value) == (row.get("key"), row.get("value"))
            assert list(record.headers) == [
                (header["key"].encode(), header["value"]) for header in row.get("headers") or ()
            ]
        if "timestamp" in have:
            column = rows.column("timestamp")
            divisor = {"ms": 1, "us": 1000, "ns": 1_000_000}[column.type.unit]
            expected = [5 if at is None else at // divisor for at in column.cast(pa.int64()).to_pylist()]
            assert [record.timestamp for record in records] == expected


@only_with_two
@settings(deadline=None, max_examples=examples(500))
@given(some_rows(names_may_miss=True), seeds, st.integers(0, 300))
def test_buffers_of_rows_that_do_not_fit(rows: pa.RecordBatch, seed: int, room: int) -> None:
    """No buffer is read beyond its end, and no offsets are believed."""

    taken: list[Any] = []

    class Recorder:
        @staticmethod
        def encode_rows(*args: Any) -> Any:
            taken.append(args)
            return b"", 0, -1, -1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "twin", Recorder)
        outcome(lambda: pieces(rows, max_bytes=1000, now=5))
    ((_, count, *parts, now, _),) = taken
    for bad in (tuple(parts), broken(tuple(parts), seed)):
        args = (0, count, *bad, now, room)
        assert outcome(native.encode_rows, *args) == outcome(_pure_arrow.encode_rows, *args)


@only_with_two
@settings(deadline=None, max_examples=examples(200))
@given(st.lists(st.none() | st.binary(max_size=20), max_size=20), st.integers(1, 2**31 - 1), st.none() | seeds)
def test_partitions_of_keys(keys: list[bytes | None], count: int, seed: int | None) -> None:
    _, offsets, data = pa.array(keys, pa.binary()).buffers()
    column: tuple[int, bytes | None, bytes, bytes] = (0, None, bytes(offsets or b""), bytes(data or b""))
    if seed is not None:
        column = (0, damaged(column[2], seed), damaged(column[2], seed), column[3])
    rows = len(keys)
    assert outcome(native.partitions_of, rows, column, count) == outcome(_pure_arrow.partitions_of, rows, column, count)


def some_digests(rows: pa.RecordBatch) -> set[Any]:
    digests = set()
    for param in TWINS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "twin", param.values[0])
            digests.add(str(outcome(lambda: arrow.digest(rows))))
    return digests


@settings(deadline=None, max_examples=examples(300))
@given(some_rows(names_may_miss=True), seeds)
def test_digests_of_rows(rows: pa.RecordBatch, seed: int) -> None:
    rng = random.Random(seed)
    count = rows.num_rows
    topics = pa.array([rng.choice([None, "", "t", "ü" * 70]) for _ in range(count)], pa.string())
    partitions = pa.array([rng.choice([None, -1, 0, 2**31 - 1]) for _ in range(count)], pa.int32())
    placed = rows.append_column("topic", topics).append_column("partition", partitions)
    digests = some_digests(placed)
    assert len(digests) == 1
    order = rng.sample(range(count), count)
    assert some_digests(placed.take(pa.array(order, pa.int64()))) == digests


@only_with_two
@settings(deadline=None, max_examples=examples(200))
@given(st.binary(max_size=600))
def test_digest_of_long_values(value: bytes) -> None:
    """A value that fills blocks of the hash wholly, or not."""
    assert len(some_digests(pa.record_batch({"value": [value, value[1:]]}))) == 1


@only_with_two
@pytest.mark.parametrize("size", [0, 1000, 40_000, 70_000])
def test_digest_of_more_rows_than_are_hashed_side_by_side(size: int) -> None:
    rows = pa.record_batch({"value": [b"%d" % number + bytes(size) for number in range(150)]})
    assert len(some_digests(rows)) == 1
    by_row = [arrow.digest(rows.slice(number, 1)) for number in range(150)]
    assert arrow.digest(rows) == sum(by_row) % (1 << 128)


@only_with_two
@settings(deadline=None, max_examples=examples(300))
@given(some_rows(), seeds)
def test_buffers_of_digests_that_do_not_fit(rows: pa.RecordBatch, seed: int) -> None:
    taken: list[Any] = []

    class Recorder:
        @staticmethod
        def digest_of(*args: Any) -> bytes:
            taken.append(args)
            return b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "twin", Recorder)
        arrow.digest(rows)
    ((count, *parts),) = taken
    bad = broken(tuple(parts), seed)
    assert outcome(native.digest_of, count, *bad) == outcome(_pure_arrow.digest_of, count, *bad)


# Whole responses


def log_by(rng: random.Random) -> tuple[bytes, list[tuple[int, int]], list[Any], list[Any], int]:
    """A log's bytes, the aborted transactions, all rows, the committed ones, and the offset behind the last batch."""
    data, offset = b"", rng.randint(0, 5)
    everything: list[Any] = []
    committed: list[Any] = []
    aborted: list[tuple[int, int]] = []
    open_since: dict[int, int] = {}
    pending: dict[int, list[Any]] = {}
    for _ in range(rng.randint(1, 8)):
        offset += rng.choice([0, 0, 3])
        producer = rng.randint(-1, 2)
        if producer in open_since and rng.random() < 0.5:
            commit = rng.random() < 0.5
            data += bytes(build_marker(producer, 0, commit=commit, coordinator_epoch=0, timestamp=1, offset=offset))
            since = open_since.pop(producer)
            if commit:
                committed += pending.pop(producer)
            else:
                aborted.append((producer, since))
                del pending[producer]
            offset += 1
            continue
        records = some_records(rng)
        in_transaction = producer >= 0 and rng.random() < 0.8
        log_append_time = rng.random() < 0.5
        last = records[-1].offset + rng.choice([0, 0, 4])
        data += batch_at(
            offset,
            records,
            codec=rng.choice(list(Codec)),
            last_offset=last,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1,
            transactional=in_transaction,
            log_append_time=log_append_time,
        )
        latest = max(record.timestamp for record in records)
        rows = [
            (
                offset + record.offset,
                latest if log_append_time else record.timestamp,
                record.key,
                record.value,
                tuple((name.decode(errors="replace").encode(), value) for name, value in record.headers),
            )
            for record in records
        ]
        everything += rows
        if in_transaction:
            open_since.setdefault(producer, offset)
            pending.setdefault(producer, []).extend(rows)
        else:
            committed += rows
        offset += last + 1
    # As the last stable offset keeps what is open from readers, the model ends it.
    for producer, rows in pending.items():
        committed += rows
        data += bytes(build_marker(producer, 0, commit=True, coordinator_epoch=0, timestamp=1, offset=offset))
        offset += 1
    return data, aborted, everything, sorted(committed, key=lambda row: row[0]), offset


logs = st.builds(log_by, st.builds(random.Random, seeds))


@settings(deadline=None, max_examples=examples(100))
@given(logs, st.integers(0, 40), st.none() | st.integers(0, 60), st.integers(1, 9), st.integers(1, 200))
def test_a_response_gives_what_a_consumer_sees(log: Any, start: int, end: int | None, rows: int, size: int) -> None:
    data, aborted, everything, committed, behind = log
    last = 2**62 if end is None else end
    for param in TWINS:
        for about, seen in ((None, everything), (aborted, committed)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(columns, "twin", param.values[0])
                decoded = decode(data, start, end=end, aborted=about, max_rows=rows, max_bytes=size)
                batches = list(decoded)
            assert rows_of(batches) == [row for row in seen if start <= row[0] < last]
            assert all(batch.num_rows <= rows for batch in batches)
            reached = max(start, min(behind, last))
            assert decoded.next_offset == reached or reached < decoded.next_offset == last
            assert decoded.cut_off == 0


@settings(deadline=None, max_examples=examples(500))
@given(logs, seeds, st.booleans(), st.integers(1, 9), st.none() | st.integers(0, 30))
def test_a_damaged_response_gives_both_twins_the_same(
    log: Any, seed: int, headers: bool, rows: int, end: int | None
) -> None:
    data = damaged(log[0], seed)

    def read() -> Any:
        decoded = decode(data, 0, end=end, aborted=log[1], headers=headers, max_rows=rows)
        return rows_of(list(decoded)), decoded.next_offset, decoded.cut_off

    answers = []
    for param in TWINS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "twin", param.values[0])
            answers.append(outcome(read))
    assert answers[0] == answers[-1]
    if isinstance(
        answers[0][0], list
    ):  # what is not refused is a part of the log: bytes outside of checksums may differ
        assert {row[1:4] for row in answers[0][0]} <= {row[1:4] for row in log[2]}


# -- columns of items


item_lists = st.lists(st.sampled_from(BYTES), max_size=40)


@settings(deadline=None, max_examples=examples(100))
@given(item_lists, seeds)
def test_items_become_a_column_and_come_back(items: list[bytes | None], seed: int) -> None:
    column = arrow_layout.column_of(items)
    assert native.column_of(items) == column
    assert native.items_of(column) == arrow_layout.items_of(column) == items
    if native is not _pure_arrow:  # which is given only what it has made itself
        hurt = broken(column, seed)
        got = outcome(lambda: native.items_of(hurt))
        assert isinstance(got, tuple) or len(got) == max(0, len(hurt[2]) // 4 - 1)


def test_other_buffers_are_items() -> None:
    items: Any = [bytearray(b"a"), memoryview(b"bc"), None]
    assert native.column_of(items) == arrow_layout.column_of(items)
    with pytest.raises((TypeError, BufferError)):
        native.column_of([1])


runs = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=4).map(tuple), st.integers(0, 5)), max_size=6)


@settings(deadline=None, max_examples=examples(100))
@given(runs)
def test_sizes_in_runs_are_offsets(some: list[tuple[tuple[int, ...], int]]) -> None:
    expected, end = [0], 0
    for sizes, times in some:
        for size in sizes * times:
            end += size
            expected.append(end)
    for twin in (_pure_arrow, native):
        assert memoryview(twin.repeated_offsets(some)).cast("i").tolist() == expected


@pytest.mark.parametrize("twin", TWINS)
def test_too_much_for_a_column_is_refused(twin: Any) -> None:
    with pytest.raises(PeerError, match="in a column") as refused:
        twin.repeated_offsets([((2**30,), 1), ((2**30,), 1)])
    assert refused.value.code == ErrorCode.INVALID_RECORD
