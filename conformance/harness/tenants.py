"""Two tenants of one gateway: users who belong to namespaces of their own, in which they may do everything.

Owns: the settings of a gateway with tenants, their users and rights, how clients log in, and what shows a tenant that
another one is not there.
Must not know: what the tenants do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from conformance.harness.admin import patiently

TENANTS: Final = ("red", "blue")
"""The users, who are tenants by their names."""
ROOT: Final = "root"
"""The super user, by whom gateways call one another, too."""
PASSWORD: Final = "let-me-in"
_OF_ALL: Final = "of-all"
"""A topic, a group and a transactional id of each tenant."""
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def namespace_of(tenant: str) -> str:
    """Return the namespace that a tenant has."""
    return f"public/checker-{tenant}"


def settings(address: str, advertised: str) -> dict[str, str]:
    """Return what a gateway with tenants is told, which listens on an address and tells clients another one."""
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in (ROOT, *TENANTS))
    return {
        "listeners": f"TENANTS://{address}",
        "advertised.listeners": f"TENANTS://{advertised}",
        "listener.security.protocol.map": "TENANTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "TENANTS",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.tenants.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.tenants.plain.sasl.jaas.config": f'{_MODULE} username="{ROOT}" password="{PASSWORD}" {users};',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ROOT}",
        "kop.tenant.rules": rf"RULE:^User:({'|'.join(TENANTS)})$/public\/checker-$1/",
    }


def librdkafka(user: str) -> dict[str, Any]:
    """Return the settings of librdkafka by which a user logs in; none for no user."""
    if not user:
        return {}
    login = {"sasl.username": user, "sasl.password": PASSWORD}
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"} | login


def aiokafka(user: str) -> dict[str, Any]:
    """Return the arguments of aiokafka by which a user logs in; none for no user."""
    if not user:
        return {}
    login = {"sasl_plain_username": user, "sasl_plain_password": PASSWORD}
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"} | login


def java(user: str) -> dict[str, str]:
    """Return the properties of Java's clients by which a user logs in; none for no user."""
    if not user:
        return {}
    login = {"sasl.jaas.config": f'{_MODULE} username="{user}" password="{PASSWORD}";'}
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"} | login


def admit(bootstrap: str, tenants: Sequence[str] = TENANTS) -> None:
    """Let each tenant do everything in its namespace, as a super user does, by full names. KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0} | librdkafka(ROOT))
    acls = [
        AclBinding(
            kind,
            f"{namespace_of(tenant)}/",
            ResourcePatternType.PREFIXED,
            f"User:{tenant}",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        for tenant in tenants
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    ]
    patiently(lambda: admin.create_acls(acls, request_timeout=30).values())


class Mark:
    """What a tenant leaves under names that all tenants use, and under one that it has alone, to see it again later."""

    def __init__(self, bootstrap: str, user: str) -> None:
        self._user = user
        self._connection = {"bootstrap.servers": bootstrap, "log_level": 0} | librdkafka(user)
        self._admin = AdminClient(self._connection)
        self._offset = 1 + TENANTS.index(user)
        """What its group of the name that all use has committed."""
        self._producer = Producer(self._connection | {"transactional.id": _OF_ALL})

    def leave(self) -> None:
        """Make topics and a group, and keep a transactional producer that nobody else may fence. KafkaException."""
        names = [_OF_ALL, self._own(self._user)]
        patiently(lambda: self._admin.create_topics([NewTopic(name, 1, 1) for name in names]).values())
        self._producer.init_transactions(60)
        self._write()
        offsets = [TopicPartition(_OF_ALL, 0, self._offset)]
        for group in names:
            Consumer(self._connection | {"group.id": group}).commit(offsets=offsets, asynchronous=False)

    def look(self, topics: Collection[str]) -> list[str]:
        """Return what is not as this tenant left it, or is another one's; `topics` are what it has made beside."""
        problems = []
        seen, own = set(self._admin.list_topics(timeout=60).topics), self._own(self._user)
        if seen != {*topics, _OF_ALL, own}:
            problems.append(f"topics that are listed: {sorted(seen)}")
        groups = {group.group_id for group in self._admin.list_consumer_groups(request_timeout=60).result(60).valid}
        if not {_OF_ALL, own} <= groups or any(self._own(other) in groups for other in self._others()):
            problems.append(f"groups that are listed: {sorted(groups)}")
        consumer = Consumer(self._connection | {"group.id": _OF_ALL})
        (place,) = consumer.committed([TopicPartition(_OF_ALL, 0)], timeout=60)
        if place.offset != self._offset:
            problems.append(f"committed by its group: {place.offset}, not {self._offset}")
        for other in self._others():
            for name in (self._own(other), f"{namespace_of(other)}/{_OF_ALL}"):
                if consumer.list_topics(name, timeout=60).topics[name].error is None:
                    problems.append(f"{name} is there")
        consumer.close()
        try:
            self._write()
        except KafkaException as error:
            problems.append(f"the producer of its transactional id: {error}")
        return [f"{self._user}: {problem}" for problem in problems]

    def _write(self) -> None:
        self._producer.begin_transaction()
        self._producer.produce(_OF_ALL, self._user)
        self._producer.commit_transaction(60)

    def _others(self) -> list[str]:
        return [tenant for tenant in TENANTS if tenant != self._user]

    @staticmethod
    def _own(tenant: str) -> str:
        return f"only-{tenant}"
