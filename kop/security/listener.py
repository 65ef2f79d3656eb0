"""The demands of one listener on its clients before they are served.

Owns: the certificate and the mechanisms of a listener, together.
Must not know: sockets, settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kop.security.login import Login, Mechanisms
from kop.security.tenant_membership import TenantMembership
from kop.security.tenants import HOME, Space
from kop.security.tls import TlsContext


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The security of a listener."""

    name: str = ""
    tls: TlsContext | None = None
    """None if TLS is not spoken."""
    mechanisms: Mechanisms = field(default_factory=dict)
    """The mechanisms by which clients may log in; empty if they need not."""
    largest_before_login: int = 0
    """Bytes of the largest request before a client has logged in."""
    name_of: Callable[[str], str] | None = None
    """Returns the principal of a client with this certificate; None if certificates name nobody. ValueError tells why
    the client is not taken.
    """
    membership: TenantMembership | None = None
    """Says where clients belong; None: all are of the home space."""
    space: Space = HOME
    """The space of names of clients that say nothing of who they are."""

    def identified(self, subject: str) -> tuple[str, Space]:
        """Return the principal and the space of a client whose certificate has this subject, on a listener where
        certificates identify clients. ValueError if the client is refused, with the reason.
        """
        assert self.name_of is not None
        principal = self.name_of(subject)
        return principal, HOME if self.membership is None else self.membership.at_once(principal)

    def login(self) -> Login | None:
        """Return a login for a new connection; None if clients of the listener need not log in."""
        return Login(self.mechanisms, self.membership) if self.mechanisms else None


OPEN: Final = ListenerSecurity()
"""Neither TLS nor a login."""
