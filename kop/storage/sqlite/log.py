"""One partition's log on SQLite: what the loop knows of it, and the synchronous half of append and read.

Owns: the order of appends, what a commit or its failure does to the log; which logs there are, and the policy that each
is given.
Must not know: threads, transactions; those are the writer's and the readers'.

`end_offset` runs ahead of `high_watermark` by what is queued. Everything here happens on the loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from kop.errors import InternalError, KopError
from kop.records.batch import HEADER_SIZE, BatchHeader, read_header
from kop.records.markers import build_marker
from kop.storage.base import (
    AppendResult,
    AppendWaiter,
    Buffer,
    LogPolicy,
    ProducerView,
    ReadResult,
    TimestampOffset,
    TopicInfo,
)
from kop.storage.idempotence import BatchMetadata, ProducerStates
from kop.storage.local import LocalLog
from kop.storage.partition import NOTHING_TO_READ, AppendFuture, stamped
from kop.storage.sqlite import reader
from kop.storage.sqlite.reader import Readers
from kop.storage.sqlite.writer import QueuedAppend, QueuedMarker, Writer
from kop.storage.steady_time import steady_ms
from kop.storage.tail_cache import Tail, TailCache
from kop.storage.transaction_index import AbortedTransaction

_log = logging.getLogger(__name__)

ABORTED_KEPT_SECONDS = 300.0
"""The seconds for which aborted transactions are still told to readers after their records are gone from the log:
somebody may have read some before, and not asked yet which of them were aborted.
"""


@dataclass(frozen=True, slots=True)
class LogContext:
    """The parts of an engine that its logs use."""

    loop: asyncio.AbstractEventLoop
    writer: Writer
    readers: Readers
    cache: TailCache
    refusal: Callable[[int], KopError | None]
    """A function that returns the error for a batch of so many bytes that cannot be accepted now; None if it can."""
    move_start: Callable[[SqliteLog, int], Awaitable[None]]
    """A function that moves a log's start up to an offset, durably, even if the caller goes away."""


