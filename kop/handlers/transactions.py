"""AddPartitionsToTxn (24) 0 to 5, AddOffsetsToTxn (25) 0 to 4, EndTxn (26) 0 to 5: transactions of producers (KIP-98).

The rules are in `kop.transactions`; this is what depends on versions.

- AddPartitionsToTxn 0 to 3 come from clients, 4 and 5 from brokers: these name several transactions, and may only ask
  whether a partition is in one (KIP-890). A broker of this kind, which asks about one transaction at a time, is told
  its name in storage, too, and the ids of the topics, in tagged fields of the header.
- AddOffsetsToTxn takes an empty group id, as in Kafka; TxnOffsetCommit refuses it.
- A partition that is not there is UNKNOWN_TOPIC_OR_PARTITION, the others OPERATION_NOT_ATTEMPTED then: nothing is
  added. Internal topics are TOPIC_AUTHORIZATION_FAILED, as in Kafka; brokers may name that of groups' offsets.
- PRODUCER_FENCED is INVALID_PRODUCER_EPOCH below version 2 of each of the three.
- TRANSACTION_ABORTABLE, for a partition that is not in the transaction or a transaction that storage has ended, is
  INVALID_TXN_STATE below AddPartitionsToTxn 5.
- A transaction that storage has ended is TRANSACTION_ABORTABLE for a commit, too, and INVALID_TXN_STATE below EndTxn 4.
- EndTxn 5 goes by version 2 of transactions: it bumps the epoch and answers the new one.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kop.cluster.client_topics import KAFKA_OFFSETS_TOPIC
from kop.errors import ErrorCode
from kop.handlers.access import Need, is_refusal, named_group, named_transactional_id
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.security.rights import CLUSTER_NAME, AclOperation, ResourceType
from kop.storage.base import EPOCH_BUMPED_AT_END
from kop.transactions.coordinators import TOPIC_IDS
from kop.transactions.machine import Partition
from kop.turns import with_pauses
from kop.wire.primitives import encode_tags
from kop.wire.rows import Response
from kop.wire.transaction_state import STORAGE_TRANSACTION

_NO_ID = UUID(int=0)
_BATCHED = 4
"""The version of AddPartitionsToTxn from which on it comes from brokers."""
_ABORTABLE = 4
"""The version of EndTxn from which on clients know TRANSACTION_ABORTABLE."""


def error_for(code: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """Return the error code for a client: INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED if its version does not
    know that (KIP-588).
    """
    if code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


async def add_partitions_to_txn(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer AddPartitionsToTxn: add the partitions of each transaction to it, or, if another broker only verifies
    them, tell which are in it.
    """
    version = ctx.version
    if version < _BATCHED:
        transactional_id, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
        refusal = ctx.transactional_id(transactional_id, AclOperation.WRITE)
        if refusal:
            errors = {(topic.name, index): refusal for topic in topics for index in topic.partitions}
        else:
            errors = await _add(
                gw,
                ctx,
                transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                topics,
                client_version=0,
            )
        errors = {
            key: ErrorCode.INVALID_TXN_STATE
            if code is ErrorCode.TRANSACTION_ABORTABLE
            else error_for(code, knows_fenced=version >= 2)
            for key, code in errors.items()
        }
        return ctx.response(results_by_topic_v3_and_below=await _topic_rows(topics, errors))
    results = []
    async for transaction in with_pauses(request.transactions):
        if transaction.verify_only:
            errors = await _verify(gw, ctx, transaction)
        else:
            errors = await _add(
                gw,
                ctx,
                transaction.transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.topics,
                client_version=EPOCH_BUMPED_AT_END,
            )
        if version == _BATCHED:
            errors = {
                key: ErrorCode.INVALID_TXN_STATE if code is ErrorCode.TRANSACTION_ABORTABLE else code
                for key, code in errors.items()
            }
        rows = await _topic_rows(transaction.topics, errors)
        results.append(dict(transactional_id=transaction.transactional_id, topic_results=rows))
    return ctx.response(error_code=0, results_by_transaction=results)


