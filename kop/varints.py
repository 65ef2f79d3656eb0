"""Unsigned varints, as Kafka's flexible versions, protobuf and Avro have them: seven bits a byte, the lowest first.

Owns: how a number is written. Readers have limits and errors of their own, and are beside what they read; so are the
writers of records, which append to what they have.
Must not know: what the numbers are.
"""

from __future__ import annotations

from typing import Final

_ONE_BYTE: Final = [bytes((value,)) for value in range(128)]


def varint_bytes(value: int) -> bytes:
    """Encode a number as an unsigned varint. ValueError for a negative one."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
