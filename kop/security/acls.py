"""The ACLs of a cluster: what each says, which of them a filter finds, and which apply to a resource.

Owns: an ACL, a filter, and the set of all ACLs, arranged so that those of one name are found at once, however many
others there are.
Must not know: how they are kept, what is decided by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, TypeAlias

from kop.security.rights import RESOURCES_OF_SPACES, AclOperation, PatternType, Permission, ResourceType
from kop.security.tenants import HOME, Space

WILDCARD: Final = "*"
"""The name, literal, of an ACL for all names, and the host of one for all hosts."""
EVERYBODY: Final = "User:*"
"""The principal of an ACL for all principals."""


class Acl(NamedTuple):
    """One right that a principal has, or that it is denied: Kafka's `AclBinding`."""

    resource: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission


class AclFilter(NamedTuple):
    """The description of some ACLs: Kafka's `AclBindingFilter`. None stands for any text, the codes of ANY for any."""

    resource: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    def finds(self, acl: Acl) -> bool:
        """Return true if the filter describes the ACL."""
        return (
            self.resource in {ResourceType.ANY, acl.resource}
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {AclOperation.ANY, acl.operation}
            and self.permission in {Permission.ANY, acl.permission}
            and self._finds_name(acl)
        )

    def _finds_name(self, acl: Acl) -> bool:
        if self.pattern not in {PatternType.ANY, PatternType.MATCH, acl.pattern}:
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != PatternType.MATCH:
            return False
        return self.name.startswith(acl.name) if acl.pattern == PatternType.PREFIXED else acl.name == WILDCARD


def stored(acl: Acl, space: Space) -> Acl:
    """Return the ACL that is kept for one that a client of the space makes: its name becomes the stored one, and one
    for all names becomes one for all names of the space.
    """
    if space.is_home:
        return acl
    if acl.pattern is PatternType.LITERAL and acl.name == WILDCARD:
        return acl._replace(pattern=PatternType.PREFIXED, name=space.inward(""))
    return acl._replace(name=space.inward(acl.name))


def seen(acl: Acl, space: Space) -> Acl | None:
    """Return a kept ACL as clients of the space see it; None if it does not belong to the space."""
    if space.is_home:
        return acl
    name = space.outward(acl.name)
    if name is None or acl.resource not in RESOURCES_OF_SPACES:
        return None
    if acl.resource is ResourceType.TOPIC and "/" in name:
        return None  # no topic has such a name there
    literal = acl.pattern is PatternType.LITERAL
    if not name:
        return None if literal else acl._replace(pattern=PatternType.LITERAL, name=WILDCARD)
    return None if literal and name == WILDCARD else acl._replace(name=name)


ByPrincipal: TypeAlias = Mapping[str, Iterable[Acl]]
_Place: TypeAlias = tuple[int, str]


class Acls:
    """All ACLs."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self._all: set[Acl] = set()
        self._literal: dict[_Place, dict[str, list[Acl]]] = {}
        """ACLs with these very names, by type and name of the resource, and by principal."""
        self._prefixed: dict[_Place, dict[str, list[Acl]]] = {}
        self._lengths: dict[int, Counter[int]] = {}
        """The number of prefixes of each length that there are, by the type of the resource."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._all)

    def __contains__(self, acl: object) -> bool:
        return acl in self._all

    def add(self, acl: Acl) -> None:
        """Add an ACL. One that is there changes nothing."""
        if acl in self._all:
            return
        self.version += 1
        self._all.add(acl)
        place = int(acl.resource), acl.name
        places = self._prefixed if acl.pattern == PatternType.PREFIXED else self._literal
        if place not in places and places is self._prefixed:
            self._lengths.setdefault(place[0], Counter())[len(acl.name)] += 1
        places.setdefault(place, {}).setdefault(acl.principal, []).append(acl)

    def remove(self, acl: Acl) -> None:
        """Remove an ACL. One that is not there changes nothing."""
        if acl not in self._all:
            return
        self.version += 1
        self._all.remove(acl)
        place = int(acl.resource), acl.name
        places = self._prefixed if acl.pattern == PatternType.PREFIXED else self._literal
        places[place][acl.principal].remove(acl)
        if not places[place][acl.principal]:
            del places[place][acl.principal]
        if places[place]:
            return
        del places[place]
        if places is self._prefixed:
            self._lengths[place[0]] -= Counter([len(acl.name)])  # drops one that is 0 then

    def replace(self, acls: Iterable[Acl]) -> None:
        """Make these the only ACLs; those that exist already stay as they are."""
        wanted = set(acls)
        for acl in self._all - wanted:
            self.remove(acl)
        for acl in wanted - self._all:
            self.add(acl)

    def matching(self, which: AclFilter, space: Space = HOME) -> list[Acl]:
        """Return the ACLs that a filter describes, in the order of their names. The filter has the names that clients
        of `space` use; the ACLs are as they are kept.

        It looks at all ACLs, unless the filter has a type of resource and a name, and the space is the home space.
        """
        if space.is_home:
            return sorted(filter(which.finds, self._candidates(which)))
        return sorted(acl for acl in self._all if (shown := seen(acl, space)) is not None and which.finds(shown))

    def _candidates(self, which: AclFilter) -> Iterable[Acl]:
        if which.resource is ResourceType.ANY or which.name is None:
            return self._all
        if which.pattern is PatternType.MATCH:
            places: Iterable[ByPrincipal] = self.of(which.resource, which.name)
        else:
            place = int(which.resource), which.name
            places = [named[place] for named in (self._literal, self._prefixed) if place in named]
        return (acl for by_principal in places for acls in by_principal.values() for acl in acls)

    def of(self, resource: ResourceType, name: str) -> Iterator[ByPrincipal]:
        """Yield the ACLs that apply to the resource of that name: for each pattern that matches, those of each
        principal.
        """
        kind = int(resource)
        if (exact := self._literal.get((kind, name))) is not None:
            yield exact
        if name != WILDCARD and (wildcard := self._literal.get((kind, WILDCARD))) is not None:
            yield wildcard
        for length in self._lengths.get(kind, ()):
            if length <= len(name) and (prefixed := self._prefixed.get((kind, name[:length]))) is not None:
                yield prefixed


def plain_host(host: str) -> str:
    """Return an IP address in the form in which equal ones are equal texts, an IPv4 address that is mapped into IPv6 as
    such; any other text as it is.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
