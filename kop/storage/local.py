"""What engines have in common whose data only this process changes: in its memory, or in a file that it has locked.

Owns: what follows from that alone: logs are always led and up to date, all topics are known, no other broker is there.
Must not know: where data is kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final
from uuid import UUID

from prometheus_client.core import Metric

from kop.storage.base import EngineSnapshot, LiveBroker, LogPolicy, TopicInfo
from kop.storage.partition import Partition
from kop.storage.topic_table import TopicTable

PRODUCER_IDS: Final = 1000
"""The number of producer ids that are reserved at a time."""


def frozen(configs: Mapping[str, str]) -> Mapping[str, str]:
    """Return a read-only copy of a mapping."""
    return MappingProxyType(dict(configs))


class LocalLog(Partition):
    """A log that only this process writes to and deletes from; an engine's own class adds the batches."""

    __slots__ = ("size_bytes",)

    attached = True
    sole_writer = True
    reads_ahead = False
    """False: neither memory nor the database reads what nobody has asked for."""
    leads = True

    def __init__(self, topic: TopicInfo, index: int, policy: LogPolicy) -> None:
        super().__init__(topic, index, policy)
        self.size_bytes = 0

    async def attach(self) -> None:
        """Do nothing: the log is ready to serve as soon as the engine is open."""

    async def measure(self) -> int:
        """Return the bytes of the stored batches."""
        return self.size_bytes

    async def refresh(self) -> None:
        """Do nothing: only this process writes, so the high watermark is always up to date."""

    async def refresh_start(self) -> None:
        """Do nothing: only this process deletes, so the log start is always up to date."""

    async def lead(self, lost: Callable[[], None]) -> None:
        """Do nothing: only this process writes, so it always leads."""

    async def verify_lead(self) -> None:
        """Do nothing: only this process writes, so it always leads."""

    async def resign(self) -> None:
        """Do nothing: there is no other broker that could take the lead."""


class LocalTopics(TopicTable):
    """A table of topics that only this process changes; an engine's own class adds the changes."""

    @property
    def namespace(self) -> None:
        """None: topics have no namespaces here."""

    async def find(self, names: Collection[str]) -> None:
        """Do nothing: all topics are in memory, so there is none to find."""

    def missing(self, name: str) -> None:
        """Return None: all topics are in memory, so `find` looks for none."""

    def is_listed(self, namespace: str) -> bool:
        """Return true: all topics are known, in storage without namespaces."""
        return True

    async def list_namespace(self, namespace: str) -> None:
        """Do nothing: there is no topic to be found."""

    async def differing_configs(self, topic_id: UUID) -> Mapping[str, str]:
        """Return no configs: nobody else changes topics, so storage holds the same."""
        return {}

    async def refresh(self, topic_id: UUID) -> None:
        """Do nothing: only this process changes topics, so memory is up to date."""


class LocalEngine:
    """An engine without other brokers and without a server behind it; an engine's own class adds the data."""

    about = None
    """None: no other server has the data."""
    grants = None
    token_authority = None
    brokers: Sequence[LiveBroker] = ()
    brokers_fresh = True

    @property
    @abstractmethod
    def healthy(self) -> str | None:
        """None while records can be written; else one line that says why not."""

    @property
    def losses(self) -> str | None:
        """None: no stored records are lost, unless an engine's start finds some."""
        return None

    def on_state(self, callback: Callable[[], None]) -> None:
        """Do nothing: only this process changes small values, so no change by another one has to be told."""

    def on_brokers(self, callback: Callable[[], None]) -> None:
        """Do nothing: there are no other brokers whose changes could be told."""

    async def join(self, broker: LiveBroker) -> None:
        """Do nothing: there are no other brokers to join."""

    def snapshot(self) -> EngineSnapshot:
        """Return the engine's state for a status page."""
        return EngineSnapshot(self.healthy, self.about, self.losses)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of every engine, for a scrape."""
        return self.snapshot().collect()
