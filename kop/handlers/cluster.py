"""The cluster as it is: the live brokers, one replica of everything.

- DescribeCluster (60) 0 to 2: the live brokers, this one under the address that the client can reach. Endpoint type 2
  (controllers) is MISMATCHED_ENDPOINT_TYPE, others than 1 are UNSUPPORTED_ENDPOINT_TYPE. Operations are
  told when asked for.
- DescribeLogDirs (35) 1 to 5: one directory, the engine's, with the sizes of this broker's partitions and the room on
  its disk.
- DescribeQuorum (55) 0 to 2: one voter, this broker. The metadata log's end is the topics' version.
- ElectLeaders (43) 0 to 2: ELECTION_NOT_NEEDED for every partition that there is.
- ListPartitionReassignments (46) 0: none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

from kop.errors import ErrorCode, KopError
from kop.handlers.access import Need
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.handlers.in_time import all_in_time
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import PartitionLog
from kop.wire.messages import Message
from kop.wire.rows import Response

_BROKERS, _CONTROLLERS = 1, 2
_METADATA_TOPIC = "__cluster_metadata"
_PREFERRED, _UNCLEAN = 0, 1
_MOST_MEASURED = 1000
"""The most partitions whose size storage is asked for by one DescribeLogDirs; of those beyond it, unused ones are left
out.
"""
_MEASURED_AT_ONCE = 16
"""Partitions that one request asks for side by side."""
_UNKNOWN_PARTITION = "This server does not host this topic-partition."


def describe_cluster(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DescribeCluster with the live brokers; the first of them is the controller for clients."""
    kind = request.endpoint_type if ctx.version >= 1 else _BROKERS
    if kind != _BROKERS:
        code, message = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {kind}"
        if kind == _CONTROLLERS:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
            message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return ctx.response(error_code=code, error_message=message, cluster_id="", controller_id=-1, brokers=[])
    brokers = [
        dict(broker_id=broker_id, host=host, port=port, rack=None, is_fenced=False)
        for broker_id, host, port in gw.cluster.endpoints(ctx.conn.broker_address, ctx.conn.listener)
    ]
    asked = request.include_cluster_authorized_operations
    return ctx.response(
        error_code=0,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=gw.engine.cluster_id,
        controller_id=gw.cluster.ids[0],
        brokers=brokers,
        authorized_operations=ctx.operations(ResourceType.CLUSTER, ctx.namespace_name, asked=asked),
    )


# --- DescribeLogDirs


