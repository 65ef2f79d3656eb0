"""What one connection has to show before anything else is served to it (KIP-43, KIP-152).

Owns: the order of the steps of SASL: at most one ApiVersions, SaslHandshake, tokens; which mechanisms a listener has.
Must not know: sockets, the clock, what requests look like, any mechanism.

A client may send its tokens as requests (SaslAuthenticate, after SaslHandshake 1), or without any header (after
SaslHandshake 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, TypeAlias

from kop.errors import ErrorCode
from kop.security.sasl.exchange import AuthenticationError, Exchange

_SASL_HANDSHAKE: Final = 17
_API_VERSIONS: Final = 18
_SASL_AUTHENTICATE: Final = 36

Mechanisms: TypeAlias = Mapping[str, Callable[[], Exchange]]
"""What a listener offers: mechanisms by their names, each with what begins an exchange."""


class Turn(Enum):
    """What becomes of a request that comes before a client has logged in."""

    SERVE = "serve"
    REFUSE = "refuse"
    """It is answered with ILLEGAL_SASL_STATE, and the connection is closed."""
    CLOSE = "close"
    """The connection is closed without an answer."""


class Login:
    """The login of one connection."""

    def __init__(self, mechanisms: Mechanisms) -> None:
        self._mechanisms = mechanisms
        self._exchange: Exchange | None = None
        self._raw = False
        self._asked = False
        self._has_failed = False
        self.completed: Callable[[], None] | None = None
        """Is called once, when the client has logged in."""

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms that the listener has."""
        return list(self._mechanisms)

    @property
    def takes_raw_tokens(self) -> bool:
        """True if the next frame is a token without any header."""
        return self._raw and self._exchange is not None

    def turn(self, api_key: int, is_served: bool = True) -> Turn:
        """Return what becomes of the next request, by the API that it is of; `is_served`: in its version, too.

        An ApiVersions of a version that is not served does not count: the client asks again in version 0 (KIP-511).
        """
        if self._has_failed:
            return Turn.CLOSE
        if self._exchange is not None:
            return Turn.SERVE if api_key == _SASL_AUTHENTICATE else Turn.REFUSE
        if api_key == _SASL_HANDSHAKE:
            return Turn.SERVE
        if api_key == _API_VERSIONS and not self._asked:
            self._asked = is_served
            return Turn.SERVE
        return Turn.CLOSE

    def handshake(self, mechanism: str, version: int) -> ErrorCode:
        """Begin an exchange; UNSUPPORTED_SASL_MECHANISM if the listener does not have the mechanism."""
        begin = self._mechanisms.get(mechanism)
        if begin is None:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._exchange = begin()
        self._raw = version == 0
        return ErrorCode.NONE

    def take(self, token: bytes) -> tuple[bytes, Exchange | None]:
        """Return the answer to the client's next token, and the exchange once the client has logged in.

        AuthenticationError: the connection has to be closed.
        """
        exchange = self._exchange
        if exchange is None:
            raise AuthenticationError("SaslHandshake has to come first")
        try:
            answer = exchange.step(token)
        except AuthenticationError:
            self._exchange, self._has_failed = None, True
            raise
        if exchange.principal is None:
            return answer, None
        if self.completed is not None:
            self.completed()
        return answer, exchange
