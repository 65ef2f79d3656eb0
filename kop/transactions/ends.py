"""Ending a transaction wherever it left something: in storage, in groups, in what brokers have verified of it.

Owns: the order of these.
Must not know: who decided, how storage or groups do it.

Records come first, then offsets: who reads an offset that was committed in the transaction may read its records.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from kop.cluster.client_topics import KAFKA_OFFSETS_TOPIC
from kop.errors import ErrorCode, KopError
from kop.storage.base import EndedTransaction, TransactionStorage
from kop.transactions.verification import TransactionVerifier

_log = logging.getLogger(__name__)


class PendingOffsets(Protocol):
    """Where offsets wait that were committed in a transaction."""

    async def end_transaction(
        self, offsets_partitions: Collection[int], producer_id: int, producer_epoch: int, *, commit: bool
    ) -> ErrorCode:
        """See `kop.groups.runtime.GroupCoordinator.end_transaction`."""


class TransactionEnds:
    """The `Markers` of the transaction coordinator."""

    def __init__(self, storage: TransactionStorage, offsets: PendingOffsets) -> None:
        self._storage = storage
        self._offsets = offsets
        self.verifier: TransactionVerifier | None = None
        """What this broker has verified; set once, before the first end."""

    async def write(self, ended: EndedTransaction) -> None:
        """See `Markers.write`."""
        if self.verifier is not None:
            self.verifier.forget(ended.producer_id)
        of_offsets = [index for topic, index in ended.partitions if topic == KAFKA_OFFSETS_TOPIC]
        records = frozenset(partition for partition in ended.partitions if partition[0] != KAFKA_OFFSETS_TOPIC)
        if records or ended.storage_transaction:
            await self._storage.end(ended._replace(partitions=records))
        if of_offsets:
            error = await self._offsets.end_transaction(
                of_offsets, ended.producer_id, ended.producer_epoch, commit=ended.commit
            )
            if error is ErrorCode.INVALID_PRODUCER_EPOCH:  # those of this transaction are not pending any more
                _log.warning("offsets of a newer transaction are pending than that of %r", ended.transactional_id)
            elif error:
                raise KopError(f"the offsets of transactional id {ended.transactional_id!r} cannot be written", error)
