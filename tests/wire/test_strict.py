"""The decoder against kafka-python's own, on valid messages, and against everything that is not valid.

Vectors of Kafka's own codec are in test_vectors.py; here messages are made from the schemas, for every API and version.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bodies import encode_body
from support.examples import examples
from support.random_messages import every_class, fields_of, is_message, random_message

from kop.varints import varint_bytes
from kop.wire.codec import decode, encode_response
from kop.wire.frame import FLEXIBLE_FROM, foreign_protocol, parse_header, request_header
from kop.wire.messages import REQUESTS, RESPONSES, MetadataRequest, OffsetCommitRequest
from kop.wire.primitives import MOST_ELEMENTS, DecodeError

CLASSES = list(dict.fromkeys(cls for cls, _ in every_class()))


def versions_of(cls: Any) -> list[int]:
    return [version for other, version in every_class() if other is cls]


def same(ours: Any, theirs: Any) -> bool:
    """Every field equal, defaults included, and of the same type."""
    if is_message(ours):
        return type(ours) is type(theirs) and all(
            same(getattr(ours, name), getattr(theirs, name)) for name in fields_of(ours)
        )
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs) and type(ours) is type(theirs)


@pytest.mark.parametrize("cls", CLASSES)
def test_decodes_what_kafka_python_decodes_and_encodes_it_again(cls: Any) -> None:
    for version in versions_of(cls):
        rng = Random(f"{cls.__name__} {version}")
        for _ in range(6):
            raw = encode_body(random_message(cls, version, rng))
            ours = decode(cls, version, memoryview(raw))
            if cls is not RESPONSES[18]:  # its own decode falls back to version 0
                assert same(ours, cls.decode(raw, version=version)), version
            assert encode_body(ours) == raw, version


def refusal_of(cls: Any, version: int, data: memoryview) -> str | None:
    """Return what a message is refused with; None if it is read."""
    try:
        decode(cls, version, data)
    except DecodeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("cls", CLASSES)
def test_a_message_cut_at_every_byte_or_followed_by_one_is_refused(cls: Any) -> None:
    for version in versions_of(cls):
        rng = Random(version)
        for most in (1, 3):
            raw = memoryview(encode_body(random_message(cls, version, rng, most)))
            for size in range(0, len(raw), max(1, len(raw) // 300)):
                assert refusal_of(cls, version, raw[:size]) is not None, (version, size)
            assert "after its end" in (refusal_of(cls, version, memoryview(bytes(raw) + b"\0")) or ""), version


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(every_class()), st.integers(0, 2**32), st.data())
def test_damage_is_refused_with_decode_error_or_read_as_another_message(
    chosen: tuple[Any, int], seed: int, data: st.DataObject
) -> None:
    cls, version = chosen
    raw = bytearray(encode_body(random_message(cls, version, Random(seed))))
    for _ in range(data.draw(st.integers(1, 4))):
        if not raw:
            break
        at = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(["flip", "ff", "zero", "cut", "twice", "int"]))
        if how == "flip":
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "ff":
            raw[at : at + 4] = b"\xff\xff\xff\xff"
        elif how == "zero":
            raw[at] = 0
        elif how == "cut":
            del raw[at:]
        elif how == "twice":
            raw[at:at] = raw[at : at + 20]
        else:
            raw[at : at + 4] = struct.pack(">i", data.draw(st.sampled_from([-2, -(2**31), 2**31 - 1, 65536])))
    try:
        message = decode(cls, version, memoryview(raw))
    except DecodeError:
        return
    encode_body(message)  # what was read can be written


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(every_class()), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_decode_error(chosen: tuple[Any, int], raw: bytes) -> None:
    try:
        decode(*chosen, memoryview(raw))
    except DecodeError:
        pass


# --- null, negative, huge: by name


def test_null_where_the_schema_does_not_allow_it_is_refused() -> None:
    body = bytearray(encode_body(OffsetCommitRequest(version=2, group_id="g", topics=[])))
    assert decode(OffsetCommitRequest, 2, memoryview(body)).group_id == "g"
    body[0:3] = b"\xff\xff"
    with pytest.raises(DecodeError, match="group_id is null"):
        decode(OffsetCommitRequest, 2, memoryview(body))
    flexible = bytearray(encode_body(OffsetCommitRequest(version=8, group_id="g", topics=[])))
    flexible[0:2] = b"\0"
    with pytest.raises(DecodeError, match="group_id is null"):
        decode(OffsetCommitRequest, 8, memoryview(flexible))


def test_null_where_the_schema_allows_it_is_none() -> None:
    assert decode(MetadataRequest, 1, memoryview(struct.pack(">i", -1))).topics is None
    with pytest.raises(DecodeError, match="topics is null"):
        decode(MetadataRequest, 0, memoryview(struct.pack(">i", -1)))


@pytest.mark.parametrize("count", [-2, -3, -(2**31)])
@pytest.mark.parametrize("version", [0, 1])
def test_a_negative_count_is_refused(count: int, version: int) -> None:
    with pytest.raises(DecodeError, match="topics"):
        decode(MetadataRequest, version, memoryview(struct.pack(">i", count) + bytes(10)))


@pytest.mark.parametrize("length", [-2, -32768])
def test_a_negative_length_does_not_move_the_position_back(length: int) -> None:
    with pytest.raises(DecodeError, match="negative length"):
        decode(MetadataRequest, 1, memoryview(struct.pack(">ih", 1, length) + bytes(100)))


@pytest.mark.parametrize("count", [5, 65536, 2**31 - 1])
def test_a_count_beyond_the_bytes_that_are_left_costs_nothing(count: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="more elements than bytes"):
            decode(MetadataRequest, 1, memoryview(struct.pack(">i", count) + b"\0\1"))
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [3, 32767])
def test_text_and_bytes_beyond_the_frame_are_refused_not_cut(length: int) -> None:
    with pytest.raises(DecodeError, match="beyond the frame"):
        decode(MetadataRequest, 1, memoryview(struct.pack(">ih", 1, length) + b"ab"))


def test_text_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode(MetadataRequest, 1, memoryview(struct.pack(">ih", 1, 2) + b"\xff\xfe"))


def test_more_elements_than_any_client_sends_are_refused_before_they_are_made() -> None:
    raw = memoryview(struct.pack(">i", MOST_ELEMENTS + 1) + bytes(2 * (MOST_ELEMENTS + 1)))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="more than 262144 elements"):
            decode(MetadataRequest, 1, raw)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_the_bound_of_elements_counts_all_arrays_of_a_message_together() -> None:
    topic = struct.pack(">h", 0) + struct.pack(">i", 1000)
    partition = struct.pack(">iqh", 0, 0, -1)
    count = MOST_ELEMENTS // 1000 + 1
    body = b"".join([struct.pack(">hihq", 0, 0, 0, 0), struct.pack(">i", count), (topic + partition * 1000) * count])
    with pytest.raises(DecodeError, match="more than 262144 elements"):
        decode(OffsetCommitRequest, 2, memoryview(body))


# --- tagged fields


def uvarint(value: int) -> bytes:
    return varint_bytes(value)


def tagged(count: int, size: int = 0) -> bytes:
    """A section of `count` tagged fields that nobody knows."""
    return uvarint(count) + b"".join(uvarint(100 + i) + uvarint(size) + bytes(size) for i in range(count))


def commit_with_tags(partitions: int) -> memoryview:
    """An OffsetCommit 8 with one unknown tag a partition."""
    partition = struct.pack(">iqi", 0, 0, -1) + b"\0" + tagged(1, 3)
    return memoryview(
        b"\x02g" + struct.pack(">i", 0) + b"\x01" + b"\0" + b"\x02\x02t" + uvarint(partitions + 1)
        + partition * partitions + b"\0" + b"\0"
    )  # fmt: skip


def test_unknown_tagged_fields_are_stepped_over() -> None:
    message = decode(OffsetCommitRequest, 8, commit_with_tags(3))
    assert len(message.topics[0].partitions) == 3


def test_decoding_is_linear_where_each_partition_has_a_tagged_field() -> None:
    """kafka-python copies the rest of the frame at each: 391 ms for 576 KB."""

    def best(partitions: int) -> float:
        raw = commit_with_tags(partitions)
        times = []
        for _ in range(5):
            began = time.thread_time()
            decode(OffsetCommitRequest, 8, raw)
            times.append(time.thread_time() - began)
        return min(times)

    best(100)
    small, large = best(2_500), best(20_000)
    assert large < 8 * small * 3, "eight times the frame may take eight times as long"
    assert large < 3


def test_many_tagged_fields_in_one_section_are_linear() -> None:
    head = encode_body(MetadataRequest(version=12, topics=[]))[:-1]
    times = []
    for count in (20_000, 160_000):
        raw = memoryview(head + tagged(count))
        readings = []
        for _ in range(3):
            began = time.thread_time()
            decode(MetadataRequest, 12, raw)
            readings.append(time.thread_time() - began)
        times.append(min(readings))
    assert times[1] < times[0] * 8 * 3 + 0.05


@pytest.mark.parametrize(
    "section",
    [
        uvarint(2**32 - 1),
        uvarint(1) + uvarint(5) + uvarint(100),
        uvarint(1) + uvarint(5) + uvarint(2**32 - 1),
        b"\xff\xff\xff\xff\x7f",
        b"\xff" * 10,
        b"\x80" * 5 + b"\0",
    ],
    ids=["count", "beyond", "far beyond", "33 bits", "endless", "six bytes"],
)
def test_tagged_fields_that_cannot_be_are_refused(section: bytes) -> None:
    head = encode_body(MetadataRequest(version=12, topics=[]))[:-1]
    with pytest.raises(DecodeError):
        decode(MetadataRequest, 12, memoryview(head + section))


def test_a_known_tagged_field_of_another_size_is_refused() -> None:
    fetch = REQUESTS[1]
    raw = encode_body(fetch(version=12, cluster_id="abc", topics=[], forgotten_topics_data=[], rack_id=""))
    at = raw.index(b"\x04abc")
    assert raw[at - 1] == 4
    for size in (3, 5):
        with pytest.raises(DecodeError):
            decode(fetch, 12, memoryview(raw[: at - 1] + bytes((size,)) + raw[at:] + b"\0" * (size - 4)))


# --- headers


def header(key: int, version: int, client: bytes | None, rest: bytes = b"") -> memoryview:
    size = -1 if client is None else len(client)
    return memoryview(struct.pack(">hhih", key, version, 7, size) + (client or b"") + rest)


@pytest.mark.parametrize("key", sorted(REQUESTS))
def test_headers_of_every_api_and_version(key: int) -> None:
    cls = REQUESTS[key]
    for version in range(cls.valid_versions[0], cls.valid_versions[1] + 1):
        flexible = cls.flexible_version_q(version)
        assert flexible == (version >= FLEXIBLE_FROM[key])
        for client in (None, b"", b"kcat"):
            for tags in (b"\0", tagged(3, 5)) if flexible else (b"",):
                parsed = parse_header(header(key, version, client, tags + b"body"))
                assert (parsed.api_key, parsed.api_version, parsed.correlation_id) == (key, version, 7)
                assert parsed.client_id == (None if client is None else client.decode())
                assert bytes(header(key, version, client, tags + b"body")[parsed.body :]) == b"body"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\x12\0",
        struct.pack(">hhih", 18, 0, 1, -2),
        struct.pack(">hhih", 18, 0, 1, 5) + b"abc",
        struct.pack(">hhih", 18, 3, 1, -1),
        struct.pack(">hhih", 18, 3, 1, -1) + b"\x01",
        struct.pack(">hhih", 18, 3, 1, -1) + b"\xff\xff\xff\xff\x0f",
        struct.pack(">hhih", 18, 3, 1, -1) + b"\x01\x05\xff\x01",
    ],
)
def test_a_header_that_is_not_one_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_header(memoryview(raw))


@pytest.mark.parametrize(
    ("client", "read"), [(b"\xff\xff", "\ufffd\ufffd"), (b"h\xf6st-1", "h\ufffdst-1"), (b"a\xc3", "a\ufffd")]
)
def test_a_client_id_that_is_no_utf_8_is_read_as_kafka_reads_it(client: bytes, read: str) -> None:
    for parse in (parse_header, request_header):
        assert tuple(parse(header(12, 4, client, b"\0body"))) == (12, 4, 7, read, 11 + len(client))


def test_foreign_protocols_are_known_by_their_first_bytes_and_kafka_is_none_of_them() -> None:
    assert "TLS" in (foreign_protocol(b"\x16\x03\x03\x00\xf4") or "")
    for verb in (b"GET /", b"POST ", b"PUT /", b"HEAD ", b"OPTIO", b"DELET", b"PATCH", b"CONNE", b"PRI *"):
        assert "HTTP" in (foreign_protocol(verb) or "")
    assert "SSH" in (foreign_protocol(b"SSH-2.0") or "")
    for size in (10, 100, 1 << 20, 104_857_600):
        assert foreign_protocol(struct.pack(">ihh", size, 18, 3)) is None


# --- which there are


def test_a_new_version_of_kafka_python_adds_or_removes_no_message_unseen() -> None:
    assert sorted(REQUESTS) == sorted(RESPONSES) == [
        *range(4), *range(8, 34), *range(35, 45), *range(46, 52), 55, 57, 60, 61, 65, 66, 74, 75,
    ]  # fmt: skip


# --- responses


@pytest.mark.parametrize("key", sorted(RESPONSES))
def test_a_response_frame_is_its_size_its_header_and_its_body(key: int) -> None:
    cls = RESPONSES[key]
    rng = Random(key)
    for version in range(cls.valid_versions[0], cls.valid_versions[1] + 1):
        message = random_message(cls, version, rng)
        frame = encode_response(77, message)
        (size, correlation) = struct.unpack_from(">ii", frame)
        tags = 1 if cls.flexible_version_q(version) and key != 18 else 0
        assert (size, correlation) == (len(frame) - 4, 77)
        assert frame[8 : 8 + tags] == bytes(tags)
        assert frame[8 + tags :] == encode_body(message)


def test_a_response_larger_than_the_scratch_buffer() -> None:
    row = RESPONSES[16].ListedGroup
    groups = [row(version=4, group_id=f"group-{i}" * 5, protocol_type="consumer", group_state="") for i in range(5000)]
    frame = encode_response(1, RESPONSES[16](version=4, error_code=0, groups=groups))
    assert len(frame) > 256 * 1024
    assert len(decode(RESPONSES[16], 4, memoryview(frame), 9).groups) == 5000
