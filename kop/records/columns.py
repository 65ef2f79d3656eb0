"""The records of a Fetch response -> chunks of Arrow buffers, and such buffers -> record batches to produce.

Owns: what of a response counts (the range of offsets, transactions, control batches, checksums, a batch that is cut
off), the bounds on memory, the header around what is written, and the choice between the twins.
Must not know: pyarrow (`kop.records.arrow`), how a buffer is laid out (`arrow_layout`), requests, connections.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from kop.compiled import compiled
from kop.errors import BackendError, ErrorCode, InternalError, PeerError
from kop.records import _pure_arrow
from kop.records.arrow_layout import ChunkParts, Column, ColumnIn, HeadersIn, Lists, NumbersIn, TimestampsIn
from kop.records.batch import (
    CODEC_MASK,
    CRC_FROM,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    Codec,
    add_sequence,
    read_header,
    seal,
)
from kop.records.compression import decompress
from kop.records.markers import read_marker

__all__ = [
    "MAX_BYTES",
    "MAX_INFLATED",
    "Chunk",
    "EncodeSettings",
    "Encoded",
    "FetchedColumns",
    "RowsIn",
    "UnreadableRecordsError",
    "encode_columns",
    "key_partitions",
    "rows_digest",
]

if TYPE_CHECKING:
    from kop import _native as twin
else:
    twin = compiled(_pure_arrow)
"""The compiled twin, or the plain one; a test may set it."""

MAX_BYTES: Final = 2**30
"""The most bytes that a chunk may be asked to have: int32 offsets end at 2 GiB."""
MAX_INFLATED: Final = 2**29
"""The most bytes that a batch may be asked to have without compression: names of headers may grow to three times their
size.
"""

_MAGIC_AT: Final = 16
_SMALLEST_BODY: Final = 14  # of a message of magic 0
_INT64_MAX: Final = 2**63 - 1
_PLACE: Final = struct.Struct(">qi")


class Chunk(NamedTuple):
    """The Arrow buffers of some rows, as `kop.records.arrow_layout` describes them."""

    rows: int
    next_offset: int
    key: Column
    value: Column
    offsets: bytes
    timestamps: bytes
    timestamp_types: bytes
    headers: tuple[Lists, Column, Column] | None


class UnreadableRecordsError(BackendError):
    """An error for records in a Fetch response that cannot be decoded. The read stops there, and leaves no record
    out.
    """

    default_code = ErrorCode.CORRUPT_MESSAGE

    def __init__(self, message: str, code: ErrorCode | None = None, offset: int = -1) -> None:
        super().__init__(message, code)
        self.offset = offset
        """The first offset of the batch that cannot be decoded, or of what follows the last whole batch."""


class FetchedColumns(Iterator[Chunk]):
    """The chunks of the `records` of one partition in a Fetch response.

    `start` is the first offset that is wanted, `end` the first one behind that is not, None for no end. `aborted` is
    the response's list of `(producer_id, first_offset)` and makes this read committed records alone (KIP-98); None is
    read_uncommitted. A chunk has at most `max_rows` rows, and at most `max_bytes` of keys, values and headers unless it
    is of one record; a batch has at most `max_inflated` bytes without compression. UnreadableRecordsError names topic,
    partition and offset.
    """

    def __init__(
        self,
        records: Buffer,
        *,
        topic: str,
        partition: int,
        start: int,
        end: int | None,
        aborted: Sequence[tuple[int, int]] | None,
        headers: bool,
        max_rows: int,
        max_bytes: int,
        max_inflated: int,
    ) -> None:
        if not (max_rows > 0 and 0 < max_bytes <= MAX_BYTES and 0 < max_inflated <= MAX_INFLATED):
            raise InternalError(f"chunks of {max_rows} rows, {max_bytes} bytes, from batches of {max_inflated} bytes")
        self.next_offset = start
        """The first offset that no chunk so far reaches, from which to fetch next once all chunks were taken. Offsets
        that hold nothing to read (markers, aborted records, compacted ones) are behind it then.
        """
        self.cut_off = 0
        """The size of the batch that the response ends in the middle of, in bytes as far as they are known, 0 for none.

        If `next_offset` did not move, a Fetch with as many bytes is needed.
        """
        self._partition = f"{topic}-{partition}"
        self._max_inflated = max_inflated
        self._builder = twin.RowBuilder(headers, max_rows, max_bytes)
        self._chunks = self._read(memoryview(records).cast("B"), start, _INT64_MAX if end is None else end, aborted)

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def _read(
        self, data: memoryview, start: int, end: int, aborted: Sequence[tuple[int, int]] | None
    ) -> Iterator[Chunk]:
        transactions = None if aborted is None else _Transactions(aborted)
        pos, done = 0, start
        while done < end:
            if transactions is None or transactions.are_over:
                full, pos, done = self._builder.add_small(data, pos, done, end, self._max_inflated)
                for parts in full:
                    yield self._given(parts)
            if done >= end or len(data) - pos < LOG_OVERHEAD:
                break
            base_offset, length = _PLACE.unpack_from(data, pos)
            if base_offset >= end:
                done = end
                break
            header = self._header_at(data, pos, length, base_offset, done)
            if header is None:
                break
            batch = data[pos : pos + header.size]
            pos += header.size
            try:
                self._check(batch, header)
                if self._is_wanted(batch, header, transactions) and header.last_offset >= done:
                    body = decompress(header.codec, batch[HEADER_SIZE:], self._max_inflated)
                    for parts in self._builder.add(
                        body,
                        header.record_count,
                        header.base_offset,
                        header.last_offset_delta,
                        header.base_timestamp,
                        header.max_timestamp if header.log_append_time else None,
                        done,
                        end,
                    ):
                        yield self._given(parts)
            except PeerError as error:
                raise self._unreadable(header.base_offset, error.message, error.code) from None
            done = min(end, max(done, header.next_offset))
        if done < end and 0 < len(data) - pos < LOG_OVERHEAD:
            self.cut_off = LOG_OVERHEAD
        if (last := self._builder.finish()) is not None:
            chunk = self._given(last)
            self.next_offset = done
            yield chunk
        self.next_offset = done

    def _given(self, parts: ChunkParts) -> Chunk:
        chunk = Chunk._make(parts)
        self.next_offset = chunk.next_offset
        return chunk

    def _header_at(self, data: memoryview, pos: int, length: int, base_offset: int, done: int) -> BatchHeader | None:
        """Return the header of the batch at `pos`, which begins with `base_offset` and `length`. None if the response
        ends in the middle of it; then `cut_off` is set. UnreadableRecordsError if it is malformed or of an older
        format.
        """
        most = self._max_inflated + HEADER_SIZE
        if not _SMALLEST_BODY <= length <= most:
            text = f"a batch of {length} bytes, between {_SMALLEST_BODY} and {most} are taken"
            raise self._unreadable(done, text, ErrorCode.CORRUPT_MESSAGE)
        left = len(data) - pos
        if left > _MAGIC_AT and data[pos + _MAGIC_AT] < MAGIC:
            raise self._unreadable(
                base_offset,
                f"records of message format {data[pos + _MAGIC_AT]} from before Kafka 0.11, only 2 is read: "
                "copy the topic with a client of Kafka, which writes format 2",
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            )
        if left < length + LOG_OVERHEAD:
            self.cut_off = length + LOG_OVERHEAD
            return None
        try:
            return read_header(data, pos)
        except PeerError as error:
            raise self._unreadable(done, error.message, error.code) from None

    @staticmethod
    def _check(batch: memoryview, header: BatchHeader) -> None:
        if crc32c(batch[CRC_FROM:]) != header.crc:
            raise PeerError("the checksum does not fit the batch", ErrorCode.CORRUPT_MESSAGE)
        if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset >= _INT64_MAX:
            raise PeerError(
                f"a batch from offset {header.base_offset} with a last offset delta of {header.last_offset_delta}",
                ErrorCode.CORRUPT_MESSAGE,
            )

    @staticmethod
    def _is_wanted(batch: memoryview, header: BatchHeader, transactions: _Transactions | None) -> bool:
        """Return true if the batch holds records for a reader: no markers, no aborted ones, and not none at all. To be
        called for each batch, in order, since batches begin and end aborted transactions.
        """
        is_aborted = transactions is not None and transactions.is_aborted(batch, header)
        is_empty = header.record_count == 0 and header.size == HEADER_SIZE  # keeps a producer's sequence
        return not (is_aborted or header.control or is_empty)

    def _unreadable(self, offset: int, text: str, code: ErrorCode) -> UnreadableRecordsError:
        return UnreadableRecordsError(f"{self._partition} at offset {offset}: {text}", code, offset)


class _Transactions:
    """The aborted transactions of a Fetch response, which tell aborted batches: the consumer's part of KIP-98."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._to_come = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        self._open: set[int] = set()

    @property
    def are_over(self) -> bool:
        """True if no batch to come is of an aborted transaction."""
        return not (self._to_come or self._open)

    def is_aborted(self, batch: memoryview, header: BatchHeader) -> bool:
        producer_id = header.producer_id
        if producer_id < 0:
            return False
        while self._to_come and self._to_come[-1][1] <= header.last_offset:
            self._open.add(self._to_come.pop()[0])
        if producer_id not in self._open:
            return False
        if header.control:
            if header.record_count > 0 and (marker := read_marker(batch)) is not None and not marker.commit:
                self._open.discard(producer_id)
            return False
        return header.transactional


