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
    """The SEND frames of one connection that wait for the end of the loop's turn.

    `on_first` is called with the first frame, `on_full` with each one from which on there are `most` bytes.
    """

    def __init__(self, most: int, on_first: Callable[[], None], on_full: Callable[[], None]) -> None:
        self._most = most
        self._on_first: Callable[[], None] | None = on_first
        self._on_full: Callable[[], None] | None = on_full
        self._frames: list[bytes] = []
        self.size = 0
        """The bytes of all frames that wait."""
        self.paused = False
        """True if the socket takes no more for now, so that producers keep their entries back."""

    def push(self, frame: bytes) -> None:
        """Put a frame behind all others, and call `on_full` if they have `most` bytes now, else `on_first` if it is the
        first. Once the connection is closed the frame is dropped.
        """
        if self._on_first is None or self._on_full is None:
            return
        self._frames.append(frame)
        self.size += len(frame)
        if self.size >= self._most:
            self._on_full()
        elif len(self._frames) == 1:
            self._on_first()

    def take(self) -> list[bytes]:
        """Remove all frames and return them."""
        frames, self._frames, self.size = self._frames, [], 0
        return frames

    def close(self) -> None:
        """Drop all frames, and those that come later: the connection is closed."""
        self._frames, self.size, self.paused = [], 0, True
        self._on_first = self._on_full = None


twin = compiled(sys.modules[__name__])
