"""Turns of tasks: a bound on how many do the same kind of work at a time, which slow ones among them cannot use up; and
pauses in the work on long lists, so that the event loop serves others meanwhile.

Owns: the places, the rule that a slow task gives its place to the next one, when a pause is due.
Must not know: what the tasks do, what the lists hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

SLOW_SECONDS: Final = 1.0
"""The seconds after which a turn no longer counts: a task that waits for a broker without an answer is no burden."""
_ITEMS: Final = 100
"""The number of items of a list from one pause to the next."""
LOOKED_AT: Final = 500
"""The same if each item is only looked at."""

T = TypeVar("T")


async def with_pauses(items: Iterable[T], every: int = _ITEMS) -> AsyncIterator[T]:
    """Yield the items; after each `every` of them (100) the event loop first runs what else is due."""
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            await asyncio.sleep(0)


class Turns:
    """A semaphore of `at_once` places, in the order of asking; after `slow_seconds` a place goes to the next task."""

    def __init__(self, at_once: int, slow_seconds: float = SLOW_SECONDS) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._slow_seconds = slow_seconds

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one of the places that limit how many work at the same time, and hold it inside the block; after
        `slow_seconds` it goes to the next task, though the block goes on.
        """
        await self._places.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._places.release()

        slow = asyncio.get_running_loop().call_later(self._slow_seconds, give_back)
        try:
            yield
        finally:
            slow.cancel()
            give_back()
