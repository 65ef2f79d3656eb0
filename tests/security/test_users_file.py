"""A file of users that are made if they are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gateway import gateway, run

from kop.app import Serving
from kop.errors import ConfigError
from kop.security.users import Mechanism
from kop.security.users_file import parse_users


def test_the_form_of_the_file() -> None:
    text = "# users\nadmin:first:second\n\nalice: with a blank \n"
    assert parse_users(text) == {"admin": "first:second", "alice": " with a blank "}


@pytest.mark.parametrize("text", ["secret", ":secret", "name:", "a:secret\na:secret"])
def test_other_lines_are_refused_without_a_word_of_them(text: str) -> None:
    with pytest.raises(ValueError, match=r"line [12] is not NAME:PASSWORD") as caught:
        parse_users(text)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="line 2 has a password of 65536 characters"):
        parse_users("a:secret\nb:" + "p" * 65536)
    with pytest.raises(ValueError, match="line 1 has a name of 1025 characters"):
        parse_users("a" * 1025 + ":b")


def credentials(serving: Serving, name: str) -> dict[Mechanism, Any]:
    return dict(serving.gateway.security.users.of(name))


def test_users_are_made_if_they_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "users"
    given = {"kop_security_users_file": str(file), "kop_security_max_users": "2"}

    async def started(text: str) -> list[dict[Mechanism, Any]]:
        file.write_text(text)
        async with gateway(tmp_path, **given) as serving:
            return [credentials(serving, name) for name in ("admin", "alice", "bob")]

    admin, alice, bob = run(started("admin:first\n"))
    assert (set(admin), alice, bob) == (set(Mechanism), {}, {})
    again, alice, bob = run(started("admin:another\nalice:a\n"))
    assert (again, set(alice), bob) == (admin, set(Mechanism), {}), "who is there stays as it is"
    with pytest.raises(ConfigError, match=r"more users than kop.security.max.users"):
        run(started("bob:b\n"))
    file.unlink()
    with pytest.raises(ConfigError, match=r"kop.security.users.file.*No such file"):
        run(_start(tmp_path, given))


async def _start(path: Path, given: dict[str, str]) -> None:
    async with gateway(path, **given):
        pass
