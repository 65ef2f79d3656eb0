"""Small helpers of the storage tests: topics, batches in, records out, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

import pytest

from kop.errors import ErrorCode, KopError
from kop.records.batch import build, iter_batches, iter_records, read_header
from kop.records.record import Record
from kop.storage.base import AppendResult, Buffer, PartitionLog, TopicInfo, Topics

LogT = TypeVar("LogT", bound=PartitionLog)
LogT_co = TypeVar("LogT_co", bound=PartitionLog, covariant=True)


class EngineOf(Protocol[LogT_co]):
    """An engine by the kind of its logs."""

    @property
    def topics(self) -> Topics: ...

    def log(self, topic_id: UUID, partition: int) -> LogT_co | None: ...


NOW = 1_700_000_000_000
LIMIT = 1 << 30


def batch(
    values: Sequence[str | None],
    *,
    keys: Sequence[str] | None = None,
    timestamp: int | Sequence[int] = NOW,
    producer: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    codec: int = 0,
    transactional: bool = False,
) -> bytearray:
    """A batch as a client would send it."""
    times = [timestamp] * len(values) if isinstance(timestamp, int) else timestamp
    return build(
        [
            Record(
                i,
                times[i],
                None if keys is None else keys[i].encode(),
                None if value is None else value.encode(),
            )
            for i, value in enumerate(values)
        ],
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=sequence if producer >= 0 else -1,
        transactional=transactional,
    )


def append(log: PartitionLog, data: Buffer, now_ms: int = NOW) -> asyncio.Future[AppendResult]:
    return log.append(data, read_header(data), now_ms=now_ms)


async def fill(log: PartitionLog, *values: str, timestamp: int = NOW) -> None:
    """One batch of one record for each value."""
    await asyncio.gather(*[append(log, batch([value], timestamp=timestamp)) for value in values])


async def put(log: PartitionLog, key: str, value: str | None, timestamp: int = NOW) -> int:
    """One record with a key in a batch of its own; returns its offset."""
    return (await append(log, batch([value], keys=[key], timestamp=timestamp))).base_offset


def records(buffers: Iterable[Buffer]) -> list[Record]:
    return [
        record
        for buffer in buffers
        for start, header in iter_batches(buffer)
        for record in iter_records(memoryview(buffer)[start : start + header.size], max_bytes=LIMIT)
    ]


async def attached(engine: EngineOf[LogT], topic: TopicInfo | str = "t", partition: int = 0) -> LogT:
    """As `first`, ready to serve."""
    log = first(engine, topic, partition)
    await log.attach()
    return log


async def read_all(log: PartitionLog, *, max_bytes: int = LIMIT, cached: bool = False) -> list[Record]:
    """Every record from the log start to the high watermark, from storage or, with `cached`, as a fetch would."""
    kept: list[Record] = []
    await log.attach()
    offset = log.log_start_offset
    while offset < log.high_watermark:
        result = log.read_cached(offset, max_bytes, min_one=True) if cached else None
        if result is None:
            result = await log.read(offset, max_bytes, min_one=True)
        assert result.buffers
        assert result.size == sum(map(len, result.buffers))
        kept += [record for record in records(result.buffers) if record.offset >= offset]
        offset = read_header(result.buffers[-1]).next_offset
    return kept


async def read_values(log: PartitionLog, *, max_bytes: int = LIMIT, cached: bool = False) -> list[str | None]:
    """The values of `read_all` as text."""
    kept = await read_all(log, max_bytes=max_bytes, cached=cached)
    return [None if record.value is None else record.value.decode() for record in kept]


async def make(engine: EngineOf[LogT], name: str = "t", partitions: int = 1, **configs: str) -> LogT:
    """A topic's first log; `cleanup_policy` is cleanup.policy."""
    topic = await engine.topics.create(name, partitions, {key.replace("_", "."): v for key, v in configs.items()})
    return first(engine, topic)


def first(engine: EngineOf[LogT], topic: TopicInfo | str = "t", partition: int = 0) -> LogT:
    info = engine.topics.get(topic) if isinstance(topic, str) else topic
    assert info is not None
    log = engine.log(info.topic_id, partition)
    assert log is not None
    return log


def refused(code: ErrorCode) -> pytest.RaisesExc[KopError]:
    """Expect an error of ours with this code."""
    return pytest.raises(KopError, check=lambda error: error.code is code)


class Told:
    """An `AppendWaiter` that keeps what it is told, in order: the place and the offset or the error's code."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int | ErrorCode]] = []

    def reserve(self, size: int) -> None:
        pass

    def appended(self, place: int, result: AppendResult) -> None:
        self.ends.append((place, result.base_offset))

    def append_failed(self, place: int, error: KopError) -> None:
        self.ends.append((place, error.code))
