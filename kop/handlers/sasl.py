"""SaslHandshake (17), versions 0 and 1, and SaslAuthenticate (36), versions 0 to 2 (KIP-43, KIP-152).

- On a listener without SASL both are ILLEGAL_SASL_STATE and the connection stays open, as on a PLAINTEXT listener of
  Kafka, which lists both in ApiVersions too; so they are once a client has logged in, if its session does not end.
- A client whose session ends logs in again on the same connection, as the same user by the same mechanism (KIP-368).
- An unknown mechanism is UNSUPPORTED_SASL_MECHANISM with the list of those that there are, a login that fails
  SASL_AUTHENTICATION_FAILED. Both answers are held back for `connection.failed.authentication.delay.ms`, and the
  connection is closed behind them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from kop import clock
from kop.background import log_lines
from kop.errors import ErrorCode, LoginRefusedError
from kop.handlers.api import NONE, Api, ConnectionInfo, Context, Later
from kop.handlers.gateway import Gateway
from kop.security.login import Login
from kop.security.sasl.exchange import AuthenticationError
from kop.wire.rows import Response

SASL_AUTHENTICATE: Final = 36
_SHOWN: Final = 64
"""The characters of a client id that a log line shows."""
_NO_SASL: Final = "This listener does not use SASL: connect with security.protocol=PLAINTEXT or SSL"
_LOGGED_IN: Final = "The client has logged in already, and logins do not end here"

log = logging.getLogger(__name__)


def sasl_handshake(gw: Gateway, ctx: Context, request: Any) -> Response | Later:
    """Answer SaslHandshake: begin a login by a mechanism. If the listener does not have that, the answer comes after
    the pause for failed logins, and the connection is closed behind it.
    """
    conn = ctx.conn
    login = conn.login or conn.session
    if login is None or not login.may_begin(ctx.now_ms):
        if not conn.needed_login and log_lines.say((_NO_SASL, conn.client_host), clock.monotonic()) is not None:
            name = None if ctx.client_id is None else ctx.client_id[:_SHOWN]
            log.info("client %r at %s asked for SASL, which is not served: %s", name, conn.client_host, _NO_SASL)
        return ctx.response(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    conn.login = login
    code = login.handshake(request.mechanism, ctx.version, conn.client_host)
    response = ctx.response(error_code=code, mechanisms=login.mechanisms)
    if code is NONE:
        if login.has_failed:
            _tell(gw, conn, login, f"it logs in again by another mechanism than {login.mechanism}", request.mechanism)
        return response
    shown = repr(request.mechanism[:40])
    gw.metrics.login_failures.labels("unknown").inc()
    _tell(gw, conn, login, f"there are the mechanisms {', '.join(login.mechanisms)}", request.mechanism)
    later = Later()
    later.error = LoginRefusedError(
        f"it asked for the mechanism {shown}; there are {', '.join(login.mechanisms)}",
    )
    loop = asyncio.get_running_loop()
    loop.call_later(failure_seconds(gw), later.end, response)
    return later


def sasl_authenticate(gw: Gateway, ctx: Context, request: Any) -> Response | Later:
    """Answer SaslAuthenticate: hand the client's next token to its login. If the login fails, the connection is closed
    behind the answer.
    """
    login = ctx.conn.login
    if login is None:
        # Without a look at what came: it may be a password.
        why = _LOGGED_IN if ctx.conn.needed_login else _NO_SASL
        return _answer(ctx, ErrorCode.ILLEGAL_SASL_STATE, why, b"")
    later = Later()

    async def answer() -> Response:
        try:
            token = await log_in(gw, ctx.conn, login, bytes(request.auth_bytes))
        except AuthenticationError as error:
            later.error = LoginRefusedError(f"its login has failed: {error}")
            return _answer(ctx, ErrorCode.SASL_AUTHENTICATION_FAILED, str(error), b"")
        ends_ms = (login.lifetime_ms or 0) if ctx.conn.login is None else 0
        return _answer(ctx, NONE, None, token, ends_ms if ctx.version else 0)

    return later.follow(asyncio.create_task(answer()))


async def log_in(gw: Gateway, conn: ConnectionInfo, login: Login, token: bytes) -> bytes:
    """Return the answer to a token of the client's login, and set the client's identity in `conn` once it has logged
    in.

    AuthenticationError if the login has failed, which is counted and audited; it comes after a pause
    (`failure_seconds`), so that guessing takes time and the time tells nothing.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def failed(reason: str) -> None:
        gw.metrics.login_failures.labels(login.mechanism).inc()
        _tell(gw, conn, login, reason, login.mechanism)
        await asyncio.sleep(began + failure_seconds(gw) - loop.time())

    was_refused = login.refusal is not None
    try:
        answer, exchange = await login.take(token, clock.wall_ms)
    except AuthenticationError as error:
        if not was_refused:
            await failed(str(error))
        raise
    if (refusal := login.refusal) is not None:
        await failed(f"the token is refused: {refusal}")
    if exchange is not None and exchange.principal is not None:
        conn.principal, conn.is_valid, conn.login = exchange.principal, exchange.is_valid, None
        conn.is_by_token = exchange.is_by_token
        conn.space, conn.is_by_claim = login.space, exchange.claim is not None
        gw.access.logged_in(exchange.principal)
        conn.session = None if login.lifetime_ms is None else login
    return answer


def _tell(gw: Gateway, conn: ConnectionInfo, login: Login, reason: str, mechanism: str) -> None:
    again = login.has_been_completed
    gw.audit.login_failed(conn, conn.listener, mechanism, login.claimed, reason, again=again)


def _answer(ctx: Context, code: ErrorCode, message: str | None, token: bytes, session_ms: int = 0) -> Response:
    return ctx.response(error_code=code, error_message=message, auth_bytes=token, session_lifetime_ms=session_ms)


def failure_seconds(gw: Gateway) -> float:
    """Return the seconds for which the answer to a failed login is held back, from when its request came."""
    return gw.settings.connection_failed_authentication_delay_ms / 1000


APIS = (Api(17, 0, 1, sasl_handshake), Api(SASL_AUTHENTICATE, 0, 2, sasl_authenticate))
