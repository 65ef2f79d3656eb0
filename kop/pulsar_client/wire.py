"""Pulsar's frames, byte by byte.

Owns: the layout of a frame, and the commands of the hot path (SEND out; SEND_RECEIPT and MESSAGE in) written and read
by hand: a protobuf object for each would cost more than all else that is done for an entry.
Must not know: sockets, and what a command is answered with.

A frame: size (4 bytes, of all behind it), size of the command (4), the command (a protobuf BaseCommand). Where an entry
follows: 0x0e02, size (4), BrokerEntryMetadata, if the broker sends that; 0x0e01, CRC32C (4) of all behind it, if the
producer made one; size (4), MessageMetadata; the payload up to the frame's end.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from crc32c import crc32c

from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.types import Buffer, Entry, Position

CONNECTED = 3
SEND_RECEIPT = 7
SEND_ERROR = 8
MESSAGE = 9
PING = 18
PONG = 19

FRAME_PADDING = 10 * 1024
"""What a frame may be larger than the largest message."""
DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024

_U32 = Struct(">I")
_TWO_U32 = Struct(">II")
_TAIL = Struct(">HII")  # magic, checksum, size of the metadata
_CHECKSUM_MAGIC = 0x0E01
_BROKER_MAGIC = 0x0E02
_MAX64 = 2**64 - 1


def varint(value: int) -> bytes:
    """`value` (not negative) as a protobuf varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """The varint at `at` and the place behind it. IndexError beyond the end of `data`."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        if byte < 0x80:
            return value | byte << shift, at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise FieldError("varint of more than ten bytes")


class FieldError(ValueError):
    """Bytes that are no protobuf message."""


def skip(data: Buffer, at: int, wire_type: int) -> int:
    """The place behind a field's value that begins at `at`."""
    if wire_type == 0:
        return read_varint(data, at)[1]
    if wire_type == 2:
        size, at = read_varint(data, at)
        return at + size
    if wire_type == 1:
        return at + 8
    if wire_type == 5:
        return at + 4
    raise FieldError(f"wire type {wire_type}")


def command_frame(command: bytes) -> bytes:
    """A frame of a command alone."""
    return _TWO_U32.pack(len(command) + 4, len(command)) + command


PONG_FRAME = command_frame(b"\x08\x13\x9a\x01\x00")
PING_FRAME = command_frame(b"\x08\x12\x92\x01\x00")


def send_head(
    producer_id: bytes,
    sequence_id: int,
    highest_sequence_id: int | None,
    num_messages: int,
    metadata: Buffer,
    payload: Buffer,
) -> bytes:
    """All of a SEND frame that stands before the metadata; `producer_id` is a varint already.

    The frame is this, `metadata`, `payload`.
    """
    body = b"\x08" + producer_id + b"\x10" + varint(sequence_id)
    if num_messages != 1:
        body += b"\x18" + varint(num_messages)
    if highest_sequence_id is not None:
        body += b"\x30" + varint(highest_sequence_id)
    command = b"\x08\x06\x32" + varint(len(body)) + body
    meta_size = len(metadata)
    packed = _U32.pack(meta_size)
    checksum = crc32c(payload, crc32c(metadata, crc32c(packed)))
    total = 4 + len(command) + 10 + meta_size + len(payload)
    return _TWO_U32.pack(total, len(command)) + command + _TAIL.pack(_CHECKSUM_MAGIC, checksum, meta_size)


def command_type(frame: Buffer) -> tuple[int, int]:
    """The type of a frame's command (0 if that cannot be told from its first bytes) and the command's end.

    `frame` begins behind the frame's own size. PulsarError FrameError where the sizes do not fit.
    """
    size = len(frame)
    if size < 6:
        raise PulsarError("FrameError", "a frame without a command")
    end = _U32.unpack_from(frame)[0] + 4
    if end > size:
        raise PulsarError("FrameError", "a command longer than its frame")
    return (frame[5] if frame[4] == 8 else 0), end


def signed(value: int) -> int:
    """A uint64 as the signed number that brokers mean by it (2^64-1 is -1)."""
    return value - _MAX64 - 1 if value > _MAX64 >> 1 else value


def read_position(data: Buffer, at: int, end: int) -> Position:
    """The ledger and entry of a MessageIdData between `at` and `end`."""
    ledger = entry = 0
    while at < end:
        tag, at = read_varint(data, at)
        if tag == 8:
            ledger, at = read_varint(data, at)
        elif tag == 16:
            entry, at = read_varint(data, at)
        else:
            at = skip(data, at, tag & 7)
    return Position(signed(ledger), signed(entry))


