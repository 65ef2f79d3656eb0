"""The pipeline that every request passes: from a frame to its handler, and from its result to the bytes of the answer.

Owns: which requests are taken, how others are answered, and the metrics of each API.
Must not know: sockets, in what order answers are written, any API by its key: it goes by the traits of `Api`.

The steps, the same for every API:
0. A Produce with which nothing is unusual is carried by compiled code through all of these
   (`kop.handlers.direct_produce`).
1. The header is parsed, the API and its version are looked up, the size is checked.
2. The body is decoded: by the codec, or by what the API declares. Names of a client that works in a space of names
   become stored ones (`kop.wire.names`): no step behind this one knows other names.
3. The rights that the API declares as those of the whole request are checked (`Api.needs`), once it is known what was
   granted in the namespaces that it names.
4. The names are resolved: topics of other namespaces, if the client may know of them, are looked for, doubts about a
   group's coordinator are cleared. From then on the handler asks the request's context for each thing (`Context.topic`
   and its like), which gives it, or the error why not.
5. The handler runs. What it reads from storage waits for room where the API declares how much that is.
6. The result is encoded, with the names of the client's space, and its error codes are counted.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
from asyncio import create_task
from collections.abc import Awaitable, Collection, Iterable
from functools import partial
from typing import Any, cast

from kop import clock
from kop.errors import ErrorCode, FrameError, KopError, LoginRefusedError
from kop.handlers.api import (
    LARGEST_REQUEST,
    Answer,
    Api,
    ConnectionInfo,
    Context,
    Frame,
    Handler,
    InTask,
    Later,
    broker_that_asks,
)
from kop.handlers.gateway import Gateway
from kop.handlers.sasl import SASL_AUTHENTICATE, log_in
from kop.metrics import Count
from kop.security.login import Login, Turn
from kop.security.rights import ResourceType
from kop.security.sasl.exchange import AuthenticationError
from kop.security.throttling import Meter, TimedWork
from kop.server.limits import ReadAdmission
from kop.wire import codec, names, throttle_time
from kop.wire.frame import header_tags, request_header
from kop.wire.messages import REQUESTS, RESPONSES, Message
from kop.wire.rows import Response

_NAMES = {int(code): code.name for code in ErrorCode}

log = logging.getLogger(__name__)


class _ServedApi:
    """An API with the classes of its messages and its metrics."""

    __slots__ = (
        "api", "counts", "decode", "finds", "groups", "handler", "large", "latencies", "name", "named", "oldest",
        "response_class", "splits", "whole",
    )  # fmt: skip

    def __init__(self, gw: Gateway, api: Api) -> None:
        self.api = api
        self.oldest = api.advertised_min
        request_class = REQUESTS[api.key]
        self.response_class = RESPONSES[api.key]
        self.name = request_class.__name__.removesuffix("Request")
        self.decode = api.decode or partial(_decode, request_class, api.slack)
        self.handler = _in_tasks(api.handler) if inspect.iscoroutinefunction(api.handler) else api.handler
        self.whole = tuple(need for need in api.needs if need.whole)
        """The rights that a request needs and whose refusal refuses the whole request."""
        self.named = () if api.encodes else tuple(need for need in api.needs if need.names is not None)
        """The rights to what a request names, by which it may have to wait until it is known what was granted."""
        self.finds = tuple(need for need in api.needs if api.finds and need.resource is ResourceType.TOPIC)
        """The rights to topics that storage may first have to look for in other Pulsar namespaces."""
        self.groups = tuple(need for need in api.needs if api.tells_of_groups and need.resource is ResourceType.GROUP)
        """The rights to groups that the handler answers about from memory, so that it must be certain who coordinates
        them.
        """
        self.splits = not api.encodes and not api.long_poll and api.reads is None
        """True if a large request is decoded in a thread, and answered in parts if the API has `rows`."""
        self.large = 0 if api.long_answer else _LARGE
        """The size in bytes of a body from which on a request counts as large."""
        self.latencies = gw.metrics.latency.of(self.name)
        self.counts: dict[int, Count] = {}
        """The number of requests by version."""


_LARGE = 16 * 1024
"""The size in bytes of a body from which on it is decoded, and its answer encoded, in a thread."""
_PART_ROWS = 200
"""The number of rows in each part of a large request, which is answered in parts; see `Api.rows`."""
_SHOWN = 100
"""The number of characters of a client id that a log line shows."""


class RequestPipeline:
    """The pipeline that every request passes, from its frame to the bytes of its answer; one for all connections."""

    def __init__(self, gw: Gateway) -> None:
        self._gw = gw
        self._access = gw.access
        self.throttling = gw.throttling
        """The amounts that clients take, by the quotas that hold for them."""
        self.audit = gw.audit
        self.logged_in = gw.access.logged_in
        """The function to call with the principal of each client that has logged in."""
        self._quotas = gw.throttling.quotas
        self._served = {key: _ServedApi(gw, api) for key, api in gw.apis.items()}
        self.reads: ReadAdmission | None = None
        """The bound on the bytes that handlers read from storage at a time."""
        self._direct = gw.direct_produce
        self._take_directly = gw.direct_produce.take
        self._clock = asyncio.get_running_loop().time
        self._loop_time = 0.0
        self.arrived = 0.0
        """The time at which the requests that are started now arrived, by `clock.perf_counter`."""
        self._now_ms = 0

    def look_at_clocks(self) -> None:
        """Set the time of arrival for the requests that came in one read from a socket, and are started next. What
        compiled code may do with them is looked at again, too.
        """
        self.arrived = clock.perf_counter()
        self._now_ms = clock.wall_ms()
        if self._take_directly is not None:
            self._loop_time = self._clock()
            self._direct.look()

    def look_at_the_time(self) -> float:
        """Set the time of arrival for the next of several requests that came in one read; return it, by
        `clock.perf_counter`.
        """
        self.arrived = now = clock.perf_counter()
        return now

    def api(self, frame: memoryview) -> Api | None:
        """Return the API that the first two bytes of a frame name; None if it is not served."""
        try:
            served = self._served.get(frame[0] << 8 | frame[1])
        except IndexError:  # a token without a header may be as short as that
            return None
        return None if served is None else served.api

    def check_size(self, start: memoryview, size: int) -> None:
        """Raise FrameError for a frame of `size` bytes that begins with `start` and is too large for its API, before
        all of it came. Up to 16 MiB no frame is.
        """
        if size <= LARGEST_REQUEST:
            return
        api_key = int.from_bytes(start[:2], "big", signed=True)
        served = self._served.get(api_key)
        if served is None or size > served.api.largest:
            name = f"request of API {api_key}" if served is None else served.name
            raise FrameError(f"a {name} of {size} bytes is larger than any client sends")

    def start(self, frame: memoryview, conn: ConnectionInfo, *, owned: bool) -> Answer:
        """Start one request, and return its answer, which may come later. FrameError if the connection has to be
        closed.

        `owned`: the frame's memory is its own. Else it is used again as soon as this returns. If the client has quotas,
        `conn.meter` counts what the request uses of them.
        """
        if conn.login is not None and (early := self._before_login(conn.login, frame, conn)) is not None:
            return early
        if self._quotas.of_clients and conn.login is None:
            conn.meter = self._meter(frame, conn)
        if self._take_directly is not None:
            take = self._take_directly
            if conn.space.prefix or not self._access.is_open:
                take = self._direct.take_of(conn)
            taken = take(frame, self.arrived, self._loop_time, self._now_ms)
            if taken is not None:
                return taken
        api_key, version, correlation_id, client_id, begin = request_header(frame)
        served = self._served.get(api_key)
        if served is None:
            raise FrameError(f"API {api_key} version {version} is not served: client id {_shown(client_id)}")
        api = served.api
        if not served.oldest <= version <= api.max_version:
            return self._other_version(served, version, correlation_id, client_id)
        if len(frame) > LARGEST_REQUEST:
            self.check_size(frame, len(frame))
        count = served.counts.get(version)
        if count is None:
            count = served.counts[version] = self._gw.metrics.requests.of(served.name, str(version))
        count.value += 1
        ctx = Context(api_key, version, client_id, self._now_ms, conn, self._access, correlation_id, owned)
        ctx.meter = conn.meter
        if api.reads_tags:
            ctx.request_tags = header_tags(frame, begin)
        body = frame[begin:]
        if len(body) > served.large and served.splits and conn.login is None:
            return self._wait(served, ctx, InTask(self._in_parts(served, ctx, memoryview(bytes(body)))), encoded=True)
        request = served.decode(body, version)
        if conn.space.prefix:
            request = names.inward(api_key, request, conn.space)
        try:
            result = self._handle(served, ctx, request)
        except FrameError:
            raise
        except Exception as error:
            return self._answer(served, self._failed(served, ctx, error))
        if not isinstance(result, Answer):
            return self._answer(served, self._encode(served, ctx, result))
        if isinstance(result, Later):
            return self._wait(served, ctx, result, reads=0 if api.reads is None else api.reads(request))
        result.started, result.latencies = self.arrived, served.latencies
        return result

    def _meter(self, frame: memoryview, conn: ConnectionInfo) -> Meter | None:
        """Return the meter that counts a request against the quotas of its client; None if it has none, or the API is
        not served.

        Brokers are not held for the time that their calls take.
        """
        api_key, version, _, client_id, _ = request_header(frame)
        served, quotas = self._served.get(api_key), self.throttling.of(conn.principal, client_id, conn.space)
        if quotas is None or served is None:
            return None
        if quotas.requests is not None and broker_that_asks(self._access, conn, client_id) is not None:
            quotas = quotas._replace(requests=None)
        place = None
        if served.oldest <= version <= served.api.max_version:
            place = throttle_time.place(served.response_class, version)
        return Meter(self.throttling, quotas, len(frame) if served.api.produces else 0, place)

    def settled(self, frame: Frame | None, meter: Meter) -> tuple[Frame | None, float]:
        """Count in its meter a request whose answer goes out now; return the answer, into which the time is put for
        which its client is held, and that time in seconds.
        """
        delay = meter.answered()
        if delay and meter.place is not None and frame is not None:
            frame = throttle_time.with_throttle_time(frame, meter.place, math.ceil(1000 * delay))
        return frame, delay

    def _before_login(self, login: Login, frame: memoryview, conn: ConnectionInfo) -> Answer | None:
        """Return the answer to a frame of a client that has not logged in: a login token, or the refusal behind which
        the connection is closed; None for a request that is served. FrameError if the connection has to be closed
        without an answer.
        """
        if login.takes_raw_tokens:
            return self._raw_token(login, frame, conn)
        api_key, version, correlation_id, client_id, _ = request_header(frame)
        served = self._served.get(api_key)
        turn = login.turn(api_key, served is not None and served.oldest <= version <= served.api.max_version)
        if turn is Turn.SERVE:
            return None
        reason = f"{f'API {api_key}' if served is None else served.name} came "
        if login.has_been_completed:
            reason += "behind the end of its session, or in the middle of the next login"
        else:
            reason += "before the login; clients log in if security.protocol is SASL_SSL or SASL_PLAINTEXT"
        reason += f": client id {_shown(client_id)}"
        refused = LoginRefusedError(reason)
        if turn is Turn.CLOSE or served is None or not served.oldest <= version <= served.api.max_version:
            raise refused
        code = ErrorCode.ILLEGAL_SASL_STATE
        self._count(served, code)
        message = codec.refusal(served.response_class, version, code)
        if message is None:
            raise refused
        answer = self._answer(served, (codec.encode_response(correlation_id, message),))
        answer.error = refused
        return answer

    def _raw_token(self, login: Login, frame: memoryview, conn: ConnectionInfo) -> Answer:
        """Hand a login token that has no header, as clients of SaslHandshake 0 send them, to the client's login; return
        its answer, which comes later and closes the connection if the login fails.
        """
        served = self._served[SASL_AUTHENTICATE]
        later = Later()
        later.started, later.latencies = self.arrived, served.latencies

        async def answer() -> Frame:
            try:
                token = await log_in(self._gw, conn, login, data)
            except AuthenticationError as error:
                self._count(served, ErrorCode.SASL_AUTHENTICATION_FAILED)
                raise LoginRefusedError(f"its login has failed: {error}") from None
            return (len(token).to_bytes(4, "big") + token,)

        def taken(answered: Later, result: Any) -> None:
            if isinstance(result, BaseException):
                answered.refuse(result)
            else:
                answered.give(result)

        data = bytes(frame)
        later.take = taken
        return later.follow(create_task(answer()))

    def _answer(self, served: _ServedApi, frame: Frame | None) -> Answer:
        """Return the answer to a request that needs no waiting: it is ready, with this frame."""
        answer = Answer()
        answer.started, answer.latencies = self.arrived, served.latencies
        answer.give(frame)
        return answer

    def _wait(self, served: _ServedApi, ctx: Context, later: Later, *, reads: int = 0, encoded: bool = False) -> Answer:
        """Return an answer that waits for a handler's result, after its coroutine, if it has one, was started as a
        task; if `encoded`, the result is the frame.

        `reads` is the number of bytes that the handler may read from storage; the coroutine waits until there is room
        for them.
        """
        later.started, later.latencies = self.arrived, served.latencies
        later.take = partial(self._take, served, ctx, encoded)
        if isinstance(later, InTask):
            if ctx.meter is not None:
                later.work = TimedWork(later.work, ctx.meter)
            admission = self.reads if reads else None
            later.follow(create_task(later.work) if admission is None else admission.start(later.work, reads))
        return later

    def _take(self, served: _ServedApi, ctx: Context, encoded: bool, later: Later, result: Any) -> None:
        """Give the answer `later` the frame made of the handler's result, or of the error that the handler ended with;
        refuse it, so that the connection is closed, if there is no such frame.
        """
        try:
            if isinstance(result, FrameError | asyncio.CancelledError):
                later.refuse(result)
                return
            if isinstance(result, BaseException):
                frame: Frame | None = self._failed(served, ctx, result)
            else:
                frame = cast("Frame | None", result) if encoded else self._encode(served, ctx, result)
        except FrameError as error:
            later.refuse(error)
        else:
            later.give(frame)

    def _handle(self, served: _ServedApi, ctx: Context, request: Any, *, reads: bool = True) -> Any:
        """Check the rights that the whole request needs (KopError if one is lacking), resolve the names in it, then run
        the handler and return its result. If something has to be read or looked for first, return an `InTask` that does
        all of that.

        `reads`: grants that may not be known are read first.
        """
        access = self._access
        if not access.is_open:
            if reads and served.named and (unread := access.unread(served.named, request)):
                return InTask(self._after_reading(unread, served, ctx, request))
            access.check(ctx.conn, served.whole, request)
        if served.finds and (to_find := access.names_to_find(ctx.conn, served.finds, request)):
            return InTask(self._after(self._gw.topics.find(to_find), served, ctx, request))
        if served.groups and (in_doubt := self._gw.groups.in_doubt(_groups(ctx, served, request))):
            return InTask(self._after(self._gw.groups.verify(in_doubt), served, ctx, request))
        return served.handler(self._gw, ctx, request)

    async def _in_parts(self, served: _ServedApi, ctx: Context, body: memoryview) -> Frame | None:
        """Answer a large request: decode and encode it in threads, call the handler once for each 200 rows, and let the
        requests of other clients run between the calls. The answers are joined, but an error of the whole request ends
        it and is the answer. FrameError if the API has no place for an error.
        """
        api = served.api
        try:
            request = await asyncio.to_thread(served.decode, body, ctx.version)
            if ctx.conn.space.prefix:
                request = await asyncio.to_thread(names.inward, ctx.api_key, request, ctx.conn.space)
            parts = [request] if api.rows is None else _parts(request, api.rows[0])
            result: Any = None
            for part in parts:
                of_part = await _waited(self._handle(served, ctx, part))
                if isinstance(of_part, Response) and of_part.fields.get("error_code"):
                    result = of_part  # an error of all: it holds for the parts before, too
                    break
                if result is None:
                    result = of_part
                else:
                    assert api.rows is not None
                    _answered(result, api.rows[1]).extend(_answered(of_part, api.rows[1]))
                await asyncio.sleep(0)
            codes, frame = await asyncio.to_thread(_encoded, api, ctx, result)
        except FrameError:
            raise
        except Exception as error:
            return self._failed(served, ctx, error)
        for code in codes:
            self._count(served, code)
        return frame

    async def _after_reading(self, namespaces: Collection[str], served: _ServedApi, ctx: Context, request: Any) -> Any:
        """Handle a request once the grants in these namespaces were read; return the handler's result."""
        await self._access.read(namespaces)
        return await _waited(self._handle(served, ctx, request, reads=False))

    async def _after(self, first: Awaitable[None], served: _ServedApi, ctx: Context, request: Any) -> Any:
        """Run the handler once `first` is done, such as the look for topics in other namespaces; return its result."""
        await first
        return await _waited(served.handler(self._gw, ctx, request))

    def _encode(self, served: _ServedApi, ctx: Context, result: Any) -> Frame | None:
        if served.api.encodes:
            frame: Frame | None = result
            return frame
        try:
            codes, frame = _encoded(served.api, ctx, result)
        except Exception as error:
            return self._failed(served, ctx, error)
        for code in codes:
            self._count(served, code)
        return frame

    def _count(self, served: _ServedApi, code: int) -> None:
        name = _NAMES.get(code) or str(code)
        self._gw.metrics.errors.labels(served.name, name).inc()

    def _other_version(self, served: _ServedApi, version: int, correlation_id: int, client_id: str | None) -> Answer:
        api = served.api
        if api.other_version is None:
            raise FrameError(
                f"{served.name} version {version} is not served (versions {api.min_version} to {api.max_version} are): "
                f"client id {_shown(client_id)}"
            )
        self._count(served, ErrorCode.UNSUPPORTED_VERSION)
        return self._answer(served, (codec.encode_response(correlation_id, api.other_version()),))

    def _failed(self, served: _ServedApi, ctx: Context, error: BaseException) -> Frame:
        """Return the encoded answer to a request whose handler raised an error, which is counted, and logged if it is
        no KopError. FrameError, which closes the connection, if the API has no place for the error.
        """
        code = error.code if isinstance(error, KopError) else ErrorCode.UNKNOWN_SERVER_ERROR
        if not isinstance(error, KopError):
            log.error("%s version %d from %s failed", served.name, ctx.version, ctx.conn.client_host, exc_info=error)
            self._gw.metrics.internal_errors.labels(served.name).inc()
        self._count(served, code)
        refusal = None if served.api.encodes else codec.refusal(served.response_class, ctx.version, code)
        if refusal is None:
            raise FrameError(f"{served.name} failed with {code.name} and has no place to say so")
        return (codec.encode_response(ctx.correlation_id, refusal),)


