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
from kop.handlers.api import AclOperation, Api, Context
from kop.handlers.gateway import Gateway
from kop.handlers.transactions import error_for
from kop.wire.messages import InitProducerIdResponse
from kop.wire.transaction_state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


async def init_producer_id(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Answer with the id and epoch that the producer has from now on."""
    version = ctx.version
    response = InitProducerIdResponse(version=version, error_code=0, producer_id=-1, producer_epoch=-1)
    expected = (request.producer_id, request.producer_epoch) if version >= 3 else (-1, -1)
    if (expected[0] == NO_PRODUCER_ID) != (expected[1] == NO_PRODUCER_EPOCH):
        response.error_code = ErrorCode.INVALID_REQUEST
    elif request.transactional_id is None:
        response.producer_id, response.producer_epoch = await gw.producer_ids.take(), 0
    else:
        identity = await gw.transactions.init_producer_id(
            request.transactional_id,
            request.transaction_timeout_ms,
            None if expected[0] == NO_PRODUCER_ID else expected,
        )
        response.error_code = error_for(identity.error, knows_fenced=version >= 4)
        response.producer_id, response.producer_epoch = identity.producer_id, identity.producer_epoch
    return response


APIS = (Api(22, 0, 5, init_producer_id, AclOperation.IDEMPOTENT_WRITE),)