def _inside(frame: Buffer, end: int) -> tuple[int, int]:
    """Where the one sub-message of the command begins and ends; both tags of the hot commands are one byte."""
    size, at = read_varint(frame, 7)
    if at + size > end:
        raise FieldError("a field longer than its message")
    return at, at + size


def read_receipt(frame: Buffer, end: int) -> tuple[int, int, Position]:
    """Producer id, sequence id and position of a SEND_RECEIPT (DUPLICATE where the broker gives none)."""
    at, end = _inside(frame, end)
    producer = sequence = 0
    position = Position(-1, -1)
    while at < end:
        tag, at = read_varint(frame, at)
        if tag == 8:
            producer, at = read_varint(frame, at)
        elif tag == 16:
            sequence, at = read_varint(frame, at)
        elif tag == 26:
            size, at = read_varint(frame, at)
            position = read_position(frame, at, at + size)
            at += size
        else:
            at = skip(frame, at, tag & 7)
    return producer, signed(sequence), position


class Delivery(NamedTuple):
    """The command of a MESSAGE."""

    consumer_id: int
    position: Position
    ack_set: tuple[int, ...]


def read_delivery(frame: Buffer, end: int) -> Delivery:
    """The command of a MESSAGE frame."""
    at, end = _inside(frame, end)
    consumer = 0
    position = Position(-1, -1)
    ack_set: tuple[int, ...] = ()
    while at < end:
        tag, at = read_varint(frame, at)
        if tag == 8:
            consumer, at = read_varint(frame, at)
        elif tag == 18:
            size, at = read_varint(frame, at)
            position = read_position(frame, at, at + size)
            at += size
        elif tag == 32:
            word, at = read_varint(frame, at)
            ack_set = (*ack_set, signed(word))
        elif tag == 34:  # the same, packed
            size, at = read_varint(frame, at)
            stop = at + size
            while at < stop:
                word, at = read_varint(frame, at)
                ack_set = (*ack_set, signed(word))
        else:
            at = skip(frame, at, tag & 7)
    return Delivery(consumer, position, ack_set)


def count_messages(metadata: Buffer) -> int:
    """`num_messages_in_batch` of a serialized MessageMetadata, 1 where it does not say. FieldError, IndexError."""
    at, end, count = 0, len(metadata), 1
    while at < end:
        tag, at = read_varint(metadata, at)
        if tag == 88:
            count, at = read_varint(metadata, at)
        else:
            at = skip(metadata, at, tag & 7)
    return max(1, count)


def _read_broker_metadata(frame: Buffer, at: int, end: int) -> tuple[int | None, int]:
    index: int | None = None
    timestamp = 0
    while at < end:
        tag, at = read_varint(frame, at)
        if tag == 8:
            timestamp, at = read_varint(frame, at)
        elif tag == 16:
            index, at = read_varint(frame, at)
        else:
            at = skip(frame, at, tag & 7)
    return index, timestamp


def read_entry(frame: memoryview, at: int, delivery: Delivery) -> Entry:
    """The entry that begins at `at`, behind the command. PulsarError ChecksumError where it is damaged."""
    index: int | None = None
    timestamp = 0
    try:
        magic = frame[at] << 8 | frame[at + 1]
        if magic == _BROKER_MAGIC:
            size = _U32.unpack_from(frame, at + 2)[0]
            index, timestamp = _read_broker_metadata(frame, at + 6, at + 6 + size)
            at += 6 + size
            magic = frame[at] << 8 | frame[at + 1]
        if magic == _CHECKSUM_MAGIC:
            if crc32c(frame[at + 6 :]) != _U32.unpack_from(frame, at + 2)[0]:
                raise PulsarError("ChecksumError", f"the bytes of entry {delivery.position} are damaged")
            at += 6
        start = at + 4
        end = start + _U32.unpack_from(frame, at)[0]
        if end > len(frame):
            raise FieldError("metadata longer than its frame")
        metadata = frame[start:end]
        count = count_messages(metadata)
    except (ValueError, IndexError, StructError) as error:
        raise PulsarError("ChecksumError", f"entry {delivery.position} cannot be read: {error}") from error
    return Entry(delivery.position, index, timestamp, count, metadata, frame[end:], delivery.ack_set)
