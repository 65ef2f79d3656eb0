"""The coordinator of keys that are spread over a state topic, of which this broker serves those that are its own.

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
    """The base of a coordinator of keys, such as groups by their ids. `LoadedT` is the type of a partition's
    content.
    """

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
        """The records of the state topic: reading and writing its partitions."""
        self.ownership = Ownership[LoadedT](
            self.state_log, engine, leader_choice, self._load, self._install, self._unload
        )
        """The state of each partition of the state topic: served here or not, and why not."""

    @abstractmethod
    async def _load(self, partition: int) -> LoadedT:
        """Read a partition of the state topic and return its content; nothing of it is in force yet."""

    @abstractmethod
    def _install(self, partition: int, loaded: LoadedT) -> None:
        """Put the content of a partition in force: from now on this broker serves its keys by that and nothing else."""

    @abstractmethod
    def _unload(self, partition: int) -> None:
        """Drop the content of a partition that another broker coordinates now."""

    @property
    def topic_id(self) -> UUID:
        """The id of the state topic; all zeros before the topic is known."""
        return self.state_log.topic_id

    @property
    def refusal(self) -> ErrorCode:
        """The error for requests about all keys: NONE if all partitions of this broker are served,
        COORDINATOR_LOAD_IN_PROGRESS while some are not.
        """
        return self.ownership.refusal_of_all

    @property
    def waiting_for(self) -> str | None:
        """One line for an operator about this broker's partitions that are not served yet, and why; None if all are
        served.
        """
        return self.ownership.waiting_for

    def refusal_of(self, key: str, *, surely: bool = False) -> ErrorCode:
        """Return NONE if requests for the key are served here, else the error for the client. `surely`:
        COORDINATOR_LOAD_IN_PROGRESS also while the key's partition is in doubt; see `Ownership.refusal`.
        """
        return self.ownership.refusal(key, surely=surely)

    def in_doubt(self, keys: Iterable[str]) -> set[int]:
        """Return those partitions of these keys that are served here and in doubt: another broker may have taken them
        over meanwhile. Before anything is answered from memory, `verify` has to ask about them.
        """
        return self.ownership.in_doubt(keys)

    async def verify(self, partitions: Collection[int]) -> None:
        """Ask storage if this broker still coordinates these partitions; afterwards `refusal_of` refuses those that are
        lost or still in doubt.
        """
        await self.ownership.verify(partitions)

    def coordinator_of(self, key: str) -> tuple[UUID, int] | None:
        """Return the state topic's id and the partition that keeps the key, which determine its coordinator; None
        before the topic is known.
        """
        return (self.state_log.topic_id, self.state_log.partition_of(key)) if self.state_log.partitions else None
