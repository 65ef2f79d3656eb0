"""The HTTP server: a table of pages, which may be any."""

from __future__ import annotations

import aiohttp
from aiohttp import web
from support.gateway import run

from kop.server.http import health_page, serve_http


async def _status(request: web.Request) -> web.Response:
    return web.Response(status=203, text=f"asked for {request.path}")


def test_each_route_of_the_table_is_served_and_no_other() -> None:
    async def main() -> None:
        runner, port = await serve_http("127.0.0.1", 0, {"/status": _status, "/healthz": health_page})
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                for path, status, text in (("/status", 203, "asked for /status"), ("/healthz", 200, "ok\n")):
                    async with session.get(path) as answer:
                        assert (answer.status, await answer.text()) == (status, text)
                for method, path, status in (("GET", "/metrics", 404), ("POST", "/status", 405)):
                    async with session.request(method, path) as answer:
                        assert answer.status == status
        finally:
            await runner.cleanup()

    run(main())
