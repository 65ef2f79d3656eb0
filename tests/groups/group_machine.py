"""Drives one group with simulated time, and holds what the machine promises of every step."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterable
from typing import TypedDict, Unpack

from kop.errors import ErrorCode
from kop.groups.classic.group import ClassicGroup, State
from kop.groups.classic.messages import (
    Effect,
    JoinRequest,
    JoinResult,
    LeavingMember,
    Persist,
    Protocols,
    SyncRequest,
    SyncResult,
)
from kop.groups.settings import GroupSettings
from kop.wire.state import GroupMetadataValue

SESSION = 10_000
REBALANCE = 60_000


def subscription(*topics: str) -> bytes:
    """What a consumer sends as its metadata, version 0."""
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + named + b"\xff\xff\xff\xff"


class Settings(TypedDict, total=False):
    """The settings of the coordinator that tests change."""

    offsets_topic_num_partitions: int
    offsets_topic_segment_bytes: int
    offsets_retention_check_interval_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    new_member_join_timeout_ms: int


class JoinFields(TypedDict, total=False):
    """What a JoinGroup may say beside its member id; see `Machine.join`."""

    instance: str | None
    client: str
    protocols: Protocols
    protocol_type: str
    version: int
    session: int
    rebalance: int


class Machine:
    """A group, its clock, the answers that it gave and the writes that it waits for."""

    def __init__(self, group: ClassicGroup | None = None, **settings: Unpack[Settings]) -> None:
        self.now = 1_000_000
        self.settings = GroupSettings(**settings)
        self.group = group or ClassicGroup("g", self.settings, self.now)
        self.answers: dict[int, JoinResult | SyncResult] = {}
        self.waiting: set[int] = set()
        self.writes: list[Persist] = []
        self.stored: GroupMetadataValue | None = None
        self.last_generation = 0
        self.leaders: dict[int, str] = {}
        self._tokens = itertools.count(1)

    # -- requests

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        client: str = "client",
        protocols: Protocols = (("range", b"meta"),),
        protocol_type: str = "consumer",
        version: int = 9,
        session: int = SESSION,
        rebalance: int = REBALANCE,
    ) -> int:
        """Send JoinGroup; returns the token."""
        token = self._new()
        request = JoinRequest(
            member_id,
            instance,
            client,
            "/127.0.0.1",
            protocol_type,
            protocols,
            session,
            rebalance,
            needs_known_member_id=version >= 4,
            can_skip_assignment=version >= 9,
        )
        self.apply(self.group.join(token, request, self.now))
        return token

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> int:
        """Send SyncGroup; returns the token."""
        token = self._new()
        request = SyncRequest(
            member_id, instance, generation, protocol_type, protocol, tuple((assignments or {}).items())
        )
        self.apply(self.group.sync(token, request, self.now))
        return token

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.group.heartbeat(member_id, instance, generation, self.now)

    def leave(self, *leaving: LeavingMember) -> list[ErrorCode]:
        left, effects = self.group.leave(leaving, self.now)
        self.apply(effects)
        return [member.error for member in left]

    def commit(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.group.check_commit(member_id, instance, generation, self.now)

    # -- time and storage

    def advance(self, ms: int) -> None:
        """Let time go by, waking the machine whenever it has something to do."""
        end = self.now + ms
        while self.group.next_deadline <= end:
            self.now = max(self.now, self.group.next_deadline)
            self.apply(self.group.tick(self.now))
        self.now = end

    def store(self, error: ErrorCode = ErrorCode.NONE) -> GroupMetadataValue:
        """The oldest write ends."""
        write = self.writes.pop(0)
        if not error:
            self.stored = write.value
        self.apply(self.group.persisted(write.ticket, error, self.now))
        return write.value

    # -- answers

    def joined(self, token: int, error: ErrorCode = ErrorCode.NONE) -> JoinResult:
        """The answer to a JoinGroup, which has this error."""
        result = self.answer(token)
        assert result.error == error
        return result

    def answer(self, token: int) -> JoinResult:
        """The answer to a JoinGroup."""
        result = self.answers[token]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, token: int, error: ErrorCode = ErrorCode.NONE) -> SyncResult:
        """The answer to a SyncGroup, which has this error."""
        result = self.answers[token]
        assert isinstance(result, SyncResult)
        assert result.error == error
        return result

    def apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self.writes.append(effect)
            else:
                assert isinstance(effect.token, int)
                assert effect.token in self.waiting, "a token is answered once"
                self.waiting.remove(effect.token)
                self.answers[effect.token] = effect.result
                if isinstance(effect.result, JoinResult) and not effect.result.error:
                    assert effect.result.generation >= self.last_generation
                    self.last_generation = effect.result.generation
                    self.saw_leader(effect.result)
        self.check()

    def saw_leader(self, result: JoinResult) -> None:
        """Nobody else is told to lead a generation."""
        leads = [
            member.instance_id or member.member_id for member in result.members if member.member_id == result.leader
        ]
        if result.members:
            assert leads == [self.leaders.setdefault(result.generation, leads[0])]

    def check(self) -> None:
        """What is always true."""
        group, roster = self.group, self.group.roster
        assert (roster.leader is None) == (not roster.members)
        assert roster.leader is None or roster.leader in roster.members
        tokens = [m.join_token for m in roster if m.join_token is not None]
        assert roster.waiting_to_join == len(tokens)
        tokens += [m.sync_token for m in roster if m.sync_token is not None]
        assert set(tokens) == self.waiting, "what waits is known, nothing else waits"
        assert len(tokens) == len(self.waiting)
        assert roster.static == {m.instance_id: m.member_id for m in roster if m.instance_id is not None}
        supported = Counter(name for m in roster for name in dict(m.protocols))
        assert dict(roster.support) == dict(supported), "a protocol that nobody supports any more is forgotten"
        assert not roster.pending.keys() & roster.members.keys()
        assert all(m.member_id == name for name, m in roster.members.items())
        if group.state in (State.EMPTY, State.DEAD):
            assert not roster.members
        if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
            assert roster.members
            assert group.protocol == roster.select_protocol() or group.state is State.STABLE
        due = [m.deadline for m in roster] + list(roster.pending.values())
        assert all(group.next_deadline <= deadline for deadline in due)

    def _new(self) -> int:
        token = next(self._tokens)
        self.waiting.add(token)
        return token

    # -- whole steps

    def member(self, **how: Unpack[JoinFields]) -> tuple[str, int]:
        """A new member that has its id and asks to join: id and token."""
        if how.get("instance") is None and how.get("version", 9) >= 4:
            member_id = self.joined(self.join(**how), ErrorCode.MEMBER_ID_REQUIRED).member_id
            return member_id, self.join(member_id, **how)
        token = self.join(**how)
        waiting = [m.member_id for m in self.group.roster if m.join_token == token]
        return waiting[0] if waiting else self.answer(token).member_id, token

    def stable(self, count: int = 1, **how: Unpack[JoinFields]) -> list[str]:
        """A stable group of that many members, the leader first."""
        asked = [self.member(**how) for _ in range(count)]
        self.advance(self.settings.group_initial_rebalance_delay_ms * count)
        self.assign()
        return [member_id for member_id, _ in asked]

    def assign(self) -> None:
        """Every member syncs, the leader gives each its id as the assignment."""
        assert self.group.state is State.COMPLETING_REBALANCE
        ids = list(self.group.roster.members)
        leader = self.group.roster.leader
        assert leader is not None
        tokens = [
            self.sync(
                m,
                self.group.generation,
                {i: i.encode() for i in ids} if m == leader else None,
                instance=self.group.roster.members[m].instance_id,
                protocol=self.group.protocol,
                protocol_type=self.group.protocol_type,
            )
            for m in ids
        ]
        self.store()
        assert self.group.state is State.STABLE
        assert [self.synced(token).assignment for token in tokens] == [m.encode() for m in ids]
