"""The access to registries: where they are, and how a client shows who it is.

Owns: these values.
Must not know: how a registry is asked, the names of options.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """The access to a registry with Confluent's API."""

    url: str
    """The URL; several have commas between them."""
    user_info: str = ""
    """The user and password, `USER:PASSWORD`; empty for none."""
    token: str = ""
    """The bearer token; empty for none."""
    ca_file: str | None = None
    """The path of the certificates that are trusted; None for those of the system."""


@dataclass(frozen=True, slots=True)
class PulsarAccess:
    """The access to Pulsar's admin REST."""

    url: str
    auth: str = ""
    """The credentials, as `kop.pulsar_client.auth` reads them; empty for none."""
    ca_file: str | None = None
    """The path of the certificates that are trusted beside those of the system."""
