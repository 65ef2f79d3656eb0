"""Addresses of brokers.

Owns: `pulsar://` and `pulsar+ssl://` URLs.
Must not know: connections.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from kop.pulsar_client.errors import PulsarError


class PulsarAddress(NamedTuple):
    """The address of one Pulsar broker or proxy."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(url: str) -> list[PulsarAddress]:
    """Return the addresses of `pulsar://host:port,host:port` or `pulsar+ssl://...`; a host without a port has 6650, or
    6651 with TLS. PulsarError InvalidAddress if the URL is malformed.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme not in {"pulsar", "pulsar+ssl"}:
        raise PulsarError("InvalidAddress", f"{url!r} is no address of a Pulsar broker: pulsar://host:6650")
    tls = scheme == "pulsar+ssl"
    addresses = []
    for part in rest.split("/")[0].split(","):
        try:
            split = urlsplit("//" + part)
            host, port = split.hostname, split.port
        except ValueError as error:
            raise PulsarError("InvalidAddress", f"{part!r} in {url!r}: {error}") from error
        if not host or split.username is not None:
            raise PulsarError("InvalidAddress", f"{part!r} in {url!r} is no host:port")
        addresses.append(PulsarAddress(host, port or (6651 if tls else 6650), tls))
    return addresses


def is_in_clear(service_url: str, admin_url: str) -> bool:
    """Return true if one of the admin URLs is without TLS while the service URL has it: credentials would go there in
    clear text.
    """
    admin = [url.strip().lower() for url in admin_url.split(",")]
    return service_url.strip().startswith("pulsar+ssl:") and any(url.startswith("http:") for url in admin)
