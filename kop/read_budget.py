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
"""The most bytes that one reader reads ahead of its client, if there are few readers."""
_LEAST_AHEAD: Final = 256 << 10
_TELL_EACH: Final = 1 << 20


class BudgetShare:
    """A share of the read budget: the bytes that one reader, or one kept result, holds. While nobody waits for it, it
    may be dropped for the sake of another one.
    """

    __slots__ = ("_ended", "_late", "_pool", "_reads", "_slow", "drop", "held")

    def __init__(self, pool: ReadBudget, drop: Callable[[], None]) -> None:
        """Begin with nothing held. `drop` closes the reader, or forgets the result, if its room is needed."""
        self._pool = pool
        self.drop = drop
        self.held = 0
        self._reads = False
        """True if the share is counted as a reader's."""
        self._late = False
        """True if the reader's first entries have not come in time, and it was not idle since: it is dropped if they
        find no room.
        """
        self._slow: asyncio.TimerHandle | None = None
        self._ended = False

    async def take(self, burst: int) -> None:
        """Wait until the budget has room for the `burst` bytes of a reader's first answer, then count them as held by
        this share. Nothing may be asked of Pulsar before. If `holds` is not called within the budget's `slow_seconds`,
        the share counts as nothing.
        """
        await self._pool.room(burst)
        if not self._ended:
            self._reads = True
            self._pool.readers += 1
            self._pool.change(self, burst)
            self._slow = asyncio.get_running_loop().call_later(self._pool.slow_seconds, self._wait_uncounted)

    @property
    def ahead(self) -> int:
        """The bytes that the share's reader may read ahead now."""
        return self._pool.ahead

    def holds(self, size: int) -> None:
        """Set the bytes that the reader holds. If its first entries came late and there is no room for them, the share
        ends and its reader is closed (`drop`).
        """
        if self._ended:
            return
        self._end_slow()
        self._pool.change(self, size)
        if self._late and self._pool.lacks_room(self):
            self.end()
            self.drop()

    def busy(self) -> None:
        """Mark the share as in use, so that it is not dropped: somebody waits for what it holds."""
        self._pool.idle.pop(self, None)

    def idle(self) -> None:
        """Mark the share as not in use, so that it may be dropped if room is needed. Of several such shares the one
        that is idle longest is dropped first.
        """
        if not self._ended:
            self._late = False
            self._pool.idle[self] = None
            self._pool.fit()
            self._pool.wake()

    def end(self) -> None:
        """Give the share's room back for good, since its holder is closed. Nothing if it has ended already."""
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
    """The bound on the bytes that all readers and kept results hold together."""

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
        """The seconds for which a reader whose first entry has not come counts against the budget."""
        self.held = self._told = 0
        self.expected = 0
        """The bytes that reads may bring that were begun ahead of a Fetch and have not ended."""
        self.readers = 0
        """The number of shares that belong to readers."""
        self.idle: dict[BudgetShare, None] = {}
        """The idle shares; the one that is idle longest comes first."""
        self._waiting: deque[asyncio.Event] = deque()
        """The turns of the readers that wait for room, in the order in which they came."""

    @property
    def ahead(self) -> int:
        """The bytes that one reader may read ahead: all readers together take a part of the bound, so that none is
        closed.
        """
        return min(MOST_AHEAD, max(_LEAST_AHEAD, self._max_bytes // (4 * max(self.readers, 1))))

    @property
    def crowded(self) -> bool:
        """True if what is held, idle shares included, and what is expected fill the budget."""
        return self.held + self.expected >= self._max_bytes

    @property
    def full(self) -> bool:
        """True if the budget has no room, even if all idle shares were dropped."""
        return self.held - sum([share.held for share in self.idle]) >= self._max_bytes

    async def room(self, burst: int) -> None:
        """Wait until there is room for `burst` bytes, for which idle shares are dropped, and for all who have waited
        longer. If nothing is held, any number has room. Nothing is counted: the caller does that at once (`change`).
        """
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            while turn is not self._waiting[0] or not self._fits(burst):
                turn.clear()
                await turn.wait()
        finally:
            self._waiting.remove(turn)
            self.wake()

    def _fits(self, burst: int) -> bool:
        while self.held and self.held + burst > self._max_bytes:
            if not self._evict():
                return False
        return True

    def lacks_room(self, share: BudgetShare) -> bool:
        """Return true if more is held than the budget has, and not by `share` alone. After `change` that means that no
        share is idle any more.
        """
        return self.held > max(self._max_bytes, share.held)

    def change(self, share: BudgetShare, size: int) -> None:
        """Set the bytes that a share holds: idle shares are dropped if that is too much, and the reader that waits
        longest checks again if it is less. `on_change` is called if about a MiB more or less is held than it was told.
        """
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
        """Drop idle shares until no more is held than the budget, or until none is idle."""
        while self.held > self._max_bytes and self._evict():
            pass

    def wake(self) -> None:
        """Let the reader that has waited longest check again if there is room."""
        if self._waiting:
            self._waiting[0].set()

    def _evict(self) -> bool:
        """Drop the share that is idle longest; return false if none is idle."""
        if not self.idle:
            return False
        oldest = next(iter(self.idle))
        oldest.end()
        oldest.drop()
        return True
