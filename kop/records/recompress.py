"""A produced batch in another codec (compression.type of a topic).

Owns: which bytes of a batch change with its codec.
Must not know: topics, requests.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from kop.records.batch import CODEC_MASK, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, Buffer, read_header
from kop.records.compression import compress

_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_CRC = struct.Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21


def recompress(batch: Buffer, header: BatchHeader, codec: int, records: Buffer) -> tuple[Buffer, BatchHeader]:
    """The batch with `records`, which are its own without compression, in `codec`; and its header.

    Nothing else changes but length and checksum.
    """
    changed = bytearray(memoryview(batch)[:HEADER_SIZE])
    changed += compress(codec, records)
    _LENGTH.pack_into(changed, _LENGTH_AT, len(changed) - LOG_OVERHEAD)
    _ATTRIBUTES.pack_into(changed, _ATTRIBUTES_AT, header.attributes & ~CODEC_MASK | codec)
    _CRC.pack_into(changed, _CRC_AT, crc32c(memoryview(changed)[_ATTRIBUTES_AT:]))
    return changed, read_header(changed)
