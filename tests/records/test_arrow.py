"""Record batches as rows of pyarrow, in both twins: what Spark's Kafka source would give, nothing left out silently."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2
from kafka.record import MemoryRecordsBuilder
from records.arrow_kit import batch_at, decode, numbered, offsets_of, rows_of, twin
from support.damaged_batches import RECORDS, around, bomb, record, sealed

from kop.errors import ErrorCode, InternalError, PeerError
from kop.records import arrow
from kop.records.batch import HEADER_SIZE, Codec, Record, build, read_header, stamp
from kop.records.markers import build_marker

__all__ = ["twin"]
pytestmark = pytest.mark.usefixtures("twin")

ALL_KINDS = [
    Record(0, 1_700_000_000_123, b"key", b"value"),
    Record(1, 0, None, None),
    Record(2, -1, b"", b""),
    Record(3, 5, b"\xff\x00", b"x" * 300, ((b"a", b"1"), (b"a", None), (b"", b""), (b"a", b"1"))),
    Record(4, 1_700_000_000_000, None, b"v", tuple((b"h%d" % index, b"x" * index) for index in range(200))),
]


def plain(record: Record, offset: int) -> tuple[object, ...]:
    return (offset, record.timestamp, record.key, record.value, tuple(record.headers))


def test_columns_are_those_of_sparks_kafka_source() -> None:
    decoded = decode(batch_at(7, [Record(0, 1_700_000_000_123, b"k", None, ((b"h", b"x"),))]), 7)
    (batch,) = decoded
    assert str(batch.schema).split("\n")[:8] == [
        "key: binary",
        "value: binary",
        "topic: string",
        "partition: int32",
        "offset: int64",
        "timestamp: timestamp[us, tz=UTC]",
        "timestampType: int32",
        "headers: list<element: struct<key: string, value: binary>>",
    ]
    assert all(field.nullable for field in batch.schema)
    (row,) = batch.to_pylist()
    assert row.pop("timestamp").isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert row == {
        "key": b"k",
        "value": None,
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}],
    }
    assert decoded.next_offset == 8


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("codec", Codec)
def test_every_kind_of_record_in_every_codec(codec: Codec, headers: bool) -> None:
    data = batch_at(10, ALL_KINDS, codec=codec) + batch_at(15, ALL_KINDS)
    decoded = decode(data, 10, headers=headers)
    batches = list(decoded)
    assert ("headers" in batches[0].schema.names) == headers
    expected = [plain(record, 10 + 5 * part + at) for part in range(2) for at, record in enumerate(ALL_KINDS)]
    assert rows_of(batches) == [row if headers else (*row[:4], ()) for row in expected]
    if headers:
        assert batches[0].column("headers").null_count == 6
    assert (decoded.next_offset, decoded.cut_off) == (20, 0)


def test_batches_that_kafkas_own_classes_built() -> None:
    vectors = json.loads((Path(__file__).parent / "vectors.json").read_text())
    records = [
        (
            offset,
            timestamp,
            None if key is None else bytes.fromhex(key),
            None if value is None else bytes.fromhex(value),
            tuple((bytes.fromhex(name), None if data is None else bytes.fromhex(data)) for name, data in headers),
        )
        for offset, timestamp, key, value, headers in vectors["records"]
    ]
    for built in vectors["built_by_kafka"]:
        data = bytes.fromhex(built["hex"])
        expected = [(offset - 10 + built["base_offset"], *rest) for offset, *rest in records]
        assert rows_of(list(decode(data))) == expected, built["codec"]


def test_snappy_without_the_stream_of_java() -> None:
    packed = bytes(cramjam.snappy.compress_raw(record(0, 0, -1, 1, b"v", 0)))
    assert offsets_of(decode(around(packed, 1, Codec.SNAPPY))) == [0]


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_memory(form: type) -> None:
    assert offsets_of(decode(form(batch_at(0, numbered(3))))) == [0, 1, 2]


def test_no_records() -> None:
    decoded = decode(b"", 5)
    assert list(decoded) == []
    assert (decoded.next_offset, decoded.cut_off) == (5, 0)


def test_offsets_that_compaction_left() -> None:
    kept = [Record(offset, 1, b"k", b"v") for offset in (1, 4, 5)]
    data = batch_at(100, kept, last_offset=9) + batch_at(120, kept)
    decoded = decode(data, 100)
    assert offsets_of(decoded) == [101, 104, 105, 121, 124, 125]
    assert decoded.next_offset == 126
    decoded = decode(batch_at(100, kept, last_offset=9), 107)
    assert offsets_of(decoded) == []
    assert decoded.next_offset == 110


def test_a_batch_that_compaction_emptied_moves_the_next_offset() -> None:
    empty = bytes(build([], base_offset=5, last_offset=8, producer_id=1, producer_epoch=0, base_sequence=3))
    decoded = decode(batch_at(0, numbered(5)) + empty)
    assert offsets_of(decoded) == [0, 1, 2, 3, 4]
    assert decoded.next_offset == 9


def test_log_append_time_is_every_records_time() -> None:
    records = [Record(0, 100, None, b"a"), Record(1, 50, None, b"b")]
    batches = list(decode(batch_at(0, records, log_append_time=True) + batch_at(2, records)))
    assert [row[1] for row in rows_of(batches)] == [100, 100, 100, 50]
    assert batches[0].column("timestampType").to_pylist() == [1, 1, 0, 0]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_large_records(codec: Codec) -> None:
    value = bytes(range(256)) * 20480
    data = batch_at(0, [Record(0, 1, b"k", b"a"), Record(1, 1, b"k", value), Record(2, 1, b"k", b"b")], codec=codec)
    batches = list(decode(data, max_bytes=1000))
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
    assert batches[1].column("value")[0].as_py() == value


def test_memory_is_bounded_by_one_batch_of_each_kind() -> None:
    """A response that inflates to 64 MiB is not all in memory."""
    mib = 1 << 20
    made = batch_at(0, [Record(at, 1, None, bytes(mib // 16)) for at in range(16)], codec=Codec.ZSTD)
    data = bytearray()
    for first in range(0, 64 * 16, 16):
        stamp(made_now := bytearray(made), first)
        data += made_now
    tracemalloc.start()
    try:
        rows = sum(batch.num_rows for batch in decode(bytes(data), max_bytes=2 * mib))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 1024
    assert peak < 16 * mib


# What is asked for


@pytest.mark.parametrize(("start", "end"), [(0, None), (12, 17), (10, 10), (14, 15), (19, 30), (11, 26), (0, 5)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_what_is_out_of_range_is_cut_away(codec: Codec, start: int, end: int | None) -> None:
    data = b"".join(batch_at(first, numbered(5, first), codec=codec) for first in (10, 15, 20))
    decoded = decode(data, start, end=end)
    last = 25 if end is None else end
    assert offsets_of(decoded) == list(range(max(10, start), min(last, 25)))
    assert decoded.next_offset == min(last, 25) if start < 10 or last > 10 else start


def test_nothing_is_read_behind_the_end() -> None:
    decoded = decode(batch_at(0, numbered(5)) + b"\0" * 8 + b"\0\0\0\x05" + b"garbage" * 50, end=5)
    assert offsets_of(decoded) == [0, 1, 2, 3, 4]
    decoded = decode(batch_at(0, numbered(5)) + batch_at(8, numbered(5))[:70], end=7)
    assert offsets_of(decoded) == [0, 1, 2, 3, 4]
    assert (decoded.next_offset, decoded.cut_off) == (7, 0)


def test_records_that_come_again_are_left_out() -> None:
    """As Kafka's consumer does: what lies below the position is skipped."""
    data = batch_at(0, numbered(5)) + batch_at(3, numbered(4, 3))
    assert offsets_of(decode(data)) == [0, 1, 2, 3, 4, 5, 6]


