"""Create-, Renew-, Expire- and DescribeDelegationToken (38 to 41): passwords for programs, which end (KIP-48, KIP-373).

Neither clients that have not said who they are nor those that have logged in by a token may ask. Without
`delegation.token.secret.key` there are no tokens, and all but clients of that kind get DELEGATION_TOKEN_AUTH_DISABLED.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kop import background, clock
from kop.errors import ErrorCode, KopError, PeerError
from kop.handlers.access import ANONYMOUS, Need
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.security.delegation_tokens import USER, DelegationToken
from kop.security.records import KeyValue, of_token
from kop.security.rights import AclOperation, ResourceType
from kop.wire.messages import Message
from kop.wire.rows import Response

_NEVER: Final = -1
"""The time in answers that have none."""
_LONGEST: Final = 32_767
"""Bytes of a principal's name."""
_MOST_RENEWERS: Final = 64
_LONGEST_RENEWERS: Final = 8192
"""Bytes of the names of all renewers of a token."""
_OWNERS_AT_THE_LIMIT: Final = 10
"""The owners who can have as many tokens as each may have."""
_ID_BYTES: Final = 16
_AT_A_TIME: Final = 100
"""The tokens that are looked at before the requests of other clients get their turn."""

log = logging.getLogger(__name__)


async def create_token(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer CreateDelegationToken: make a token, owned by the client itself or, if it has the right, by somebody else;
    return its id, its times and its HMAC, which is the secret.
    """
    requester = ctx.conn.principal
    owner = requester
    if ctx.version >= 3 and request.owner_principal_name:
        owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    made: list[DelegationToken] = []
    token_id = _new_id()

    def decide() -> Sequence[KeyValue]:
        _check_room(gw, owner)
        made[:] = [gw.tokens.made(token_id, owner, requester, renewers, request.max_lifetime_ms, ctx.now_ms)]
        return [of_token(token_id, made[0])]

    try:
        _check_client(ctx)
        if owner != requester:
            _check_owner(ctx, request, owner)
        renewers = _renewers(request.renewers)
        _check_enabled(gw)
        await _written(gw, ctx, "CREATE", decide, made, _shown)
    except KopError as error:
        return ctx.response(error_code=error.code, **_created(ctx, owner, requester, None), hmac=b"")
    return ctx.response(error_code=0, **_created(ctx, owner, requester, made[0]), hmac=gw.tokens.hmac(token_id))


async def renew_token(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer RenewDelegationToken: extend the life of the token with the HMAC in the request; return when it expires
    now, in ms since the epoch.
    """
    made: list[DelegationToken] = []

    def decide() -> Sequence[KeyValue]:
        secret, period = bytes(request.hmac), request.renew_period_ms
        made[:] = [gw.tokens.renewed(secret, ctx.conn.principal, period, ctx.now_ms)]
        return [of_token(made[0].id, made[0])]

    try:
        _check_client(ctx)
        _check_enabled(gw)
        await _written(gw, ctx, "RENEW", decide, made, lambda token: dict(expires_ms=token.expires_ms))
    except KopError as error:
        return ctx.response(error_code=error.code, expiry_timestamp_ms=_NEVER)
    return ctx.response(error_code=0, expiry_timestamp_ms=made[0].expires_ms)


async def expire_token(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer ExpireDelegationToken: end the token with the HMAC in the request, at once or after a period; return when
    it ends, in ms since the epoch.
    """
    made: list[DelegationToken] = []
    expires = ctx.now_ms

    def decide() -> Sequence[KeyValue]:
        nonlocal expires
        secret, period = bytes(request.hmac), request.expiry_time_period_ms
        token_id, token = gw.tokens.ended(secret, ctx.conn.principal, period, ctx.now_ms)
        before = gw.security.tokens.get(token_id)
        made[:] = [each for each in (token or before,) if each is not None]
        expires = ctx.now_ms if token is None else token.expires_ms
        return [of_token(token_id, token)]

    try:
        _check_client(ctx)
        _check_enabled(gw)
        await _written(gw, ctx, "EXPIRE", decide, made, lambda _: dict(expires_ms=expires))
    except KopError as error:
        return ctx.response(error_code=error.code, expiry_timestamp_ms=_NEVER)
    return ctx.response(error_code=0, expiry_timestamp_ms=expires)


async def describe_tokens(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Return the tokens that the client may see: its own, those that it has asked for or may renew, and those for which
    it has a right to the token or to its owner. If the request names owners, only tokens that one of them owns, has
    asked for or may renew.
    """
    try:
        _check_client(ctx)
        _check_enabled(gw)
    except KopError as error:
        return ctx.response(error_code=error.code, tokens=[])
    owners = None
    if request.owners is not None:
        owners = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    tokens = []
    for number, token in enumerate(gw.security.tokens):
        if number % _AT_A_TIME == _AT_A_TIME - 1:
            await asyncio.sleep(0)
        if (owners is None or not owners.isdisjoint((token.owner, token.requester, *token.renewers))) and (
            token.is_of(ctx.conn.principal)
            or ctx.may(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.id)
            or ctx.may(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
        ):
            tokens.append(_described(gw, ctx, token))
    return ctx.response(error_code=0, tokens=tokens)


def _check_client(ctx: Context) -> None:
    """Raise PeerError if the client has not logged in, has logged in by a token, or is of its tenant's space by a claim
    of its credentials, which those who bear the token would not have.
    """
    conn = ctx.conn
    if conn.is_by_token or (conn.principal == ANONYMOUS and not conn.needed_login):
        raise PeerError(
            "Delegation tokens are for clients that have logged in, and not by a token",
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        )
    if conn.is_by_claim and not conn.space.is_home:
        raise PeerError(
            f"Who bears the token would not be of {conn.space.name}: only kop.tenant.rules count then",
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        )


def _check_enabled(gw: Gateway) -> None:
    if not gw.tokens.is_enabled:
        raise PeerError(
            "There are no delegation tokens: delegation.token.secret.key is not set",
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
        )


def _check_room(gw: Gateway, owner: str) -> None:
    """Raise PeerError if there are as many tokens as there may be, or the owner has a tenth of that: whoever has logged
    in may make tokens, and nobody can take those of all. The log says so, since answers have no place for it.
    """
    most = gw.security_settings.kop_security_max_tokens
    of_owner = max(most // _OWNERS_AT_THE_LIMIT, 1)
    if len(gw.security.tokens) >= most:
        reason = f"there are {most} delegation tokens, as many as kop.security.max.tokens allows"
    elif gw.security.tokens.of_owner(owner) >= of_owner:
        reason = f"{owner!r} has {of_owner} delegation tokens, a tenth of kop.security.max.tokens"
    else:
        return
    if background.log_lines.say(reason, clock.monotonic()) is not None:
        log.warning("a delegation token is refused: %s; end some, or set it higher", reason)
    raise PeerError(reason)


def _check_owner(ctx: Context, request: Message, owner: str) -> None:
    """Raise PeerError if the client may not make a token for `owner`, who is somebody else, or if that is no user."""
    if denied := ctx.user(owner, AclOperation.CREATE_TOKENS):
        raise PeerError(f"{owner}: CREATE_TOKENS is denied", denied)
    if request.owner_principal_type != USER:
        raise _no_user()
    name = request.owner_principal_name
    _check_name(name)
    if not ctx.access.changes_user(ctx.conn, name):
        raise PeerError(
            "Only a super user makes tokens of a super user", ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        )


def _renewers(rows: Iterable[Any]) -> list[str]:
    renewers = []
    for row in rows:
        if row.principal_type != USER:
            raise _no_user()
        _check_name(row.principal_name)
        renewers.append(f"{USER}:{row.principal_name}")
    if len(renewers) > _MOST_RENEWERS:
        raise PeerError(f"more than {_MOST_RENEWERS} renewers")
    if sum(len(renewer.encode()) for renewer in renewers) > _LONGEST_RENEWERS:  # they are kept, for as long as it is
        raise PeerError(f"the names of the renewers are longer than {_LONGEST_RENEWERS} bytes")
    return renewers


def _check_name(name: str) -> None:
    if len(name.encode()) > _LONGEST:
        raise PeerError(f"the name of a principal is longer than {_LONGEST} bytes")


def _no_user() -> PeerError:
    return PeerError("Delegation tokens are for principals of type User", ErrorCode.INVALID_PRINCIPAL_TYPE)


def _new_id() -> str:
    """Return an id as Kafka makes them, of 22 characters, which does not begin with a hyphen."""
    token_id = "-"
    while token_id.startswith("-"):
        token_id = urlsafe_b64encode(bytes.fromhex(clock.token_hex(_ID_BYTES))).decode().rstrip("=")
    return token_id


async def _written(
    gw: Gateway,
    ctx: Context,
    operation: str,
    decide: Callable[[], Sequence[KeyValue]],
    made: Sequence[DelegationToken],
    details: Callable[[DelegationToken], Mapping[str, object]],
) -> None:
    """Write the records that `decide` returns to the state topic, then a line to the audit, also if storage has failed,
    which is raised. `made` has the token that the line is about, which `decide` puts there; `details` gives what the
    line says of it.
    """

    def audit(failure: KopError | None = None) -> None:
        for token in made:
            gw.audit.changed(ctx.conn, operation, "DELEGATION_TOKEN", token.id, details(token), failure)

    try:
        await gw.security.write(decide)
    except PeerError:
        raise
    except KopError as error:
        audit(error)
        raise
    audit()


def _shown(token: DelegationToken) -> dict[str, object]:
    return dict(owner=token.owner, renewers=token.renewers, expires_ms=token.expires_ms, ends_ms=token.ends_ms)


def _principal(prefix: str, principal: str) -> dict[str, str]:
    kind, _, name = principal.partition(":")
    return {f"{prefix}principal_type": kind, f"{prefix}principal_name": name}


def _principals(ctx: Context, owner: str, requester: str) -> dict[str, str]:
    asked = _principal("token_requester_", requester) if ctx.version >= 3 else {}
    return _principal("", owner) | asked


def _created(ctx: Context, owner: str, requester: str, token: DelegationToken | None) -> dict[str, object]:
    return _principals(ctx, owner, requester) | dict(
        issue_timestamp_ms=_NEVER if token is None else token.issued_ms,
        expiry_timestamp_ms=_NEVER if token is None else token.expires_ms,
        max_timestamp_ms=_NEVER if token is None else token.ends_ms,
        token_id="" if token is None else token.id,
    )


def _described(gw: Gateway, ctx: Context, token: DelegationToken) -> dict[str, object]:
    return _principals(ctx, token.owner, token.requester) | dict(
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.ends_ms,
        token_id=token.id,
        hmac=gw.tokens.hmac(token.id),
        renewers=[_principal("", renewer) for renewer in token.renewers],
    )


def _owner(request: Message) -> Iterable[str]:
    if request.API_VERSION >= 3 and request.owner_principal_name:
        yield f"{request.owner_principal_type}:{request.owner_principal_name}"


APIS: tuple[Api, ...] = (
    Api(38, 1, 3, create_token, (Need(AclOperation.CREATE_TOKENS, ResourceType.USER, _owner),)),
    Api(39, 1, 2, renew_token),
    Api(40, 1, 2, expire_token),
    Api(
        41,
        1,
        3,
        describe_tokens,
        (
            Need(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
            Need(AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
        ),
        long_answer=True,
    ),
)
