"""The paths of a worker that Pulsar has not: what workers ask each other, and the pages of operators.

Owns: these paths, and what each answers.
Must not know: who may ask, what runs here: it asks a `Service`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kop.functions.metrics import exposition
from kop.functions.rest_functions import FUNCTION, INSTANCE
from kop.functions.rest_requests import fqfn_of, json_object
from kop.functions.worker_service import Service

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Pages of probes, which have no token."""


class InternalPaths:
    """The paths below /internal, and the pages of operators."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def status(self, request: web.Request) -> web.Response:
        """Return the InstanceStatus of each instance of a function that runs on this worker, by its number."""
        fqfn = fqfn_of(request)
        local = await asyncio.to_thread(self._service.local)
        statuses = {number: status for (name, number), status in local.items() if name == fqfn}
        return web.json_response(statuses)

    async def ask(self, request: web.Request) -> web.Response:
        """Return an instance's answer to the question in the request's body; the instance runs on this worker.
        RestError if the question is no object of JSON.
        """
        question = json_object(await request.read(), "the question")
        return web.json_response(
            await self._service.local_ask(fqfn_of(request), int(request.match_info["instance"]), question)
        )

    async def metrics(self, _request: web.Request) -> web.Response:
        """Return the metrics of the instances of this worker, in Prometheus's text format."""
        local = await asyncio.to_thread(self._service.local)
        body = exposition(local, self._service.cluster)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(self, _request: web.Request) -> web.Response:
        """Answer 200: the process lives."""
        return web.Response(text="ok\n")

    async def ready(self, _request: web.Request) -> web.Response:
        """Answer 200, or 503 with the reason while the worker cannot do its work."""
        reason = self._service.not_ready()
        return web.Response(status=200 if reason is None else 503, text=f"{reason or 'ready'}\n")


def internal_routes(service: Service) -> list[web.RouteDef]:
    """Return the paths that Pulsar has not: those below /internal, /metrics, /healthz and /readyz."""
    internal = InternalPaths(service)
    return [
        web.get(f"/internal/status{FUNCTION}", internal.status),
        web.post(f"/internal/ask{INSTANCE}", internal.ask),
        web.get("/metrics", internal.metrics),
        web.get("/healthz", internal.health),
        web.get("/readyz", internal.ready),
    ]
