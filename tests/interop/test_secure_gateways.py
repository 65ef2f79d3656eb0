"""Two gateways on one Pulsar whose clients come by SASL_SSL, and the gateways to one another: by the same listener, or
by their certificates on one of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from interop.interop_kit import SECONDS, Interop
from support.certificates import self_signed
from support.pulsar_gateway import PulsarGateway
from support.waiting import wait_until

from kop.security import records
from kop.security.settings import STANDARD_AUTHORIZER
from kop.security.users import Mechanism, ScramCredential

PASSWORDS = {"broker": "between", "admin": "all", "alice": "some", "eve": "none"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="between";'


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a certificate and its key, which clients and gateways trust."""
    folder = tmp_path_factory.mktemp("tls")
    chain, key = self_signed(folder, "server", "DNS:localhost,IP:127.0.0.1")
    keystore = folder / "keystore.pem"
    keystore.write_text(Path(chain).read_text() + Path(key).read_text())
    return str(keystore)


BY_CERTIFICATES = {
    "listeners": "SECURE://127.0.0.1:0,BETWEEN://127.0.0.1:0",
    "listener.security.protocol.map": "SECURE:SASL_SSL,BETWEEN:SSL",
    "inter.broker.listener.name": "BETWEEN",
    "listener.name.between.ssl.client.auth": "required",
    "super.users": "User:CN=kop test;User:admin",
    "sasl.jaas.config": "",
}


@pytest.fixture(scope="module", params=["scram", "certificates"])
def secure(request: pytest.FixtureRequest, interop: Interop, certificate: str) -> Iterator[Interop]:
    settings = {
        "listeners": "SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "SECURE:SASL_SSL",
        "ssl.keystore.location": certificate,
        "ssl.truststore.location": certificate,
        "sasl.jaas.config": JAAS,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:broker;User:admin",
    } | (BY_CERTIFICATES if request.param == "certificates" else {})
    gateways = [
        PulsarGateway(interop.pulsar, f"secure-{request.param}", node_id=str(number), **settings) for number in (1, 2)
    ]
    gateways[0].start()
    serving = gateways[0].serving
    assert serving is not None
    users = [
        records.of_user(name, Mechanism.SCRAM_SHA_256, ScramCredential.of_password(Mechanism.SCRAM_SHA_256, password))
        for name, password in PASSWORDS.items()
    ]
    gateways[0].call(serving.gateway.security.write(lambda: users))
    gateways[1].start()
    yield replace(interop, gateway=gateways[0], other=gateways[1])
    for gateway in gateways:
        gateway.stop()


def client(gateway: PulsarGateway, certificate: str, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": gateway.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
        "ssl.ca.location": certificate,
        "log_level": 0,  # a gateway that has stopped is no news
        **more,
    }


def allow(admin: AdminClient, user: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
    literal = ResourcePatternType.LITERAL
    acl = AclBinding(kind, name, literal, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    for future in admin.create_acls([acl]).values():
        future.result(SECONDS)


def test_transactions_over_both_gateways(secure: Interop, certificate: str) -> None:
    admin = AdminClient(client(secure.gateway, certificate, "admin"))
    both = {gateway.address[1] for gateway in (secure.gateway, secure.other)}
    wait_until(lambda: {broker.port for broker in admin.list_topics(timeout=SECONDS).brokers.values()} == both)
    topic, partitions = secure.name(), 6  # each gateway leads some
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(SECONDS)
    for kind, name, operation in (
        (ResourceType.TOPIC, topic, AclOperation.WRITE),
        (ResourceType.TOPIC, topic, AclOperation.READ),
        (ResourceType.GROUP, topic, AclOperation.READ),
        (ResourceType.TRANSACTIONAL_ID, topic, AclOperation.WRITE),
    ):
        allow(admin, "alice", kind, name, operation)
    settings = client(secure.other, certificate, "alice")
    producer = Producer({**settings, "transactional.id": topic, "transaction.timeout.ms": 20_000})
    producer.init_transactions(SECONDS)
    for committed in (True, False, True):
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(topic, str(committed), partition=partition)
        if committed:
            producer.commit_transaction(SECONDS)
        else:
            producer.flush(SECONDS)
            producer.abort_transaction(SECONDS)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    while len(values) < 2 * partitions:
        (message,) = consumer.consume(1, SECONDS)
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    assert values == [b"True"] * 2 * partitions


def test_who_has_no_right_learns_nothing(secure: Interop, certificate: str) -> None:
    admin = AdminClient(client(secure.gateway, certificate, "admin"))
    topic = secure.name()
    admin.create_topics([NewTopic(topic, 1)])[topic].result(SECONDS)
    eve = AdminClient(client(secure.other, certificate, "eve"))
    assert topic not in eve.list_topics(timeout=SECONDS).topics
    assert eve.list_topics(topic, timeout=SECONDS).topics[topic].error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    other = secure.name()
    with pytest.raises(KafkaException) as caught:
        eve.create_topics([NewTopic(other, 1)])[other].result(SECONDS)
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
