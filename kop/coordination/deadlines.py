"""One timer of the event loop for the deadlines of many items.

Owns: a heap of deadlines, and the timer for the earliest of them.
Must not know: what is due.

Deadlines are milliseconds of the clock that `Deadlines` is given, which must never go back.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from kop.background import tell

NEVER: Final = 2**63 - 1
"""The value of a deadline that never comes."""
MOST_VOID: Final = 1000
"""The number of void deadlines in the heap, beyond as many as are armed, above which they are sorted out: to do it each
time would cost more.
"""
AGAIN_MS: Final = 1000
"""The ms after which an item is due again if doing what was due has failed."""

T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """The deadlines of items: `due(item, now)` is called once the earliest deadline that an item was armed with has
    come; then it is not armed.
    """

    def __init__(self, clock_ms: Callable[[], int], due: Callable[[T, int], None]) -> None:
        self._clock_ms = clock_ms
        self._due = due
        self._armed: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []
        """The deadlines as (deadline, serial number, item). One that differs from the item's in `_armed` is void."""
        self._serial = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._stopped = False

    def __len__(self) -> int:
        """Return the number of deadlines that are kept, void ones among them."""
        return len(self._heap)

    def arm(self, item: T, deadline: int) -> None:
        """Note that the item is due at `deadline` (ms of the clock), unless it is due earlier already. The note is
        consumed when the item's turn has come.
        """
        if deadline < self._armed.get(item, NEVER):
            self._armed[item] = deadline
            heapq.heappush(self._heap, (deadline, next(self._serial), item))
            self._set_timer()

    def disarm(self, item: T) -> None:
        """Forget the item's deadline, so that it is not due any more."""
        self._armed.pop(item, None)
        if len(self._heap) > 2 * len(self._armed) + MOST_VOID:
            self._heap = [entry for entry in self._heap if self._armed.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def tick(self) -> None:
        """Call `due` for every item whose deadline has come. The timer calls it; to call it early does no harm.

        An exception of `due` is logged and keeps no other item from its turn. The item is due again a second later,
        since nobody else may be there to arm it.
        """
        self._cancel_timer()
        now = self._clock_ms()
        while self._heap and self._heap[0][0] <= now:
            deadline, _, item = heapq.heappop(self._heap)
            if self._armed.get(item) == deadline:
                del self._armed[item]
                try:
                    self._due(item, now)
                except Exception as error:  # a fault in one item must not stop the clock of all
                    tell(f"what was due for {item!r}", error, kind="the deadlines of a coordinator")
                    self.arm(item, now + AGAIN_MS)
        self._set_timer()

    def stop(self) -> None:
        """Stop the timer: `due` is called by `tick` alone from now on."""
        self._stopped = True
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        self._timer_at = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if not self._heap or self._heap[0][0] >= self._timer_at or self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._heap[0][0]
        delay = max(self._timer_at - self._clock_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self.tick)
