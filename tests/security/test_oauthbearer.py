"""OAUTHBEARER: its messages, and in a table each token that is taken and each that is not."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.certificates import self_signed

from kop.errors import BackendError
from kop.security.sasl.exchange import AuthenticationError, ClientIdentity
from kop.security.sasl.oauthbearer import OAuthBearerExchange, TokenError
from kop.security.token_keys import KeySource
from kop.security.tokens import (
    TokenRules,
    checked,
    identity_of,
    is_of_unknown_key,
    keys_of_jwks,
    public_key,
    secret_key,
    unchecked_claims,
    unsecured,
)

NOW = 1_700_000_000.0
RULES = TokenRules(issuer="https://issuer", audiences=("kafka",), longest=3600.0)
RSA, OTHER_RSA = (rsa.generate_private_key(65537, 2048) for _ in range(2))
WEAK_RSA = rsa.generate_private_key(65537, 1024)
EC = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(kind: Any, private: Any, **more: Any) -> dict[str, Any]:
    return json.loads(kind.to_jwk(private.public_key())) | more


RSA_JWK = jwk(jwt.algorithms.RSAAlgorithm, RSA, kid="r", use="sig", alg="RS256")
EC_JWK = jwk(jwt.algorithms.ECAlgorithm, EC, kid="e")
EDWARDS_JWK = jwk(jwt.algorithms.OKPAlgorithm, EDWARDS)
WEAK_JWK = jwk(jwt.algorithms.RSAAlgorithm, WEAK_RSA, kid="w")
ENCRYPTION_JWK = jwk(jwt.algorithms.RSAAlgorithm, OTHER_RSA, kid="x", use="enc")
SECRET_JWK = {"kty": "oct", "kid": "o", "k": base64.urlsafe_b64encode(bytes(64)).decode()}
JWKS = json.dumps(
    {"keys": [RSA_JWK, EC_JWK, EDWARDS_JWK, WEAK_JWK, ENCRYPTION_JWK, SECRET_JWK, {"kty": "RSA"}, 7]}
).encode()
KEYS = keys_of_jwks(JWKS)


def claims(**more: Any) -> dict[str, Any]:
    usual = {"sub": "alice", "iss": "https://issuer", "aud": "kafka", "exp": NOW + 600, "iat": NOW - 5}
    return {name: value for name, value in (usual | more).items() if value is not ...}


def token(algorithm: str = "RS256", key: Any = RSA, kid: Any = "r", **more: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**more), key, algorithm, headers=headers)


def by_hand(header: Mapping[str, Any], signature: bytes = b"", body: Any = None) -> str:
    """A token that no library makes."""
    parts = [json.dumps(header).encode(), json.dumps(claims() if body is None else body).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def shown(text: str) -> str:
    """Return the part of a test's name: tokens are others in each process."""
    return text if len(text) < 50 and text.isascii() else "token"


def test_only_keys_that_may_sign_are_taken() -> None:
    assert [(key.key_id, key.algorithms) for key in KEYS] == [
        ("r", ("RS256",)),
        ("e", ("ES256",)),
        (None, ("EdDSA",)),
    ]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"keys": 1}', b'{"keys": []}', b"[" * 100_000, b"\xff"], ids=range(6))
def test_what_is_no_jwks_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"JWKS|none may sign"):
        keys_of_jwks(text)


