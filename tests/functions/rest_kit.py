"""A worker's REST over a service of a test, and requests to it."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from email.message import Message
from typing import Any, NamedTuple, cast

from kop.functions.config_reading import read
from kop.functions.definitions import Assignment, Definition, InstanceName, LeaderAnswer, WorkerInfo
from kop.functions.packages import Package
from kop.functions.rest import serve
from kop.functions.spec import SpecError

STATS: dict[str, Any] = {
    "received": 7,
    "processed": 5,
    "user_exceptions": 2,
    "system_exceptions": 0,
    "received_1min": 3,
    "processed_1min": 2,
    "user_exceptions_1min": 1,
    "system_exceptions_1min": 0,
    "latency_sum_ms": 10.0,
    "latency_count": 5,
    "latency_sum_ms_1min": 6.0,
    "latency_count_1min": 2,
    "latest_user_exceptions": [{"text": "ValueError: no", "at_ms": 1_700_000_000_000}],
    "latest_system_exceptions": [],
    "last_invocation_ms": 1_700_000_000_500,
    "user_metrics": {"size": [2, 9.0]},
    "lag": {"in-put-0": 4},
    "at": None,
}
"""A StatsSnapshot as JSON."""


def status_of(**fields: Any) -> dict[str, Any]:
    """An InstanceStatus as JSON."""
    given: dict[str, Any] = {
        "running": True,
        "error": "",
        "at": None,
        "since_ms": 1_700_000_000_000,
        "restarts": 1,
        "stderr": [],
        "stats": STATS,
    }
    return given | fields


class FakeService:
    """A worker without topics: the first request wins that expects the revision that there is."""

    cluster = "kafka-1"
    worker_id = "w1"

    def __init__(self) -> None:
        self.offset = 100
        self.definitions: dict[str, Definition] = {}
        self.packages: dict[str, Package] = {}
        self.files: dict[str, bytes] = {}
        self.sent: list[dict[str, Any]] = []
        self.statuses: dict[InstanceName, dict[str, Any]] = {}
        self.values: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, int | None, dict[str, Any]]] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.partitions_of_keys: dict[str, list[int]] = {}
        self.moved: list[str] = []
        self.are_drained: set[str] = set()
        self.why_not_ready: str | None = None

    @property
    def requests(self) -> FakeService:
        return self

    @property
    def questions(self) -> FakeService:
        return self

    async def request(
        self,
        kind: str,
        fqfn: str,
        *,
        expects: int | None = None,
        config: dict[str, Any] | None = None,
        package: Package | None = None,
        instance: int | None = None,
        by: str,
    ) -> LeaderAnswer:
        self.offset += 1
        row = {"kind": kind, "fqfn": fqfn, "expects": expects, "config": config, "instance": instance, "by": by}
        self.sent.append(row)
        answer = self._decide(kind, fqfn, expects, config, package, by)
        row |= {
            "status": answer.status,
            "reason": answer.reason,
            "revision": answer.revision,
            "at_ms": 1_700_000_000_000,
        }
        return answer

    def _decide(
        self, kind: str, fqfn: str, expects: int | None, config: dict[str, Any] | None, package: Package | None, by: str
    ) -> LeaderAnswer:
        current = self.definitions.get(fqfn)
        revision = current.revision if current else None
        if revision != expects:
            winner = current.by if current else "nobody"
            return LeaderAnswer(request="r", status=409, reason=f"{fqfn} is of revision {revision}, made by {winner}")
        if kind == "delete":
            del self.definitions[fqfn]
            return LeaderAnswer(request="r", status=200, offset=self.offset)
        merged = {**(current.config if current else {}), **(config or {})}
        try:
            read(json.dumps(merged), "functionConfig")
        except SpecError as error:
            return LeaderAnswer(request="r", status=400, reason=str(error))
        if package is not None:
            self.packages[fqfn] = package
        made = Definition(fqfn=fqfn, config=merged, revision=self.offset, version=self.offset, kind=kind, by=by)
        if kind in {"start", "stop"}:
            made = replace(made, stopped=frozenset({0} if kind == "stop" else ()))
        self.definitions[fqfn] = made
        return LeaderAnswer(request="r", status=200, revision=self.offset, offset=self.offset)

    def definition(self, fqfn: str) -> Definition | None:
        return self.definitions.get(fqfn)

    def names(self, tenant: str, namespace: str) -> list[str]:
        start = f"{tenant}/{namespace}/"
        return [fqfn.removeprefix(start) for fqfn in self.definitions if fqfn.startswith(start)]

    def functions(self) -> list[Definition]:
        return list(self.definitions.values())

    async def status(self, fqfn: str, instance: int | None) -> dict[int, dict[str, Any]]:
        return {
            number: status
            for (name, number), status in self.statuses.items()
            if name == fqfn and instance in {None, number}
        }

    async def ask(self, fqfn: str, instance: int | None, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((fqfn, instance, question))
        if question["ask"] == "state":
            where = self.partitions_of_keys.get(question["key"])
            if where is not None and question["partition"] not in where:
                return {"value": None}
            return {"value": self.values.get(question["key"])}
        if question["ask"] == "putstate":
            names = ("stringValue", "byteValue", "numberValue")
            self.values[question["key"]] = {name: question[name] for name in names if name in question}
            return {}
        value = base64.b64decode(question["value"])
        return self.answers.get(value.decode(), {"output": base64.b64encode(value.upper()).decode(), "error": None})

    async def history(self, fqfn: str, limit: int) -> list[dict[str, Any]]:
        return [row for row in self.sent if row["fqfn"] == fqfn][-limit:]

    async def package(self, fqfn: str) -> Package | None:
        return self.packages.get(fqfn)

    async def upload(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def download(self, path: str) -> bytes | None:
        return self.files.get(path)

    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo("w1", "127.0.0.1", 6750, True), WorkerInfo("w2", "10.0.0.2", 6750)]

    def leader(self) -> WorkerInfo | None:
        return self.workers()[0]

    def assignments(self) -> dict[InstanceName, Assignment]:
        return {
            name: Assignment(worker="w1", revision=1, partitions=(("in", name[1]),), number=name[1])
            for name in self.statuses
        }

    def drained(self) -> frozenset[str]:
        return frozenset(self.are_drained)

    async def rebalance(self) -> LeaderAnswer:
        self.moved.append("rebalance")
        return LeaderAnswer(request="r", status=200)

    async def drain(self, worker_id: str, *, drained: bool = True) -> LeaderAnswer:
        if drained and not {worker.worker_id for worker in self.workers()} - self.are_drained - {worker_id}:
            return LeaderAnswer(request="r", status=409, reason="no other worker is left")
        self.moved.append(worker_id)
        (self.are_drained.add if drained else self.are_drained.discard)(worker_id)
        return LeaderAnswer(request="r", status=200)

    def not_ready(self) -> str | None:
        return self.why_not_ready

    def local(self) -> Mapping[InstanceName, dict[str, Any]]:
        return self.statuses

    async def local_ask(self, fqfn: str, instance: int, question: dict[str, Any]) -> dict[str, Any]:
        return await self.ask(fqfn, instance, question)


class Response(NamedTuple):
    """What a request was answered."""

    status: int
    body: bytes
    headers: Message

    def json(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)


class Rest:
    """Requests to a server of a test."""

    def __init__(self, port: int, service: FakeService) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.service = service

    def __call__(
        self,
        method: str,
        path: str,
        parts: Sequence[tuple[str, str | None, str | None, bytes]] | None = None,
        body: bytes | None = None,
        **headers: Any,
    ) -> Response:
        """Send a request; `parts` are those of a form: name, file name, content type, data."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if parts is not None:
            body = form(parts)
            given["Content-Type"] = "multipart/form-data; boundary=BOUNDARY"
        request = urllib.request.Request(self.url + path, body, given, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=20) as response:
                return Response(response.status, response.read(), response.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.read(), error.headers)

    def create(self, name: str = "f", **config: Any) -> Response:
        """Create a function as pulsar-admin does."""
        fields = {"tenant": "public", "namespace": "default", "name": name, "className": "f", "inputs": ["in"]}
        made_up = {"outputSchemaType": "", "forwardSourceMessageProperty": True, "subscriptionPosition": "Latest"}
        given = json.dumps({**fields, **made_up, "py": "/home/ann/f.py", **config}).encode()
        parts = [
            ("functionConfig", None, "application/json; charset=UTF-8", given),
            ("data", "f.py", "application/octet-stream", b"def process(input): return input\n"),
        ]
        return self("POST", f"/admin/v3/functions/public/default/{name}", parts, User_Agent="Pulsar-Java-v4")


def form(parts: Sequence[tuple[str, str | None, str | None, bytes]]) -> bytes:
    """A body of multipart/form-data."""
    body = b""
    for name, file_name, kind, data in parts:
        shown = "" if file_name is None else f'; filename="{file_name}"'
        body += f'--BOUNDARY\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n'.encode()
        body += (f"Content-Type: {kind}\r\n" if kind else "").encode() + b"\r\n" + data + b"\r\n"
    return body + b"--BOUNDARY--\r\n"


@contextmanager
def serving(service: FakeService, token: str | None = None) -> Iterator[Rest]:
    """Serve in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        begun = asyncio.run_coroutine_threadsafe(serve(cast(Any, service), "127.0.0.1", 0, token), loop)
        port, stop = begun.result(60)
        try:
            yield Rest(port, service)
        finally:
            asyncio.run_coroutine_threadsafe(stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
