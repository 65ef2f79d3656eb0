"""DescribeConfigs (32) 1 to 4, AlterConfigs (33) 0 to 2, IncrementalAlterConfigs (44) 0 and 1, ListConfigResources (74)
0 and 1.

Resources
- TOPIC: every config of `kop.cluster.topic_configs`, with its source and synonyms. Values are printed as Kafka does:
  " compact , delete" is described as "compact,delete", "TRUE" as "true".
- BROKER: "1" (this broker's id) shows every setting (a secret is sensitive and null, as Kafka's passwords are), ""
  what was altered for the whole cluster. What Kafka takes at run time can be altered (`kop.cluster.broker_configs`);
  the rest is INVALID_REQUEST "Cannot update these configs dynamically", as Kafka's static settings are.
- BROKER_LOGGER: the levels of this process's loggers, until it ends; only with IncrementalAlterConfigs, as in Kafka.
  "root" is Python's root logger. Kafka's level names; OFF is above every level.
- CLIENT_METRICS and GROUP: there are no such configs here. Described they are empty; every name to be altered is
  unknown: INVALID_REQUEST and INVALID_CONFIG, Kafka's codes for an unknown name.

AlterConfigs replaces: what is not named goes back to the default. IncrementalAlterConfigs sets, deletes, appends and
subtracts, the last two on lists only, from the effective value where the resource has none of its own.
A resource stands for itself, and changes wholly or not at all. One that is named twice, a config named twice within a
resource and a null value are INVALID_REQUEST. Changes are durable and in force when answered, also where a topic had
that value before and somebody gave the storage another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any

from kop.cluster.broker_configs import DYNAMIC
from kop.cluster.topic_configs import TOPIC_CONFIGS, ConfigRow, ConfigType, Origin, Source, split_list
from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.handlers.access import Need
from kop.handlers.api import Api, Context, error_fields
from kop.handlers.gateway import Gateway
from kop.security.rights import CLUSTER_NAME, AclOperation, ResourceType
from kop.storage.base import TopicInfo
from kop.turns import Turns, with_pauses
from kop.wire.messages import Message
from kop.wire.rows import Response

ALTER_CONFIGS = 33
_MOST_REFRESHED = 16
"""The most topics of one DescribeConfigs whose configs are read from storage again; if more are asked for, memory
answers for all.
"""
_ALTERED_AT_ONCE = 16
"""The number of resources that one request alters side by side; one for which storage gives no answer soon no longer
counts.
"""

_log = logging.getLogger(__name__)


class Resource(IntEnum):
    """A type of resource that has configs (`org.apache.kafka.common.config.ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """An operation of IncrementalAlterConfigs on a value: set, delete, append or subtract (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# --- DescribeConfigs


async def describe_configs(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DescribeConfigs: the configs of each resource with their values and sources, or those of them that the
    request names.
    """
    results = []
    known = {
        resource.resource_name: topic
        for resource in request.resources
        if resource.resource_type == Resource.TOPIC
        and ctx.may(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, resource.resource_name)
        and isinstance(topic := ctx.topic(resource.resource_name, None), TopicInfo)
    }
    await _refresh(gw, known.values())
    differing = await _differing_configs(gw, known)
    for resource in request.resources:
        error: KopError | None = None
        rows: list[ConfigRow] = []
        try:
            rows = list(_describe(gw, ctx, resource.resource_type, resource.resource_name))
            if resource.resource_type == Resource.TOPIC and (held := differing.get(resource.resource_name)):
                rows = [_as_held(row, held[row.name]) if row.name in held else row for row in rows]
        except KopError as failure:
            error = failure
        keys = set(resource.configuration_keys or ())
        results.append(
            error_fields(error, "")
            | dict(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[_row(ctx.version, request, row) for row in rows if not keys or row.name in keys],
            )
        )
        if len(results) % 50 == 0:  # a tool may ask for thousands of topics
            await asyncio.sleep(0)
    return ctx.response(results=results)


async def _refresh(gw: Gateway, topics: Collection[TopicInfo]) -> None:
    """Read the topics that a request describes from storage again, since another broker may just have changed them. Do
    nothing if there is no other broker, or for more than 16 topics; if storage fails, log it and go on with what is
    known.
    """
    if len(gw.cluster.ids) == 1 or len(topics) > _MOST_REFRESHED:
        return
    try:
        await asyncio.gather(*(gw.engine.topics.refresh(topic.topic_id) for topic in topics))
    except KopError as error:
        _log.warning(
            "configs of topics cannot be read from storage, and are answered as they were last known: %s", error
        )


async def _differing_configs(gw: Gateway, topics: Mapping[str, TopicInfo]) -> dict[str, Mapping[str, str]]:
    """Return by the names in `topics` those configs, with their values, that have another value in storage than in
    memory. None at all for more than 16 topics, or if storage cannot be read, which is logged.
    """
    if len(topics) > _MOST_REFRESHED:
        return {}
    try:
        differing = await asyncio.gather(
            *(gw.engine.topics.differing_configs(topic.topic_id) for topic in topics.values())
        )
    except KopError as error:
        _log.warning(
            "configs of topics cannot be read from storage, and are answered as they were last known: %s", error
        )
        return {}
    return dict(zip(topics, differing, strict=True))


def _as_held(row: ConfigRow, value: str) -> ConfigRow:
    rest = [origin for origin in row.synonyms if origin.source != Source.DYNAMIC_TOPIC]
    return row._replace(
        value=value, source=Source.DYNAMIC_TOPIC, synonyms=(Origin(row.name, value, Source.DYNAMIC_TOPIC), *rest)
    )


def _check_right(ctx: Context, operation: AclOperation, kind: int, name: str) -> None:
    """Raise PeerError if the client lacks the right to do this operation: on the topic or the group `name`, for all
    other kinds of resources on the cluster. A denial is audited.
    """
    resource = {Resource.TOPIC: ResourceType.TOPIC, Resource.GROUP: ResourceType.GROUP}.get(
        Resource(kind), ResourceType.CLUSTER
    )
    if resource is ResourceType.CLUSTER:
        name = CLUSTER_NAME
    if not ctx.access.allows(ctx.conn, operation, resource, name):
        raise PeerError(f"{resource.name} authorization failed.", ctx.access.refusal(resource, name))


def _describe(gw: Gateway, ctx: Context, kind: int, name: str) -> Iterable[ConfigRow]:
    if kind in set(Resource):
        _check_right(ctx, AclOperation.DESCRIBE_CONFIGS, kind, name)
    match kind:
        case Resource.TOPIC:
            configs = _topic(gw, ctx, name).configs
            printed = {key: TOPIC_CONFIGS[key].printed(text) for key, text in configs.items() if key in TOPIC_CONFIGS}
            return gw.topic_configs.rows(printed)
        case Resource.BROKER:
            _check_described_broker(gw, name)
            return sorted(gw.broker_configs.rows()) if name else gw.broker_configs.cluster_rows()
        case Resource.BROKER_LOGGER:
            if not name:
                raise PeerError("Broker id must not be empty")
            if name != gw.broker_configs.broker_id:
                raise PeerError(f"Unexpected broker id, expected {gw.broker_configs.broker_id} but received {name}")
            return _logger_rows()
        case Resource.CLIENT_METRICS:
            if not name:
                raise PeerError("Client metrics subscription name must not be empty")
            return ()
        case Resource.GROUP:
            if not name:
                raise PeerError("Group name must not be empty")
            return ()
    raise PeerError(f"Unknown resource type {kind}")


def _topic(gw: Gateway, ctx: Context, name: str) -> TopicInfo:
    """Return the topic whose configs are asked for; PeerError if there is none, or its name is not legal. The right to
    it has been checked.
    """
    topic = ctx.topic(name, None)
    if isinstance(topic, ErrorCode):
        gw.topics.check_name(name)
        raise PeerError(f"The topic '{name}' does not exist.", topic)
    return topic


def _check_described_broker(gw: Gateway, name: str) -> None:
    if name in {"", gw.broker_configs.broker_id}:
        return
    if not name.lstrip("+-").isdecimal():
        raise PeerError(f"Broker id must be an integer, but it is: {name}")
    raise PeerError(
        f"Unexpected broker id, expected {gw.broker_configs.broker_id} or empty string, but received {name}"
    )


def _row(version: int, request: Message, row: ConfigRow) -> tuple[Any, ...]:
    """Return a config as a tuple in the schema's field order, which is encoded fast: a topic has 33 of them."""
    synonyms = [tuple(synonym) for synonym in row.synonyms] if request.include_synonyms else []
    fields = (row.name, row.value, row.read_only, row.source, row.sensitive, synonyms)
    if version < 3:
        return fields
    return (*fields, row.type, row.doc if request.include_documentation else None)


# --- AlterConfigs and IncrementalAlterConfigs


async def alter_configs(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer AlterConfigs: replace the configs of each resource; one that the request does not name goes back to its
    default.
    """

    async def alter(resource: Any) -> None:
        _check_values(resource)
        wanted = {config.name: config.value for config in resource.configs}
        await _alter(gw, ctx, resource, lambda _: dict(wanted), TOPIC_CONFIGS, validate_only=request.validate_only)

    return await _answer_each(gw, ctx, request, alter)


async def incremental_alter_configs(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer IncrementalAlterConfigs: set, delete, append to or subtract from some of the configs of each resource."""

    async def alter(resource: Any) -> None:
        for config in resource.configs:
            if config.config_operation not in set(Operation):
                raise PeerError(f"Unknown operation {config.config_operation} for {config.name}")
        _check_values(resource)
        if resource.resource_type == Resource.BROKER_LOGGER:
            _alter_loggers(gw, resource, validate_only=request.validate_only)
            return
        effective = _effective(gw, resource)

        def change(own: Mapping[str, str]) -> dict[str, str]:
            wanted = dict(own)
            for config in resource.configs:
                _apply(wanted, config, effective)
            return wanted

        named = {config.name for config in resource.configs}
        await _alter(gw, ctx, resource, change, named, validate_only=request.validate_only)

    return await _answer_each(gw, ctx, request, alter)


def _audit(gw: Gateway, ctx: Context, resource: Any, failure: KopError | None = None) -> None:
    """Write into the audit which configs of a resource a client has changed, or, with the `failure` of storage, may
    have.
    """
    if ctx.api_key == ALTER_CONFIGS:
        operation = "REPLACE CONFIGS"
        configs = [{"name": config.name, "value": config.value} for config in resource.configs]
    else:
        operation = "ALTER CONFIGS"
        configs = [
            {"operation": Operation(config.config_operation).name, "name": config.name, "value": config.value}
            for config in resource.configs
        ]
    kind = Resource(resource.resource_type).name
    gw.audit.changed(ctx.conn, operation, kind, resource.resource_name, dict(configs=configs), failure)


async def _answer_each(gw: Gateway, ctx: Context, request: Message, alter: Callable[[Any], Any]) -> Response:
    """Check the right to each resource of the request, then run `alter` for it, side by side; return the response,
    which has a row for each with the KopError that this raised. Changes are written to the audit, unless the request
    only validates.
    """
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    turns = Turns(_ALTERED_AT_ONCE)

    async def answer(resource: Any) -> dict[str, Any]:
        code, message = ErrorCode.NONE, None
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise PeerError("Each resource must appear at most once.")
            if resource.resource_type in set(Resource):
                _check_right(ctx, AclOperation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
            async with turns.turn():
                await alter(resource)
            if not request.validate_only:
                _audit(gw, ctx, resource)
        except KopError as error:
            code, message = error.code, error.message
            if isinstance(error, BackendError):
                _audit(gw, ctx, resource, error)
        return dict(
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    async with asyncio.TaskGroup() as group:
        rows = [group.create_task(answer(resource)) async for resource in with_pauses(request.resources)]
    return ctx.response(responses=[row.result() for row in rows])


def _check_values(resource: Any) -> None:
    names = Counter(config.name for config in resource.configs)
    if any(count > 1 for count in names.values()):
        raise PeerError("Error due to duplicate config keys")
    nulls = [
        config.name
        for config in resource.configs
        if config.value is None and getattr(config, "config_operation", Operation.SET) != Operation.DELETE
    ]
    if nulls:
        raise PeerError(f"Null value not supported for : {', '.join(nulls)}")


async def _alter(
    gw: Gateway,
    ctx: Context,
    resource: Any,
    change: Callable[[Mapping[str, str]], dict[str, str]],
    named: Collection[str],
    *,
    validate_only: bool,
) -> None:
    """Replace a resource's own configs by the result of `change` on them, or with `validate_only` only check it.
    `named` are the configs that the request is about, which storage is given even if they have that value. PeerError if
    the resource or the result is not possible.
    """
    name = resource.resource_name
    match resource.resource_type:
        case Resource.TOPIC:
            # One change of a topic at a time: the next one has to see what this one makes.
            async with gw.topic_configs.lock_of(ctx.canonical_name(name)):
                await _refresh(gw, [_topic(gw, ctx, name)])
                topic = _topic(gw, ctx, name)
                wanted = gw.topic_configs.check(change(topic.configs), internal=topic.internal)
                if validate_only:
                    return
                try:  # also where the topic has these already: what the storage obeys may be something else
                    await gw.engine.topics.set_configs(topic.topic_id, wanted, named)
                except KopError as error:
                    if error.code == ErrorCode.UNKNOWN_TOPIC_ID:
                        raise PeerError(error.message, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
                    raise
            _log.info("topic %s has the configs %s now", name, wanted)
        case Resource.BROKER:
            await gw.broker_configs.alter(name, change, validate_only=validate_only)
            if not validate_only:
                _log.info("altered settings of broker %r are %s now", name, dict(gw.broker_configs.altered(name)))
        case Resource.CLIENT_METRICS:
            if unknown := change({}):
                raise PeerError(f"Unknown client metrics configuration: {next(iter(unknown))}")
        case Resource.GROUP:
            if not name:
                raise PeerError("Default group resources are not allowed.")
            if unknown := change({}):
                raise PeerError(f"Unknown group config name: {next(iter(unknown))}", ErrorCode.INVALID_CONFIG)
        case _:
            raise PeerError(f"Unknown resource type {resource.resource_type}")


def _effective(gw: Gateway, resource: Any) -> Callable[[str], tuple[ConfigType, str]]:
    """Return a function that gives the type and the effective value, as text, of a config of the resource: what APPEND
    and SUBTRACT start from if the resource has no value of its own.
    """

    def look_up(name: str) -> tuple[ConfigType, str]:
        if resource.resource_type == Resource.TOPIC and name in TOPIC_CONFIGS:
            return TOPIC_CONFIGS[name].type, gw.topic_configs.text({}, name)
        if resource.resource_type == Resource.BROKER and name in DYNAMIC:
            return DYNAMIC[name].type, gw.broker_configs.text(name)
        return ConfigType.LIST, ""  # an unknown name is refused when the result is checked

    return look_up


def _apply(wanted: dict[str, str], config: Any, effective: Callable[[str], tuple[ConfigType, str]]) -> None:
    """Apply one operation of IncrementalAlterConfigs to `wanted`, a resource's own configs, in place. PeerError
    (INVALID_CONFIG) for APPEND or SUBTRACT if the config is no list.
    """
    operation = Operation(config.config_operation)
    if operation == Operation.DELETE:
        wanted.pop(config.name, None)
        return
    if operation == Operation.SET:
        wanted[config.name] = config.value
        return
    kind, inherited = effective(config.name)
    if kind != ConfigType.LIST:
        raise PeerError(
            f"Can't {operation.name} to key {config.name} because its type is not LIST.", ErrorCode.INVALID_CONFIG
        )
    present = split_list(wanted.get(config.name, inherited))
    items = split_list(config.value)
    if operation == Operation.APPEND:
        present += [item for item in items if item not in present]
    else:
        present = [item for item in present if item not in items]
    wanted[config.name] = ",".join(present)


# --- loggers

_LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50, "OFF": 60}
"""The numbers of Python's log levels, by Kafka's names of levels."""
_ROOT = "root"


def _loggers() -> dict[str, logging.Logger]:
    """Return every logger of this process, by its name for Kafka clients."""
    loggers = {
        name: entry for name, entry in logging.root.manager.loggerDict.items() if isinstance(entry, logging.Logger)
    }
    return dict(sorted(loggers.items())) | {_ROOT: logging.root}


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return next((name for name, number in _LEVELS.items() if level <= number), "OFF")


def _logger_rows() -> Iterable[ConfigRow]:
    for name, logger in _loggers().items():
        yield ConfigRow(name, _level_name(logger), False, Source.DYNAMIC_BROKER_LOGGER, ConfigType.UNKNOWN, "", ())


def _alter_loggers(gw: Gateway, resource: Any, *, validate_only: bool) -> None:
    if resource.resource_name != gw.broker_configs.broker_id:
        raise PeerError(
            f"Unexpected node id. Expected {gw.broker_configs.broker_id}, but received {resource.resource_name}"
        )
    loggers = _loggers()
    for config in resource.configs:
        if config.config_operation not in {Operation.SET, Operation.DELETE}:
            operation = Operation(config.config_operation).name
            raise PeerError(f"{operation} operation is not allowed for the BROKER_LOGGER resource")
        if config.name not in loggers:
            raise PeerError(f"Logger {config.name} does not exist!", ErrorCode.INVALID_CONFIG)
        if config.config_operation == Operation.SET and config.value not in _LEVELS:
            raise PeerError(
                f"Cannot set the log level of {config.name} to {config.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(_LEVELS)}",
                ErrorCode.INVALID_CONFIG,
            )
        if config.config_operation == Operation.DELETE and config.name == _ROOT:
            raise PeerError("Removing the log level of the root logger is not allowed")
    if validate_only:
        return
    for config in resource.configs:
        unset = config.config_operation == Operation.DELETE
        loggers[config.name].setLevel(logging.NOTSET if unset else _LEVELS[config.value])


# --- ListConfigResources


def list_config_resources(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer ListConfigResources with the names and types of the resources whose configs can be described (KIP-1142).
    Version 0 asks for CLIENT_METRICS alone: there are none.
    """
    if ctx.version == 0:
        return ctx.response(error_code=0, config_resources=[])
    wanted = set(request.resource_types) or set(Resource)
    if not wanted <= set(Resource):
        return ctx.response(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
    broker_ids = [str(broker_id) for broker_id in gw.cluster.ids]
    names = {
        Resource.TOPIC: [topic.name for topic in ctx.listed()],
        Resource.BROKER: broker_ids,
        Resource.BROKER_LOGGER: broker_ids,
    }
    rows = [
        dict(resource_name=name, resource_type=kind)
        for kind in Resource
        if kind in wanted
        for name in names.get(kind, ())
    ]
    return ctx.response(error_code=0, config_resources=rows)


def _of_kind(*kinds: Resource) -> Callable[[Any], Iterable[str]]:
    return lambda request: [row.resource_name for row in request.resources if row.resource_type in kinds]


def _of_cluster(request: Any) -> Iterable[str]:
    others = (Resource.TOPIC, Resource.GROUP)
    return (CLUSTER_NAME,) if any(row.resource_type not in others for row in request.resources) else ()


def _needs(operation: AclOperation) -> tuple[Need, ...]:
    return (
        Need(operation, ResourceType.TOPIC, _of_kind(Resource.TOPIC)),
        Need(operation, ResourceType.GROUP, _of_kind(Resource.GROUP)),
        Need(operation, ResourceType.CLUSTER, _of_cluster),
    )


APIS: tuple[Api, ...] = (
    Api(32, 1, 4, describe_configs, _needs(AclOperation.DESCRIBE_CONFIGS), rows=("resources", "results")),
    Api(33, 0, 2, alter_configs, _needs(AclOperation.ALTER_CONFIGS)),
    Api(44, 0, 1, incremental_alter_configs, _needs(AclOperation.ALTER_CONFIGS)),
    Api(
        74,
        0,
        1,
        list_config_resources,
        (Need(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, whole=True),),
    ),
)
