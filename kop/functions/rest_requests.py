"""The parts that are read of a request to a worker, and the responses that many paths have in common.

Owns: the parts of paths and forms, how large a part may be, errors with their status.
Must not know: paths, what is done for a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from aiohttp import BodyPartReader, web

from kop.functions.definitions import LeaderAnswer
from kop.functions.worker_service import Json

CONFIG_BYTES: Final = 1 << 20
"""The most bytes of a definition, and of any other part of a request."""


class RestError(Exception):
    """The status and the reason with which a request is refused."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def fqfn_of(request: web.Request) -> str:
    """Return the full name of the function that a path names."""
    return "/".join(request.match_info[part] for part in ("tenant", "namespace", "name"))


def instance_of(request: web.Request) -> int | None:
    """Return the number of the instance that a path names; None if it names none."""
    given = request.match_info.get("instance")
    return None if given is None else int(given)


def number_in(text: str) -> int | None:
    """Return a number from 0 on as a header or a query has it; None if the text is none, or of more than 18 digits."""
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def author_of(request: web.Request) -> str:
    """Return the text that names who asks: the name that the program gives itself, and its address."""
    program = request.headers.get("User-Agent", "somebody")[:200]
    return f"{program} from {request.remote}"


def json_object(text: str | bytes, what: str) -> Json:
    """Return a text as a JSON object. RestError if it is none; `what` names the text in it."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RestError(400, f"{what} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise RestError(400, f"{what} must be an object of JSON, not a {type(value).__name__}")
    return value


class GivenPart(NamedTuple):
    """A part of a form."""

    data: bytes
    file_name: str

    def text(self) -> str:
        """Return the part as text. RestError if it is no UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise RestError(400, f"a part of the form is no UTF-8: {error}") from None

    def json(self) -> Json:
        """Return the part as a JSON object. RestError if it is none."""
        return json_object(self.text(), "a part of the form")


async def read_form(request: web.Request, limits: Mapping[str, int]) -> dict[str, GivenPart]:
    """Return the parts of a form that `limits` names, with the bytes that each may have; other parts are ignored.
    RestError if the body is no form, or a part is too large or there twice.
    """
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


def answered(answer: LeaderAnswer) -> web.Response:
    """Return the response to a request that the leader has granted: 204, with the revision from then on as ETag.
    RestError if the leader has refused it.
    """
    if not answer.won:
        raise RestError(answer.status, answer.reason)
    return web.Response(status=204, headers=etag(answer.revision))


def etag(revision: int | None) -> dict[str, str]:
    """Return the header that tells a revision; none if there is no revision."""
    return {} if revision is None else {"ETag": f'"{revision}"'}


def raise_error(answer: Json) -> None:
    """Raise RestError if an instance's answer has an `error`; the response has the answer's `status`, or 400."""
    if answer.get("error"):
        raise RestError(int(answer.get("status") or 400), str(answer["error"]))