def test_a_response_may_end_anywhere() -> None:
    first, second = batch_at(0, numbered(3)), batch_at(3, numbered(4, 3))
    for cut in range(len(second)):
        decoded = decode(first + second[:cut])
        assert offsets_of(decoded) == [0, 1, 2]
        assert decoded.next_offset == 3
        assert decoded.cut_off == (0 if not cut else 12 if cut < 12 else len(second))


def test_batches_have_a_most_of_rows() -> None:
    data = b"".join(batch_at(first, numbered(7, first)) for first in range(0, 70, 7))
    decoded = decode(data, max_rows=4)
    sizes, ends = [], []
    for batch in decoded:
        sizes.append(batch.num_rows)
        ends.append(decoded.next_offset)
        assert batch.column("offset")[0].as_py() == 4 * (len(sizes) - 1)
    assert sizes == [4] * 17 + [2]
    assert ends == [*range(4, 72, 4), 70]


def test_batches_have_a_most_of_bytes() -> None:
    records = [Record(at, 1, b"kk", b"v" * 98, ((b"h" * 20, b"x" * 20),)) for at in range(50)]
    sizes = [batch.num_rows for batch in decode(batch_at(0, records), headers=False, max_bytes=1000)]
    assert sizes == [10] * 5
    with_headers = [batch.num_rows for batch in decode(batch_at(0, records), max_bytes=1000)]
    assert sum(with_headers) == 50
    assert max(with_headers) < 10


