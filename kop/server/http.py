"""The HTTP server for operators and tools: a table of pages.

Owns: the server (aiohttp's), and the pages /metrics, /healthz and /readyz.
Must not know: Kafka, which pages there are: `kop.app` mounts them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve_http(host: str, port: int, routes: Mapping[str, Handler]) -> tuple[web.AppRunner, int]:
    """Serve `routes`, pages by their paths, over HTTP; return the runner (`await runner.cleanup()` stops it) and the
    port. OSError if the address cannot be listened on.
    """
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, runner.addresses[0][1]


def metrics_page(registry: CollectorRegistry) -> Handler:
    """Return the page /metrics: all metrics in Prometheus's text format."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return page


async def health_page(_request: web.Request) -> web.Response:
    """Answer 200: the process runs."""
    return web.Response(text="ok\n")


def readiness_page(not_ready: Callable[[], str | None], waiting_for: Callable[[], str | None]) -> Handler:
    """Return the page /readyz: 503 with the line that `not_ready()` gives, or 200 if that gives None.

    Of a broker that is ready a second line, by `waiting_for()`, names the groups and transactional ids that are not
    served yet; there is none if that gives None.
    """

    async def page(_request: web.Request) -> web.Response:
        reason = not_ready()
        if reason is not None:
            return web.Response(status=503, text=f"{reason}\n")
        missing = waiting_for()
        return web.Response(text="ready\n" if missing is None else f"ready\n{missing}\n")

    return page
