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
  Authorized operations: all of Kafka's for groups when asked for, there is no authorizer.
- DeleteGroups: until a deletion is durable the group is Dead, and its offsets are told as before, as in Kafka; whoever
  joins it, commits to it or deletes it meanwhile is told COORDINATOR_NOT_AVAILABLE, to ask again.
- ListGroups filters by state from 4 on, by type from 5 on, both in whatever case; unknown names match nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
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
from kop.handlers.api import AclOperation, Api, Context
from kop.handlers.gateway import Gateway
from kop.wire.messages import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    SyncGroupResponse,
)

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_NOBODY = (-1, "", -1)
_ERROR_TEXTS = {
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or the message was sent to "
        "an incompatible broker. See the broker logs for more details."
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
}
_GROUP_OPERATIONS = {3, 6, 8, 10, 11}
"""READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"""
_DEAD = "Dead"


def find_coordinator(gw: Gateway, ctx: Context, request: Any) -> Any | Awaitable[Any]:
    """Name the broker that coordinates each key: this one, while the topic of the coordinators' state is not known."""
    key_type = request.key_type if ctx.version >= 1 else _GROUP
    if key_type == _TRANSACTION and not gw.transactions.state_log.partitions:
        return _find_when_ready(gw, ctx, request)
    known = key_type in (_GROUP, _TRANSACTION)
    return _coordinators(gw, ctx, request, ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST)


async def _find_when_ready(gw: Gateway, ctx: Context, request: Any) -> Any:
    ready = await gw.transactions.ready()
    return _coordinators(gw, ctx, request, ErrorCode.NONE if ready else ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _coordinators(gw: Gateway, ctx: Context, request: Any, code: ErrorCode) -> Any:
    version = ctx.version
    key_type = request.key_type if version >= 1 else _GROUP
    text = _ERROR_TEXTS.get(code, "")
    if version < 4:
        broker_id, host, port = _NOBODY if code else _coordinator(gw, ctx, key_type, request.key)
        return FindCoordinatorResponse(
            version=version,
            error_code=code,
            error_message=text or "NONE",
            node_id=broker_id,
            host=host,
            port=port,
        )
    row = FindCoordinatorResponse.Coordinator
    return FindCoordinatorResponse(
        version=version,
        coordinators=[
            row(
                version=version,
                key=key,
                node_id=broker_id,
                host=host,
                port=port,
                error_code=code,
                error_message="" if key_type == _SHARE else text,
            )
            for key in request.coordinator_keys
            for broker_id, host, port in [_NOBODY if code else _coordinator(gw, ctx, key_type, key)]
        ],
    )


def _coordinator(gw: Gateway, ctx: Context, key_type: int, key: str) -> tuple[int, str, int]:
    place = (gw.groups if key_type == _GROUP else gw.transactions).coordinator_of(key)
    broker_id = gw.cluster.broker_id if place is None else gw.cluster.leader(*place)
    return (broker_id, *gw.cluster.address(broker_id, ctx.conn.broker_address))


def join_group(gw: Gateway, ctx: Context, request: Any) -> Any | Awaitable[Any]:
    """Join a group, and wait until its next generation begins."""
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
    if isinstance(result, JoinResult):
        return _joined(version, result)
    return _join_later(version, result)


async def _join_later(version: int, result: asyncio.Future[JoinResult]) -> Any:
    return _joined(version, await result)


def _joined(version: int, result: JoinResult) -> Any:
    member = JoinGroupResponse.JoinGroupResponseMember
    return JoinGroupResponse(
        version=version,
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=(result.protocol or "") if version < 7 else result.protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            member(version=version, member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata)
            for m in result.members
        ],
    )


