"""OffsetCommit (8) 2 to 10, OffsetFetch (9) 1 to 10, OffsetDelete (47) 0: committed offsets.

OffsetCommit
- Topics and partitions that are not there are UNKNOWN_TOPIC_OR_PARTITION, an id that is not is UNKNOWN_TOPIC_ID (from
  version 10 topics go by id); if none is left the group is not looked at. An error of the group is that of every other
  partition; then metadata over offset.metadata.max.bytes is OFFSET_METADATA_TOO_LARGE.
- A group id over 32,767 bytes is UNKNOWN_SERVER_ERROR for every partition that is there.
- retention_time_ms of versions 2 to 4 is kept; -1 is the broker's retention.
- A group that is not there but for a generation: ILLEGAL_GENERATION below version 9, GROUP_ID_NOT_FOUND from it on.
- It waits without a task or a future: the write's own callback makes the answer.

OffsetFetch
- What was not committed is offset -1, epoch -1, metadata "" without an error, unknown topics and groups included; only
  an unknown id is UNKNOWN_TOPIC_ID. Null topics (version 2 and up) are all that were committed.
- Versions 8 and up ask for several groups. Member ids and epochs of version 9 do not matter to classic groups.
- With require_stable (version 7 and up) a partition of which an open transaction holds an offset is
  UNSTABLE_OFFSET_COMMIT, with offset -1; without it the last committed offset is told.

OffsetDelete: errors of the group are the request's; topics that members subscribe to are GROUP_SUBSCRIBED_TO_TOPIC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from kop.errors import BackendError, ErrorCode
from kop.groups.offsets import Commit
from kop.handlers.access import Need, is_refusal, named_group, named_topics
from kop.handlers.api import Api, Context, Later
from kop.handlers.gateway import Gateway
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import TopicInfo
from kop.wire.offset_commit import (
    OffsetCommitAnswer,
    OffsetCommitCall,
    encode_response,
    parse,
)
from kop.wire.rows import Response
from kop.wire.state import OffsetCommitValue

_TRIED_AGAIN = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""The error that consumers and transactional producers try again, where others know KAFKA_STORAGE_ERROR."""
_NO_OFFSET = OffsetCommitValue(-1)
MOST_TIMES: Final = 16
"""The number of times that a group is answered in one OffsetFetch. Kafka answers it as often as it is named."""


def offset_commit(gw: Gateway, ctx: Context, request: OffsetCommitCall) -> OffsetCommitAnswer | Later:
    """Answer OffsetCommit when the offsets are durable, after a check of the rights, the group, its member and the
    partitions; at once if there is nothing left to commit.
    """
    version = ctx.version
    if refusal := ctx.group(request.group_id, AclOperation.READ):
        return _committed(request, [[refusal] * len(topic.partitions) for topic in request.topics])
    codes, good = existing_partitions(ctx, request, by_id=version >= 10)
    if not good:
        return _committed(request, codes)
    error = gw.groups.check_commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        says_not_found=version >= 9,
    )
    limit = gw.groups.settings.offset_metadata_max_bytes
    commits: list[Commit] = []
    for of_topic, column, topic, partition in good:
        index, offset, epoch, metadata = partition
        if error:
            of_topic[column] = error
        elif metadata and is_too_large(metadata, limit):
            of_topic[column] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        else:
            name = ctx.canonical_name(topic.name)
            commits.append(Commit(name, topic.topic_id, index, offset, epoch, metadata or ""))
    if not commits:
        return _committed(request, codes)
    later = Later()

    def answer(code: ErrorCode) -> None:
        later.end(_committed(request, codes, code))

    refusal = gw.groups.commit(request.group_id, commits, answer, retention_ms=request.retention_time_ms)
    return _committed(request, codes, refusal) if refusal else later


def _committed(
    request: OffsetCommitCall, codes: list[list[ErrorCode]], error: ErrorCode = ErrorCode.NONE
) -> OffsetCommitAnswer:
    """Return the answer to OffsetCommit with these error codes; `error` is that of every partition that has none."""
    return OffsetCommitAnswer(
        [
            (name, topic_id, [(partition[0], code or error) for partition, code in zip(partitions, row, strict=True)])
            for (name, topic_id, partitions), row in zip(request.topics, codes, strict=True)
        ]
    )


