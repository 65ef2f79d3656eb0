"""The codecs of record batches: gzip, snappy, lz4 and zstd, each bounded on the way out.

Owns: the codecs' numbers, framing as Java and librdkafka write and read it, the bound against bombs.
Must not know: batches and records.

Why a bound works: cramjam's `decompress_into` never writes past the buffer it is given and says that it was full. So
the output starts at what the data says of itself (a hint that is never trusted beyond the bound) and doubles up to
the bound; nothing is inflated that does not fit, and the work is at most twice that of the last try.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

import cramjam

from kop.errors import ErrorCode, PeerError, raises_without_frames

Buffer: TypeAlias = bytes | bytearray | memoryview


class Codec(IntEnum):
    """A compression type, by Kafka's numbers (`org.apache.kafka.common.record.CompressionType`)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_FASTEST: Final = 1
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3
_LZ4_LEVEL: Final = 1  # the fast compressor, as Kafka's default is; from 3 on it is another, many times slower
# snappy-java's stream: this header, then blocks of 32 KiB, each behind its compressed length.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_INT: Final = struct.Struct(">i")
_FULL: Final = "failed to write whole buffer"  # how cramjam says that the output did not fit
_FIRST_GUESS: Final = 64 * 1024
_WORST_SNAPPY: Final = 32  # a copy of 64 bytes takes 3, so no honest block grows by more than about 21
_LZ4_FRAME: Final = struct.Struct("<IBB")  # magic, FLG, BD
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_CONTENT_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM = 0x04, 0x08, 0x10
_LZ4_INDEPENDENT_V1: Final = 0x60  # independent blocks, version 1
_LZ4_FIXED: Final = 0xE3  # the bits of FLG that have to be so: version, independence, and the reserved ones
_LZ4_STORED: Final = 0x80000000  # the bit of a block's length that says that it is not compressed
_UINT: Final = struct.Struct("<I")
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_MAX_WINDOW_LOG: Final = 27  # what zstd's own decoders accept by default; more is memory asked for by the peer


@raises_without_frames
def decompress(codec: int, data: Buffer, max_bytes: int) -> Buffer:
    """Decompress `data`, to at most `max_bytes`. Several frames or members in a row are one stream.

    `data` itself comes back for NONE. CORRUPT_MESSAGE if it is damaged, cut off, or grows beyond `max_bytes`;
    UNSUPPORTED_COMPRESSION_TYPE for a number that is no codec.
    """
    match codec:
        case Codec.NONE:
            if len(data) > max_bytes:
                raise _bomb(max_bytes)
            return data
        case Codec.SNAPPY:
            return _unsnappy(data, max_bytes)
        case Codec.GZIP:
            return _inflate(cramjam.gzip.decompress_into, data, max_bytes, _gzip_hint(data))
        case Codec.LZ4:
            return _inflate(cramjam.lz4.decompress_into, data, max_bytes, 0)
        case Codec.ZSTD:
            return _inflate(cramjam.zstd.decompress_into, data, max_bytes, _zstd_hint(data))
    raise _no_codec(codec)


