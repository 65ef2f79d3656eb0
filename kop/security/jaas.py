"""Kafka's text for a login: `LoginModule required key="value" ...;`.

Owns: the form of that text.
Must not know: what a module does with its options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_LINE: Final = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.S)
_OPTION: Final = re.compile(r"""\s+([^\s="';]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s"';]+))""", re.S)


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module and its options."""

    name: str
    """The class without its package, such as PlainLoginModule."""
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """Return the login module of a JAAS line. ValueError if it has another form; its text has no word of the line,
    which may hold secrets.
    """
    line = _LINE.fullmatch(text)
    if line is None:
        raise ValueError('it is not of the form: LoginModule required name="value" ...;')
    options: dict[str, str] = {}
    at, rest = 0, line[2].rstrip()
    while at < len(rest):
        option = _OPTION.match(rest, at)
        if option is None:
            raise ValueError(f'behind {len(options)} options there is something that is not name="value"')
        if option[1] in options:
            raise ValueError(f"the option {option[1]} is there twice")
        options[option[1]] = option[3] if option[2] is None else re.sub(r"\\(.)", r"\1", option[2], flags=re.S)
        at = option.end()
    return LoginModule(line[1].rpartition(".")[2], options)
