"""JSON web tokens (HS256) of roles, and the settings of a Pulsar that asks for them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from typing import Any

KEY = secrets.token_bytes(32)
"""The key of this process's tokens."""
_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


def token(role: str, seconds: float | None = None) -> str:
    """A token for a role; without `seconds` it never expires."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims: dict[str, Any] = {"sub": role}
    if seconds is not None:
        claims["exp"] = int(time.time() + seconds)
    text = part(b'{"alg":"HS256"}') + "." + part(json.dumps(claims).encode())
    return text + "." + part(hmac.new(KEY, text.encode(), hashlib.sha256).digest())


def guarded_settings() -> str:
    """Settings of a Pulsar that takes these tokens alone, and whose superuser is `root`."""
    return f"""
authenticationEnabled=true
authorizationEnabled=true
authenticationProviders={_PROVIDER}
tokenSecretKey=data:;base64,{base64.b64encode(KEY).decode()}
superUserRoles=root
authenticationRefreshCheckSeconds=2
brokerClientAuthenticationPlugin={_PLUGIN}
brokerClientAuthenticationParameters={{"token":"{token("root")}"}}
"""
