"""Kafka batches <-> Pulsar entries, compiled where `kop._native` was built, else in plain Python.

Owns: the entry around the messages (metadata, compression, Pulsar's size limit), the batch around the records, the
raw `kafka` entry format, and the choice between the two twins.
Must not know: sockets, topics, how a message holds a record (`kop.records._pure` says that, and is the specification).

Codecs are kept where both sides have them: none, lz4 (a frame in Kafka, a bare block in Pulsar), gzip / ZLIB, zstd,
snappy (xerial stream, bare block). An entry that a codec does not make smaller is stored without one, and its batch
comes back so.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import cramjam
from crc32c import crc32c

from kop.compiled import compiled
from kop.errors import ErrorCode, InternalError, PeerError, raises_without_frames
from kop.records import _pure
from kop.records._pure import EntryView as EntryView  # noqa: PLC0414 (for those that import it from here, too)
from kop.records._pure import UndecodableEntryError as UndecodableEntryError  # noqa: PLC0414
from kop.records._pure import schema_version as schema_version  # noqa: PLC0414
from kop.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_FROM,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    Codec,
    build,
    iter_batches,
    stamp,
    stamp_create_time,
    stamp_log_append_time,
)
from kop.records.compression import compress, decompress
from kop.records.validation import RecordsRejectedError, check_records, inflated

if TYPE_CHECKING:
    from kop import _native as twin
else:
    twin = compiled(_pure)
NATIVE: Final = twin is not _pure
"""True if the compiled module does the work, false if its twin in Python does."""
ENTRY_ROOM: Final = 512
"""The bytes of an entry that are reserved for its metadata and framing. Part of how batches are split: never change
it.
"""
MAX_UNCOMPRESSED: Final = 128 * 1024 * 1024
"""The most bytes that a compressed batch or entry may grow to, unless the caller gives another bound."""

_MAX_PRODUCER_NAME: Final = 256
_INT63: Final = 1 << 63
_UP_TO_METADATA: Final = 18
"""The bytes of a SEND frame before the metadata, without the command: two sizes, magic, checksum, the metadata's
size.
"""
_LZ4, _ZLIB, _ZSTD, _SNAPPY = 1, 2, 3, 4
_TO_PULSAR: Final[Mapping[int, int]] = {
    Codec.NONE: 0,
    Codec.GZIP: _ZLIB,
    Codec.SNAPPY: _SNAPPY,
    Codec.LZ4: _LZ4,
    Codec.ZSTD: _ZSTD,
}
_TO_KAFKA: Final = {number: codec for codec, number in _TO_PULSAR.items()}
_FASTEST: Final = 1
_WORST_LZ4: Final = 256  # a byte of lz4 cannot stand for more than 255


class EntryTransaction(NamedTuple):
    """The Pulsar transaction that the entries of a batch belong to."""

    most: int
    least: int
    sent_in: bool = False
    """True if entries are sent in the transaction. A Pulsar broker counts each of those as one message, so each has one
    record then. Else their metadata alone names it, and they are counted as others."""


class PulsarEntry(NamedTuple):
    """An entry that a Pulsar producer sends for a batch, or for a piece of one."""

    metadata: bytes
    """The serialized MessageMetadata."""
    payload: bytes
    num_messages: int
    first: int
    """The index of the entry's first record in the batch."""


class SendFrame(NamedTuple):
    """An entry in the form in which it is written to a Pulsar socket."""

    frame: bytes
    """The whole frame: command, checksum, MessageMetadata, payload."""
    num_messages: int
    first: int
    """The index of the entry's first record in the batch."""
    entry_size: int
    """The bytes of metadata and payload."""
    decompressed: int = 0
    """The bytes to which its records had to be decompressed; 0 if they had not to be."""
    earliest: int = NO_TIMESTAMP
    """The smallest timestamp (ms) in the whole batch that is a time; -1 if no record has one."""
    latest: int = NO_TIMESTAMP
    """The largest timestamp (ms) in the whole batch; -1 if no record has one."""


