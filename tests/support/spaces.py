"""A gateway whose clients work in a space of names by the listener that they come by.

Owns: the listeners, and the spaces of their clients.
Must not know: who is in which space by which rule.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from kop.app import Serving
from kop.handlers.api import ConnectionInfo
from kop.security.settings import SecuritySettings
from kop.security.tenants import HOME, Space
from kop.server import connection
from support.gateway import gateway

FIRST: Final = Space("acme.org/space/")
SECOND: Final = Space("acme_org/space/")
_SPACES: Final = {"FIRST": FIRST, "SECOND": SECOND}


@contextmanager
def by_listener(of_listeners: Mapping[str, Space]) -> Iterator[dict[str, str]]:
    """Put the clients of gateways that start meanwhile into a space by the listener that they come by; return the
    settings of such a gateway. By its first listener, HOME, they come into the home space.
    """

    def client(*args: Any, **fields: Any) -> ConnectionInfo:
        made = ConnectionInfo(*args, **fields)
        made.space = of_listeners.get(made.listener, HOME)
        return made

    names = ("HOME", *of_listeners)
    has_tenants = mock.patch.object(SecuritySettings, "has_tenants", True)  # without an authorizer
    with has_tenants, mock.patch.object(connection, "ConnectionInfo", client):
        yield {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
            "listener_security_protocol_map": ",".join(f"{name}:PLAINTEXT" for name in names),
            "inter_broker_listener_name": "HOME",
        }


@asynccontextmanager
async def spaces(path: Path, **settings: str) -> AsyncIterator[Serving]:
    """Serve clients of the home space by the first listener, of two other spaces by the second and third one."""
    with by_listener(_SPACES) as chosen:
        async with gateway(path, **chosen, **settings) as serving:
            yield serving


def bootstrap(serving: Serving, listener: int) -> str:
    """Return the address of a listener, by its number."""
    host, port = serving.listeners[listener]
    return f"{host}:{port}"
