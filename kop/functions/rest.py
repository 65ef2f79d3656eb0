"""The HTTP of a worker: Pulsar's paths for functions and workers, metrics and health, and what workers ask each other.

Owns: paths; who may ask; how large a request may be; status codes and the texts of errors.
Must not know: topics, leaders, processes, where functions run: it asks a `Service`.

Whoever may send requests here may run code on the worker. So it listens on loopback, or wants a token; and without a
token it takes nothing that a browser sends for a page of others.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from aiohttp import BodyPartReader, web
from aiohttp.typedefs import Middleware
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kop.address import is_loopback
from kop.client.errors import REQUEST_ERRORS, ClientError
from kop.functions import shapes
from kop.functions.definitions import Assignment, Definition, InstanceName, LeaderAnswer, WorkerInfo
from kop.functions.metrics import exposition
from kop.functions.packages import Package

log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 6750
"""That of Pulsar's worker."""
PACKAGE_BYTES: Final = 128 << 20
"""As large may a package be."""
CONFIG_BYTES: Final = 1 << 20
"""As large may a definition be, and any other part of a request."""
VALUE_BYTES: Final = 1 << 20
"""As large may the message of a trigger be, and a value of the state."""
TRIGGER_SECONDS: Final = 60.0
ASK_SECONDS: Final = 15.0
"""How long an instance may take to answer for its state."""

V3: Final = "/admin/v3/functions"
WORKER: Final = "/admin/v2/worker"
FUNCTION: Final = "/{tenant}/{namespace}/{name}"
INSTANCE: Final = FUNCTION + r"/{instance:\d{1,9}}"
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Pages of probes, which have no token."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Json: TypeAlias = dict[str, Any]


class Service(Protocol):
    """What a worker does for those who ask it. `fqfn` is TENANT/NAMESPACE/NAME."""

    @property
    def cluster(self) -> str:
        """The name of the cluster, for metrics."""

    @property
    def worker_id(self) -> str:
        """The name of this worker."""

    async def request(
        self,
        kind: str,
        fqfn: str,
        *,
        expects: int | None = None,
        config: Json | None = None,
        package: Package | None = None,
        instance: int | None = None,
        by: str,
    ) -> LeaderAnswer:
        """Ask for a change of a definition, and return what the leader says of it."""

    def definition(self, fqfn: str) -> Definition | None:
        """Return the definition of a function; None if there is none."""

    def names(self, tenant: str, namespace: str) -> list[str]:
        """Return the names of the functions of a namespace."""

    def functions(self) -> Sequence[Definition]:
        """Return all definitions."""

    async def status(self, fqfn: str, instance: int | None) -> Mapping[int, Json]:
        """Return the InstanceStatus, as JSON, of all instances or of one, wherever they run."""

    async def ask(self, fqfn: str, instance: int | None, question: Json) -> Json:
        """Ask an instance, the one that has the answer if none is named."""

    async def history(self, fqfn: str) -> Sequence[Json]:
        """Return requests and their answers, the oldest first."""

    async def package(self, fqfn: str) -> Package | None:
        """Return the package of a function."""

    async def upload(self, path: str, data: bytes) -> None:
        """Keep a file under a path."""

    async def download(self, path: str) -> bytes | None:
        """Return a file that was uploaded; None if there is none."""

    def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers."""

    def leader(self) -> WorkerInfo | None:
        """Return the worker that leads; None if nobody does."""

    def assignments(self) -> Mapping[InstanceName, Assignment]:
        """Return which worker has which instance."""

    def drained(self) -> Set[str]:
        """Return the workers that are given no instances."""

    async def rebalance(self) -> LeaderAnswer:
        """Deal the instances anew."""

    async def drain(self, worker_id: str, *, drained: bool = True) -> LeaderAnswer:
        """Give the instances of a worker to others; or let it have some again."""

    def not_ready(self) -> str | None:
        """Return why the worker does not work; None if it does."""

    def local(self) -> Mapping[InstanceName, Json]:
        """Return the InstanceStatus, as JSON, of the instances of this worker. It may block for a second."""

    async def local_ask(self, fqfn: str, instance: int, question: Json) -> Json:
        """Ask an instance of this worker."""


class RestError(Exception):
    """What a request is refused with."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class RestServer:
    """The HTTP server of a worker, which runs."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """End it: what is being answered has a second."""
        await self._runner.cleanup()


async def serve(service: Service, host: str, port: int, token: str | None) -> RestServer:
    """Serve a worker; ClientError says why that is refused."""
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
        raise ClientError(
            f"name another address (--listen): {host}:{port} cannot be had ({error.strerror or error})"
        ) from None
    return RestServer(runner)


def application(service: Service, token: str | None) -> web.Application:
    """Return all paths, for whoever has the token."""
    app = web.Application(middlewares=[_errors, _guard(token)], client_max_size=CONFIG_BYTES)
    app.add_routes(routes(service))
    return app


# -- who may ask, and what errors look like


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors as Pulsar does: `{"reason": text}`."""
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
    """Make the middleware that refuses whoever may not ask."""

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
    """Refuse what a page of others may make a browser send to this machine: it would run code here."""
    host = request.headers.get("Host", "")
    name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
    if "Origin" in request.headers or not is_loopback(name):
        raise RestError(403, "without a token only programs on this machine are answered, by its loopback address")


