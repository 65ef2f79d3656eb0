"""The HTTP server of a worker.

Owns: who may ask; what an error is to whoever asks; the start and the end of the server.
Must not know: what each path does (`rest_functions`, `rest_workers`, `rest_internal`).

Whoever may send requests here may run code on the worker. So it listens on loopback, or wants a token; and without a
token it takes nothing that a browser sends for a page of others.
"""

from __future__ import annotations

import errno
import hmac
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.typedefs import Middleware

from kop.address import is_loopback
from kop.client.errors import REQUEST_ERRORS, ClientError
from kop.functions.rest_functions import function_routes
from kop.functions.rest_internal import OPEN_PATHS, internal_routes
from kop.functions.rest_requests import CONFIG_BYTES, RestError
from kop.functions.rest_workers import worker_routes
from kop.functions.worker_service import Service

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve(
    service: Service, host: str, port: int, token: str | None
) -> tuple[int, Callable[[], Coroutine[Any, Any, None]]]:
    """Listen and serve the REST interface of a worker; port 0 is any free one. Returns the port, and the function that
    stops the server: requests that are being answered have a second to end. ClientError if it may not, or cannot,
    listen at this address, or the token is too short.
    """
    if token is None and not is_loopback(host):
        raise ClientError(
            f"give a token (--token-file), or listen on 127.0.0.1: whoever reaches {host}:{port} may run code"
        )
    if token is not None and len(token) < 16:
        raise ClientError("write a token of 16 characters or more: whoever guesses it may run code")
    runner = web.AppRunner(application(service, token), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        if error.errno == errno.EADDRINUSE:
            raise ClientError(f"{host}:{port} is in use by another program; choose another with --listen") from None
        why = os.strerror(error.errno) if error.errno else error  # asyncio's own text has the address again
        raise ClientError(f"cannot listen on {host}:{port}: {why}; choose another with --listen") from None
    return int(runner.addresses[0][1]), runner.cleanup


def application(service: Service, token: str | None) -> web.Application:
    """Return the application with all paths. Who asks needs `token`, if there is one; else requests of browsers for
    pages of others are refused.
    """
    app = web.Application(middlewares=[_errors, _guard(token)], client_max_size=CONFIG_BYTES)
    app.add_routes([*function_routes(service), *worker_routes(service), *internal_routes(service)])
    return app


# -- who may ask, and what errors look like


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors as Pulsar does, by a status and `{"reason": text}`; those that nobody expects are logged."""
    try:
        return await handler(request)
    except RestError as error:
        return web.json_response({"reason": error.reason}, status=error.status)
    except web.HTTPException as error:
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return web.json_response({"reason": error.text or error.reason}, status=error.status, headers=headers)
    except TimeoutError as error:
        return web.json_response({"reason": str(error) or "it took too long"}, status=408)
    except REQUEST_ERRORS as error:  # what a server refuses a worker itself
        return web.json_response({"reason": str(error)}, status=503)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        return web.json_response({"reason": f"{type(error).__name__}: {error}; the log says more"}, status=500)


def _guard(token: str | None) -> Middleware:
    """Return the middleware that refuses whoever may not ask: with 401 without the token, or, if there is none, with
    403 for a browser.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            if token is None:
                _refuse_browsers(request)
            elif not hmac.compare_digest(_bytes(request.headers.get("Authorization", "")), _bytes(f"Bearer {token}")):
                raise RestError(401, "a token is needed (--token-file): Authorization: Bearer ...")
        return await handler(request)

    return guard


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")  # of a header that is no UTF-8


def _refuse_browsers(request: web.Request) -> None:
    """Raise RestError for requests that a foreign web page may make a browser send to this machine: they could run code
    here.
    """
    host = request.headers.get("Host", "")
    name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
    if "Origin" in request.headers or not is_loopback(name):
        raise RestError(403, "without a token only programs on this machine are answered, by its loopback address")
