"""An engine whose offsets have gaps, seen as one whose offsets count records: what the suite says holds for it, too.

The view knows which offsets batches have, from what the log itself keeps at its end and from what appends were told; it
checks that they ascend and never overlap. An offset between two batches is handed on as the one behind the first of
them, where consumers stand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from kop.errors import KopError
from kop.records.batch import BatchHeader, read_header, stamp
from kop.storage.base import AppendResult, AppendWaiter, Buffer, ReadResult, TimestampOffset
from kop.storage.partition import Partition
from kop.storage.pulsar import PulsarEngine
from kop.storage.pulsar.partition.log import PulsarLog


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

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

    def submit(self, batch: Buffer, header: BatchHeader, *, now_ms: int, waiter: AppendWaiter, place: int) -> None:
        told = DenseWaiter(waiter, self._batches, self._known, header.record_count)
        self.real.submit(batch, header, now_ms=now_ms, waiter=told, place=place)

    append = Partition.append

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        result = self.real.read_cached(self._offset(offset), max_bytes, min_one=min_one)
        return None if result is None else self._result(result)

    async def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        await self.real.attach()
        return self._result(await self.real.read(self._offset(offset), max_bytes, min_one=min_one))

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
        return self._found(await self.real.find_by_time(timestamp))

    async def max_timestamp(self) -> TimestampOffset | None:
        return self._found(await self.real.max_timestamp())

    def _dense_position(self, position: TimestampOffset | None) -> TimestampOffset | None:
        return position and TimestampOffset(self._known().dense(position.offset), position.timestamp)

    async def delete_records(self, before_offset: int) -> int:
        return self._known().dense(await self.real.delete_records(self._offset(before_offset)))


class DenseEngine:
    """An `Engine` over one whose offsets have gaps. `known` outlives it: that is what a test wrote before."""

    def __init__(self, engine: PulsarEngine, known: dict[tuple[UUID, int], Batches]) -> None:
        self.real = engine
        self._known = known
        self._logs: dict[PulsarLog, DenseLog] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def log(self, topic_id: UUID, partition: int) -> DenseLog | None:
        log = self.real.log(topic_id, partition)
        if log is None:
            return None
        if log not in self._logs:
            self._logs[log] = DenseLog(log, self._known.setdefault((topic_id, partition), Batches()))
        return self._logs[log]


__all__: Sequence[str] = ["DenseEngine"]
