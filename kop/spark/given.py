"""The options that a user gave, each taken once.

Owns: the matching of names, the error for a value that cannot be, which values no error shows.
Must not know: which options there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

T = TypeVar("T")

SECRETS: Final = {"pulsar.auth", "schema.registry.basic.auth.user.info", "schema.registry.bearer.auth.token"}
"""The options whose values no error may show, since it goes to logs and to Spark's pages. `kop.client.properties` has
others.
"""


class OptionError(ValueError):
    """An error for an option that is unknown, wrong, or cannot be honoured; the first line says what to do."""


class Given:
    """The options that a user gave, each taken once by its name; one that is left over is unknown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): (name, str(value)) for name, value in options.items()}

    def has(self, name: str) -> bool:
        """Return true if the user gave the option."""
        return name.lower() in self._given

    def value(self, name: str) -> str:
        """Return the value of an option without taking it; empty if it was not given."""
        return self._given.get(name.lower(), ("", ""))[1]

    def take(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Take an option out and return its parsed value, or the default if it was not given, or was taken before.
        OptionError, which names the option, if `parse` raises ValueError.
        """
        given = self._given.pop(name.lower(), None)
        if given is None:
            return default
        try:
            return parse(given[1])
        except ValueError as error:
            value = "this one" if name in SECRETS else repr(given[1])
            raise OptionError(f"set {name} to another value: {value} {error}") from None

    def left(self) -> list[str]:
        """Return the names of the options that nobody took, as the user wrote them."""
        return sorted(name for name, _ in self._given.values())


def flag(value: str) -> bool:
    """Return the value of an option that is `true` or `false`, in whichever case of letters; ValueError for another."""
    if value.strip().lower() not in {"true", "false"}:
        raise ValueError("is neither true nor false")
    return value.strip().lower() == "true"
