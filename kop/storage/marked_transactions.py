"""Transactions as Kafka's brokers carry them out: markers in the logs, nothing that is prepared.

Owns: which logs get a marker.
Must not know: which engine keeps the logs, how a log writes a marker, who decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from uuid import UUID

from kop.errors import ErrorCode, KopError, PeerError
from kop.storage.base import EPOCH_BUMPED_AT_END, EndedTransaction, MarkedLog, Topics

_COORDINATOR_EPOCH = 0
"""The coordinator epoch in all markers. One process writes the logs, so no older coordinator can come after a younger
one.
"""
_NOTHING_TO_END = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH}
"""The errors of a log that has nothing to end: the topic was deleted meanwhile, or the log has a marker of a later
end.
"""


class MarkedTransactions:
    """A `TransactionStorage` over logs that take markers."""

    refusal = None

    def __init__(
        self, topics: Topics, log: Callable[[UUID, int], MarkedLog | None], wall_ms: Callable[[], int]
    ) -> None:
        """`wall_ms` gives the timestamps of markers, in milliseconds since the epoch."""
        self._topics = topics
        self._log = log
        self._wall_ms = wall_ms

    async def begin(self, timeout_ms: int) -> bytes:
        """Return an empty name: the first transactional batch begins a transaction in a log by itself."""
        return b""

    async def add(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        """Check that the partitions exist; nothing else has to be prepared in logs that hold markers."""
        for name, partition in partitions:
            if self._find(name, partition) is None:
                raise PeerError(f"there is no partition {name}-{partition}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def confirm(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        """Do nothing: nobody but the coordinator ends a transaction here."""

    def stop_writes(self, storage_transaction: bytes) -> None:
        """Do nothing: a log takes no batch of a transaction behind its marker."""

    async def nobody_else_writes(self, ended: EndedTransaction) -> bool:
        """Return true: one process writes the logs."""
        return True

    async def end(self, ended: EndedTransaction) -> None:
        """Write the markers of a transaction's end to its logs, and wait until they are durable. Raises the error of
        the first partition whose marker is not; one that was deleted, or has the marker of a later end, is passed over.
        """
        markers = [
            log.end_transaction(
                ended.producer_id,
                ended.producer_epoch,
                commit=ended.commit,
                coordinator_epoch=_COORDINATOR_EPOCH,
                bumps_epoch=ended.client_version >= EPOCH_BUMPED_AT_END,
                now_ms=self._wall_ms(),
            )
            for name, partition in sorted(ended.partitions)
            if (log := self._find(name, partition)) is not None
        ]
        for error in await asyncio.gather(*markers, return_exceptions=True):
            if isinstance(error, KopError) and error.code in _NOTHING_TO_END:
                continue
            if isinstance(error, BaseException):
                raise error

    def _find(self, name: str, partition: int) -> MarkedLog | None:
        topic = self._topics.get(name)
        return None if topic is None else self._log(topic.topic_id, partition)