def sync_group(gw: Gateway, ctx: Context, request: Any) -> Any | Awaitable[Any]:
    """Take the leader's assignment, and answer each member its part once it is durable."""
    version = ctx.version
    protocol_type, protocol = (request.protocol_type, request.protocol_name) if version >= 5 else (None, None)
    if version >= 5 and (protocol_type is None or protocol is None):
        return _synced(
            version, SyncResult(gw.groups.refusal_of(request.group_id) or ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        )
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
    if isinstance(result, SyncResult):
        return _synced(version, result)
    return _sync_later(version, result)


async def _sync_later(version: int, result: asyncio.Future[SyncResult]) -> Any:
    return _synced(version, await result)


def _synced(version: int, result: SyncResult) -> Any:
    return SyncGroupResponse(
        version=version,
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


def heartbeat(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Extend the session of a member, and answer whether its group rebalances."""
    instance_id = request.group_instance_id if ctx.version >= 3 else None
    code = gw.groups.heartbeat(request.group_id, request.member_id, instance_id, request.generation_id)
    return HeartbeatResponse(version=ctx.version, error_code=code)


def leave_group(gw: Gateway, ctx: Context, request: Any) -> Any | Awaitable[Any]:
    """Remove members that leave, or that an administrator removes by their instance ids."""
    version = ctx.version
    if version < 3:
        leaving = [LeavingMember(request.member_id)]
    else:
        leaving = [
            LeavingMember(member.member_id, member.group_instance_id, member.reason if version >= 5 else None)
            for member in request.members
        ]
    result = gw.groups.leave(request.group_id, leaving)
    return _leave_later(version, result) if isinstance(result, asyncio.Future) else _left(version, *result)


async def _leave_later(version: int, result: asyncio.Future[tuple[ErrorCode, tuple[LeftMember, ...]]]) -> Any:
    return _left(version, *await result)


def _left(version: int, code: ErrorCode, left: tuple[LeftMember, ...]) -> Any:
    if version < 3:
        return LeaveGroupResponse(version=version, error_code=code or left[0].error)
    member = LeaveGroupResponse.MemberResponse
    return LeaveGroupResponse(
        version=version,
        error_code=code,
        members=[
            member(version=version, member_id=m.member_id, group_instance_id=m.instance_id, error_code=m.error)
            for m in left
        ],
    )


def describe_groups(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Describe state, protocol and members of each group of the request, in its order."""
    operations = _GROUP_OPERATIONS if ctx.version >= 3 and request.include_authorized_operations else None
    return DescribeGroupsResponse(
        version=ctx.version,
        groups=[
            _described(ctx.version, group_id, gw.groups.describe(group_id), operations) for group_id in request.groups
        ],
    )


def _described(version: int, group_id: str, group: Description | ErrorCode, operations: set[int] | None) -> Any:
    group_class = DescribeGroupsResponse.DescribedGroup
    if isinstance(group, Description):
        member = group_class.DescribedGroupMember
        members = [
            member(
                version=version,
                member_id=m.member_id,
                group_instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                member_metadata=m.metadata,
                member_assignment=m.assignment,
            )
            for m in group.members
        ]
        return group_class(
            version=version,
            error_code=0,
            group_id=group_id,
            group_state=group.state,
            protocol_type=group.protocol_type,
            protocol_data=group.protocol,
            members=members,
            authorized_operations=operations,
        )
    code, message, state = group, None, ""
    if group == ErrorCode.GROUP_ID_NOT_FOUND:
        state = _DEAD
        if version < 6:
            code = ErrorCode.NONE
        else:
            message = f"Group {group_id} not found."
    return group_class(
        version=version,
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=None if code else operations,
    )


def list_groups(gw: Gateway, ctx: Context, request: Any) -> Any:
    """List all groups that pass the filters."""
    version = ctx.version
    code = gw.groups.refusal
    listed = []
    if not code:
        listed = gw.groups.list(
            request.states_filter if version >= 4 else (), request.types_filter if version >= 5 else ()
        )
    row = ListGroupsResponse.ListedGroup
    return ListGroupsResponse(
        version=version,
        error_code=code,
        groups=[
            row(
                version=version,
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in listed
        ],
    )


async def delete_groups(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Delete each group that is named and empty; one that is named twice is answered once."""
    answers = {group_id: gw.groups.delete(group_id) for group_id in dict.fromkeys(request.groups_names)}
    row = DeleteGroupsResponse.DeletableGroupResult
    return DeleteGroupsResponse(
        version=ctx.version,
        results=[
            row(
                version=ctx.version,
                group_id=group_id,
                error_code=await answer if isinstance(answer, asyncio.Future) else answer,
            )
            for group_id, answer in answers.items()
        ],
    )


APIS = (
    Api(10, 0, 6, find_coordinator, AclOperation.DESCRIBE),
    Api(11, 0, 9, join_group, AclOperation.READ, groups=lambda request: [request.group_id], long_poll=True),
    Api(12, 0, 4, heartbeat, AclOperation.READ),
    Api(13, 0, 5, leave_group, AclOperation.READ),
    Api(14, 0, 5, sync_group, AclOperation.READ, long_poll=True),
    Api(
        15,
        0,
        6,
        describe_groups,
        AclOperation.DESCRIBE,
        groups=lambda request: request.groups,
        rows=("groups", "groups"),
    ),
    Api(16, 0, 5, list_groups, AclOperation.DESCRIBE),
    Api(42, 0, 2, delete_groups, AclOperation.DELETE, rows=("groups_names", "results")),
)
