"""The layout of coordinators' records: primitives of Kafka's two encodings behind a number of two bytes.

Owns: reading them with every length checked, and writing them.
Must not know: which records there are.

A key begins with two bytes that say its kind, a value with two that say its version. The flexible encoding (KIP-482)
has compact lengths and tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from kop.errors import StateRecordError
from kop.varints import varint_bytes
from kop.wire.primitives import encode_tags

Buffer: TypeAlias = bytes | bytearray | memoryview

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
LONGEST_STRING: Final = 32_767
"""The most bytes of a string in the older, not flexible, encoding."""


def short_string(text: str) -> bytes:
    """Return a string of the older encoding, with its length in two bytes before it. StateRecordError if it is longer
    than 32,767 bytes.
    """
    raw = text.encode()
    if len(raw) > LONGEST_STRING:
        raise StateRecordError(f"a string of {len(raw)} bytes does not fit")
    return _INT16.pack(len(raw)) + raw


class RecordReader:
    """A reader of primitives in a coordinator's record. Bytes that end too early or make no sense are a
    StateRecordError.
    """

    __slots__ = ("data", "flexible", "pos")

    def __init__(self, data: Buffer) -> None:
        self.data = bytes(data)
        self.pos = 0
        self.flexible = False

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes of the record, and go on behind them. StateRecordError if there are fewer."""
        end = self.pos + size
        if size < 0 or end > len(self.data):
            raise StateRecordError(f"a field of {size} bytes at {self.pos} in a record of {len(self.data)} bytes")
        part = self.data[self.pos : end]
        self.pos = end
        return part

    def int16(self) -> int:
        """Return the next field, a number of 16 bits with a sign, and go on behind it."""
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        """Return the next field, a number of 32 bits with a sign, and go on behind it."""
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        """Return the next field, a number of 64 bits with a sign, and go on behind it."""
        return int.from_bytes(self.take(8), "big", signed=True)

    def uvarint(self) -> int:
        """Return the next field, a varint without a sign, and go on behind it. StateRecordError if it has more than
        32 bits.
        """
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise StateRecordError("a varint of more than 32 bits")

    def nullable_string(self) -> str | None:
        """Return the next field, a string, and go on behind it; None for null. StateRecordError if it is not UTF-8."""
        length = self.uvarint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise StateRecordError(f"a string is not UTF-8: {error}") from None

    def string(self) -> str:
        """Return the next field, a string, and go on behind it. StateRecordError for null."""
        text = self.nullable_string()
        if text is None:
            raise StateRecordError("a string is null")
        return text

    def blob(self) -> bytes:
        """Return the next field, bytes with their length before them, and go on behind it. StateRecordError
        for null.
        """
        return self.take(self.uvarint() - 1 if self.flexible else self.int32())

    def count(self) -> int:
        """Return the number of elements of the list that follows. StateRecordError if the list is null, or there are
        fewer bytes than elements.
        """
        count = self.nullable_count()
        if count < 0:
            raise StateRecordError("a list is null")
        return count

    def nullable_count(self) -> int:
        """Return the number of elements of the list that follows; -1 for a list that is null. StateRecordError if there
        are fewer bytes than elements.
        """
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if not -1 <= count <= len(self.data) - self.pos:
            raise StateRecordError(f"a list of {count} elements in {len(self.data) - self.pos} bytes")
        return count

    def tags(self) -> dict[int, bytes]:
        """Read a section of tagged fields; return the bytes of each by its number. Outside the flexible encoding there
        is none, and nothing is read.
        """
        fields: dict[int, bytes] = {}
        if self.flexible:
            for _ in range(self.uvarint()):
                tag = self.uvarint()
                fields[tag] = self.take(self.uvarint())
        return fields


class RecordWriter:
    """A writer of primitives in one of Kafka's two encodings, for a coordinator's record."""

    __slots__ = ("flexible", "out")

    def __init__(self, prefix: int, *, flexible: bool = False) -> None:
        self.out = bytearray(_INT16.pack(prefix))
        self.flexible = flexible

    def int16(self, value: int) -> None:
        """Write a number of 16 bits with a sign."""
        self.out += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Write a number of 32 bits with a sign."""
        self.out += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """Write a number of 64 bits with a sign."""
        self.out += _INT64.pack(value)

    def uvarint(self, value: int) -> None:
        """Write a number without a sign as a varint."""
        self.out += varint_bytes(value)

    def string(self, text: str | None) -> None:
        """Write a string, or null. StateRecordError for one of more than 32,767 bytes outside the flexible encoding."""
        if text is None:
            self.out += b"\0" if self.flexible else b"\xff\xff"
            return
        if not self.flexible:
            self.out += short_string(text)
            return
        raw = text.encode()
        self.uvarint(len(raw) + 1)
        self.out += raw

    def blob(self, raw: Buffer) -> None:
        """Write a field of bytes with its length before it."""
        if self.flexible:
            self.uvarint(len(raw) + 1)
        else:
            self.out += _INT32.pack(len(raw))
        self.out += raw

    def count(self, count: int) -> None:
        """Write the number of elements of the list that follows; -1 for a list that is null."""
        if self.flexible:
            self.uvarint(count + 1)
        else:
            self.out += _INT32.pack(count)

    def tags(self, fields: Mapping[int, bytes] = MappingProxyType({})) -> None:
        """Write a section of tagged fields, in the order of their numbers; nothing outside the flexible encoding."""
        if self.flexible:
            self.out += encode_tags(fields)
