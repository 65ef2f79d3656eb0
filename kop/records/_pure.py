"""Kafka records <-> Pulsar messages: the specification, in plain Python. `kop._native` is its compiled twin.

Owns: the walk over a produced batch's records; which field of a Pulsar message holds which part of a Kafka record; the
SEND frame around the messages of an entry; the little of protobuf that this takes; the header of the batch that is made
of an entry.
Must not know: compression (`kop.records.transcode`), sockets, where the offsets of partitions come from.

One Kafka batch is one Pulsar entry in batch format, also with one record: MessageMetadata with
`num_messages_in_batch`, and per record a 4-byte size, SingleMessageMetadata (SMM below), the value. A record's offset
is its place. What goes where:

Kafka           Pulsar
key             `partition_key`: the text where the bytes are UTF-8, else base64 with `partition_key_b64_encoded`.
                A null key is no `partition_key`, an empty one is the empty text. Back: `partition_key`, else
                `ordering_key`, else null; null also with `null_partition_key`. We never write `ordering_key`.
value           the payload; null is `null_value` with no payload.
                On a compacted topic an empty value is the payload 0x00 with the property `__kop_empty`, `1`: Pulsar's
                compaction takes every message without a payload for the deletion of its key. Back: of a message in
                batch format with that property and that payload, the empty value.
timestamp       `event_time`. Pulsar knows only times above 0: others have no `event_time` and their number in the
                property `__kop_timestamp`. Back: `event_time` of the message, else that property, else
                `event_time` of the entry (as native clients do), else `publish_time`. An `event_time` of 2^63 or
                more is a negative number that a client wrote without a sign.
headers         properties, in order, where each header can be one: a name that no other header has, that is UTF-8
                and does not start with `__kop_`, and a value that is UTF-8 and not null.
                Else the property `__kop_headers` comes first: base64 of all headers as they stand in the Kafka
                record (count, then length and bytes of names and values, -1 for null). Behind it, so that native
                clients see them, the headers that can be properties; of several with one name only the last one
                counts (`Headers.lastHeader`), and is left out where it is binary or null. Of more than 1,000 headers
                none is a property, for a peer can put half a million into a megabyte.
                Back: no `__kop_headers`, then the properties in order. With it, that list; but where a native
                client changed, removed or added properties on the way, what it did wins: a listed header stays only
                if the property of its name is what the list makes of it, and properties that the list does not
                explain follow (of more than 1,000 listed headers all stay). A `__kop_headers` or `__kop_timestamp`
                that cannot be read is a property like others.
producer id, epoch, sequence: in `producer_name` and `sequence_id`, given by the caller; consumers get none back, which
                only matters to them for transactions, and those are Pulsar's own.

The entry has no `partition_key`: its records have many. So a Key_Shared subscription gets all of a topic's Kafka
records in one consumer, in order. SMM has no `sequence_id`: it would make sizes depend on more than the batch.

Splitting (deduplication rests on it, never change it): records are taken in order into a piece while the sum of
4 + SMM + value stays within the room, at least one; compression is not looked at. So pieces are a function of the
batch's bytes and the room alone. What the SMM of a record is, byte for byte, is part of that: fields in the order of
their numbers, false and absent ones left out. `tests/records/transcode_vectors.json` holds examples.

From native producers all else of Pulsar is read too: single messages (no `num_messages_in_batch`), `compacted_out`
stubs (left out, the others keep their places), unknown fields. As native clients do, bytes behind the last message are
ignored, and of a field that comes twice the last one counts. Sizes that cannot be and messages of more than 100,000
properties are UndecodableEntryError.
"""

from __future__ import annotations

import dataclasses
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from crc32c import crc32c

from kop.errors import BackendError, ErrorCode, PeerError
from kop.records.batch import CRC, CRC_AT, CRC_FROM, HEADER, HEADER_SIZE, LOG_APPEND_TIME_BIT, LOG_OVERHEAD, MAGIC
from kop.records.record import Buffer, before_value, content_of, frames, headers_of, key_and_value, put_record