def compress(codec: int, data: Buffer, *, fastest: bool = False) -> Buffer:
    """Compress `data` in a form that Java's and librdkafka's consumers read: xerial blocks for snappy, independent
    blocks for lz4. `data` itself comes back for NONE. With `fastest` gzip and zstd compress less, in less time.
    UNSUPPORTED_COMPRESSION_TYPE for a number that is no codec.
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.SNAPPY:
            return _snappy(data)
        case Codec.GZIP:
            return memoryview(cramjam.gzip.compress(data, level=_FASTEST if fastest else _GZIP_LEVEL))
        case Codec.LZ4:
            stream = cramjam.lz4.Compressor(level=_LZ4_LEVEL, block_linked=False, content_checksum=False)
            stream.compress(bytes(data))
            return memoryview(stream.finish())
        case Codec.ZSTD:
            return memoryview(cramjam.zstd.compress(data, level=_FASTEST if fastest else _ZSTD_LEVEL))
    raise _no_codec(codec)


@raises_without_frames
def check_lz4_for_java(data: Buffer) -> None:
    """Raise CORRUPT_MESSAGE if Java's consumers could not read `data`, which `decompress` could.

    Kafka's Lz4BlockInputStream reads one frame whose blocks are independent, without a dictionary.
    """
    try:
        magic, flags, sizes = _LZ4_FRAME.unpack_from(data)
        if magic != _LZ4_MAGIC or flags & _LZ4_FIXED != _LZ4_INDEPENDENT_V1 or sizes & 0x8F:
            raise _damaged(
                f"Java's consumers read no lz4 that begins with {magic:08x} {flags:02x} {sizes:02x}: the blocks of its "
                "frame have to be independent, without a dictionary"
            )
        at = _LZ4_FRAME.size + 1 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
        behind_block = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
        while (length := _UINT.unpack_from(data, at)[0]) != 0:
            at += 4 + (length & ~_LZ4_STORED) + behind_block
    except struct.error:
        raise _damaged("an lz4 frame that is cut off") from None
    at += 8 if flags & _LZ4_CONTENT_CHECKSUM else 4
    if at != len(data):
        raise _damaged(f"Java's consumers read the first lz4 frame only, of {at} bytes where there are {len(data)}")


def _no_codec(codec: int) -> PeerError:
    return PeerError(f"unknown compression type {codec}", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def _bomb(max_bytes: int) -> PeerError:
    return PeerError(f"records decompress to more than {max_bytes} bytes", ErrorCode.CORRUPT_MESSAGE)


def _damaged(reason: object) -> PeerError:
    return PeerError(f"records cannot be decompressed: {reason}", ErrorCode.CORRUPT_MESSAGE)


def _inflate(into: Callable[[Buffer, bytearray], int], data: Buffer, max_bytes: int, hint: int) -> Buffer:
    room = min(hint or max(_FIRST_GUESS, 4 * len(data)), max_bytes)
    while True:
        out = bytearray(room)
        try:
            written = into(data, out)
        except cramjam.DecompressionError as error:
            if str(error) != _FULL:
                raise _damaged(error) from None
        else:
            return out if written == room else memoryview(out)[:written]
        del out  # or the next one would lie beside it, and the error would hold it
        if room >= max_bytes:
            raise _bomb(max_bytes)
        room = min(room * 2, max_bytes)


def _gzip_hint(data: Buffer) -> int:
    """Return the decompressed size of the last gzip member, by its trailer; 0 if deflate cannot have shrunk so much."""
    if len(data) < 18:
        return 0
    size = int.from_bytes(data[-4:], "little")
    return size if size <= 1032 * len(data) else 0


def _zstd_hint(data: Buffer) -> int:
    """Return the decompressed size in the header of the first zstd frame, or 0 if it has none. CORRUPT_MESSAGE for a
    window above zstd's own limit.
    """
    if len(data) < 6 or int.from_bytes(data[:4], "little") != _ZSTD_MAGIC:
        return 0
    descriptor = data[4]
    single_segment = descriptor & 0x20
    at = 5
    if not single_segment:
        if data[5] >> 3 > _ZSTD_MAX_WINDOW_LOG - 10:
            raise _damaged(f"a zstd window of 2^{(data[5] >> 3) + 10} bytes")
        at = 6
    at += (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    size = int.from_bytes(data[at : at + width], "little")
    return size + 256 if width == 2 else size


def _unsnappy(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    if not _xerial_at(view, 0):
        return _unsnappy_block(data, max_bytes)
    blocks: list[Buffer] = []
    room, pos, end = max_bytes, 0, len(data)
    while pos < end:
        if _xerial_at(view, pos):  # snappy-java's streams can be put end to end
            pos += len(_XERIAL_HEADER)
            if pos > end:
                raise _damaged("cut off in the snappy header")
            continue
        if pos + 4 > end:
            raise _damaged("cut off in a snappy block's length")
        (length,) = _INT.unpack_from(view, pos)
        pos += 4
        if not 0 < length <= end - pos:
            raise _damaged(f"a snappy block of {length} bytes where {end - pos} are left")
        block = _unsnappy_block(view[pos : pos + length], room, max_bytes)
        room -= len(block)
        blocks.append(block)
        pos += length
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _xerial_at(view: memoryview, pos: int) -> bool:
    return bytes(view[pos : pos + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _unsnappy_block(data: Buffer, room: int, max_bytes: int = -1) -> Buffer:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > room:
            raise _bomb(room if max_bytes < 0 else max_bytes)
        if size > _WORST_SNAPPY * len(data) + 64:
            raise _damaged(f"{len(data)} bytes of snappy claim to hold {size}")
        out = bytearray(size)
        cramjam.snappy.decompress_raw_into(data, out)
    except cramjam.DecompressionError as error:
        raise _damaged(error) from None
    return out


def _snappy(data: Buffer) -> Buffer:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK])
        out += _INT.pack(len(block))
        out += memoryview(block)
    return out
