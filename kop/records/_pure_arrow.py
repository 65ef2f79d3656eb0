"""Kafka records <-> buffers of Arrow arrays: the specification, in plain Python. `kop._native` is its compiled twin.

Owns: which bytes of a record go into which buffer, and back; where rows are cut into chunks and pieces.
Must not know: the headers of batches, compression, transactions (`kop.records.columns`), pyarrow.

All buffers are laid out as https://arrow.apache.org/docs/format/Columnar.html says, in the machine's byte order:

column      `(null_count, validity, offsets, data)`. `validity` has a bit a row, the lowest bit of a byte first, 1 for
            a row that is not null and 0 behind the last row; it is None where no row is null. `offsets` has an int32
            more than there are rows, and starts with 0. A null takes no bytes of `data`.
chunk       `(rows, next_offset, key, value, offsets, timestamps, timestamp_types, headers)`: two columns, an int64,
            an int64 (microseconds since the epoch) and an int32 (0 CreateTime, 1 LogAppendTime) a row. `next_offset` is
            the one behind the last row.
headers     None where they are not wanted, else `(lists, names, values)`: `lists` is `(null_count, validity, offsets)`
            and null for a record without headers; names and values are columns. A name that is not UTF-8 has U+FFFD
            where it is not, as Java's consumers see it.

What comes in for `encode` may be a slice: each part starts with the place of row 0 in its buffers.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from struct import Struct
from typing import Final, TypeAlias

from kop.errors import ErrorCode, PeerError
from kop.records.partitioning import partition_of
from kop.records.record import Buffer, content_of, frames, headers_of, key_and_value, put_record

Column: TypeAlias = tuple[int, bytes | None, bytes, bytes]
Lists: TypeAlias = tuple[int, bytes | None, bytes]
ChunkParts: TypeAlias = tuple[int, int, Column, Column, bytes, bytes, bytes, tuple[Lists, Column, Column] | None]

ColumnIn: TypeAlias = tuple[int, Buffer | None, Buffer, Buffer]
"""Place of row 0, validity, offsets, data."""
EntriesIn: TypeAlias = tuple[int, Buffer | None]
"""Place of the first entry, validity."""
HeadersIn: TypeAlias = tuple[int, Buffer | None, Buffer, EntriesIn, ColumnIn, ColumnIn]
"""Place of row 0, validity, offsets; entries; their names, their values."""
TimestampsIn: TypeAlias = tuple[int, Buffer | None, Buffer, int]
"""Place of row 0, validity, int64 a row; how many of their units are a millisecond."""
NumbersIn: TypeAlias = tuple[int, Buffer | None, Buffer]
"""Place of row 0, validity, and int32 or int64 a row, as the function says."""

SECTION_WEIGHT: Final = 4
"""No byte of a record's headers takes more bytes than these in a chunk."""

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_RANGE: Final = Struct("=2i")
_INT: Final = Struct("=i")
_LONG: Final = Struct("=q")
DIGEST_BYTES: Final = 16


def _invalid(text: str) -> PeerError:
    return PeerError(text, ErrorCode.INVALID_RECORD)


