"""The `__offsets` topic: where the group coordinator's records are kept.

Owns: the topic, which partition a group belongs to, reading it back, and writing with one batch a partition and turn.
Must not know: what the records mean.

Records that arrive for one partition in the same turn of the event loop share a batch. Callbacks of a partition are
called in the order of its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from kop.cluster.client_topics import OFFSETS_TOPIC
from kop.errors import ErrorCode, InternalError, KopError
from kop.groups.settings import GroupSettings
from kop.records.batch import build, iter_batches, iter_records, read_header
from kop.records.record import Record
from kop.storage.base import AppendResult, Engine, PartitionLog

KeyValue: TypeAlias = tuple[bytes, bytes | None]
"""A record; without a value it is a tombstone."""
Done: TypeAlias = Callable[[ErrorCode], None]
"""Called once with NONE when the records are durable, else with what went wrong."""

_READ_BYTES: Final = 4 * 1024 * 1024
_BATCH_BYTES: Final = 1024 * 1024
_LARGEST_BATCH: Final = 256 * 1024 * 1024
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Write:
    records: Sequence[KeyValue]
    done: Done


def java_hash(text: str) -> int:
    """`String.hashCode` of Java, 32 bits with a sign."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for pos in range(0, len(raw), 2):
        value = (31 * value + (raw[pos] << 8 | raw[pos + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


class GroupLog:
    """The partitions of `__offsets`. Call `open` before anything else."""

    def __init__(self, engine: Engine, settings: GroupSettings, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._settings = settings
        self._wall_ms = wall_ms
        self._logs: list[PartitionLog] = []
        self.topic_id = UUID(int=0)
        self._queued: dict[int, list[_Write]] = {}
        self._failing = False
        self._lost = 0
        """Writes refused since the log began to fail: one line tells of all."""

    async def open(self) -> None:
        """Find the topic, or make it; the partitions of one that is there stay as they are."""
        topics = self._engine.topics
        topic = topics.get(OFFSETS_TOPIC)
        if topic is None:
            configs = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(self._settings.offsets_topic_segment_bytes),
            }
            count = self._settings.offsets_topic_num_partitions
            try:
                topic = await topics.create(OFFSETS_TOPIC, count, configs, internal=True)
            except KopError as error:
                topic = topics.get(OFFSETS_TOPIC)  # of gateways that start at once, one makes it
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or topic is None:
                    raise
        self._logs.clear()
        for index in range(topic.partitions):
            found = self._engine.log(topic.topic_id, index)
            if found is None:
                raise InternalError(f"partition {index} of {OFFSETS_TOPIC} is missing")
            self._logs.append(found)
        self.topic_id = topic.topic_id

    @property
    def partitions(self) -> int:
        """How many partitions there are; 0 before `open`."""
        return len(self._logs)

    def partition_of(self, group_id: str) -> int:
        """The partition that keeps the group's records, by Kafka's rule."""
        value = java_hash(group_id)
        return (0 if value == -(1 << 31) else abs(value)) % len(self._logs)

    async def lead(self, partition: int, lost: Callable[[], None]) -> None:
        """Become the only writer of a partition; see `PartitionLog.lead`."""
        await self._logs[partition].lead(lost)

    def leads(self, partition: int) -> bool:
        """Whether what is known of a partition is surely the newest; see `PartitionLog.leads`."""
        return self._logs[partition].leads

    async def verify_lead(self, partition: int) -> None:
        """Ask who leads a partition; see `PartitionLog.verify_lead`."""
        await self._logs[partition].verify_lead()

    async def resign(self, partition: int) -> None:
        """Write to a partition no more."""
        await self._logs[partition].resign()

    async def read(self, partition: int) -> Mapping[bytes, bytes | None]:
        """The newest record of every key of a partition, tombstones included."""
        log = self._logs[partition]
        newest: dict[bytes, bytes | None] = {}
        await log.attach()
        offset = start = log.log_start_offset
        while offset < log.high_watermark:
            found = await log.read(offset, _READ_BYTES, min_one=True)
            if not found.size:
                break  # compaction took the last batches
            for buffer in found.buffers:
                view = memoryview(buffer)
                for pos, header in iter_batches(view):
                    offset = header.next_offset
                    if header.control:
                        continue
                    batch = view[pos : pos + header.size]
                    for record in iter_records(batch, header, max_bytes=_LARGEST_BATCH):
                        if record.key is not None and record.offset >= start:
                            newest[record.key] = record.value
        return newest

    def write(self, partition: int, records: Sequence[KeyValue], done: Done) -> None:
        """Append records to a partition, all of them or none, and call `done` when that has ended."""
        if not self._queued:
            asyncio.get_running_loop().call_soon(self.flush)
        self._queued.setdefault(partition, []).append(_Write(records, done))

    def flush(self) -> None:
        """Hand over what is queued. Called by itself at the end of the turn."""
        queued, self._queued = self._queued, {}
        now = self._wall_ms()
        for partition, writes in queued.items():
            share: list[_Write] = []
            size = 0
            for write in writes:
                share.append(write)
                size += sum(len(key) + len(value or b"") for key, value in write.records)
                if size >= _BATCH_BYTES:
                    self._append(self._logs[partition], share, now)
                    share, size = [], 0
            if share:
                self._append(self._logs[partition], share, now)

    def _append(self, log: PartitionLog, writes: list[_Write], now: int) -> None:
        records = [key_value for write in writes for key_value in write.records]
        batch = build(Record(offset, now, key, value) for offset, (key, value) in enumerate(records))
        future = log.append(batch, read_header(batch), now_ms=now)
        future.add_done_callback(partial(self._appended, log, writes))

    def _appended(self, log: PartitionLog, writes: list[_Write], future: asyncio.Future[AppendResult]) -> None:
        if future.cancelled():
            self._ended(log, writes, KopError("the append was given up", ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            self._ended(log, writes, future.exception())

    def _ended(self, log: PartitionLog, writes: list[_Write], error: BaseException | None) -> None:
        code = ErrorCode.NONE
        if error is not None:
            code = error.code if isinstance(error, KopError) else ErrorCode.UNKNOWN_SERVER_ERROR
            code = code or ErrorCode.UNKNOWN_SERVER_ERROR
            self._lost += len(writes)
            if not self._failing:
                self._failing = True
                _log.warning("cannot write to %s-%d, groups and commits fail: %s", OFFSETS_TOPIC, log.index, error)
        elif self._failing:
            self._failing = False
            _log.warning("%s can be written again; %d writes were refused meanwhile", OFFSETS_TOPIC, self._lost)
            self._lost = 0
        for write in writes:
            try:
                write.done(code)
            except Exception:  # the others have to hear of it all the same
                _log.exception("a write to %s-%d has ended, and what followed failed", OFFSETS_TOPIC, log.index)
