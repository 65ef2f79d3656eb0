"""The input and the output of the group coordinator, in plain values.

Owns: the questions and answers of the classic protocol, without versions and encodings.
Must not know: the wire, the machine.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from kop.errors import ErrorCode
from kop.wire.state import GroupMetadataValue, MemberMetadata

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""The type of the protocols that a member supports: their names and metadata, the one it likes most first."""
Token: TypeAlias = Hashable
"""The type of a stand-in for one request that waits for its answer from the state machine."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request. Times are in milliseconds."""

    member_id: str
    """The member's id; empty for a member that has none yet."""
    instance_id: str | None
    """The group.instance.id of a static member (KIP-345); None for others."""
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    needs_known_member_id: bool = True
    """True if a new member has to join again with the id that it is told first, as from version 4 on (KIP-394)."""
    can_skip_assignment: bool = True
    """True if the client's version allows to tell a leader that the assignment stays as it is, from version 9 on
    (KIP-814).
    """
    reason: str | None = None
    """The client's reason, for the log (KIP-800)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the group's leader sees it in the answer to its JoinGroup."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a JoinGroup request."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """All members of the group for its leader; empty for the others."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    """The protocol type; None below version 5, where it is not compared."""
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]
    """The assignment of each member, from the leader; empty from the others."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a SyncGroup request."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One member of a LeaveGroup request; an empty member id with an instance id is an administrator's removal."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeftMember:
    """The answer for one member of a LeaveGroup request."""

    member_id: str
    instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Description:
    """A group of the classic protocol as DescribeGroups shows it."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberMetadata, ...]
    """The members as the group's record would hold them, without their metadata if there is no protocol."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An effect of the state machine: its caller has to answer the request of `token`. A token is answered once."""

    token: Token
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class Persist:
    """An effect of the state machine: its caller has to write `value` as the group's metadata, and to report the end of
    the write by `persisted(ticket, ...)`.
    """

    ticket: int
    value: GroupMetadataValue


Effect: TypeAlias = Reply | Persist
