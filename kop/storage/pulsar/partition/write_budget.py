"""The bound on the bytes of batches that wait for Pulsar at a time.

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
    """The bytes of the batches that were submitted and have no result yet, and their bound."""

    def __init__(self, context: PulsarContext) -> None:
        self.bytes = 0
        """The size of all these batches together."""
        self._context = context
        self._most = context.settings.max_queued_bytes
        self.direct: DirectBudget | None = direct_budget(self._most // 2)
        """The bound on batches that compiled code holds, which are not among `bytes`; None without compiled code."""
        self._none_left = asyncio.Event()
        self._none_left.set()

    def refusal(self, size: int) -> KopError | None:
        """Return the error for a batch of that size (bytes) that cannot be accepted now; None if it can. Nothing is
        counted here.
        """
        if self._context.closed:
            return BackendError("the storage engine is closed")
        held = self.bytes if self.direct is None else self.bytes + self.direct.used
        if held + size > self._most:
            return BackendError("as many batches wait for Pulsar as memory is given for: clients try again")
        return None

    def take(self, size: int) -> None:
        """Count a batch of that size, which was submitted."""
        self.bytes += size
        if self.bytes:
            self._none_left.clear()

    def give_back(self, size: int) -> None:
        """Stop counting a batch of that size, which has its result."""
        self.bytes -= size
        if not self.bytes:
            self._none_left.set()

    def close(self) -> None:
        """Make compiled code accept no more batches."""
        if self.direct is not None:
            self.direct.closed = True

    async def wait_until_empty(self) -> None:
        """Wait until every batch that `take` counted has its result. Batches that compiled code holds are not among
        these.
        """
        await self._none_left.wait()
