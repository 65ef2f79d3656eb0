"""Requests of the commands to a worker of functions.

Owns: how a request is sent, and what is said if no worker answers or one says no.
Must not know: what is asked for.
"""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

import kop
from kop import clock
from kop.cli.common import CliUsageError, fail, one_line

SECONDS = 90.0
"""The seconds that a worker may take for an answer: that of a trigger comes when its message is done."""


class FormPart(NamedTuple):
    """A part of a form."""

    data: bytes
    file_name: str | None = None


class RestAnswer(NamedTuple):
    """The answer of a worker."""

    status: int
    body: bytes
    revision: int | None
    """That of the definition, if the answer has it."""
    note: str = ""
    """The text that the worker says beside the answer."""

    def json(self) -> Any:
        """Return the body, decoded from JSON."""
        return json.loads(self.body)


class WorkerRest:
    """The REST of a worker."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"} or parts.query:
            raise CliUsageError(f"--admin-url must be http://HOST:PORT, not {url}")
        self._url = url.rstrip("/")
        with contextlib.suppress(ValueError):
            if parts.port is None and parts.scheme == "http":
                self._url += ":6750"
        self._headers = {"User-Agent": f"kop/{kop.__version__} ({_user()})"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        # Proxies of the environment are for the world outside.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def function(
        self,
        method: str,
        fqfn: str,
        path: str = "",
        *,
        form: Mapping[str, FormPart] | None = None,
        revision: int | None = None,
    ) -> RestAnswer:
        """Send a request about a function to the worker, and return its answer; `path` follows the function's own.
        Parameters and errors are those of `send`.
        """
        return self.send(method, f"/admin/v3/functions/{urllib.parse.quote(fqfn)}{path}", form=form, revision=revision)

    def send(
        self,
        method: str,
        path: str,
        *,
        form: Mapping[str, FormPart] | None = None,
        revision: int | None = None,
        may_miss: bool = False,
    ) -> RestAnswer:
        """Send a request to the worker, and return its answer. If the worker refuses it, or none answers within 90 s,
        the command ends with the reason.

        With `revision` the worker refuses it if the definition has another revision by now. With `may_miss` an answer
        of status 404 is returned.
        """
        headers = dict(self._headers)
        body = b"" if method in {"POST", "PUT"} else None
        if form is not None:
            kind, body = _encoded(form)
            headers["Content-Type"] = kind
        if revision is not None:
            headers["If-Match"] = f'"{revision}"'
        request = urllib.request.Request(self._url + path, body, headers, method=method)
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                etag = response.headers.get("ETag", "").strip('"')
                revision = int(etag) if etag.isdecimal() else None
                return RestAnswer(response.status, response.read(), revision, response.headers.get("Kop-Note", ""))
        except urllib.error.HTTPError as error:
            with error:
                if may_miss and error.code == 404:
                    return RestAnswer(404, b"", None)
                fail(_reason(error.code, error.read(), self._url))
        except TimeoutError:
            fail(f"the worker at {self._url} does not answer within {SECONDS:.0f} s")
        except urllib.error.URLError as error:
            reason = getattr(error.reason, "strerror", None) or str(error.reason)
            fail(f"no worker answers at {self._url} ({reason.lower()}); start one with: kop functions worker")
        except (http.client.HTTPException, ConnectionError) as error:
            fail(f"{self._url} does not answer as a worker of functions ({one_line(str(error))})")


def _user() -> str:
    """Return USER@HOST in ASCII, for the history of functions."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        name = "somebody"
    return "".join(
        letter if letter.isascii() and letter.isprintable() else "?" for letter in f"{name}@{socket.gethostname()}"
    )


def _reason(status: int, body: bytes, url: str) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"{url} answers {status}, and not as a worker of functions does"


def _encoded(form: Mapping[str, FormPart]) -> tuple[str, bytes]:
    """Return the content type and the body of a form, as multipart/form-data."""
    boundary = clock.token_hex(16)
    parts = []
    for name, part in form.items():
        quoted = (part.file_name or "").replace("\\", "\\\\").replace('"', '\\"')
        file_name = "" if part.file_name is None else f'; filename="{quoted}"'
        kind = "" if part.file_name is None else "Content-Type: application/octet-stream\r\n"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file_name}\r\n{kind}\r\n'
        parts += [head.encode(), part.data, b"\r\n"]
    return f"multipart/form-data; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode()])
