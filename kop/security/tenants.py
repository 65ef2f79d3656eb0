"""Tenants: the space of names in which a client works, a namespace of Pulsar or, in other stores, a prefix of names.

Owns: how a client's names become those under which everything is stored, and back.
Must not know: requests, who is in which space, topics, engines.

Clients of the home space use the stored names themselves. To clients of the space T/N a name `x` stands for the stored
name `T/N/x`, of a topic, a group or a transactional id alike, and no other stored name can be named by them: one with a
slash in it is no legal name of theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LONGEST_PART: Final = 120
"""Characters of the longest tenant, and of the longest namespace of one."""
_OF_FUNCTIONS: Final = "kop.functions"
"""No tenant: begins the transactional ids of `kop functions`, which have slashes, and are no tenant's."""
_PART: Final = rf"[-\w.=:]{{1,{LONGEST_PART}}}"
_NAMESPACE: Final = re.compile(f"{_PART}/{_PART}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Space:
    """The space of names of some clients."""

    prefix: str
    """The beginning of stored names of this space: `TENANT/NAMESPACE/`, or nothing for the home space."""

    @property
    def is_home(self) -> bool:
        """True if clients use the stored names themselves."""
        return not self.prefix

    @property
    def name(self) -> str:
        """The space's name, `TENANT/NAMESPACE`; empty for the home space."""
        return self.prefix[:-1]

    def inward(self, name: str) -> str:
        """Return the stored name for the name that a client of the space uses."""
        return self.prefix + name

    def outward(self, name: str) -> str | None:
        """Return the name that clients of the space use for a stored one; None if they have none, since it is of
        another space.
        """
        return name[len(self.prefix) :] if name.startswith(self.prefix) else None


HOME: Final = Space("")
"""The space of those whom no rule puts into another one, of super users and of brokers."""


def prefix_of(name: str) -> str:
    """Return the prefix of all stored names of the space that a stored name belongs to; empty for the home space."""
    tenant, _, rest = name.partition("/")
    namespace, slash, _ = rest.partition("/")
    return f"{tenant}/{namespace}/" if slash and tenant != _OF_FUNCTIONS else ""


def is_namespace(text: str) -> bool:
    """Return true if the text can be the name of a namespace, TENANT/NAMESPACE."""
    return bool(_NAMESPACE.fullmatch(text)) and {".", "..", _OF_FUNCTIONS}.isdisjoint(text.split("/"))


def space_of(namespace: str) -> Space:
    """Return the space of a namespace, given as TENANT/NAMESPACE. ValueError if the text is no namespace."""
    if not is_namespace(namespace):
        raise ValueError(f"{namespace[:100]!r} is no namespace: TENANT/NAMESPACE, of letters, digits and - _ . = :")
    return Space(f"{namespace}/")
