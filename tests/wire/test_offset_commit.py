"""OffsetCommit by hand beside the strict decoder and kafka-python's encoder: the same is read, refused and written."""

from __future__ import annotations

import struct
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bodies import encode_body
from support.examples import examples
from support.random_messages import random_message

from kop.varints import varint_bytes
from kop.wire import codec
from kop.wire.messages import OffsetCommitRequest, OffsetCommitResponse
from kop.wire.offset_commit import (
    OffsetCommitAnswer,
    encode_response,
    parse,
)
from kop.wire.primitives import MOST_ELEMENTS, DecodeError

VERSIONS = range(2, 11)


def seen(request: Any, version: int) -> Any:
    """What a request says, whoever decoded it."""
    topics = [
        (
            topic.topic_id if version >= 10 else topic.name,
            [
                (
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch if version >= 6 else -1,
                    partition.committed_metadata,
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return (
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id if version >= 7 else None,
        request.retention_time_ms if version <= 4 else -1,
        topics,
    )


def read(raw: bytes, version: int) -> Any:
    """What the readable code reads, None where it refuses."""
    try:
        return seen(parse(memoryview(raw), version), version)
    except DecodeError:
        return None


def read_by_schema(raw: bytes, version: int) -> Any:
    try:
        return seen(codec.decode(OffsetCommitRequest, version, memoryview(raw)), version)
    except DecodeError:
        return None


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_strict_decoder_reads_is_read(version: int) -> None:
    rng = Random(version)
    for _ in range(50):
        raw = encode_body(random_message(OffsetCommitRequest, version, rng))
        assert read(raw, version) == read_by_schema(raw, version) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_at_every_byte_or_followed_by_one_is_refused(version: int) -> None:
    rng = Random(version)
    raw = encode_body(random_message(OffsetCommitRequest, version, rng))
    for size in range(len(raw)):
        assert read(raw[:size], version) is None
    with pytest.raises(DecodeError, match="after its end"):
        parse(memoryview(raw + b"\0"), version)


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(VERSIONS), st.integers(0, 2**32), st.data())
def test_damage_is_refused_or_read_as_the_strict_decoder_does(version: int, seed: int, data: st.DataObject) -> None:
    raw = bytearray(encode_body(random_message(OffsetCommitRequest, version, Random(seed))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        how = data.draw(st.sampled_from(["flip", "ff", "zero", "cut", "twice"]))
        if how == "flip":
            raw[at : at + 1] = bytes(byte ^ 1 << data.draw(st.integers(0, 7)) for byte in raw[at : at + 1])
        elif how == "ff":
            raw[at : at + 4] = b"\xff\xff\xff\xff"
        elif how == "zero":
            raw[at : at + 2] = b"\0\0"
        elif how == "cut":
            del raw[at : at + data.draw(st.integers(1, 9))]
        else:
            raw[at:at] = raw[at : at + 9]
    assert read(bytes(raw), version) == read_by_schema(bytes(raw), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_more_elements_than_any_client_has_are_refused_before_anything_is_made(version: int) -> None:
    flexible = version >= 8

    def count(number: int) -> bytes:
        return varint_bytes(number + 1) if flexible else struct.pack(">i", number)

    text = b"\2g" if flexible else b"\0\1g"
    raw = text + struct.pack(">i", -1) + text
    raw += (b"\0" if flexible else b"\xff\xff") if version >= 7 else bytes(8) if version <= 4 else b""
    many = raw + count(MOST_ELEMENTS + 1) + bytes(2 * MOST_ELEMENTS)
    with pytest.raises(DecodeError, match="elements in one message"):
        parse(memoryview(many), version)
    name = bytes(15) + b"\1" if version >= 10 else text
    many = raw + count(1) + name + count(MOST_ELEMENTS) + bytes(2 * MOST_ELEMENTS)
    with pytest.raises(DecodeError, match="elements in one message"):
        parse(memoryview(many), version)
    with pytest.raises(DecodeError, match="more elements than bytes"):
        parse(memoryview(raw + count(1000) + b"\0"), version)


names = st.text(max_size=200)
partitions = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 0, 3, 16, 25, 82])), max_size=140)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(VERSIONS),
    st.integers(-(2**31), 2**31 - 1),
    st.lists(st.tuples(names, st.uuids() | st.none(), partitions), max_size=5),
)
def test_the_answer_has_the_bytes_that_kafka_python_writes(
    version: int, correlation_id: int, topics: list[tuple[str, UUID | None, list[tuple[int, int]]]]
) -> None:
    answer = OffsetCommitAnswer([*topics])
    topic_class = OffsetCommitResponse.OffsetCommitResponseTopic
    by_schema = OffsetCommitResponse(
        version=version,
        topics=[
            topic_class(
                version=version,
                **({"topic_id": topic_id or UUID(int=0)} if version >= 10 else {"name": name}),
                partitions=[
                    topic_class.OffsetCommitResponsePartition(version=version, partition_index=index, error_code=code)
                    for index, code in rows
                ],
            )
            for name, topic_id, rows in topics
        ],
    )
    codes, frame = encode_response(correlation_id, version, answer)
    assert frame == codec.encode_response(correlation_id, by_schema)
    assert codes == set(codec.error_codes(by_schema))