RESERVED: Final = b"__kop_"
"""The prefix of the names of kop's own properties."""
HEADERS_PROPERTY: Final = b"__kop_headers"
TIMESTAMP_PROPERTY: Final = b"__kop_timestamp"
EMPTY_PROPERTY: Final = (b"__kop_empty", b"1")
"""The property (name and value) which says that a message's payload stands for an empty value."""
EMPTY_PAYLOAD: Final = b"\0"
RAW_PROPERTY: Final = b"entry.format"
"""The property of an entry that KoP, another gateway, gives to a payload of Kafka batches (its KafkaPayloadProcessor
looks for it).
"""
RAW_VALUE: Final = b"kafka"

MAX_SHOWN: Final = 1_000
"""The number of headers of a record above which none becomes a property. It is part of how batches are split: never
change it.
"""
MAX_PROPERTIES: Final = 100_000
MOST_REJECTED: Final = 1_000
"""The number of records without a key that an error names at most: a peer can put nine million into 64 MiB."""

Headers = Sequence[tuple[bytes, bytes | None]]
Txn = tuple[int, int, bool]
"""The type of an entry's Pulsar transaction: its most and its least bits, and true if the entry is sent in it."""

_SEND: Final = 6
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_SCHEMA_VERSION: Final = b"\x82\x01"
"""The bytes before the schema version in an entry's metadata: field 16, of bytes."""
_INT63: Final = 1 << 63
_INT64: Final = 1 << 64


class UndecodableEntryError(BackendError):
    """An error for a stored entry that cannot be given to Kafka clients. Its code CORRUPT_MESSAGE makes consumers stop
    and say so.
    """

    default_code = ErrorCode.CORRUPT_MESSAGE

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The reason as a label of metrics: "encrypted", "chunk", "compression", "too_large", "transactional" or
        "damaged".
        """


class EntryView(NamedTuple):
    """The fields of an entry's MessageMetadata; times in ms since the epoch."""

    producer_name: str
    sequence_id: int
    highest_sequence_id: int
    """The sequence id of the entry's last message; 0 if the producer did not give it."""
    publish_time: int
    event_time: int
    """The event time of the entry; 0 for none."""
    num_messages: int
    """The number of messages, which is the number of offsets that the entry takes: 1 or more."""
    batched: bool
    """True if the payload is a batch of sizes, SMMs and values; else it is one value."""
    compression: int
    """The number of the payload's compression in Pulsar: 0 none, 1 LZ4, 2 ZLIB, 3 ZSTD, 4 SNAPPY."""
    uncompressed_size: int
    raw: bool
    """True if the payload is Kafka batches (KoP's `kafka` entry format)."""
    encrypted: bool
    marker_type: int
    """The kind of marker that the broker wrote for itself, such as a transaction's end; -1 for a message."""
    chunk_id: int
    """The number of this chunk of a chunked message, from 0; -1 for a whole message."""
    num_chunks: int
    total_chunk_size: int
    """The bytes of all chunks' payloads together."""
    uuid: str
    """The id that all chunks of one message share."""
    txn_most: int
    """The upper half of the transaction's id; -1 for none, as in the lower half."""
    txn_least: int

    @property
    def usual(self) -> bool:
        """True if the payload is whole messages in batch format: not compressed, encrypted or chunked, no Kafka
        batches, no marker.
        """
        return self.batched and not (
            self.raw or self.encrypted or self.compression or self.marker_type >= 0 or self.num_chunks > 1
        )


def _damaged(text: str) -> UndecodableEntryError:
    return UndecodableEntryError("damaged", text)


# Kafka's records


def walk(
    body: Buffer, start: int, count: int, base_timestamp: int, reject_null_keys: bool
) -> tuple[int, int, list[int]]:
    """Check that `count` records fill `body` from `start` on, each whole, with the offset deltas 0, 1, 2, ...

    Returns the smallest timestamp that is a time and the largest (-1 if no record has one), and with `reject_null_keys`
    the numbers of the first 1,000 records without a key. INVALID_RECORD if a record is malformed.
    """
    records = bytes(memoryview(body)[start:])
    earliest = latest = -1
    without_key: list[int] = []
    # offsets ascend and end within the batch, and there are as many as it has places: so they are 0, 1, 2, ...
    for index, timestamp, content, end in frames(records, count, 0, count - 1, base_timestamp, None):
        key, _, pos = key_and_value(records, content, end)
        if records[pos] or pos + 1 != end:  # anything but no headers
            deque(headers_of(records, pos, end), maxlen=0)
        if timestamp >= 0:
            latest = max(latest, timestamp)
            earliest = timestamp if earliest < 0 else min(earliest, timestamp)
        if reject_null_keys and key is None and len(without_key) < MOST_REJECTED:
            without_key.append(index)
    return earliest, latest, without_key


