"""CreateTopics (19) 2 to 7, DeleteTopics (20) 1 to 6, DeleteRecords (21) 0 to 2, CreatePartitions (37) 0 to 3.

Checks, their order, codes and texts are Kafka 4.3's; where ours differ it is said here.

CreateTopics
- num_partitions -1 is num.partitions; replication factor -1 and anything from 1 up is taken and answered as 1 replica.
- Manual assignments name partitions 0 to n-1 and live brokers; num_partitions and replication factor are then -1.
- Own configs are checked by `kop.cluster.topic_configs`. From version 5 the answer holds every effective config,
  from 7 the topic id. validate_only checks everything and makes nothing.
- Over Pulsar a name with "-partition-" in it is INVALID_TOPIC_EXCEPTION: Pulsar makes no such partitioned topic.
- A name that another differs from only in '.' and '_' is INVALID_TOPIC_EXCEPTION, as are the reserved names: the
  coordinator makes those itself (Kafka lets clients make them). One that is there already is TOPIC_ALREADY_EXISTS.
- More than 10,000 partitions in one request, or above kop.max.partitions in all: POLICY_VIOLATION.

DeleteTopics: by name, from version 6 by id, too. delete.topic.enable=false is TOPIC_DELETION_DISABLED, below version 3
INVALID_REQUEST. Reserved names are INVALID_TOPIC_EXCEPTION: committed offsets live there.

CreatePartitions: the number only grows; assignments as above; internal topics are INVALID_TOPIC_EXCEPTION, because
groups are spread by their number of partitions (Kafka lets that happen, and loses committed offsets).

DeleteRecords: -1 is the high watermark; beyond it OFFSET_OUT_OF_RANGE. Internal topics are INVALID_TOPIC_EXCEPTION,
topics that are only compacted POLICY_VIOLATION.

Two names of one topic (`kop.cluster.client_topics`) in one request are the same name twice: INVALID_REQUEST for both.

Each topic of a request stands for itself: one that fails does not keep the others. Everything is durable when answered;
the requests' timeouts are therefore not used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kop.cluster.client_topics import RESERVED
from kop.errors import ErrorCode, KopError, PeerError
from kop.handlers.access import Need, is_refusal, named_topics
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import TopicInfo
from kop.turns import with_pauses
from kop.wire.messages import Message
from kop.wire.rows import Response

_STRICT_CREATION, _STRICT_DELETION, _STRICT_GROWTH = 6, 5, 3
"""The versions of CreateTopics, DeleteTopics and CreatePartitions from which on a topic beyond the quota of
controller_mutation_rate is THROTTLING_QUOTA_EXCEEDED; below, its client is held after it (KIP-599).
"""
_log = logging.getLogger(__name__)


# --- CreateTopics


@dataclass(slots=True)
class _Plan:
    """A topic that CreateTopics is to make, after its checks."""

    name: str
    partitions: int = 0
    configs: dict[str, str] = field(default_factory=dict)
    topic: TopicInfo | None = None
    error: KopError | None = None


async def create_topics(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer CreateTopics: check each topic, make the valid ones unless the request only validates, and answer in the
    order of the request.
    """
    counts = Counter(ctx.canonical_name(topic.name) for topic in request.topics)
    plans: dict[str, _Plan] = {}
    with gw.topic_limits.making() as making:
        async for wanted in with_pauses(request.topics):
            if wanted.name in plans:
                continue
            plan = plans[wanted.name] = _Plan(wanted.name)
            try:
                if counts[ctx.canonical_name(wanted.name)] > 1:
                    raise PeerError("Duplicate topic name.")
                if not ctx.may_create(wanted.name):
                    raise PeerError("Authorization failed.", ctx.access.refusal(ResourceType.TOPIC, wanted.name))
                gw.topic_limits.check_name(wanted.name)
                plan.configs = gw.topic_configs.check({config.name: config.value for config in wanted.configs})
                plan.partitions = _partitions_of(gw, wanted)
                making.add(plan.partitions, wanted.name)
            except KopError as error:
                plan.error = error
        if not request.validate_only:
            await asyncio.gather(*(_create(gw, ctx, plan) for plan in plans.values() if plan.error is None))
    rows = [_created(gw, ctx, plan) async for plan in with_pauses(plans.values())]
    return ctx.response(topics=rows)


