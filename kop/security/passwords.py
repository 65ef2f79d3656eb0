"""Whose password a client has sent in clear: that of a user of the settings, or of one with a SCRAM credential.

Owns: the check of a password, and that it takes as long for a user that there is not; who is known from a login before.
Must not know: how the password came, where users are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from kop import clock
from kop.security.login_turns import LoginTurns
from kop.security.sasl.exchange import ClientIdentity
from kop.security.users import LEAST_ITERATIONS, SALT_BYTES, Mechanism, ScramCredential, Users

CHECKS_AT_ONCE: Final = 2
"""Passwords that are hashed side by side, of all listeners together: one takes milliseconds of a core."""
_MOST_KNOWN: Final = 1000
"""Users who have come in and are known again."""


class Passwords:
    """The passwords of a listener. `of_settings` gives the password that settings have for a user, or None."""

    def __init__(self, users: Users, of_settings: Callable[[str], str | None], turns: LoginTurns) -> None:
        self._users = users
        self._of_settings = of_settings
        self._turns = turns
        self._key = clock.token_hex(16).encode()
        self._known: dict[str, tuple[bytes, Mechanism, ScramCredential]] = {}
        """For users who have come in: a digest of the password that only this process can make, and the credential that
        it is of. They need not wait for a turn again, which strangers with wrong passwords would make a long wait.
        """

    async def check(self, name: str, password: str, host: str = "") -> ClientIdentity | None:
        """Return the identity of the user with this name and password; None if there is none. `host` is the client's
        address. A password of the settings, or one that was right before, is accepted at once; any other waits for one
        of the places, and takes as long as that of a user that there is not.
        """
        own = self._of_settings(name)
        if own is not None and _same(own, password):
            return ClientIdentity(f"User:{name}", is_valid=lambda: self._of_settings(name) == own)
        if own is None and (known := self._known.get(name)) is not None:
            digest, mechanism, known_credential = known
            if hmac.compare_digest(digest, self._digest(password)):
                if self._users.scram(mechanism, name) == known_credential:
                    return self._identity(name, mechanism, known_credential)
                del self._known[name]
        # Each other attempt costs the same: those of users that there are not, and of those in the settings.
        credentials = {mechanism: self._users.of(name).get(mechanism, _NOBODYS) for mechanism in Mechanism}
        async with self._turns.turn(host, name):
            hashing = asyncio.ensure_future(asyncio.to_thread(_right, credentials, password))
            try:
                right = await asyncio.shield(hashing)
            except asyncio.CancelledError:
                await asyncio.wait((hashing,))  # the client has left; the thread, and its place, are still in use
                raise
        if right is None or own is not None:
            return None
        self._known.pop(name, None)
        self._known[name] = (self._digest(password), right, credentials[right])
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return self._identity(name, right, credentials[right])

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")

    def _identity(self, name: str, mechanism: Mechanism, credential: ScramCredential) -> ClientIdentity:
        return ClientIdentity(f"User:{name}", is_valid=lambda: self._users.scram(mechanism, name) == credential)


def _same(known: str, other: str) -> bool:
    """Return true if two texts are equal; the time that it takes does not depend on them."""
    return hmac.compare_digest(hashlib.sha256(known.encode()).digest(), hashlib.sha256(other.encode()).digest())


def _right(credentials: dict[Mechanism, ScramCredential], password: str) -> Mechanism | None:
    """Return the mechanism of the first credential that the password fits; None if it fits none. All of them are
    tried.
    """
    right = None
    for mechanism, credential in credentials.items():
        made = ScramCredential.of_password(mechanism, password, credential.iterations, credential.salt)
        if hmac.compare_digest(made.stored_key, credential.stored_key) and right is None:
            right = mechanism
    return right


_NOBODYS: Final = ScramCredential(bytes(SALT_BYTES), b"", b"", LEAST_ITERATIONS)
"""The credential of no password: no hash is empty."""
