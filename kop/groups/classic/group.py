"""One group of the classic protocol: a pure machine after Kafka 4.3's `GroupMetadataManager`.

Owns: states and which may follow which, generations, timeouts, and who is answered what (KIP-62, 134, 345, 389, 394,
559, 800, 814).
Must not know: clocks, sockets, futures, storage, committed offsets.

Rules
- Every method takes `now`, milliseconds that never go back, and returns effects for the caller to carry out in order.
- A token that came with `join` or `sync` is answered by exactly one Reply, at once or later.
- A `Persist` is in force only once `persisted` says so; until then no answer depends on it.
- `next_deadline` is never later than what has to be done; calling `tick` early does nothing.
- A heartbeat only moves a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Final

from kop.coordination.deadlines import NEVER
from kop.coordination.failed_writes import answer_for
from kop.errors import ErrorCode, InternalError
from kop.groups.classic.messages import (
    Description,
    Effect,
    JoinRequest,
    JoinResult,
    LeavingMember,
    LeftMember,
    Persist,
    Reply,
    SyncRequest,
    SyncResult,
    Token,
)
from kop.groups.classic.roster import CONSUMER_PROTOCOL_TYPE, Member, Roster, new_member_id
from kop.groups.settings import GroupSettings
from kop.wire.state import GroupMetadataValue


class State(Enum):
    """Kafka's states of a classic group, by the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_BEFORE: Final = {
    State.EMPTY: {State.PREPARING_REBALANCE},
    State.PREPARING_REBALANCE: {State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY},
    State.COMPLETING_REBALANCE: {State.PREPARING_REBALANCE},
    State.STABLE: {State.COMPLETING_REBALANCE},
    State.DEAD: {State.EMPTY},
}
"""The states from which each state may be entered."""


def check_step(group_id: str, before: State, after: State) -> None:
    """Raise InternalError if a group may not go from one state to the other."""
    if before not in _BEFORE[after]:
        raise InternalError(f"group {group_id} cannot go from {before.value} to {after.value}")


