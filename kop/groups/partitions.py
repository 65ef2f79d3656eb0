"""Which partitions of `__offsets` this broker coordinates: taking them over, serving, letting them go.

Owns: the state of each partition, who may answer for its groups, when a lost or refused partition is tried again.
Must not know: groups; the coordinator loads and unloads them.

A partition is taken over when the live brokers' choice falls on this one: it becomes the only writer of the log, by
which it has fenced whoever was it before, and reads the log to its end. What the old one had not finished has failed
then. A broker that has lost a partition to another asks for it again only after a pause that grows: two that see
different brokers must not take it from each other in turns.

Each take-over is a term of its own. What was read or begun in one term means nothing in the next: another broker may
have written in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from kop.cluster.live_brokers import LiveBrokers
from kop.errors import ErrorCode, KopError
from kop.groups.log import GroupLog

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_FIRST_LOAD_SECONDS: Final = 15.0
"""So long `start` waits for what this broker coordinates; what is not loaded then is loaded behind it."""
_MOST_NAMED: Final = 5

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Partitions(Generic[T]):
    """The state of every partition.

    `load` reads a partition's groups and keeps nothing of them itself; `install` serves what it read, unless the lead
    was lost meanwhile; `unload` ends the groups that are served.
    """

    def __init__(
        self,
        log: GroupLog,
        live_brokers: LiveBrokers | None,
        load: Callable[[int], Awaitable[T]],
        install: Callable[[int, T], None],
        unload: Callable[[int], None],
    ) -> None:
        self._log = log
        self._live_brokers = live_brokers
        self._load = load
        self._install = install
        self._unload = unload
        self._states: list[ErrorCode] = []
        self._terms: list[int] = []
        self._failures: dict[int, str] = {}
        """Why a partition of ours is not served, from the last try."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pauses: dict[int, float] = {}
        self._stopped = False
        self._verifying: dict[int, asyncio.Task[None]] = {}

    def refusal(self, partition: int, *, surely: bool = False) -> ErrorCode:
        """NONE where the partition's groups are served, else what to answer.

        `surely`: from memory, which nobody else may have overtaken. What is written first finds that out by itself.
        """
        if surely and self.in_doubt(partition):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self._states[partition]

    def in_doubt(self, partition: int) -> bool:
        """It is served, and another one may have taken it over meanwhile: `verify` before answering from memory."""
        return not self._states[partition] and not self._log.leads(partition)

    async def verify(self, partition: int) -> None:
        """Ask storage. Where another one has it, its groups are gone from here afterwards."""
        await self._log.verify_lead(partition)

    def term(self, partition: int) -> int:
        """Grows when a partition is taken over and when it is lost: what was begun in another term is void."""
        return self._terms[partition]

    @property
    def loading(self) -> bool:
        """A partition of ours is not served yet."""
        return any(state and self._mine(partition) for partition, state in enumerate(self._states))

    @property
    def waiting_for(self) -> str | None:
        """The partitions of ours that are not served, and why, in one line; None where all are."""
        missing = [index for index, state in enumerate(self._states) if state and self._mine(index)]
        if not missing:
            return None
        named = ", ".join(map(str, missing[:_MOST_NAMED])) + (", ..." if len(missing) > _MOST_NAMED else "")
        why = next((self._failures[index] for index in missing if index in self._failures), "they are being read")
        return f"{len(missing)} of {len(self._states)} partitions of the offsets topic are not served: {named}: {why}"

    async def start(self) -> None:
        """Take over what is ours. Ends when each of these is served or was refused once, or after some seconds.

        What is not served then is tried again until it is.
        """
        self._states = [ErrorCode.NOT_COORDINATOR] * self._log.partitions
        self._terms = [0] * self._log.partitions
        if self._live_brokers is not None:
            self._live_brokers.on_change(self._settle)
        self._settle()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=_FIRST_LOAD_SECONDS)
        if waiting_for := self.waiting_for:
            _log.warning("%s; trying again, all other groups are served", waiting_for)

    async def stop(self) -> None:
        """Let everything go."""
        self._stopped = True
        tasks = [*self._tasks.values(), *self._verifying.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._log.resign(partition) for partition in range(len(self._states))))

    def _mine(self, partition: int) -> bool:
        if self._live_brokers is None:
            return True
        return self._live_brokers.is_leader(self._log.topic_id, partition)

    def _settle(self) -> None:
        """Bring each partition to what the live brokers say, and ask whether what is held is still held."""
        for partition in range(len(self._states)):
            self._settle_one(partition)
            if self.in_doubt(partition):
                self._ask_who_leads(partition)

    def confirm(self) -> None:
        """Ask storage whether what is served is still led, side by side, so that it is in doubt at no time.

        For a time in which members are not known. One that does not answer keeps no other from being asked again.
        """
        for partition, state in enumerate(self._states):
            if not state:
                self._ask_who_leads(partition)

    def _ask_who_leads(self, partition: int) -> None:
        if partition not in self._verifying and not self._stopped:
            task = self._verifying[partition] = asyncio.get_running_loop().create_task(self.verify(partition))
            task.add_done_callback(lambda done: self._asked(partition, done))

    def _asked(self, partition: int, task: asyncio.Task[None]) -> None:
        del self._verifying[partition]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("cannot tell who leads partition %d of the offsets topic", partition, exc_info=error)

    def _settle_one(self, partition: int) -> None:
        if self._stopped or partition in self._tasks:
            return
        held = self._states[partition] != ErrorCode.NOT_COORDINATOR
        if self._mine(partition) == held:
            return
        task = asyncio.get_running_loop().create_task(self._give_up(partition) if held else self._try(partition))
        self._tasks[partition] = task
        task.add_done_callback(lambda _: self._done(partition))

    def _done(self, partition: int) -> None:
        del self._tasks[partition]
        self._settle_one(partition)

    async def _try(self, partition: int) -> None:
        pause = self._pauses.get(partition, 0.0)
        if pause:
            await asyncio.sleep(pause)
        self._pauses[partition] = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        if not self._mine(partition):
            return
        try:
            await self._take(partition)
        except Exception as error:
            self._failures[partition] = str(error) if isinstance(error, KopError) else repr(error)
            if not isinstance(error, KopError):
                _log.exception("cannot coordinate partition %d of the offsets topic; trying again", partition)
            else:
                level = logging.WARNING if pause <= _FIRST_PAUSE else logging.DEBUG  # once, not at each try
                text = "cannot coordinate partition %d of the offsets topic: %s; trying again"
                _log.log(level, text, partition, error)
            await self._log.resign(partition)
        else:
            self._failures.pop(partition, None)

    async def _take(self, partition: int) -> None:
        self._states[partition] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._terms[partition] += 1
        term = self._terms[partition]
        try:
            await self._log.lead(partition, lambda: self._lost(partition, term))
            loaded = await self._load(partition)
            if not self._log.leads(partition):  # reading took long: another one may lead since
                await self._log.verify_lead(partition)
        except BaseException:
            if self._terms[partition] == term:
                self._end(partition)
            raise
        if self._terms[partition] == term:
            self._install(partition, loaded)
            self._states[partition] = ErrorCode.NONE
            asyncio.get_running_loop().call_later(_LONGEST_PAUSE, self._pauses.pop, partition, None)

    async def _give_up(self, partition: int) -> None:
        self._end(partition)
        await self._log.resign(partition)

    def _lost(self, partition: int, term: int) -> None:
        """Another broker is the writer now, or the log is gone."""
        if self._stopped or self._terms[partition] != term:
            return
        _log.warning("partition %d of the offsets topic went to another broker, or its log was lost", partition)
        self._end(partition)
        self._pauses.setdefault(partition, _FIRST_PAUSE)
        if (task := self._tasks.get(partition)) is not None:
            task.cancel()  # it reads for a term that is over
        self._settle_one(partition)

    def _end(self, partition: int) -> None:
        if self._states[partition] != ErrorCode.NOT_COORDINATOR:
            self._states[partition] = ErrorCode.NOT_COORDINATOR
            self._terms[partition] += 1
            self._unload(partition)
