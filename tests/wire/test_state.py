from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.errors import StateRecordError
from kop.wire.state import (
    OFFSET_VALUE_VERSION,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetKey,
    PendingOffsetValue,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    decode_pending_value,
    encode_group_value,
    encode_key,
    encode_offset_value,
    encode_pending_value,
)
from kop.wire.state_encoding import RecordReader

# Made by Kafka 4.3.1's own classes: StateVectors.java beside this file.
VECTORS = json.loads(Path(__file__).with_name("state_vectors.json").read_text())


def of(kind: str) -> list[Any]:
    chosen = [v for v in VECTORS if v["kind"] == kind]
    assert chosen
    return [pytest.param(v, id=f"{kind}-v{v['version']}-{i}") for i, v in enumerate(chosen)]


def offset_value(fields: dict[str, Any]) -> OffsetCommitValue:
    topic_id = fields["topic_id"]
    return OffsetCommitValue(**{**fields, "topic_id": topic_id and UUID(topic_id)})


def group_value(fields: dict[str, Any]) -> GroupMetadataValue:
    members = tuple(
        MemberMetadata(
            **{**m, "subscription": bytes.fromhex(m["subscription"]), "assignment": bytes.fromhex(m["assignment"])}
        )
        for m in fields["members"]
    )
    return GroupMetadataValue(**{**fields, "members": members})


@pytest.mark.parametrize("vector", of("offset_key"))
def test_offset_key_is_kafkas(vector: dict[str, Any]) -> None:
    key, raw = OffsetCommitKey(**vector["fields"]), bytes.fromhex(vector["hex"])
    assert decode_key(raw) == key
    if vector["version"] == 1:
        assert encode_key(key) == raw


@pytest.mark.parametrize("vector", of("group_key"))
def test_group_key_is_kafkas(vector: dict[str, Any]) -> None:
    key, raw = GroupMetadataKey(**vector["fields"]), bytes.fromhex(vector["hex"])
    assert decode_key(memoryview(raw)) == key
    assert encode_key(key) == raw


@pytest.mark.parametrize("vector", of("offset_value"))
def test_offset_value_is_kafkas(vector: dict[str, Any]) -> None:
    value, raw = offset_value(vector["fields"]), bytes.fromhex(vector["hex"])
    assert decode_offset_value(raw) == value
    assert encode_offset_value(value, vector["version"]) == raw


@pytest.mark.parametrize("vector", of("group_value"))
def test_group_value_is_kafkas(vector: dict[str, Any]) -> None:
    value, raw = group_value(vector["fields"]), bytes.fromhex(vector["hex"])
    assert decode_group_value(raw) == value
    assert encode_group_value(value, vector["version"]) == raw


def test_versions_are_those_that_kafka_writes() -> None:
    assert encode_offset_value(OffsetCommitValue(1))[:2] == b"\0\4"
    assert encode_offset_value(OffsetCommitValue(1, expire_timestamp=5))[:2] == b"\0\1"
    assert encode_group_value(GroupMetadataValue("consumer", 1, None, None))[:2] == b"\0\3"


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(max_size=300),
    st.integers(-1, 2**63 - 1),
    st.uuids() | st.sampled_from([None, UUID(int=0)]),
)
def test_the_newest_version_has_the_same_bytes_whether_it_is_chosen_or_named(
    offset: int, leader_epoch: int, metadata: str, commit_timestamp: int, topic_id: UUID | None
) -> None:
    value = OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp, -1, topic_id)
    assert encode_offset_value(value) == encode_offset_value(value, OFFSET_VALUE_VERSION)


def test_names_that_no_record_can_hold_are_refused() -> None:
    long = "ä" * 16_384
    for key in (OffsetCommitKey(long, "t", 0), OffsetCommitKey("g", long, 0), GroupMetadataKey(long)):
        with pytest.raises(StateRecordError, match="32768 bytes"):
            encode_key(key)


def test_unknown_kinds_of_keys_are_named() -> None:
    assert decode_key(b"\0\3\0\1g") == UnknownKey(3)


def test_unknown_tags_are_stepped_over() -> None:
    raw = encode_offset_value(OffsetCommitValue(7, metadata="m", commit_timestamp=9))
    assert decode_offset_value(raw[:-1] + b"\1\5\2xy") == OffsetCommitValue(7, metadata="m", commit_timestamp=9)


