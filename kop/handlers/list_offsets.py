"""ListOffsets (2) versions 1 to 11, OffsetForLeaderEpoch (23) versions 2 to 4.

ListOffsets, by what is asked as a timestamp:
- -1 latest (the high watermark) and -2 earliest answer timestamp -1; -3 the record with the largest timestamp (KIP-734)
  and a time answer that record's true timestamp; a time beyond the last record's answers offset -1.
- For isolation level 1 (read_committed) latest is the last stable offset. A record that is looked up there or behind
  it answers offset -1, also where an earlier one would do: so does Kafka.
- -4 earliest local (KIP-405): the log start, all of the log is local. -5 latest tiered and -6 (KIP-1005, KIP-1023)
  answer offset -1: nothing is tiered.
- what cannot be found in time is OFFSET_NOT_AVAILABLE (KIP-207; LEADER_NOT_AVAILABLE before version 5): ask again.
- a negative timestamp that the version does not know is UNSUPPORTED_VERSION, whatever the partition.
- leader_epoch is 0; one asked for above that is UNKNOWN_LEADER_EPOCH.

OffsetForLeaderEpoch: epoch 0 ends at the high watermark; a later one is unknown (-1, -1). An end that is not known in
time is OFFSET_NOT_AVAILABLE (LEADER_NOT_AVAILABLE in version 2, which is older than that code): ask again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from kop.errors import ErrorCode, KopError
from kop.handlers.access import Need, is_refusal, named_topics
from kop.handlers.api import Api, Context, InTask
from kop.handlers.gateway import Gateway
from kop.handlers.in_time import ANSWER_SECONDS, all_in_time
from kop.handlers.isolation import is_open, reads_committed
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import PartitionLog, TopicInfo
from kop.turns import Turns
from kop.wire.rows import Response

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_OLDEST_VERSION_OF = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_NO_VERSION = 1 << 15
"""A version above all others: the minimum for negative timestamps without a meaning, so that every version refuses
them.
"""

_AT_ONCE = 64
SEARCHES_OF_ONE = 8
"""The most look-ups by time that one request has side by side; `gateway.SEARCHES_AT_ONCE` bounds those of all
requests.
"""
_Answer: TypeAlias = tuple[ErrorCode, int, int]
"""The type of an answer for a partition: error code, timestamp in ms (for OffsetForLeaderEpoch the epoch), offset."""
_Key: TypeAlias = tuple[str, int]
"""The type of a key of the answers: the name of a topic, and a partition."""

log = logging.getLogger(__name__)


def list_offsets(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Answer ListOffsets, each partition with its own error; one that is in a request twice gets INVALID_REQUEST.

    The start and end of a log that this broker alone writes are known in memory. If no partition needs more, the
    response is returned at once; else an `InTask`, which asks storage for the others and answers all together.
    """
    committed = reads_committed(request.isolation_level)
    known: dict[_Key, _Answer] = {}
    logs: dict[_Key, tuple[PartitionLog, int]] = {}
    for wanted in request.topics:
        topic = ctx.topic(wanted.name, AclOperation.DESCRIBE)
        for part in wanted.partitions:
            key = (wanted.name, part.partition_index)
            if key in known or key in logs:
                logs.pop(key, None)
                known[key] = ErrorCode.INVALID_REQUEST, -1, -1
                continue
            log_or_error = _log_of(gw, ctx, topic, part)
            if isinstance(log_or_error, ErrorCode):
                known[key] = log_or_error, -1, -1
            elif log_or_error.sole_writer and (bound := _bound(log_or_error, part.timestamp, committed)) is not None:
                known[key] = ErrorCode.NONE, *bound
            else:
                logs[key] = log_or_error, part.timestamp
    if not logs:
        return _response(ctx, request, known)
    return InTask(_look_all_up(gw, ctx, request, known, logs, committed))


def _log_of(gw: Gateway, ctx: Context, topic: TopicInfo | ErrorCode, part: Any) -> PartitionLog | ErrorCode:
    if is_refusal(topic):
        return topic
    if part.timestamp < 0 and ctx.version < _OLDEST_VERSION_OF.get(part.timestamp, _NO_VERSION):
        return ErrorCode.UNSUPPORTED_VERSION
    if isinstance(topic, ErrorCode):
        return topic
    partition_log = gw.topics.log(topic.topic_id, part.partition_index)
    if partition_log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if ctx.version >= 4 and part.current_leader_epoch > 0:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return partition_log


def _response(ctx: Context, request: Any, answers: Mapping[_Key, _Answer]) -> Response:
    topics = []
    for topic in request.topics:
        rows = []
        for part in topic.partitions:
            code, timestamp, offset = answers[topic.name, part.partition_index]
            epoch = 0 if code == ErrorCode.NONE and offset >= 0 else -1
            rows.append(
                dict(
                    partition_index=part.partition_index,
                    error_code=code,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=epoch,
                )
            )
        topics.append(dict(name=topic.name, partitions=rows))
    return ctx.response(topics=topics)


async def _look_all_up(
    gw: Gateway,
    ctx: Context,
    request: Any,
    known: Mapping[_Key, _Answer],
    logs: Mapping[_Key, tuple[PartitionLog, int]],
    committed: bool,
) -> Any:
    searches = Turns(SEARCHES_OF_ONE, ANSWER_SECONDS)
    late = ErrorCode.OFFSET_NOT_AVAILABLE if ctx.version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    look_ups = [partial(_look_up, gw, key, *logs[key], searches, committed) for key in logs]
    answers = await _all_in_time(look_ups, late)
    return _response(ctx, request, {**known, **dict(zip(logs, answers, strict=True))})


