"""Decompressing produced batches, and converting those that waited together, a few at a time.

Owns: how many bytes are decompressed and converted before the loop has its turn.
Must not know: batches, producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

MOST_AT_ONCE: Final = 16 << 20
"""Bytes, some 10 ms of the loop. One batch may be larger than that."""


class DecompressionTurns:
    """Counts what is decompressed in one turn of the loop, and of batches that waited together what is converted.

    One object serves all partitions of an engine.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bytes = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def is_over(self) -> bool:
        """Whether this turn of the loop has decompressed its share: further batches have to wait for the next turn."""
        return self._bytes >= MOST_AT_ONCE

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in the next turn, once. For use where this one is over."""
        self._waiting[go_on] = None

    def add(self, size: int) -> None:
        """Count bytes that are decompressed or converted; a negative number takes back some that were counted."""
        if not self._bytes:
            self._loop.call_soon(self._next)
        self._bytes += size

    def _next(self) -> None:
        self._bytes = 0
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting:
            go_on()
