"""How far a reader is in its topic, whatever connection it is on.

Owns: the position behind which to go on, and how many messages the broker may still send.
Must not know: sockets.
"""

from __future__ import annotations

from kop.pulsar_client.types import EARLIEST, Position


class ReaderPosition:
    """The last entry that a reader got, and how many messages the broker may still send it."""

    __slots__ = ("_inclusive", "_start", "last", "permits")

    def __init__(self, start: Position, inclusive: bool, permits: int) -> None:
        self._start = start
        self._inclusive = inclusive
        self.last: Position | None = None
        """The last entry that was delivered."""
        self.permits = permits
        """Messages that the broker may send. Negative where its first read gave more: that counts entries."""

    def start(self) -> Position:
        """The entry to begin with at a subscription, the first or a later one. If it is not kept, the next kept one."""
        behind = self.last
        if behind is None:
            if self._inclusive or self._start.entry < 0 or self._start.entry == 2**63 - 1:
                return self._start
            behind = self._start
        return Position(behind.ledger, behind.entry + 1)

    def pin(self, behind: Position) -> None:
        """Note where a reader that began at the end stands, so that it goes on from there though nothing came yet."""
        if self.last is None:
            self._start, self._inclusive = Position(behind.ledger, behind.entry + 1), True

    def take(self, position: Position, messages: int) -> bool:
        """Count a delivered entry. False for one that is not wanted."""
        self.permits -= messages
        if not self.wants(position):
            return False
        self.last = position
        return True

    def wants(self, position: Position) -> bool:
        """False for an entry that was delivered before, or stands before the start."""
        if self.last is not None:
            return position > self.last
        return self._start == EARLIEST or position >= self.start() or self._start.entry == 2**63 - 1

    def add(self, messages: int) -> int:
        """Let the broker send more messages; returns the number to tell it."""
        self.permits += messages
        return messages

    def restored(self) -> int:
        """The permits to tell a broker at a new subscription."""
        self.permits = max(0, self.permits)
        return self.permits

    def seek(self, position: Position, inclusive: bool) -> None:
        """Go on at another place."""
        self._start, self._inclusive, self.last = position, inclusive, None
