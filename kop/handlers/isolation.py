"""The part of a log that a request may see by its isolation level (KIP-98).

Owns: the levels, and what of a read lies before the last stable offset.
Must not know: requests, sessions, how transactions end.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from kop.errors import PeerError
from kop.records.batch import base_offset_of, next_offset_of, transactional_producer_of
from kop.storage.base import PartitionLog, ReadResult

_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1


def reads_committed(isolation_level: int) -> bool:
    """Return true if the isolation level asks for committed records alone. PeerError (INVALID_REQUEST) for an unknown
    level.
    """
    if isolation_level not in (_READ_UNCOMMITTED, _READ_COMMITTED):
        raise PeerError(f"there is no isolation level {isolation_level}")
    return isolation_level == _READ_COMMITTED


def is_open(partition_log: PartitionLog, offset: int) -> bool:
    """Return true if an offset lies at or behind the first record of a transaction that has not ended, and before the
    end of the log.
    """
    return partition_log.last_stable_offset <= offset < partition_log.high_watermark


def stable_part(result: ReadResult, last_stable_offset: int) -> ReadResult:
    """Return a read without its batches from the last stable offset on. That offset never lies within a batch."""
    buffers = result.buffers
    count = bisect_left(buffers, last_stable_offset, key=base_offset_of)
    if count == len(buffers):
        return result
    return result._replace(buffers=buffers[:count], size=sum(map(len, buffers[:count])))


def aborted_in(partition_log: PartitionLog, result: ReadResult) -> list[tuple[int, int]]:
    """Return producer id and first offset of each aborted transaction that has batches in this read: records, or the
    marker.

    A transaction of which none is there, since compaction has taken them, is left out: readers would look for its
    marker in vain, and take all that follows of its producer for aborted.
    """
    if not result.size:
        return []
    buffers = result.buffers
    aborted = partition_log.aborted_between(base_offset_of(buffers[0]), next_offset_of(buffers[-1]))
    if not aborted:
        return []
    offsets: dict[int, list[int]] = {}
    for batch in buffers:
        offsets.setdefault(transactional_producer_of(batch), []).append(base_offset_of(batch))

    listed = []
    for transaction in aborted:
        of_producer = offsets.get(transaction.producer_id, [])
        index = bisect_left(of_producer, transaction.first_offset)
        if index < len(of_producer) and of_producer[index] <= transaction.last_offset:
            listed.append((transaction.producer_id, transaction.first_offset))
    return listed
