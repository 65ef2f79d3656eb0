"""Credentials for Pulsar: tokens, OAuth2 client credentials, user and password.

Owns: reading credentials, refreshing them, their form in the binary protocol and in REST.
Must not know: Kafka, connections, when a broker asks for credentials. No error text or repr holds a secret.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp

from kop import clock
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.tls import TlsOptions

REFRESH_EARLY = 60.0
"""The seconds before its expiry at which an access token is replaced; one that lives for less is replaced at nine
tenths of its life.
"""


class Credentials:
    """Credentials of one role. `method` is Pulsar's name of the authentication method.

    `data` and `headers` are asked again for every connection, AUTH_CHALLENGE and REST request. They raise PulsarError
    "AuthFailed", retriable if only something on the way to the credentials is broken.
    """

    method: str

    async def data(self) -> bytes:
        """Return the credentials for CONNECT and AUTH_RESPONSE of the binary protocol. PulsarError AuthFailed if none
        can be had.
        """
        raise NotImplementedError

    async def headers(self) -> dict[str, str]:
        """Return the HTTP headers that authenticate a REST request. PulsarError AuthFailed if no credentials can be
        had.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Drop credentials that the server refused, and get new ones the next time."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Bearer(Credentials):
    """Credentials that are one token."""

    method = "token"

    async def _token(self) -> str:
        raise NotImplementedError

    async def data(self) -> bytes:
        """Return the token for the binary protocol. PulsarError AuthFailed if none can be had."""
        return (await self._token()).encode()

    async def headers(self) -> dict[str, str]:
        """Return the HTTP header that carries the token as a bearer token. PulsarError AuthFailed if none can be
        had.
        """
        return {"Authorization": f"Bearer {await self._token()}"}


class Token(_Bearer):
    """A JSON web token or any other bearer token: a fixed one, or a function that gives the current one."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._source = token

    @classmethod
    def file(cls, path: str | Path) -> Token:
        """Return a token from a file that is read again for every use, so that another program can renew it."""
        return cls(lambda: _read(Path(path)))

    async def _token(self) -> str:
        source = self._source
        if isinstance(source, str):
            return source
        # In a thread: a file on a dead network disk must not stop the loop.
        return _checked(await asyncio.to_thread(source))


class Basic(Credentials):
    """Credentials of a user and a password."""

    method = "basic"

    def __init__(self, user: str, password: str) -> None:
        self._pair = f"{user}:{password}".encode()

    async def data(self) -> bytes:
        """Return `user:password` for the binary protocol."""
        return self._pair

    async def headers(self) -> dict[str, str]:
        """Return the HTTP header of basic authentication."""
        return {"Authorization": f"Basic {base64.b64encode(self._pair).decode()}"}


class OAuth2(_Bearer):
    """OAuth2 client credentials: an access token from the issuer, kept until shortly before it expires.

    The issuer is asked at `{issuer}/.well-known/openid-configuration` where its token endpoint is. `timeout` (seconds)
    holds for getting one token. Many callers that need a token at once share one request.
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str,
        *,
        audience: str = "",
        scope: str = "",
        tls: TlsOptions | None = None,
        timeout: float = 10.0,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._issuer = issuer.rstrip("/")
        form = {"client_id": client_id, "client_secret": client_secret, "audience": audience, "scope": scope}
        self._form = {"grant_type": "client_credentials"} | {key: value for key, value in form.items() if value}
        self.tls = tls
        self._timeout = timeout
        self._clock = clock
        self._access_token = ""
        self._fresh_until = 0.0
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"OAuth2({self._issuer!r})"

    def forget(self) -> None:
        """Drop the access token, which the server refused, and get another one the next time."""
        self._access_token = ""

    async def _token(self) -> str:
        """Return the access token, asking the issuer if none is valid. PulsarError AuthFailed if it gives none."""
        async with self._lock:
            if not self._access_token or self._clock() >= self._fresh_until:
                self._access_token, life = await self._fetch()
                self._fresh_until = self._clock() + max(life - REFRESH_EARLY, life * 0.9 if life < 600 else 0)
            return self._access_token

    async def _fetch(self) -> tuple[str, float]:
        url = f"{self._issuer}/.well-known/openid-configuration"
        connector = aiohttp.TCPConnector(ssl=self.tls.context() if self.tls else True)
        limit = aiohttp.ClientTimeout(total=self._timeout)
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
                async with session.get(url) as response:
                    for step in (*response.history, response):
                        self._check_safe(str(step.url))
                    metadata = await self._object(response)
                url = _text(metadata, "token_endpoint", url)
                self._check_safe(url)
                async with session.post(url, data=self._form, allow_redirects=False) as response:
                    answer = await self._object(response)
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            text = f"{url}: {error or type(error).__name__}; check the issuer's URL and the network"
            raise PulsarError("AuthFailed", text, retriable=True) from error
        life = answer.get("expires_in", 3600)
        if isinstance(life, str) and life.isdecimal():  # some issuers
            life = int(life)
        if not isinstance(life, int | float) or life <= 0:
            raise PulsarError("AuthFailed", f"{url}: expires_in is no number of seconds")
        return _checked(_text(answer, "access_token", url)), float(life)

    def _check_safe(self, url: str) -> None:
        """Raise PulsarError AuthFailed if the issuer's URL has TLS and `url`, to which the issuer leads, has not: it
        would see the client secret in clear text.
        """
        if urlsplit(self._issuer).scheme == "https" and urlsplit(url).scheme != "https":
            text = f"{self._issuer} names {url}, which has no TLS: the client secret is not sent there; mend the issuer"
            raise PulsarError("AuthFailed", text)

    @staticmethod
    async def _object(response: aiohttp.ClientResponse) -> Mapping[str, Any]:
        """Return the JSON object of an issuer's answer. PulsarError AuthFailed if the status is not 200 or the body no
        object, retriable for 408, 429, 500 and above; its text quotes of the body only the fields `error` and
        `error_description`.
        """
        try:
            answer = json.loads(await response.read())
        except ValueError:
            answer = None
        if response.status == 200 and isinstance(answer, dict):
            return answer
        said = ""
        if isinstance(answer, dict):
            said = " ".join(str(answer[key]) for key in ("error", "error_description") if key in answer)
        retriable = response.status in {408, 429} or response.status >= 500
        text = f"{response.url}: answered {response.status} {said}".rstrip()
        raise PulsarError("AuthFailed", text[:500], retriable=retriable)


