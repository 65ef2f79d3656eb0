"""The admin REST interface against a server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.gateway import run
from support.pulsar_admin import PulsarAdmin
from support.waiting import until

from kop.pulsar_client import rest
from kop.pulsar_client.admin import Retention, topic_path
from kop.pulsar_client.auth import Credentials, Token
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.rest import ATTEMPTS, STATUS
from kop.pulsar_client.tls import TlsOptions

TOPIC = "persistent://t/ns/x"

# -- a server that answers what it is told


class Fake:
    """Answers each request with the next of its answers; the last one stays. Keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = []
        self.asked: list[tuple[str, str, str, bytes]] = []
        """(method, raw path with query, Authorization, body)"""
        self.url = ""

    def then(self, status: int = 200, body: Any = None, **headers: str) -> Fake:
        """Add an answer: JSON, or the text of a str."""

        async def answer(_: web.BaseRequest) -> web.Response:
            if isinstance(body, str):
                return web.Response(status=status, text=body, headers=headers)
            return web.Response(status=status, body=b"" if body is None else json.dumps(body).encode(), headers=headers)

        self.answers.append(answer)
        return self

    def then_hang_up(self) -> Fake:
        """Read the request and close the connection."""

        async def answer(request: web.BaseRequest) -> web.Response:
            assert request.transport
            request.transport.abort()
            return web.Response()

        self.answers.append(answer)
        return self

    def then_never(self) -> Fake:
        """Do not answer."""

        async def answer(_: web.BaseRequest) -> web.Response:
            await asyncio.sleep(3600)  # for ever
            return web.Response()

        self.answers.append(answer)
        return self

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.asked.append((request.method, request.raw_path, request.headers.get("Authorization", ""), body))
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return await answer(request)


@asynccontextmanager
async def fake(tls: ssl.SSLContext | None = None) -> AsyncIterator[Fake]:
    server = Fake()
    runner = web.ServerRunner(web.Server(server), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    port = runner.addresses[0][1]
    server.url = f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def refusal(call: Awaitable[Any]) -> PulsarError:
    with pytest.raises(PulsarError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("status", sorted(STATUS))
def test_each_status_is_a_code(status: int) -> None:
    code, retriable = STATUS[status]

    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            server.then(status, {"reason": "because"})
            error = await refusal(admin.create_plain(TOPIC, {}))
            assert (error.code, error.retriable) == (code, retriable)
            assert f"PUT /admin/v2/persistent/t/ns/x: {status} because" in error.message

    run(main())


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_what_may_pass_is_asked_again(status: int) -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            server.then(status).then_hang_up().then(200, ["standalone"])
            assert await admin.clusters() == ["standalone"]
            assert len(server.asked) == 3

    run(main())


def test_what_does_not_pass_ends_after_some_attempts() -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            server.then(503, {"reason": "not yet"})
            assert (await refusal(admin.clusters())).code == "ServiceUnavailable"
            assert len(server.asked) == ATTEMPTS

    run(main())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422])
def test_a_refusal_is_not_asked_again(status: int) -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            server.then(status, {"reason": "no"})
            assert not (await refusal(admin.clusters())).retriable
            assert len(server.asked) == 1

    run(main())


@pytest.mark.parametrize(
    "reason",
    [
        "Can't find owner for topic persistent://t/ns/x",
        "Failed to find ownership for topic:persistent://t/ns/x",
        "Failed to find ownership for ServiceUnit:t/ns/0x00000000_0x40000000",
        "Finding owner for ServiceUnit t/ns/0x00000000_0x40000000 timed out",
    ],
)
def test_a_topic_without_an_owner_is_asked_for_again(reason: str) -> None:
    """A bundle that is unloaded has no owner for a moment: status 412, as refusals that do not pass."""

    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            server.then(412, {"reason": reason}).then(200, True)
            assert await admin.get_deduplication(TOPIC)
            assert len(server.asked) == 2
            server.then(412, {"reason": reason})
            server.answers.pop(0)
            error = await refusal(admin.get_deduplication(TOPIC))
            assert (error.code, error.retriable) == ("ServiceUnavailable", True)

    run(main())


@pytest.mark.parametrize("how", ["hang up", "500", "503"])
def test_what_may_have_been_done_is_not_done_twice(how: str) -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            (server.then_hang_up() if how == "hang up" else server.then(int(how))).then(204)
            error = await refusal(admin.create_partitioned(TOPIC, 2, {"id": "a"}))
            assert error.retriable
            assert len(server.asked) == 1

    run(main())


