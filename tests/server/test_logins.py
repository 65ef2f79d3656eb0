"""Logins at a listener, from a client's side: PLAIN, sessions that end, and what strangers are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from support.gateway import RawClient, gateway, run

from kop.app import Serving
from kop.errors import ConfigError, ErrorCode
from kop.security import records
from kop.security.users import Mechanism, ScramCredential

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
                assert loop.time() - began >= DELAY_MS / 1000
                told.add((answer.error_code, answer.error_message, bytes(answer.auth_bytes)))
                assert await is_closed(client)
            text = "Authentication failed: Invalid username or password"
            assert told == {(ErrorCode.SASL_AUTHENTICATION_FAILED, text, b"")}
            assert count(serving, "PLAIN") == 3
            client = await client_of(serving)
            assert (await client.call(17, 1, mechanism="NTLM")).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert await is_closed(client)
            assert count(serving, "unknown") == 1

    run(main())


def test_tokens_without_headers(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving_logins(tmp_path) as serving:
            for password, good in (("builder", True), ("wrong", False)):
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
                await client.close()

    run(main())


def test_a_user_with_another_password_is_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving_logins(tmp_path) as serving:
            client = await client_of(serving)
            assert (await by_plain(client, "bob", "builder")).error_code == 0
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


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listener.name.login.plain.sasl.jaas.config": 'PlainLoginModule required user_="x";'}, "without a name"),
        ({"listener.name.login.plain.sasl.jaas.config": "PlainLoginModule user_a=sec"}, "not of the form"),
        ({"listener.name.login.oauthbearer.ssl.key.password": "x"}, "may be given by mechanism"),
        ({"listener.name.other.plain.sasl.jaas.config": PLAIN_USERS}, "listeners has no OTHER"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, settings: dict[str, str], why: str) -> None:
    async def main() -> None:
        async with serving_logins(tmp_path, **settings):
            pass

    with pytest.raises(ConfigError, match=why) as caught:
        run(main())
    assert "battery" not in str(caught.value)
