"""The records of users, ACLs, quotas and delegation tokens in their state topic.

Owns: their keys and values. Whoever changes them changes what other versions of the gateway find.
Must not know: who writes or reads them, and when.

Keys and values are JSON. A key is a list that begins with what the record is:
- `["acl", resource type, name, pattern type, principal, host, operation, permission]`, by Kafka's codes. Its value is
  `{}`: the key says all.
- `["scram", user, mechanism]`, by Kafka's code, with `salt`, `stored_key`, `server_key` in base64 and `iterations`.
- `["quota", kind, user, client id, address]`, by Kafka's name of the kind, with its `value`. A name is null if it is no
  part of the entity, and empty for Kafka's default.
- `["token", id]`, a delegation token, with `owner`, `requester`, `renewers`, `issued_ms`, `expires_ms`, `ends_ms`.
- `["secret"]`, with the cluster's `secret` in base64.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from kop.security.acls import Acl
from kop.security.delegation_tokens import DelegationToken
from kop.security.quotas import Entity, QuotaKind
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.users import Mechanism, ScramCredential

KeyValue: TypeAlias = tuple[bytes, bytes | None]


class SecurityEntry(NamedTuple):
    """The content of a record: one of `acl`, of `scram`, and so on, what it is about, and what it says of that."""

    kind: str
    key: Any
    """An `Acl`, a `UserKey`, the entity and the kind of a quota, the id of a token; None for the secret."""
    value: Any
    """True for an ACL, a `ScramCredential`, the limit of a quota, a `DelegationToken`, the secret; None if it is gone.
    """


ACL, SCRAM, QUOTA, TOKEN, SECRET = "acl", "scram", "quota", "token", "secret"
_NAMES, _TIMES = ("owner", "requester"), ("issued_ms", "expires_ms", "ends_ms")
"""The fields of a token that are texts, and times."""
SECRET_BYTES: Final = 32


def _packed(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


def of_acl(acl: Acl, present: bool = True) -> KeyValue:
    """Return the record that says that an ACL exists, or, if `present` is false, that it does not."""
    return _packed([ACL, *acl]), b"{}" if present else None


def of_user(name: str, mechanism: Mechanism, credential: ScramCredential | None) -> KeyValue:
    """Return the record of a user's credential; a credential of None says that it is removed."""
    key = _packed([SCRAM, name, mechanism])
    if credential is None:
        return key, None
    return key, _packed(
        {
            "salt": _text(credential.salt),
            "stored_key": _text(credential.stored_key),
            "server_key": _text(credential.server_key),
            "iterations": credential.iterations,
        }
    )


def of_quota(entity: Entity, kind: QuotaKind, value: float | None) -> KeyValue:
    """Return the record of a quota; a value of None says that it is removed."""
    return _packed([QUOTA, kind.value, *entity]), None if value is None else _packed({"value": value})


def of_token(token_id: str, token: DelegationToken | None) -> KeyValue:
    """Return the record of a delegation token; a token of None says that it is removed."""
    key = _packed([TOKEN, token_id])
    if token is None:
        return key, None
    return key, _packed({field: getattr(token, field) for field in (*_NAMES, "renewers", *_TIMES)})


def of_secret(secret: bytes) -> KeyValue:
    """Return the record of the cluster's secret."""
    return _packed([SECRET]), _packed({"secret": _text(secret)})


def _acl(fields: list[Any], value: bytes | None) -> SecurityEntry:
    resource, name, pattern, principal, host, operation, permission = fields
    if not (isinstance(name, str) and isinstance(principal, str) and isinstance(host, str)):
        raise ValueError("no text")
    acl = Acl(
        ResourceType(resource),
        name,
        PatternType(pattern),
        principal,
        host,
        AclOperation(operation),
        Permission(permission),
    )
    return SecurityEntry(ACL, acl, None if value is None else True)  # whatever it is: a denial must not fall for that


def _scram(fields: list[Any], value: bytes | None) -> SecurityEntry:
    name, mechanism = fields
    if not isinstance(name, str):
        raise ValueError("no text")
    key = name, Mechanism(mechanism)
    if value is None:
        return SecurityEntry(SCRAM, key, None)
    told = json.loads(value)
    salt, stored, server = (b64decode(told[each], validate=True) for each in ("salt", "stored_key", "server_key"))
    iterations = told["iterations"]
    if not isinstance(iterations, int) or iterations < 1 or not stored or not server:
        raise ValueError("no credential")
    return SecurityEntry(SCRAM, key, ScramCredential(salt, stored, server, iterations))


def _quota(fields: list[Any], value: bytes | None) -> SecurityEntry:
    kind, *names = fields
    if len(names) != len(Entity._fields) or not all(name is None or isinstance(name, str) for name in names):
        raise ValueError("no entity")
    entity = Entity(*names)
    if value is None:
        return SecurityEntry(QUOTA, (entity, QuotaKind(kind)), None)
    limit = json.loads(value)["value"]
    if not isinstance(limit, int | float) or not 0 < limit < math.inf:
        raise ValueError("no limit")
    return SecurityEntry(QUOTA, (entity, QuotaKind(kind)), float(limit))


def _token(fields: list[Any], value: bytes | None) -> SecurityEntry:
    (token_id,) = fields
    if not isinstance(token_id, str) or not token_id:
        raise ValueError("no id")
    if value is None:
        return SecurityEntry(TOKEN, token_id, None)
    told = json.loads(value)
    owner, requester = names = [told[field] for field in _NAMES]
    times = [told[field] for field in _TIMES]
    renewers = told["renewers"]
    if not all(isinstance(name, str) for name in (*names, *renewers)) or not all(type(time) is int for time in times):
        raise ValueError("no token")
    return SecurityEntry(TOKEN, token_id, DelegationToken(token_id, owner, requester, tuple(renewers), *times))


def _secret(fields: list[Any], value: bytes | None) -> SecurityEntry:
    if fields or value is None:
        raise ValueError("a secret has no name, and is not taken away")
    return SecurityEntry(SECRET, None, b64decode(json.loads(value)["secret"], validate=True))


_KINDS: Final[dict[str, Callable[[list[Any], bytes | None], SecurityEntry]]] = {
    ACL: _acl,
    SCRAM: _scram,
    QUOTA: _quota,
    TOKEN: _token,
    SECRET: _secret,
}


def parsed(key: bytes, value: bytes | None) -> SecurityEntry | None:
    """Return the content of a record. None if this version does not know its kind, or it cannot be parsed."""
    try:
        kind, *fields = json.loads(key)
        read = _KINDS.get(kind)
        return None if read is None else read(fields, value)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
