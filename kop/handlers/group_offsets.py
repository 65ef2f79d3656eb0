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

import asyncio
from typing import Any

from kop.cluster.client_topics import ClientTopics
from kop.errors import ErrorCode
from kop.groups.offsets import Commit
from kop.handlers.api import AclOperation, Api, Context, Later
from kop.handlers.gateway import Gateway
from kop.storage.base import TopicInfo
from kop.wire.messages import OffsetDeleteResponse, OffsetFetchResponse
from kop.wire.offset_commit import (
    OffsetCommitAnswer,
    OffsetCommitCall,
    encode_response,
    parse,
)
from kop.wire.state import OffsetCommitValue

_NO_OFFSET = OffsetCommitValue(-1)


def offset_commit(gw: Gateway, ctx: Context, request: OffsetCommitCall) -> OffsetCommitAnswer | Later:
    """Check what is to be committed, and answer when it is durable."""
    version = ctx.version
    codes, good = existing_partitions(gw.topics, request, by_id=version >= 10)
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
            name = gw.topics.canonical_name(topic.name)
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
    """The answer of these codes; `error` is that of all partitions that have none."""
    return OffsetCommitAnswer(
        [
            (name, topic_id, [(partition[0], code or error) for partition, code in zip(partitions, row, strict=True)])
            for (name, topic_id, partitions), row in zip(request.topics, codes, strict=True)
        ]
    )


