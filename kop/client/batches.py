"""Records <-> record batches, a list of tuples at a time: what is written, and what a Fetch answered.

Owns: what a record looks like to who reads and writes it.
Must not know: requests, what batches look like (`kop.records.columns`), pyarrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import Final, TypeAlias

from kop.client.errors import ClientError
from kop.client.offsets import TopicPartition
from kop.client.read_client import Fetched
from kop.client.write_client import Identity
from kop.errors import ErrorCode, PeerError
from kop.records import arrow_layout
from kop.records.arrow_layout import ColumnIn, HeadersIn, TimestampsIn
from kop.records.batch import Codec
from kop.records.columns import Chunk, EncodeSettings, FetchedColumns, RowsIn, encode_columns

BATCH_BYTES: Final = 900_000
"""Below max.message.bytes of a topic, which is 1 MiB unless it was set."""
CHUNK_RECORDS: Final = 16_384
CHUNK_BYTES: Final = 16 << 20
INFLATED_BYTES: Final = 256 << 20
"""The most that one batch may take without compression."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
NewRecord: TypeAlias = tuple[bytes | None, bytes | None, Headers, int | None]
"""Key, value, headers, and milliseconds since the epoch; None for the time at which it is written."""
StoredRecord: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers]
"""Offset, milliseconds since the epoch (-1 for none), key, value, headers."""


class RecordTooLargeError(ClientError):
    """A record does not fit into a batch of its own."""

    def __init__(self, text: str, index: int) -> None:
        super().__init__(text, index)
        self.index = index
        """Its place in what was to be written."""

    def __str__(self) -> str:
        return str(self.args[0])


def build(
    records: Sequence[NewRecord],
    producer: Identity,
    sequence: int,
    *,
    now: int,
    codec: int = Codec.NONE,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[bytearray, int]]:
    """Yield the records of one partition as batches to produce, each with the number of its records.

    `sequence` is that of the first record, the others follow; `now` in milliseconds since the epoch. A batch has at
    most `max_bytes`. It is of a transaction if the producer has a transactional id. RecordTooLargeError comes after the
    batches before the record.
    """
    if not records:
        return
    keys, values, headers, times = zip(*records, strict=True)
    rows = RowsIn(len(records), _column(keys), _column(values), _headers_in(headers), _times_in(times))
    settings = EncodeSettings(
        max_bytes=max_bytes,
        now=now,
        codec=codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=producer.transactional_id is not None,
    )
    done = 0
    try:
        for encoded in encode_columns(rows, settings):
            yield encoded.batch, encoded.records
            done += encoded.records
    except PeerError as error:
        if error.code != ErrorCode.MESSAGE_TOO_LARGE:
            raise
        raise RecordTooLargeError(
            f"a record of {_size(records[done])} bytes takes more than the {max_bytes} that a batch may have: make it "
            "smaller, or raise max.request.size here and max.message.bytes of the topic",
            done,
        ) from None


def _size(record: NewRecord) -> int:
    return len(record[0] or b"") + len(record[1] or b"") + sum(len(n) + len(v or b"") for n, v in record[2])


def _column(items: Sequence[bytes | None]) -> ColumnIn | None:
    if not any(item is not None for item in items):
        return None
    return 0, *arrow_layout.column(items)[1:]


def _headers_in(headers: Sequence[Headers]) -> HeadersIn | None:
    entries = [entry for of_record in headers for entry in of_record]
    if not entries:
        return None
    places = arrow_layout.offsets_of(map(len, headers))
    names = arrow_layout.column([name.encode() for name, _ in entries])
    values = arrow_layout.column([value for _, value in entries])
    return 0, None, places, (0, None), (0, *names[1:]), (0, *values[1:])


def _times_in(times: Sequence[int | None]) -> TimestampsIn | None:
    if not any(time is not None for time in times):
        return None
    _, validity = arrow_layout.validity_of([time is not None for time in times])
    return 0, validity, array("q", [time or 0 for time in times]).tobytes(), 1


class StoredRecords(Iterator[list[StoredRecord]]):
    """The records of an answer to a Fetch, in lists that are bounded, from the offset `start` on.

    Control batches are left out, and the records of aborted transactions if the Fetch asked for committed ones alone.
    `kop.records.columns.UnreadableRecordsError` if an answer is damaged: no record is left out instead.
    """

    def __init__(self, fetched: Fetched, place: TopicPartition, start: int) -> None:
        self._columns = FetchedColumns(
            fetched.records,
            topic=place[0],
            partition=place[1],
            start=start,
            end=None,
            aborted=fetched.aborted,
            headers=True,
            max_rows=CHUNK_RECORDS,
            max_bytes=CHUNK_BYTES,
            max_inflated=INFLATED_BYTES,
        )

    @property
    def next_offset(self) -> int:
        """The first offset behind the lists so far: once all were taken, what to fetch next, behind what was left out,
        too.
        """
        return self._columns.next_offset

    @property
    def cut_off(self) -> int:
        """Size of the batch that the answer ends in the middle of, 0 for none. If `next_offset` did not move, a Fetch
        of as many bytes is needed.
        """
        return self._columns.cut_off

    def __next__(self) -> list[StoredRecord]:
        return _records_of(next(self._columns))


def _records_of(chunk: Chunk) -> list[StoredRecord]:
    offsets = memoryview(chunk.offsets).cast("q").tolist()
    times = [micros // 1000 for micros in memoryview(chunk.timestamps).cast("q").tolist()]
    keys = arrow_layout.items(chunk.key) if chunk.key[0] < chunk.rows else repeat(None)
    return list(zip(offsets, times, keys, arrow_layout.items(chunk.value), _headers_of(chunk), strict=False))


def _headers_of(chunk: Chunk) -> Iterator[Headers]:
    assert chunk.headers is not None, "headers were asked for"
    (without, _, places), names, values = chunk.headers
    if without == chunk.rows:
        return repeat(())
    entries = [
        (str(name, "utf-8"), value)
        for name, value in zip(arrow_layout.items(names), arrow_layout.items(values), strict=True)
        if name is not None
    ]
    return iter([entries[start:end] for start, end in pairwise(memoryview(places).cast("i").tolist())])
