"""Bytes in, frames out: the stream of one connection is cut into requests. No sockets, no clock.

Owns: the bytes of a frame that has not arrived whole, in memory which grows with what has arrived and not with what the
frame's size claims; the checks of a frame's size; what a peer of another protocol is told.
Must not know: what a request means, whether it may be started, how much memory there is.

Rules
- A frame is four bytes of size, then as many bytes as they say. Sizes from `SMALLEST` (before a login from 0) to the
  limit are taken; any other is a FrameError, and nothing that follows it can be told apart.
- `next` gives a view of the data that it was given where the frame lies in it whole. It changes nothing then: a caller
  that may not start the frame gives the same bytes again later.
- What is left of the data where no frame is whole is copied. Until that frame is whole its caller fills
  `incomplete.room()`, or calls `incomplete.take`.
"""

from __future__ import annotations

from typing import Final

from kop.errors import FrameError
from kop.wire.frame import foreign_protocol

SMALLEST: Final = 10
"""The size in bytes of the shortest request header."""
AT_ONCE: Final = 1024 * 1024
"""The size in bytes up to which a frame gets its memory at once while there is plenty; a larger one gets it as it
arrives.
"""
FIRST_MEMORY: Final = 4096
"""The bytes of memory for a frame of which nearly nothing has arrived."""
_LOOKED_AT: Final = 12
"""The number of first bytes by which another protocol than Kafka's is recognised."""


class IncompleteFrame:
    """A frame of which only a part has arrived. `buffer` holds the first `filled` of its `size` bytes and room for
    more.
    """

    __slots__ = ("buffer", "filled", "since", "size")

    def __init__(self, size: int, start: memoryview, *, plenty: bool) -> None:
        """Begin a frame. `start` is the part that has arrived, less than `size` bytes. `plenty` is true if there is
        much memory: then a frame of up to 1 MiB gets all of its memory now.
        """
        self.size = size
        self.filled = len(start)
        self.since = 0.0
        """The time at which the frame began; its caller sets it."""
        self.buffer = bytearray(min(size, max(AT_ONCE if plenty else FIRST_MEMORY, 2 * self.filled)))
        self.buffer[: self.filled] = start

    def room(self) -> memoryview:
        """Return the part of the buffer that is not filled, for the next bytes. Never empty after `grow`."""
        return memoryview(self.buffer)[self.filled :]

    def take(self, data: memoryview) -> tuple[int, int]:
        """Copy the start of `data` into the frame, as far as the frame reaches; return the number of bytes copied, and
        the bytes of memory that the frame has grown by.
        """
        count = min(len(data), self.size - self.filled)
        stop = self.filled + count
        grown = self.grow(stop) if stop > len(self.buffer) else 0
        self.buffer[self.filled : stop] = data[:count]
        self.filled = stop
        return count, grown

    def grow(self, least: int) -> int:
        """Make room for at least `least` bytes in all, by doubling the memory at least, up to the size of the frame;
        return the bytes that it has grown by.
        """
        grown = bytearray(min(self.size, max(least, 2 * len(self.buffer))))
        grown[: self.filled] = memoryview(self.buffer)[: self.filled]
        more = len(grown) - len(self.buffer)
        self.buffer = grown
        return more


class FrameSplitter:
    """The cutting of one connection's stream into frames. `incomplete` is the frame of which a part has arrived, or
    None.
    """

    __slots__ = ("_first", "_prefix", "incomplete", "largest", "smallest")

    def __init__(self, largest: int) -> None:
        """`largest`: the bytes that a frame may have."""
        self.largest = largest
        """The bytes that a frame may have."""
        self.smallest = SMALLEST
        """The bytes that a frame has to have: before a login less, since a token may come without any header."""
        self._first = True
        self._prefix = b""
        """The first bytes of a frame's size, up to three, while the fourth has not arrived."""
        self.incomplete: IncompleteFrame | None = None

    def joined(self, data: memoryview) -> tuple[memoryview, bool]:
        """Return the bytes to be cut: the first bytes of a frame's size that came before, if there are any, and `data`
        behind them. Return true as well if that was copied, to memory of its own.
        """
        if not self._prefix:
            return data, False
        whole = memoryview(bytearray(self._prefix) + data)
        self._prefix = b""
        return whole, True

    def next(self, data: memoryview, pos: int, *, plenty: bool = True) -> memoryview | None:
        """Return the frame whose size field begins at `pos`, without that field.

        None if it is not whole: its bytes so far were copied then, to `incomplete` if the size is known. FrameError if
        no request can have the size. `plenty` is true if there is much memory, for a frame that is not whole.
        """
        start = pos + 4
        end = len(data)
        if start > end:
            self._prefix = bytes(data[pos:])
            return None
        size = int.from_bytes(data[pos:start], "big", signed=True)
        if self._first or not SMALLEST <= size <= self.largest:
            self._check_size(size, bytes(data[pos : pos + _LOOKED_AT]))
        stop = start + size
        if stop > end:
            self.incomplete = IncompleteFrame(size, data[start:], plenty=plenty)
            return None
        return data[start:stop]

    def completed(self) -> memoryview | None:
        """Return the incomplete frame once it is whole, in memory of its own, and keep it no longer; None before."""
        frame = self.incomplete
        if frame is None or frame.filled < frame.size:
            return None
        self.incomplete = None
        return memoryview(frame.buffer)

    def clear(self) -> None:
        """Drop the bytes of a frame that has not arrived whole."""
        self.incomplete = None
        self._prefix = b""

    def _check_size(self, size: int, start: bytes) -> None:
        if self._first:
            foreign = foreign_protocol(start)
            if foreign is not None:
                raise FrameError(f"this is {foreign}")
            self._first = False
        if size < self.smallest:
            raise FrameError(f"a frame of {size} bytes is too small to be a request")
        if size > self.largest:
            raise FrameError(
                f"a frame of {size} bytes is larger than {self.largest} (socket.request.max.bytes; "
                "sasl.server.max.receive.size before a client has logged in)"
            )
