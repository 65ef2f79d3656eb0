"""The members of a group: members, static members, pending ones, the leader, and the protocol that all of them speak.

Owns: the bookkeeping that `org.apache.kafka.coordinator.group.classic.ClassicGroup` does, without states and timers;
reading the topics in a consumer's subscription, the one thing that a broker reads in the members' metadata.
Must not know: generations, deadlines' meaning, requests' versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kop import clock
from kop.coordination.deadlines import NEVER
from kop.errors import ErrorCode, InternalError
from kop.groups.classic.messages import JoinedMember, JoinRequest, Protocols, Token
from kop.wire.state import MemberMetadata

CONSUMER_PROTOCOL_TYPE = "consumer"
MOST_TOPICS: Final = 1 << 16
"""The most topics of a subscription that is read: metadata has room for millions, which would hold the event loop."""


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription; None if the bytes are no subscription, or name too many topics.

    All versions of `ConsumerProtocolSubscription` begin with what is read here.
    """
    if len(metadata) < 6 or metadata[0] & 0x80:
        return None
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    if not 0 <= count <= MOST_TOPICS:
        return None
    pos = 6
    topics = set()
    for _ in range(count):
        length = int.from_bytes(metadata[pos : pos + 2], "big", signed=True)
        end = pos + 2 + length
        if length < 0 or end > len(metadata):
            return None
        try:
            topics.add(metadata[pos + 2 : end].decode())
        except UnicodeDecodeError:
            return None
        pos = end
    return frozenset(topics)


@dataclass(slots=True, eq=False)
class Member:
    """A member of a classic group. `deadline` is the time at which it is taken for dead, in the state machine's ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: bytes = b""
    is_new: bool = False
    """True while the member's first JoinGroup waits. It does not know its id then, so it cannot send heartbeats."""
    join_token: Token | None = None
    sync_token: Token | None = None
    deadline: int = NEVER

    @classmethod
    def of(cls, member_id: str, request: JoinRequest) -> Member:
        """Return a new member, made of its JoinGroup request."""
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.protocols,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
        )

    @classmethod
    def loaded(cls, stored: MemberMetadata, protocol: str) -> Member:
        """Return a member as a group metadata record holds it: of its protocols only the chosen one is known."""
        rebalance_timeout_ms = stored.rebalance_timeout_ms
        return cls(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            ((protocol, stored.subscription),),
            stored.session_timeout_ms,
            stored.session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
            stored.assignment,
        )

    @property
    def is_static(self) -> bool:
        """True for a member with a group.instance.id (KIP-345)."""
        return self.instance_id is not None

    @property
    def keeps_itself_alive(self) -> bool:
        """True while a request of the member waits, so that no heartbeats are expected; but a new member's JoinGroup
        does not count.
        """
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata that the member sent for `protocol`. InternalError if the member does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise InternalError(f"member {self.member_id} does not support protocol {protocol!r}")

    def stored(self, protocol: str | None, assignment: bytes) -> MemberMetadata:
        """Return the member in the form of a group metadata record, with its metadata for `protocol` if there is
        one.
        """
        return MemberMetadata(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            b"" if protocol is None else self.metadata(protocol),
            assignment,
        )


