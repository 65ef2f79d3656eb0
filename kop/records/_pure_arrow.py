"""Kafka records <-> buffers of Arrow arrays: the specification, in plain Python. `kop._native` is its compiled twin.

Owns: which parts of a record are a row, and back; where rows are cut into chunks and pieces; the digest of rows.
Must not know: the layout of buffers (`arrow_layout`), headers of batches, compression, transactions (`columns`).
"""

from __future__ import annotations

from array import array
from collections import deque
from hashlib import blake2b
from typing import Final

from kop.records import arrow_layout as layout
from kop.records.arrow_layout import ChunkParts, ColumnIn, HeadersIn, NumbersIn, TimestampsIn
from kop.records.partitioning import partition_of
from kop.records.record import Buffer, content_of, frames, headers_of, key_and_value, put_record

SECTION_WEIGHT: Final = 4
"""The bytes of a chunk, at most, that one byte of a record's headers takes."""
DIGEST_BYTES: Final = 16
_MIN, _MAX = -(2**63), 2**63 - 1
column_of, items_of, repeated_offsets = layout.column_of, layout.items_of, layout.repeated_offsets


class RowBuilder:
    """Records in, chunks out: of at most `max_rows` rows, or at most `max_bytes` of keys, values and headers.

    A record that is larger than that has a chunk of its own. Headers count SECTION_WEIGHT for each byte that they take
    in the record, and nothing where they are not wanted. After an error no method may be called any more.
    """

    def __init__(self, with_headers: bool, max_rows: int, max_bytes: int) -> None:
        self._with_headers, self._max_rows, self._max_bytes = with_headers, max_rows, max_bytes
        self._size = 0
        self._rows: list[tuple[bytes | None, bytes | None, int, int, int, int]] = []
        """The rows of the next chunk: key, value, offset, microseconds, kind of the timestamp, number of headers."""
        self._names: list[bytes] = []
        self._contents: list[bytes | None] = []

    def add(
        self, body: Buffer, count: int, base_offset: int, last_offset_delta: int, base_timestamp: int,
        append_time: int | None, from_offset: int, until_offset: int,
    ) -> list[ChunkParts]:  # fmt: skip
        """Add those of the `count` records that fill `body` whose offsets are in the range; return the chunks that
        became full. `until_offset` is the first one that is not wanted; all records are checked. `append_time` (ms)
        takes the place of every timestamp. INVALID_RECORD if a record is malformed, or microseconds cannot hold its
        timestamp.
        """
        full: list[ChunkParts | None] = []
        body, kind = bytes(body), 0 if append_time is None else 1
        records = frames(body, count, base_offset, last_offset_delta, base_timestamp, append_time)
        for offset, timestamp, start, end in records:
            key, value, pos = key_and_value(body, start, end)
            if offset > _MAX:
                raise layout.invalid(f"a record with the offset {offset}")
            headers = () if body[pos] == 0 and pos + 1 == end else headers_of(body, pos, end)
            wanted = from_offset <= offset < until_offset
            if not (wanted and self._with_headers):
                deque(headers, maxlen=0)  # it may be malformed
            if not wanted:
                continue
            size = len(key or b"") + len(value or b"") + (SECTION_WEIGHT * (end - pos) if self._with_headers else 0)
            if self._rows and (len(self._rows) >= self._max_rows or self._size + size > self._max_bytes):
                full.append(self.finish())
            if not _MIN <= timestamp * 1000 <= _MAX:
                raise layout.invalid(f"the record at offset {offset} has timestamp {timestamp} ms, beyond microseconds")
            before = len(self._names)
            for name, content in headers if self._with_headers else ():
                self._names.append(name.decode(errors="replace").encode())
                self._contents.append(content)
            self._size += size
            self._rows.append((key, value, offset, timestamp * 1000, kind, len(self._names) - before))
        return [chunk for chunk in full if chunk is not None]

    def add_small(self, data: Buffer, pos: int, done: int, end: int, most: int) -> tuple[list[ChunkParts], int, int]:
        """Add small batches of `data` from `pos` on; return the chunks that became full, the next position, and the
        first offset not reached. The offset `done` was reached before; records from `end` on are not wanted. This
        twin adds none: it leaves all batches to `kop.records.columns`, whom the compiled twin spares small ones.
        """
        return [], pos, done

    def finish(self) -> ChunkParts | None:
        """Return the chunk of the rows that are left, None if there are none; the next row begins another chunk."""
        if not self._rows:
            return None
        keys, values, offsets, micros, kinds, counts = zip(*self._rows, strict=True)
        lists = *layout.validity_of([count > 0 for count in counts]), layout.offsets_of(counts)
        headers = (lists, column_of(self._names), column_of(self._contents)) if self._with_headers else None
        self._size, self._rows, self._names, self._contents = 0, [], [], []
        numbers = array("q", offsets).tobytes(), array("q", micros).tobytes(), array("i", kinds).tobytes()
        return len(offsets), offsets[-1] + 1, column_of(keys), column_of(values), *numbers, headers