# -- what is read of a request


def _fqfn(request: web.Request) -> str:
    return "/".join(request.match_info[part] for part in ("tenant", "namespace", "name"))


def _instance(request: web.Request) -> int | None:
    given = request.match_info.get("instance")
    return None if given is None else int(given)


def _by(request: web.Request) -> str:
    """Return who asks: the name that the program gives itself, and its address."""
    program = request.headers.get("User-Agent", "somebody")[:200]
    return f"{program} from {request.remote}"


class GivenPart(NamedTuple):
    """A part of a form."""

    data: bytes
    file_name: str

    def text(self) -> str:
        """Return it as text; RestError if it is none."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise RestError(400, f"a part of the form is no UTF-8: {error}") from None

    def json(self) -> Json:
        """Return it as an object of JSON; RestError if it is none."""
        try:
            value = json.loads(self.text())
        except ValueError as error:
            raise RestError(400, f"a part of the form is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise RestError(400, f"a part of the form must be an object of JSON, not a {type(value).__name__}")
        return value


async def _form(request: web.Request, limits: Mapping[str, int]) -> dict[str, GivenPart]:
    """Return the parts of a form that are known, each up to its limit; others are passed over."""
    if not request.content_type.startswith("multipart/"):
        raise RestError(415, "the body must be multipart/form-data")
    form: dict[str, GivenPart] = {}
    size = 0
    reader = await request.multipart()
    while (part := await reader.next()) is not None:
        if not isinstance(part, BodyPartReader):
            raise RestError(400, "a part of the form has parts of its own")
        name = part.name or ""
        limit = limits.get(name, CONFIG_BYTES)
        data = bytearray()
        while chunk := await part.read_chunk(1 << 16):
            data += chunk
            size += len(chunk)
            if len(data) > limit or size > sum(limits.values()) + CONFIG_BYTES:
                raise RestError(413, f"the part {name!r} of the form has more than {limit} bytes")
        if name in form:
            raise RestError(400, f"the form has two parts {name!r}")
        if name in limits:
            form[name] = GivenPart(bytes(data), part.filename or "")
    return form


def _answered(answer: LeaderAnswer) -> web.Response:
    if not answer.won:
        raise RestError(answer.status, answer.reason)
    return web.Response(status=204, headers=_etag(answer.revision))


def _etag(revision: int | None) -> dict[str, str]:
    return {} if revision is None else {"ETag": f'"{revision}"'}


# -- functions


class _Functions:
    """The paths below /admin/v3/functions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def _needed(self, fqfn: str) -> Definition:
        definition = self._service.definition(fqfn)
        if definition is None:
            raise RestError(404, f"Function {fqfn} doesn't exist")
        return definition

    def _expects(self, request: web.Request, fqfn: str) -> int:
        """Return the revision that a change is made to: the one that its author has read, else the current one."""
        given = request.headers.get("If-Match", "").strip('" ')
        if given in {"", "*"}:
            return self._needed(fqfn).revision
        if not given.isdigit():
            raise RestError(400, f"If-Match must be a revision, not {given!r}")
        return int(given)

    def _one(self, request: web.Request) -> tuple[str, int | None]:
        """Return which function, and which of its instances, a request is about."""
        fqfn, instance = _fqfn(request), _instance(request)
        definition = self._needed(fqfn)
        if instance is not None and instance >= _count(definition):
            raise RestError(404, f"Function {fqfn} has no instance {instance}: it has {_count(definition)}")
        return fqfn, instance

    async def _definition_given(self, request: web.Request, *, is_update: bool) -> tuple[Json, Package | None]:
        """Return the fields of a FunctionConfig, and the package, of a form."""
        form = await _form(request, {"functionConfig": CONFIG_BYTES, "url": CONFIG_BYTES, "data": PACKAGE_BYTES})
        if "url" in form:
            raise RestError(400, f"send the file: packages of a URL are not fetched ({form['url'].text()})")
        config = form["functionConfig"].json() if "functionConfig" in form else {}
        if request.headers.get("User-Agent", "").startswith("Pulsar"):
            config = shapes.config_of_pulsar_tools(config, is_update=is_update)
        for field in ("tenant", "namespace", "name"):
            if config.get(field) not in {None, "", request.match_info[field]}:
                raise RestError(400, f"the {field} is {config[field]}, and the path names {request.match_info[field]}")
            config.pop(field, None)
            if not is_update:
                config[field] = request.match_info[field]
        config.pop("fqfn", None)
        if "data" not in form:
            if not is_update:
                raise RestError(400, "Function package is not provided: send the file of the function")
            return config, None
        if not form["data"].file_name:
            raise RestError(400, "the part 'data' has no file name")
        package = Package(form["data"].file_name.replace("\\", "/").rpartition("/")[2], form["data"].data)
        return shapes.config_with_package(config, package.name), package

    async def create(self, request: web.Request) -> web.Response:
        """Make a function."""
        config, package = await self._definition_given(request, is_update=False)
        answer = await self._service.request("create", _fqfn(request), config=config, package=package, by=_by(request))
        return _answered(answer)

    async def update(self, request: web.Request) -> web.Response:
        """Change the fields that are given."""
        config, package = await self._definition_given(request, is_update=True)
        fqfn = _fqfn(request)
        expects = self._expects(request, fqfn)
        answer = await self._service.request(
            "update", fqfn, expects=expects, config=config, package=package, by=_by(request)
        )
        return _answered(answer)

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a function."""
        fqfn = _fqfn(request)
        expects = self._expects(request, fqfn)
        return _answered(await self._service.request("delete", fqfn, expects=expects, by=_by(request)))

    def state_changes(self, kind: str) -> Handler:
        """Make the handler that starts, stops or restarts a function, or an instance of it."""

        async def change(request: web.Request) -> web.Response:
            fqfn, instance = self._one(request)
            expects = self._expects(request, fqfn)
            return _answered(
                await self._service.request(kind, fqfn, expects=expects, instance=instance, by=_by(request))
            )

        return change

    async def get(self, request: web.Request) -> web.Response:
        """Return the definition; its revision is the ETag."""
        definition = self._needed(_fqfn(request))
        names = {field: request.match_info[field] for field in ("tenant", "namespace", "name")}
        return web.json_response({**names, **definition.config}, headers=_etag(definition.revision))

    async def names(self, request: web.Request) -> web.Response:
        """Return the names of the functions of a namespace."""
        return web.json_response(
            sorted(self._service.names(request.match_info["tenant"], request.match_info["namespace"]))
        )

    async def history(self, request: web.Request) -> web.Response:
        """Return who asked for which changes, and what became of them."""
        history = list(await self._service.history(_fqfn(request)))
        if not history:
            self._needed(_fqfn(request))
        return web.json_response(history)

    async def _statuses(self, request: web.Request) -> tuple[dict[int, Json], dict[int, Json]]:
        """Return the InstanceStatus of each instance that told its own, and Pulsar's status of all that are wanted."""
        fqfn, instance = self._one(request)
        told = dict(await self._service.status(fqfn, instance))
        assignments = self._service.assignments()
        others_run = any(name == fqfn for name, _ in assignments)
        definition = self._needed(fqfn)
        statuses = {}
        for number in range(_count(definition)) if instance is None else [instance]:
            assignment = assignments.get((fqfn, number))
            status = statuses[number] = shapes.instance_status(
                told.get(number), None if assignment is None else assignment.worker
            )
            if number not in told and number in definition.stopped:
                status["error"] = "stopped"
            elif number not in told and others_run and (assignment is None or not assignment.partitions):
                status["error"] = "it has no partition: there are more instances than partitions"
        return told, statuses

    async def status(self, request: web.Request) -> web.Response:
        """Return the status of all instances, or of one."""
        _, statuses = await self._statuses(request)
        instance = _instance(request)
        return web.json_response(shapes.function_status(statuses) if instance is None else statuses[instance])

    async def stats(self, request: web.Request) -> web.Response:
        """Return the statistics of all instances, or of one."""
        told, statuses = await self._statuses(request)
        stats = {number: told.get(number, {}).get("stats") for number in statuses}
        instance = _instance(request)
        return web.json_response(
            shapes.function_stats(stats) if instance is None else shapes.instance_stats(stats[instance])
        )

    async def trigger(self, request: web.Request) -> web.Response:
        """Send a message, and answer when it is done: with the output, 204 if there is none, or the exception."""
        fqfn, instance = self._one(request)
        form = await _form(
            request, {"data": VALUE_BYTES, "dataStream": VALUE_BYTES, "topic": CONFIG_BYTES, "key": VALUE_BYTES}
        )
        value = form.get("data") or form.get("dataStream")
        if value is None:
            raise RestError(400, "Function trigger data is not provided: a part 'data' or 'dataStream'")
        question = {
            "ask": "trigger",
            "value": base64.b64encode(value.data).decode(),
            "key": base64.b64encode(form["key"].data).decode() if "key" in form else None,
            "topic": form["topic"].text() if "topic" in form else None,
            "seconds": TRIGGER_SECONDS,
        }
        answer = await self._service.ask(fqfn, instance, question)
        _raise_error(answer)
        if answer.get("output") is None:
            return web.Response(status=204)
        return web.Response(body=base64.b64decode(answer["output"]), content_type="application/octet-stream")

    async def query_state(self, request: web.Request) -> web.Response:
        """Return a value of the state.

        If each partition has a state of its own, all are asked; `?partition=N` names one.
        """
        fqfn, _ = self._one(request)
        key = request.match_info["key"]
        values: dict[int | None, Json] = {}
        for partition in self._state_partitions(request, fqfn):
            question = {"ask": "state", "key": key, "seconds": ASK_SECONDS}
            if partition is not None:
                question["partition"] = partition
            answer = await self._service.ask(fqfn, None, question)
            _raise_error(answer)
            if answer.get("value") is not None:
                values[partition] = answer["value"]
        if not values:
            raise RestError(404, f"key '{key}' doesn't exist.")
        if len(values) > 1:
            numbers = ", ".join(map(str, values))
            raise RestError(400, f"key '{key}' is in the states of the partitions {numbers}: name one, ?partition=N")
        (value,) = values.values()
        return web.json_response(shapes.state_answer(key, value))

    def _state_partitions(self, request: web.Request, fqfn: str) -> Sequence[int | None]:
        """Return the partitions whose states are asked; None for the one that the function has."""
        given = request.query.get("partition")
        if given is not None:
            if not given.isdecimal():
                raise RestError(400, f"partition must be a number, not {given!r}")
            return [int(given)]
        if self._needed(fqfn).config.get("stateScope") != "partition":
            return [None]
        assigned = [dealt.partitions for (name, _), dealt in self._service.assignments().items() if name == fqfn]
        return sorted({number for partitions in assigned for _, number in partitions}) or [None]

    async def put_state(self, request: web.Request) -> web.Response:
        """Set a value of the state."""
        fqfn, _ = self._one(request)
        key = request.match_info["key"]
        form = await _form(request, {"state": VALUE_BYTES})
        if "state" not in form:
            raise RestError(400, "State is not provided: a part 'state'")
        try:
            value = shapes.state_given(key, form["state"].json())
        except ValueError as error:
            raise RestError(400, str(error)) from None
        question = {"ask": "putstate", "key": key, "seconds": ASK_SECONDS, **value}
        if "partition" in request.query:
            question["partition"] = self._state_partitions(request, fqfn)[0]
        _raise_error(await self._service.ask(fqfn, None, question))
        return web.Response(status=204)

    async def upload(self, request: web.Request) -> web.Response:
        """Keep a file under a path."""
        form = await _form(request, {"data": PACKAGE_BYTES, "path": CONFIG_BYTES})
        if "data" not in form or "path" not in form:
            raise RestError(400, "an upload has the parts 'data' and 'path'")
        await self._service.upload(form["path"].text(), form["data"].data)
        return web.Response(status=204)

    async def download(self, request: web.Request) -> web.Response:
        """Return a file that was uploaded."""
        path = request.query.get("path", "")
        data = await self._service.download(path)
        if data is None:
            raise RestError(404, f"Path {path} doesn't exist")
        return web.Response(body=data, content_type="application/octet-stream")

    async def download_package(self, request: web.Request) -> web.Response:
        """Return the package of a function."""
        fqfn = _fqfn(request)
        self._needed(fqfn)
        package = await self._service.package(fqfn)
        if package is None:
            raise RestError(404, f"Function {fqfn} has no package")
        name = "".join(letter if letter.isascii() and letter not in '"\\\r\n' else "_" for letter in package.name)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return web.Response(body=package.data, content_type="application/octet-stream", headers=headers)

    async def built_in(self, _request: web.Request) -> web.Response:
        """Return no built-in functions: there are none."""
        return web.json_response([])

    async def reload_built_in(self, _request: web.Request) -> web.Response:
        """Do nothing: there are no built-in functions."""
        return web.Response(status=204)