def existing_partitions(
    ctx: Context, request: Any, *, by_id: bool
) -> tuple[list[list[ErrorCode]], list[tuple[list[ErrorCode], int, TopicInfo, Any]]]:
    """Return the error codes of all partitions of a request that commits offsets, a list for each topic, and the
    partitions that exist.

    Each of these has the error NONE, and is given as the list of its topic's codes, its place in that list, its topic,
    and its row in the request. With `by_id` the request names topics by id.
    """
    codes: list[list[ErrorCode]] = []
    good: list[tuple[list[ErrorCode], int, TopicInfo, Any]] = []
    for wanted in request.topics:
        topic = ctx.topic(wanted.topic_id if by_id else wanted.name, AclOperation.READ)
        if isinstance(topic, ErrorCode):
            code = _TRIED_AGAIN if topic is ErrorCode.KAFKA_STORAGE_ERROR else topic
            codes.append([code] * len(wanted.partitions))
            continue
        of_topic = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(wanted.partitions)
        codes.append(of_topic)
        for column, partition in enumerate(wanted.partitions):
            if 0 <= partition.partition_index < topic.partitions:
                of_topic[column] = ErrorCode.NONE
                good.append((of_topic, column, topic, partition))
    return codes, good


def is_too_large(metadata: str, limit: int) -> bool:
    """Return true if metadata is longer than `limit`, in UTF-16 units as in Kafka."""
    return len(metadata) > limit or (len(metadata) * 2 > limit and len(metadata.encode("utf-16-le")) // 2 > limit)


def offset_fetch(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer OffsetFetch with the committed offsets, from memory: only durable ones are there, and the pipeline has
    made sure that no other broker has written newer ones. Offset -1 stands for a partition without one. A group that is
    named again is answered again, as in Kafka, but not more than sixteen times.
    """
    stable = ctx.version >= 7 and request.require_stable
    if ctx.version >= 8:
        rows: list[dict[str, Any]] = []
        times: Counter[str] = Counter()
        for group in request.groups:
            times[group.group_id] += 1
            if times[group.group_id] > MOST_TIMES:
                continue  # else a small request could ask for more than memory holds
            error = _refusal(gw, ctx, group.group_id)
            topics = [] if error else _fetched(gw, ctx, group.group_id, group.topics, error, stable)
            rows.append(dict(group_id=group.group_id, error_code=error, topics=topics))
        return ctx.response(groups=rows)
    error = _refusal(gw, ctx, request.group_id)
    if error and ctx.version >= 2:
        return ctx.response(error_code=error, topics=[])
    topics = _fetched(gw, ctx, request.group_id, request.topics, error, stable)
    return ctx.response(error_code=0, topics=topics)


def _refusal(gw: Gateway, ctx: Context, group_id: str) -> ErrorCode:
    return ctx.group(group_id, AclOperation.DESCRIBE) or gw.groups.refusal_of(group_id, surely=True)


def _fetched(
    gw: Gateway, ctx: Context, group_id: str, wanted_topics: Any, error: ErrorCode, stable: bool
) -> list[dict[str, Any]]:
    """Return the answer's rows for one group; `wanted_topics` of None asks for all that it has committed. `error` is
    put into every partition, since version 1 has no other field for it. With `stable`, offsets that a transaction may
    still change are UNSTABLE_OFFSET_COMMIT. BackendError if it cannot be decided which topics the client may see.
    """
    offsets = None if error else gw.groups.offsets(group_id)

    def row(name: str | None, partition: int, value: OffsetCommitValue | None, code: ErrorCode) -> dict[str, Any]:
        if stable and name is not None and offsets is not None and offsets.is_pending(name, partition):
            value, code = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
        value = value or _NO_OFFSET
        return dict(
            partition_index=partition,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            error_code=code,
        )

    topics: list[dict[str, Any]] = []
    if wanted_topics is None:
        for name, partitions in () if offsets is None else sorted(offsets.by_topic.items()):
            if not ctx.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
                if ctx.access.refusal(ResourceType.TOPIC, name) is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise BackendError(f"it is not known if the client may see {name}", _TRIED_AGAIN)
                continue
            topic = ctx.topic(name, None)
            rows = [row(name, partition, value, ErrorCode.NONE) for partition, value in sorted(partitions.items())]
            if ctx.version < 10:
                topics.append(dict(name=name, partitions=rows))
            elif isinstance(topic, TopicInfo):
                topics.append(dict(topic_id=topic.topic_id, partitions=rows))
        return topics
    for wanted in wanted_topics:
        by_id = ctx.version >= 10
        topic = ctx.topic(wanted.topic_id if by_id else wanted.name, AclOperation.DESCRIBE)
        hidden = isinstance(topic, ErrorCode) and (by_id or is_refusal(topic))
        code = error or (topic if isinstance(topic, ErrorCode) and hidden else ErrorCode.NONE)
        # A topic that is not there may have offsets by its name.
        known = topic.name if isinstance(topic, TopicInfo) else wanted.name
        stored = None if code else ctx.canonical_name(known)
        rows = []
        for partition in wanted.partition_indexes:
            value = None if stored is None or offsets is None else offsets.get(stored, partition)
            if by_id and value is not None and value.topic_id not in (None, wanted.topic_id):
                value = None  # it was committed for an earlier topic of that name
            rows.append(row(stored, partition, value, code))
        key = "topic_id" if by_id else "name"
        topics.append({key: getattr(wanted, key), "partitions": rows})
    return topics


async def offset_delete(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer OffsetDelete: delete the group's committed offsets of the partitions named; topics to which it subscribes
    keep theirs, and have that error.
    """
    if not request.group_id:
        return ctx.response(error_code=ErrorCode.INVALID_GROUP_ID, topics=[])
    errors: dict[tuple[str, int], ErrorCode] = {}
    canonical: dict[tuple[str, int], tuple[str, int]] = {}
    for wanted in request.topics:
        topic = ctx.topic(wanted.name, AclOperation.READ)
        for partition in wanted.partitions:
            key = wanted.name, partition.partition_index
            errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_refusal(topic):
                errors[key] = topic
            elif isinstance(topic, TopicInfo) and 0 <= key[1] < topic.partitions:
                canonical[key] = ctx.canonical_name(wanted.name), key[1]
    answer = gw.groups.delete_offsets(request.group_id, list(dict.fromkeys(canonical.values())))
    code, codes = answer if isinstance(answer, tuple) else await answer
    if code:
        return ctx.response(error_code=code, topics=[])
    errors.update({key: codes[stored] for key, stored in canonical.items()})
    rows: dict[str, list[dict[str, Any]]] = {}
    for (name, partition), code in errors.items():
        rows.setdefault(name, []).append(dict(partition_index=partition, error_code=code))
    return ctx.response(error_code=0, topics=[dict(name=name, partitions=parts) for name, parts in rows.items()])


def _topics(request: Any) -> Iterable[str | UUID | None]:
    return [topic.topic_id if topic.topic_id is not None else topic.name for topic in request.topics]


def _fetched_groups(request: Any) -> Iterable[str]:
    return [request.group_id] if request.API_VERSION < 8 else [group.group_id for group in request.groups]


def _fetched_topics(request: Any) -> Iterable[str | UUID | None]:
    groups = [request] if request.API_VERSION < 8 else request.groups
    by_id = request.API_VERSION >= 10
    return [topic.topic_id if by_id else topic.name for group in groups for topic in group.topics or ()]


APIS = (
    Api(
        8,
        2,
        10,
        offset_commit,
        (
            Need(AclOperation.READ, ResourceType.GROUP, named_group),
            Need(AclOperation.READ, ResourceType.TOPIC, _topics),
        ),
        decode=parse,
        encode=encode_response,
        rows=("topics", "topics"),
    ),
    Api(
        9,
        1,
        10,
        offset_fetch,
        (
            Need(AclOperation.DESCRIBE, ResourceType.GROUP, _fetched_groups),
            Need(AclOperation.DESCRIBE, ResourceType.TOPIC, _fetched_topics),
        ),
        finds=False,
        tells_of_groups=True,
        rows=("topics", "topics"),
    ),
    Api(
        47,
        0,
        0,
        offset_delete,
        (
            Need(AclOperation.DELETE, ResourceType.GROUP, named_group, whole=True),
            Need(AclOperation.READ, ResourceType.TOPIC, named_topics),
        ),
    ),
)
