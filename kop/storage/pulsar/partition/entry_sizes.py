"""The largest entry that a topic accepts: Pulsar's topic policy maxMessageSize.

Owns: that number for each topic, and when it is asked for again.
Must not know: batches, producers.

See docs/quirks.md, "An entry that is refused is passed by those behind it". A broker that knows the limit refuses the
batch before it is sent. Where the limit is not known, or was lowered since, that is too late: behind an entry that
Pulsar may refuse then, the next one waits for the receipt.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from uuid import UUID

from kop.errors import KopError
from kop.pulsar_client import PulsarError
from kop.storage.pulsar.context import PulsarContext

ENTRY_FRAMING: Final = 10
"""The bytes that a Pulsar broker counts beside metadata and payload: magic, checksum, the metadata's size."""
ALWAYS_TAKEN: Final = 16 * 1024
"""The bytes of an entry that no limit is expected to forbid: a batch of the Java client is as large by default."""
_LOWERED_TO: Final = 8
"""The divisor of a limit down to which it may be lowered, as is expected, while entries are on their way."""
_FRESH_SECONDS: Final = 30.0
DOUBT_SECONDS: Final = 1.0
"""The least seconds between two questions to Pulsar if the answer is doubted."""
_NO_POLICIES: Final = "NotAllowed"
"""The code of Pulsar's error for topics without policies: then only the broker's own limit applies."""

_log = logging.getLogger(__name__)


class EntrySizeLimit:
    """The largest entry that one topic accepts. `ask` gets the policy that applies, None or 0 if there is none.
    PulsarError if Pulsar refuses it or does not answer.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        ask: Callable[[], Awaitable[int | None]],
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
    ) -> None:
        self.bytes = 0
        """The topic's limit in bytes; 0 if only the Pulsar broker's own limit applies, or while it is not known."""
        self.known = False
        """True if Pulsar has told the limit."""
        self._clock = clock
        self._ask = ask
        self._spawn = spawn
        self._asked = float("-inf")
        self._asking: asyncio.Future[None] | None = None

    @property
    def surely_taken(self) -> int:
        """The bytes of metadata and payload that Pulsar accepts even if the limit was lowered after the last answer: an
        eighth of the limit, but 16 KiB if that is more or the limit is not known, and never more than the limit.

        A topic that had no limit is not expected to get one while entries are on their way. An entry beyond the limit
        is refused, however small that is.
        """
        if self.known and not self.bytes:
            return sys.maxsize
        least = max(self.bytes // _LOWERED_TO, ALWAYS_TAKEN)
        return max((min(least, self.bytes) if self.bytes else least) - ENTRY_FRAMING, 0)

    async def learn(self) -> None:
        """Ask Pulsar for the limit, unless it was asked within 30 seconds, and wait for the answer. If it does not
        answer, the last answer stays; no error is raised.
        """
        if self._asking is not None:
            await asyncio.shield(self._asking)
        elif self._clock() - self._asked >= _FRESH_SECONDS:
            await self._learn(self._begin())

    def doubt(self) -> None:
        """Ask for the limit again in the background, once a second at most: a batch was refused, so somebody may have
        changed the limit.
        """
        if self._asking is None and self._clock() - self._asked >= DOUBT_SECONDS:
            self._spawn(self._learn(self._begin()))

    def _begin(self) -> asyncio.Future[None]:
        self._asked = self._clock()
        self._asking = asyncio.get_running_loop().create_future()
        return self._asking

    async def _learn(self, asking: asyncio.Future[None]) -> None:
        try:
            self.bytes = await self._ask() or 0
            self.known = True
        except PulsarError as error:
            if error.code == _NO_POLICIES:
                self.bytes, self.known = 0, True
            _log.debug("a topic's maxMessageSize is not known: %s", error)
        except KopError as error:
            _log.debug("a topic's maxMessageSize is not known: %s", error)
        finally:
            self._asking = None
            asking.set_result(None)


class EntrySizeLimits:
    """The entry size limits of all topics: the partitions of a topic share one object."""

    def __init__(self, context: PulsarContext, full_name: Callable[[UUID], str]) -> None:
        """Begin without limits. `full_name` returns Pulsar's name of a topic by its id; KopError if the topic is
        gone.
        """
        self._context = context
        self._full_name = full_name
        self._limits: dict[UUID, EntrySizeLimit] = {}

    def of(self, topic_id: UUID) -> EntrySizeLimit:
        """Return the entry size limit of a topic, the same object for all of its partitions."""
        limit = self._limits.get(topic_id)
        if limit is None:
            context = self._context

            async def ask() -> int | None:
                return await context.admin.get_max_message_size(self._full_name(topic_id), applied=True)

            limit = self._limits[topic_id] = EntrySizeLimit(context.loop.time, ask, context.spawn)
        return limit

    def forget(self, topic_id: UUID) -> None:
        """Forget the limit of a topic that is gone."""
        self._limits.pop(topic_id, None)
