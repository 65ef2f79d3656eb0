"""PLAIN: its message, each way to be refused, whose passwords count, and for how long."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from support.waiting import SECONDS, until

from kop.security.jaas import parse_jaas
from kop.security.login_turns import LoginTurns
from kop.security.passwords import CHECKS_AT_ONCE, Passwords
from kop.security.sasl.exchange import AuthenticationError, ClientIdentity
from kop.security.sasl.plain import PlainExchange
from kop.security.users import Mechanism, ScramCredential, Users

SHA_256, SHA_512 = Mechanism
REFUSED = "Authentication failed: Invalid username or password"


async def anybody(name: str, password: str) -> ClientIdentity | None:
    return ClientIdentity(f"User:{name}", 7) if password == "secret" else None


async def stepped(message: bytes, check: Any = anybody) -> PlainExchange:
    exchange = PlainExchange(check)
    assert await exchange.step(message) == b""
    return exchange


@pytest.mark.parametrize("authorization", ["", "alice"])
def test_the_message_of_rfc_4616(authorization: str) -> None:
    exchange = asyncio.run(stepped(f"{authorization}\0alice\0secret".encode()))
    assert (exchange.principal, exchange.expires_ms, exchange.is_valid()) == ("User:alice", 7, True)
    with pytest.raises(AuthenticationError, match="behind the last"):
        exchange.step(b"\0alice\0secret")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "expected 3 tokens, got 1"),
        (b"alice", "expected 3 tokens, got 1"),
        (b"alice\0secret", "expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "expected 3 tokens, got 4"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"bob\0alice\0secret", "different from username"),
        (b"\0al\xffice\0secret", "not UTF-8"),
        (b"\0alice\0\xc3", "not UTF-8"),
        (b"\0" + b"a" * 65_536 + b"\0secret", "of 65544 bytes"),
        (b"\0alice\0" + b"s" * 65_536, "of 65543 bytes"),
        (b"\0" + b"a" * 2000 + b"\0secret", "a user name of 2000 characters"),
        (b"\0alice\0wrong", REFUSED),
    ],
)
def test_messages_that_are_refused(message: bytes, why: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        asyncio.run(stepped(message))
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


# -- whose passwords count


SETTINGS = {"alice": "of settings"}


def users() -> Users:
    known = Users()
    known.put("bob", SHA_256, ScramCredential.of_password(SHA_256, "b256"))
    known.put("bob", SHA_512, ScramCredential.of_password(SHA_512, "b512"))
    known.put("alice", SHA_256, ScramCredential.of_password(SHA_256, "of scram"))
    return known


@pytest.mark.parametrize(
    ("name", "password", "principal"),
    [
        ("alice", "of settings", "User:alice"),
        ("alice", "of scram", None),  # the settings' word counts
        ("alice", "", None),
        ("bob", "b256", "User:bob"),
        ("bob", "b512", "User:bob"),
        ("bob", "wrong", None),
        ("nobody", "b256", None),
        ("nobody", "", None),
    ],
)
def test_passwords_of_the_settings_and_of_scram(name: str, password: str, principal: str | None) -> None:
    async def checked() -> ClientIdentity | None:
        return await Passwords(users(), SETTINGS.get, LoginTurns(CHECKS_AT_ONCE)).check(name, password)

    identity = asyncio.run(checked())
    assert (None if identity is None else identity.principal) == principal


def test_each_failure_costs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes are counted: time is theirs."""
    counted: Counter[str] = Counter()
    made = ScramCredential.of_password

    async def main() -> None:
        known = users()
        passwords = Passwords(known, SETTINGS.get, LoginTurns(CHECKS_AT_ONCE))
        for name in ("alice", "bob", "nobody"):

            def count(mechanism: Any, *rest: Any, who: str = name) -> ScramCredential:
                counted[f"{who} {mechanism.text} {rest[1]}"] += 1
                return made(mechanism, *rest)

            monkeypatch.setattr(ScramCredential, "of_password", count)
            assert await passwords.check(name, "wrong") is None

    asyncio.run(main())
    kinds = [
        {key.partition(" ")[2]: n for key, n in counted.items() if key.startswith(name)} for name in ("a", "b", "n")
    ]
    assert kinds[0] == kinds[1] == kinds[2] == {"SCRAM-SHA-256 4096": 1, "SCRAM-SHA-512 4096": 1}