async def _all_in_time(look_ups: Sequence[Callable[[], Awaitable[_Answer]]], late_code: ErrorCode) -> list[_Answer]:
    """Look offsets up in storage side by side, and return the answers in the order of `look_ups`; one that is not there
    within 20 s is replaced by `late_code`.
    """
    answers = await all_in_time(look_ups, at_once=_AT_ONCE, what="offsets", then="clients ask again for these alone")
    return [(late_code, -1, -1) if answer is None else answer for answer in answers]


async def _look_up(
    gw: Gateway, key: _Key, partition_log: PartitionLog, timestamp: int, searches: Turns, committed: bool
) -> _Answer:
    try:
        await partition_log.attach()
        if timestamp == _MAX_TIMESTAMP or timestamp >= 0:
            async with searches.turn(), gw.searches.turn():
                time_of_record, offset = await _search(partition_log, timestamp)
            if committed and is_open(partition_log, offset):
                time_of_record, offset = -1, -1
            return ErrorCode.NONE, time_of_record, offset
        if timestamp == _LATEST:
            await partition_log.refresh()
        elif timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            await partition_log.refresh_start()
        bound = _bound(partition_log, timestamp, committed)
        assert bound is not None, "a timestamp without a meaning was refused before"
        return ErrorCode.NONE, *bound
    except KopError as error:
        if not error.told:
            log.warning("cannot look up offsets of %s-%d: %s", *key, error)
        return error.code, -1, -1


def _bound(partition_log: PartitionLog, timestamp: int, committed: bool) -> tuple[int, int] | None:
    """Return timestamp (-1) and offset of the start or end of a log as it is known in memory, of its stable part if
    `committed`; None if `timestamp` asks for something else.
    """
    if timestamp == _LATEST:
        return -1, partition_log.last_stable_offset if committed else partition_log.high_watermark
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return -1, partition_log.log_start_offset
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return -1, -1
    return None


async def _search(partition_log: PartitionLog, timestamp: int) -> tuple[int, int]:
    if timestamp == _MAX_TIMESTAMP:
        result = await partition_log.max_timestamp()
    else:
        result = await partition_log.find_by_time(timestamp)
    return (-1, -1) if result is None else (result.timestamp, result.offset)


def offset_for_leader_epoch(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Answer OffsetForLeaderEpoch with the end of epoch 0, the only one (KIP-320).

    The end of a log that this broker alone writes is answered at once, without a task.
    """
    topics: list[dict[str, Any]] = []
    unknown: list[tuple[dict[str, Any], Callable[[], Awaitable[_Answer]]]] = []
    for wanted in request.topics:
        topic = ctx.topic(wanted.topic, AclOperation.DESCRIBE)
        rows: list[dict[str, Any]] = []
        for part in wanted.partitions:
            row: dict[str, Any] = dict(partition=part.partition)
            rows.append(row)
            answer: _Answer = ErrorCode.NONE, -1, -1
            partition_log = None if isinstance(topic, ErrorCode) else gw.topics.log(topic.topic_id, part.partition)
            if partition_log is None:
                answer = topic if isinstance(topic, ErrorCode) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1
            elif part.current_leader_epoch > 0:
                answer = ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1
            elif part.leader_epoch == 0:
                if not partition_log.sole_writer:
                    unknown.append((row, partial(_look_end_up, (wanted.topic, part.partition), partition_log)))
                    continue
                answer = ErrorCode.NONE, 0, partition_log.high_watermark
            row["error_code"], row["leader_epoch"], row["end_offset"] = answer
        topics.append(dict(topic=wanted.topic, partitions=rows))
    return InTask(_look_ends_up(ctx, topics, unknown)) if unknown else ctx.response(topics=topics)


async def _look_ends_up(
    ctx: Context,
    topics: list[dict[str, Any]],
    unknown: Sequence[tuple[dict[str, Any], Callable[[], Awaitable[_Answer]]]],
) -> Response:
    """Fill in the rows for partitions whose end has to be asked of storage, and return the response. `unknown` pairs
    each such row with the function that looks its end up; one that does not answer within 20 s gives an error after
    which clients ask again.
    """
    late = ErrorCode.OFFSET_NOT_AVAILABLE if ctx.version >= 3 else ErrorCode.LEADER_NOT_AVAILABLE
    answers = await _all_in_time([look_up for _, look_up in unknown], late)
    for (row, _), answer in zip(unknown, answers, strict=True):
        row["error_code"], row["leader_epoch"], row["end_offset"] = answer
    return ctx.response(topics=topics)


async def _look_end_up(key: _Key, partition_log: PartitionLog) -> _Answer:
    try:
        await partition_log.refresh()  # an end behind the client's position would mean truncation to it
        return ErrorCode.NONE, 0, partition_log.high_watermark
    except KopError as error:
        if not error.told:
            log.warning("cannot look up the end of %s-%d: %s", *key, error)
        return error.code, -1, -1


APIS = (
    Api(
        2,
        1,
        11,
        list_offsets,
        (Need(AclOperation.DESCRIBE, ResourceType.TOPIC, named_topics),),
        rows=("topics", "topics"),
    ),
    Api(
        23,
        2,
        4,
        offset_for_leader_epoch,
        (Need(AclOperation.DESCRIBE, ResourceType.TOPIC, lambda request: [topic.topic for topic in request.topics]),),
        rows=("topics", "topics"),
    ),
)
