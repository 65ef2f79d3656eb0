"""Headers, checks, stamps, records, compaction and look-ups, by table and by property."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from kop.errors import ErrorCode, InternalError, PeerError
from kop.records.batch import (
    HEADER_SIZE,
    MAX_SEQUENCE,
    BatchHeader,
    Codec,
    Record,
    add_sequence,
    build,
    build_at,
    check_produced,
    first_at_or_after,
    iter_batches,
    iter_records,
    max_timestamp_of,
    max_timestamp_record,
    read_header,
    records_of,
    rewrite,
    stamp,
    stamp_create_time,
    stamp_log_append_time,
)
from kop.records.validation import RecordsRejectedError, check_records

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas in a way that Python 3.11 dislikes
    from kafka.record.default_records import DefaultRecordBatch as PyBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

LIMIT = 1 << 22
LAYOUT = struct.Struct(">qiibIhiqqqhii")
T = 1_700_000_000_000

optional = st.none() | st.binary(max_size=200)
header_keys = st.text(max_size=8).map(str.encode)
headers = st.lists(st.tuples(header_keys, optional), max_size=4).map(tuple)
timestamps = st.integers(0, 2**62)


@st.composite
def record_lists(draw: st.DrawFn, gaps: bool = True, min_size: int = 1) -> list[Record]:
    offset = draw(st.integers(0, 2**40)) if gaps else 0
    records = []
    for _ in range(draw(st.integers(min_size, 12))):
        records.append(Record(offset, draw(timestamps), draw(optional), draw(optional), draw(headers)))
        offset += draw(st.integers(1, 1000)) if gaps else 1
    return records


def checked(data: bytes | bytearray, **options: Any) -> BatchHeader:
    return check_produced(memoryview(data), **{"max_message_bytes": LIMIT, "zstd_allowed": True, **options})


def records(data: bytes | bytearray | memoryview) -> list[Record]:
    return list(iter_records(data, max_bytes=LIMIT))


def changed(data: bytes | bytearray, **fields: int) -> bytearray:
    out = bytearray(data)
    LAYOUT.pack_into(out, 0, *read_header(out)._replace(**fields))
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return out


def code_of(data: bytes | bytearray, **options: Any) -> ErrorCode:
    with pytest.raises(PeerError) as caught:
        checked(data, **options)
    return caught.value.code


# --- round trips


@given(record_lists(), st.sampled_from(Codec))
def test_what_is_built_is_read_again(written: list[Record], codec: Codec) -> None:
    batch = build(written, codec=codec)
    header = read_header(batch)
    assert records(batch) == written
    assert header.size == len(batch)
    assert (header.base_offset, header.last_offset) == (written[0].offset, written[-1].offset)
    assert (header.base_timestamp, header.max_timestamp) == (written[0].timestamp, max(r.timestamp for r in written))
    assert header.record_count == len(written)
    assert header.crc == crc32c(bytes(batch[21:]))


@given(record_lists(gaps=False), st.sampled_from(Codec))
def test_a_built_batch_may_be_produced(written: list[Record], codec: Codec) -> None:
    batch = build(written, codec=codec, producer_id=3, producer_epoch=1, base_sequence=9)
    header = checked(batch)
    assert header == read_header(batch)
    assert header.last_sequence == 9 + len(written) - 1
    check_records(batch, header, False, LIMIT)


@settings(max_examples=50)
@given(record_lists(gaps=False), st.sampled_from(Codec))
def test_kafka_python_reads_ours_and_we_read_kafka_python(written: list[Record], codec: Codec) -> None:
    theirs = PyBatch(bytes(build(written, codec=codec)))
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in theirs] == [r[:4] for r in written]
    builder = PyBuilder(2, codec, False, -1, -1, -1, 1 << 24)
    for r in written:
        builder.append(r.offset, r.timestamp, r.key, r.value, [(k.decode(), v) for k, v in r.headers])
    assert records(bytes(builder.build())) == written


@settings(max_examples=50)
@given(record_lists(gaps=False), st.sampled_from(Codec))
def test_aiokafka_reads_ours_and_we_read_aiokafka(written: list[Record], codec: Codec) -> None:
    theirs = AioBatch(bytes(build(written, codec=codec)))
    assert theirs.validate_crc()
    read = [(r.offset, r.timestamp, r.key, r.value, tuple((k.encode(), v) for k, v in r.headers)) for r in theirs]
    assert read == [tuple(r) for r in written]
    builder = AioBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    for r in written:
        builder.append(r.offset, r.timestamp, r.key, r.value, [(k.decode(), v) for k, v in r.headers])
    assert records(bytes(builder.build())) == written


def test_header_keys_that_are_no_utf8_survive() -> None:
    written = [Record(0, T, b"k", None, ((b"\xff\xfe", b"1"), (b"", None))), Record(1, T, b"k2", b"v")]
    batch = build(written)
    assert records(batch) == written
    kept = rewrite(batch, read_header(batch), lambda record: record.offset == 0, max_bytes=LIMIT, delete_horizon=T + 9)
    assert kept is not None
    assert records(kept) == written[:1]


sizes = st.sampled_from([0, 1, 62, 63, 64, 65, 1000, 1023, 1024, 8191, 8192, 70_000])


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(sizes, sizes | st.none()), min_size=1, max_size=70), st.integers(-1, 2**42))
def test_keys_and_values_at_one_time_are_built_as_records_are(lengths: list[tuple[int, int | None]], time: int) -> None:
    pairs = [(bytes(key), None if value is None else bytes(value)) for key, value in lengths]
    batch, header = build_at(time, pairs)
    assert batch == build(Record(offset, time, key, value) for offset, (key, value) in enumerate(pairs))
    assert header == read_header(batch)


def test_log_append_time_gives_every_record_the_batchs_time() -> None:
    batch = build([Record(0, T, b"a", b"b"), Record(1, T + 9, b"c", b"d")])
    stamp_log_append_time(batch, T + 100)
    header = read_header(batch)
    assert header.log_append_time
    assert [r.timestamp for r in records(batch)] == [T + 100, T + 100]
    assert header.base_timestamp == T  # as Kafka leaves it
    assert header.crc == crc32c(bytes(batch[21:]))
    assert read_header(build([Record(0, T, b"a", b"b")], log_append_time=True)).log_append_time


def test_stamp_leaves_the_checksum_alone() -> None:
    batch = build([Record(0, T, b"a", b"b")])
    body = bytes(batch[16:])
    stamp(memoryview(batch), 2**40, leader_epoch=7)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (2**40, 7, 2**40 + 1)
    assert bytes(batch[16:]) == body
    stamp(batch, 5)
    assert read_header(batch).leader_epoch == 0


@pytest.mark.parametrize(
    ("first", "count", "last"),
    [(0, 1, 0), (MAX_SEQUENCE, 1, MAX_SEQUENCE), (MAX_SEQUENCE, 2, 0), (MAX_SEQUENCE - 1, 4, 1)],
)
def test_sequences_wrap(first: int, count: int, last: int) -> None:
    batch = build([Record(n, T, None, b"") for n in range(count)], producer_id=1, producer_epoch=0, base_sequence=first)
    assert read_header(batch).last_sequence == last
    assert add_sequence(first, count - 1) == last


def test_header_flags() -> None:
    header = read_header(
        build(
            [Record(0, T, b"", b"")], codec=Codec.LZ4, transactional=True, control=True, producer_id=0, base_sequence=0
        )
    )
    assert (header.codec, header.transactional, header.control) == (3, True, True)
    assert not header.log_append_time
    assert not header.delete_horizon
    assert read_header(build([Record(0, T, b"", b"")])).producer_id == -1
    assert read_header(build([Record(0, T, b"", b"")])).last_sequence == -1


def test_building_nonsense_is_our_own_error() -> None:
    with pytest.raises(InternalError):
        build([Record(5, T, b"", b""), Record(5, T, b"", b"")])
    with pytest.raises(InternalError):
        build([Record(5, T, b"", b"")], base_offset=6)
    with pytest.raises(InternalError):
        build([])
    with pytest.raises(InternalError):
        build([], base_offset=6)
    with pytest.raises(InternalError):
        build([Record(5, T, b"", b"")], last_offset=4)


def test_an_empty_batch_needs_both_offsets() -> None:
    header = read_header(build([], base_offset=6, last_offset=9, producer_id=1, base_sequence=4, codec=Codec.ZSTD))
    assert (header.size, header.record_count, header.last_offset, header.last_sequence) == (HEADER_SIZE, 0, 9, 7)
    assert (header.codec, header.max_timestamp) == (0, -1)


# --- what is refused (Kafka's answers to more of them: test_record_vectors.py)


def test_a_batch_of_the_largest_size_is_taken_and_one_byte_more_is_not() -> None:
    batch = build([Record(0, T, b"k", bytes(100))])
    assert checked(batch, max_message_bytes=len(batch)).size == len(batch)
    assert code_of(batch, max_message_bytes=len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE


def test_create_time_takes_the_bit_of_log_append_time_and_those_without_a_meaning() -> None:
    data = changed(build([Record(0, T, b"k", b"v"), Record(1, T + 9, b"k", b"v")]), attributes=0x59C8)
    header = check_produced(data, max_message_bytes=LIMIT, zstd_allowed=True)
    assert (header.log_append_time, header.attributes & 0x5980) == (True, 0x5980)
    stamp_create_time(data, T + 9)
    header = check_produced(data, max_message_bytes=LIMIT, zstd_allowed=True)
    assert (header.attributes, header.max_timestamp) == (0x40, T + 9)
    assert [record.timestamp for record in records(data)] == [T, T + 9]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_numbers_that_are_no_codec(codec: int) -> None:
    assert code_of(changed(build([Record(0, T, b"k", b"v")]), attributes=codec)) is (
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )


def test_every_changed_byte_of_a_batch_is_noticed() -> None:
    batch = build([Record(0, T, b"key", b"value", ((b"h", b"x"),)), Record(1, T, None, None)])
    for at in range(len(batch)):
        if 12 <= at < 16:
            continue  # the leader epoch is not under the checksum and is written over
        broken = bytearray(batch)
        broken[at] ^= 0x11
        assert code_of(broken) in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ), at


def test_null_keys_are_listed_with_their_places() -> None:
    batch = build([Record(0, T, b"k", b""), Record(1, T, None, b""), Record(2, T, b"", b""), Record(3, T, None, b"")])
    check_records(batch, read_header(batch), False, LIMIT)
    with pytest.raises(RecordsRejectedError) as caught:
        check_records(batch, read_header(batch), True, LIMIT)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in caught.value.records] == [1, 3]


def test_read_header_refuses_other_formats_and_stumps() -> None:
    batch = build([Record(0, T, b"k", b"v")])
    for wrong in (
        batch[:60],
        b"",
        changed(batch, magic=1),
        changed(batch, batch_length=48),
        changed(batch, batch_length=-9),
    ):
        with pytest.raises(PeerError) as caught:
            read_header(wrong)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(PeerError):
        read_header(batch, 1)


def test_batches_in_a_row() -> None:
    first, second = build([Record(0, T, b"k", b"v")]), build([Record(1, T, b"k", b"longer"), Record(2, T, b"k", b"v")])
    headers = list(iter_batches(memoryview(first + second)))
    assert headers == [(0, read_header(first)), (len(first), read_header(second))]
    assert list(iter_batches(b"")) == []
    for cut in range(1, len(second)):
        with pytest.raises(PeerError):
            list(iter_batches((first + second)[:-cut]))


def test_records_of_a_cut_off_batch_are_not_read() -> None:
    batch = build([Record(0, T, b"k", b"v")])
    for cut in range(1, len(batch) - HEADER_SIZE):
        with pytest.raises(PeerError):
            records_of(batch[:-cut], max_bytes=LIMIT)


# --- compaction


@given(record_lists(), st.sampled_from(Codec), st.data())
def test_compaction_keeps_what_is_kept_and_nothing_else(
    written: list[Record], codec: Codec, data: st.DataObject
) -> None:
    keep = data.draw(st.sets(st.sampled_from([r.offset for r in written])))
    horizon = data.draw(st.none() | st.integers(0, 2**50))
    batch = build(
        written, codec=codec, producer_id=8, producer_epoch=2, base_sequence=77, last_offset=written[-1].offset + 3
    )
    before = read_header(batch)
    result = rewrite(batch, before, lambda r: r.offset in keep, max_bytes=LIMIT, delete_horizon=horizon)
    expected = [r for r in written if r.offset in keep]
    if not expected:
        assert result is None
        return
    assert result is not None
    after = read_header(result)
    assert records(result) == expected
    assert after.delete_horizon == (horizon is not None and any(r.value is None for r in expected))
    if after.delete_horizon:
        assert after.base_timestamp == horizon
    else:
        assert (result is batch) == (len(expected) == len(written))
    for name in (
        "base_offset",
        "last_offset_delta",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "codec",
        "last_sequence",
    ):
        assert getattr(after, name) == getattr(before, name)
    assert after.max_timestamp == max(r.timestamp for r in expected)
    assert after.crc == crc32c(bytes(result[21:]))


def test_the_horizon_is_set_once() -> None:
    batch = build([Record(0, T, b"k", None)])
    first = rewrite(batch, read_header(batch), lambda _: True, max_bytes=LIMIT, delete_horizon=T + 1000)
    assert first is not None
    second = rewrite(first, read_header(first), lambda _: True, max_bytes=LIMIT, delete_horizon=T + 2000)
    assert second is first
    assert rewrite(batch, read_header(batch), lambda _: True, max_bytes=LIMIT) is batch


def test_compaction_of_append_time_keeps_that_time() -> None:
    batch = build([Record(0, T, b"a", None), Record(1, T, b"b", b"")])
    stamp_log_append_time(batch, T + 50)
    result = rewrite(batch, read_header(batch), lambda r: r.offset == 0, max_bytes=LIMIT, delete_horizon=T + 99)
    assert result is not None
    assert [(r.offset, r.timestamp) for r in records(result)] == [(0, T + 50)]
    assert read_header(result).log_append_time


# --- look-up by time


@given(record_lists(), st.sampled_from([Codec.NONE, Codec.LZ4]), st.data())
def test_look_ups_by_time_agree_with_the_records(written: list[Record], codec: Codec, data: st.DataObject) -> None:
    batch = build(written, codec=codec)
    header = read_header(batch)
    asked = data.draw(st.sampled_from([r.timestamp for r in written]) | timestamps)
    start = data.draw(st.sampled_from([0, written[0].offset + 1, written[-1].offset, written[-1].offset + 1]))
    left = [r for r in written if r.offset >= start]

    def first(records: Iterator[Record]) -> tuple[int, int] | None:
        return next(((r.offset, r.timestamp) for r in records), None)

    assert first_at_or_after(batch, header, asked, max_bytes=LIMIT, from_offset=start) == first(
        r for r in left if r.timestamp >= asked
    )
    largest = max((r.timestamp for r in left), default=0)
    assert max_timestamp_record(batch, header, max_bytes=LIMIT, from_offset=start) == first(
        r for r in left if r.timestamp == largest
    )


def test_look_ups_on_append_time_answer_the_first_record() -> None:
    batch = build([Record(3, T, b"a", b""), Record(5, T + 5, b"b", b"")])
    stamp_log_append_time(batch, T + 50)
    header = read_header(batch)
    assert first_at_or_after(batch, header, T + 50, max_bytes=LIMIT) == (3, T + 50)
    assert first_at_or_after(batch, header, T + 51, max_bytes=LIMIT) is None
    assert max_timestamp_record(batch, header, max_bytes=LIMIT) == (3, T + 50)
    empty = build([], base_offset=1, last_offset=2)
    assert max_timestamp_record(empty, read_header(empty), max_bytes=LIMIT) is None


def test_the_largest_timestamp_of_several_batches() -> None:
    first = build([Record(0, T + 1, None, b""), Record(1, T + 3, None, b"")])
    second = build([Record(2, T + 2, None, b"")])
    assert [max_timestamp_of(buf) for buf in (first, second, first + second, memoryview(bytes(second + first)))] == [
        T + 3, T + 2, T + 3, T + 3
    ]  # fmt: skip
