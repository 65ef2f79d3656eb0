"""HOST:PORT, as settings and commands have it.

Owns: reading and showing one.
Must not know: who listens or connects there. It loads next to nothing: every command has it.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Address(NamedTuple):
    """HOST:PORT. An empty host means every address of the machine, port 0 one that the system picks."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host or "*"
        return f"{host}:{self.port}"


class NamedAddress(NamedTuple):
    """NAME://HOST:PORT: an address that has a name, by which settings are given for it alone."""

    name: str
    address: Address

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def is_loopback(host: str) -> bool:
    """Return true if only this machine reaches a host of this name or address."""
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def parse_address(text: str) -> Address:
    """Return the address in `HOST:PORT`, `[V6]:PORT`, `:PORT` or `*:PORT`; the last two have an empty host. Raises
    ValueError with a line for people.
    """
    text = text.strip()
    if "://" in text:
        raise ValueError(f"must be HOST:PORT without a scheme: {text.partition('://')[2]}")
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"must be HOST:PORT with a port of 0 to 65535, got {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"must have its IPv6 address in brackets: [{host}]:{port}")
    return Address("" if host == "*" else host, int(port))