def _in_tasks(handler: Handler) -> Handler:
    """Return a handler for a coroutine function: it returns an `InTask`, which the pipeline runs as a task."""
    return lambda gw, ctx, request: InTask(handler(gw, ctx, request))


async def _waited(result: Any) -> Any:
    """Return a handler's result; if it comes later, wait for it, and raise the error that it may be."""
    return await result if isinstance(result, Later) else result


def _groups(ctx: Context, served: _ServedApi, request: Any) -> Iterable[str]:
    """Yield the groups in a request that the client is allowed to see."""
    for need in served.groups:
        if need.names is not None and need.operation is not None:
            allowed = partial(ctx.access.may, ctx.conn, need.operation, ResourceType.GROUP)
            yield from filter(allowed, need.names(request))


def _shown(client_id: str | None) -> str:
    return "none" if client_id is None else repr(client_id[:_SHOWN])


def _parts(request: Any, rows: str) -> list[Any]:
    """Return copies of a request that have 200 of its rows each, of the list called `rows`, at most; the request itself
    if it has no more.
    """
    items = getattr(request, rows) or []
    if len(items) <= _PART_ROWS:
        return [request]
    parts = []
    for begin in range(0, len(items), _PART_ROWS):
        part = copy.copy(request)
        setattr(part, rows, items[begin : begin + _PART_ROWS])
        parts.append(part)
    return parts


def _answered(result: Any, rows: str) -> list[Any]:
    """Return the list called `rows` in the response to a part of a request; the answers of the next part are appended
    to it.
    """
    answers: list[Any] = result.fields[rows] if isinstance(result, Response) else getattr(result, rows)
    return answers


def _decode(request_class: type[Message], slack: int, body: memoryview, version: int) -> Message:
    return codec.decode(request_class, version, body, slack=slack)


def _encoded(api: Api, ctx: Context, result: Any) -> tuple[set[int], Frame]:
    if isinstance(result, Response):
        result = result.message()
    if ctx.conn.space.prefix:
        result = names.outward(ctx.api_key, result, ctx.conn.space)
    if api.encode is not None:
        codes, frame = api.encode(ctx.correlation_id, ctx.version, result)
        return codes, (frame,)
    return set(codec.error_codes(result)), (codec.encode_response(ctx.correlation_id, result, ctx.header_tags),)
