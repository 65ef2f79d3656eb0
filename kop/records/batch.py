"""RecordBatch v2 (magic 2), Kafka's only format for records since 4.0: read, checked, stamped, built, compacted.

Owns: the 61-byte header, the checks that a produced batch must pass before its records are looked at, and reading the
records of a stored batch.
Must not know: partitions, storage, requests, clocks.

A batch is never changed but for the first twelve bytes and the leader epoch, which lie outside the checksum, and for
LogAppendTime, which has to write a new checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from kop.errors import ErrorCode, InternalError, PeerError
from kop.records.compression import Codec as Codec  # noqa: PLC0414 (for those that import it from here, too)
from kop.records.compression import compress, decompress
from kop.records.record import Record as Record  # noqa: PLC0414
from kop.records.record import content_of, frames, headers_of, key_and_value, key_value_record, put_record

Buffer: TypeAlias = bytes | bytearray | memoryview

LOG_OVERHEAD: Final = 12
"""The bytes of a batch that its `batch_length` does not count: base offset and length."""
HEADER_SIZE: Final = 61
"""The bytes of a batch's header, before its records."""
MAGIC: Final = 2
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1
MIN_RECORD_SIZE: Final = 7
"""The bytes of the smallest record: length, attributes, two deltas, null key, null value, no headers."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
KEPT_BITS: Final = CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
"""The bits of a batch's attributes that stay when its largest timestamp is written."""

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_OFFSETS: Final = struct.Struct(">q15xi")
_PRODUCER: Final = struct.Struct(">h20xq")
_PRODUCER_ID: Final = struct.Struct(">qhi")
_unpack_header = HEADER.unpack_from

_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
CRC_AT: Final = 17
CRC_FROM: Final = 21
_ATTRIBUTES_AT: Final = 21
MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_ID_AT: Final = 43
_SMALLEST_V0: Final = 14  # Kafka reads lengths below a v0 record's as damage, before it looks at the magic


class BatchHeader(NamedTuple):
    """The header of a batch, 61 bytes before the records, as on the wire (KIP-98); times in ms since the epoch."""

    base_offset: int
    batch_length: int
    """The bytes of the batch behind this field: its size without the first twelve bytes."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """The time that the records' timestamps are relative to; with `delete_horizon`, the time at which tombstones may
    go.
    """
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def codec(self) -> int:
        """The number of the batch's compression; 5 to 7 are no codec."""
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        """True if every record's timestamp is `max_timestamp`."""
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def transactional(self) -> bool:
        """True for a batch that belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def control(self) -> bool:
        """True for a batch of markers, which only a broker writes."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def delete_horizon(self) -> bool:
        """True if `base_timestamp` holds the delete horizon (KIP-534)."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def last_offset(self) -> int:
        """The offset of the last record, also after compaction took that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; -1 if the batch has none. Behind 2147483647 sequences go on with 0."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return add_sequence(self.base_sequence, self.last_offset_delta)