@pytest.mark.parametrize(
    ("rows", "size", "inflated"), [(0, 1000, 1000), (5, 2**31, 1000), (5, 0, 1000), (5, 1000, 2**30)]
)
def test_limits_that_cannot_be(rows: int, size: int, inflated: int) -> None:
    decode(b"", max_rows=5, max_bytes=1000, max_inflated=1000)
    with pytest.raises(InternalError):
        decode(b"", max_rows=rows, max_bytes=size, max_inflated=inflated)


# Transactions


def transactional(offset: int, count: int, producer_id: int, *, in_transaction: bool = True) -> bytes:
    return batch_at(
        offset,
        numbered(count),
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=in_transaction,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    made = build_marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp=1, offset=offset)
    assert read_header(made).base_offset == offset
    return bytes(made)


def test_markers_are_no_rows_and_move_the_next_offset() -> None:
    data = transactional(0, 2, 7) + marker(2, 7, commit=True) + marker(3, 8, commit=False)
    nobody: list[tuple[int, int]] = []
    for aborted in (None, nobody):
        decoded = decode(data, aborted=aborted)
        assert offsets_of(decoded) == [0, 1]
        assert decoded.next_offset == 4
    decoded = decode(marker(2, 7, commit=True), 2)
    assert list(decoded) == []
    assert decoded.next_offset == 3


def test_aborted_records_are_left_out_where_committed_ones_are_wanted() -> None:
    data = b"".join(
        (
            transactional(0, 2, 7),  # aborted
            transactional(2, 2, 8),  # committed
            transactional(4, 1, 9, in_transaction=False),  # of no transaction
            transactional(5, 2, 7),
            marker(7, 7, commit=False),
            marker(8, 8, commit=True),
            transactional(9, 1, 7),  # the next one, committed
            marker(10, 7, commit=True),
            transactional(11, 2, 8),  # aborted
            marker(13, 8, commit=False),
        )
    )
    assert offsets_of(decode(data)) == [0, 1, 2, 3, 4, 5, 6, 9, 11, 12]
    decoded = decode(data, aborted=[(8, 11), (7, 0)])
    assert offsets_of(decoded) == [2, 3, 4, 9]
    assert decoded.next_offset == 14
    assert offsets_of(decode(data, aborted=[])) == [0, 1, 2, 3, 4, 5, 6, 9, 11, 12]


def test_a_transaction_that_began_before_the_response() -> None:
    data = transactional(10, 5, 7) + marker(15, 7, commit=False) + transactional(16, 1, 7)
    assert offsets_of(decode(data, 12, aborted=[(7, 3)])) == [16]


def test_a_marker_below_the_start_ends_its_transaction() -> None:
    data = marker(15, 7, commit=False) + transactional(16, 1, 7)
    assert offsets_of(decode(data, 16, aborted=[(7, 3)])) == [16]


def test_records_of_an_aborted_producer_outside_of_transactions_stay() -> None:
    data = transactional(0, 1, 7) + transactional(1, 1, 7, in_transaction=False)
    assert offsets_of(decode(data, aborted=[(7, 0)])) == [1]


def test_a_marker_that_compaction_emptied_ends_nothing() -> None:
    empty = build([], base_offset=1, last_offset=1, producer_id=7, producer_epoch=0, transactional=True, control=True)
    data = transactional(0, 1, 7) + bytes(empty) + transactional(2, 1, 7)
    assert offsets_of(decode(data, aborted=[(7, 0)])) == []


# What cannot be read


def error_of(
    data: bytes, *, end: int | None = None, headers: bool = True, max_inflated: int = arrow.DEFAULT_INFLATED
) -> arrow.UnreadableRecordsError:
    with pytest.raises(arrow.UnreadableRecordsError) as caught:
        list(decode(data, end=end, headers=headers, max_inflated=max_inflated))
    assert f"t-3 at offset {caught.value.offset}: " in str(caught.value)
    return caught.value


