"""Pulsar's frames.

Owns: the layout of a frame, and entries taken out of one.
Must not know: sockets, and what a command is answered with.

A frame: size (4 bytes, of all behind it), size of the command (4), the command (a protobuf BaseCommand). Where an entry
follows: 0x0e02, size (4), BrokerEntryMetadata, if the broker sends that; 0x0e01, CRC32C (4) of all behind it, if the
producer made one; size (4), MessageMetadata; the payload up to the frame's end.

Commands of the hot path are protobuf too: its C code reads and writes them in 1 to 2 us, Python in 2 to 3.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from crc32c import crc32c
from google.protobuf.message import DecodeError

from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Buffer, Entry, Position

FRAME_PADDING = 10 * 1024
"""What a frame may be larger than the largest message."""
DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024

_U16 = Struct(">H")
_U32 = Struct(">I")
_TWO_U32 = Struct(">II")
_TAIL = Struct(">HII")  # magic, checksum, size of the metadata
_CHECKSUM_MAGIC = 0x0E01
_BROKER_MAGIC = 0x0E02
_SEND = pb.BaseCommand.SEND


def command_frame(command: pb.BaseCommand) -> bytes:
    """A frame of a command alone."""
    body = command.SerializeToString()
    return _TWO_U32.pack(len(body) + 4, len(body)) + body


PONG_FRAME = command_frame(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
PING_FRAME = command_frame(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))


def send_head(
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int | None,
    num_messages: int,
    metadata: Buffer,
    payload: Buffer,
) -> bytes:
    """All of a SEND frame that stands before the metadata. The frame is this, `metadata`, `payload`."""
    command = pb.BaseCommand(type=_SEND)
    send = command.send
    send.producer_id = producer_id
    send.sequence_id = sequence_id
    send.num_messages = num_messages
    if highest_sequence_id is not None:
        send.highest_sequence_id = highest_sequence_id
    body = command.SerializeToString()
    meta_size = len(metadata)
    checksum = crc32c(payload, crc32c(metadata, crc32c(_U32.pack(meta_size))))
    total = 14 + len(body) + meta_size + len(payload)
    return _TWO_U32.pack(total, len(body)) + body + _TAIL.pack(_CHECKSUM_MAGIC, checksum, meta_size)


def read_command(frame: memoryview) -> tuple[pb.BaseCommand, int]:
    """The command of a frame, which begins behind the frame's own size, and where it ends. PulsarError FrameError."""
    try:
        end = _U32.unpack_from(frame)[0] + 4
        if end > len(frame):
            raise PulsarError("FrameError", "a command longer than its frame")
        return pb.BaseCommand.FromString(bytes(frame[4:end])), end
    except (StructError, DecodeError) as error:
        raise PulsarError("FrameError", f"a frame without a command that can be read: {error}") from error


def read_position(data: pb.MessageIdData) -> Position:
    """The entry that a message id names."""
    return Position(data.ledgerId, data.entryId)


def read_damaged_entry(frame: memoryview, at: int, message: pb.CommandMessage, why: str) -> Entry:
    """What can be told of an entry that `read_entry` cannot read: its position, and its index where that is readable.

    PulsarError ChecksumError where not even that much can be told.
    """
    index: int | None = None
    timestamp = 0
    try:
        if _U16.unpack_from(frame, at)[0] == _BROKER_MAGIC:
            start = at + 6
            end = start + _U32.unpack_from(frame, at + 2)[0]
            told = pb.BrokerEntryMetadata.FromString(bytes(frame[start:end]))
            timestamp = told.broker_timestamp
            index = told.index if told.HasField("index") else None
    except (StructError, DecodeError) as error:
        raise PulsarError("ChecksumError", why) from error
    nothing = memoryview(b"")
    return Entry(read_position(message.message_id), index, timestamp, 1, nothing, nothing, damaged=why)


def read_entry(frame: memoryview, at: int, message: pb.CommandMessage) -> Entry:
    """The entry that begins at `at`, behind the command: views of `frame`. PulsarError ChecksumError where damaged."""
    position = read_position(message.message_id)
    index: int | None = None
    timestamp = 0
    try:
        magic = _U16.unpack_from(frame, at)[0]
        if magic == _BROKER_MAGIC:
            start = at + 6
            at = start + _U32.unpack_from(frame, at + 2)[0]
            told = pb.BrokerEntryMetadata.FromString(bytes(frame[start:at]))
            timestamp = told.broker_timestamp
            if told.HasField("index"):
                index = told.index
            magic = _U16.unpack_from(frame, at)[0]
        if magic == _CHECKSUM_MAGIC:
            if crc32c(frame[at + 6 :]) != _U32.unpack_from(frame, at + 2)[0]:
                raise PulsarError("ChecksumError", f"the bytes of entry {position} are damaged")
            at += 6
        start = at + 4
        end = start + _U32.unpack_from(frame, at)[0]
        if end > len(frame):
            raise PulsarError("ChecksumError", f"entry {position} cannot be read: metadata longer than the frame")
        metadata = frame[start:end]
        messages = pb.EntryMessages.FromString(bytes(metadata)).num_messages_in_batch
    except (StructError, DecodeError) as error:
        raise PulsarError("ChecksumError", f"entry {position} cannot be read: {error}") from error
    ack_set = tuple(message.ack_set)
    return Entry(position, index, timestamp, max(1, messages), metadata, frame[end:], ack_set)