@pytest.mark.parametrize(
    "good",
    [
        token(),
        token(kid=None),
        token("ES256", EC, "e"),
        token("EdDSA", EDWARDS, None),
        token("EdDSA", EDWARDS, "of a key without a name"),
        token(aud=["other", "kafka"], scope="a b"),
        token(scope=["a", "b"], iat=...),
        token(exp=NOW - 29),
        token(exp=NOW + 3629),
        token(nbf=NOW + 29),
    ],
    ids=shown,
)
def test_tokens_that_are_taken(good: str) -> None:
    assert checked(good, KEYS, RULES, NOW).principal == "User:alice"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "malformed"),
        ("a.b.c", "malformed"),
        ("é.é.é", "malformed"),
        (by_hand({"alg": "none"}), "no key"),
        (by_hand({"alg": "None"}), "no key"),
        (by_hand({}), "no key"),
        (by_hand({"alg": ["RS256"]}), "no key"),
        (by_hand({"alg": "RS256", "kid": ["r"]}), "malformed"),
        (by_hand({"alg": "RS256", "kid": "r"}), "signature is wrong"),
        (by_hand({"alg": "HS256", "kid": "r"}, b"x" * 32), "no key"),  # over a public key
        (by_hand({"alg": "HS256", "kid": "o"}, b"x" * 32), "no key"),
        (by_hand({"alg": "RS256", "kid": "r", "crit": ["b64"], "b64": False}), "malformed"),
        (token("RS512"), "no key"),
        (token("RS256", OTHER_RSA), "signature is wrong"),
        (by_hand({"alg": "RS256", "kid": "w"}, bytes(128)), "no key"),
        (token("RS256", OTHER_RSA, "x"), "no key"),
        (token("RS256", kid="unknown"), "no key"),
        (token("ES256", EC, "r"), "no key"),
        (token(exp=...), "no exp"),
        (token(exp=NOW - 31), "expired"),
        (token(exp=NOW + 3700), "further than 3600 s"),
        (token(exp=NOW + 10 * 365 * 86_400), "further than 3600 s"),
        (token(exp="soon"), "exp is no time"),
        (token(exp=True), "exp is no time"),
        (token(exp=1e300), "exp is no time"),
        (token(exp=math.nan), "exp is no time"),
        (token(exp=10**400), "exp is no time"),
        (token(nbf=-(10**400)), "nbf is no time"),
        (token(nbf=NOW + 31), "of the future"),
        (token(iat=NOW + 31), "of the future"),
        (token(iat="x"), "iat is no time"),
        (token(iss="https://other"), "another issuer"),
        (token(iss=...), "no iss"),
        (token(aud="other"), "another audience"),
        (token(aud=["other"]), "another audience"),
        (token(aud=...), "no aud"),
        (token(sub=...), "no sub"),
        (token(sub=""), "sub is no name"),
        (token(sub="s" * 2000), "sub is no name"),
        (token(sub="\ud800"), "sub is no name"),
        (token(scope=7), "scope is neither"),
        (token(more="m" * 65_536), "characters"),
        (token().replace(".", ".."), "malformed"),
        (token()[:-8] + "A" * 8, "signature is wrong"),
        ("[" * 60_000 + "." + ".", "malformed"),
    ],
    ids=shown,
)
def test_tokens_that_are_refused(bad: str, why: str) -> None:
    with pytest.raises(TokenError, match=why) as caught:
        checked(bad, KEYS, RULES, NOW)
    assert len(str(caught.value)) < 100


def test_a_name_that_is_no_text_is_refused() -> None:
    for name in (7, None, ["alice"], " "):
        with pytest.raises(TokenError, match="no name"):
            identity_of(claims(sub=name), RULES, NOW)


def test_the_secret_of_an_hmac_is_never_a_public_key() -> None:
    forged = by_hand({"alg": "HS256"}, b"")
    for key in (public_key(RSA.public_key()), secret_key(bytes(64))):
        assert key is not None
        with pytest.raises(TokenError):
            checked(forged, (key,), RULES, NOW)
    body = forged.rpartition(".")[0]
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(body.encode(), PEM)
    forged = f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    with pytest.raises(TokenError, match="no key"):
        checked(forged, KEYS, RULES, NOW)


NAMES: dict[str, Any] = {"user": "bob", "for": "k"}


def test_rules_may_name_other_claims() -> None:
    rules = TokenRules(name_claim="user", audience_claim="for", audiences=("k",), longest=None)
    identity = checked(token(exp=..., **NAMES), KEYS, rules, NOW)
    assert identity == ClientIdentity("User:bob", None)
    with pytest.raises(TokenError, match="another audience"):
        checked(token(**NAMES | {"for": "l"}), KEYS, rules, NOW)


def test_unsecured_tokens() -> None:
    rules = TokenRules(longest=3600.0)
    assert unsecured(by_hand({"alg": "none"}), rules, NOW).principal == "User:alice"
    for bad in (by_hand({"alg": "none"}, b"x"), token(), by_hand({"alg": "none"}, body=[]), "x.y"):
        with pytest.raises(TokenError):
            unsecured(bad, rules, NOW)
    assert unchecked_claims(token())["sub"] == "alice"


# -- the exchange


async def known(bearer: str) -> ClientIdentity:
    if bearer != "good":
        raise TokenError("it has expired")
    return ClientIdentity("User:alice", 9)


async def stepped(exchange: OAuthBearerExchange, message: bytes) -> bytes:
    answer = exchange.step(message)
    return answer if isinstance(answer, bytes) else await answer


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer good\x01\x01",
        b"n,a=alice,\x01auth=bearer good\x01\x01",
        b"n,,\x01traceId=7\x01auth=Bearer  good \x01logicalCluster=x\x01\x01",
    ],
)
def test_a_good_token(message: bytes) -> None:
    exchange = OAuthBearerExchange(known)
    assert asyncio.run(stepped(exchange, message)) == b""
    assert (exchange.principal, exchange.expires_ms, exchange.is_valid()) == ("User:alice", 9, True)
    with pytest.raises(AuthenticationError, match="behind the last"):
        exchange.step(message)