async def _add(
    gw: Gateway,
    ctx: Context,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    topics: Any,
    *,
    client_version: int,
) -> dict[Partition, ErrorCode]:
    """Add partitions to a transaction; return the error of each, by the names in the request. If one of them may not be
    added none is, and the others are OPERATION_NOT_ATTEMPTED. `client_version` is the version of transactions that the
    producer goes by, 0 for a request of a client itself.
    """
    errors: dict[Partition, ErrorCode] = {}
    names: dict[Partition, Partition] = {}
    async for topic_row in with_pauses(topics):
        # A broker asks for what it has allowed its client.
        topic = ctx.topic(topic_row.name, None if client_version else AclOperation.WRITE)
        async for index in with_pauses(topic_row.partitions):
            key = topic_row.name, index
            names[key] = ctx.canonical_name(topic_row.name), index
            if is_refusal(topic):
                errors[key] = topic
            elif isinstance(topic, ErrorCode) or not 0 <= index < topic.partitions:
                errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif topic.internal and (client_version < EPOCH_BUMPED_AT_END or topic.name != KAFKA_OFFSETS_TOPIC):
                errors[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if errors:
        return {key: errors.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED) for key in names}
    if not names:
        return {}
    code = await gw.transactions.add_partitions(
        transactional_id, producer_id, epoch, set(names.values()), client_version
    )
    return dict.fromkeys(names, code)


async def _verify(gw: Gateway, ctx: Context, transaction: Any) -> dict[Partition, ErrorCode]:
    """Return an error code for each partition of a transaction that another broker wants to write into; NONE allows it
    for five seconds. Nothing is noted of that broker, since all live ones are told of the end: one that is not live, or
    was stopped and is not seen again yet, gets COORDINATOR_NOT_AVAILABLE for all partitions.

    If a broker asks, the name of the transaction in storage and the ids of the topics are put into the header of the
    answer.
    """
    partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    asking = ctx.asking_broker()
    if asking is not None and asking not in gw.cluster.ids:
        return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    verified = await gw.transactions.verify_partitions(
        transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, partitions
    )
    if verified.error:
        return dict.fromkeys(partitions, verified.error)
    if verified.storage_transaction and asking is not None:
        ids = [verified.topics.get(topic.name, _NO_ID).bytes for topic in transaction.topics]
        ctx.header_tags = encode_tags({STORAGE_TRANSACTION: verified.storage_transaction, TOPIC_IDS: b"".join(ids)})
    return dict(verified.errors)


async def _topic_rows(topics: Any, errors: dict[Partition, ErrorCode]) -> list[dict[str, Any]]:
    return [
        dict(
            name=topic.name,
            results_by_partition=[
                dict(partition_index=index, partition_error_code=errors[topic.name, index])
                async for index in with_pauses(topic.partitions)
            ],
        )
        async for topic in with_pauses(topics)
    ]


async def add_offsets_to_txn(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer AddOffsetsToTxn: add the partition of `__consumer_offsets` that keeps the group's offsets to the
    transaction.
    """
    place = gw.groups.coordinator_of(request.group_id)
    if place is None:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    else:
        code = await gw.transactions.add_partitions(
            request.transactional_id, request.producer_id, request.producer_epoch, {(KAFKA_OFFSETS_TOPIC, place[1])}, 0
        )
    return ctx.response(error_code=error_for(code, knows_fenced=ctx.version >= 2))


async def end_txn(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer EndTxn once the decision to commit or abort is durable, from version 5 on with the producer's next epoch;
    the markers are written after the answer.
    """
    version = ctx.version
    identity = await gw.transactions.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        commit=request.committed,
        client_version=EPOCH_BUMPED_AT_END if version >= 5 else 0,
    )
    error = identity.error
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE:
        error = ErrorCode.INVALID_TXN_STATE
    code = error_for(error, knows_fenced=version >= 2)
    if version < 5:
        return ctx.response(error_code=code)
    return ctx.response(error_code=code, producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)


def _added_by_client(request: Any) -> Any:
    return (request.v3_and_below_transactional_id,) if request.API_VERSION < _BATCHED else ()


def _topics_of_client(request: Any) -> Any:
    return [topic.name for topic in request.v3_and_below_topics] if request.API_VERSION < _BATCHED else ()


def _topics_of_brokers(request: Any) -> Any:
    if request.API_VERSION < _BATCHED:
        return ()
    return [topic.name for transaction in request.transactions for topic in transaction.topics]


def _is_of_broker(request: Any) -> Any:
    return () if request.API_VERSION < _BATCHED else (CLUSTER_NAME,)


_WRITE = Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, named_transactional_id, whole=True)

APIS = (
    Api(
        24,
        0,
        5,
        add_partitions_to_txn,
        (
            Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, _is_of_broker, whole=True),
            Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, _added_by_client),
            Need(AclOperation.WRITE, ResourceType.TOPIC, _topics_of_client),
            Need(None, ResourceType.TOPIC, _topics_of_brokers),
        ),
        overlaps=True,
    ),
    Api(
        25,
        0,
        4,
        add_offsets_to_txn,
        (
            _WRITE,
            Need(AclOperation.READ, ResourceType.GROUP, named_group, whole=True),
        ),
    ),
    Api(26, 0, 5, end_txn, (_WRITE,)),
)