@pytest.mark.parametrize("codec", Codec)
def test_malformed_records(codec: Codec) -> None:
    for name, (body, count) in RECORDS.items():
        bad = bytearray(sealed(body, count, codec))
        struct.pack_into(">q", bad, 0, 5)
        for headers in (False, True):
            error = error_of(batch_at(0, numbered(5)) + bytes(bad), headers=headers)
            assert error.offset == 5, name
            assert error.code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE), name


def test_a_malformed_record_outside_of_the_range_is_not_passed_over() -> None:
    body = record(0, 0, -1, 1, b"v", 0) + record(0, 1, -1, 1, b"v", 9)
    assert error_of(sealed(body, 2), end=1).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("at", [17, 23, 30, 60, HEADER_SIZE + 5])
def test_a_wrong_checksum(at: int) -> None:
    bad = bytearray(batch_at(5, numbered(5)))
    bad[at] ^= 1
    error = error_of(batch_at(0, numbered(5)) + bytes(bad))
    assert (error.offset, error.code) == (5, ErrorCode.CORRUPT_MESSAGE)
    assert "checksum" in str(error)


def test_a_wrong_checksum_of_what_is_no_row() -> None:
    bad = bytearray(marker(0, 7, commit=True))
    bad[-1] ^= 1
    assert "checksum" in str(error_of(bytes(bad)))


@pytest.mark.parametrize("length", [-1, 0, 13, 20, 48, 2**31 - 1])
def test_a_length_that_cannot_be(length: int) -> None:
    bad = bytearray(batch_at(5, numbered(5)))
    struct.pack_into(">i", bad, 8, length)
    error = error_of(batch_at(0, numbered(5)) + bytes(bad))
    assert (error.offset, error.code) == (5, ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize("fields", [{"last_offset_delta": -1}, {"base_offset": -5}, {"base_offset": 2**63 - 3}])
def test_offsets_that_cannot_be(fields: dict[str, int]) -> None:
    body = b"".join(record(0, delta, -1, 1, b"v", 0) for delta in range(5))
    assert error_of(around(body, 5, 0, **fields)).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [0, 1])
def test_formats_before_2_are_refused_by_name(magic: int, compression: int) -> None:
    made = MemoryRecordsBuilder(magic=magic, compression_type=compression, batch_size=10_000)
    for _ in range(3):
        made.append(timestamp=1, key=b"k", value=b"v")
    made.close()
    error = error_of(made.buffer())
    assert error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert f"format {magic} " in str(error)


def test_a_magic_of_later() -> None:
    bad = bytearray(batch_at(0, numbered(1)))
    bad[16] = 3
    assert "magic 3" in str(error_of(bytes(bad)))


def test_a_codec_that_is_none() -> None:
    assert error_of(around(b"x", 1, 5)).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_bombs(codec: Codec) -> None:
    data = bomb(codec, 3_000_000)
    assert "1000000" in str(error_of(data, max_inflated=1_000_000))
    assert offsets_of(decode(data, max_inflated=4_000_000)) == [0]


def test_a_batch_that_is_larger_than_batches_may_be() -> None:
    assert "between" in str(error_of(bomb(Codec.NONE, 3_000_000), max_inflated=1_000_000))


