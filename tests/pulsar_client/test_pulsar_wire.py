"""What is read and written by hand, against protobuf."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from support.fake_pulsar import encode, entry_bytes

from kop.pulsar_client import wire
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Position

U64 = st.integers(0, 2**64 - 1)
Command = pb.BaseCommand


def without_size(frame: bytes) -> memoryview:
    assert struct.unpack(">I", frame[:4])[0] == len(frame) - 4
    return memoryview(frame)[4:]


@given(
    producer=st.integers(0, 2**63),
    sequence=U64,
    highest=st.none() | U64,
    count=st.integers(1, 2**31 - 1),
    payload=st.binary(max_size=300),
    metadata=st.binary(max_size=300),
)
def test_a_send_is_what_protobuf_reads(producer, sequence, highest, count, payload, metadata) -> None:
    head = wire.send_head(producer, sequence, highest, count, metadata, payload)
    frame = without_size(head + metadata + payload)
    size = struct.unpack_from(">I", frame)[0]
    command = Command.FromString(bytes(frame[4 : 4 + size]))
    assert command.type == Command.SEND
    told = command.send
    assert (told.producer_id, told.sequence_id, told.num_messages) == (producer, sequence, count)
    assert told.highest_sequence_id == (highest or 0)
    assert told.HasField("highest_sequence_id") == (highest is not None)
    behind = bytes(frame[4 + size :])
    assert behind[:2] == b"\x0e\x01"
    assert struct.unpack(">I", behind[2:6])[0] == crc32c(behind[6:])
    assert behind[6:] == struct.pack(">I", len(metadata)) + metadata + payload


@pytest.mark.parametrize(
    ("told", "read"),
    [((5, 6), Position(5, 6)), ((2**64 - 1, 2**64 - 1), Position(-1, -1)), ((2**63 - 1, 0), Position(2**63 - 1, 0))],
)
def test_a_position_is_read_as_the_broker_means_it(told: tuple[int, int], read: Position) -> None:
    # as the broker writes it: two unsigned numbers
    numbers = pb.BrokerEntryMetadata(broker_timestamp=told[0], index=told[1]).SerializeToString()
    assert wire.read_position(pb.MessageIdData.FromString(numbers)) == read
    assert pb.MessageIdData(ledgerId=read.ledger, entryId=read.entry).SerializeToString() == numbers


def test_a_command_and_what_stands_behind_it() -> None:
    frame = without_size(encode(Command(type=Command.PING, ping=pb.CommandPing()), b"entry"))
    command, end = wire.read_command(frame)
    assert command.type == Command.PING
    assert bytes(frame[end:]) == b"entry"


def test_fields_of_later_versions_are_no_harm() -> None:
    extra = b"\xf8\x01\x05" + b"\xfa\x01\x03abc" + b"\xf9\x01" + bytes(8) + b"\xfd\x01" + bytes(4)
    body = extra + pb.CommandSendReceipt(producer_id=3, sequence_id=4).SerializeToString() + extra
    command = b"\x08\x07\x3a" + bytes((len(body),)) + body
    read, _ = wire.read_command(memoryview(struct.pack(">I", len(command)) + command))
    assert (read.send_receipt.producer_id, read.send_receipt.sequence_id) == (3, 4)


@given(
    messages=st.none() | st.integers(1, 2**31 - 1),
    properties=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
    key=st.none() | st.text(max_size=200),
)
def test_messages_are_counted_by_the_metadata(messages, properties, key) -> None:
    metadata = meta(
        num_messages_in_batch=messages,
        properties=[pb.KeyValue(key=k, value=v) for k, v in properties.items()],
        partition_key=key,
        ordering_key=b"\x58\x05",
    )
    assert read(entry_bytes(metadata, b"")).num_messages == (messages or 1)


def meta(**fields) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)


def read(data: bytes):
    message = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=5, entryId=6), ack_set=[7, -1])
    return wire.read_entry(memoryview(b"head" + data), 4, message)


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("index", [None, 0, 41, 2**40])
def test_an_entry_is_taken_apart(checksum: bool, index: int | None) -> None:
    metadata = meta(num_messages_in_batch=3, num_chunks_from_msg=2, chunk_id=1, uuid="u")
    data = entry_bytes(metadata, b"payload", checksum=checksum)
    if index is not None:
        told = pb.BrokerEntryMetadata(broker_timestamp=99, index=index).SerializeToString()
        data = b"\x0e\x02" + struct.pack(">I", len(told)) + told + data
    entry = read(data)
    assert entry.position == Position(5, 6)
    assert (entry.index, entry.broker_timestamp) == (index, 0 if index is None else 99)
    assert entry.num_messages == 3
    assert bytes(entry.metadata) == metadata.SerializeToString()
    assert bytes(entry.payload) == b"payload"
    assert entry.ack_set == (7, -1)
    assert entry.metadata.readonly
    assert entry.payload.readonly


def test_every_damaged_bit_behind_the_checksum_is_found() -> None:
    data = entry_bytes(meta(), b"xyz")
    for at in range(6, len(data)):
        with pytest.raises(PulsarError, match="ChecksumError"):
            read(data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :])


@given(st.binary(max_size=60))
def test_rubbish_for_an_entry_is_an_error_with_a_name(data: bytes) -> None:
    for prefix in (b"", b"\x0e\x01", b"\x0e\x02\x00\x00\x00\x02", b"\x00\x00"):
        try:
            read(prefix + data)
        except PulsarError as error:
            assert error.code == "ChecksumError"  # noqa: PT017 - what is read without an error is fine too


@given(st.binary(max_size=12))
def test_rubbish_for_a_frame_is_an_error_with_a_name(data: bytes) -> None:
    try:
        _, end = wire.read_command(memoryview(data))
    except PulsarError as error:
        assert error.code == "FrameError"  # noqa: PT017
    else:
        assert end <= len(data)


def test_ping_and_pong_are_protobufs_own() -> None:
    assert encode(Command(type=Command.PING, ping=pb.CommandPing())) == wire.PING_FRAME
    assert encode(Command(type=Command.PONG, pong=pb.CommandPong())) == wire.PONG_FRAME
