"""SaslHandshake (17), versions 0 and 1, and SaslAuthenticate (36), versions 0 to 2.

No listener asks clients to authenticate, so both are ILLEGAL_SASL_STATE and the connection stays open, as on a
PLAINTEXT listener of Kafka, which lists both in ApiVersions too.
"""

from __future__ import annotations

import logging
from typing import Any

from kop.errors import ErrorCode
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.wire.rows import Response

_NO_SASL = "This listener does not use SASL: connect with security.protocol=PLAINTEXT"

log = logging.getLogger(__name__)


def sasl_handshake(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer ILLEGAL_SASL_STATE for every mechanism: no listener asks clients to authenticate."""
    log.info("client %s at %s asked for SASL, which is not served: %s", ctx.client_id, ctx.conn.client_host, _NO_SASL)
    return ctx.response(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


def sasl_authenticate(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer ILLEGAL_SASL_STATE without looking at the client's bytes, which may be a password."""
    return ctx.response(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message=_NO_SASL,
        auth_bytes=b"",
        session_lifetime_ms=0,
    )


APIS = (Api(17, 0, 1, sasl_handshake), Api(36, 0, 2, sasl_authenticate))