@pytest.mark.parametrize("vector", [pytest.param(v, id=str(i)) for i, v in enumerate(VECTORS)])
def test_every_truncation_is_an_error_or_a_shorter_key(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    decoders: dict[str, Callable[[bytes], object]] = {
        "offset_key": decode_key,
        "group_key": decode_key,
        "offset_value": decode_offset_value,
        "group_value": decode_group_value,
    }
    decode = decoders[vector["kind"]]
    for size in range(len(raw)):
        with pytest.raises(StateRecordError):
            decode(raw[:size])


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_unknown_versions_are_refused(version: int) -> None:
    raw = version.to_bytes(2, "big", signed=True) + bytes(40)
    with pytest.raises(StateRecordError, match="version"):
        decode_offset_value(raw)
    with pytest.raises(StateRecordError, match="version"):
        decode_group_value(raw)
    with pytest.raises(StateRecordError, match="version"):
        encode_group_value(GroupMetadataValue("", 0, None, None), version)


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_refused(raw: bytes) -> None:
    for decode in (decode_key, decode_offset_value, decode_group_value, decode_pending_value):
        with contextlib.suppress(StateRecordError):
            assert decode(raw) is not None


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=300),
    st.integers(-1, 2**63 - 1),
    st.none() | st.uuids(),
)
def test_offset_values_round_trip(offset: int, epoch: int, metadata: str, stamp: int, topic_id: UUID | None) -> None:
    value = OffsetCommitValue(offset, epoch, metadata, stamp, -1, topic_id)
    assert decode_offset_value(encode_offset_value(value)) == value


def test_bytes_of_pending_offsets() -> None:
    """They are in logs: they stay as they are."""
    key = PendingOffsetKey("g", "t", 3, 4001)
    assert encode_key(key).hex() == "03e8000167000174000000030000000000000fa1"
    value = PendingOffsetValue(5, OffsetCommitValue(7, 2, "m", 9))
    assert encode_pending_value(value).hex() == ("000000050004000000000000000700000002026d000000000000000900")
    named = PendingOffsetValue(5, OffsetCommitValue(7, 2, "m", 9), b"tx")
    assert encode_pending_value(named).hex() == ("000000050004000000000000000700000002026d000000000000000901904e027478")


@given(
    st.text(max_size=20),
    st.text(max_size=20),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 32_767),
    st.integers(0, 2**63 - 1),
    st.none() | st.uuids(),
    st.binary(max_size=20),
)
def test_pending_offsets_round_trip(
    group: str,
    topic: str,
    partition: int,
    producer_id: int,
    epoch: int,
    offset: int,
    topic_id: UUID | None,
    name: bytes,
) -> None:
    key = PendingOffsetKey(group, topic, partition, producer_id)
    assert decode_key(encode_key(key)) == key
    value = PendingOffsetValue(epoch, OffsetCommitValue(offset, 1, "m", 2, -1, topic_id), name)
    assert decode_pending_value(memoryview(encode_pending_value(value))) == value


def test_every_truncation_of_a_pending_offset_is_an_error() -> None:
    raw_key = encode_key(PendingOffsetKey("g", "t", 3, 4001))
    raw = encode_pending_value(PendingOffsetValue(5, OffsetCommitValue(7), b"tx"))
    for size in range(2, len(raw_key)):
        with pytest.raises(StateRecordError):
            decode_key(raw_key[:size])
    for size in range(len(raw)):
        with pytest.raises(StateRecordError):
            decode_pending_value(raw[:size])
    with pytest.raises(StateRecordError, match="version 1"):
        decode_pending_value(b"\0\1" + raw[2:])


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"\x80\x01", 128), (b"\xff\xff\xff\xff\x0f", 2**32 - 1), (b"\xff\xff\xff\xff\x10", None), (b"\x80" * 6, None)],
)
def test_varints_have_32_bits(data: bytes, value: int | None) -> None:
    if value is None:
        with pytest.raises(StateRecordError, match="a varint of more than 32 bits"):
            RecordReader(data).uvarint()
    else:
        assert RecordReader(data).uvarint() == value