@raises_without_frames
def to_frames(
    batch: Buffer,
    header: BatchHeader,
    *,
    producer_id: int,
    producer_name: str,
    sequence_base: int,
    publish_time: int,
    max_size: int,
    max_bytes: int = MAX_UNCOMPRESSED,
    compacted: bool = False,
    txn: EntryTransaction | None = None,
) -> list[SendFrame]:
    """Convert one checked Kafka batch into a SEND frame; into more than one if it grows beyond `max_size`, the broker's
    limit.

    Frame k has the sequence id `sequence_base` + its `first`, and as highest_sequence_id that of its last record.
    `producer_id` is the number of the producer on its connection, `producer_name` its name. `publish_time` is in
    milliseconds; `max_bytes` bounds what the batch is decompressed to. Raises PeerError: INVALID_RECORD (malformed
    records, control batches), UNSUPPORTED_FOR_MESSAGE_FORMAT (transactional batches without a `txn`), MESSAGE_TOO_LARGE
    (a single record does not fit, or could not be read again), RecordsRejectedError (records without a key for a
    `compacted` topic).
    """
    name = producer_name.encode()
    if not header.attributes & CODEC_MASK:
        return plain_frames(batch, header, producer_id, name, sequence_base, publish_time, max_size, compacted, txn)
    _check_plain(header, txn)
    _check_numbers(name, sequence_base, header.record_count, publish_time)
    room = max_size - ENTRY_ROOM
    split_at = -1 if txn is not None and txn.sent_in else room
    count, base_timestamp = header.record_count, header.base_timestamp
    append_time = header.max_timestamp if header.log_append_time else None
    codec = _TO_PULSAR[Codec(header.attributes & CODEC_MASK)]
    frames: list[SendFrame] = []
    first = 0
    body = inflated(memoryview(batch)[: header.size], header.codec, max_bytes)
    pieces, without_key, *times = twin.pack(body, count, base_timestamp, append_time, split_at, compacted)
    if without_key:
        raise RecordsRejectedError.without_key(without_key)
    for payload, messages in pieces:
        packed = _deflate(codec, payload)
        smaller = len(packed) < len(payload)
        if not smaller:
            packed = payload
        _check_room(first, len(payload), len(packed), room)
        frame = twin.send_frame(
            packed, messages, codec if smaller else 0, len(payload), False,
            producer_id, name, sequence_base + first, publish_time, txn,
        )  # fmt: skip
        frames.append(SendFrame(frame, messages, first, entry_size(frame), len(payload), *times))
        first += messages
    return frames


def plain_frames(
    batch: Buffer,
    header: BatchHeader,
    producer_id: int,
    producer_name: bytes,
    sequence_base: int,
    publish_time: int,
    max_size: int,
    compacted: bool,
    txn: EntryTransaction | None,
) -> list[SendFrame]:
    """Convert one Kafka batch that is not compressed into SEND frames, as `to_frames` does, but with as few calls as
    possible.

    The tracebacks of its errors keep the batch in memory; see `kop.errors.without_frames`.
    """
    _check_plain(header, txn)
    count = header.record_count
    _check_numbers(producer_name, sequence_base, count, publish_time)
    room = max_size - ENTRY_ROOM
    size = header.batch_length + LOG_OVERHEAD
    made, without_key, earliest, latest = twin.send_frames(
        batch if len(batch) == size else memoryview(batch)[:size],
        HEADER_SIZE,
        count,
        header.base_timestamp,
        header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None,
        -1 if txn is not None and txn.sent_in else room,
        compacted,
        producer_id,
        producer_name,
        sequence_base,
        publish_time,
        txn,
    )
    if without_key:
        raise RecordsRejectedError.without_key(without_key)
    frames: list[SendFrame] = []
    first = 0
    for frame, messages, payload_size in made:
        if payload_size > room:
            _check_room(first, payload_size, payload_size, room)
        frames.append(SendFrame(frame, messages, first, entry_size(frame), 0, earliest, latest))
        first += messages
    return frames