# Kafka -> Pulsar


def pack(
    body: Buffer, count: int, base_timestamp: int, append_time: int | None, room: int, compacted: bool
) -> tuple[list[tuple[bytes, int]], list[int], int, int]:
    """Convert the `count` Kafka records that fill `body` into payloads of Pulsar entries; return each with the number
    of its messages.

    `append_time`, if it is not None, takes the place of every timestamp. Each payload has at most `room` bytes, or one
    message. For a `compacted` topic empty values are written so that Pulsar's compaction keeps them, and the second
    list that is returned names the first 1,000 records that have no key. Then come the smallest and the largest
    timestamp, as `walk` tells them. INVALID_RECORD if a record is malformed, or offset deltas are not 0, 1, 2, ...
    """
    body = bytes(body)
    pieces: list[tuple[bytes, int]] = []
    without_key: list[int] = []
    earliest = latest = -1
    out = bytearray()
    in_piece = 0
    # offsets ascend and end within the batch, and there are as many as it has places: so they are 0, 1, 2, ...
    for index, timestamp, start, end in frames(body, count, 0, count - 1, base_timestamp, append_time):
        key, value, pos = key_and_value(body, start, end)
        if timestamp >= 0:
            latest = max(latest, timestamp)
            earliest = timestamp if earliest < 0 else min(earliest, timestamp)
        headers = () if body[pos] == 0 and pos + 1 == end else _few(headers_of(body, pos, end))
        if key is None and compacted and len(without_key) < MOST_REJECTED:
            without_key.append(index)
        empty = compacted and value == b""
        payload = EMPTY_PAYLOAD if empty else value
        single = _single(key, payload, timestamp, headers, body[pos:end], empty=empty)
        size = 4 + len(single) + len(payload or b"")
        if in_piece and len(out) + size > room:
            pieces.append((bytes(out), in_piece))
            out, in_piece = bytearray(), 0
        out += len(single).to_bytes(4, "big")
        out += single
        out += payload or b""
        in_piece += 1
    if in_piece:
        pieces.append((bytes(out), in_piece))
    return pieces, without_key, earliest, latest


def send_frames(
    body: Buffer,
    start: int,
    count: int,
    base_timestamp: int,
    append_time: int | None,
    room: int,
    compacted: bool,
    producer_id: int,
    producer_name: bytes,
    sequence_base: int,
    publish_time: int,
    txn: Txn | None,
) -> tuple[list[tuple[bytes, int, int]], list[int], int, int]:
    """Convert Kafka records, from `start` on, as `pack` does, and put each payload into a SEND frame, without
    compression.

    Returns the frames, each with the number of its messages and the size of its payload, and the rest as `pack`.
    """
    records = bytes(memoryview(body)[start:])
    pieces, without_key, earliest, latest = pack(records, count, base_timestamp, append_time, room, compacted)
    frames: list[tuple[bytes, int, int]] = []
    sequence_id = sequence_base
    for payload, messages in pieces:
        frame = send_frame(payload, messages, 0, 0, False, producer_id, producer_name, sequence_id, publish_time, txn)
        frames.append((frame, messages, len(payload)))
        sequence_id += messages
    return frames, without_key, earliest, latest


