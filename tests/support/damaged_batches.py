"""Record batches that no consumer gets past, though their lengths and checksums are right.

Owns: records by hand, the batch around them, and the table of what can be wrong with records, by name.
Must not know: who refuses them.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from kop.records.batch import BatchHeader
from kop.records.compression import Codec, compress

LAYOUT = struct.Struct(">qiibIhiqqqhii")
T = 1_700_000_000_000
COUNT_MAX = 2**31 - 1


def varint(number: int) -> bytes:
    """Zigzag, of any size."""
    value = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(*parts: int | bytes, length: int | None = None) -> bytes:
    """Attributes 0 and then the parts, numbers as varints, behind their length."""
    body = b"\0" + b"".join(varint(part) if isinstance(part, int) else part for part in parts)
    return varint(len(body) if length is None else length) + body


def sealed(body: bytes, count: int = 1, codec: int = 0, base_timestamp: int = T) -> bytes:
    """A batch of these records: its length and checksum fit."""
    return around(bytes(compress(codec, body)), count, codec, base_timestamp)


def around(packed: bytes, count: int, attributes: int, base_timestamp: int = T, **fields: int) -> bytes:
    """A batch around bytes that are compressed already, or claim to be; `fields` are others of its header."""
    header = BatchHeader(
        0, len(packed) + 49, 0, 2, 0, attributes, count - 1, base_timestamp, T, -1, -1, -1, count
    )._replace(**fields)
    out = bytearray(LAYOUT.pack(*header)) + packed
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


PLAIN = record(0, 0, -1, 1, b"v", 0)
"""A good record, the first of a batch."""
RECORDS: dict[str, tuple[bytes, int]] = {
    "no records": (b"", 1),
    "garbage": (b"\xde\xad\xbe\xef" * 20, 1),
    "one record too few": (PLAIN, 2),
    "one record too many": (PLAIN + record(0, 1, -1, 1, b"v", 0), 1),
    "bytes behind the records": (PLAIN + b"\0\0\0", 1),
    "a count of 2^31-1": (PLAIN, COUNT_MAX),
    "offset delta 1 first": (record(0, 1, -1, 1, b"v", 0), 1),
    "offset delta -1": (record(0, -1, -1, 1, b"v", 0), 1),
    "offset deltas 0 and 0": (PLAIN * 2, 2),
    "offset deltas 0 and 2": (PLAIN + record(0, 2, -1, 1, b"v", 0), 2),
    "offset deltas 1 and 0": (record(0, 1, -1, 1, b"v", 0) + PLAIN, 2),
    "record cut off": (PLAIN[:-1], 1),
    "record length -1": (record(0, 0, -1, 1, b"v", 0, length=-1), 1),
    "record length one too small": (record(0, 0, -1, 1, b"v", 0, length=len(PLAIN) - 2), 1),
    "record length one too large": (record(0, 0, -1, 1, b"v", 0, length=len(PLAIN)), 1),
    "record length 2^31-1": (record(0, 0, -1, 1, b"v", 0, length=2**31 - 1), 1),
    "varint of 33 bits": (record(0, 0, 2**32, 1, b"v", 0), 1),
    "endless varint": (b"\x80" * 100, 1),
    "timestamp beyond 64 bits": (record(2**63 - 1, 0, -1, 1, b"v", 0), 1),
    "key longer than the record": (record(0, 0, 99, b"k", -1, 0), 1),
    "key length -2": (record(0, 0, -2, 1, b"v", 0), 1),
    "key length -2^31": (record(0, 0, -(2**31), 1, b"v", 0), 1),
    "value longer than the record": (record(0, 0, -1, 99, b"v", 0), 1),
    "value length -2": (record(0, 0, -1, -2, 0), 1),
    "no count of headers": (record(0, 0, -1, 1, b"v"), 1),
    "header count -1": (record(0, 0, -1, -1, -1), 1),
    "header count too large": (record(0, 0, -1, -1, 9), 1),
    "header key null": (record(0, 0, -1, -1, 1, -1, -1), 1),
    "header key too long": (record(0, 0, -1, -1, 1, 9, b"k", -1), 1),
    "header value length -2": (record(0, 0, -1, -1, 1, 1, b"k", -2), 1),
    "header value too long": (record(0, 0, -1, -1, 1, 1, b"k", 9, b"v"), 1),
    "bytes behind the headers": (record(0, 0, -1, -1, 0, b"\0"), 1),
}
"""The records without compression, and how many the batch says that they are."""


def batches(codec: Codec) -> dict[str, bytes]:
    """Every damage in one codec; each is to be refused as INVALID_RECORD."""
    damaged = {name: sealed(body, count, codec) for name, (body, count) in RECORDS.items()}
    if codec is Codec.NONE:
        return damaged
    packed = bytes(compress(codec, PLAIN))
    long = bytes(compress(codec, record(0, 0, -1, 5000, bytes(range(250)) * 20, 0)))
    damaged |= {
        "bytes behind the compressed data": around(packed + b"\x01\x02\x03\x04\x05\x06\x07\x08", 1, codec),
        "compressed data cut off": around(long[: len(long) * 2 // 3], 1, codec),
        "nothing": around(b"", 1, codec),
        "garbage instead of compressed data": around(b"\xde\xad\xbe\xef" * 20, 1, codec),
        "records that are not compressed": around(PLAIN, 1, codec),
        "another codec's data": around(bytes(compress(Codec(codec % 4 + 1), PLAIN)), 1, codec),
    }
    return damaged


def bomb(codec: Codec, size: int) -> bytes:
    """A batch of one record with `size` zeros."""
    return sealed(record(0, 0, 1, b"k", size, bytes(size), 0), 1, codec)
