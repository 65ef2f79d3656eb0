"""Several brokers of one process on one memory engine, each with its own view of it: a cluster for tests.

Owns: which brokers are live, which of them leads a log, who hears of changes; the engine, which the first broker opens
and the last one closes.
Must not know: what a log holds, how brokers are started.

The engine's logs and topics are the same objects for all brokers. What differs is a view around them: a log is led by
one broker, and the callbacks of a broker end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

from kop.errors import ErrorCode, KopError, PeerError
from kop.records.batch import BatchHeader
from kop.storage.base import AppendWaiter, Buffer, Engine, LiveBroker, LogPolicy, PartitionLog, TopicInfo, Topics
from kop.storage.memory.engine import Memory, MemoryEngine, open_engine
from kop.storage.memory.log import MemoryLog
from kop.storage.memory.settings import MemorySettings


class SharedMemory:
    """The engine and the data that several brokers of one process share. The data outlives the brokers, as it does a
    restart.
    """

    def __init__(self) -> None:
        self._memory = Memory()
        self._engine: MemoryEngine | None = None
        self._views: list[_EngineOfBroker] = []
        self.leaders: dict[MemoryLog, tuple[_EngineOfBroker, Callable[[], None]]] = {}
        """The broker that leads each log, and the function to call when another one takes the lead."""

    async def open_engine(self, *, policy: Callable[[TopicInfo], LogPolicy], settings: MemorySettings) -> Engine:
        """Return the engine as one broker sees it. The settings of the first broker hold for all."""
        if self._engine is None:
            self._engine = await open_engine(self._memory, policy=policy, settings=settings)
        view = _EngineOfBroker(self, self._engine)
        self._views.append(view)
        return cast(Engine, view)

    @property
    def brokers(self) -> Sequence[LiveBroker]:
        """The live brokers, by their ids."""
        live = [view.broker for view in self._views if view.broker is not None]
        return sorted(live, key=lambda broker: broker.node_id)

    def membership_changed(self) -> None:
        """Call the callbacks of every broker for a change of the live brokers."""
        for view in list(self._views):
            for callback in view.broker_callbacks:
                callback()

    def value_changed(self, by: object) -> None:
        """Call the callbacks of all brokers but `by`, the view of the broker that has changed a small value."""
        for view in list(self._views):
            for callback in view.state_callbacks if view is not by else ():
                callback()

    async def leave(self, view: _EngineOfBroker) -> None:
        """Forget a broker; the logs that it led have no leader then. The engine is closed when the last broker
        leaves.
        """
        self._views.remove(view)
        for log in [log for log, (leader, _) in self.leaders.items() if leader is view]:
            del self.leaders[log]
        self.membership_changed()
        if not self._views and self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.close()


class _View:
    """An object of the engine as one broker sees it: all attributes are the engine's but for those that a subclass
    defines.
    """

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class _EngineOfBroker(_View):
    """The engine as one broker sees it."""

    brokers_fresh = True

    def __init__(self, shared: SharedMemory, engine: MemoryEngine) -> None:
        super().__init__(engine)
        self._shared = shared
        self._engine = engine
        self._logs: dict[tuple[UUID, int], PartitionLog] = {}
        self.broker_callbacks: list[Callable[[], None]] = []
        self.state_callbacks: list[Callable[[], None]] = []
        self._closed = False
        self.topics = cast(Topics, _TopicsOfBroker(engine.topics))
        self.broker: LiveBroker | None = None

    @property
    def brokers(self) -> Sequence[LiveBroker]:
        """The live brokers."""
        return self._shared.brokers

    def on_brokers(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of the live brokers."""
        self.broker_callbacks.append(callback)

    def on_state(self, callback: Callable[[], None]) -> None:
        """Call `callback` when another broker has changed a small value."""
        self.state_callbacks.append(callback)

    async def join(self, broker: LiveBroker) -> None:
        """Become live, and call the callbacks of all brokers; BROKER_ID_NOT_REGISTERED if the id is that of another
        live broker.
        """
        if any(other.node_id == broker.node_id for other in self._shared.brokers):
            raise KopError(f"broker {broker.node_id} is live already", ErrorCode.BROKER_ID_NOT_REGISTERED)
        self.broker = broker
        self._shared.membership_changed()

    async def put_state(self, key: str, value: str | None) -> None:
        """Set or remove a small value, and tell the other brokers."""
        await self._engine.put_state(key, value)
        self._shared.value_changed(self)

    def log(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        """Return the log of a partition; for a coordinator's state topic, a view of it that this broker can lead or
        not.
        """
        log = self._engine.log(topic_id, partition)
        if log is None or not log.topic.internal:
            return log
        place = topic_id, partition
        if place not in self._logs:
            self._logs[place] = cast(PartitionLog, _LogOfBroker(self._shared, self, log))
        return self._logs[place]

    async def close(self) -> None:
        """Leave the cluster, and give up the leads of logs. Callbacks of this broker are not called any more; the last
        broker's leave closes the engine.
        """
        if not self._closed:
            self._closed = True
            self.broker = None
            self.broker_callbacks.clear()
            self.state_callbacks.clear()
            cast(_TopicsOfBroker, self.topics).end()
            await self._shared.leave(self)


class _TopicsOfBroker(_View):
    """The table of topics as one broker sees it, with callbacks that end with the broker."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(topics)
        self._callbacks: list[Callable[[TopicInfo | None, TopicInfo | None], None]] = []
        topics.on_change(self._changed)

    def on_change(self, callback: Callable[[TopicInfo | None, TopicInfo | None], None]) -> None:
        """Call `callback` after each change of a topic, as long as the broker is live."""
        self._callbacks.append(callback)

    def _changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        for callback in self._callbacks:
            callback(old, new)

    def end(self) -> None:
        """Call no callback of this broker any more."""
        self._callbacks.clear()


class _LogOfBroker(_View):
    """A log that one of the brokers leads, as one broker sees it: appends of a broker that does not lead are
    refused.
    """

    def __init__(self, shared: SharedMemory, broker: _EngineOfBroker, log: MemoryLog) -> None:
        super().__init__(log)
        self._shared = shared
        self._broker = broker
        self._log = log

    async def lead(self, lost: Callable[[], None]) -> None:
        """Become the log's only writer; `lost` of the broker that led it before is called. What that broker wrote is in
        the log, even if it was not answered yet.
        """
        former = self._shared.leaders.get(self._log)
        self._shared.leaders[self._log] = self._broker, lost
        self._log.commit()
        if former is not None and former[0] is not self._broker:
            former[1]()

    @property
    def leads(self) -> bool:
        """True if this broker is the only writer of the log."""
        leader = self._shared.leaders.get(self._log)
        return leader is not None and leader[0] is self._broker

    async def resign(self) -> None:
        """Give up the lead of the log, if this broker has it."""
        if self.leads:
            del self._shared.leaders[self._log]

    def submit(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        now_ms: int,
        waiter: AppendWaiter,
        place: int,
        from_zero: bool = False,
    ) -> None:
        """Accept a batch of the leader; NOT_LEADER_OR_FOLLOWER for any other broker."""
        if self.leads:
            self._log.submit(batch, header, now_ms=now_ms, waiter=waiter, place=place, from_zero=from_zero)
        else:
            title = self._log.title
            waiter.append_failed(
                place, PeerError(f"another broker writes to {title}", ErrorCode.NOT_LEADER_OR_FOLLOWER)
            )
