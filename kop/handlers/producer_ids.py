"""InitProducerId (22), versions 0 to 5 (KIP-98, KIP-360).

- Without a transactional id every call gives a new producer id with epoch 0, as Kafka does.
- With one the transaction coordinator fences earlier instances of the producer; see `kop.transactions`. An empty one is
  INVALID_REQUEST. Where storage has no transactions it is TRANSACTIONAL_ID_AUTHORIZATION_FAILED: librdkafka retries
  most other errors for ever.
- From version 3 on a client that goes on names the producer id and epoch that it has: both or neither, which is -1.
- PRODUCER_FENCED is INVALID_PRODUCER_EPOCH below version 4.
"""

from __future__ import annotations

from typing import Any

from kop.errors import ErrorCode
from kop.handlers.access import Need
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.handlers.transactions import error_for
from kop.security.rights import AclOperation, ResourceType
from kop.wire.rows import Response
from kop.wire.transaction_state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


async def init_producer_id(gw: Gateway, ctx: Context, request: Any) -> Response:
    """Answer InitProducerId with the producer id and epoch that the producer uses from now on: new ones without a
    transactional id, else those that the transaction coordinator gives, which fences earlier instances.
    """
    version = ctx.version
    expected = (request.producer_id, request.producer_epoch) if version >= 3 else (-1, -1)
    code, producer_id, epoch = _refusal(ctx, request.transactional_id), NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if not code and (expected[0] == NO_PRODUCER_ID) != (expected[1] == NO_PRODUCER_EPOCH):
        code = ErrorCode.INVALID_REQUEST
    if not code and request.transactional_id is None:
        producer_id, epoch = await gw.producer_ids.take(), 0
    elif not code:
        identity = await gw.transactions.init_producer_id(
            request.transactional_id,
            request.transaction_timeout_ms,
            None if expected[0] == NO_PRODUCER_ID else expected,
        )
        code = error_for(identity.error, knows_fenced=version >= 4)
        producer_id, epoch = identity.producer_id, identity.producer_epoch
    return ctx.response(error_code=code, producer_id=producer_id, producer_epoch=epoch)


def _refusal(ctx: Context, transactional_id: str | None) -> ErrorCode:
    if transactional_id is not None:
        return ctx.transactional_id(transactional_id, AclOperation.WRITE)
    if ctx.access.may_any(ctx.conn, AclOperation.WRITE, ResourceType.TOPIC):
        return ErrorCode.NONE
    return ctx.namespace(AclOperation.IDEMPOTENT_WRITE)


APIS = (
    Api(
        22,
        0,
        5,
        init_producer_id,
        (
            Need(
                AclOperation.WRITE,
                ResourceType.TRANSACTIONAL_ID,
                lambda request: () if request.transactional_id is None else (request.transactional_id,),
            ),
            Need(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
            Need(AclOperation.WRITE, ResourceType.TOPIC),
        ),
    ),
)
