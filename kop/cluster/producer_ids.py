"""Producer ids for clients, out of blocks that storage reserves.

Owns: the block that is handed out now. What a stopped broker had not handed out is lost, never given twice.
Must not know: the wire, who asks.
"""

from __future__ import annotations

import asyncio

from kop.storage.base import Engine


class ProducerIds:
    """The source of producer ids for clients, out of blocks that storage reserves."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._block = iter(range(0))
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Return a producer id that was never given before. KopError if storage cannot reserve any."""
        async with self._lock:
            while (producer_id := next(self._block, None)) is None:
                self._block = iter(await self._engine.reserve_producer_ids())
            return producer_id
