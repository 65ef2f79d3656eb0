"""Two tenants of one gateway: users who belong to namespaces of their own, in which they may do everything.

Owns: the settings of a gateway with tenants, their users and rights, and how clients log in.
Must not know: what the tenants do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

TENANTS: Final = ("red", "blue")
"""The users, who are tenants by their names."""
ROOT: Final = "root"
"""The super user, by whom gateways call one another, too."""
PASSWORD: Final = "let-me-in"
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


def admit(bootstrap: str, tenants: Sequence[str] = TENANTS) -> None:
    """Let each tenant do everything in its namespace, as a super user does, by full names."""
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
    for future in admin.create_acls(acls, request_timeout=30).values():
        future.result(60)
