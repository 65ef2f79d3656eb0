"""The bound on what all cold readers hold in memory together.

Owns: the bound in bytes, which idle reader is closed for another one, which reader has to wait.
Must not know: partitions, entries.

Permits count messages and say nothing of bytes: the Pulsar broker's first answer to a reader is as much as it reads at
once, whatever was asked for. So a reader that waits for its first entries counts as such a burst; later it counts as
what it really holds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class BudgetShare:
    """What one reader holds. While nobody reads from it, it may be closed for another reader."""

    __slots__ = ("_ended", "_pool", "drop", "held")

    def __init__(self, pool: ReadBudget, drop: Callable[[], None], held: int) -> None:
        self._pool = pool
        self.drop = drop
        self.held = held
        self._ended = False

    def holds(self, size: int) -> None:
        """The reader holds `size` bytes from now on."""
        if not self._ended:
            self._pool.change(self, size)

    def busy(self) -> None:
        """Note that somebody reads from the reader."""
        self._pool.idle.pop(self, None)

    def idle(self) -> None:
        """Note that nobody reads from the reader any more. Of several idle readers the one that is idle longest closes
        first.
        """
        if not self._ended:
            self._pool.idle[self] = None
            self._pool.wake()

    def end(self) -> None:
        """Note that the reader is closed and holds nothing any more."""
        self._pool.idle.pop(self, None)
        if not self._ended:
            self._pool.change(self, 0)
            self._ended = True


class ReadBudget:
    """The bound on all shares, in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held = 0
        self.idle: dict[BudgetShare, None] = {}
        """The idle readers; the one that is idle longest comes first."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def share(self, burst: int, drop: Callable[[], None]) -> BudgetShare:
        """A share for a new reader whose first entries may have `burst` bytes; waits while there is no room.

        `drop` closes the reader where its room is needed and it is idle. One reader is let in whatever its size.
        """
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
        share = BudgetShare(self, drop, burst)
        self.held += burst
        self.wake()
        return share

    def change(self, share: BudgetShare, size: int) -> None:
        """Note how many bytes a reader holds now."""
        grown = size - share.held
        self.held += grown
        share.held = size
        if grown < 0:
            self.wake()
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
        """Close the idle reader that was left first. False where none is idle."""
        if not self.idle:
            return False
        oldest = next(iter(self.idle))
        oldest.end()
        oldest.drop()
        return True
