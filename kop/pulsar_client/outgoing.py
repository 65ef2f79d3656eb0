"""SEND frames that are written to one connection at the end of a turn of the loop.

Owns: the frames and their size until then, and when writing is planned.
Must not know: sockets, what a frame holds, which producer it is of.

Compiled code puts frames into the same object (`kop/_native/src/direct/`), so the class has a compiled twin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from kop.compiled import compiled


class Outgoing:
    """The frames of one connection.

    `on_first` is called with the first frame, `on_full` with each one from which on there are `most` bytes.
    """

    def __init__(self, most: int, on_first: Callable[[], None], on_full: Callable[[], None]) -> None:
        self._most = most
        self._on_first: Callable[[], None] | None = on_first
        self._on_full: Callable[[], None] | None = on_full
        self._frames: list[bytes] = []
        self.size = 0
        """Bytes of the frames."""
        self.paused = False
        """True if the peer takes less than is written, so that producers keep their entries back."""

    def push(self, frame: bytes) -> None:
        """Take a frame behind all others; it is dropped where the connection is closed."""
        if self._on_first is None or self._on_full is None:
            return
        self._frames.append(frame)
        self.size += len(frame)
        if self.size >= self._most:
            self._on_full()
        elif len(self._frames) == 1:
            self._on_first()

    def take(self) -> list[bytes]:
        """Return all frames, which are the caller's now."""
        frames, self._frames, self.size = self._frames, [], 0
        return frames

    def close(self) -> None:
        """Drop all frames, and those that come."""
        self._frames, self.size, self.paused = [], 0, True
        self._on_first = self._on_full = None


twin = compiled(sys.modules[__name__])
