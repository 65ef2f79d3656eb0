"""The parser of what a broker sends: the specification, in plain Python. `kop._native` is its compiled twin.

Owns: the layout of frames; the commands MESSAGE and SEND_RECEIPT, and the entry behind a MESSAGE.
Must not know: sockets, who waits for what a frame says.

`kop.pulsar_client.wire` says how a frame is laid out. tests/pulsar_client/test_frame_twins.py compares the twins.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from crc32c import crc32c
from google.protobuf.message import DecodeError

from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Message, Receipt, Received

_U16 = Struct(">H")
_U32 = Struct(">I")
CHECKSUM_MAGIC = 0x0E01
BROKER_MAGIC = 0x0E02
_MESSAGE = pb.BaseCommand.MESSAGE
_SEND_RECEIPT = pb.BaseCommand.SEND_RECEIPT


def read_frames(data: memoryview, limit: int) -> tuple[list[Received], int, int, str]:
    """Read the whole frames at the start of `data`, and return their contents in order. `limit` is the size of the
    largest frame taken.

    A list holds receipts of one producer: those of its receipts that follow one another without another command
    between, messages aside. A tuple is a message, its entry's checksum verified; metadata and payload are views of
    `data`. Bytes are any other command.

    Also returned: the number of bytes that they took; the size of the next frame, which is not whole or larger than
    `limit` (-1 if its size is not known yet); and the fault of the frame at which reading stopped, an empty text if
    there is none.
    """
    received: list[Received] = []
    receipts: dict[int, list[Receipt]] = {}
    at, end = 0, len(data)
    while end - at >= 4:
        size = _U32.unpack_from(data, at)[0]
        start = at + 4
        if size > limit or end - start < size:
            return received, at, size, ""
        if size < 4:
            return received, at, -1, "a frame without a command"
        behind = start + 4 + _U32.unpack_from(data, start)[0]
        at = start + size
        if behind > at:
            return received, start - 4, -1, "a command longer than its frame"
        body = bytes(data[start + 4 : behind])
        try:
            command = pb.FrequentCommand.FromString(body)
        except DecodeError:
            return received, start - 4, -1, "a command that cannot be read"
        if command.type == _MESSAGE:
            received.append(_message(command.message, data[behind:at]))
        elif command.type == _SEND_RECEIPT:
            receipt = _receipt(command.send_receipt)
            known = receipts.get(receipt[0])
            if known is None:
                known = receipts[receipt[0]] = []
                received.append(known)
            known.append(receipt)
        else:
            receipts.clear()
            received.append(body)
    return received, at, -1, ""


def _receipt(receipt: pb.ReceiptFields) -> Receipt:
    message_id = receipt.message_id
    return (
        receipt.producer_id,
        receipt.sequence_id,
        receipt.highest_sequence_id,
        message_id.ledgerId,
        message_id.entryId,
    )


def _message(command: pb.MessageFields, entry: memoryview) -> Message:
    """Return the message in a MESSAGE command; `entry` is what stands behind the command in the frame. An entry that
    cannot be read, or whose checksum does not fit, is returned with the reason as its last part, without bytes.
    """
    identity = (command.consumer_id, command.message_id.ledgerId, command.message_id.entryId)
    index: int | None = None
    timestamp = at = 0
    nothing = entry[:0]
    try:
        magic = _U16.unpack_from(entry)[0]
        if magic == BROKER_MAGIC:
            at = 6 + _U32.unpack_from(entry, 2)[0]
            if at > len(entry):
                raise DecodeError
            by_broker = pb.BrokerEntryMetadata.FromString(bytes(entry[6:at]))
            timestamp = by_broker.broker_timestamp
            if by_broker.HasField("index"):
                index = by_broker.index
    except (StructError, DecodeError):
        return *identity, None, 0, 0, nothing, nothing, "what the broker says of it cannot be read"
    try:
        if at:
            magic = _U16.unpack_from(entry, at)[0]
        if magic == CHECKSUM_MAGIC:
            if crc32c(entry[at + 6 :]) != _U32.unpack_from(entry, at + 2)[0]:
                return *identity, index, timestamp, 1, nothing, nothing, "its checksum does not fit"
            at += 6
        start = at + 4
        end = start + _U32.unpack_from(entry, at)[0]
        if end > len(entry):
            return *identity, index, timestamp, 1, nothing, nothing, "its metadata is longer than its frame"
        messages = pb.EntryMessages.FromString(bytes(entry[start:end])).num_messages_in_batch
    except (StructError, DecodeError):
        return *identity, index, timestamp, 1, nothing, nothing, "its metadata cannot be read"
    return *identity, index, timestamp, max(1, messages), entry[start:end], entry[end:], ""
