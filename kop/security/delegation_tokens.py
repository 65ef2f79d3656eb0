"""Delegation tokens (KIP-48, KIP-373): passwords that end, by which programs log in as whoever asked for them.

Owns: a token, who may do what with it and when it ends; all tokens that there are; its password, which is nowhere kept:
it is made of the token's id and a secret that all brokers have.
Must not know: how tokens are kept, requests, exchanges of messages, the clock.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kop.errors import ErrorCode, PeerError
from kop.values import LONG_MAX

USER: Final = "User"
"""The only type of principals that tokens are for."""


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """The data that are kept of a token: no secret."""

    id: str
    owner: str
    """The principal that its bearer is, such as `User:alice`."""
    requester: str
    """The principal that asked for it."""
    renewers: tuple[str, ...]
    """Principals that may renew and end it besides its owner."""
    issued_ms: int
    expires_ms: int
    """The time at which the token ends if nobody renews it, in milliseconds since the epoch."""
    ends_ms: int
    """The time at which the token ends, however often it is renewed, in milliseconds since the epoch."""

    def has_expired(self, now_ms: int) -> bool:
        """Return true if the token is not valid any more at `now_ms`, in milliseconds since the epoch."""
        return min(self.expires_ms, self.ends_ms) < now_ms

    def is_of(self, principal: str) -> bool:
        """Return true if the principal may see the token without an ACL for it."""
        return principal in {self.owner, self.requester, *self.renewers}

    def is_changed_by(self, principal: str) -> bool:
        """Return true if the principal may renew and expire the token."""
        return principal == self.owner or principal in self.renewers


class DelegationTokens:
    """All tokens, those that have expired and are not removed yet among them."""

    def __init__(self) -> None:
        self._tokens: dict[str, DelegationToken] = {}
        self._owners: Counter[str] = Counter()
        """The number of tokens of each owner."""
        self._listeners: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[DelegationToken]:
        return iter(list(self._tokens.values()))

    def get(self, token_id: str) -> DelegationToken | None:
        """Return the token of that id, or None."""
        return self._tokens.get(token_id)

    def of_owner(self, principal: str) -> int:
        """Return how many tokens the principal owns."""
        return self._owners[principal]

    def on_change(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the token's id after each change of one."""
        self._listeners.append(callback)

    def put(self, token_id: str, token: DelegationToken | None) -> None:
        """Set a token, or remove it if `token` is None, and call the callbacks of `on_change`. Nothing is done if it is
        so already.
        """
        before = self._tokens.get(token_id)
        if before == token:
            return
        if before is not None:
            self._owners[before.owner] -= 1
            if not self._owners[before.owner]:
                del self._owners[before.owner]
        if token is None:
            del self._tokens[token_id]
        else:
            self._tokens[token_id] = token
            self._owners[token.owner] += 1
        for callback in self._listeners:
            callback(token_id)

    def replace(self, tokens: Mapping[str, DelegationToken]) -> None:
        """Make these the only tokens, by id; those that are there with the same values stay. The callbacks of
        `on_change` are called for each other one.
        """
        for token_id in self._tokens.keys() - tokens.keys():
            self.put(token_id, None)
        for token_id, token in tokens.items():
            self.put(token_id, token)


class TokenIssuer:
    """Makes tokens, changes them for those who may, and knows their passwords."""

    def __init__(self, tokens: DelegationTokens, secret: str, longest_ms: int, renewal_ms: int) -> None:
        """`secret` is the same on all brokers; if it is empty there are no tokens. A token lives for `longest_ms` at
        most, and for `renewal_ms` after each renewal.
        """
        self._tokens = tokens
        self._secret = secret.encode()
        self._longest_ms = longest_ms
        self._renewal_ms = renewal_ms
        self._ids: dict[bytes, str] = {}
        """The ids of tokens by their HMACs."""
        if secret:
            for token in tokens:
                self._note(token.id)
            tokens.on_change(self._note)

    @property
    def is_enabled(self) -> bool:
        """True if there may be tokens."""
        return bool(self._secret)

    def _note(self, token_id: str) -> None:
        if self._tokens.get(token_id) is None:
            self._ids.pop(self.hmac(token_id), None)
        else:
            self._ids[self.hmac(token_id)] = token_id

    def hmac(self, token_id: str) -> bytes:
        """Return the HMAC of a token, which is a secret: its base64 is the password."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def valid(self, token_id: str, now_ms: int) -> DelegationToken | None:
        """Return the token of that id; None if there is none, it has expired at `now_ms` (milliseconds since the
        epoch), or there are no tokens at all because the secret is empty.
        """
        token = self._tokens.get(token_id)
        return None if not self._secret or token is None or token.has_expired(now_ms) else token

    def made(
        self, token_id: str, owner: str, requester: str, renewers: Iterable[str], lifetime_ms: int, now_ms: int
    ) -> DelegationToken:
        """Return a new token, which its caller has to store. It lives for `lifetime_ms` from `now_ms` on (milliseconds
        since the epoch) if it is renewed; 0 or less is the longest lifetime that there is.
        """
        longest = min(self._longest_ms, lifetime_ms) if lifetime_ms > 0 else self._longest_ms
        ends = _sum(now_ms, longest)
        expires = min(ends, _sum(now_ms, self._renewal_ms))
        return DelegationToken(token_id, owner, requester, tuple(dict.fromkeys(renewers)), now_ms, expires, ends)

    def renewed(self, secret: bytes, principal: str, period_ms: int, now_ms: int) -> DelegationToken:
        """Return the token whose HMAC is `secret` as it is after a renewal by the principal, for its caller to store; a
        period of 0 or less is the longest possible. PeerError if there is no such token, it has expired, or the
        principal may not renew it.
        """
        token = self._of(secret)
        if token.has_expired(now_ms):
            raise _expired()
        _check_owner(token, principal)
        period = min(self._renewal_ms, period_ms) if period_ms > 0 else self._renewal_ms
        return replace(token, expires_ms=min(token.ends_ms, _sum(now_ms, period)))

    def ended(self, secret: bytes, principal: str, period_ms: int, now_ms: int) -> tuple[str, DelegationToken | None]:
        """Return the id of the token whose HMAC is `secret`, and the token with its new end, `period_ms` after
        `now_ms`, for its caller to store; None for the token if the period is below 0, so that it is to be removed at
        once. PeerError if there is no such token, the principal may not end it, or it has expired and is not to be
        removed.
        """
        token = self._of(secret)
        _check_owner(token, principal)
        if period_ms < 0:
            return token.id, None
        if token.has_expired(now_ms):
            raise _expired()
        return token.id, replace(token, expires_ms=min(token.ends_ms, _sum(now_ms, period_ms)))

    def _of(self, secret: bytes) -> DelegationToken:
        token = self._tokens.get(self._ids.get(secret, ""))
        if token is None:
            raise PeerError("There is no such delegation token", ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token


def _check_owner(token: DelegationToken, principal: str) -> None:
    if not token.is_changed_by(principal):
        raise PeerError("The delegation token is somebody else's", ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _expired() -> PeerError:
    return PeerError("The delegation token has expired", ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _sum(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, LONG_MAX)