class RowsIn(NamedTuple):
    """Rows to write, in buffers as `kop.records.arrow_layout` describes them; a column of None is null in each row."""

    rows: int
    key: ColumnIn | None
    value: ColumnIn | None
    headers: HeadersIn | None
    timestamps: TimestampsIn | None


class Encoded(NamedTuple):
    """A record batch for a Produce request, with its numbers: base offset 0, no leader epoch."""

    batch: bytearray
    records: int
    max_timestamp: int
    """The largest timestamp of its records, in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class EncodeSettings:
    """The settings by which rows become record batches: sizes, time, codec, producer."""

    max_bytes: int
    """The most bytes of each batch, before compression and after it."""
    now: int
    """The timestamp of rows that have none, in ms since the epoch."""
    codec: int = Codec.NONE
    """The codec for batches; one that it does not make smaller is not compressed."""
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    """The sequence of the first record in the first batch; those of the others follow."""
    transactional: bool = False


def encode_columns(rows: RowsIn, settings: EncodeSettings) -> Iterator[Encoded]:
    """Yield the rows as record batches (magic 2).

    PeerError: MESSAGE_TOO_LARGE names the row that does not fit into a batch of its own, INVALID_RECORD a header
    without a name; batches before it were given by then.
    """
    max_bytes, codec, sequence = settings.max_bytes, settings.codec, settings.base_sequence
    attributes = codec | (TRANSACTIONAL_BIT if settings.transactional else 0)
    if not HEADER_SIZE < max_bytes <= MAX_BYTES:
        raise InternalError(f"batches of at most {max_bytes} bytes")
    row = 0
    while row < rows.rows:
        records, taken, base_timestamp, max_timestamp = twin.encode_rows(
            row, rows.rows, rows.key, rows.value, rows.headers, rows.timestamps, settings.now, max_bytes - HEADER_SIZE
        )
        if not taken:
            raise PeerError(
                f"row {row} takes more than the {max_bytes} bytes that a batch may have", ErrorCode.MESSAGE_TOO_LARGE
            )
        header = BatchHeader(
            0, 0, NO_LEADER_EPOCH, MAGIC, 0, attributes, taken - 1, base_timestamp, max_timestamp,
            settings.producer_id, settings.producer_epoch, sequence, taken,
        )  # fmt: skip
        batch = seal(header, records)
        if codec and len(batch) >= HEADER_SIZE + len(records):
            batch = seal(header._replace(attributes=header.attributes & ~CODEC_MASK), records)
        yield Encoded(batch, taken, max_timestamp)
        row += taken
        if sequence >= 0:
            sequence = add_sequence(sequence, taken)


def items_of(column: Column) -> list[bytes | None]:
    """Return the items of a column of a chunk."""
    return twin.items_of(column)


def column_of(items: list[bytes | None]) -> ColumnIn:
    """Return a column to write with these items. PeerError: INVALID_RECORD if they take 2 GiB and more."""
    return 0, *twin.column_of(items)[1:]


def repeated_offsets(runs: Sequence[tuple[tuple[int, ...], int]]) -> bytes:
    """Return, as an Arrow buffer, the offset at which each item begins, and the end of the last one. The items' sizes
    are given in runs: sizes, and how many times they repeat. PeerError: INVALID_RECORD if they take 2 GiB and more.
    """
    return twin.repeated_offsets(runs)


def key_partitions(rows: int, key: ColumnIn, count: int) -> tuple[int, bytes | None, bytes]:
    """Return for each key the partition, of `count`, that Kafka's default partitioner chooses, as a column: null count,
    validity, int32.

    A null key has none.
    """
    if not 0 < count < 2**31:
        raise InternalError(f"a topic of {count} partitions")
    return twin.partitions_of(rows, key, count)


def rows_digest(rows: RowsIn, topic: ColumnIn | None, partition: NumbersIn | None, time: NumbersIn | None) -> int:
    """Return a digest of 128 bits of the rows, which does not depend on their order; see
    `kop.records._pure_arrow.digest_of`.

    `time` takes the place of the rows' timestamps. The sum of the digests of two batches, modulo 2**128, is the digest
    of both.
    """
    return int.from_bytes(twin.digest_of(rows.rows, topic, partition, rows.key, rows.value, rows.headers, time), "big")
