"""The engines that the behavioural suite runs over. A new engine is one class here and one line in `STORES`.

A `Store` is an engine's data across restarts: it opens the engine again and again on the same data.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

import pytest
from storage.dense_view import Batches, DenseEngine
from support.settings import settings_of

from kop.errors import BackendError
from kop.storage import steady_time
from kop.storage.base import Engine, LiveBroker, LogPolicy, TopicInfo
from kop.storage.memory import engine as memory_engine
from kop.storage.memory.engine import Memory, MemoryEngine
from kop.storage.memory.settings import MemorySettings
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.engine import open_engine as open_pulsar
from kop.storage.pulsar.settings import PulsarSettings
from kop.storage.sqlite.engine import SqliteEngine, open_engine
from kop.storage.sqlite.settings import SqliteSettings
from kop.threads import Ended, tell


def policy_of(topic: TopicInfo) -> LogPolicy:
    """What the gateway makes of a topic's configs, as far as the tests set any."""
    configs = topic.configs
    cleanup = configs.get("cleanup.policy", "delete").split(",")
    return LogPolicy(
        delete="delete" in cleanup,
        compact="compact" in cleanup,
        retention_ms=int(configs.get("retention.ms", -1)),
        retention_bytes=int(configs.get("retention.bytes", -1)),
        log_append_time=configs.get("message.timestamp.type") == "LogAppendTime",
        delete_retention_ms=int(configs.get("delete.retention.ms", 86_400_000)),
        min_compaction_lag_ms=int(configs.get("min.compaction.lag.ms", 0)),
        max_compaction_lag_ms=int(configs.get("max.compaction.lag.ms", 2**63 - 1)),
        min_cleanable_dirty_ratio=float(configs.get("min.cleanable.dirty.ratio", 0.5)),
        raw_entries=configs.get("kop.entry.format") == "kafka",
    )


EngineT_co = TypeVar("EngineT_co", bound=Engine, covariant=True)


class EngineStore(Generic[EngineT_co]):
    """Data of an engine, over restarts."""

    is_local = True
    """False if other processes write the data, too, and storage has its own clock: batches of different producers may
    change places, sizes and append times are those of storage, upkeep is not done on request, and after a restart a
    duplicate is known, but not always its offset.
    """

    async def open(self) -> EngineT_co:
        """An engine on the data; the test closes it."""
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[EngineT_co]:
        """An engine on the data, closed at the end."""
        engine = await self.open()
        try:
            yield engine
        finally:
            await engine.close()

    async def maintain(self, engine: Engine, now_ms: int) -> None:
        """Let the engine do what is due at `now_ms`; a test that needs that ends here where the engine does not."""
        if not self.is_local:
            pytest.skip("Pulsar does its own upkeep, by whole ledgers and its own clock")
        await engine.maintain(now_ms)


Store: TypeAlias = EngineStore[Engine]


class Clocks:
    """The clocks by which engines forget producers, in milliseconds: a test moves them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = 1_700_000_000_000
        self.steady = 5_000
        clocks = SimpleNamespace(wall_ms=lambda: self.wall, monotonic_ns=lambda: self.steady * 1_000_000)
        monkeypatch.setattr(steady_time, "clock", clocks)

    def advance(self, ms: int) -> None:
        """Let time go by."""
        self.wall += ms
        self.steady += ms

    def restart(self) -> None:
        """Begin the clock that does not jump anew, as the machine's does when it starts."""
        self.steady = 5_000


class MemoryStore(EngineStore[MemoryEngine]):
    """The memory engine, without background work; a restart hands its memory on."""

    def __init__(self, **settings: Any) -> None:
        self.memory = Memory()
        self.settings = settings_of(MemorySettings, maintain=False, **settings)

    async def open(self) -> MemoryEngine:
        return await memory_engine.open_engine(self.memory, policy=policy_of, settings=self.settings)


class SqliteStore(EngineStore[SqliteEngine]):
    """The embedded engine, without background work: `maintain` does it when the test says so."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.path = directory / "kop.db"
        self.ended: Ended = settings.pop("ended", tell)
        self.settings = {"maintain": False, "kop_min_free_bytes": 0, **settings}

    async def open(self) -> SqliteEngine:
        settings = settings_of(SqliteSettings, **self.settings)
        return await open_engine(self.path, policy=policy_of, settings=settings, ended=self.ended)


BESIDE = {"beside_batch_bytes": 1, "beside_commit_bytes": 1, "segment_bytes": 16 << 10}
"""Settings by which every batch that is appended lies in a file beside the database, and files are small."""


class PulsarStore(EngineStore[PulsarEngine]):
    """Topics of a namespace of their own on a real Pulsar."""

    is_local = False

    def __init__(
        self,
        service_url: str,
        admin_url: str,
        namespace: str,
        offsets: str = "index",
        policy: Callable[[TopicInfo], LogPolicy] = policy_of,
    ) -> None:
        self.urls = service_url, admin_url
        self.policy = policy
        self.answers: Callable[[LiveBroker], Awaitable[bool]] | None = None
        self.settings = settings_of(
            PulsarSettings,
            kop_pulsar_namespace=namespace,
            kop_pulsar_metadata_namespace=f"{namespace}-kop",
            kop_pulsar_offsets=offsets,
            idle_seconds=1.0,
        )
        self._was_open = False

    async def open(self) -> PulsarEngine:
        try:
            engine = await self._open()
        except BackendError as error:
            # Of some thousand new namespaces Pulsar 4.0.8 left one without its topic policies: every request for them
            # waits for ever, and nothing of the test has begun. What a gateway says then is in the error.
            if self._was_open or "TopicPolicies: no answer" not in str(error):
                raise
            logging.getLogger(__name__).warning("Pulsar does not load the policies of a new namespace: %s", error)
            other = {"kop_pulsar_metadata_namespace": f"{self.settings.kop_pulsar_namespace}-kop-again"}
            self.settings = self.settings.model_copy(update=other)
            engine = await self._open()
        self._was_open = True
        return engine

    async def _open(self) -> PulsarEngine:
        return await open_pulsar(*self.urls, policy=self.policy, settings=self.settings, answers=self.answers)


class PackedStore(EngineStore[DenseEngine]):
    """As that, with offsets packed from message ids; the suite sees them without the gaps."""

    is_local = False

    def __init__(self, service_url: str, admin_url: str, namespace: str) -> None:
        self._pulsar = PulsarStore(service_url, admin_url, namespace, "packed")
        self._known: dict[tuple[UUID, int], Batches] = {}

    async def open(self) -> DenseEngine:
        return DenseEngine(await self._pulsar.open(), self._known)


STORES = (
    "memory",
    "sqlite",
    "sqlite-segments",
    *(pytest.param(name, marks=pytest.mark.pulsar) for name in ("pulsar", "packed")),
)
