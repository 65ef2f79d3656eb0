"""The listeners of a broker, made of its settings in either form.

Owns: the names, protocols and addresses of listeners, those of a worker too; what clients of each are told.
Must not know: sockets, certificates, users.

The short form (`listen`, `advertise`) has no names and no security. A worker has a listener of its own, which clients
are told of, for each one that it shares with the other workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kop.address import Address, is_loopback
from kop.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener: the address on which clients connect, and the protocol that they speak there."""

    name: str
    """The name of the listener; empty in the short form of the settings."""
    protocol: str
    """The security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    address: Address
    advertised: Address | None
    """The address that clients are told, with an empty host the one that they connected to; None: that with its port.
    """
    shared: bool = False
    """True if other workers listen on the same address."""

    @property
    def key(self) -> str:
        """The listener's name in small letters, as it stands in the names of settings for this listener alone."""
        return self.name.lower()

    @property
    def port(self) -> int:
        """The port of the address."""
        return self.address.port

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches the listener."""
        return is_loopback(self.address.host)

    @property
    def has_tls(self) -> bool:
        """True if clients have to speak TLS."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """True if clients have to log in."""
        return self.protocol.startswith("SASL")


def endpoints(settings: ServerSettings, worker: int | None = None) -> tuple[Endpoint, ...]:
    """Return the listeners of a broker, or those of the worker of that number: first its own ones, each of which has a
    port of its own (that of the settings, plus one, plus the number), then those of the settings, which it shares with
    the others.
    """
    if not settings.listeners:
        advertise = settings.advertise
        given = [
            Endpoint("", "PLAINTEXT", address, advertise[index if len(advertise) > 1 else 0] if advertise else None)
            for index, address in enumerate(settings.listen)
        ]
    else:
        told = dict(settings.advertised_listeners)
        protocols = settings.listener_security_protocol_map
        given = [Endpoint(name, protocols[name], address, told.get(name)) for name, address in settings.listeners]
    if worker is None:
        return tuple(given)
    mine = [
        replace(
            endpoint,
            address=_moved(endpoint.address, worker),
            advertised=endpoint.advertised and _moved(endpoint.advertised, worker),
        )
        for endpoint in given
    ]
    shared = [
        replace(endpoint, advertised=own.advertised or Address("", own.port), shared=True)
        for endpoint, own in zip(given, mine, strict=True)
    ]
    return (*mine, *shared)


def _moved(address: Address, worker: int) -> Address:
    return Address(address.host, address.port + 1 + worker)


def between_brokers(settings: ServerSettings, of: tuple[Endpoint, ...]) -> int:
    """Return the place in `of` of the listener by which brokers call one another: the one that the settings name, else
    the first.
    """
    name = settings.inter_broker_listener_name.upper()
    return next((place for place, endpoint in enumerate(of) if endpoint.name == name), 0)