def encode_rows(
    first_row: int, rows: int, key: ColumnIn | None, value: ColumnIn | None, headers: HeadersIn | None,
    timestamps: TimestampsIn | None, now: int, room: int,
) -> tuple[bytes, int, int, int]:  # fmt: skip
    """Encode the rows from `first_row` on as Kafka records, as many of the `rows` as fit into `room` bytes.

    Returns their bytes, their number, the base timestamp and the largest one (ms). None of them if the first row does
    not fit. A row without a timestamp has `now` (ms). A timestamp that is too far from the first one for a delta ends
    the piece, too. INVALID_RECORD if a header or its name is null, or a buffer is too short.
    """
    out, times = bytearray(), array("q")
    for row in range(first_row, rows):
        told = None if timestamps is None else layout.number_of(timestamps[:3], row, "q")
        time = now if timestamps is None or told is None else told // timestamps[3]
        if not _MIN <= (delta := time - (times[0] if times else time)) <= _MAX:
            break
        record, pairs = bytearray(), layout.headers_in(headers, row)
        put_record(record, delta, len(times), content_of(layout.item_of(key, row), layout.item_of(value, row), pairs))
        if len(out) + len(record) > room:
            break
        out += record
        times.append(time)
    return (bytes(out), len(times), times[0], max(times)) if times else (b"", 0, -1, -1)


def partitions_of(rows: int, key: ColumnIn, count: int) -> tuple[int, bytes | None, bytes]:
    """Return for each key the partition, of `count`, that Kafka's default partitioner chooses, as a column: null count,
    validity, int32. It is the lower 31 bits of the key's murmur2, modulo the count. A null key has none.
    """
    keys = [layout.item_of(key, row) for row in range(rows)]
    numbers = array("i", [0 if item is None else partition_of(item, count) for item in keys])
    return *layout.validity_of([item is not None for item in keys]), numbers.tobytes()


def digest_of(
    rows: int, topic: ColumnIn | None, partition: NumbersIn | None, key: ColumnIn | None, value: ColumnIn | None,
    headers: HeadersIn | None, time: NumbersIn | None,
) -> bytes:  # fmt: skip
    """Return the sum, modulo 2**128, of a hash of each row, whatever their order; 16 bytes, big-endian.

    The hash is BLAKE2b of 16 bytes (RFC 7693), over a text of numbers, a colon, and the bytes of key, value, and each
    header's name and value. The numbers, with commas between them: topic, partition (int32) and time (int64), or None,
    then the sizes of these bytes in their order, -1 for null. They tell the fields apart, and null from no bytes.
    """
    total = 0
    for row in range(rows):
        pairs, named = layout.headers_in(headers, row), layout.item_of(topic, row)
        fields = [layout.item_of(key, row), layout.item_of(value, row), *(field for pair in pairs for field in pair)]
        numbers = layout.number_of(partition, row, "i"), layout.number_of(time, row, "q")
        sizes = (-1 if field is None else len(field) for field in fields)
        start = None if named is None else named.decode(errors="replace")
        text = f"{start},{','.join(map(str, (*numbers, *sizes)))}:"
        hashed = blake2b(b"".join((text.encode(), *filter(None, fields))), digest_size=DIGEST_BYTES)
        total += int.from_bytes(hashed.digest(), "big")
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "big")
