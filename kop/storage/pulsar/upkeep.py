"""What the engine over Pulsar does now and then by itself, and whether Pulsar answers.

Owns: the loops, their pace and time limits, the reason why the gateway is not healthy.
Must not know: what each of them looks after.

Each loop goes on by itself: one that waits for a broker that does not answer delays no other. Within a loop partitions
are looked at side by side, a bounded number of them, each within a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from kop.background import Failed, for_each, repeat, tell
from kop.errors import KopError
from kop.pulsar_client import PulsarError

if TYPE_CHECKING:
    from kop.storage.pulsar.engine import PulsarEngine
    from kop.storage.pulsar.partition.log import PulsarLog

_HEALTH_SECONDS: Final = 5.0
_ENDS_IN_A_ROUND: Final = 200
AT_ONCE: Final = 16
"""Partitions that are looked at side by side."""
LOOK_SECONDS: Final = 30.0
"""How long the look at one partition may take: a few requests of 10 s."""
_LISTING_SECONDS: Final = 300.0
"""How long a listing of all topics may take."""


class Upkeep:
    """Of one engine."""

    def __init__(self, engine: PulsarEngine) -> None:
        self._engine = engine
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: str | None = None
        self._refusal: str | None = None
        self._looked_at = 0

    @property
    def failure(self) -> str | None:
        """Why records cannot be written now; None where they can, as far as is known.

        That is so while no broker answers over the binary protocol, and while REST refuses what this gateway shows: its
        credentials have run out. A REST interface that does not answer keeps no record from being written.
        """
        return self._failure or self._refusal

    def start(self) -> None:
        """Begin all loops."""
        engine = self._engine
        often = min(engine.settings.idle_seconds / 2, _HEALTH_SECONDS)
        every, seldom = engine.settings.list_seconds / 2, engine.settings.list_seconds
        self._begin("the closing of what is idle", self._close_idle, often)
        self._begin("the question whether Pulsar answers", self._ask_broker, often, failed=self._unanswered)
        self._begin(
            "the question whether Pulsar's REST answers", self._ask_rest, often, failed=self._unanswered_by_rest
        )
        self._begin("the look at the ends of logs", self.look_at_ends, every)
        self._begin("the look at the retention of topics", engine.write_checks.look_again, every)
        self._begin("the look at compactions", engine.compactions.look, every)
        self._begin("the listing of topics", engine.topics.load, seldom, limit=_LISTING_SECONDS)

    async def close(self) -> None:
        """End all loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def look_at_ends(self) -> None:
        """Both ends of some logs in turn: retention moves the start, and a tail may wait where Pulsar moved it.

        Readers that meet a gap ask by themselves.
        """
        due = [one for one in self._engine.logs() if one.attached and not one.deleted]
        self._looked_at %= max(len(due), 1)
        turn = due[self._looked_at : self._looked_at + _ENDS_IN_A_ROUND]
        self._looked_at += _ENDS_IN_A_ROUND
        await for_each(turn, _look_at, at_once=AT_ONCE, limit=LOOK_SECONDS, failed=self._not_looked_at)

    # --- inside

    def _begin(
        self,
        what: str,
        work: Callable[[], Awaitable[None]],
        every: float,
        *,
        limit: float | None = None,
        failed: Failed | None = None,
    ) -> None:
        heard = failed or (lambda error: self._failed(what, error))
        self._tasks.append(self._engine.loop.create_task(repeat(what, work, every=every, limit=limit, failed=heard)))

    def _failed(self, what: str, error: Exception) -> None:
        self._engine.count("upkeep_failed")
        if isinstance(error, PulsarError | KopError | TimeoutError):
            why = str(error) or "it took too long"
            self._engine.faults.tell(("upkeep", what), f"{what} failed: {why}; trying again")
        else:
            tell(what, error, kind="upkeep")

    async def _close_idle(self) -> None:
        now = self._engine.loop.time()
        for one in self._engine.logs():
            if one.attached:
                one.close_idle(now, self._engine.settings.idle_seconds)

    async def _ask_broker(self) -> None:
        await self._engine.client.partitions(self._engine.own_name)
        self._failure = None

    def _unanswered(self, error: Exception) -> None:
        self._failure = f"Pulsar does not answer: {error}"
        self._failed("the question whether Pulsar answers", error)

    async def _ask_rest(self) -> None:
        await self._engine.own_properties()
        self._refusal = None

    def _unanswered_by_rest(self, error: Exception) -> None:
        final = isinstance(error, PulsarError) and not error.retriable
        self._refusal = f"Pulsar's REST interface refuses this gateway: {error}" if final else None
        self._failed("the question whether Pulsar's REST answers", error)

    def _not_looked_at(self, one: PulsarLog, error: Exception) -> None:
        if isinstance(error, KopError):
            return  # counted and told where it came up
        self._failed(f"the look at the ends of {one.title}", error)


async def _look_at(one: PulsarLog) -> None:
    await one.look_at_ends()
