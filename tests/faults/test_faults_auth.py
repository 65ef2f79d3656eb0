"""A Pulsar that wants tokens: wrong ones, those that run out during a connection, and roles without a permission."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from faults.fault_kit import create, gateway, stored, until
from faults.test_faults_errors import Client, produce_one, said
from support.gateway import RawClient
from support.pulsar import OwnBroker, Pulsar, Urls
from support.pulsar_admin import PulsarAdmin
from support.pulsar_gateway import PulsarGateway
from support.slowness import beyond_slowness
from support.tokens import KEY, guarded_settings, token

from kop.errors import ErrorCode
from kop.pulsar_client.admin import FOREVER
from kop.pulsar_client.auth import Token

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

T = TypeVar("T")


@dataclass
class Guarded:
    """A broker that wants tokens, and its tenant for one role `kop`."""

    urls: Urls

    def admin(self, work: Callable[[PulsarAdmin], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with PulsarAdmin(self.urls.admin_url, Token(token("root"))) as client:
                return await work(client)

        return asyncio.run(run())

    def space(self, roles: list[str]) -> Pulsar:
        """A tenant whose admins are `roles`, and a namespace in it that keeps everything."""
        tenant = f"t-{secrets.token_hex(4)}"
        pulsar = Pulsar(*self.urls, f"{tenant}/data")

        async def make(client: PulsarAdmin) -> None:
            await client.create_tenant(tenant)
            await client.create_namespace(pulsar.namespace)
            await client.set_namespace_retention(pulsar.namespace, FOREVER)

        self.admin(make)
        self.let(pulsar, roles)
        return pulsar

    def let(self, pulsar: Pulsar, roles: list[str]) -> None:
        """These are the tenant's admins from now on."""
        tenant = pulsar.namespace.partition("/")[0]

        self.admin(lambda client: client.set_tenant_admins(tenant, roles))

    def grant(self, pulsar: Pulsar, actions: list[str]) -> None:
        """What `kop` may do with the topics of the namespace."""
        self.admin(lambda client: client.grant(pulsar.namespace, "kop", actions))


