"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51), version 0: users and their SCRAM credentials.

A client sends a salted password, never a password; what is kept of it cannot be turned back. A user that
`super.users` names is changed by a super user alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kop.errors import ErrorCode, KopError, PeerError
from kop.handlers.access import Need
from kop.handlers.api import Api, Context, error_fields
from kop.handlers.gateway import Gateway
from kop.security.records import KeyValue, of_user
from kop.security.rights import AclOperation, ResourceType
from kop.security.sasl.exchange import LONGEST_NAME
from kop.security.users import LEAST_ITERATIONS, MOST_ITERATIONS, Mechanism, ScramCredential
from kop.wire.messages import Message
from kop.wire.rows import Response

_LONGEST_SALT: Final = 1024
"""The most bytes of a salt, which each client that names the user is told."""
_LIBRDKAFKA_SLACK: Final = 1
"""librdkafka ends AlterUserScramCredentials with the tagged fields of the request twice."""


def describe_credentials(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DescribeUserScramCredentials: the mechanisms, with their iterations, of the users that are named; of all
    users if none is.
    """
    if denied := ctx.cluster(AclOperation.DESCRIBE):
        why = ctx.cluster_denial
        row = dict(user="", error_code=denied, error_message=why, credential_infos=[])
        return ctx.response(error_code=denied, error_message=why, results=[row])
    users = gw.security.users
    asked = Counter(user.name for user in request.users or ())
    rows = []
    for name in asked or users.names():
        code, message = ErrorCode.NONE, ""
        if asked[name] > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        elif name not in users:
            code = ErrorCode.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {name}"
        infos = [
            dict(mechanism=mechanism, iterations=credential.iterations)
            for mechanism, credential in sorted(users.of(name).items() if not code else ())
        ]
        rows.append(dict(user=name, error_code=code, error_message=message, credential_infos=infos))
    return ctx.response(error_code=0, error_message="", results=rows)


class _Change(NamedTuple):
    """A change of one user."""

    name: str
    mechanism: int
    upsertion: Any = None
    """None: the credential is deleted."""


async def alter_credentials(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer AlterUserScramCredentials: set and delete credentials. The changes of one request that are allowed are
    made together, all or none; any other has its error in the answer.
    """
    changes = [_Change(row.name, row.mechanism) for row in request.deletions]
    changes += [_Change(row.name, row.mechanism, row) for row in request.upsertions]
    errors: dict[str, KopError | None] = {change.name: None for change in changes}
    if denied := ctx.cluster(AclOperation.ALTER):
        errors = dict.fromkeys(errors, PeerError(ctx.cluster_denial, denied))
    else:
        await _alter(gw, ctx, changes, errors)
    return ctx.response(results=[dict(user=name) | error_fields(error) for name, error in errors.items()])


async def _alter(gw: Gateway, ctx: Context, changes: Sequence[_Change], errors: dict[str, KopError | None]) -> None:
    """Carry out changes that the client has the right to, and write them to the audit. Note in `errors`, by the user's
    name, the reason for which one is not made.
    """
    for change in changes:
        if errors[change.name] is None:
            errors[change.name] = _refusal(ctx, change)
    given = dict(errors)
    made: list[_Change] = []

    def decide() -> Sequence[KeyValue]:
        made.clear()
        errors.update(given)
        users, named = gw.security.users, Counter(change.name for change in changes)
        room = gw.security_settings.kop_security_max_users - len(users)
        records = []
        for change in changes:
            name = change.name
            if errors[name] is not None:
                continue
            mechanism = Mechanism(change.mechanism)
            if change.upsertion is None and users.scram(mechanism, name) is None:
                errors[name] = PeerError(
                    "Attempt to delete a user credential that does not exist", ErrorCode.RESOURCE_NOT_FOUND
                )
            elif named[name] > 1:
                errors[name] = PeerError(
                    "A user credential cannot be altered twice in the same request", ErrorCode.DUPLICATE_RESOURCE
                )
            elif change.upsertion is None:
                made.append(change)
                records.append(of_user(name, mechanism, None))
            elif name not in users and room <= 0:
                errors[name] = PeerError("There are as many users as kop.security.max.users allows")
            else:
                room -= name not in users
                made.append(change)
                records.append(of_user(name, mechanism, _credential(mechanism, change.upsertion)))
        return records

    failure = await gw.change_security(decide)
    for name, refusal in errors.items():
        errors[name] = refusal or failure
    for change in made:
        operation, mechanism = "DELETE" if change.upsertion is None else "SET", Mechanism(change.mechanism)
        gw.audit.changed(ctx.conn, operation, "USER", change.name, dict(mechanism=mechanism.text), failure)


def _credential(mechanism: Mechanism, row: Any) -> ScramCredential:
    return ScramCredential.of_salted(mechanism, bytes(row.salted_password), row.iterations, bytes(row.salt))


def _refusal(ctx: Context, change: _Change) -> KopError | None:
    """Return the error for which a change is not made, independently of which users exist; None if it may be made."""
    if not ctx.access.changes_user(ctx.conn, change.name):
        return PeerError(
            "Only a super user changes the credentials of a super user", ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
    unacceptable = None
    if not change.name:
        unacceptable = "Username must not be empty"
    elif change.mechanism not in set(Mechanism):
        return PeerError("Unknown SCRAM mechanism", ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    elif (row := change.upsertion) is not None:
        if len(change.name) > LONGEST_NAME:  # who has it could not log in
            unacceptable = f"Username is longer than {LONGEST_NAME} characters"
        elif row.iterations < LEAST_ITERATIONS:
            unacceptable = "Too few iterations"
        elif row.iterations > MOST_ITERATIONS:
            unacceptable = "Too many iterations"
        elif len(row.salt) > _LONGEST_SALT:
            unacceptable = f"The salt is longer than {_LONGEST_SALT} bytes"
        elif not row.salted_password:
            unacceptable = "The salted password must not be empty"
    return None if unacceptable is None else PeerError(unacceptable, ErrorCode.UNACCEPTABLE_CREDENTIAL)


APIS: tuple[Api, ...] = (
    Api(50, 0, 0, describe_credentials, (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER),)),
    Api(51, 0, 0, alter_credentials, (Need(AclOperation.ALTER, ResourceType.CLUSTER),), slack=_LIBRDKAFKA_SLACK),
)
