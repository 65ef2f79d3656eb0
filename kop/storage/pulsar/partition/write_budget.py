"""How many bytes of batches wait for Pulsar at a time.

Owns: their sum, refusing a batch that would exceed the limit, waiting until none is left.
Must not know: what becomes of a batch.
"""

from __future__ import annotations

import asyncio

from kop.errors import BackendError, KopError
from kop.storage.base import AppendResult, AppendWaiter
from kop.storage.pulsar.context import PulsarContext


class WriteBudget:
    """The batches that were taken and have no result yet. An `AppendWaiter`: the place of a batch is its size."""

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

    def take(self, size: int) -> tuple[AppendWaiter, int]:
        """A batch was taken: it counts until the waiter is told of its end, with the place that comes with it."""
        self.bytes += size
        self._none_left.clear()
        return self, size

    def reserve(self, size: int) -> None:
        """Batches count as they came."""

    def appended(self, size: int, result: AppendResult) -> None:
        """A batch of that size is stored."""
        self.bytes -= size
        if not self.bytes:
            self._none_left.set()

    def append_failed(self, size: int, error: KopError) -> None:
        """A batch of that size is given up."""
        self.bytes -= size
        if not self.bytes:
            self._none_left.set()

    async def wait_until_empty(self) -> None:
        """Wait until every batch has its result."""
        await self._none_left.wait()
