"""Which requests are served before a login, in a table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kop.errors import ErrorCode
from kop.security.login import Login, Offer, Turn
from kop.security.sasl.exchange import AuthenticationError, Exchange, NamespaceClaim
from kop.security.tenant_membership import TenantMembership
from kop.security.tenants import Space

HOST = "192.0.2.1"
METADATA, HANDSHAKE, VERSIONS, AUTHENTICATE = 3, 17, 18, 36


EXPIRES: list[int | None] = [None]
"""When what clients show ends."""
NAMES = ["User:u"]
"""Who clients are."""
CLAIMS: list[NamespaceClaim | None] = [None]
"""Where clients belong by what they show."""


@pytest.fixture(autouse=True)
def as_usual() -> Iterator[None]:
    yield
    EXPIRES[0], NAMES[0], CLAIMS[0] = None, "User:u", None


class Accepting(Exchange):
    """An exchange of two tokens."""

    def __init__(self, _host: str) -> None:
        self.expires_ms = EXPIRES[0]
        self.claim = CLAIMS[0]
        self._left = 2

    def is_valid(self) -> bool:
        return True

    def step(self, token: bytes) -> bytes:
        if token == b"wrong":
            raise AuthenticationError("wrong")
        self._left -= 1
        if not self._left:
            self.principal = NAMES[0]
        return token.upper()


def login(longest_ms: int = 0) -> Login:
    return Login({"M": Offer(Accepting, longest_ms), "O": Offer(Accepting)})


def take(it: Login, token: bytes, now_ms: int = 0) -> tuple[bytes, Exchange | None]:
    return asyncio.run(it.take(token, lambda: now_ms))


@pytest.mark.parametrize(
    ("requests", "turns"),
    [
        ([METADATA], [Turn.CLOSE]),
        ([AUTHENTICATE], [Turn.CLOSE]),
        ([VERSIONS, VERSIONS], [Turn.SERVE, Turn.CLOSE]),
        ([VERSIONS, METADATA], [Turn.SERVE, Turn.CLOSE]),
        ([VERSIONS, HANDSHAKE, AUTHENTICATE, AUTHENTICATE], [Turn.SERVE] * 4),
        ([HANDSHAKE, METADATA], [Turn.SERVE, Turn.REFUSE]),
        ([HANDSHAKE, VERSIONS], [Turn.SERVE, Turn.REFUSE]),
        ([HANDSHAKE, HANDSHAKE], [Turn.SERVE, Turn.REFUSE]),
    ],
)
def test_the_order_of_requests(requests: list[int], turns: list[Turn]) -> None:
    it = login()
    seen = []
    for api in requests:
        seen.append(it.turn(api))
        if api == HANDSHAKE and seen[-1] is Turn.SERVE:
            assert it.handshake("M", 1, HOST) is ErrorCode.NONE
    assert seen == turns


def test_an_unknown_mechanism_begins_nothing() -> None:
    it = login()
    assert it.handshake("N", 1, HOST) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert it.turn(AUTHENTICATE) is Turn.CLOSE
    with pytest.raises(AuthenticationError):
        take(it, b"a")


def test_tokens_without_headers_follow_the_oldest_handshake() -> None:
    it = login()
    assert not it.takes_raw_tokens
    it.handshake("M", 0, HOST)
    assert it.takes_raw_tokens
    newer = login()
    newer.handshake("M", 1, HOST)
    assert not newer.takes_raw_tokens


def test_completion_is_told_once() -> None:
    it = login()
    told: list[int] = []
    it.completed = lambda: told.append(1)
    it.handshake("M", 1, HOST)
    answer, exchange = take(it, b"a")
    assert (answer, exchange, told) == (b"A", None, [])
    answer, exchange = take(it, b"b")
    assert answer == b"B"
    assert exchange is not None
    assert (exchange.principal, told) == ("User:u", [1])


def test_a_version_that_is_not_served_may_be_asked_for_again() -> None:
    it = login()
    assert it.turn(VERSIONS, False) is Turn.SERVE
    assert it.turn(VERSIONS) is Turn.SERVE
    assert it.turn(VERSIONS) is Turn.CLOSE


def test_nothing_is_served_behind_a_failure() -> None:
    it = login()
    it.handshake("M", 1, HOST)
    with pytest.raises(AuthenticationError):
        take(it, b"wrong")
    assert {it.turn(api) for api in (VERSIONS, HANDSHAKE, AUTHENTICATE)} == {Turn.CLOSE}
    with pytest.raises(AuthenticationError):
        take(it, b"a")


# -- logging in again


def logged_in(longest_ms: int = 0) -> Login:
    it = login(longest_ms)
    assert it.may_begin(0)
    it.handshake("M", 1, HOST)
    take(it, b"a")
    take(it, b"b", 1000)
    return it


@pytest.mark.parametrize(
    ("longest_ms", "expires_ms", "lifetime_ms"),
    [
        (0, None, None),
        (500, None, 500),
        (0, 1300, 300),
        (500, 1300, 300),
        (200, 1300, 200),
        (0, 900, 1),
        (500, 1000, 1),
    ],
)
def test_a_session_ends_with_the_setting_or_the_token(
    longest_ms: int, expires_ms: int | None, lifetime_ms: int | None
) -> None:
    EXPIRES[0] = expires_ms
    assert logged_in(longest_ms).lifetime_ms == lifetime_ms


def test_a_session_that_does_not_end_is_not_begun_again() -> None:
    assert not logged_in().may_begin(10_000)


def test_the_same_user_goes_on() -> None:
    it = logged_in(500)
    assert {it.turn(api) for api in (METADATA, VERSIONS, AUTHENTICATE)} == {Turn.CLOSE}, "when the session is over"
    assert it.turn(HANDSHAKE) is Turn.SERVE
    for begins_ms, may in ((10_000, True), (10_999, False), (11_000, True)):
        assert it.may_begin(begins_ms) is may
    told: list[int] = []
    it.completed = lambda: told.append(1)
    assert it.handshake("M", 1, HOST) is ErrorCode.NONE
    assert it.turn(METADATA) is Turn.REFUSE
    take(it, b"a")
    _, exchange = take(it, b"b")
    assert (exchange is not None, told, it.lifetime_ms) == (True, [1], 500)


def test_another_user_does_not() -> None:
    it = logged_in(500)
    it.handshake("M", 1, HOST)
    take(it, b"a")
    NAMES[0] = "User:v"
    with pytest.raises(AuthenticationError, match="Cannot change principals"):
        take(it, b"b")
    assert it.turn(AUTHENTICATE) is Turn.CLOSE


def test_nor_does_another_mechanism_after_its_handshake() -> None:
    it = logged_in(500)
    assert it.handshake("O", 0, HOST) is ErrorCode.NONE
    assert not it.takes_raw_tokens
    assert it.turn(AUTHENTICATE) is Turn.CLOSE


class InSpaces:
    """Rights that everybody has in all spaces."""

    async def enter(self, principal: str, space: Space, *, proven: bool) -> str:
        return ""

    def follow(self, space: Space) -> None:
        pass


@pytest.mark.parametrize("again", ["acme/sales", "acme/hr", None])
def test_a_session_does_not_move_to_another_namespace(again: str | None) -> None:
    membership = TenantMembership("", (), "", (), InSpaces())
    it = Login({"M": Offer(Accepting, 1000)}, membership)
    CLAIMS[0] = NamespaceClaim("acme/sales")
    it.handshake("M", 1, HOST)
    take(it, b"a")
    take(it, b"b")
    assert it.space.name == "acme/sales"

    CLAIMS[0] = None if again is None else NamespaceClaim(again)
    it.handshake("M", 1, HOST)
    take(it, b"a")
    if again == "acme/sales":
        assert take(it, b"b")[1] is not None
    else:
        with pytest.raises(AuthenticationError, match="Cannot change the namespace during re-authentication"):
            take(it, b"b")
    assert it.space.name == "acme/sales"
