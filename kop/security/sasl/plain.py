"""PLAIN (RFC 4616) as Kafka has it: user and password in one message.

Owns: that message.
Must not know: whose passwords there are and how they are checked, requests, sockets.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeAlias

from kop.security.sasl.exchange import (
    LONGEST_NAME,
    AuthenticationError,
    ClientIdentity,
    IdentityExchange,
    NamespaceClaim,
    text_of,
)
from kop.security.sasl.oauthbearer import TokenCheck, TokenError

LONGEST_MESSAGE: Final = 65_536
"""The most bytes of the message: a password may be a token."""
_TOKEN: Final = "token:"
"""The beginning of a password that is a token of Pulsar, as in KoP."""
_NAMESPACE: Final = re.compile(r"[-\w.=:]+/[-\w.=:]+")

Check: TypeAlias = Callable[[str, str], Awaitable[ClientIdentity | None]]
"""Says who has this user name and this password; None: nobody, and nothing tells which of the two is wrong."""


class PlainExchange(IdentityExchange):
    """One login."""

    def __init__(self, check: Check, check_token: TokenCheck | None = None) -> None:
        """`check_token` returns the identity in a Pulsar token that is given as password; without it such are passwords
        as any others.
        """
        self._check = check
        self._check_token = check_token

    def step(self, token: bytes) -> Awaitable[bytes]:
        """Check the user and password in the message, and return an awaitable of the empty answer. AuthenticationError
        if they are wrong.
        """
        if self.principal is not None:
            raise AuthenticationError("a message of PLAIN behind the last one")
        self.claimed, password = _read(token)
        return self._log_in(self.claimed, password)

    async def _log_in(self, name: str, password: str) -> bytes:
        if self._check_token is not None and password.startswith(_TOKEN):
            self.succeed(await self._by_token(self._check_token, name, password.removeprefix(_TOKEN)))
            return b""
        identity = await self._check(name, password)
        if identity is None:
            raise AuthenticationError("Authentication failed: Invalid username or password")
        self.succeed(identity)
        return b""

    async def _by_token(self, check: TokenCheck, name: str, token: str) -> ClientIdentity:
        if not _NAMESPACE.fullmatch(name):
            raise AuthenticationError("with a token for a password the user name has to be TENANT/NAMESPACE")
        try:
            identity = await check(token)
        except TokenError as error:
            self.claimed = f"{name} {error.claimed}" if error.claimed else name
            raise AuthenticationError(f"the token is refused: {error}") from None
        if identity.claim is None:
            return replace(identity, claim=NamespaceClaim(name, is_own_word=True))
        if identity.claim.namespace != name:
            raise AuthenticationError("the user name has to be the namespace that the token says")
        return identity


def _read(message: bytes) -> tuple[str, str]:
    parts = text_of(message, "PLAIN", LONGEST_MESSAGE).split("\0")
    if len(parts) != 3:
        raise AuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    authorization, name, password = parts
    if not name:
        raise AuthenticationError("Authentication failed: username not specified")
    if not password:
        raise AuthenticationError("Authentication failed: password not specified")
    if len(name) > LONGEST_NAME:
        raise AuthenticationError(f"a user name of {len(name)} characters")
    if authorization and authorization != name:
        raise AuthenticationError(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    return name, password