def send_frame(
    payload: Buffer,
    count: int,
    compression: int,
    uncompressed_size: int,
    raw: bool,
    producer_id: int,
    producer_name: bytes,
    sequence_id: int,
    publish_time: int,
    txn: Txn | None,
) -> bytes:
    """Return the bytes of a SEND frame, by which a Pulsar producer sends an entry of `count` messages: command,
    checksum, the entry.

    `compression` is Pulsar's number (0: none, and no `uncompressed_size`). With `raw` the payload is Kafka batches.
    `txn` is the transaction that the entry belongs to; if the entry is sent in it, the command names it, too. The
    frame: its size without these four bytes, the command's size, a BaseCommand with a CommandSend, 0x0e01, CRC32C of
    all behind it, the metadata's size, the MessageMetadata, the payload.
    """
    highest = sequence_id + count - 1
    metadata = bytearray()
    put_bytes(metadata, 1, producer_name)
    put_number(metadata, 2, sequence_id)
    put_number(metadata, 3, publish_time)
    if raw:
        put_bytes(metadata, 4, property_of(RAW_PROPERTY, RAW_VALUE))
    if compression:
        put_number(metadata, 8, compression)
        put_number(metadata, 9, uncompressed_size)
    put_number(metadata, 11, count)
    if txn is not None:
        put_number(metadata, 22, txn[1])
        put_number(metadata, 23, txn[0])
    put_number(metadata, 24, highest)
    send = bytearray()
    put_number(send, 1, producer_id)
    put_number(send, 2, sequence_id)
    put_number(send, 3, count)
    if txn is not None and txn[2]:
        put_number(send, 4, txn[1])
        put_number(send, 5, txn[0])
    put_number(send, 6, highest)
    command = bytearray()
    put_number(command, 1, _SEND)
    put_bytes(command, _SEND, send)
    size = len(metadata).to_bytes(4, "big")
    checksum = crc32c(payload, crc32c(metadata, crc32c(size)))
    total = 14 + len(command) + len(metadata) + len(payload)
    head = (total.to_bytes(4, "big"), len(command).to_bytes(4, "big"), command)
    return b"".join((*head, _CHECKSUM_MAGIC, checksum.to_bytes(4, "big"), size, metadata, payload))


def _few(headers: Iterator[tuple[bytes, bytes | None]]) -> Headers | None:
    """Return the headers of a record; None if there are more than 1,000, which are checked and not kept."""
    shown = tuple(islice(headers, MAX_SHOWN + 1))
    if len(shown) <= MAX_SHOWN:
        return shown
    deque(headers, maxlen=0)
    return None


def _single(
    key: bytes | None, payload: bytes | None, timestamp: int, headers: Headers | None, section: bytes, *, empty: bool
) -> bytes:
    """Return the SingleMessageMetadata of a record. `headers` are its headers, None for too many; `section` is the same
    as the Kafka record encodes them. `empty` is true if the payload stands for an empty value.
    """
    out = bytearray()
    shown = {} if headers is None else _as_properties(headers)
    if headers is None or len(shown) != len(headers):
        _put_property(out, 1, HEADERS_PROPERTY, b2a_base64(section, newline=False))
    for name, text in shown.items():
        _put_property(out, 1, name, text)
    if timestamp <= 0:
        _put_property(out, 1, TIMESTAMP_PROPERTY, b"%d" % timestamp)
    if empty:
        _put_property(out, 1, *EMPTY_PROPERTY)
    binary_key = key is not None and not _is_text(key)
    if key is not None:
        put_bytes(out, 2, b2a_base64(key, newline=False) if binary_key else key)
    put_number(out, 3, len(payload or b""))
    if timestamp > 0:
        put_number(out, 5, timestamp)
    if binary_key:
        put_number(out, 6, 1)
    if payload is None:
        put_number(out, 9, 1)
    return bytes(out)


def _as_properties(headers: Headers) -> dict[bytes, bytes]:
    """Return the headers that become properties for native clients, in the order in which the last header of each name
    comes.
    """
    last: dict[bytes, bytes | None] = {}
    for name, value in headers:
        last.pop(name, None)
        last[name] = value
    return {
        name: value
        for name, value in last.items()
        if value is not None and not name.startswith(RESERVED) and _is_text(name) and _is_text(value)
    }


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# Pulsar -> Kafka


@dataclasses.dataclass(slots=True)
class _Message:
    """The fields of a Pulsar message that a Kafka record is made of, from its SingleMessageMetadata or
    MessageMetadata.
    """

    properties: list[tuple[bytes, bytes]] = dataclasses.field(default_factory=list)
    key: bytes | None = None
    ordering_key: bytes | None = None
    event_time: int = 0
    binary_key: bool = False
    null_key: bool = False
    null_value: bool = False
    compacted_out: bool = False
    payload_size: int = -1