@raises_without_frames
def to_raw_frame(
    batch: Buffer,
    header: BatchHeader,
    *,
    producer_id: int,
    producer_name: str,
    sequence_base: int,
    publish_time: int,
    max_size: int,
    max_bytes: int = MAX_UNCOMPRESSED,
    txn: EntryTransaction | None = None,
) -> SendFrame:
    """Put a checked Kafka batch as it is into a SEND frame (KoP's `kafka` entry format); it is never split.

    Its header gets the largest timestamp of its records, whatever `header` says. Its records are checked as those of
    `to_frames`; `max_bytes` bounds what they are decompressed to. Raises PeerError: INVALID_RECORD (malformed records,
    control batches), UNSUPPORTED_FOR_MESSAGE_FORMAT (transactional batches without a `txn`), MESSAGE_TOO_LARGE. A raw
    entry is never sent in its transaction.
    """
    _check_plain(header, txn)
    if txn is not None and txn.sent_in and header.record_count > 1:
        raise InternalError(f"a raw entry of {header.record_count} records in a Pulsar transaction")
    count, name = header.record_count, producer_name.encode()
    _check_numbers(name, sequence_base, count, publish_time)
    if header.size > max_size - ENTRY_ROOM:
        raise PeerError(
            f"batch of {header.size} bytes, the limit is {max_size - ENTRY_ROOM}", ErrorCode.MESSAGE_TOO_LARGE
        )
    whole: Buffer = memoryview(batch)[: header.size]
    checked = check_records(whole, header, False, max_bytes)
    if checked.latest != header.max_timestamp and not header.log_append_time:
        whole = bytearray(whole)
        stamp_create_time(whole, checked.latest)
    frame = twin.send_frame(whole, count, 0, 0, True, producer_id, name, sequence_base, publish_time, txn)
    decompressed = len(checked.body) if header.codec else 0
    return SendFrame(frame, count, 0, entry_size(frame), decompressed, checked.earliest, checked.latest)


@raises_without_frames
def to_entries(
    batch: Buffer,
    header: BatchHeader,
    *,
    producer_name: str,
    sequence_base: int,
    publish_time: int,
    max_size: int,
    max_bytes: int = MAX_UNCOMPRESSED,
    compacted: bool = False,
    txn: EntryTransaction | None = None,
) -> list[PulsarEntry]:
    """Convert one Kafka batch into Pulsar entries without SEND frames around them, for callers that send entries in
    another way; rules and errors as of `to_frames`.
    """
    frames = to_frames(
        batch,
        header,
        producer_id=0,
        producer_name=producer_name,
        sequence_base=sequence_base,
        publish_time=publish_time,
        max_size=max_size,
        max_bytes=max_bytes,
        compacted=compacted,
        txn=txn,
    )
    return [PulsarEntry(*entry_in(made.frame), made.num_messages, made.first) for made in frames]


def entry_size(frame: bytes) -> int:
    """Return the number of bytes of metadata and payload in a SEND frame."""
    return len(frame) - _UP_TO_METADATA - int.from_bytes(frame[4:8], "big")


def entry_in(frame: bytes) -> tuple[bytes, bytes]:
    """Return metadata and payload of the entry in a SEND frame."""
    at = _UP_TO_METADATA + int.from_bytes(frame[4:8], "big")
    end = at + int.from_bytes(frame[at - 4 : at], "big")
    return frame[at:end], frame[end:]


@raises_without_frames
def to_batch(
    metadata: Buffer,
    payload: Buffer,
    *,
    base_offset: int,
    log_append_time: int | None,
    view: EntryView | None = None,
    max_bytes: int = MAX_UNCOMPRESSED,
    on_keyless: Callable[[int], None] | None = None,
) -> Buffer:
    """Convert an entry, whose first message has `base_offset`, into a Kafka batch; leader epoch 0, the checksum right.

    An entry of several raw batches gives them all, one behind the other. `log_append_time` (ms, the broker's) becomes
    the time of every record. The offsets of what is not there (messages that compaction took, a marker of the broker's)
    are covered. `payload` is as stored; of a chunked message it is all chunks put together, with the metadata of any.
    `view` is the result of `parse_entry` for the metadata, if the caller has that already. `on_keyless` is called with
    the number of messages that Pulsar's compaction will drop for want of a key, if any.

    Raises UndecodableEntryError, whose `reason` tells why.
    """
    if view is None:
        view = parse_entry(metadata)
    places = view.num_messages
    if view.encrypted:
        raise UndecodableEntryError("encrypted", "the entry is encrypted, only its producers' consumers can read it")
    if view.marker_type >= 0:
        return empty_batch(base_offset, base_offset + places - 1)
    if view.chunk_id >= 0 and len(payload) != view.total_chunk_size:
        raise UndecodableEntryError(
            "chunk", f"{len(payload)} bytes of a message in {view.num_chunks} chunks of {view.total_chunk_size} bytes"
        )
    body = _inflate(view, payload, max_bytes) if view.compression else payload
    if view.raw:
        return _from_raw(body, places, base_offset, log_append_time, max_bytes, in_transaction=view.txn_most >= 0)
    batch: bytes
    if view.compression:
        records: tuple[Buffer, ...]
        if view.batched:
            unpacked, count, base_timestamp, max_timestamp, keyless = twin.unpack(
                body, places, view.publish_time, view.event_time
            )
            records = (unpacked,)
        else:
            before, behind, has_value, base_timestamp, keyless = twin.unpack_one(metadata, len(body))
            records = (before, body, behind) if has_value else (before, behind)
            count, max_timestamp = 1, base_timestamp
        del body  # what comes next may be as large
        codec = _TO_KAFKA[view.compression]
        batch = b""
        if count:
            records = (compress(codec, b"".join(records), fastest=True),)  # it is done again for every read from Pulsar
            batch = _pure.around(
                records, count, base_timestamp, max_timestamp, base_offset, places, codec, log_append_time
            )
    else:
        batch, keyless = twin.plain_batch(
            metadata, body, view.batched, places, view.publish_time, view.event_time, base_offset, log_append_time
        )
    if keyless and on_keyless is not None:
        on_keyless(keyless)
    return batch or empty_batch(base_offset, base_offset + places - 1)


