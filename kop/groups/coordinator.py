"""The group coordinator: groups and their committed offsets, kept in memory and in the `__offsets` topic.

Owns: which groups there are, carrying out the machines' effects, one timer for all groups, expiry of offsets.
Must not know: the wire, versions of requests, sockets.

- Nothing is answered before the records that the answer stands for are durable.
- Methods are called on the event loop's thread. They return a result, or a future of one where something has to happen
  first; a future that nobody waits for any more may be cancelled, the group goes on as if the answer was sent.
- Deadlines go by a clock that never goes back; what is written goes by the wall clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from kop.background import repeat, retried
from kop.cluster.client_topics import ClientTopics
from kop.cluster.live_brokers import LiveBrokers
from kop.errors import ErrorCode, InternalError, KopError
from kop.groups.classic import ClassicGroup
from kop.groups.log import Done, GroupLog, KeyValue
from kop.groups.messages import (
    Description,
    Effect,
    JoinRequest,
    JoinResult,
    Leaving,
    Left,
    Reply,
    SyncRequest,
    SyncResult,
)
from kop.groups.offsets import GroupOffsets, Key
from kop.groups.partitions import Partitions
from kop.groups.roster import NEVER
from kop.groups.settings import GroupSettings
from kop.groups.states import State, answer_for
from kop.storage.base import Engine, TopicInfo
from kop.wire.state import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    StateRecordError,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_value,
    encode_key,
    encode_offset_value,
)

T = TypeVar("T")
Later: TypeAlias = T | asyncio.Future[T]
"""A result, or the future of one."""

_OPEN_SECONDS: Final = 60.0
_PASSING: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_CONFIRM_SECONDS: Final = 0.5
_EXPIRY_SLICE: Final = 200
"""Groups that are looked at before others get a turn."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    """A group with what belongs to it. `armed` is the deadline that stands in the heap for it."""

    group: ClassicGroup
    partition: int
    term: int
    """Of the partition, see `Partitions.term`: in another one this entry is void."""
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    armed: int = NEVER
    logged: State = State.EMPTY


@dataclass(frozen=True, slots=True)
class Listed:
    """A group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class Commit:
    """One partition's offset to be committed."""

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupCoordinator:
    """All groups of the classic protocol. Call `start` once; until it has ended everything is being loaded."""

    def __init__(
        self,
        engine: Engine,
        settings: GroupSettings | None = None,
        *,
        clock: Callable[[], int] | None = None,
        wall: Callable[[], int] | None = None,
        live_brokers: LiveBrokers | None = None,
    ) -> None:
        """`clock` and `wall` give milliseconds since the epoch; the former never goes back."""
        offset = time.time_ns() - time.monotonic_ns()
        self._wall = wall or clock or (lambda: time.time_ns() // 1_000_000)
        self._clock = clock or (lambda: (time.monotonic_ns() + offset) // 1_000_000)
        self._engine = engine
        self._topics = ClientTopics(engine)
        self.settings = replace(settings or GroupSettings(), own_name=self._topics.own_name)
        self._log = GroupLog(engine, self.settings, self._wall)
        self._partitions = Partitions(self._log, live_brokers, self._load, self._install, self._unload)
        self._entries: dict[str, _Entry] = {}
        self._refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._keys_read = 0
        self._heap: list[tuple[int, int, _Entry]] = []
        self._serial = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._loops: list[asyncio.Task[None]] = []

    # -- life

    async def start(self) -> None:
        """Make or open the topic and rebuild all groups from it.

        KopError where there can be no such topic. A failure that passes is tried again for a minute; afterwards each
        partition is tried by itself, behind this call where that takes long.
        """
        await retried("open the offsets topic", self._log.open, passes=_passes, seconds=_OPEN_SECONDS)
        self._engine.topics.on_change(self._topic_changed)
        interval = self.settings.offsets_retention_check_interval_ms / 1000
        self._loops = [
            asyncio.get_running_loop().create_task(repeat("the expiry of offsets", self.expire, every=interval)),
            asyncio.get_running_loop().create_task(repeat("who leads", self._confirm, every=_CONFIRM_SECONDS)),
        ]
        began = time.monotonic()
        self._refusal = ErrorCode.NONE  # from now on each partition says whether it is served
        await self._partitions.start()
        elapsed = (time.monotonic() - began) * 1000
        _log.info("%d groups loaded from %d keys in %.0f ms", len(self._entries), self._keys_read, elapsed)

    async def _load(self, partition: int) -> dict[str, tuple[ClassicGroup, GroupOffsets]]:
        """The groups of a partition, from its log."""
        values: dict[str, GroupMetadataValue] = {}
        offsets: dict[str, GroupOffsets] = {}
        for raw_key, raw_value in (await self._log.read(partition)).items():
            self._keys_read += 1
            if raw_value is None:
                continue
            key = decode_key(raw_key)
            if isinstance(key, OffsetCommitKey):
                found = offsets.setdefault(key.group, GroupOffsets())
                found.put(key.topic, key.partition, decode_offset_value(raw_value))
            elif isinstance(key, GroupMetadataKey):
                values[key.group] = decode_group_value(raw_value)
            else:
                _warn_of(key)
        await self._topics.find({topic for found in offsets.values() for topic in found.by_topic})
        now = self._clock()
        groups: dict[str, tuple[ClassicGroup, GroupOffsets]] = {}
        for group_id in values.keys() | offsets.keys():
            value = values.get(group_id)
            if value is None:
                group = ClassicGroup(group_id, self.settings, now)
            else:
                group = ClassicGroup.load(group_id, value, self.settings, now)
            groups[group_id] = group, offsets.get(group_id) or GroupOffsets()
        return groups

    def _install(self, partition: int, groups: dict[str, tuple[ClassicGroup, GroupOffsets]]) -> None:
        """Serve the groups of a partition that was read: these and no others."""
        term, now = self._partitions.term(partition), self._clock()
        entries = [_Entry(group, partition, term, offsets) for group, offsets in groups.values()]
        for entry in entries:
            self._entries[entry.group.group_id] = entry
            self._carry_out(entry, entry.group.resume(now))
        self._forget_missing_topics(entries)

    def _unload(self, partition: int) -> None:
        """Another broker coordinates the partition: who waits is sent there, and nothing of its groups stays here."""
        for group_id, entry in list(self._entries.items()):
            if entry.partition == partition:
                del self._entries[group_id]
                entry.armed = NEVER
                for effect in entry.group.unload():
                    if isinstance(effect, Reply):
                        _answer(effect.token, effect.result)

    async def stop(self) -> None:
        """Answer what waits, hand over what is queued, take nothing more."""
        self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for entry in self._entries.values():
            self._carry_out(entry, entry.group.unload())
        self._log.flush()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._partitions.stop()

    @property
    def refusal(self) -> ErrorCode:
        """NONE when requests are served, else what to answer all of them."""
        if not self._refusal and self._partitions.loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._refusal

    @property
    def waiting_for(self) -> str | None:
        """Which groups are not served yet, and why, in one line for an operator; None where all of ours are."""
        if self._refusal == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return "the offsets topic is being opened"
        return self._partitions.waiting_for

    def refusal_of(self, group_id: str, *, surely: bool = False) -> ErrorCode:
        """NONE when requests for the group are served here, else what to answer. `surely`: from memory alone.

        Where `members` are not fresh everything is answered as from memory alone: `_confirm` sees to it that it can be.
        """
        if self._refusal:
            return self._refusal
        # Who was stopped for a while may have been replaced. Not where storage said since that it still leads.
        surely = surely or not self._engine.brokers_fresh
        return self._partitions.refusal(self._log.partition_of(group_id), surely=surely)

    def in_doubt(self, group_ids: Iterable[str]) -> set[int]:
        """Partitions of these groups that `verify` has to ask about before anything is answered from memory."""
        partitions = () if self._refusal else map(self._log.partition_of, group_ids)
        return set(filter(self._partitions.in_doubt, partitions))

    async def verify(self, partitions: Collection[int]) -> None:
        """Ask storage who coordinates; what is still in doubt then, or gone, is refused by `refusal_of`."""
        await asyncio.gather(*map(self._partitions.verify, partitions))

    def coordinator_of(self, group_id: str) -> tuple[UUID, int] | None:
        """The partition of `__offsets` that keeps the group; None before the topic is known."""
        return (self._log.topic_id, self._log.partition_of(group_id)) if self._log.partitions else None

    # -- members

    def join(self, group_id: str, request: JoinRequest) -> Later[JoinResult]:
        """JoinGroup. Waits until the rebalance comes to its next generation, or fails at once."""
        error = self.refusal_of(group_id)
        if not error and not group_id:
            error = ErrorCode.INVALID_GROUP_ID
        limits = self.settings
        if not error and not (
            limits.group_min_session_timeout_ms <= request.session_timeout_ms <= limits.group_max_session_timeout_ms
        ):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        entry = self._entries.get(group_id)
        if not error and entry is None and request.member_id:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error:
            return JoinResult(error, request.member_id)
        if entry is None:
            entry = self._add(group_id)
        if request.reason:
            _log.debug("member %r joins group %r: %s", request.member_id, group_id, request.reason)
        token: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self._carry_out(entry, entry.group.join(token, request, self._clock()))
        self._drop_untouched(entry)
        return token.result() if token.done() else token

    def sync(self, group_id: str, request: SyncRequest) -> Later[SyncResult]:
        """SyncGroup. Waits until the leader's assignment is durable, or fails at once."""
        entry, error = self._find(group_id)
        if entry is None:
            return SyncResult(error)
        token: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self._carry_out(entry, entry.group.sync(token, request, self._clock()))
        return token.result() if token.done() else token

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Heartbeat. While groups are loaded every one is good: the member shall stay."""
        entry, error = self._find(group_id)
        if entry is None:
            return ErrorCode.NONE if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        return entry.group.heartbeat(member_id, instance_id, generation, self._clock())

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> Later[tuple[ErrorCode, tuple[Left, ...]]]:
        """LeaveGroup: an error of all, or the answer for each. Waits for the record of a group that became empty."""
        entry, error = self._find(group_id)
        if entry is None:
            if error != ErrorCode.UNKNOWN_MEMBER_ID:
                return error, ()
            return ErrorCode.NONE, tuple(Left(one.member_id, one.instance_id, error) for one in leaving)
        left, effects = entry.group.leave(leaving, self._clock())
        if all(isinstance(effect, Reply) for effect in effects):
            self._carry_out(entry, effects)
            self._drop_untouched(entry)
            return ErrorCode.NONE, left
        answer: asyncio.Future[tuple[ErrorCode, tuple[Left, ...]]] = asyncio.get_running_loop().create_future()
        self._carry_out(entry, effects, lambda code: _answer(answer, (answer_for(code), () if code else left)))
        return answer

    # -- committed offsets

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, *, says_not_found: bool
    ) -> ErrorCode:
        """May these offsets be committed? `says_not_found`: the client knows GROUP_ID_NOT_FOUND (version 9 and up)."""
        if refusal := self.refusal_of(group_id):
            return refusal
        entry = self._entries.get(group_id)
        if entry is not None:
            return entry.group.check_commit(member_id, instance_id, generation, self._clock())
        if generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if says_not_found else ErrorCode.ILLEGAL_GENERATION

    def commit(self, group_id: str, commits: Iterable[Commit], retention_ms: int = -1) -> asyncio.Future[ErrorCode]:
        """Commit offsets after `check_commit`, all of them or none. Ends when they are durable.

        `retention_ms`: how long to keep them whatever the broker's setting is, -1 for that setting.
        """
        now = self._wall()
        expire = now + retention_ms if retention_ms >= 0 else -1
        items: list[tuple[Key, OffsetCommitValue]] = []
        records: list[KeyValue] = []
        for one in commits:
            value = OffsetCommitValue(one.offset, max(one.leader_epoch, -1), one.metadata, now, expire, one.topic_id)
            items.append(((one.topic, one.partition), value))
            raw_key = encode_key(OffsetCommitKey(group_id, one.topic, one.partition))
            records.append((raw_key, encode_offset_value(value)))
        entry = self._entries.get(group_id) or self._add(group_id)
        for key, _ in items:
            entry.offsets.begin(key)
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(code: ErrorCode) -> None:
            for key, value in items:
                entry.offsets.end(key)
                if not code:
                    entry.offsets.put(*key, value)
            self._drop_untouched(entry)
            _answer(answer, answer_for(code))

        self._log.write(entry.partition, records, done)
        return answer

    def offsets(self, group_id: str) -> GroupOffsets | None:
        """What the group has committed, or None where there is no such group."""
        entry = self._entries.get(group_id)
        return None if entry is None else entry.offsets

    def delete_offsets(self, group_id: str, keys: Sequence[Key]) -> Later[tuple[ErrorCode, dict[Key, ErrorCode]]]:
        """OffsetDelete: an error of all, or one for each key. Deleting what is not there is no error."""
        entry, error = self._find(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if entry is None:
            return error, {}
        group = entry.group
        if group.state is not State.EMPTY and group.protocol_type != "consumer":
            return ErrorCode.NON_EMPTY_GROUP, {}
        there = set(entry.offsets.keys())
        errors = {
            key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.roster.is_subscribed_to(key[0]) else ErrorCode.NONE
            for key in keys
        }
        gone = [key for key, code in errors.items() if not code and key in there]
        if not gone:
            return ErrorCode.NONE, errors
        answer: asyncio.Future[tuple[ErrorCode, dict[Key, ErrorCode]]] = asyncio.get_running_loop().create_future()
        self._delete(entry, gone, lambda code: _answer(answer, (answer_for(code), {} if code else errors)))
        return answer

    # -- administration

    def describe(self, group_id: str) -> Description | ErrorCode:
        """The group, or why it cannot be shown."""
        entry, error = self._find(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        return self.refusal_of(group_id, surely=True) or (error if entry is None else entry.group.describe())

    def list(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[Listed]:
        """Groups in these states and of these types, in whatever case; an empty collection is all of them."""
        wanted = {state.lower() for state in states}
        if types and "classic" not in {name.lower() for name in types}:
            return []
        return [
            Listed(group_id, entry.group.protocol_type or "", entry.group.state.value)
            for group_id, entry in self._entries.items()
            if not wanted or entry.group.state.value.lower() in wanted
        ]

    def delete(self, group_id: str) -> Later[ErrorCode]:
        """DeleteGroups, one group: it goes with its offsets, if it has no members."""
        entry, error = self._find(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if entry is None:
            return error
        if entry.group.state is not State.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._delete_group(entry, lambda code: _answer(answer, answer_for(code)))
        return answer

    # -- for metrics

    def stats(self) -> dict[str, int]:
        """How many groups there are in each state that a group can be seen in."""
        counts = Counter(entry.group.state.value for entry in self._entries.values())
        return {state.value: counts[state.value] for state in State}

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of all that is committed."""
        for group_id, entry in self._entries.items():
            for topic, partition, value in entry.offsets:
                yield group_id, topic, partition, value.offset

    # -- time

    def tick(self) -> None:
        """Do what is due in every group. Called by the timer."""
        self._timer_at = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            deadline, _, entry = heapq.heappop(self._heap)
            if entry.armed == deadline:
                entry.armed = NEVER
                try:
                    self._carry_out(entry, entry.group.tick(now))
                except Exception:  # a fault in one group must not stop the clock of all
                    _log.exception("group %r could not do what was due", entry.group.group_id)
                self._drop_untouched(entry)
        self._set_timer()

    async def expire(self) -> None:
        """Delete expired offsets, and groups that have neither members nor offsets."""
        retention_ms = self.settings.offsets_retention_minutes * 60_000
        for index, entry in enumerate(list(self._entries.values())):
            if index % _EXPIRY_SLICE == _EXPIRY_SLICE - 1:
                await asyncio.sleep(0)
            group = entry.group
            if self._refusal or self._entries.get(group.group_id) is not entry:
                continue
            gone = entry.offsets.expired(group, self._wall(), retention_ms)
            left = len(entry.offsets.keys()) - len(gone)
            if not left and group.state is State.EMPTY and not group.roster.pending:
                _log.info("group %r has no members and no offsets left: deleted", group.group_id)
                self._delete_group(entry, _ignore)
            elif gone:
                _log.info("%d offsets of group %r expired", len(gone), group.group_id)
                self._delete(entry, gone, _ignore)

    async def _confirm(self) -> None:
        """Nobody can tell who the other brokers are: storage says whether each partition is still led here."""
        if not self._engine.brokers_fresh:
            self._partitions.confirm()

    # -- inside

    def _find(
        self, group_id: str, missing: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
    ) -> tuple[_Entry, ErrorCode] | tuple[None, ErrorCode]:
        if refusal := self.refusal_of(group_id):
            return None, refusal
        if not group_id and missing == ErrorCode.UNKNOWN_MEMBER_ID:  # only offsets may be kept under an empty id
            return None, ErrorCode.INVALID_GROUP_ID
        entry = self._entries.get(group_id)
        return (None, missing) if entry is None else (entry, ErrorCode.NONE)

    def _add(self, group_id: str) -> _Entry:
        partition = self._log.partition_of(group_id)
        group = ClassicGroup(group_id, self.settings, self._clock())
        entry = _Entry(group, partition, self._partitions.term(partition))
        self._entries[group_id] = entry
        return entry

    def _is_current(self, entry: _Entry) -> bool:
        """Whether the entry is of the term in which its partition is led now."""
        return entry.term == self._partitions.term(entry.partition)

    def _drop_untouched(self, entry: _Entry) -> None:
        """Forget a group that was made for a request that then failed."""
        group = entry.group
        if group.untouched and not entry.offsets and self._entries.get(group.group_id) is entry:
            del self._entries[group.group_id]

    def _carry_out(self, entry: _Entry, effects: Sequence[Effect], done: Done | None = None) -> None:
        """Answer and write as the machine said; `done` hears of the last write."""
        for effect in effects:
            if isinstance(effect, Reply):
                _answer(effect.token, effect.result)
            else:
                self._write_group(entry, effect.ticket, effect.value, done)
        group = entry.group
        if group.state is not entry.logged:
            entry.logged = group.state
            quiet = group.state in (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE)
            _log.log(
                logging.DEBUG if quiet else logging.INFO,
                "group %r: %s, generation %d, %d members",
                group.group_id,
                group.state.value,
                group.generation,
                len(group.roster),
            )
        deadline = group.next_deadline
        if deadline < entry.armed:
            entry.armed = deadline
            heapq.heappush(self._heap, (deadline, next(self._serial), entry))
            self._set_timer()

    def _write_group(self, entry: _Entry, ticket: int, value: GroupMetadataValue, done: Done | None) -> None:
        key = encode_key(GroupMetadataKey(entry.group.group_id))

        def written(code: ErrorCode) -> None:
            if self._is_current(entry):
                self._carry_out(entry, entry.group.persisted(ticket, code, self._clock()))
            if done is not None:
                done(code)

        try:
            record = encode_group_value(value)
        except StateRecordError as error:
            _log.warning("group %r cannot be stored: %s", entry.group.group_id, error)
            asyncio.get_running_loop().call_soon(written, error.code)
        else:
            self._log.write(entry.partition, [(key, record)], written)

    def _delete(self, entry: _Entry, keys: Sequence[Key], done: Done) -> None:
        """Write tombstones for offsets."""

        def written(code: ErrorCode) -> None:
            if not code:
                for key in keys:
                    entry.offsets.put(*key, None)
            done(code)

        self._log.write(entry.partition, _tombstones(entry.group.group_id, keys), written)

    def _delete_group(self, entry: _Entry, done: Done) -> None:
        """Write tombstones for an empty group and all that it committed. Nobody finds it meanwhile."""
        group = entry.group
        group.kill()
        del self._entries[group.group_id]

        def written(code: ErrorCode) -> None:
            if code:
                self._restore(entry)
            done(code)

        records = _tombstones(group.group_id, entry.offsets.keys())
        records.append((encode_key(GroupMetadataKey(group.group_id)), None))
        self._log.write(entry.partition, records, written)

    def _restore(self, entry: _Entry) -> None:
        """A group's deletion failed: it is back, or what it committed goes to the one that took its name.

        Not where the partition was lost meanwhile: whoever leads it next reads from its log whether the group is there.
        """
        if not self._is_current(entry):
            return
        newer = self._entries.get(entry.group.group_id)
        if newer is None:
            entry.group.revive()
            self._entries[entry.group.group_id] = entry
            return
        for topic, partition, value in entry.offsets:
            if newer.offsets.get(topic, partition) is None:
                newer.offsets.put(topic, partition, value)

    def _topic_changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        if old is not None and new is None and not self._refusal:
            for entry in self._entries.values():
                keys = entry.offsets.keys(old.name)
                if keys:
                    self._delete(entry, keys, _ignore)

    def _forget_missing_topics(self, entries: Iterable[_Entry]) -> None:
        """Topics that were deleted just before a crash, whose tombstones were not written any more."""
        for entry in entries:
            gone: list[Key] = []
            for topic, partition, value in entry.offsets:
                found = self._topics.get(topic)
                if found is None and self._topics.is_unsure(topic):
                    continue
                if found is None or (value.topic_id is not None and found.topic_id != value.topic_id):
                    gone.append((topic, partition))
            if gone:
                self._delete(entry, gone, _ignore)

    def _set_timer(self) -> None:
        if not self._heap or self._heap[0][0] >= self._timer_at or self._refusal:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._heap[0][0]
        delay = max(self._timer_at - self._clock(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self.tick)


def _answer(token: Any, result: Any) -> None:
    """Answer a request, unless its connection went away."""
    if not isinstance(token, asyncio.Future):
        raise InternalError(f"{token!r} is no future")
    if not token.done():
        token.set_result(result)


def _tombstones(group_id: str, keys: Iterable[Key]) -> list[KeyValue]:
    return [(encode_key(OffsetCommitKey(group_id, topic, partition)), None) for topic, partition in keys]


def _passes(error: BaseException) -> bool:
    """Whether the same request may succeed later: as clients see it."""
    return isinstance(error, KopError) and error.code in _PASSING


def _ignore(code: ErrorCode) -> None:
    """Nobody waits for it; a failure was logged and it is tried again at the next occasion."""


def _warn_of(key: UnknownKey) -> None:
    _log.warning("a record of kind %d in the offsets topic is not known here: left as it is", key.kind)