def _raise_error(answer: Json) -> None:
    """Raise RestError if an instance has answered with an error; `status` says of which kind it is."""
    if answer.get("error"):
        raise RestError(int(answer.get("status") or 400), str(answer["error"]))


def _count(definition: Definition) -> int:
    return int(definition.config.get("parallelism") or 1)


# -- workers


class _Workers:
    """The paths below /admin/v2/worker."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def cluster(self, _request: web.Request) -> web.Response:
        """Return the workers; `drained` is beside Pulsar's fields."""
        drained = self._service.drained()
        return web.json_response(
            [{**_worker(worker), "drained": worker.worker_id in drained} for worker in self._service.workers()]
        )

    async def leader(self, _request: web.Request) -> web.Response:
        """Return the worker that leads."""
        leader = self._service.leader()
        if leader is None:
            raise RestError(404, "no worker leads at the moment")
        return web.json_response(_worker(leader))

    async def leader_ready(self, _request: web.Request) -> web.Response:
        """Return if a worker leads."""
        return web.json_response(self._service.leader() is not None and self._service.not_ready() is None)

    async def assignments(self, _request: web.Request) -> web.Response:
        """Return the instances of each worker."""
        workers: dict[str, list[str]] = {}
        for (fqfn, number), assignment in sorted(self._service.assignments().items()):
            workers.setdefault(assignment.worker, []).append(f"{fqfn}:{number}")
        return web.json_response(workers)

    async def rebalance(self, _request: web.Request) -> web.Response:
        """Deal the instances anew."""
        return _answered(await self._service.rebalance())

    async def drain(self, request: web.Request) -> web.Response:
        """Give the instances of a worker to others: of the one that is named, else of this one."""
        return _answered(await self._service.drain(self._worker_of(request)))

    async def undrain(self, request: web.Request) -> web.Response:
        """Let a worker have instances again: the one that is named, else this one."""
        return _answered(await self._service.drain(self._worker_of(request), drained=False))

    def _worker_of(self, request: web.Request) -> str:
        worker = request.query.get("workerId") or self._service.worker_id
        if worker not in {each.worker_id for each in self._service.workers()}:
            raise RestError(404, f"there is no worker {worker}")
        return worker

    async def drain_status(self, request: web.Request) -> web.Response:
        """Return if a worker that is drained has instances still."""
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
        """Return no metrics as JSON: /metrics has them."""
        return web.json_response([])


