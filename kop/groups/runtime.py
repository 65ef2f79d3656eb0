"""The group coordinator: groups and their committed offsets, kept in memory and in the topic `__offsets`.

Owns: which groups there are, carrying out the effects of their state machines, and what is asked of all groups.
Must not know: the wire, versions of requests, sockets, how a state machine decides.

- Nothing is answered before the records that the answer stands for are durable.
- Methods are called on the event loop's thread. They return a result, or a future of one where something has to happen
  first; a future that nobody waits for any more may be cancelled, the group goes on as if the answer was sent.
- Offsets that a transaction commits are pending until it ends. The end is one batch for each partition of `__offsets`,
  whatever groups it holds. It waits until nothing of its keys is being written: only then is it known what wins.
- Deadlines go by a clock that never goes back; what is written goes by the wall clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from prometheus_client.core import Metric

from kop import clock
from kop.background import repeat
from kop.cluster.client_topics import OFFSETS_TOPIC, ClientTopics
from kop.coordination.coordinator import Coordinator
from kop.coordination.deadlines import Deadlines
from kop.coordination.failed_writes import answer_for
from kop.coordination.ownership import LeaderChoice
from kop.coordination.state_log import StateTopic, Written
from kop.errors import ErrorCode, InternalError, StateRecordError
from kop.groups.classic.group import ClassicGroup, State
from kop.groups.classic.messages import (
    Description,
    Effect,
    JoinRequest,
    JoinResult,
    LeavingMember,
    LeftMember,
    Reply,
    SyncRequest,
    SyncResult,
)
from kop.groups.classic.roster import new_member_id
from kop.groups.offsets import Commit, GroupOffsets, Key, OffsetStore
from kop.groups.settings import GroupSettings
from kop.metrics import gauge_family, gauge_value
from kop.storage.base import Engine, TopicInfo
from kop.turns import with_pauses
from kop.wire.state import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    PendingOffsetKey,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    decode_pending_value,
    encode_group_value,
    encode_key,
    fits,
)

T = TypeVar("T")
ResultOrFuture: TypeAlias = T | asyncio.Future[T]
"""The type of a result, or of the future of one."""
Loaded: TypeAlias = dict[str, tuple[ClassicGroup, GroupOffsets]]
"""The type of what a partition of `__offsets` holds: its groups and their offsets, by the groups' ids."""

KEPT_GROUPS: Final = "__kop."
"""The prefix of groups in which kop's own tools keep their progress (`__kop.spark.*`): their offsets never expire."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class _GroupEntry:
    """A group's state machine with its offsets and its partition of `__offsets`."""

    group: ClassicGroup
    partition: int
    term: int
    """The term of the partition (`Ownership.term`). In another term this entry is void."""
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    logged: State = State.EMPTY

    def __repr__(self) -> str:
        return f"group {self.group.group_id!r}"


@dataclass(slots=True, eq=False)
class TransactionGuard:
    """A watch over one transaction: it tells if that may have ended while storage was asked if it is open."""

    partition: int
    """The partition of `__offsets`."""
    term: int
    producer_id: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class GroupsSnapshot:
    """The numbers of the groups that this broker coordinates, for a status page."""

    by_state: Mapping[str, int]
    """The number of groups in each state that a group can be seen in."""
    pending_offsets: int
    """The number of offsets that wait for the ends of their transactions."""
    waiting_for: str | None
    """One line for an operator about groups that are not served yet, and why; None if all are served."""


