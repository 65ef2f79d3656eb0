"""One client connection: frames in, answers out, in order.

Owns: when a request is started, back-pressure in both directions, the end of the connection.
Must not know: what a request means; it goes by the traits of its `Api`. How frames are cut is `frames.py`, how answers
are ordered is `responses.py`.

- All connections receive into one shared buffer. A connection has memory of its own only while a frame is incomplete
  or while it may not go on; a frame's memory grows with what has arrived, not with what its size field claims.
- Requests take effect in the order of their arrival and are answered in that order. The waits of requests whose API
  overlaps (Produce) may overlap; any other request first waits for those before it, and nothing is started behind it
  until it is answered.
- A client that does not read its answers gets no more requests taken; one that sends more than is answered is not read.
  What all connections hold together is bounded (`limits.py`).
- A client that has many small requests under way lets others have their turn every few milliseconds.
- A client that took more than a quota allows is answered, and no more requests of it are taken for a while.
- When the peer is gone, or sent what it must not, its waits are cancelled and its memory is freed at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from kop import clock
from kop.errors import FrameError
from kop.handlers.api import Answer, ConnectionInfo, Frame
from kop.security.listener import OPEN, ListenerSecurity
from kop.security.throttling import Meter
from kop.server.frames import SMALLEST, FrameSplitter
from kop.server.limits import MemoryBudget
from kop.server.peer import describe, has_closed, in_system, plain_host
from kop.server.request import RequestPipeline
from kop.server.responses import ResponseOrder
from kop.server.settings import ServerSettings

MOST_HELD = 64 * 1024
"""The bytes held back behind a waiting request from which on the socket is not read."""
MERGED = 16 * 1024
"""The size in bytes up to which pieces that are held back are put together, because each piece is an object of its
own.
"""
_TURN_SECONDS = 0.003
LOGIN_SECONDS = 30.0
"""Seconds that a client has to log in, the handshake of TLS included."""
_LINGER_SECONDS = 0.2
"""Seconds from the answer that refuses a login to the end of the connection: kafka-python does not see an answer that
comes together with the end.
"""
_LARGE_ANSWER = 64 * 1024
"""The size in bytes from which on an answer counts against the memory limit when it is written; a smaller one counts
when the client is seen not to read it.
"""

log = logging.getLogger(__name__)


# Why no further request of the connection is started. Plain ints: flags of enum cost a microsecond each.
_WAITING = 1  # a request that overlaps with no other waits
_OVERLAPPING = 2  # the next request waits for the overlapping ones before it
_PENDING = 4  # overlapping requests that are not answered yet hold too much memory
_UNREAD = 8  # the client does not read its answers
_MEMORY = 16  # all connections together hold too much memory for a request that reads from storage
_TURN = 32  # other connections have their turn
_DRAINING = 64  # the server stops
_CLOSED = 128  # nothing is taken any more
_QUOTA = 256  # its client took more than a quota allows


class ConnectionOwner(Protocol):
    """The part of the server that connections need: limits and other things that all of them share; `listener.Server`
    is it.
    """

    loop: asyncio.AbstractEventLoop
    requests: RequestPipeline
    settings: ServerSettings
    memory: MemoryBudget
    receive_buffer: memoryview
    """The buffer into which all connections receive, one after the other."""
    bytes_in: int
    bytes_out: int

    def admit(self, connection: ClientConnection) -> bool:
        """Count a new connection and return true; return false, so that it is closed, if a limit on connections is
        reached or the server stops.
        """

    def held(self, connection: ClientConnection) -> float:
        """Count a new connection against the quota of its address; return the seconds after which it has to be closed
        because the address opens more than that allows, or 0.
        """

    def release(self, connection: ClientConnection) -> None:
        """Stop counting a connection, which is closed."""

    def flush_soon(self, connection: ClientConnection) -> None:
        """Call `connection.flush` in the next turn of the loop."""

    def bad_frame(self, connection: ClientConnection, reason: str, kind: str) -> None:
        """Log a connection that is closed for what it sent, and count it in the metrics under `kind`."""


class ClientConnection(asyncio.BufferedProtocol):
    """One client connection, as asyncio's protocol object."""

    __slots__ = (
        "_ended",
        "_feeding",
        "_flushing",
        "_frames",
        "_held",
        "_held_bytes",
        "_hold",
        "_login_timer",
        "_mark",
        "_memory",
        "_meters",
        "_paused",
        "_pending_bytes",
        "_polling",
        "_quota_timer",
        "_quotas",
        "_ready",
        "_responses",
        "_server",
        "_starved",
        "_transport",
        "_turn_ends",
        "_unread",
        "charged",
        "closing_since",
        "info",
        "last_active",
        "unread_since",
    )

    def __init__(
        self, server: ConnectionOwner, advertised: tuple[str, int] | None, security: ListenerSecurity = OPEN
    ) -> None:
        self._server = server
        self._memory = server.memory
        self._transport: asyncio.Transport | None = None
        self.info = ConnectionInfo(
            "", "", 0, advertised, listener=security.name, login=security.login(), space=security.space
        )
        self._login_timer: asyncio.TimerHandle | None = None
        self._quota_timer: asyncio.TimerHandle | None = None
        self._quotas = 0
        """The version of the quotas by which the client is held, or was last."""
        self.last_active = server.loop.time()
        self.unread_since = 0.0
        """The loop's time since which the client has not read its answers; 0 if it reads."""
        self.closing_since = 0.0
        """The loop's time since which the connection is about to be closed; 0 if it is not."""
        self._mark = (0.0, 0, 0)
        # What came in: one frame, incomplete (in `_frames`) or whole and not to be started yet (`_ready`); then what
        # may not even be cut yet (`_held`).
        self._frames = FrameSplitter(server.settings.socket_request_max_bytes)
        if self.info.login is not None:
            self.info.needed_login = True
            self.info.login.completed = self._logged_in
            self._frames.largest, self._frames.smallest = security.largest_before_login, 0
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
        self._responses = ResponseOrder()
        self._meters: dict[Answer, Meter] = {}
        """The quota use of each request that is not answered yet, by its answer."""
        self._flushing = False
        """True if a call of `flush` is planned for the loop's next turn."""
        self._polling = False
        self._pending_bytes = 0
        self._unread = 0
        self.charged = 0
        """The bytes that this connection holds, which count against the memory limit of all."""

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the new connection. Close it at once if a limit on connections is reached, after a pause if a quota of
        its address is; else give its client 30 s to log in, if the listener asks for that.
        """
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        peer = transport.get_extra_info("peername") or ("?", 0)
        local = transport.get_extra_info("sockname") or ("?", 0)
        self.info.client_host, self.info.local_host, self.info.local_port = peer[0], plain_host(local[0]), local[1]
        if not self._server.admit(self):
            self._hold |= _CLOSED
            transport.abort()
            return
        if delay := self._server.held(self):
            self._hold |= _CLOSED
            transport.pause_reading()
            self._quota_timer = self._server.loop.call_later(delay, transport.abort)
            return
        transport.set_write_buffer_limits(high=self._server.settings.kop_connection_unread_bytes)
        if self.info.login is not None:
            self._login_timer = self._server.loop.call_later(LOGIN_SECONDS, self._not_logged_in)

    def _logged_in(self) -> None:
        self._frames.largest, self._frames.smallest = self._server.settings.socket_request_max_bytes, SMALLEST
        self._end_login_timer()
        login = self.info.login
        if login is not None and login.lifetime_ms is not None:
            self._login_timer = self._server.loop.call_later(login.lifetime_ms / 1000, self._session_over)

    def _end_login_timer(self) -> None:
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None

    def _session_over(self) -> None:
        """Accept nothing more from the client but a new login, because its session has lasted as long as its login
        allowed.
        """
        self._login_timer = None
        if self.info.login is None:
            self.info.login = self.info.session

    def _not_logged_in(self) -> None:
        self._login_timer = None
        self._refuse(FrameError(f"it has not logged in within {LOGIN_SECONDS:.0f} s"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel all waits of the peer that is gone, free the connection's memory, and count the connection no more."""
        self._leave()
        self._transport = None
        self._end_login_timer()
        login = self.info.login or self.info.session
        if login is not None:  # they refer to one another
            login.completed = None
        self._server.release(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the bytes that arrive next: the rest of the incomplete frame, or the shared buffer."""
        if self._frames.incomplete is not None:
            return self._frames.incomplete.room()
        return self._server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that arrived in the buffer: start the requests among them, or keep them. An error, such as
        bytes that are no request, closes the connection.
        """
        server = self._server
        self.last_active = server.loop.time()
        server.bytes_in += nbytes
        if self._hold & _CLOSED:
            return
        if self._unread:
            self.settle_unread()
        server.requests.look_at_clocks()
        self._feeding = True
        self._turn_ends = 0.0
        try:
            if self._frames.incomplete is not None:
                self._frames.incomplete.filled += nbytes
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
        """Handle that the client has closed its half of the connection: the requests that it sent still take effect,
        but it gets no answers any more, as with Kafka. Return true if the connection stays open until they were
        started.

        A producer with acks=0 may close right after its last request. Only a long poll is not waited for.
        """
        if self._hold & _CLOSED or self._polling or not (self._held or self._ready is not None):
            return False
        self._ended = True
        return True

    def pause_writing(self) -> None:
        """Start no more requests of the client until `resume_writing`, because it does not read its answers."""
        self.unread_since = self._server.loop.time()
        self._hold |= _UNREAD
        self.settle_unread()

    def resume_writing(self) -> None:
        """Start requests again, unless something else is against it, because the client reads its answers."""
        self.unread_since = 0.0
        self.settle_unread()
        self._go_on(_UNREAD)

    # --- frames

    def _feed(self, data: memoryview, *, own: bool) -> memoryview | None:
        """Start the requests whose frames are in `data`; return the part of it that may not be handled yet, or None. A
        frame that is not whole is kept as the incomplete one.

        `own` is true if the memory is this connection's alone; else it is the shared buffer.
        """
        data, copied = self._frames.joined(data)
        own = own or copied
        pos, end = 0, len(data)
        plenty = self._memory.used < self._memory.limit // 4
        if self._frames.incomplete is not None:
            pos = self._take(data)
            self._frame_grown()
        while pos < end:
            if self._hold:
                return data[pos:]
            frame = self._frames.next(data, pos, plenty=plenty)
            if frame is None:
                if (begun := self._frames.incomplete) is not None:
                    begun.since = self._server.loop.time()
                    self._charge(len(begun.buffer))
                break
            if not self._may_start(frame):
                return data[pos:]
            size = len(frame)
            pos += 4 + size
            # A small frame must not keep the memory of all that came with it.
            self._start(frame, own and 2 * size >= len(cast(bytearray, data.obj)))
            if pos < end:
                self._look_at_the_clock()
        return None

    def _look_at_the_clock(self) -> None:
        """End the turn of the connection between two requests that came together, if it has lasted for 3 ms: the rest
        of them is started after other connections had their turn.
        """
        now = self._server.requests.look_at_the_time()
        if not self._turn_ends:
            self._turn_ends = now + _TURN_SECONDS
        elif now > self._turn_ends and not self._hold & _TURN:
            self._hold |= _TURN
            self._server.loop.call_soon(self._go_on, _TURN)

    def _take(self, data: memoryview) -> int:
        """Move the start of `data` into the incomplete frame; return the number of bytes moved."""
        assert self._frames.incomplete is not None
        count, grown = self._frames.incomplete.take(data)  # no more memory than the piece held
        self._charge(grown)
        if self._starved:
            self._starved = False
            self._memory.forget(self)
        return count

    def _frame_grown(self) -> None:
        """Start the incomplete frame's request if it is whole now, or keep it if it may not start yet; if it is not
        whole, see that there is memory for more of it, or stop reading until there is.
        """
        frame = self._frames.incomplete
        assert frame is not None
        view = self._frames.completed()
        if view is not None:
            if self._hold or not self._may_start(view):
                self._ready = view
                return
            self._discharge(len(view))
            self._start(view, own=True)
        elif frame.filled == len(frame.buffer):
            self._server.requests.check_size(memoryview(frame.buffer), frame.size)
            if self._memory.short and frame.size - frame.filled > MOST_HELD:  # who needs little more soon frees much
                self._starved = True
                self._memory.wait(self)
                self._pause()
            else:
                self._charge(frame.grow(frame.filled + 1))

    # --- what may not be taken yet

    def _hold_back(self, data: memoryview) -> None:
        """Keep a copy of bytes that may not be handled yet, and stop reading the socket once 64 KiB are kept."""
        held = self._held
        if held and len(held[-1]) + len(data) <= MERGED:
            piece = memoryview(bytearray(b"".join((held.pop(), data))))
        else:
            piece = memoryview(bytearray(data))
        held.append(piece)
        self._held_bytes += len(data)
        self._charge(len(data))
        if self._held_bytes >= MOST_HELD:
            self._pause()

    def _go_on(self, reason: int) -> None:
        """Remove a reason, one of this module's flags, to start no requests, and handle the bytes that were held back
        if no reason is left.
        """
        self._hold &= ~reason
        if self._hold or self._feeding:
            return
        if self._held or self._ready is not None:
            self._server.requests.look_at_clocks()
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
        if self._paused and self._held_bytes < MOST_HELD // 2:
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
        """Return false if the request in the frame has to wait, and note the reason: for those before it, which may not
        overlap with it, or for memory to read into.
        """
        short = self._memory.short
        if not self._responses and not short:
            return True
        api = self._server.requests.api(frame)
        if self._responses and (api is None or not api.overlaps):
            self._hold |= _OVERLAPPING
            return False
        if short and api is not None and api.reads is not None:
            self._hold |= _MEMORY
            self._memory.wait(self)
            return False
        return True

    def _start(self, frame: memoryview, own: bool) -> None:
        requests = self._server.requests
        answer = requests.start(frame, self.info, owned=own)
        meter = self.info.meter
        if meter is not None:
            meter.is_started()
            self._meters[answer], self.info.meter = meter, None
        responses = self._responses
        if answer.ready and not responses:
            self._write_all((answer,))
            return
        answer.taker = self
        responses.append(answer)
        answer.request_bytes = size = len(frame)
        self._charge(size)
        self._pending_bytes += size
        if answer.waiting is not None:
            self._hold |= _WAITING
            api = requests.api(frame)
            self._polling = api is not None and api.long_poll
        elif answer.alone or meter is not None:  # a quota counts a request when it is answered
            self._hold |= _WAITING
        elif self._pending_bytes > self._memory.of_one or self._memory.short:
            self._hold |= _PENDING

    def answered(self, answer: Answer) -> None:
        """Plan a call of `flush`, because an answer is ready."""
        if not self._flushing:
            self._flushing = True
            self._server.flush_soon(self)

    def flush(self) -> None:
        """Write the answers that are ready, then start the requests that had to wait for them. An error closes the
        connection.
        """
        self._flushing = False
        if self._hold & _CLOSED:
            return
        try:
            self._flush()
        except Exception as error:  # the other connections are flushed all the same
            self._refuse(error)

    def _flush(self) -> None:
        ready = self._responses.take_ready()
        if not ready:
            return
        size = sum([answer.request_bytes for answer in ready])
        self._pending_bytes -= size
        self._discharge(size)
        self._write_all(ready)
        if self._hold & _CLOSED:
            return
        reason = 0
        if not self._responses:
            self._polling = False
            reason = self._hold & (_OVERLAPPING | _WAITING)
        if self._hold & _PENDING and self._pending_bytes <= self._memory.of_one // 2:
            reason |= _PENDING
        if reason:
            self._go_on(reason)

    def _write_all(self, ready: Sequence[Answer]) -> None:
        """Write the answers to successive requests, and count them in the metrics and quotas. One that has an error
        closes the connection, behind its own bytes if it has any; those behind it are not written.
        """
        buffers: list[bytes | bytearray | memoryview] = []
        now = clock.perf_counter()
        meters = self._meters
        for answer in ready:
            if answer.error is not None:
                if answer.frame is not None:
                    buffers += answer.frame
                self._write(buffers)
                self._refuse(answer.error, _LINGER_SECONDS if answer.frame is not None else 0.0)
                return
            answer.latencies.observe(now - answer.started)
            frame = answer.frame
            if meters and (meter := meters.pop(answer, None)) is not None:
                frame, delay = self._server.requests.settled(frame, meter)
                if delay:
                    self._hold_for_quota(delay)
            if frame is not None:
                buffers += frame
        self._write(buffers)

    def _hold_for_quota(self, seconds: float) -> None:
        """Start no more requests for so many seconds, or for as long as an earlier answer said, if that is longer."""
        loop, timer = self._server.loop, self._quota_timer
        if timer is not None:
            if timer.when() >= loop.time() + seconds:
                return
            timer.cancel()
        self._hold |= _QUOTA
        self._quotas = self._server.requests.throttling.quotas.version
        self._quota_timer = loop.call_later(seconds, self.end_quota)

    def quotas_changed(self, version: int) -> None:
        """Start requests again if a quota holds the client that was set by another version of the quotas than this one,
        which is in force now.
        """
        if self._quotas != version:
            self.end_quota()

    def end_quota(self) -> None:
        """Start requests again if a quota holds the client, because its time is over or the quotas have changed."""
        if self._quota_timer is not None and not self._hold & _CLOSED:
            self._quota_timer.cancel()
            self._quota_timer = None
            self._go_on(_QUOTA)

    def _write(self, buffers: Frame) -> None:
        transport = self._transport
        if not buffers or transport is None or transport.is_closing():
            return
        server = self._server
        self.last_active = server.loop.time()
        size = sum(map(len, buffers))
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif size < _LARGE_ANSWER:
            transport.write(b"".join(buffers))
        else:
            transport.writelines(buffers)
        server.bytes_out += size
        if size >= _LARGE_ANSWER:
            self.settle_unread()

    # --- memory

    def _charge(self, size: int) -> None:
        self.charged += size
        self._memory.used += size

    def _discharge(self, size: int) -> None:
        self.charged -= size
        self._memory.used -= size
        self._memory.freed()

    def settle_unread(self) -> None:
        """Count the bytes of answers that the client has not read by now against the memory limit, in place of those
        counted last.
        """
        unsent = self.unsent
        if unsent != self._unread and not self._hold & _CLOSED:
            self._discharge(self._unread - unsent)
            self._unread = unsent

    def on_memory(self) -> None:
        """Go on after a wait for memory: read more of an incomplete frame, or start the requests that were held
        back.
        """
        frame = self._frames.incomplete
        if self._starved and frame is not None:
            self._starved = False
            self._charge(frame.grow(frame.filled + 1))
            self._read_on()
        else:
            self._go_on(_MEMORY)

    @property
    def frame_since(self) -> float:
        """The loop's time at which the incomplete frame began; 0 if there is none."""
        return 0.0 if self._frames.incomplete is None else self._frames.incomplete.since

    def stuck(self) -> bool:
        """Return true if the connection holds memory and nothing has moved since the last call, for a reason that lies
        with its peer.
        """
        mark = (self.last_active, self.unsent, 0 if self._transport is None else in_system(self._transport))
        moved, self._mark = mark != self._mark, mark
        ours = self._starved or self._hold & _MEMORY or (self._responses and not self._polling)
        return bool(self.charged and not moved and not ours)

    # --- the end

    def _leave(self) -> None:
        """Start no more requests, cancel all waits of this peer, and free the connection's memory."""
        self._hold |= _CLOSED
        self.closing_since = self.closing_since or self._server.loop.time()
        self._responses.abandon()
        reads, self.info.cold_reads = self.info.cold_reads, None
        if reads is not None:
            reads.close()
        self._held.clear()
        self._frames.clear()
        self._ready = None
        self._held_bytes = self._pending_bytes = self._unread = 0
        if self._quota_timer is not None:
            self._quota_timer.cancel()
            self._quota_timer = None
        for meter in self._meters.values():
            meter.answered()  # what was sent counts, though its client did not wait for the answer
        self._meters.clear()
        self._memory.forget(self)
        self._discharge(self.charged)

    def _refuse(self, error: BaseException, linger: float = 0.0) -> None:
        """Close the connection because of an error, such as bytes that are no request, with one log line.

        Answers to what came before are still sent, unless the peer does not read. `linger`: seconds until it is closed
        behind an answer that says why.
        """
        if self._hold & _CLOSED:
            return
        if isinstance(error, asyncio.CancelledError):  # what it waited for was given up, and not by its end
            self.abort()
            return
        if isinstance(error, FrameError):
            self._server.bad_frame(self, str(error), error.kind)
        else:
            log.error("closing the connection of %s", describe(self.info), exc_info=error)
        if self.unread_since:
            self.abort()
        else:
            self._leave()
            if linger:
                self._server.loop.call_later(linger, self.close)
            else:
                self.close()

    def abort(self) -> None:
        """Close at once, without sending the rest of the answers."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def drain(self) -> bool:
        """Start no more requests; return true if none is under way now but a long poll, and all answers are sent.
        Called again and again until then.
        """
        self._hold |= _DRAINING
        return self._transport is None or ((self._polling or not self._responses) and not self.unsent)

    def end(self) -> None:
        """Shut down the sending half, so that the peer closes the connection; what it still sends is ignored.

        Closing at once would make the system reset the connection if requests lie unread, and answers that are on their
        way could be lost with it.
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
        """Close the connection after all that was written to it is sent."""
        if self._transport is not None:
            self.closing_since = self.closing_since or self._server.loop.time()
            self._transport.close()

    @property
    def unsent(self) -> int:
        """The bytes of answers that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def busy(self) -> bool:
        """True while a request of the connection is not answered."""
        return bool(self._responses)

    def gone_unnoticed(self) -> bool:
        """Return true if the peer has closed while its socket is not read because of its long poll."""
        return self._paused and self._polling and self._transport is not None and has_closed(self._transport)