def test_what_was_surely_not_done_is_asked_again() -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(f"http://127.0.0.1:1,{server.url}") as admin:
            server.then(429).then(204)
            await admin.create_partitioned(TOPIC, 2, {"id": "ü"})
            assert len(server.asked) == 2
            method, path, _, body = server.asked[0]
            assert (method, path) == ("PUT", "/admin/v2/persistent/t/ns/x/partitions")
            assert json.loads(body) == {"partitions": 2, "properties": {"id": "ü"}}

    run(main())


def test_no_server_is_a_lost_connection_that_names_it() -> None:
    async def main() -> None:
        async with PulsarAdmin("http://127.0.0.1:1") as admin:
            error = await refusal(admin.clusters())
            assert (error.code, error.retriable) == ("ConnectionLost", True)
            assert "http://127.0.0.1:1" in error.message

    run(main())


def test_the_time_limit_holds_for_the_whole_call() -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url, timeout=1.0) as admin:
            server.then_never()
            begin = time.monotonic()
            error = await refusal(admin.clusters())
            assert 0.9 < time.monotonic() - begin < 60
            assert (error.code, error.retriable) == ("Timeout", True)
            assert "within 1 s" in error.message

            async def says_more_than_no_answer() -> bool:
                server.answers.clear()
                server.then(503, {"reason": "starting"}).then_never()
                # Not where this process, the server in it, stands still until the time is over.
                return "starting" in (await refusal(admin.clusters())).message

            await until(says_more_than_no_answer)

    run(main())


def test_a_topic_of_many_partitions_may_take_longer() -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url, timeout=0.1) as admin:
            for call in (partial(admin.delete_partitioned, "persistent://public/default/t"), partial(created, admin)):
                server.answers.clear()
                server.then_never()
                error = await refusal(call())
                assert (error.code, error.retriable) == ("Timeout", True)
                assert "within 0.6 s" in error.message

    async def created(admin: PulsarAdmin) -> None:
        await admin.create_partitioned("persistent://public/default/t", 400, {})

    run(main())


def test_a_server_that_says_nothing_is_left_for_the_next_url() -> None:
    async def main() -> None:
        async with fake() as silent, fake() as server:
            silent.then_never()
            server.then(body=["standalone"])
            async with PulsarAdmin(f"{silent.url},{server.url}", timeout=1.0) as admin:
                assert (await refusal(admin.clusters())).code == "Timeout"
                answered = await until(lambda: clusters(admin))  # a slow machine may take a server for a silent one
                assert answered == ["standalone"]

    async def clusters(admin: PulsarAdmin) -> list[str]:
        try:
            return await admin.clusters()
        except PulsarError as error:
            if error.code != "Timeout":
                raise
            return []

    run(main())


def test_a_server_that_answers_others_is_not_left_because_of_a_slow_answer() -> None:
    async def main() -> None:
        async with fake() as server, fake() as hung, fake() as other:
            server.then(307, Location=f"{hung.url}/admin/v2/clusters")
            hung.then_never()
            other.then(body=["other"])

            async def asked_twice() -> bool:
                async with PulsarAdmin(f"{server.url},{other.url}", timeout=1.0) as admin:
                    assert (await refusal(admin.clusters())).code == "Timeout"
                    if not hung.asked:  # this process, the servers in it, stood still
                        return False
                    assert (await refusal(admin.clusters())).code == "Timeout"
                    return True

            await until(asked_twice)
            assert not other.asked

    run(main())


def test_a_server_that_takes_no_connection_is_left_for_the_next_url_within_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest, "CONNECT_SECONDS", 1.0)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as fillers:
            address = full.getsockname()
            for _ in range(2):  # what comes behind them gets no answer to its first packet
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(address)
            async with (
                fake() as server,
                PulsarAdmin(f"http://127.0.0.1:{address[1]},{server.url}", timeout=90) as admin,
            ):
                server.then(204)
                await admin.create_partitioned(TOPIC, 2, {})
                assert len(server.asked) == 1

    run(main())


def test_redirects_keep_method_body_and_token_and_end() -> None:
    async def main() -> None:
        async with fake() as first, fake() as second, PulsarAdmin(first.url, Token("T")) as admin:
            first.then(307, Location=f"{second.url}/admin/v2/persistent/t/ns/a%20b/retention?authoritative=true")
            second.then(204)
            await admin.set_retention("persistent://t/ns/a b", Retention(10, -1))
            method, path, token, body = second.asked[0]
            assert (method, path) == ("POST", "/admin/v2/persistent/t/ns/a%20b/retention?authoritative=true")
            assert token == "Bearer T"
            assert json.loads(body) == {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}
            second.answers.clear()
            second.then(302, Location="/elsewhere")
            error = await refusal(admin.create_plain(TOPIC, {}))
            assert error.code == "BadAnswer"
            assert "sent on more than 5 times" in error.message
            first.answers.clear()
            first.then(307, Location="file:///etc/passwd")
            assert "not safe" in (await refusal(admin.clusters())).message

    run(main())


