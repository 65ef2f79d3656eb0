"""No secret gets out: all that has one runs with marks for passwords and keys, and all that can be read is searched."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from support.certificates import self_signed
from support.gateway import gateway, run
from support.waiting import until

from conformance.authorization.world import Closed, Connection, decoded, request_frame
from kop.app import Serving
from kop.config import Config
from kop.errors import ConfigError, ErrorCode
from kop.security.records import of_user
from kop.security.sasl.scram import ScramLogin
from kop.security.settings import STANDARD_AUTHORIZER
from kop.security.users import Mechanism, ScramCredential

PASSWORD, WRONG, OF_BROKERS, OF_KEY = "mark-of-alice", "mark-of-nobody", "mark-of-brokers", "mark-of-key"
SALTED = b"mark-of-salted-password-of-bob--"
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="b" password="{OF_BROKERS}";'
OPEN, LOGIN = 0, 1
NAMED_AS_SECRETS = re.compile(
    r"(password|secret|token|credential|jaas\.config|pulsar\.auth|keystore\.key|secret\.key)$"
)


def forms(secret: bytes) -> Iterable[bytes]:
    """Return a secret as it may be written: as it is, in hex, and in base64."""
    yield secret
    yield secret.hex().encode()
    yield base64.b64encode(secret).rstrip(b"=")


class Readable:
    """All that others can read."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, bytes]] = []

    def add(self, where: str, text: str | bytes) -> None:
        self.parts.append((where, text.encode() if isinstance(text, str) else text))

    async def ask(self, conn: Connection, key: int, version: int, /, **fields: Any) -> Any:
        """Send a request, keep the bytes of its answer, and return that."""
        conn.send(request_frame(key, version, fields))
        answer = await conn.receive()
        self.add(f"the answer of API {key}", answer)
        return decoded(key, version, answer)

    def leaks(self, secrets: Iterable[bytes]) -> list[str]:
        return [
            f"{where} has {each!r}" for secret in secrets for each in forms(secret) for where, text in self.parts
            if each in text
        ]  # fmt: skip


async def _log_in(readable: Readable, serving: Serving, mechanism: str, password: str) -> int:
    conn = await Connection.open(*serving.listeners[LOGIN])
    try:
        answer = await readable.ask(conn, 17, 1, mechanism=mechanism)
        if answer.error_code:
            return int(answer.error_code)
        if mechanism == "PLAIN":
            return int((await readable.ask(conn, 36, 2, auth_bytes=f"\0alice\0{password}".encode())).error_code)
        login = ScramLogin(mechanism, "alice", password, "a-nonce")
        answer = await readable.ask(conn, 36, 2, auth_bytes=login.first())
        answer = await readable.ask(conn, 36, 2, auth_bytes=login.final(bytes(answer.auth_bytes)))
        return int(answer.error_code)
    finally:
        conn.close()


async def _closed_by(readable: Readable, conn: Connection, frame: bytes) -> None:
    conn.send(frame)
    with pytest.raises(Closed):
        readable.add("an answer", await conn.receive())
    conn.close()


async def _logins(readable: Readable, serving: Serving) -> None:
    assert await _log_in(readable, serving, "SCRAM-SHA-256", PASSWORD) == 0
    assert await _log_in(readable, serving, "SCRAM-SHA-512", WRONG) == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await _log_in(readable, serving, "PLAIN", PASSWORD) == 0
    assert await _log_in(readable, serving, "PLAIN", WRONG) == ErrorCode.SASL_AUTHENTICATION_FAILED
    for data in (b"n,,n=alice,r=x,p=" + WRONG.encode(), WRONG.encode(), b"\0\0" + WRONG.encode()):
        conn = await Connection.open(*serving.listeners[LOGIN])
        await readable.ask(conn, 17, 1, mechanism="SCRAM-SHA-256")
        await readable.ask(conn, 36, 2, auth_bytes=data)
        conn.close()
    conn = await Connection.open(*serving.listeners[LOGIN])
    await _closed_by(readable, conn, request_frame(36, 2, {"auth_bytes": WRONG.encode()}))
    conn = await Connection.open(*serving.listeners[OPEN])
    assert (await readable.ask(conn, 36, 2, auth_bytes=WRONG.encode())).error_code == ErrorCode.ILLEGAL_SASL_STATE
    conn.close()