class GroupCoordinator(Coordinator[Loaded]):
    """The coordinator of all groups of the classic protocol. Call `start` once; until it has ended all groups are being
    loaded.
    """

    def __init__(
        self,
        engine: Engine,
        settings: GroupSettings | None = None,
        *,
        clock: Callable[[], int] | None = None,
        wall: Callable[[], int] | None = None,
        leader_choice: LeaderChoice | None = None,
    ) -> None:
        """`clock` and `wall` give milliseconds since the epoch; the former never goes back.

        Without a `leader_choice` this broker coordinates all groups.
        """
        topics = ClientTopics(engine)
        of_clocks = {
            "canonical_name": topics.canonical_name,
            "wall_time": lambda now: now + self._wall() - self._clock(),
        }
        self.settings = (settings or GroupSettings()).model_copy(update=of_clocks)
        super().__init__(engine, _state_topic(self.settings), clock=clock, wall=wall, leader_choice=leader_choice)
        self._engine = engine
        self._topics = topics
        self._offset_store = OffsetStore(self.state_log, self._topics, self._wall)
        self.deadlines = Deadlines[_GroupEntry](self._clock, self._due)
        """The time at which each group next has something to do without a request, such as ending a session."""
        self._entries: dict[str, _GroupEntry] = {}
        self._producers: dict[tuple[int, int], set[_GroupEntry]] = {}
        """The groups that may hold pending offsets, by partition of `__offsets` and producer id."""
        self._guards: dict[tuple[int, int], set[TransactionGuard]] = {}
        """The watches over transactions, by partition of `__offsets` and producer id."""
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        """The ends of transactions that wait until offsets are no longer being written, by partition of `__offsets`."""
        self._keys_read = 0
        self._expiry: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Make or open the topic `__offsets` and load the groups of the partitions that this broker coordinates.

        Time limits and errors are those of `Ownership.start`.
        """
        began = clock.monotonic()
        self._engine.topics.on_change(self._topic_changed)
        await self.ownership.start()
        elapsed = (clock.monotonic() - began) * 1000
        _log.info("%d groups loaded from %d keys in %.0f ms", len(self._entries), self._keys_read, elapsed)
        interval = self.settings.offsets_retention_check_interval_ms / 1000
        self._expiry = asyncio.get_running_loop().create_task(
            repeat("the expiry of offsets", self.expire, every=interval)
        )

    async def _load(self, partition: int) -> Loaded:
        """Read a partition of `__offsets` and return its groups."""
        values: dict[str, GroupMetadataValue] = {}
        offsets: dict[str, GroupOffsets] = {}
        for raw_key, raw_value in (await self.state_log.read(partition)).items():
            self._keys_read += 1
            if raw_value is None:
                continue
            key = decode_key(raw_key)
            if isinstance(key, OffsetCommitKey):
                of_group = offsets.setdefault(key.group, GroupOffsets())
                of_group.put(key.topic, key.partition, decode_offset_value(raw_value))
            elif isinstance(key, PendingOffsetKey):
                of_group = offsets.setdefault(key.group, GroupOffsets())
                of_group.put_pending(key.topic, key.partition, key.producer_id, decode_pending_value(raw_value))
            elif isinstance(key, GroupMetadataKey):
                values[key.group] = decode_group_value(raw_value)
            else:
                _warn_of(key)
        await self._topics.find({topic for of_group in offsets.values() for topic in of_group.topics})
        of_missing = {key for of_group in offsets.values() for key in self._offset_store.of_missing_topics(of_group)}
        if of_missing:  # `_install` deletes these offsets
            await self._topics.look_again({topic for topic, _ in of_missing})
        now = self._clock()
        groups: Loaded = {}
        for group_id in values.keys() | offsets.keys():
            value = values.get(group_id)
            if value is None:
                group = ClassicGroup(group_id, self.settings, now)
            else:
                group = ClassicGroup.load(group_id, value, self.settings, now)
            groups[group_id] = group, offsets.get(group_id) or GroupOffsets()
        return groups

    def _install(self, partition: int, groups: Loaded) -> None:
        """Serve the groups that were read from a partition, begin their sessions anew, and delete the offsets of topics
        that do not exist any more.
        """
        term, now = self.ownership.term(partition), self._clock()
        entries = [_GroupEntry(group, partition, term, offsets) for group, offsets in groups.values()]
        for entry in entries:
            self._entries[entry.group.group_id] = entry
            self._note_producers(entry)
            self._carry_out(entry, entry.group.resume(now))
        for entry in entries:
            if missing := self._offset_store.of_missing_topics(entry.offsets):
                self._delete_offsets(entry, missing, _ignore)

    def _unload(self, partition: int) -> None:
        """Drop the groups of a partition that another broker coordinates; requests that wait are answered
        NOT_COORDINATOR, so that clients go there.
        """
        for group_id, entry in list(self._entries.items()):
            if entry.partition == partition:
                del self._entries[group_id]
                self.deadlines.disarm(entry)
                for effect in entry.group.unload():
                    if isinstance(effect, Reply):
                        _answer(effect.token, effect.result)
        for place in [place for place in self._producers if place[0] == partition]:
            del self._producers[place]
        self._wake(partition)

    async def stop(self) -> None:
        """Answer all waiting requests, write what is queued, and take no further requests."""
        self.ownership.close()
        self.deadlines.stop()
        for entry in self._entries.values():
            self._carry_out(entry, entry.group.unload())
        for partition in list(self._waiting):
            self._wake(partition)
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        await self.ownership.stop()

    # -- members

    def join(self, group_id: str, request: JoinRequest) -> ResultOrFuture[JoinResult]:
        """Handle JoinGroup. The answer comes when the rebalance has its next generation, an error at once.

        UNKNOWN_SERVER_ERROR if no record can hold the names of the group and the member: such a group could not be
        deleted, nor shown to clients that know no longer names.
        """
        error = self.refusal_of(group_id)
        if not error and not group_id:
            error = ErrorCode.INVALID_GROUP_ID
        if not error and not _can_be_stored(group_id, request):
            error = ErrorCode.UNKNOWN_SERVER_ERROR
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

    def sync(self, group_id: str, request: SyncRequest) -> ResultOrFuture[SyncResult]:
        """Handle SyncGroup. The answer comes when the leader's assignment is durable, at once if it is already, and so
        does an error.
        """
        entry, error = self._find(group_id)
        if entry is None:
            return SyncResult(error)
        token: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self._carry_out(entry, entry.group.sync(token, request, self._clock()))
        return token.result() if token.done() else token

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Handle Heartbeat: prolong the member's session, and return NONE or the error. While groups are being loaded,
        or it is in doubt if this broker leads them, each heartbeat is accepted, so that members stay.
        """
        entry, error = self._find(group_id)
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            if (in_doubt := self._entries.get(group_id)) is not None:
                in_doubt.group.heartbeat(member_id, instance_id, generation, self._clock())
            return ErrorCode.NONE
        if entry is None:
            return error
        return entry.group.heartbeat(member_id, instance_id, generation, self._clock())

    def leave(
        self, group_id: str, leaving: Sequence[LeavingMember]
    ) -> ResultOrFuture[tuple[ErrorCode, tuple[LeftMember, ...]]]:
        """Handle LeaveGroup: return one error for all, or the answer for each member.

        The answer comes when the record of a group that became empty is durable.
        """
        entry, error = self._find(group_id)
        if entry is None:
            if error != ErrorCode.UNKNOWN_MEMBER_ID:
                return error, ()
            return ErrorCode.NONE, tuple(LeftMember(member.member_id, member.instance_id, error) for member in leaving)
        left, effects = entry.group.leave(leaving, self._clock())
        if all(isinstance(effect, Reply) for effect in effects):
            self._carry_out(entry, effects)
            self._drop_untouched(entry)
            return ErrorCode.NONE, left
        answer: asyncio.Future[tuple[ErrorCode, tuple[LeftMember, ...]]] = asyncio.get_running_loop().create_future()
        self._carry_out(entry, effects, lambda code: _answer(answer, (answer_for(code), () if code else left)))
        return answer

    # -- committed offsets

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, *, says_not_found: bool
    ) -> ErrorCode:
        """Return NONE if a group's member may commit offsets now, which prolongs its session, else the error.
        `says_not_found`: the client knows GROUP_ID_NOT_FOUND (version 9 and up).
        """
        entry = self._entries.get(group_id)
        if entry is not None:
            refusal = self.ownership.refusal_of_partition(entry.partition)
            return refusal or entry.group.check_commit(member_id, instance_id, generation, self._clock())
        if refusal := self.refusal_of(group_id):
            return refusal
        if generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if says_not_found else ErrorCode.ILLEGAL_GENERATION

    def commit(
        self,
        group_id: str,
        commits: Sequence[Commit],
        answer: Callable[[ErrorCode], None],
        *,
        retention_ms: int = -1,
    ) -> ErrorCode:
        """Commit offsets after `check_commit`, all of them or none; `answer` is called later, when they are durable.

        `answer` gets an error if they could not be written, and is never called before this has returned.
        `retention_ms`: how long to keep them whatever the broker's setting is, -1 for that setting.

        If nothing is written, returns an error and never calls `answer`: COORDINATOR_LOAD_IN_PROGRESS while the end of
        a transaction waits for earlier commits of the same partition, UNKNOWN_SERVER_ERROR if no record can hold the
        offsets.
        """
        entry = self._entries.get(group_id) or self._add(group_id)
        if entry.offsets.ending and self._is_ending(entry, commits):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        written = self._answer_when_written(entry, answer)
        try:
            self._offset_store.commit(entry.partition, group_id, entry.offsets, commits, retention_ms, written)
        except StateRecordError as error:
            self._drop_untouched(entry)
            return error.code
        return ErrorCode.NONE

    def _answer_when_written(self, entry: _GroupEntry, answer: Callable[[ErrorCode], None]) -> Written:
        """Return the callback for the end of a commit's write: it calls `answer`, and wakes the ends of transactions
        that wait for the write.
        """

        def written(code: ErrorCode) -> None:
            if code:
                self._drop_untouched(entry)
            self._wake(entry.partition)
            answer(answer_for(code))

        return written

    def offsets(self, group_id: str) -> GroupOffsets | None:
        """Return the committed offsets of a group; None if there is no such group."""
        entry = self._entries.get(group_id)
        return None if entry is None else entry.offsets

    def delete_offsets(
        self, group_id: str, keys: Sequence[Key]
    ) -> ResultOrFuture[tuple[ErrorCode, dict[Key, ErrorCode]]]:
        """Handle OffsetDelete: return one error for all, or one for each key: GROUP_SUBSCRIBED_TO_TOPIC if members
        consume the topic. It is no error to delete what does not exist. The answer comes when the tombstones are
        durable.
        """
        entry, error = self._find(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if entry is None:
            return error, {}
        group = entry.group
        if group.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, {}
        if group.state is not State.EMPTY and group.protocol_type != "consumer":
            return ErrorCode.NON_EMPTY_GROUP, {}
        known = set(entry.offsets.keys())
        errors = {
            key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(key[0]) else ErrorCode.NONE
            for key in keys
        }
        gone = [key for key, code in errors.items() if not code and key in known]
        if not gone:
            return ErrorCode.NONE, errors
        answer: asyncio.Future[tuple[ErrorCode, dict[Key, ErrorCode]]] = asyncio.get_running_loop().create_future()
        self._delete_offsets(entry, gone, lambda code: _answer(answer, (answer_for(code), {} if code else errors)))
        return answer

    # -- offsets in transactions

    def check_commit_in_transaction(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return NONE if a transaction may commit offsets for this member of the group, else the error. Old clients
        name no member and no generation (-1).
        """
        if refusal := self.refusal_of(group_id):
            return refusal
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        entry = self._entries.get(group_id)
        if entry is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        return entry.group.check_commit_in_transaction(member_id, instance_id, generation)

    @contextmanager
    def guard_transaction(self, group_id: str, producer_id: int) -> Iterator[TransactionGuard]:
        """Yield a watch whose `ended` becomes true if the end of the producer's transaction begins during the block, in
        which the coordinator is asked if the transaction is open.

        The group's partition has to be served here (`refusal_of`).
        """
        partition = self.state_log.partition_of(group_id)
        guard = TransactionGuard(partition, self.ownership.term(partition), producer_id)
        guards = self._guards.setdefault((partition, producer_id), set())
        guards.add(guard)
        try:
            yield guard
        finally:
            guards.discard(guard)
            if not guards:
                self._guards.pop((partition, producer_id), None)

    def commit_in_transaction(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        commits: Iterable[Commit],
        guard: TransactionGuard | None = None,
        *,
        storage_transaction: bytes = b"",
    ) -> asyncio.Future[ErrorCode]:
        """Commit offsets with the producer's transaction, after `check_commit_in_transaction`; all of them or none.
        `storage_transaction`: the transaction's name in storage, empty if it has none.

        The future has NONE when they are durable, or the error; they are pending until `end_transaction`.
        INVALID_PRODUCER_EPOCH if an offset of a newer epoch is pending; INVALID_TXN_STATE if the transaction has ended
        under the `guard`. Errors otherwise as of `commit`.
        """
        partition = self.state_log.partition_of(group_id)
        place = partition, producer_id
        if guard is not None and guard.term != self.ownership.term(partition):
            return _future_of(ErrorCode.NOT_COORDINATOR)
        if guard is not None and guard.ended:
            return _future_of(ErrorCode.INVALID_TXN_STATE)
        if any(entry.offsets.newest_epoch(producer_id) > producer_epoch for entry in self._producers.get(place, ())):
            return _future_of(ErrorCode.INVALID_PRODUCER_EPOCH)
        entry = self._entries.get(group_id) or self._add(group_id)
        commits = list(commits)
        if entry.offsets.ending and self._is_ending(entry, commits):
            return _future_of(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        try:
            self._offset_store.commit_pending(
                partition,
                group_id,
                entry.offsets,
                producer_id,
                producer_epoch,
                storage_transaction,
                commits,
                self._answer_when_written(entry, lambda code: _answer(answer, code)),
            )
        except StateRecordError as error:
            self._drop_untouched(entry)
            return _future_of(error.code)
        self._producers.setdefault(place, set()).add(entry)
        return answer

    async def end_transaction(
        self,
        offsets_partitions: Collection[int],
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        storage_transaction: bytes = b"",
    ) -> ErrorCode:
        """Commit or drop what the producer's transaction holds in these partitions of `__offsets`.

        `producer_epoch` is that of the transaction's end: the epoch of its offsets, or the next one (KIP-890). Of each
        partition all is durable afterwards, or an error says that it has to be asked for again: to repeat it does no
        harm. INVALID_PRODUCER_EPOCH if offsets of a newer epoch are pending.

        `storage_transaction`: what storage calls the transaction. Offsets of another one stay pending: the end may come
        late, when the producer's next transaction has offsets of the same epoch.
        """
        codes = await asyncio.gather(
            *(
                self._end_in(partition, producer_id, producer_epoch, storage_transaction, commit)
                for partition in set(offsets_partitions)
            )
        )
        return next((code for code in codes if code), ErrorCode.NONE)

    @property
    def pending_offsets(self) -> int:
        """The number of offsets that wait for the ends of their transactions."""
        return sum(len(of_key) for entry in self._entries.values() for of_key in entry.offsets.pending.values())

    async def _end_in(
        self, partition: int, producer_id: int, producer_epoch: int, storage_transaction: bytes, commit: bool
    ) -> ErrorCode:
        if refusal := self.ownership.refusal_of_partition(partition):
            return refusal
        place = partition, producer_id
        term = self.ownership.term(partition)
        for guard in self._guards.get(place, ()):
            guard.ended = True
        while True:
            code, is_all = await self._end_some(place, term, producer_epoch, storage_transaction, commit)
            if code or is_all:
                return code

    async def _end_some(
        self, place: tuple[int, int], term: int, producer_epoch: int, storage_transaction: bytes, commit: bool
    ) -> tuple[ErrorCode, bool]:
        """Make one write of a transaction's end, after the writes of its keys that are under way. Return its error, and
        true if nothing is left to be ended. `place` is the partition of `__offsets` and the producer id, `term` that in
        which the end began.
        """
        partition, producer_id = place
        await self._wait_for_writes(place, term)
        self._forget_producer(place)  # where groups or topics of its offsets were deleted
        entries = [
            entry for entry in self._producers.get(place, ()) if entry.offsets.keys_of(producer_id, storage_transaction)
        ]
        if not entries and self.ownership.refusal_of_partition(partition, surely=True):
            await self.verify([partition])  # no write follows that would show whether this broker still leads
        refusal = self.ownership.refusal_of_partition(partition, surely=not entries)
        if not refusal and self.ownership.term(partition) != term:
            refusal = ErrorCode.NOT_COORDINATOR
        if refusal or not entries:
            return refusal, True
        newest = max(entry.offsets.newest_epoch(producer_id, storage_transaction) for entry in entries)
        if newest > producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, True
        if commit and 0 <= newest < producer_epoch - 1:
            _log.warning(
                "offsets of producer %d of the epoch %d belong to no transaction that ends with the epoch %d: dropped",
                producer_id,
                newest,
                producer_epoch,
            )
        committed_epoch = newest if commit and newest >= producer_epoch - 1 else None
        ended = [
            (
                entry.group.group_id,
                entry.offsets,
                entry.offsets.ended(producer_id, committed_epoch, storage_transaction),
            )
            for entry in entries
        ]
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def written(code: ErrorCode) -> None:
            if not code:
                self._forget_producer(place)
            self._wake(partition)
            _answer(answer, answer_for(code))

        is_all = self._offset_store.end(partition, producer_id, ended, written)
        return await answer, is_all

    async def _wait_for_writes(self, place: tuple[int, int], term: int) -> None:
        """Wait until nothing is being written of the keys that the producer's transaction holds, or the term is over.

        No further commit of them begins meanwhile.
        """
        partition, producer_id = place
        while self.ownership.term(partition) == term and not self.ownership.closed:
            entries = self._producers.get(place, set())
            held = [(entry.offsets, key) for entry in entries for key in entry.offsets.keys_of(producer_id)]
            if not any(offsets.writing[key] for offsets, key in held):
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(partition, []).append(waiter)
            for offsets, key in held:
                offsets.ending[key] += 1
            try:
                await waiter
            finally:
                for offsets, key in held:
                    offsets.release(key)

    def _wake(self, partition: int) -> None:
        """Make the ends of transactions that wait for a write check again: a write has ended, or the partition was
        lost.
        """
        for waiter in self._waiting.pop(partition, ()):
            _answer(waiter, None)

    def _is_ending(self, entry: _GroupEntry, commits: Sequence[Commit]) -> bool:
        return any(entry.offsets.ending[commit.topic, commit.partition] for commit in commits)

    def _note_producers(self, entry: _GroupEntry) -> None:
        """Remember which producers have pending offsets in the group."""
        for producer_id in set[int]().union(*entry.offsets.pending.values()):
            self._producers.setdefault((entry.partition, producer_id), set()).add(entry)

    def _forget_producer(self, place: tuple[int, int]) -> None:
        """Forget the groups of a partition that hold no pending offset of a producer any more."""
        entries = {entry for entry in self._producers.get(place, ()) if entry.offsets.keys_of(place[1])}
        if entries:
            self._producers[place] = entries
        else:
            self._producers.pop(place, None)

    # -- administration

    def describe(self, group_id: str) -> Description | ErrorCode:
        """Return the group as DescribeGroups shows it, or the error code for which it cannot be shown."""
        entry, error = self._find(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        return self.refusal_of(group_id, surely=True) or (error if entry is None else entry.group.describe())

    def list(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """Return the groups in these states and of these types, in whatever case. An empty collection stands for
        all.
        """
        wanted = {state.lower() for state in states}
        if types and "classic" not in {name.lower() for name in types}:
            return []
        return [
            ListedGroup(group_id, entry.group.protocol_type or "", entry.group.state.value)
            for group_id, entry in self._entries.items()
            if not wanted or entry.group.state.value.lower() in wanted
        ]

    def delete(self, group_id: str) -> ResultOrFuture[ErrorCode]:
        """Handle DeleteGroups: delete one group with its offsets; NON_EMPTY_GROUP if it has members. The answer comes
        when the tombstones are durable.

        COORDINATOR_NOT_AVAILABLE while it is being deleted already, as for all requests that would change it meanwhile.
        """
        entry, error = self._find(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if entry is None:
            return error
        if entry.group.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if entry.group.state is not State.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._delete_group(entry, lambda code: _answer(answer, answer_for(code)))
        return answer

    # -- for pages and metrics

    def snapshot(self) -> GroupsSnapshot:
        """Return, for a status page, how many groups are in which state, how many offsets are pending, and what is
        waited for.
        """
        counts = Counter(entry.group.state.value for entry in self._entries.values())
        by_state = {state.value: counts[state.value] for state in State}
        return GroupsSnapshot(by_state, self.pending_offsets, self.waiting_for)

    def collect(self) -> Iterator[Metric]:
        """Yield metrics of the numbers of groups, their offsets and their lag, for a scrape."""
        now = self.snapshot()
        groups = gauge_family("kop_groups", "Consumer groups by state.", ["state"])
        for state, count in now.by_state.items():
            groups.add_metric([state], count)
        yield groups
        pending = now.pending_offsets
        yield gauge_value("kop_group_pending_offsets", "Offsets that wait for the end of their transaction.", pending)
        labels = ["group", "topic", "partition"]
        committed = gauge_family("kop_group_committed_offset", "Committed offset.", labels)
        lag = gauge_family("kop_group_lag", "Records between the committed offset and the high watermark.", labels)
        for group_id, name, index, offset in self.committed():
            topic = self._topics.get(name)
            log = None if topic is None else self._topics.log(topic.topic_id, index)
            if log is None:
                continue
            values = [group_id, name, str(index)]
            committed.add_metric(values, offset)
            if log.attached:
                lag.add_metric(values, max(0, log.high_watermark - offset))
        yield committed
        yield lag

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield group, topic, partition and offset of every committed offset."""
        for group_id, entry in self._entries.items():
            for topic, partition, value in entry.offsets:
                yield group_id, topic, partition, value.offset

    # -- time

    def expire_sessions(self, group_id: str) -> int:
        """End the session of every member of a group now, as if none had sent a heartbeat, but for members whose
        JoinGroup or SyncGroup waits; return how many ended, 0 if there is no such group.
        """
        entry = self._entries.get(group_id)
        if entry is None:
            return 0
        ended, effects = entry.group.expire_sessions(self._clock())
        self._carry_out(entry, effects)
        self._drop_untouched(entry)
        return ended

    def _due(self, entry: _GroupEntry, now: int) -> None:
        if self._entries.get(entry.group.group_id) is not entry:
            return
        try:
            self._carry_out(entry, entry.group.tick(now))
        finally:
            self._drop_untouched(entry)

    async def expire(self) -> None:
        """Delete the offsets that have expired, except those of kop's own tools (groups `__kop.*`), and the groups that
        have neither members nor offsets. Both are logged.
        """
        retention_ms = self.settings.offsets_retention_minutes * 60_000
        async for entry in with_pauses(list(self._entries.values())):
            group = entry.group
            if self.ownership.closed or self._entries.get(group.group_id) is not entry:
                continue
            kept = group.group_id.startswith(KEPT_GROUPS)
            expired = [] if kept else entry.offsets.expired(group, self._wall(), retention_ms)
            left = len(entry.offsets.keys()) - len(expired)
            if not left and group.is_vacant:
                _log.info("group %r has no members and no offsets left: deleted", group.group_id)
                self._delete_group(entry, _ignore)
            elif expired:
                _log.info("%d offsets of group %r expired", len(expired), group.group_id)
                self._delete_offsets(entry, expired, _ignore)

    # -- inside

    def _find(
        self, group_id: str, missing: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
    ) -> tuple[_GroupEntry, ErrorCode] | tuple[None, ErrorCode]:
        if refusal := self.refusal_of(group_id):
            return None, refusal
        if not group_id and missing == ErrorCode.UNKNOWN_MEMBER_ID:  # only offsets may be kept under an empty id
            return None, ErrorCode.INVALID_GROUP_ID
        entry = self._entries.get(group_id)
        return (None, missing) if entry is None else (entry, ErrorCode.NONE)

    def _add(self, group_id: str) -> _GroupEntry:
        partition = self.state_log.partition_of(group_id)
        group = ClassicGroup(group_id, self.settings, self._clock())
        entry = _GroupEntry(group, partition, self.ownership.term(partition))
        self._entries[group_id] = entry
        return entry

    def _is_current(self, entry: _GroupEntry) -> bool:
        """Return true if the entry's partition is still led in the term in which the entry was loaded or made."""
        return entry.term == self.ownership.term(entry.partition)

    def _drop_untouched(self, entry: _GroupEntry) -> None:
        """Forget a group that has no member, no generation and no offset: it was made for a request that then
        failed.
        """
        group = entry.group
        if group.untouched and not entry.offsets and self._entries.get(group.group_id) is entry:
            del self._entries[group.group_id]

    def _carry_out(self, entry: _GroupEntry, effects: Sequence[Effect], written: Written | None = None) -> None:
        """Carry out the effects of a group's state machine: answer requests and write records; `written` is called at
        the end of each write. Log a new state of the group, and set its deadline.
        """
        for effect in effects:
            if isinstance(effect, Reply):
                _answer(effect.token, effect.result)
            else:
                self._write_group(entry, effect.ticket, effect.value, written)
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
        self.deadlines.arm(entry, group.next_deadline)

    def _write_group(self, entry: _GroupEntry, ticket: int, value: GroupMetadataValue, written: Written | None) -> None:
        key = encode_key(GroupMetadataKey(entry.group.group_id))

        def persisted(code: ErrorCode) -> None:
            if self._is_current(entry):
                self._carry_out(entry, entry.group.persisted(ticket, code, self._clock()))
            if written is not None:
                written(code)

        try:
            record = encode_group_value(value)
        except StateRecordError as error:
            _log.warning("group %r cannot be stored: %s", entry.group.group_id, error)
            asyncio.get_running_loop().call_soon(persisted, error.code)
        else:
            self.state_log.write(entry.partition, [(key, record)], persisted)

    def _delete_offsets(self, entry: _GroupEntry, keys: Sequence[Key], written: Written) -> None:
        def deleted(code: ErrorCode) -> None:
            self._wake(entry.partition)
            written(code)

        self._offset_store.delete(entry.partition, entry.group.group_id, entry.offsets, keys, deleted)

    def _delete_group(self, entry: _GroupEntry, written: Written) -> None:
        """Write tombstones for an empty group and all that it committed; call `written` with the outcome.

        Until they are durable the group is dead: it takes no member and no commit, and its offsets are still told. If
        they cannot be written, it is empty again.
        """
        group = entry.group
        group.kill()

        def deleted(code: ErrorCode) -> None:
            if code:
                group.revive()
                self._drop_untouched(entry)
            elif self._entries.get(group.group_id) is entry:
                del self._entries[group.group_id]
            self._wake(entry.partition)
            written(code)

        tombstone = (encode_key(GroupMetadataKey(group.group_id)), None)
        self._offset_store.delete(
            entry.partition, group.group_id, entry.offsets, entry.offsets.keys(), deleted, [tombstone]
        )

    def _topic_changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        if old is not None and new is None and not self.ownership.closed:
            for entry in self._entries.values():
                keys = entry.offsets.keys(old.name)
                if keys:
                    self._delete_offsets(entry, keys, _ignore)


def _state_topic(settings: GroupSettings) -> StateTopic:
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(settings.offsets_topic_segment_bytes),
    }
    return StateTopic(OFFSETS_TOPIC, settings.offsets_topic_num_partitions, configs)


def _can_be_stored(group_id: str, request: JoinRequest) -> bool:
    """Return true if records have room for the names of a group, of a member that asks to join it, and of the member's
    protocols.
    """
    member_id = request.member_id or new_member_id(request.client_id, request.instance_id)
    names = (group_id, request.protocol_type, member_id, request.client_id, request.instance_id or "")
    return all(map(fits, names)) and all(fits(name) for name, _ in request.protocols)


def _answer(token: Any, result: Any) -> None:
    """Set the result of a request's future, unless it was cancelled because the client's connection went away."""
    if not isinstance(token, asyncio.Future):
        raise InternalError(f"{token!r} is no future")
    if not token.done():
        token.set_result(result)


def _future_of(code: ErrorCode) -> asyncio.Future[ErrorCode]:
    """Return a future that has this result already."""
    future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    future.set_result(code)
    return future


def _ignore(code: ErrorCode) -> None:
    """Ignore the result of a write that nobody waits for. A failure was logged, and the same is written again later."""


def _warn_of(key: UnknownKey) -> None:
    _log.warning("a record of kind %d in the topic %s is not known here: left as it is", key.kind, OFFSETS_TOPIC)
