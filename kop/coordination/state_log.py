"""A state topic: the compacted topic in which a coordinator keeps its records.

Owns: making and finding the topic, which partition a key belongs to, replaying a partition, writing to it in batches,
following one that other brokers write, too.
Must not know: what the records mean, who coordinates a partition.

The records of one `write` are in one batch: all of them become durable, or none. Writes that arrive for a partition in
the same turn of the event loop share a batch as far as its size allows. Callbacks of a partition are called in the
order of its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kop import clock
from kop.background import tell
from kop.errors import ErrorCode, InternalError, KopError
from kop.records.batch import build_at, iter_batches, iter_records
from kop.storage.base import AppendResult, Engine, PartitionLog

KeyValue: TypeAlias = tuple[bytes, bytes | None]
"""The type of a record of a state topic: key and value; without a value it is a tombstone."""
Written: TypeAlias = Callable[[ErrorCode], None]
"""The type of a callback that is called once: with NONE when the records are durable, else with the error that kept
them from it.
"""

Take: TypeAlias = Callable[[Mapping[bytes, bytes | None], bool], None]
"""Takes the newest values of keys, None for a tombstone, in the order of the log. True with them: they are all that
there is, so that keys that are not among them are gone."""

_READ_BYTES: Final = 4 * 1024 * 1024
_BATCH_BYTES: Final = 1024 * 1024
"""The most bytes of a shared batch. The records of one write are in one batch whatever its size."""
BATCH_RECORDS: Final = 8192
"""The most records of a shared batch. Over Pulsar a batch may have 16,384: small ones come to that in fewer bytes."""
_LARGEST_BATCH: Final = 256 * 1024 * 1024
LOOK_SECONDS: Final = 0.5
"""The seconds after which storage is asked for the end of a followed partition that others write, too."""
LOOK_LIMIT_SECONDS: Final = 30.0
"""The seconds that such a look may take."""
FORGET_SECONDS: Final = 30.0
"""Without a look for so long a partition is read from its beginning: compaction may have taken tombstones since."""
_PASSING: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StateTopic:
    """The name of a coordinator's state topic, and the `partitions` and `configs` with which it is made."""

    name: str
    partitions: int
    configs: Mapping[str, str]


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    written: Written

    @property
    def size(self) -> int:
        return sum([len(key) + len(value or b"") for key, value in self.records])


class _Append:
    """A batch of a state topic on its way to storage, with the writes that share it; an `AppendWaiter`."""

    __slots__ = ("_ended", "log", "writes")

    def __init__(
        self, log: PartitionLog, writes: Sequence[_Write], ended: Callable[[_Append, KopError | None], None]
    ) -> None:
        self.log = log
        self.writes = writes
        self._ended = ended

    def reserve(self, size: int) -> None:
        """Do nothing: batches of a state topic are not compressed, so no memory is needed to decompress them."""

    def appended(self, place: int, result: AppendResult) -> None:
        """Note that a batch is stored: the callbacks of its writes are called in the loop's next turn."""
        self._ended(self, None)

    def append_failed(self, place: int, error: KopError) -> None:
        """Note that a batch has failed: the callbacks of its writes are called in the loop's next turn."""
        self._ended(self, error.fresh_copy())


