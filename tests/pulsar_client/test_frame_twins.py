"""The compiled reader of frames against the plain one: on what is right, and on what is damaged."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import damaged
from support.examples import examples
from support.fake_pulsar import encode, entry_bytes

from kop.compiled import compiled
from kop.pulsar_client import _pure
from kop.pulsar_client.proto import pulsar_pb2 as pb

native: Any = compiled(_pure)
pytestmark = pytest.mark.skipif(native is _pure, reason="kop._native was not built: there is one reader of frames")

Command = pb.BaseCommand
INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9)
UINT64 = st.integers(0, 2**64 - 1) | st.integers(0, 9)
SEEDS = st.integers(0, 2**32)
UNKNOWN = st.sampled_from(
    [
        b"",
        b"\xf8\x01\x05",  # a number
        b"\xfa\x01\x03abc",
        b"\xf9\x01" + bytes(8),
        b"\xfd\x01" + bytes(4),
        b"\xfb\x01\xfb\x01\x08\x05\xfc\x01\xfc\x01",  # a group in a group
        b"\xfb\x01\x00\x01\xfc\x01",  # a field without a number in a group
        b"\x00\x01",
        b"\xfb\x01\x08\x05",  # a group without an end
        b"\xfb\x01\x0c",  # a group with another one's end
        b"\xfe\x01",  # a wire type that is none
        b"\x3b\x08\x01\x3c",  # a known field as a group
        b"\x48\x05",  # a known field as a number
        b"\xf8\xff\xff\xff\x0f\x01",  # the highest number of a field
        b"\xf8\xff\xff\xff\x1f\x01",  # one that is too high
        b"\x88\x80\x80\x80\x00\x07",  # a tag in more bytes than it takes
        b"\x88\x80\x80\x80\x80\x00\x07",
        b"\xba\x00\x82\x00\x08\x03",  # a size in more bytes than it takes
    ]
)
POSITIONS = st.builds(lambda ledger, entry: pb.MessageIdData(ledgerId=ledger, entryId=entry), INT64, INT64)


@st.composite
def receipts(draw: st.DrawFn) -> bytes:
    told = pb.CommandSendReceipt(
        producer_id=draw(st.integers(0, 2) | UINT64),
        sequence_id=draw(UINT64),
        message_id=draw(st.none() | POSITIONS),
        highest_sequence_id=draw(st.none() | UINT64),
    )
    return with_unknown(draw, Command(type=Command.SEND_RECEIPT), 7, told.SerializeToString(), b"")


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    told = pb.CommandMessage(
        consumer_id=draw(UINT64), message_id=draw(POSITIONS), ack_set=draw(st.lists(INT64, max_size=2))
    )
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=draw(UINT64),
        publish_time=1,
        num_messages_in_batch=draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
    )
    entry = entry_bytes(metadata, draw(st.binary(max_size=20)), checksum=draw(st.booleans()))
    if draw(st.booleans()):
        by_broker = pb.BrokerEntryMetadata(
            broker_timestamp=draw(st.none() | UINT64), index=draw(st.none() | UINT64)
        ).SerializeToString() + draw(UNKNOWN)
        entry = b"\x0e\x02" + struct.pack(">I", len(by_broker)) + by_broker + entry
    if draw(st.booleans()):
        entry = damaged(entry, draw(SEEDS))
    return with_unknown(draw, Command(type=Command.MESSAGE), 9, told.SerializeToString() + draw(UNKNOWN), entry)


def with_unknown(draw: st.DrawFn, command: pb.BaseCommand, field: int, inner: bytes, behind: bytes) -> bytes:
    inner += draw(UNKNOWN)
    body = command.SerializeToString() + draw(UNKNOWN) + bytes((field << 3 | 2, len(inner))) + inner + draw(UNKNOWN)
    return struct.pack(">II", 4 + len(body) + len(behind), len(body)) + body + behind


OTHERS = st.sampled_from(
    [
        encode(Command(type=Command.PING, ping=pb.CommandPing())),
        encode(Command(type=Command.SUCCESS, success=pb.CommandSuccess(request_id=5))),
        encode(
            Command(type=Command.CLOSE_PRODUCER, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=2))
        ),
        b"\0\0\0\4\0\0\0\0",
    ]
)
STREAMS = st.lists(st.one_of(receipts(), messages(), OTHERS), max_size=6).map(b"".join)


def outcome(data: bytes, limit: int, reader: Any) -> Any:
    received, used, next_size, fault = reader.read_frames(memoryview(data), limit)
    told = [
        tuple(bytes(field) if isinstance(field, memoryview) else field for field in each)
        if isinstance(each, tuple)
        else each
        for each in received
    ]
    return told, used, next_size, fault


def same(data: bytes, limit: int = 1 << 20) -> None:
    assert outcome(data, limit, native) == outcome(data, limit, _pure)


@settings(deadline=None, max_examples=examples(200))
@given(STREAMS, st.integers(0, 200))
def test_whole_frames(data: bytes, limit: int) -> None:
    same(data)
    same(data, limit)


@settings(deadline=None, max_examples=50)
@given(STREAMS)
def test_frames_that_end_anywhere(data: bytes) -> None:
    for end in range(len(data)):
        same(data[:end])


@settings(deadline=None, max_examples=examples(1000))
@given(STREAMS, SEEDS)
def test_damaged_frames(data: bytes, seed: int) -> None:
    same(damaged(data, seed))


@settings(deadline=None, max_examples=examples(1000))
@given(st.one_of(receipts(), messages()), SEEDS)
def test_a_damaged_command_in_a_whole_frame(data: bytes, seed: int) -> None:
    length = int.from_bytes(data[4:8], "big")
    body, behind = damaged(data[8 : 8 + length], seed), data[8 + length :]
    same(struct.pack(">II", 4 + len(body) + len(behind), len(body)) + body + behind)


@pytest.mark.parametrize("depth", [1, 50, 500])
def test_groups_in_groups(depth: int) -> None:
    body = b"\x08\x07" + b"\xfb\x01" * depth + b"\xfc\x01" * depth
    same(struct.pack(">II", 4 + len(body), len(body)) + body)
