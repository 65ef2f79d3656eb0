"""One client connection: frames in, answers out, in order.

Owns: splitting the stream into frames, the order of answers, back-pressure in both directions.
Must not know: what a request means, except that the waits of Produce may overlap.

- All connections receive into one shared buffer. A connection has memory of its own only while a frame is incomplete
  or while it may not go on; a frame's memory grows with what has arrived, not with what its size field claims.
- Requests take effect in the order of their arrival and are answered in that order. Produce waits may overlap; any
  other request first waits for the Produces before it, and nothing is started behind it until it is answered.
- A client that does not read its answers gets no more requests taken; one that sends more than is answered is not read.
  What all connections hold together is bounded (`pressure.py`).
- A client that has many small requests under way lets others have their turn every few milliseconds.
- When the peer is gone, or sent what it must not, its waits are cancelled and its memory is freed at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from kop.errors import FrameError
from kop.handlers.base import ConnectionInfo, Frame
from kop.server.dispatch import Answer
from kop.server.incomplete import Incomplete
from kop.server.peer import describe, has_closed, plain_host
from kop.wire.frame import foreign_protocol

if TYPE_CHECKING:
    from kop.server.listener import Server

_MOST_HELD = 64 * 1024
"""Bytes held back behind a waiting request from which on the socket is not read."""
_MERGED = 16 * 1024
"""Pieces held back are put together up to this size: each is an object, whatever its size."""
_TURN_SECONDS = 0.003
_LARGE_ANSWER = 64 * 1024
"""An answer from this size on is charged when it is written, a smaller one when it is seen to lie unread."""

log = logging.getLogger(__name__)


# Why no further request of the connection is started. Plain ints: flags of enum cost a microsecond each.
_WAITING = 1  # a request that is no Produce waits
_PRODUCES = 2  # the next request waits for the Produces before it
_PENDING = 4  # Produces that are not answered yet hold too much memory
_UNREAD = 8  # the client does not read its answers
_MEMORY = 16  # all connections together hold too much memory for a Fetch
_TURN = 32  # others have their turn
_DRAINING = 64  # the server stops
_CLOSED = 128  # nothing is taken any more


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
        "_charged",
        "_ended",
        "_feeding",
        "_first",
        "_frame",
        "_held",
        "_held_bytes",
        "_hold",
        "_mark",
        "_memory",
        "_paused",
        "_pending",
        "_pending_bytes",
        "_polling",
        "_prefix",
        "_ready",
        "_server",
        "_slots",
        "_starved",
        "_transport",
        "_turn_ends",
        "_unread",
        "_waiting",
        "closing_since",
        "info",
        "last_active",
        "unread_since",
    )

    def __init__(self, server: Server, advertised: tuple[str, int] | None) -> None:
        self._server = server
        self._memory = server.memory
        self._transport: asyncio.Transport | None = None
        self.info = ConnectionInfo("", "", 0, advertised)
        self.last_active = server.loop.time()
        self.unread_since = 0.0
        """Since when the client has not read its answers, or 0."""
        self.closing_since = 0.0
        """Since when the connection is about to be closed, or 0."""
        self._mark = (0.0, 0)
        # What came in: up to three bytes of a size; then one frame, incomplete (`_frame`) or whole and not to be
        # started yet (`_ready`); then what may not even be split yet. At most one of the three frames' places is taken.
        self._first = True
        self._prefix = b""
        self._frame: Incomplete | None = None
        self._ready: memoryview | None = None
        self._held: deque[memoryview] = deque()
        self._held_bytes = 0
        self._hold = 0
        self._feeding = False
        self._turn_ends = 0.0
        self._paused = False
        self._starved = False
        self._ended = False
        # What goes out.
        self._slots: deque[_Slot] = deque()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._polling = False
        self._pending = 0
        self._pending_bytes = 0
        self._unread = 0
        self._charged = 0

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count in, or refuse."""
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        peer = transport.get_extra_info("peername") or ("?", 0)
        local = transport.get_extra_info("sockname") or ("?", 0)
        self.info.client_host, self.info.local_host, self.info.local_port = peer[0], plain_host(local[0]), local[1]
        if not self._server.admit(self):
            self._hold |= _CLOSED
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._server.limits.unread_bytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what waits for this peer and free its memory."""
        self._leave()
        self._transport = None
        self._server.release(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for what arrives: the rest of the incomplete frame, or the shared buffer."""
        if self._frame is not None:
            return self._frame.room()
        return self._server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what arrived."""
        server = self._server
        self.last_active = server.loop.time()
        server.bytes_in += nbytes
        if self._hold & _CLOSED:
            return
        if self._unread:
            self.settle_unread()
        self._feeding = True
        self._turn_ends = 0.0
        try:
            if self._frame is not None:
                self._frame.filled += nbytes
                self._frame_grown()
            else:
                rest = self._feed(server.receive_buffer[:nbytes], own=False)
                if rest is not None:
                    self._hold_back(rest)
        except Exception as error:
            self._refuse(error)
        finally:
            self._feeding = False

    def eof_received(self) -> bool:
        """A client that has closed its half gets no answers any more, as with Kafka.

        But what it sent takes effect: a producer with acks=0 may close right after its last request. Only a long poll
        is not waited for.
        """
        if self._hold & _CLOSED or self._polling or not (self._held or self._ready is not None):
            return False
        self._ended = True
        return True

    def pause_writing(self) -> None:
        """The client does not read: take no more of its requests."""
        self.unread_since = self._server.loop.time()
        self._hold |= _UNREAD
        self.settle_unread()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.unread_since = 0.0
        self.settle_unread()
        self._go_on(_UNREAD)

    # --- frames

    def _feed(self, data: memoryview, *, own: bool) -> memoryview | None:
        """Take frames from `data`; returns what may not be taken yet, or None.

        `own`: the memory is this connection's alone, else it is the shared buffer.
        """
        if self._prefix:
            data, own = memoryview(bytearray(self._prefix) + data), True
            self._prefix = b""
        pos, end = 0, len(data)
        if self._frame is not None:
            pos = self._take(data)
            self._frame_grown()
        most = self._server.limits.request_bytes
        while pos < end:
            if self._hold:
                return data[pos:]
            start = pos + 4
            if start > end:
                self._prefix = bytes(data[pos:])
                break
            size = int.from_bytes(data[pos:start], "big", signed=True)
            if self._first or not 10 <= size <= most:
                self._check_size(size, data[pos : pos + 12])
            stop = start + size
            if stop > end:
                self._begin_frame(size, data[start:])
                break
            frame = data[start:stop]
            if not self._may_start(frame):
                return data[pos:]
            pos = stop
            # A small frame must not keep the memory of all that came with it.
            self._start(frame, own and 2 * size >= len(cast(bytearray, data.obj)))
            if pos < end:
                self._look_at_the_clock()
        return None

    def _look_at_the_clock(self) -> None:
        """Between two requests that came together: do others wait for too long?"""
        now = perf_counter()
        if not self._turn_ends:
            self._turn_ends = now + _TURN_SECONDS
        elif now > self._turn_ends and not self._hold & _TURN:
            self._hold |= _TURN
            self._server.loop.call_soon(self._go_on, _TURN)

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
        plenty = self._memory.used < self._memory.limit // 4
        self._frame = Incomplete(size, start, plenty=plenty, now=self._server.loop.time())
        self._charge(len(self._frame.buffer))

    def _take(self, data: memoryview) -> int:
        """Put the start of `data`, which was held back, into the incomplete frame; returns how many bytes."""
        assert self._frame is not None
        count, grown = self._frame.take(data)  # no more memory than the piece held
        self._charge(grown)
        if self._starved:
            self._starved = False
            self._memory.forget(self)
        return count

    def _frame_grown(self) -> None:
        """Bytes came into the incomplete frame: start it when it is whole, else see that there is room for more."""
        frame = self._frame
        assert frame is not None
        left = frame.size - frame.filled
        if not left:
            self._frame = None
            view = memoryview(frame.buffer)
            if self._hold or not self._may_start(view):
                self._ready = view
                return
            self._discharge(len(view))
            self._start(view, own=True)
        elif frame.filled == len(frame.buffer):
            self._server.dispatcher.check_large(memoryview(frame.buffer), frame.size)
            if self._memory.short and left > _MOST_HELD:  # who needs little more soon frees much
                self._starved = True
                self._memory.wait(self)
                self._pause()
            else:
                self._charge(frame.grow(frame.filled + 1))

    # --- what may not be taken yet

    def _hold_back(self, data: memoryview) -> None:
        """Keep a copy of what arrived, and stop reading where that is much."""
        held = self._held
        if held and len(held[-1]) + len(data) <= _MERGED:
            piece = memoryview(bytearray(b"".join((held.pop(), data))))
        else:
            piece = memoryview(bytearray(data))
        held.append(piece)
        self._held_bytes += len(data)
        self._charge(len(data))
        if self._held_bytes >= _MOST_HELD:
            self._pause()

    def _go_on(self, reason: int) -> None:
        """A reason to wait is gone: take what was held back."""
        self._hold &= ~reason
        if self._hold or self._feeding:
            return
        self._feeding = True
        self._turn_ends = 0.0
        try:
            self._catch_up()
        except Exception as error:
            self._refuse(error)
        finally:
            self._feeding = False

    def _catch_up(self) -> None:
        ready = self._ready
        if ready is not None:
            if not self._may_start(ready):
                return
            self._ready = None
            self._discharge(len(ready))
            self._start(ready, own=True)
        while self._held and not self._hold:
            data = self._held.popleft()
            rest = self._feed(data, own=True)
            if self._hold & _CLOSED:
                return
            if rest is not None:
                self._held.appendleft(rest)
            taken = len(data) - (0 if rest is None else len(rest))
            self._held_bytes -= taken
            self._discharge(taken)
        if self._paused and self._held_bytes < _MOST_HELD // 2:
            self._read_on()
        if self._ended and not self._held and self._ready is None:
            self.close()

    def _pause(self) -> None:
        transport = self._transport
        if not self._paused and transport is not None and not transport.is_closing():
            self._paused = True
            transport.pause_reading()

    def _read_on(self) -> None:
        transport = self._transport
        if self._paused and not self._starved and transport is not None and not transport.is_closing():
            self._paused = False
            transport.resume_reading()

    # --- requests and answers

    def _may_start(self, frame: memoryview) -> bool:
        """False while the request has to wait: for the Produces before it, or a Fetch for memory."""
        if self._pending and not self._server.dispatcher.is_produce(frame):
            self._hold |= _PRODUCES
            return False
        if self._memory.used > self._memory.limit and self._server.dispatcher.is_fetch(frame):
            self._hold |= _MEMORY
            self._memory.wait(self)
            return False
        return True

    def _start(self, frame: memoryview, own: bool) -> None:
        dispatcher = self._server.dispatcher
        answer = dispatcher.dispatch(frame, self.info, owned=own)
        future = answer.waiting
        if future is None:
            self._answer_now(answer)
            return
        slot = _Slot(answer.observe)
        self._slots.append(slot)
        self._waiting.add(future)
        size = len(frame)
        self._charge(size)
        if dispatcher.is_produce(frame):
            self._pending += 1
            self._pending_bytes += size
            if self._pending_bytes > self._server.limits.connection_bytes or self._memory.short:
                self._hold |= _PENDING
            future.add_done_callback(lambda done: self._produced(slot, done, size))
        else:
            self._hold |= _WAITING
            self._polling = dispatcher.is_long_poll(frame)
            future.add_done_callback(lambda done: self._waited(slot, done, size))

    def _answer_now(self, answer: Answer) -> None:
        if self._slots:
            slot = _Slot(answer.observe)
            slot.frame, slot.ready = answer.frame, True
            self._slots.append(slot)
            return
        answer.observe()
        if answer.frame is not None:
            self._write(answer.frame)

    def _produced(self, slot: _Slot, done: asyncio.Future[Frame | None], size: int) -> None:
        if self._hold & _CLOSED:
            return
        self._pending -= 1
        self._pending_bytes -= size
        self._discharge(size)
        if not self._settle(slot, done):
            return
        reason = 0
        if self._hold & _PENDING and self._pending_bytes <= self._server.limits.connection_bytes // 2:
            reason |= _PENDING
        if self._hold & _PRODUCES and not self._pending:
            reason |= _PRODUCES
        if reason:
            self._go_on(reason)

    def _waited(self, slot: _Slot, done: asyncio.Future[Frame | None], size: int) -> None:
        if self._hold & _CLOSED:
            return
        self._polling = False
        self._discharge(size)
        if self._settle(slot, done):
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
        server = self._server
        self.last_active = server.loop.time()
        if len(frame) == 1:
            size = len(frame[0])
            transport.write(frame[0])
        else:
            size = sum(map(len, frame))
            transport.writelines(frame)
        server.bytes_out += size
        if size >= _LARGE_ANSWER:
            self.settle_unread()

    # --- memory

    def _charge(self, size: int) -> None:
        self._charged += size
        self._memory.used += size

    def _discharge(self, size: int) -> None:
        self._charged -= size
        self._memory.used -= size
        self._memory.freed()

    def settle_unread(self) -> None:
        """Charge what the client has not read by now."""
        unsent = self.unsent
        if unsent != self._unread and not self._hold & _CLOSED:
            self._discharge(self._unread - unsent)
            self._unread = unsent

    def on_memory(self) -> None:
        """There is the memory that this connection waits for."""
        if self._starved and self._frame is not None:
            self._starved = False
            self._charge(self._frame.grow(self._frame.filled + 1))
            self._read_on()
        else:
            self._go_on(_MEMORY)

    @property
    def frame_since(self) -> float:
        """When the incomplete frame began, or 0."""
        return 0.0 if self._frame is None else self._frame.since

    @property
    def charged(self) -> int:
        """Bytes that this connection holds."""
        return self._charged

    def stuck(self) -> bool:
        """True when it holds memory and nothing has moved since the last call, for a reason that lies with the peer."""
        mark = (self.last_active, self.unsent)
        moved, self._mark = mark != self._mark, mark
        ours = self._starved or self._hold & _MEMORY or (self._waiting and not self._polling)
        return bool(self._charged and not moved and not ours)

    # --- the end

    def _leave(self) -> None:
        """Take nothing more, end the waits of this peer, free its memory."""
        self._hold |= _CLOSED
        self.closing_since = self.closing_since or self._server.loop.time()
        for future in list(self._waiting):
            if not future.cancel() and not future.cancelled():
                future.exception()  # looked at, so that it is not reported as forgotten
        self._waiting.clear()
        self._slots.clear()
        self._held.clear()
        self._frame = self._ready = None
        self._prefix = b""
        self._held_bytes = self._pending = self._pending_bytes = self._unread = 0
        self._memory.forget(self)
        self._discharge(self._charged)

    def _refuse(self, error: BaseException) -> None:
        """Close because of what the peer sent or what became of it, with one log line.

        Answers to what came before are still sent, unless the peer does not read.
        """
        if self._hold & _CLOSED:
            return
        if isinstance(error, FrameError):
            self._server.bad_frame(self, str(error))
        else:
            log.error("closing the connection of %s", describe(self.info), exc_info=error)
        if self.unread_since:
            self.abort()
        else:
            self._leave()
            self.close()

    def abort(self) -> None:
        """Close at once, dropping what is unsent."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def drain(self) -> bool:
        """Start nothing new; True once nothing is under way but a long poll, and all answers are sent."""
        self._hold |= _DRAINING
        return self._transport is None or ((self._polling or not self._waiting) and not self.unsent)

    def end(self) -> None:
        """Say that no more answers come. The peer closes then; what it still sends is not looked at.

        Closing at once would make the system reset the connection where requests lie unread, and answers that are on
        their way could be lost with it.
        """
        self._leave()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._starved = False
            self._read_on()
            try:
                transport.write_eof()
            except (OSError, RuntimeError):
                transport.abort()

    def close(self) -> None:
        """Close after what was written is sent."""
        if self._transport is not None:
            self.closing_since = self.closing_since or self._server.loop.time()
            self._transport.close()

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def busy(self) -> bool:
        """True while a request is under way."""
        return bool(self._waiting)

    def gone_unnoticed(self) -> bool:
        """True when the peer has closed while the socket is not read because of its long poll."""
        return self._paused and self._polling and self._transport is not None and has_closed(self._transport)