def plain_batch(
    metadata: Buffer,
    payload: Buffer,
    batched: bool,
    count: int,
    publish_time: int,
    event_time: int,
    base_offset: int,
    log_append_time: int | None,
) -> tuple[bytes, int]:
    """Convert an entry whose payload is not compressed into a Kafka batch without compression; return also the number
    of messages without a `partition_key`.

    The batch is no bytes if all `count` messages are `compacted_out`. The arguments from `batched` to `event_time` are
    what `parse_entry` tells of the metadata; the first message has `base_offset`, and `log_append_time`, if it is not
    None, becomes the time of every record. UndecodableEntryError if the entry is damaged.
    """
    if not batched:
        before, behind, has_value, timestamp, keyless = unpack_one(metadata, len(payload))
        records = (before, payload, behind) if has_value else (before, behind)
        return around(records, 1, timestamp, timestamp, base_offset, count, 0, log_append_time), keyless
    unpacked, number, base_timestamp, max_timestamp, keyless = unpack(payload, count, publish_time, event_time)
    if not number:
        return b"", keyless
    return around((unpacked,), number, base_timestamp, max_timestamp, base_offset, count, 0, log_append_time), keyless


def usual_batches(
    messages: Sequence[object], at: int, next_offset: int, append_time: bool
) -> tuple[list[tuple[int, int, bytes]], int, int]:
    """Convert usual entries into Kafka batches: those of the messages from place `at` on, up to the first one that is
    not usual.

    The messages are those that a read of a socket brought: `kop.pulsar_client.types.Received`. Usual is a whole entry
    with an index, without compression, of messages in batch format of which at least one is left, whose offsets begin
    at `next_offset`, or where the usual one before it ends, behind which it lies at the same consumer. With
    `append_time` the Pulsar broker's time is the one of all records.

    Returns base offset, last offset and bytes of each batch, and the numbers of messages and bytes of the entries.
    """
    batches: list[tuple[int, int, bytes]] = []
    count = size = 0
    before: tuple[int, int, int] | None = None
    for place in range(at, len(messages)):
        message = messages[place]
        if not isinstance(message, tuple):
            break
        consumer_id, ledger, entry, index, timestamp, _, metadata, payload, damaged = message
        if damaged or index is None or index + 1 >> 63 or timestamp >> 63:
            break
        if before is not None and (consumer_id != before[0] or (ledger, entry) <= before[1:]):
            break
        try:
            view = parse_entry(metadata)
            base = index - view.num_messages + 1
            if base != next_offset or not view.usual:
                break
            time = (timestamp or view.publish_time) if append_time else None
            batch, _ = plain_batch(
                metadata, payload, True, view.num_messages, view.publish_time, view.event_time, base, time
            )
        except UndecodableEntryError:
            break
        if not batch:
            break
        batches.append((base, index, batch))
        before = consumer_id, ledger, entry
        next_offset = index + 1
        count += view.num_messages
        size += len(payload)
    return batches, count, size


def around(
    records: Sequence[Buffer],
    number: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int,
    places: int,
    codec: int,
    log_append_time: int | None,
) -> bytes:
    """Put a batch header around `number` records, so that the batch takes `places` offsets from `base_offset` on;
    return the batch.

    `records` is their bytes in parts, compressed with `codec`, each of which is copied once. `log_append_time` (ms), if
    it is not None, becomes the largest timestamp and thereby that of every record.
    """
    attributes = codec
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time
    size = HEADER_SIZE + sum(map(len, records))
    head = bytearray(
        HEADER.pack(
            base_offset, size - LOG_OVERHEAD, 0, MAGIC, 0, attributes, places - 1,
            base_timestamp, max_timestamp, -1, -1, -1, number,
        )
    )  # fmt: skip
    checksum = crc32c(head[CRC_FROM:])
    for part in records:
        checksum = crc32c(part, checksum)
    CRC.pack_into(head, CRC_AT, checksum)
    return b"".join((head, *records))


