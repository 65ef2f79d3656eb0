"""HTTP to Pulsar's admin interface: one request, until it is answered, refused or out of time.

Owns: which status means what (`STATUS`), redirects between brokers, the token on each request, what may be repeated.
Must not know: Kafka, what a request asks for.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self

import aiohttp
from multidict import CIMultiDictProxy
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential
from yarl import URL

from kop import clock
from kop.pulsar_client.auth import Credentials
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.tls import TlsOptions

STATUS: Mapping[int, tuple[str, bool]] = {
    400: ("BadRequest", False),
    401: ("Unauthorized", False),
    403: ("Forbidden", False),
    404: ("NotFound", False),
    405: ("NotAllowed", False),
    406: ("BadRequest", False),
    408: ("Timeout", True),
    409: ("Conflict", False),
    412: ("PreconditionFailed", False),
    415: ("BadRequest", False),
    422: ("BadRequest", False),
    429: ("TooManyRequests", True),
    500: ("ServerFailure", True),
    501: ("NotAllowed", False),
    502: ("ServiceUnavailable", True),
    503: ("ServiceUnavailable", True),
    504: ("ServiceUnavailable", True),
}
"""The `PulsarError.code` and `retriable` for each HTTP status of an error."""

ATTEMPTS = 5
"""The number of times that a request is sent at most, all within its time limit."""

CONNECT_SECONDS = 3.0
"""The seconds that connecting may take: a host that is off refuses nothing, and the next URL has to be tried in
time.
"""

MAX_REDIRECTS = 5

_BEYOND_END = re.compile(r"LastConfirmedEntry is .* when reading entry")
"""The text of a broker's answer, with status 500, about an entry that does not exist."""
_NO_OWNER = re.compile(r"(?:find|Finding) owner")
"""The text of a broker's answer, with status 412, about a topic or bundle that no broker serves at this moment: it is
unloaded.
"""
_DENIED = re.compile(r"permission|unauthorized to |not authorized|super-user", re.IGNORECASE)
"""The text of a broker's answer, with status 401, to a role that it knows and that lacks the permission."""
_SERVER_TEXT = re.compile(r"Message: (.*)")
"""The line of a broker's stack trace that holds the reason."""


class RestResponse(NamedTuple):
    """The headers and the raw body of an answer with a status of 200 to 299."""

    headers: CIMultiDictProxy[str]
    body: bytes


def _repeatable(error: BaseException) -> bool:
    return isinstance(error, PulsarError) and error.retriable