@dataclass(slots=True)
class Roster:
    """The members of a classic group in the order of their joining. The leader is always one of them."""

    protocol_type: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """The member ids of static members, by group.instance.id."""
    pending: dict[str, int] = field(default_factory=dict)
    """The deadlines of member ids that were handed out and not yet used (KIP-394)."""
    waiting_to_join: int = 0
    """The number of members whose JoinGroup waits."""
    subscribed: frozenset[str] | None = None
    """The topics that the group's consumers subscribe to; None if that is not known."""
    canonical_name: Callable[[str], str] = str
    """A function that returns, for any name of a topic, the name under which offsets are kept."""
    support: Counter[str] = field(default_factory=Counter)
    """The number of members that support each protocol."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.members

    @property
    def all_joined(self) -> bool:
        """True if every member's JoinGroup waits and no pending member is expected, so that a rebalance can
        complete.
        """
        return self.waiting_to_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max(0, max((member.rebalance_timeout_ms for member in self), default=0))

    def add(self, member: Member, token: Token | None, protocol_type: str) -> None:
        """Add a member; a `token` is of its JoinGroup, which waits. The first member becomes the leader, and the
        group's protocol type is its. InternalError for a static member that is in the group already.
        """
        if member.instance_id is not None:
            if member.instance_id in self.static:
                raise InternalError(f"static member {member.instance_id} is in the group already")
            self.static[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self.support.update({name for name, _ in member.protocols})
        self.set_join_token(member, token)
        self.pending.pop(member.member_id, None)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or a pending member id; return the member, whose tokens still have to be answered, or None.
        If it was the leader, the member that joined first of those left is the leader now.
        """
        self.pending.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._forget_protocols(member)
        if member.join_token is not None:
            self.waiting_to_join -= 1
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """Give a static member a new id; return the member, which keeps all else, also its place in the order.

        The member has no tokens then: the caller answers the requests of the old id that wait, before it calls this.
        """
        member = self.members[old_id]
        self.set_join_token(member, None)
        member.sync_token = None
        member.member_id = new_id
        member.is_new = False
        self.members = {m.member_id: m for m in self.members.values()}
        self.static[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def update(self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """Set the protocols and timeouts that a member names on joining again."""
        self._forget_protocols(member)
        self.support.update({name for name, _ in protocols})
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def _forget_protocols(self, member: Member) -> None:
        for name in {name for name, _ in member.protocols}:
            self.support[name] -= 1
            if not self.support[name]:
                del self.support[name]

    def set_join_token(self, member: Member, token: Token | None) -> None:
        """Set or clear the token of the member's waiting JoinGroup."""
        self.waiting_to_join += (token is not None) - (member.join_token is not None)
        member.join_token = token

    def elect_joined_leader(self) -> bool:
        """Keep the leader if its JoinGroup waits, else make the first member whose JoinGroup waits the leader; return
        false if there is none.
        """
        if self.leader is None:
            return False
        if self.members[self.leader].join_token is not None:
            return True
        for member in self:
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return true if a member with this protocol type and these protocols could join: the type is the group's, and
        one of the protocols is supported by all members.
        """
        return self.protocol_type == protocol_type and any(
            self.support[name] == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer, among those that all members support."""
        common = {name for name, count in self.support.items() if count == len(self.members)}
        votes = Counter(next(name for name, _ in member.protocols if name in common) for member in self)
        return votes.most_common(1)[0][0]

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if `member_id` is a member and, if `instance_id` is given, that static instance's present one.
        Else return UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member is the instance's.
        """
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def seen_by_leader(self, protocol: str) -> tuple[JoinedMember, ...]:
        """Return the members with their metadata for `protocol`, as the group's leader gets them."""
        return tuple(JoinedMember(m.member_id, m.instance_id, m.metadata(protocol)) for m in self)

    def learn_subscriptions(self, protocol: str | None) -> None:
        """Read the topics that consumers subscribe to from their metadata for `protocol`, and keep them in
        `subscribed`: None if the group is none of consumers, or if one member's metadata cannot be read.
        """
        self.subscribed = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or (self.members and protocol is None):
            return
        topics: set[str] = set()
        for member in self:
            subscription = topics_of(member.metadata(protocol or ""))
            if subscription is None:
                return
            topics.update(map(self.canonical_name, subscription))
        self.subscribed = frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return true if members consume `topic`, or, in a group of consumers, if their subscriptions are not known."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed


def new_member_id(client_id: str, instance_id: str | None) -> str:
    """Return a new member id as Kafka makes them: the instance's or client's id, a dash, a random UUID."""
    return f"{client_id if instance_id is None else instance_id}-{clock.uuid4()}"