def parse_auth(text: str, tls: TlsOptions | None = None) -> Credentials | None:
    """Read a setting: `token:TOKEN`, `token-file:PATH`, `basic:USER:PASSWORD`, `oauth2:{JSON}`; None when empty.

    The JSON has `issuer` (or Pulsar's `issuerUrl`, `issuer_url`), `audience`, `scope` and either `client_id` and
    `client_secret`, or the path of a JSON file with these two (`privateKey`, `private_key`). `tls` is for the issuer.
    ValueError if the setting is wrong, with the reason but without the secret.
    """
    text = text.strip()
    if not text:
        return None
    kind, colon, value = text.partition(":")
    if colon and value:
        if kind == "token":
            return Token(_usable("token", value))
        if kind == "token-file":
            return Token.file(_path(value))
        if kind == "basic":
            user, colon, password = value.partition(":")
            if not user or not colon:
                raise ValueError("basic authentication must be basic:USER:PASSWORD")
            return Basic(user, password)
        if kind == "oauth2":
            return _oauth2(value, tls)
    if colon and kind in {"token", "token-file", "basic", "oauth2"}:
        raise ValueError(f"nothing behind {kind}:")
    raise ValueError("authentication must be token:TOKEN, token-file:PATH, basic:USER:PASSWORD or oauth2:{JSON}")


def _oauth2(text: str, tls: TlsOptions | None) -> OAuth2:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ValueError("oauth2: must be followed by a JSON object") from None
    names = {"issuer": "issuer", "issuerUrl": "issuer", "issuer_url": "issuer"}
    names |= {"clientId": "client_id", "clientSecret": "client_secret", "privateKey": "private_key"}
    names |= {name: name for name in ("client_id", "client_secret", "private_key", "audience", "scope", "type")}
    if unknown := sorted(str(key) for key in options if key not in names):
        raise ValueError(f"oauth2 has no {', '.join(unknown)}; it knows {', '.join(sorted(set(names.values())))}")
    if wrong := sorted(key for key, value in options.items() if not isinstance(value, str)):
        raise ValueError(f"oauth2: {', '.join(wrong)} must be text")
    given: dict[str, str] = {names[key]: value for key, value in options.items() if value}
    if given.get("type", "client_credentials") != "client_credentials":
        raise ValueError("oauth2: the only type is client_credentials")
    if key_file := given.get("private_key"):
        given = _key_file(_path(key_file)) | given
    if missing := [key for key in ("issuer", "client_id", "client_secret") if key not in given]:
        raise ValueError(f"oauth2 lacks {', '.join(missing)}")
    if urlsplit(given["issuer"]).scheme not in {"http", "https"}:
        raise ValueError("oauth2: the issuer must be an http or https URL")
    return OAuth2(
        given["issuer"],
        given["client_id"],
        given["client_secret"],
        audience=given.get("audience", ""),
        scope=given.get("scope", ""),
        tls=tls,
    )


def _key_file(path: str) -> dict[str, str]:
    """Return client id and secret, as far as they are there, from the JSON file that Pulsar's own clients use.
    ValueError if the file cannot be read or holds no JSON object.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"oauth2: cannot read {path}: {error.strerror}") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"oauth2: {path} holds no JSON object") from None
    return {key: content[key] for key in ("client_id", "client_secret") if isinstance(content.get(key), str)}


def _path(text: str) -> str:
    """Return the path that a setting names, which may be a file: URL; ~ becomes the user's folder."""
    if text.startswith("file:"):
        text = unquote(text.removeprefix("file:").removeprefix("//"))
    return str(Path(text).expanduser())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise PulsarError("AuthFailed", f"token file {path}: {reason}", retriable=True) from None


def _usable(what: str, token: str) -> str:
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"the {what} is empty or has characters that no token has")
    return token


def _checked(token: str) -> str:
    try:
        return _usable("token", token)
    except ValueError as error:
        raise PulsarError("AuthFailed", str(error), retriable=True) from None


def _text(answer: Mapping[str, Any], key: str, url: str) -> str:
    value = answer.get(key)
    if not isinstance(value, str) or not value:
        raise PulsarError("AuthFailed", f"{url}: the answer has no {key}")
    return value
