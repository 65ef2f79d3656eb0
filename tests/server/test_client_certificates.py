"""Clients that log in by their certificates, brokers among them, over a whole gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.certificates import Authority
from support.gateway import RawClient, gateway, run
from support.waiting import until

from kop.app import Serving
from kop.config import Config
from kop.errors import ConfigError, ErrorCode
from kop.server.endpoints import endpoints
from kop.server.securing import dialer
from kop.server.settings import ListenerSettings, ServerSettings

REQUIRED, REQUESTED, LOGIN = 0, 1, 2
RULES = "RULE:^CN=([a-z]+)$/$1/U, RULE:^CN=(.*)\\, root$/admin/, DEFAULT"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls"))
    made.keystore("broker")
    return made


def settings_of(ca: Authority) -> dict[str, str]:
    return {
        "listeners": "REQUIRED://127.0.0.1:0,REQUESTED://127.0.0.1:0,LOGIN://127.0.0.1:0",
        "listener.security.protocol.map": "REQUIRED:SSL,REQUESTED:SSL,LOGIN:SASL_SSL",
        "ssl.keystore.location": str(ca.folder / "broker.pem"),
        "ssl.truststore.location": ca.pem,
        "ssl.client.auth": "required",
        "listener.name.requested.ssl.client.auth": "requested",
        "listener.name.required.ssl.principal.mapping.rules": RULES,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:BROKER;User:CN=admin",
    }


@contextlib.asynccontextmanager
async def serving_tls(path: Path, ca: Authority, **more: str) -> AsyncIterator[Serving]:
    settings = settings_of(ca) | more
    async with gateway(path, **{name.replace(".", "_"): value for name, value in settings.items()}) as serving:
        yield serving


def showing(ca: Authority, keystore: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca.pem)
    if keystore is not None:
        context.load_cert_chain(keystore)
    return context


async def client_of(serving: Serving, ca: Authority, listener: int, keystore: str | None) -> RawClient:
    host, port = serving.listeners[listener]
    return RawClient(*await asyncio.open_connection(host, port, ssl=showing(ca, keystore)))


async def told(serving: Serving, client: RawClient) -> int:
    """The error of a topic that is not there: whether the client may know."""
    (topic,) = (await client.call(3, 9, topics=[topic_of("none")], allow_auto_topic_creation=False)).topics
    await client.close()
    return int(topic.error_code)


def topic_of(name: str) -> Any:
    from kop.wire.messages import REQUESTS

    return REQUESTS[3].MetadataRequestTopic(version=9, name=name)


def closings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("closing the connection")]


def test_certificates_decide_who_a_client_is(tmp_path: Path, ca: Authority, caplog: pytest.LogCaptureFixture) -> None:
    keystores = {name: ca.keystore(name) for name in ("broker", "admin", "carol", "Odd, root")}
    other = Authority(ca.folder, "other")
    refused = {
        "none": (None, "shows no certificate, and ssl.client.auth=required"),
        "stranger": (other.keystore("stranger"), "its CA is in ssl.truststore of the listener"),
        "expired": (ca.keystore("expired", days=(-2, -1)), "certificate has expired: see that"),
        "early": (ca.keystore("early", days=(0.5, 1)), "certificate is not yet valid: see that"),
        "self": (ca.write("self.pem", self_signed()), "its CA is in ssl.truststore of the listener"),
    }
    allowed, denied = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    audit = tmp_path / "audit.log"

    async def main() -> None:
        async with serving_tls(tmp_path, ca, **{"kop.audit.file": str(audit)}) as serving:
            caplog.clear()
            for listener, name, code in (
                (REQUIRED, "broker", allowed),  # BROKER by the first rule
                (REQUIRED, "carol", denied),  # CAROL
                (REQUIRED, "Odd, root", denied),  # the comma of a value is escaped, and no end of it
                (REQUESTED, "admin", allowed),  # CN=admin
                (REQUESTED, "broker", denied),  # CN=broker
                (REQUESTED, None, denied),  # ANONYMOUS
            ):
                client = await client_of(serving, ca, listener, keystores[name] if name else None)
                assert await told(serving, client) == code, (listener, name)
            assert closings(caplog) == []
            for name, (keystore, why) in refused.items():
                caplog.clear()
                with contextlib.suppress(OSError):
                    client = await client_of(serving, ca, REQUIRED, keystore)
                    client.writer.write(b"\0")
                    assert await client.reader.read() == b""
                    await client.close()
                await until(lambda: closings(caplog))
                (line,) = closings(caplog)
                assert "127.0.0.1" in line, name
                assert why in line, name
            caplog.clear()
            with contextlib.suppress(OSError):  # no TLS at all is no login
                client = RawClient(*await asyncio.open_connection(*serving.listeners[REQUIRED]))
                client.send(18, 0)
                await client.reader.read()
                await client.close()
            await until(lambda: closings(caplog))
            days = [
                (sample.labels["store"], sample.labels["subject"], sample.value)
                for metric in serving.server.collect()
                if metric.name == "kop_tls_certificate_days_left"
                for sample in metric.samples
                if sample.labels["listener"] == "REQUIRED"
            ]
            assert [each[:2] for each in days] == [
                ("keystore", "CN=broker"),
                ("keystore", "CN=ca of tests"),
                ("truststore", "CN=ca of tests"),
            ]
            assert all(0.9 < each[2] <= 1 for each in days)

    run(main())
    lines = [line for line in map(json.loads, audit.read_text().splitlines()) if line["event"] != "denied"]
    assert [(line["event"], line["mechanism"], line["listener"], line["host"], line["name"]) for line in lines] == [
        ("login failed", "SSL", "REQUIRED", "127.0.0.1", None)
    ] * len(refused)
    for line, (_, why) in zip(lines, refused.values(), strict=True):
        assert why in line["reason"]
    assert sum("CN=broker" in text and "ends in" in text for text in caplog.messages) <= 3


def self_signed() -> bytes:
    from support.certificates import DAY, NOW

    from kop.security.issuing import issue

    made = issue("admin", None, NOW - DAY, NOW + DAY)
    return made.pem + made.key_pem


def test_who_meets_no_rule_is_refused(tmp_path: Path, ca: Authority, caplog: pytest.LogCaptureFixture) -> None:
    audit = tmp_path / "audit.log"
    more = {"listener.name.required.ssl.principal.mapping.rules": "RULE:^CN=a$/b/,RULE:^CN=nobody$//"}
    more["kop.audit.file"] = str(audit)

    async def main() -> None:
        async with serving_tls(tmp_path, ca, **more) as serving:
            caplog.clear()
            for name in ("carol", "nobody"):
                client = await client_of(serving, ca, REQUIRED, ca.keystore(name))
                with contextlib.suppress(OSError):
                    assert await client.reader.read() == b""
                    await client.close()
            await until(lambda: len(closings(caplog)) == 2)

    run(main())
    none, empty = closings(caplog)
    assert "have no rule for its certificate's subject 'CN=carol'" in none
    assert "make nothing of its certificate's subject 'CN=nobody'" in empty
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["event"], line["name"]) for line in lines] == [
        ("login failed", "CN=carol"),
        ("login failed", "CN=nobody"),
    ]


def test_a_login_decides_and_the_certificate_is_asked_for_besides(tmp_path: Path, ca: Authority) -> None:
    async def main() -> None:
        async with serving_tls(tmp_path, ca) as serving:
            client = await client_of(serving, ca, LOGIN, ca.keystore("admin"))
            client.send(3, 1, topics=[])
            assert await client.closed(), "it is nobody before the login"
            await client.close()
            client = await client_of(serving, ca, LOGIN, None)
            client.writer.write(b"\0")
            with contextlib.suppress(OSError):
                assert await client.reader.read() == b""
                await client.close()

    run(main())


def test_brokers_call_each_other_by_their_certificates(tmp_path: Path, ca: Authority) -> None:
    """What a broker of the cluster opens has its name and rights; another certificate gives none."""

    async def main() -> None:
        async with serving_tls(tmp_path, ca) as serving:
            for name, allowed in (("broker", True), ("carol", False)):
                config = Config.load(
                    overrides=settings_of(ca) | {"ssl.keystore.location": ca.keystore(name)}, environ={}
                )
                endpoint, *_ = endpoints(config.of(ServerSettings))
                settings = config.of(ListenerSettings, listener=endpoint.key)
                dial = dialer(endpoint, settings, alone=False)
                assert dial.tls is not None
                client = RawClient(*await dial.open(*serving.listeners[REQUIRED]))
                answer = await client.call(24, 4, transactions=[])  # which needs ClusterAction
                assert (answer.error_code == ErrorCode.NONE) == allowed
                await client.close()

    run(main())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ssl.truststore.location": ""}, "ssl.client.auth=required needs ssl.truststore.location"),
        ({"ssl.truststore.type": "JKS"}, "keytool -importkeystore"),
        ({"ssl.client.auth": "maybe"}, "'none', 'requested' or 'required'"),
        ({"ssl.principal.mapping.rules": "RULE:a"}, "listener REQUESTED: ssl.principal.mapping.rules has 'RULE:a'"),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols has to be of TLSv1.2, TLSv1.3, and has SSLv3"),
    ],
)
def test_what_cannot_be_had_is_an_error_at_the_start(
    tmp_path: Path, ca: Authority, settings: dict[str, str], why: str
) -> None:
    async def main() -> None:
        async with serving_tls(tmp_path, ca, **settings):
            pass

    with pytest.raises(ConfigError, match=why):
        run(main())


def test_librdkafka_writes_by_its_certificate(tmp_path: Path, ca: Authority) -> None:
    keystore = ca.keystore("broker")
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.location": ca.pem,
        "ssl.certificate.location": keystore,
        "ssl.key.location": keystore,
    }

    def write(port: int) -> int:
        producer = Producer({**settings, "bootstrap.servers": f"localhost:{port}", "broker.address.family": "v4"})
        producer.produce("t", b"by certificate")
        return int(producer.flush(20))

    async def main() -> None:
        async with serving_tls(tmp_path, ca) as serving:
            assert await asyncio.to_thread(write, serving.listeners[REQUIRED][1]) == 0

    run(main())
