"""One client connection: frames in, answers out, in order.

Owns: splitting the stream into frames, the order of answers, back-pressure in both directions.
Must not know: what a request means, except that the waits of Produce may overlap.

- All connections receive into one shared buffer. A connection has memory of its own only while a frame is incomplete
  or while it may not go on; a frame's memory grows with what has arrived, not with what its size field claims.
- Requests take effect in the order of their arrival and are answered in that order. Produce waits may overlap; any
  other request first waits for the Produces before it, and nothing is started behind it until it is answered.
- A client that does not read its answers gets no more requests taken; one that sends more than is answered is not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from kop.errors import FrameError
from kop.handlers.base import ConnectionInfo, Frame
from kop.server.dispatch import Answer
from kop.wire.frame import foreign_protocol

if TYPE_CHECKING:
    from kop.server.listener import Server

_GROWTH_FROM = 1024 * 1024
"""A frame up to this size gets its memory at once, a larger one as it arrives."""

log = logging.getLogger(__name__)


# Why no further request of the connection is started. Plain ints: flags of enum cost a microsecond each.
_WAITING = 1  # a request that is no Produce waits
_PRODUCES = 2  # the next request waits for the Produces before it
_MEMORY = 4  # requests not yet answered hold too much memory
_UNREAD = 8  # the client does not read its answers
_DRAINING = 16  # the server stops


class _Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("frame", "observe", "ready")

    def __init__(self, observe: Callable[[], None]) -> None:
        self.frame: Frame | None = None
        self.ready = False
        self.observe = observe


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one connection."""

    __slots__ = (
        "_filled",
        "_first",
        "_frame",
        "_held",
        "_held_bytes",
        "_hold",
        "_paused",
        "_pending",
        "_pending_bytes",
        "_prefix",
        "_server",
        "_size",
        "_slots",
        "_transport",
        "_waiting",
        "frame_since",
        "info",
        "last_active",
        "unread_since",
    )

    def __init__(self, server: Server, advertised: tuple[str, int] | None) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self.info = ConnectionInfo("", "", 0, advertised)
        self.last_active = server.loop.time()
        self.frame_since = 0.0
        """When the incomplete frame began, or 0."""
        self.unread_since = 0.0
        """Since when the client has not read its answers, or 0."""
        self._first = True
        self._prefix = b""
        self._frame: bytearray | None = None
        self._size = 0
        self._filled = 0
        self._held: deque[memoryview] = deque()
        self._held_bytes = 0
        self._hold = 0
        self._paused = False
        self._slots: deque[_Slot] = deque()
        self._pending = 0
        self._pending_bytes = 0
        self._waiting: set[asyncio.Future[Any]] = set()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count in, or refuse."""
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        peer = transport.get_extra_info("peername") or ("?", 0)
        local = transport.get_extra_info("sockname") or ("?", 0)
        self.info.client_host, self.info.local_host, self.info.local_port = peer[0], _plain(local[0]), local[1]
        if not self._server.admit(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._server.limits.unread_bytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what waits for this peer and free its memory."""
        self._transport = None
        for future in list(self._waiting):
            future.cancel()
        self._waiting.clear()
        self._slots.clear()
        self._held.clear()
        self._drop_frame()
        self._server.release(self, self._pending_bytes)
        self._pending_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for what arrives: the rest of the incomplete frame, or the shared buffer."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return self._server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what arrived."""
        self.last_active = self._server.loop.time()
        self._server.count_in(nbytes)
        try:
            if self._frame is not None:
                self._filled += nbytes
                rest = self._frame_grown()
            else:
                rest = self._feed(self._server.receive_buffer[:nbytes], owned=False)
                if rest is not None:
                    rest = memoryview(bytearray(rest))
            if rest is not None:
                self._hold_back(rest)
        except FrameError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        """A client that has closed its half gets no answers any more, as with Kafka."""
        return False

    def pause_writing(self) -> None:
        """The client does not read: take no more of its requests."""
        self.unread_since = self._server.loop.time()
        self._hold |= _UNREAD

    def resume_writing(self) -> None:
        """The client reads again."""
        self.unread_since = 0.0
        self._go_on(_UNREAD)

    # --- frames

    def _feed(self, data: memoryview, *, owned: bool) -> memoryview | None:
        """Take frames from `data`; returns what may not be taken yet, or None."""
        if self._prefix:
            data, owned = memoryview(bytearray(self._prefix) + data), True
            self._prefix = b""
        if self._frame is not None:
            taken = self._take(data)
            data = data[taken:]
            if self._filled < self._size:
                return None
            held = self._finish_frame(data)
            if held is not None:
                return held
        pos, end = 0, len(data)
        while pos < end:
            if self._hold or self._transport is None:
                return data[pos:]
            if end - pos < 4:
                self._prefix = bytes(data[pos:])
                break
            size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
            self._check_size(size, data[pos : pos + 12])
            start = pos + 4
            if start + size > end:
                self._begin_frame(size, data[start:])
                break
            frame = data[start : start + size]
            if not self._may_start(frame):
                return data[pos:]
            pos = start + size
            self._start(frame, owned)
        return None

    def _check_size(self, size: int, start: memoryview) -> None:
        if self._first:
            foreign = foreign_protocol(bytes(start))
            if foreign is not None:
                raise FrameError(f"this is {foreign}")
            self._first = False
        if size < 10:
            raise FrameError(f"a frame of {size} bytes is too small to be a request")
        if size > self._server.limits.request_bytes:
            raise FrameError(
                f"a frame of {size} bytes is larger than socket.request.max.bytes ({self._server.limits.request_bytes})"
            )

    def _begin_frame(self, size: int, start: memoryview) -> None:
        self._size = size
        self._frame = bytearray(min(size, max(_GROWTH_FROM, 2 * len(start))))
        self._filled = 0
        self.frame_since = self._server.loop.time()
        self._server.frame_memory += len(self._frame)
        self._take(start)

    def _take(self, data: memoryview) -> int:
        """Put the start of `data` into the incomplete frame; returns how many bytes were taken."""
        frame = self._frame
        assert frame is not None
        count = min(len(data), self._size - self._filled)
        if self._filled + count > len(frame):
            self._grow(self._filled + count)
            frame = self._frame
            assert frame is not None
        frame[self._filled : self._filled + count] = data[:count]
        self._filled += count
        return count

    def _frame_grown(self) -> memoryview | None:
        """Bytes were received straight into the incomplete frame; returns what may not be taken yet."""
        assert self._frame is not None
        if self._filled == self._size:
            return self._finish_frame(memoryview(b""))
        if self._filled == len(self._frame):
            self._grow(self._filled + 1)
        return None

    def _grow(self, least: int) -> None:
        assert self._frame is not None
        grown = bytearray(min(self._size, max(least, 2 * len(self._frame))))
        grown[: self._filled] = memoryview(self._frame)[: self._filled]
        self._server.frame_memory += len(grown) - len(self._frame)
        self._frame = grown

    def _finish_frame(self, rest: memoryview) -> memoryview | None:
        """Start the frame that is whole now; where that may not be yet, returns it with `rest` behind it."""
        frame = self._frame
        assert frame is not None
        self._drop_frame()
        view = memoryview(frame)
        if self._hold or not self._may_start(view):
            return memoryview(bytearray(b"".join((self._size.to_bytes(4, "big"), frame, rest))))
        self._start(view, owned=True)
        return None

    def _drop_frame(self) -> None:
        if self._frame is not None:
            self._server.frame_memory -= len(self._frame)
            self._frame = None
            self.frame_since = 0.0

    def _hold_back(self, data: memoryview) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= len(self._server.receive_buffer) and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _go_on(self, reason: int) -> None:
        """A reason to wait is gone: take what was held back."""
        self._hold &= ~reason
        try:
            while self._held and not self._hold and self._transport is not None:
                data = self._held.popleft()
                self._held_bytes -= len(data)
                rest = self._feed(data, owned=not data.readonly)
                if rest is not None:
                    self._held.appendleft(rest)
                    self._held_bytes += len(rest)
        except FrameError as error:
            self._refuse(error)
            return
        if self._paused and not self._held and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # --- requests and answers

    def _may_start(self, frame: memoryview) -> bool:
        """False while the request has to wait for the Produces before it."""
        if self._pending and not self._server.dispatcher.is_produce(frame):
            self._hold |= _PRODUCES
            return False
        return True

    def _start(self, frame: memoryview, owned: bool) -> None:
        answer = self._server.dispatcher.dispatch(frame, self.info, owned=owned)
        if answer.waiting is None:
            self._answer_now(answer)
            return
        slot = _Slot(answer.observe)
        self._slots.append(slot)
        future = answer.waiting
        self._waiting.add(future)
        if self._server.dispatcher.is_produce(frame):
            self._pending += 1
            self._hold_memory(len(frame))
            size = len(frame)
            future.add_done_callback(lambda done: self._produced(slot, done, size))
        else:
            self._hold |= _WAITING
            future.add_done_callback(lambda done: self._waited(slot, done))

    def _answer_now(self, answer: Answer) -> None:
        if self._slots:
            slot = _Slot(answer.observe)
            slot.frame, slot.ready = answer.frame, True
            self._slots.append(slot)
            return
        answer.observe()
        if answer.frame is not None:
            self._write(answer.frame)

    def _hold_memory(self, size: int) -> None:
        self._pending_bytes += size
        self._server.request_memory += size
        if self._pending_bytes > self._server.limits.connection_bytes or self._server.memory_is_short():
            self._hold |= _MEMORY

    def _produced(self, slot: _Slot, done: asyncio.Future[Frame | None], size: int) -> None:
        if self._transport is None:
            _retrieve(done)
            return
        self._pending -= 1
        self._pending_bytes -= size
        self._server.request_memory -= size
        if not self._settle(slot, done):
            return
        reason = 0
        if self._hold & _MEMORY and self._pending_bytes <= self._server.limits.connection_bytes // 2:
            reason |= _MEMORY
        if self._hold & _PRODUCES and not self._pending:
            reason |= _PRODUCES
        if reason:
            self._go_on(reason)

    def _waited(self, slot: _Slot, done: asyncio.Future[Frame | None]) -> None:
        if self._transport is None:
            _retrieve(done)
        elif self._settle(slot, done):
            self._go_on(_WAITING)

    def _settle(self, slot: _Slot, done: asyncio.Future[Frame | None]) -> bool:
        """Put an answer in its place and write what is next; False when the connection was closed instead."""
        self._waiting.discard(done)
        if done.cancelled():
            self.abort()
            return False
        error = done.exception()
        if error is not None:
            self._refuse(error)
            return False
        slot.frame, slot.ready = done.result(), True
        slots = self._slots
        while slots and slots[0].ready:
            head = slots.popleft()
            head.observe()
            if head.frame is not None:
                self._write(head.frame)
        return True

    def _write(self, frame: Frame) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.last_active = self._server.loop.time()
        self._server.count_out(sum(map(len, frame)))
        if len(frame) == 1:
            transport.write(frame[0])
        else:
            transport.writelines(frame)

    # --- the end

    def _refuse(self, error: BaseException) -> None:
        """Close because of what the peer sent or what became of it, with one log line."""
        if isinstance(error, FrameError):
            self._server.bad_frame(self, str(error))
        else:
            log.error("closing the connection of %s", self.describe(), exc_info=error)
        self.abort()

    def abort(self) -> None:
        """Close at once, dropping what is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def drain(self) -> bool:
        """Start nothing new; True once nothing is under way but long polls, and all answers are sent."""
        self._hold |= _DRAINING
        transport = self._transport
        return transport is None or (self._pending == 0 and transport.get_write_buffer_size() == 0)

    def close(self) -> None:
        """Close after what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def busy(self) -> bool:
        """True while a request is under way."""
        return bool(self._waiting)

    def describe(self) -> str:
        """The peer, for the log."""
        software = f" ({self.info.software_name} {self.info.software_version})" if self.info.software_name else ""
        return f"{self.info.client_host}{software}"


def _plain(host: str) -> str:
    """An IPv4 address as such where a dual-stack socket shows it mapped into IPv6."""
    return host.removeprefix("::ffff:") if "." in host else host


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Look at a result that nobody waits for any more, so that it is not reported as forgotten."""
    if not done.cancelled():
        done.exception()
