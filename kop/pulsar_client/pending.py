"""The entries that a producer was given and that have no receipt yet.

Owns: their order, which of them are not on the wire yet, which expire.
Must not know: sockets, who waits for the futures, the clock.
"""

from __future__ import annotations

import asyncio
from collections import deque

from kop.pulsar_client.types import Buffer, Position


class PendingEntry:
    """One entry that waits for its receipt."""

    __slots__ = (
        "deadline",
        "future",
        "highest_sequence_id",
        "metadata",
        "num_messages",
        "payload",
        "sequence_id",
        "size",
        "times",
    )

    def __init__(
        self,
        sequence_id: int,
        highest_sequence_id: int | None,
        num_messages: int,
        metadata: Buffer,
        payload: Buffer,
        future: asyncio.Future[Position],
        deadline: float,
    ) -> None:
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.num_messages = num_messages
        self.metadata = metadata
        self.payload = payload
        self.size = len(metadata) + len(payload)
        self.future = future
        self.deadline = deadline
        self.times = 0
        """How often it was put on the wire."""


class PendingEntries:
    """The entries of one producer between `send` and their receipts, in order."""

    __slots__ = ("_pending", "_unsent", "bytes")

    def __init__(self) -> None:
        self._pending: dict[int, PendingEntry] = {}
        self._unsent: deque[PendingEntry] = deque()
        self.bytes = 0
        """Bytes of all pending entries."""

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._pending

    def add(self, item: PendingEntry) -> None:
        """Take an entry, behind all others."""
        self._pending[item.sequence_id] = item
        self._unsent.append(item)
        self.bytes += item.size

    def next_unsent(self) -> PendingEntry | None:
        """The next entry to put on the wire, counted as put there."""
        while self._unsent:
            item = self._unsent.popleft()
            if self._pending.get(item.sequence_id) is item:
                item.times += 1
                return item
        return None

    @property
    def all_sent(self) -> bool:
        """True when nothing waits to be put on the wire."""
        return not self._unsent

    def rewind(self) -> None:
        """Forget what was put on the wire: every pending entry is to be sent, or sent again, in order."""
        self._unsent = deque(self._pending.values())

    def refused(self, sequence_id: int) -> PendingEntry | None:
        """The pending entry that the broker refuses: it names a batch by its highest sequence id, not by its first."""
        item = self._pending.get(sequence_id)
        if item is None:
            return next((item for item in self._pending.values() if item.highest_sequence_id == sequence_id), None)
        return item

    def take(self, sequence_id: int) -> PendingEntry | None:
        """Remove an entry that was answered; None where nothing waits for that answer any more."""
        item = self._pending.pop(sequence_id, None)
        if item is not None:
            self.bytes -= item.size
        return item

    def deadline(self) -> float | None:
        """When the oldest expires."""
        for item in self._pending.values():
            return item.deadline
        return None

    def clear(self) -> list[PendingEntry]:
        """Remove all, in order."""
        items = list(self._pending.values())
        self._pending.clear()
        self._unsent.clear()
        self.bytes = 0
        return items

    def expire(self, now: float) -> list[PendingEntry]:
        """All entries, in order, if the oldest has expired; else none.

        All, because what stands behind it must not be stored without it: a retry of the oldest would then be dropped as
        a duplicate.
        """
        deadline = self.deadline()
        return self.clear() if deadline is not None and deadline <= now else []
