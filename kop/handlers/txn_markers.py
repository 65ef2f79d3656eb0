"""WriteTxnMarkers (27) 1 and 2: a transaction ends, says the broker that coordinates it, or an operator's tool.

- From another broker of this cluster: take nothing more for the producer's transaction, and commit or drop its offsets
  in the partitions of `__consumer_offsets` that are coordinated here.
- From a tool (`kafka-transactions abort`), which names partitions of records: their markers are written where storage
  keeps markers. Where it does not, a transaction is ended by its coordinator alone: INVALID_REQUEST.
- A partition that is not there is UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from typing import Any

from kop.cluster.client_topics import KAFKA_OFFSETS_TOPIC
from kop.errors import ErrorCode, KopError
from kop.handlers.api import AclOperation, Api, Context
from kop.handlers.gateway import Gateway
from kop.storage.base import EndedTransaction
from kop.wire.messages import WriteTxnMarkersResponse


async def write_txn_markers(gw: Gateway, ctx: Context, request: Any) -> Any:
    """End each transaction in the partitions that are named for it."""
    result_class = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic_class = result_class.WritableTxnMarkerTopicResult
    partition_class = topic_class.WritableTxnMarkerPartitionResult
    results = []
    for marker in request.markers:
        gw.ends.forget(marker.producer_id)
        topics = []
        for topic in marker.topics:
            rows = []
            for index in topic.partition_indexes:
                code = await _end(gw, ctx.version, marker, topic.name, index)
                rows.append(partition_class(version=ctx.version, partition_index=index, error_code=code))
            topics.append(topic_class(version=ctx.version, name=topic.name, partitions=rows))
        results.append(result_class(version=ctx.version, producer_id=marker.producer_id, topics=topics))
    return WriteTxnMarkersResponse(version=ctx.version, markers=results)


async def _end(gw: Gateway, version: int, marker: Any, name: str, index: int) -> ErrorCode:
    commit = marker.transaction_result
    if name == KAFKA_OFFSETS_TOPIC:
        return await gw.ends.end_offsets({index}, marker.producer_id, marker.producer_epoch, commit=commit)
    topic = gw.topics.get(name)
    if topic is None or not 0 <= index < topic.partitions or topic.internal:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        await gw.engine.transactions.end(
            EndedTransaction(
                "",
                marker.producer_id,
                marker.producer_epoch,
                frozenset({(gw.topics.canonical_name(name), index)}),
                commit,
                marker.transaction_version if version >= 2 else 0,
            )
        )
    except KopError as error:
        return error.code
    return ErrorCode.NONE


APIS = (Api(27, 1, 2, write_txn_markers, AclOperation.CLUSTER_ACTION, overlaps=True),)
