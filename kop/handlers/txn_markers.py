"""WriteTxnMarkers (27) 1 and 2: a transaction ends, says the broker that coordinates it, or an operator's tool.

- From another broker of this cluster: take nothing more for the producer's transaction, and commit or drop its offsets
  in the partitions of `__consumer_offsets` that are coordinated here. What storage calls the transaction is in a
  tagged field of the header: a request that is late touches nothing of the producer's next one.
- From a tool (`kafka-transactions abort`), which names partitions of records: their markers are written where storage
  keeps markers; INVALID_PRODUCER_EPOCH if the log knows the producer by a newer epoch. Where it keeps no markers, a
  transaction is ended by its coordinator alone: INVALID_REQUEST.
- A partition that is not there is UNKNOWN_TOPIC_OR_PARTITION, one that another broker leads NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

import logging
from typing import Any, cast

from kop.cluster.client_topics import KAFKA_OFFSETS_TOPIC
from kop.errors import ErrorCode, KopError
from kop.handlers.access import Need
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import EPOCH_BUMPED_AT_END, MarkedLog, TopicInfo
from kop.turns import with_pauses
from kop.wire.rows import Response
from kop.wire.transaction_state import STORAGE_TRANSACTION

_log = logging.getLogger(__name__)


async def write_txn_markers(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer WriteTxnMarkers: end each transaction in the partitions that the request names for it, those of records
    and those of committed offsets.
    """
    allowed = ctx.may(AclOperation.ALTER, ResourceType.CLUSTER) or not ctx.cluster(AclOperation.CLUSTER_ACTION)
    markers = []
    async for marker in with_pauses(request.markers):
        if allowed:
            gw.ends.forget(marker.producer_id, _name_in_storage(ctx))
        topics = []
        for topic in marker.topics:
            rows = []
            async for index in with_pauses(topic.partition_indexes):
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if allowed:
                    code = await _end(gw, ctx, marker, topic.name, index)
                rows.append(dict(partition_index=index, error_code=code))
            topics.append(dict(name=topic.name, partitions=rows))
        markers.append(dict(producer_id=marker.producer_id, topics=topics))
    return ctx.response(markers=markers)


def _name_in_storage(ctx: Context) -> bytes:
    """Return the name in storage of the transaction that ends; empty if a tool asks, which knows none."""
    return (ctx.request_tags or {}).get(STORAGE_TRANSACTION, b"")


async def _end(gw: Gateway, ctx: Context, marker: Any, name: str, index: int) -> ErrorCode:
    commit = marker.transaction_result
    if name == KAFKA_OFFSETS_TOPIC:
        return await gw.ends.end_offsets(
            {index}, marker.producer_id, marker.producer_epoch, _name_in_storage(ctx), commit=commit
        )
    topic = ctx.topic(name, None)
    log = gw.topics.log(topic.topic_id, index) if isinstance(topic, TopicInfo) and not topic.internal else None
    if log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not gw.cluster.is_leader(log.topic.topic_id, index):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    description = f"{'commit' if commit else 'abort'} of producer {marker.producer_id} in {name}-{index}"
    if not gw.engine.promises.writes_markers:
        _log.warning(
            "the marker for the %s is refused: the storage ends transactions without markers; end this one by its "
            "transactional id, with: kop transactions abort",
            description,
        )
        return ErrorCode.INVALID_REQUEST
    try:
        await cast(MarkedLog, log).end_transaction(
            marker.producer_id,
            marker.producer_epoch,
            commit=commit,
            coordinator_epoch=marker.coordinator_epoch,
            bumps_epoch=ctx.version >= 2 and marker.transaction_version >= EPOCH_BUMPED_AT_END,
            now_ms=ctx.now_ms,
        )
    except KopError as error:
        _log.warning("the marker for the %s is refused: %s", description, error)
        return error.code
    _log.info("the marker for the %s is written, as a tool asked", description)
    return ErrorCode.NONE


APIS = (
    Api(
        27,
        1,
        2,
        write_txn_markers,
        (
            Need(AclOperation.ALTER, ResourceType.CLUSTER),
            Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER),
        ),
        overlaps=True,
        reads_tags=True,
    ),
)
