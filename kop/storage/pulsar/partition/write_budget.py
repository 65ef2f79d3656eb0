"""How many bytes of batches wait for Pulsar at a time.

Owns: their sum, refusing a batch that would exceed the limit, waiting until none is left.
Must not know: what becomes of a batch.
"""

from __future__ import annotations

import asyncio

from kop.errors import BackendError, KopError
from kop.storage.pulsar.context import PulsarContext


class WriteBudget:
    """The batches that were taken and have no result yet."""

    def __init__(self, context: PulsarContext) -> None:
        self.bytes = 0
        """The size of all these batches together."""
        self._context = context
        self._most = context.settings.max_queued_bytes
        self._none_left = asyncio.Event()
        self._none_left.set()

    def refusal(self, size: int) -> KopError | None:
        """Why a batch of that size cannot be taken now; None where it can."""
        if self._context.closed:
            return BackendError("the storage engine is closed")
        if self.bytes + size > self._most:
            return BackendError("as many batches wait for Pulsar as memory is given for: clients try again")
        return None

    def take(self, size: int) -> None:
        """Count a batch of that size: it was taken."""
        if not self.bytes:
            self._none_left.clear()
        self.bytes += size

    def give_back(self, size: int) -> None:
        """Count a batch of that size no more: it has its result."""
        self.bytes -= size
        if not self.bytes:
            self._none_left.set()

    async def wait_until_empty(self) -> None:
        """Wait until every batch has its result."""
        await self._none_left.wait()
