"""Logins by delegation tokens: what the passwords of tokens are checked by.

Owns: that a check takes a thread, and a place among those that go on at a time; that the time tells nothing.
Must not know: exchanges of messages, how tokens are kept.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from kop.security.delegation_tokens import DelegationToken, TokenIssuer
from kop.security.login_turns import LoginTurns
from kop.security.users import Mechanism, ScramCredential

_MECHANISMS: Final = {mechanism.text: mechanism for mechanism in Mechanism}


class Bearers:
    """The bearers of tokens: for SCRAM. `wall_ms` gives milliseconds since the epoch."""

    def __init__(self, issuer: TokenIssuer, turns: LoginTurns, wall_ms: Callable[[], int]) -> None:
        self._issuer = issuer
        self._turns = turns
        self._wall_ms = wall_ms

    def valid(self, token_id: str) -> DelegationToken | None:
        """Return the token of that id; None if there is none, or it has expired by now."""
        return self._issuer.valid(token_id, self._wall_ms())

    async def verifier(self, mechanism: str, token_id: str, salt: bytes, host: str) -> ScramCredential:
        """Return the credential by which the password of a token id is checked, also for an id that no token has, so
        that clients cannot tell. `host` is the client's address.
        """
        password = b64encode(self._issuer.hmac(token_id)).decode()
        async with self._turns.turn(host, token_id):
            return await asyncio.to_thread(ScramCredential.of_password, _MECHANISMS[mechanism], password, salt=salt)
