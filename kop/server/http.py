"""The HTTP server for operators and tools: a table of pages.

Owns: the server (aiohttp's), what its connections may take, and the pages /metrics, /healthz and /readyz.
Must not know: Kafka, which pages there are: `kop.app` mounts them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kop.repeats import Repeats
from kop.server.limits import MOST_HTTP_CONNECTIONS

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

PATIENCE_SECONDS: Final = 10.0
"""The seconds that a client has for the head of a request, for reading on, and between two requests."""
_ACCEPTED: Final = 8
"""The connections that are accepted at a time: they are files, too, until they are refused."""

log = logging.getLogger(__name__)


class _Pages(web.Server):
    """The server of a table of pages. It closes connections beyond the limit at once, and those whose clients are too
    slow.
    """

    def __init__(self, routes: Mapping[str, Handler]) -> None:
        super().__init__(self._answer, access_log=None, keepalive_timeout=PATIENCE_SECONDS)
        self._routes = routes
        self._looks: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        """The connections, and when each is looked at the next time."""
        self._silent: set[web.RequestHandler] = set()
        """The connections on which no request has come yet."""
        self._lines = Repeats()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._silent.discard(request.protocol)
        page = self._routes.get(request.path)
        if page is None:
            raise web.HTTPNotFound
        if request.method not in {"GET", "HEAD"}:
            raise web.HTTPMethodNotAllowed(request.method, ("GET", "HEAD"))
        return await page(request)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Count a new connection, or close it if there are too many."""
        super().connection_made(handler, transport)
        if len(self._looks) >= MOST_HTTP_CONNECTIONS:
            self._tell(f"it has {MOST_HTTP_CONNECTIONS}, and further ones are closed")
            self._loop.call_soon(transport.abort)  # once aiohttp's task has begun: it does not bear to be too late
            return
        self._silent.add(handler)
        self._look_later(handler, transport, 0)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Stop counting a connection, which is closed."""
        super().connection_lost(handler, exc)
        self._silent.discard(handler)
        look = self._looks.pop(handler, None)
        if look is not None:
            look.cancel()

    def _look_later(self, handler: web.RequestHandler, transport: asyncio.Transport, unread: int) -> None:
        self._looks[handler] = self._loop.call_later(PATIENCE_SECONDS, partial(self._look, handler, transport, unread))

    def _look(self, handler: web.RequestHandler, transport: asyncio.Transport, unread_before: int) -> None:
        """Close a connection on which no request has come, or whose client has read nothing of `unread_before` bytes
        since the last look. aiohttp itself closes those that are idle between requests.
        """
        unread = transport.get_write_buffer_size()
        if handler in self._silent:
            self._tell(f"a client has sent no request within {PATIENCE_SECONDS:.0f} s")
            transport.abort()
        elif unread and unread == unread_before:
            self._tell(f"a client has read nothing of its answer for {PATIENCE_SECONDS:.0f} s")
            transport.abort()
        else:
            self._look_later(handler, transport, unread)

    def _tell(self, reason: str) -> None:
        left_out = self._lines.say(reason, self._loop.time())
        if left_out is not None:
            more = f"; {left_out} more like this before" if left_out else ""
            log.warning("closing a connection of the HTTP port: %s%s", reason, more)


async def serve_http(host: str, port: int, routes: Mapping[str, Handler]) -> tuple[web.ServerRunner, int]:
    """Serve `routes`, pages by their paths, over HTTP; return the runner (`await runner.cleanup()` stops it) and the
    port. OSError if the address cannot be listened on.
    """
    runner = web.ServerRunner(_Pages(routes))
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=_ACCEPTED)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, runner.addresses[0][1]


def metrics_page(registry: CollectorRegistry) -> Handler:
    """Return the page /metrics: all metrics in Prometheus's text format."""

    async def page(_request: web.BaseRequest) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return page


async def health_page(_request: web.BaseRequest) -> web.Response:
    """Answer 200: the process runs."""
    return web.Response(text="ok\n")


def readiness_page(not_ready: Callable[[], str | None], waiting_for: Callable[[], str | None]) -> Handler:
    """Return the page /readyz: 503 with the line that `not_ready()` gives, or 200 if that gives None.

    Of a broker that is ready a second line, by `waiting_for()`, names the groups and transactional ids that are not
    served yet; there is none if that gives None.
    """

    async def page(_request: web.BaseRequest) -> web.Response:
        reason = not_ready()
        if reason is not None:
            return web.Response(status=503, text=f"{reason}\n")
        missing = waiting_for()
        return web.Response(text="ready\n" if missing is None else f"ready\n{missing}\n")

    return page
