"""Which open transactions this broker takes records and offsets for (KIP-890): each was verified with its coordinator.

Owns: what was verified, until the transaction ends, and the order of requests of a producer that waits for that.
Must not know: requests, batches, how a transaction is coordinated.

A producer that is late, or that was fenced, can so write nothing into a transaction that does not have the partition:
nothing would ever end that transaction there, and readers would wait for ever.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from kop import clock
from kop.cluster.client_topics import KAFKA_OFFSETS_TOPIC
from kop.errors import ErrorCode
from kop.storage.base import EPOCH_BUMPED_AT_END
from kop.transactions.machine import Partition
from kop.transactions.runtime import VerifiedPartitions

StoredPartition: TypeAlias = tuple[UUID, int]
"""Topic id and partition. Another topic of the same name has not been verified."""

LEASE_SECONDS: Final = 5.0
"""How long it is good what a coordinator said, where there can be several brokers. Whoever coordinates the transaction
waits so long before it ends it without having reached this broker, which may write into it until then."""


class Coordinators(Protocol):
    """Whoever coordinates a transactional id; see `TransactionCoordinator` for its methods."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[Partition],
        client_version: int,
    ) -> ErrorCode:
        """See `TransactionCoordinator.add_partitions`."""

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[Partition]
    ) -> VerifiedPartitions:
        """See `TransactionCoordinator.verify_partitions`."""


class TransactionalProducer(NamedTuple):
    """Who writes into a transaction, as its request says."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class _Verified:
    epoch: int
    storage_transaction: bytes
    until: float = math.inf
    """By `clock.monotonic`."""
    partitions: set[StoredPartition] = field(default_factory=set)


def _error_of_topic(prepared: UUID | None, partition: StoredPartition) -> ErrorCode:
    """COORDINATOR_NOT_AVAILABLE where storage prepared a topic that is not the one of the partition."""
    return ErrorCode.NONE if prepared in (None, partition[0]) else ErrorCode.COORDINATOR_NOT_AVAILABLE


class TransactionVerifier:
    """What was verified. One for the process."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._verified: dict[int, _Verified] = {}
        self._looked_at = -math.inf
        """When what is not good any more was looked for, by `clock.monotonic`."""
        self._turns: dict[int, asyncio.Lock] = {}
        self._waiting: Counter[int] = Counter()
        """How many requests have or wait for the turn of each producer."""
        self._overtaken: set[int] = set()
        """Producers whose transaction ended while the coordinator was asked: what it said may be over."""

    def __len__(self) -> int:
        """How many producers something is verified of, or was."""
        return len(self._verified)

    def holds(self, producer_id: int, producer_epoch: int, partition: StoredPartition) -> bool:
        """Return true if the partition is in the producer's open transaction, and no earlier request still waits for
        that.
        """
        verified = self._verified.get(producer_id)
        return (
            verified is not None
            and verified.epoch == producer_epoch
            and partition in verified.partitions
            and producer_id not in self._waiting
            and (verified.until == math.inf or clock.monotonic() < verified.until)
        )

    def turn(self, producer_id: int) -> AbstractAsyncContextManager[None]:
        """Wait until earlier requests of the producer have written what they wait for; it has to be entered.

        The request waits from this call on: none that comes later `holds`, also before this is entered.
        """
        self._waiting[producer_id] += 1
        return self._turn(producer_id)

    @asynccontextmanager
    async def _turn(self, producer_id: int) -> AsyncIterator[None]:
        try:
            async with self._turns.setdefault(producer_id, asyncio.Lock()):
                yield
        finally:
            self._waiting[producer_id] -= 1
            if not self._waiting[producer_id]:
                del self._waiting[producer_id], self._turns[producer_id]
                self._overtaken.discard(producer_id)

    async def verify(
        self,
        producer: TransactionalProducer,
        partitions: dict[Partition, StoredPartition],
        *,
        add: bool,
        again: bool = False,
    ) -> VerifiedPartitions:
        """Ask the coordinator about those partitions of which it is not known that they are in the transaction.

        `again`: also where it is known. `add`: the client goes by version 2 of transactions, so they are added by this.
        Errors are those of the coordinator. Call it in the producer's `turn`. What it says holds until the loop's next
        turn.
        """
        transactional_id, producer_id, epoch = producer
        while True:
            self._overtaken.discard(producer_id)
            verified = self._verified.get(producer_id)
            now = clock.monotonic()
            if verified is not None and now >= verified.until:
                del self._verified[producer_id]
                verified = None
            if (
                not again
                and verified is not None
                and verified.epoch == epoch
                and verified.partitions.issuperset(partitions.values())
            ):
                errors = dict.fromkeys(partitions, ErrorCode.NONE)
                return VerifiedPartitions(errors=errors, storage_transaction=verified.storage_transaction)
            if add and (error := await self._add(producer, partitions)):
                return VerifiedPartitions(error)
            answer = await self._coordinators.verify_partitions(transactional_id, producer_id, epoch, partitions)
            if producer_id in self._overtaken:
                continue
            if answer.error:
                return answer
            answer = answer._replace(
                errors={
                    each: code or _error_of_topic(answer.topics.get(each[0]), partitions[each])
                    for each, code in answer.errors.items()
                }
            )
            name = answer.storage_transaction
            if verified is None or (verified.epoch, verified.storage_transaction) != (epoch, name):
                self._drop_old(now)
                until = now + LEASE_SECONDS if answer.passes else math.inf
                verified = self._verified[producer_id] = _Verified(epoch, name, until)
            verified.partitions.update(partitions[each] for each, code in answer.errors.items() if not code)
            return answer

    def _drop_old(self, now: float) -> None:
        """Forget now and then what is not good any more: its end may not have come, where this broker was away."""
        if now >= self._looked_at + LEASE_SECONDS:
            self._looked_at = now
            for producer_id in [each for each, verified in self._verified.items() if now >= verified.until]:
                del self._verified[producer_id]

    async def verify_offsets(
        self, producer: TransactionalProducer, offsets_partition: int, *, add: bool
    ) -> VerifiedPartitions:
        """Return true if the producer's open transaction has a partition of `__consumer_offsets`; `add` adds it before.

        Where it has not, the answer is an `error` of all.
        """
        partition = KAFKA_OFFSETS_TOPIC, offsets_partition
        if add and (error := await self._add(producer, [partition])):
            return VerifiedPartitions(error)
        answer = await self._coordinators.verify_partitions(*producer, [partition])
        return answer._replace(error=answer.error or answer.errors[partition])

    async def _add(self, producer: TransactionalProducer, partitions: Collection[Partition]) -> ErrorCode:
        return await self._coordinators.add_partitions(*producer, partitions, EPOCH_BUMPED_AT_END)

    def forget(self, producer_id: int) -> None:
        """Note that the producer's transaction ends: it has to be verified again before anything more is taken for
        it.
        """
        self._verified.pop(producer_id, None)
        if producer_id in self._waiting:
            self._overtaken.add(producer_id)