def unpack(payload: Buffer, count: int, publish_time: int, event_time: int) -> tuple[bytes, int, int, int, int]:
    """Convert the `count` messages at the start of `payload`, which is not compressed, into Kafka records.

    Returns the records' bytes, their number (`compacted_out` messages leave gaps), the base timestamp, the largest one,
    and the number of messages without a `partition_key`: compaction drops those. `publish_time` and `event_time` are
    the entry's. UndecodableEntryError if a message is damaged.
    """
    payload = bytes(payload)
    if not 0 < count <= len(payload) // 6:  # size, and an SMM with a payload_size
        raise _damaged(f"{len(payload)} bytes cannot hold {count} messages")
    contents: list[tuple[int, int, bytearray]] = []
    keyless = 0
    pos, size = 0, len(payload)
    for index in range(count):
        start = pos + 4
        pos = start + int.from_bytes(payload[pos:start], "big", signed=True)
        if not start <= pos <= size:
            raise _damaged(f"message {index} of {count} has no whole metadata")
        message = _read_single(payload[start:pos])
        start, pos = pos, pos + message.payload_size
        if not start <= pos <= size:
            raise _damaged(f"message {index} of {count} says {message.payload_size} bytes, {size - start} are left")
        if not message.compacted_out:
            timestamp, content = _record(message, payload[start:pos], publish_time, event_time)
            contents.append((index, timestamp, content))
            keyless += message.key is None
    return *_records(contents), keyless


def unpack_one(metadata: Buffer, size: int) -> tuple[bytes, bytes, bool, int, int]:
    """Convert an entry that is a single message of `size` bytes into a Kafka record; the message's bytes, which may be
    many, are not needed.

    Returns the record's bytes before its value and behind it, true if the message is the value (a tombstone has none),
    the timestamp, and the number of messages without a `partition_key`, 0 or 1. UndecodableEntryError if the metadata
    is damaged.
    """
    message = _Message()
    publish_time = 0
    for number, field in _fields(bytes(metadata)):
        match number, field:
            case 3, int():
                publish_time = field
            case 4, bytes():
                message.properties.append(_property(field))
            case 6, bytes():
                message.key = field
            case 12, int():
                message.event_time = field
            case 17, int():
                message.binary_key = field != 0
            case 18, bytes():
                message.ordering_key = field
            case 25, int():
                message.null_value = field != 0
            case 30, int():
                message.null_key = field != 0
    timestamp, key, section = _outside_value(message, publish_time, 0)
    before = before_value(key, None if message.null_value else size, len(section))
    return before, section, not message.null_value, timestamp, int(message.key is None)


def _read_single(data: bytes) -> _Message:
    message = _Message()
    for number, field in _fields(data):
        match number, field:
            case 1, bytes():
                message.properties.append(_property(field))
            case 2, bytes():
                message.key = field
            case 3, int():
                message.payload_size = _int32(field)
            case 4, int():
                message.compacted_out = field != 0
            case 5, int():
                message.event_time = field
            case 6, int():
                message.binary_key = field != 0
            case 7, bytes():
                message.ordering_key = field
            case 9, int():
                message.null_value = field != 0
            case 10, int():
                message.null_key = field != 0
    return message


def _record(message: _Message, payload: bytes, publish_time: int, entry_event_time: int) -> tuple[int, bytearray]:
    """Return the timestamp (ms) and the content (key, value, headers) of the Kafka record for a message; `publish_time`
    and `entry_event_time` are those of its entry. UndecodableEntryError if its key or properties are damaged.
    """
    timestamp, key, section = _outside_value(message, publish_time, entry_event_time)
    if payload == EMPTY_PAYLOAD and EMPTY_PROPERTY in message.properties:
        payload = b""
    content = content_of(key, None if message.null_value else payload, ())
    content.pop()  # a count of no headers
    return timestamp, content + section


