"""Logins at a listener, from a client's side: PLAIN, sessions that end, and what strangers are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiokafka
import jwt
import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import ec
from kafka import KafkaAdminClient
from support.gateway import RawClient, gateway, run

from kop.app import Serving
from kop.client.properties import TokenFile
from kop.config import Config
from kop.errors import ConfigError, ErrorCode
from kop.security import records
from kop.security.dialing import Dialer, broker_login
from kop.security.login_turns import LoginTurns
from kop.security.passwords import CHECKS_AT_ONCE
from kop.security.token_keys import KeySources
from kop.security.users import Mechanism, ScramCredential, Users
from kop.server.endpoints import endpoints
from kop.server.securing import LoginParts, listener_security
from kop.server.settings import ListenerSettings, ServerSettings

PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_alice="correct horse" user_carol="battery staple";'
)
DELAY_MS = 30


@contextlib.asynccontextmanager
async def serving_logins(path: Path, **more: str) -> AsyncIterator[Serving]:
    """Serve SASL_PLAINTEXT with PLAIN and SCRAM: alice and carol of the settings, bob of the state topic."""
    settings = {
        "listeners": "LOGIN://127.0.0.1:0",
        "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.login.plain.sasl.jaas.config": PLAIN_USERS,
        "connection.failed.authentication.delay.ms": str(DELAY_MS),
    } | more
    async with gateway(path, **{name.replace(".", "_"): value for name, value in settings.items()}) as serving:
        await put_user(serving, "bob", "builder")
        yield serving


async def put_user(serving: Serving, name: str, password: str | None) -> None:
    made = None if password is None else ScramCredential.of_password(Mechanism.SCRAM_SHA_256, password)
    await serving.gateway.security.write(lambda: [records.of_user(name, Mechanism.SCRAM_SHA_256, made)])


async def client_of(serving: Serving) -> RawClient:
    return await RawClient.open(*serving.listeners[0])


async def by_plain(client: RawClient, name: str, password: str, version: int = 2) -> Any:
    """Log in; return the last answer."""
    answer = await client.call(17, 1, mechanism="PLAIN")
    assert answer.error_code == 0
    return await client.call(36, version, auth_bytes=f"\0{name}\0{password}".encode())


async def is_closed(client: RawClient) -> bool:
    try:
        return await client.closed()
    finally:
        await client.close()


def count(serving: Serving, mechanism: str) -> float:
    registry = serving.gateway.metrics.registry
    return registry.get_sample_value("kop_login_failures_total", {"mechanism": mechanism}) or 0.0


def test_users_of_the_settings_and_of_the_state_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving_logins(tmp_path) as serving:
            loop = asyncio.get_running_loop()
            for name, password in (("alice", "correct horse"), ("bob", "builder")):
                client = await client_of(serving)
                assert (await by_plain(client, name, password)).error_code == 0
                assert (await client.call(3, 1, topics=[])).brokers
                await client.close()
            told = set()
            for name, password in (("alice", "wrong"), ("bob", "wrong"), ("nobody", "wrong")):
                client = await client_of(serving)
                began = loop.time()
                answer = await by_plain(client, name, password)
                assert loop.time() - began >= DELAY_MS / 1000 - 0.002  # its clock has milliseconds
                told.add((answer.error_code, answer.error_message, bytes(answer.auth_bytes)))
                assert await is_closed(client)
            text = "Authentication failed: Invalid username or password"
            assert told == {(ErrorCode.SASL_AUTHENTICATION_FAILED, text, b"")}
            assert count(serving, "PLAIN") == 3
            client = await client_of(serving)
            assert (await client.call(17, 1, mechanism="NTLM")).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert await is_closed(client)
            assert count(serving, "unknown") == 1
            line = 'PlainLoginModule required username="bob" password="{}";'
            for password, good in (("builder", True), ("wrong", False)):  # as brokers log in at one another
                dialer = Dialer(None, broker_login("PLAIN", line.format(password)), lambda: "nonce")
                if not good:
                    with pytest.raises(ConnectionError, match="login as bob: the other broker refuses it"):
                        await dialer.open(*serving.listeners[0])
                    continue
                client = RawClient(*await dialer.open(*serving.listeners[0]))
                assert (await client.call(3, 1, topics=[])).brokers
                await client.close()

    run(main())


def test_raw_tokens_and_a_user_with_another_password(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving_logins(tmp_path) as serving:
            for password, good in (("wrong", False), ("builder", True)):
                client = await client_of(serving)
                await client.call(17, 0, mechanism="PLAIN")
                token = f"\0bob\0{password}".encode()
                client.writer.write(len(token).to_bytes(4, "big") + token)
                client.send(18, 0)  # in the same write
                if not good:
                    assert await is_closed(client)
                    continue
                assert await client.receive_frame() == b""
                await client.receive(18, 0)
            await put_user(serving, "bob", "another")
            serving.server.sweep()  # as it is called once a second
            assert await is_closed(client)

    run(main())


def test_libraries_log_in_by_plain(tmp_path: Path) -> None:
    def brokers(address: str) -> tuple[int, int]:
        librdkafka = AdminClient(
            {
                "bootstrap.servers": address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": "correct horse",
            }
        )
        python = KafkaAdminClient(
            bootstrap_servers=address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="bob",
            sasl_plain_password="builder",
        )
        try:
            return len(librdkafka.list_topics(timeout=10).brokers), len(python.describe_cluster()["brokers"])
        finally:
            python.close()

    async def main() -> None:
        async with serving_logins(tmp_path) as serving:
            host, port = serving.listeners[0]
            assert await asyncio.to_thread(brokers, f"{host}:{port}") == (1, 1)

    run(main())


# -- sessions that end


ENDING = {"listener.name.login.plain.connections.max.reauth.ms": "60000"}


def test_a_client_logs_in_again_as_the_same_user(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving_logins(tmp_path, **ENDING) as serving:
            for version, told in ((0, 0), (1, 60_000), (2, 60_000)):
                client = await client_of(serving)
                answer = await by_plain(client, "alice", "correct horse", version)
                assert getattr(answer, "session_lifetime_ms", 0) == told
                await client.close()
            client = await client_of(serving)  # again, and too soon
            await by_plain(client, "alice", "correct horse")
            assert (await by_plain(client, "alice", "correct horse")).error_code == 0
            assert (await client.call(3, 1, topics=[])).brokers
            assert (await client.call(17, 1, mechanism="PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert (await client.call(3, 1, topics=[])).brokers
            await client.close()
            client = await client_of(serving)  # as somebody else
            await by_plain(client, "alice", "correct horse")
            answer = await by_plain(client, "carol", "battery staple")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await is_closed(client)
            client = await client_of(serving)  # by another mechanism
            await by_plain(client, "alice", "correct horse")
            assert (await client.call(17, 1, mechanism="SCRAM-SHA-256")).error_code == 0
            client.send(36, 2, auth_bytes=b"n,,n=alice,r=x")
            assert await is_closed(client)
            client = await client_of(serving)  # with a request between the steps
            await by_plain(client, "alice", "correct horse")
            await client.call(17, 1, mechanism="PLAIN")
            assert (await client.call(18, 0)).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await is_closed(client)

    run(main())


@pytest.mark.parametrize("version", [0, 2])
def test_the_next_request_after_the_session_closes_the_connection(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        ending = {"listener.name.login.plain.connections.max.reauth.ms": "1"}
        async with serving_logins(tmp_path, **ending) as serving:
            loop = asyncio.get_running_loop()
            client = await client_of(serving)
            await by_plain(client, "alice", "correct horse", version)
            ended = loop.create_future()
            loop.call_later(0.005, ended.set_result, None)
            await ended
            again = await by_plain(client, "alice", "correct horse", version)
            assert again.error_code == 0, "a new login is taken"
            ended = loop.create_future()
            loop.call_later(0.005, ended.set_result, None)
            await ended
            client.send(3, 1, topics=[])
            assert await is_closed(client)

    run(main())


def failed_logins(path: Path) -> list[dict[str, Any]]:
    """Return the audit lines, without what is the same in all."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["time"]
        same = {"broker": 1, "event": "login failed", "host": "127.0.0.1", "resource": "USER", "listener": "LOGIN"}
        assert {name: line.pop(name) for name in same} == same
    return lines