async def describe_log_dirs(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DescribeLogDirs with the sizes of the partitions asked for. Those that do not exist, that another broker
    leads, or that cannot be measured in time are left out.
    """
    if refusal := ctx.cluster(AclOperation.DESCRIBE):
        return ctx.response(error_code=refusal, results=[])
    topics = [
        dict(
            name=name,
            partitions=[
                dict(partition_index=index, partition_size=size, offset_lag=0, is_future_key=False)
                for index, size in sizes
            ],
        )
        for name, sizes in await _sizes(gw, ctx, request.topics)
    ]
    directory = "" if gw.engine.directory is None else os.fspath(gw.engine.directory)
    code, total, usable = ErrorCode.NONE, -1, -1
    if directory:
        try:
            disk = os.statvfs(directory)
        except OSError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            total, usable = disk.f_frsize * disk.f_blocks, disk.f_frsize * disk.f_bavail
    return ctx.response(
        error_code=0,
        results=[
            dict(
                error_code=code,
                log_dir=directory,
                topics=topics if code == ErrorCode.NONE else [],
                total_bytes=total,
                usable_bytes=usable,
                is_cordoned=False,
            )
        ],
    )


async def _sizes(gw: Gateway, ctx: Context, wanted: Iterable[Any] | None) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return the sizes of those partitions that this broker leads: by topic, index and bytes of each. `wanted` has the
    topics and partitions of the request; None stands for all.

    A partition that cannot be measured, or not within 20 s, is left out: 0 would be a wrong answer, and the protocol
    has no error for a partition. Storage is asked for 1,000 partitions that are not in use at most; of those beyond,
    none is answered.
    """
    if wanted is None:
        indexes_by_topic: dict[str, Iterable[int]] = {topic.name: range(topic.partitions) for topic in gw.topics.all()}
    else:
        indexes_by_topic = {topic.topic: dict.fromkeys(topic.partitions) for topic in wanted}
    known: dict[tuple[str, int], int | None] = {}
    to_ask: dict[tuple[str, int], PartitionLog] = {}
    for name, indexes in indexes_by_topic.items():
        topic = ctx.topic(name, None)
        if isinstance(topic, ErrorCode):
            continue
        for index in indexes:
            partition_log = gw.topics.log(topic.topic_id, index)
            if partition_log is None or not gw.cluster.is_leader(topic.topic_id, index):
                continue
            if partition_log.attached:
                known[name, index] = partition_log.size_bytes
            elif len(to_ask) < _MOST_MEASURED:
                known[name, index] = None
                to_ask[name, index] = partition_log
    answers = await all_in_time(
        [partial(_measure, partition_log) for partition_log in to_ask.values()],
        at_once=_MEASURED_AT_ONCE,
        what="sizes",
        then="they are left out of the answer to DescribeLogDirs",
    )
    known.update(zip(to_ask, answers, strict=True))
    sizes: dict[str, list[tuple[int, int]]] = {}
    for (name, index), size in known.items():
        if size is not None:
            sizes.setdefault(name, []).append((index, size))
    return list(sizes.items())


async def _measure(partition_log: PartitionLog) -> int | None:
    try:
        return await partition_log.measure()
    except KopError:
        return None


# --- DescribeQuorum


def describe_quorum(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DescribeQuorum for the metadata topic's one partition; for any other topic or partition nothing is
    described, as in Kafka.
    """
    partitions = [(topic.topic_name, part.partition_index) for topic in request.topics for part in topic.partitions]
    is_metadata = partitions == [(_METADATA_TOPIC, 0)]
    return ctx.response(
        error_code=0,
        error_message="",
        topics=[
            dict(
                topic_name=topic.topic_name,
                partitions=[_quorum(gw, ctx, part.partition_index, is_metadata) for part in topic.partitions],
            )
            for topic in request.topics
        ],
        nodes=[_node(gw, ctx)] if is_metadata and ctx.version >= 2 else [],
    )


def _node(gw: Gateway, ctx: Context) -> dict[str, Any]:
    host, port = ctx.conn.broker_address
    return dict(node_id=gw.cluster.broker_id, listeners=[dict(name="PLAINTEXT", host=host, port=port)])


def _quorum(gw: Gateway, ctx: Context, index: int, is_metadata: bool) -> dict[str, Any]:
    if not is_metadata:
        return dict(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=_UNKNOWN_PARTITION,
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
            current_voters=[],
            observers=[],
        )
    end = gw.topics.version
    voter = dict(
        replica_id=gw.cluster.broker_id,
        replica_directory_id=None,
        log_end_offset=end,
        last_fetch_timestamp=ctx.now_ms,
        last_caught_up_timestamp=ctx.now_ms,
    )
    return dict(
        partition_index=index,
        error_code=0,
        error_message="",
        leader_id=gw.cluster.broker_id,
        leader_epoch=0,
        high_watermark=end,
        current_voters=[voter],
        observers=[],
    )


# --- ElectLeaders, ListPartitionReassignments


def elect_leaders(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer ElectLeaders with ELECTION_NOT_NEEDED for every partition that exists, since it has its leader; for any
    other UNKNOWN_TOPIC_OR_PARTITION. A request for all partitions is answered without any partition, as in Kafka.
    """
    kind = request.election_type if ctx.version >= 1 else _PREFERRED
    is_known_kind = kind in {_PREFERRED, _UNCLEAN}
    refusal = ctx.cluster(AclOperation.ALTER)
    if request.topic_partitions is None:
        indexes_by_topic: dict[str, list[int]] = {} if refusal else {topic.name: [] for topic in gw.topics.all()}
    else:
        indexes_by_topic = {}
        for topic in request.topic_partitions:
            indexes_by_topic.setdefault(topic.topic, []).extend(topic.partitions)
    results = []
    for name, partitions in indexes_by_topic.items():
        rows = []
        for index in partitions:
            code, message = _election(ctx, name, index)
            if refusal:
                code, message = refusal, "Cluster authorization failed."
            elif not is_known_kind:
                code, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}"
            rows.append(dict(partition_id=index, error_code=code, error_message=message))
        results.append(dict(topic=name, partition_result=rows))
    return ctx.response(
        error_code=refusal or (ErrorCode.NONE if is_known_kind else ErrorCode.INVALID_REQUEST),
        replica_election_results=results,
    )


def _election(ctx: Context, name: str, index: int) -> tuple[ErrorCode, str]:
    topic = ctx.topic(name, None)
    if isinstance(topic, ErrorCode):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    if not 0 <= index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."


def list_partition_reassignments(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer ListPartitionReassignments with none, since every partition has one replica."""
    return ctx.response(error_code=0, error_message=None, topics=[])


_DESCRIBE = (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER, whole=True),)
_ALTER = Need(AclOperation.ALTER, ResourceType.CLUSTER)

APIS: tuple[Api, ...] = (
    Api(
        35,
        1,
        5,
        describe_log_dirs,
        (
            Need(AclOperation.DESCRIBE, ResourceType.CLUSTER),
            Need(None, ResourceType.TOPIC, lambda request: [topic.topic for topic in request.topics or ()]),
        ),
    ),
    Api(
        43,
        0,
        2,
        elect_leaders,
        (
            _ALTER,
            Need(None, ResourceType.TOPIC, lambda request: [topic.topic for topic in request.topic_partitions or ()]),
        ),
    ),
    Api(46, 0, 0, list_partition_reassignments, _DESCRIBE),
    Api(55, 0, 2, describe_quorum, _DESCRIBE),
    Api(60, 0, 2, describe_cluster),
)
