"""The requests of a test's broker: the last ones for a report, and those that a test wants to fail, to wait or to hang.

Owns: which requests get an error or have to wait, and what is remembered of the others.
Must not know: what a request means, how the broker was started.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import deque
from typing import Final, NamedTuple

from kop import clock
from kop.errors import ErrorCode, FrameError
from kop.handlers.api import Answer, ConnectionInfo, Frame
from kop.handlers.gateway import Gateway
from kop.metrics import Latencies
from kop.server.listener import Server
from kop.server.request import RequestPipeline
from kop.wire import codec
from kop.wire.frame import request_header
from kop.wire.messages import REQUESTS, RESPONSES, ProduceRequest
from kop.wire.refusals import refusal

MOST_SEEN: Final = 20
"""The number of requests that are remembered."""
_MOST_BYTES: Final = 16 * 1024
"""The size in bytes of an answer above which it is not kept for its error codes."""
_APIS: Final = {cls.__name__.removesuffix("Request"): key for key, cls in REQUESTS.items()}
_NAMES: Final = {key: name for name, key in _APIS.items()}


class SeenRequest(NamedTuple):
    """A request as a report shows it."""

    seconds_ago: float
    api: str
    version: int
    client_id: str
    outcome: str
    """The outcome of the request: `ok`, names of error codes, or words such as why the connection was closed."""


class _Seen:
    """A remembered request, with its answer, or with the bytes of a small one."""

    def __init__(self, key: int, version: int, client_id: str | None, answer: Answer) -> None:
        self.at = clock.monotonic()
        self.key = key
        self.version = version
        self.client_id = client_id
        self.answer: Answer | None = answer
        self.frame: Frame | None = None
        self.ended = ""
        """The outcome in words if no answer is kept; an empty text otherwise."""

    def settle(self) -> None:
        """Replace an answer that is ready by its bytes, or, if they are more than 16 KiB or there are none, by an
        outcome in words. Do nothing while it is not ready.
        """
        answer = self.answer
        if answer is None or not answer.ready:
            return
        self.answer = None
        if answer.error is not None:
            self.ended = f"connection closed: {answer.error}"
        elif answer.frame is None:
            self.ended = "ok, no answer wanted"
        elif sum(map(len, answer.frame)) > _MOST_BYTES:
            self.ended = "answered at length"
        else:
            self.frame = answer.frame

    def outcome(self) -> str:
        """Return the outcome in words; see `SeenRequest`."""
        self.settle()
        if self.frame is None:
            return self.ended or "no answer yet"
        response_class = RESPONSES[self.key]
        flexible = response_class.flexible_version_q(self.version) and self.key != _APIS["ApiVersions"]
        try:
            response = codec.decode(
                response_class, self.version, memoryview(b"".join(self.frame)), 9 if flexible else 8
            )
        except FrameError:
            return "answered"
        return ", ".join(dict.fromkeys(ErrorCode(code).name for code in codec.error_codes(response))) or "ok"


class _Fault:
    """A fault for the next `times` requests of an API, or for all of them: an error, or some seconds to wait."""

    def __init__(self, code: ErrorCode | None, seconds: float, times: int | None) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times has to be 1 or more, or None for all requests, not {times}")
        self.code = code
        self.seconds = seconds
        self.times = times


class WatchedRequests(RequestPipeline):
    """The request pipeline of a test's broker, which adds faults and pauses and remembers requests."""

    def __init__(self, gateway: Gateway, server: Server) -> None:
        """Replace the server's own request pipeline."""
        super().__init__(gateway)
        self.reads = server.requests.reads
        server.requests = self
        self._loop = server.loop
        self._seen: deque[_Seen] = deque(maxlen=MOST_SEEN)
        self._faults: dict[int, list[_Fault]] = {}
        self._paused: asyncio.Event | None = None
        """The event that requests wait for while the broker is paused; None while it is not."""

    # --- what a test wants

    def fail(self, api: str, error: str, times: int | None) -> None:
        """Answer the next `times` requests of an API with an error, and do nothing else for them; None: all of them.
        ValueError for a name of an API or an error that Kafka does not have, and for less than one request.
        """
        self._faults.setdefault(api_key(api), []).append(_Fault(error_code(error), 0.0, times))

    def delay(self, api: str, seconds: float, times: int | None) -> None:
        """Let the next `times` requests of an API, or with None all, wait for `seconds` before anything is done for
        them. ValueError for a name of an API that Kafka does not have, and for less than one request.
        """
        self._faults.setdefault(api_key(api), []).append(_Fault(None, seconds, times))

    def heal(self) -> None:
        """Drop all faults that `fail` and `delay` have left."""
        self._faults.clear()

    def pause(self) -> None:
        """Start no request until `resume`."""
        self._paused = self._paused or asyncio.Event()

    def resume(self) -> None:
        """Start the requests that have waited since `pause`."""
        if self._paused is not None:
            self._paused.set()
            self._paused = None

    def seen(self) -> list[SeenRequest]:
        """Return the last twenty requests, in the order in which they came, each with its outcome so far."""
        now = clock.monotonic()
        return [
            SeenRequest(now - seen.at, _NAMES[seen.key], seen.version, seen.client_id or "", seen.outcome())
            for seen in self._seen
        ]

    # --- the pipeline

    def start(self, frame: memoryview, conn: ConnectionInfo, *, owned: bool) -> Answer:
        """Start one request; later, or not at all, if a test has set a delay or a fault for it."""
        key, version, correlation_id, client_id, begin = request_header(frame)
        fault = self._next_fault(key)
        if fault is not None and fault.code is not None:
            answer = self._refused(frame[begin:], key, version, correlation_id, fault.code)
        elif fault is not None or self._paused is not None:
            answer = self._later(memoryview(bytes(frame)), conn, 0.0 if fault is None else fault.seconds)
        else:
            answer = super().start(frame, conn, owned=owned)
        for seen in self._seen:
            seen.settle()
        self._seen.append(_Seen(key, version, client_id, answer))
        return answer

    def _next_fault(self, key: int) -> _Fault | None:
        faults = self._faults.get(key)
        if not faults:
            return None
        fault = faults[0]
        if fault.times is not None:
            fault.times -= 1
            if not fault.times:
                faults.pop(0)
        return fault

    def _refused(self, body: memoryview, key: int, version: int, correlation_id: int, code: ErrorCode) -> Answer:
        answer = _Fresh()
        request = codec.decode(REQUESTS[key], version, body)
        if isinstance(request, ProduceRequest) and request.acks == 0:
            answer.give(None)
        else:
            answer.give((codec.encode_response(correlation_id, refusal(request, code)),))
        return answer

    def _later(self, frame: memoryview, conn: ConnectionInfo, seconds: float) -> Answer:
        later = _Fresh()
        later.waiting = self._loop.create_task(self._start_later(later, frame, conn, seconds))
        return later

    async def _start_later(self, later: Answer, frame: memoryview, conn: ConnectionInfo, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while self._paused is not None:
            await self._paused.wait()
        self.look_at_clocks()
        try:
            answer = super().start(frame, conn, owned=True)
        except Exception as error:
            later.refuse(error)
            return
        if not answer.ready:
            ended = self._loop.create_future()
            answer.taker = _Taker(ended)
            try:
                await ended
            except asyncio.CancelledError:
                answer.taker = None
                if answer.waiting is not None:
                    answer.waiting.cancel()
                raise
        later.waiting = None
        if answer.error is not None:
            later.refuse(answer.error)
        else:
            later.give(answer.frame)


class _Fresh(Answer):
    """An answer that the test's pipeline makes by itself, for a fault or a delay."""

    __slots__ = ()

    alone = True

    def __init__(self) -> None:
        super().__init__()
        self.started, self.latencies = clock.perf_counter(), Latencies()


class _Taker:
    """A taker of an answer that ends a future when the answer is ready."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self._ended = ended

    def answered(self, answer: Answer) -> None:
        """End the future, since the answer is ready."""
        if not self._ended.done():
            self._ended.set_result(None)


def api_key(name: str) -> int:
    """Return the key of an API by its name in Kafka's protocol; ValueError, with the nearest name, for another one."""
    key = _APIS.get(name)
    if key is None:
        raise ValueError(f"there is no API {name!r}{_nearest(name, list(_APIS))}")
    return key


def error_code(name: str) -> ErrorCode:
    """Return an error code by Kafka's name of it; ValueError, with the nearest name, for another one, and for NONE."""
    if name not in ErrorCode.__members__ or name == ErrorCode.NONE.name:
        raise ValueError(f"there is no error {name!r}{_nearest(name.upper(), list(ErrorCode.__members__))}")
    return ErrorCode[name]


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f"; do you mean {near[0]!r}?" if near else ""
