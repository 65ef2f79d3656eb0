"""The partitions of a state topic that this broker coordinates: taking them over, serving them, letting them go.

Owns: the state of each partition, what to answer for a partition that is not served, terms, doubt, and when a partition
that was lost or refused is tried again.
Must not know: what the partitions hold. Its user loads a partition, puts what it loaded in force, and unloads it.

A partition is taken over when the live brokers' choice falls on this one: it becomes the only writer of the log, by
which it has fenced whoever was it before, and reads the log to its end. What the former one had not finished has failed
then. A broker that has lost a partition to another asks for it again only after a pause that grows: two brokers that
see different live brokers must not take it from each other in turns.

Each take-over is a term of its own. What was read or begun in one term means nothing in the next: another broker may
have written in between.

A partition is in doubt while storage has not said for some seconds that this broker still leads it. What is written
then finds out by itself; what is answered from memory needs `verify` first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

from kop.background import repeat, retried
from kop.coordination.state_log import StateLog, passes
from kop.errors import ErrorCode, KopError
from kop.storage.base import Brokers

FIRST_PAUSE_SECONDS = 1.0
"""The pause in seconds before a partition that was lost or refused is tried again. Each further pause is twice as
long.
"""
LONGEST_PAUSE_SECONDS = 30.0
"""The longest pause, in seconds, before a partition that was lost or refused is tried again."""
FIRST_LOAD_SECONDS = 15.0
"""The seconds that `start` waits for the partitions of this broker. Those not loaded by then are loaded in the
background.
"""
SILENT_SECONDS = 2.0
"""The seconds that `start` waits for them before a log line says so."""
CONFIRM_SECONDS = 0.5
"""The seconds between two questions to storage, while the live brokers are not known, if this broker still leads what
it serves.
"""
_OPEN_SECONDS: Final = 60.0
_MOST_NAMED: Final = 5
MOVES_SECONDS = 5.0
"""The seconds from the first of several partitions that is let go or lost until one log line tells of all: by then the
live brokers' choice is known, and those that were lost by mistake are taken back.
"""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class LeaderChoice(Protocol):
    """The choice among the live brokers for each partition (implemented by `kop.cluster.cluster_view`)."""

    def is_leader(self, topic_id: UUID, partition: int) -> bool:
        """Return true if the partition is given to this broker."""

    def leader(self, topic_id: UUID, partition: int) -> int:
        """Return the id of the broker that the partition is given to."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of the live brokers, and after some seconds in which nobody could tell
        whether there was one.
        """


class Ownership(Generic[T]):
    """The state of every partition of a state topic. Call `start` once, and `stop` at the end.

    `load` reads a partition and keeps nothing of it itself; `install` puts what was read in force, unless the lead was
    lost meanwhile; `unload` ends what is in force.
    """

    def __init__(
        self,
        log: StateLog,
        brokers: Brokers,
        leader_choice: LeaderChoice | None,
        load: Callable[[int], Awaitable[T]],
        install: Callable[[int, T], None],
        unload: Callable[[int], None],
    ) -> None:
        """Without a `leader_choice` this broker is alone and coordinates every partition."""
        self._log = log
        self._brokers = brokers
        self._leader_choice = leader_choice
        self._load = load
        self._install = install
        self._unload = unload
        self.closed = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        """The error for every partition before the topic is open, and after `close`; NONE in between, if each has its
        own.
        """
        self._states: list[ErrorCode] = []
        """The error for requests about each partition; NONE for one that is served."""
        self._terms: list[int] = []
        self._failures: dict[int, str] = {}
        """The reason of the last failed attempt for each partition of this broker that is not served."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pauses: dict[int, float] = {}
        self._verifying: dict[int, asyncio.Task[None]] = {}
        self._untold: set[int] = set()
        """The partitions that were let go or lost and that no log line has told of yet."""
        self._confirming: asyncio.Task[None] | None = None
        self._stopped = False

    # -- what to answer

    @property
    def refusal_of_all(self) -> ErrorCode:
        """The error for a request about all keys; NONE if every partition of this broker is served."""
        if not self.closed and any(state and self._is_ours(partition) for partition, state in enumerate(self._states)):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.closed

    def refusal(self, key: str, *, surely: bool = False) -> ErrorCode:
        """Return NONE if the partition of `key` is served here, else the error for the client.

        `surely` is for an answer from memory, which must not be older than another broker's: it gets
        COORDINATOR_LOAD_IN_PROGRESS if the partition is in doubt, that is, if another broker may have taken it over.
        While the live brokers are not known every answer is handled so: a broker that was stopped for a while may have
        been replaced.
        """
        return self.closed or self.refusal_of_partition(self._log.partition_of(key), surely=surely)

    def refusal_of_partition(self, partition: int, *, surely: bool = False) -> ErrorCode:
        """Return NONE if this partition of the state topic is served here, else the error for the client as `refusal`
        does; NOT_COORDINATOR for a number that does not exist.
        """
        if self.closed:
            return self.closed
        if not 0 <= partition < len(self._states):
            return ErrorCode.NOT_COORDINATOR
        if (surely or not self._brokers.brokers_fresh) and self._is_in_doubt(partition):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._states[partition]

    def in_doubt(self, keys: Iterable[str]) -> set[int]:
        """Return those partitions of these keys that are served here and in doubt: another broker may have taken them
        over meanwhile. Empty before the topic is open, and after `close`.
        """
        partitions = () if self.closed else map(self._log.partition_of, keys)
        return set(filter(self._is_in_doubt, partitions))

    async def verify(self, partitions: Collection[int]) -> None:
        """Ask storage if this broker still leads these partitions. Those that another broker leads are unloaded; those
        about which storage does not answer stay in doubt.
        """
        await asyncio.gather(*map(self._log.verify_lead, partitions))

    def term(self, partition: int) -> int:
        """Return the number of the partition's term, which grows when it is taken over and when it is lost: work that
        began in another term is void.
        """
        return self._terms[partition]

    @property
    def waiting_for(self) -> str | None:
        """One line for operators about the partitions of this broker that are not served, and why; None if all are."""
        if self.closed == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return f"the topic {self._log.name} is being opened"
        missing = [index for index, state in enumerate(self._states) if state and self._is_ours(index)]
        if not missing:
            return None
        named = ", ".join(map(str, missing[:_MOST_NAMED])) + (", ..." if len(missing) > _MOST_NAMED else "")
        why = next((self._failures[index] for index in missing if index in self._failures), "they are being read")
        return f"{len(missing)} of {len(self._states)} partitions of {self._log.name} are not served: {named}: {why}"

    # -- life

    async def start(self) -> None:
        """Open the topic, making it if need be, and take over this broker's partitions. Returns when each of them is
        served or was refused once, or after 15 s.

        What is not served then is tried again in the background until it is. KopError if the topic cannot be opened; a
        failure that may pass is tried again for a minute.
        """
        await retried(f"open the topic {self._log.name}", self._log.open, passes=passes, seconds=_OPEN_SECONDS)
        self._states = [ErrorCode.NOT_COORDINATOR] * self._log.partitions
        self._terms = [0] * self._log.partitions
        self.closed = ErrorCode.NONE
        self._confirming = asyncio.get_running_loop().create_task(
            repeat(
                f"the question who leads {self._log.name}",
                self._confirm,
                every=CONFIRM_SECONDS,
                kind="the question who leads a partition",
            )
        )
        if self._leader_choice is not None:
            self._leader_choice.on_change(self._settle)
        self._settle()
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks.values()), timeout=SILENT_SECONDS)
            if late:
                _log.info("still starting: %s", self.waiting_for)
                await asyncio.wait(late, timeout=FIRST_LOAD_SECONDS - SILENT_SECONDS)
        if waiting_for := self.waiting_for:
            _log.warning("%s; trying again, all other partitions are served", waiting_for)

    def close(self) -> None:
        """Refuse every request with COORDINATOR_NOT_AVAILABLE from now on."""
        self.closed = ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def stop(self) -> None:
        """Refuse all requests, hand what is queued to storage, and give every partition's lead back."""
        self.close()
        self._stopped = True
        self._log.flush()
        tasks = [*self._tasks.values(), *self._verifying.values()]
        if self._confirming is not None:
            tasks.append(self._confirming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._log.resign(partition) for partition in range(len(self._states))))

    # -- doubt

    def _is_in_doubt(self, partition: int) -> bool:
        return not self._states[partition] and not self._log.leads(partition)

    async def _confirm(self) -> None:
        """Ask storage side by side about the lead of every partition that is served, while the live brokers are not
        known.

        So no partition is in doubt while storage answers. One that does not answer keeps no other from being asked
        again.
        """
        if self._brokers.brokers_fresh:
            return
        for partition, state in enumerate(self._states):
            if not state:
                self._ask_who_leads(partition)

    def _ask_who_leads(self, partition: int) -> None:
        if partition not in self._verifying and not self._stopped:
            task = asyncio.get_running_loop().create_task(self._log.verify_lead(partition))
            self._verifying[partition] = task
            task.add_done_callback(lambda done: self._asked(partition, done))

    def _asked(self, partition: int, task: asyncio.Task[None]) -> None:
        del self._verifying[partition]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "cannot find out whether this broker still leads %s-%d", self._log.name, partition, exc_info=error
            )

    # -- taking over and letting go

    def _is_ours(self, partition: int) -> bool:
        return self._leader_choice is None or self._leader_choice.is_leader(self._log.topic_id, partition)

    def _settle(self) -> None:
        """Take over or give up partitions according to the live brokers, and verify with storage that those that are
        served are still led by this broker.
        """
        for partition in range(len(self._states)):
            self._settle_one(partition)
            if self._is_in_doubt(partition):
                self._ask_who_leads(partition)

    def _settle_one(self, partition: int) -> None:
        if self._stopped:
            return
        ours, state = self._is_ours(partition), self._states[partition]
        if (task := self._tasks.get(partition)) is not None:
            if state == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and not ours:
                self._pauses.pop(partition, None)
                task.cancel()  # else it would take the lead from the broker that has it now, and give it up then
            return
        held = state != ErrorCode.NOT_COORDINATOR
        if ours == held:
            return
        task = asyncio.get_running_loop().create_task(self._give_up(partition) if held else self._try(partition))
        self._tasks[partition] = task
        task.add_done_callback(lambda _: self._settled(partition))

    def _settled(self, partition: int) -> None:
        del self._tasks[partition]
        self._settle_one(partition)

    async def _try(self, partition: int) -> None:
        pause = self._pauses.get(partition, 0.0)
        if pause:
            await asyncio.sleep(pause)
        self._pauses[partition] = min(max(pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        if not self._is_ours(partition):
            return
        try:
            await self._take_over(partition)
        except asyncio.CancelledError:
            await self._log.resign(partition)
            raise
        except Exception as error:
            self._failures[partition] = str(error) if isinstance(error, KopError) else repr(error)
            if not isinstance(error, KopError):
                _log.exception("cannot coordinate %s-%d; trying again", self._log.name, partition)
            else:
                again = error.told or pause > FIRST_PAUSE_SECONDS  # once, not at each try
                level = logging.DEBUG if again else logging.WARNING
                _log.log(level, "cannot coordinate %s-%d: %s; trying again", self._log.name, partition, error)
            await self._log.resign(partition)
        else:
            self._failures.pop(partition, None)

    async def _take_over(self, partition: int) -> None:
        self._states[partition] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._terms[partition] += 1
        term = self._terms[partition]
        try:
            await self._log.reopen()
            await self._log.lead(partition, lambda: self._lost(partition, term))
            loaded = await self._load(partition)
            if not self._log.leads(partition):  # reading took long: another broker may lead since
                await self._log.verify_lead(partition)
        except BaseException:
            if self._terms[partition] == term:
                self._end(partition)
            raise
        if self._terms[partition] == term:
            self._install(partition, loaded)
            self._states[partition] = ErrorCode.NONE
            asyncio.get_running_loop().call_later(LONGEST_PAUSE_SECONDS, self._pauses.pop, partition, None)

    async def _give_up(self, partition: int) -> None:
        self._tell_soon(partition)
        self._end(partition)
        await self._log.resign(partition)

    def _lost(self, partition: int, term: int) -> None:
        """Unload a partition at the loss of its lead: another broker is the writer now, or the log is gone. If the
        partition is still given to this broker, it is taken over again after a pause. Nothing is done if the loss is
        that of an older term.
        """
        if self._stopped or self._terms[partition] != term:
            return
        self._tell_soon(partition)
        self._end(partition)
        self._pauses.setdefault(partition, FIRST_PAUSE_SECONDS)
        if (task := self._tasks.get(partition)) is not None:
            task.cancel()  # the load belongs to a term that is over
        self._settle_one(partition)

    def _tell_soon(self, partition: int) -> None:
        if not self._untold:
            asyncio.get_running_loop().call_later(MOVES_SECONDS, self._tell)
        self._untold.add(partition)

    def _tell(self) -> None:
        """Log one line about the partitions that moved to other brokers, and one about those that were lost and are not
        back.
        """
        gone, self._untold = self._untold, set()
        if self._stopped:
            return
        moved = [partition for partition in gone if not self._is_ours(partition)]
        if moved and self._leader_choice is not None:
            leaders = {self._leader_choice.leader(self._log.topic_id, partition) for partition in moved}
            names = " and ".join(map(str, sorted(leaders)))
            _log.info(
                "leads of %d partitions of %s moved to broker%s %s",
                len(moved), self._log.name, "s" if len(leaders) > 1 else "", names,
            )  # fmt: skip
        lost = sorted(partition for partition in gone if self._is_ours(partition) and self._states[partition])
        if lost:
            why = next((self._failures[index] for index in lost if index in self._failures), "they are being read")
            _log.warning(
                "this broker does not coordinate %d partitions of %s that are given to it: %s%s: %s; trying again",
                len(lost), self._log.name, ", ".join(map(str, lost[:_MOST_NAMED])),
                ", ..." if len(lost) > _MOST_NAMED else "", why,
            )  # fmt: skip

    def _end(self, partition: int) -> None:
        if self._states[partition] != ErrorCode.NOT_COORDINATOR:
            self._states[partition] = ErrorCode.NOT_COORDINATOR
            self._terms[partition] += 1
            self._unload(partition)
