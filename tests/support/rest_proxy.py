"""A proxy before Pulsar's REST interface that fails requests when a test says so.

Owns: what is passed on, and what is answered instead.
Must not know: what the requests ask for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

Fault = Callable[[str, str], int]
"""From method and path to the status that is answered instead: 0 passes the request on, -1 cuts the connection."""


class RestProxy:
    """`fault` decides about each request."""

    def __init__(self, target: str) -> None:
        self.fault: Fault = lambda method, path: 0
        self.failed: list[tuple[str, str]] = []
        self.url = ""
        self._target = target

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if status := self.fault(request.method, request.path):
            self.failed.append((request.method, request.path))
            if status > 0:
                return web.json_response({"reason": "as the test wants it"}, status=status)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        body = await request.read()
        kept = {name: value for name, value in request.headers.items() if name.lower() not in {"host"}}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                f"{self._target}{request.path_qs}",
                data=body,
                headers=kept,
                allow_redirects=False,
                skip_auto_headers=["Accept-Encoding"],
            ) as answer,
        ):
            headers = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in {"transfer-encoding", "content-length", "connection"}
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)


@asynccontextmanager
async def rest_proxy(target: str) -> AsyncIterator[RestProxy]:
    """A proxy before `target` for the length of a block."""
    proxy = RestProxy(target)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", proxy.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        await runner.cleanup()
