"""Delegation tokens through clients' requests: what Apache Kafka 4.3.1 answers to each step, logins by them, their end,
what is told of them to the audit and the log, and what is refused beyond Kafka.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from handlers.token_steps import DAY, KAFKAS, by_plain, by_token, renewers, steps
from support.gateway import gateway, run
from support.waiting import until

from conformance.authorization.world import Closed, Connection
from kop import background
from kop.app import Serving
from kop.errors import ErrorCode
from kop.repeats import Repeats
from kop.security.settings import STANDARD_AUTHORIZER

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
    f'user_{name}="secret"' for name in ("admin", "alice", "bob", "carol")
)
SECRET = "mark-of-the-secret-key"
SETTINGS = {
    "store": "memory:",
    "listeners": "OPEN://127.0.0.1:0,LOGIN://127.0.0.1:0",
    "listener.security.protocol.map": "OPEN:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.login.plain.sasl.jaas.config": f"{JAAS};",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "connection.failed.authentication.delay.ms": "0",
    "delegation.token.secret.key": SECRET,
}


@asynccontextmanager
async def opened(path: Path, *names: str, **settings: str) -> AsyncIterator[tuple[Serving, list[Connection]]]:
    """A gateway, and connections of users."""
    async with gateway(path, **SETTINGS | settings) as serving:
        conns = [await by_plain(serving.listeners[1], name) for name in names]
        try:
            yield serving, conns
        finally:
            for conn in conns:
                conn.close()


@pytest.fixture(autouse=True)
def no_line_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "log_lines", Repeats())


async def made(conn: Connection, owner: str | None = None, lifetime: int = -1, version: int = 3, **fields: Any) -> Any:
    """Make a token."""
    of: dict[str, Any] = {"owner_principal_type": None if owner is None else "User", "owner_principal_name": owner}
    return await conn.call(38, version, **of | {"renewers": []} | fields, max_lifetime_ms=lifetime)


async def ended(conn: Connection, token: Any, period: int = -1) -> Any:
    return await conn.call(40, 2, hmac=bytes(token.hmac), expiry_time_period_ms=period)


async def is_closed(conn: Connection) -> bool:
    try:
        await conn.call(3, 9, topics=[], allow_auto_topic_creation=False)
    except Closed:
        return True
    return False


def test_each_step_is_answered_as_by_kafka(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> Any:
        async with opened(tmp_path) as (serving, _):
            answered = await steps(*serving.listeners)
            assert SECRET not in repr(serving.gateway.tokens) + repr(serving.gateway.security_settings)
            return answered

    answered = run(main())
    assert answered.answers == KAFKAS
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "kop.audit"]
    changes = [line["operation"] for line in lines if line["event"] == "changed" and line["name"]]
    assert {each: changes.count(each) for each in changes} == {"CREATE": 14, "RENEW": 3, "EXPIRE": 4}
    denied = [line for line in lines if line["event"] == "denied"]
    assert [(line["operation"], line["name"]) for line in denied] == [
        ("CREATE_TOKENS", "User:bob"),
        ("CREATE_TOKENS", "User:alice"),
    ]
    for token in answered.tokens.values():
        if secret := bytes(getattr(token, "hmac", b"")):
            assert b64encode(secret).decode() not in caplog.text
            assert repr(secret) not in caplog.text


def test_without_a_secret_key_there_are_no_tokens(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "alice", delegation_token_secret_key="") as (serving, (alice,)):
            disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            token = await made(alice)
            assert token.error_code == disabled
            assert (await ended(alice, token)).error_code == disabled
            renewed = await alice.call(39, 1, hmac=b"x", renew_period_ms=1)
            assert (renewed.error_code, renewed.expiry_timestamp_ms) == (disabled, -1)
            assert (await alice.call(41, 1, owners=None)).error_code == disabled
            assert (await alice.call(41, 3, owners=[])).error_code == disabled
            conn, answer = await by_token(serving.listeners[1], token)
            assert (answer.error_code, answer.error_message) == (
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                "delegation tokens are not served",
            )
            conn.close()

    run(main())


def test_what_is_refused_beyond_kafka(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "alice", "admin") as (serving, (alice, admin)):
            acl = dict(resource_type=7, resource_name="*", resource_pattern_type=3, principal="User:alice", host="*")
            await admin.call(30, 3, creations=[acl | dict(operation=13, permission_type=3)])
            assert (await made(alice, "bob")).error_code == 0
            assert (await made(alice, "admin")).error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
            assert (
                await made(alice, "bob", owner_principal_type="Group")
            ).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
            for names in (["r"] * 65, ["r" * 32_768], ["r" * 100, *("ä" * 2000 for _ in range(3))]):
                wrong = await made(alice, renewers=renewers(*names))
                assert wrong.error_code == ErrorCode.INVALID_REQUEST
            most = await made(alice, renewers=renewers(*(f"{number:02}" + "r" * 100 for number in range(64))))
            assert most.error_code == 0
            assert len(serving.gateway.security.tokens) == 2

    run(main())


def test_nobody_takes_the_tokens_of_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        names = ("alice", "bob", "carol", "admin")
        async with opened(tmp_path, *names, kop_security_max_tokens="29") as (_, (alice, bob, carol, admin)):
            full = ErrorCode.INVALID_REQUEST
            first, *more = [await made(alice) for _ in range(3)]
            assert [first.error_code, *(token.error_code for token in more)] == [0, 0, full]
            assert (await made(alice)).error_code == full
            assert (await made(admin, "alice")).error_code == full, "it is the owner who counts"
            for client in (bob, carol, admin):
                assert (await made(client)).error_code == 0
            assert (await ended(alice, first)).error_code == 0
            assert [(await made(alice)).error_code for _ in range(2)] == [0, full]

    run(main())
    assert [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()] == [
        "a delegation token is refused: 'User:alice' has 2 delegation tokens, a tenth of kop.security.max.tokens; end "
        "some, or set it higher"
    ]


@pytest.mark.parametrize("most", ["2", "0"])
def test_all_tokens_together_have_a_limit_too(tmp_path: Path, caplog: pytest.LogCaptureFixture, most: str) -> None:
    async def main() -> None:
        async with opened(tmp_path, "alice", "bob", "carol", kop_security_max_tokens=most) as (serving, clients):
            codes = [(await made(client)).error_code for client in clients]
            assert codes == [0] * int(most) + [ErrorCode.INVALID_REQUEST] * (3 - int(most))
            assert len(serving.gateway.security.tokens) == int(most)

    run(main())
    assert f"there are {most} delegation tokens, as many as kop.security.max.tokens allows; end some" in caplog.text


def test_others_have_their_turn_while_many_tokens_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "alice", "bob") as (serving, (alice, bob)):
            security = serving.gateway.security
            for number in range(2000):
                token_id = f"{number:022}"
                names = [f"User:{renewer}" for renewer in range(8)]
                security.tokens.put(token_id, serving.gateway.tokens.made(token_id, "User:alice", "", names, -1, 1))
            first = asyncio.create_task(alice.call(41, 3, owners=None))
            done = 0
            while not first.done():
                assert (await bob.call(3, 9, topics=[], allow_auto_topic_creation=False)).brokers
                done += 1
            assert len((await first).tokens) == 2000
            assert done > 5

    run(main())


def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "alice", "bob") as (serving, (alice, bob)):
            at = serving.listeners[1]
            first, second, third = [await made(alice, renewers=renewers("bob")) for _ in range(3)]
            conns = [(await by_token(at, token))[0] for token in (first, second, third)]
            assert [await is_closed(conn) for conn in conns] == [False] * 3
            assert (await ended(bob, first)).error_code == 0
            assert (await ended(alice, second, 0)).error_code == 0
            for conn in conns[:2]:
                with pytest.raises(Closed):
                    await conn.receive()
            assert not await is_closed(conns[2])
            fourth = await made(alice, lifetime=1)
            await asyncio.sleep(0.003)  # its lifetime
            for token in (first, second, fourth):
                conn, answer = await by_token(at, token)
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert "invalid credentials" in answer.error_message
                conn.close()
            for conn in conns:
                conn.close()

    run(main())


def test_a_bearer_has_the_owners_rights_and_logs_in_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "alice", "admin") as (serving, (alice, admin)):
            token = await made(admin, "alice")
            conn, answer = await by_token(serving.listeners[1], token)
            assert 0 < answer.session_lifetime_ms <= DAY
            acl = dict(resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:alice", host="*")
            await admin.call(30, 3, creations=[acl | dict(operation=8, permission_type=3)])
            topics = [dict(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])]
            created = await conn.call(19, 5, topics=topics, timeout_ms=1000, validate_only=False)
            assert created.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            seen = await conn.call(3, 9, topics=[dict(name="t")], allow_auto_topic_creation=False)
            assert seen.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            other = await made(alice)
            again, answer = await by_token(serving.listeners[1], other, conn=conn)
            assert (again, answer.error_code) == (conn, 0)
            assert (await made(again)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            stranger, _ = await by_token(serving.listeners[1], other)
            _, answer = await by_token(serving.listeners[1], await made(admin), conn=stranger)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            for each in (conn, stranger):
                each.close()

    run(main())


def test_tokens_that_have_expired_are_removed(tmp_path: Path) -> None:
    async def main() -> None:
        every = dict(delegation_token_expiry_check_interval_ms="1")
        async with opened(tmp_path, "alice", **every) as (serving, (alice,)):
            kept = await made(alice)
            await made(alice, lifetime=1)
            await until(lambda: [each.id for each in serving.gateway.security.tokens] == [kept.token_id])

    run(main())


def test_tokens_are_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        store = dict(store=f"sqlite:{tmp_path / 'kop.db'}")
        async with opened(tmp_path, "alice", **store) as (_, (alice,)):
            token = await made(alice, renewers=renewers("bob"))
        async with opened(tmp_path, "bob", **store) as (serving, (bob,)):
            conn, answer = await by_token(serving.listeners[1], token, "SCRAM-SHA-512")
            assert answer.error_code == 0
            described = await bob.call(41, 3, owners=None)
            assert [(each.token_id, each.renewers[0].principal_name) for each in described.tokens] == [
                (token.token_id, "bob")
            ]
            conn.close()

    run(main())
