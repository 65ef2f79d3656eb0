"""Metadata (3) versions 0 to 13, DescribeTopicPartitions (75) version 0.

Metadata
- Version 0 takes an empty list for all topics; from 1 on null is all and an empty list none.
- Topic ids are answered from version 10 and accepted from 12: an unknown id is UNKNOWN_TOPIC_ID, and a name beside an
  id is not looked at (Java sends an empty one), nor is any name of a request that has an id. A request of version 10 or
  11 that has an id is INVALID_REQUEST for all of its topics.
- A topic that is asked for twice is answered once.
- A topic that is missing is made where auto.create.topics.enable and, from version 4, the request allow it, and is
  answered in the same response; where that takes longer than 5 s it is LEADER_NOT_AVAILABLE, and is made meanwhile.
  What CreateTopics would refuse is not made: a name that another one differs from only in '.' and '_' is
  INVALID_TOPIC_EXCEPTION; too many partitions, of one request or in all, are POLICY_VIOLATION.
- All live brokers are told, this one under the address that this client can reach. Partitions have one replica, their
  leader, and leader_epoch 0.
- Authorized operations are -2147483648 unless asked for; without an authorizer all of Kafka's operations are allowed,
  on a name that is no topic, too. An unknown id has none.
- A topic of another namespace is looked for when it is named; a client that asks for all gets the home namespace.
- Answers are kept encoded, by version, address and topics, until a topic changes: Spark and Connect ask all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kop.cluster.client_topics import RESERVED
from kop.errors import ErrorCode, KopError
from kop.handlers import auto_creation
from kop.handlers.api import AclOperation, Api, Context, Frame, undecoded
from kop.handlers.gateway import Gateway
from kop.handlers.topic_limits import InMaking
from kop.storage.base import TopicInfo
from kop.wire import codec
from kop.wire.messages import (
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

_TOPIC_OPERATIONS = {3, 4, 5, 6, 7, 8, 10, 11}
"""READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"""
_CLUSTER_OPERATIONS = {5, 7, 8, 9, 10, 11, 12}
"""CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE"""
_LARGE = 16 * 1024
"""Bytes of a request from which on it is answered in parts, so that others have their turn."""
_PART_TOPICS = 200
_LIBRDKAFKA_SLACK = 3
"""librdkafka asks for all topics from version 9 on with three bytes too many: an array's old length, left in place."""


def metadata(gw: Gateway, ctx: Context, body: memoryview) -> Any:
    """Answer from the cache where the same was asked before, else look up, making topics where that is allowed."""
    key = (ctx.version, ctx.conn.broker_address, bytes(body))
    version = (gw.topics.version, gw.cluster.version)
    kept = gw.metadata_cache.get(version, key)
    if kept is not None:
        return _framed(ctx.correlation_id, kept)
    if len(body) > _LARGE:
        return _answer_with_pauses(gw, ctx, bytes(body))
    request = _decoded(ctx.version, body)
    if _asks_for_ids_too_early(ctx.version, request):
        return _framed(ctx.correlation_id, codec.encode_response(0, _refusal(ctx.version, request))[8:])
    to_find = gw.topics.names_to_find(topic.name for topic in request.topics or ())
    missing = _to_create(gw, ctx, request)
    if to_find or missing:
        return _find_and_answer(gw, ctx, request)
    answer = codec.encode_response(0, _answer(gw, ctx, request))[8:]
    if all(topic.name is None or "/" not in topic.name or gw.topics.get(topic.name) for topic in request.topics or ()):
        gw.metadata_cache.put(version, key, answer)  # otherwise no version would show that such a topic was made
    return _framed(ctx.correlation_id, answer)


