"""Credentials: their forms, their renewal, and settings that say what is wrong without the secret."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.gateway import run

from kop.pulsar_client.auth import Basic, Credentials, OAuth2, Token, parse_auth
from kop.pulsar_client.errors import PulsarError

SECRET = "s3cr3t-XYZ"


def test_a_token_in_both_protocols() -> None:
    async def main() -> None:
        token = Token("abc.def")
        assert token.method == "token"
        assert await token.data() == b"abc.def"
        assert await token.headers() == {"Authorization": "Bearer abc.def"}

    run(main())


def test_a_token_file_is_read_again_for_every_use(tmp_path: Path) -> None:
    path = tmp_path / "token"

    async def main() -> None:
        token = Token.file(path)
        path.write_text("one\n")
        assert await token.data() == b"one"
        path.write_text("two")
        assert await token.headers() == {"Authorization": "Bearer two"}
        path.write_text("\n")
        with pytest.raises(PulsarError, match="empty"):
            await token.data()
        path.unlink()
        with pytest.raises(PulsarError, match=r"token file .*token: No such file") as caught:
            await token.data()
        assert (caught.value.code, caught.value.retriable) == ("AuthFailed", True)

    run(main())


def test_a_token_from_a_function_is_asked_for_every_use() -> None:
    given = iter(["a", "b"])

    async def main() -> list[bytes]:
        token = Token(lambda: next(given))
        return [await token.data(), await token.data()]

    assert run(main()) == [b"a", b"b"]


def test_a_token_that_would_break_a_header_is_refused_without_being_shown() -> None:
    async def main() -> None:
        with pytest.raises(PulsarError) as caught:
            await Token(lambda: f"{SECRET}\r\nX-Evil: 1").headers()
        assert SECRET not in str(caught.value)

    run(main())


def test_user_and_password_in_both_protocols() -> None:
    async def main() -> None:
        basic = Basic("me", "pä:ss")
        assert basic.method == "basic"
        assert await basic.data() == "me:pä:ss".encode()
        sent = (await basic.headers())["Authorization"].removeprefix("Basic ")
        assert base64.b64decode(sent).decode() == "me:pä:ss"

    run(main())


# -- OAuth2


class Issuer:
    """An OAuth2 issuer that counts."""

    def __init__(self) -> None:
        self.forms: list[dict[str, str]] = []
        self.answer: Any = {"access_token": "T1", "expires_in": 3600}
        self.status = 200
        self.well_known_status = 200
        self.url = ""

    async def well_known(self, _: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": f"{self.url}/token"}, status=self.well_known_status)

    async def token(self, request: web.Request) -> web.Response:
        self.forms.append({key: str(value) for key, value in (await request.post()).items()})
        await asyncio.sleep(0.01)  # others may ask meanwhile
        if isinstance(self.answer, str):
            return web.Response(text=self.answer, status=self.status)
        return web.json_response(self.answer, status=self.status)


@asynccontextmanager
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.well_known)
    app.router.add_post("/token", issuer.token)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    issuer.url = f"http://{host}:{port}"
    try:
        yield issuer
    finally:
        await runner.cleanup()


def test_an_access_token_is_fetched_once_and_kept_until_shortly_before_it_expires() -> None:
    now = 1000.0

    async def main() -> None:
        nonlocal now
        async with issuer() as server:
            auth = OAuth2(server.url + "/", "id", SECRET, audience="urn:pulsar", scope="a b", clock=lambda: now)
            assert set(await asyncio.gather(*(auth.data() for _ in range(20)))) == {b"T1"}
            assert auth.method == "token"
            assert server.forms == [
                {
                    "grant_type": "client_credentials",
                    "client_id": "id",
                    "client_secret": SECRET,
                    "audience": "urn:pulsar",
                    "scope": "a b",
                }
            ]
            server.answer = {"access_token": "T2", "expires_in": "100"}
            now += 3500
            assert await auth.data() == b"T1"
            now += 41
            assert await auth.headers() == {"Authorization": "Bearer T2"}
            server.answer = {"access_token": "T3", "expires_in": 100}
            now += 89
            assert await auth.data() == b"T2"
            now += 2
            assert await auth.data() == b"T3"
            server.answer = {"access_token": "T4"}
            auth.forget()
            assert await auth.data() == b"T4"
            assert len(server.forms) == 4

    run(main())


@pytest.mark.parametrize(
    ("status", "answer", "text", "retriable"),
    [
        (401, {"error": "invalid_client", "error_description": "no such client"}, "401 invalid_client no such", False),
        (503, "busy", "answered 503", True),
        (200, "hello", "answered 200", False),
        (200, {"expires_in": 5}, "no access_token", False),
        (200, {"access_token": "a", "expires_in": "soon"}, "expires_in", False),
        (200, {"access_token": "a", "expires_in": "²"}, "expires_in", False),
        (200, {"access_token": "a b"}, "characters", True),
    ],
)
def test_an_issuer_that_refuses_is_quoted_and_the_secret_is_not(
    status: int, answer: Any, text: str, retriable: bool
) -> None:
    async def main() -> None:
        async with issuer() as server:
            server.status, server.answer = status, answer
            auth = OAuth2(server.url, "id", SECRET)
            with pytest.raises(PulsarError, match=text) as caught:
                await auth.data()
            assert (caught.value.code, caught.value.retriable) == ("AuthFailed", retriable)
            assert SECRET not in str(caught.value) + repr(auth)
            server.status, server.answer = 200, {"access_token": "T1"}
            assert await auth.data() == b"T1"

    run(main())


def test_an_issuer_that_is_not_there_is_a_retriable_error() -> None:
    async def main() -> None:
        with pytest.raises(PulsarError, match="check the issuer's URL") as caught:
            await OAuth2("http://127.0.0.1:1", "id", SECRET).data()
        assert caught.value.retriable
        async with issuer() as server:
            server.well_known_status = 404
            with pytest.raises(PulsarError, match=r"openid-configuration: answered 404"):
                await OAuth2(server.url, "id", SECRET).data()

    run(main())


# -- settings


def data(auth: Credentials | None) -> bytes:
    assert auth is not None
    return run(auth.data())


def test_settings_name_all_kinds(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file")
    assert parse_auth("  ") is None
    assert data(parse_auth("token:abc")) == b"abc"
    assert data(parse_auth(f"token-file:{tmp_path}/token")) == b"from-file"
    assert data(parse_auth(f"token-file:file://{tmp_path}/token")) == b"from-file"
    assert data(parse_auth("basic:me:a:b")) == b"me:a:b"


def test_settings_of_oauth2_take_pulsars_names_and_its_key_file(tmp_path: Path) -> None:
    key = tmp_path / "key file.json"
    key.write_text(json.dumps({"type": "client_credentials", "client_id": "kid", "client_secret": SECRET}))

    async def main() -> list[dict[str, str]]:
        async with issuer() as server:
            for setting in (
                {"issuer": server.url, "client_id": "a", "client_secret": "b"},
                {"issuerUrl": server.url, "privateKey": key.as_uri(), "audience": "x", "type": "client_credentials"},
                {"issuer_url": server.url, "private_key": str(key), "scope": "y"},
            ):
                auth = parse_auth(f"oauth2:{json.dumps(setting)}")
                assert isinstance(auth, OAuth2)
                assert await auth.data() == b"T1"
            return server.forms

    forms = run(main())
    assert [form["client_id"] for form in forms] == ["a", "kid", "kid"]
    assert [form.get("audience") for form in forms] == [None, "x", None]
    assert [form.get("scope") for form in forms] == [None, None, "y"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SECRET, "must be token:TOKEN"),
        (f"jwt:{SECRET}", "must be token:TOKEN"),
        ("token:", "nothing behind token:"),
        (f"token:{SECRET} {SECRET}", "characters that no token has"),
        (f"basic:{SECRET}", "basic:USER:PASSWORD"),
        (f"oauth2:{SECRET}", "a JSON object"),
        (f'oauth2:["{SECRET}"]', "a JSON object"),
        (f'oauth2:{{"issuer": "http://x", "client_id": "a", "clientsecret": "{SECRET}"}}', "has no clientsecret; it"),
        (f'oauth2:{{"client_secret": "{SECRET}"}}', "lacks issuer, client_id"),
        (f'oauth2:{{"issuer": "x", "client_id": "a", "client_secret": "{SECRET}"}}', "must be an http or https URL"),
        (f'oauth2:{{"issuer": 5, "client_id": "a", "client_secret": "{SECRET}"}}', "issuer must be text"),
        (f'oauth2:{{"type": "password", "client_secret": "{SECRET}"}}', "the only type"),
        ('oauth2:{"issuer": "http://x", "privateKey": "/no/such/key"}', "cannot read /no/such/key: No such file"),
    ],
)
def test_wrong_settings_say_what_is_wrong_and_not_the_secret(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        parse_auth(text)
    assert SECRET not in str(caught.value)


def test_no_repr_shows_a_secret() -> None:
    for auth in (Token(SECRET), Basic("me", SECRET), OAuth2("http://x", "id", SECRET)):
        assert SECRET not in repr(auth)
