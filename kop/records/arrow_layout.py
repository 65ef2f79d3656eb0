"""The layout of rows in the buffers of Arrow arrays: lists into buffers, single items out of buffers. Without pyarrow.

Owns: which buffers a column and a chunk have, what is in them, and that no buffer is read beyond its end.
Must not know: records (`kop.records._pure_arrow`), batches, pyarrow (`kop.records.arrow`).

All buffers are laid out as https://arrow.apache.org/docs/format/Columnar.html says, in the machine's byte order:

column      `(null_count, validity, offsets, data)`. `validity` has a bit a row, the lowest bit of a byte first, 1 for
            a row that is not null and 0 behind the last row; it is None if no row is null. `offsets` has an int32
            more than there are rows, and starts with 0. A null takes no bytes of `data`.
chunk       `(rows, next_offset, key, value, offsets, timestamps, timestamp_types, headers)`: two columns, an int64,
            an int64 (microseconds since the epoch) and an int32 (0 CreateTime, 1 LogAppendTime) a row. `next_offset` is
            the one behind the last row.
headers     None if they are not wanted, else `(lists, names, values)`: `lists` is `(null_count, validity, offsets)`
            and null for a record without headers; names and values are columns. A name that is not UTF-8 has U+FFFD
            where it is not, as Java's consumers see it.

What comes in may be a slice: each part starts with the place of row 0 in its buffers, then has its validity.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import TypeAlias

from kop.errors import ErrorCode, PeerError
from kop.records.record import Buffer

Column: TypeAlias = tuple[int, bytes | None, bytes, bytes]
Lists: TypeAlias = tuple[int, bytes | None, bytes]
ChunkParts: TypeAlias = tuple[int, int, Column, Column, bytes, bytes, bytes, tuple[Lists, Column, Column] | None]

ColumnIn: TypeAlias = tuple[int, Buffer | None, Buffer, Buffer]
EntriesIn: TypeAlias = tuple[int, Buffer | None]
HeadersIn: TypeAlias = tuple[int, Buffer | None, Buffer, EntriesIn, ColumnIn, ColumnIn]
"""The type of headers that come in: lists with their offsets, the entries of all lists, names and values of the
entries.
"""
TimestampsIn: TypeAlias = tuple[int, Buffer | None, Buffer, int]
"""The type of timestamps that come in: an int64 a row, and the number of their units in a millisecond."""
NumbersIn: TypeAlias = tuple[int, Buffer | None, Buffer]
"""The type of numbers that come in: an int32 or int64 a row, as the function that takes them says."""


def validity_of(valid: Sequence[bool]) -> tuple[int, bytes | None]:
    """Return the number of nulls among the items, and the validity bits; None for the bits if no item is null."""
    if all(valid):
        return 0, None
    bits = int("".join("01"[is_valid] for is_valid in reversed(valid)), 2)
    return valid.count(False), bits.to_bytes(-(-len(valid) // 8), "little")


def offsets_of(sizes: Iterable[int]) -> bytes:
    """Return the positions at which items of these sizes begin, and the end of the last one, as an offsets buffer.
    INVALID_RECORD if they take 2 GiB and more.
    """
    try:
        return array("i", accumulate(sizes, initial=0)).tobytes()
    except OverflowError:
        raise invalid("2 GiB and more in a column") from None


def repeated_offsets(runs: Sequence[tuple[tuple[int, ...], int]]) -> bytes:
    """Return what `offsets_of` does for sizes in runs: sizes, and how many times they repeat."""
    return offsets_of(chain.from_iterable(sizes * times for sizes, times in runs))


def column_of(items: Sequence[bytes | None]) -> Column:
    """Return the Arrow buffers of a column with these items. INVALID_RECORD if they take 2 GiB and more."""
    present = [item or b"" for item in items]
    return *validity_of([item is not None for item in items]), offsets_of(map(len, present)), b"".join(present)


def items_of(made: Column) -> list[bytes | None]:
    """Return the items of a column out of its Arrow buffers, which are whole."""
    nulls, validity, places, data = made
    present = [data[start:end] for start, end in pairwise(memoryview(places).cast("i").tolist())]
    if not nulls or validity is None:
        return list(present)
    bits = int.from_bytes(validity, "little")
    return [item if bits >> row & 1 else None for row, item in enumerate(present)]


def item_of(items: ColumnIn | None, row: int) -> bytes | None:
    """Return the item in a row of a column; None if the column is None. INVALID_RECORD if a buffer is too short."""
    if items is None or _is_null(items[1], items[0] + row):
        return None
    first, _, places, data = items
    start, end = _range(places, first + row, len(data))
    return bytes(data[start:end])


def headers_in(headers: HeadersIn | None, row: int) -> list[tuple[bytes, bytes | None]]:
    """Return the headers of a row. INVALID_RECORD if a buffer is too short, or a header or its name is null."""
    if headers is None or _is_null(headers[1], headers[0] + row):
        return []
    first, _, places, (first_entry, entries), names, values = headers
    pairs = []
    for entry in range(*_range(places, first + row, 2**31)):
        if _is_null(entries, first_entry + entry) or (name := item_of(names, entry)) is None:
            raise invalid(f"row {row} has a header that is null, or has no name")
        pairs.append((name, item_of(values, entry)))
    return pairs


def number_of(numbers: NumbersIn | None, row: int, kind: str) -> int | None:
    """Return the number in a row, None if it is null or the column is None; `kind` is "i" (int32) or "q" (int64).
    INVALID_RECORD if a buffer is too short.
    """
    if numbers is None or _is_null(numbers[1], numbers[0] + row):
        return None
    return _unpack(kind, 1, numbers[2], numbers[0] + row)[0]


def _range(places: Buffer, place: int, size: int) -> tuple[int, int]:
    start, end = _unpack("i", 2, places, place)
    if not 0 <= start <= end <= size:
        raise invalid(f"offsets from {start} to {end}")
    return start, end


def _unpack(kind: str, count: int, data: Buffer, place: int) -> tuple[int, ...]:
    size = 4 if kind == "i" else 8
    if size * (place + count) > len(data):
        raise invalid("a buffer that is too short")
    return struct.unpack_from(f"={count}{kind}", data, size * place)


def _is_null(bits: Buffer | None, place: int) -> bool:
    if bits is not None and place >> 3 >= len(bits):
        raise invalid("a buffer of validity that is too short")
    return bits is not None and not bits[place >> 3] >> (place & 7) & 1


def invalid(text: str) -> PeerError:
    """Return the error for a malformed record or buffer."""
    return PeerError(text, ErrorCode.INVALID_RECORD)
