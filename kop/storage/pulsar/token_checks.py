"""The tokens that Pulsar takes, asked by a connection with each.

Owns: the question, and that a Pulsar that takes every token says nothing of any.
Must not know: whose a token is, who has it.
"""

from __future__ import annotations

from typing import Final

from kop.errors import BackendError
from kop.pulsar_client import Client, PulsarError
from kop.pulsar_client.auth import Token
from kop.turns import Turns

_AT_ONCE: Final = 8
_REFUSALS: Final = frozenset({"AuthenticationError", "AuthorizationError"})
_SIGNATURE: Final = "A" * 43
"""A signature that no token has."""


class TokenChecks:
    """The `TokenAuthority` that a Pulsar cluster is."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turns = Turns(_AT_ONCE)

    async def accepts(self, token: str) -> bool:
        """Return true if Pulsar lets a client with this token in, false if it refuses the token. Up to 8 questions are
        asked at a time.

        BackendError if it cannot be asked, or lets in whoever has any token: a false signature is tried, too.
        """
        async with self._turns.turn():
            if not await self._lets_in(token):
                return False
            if await self._lets_in(f"{token.rpartition('.')[0]}.{_SIGNATURE}"):
                raise BackendError(
                    "Pulsar takes a token with a false signature, so it checks none: set authenticationEnabled=true "
                    "and AuthenticationProviderToken in broker.conf, or kop.pulsar.token.public.key here"
                )
            return True

    async def _lets_in(self, token: str) -> bool:
        try:
            await self._client.try_credentials(Token(token))
        except PulsarError as error:
            if error.code in _REFUSALS:
                return False
            raise BackendError(f"Pulsar cannot be asked about a token: {error}") from None
        return True
