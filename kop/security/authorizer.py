"""The rights of clients by ACLs: decides as Apache Kafka's StandardAuthorizer does.

Owns: the order of a decision (super users, a DENY, an ALLOW and what that implies, no ACL at all), and the decisions
that are remembered until the next change.
Must not know: where ACLs come from, requests.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Final, TypeAlias

from kop.security.acls import EVERYBODY, WILDCARD, Acl, Acls, plain_host
from kop.security.rights import (
    ALLOWED_BY,
    RESOURCES_OF_SPACES,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from kop.security.tenants import Space, prefix_of

MOST_REMEMBERED: Final = 50_000
"""Decisions that are remembered. Names come from clients, so there is no end of them."""
LONGEST_REMEMBERED: Final = 300
"""Characters of the longest name of which a decision is remembered: the memory of all of them has a bound, too."""
_Question: TypeAlias = tuple[str, str, int, int, str | None]
_host = lru_cache(1024)(plain_host)


class AclAuthorizer:
    """Decides by the ACLs that there are at that moment: an `access.Authorizer`."""

    def __init__(
        self, acls: Acls, super_users: Collection[str], allow_if_no_acl: bool, *, has_tenants: bool = False
    ) -> None:
        """`super_users`: principals that may do everything. `allow_if_no_acl`: an operation on a resource that no ACL
        applies to is allowed.

        `has_tenants`: in a tenant's namespace only ACLs that name the namespace allow something; one for all names, or
        for a short prefix, does not count there.
        """
        self._acls = acls
        self._has_tenants = has_tenants
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._known: dict[_Question, bool] = {}
        self._known_of = acls.version
        """The version of the ACLs that the remembered decisions are made by."""

    @property
    def version(self) -> int:
        """A number that grows with each change of what is allowed."""
        return self._acls.version

    @property
    def remembered(self) -> int:
        """The number of decisions that are remembered."""
        return len(self._known)

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Return true if the principal, connected from `host`, may do this operation on the resource of that name,
        which is a stored name. The decision is remembered until an ACL changes.
        """
        question = principal, host, operation.value, resource.value, name
        if self._known_of == self._acls.version and (known := self._known.get(question)) is not None:
            return known
        allowed = principal in self._super_users or self._decide(principal, _host(host), operation, resource, name)[0]
        return self._remember(question, allowed)

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Return true if there may be a resource of the type on which the principal, connected from `host`, may do this
        operation. The decision is remembered until an ACL changes.
        """
        question = principal, host, operation.value, resource.value, None
        if self._known_of == self._acls.version and (known := self._known.get(question)) is not None:
            return known
        allowed = principal in self._super_users or self._decide_any(principal, _host(host), operation, resource)
        return self._remember(question, allowed)

    def rule(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str | None) -> str:
        """Return the rule by which `allows` decides, or `allows_any` if `name` is None, as text for people."""
        if principal in self._super_users:
            return "super.users"
        if name is None:
            return "ACLs of any name"
        allowed, acl = self._decide(principal, _host(host), operation, resource, name)
        if acl is None:
            return "allow.everyone.if.no.acl.found" if allowed else "no ACL"
        pattern = "" if acl.pattern is PatternType.LITERAL else f"{acl.pattern.name} "
        return (
            f"ACL {acl.permission.name} {acl.operation.name} {acl.resource.name} {pattern}{acl.name} "
            f"to {acl.principal} from {acl.host}"
        )

    async def enter(self, principal: str, space: Space, *, proven: bool) -> str:
        """Return the reason for which the principal cannot belong to a space; empty if it can. It can if it is `proven`
        (by its credentials, or by rules) that it belongs there, or if some ACL allows it something there.
        """
        if proven or any(
            acl.permission is Permission.ALLOW
            and acl.principal in {principal, EVERYBODY}
            and acl.resource in RESOURCES_OF_SPACES
            and space.outward(acl.name) is not None
            for acl in self._acls
        ):
            return ""
        return f"no ACL allows {principal} anything in {space.name}"

    def _remember(self, question: _Question, allowed: bool) -> bool:
        name = question[-1]
        if name is not None and len(name) > LONGEST_REMEMBERED:
            return allowed
        if self._known_of != self._acls.version or len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
            self._known_of = self._acls.version
        self._known[question] = allowed
        return allowed

    def _decide(
        self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> tuple[bool, Acl | None]:
        """Return true if the operation is allowed, else false; and the ACL that this follows from, or None if it
        follows from none.
        """
        namespace = prefix_of(name) if self._has_tenants else ""
        nothing_applies, allowing = not namespace, None
        by_allow = ALLOWED_BY[operation]
        for by_principal in self._acls.of(resource, name):
            nothing_applies = False
            for who in (principal, EVERYBODY):
                for acl in by_principal.get(who, ()):
                    if not _is_from(acl, host):
                        continue
                    if acl.permission is Permission.DENY:
                        if _is_about(acl, operation):
                            return False, acl
                    elif acl.operation in by_allow and acl.name.startswith(namespace):
                        allowing = acl
        return allowing is not None or (nothing_applies and self._allow_if_no_acl), allowing

    def _decide_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Return true if the operation may be allowed on some resource of the type, by the rules of Kafka's default
        `Authorizer.authorizeByResourceType`: operations that an ALLOW implies do not count, and a DENY counts only if
        it covers all that some ALLOW applies to.
        """
        if self._decide(principal, host, operation, resource, "hardcode")[0]:
            return True  # Kafka asks for a topic of this name first
        allowed: set[tuple[PatternType, str]] = set()
        denied: set[tuple[PatternType, str]] = set()
        for acl in self._acls:
            if acl.resource != resource or acl.principal not in {principal, EVERYBODY}:
                continue
            if _is_from(acl, host) and _is_about(acl, operation):
                (denied if acl.permission is Permission.DENY else allowed).add((acl.pattern, acl.name))
        literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
        if (literal, WILDCARD) in denied:
            return False
        if (literal, WILDCARD) in allowed:
            return True
        return any(
            not ((pattern is literal and (literal, name) in denied) or _has_prefix(name, prefixed, denied))
            for pattern, name in allowed
        )


def _has_prefix(name: str, prefixed: PatternType, patterns: Collection[tuple[PatternType, str]]) -> bool:
    return any((prefixed, name[:length]) in patterns for length in range(1, len(name) + 1))


def _is_from(acl: Acl, host: str) -> bool:
    return acl.host in {WILDCARD, host} or _host(acl.host) == host


def _is_about(acl: Acl, operation: AclOperation) -> bool:
    return acl.operation is operation or acl.operation is AclOperation.ALL
