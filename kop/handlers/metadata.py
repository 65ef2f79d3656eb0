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
- Authorized operations are -2147483648 unless asked for. A name that is no topic has those that the client has on it,
  an unknown id none.
- A topic that the client may not see is TOPIC_AUTHORIZATION_FAILED, with nothing but the name or the id that was asked.
- A topic of another namespace is looked for when it is named; a client that asks for all gets the home namespace, or
  that in which it works, which is listed then.
- Answers are kept encoded, by client, version, address and topics, until a topic or a right changes: Spark and Connect
  ask all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from kop.cluster.client_topics import RESERVED
from kop.errors import ErrorCode
from kop.handlers import auto_creation
from kop.handlers.access import Need, is_refusal, named_topics
from kop.handlers.api import Api, Context, Frame, InTask, undecoded
from kop.handlers.gateway import Gateway
from kop.handlers.topic_limits import InMaking
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import TopicInfo
from kop.wire import codec
from kop.wire.messages import MetadataRequest
from kop.wire.names import inward, outward_rows
from kop.wire.rows import Response

_LARGE = 16 * 1024
"""The size in bytes from which on a Metadata request is answered in parts, so that other clients have their turn."""
_PART_TOPICS = 200
_NAME = 1
"""The place of the name in a topic's row."""
_LIBRDKAFKA_SLACK = 3
"""The bytes too many in librdkafka's request for all topics from version 9 on: the old length of an array, left in
place.
"""


def metadata(gw: Gateway, ctx: Context, body: memoryview) -> Any:
    """Answer from the cache if the same was asked before and nothing has changed since; else look topics up, and make
    those that are missing if that is allowed.
    """
    key = (ctx.access.who(ctx.conn), ctx.version, ctx.conn.listener, ctx.conn.broker_address, bytes(body))
    version = (gw.topics.version, gw.cluster.version, ctx.access.version)
    kept = gw.metadata_cache.get(version, key)
    if kept is not None:
        return _framed(ctx.correlation_id, kept)
    if len(body) > _LARGE:
        return InTask(_answer_with_pauses(gw, ctx, bytes(body)))
    request = _decoded(ctx, body)
    if _asks_for_ids_too_early(ctx.version, request):
        return _framed(ctx.correlation_id, _encoded(ctx, _refusal(ctx, request)))
    if (
        ctx.access.unread(_NEEDS[:1], request)
        or _to_find(ctx, request)
        or _to_create(gw, ctx, request)
        or not _is_listed(gw, ctx, request)
    ):
        return InTask(_find_and_answer(gw, ctx, request))
    response = _answer(gw, ctx, request)
    may_be_kept = _is_kept(gw, ctx, request, response)
    answer = _encoded(ctx, response)
    if may_be_kept:
        gw.metadata_cache.put(version, key, answer)
    return _framed(ctx.correlation_id, answer)


def _is_kept(gw: Gateway, ctx: Context, request: Any, response: Response) -> bool:
    """Return true if the answer may be kept in the cache. It may not if the same request has to be decided and audited
    anew, or if it is about topics of other namespaces that are missing or listed, since no version shows their changes.
    """
    # Of other namespaces no version would show that a topic was made, or a right to it given.
    if ctx.conn.space.prefix and gw.topics.has_namespaces and _asks_for_all(ctx, request):
        return False
    if any(code and name and "/" in name for code, name, *_ in response.fields["topics"]):
        return False
    if ctx.access.is_open:
        return True
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return not ctx.access.decides_each_time and all(row[0] is not refused for row in response.fields["topics"])


