"""Delegation tokens: when they end, who may change them, what a login by one says, and what their records hold."""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import b64encode
from dataclasses import replace

import pytest
from handlers.token_steps import TokenLogin

from kop.errors import ErrorCode, PeerError
from kop.security.delegation_tokens import DelegationToken, DelegationTokens, TokenIssuer
from kop.security.login_turns import LoginTurns
from kop.security.passwords import CHECKS_AT_ONCE
from kop.security.records import SecurityEntry, of_token, parsed
from kop.security.sasl.exchange import AuthenticationError
from kop.security.sasl.scram import ScramExchange
from kop.security.token_logins import Bearers
from kop.values import LONG_MAX

KEY = "the secret key"
NOW, LONGEST, RENEWAL = 1_000_000, 7000, 1000
ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
TOKEN = DelegationToken("id", ALICE, CAROL, (BOB,), NOW, NOW + RENEWAL, NOW + LONGEST)


def issuer(*tokens: DelegationToken, secret: str = KEY) -> TokenIssuer:
    known = DelegationTokens()
    made = TokenIssuer(known, secret, LONGEST, RENEWAL)
    for token in tokens:
        known.put(token.id, token)
    return made


@pytest.mark.parametrize(
    ("lifetime", "expires", "ends"),
    [
        (-1, RENEWAL, LONGEST),
        (0, RENEWAL, LONGEST),
        (LONG_MAX, RENEWAL, LONGEST),
        (500, 500, 500),
        (2000, RENEWAL, 2000),
    ],
)
def test_when_a_new_token_ends(lifetime: int, expires: int, ends: int) -> None:
    token = issuer().made("id", ALICE, CAROL, [BOB, BOB], lifetime, NOW)
    assert token == replace(TOKEN, expires_ms=NOW + expires, ends_ms=NOW + ends)


