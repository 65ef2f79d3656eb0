"""Primitive types of the protocol, for the paths written by hand and for the compiled decoders.

Owns: bounds. Every reader checks a length against the bytes that are left before it makes anything of it.
Must not know: messages.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kop.errors import FrameError
from kop.varints import varint_bytes

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

NO_TAGS = b"\0"
"""The encoding of an empty section of tagged fields."""
OWN_TAGS = 10_000
"""The first number for tagged fields of kop's own; Kafka uses lower ones."""
MOST_ELEMENTS = 1 << 18
"""The most elements that the arrays of one message may have, all together. Each becomes an object of some 200 bytes,
and a frame of 16 MiB could hold millions; twice the partitions that a gateway has by default are enough for any client.
"""


class DecodeError(FrameError):
    """An error for bytes that are not a message of the API and version that their header names."""


def uvarint(data: memoryview, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes; return the value and the position after it. DecodeError if it has
    more than 32 bits.
    """
    byte = data[pos]
    if byte < 0x80:
        return byte, pos + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        pos += 1
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, pos + 1
    raise DecodeError("a varint of more than 32 bits")


def skip_tags(data: memoryview, pos: int, end: int) -> int:
    """Step over a section of tagged fields; return the position after it. DecodeError if it reaches beyond `end`."""
    count, pos = uvarint(data, pos)
    for _ in range(count):
        _, pos = uvarint(data, pos)
        size, pos = uvarint(data, pos)
        pos += size
        if pos > end:
            raise DecodeError("a tagged field reaches beyond the frame")
    return pos


def read_tags(data: memoryview, pos: int, end: int) -> tuple[dict[int, bytes], int]:
    """Read a section of tagged fields; return the bytes of each by its number, and the position after it. DecodeError
    if it reaches beyond `end`.
    """
    tags: dict[int, bytes] = {}
    count, pos = uvarint(data, pos)
    for _ in range(count):
        tag, pos = uvarint(data, pos)
        size, pos = uvarint(data, pos)
        if pos + size > end:
            raise DecodeError("a tagged field reaches beyond the frame")
        tags[tag] = bytes(data[pos : pos + size])
        pos += size
    return tags, pos


def compact_string(data: memoryview, pos: int, length: int, end: int) -> tuple[str | None, int]:
    """Read a compact string at `pos`, before which `length` was read: its bytes plus one, or 0 for null. Return it, or
    None, and the position after it. DecodeError if it reaches beyond `end`.
    """
    if length == 0:
        return None, pos
    stop = pos + length - 1
    if stop > end:
        raise DecodeError("a string reaches beyond the frame")
    return str(data[pos:stop], "utf-8"), stop


def nullable_string(data: memoryview, pos: int, end: int) -> tuple[str | None, int]:
    """Read a string with an int16 length, null included; return it and the position after it. DecodeError if it reaches
    beyond `end`.
    """
    (length,) = _INT16.unpack_from(data, pos)
    pos += 2
    if length < 0:
        if length != -1:
            raise DecodeError("a string has a negative length")
        return None, pos
    if pos + length > end:
        raise DecodeError("a string reaches beyond the frame")
    return str(data[pos : pos + length], "utf-8"), pos + length


def compact_count(data: memoryview, pos: int, end: int) -> tuple[int, int]:
    """Read the count of a compact array; return it and the position after it. DecodeError if the array is null, or
    there are fewer bytes than elements up to `end`.
    """
    count, pos = uvarint(data, pos)
    if count == 0:
        raise DecodeError("an array is null")
    if count - 1 > end - pos:
        raise DecodeError("an array has more elements than bytes")
    return count - 1, pos


def old_count(data: memoryview, pos: int, end: int) -> tuple[int, int]:
    """Read the int32 count of an array; return it and the position after it. DecodeError if the array is null, or there
    are fewer bytes than elements up to `end`.
    """
    (count,) = _INT32.unpack_from(data, pos)
    pos += 4
    if count < 0:
        raise DecodeError("an array is null or has a negative size")
    if count > end - pos:
        raise DecodeError("an array has more elements than bytes")
    return count, pos


def too_many() -> DecodeError:
    """Return the error for a message whose arrays have more than 262,144 elements together."""
    return DecodeError(f"more than {MOST_ELEMENTS} elements in one message")


def encode_tags(tags: Mapping[int, bytes]) -> bytes:
    """Encode a section of tagged fields, in the order of their tags."""
    out = bytearray(varint_bytes(len(tags)))
    for tag, raw in sorted(tags.items()):
        out += varint_bytes(tag) + varint_bytes(len(raw)) + raw
    return bytes(out)


def encode_nullable(text: str | None, flexible: bool) -> bytes:
    """Encode a nullable string, cut at 32,767 bytes: with a varint before it if `flexible`, else with an int16."""
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    raw = text.encode()
    if len(raw) > 32767:
        raw = raw[:32767].decode(errors="ignore").encode()  # not within a character
    return (varint_bytes(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw
