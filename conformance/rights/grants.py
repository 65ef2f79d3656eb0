"""Pulsar's grants that come and go under load, of roles that a gateway with authorizer.class.name=pulsar goes by.

Owns: the tokens of a Pulsar that asks for them, and the changes of grants over its REST.
Must not know: other kinds of changes, how servers are started.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import secrets
import urllib.request
from typing import Any, Final

import jwt

from conformance.authorization.world import Connection
from conformance.rights.told import Right, Told, now
from kop.security.rights import AclOperation

BOUND: Final = 2.0
"""Seconds after which a grant is in force."""
_KEY: Final = secrets.token_bytes(32)
_PROVIDER: Final = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_ACTIONS: Final = {AclOperation.WRITE: "produce", AclOperation.READ: "consume"}


def super_token() -> str:
    """Return the token of the Pulsar's superuser."""
    return jwt.encode({"sub": "root"}, _KEY, "HS256")


def pulsar_settings() -> str:
    """Return the settings of a Pulsar that takes these tokens alone."""
    return f"""
authenticationEnabled=true
authorizationEnabled=true
authenticationProviders={_PROVIDER}
tokenSecretKey=data:;base64,{base64.b64encode(_KEY).decode()}
superUserRoles=root
brokerClientAuthenticationPlugin={_PLUGIN}
brokerClientAuthenticationParameters={{"token":"{super_token()}"}}
"""


class Grants(Right):
    """A right by a grant on the namespace and one on the topic."""

    def __init__(self, told: Told, operation: AclOperation, admin_url: str, namespace: str) -> None:
        super().__init__(told, f"grant-{operation.name.lower()}", operation, BOUND)
        self._action = _ACTIONS[operation]
        permissions = f"permissions/{self.name}"
        self._places = (
            f"{admin_url}/admin/v2/namespaces/{namespace}/{permissions}",
            f"{admin_url}/admin/v2/persistent/{namespace}/{self.name}/{permissions}",
        )
        self._there: set[str] = set()

    async def change(self, _admin: Connection, chance: random.Random) -> None:
        """Give or take one of the grants."""
        place = chance.choice(self._places)
        self._there ^= {place}
        self.belief.change(bool(self._there), now())
        if place in self._there:
            await asyncio.to_thread(call_rest, place, "POST", [self._action])
        else:
            await asyncio.to_thread(call_rest, place, "DELETE")
        self.belief.done(now())
        self._told.changed("grants")


def call_rest(url: str, method: str, body: Any = None) -> None:
    """Send a request to Pulsar's REST as its superuser."""
    headers = {"Authorization": f"Bearer {super_token()}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30).close()
