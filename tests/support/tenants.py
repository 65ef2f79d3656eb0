"""A gateway whose clients belong to namespaces by the names of their users, and have rights by ACLs.

Owns: its settings: a user TENANT.NAMESPACE.NAME is of TENANT/NAMESPACE; root, of no tenant, is a super user.
Must not know: what the clients do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from conformance.authorization.world import Connection
from kop.app import Serving
from kop.errors import ErrorCode
from kop.security.acls import Acl
from kop.security.records import of_acl
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.settings import STANDARD_AUTHORIZER
from support.gateway import gateway

RULES: Final = r"RULE:^User:(\w+)\.(\w+)\.\w+$/$1\/$2/"
ROOT: Final = "root"
PASSWORD: Final = "secret"


def settings_of(names: Collection[str]) -> dict[str, str]:
    """Return the settings of a gateway with these users, beside root."""
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in (ROOT, *names))
    return {
        "listeners": "LOGIN://127.0.0.1:0",
        "listener_security_protocol_map": "LOGIN:SASL_PLAINTEXT",
        "listener_name_login_sasl_enabled_mechanisms": "PLAIN",
        "listener_name_login_plain_sasl_jaas_config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "inter_broker_listener_name": "LOGIN",
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": f"User:{ROOT}",
        "kop_tenant_rules": RULES,
    }


@asynccontextmanager
async def tenants(path: Path, *names: str, **settings: str) -> AsyncIterator[Serving]:
    """Serve these users from memory."""
    async with gateway(path, **{"store": "memory:"} | settings_of(names) | settings) as serving:
        yield serving


async def logged_in(serving: Serving, name: str) -> Connection:
    """Return a connection of a user."""
    conn = await Connection.open(*serving.listeners[0])
    assert (await conn.call(17, 1, mechanism="PLAIN")).error_code == 0
    answer = await conn.call(36, 2, auth_bytes=f"\0{name}\0{PASSWORD}".encode())
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return conn


@asynccontextmanager
async def connected(serving: Serving, *names: str) -> AsyncIterator[list[Connection]]:
    """Connections of users."""
    conns = [await logged_in(serving, name) for name in names]
    try:
        yield conns
    finally:
        for conn in conns:
            conn.close()


async def give(serving: Serving, name: str, *rights: str, present: bool = True) -> None:
    """Give a user rights, or take them, each as `OPERATION TYPE NAME` with the stored name, a prefix if * is behind."""
    acls = []
    for right in rights:
        operation, resource, stored = right.split(" ", 2)
        pattern = PatternType.PREFIXED if stored.endswith("*") else PatternType.LITERAL
        acls.append(
            Acl(
                ResourceType[resource],
                stored.removesuffix("*"),
                pattern,
                f"User:{name}",
                "*",
                AclOperation[operation],
                Permission.ALLOW,
            )
        )
    await serving.gateway.security.write(lambda: [of_acl(acl, present=present) for acl in acls])
