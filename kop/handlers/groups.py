"""FindCoordinator (10) 0 to 6, JoinGroup (11) 0 to 9, Heartbeat (12) 0 to 4, LeaveGroup (13) 0 to 5, SyncGroup (14)
0 to 5, DescribeGroups (15) 0 to 6, ListGroups (16) 0 to 5, DeleteGroups (42) 0 to 2: groups of the classic protocol.

The rules of groups are in `kop.groups`; this is what depends on versions.

- FindCoordinator: for a group the broker that is given its partition of `__offsets`, for a transactional id that of
  `__transactions`; share groups (2) and unknown types are INVALID_REQUEST. From version 4 on a request names several
  keys (KIP-699).
- JoinGroup 0 has no rebalance timeout: the session timeout is taken. From 4 on a new member is told its id first
  (MEMBER_ID_REQUIRED, KIP-394), 5 brings static members (KIP-345), 9 lets a leader skip the assignment (KIP-814).
  A missing protocol name is "" below version 7.
- SyncGroup 5 has to name protocol type and protocol, else it is INCONSISTENT_GROUP_PROTOCOL before all else.
- A name over 32,767 bytes, of a group, a member or a protocol, is UNKNOWN_SERVER_ERROR for JoinGroup: no record holds
  it. There is no group of such an id, and that is what the others say.
- LeaveGroup names one member below version 3; then the member's error is the request's.
- DescribeGroups: a group that is not there is Dead without an error below version 6, GROUP_ID_NOT_FOUND from it on.
  Authorized operations when asked for.
- DeleteGroups: until a deletion is durable the group is Dead, and its offsets are told as before, as in Kafka; whoever
  joins it, commits to it or deletes it meanwhile is told COORDINATOR_NOT_AVAILABLE, to ask again.
- ListGroups filters by state from 4 on, by type from 5 on, both in whatever case; unknown names match nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kop.errors import ErrorCode
from kop.groups.classic.messages import (
    Description,
    JoinRequest,
    JoinResult,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResult,
)
from kop.handlers.access import Need, named_group
from kop.handlers.api import Api, Context, InTask, Later
from kop.handlers.gateway import Gateway
from kop.security.rights import AclOperation, ResourceType
from kop.wire.rows import Response

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_SHARES = 6
"""The version of FindCoordinator from which on it knows share groups."""
_NOBODY = (-1, "", -1)
_ERROR_TEXTS = {
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or the message was sent to "
        "an incompatible broker. See the broker logs for more details."
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Not authorized to access group.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}
_DEAD = "Dead"


def find_coordinator(gw: Gateway, ctx: Context, request: Any) -> Response | Later:
    """Answer FindCoordinator with the broker that coordinates each key, a group or a transactional id. For a group it
    is this broker if the topic of the groups' state is not known yet; for a transactional id the answer waits for that
    topic.
    """
    key_type = _key_type(request)
    if key_type == _TRANSACTION and not gw.transactions.state_log.partitions:
        return InTask(_find_when_ready(gw, ctx, request))
    known = key_type in (_GROUP, _TRANSACTION)
    return _coordinators(gw, ctx, request, ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST)


def _key_type(request: Any) -> int:
    return int(request.key_type) if request.API_VERSION >= 1 else _GROUP


async def _find_when_ready(gw: Gateway, ctx: Context, request: Any) -> Response:
    keys = [request.key] if ctx.version < 4 else request.coordinator_keys
    ready = all(_refusal(ctx, _TRANSACTION, key) for key in keys) or await gw.transactions.ready()
    return _coordinators(gw, ctx, request, ErrorCode.NONE if ready else ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _refusal(ctx: Context, key_type: int, key: str) -> ErrorCode:
    match key_type:
        case 0:
            return ctx.group(key, AclOperation.DESCRIBE)
        case 1:
            return ctx.transactional_id(key, AclOperation.DESCRIBE)
        case 2:
            return ctx.cluster(AclOperation.CLUSTER_ACTION)
    return ErrorCode.NONE


def _coordinators(gw: Gateway, ctx: Context, request: Any, error: ErrorCode) -> Response:
    key_type = _key_type(request)
    rows = []
    for key in [request.key] if ctx.version < 4 else request.coordinator_keys:
        code = (error if key_type == _SHARE and ctx.version < _SHARES else _refusal(ctx, key_type, key)) or error
        place = None if code else _coordinator(gw, ctx, key_type, key)
        if place is None and not code:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        broker_id, host, port = place or _NOBODY
        text = "" if key_type == _SHARE and code is ErrorCode.INVALID_REQUEST else _ERROR_TEXTS.get(code, "")
        rows.append(dict(key=key, node_id=broker_id, host=host, port=port, error_code=code, error_message=text))
    if ctx.version >= 4:
        return ctx.response(coordinators=rows)
    row = rows[0]
    del row["key"]
    row["error_message"] = _ERROR_TEXTS.get(row["error_code"], "") or "NONE"
    return ctx.response(**row)


def _coordinator(gw: Gateway, ctx: Context, key_type: int, key: str) -> tuple[int, str, int] | None:
    """Return id, host and port of the broker that coordinates the key; None if that broker does not have the client's
    listener.
    """
    place = (gw.groups if key_type == _GROUP else gw.transactions).coordinator_of(key)
    broker_id = gw.cluster.broker_id if place is None else gw.cluster.leader(*place)
    address = gw.cluster.address(broker_id, ctx.conn.broker_address, ctx.conn.listener)
    return None if address is None else (broker_id, *address)


def join_group(gw: Gateway, ctx: Context, request: Any) -> Response | Later:
    """Answer JoinGroup once the group's next generation begins, or at once with an error."""
    version = ctx.version
    result = gw.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id if version >= 5 else None,
            client_id=ctx.client_id or "",
            client_host="/" + ctx.conn.client_host,
            protocol_type=request.protocol_type,
            protocols=tuple({protocol.name: bytes(protocol.metadata) for protocol in request.protocols}.items()),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms,
            needs_known_member_id=version >= 4,
            can_skip_assignment=version >= 9,
            reason=request.reason if version >= 8 else None,
        ),
    )

    def joined(result: JoinResult) -> Response:
        return ctx.response(
            error_code=result.error,
            generation_id=result.generation,
            protocol_type=result.protocol_type,
            protocol_name=(result.protocol or "") if version < 7 else result.protocol,
            leader=result.leader,
            skip_assignment=result.skip_assignment,
            member_id=result.member_id,
            members=[
                dict(member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata)
                for m in result.members
            ],
        )

    return joined(result) if isinstance(result, JoinResult) else Later().follow(result, joined)


