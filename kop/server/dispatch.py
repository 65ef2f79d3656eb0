"""From a frame to a handler and from its result to the bytes of an answer.

Owns: which requests are taken, what happens to those that are not, and the metrics of each API.
Must not know: sockets, or in what order answers are written.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from kop.errors import ErrorCode, FrameError, KopError
from kop.handlers import api_versions
from kop.handlers.base import Api, ConnectionInfo, Context, Frame, Gateway
from kop.server.pressure import ReadRoom
from kop.wire import codec
from kop.wire.fetch import max_bytes
from kop.wire.frame import FETCH, PRODUCE, RequestHeader, parse_header
from kop.wire.messages import REQUESTS, RESPONSES

LARGEST_OTHER = 16 * 1024 * 1024
"""Bytes of a request that is no Produce. Decoding one costs many times its size; no client comes near."""
_LONG_POLLS = {1, 11, 14}
"""Fetch, JoinGroup, SyncGroup: they wait for others as long as their client wishes."""

_NAMES = {int(code): code.name for code in ErrorCode}

log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What became of a request: either an encoded answer, which may be none, or a future of it."""

    frame: Frame | None
    waiting: asyncio.Future[Frame | None] | None
    observe: Callable[[], None]
    """To be called when the answer is written: counts its latency."""


class _Served:
    """An API with its classes and metrics at hand."""

    __slots__ = ("api", "counters", "latency", "name", "request_class", "response_class")

    def __init__(self, gw: Gateway, api: Api) -> None:
        self.api = api
        self.request_class = REQUESTS[api.key]
        self.response_class = RESPONSES[api.key]
        self.name = self.request_class.__name__.removesuffix("Request")
        self.latency = gw.metrics.latency.labels(self.name)
        self.counters: dict[int, Any] = {}


