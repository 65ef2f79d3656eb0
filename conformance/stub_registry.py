"""A schema registry in memory with the calls of Confluent's API that serializers and kop make, for tests.

Owns: ids, subjects and versions, references, and faults on demand: `refusals`, `down`. A schema is what was registered.
Protobuf comes as confluent-kafka sends it, a file descriptor in base64, and is shown as its text: the descriptor is
there by its id, for who asks for `format=serialized`. Newer registries have it by subjects, too.
Must not know: what formats mean, beyond the imports of Protobuf.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf import descriptor_pb2

from conformance.proto_text import proto_text


class StubRegistry:
    """The registry, and its HTTP server while it is entered."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        """The schemas; the id of the first is 1."""
        self.subjects: dict[str, list[int]] = {}
        """The ids of the versions of each subject; the first is version 1."""
        self.refusals: dict[str, tuple[int, str]] = {}
        """The status and message with which a registration under a subject is refused."""
        self.down = False
        """True if each request is answered 503."""
        self.requests: list[str] = []
        self._lock = threading.Lock()

    def add(self, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        """Register a schema under a subject, and return its id."""
        with self._lock:
            schema = {"schema": text, "schemaType": kind, "references": references or []}
            if schema not in self.schemas:
                self.schemas.append(schema)
            number = self.schemas.index(schema) + 1
            versions = self.subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            return number

    def answer(self, method: str, target: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return status and body of the answer to a request."""
        parts = urlsplit(target)
        path = unquote(parts.path)
        self.requests.append(f"{method} {target}")
        if self.down:
            return 503, {"error_code": 50301, "message": "the registry is down"}
        if (match := re.fullmatch(r"/schemas/ids/(\d+)", path)) and method == "GET":
            number = int(match[1])
            if not 1 <= number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            return 200, self._shown(number, serialized=parse_qs(parts.query).get("format") == ["serialized"])
        match = re.fullmatch(r"/subjects/(.+?)(/versions(?:/(\w+))?)?", path)
        if match is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        subject, versions = match[1], self.subjects.get(match[1], [])
        if method == "POST":
            return self._posted(subject, body, register=bool(match[2]))
        if not versions:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        if match[3] is None:
            return 200, list(range(1, len(versions) + 1))
        version = len(versions) if match[3] in ("latest", "-1") else int(match[3])
        if not 1 <= version <= len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        number = versions[version - 1]
        return 200, {"subject": subject, "id": number, "version": version} | self._shown(number)

    def _posted(self, subject: str, body: dict[str, Any], *, register: bool) -> tuple[int, Any]:
        schema = {
            "schema": body["schema"],
            "schemaType": body.get("schemaType") or "AVRO",
            "references": body.get("references") or [],
        }
        if register:
            if subject in self.refusals:
                status, message = self.refusals[subject]
                return status, {"error_code": status, "message": message}
            if (wrong := self._wrong(schema)) is not None:
                return 422, {
                    "error_code": 42201,
                    "message": f"the schema, or one it refers to, is {wrong}",
                }
            number = self.add(subject, schema["schema"], schema["schemaType"], schema["references"])
            return 200, {"id": number}
        for version, number in enumerate(self.subjects.get(subject, []), 1):
            if self.schemas[number - 1] == schema:
                return 200, {"subject": subject, "id": number, "version": version} | self._shown(number)
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _wrong(self, schema: dict[str, Any]) -> str | None:
        """Return why a schema cannot be registered; None if it can."""
        for reference in schema["references"]:
            if not 0 < reference["version"] <= len(self.subjects.get(reference["subject"], [])):
                return f"invalid: no {reference['subject']} of version {reference['version']}"
        if schema["schemaType"] == "PROTOBUF":
            named = {reference["name"] for reference in schema["references"]}
            for imported in _file(schema["schema"]).dependency:
                if imported not in named and not imported.startswith("google/protobuf/"):
                    return f"invalid: {imported} cannot be imported"
        return None

    def _shown(self, number: int, *, serialized: bool = False) -> dict[str, Any]:
        """Return a schema as the registry shows it: Avro's type and empty references are left out, Protobuf is text
        unless it is to be `serialized`.
        """
        schema = dict(self.schemas[number - 1])
        if schema["schemaType"] == "PROTOBUF" and not serialized:
            schema["schema"] = proto_text(base64.b64decode(schema["schema"]))
        if schema["schemaType"] == "AVRO":
            del schema["schemaType"]
        if not schema["references"]:
            del schema["references"]
        return schema

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StubRegistry:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else {}
                status, answer = registry.answer(self.command, self.path, body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _file(text: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
