"""The background work of the engine over Pulsar, and the question if Pulsar answers.

Owns: the loops, their pace and time limits, the reason why this broker is not healthy.
Must not know: what each of them looks after.

Each loop goes on by itself: one that waits for a Pulsar broker that does not answer delays no other. Within a loop
partitions are looked at side by side, a bounded number of them, each within a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from kop.background import Failed, cancel, for_each, repeat, tell
from kop.errors import KopError
from kop.pulsar_client import PulsarError
from kop.storage.pulsar.cluster.cluster_topic import ClusterTopic
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.partition.services import PartitionView

Work: TypeAlias = Callable[[], Awaitable[None]]

_HEALTH_SECONDS: Final = 5.0
_ENDS_IN_A_ROUND: Final = 200
AT_ONCE: Final = 16
"""The number of partitions that are looked at side by side."""
LOOK_SECONDS: Final = 30.0
"""The seconds that the look at one partition may take: a few requests of 10 s."""
_LISTING_SECONDS: Final = 300.0
"""The seconds that a listing of all topics may take."""


class Upkeep:
    """The background loops of one engine, from `start` to `close`."""

    def __init__(
        self,
        context: PulsarContext,
        cluster_topic: ClusterTopic,
        partitions: Callable[[], Iterable[PartitionView]],
        *,
        look_at_retention: Work,
        look_at_compactions: Work,
        list_topics: Work,
        close_idle: Callable[[float, float], None],
    ) -> None:
        """Prepare the loops. `partitions` returns all partitions that there are now. `close_idle(now, seconds)` closes
        idle things that belong to no partition.
        """
        self._context = context
        self._cluster_topic = cluster_topic
        self._partitions = partitions
        self._look_at_retention = look_at_retention
        self._look_at_compactions = look_at_compactions
        self._list_topics = list_topics
        self._close_idle_others = close_idle
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: str | None = None
        self._refusal: str | None = None
        self._looked_at = 0

    @property
    def failure(self) -> str | None:
        """The reason why records cannot be written now; None if they can, as far as is known.

        That is so while no Pulsar broker answers over the binary protocol, and while REST refuses this broker's
        credentials, which have run out. A REST interface that does not answer keeps no record from being written.
        """
        return self._failure or self._refusal

    def start(self) -> None:
        """Start all background loops of the engine."""
        settings = self._context.settings
        often = min(settings.idle_seconds / 2, _HEALTH_SECONDS)
        every, seldom = settings.list_seconds / 2, settings.list_seconds
        self._begin("the closing of what is idle", self._close_idle, often)
        self._begin("the question whether Pulsar answers", self._ask_broker, often, failed=self._unanswered)
        self._begin(
            "the question whether Pulsar's REST answers", self._ask_rest, often, failed=self._unanswered_by_rest
        )
        self._begin("the look at the ends of logs", self.look_at_ends, every)
        self._begin("the look at the retention of topics", self._look_at_retention, every)
        self._begin("the look at compactions", self._look_at_compactions, every)
        self._begin("the listing of topics", self._list_topics, seldom, limit=_LISTING_SECONDS)

    async def close(self) -> None:
        """End all background loops of the engine."""
        await cancel(*self._tasks)

    async def look_at_ends(self) -> None:
        """Look at both ends of 200 attached logs in turn: retention moves the start, and a tail may wait at a place
        past which Pulsar moved it.

        Readers that meet a gap ask by themselves.
        """
        due = [partition for partition in self._partitions() if partition.attached and not partition.deleted]
        self._looked_at %= max(len(due), 1)
        turn = due[self._looked_at : self._looked_at + _ENDS_IN_A_ROUND]
        self._looked_at += _ENDS_IN_A_ROUND
        await for_each(turn, _look_at, at_once=AT_ONCE, limit=LOOK_SECONDS, failed=self._not_looked_at)

    # --- inside

    def _begin(
        self,
        what: str,
        work: Work,
        every: float,
        *,
        limit: float | None = None,
        failed: Failed | None = None,
    ) -> None:
        heard = failed or (lambda error: self._failed(what, error))
        self._tasks.append(self._context.loop.create_task(repeat(what, work, every=every, limit=limit, failed=heard)))

    def _failed(self, what: str, error: Exception) -> None:
        if self._context.faults.takes(error):
            return
        self._context.faults.count(Fault.UPKEEP_FAILED)
        if isinstance(error, PulsarError | KopError | TimeoutError):
            why = str(error) or "it took too long"
            self._context.faults.tell(("upkeep", what), f"{what} failed: {why}; trying again")
        else:
            tell(what, error, kind="upkeep")

    async def _close_idle(self) -> None:
        now = self._context.loop.time()
        for partition in self._partitions():
            partition.close_idle(now, self._context.settings.idle_seconds)
        self._close_idle_others(now, self._context.settings.idle_seconds)

    async def _ask_broker(self) -> None:
        await self._context.client.partitions(self._cluster_topic.full_name)
        self._failure = None

    def _unanswered(self, error: Exception) -> None:
        self._failure = f"Pulsar does not answer: {error}"
        self._failed("the question whether Pulsar answers", error)

    async def _ask_rest(self) -> None:
        await self._cluster_topic.properties()
        self._refusal = None

    def _unanswered_by_rest(self, error: Exception) -> None:
        final = isinstance(error, PulsarError) and not error.retriable
        self._refusal = f"Pulsar's REST interface refuses this broker: {error}" if final else None
        self._failed("the question whether Pulsar's REST answers", error)

    def _not_looked_at(self, partition: PartitionView, error: Exception) -> None:
        if isinstance(error, KopError):
            return  # the failure was counted and logged where it occurred
        self._failed(f"the look at the ends of {partition.title}", error)


async def _look_at(partition: PartitionView) -> None:
    await partition.look_at_ends()
