"""The transaction coordinator of any transactional id: this broker, or another one, which is asked over its Kafka port.

Owns: which broker is asked, and the requests to it (AddPartitionsToTxn 5, by which Kafka's brokers ask).
Must not know: what the coordinator decides, what follows from its answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from kop.cluster.cluster_view import ClusterView
from kop.coordination.peers import PeerAnswer, Peers
from kop.errors import ErrorCode, KopError
from kop.transactions.machine import Partition
from kop.transactions.runtime import TransactionCoordinator, VerifiedPartitions
from kop.wire.messages import AddPartitionsToTxnRequest
from kop.wire.primitives import OWN_TAGS
from kop.wire.transaction_state import STORAGE_TRANSACTION

TOPIC_IDS: Final = OWN_TAGS + 1
"""The tag, in the header of an answer, of the ids of the topics that another broker asked about, in their order; zeros
for none. See `VerifiedPartitions.topics`.
"""
_VERSION: Final = 5


class TransactionCoordinators:
    """The transaction coordinators of the cluster: for each transactional id this broker or another one is asked."""

    def __init__(self, own: TransactionCoordinator, cluster: ClusterView, peers: Peers) -> None:
        self._own = own
        self._cluster = cluster
        self._peers = peers

    def _elsewhere(self, transactional_id: str) -> int | None:
        """Return the id of the other broker that coordinates a transactional id; None if this one does, or if nobody
        does yet.
        """
        place = self._own.coordinator_of(transactional_id)
        if place is None or self._own.refusal_of(transactional_id) is not ErrorCode.NOT_COORDINATOR:
            return None
        leader = self._cluster.leader(*place)
        return None if leader == self._cluster.broker_id else leader

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[Partition],
        client_version: int,
    ) -> ErrorCode:
        """Add partitions to a transaction, by its coordinator here or on another broker; return NONE, or the error that
        kept one of them from being added. Another broker is asked by version 2 of transactions only.
        """
        broker_id = self._elsewhere(transactional_id)
        if broker_id is None:
            return await self._own.add_partitions(transactional_id, producer_id, epoch, partitions, client_version)
        answer = await self._ask(broker_id, transactional_id, producer_id, epoch, partitions, verify_only=False)
        if isinstance(answer, ErrorCode):
            return answer
        errors = set(_errors(answer).values()) - {ErrorCode.NONE}
        return next(iter(errors - {ErrorCode.OPERATION_NOT_ATTEMPTED} or errors), ErrorCode.NONE)

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[Partition]
    ) -> VerifiedPartitions:
        """Ask the coordinator, here or on another broker, if partitions are in the open transaction; return its answer,
        or the error for which there is none.
        """
        broker_id = self._elsewhere(transactional_id)
        if broker_id is None:
            own = await self._own.verify_partitions(transactional_id, producer_id, epoch, partitions)
            return own._replace(passes=not self._cluster.alone)  # another broker may coordinate it soon
        answer = await self._ask(broker_id, transactional_id, producer_id, epoch, partitions, verify_only=True)
        if isinstance(answer, ErrorCode):
            return VerifiedPartitions(answer)
        errors = _errors(answer)
        if errors.keys() != set(partitions):
            return VerifiedPartitions(ErrorCode.UNKNOWN_SERVER_ERROR)
        raw_ids = answer.tags.get(TOPIC_IDS, b"")
        topics = {
            name: UUID(bytes=raw_id)
            for index, name in enumerate(dict.fromkeys(name for name, _ in partitions))
            if len(raw_id := raw_ids[16 * index : 16 * index + 16]) == 16 and any(raw_id)
        }
        return VerifiedPartitions(
            errors=errors,
            storage_transaction=answer.tags.get(STORAGE_TRANSACTION, b""),
            topics=topics,
            passes=True,
        )

    async def _ask(
        self,
        broker_id: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[Partition],
        *,
        verify_only: bool,
    ) -> PeerAnswer | ErrorCode:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
        row = transaction.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            version=_VERSION,
            transactions=[
                transaction(
                    version=_VERSION,
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    verify_only=verify_only,
                    topics=[row(version=_VERSION, name=name, partitions=indexes) for name, indexes in topics.items()],
                )
            ],
        )
        try:
            answer = await self._peers.call(broker_id, request)
        except KopError as error:
            return error.code
        code = ErrorCode(answer.message.error_code)
        return code if code else answer


def _errors(answer: PeerAnswer) -> Mapping[Partition, ErrorCode]:
    return {
        (topic.name, partition.partition_index): ErrorCode(partition.partition_error_code)
        for result in answer.message.results_by_transaction
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
