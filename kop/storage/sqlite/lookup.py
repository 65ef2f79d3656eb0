"""Look-ups by time: the index names the batch, its records give the answer.

Owns: which batch can hold the record that is asked for. Must not know: how a record is laid out, the loop.

All of it runs on a reading thread, batches are decompressed there. Arguments: the files of large batches, the log's id,
its log start and high watermark.
"""

from __future__ import annotations

import sqlite3

from kop.records.batch import first_at_or_after, max_timestamp_record, read_header
from kop.storage.base import MOST_UNCOMPRESSED
from kop.storage.sqlite import reader
from kop.storage.sqlite.segments import Segments


def by_time(
    conn: sqlite3.Connection, segments: Segments, log_id: int, start: int, end: int, timestamp: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after `timestamp`."""
    offset = start
    while (row := reader.first_at(conn, log_id, timestamp, offset, end)) is not None:
        data = reader.read_one(conn, segments, log_id, row.last)
        if data is not None:
            record = first_at_or_after(
                data, read_header(data), timestamp, max_bytes=MOST_UNCOMPRESSED, from_offset=start
            )
            if record is not None:
                return record
        # Gone since, lost, or the record lies before the log start.
        offset = row.last + 1
    return None


def max_timestamp(
    conn: sqlite3.Connection, segments: Segments, log_id: int, start: int, end: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record with the largest timestamp."""
    best: tuple[int, int] | None = None
    offset = start
    while (largest := reader.newest(conn, log_id, offset, end)) is not None and (best is None or largest > best[1]):
        row = reader.first_at(conn, log_id, largest, offset, end)
        if row is None:
            continue  # gone since
        data = reader.read_one(conn, segments, log_id, row.last)
        if data is not None:
            record = max_timestamp_record(data, read_header(data), max_bytes=MOST_UNCOMPRESSED, from_offset=start)
            if record is not None and record[1] >= 0 and (best is None or record[1] > best[1]):
                best = record
                if best[1] == largest:
                    break
        # The log start cuts this batch, or it is lost: its largest is gone, go on behind it.
        offset = row.last + 1
    return best
