"""One partition's log in memory, and the memory that all logs of an engine share.

Owns: its batches, what appends, reads, look-ups by time, retention and compaction make of them; how many bytes all logs
hold together, whether more are taken, the log line when they are not.
Must not know: other partitions, topics, when retention and compaction are due.

An append is durable, as far as memory is, in the loop's next turn: what is taken in one turn becomes readable together.
Batches are never changed once they are readable; compaction puts others in their places.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from kop import clock
from kop.errors import BackendError, KopError
from kop.records.batch import BatchHeader, first_at_or_after, max_timestamp_record, read_header
from kop.records.markers import build_marker
from kop.repeats import Repeats
from kop.storage.base import (
    MOST_UNCOMPRESSED,
    AppendResult,
    AppendWaiter,
    Buffer,
    LogPolicy,
    ProducerView,
    ReadResult,
    TimestampOffset,
    TopicInfo,
)
from kop.storage.compaction import NewestOffsets, delete_horizon, is_due
from kop.storage.idempotence import ProducerStates
from kop.storage.local import LocalLog
from kop.storage.partition import NOTHING_TO_READ, AppendFuture, stamped
from kop.storage.steady_time import steady_ms
from kop.storage.transaction_index import AbortedTransaction

_log = logging.getLogger(__name__)


_BATCH_BYTES: Final = 230
"""The bytes that a batch takes beside its own: the objects that hold it, and its place in the log."""
_LEAST_ROOM: Final = 1 << 20
"""The bytes of room below which a memory that refuses a batch is full: about Kafka's default of max.message.bytes."""