class SqliteLog(LocalLog):
    """A `MarkedLog` of one partition, on SQLite. The engine makes one for each partition when it opens; an unused one
    is small.
    """

    __slots__ = (
        "_context",
        "clean_offset",
        "end_offset",
        "log_id",
        "producer_states",
        "snapshot_offset",
        "snapshot_outdated",
        "tail",
    )

    def __init__(self, context: LogContext, topic: TopicInfo, index: int, log_id: int, policy: LogPolicy) -> None:
        super().__init__(topic, index, policy)
        self._context = context
        self.log_id = log_id
        self.end_offset = 0
        """The offset of the next append, ahead of the high watermark by the batches that are not committed."""
        self.clean_offset = 0
        """The offset up to which compaction has seen the log."""
        self.snapshot_offset = 0
        """The offset up to which the stored size, producers and transactions cover the log. At a start the rest is read
        from the batches.
        """
        self.snapshot_outdated = False
        """True if the producers have to be stored again, though no batch came: some were forgotten."""
        self.producer_states: ProducerStates | None = None
        self.tail: Tail | None = None

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
        """Queue a batch for the next commit; `waiter` is told when it is durable, or at once if it is refused. A
        duplicate waits for its original.
        """
        refusal = self._context.refusal(header.batch_length) if not self.deleted else self.gone()
        if refusal is not None:
            waiter.append_failed(place, refusal)
            return
        append_time = -1
        if self.policy.log_append_time:
            append_time = now_ms
            header = header._replace(max_timestamp=now_ms)
        base = self.end_offset
        states = self.producer_states
        if header.producer_id >= 0:
            if states is None:
                states = self.producer_states = ProducerStates()
            original, error = states.check(header, from_zero=from_zero)
            if error is not None:
                waiter.append_failed(place, error)
                return
            if original is not None:
                if original.pending:
                    self._follow(original, waiter, place)
                else:
                    append_time = original.timestamp if append_time >= 0 else -1
                    waiter.appended(place, AppendResult(original.base_offset, append_time, self.log_start_offset))
                return
        batch = stamped(batch, base, append_time)
        timestamp = header.max_timestamp
        entry = QueuedAppend(
            self,
            batch,
            base,
            base + header.last_offset_delta,
            timestamp if timestamp >= 0 else -now_ms,
            len(batch),
            None if header.producer_id < 0 else bytes(batch[:HEADER_SIZE]),
            append_time,
            waiter,
            place,
        )
        try:
            if states is not None:  # the owner lets a duplicate wait until its original is durable
                entry.token = states.append(header, base, steady_ms(), entry)
            self._queue(entry)
        except BaseException:
            self._roll_back(base)
            raise

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        bumps_epoch: bool,
        now_ms: int,
    ) -> asyncio.Future[AppendResult]:
        """Queue the marker that ends a producer's transaction for the next commit; the future ends when it is durable.
        A marker that was written or queued before is not written again.
        """
        waiter = AppendFuture()
        states = self.producer_states
        if states is None:
            states = self.producer_states = ProducerStates()
        error = self.gone() if self.deleted else self._context.refusal(0)
        error = error or states.check_marker(producer_id, producer_epoch, bumps_epoch=bumps_epoch)
        if error is not None:
            waiter.append_failed(0, error)
            return waiter.future
        if not states.needs_marker(producer_id, producer_epoch):
            original = states.pending_marker(producer_id)
            if original is not None:
                self._follow(original, waiter, 0)
            else:
                waiter.appended(0, AppendResult(self.high_watermark, -1, self.log_start_offset))
            return waiter.future
        base = self.end_offset
        append_time = now_ms if self.policy.log_append_time else -1
        marker = stamped(
            build_marker(
                producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp=now_ms
            ),
            base,
            append_time,
        )
        entry = QueuedMarker(
            self,
            marker,
            base,
            base,
            now_ms,
            len(marker),
            head_of(marker, read_header(marker)),
            append_time,
            waiter,
            0,
        )
        try:
            entry.token = states.append_marker(
                producer_id, producer_epoch, base, now_ms, steady_ms(), entry, commit=commit
            )
            self._queue(entry)
        except BaseException:
            self._roll_back(base)
            raise
        return waiter.future

    def _queue(self, entry: QueuedAppend) -> None:
        """Hand a batch to the writer thread: the last step of an append that may fail."""
        self._context.writer.append(entry)
        self.end_offset = entry.last + 1

    def _follow(self, original: BatchMetadata, waiter: AppendWaiter, place: int) -> None:
        """Note that the sender of a duplicate is told when the original batch, which is not durable yet, is."""
        if isinstance(original.owner, QueuedAppend):
            original.owner.follow(waiter, place)
            return
        error = InternalError(f"{self.title}: nobody writes the batch at offset {original.base_offset}, sent again now")
        _log.error("%s", error.message)
        waiter.append_failed(place, error)

    @property
    def last_stable_offset(self) -> int:
        """The offset of the oldest open transaction, else the high watermark: readers of committed records stop
        there.
        """
        states = self.producer_states
        if states is None:
            return self.high_watermark
        return states.transactions.last_stable(self.log_start_offset, self.high_watermark)

    def aborted_copy(self) -> Iterable[AbortedTransaction]:
        """Return a copy of the aborted transactions of which records may be left, for another thread."""
        return () if self.producer_states is None else self.producer_states.transactions.aborted_copy()

    def aborted_between(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions of which records may lie from the offset `start` on and before `end`."""
        return () if self.producer_states is None else self.producer_states.transactions.aborted_between(start, end)

    def forget_aborted(self, before: int) -> None:
        """Forget, five minutes later, the aborted transactions that end before an offset: none of their records is
        left.
        """
        transactions = None if self.producer_states is None else self.producer_states.transactions
        if transactions is not None and transactions.has_aborted_before(before):
            self._context.loop.call_later(ABORTED_KEPT_SECONDS, transactions.drop_before, before)

    def committed(self, entry: QueuedAppend) -> None:
        """Make a batch that is on disk readable, also from the tail cache, and tell its waiter that it is durable. If
        the topic was deleted, the waiter gets UNKNOWN_TOPIC_OR_PARTITION.
        """
        if entry.token is not None and self.producer_states is not None:
            self.producer_states.commit(entry.token)
            entry.token.owner = None
        if self.deleted:
            entry.fail(self.gone())
            return
        self.high_watermark = entry.last + 1
        self.size_bytes += entry.size
        tail = self.tail
        if tail is None:
            tail = self.tail = Tail()
        self._context.cache.push(tail, entry.base, entry.last, entry.data)
        entry.succeed(AppendResult(entry.base, entry.log_append_time, self.log_start_offset))

    def failed(self, entries: Sequence[QueuedAppend], error: KopError) -> None:
        """Undo all queued batches of the log from the first of `entries` on, as a commit failed, and tell their waiters
        of `error`.
        """
        self._roll_back(entries[0].base)
        for entry in entries:
            entry.fail(self.gone() if self.deleted else error)

    def _roll_back(self, offset: int) -> None:
        self.end_offset = offset
        if self.producer_states is not None:
            self.producer_states.rollback(offset)

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        """Return the batches in the tail cache from the one that holds `offset` on; None if the database has to be
        read.
        """
        self.check_offset(offset)
        if offset == self.high_watermark:
            return NOTHING_TO_READ
        rows = None if self.tail is None else self.tail.get(offset, max_bytes, min_one)
        return None if rows is None else ReadResult(*rows)

    async def read(self, offset: int, max_bytes: int, *, min_one: bool, places: bool = False) -> ReadResult:
        """Return batches from the database, from the one that holds `offset` on, by the rules of `PartitionLog.read`.
        CORRUPT_MESSAGE if the first of them is lost.
        """
        self.check_offset(offset)
        if offset == self.high_watermark:
            return NOTHING_TO_READ
        rows = await self._context.readers.read_batches(self.log_id, offset, self.high_watermark, max_bytes, min_one)
        self.check_offset(offset)  # retention or DeleteRecords may have moved the log start meanwhile
        return ReadResult(rows, sum(map(len, rows)))

    async def find_by_time(self, timestamp: int) -> TimestampOffset | None:
        """Return timestamp and offset of the first record at or after `timestamp` (ms); None if there is none."""
        return await self._look_up(reader.by_time, timestamp)

    async def max_timestamp(self) -> TimestampOffset | None:
        """Return timestamp and offset of the first record with the largest timestamp; None if no record has one."""
        return await self._look_up(reader.max_timestamp)

    async def delete_records(self, before_offset: int) -> int:
        """Move the log start to `before_offset` (-1: the high watermark), durably; return the new log start.
        OFFSET_OUT_OF_RANGE beyond the high watermark; below the log start nothing changes.
        """
        before_offset = self.deletable(before_offset)
        if before_offset > self.log_start_offset:
            await self._context.move_start(self, before_offset)
        return self.log_start_offset

    def producers(self) -> Sequence[ProducerView]:
        """Return the idempotent producers that the log remembers now."""
        return () if self.producer_states is None else self.producer_states.views()

    def remove(self) -> None:
        """Close the log of a deleted topic: those who wait for it are told, and later requests are refused."""
        if self.tail is not None:
            self._context.cache.drop(self.tail)
        super().remove()

    async def _look_up(self, query: Callable[..., tuple[int, int] | None], *args: int) -> TimestampOffset | None:
        self.check_there()
        rows = await self._context.readers.read(query, self.log_id, self.log_start_offset, self.high_watermark, *args)
        self.check_there()
        return None if rows is None else TimestampOffset(*rows)


def head_of(batch: Buffer, header: BatchHeader) -> bytes:
    """Return the part of an idempotent producer's batch that a start reads: the header; the whole batch if it is a
    marker.
    """
    return bytes(batch if header.control else batch[:HEADER_SIZE])


class SqliteLogTable:
    """The logs of all partitions, by topic id. `policy` gives a topic's effective configs."""

    def __init__(self, context: LogContext, policy: Callable[[TopicInfo], LogPolicy]) -> None:
        self._context = context
        self._policy = policy
        self._logs: dict[UUID, list[SqliteLog]] = {}

    def log(self, topic_id: UUID, partition: int) -> SqliteLog | None:
        """Return the log of a partition, the same object each time; None if there is none."""
        logs = self._logs.get(topic_id)
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    def of(self, topic_id: UUID) -> Sequence[SqliteLog]:
        """Return the logs of a topic, in the order of its partitions."""
        return self._logs.get(topic_id, ())

    def all(self) -> list[SqliteLog]:
        """Return the logs of all partitions of all topics."""
        return list(itertools.chain.from_iterable(self._logs.values()))

    def add(self, topic: TopicInfo, log_ids: Sequence[int]) -> None:
        """Make the logs of new partitions, the last ones of `topic`: one for each of `log_ids`, the ids of their
        rows.
        """
        logs = self._logs.setdefault(topic.topic_id, [])
        policy = self._policy(topic)
        logs.extend(
            SqliteLog(self._context, topic, index, log_id, policy) for index, log_id in enumerate(log_ids, len(logs))
        )

    def update(self, topic: TopicInfo) -> None:
        """Give the logs of a topic its new value, and the policy that follows from it."""
        policy = self._policy(topic)
        for log in self._logs[topic.topic_id]:
            log.topic = topic
            log.policy = policy

    def remove(self, topic_id: UUID) -> None:
        """Drop the logs of a deleted topic, and tell those who wait for them."""
        for log in self._logs.pop(topic_id):
            log.remove()