def failed(mechanism: str, name: str | None, reason: str, principal: str = "User:ANONYMOUS") -> dict[str, Any]:
    operation = "LOG_IN" if principal == "User:ANONYMOUS" else "LOG_IN_AGAIN"
    return dict(mechanism=mechanism, name=name, reason=reason, principal=principal, operation=operation)


def test_failed_logins_are_audited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = tmp_path / "audit.log"
    wrong = "Authentication failed: Invalid username or password"
    by_scram = (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    )
    hostile = '\n{"event": "allowed"}'

    async def main() -> None:
        async with serving_logins(tmp_path, **ENDING, **{"kop.audit.file": str(audit)}) as serving:
            for name, password in (("alice", "wrong"), ("nobody", "wrong"), (hostile, "wrong"), ("", "wrong")):
                client = await client_of(serving)
                await by_plain(client, name, password)
                await client.close()
            client = await client_of(serving)  # tokens without a header
            await client.call(17, 0, mechanism="PLAIN")
            client.writer.write((9).to_bytes(4, "big") + b"\0bob\0oops")
            assert await is_closed(client)
            client = await client_of(serving)
            await client.call(17, 1, mechanism="SCRAM-SHA-256")
            await client.call(36, 2, auth_bytes=b"n,,n=bob,r=x")
            await client.call(36, 2, auth_bytes=b"c=biws,r=x,p=AAAA")
            await client.close()
            for size in (0, 1, 2, 9):
                for is_due in (False, True):  # too short for a request; too short for a token
                    client = await client_of(serving)
                    if is_due:
                        await client.call(17, 0, mechanism="PLAIN")
                    client.writer.write((size.to_bytes(4, "big") + bytes(size)) * 2)
                    assert await is_closed(client)
            client = await client_of(serving)
            await client.call(17, 1, mechanism="NT\nLM")
            await client.close()
            client = await client_of(serving)  # as somebody else, then by another mechanism
            await by_plain(client, "alice", "correct horse")
            await by_plain(client, "carol", "battery staple")
            await client.close()
            client = await client_of(serving)
            await by_plain(client, "alice", "correct horse")
            await client.call(17, 1, mechanism="SCRAM-SHA-256")
            await client.close()

    run(main())
    assert failed_logins(audit) == [
        failed("PLAIN", "alice", wrong),
        failed("PLAIN", "nobody", wrong),
        failed("PLAIN", hostile, wrong),
        failed("PLAIN", None, "Authentication failed: username not specified"),
        failed("PLAIN", "bob", wrong),
        failed("SCRAM-SHA-256", "bob", by_scram),
        *(failed("PLAIN", None, f"Invalid SASL/PLAIN response: expected 3 tokens, got {parts}") for parts in (1, 2)),
        failed("PLAIN", None, "Authentication failed: username not specified"),
        failed("PLAIN", None, "Invalid SASL/PLAIN response: expected 3 tokens, got 10"),
        failed("NT\nLM", None, "there are the mechanisms PLAIN, SCRAM-SHA-256"),
        failed("PLAIN", "carol", "Cannot change principals during re-authentication", "User:alice"),
        failed("SCRAM-SHA-256", None, "it logs in again by another mechanism than PLAIN", "User:alice"),
    ]
    text = audit.read_text()
    assert not any(record.exc_info for record in caplog.records), "what is no request is no error here"
    assert not any(secret in text for secret in ('wrong"', "oops", "correct horse", "battery staple"))


