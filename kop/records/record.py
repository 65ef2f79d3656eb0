"""One record of a RecordBatch v2: length, attributes (0), timestamp delta, offset delta, then its content: key, value,
headers. Lengths, deltas and counts are zigzag varints (KIP-98).

Owns: reading and writing records; every malformed one is a PeerError of INVALID_RECORD.
Must not know: the batch's header, codecs.

Varints of one byte are read in place: most of them are, and calls cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from kop.errors import ErrorCode, PeerError

Buffer: TypeAlias = bytes | bytearray | memoryview

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


class Record(NamedTuple):
    """One record. Header keys are bytes: Kafka does not hold clients to UTF-8, and a rewrite must not change a byte."""

    offset: int
    timestamp: int
    """The record's timestamp in ms since the epoch, -1 for none."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def _invalid(text: str) -> PeerError:
    return PeerError(text, ErrorCode.INVALID_RECORD)


def frames(
    body: bytes, count: int, base_offset: int, last_offset_delta: int, base_timestamp: int, append_time: int | None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield offset and timestamp of each of the `count` records that fill `body`, with the start and the end of its
    content.

    Offsets have to ascend and end within the batch; `append_time`, if it is not None, takes the place of every
    timestamp. INVALID_RECORD if a record is malformed or their number is another, on the way.
    """
    last_delta = -1
    end, size = 0, len(body)
    for index in range(count):
        pos = end
        try:
            byte = body[pos]
            if byte < 0x80:
                length, pos = (byte >> 1) ^ -(byte & 1), pos + 1
            else:
                length, pos = _varint(body, pos)
            end = pos + length
            if length < 0 or end > size:
                raise _invalid(f"record {index} of {count} has {length} bytes where {size - pos} are left")
            byte = body[pos + 1]
            if byte < 0x80:
                timestamp, pos = base_timestamp + ((byte >> 1) ^ -(byte & 1)), pos + 2
            else:
                delta, pos = _varint(body, pos + 1, 64)
                timestamp = base_timestamp + delta
            byte = body[pos]
            if byte < 0x80:
                delta, pos = (byte >> 1) ^ -(byte & 1), pos + 1
            else:
                delta, pos = _varint(body, pos)
        except IndexError:
            raise _invalid(f"the records end after {size} bytes, {count} were announced") from None
        if not last_delta < delta <= last_offset_delta:
            raise _invalid(
                f"record {index} of {count} has offset delta {delta} after {last_delta}, "
                f"the batch ends at {last_offset_delta}"
            )
        if not _INT64_MIN <= timestamp <= _INT64_MAX:
            raise _invalid(f"record {index} of {count} has timestamp {timestamp}")
        last_delta = delta
        yield base_offset + delta, timestamp if append_time is None else append_time, pos, end
    if end != size:
        raise _invalid(f"{size - end} bytes behind the last record")


def key_and_value(body: bytes, pos: int, end: int) -> tuple[bytes | None, bytes | None, int]:
    """Return key and value of a record's content, and the position of its headers. A length of -1 is null.

    INVALID_RECORD if a length is below that or goes beyond the record. Kafka's own code takes those below it for null,
    but not every client does.
    """
    try:
        byte = body[pos]
        if byte < 0x80:
            length, pos = (byte >> 1) ^ -(byte & 1), pos + 1
        else:
            length, pos = _varint(body, pos)
        key = value = None
        if length >= 0:
            start, pos = pos, pos + length
            key = body[start:pos]
        elif length < -1:
            raise _invalid(f"a key of {length} bytes")
        byte = body[pos]
        if byte < 0x80:
            length, pos = (byte >> 1) ^ -(byte & 1), pos + 1
        else:
            length, pos = _varint(body, pos)
        if length >= 0:
            start, pos = pos, pos + length
            value = body[start:pos]
        elif length < -1:
            raise _invalid(f"a value of {length} bytes")
    except IndexError:
        pos = end
    if pos >= end:  # a count of headers has to follow
        raise _invalid("a record's key or value goes beyond it")
    return key, value, pos


def headers_of(body: bytes, pos: int, end: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the headers of a record, one at a time: a peer can put half a million of them into a megabyte.
    INVALID_RECORD, on the way, if they are malformed or do not end at `end`.
    """
    try:
        count, pos = _varint(body, pos)
        if not 0 <= count <= end - pos:
            raise _invalid(f"{count} headers in {end - pos} bytes")
        for _ in range(count):
            length, pos = _varint(body, pos)
            if not 0 <= length <= end - pos:
                raise _invalid(f"a header key of {length} bytes in {end - pos}")
            key = body[pos : pos + length]
            length, pos = _varint(body, pos + length)
            if not -1 <= length <= end - pos:
                raise _invalid(f"a header value of {length} bytes in {end - pos}")
            if length < 0:
                yield key, None
            else:
                yield key, body[pos : pos + length]
                pos += length
    except IndexError:
        pos = -1
    if pos != end:
        raise _invalid("a record's headers do not end where it ends")


def _varint(body: bytes, pos: int, bits: int = 32) -> tuple[int, int]:
    """Return the zigzag varint at a position, and the position behind it. IndexError at the end of `body`,
    INVALID_RECORD if it has more than `bits` bits.
    """
    value = shift = 0
    while True:
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise _invalid(f"a number of more than {bits} bits")
    if value >> bits:
        raise _invalid(f"a number of more than {bits} bits")
    return (value >> 1) ^ -(value & 1), pos


def _put_varint(out: bytearray, number: int) -> None:
    value = number << 1 if number >= 0 else (-number << 1) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _size(number: int) -> bytes:
    """Encode a number that is not negative as a zigzag varint."""
    if number < len(_SIZES):
        return _SIZES[number]
    out = bytearray()
    _put_varint(out, number)
    return bytes(out)


_SIZES: Final = [bytes((2 * n,)) if n < 64 else bytes((2 * n & 0x7F | 0x80, 2 * n >> 7)) for n in range(1 << 10)]
"""The encoded varints of the smallest numbers."""


def put_record(out: bytearray, timestamp_delta: int, offset_delta: int, content: Buffer) -> None:
    """Encode a record and append it to `out`: its length, its timestamp (ms) and offset relative to those of the batch,
    then `content`, which is key, value and headers as `content_of` encodes them.
    """
    frame = bytearray(1)
    _put_varint(frame, timestamp_delta)
    _put_varint(frame, offset_delta)
    _put_varint(out, len(frame) + len(content))
    out += frame
    out += content


def key_value_record(offset_delta: int, key: bytes, value: bytes | None) -> bytes:
    """Return the encoding of a record without headers, at the base timestamp of its batch; the bytes are those of
    `put_record`.
    """
    if value is None:
        content = b"".join((b"\0\0", _size(offset_delta), _size(len(key)), key, b"\1\0"))
    else:
        content = b"".join((b"\0\0", _size(offset_delta), _size(len(key)), key, _size(len(value)), value, b"\0"))
    return _size(len(content)) + content


def content_of(key: bytes | None, value: bytes | None, headers: Sequence[tuple[bytes, bytes | None]]) -> bytearray:
    """Return the encoded content of a record: key, value and headers, which follow the deltas."""
    out = bytearray()
    for item in (key, value):
        _put_bytes(out, item)
    _put_varint(out, len(headers))
    for name, data in headers:
        _put_bytes(out, name)
        _put_bytes(out, data)
    return out


def before_value(key: bytes | None, value_size: int | None, section_size: int) -> bytes:
    """Return the encoded part, before its value, of a record whose timestamp and offset deltas are 0.

    `value_size` is None for a null value: then it is the part before its headers. These take `section_size` bytes, with
    their number.
    """
    content = bytearray(3)  # attributes, both deltas
    _put_bytes(content, key)
    _put_varint(content, -1 if value_size is None else value_size)
    out = bytearray()
    _put_varint(out, len(content) + (value_size or 0) + section_size)
    return bytes(out + content)


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # -1
    else:
        _put_varint(out, len(data))
        out += data