def usual_batches(
    messages: Sequence[object], at: int, next_offset: int, append_time: bool
) -> tuple[list[tuple[int, int, bytes]], int, int]:
    """Convert usual entries that came together into Kafka batches, in one call: those of `messages` from place `at` on,
    up to the first that is not usual; see `kop.records._pure.usual_batches`.

    Each is equal to the result of `to_batch` for the entry. Returns base offset, last offset and bytes of each batch,
    and the numbers of messages and of bytes of the entries.
    """
    made: tuple[list[tuple[int, int, bytes]], int, int] = twin.usual_batches(messages, at, next_offset, append_time)
    return made


def parse_entry(metadata: Buffer) -> EntryView:
    """Parse an entry's MessageMetadata; UndecodableEntryError if it is malformed."""
    return tuple.__new__(EntryView, twin.parse_entry(metadata))  # as `_make`, without its call: once for each entry


def empty_batch(first_offset: int, last_offset: int) -> bytes:
    """Return a batch without records that covers the offsets from the first to the last, as Kafka's compaction leaves
    them: consumers step over it.

    At most 2^31 offsets fit; for more, which the caller has to put into several, InternalError is raised.
    """
    if last_offset - first_offset >= 1 << 31:
        raise InternalError(f"an empty batch from {first_offset} to {last_offset}")
    return bytes(build((), base_offset=first_offset, last_offset=last_offset))