@pytest.mark.parametrize(
    ("who", "period", "at", "expires"),
    [
        (ALICE, -1, 0, RENEWAL),
        (ALICE, 0, 10, 10 + RENEWAL),
        (BOB, 300, 10, 310),
        (BOB, LONG_MAX, RENEWAL, 2 * RENEWAL),
        (ALICE, -1, RENEWAL + 1, ErrorCode.DELEGATION_TOKEN_EXPIRED),
        (CAROL, -1, RENEWAL + 1, ErrorCode.DELEGATION_TOKEN_EXPIRED),
        (CAROL, -1, 0, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        ("User:admin", -1, 0, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
    ],
)
def test_renewals(who: str, period: int, at: int, expires: int | ErrorCode) -> None:
    of = issuer(TOKEN)
    if isinstance(expires, ErrorCode):
        with pytest.raises(PeerError) as caught:
            of.renewed(of.hmac("id"), who, period, NOW + at)
        assert caught.value.code == expires
    else:
        assert of.renewed(of.hmac("id"), who, period, NOW + at) == replace(TOKEN, expires_ms=NOW + expires)


def test_no_renewal_goes_beyond_the_end() -> None:
    late = replace(TOKEN, expires_ms=NOW + LONGEST)
    of = issuer(late)
    assert of.renewed(of.hmac("id"), ALICE, -1, NOW + LONGEST - 5).expires_ms == NOW + LONGEST


@pytest.mark.parametrize(
    ("who", "period", "at", "expires"),
    [
        (ALICE, -1, 0, None),
        (BOB, -5, RENEWAL + 1, None),
        (BOB, 0, 10, 10),
        (ALICE, LONG_MAX, 10, LONGEST),
        (ALICE, 5, RENEWAL + 1, ErrorCode.DELEGATION_TOKEN_EXPIRED),
        (CAROL, -1, RENEWAL + 1, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
    ],
)
def test_ends(who: str, period: int, at: int, expires: int | ErrorCode | None) -> None:
    of = issuer(TOKEN)
    if isinstance(expires, ErrorCode):
        with pytest.raises(PeerError) as caught:
            of.ended(of.hmac("id"), who, period, NOW + at)
        assert caught.value.code == expires
    else:
        token = None if expires is None else replace(TOKEN, expires_ms=NOW + expires)
        assert of.ended(of.hmac("id"), who, period, NOW + at) == ("id", token)


def test_a_token_is_found_by_its_hmac_while_it_is_there() -> None:
    known = DelegationTokens()
    known.put("id", TOKEN)
    of = TokenIssuer(known, KEY, LONGEST, RENEWAL)
    secret = of.hmac("id")
    assert secret == hmac.digest(KEY.encode(), b"id", "sha512")
    assert of.valid("id", NOW + RENEWAL) == TOKEN
    assert of.valid("id", NOW + RENEWAL + 1) is None
    assert TokenIssuer(known, "", LONGEST, RENEWAL).valid("id", NOW) is None
    known.replace({"other": replace(TOKEN, id="other")})
    for wrong in (secret, b"", of.hmac("never")):
        with pytest.raises(PeerError) as caught:
            of.ended(wrong, ALICE, -1, NOW)
        assert caught.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert of.ended(of.hmac("other"), ALICE, -1, NOW) == ("other", None)


def test_a_change_is_told_once() -> None:
    known, told = DelegationTokens(), list[str]()
    known.on_change(told.append)
    known.put("id", TOKEN)
    known.put("id", TOKEN)
    known.replace({"id": TOKEN})
    known.put("gone", None)
    assert told == ["id"]
    known.replace({})
    assert (told, len(known), list(known)) == (["id", "id"], 0, [])


def test_the_tokens_of_each_owner_are_counted() -> None:
    known = DelegationTokens()
    known.replace({"a": TOKEN, "b": replace(TOKEN, owner=BOB)})
    known.put("a", replace(TOKEN, expires_ms=NOW))
    known.put("c", TOKEN)
    assert [known.of_owner(owner) for owner in (ALICE, BOB, CAROL)] == [2, 1, 0]
    known.put("c", replace(TOKEN, owner=BOB))
    assert [known.of_owner(owner) for owner in (ALICE, BOB, CAROL)] == [1, 2, 0]
    known.replace({"c": TOKEN})
    assert [known.of_owner(owner) for owner in (ALICE, BOB, CAROL)] == [1, 0, 0]


def test_a_record_has_no_secret_and_is_read_back() -> None:
    key, value = of_token("id", TOKEN)
    assert parsed(key, value) == SecurityEntry("token", "id", TOKEN)
    assert parsed(*of_token("id", None)) == SecurityEntry("token", "id", None)
    assert value is not None
    fields = json.loads(value)
    assert set(fields) == {"owner", "requester", "renewers", "issued_ms", "expires_ms", "ends_ms"}
    wrongs: list[object] = [
        fields | {"owner": 1},
        fields | {"renewers": [None]},
        fields | {"renewers": 3},
        fields | {"ends_ms": True},
        fields | {"ends_ms": "7"},
        {name: fields[name] for name in fields if name != "requester"},
        [],
    ]
    for wrong in wrongs:
        assert parsed(key, json.dumps(wrong).encode()) is None, wrong
    for wrong_key in (["token"], ["token", 3], ["token", ""], ["token", "a", "b"]):
        assert parsed(json.dumps(wrong_key).encode(), value) is None


# -- logins


def nobody(name: str) -> None:
    """Find no user."""


def login(of: TokenIssuer, name: str, password: str, now_ms: int = NOW) -> ScramExchange:
    """The exchange of one who has a token and this password. AuthenticationError."""
    clock = [NOW]
    bearers = Bearers(of, LoginTurns(CHECKS_AT_ONCE), lambda: clock[0])
    exchange = ScramExchange("SCRAM-SHA-256", nobody, b"secret of the cluster", "server", bearers)
    steps = TokenLogin("SCRAM-SHA-256", name, password)

    async def main() -> None:
        first = exchange.step(steps.first())
        assert isinstance(first, bytes)
        assert exchange.principal is None
        clock[0] = now_ms
        last = exchange.step(steps.final(first))
        assert not isinstance(last, bytes)
        assert (await last).startswith(b"v=")

    asyncio.run(main())
    return exchange


def test_a_bearer_is_the_owner_until_the_token_ends() -> None:
    of = issuer(TOKEN)
    exchange = login(of, "id", b64encode(of.hmac("id")).decode())
    assert (exchange.principal, exchange.expires_ms, exchange.is_by_token) == (ALICE, NOW + RENEWAL, True)
    assert exchange.is_valid()


@pytest.mark.parametrize(
    ("name", "password", "at"),
    [("id", KEY, NOW), ("other", None, NOW), ("id", None, NOW + RENEWAL + 1), ("id", "", NOW)],
)
def test_logins_that_fail_say_the_same(name: str, password: str | None, at: int) -> None:
    of = issuer(TOKEN)
    with pytest.raises(AuthenticationError, match="due to invalid credentials"):
        login(of, name, b64encode(of.hmac(name)).decode() if password is None else password, at)


def test_a_token_is_no_user_and_a_user_no_token() -> None:
    of = issuer(TOKEN)
    bearers = Bearers(of, LoginTurns(CHECKS_AT_ONCE), lambda: NOW)
    exchange = ScramExchange("SCRAM-SHA-256", nobody, b"secret", "server", bearers)
    exchange.step(b"n,,n=id,r=x")
    with pytest.raises(AuthenticationError):
        exchange.step(b"c=biws,r=xserver,p=AAAA")
    assert not exchange.is_by_token
