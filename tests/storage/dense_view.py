"""An engine whose offsets have gaps, seen as one whose offsets count records: what the suite says holds for it, too.

The view knows which offsets batches have, from what the log itself keeps at its end and from what appends were told; it
checks that they ascend and never overlap. An offset between two batches is handed on as the one behind the first of
them, where consumers stand.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from uuid import UUID

from prometheus_client.core import Metric

from kop.errors import KopError
from kop.read_budget import ReadBudget
from kop.records.batch import BatchHeader, read_header, stamp
from kop.storage.base import (
    AppendResult,
    AppendWaiter,
    Buffer,
    EngineSnapshot,
    Grants,
    LiveBroker,
    PartitionLog,
    ProducerView,
    Promises,
    ReadResult,
    TimestampOffset,
    TokenAuthority,
    TopicInfo,
    Topics,
    TransactionStorage,
)
from kop.storage.partition import AppendFuture
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.transaction_index import AbortedTransaction


class Batches:
    """Base offset and number of records of all batches of a log, in order."""

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.counts: list[int] = []

    def add(self, base: int, count: int) -> None:
        at = bisect_right(self.bases, base)
        if at and self.bases[at - 1] == base:
            assert self.counts[at - 1] == count
            return
        assert not at or self.bases[at - 1] + self.counts[at - 1] <= base
        assert at == len(self.bases) or base + count <= self.bases[at]
        self.bases.insert(at, base)
        self.counts.insert(at, count)

    def dense(self, offset: int) -> int:
        """How many records lie before an offset."""
        at = bisect_right(self.bases, offset)
        if not at:
            return 0
        return sum(self.counts[: at - 1]) + min(offset - self.bases[at - 1], self.counts[at - 1])

    def real(self, number: int, start: int, end: int) -> int:
        """The offset behind so many records."""
        if number < 0:
            return number
        for base, count in zip(self.bases, self.counts, strict=True):
            if number <= count and (number or base >= start):
                return max(base + number, start) if number == 0 else base + number
            number -= count
        return end + number


class DenseWaiter:
    """Tells a waiter the number of records before a batch, for its offset."""

    def __init__(self, waiter: AppendWaiter, batches: Batches, known: Callable[[], Batches], count: int) -> None:
        self._waiter = waiter
        self._batches = batches
        self._known = known
        self._count = count

    def reserve(self, size: int) -> None:
        self._waiter.reserve(size)

    def appended(self, place: int, result: AppendResult) -> None:
        self._batches.add(result.base_offset, self._count)
        known = self._known()
        base, start = known.dense(result.base_offset), known.dense(result.log_start_offset)
        self._waiter.appended(place, result._replace(base_offset=base, log_start_offset=start))

    def append_failed(self, place: int, error: KopError) -> None:
        self._waiter.append_failed(place, error)


class DenseLog:
    """A `PartitionLog` over one with gaps."""

    def __init__(self, log: PulsarLog, batches: Batches) -> None:
        self.real = log
        self._batches = batches

    def _known(self) -> Batches:
        tail = self.real.tail.cached
        for i in range(len(tail.lasts) - 1, tail.first - 1, -1):
            header = read_header(tail.buffers[i])
            if self._batches.bases and header.base_offset <= self._batches.bases[-1]:
                break
        else:
            i = tail.first - 1
        for buffer in tail.buffers[i + 1 :]:
            header = read_header(buffer)
            self._batches.add(header.base_offset, header.last_offset_delta + 1)
        return self._batches

    def _offset(self, number: int) -> int:
        return self._known().real(number, self.real.log_start_offset, self.real.high_watermark)

    def _result(self, result: ReadResult) -> ReadResult:
        buffers: list[Buffer] = []
        for buffer in result.buffers:
            header = read_header(buffer)
            self._batches.add(header.base_offset, header.last_offset_delta + 1)
            stamped = bytearray(buffer)
            stamp(stamped, self._known().dense(header.base_offset))
            buffers.append(stamped)
        return ReadResult(buffers, result.size)

    @property
    def log_start_offset(self) -> int:
        return self._known().dense(self.real.log_start_offset)

    @property
    def high_watermark(self) -> int:
        return self._known().dense(self.real.high_watermark)

    @property
    def last_stable_offset(self) -> int:
        return self._known().dense(self.real.last_stable_offset)

    def aborted_between(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Pulsar shows no reader a record of a transaction that did not commit."""
        return self.real.aborted_between(self._offset(start), self._offset(end))

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
        told = DenseWaiter(waiter, self._batches, self._known, header.record_count)
        self.real.submit(batch, header, now_ms=now_ms, waiter=told, place=place, from_zero=from_zero)

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> asyncio.Future[AppendResult]:
        waiter = AppendFuture()
        self.submit(batch, header, now_ms=now_ms, waiter=waiter, place=0)
        return waiter.future

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        result = self.real.read_cached(self._offset(offset), max_bytes, min_one=min_one)
        return None if result is None else self._result(result)

    async def read(self, offset: int, max_bytes: int, *, min_one: bool, places: bool = False) -> ReadResult:
        await self.real.attach()
        return self._result(await self.real.read(self._offset(offset), max_bytes, min_one=min_one, places=places))

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        seen = [(self.log_start_offset, self.high_watermark)]

        def moved() -> None:
            now = self.log_start_offset, self.high_watermark
            # An empty log begins with its ledger and not with 0: to learn that is no move.
            if now != seen[0] or self.real.deleted:
                seen[0] = now
                callback()

        return self.real.on_advance(moved)

    async def find_by_time(self, timestamp: int) -> TimestampOffset | None:
        return self._dense_position(await self.real.find_by_time(timestamp))

    async def max_timestamp(self) -> TimestampOffset | None:
        return self._dense_position(await self.real.max_timestamp())

    def _dense_position(self, position: TimestampOffset | None) -> TimestampOffset | None:
        return position and TimestampOffset(self._known().dense(position.offset), position.timestamp)

    async def delete_records(self, before_offset: int) -> int:
        return self._known().dense(await self.real.delete_records(self._offset(before_offset)))

    # --- what has no offset

    @property
    def topic(self) -> TopicInfo:
        return self.real.topic

    @property
    def index(self) -> int:
        return self.real.index

    @property
    def size_bytes(self) -> int:
        return self.real.size_bytes

    @property
    def attached(self) -> bool:
        return self.real.attached

    @property
    def sole_writer(self) -> bool:
        return self.real.sole_writer

    async def attach(self) -> None:
        await self.real.attach()

    async def measure(self) -> int:
        return await self.real.measure()

    async def refresh(self) -> None:
        await self.real.refresh()

    async def refresh_start(self) -> None:
        await self.real.refresh_start()

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        return self.real.in_transaction(producer_id, producer_epoch)

    def join_transaction(self, producer_id: int, producer_epoch: int, storage_transaction: bytes) -> None:
        self.real.join_transaction(producer_id, producer_epoch, storage_transaction)

    def producers(self) -> Sequence[ProducerView]:
        return self.real.producers()

    async def lead(self, lost: Callable[[], None]) -> None:
        await self.real.lead(lost)

    @property
    def leads(self) -> bool:
        return self.real.leads

    async def verify_lead(self) -> None:
        await self.real.verify_lead()

    async def resign(self) -> None:
        await self.real.resign()