async def _users(readable: Readable, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = await Connection.open(*serving.listeners[OPEN])
    row = dict(name="bob", mechanism=1, iterations=4096, salt=b"salt", salted_password=SALTED)
    bad = [
        row | dict(name="c", iterations=1),
        row | dict(name="", mechanism=9),
        row | dict(name="d", salted_password=b""),
    ]
    answer = await readable.ask(conn, 51, 0, deletions=[], upsertions=[row, *bad])
    assert [bool(each.error_code) for each in answer.results] == [False, True, True, True]
    await readable.ask(conn, 50, 0, users=None)
    frame = request_frame(51, 0, {"deletions": [], "upsertions": [row]})
    cut = frame[4:-9]
    await _closed_by(readable, conn, len(cut).to_bytes(4, "big") + cut)

    conn = await Connection.open(*serving.listeners[OPEN])

    async def fails(_decide: Any) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(serving.gateway.security, "write", fails)
        await _closed_by(readable, conn, frame)


async def _configs(readable: Readable, serving: Serving) -> None:
    conn = await Connection.open(*serving.listeners[OPEN])
    for kind, name in ((4, "1"), (4, ""), (8, "1")):
        resource = dict(resource_type=kind, resource_name=name, configuration_keys=None)
        answer = await readable.ask(
            conn, 32, 4, resources=[resource], include_synonyms=True, include_documentation=True
        )
        assert answer.results[0].error_code == 0
        if (kind, name) == (4, "1"):
            shown = {each.name: each for each in answer.results[0].configs}
            hidden = {each.name for each in shown.values() if each.is_sensitive}
            named = {name for name in shown if NAMED_AS_SECRETS.search(name)}
            assert {"ssl.key.password", "ssl.keystore.key", "sasl.jaas.config", "kop.pulsar.auth"} <= named
            assert hidden == named
            assert {shown[each].value for each in hidden} <= {None, ""}
    for name in ("sasl.jaas.config", "listener.name.login.ssl.key.password", "retention.ms"):
        config = dict(name=name, value=WRONG, config_operation=0)
        for resource in (dict(resource_type=4, resource_name="1"), dict(resource_type=2, resource_name="t")):
            answer = await readable.ask(conn, 44, 1, resources=[resource | dict(configs=[config])], validate_only=False)
            assert answer.responses[0].error_code
    conn.close()


def test_no_secret_gets_out(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = self_signed(tmp_path, "server", "DNS:localhost")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", key, "-out", str(locked), "-passout", f"pass:{OF_KEY}"], check=True
    )
    settings = {
        "store": "memory:",
        "listeners": "OPEN://127.0.0.1:0,LOGIN://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener.security.protocol.map": "OPEN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SASL_SSL",
        "connection.failed.authentication.delay.ms": "0",
        "ssl.keystore.certificate.chain": Path(cert).read_text(),
        "ssl.keystore.key": locked.read_text(),
        "ssl.key.password": OF_KEY,
        "sasl.jaas.config": JAAS,
        "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "kop.audit.file": str(tmp_path / "audit.log"),
        "kop.audit.allowed": "true",
    }
    readable = Readable()
    caplog.set_level(logging.DEBUG)

    async def main() -> list[bytes]:
        async with gateway(tmp_path, **settings) as serving:
            made = [of_user("alice", each, ScramCredential.of_password(each, PASSWORD)) for each in Mechanism]
            await serving.gateway.security.write(lambda: made)
            await _logins(readable, serving)
            await _users(readable, serving, monkeypatch)
            await _configs(readable, serving)
            await until(lambda: any("a defect" in str(record.exc_info) for record in caplog.records))
            gw = serving.gateway
            readable.add("/metrics", generate_latest(gw.metrics.registry))
            security = gw.security
            credentials = [security.users.of(name) for name in security.users.names()]
            for each in (gw, gw.settings, gw.security_settings, security, security.users, credentials, serving):
                readable.add(f"the repr of {type(each).__name__}", repr(each))
            known = [each for of_user in credentials for each in of_user.values()]
            return [security.secret, *(value for each in known for value in (each.stored_key, each.server_key))]

    kept = run(main())
    assert len(kept) == 7
    for record in caplog.records:
        if record.name.partition(".")[0] == "kop":
            readable.add("the log", logging.Formatter().format(record))
    readable.add("the audit", (tmp_path / "audit.log").read_bytes())
    config = Config.load(overrides=settings, environ={})
    readable.add("the table of settings", f"{list(config.table())} {config!r}")
    pem_of_key = locked.read_text().splitlines()[3].encode()
    marks = [each.encode() for each in (PASSWORD, WRONG, OF_BROKERS, OF_KEY)]
    assert readable.leaks([*marks, SALTED, hashlib.sha256(SALTED).digest(), pem_of_key, *kept]) == []
    assert readable.leaks([b"alice"])  # the search finds what is there


@pytest.mark.parametrize(
    "wrong",
    [
        {"ssl.key.password": WRONG},
        {"ssl.keystore.key": f"-----BEGIN PRIVATE KEY-----\n{WRONG}\n-----END PRIVATE KEY-----"},
        {"sasl.jaas.config": f'ScramLoginModule required username="b" passwort="{WRONG}";'},
        {"sasl.enabled.mechanisms": "NONE"},
        {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": "/dev/null",
            "ssl.keystore.password": WRONG,
            "ssl.keystore.certificate.chain": "",
            "ssl.keystore.key": "",
        },
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_no_error_of_the_start_tells_a_secret(tmp_path: Path, wrong: dict[str, str]) -> None:
    cert, key = self_signed(tmp_path, "server", "DNS:localhost")
    settings = {
        "store": "memory:",
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.certificate.chain": Path(cert).read_text(),
        "ssl.keystore.key": Path(key).read_text(),
        "ssl.key.password": OF_KEY,
        "sasl.jaas.config": JAAS,
    } | wrong
    secrets = [each.encode() for each in (WRONG, OF_BROKERS, OF_KEY)] + [Path(key).read_bytes().splitlines()[1]]
    readable = Readable()

    async def main() -> None:
        async with gateway(tmp_path, **settings):
            pass

    try:
        run(main())
    except ConfigError as error:
        readable.add("the error", f"{error!r} {error}")
    assert readable.leaks(secrets) == []


def test_what_is_named_as_a_secret_is_one() -> None:
    config = Config.load(overrides={}, environ={})
    named = {row.name: row.type for row in config.table() if NAMED_AS_SECRETS.search(row.name)}
    assert named == dict.fromkeys(named, "password")
    assert len(named) >= 4
