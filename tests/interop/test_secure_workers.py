"""`kop serve --workers 2` over Pulsar with two listeners: clients log in at one of them, by TLS, and ACLs decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
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
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from faults.fault_kit import gateway, running
from interop.interop_kit import SECONDS
from support.certificates import self_signed
from support.child import Child, free_ports
from support.pulsar import Urls, fresh_namespace
from support.waiting import wait_until

from kop.security.settings import STANDARD_AUTHORIZER

WORKERS, PARTITIONS = 2, 20
"""A hash of the topic's random id deals partitions to workers: all go to one of them once in 2 ** 19 runs."""
PASSWORD = "of-alice"


@dataclass
class Served:
    """The gateway, where it is plain, and the certificate that its clients trust."""

    child: Child
    plain: int
    certificate: str
    admins: tuple[AdminClient, ...]
    """Clients of the plain listener, one of each worker's own port: they may do everything."""

    def client(self, port: int = 0) -> dict[str, Any]:
        """Settings of a client that logs in as alice."""
        return {
            "bootstrap.servers": f"127.0.0.1:{port or self.child.port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
            "ssl.ca.location": self.certificate,
            "log_level": 0,
        }


@pytest.fixture(scope="module")
def served(pulsar_urls: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("workers")
    certificate, key = self_signed(folder, "server", "IP:127.0.0.1")
    keystore = folder / "keystore.pem"
    keystore.write_text(Path(certificate).read_text() + Path(key).read_text())
    first = free_ports(2 * (WORKERS + 1))
    plain = first + WORKERS + 1
    settings = {
        "listeners": f"SECURE://127.0.0.1:{first},PLAINTEXT://127.0.0.1:{plain}",
        "listener.security.protocol.map": "SECURE:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.secure.ssl.keystore.location": str(keystore),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "kop.workers": str(WORKERS),
    }
    with fresh_namespace(pulsar_urls) as pulsar:
        child = gateway(folder / "kop", pulsar, 1, "", **settings)
        child.port = first
        with running(child):
            ports = (plain + 1, plain + 2)
            admins = tuple(AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}) for port in ports)
            served = Served(child, plain, certificate, admins)
            wait_until(lambda: all(brokers(admin) == set(ports) for admin in admins))
            credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            upsertion = UserScramCredentialUpsertion("alice", credential, PASSWORD.encode())
            for future in served.admins[0].alter_user_scram_credentials([upsertion]).values():
                future.result(SECONDS)
            yield served


def brokers(admin: AdminClient) -> set[int]:
    """The ports that Metadata names."""
    try:
        return {broker.port for broker in admin.list_topics(timeout=2).brokers.values()}
    except KafkaException:
        return set()


def is_told(admin: AdminClient, ports: set[int]) -> bool:
    return brokers(admin) == ports


def code(call: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        call()
    return int(caught.value.args[0].code())


def test_clients_of_both_workers_log_in_and_do_what_acls_allow(served: Served) -> None:
    own = [served.child.port + 1 + worker for worker in range(WORKERS)]
    wait_until(
        lambda: f"kop check --bootstrap 127.0.0.1:{served.child.port} --client-config FILE\n" in served.child.log
    )
    topic, hidden = "orders", "hidden"
    for future in served.admins[0].create_topics([NewTopic(name, PARTITIONS) for name in (topic, hidden)]).values():
        future.result(SECONDS)

    # Clients are told of the listener that they came by, by each of its ports.
    for port in (served.child.port, *own):
        wait_until(partial(is_told, AdminClient(served.client(port)), set(own)))
    assert brokers(served.admins[0]) == {served.plain + 1, served.plain + 2}
    wrong = AdminClient(served.client(own[1]) | {"sasl.password": "wrong"})
    assert code(lambda: wrong.list_topics(timeout=2)) in (KafkaError._AUTHENTICATION, KafkaError._TRANSPORT)

    # Nothing is allowed before there is an ACL, which one worker is told, and both keep.
    alice = AdminClient(served.client(own[1]))
    assert not {topic, hidden} & set(alice.list_topics(timeout=SECONDS).topics)
    acls = [
        AclBinding(kind, topic, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW)
        for kind, operation in (
            (ResourceType.TOPIC, AclOperation.WRITE),
            (ResourceType.TOPIC, AclOperation.READ),
            (ResourceType.GROUP, AclOperation.READ),
        )
    ]
    for acl_future in served.admins[0].create_acls(acls).values():
        acl_future.result(SECONDS)
    wait_until(lambda: topic in alice.list_topics(timeout=SECONDS).topics, seconds=2)
    assert hidden not in alice.list_topics(timeout=SECONDS).topics

    # Each worker leads some of the partitions.
    leaders = {place.leader for place in alice.list_topics(topic, timeout=SECONDS).topics[topic].partitions.values()}
    assert len(leaders) == WORKERS
    producer = Producer(served.client())
    for number in range(10 * PARTITIONS):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer(served.client() | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read: list[int] = []
    while len(read) < 10 * PARTITIONS:
        (message,) = consumer.consume(1, SECONDS)
        assert message.error() is None, message.error()
        read.append(int(message.value()))
    consumer.close()
    assert sorted(read) == list(range(10 * PARTITIONS))

    refused: list[int] = []
    try:
        producer.produce(hidden, "x", on_delivery=lambda error, _: refused.append(error.code()))
    except KafkaException as error:  # librdkafka knows it at once if the answer about the topic comes meanwhile
        refused.append(error.args[0].code())
    producer.flush(SECONDS)
    assert refused == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
