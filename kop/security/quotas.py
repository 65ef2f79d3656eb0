"""The quotas of a cluster: how much of what a user, a client id or an address may take, and which quota holds for whom.

Owns: kinds of quotas, the entities that they are for, Kafka's precedence among them, which of them a filter finds.
Must not know: how they are kept, how much anybody takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeAlias

from kop.errors import ErrorCode, PeerError
from kop.security.acls import plain_host
from kop.security.tenants import HOME, Space

DEFAULT: Final = ""
"""The name, in an entity, of all that have no quota of their own."""
LONGEST_NAME: Final = 32_767
"""Bytes of a name in an entity."""


class QuotaKind(StrEnum):
    """The kinds of use that a quota bounds, by Kafka's keys."""

    PRODUCED = "producer_byte_rate"
    CONSUMED = "consumer_byte_rate"
    REQUESTS = "request_percentage"
    MUTATIONS = "controller_mutation_rate"
    CONNECTIONS = "connection_creation_rate"


_MOST: Final = {
    QuotaKind.PRODUCED: ("LONG", 2**63),
    QuotaKind.CONSUMED: ("LONG", 2**63),
    QuotaKind.CONNECTIONS: ("INT", 2**31),
}
"""The kinds whose values are whole, with Kafka's type of them, and what they have to be below."""
_FRACTION: Final = 1e-6


class Entity(NamedTuple):
    """The owner of a quota. A name of None is no part of it; `DEFAULT` stands for each that has no quota of its own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def names(self) -> dict[str, str | None]:
        """Return the parts of the entity by Kafka's types; None is Kafka's default name."""
        parts = zip(TYPES, self, strict=True)
        return {kind: name or None for kind, name in parts if name is not None}


TYPES: Final = ("user", "client-id", "ip")
"""Kafka's types of entities, in the order of the fields of `Entity`."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity that a client names by types and names; a name of None is the default of the type. PeerError if
    there is no such entity.
    """
    names: dict[str, str] = {}
    for kind, name in parts:
        if kind in names:
            raise PeerError("Invalid client quota entity, duplicate entity entry")
        if kind not in TYPES:
            raise PeerError(f"Unhandled client quota entity type: {kind[:100]}")
        if name == "":
            raise PeerError(f"Empty {kind} not supported")
        if name is not None and len(name.encode()) > LONGEST_NAME:
            raise PeerError(f"The {kind} is longer than {LONGEST_NAME} bytes")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise PeerError("Invalid empty client quota entity")
    entity = Entity(*map(names.get, TYPES))
    if entity.ip is None:
        return entity
    if len(names) > 1:
        raise PeerError("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    host = plain_host(entity.ip)
    if entity.ip and not _is_address(host):
        raise PeerError(f"{entity.ip[:100]} is not a valid IP")
    return entity._replace(ip=host)


def stored(entity: Entity, space: Space) -> Entity:
    """Return the entity under which a quota of a client's space is kept. The default of a space is for all users, or
    client ids, of the space.
    """
    user, client_id, ip = entity
    if not space.is_home:
        user, client_id = (None if name is None else space.inward(name) for name in (user, client_id))
    return Entity(user, client_id, ip)


def seen(entity: Entity, space: Space) -> Entity | None:
    """Return the entity of a kept quota as clients of the space see it; None if it belongs to another space."""
    if space.is_home:
        return entity
    user, client_id = (None if name is None else space.outward(name) for name in entity[:2])
    shown = Entity(user, client_id)
    return shown if stored(shown, space) == entity else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def check(entity: Entity, key: str, value: float) -> QuotaKind:
    """Return the kind of quota that a client wants to set for the entity, by Kafka's name `key`. PeerError if the
    entity cannot have that quota, or the value is not possible.
    """
    takes = {QuotaKind.CONNECTIONS} if entity.ip is not None else set(QuotaKind) - {QuotaKind.CONNECTIONS}
    if key not in takes:
        raise PeerError(f"Invalid configuration key {key[:100]}")
    kind = QuotaKind(key)
    if math.isnan(value):
        raise PeerError(f"Quota {key} must be a number")
    if value <= 0:
        raise PeerError(f"Quota {key} must be greater than 0")
    if math.isinf(value):
        raise PeerError(f"Quota {key} must be finite")
    if kind in _MOST:
        name, most = _MOST[kind]
        if value >= most:
            raise PeerError(f"Proposed value for {key} is too large for {'an' if name == 'INT' else 'a'} {name}.")
        if value % 1.0 > _FRACTION:
            raise PeerError(f"{key} cannot be a fractional value.")
    return kind


class QuotaMatch(NamedTuple):
    """The filter of the entities that a client asks for, by the parts of entities; see `match_of`."""

    exact: Mapping[str, str]
    """The names that parts must have, by Kafka's types."""
    any_name: frozenset[str]
    """The types of parts that must be there, with any name."""
    strict: bool
    """True if there must be no other parts."""

    def finds(self, entity: Entity) -> bool:
        """Return true if the filter describes the entity."""
        parts = {kind: name for kind, name in zip(TYPES, entity, strict=True) if name is not None}
        if self.strict and len(parts) != len(self.exact) + len(self.any_name):
            return False
        return self.any_name <= parts.keys() and self.exact.items() <= parts.items()


