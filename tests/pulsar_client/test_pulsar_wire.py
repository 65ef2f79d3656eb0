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


@given(U64)
def test_a_varint_is_read_as_written(value: int) -> None:
    assert wire.read_varint(wire.varint(value) + b"rest", 0) == (value, len(wire.varint(value)))
    assert pb.BrokerEntryMetadata(index=value).SerializeToString() == b"\x10" + wire.varint(value)


def test_a_varint_without_end_is_refused() -> None:
    with pytest.raises(wire.FieldError):
        wire.read_varint(b"\xff" * 11, 0)
    with pytest.raises(IndexError):
        wire.read_varint(b"\xff", 0)


@given(
    producer=st.integers(0, 2**63),
    sequence=U64,
    highest=st.none() | U64,
    count=st.integers(1, 2**31 - 1),
    payload=st.binary(max_size=300),
    metadata=st.binary(max_size=300),
)
def test_a_send_is_what_protobuf_reads(producer, sequence, highest, count, payload, metadata) -> None:
    head = wire.send_head(wire.varint(producer), sequence, highest, count, metadata, payload)
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


def message_ids() -> st.SearchStrategy[pb.MessageIdData]:
    return st.builds(
        pb.MessageIdData,
        ledgerId=U64,
        entryId=U64,
        partition=st.none() | st.integers(-1, 100),
        batch_index=st.none() | st.integers(-1, 100),
        ack_set=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        batch_size=st.none() | st.integers(0, 100),
        first_chunk_message_id=st.none() | st.builds(pb.MessageIdData, ledgerId=U64, entryId=U64),
    )


@given(U64, U64, st.none() | message_ids(), st.none() | U64)
def test_a_receipt_is_read_as_protobuf_reads_it(producer, sequence, message_id, highest) -> None:
    receipt = pb.CommandSendReceipt(
        producer_id=producer, sequence_id=sequence, message_id=message_id, highest_sequence_id=highest
    )
    frame = without_size(encode(Command(type=Command.SEND_RECEIPT, send_receipt=receipt)))
    kind, end = wire.command_type(frame)
    assert kind == wire.SEND_RECEIPT
    at = (message_id.ledgerId, message_id.entryId) if message_id is not None else (2**64 - 1, 2**64 - 1)
    expected = Position(*map(wire.signed, at))
    assert wire.read_receipt(frame, end) == (producer, wire.signed(sequence), expected)


@given(
    consumer=U64,
    message_id=message_ids(),
    ack_set=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    redelivered=st.none() | st.integers(0, 9),
    epoch=st.none() | U64,
    packed=st.booleans(),
)
def test_a_delivery_is_read_as_protobuf_reads_it(consumer, message_id, ack_set, redelivered, epoch, packed) -> None:
    message = pb.CommandMessage(
        consumer_id=consumer, message_id=message_id, redelivery_count=redelivered, consumer_epoch=epoch
    )
    if packed:
        words = b"".join(wire.varint(word % 2**64) for word in ack_set)
        body = message.SerializeToString() + b"\x22" + wire.varint(len(words)) + words
    else:
        message.ack_set.extend(ack_set)
        body = message.SerializeToString()
    command = b"\x08\x09\x4a" + wire.varint(len(body)) + body
    frame = memoryview(struct.pack(">I", len(command)) + command + b"entry")
    kind, end = wire.command_type(frame)
    assert (kind, end) == (wire.MESSAGE, 4 + len(command))
    delivery = wire.read_delivery(frame, end)
    assert delivery.consumer_id == consumer
    assert delivery.position == Position(wire.signed(message_id.ledgerId), wire.signed(message_id.entryId))
    assert delivery.ack_set == tuple(ack_set)


def test_fields_of_later_versions_are_skipped() -> None:
    extra = b"\xf8\x01\x05" + b"\xfa\x01\x03abc" + b"\xf9\x01" + bytes(8) + b"\xfd\x01" + bytes(4)
    body = extra + pb.CommandSendReceipt(producer_id=3, sequence_id=4).SerializeToString() + extra
    command = b"\x08\x07\x3a" + wire.varint(len(body)) + body
    frame = memoryview(struct.pack(">I", len(command)) + command)
    assert wire.read_receipt(frame, len(frame)) == (3, 4, Position(-1, -1))


@given(
    messages=st.none() | st.integers(1, 2**31 - 1),
    properties=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
    key=st.none() | st.text(max_size=200),
    uuid=st.none() | st.text(max_size=20),
)
def test_messages_are_counted_as_protobuf_counts_them(messages, properties, key, uuid) -> None:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=2**63,
        publish_time=1,
        num_messages_in_batch=messages,
        properties=[pb.KeyValue(key=k, value=v) for k, v in properties.items()],
        partition_key=key,
        uuid=uuid,
        ordering_key=b"\x58\x05",
    )
    assert wire.count_messages(metadata.SerializeToString()) == metadata.num_messages_in_batch


def meta(**fields) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)


def read(data: bytes):
    delivery = wire.Delivery(1, Position(5, 6), (7,))
    return wire.read_entry(memoryview(b"head" + data), 4, delivery)


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
    assert entry.ack_set == (7,)
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
        kind, end = wire.command_type(memoryview(data))
    except PulsarError as error:
        assert error.code == "FrameError"  # noqa: PT017
    else:
        assert 0 <= kind < 256
        assert end <= len(data)


def test_ping_and_pong_are_protobufs_own() -> None:
    assert encode(Command(type=Command.PING, ping=pb.CommandPing())) == wire.PING_FRAME
    assert encode(Command(type=Command.PONG, pong=pb.CommandPong())) == wire.PONG_FRAME
