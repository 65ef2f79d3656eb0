"""DescribeClientQuotas (48), AlterClientQuotas (49), versions 0 and 1: how much clients may take.

What Kafka refuses is refused in its words, and besides it values that are no finite number, an entity that a request
has twice, names of hosts in place of addresses, and more quotas than kop.security.max.quotas. Each entity of a request
stands for itself: all of its changes are made, or none. Clients of a tenant set and see those of their namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kop.errors import KopError, PeerError
from kop.handlers.access import Need
from kop.handlers.api import Api, Context, error_fields
from kop.handlers.gateway import Gateway
from kop.security.quotas import Entity, QuotaKind, check, entity_of, match_of, stored
from kop.security.records import KeyValue, of_quota
from kop.security.rights import AclOperation, ResourceType
from kop.security.tenants import Space
from kop.turns import with_pauses
from kop.wire.messages import Message
from kop.wire.rows import Response


def describe_quotas(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DescribeClientQuotas with the entities (users, client ids, addresses) that the filter describes, with
    their quotas; with an error code if there is no such filter.
    """
    if denied := ctx.namespace(AclOperation.DESCRIBE_CONFIGS):
        return ctx.response(error_code=denied, error_message=ctx.cluster_denial, entries=None)
    try:
        which = match_of([(row.entity_type, row.match_type, row.match) for row in request.components], request.strict)
    except KopError as error:
        return ctx.response(error_code=error.code, error_message=error.message, entries=None)
    return ctx.response(
        error_code=0,
        error_message=None,
        entries=[
            dict(
                entity=[dict(entity_type=kind, entity_name=name) for kind, name in entity.names().items()],
                values=[dict(key=kind.value, value=values[kind]) for kind in QuotaKind if kind in values],
            )
            for entity, values in gw.security.quotas.matching(which, ctx.conn.space)
        ],
    )


_Change = tuple[Entity, dict[QuotaKind, float | None]]
"""An entity, and the quotas that it is to have; None: it has none of that kind any more."""


async def alter_quotas(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer AlterClientQuotas: set and remove quotas, or with validate_only look only if that is possible. The answer
    has the error of each entity whose quotas were not changed; changes are written to the audit.
    """
    denied = ctx.namespace(AclOperation.ALTER_CONFIGS)
    why, space = ctx.cluster_denial, ctx.conn.space
    wanted = [
        PeerError(why, denied) if denied else _change(entry, space) async for entry in with_pauses(request.entries)
    ]
    times = Counter(each[0] for each in wanted if not isinstance(each, KopError))
    for place, each in enumerate(wanted):
        if not isinstance(each, KopError) and times[each[0]] > 1:
            wanted[place] = PeerError("An entity cannot be altered twice in the same request")
    answers: dict[int, KopError | None] = {}
    made: list[_Change] = []

    def decide() -> Sequence[KeyValue]:
        made.clear()
        quotas, records = gw.security.quotas, list[KeyValue]()
        room = gw.security_settings.kop_security_max_quotas - len(quotas)
        for place, each in enumerate(wanted):
            answers[place] = each if isinstance(each, KopError) else None
            if isinstance(each, KopError):
                continue
            entity, values = each
            known = quotas.of(entity)
            changed = {kind: value for kind, value in values.items() if known.get(kind) != value}
            more = sum(-1 if value is None else kind not in known for kind, value in changed.items())
            if more > max(room, 0):
                answers[place] = PeerError("There are as many quotas as kop.security.max.quotas allows")
                continue
            room -= more
            made.append((entity, changed))
            records += [of_quota(entity, kind, value) for kind, value in changed.items()]
        return records

    if request.validate_only or all(isinstance(each, KopError) for each in wanted):
        decide()
    else:
        failure = await gw.change_security(decide)
        _tell(gw, ctx, made, failure)
        if failure is not None:
            answers = {place: answers.get(place) or failure for place in range(len(wanted))}
    return ctx.response(
        entries=[
            error_fields(error)
            | dict(entity=[dict(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity])
            for entry, error in zip(request.entries, (answers[place] for place in range(len(wanted))), strict=True)
        ]
    )


def _tell(gw: Gateway, ctx: Context, changes: Sequence[_Change], failure: KopError | None) -> None:
    for entity, values in changes:
        name = ", ".join(f"{kind}={'(default)' if text is None else text}" for kind, text in entity.names().items())
        for kind, value in values.items():
            operation = "DELETE" if value is None else "SET"
            gw.audit.changed(ctx.conn, operation, "QUOTA", name, dict(quota=kind.value, value=value), failure)


def _change(entry: Any, space: Space) -> _Change | KopError:
    """Return the change of an entity that a client wants, or the error INVALID_REQUEST if it is not possible."""
    try:
        entity = entity_of([(part.entity_type, part.entity_name) for part in entry.entity])
        if entity.ip is not None and not space.is_home:
            raise PeerError(f"Quotas of addresses are not of {space.name} alone: super users set them")
        values: dict[QuotaKind, float | None] = {}
        keys = set[str]()
        for op in entry.ops:
            if op.key in keys:
                raise PeerError(f"Duplicate quota key {op.key[:100]}")
            keys.add(op.key)
            if not op.remove:
                values[check(entity, op.key, op.value)] = op.value
            elif op.key in set(QuotaKind):
                values[QuotaKind(op.key)] = None
    except KopError as error:
        return error.fresh_copy()
    return stored(entity, space), values


APIS: tuple[Api, ...] = (
    Api(48, 0, 1, describe_quotas, (Need(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),)),
    Api(49, 0, 1, alter_quotas, (Need(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER),)),
)
