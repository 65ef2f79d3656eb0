"""The smallest coordinator that shows what `kop.coordination` gives: named counters in a topic of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kop.coordination.coordinator import Coordinator
from kop.coordination.deadlines import NEVER, Deadlines
from kop.coordination.ownership import LeaderChoice
from kop.coordination.state_log import StateTopic
from kop.errors import ErrorCode
from kop.storage.base import Engine

TOPIC = StateTopic("__counters", 2, {"cleanup.policy": "compact", "segment.bytes": "1000000"})


class CounterCoordinator(Coordinator[dict[str, int]]):
    """Counters by name; one that nobody changed for `idle_ms` is deleted."""

    def __init__(
        self,
        engine: Engine,
        leader_choice: LeaderChoice | None = None,
        *,
        clock: Callable[[], int] = lambda: 0,
        idle_ms: int = NEVER,
    ) -> None:
        super().__init__(engine, TOPIC, clock=clock, leader_choice=leader_choice)
        self.deadlines = Deadlines[str](clock, self._idle)
        self.values: dict[str, int] = {}
        self._idle_ms = idle_ms

    async def _load(self, partition: int) -> dict[str, int]:
        records = await self.state_log.read(partition)
        return {key.decode(): int(value) for key, value in records.items() if value is not None}

    def _install(self, partition: int, values: dict[str, int]) -> None:
        self.values |= values

    def _unload(self, partition: int) -> None:
        for name in [name for name in self.values if self.state_log.partition_of(name) == partition]:
            del self.values[name]
            self.deadlines.disarm(name)

    def add(self, name: str, count: int) -> asyncio.Future[int | ErrorCode]:
        """The new value once it is durable, or an error."""
        answer: asyncio.Future[int | ErrorCode] = asyncio.get_running_loop().create_future()
        if refusal := self.ownership.refusal(name):
            answer.set_result(refusal)
            return answer
        partition = self.state_log.partition_of(name)
        term, value = self.ownership.term(partition), self.values.get(name, 0) + count

        def written(code: ErrorCode) -> None:
            if not code and self.ownership.term(partition) == term:
                self.values[name] = value
                if self._idle_ms != NEVER:
                    self.deadlines.arm(name, self._clock() + self._idle_ms)
            answer.set_result(code or value)

        self.state_log.write(partition, [(name.encode(), str(value).encode())], written)
        return answer

    def get(self, name: str) -> int | ErrorCode:
        """The value, or why it cannot be told."""
        return self.ownership.refusal(name, surely=True) or self.values.get(name, 0)

    def _idle(self, name: str, now: int) -> None:
        def written(code: ErrorCode) -> None:
            if not code:
                self.values.pop(name, None)

        self.state_log.write(self.state_log.partition_of(name), [(name.encode(), None)], written)

    async def stop(self) -> None:
        """Serve nothing more."""
        self.deadlines.stop()
        await self.ownership.stop()
