"""A bound on how many do the same slow thing side by side.

Owns: the places, and that who is slow gives its place to the next one.
Must not know: what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

SLOW_SECONDS: Final = 1.0
"""After it a turn does not count any more: whoever waits for a broker that does not answer burdens nobody."""


class Turns:
    """`at_once` turns at a time, first come, first served. A turn of more than `slow_seconds` lets the next one in."""

    def __init__(self, at_once: int, slow_seconds: float = SLOW_SECONDS) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._slow_seconds = slow_seconds

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it inside the block."""
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
