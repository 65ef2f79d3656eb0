"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31) 1 to 3: the ACLs that decide what clients may do.

Without an authorizer that goes by ACLs each is SECURITY_DISABLED, whoever asks: a client that believes in an ACL that
is not enforced would be worse off. A topic goes by its canonical name in ACLs, whatever name a client gives; a prefix
of names does, too. What Kafka takes is taken: hosts that no client has, other types of principals, operations that the
type of the resource has not. Clients of a tenant make and see those of their namespace, by their own names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

from kop.errors import ErrorCode, KopError, PeerError
from kop.handlers.access import Need
from kop.handlers.api import Api, Context, error_fields
from kop.handlers.gateway import Gateway
from kop.security.acls import WILDCARD, Acl, AclFilter, seen, stored
from kop.security.records import KeyValue, of_acl
from kop.security.rights import (
    CLUSTER_NAME,
    RESOURCES_OF_SPACES,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from kop.security.tenants import Space, is_namespace
from kop.turns import with_pauses
from kop.wire.messages import Message
from kop.wire.rows import Response

_NO_AUTHORIZER: Final = "No Authorizer is configured."
_KAFKA_GO_SLACK: Final = 1
"""segmentio's kafka-go takes the filter of DescribeAcls for a structure of its own, with tagged fields at its end."""
_LONGEST: Final = 32_767
"""Bytes of a text in the versions that are not flexible."""
_Code = TypeVar("_Code", bound=IntEnum)


def describe_acls(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DescribeAcls with the ACLs that the filter describes, those of a resource together."""
    if not gw.acls_decide:
        return ctx.response(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER, resources=[])
    if denied := ctx.namespace(AclOperation.DESCRIBE):
        return ctx.response(error_code=denied, error_message=ctx.cluster_denial, resources=[])
    try:
        which = _filter(gw, ctx, request)
    except KopError as error:
        return ctx.response(error_code=error.code, error_message=error.message, resources=[])
    resources: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    space = ctx.conn.space
    for kept in gw.security.acls.matching(which, space):
        acl = seen(kept, space)
        assert acl is not None
        resources.setdefault((acl.resource, acl.name, acl.pattern), []).append(
            dict(principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission)
        )
    return ctx.response(
        error_code=0,
        error_message="",
        resources=[
            dict(resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls)
            for (kind, name, pattern), acls in resources.items()
        ],
    )


async def create_acls(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer CreateAcls: add each ACL, or give the error for which it is not added; those that exist already stay as
    they are. What was added is written to the audit.
    """
    refusal = _refusal(gw, ctx)
    if refusal is not None:
        return ctx.response(results=[error_fields(refusal) for _ in request.creations])
    wanted = [_created(gw, ctx, creation) async for creation in with_pauses(request.creations)]
    acls, most = gw.security.acls, gw.security_settings.kop_security_max_acls
    new: list[Acl] = []
    too_many: set[Acl] = set()

    def decide() -> Sequence[KeyValue]:
        new[:] = dict.fromkeys(acl for acl in wanted if isinstance(acl, Acl) and acl not in acls)
        room = max(most - len(acls), 0)
        too_many.clear()
        too_many.update(new[room:])
        del new[room:]
        return [of_acl(acl) for acl in new]

    failure = await gw.change_security(decide)
    _audit(gw, ctx, "CREATE", new, failure)
    full = PeerError(f"There are {most} ACLs, and kop.security.max.acls allows no more")
    return ctx.response(
        results=[
            error_fields(each if isinstance(each, KopError) else failure or (full if each in too_many else None), "")
            for each in wanted
        ]
    )


async def delete_acls(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Remove the ACLs that each filter of the request describes, and return them. A filter is refused if the answer
    would have more ACLs than there may be, or are: without that it would have no bound.
    """
    refusal = _refusal(gw, ctx)
    if refusal is not None:
        return ctx.response(filter_results=[error_fields(refusal) | dict(matching_acls=[]) for _ in request.filters])
    acls, most = gw.security.acls, gw.security_settings.kop_security_max_acls
    room, space = max(most, len(acls)), ctx.conn.space
    described: list[list[Acl] | KopError] = []
    for each in request.filters:
        try:
            matching = acls.matching(_filter(gw, ctx, each), space)
            if len(matching) > room:
                raise PeerError(f"More than {max(most, len(acls))} ACLs cannot be removed by a request")
        except KopError as error:
            described.append(error.fresh_copy())
        else:
            room -= len(matching)
            described.append(matching)
        await asyncio.sleep(0)  # one may look at all ACLs
    doomed: list[list[Acl]] = []

    def decide() -> Sequence[KeyValue]:
        doomed[:] = [[] if isinstance(each, KopError) else [acl for acl in each if acl in acls] for each in described]
        return [of_acl(acl, present=False) for acl in dict.fromkeys(acl for some in doomed for acl in some)]

    failure = await gw.change_security(decide)
    _audit(gw, ctx, "DELETE", dict.fromkeys(acl for some in doomed for acl in some), failure)
    results = []
    for index, which in enumerate(described):
        refused = which if isinstance(which, KopError) else failure
        gone = [_deleted(seen(acl, space) or acl) for acl in doomed[index]] if refused is None else []
        results.append(error_fields(refused) | dict(matching_acls=gone))
    return ctx.response(filter_results=results)


def _refusal(gw: Gateway, ctx: Context) -> KopError | None:
    """Return the error for which no ACL of the request is changed; None if ACLs may be changed."""
    if not gw.acls_decide:
        return PeerError(_NO_AUTHORIZER, ErrorCode.SECURITY_DISABLED)
    if denied := ctx.namespace(AclOperation.ALTER):
        return PeerError(ctx.cluster_denial, denied)
    return None


def _audit(gw: Gateway, ctx: Context, operation: str, changed: Iterable[Acl], failure: KopError | None) -> None:
    """Write into the audit that ACLs were changed, or, after a failure of storage, may have been."""
    for acl in changed:
        details = dict(
            resource_type=acl.resource.name,
            pattern_type=acl.pattern.name,
            acl_principal=acl.principal,
            acl_host=acl.host,
            acl_operation=acl.operation.name,
            permission=acl.permission.name,
        )
        gw.audit.changed(ctx.conn, operation, "ACL", acl.name, details, failure)


def _deleted(acl: Acl) -> dict[str, Any]:
    return dict(
        error_code=0,
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _created(gw: Gateway, ctx: Context, row: Any) -> Acl | KopError:
    """Return the ACL that a client wants to add, or the error INVALID_REQUEST if no ACL can be like that."""
    try:
        acl = Acl(
            _code(ResourceType, row.resource_type, "resourceType"),
            row.resource_name,
            _code(PatternType, row.resource_pattern_type, "patternType", PatternType.MATCH),
            row.principal,
            row.host,
            _code(AclOperation, row.operation, "operation"),
            _code(Permission, row.permission_type, "permissionType"),
        )
        _check(acl, ctx.conn.space)
        kept = stored(acl, ctx.conn.space)
        return kept._replace(name=_name(gw, ctx, kept.resource, kept.pattern, kept.name))
    except KopError as error:
        return error.fresh_copy()


def _code(kind: type[_Code], code: int, what: str, *more: IntEnum) -> _Code:
    """Return the member of `kind` with this code. PeerError, which names the field by `what`, if an ACL cannot have the
    code: UNKNOWN, ANY, which is for filters, and `more`.
    """
    value = _filter_code(kind, code, what)
    if value.name == "ANY" or value in more:
        raise PeerError(f"Invalid {what} {value.name}")
    return value


def _filter_code(kind: type[_Code], code: int, what: str) -> _Code:
    try:
        value = kind(code)
    except ValueError:
        value = kind(0)
    if not value:
        raise PeerError(f"Invalid {what} {value.name}")
    return value


def _check(acl: Acl, space: Space) -> None:
    if acl.resource is ResourceType.CLUSTER and not _is_cluster(acl.name, space):
        raise PeerError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not space.is_home and acl.resource not in RESOURCES_OF_SPACES:
        raise PeerError(f"ACLs of {acl.resource.name} are not of {space.name} alone: super users make them")
    if not space.is_home and acl.resource is ResourceType.TOPIC and "/" in acl.name:
        raise PeerError(f"The name of a topic has a slash, and topics of {space.name} have none")
    if not acl.name:
        raise PeerError("Invalid empty resource name")
    if ":" not in acl.principal:
        raise PeerError(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    for what, text in (("resource name", space.inward(acl.name)), ("principal", acl.principal), ("host", acl.host)):
        if len(text.encode()) > _LONGEST:
            raise PeerError(f"The {what} is longer than {_LONGEST} bytes")


def _is_cluster(name: str, space: Space) -> bool:
    """Return true if the name is that of the cluster, or, for clients that give full names, of a tenant's namespace in
    its place.
    """
    namespace, slash, local = name.rpartition("/")
    return name == CLUSTER_NAME or bool(space.is_home and slash and local == CLUSTER_NAME and is_namespace(namespace))


def _name(gw: Gateway, ctx: Context, resource: ResourceType, pattern: PatternType, name: str) -> str:
    """Return the name under which an ACL of this resource is kept: the canonical name of a topic, or prefix of topics;
    any other name as it is.
    """
    if resource is not ResourceType.TOPIC or name == WILDCARD:
        return name
    return gw.topics.canonical_prefix(name) if pattern is PatternType.PREFIXED else ctx.canonical_name(name)


def _filter(gw: Gateway, ctx: Context, row: Any) -> AclFilter:
    """Return the filter that a client gives. PeerError (INVALID_REQUEST) if one of its codes does not exist."""
    resource = _filter_code(ResourceType, row.resource_type_filter, "resourceType")
    pattern = _filter_code(PatternType, row.pattern_type_filter, "patternType")
    name = row.resource_name_filter
    return AclFilter(
        resource,
        name if name is None or not ctx.conn.space.is_home else _name(gw, ctx, resource, pattern, name),
        pattern,
        row.principal_filter,
        row.host_filter,
        _filter_code(AclOperation, row.operation, "operation"),
        _filter_code(Permission, row.permission_type, "permissionType"),
    )


_ALTER = (Need(AclOperation.ALTER, ResourceType.CLUSTER),)

APIS: tuple[Api, ...] = (
    Api(
        29,
        1,
        3,
        describe_acls,
        (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER),),
        slack=_KAFKA_GO_SLACK,
    ),
    Api(30, 1, 3, create_acls, _ALTER),
    Api(31, 1, 3, delete_acls, _ALTER),
)