class LogMemory:
    """The memory of all logs of an engine: the bytes that batches take, and the most that they may take."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.closed = False
        self._full = False
        self._repeats = Repeats()

    @property
    def problem(self) -> str | None:
        """The reason why batches are refused now, in one line; None while they are accepted."""
        if self.closed:
            return "the storage engine is closed"
        return self._text("is full") if self._full else None

    def _text(self, problem: str) -> str:
        return (
            f"the memory for records {problem}: {self.used >> 20} of {self.max_bytes >> 20} MiB are in use;"
            " raise kop.memory.bytes, lower retention.ms or retention.bytes, or delete topics"
        )

    def refusal(self, size: int, *, unbounded: bool) -> BackendError | None:
        """Return KAFKA_STORAGE_ERROR if a batch of `size` bytes cannot be accepted now, else None; 0 bytes are a batch
        that is not stored. If `unbounded`, only a closed engine refuses.

        A line is logged, now and then while that lasts. If the memory is full, `problem` says so from then on. It is
        not full if batches of usual size have room, and a larger one is refused.
        """
        if self.closed:
            return BackendError(self.problem or "")
        if size and not unbounded:
            room = self.max_bytes - self.used - _BATCH_BYTES
            self._full = room < min(size, _LEAST_ROOM)
            if size > room:
                text = self.problem or self._text(f"has no room for a batch of {size} bytes")
                if self._repeats.say("full" if self._full else "large", clock.monotonic()) is not None:
                    _log.warning("%s", text)
                return BackendError(text)
        return None

    def take(self, size: int, batches: int) -> None:
        """Count `batches` batches, which have `size` bytes together, as held from now on."""
        self.used += size + batches * _BATCH_BYTES

    def free(self, size: int, batches: int) -> None:
        """Count `batches` batches, which have `size` bytes together, as no longer held; `problem` does not call the
        memory full any more.
        """
        self.used -= size + batches * _BATCH_BYTES
        self._full = False


class StoredBatch(NamedTuple):
    """A stored batch. `last` is the offset of its last record, even if compaction took that."""

    base: int
    last: int
    timestamp: int
    """The largest timestamp; minus the time of the append if the records have none."""
    data: Buffer


_LAST = attrgetter("last")


class MemoryLog(LocalLog):
    """The log of one partition in memory, a `MarkedLog`."""

    __slots__ = ("_appends", "_batches", "_clean_offset", "_producers", "_space", "_taken")

    def __init__(self, space: LogMemory, topic: TopicInfo, index: int, policy: LogPolicy) -> None:
        super().__init__(topic, index, policy)
        self._space = space
        self._batches: list[StoredBatch] = []
        self._taken: list[StoredBatch] = []
        """The batches that are not readable yet; they follow those that are."""
        self._appends: list[tuple[AppendWaiter, int, AppendResult]] = []
        """The appends of this turn of the loop, with the results that they will be answered with."""
        self._clean_offset = 0
        """The offset before which compaction has seen all batches."""
        self._producers = ProducerStates()

    def reopened(self, space: LogMemory, policy: LogPolicy) -> MemoryLog:
        """Return the same log for another engine, as after a restart: with its batches, which count in `space`, and
        without observers.
        """
        log = type(self)(space, self.topic, self.index, policy)
        log.log_start_offset, log.high_watermark = self.log_start_offset, self.high_watermark
        log.size_bytes, log._batches = self.size_bytes, self._batches
        log._clean_offset, log._producers = self._clean_offset, self._producers
        space.take(log.size_bytes, len(log._batches))
        return log

    # --- append

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
        """Accept a batch, which is durable in the loop's next turn, or refuse it by `waiter` at once. Topics of the
        gateway's own may go beyond the memory's bound.
        """
        verdict = self._producers.check(header, from_zero=from_zero)
        error = (
            self.gone()
            if self.deleted
            else verdict.error
            or self._space.refusal(header.size if verdict.batch is None else 0, unbounded=self.topic.internal)
        )
        if error is not None:
            waiter.append_failed(place, error)
            return
        append_time = self.policy.log_append_time
        original = verdict.batch
        if original is not None:  # a duplicate is answered as its original was, and not before that
            time = original.timestamp if append_time else -1
            self._answer_soon(waiter, place, AppendResult(original.base_offset, time, self.log_start_offset))
            return
        if append_time:
            header = header._replace(max_timestamp=now_ms)
        self._append(batch, header, now_ms, waiter, place)

    def _append(self, batch: Buffer, header: BatchHeader, now_ms: int, waiter: AppendWaiter, place: int) -> None:
        """Add a new batch to the log, readable in the loop's next turn; if this raises, nothing of it is left."""
        base = self._end
        stored = self._stored(batch, header, base, now_ms)
        time = header.max_timestamp if self.policy.log_append_time else -1
        result = AppendResult(base, time, self.log_start_offset)
        try:
            token = self._producers.append(header, base, steady_ms())
            self._take(stored, waiter, place, result)
        except BaseException:
            self._producers.rollback(base)
            raise
        if token is not None:
            self._producers.commit(token)

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
        """Write the marker that ends a producer's transaction, unless it was written before; the future ends in the
        loop's next turn. The marker may go beyond the memory's bound: it frees readers.
        """
        waiter = AppendFuture()
        error = self.gone() if self.deleted else None
        error = error or self._producers.check_marker(producer_id, producer_epoch, bumps_epoch=bumps_epoch)
        if error is not None:
            waiter.append_failed(0, error)
            return waiter.future
        if not self._producers.needs_marker(producer_id, producer_epoch):
            self._answer_soon(waiter, 0, AppendResult(self.high_watermark, -1, self.log_start_offset))
            return waiter.future
        marker = build_marker(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp=now_ms
        )
        base = self._end
        stored = self._stored(marker, read_header(marker), base, now_ms)
        result = AppendResult(base, -1, self.log_start_offset)
        try:
            token = self._producers.append_marker(producer_id, producer_epoch, base, now_ms, steady_ms(), commit=commit)
            self._take(stored, waiter, 0, result)
        except BaseException:
            self._producers.rollback(base)
            raise
        self._producers.commit(token)
        return waiter.future

    @property
    def last_stable_offset(self) -> int:
        """The offset of the oldest open transaction, else the high watermark: readers of committed records stop
        there.
        """
        return self._producers.transactions.last_stable(self.log_start_offset, self.high_watermark)

    def aborted_between(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions of which records may lie from the offset `start` on and before `end`."""
        return self._producers.transactions.aborted_between(start, end)

    @property
    def _end(self) -> int:
        return self._taken[-1].last + 1 if self._taken else self.high_watermark

    def _stored(self, batch: Buffer, header: BatchHeader, base: int, now_ms: int) -> StoredBatch:
        time = header.max_timestamp
        data = stamped(batch, base, time if self.policy.log_append_time else -1)
        return StoredBatch(base, base + header.last_offset_delta, time if time >= 0 else -now_ms, data)

    def _take(self, batch: StoredBatch, waiter: AppendWaiter, place: int, result: AppendResult) -> None:
        """Put a batch behind the log's end, count its bytes, and plan its answer for the loop's next turn. If this
        raises, nothing of that was done.
        """
        self._taken.append(batch)
        try:
            self._answer_soon(waiter, place, result)
        except BaseException:
            self._taken.pop()
            raise
        self._space.take(len(batch.data), 1)

    def _answer_soon(self, waiter: AppendWaiter, place: int, result: AppendResult) -> None:
        if not self._appends:
            asyncio.get_running_loop().call_soon(self.commit)
        self._appends.append((waiter, place, result))

    def commit(self) -> None:
        """Make the batches of the last turn of the loop readable, answer their appends, and call the callbacks for the
        moved high watermark. If the topic was deleted, the appends get UNKNOWN_TOPIC_OR_PARTITION.
        """
        appends, self._appends = self._appends, []
        taken, self._taken = self._taken, []
        if self.deleted:
            for waiter, place, _ in appends:
                waiter.append_failed(place, self.gone())
            return
        if taken:
            self._batches += taken
            self.size_bytes += sum(len(batch.data) for batch in taken)
            self.high_watermark = taken[-1].last + 1
        for waiter, place, result in appends:
            waiter.appended(place, result)
        if taken:
            self.tell()

    # --- read

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Return batches from the one that holds `offset` on, by the rules of `PartitionLog.read_cached`. All of them
        are in memory.
        """
        self.check_offset(offset)
        if offset == self.high_watermark:
            return NOTHING_TO_READ
        buffers: list[Buffer] = []
        size = 0
        for index in range(bisect_left(self._batches, offset, key=_LAST), len(self._batches)):
            data = self._batches[index].data
            if size + len(data) > max_bytes and (buffers or not min_one):
                break
            buffers.append(data)
            size += len(data)
        return ReadResult(buffers, size)

    async def read(self, offset: int, max_bytes: int, *, min_one: bool, places: bool = False) -> ReadResult:
        """Return the result of `read_cached`: there is no other storage than memory."""
        return self.read_cached(offset, max_bytes, min_one=min_one)

    async def find_by_time(self, timestamp: int) -> TimestampOffset | None:
        """Return timestamp and offset of the first record at or after `timestamp` (ms); None if there is none."""
        return await self._look_up(_first_at, timestamp)

    async def max_timestamp(self) -> TimestampOffset | None:
        """Return timestamp and offset of the first record with the largest timestamp; None if no record has one."""
        return await self._look_up(_newest)

    async def _look_up(self, search: Callable[..., TimestampOffset | None], *args: int) -> TimestampOffset | None:
        """Return the result of `search` in the log's present batches, which runs on a thread, because they have to be
        decompressed. UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted, also meanwhile.
        """
        self.check_there()
        record = await asyncio.to_thread(search, tuple(self._batches), self.log_start_offset, *args)
        self.check_there()
        return record

    def producers(self) -> Sequence[ProducerView]:
        """Return the idempotent producers that the log remembers now."""
        return self._producers.views()

    # --- what makes the log smaller

    async def delete_records(self, before_offset: int) -> int:
        """Move the log start to an offset (-1: the high watermark); return it. Whole batches before it are freed at
        once.
        """
        self._move_start(self.deletable(before_offset))
        return self.log_start_offset

    def _move_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self._producers.transactions.drop_before(offset)
        self._replace(0, bisect_left(self._batches, offset, key=_LAST), [])
        self.tell()

    def _replace(self, first: int, end: int, batches: Sequence[StoredBatch]) -> None:
        old = self._batches[first:end]
        freed = sum(len(batch.data) for batch in old) - sum(len(batch.data) for batch in batches)
        self._batches[first:end] = batches
        self.size_bytes -= freed
        self._space.free(freed, len(old) - len(batches))

    def retain(self, now_ms: int) -> None:
        """Delete the oldest batches while they are older than retention.ms, or while the log without them still has at
        least retention.bytes. Do nothing if the topic's cleanup.policy does not delete.
        """
        policy, size, start = self.policy, self.size_bytes, self.log_start_offset
        for batch in self._batches if policy.delete else ():
            old = policy.retention_ms >= 0 and abs(batch.timestamp) < now_ms - policy.retention_ms
            large = policy.retention_bytes >= 0 and size - len(batch.data) >= policy.retention_bytes
            if not (old or large):
                break
            size -= len(batch.data)
            start = batch.last + 1
        self._move_start(start)

    async def compact(self, now_ms: int) -> None:
        """Compact the log, keeping of each key the newest record, if the topic is compacted and enough of the log is
        dirty (`is_due`). The work is done on a thread; appends and reads go on meanwhile.
        """
        policy, batches = self.policy, tuple(self._batches)
        if not policy.compact or not batches:
            return
        dirty = bisect_left(batches, self._clean_offset, key=_LAST)
        end = bisect_left(batches, self.last_stable_offset, key=_LAST)
        if policy.min_compaction_lag_ms > 0:
            newest_ms = now_ms - policy.min_compaction_lag_ms
            end = next((i for i in range(dirty, end) if abs(batches[i].timestamp) > newest_ms), end)
        last = min(end, len(batches) - 1)  # the last batch holds the end of the log: it stays as it is
        if last <= dirty or not is_due(
            policy,
            dirty_bytes=sum(len(batch.data) for batch in batches[dirty:last]),
            cleanable_bytes=sum(len(batch.data) for batch in batches[:last]),
            oldest_ms=min(abs(batch.timestamp) for batch in batches[dirty:last]),
            now_ms=now_ms,
        ):
            return
        aborted = self._producers.transactions.aborted_copy()
        cleaned = await asyncio.to_thread(_cleaned, batches[:end], dirty, last, aborted, policy, now_ms, self.title)
        changed = {old.last: (old, new) for old, new in cleaned}
        cleaned_end = bisect_left(self._batches, batches[last].base, key=_LAST)
        kept: list[StoredBatch] = []
        for batch in self._batches[:cleaned_end]:  # retention or DeleteRecords may have taken some
            old, new = changed.get(batch.last, (None, None))
            if batch is not old:
                kept.append(batch)
            elif new is not None:
                kept.append(new)
        self._replace(0, cleaned_end, kept)
        self._producers.transactions.drop_markers(
            {old.base for old, new in cleaned if new is None and read_header(old.data).control}
        )
        self._clean_offset = batches[last].base
        self._producers.transactions.drop_before(self._clean_offset)  # none of their records is left

    def expire_producers(self, ttl_ms: int) -> None:
        """Forget idempotent producers that were not seen for `ttl_ms`, unless they have an open transaction."""
        self._producers.expire(steady_ms(), ttl_ms)

    def remove(self) -> None:
        """End the log of a deleted topic: appends of this turn end with an error, and its memory is freed."""
        held = (*self._batches, *self._taken)
        self._space.free(sum(len(batch.data) for batch in held), len(held))
        self._batches, self._taken, self.size_bytes = [], [], 0
        super().remove()


def _first_at(batches: Sequence[StoredBatch], start: int, timestamp: int) -> TimestampOffset | None:
    for batch in batches:
        if batch.timestamp >= max(timestamp, 0):
            header = read_header(batch.data)
            record = first_at_or_after(batch.data, header, timestamp, max_bytes=MOST_UNCOMPRESSED, from_offset=start)
            if record is not None:
                return TimestampOffset(*record)
    return None


def _newest(batches: Sequence[StoredBatch], start: int) -> TimestampOffset | None:
    best: TimestampOffset | None = None
    for batch in batches:
        if batch.timestamp > (-1 if best is None else best.timestamp):
            record = max_timestamp_record(
                batch.data, read_header(batch.data), max_bytes=MOST_UNCOMPRESSED, from_offset=start
            )
            if record is not None and record[1] > (-1 if best is None else best.timestamp):
                best = TimestampOffset(*record)
    return best


def _cleaned(
    batches: Sequence[StoredBatch],
    dirty: int,
    last: int,
    aborted: Iterable[AbortedTransaction],
    policy: LogPolicy,
    now_ms: int,
    title: str,
) -> list[tuple[StoredBatch, StoredBatch | None]]:
    """Return the batches that compaction changes, each with the one that takes its place, or None if it goes; runs on a
    thread.

    `batches[dirty:]` are the dirty ones, whose records supersede older ones; those before `last` are cleaned. A batch
    that cannot be read is logged and stays as it is.
    """
    newest = NewestOffsets(aborted=aborted)
    horizon = delete_horizon(policy, now_ms)
    changes: list[tuple[StoredBatch, StoredBatch | None]] = []

    def unread(batch: StoredBatch, error: KopError) -> None:
        _log.warning("the batch at offset %d of %s cannot be read, it stays as it is: %s", batch.base, title, error)

    for batch in batches[dirty:]:
        try:
            newest.add(batch.data, read_header(batch.data))
        except KopError as error:
            unread(batch, error)
    for batch in batches[:last]:
        header = read_header(batch.data)
        try:
            data = newest.clean(batch.data, header, now_ms=now_ms, delete_horizon_ms=horizon)
        except KopError as error:
            unread(batch, error)
            continue
        if data is None:
            changes.append((batch, None))
        elif data is not batch.data:
            time = read_header(data).max_timestamp
            changes.append((batch, batch._replace(data=data, timestamp=time if time >= 0 else batch.timestamp)))
    return changes
