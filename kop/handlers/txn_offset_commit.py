"""TxnOffsetCommit (28) 0 to 5: offsets that are committed when the producer's transaction is (KIP-98, 447, 890).

- Partitions are checked as by OffsetCommit: those that are not there are UNKNOWN_TOPIC_OR_PARTITION, and if none is
  left nothing else is looked at. Every other error is that of all partitions that are there, but for
  OFFSET_METADATA_TOO_LARGE.
- The transaction is asked first, the group then. From version 5 on the group's partition of `__consumer_offsets` is
  added to the transaction by this request; below it has to be in it (AddOffsetsToTxn).
- From version 3 on the member is named: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION. Below it, and with
  generation -1 and no member, nothing is asked of the group.
- PRODUCER_FENCED is told as INVALID_PRODUCER_EPOCH. Below version 4 TRANSACTION_ABORTABLE is INVALID_TXN_STATE; below
  version 2 COORDINATOR_LOAD_IN_PROGRESS is COORDINATOR_NOT_AVAILABLE: old producers give up otherwise (KAFKA-7296).
- A topic that is deleted while the transaction is asked is UNKNOWN_TOPIC_OR_PARTITION, also where it was made again.
- Where a transaction of the producer ends while it is asked, it is asked again: if that was this transaction its
  offsets would stay for ever, and if it was the one before all is well.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

from kop.errors import ErrorCode
from kop.groups.offsets import Commit
from kop.handlers.access import Need, named_group, named_topics, named_transactional_id
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.handlers.group_offsets import existing_partitions, is_too_large
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import TopicInfo
from kop.transactions.verification import TransactionalProducer
from kop.turns import with_pauses
from kop.wire.rows import Response

_ADDS_PARTITION: Final = 5
"""The version of TxnOffsetCommit from which on the request adds the group's partition to the transaction."""
_NAMES_MEMBER: Final = 3
_ABORTABLE: Final = 4
_LOADING: Final = 2
_NOT_VERIFIED: Final = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""The errors that the client gets instead of some of the transaction coordinator's errors."""


async def txn_offset_commit(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer TxnOffsetCommit when the offsets are durable, after asking the transaction coordinator and the group; at
    once if the client lacks a right or no partition exists.
    """
    refusal = ctx.transactional_id(request.transactional_id, AclOperation.WRITE) or ctx.group(
        request.group_id, AclOperation.READ
    )
    if refusal:
        return await _committed(ctx, request, [[refusal] * len(topic.partitions) for topic in request.topics])
    codes, good = existing_partitions(ctx, request, by_id=False)
    if not good:
        return await _committed(ctx, request, codes)
    limit = gw.groups.settings.offset_metadata_max_bytes
    commits: list[Commit] = []
    async for of_topic, column, topic, partition in with_pauses(good):
        metadata = partition.committed_metadata or ""
        if is_too_large(metadata, limit):
            of_topic[column] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        epoch = partition.committed_leader_epoch if ctx.version >= 2 else -1
        name, index = ctx.canonical_name(topic.name), partition.partition_index
        commits.append(Commit(name, topic.topic_id, index, partition.committed_offset, epoch, metadata))
    error, gone = await _commit(gw, ctx, request, commits)
    if error is ErrorCode.TRANSACTION_ABORTABLE and ctx.version < _ABORTABLE:
        error = ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.version < _LOADING:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    for of_topic, column, topic, _ in good if error or gone else ():
        if error:
            of_topic[column] = error
        elif topic.topic_id in gone:
            of_topic[column] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return await _committed(ctx, request, codes)


async def _commit(
    gw: Gateway, ctx: Context, request: Any, commits: list[Commit]
) -> tuple[ErrorCode, Collection[UUID | None]]:
    """Write the offsets, and wait until they are durable; return the error of all partitions, and the ids of topics
    that do not exist any more, whose offsets are not committed.
    """
    group_id, producer_id = request.group_id, request.producer_id
    if refusal := gw.groups.refusal_of(group_id):
        return refusal, ()
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID, ()
    place = gw.groups.coordinator_of(group_id)
    if place is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ()
    while True:
        with gw.groups.guard_transaction(group_id, producer_id) as guard:
            verified = await gw.verifier.verify_offsets(
                TransactionalProducer(request.transactional_id, producer_id, request.producer_epoch),
                place[1],
                add=ctx.version >= _ADDS_PARTITION,
            )
            if verified.error:
                return _NOT_VERIFIED.get(verified.error, verified.error), ()
            if guard.ended:
                continue
            member = ("", None, -1)
            if ctx.version >= _NAMES_MEMBER:
                member = (request.member_id, request.group_instance_id, request.generation_id)
            error = gw.groups.check_commit_in_transaction(group_id, *member)
            gone = {each.topic_id for each in commits if not _is_there(ctx, each)}
            commits = [each for each in commits if each.topic_id not in gone]
            if error or not commits:
                return error, gone
            durable = gw.groups.commit_in_transaction(
                group_id,
                producer_id,
                request.producer_epoch,
                commits,
                guard,
                storage_transaction=verified.storage_transaction,
            )
        return await durable, gone


def _is_there(ctx: Context, commit: Commit) -> bool:
    topic = ctx.topic(commit.topic, None)
    return isinstance(topic, TopicInfo) and topic.topic_id == commit.topic_id


async def _committed(ctx: Context, request: Any, codes: list[list[ErrorCode]]) -> Response:
    return ctx.response(
        topics=[
            dict(
                name=topic.name,
                partitions=[
                    dict(partition_index=partition.partition_index, error_code=code)
                    for partition, code in zip(topic.partitions, row, strict=True)
                ],
            )
            async for topic, row in with_pauses(zip(request.topics, codes, strict=True))
        ]
    )


APIS = (
    Api(
        28,
        0,
        5,
        txn_offset_commit,
        (
            Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, named_transactional_id),
            Need(AclOperation.READ, ResourceType.GROUP, named_group),
            Need(AclOperation.READ, ResourceType.TOPIC, named_topics),
        ),
    ),
)
