"""Compression for kafka-python's clients through cramjam, so that no codec needs a package of its own.

Owns: the four functions that kafka-python takes from optional packages (python-snappy, lz4, zstandard).
Must not know: anything of kop. It changes kafka-python's modules for the whole process: commands only.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace

import cramjam

# Frame head: magic, version 1 with independent blocks and no checksums, blocks of 64 KiB, checksum of the head.
# cramjam's own frames link their blocks, and Kafka's Java client refuses linked blocks.
_LZ4_HEAD = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 65_536
_LZ4_STORED = 1 << 31


def lz4_encode(payload: bytes | memoryview) -> bytes:
    """Compress to an LZ4 frame that every Kafka client can read."""
    out = [_LZ4_HEAD]
    view = memoryview(payload)
    for start in range(0, len(view), _LZ4_BLOCK):
        block = bytes(view[start : start + _LZ4_BLOCK])
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            out += (struct.pack("<I", len(packed)), packed)
        else:
            out += (struct.pack("<I", len(block) | _LZ4_STORED), block)
    out.append(bytes(4))
    return b"".join(out)


def lz4_decode(payload: bytes | memoryview) -> bytes:
    """Decompress an LZ4 frame."""
    return bytes(cramjam.lz4.decompress(bytes(payload)))


def zstd_encode(payload: bytes | memoryview) -> bytes:
    """Compress to a zstd frame."""
    return bytes(cramjam.zstd.compress(bytes(payload)))


def zstd_decode(payload: bytes | memoryview) -> bytes:
    """Decompress zstd frames."""
    return bytes(cramjam.zstd.decompress(bytes(payload)))


def install() -> None:
    """Give kafka-python every codec. Cheap to call again."""
    from kafka import codec
    from kafka.record import default_records

    codec.snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(bytes(data))),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(bytes(data))),
    )
    codec.lz4 = codec.zstd = cramjam  # only asked whether it is there
    default_records.lz4_encode, default_records.lz4_decode = lz4_encode, lz4_decode
    default_records.zstd_encode, default_records.zstd_decode = zstd_encode, zstd_decode