class Dispatcher:
    """Takes the requests of all connections."""

    def __init__(self, gw: Gateway) -> None:
        self._gw = gw
        self._served = {key: _Served(gw, api) for key, api in gw.apis.items()}
        self.reads: ReadRoom | None = None
        """Bounds what Fetches read from storage at a time."""

    def dispatch(self, frame: memoryview, conn: ConnectionInfo, *, owned: bool) -> Answer:
        """Start one request. A FrameError means that the connection has to be closed."""
        started = time.perf_counter()
        header = parse_header(frame)
        served = self._served.get(header.api_key)
        if served is None:
            raise FrameError(f"API {header.api_key} version {header.api_version} is not served")
        api = served.api
        version = header.api_version
        if not api.min_version <= version <= api.max_version and not (api.key == PRODUCE and 0 <= version < 3):
            return self._wrong_version(served, header, started)
        if len(frame) > LARGEST_OTHER:
            self.check_large(frame, len(frame))
        counter = served.counters.get(version)
        if counter is None:
            counter = served.counters[version] = self._gw.metrics.requests.labels(served.name, str(version))
        counter.inc()
        body = frame[header.body :]
        ctx = Context(
            header.api_key, version, header.client_id, int(time.time() * 1000), conn, header.correlation_id, owned
        )
        request = body if api.raw else codec.decode(served.request_class, version, body, slack=api.slack)
        result: Any
        try:
            if api.names is not None and (unsought := self._gw.catalog.unsought(api.names(request))):
                result = self._after(self._gw.catalog.find(unsought), api, ctx, request)
            elif api.groups is not None and (in_doubt := self._gw.groups.in_doubt(api.groups(request))):
                result = self._after(self._gw.groups.verify(in_doubt), api, ctx, request)
            else:
                result = api.handler(self._gw, ctx, request)
        except FrameError:
            raise
        except Exception as error:
            return Answer(self._failed(served, ctx, error), None, _observer(served, started))
        if inspect.iscoroutine(result):
            if api.key == FETCH and self.reads is not None:
                result = self.reads.start(result, max_bytes(body, version))
            else:
                result = asyncio.get_running_loop().create_task(result)
        observe = _observer(served, started)
        if not isinstance(result, asyncio.Future):
            return Answer(self._encode(served, ctx, result), None, observe)
        if api.key == PRODUCE:
            return Answer(None, result, observe)
        return Answer(None, self._when_done(served, ctx, result), observe)

    async def _after(self, first: Awaitable[None], api: Api, ctx: Context, request: Any) -> Any:
        """What the handler says once `first` is known."""
        await first
        result = api.handler(self._gw, ctx, request)
        return await result if inspect.isawaitable(result) else result

    def is_produce(self, frame: memoryview) -> bool:
        """True for a Produce, whose waits may overlap."""
        return frame[0] == 0 and frame[1] == 0

    def is_fetch(self, frame: memoryview) -> bool:
        """True for a Fetch, whose answers may be large."""
        return frame[0] == 0 and frame[1] == FETCH

    def is_long_poll(self, frame: memoryview) -> bool:
        """True for a request that waits for what others do."""
        return frame[0] == 0 and frame[1] in _LONG_POLLS

    def check_large(self, start: memoryview, size: int) -> None:
        """FrameError for a frame that begins with `start` and is too large for its API, before all of it came."""
        if size > LARGEST_OTHER and not self.is_produce(start):
            api_key = int.from_bytes(start[:2], "big", signed=True)
            served = self._served.get(api_key)
            name = f"request of API {api_key}" if served is None else served.name
            raise FrameError(f"a {name} of {size} bytes is larger than any client sends")

    def _when_done(self, served: _Served, ctx: Context, waiting: asyncio.Future[Any]) -> asyncio.Future[Frame | None]:
        """The frame of a result to come. Cancelling it cancels what is waited for."""
        frame: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Future[Any]) -> None:
            if frame.done():
                return
            if done.cancelled():
                frame.cancel()
                return
            error = done.exception()
            try:
                if error is None:
                    frame.set_result(self._encode(served, ctx, done.result()))
                elif isinstance(error, FrameError):
                    frame.set_exception(error)
                else:
                    frame.set_result(self._failed(served, ctx, error))
            except FrameError as closing:
                frame.set_exception(closing)

        def forward(outer: asyncio.Future[Any]) -> None:
            if outer.cancelled():
                waiting.cancel()

        waiting.add_done_callback(finish)
        frame.add_done_callback(forward)
        return frame

    def _encode(self, served: _Served, ctx: Context, result: Any) -> Frame | None:
        if served.api.raw:
            frame: Frame | None = result
            return frame
        for code in set(codec.error_codes(result)):
            self._count(served, code)
        try:
            return (codec.encode_response(ctx.correlation_id, result),)
        except Exception as error:
            return self._failed(served, ctx, error)

    def _count(self, served: _Served, code: int) -> None:
        name = _NAMES.get(code) or str(code)
        self._gw.metrics.errors.labels(served.name, name).inc()

    def _wrong_version(self, served: _Served, header: RequestHeader, started: float) -> Answer:
        if served.api.key != api_versions.KEY:
            raise FrameError(
                f"{served.name} version {header.api_version} is not served "
                f"(versions {served.api.min_version} to {served.api.max_version} are)"
            )
        self._count(served, ErrorCode.UNSUPPORTED_VERSION)
        frame = codec.encode_response(header.correlation_id, api_versions.unsupported())
        return Answer((frame,), None, _observer(served, started))

    def _failed(self, served: _Served, ctx: Context, error: BaseException) -> Frame:
        """The answer to a request whose handler failed as a whole, where its API has a place for it."""
        code = error.code if isinstance(error, KopError) else ErrorCode.UNKNOWN_SERVER_ERROR
        if not isinstance(error, KopError):
            log.error("%s version %d from %s failed", served.name, ctx.version, ctx.conn.client_host, exc_info=error)
            self._gw.metrics.internal_errors.labels(served.name).inc()
        self._count(served, code)
        fields = served.response_class._struct.fields
        if served.api.raw or "error_code" not in fields or not fields["error_code"].for_version_q(ctx.version):
            raise FrameError(f"{served.name} failed with {code.name} and has no place to say so")
        response = served.response_class(version=ctx.version, error_code=code)
        return (codec.encode_response(ctx.correlation_id, response),)


def _observer(served: _Served, started: float) -> Callable[[], None]:
    def observe() -> None:
        served.latency.observe(time.perf_counter() - started)

    return observe
