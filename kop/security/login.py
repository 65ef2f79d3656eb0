"""The proof that one connection has to give before anything else is served to it (KIP-43, KIP-152).

Owns: the order of the steps of SASL: at most one ApiVersions, SaslHandshake, tokens; which mechanisms a listener has;
when a client has to log in again, and who, and of which tenant, it must be then.
Must not know: sockets, the clock, what requests look like, any mechanism.

A client may send its tokens as requests (SaslAuthenticate, after SaslHandshake 1), or without any header (after
SaslHandshake 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from kop.errors import ErrorCode
from kop.security.sasl.exchange import AuthenticationError, Exchange
from kop.security.tenant_membership import TenantMembership
from kop.security.tenants import HOME

_SASL_HANDSHAKE: Final = 17
_API_VERSIONS: Final = 18
_SASL_AUTHENTICATE: Final = 36

_LEAST_MS_BETWEEN: Final = 1000
"""Milliseconds from the beginning of one login of a connection that has logged in to that of the next one."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A mechanism that a listener has."""

    begin: Callable[[str], Exchange]
    """Begins an exchange with a client at an address."""
    longest_ms: int = 0
    """Milliseconds after which a client has to log in again; 0: it need not."""


Mechanisms: TypeAlias = Mapping[str, Offer]
"""The offers of a listener, by the names of mechanisms."""


class Turn(Enum):
    """The fate of a request that comes before a client has logged in."""

    SERVE = "serve"
    REFUSE = "refuse"
    """It is answered with ILLEGAL_SASL_STATE, and the connection is closed."""
    CLOSE = "close"
    """The connection is closed without an answer."""


class Login:
    """The login of one connection, and each further one by which the client goes on (KIP-368)."""

    def __init__(self, mechanisms: Mechanisms, membership: TenantMembership | None = None) -> None:
        """`membership` tells to which space clients belong; None: all belong to the home space."""
        self.mechanisms = mechanisms
        """The mechanisms that the listener has, by their names."""
        self._membership = membership
        self.space = HOME
        """The space of names of the client that has logged in."""
        self.mechanism = ""
        """The mechanism that the client has chosen; empty before."""
        self._exchange: Exchange | None = None
        self._raw = False
        self._asked = False
        self.has_failed = False
        """True once the login has failed, so that nothing more is accepted from the client."""
        self._principal: str | None = None
        """The principal of the client that has logged in; None before."""
        self._logged_in_by = ""
        self._again_ms: int | None = None
        """The time at which the client began to log in again the last time, in milliseconds since the epoch."""
        self.claimed: str | None = None
        """The user that the client said to be in its last exchange; None if it has not said it."""
        self.lifetime_ms: int | None = None
        """Milliseconds from the login on after which the client has to log in again; None: it need not."""
        self.completed: Callable[[], None] | None = None
        """Is called each time that the client has logged in."""

    @property
    def has_been_completed(self) -> bool:
        """True if the client has logged in before."""
        return self._principal is not None

    @property
    def refusal(self) -> str | None:
        """The reason for which the login will fail, if the client was told it and has to answer before the login ends;
        else None.
        """
        return None if self._exchange is None else self._exchange.refusal

    @property
    def takes_raw_tokens(self) -> bool:
        """True if the next frame is a token without any header."""
        return self._raw and self._exchange is not None

    def turn(self, api_key: int, is_served: bool = True) -> Turn:
        """Return how the next request of a client that has to log in is handled, by its API key; `is_served`: its
        version is served, too.

        One ApiVersions is served before the login, which this counts. One of a version that is not served does not
        count: the client asks again in version 0 (KIP-511).
        """
        if self.has_failed:
            return Turn.CLOSE
        if self._exchange is not None:
            return Turn.SERVE if api_key == _SASL_AUTHENTICATE else Turn.REFUSE
        if api_key == _SASL_HANDSHAKE:
            return Turn.SERVE
        if api_key == _API_VERSIONS and not self._asked and self._principal is None:
            self._asked = is_served
            return Turn.SERVE
        return Turn.CLOSE

    def may_begin(self, now_ms: int) -> bool:
        """Return true if a handshake is accepted at `now_ms`, in milliseconds since the epoch. A client that has logged
        in may do so again if its session has an end, once a second at most, from the last call that allowed it.
        """
        if self._principal is None:
            return True
        last = self._again_ms
        if self.lifetime_ms is None or (last is not None and 0 <= now_ms - last < _LEAST_MS_BETWEEN):
            return False
        self._again_ms = now_ms
        return True

    def handshake(self, mechanism: str, version: int, host: str) -> ErrorCode:
        """Begin a login by `mechanism` for a client at address `host`; return NONE, or UNSUPPORTED_SASL_MECHANISM if
        the listener does not have that, so that the login has failed. With another mechanism than that of an earlier
        login it fails at the client's next step.
        """
        self.claimed = None
        offer = self.mechanisms.get(mechanism)
        if offer is None:
            self.has_failed = True
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if self._principal is not None and mechanism != self._logged_in_by:
            self.has_failed = True  # as Kafka, which lets the next step end it
            return ErrorCode.NONE
        self.mechanism = mechanism
        self._exchange = offer.begin(host)
        self._raw = version == 0
        return ErrorCode.NONE

    async def take(self, token: bytes, wall_ms: Callable[[], int]) -> tuple[bytes, Exchange | None]:
        """Handle the client's next token: return the answer, and the exchange once it has logged the client in. Then
        its space and the time until its next login are set, and `completed` is called. `wall_ms` gives milliseconds
        since the epoch.

        AuthenticationError if the login has failed: the connection has to be closed.
        """
        exchange = self._exchange
        if exchange is None:
            raise AuthenticationError("SaslHandshake has to come first")
        try:
            answer = exchange.step(token)
            if not isinstance(answer, bytes):
                answer = await answer
            if exchange.principal is None:
                return answer, None
            if self._principal not in {None, exchange.principal}:
                raise AuthenticationError("Cannot change principals during re-authentication")
            if self._membership is not None:
                space = await self._membership.of(exchange.principal, exchange.claim)
                if self._principal is not None and space != self.space:
                    raise AuthenticationError("Cannot change the namespace during re-authentication")
                self.space = space
        except BaseException:
            self._exchange, self.has_failed = None, True
            raise
        finally:
            self.claimed = exchange.claimed
        self._exchange = None
        self._principal, self._logged_in_by = exchange.principal, self.mechanism
        self.lifetime_ms = self._lifetime_ms(exchange.expires_ms, wall_ms())
        if self.completed is not None:
            self.completed()
        return answer, exchange

    def _lifetime_ms(self, expires_ms: int | None, now_ms: int) -> int | None:
        longest = self.mechanisms[self.mechanism].longest_ms
        ends = [] if expires_ms is None else [max(expires_ms - now_ms, 1)]  # 0 would tell the client that there is none
        return min([*ends, longest] if longest > 0 else ends, default=None)
