"""The paths of a worker that are about workers: Pulsar's /admin/v2/worker and its statistics.

Owns: these paths, and what each answers.
Must not know: who may ask, how workers know of each other: it asks a `Service`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from kop.functions import shapes
from kop.functions.definitions import WorkerInfo
from kop.functions.rest_requests import RestError, answered
from kop.functions.worker_service import Json, Service

WORKER: Final = "/admin/v2/worker"


class WorkerPaths:
    """The REST paths below /admin/v2/worker, which tell of the workers: their members, leader, assignments."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def cluster(self, _request: web.Request) -> web.Response:
        """Return the workers that live; each has `drained` beside Pulsar's fields."""
        drained = self._service.drained()
        return web.json_response(
            [{**_worker(worker), "drained": worker.worker_id in drained} for worker in self._service.workers()]
        )

    async def leader(self, _request: web.Request) -> web.Response:
        """Return the worker that leads. RestError, 404, if none does at the moment."""
        leader = self._service.leader()
        if leader is None:
            raise RestError(404, "no worker leads at the moment")
        return web.json_response(_worker(leader))

    async def leader_ready(self, _request: web.Request) -> web.Response:
        """Return true as JSON if a worker leads and this one is ready for work, else false."""
        return web.json_response(self._service.leader() is not None and self._service.not_ready() is None)

    async def assignments(self, _request: web.Request) -> web.Response:
        """Return the instances of each worker that has some, as TENANT/NAMESPACE/NAME:NUMBER."""
        workers: dict[str, list[str]] = {}
        for (fqfn, number), assignment in sorted(self._service.assignments().items()):
            workers.setdefault(assignment.worker, []).append(f"{fqfn}:{number}")
        return web.json_response(workers)

    async def rebalance(self, _request: web.Request) -> web.Response:
        """Ask the leader to deal all instances to the workers anew; answers 204 when that is decided."""
        return answered(await self._service.requests.rebalance())

    async def drain(self, request: web.Request) -> web.Response:
        """Ask the leader to give the instances of a worker to others: of the one that `?workerId` names, else of this
        one. Answers 204; RestError if there is no such worker, or no other one.
        """
        return answered(await self._service.requests.drain(self._worker_of(request)))

    async def undrain(self, request: web.Request) -> web.Response:
        """Ask the leader to let a worker have instances again: the one that `?workerId` names, else this one. Answers
        204; RestError if there is no such worker.
        """
        return answered(await self._service.requests.drain(self._worker_of(request), drained=False))

    def _worker_of(self, request: web.Request) -> str:
        worker = request.query.get("workerId") or self._service.worker_id
        if worker not in {each.worker_id for each in self._service.workers()}:
            raise RestError(404, f"there is no worker {worker}")
        return worker

    async def drain_status(self, request: web.Request) -> web.Response:
        """Return how far the draining of a worker has come: NOT_RUN if it is not drained, RUNNING while it still has
        instances, SUCCESS after that.
        """
        worker = self._worker_of(request)
        left = [number for number, assignment in self._service.assignments().items() if assignment.worker == worker]
        if worker not in self._service.drained():
            return web.json_response({"status": "NOT_RUN", "lastError": ""})
        return web.json_response({"status": "RUNNING" if left else "SUCCESS", "lastError": ""})

    async def function_stats(self, _request: web.Request) -> web.Response:
        """Return the statistics of the instances of this worker."""
        return web.json_response(
            [
                {"name": f"{fqfn}:{number}", "metrics": shapes.instance_stats(status.get("stats"))}
                for (fqfn, number), status in sorted((await asyncio.to_thread(self._service.local)).items())
            ]
        )

    async def metrics(self, _request: web.Request) -> web.Response:
        """Return an empty list of metrics: /metrics has them."""
        return web.json_response([])


def _worker(worker: WorkerInfo) -> Json:
    return {"workerId": worker.worker_id, "workerHostname": worker.host, "port": worker.port}


def worker_routes(service: Service) -> list[web.RouteDef]:
    """Return the paths about workers."""
    worker = WorkerPaths(service)
    return [
        web.get(f"{WORKER}/cluster", worker.cluster),
        web.get(f"{WORKER}/cluster/leader", worker.leader),
        web.get(f"{WORKER}/cluster/leader/ready", worker.leader_ready),
        web.get(f"{WORKER}/assignments", worker.assignments),
        web.put(f"{WORKER}/rebalance", worker.rebalance),
        *(web.put(f"{WORKER}{path}", worker.drain) for path in ("/drain", "/leader/drain")),
        *(web.delete(f"{WORKER}{path}", worker.undrain) for path in ("/drain", "/leader/drain")),
        *(web.get(f"{WORKER}{path}", worker.drain_status) for path in ("/drain", "/leader/drain")),
        web.get("/admin/v2/worker-stats/functionsmetrics", worker.function_stats),
        web.get("/admin/v2/worker-stats/metrics", worker.metrics),
    ]
