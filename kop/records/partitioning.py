"""The partition of a key, by the rule of Kafka's own producer.

Owns: that rule.
Must not know: topics, records without a key.
"""

from __future__ import annotations

import struct

_WORD = struct.Struct("<I")


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a record with `key` in a topic with so many partitions."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """Return the hash that Kafka's `Utils.murmur2` gives, of 32 bits without a sign."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    hashed = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for (part,) in _WORD.iter_unpack(data[:whole]):
        word = part * factor & mask
        hashed = (hashed * factor ^ (word ^ word >> 24) * factor) & mask
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * factor & mask
    hashed = (hashed ^ hashed >> 13) * factor & mask
    return hashed ^ hashed >> 15