@pytest.mark.parametrize("reply", [b"\x01", b"", b"n,,\x01auth=Bearer good\x01\x01"])
def test_a_refused_token_takes_two_steps(reply: bytes) -> None:
    exchange = OAuthBearerExchange(known)
    answer = asyncio.run(stepped(exchange, b"n,,\x01auth=Bearer bad\x01\x01"))
    assert (answer, exchange.principal) == (b'{"status":"invalid_token"}', None)
    with pytest.raises(AuthenticationError, match=r"the token is refused \(invalid_token\): it has expired"):
        exchange.step(reply)
    assert exchange.principal is None


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "malformed"),
        (b"\x01", "malformed"),
        (b"n,,\x01auth=Bearer good\x01", "malformed"),
        (b"p=x,,\x01auth=Bearer good\x01\x01", "malformed"),
        (b"n,,\x01\x01", "no token"),
        (b"n,,\x01auth=Basic good\x01\x01", "no token"),
        (b"n,,\x01auth=Bearer \x01\x01", "no token"),
        (b"n,,\x01auth=Bearer good\x01auth=Bearer good\x01\x01", "no token"),
        (b"n,a=bob,\x01auth=Bearer good\x01\x01", "authorization id"),
        (b"n,,\x01auth=Bearer \xff\x01\x01", "UTF-8"),
        (b"n,,\x01auth=Bearer " + b"g" * 65_536 + b"\x01\x01", "bytes"),
    ],
)
def test_messages_that_are_refused(message: bytes, why: str) -> None:
    with pytest.raises(AuthenticationError, match=why):
        asyncio.run(stepped(OAuthBearerExchange(known), message))


# -- where keys come from


@pytest.mark.parametrize("url", ["", "http://host/keys", "https://", "https://u:p@host/keys", "file://host/x", "/path"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be file:") as caught:
        KeySource(url, 60)
    assert "u:p" not in str(caught.value)


def test_the_last_good_keys_stay(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    async def main() -> None:
        source = KeySource(f"file://{path}", 3600)
        assert source.is_due(0)
        with pytest.raises(BackendError, match=r"No such file.*no token is taken"):
            await source.fetch(0)
        assert (source.keys, source.is_due(0.9), source.is_due(1)) == ((), False, True)
        path.write_bytes(JWKS)
        await source.fetch(1)
        assert (len(source.keys), source.since, source.is_due(5.9), source.is_due(6)) == (3, 1, False, True)
        path.write_bytes(b"{")
        with pytest.raises(BackendError, match="what was read before stays"):
            await source.fetch(11)
        assert (len(source.keys), source.since) == (3, 1)
        path.write_bytes(json.dumps({"keys": [EC_JWK]}).encode())
        await source.fetch(20)
        assert [key.key_id for key in source.keys] == ["e"]
        assert is_of_unknown_key(token(), source.keys)
        assert not is_of_unknown_key(token("ES256", EC, "e"), source.keys)
        assert (source.is_due(24.9), source.is_due(25)) == (False, True)

    asyncio.run(main())


def test_keys_come_over_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path, "issuer", "DNS:localhost")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    answers = {"/keys": web.Response(body=JWKS), "/long": web.Response(body=bytes((1 << 20) + 1))}
    answers["/away"] = web.Response(status=302, headers={"Location": "/keys"})

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return answers[request.path]

    async def main() -> None:
        server = web.ServerRunner(web.Server(answer))
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0, ssl_context=serving)
        await site.start()
        port = server.addresses[0][1]

        async def fetched(path: str) -> KeySource:
            source = KeySource(f"https://localhost:{port}{path}", 3600)
            await source.fetch(0)
            return source

        with pytest.raises(BackendError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            await fetched("/keys")
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        source = await fetched("/keys")
        assert len(source.keys) == 3
        source.ask(1)
        assert (source.is_due(9.9), source.is_due(10)) == (False, True)
        for path, why in (("/long", "more than 1048576 bytes"), ("/away", "it answers 302")):
            with pytest.raises(BackendError, match=why):
                await fetched(path)
        await server.cleanup()
        with pytest.raises(BackendError, match="no token is taken"):
            await fetched("/keys")

    asyncio.run(main())
