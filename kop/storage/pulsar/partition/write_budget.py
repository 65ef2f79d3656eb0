"""How many bytes of batches wait for Pulsar at a time.

Owns: their sum, refusing a batch that would exceed the limit, waiting until none is left.
Must not know: what becomes of a batch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kop.errors import BackendError, KopError
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.partition.direct_writers import direct_budget

if TYPE_CHECKING:
    from kop._native import DirectBudget


class WriteBudget:
    """The batches that were taken and have no result yet."""

    def __init__(self, context: PulsarContext) -> None:
        self.bytes = 0
        """The size of all these batches together."""
        self._context = context
        self._most = context.settings.max_queued_bytes
        self.direct: DirectBudget | None = direct_budget(self._most // 2)
        """The same for batches that compiled code holds, which are not among `bytes`; None without that."""
        self._none_left = asyncio.Event()
        self._none_left.set()

    def refusal(self, size: int) -> KopError | None:
        """Return why a batch of that size cannot be taken now; None where it can."""
        if self._context.closed:
            return BackendError("the storage engine is closed")
        held = self.bytes if self.direct is None else self.bytes + self.direct.used
        if held + size > self._most:
            return BackendError("as many batches wait for Pulsar as memory is given for: clients try again")
        return None

    def take(self, size: int) -> None:
        """Count a batch of that size: it was taken."""
        self.bytes += size
        if self.bytes:
            self._none_left.clear()

    def give_back(self, size: int) -> None:
        """Count a batch of that size no more: it has its result."""
        self.bytes -= size
        if not self.bytes:
            self._none_left.set()

    def close(self) -> None:
        """Have compiled code take nothing any more."""
        if self.direct is not None:
            self.direct.closed = True

    async def wait_until_empty(self) -> None:
        """Wait until every batch has its result."""
        await self._none_left.wait()