class DenseEngine:
    """An `Engine` over one whose offsets have gaps. `known` outlives it: that is what a test wrote before."""

    def __init__(self, engine: PulsarEngine, known: dict[tuple[UUID, int], Batches]) -> None:
        self.real = engine
        self._known = known
        self._logs: dict[PulsarLog, DenseLog] = {}

    def log(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        log = self.real.log(topic_id, partition)
        if log is None:
            return None
        if log not in self._logs:
            self._logs[log] = DenseLog(log, self._known.setdefault((topic_id, partition), Batches()))
        return self._logs[log]  # type: ignore[return-value]  # nobody sets the topic or the index of a view

    # --- what knows no offset

    @property
    def promises(self) -> Promises:
        return self.real.promises

    @property
    def topics(self) -> Topics:
        return self.real.topics

    @property
    def transactions(self) -> TransactionStorage:
        return self.real.transactions

    @property
    def cluster_id(self) -> str:
        return self.real.cluster_id

    @property
    def directory(self) -> Path | None:
        return self.real.directory

    @property
    def grants(self) -> Grants | None:
        return self.real.grants

    @property
    def token_authority(self) -> TokenAuthority | None:
        return self.real.token_authority

    @property
    def read_budget(self) -> ReadBudget:
        return self.real.read_budget

    async def reserve_producer_ids(self) -> range:
        return await self.real.reserve_producer_ids()

    def policies_changed(self) -> None:
        self.real.policies_changed()

    async def maintain(self, now_ms: int) -> None:
        await self.real.maintain(now_ms)

    def snapshot(self) -> EngineSnapshot:
        return self.real.snapshot()

    def collect(self) -> Iterable[Metric]:
        return self.real.collect()

    @property
    def healthy(self) -> str | None:
        return self.real.healthy

    @property
    def about(self) -> str | None:
        return self.real.about

    @property
    def losses(self) -> str | None:
        return self.real.losses

    async def close(self) -> None:
        await self.real.close()

    async def get_state(self, key: str) -> str | None:
        return await self.real.get_state(key)

    async def put_state(self, key: str, value: str | None) -> None:
        await self.real.put_state(key, value)

    def on_state(self, callback: Callable[[], None]) -> None:
        self.real.on_state(callback)

    @property
    def brokers(self) -> Sequence[LiveBroker]:
        return self.real.brokers

    @property
    def brokers_fresh(self) -> bool:
        return self.real.brokers_fresh

    def on_brokers(self, callback: Callable[[], None]) -> None:
        self.real.on_brokers(callback)

    async def join(self, broker: LiveBroker) -> None:
        await self.real.join(broker)


__all__: Sequence[str] = ["DenseEngine"]
