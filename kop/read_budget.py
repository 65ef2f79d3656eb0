"""The bound on what reads from storage hold in memory together: what is read ahead, and what waits for its reader.

Owns: the bound in bytes, which idle holder gives up what it has for another one, which reader has to wait.
Must not know: partitions, entries, connections.

Permits count messages and say nothing of bytes: the Pulsar broker's first answer to a reader is as much as it reads at
once, whatever was asked for. So a reader that waits for its first entries counts as such a burst; later it counts as
what it really holds and has asked for. One that waits long for them counts as nothing, or a broker without an answer
would stop the readers of all others. What comes to it after all has to find room, or it is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from kop.turns import SLOW_SECONDS

MOST_AHEAD: Final = 4 << 20
"""Bytes that one reader reads ahead where there are few."""
_LEAST_AHEAD: Final = 256 << 10
_TELL_EACH: Final = 1 << 20


class BudgetShare:
    """What one reader or one result holds. While nobody waits for it, it may be dropped for another one."""

    __slots__ = ("_ended", "_late", "_pool", "_reads", "_slow", "drop", "held")

    def __init__(self, pool: ReadBudget, drop: Callable[[], None]) -> None:
        """`drop` closes the reader, or forgets the result, where its room is needed."""
        self._pool = pool
        self.drop = drop
        self.held = 0
        self._reads = False
        """True if it was counted as a reader."""
        self._late = False
        """True if its first entries came late, or did not come yet, and it was not idle since."""
        self._slow: asyncio.TimerHandle | None = None
        self._ended = False

    async def take(self, burst: int) -> None:
        """Wait until there is room for first entries of `burst` bytes. Nothing may be asked for before."""
        await self._pool.room(burst)
        if not self._ended:
            self._reads = True
            self._pool.readers += 1
            self._pool.change(self, burst)
            self._slow = asyncio.get_running_loop().call_later(self._pool.slow_seconds, self._wait_uncounted)
        self._pool.wake()

    @property
    def ahead(self) -> int:
        """Bytes that its reader may read ahead now."""
        return self._pool.ahead

    def holds(self, size: int) -> None:
        """Note that the reader holds `size` bytes from now on."""
        if self._ended:
            return
        self._end_slow()
        self._pool.change(self, size)
        if self._late and self._pool.lacks_room(self):
            self.end()
            self.drop()

    def busy(self) -> None:
        """Note that somebody waits for what it holds."""
        self._pool.idle.pop(self, None)

    def idle(self) -> None:
        """Note that nobody waits for it any more. Of several idle ones that which is idle longest is dropped first."""
        if not self._ended:
            self._late = False
            self._pool.idle[self] = None
            self._pool.fit()
            self._pool.wake()

    def end(self) -> None:
        """Note that it holds nothing any more."""
        self._pool.idle.pop(self, None)
        self._end_slow()
        if not self._ended:
            self._ended = True
            self._pool.readers -= self._reads
            self._pool.change(self, 0)

    def _wait_uncounted(self) -> None:
        self._late = True
        self._pool.change(self, 0)

    def _end_slow(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None


class ReadBudget:
    """The bound on all shares, in bytes."""

    def __init__(
        self,
        max_bytes: int,
        slow_seconds: float = SLOW_SECONDS,
        on_change: Callable[[int], None] | None = None,
    ) -> None:
        """`on_change(held)` is called when about a MiB more or less is held."""
        self._max_bytes = max_bytes
        self._on_change = on_change
        self.slow_seconds = slow_seconds
        """How long a reader without a first entry counts."""
        self.held = self._told = 0
        self.readers = 0
        """How many of the shares are of readers."""
        self.idle: dict[BudgetShare, None] = {}
        """The idle shares; the one that is idle longest comes first."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def ahead(self) -> int:
        """Bytes that one reader may read ahead: all of them together a part of the bound, so that none is closed."""
        return min(MOST_AHEAD, max(_LEAST_AHEAD, self._max_bytes // (4 * max(self.readers, 1))))

    @property
    def full(self) -> bool:
        """True if there is no room, idle shares not counted."""
        return self.held - sum([share.held for share in self.idle]) >= self._max_bytes

    async def room(self, burst: int) -> None:
        """Wait until there is room for `burst` bytes. One reader is let in whatever its size."""
        while self.held and self.held + burst > self._max_bytes:
            if self._evict():
                continue
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    self._waiting.remove(turn)
                else:
                    self.wake()  # this call was woken and gave up: the next one has to be woken
                raise

    def lacks_room(self, share: BudgetShare) -> bool:
        """Return true if all shares together hold more than they may, though none is idle, and this one is not
        alone.
        """
        return self.held > max(self._max_bytes, share.held)

    def change(self, share: BudgetShare, size: int) -> None:
        """Note how many bytes a share holds now."""
        grown = size - share.held
        if not grown:
            return
        self.held += grown
        share.held = size
        if grown < 0:
            self.wake()
        else:
            self.fit()
        if self._on_change is not None and abs(self.held - self._told) >= _TELL_EACH:
            self._told = self.held
            self._on_change(self.held)

    def fit(self) -> None:
        """Drop idle shares while more is held than may be."""
        while self.held > self._max_bytes and self._evict():
            pass

    def wake(self) -> None:
        """Let a reader that waits look whether there is room."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _evict(self) -> bool:
        """Drop the idle share that was left first. False where none is idle."""
        if not self.idle:
            return False
        oldest = next(iter(self.idle))
        oldest.end()
        oldest.drop()
        return True
