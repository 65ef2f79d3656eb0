"""Records <-> record batches, a list of tuples at a time: what is written, and what a Fetch answered.

Owns: what a record looks like to who reads and writes it.
Must not know: requests, what batches look like (`kop.records.columns`), pyarrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import Final, NamedTuple, TypeAlias

from kop.client.errors import ClientError
from kop.client.offsets import TopicPartition
from kop.client.read_client import Fetched
from kop.client.record_columns import Headers, RecordColumns, StoredRecord, made_once
from kop.client.write_client import Identity
from kop.errors import ErrorCode, PeerError
from kop.records import arrow_layout
from kop.records.arrow_layout import Column, HeadersIn, Lists, TimestampsIn
from kop.records.batch import Codec
from kop.records.columns import (
    Chunk,
    EncodeSettings,
    FetchedColumns,
    RowsIn,
    column_of,
    encode_columns,
    items_of,
    repeated_offsets,
)
from kop.records.record import Buffer

BATCH_BYTES: Final = 900_000
"""Below max.message.bytes of a topic, which is 1 MiB unless it was set."""
CHUNK_RECORDS: Final = 16_384
CHUNK_BYTES: Final = 16 << 20
INFLATED_BYTES: Final = 256 << 20
"""The most that one batch may take without compression."""

NewRecord: TypeAlias = tuple[bytes | None, bytes | None, Headers, int | None]
"""Key, value, headers, and milliseconds since the epoch; None for the time at which it is written."""


class RecordTooLargeError(ClientError):
    """A record does not fit into a batch of its own."""

    def __init__(self, text: str, index: int) -> None:
        super().__init__(text, index)
        self.index = index
        """Its place in what was to be written."""

    def __str__(self) -> str:
        return str(self.args[0])


class HeaderRun(NamedTuple):
    """The headers of some records in a row, whose headers have the same names, and values of the same sizes."""

    records: int
    names: tuple[bytes, ...]
    sizes: tuple[int, ...]
    """Of the values of each record."""
    values: Buffer
    """All values, one behind the other."""
    nulls: tuple[bool, ...] = ()
    """True for each value that is null; empty if none is."""


class NewRecords:
    """Records of one partition that are to be written, as columns."""

    def __init__(self, records: Iterable[NewRecord] = ()) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._times: list[int | None] = []
        self._headers: list[HeaderRun] = []
        self._keyed = False
        self._timed = False
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, record: NewRecord) -> None:
        """Append a record."""
        key, value, headers, time = record
        self._keys.append(key)
        self._values.append(value)
        self._times.append(time)
        self._keyed = self._keyed or key is not None
        self._timed = self._timed or time is not None
        if headers:
            names, values = zip(*headers, strict=True)
            nulls = tuple(value is None for value in values)
            present = [value or b"" for value in values]
            names = tuple(name.encode() for name in names)
            sizes = tuple(map(len, present))
            self._headers.append(HeaderRun(1, names, sizes, b"".join(present), nulls if any(nulls) else ()))
        elif self._headers and not self._headers[-1].names:
            self._headers[-1] = self._headers[-1]._replace(records=self._headers[-1].records + 1)
        else:
            self._headers.append(HeaderRun(1, (), (), b""))

    def extend(self, values: Collection[bytes], headers: Iterable[HeaderRun]) -> None:
        """Append records without keys and times; `headers` are runs of headers for as many records."""
        self._keys.extend(repeat(None, len(values)))
        self._values.extend(values)
        self._times.extend(repeat(None, len(values)))
        self._headers.extend(headers)

    def rows(self) -> RowsIn:
        """Return the records as columns for the encoder."""
        keys = column_of(self._keys) if self._keyed else None
        times = _times_in(self._times) if self._timed else None
        return RowsIn(len(self._values), keys, column_of(self._values), self._headers_in(), times)

    def _headers_in(self) -> HeadersIn | None:
        runs = self._headers
        if not any(run.names for run in runs):
            return None
        places = repeated_offsets([((len(run.names),), run.records) for run in runs])
        names = repeated_offsets([(tuple(map(len, run.names)), run.records) for run in runs])
        values = repeated_offsets([(run.sizes, run.records) for run in runs])
        nulls = None
        if any(run.nulls for run in runs):
            valid = [not null for run in runs for null in run.nulls or (False,) * len(run.names) * run.records]
            nulls = arrow_layout.validity_of(valid)[1]
        all_names = b"".join([b"".join(run.names) * run.records for run in runs])
        all_values = b"".join([run.values for run in runs])
        return 0, None, places, (0, None), (0, None, names, all_names), (0, nulls, values, all_values)


def build(
    records: NewRecords | Iterable[NewRecord],
    producer: Identity,
    sequence: int,
    *,
    now: int,
    codec: int = Codec.NONE,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[bytearray, int]]:
    """Yield records of one partition as batches to produce, each with the number of its records; parameters and errors
    are those of `build_rows`.
    """
    made = records if isinstance(records, NewRecords) else NewRecords(records)
    return build_rows(made.rows(), producer, sequence, now=now, codec=codec, max_bytes=max_bytes)


def build_rows(
    rows: RowsIn,
    producer: Identity,
    sequence: int,
    *,
    now: int,
    codec: int = Codec.NONE,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[bytearray, int]]:
    """Yield rows of one partition as batches to produce, each with the number of its records.

    `sequence` is that of the first record, the others follow; rows without a timestamp get `now`, in milliseconds since
    the epoch. A batch has at most `max_bytes`. It is of a transaction if the producer has a transactional id.
    RecordTooLargeError for a record that does not fit into a batch of its own; it comes after the batches before the
    record.
    """
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
            f"a record of {_size(rows, done)} bytes takes more than the {max_bytes} that a batch may have: make it "
            "smaller, or raise max.request.size here and max.message.bytes of the topic",
            done,
        ) from None


def _size(rows: RowsIn, row: int) -> int:
    headers = arrow_layout.headers_in(rows.headers, row)
    parts = [arrow_layout.item_of(rows.key, row), arrow_layout.item_of(rows.value, row), *chain(*headers)]
    return sum(len(part) for part in parts if part is not None)


def _times_in(times: Sequence[int | None]) -> TimestampsIn:
    _, validity = arrow_layout.validity_of([time is not None for time in times])
    return 0, validity, array("q", [time or 0 for time in times]).tobytes(), 1


class StoredRecords(Iterator[RecordColumns]):
    """The records of an answer to a Fetch, in lots that are bounded, from the offset `start` on.

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
        """The first offset behind the lots so far: once all were taken, the offset to fetch from next, behind what was
        left out, too.
        """
        return self._columns.next_offset

    @property
    def cut_off(self) -> int:
        """The size, in bytes, of the batch that the answer ends in the middle of, 0 for none. If `next_offset` did not
        move, a Fetch of as many bytes is needed.
        """
        return self._columns.cut_off

    def __next__(self) -> RecordColumns:
        return _columns_of(next(self._columns))


def _columns_of(chunk: Chunk) -> RecordColumns:
    offsets = memoryview(chunk.offsets).cast("q").tolist()
    values = items_of(chunk.value)
    others = chunk.rows, chunk.timestamps, chunk.key, chunk.headers  # without the values, which were copied

    def rows() -> list[StoredRecord]:
        count, timestamps, key, headers = others
        times = [micros // 1000 for micros in memoryview(timestamps).cast("q").tolist()]
        keys = items_of(key) if key[0] < count else repeat(None)
        return list(zip(offsets, times, keys, values, _headers_of(count, headers), strict=False))

    return RecordColumns(offsets, values, made_once(rows))


def _headers_of(rows: int, headers: tuple[Lists, Column, Column] | None) -> Iterator[Headers]:
    assert headers is not None, "headers were asked for"
    (without, _, places), names, values = headers
    if without == rows:
        return repeat(())
    entries = [
        (str(name, "utf-8"), value)
        for name, value in zip(items_of(names), items_of(values), strict=True)
        if name is not None
    ]
    return iter([entries[start:end] for start, end in pairwise(memoryview(places).cast("i").tolist())])