@pytest.fixture(scope="module")
def guarded(pulsar_urls: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    broker = OwnBroker(tmp_path_factory.mktemp("guarded"), settings=guarded_settings(), token=token("root"))
    try:
        yield Guarded(broker.start())
    finally:
        broker.kill()


def put(file: Path, text: str) -> None:
    """At once, as whoever renews a token should."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def committed(bootstrap: str, group: str, commit: int | None = None) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        place = TopicPartition("t", 0, -1 if commit is None else commit)
        if commit is not None:
            consumer.commit(offsets=[place], asynchronous=False)
        return int(consumer.committed([place], timeout=10)[0].offset)
    finally:
        consumer.close()


def test_a_start_with_wrong_credentials_says_what_to_do(guarded: Guarded, tmp_path: Path) -> None:
    space = guarded.space(["kop"])
    stranger = guarded.space(["somebody"])
    expired, forged = token("kop", -5), token("kop")[:-4] + "AAAA"
    cases = {
        "none": (space, "", ["kop.pulsar.auth"]),
        "expired": (space, f"token:{expired}", ["kop.pulsar.auth", "AuthenticationError"]),
        "forged": (space, f"token:{forged}", ["kop.pulsar.auth", "AuthenticationError"]),
        "no file": (space, f"token-file:{tmp_path}/none", ["kop.pulsar.auth", str(tmp_path / "none")]),
        "not allowed": (stranger, f"token:{token('kop')}", ["admin of the tenant"]),
    }
    children = {what: gateway(tmp_path / what, where, kop_pulsar_auth=auth) for what, (where, auth, _) in cases.items()}
    try:
        for child in children.values():
            child.start(wait=False)
        for what, child in children.items():
            assert child.wait(90) == 1, f"{what}:\n{child.log}"
            for text in cases[what][-1]:
                assert text in child.log, f"{what}:\n{child.log}"
            assert "Traceback" not in child.log, what
            assert expired not in child.log
            assert forged not in child.log
    finally:
        for child in children.values():
            child.kill()


def test_a_token_that_is_renewed_in_time_is_not_noticed(guarded: Guarded, tmp_path: Path) -> None:
    space = guarded.space(["kop"])
    file = tmp_path / "token"
    put(file, token("kop", 8))
    serving = PulsarGateway(space, kop_pulsar_auth=f"token-file:{file}").start()
    try:
        create(serving.bootstrap, "t", 2)
        client = Client(serving.bootstrap)
        end = time.monotonic() + 20  # two lives of a token
        sent = 0
        while time.monotonic() < end:
            put(file, token("kop", 8))
            client.send("t", str(sent).encode())
            sent += 1
            time.sleep(0.1)  # the pace of the load
        assert client.flush() == list(range(sent))
        assert committed(serving.bootstrap, "g", 7) == 7
        assert serving.engine.healthy is None
        assert not beyond_slowness(serving.engine.counts), serving.engine.counts
    finally:
        serving.stop()


def test_a_token_that_runs_out_is_retriable_and_a_new_one_heals_all(
    guarded: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = guarded.space(["kop"])
    file = tmp_path / "token"
    put(file, token("kop"))
    serving = PulsarGateway(space, kop_pulsar_auth=f"token-file:{file}").start()
    create(serving.bootstrap, "t", 2)
    assert committed(serving.bootstrap, "g", 6) == 6
    serving.stop()
    put(file, token("kop", 25))
    serving.start()

    async def fresh() -> bool:
        return serving.engine.brokers_fresh

    try:
        client = Client(serving.bootstrap, 120)
        client.send("t", b"0")
        assert client.flush() == [0]
        assert committed(serving.bootstrap, "g", 7) == 7
        until(lambda: serving.engine.healthy is not None)  # it has run out
        client.send("t", b"1")
        client.producer.poll(3)
        assert client.results == [], "it goes on trying; nothing is acknowledged"
        assert said(caplog, "see kop.pulsar.auth")
        refused = [what for what in serving.engine.counts if "authentication" in what or "unauthorized" in what]
        assert refused, serving.engine.counts
        until(lambda: not serving.call(fresh()))

        lines = len(caplog.records)
        client.producer.poll(3)
        assert len(caplog.records) < lines + 40, "told once, not at each try"

        put(file, token("kop", 600))
        assert client.flush() == [1]
        assert produce_one(serving.bootstrap, "t", b"2") == 2
        until(lambda: serving.engine.healthy is None and serving.call(fresh()))
        assert until(lambda: committed(serving.bootstrap, "g") == 7)
        assert committed(serving.bootstrap, "g", 8) == 8
        create(serving.bootstrap, "after", 1)
        assert produce_one(serving.bootstrap, "after") == 0
        for _ in range(2):  # the first block may be the one that was reserved at the start
            serving.call(serving.engine.reserve_producer_ids())
    finally:
        serving.stop()
    again = PulsarGateway(space, kop_pulsar_auth=f"token-file:{file}").start()
    try:
        assert stored(again.bootstrap, "t")[0] == [(0, 0), (1, 1), (2, 2)]
    finally:
        again.stop()


def test_a_permission_that_is_taken_away_is_named(
    guarded: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = guarded.space(["kop"])
    serving = PulsarGateway(space, kop_pulsar_auth=f"token:{token('kop')}").start()
    try:
        create(serving.bootstrap, "t", 1)
        client = Client(serving.bootstrap)
        client.send("t", b"0")
        assert client.flush() == [0]
        guarded.let(space, ["somebody"])

        def refused() -> bool:
            outcome = produce_one(serving.bootstrap, "t")
            assert isinstance(outcome, int) or outcome == "TOPIC_AUTHORIZATION_FAILED", outcome
            return outcome == "TOPIC_AUTHORIZATION_FAILED"

        until(refused)
        assert said(caplog, "grant-permission") or said(caplog, "admin of the tenant")
        assert [what for what in serving.engine.counts if "authorization_error" in what or "forbidden" in what]
        with pytest.raises(Exception, match=r"TOPIC_AUTHORIZATION_FAILED|authorization"):
            create(serving.bootstrap, "another", 1)
        guarded.let(space, ["kop"])
        until(lambda: isinstance(produce_one(serving.bootstrap, "t"), int))
        assert isinstance(client.flush(), list)
        create(serving.bootstrap, "another", 1)
        outcome = produce_one(serving.bootstrap, "another")
        assert not isinstance(outcome, KafkaError)
        assert outcome == 0
    finally:
        serving.stop()


@pytest.mark.parametrize("by", ["Pulsar's key", "Pulsar itself"])
def test_clients_log_in_with_pulsars_tokens(guarded: Guarded, by: str) -> None:
    """By PLAIN as KoP's users have them, and by OAUTHBEARER; the role is the principal."""
    more = {"listeners": "LOGIN://127.0.0.1:0,OPEN://127.0.0.1:0", "inter_broker_listener_name": "OPEN"}
    more |= {"listener_security_protocol_map": "LOGIN:SASL_PLAINTEXT,OPEN:PLAINTEXT"}
    more |= {"sasl_enabled_mechanisms": "PLAIN,OAUTHBEARER", "kop_pulsar_tokens": "true"}
    if by == "Pulsar's key":
        more["kop_pulsar_token_secret_key"] = f"data:;base64,{base64.b64encode(KEY).decode()}"
    space = guarded.space(["kop"])
    serving = PulsarGateway(space, kop_pulsar_auth=f"token:{token('kop')}", **more).start()

    async def answers(mechanism: str, text: str) -> list[tuple[int, bytes]]:
        """The answers to a login of one message, and to the byte that a client sends behind a refusal."""
        host, _, port = serving.bootstrap.rpartition(":")
        client = await RawClient.open(host, int(port))
        try:
            await client.call(17, 1, mechanism=mechanism)
            seen = await client.call(36, 2, auth_bytes=text.encode())
            told = [(seen.error_code, bytes(seen.auth_bytes))]
            if seen.auth_bytes:
                seen = await client.call(36, 2, auth_bytes=b"\x01")
                told.append((seen.error_code, bytes(seen.auth_bytes)))
            return told
        finally:
            await client.close()

    try:
        forged = token("app")[:-4] + "AAAA"
        for bearer, good in (
            (token("app"), True),
            (token("app", 60), True),
            (forged, False),
            (token("app", -5), False),
        ):
            plain = asyncio.run(answers("PLAIN", f"\0{space.namespace}\0token:{bearer}"))
            assert plain == [(0, b"") if good else (ErrorCode.SASL_AUTHENTICATION_FAILED, b"")]
            oauth = asyncio.run(answers("OAUTHBEARER", f"n,a=app,\x01auth=Bearer {bearer}\x01\x01"))
            refused = [(0, b'{"status":"invalid_token"}'), (ErrorCode.SASL_AUTHENTICATION_FAILED, b"")]
            assert oauth == ([(0, b"")] if good else refused)
    finally:
        serving.stop()
