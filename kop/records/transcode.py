"""Kafka batches <-> Pulsar entries, compiled where `kop._native` was built, else in plain Python.

Owns: the entry around the messages (metadata, compression, Pulsar's size limit), the batch around the records, the
raw `kafka` entry format, and the choice between the two twins.
Must not know: sockets, topics, how a message holds a record (`kop.records._pure` says that, and is the specification).

Codecs are kept where both sides have them: none, lz4 (a frame in Kafka, a bare block in Pulsar), gzip / ZLIB, zstd,
snappy (xerial stream, bare block). An entry that a codec does not make smaller is stored without one, and its batch
comes back so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import cramjam
from crc32c import crc32c

from kop.errors import ErrorCode, InternalError, PeerError, raises_without_frames
from kop.records import _pure
from kop.records._pure import EntryView, UndecodableEntryError
from kop.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    Codec,
    build,
    iter_batches,
    stamp,
    stamp_log_append_time,
)
from kop.records.compression import compress, decompress
from kop.records.twin import chosen
from kop.records.validation import RecordsRejectedError, check_records, inflated

__all__ = [
    "ENTRY_ROOM",
    "MAX_UNCOMPRESSED",
    "NATIVE",
    "EntryView",
    "PulsarEntry",
    "UndecodableEntryError",
    "empty_batch",
    "parse_entry",
    "to_batch",
    "to_entries",
    "to_raw_entry",
]


twin = chosen()
NATIVE: Final = twin is not _pure
"""True when the compiled twin does the work."""
ENTRY_ROOM: Final = 512
"""Bytes of an entry that are kept for its metadata and framing. Part of how batches are split: never change it."""
MAX_UNCOMPRESSED: Final = 128 * 1024 * 1024
"""Bytes that a compressed batch or entry may grow to, unless told otherwise."""

_MAX_PRODUCER_NAME: Final = 256
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_LZ4, _ZLIB, _ZSTD, _SNAPPY = 1, 2, 3, 4
_TO_PULSAR: Final = {
    Codec.NONE: 0,
    Codec.GZIP: _ZLIB,
    Codec.SNAPPY: _SNAPPY,
    Codec.LZ4: _LZ4,
    Codec.ZSTD: _ZSTD,
}
_TO_KAFKA: Final = {number: codec for codec, number in _TO_PULSAR.items()}
_FASTEST: Final = 1
_WORST_LZ4: Final = 256  # a byte of lz4 cannot stand for more than 255
_WORST_ZLIB: Final = 1040  # nor one of deflate for more than about 1032


class PulsarEntry(NamedTuple):
    """What a Pulsar producer sends for a batch, or for a piece of one."""

    metadata: bytes
    """A serialized MessageMetadata."""
    payload: bytes
    num_messages: int
    first: int
    """Index of its first record in the batch."""


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
    reject_null_keys: bool = False,
) -> list[PulsarEntry]:
    """The Pulsar entry of one checked Kafka batch; more than one where it grows beyond `max_size`, the broker's limit.

    Entry k has the sequence id `sequence_base` + its `first`, and as highest_sequence_id that of its last record.
    `publish_time` is in milliseconds; `max_bytes` bounds what the batch is decompressed to. Raises PeerError:
    INVALID_RECORD (malformed records, control batches), UNSUPPORTED_FOR_MESSAGE_FORMAT (transactional batches),
    MESSAGE_TOO_LARGE (a single record does not fit, or could not be read again), RecordsRejectedError
    (`reject_null_keys`, for compacted topics).
    """
    _check_plain(header)
    body = bytes(inflated(memoryview(batch)[: header.size], header, max_bytes))
    room = max_size - ENTRY_ROOM
    append_time = header.max_timestamp if header.log_append_time else None
    pieces, without_key = twin.pack(
        body, header.record_count, header.base_timestamp, append_time, room, reject_null_keys
    )
    if without_key:
        raise RecordsRejectedError.without_key(without_key)
    codec = _TO_PULSAR[Codec(header.codec)]
    entries: list[PulsarEntry] = []
    first = 0
    for payload, count in pieces:
        packed: bytes = payload
        size = None
        if codec:
            smaller = _deflate(codec, payload)
            if len(smaller) < len(payload):
                packed, size = smaller, len(payload)
        if len(payload) > MAX_UNCOMPRESSED:
            raise PeerError(
                f"record {first} takes {len(payload)} bytes without compression, the limit is {MAX_UNCOMPRESSED}",
                ErrorCode.MESSAGE_TOO_LARGE,
            )
        if len(packed) > room:
            raise PeerError(
                f"record {first} takes {len(packed)} bytes, the limit is {room}", ErrorCode.MESSAGE_TOO_LARGE
            )
        metadata = _metadata(producer_name, sequence_base + first, publish_time, count, codec if size else 0, size)
        entries.append(PulsarEntry(metadata, packed, count, first))
        first += count
    return entries


@raises_without_frames
def to_raw_entry(
    batch: Buffer,
    header: BatchHeader,
    *,
    producer_name: str,
    sequence_base: int,
    publish_time: int,
    max_size: int,
    max_bytes: int = MAX_UNCOMPRESSED,
) -> PulsarEntry:
    """The entry that holds a checked Kafka batch as it is (KoP's `kafka` entry format); it is never split.

    Its records are walked as those of `to_entries`; `max_bytes` bounds what they are decompressed to. Raises PeerError:
    INVALID_RECORD (malformed records, control batches), UNSUPPORTED_FOR_MESSAGE_FORMAT (transactional batches),
    MESSAGE_TOO_LARGE.
    """
    _check_plain(header)
    if header.size > max_size - ENTRY_ROOM:
        raise PeerError(
            f"batch of {header.size} bytes, the limit is {max_size - ENTRY_ROOM}", ErrorCode.MESSAGE_TOO_LARGE
        )
    check_records(memoryview(batch)[: header.size], header, False, max_bytes)
    metadata = _metadata(producer_name, sequence_base, publish_time, header.record_count, 0, None, raw=True)
    return PulsarEntry(metadata, bytes(memoryview(batch)[: header.size]), header.record_count, 0)


@raises_without_frames
def to_batch(
    metadata: Buffer,
    payload: Buffer,
    *,
    base_offset: int,
    log_append_time: int | None,
    max_bytes: int = MAX_UNCOMPRESSED,
    on_keyless: Callable[[int], None] | None = None,
) -> bytes | list[bytes]:
    """The Kafka batch of an entry, whose first message has `base_offset`; leader epoch 0, the checksum right.

    A list where the entry holds several raw batches. `log_append_time` (ms, the broker's) becomes the time of every
    record. The offsets of what is not there (messages that compaction took, a marker of the broker's) are covered.
    `payload` is as stored; of a chunked message it is all chunks put together, with the metadata of any.
    `on_keyless` is called with the number of messages that Pulsar's compaction will drop for want of a key, if any.
    Raises UndecodableEntryError, its `reason` says why.
    """
    metadata = bytes(metadata)
    view = parse_entry(metadata)
    last_offset = base_offset + view.num_messages - 1
    if view.encrypted:
        raise UndecodableEntryError("encrypted", "the entry is encrypted, only its producers' consumers can read it")
    if view.marker_type >= 0:
        return empty_batch(base_offset, last_offset)
    if view.chunk_id >= 0 and len(payload) != view.total_chunk_size:
        raise UndecodableEntryError(
            "chunk", f"{len(payload)} bytes of a message in {view.num_chunks} chunks of {view.total_chunk_size} bytes"
        )
    body = _inflate(view, payload, max_bytes)
    if view.raw:
        return _from_raw(body, view.num_messages, base_offset, log_append_time)
    if view.batched:
        records, count, base_timestamp, max_timestamp, keyless = twin.unpack(
            body, view.num_messages, view.publish_time, view.event_time
        )
    else:
        records, count, base_timestamp, max_timestamp, keyless = twin.unpack_one(metadata, body)
    if keyless and on_keyless is not None:
        on_keyless(keyless)
    if not count:
        return empty_batch(base_offset, last_offset)
    attributes = int(_TO_KAFKA[view.compression])
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time
    packed = _compress(attributes & CODEC_MASK, records)
    head = bytearray(
        _BATCH.pack(
            base_offset, HEADER_SIZE + len(packed) - LOG_OVERHEAD, 0, MAGIC, 0, attributes, last_offset - base_offset,
            base_timestamp, max_timestamp, -1, -1, -1, count,
        )
    )  # fmt: skip
    struct.pack_into(">I", head, _CRC_AT, crc32c(packed, crc32c(head[_CRC_FROM:])))
    return b"".join((head, packed))  # the records are copied once


def parse_entry(metadata: Buffer) -> EntryView:
    """What an entry's metadata says; UndecodableEntryError where it is no MessageMetadata."""
    return EntryView._make(twin.parse_entry(bytes(metadata)))


def empty_batch(first_offset: int, last_offset: int) -> bytes:
    """A batch without records that covers these offsets, as Kafka's compaction leaves them: consumers step over it.

    At most 2^31 offsets fit; more is for the caller to put into several.
    """
    if last_offset - first_offset >= 1 << 31:
        raise InternalError(f"an empty batch from {first_offset} to {last_offset}")
    return bytes(build((), base_offset=first_offset, last_offset=last_offset))


def _check_plain(header: BatchHeader) -> None:
    if header.attributes & CONTROL_BIT:
        raise PeerError("clients may not write control batches", ErrorCode.INVALID_RECORD)
    if header.attributes & TRANSACTIONAL_BIT:
        raise PeerError("transactional batches are not taken here", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        raise PeerError(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
            ErrorCode.INVALID_RECORD,
        )


def _metadata(
    producer_name: str,
    sequence_id: int,
    publish_time: int,
    count: int,
    compression: int,
    uncompressed_size: int | None,
    *,
    raw: bool = False,
) -> bytes:
    name = producer_name.encode()
    highest = sequence_id + count - 1
    if len(name) > _MAX_PRODUCER_NAME or sequence_id < 0 or highest >= 1 << 63 or not 0 <= publish_time < 1 << 63:
        raise InternalError(f"an entry of producer {producer_name!r}, sequence {sequence_id}, time {publish_time}")
    out = bytearray()
    _pure.put_bytes(out, 1, name)
    _pure.put_number(out, 2, sequence_id)
    _pure.put_number(out, 3, publish_time)
    if raw:
        _pure.put_bytes(out, 4, _pure.property_of(_pure.RAW_PROPERTY, _pure.RAW_VALUE))
    if uncompressed_size is not None:
        _pure.put_number(out, 8, compression)
        _pure.put_number(out, 9, uncompressed_size)
    _pure.put_number(out, 11, count)
    _pure.put_number(out, 24, highest)
    return bytes(out)


def _from_raw(body: bytes, num_messages: int, base_offset: int, log_append_time: int | None) -> bytes | list[bytes]:
    batches: list[bytes] = []
    offset = base_offset
    try:
        for pos, header in iter_batches(body):
            if header.transactional or header.control:
                raise UndecodableEntryError("transactional", "a raw batch of a Kafka transaction")
            batch = bytearray(body[pos : pos + header.size])
            if crc32c(memoryview(batch)[_CRC_FROM:]) != header.crc:
                raise UndecodableEntryError("damaged", "the checksum does not fit the raw batch")
            if header.codec > Codec.ZSTD or header.last_offset_delta < 0:
                raise UndecodableEntryError("damaged", f"a raw batch with attributes {header.attributes}")
            stamp(batch, offset)
            if log_append_time is not None:
                stamp_log_append_time(batch, log_append_time)
            offset += header.last_offset_delta + 1
            batches.append(bytes(batch))
    except PeerError as error:
        raise UndecodableEntryError("damaged", f"no raw batch: {error.message}") from None
    if offset - base_offset != num_messages:
        raise UndecodableEntryError("damaged", f"raw batches of {offset - base_offset} in {num_messages} messages")
    return batches[0] if len(batches) == 1 else batches


def _compress(codec: int, data: bytes) -> Buffer:
    """`data` for Kafka consumers, at the fastest levels: this is done again for every read from Pulsar."""
    if codec == Codec.LZ4:
        stream = cramjam.lz4.Compressor(level=_FASTEST, block_linked=False, content_checksum=False)
        stream.compress(data)
        return memoryview(stream.finish())
    if codec == Codec.GZIP:
        return memoryview(cramjam.gzip.compress(data, level=_FASTEST))
    if codec == Codec.ZSTD:
        return memoryview(cramjam.zstd.compress(data, level=_FASTEST))
    return compress(codec, data)


def _deflate(compression: int, data: bytes) -> bytes:
    """`data` in the form of Pulsar's own clients, at the fastest levels: a producer waits."""
    if compression == _LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if compression == _ZLIB:
        return bytes(cramjam.zlib.compress(data, level=_FASTEST))
    if compression == _SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    return bytes(cramjam.zstd.compress(data, level=_FASTEST))


def _inflate(view: EntryView, payload: Buffer, max_bytes: int) -> bytes:
    """The payload without compression: exactly as many bytes as the metadata says."""
    if not view.compression:
        return bytes(payload)
    size = view.uncompressed_size
    if size > max_bytes:
        raise UndecodableEntryError("too_large", f"an entry of {size} bytes, the limit is {max_bytes}")
    try:
        out: Buffer
        if view.compression == _LZ4 and size <= _WORST_LZ4 * len(payload):
            out = bytearray(size)
            written = cramjam.lz4.decompress_block_into(payload, out, output_len=size)
        elif view.compression == _ZLIB and size <= _WORST_ZLIB * len(payload):
            out = bytearray(size)
            written = cramjam.zlib.decompress_into(payload, out)
        elif view.compression in (_ZSTD, _SNAPPY):
            out = decompress(_TO_KAFKA[view.compression], payload, size)
            written = len(out)
        elif view.compression in (_LZ4, _ZLIB):
            raise UndecodableEntryError("damaged", f"{len(payload)} bytes claim to hold {size}")
        else:
            raise UndecodableEntryError("compression", f"compression {view.compression} is not known")
    except cramjam.DecompressionError as error:
        raise UndecodableEntryError("damaged", f"the entry cannot be decompressed: {error}") from None
    except PeerError as error:
        raise UndecodableEntryError("damaged", f"the entry cannot be decompressed: {error.message}") from None
    if written != size:
        raise UndecodableEntryError("damaged", f"an entry of {written} bytes, {size} were announced")
    return bytes(out)
