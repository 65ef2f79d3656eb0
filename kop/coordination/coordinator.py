"""What every coordinator is: keys, spread over a state topic, of which this broker serves those that are its own.

Owns: the clocks, the state topic with who coordinates its partitions, and what is answered for a key by that alone.
Must not know: what a key stands for; the coordinator that derives from it loads a partition, serves it, lets it go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar
from uuid import UUID

from kop import clock as system
from kop.coordination.ownership import LeaderChoice, Ownership
from kop.coordination.state_log import StateLog, StateTopic
from kop.errors import ErrorCode
from kop.storage.base import Engine

LoadedT = TypeVar("LoadedT")


class Coordinator(ABC, Generic[LoadedT]):
    """A coordinator of keys: of groups by their ids, say. `LoadedT` is what one partition holds."""

    def __init__(
        self,
        engine: Engine,
        topic: StateTopic,
        *,
        clock: Callable[[], int] | None = None,
        wall: Callable[[], int] | None = None,
        leader_choice: LeaderChoice | None = None,
    ) -> None:
        """`clock` and `wall` give milliseconds since the epoch; the former never goes back.

        Without a `leader_choice` this broker coordinates all keys.
        """
        offset = system.wall_ns() - system.monotonic_ns()
        self._wall = wall or clock or system.wall_ms
        self._clock = clock or (lambda: (system.monotonic_ns() + offset) // 1_000_000)
        self.state_log = StateLog(engine, topic, self._wall)
        """The state topic."""
        self.ownership = Ownership[LoadedT](
            self.state_log, engine, leader_choice, self._load, self._install, self._unload
        )
        """Which partitions of the state topic are served here."""

    @abstractmethod
    async def _load(self, partition: int) -> LoadedT:
        """Read a partition of the state topic; nothing is in force yet."""

    @abstractmethod
    def _install(self, partition: int, loaded: LoadedT) -> None:
        """Serve what a partition holds: that and nothing else."""

    @abstractmethod
    def _unload(self, partition: int) -> None:
        """Forget a partition that another broker coordinates: nothing of it stays here."""

    @property
    def topic_id(self) -> UUID:
        """The id of the state topic. Known once the topic is."""
        return self.state_log.topic_id

    @property
    def refusal(self) -> ErrorCode:
        """NONE where a request about all keys is served, else what to answer."""
        return self.ownership.refusal_of_all

    @property
    def waiting_for(self) -> str | None:
        """What is not served yet, and why, in one line for an operator; None where all that is ours is served."""
        return self.ownership.waiting_for

    def refusal_of(self, key: str, *, surely: bool = False) -> ErrorCode:
        """Return NONE if requests for the key are served here, else the error; see `Ownership.refusal`."""
        return self.ownership.refusal(key, surely=surely)

    def in_doubt(self, keys: Iterable[str]) -> set[int]:
        """Return partitions of these keys that `verify` has to ask about before anything is answered from memory."""
        return self.ownership.in_doubt(keys)

    async def verify(self, partitions: Collection[int]) -> None:
        """Ask storage who coordinates; what is still in doubt then, or gone, is refused by `refusal_of`."""
        await self.ownership.verify(partitions)

    def coordinator_of(self, key: str) -> tuple[UUID, int] | None:
        """Return the topic id and partition that keep the key; None before the state topic is known."""
        return (self.state_log.topic_id, self.state_log.partition_of(key)) if self.state_log.partitions else None
