"""Reads of partitions whose records are not in memory, for the Fetches of one connection.

Owns: which of them run side by side, their results until a Fetch takes them, and when unused results are dropped.
Must not know: requests, answers, sessions.

A partition is read on its own: one that is slow keeps no other waiting for more than some milliseconds, and a Fetch may
end before it. The read goes on; the connection's next Fetch of the same offset finds what it brought, or waits for it.
A read may also begin ahead of its Fetch. Results count in the engine's one budget for reads. While no Fetch of the
connection waits, they may have to make room for others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Final

from kop.errors import InternalError, KopError
from kop.read_budget import BudgetShare, ReadBudget
from kop.storage.base import PartitionLog, ReadResult

AT_ONCE: Final = 32
"""The most reads of one connection that run side by side, slow ones not counted."""
SLOW_SECONDS: Final = 1.0
"""The seconds after which a read counts as slow."""
MOST_BYTES: Final = 4 << 20
"""The most bytes that one partition's read returns, unless its first batch is larger."""
MOST_HELD: Final = 16 << 20
"""The bytes of results not yet taken by a Fetch above which a connection begins no further read."""
KEPT_SECONDS: Final = 10.0
"""The seconds after which a read that no Fetch asked for again is ended and its result dropped."""

log = logging.getLogger(__name__)


class ColdRead:
    """A read of one partition from `offset` on, out of storage. `result` and `error` are None until it has ended."""

    __slots__ = (
        "asked",
        "error",
        "expected",
        "log",
        "log_start",
        "max_bytes",
        "offset",
        "places",
        "result",
        "share",
        "task",
    )

    def __init__(self, partition_log: PartitionLog, offset: int, max_bytes: int, places: bool, now: float) -> None:
        self.log = partition_log
        self.offset = offset
        self.max_bytes = max_bytes
        self.places = places
        """True if the read also returns the places where Pulsar keeps the records."""
        self.asked = now
        """The loop's time of the last Fetch that asked for the read."""
        self.expected = 0
        """The bytes that the budget expects of it, if it was begun ahead of a Fetch; 0 once it has ended."""
        self.result: ReadResult | None = None
        self.error: KopError | None = None
        self.log_start = -1
        """The log start when the read ended."""
        self.share: BudgetShare | None = None
        """The share of the read budget that the result takes; None before there is a result."""
        self.task: asyncio.Task[None] | None = None

    @property
    def outdated(self) -> bool:
        """True if the log start has moved beyond the offset since the read ended."""
        return self.result is not None and max(self.offset, self.log_start) < self.log.log_start_offset