def passes(error: BaseException) -> bool:
    """Return true if the failure may pass, so that the same request of a state topic may succeed later; judged by the
    error code for clients.
    """
    return isinstance(error, KopError) and error.code in _PASSING


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of a text, 32 bits with a sign: Kafka picks the partition of a key by it."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for pos in range(0, len(raw), 2):
        value = (31 * value + (raw[pos] << 8 | raw[pos + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


class StateLog:
    """The partitions of a state topic: writing and replaying them. Call `open` before anything else."""

    def __init__(self, engine: Engine, topic: StateTopic, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` gives the timestamps of records, in milliseconds since the epoch."""
        self._engine = engine
        self._topic = topic
        self._wall_ms = wall_ms
        self._logs: list[PartitionLog] = []
        self.topic_id = UUID(int=0)
        self._opening = asyncio.Lock()
        self._queued: dict[int, list[_Write]] = {}
        self._ended: list[tuple[_Append, KopError | None]] = []
        """Batches that were stored or have failed, in that order; their writes are told in the loop's next turn."""
        self._failing = False
        self._refused_writes = 0
        """The number of writes that were refused since storage began to fail; one log line tells of all of them."""

    async def open(self) -> None:
        """Find the topic, or make it; one that exists keeps its partitions and configs as they are.

        KopError if the topic cannot be made (see `Topics.create`), InternalError if a partition is missing.
        """
        topics = self._engine.topics
        topic = topics.get(self.name)
        if topic is None:
            try:
                topic = await topics.create(self.name, self._topic.partitions, self._topic.configs, internal=True)
            except KopError as error:
                topic = topics.get(self.name)  # of brokers that start at once, one makes it
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or topic is None:
                    raise
        logs: list[PartitionLog] = []
        for index in range(topic.partitions):
            partition_log = self._engine.log(topic.topic_id, index)
            if partition_log is None:
                raise InternalError(f"partition {index} of {self.name} is missing")
            logs.append(partition_log)
        self._logs = logs
        self.topic_id = topic.topic_id

    async def reopen(self) -> None:
        """Open the topic that has the name now, if that is another one: somebody deleted it, or made it again.

        InternalError if it has another number of partitions: whoever coordinates them has to be started again.
        """
        async with self._opening:
            topic = self._engine.topics.get(self.name)
            if topic is not None and topic.topic_id == self.topic_id:
                return
            if topic is not None and topic.partitions != self.partitions:
                raise InternalError(
                    f"{self.name} was made again with {topic.partitions} partitions, it had {self.partitions}: "
                    "restart the brokers"
                )
            await self.open()

    @property
    def name(self) -> str:
        """The topic's name in storage."""
        return self._topic.name

    @property
    def partitions(self) -> int:
        """The number of partitions of the state topic; 0 before `open`."""
        return len(self._logs)

    def partition_of(self, key: str) -> int:
        """Return the partition that keeps the records of `key`, by the rule of Kafka's coordinators."""
        value = java_hash(key)
        return (0 if value == -(1 << 31) else abs(value)) % len(self._logs)

    async def lead(self, partition: int, lost: Callable[[], None]) -> None:
        """Become the only writer of a partition of the state topic; `lost` is called once when another broker leads it,
        or it can be written no more. See `PartitionLog.lead`.
        """
        await self._logs[partition].lead(lost)

    def leads(self, partition: int) -> bool:
        """Return true if this broker is surely still the only writer of a partition; see `PartitionLog.leads`."""
        return self._logs[partition].leads

    async def verify_lead(self, partition: int) -> None:
        """Ask storage if this broker still leads a partition of the state topic; afterwards `leads` is true, or its
        `lost` was called, unless storage does not answer.
        """
        await self._logs[partition].verify_lead()

    async def resign(self, partition: int) -> None:
        """Give the lead of a partition of the state topic back; see `PartitionLog.resign`."""
        await self._logs[partition].resign()

    async def read(self, partition: int) -> Mapping[bytes, bytes | None]:
        """Read a partition from its beginning: return the newest value of every key, None for a tombstone, in the order
        of the log.

        Compaction keeps that order: of each key it keeps the newest record at its place.
        """
        newest: dict[bytes, bytes | None] = {}
        log = self._logs[partition]
        await log.attach()
        await self._read_on(log, log.log_start_offset, newest)
        return newest

    async def _read_on(self, log: PartitionLog, start: int, newest: dict[bytes, bytes | None]) -> int:
        """Put the records from the offset `start` on into `newest`, and return the offset behind the last one."""
        offset = start
        while offset < (end := log.high_watermark):
            result = await log.read(offset, _READ_BYTES, min_one=True)
            if not result.size:
                return end  # compaction took the last batches
            for buffer in result.buffers:
                view = memoryview(buffer)
                for pos, header in iter_batches(view):
                    offset = header.next_offset
                    if header.control:
                        continue
                    batch = view[pos : pos + header.size]
                    for record in iter_records(batch, header, max_bytes=_LARGEST_BATCH):
                        if record.key is not None and record.offset >= start:
                            newest.pop(record.key, None)  # it takes the place of its newest record
                            newest[record.key] = record.value
        return offset

    def follower(self, partition: int, take: Take) -> Follower:
        """Return an object that follows a partition that any broker may write. Its `catch_up` and `follow` read the
        partition, and call `take` with the newest values that they read.
        """
        log = self._logs[partition]
        return Follower(log, partial(self._read_on, log), take)

    def write(self, partition: int, records: Sequence[KeyValue], written: Written) -> None:
        """Queue records for a partition, to be appended all of them or none, and call `written` when they are stored
        (NONE) or have failed (with the error's code).
        """
        if not self._queued:
            asyncio.get_running_loop().call_soon(self.flush)
        self._queued.setdefault(partition, []).append(_Write(records, written))

    def flush(self) -> None:
        """Hand the queued writes to storage. It is called at the end of each turn of the loop in which something was
        queued.
        """
        queued, self._queued = self._queued, {}
        now = self._wall_ms()
        for partition, writes in queued.items():
            if len(writes) == 1:
                self._append(self._logs[partition], writes, now)
                continue
            shared: list[_Write] = []
            shared_size = shared_records = 0
            for write in writes:
                size = write.size
                count = len(write.records)
                is_full = shared_size + size > _BATCH_BYTES or shared_records + count > BATCH_RECORDS
                if shared and is_full:  # one that is too large fails alone
                    self._append(self._logs[partition], shared, now)
                    shared, shared_size, shared_records = [], 0, 0
                shared.append(write)
                shared_size += size
                shared_records += count
            self._append(self._logs[partition], shared, now)

    def _append(self, log: PartitionLog, writes: Sequence[_Write], now: int) -> None:
        batch, header = build_at(now, [key_value for write in writes for key_value in write.records])
        log.submit(batch, header, now_ms=now, waiter=_Append(log, writes, self._append_ended), place=0)

    def _append_ended(self, append: _Append, error: KopError | None) -> None:
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell)
        self._ended.append((append, error))

    def _tell(self) -> None:
        """Call the callbacks of all writes whose batches have been stored or have failed."""
        ended, self._ended = self._ended, []
        for append, error in ended:
            self._tell_of(append.log, append.writes, error)

    def _tell_of(self, log: PartitionLog, writes: Sequence[_Write], error: KopError | None) -> None:
        code = ErrorCode.NONE
        if error is not None:
            code = error.code or ErrorCode.UNKNOWN_SERVER_ERROR
            self._refused_writes += len(writes)
            if not self._failing:
                self._failing = True
                level = logging.DEBUG if error.told else logging.WARNING
                _log.log(level, "cannot write to %s-%d, requests that need it fail: %s", self.name, log.index, error)
        elif self._failing:
            self._failing = False
            _log.info(
                "the topic %s can be written again; %d writes were refused meanwhile", self.name, self._refused_writes
            )
            self._refused_writes = 0
        for write in writes:
            try:
                write.written(code)
            except Exception:  # the others have to hear of it all the same
                _log.exception("a write to %s-%d has ended, and what followed failed", self.name, log.index)


class Follower:
    """Knows all records of a partition, whoever writes them."""

    def __init__(
        self,
        log: PartitionLog,
        read_on: Callable[[int, dict[bytes, bytes | None]], Awaitable[int]],
        take: Take,
    ) -> None:
        """`read_on` puts the records from an offset on into a mapping, and returns the offset behind the last one."""
        self._log = log
        self._read_on = read_on
        self._take = take
        self._next: int | None = None
        """The offset of the first record that is not known yet. None: everything has to be read."""
        self._looked_at = float("-inf")
        self._reading = asyncio.Lock()

    @property
    def age(self) -> float:
        """Seconds since it was last certain that everything durable was read; 0 if nobody else writes."""
        if self._log.sole_writer and self._next is not None:
            return 0.0
        return clock.monotonic() - self._looked_at

    async def catch_up(self, *, ask: bool = True) -> None:
        """Read all that is durable now, and hand it to `take`. KopError if it cannot be read; the next call then reads
        everything again.

        Without `ask` storage is not asked for the end of the log: somebody has just told where it is.
        """
        async with self._reading:
            began = clock.monotonic()
            if began - self._looked_at > FORGET_SECONDS and not self._log.sole_writer:
                self._next = None
            begin, self._next = self._next, None
            if ask or begin is None:
                await self._log.refresh()
            newest: dict[bytes, bytes | None] = {}
            end = await self._read_on(self._log.log_start_offset if begin is None else begin, newest)
            if newest or begin is None:
                self._take(newest, begin is None)
            self._next = end
            if ask or begin is None:
                self._looked_at = began

    async def follow(self) -> None:
        """Catch up each time that the log moves, and, if others write it too, half a second after the last look at the
        latest, until the caller cancels this. A log that moves all the time is looked at each half second, too. A
        failure is logged; the next look tries again.
        """
        log, moved = self._log, asyncio.Event()
        undo = log.on_advance(moved.set)
        try:
            while True:
                try:
                    async with asyncio.timeout(None if log.sole_writer and self._next is not None else LOOK_SECONDS):
                        await moved.wait()
                except TimeoutError:
                    pass
                ask = not moved.is_set() or self.age >= LOOK_SECONDS
                moved.clear()
                try:
                    async with asyncio.timeout(LOOK_LIMIT_SECONDS):
                        await self.catch_up(ask=ask)
                except Exception as error:
                    tell(f"the look at {log.topic.name}", error, kind="the look at a state topic")
        finally:
            undo()