class ClassicGroup:
    """A group of the classic protocol, as a state machine that does no I/O."""

    def __init__(self, group_id: str, settings: GroupSettings, now: int) -> None:
        self.group_id = group_id
        self.settings = settings
        self.state = State.EMPTY
        self.previous_state = State.EMPTY
        self.state_since = settings.wall_time(now)
        """The time at which the state was entered, in ms since the epoch; -1 if it was loaded from an old record
        without it.
        """
        self.generation = 0
        self.protocol: str | None = None
        self.roster = Roster(canonical_name=settings.canonical_name)
        self.next_deadline = NEVER
        self._joined_meanwhile = False
        """True if a member joined during the present part of the initial rebalance delay."""
        self._join_deadline = NEVER
        self._initial_delay: tuple[int, int] | None = None
        """The present part of the initial rebalance delay, and the time by which it may still be extended, both in
        ms.
        """
        self._sync_deadline = NEVER
        self._to_sync: set[str] = set()
        self._tickets = 0
        self._writes: dict[int, Callable[[ErrorCode, int], None]] = {}
        self._effects: list[Effect] = []

    @classmethod
    def load(cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings, now: int) -> ClassicGroup:
        """Return the group as a group metadata record describes it: stable if it has members, else empty. Call `resume`
        when everything is loaded.
        """
        group = cls(group_id, settings, now)
        group.generation = value.generation
        group.protocol = value.protocol
        group.state_since = value.current_state_timestamp
        group.roster.protocol_type = value.protocol_type or None
        for stored in value.members:
            member = Member.loaded(stored, value.protocol or "")
            group.roster.add(member, None, value.protocol_type)
        if value.leader is not None and value.leader in group.roster:
            group.roster.leader = value.leader
        if value.members:
            group.state = group.previous_state = State.STABLE
        group.roster.learn_subscriptions(group.protocol)
        return group

    # -- what is asked

    @property
    def protocol_type(self) -> str | None:
        """The protocol type of the members: `consumer`, `connect` or the like; None for a group that only holds
        offsets.
        """
        return self.roster.protocol_type

    @property
    def untouched(self) -> bool:
        """True while nothing of the group is worth keeping: no generation, no member, none expected."""
        return self.is_vacant and not self.generation

    @property
    def is_vacant(self) -> bool:
        """True while the group has no member and expects none."""
        return self.state is State.EMPTY and not self.roster.pending

    @property
    def offsets_age_since(self) -> int | None:
        """The moment from which committed offsets age, except those of topics that members consume (KIP-211).

        - A group that only stores offsets, and a consumer group that is stable and whose subscriptions are known: -1,
          each from its commit.
        - A group without members: when it became empty, in milliseconds since the epoch; -1 if that is not known.
        - Any other group that is at work: None, its offsets do not grow old.
        """
        if self.protocol_type is None:
            return -1
        if self.state is State.EMPTY:
            return self.state_since
        known = self.state is State.STABLE and self.roster.subscribed is not None
        return -1 if known and self.protocol_type == CONSUMER_PROTOCOL_TYPE else None

    def is_subscribed_to(self, topic: str) -> bool:
        """Return true if members consume `topic`, or, in a group of consumers, if their subscriptions are not known."""
        return self.roster.is_subscribed_to(topic)

    def describe(self) -> Description:
        """Return the group as DescribeGroups shows it: metadata and protocol only while it is stable."""
        protocol = self.protocol if self.state is State.STABLE else None
        members = tuple(m.stored(protocol, m.assignment) for m in self.roster)
        return Description(self.group_id, self.state.value, self.protocol_type or "", protocol or "", members)

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: int) -> ErrorCode:
        """Return the error if this member may not commit offsets, else NONE. A commit that is allowed prolongs the
        member's session, as a heartbeat does.
        """
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if error := self._check_member(member_id, instance_id, generation):
            return error
        if self.state is State.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._beat(self.roster.members[member_id], now)
        return ErrorCode.NONE

    def check_commit_in_transaction(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return the error if a transaction may not commit offsets for this member, else NONE.

        Old clients name no member: they may at any time. A rebalance is no reason to refuse. The session of the member
        is not prolonged.
        """
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and (self.state is State.EMPTY or (not member_id and instance_id is None)):
            return ErrorCode.NONE
        return self._check_member(member_id, instance_id, generation)

    def _check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return the error if this is no member of the group, or one of another generation; else NONE."""
        if error := self.roster.check(member_id, instance_id):
            return error
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    # -- what is done

    def join(self, token: Token, request: JoinRequest, now: int) -> list[Effect]:
        """Handle a JoinGroup request, whose session timeout and group id were checked before; return the effects. Its
        answer is a Reply among these effects or later ones, after the rebalance.
        """
        if not self._accepts(request.member_id):
            self._drop(request.member_id)
            self._answer_join(token, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            self._maybe_complete_join(now)
        elif self.state is State.DEAD:
            self._answer_join(token, ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        elif not self._supports(request):
            self._answer_join(token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        elif request.member_id:
            self._join_known(token, request, now)
        else:
            self._join_unknown(token, request, now)
        return self._take()

    def sync(self, token: Token, request: SyncRequest, now: int) -> list[Effect]:
        """Handle a SyncGroup request; return the effects. In a stable group it is answered at once, else when the
        leader's assignment is durable.
        """
        error = self._check_sync(request)
        if error:
            return [Reply(token, SyncResult(error))]
        member = self.roster.members[request.member_id]
        if self.state is State.STABLE:
            self._synced(member)
            return [Reply(token, self._assignment_of(member))]
        self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)  # the member's earlier request still waits
        member.sync_token = token
        self._synced(member)
        if self.roster.leader == member.member_id:
            assignment = dict(request.assignments)
            self._persist(assignment, partial(self._assigned, self.generation, assignment))
        return self._take()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: int) -> ErrorCode:
        """Handle a Heartbeat request, which prolongs the member's session; return the error for the client,
        REBALANCE_IN_PROGRESS if the member has to join again, else NONE.
        """
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error := self._check_member(member_id, instance_id, generation):
            return error
        self._beat(self.roster.members[member_id], now)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is State.PREPARING_REBALANCE else ErrorCode.NONE

    def leave(self, leaving: Iterable[LeavingMember], now: int) -> tuple[tuple[LeftMember, ...], list[Effect]]:
        """Handle a LeaveGroup request: return the answer for each member, and the effects. The answers have to wait
        until a Persist among the effects is durable.
        """
        left = tuple(LeftMember(member.member_id, member.instance_id, self._leave(member)) for member in leaving)
        if any(not member.error for member in left):
            if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
                self._prepare_rebalance(now)
            else:
                self._maybe_complete_join(now)
        return left, self._take()

    def persisted(self, ticket: int, error: ErrorCode, now: int) -> list[Effect]:
        """Go on after the write of a `Persist` effect with this `ticket` has ended, and return the effects; `error` is
        NONE if it is durable.
        """
        self._writes.pop(ticket)(error, now)
        return self._take()

    def tick(self, now: int) -> list[Effect]:
        """Do what is due by `now`, such as ending sessions and completing rebalances; return the effects."""
        while self.next_deadline <= now:
            self._expire(now)
            self._find_next_deadline()
        return self._take()

    def expire_sessions(self, now: int) -> tuple[int, list[Effect]]:
        """End the session of each member that waits for no answer; return their number, and the effects."""
        ending = [member for member in self.roster if not member.keeps_itself_alive]
        for member in ending:
            member.deadline = now
        self._find_next_deadline()
        return len(ending), self.tick(now)

    def resume(self, now: int) -> list[Effect]:
        """Start every session again after `load`, and return the effects. A group above the size limit rebalances."""
        for member in self.roster:
            self._beat(member, now)
        if self.state is State.STABLE and len(self.roster) > self.settings.group_max_size:
            self._prepare_rebalance(now)
        return self._take()

    def kill(self) -> None:
        """Become dead, as an empty group that is deleted: later requests get COORDINATOR_NOT_AVAILABLE. InternalError
        if the group is not empty.
        """
        check_step(self.group_id, self.state, State.DEAD)
        self.state = State.DEAD
        self.roster.pending.clear()
        self.next_deadline = NEVER

    def revive(self) -> None:
        """Become empty again, after a deletion that could not be written."""
        self.state = State.EMPTY

    def unload(self) -> list[Effect]:
        """Return the effects that answer all waiting requests with NOT_COORDINATOR, since this broker no longer
        coordinates the group.
        """
        for member in self.roster:
            self._answer_join_of(member, ErrorCode.NOT_COORDINATOR)
            self._answer_sync(member, ErrorCode.NOT_COORDINATOR)
        return self._take()

    # -- joining

    def _accepts(self, member_id: str) -> bool:
        limit = self.settings.group_max_size
        if self.state is State.PREPARING_REBALANCE:
            member = self.roster.members.get(member_id)
            if member is not None and member.join_token is not None:
                return True
            return self.roster.waiting_to_join < limit
        if self.state in (State.COMPLETING_REBALANCE, State.STABLE):
            return member_id in self.roster or len(self.roster) < limit
        return True

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is State.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return self.roster.supports(request.protocol_type, request.protocols)

    def _join_unknown(self, token: Token, request: JoinRequest, now: int) -> None:
        member_id = new_member_id(request.client_id, request.instance_id)
        if request.instance_id is not None:
            existing = self.roster.static.get(request.instance_id)
            if existing is not None:
                self._replace_static(token, request, request.instance_id, existing, member_id, now)
                return
        elif request.needs_known_member_id:
            deadline = now + request.session_timeout_ms
            self.roster.pending[member_id] = deadline
            self._arm(deadline)
            self._answer_join(token, ErrorCode.MEMBER_ID_REQUIRED, member_id)
            return
        self._add(token, request, member_id, now)

    def _join_known(self, token: Token, request: JoinRequest, now: int) -> None:
        member_id = request.member_id
        if member_id in self.roster.pending:
            if request.instance_id is not None:  # a pending member is never static: this cannot be its own request
                self._answer_join(token, ErrorCode.UNKNOWN_SERVER_ERROR, "")
            else:
                self._add(token, request, member_id, now)
            return
        error = self.roster.check(member_id, request.instance_id)
        if error:
            self._answer_join(token, error, member_id)
            return
        member = self.roster.members[member_id]
        same = member.protocols == request.protocols
        leads = self.roster.leader == member_id
        if same and (self.state is State.COMPLETING_REBALANCE or (self.state is State.STABLE and not leads)):
            # The member asks again, perhaps because it never got the answer: nothing changes for the others.
            self._effects.append(Reply(token, self._current(member_id)))
            return
        self._rejoin(member, token, request)
        self._prepare_or_complete(now)

    def _rejoin(self, member: Member, token: Token, request: JoinRequest) -> None:
        self._answer_join_of(member, ErrorCode.REBALANCE_IN_PROGRESS)  # the member's earlier request still waits
        self.roster.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self.roster.set_join_token(member, token)

    def _add(self, token: Token, request: JoinRequest, member_id: str, now: int) -> None:
        member = Member.of(member_id, request)
        member.is_new = True
        if self.state is State.PREPARING_REBALANCE and self.previous_state is State.EMPTY:
            self._joined_meanwhile = True
        self.roster.add(member, token, request.protocol_type)
        self._beat(member, now, self.settings.new_member_join_timeout_ms)
        self._prepare_or_complete(now)

    def _replace_static(
        self, token: Token, request: JoinRequest, instance_id: str, old_id: str, new_id: str, now: int
    ) -> None:
        """Give a static member that came back without its member id its former place in the group (KIP-345)."""
        old_leader = self.roster.leader or ""
        old = self.roster.members[old_id]
        before = (old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        self._answer_join_of(old, ErrorCode.FENCED_INSTANCE_ID)
        self._answer_sync(old, ErrorCode.FENCED_INSTANCE_ID)
        member = self.roster.replace_static(instance_id, old_id, new_id)
        if old_id in self._to_sync:
            self._to_sync.remove(old_id)
            self._to_sync.add(new_id)
        self._beat(member, now)
        self._rejoin(member, token, request)
        if self.state is State.COMPLETING_REBALANCE:
            self._prepare_rebalance(now)  # the leader may already have assigned partitions to the old id
        elif self.state is not State.STABLE:
            self._maybe_complete_join(now)
        elif self.roster.select_protocol() != self.protocol:
            self._prepare_rebalance(now)
        else:

            def stored(error: ErrorCode, now: int) -> None:
                self._static_stored(error, member, token, before, old_id, old_leader, request.can_skip_assignment, now)

            self._persist({m.member_id: m.assignment for m in self.roster}, stored)

    def _static_stored(
        self,
        error: ErrorCode,
        member: Member,
        token: Token,
        before: tuple[tuple[tuple[str, bytes], ...], int, int],
        old_id: str,
        old_leader: str,
        can_skip_assignment: bool,
        now: int,
    ) -> None:
        if self.state is not State.STABLE or member.join_token is not token:
            return  # the rebalance that began meanwhile answers, or the member was replaced again
        new_id = member.member_id
        self.roster.set_join_token(member, None)
        self._beat(member, now)
        if error:
            self.roster.update(member, *before)
            self.roster.replace_static(member.instance_id or "", new_id, old_id)
            result = JoinResult(answer_for(error), "", self.generation, self.protocol_type, self.protocol, old_leader)
        elif can_skip_assignment:
            result = self._current(new_id, skip_assignment=self.roster.leader == new_id)
        else:
            # Old clients take whoever is named leader for the one that assigns: they are named the former id, so
            # that a returning leader does not assign to members that do not ask (KIP-345).
            result = JoinResult(ErrorCode.NONE, new_id, self.generation, self.protocol_type, self.protocol, old_leader)
        self._effects.append(Reply(token, result))

    # -- rebalancing

    def _prepare_or_complete(self, now: int) -> None:
        if self.state is State.PREPARING_REBALANCE:
            self._maybe_complete_join(now)
        else:
            self._prepare_rebalance(now)

    def _prepare_rebalance(self, now: int) -> None:
        if self.state is State.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._to_sync.clear()
        self._sync_deadline = NEVER
        first = self.state is State.EMPTY
        self._enter(State.PREPARING_REBALANCE, now)
        if first:
            delay = self.settings.group_initial_rebalance_delay_ms
            self._joined_meanwhile = False
            self._delay_first_join(now, delay, max(self.roster.rebalance_timeout_ms - delay, 0))
        elif self.roster.all_joined:
            self._complete_join(now)
        else:
            self._initial_delay = None
            self._join_by(now + self.roster.rebalance_timeout_ms)

    def _delay_first_join(self, now: int, delay: int, remaining: int) -> None:
        self._initial_delay = (delay, remaining)
        self._join_by(now + delay)

    def _maybe_complete_join(self, now: int) -> None:
        """Complete the rebalance if every known member has joined. The first rebalance of a group waits for its initial
        delay in any case.
        """
        if (
            self.state is State.PREPARING_REBALANCE
            and self.previous_state is not State.EMPTY
            and self.roster.all_joined
        ):
            self._complete_join(now)

    def _complete_join(self, now: int) -> None:
        self._join_deadline = NEVER
        self._initial_delay = None
        for member in [m for m in self.roster if m.join_token is None and not m.is_static]:
            self.roster.remove(member.member_id)
        if len(self.roster) and not self.roster.elect_joined_leader():
            # Only static members are left, and none of them joined: the group waits until their sessions end.
            self._join_by(now + max(self.roster.rebalance_timeout_ms, 1))
            return
        self.generation = (self.generation + 1) & 0x7FFFFFFF
        self._to_sync.clear()
        if not len(self.roster):
            self.protocol = None
            self.roster.learn_subscriptions(None)
            self._enter(State.EMPTY, now)
            self._persist({}, _ignore)
            return
        self.protocol = self.roster.select_protocol()
        self.roster.learn_subscriptions(self.protocol)
        self._enter(State.COMPLETING_REBALANCE, now)
        for member in self.roster:
            token = member.join_token
            if token is not None:
                self.roster.set_join_token(member, None)
                self._effects.append(Reply(token, self._current(member.member_id)))
            self._beat(member, now)
            member.is_new = False
            self._to_sync.add(member.member_id)
        self._sync_deadline = now + self.roster.rebalance_timeout_ms
        self._arm(self._sync_deadline)

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self.state is State.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if error := self._check_member(request.member_id, request.instance_id, request.generation):
            return error
        if _differ(request.protocol_type, self.protocol_type) or _differ(request.protocol, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _synced(self, member: Member) -> None:
        self._to_sync.discard(member.member_id)
        if not self._to_sync:
            self._sync_deadline = NEVER

    def _assigned(self, generation: int, assignment: dict[str, bytes], error: ErrorCode, now: int) -> None:
        """Go on after the write of the leader's assignment has ended: answer the members that wait in SyncGroup, or
        rebalance again if it failed.
        """
        if self.state is not State.COMPLETING_REBALANCE or self.generation != generation:
            return  # members joined or left meanwhile, and the rebalance that they began goes on
        if error:
            self._reset_assignments(answer_for(error), now)
            self._prepare_rebalance(now)
            return
        for member in self.roster:
            member.assignment = assignment.get(member.member_id, b"")
            if self._answer_sync(member, ErrorCode.NONE):
                self._beat(member, now)
        self._enter(State.STABLE, now)

    def _reset_assignments(self, error: ErrorCode, now: int) -> None:
        for member in self.roster:
            member.assignment = b""
            if self._answer_sync(member, error):
                self._beat(member, now)

    # -- leaving and expiring

    def _leave(self, leaving: LeavingMember) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member_id = leaving.member_id
        if not member_id:
            known = self.roster.static.get(leaving.instance_id) if leaving.instance_id is not None else None
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = known
        elif member_id not in self.roster.pending:
            error = self.roster.check(member_id, leaving.instance_id)
            if error:
                return error
        self._drop(member_id)
        return ErrorCode.NONE

    def _drop(self, member_id: str) -> None:
        """Remove a member. Its waiting requests are answered UNKNOWN_MEMBER_ID: it joins again if it is alive."""
        member = self.roster.members.get(member_id)
        if member is not None:
            self._answer_join_of(member, ErrorCode.UNKNOWN_MEMBER_ID, "")
            self._answer_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.roster.remove(member_id)
        self._to_sync.discard(member_id)

    def _expire(self, now: int) -> None:
        if self._join_deadline <= now:
            self._join_deadline = NEVER
            self._join_timed_out(now)
        if self._sync_deadline <= now:
            self._sync_deadline = NEVER
            self._sync_timed_out(now)
        due = [name for name, deadline in self.roster.pending.items() if deadline <= now]
        due += [m.member_id for m in self.roster if m.deadline <= now]
        for member_id in due:
            member = self.roster.members.get(member_id)
            if member is None:
                if member_id in self.roster.pending:
                    self._session_ended(member_id, now)
            elif member.deadline <= now:
                member.deadline = NEVER
                if not member.keeps_itself_alive:
                    self._session_ended(member_id, now)

    def _join_timed_out(self, now: int) -> None:
        if self._initial_delay is not None:
            delay, remaining = self._initial_delay
            if self._joined_meanwhile and remaining:
                self._joined_meanwhile = False
                more = min(self.settings.group_initial_rebalance_delay_ms, remaining)
                self._delay_first_join(now, more, max(remaining - delay, 0))
                return
        self._complete_join(now)

    def _sync_timed_out(self, now: int) -> None:
        for member_id in list(self._to_sync):
            self._drop(member_id)
        self._prepare_rebalance(now)

    def _session_ended(self, member_id: str, now: int) -> None:
        joined = member_id in self.roster
        self._drop(member_id)
        if self.state is State.PREPARING_REBALANCE:
            self._maybe_complete_join(now)
        elif joined:
            self._prepare_rebalance(now)

    # -- small parts

    def _enter(self, state: State, now: int) -> None:
        check_step(self.group_id, self.state, state)
        self.previous_state = self.state
        self.state = state
        self.state_since = self.settings.wall_time(now)

    def _beat(self, member: Member, now: int, timeout_ms: int | None = None) -> None:
        member.deadline = now + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.next_deadline = min(self.next_deadline, member.deadline)

    def _join_by(self, deadline: int) -> None:
        self._join_deadline = deadline
        self._arm(deadline)

    def _arm(self, deadline: int) -> None:
        self.next_deadline = min(self.next_deadline, deadline)

    def _find_next_deadline(self) -> None:
        self.next_deadline = min(
            self._join_deadline,
            self._sync_deadline,
            min(self.roster.pending.values(), default=NEVER),
            min((member.deadline for member in self.roster), default=NEVER),
        )

    def _current(self, member_id: str, *, skip_assignment: bool = False) -> JoinResult:
        leads = self.roster.leader == member_id
        return JoinResult(
            ErrorCode.NONE,
            member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.roster.leader or "",
            skip_assignment,
            self.roster.seen_by_leader(self.protocol or "") if leads else (),
        )

    def _answer_join(self, token: Token, error: ErrorCode, member_id: str) -> None:
        self._effects.append(Reply(token, JoinResult(error, member_id)))

    def _answer_join_of(self, member: Member, error: ErrorCode, member_id: str | None = None) -> None:
        token = member.join_token
        if token is not None:
            self.roster.set_join_token(member, None)
            self._answer_join(token, error, member.member_id if member_id is None else member_id)

    def _answer_sync(self, member: Member, error: ErrorCode) -> bool:
        token = member.sync_token
        if token is None:
            return False
        member.sync_token = None
        self._effects.append(Reply(token, SyncResult(error) if error else self._assignment_of(member)))
        return True

    def _assignment_of(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def _persist(self, assignment: dict[str, bytes], then: Callable[[ErrorCode, int], None]) -> None:
        members = tuple(m.stored(self.protocol or "", assignment.get(m.member_id, b"")) for m in self.roster)
        value = GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.roster.leader,
            self.state_since,
            members,
        )
        self._tickets += 1
        self._writes[self._tickets] = then
        self._effects.append(Persist(self._tickets, value))

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _differ(requested: str | None, current: str | None) -> bool:
    return requested is not None and current is not None and requested != current


def _ignore(error: ErrorCode, now: int) -> None:
    """Ignore the outcome of the write of an empty generation: if it failed, a restart loads the generation before,
    whose members then time out.
    """
