"""Batches of open transactions that this broker wrote, until the tail brings them.

Owns: their bytes as they came in, the bound on these over all partitions, oldest out first.
Must not know: how a transaction ends, who reads, which offsets the batches have.

A batch of a transaction follows in the log when Pulsar hands it out, which is after the commit. Then it is served in
the bytes that came in, as batches without a transaction are, and need not be made of Pulsar's entry again. One that is
not kept any more, or was written by another broker, is made of its entry.
"""

from __future__ import annotations

from collections.abc import Callable

from kop.pulsar_client import Position
from kop.storage.base import Buffer

_BATCH_BYTES = 200
"""What a kept batch costs beside its bytes."""


class OpenBatches:
    """All of them. A batch is known by who keeps it, one object for each partition, and by its entry's position."""

    def __init__(self, max_bytes: int, on_change: Callable[[int], None] | None = None) -> None:
        """`on_change(size)` is called with the bytes kept, each time they change."""
        self._max_bytes = max_bytes
        self._on_change = on_change
        self._kept: dict[tuple[object, Position], Buffer] = {}
        self.size = 0
        """Bytes kept, with an allowance for each batch."""

    def keep(self, owner: object, position: Position, data: Buffer) -> None:
        """Keep a batch; the oldest ones of any partition go where there is no room."""
        self.take(owner, position)
        self._kept[owner, position] = data
        self.size += len(data) + _BATCH_BYTES
        while self.size > self._max_bytes:
            self.take(*next(iter(self._kept)))
        if self._on_change is not None:
            self._on_change(self.size)

    def take(self, owner: object, position: Position) -> Buffer | None:
        """Keep the batch no longer; None where it was not kept."""
        data = self._kept.pop((owner, position), None)
        if data is not None:
            self.size -= len(data) + _BATCH_BYTES
            if self._on_change is not None:
                self._on_change(self.size)
        return data
