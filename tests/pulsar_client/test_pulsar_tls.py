"""TLS: who is trusted, and for which name."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pulsar_client.pulsar_kit import T, client, send
from support.certificates import self_signed
from support.fake_pulsar import Command, FakePulsar, Session
from support.waiting import SECONDS

from kop.pulsar_client import Client, PulsarError, TlsOptions
from kop.pulsar_client.auth import OAuth2, Token
from kop.pulsar_client.proto import pulsar_pb2 as pb

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    self_signed(folder, "here", "IP:127.0.0.1")
    self_signed(folder, "elsewhere", "DNS:elsewhere.example")
    self_signed(folder, "client", "DNS:client.example")
    return folder


class TlsPulsar(FakePulsar):
    """The fake broker behind TLS."""

    async def start_tls(self, folder: Path, name: str, *, clients: bool = False) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(folder / "client.pem")
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"pulsar+ssl://127.0.0.1:{self.port}"


async def start(url: str, tls: TlsOptions, seconds: float = 30.0) -> None:
    made = Client(url, tls=tls, request_timeout=seconds)
    try:
        await made.start()
    finally:
        await made.close()


async def test_a_trusted_broker_is_used(folder: Path) -> None:
    broker = TlsPulsar()
    await broker.start_tls(folder, "here")
    broker.create(T)
    async with client(broker.url, tls=TlsOptions(ca_file=str(folder / "here.pem"))) as made:
        producer = await made.open_producer(T)
        await asyncio.gather(*(send(producer, number, bytes(100_000)) for number in range(20)))
        assert len(broker.payloads(T)) == 20
    await broker.stop()


@pytest.mark.parametrize(
    ("name", "options", "works"),
    [
        ("here", {}, False),  # nobody vouches for it
        ("here", {"insecure": True}, True),
        ("elsewhere", {"ca_file": "elsewhere.pem"}, False),  # the name is another's
        ("elsewhere", {"ca_file": "elsewhere.pem", "check_hostname": False}, True),
        ("elsewhere", {"ca_file": "elsewhere.pem", "server_hostname": "elsewhere.example"}, True),
        ("elsewhere", {"ca_file": "elsewhere.pem", "server_hostname": "other.example"}, False),
    ],
)
async def test_who_is_trusted(folder: Path, name: str, options: dict[str, Any], works: bool) -> None:
    broker = TlsPulsar()
    await broker.start_tls(folder, name)
    if "ca_file" in options:
        options = options | {"ca_file": str(folder / str(options["ca_file"]))}
    try:
        if works:
            await start(broker.url, TlsOptions(**options))
        else:
            with pytest.raises(PulsarError, match="check the file of trusted certificates") as caught:
                await start(broker.url, TlsOptions(**options))
            assert caught.value.code == "TlsError"
            assert not caught.value.retriable
    finally:
        await broker.stop()


async def test_a_client_shows_its_certificate(folder: Path) -> None:
    broker = TlsPulsar()
    await broker.start_tls(folder, "here", clients=True)
    trusted = str(folder / "here.pem")
    try:
        own = TlsOptions(trusted, str(folder / "client.pem"), str(folder / "client.key"))
        await start(broker.url, own)
        with pytest.raises(PulsarError):
            await start(broker.url, TlsOptions(trusted))
    finally:
        await broker.stop()


def test_an_encrypted_key_is_an_error_and_no_question(folder: Path) -> None:
    key = str(folder / "locked.key")
    command = ["openssl", "pkey", "-in", str(folder / "client.key"), "-aes256", "-passout", "pass:x", "-out", key]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(PulsarError, match=r"locked\.key is encrypted.*openssl pkey") as caught:
        TlsOptions(None, str(folder / "client.pem"), key).context()
    assert caught.value.code == "TlsError"


def test_an_issuer_may_have_a_public_certificate(folder: Path) -> None:
    own = TlsOptions(str(folder / "here.pem"))
    both = TlsOptions(str(folder / "here.pem"), system_too=True)
    system = TlsOptions().context().cert_store_stats()["x509_ca"]
    assert own.context().cert_store_stats()["x509"] == 1
    assert both.context().cert_store_stats()["x509_ca"] >= system
    assert both.context().cert_store_stats()["x509"] > system or system == 0


@pytest.mark.parametrize("options", [{"ca_file": "/none.pem"}, {"cert_file": "/none.pem"}])
async def test_a_missing_file_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(PulsarError, match=r"/none\.pem") as caught:
        await start("pulsar+ssl://127.0.0.1:1", TlsOptions(**options))
    assert caught.value.code == "TlsError"


async def test_plain_to_a_tls_port_and_tls_to_a_plain_port_are_told(folder: Path) -> None:
    broker = TlsPulsar()
    await broker.start_tls(folder, "here")
    try:
        with pytest.raises(PulsarError) as caught:
            await start(broker.url.replace("+ssl", ""), TlsOptions())
        assert caught.value.code in {"FrameError", "ConnectionLost"}
    finally:
        await broker.stop()
    plain = FakePulsar()
    await plain.start()
    try:
        with pytest.raises(PulsarError) as caught:
            await start(plain.url.replace("pulsar:", "pulsar+ssl:"), TlsOptions(insecure=True), 0.5)
        assert caught.value.code in {"TlsError", "ConnectionLost", "Timeout"}
    finally:
        await plain.stop()


class Misled:
    """A broker with TLS whose lookups name one without it, which counts what comes there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.broker, self.plain = TlsPulsar(), FakePulsar()

    async def __aenter__(self) -> Misled:
        await self.broker.start_tls(self._folder, "here")
        await self.plain.start()
        for each in (self.broker, self.plain):
            each.create(T)
        self.broker.tokens = self.plain.tokens = {b"secret"}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.broker.stop()
        await self.plain.stop()

    def answer(self, *, kind: pb.CommandLookupTopicResponse.LookupType, proxied: bool = False) -> None:
        """What lookups say from now on."""

        def hook(session: Session, command: Command) -> bool:
            if command.type != Command.LOOKUP:
                return False
            answer = pb.CommandLookupTopicResponse(
                request_id=command.lookupTopic.request_id,
                response=kind,
                brokerServiceUrl=self.plain.url,
                brokerServiceUrlTls=self.plain.url,
                proxy_through_service_url=proxied,
            )
            session.send(Command(type=Command.LOOKUP_RESPONSE, lookupTopicResponse=answer))
            return True

        self.broker.hook = hook

    def client(self) -> AbstractAsyncContextManager[Client]:
        return client(
            self.broker.url,
            tls=TlsOptions(ca_file=str(self._folder / "here.pem")),
            auth=Token("secret"),
        )


