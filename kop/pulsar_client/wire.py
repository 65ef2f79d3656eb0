"""Pulsar's frames.

Owns: the layout of a frame, the frames that are sent, and commands. `_pure.py` takes apart what is received.
Must not know: sockets, and what a command is answered with.

A frame: size (4 bytes, of all behind it), size of the command (4), the command (a protobuf BaseCommand). Where an entry
follows: 0x0e02, size (4), BrokerEntryMetadata, if the broker sends that; 0x0e01, CRC32C (4) of all behind it, if the
producer made one; size (4), MessageMetadata; the payload up to the frame's end.

Commands of the hot path are protobuf too: its C code reads and writes them in 1 to 2 us, Python in 2 to 3.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from kop.pulsar_client._pure import CHECKSUM_MAGIC
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Buffer, Position, TxnId

FRAME_PADDING = 10 * 1024
"""The bytes by which a frame may be larger than the largest message."""
DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024

_U32 = Struct(">I")
_TWO_U32 = Struct(">II")
_TAIL = Struct(">HII")  # magic, checksum, size of the metadata
_SEND = pb.BaseCommand.SEND
_FIELDS = pb.BaseCommand.DESCRIPTOR.fields_by_number
"""The fields of a BaseCommand. Each but its type holds one kind of command, and its number is the type of these."""
_FIELD_OF = {field.message_type.name: field for field in _FIELDS.values() if field.message_type is not None}


def command_frame(content: Message) -> bytes:
    """Return a frame that holds a command and no entry; `content` is the command's own message, such as CommandPing."""
    field = _FIELD_OF[content.DESCRIPTOR.name]
    command: dict[str, Any] = {"type": field.number, field.name: content}
    body = pb.BaseCommand(**command).SerializeToString()
    return _TWO_U32.pack(len(body) + 4, len(body)) + body


PONG_FRAME = command_frame(pb.CommandPong())
PING_FRAME = command_frame(pb.CommandPing())


def send_head(
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int | None,
    num_messages: int,
    metadata: Buffer,
    payload: Buffer,
    txn: TxnId | None = None,
) -> bytes:
    """Return the part of a SEND frame before the metadata, with the checksum of what follows. The whole frame is this,
    `metadata`, `payload`.

    With `txn` the entry is sent in that transaction; `metadata` has to name it, too.
    """
    command = pb.BaseCommand(type=_SEND)
    send = command.send
    send.producer_id = producer_id
    send.sequence_id = sequence_id
    send.num_messages = num_messages
    if highest_sequence_id is not None:
        send.highest_sequence_id = highest_sequence_id
    if txn is not None:
        send.txnid_most_bits, send.txnid_least_bits = txn
    body = command.SerializeToString()
    meta_size = len(metadata)
    checksum = crc32c(payload, crc32c(metadata, crc32c(_U32.pack(meta_size))))
    total = 14 + len(body) + meta_size + len(payload)
    return _TWO_U32.pack(total, len(body)) + body + _TAIL.pack(CHECKSUM_MAGIC, checksum, meta_size)


def readdressed(frame: bytes, producer_id: int) -> bytes:
    """Return a SEND frame with another producer's number on the connection; the entry in it is the same."""
    end = 8 + _U32.unpack_from(frame, 4)[0]
    command = pb.BaseCommand.FromString(frame[8:end])
    command.send.producer_id = producer_id
    body = command.SerializeToString()
    return b"".join((_TWO_U32.pack(len(frame) - end + len(body) + 4, len(body)), body, memoryview(frame)[end:]))


def read_command(data: bytes) -> pb.BaseCommand:
    """Parse a serialized command. PulsarError FrameError if it is malformed."""
    try:
        return pb.BaseCommand.FromString(data)
    except DecodeError as error:
        raise PulsarError("FrameError", f"a command that cannot be read: {error}") from error


def content_of(command: pb.BaseCommand) -> Any:
    """Return a command's own message, such as CommandSuccess."""
    return getattr(command, _FIELDS[command.type].name)


def read_position(data: pb.MessageIdData) -> Position:
    """Return the position of the entry that a message id names."""
    return Position(data.ledgerId, data.entryId)
