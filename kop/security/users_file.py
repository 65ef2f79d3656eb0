"""A file of users that are made if they are missing, for brokers that nobody administers by hand, such as containers.

Owns: the form of the file, and that a user that is there stays as it is.
Must not know: settings, how users are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from kop.errors import ConfigError
from kop.security.records import KeyValue, of_user
from kop.security.sasl.exchange import LONGEST_NAME, LONGEST_PASSWORD
from kop.security.state import SecurityState
from kop.security.users import Mechanism, ScramCredential

log = logging.getLogger(__name__)


def parse_users(text: str) -> dict[str, str]:
    """Return the passwords in a file's text by user: each line is NAME:PASSWORD, # begins a comment. ValueError if a
    line has another form, or a user is there twice; its text has no word of the file.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, password = line.partition(":")
        if not name or not password or name in users:
            raise ValueError(f"line {number} is not NAME:PASSWORD of a user that is there once")
        if len(name) > LONGEST_NAME:
            raise ValueError(f"line {number} has a name of {len(name)} characters, and {LONGEST_NAME} is the most")
        if len(password) > LONGEST_PASSWORD:
            count = len(password)
            raise ValueError(f"line {number} has a password of {count} characters, and {LONGEST_PASSWORD} is the most")
        users[name] = password
    return users


async def make_missing_users(path: str, security: SecurityState, most: int) -> None:
    """Make those users of a file that do not exist, with a credential for each SCRAM mechanism; those that exist keep
    theirs.

    ConfigError if the file cannot be read, or there would be more than `most` users; KopError if storage has failed.
    """
    try:
        wanted = parse_users(await asyncio.to_thread(Path(path).read_text, "utf-8"))
    except (OSError, ValueError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise ConfigError([f"kop.security.users.file = {path}: {why}"]) from None
    missing = {name: password for name, password in wanted.items() if name not in security.users}
    if not missing:
        return
    made = await asyncio.to_thread(_credentials, missing)
    names: list[str] = []

    def decide() -> Sequence[KeyValue]:
        names[:] = [name for name in made if name not in security.users]
        if names and len(security.users) + len(names) > most:
            raise ConfigError([f"kop.security.users.file = {path}: more users than kop.security.max.users ({most})"])
        return [of_user(name, mechanism, made[name][mechanism]) for name in names for mechanism in Mechanism]

    await security.write(decide)
    if names:
        log.info("made %d users of %s that were not there", len(names), path)


def _credentials(users: Mapping[str, str]) -> dict[str, dict[Mechanism, ScramCredential]]:
    return {
        name: {mechanism: ScramCredential.of_password(mechanism, password) for mechanism in Mechanism}
        for name, password in users.items()
    }
