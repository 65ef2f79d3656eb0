"""The tenant that a client belongs to: the space of names that a client has once it has logged in.

Owns: the rules of `kop.tenant.rules`, the order of what says where a client belongs, and which namespaces are nobody's.
Must not know: requests, sockets, how rights are looked up.

What counts, the first that there is: super users are of the home space; the namespace that a client of PLAIN gives in
place of a user name, beside a token; a claim of its token; a rule over its principal. A client's own word is no proof:
it counts if the client has some right in that namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Final, Protocol

from kop.errors import ConfigError
from kop.security.principal import MappingRules, can_be_tried
from kop.security.sasl.exchange import AuthenticationError, NamespaceClaim
from kop.security.tenants import HOME, Space, space_of

RULES: Final = "kop.tenant.rules"
_SHOWN: Final = 200
"""Characters of a principal that an error shows."""


class RightsInSpaces(Protocol):
    """The authority on rights, as far as it concerns the spaces of names that clients belong to."""

    def enter(self, principal: str, space: Space, *, proven: bool) -> Awaitable[str]:
        """Return the reason for which a client cannot belong to a space; empty if it can. Unless it is `proven` (by its
        credentials, or by rules) that it belongs there, it needs some right in it.
        """

    def follow(self, space: Space) -> None:
        """Read the rights in a space again and again from now on."""


class TenantMembership:
    """The membership of clients in spaces of names, by rules."""

    def __init__(
        self, rules: str, super_users: Collection[str], home: str, reserved: Collection[str], rights: RightsInSpaces
    ) -> None:
        """`rules` is the text of kop.tenant.rules. `home` is the namespace of the home space, empty if it has none;
        `reserved` are namespaces and tenants to which no client may belong. ConfigError if `rules` cannot be parsed.
        """
        self._super_users = frozenset(super_users)
        self._home = home
        self._reserved = frozenset(reserved)
        self._rights = rights
        self._rules = None
        if rules.strip():
            try:
                self._rules = MappingRules(rules, once=True, check=self._space)
            except ValueError as error:
                raise ConfigError([f"{RULES} {error}"]) from None

    def at_once(self, principal: str) -> Space:
        """Return the space of a client of which only the principal is known, by the rules; from now on the rights in
        that space are read again and again. ValueError if it has none, with the reason.
        """
        space = self._by_rules(principal)
        self._rights.follow(space)
        return space

    def _by_rules(self, principal: str) -> Space:
        if self._rules is None or principal in self._super_users:
            return HOME
        if not can_be_tried(principal):
            raise ValueError(f"{RULES} cannot be tried on a name that is so long, or of several lines")
        namespace = self._rules.name(principal)
        if namespace is None or namespace == principal:  # no rule applies, or DEFAULT does
            return HOME
        try:
            return self._space(namespace)
        except ValueError as error:
            raise ValueError(f"{RULES} are wrong about {principal[:_SHOWN]!r}: {error}") from None

    async def of(self, principal: str, claim: NamespaceClaim | None) -> Space:
        """Return the space of a client that has logged in, by its claim or by the rules. AuthenticationError if there
        is none, or the client cannot belong to it, with the reason.
        """
        try:
            space, proven = self._claimed(principal, claim)
        except ValueError as error:
            raise AuthenticationError(str(error)) from None
        if not space.is_home and (why_not := await self._rights.enter(principal, space, proven=proven)):
            raise AuthenticationError(f"the client cannot be of {space.name}: {why_not}")
        return space

    def _claimed(self, principal: str, claim: NamespaceClaim | None) -> tuple[Space, bool]:
        """Return the space of a client, and true if it is proven that it belongs there. ValueError if the rules or the
        claim give a namespace that it cannot have.
        """
        if principal in self._super_users:
            return HOME, True
        if claim is None:
            return self._by_rules(principal), True
        space = self._space(claim.namespace)
        if not claim.is_own_word:
            return space, True
        by_rules = self._by_rules(principal)
        if space.is_home and not by_rules.is_home:
            raise ValueError(f"the client is of {by_rules.name}, not of {claim.namespace}")
        return space, space == by_rules

    def _space(self, namespace: str) -> Space:
        """Return the space of a namespace. ValueError if the text is no namespace, or no client may belong to it."""
        space = space_of(namespace)
        if namespace == self._home:
            return HOME
        if not self._reserved.isdisjoint({namespace, namespace.partition("/")[0]}):
            raise ValueError(f"the namespace {namespace} is not for clients")
        return space
