"""A schema registry with Confluent's API: schemas by id, the versions of a subject, registration.

Owns: the paths of requests, what an answer means, what is asked again; the frame before a record.
Must not know: formats, pyspark.

Requests block: they are made where a query is planned, and by a task at the first record of a schema.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPException, InvalidURL
from typing import Any, Final
from urllib.parse import quote

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from kop.schemas.access import RegistryAccess
from kop.schemas.errors import SchemaError, UnknownSchemaError

HEAD: Final = 5
"""The bytes of the frame before a record: 0, and the id of its schema."""
ATTEMPTS: Final = 4
TIMEOUT: Final = 15.0
"""The seconds that one request may take."""
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NOT_THERE: Final = 404
_INCOMPATIBLE: Final = 409


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a registry has it."""

    kind: str = ""
    """The format: AVRO, JSON or PROTOBUF."""
    text: str = ""
    """The schema; of Protobuf the file descriptor in base64."""
    references: tuple[tuple[str, str], ...] = ()
    """The names and texts of the schemas that it uses, in the order in which they need each other."""
    id: int | None = None
    version: int | None = None

    @property
    def reference_texts(self) -> tuple[str, ...]:
        """The texts of the schemas that it uses."""
        return tuple(text for _, text in self.references)


@dataclass(frozen=True, slots=True)
class Reference:
    """The schema that another one refers to, as a registry takes it."""

    name: str
    """The name by which the other schema refers to it: what Protobuf imports."""
    subject: str
    version: int


class _Unreachable(Exception):
    """An error for a request that may be answered if it is sent again."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: one to another host would take the password along."""

    def redirect_request(self, *request: Any) -> None:
        """Return None, so that a redirect is an error."""