def _outside_value(message: _Message, publish_time: int, entry_event_time: int) -> tuple[int, bytes | None, bytes]:
    """Return the timestamp (ms), the key and the encoded headers of the Kafka record for a message; `publish_time` and
    `entry_event_time` are those of its entry. UndecodableEntryError if its key or properties are damaged.
    """
    if len(message.properties) > MAX_PROPERTIES:
        raise _damaged(f"a message of {len(message.properties)} properties")
    section, marker = _headers(message.properties)
    if message.event_time:
        timestamp = _int64(message.event_time)
    elif marker is not None:
        timestamp = marker
    else:
        timestamp = _int64(entry_event_time or publish_time)
    key = message.key
    if message.null_key:
        key = None
    elif key is None:
        key = message.ordering_key
    elif message.binary_key:
        key = _from_base64(key)
        if key is None:
            raise _damaged("a key that is marked as base64 is none")
    return timestamp, key, section


def _headers(properties: list[tuple[bytes, bytes]]) -> tuple[bytes, int | None]:
    """Return the encoded headers of a record for a message's properties, and the timestamp (ms) that one of kop's own
    properties holds; None if there is none.
    """
    if not any(name.startswith(RESERVED) for name, _ in properties):
        return _section(len(properties), properties), None
    listed: tuple[bytes, int] | None = None
    marker: int | None = None
    plain: list[tuple[bytes, bytes]] = []
    for name, value in properties:
        if name == HEADERS_PROPERTY and listed is None and (parts := _listed(value)) is not None:
            listed = parts
        elif name == TIMESTAMP_PROPERTY and marker is None and (number := _marker(value)) is not None:
            marker = number
        elif (name, value) != EMPTY_PROPERTY:
            plain.append((name, value))
    if listed is None:
        return _section(len(plain), plain), marker
    section, count = listed
    headers = headers_of(section, 0, len(section))
    if count > MAX_SHOWN:
        return _section(count + len(plain), chain(headers, plain)), marker
    kept = list(headers)
    expected, present = _as_properties(kept), dict(plain)
    kept = [header for header in kept if expected.get(header[0]) == present.get(header[0])]
    kept += [(name, value) for name, value in plain if expected.get(name) != value]
    return _section(len(kept), kept), marker


def _listed(value: bytes) -> tuple[bytes, int] | None:
    """Decode the property that lists a record's headers: return them encoded, and their number; None if it is
    malformed.
    """
    section = _from_base64(value)
    if section is None:
        return None
    try:
        return section, sum(1 for _ in headers_of(section, 0, len(section)))
    except PeerError:
        return None