def _not_performed(error: BaseException) -> bool:
    """Return true if the broker surely did not carry out the request, so that it may be sent again."""
    return isinstance(error, PulsarError) and (
        error.code == "TooManyRequests"
        or isinstance(error.__cause__, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    )


class _Disconnected(aiohttp.ClientError):
    """A connection that broke after the request was, or may have been, sent."""


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a PUT or DELETE again by itself: which requests may be repeated is decided here."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Disconnected(str(error) or type(error).__name__) from error


class Rest:
    """The HTTP requests under `Admin`; see `Admin` for `url` and `timeout`."""

    def __init__(
        self, url: str, auth: Credentials | None = None, tls: TlsOptions | None = None, timeout: float = 10.0
    ) -> None:
        self._bases = [self._base(part.strip()) for part in url.split(",") if part.strip()]
        if not self._bases:
            raise ValueError("the admin URL is empty; it looks like http://HOST:8080")
        self.auth = auth
        self._tls = tls
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._answered = 0.0
        """The loop's time of the last answer, with whatever status, from the first of the admin URLs."""
        self._ahead = clock.wall() - clock.monotonic()
        """The seconds by which Pulsar's clock is ahead of a clock here that does not jump."""

    def now_ms(self) -> int:
        """Return the time in ms since 1970 by Pulsar's clock, exact to about a second, from the last answer's Date.

        Hosts of gateways may have clocks that differ. Before the first answer, and behind a proxy that leaves the time
        out, it is the time of this host.
        """
        return int((clock.monotonic() + self._ahead) * 1000)

    def _look_at_clock(self, date: str) -> None:
        try:
            self._ahead = parsedate_to_datetime(date).timestamp() - clock.monotonic()
        except ValueError:
            pass  # it is no time

    @staticmethod
    def _base(url: str) -> URL:
        try:
            base = URL(url)
            usable = base.scheme in {"http", "https"} and base.host and base.path in {"", "/"} and not base.user
        except ValueError:
            usable = False
        if not usable:
            shown = "(one with a user in it)" if "@" in url else repr(url)
            raise ValueError(f"no admin URL: {shown}; it looks like http://HOST:8080, without a path")
        return base.origin()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; later calls fail with code Closed."""
        self._closed = True
        if self._session:
            await self._session.close()

    async def _json(
        self, method: str, path: str, query: Mapping[str, str] | None = None, root: str = "admin/v2"
    ) -> Any:
        """Return the decoded JSON of an answer; None for an empty one, by which Pulsar says that something is not
        set.
        """
        body = (await self._call(method, path, query=query, root=root)).body
        if not body:
            return None
        try:
            return json.loads(body)
        except ValueError as error:
            raise PulsarError("BadAnswer", f"{method} {path}: no JSON; is the admin URL a Pulsar broker's?") from error

    async def _object(
        self, path: str, *keys: str, query: Mapping[str, str] | None = None, root: str = "admin/v2"
    ) -> dict[str, Any]:
        """Send a GET and return its JSON object. PulsarError BadAnswer if the answer is none, or lacks one of these
        keys; else as of `_call`.
        """
        answer = await self._json("GET", path, query, root)
        if not isinstance(answer, dict) or not all(key in answer for key in keys):
            text = f"GET {path}: not an object{' with ' + ', '.join(keys) if keys else ''}"
            raise PulsarError("BadAnswer", f"{text}; is the admin URL a Pulsar broker's?")
        return answer

    async def _list(self, path: str) -> list[str]:
        """Send a GET and return its JSON list of texts. PulsarError BadAnswer if the answer is none; else as of
        `_call`.
        """
        answer = await self._json("GET", path)
        if not isinstance(answer, list) or not all(isinstance(item, str) for item in answer):
            raise PulsarError("BadAnswer", f"GET {path}: not a list; is the admin URL a Pulsar broker's?")
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        repeat: bool = True,
        root: str = "admin/v2",
        times: int = 1,
    ) -> RestResponse:
        """Send a request, at most five times within the time limit, until it is answered or refused for good. `repeat`
        is true if it may be carried out twice; else it is sent again only if the broker surely did nothing. `times`:
        the time limits that it may take. PulsarError if there is no answer of a status from 200 to 299.
        """
        limit = self._timeout * times
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "Content-Type": content_type}
        retrying = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.1, max=2),
            retry=retry_if_exception(_repeatable if repeat else _not_performed),
            reraise=True,
        )
        last: list[PulsarError] = []
        begin, base = asyncio.get_running_loop().time(), self._bases[0]

        async def attempt() -> RestResponse:
            nonlocal base
            base = self._bases[0]
            url = URL(f"{base}/{root}/{path}", encoded=True)
            try:
                return await self._send(method, url if query is None else url.with_query(query), data, headers)
            except PulsarError as error:
                last[:] = [error]
                if error.code == "ConnectionLost":
                    self._leave(base)
                raise

        try:
            async with asyncio.timeout(limit):
                return await retrying(attempt)
        except TimeoutError:
            if self._answered < begin:  # else only this answer is slow, or the broker that it sent the request on to
                self._leave(base)
            if last:  # tried again until the time was over: that error says more
                raise last[0] from None
            text = f"{method} {path}: no answer from {base} within {limit:g} s"
            raise PulsarError("Timeout", text, retriable=True) from None

    def _leave(self, base: URL) -> None:
        """Send requests to the next of the admin URLs from now on, unless another call has left this one already."""
        if base is self._bases[0]:
            self._bases.append(self._bases.pop(0))
            self._answered = 0.0

    async def _send(self, method: str, url: URL, data: bytes | None, headers: dict[str, str]) -> RestResponse:
        """Send a request once, with its redirects (followed here: aiohttp would drop the token on the way to another
        broker). After a 401 it is sent a second time with fresh credentials. PulsarError if it is refused or not
        answered.
        """
        session = self._open()
        name = self._tls.server_hostname if self._tls else None
        refreshed = False
        redirects = 0
        while True:
            own = dict(headers)
            if self.auth:
                own |= await self.auth.headers()
            try:
                async with session.request(
                    method, url, data=data, headers=own, allow_redirects=False, server_hostname=name
                ) as response:
                    if url.origin() == self._bases[0]:
                        self._answered = asyncio.get_running_loop().time()
                    if (date := response.headers.get("Date")) is not None:
                        self._look_at_clock(date)
                    status, target = response.status, response.headers.get("Location")
                    body = await response.read()
                    answer = RestResponse(response.headers, body)
                    reason = response.reason or ""
            except (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError) as error:
                raise PulsarError("TlsError", f"{url.origin()}: {error}; check the CA file and the name") from error
            except (aiohttp.ClientError, OSError) as error:
                text = f"{method} {url.path}: no connection to {url.origin()} ({_reason(error)})"
                raise PulsarError("ConnectionLost", text, retriable=True) from error
            if 200 <= status < 300:
                return answer
            if status in {301, 302, 307, 308} and target:
                redirects += 1
                url = self._redirect(url, target, redirects)
            elif status == 401 and self.auth and not refreshed:
                refreshed = True
                self.auth.forget()
            else:
                raise self._refused(method, url, status, reason, answer)

    @staticmethod
    def _redirect(url: URL, location: str, redirects: int) -> URL:
        target = url.join(URL(location, encoded=True))
        if redirects > MAX_REDIRECTS:
            raise PulsarError("BadAnswer", f"{url}: sent on more than {MAX_REDIRECTS} times", retriable=True)
        if target.scheme not in {"http", "https"} or (url.scheme == "https" and target.scheme != "https"):
            raise PulsarError("BadAnswer", f"{url}: sent on to {target}, which is not safe to follow")
        return target

    @staticmethod
    def _refused(method: str, url: URL, status: int, reason: str, answer: RestResponse) -> PulsarError:
        code, retriable = STATUS.get(status, ("ServerFailure", True) if status > 500 else ("BadAnswer", False))
        try:
            said = json.loads(answer.body)["reason"]
        except (ValueError, TypeError, KeyError):
            said = None
        if status == 404 and said is None:  # a web server that is no Pulsar, or a Pulsar without this request
            code, said = "BadAnswer", "no such page; is the admin URL a Pulsar broker's, of 3.0 or newer?"
        text = str(said if said is not None else reason)
        if status == 500 and _BEYOND_END.search(text):
            code, retriable = "NotFound", False
        if status == 412 and _NO_OWNER.search(text):
            code, retriable = "ServiceUnavailable", True
        match = _SERVER_TEXT.search(text)
        text = (match[1] if match else text).strip()[:500]
        if status == 401 and _DENIED.search(text):
            code, status = "Forbidden", 403
        if status == 401:
            text += "; the token, user or password is missing, wrong or expired"
        elif status == 403:
            text += "; the role of the gateway lacks the permission"
        return PulsarError(code, f"{method} {url.path}: {status} {text}", retriable=retriable)

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise PulsarError("Closed", "the admin client is closed")
        if self._session is None:
            ssl = self._tls.context() if self._tls else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit_per_host=32, ssl=ssl),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),  # `_call` has the limit of all
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_send_once,),
            )
        return self._session


def _reason(error: aiohttp.ClientError | OSError) -> str:
    """Return the reason why there is no connection, in the system's words: "Connection refused"."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # the host name is not known
    return str(error) or type(error).__name__
