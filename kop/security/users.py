"""The users of a cluster, and what the server has to know of their passwords: SCRAM credentials (RFC 5802).

Owns: a credential and how it is made of a password, who has which, who hears of a change.
Must not know: how they are kept, exchanges of messages. A password stays nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from kop import clock

SALT_BYTES: Final = 20
"""The bytes of a salt that is made here: an unknown user is told as many."""
LEAST_ITERATIONS: Final = 4096
"""The default of Kafka's tools, which an unknown user is told, too."""
MOST_ITERATIONS: Final = 16_384
"""The iterations that Kafka takes."""


class Mechanism(IntEnum):
    """A SCRAM mechanism, by Kafka's codes."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def text(self) -> str:
        """The name that clients use, such as `SCRAM-SHA-256`."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """The name of the hash function for `hashlib` and `hmac`."""
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    def salted(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return the hash of a password, made so many times; it takes milliseconds."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The values that are kept of a password for one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_password(
        cls, mechanism: Mechanism, password: str, iterations: int = LEAST_ITERATIONS, salt: bytes | None = None
    ) -> ScramCredential:
        """Return the credential of a password, with a salt that is made if none is given. It takes milliseconds: not
        for the event loop's thread.
        """
        if salt is None:
            salt = bytes.fromhex(clock.token_hex(SALT_BYTES))
        return cls.of_salted(mechanism, mechanism.salted(password, salt, iterations), iterations, salt)

    @classmethod
    def of_salted(cls, mechanism: Mechanism, salted: bytes, iterations: int, salt: bytes) -> ScramCredential:
        """Return the credential of a password that was hashed with the salt already, so many times."""
        client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
        stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
        return cls(salt, stored_key, hmac.digest(salted, b"Server Key", mechanism.hash_name), iterations)


Credentials: TypeAlias = Mapping[Mechanism, ScramCredential]
UserKey: TypeAlias = tuple[str, Mechanism]


class Users:
    """All users: those who have a credential."""

    def __init__(self) -> None:
        self._users: dict[str, dict[Mechanism, ScramCredential]] = {}
        self._listeners: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, name: object) -> bool:
        return name in self._users

    def scram(self, mechanism: Mechanism, name: str) -> ScramCredential | None:
        """Return the credential of a user for a mechanism, or None."""
        return self.of(name).get(mechanism)

    def of(self, name: str) -> Credentials:
        """Return all credentials of a user; empty if there is no such user."""
        return self._users.get(name, {})

    def names(self) -> Iterable[str]:
        """Return the names of all users, in their order."""
        return sorted(self._users)

    def on_change(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the user's name after each change of a credential."""
        self._listeners.append(callback)

    def put(self, name: str, mechanism: Mechanism, credential: ScramCredential | None) -> None:
        """Set a user's credential for a mechanism, or remove it if it is None, and call the callbacks of `on_change`.
        Nothing is done if it is so already.
        """
        if self.scram(mechanism, name) == credential:
            return
        if credential is not None:
            self._users.setdefault(name, {})[mechanism] = credential
        else:
            del self._users[name][mechanism]
            if not self._users[name]:
                del self._users[name]
        for callback in self._listeners:
            callback(name)

    def replace(self, credentials: Mapping[UserKey, ScramCredential]) -> None:
        """Make these the only credentials; those that exist already stay as they are. The callbacks of `on_change` are
        called for each other one.
        """
        for name, mechanism in [(name, each) for name, known in self._users.items() for each in known]:
            self.put(name, mechanism, credentials.get((name, mechanism)))
        for (name, mechanism), credential in credentials.items():
            self.put(name, mechanism, credential)