def add_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` places after `sequence`; 2147483647 is followed by 0."""
    return (sequence + count) & MAX_SEQUENCE


def _corrupt(text: str) -> PeerError:
    return PeerError(text, ErrorCode.CORRUPT_MESSAGE)


def _invalid(text: str) -> PeerError:
    return PeerError(text, ErrorCode.INVALID_RECORD)


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Return the header of the batch that starts at `pos`. Only the fields that the rest depends on are checked, not
    the checksum.

    CORRUPT_MESSAGE if the buffer ends before the header, the magic is not 2 or the length cannot hold a header.
    """
    try:
        header = BatchHeader._make(_unpack_header(buf, pos))
    except struct.error:
        raise _corrupt(f"{len(buf) - pos} bytes cannot hold a record batch") from None
    if header.magic != MAGIC:
        raise _corrupt(f"record batch with magic {header.magic}")
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise _corrupt(f"record batch with a length of {header.batch_length}")
    return header


def base_offset_of(batch: Buffer) -> int:
    """Return the offset of the first record of a stored batch."""
    offset: int = _LONG.unpack_from(batch)[0]
    return offset


def next_offset_of(batch: Buffer) -> int:
    """Return the first offset behind a stored batch."""
    base_offset: int
    last_offset_delta: int
    base_offset, last_offset_delta = _OFFSETS.unpack_from(batch)
    return base_offset + last_offset_delta + 1


def transactional_producer_of(batch: Buffer) -> int:
    """Return the producer id of a stored batch of a transaction, markers among them; -1 of every other batch."""
    attributes: int
    producer_id: int
    attributes, producer_id = _PRODUCER.unpack_from(batch, _ATTRIBUTES_AT)
    return producer_id if attributes & TRANSACTIONAL_BIT else -1


def iter_batches(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch in `buf`, which holds whole batches; CORRUPT_MESSAGE if it
    does not.
    """
    pos, end = 0, len(buf)
    while pos < end:
        header = read_header(buf, pos)
        if header.batch_length + LOG_OVERHEAD > end - pos:
            raise _corrupt(f"record batch of {header.size} bytes is cut off after {end - pos}")
        yield pos, header
        pos += header.batch_length + LOG_OVERHEAD


def check_produced(data: Buffer, *, max_message_bytes: int, zstd_allowed: bool) -> BatchHeader:
    """Check one partition's batch of a Produce request, except for its records, in Kafka 4.3's order and with its
    codes.

    `max_message_bytes` bounds the whole batch. `zstd_allowed`: the request's version is 7 or newer (KIP-110). Raises
    PeerError: INVALID_RECORD (not exactly one batch of magic 2, counts or sequences that cannot be, control batch, base
    offset other than 0), CORRUPT_MESSAGE (length, checksum), MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE (zstd too
    early, or no codec at all), INVALID_PRODUCER_EPOCH (a producer id with a negative epoch). LogAppendTime is for the
    topic to judge. Where Kafka is laxer or fails by accident, tests/records/test_record_vectors.py lists the
    difference.
    """
    size = len(data)
    if size < HEADER_SIZE:
        raise _misfit(data)
    header = BatchHeader._make(_unpack_header(data))
    (
        base_offset,
        length,
        _,
        magic,
        crc,
        attributes,
        last_offset_delta,
        _,
        _,
        producer_id,
        epoch,
        base_sequence,
        count,
    ) = header
    if length + LOG_OVERHEAD != size or magic != MAGIC:
        raise _misfit(data)
    codec = attributes & CODEC_MASK
    if codec >= Codec.ZSTD and (codec > Codec.ZSTD or not zstd_allowed):
        raise PeerError(
            "zstd needs Produce version 7" if codec == Codec.ZSTD else f"unknown compression type {codec}",
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )
    if base_offset != 0:
        raise _invalid(f"base offset {base_offset} in a produced batch, it has to be 0")
    if size > max_message_bytes:
        raise PeerError(f"batch of {size} bytes, the limit is {max_message_bytes}", ErrorCode.MESSAGE_TOO_LARGE)
    if crc32c(memoryview(data)[CRC_FROM:]) != crc:
        raise _corrupt("the checksum does not fit the batch")
    if count <= 0 or last_offset_delta + 1 != count:
        raise _invalid(f"{count} records with a last offset delta of {last_offset_delta}")
    if attributes & CONTROL_BIT:
        raise _invalid("clients may not write control batches")
    if codec == 0 and count * MIN_RECORD_SIZE > size - HEADER_SIZE:
        raise _invalid(f"{size - HEADER_SIZE} bytes cannot hold {count} records")
    if producer_id >= 0:
        if base_sequence < 0:
            raise _invalid(f"sequence {base_sequence} with producer id {producer_id}")
        if epoch < 0:
            raise PeerError(f"epoch {epoch} with producer id {producer_id}", ErrorCode.INVALID_PRODUCER_EPOCH)
    elif attributes & TRANSACTIONAL_BIT:
        raise _invalid("a transactional batch without a producer id")
    return header


def is_transactional(data: Buffer) -> bool:
    """Return true if `data` begins with a batch of magic 2 that says it belongs to a transaction; nothing is
    checked.
    """
    return len(data) >= HEADER_SIZE and data[_MAGIC_AT] == MAGIC and data[_ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT != 0


def _misfit(data: Buffer) -> PeerError:
    """Return the error for bytes that are not one whole batch of magic 2, by Kafka's checks in their order."""
    size = len(data)
    if size < LOG_OVERHEAD:
        return _invalid("no record batch")
    _, length = struct.unpack_from(">qi", data)
    if length < _SMALLEST_V0:
        return _corrupt(f"record batch with a length of {length}")
    if size <= _MAGIC_AT:
        return _invalid("no whole record batch")
    magic = data[_MAGIC_AT]
    if magic > MAGIC:
        return _corrupt(f"record batch with magic {magic}")
    if length + LOG_OVERHEAD > size:
        return _invalid("no whole record batch")
    if magic != MAGIC:
        return _invalid(f"record batch with magic {magic}, only 2 is taken")
    if length < HEADER_SIZE - LOG_OVERHEAD:
        return _corrupt(f"record batch with a length of {length}")
    return _invalid("more than one record batch")


def max_timestamp_of(buf: Buffer) -> int:
    """Return the largest timestamp (ms) of the batches that fill `buf`, from their headers."""
    value: int = _LONG.unpack_from(buf, MAX_TIMESTAMP_AT)[0]
    if _INT.unpack_from(buf, _LENGTH_AT)[0] + LOG_OVERHEAD < len(buf):
        value = max(header.max_timestamp for _, header in iter_batches(buf))
    return value


def stamp(buf: bytearray | memoryview, base_offset: int, leader_epoch: int = 0) -> None:
    """Write the base offset and leader epoch of the batch at the start of `buf`; its checksum does not cover them."""
    _LONG.pack_into(buf, 0, base_offset)
    _INT.pack_into(buf, LOG_OVERHEAD, leader_epoch)


def stamp_create_time(buf: bytearray | memoryview, max_timestamp: int) -> None:
    """Turn the batch that fills `buf`, in place, into one of CreateTime, whose largest timestamp is `max_timestamp`
    (ms).

    The checksum is renewed. As in Kafka attributes without a meaning are cleared.
    """
    _stamp_times(buf, 0, max_timestamp)


def stamp_producer(buf: bytearray | memoryview, producer_id: int, epoch: int, base_sequence: int) -> None:
    """Write the producer and the first sequence of the batch that fills `buf`, and renew the checksum."""
    _PRODUCER_ID.pack_into(buf, _PRODUCER_ID_AT, producer_id, epoch, base_sequence)
    CRC.pack_into(buf, CRC_AT, crc32c(memoryview(buf)[CRC_FROM:]))


def stamp_log_append_time(buf: bytearray | memoryview, now_ms: int) -> None:
    """Make `now_ms` the timestamp of every record of the batch that fills `buf`, in place, and renew the checksum.

    As in Kafka base timestamp and records stay: readers take `max_timestamp` for every record.
    """
    _stamp_times(buf, LOG_APPEND_TIME_BIT, now_ms)


def _stamp_times(buf: bytearray | memoryview, bit: int, max_timestamp: int) -> None:
    (attributes,) = _SHORT.unpack_from(buf, _ATTRIBUTES_AT)
    _SHORT.pack_into(buf, _ATTRIBUTES_AT, attributes & KEPT_BITS | bit)
    _LONG.pack_into(buf, MAX_TIMESTAMP_AT, max_timestamp)
    CRC.pack_into(buf, CRC_AT, crc32c(memoryview(buf)[CRC_FROM:]))


def records_of(batch: Buffer, header: BatchHeader | None = None, *, max_bytes: int) -> bytes:
    """Return the records of a batch without compression; CORRUPT_MESSAGE if they are damaged or more than
    `max_bytes`.
    """
    if header is None:
        header = read_header(batch)
    body = memoryview(batch)[HEADER_SIZE : header.size]
    if len(body) + HEADER_SIZE != header.size:
        raise _corrupt(f"record batch of {header.size} bytes is cut off after {len(batch)}")
    return bytes(decompress(header.codec, body, max_bytes))


def iter_records(batch: Buffer, header: BatchHeader | None = None, *, max_bytes: int) -> Iterator[Record]:
    """Yield the records of the batch at the start of `batch`; inflates at most `max_bytes`. The checksum is not looked
    at.

    On LogAppendTime every timestamp is the batch's `max_timestamp`. INVALID_RECORD for a malformed record,
    CORRUPT_MESSAGE for a body that cannot be decompressed.
    """
    if header is None:
        header = read_header(batch)
    body = records_of(batch, header, max_bytes=max_bytes)
    for offset, timestamp, start, end in _walk(body, header):
        key, value, pos = key_and_value(body, start, end)
        headers = tuple(headers_of(body, pos, end)) if body[pos] or pos + 1 != end else ()
        yield Record(offset, timestamp, key, value, headers)


def first_at_or_after(
    batch: Buffer, header: BatchHeader, timestamp: int, *, max_bytes: int, from_offset: int = 0
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record in a batch at or after `timestamp` (ms), from `from_offset` on;
    None if there is none.
    """
    for offset, record_timestamp, _, _ in _walk(records_of(batch, header, max_bytes=max_bytes), header):
        if record_timestamp >= timestamp and offset >= from_offset:
            return offset, record_timestamp
    return None


def max_timestamp_record(
    batch: Buffer, header: BatchHeader, *, max_bytes: int, from_offset: int = 0
) -> tuple[int, int] | None:
    """Return offset and timestamp (ms) of the first record in a batch with the largest timestamp, from `from_offset`
    on; None if there is none.
    """
    best: tuple[int, int] | None = None
    for offset, record_timestamp, _, _ in _walk(records_of(batch, header, max_bytes=max_bytes), header):
        if offset >= from_offset and (best is None or record_timestamp > best[1]):
            best = offset, record_timestamp
    return best


def build(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    codec: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = 0,
    last_offset: int | None = None,
) -> bytearray:
    """Return a batch of `records`, whose offsets ascend and may have gaps. InternalError if they do not ascend.

    `base_offset` is the first record's unless given, `last_offset` the last one's. With `log_append_time` the largest
    timestamp becomes every record's. Without records both offsets have to be given: the empty batch by which compaction
    keeps a producer's last sequence.
    """
    frames = bytearray()
    base = base_offset
    base_timestamp = max_timestamp = NO_TIMESTAMP
    count = last = 0
    for offset, timestamp, key, value, headers in records:
        if not count:
            base = offset if base is None else base
            base_timestamp = max_timestamp = timestamp
            last = base - 1
        if base is None or offset <= last:
            raise InternalError(f"offset {offset} after {last} in a batch")
        content = content_of(key, value, headers)
        put_record(frames, timestamp - base_timestamp, offset - base, content)
        max_timestamp = max(max_timestamp, timestamp)
        last = offset
        count += 1
    if last_offset is None:
        last_offset = last
    if base is None or last_offset < last or (not count and last_offset < base):
        raise InternalError(f"a batch of {count} records from offset {base} to {last_offset}")
    attributes = (
        (codec if count else 0)
        | (LOG_APPEND_TIME_BIT if log_append_time else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
    )
    return seal(
        BatchHeader(
            base, 0, leader_epoch, MAGIC, 0, attributes, last_offset - base,
            base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
        ),
        frames,
    )  # fmt: skip


def build_at(timestamp: int, records: Sequence[tuple[bytes, bytes | None]]) -> tuple[bytearray, BatchHeader]:
    """Build a batch of keys and values that all have the timestamp `timestamp` (ms), from offset 0 on; return it with
    its header. It has the bytes that `build` would give, in less time.

    There has to be a record.
    """
    batch = bytearray(HEADER_SIZE)
    batch += b"".join([key_value_record(delta, key, value) for delta, (key, value) in enumerate(records)])
    length, count = len(batch) - LOG_OVERHEAD, len(records)
    fields = (0, count - 1, timestamp, timestamp, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, count)
    HEADER.pack_into(batch, 0, 0, length, 0, MAGIC, 0, *fields)
    crc = crc32c(memoryview(batch)[CRC_FROM:])
    CRC.pack_into(batch, CRC_AT, crc)
    return batch, BatchHeader(0, length, 0, MAGIC, crc, *fields)


def rewrite(
    batch: Buffer,
    header: BatchHeader,
    keep: Callable[[Record], bool],
    *,
    max_bytes: int,
    delete_horizon: int | None = None,
) -> Buffer | None:
    """Return the batch with only the records that `keep` wants, as Kafka's log cleaner writes it.

    Offsets, last offset, producer fields, record timestamps and codec stay. `batch` itself comes back where nothing
    changes, None if no record is left. `delete_horizon` (ms, now + delete.retention.ms) is set where a tombstone stays
    in a batch that has no horizon yet: it takes the place of `base_timestamp` (KIP-534), and `header.delete_horizon`
    tells.
    """
    body = records_of(batch, header, max_bytes=max_bytes)
    kept: list[tuple[int, int, int, int, int]] = []
    tombstone = False
    position = 0
    for offset, timestamp, start, end in _walk(body, header):
        key, value, _ = key_and_value(body, start, end)
        if keep(Record(offset, timestamp, key, value)):
            kept.append((position, offset, timestamp, start, end))
            tombstone = tombstone or value is None
        position = end
    if not kept:
        return None
    horizon = delete_horizon if tombstone and not header.delete_horizon else None
    if horizon is None and len(kept) == header.record_count:
        return batch
    changed = header._replace(record_count=len(kept), max_timestamp=max(timestamp for _, _, timestamp, _, _ in kept))
    frames = bytearray()
    if horizon is None:
        for position, _, _, _, end in kept:
            frames += body[position:end]
    else:
        changed = changed._replace(base_timestamp=horizon, attributes=header.attributes | DELETE_HORIZON_BIT)
        for _, offset, timestamp, start, end in kept:
            put_record(frames, timestamp - horizon, offset - header.base_offset, body[start:end])
    return seal(changed, frames)


def with_delete_horizon(batch: Buffer, header: BatchHeader, delete_horizon: int) -> bytearray:
    """Return a batch of one record that is not compressed, with a delete horizon (ms) in the place of its base
    timestamp.

    The timestamp of its record stays (KIP-534).
    """
    (record,) = iter_records(batch, header, max_bytes=header.size)
    frames = bytearray()
    content = content_of(record.key, record.value, record.headers)
    put_record(frames, record.timestamp - delete_horizon, record.offset - header.base_offset, content)
    changed = header._replace(base_timestamp=delete_horizon, attributes=header.attributes | DELETE_HORIZON_BIT)
    return seal(changed, frames)


def seal(header: BatchHeader, records: Buffer) -> bytearray:
    """Build a batch of `records` (not compressed yet), in the codec of `header`: length and checksum are filled in."""
    body = compress(header.codec, records)
    batch = bytearray(HEADER_SIZE)
    batch += body
    HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD))
    CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def _walk(body: bytes, header: BatchHeader) -> Iterator[tuple[int, int, int, int]]:
    return frames(
        body,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if header.log_append_time else None,
    )
