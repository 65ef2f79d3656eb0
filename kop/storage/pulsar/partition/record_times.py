"""The timestamps of a batch that is about to be sent: as its records have them, whatever its header says.

Owns: the check of these timestamps against the topic's limits, and correcting the header.
Must not know: how the records were read, entries, producers.

Producers of others leave the largest timestamp of their batches unset. Kafka takes that of the records, and so does
this: retention aside, look-ups by time go by it.
"""

from __future__ import annotations

from collections.abc import Callable

from kop.records.batch import BatchHeader, read_header, stamp_create_time
from kop.records.validation import refuse_times
from kop.storage.base import LogPolicy


def checked_times(
    batch: bytearray,
    header: BatchHeader,
    earliest: int,
    latest: int,
    policy: LogPolicy,
    *,
    now_ms: int,
    reserve: Callable[[int], None],
) -> BatchHeader:
    """Check the timestamps of a batch, the smallest and the largest of which (ms) are given, and return its header.

    The header in `batch` is corrected. INVALID_TIMESTAMP if the topic does not allow them; see `refuse_times`. On a
    LogAppendTime topic nothing is done: they are replaced.
    """
    if policy.log_append_time:
        return header
    if not policy.time_limits.take(earliest, latest, now_ms):
        refuse_times(
            batch, header, policy.time_limits, now_ms, reserve=reserve, max_bytes=policy.max_uncompressed_bytes
        )
    if latest == header.max_timestamp:
        return header
    stamp_create_time(batch, latest)
    return read_header(batch)
