"""The pages for operators: /metrics, /healthz, /readyz.

Owns: the HTTP server (aiohttp's) and what each page says.
Must not know: Kafka.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


async def serve_http(
    host: str,
    port: int,
    registry: CollectorRegistry,
    not_ready: Callable[[], str | None],
    waiting_for: Callable[[], str | None],
) -> tuple[web.AppRunner, int]:
    """Start serving; returns the runner (`await runner.cleanup()` stops it) and the port bound.

    /healthz is 200 while the process lives. /readyz is 503 with the line that `not_ready()` gives, and 200 where it
    gives none; a second line, by `waiting_for()`, names what is not served yet.
    """

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        reason = not_ready()
        if reason is not None:
            return web.Response(status=503, text=f"{reason}\n")
        missing = waiting_for()
        return web.Response(text="ready\n" if missing is None else f"ready\n{missing}\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", health), web.get("/readyz", ready)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, runner.addresses[0][1]
