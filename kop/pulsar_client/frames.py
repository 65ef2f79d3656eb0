"""The stream of a connection cut into frames, and these taken apart.

Owns: the memory that is received into.
Must not know: what is done with what a frame says.

All reads go to one shared buffer, as large as a system call is worth. A message that is whole in it is handed out in
place: whoever keeps something of it copies that. Of a frame that is not whole, the rest is read straight to its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kop.compiled import compiled
from kop.pulsar_client import _pure
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.types import Received
from kop.pulsar_client.wire import DEFAULT_MAX_MESSAGE_SIZE, FRAME_PADDING

if TYPE_CHECKING:
    from kop import _native as twin
else:
    twin = compiled(_pure)

_SHARED_BYTES = 256 * 1024
_TEXT_OF_HTTP = (b"HTTP", b"\x15\x03")


class Frames:
    """The cutting of one connection's stream into frames; `get_buffer` and `updated` are those of
    asyncio.BufferedProtocol.
    """

    __slots__ = ("_frame", "_have", "_on_received", "_prefix", "_shared", "limit")

    def __init__(self, on_received: Callable[[Sequence[Received]], None], shared: memoryview | None = None) -> None:
        """Begin a stream. `on_received` is called with the contents of the frames of one read, in order; views in them
        hold during the call only.
        """
        self._on_received = on_received
        self._shared = shared if shared is not None else memoryview(bytearray(_SHARED_BYTES))
        self._prefix = b""
        self._frame: memoryview | None = None
        self._have = 0
        self.limit = DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING
        """The largest size of a frame that is accepted, in bytes."""

    @staticmethod
    def shared_buffer() -> memoryview:
        """Return a receive buffer that all connections of one event loop may share, since a read and its handling are
        one step.
        """
        return memoryview(bytearray(_SHARED_BYTES))

    def get_buffer(self) -> memoryview:
        """Return the memory for the bytes that arrive next."""
        if self._frame is not None:
            return self._frame[self._have :]
        return self._shared

    def updated(self, count: int) -> None:
        """Handle `count` bytes that arrived, and call `on_received`. PulsarError FrameError if a frame is faulty; those
        before it were handed on.
        """
        frame = self._frame
        if frame is not None:
            self._have += count
            if self._have < len(frame):
                return
            self._frame = None
            view = frame.toreadonly()
        else:
            view = self._shared[:count].toreadonly()
            if self._prefix:
                view = memoryview(self._prefix + bytes(view))
                self._prefix = b""
        received, used, next_size, fault = twin.read_frames(view, self.limit)
        left = view[used:]
        if next_size > self.limit:
            fault = _too_large(next_size, bytes(left[:4]))
        elif next_size >= 0:
            self._frame = memoryview(bytearray(4 + next_size))
            self._have = len(left)
            self._frame[: self._have] = left
        elif not fault:
            self._prefix = bytes(left)
        if received:
            self._on_received(received)
        if fault:
            raise PulsarError("FrameError", fault)


def _too_large(size: int, first: bytes) -> str:
    if first.startswith(_TEXT_OF_HTTP):
        what = "an HTTP server" if first.startswith(b"HTTP") else "a TLS server"
        return f"{what} answers there, not Pulsar's binary protocol: see the address's scheme and port"
    return f"a frame of {size} bytes: not Pulsar's binary protocol, or a limit that changed"
