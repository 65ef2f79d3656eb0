"""The compiled transcoder against the plain one, byte for byte: on what is right, and on what is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records.transcode_kit import INT64_MAX, INT64_MIN, NATIVE, compressed, header_lists, record_lists, some_bytes
from support.damage import damaged
from support.examples import examples

from kop.compiled import compiled
from kop.errors import KopError, PeerError
from kop.pulsar_client import TxnId, wire
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records import _pure, transcode
from kop.records.batch import Record, build, read_header, records_of

pytestmark = pytest.mark.skipif(not transcode.NATIVE, reason="kop._native was not built: there is one transcoder")
native: Any = compiled(_pure)

int64 = st.integers(INT64_MIN, INT64_MAX)
uint64 = st.integers(0, 2**64 - 1)


def outcome(function: Callable[..., Any], *args: object) -> Any:
    """What comes back, or the error that a caller can tell apart from others."""
    try:
        answer = function(*args)
    except KopError as error:
        return type(error), error.code, getattr(error, "reason", None)
    return tuple(answer) if isinstance(answer, tuple) else answer


def same(name: str, *args: object) -> Any:
    expected = outcome(getattr(_pure, name), *args)
    assert outcome(getattr(native, name), *args) == expected
    return expected


seeds = st.integers(0, 2**32)


def body_of(records: list[Record]) -> bytes:
    batch = bytes(build(records))
    return records_of(batch, read_header(batch), max_bytes=1 << 20)


@settings(deadline=None, max_examples=examples(300))
@given(record_lists(), st.one_of(st.none(), int64), st.integers(-1, 300), st.booleans())
def test_records_to_messages(records: list[Record], append_time: int | None, room: int, reject: bool) -> None:
    same("pack", body_of(records), len(records), records[0].timestamp, append_time, room, reject)


@settings(deadline=None, max_examples=examples(1000))
@given(record_lists(), seeds, st.integers(-1, 1), int64)
def test_damaged_records(records: list[Record], seed: int, more: int, base: int) -> None:
    same("pack", damaged(body_of(records), seed), len(records) + more, base, None, 1 << 20, False)


names_of_producers = st.text(max_size=20).map(str.encode)
transactions = st.one_of(st.none(), st.tuples(uint64, uint64, st.booleans()))


@settings(deadline=None, max_examples=examples(300))
@given(
    record_lists(), seeds, st.integers(-1, 1), st.one_of(st.none(), int64), st.integers(-1, 300), st.booleans(),
    st.integers(0, 70), st.integers(0, 2**63), names_of_producers, st.integers(0, 2**62), st.integers(0, 2**62),
    transactions,
)  # fmt: skip
def test_send_frames(
    records: list[Record], seed: int, more: int, append_time: int | None, room: int, reject: bool,
    start: int, producer_id: int, name: bytes, sequence: int, now: int, txn: tuple[int, int, bool] | None,
) -> None:  # fmt: skip
    """Of records that are right, and of damaged ones; from every kind of memory."""
    whole = bytes(start) + body_of(records)
    for body, count in ((whole, len(records)), (bytes(start) + damaged(whole[start:], seed), len(records) + more)):
        for form in (body, bytearray(body), memoryview(body)):
            same(
                "send_frames", form, start, count, records[0].timestamp, append_time, room, reject,
                producer_id, name, sequence, now, txn,
            )  # fmt: skip


@settings(deadline=None, max_examples=examples(300))
@given(
    st.binary(max_size=300), st.integers(1, 2**31 - 1), st.integers(0, 4), st.integers(0, 2**32), st.booleans(),
    st.integers(0, 2**63), names_of_producers, st.integers(0, 2**62), st.integers(0, 2**62), transactions,
)  # fmt: skip
def test_a_send_frame_says_what_protobuf_and_the_checksum_say(
    payload: bytes, count: int, compression: int, size: int, raw: bool,
    producer_id: int, name: bytes, sequence: int, now: int, txn: tuple[int, int, bool] | None,
) -> None:  # fmt: skip
    size &= 0xFFFFFFFF
    about = (payload, count, compression, size, raw, producer_id, name, sequence, now, txn)
    frame = same("send_frame", *about)
    metadata = pb.MessageMetadata(
        producer_name=name.decode(), sequence_id=sequence, publish_time=now, num_messages_in_batch=count,
        highest_sequence_id=sequence + count - 1,
    )  # fmt: skip
    if raw:
        metadata.properties.add(key="entry.format", value="kafka")
    if compression:
        metadata.MergeFrom(compressed(compression, size))
    if txn is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn[:2]
    entry = metadata.SerializeToString()
    sent_in = TxnId(*txn[:2]) if txn is not None and txn[2] else None
    head = wire.send_head(producer_id, sequence, sequence + count - 1, count, entry, payload, sent_in)
    assert frame == head + entry + payload
    assert transcode.entry_in(frame) == (entry, payload)
    assert transcode.entry_size(frame) == len(entry) + len(payload)


@settings(deadline=None, max_examples=examples(300))
@given(record_lists(), st.integers(0, 61), st.booleans())
def test_the_walk_over_records(records: list[Record], start: int, reject: bool) -> None:
    same("walk", bytes(start) + body_of(records), start, len(records), records[0].timestamp, reject)


@settings(deadline=None, max_examples=examples(2000))
@given(record_lists(), seeds, st.integers(-1, 1), int64)
def test_the_walk_over_damaged_records(records: list[Record], seed: int, more: int, base: int) -> None:
    body = damaged(body_of(records), seed)
    for form in (body, bytearray(body), memoryview(body)):
        walked = same("walk", form, 0, len(records) + more, base, False)
    # One takes what the other takes, so a batch is refused on every engine or on none.
    packed = outcome(native.pack, body, len(records) + more, base, None, 1 << 20, False)
    assert (walked[0] is PeerError) == (packed[0] is PeerError)


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**63 - 1, 0, -1])
@pytest.mark.parametrize("start", [0, 7, 8, 2**31])
def test_the_walk_over_counts_and_starts_that_cannot_be(count: int, start: int) -> None:
    body = bytes.fromhex("0c000000010100")
    assert isinstance(same("walk", body, start, count, 0, True), tuple)


def test_the_walk_names_no_more_than_a_thousand_records_without_a_key() -> None:
    records = [Record(index, 1, None, b"") for index in range(2500)]
    body = body_of(records)
    assert same("walk", body, 0, 2500, 1, True) == (1, 1, list(range(1000)))
    assert same("walk", body, 0, 2500, 1, False) == (1, 1, [])
    _, without_key, *_ = same("pack", body, 2500, 1, None, 1 << 20, True)
    assert without_key == list(range(1000))


names = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["__kop_headers", "__kop_timestamp", "__kop_empty", "__kop_x", "a", "b", "entry.format"]),
)


@st.composite
def values(draw: st.DrawFn) -> str:
    """Property values, those that stand for a list of headers or a time among them."""
    match draw(st.integers(0, 4)):
        case 0:
            return draw(st.text(max_size=8))
        case 4:
            return "1"
        case 1:
            return str(draw(st.one_of(int64, st.sampled_from([0, -1, 1, -(2**63) - 1, 2**64]))))
        case 2:
            headers = draw(header_lists)
            ((payload, _),), *_ = _pure.pack(
                body_of([Record(0, 1, None, b"", tuple(headers))]), 1, 1, None, 1 << 20, False
            )
            single = pb.SingleMessageMetadata.FromString(payload[4 : 4 + int.from_bytes(payload[:4], "big")])
            return next((pair.value for pair in single.properties if pair.key == "__kop_headers"), "AA==")
    return draw(st.text("ABab01+/=- \n", max_size=9))


pairs = st.lists(st.builds(pb.KeyValue, key=names, value=values()), max_size=5)
maybe = st.booleans()
keys = st.one_of(st.text(max_size=6), st.text("ABab01+/=", max_size=6))


@st.composite
def singles(draw: st.DrawFn) -> pb.SingleMessageMetadata:
    message = pb.SingleMessageMetadata(payload_size=0, properties=draw(pairs))
    for name, kind in {
        "partition_key": keys,
        "ordering_key": some_bytes,
        "event_time": uint64,
        "partition_key_b64_encoded": maybe,
        "null_value": maybe,
        "null_partition_key": maybe,
        "compacted_out": maybe,
        "sequence_id": uint64,
    }.items():
        if draw(st.integers(0, 3)) == 0:
            setattr(message, name, draw(kind))
    return message


@st.composite
def payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    out, count = b"", draw(st.integers(1, 4))
    for _ in range(count):
        message, value = draw(singles()), draw(some_bytes | st.just(b"\0"))
        message.payload_size = len(value)
        data = message.SerializeToString()
        out += len(data).to_bytes(4, "big") + data + value
    return out, count


@settings(deadline=None, max_examples=examples(500))
@given(payloads(), int64, int64, st.integers(0, INT64_MAX), st.none() | int64)
def test_messages_to_records(
    payload: tuple[bytes, int], publish_time: int, event_time: int, base_offset: int, append_time: int | None
) -> None:
    data, count = payload
    same("unpack", data, count, publish_time, event_time)
    same("plain_batch", b"", data, True, count, publish_time, event_time, base_offset, append_time)
    lent = memoryview(bytearray(b"x" + data))[1:]
    same("plain_batch", memoryview(b""), lent, True, count, publish_time, event_time, base_offset, append_time)


@settings(deadline=None, max_examples=examples(1000))
@given(payloads(), seeds, st.integers(-1, 1))
def test_damaged_messages(payload: tuple[bytes, int], seed: int, more: int) -> None:
    data, count = damaged(payload[0], seed), payload[1] + more
    same("unpack", data, count, 5, 0)
    same("plain_batch", b"", data, True, count, 5, 0, 7, None)


@st.composite
def entry_metadata(draw: st.DrawFn) -> bytes:
    meta = pb.MessageMetadata(**NATIVE, properties=draw(pairs))
    for name, kind in {
        "partition_key": keys,
        "ordering_key": some_bytes,
        "event_time": uint64,
        "publish_time": uint64,
        "partition_key_b64_encoded": maybe,
        "null_value": maybe,
        "null_partition_key": maybe,
        "num_messages_in_batch": st.integers(-5, 5),
        "chunk_id": st.integers(-1, 3),
        "num_chunks_from_msg": st.integers(-1, 3),
        "total_chunk_msg_size": st.integers(-1, 3),
        "uuid": st.text(max_size=3),
        "marker_type": st.integers(-1, 30),
        "txnid_least_bits": uint64,
        "txnid_most_bits": uint64,
        "uncompressed_size": st.integers(0, 2**32 - 1),
    }.items():
        if draw(st.integers(0, 3)) == 0:
            setattr(meta, name, draw(kind))
    if draw(maybe):
        meta.properties.add(key="entry.format", value="kafka")
    return meta.SerializeToString()


@settings(deadline=None, max_examples=examples(500))
@given(entry_metadata(), some_bytes, seeds)
def test_metadata(data: bytes, payload: bytes, seed: int) -> None:
    for form in (data, damaged(data, seed)):
        same("parse_entry", form)
        same("unpack_one", form, len(payload))
        same("plain_batch", form, payload, False, 1, 5, 6, 7, None)
        same("plain_batch", memoryview(form), memoryview(payload), False, 1, 5, 6, 7, seed)


@st.composite
def came_together(draw: st.DrawFn) -> list[Any]:
    """What one read of a socket brought: mostly entries that follow one another, of which some are not usual."""
    received: list[Any] = []
    index = 9
    for entry in range(draw(st.integers(1, 5))):
        payload, count = draw(payloads())
        meta = pb.MessageMetadata(**NATIVE, num_messages_in_batch=count)
        meta.publish_time = draw(uint64)
        metadata = meta.SerializeToString()
        index += count
        message: list[int | None] = [7, 1, entry, index, draw(st.sampled_from([0, 5, INT64_MAX])), count]
        odd = draw(st.integers(0, 15))
        if odd == 0:
            metadata = draw(entry_metadata())
        elif odd == 1:
            metadata, payload = damaged(metadata, draw(seeds)), damaged(payload, draw(seeds))
        elif odd == 2:
            message[draw(st.integers(0, 3))] = draw(st.integers(0, 20))
        elif odd == 3:
            message[3] = draw(st.sampled_from([None, INT64_MAX, 2**64 - 1, 0]))
        elif odd == 4:
            message[4] = 2**64 - 1
        elif odd == 5:
            received.append(draw(st.sampled_from([b"command", [(1, 2, 3, 4, 5)]])))
        damage = "its checksum does not fit" if odd == 6 else ""
        received.append((*message, memoryview(metadata), memoryview(bytearray(payload)), damage))
    return received


@settings(deadline=None, max_examples=examples(200))
@given(came_together(), st.integers(0, 2), st.integers(-1, 11), st.booleans())
def test_entries_that_came_together(received: list[Any], at: int, expected: int, append_time: bool) -> None:
    begin = received[at][3] if at < len(received) and isinstance(received[at], tuple) else None
    for next_offset in {expected, *([begin - received[at][5] + 1] if begin is not None else [])}:
        if not 0 <= next_offset <= INT64_MAX:
            continue
        batches, messages, _ = same("usual_batches", received, at, next_offset, append_time)
        for place, (base, last, batch) in enumerate(batches, at):
            _, _, _, index, timestamp, count, metadata, payload, _ = received[place]
            time = timestamp or transcode.parse_entry(metadata).publish_time
            assert (base, last) == (index - count + 1, index)
            assert batch == transcode.to_batch(
                metadata, payload, base_offset=base, log_append_time=time if append_time else None
            )
        assert messages == sum(message[5] for message in received[at : at + len(batches)])


@settings(deadline=None, max_examples=examples(500))
@given(st.binary(max_size=40), st.integers(-1, 3))
def test_any_bytes(data: bytes, count: int) -> None:
    same("parse_entry", data)
    same("unpack_one", data, 0)
    same("unpack", data, count, 0, 0)
    same("pack", data, count, 0, None, 100, True)
    same("walk", data, 0, count, 0, True)


@pytest.mark.parametrize("count", [999, 1000, 1001, 200_000])
def test_very_many_headers(count: int) -> None:
    headers = tuple((b"%d" % (index % 1000), None) for index in range(count))
    packed = same("pack", body_of([Record(0, 1, None, b"", headers)]), 1, 1, None, 1 << 30, False)
    assert isinstance(packed, tuple)
    ((payload, count),), *_ = packed
    records = same("unpack", payload, count, 0, 0)
    assert isinstance(records, tuple)
    assert records[1] == 1
