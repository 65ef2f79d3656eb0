"""The check that another broker serves Kafka clients at the address that it told.

Owns: one ApiVersions request (KIP-35) on a connection of its own.
Must not know: what follows from the answer.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from kop.storage.base import LiveBroker

TIMEOUT_SECONDS: Final = 2.5
"""A broker that is stopped by SIGSTOP still accepts connections: only an answer counts."""
Connect: TypeAlias = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_REQUEST: Final = struct.Struct(">ihhih")
_ANSWER: Final = struct.Struct(">ii")
_API_VERSIONS: Final = 18
_CORRELATION_ID: Final = 0x6B6F70
_NO_CLIENT_ID: Final = -1

_log: Final = logging.getLogger(__name__)


async def answers(
    broker: LiveBroker, seconds: float = TIMEOUT_SECONDS, connect: Connect = asyncio.open_connection
) -> bool:
    """Return true if `broker` answers an ApiVersions request, version 0, within `seconds`. Never raises for a failure.

    `connect` opens a connection to host and port; nobody has to log in for this request.
    """
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await connect(broker.host, broker.port)
            try:
                writer.write(_REQUEST.pack(_REQUEST.size - 4, _API_VERSIONS, 0, _CORRELATION_ID, _NO_CLIENT_ID))
                _, correlation_id = _ANSWER.unpack(await reader.readexactly(_ANSWER.size))
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, EOFError) as error:
        _log.debug("broker %d does not answer at %s:%d: %r", broker.node_id, broker.host, broker.port, error)
        return False
    return bool(correlation_id == _CORRELATION_ID)
