"""The limits on what clients use: connections, bytes in memory, and reads from storage at a time.

Owns: the limits, the bytes that all connections hold together, and the queues of those that wait until it is less.
Must not know: sockets, frames, what the bytes are.

Four things are charged: frames that are not complete, what is held back behind a waiting request, requests that are not
answered yet, answers that are not read. Above the limit a connection gets no memory for a larger frame and no Fetch is
started; what is under way ends and makes room. `listener.py` closes those who hold memory and do not move.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

MOST_HTTP_CONNECTIONS: Final = 32
"""The connections that the HTTP port has at a time: a few tools that read metrics and ask for the state."""
READ_SECONDS = 1.0
"""The seconds after which a Fetch is taken to wait for records, so that its read is over and frees its place."""
_ROUNDS = 3
"""The rounds of the event loop from the end of a Fetch until its answer is written, from when on the connection counts
its bytes.
"""


class Waiter(Protocol):
    """A connection, or the queue of reads, that waits for memory."""

    def on_memory(self) -> None:
        """Go on if there is memory now, or wait for it again. Whoever is called waits no longer."""


class MemoryBudget:
    """The bytes that connections hold together, and the connections that wait for some.

    Connections change `used` themselves; whoever makes it smaller calls `freed` next.
    """

    __slots__ = ("_loop", "_planned", "limit", "used", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.used = 0
        self.limit = limit
        self._loop = loop
        self.waiting: dict[Waiter, None] = {}
        """The connections and others that wait for memory, in the order in which they get it."""
        self._planned = False

    @property
    def of_one(self) -> int:
        """The most bytes that unanswered requests of one connection, or one read, may hold."""
        return self.limit // 8

    @property
    def short(self) -> bool:
        """True while connections hold more than the limit."""
        return self.used > self.limit

    def wait(self, waiter: Waiter) -> None:
        """Call `waiter.on_memory` once there is memory, after those that waited before. It is called once, unless it
        waits again.
        """
        self.waiting[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        """Remove a waiter from the queue for memory."""
        self.waiting.pop(waiter, None)

    def freed(self) -> None:
        """Call those that wait for memory, one after the other in the next round of the loop, while there is some. To
        be called after `used` became less.
        """
        if self.waiting and not self._planned and not self.short:
            self._planned = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._planned = False
        for _ in range(len(self.waiting)):  # a waiter that waits again is not called twice in this round
            if self.short or not self.waiting:
                return
            waiter = next(iter(self.waiting))
            del self.waiting[waiter]
            waiter.on_memory()


class ReadAdmission:
    """The admission of Fetches that read from storage, so that the bytes that many read at once fit into memory.

    The bytes that a Fetch reads are counted here until its answer is written, and by its connection then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: MemoryBudget) -> None:
        self.used = 0
        """The bytes that the reads under way may take together."""
        self._memory = memory
        self._loop = loop
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()

    def start(self, work: Coroutine[Any, Any, Any], size: int) -> asyncio.Task[Any]:
        """Run `work`, which may read about `size` bytes from storage, as a task once there is room; those who came
        before go first. Return the task at once.
        """
        task = self._loop.create_task(self._run(work, size))
        task.add_done_callback(lambda _: work.close())  # which was never begun where the task was cancelled before
        return task

    async def _run(self, work: Coroutine[Any, Any, Any], size: int) -> Any:
        size = min(max(size, 1), self._memory.of_one)
        turn = self._loop.create_future()
        self._queue.append((turn, size))
        self.on_memory()
        try:
            await turn
        except BaseException:
            if not turn.cancelled():
                self._leave(size)
            raise
        counted = True

        def leave() -> None:
            nonlocal counted
            if counted:
                counted = False
                self._leave(size)

        timer = self._loop.call_later(READ_SECONDS, leave)
        try:
            return await work
        finally:
            timer.cancel()
            _after_rounds(self._loop, _ROUNDS, leave)

    def on_memory(self) -> None:
        """Start the reads for which there is memory, in the order in which they came."""
        while self._queue:
            turn, size = self._queue[0]
            if not turn.done():
                if self._memory.short:
                    self._memory.wait(self)
                    return
                if self.used and self.used + size > self._memory.limit:
                    return
                self.used += size
                turn.set_result(None)
            self._queue.popleft()

    def _leave(self, size: int) -> None:
        self.used -= size
        self.on_memory()


def _after_rounds(loop: asyncio.AbstractEventLoop, rounds: int, call: Callable[[], None]) -> None:
    """Call a function after so many rounds of the event loop; at once for 0."""
    if rounds:
        loop.call_soon(_after_rounds, loop, rounds - 1, call)
    else:
        call()
