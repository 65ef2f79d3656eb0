"""Well-sealed batches with hostile insides: each ends in a PeerError of a known code, in bounded time and memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import ParamSpec

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damaged_batches import LAYOUT, T, record, varint
from support.damaged_batches import sealed as batch
from support.examples import examples

from kop.errors import ErrorCode, PeerError
from kop.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    Codec,
    Record,
    build,
    check_produced,
    first_at_or_after,
    iter_batches,
    iter_records,
    max_timestamp_record,
    read_header,
    rewrite,
)
from kop.records.validation import check_records

LIMIT = 1 << 22
P = ParamSpec("P")


def check(data: bytes) -> BatchHeader:
    header = check_produced(memoryview(data), max_message_bytes=LIMIT, zstd_allowed=True)
    check_records(data, header, True, LIMIT)
    return header


READS: dict[str, Callable[[bytes], object]] = {
    "check": check,
    "read": lambda data: list(iter_records(data, max_bytes=LIMIT)),
    "rewrite": lambda data: rewrite(data, read_header(data), lambda _: False, max_bytes=LIMIT),
}
LOOK_UPS: dict[str, Callable[[bytes], object]] = {
    "by time": lambda data: first_at_or_after(data, read_header(data), 2**63, max_bytes=LIMIT),
    "max": lambda data: max_timestamp_record(data, read_header(data), max_bytes=LIMIT),
}

FRAMES = {
    "no records": batch(b""),
    "length -1": batch(record(0, 0, -1, -1, 0, length=-1)),
    "length -2^31": batch(record(0, 0, -1, -1, 0, length=-(2**31))),
    "length 2^31-1": batch(record(0, 0, -1, -1, 0, length=2**31 - 1)),
    "length of 33 bits": batch(record(0, 0, -1, -1, 0, length=2**32)),
    "length of 70 bits": batch(record(0, 0, -1, -1, 0, length=2**70)),
    "length 0": batch(varint(0) + bytes(9)),
    "length 1": batch(varint(1) + bytes(9)),
    "endless varint": batch(b"\x80" * 5000),
    "endless varint as timestamp": batch(varint(5000) + b"\0" + b"\x80" * 4999),
    "timestamp of 65 bits": batch(record(2**64, 0, -1, -1, 0)),
    "timestamp beyond 64 bits": batch(record(2**63 - 1, 0, -1, -1, 0)),
    "timestamp below 64 bits": batch(record(-(2**63), 0, -1, -1, 0), base_timestamp=-5),
    "offset delta of 33 bits": batch(record(0, 2**32, -1, -1, 0)),
    "offset delta -1": batch(record(0, -1, -1, -1, 0)),
    "offset delta beyond the batch": batch(record(0, 1, -1, -1, 0)),
    "offset deltas twice the same": batch(record(0, 0, -1, -1, 0) + record(0, 0, -1, -1, 0), 2),
    "offset deltas backwards": batch(record(0, 1, -1, -1, 0) + record(0, 0, -1, -1, 0), 2),
    "more records than announced": batch(record(0, 0, -1, -1, 0) * 2, 1),
    "fewer records than announced": batch(record(0, 0, -1, -1, 0) + bytes(1), 2, codec=Codec.GZIP),
    "two thousand million records announced": batch(record(0, 0, -1, -1, 0), 2**31 - 1, codec=Codec.ZSTD),
    "bytes behind": batch(record(0, 0, -1, -1, 0) + b"\0"),
}
CONTENTS = {
    "key longer than the record": batch(record(0, 0, 9, b"abc", -1, 0)),
    "key of 2^31-1 bytes": batch(record(0, 0, 2**31 - 1, b"abc", -1, 0)),
    "key takes all": batch(record(0, 0, 3, b"abc")),
    "value longer than the record": batch(record(0, 0, -1, 9, b"abc", 0)),
    "value takes all": batch(record(0, 0, -1, 3, b"abc")),
    "key length -2": batch(record(0, 0, -2, -1, 0)),
    "key length -2^31": batch(record(0, 0, -(2**31), -1, 0)),
    "value length -2": batch(record(0, 0, -1, -2, 0)),
    "value length -2^31": batch(record(0, 0, -1, -(2**31), 0)),
    "value of 33 bits": batch(record(0, 0, -1, 2**33, b"abc", 0)),
}
HEADERS = {
    "headers -1": batch(record(0, 0, 0, -1, -1)),
    "headers 2^31-1": batch(record(0, 0, 0, -1, 2**31 - 1)),
    "more headers than bytes": batch(record(0, 0, 0, -1, 9, bytes(8))),
    "fewer headers than bytes": batch(record(0, 0, 0, -1, 3, bytes(8))),
    "header key null": batch(record(0, 0, 0, -1, 1, -1, -1)),
    "header key too long": batch(record(0, 0, 0, -1, 1, 99, b"abc", -1)),
    "header key length -2": batch(record(0, 0, 0, -1, 1, -2, -1)),
    "header value length -2": batch(record(0, 0, 0, -1, 1, 0, -2)),
    "header value too long": batch(record(0, 0, 0, -1, 1, 1, b"a", 99, b"abc")),
    "header cut off": batch(record(0, 0, 0, -1, 1, 1)),
    "header into the next record": batch(record(0, 0, 0, -1, 1, 1, b"a", 5) + record(0, 1, 0, -1, 0), 2),
}


@pytest.mark.parametrize("name", [*FRAMES, *CONTENTS, *HEADERS])
def test_malformed_records_are_invalid(name: str) -> None:
    data = {**FRAMES, **CONTENTS, **HEADERS}[name]
    reads = dict(READS)
    if name in HEADERS:
        del reads["rewrite"]  # the cleaner does not look at headers
    if name in FRAMES:
        reads |= LOOK_UPS
    for how, read in reads.items():
        with pytest.raises(PeerError) as caught:
            read(data)
        assert caught.value.code is ErrorCode.INVALID_RECORD, how


@pytest.mark.parametrize("codec", Codec)
def test_200_000_empty_headers_in_one_record(codec: Codec) -> None:
    data = batch(record(0, 0, 1, b"k", -1, 200_000, bytes(400_000)), codec=codec)
    check(data)
    (only,) = iter_records(data, max_bytes=LIMIT)
    assert len(only.headers) == 200_000
    assert only.headers[-1] == (b"", b"")
    assert rewrite(data, read_header(data), lambda _: True, max_bytes=LIMIT) is data
    moved = rewrite(data, read_header(data), lambda _: True, max_bytes=LIMIT, delete_horizon=T + 5)
    assert moved is not None
    assert list(iter_records(moved, max_bytes=LIMIT)) == [only]


def test_checks_and_look_ups_make_no_object_per_header() -> None:
    data = batch(record(0, 0, 1, b"k", -1, 500_000, bytes(1_000_000)))
    header = read_header(data)
    tracemalloc.start()
    check_records(data, header, True, LIMIT)
    max_timestamp_record(data, header, max_bytes=LIMIT)
    rewrite(data, header, lambda _: True, max_bytes=LIMIT, delete_horizon=5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * len(data)  # an object each would be 30 times; other threads may allocate, too


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_bomb_in_a_batch(codec: Codec) -> None:
    data = batch(record(0, 0, 1, b"k", 30 << 20, bytes(30 << 20), 0), codec=codec)
    assert len(data) < LIMIT
    for how, read in {**READS, **LOOK_UPS}.items():
        with pytest.raises(PeerError, match=f"decompress to more than {LIMIT} bytes") as caught:
            read(data)
        expected = ErrorCode.INVALID_RECORD if how == "check" else ErrorCode.CORRUPT_MESSAGE
        assert caught.value.code is expected


def outcome(read: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> str:
    """The name of the error that a call ends in, or NONE; what it answers bit by bit is taken to the end."""
    try:
        answer = read(*args, **kwargs)
        if isinstance(answer, Iterator):
            list(answer)
    except PeerError as error:
        return error.code.name
    return "NONE"


REFUSALS = {
    "CORRUPT_MESSAGE",
    "INVALID_RECORD",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "INVALID_TIMESTAMP",
    "MESSAGE_TOO_LARGE",
}


@pytest.mark.parametrize("codec", Codec)
def test_truncation_at_every_byte(codec: Codec) -> None:
    data = bytes(build([Record(n, T, b"key%d" % n, b"v" * n, ((b"h", b"x"),)) for n in range(9)], codec=codec))
    for cut in range(len(data)):
        short = data[:cut]
        assert outcome(check, short) in REFUSALS
        assert outcome(iter_batches, short) == ("CORRUPT_MESSAGE" if cut else "NONE")
        assert outcome(iter_records, short, max_bytes=LIMIT) == "CORRUPT_MESSAGE"
    body = data[HEADER_SIZE:]
    for cut in range(len(body)):  # the same with a length and a checksum that fit
        header = read_header(data)._replace(batch_length=49 + cut)
        sealed = bytearray(LAYOUT.pack(*header)) + body[:cut]
        struct.pack_into(">I", sealed, 17, crc32c(bytes(sealed[21:])))
        assert outcome(check, bytes(sealed)) == "INVALID_RECORD"
        assert outcome(iter_records, sealed, max_bytes=LIMIT) in REFUSALS


@settings(max_examples=examples(400))
@given(st.binary(max_size=150))
def test_any_bytes_as_records(body: bytes) -> None:
    data = batch(body, 2)
    for read in (*READS.values(), *LOOK_UPS.values()):
        assert outcome(read, data) in {"NONE", "INVALID_RECORD"}


@settings(max_examples=examples(400))
@given(st.data())
def test_any_header_over_good_records(draw: st.DataObject) -> None:
    data = bytearray(build([Record(n, T, b"key", b"value") for n in range(3)], codec=draw.draw(st.sampled_from(Codec))))
    field = draw.draw(st.sampled_from(BatchHeader._fields))
    sizes = {"magic": 8, "producer_epoch": 16, "attributes": 16}
    bits = sizes.get(field, 64 if field in ("base_offset", "base_timestamp", "max_timestamp", "producer_id") else 32)
    number = draw.draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    header = read_header(data)._replace(**{field: number & 0xFFFFFFFF if field == "crc" else number})
    LAYOUT.pack_into(data, 0, *header)
    if field != "crc":
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    for read in (*READS.values(), *LOOK_UPS.values()):
        assert outcome(read, bytes(data)) in REFUSALS | {"NONE"}


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_any_bytes_as_a_batch(data: bytes) -> None:
    assert outcome(lambda: check(data)) in REFUSALS
    for read in (lambda: list(iter_batches(data)), lambda: list(iter_records(data, max_bytes=LIMIT))):
        assert outcome(read) in REFUSALS | ({"NONE"} if not data else set())
