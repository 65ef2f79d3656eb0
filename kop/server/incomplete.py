"""A frame of which not all has arrived, in memory of its own.

Owns: that memory, which grows with what has arrived and not with what the frame's size claims.
Must not know: whose frame it is, how much memory there is.
"""

from __future__ import annotations

AT_ONCE = 1024 * 1024
"""A frame up to this size gets its memory at once while there is plenty, a larger one as it arrives."""
SMALLEST = 4096
"""Memory of a frame of which nearly nothing has arrived."""


class Incomplete:
    """`buffer` holds the first `filled` of the frame's `size` bytes and room for more."""

    __slots__ = ("buffer", "filled", "since", "size")

    def __init__(self, size: int, start: memoryview, *, plenty: bool, now: float) -> None:
        """`start` is what has arrived, less than `size`; `plenty`: there is much memory."""
        self.size = size
        self.filled = len(start)
        self.since = now
        """When it began."""
        self.buffer = bytearray(min(size, max(AT_ONCE if plenty else SMALLEST, 2 * self.filled)))
        self.buffer[: self.filled] = start

    def room(self) -> memoryview:
        """Where the next bytes go. Never empty after `grow`."""
        return memoryview(self.buffer)[self.filled :]

    def take(self, data: memoryview) -> tuple[int, int]:
        """Copy the start of `data`; returns how many bytes that were, and how much memory more it took."""
        count = min(len(data), self.size - self.filled)
        stop = self.filled + count
        grown = self.grow(stop) if stop > len(self.buffer) else 0
        self.buffer[self.filled : stop] = data[:count]
        self.filled = stop
        return count, grown

    def grow(self, least: int) -> int:
        """Make room for `least` bytes in all and double the memory at least; returns how much more it is."""
        grown = bytearray(min(self.size, max(least, 2 * len(self.buffer))))
        grown[: self.filled] = memoryview(self.buffer)[: self.filled]
        more = len(grown) - len(self.buffer)
        self.buffer = grown
        return more
