"""The parts that the exchanges of all mechanisms have in common.

Owns: the steps of an exchange as its callers see them, who a client is found to be, and how it fails.
Must not know: any mechanism, requests, sockets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

LONGEST_NAME: Final = 1024
"""Characters of a user name."""
LONGEST_PASSWORD: Final = 4096
"""Characters of a password that a user is given. More come of a file that holds something else."""


class AuthenticationError(Exception):
    """The client is not who it says, or does not say it by the rules. The text is for the client: it holds no secret,
    and nothing that tells which users there are.
    """


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class NamespaceClaim:
    """A word about where a client belongs."""

    namespace: str
    """The namespace, as TENANT/NAMESPACE."""
    is_own_word: bool = False
    """True if the client alone says so, and not who has signed its token."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The identity of a client."""

    principal: str
    """The name for rights, as `User:NAME`."""
    expires_ms: int | None = None
    """The time from which on the client's credentials count no more, in milliseconds since the epoch; None: they have
    no end.
    """
    is_valid: Callable[[], bool] = _always
    """Returns false once the client could not show it any more."""
    claim: NamespaceClaim | None = None
    """The claim to the namespace of the client, by its credentials; None if they say nothing of it."""


def text_of(message: bytes, mechanism: str, longest: int) -> str:
    """Return the text of a client's message. AuthenticationError if it has more than `longest` bytes, or is not
    UTF-8.
    """
    if len(message) > longest:
        raise AuthenticationError(f"a message of {mechanism} of {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationError(f"a message of {mechanism} that is not UTF-8") from None


class Exchange(ABC):
    """One login, on the side of the server."""

    principal: str | None = None
    """The client's name for rights, as `User:NAME`; None until the exchange has succeeded."""
    expires_ms: int | None = None
    """The time from which on the client's credentials count no more, in milliseconds since the epoch; None: they have
    no end.
    """
    claim: NamespaceClaim | None = None
    """The claim to a namespace that the client's credentials make; None if they make none."""
    is_by_token = False
    """True if the client logs in by a delegation token."""
    claimed: str | None = None
    """The user name that the client gives, for the audit of a failed login; None before it gives one, or if that is not
    readable.
    """
    refusal: str | None = None
    """The reason for which the exchange will fail, if the client was told it and has to answer before the end; else
    None.
    """

    @abstractmethod
    def is_valid(self) -> bool:
        """Return true as long as the login would succeed again, false once the user is gone, or has another
        password.
        """

    @abstractmethod
    def step(self, token: bytes) -> bytes | Awaitable[bytes]:
        """Return the answer to the client's next token, or an awaitable of it. AuthenticationError if the login has
        failed.
        """


class IdentityExchange(Exchange):
    """The parts that those exchanges have in common that find who a client is in one step."""

    _identity: ClientIdentity | None = None

    def succeed(self, identity: ClientIdentity) -> None:
        """Let the exchange have succeeded: the client has this identity."""
        self._identity = identity
        self.principal, self.expires_ms, self.claim = identity.principal, identity.expires_ms, identity.claim

    def is_valid(self) -> bool:
        """Return true if the client could log in with the same credentials now. The end of a token is handled as that
        of the session.
        """
        return self._identity is not None and self._identity.is_valid()