def _section(count: int, headers: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    """Encode the headers of a record. Its numbers are zigzag varints, so these are doubled."""
    out = bytearray()
    _put_varint(out, count << 1)
    for name, value in headers:
        _put_varint(out, len(name) << 1)
        out += name
        if value is None:
            out.append(1)  # -1
        else:
            _put_varint(out, len(value) << 1)
            out += value
    return bytes(out)


def _marker(value: bytes) -> int | None:
    """Return the timestamp in kop's own property: a number from -2^63 to 0 in its one canonical form; None for anything
    else.
    """
    if len(value) > 20:
        return None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if -_INT63 <= number <= 0 and b"%d" % number == value else None


def _records(contents: list[tuple[int, int, bytearray]]) -> tuple[bytes, int, int, int]:
    if not contents:
        return b"", 0, -1, -1
    base = contents[0][1]
    if any(not -_INT63 <= timestamp - base < _INT63 for _, timestamp, _ in contents):
        base = 0  # a delta has 64 bits
    out = bytearray()
    for index, timestamp, content in contents:
        put_record(out, timestamp - base, index, content)
    return bytes(out), len(contents), base, max(timestamp for _, timestamp, _ in contents)


def parse_entry(metadata: Buffer) -> EntryView:
    """Parse an entry's MessageMetadata; UndecodableEntryError if it is malformed."""
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    raw = encrypted = False
    for number, field in _fields(bytes(metadata)):
        if isinstance(field, int):
            numbers[number] = field
        elif number == 4:
            raw = raw or _property(field) == (RAW_PROPERTY, RAW_VALUE)
        elif number == 13:
            encrypted = True
        else:
            texts[number] = field
    if 1 not in texts or 2 not in numbers or 3 not in numbers:
        raise _damaged("metadata without producer_name, sequence_id or publish_time")
    number_of, batched = numbers.get, 11 in numbers
    count = _int32(number_of(11, 1))
    if count <= 0:
        raise _damaged(f"an entry of {count} messages")
    in_txn = 22 in numbers and 23 in numbers
    num_chunks = _int32(number_of(27, 1))
    return EntryView(
        producer_name=texts[1].decode(errors="replace"),
        sequence_id=numbers[2],
        highest_sequence_id=number_of(24, 0),
        publish_time=_int64(numbers[3]),
        event_time=_int64(number_of(12, 0)),
        num_messages=count,
        batched=batched,
        compression=_int32(number_of(8, 0)),
        uncompressed_size=number_of(9, 0) & 0xFFFFFFFF,
        raw=raw and batched,
        encrypted=encrypted,
        marker_type=_int32(numbers[20]) if 20 in numbers else -1,
        chunk_id=_int32(number_of(29, 0)) if num_chunks > 1 else -1,
        num_chunks=num_chunks,
        total_chunk_size=_int32(number_of(28, 0)),
        uuid=texts.get(26, b"").decode(errors="replace"),
        txn_most=numbers[23] if in_txn else -1,
        txn_least=numbers[22] if in_txn else -1,
    )


# Base64 and protobuf


def schema_version(metadata: Buffer) -> int:
    """Return the version of its schema that an entry's MessageMetadata, which parses, names; -1 if it names none."""
    data = bytes(metadata)
    version = b""
    if _SCHEMA_VERSION in data:  # few entries have it, and none without these bytes
        for number, field in _fields(data):
            if number == 16 and isinstance(field, bytes):
                version = field
    return int.from_bytes(version, "big", signed=True) if len(version) == 8 else -1


def _from_base64(text: bytes) -> bytes | None:
    """Decode base64 of the standard alphabet; None if `text` is no base64. Padding may be missing, as for Java."""
    core = text[:-2] if text.endswith(b"==") else text[:-1] if text.endswith(b"=") else text
    if b"=" in core:
        return None
    try:
        return a2b_base64(core + b"=" * (-len(core) % 4), strict_mode=True) if core else b""
    except Base64Error:
        return None


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _int64(value: int) -> int:
    return value - _INT64 if value >= _INT63 else value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message: an int for a varint, bytes for a field with a length;
    others are skipped. UndecodableEntryError, on the way, if the message is malformed.
    """
    pos, end = 0, len(data)
    try:
        while pos < end:
            tag, pos = _varint(data, pos)
            number, wire = tag >> 3, tag & 7
            if not 0 < number < 1 << 29:
                raise _damaged(f"a field with the number {number}")
            if wire == 0:
                value, pos = _varint(data, pos)
                yield number, value
            elif wire == 2:
                length, start = _varint(data, pos)
                pos = start + length
                if pos <= end:
                    yield number, data[start:pos]
            elif wire in (1, 5):
                pos += 8 if wire == 1 else 4
            else:
                raise _damaged(f"a field of wire type {wire}")
    except IndexError:
        pos = end + 1
    if pos > end:
        raise _damaged("metadata that is cut off")


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (_INT64 - 1), pos
        shift += 7
        if shift == 70:
            raise _damaged("a number of more than ten bytes")


def _property(data: bytes) -> tuple[bytes, bytes]:
    name: bytes | None = None
    value: bytes | None = None
    for number, field in _fields(data):
        if isinstance(field, bytes):
            if number == 1:
                name = field
            elif number == 2:
                value = field
    if name is None or value is None:
        raise _damaged("a property without name or value")
    return name, value


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_number(out: bytearray, number: int, value: int) -> None:
    """Append a protobuf field with a varint to `out`; `value` is not negative."""
    _put_varint(out, number << 3)
    _put_varint(out, value)


def put_bytes(out: bytearray, number: int, data: bytes | bytearray) -> None:
    """Append a protobuf field of bytes, behind their length, to `out`."""
    _put_varint(out, number << 3 | 2)
    _put_varint(out, len(data))
    out += data


def _put_property(out: bytearray, number: int, name: bytes, value: bytes) -> None:
    put_bytes(out, number, property_of(name, value))


def property_of(name: bytes, value: bytes) -> bytes:
    """Serialize name and value of a property as a KeyValue of Pulsar."""
    out = bytearray()
    put_bytes(out, 1, name)
    put_bytes(out, 2, value)
    return bytes(out)
