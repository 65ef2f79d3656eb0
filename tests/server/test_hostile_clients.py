"""Clients that attack handshakes and logins: each is closed in time, its memory is bounded, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.bodies import encode_body
from support.certificates import Authority
from support.gateway import RawClient, batch, frame, gateway, produce_fields, run
from support.waiting import SECONDS, until

from kop import allocator
from kop.app import Serving
from kop.errors import ErrorCode
from kop.security import records
from kop.security.sasl.scram import ScramLogin
from kop.security.users import Mechanism, ScramCredential
from kop.server.tls import BUFFER_BYTES, TlsTransport
from kop.wire.messages import REQUESTS

MIB = 2**20
HALF_OPEN = 1000
MUTUAL, LOGIN, OPEN = 0, 1, 2
SERVED_SECONDS = 1.0


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls"))
    made.keystore("broker")
    return made


@contextlib.asynccontextmanager
async def attacked(path: Path, ca: Authority) -> AsyncIterator[tuple[Serving, RawClient]]:
    """A gateway with ACLs, the user mallory without any right, and another client of it."""
    settings = {
        "listeners": "MUTUAL://127.0.0.1:0,LOGIN://127.0.0.1:0,OPEN://127.0.0.1:0",
        "listener.security.protocol.map": "MUTUAL:SSL,LOGIN:SASL_PLAINTEXT,OPEN:PLAINTEXT",
        "ssl.keystore.location": str(ca.folder / "broker.pem"),
        "ssl.truststore.location": ca.pem,
        "ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "connection.failed.authentication.delay.ms": "20",
    }
    async with gateway(path, **{name.replace(".", "_"): value for name, value in settings.items()}) as serving:

        def decide() -> Any:
            credential = ScramCredential.of_password(Mechanism.SCRAM_SHA_256, "secret")
            return [records.of_user("mallory", Mechanism.SCRAM_SHA_256, credential)]

        await serving.gateway.security.write(decide)
        other = await RawClient.open(*serving.listeners[OPEN])
        yield serving, other
        await other.close()


async def waited(other: RawClient) -> float:
    """How long another client waits for an answer, or what of it this process was busy: others share the machine."""
    began, busy = time.monotonic(), time.process_time()
    assert (await other.call(18, 0)).error_code == 0
    return min(time.monotonic() - began, time.process_time() - busy)


async def is_closed(client: RawClient) -> bool:
    """Wait for the end that the gateway makes; what comes before it is passed over."""
    try:
        async with asyncio.timeout(SECONDS):
            while await client.reader.read(65_536):
                pass
            return True
    except (ConnectionError, ssl.SSLError):
        return True
    finally:
        client.writer.transport.abort()


def closings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("closing the connection")]


# -- handshakes


def hello() -> bytes:
    """The first message of a handshake."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_thousand_half_open_handshakes(
    tmp_path: Path, ca: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kop.server.tls.HANDSHAKE_SECONDS", 60.0)  # that they end is another test
    begun = hello()

    async def main() -> None:
        async with attacked(tmp_path, ca) as (serving, other):
            before, caught, began = allocator.resident_bytes(), len(caplog.messages), time.monotonic()
            sockets = []
            waits = []
            for number in range(HALF_OPEN):
                sock = socket.create_connection(serving.listeners[MUTUAL])
                sock.send(begun if number % 2 else begun[: number % len(begun)])
                sockets.append(sock)
                if number % 50 == 0:
                    waits.append(await waited(other))
            try:
                await until(lambda: serving.server.connections == HALF_OPEN + 1)
                assert allocator.resident_bytes() - before < 100 * MIB
                assert max([*waits, await waited(other)]) < SERVED_SECONDS
            finally:
                for sock in sockets:
                    sock.close()
            await until(lambda: serving.server.connections == 1)
            lines = caplog.messages[caught:]
            assert 1 <= len(lines) <= 11 * (time.monotonic() - began + 2), "ten a second, and how many were left out"

    run(main())
    assert any("it left in the middle of the TLS handshake" in text for text in closings(caplog))


