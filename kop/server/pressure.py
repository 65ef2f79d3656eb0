"""What all connections together hold in memory, and who waits until it is less.

Owns: one account of bytes and the queue of those who wait for room in it.
Must not know: sockets, frames, what the bytes are.

Four things are charged: frames that are not complete, what is held back behind a waiting request, requests that are not
answered yet, answers that are not read. Above the limit a connection gets no memory for a larger frame and no Fetch is
started; what is under way ends and makes room. `listener.py` closes those who hold memory and do not move.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Waiter(Protocol):
    """Who waits for memory."""

    def on_memory(self) -> None:
        """There is room: go on, or wait again."""


class Account:
    """Bytes in use. `used` is changed by those who use it, with `freed` called after a change downwards."""

    __slots__ = ("_loop", "_planned", "_waiting", "limit", "used")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.used = 0
        self.limit = limit
        self._loop = loop
        self._waiting: dict[Waiter, None] = {}
        self._planned = False

    @property
    def short(self) -> bool:
        """True when more is in use than may be."""
        return self.used > self.limit

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def wait(self, waiter: Waiter) -> None:
        """Be called when there is room, after those who came before."""
        self._waiting[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        """Wait no more."""
        self._waiting.pop(waiter, None)

    def freed(self) -> None:
        """Less is in use: call who waits, later in this round of the loop, as long as there is room."""
        if self._waiting and not self._planned and not self.short:
            self._planned = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._planned = False
        for _ in range(len(self._waiting)):  # who waits again is not called twice
            if self.short or not self._waiting:
                return
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            waiter.on_memory()
