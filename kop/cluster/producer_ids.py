"""Producer ids for clients, out of blocks that storage reserves.

Owns: the block that is handed out now. What a stopped broker had not handed out is lost, never given twice.
Must not know: the wire, who asks.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kop.storage.base import Engine

_BLOCK: Final = 1000


class ProducerIds:
    """Hands out producer ids, a block at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """A producer id that nobody had before. KopError where storage cannot reserve any."""
        async with self._lock:
            if self._next == self._end:
                self._next = await self._engine.allocate_producer_ids(_BLOCK)
                self._end = self._next + _BLOCK
            self._next += 1
            return self._next - 1
