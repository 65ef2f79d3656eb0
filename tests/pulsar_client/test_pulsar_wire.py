"""What is read and written by hand, against protobuf."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from pulsar_client.pulsar_kit import TWINS
from support.fake_pulsar import encode, entry_bytes

from kop.pulsar_client import wire
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Message, Position

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
def test_a_send_is_what_protobuf_reads(
    producer: int, sequence: int, highest: int | None, count: int, payload: bytes, metadata: bytes
) -> None:
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


@given(
    producers=st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)),
    sequence=U64,
    entry=st.tuples(st.binary(max_size=300), st.binary(max_size=300)),
)
def test_a_frame_for_another_producer_differs_in_its_number_alone(
    producers: tuple[int, int], sequence: int, entry: tuple[bytes, bytes]
) -> None:
    old, new = (wire.send_head(producer, sequence, sequence, 3, *entry) + b"".join(entry) for producer in producers)
    assert wire.readdressed(old, producers[1]) == new


@pytest.mark.parametrize(
    ("told", "read"),
    [((5, 6), Position(5, 6)), ((2**64 - 1, 2**64 - 1), Position(-1, -1)), ((2**63 - 1, 0), Position(2**63 - 1, 0))],
)
def test_a_position_is_read_as_the_broker_means_it(told: tuple[int, int], read: Position) -> None:
    # as the broker writes it: two unsigned numbers
    numbers = pb.BrokerEntryMetadata(broker_timestamp=told[0], index=told[1]).SerializeToString()
    assert wire.read_position(pb.MessageIdData.FromString(numbers)) == read
    assert pb.MessageIdData(ledgerId=read.ledger, entryId=read.entry).SerializeToString() == numbers


def test_what_is_no_command() -> None:
    with pytest.raises(PulsarError, match="FrameError"):
        wire.read_command(b"\x08")


@pytest.mark.parametrize("twin", TWINS)
def test_fields_of_later_versions_are_no_harm(twin: ModuleType) -> None:
    extra = b"\xf8\x01\x05" + b"\xfa\x01\x03abc" + b"\xf9\x01" + bytes(8) + b"\xfd\x01" + bytes(4)
    body = extra + pb.CommandSendReceipt(producer_id=3, sequence_id=4).SerializeToString() + extra
    command = extra + b"\x08\x07\x3a" + bytes((len(body),)) + body
    data = struct.pack(">II", len(command) + 4, len(command)) + command
    assert twin.read_frames(memoryview(data), 1 << 20) == ([[(3, 4, 0, -1, -1)]], len(data), -1, "")


@pytest.mark.parametrize("twin", TWINS)
@given(
    messages=st.none() | st.integers(1, 2**31 - 1),
    properties=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
    key=st.none() | st.text(max_size=200),
)
def test_messages_are_counted_by_the_metadata(
    twin: ModuleType, messages: int | None, properties: dict[str, str], key: str | None
) -> None:
    metadata = meta(
        num_messages_in_batch=messages,
        properties=[pb.KeyValue(key=k, value=v) for k, v in properties.items()],
        partition_key=key,
        ordering_key=b"\x58\x05",
    )
    assert read(twin, entry_bytes(metadata, b""))[5] == (messages or 1)


def meta(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)


def read(twin: ModuleType, data: bytes) -> Message:
    told = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=5, entryId=6), ack_set=[7, -1])
    frame = encode(Command(type=Command.MESSAGE, message=told), data)
    ((message,), used, next_size, fault) = twin.read_frames(memoryview(frame), 1 << 20)
    assert (used, next_size, fault) == (len(frame), -1, "")
    return message


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("index", [None, 0, 41, 2**40])
def test_an_entry_is_taken_apart(twin: ModuleType, checksum: bool, index: int | None) -> None:
    metadata = meta(num_messages_in_batch=3, num_chunks_from_msg=2, chunk_id=1, uuid="u")
    data = entry_bytes(metadata, b"payload", checksum=checksum)
    if index is not None:
        told = pb.BrokerEntryMetadata(broker_timestamp=99, index=index).SerializeToString()
        data = b"\x0e\x02" + struct.pack(">I", len(told)) + told + data
    message = read(twin, data)
    assert message[:6] == (1, 5, 6, index, 0 if index is None else 99, 3)
    assert message[6:] == (metadata.SerializeToString(), b"payload", "")
    assert message[6].readonly
    assert message[7].readonly


@pytest.mark.parametrize("twin", TWINS)
def test_every_damaged_bit_behind_the_checksum_is_found(twin: ModuleType) -> None:
    data = entry_bytes(meta(), b"xyz")
    for at in range(6, len(data)):
        message = read(twin, data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :])
        assert message[5:] == (1, b"", b"", "its checksum does not fit")


@pytest.mark.parametrize("twin", TWINS)
def test_the_index_of_a_damaged_entry_is_told_where_it_can_be_read(twin: ModuleType) -> None:
    told = pb.BrokerEntryMetadata(broker_timestamp=99, index=41).SerializeToString()
    for stored in (b"", b"\x0e\x01", b"\x00\x00\x00\x09", b"\x00\x00\x00\x01\xff"):
        message = read(twin, b"\x0e\x02" + struct.pack(">I", len(told)) + told + stored)
        assert message[3:8] == (41, 99, 1, b"", b"")
        assert message[8]
    for told in (b"\x08", b"\x10\x05\xff"):
        message = read(twin, b"\x0e\x02" + struct.pack(">I", len(told)) + told + entry_bytes(meta(), b"xyz"))
        assert message[3:] == (None, 0, 0, b"", b"", "what the broker says of it cannot be read")


def test_ping_and_pong_are_protobufs_own() -> None:
    assert encode(Command(type=Command.PING, ping=pb.CommandPing())) == wire.PING_FRAME
    assert encode(Command(type=Command.PONG, pong=pb.CommandPong())) == wire.PONG_FRAME


def test_every_command_has_a_field_whose_number_is_its_type() -> None:
    """So that a command's own message says which one it is."""
    fields = {number: field for number, field in Command.DESCRIPTOR.fields_by_number.items() if number != 1}
    assert fields.keys() == {value.number for value in Command.Type.DESCRIPTOR.values}
    assert len({field.message_type for field in fields.values()}) == len(fields)
