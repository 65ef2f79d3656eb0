"""OAUTHBEARER (RFC 7628) as Kafka has it (KIP-255): a bearer token in one message.

Owns: the messages, and the two steps in which a client is told that its token is refused.
Must not know: how a token is checked, requests, sockets.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from kop.security.sasl.exchange import AuthenticationError, ClientIdentity, IdentityExchange, text_of

LONGEST_MESSAGE: Final = 65_536
_FIRST: Final = re.compile(r"n,(?:a=((?:[^,=]|=2C|=3D)*))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*)\x01")
_REFUSED: Final = b'{"status":"invalid_token"}'
_READ_ON: Final = b"\x01"


class TokenError(Exception):
    """A token that is not taken. The text says why, without a word of it."""

    claimed: str | None = None
    """Whose the token says to be, which may be false; None if that cannot be read."""


TokenCheck: TypeAlias = Callable[[str], Awaitable[ClientIdentity]]
"""Says whose token it is. TokenError."""


class OAuthBearerExchange(IdentityExchange):
    """One login."""

    def __init__(self, check: TokenCheck) -> None:
        self._check = check

    def step(self, token: bytes) -> bytes | Awaitable[bytes]:
        """Return the answer to the client's next message. AuthenticationError if the login has failed. If the token is
        refused the answer says so, and the client's next message makes the login fail.
        """
        if self.principal is not None:
            raise AuthenticationError("a message of OAUTHBEARER behind the last one")
        if self.refusal is not None:
            wanted = "" if token == _READ_ON else "; the client had to answer with the byte 1"
            raise AuthenticationError(f"the token is refused (invalid_token): {self.refusal}{wanted}")
        authorization, bearer = _read(token)
        return self._log_in(authorization, bearer)

    async def _log_in(self, authorization: str, bearer: str) -> bytes:
        try:
            identity = await self._check(bearer)
        except TokenError as error:
            self.refusal, self.claimed = str(error), error.claimed or authorization or None
            return _REFUSED
        self.claimed = identity.principal.partition(":")[2]
        if authorization and f"User:{authorization}" != identity.principal:
            raise AuthenticationError("the authorization id has to be empty or that of the token")
        self.succeed(identity)
        return b""


def _read(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token of the client's message. AuthenticationError if it is malformed."""
    match = _FIRST.fullmatch(text_of(message, "OAUTHBEARER", LONGEST_MESSAGE))
    if match is None:
        raise AuthenticationError("the first message of OAUTHBEARER is malformed")
    authorization, text = match.groups()
    pairs = [pair.partition("=") for pair in text.split("\x01") if pair]
    (scheme, _, bearer), *more = [value.partition(" ") for key, _, value in pairs if key == "auth"] or [("", "", "")]
    if more or scheme.lower() != "bearer" or not bearer.strip():
        raise AuthenticationError("the first message of OAUTHBEARER has no token: auth=Bearer TOKEN")
    return (authorization or "").replace("=2C", ",").replace("=3D", "="), bearer.strip()
