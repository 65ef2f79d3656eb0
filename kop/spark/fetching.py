"""The reading of a task's range of offsets: Fetch after Fetch, batches of rows as they come.

Owns: when a range is read to its end, and what is done where records of it are gone.
Must not know: pyspark, how the range was planned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafka import errors

from kop import clock
from kop.client.offsets import EARLIEST
from kop.client.read_client import GONE, FetchSettings, ReadClient
from kop.records.arrow import UnreadableRecordsError, decode
from kop.spark.entry_metadata import with_metadata, with_schema_versions
from kop.spark.planning import DataLossError, OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

READ_COMMITTED = 1


class EventTimeError(Exception):
    """An error for records of a topic whose timestamps are no event times; the text says what to do."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings by which ranges of offsets are read, the same for every task of a read."""

    fetch: FetchSettings
    headers: bool
    fail_on_data_loss: bool
    poll_timeout_ms: int
    event_times: tuple[int | None, int | None] = (None, None)
    """The first event time (ms) of rows that are wanted, and the first that is not; None for no limit."""
    max_rows: int = 16_384
    max_bytes: int = 8 << 20


def read_range(client: ReadClient, wanted: OffsetRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of offsets as batches, also passing offsets without a record, up to its end.

    In memory at a time are the answer to one Fetch and one batch of rows. DataLossError if offsets of the range are
    gone, or if nothing comes for `poll_timeout_ms` before the range is at its end; with `fail_on_data_loss` off a
    warning, and the rows that are left. UnreadableRecordsError for a batch that cannot be read; EventTimeError if rows
    are wanted by event times and the records have none; NoMetadataError if the server does not say where records are
    kept.
    """
    partition = (wanted.topic, wanted.partition)
    committed = settings.fetch.isolation == READ_COMMITTED
    position, fetch, fails = wanted.start, settings.fetch, settings.fail_on_data_loss
    idle_since = clock.monotonic()
    while position < wanted.end:
        try:
            answer = client.fetch(partition, wanted.topic_id, position, fetch)
        except GONE:
            lost(
                fails,
                f"{_name(wanted)} was deleted, or made again, before offsets {position} to {wanted.end} were read",
            )
            return
        except errors.OffsetOutOfRangeError:
            first = client.list_offsets({partition: EARLIEST}, 0)[partition]
            if first <= position:
                lost(fails, f"{_name(wanted)} ends before offset {position}, {wanted.end} was its end")
                return
            lost(fails, f"{_name(wanted)} begins at offset {first} now, {position} is out of range")
            position = min(first, wanted.end)
            continue
        places, schemas = answer.places, answer.schemas
        rows = decode(
            answer.records,
            topic=wanted.topic,
            partition=wanted.partition,
            start=position,
            end=wanted.end,
            aborted=answer.aborted if committed else None,
            headers=settings.headers,
            max_rows=settings.max_rows,
            max_bytes=settings.max_bytes,
        )
        del answer
        batches = iter(rows) if settings.event_times == (None, None) else _of_times(rows, *settings.event_times)
        if fetch.places:
            batches = with_metadata(batches, places, _name(wanted))
        if fetch.schemas:
            batches = with_schema_versions(batches, schemas)
        try:
            yield from batches
        except UnreadableRecordsError as error:
            raise UnreadableRecordsError(
                f"end the read before offset {error.offset} by endingOffsets, or start it behind the batch there by "
                f"startingOffsets of a new query: {error.message}",
                error.code,
                error.offset,
            ) from None
        if rows.next_offset > position:
            position, fetch = rows.next_offset, settings.fetch
            idle_since = clock.monotonic()
        elif rows.cut_off:
            size = max(rows.cut_off, fetch.partition_bytes)
            fetch = replace(fetch, partition_bytes=size, max_bytes=max(size, fetch.max_bytes))
        elif clock.monotonic() - idle_since > settings.poll_timeout_ms / 1000:
            lost(
                fails,
                f"{_name(wanted)} gave nothing at offset {position} for {settings.poll_timeout_ms} ms "
                f"(kafkaConsumer.pollTimeoutMs), {wanted.end} was its end",
            )
            return


def _of_times(rows: Iterable[pa.RecordBatch], first: int | None, end: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of rows, cut to those whose event time is `first` or later and before `end` (ms since the
    epoch, None for no limit); empty batches are left out. EventTimeError for records whose timestamp the server has
    set.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    for whole in rows:
        batch = whole
        if compute.any(compute.equal(batch.column("timestampType"), 1)).as_py():
            raise EventTimeError(
                f"set startingTimestamp and endingTimestamp instead: records of {batch.column('topic')[0]} have the "
                "time of the server (message.timestamp.type=LogAppendTime), and none of an event"
            )
        times = batch.column("timestamp").cast(pa.int64())
        if first is not None:
            wanted = compute.greater_equal(times, first * 1000)
            batch, times = batch.filter(wanted), times.filter(wanted)
        if end is not None:
            batch = batch.filter(compute.less(times, end * 1000))
        if batch.num_rows:
            yield batch


def _name(wanted: OffsetRange) -> str:
    return f"topic {wanted.topic} partition {wanted.partition}"


def lost(fails: bool, what: str) -> None:
    """Raise DataLossError if `fails`, else log a warning: the read goes on after lost data. `what` says in both what is
    lost.
    """
    if fails:
        raise DataLossError(f"set failOnDataLoss to false to go on without them: some data may have been lost, {what}")
    log.warning("some data may have been lost, %s: the read goes on, failOnDataLoss is false", what)
