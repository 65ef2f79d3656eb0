"""A group coordinator over storage that does what the test says, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TypedDict, TypeVar, Unpack

from groups.group_machine import Settings, subscription
from support.commits import commit
from support.faulty_engine import FaultyEngine, FaultyLog, FaultyStore
from support.settings import settings_of

from kop.errors import ErrorCode
from kop.groups.classic.messages import Description, JoinRequest, JoinResult, LeavingMember, SyncRequest
from kop.groups.offsets import Commit, GroupOffsets
from kop.groups.runtime import GroupCoordinator, ResultOrFuture
from kop.groups.settings import GroupSettings
from kop.storage.base import TopicInfo
from kop.wire.state import Key as StateKey
from kop.wire.state import decode_key

MINUTE = 60_000
T = TypeVar("T")


class Joining(TypedDict, total=False):
    """What a JoinGroup may say beside its member id; see `World.send_join`."""

    instance: str | None
    metadata: bytes | None
    protocol_type: str
    protocol: str
    client: str
    session: int


def at_once(answer: ResultOrFuture[T]) -> T:
    """What a request was answered without waiting for anything."""
    assert not isinstance(answer, asyncio.Future), "it waits"
    return answer


def under_way(answer: ResultOrFuture[T]) -> asyncio.Future[T]:
    """The answer that a request waits for."""
    assert isinstance(answer, asyncio.Future), f"it was answered at once: {answer}"
    return answer


async def settle() -> None:
    """Let what is due happen."""
    for _ in range(10):
        await asyncio.sleep(0)


class World:
    """Storage with one partition of `__offsets` and a topic `t`, and a coordinator with its clock."""

    def __init__(self, namespace: str | None = None, **settings: Unpack[Settings]) -> None:
        self.store = FaultyStore()
        self.namespace = namespace
        self.now = 1_700_000_000_000
        self.wall_ahead = 0
        """Milliseconds by which the wall clock is ahead of the clock that never goes back; negative: behind."""
        few = {"offsets_topic_num_partitions": 1, "group_initial_rebalance_delay_ms": 0}
        self.settings = settings_of(GroupSettings, **(few | settings))
        self._engine: FaultyEngine | None = None
        self._groups: GroupCoordinator | None = None

    @property
    def engine(self) -> FaultyEngine:
        """Storage, once it is open."""
        assert self._engine is not None
        return self._engine

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator, once it was made."""
        assert self._groups is not None
        return self._groups

    # -- life

    async def open(self) -> World:
        """Open storage."""
        self._engine = await self.store.open()
        self.engine.topics.namespace = self.namespace
        return self

    def coordinate(self) -> None:
        """Make a coordinator that is not started."""
        self._groups = GroupCoordinator(
            self.engine, self.settings, clock=lambda: self.now, wall=lambda: self.now + self.wall_ahead
        )

    async def start(self) -> World:
        """Open storage where it is not open, make topic `t` where it is not there, start a coordinator."""
        if self._engine is None:
            await self.open()
        if not self.engine.topics.get("t"):
            await self.engine.topics.create("t", 4, {})
        self.coordinate()
        await self.groups.start()
        return self

    async def stop(self) -> None:
        """Stop the coordinator and storage, and open storage again."""
        await self.groups.stop()
        await self.engine.close()
        await self.open()

    async def restart(self) -> World:
        """Stop all, and start again with what was stored."""
        await self.stop()
        return await self.start()

    async def __aenter__(self) -> World:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.groups.stop()
        await self.engine.close()

    # -- storage

    def topic(self, name: str) -> TopicInfo:
        """A topic that is there."""
        topic = self.engine.topics.get(name)
        assert topic is not None, f"there is no topic {name}"
        return topic

    @property
    def log(self) -> FaultyLog:
        """The first partition of `__offsets`."""
        return self.store.log("__offsets")

    @property
    def logs(self) -> list[FaultyLog]:
        """All partitions of `__offsets`."""
        return [self.store.log("__offsets", index) for index in range(self.topic("__offsets").partitions)]

    def keys(self) -> dict[StateKey, bytes | None]:
        """Keys in the log with the newest value of each, None for tombstones."""
        return {decode_key(key): value for key, value in self.log.records() if key is not None}

    # -- members

    def send_join(
        self,
        member_id: str = "",
        group: str = "g",
        *,
        instance: str | None = None,
        metadata: bytes | None = None,
        protocol_type: str = "consumer",
        protocol: str = "range",
        client: str = "client",
        session: int = 10_000,
    ) -> ResultOrFuture[JoinResult]:
        """JoinGroup of a member that likes one protocol, and by default subscribes to `t`."""
        request = JoinRequest(
            member_id,
            instance,
            client,
            "/1.2.3.4",
            protocol_type,
            ((protocol, subscription("t") if metadata is None else metadata),),
            session,
            30_000,
            needs_known_member_id=False,
        )
        return self.groups.join(group, request)

    def join(self, member_id: str = "", group: str = "g", **how: Unpack[Joining]) -> asyncio.Future[JoinResult]:
        """A JoinGroup that waits for the next generation; see `send_join`."""
        return under_way(self.send_join(member_id, group, **how))

    def join_error(self, member_id: str = "", group: str = "g", **how: Unpack[Joining]) -> ErrorCode:
        """Why a JoinGroup is refused at once; see `send_join`."""
        return at_once(self.send_join(member_id, group, **how)).error

    async def sync(self, group: str, request: SyncRequest) -> bytes:
        """The assignment that a SyncGroup is answered."""
        answer = await under_way(self.groups.sync(group, request))
        assert answer.error == ErrorCode.NONE
        return answer.assignment

    async def stable(self, group: str = "g", **how: Unpack[Joining]) -> str:
        """A group of one; returns its member id."""
        answer = self.join(group=group, **how)
        self.groups.deadlines.tick()
        joined = await answer
        sync = SyncRequest(joined.member_id, None, joined.generation, None, None, ((joined.member_id, b"all"),))
        assert await self.sync(group, sync) == b"all"
        return joined.member_id

    async def emptied(self, group: str = "g", **how: Unpack[Joining]) -> str:
        """A group whose only member has left; returns the id that it had."""
        member_id = await self.stable(group, **how)
        assert await self.left(member_id, group) == ErrorCode.NONE
        return member_id

    async def left(self, member_id: str, group: str = "g") -> ErrorCode:
        """The error of a LeaveGroup of the group's last member."""
        error, _ = await under_way(self.groups.leave(group, [LeavingMember(member_id)]))
        return error

    def described(self, group: str = "g") -> Description:
        """A group that can be described."""
        description = self.groups.describe(group)
        assert isinstance(description, Description), description
        return description

    def names(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[str]:
        """The ids of the groups that are listed."""
        return sorted(group.group_id for group in self.groups.list(states, types))

    # -- offsets

    def commit(
        self, offset: int, *, group: str = "g", topic: str = "t", partition: int = 0, retention: int = -1
    ) -> asyncio.Future[ErrorCode]:
        """OffsetCommit of one partition, with leader epoch 3 and the metadata `m<offset>`."""
        info = self.engine.topics.get(topic)
        offset_commit = Commit(topic, info.topic_id if info else None, partition, offset, 3, f"m{offset}")
        return commit(self.groups, group, [offset_commit], retention)

    def offsets(self, group: str = "g") -> GroupOffsets:
        """The offsets of a group that is there."""
        offsets = self.groups.offsets(group)
        assert offsets is not None, f"there is no group {group}"
        return offsets

    def offset(self, partition: int = 0, group: str = "g", topic: str = "t") -> int | None:
        """What a group has committed for a partition; None for nothing."""
        offsets = self.groups.offsets(group)
        value = offsets and offsets.get(topic, partition)
        return value.offset if value else None