def test_a_super_user_in_another_case_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:Alice;User:carol",
    }

    async def main() -> None:
        async with serving_logins(tmp_path, **settings) as serving:
            for name, password in (("alice", "correct horse"), ("carol", "battery staple"), ("alice", "correct horse")):
                client = await client_of(serving)
                assert (await by_plain(client, name, password)).error_code == 0
                await client.close()

    run(main())
    (line,) = [text for text in caplog.messages if "super user" in text]
    assert line.startswith("'User:alice' has logged in, who is no super user: super.users has 'User:Alice'")


# -- tokens


SIGNING = ec.generate_private_key(ec.SECP256R1())
OAUTH = "sasl.oauthbearer."
WITH_TOKENS = {
    "listener.name.login.sasl.enabled.mechanisms": "OAUTHBEARER",
    OAUTH + "expected.issuer": "https://issuer",
    OAUTH + "expected.audience": "kafka,other",
}


def token(seconds: float = 600, **more: str) -> str:
    named = {"sub": "alice", "iss": "https://issuer", "aud": "kafka", "exp": time.time() + seconds} | more
    return jwt.encode(named, SIGNING, "ES256")


def keys(path: Path) -> dict[str, str]:
    """Write the JWKS; return the settings that name it."""
    file = path / "keys.json"
    file.write_text(f'{{"keys": [{jwt.algorithms.ECAlgorithm.to_jwk(SIGNING.public_key())}]}}')
    return WITH_TOKENS | {OAUTH + "jwks.endpoint.url": f"file://{file}"}


async def by_token(client: RawClient, bearer: str) -> Any:
    await client.call(17, 1, mechanism="OAUTHBEARER")
    return await client.call(36, 2, auth_bytes=f"n,,\x01auth=Bearer {bearer}\x01\x01".encode())