def test_names_of_headers_that_are_no_utf8() -> None:
    names = [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98", "ü".encode(), b"\xc0\x80"]
    (batch,) = decode(batch_at(0, [Record(0, 1, None, b"", tuple((name, name) for name in names))]))
    batch.validate(full=True)
    (headers,) = batch.column("headers").to_pylist()
    assert [header["key"] for header in headers] == [name.decode(errors="replace") for name in names]
    assert [header["value"] for header in headers] == names


@pytest.mark.parametrize("timestamp", [2**63 // 1000 + 1, -(2**63) // 1000, 2**62])
def test_times_that_microseconds_cannot_hold(timestamp: int) -> None:
    data = batch_at(0, [Record(0, 1, None, b"")]) + batch_at(1, [Record(0, timestamp, None, b"")])
    error = error_of(data)
    assert (error.offset, error.code) == (1, ErrorCode.INVALID_RECORD)
    assert offsets_of(decode(data, end=1)) == [0]
    edge = (2**63 - 1) // 1000
    assert rows_of(list(decode(batch_at(0, [Record(0, edge, None, b"")]))))[0][1] == edge


def test_no_pyarrow_is_loaded_but_by_a_call() -> None:
    code = "import sys, kop.records.arrow; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# Rows -> batches


def table(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def encoded(rows: pa.RecordBatch, *, max_bytes: int = 1_000_000, codec: int = Codec.NONE) -> list[arrow.Encoded]:
    return list(arrow.encode(rows, arrow.EncodeSettings(max_bytes=max_bytes, now=99, codec=codec)))


def written(
    made: list[arrow.Encoded],
) -> Iterator[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """What kafka-python reads, which shares no code with this."""
    from kafka.record import MemoryRecords

    for encoded_batch in made:
        records = MemoryRecords(bytes(encoded_batch.batch))
        batch = records.next_batch()
        assert batch is not None
        assert not records.has_next()
        assert batch.validate_crc()
        records_read = list(batch)
        assert len(records_read) == encoded_batch.records
        assert max(each.timestamp for each in records_read) == encoded_batch.max_timestamp
        for each in records_read:
            yield each.timestamp, each.key, each.value, list(each.headers)


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS = table(
    key=pa.array([b"a", None, b"", b"x" * 500], pa.binary()),
    value=pa.array([None, b"v", b"", b"\xff\0"], pa.binary()),
    timestamp=pa.array([1_700_000_000_123_456, None, -1500, 0], pa.timestamp("us", tz="UTC")),
    headers=pa.array(
        [
            None,
            [],
            [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}],
            [{"key": "ü", "value": b"x"}],
        ],
        HEADERS,
    ),
)
WRITTEN = [
    (1_700_000_000_123, b"a", None, []),
    (99, None, b"v", []),
    (-2, b"", b"", [("a", b"1"), ("a", None), ("", b"")]),
    (0, b"x" * 500, b"\xff\0", [("ü", b"x")]),
]


@pytest.mark.parametrize("codec", Codec)
def test_rows_become_batches(codec: Codec) -> None:
    made = encoded(pa.concat_batches([ROWS] * 20), codec=codec)
    assert list(written(made)) == WRITTEN * 20
    (piece,) = made
    header = read_header(piece.batch)
    assert (header.base_offset, header.leader_epoch, header.codec) == (0, -1, codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert not header.transactional


def test_slices_of_rows() -> None:
    many = pa.concat_batches([ROWS] * 5)
    for first in range(20):
        for count in (1, 2, 9):
            assert list(written(encoded(many.slice(first, count)))) == (WRITTEN * 5)[first : first + count]


def test_headers_whose_parts_are_slices() -> None:
    entries = pa.array([{"key": "no", "value": b""}, *({"key": f"k{at}", "value": b"%d" % at} for at in range(9))])
    headers = pa.ListArray.from_arrays(pa.array([0, 2, 2, 9], pa.int32()), entries.slice(1))
    rows = table(value=pa.array([b"1", b"2", b"3"], pa.binary()), headers=headers)
    names = [[name for name, _ in row[3]] for row in written(encoded(rows.slice(1)))]
    assert names == [[], ["k2", "k3", "k4", "k5", "k6", "k7", "k8"]]


def test_what_is_missing_is_null() -> None:
    assert list(written(encoded(table(value=pa.array([b"v"], pa.binary()))))) == [(99, None, b"v", [])]
    nulls = table(key=pa.nulls(1), value=pa.nulls(1), headers=pa.nulls(1), timestamp=pa.nulls(1), other=pa.nulls(1))
    assert list(written(encoded(nulls))) == [(99, None, None, [])]
    assert encoded(ROWS.slice(0, 0)) == []


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)  # fmt: skip
def test_other_types_of_bytes(kind: pa.DataType) -> None:
    values = pa.array(["one", None, "", "ü" * 20]).cast(kind)
    written_values = [row[2] for row in written(encoded(table(value=values).slice(1)))]
    assert written_values == [None, b"", "ü".encode() * 20]


@pytest.mark.parametrize(("unit", "value"), [("s", 12), ("ms", 12_000), ("us", 12_000_999), ("ns", 12_000_999_999)])
def test_units_of_time(unit: str, value: int) -> None:
    rows = table(value=pa.array([b""], pa.binary()), timestamp=pa.array([value], pa.timestamp(unit)))
    assert [row[0] for row in written(encoded(rows))] == [12_000]


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": pa.array([1])},
        {"value": pa.array([[b""]])},
        {"timestamp": pa.array([1])},
        {"headers": pa.array([b""])},
        {"headers": pa.array([[{"key": "a"}]])},
        {"headers": pa.array([[{"key": 1, "value": b""}]])},
    ],
)
def test_types_that_are_refused(wrong: dict[str, pa.Array]) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong)).removesuffix("s")):
        encoded(table(**wrong))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batches_are_cut_at_their_largest_size(codec: Codec) -> None:
    values = [b"%d" % at * (at % 7 + 1) for at in range(1000)]
    settings = arrow.EncodeSettings(
        max_bytes=400,
        now=99,
        codec=codec,
        producer_id=5,
        producer_epoch=2,
        base_sequence=2**31 - 10,
        transactional=True,
    )
    made = list(arrow.encode(table(value=pa.array(values, pa.binary())), settings))
    assert [row[2] for row in written(made)] == values
    assert len(made) > 20
    sequence = 2**31 - 10
    for piece in made:
        assert len(piece.batch) <= 400
        header = read_header(piece.batch)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, sequence)
        assert header.transactional
        sequence = (sequence + piece.records) % 2**31
    if codec is Codec.NONE:  # no batch could have held the next row, too
        assert all(len(piece.batch) > 400 - 40 for piece in made[:-1])


