"""The keys by which tokens are signed, from a file or a URL, fetched again and again beside the logins.

Owns: when a source is asked, and that the last good keys stay if it cannot be; the age of the keys.
Must not know: tokens, listeners.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from prometheus_client.core import Metric

from kop import clock
from kop.background import repeat, tell
from kop.errors import BackendError
from kop.metrics import gauge_family

if TYPE_CHECKING:
    from kop.security.tokens import TokenKey

_LONGEST_SECONDS: Final = 10.0
_LARGEST: Final = 1 << 20
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_FILE_SECONDS: Final = 5.0
"""Seconds from one look into a file to the next, as long as from one at certificates."""
_LEAST_SECONDS: Final = 10.0
"""Seconds from one fetch to the next if a token names a key that is not known."""
_LOOK_SECONDS: Final = 1.0


ReadKeys: TypeAlias = "Callable[[bytes], tuple[TokenKey, ...]]"


class KeySource:
    """The keys at one place. What is due is decided by `now`, in seconds."""

    def __init__(self, url: str, refresh_seconds: float = math.inf, read: ReadKeys | None = None) -> None:
        """`read` returns the keys in the content of the URL, or raises ValueError; without it the content is a JWKS.

        ValueError if the URL is neither one of file: nor of https:.
        """
        parts = urlsplit(url)
        if parts.scheme == "file" and parts.netloc in {"", "localhost"} and parts.path:
            self._path: str | None = unquote(parts.path)
            refresh_seconds = min(refresh_seconds, _FILE_SECONDS)
        elif parts.scheme == "https" and parts.hostname and parts.username is None:
            self._path = None
        else:
            raise ValueError("must be file:///PATH or https://HOST/PATH, without a user")
        self.name = f"{parts.scheme}://{parts.netloc}{parts.path}"
        """The URL as logs and metrics have it."""
        self.keys: tuple[TokenKey, ...] = ()
        self.since = clock.monotonic()
        """The time of the last fetch of the keys, or of the first wish for them, in seconds of the monotonic clock."""
        self.url = url
        self._read = read
        self._refresh_seconds = refresh_seconds
        self._due = -math.inf
        self._tried = -math.inf
        self._pause = _FIRST_PAUSE

    def ask(self, now: float) -> None:
        """Let the keys be fetched at `now`, or ten seconds after the last try if that is later, because a token names a
        key that is not known.
        """
        self._due = min(self._due, max(now, self._tried + _LEAST_SECONDS))

    def is_due(self, now: float) -> bool:
        """Return true if the keys have to be fetched at `now`, in seconds of the monotonic clock."""
        return now >= self._due

    async def fetch(self, now: float) -> None:
        """Fetch the keys, and set when they are due again. BackendError if that fails or takes longer than ten seconds;
        the old keys stay valid, and the next try comes after a pause.
        """
        from kop.security.tokens import keys_of_jwks  # noqa: PLC0415 - as aiohttp

        self._tried = now
        self._due, self._pause = now + min(self._pause, self._refresh_seconds), min(2 * self._pause, _LONGEST_PAUSE)
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                text = await (self._fetched() if self._path is None else asyncio.to_thread(_content, self._path))
            self.keys = (self._read or keys_of_jwks)(text)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or "no answer in time"
            kept = "what was read before stays" if self.keys else "no token is taken until they are there"
            raise BackendError(f"{self.name}: {why}; {kept}") from None
        self.since, self._due, self._pause = now, now + self._refresh_seconds, _FIRST_PAUSE

    async def _fetched(self) -> bytes:
        import aiohttp  # noqa: PLC0415 - a tenth of a second, and few want it

        context = await asyncio.to_thread(ssl.create_default_context)  # it reads the CAs of the system
        try:
            async with (
                aiohttp.ClientSession(trust_env=True) as session,
                session.get(self.url, allow_redirects=False, ssl=context) as answer,
            ):
                if answer.status != 200:
                    raise ValueError(f"it answers {answer.status}")
                text = bytearray()
                async for piece in answer.content.iter_any():
                    text += piece
                    if len(text) > _LARGEST:
                        raise ValueError(f"it has more than {_LARGEST} bytes")
                return bytes(text)
        except aiohttp.ClientError as error:
            raise ValueError(str(error) or type(error).__name__) from None


def _content(path: str) -> bytes:
    with open(path, "rb") as stream:
        text = stream.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} bytes")
    return text


class KeySources:
    """The sources of all listeners, and the task that asks them."""

    def __init__(self, now: Callable[[], float] = clock.monotonic) -> None:
        """`now` gives the time in seconds."""
        self._now = now
        self._sources: dict[tuple[str, float], KeySource] = {}
        self._asking: asyncio.Task[None] | None = None

    def source(self, url: str, refresh_seconds: float) -> KeySource:
        """Return the source of the JWKS at a URL, the same for the same URL and time between fetches. ValueError if the
        URL is neither one of file: nor of https:.
        """
        known = self._sources.get((url, refresh_seconds))
        return known or self.follow(KeySource(url, refresh_seconds), refresh_seconds)

    def follow(self, source: KeySource, refresh_seconds: float = math.inf) -> KeySource:
        """Keep a source among those whose keys are fetched once `open` was called; return it."""
        self._sources[source.url, refresh_seconds] = source
        return source

    async def open(self) -> None:
        """Fetch the keys of every source once, then again and again in the background. The first time waits at most ten
        seconds for sources that do not answer.
        """
        if not self._sources:
            return
        await self.look()
        work = repeat("the look for keys of tokens", self.look, every=_LOOK_SECONDS)
        self._asking = asyncio.get_running_loop().create_task(work)

    async def close(self) -> None:
        """Stop fetching keys."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def look(self) -> None:
        """Fetch the keys of all sources that are due, side by side; failures are logged."""
        now = self._now()
        await asyncio.gather(*(self._fetch(source, now) for source in self._sources.values() if source.is_due(now)))

    async def _fetch(self, source: KeySource, now: float) -> None:
        try:
            await source.fetch(now)
        except BackendError as error:
            tell("the fetch of token keys", error, level=logging.ERROR)

    def collect(self) -> Iterable[Metric]:
        """Return metrics: the seconds since the keys of each source were last fetched."""
        family = gauge_family(
            "kop_token_keys_age_seconds", "Seconds since the keys of tokens were last fetched.", ["url"]
        )
        now = self._now()
        for source in self._sources.values():
            family.add_metric([source.name], now - source.since)
        return (family,)
