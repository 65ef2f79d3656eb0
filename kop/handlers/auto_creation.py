"""The topics that are made because a client asks for them by Metadata.

Owns: the creations under way, which a second request joins and which go on where nobody waits any more; what is said of
those that fail.
Must not know: requests, answers, how a topic is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kop import background, clock
from kop.cluster.broker_configs import BrokerConfigs
from kop.cluster.client_topics import ClientTopics
from kop.errors import ErrorCode, KopError
from kop.handlers.topic_limits import InMaking, TopicLimits
from kop.metrics import Metrics
from kop.storage.base import Engine

WAIT_SECONDS: Final = 5.0
"""The seconds that a Metadata request waits for the topics that it has made; all that its client sends behind it waits
as long.
"""

_log = logging.getLogger(__name__)


class _Creation(NamedTuple):
    """The creation of one topic that is under way."""

    started: float
    """The time of the loop's clock at which it began."""
    task: asyncio.Task[ErrorCode]


class AutoCreation:
    """The creations of topics by Metadata requests, of one gateway."""

    def __init__(
        self, engine: Engine, topics: ClientTopics, limits: TopicLimits, broker_configs: BrokerConfigs, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._limits = limits
        self._broker_configs = broker_configs
        self._metrics = metrics
        self._under_way: dict[str, _Creation] = {}
        """The creations under way, by the topic's canonical name."""

    async def make(
        self, names: Iterable[str], making: InMaking, end: float, begun: Callable[[int], None]
    ) -> dict[str, ErrorCode]:
        """Make topics side by side, and wait for them until `end` by the loop's clock. Return the errors by name; a
        name that is not among them is a topic now.

        A topic that does not exist by then gets LEADER_NOT_AVAILABLE, and is made all the same. If a request has waited
        for a topic in vain, later ones do not wait for it: what its clients send on the same connection goes on
        meanwhile. `making` counts what the request makes; each topic is settled on its own. `begun` is called with the
        number of partitions of each topic whose creation this call begins: not for one that it joins.
        """
        loop = asyncio.get_running_loop()
        errors: dict[str, ErrorCode] = {}
        creations: dict[str, _Creation] = {}
        for name in names:
            try:
                creations[name] = self._begin(name, making, begun)
            except KopError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    self._tell(name, error)
                    errors[name] = error.code
        now = loop.time()
        young = {creation.task for creation in creations.values() if creation.started > now - WAIT_SECONDS}
        if young:
            await asyncio.wait(young, timeout=max(0.0, end - now))
        for name, creation in creations.items():
            if not creation.task.done():
                text = f"storage has not made it within {WAIT_SECONDS:g} s; that goes on while clients ask again"
                self._tell(name, KopError(text, ErrorCode.LEADER_NOT_AVAILABLE))
                errors[name] = ErrorCode.LEADER_NOT_AVAILABLE
            elif code := creation.task.result():
                errors[name] = code
        return errors

    def _begin(self, name: str, making: InMaking, begun: Callable[[int], None]) -> _Creation:
        canonical = self._topics.canonical_name(name)
        creation = self._under_way.get(canonical)
        if creation is None:
            partitions = self._broker_configs.num_partitions
            self._limits.check_name(name)
            settle = making.add(partitions, name)
            begun(partitions)
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._make(canonical, partitions))
            creation = self._under_way[canonical] = _Creation(loop.time(), task)

            def ended(_: asyncio.Task[ErrorCode]) -> None:
                settle()
                del self._under_way[canonical]

            task.add_done_callback(ended)
        return creation

    async def _make(self, name: str, partitions: int) -> ErrorCode:
        """Make a topic; return the error, or NONE if it exists now. A failure is logged and counted here: there may be
        nobody left who waits.
        """
        try:
            await self._engine.topics.create(name, partitions, {})
        except KopError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                self._tell(name, error)
                return error.code
        except Exception:
            _log.exception("topic %s, which a client asked for, could not be made", name)
            self._metrics.internal_errors.labels("Metadata").inc()
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def _tell(self, name: str, error: KopError) -> None:
        """Count a creation that failed, and log it now and then: one line for all topics with the same error code,
        since clients ask again soon.
        """
        self._metrics.errors.labels("Metadata", error.code.name).inc()
        if background.log_lines.say(("auto-creation", error.code), clock.monotonic()) is not None:
            _log.warning("topic %s, which a client asked for, is not made: %s", name, error.message)

    async def close(self) -> None:
        """Cancel the tasks that make topics, and wait until they have ended. The engine still ends the creations that
        it has begun.
        """
        tasks = [creation.task for creation in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
