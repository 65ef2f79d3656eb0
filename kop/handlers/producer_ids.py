"""InitProducerId (22), versions 0 to 5, without a transactional id (KIP-98, KIP-360).

- Every call gives a new producer id with epoch 0, as Kafka does for a producer without a transactional id.
- With a transactional id it is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED until transactions exist: librdkafka
  retries most other errors for ever. An empty transactional id is INVALID_REQUEST, as in Kafka.
"""

from __future__ import annotations

import logging
from typing import Any

from kop.errors import ErrorCode
from kop.handlers.api import AclOperation, Api, Context
from kop.handlers.gateway import Gateway
from kop.wire.messages import InitProducerIdResponse

log = logging.getLogger(__name__)


async def init_producer_id(gw: Gateway, ctx: Context, request: Any) -> Any:
    """Answer a new id, or say that there are no transactions."""
    response = InitProducerIdResponse(version=ctx.version, error_code=0, producer_id=-1, producer_epoch=-1)
    if request.transactional_id is None:
        response.producer_id, response.producer_epoch = await gw.producer_ids.take(), 0
    elif not request.transactional_id:
        response.error_code = ErrorCode.INVALID_REQUEST
    else:
        log.warning(
            "client %s at %s asked for transactions (transactional.id %r): not served yet, so it is refused; "
            "leave transactional.id unset, an idempotent producer works",
            ctx.client_id,
            ctx.conn.client_host,
            request.transactional_id,
        )
        response.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return response


APIS = (Api(22, 0, 5, init_producer_id, AclOperation.IDEMPOTENT_WRITE),)
