"""Pulsar's tokens: by its key in each of its forms, or as Pulsar decides; by PLAIN as KoP's users have them."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.fake_pulsar import fake_pulsar
from support.waiting import until

from kop.config import Config
from kop.errors import BackendError, ConfigError
from kop.pulsar_client import Client
from kop.security.pulsar_tokens import pulsar_tokens
from kop.security.sasl.exchange import AuthenticationError, ClientIdentity
from kop.security.sasl.oauthbearer import TokenError
from kop.security.sasl.plain import PlainExchange
from kop.security.settings import SecuritySettings
from kop.security.token_keys import KeySources
from kop.storage.pulsar.token_checks import TokenChecks

SECRET = bytes(range(32))
RSA = rsa.generate_private_key(65537, 2048)
DER = RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class Authority:
    """Pulsar's place: takes some tokens."""

    def __init__(self, *good: str, error: str = "") -> None:
        self.good, self.error = good, error
        self.asked: list[str] = []

    async def accepts(self, token: str) -> bool:
        self.asked.append(token)
        if self.error:
            raise BackendError(self.error)
        return token in self.good


def settings(**given: str) -> SecuritySettings:
    named = {f"kop.pulsar.token.{name.replace('_', '.')}": value for name, value in given.items()}
    return Config.load(overrides=named, environ={}).of(SecuritySettings)


def whose(token: str, authority: Authority | None = None, **given: str) -> ClientIdentity:
    return asyncio.run(pulsar_tokens(settings(**given), authority or Authority(), KeySources()).check(token))