class _Nulls:
    """Which rows are null."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def validity(self, rows: int) -> tuple[int, bytes | None]:
        if not self.rows:
            return 0, None
        bits = bytearray(b"\xff") * (-(-rows // 8))
        for row in (*self.rows, *range(rows, len(bits) * 8)):
            bits[row >> 3] &= ~(1 << (row & 7))
        return len(self.rows), bytes(bits)


class _Column:
    def __init__(self) -> None:
        self.nulls = _Nulls()
        self.offsets = array("i", [0])
        self.data = bytearray()

    def append(self, item: bytes | None) -> None:
        if item is None:
            self.nulls.rows.append(len(self.offsets) - 1)
        else:
            self.data += item
        self.offsets.append(len(self.data))

    def finished(self) -> Column:
        return *self.nulls.validity(len(self.offsets) - 1), self.offsets.tobytes(), bytes(self.data)


class _Headers:
    def __init__(self) -> None:
        self.nulls = _Nulls()
        self.offsets = array("i", [0])
        self.names = _Column()
        self.values = _Column()

    def finished(self) -> tuple[Lists, Column, Column]:
        lists = *self.nulls.validity(len(self.offsets) - 1), self.offsets.tobytes()
        return lists, self.names.finished(), self.values.finished()


class _Rows:
    def __init__(self, with_headers: bool) -> None:
        self.size = 0
        self.key = _Column()
        self.value = _Column()
        self.offsets = array("q")
        self.timestamps = array("q")
        self.types = array("i")
        self.headers = _Headers() if with_headers else None

    def finished(self) -> ChunkParts:
        return (
            len(self.offsets),
            self.offsets[-1] + 1,
            self.key.finished(),
            self.value.finished(),
            self.offsets.tobytes(),
            self.timestamps.tobytes(),
            self.types.tobytes(),
            None if self.headers is None else self.headers.finished(),
        )


class RowBuilder:
    """Records in, chunks out: of at most `max_rows` rows, or at most `max_bytes` of keys, values and headers.

    A record that is larger than that has a chunk of its own. Headers count SECTION_WEIGHT for each byte that they take
    in the record, and nothing where they are not wanted. After an error no method may be called any more.
    """

    def __init__(self, with_headers: bool, max_rows: int, max_bytes: int) -> None:
        self._with_headers = with_headers
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._rows = _Rows(with_headers)

    def add(
        self,
        body: Buffer,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        from_offset: int,
        until_offset: int,
    ) -> list[ChunkParts]:
        """Take those of the `count` records that fill `body` whose offsets are in the range; the chunks that got full.

        `until_offset` is the first one that is not wanted; all records are walked. `append_time` (ms) takes the place
        of every timestamp. INVALID_RECORD where a record is malformed, or microseconds cannot hold its timestamp.
        """
        full: list[ChunkParts] = []
        body = bytes(body)
        rows = self._rows
        for offset, timestamp, start, end in frames(
            body, count, base_offset, last_offset_delta, base_timestamp, append_time
        ):
            key, value, pos = key_and_value(body, start, end)
            plain = body[pos] == 0 and pos + 1 == end
            if offset > _INT64_MAX:
                raise _invalid(f"a record with the offset {offset}")
            if not from_offset <= offset < until_offset:
                if not plain:
                    deque(headers_of(body, pos, end), maxlen=0)
                continue
            size = len(key or b"") + len(value or b"")
            if self._with_headers:
                size += SECTION_WEIGHT * (end - pos)
            held = len(rows.offsets)
            if held and (held >= self._max_rows or rows.size + size > self._max_bytes):
                full.append(rows.finished())
                rows = self._rows = _Rows(self._with_headers)
            rows.size += size
            rows.key.append(key)
            rows.value.append(value)
            rows.offsets.append(offset)
            micros = timestamp * 1000
            if not _INT64_MIN <= micros <= _INT64_MAX:
                raise _invalid(f"the record at offset {offset} has timestamp {timestamp} ms, beyond microseconds")
            rows.timestamps.append(micros)
            rows.types.append(0 if append_time is None else 1)
            headers = rows.headers
            if headers is None:
                if not plain:
                    deque(headers_of(body, pos, end), maxlen=0)
                continue
            first = len(headers.names.offsets)
            for name, data in headers_of(body, pos, end):
                headers.names.append(name.decode(errors="replace").encode())
                headers.values.append(data)
            if len(headers.names.offsets) == first:
                headers.nulls.rows.append(len(headers.offsets) - 1)
            headers.offsets.append(len(headers.names.offsets) - 1)
        return full

    def add_small(
        self, data: Buffer, pos: int, done: int, end: int, max_inflated: int
    ) -> tuple[list[ChunkParts], int, int]:
        """Take batches from `pos` of a response on, as many as need nothing but their records to be taken.

        The compiled twin takes batches of a few records that are not compressed, no control batches, and right: it
        does for them what `kop.records.columns` does for each batch, and stops before the first other one, or one that
        begins at `end`. This one leaves all to that. Returns the chunks that got full, the position of the next
        batch, and the first offset from `done` on that was not reached.
        """
        return [], pos, done

    def finish(self) -> ChunkParts | None:
        """The chunk of the rows that are left, None for none; the next row begins another one."""
        rows = self._rows
        if not rows.offsets:
            return None
        self._rows = _Rows(self._with_headers)
        return rows.finished()


# Arrow -> Kafka


def encode_rows(
    first_row: int,
    rows: int,
    key: ColumnIn | None,
    value: ColumnIn | None,
    headers: HeadersIn | None,
    timestamps: TimestampsIn | None,
    now: int,
    room: int,
) -> tuple[bytes, int, int, int]:
    """The records of the rows from `first_row` on, as many of the `rows` as fit into `room` bytes.

    Returns their bytes, how many they are, the base timestamp and the largest one (ms). None of them where the first
    row does not fit. A column that is None is null in each row; a row without a timestamp has `now` (ms). A timestamp
    that is too far from the first one to be told as a delta ends the piece, too. INVALID_RECORD where a header or
    its name is null, or a buffer is too short.
    """
    out = bytearray()
    base = latest = -1
    taken = 0
    for row in range(first_row, rows):
        timestamp = _timestamp(timestamps, row, now)
        if not taken:
            base = latest = timestamp
        if not _INT64_MIN <= timestamp - base <= _INT64_MAX:
            break
        content = content_of(_item(key, row), _item(value, row), _headers(headers, row))
        record = bytearray()
        put_record(record, timestamp - base, taken, content)
        if len(out) + len(record) > room:
            break
        out += record
        latest = max(latest, timestamp)
        taken += 1
    return (bytes(out), taken, base, latest) if taken else (b"", 0, -1, -1)


def partitions_of(rows: int, key: ColumnIn, count: int) -> tuple[int, bytes | None, bytes]:
    """The partition, of `count`, that Kafka's default partitioner chooses for each key: null count, validity, int32.

    It is the lower 31 bits of the key's murmur2, modulo the count. A null key has none.
    """
    nulls = _Nulls()
    partitions = array("i")
    for row in range(rows):
        item = _item(key, row)
        if item is None:
            nulls.rows.append(row)
        partitions.append(0 if item is None else partition_of(item, count))
    return *nulls.validity(rows), partitions.tobytes()


def digest_of(
    rows: int,
    topic: ColumnIn | None,
    partition: NumbersIn | None,
    key: ColumnIn | None,
    value: ColumnIn | None,
    headers: HeadersIn | None,
    time: NumbersIn | None,
) -> bytes:
    """The sum, modulo 2**128, of a hash of each row; 16 bytes, big-endian. The order of rows makes no difference.

    The hash is BLAKE2b of 16 bytes (RFC 7693), over a text of numbers, a colon, and the bytes of key, value, and each
    header's name and value. The numbers, with commas between them: topic, partition (int32) and time (int64), or None,
    then the sizes of these bytes in their order, -1 for null. They tell the fields apart, and null from no bytes.
    INVALID_RECORD as in `encode_rows`.
    """
    total = 0
    for row in range(rows):
        found_key, found_value = _item(key, row), _item(value, row)
        fields = [found_key, found_value]
        for header in _headers(headers, row):
            fields += header
        named = _item(topic, row)
        start = "None" if named is None else named.decode(errors="replace")
        sizes = ",".join("-1" if field is None else f"{len(field)}" for field in fields)
        text = f"{start},{_number(partition, row, _INT)},{_number(time, row, _LONG)},{sizes}:"
        hashed = hashlib.blake2b(
            b"".join((text.encode(), *(field or b"" for field in fields))), digest_size=DIGEST_BYTES
        )
        total += int.from_bytes(hashed.digest(), "big")
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "big")


def _is_null(validity: Buffer | None, place: int) -> bool:
    if validity is None:
        return False
    if place >> 3 >= len(validity):
        raise _invalid("a buffer of validity that is too short")
    return not validity[place >> 3] >> (place & 7) & 1


def _range(offsets: Buffer, place: int, size: int | None) -> tuple[int, int]:
    if 4 * (place + 2) > len(offsets):
        raise _invalid("a buffer of offsets that is too short")
    start, end = _RANGE.unpack_from(offsets, 4 * place)
    if not 0 <= start <= end or (size is not None and end > size):
        raise _invalid(f"offsets from {start} to {end}")
    return start, end


def _item(column: ColumnIn | None, row: int) -> bytes | None:
    if column is None:
        return None
    first, validity, offsets, data = column
    if _is_null(validity, first + row):
        return None
    start, end = _range(offsets, first + row, len(data))
    return bytes(data[start:end])


def _headers(headers: HeadersIn | None, row: int) -> list[tuple[bytes, bytes | None]]:
    if headers is None:
        return []
    first, validity, offsets, (first_entry, entries), names, values = headers
    if _is_null(validity, first + row):
        return []
    pairs = []
    for entry in range(*_range(offsets, first + row, None)):
        if _is_null(entries, first_entry + entry):
            raise _invalid(f"row {row} has a header that is null")
        name = _item(names, entry)
        if name is None:
            raise _invalid(f"row {row} has a header without a name")
        pairs.append((name, _item(values, entry)))
    return pairs


def _timestamp(timestamps: TimestampsIn | None, row: int, now: int) -> int:
    if timestamps is None:
        return now
    first, validity, data, divisor = timestamps
    if _is_null(validity, first + row):
        return now
    if 8 * (first + row + 1) > len(data):
        raise _invalid("a buffer of timestamps that is too short")
    value: int = _LONG.unpack_from(data, 8 * (first + row))[0]
    return value // divisor


def _number(numbers: NumbersIn | None, row: int, form: Struct) -> int | None:
    if numbers is None:
        return None
    first, validity, data = numbers
    if _is_null(validity, first + row):
        return None
    if form.size * (first + row + 1) > len(data):
        raise _invalid("a buffer of numbers that is too short")
    value: int = form.unpack_from(data, form.size * (first + row))[0]
    return value
