"""What the exchanges of all mechanisms have in common.

Owns: the steps of an exchange as its callers see them, and how it fails.
Must not know: any mechanism, requests, sockets.
"""

from __future__ import annotations

from typing import Protocol


class AuthenticationError(Exception):
    """The client is not who it says, or does not say it by the rules. The text is for the client: it holds no secret,
    and nothing that tells which users there are.
    """


class Exchange(Protocol):
    """One login, on the side of the server."""

    principal: str | None
    """The client's name for rights, as `User:NAME`; None until the exchange has succeeded."""

    def is_valid(self) -> bool:
        """Return false once the login would not succeed any more: the user is gone, or has another password."""

    def step(self, token: bytes) -> bytes:
        """Return the answer to the client's next token. AuthenticationError ends the exchange."""