def test_a_login_holds_as_long_as_the_password() -> None:
    async def main() -> None:
        known, settings = users(), dict(SETTINGS)
        passwords = Passwords(known, settings.get, LoginTurns(CHECKS_AT_ONCE))
        by_scram, by_settings = await passwords.check("bob", "b512"), await passwords.check("alice", "of settings")
        assert by_scram is not None
        assert by_settings is not None
        known.put("bob", SHA_256, None)
        assert by_scram.is_valid(), "the other credential is another password's"
        known.put("bob", SHA_512, ScramCredential.of_password(SHA_512, "new"))
        settings["alice"] = "new"
        assert not by_scram.is_valid()
        assert not by_settings.is_valid()

    asyncio.run(main())


def test_clients_that_leave_do_not_have_more_passwords_hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, go_on, known = 0, 0, threading.Event(), users()
    made, lock = ScramCredential.of_password, threading.Lock()

    def of_password(*of: Any) -> ScramCredential:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go_on.wait(SECONDS)
        with lock:
            running -= 1
        return made(*of)

    async def main() -> None:
        passwords = Passwords(known, SETTINGS.get, LoginTurns(CHECKS_AT_ONCE))
        for _ in range(3):
            logins = [asyncio.create_task(passwords.check("nobody", "guess")) for _ in range(4)]
            await until(lambda: running >= 2)
            await asyncio.wait(logins, timeout=0.01)
            for login in logins:
                login.cancel()
            await asyncio.wait(logins, timeout=0.01)
        go_on.set()
        identity = await passwords.check("bob", "b256")
        assert identity is not None

    monkeypatch.setattr(ScramCredential, "of_password", of_password)
    asyncio.run(main())
    assert most == 2


def test_who_has_come_in_does_not_wait_for_guesses_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, known, made = threading.Event(), users(), ScramCredential.of_password
    hashed = 0

    def of_password(*of: Any) -> ScramCredential:
        nonlocal hashed
        hashed += 1
        go_on.wait(SECONDS)
        return made(*of)

    async def main() -> None:
        passwords = Passwords(known, SETTINGS.get, LoginTurns(CHECKS_AT_ONCE))
        assert await passwords.check("bob", "b512") is not None
        monkeypatch.setattr(ScramCredential, "of_password", of_password)
        guesses = [asyncio.create_task(passwords.check(name, "guess")) for name in ("bob", "nobody", "bob")]
        await until(lambda: hashed == 2)
        identity = await asyncio.wait_for(passwords.check("bob", "b512"), SECONDS / 2)
        assert identity is not None
        assert (identity.principal, identity.is_valid(), hashed) == ("User:bob", True, 2)
        go_on.set()
        assert await asyncio.gather(*guesses) == [None, None, None]

        known.put("bob", SHA_512, made(SHA_512, "new"))
        assert not identity.is_valid()
        assert await passwords.check("bob", "b512") is None
        assert await passwords.check("bob", "new") is not None

    asyncio.run(main())


def test_who_never_came_in_waits_for_a_turn_of_each_address_and_not_for_each_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, known, made = threading.Event(), users(), ScramCredential.of_password
    hashed: list[str] = []

    def of_password(mechanism: Any, password: str, *rest: Any) -> ScramCredential:
        hashed.append(password)
        go_on.wait(SECONDS)
        return made(mechanism, password, *rest)

    async def main() -> None:
        passwords = Passwords(known, SETTINGS.get, LoginTurns(CHECKS_AT_ONCE))
        guesses = [asyncio.create_task(passwords.check("bob", f"guess {n}", "192.0.2.9")) for n in range(40)]
        await until(lambda: len(hashed) == 2)
        honest = asyncio.create_task(passwords.check("bob", "b512", "192.0.2.1"))
        await asyncio.sleep(0)  # it asks
        go_on.set()
        assert await honest is not None
        assert len({password for password in hashed if password != "b512"}) < 10
        await asyncio.gather(*guesses)

    monkeypatch.setattr(ScramCredential, "of_password", of_password)
    asyncio.run(main())


# -- Kafka's text


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="a b" '
            'user_alice="x;\\"y" user_public/default="z";',
            "PlainLoginModule",
            {"username": "admin", "password": "a b", "user_alice": 'x;"y', "user_public/default": "z"},
        ),
        ("M required a=b c = d;", "M", {"a": "b", "c": "d"}),
        ("M requisite;", "M", {}),
    ],
)
def test_kafkas_text_for_a_login(text: str, name: str, options: dict[str, str]) -> None:
    module = parse_jaas(text)
    assert (module.name, module.options) == (name, options)
    assert repr(module) == f"LoginModule(name={name!r})"


@pytest.mark.parametrize("text", ["", "M", 'M required a="sec;', "M required a=sec b;", "M required a=sec a=c;"])
def test_other_texts_are_refused_without_a_word_of_them(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_jaas(text)
    assert "sec" not in str(caught.value)
