"""The APIs of tools that look at transactions and end one: those of kafka-transactions, and of kafka-features.

- DescribeTransactions (65) 0: a transactional id as its coordinator knows it. TRANSACTIONAL_ID_NOT_FOUND if it does
  not. While a transaction is being ended all its partitions are named, until the last of them has its marker.
- ListTransactions (66) 0 to 2: the transactional ids that this broker coordinates, by state, producer id, how long
  their transaction is open (1) and a pattern of RE2 that the whole id matches (2). INVALID_REGULAR_EXPRESSION for a
  pattern that RE2 does not take, and for each where the extra `patterns` is not installed. RE2's matching takes time
  in proportion to the text, whatever the pattern is. A duration is counted from the start of the transaction; an id
  without one is as old as the epoch, as in Kafka.
- UpdateFeatures (57) 0 to 2: no feature changes while a cluster runs. Its own level is taken for every feature;
  another one is INVALID_UPDATE_VERSION with Kafka's reasons, or FEATURE_UPDATE_FAILED if Kafka would change it.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kop.errors import ErrorCode
from kop.handlers.access import Need
from kop.handlers.api import Api, Context
from kop.handlers.api_versions import LATEST, TRANSACTION_VERSION
from kop.handlers.gateway import Gateway
from kop.security.rights import AclOperation, ResourceType
from kop.transactions.machine import Transaction
from kop.turns import LOOKED_AT, with_pauses
from kop.wire.rows import Response
from kop.wire.transaction_state import TransactionStatus

_PATTERN_BYTES: Final = 1 << 20
"""The most memory in bytes that a compiled pattern of ListTransactions may take."""

_log = logging.getLogger(__name__)
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


# --- DescribeTransactions


async def describe_transactions(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer DescribeTransactions: describe each transactional id, or give the error for which it cannot be
    described.
    """
    return ctx.response(transaction_states=[await _description(gw, ctx, name) for name in request.transactional_ids])


async def _description(gw: Gateway, ctx: Context, transactional_id: str) -> dict[str, Any]:
    row: dict[str, Any] = dict(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )
    if refusal := ctx.transactional_id(transactional_id, AclOperation.DESCRIBE):
        return row | dict(error_code=refusal)
    transaction, error = await gw.transactions.described(transactional_id)
    if transaction is None:
        return row | dict(error_code=error)
    topics: dict[str, list[int]] = {}
    for name, partition in sorted(transaction.partitions):
        if ctx.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            topics.setdefault(name, []).append(partition)
    return row | dict(
        transaction_state=transaction.status.label,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_timestamp,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[dict(topic=name, partitions=indexes) for name, indexes in topics.items()],
    )


# --- ListTransactions


async def list_transactions(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer ListTransactions with the transactional ids that pass every filter of the request and that the client may
    see.
    """
    labels = {status.label for status in TransactionStatus}
    states = set(request.state_filters)
    producers = set(request.producer_id_filters)
    duration = request.duration_filter if ctx.version >= 1 else -1
    pattern = None
    if ctx.version >= 2 and request.transactional_id_pattern:
        pattern = _compiled(request.transactional_id_pattern)
        if pattern is None:
            return _listing(ctx, ErrorCode.INVALID_REGULAR_EXPRESSION, [], [])

    def passes(transactional_id: str, transaction: Transaction) -> bool:
        return (
            (not states or transaction.status.label in states)
            and (not producers or transaction.producer_id in producers)
            and (duration < 0 or ctx.now_ms - transaction.start_timestamp > duration)
            and (pattern is None or _matches(pattern, ctx.conn.space.outward(transactional_id)))
            and ctx.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        )

    ctx.access.check_known(ctx.conn, ResourceType.TRANSACTIONAL_ID)
    known, error = gw.transactions.listed()
    rows = []
    async for transactional_id, transaction in with_pauses(known, LOOKED_AT):
        if passes(transactional_id, transaction):
            rows.append((transactional_id, transaction))
    return _listing(ctx, error, sorted(states - labels), rows)


def _matches(pattern: Any, transactional_id: str | None) -> bool:
    return transactional_id is not None and pattern.fullmatch(transactional_id) is not None


def _compiled(pattern: str) -> Any:
    """Return the compiled RE2 pattern; None if RE2 refuses it, or is not installed, which is logged."""
    try:
        import re2  # noqa: PLC0415 - a library of its own that few brokers ever need
    except ImportError:
        _log.warning("a client lists transactions by a pattern, which needs RE2: pip install '/path/to/kop[patterns]'")
        return None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error:
        return None


def _listing(ctx: Context, error: ErrorCode, unknown: list[str], listed: list[tuple[str, Transaction]]) -> Response:
    return ctx.response(
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=[
            dict(
                transactional_id=transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.status.label,
            )
            for transactional_id, transaction in listed
        ],
    )


# --- UpdateFeatures


def update_features(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer UpdateFeatures: accept a feature's own level and refuse any other. One refused update refuses all of them,
    as in Kafka.
    """
    for update in request.feature_updates:
        code, why = _update(gw, ctx.version, update)
        if code:
            text = f"The update failed for all features since the following feature had an error: {why}"
            return ctx.response(error_code=code, error_message=text, results=[])
    results = [
        dict(feature=update.feature, error_code=ErrorCode.NONE, error_message=None)
        for update in (request.feature_updates if ctx.version < 2 else ())
    ]
    return ctx.response(error_code=ErrorCode.NONE, error_message=None, results=results)


def _update(gw: Gateway, version: int, update: Any) -> tuple[ErrorCode, str]:
    feature, level = update.feature, update.max_version_level
    before_kinds = _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    kind = update.upgrade_type if version >= 1 else before_kinds
    known = feature == TRANSACTION_VERSION and gw.engine.transactions.refusal is None
    why = ""
    if kind not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        why = "The controller does not support the given upgrade type."
    elif level < 0:
        why = "A feature version cannot be less than 0."
    elif not known:
        why = f"Broker {gw.cluster.broker_id} does not support this feature."
    elif level > LATEST:
        why = f"Broker {gw.cluster.broker_id} only supports versions 0-{LATEST}"
    elif level < LATEST and kind == _UPGRADE:
        why = (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if why:
        return ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {feature}. {why}"
    if level != LATEST:
        return ErrorCode.FEATURE_UPDATE_FAILED, f"The level of {feature} is {LATEST} here and cannot be changed."
    return ErrorCode.NONE, ""


APIS = (
    Api(57, 0, 2, update_features, (Need(AclOperation.ALTER, ResourceType.CLUSTER, whole=True),)),
    Api(
        65,
        0,
        0,
        describe_transactions,
        (
            Need(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, lambda request: request.transactional_ids),
            Need(AclOperation.DESCRIBE, ResourceType.TOPIC),
        ),
        rows=("transactional_ids", "transaction_states"),
    ),
    Api(66, 0, 2, list_transactions, (Need(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),)),
)