class Renewed(Credentials):
    """Credentials that are new after each refusal."""

    method = "token"

    def __init__(self) -> None:
        self.number = 0

    async def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer T{self.number}"}

    def forget(self) -> None:
        self.number += 1


def test_refused_credentials_are_renewed_once() -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url, Renewed()) as admin:
            server.then(401).then(204).then(401, {"reason": "Expired"})
            await admin.create_plain(TOPIC, {})
            assert [asked[2] for asked in server.asked] == ["Bearer T0", "Bearer T1"]
            error = await refusal(admin.create_plain(TOPIC, {}))
            assert error.code == "Unauthorized"
            assert "token, user or password is missing, wrong or expired" in error.message
            assert len(server.asked) == 4

    run(main())


def test_a_server_that_is_no_pulsar_is_no_missing_topic() -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            server.then(404, "<html>nginx</html>").then(200, "<html>nginx</html>").then(200, [1]).then(204)
            for what in ("no such page", "no JSON", "an object"):
                error = await refusal(admin.partitioned_metadata(TOPIC))
                assert (error.code, error.retriable) == ("BadAnswer", False)
                assert what in error.message

    run(main())


def test_of_a_stack_trace_only_the_message_is_shown() -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            server.then(500, {"reason": "\n --- An unexpected error\n\nMessage: it broke\n\nStacktrace:\n\nat x.y\n"})
            error = await refusal(admin.create_plain(TOPIC, {}))
            assert error.message.endswith("500 it broke")

    run(main())


def test_a_closed_client_says_so() -> None:
    async def main() -> None:
        admin = PulsarAdmin("http://127.0.0.1:1")
        await admin.close()
        assert (await refusal(admin.clusters())).code == "Closed"

    run(main())


@pytest.mark.parametrize("url", ["", "pulsar://h:6650", "h:8080", "http://", "http://h/admin/v2", "http://h:x"])
def test_an_url_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="looks like http://HOST:8080"):
        PulsarAdmin(url)


def test_an_urls_password_is_not_shown() -> None:
    with pytest.raises(ValueError, match="admin URL") as caught:
        PulsarAdmin("http://me:s3cret@h:8080")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["x", "t/ns/x", "persistent://t/ns", "persistent://t/ns/a/b", "http://t/ns/x", "://"])
def test_names_that_are_not_full_are_refused(name: str) -> None:
    with pytest.raises(PulsarError, match="persistent://TENANT/NAMESPACE/TOPIC") as caught:
        topic_path(name)
    assert caught.value.code == "InvalidTopicName"


def test_names_are_percent_encoded() -> None:
    assert topic_path("persistent://t/ns/ä b%?#&") == "persistent/t/ns/%C3%A4%20b%25%3F%23%26"


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for `localhost`."""
    if not shutil.which("openssl"):
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_tls_trusts_the_named_authority_and_checks_the_host(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(cert, key)

    async def main() -> None:
        async with fake(server_tls) as server:
            server.then(200, ["standalone"])
            trusted = TlsOptions(ca_file=str(cert))
            async with PulsarAdmin(server.url, tls=trusted) as admin:
                assert await admin.clusters() == ["standalone"]
            by_address = server.url.replace("localhost", "127.0.0.1")
            for url, tls in ((server.url, None), (by_address, trusted)):
                async with PulsarAdmin(url, tls=tls) as admin:
                    error = await refusal(admin.clusters())
                    assert (error.code, error.retriable) == ("TlsError", False)
                    assert "certificate" in error.message.lower()
            async with PulsarAdmin(by_address, tls=TlsOptions(ca_file=str(cert), server_hostname="localhost")) as admin:
                assert await admin.clusters() == ["standalone"]
            server.answers.clear()
            server.then(307, Location="http://127.0.0.1:1/x")
            async with PulsarAdmin(server.url, Token("T"), trusted) as admin:
                assert "not safe" in (await refusal(admin.clusters())).message

    run(main())


def test_the_time_is_pulsars() -> None:
    async def main() -> None:
        async with fake() as server, PulsarAdmin(server.url) as admin:
            assert abs(admin.now_ms() - time.time() * 1000) < 60_000
            for date in ("Tue, 14 Nov 2023 22:13:20 GMT", "yesterday"):  # of the latter nothing is learnt
                server.answers.clear()
                server.then(200, ["standalone"], Date=date)
                await admin.clusters()
                assert 1_700_000_000_000 <= admin.now_ms() < 1_700_000_060_000

    run(main())
