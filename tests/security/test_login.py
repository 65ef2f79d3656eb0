"""Which requests are served before a login, in a table."""

from __future__ import annotations

import pytest

from kop.errors import ErrorCode
from kop.security.login import Login, Turn
from kop.security.sasl.exchange import AuthenticationError

METADATA, HANDSHAKE, VERSIONS, AUTHENTICATE = 3, 17, 18, 36


class Accepting:
    """An exchange of two tokens."""

    def __init__(self) -> None:
        self.principal: str | None = None
        self.is_valid = lambda: True
        self._left = 2

    def step(self, token: bytes) -> bytes:
        if token == b"wrong":
            raise AuthenticationError("wrong")
        self._left -= 1
        if not self._left:
            self.principal = "User:u"
        return token.upper()


def login() -> Login:
    return Login({"M": Accepting})


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
            assert it.handshake("M", 1) is ErrorCode.NONE
    assert seen == turns


def test_an_unknown_mechanism_begins_nothing() -> None:
    it = login()
    assert it.handshake("N", 1) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert it.turn(AUTHENTICATE) is Turn.CLOSE
    with pytest.raises(AuthenticationError):
        it.take(b"a")


def test_tokens_without_headers_follow_the_oldest_handshake() -> None:
    it = login()
    assert not it.takes_raw_tokens
    it.handshake("M", 0)
    assert it.takes_raw_tokens
    newer = login()
    newer.handshake("M", 1)
    assert not newer.takes_raw_tokens


def test_completion_is_told_once() -> None:
    it = login()
    told: list[int] = []
    it.completed = lambda: told.append(1)
    it.handshake("M", 1)
    answer, exchange = it.take(b"a")
    assert (answer, exchange, told) == (b"A", None, [])
    answer, exchange = it.take(b"b")
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
    it.handshake("M", 1)
    with pytest.raises(AuthenticationError):
        it.take(b"wrong")
    assert {it.turn(api) for api in (VERSIONS, HANDSHAKE, AUTHENTICATE)} == {Turn.CLOSE}
    with pytest.raises(AuthenticationError):
        it.take(b"a")
