"""The memory engine: topics, logs, producer ids and small values of one process.

Owns: `open_engine`, the settings, what a change of a topic is, the logs by topic, when retention and compaction run.
Must not know: what a log does with its batches.

Memory is bounded by `max_bytes` over all logs: beyond it appends of clients fail with KAFKA_STORAGE_ERROR until
retention, compaction, DeleteRecords or the deletion of a topic make room. Nothing is thrown away to make room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from kop import background, clock
from kop.errors import BackendError
from kop.read_budget import ReadBudget
from kop.storage.base import LogPolicy, Promises, TopicInfo, TransactionStorage
from kop.storage.local import PRODUCER_IDS, LocalEngine, LocalTopics, frozen
from kop.storage.marked_transactions import MarkedTransactions
from kop.storage.memory.log import LogMemory, MemoryLog
from kop.storage.memory.settings import MemorySettings
from kop.storage.topic_table import new_cluster_id, new_uuid

_TICK_SECONDS: Final = 1.0
"""The seconds after which the upkeep looks again if retention and compaction are due: their interval may have
changed.
"""
_SHORTEST_PAUSE_SECONDS: Final = 0.01


@dataclass(slots=True)
class Memory:
    """The data that an engine leaves behind when it is closed. The next engine opened on it finds all of it, as after a
    restart.

    One engine at a time may be open on it.
    """

    cluster_id: str = field(default_factory=new_cluster_id)
    topics: Sequence[TopicInfo] = ()
    topics_version: int = 0
    logs: dict[UUID, list[MemoryLog]] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    next_producer_id: int = 0


class MemoryTopics(LocalTopics):
    """The table of topics of a memory engine. `changed(old, new)` is called first, so that the engine's logs follow
    before others are told.
    """

    def __init__(
        self, version: int, topics: Iterable[TopicInfo], changed: Callable[[TopicInfo | None, TopicInfo | None], None]
    ) -> None:
        super().__init__(version, topics)
        self._changed = changed

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False
    ) -> TopicInfo:
        """Make a topic, and return it; TOPIC_ALREADY_EXISTS if the name is taken, INVALID_PARTITIONS for a number below
        1.
        """
        topic = TopicInfo(name, new_uuid(), partitions, frozen(configs), internal)
        self._check_new(topic)
        return self._put(None, topic)

    async def delete(self, topic_id: UUID) -> None:
        """Delete a topic and its records. UNKNOWN_TOPIC_ID if it does not exist."""
        topic = self._find(topic_id)
        self._strike(topic)
        self._announce(topic, None)

    async def grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        """Raise the number of a topic's partitions, and return the topic; INVALID_PARTITIONS if it would not grow,
        UNKNOWN_TOPIC_ID if it does not exist.
        """
        topic = self._find(topic_id)
        self._check_growth(topic, partitions)
        return self._put(topic, replace(topic, partitions=partitions))

    async def set_configs(self, topic_id: UUID, configs: Mapping[str, str], named: Collection[str] = ()) -> TopicInfo:
        """Replace the topic's own configs, and return the topic; in force when this returns. UNKNOWN_TOPIC_ID if it
        does not exist.
        """
        topic = self._find(topic_id)
        if configs == topic.configs:
            return topic
        return self._put(topic, replace(topic, configs=frozen(configs)))

    def _put(self, old: TopicInfo | None, new: TopicInfo) -> TopicInfo:
        self._enter(new)
        self._announce(old, new)
        return new

    def _announce(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        self._version += 1
        self._changed(old, new)
        self._tell(old, new)


class MemoryEngine(LocalEngine):
    """An `Engine` whose data is in the process. Made by `open_engine`."""

    promises = Promises(
        checks_records=False,
        durable=False,
        writes_markers=True,
    )
    directory = None

    def __init__(self, memory: Memory, policy: Callable[[TopicInfo], LogPolicy], settings: MemorySettings) -> None:
        self._memory = memory
        self._policy = policy
        self._settings = settings
        self._space = LogMemory(settings.kop_memory_bytes)
        self.read_budget = ReadBudget(settings.kop_memory_bytes)
        self._upkeep: asyncio.Task[None] | None = None
        self._kept_up = clock.monotonic()
        """The monotonic time at which the last round of upkeep ended."""
        self.cluster_id = memory.cluster_id
        self.topics = MemoryTopics(memory.topics_version, memory.topics, self.topic_changed)
        self._logs = {
            topic.topic_id: [log.reopened(self._space, policy(topic)) for log in memory.logs[topic.topic_id]]
            for topic in memory.topics
        }
        self.transactions: TransactionStorage = MarkedTransactions(self.topics, self.log, clock.wall_ms)
        if settings.maintain:
            self._upkeep = asyncio.get_running_loop().create_task(
                background.repeat(
                    "retention or compaction", self._keep_up, every=lambda: min(self._interval, _TICK_SECONDS)
                )
            )

    def log(self, topic_id: UUID, partition: int) -> MemoryLog | None:
        """Return the log of a partition, the same object each time; None if there is none."""
        logs = self._logs.get(topic_id, ())
        return logs[partition] if 0 <= partition < len(logs) else None

    def topic_changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        """Update the logs for a changed topic, before callbacks are called: give them the new value and policy, make
        those of new partitions, remove those of a deleted topic.
        """
        if new is None:
            assert old is not None
            for log in self._logs.pop(old.topic_id):
                log.remove()
            return
        policy, logs = self._policy(new), self._logs.setdefault(new.topic_id, [])
        for log in logs:
            log.topic, log.policy = new, policy
        logs.extend(self.new_log(self._space, new, index, policy) for index in range(len(logs), new.partitions))

    def new_log(self, space: LogMemory, topic: TopicInfo, index: int, policy: LogPolicy) -> MemoryLog:
        """Return the log of a new partition; an engine with another kind of log makes that."""
        return MemoryLog(space, topic, index, policy)

    def policies_changed(self) -> None:
        """Ask for the policy of every topic again, because a broker default was altered."""
        for topic in self.topics.all():
            self.topic_changed(topic, topic)

    async def reserve_producer_ids(self) -> range:
        """Return 1000 producer ids that were never given before. BackendError if the engine is closed."""
        self._check_open()
        first = self._memory.next_producer_id
        self._memory.next_producer_id += PRODUCER_IDS
        return range(first, first + PRODUCER_IDS)

    async def get_state(self, key: str) -> str | None:
        """Return a small value by its key; None if there is none."""
        return self._memory.state.get(key)

    async def put_state(self, key: str, value: str | None) -> None:
        """Set a small value by its key, or remove it with None."""
        self._check_open()
        if value is None:
            self._memory.state.pop(key, None)
        else:
            self._memory.state[key] = value

    async def maintain(self, now_ms: int) -> None:
        """Do all that is due at `now_ms` for every log: retention, and compaction, whose failure is logged. Idempotent
        producers expire as well, by a clock of their own.
        """
        for log in [log for logs in self._logs.values() for log in logs]:
            log.retain(now_ms)
            log.expire_producers(self._settings.producer_id_expiration_ms)
            try:
                await log.compact(now_ms)
            except Exception as error:  # the other logs are cleaned all the same
                background.tell(f"compaction of {log.title}", error, kind="compaction")

    @property
    def _interval(self) -> float:
        return max(
            min(self._settings.log_retention_check_interval_ms, self._settings.cleaner_interval_ms()) / 1000,
            _SHORTEST_PAUSE_SECONDS,
        )

    async def _keep_up(self) -> None:
        if clock.monotonic() < self._kept_up + self._interval:
            return
        try:
            await self.maintain(clock.wall_ms())
        finally:
            self._kept_up = clock.monotonic()

    @property
    def healthy(self) -> str | None:
        """None while records can be appended; one line if the engine is closed or its memory is full."""
        return self._space.problem

    def _check_open(self) -> None:
        if self._space.closed:
            raise BackendError(self._space.problem or "")

    async def close(self) -> None:
        """End the upkeep, answer the appends that were submitted, and leave all data to the next engine on the
        memory.
        """
        if self._space.closed:
            return
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        self._space.closed = True
        for logs in self._logs.values():
            for log in logs:
                log.commit()
        self._memory.logs = self._logs
        self._memory.topics, self._memory.topics_version = self.topics.all(), self.topics.version


async def open_engine(
    memory: Memory | None = None,
    *,
    policy: Callable[[TopicInfo], LogPolicy],
    settings: MemorySettings | None = None,
) -> MemoryEngine:
    """Start an engine on the running loop; empty, unless `memory` is the data that another one left behind.

    `policy` gives a topic's effective configs and is asked again after each change of the topic.
    """
    return MemoryEngine(memory or Memory(), policy, settings or MemorySettings())