_EXACT, _DEFAULT, _ANY = range(3)


def match_of(components: Iterable[tuple[str, int, str | None]], strict: bool) -> QuotaMatch:
    """Return the filter that a client has given as components: type, Kafka's code of how to match, name. PeerError if a
    component is wrong.
    """
    exact: dict[str, str] = {}
    any_name: set[str] = set()
    for kind, how, name in components:
        if not kind:
            raise PeerError("Invalid empty entity type.")
        if kind in exact or kind in any_name:
            raise PeerError(f"Entity type {kind[:100]} cannot appear more than once in the filter.")
        if kind not in TYPES:
            raise PeerError(f"Unsupported entity type {kind[:100]}", ErrorCode.UNSUPPORTED_VERSION)
        if how == _EXACT:
            if name is None:
                raise PeerError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            if name != DEFAULT:
                exact[kind] = plain_host(name) if kind == "ip" else name
            else:
                exact[kind] = "\0"  # no name, as that of no entity
            continue
        if how not in {_DEFAULT, _ANY}:
            raise PeerError(f"Unknown match type {how}")
        if name is not None:
            text = "DEFAULT" if how == _DEFAULT else "SPECIFIED"
            raise PeerError(f"Request specified MATCH_TYPE_{text}, but also specified a match string.")
        if how == _DEFAULT:
            exact[kind] = DEFAULT
        else:
            any_name.add(kind)
    asked = exact.keys() | any_name
    if "ip" in asked and len(asked) > 1:
        raise PeerError(
            "Invalid entity filter component combination: IP filter component should not be combined with user or "
            "clientId filter component."
        )
    return QuotaMatch(exact, frozenset(any_name), strict)


Share: TypeAlias = tuple[str | None, str | None]
"""The user and the client id whose requests count together; None: those of all."""


class Quotas:
    """All quotas."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self.of_clients = False
        """True if there is a quota that is not one of addresses."""
        self._values: dict[Entity, dict[QuotaKind, float]] = {}
        self._entities_of_clients = 0

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def of(self, entity: Entity) -> Mapping[QuotaKind, float]:
        """Return the quotas of this very entity, by kind; empty if it has none."""
        return self._values.get(entity, {})

    def matching(self, which: QuotaMatch, space: Space = HOME) -> Iterator[tuple[Entity, Mapping[QuotaKind, float]]]:
        """Yield the entities that a filter describes, in order, with their quotas. Filter and entities have the names
        that clients of `space` use.
        """
        in_its_words = [
            (shown, values)
            for entity, values in self._values.items()
            if (shown := seen(entity, space)) is not None and which.finds(shown)
        ]
        yield from sorted(in_its_words, key=lambda item: [(name is not None, name or "") for name in item[0]])

    def put(self, entity: Entity, kind: QuotaKind, value: float | None) -> None:
        """Set the quota of that kind for an entity; None removes it. The version grows if that changes anything."""
        known = self._values.get(entity, {})
        if known.get(kind) == value:
            return
        self.version += 1
        if value is None:
            del known[kind]
        else:
            known[kind] = value
        if (entity in self._values) != bool(known):
            self._entities_of_clients += (1 if known else -1) if entity.ip is None else 0
            self.of_clients = self._entities_of_clients > 0
        if known:
            self._values[entity] = known
        else:
            del self._values[entity]

    def replace(self, values: Mapping[tuple[Entity, QuotaKind], float]) -> None:
        """Make these the only quotas; the version grows if that changes anything."""
        there = [(entity, kind) for entity, known in self._values.items() for kind in known]
        for key in there:
            if key not in values:
                self.put(*key, None)
        for (entity, kind), value in values.items():
            self.put(entity, kind, value)

    def limit(self, kind: QuotaKind, user: str, client_id: str, space: Space = HOME) -> tuple[float, Share] | None:
        """Return the quota of that kind that holds for a client, and the user and client id with whom it is shared,
        None for all; None if there is no quota.

        The first that there is holds: of user and client id, user and default client id, user, then the same with the
        default user, then of the client id, and of the default one. For a client of a tenant these are quotas of its
        space; if that has none, the defaults of the cluster hold.
        """
        user, client_id = space.inward(user), space.inward(client_id)
        both, alone = (user, client_id), (user, None)
        for default in (space.inward(DEFAULT),) if space.is_home else (space.inward(DEFAULT), DEFAULT):
            for entity, share in (
                (Entity(user, client_id), both),
                (Entity(user, default), both),
                (Entity(user), alone),
                (Entity(default, client_id), both),
                (Entity(default, default), both),
                (Entity(default), alone),
                (Entity(None, client_id), (None, client_id)),
                (Entity(None, default), (None, client_id)),
            ):
                value = self._values.get(entity, {}).get(kind)
                if value is not None:
                    return value, share
        return None

    def connections(self, host: str) -> float | None:
        """Return how many connections a second an address may open; None if there is no quota for it."""
        for entity in (Entity(ip=plain_host(host)), Entity(ip=DEFAULT)):
            value = self._values.get(entity, {}).get(QuotaKind.CONNECTIONS)
            if value is not None:
                return value
        return None