def test_what_a_codec_makes_larger_is_not_compressed() -> None:
    (piece,) = encoded(table(value=pa.array([b"v"], pa.binary())), codec=Codec.GZIP)
    assert read_header(piece.batch).codec == Codec.NONE
    assert list(written([piece])) == [(99, None, b"v", [])]


def test_a_row_that_is_too_large_is_named() -> None:
    rows = table(value=pa.array([b"a", b"b" * 400, b"c"], pa.binary()))
    made = arrow.encode(rows, arrow.EncodeSettings(max_bytes=400, now=1))
    assert next(made).records == 1
    with pytest.raises(PeerError, match="row 1 ") as caught:
        next(made)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("headers", [[None], [{"key": None, "value": b""}]])
def test_a_header_without_a_name_is_refused(headers: list[object]) -> None:
    rows = table(value=pa.array([b"", b""], pa.binary()), headers=pa.array([None, headers], HEADERS))
    with pytest.raises(PeerError, match="row 1 ") as caught:
        encoded(rows)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_times_too_far_from_each_other_for_one_batch() -> None:
    times = pa.array([-(2**62), 2**62, 2**62 + 1], pa.timestamp("ms"))
    made = encoded(table(value=pa.array([b"a", b"b", b"c"], pa.binary()), timestamp=times))
    assert [piece.records for piece in made] == [1, 2]
    assert [row[0] for row in written(made)] == [-(2**62), 2**62, 2**62 + 1]


@pytest.mark.parametrize("max_bytes", [0, HEADER_SIZE, 2**31])
def test_sizes_that_cannot_be(max_bytes: int) -> None:
    with pytest.raises(InternalError):
        encoded(ROWS, max_bytes=max_bytes)


def test_what_was_read_can_be_written() -> None:
    """Of any topic to another, with headers, the source's columns as they are."""
    data = batch_at(0, ALL_KINDS)
    made = [piece for rows in decode(data) for piece in encoded(rows)]
    assert rows_of(list(decode(b"".join(bytes(piece.batch) for piece in made)))) == [
        plain(record, at) for at, record in enumerate(ALL_KINDS)
    ]


def test_a_codec_that_is_unknown() -> None:
    with pytest.raises(PeerError, match="compression type 5"):
        encoded(ROWS, codec=5)


# Partitions


def test_partitions_of_keys_as_kafkas_own_code_hashes_them() -> None:
    """The hashes are those of Kafka's UtilsTest."""
    hashes = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    chosen = arrow.partitions(pa.array(list(hashes), pa.binary()), 2**31 - 1)
    assert chosen.to_pylist() == [(number & 0x7FFFFFFF) % (2**31 - 1) for number in hashes.values()]


def test_partitions_of_every_length_of_key() -> None:
    keys = [bytes(range(200, 200 + size)) for size in range(40)]
    chosen = arrow.partitions(pa.array([None, None, *keys, None], pa.binary()).slice(1), 7)
    chosen.validate(full=True)
    assert chosen.type == pa.int32()
    assert chosen.to_pylist() == [None, *((murmur2(key) & 0x7FFFFFFF) % 7 for key in keys), None]
    assert arrow.partitions(pa.nulls(2), 7).to_pylist() == [None, None]
    assert arrow.partitions(pa.array(["a"]), 7).to_pylist() == [(murmur2(b"a") & 0x7FFFFFFF) % 7]


@pytest.mark.parametrize("count", [0, -1, 2**31])
def test_counts_of_partitions_that_cannot_be(count: int) -> None:
    with pytest.raises(InternalError):
        arrow.partitions(pa.array([b"a"]), count)