def _check_plain(header: BatchHeader, txn: EntryTransaction | None) -> None:
    if header.attributes & CONTROL_BIT:
        raise PeerError("clients may not write control batches", ErrorCode.INVALID_RECORD)
    if header.attributes & TRANSACTIONAL_BIT and txn is None:
        raise PeerError("transactional batches are not taken here", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        raise PeerError(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
            ErrorCode.INVALID_RECORD,
        )


def _check_numbers(name: bytes, sequence_id: int, count: int, publish_time: int) -> None:
    """Raise InternalError if the producer's name, or a number, does not fit into an entry."""
    if len(name) > _MAX_PRODUCER_NAME or not 0 <= sequence_id <= _INT63 - count or not 0 <= publish_time < _INT63:
        raise InternalError(f"an entry of producer {name!r}, sequence {sequence_id}, time {publish_time}")


def _check_room(first: int, size: int, packed: int, room: int) -> None:
    """Raise MESSAGE_TOO_LARGE for an entry that is too large for Pulsar, which then holds the single record `first`: of
    more than 128 MiB without compression (`size`), or more than `room` bytes as it is stored (`packed`).
    """
    if size > MAX_UNCOMPRESSED:
        raise PeerError(
            f"record {first} takes {size} bytes without compression, the limit is {MAX_UNCOMPRESSED}",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
    if packed > room:
        raise PeerError(f"record {first} takes {packed} bytes, the limit is {room}", ErrorCode.MESSAGE_TOO_LARGE)


def _from_raw(
    body: Buffer,
    num_messages: int,
    base_offset: int,
    log_append_time: int | None,
    max_bytes: int,
    *,
    in_transaction: bool,
) -> bytearray:
    """Return the Kafka batches in a raw entry, one that is made of Kafka batches as their producer sent them. Their
    offsets start at `base_offset`; `log_append_time`, if given, becomes their timestamp. UndecodableEntryError if they
    are damaged, or do not have `num_messages` offsets together.

    `max_bytes`: batches that decompress to more keep the largest timestamp of their header. `in_transaction`: the entry
    belongs to a Pulsar transaction, so its batches may be transactional; in other entries those are refused.
    """
    out = bytearray(body)
    offset = base_offset
    try:
        for pos, header in iter_batches(out):
            batch = memoryview(out)[pos : pos + header.size]
            if header.control or (header.transactional and not in_transaction):
                raise UndecodableEntryError("transactional", "a raw batch of a Kafka transaction")
            if crc32c(batch[CRC_FROM:]) != header.crc:
                raise UndecodableEntryError("damaged", "the checksum does not fit the raw batch")
            if header.codec > Codec.ZSTD or header.last_offset_delta < 0:
                raise UndecodableEntryError("damaged", f"a raw batch with attributes {header.attributes}")
            stamp(batch, offset)
            if log_append_time is not None:
                stamp_log_append_time(batch, log_append_time)
            elif not header.log_append_time:
                _correct_largest_timestamp(batch, header, max_bytes)
            offset += header.last_offset_delta + 1
    except PeerError as error:
        raise UndecodableEntryError("damaged", f"no raw batch: {error.message}") from None
    if offset - base_offset != num_messages:
        raise UndecodableEntryError("damaged", f"raw batches of {offset - base_offset} in {num_messages} messages")
    return out


def _correct_largest_timestamp(batch: memoryview, header: BatchHeader, max_bytes: int) -> None:
    """Put the largest timestamp of its records into a raw batch's header, since its producer may not have set it.

    The records of a compressed batch are looked at only if the header cannot be right: it says less than the time that
    they count from.
    """
    if header.codec and header.max_timestamp >= header.base_timestamp:
        return
    try:
        latest = check_records(batch, header, False, max_bytes).latest
    except PeerError:
        return  # whoever reads the records is told
    if latest != header.max_timestamp:
        stamp_create_time(batch, latest)


def deflated(codec: int, payload: bytes) -> tuple[int, bytes]:
    """Compress the payload of an entry in a codec of Kafka, not in NONE; return Pulsar's number for the codec, and the
    payload.
    """
    compression = _TO_PULSAR[codec]
    return compression, _deflate(compression, payload)


def _deflate(compression: int, data: bytes) -> bytes:
    """Compress `data` in the form of Pulsar's own clients, at the fastest levels: a producer waits. `compression` is
    Pulsar's number of a codec.
    """
    if compression == _LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if compression == _ZLIB:
        return bytes(cramjam.zlib.compress(data, level=_FASTEST))
    if compression == _SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    return bytes(cramjam.zstd.compress(data, level=_FASTEST))


def _inflate(view: EntryView, payload: Buffer, max_bytes: int) -> Buffer:
    """Decompress an entry's payload; UndecodableEntryError unless it has exactly as many bytes as the metadata says."""
    size = view.uncompressed_size
    if size > max_bytes:
        raise UndecodableEntryError("too_large", f"an entry of {size} bytes, the limit is {max_bytes}")
    if not size and not payload and view.compression in _TO_KAFKA:
        return payload  # some clients compress nothing to nothing: Java's with ZLIB, Go's without cgo with zstd
    try:
        out: Buffer
        if view.compression == _LZ4 and size <= _WORST_LZ4 * len(payload):
            out = bytearray(size)
            written = cramjam.lz4.decompress_block_into(payload, out, output_len=size)
        elif view.compression == _ZLIB:
            out = _unzlib(payload, size)
            written = len(out)
        elif view.compression in (_ZSTD, _SNAPPY):
            out = decompress(_TO_KAFKA[view.compression], payload, size)
            written = len(out)
        elif view.compression == _LZ4:
            raise UndecodableEntryError("damaged", f"{len(payload)} bytes claim to hold {size}")
        else:
            raise UndecodableEntryError("compression", f"compression {view.compression} is not known")
    except (cramjam.DecompressionError, zlib.error) as error:
        raise UndecodableEntryError("damaged", f"the entry cannot be decompressed: {error}") from None
    except PeerError as error:
        raise UndecodableEntryError("damaged", f"the entry cannot be decompressed: {error.message}") from None
    if written != size:
        raise UndecodableEntryError("damaged", f"an entry of {written} bytes, {size} were announced")
    return out


def _unzlib(payload: Buffer, size: int) -> bytes:
    """Decompress a zlib `payload`, to `size + 1` bytes at most. zlib.error if it is damaged.

    A stream that ends without its last block and its checksum is whole: Pulsar's Java code flushes deflate and does not
    finish it, in its producers and where it compacts a topic. With the byte more the checksum is read if there is one.
    """
    return zlib.decompressobj().decompress(payload, size + 1)