def large(ca: Authority, size: int) -> ssl.SSLContext:
    """A client whose certificate, by the CA that the gateway trusts, has so many bytes."""
    names = [f"{'x' * 60}.{number:07}.example" for number in range(size // 80)]
    context = ssl.create_default_context(cafile=ca.pem)
    context.load_cert_chain(ca.keystore("large", hosts=names))
    return context


def test_what_is_too_large_in_a_handshake_is_refused(
    tmp_path: Path, ca: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    context = large(ca, MIB)

    async def main() -> None:
        async with attacked(tmp_path, ca) as (serving, other):
            before = allocator.resident_bytes()
            host, port = serving.listeners[MUTUAL]
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                caplog.clear()
                context.maximum_version = version
                with contextlib.suppress(OSError):
                    assert await is_closed(RawClient(*await asyncio.open_connection(host, port, ssl=context)))
                await until(lambda: closings(caplog))
                assert "more in the TLS handshake than any certificate has" in closings(caplog)[0]
            caplog.clear()
            client = await RawClient.open(host, port)  # a hello of 16 MiB, or so it says
            record = b"\x01\xff\xff\xff\x03\x03" + bytes(16_000)
            for _ in range(200):
                client.writer.write(b"\x16\x03\x01" + struct.pack(">H", len(record)) + record)
            assert await is_closed(client)
            await until(lambda: closings(caplog))
            assert await waited(other) < SERVED_SECONDS
            assert allocator.resident_bytes() - before < 20 * MIB

    run(main())


def test_nobody_renegotiates(tmp_path: Path, ca: Authority) -> None:
    """OpenSSL's own client asks for a new handshake at a line with an R; the gateway goes on with the old one."""
    keystore = ca.keystore("client")

    async def main() -> None:
        async with attacked(tmp_path, ca) as (serving, other):
            host, port = serving.listeners[MUTUAL]
            command = ["s_client", "-connect", f"{host}:{port}", "-tls1_2", "-CAfile", ca.pem, "-cert", keystore]
            pipe = asyncio.subprocess.PIPE
            client = await asyncio.create_subprocess_exec(
                "openssl", *command, "-key", keystore, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
            )
            assert client.stdin is not None
            assert client.stdout is not None
            output = await client.stdout.readuntil(b"Verify return code: 0 (ok)")
            client.stdin.write(b"R\n")
            async with asyncio.timeout(SECONDS):
                output = await client.stdout.read()
            assert b"no renegotiation" in output.lower()
            await client.wait()
            assert await waited(other) < SERVED_SECONDS

    run(main())


class Asking:
    """A session in which the client asks for an answer of TLS itself with each record."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool) -> Asking:
        self.outgoing = outgoing
        return self

    def do_handshake(self) -> None:
        pass

    def getpeercert(self, binary_form: bool) -> bytes | None:
        return None

    def read(self, count: int, buffer: memoryview) -> int:
        if self.outgoing.pending:
            raise ssl.SSLWantReadError
        self.outgoing.write(bytes(31))
        return self.read(count, buffer)


class Inner(asyncio.BufferedProtocol):
    """A connection to which nothing comes."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(64))


class Outer(asyncio.Transport):
    """A socket whose other side does not read."""

    written = 0
    closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def test_answers_of_tls_itself_are_bounded_if_the_client_does_not_read() -> None:
    async def main() -> None:
        reasons: list[str] = []
        transport = Outer()
        context = cast(ssl.SSLContext, Asking())
        buffer = memoryview(bytearray(BUFFER_BYTES))
        loop = asyncio.get_running_loop()
        tls = TlsTransport(context, Inner(), lambda why, _: reasons.append(why), loop, buffer, lambda certificate: None)
        tls.connection_made(transport)
        for _ in range(10):
            tls.buffer_updated(100)
        assert (transport.written, transport.closed) == (310, False)
        tls.pause_writing()
        tls.buffer_updated(100)
        assert (transport.written, transport.closed) == (310, True)
        assert reasons == ["it asks for more and more of TLS, and does not read the answers"]

    run(main())


# -- logins


def test_slow_logins_end(
    tmp_path: Path, ca: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A byte now and then is no progress that counts: 30 s are over when they are over."""
    monkeypatch.setattr("kop.server.connection.LOGIN_SECONDS", 0.4)
    monkeypatch.setattr("kop.server.tls.HANDSHAKE_SECONDS", 0.4)

    async def main() -> None:
        async with attacked(tmp_path, ca) as (serving, other):
            caplog.clear()
            slow = [await RawClient.open(*serving.listeners[listener]) for listener in (LOGIN, LOGIN, MUTUAL)]
            await slow[1].call(17, 1, mechanism="SCRAM-SHA-256")
            first, second, third = bytes(18), frame(36, 2, 9, bytes(500)), hello()

            async def drip(client: RawClient, data: bytes) -> None:
                for byte in struct.pack(">i", 500) + data if client is slow[0] else data:
                    client.writer.write(bytes([byte]))
                    await asyncio.sleep(0.02)  # the client is slow

            async with asyncio.TaskGroup() as tasks:
                dripping = [
                    tasks.create_task(drip(*each)) for each in zip(slow, (first * 9, second, third), strict=True)
                ]
                assert [await is_closed(client) for client in slow] == [True, True, True]
                for task in dripping:
                    task.cancel()
            assert await waited(other) < SERVED_SECONDS

    run(main())
    assert sum("has not logged in within" in text for text in closings(caplog)) == 2
    assert sum("no TLS handshake within" in text for text in closings(caplog)) == 1


async def logged_in(serving: Serving) -> RawClient:
    client = await RawClient.open(*serving.listeners[LOGIN])
    scram = ScramLogin("SCRAM-SHA-256", "mallory", "secret", "nonce")
    assert (await client.call(17, 1, mechanism="SCRAM-SHA-256")).error_code == 0
    answer = await client.call(36, 2, auth_bytes=scram.first())
    assert (await client.call(36, 2, auth_bytes=scram.final(bytes(answer.auth_bytes)))).error_code == 0
    return client


def test_requests_between_the_steps_have_no_effect(tmp_path: Path, ca: Authority) -> None:
    """Each comes in one write with the steps around it, and is not carried out."""
    made = REQUESTS[19].CreatableTopic(version=5, name="made", num_partitions=1, replication_factor=1)
    requests = [
        (19, 5, {"topics": [made], "timeout_ms": 1000}),
        (0, 12, produce_fields("made", batch([b"x"]), version=12)),
        (3, 9, {"topics": None, "allow_auto_topic_creation": True}),
        (36, 2, {"auth_bytes": b"n,,n=mallory,r=x"}),
    ]

    async def main() -> None:
        async with attacked(tmp_path, ca) as (serving, other):
            for api, version, fields in requests:
                for steps in range(3):
                    client = await RawClient.open(*serving.listeners[LOGIN])
                    scram = ScramLogin("SCRAM-SHA-256", "mallory", "secret", "nonce")
                    if steps > 0:
                        client.send(17, 1, mechanism="SCRAM-SHA-256")
                    if steps > 1:
                        client.send(36, 2, auth_bytes=scram.first())
                    client.send(api, version, **fields)
                    client.send(19, 5, topics=[made], timeout_ms=1000)
                    assert await is_closed(client), (api, steps)
            topics = await other.call(3, 9, topics=None, allow_auto_topic_creation=False)
            assert "made" not in {topic.name for topic in topics.topics}

    run(main())


def test_who_calls_itself_a_broker_gets_nothing_by_it(tmp_path: Path, ca: Authority) -> None:
    """Neither a client id nor a tagged field of a header gives a right."""
    tags = b"\1" + b"\x90\x4e" + b"\3abc"  # the field 10,000
    markers = [
        REQUESTS[27].WritableTxnMarker(
            version=1,
            producer_id=7,
            producer_epoch=0,
            transaction_result=True,
            coordinator_epoch=0,
            topics=[
                REQUESTS[27].WritableTxnMarker.WritableTxnMarkerTopic(
                    version=1, name="__consumer_offsets", partition_indexes=[0]
                )
            ],
        )
    ]

    async def main() -> None:
        async with attacked(tmp_path, ca) as (serving, other):
            client = await logged_in(serving)
            answers = {}
            for api, version, fields in (
                (24, 5, {"transactions": []}),
                (27, 1, {"markers": markers}),
                (61, 0, {"topics": [REQUESTS[61].TopicRequest(version=0, name="t", partition_indexes=[0])]}),
            ):
                message = REQUESTS[api](version=version, **fields)
                plain = frame(api, version, 7, encode_body(message), client_id="kop-broker-1")
                header = plain[4 : 4 + 10 + len("kop-broker-1")]
                body = header + tags + plain[4 + len(header) + 1 :]
                client.writer.write(struct.pack(">i", len(body)) + body)
                _, answers[api] = await client.receive(api, version)
            assert answers[24].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert answers[27].markers[0].topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert answers[61].topics[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await client.close()
            assert await waited(other) < SERVED_SECONDS

    run(main())
