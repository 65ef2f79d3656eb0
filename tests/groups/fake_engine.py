"""Storage in memory whose commits end when the test says so, and as the test says."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kop.errors import ErrorCode, KopError
from kop.records.batch import BatchHeader, iter_batches, iter_records, stamp
from kop.storage.base import AppendResult, ReadResult, TopicInfo


class FakeLog:
    """One partition. While `held`, appends wait for `release`; they end in their order."""

    def __init__(self, topic: TopicInfo, index: int) -> None:
        self.topic, self.index = topic, index
        self.log_start_offset = 0
        self.high_watermark = 0
        self.batches: list[bytes] = []
        self.held = False
        self.attached = False
        self.error: ErrorCode | None = None
        self.raises = False
        self.lost: Callable[[], None] = lambda: None
        """What the gateway that leads wants to be called when it leads no more."""
        self.gate: asyncio.Event | None = None
        """What a read waits for."""
        self.gated = 0
        """Reads that came to it."""
        self.waiting: list[tuple[bytearray, BatchHeader, asyncio.Future[AppendResult]]] = []
        self.appends = 0

    async def attach(self) -> None:
        await asyncio.sleep(0)
        self.attached = True

    leads = True
    answers = True
    """Storage says who leads, which ends all doubt."""

    async def verify_lead(self) -> None:
        self.leads = self.leads or self.answers

    async def lead(self, lost: Callable[[], None]) -> None:
        await self.attach()
        self.lost = lost

    async def resign(self) -> None:
        pass

    def append(self, batch: Any, header: BatchHeader, *, now_ms: int) -> asyncio.Future[AppendResult]:
        assert self.attached
        if self.raises:
            raise KopError("no room", ErrorCode.KAFKA_STORAGE_ERROR)
        self.appends += 1
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.waiting.append((bytearray(batch), header, future))
        if not self.held:
            asyncio.get_running_loop().call_soon(self.release)
        return future

    def release(self, error: ErrorCode | None = None) -> None:
        """What waits becomes durable, or fails, all of it."""
        waiting, self.waiting = self.waiting, []
        for batch, header, future in waiting:
            code = error or self.error
            if code is not None:
                future.set_exception(KopError("as the test wants", code))
                continue
            base = self.high_watermark
            stamp(batch, base)
            self.batches.append(bytes(batch))
            self.high_watermark = base + header.last_offset_delta + 1
            future.set_result(AppendResult(base, -1, 0))

    async def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        await asyncio.sleep(0)
        found: list[bytes] = []
        for batch in self.batches:
            [(_, header)] = iter_batches(batch)
            if header.next_offset > offset and (not found or sum(map(len, found)) + len(batch) <= max_bytes):
                found.append(batch)
        self.gated += 1
        if self.gate is not None:
            await self.gate.wait()
        return ReadResult(found, sum(map(len, found)))

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of all that is durable."""
        return [(r.key, r.value) for batch in self.batches for r in iter_records(batch, max_bytes=2**30)]


class FakeTopics:
    namespace: str | None = None

    def __init__(self) -> None:
        self.version = 0
        self.found: dict[str, TopicInfo] = {}
        self.logs: dict[uuid.UUID, list[FakeLog]] = {}
        self.callbacks: list[Callable[[TopicInfo | None, TopicInfo | None], None]] = []
        self.gate: asyncio.Event | None = None
        """What a look for topics waits for."""
        self.gated = 0

    def get(self, name: str) -> TopicInfo | None:
        return self.found.get(name)

    async def find(self, names: Collection[str]) -> None:
        await asyncio.sleep(0)
        self.gated += 1
        if self.gate is not None:
            await self.gate.wait()

    def missing(self, name: str) -> ErrorCode | None:
        return None

    def by_id(self, topic_id: uuid.UUID) -> TopicInfo | None:
        return next((t for t in self.found.values() if t.topic_id == topic_id), None)

    def all(self) -> Sequence[TopicInfo]:
        return [self.found[name] for name in sorted(self.found)]

    def on_change(self, callback: Callable[[TopicInfo | None, TopicInfo | None], None]) -> None:
        self.callbacks.append(callback)

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False
    ) -> TopicInfo:
        topic = self.found[name] = TopicInfo(name, uuid.uuid4(), partitions, configs, internal)
        self.logs[topic.topic_id] = [FakeLog(topic, index) for index in range(partitions)]
        self._changed(None, topic)
        return topic

    async def delete(self, topic_id: uuid.UUID) -> None:
        topic = self.by_id(topic_id)
        assert topic is not None
        del self.found[topic.name]
        self._changed(topic, None)

    def _changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        self.version += 1
        for callback in self.callbacks:
            callback(old, new)


class FakeEngine:
    """Enough of an engine for the coordinator."""

    def __init__(self) -> None:
        self.topics = FakeTopics()

    members: tuple[Any, ...] = ()
    members_fresh = True

    def on_members(self, callback: Callable[[], None]) -> None:
        pass

    def log(self, topic_id: uuid.UUID, partition: int) -> FakeLog | None:
        logs = self.topics.logs.get(topic_id, [])
        return logs[partition] if 0 <= partition < len(logs) else None

    @property
    def offsets(self) -> list[FakeLog]:
        """The partitions of `__offsets`."""
        return self.topics.logs[self.topics.found["__offsets"].topic_id]