def sync_group(gw: Gateway, ctx: Context, request: Any) -> Response | Later:
    """Answer SyncGroup: store the assignment that the leader sends, and give each member its part once that
    is durable.
    """
    version = ctx.version

    def synced(result: SyncResult) -> Response:
        return ctx.response(
            error_code=result.error,
            protocol_type=result.protocol_type,
            protocol_name=result.protocol,
            assignment=result.assignment,
        )

    protocol_type, protocol = (request.protocol_type, request.protocol_name) if version >= 5 else (None, None)
    if version >= 5 and (protocol_type is None or protocol is None):
        return synced(SyncResult(gw.groups.refusal_of(request.group_id) or ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    result = gw.groups.sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id if version >= 3 else None,
            generation=request.generation_id,
            protocol_type=protocol_type,
            protocol=protocol,
            assignments=tuple((given.member_id, bytes(given.assignment)) for given in request.assignments),
        ),
    )
    return synced(result) if isinstance(result, SyncResult) else Later().follow(result, synced)


def heartbeat(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer Heartbeat: extend the session of a member, and tell it if its group rebalances."""
    instance_id = request.group_instance_id if ctx.version >= 3 else None
    code = gw.groups.heartbeat(request.group_id, request.member_id, instance_id, request.generation_id)
    return ctx.response(error_code=code)


def leave_group(gw: Gateway, ctx: Context, request: Any) -> Response | Later:
    """Answer LeaveGroup: remove members that leave, or that an administrator removes by their instance ids."""
    version = ctx.version

    def left(result: tuple[ErrorCode, tuple[LeftMember, ...]]) -> Response:
        code, members = result
        if version < 3:
            return ctx.response(error_code=code or members[0].error)
        rows = [dict(member_id=m.member_id, group_instance_id=m.instance_id, error_code=m.error) for m in members]
        return ctx.response(error_code=code, members=rows)

    if version < 3:
        leaving = [LeavingMember(request.member_id)]
    else:
        leaving = [
            LeavingMember(member.member_id, member.group_instance_id, member.reason if version >= 5 else None)
            for member in request.members
        ]
    result = gw.groups.leave(request.group_id, leaving)
    return left(result) if isinstance(result, tuple) else Later().follow(result, left)


def describe_groups(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer DescribeGroups: state, protocol and members of each group, in the order of the request."""
    asked = ctx.version >= 3 and request.include_authorized_operations
    return ctx.response(groups=[_described(gw, ctx, group_id, asked) for group_id in request.groups])


def _described(gw: Gateway, ctx: Context, group_id: str, asked: bool) -> dict[str, Any]:
    code, message, state = ctx.group(group_id, AclOperation.DESCRIBE), None, ""
    if not code:
        group = gw.groups.describe(group_id)
        if isinstance(group, Description):
            return dict(
                error_code=0,
                group_id=group_id,
                group_state=group.state,
                protocol_type=group.protocol_type,
                protocol_data=group.protocol,
                members=[
                    dict(
                        member_id=m.member_id,
                        group_instance_id=m.instance_id,
                        client_id=m.client_id,
                        client_host=m.client_host,
                        member_metadata=m.subscription,
                        member_assignment=m.assignment,
                    )
                    for m in group.members
                ],
                authorized_operations=ctx.operations(ResourceType.GROUP, group_id, asked=asked),
            )
        code = group
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        state = _DEAD
        if ctx.version < 6:
            code = ErrorCode.NONE
        else:
            message = f"Group {group_id} not found."
    return dict(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=None if code else ctx.operations(ResourceType.GROUP, group_id, asked=asked),
    )


def list_groups(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer ListGroups with the groups that pass the filters and that the client is allowed to see."""
    version = ctx.version
    code = gw.groups.refusal
    listed = []
    if not code:
        describe = AclOperation.DESCRIBE
        if not ctx.may(describe, ResourceType.CLUSTER, ctx.namespace_name):
            ctx.access.check_known(ctx.conn, ResourceType.GROUP)
        listed = [
            dict(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in gw.groups.list(
                request.states_filter if version >= 4 else (), request.types_filter if version >= 5 else ()
            )
            if ctx.may_by_whole(describe, group.group_id) or ctx.may(describe, ResourceType.GROUP, group.group_id)
        ]
    return ctx.response(error_code=code, groups=listed)


async def delete_groups(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer DeleteGroups: delete each named group if it is empty; one that is named twice is answered once."""
    answers = {
        group_id: ctx.group(group_id, AclOperation.DELETE) or gw.groups.delete(group_id)
        for group_id in dict.fromkeys(request.groups_names)
    }
    return ctx.response(
        results=[
            dict(group_id=group_id, error_code=answer if isinstance(answer, ErrorCode) else await answer)
            for group_id, answer in answers.items()
        ]
    )


def _coordinated(key_type: int) -> Any:
    def keys(request: Any) -> Iterable[str]:
        if _key_type(request) != key_type:
            return ()
        return (request.key,) if request.API_VERSION < 4 else request.coordinator_keys

    return keys


_READ = (Need(AclOperation.READ, ResourceType.GROUP, named_group, whole=True),)

APIS = (
    Api(
        10,
        0,
        6,
        find_coordinator,
        (
            Need(AclOperation.DESCRIBE, ResourceType.GROUP, _coordinated(_GROUP)),
            Need(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, _coordinated(_TRANSACTION)),
            Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER),
        ),
    ),
    Api(11, 0, 9, join_group, _READ, tells_of_groups=True, long_poll=True),
    Api(12, 0, 4, heartbeat, _READ),
    Api(13, 0, 5, leave_group, _READ),
    Api(14, 0, 5, sync_group, _READ, long_poll=True),
    Api(
        15,
        0,
        6,
        describe_groups,
        (Need(AclOperation.DESCRIBE, ResourceType.GROUP, lambda request: request.groups),),
        tells_of_groups=True,
        rows=("groups", "groups"),
    ),
    Api(
        16,
        0,
        5,
        list_groups,
        (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER), Need(AclOperation.DESCRIBE, ResourceType.GROUP)),
    ),
    Api(
        42,
        0,
        2,
        delete_groups,
        (Need(AclOperation.DELETE, ResourceType.GROUP, lambda request: request.groups_names),),
        rows=("groups_names", "results"),
    ),
)