def _framed(correlation_id: int, rest: bytes) -> Frame:
    return ((len(rest) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big", signed=True), rest)


def _encoded(ctx: Context, response: Response) -> bytes:
    """Return an answer to Metadata encoded for the cache, without its size and its correlation id."""
    if ctx.conn.space.prefix:
        response.fields["topics"] = outward_rows(response.fields["topics"], _NAME, ctx.conn.space)
    return codec.encode_response(0, response.message())[8:]


def _decoded(ctx: Context, body: memoryview) -> Any:
    """Return a decoded request with each topic once, and without names if it has ids, as Kafka answers it."""
    version = ctx.version
    request = codec.decode(MetadataRequest, version, body, slack=_LIBRDKAFKA_SLACK)
    if request.topics and len(request.topics) > 1 and not _asks_for_ids_too_early(version, request):
        of_ids = {topic.topic_id: topic for topic in request.topics if topic.topic_id is not None}
        request.topics = list((of_ids or {topic.name: topic for topic in request.topics}).values())
    if ctx.conn.space.prefix:
        inward(ctx.api_key, request, ctx.conn.space)
    return request


def _asks_for_all(ctx: Context, request: Any) -> bool:
    return request.topics is None or (ctx.version == 0 and not request.topics)


def _is_listed(gw: Gateway, ctx: Context, request: Any) -> bool:
    """Return true if the request does not ask for all topics, or all topics of the client's space are known, so that
    storage need not list them first.
    """
    return not _asks_for_all(ctx, request) or gw.topics.is_listed(ctx.conn.space.prefix)


def _asks_for_ids_too_early(version: int, request: Any) -> bool:
    return 10 <= version <= 11 and any(topic.topic_id is not None for topic in request.topics or ())


def _refusal(ctx: Context, request: Any) -> Response:
    """Return an answer with INVALID_REQUEST for every topic of the request, and nothing of the cluster, as in Kafka."""
    topics = [
        _row(ctx.version, (ErrorCode.INVALID_REQUEST, topic.name or "", topic.topic_id, False, [], None))
        for topic in request.topics
    ]
    return ctx.response(brokers=[], cluster_id=None, controller_id=-1, topics=topics, authorized_operations=None)


_NEEDS = (
    Need(
        AclOperation.DESCRIBE,
        ResourceType.TOPIC,
        lambda request: [topic.name if topic.topic_id is None else topic.topic_id for topic in request.topics or ()],
    ),
    Need(AclOperation.CREATE, ResourceType.CLUSTER),
    Need(AclOperation.CREATE, ResourceType.TOPIC),
    Need(AclOperation.DESCRIBE, ResourceType.CLUSTER),
)


def _to_find(ctx: Context, request: Any) -> Sequence[str]:
    return ctx.access.names_to_find(ctx.conn, _NEEDS[:1], request)


def _to_create(gw: Gateway, ctx: Context, request: Any) -> list[str]:
    """Return the names in the request that no topic has and by which a topic is to be made: the settings and the
    request allow it, the client may see the name, and it is legal. The right to make it is not looked at here.
    """
    if not gw.settings.auto_create_topics_enable or not request.topics:
        return []
    if ctx.version >= 4 and not request.allow_auto_topic_creation:
        return []
    names = dict.fromkeys(topic.name for topic in request.topics if topic.name is not None and topic.topic_id is None)
    return [name for name in names if name not in RESERVED and _is_to_be_made(ctx, name)]


def _is_to_be_made(ctx: Context, name: str) -> bool:
    missing = isinstance(ctx.topic(name, None), ErrorCode)
    return missing and ctx.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name) and ctx.is_legal(name)


async def _find_and_answer(gw: Gateway, ctx: Context, request: Any) -> Frame:
    answer = await _found_and_made(gw, ctx, request, gw.topic_limits.making(), _end_of_wait())
    return _framed(ctx.correlation_id, _encoded(ctx, answer))


def _end_of_wait() -> float:
    return asyncio.get_running_loop().time() + auto_creation.WAIT_SECONDS


async def _found_and_made(gw: Gateway, ctx: Context, request: Any, making: InMaking, end: float) -> Response:
    await ctx.access.read(ctx.access.unread(_NEEDS[:1], request))
    if to_find := _to_find(ctx, request):
        await gw.topics.find(to_find)
    if not _is_listed(gw, ctx, request):
        await gw.topics.list_space(ctx.conn.space.prefix)
    names = _to_create(gw, ctx, request)
    refused = {name: ctx.access.refusal(ResourceType.TOPIC, name) for name in names if not ctx.may_create(name)}
    wanted = [name for name in names if name not in refused]
    failed = await gw.auto_creation.make(wanted, making, end, ctx.change_partitions)
    return _answer(gw, ctx, request, failed | refused)


async def _answer_with_pauses(gw: Gateway, ctx: Context, body: bytes) -> Frame:
    """Answer a Metadata request that names thousands of topics, 200 of them at a time, with other work of the event
    loop between; the result is the whole frame.
    """
    request = await asyncio.to_thread(_decoded, ctx, memoryview(body))
    if _asks_for_ids_too_early(ctx.version, request):
        return _framed(ctx.correlation_id, _encoded(ctx, _refusal(ctx, request)))
    topics = request.topics or []
    request.topics = request.topics and topics[:_PART_TOPICS]  # null and an empty list say different things
    making, end = gw.topic_limits.making(), _end_of_wait()
    whole = await _found_and_made(gw, ctx, request, making, end)
    for begin in range(_PART_TOPICS, len(topics), _PART_TOPICS):
        await asyncio.sleep(0)
        request.topics = topics[begin : begin + _PART_TOPICS]
        part = await _found_and_made(gw, ctx, request, making, end)
        whole.fields["topics"] += part.fields["topics"]
    rest = await asyncio.to_thread(_encoded, ctx, whole)
    return _framed(ctx.correlation_id, rest)


def _answer(gw: Gateway, ctx: Context, request: Any, failed: dict[str, ErrorCode] | None = None) -> Response:
    version = ctx.version
    asked = version >= 8 and request.include_topic_authorized_operations
    rows = [
        (
            *(code, name, topic_id, internal, partitions),
            ctx.operations(ResourceType.TOPIC, name or "", asked=asked and not _is_hidden(code)),
        )
        for code, name, topic_id, internal, partitions in _topics(gw, ctx, request, failed or {})
    ]
    asks_for_cluster = 8 <= version <= 10 and request.include_cluster_authorized_operations
    operations = ctx.operations(ResourceType.CLUSTER, ctx.namespace_name, asked=asks_for_cluster)
    if asks_for_cluster and not ctx.may(AclOperation.DESCRIBE, ResourceType.CLUSTER, ctx.namespace_name):
        operations = set()
    return ctx.response(
        brokers=[(*endpoint, None) for endpoint in gw.cluster.endpoints(ctx.conn.broker_address, ctx.conn.listener)],
        cluster_id=gw.engine.cluster_id,
        controller_id=gw.cluster.ids[0],
        topics=[_row(version, row) for row in rows],
        authorized_operations=operations,
    )


def _is_hidden(code: int) -> bool:
    return code == ErrorCode.UNKNOWN_TOPIC_ID or is_refusal(code)


def _row(version: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a topic as a tuple in the field order of `version`, which is encoded fast. `row` has error code, name, id,
    True if it is internal, partitions, and the client's operations.
    """
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
    gw: Gateway, ctx: Context, request: Any, failed: dict[str, ErrorCode]
) -> Iterable[tuple[int, str | None, UUID | None, bool, list[tuple[Any, ...]]]]:
    """Yield for each topic of the request its error code, name, id, True if it is internal, and its partitions.
    `failed` has the errors of topics that could not be made, by name.
    """
    version, wanted = ctx.version, request.topics
    if _asks_for_all(ctx, request):
        for topic in ctx.visible(ctx.listed()):
            yield 0, topic.name, topic.topic_id, topic.internal, _partitions(gw, ctx, topic)
        return
    no_name = None if version >= 12 else ""
    for entry in wanted:
        if entry.name is None and entry.topic_id is None:
            yield ErrorCode.INVALID_REQUEST, no_name, None, False, []
            continue
        by_id = entry.topic_id is not None
        known = ctx.topic(entry.topic_id if by_id else entry.name, AclOperation.DESCRIBE)
        if isinstance(known, TopicInfo):
            yield 0, known.name, gw.topics.id_of(known), known.internal, _partitions(gw, ctx, known)
        elif by_id:
            yield known, no_name, entry.topic_id, False, []
        else:
            yield failed.get(entry.name) or _missing(ctx, entry.name, known), entry.name, None, False, []


def _missing(ctx: Context, name: str, code: ErrorCode) -> ErrorCode:
    """Return the error for a name that no topic has, or that the client may not see: INVALID_TOPIC_EXCEPTION instead of
    `code` if the client may know that there is none, and the name is not legal.
    """
    if is_refusal(code) or ctx.is_legal(name):
        return code
    return ErrorCode.INVALID_TOPIC_EXCEPTION


def _partitions(gw: Gateway, ctx: Context, topic: TopicInfo) -> list[tuple[Any, ...]]:
    version, listener = ctx.version, ctx.conn.listener
    leader_of, topic_id = gw.cluster.leader_for, topic.topic_id
    leaders = [(index, leader_of(topic_id, index, listener)) for index in range(topic.partitions)]
    if version >= 7:
        return [(0, index, leader, 0, [leader], [leader], []) for index, leader in leaders]
    if version >= 5:
        return [(0, index, leader, [leader], [leader], []) for index, leader in leaders]
    return [(0, index, leader, [leader], [leader]) for index, leader in leaders]


def describe_topic_partitions(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Answer DescribeTopicPartitions: topics in the order of their names, up to the request's limit of partitions,
    which is 2,000 at most; the cursor in the answer names the first partition left out (KIP-966).

    A cursor before the first partition, or at a topic that the request does not name, is INVALID_REQUEST.
    """
    if request.topics or gw.topics.is_listed(ctx.conn.space.prefix):
        return _described(gw, ctx, request)
    return InTask(_list_and_describe(gw, ctx, request))


async def _list_and_describe(gw: Gateway, ctx: Context, request: Any) -> Response:
    await gw.topics.list_space(ctx.conn.space.prefix)
    return _described(gw, ctx, request)


def _described(gw: Gateway, ctx: Context, request: Any) -> Response:
    limit = max(1, min(request.response_partition_limit, 2000))
    named = sorted({topic.name for topic in request.topics})
    names = named or [topic.name for topic in ctx.visible(ctx.listed())]
    cursor, first, next_cursor = request.cursor, 0, None
    if cursor is not None:
        if cursor.partition_index < 0 or (named and cursor.topic_name not in named):
            code = ErrorCode.INVALID_REQUEST
            return ctx.response(
                topics=[dict(error_code=code, name=name, topic_id=None, partitions=[]) for name in named],
                next_cursor=None,
            )
        names = [name for name in names if name >= cursor.topic_name]
        first = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    rows: list[dict[str, Any]] = []
    for name in names:
        if limit == 0:
            next_cursor = dict(topic_name=name, partition_index=0)
            break
        topic = ctx.topic(name, AclOperation.DESCRIBE)
        row: dict[str, Any] = dict(name=name)
        rows.append(row)
        if isinstance(topic, ErrorCode):
            row |= dict(error_code=_missing(ctx, name, topic), topic_id=None, partitions=[])
            if not is_refusal(topic):
                row["topic_authorized_operations"] = _bits(ctx, name)
            continue
        stop = min(topic.partitions, first + limit)
        row |= dict(
            error_code=0,
            topic_id=gw.topics.id_of(topic),
            is_internal=topic.internal,
            partitions=[
                dict(
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
                for leader in [gw.cluster.leader_for(topic.topic_id, index, ctx.conn.listener)]
            ],
            topic_authorized_operations=_bits(ctx, name),
        )
        limit -= max(0, stop - first)
        if stop < topic.partitions:
            next_cursor = dict(topic_name=name, partition_index=stop)
            break
        first = 0
    return ctx.response(topics=rows, next_cursor=next_cursor)


def _bits(ctx: Context, name: str) -> int:
    return sum(1 << operation for operation in ctx.access.operations(ctx.conn, ResourceType.TOPIC, name))


APIS = (
    Api(3, 0, 13, metadata, _NEEDS, finds=False, decode=undecoded, encodes=True),
    Api(
        75,
        0,
        0,
        describe_topic_partitions,
        (Need(AclOperation.DESCRIBE, ResourceType.TOPIC, named_topics),),
    ),
)
