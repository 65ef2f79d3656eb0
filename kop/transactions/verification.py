"""The open transactions that this broker takes records and offsets for (KIP-890), each verified with its coordinator.

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
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kop import clock
from kop.cluster.client_topics import KAFKA_OFFSETS_TOPIC
from kop.errors import ErrorCode
from kop.storage.base import EPOCH_BUMPED_AT_END
from kop.transactions.coordinators import TransactionCoordinators
from kop.transactions.machine import Partition
from kop.transactions.runtime import VerifiedPartitions

StoredPartition: TypeAlias = tuple[UUID, int]
"""The type of a partition's key in storage: topic id and partition. A later topic of the same name has another one."""

LEASE_SECONDS: Final = 5.0
"""The seconds for which a coordinator's answer is valid if there can be several brokers. The transaction's coordinator
waits for as long before it ends it without having reached this broker, which may write into it until then.
"""


class TransactionalProducer(NamedTuple):
    """A transactional producer as its request names it: transactional id, producer id and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class _Verified:
    epoch: int
    storage_transaction: bytes
    until: float = math.inf
    """The time until which the verification is valid, by `clock.monotonic`."""
    partitions: set[StoredPartition] = field(default_factory=set)


def _error_of_topic(prepared: UUID | None, partition: StoredPartition) -> ErrorCode:
    """Return COORDINATOR_NOT_AVAILABLE if storage prepared a topic of the same name but with another id than the
    partition's; else NONE.
    """
    return ErrorCode.NONE if prepared in (None, partition[0]) else ErrorCode.COORDINATOR_NOT_AVAILABLE


class TransactionVerifier:
    """The verified partitions of open transactions, by producer; one object for the process."""

    def __init__(self, coordinators: TransactionCoordinators) -> None:
        self._coordinators = coordinators
        self._verified: dict[int, _Verified] = {}
        self._looked_at = -math.inf
        """The time at which verifications that are not valid any more were last dropped, by `clock.monotonic`."""
        self._turns: dict[int, asyncio.Lock] = {}
        self._waiting: Counter[int] = Counter()
        """The number of requests that have or wait for the turn of each producer."""
        self._overtaken: set[int] = set()
        """The producers whose transaction ended while the coordinator was asked, so that its answer may be of the
        past.
        """

    def __len__(self) -> int:
        """Return the number of producers that have, or had, verified partitions."""
        return len(self._verified)

    def holds(self, producer_id: int, producer_epoch: int, partition: StoredPartition) -> bool:
        """Return true if the partition is verified to be in the producer's open transaction, the verification is still
        valid, and no earlier request of the producer still waits for one.
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
        """Return the producer's turn, to be entered by `async with`: entering waits until earlier requests of the
        producer have written their batches.

        The request counts as waiting from this call on, before the turn is entered: `holds` is false for later ones.
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
        """Return, for each of the partitions, if it is in the producer's open transaction: from memory if all of them
        are verified, else by asking the coordinator about all.

        `again` asks in any case. With `add` the client goes by version 2 of transactions, so that the partitions are
        added before. Errors are those of the coordinator, and COORDINATOR_NOT_AVAILABLE for a topic that was made again
        meanwhile. Call it in the producer's `turn`. The result holds until the loop's next turn.
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
        """Drop verifications that are not valid any more, at most once in five seconds: the ends of their transactions
        may not have reached this broker. `now` is a time of `clock.monotonic`.
        """
        if now >= self._looked_at + LEASE_SECONDS:
            self._looked_at = now
            for producer_id in [each for each, verified in self._verified.items() if now >= verified.until]:
                del self._verified[producer_id]

    async def verify_offsets(
        self, producer: TransactionalProducer, offsets_partition: int, *, add: bool
    ) -> VerifiedPartitions:
        """Verify that the producer's open transaction has a partition of `__consumer_offsets`; with `add`, add it
        before.

        If it has not, the answer holds an `error` of all.
        """
        partition = KAFKA_OFFSETS_TOPIC, offsets_partition
        if add and (error := await self._add(producer, [partition])):
            return VerifiedPartitions(error)
        answer = await self._coordinators.verify_partitions(*producer, [partition])
        return answer._replace(error=answer.error or answer.errors[partition])

    async def _add(self, producer: TransactionalProducer, partitions: Collection[Partition]) -> ErrorCode:
        return await self._coordinators.add_partitions(*producer, partitions, EPOCH_BUMPED_AT_END)

    def forget(self, producer_id: int) -> None:
        """Drop the verification of the producer's transaction, which ends: nothing is taken for it without a new
        one.
        """
        self._verified.pop(producer_id, None)
        if producer_id in self._waiting:
            self._overtaken.add(producer_id)
