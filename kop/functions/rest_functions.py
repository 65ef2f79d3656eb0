"""The paths of a worker that are about functions: Pulsar's /admin/v3/functions, and what it has beside them.

Owns: these paths, what each reads of its request and answers.
Must not know: who may ask, where functions run: it asks a `Service`.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from aiohttp import web

from kop.functions import shapes
from kop.functions.definitions import Definition
from kop.functions.loops import Loop, loop_of
from kop.functions.packages import PACKAGE_BYTES, Package
from kop.functions.rest_requests import (
    CONFIG_BYTES,
    RestError,
    answered,
    author_of,
    etag,
    fqfn_of,
    instance_of,
    number_in,
    raise_error,
    read_form,
)
from kop.functions.worker_service import Json, Service

NOTE: Final = "Kop-Note"
"""The header of an answer to create and update that has a note."""
V3: Final = "/admin/v3/functions"
FUNCTION: Final = "/{tenant}/{namespace}/{name}"
INSTANCE: Final = FUNCTION + r"/{instance:\d{1,9}}"
VALUE_BYTES: Final = 1 << 20
"""The most bytes of the message of a trigger, and of a value of the state."""
TRIGGER_SECONDS: Final = 60.0
HISTORY_REQUESTS: Final = 100
"""The number of requests that a history has, unless another number is asked for."""
MOST_REQUESTS: Final = 10_000
ASK_SECONDS: Final = 15.0
"""The seconds that an instance may take to answer for its state."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FunctionPaths:
    """The paths below /admin/v3/functions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def _needed(self, fqfn: str) -> Definition:
        definition = self._service.definition(fqfn)
        if definition is None:
            reason = self._service.not_ready()
            if reason is not None:
                raise RestError(503, f"this worker does not know of {fqfn}: {reason}")
            *space, name = fqfn.split("/")
            names = {other.lower(): other for other in self._service.names(*space)}
            near = difflib.get_close_matches(name.lower(), names, 1)
            raise RestError(404, f"Function {fqfn} doesn't exist" + (f"; is it {names[near[0]]}?" if near else ""))
        return definition

    def _expects(self, request: web.Request) -> int:
        """Return the revision that a change is based on: the one in If-Match, which its author has read, else that of
        the current definition. RestError if If-Match is no number, or if it is needed and there is no such function.
        """
        given = request.headers.get("If-Match", "").strip('" ')
        if given in {"", "*"}:
            return self._needed(fqfn_of(request)).revision
        revision = number_in(given)
        if revision is None:
            raise RestError(400, f"If-Match must be a revision, not {given!r}")
        return revision

    def _one(self, request: web.Request) -> tuple[str, int | None]:
        """Return the function, and the number of the instance or None, that a request's path names. RestError if there
        is no such function or instance.
        """
        fqfn, instance = fqfn_of(request), instance_of(request)
        definition = self._needed(fqfn)
        if instance is not None and instance >= _count(definition):
            raise RestError(404, f"Function {fqfn} has no instance {instance}: it has {_count(definition)}")
        return fqfn, instance

    async def _definition_given(self, request: web.Request, *, is_update: bool) -> tuple[Json, Package | None]:
        """Return the fields of a FunctionConfig and the package, None if there is none, of a form; of a create with the
        names of the path. RestError if they do not fit the path or cannot be read, or a create has no package.
        """
        form = await read_form(request, {"functionConfig": CONFIG_BYTES, "url": CONFIG_BYTES, "data": PACKAGE_BYTES})
        if "url" in form:
            raise RestError(400, f"send the file: packages of a URL are not fetched ({form['url'].text()})")
        config = form["functionConfig"].json() if "functionConfig" in form else {}
        if request.headers.get("User-Agent", "").startswith("Pulsar"):
            config = shapes.config_of_pulsar_tools(config, is_update=is_update)
        for field in ("tenant", "namespace", "name"):
            if config.get(field) not in (None, "", request.match_info[field]):
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
        return {**config, "py": package.name}, package

    async def _change(self, request: web.Request, kind: str, **given: Any) -> web.Response:
        """Ask the leader for a change of the function that a path names, and return the response to its answer.
        RestError with the leader's reason if it is refused.
        """
        return answered(await self._service.requests.request(kind, fqfn_of(request), by=author_of(request), **given))

    async def create(self, request: web.Request) -> web.Response:
        """Make a function of the fields and the file in a form. Answers 204 with its revision as ETag, and with the
        header Kop-Note if it is part of a loop through topics; RestError with the leader's reason if it is refused.
        """
        config, package = await self._definition_given(request, is_update=False)
        return self._with_note(request, await self._change(request, "create", config=config, package=package))

    async def update(self, request: web.Request) -> web.Response:
        """Change the fields of a function that are given in a form, and its code if there is a file. Answers as
        `create` does; refused if the function has another revision than If-Match says.
        """
        config, package = await self._definition_given(request, is_update=True)
        expects = self._expects(request)
        response = await self._change(request, "update", expects=expects, config=config, package=package)
        return self._with_note(request, response)

    def _loop(self, fqfn: str) -> Loop | None:
        return loop_of(fqfn, {definition.fqfn: definition for definition in self._service.functions()})

    def _with_note(self, request: web.Request, response: web.Response) -> web.Response:
        """Return a response with the note that its function is part of a loop through topics, in the header Kop-Note,
        if it is.
        """
        loop = self._loop(fqfn_of(request))
        if loop is not None:
            response.headers[NOTE] = loop.text.encode("ascii", "backslashreplace").decode()
        return response

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a function. Answers 204; RestError if there is none, or if its revision is not that of If-Match."""
        return await self._change(request, "delete", expects=self._expects(request))

    def state_changes(self, kind: str) -> Handler:
        """Return the handler that asks to start, stop or restart (`kind`) a function, or the instance that the path
        names.
        """

        async def change(request: web.Request) -> web.Response:
            _, instance = self._one(request)
            return await self._change(request, kind, expects=self._expects(request), instance=instance)

        return change

    async def get(self, request: web.Request) -> web.Response:
        """Return the definition, which is the FunctionConfig; its revision is the ETag. RestError, 404, if there is
        none.
        """
        definition = self._needed(fqfn_of(request))
        names = {field: request.match_info[field] for field in ("tenant", "namespace", "name")}
        return web.json_response({**names, **definition.config}, headers=etag(definition.revision))

    async def names(self, request: web.Request) -> web.Response:
        """Return the names of the functions of a namespace, in order."""
        return web.json_response(
            sorted(self._service.names(request.match_info["tenant"], request.match_info["namespace"]))
        )

    async def history(self, request: web.Request) -> web.Response:
        """Return who asked for which changes, and what became of them: the last ones, `?limit=N` of them at most (100
        by default), the oldest first. RestError if `limit` is wrong, or if there are none and no such function.
        """
        given = request.query.get("limit", str(HISTORY_REQUESTS))
        limit = number_in(given)
        if limit is None or not 1 <= limit <= MOST_REQUESTS:
            raise RestError(400, f"limit must be a number from 1 to {MOST_REQUESTS}, not {given!r}")
        history = list(await self._service.history(fqfn_of(request), limit))
        if not history:
            self._needed(fqfn_of(request))
        return web.json_response(history)

    async def _statuses(self, request: web.Request) -> tuple[dict[int, Json], dict[int, Json]]:
        """Return, by number, the InstanceStatus of the instances that told theirs, and Pulsar's status of all that are
        wanted, which says why one does not run. RestError if there is no such function or instance.
        """
        fqfn, instance = self._one(request)
        told = dict(await self._service.questions.status(fqfn, instance))
        assignments = self._service.assignments()
        others_run = any(name == fqfn for name, _ in assignments)
        definition, loop = self._needed(fqfn), self._loop(fqfn)
        statuses = {}
        for number in range(_count(definition)) if instance is None else [instance]:
            assignment = assignments.get((fqfn, number))
            status = statuses[number] = shapes.instance_status(
                told.get(number), None if assignment is None else assignment.worker
            )
            if number not in told and number in definition.stopped:
                status["error"] = "stopped"
            elif number not in told and definition.mesh:
                status["error"] = f"the mesh {definition.mesh} has it: kop mesh status {definition.mesh}"
            elif number not in told and others_run and (assignment is None or not assignment.partitions):
                status["error"] = "it has no partition: there are more instances than partitions"
            elif number not in told and assignment is None:
                missing = f"there is no topic of its inputs, {', '.join(definition.spec.inputs)}. Create one"
                status["error"] += f": {self._service.not_ready() or missing}"
            status["loop"] = None if loop is None else {"text": loop.text, "since": loop.since_ms}
        return told, statuses

    async def status(self, request: web.Request) -> web.Response:
        """Return the status of a function with all its instances, or of the instance that the path names. RestError if
        there is none.
        """
        _, statuses = await self._statuses(request)
        instance = instance_of(request)
        return web.json_response(shapes.function_status(statuses) if instance is None else statuses[instance])

    async def stats(self, request: web.Request) -> web.Response:
        """Return the statistics of a function with all its instances, or of the instance that the path names. RestError
        if there is none.
        """
        told, statuses = await self._statuses(request)
        stats = {number: told.get(number, {}).get("stats") for number in statuses}
        instance = instance_of(request)
        return web.json_response(
            shapes.function_stats(stats) if instance is None else shapes.instance_stats(stats[instance])
        )

    async def trigger(self, request: web.Request) -> web.Response:
        """Send a message to the function, and answer when it is done: with the output, 204 if there is none. RestError,
        422, with the text of the exception if the call fails, 408 if it is not done within 60 s.
        """
        fqfn, instance = self._one(request)
        form = await read_form(
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
        answer = await self._service.questions.ask(fqfn, instance, question)
        raise_error(answer)
        if answer.get("output") is None:
            return web.Response(status=204)
        return web.Response(body=base64.b64decode(answer["output"]), content_type="application/octet-stream")

    async def query_state(self, request: web.Request) -> web.Response:
        """Return a value of the state. RestError, 404, if the key has none.

        If each partition has a state of its own, all are asked, and the key may be in one only; `?partition=N` names
        one.
        """
        fqfn, _ = self._one(request)
        key = request.match_info["key"]
        values: dict[int | None, Json] = {}
        for partition in self._state_partitions(request, fqfn):
            question = {"ask": "state", "key": key, "seconds": ASK_SECONDS}
            if partition is not None:
                question["partition"] = partition
            answer = await self._service.questions.ask(fqfn, None, question)
            raise_error(answer)
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
        """Return the partitions whose states are asked: the one that the request names, else all if each has a state of
        its own; a single None means the one state that the function has. RestError if the request names no number.
        """
        given = request.query.get("partition")
        if given is not None:
            number = number_in(given)
            if number is None:
                raise RestError(400, f"partition must be a number, not {given!r}")
            return [number]
        if self._needed(fqfn).config.get("stateScope") != "partition":
            return [None]
        assigned = [dealt.partitions for (name, _), dealt in self._service.assignments().items() if name == fqfn]
        return sorted({number for partitions in assigned for _, number in partitions}) or [None]

    async def put_state(self, request: web.Request) -> web.Response:
        """Set the value of a key in the state of a function; answers 204 once it is committed. RestError if the form
        has no right value.
        """
        fqfn, _ = self._one(request)
        key = request.match_info["key"]
        form = await read_form(request, {"state": VALUE_BYTES})
        if "state" not in form:
            raise RestError(400, "State is not provided: a part 'state'")
        try:
            value = shapes.state_given(key, form["state"].json())
        except ValueError as error:
            raise RestError(400, str(error)) from None
        question = {"ask": "putstate", "key": key, "seconds": ASK_SECONDS, **value}
        if "partition" in request.query:
            question["partition"] = self._state_partitions(request, fqfn)[0]
        raise_error(await self._service.questions.ask(fqfn, None, question))
        return web.Response(status=204)

    async def upload(self, request: web.Request) -> web.Response:
        """Store a file in the topic of packages under a path of the user's choice; a file that was there is replaced.
        Answers 204 once it is readable.
        """
        form = await read_form(request, {"data": PACKAGE_BYTES, "path": CONFIG_BYTES})
        if "data" not in form or "path" not in form:
            raise RestError(400, "an upload has the parts 'data' and 'path'")
        await self._service.upload(form["path"].text(), form["data"].data)
        return web.Response(status=204)

    async def download(self, request: web.Request) -> web.Response:
        """Return the file that was uploaded under `?path`. RestError, 404, if there is none."""
        path = request.query.get("path", "")
        data = await self._service.download(path)
        if data is None:
            raise RestError(404, f"Path {path} doesn't exist")
        return web.Response(body=data, content_type="application/octet-stream")

    async def download_package(self, request: web.Request) -> web.Response:
        """Return the package of a function, under the name of its file. RestError, 404, if there is none."""
        fqfn = fqfn_of(request)
        self._needed(fqfn)
        package = await self._service.package(fqfn)
        if package is None:
            raise RestError(404, f"Function {fqfn} has no package")
        name = "".join(letter if letter.isascii() and letter not in '"\\\r\n' else "_" for letter in package.name)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return web.Response(body=package.data, content_type="application/octet-stream", headers=headers)

    async def built_in(self, _request: web.Request) -> web.Response:
        """Return an empty list: there are no built-in functions."""
        return web.json_response([])

    async def reload_built_in(self, _request: web.Request) -> web.Response:
        """Do nothing: there are no built-in functions."""
        return web.Response(status=204)


def _count(definition: Definition) -> int:
    return int(definition.config.get("parallelism") or 1)


def function_routes(service: Service) -> list[web.RouteDef]:
    """Return the paths about functions."""
    function = FunctionPaths(service)
    changes = [
        web.post(f"{V3}{which}/{kind}", function.state_changes(kind))
        for which in (FUNCTION, INSTANCE)
        for kind in ("start", "stop", "restart")
    ]
    return [
        web.post(f"{V3}/upload", function.upload),
        web.get(f"{V3}/download", function.download),
        web.get(f"{V3}/builtins", function.built_in),
        web.post(f"{V3}/builtins/reload", function.reload_built_in),
        web.get(f"{V3}/{{tenant}}/{{namespace}}", function.names),
        web.post(f"{V3}{FUNCTION}", function.create),
        web.put(f"{V3}{FUNCTION}", function.update),
        web.delete(f"{V3}{FUNCTION}", function.delete),
        web.get(f"{V3}{FUNCTION}", function.get),
        web.get(f"{V3}{FUNCTION}/state/{{key:.+}}", function.query_state),
        web.post(f"{V3}{FUNCTION}/state/{{key:.+}}", function.put_state),
        web.get(f"{V3}{FUNCTION}/status", function.status),
        web.get(f"{V3}{INSTANCE}/status", function.status),
        web.get(f"{V3}{FUNCTION}/stats", function.stats),
        web.get(f"{V3}{INSTANCE}/stats", function.stats),
        web.post(f"{V3}{FUNCTION}/trigger", function.trigger),
        web.get(f"{V3}{FUNCTION}/download", function.download_package),
        web.get(f"{V3}{FUNCTION}/history", function.history),
        *changes,
    ]
