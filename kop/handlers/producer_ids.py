"""InitProducerId (22), versions 0 to 5, without a transactional id (KIP-98, KIP-360).

- Every call gives a new producer id with epoch 0, as Kafka does for a producer without a transactional id.
- With a transactional id it is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED until transactions exist: librdkafka
  retries most other errors for ever. An empty transactional id is INVALID_REQUEST, as in Kafka.
- Ids are reserved in storage in blocks; what a stopped gateway had not handed out is lost, never given twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kop.errors import ErrorCode
from kop.handlers.base import Api, Context, Gateway
from kop.storage.base import Engine
from kop.wire.messages import InitProducerIdResponse

_BLOCK = 1000

log = logging.getLogger(__name__)


class ProducerIds:
    """Hands out producer ids, a block at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """A producer id that nobody had before."""
        async with self._lock:
            if self._next == self._end:
                self._next = await self._engine.allocate_producer_ids(_BLOCK)
                self._end = self._next + _BLOCK
            self._next += 1
            return self._next - 1


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


APIS = (Api(22, 0, 5, init_producer_id),)