def _framed(correlation_id: int, rest: bytes) -> Frame:
    return ((len(rest) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big", signed=True), rest)


def _decoded(version: int, body: memoryview) -> Any:
    """A request with each topic once, and without names where there are ids: so Kafka answers it."""
    request = codec.decode(MetadataRequest, version, body, slack=_LIBRDKAFKA_SLACK)
    if request.topics and len(request.topics) > 1 and not _asks_for_ids_too_early(version, request):
        of_ids = {topic.topic_id: topic for topic in request.topics if topic.topic_id is not None}
        request.topics = list((of_ids or {topic.name: topic for topic in request.topics}).values())
    return request


def _asks_for_ids_too_early(version: int, request: Any) -> bool:
    return 10 <= version <= 11 and any(topic.topic_id is not None for topic in request.topics or ())


def _refusal(version: int, request: Any) -> Any:
    """INVALID_REQUEST for every topic of a request, and nothing of the cluster: as Kafka answers."""
    response = MetadataResponse(version=version, brokers=[], cluster_id=None, controller_id=-1)
    response.topics = [
        _row(version, (ErrorCode.INVALID_REQUEST, topic.name or "", topic.topic_id, False, [], None))
        for topic in request.topics
    ]
    response.authorized_operations = None
    return response


def _to_create(gw: Gateway, ctx: Context, request: Any) -> list[str]:
    if not gw.settings.auto_create_topics_enable or not request.topics:
        return []
    if ctx.version >= 4 and not request.allow_auto_topic_creation:
        return []
    names = dict.fromkeys(topic.name for topic in request.topics if topic.name is not None and topic.topic_id is None)
    return [name for name in names if name not in RESERVED and gw.topics.get(name) is None and _legal(gw, name)]


def _legal(gw: Gateway, name: str) -> bool:
    try:
        gw.topics.check_name(name)
    except KopError:
        return False
    return True


async def _find_and_answer(gw: Gateway, ctx: Context, request: Any) -> Frame:
    answer = await _found_and_made(gw, ctx, request, gw.topic_limits.making(), _end_of_wait())
    return _framed(ctx.correlation_id, codec.encode_response(0, answer)[8:])


def _end_of_wait() -> float:
    return asyncio.get_running_loop().time() + auto_creation.WAIT_SECONDS


async def _found_and_made(gw: Gateway, ctx: Context, request: Any, making: InMaking, end: float) -> Any:
    await gw.topics.find(topic.name for topic in request.topics or ())
    failed = await gw.auto_creation.make(_to_create(gw, ctx, request), making, end)
    return _answer(gw, ctx, request, failed)


async def _answer_with_pauses(gw: Gateway, ctx: Context, body: bytes) -> Frame:
    """Answer a request that names thousands of topics, a part of them at a time."""
    request = await asyncio.to_thread(_decoded, ctx.version, memoryview(body))
    if _asks_for_ids_too_early(ctx.version, request):
        return _framed(ctx.correlation_id, codec.encode_response(0, _refusal(ctx.version, request))[8:])
    topics = request.topics or []
    request.topics = request.topics and topics[:_PART_TOPICS]  # null and an empty list say different things
    making, end = gw.topic_limits.making(), _end_of_wait()
    whole = await _found_and_made(gw, ctx, request, making, end)
    for begin in range(_PART_TOPICS, len(topics), _PART_TOPICS):
        await asyncio.sleep(0)
        request.topics = topics[begin : begin + _PART_TOPICS]
        whole.topics += (await _found_and_made(gw, ctx, request, making, end)).topics
    rest = (await asyncio.to_thread(codec.encode_response, 0, whole))[8:]
    return _framed(ctx.correlation_id, rest)


def _answer(gw: Gateway, ctx: Context, request: Any, failed: dict[str, ErrorCode] | None = None) -> Any:
    version = ctx.version
    topic_operations = _TOPIC_OPERATIONS if version >= 8 and request.include_topic_authorized_operations else None
    rows = [
        (code, name, topic_id, internal, partitions, None if code == ErrorCode.UNKNOWN_TOPIC_ID else topic_operations)
        for code, name, topic_id, internal, partitions in _topics(gw, version, request, failed or {})
    ]
    response = MetadataResponse(
        version=version,
        brokers=[(*endpoint, None) for endpoint in gw.cluster.endpoints(ctx.conn.broker_address)],
        cluster_id=gw.engine.cluster_id,
        controller_id=gw.cluster.ids[0],
    )
    response.topics = [_row(version, row) for row in rows]
    wanted = 8 <= version <= 10 and request.include_cluster_authorized_operations
    response.authorized_operations = _CLUSTER_OPERATIONS if wanted else None
    return response


def _row(version: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A topic in the field order of `version`, as kafka-python's encoder takes tuples."""
    code, name, topic_id, internal, partitions, operations = row
    fields: list[Any] = [code, name]
    if version >= 10:
        fields.append(topic_id)
    if version >= 1:
        fields.append(internal)
    fields.append(partitions)
    if version >= 8:
        fields.append(operations)
    return tuple(fields)


def _topics(
    gw: Gateway, version: int, request: Any, failed: dict[str, ErrorCode]
) -> Iterable[tuple[int, str | None, UUID | None, bool, list[tuple[Any, ...]]]]:
    """For each topic of the request: error code, name, id, whether it is internal, partitions."""
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        for topic in gw.topics.listed():
            yield 0, topic.name, topic.topic_id, topic.internal, _partitions(gw, version, topic)
        return
    for entry in wanted:
        if entry.name is None and entry.topic_id is None:
            yield ErrorCode.INVALID_REQUEST, None if version >= 12 else "", None, False, []
            continue
        by_id = entry.topic_id is not None
        existing: TopicInfo | None = gw.topics.by_id(entry.topic_id) if by_id else gw.topics.get(entry.name)
        if existing is not None:
            yield 0, existing.name, gw.topics.id_of(existing), existing.internal, _partitions(gw, version, existing)
        elif by_id:
            yield ErrorCode.UNKNOWN_TOPIC_ID, None if version >= 12 else "", entry.topic_id, False, []
        else:
            code = failed.get(entry.name) or gw.topics.missing(entry.name)
            if not _legal(gw, entry.name):
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
            yield code, entry.name, None, False, []


def _partitions(gw: Gateway, version: int, topic: TopicInfo) -> list[tuple[Any, ...]]:
    leader_of, topic_id = gw.cluster.leader, topic.topic_id
    leaders = [(index, leader_of(topic_id, index)) for index in range(topic.partitions)]
    if version >= 7:
        return [(0, index, leader, 0, [leader], [leader], []) for index, leader in leaders]
    if version >= 5:
        return [(0, index, leader, [leader], [leader], []) for index, leader in leaders]
    return [(0, index, leader, [leader], [leader]) for index, leader in leaders]


def describe_topic_partitions(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Describe topics in the order of their names, up to the partition limit; the cursor is the next one (KIP-966).

    A cursor before the first partition, or at a topic that is not among those that are named, is INVALID_REQUEST.
    """
    limit = max(1, min(request.response_partition_limit, 2000))
    named = sorted({topic.name for topic in request.topics})
    names = named or [topic.name for topic in gw.topics.listed()]
    cursor, first = request.cursor, 0
    response = DescribeTopicPartitionsResponse(version=ctx.version, topics=[], next_cursor=None)
    row_class = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    partition_class = row_class.DescribeTopicPartitionsResponsePartition
    if cursor is not None:
        if cursor.partition_index < 0 or (named and cursor.topic_name not in named):
            code = ErrorCode.INVALID_REQUEST
            response.topics = [
                row_class(version=0, error_code=code, name=name, topic_id=None, partitions=[]) for name in named
            ]
            return response
        names = [name for name in names if name >= cursor.topic_name]
        first = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    for name in names:
        if limit == 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
            break
        topic = gw.topics.get(name)
        if topic is None:
            code = gw.topics.missing(name) if _legal(gw, name) else ErrorCode.INVALID_TOPIC_EXCEPTION
            response.topics.append(
                row_class(
                    version=0,
                    error_code=code,
                    name=name,
                    topic_id=None,
                    partitions=[],
                    topic_authorized_operations=_TOPIC_OPERATION_BITS,
                )
            )
            continue
        stop = min(topic.partitions, first + limit)
        response.topics.append(
            row_class(
                version=0,
                error_code=0,
                name=name,
                topic_id=gw.topics.id_of(topic),
                is_internal=topic.internal,
                partitions=[
                    partition_class(
                        version=0,
                        error_code=0,
                        partition_index=index,
                        leader_id=leader,
                        leader_epoch=0,
                        replica_nodes=[leader],
                        isr_nodes=[leader],
                        eligible_leader_replicas=[],
                        last_known_elr=[],
                        offline_replicas=[],
                    )
                    for index in range(first, stop)
                    for leader in [gw.cluster.leader(topic.topic_id, index)]
                ],
                topic_authorized_operations=_TOPIC_OPERATION_BITS,
            )
        )
        limit -= max(0, stop - first)
        if stop < topic.partitions:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=stop)
            break
        first = 0
    return response


_TOPIC_OPERATION_BITS = sum(1 << bit for bit in _TOPIC_OPERATIONS)

APIS = (
    Api(3, 0, 13, metadata, AclOperation.DESCRIBE, decode=undecoded, encodes=True),
    Api(
        75,
        0,
        0,
        describe_topic_partitions,
        AclOperation.DESCRIBE,
        topics=lambda request: [topic.name for topic in request.topics],
    ),
)
