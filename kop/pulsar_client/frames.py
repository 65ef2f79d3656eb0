"""The stream of a connection cut into frames.

Owns: the memory that is received into.
Must not know: what a frame says.

All reads go to one shared buffer, as large as a system call is worth. A frame that is whole in it is handed out in
place: whoever keeps something of it copies that. Of one that is not whole, the rest is read straight to its place.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.wire import DEFAULT_MAX_MESSAGE_SIZE, FRAME_PADDING

_U32 = Struct(">I")
_SHARED_BYTES = 256 * 1024
_TEXT_OF_HTTP = (b"HTTP", b"\x15\x03")


class Frames:
    """Cuts one connection's stream; `get_buffer` and `updated` are those of asyncio.BufferedProtocol."""

    __slots__ = ("_frame", "_have", "_on_frame", "_prefix", "_shared", "limit")

    def __init__(self, on_frame: Callable[[memoryview], None], shared: memoryview | None = None) -> None:
        self._on_frame = on_frame
        self._shared = shared if shared is not None else memoryview(bytearray(_SHARED_BYTES))
        self._prefix = b""
        self._frame: memoryview | None = None
        self._have = 0
        self.limit = DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING
        """The largest frame taken, in bytes."""

    @staticmethod
    def shared_buffer() -> memoryview:
        """Memory that the connections of one event loop may share: a read and its handling are one step."""
        return memoryview(bytearray(_SHARED_BYTES))

    def get_buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._frame is not None:
            return self._frame[self._have :]
        return self._shared

    def updated(self, count: int) -> None:
        """Take `count` bytes that were received; calls `on_frame` with each frame that is whole (behind its size).

        A frame's bytes are its own during the call only.
        """
        frame = self._frame
        if frame is not None:
            self._have += count
            if self._have == len(frame):
                self._frame = None
                self._on_frame(frame.toreadonly())
            return
        view = self._shared[:count].toreadonly()
        if self._prefix:
            view = memoryview(self._prefix + bytes(view))
            self._prefix = b""
        self._cut(view)

    def _cut(self, view: memoryview) -> None:
        at, end = 0, len(view)
        limit, on_frame = self.limit, self._on_frame
        while end - at >= 4:
            size = _U32.unpack_from(view, at)[0]
            if size > limit:
                raise PulsarError("FrameError", _too_large(size, bytes(view[at : at + 4])))
            at += 4
            if end - at < size:
                self._frame = memoryview(bytearray(size))
                self._have = end - at
                self._frame[: self._have] = view[at:]
                return
            on_frame(view[at : at + size])
            at += size
        self._prefix = bytes(view[at:])


def _too_large(size: int, first: bytes) -> str:
    if first.startswith(_TEXT_OF_HTTP):
        what = "an HTTP server" if first.startswith(b"HTTP") else "a TLS server"
        return f"{what} answers there, not Pulsar's binary protocol: see the address's scheme and port"
    return f"a frame of {size} bytes: not Pulsar's binary protocol, or a limit that changed"