def existing_partitions(
    topics: ClientTopics, request: Any, *, by_id: bool
) -> tuple[list[list[ErrorCode]], list[tuple[list[ErrorCode], int, TopicInfo, Any]]]:
    """The errors of all partitions of a request that commits offsets, and the partitions that exist.

    Each of these has the error NONE, and is given as the errors of its topic, its place there, its topic, and its row
    in the request.
    """
    codes: list[list[ErrorCode]] = []
    good: list[tuple[list[ErrorCode], int, TopicInfo, Any]] = []
    for wanted in request.topics:
        topic = _by_id(topics, wanted.topic_id) if by_id else topics.get(wanted.name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None:
            missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else topics.missing(wanted.name)
        of_topic = [missing] * len(wanted.partitions)
        codes.append(of_topic)
        if topic is None:
            continue
        for column, partition in enumerate(wanted.partitions):
            if 0 <= partition.partition_index < topic.partitions:
                of_topic[column] = ErrorCode.NONE
                good.append((of_topic, column, topic, partition))
    return codes, good


def is_too_large(metadata: str, limit: int) -> bool:
    """Whether metadata is longer than `limit`, in UTF-16 units as in Kafka."""
    return len(metadata) > limit or (len(metadata) * 2 > limit and len(metadata.encode("utf-16-le")) // 2 > limit)


def _by_id(topics: ClientTopics, topic_id: Any) -> TopicInfo | None:
    return None if topic_id is None else topics.by_id(topic_id)


def offset_fetch(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Answer from memory: what is there is durable, and nobody else has written since."""
    version = ctx.version
    stable = version >= 7 and request.require_stable
    if version < 8:
        error = gw.groups.refusal_of(request.group_id, surely=True)
        topic_class = OffsetFetchResponse.OffsetFetchResponseTopic
        if error and version >= 2:
            return OffsetFetchResponse(version=version, error_code=error, topics=[])
        topics = _fetched(
            gw,
            version,
            topic_class,
            topic_class.OffsetFetchResponsePartition,
            request.group_id,
            request.topics,
            error,
            stable,
        )
        return OffsetFetchResponse(version=version, error_code=0, topics=topics)
    group_class = OffsetFetchResponse.OffsetFetchResponseGroup
    topic_class = group_class.OffsetFetchResponseTopics
    return OffsetFetchResponse(
        version=version,
        groups=[
            group_class(
                version=version,
                group_id=group.group_id,
                error_code=error,
                topics=[]
                if error
                else _fetched(
                    gw,
                    version,
                    topic_class,
                    topic_class.OffsetFetchResponsePartitions,
                    group.group_id,
                    group.topics,
                    ErrorCode.NONE,
                    stable,
                ),
            )
            for group in request.groups
            for error in [gw.groups.refusal_of(group.group_id, surely=True)]
        ],
    )


def _fetched(
    gw: Gateway,
    version: int,
    topic_class: Any,
    partition_class: Any,
    group_id: str,
    wanted_topics: Any,
    error: ErrorCode,
    stable: bool,
) -> list[Any]:
    """The rows of one group. `error` is that of every partition (version 1 knows no other)."""
    offsets = None if error else gw.groups.offsets(group_id)

    def row(name: str | None, partition: int, value: OffsetCommitValue | None, code: ErrorCode) -> Any:
        if stable and name is not None and offsets is not None and offsets.is_pending(name, partition):
            value, code = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
        value = value or _NO_OFFSET
        return partition_class(
            version=version,
            partition_index=partition,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            error_code=code,
        )

    topics = []
    if wanted_topics is None:
        for name, partitions in () if offsets is None else sorted(offsets.by_topic.items()):
            rows = [row(name, partition, value, ErrorCode.NONE) for partition, value in sorted(partitions.items())]
            if version < 10:
                topics.append(topic_class(version=version, name=name, partitions=rows))
                continue
            topic = gw.topics.get(name)
            if topic is not None:
                topics.append(topic_class(version=version, topic_id=topic.topic_id, partitions=rows))
        return topics
    for wanted in wanted_topics:
        if version < 10:
            canonical = gw.topics.canonical_name(wanted.name)
            rows = [
                row(canonical, partition, None if offsets is None else offsets.get(canonical, partition), error)
                for partition in wanted.partition_indexes
            ]
            topics.append(topic_class(version=version, name=wanted.name, partitions=rows))
            continue
        topic = _by_id(gw.topics, wanted.topic_id)
        stored = None if topic is None else gw.topics.canonical_name(topic.name)
        rows = []
        for partition in wanted.partition_indexes:
            value = None
            if topic is not None and stored is not None and offsets is not None:
                value = offsets.get(stored, partition)
                if value is not None and value.topic_id not in (None, topic.topic_id):
                    value = None  # it was committed for an earlier topic of that name
            rows.append(row(stored, partition, value, ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.NONE))
        topics.append(topic_class(version=version, topic_id=wanted.topic_id, partitions=rows))
    return topics


async def offset_delete(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Delete committed offsets of topics that the group does not subscribe to."""
    if not request.group_id:
        return OffsetDeleteResponse(version=ctx.version, error_code=ErrorCode.INVALID_GROUP_ID, topics=[])
    errors = {
        (topic.name, partition.partition_index): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic in request.topics
        for partition in topic.partitions
    }
    canonical = {key: (gw.topics.canonical_name(key[0]), key[1]) for key in errors if _exists(gw, *key)}
    answer = gw.groups.delete_offsets(request.group_id, list(dict.fromkeys(canonical.values())))
    code, codes = await answer if isinstance(answer, asyncio.Future) else answer
    if code:
        return OffsetDeleteResponse(version=ctx.version, error_code=code, topics=[])
    errors.update({key: codes[stored] for key, stored in canonical.items()})
    topic_class = OffsetDeleteResponse.OffsetDeleteResponseTopic
    partition_class = topic_class.OffsetDeleteResponsePartition
    rows: dict[str, list[Any]] = {}
    for (name, partition), code in errors.items():
        rows.setdefault(name, []).append(
            partition_class(version=ctx.version, partition_index=partition, error_code=code)
        )
    return OffsetDeleteResponse(
        version=ctx.version,
        error_code=0,
        topics=[topic_class(version=ctx.version, name=name, partitions=parts) for name, parts in rows.items()],
    )


def _exists(gw: Gateway, name: str, partition: int) -> bool:
    topic = gw.topics.get(name)
    return topic is not None and 0 <= partition < topic.partitions


def _names(request: Any) -> list[str | None]:
    return [topic.name for topic in request.topics]


def _groups_of(request: Any) -> list[str]:
    return [request.group_id] if request.API_VERSION < 8 else [group.group_id for group in request.groups]


APIS = (
    Api(
        8,
        2,
        10,
        offset_commit,
        AclOperation.READ,
        topics=_names,
        decode=parse,
        encode=encode_response,
        rows=("topics", "topics"),
    ),
    Api(9, 1, 10, offset_fetch, AclOperation.DESCRIBE, groups=_groups_of, rows=("topics", "topics")),
    Api(47, 0, 0, offset_delete, AclOperation.DELETE, topics=_names),
)
