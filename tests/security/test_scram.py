"""SCRAM: the vectors of RFC 5802's successors, each way to be refused, and unknown users that look like known ones."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from kop.security.sasl.exchange import AuthenticationError
from kop.security.sasl.scram import ScramExchange, ScramLogin
from kop.security.users import ScramCredential

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()


def verifier(
    password: str, salt: bytes = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), name: str = "sha256"
) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, 4096)
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramCredential(salt, stored, hmac.digest(salted, b"Server Key", name), 4096)


USERS = {"user": verifier("pencil"), "a,b=c": verifier("p")}


def exchange(mechanism: str = "SCRAM-SHA-256", users: dict[str, ScramCredential] = USERS) -> ScramExchange:
    return ScramExchange(mechanism, users.get, b"secret of the cluster", SERVER_NONCE)


def answer(server: ScramExchange, message: bytes) -> bytes:
    """What a server answers at once."""
    answered = server.step(message)
    assert isinstance(answered, bytes)
    return answered


def test_the_vector_of_rfc_7677() -> None:
    server = exchange()
    assert server.step(FIRST) == f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert server.principal is None
    assert server.step(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.principal == "User:user"


@pytest.mark.parametrize(("mechanism", "name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_both_sides_of_the_house(mechanism: str, name: str) -> None:
    server = exchange(mechanism, {"a,b=c": verifier("p", name=name)})
    client = ScramLogin(mechanism, "a,b=c", "p", "nonce")
    client.check(answer(server, client.final(answer(server, client.first()))))
    assert server.principal == "User:a,b=c"


@pytest.mark.parametrize(("before", "taken"), [("nonce", True), ("other", False), ("noncenonce", False)])
def test_the_nonce_of_librdkafka_before_2_2_is_taken(before: str, taken: bool) -> None:
    """It puts its own nonce before the whole one, which has it already; Kafka looks at the end alone."""
    mechanism, server = "SCRAM-SHA-512", exchange("SCRAM-SHA-512", {"user": verifier("pencil", name="sha512")})
    offered = answer(server, b"n,,n=user,r=nonce").decode()
    whole, salt, iterations = (part[2:] for part in offered.split(","))
    without_proof = f"c=biws,r={before}{whole}"
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", base64.b64decode(salt), int(iterations))
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    signed = f"n=user,r=nonce,{offered},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha512(client_key).digest(), signed, "sha512")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    final = f"{without_proof},p={proof}".encode()
    if taken:
        assert answer(server, final).startswith(b"v=")
        assert server.principal == "User:user"
    else:
        with pytest.raises(AuthenticationError, match=f"invalid credentials with SASL mechanism {mechanism}"):
            server.step(final)


def refused(*messages: bytes) -> str:
    server = exchange()
    for message in messages[:-1]:
        server.step(message)
    with pytest.raises(AuthenticationError) as caught:
        server.step(messages[-1])
    assert server.principal is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "malformed"),
        (b"\xff", "UTF-8"),
        (b"p=tls-unique,,n=user,r=x", "channel binding"),
        (b"y,,n=user,r=x", "channel binding"),
        (b"n,a=other,n=user,r=x", "authorization id"),
        (b"n,,m=ext,n=user,r=x", "extension"),
        (b"n,,n=,r=x", "user name of 0"),
        (b"n,,n=" + b"u" * 65536 + b",r=x", "of 65545 bytes"),
        (b"n,,n=us=er,r=x", "stands neither"),
        (b"n,,n=user,r=", "malformed"),
        (b"n,,n=user", "malformed"),
        (b"n,,n=user,r=x,tokenauth=true", "delegation tokens"),
    ],
)
def test_first_messages_that_are_refused(message: bytes, why: str) -> None:
    assert why in refused(message)


@pytest.mark.parametrize(
    "final",
    [
        FINAL.replace(b"c=biws", b"c=eSws"),  # the header of another first message
        FINAL.replace(CLIENT_NONCE.encode(), b"other"),
        FINAL.replace(b"p=dHzb", b"p=AHzb"),
        FINAL.replace(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=dHzb"),
        FINAL.replace(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p="),
        FINAL.replace(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=!!!!"),
    ],
)
def test_last_messages_that_are_refused_say_the_same(final: bytes) -> None:
    unknown = refused(FIRST.replace(b"n=user", b"n=nobody"), FINAL)
    assert refused(FIRST, final) == unknown
    assert "invalid credentials" in unknown


def test_an_unknown_user_looks_like_a_known_one() -> None:
    first, again = answer(exchange(), FIRST.replace(b"n=user", b"n=nobody")), answer(exchange(), b"n,,n=nobody,r=zz")
    salts = [each.split(b",")[1] for each in (first, again)]
    assert salts[0] == salts[1], "the salt of a name stays the same"
    other = answer(exchange(), b"n,,n=somebody,r=zz")
    assert other.split(b",")[1] != salts[0]
    assert first.endswith(b",i=4096")


def test_nothing_is_taken_twice() -> None:
    server = exchange()
    server.step(FIRST)
    server.step(FINAL)
    with pytest.raises(AuthenticationError):
        server.step(FINAL)


def test_a_login_holds_as_long_as_the_password() -> None:
    users = dict(USERS)
    server = exchange(users=users)
    server.step(FIRST)
    server.step(FINAL)
    assert server.is_valid()
    users["user"] = verifier("another")
    assert not server.is_valid()
    del users["user"]
    assert not server.is_valid()


def test_a_server_that_does_not_know_the_password_is_noticed() -> None:
    client = ScramLogin("SCRAM-SHA-256", "user", "pencil", CLIENT_NONCE)
    client.final(answer(exchange(), client.first()))
    with pytest.raises(AuthenticationError, match="does not show"):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(AuthenticationError, match="none of SCRAM"):
        client.final(b"e=unknown-user")