def test_a_token_logs_in_until_it_ends(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"

    async def main() -> None:
        async with serving_logins(tmp_path, **keys(tmp_path), **{"kop.audit.file": str(audit)}) as serving:
            client = await client_of(serving)
            answer = await by_token(client, token())
            assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")
            assert 620_000 < answer.session_lifetime_ms <= 630_000, "clocks may differ by 30 s"
            assert (await by_token(client, token(900))).session_lifetime_ms > 920_000
            assert (await client.call(3, 1, topics=[])).brokers
            await client.close()
            client = await client_of(serving)  # it has ended, and clocks may differ
            answer = await by_token(client, token(-1))
            assert (answer.error_code, 0 < answer.session_lifetime_ms < 29_001) == (0, True)
            assert (await client.call(3, 1, topics=[])).brokers
            await client.close()
            client = await client_of(serving)
            answer = await by_token(client, token(iss="https://other"))
            assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b'{"status":"invalid_token"}')
            answer = await client.call(36, 2, auth_bytes=b"\x01")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == "the token is refused (invalid_token): it has another issuer"
            assert await is_closed(client)
            assert count(serving, "OAUTHBEARER") == 1
            client = await client_of(serving)
            await by_token(client, "no.token")
            await client.close()

    run(main())
    assert failed_logins(audit) == [
        failed("OAUTHBEARER", "alice", "the token is refused: it has another issuer"),
        failed("OAUTHBEARER", None, "the token is refused: it is malformed"),
    ]


def test_libraries_log_in_by_token(tmp_path: Path) -> None:
    class AsyncProvider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token()

    def brokers(address: str) -> tuple[int, int]:
        librdkafka = AdminClient(
            {
                "bootstrap.servers": address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: (token(), time.time() + 600),
            }
        )
        python = KafkaAdminClient(
            bootstrap_servers=address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=TokenFile(str(tmp_path / "token")),
        )
        try:
            return len(librdkafka.list_topics(timeout=10).brokers), len(python.describe_cluster()["brokers"])
        finally:
            python.close()

    async def main() -> None:
        (tmp_path / "token").write_text(token())
        async with serving_logins(tmp_path, **keys(tmp_path)) as serving:
            host, port = serving.listeners[0]
            assert await asyncio.to_thread(brokers, f"{host}:{port}") == (1, 1)
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=f"{host}:{port}",
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauth_token_provider=AsyncProvider(),
            ) as producer:
                assert (await producer.send_and_wait("t", b"v")).offset == 0

    run(main())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (WITH_TOKENS, "needs sasl.oauthbearer.jwks.endpoint.url"),
        (WITH_TOKENS | {OAUTH + "jwks.endpoint.url": "http://host/keys"}, "must be file:"),
        (
            WITH_TOKENS
            | {
                OAUTH + "expected.issuer": "",
                OAUTH + "expected.audience": "",
                OAUTH + "jwks.endpoint.url": "file:///x",
            },
            "needs sasl.oauthbearer.expected.issuer, sasl.oauthbearer.expected.audience",
        ),
        (
            WITH_TOKENS | {OAUTH + "jwks.endpoint.url": "file:///x", "kop.oauthbearer.allow.unsecured.tokens": "true"},
            "one of them",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, "has GSSAPI"),
        (
            {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": 'PlainLoginModule required user_="x";',
            },
            "without a name",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": "PlainLoginModule user_a=battery"},
            "not of the form",
        ),
        ({"listener.name.login.oauthbearer.ssl.key.password": "x"}, "may be given by mechanism"),
        ({"listener.name.other.plain.sasl.jaas.config": PLAIN_USERS}, "listeners has no OTHER"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        secured(
            {"listeners": "LOGIN://127.0.0.1:0", "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT"} | settings
        )
    assert "battery" not in str(caught.value)


@pytest.mark.parametrize(
    ("protocol", "line"),
    [
        ("PLAINTEXT", "takes all who reach *:1: no login is asked"),
        ("SASL_PLAINTEXT", "asks for a login without TLS"),
    ],
)
def test_certificates_are_no_login_without_tls(caplog: pytest.LogCaptureFixture, protocol: str, line: str) -> None:
    secured(
        {"listeners": "A://*:1", "listener.security.protocol.map": f"A:{protocol}", "ssl.client.auth": "required"},
    )
    assert [line in each for each in caplog.messages] == [True], caplog.messages


def secured(settings: dict[str, str]) -> None:
    """Make the security of a listener."""
    config = Config.load(overrides=settings, environ={})
    (endpoint,) = endpoints(config.of(ServerSettings))
    nobody: Any = SimpleNamespace(users=Users(), secret=b"")
    listener_security(
        endpoint,
        config.of(ListenerSettings, listener=endpoint.key),
        config.of(ServerSettings),
        LoginParts(nobody, LoginTurns(CHECKS_AT_ONCE), KeySources()),
        partial(config.of_mechanism, ListenerSettings, endpoint.key),
    )