def _partitions_of(gw: Gateway, wanted: Any) -> int:
    """Return the number of partitions that a topic in CreateTopics is to have: that of the request or of its
    assignments, or num.partitions for -1. PeerError if it, the replication factor or an assignment is not possible.
    """
    if wanted.assignments:
        if wanted.replication_factor != -1:
            raise PeerError("A manual partition assignment was specified, but replication factor was not set to -1.")
        if wanted.num_partitions != -1:
            raise PeerError("A manual partition assignment was specified, but numPartitions was not set to -1.")
        seen: set[int] = set()
        for assignment in wanted.assignments:
            if assignment.partition_index in seen:
                raise PeerError(
                    f"Found multiple manual partition assignments for partition {assignment.partition_index}",
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                )
            seen.add(assignment.partition_index)
            _check_replicas(gw, assignment.broker_ids)
        if seen != set(range(len(seen))):
            raise PeerError(
                "partitions should be a consecutive 0-based integer sequence", ErrorCode.INVALID_REPLICA_ASSIGNMENT
            )
        return len(seen)
    if wanted.replication_factor < -1 or wanted.replication_factor == 0:
        raise PeerError(
            "Replication factor must be larger than 0, or -1 to use the default value.",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    if wanted.num_partitions == -1:
        return gw.broker_configs.num_partitions
    if wanted.num_partitions < 1:
        raise PeerError("Number of partitions was set to an invalid non-positive value.", ErrorCode.INVALID_PARTITIONS)
    return int(wanted.num_partitions)


def _check_replicas(gw: Gateway, brokers: Sequence[int]) -> None:
    """Raise PeerError (INVALID_REPLICA_ASSIGNMENT) unless one partition's replicas are live brokers, each once."""
    reason = ""
    if not brokers:
        reason = "an empty replica list."
    elif unknown := [broker for broker in brokers if broker not in gw.cluster.ids]:
        reason = f"broker {unknown[0]}, but no such broker is registered."
    elif twice := [broker for broker in brokers if brokers.count(broker) > 1]:
        reason = f"the broker {twice[0]} more than once."
    if reason:
        raise PeerError(f"The manual partition assignment includes {reason}", ErrorCode.INVALID_REPLICA_ASSIGNMENT)


async def _create(gw: Gateway, ctx: Context, plan: _Plan) -> None:
    try:
        ctx.change_partitions(plan.partitions, _STRICT_CREATION)
        plan.topic = await gw.engine.topics.create(ctx.canonical_name(plan.name), plan.partitions, plan.configs)
    except KopError as error:
        plan.error = error
    else:
        _log.info("topic %s is made, partitions: %d, configs: %s", plan.name, plan.partitions, plan.configs or "none")


def _created(gw: Gateway, ctx: Context, plan: _Plan) -> dict[str, Any]:
    if plan.error is not None:
        return dict(
            name=plan.name,
            topic_id=None,
            error_code=plan.error.code,
            error_message=plan.error.message or None,
            topic_config_error_code=0,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    hidden = not ctx.may(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, plan.name)
    configs = gw.topic_configs.rows(plan.configs) if ctx.version >= 5 and not hidden else ()
    return dict(
        name=plan.name,
        topic_id=gw.topics.id_of(replace(plan.topic, name=plan.name)) if plan.topic is not None else None,
        error_code=0,
        error_message=None,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED if hidden else 0,
        num_partitions=-1 if hidden else plan.partitions,
        replication_factor=-1 if hidden else 1,
        configs=[(config.name, config.value, config.read_only, config.source, False) for config in configs],
    )


# --- DeleteTopics

_ID_SUPPLIED = "The provided topic name maps to an ID that was already supplied."


@dataclass(slots=True)
class _Deletion:
    """A topic in DeleteTopics, with the fields of its row in the answer."""

    name: str | None
    topic_id: UUID | None = None
    """The topic's id in the client's words; `topic` has the engine's id."""
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic: TopicInfo | None = None

    def refuse(self, code: ErrorCode, message: str) -> None:
        self.code, self.message = code, message


async def delete_topics(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DeleteTopics: delete each valid topic, and answer once for every one that the request names."""
    if ctx.version >= 6:
        rows = [_Deletion(topic.name, topic.topic_id) for topic in request.topics]
    else:
        rows = [_Deletion(name) for name in request.topic_names]
    if not gw.settings.delete_topic_enable:
        code = ErrorCode.INVALID_REQUEST if ctx.version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        for row in rows:
            row.refuse(code, "Topic deletion is disabled.")
    else:
        rows = await _resolve(gw, ctx, rows)
        await asyncio.gather(*(_delete(gw, ctx, row) for row in rows if row.code == ErrorCode.NONE))
    return ctx.response(
        responses=[
            dict(name=row.name, topic_id=row.topic_id, error_code=row.code, error_message=row.message)
            async for row in with_pauses(rows)
        ]
    )


async def _resolve(gw: Gateway, ctx: Context, rows: list[_Deletion]) -> list[_Deletion]:
    """Find the topics that a DeleteTopics names, and return the rows to be answered: each with its topic, or refused
    with the error. Those that are named twice are refused, and answered once.
    """
    names = Counter(row.name for row in rows if row.topic_id is None)
    ids = Counter(row.topic_id for row in rows if row.name is None)
    answer: dict[tuple[str | None, UUID | None], _Deletion] = {(row.name, row.topic_id): row for row in rows}
    async for row in with_pauses(answer.values()):
        if row.name is None and row.topic_id is None:
            row.refuse(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        elif row.name is not None and row.topic_id is not None:
            row.refuse(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        elif row.topic_id is not None:
            if ids[row.topic_id] > 1:
                row.refuse(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
                continue
            topic = _to_delete(ctx, row.topic_id)
            if is_refusal(topic):
                row.refuse(topic, "Topic authorization failed.")
                known = ctx.topic(row.topic_id, None)
                if isinstance(known, TopicInfo) and ctx.may(AclOperation.DESCRIBE, ResourceType.TOPIC, known.name):
                    row.name = known.name
            elif isinstance(topic, ErrorCode):
                row.refuse(topic, "This server does not host this topic ID.")
            else:
                row.name, row.topic = topic.name, topic
                _refuse_reserved(row)
        elif names[row.name] > 1:
            row.refuse(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        else:
            assert row.name is not None
            topic = _to_delete(ctx, row.name)
            if is_refusal(topic):
                row.refuse(topic, "Topic authorization failed.")
                continue
            if isinstance(topic, ErrorCode):
                if row.name not in RESERVED:
                    row.refuse(topic, "This server does not host this topic-partition.")
                    continue
            else:
                row.topic, row.topic_id = topic, gw.topics.id_of(topic)
            _refuse_reserved(row)
            if row.topic is not None and ids[row.topic_id] > 1:
                row.refuse(ErrorCode.INVALID_REQUEST, _ID_SUPPLIED)
    return _without_both(list(answer.values()))


def _to_delete(ctx: Context, name_or_id: str | UUID) -> TopicInfo | ErrorCode:
    """Return the topic if the client may delete it, by its right to the cluster or to the topic; else the error code:
    not authorized, or no such topic.
    """
    topic = ctx.topic(name_or_id, None)
    if isinstance(topic, TopicInfo):
        name = topic.name
    elif isinstance(name_or_id, str):
        name = ctx.canonical_name(name_or_id)
    else:
        return topic
    return topic if ctx.may_by_whole(AclOperation.DELETE, name) else ctx.topic(name_or_id, AclOperation.DELETE)


def _refuse_reserved(row: _Deletion) -> None:
    if row.name in RESERVED:
        row.refuse(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Deletion of internal topic {row.name} is prohibited.")


def _without_both(rows: list[_Deletion]) -> list[_Deletion]:
    """Refuse topics that a DeleteTopics names twice, in two rows: by name and by id, or by two spellings of the name.
    Returns the rows to answer: both, but only the first if the two have the same name.
    """
    seen: dict[UUID, _Deletion] = {}
    kept: list[_Deletion] = []
    for row in rows:
        if row.code == ErrorCode.NONE and row.topic is not None:
            first = seen.setdefault(row.topic.topic_id, row)
            if first is not row:
                first.refuse(ErrorCode.INVALID_REQUEST, _ID_SUPPLIED)
                if first.name == row.name:
                    continue
                row.refuse(ErrorCode.INVALID_REQUEST, _ID_SUPPLIED)
        kept.append(row)
    return kept


async def _delete(gw: Gateway, ctx: Context, row: _Deletion) -> None:
    assert row.topic is not None
    try:
        ctx.change_partitions(row.topic.partitions, _STRICT_DELETION)
        await gw.engine.topics.delete(row.topic.topic_id)
    except KopError as error:
        row.refuse(error.code, error.message)
    else:
        _log.info("topic %s (%s) is deleted", row.name, row.topic_id)


# --- CreatePartitions


async def create_partitions(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer CreatePartitions: raise the number of partitions of each topic to the one in the request; with
    validate_only it is only checked.
    """
    counts = Counter(ctx.canonical_name(topic.name) for topic in request.topics)
    topics_by_name = {topic.name: topic for topic in request.topics}
    answers: dict[str, KopError | None] = {}
    grown: list[tuple[TopicInfo, int]] = []
    with gw.topic_limits.making() as making:
        async for name, wanted in with_pauses(topics_by_name.items()):
            try:
                if counts[ctx.canonical_name(name)] > 1:
                    raise PeerError("Duplicate topic name.")
                topic = _check_growth(gw, ctx, wanted)
                making.add(wanted.count - topic.partitions)
                grown.append((topic, wanted.count))
                answers[name] = None
            except KopError as error:
                answers[name] = error
        if not request.validate_only:
            results = await asyncio.gather(*(_grow(gw, ctx, topic, count) for topic, count in grown))
            answers |= {topic.name: error for (topic, _), error in zip(grown, results, strict=True)}
    return ctx.response(
        results=[
            dict(
                name=name,
                error_code=error.code if error is not None else 0,
                error_message=error.message or None if error is not None else None,
            )
            for name, error in answers.items()
        ]
    )


def _check_growth(gw: Gateway, ctx: Context, wanted: Any) -> TopicInfo:
    topic = ctx.topic(wanted.name, AclOperation.ALTER)
    if is_refusal(topic):
        raise PeerError("Topic authorization failed.", topic)
    if isinstance(topic, ErrorCode):
        raise PeerError("This server does not host this topic-partition.", topic)
    if topic.internal:
        raise PeerError(
            f"The number of partitions of internal topic {topic.name} is fixed.", ErrorCode.INVALID_TOPIC_EXCEPTION
        )
    if wanted.count == topic.partitions:
        raise PeerError(f"Topic already has {topic.partitions} partition(s).", ErrorCode.INVALID_PARTITIONS)
    if wanted.count < topic.partitions:
        raise PeerError(
            f"The topic {topic.name} currently has {topic.partitions} partition(s); "
            f"{wanted.count} would not be an increase.",
            ErrorCode.INVALID_PARTITIONS,
        )
    if wanted.assignments is not None:
        added = wanted.count - topic.partitions
        if len(wanted.assignments) != added:
            raise PeerError(
                f"Attempted to add {added} additional partition(s), but only {len(wanted.assignments)} assignment(s) "
                "were specified.",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        for assignment in wanted.assignments:
            _check_replicas(gw, assignment.broker_ids)
    return topic


async def _grow(gw: Gateway, ctx: Context, topic: TopicInfo, count: int) -> KopError | None:
    try:
        ctx.change_partitions(count - topic.partitions, _STRICT_GROWTH)
        await gw.engine.topics.grow(topic.topic_id, count)
    except KopError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_ID:
            return PeerError(error.message, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return error
    _log.info("topic %s has %d partitions now", topic.name, count)
    return None


# --- DeleteRecords


async def delete_records(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DeleteRecords: delete the records of each partition before the offset in the request, and answer the log
    start that it has then.
    """
    offsets_by_topic: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = offsets_by_topic.setdefault(topic.name, {})
        offsets.update({partition.partition_index: partition.offset for partition in topic.partitions})
    places = [(name, index, offset) for name, offsets in offsets_by_topic.items() for index, offset in offsets.items()]
    results = await asyncio.gather(*(_truncate(gw, ctx, *place) for place in places))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in offsets_by_topic}
    for (name, index, _), (code, low_watermark) in zip(places, results, strict=True):
        rows[name].append(dict(partition_index=index, low_watermark=low_watermark, error_code=code))
    return ctx.response(topics=[dict(name=name, partitions=partitions) for name, partitions in rows.items()])


async def _truncate(gw: Gateway, ctx: Context, name: str, index: int, offset: int) -> tuple[ErrorCode, int]:
    """Delete the records of a partition before an offset, or for -1 all up to the high watermark; return the error code
    and the new log start, or -1.
    """
    topic = ctx.topic(name, AclOperation.DELETE)
    if isinstance(topic, ErrorCode):
        return topic, -1
    log = gw.topics.log(topic.topic_id, index)
    if log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, -1
    policy = gw.topic_configs.policy(topic)
    if policy.compact and not policy.delete:
        return ErrorCode.POLICY_VIOLATION, -1
    if offset < -1:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    try:
        await log.attach()
        return ErrorCode.NONE, await log.delete_records(offset)
    except KopError as error:
        return error.code, -1


def _to_be_deleted(request: Any) -> Iterable[str | UUID | None]:
    return [
        *(topic.name if topic.topic_id is None else topic.topic_id for topic in request.topics), *request.topic_names
    ]  # fmt: skip


APIS: tuple[Api, ...] = (
    Api(
        19,
        2,
        7,
        create_topics,
        (
            Need(AclOperation.CREATE, ResourceType.CLUSTER),
            Need(AclOperation.CREATE, ResourceType.TOPIC, named_topics),
            Need(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
        ),
    ),
    Api(
        20,
        1,
        6,
        delete_topics,
        (
            Need(AclOperation.DELETE, ResourceType.CLUSTER),
            Need(AclOperation.DELETE, ResourceType.TOPIC, _to_be_deleted),
        ),
    ),
    Api(
        21,
        0,
        2,
        delete_records,
        (Need(AclOperation.DELETE, ResourceType.TOPIC, named_topics),),
        rows=("topics", "topics"),
    ),
    Api(37, 0, 3, create_partitions, (Need(AclOperation.ALTER, ResourceType.TOPIC, named_topics),)),
)