class ColdReads:
    """The reads from storage for one connection, at most one for each partition. They end with the connection:
    `close`.
    """

    def __init__(self, budget: ReadBudget) -> None:
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._reads: dict[PartitionLog, ColdRead] = {}
        self._queue: deque[ColdRead] = deque()
        self._running = 0
        """The number of reads that have begun and not ended, slow ones left out."""
        self._held = 0
        self._unfinished = 0
        """The number of reads that have neither a result nor an error yet."""
        self._listeners: dict[Callable[[], None], None] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._reads)

    @property
    def _may_read_ahead(self) -> bool:
        """True if half of the reads that may run at once can still begin, none waits for its turn, and there is room
        for a result that nobody waits for: less than 16 MiB is kept here, and the budget of all connections has some.
        """
        has_room = self._held < MOST_HELD and not self._budget.crowded
        return has_room and not self._queue and self._running < AT_ONCE // 2

    def on_news(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each time that a read has brought records or an error, or when none is under way any more;
        return the function that ends this. As long as there is any such callback, the kept results do not have to make
        room for reads of others.
        """
        self._listeners[callback] = None
        for share in self._shares():
            share.busy()

        def undo() -> None:
            self._listeners.pop(callback, None)
            if not self._listeners:
                for share in self._shares():
                    share.idle()

        return undo

    def find(
        self, partition_log: PartitionLog, offset: int, places: bool = False, most: int = MOST_BYTES
    ) -> ColdRead | None:
        """Return the read of a partition from `offset` on, under way or ended; None if there is none, if what it
        brought was deleted since, or if that is too large: several batches of more than `most` bytes, of a read that
        was allowed more. With `places` it has to be one that also brings the places where Pulsar keeps the records.
        """
        read = self._reads.get(partition_log)
        if read is None or read.offset != offset or read.outdated:
            return None
        result = read.result
        if result is not None and result.size > most < read.max_bytes and len(result.buffers) > 1:
            return None
        return read if read.places or not places else None

    def ask_ahead(self, partition_log: PartitionLog, offset: int, max_bytes: int, places: bool = False) -> None:
        """Do what `ask` does for a Fetch that has not come yet, if there is room for that."""
        if self._may_read_ahead:
            read = self.ask(partition_log, offset, max_bytes, places)
            if read.result is None and read.error is None and not read.expected:
                read.expected = max(0, read.max_bytes)
                self._budget.expected += read.expected

    def ask(self, partition_log: PartitionLog, offset: int, max_bytes: int, places: bool = False) -> ColdRead:
        """Return the read of a partition from `offset` on, under way or ended. If there is none, put one in the queue,
        which begins as soon as this connection may read more, and end another read of the partition. Each call keeps
        the read wanted for at least ten seconds; `max_bytes` is cut to 4 MiB.
        """
        now = self._loop.time()
        read = self.find(partition_log, offset, places, max_bytes)
        if read is None:
            self.forget(partition_log)
            read = ColdRead(partition_log, offset, min(max_bytes, MOST_BYTES), places, now)
            self._reads[partition_log] = read
            self._unfinished += 1
            self._queue.append(read)
            self._begin()
        read.asked = now
        return read

    def make_room(self, wanted: Container[PartitionLog], waiting: int) -> None:
        """Begin the reads that waited for room in the budget, if it has some by now. Drop the results of partitions
        that are not `wanted`, if so many results are kept, or the budget is so full, that no read can begin.

        `waiting` is the number of waiting Fetches of the connection that want no other partitions: if more of its
        Fetches wait, nothing is dropped.
        """
        if not self._queue:
            return
        self._begin()
        if not self._queue or self._has_room() or len(self._listeners) > waiting:
            return
        for partition_log, read in tuple(self._reads.items()):
            if read.result is not None and partition_log not in wanted:
                self.forget(partition_log)

    def forget(self, partition_log: PartitionLog) -> None:
        """Drop the read of a partition, if there is one, because its result was taken or is not wanted any more. One
        under way is cancelled; reads that waited for room may begin.
        """
        read = self._reads.pop(partition_log, None)
        if read is None:
            return
        self._expect_no_more(read)
        if read.result is not None:
            self._held -= read.result.size
            if read.share is not None:
                read.share.end()
            self._begin()
        elif read.error is None:
            self._unfinished -= 1
            if read.task is not None:
                read.task.cancel()
            else:
                self._queue.remove(read)

    def close(self) -> None:
        """End all reads, and drop their results: the connection is gone."""
        for read in tuple(self._queue):  # first, so that none of them begins
            self.forget(read.log)
        for partition_log in tuple(self._reads):
            self.forget(partition_log)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    # --- inside

    def _shares(self) -> list[BudgetShare]:
        return [read.share for read in self._reads.values() if read.share is not None]

    def _may_begin(self) -> bool:
        """Return true if another read may begin: fewer than 32 reads of this connection are under way (slow ones not
        counted), its results that wait for a Fetch are less than 16 MiB, and the budget of all connections has room,
        unless none of these results is this connection's.
        """
        return self._running < AT_ONCE and self._has_room()

    def _has_room(self) -> bool:
        return self._held < MOST_HELD and not (self._held and self._budget.full)

    def _begin(self) -> None:
        while self._queue and self._may_begin():
            self._start(self._queue[0])
            self._queue.popleft()
        if self._sweep is None and self._reads:
            self._sweep = self._loop.call_later(KEPT_SECONDS, self._drop_old)

    def _start(self, read: ColdRead) -> None:
        counted = True

        def not_counted() -> None:
            nonlocal counted
            if counted:
                counted = False
                self._running -= 1
                self._begin()

        def over(_: asyncio.Task[None]) -> None:
            slow.cancel()
            not_counted()

        self._running += 1
        slow = self._loop.call_later(SLOW_SECONDS, not_counted)
        read.task = self._loop.create_task(self._run(read))
        read.task.add_done_callback(over)  # also called if the task is cancelled before its first step

    async def _run(self, read: ColdRead) -> None:
        try:
            await read.log.attach()
            read_result = await read.log.read(read.offset, read.max_bytes, min_one=True, places=read.places)
        except KopError as error:
            self._ended(read, None, error)
        except Exception as error:
            log.exception("%s-%d cannot be read for a Fetch", read.log.topic.name, read.log.index)
            self._ended(read, None, InternalError(repr(error)))
        else:
            self._ended(read, read_result, None)

    def _ended(self, read: ColdRead, result: ReadResult | None, error: KopError | None) -> None:
        if self._reads.get(read.log) is not read:
            return
        read.task = None
        self._expect_no_more(read)
        self._unfinished -= 1
        read.log_start = read.log.log_start_offset
        if error is not None:
            # Kept without the frames that it came through, which hold what was read.
            read.error = error.with_traceback(None)
            read.error.__cause__ = read.error.__context__ = None
        elif result is not None and result.size:
            read.result = result
            self._held += result.size
            read.share = BudgetShare(self._budget, partial(self.forget, read.log))
            read.share.holds(result.size)
            if not self._listeners:
                read.share.idle()
        else:  # the read found nothing: the next Fetch that asks reads again
            del self._reads[read.log]
        if read.error is not None or read.result is not None or not self._unfinished:
            for callback in tuple(self._listeners):
                callback()

    def _expect_no_more(self, read: ColdRead) -> None:
        self._budget.expected -= read.expected
        read.expected = 0

    def _drop_old(self) -> None:
        self._sweep = None
        before = self._loop.time() - KEPT_SECONDS
        for read in tuple(self._reads.values()):
            if read.asked < before:
                self.forget(read.log)
        self._begin()
