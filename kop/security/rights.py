"""The words of Kafka's ACLs: operations, types of resources, permissions and patterns, by Kafka's codes.

Owns: these codes, and which operations a given one allows besides itself.
Must not know: who has a right.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class AclOperation(IntEnum):
    """An operation on a resource, by the codes of Kafka's `AclOperation`."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class ResourceType(IntEnum):
    """A type of resource, by the codes of Kafka's `ResourceType`."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


RESOURCES_OF_SPACES: Final = frozenset(
    {ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID}
)
"""The types of resources that each tenant has of its own; the others are of all tenants together."""


class PatternType(IntEnum):
    """The ways in which the name of an ACL's resource is meant, by the codes of Kafka's `PatternType`."""

    UNKNOWN = 0
    ANY = 1
    """In a filter: literal and prefixed ones of that very name."""
    MATCH = 2
    """In a filter: all that apply to a resource of that name."""
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Allow or deny, by the codes of Kafka's `AclPermissionType`."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_Op = AclOperation
_IMPLIED_BY: Final = {
    _Op.DESCRIBE: {_Op.READ, _Op.WRITE, _Op.DELETE, _Op.ALTER},
    _Op.DESCRIBE_CONFIGS: {_Op.ALTER_CONFIGS},
}
ALLOWED_BY: Final = {
    operation: frozenset({operation, _Op.ALL} | _IMPLIED_BY.get(operation, set())) for operation in AclOperation
}
"""The operations of which one that is allowed allows the given one. A denied one implies nothing but itself, or all."""