@pytest.mark.parametrize("kind", [pb.CommandLookupTopicResponse.Connect, pb.CommandLookupTopicResponse.Redirect])
async def test_a_broker_without_tls_is_not_followed_from_one_with_it(
    folder: Path, kind: pb.CommandLookupTopicResponse.LookupType, caplog: pytest.LogCaptureFixture
) -> None:
    async with Misled(folder) as brokers:
        brokers.answer(kind=kind)
        async with brokers.client() as made:
            for _ in range(3):
                with pytest.raises(PulsarError, match=r"has TLS and names.*brokerServiceUrlTls") as caught:
                    await made.open_producer(T)
                assert (caught.value.code, caught.value.retriable) == ("TlsError", False)
        assert brokers.plain.ever == []  # nobody connected, with or without a token
        assert caplog.text.count("brokerServiceUrlTls") == 1


async def test_a_broker_named_when_a_topic_moves_is_held_to_the_same(folder: Path) -> None:
    async with Misled(folder) as brokers:
        lost = asyncio.get_running_loop().create_future()
        async with brokers.client() as made:
            await made.open_producer(T, on_lost=lost.set_result)
            brokers.broker.unload(T, assigned=brokers.plain.url)
            async with asyncio.timeout(SECONDS):
                assert (await lost).code == "TlsError"
        assert brokers.plain.ever == []


async def test_behind_a_proxy_with_tls_a_broker_may_be_without(folder: Path) -> None:
    async with Misled(folder) as brokers:
        brokers.answer(kind=pb.CommandLookupTopicResponse.Connect, proxied=True)
        async with brokers.client() as made:
            await send(await made.open_producer(T), 0)
        assert len(brokers.broker.payloads(T)) == 1
        assert brokers.plain.ever == []


@contextlib.asynccontextmanager
async def issuer(folder: Path, answers: Mapping[str, Mapping[str, object]]) -> AsyncIterator[tuple[str, list[str]]]:
    """An issuer with TLS: its URL, and the paths that were posted to. An answer with `to` is a redirect."""
    posted: list[str] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            posted.append(request.path)
        answer = answers[request.path]
        if "to" in answer:
            raise web.HTTPFound(str(answer["to"]))
        return web.json_response({key: str(value).replace("HERE", url) for key, value in answer.items()})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "here.pem", folder / "here.key")
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield url, posted
    finally:
        await runner.cleanup()


KNOWN = "/.well-known/openid-configuration"


async def test_an_issuer_with_tls_is_not_followed_to_an_endpoint_without_it(folder: Path) -> None:
    tls = TlsOptions(ca_file=str(folder / "here.pem"))
    tokens: dict[str, dict[str, object]] = {"/token": {"access_token": "T", "expires_in": 100}}
    async with issuer(folder, {KNOWN: {"token_endpoint": "HERE/token"}, **tokens}) as (url, posted):
        assert await OAuth2(url, "id", "secret", tls=tls).data() == b"T"
        assert posted == ["/token"]
    async with issuer(folder, {KNOWN: {"token_endpoint": "http://127.0.0.1:1/token"}}) as (url, posted):
        with pytest.raises(PulsarError, match=r"names http://127\.0\.0\.1:1/token, which has no TLS") as caught:
            await OAuth2(url, "id", "secret", tls=tls).data()
        assert (caught.value.code, caught.value.retriable, posted) == ("AuthFailed", False, [])


async def test_what_an_issuer_with_tls_redirects_to_has_tls_too(folder: Path) -> None:
    plain = web.Application()
    plain.router.add_get("/known", _known)
    runner = web.AppRunner(plain)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        answers = {KNOWN: {"to": f"http://127.0.0.1:{runner.addresses[0][1]}/known"}}
        async with issuer(folder, answers) as (url, posted):
            with pytest.raises(PulsarError, match="has no TLS"):
                await OAuth2(url, "id", "secret", tls=TlsOptions(ca_file=str(folder / "here.pem"))).data()
            assert posted == []
    finally:
        await runner.cleanup()


async def _known(_: web.Request) -> web.Response:
    return web.json_response({"token_endpoint": "https://127.0.0.1:1/token"})
