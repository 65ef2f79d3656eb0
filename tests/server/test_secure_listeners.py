"""A SASL_SSL listener beside a PLAINTEXT one: clients of several makes, strangers, and what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from support.certificates import self_signed
from support.gateway import RawClient, frame, gateway, run
from support.waiting import until

from kop.app import Serving
from kop.errors import ConfigError, ErrorCode
from kop.security import records
from kop.security.sasl.scram import ScramLogin
from kop.security.users import Mechanism, ScramCredential

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return self_signed(tmp_path_factory.mktemp("tls"), "server", "DNS:localhost,IP:127.0.0.1")


@pytest.fixture(scope="module")
def keystore(certificate: tuple[str, str]) -> str:
    path = Path(certificate[0]).with_name("keystore.pem")
    path.write_text(Path(certificate[0]).read_text() + Path(certificate[1]).read_text())
    return str(path)


@contextlib.asynccontextmanager
async def secured(path: Path, keystore: str, **more: str) -> AsyncIterator[Serving]:
    """Serve PLAINTEXT and SASL_SSL, and SASL_PLAINTEXT, with the user alice."""
    settings = {
        "listeners": "OPEN://127.0.0.1:0,SECURE://127.0.0.1:0,LOGIN://127.0.0.1:0",
        "listener.security.protocol.map": "OPEN:PLAINTEXT,SECURE:SASL_SSL,LOGIN:SASL_PLAINTEXT",
        "listener.name.secure.ssl.keystore.location": keystore,
        "connection.failed.authentication.delay.ms": "20",
    } | more
    async with gateway(path, **{name.replace(".", "_"): value for name, value in settings.items()}) as serving:
        await put_user(serving, "alice", PASSWORD)
        yield serving


async def put_user(serving: Serving, name: str, password: str | None) -> None:
    def decide() -> Any:
        return [
            records.of_user(name, each, None if password is None else ScramCredential.of_password(each, password))
            for each in Mechanism
        ]

    await serving.gateway.security.write(decide)


OPEN, SECURE, LOGIN = 0, 1, 2


def port(serving: Serving, listener: int) -> int:
    return serving.listeners[listener][1]


def trusting(certificate: tuple[str, str]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate[0])


# -- clients


def librdkafka(serving: Serving, certificate: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"localhost:{port(serving, SECURE)}",
        "broker.address.family": "v4",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "ssl.ca.location": certificate[0],
        **more,
    }


def through_librdkafka(settings: dict[str, Any], payload: bytes) -> bytes:
    producer = Producer(settings)
    producer.produce("t", payload)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["t"])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        value = message.value()
        assert value is not None
        return bytes(value)
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka_writes_and_reads(
    tmp_path: Path, certificate: tuple[str, str], keystore: str, mechanism: str
) -> None:
    payload = os.urandom(700_000)

    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            settings = librdkafka(serving, certificate, **{"sasl.mechanism": mechanism})
            assert await asyncio.to_thread(through_librdkafka, settings, payload) == payload

    run(main())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_aiokafka_writes_and_reads(
    tmp_path: Path, certificate: tuple[str, str], keystore: str, version: ssl.TLSVersion
) -> None:
    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            context = trusting(certificate)
            context.minimum_version = context.maximum_version = version
            settings = {
                "bootstrap_servers": f"localhost:{port(serving, SECURE)}",
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": "alice",
                "sasl_plain_password": PASSWORD,
                "ssl_context": context,
            }
            async with AIOKafkaProducer(**settings, max_request_size=4 << 20) as producer:
                values = [os.urandom(100_000) for _ in range(30)]
                for value in values:
                    await producer.send("t", value)
            async with AIOKafkaConsumer("t", **settings, auto_offset_reset="earliest") as consumer:
                assert [(await consumer.getone()).value for _ in values] == values

    run(main())


def test_clients_are_told_the_listener_by_which_they_came(
    tmp_path: Path, certificate: tuple[str, str], keystore: str
) -> None:
    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            for listener in (OPEN, LOGIN):
                client = await RawClient.open("127.0.0.1", port(serving, listener))
                if listener == LOGIN:
                    await logged_in(client)
                (broker,) = (await client.call(3, 9, topics=[], allow_auto_topic_creation=False)).brokers
                assert broker.port == port(serving, listener)
                await client.close()

    run(main())


# -- logging in, by hand


async def logged_in(client: RawClient, name: str = "alice", password: str = PASSWORD) -> Any:
    """Log in; return the last answer."""
    scram = ScramLogin("SCRAM-SHA-256", name, password, "nonce")
    answer = await client.call(17, 1, mechanism="SCRAM-SHA-256")
    assert answer.error_code == 0
    answer = await client.call(36, 2, auth_bytes=scram.first())
    assert answer.error_code == 0
    return await client.call(36, 2, auth_bytes=scram.final(bytes(answer.auth_bytes)))


async def is_closed(client: RawClient) -> bool:
    """Wait for the end that the gateway makes, and close this side, too."""
    try:
        async with asyncio.timeout(60):
            return await client.reader.read(1) == b""
    except ConnectionError:
        return True
    finally:
        client.writer.transport.abort()
        await client.close()


def test_the_order_of_requests_before_a_login(tmp_path: Path, keystore: str) -> None:
    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:

            async def fresh() -> RawClient:
                return await RawClient.open("127.0.0.1", port(serving, LOGIN))

            client = await fresh()  # nothing but the three may come
            client.send(3, 1, topics=[])
            assert await is_closed(client)
            client = await fresh()  # one ApiVersions
            assert (await client.call(18, 0)).error_code == 0
            client.send(18, 0)
            assert await is_closed(client)
            client = await fresh()  # an unknown mechanism
            answer = await client.call(17, 1, mechanism="GSSAPI")
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert answer.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
            assert await is_closed(client)
            client = await fresh()  # a request between the steps
            await client.call(17, 1, mechanism="SCRAM-SHA-256")
            versions = await client.call(18, 0)
            assert versions.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await is_closed(client)
            client = await fresh()  # a frame that no login has
            client.writer.write(struct.pack(">i", 524_289) + b"\0\x24\0\1")
            assert await is_closed(client)
            client = await fresh()  # a wrong password, an unknown user: the same answer
            wrong = await logged_in(client, password="wrong")
            assert await is_closed(client)
            client = await fresh()
            unknown = await logged_in(client, name="nobody")
            assert await is_closed(client)
            assert wrong.error_code == unknown.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert wrong.error_message == unknown.error_message
            client = await fresh()  # all is served then, and a second login is not taken
            assert (await logged_in(client)).error_code == 0
            answer = await client.call(17, 1, mechanism="SCRAM-SHA-256")
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert (await client.call(3, 1, topics=[])).brokers
            await client.close()

    run(main())


def test_a_huge_token_ends_the_login(tmp_path: Path, keystore: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            caplog.clear()
            client = await RawClient.open("127.0.0.1", port(serving, LOGIN))
            scram = ScramLogin("SCRAM-SHA-256", "alice", "wrong", "nonce")
            await client.call(17, 1, mechanism="SCRAM-SHA-256")
            answer = await client.call(36, 2, auth_bytes=scram.first())
            final = scram.final(bytes(answer.auth_bytes))
            answer = await client.call(36, 2, auth_bytes=final.replace(b",p=", b",x=" + b"x" * 17_000 + b",p="))
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await is_closed(client)
            assert len(closings(caplog)) == 1
            # A version of ApiVersions that is not served does not use up the one that is.
            client = await RawClient.open("127.0.0.1", port(serving, LOGIN))
            client.send_body(18, 99, b"")
            assert (await client.receive_frame())[4:6] == b"\0\x23"
            assert (await client.call(18, 0)).error_code == 0
            await client.close()

    run(main())


def test_tokens_without_headers(tmp_path: Path, keystore: str) -> None:
    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            for password, good in ((PASSWORD, True), ("wrong", False)):
                client = await RawClient.open("127.0.0.1", port(serving, LOGIN))
                scram = ScramLogin("SCRAM-SHA-256", "alice", password, "nonce")
                await client.call(17, 0, mechanism="SCRAM-SHA-256")
                token = scram.first()
                client.writer.write(len(token).to_bytes(4, "big") + token)
                token = scram.final(await client.receive_frame())
                # The first request comes in the same write as the last token.
                client.writer.write(len(token).to_bytes(4, "big") + token + frame(18, 0, 7, b""))
                if good:
                    scram.check(await client.receive_frame())
                    assert (await client.receive_frame())[:4] == b"\0\0\0\7"
                    await client.close()
                else:
                    assert await is_closed(client)

    run(main())


def test_everything_in_one_write(tmp_path: Path, keystore: str) -> None:
    """A client need not wait for answers of which it knows what they say; the last token needs its answer here."""

    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            client = await RawClient.open("127.0.0.1", port(serving, LOGIN))
            scram = ScramLogin("SCRAM-SHA-256", "alice", PASSWORD, "nonce")
            client.send(18, 0)
            client.send(17, 1, mechanism="SCRAM-SHA-256")
            client.send(36, 1, auth_bytes=scram.first())
            for api, version in ((18, 0), (17, 1)):
                await client.receive(api, version)
            _, answer = await client.receive(36, 1)
            client.send(36, 1, auth_bytes=scram.final(bytes(answer.auth_bytes)))
            client.send(3, 1, topics=[])
            _, answer = await client.receive(36, 1)
            assert answer.error_code == 0
            _, metadata = await client.receive(3, 1)
            assert metadata.brokers
            await client.close()

    run(main())


def test_a_user_that_is_gone_is_out_within_a_second(tmp_path: Path, keystore: str) -> None:
    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            await put_user(serving, "bob", "b")
            clients = []
            for name, password in (("alice", PASSWORD), ("bob", "b")):
                client = await RawClient.open("127.0.0.1", port(serving, LOGIN))
                assert (await logged_in(client, name, password)).error_code == 0
                clients.append(client)
            changed = asyncio.get_running_loop().time()
            await put_user(serving, "bob", "another")
            assert await is_closed(clients[1])
            assert asyncio.get_running_loop().time() - changed < 1
            assert (await clients[0].call(3, 1, topics=[])).brokers
            await clients[0].close()

    run(main())


# -- TLS


def test_what_is_no_tls_and_who_does_not_trust(
    tmp_path: Path, certificate: tuple[str, str], keystore: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            caplog.clear()
            client = await RawClient.open("127.0.0.1", port(serving, SECURE))
            client.send(18, 0)
            with contextlib.suppress(ConnectionError):
                await client.reader.read()
            await client.close()
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection("localhost", port(serving, SECURE), ssl=ssl.create_default_context())
            await until(lambda: len(closings(caplog)) == 2, seconds=10)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection("localhost", port(serving, OPEN), ssl=trusting(certificate))
            await until(lambda: len(closings(caplog)) == 3, seconds=10)
            assert await reason_count(serving, "tls") == 2
            assert await reason_count(serving, "foreign_protocol") == 1

    run(main())
    plain, untrusted, reverse = closings(caplog)
    assert "set security.protocol to SSL or SASL_SSL" in plain
    assert "trusts the CA" in untrusted or "give it the CA" in untrusted
    assert "this is a TLS hello" in reverse


def closings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("closing the connection")]


async def reason_count(serving: Serving, reason: str) -> float:
    registry = serving.gateway.metrics.registry
    return registry.get_sample_value("kop_bad_frames_total", {"reason": reason}) or 0.0


def test_a_half_open_handshake_ends(
    tmp_path: Path, keystore: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kop.server.tls.HANDSHAKE_SECONDS", 0.1)
    monkeypatch.setattr("kop.server.connection.LOGIN_SECONDS", 0.3)

    async def main() -> None:
        async with secured(tmp_path, keystore, **{"max.connections": "3"}) as serving:
            clients = [await RawClient.open("127.0.0.1", port(serving, SECURE)) for _ in range(3)]
            clients[0].writer.write(b"\x16\x03\x01\x02\x00")  # the beginning of a hello
            refused = await RawClient.open("127.0.0.1", port(serving, SECURE))
            assert await is_closed(refused), "handshakes count among the connections"
            for client in clients:
                assert await is_closed(client)
            slow = await RawClient.open("127.0.0.1", port(serving, LOGIN))
            assert await is_closed(slow)
            await until(lambda: not serving.server.connections)

    run(main())
    assert any("no TLS handshake within" in text for text in caplog.messages)
    assert any("has not logged in within" in text for text in caplog.messages)


def test_a_new_certificate_holds_for_new_connections(
    tmp_path: Path, certificate: tuple[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.server.listener.CERTIFICATE_SWEEPS", 1)
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(certificate[0]).read_text() + Path(certificate[1]).read_text())
    other = self_signed(tmp_path, "other", "DNS:localhost")
    of_other = Path(other[0]).read_text() + Path(other[1]).read_text()

    async def connected(serving: Serving, trusted: tuple[str, str]) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("localhost", port(serving, SECURE), ssl=trusting(trusted))
        return writer

    async def main() -> None:
        async with secured(tmp_path, str(chain)) as serving:
            old = await connected(serving, certificate)
            chain.write_text("no certificate")
            await until(lambda: any("goes on with the old content" in text for text in caplog.messages))
            (await connected(serving, certificate)).close()
            chain.write_text(of_other)
            await until(lambda: any("has read" in text for text in caplog.messages))
            (await connected(serving, other)).close()
            assert not old.transport.is_closing()
            old.close()

    with caplog.at_level(logging.INFO):
        run(main())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listener.name.secure.ssl.keystore.location": ""}, "TLS needs ssl.keystore.location"),
        ({"listener.name.secure.ssl.keystore.location": "/no/such/file"}, "no such file"),
        ({"listener.name.login.sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms has GSSAPI"),
        ({"listener.name.login.sasl.enabled.mechanisms": ""}, "nobody could log in"),
    ],
)
def test_a_listener_that_cannot_be_had_is_an_error_at_the_start(
    tmp_path: Path, keystore: str, settings: dict[str, str], why: str
) -> None:
    async def main() -> None:
        async with secured(tmp_path, keystore, **settings):
            pass

    with pytest.raises(ConfigError, match=why):
        run(main())


def test_an_acknowledgement_of_nothing_takes_effect_over_tls(
    tmp_path: Path, certificate: tuple[str, str], keystore: str
) -> None:
    """A producer with acks=0 may close right behind its last request."""

    def produced(settings: dict[str, Any]) -> None:
        producer = Producer({**settings, "acks": 0, "linger.ms": 0})
        for number in range(100):
            producer.produce("t", str(number))
        producer.flush(10)

    async def main() -> None:
        async with secured(tmp_path, keystore) as serving:
            made = await serving.gateway.engine.topics.create("t", 1, {})
            log = serving.gateway.engine.log(made.topic_id, 0)
            assert log is not None
            await asyncio.to_thread(produced, librdkafka(serving, certificate))
            await until(lambda: log.high_watermark == 100)

    run(main())