def signed(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    return jwt.encode({"sub": "app"} | claims, key, algorithm)


def test_keys_in_pulsars_forms(tmp_path: Path) -> None:
    for name, content in (("secret", SECRET), ("der", DER), ("pem", PEM)):
        (tmp_path / name).write_bytes(content)
    inline = f"data:;base64,{base64.b64encode(SECRET).decode()}"
    for place in (str(tmp_path / "secret"), f"file://{tmp_path}/secret", inline):
        assert whose(signed(), secret_key=place) == ClientIdentity("User:app"), "a token of Pulsar need not end"
    for name in ("der", "pem"):
        assert whose(signed(RSA, "RS256"), public_key=f"file://{tmp_path}/{name}").principal == "User:app"
    ends = int(time.time()) + 100
    assert whose(signed(exp=ends), secret_key=inline).expires_ms == ends * 1000
    assert whose(signed(role="r"), secret_key=inline, auth_claim="role").principal == "User:r"
    assert whose(signed(aud="a"), secret_key=inline, audience="a").principal == "User:app"
    refused: list[tuple[str, dict[str, str]]] = [
        (signed(bytes(32)), {}),
        (signed(RSA, "RS256"), {}),
        (signed("", "none"), {}),
        (signed(exp=int(time.time()) - 100), {}),
        (signed(aud="b"), {"audience": "a"}),
        (signed(), {"audience": "a", "audience_claim": "for"}),
        (signed(sub=""), {}),
        ("x", {}),
    ]
    for bad, given in refused:
        with pytest.raises(TokenError):
            whose(bad, None, secret_key=inline, **given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"secret_key": "/no/such/file"}, "secret.key: No such file"),
        ({"secret_key": "data:;base64,AAAA"}, "a secret of 3 bytes"),
        ({"secret_key": "data:AAAA"}, "it is not data:;base64"),
        ({"public_key": "data:;base64,AAAA"}, "public.key: it is no public key"),
        ({"public_key": "x", "secret_key": "y"}, "one of them"),
    ],
)
def test_keys_that_cannot_be_had(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        pulsar_tokens(settings(**given), Authority(), KeySources())


def test_a_changed_key_counts_and_the_last_good_one_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = bytes(range(1, 33))

    async def main() -> None:
        times = [0.0]
        for path, place in (
            (tmp_path / "first", str(tmp_path / "first")),
            (tmp_path / "a key", f"file://{tmp_path}/a%20key"),
        ):
            sources = KeySources(lambda: times[-1])
            path.write_bytes(SECRET)
            tokens = pulsar_tokens(settings(secret_key=place), Authority(), sources)
            assert (await tokens.check(signed())).principal == "User:app"
            path.write_bytes(other)
            times.append(times[-1] + 10)
            await sources.look()
            assert (await tokens.check(signed(other))).principal == "User:app"
            with pytest.raises(TokenError, match="signature is wrong"):
                await tokens.check(signed())
            caplog.clear()
            for content in (b"short", None):
                if content is None:
                    path.unlink()
                else:
                    path.write_bytes(content)
                times.append(times[-1] + 10)
                await sources.look()
                assert (await tokens.check(signed(other))).principal == "User:app"
            wrong, gone = [record for record in caplog.records if record.levelno == logging.ERROR]
            kept = "what was read before stays"
            assert f"{path.as_uri()}: a secret of 5 bytes: 32 are the least; {kept}" in wrong.getMessage()
            assert f"{path.as_uri()}: No such file or directory; {kept}" in gone.getMessage()
            ages = {sample.labels["url"]: sample.value for each in sources.collect() for sample in each.samples}
            assert ages == {path.as_uri(): 20.0}

    asyncio.run(main())


def test_other_stores_have_no_tokens() -> None:
    with pytest.raises(ConfigError, match="needs --store pulsar"):
        pulsar_tokens(settings(), None, KeySources())


def test_without_a_key_pulsar_decides(caplog: pytest.LogCaptureFixture) -> None:
    good = signed(b"a key that is not known here, only there")
    assert whose(good, Authority(good)).principal == "User:app"
    with pytest.raises(TokenError, match="Pulsar does not take it"):
        whose(good, Authority())
    nobody = Authority()
    for bad in ("x", "a.b.c", signed(sub="")):
        with pytest.raises(TokenError):
            whose(bad, nobody)
    assert nobody.asked == []
    with caplog.at_level(logging.ERROR), pytest.raises(TokenError, match="cannot be asked now"):
        whose(good, Authority(error="nobody is there"))
    assert "no token of Pulsar is taken now: nobody is there" in caplog.text


def test_pulsar_is_asked_by_a_connection() -> None:
    good = signed(SECRET)

    async def main() -> None:
        async with fake_pulsar() as broker:
            client = Client(broker.url, request_timeout=5)
            checks = TokenChecks(client)
            broker.tokens = {good.encode()}
            assert await checks.accepts(good)
            assert not await checks.accepts(signed(sub="other"))
            await until(lambda: not broker.sessions)
            broker.tokens = None
            with pytest.raises(BackendError, match="false signature, so it checks none"):
                await checks.accepts(good)
        with pytest.raises(BackendError, match="cannot be asked"):
            await checks.accepts(good)
        await client.close()

    asyncio.run(main())


# -- by PLAIN


async def nobody(name: str, password: str) -> ClientIdentity | None:
    return None


async def by_plain(message: str, **given: Any) -> PlainExchange:
    exchange = PlainExchange(nobody, **given)
    await exchange.step(message.encode())
    return exchange


async def known(token: str) -> ClientIdentity:
    if token != "good":
        raise TokenError("it has expired")
    return ClientIdentity("User:app", 5)


def test_a_token_for_a_password() -> None:
    exchange = asyncio.run(by_plain("\0public/default\0token:good", check_token=known))
    assert (exchange.principal, exchange.expires_ms) == ("User:app", 5)
    for message, why in (
        ("\0public/default\0token:bad", "the token is refused: it has expired"),
        ("\0public\0token:good", "has to be TENANT/NAMESPACE"),
        ("\0public/default\0good", "Invalid username or password"),
    ):
        with pytest.raises(AuthenticationError, match=why):
            asyncio.run(by_plain(message, check_token=known))
    with pytest.raises(AuthenticationError, match="Invalid username or password"):
        asyncio.run(by_plain("\0public/default\0token:good"))
