"""The end of delegation tokens: sessions by a token that has expired are told of, and its record is removed.

Owns: when that is looked at.
Must not know: connections, how a token is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from kop import background
from kop.security.delegation_tokens import DelegationToken
from kop.security.records import KeyValue, of_token
from kop.security.state import SecurityState

_LONGEST_WAIT: Final = 86_400.0


class TokenExpiry:
    """Looks after the tokens of `security`. `ended` is called when some have expired or are gone."""

    def __init__(
        self, security: SecurityState, ended: Callable[[], None], wall_ms: Callable[[], int], every_ms: int
    ) -> None:
        """`ended` is called whenever a token may have ended. `wall_ms` gives milliseconds since the epoch; expired
        tokens are removed every `every_ms` milliseconds.
        """
        self._security = security
        self._ended = ended
        self._wall_ms = wall_ms
        self._every = every_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._removing: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to call `ended` after each change or end of a token, and to remove expired tokens in the background."""
        self._security.tokens.on_change(lambda _: self._look())
        self._removing = asyncio.get_running_loop().create_task(
            background.repeat("removing expired delegation tokens", self.remove, every=self._every)
        )
        self._look()

    async def close(self) -> None:
        """Stop looking at tokens and removing them."""
        if self._timer is not None:
            self._timer.cancel()
        if self._removing is not None:
            self._removing.cancel()
            await asyncio.gather(self._removing, return_exceptions=True)

    async def remove(self) -> None:
        """Remove the tokens that have expired. KopError if storage has failed."""
        if self._expired():
            await self._security.write(self._removals)

    def _removals(self) -> Sequence[KeyValue]:
        return [of_token(token.id, None) for token in self._expired()]

    def _expired(self) -> list[DelegationToken]:
        now = self._wall_ms()
        return [token for token in self._security.tokens if token.has_expired(now)]

    def _look(self) -> None:
        """Call `ended`, since a token may have ended or was changed, and plan the next look for when the next one ends,
        in a day at most.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ended()
        now = self._wall_ms()
        ends = [token.expires_ms for token in self._security.tokens if not token.has_expired(now)]
        if ends:
            wait = (min(ends) - now + 1) / 1000
            self._timer = asyncio.get_running_loop().call_later(min(wait, _LONGEST_WAIT), self._look)
