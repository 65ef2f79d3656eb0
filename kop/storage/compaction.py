"""Log compaction as Kafka's cleaner does it, for engines that compact by themselves: which records survive.

Owns: when a log is due, the newest offset of each key, what becomes of a batch.
Must not know: where batches are kept, which part of a log is taken when.

Only what lies before the last stable offset is compacted: of an open transaction nobody knows yet whether its records
are newer values.

How an engine goes about it: it puts the keys of the dirty part of a log into `NewestOffsets`, in log order, then has
every batch from the log start to the end of that part cleaned. Offsets do not change. The last batch of the log is
never cleaned: it holds the end. By the time a tombstone gets its delete horizon (KIP-534) all older records of its key
are gone, so it may go in any later pass after that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from kop.records.batch import BatchHeader, iter_records, rewrite, with_delete_horizon
from kop.records.record import Record
from kop.storage.base import MOST_UNCOMPRESSED, Buffer, LogPolicy
from kop.storage.transaction_index import AbortedRecords, AbortedTransaction

_LAST_MS: Final = 2**63 - 1
"""The last time that a batch can name, in ms: the delete horizon of a tombstone that stays for ever."""


def is_due(policy: LogPolicy, *, dirty_bytes: int, cleanable_bytes: int, oldest_ms: int, now_ms: int) -> bool:
    """Return true if a log has to be compacted: the share of it that is dirty (no compaction has seen it) is above
    `min_cleanable_dirty_ratio`, or the oldest dirty part is older than `max_compaction_lag_ms`.

    `cleanable_bytes` are those of the part that may be cleaned, the dirty ones among them; `oldest_ms` is the oldest
    max timestamp of the dirty part.
    """
    if not dirty_bytes:
        return False
    overdue = now_ms - oldest_ms > policy.max_compaction_lag_ms
    return overdue or dirty_bytes > policy.min_cleanable_dirty_ratio * max(cleanable_bytes, dirty_bytes)


def delete_horizon(policy: LogPolicy, now_ms: int) -> int:
    """Return the time (ms) from which on a tombstone may be removed that a compaction at `now_ms` is the first to
    see.
    """
    return min(now_ms + policy.delete_retention_ms, _LAST_MS)


class NewestOffsets:
    """The offset of the newest record of each key, for one pass of compaction; some 150 bytes a key, whatever the key's
    length.

    `aborted` are the aborted transactions of the log: their records are no newer values and go. A marker goes, too,
    once no record of its transaction is left: as a tombstone, a pass after its delete horizon, so that a reader who has
    seen records of the transaction learns how it ended.
    """

    def __init__(self, max_keys: int = 2**63, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._max_keys = max_keys
        self._offsets: dict[bytes, int] = {}
        self._aborted = AbortedRecords(aborted)
        self._with_records: set[int] = set()
        """The producers of whose present transaction this pass has left records."""

    def has_room_for(self, header: BatchHeader) -> bool:
        """Return true if there is memory for the keys of the batch; the first one always fits."""
        return not self._offsets or len(self._offsets) + header.record_count <= self._max_keys

    def add(self, data: Buffer, header: BatchHeader) -> None:
        """Add the keys of a batch that follows those added before; markers and batches of aborted transactions have
        none that count. PeerError if it cannot be read.
        """
        if header.control or self._is_aborted(header):
            return
        for record in iter_records(data, header, max_bytes=MOST_UNCOMPRESSED):
            if record.key is not None:
                self._offsets[_digest(record.key)] = record.offset

    def clean(self, data: Buffer, header: BatchHeader, *, now_ms: int, delete_horizon_ms: int) -> Buffer | None:
        """Return the batch without superseded records: `data` itself if nothing changes, None if no record stays.

        Batches come in the order of the log, from its start on. Records without a key and those of aborted transactions
        go, and so do tombstones whose delete horizon has come; a tombstone that is seen for the first time gets
        `delete_horizon_ms` as its horizon. So does a transaction's marker once none of the transaction's records is
        left. PeerError if the batch cannot be read.
        """
        if header.control:
            return self._clean_control(data, header, now_ms, delete_horizon_ms)
        if self._is_aborted(header):
            return None
        tombstones_go = header.delete_horizon and header.base_timestamp <= now_ms

        def keep(record: Record) -> bool:
            if record.key is None or (tombstones_go and record.value is None):
                return False
            return self._offsets.get(_digest(record.key), -1) <= record.offset

        cleaned = rewrite(data, header, keep, max_bytes=MOST_UNCOMPRESSED, delete_horizon=delete_horizon_ms)
        if cleaned is not None and header.transactional:
            self._with_records.add(header.producer_id)
        return cleaned

    def _clean_control(self, data: Buffer, header: BatchHeader, now_ms: int, delete_horizon_ms: int) -> Buffer | None:
        if not header.transactional:
            return data
        if header.producer_id in self._with_records:
            self._with_records.remove(header.producer_id)
            return data
        if header.delete_horizon:
            return None if header.base_timestamp <= now_ms else data
        return with_delete_horizon(data, header, delete_horizon_ms)

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.transactional and self._aborted.hold(header.producer_id, header.base_offset)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