class ConfluentRegistry:
    """The registry behind a URL. What has an id or a version never changes, so it is asked for once."""

    def __init__(self, access: RegistryAccess) -> None:
        self._bases = [base.strip().rstrip("/") for base in access.url.split(",") if base.strip()]
        if not self._bases or not all(re.match(r"https?://[^/@]+(?:/[^@]*)?$", base) for base in self._bases):
            raise SchemaError("set schema.registry.url to http://HOST:PORT of a registry, and a user in its own option")
        try:
            context = ssl.create_default_context(cafile=access.ca_file)
        except OSError as error:
            raise SchemaError(
                f"set schema.registry.ssl.ca.location to a file of certificates in PEM: {access.ca_file}: {error}"
            ) from None
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
        self._headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        if access.user_info:
            self._headers["Authorization"] = f"Basic {base64.b64encode(access.user_info.encode()).decode()}"
        elif access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"
        self._by_id: dict[int, Schema] = {}
        self._by_version: dict[tuple[str, int], Schema] = {}

    def by_id(self, schema_id: int) -> Schema:
        """Return the schema of an id, with those that it refers to; it is kept and asked for once. UnknownSchemaError
        if there is none; SchemaError if the registry refuses, or does not answer in 4 tries.
        """
        if schema_id not in self._by_id:
            self._by_id[schema_id] = self._schema(self._ask("GET", f"schemas/ids/{schema_id}"), schema_id)
        return self._by_id[schema_id]

    def of_subject(self, subject: str, version: int | None = None) -> Schema:
        """Return a version of a subject, with the schemas that it refers to; without `version` the latest, for which
        the registry is asked each time. UnknownSchemaError if there is none; SchemaError if the registry refuses or
        does not answer.
        """
        if version is not None and (subject, version) in self._by_version:
            return self._by_version[subject, version]
        answer = self._ask("GET", _path(subject, "latest" if version is None else version))
        schema = self._schema(answer, answer["id"])
        self._by_version[subject, answer["version"]] = schema
        return schema

    def register(self, subject: str, schema: Schema, references: Sequence[Reference] = ()) -> int:
        """Register a schema under a subject, unless it is there already, and return its id. `references` are the
        schemas that it uses, which have to be registered. SchemaError, with the registry's words, if the registry
        refuses that; also if it does not answer.
        """
        path = f"subjects/{quote(subject, safe='')}/versions"
        schema_id: int = self._ask("POST", path, _body(schema, references))["id"]
        return schema_id

    def find(self, subject: str, schema: Schema, references: Sequence[Reference] = ()) -> tuple[int, int]:
        """Return the id and the version of a schema that is registered under a subject. UnknownSchemaError if it is
        not; SchemaError if the registry refuses or does not answer.
        """
        answer = self._ask("POST", f"subjects/{quote(subject, safe='')}", _body(schema, references))
        return answer["id"], answer["version"]

    def _schema(self, answer: Mapping[str, Any], schema_id: int) -> Schema:
        references: dict[str, str] = {}
        for reference in answer.get("references") or ():
            name, subject, version = reference["name"], reference["subject"], reference["version"]
            try:
                inner = self._referred(subject, version)
            except UnknownSchemaError as error:
                raise UnknownSchemaError(f"schema {schema_id} refers to {name}, and {error}") from None
            references |= dict(inner.references)
            references[name] = inner.text
        kind, text = answer.get("schemaType") or "AVRO", answer["schema"]
        if kind == "PROTOBUF":  # what it shows is the text of a file, which nothing here reads
            text = self._ask("GET", f"schemas/ids/{schema_id}?format=serialized")["schema"]
        return Schema(kind, text, tuple(references.items()), schema_id, answer.get("version"))

    def _referred(self, subject: str, version: int) -> Schema:
        """Return the version of a subject that another schema refers to, also a deleted one; it is kept and asked for
        once. UnknownSchemaError if there is none; SchemaError if the registry refuses or does not answer.
        """
        if (subject, version) not in self._by_version:
            answer = self._ask("GET", f"{_path(subject, version)}?deleted=true")
            self._by_version[subject, version] = self._schema(answer, answer["id"])
        return self._by_version[subject, version]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        tries = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(0.2, 2.0),
            retry=retry_if_exception_type(_Unreachable),
            reraise=True,
        )
        try:
            return tries(self._ask_each, method, path, body)
        except _Unreachable as error:
            raise SchemaError(
                f"set schema.registry.url to a registry that answers, or try again: {method} {path} {error}"
            ) from None

    def _ask_each(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        failures = []
        for base in self._bases:
            try:
                return self._ask_once(method, f"{base}/{path}", path, body)
            except _Unreachable as error:
                failures.append(f"{base}: {error}")
        raise _Unreachable("; ".join(failures))

    def _ask_once(self, method: str, url: str, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(url, data, self._headers, method=method)
            try:
                with self._opener.open(request, timeout=TIMEOUT) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    said = _words(error.read())
                raise _refusal(error.code, said, method, path) from None
        except (ValueError, InvalidURL) as error:
            raise SchemaError(f"set schema.registry.url to http://HOST:PORT of a registry: {url}: {error}") from None
        except (OSError, HTTPException) as error:
            raise _Unreachable(f"fails: {getattr(error, 'reason', None) or error}") from None


def _refusal(status: int, said: str, method: str, path: str) -> Exception:
    """Return the error for a request that is answered by an error's status."""
    if status in (408, 429) or status >= 500:
        return _Unreachable(f"is answered {status}: {said}")
    if status == _NOT_THERE:
        return UnknownSchemaError(f"the registry has nothing at {path}: {said}")
    advice = (
        "change the schema, or the subject's compatibility"
        if status == _INCOMPATIBLE
        else "mend the schema, or who may use the registry (schema.registry.basic.auth.user.info)"
    )
    return SchemaError(f"{advice}: the registry refuses {method} {path} with {status}: {said}")


def _body(schema: Schema, references: Sequence[Reference]) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text}
    if schema.kind != "AVRO":
        body["schemaType"] = schema.kind
    if references:
        body["references"] = [asdict(reference) for reference in references]
    return body


def _path(subject: str, version: int | str) -> str:
    return f"subjects/{quote(subject, safe='')}/versions/{version}"


def _words(body: bytes) -> str:
    try:
        message: str = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace")
    return message


def frame(schema_id: int) -> bytes:
    """Return the frame that stands before a record of the schema with this id: a byte 0, and the id in 4 bytes,
    big-endian.
    """
    return b"\0" + schema_id.to_bytes(4, "big")


def schema_id_of(data: bytes) -> int | None:
    """Return the id of the schema that a record's frame names; None if the record does not begin with a frame, which is
    0 and 4 more bytes.
    """
    if len(data) < HEAD or data[0]:
        return None
    return int.from_bytes(data[1:HEAD], "big")