def _worker(worker: WorkerInfo) -> Json:
    return {"workerId": worker.worker_id, "workerHostname": worker.host, "port": worker.port}


# -- what workers ask each other, and operators


class _Internal:
    """The paths below /internal, and the pages of operators."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def status(self, request: web.Request) -> web.Response:
        """Return the InstanceStatus of each instance of a function that runs here."""
        fqfn = _fqfn(request)
        local = await asyncio.to_thread(self._service.local)
        statuses = {number: status for (name, number), status in local.items() if name == fqfn}
        return web.json_response(statuses)

    async def ask(self, request: web.Request) -> web.Response:
        """Ask an instance that runs here."""
        body = await request.read()
        try:
            question = json.loads(body)
        except ValueError as error:
            raise RestError(400, f"the question is no JSON: {error}") from None
        if not isinstance(question, dict):
            raise RestError(400, "the question is no object of JSON")
        return web.json_response(
            await self._service.local_ask(_fqfn(request), int(request.match_info["instance"]), question)
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
        """Answer 503 with a reason while the worker does not work."""
        reason = self._service.not_ready()
        return web.Response(status=200 if reason is None else 503, text=f"{reason or 'ready'}\n")


def routes(service: Service) -> list[web.RouteDef]:
    """Return all paths of a worker."""
    functions, workers, internal = _Functions(service), _Workers(service), _Internal(service)
    changes = [
        web.post(f"{V3}{which}/{kind}", functions.state_changes(kind))
        for which in (FUNCTION, INSTANCE)
        for kind in ("start", "stop", "restart")
    ]
    return [
        web.post(f"{V3}/upload", functions.upload),
        web.get(f"{V3}/download", functions.download),
        web.get(f"{V3}/builtins", functions.built_in),
        web.post(f"{V3}/builtins/reload", functions.reload_built_in),
        web.get(f"{V3}/{{tenant}}/{{namespace}}", functions.names),
        web.post(f"{V3}{FUNCTION}", functions.create),
        web.put(f"{V3}{FUNCTION}", functions.update),
        web.delete(f"{V3}{FUNCTION}", functions.delete),
        web.get(f"{V3}{FUNCTION}", functions.get),
        web.get(f"{V3}{FUNCTION}/state/{{key:.+}}", functions.query_state),
        web.post(f"{V3}{FUNCTION}/state/{{key:.+}}", functions.put_state),
        web.get(f"{V3}{FUNCTION}/status", functions.status),
        web.get(f"{V3}{INSTANCE}/status", functions.status),
        web.get(f"{V3}{FUNCTION}/stats", functions.stats),
        web.get(f"{V3}{INSTANCE}/stats", functions.stats),
        web.post(f"{V3}{FUNCTION}/trigger", functions.trigger),
        web.get(f"{V3}{FUNCTION}/download", functions.download_package),
        web.get(f"{V3}{FUNCTION}/history", functions.history),
        *changes,
        web.get(f"{WORKER}/cluster", workers.cluster),
        web.get(f"{WORKER}/cluster/leader", workers.leader),
        web.get(f"{WORKER}/cluster/leader/ready", workers.leader_ready),
        web.get(f"{WORKER}/assignments", workers.assignments),
        web.put(f"{WORKER}/rebalance", workers.rebalance),
        *(web.put(f"{WORKER}{path}", workers.drain) for path in ("/drain", "/leader/drain")),
        *(web.delete(f"{WORKER}{path}", workers.undrain) for path in ("/drain", "/leader/drain")),
        *(web.get(f"{WORKER}{path}", workers.drain_status) for path in ("/drain", "/leader/drain")),
        web.get("/admin/v2/worker-stats/functionsmetrics", workers.function_stats),
        web.get("/admin/v2/worker-stats/metrics", workers.metrics),
        web.get(f"/internal/status{FUNCTION}", internal.status),
        web.post(f"/internal/ask{INSTANCE}", internal.ask),
        web.get("/metrics", internal.metrics),
        web.get("/healthz", internal.health),
        web.get("/readyz", internal.ready),
    ]
