"""One partition's log on Pulsar: its offsets, the tail, and what appends and readers meet there.

Owns: log start, high watermark, what the tail brings, listeners.
Must not know: how topics are made, other partitions, which offset an entry has (`offsets/mapping.py`).

The tail sees every entry. Our own ones mostly have their offsets before that (`appends.py`); the tail checks each.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import EARLIEST, Client, Position, PulsarError
from kop.records.batch import BatchHeader, max_timestamp_of
from kop.storage.base import AppendResult, Buffer, LogPolicy, ProducerView, ReadResult, TimestampOffset, TopicInfo
from kop.storage.pulsar.layout import CLOCK_AHEAD, LOG_START
from kop.storage.pulsar.offsets.mapping import LOOK_EVERY
from kop.storage.pulsar.offsets.sparse_index import Marks
from kop.storage.pulsar.partition.appends import Append, Appends, EntryPlace
from kop.storage.pulsar.partition.compaction_warnings import Unfit
from kop.storage.pulsar.partition.lease import Leading
from kop.storage.pulsar.partition.listeners import Listeners
from kop.storage.pulsar.partition.producer import Sender
from kop.storage.pulsar.partition.producers import Senders
from kop.storage.pulsar.partition.tail_delays import TailDelays
from kop.storage.pulsar.partition.throttle import Limits
from kop.storage.pulsar.reading import search as lookup
from kop.storage.pulsar.reading.batches import Batch, Converter
from kop.storage.pulsar.reading.cold_readers import Readers
from kop.storage.pulsar.reading.gaps import MOST_AT_ONCE, Gap, Gaps
from kop.storage.pulsar.reading.stored_batches import StoredBatches
from kop.storage.pulsar.reading.stream import INDEX_HELP, Placed, Stream
from kop.storage.tail_cache import Tail

if TYPE_CHECKING:
    from kop.storage.pulsar.engine import PulsarEngine

_CLOCK_TOLERANCE: Final = 1024
TAIL_BUDGET: Final = 1 << 20
ATTACH_SECONDS: Final = 25.0
"""How long attaching may take, from its turn on: `PulsarEngine.attaching` lets a few logs attach at a time."""
WAIT_SECONDS: Final = 25.0
"""How long a request waits for a log that attaches: clients give up after 30 s. The log keeps its turn."""
_MARK_EVERY: Final = LOOK_EVERY
"""Entries from one mark of the tail to the next."""
_START_SECONDS: Final = 1.0
"""How long an answer to where the log begins is shared."""
_LARGEST_AT_TAIL: Final = 8 << 20
"""Bytes of the largest chunked message that the tail puts together."""
_EMPTY: Final = ReadResult((), 0)

_log = logging.getLogger(__name__)


class PulsarLog:
    """A `PartitionLog`. Light until it is attached."""

    def __init__(self, engine: PulsarEngine, topic: TopicInfo, index: int, partition_name: str, policy: LogPolicy):
        self.engine = engine
        self.loop = engine.loop
        self.client: Client = engine.client
        self.topic = topic
        self.index = index
        self.partition_name = partition_name
        self.policy = policy
        self.deleted = False
        self.attached = False
        self.log_start_offset = 0
        self.high_watermark = 0
        self.size_bytes = 0
        self.marks = Marks()
        self.tail = Tail()
        self._last = Position(-1, -1)
        """The entry before the high watermark."""
        self.numbering = engine.numbering
        self.appends = Appends(
            self,
            self.loop,
            self.numbering,
            count=engine.count,
            ask_place=self._ask_place,
            search=StoredBatches(engine.client, engine.admin, partition_name, engine.numbering, self.guard).find,
            tail_is_late=TailDelays(
                engine.admin, partition_name, self.title, engine.faults, engine.spawn, self.loop.time
            ).late,
        )
        self.entry_size_limit = engine.entry_size_limit(topic.topic_id)
        self._converter = self._make_converter()
        self._stream: Stream | None = None
        self._attaching: asyncio.Task[None] | None = None
        self._waiting: deque[Append] = deque()
        self._give_up: asyncio.TimerHandle | None = None
        """Ends the appends in `_waiting` when attaching takes too long for them."""
        self._senders = Senders(self)
        self._readers = Readers(self)
        self._listeners = Listeners(self.loop)
        self._in_demand = True
        """Somebody asked since `close_idle` looked last."""
        self._demanded = self.loop.time()
        self.gaps = Gaps(self)
        self.largest_timestamp: tuple[int, TimestampOffset | None] = 0, None
        """Of the records before an offset, that with the largest timestamp, as far as somebody asked."""
        self._asked_gaps: deque[Gap] = deque()
        """Those at the tail of which it is not known yet what is in them."""
        self._asking_gaps: asyncio.Task[None] | None = None
        self._asking_start: asyncio.Task[None] | None = None
        self._start_known_at = 0.0
        """Loop time at which that was asked last."""
        self.begin = EARLIEST
        """Where readers from the log start begin: behind entries that have no offsets, where there are some."""
        self.end_is_numbered = True
        """The entry at `last_position` has offsets: that of the next one follows from them."""
        self.first_ledger = -1
        """The ledger in which the log began when that was last asked; -1 where it is not known."""
        self._since_mark = 0
        self.leading = Leading(self)
        self.limits = Limits(self)
        self.clock_ahead = _CLOCK_TOLERANCE
        """By how many ms a record may be older in the log than by its timestamp: look-ups by time begin earlier."""

    @property
    def title(self) -> str:
        """For logs."""
        return f"{self.topic.name}-{self.index}"

    @property
    def last_position(self) -> Position:
        """Of the entry before the high watermark."""
        return self._last

    @property
    def may_shrink(self) -> bool:
        """Retention may take from it, and there is something to take."""
        return self.attached and not self.deleted and self.policy.delete and self.log_start_offset < self.high_watermark

    @property
    def producing(self) -> bool:
        """A Pulsar producer of ours is on it, or on its way."""
        return bool(self._senders) or self.leading.sender is not None

    @property
    def holds_lease(self) -> bool:
        """This gateway holds the exclusive producer; see `PartitionView.holds_lease`."""
        return self.leading.sender is not None

    @property
    def max_entry_bytes(self) -> int:
        """The most that metadata and payload of an entry may have."""
        return self.client.max_message_size

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run on the side; the engine waits for it when it closes."""
        self.engine.spawn(work)

    def refused(self, error: PulsarError, doing: str) -> KopError:
        """Pulsar does not let us read: the error for the client; it is counted and told."""
        return self.engine.faults.refused(error, "reads", doing)

    # --- attach

    async def attach(self) -> None:
        """Learn the bounds and follow the tail. Errors are KopErrors; the next call tries again."""
        self._in_demand = True
        while not self.attached:
            if self.deleted:
                raise self._gone()
            if self._attaching is None:
                self._attaching = self.loop.create_task(self._attach())
                self._attaching.add_done_callback(self._attach_ended)
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await asyncio.shield(self._attaching)
            except TimeoutError:
                raise self._late() from None

    def _late(self) -> KopError:
        error = PulsarError("Timeout", f"not done within {WAIT_SECONDS:.0f} s, and going on")
        return self.refused(error, f"cannot attach {self.title}")

    def _end_waiting(self, error: KopError) -> None:
        """Fail the appends that wait for the log to attach: none of them was sent."""
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            append.refuse(error)
            append.end(self.log_start_offset)

    def _give_up_waiting(self) -> None:
        self._give_up = None
        if self._waiting:
            self._end_waiting(self._late())

    def _attach_ended(self, task: asyncio.Task[None]) -> None:
        self._attaching = None
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None
        error: KopError | None = None
        if self.deleted:
            error = self._gone()
            task.cancelled() or task.exception()
        elif task.cancelled():
            error = BackendError("the storage engine is closed")
        elif task.exception() is not None:
            failed = task.exception()
            error = failed if isinstance(failed, KopError) else BackendError(f"cannot attach {self.title}: {failed!r}")
        if error is not None:
            self._end_waiting(error)
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            self._senders.of(append.header).add(append)

    async def _attach(self) -> None:
        try:
            async with AsyncExitStack() as held:
                if not self.topic.internal:  # coordinators do not wait behind others
                    await held.enter_async_context(self.engine.attaching.turn())
                async with asyncio.timeout(ATTACH_SECONDS):
                    await self._find_and_follow()
        except BaseException as error:
            self._let_go_of_tail()
            if isinstance(error, TimeoutError):
                error = PulsarError("Timeout", f"not done within {ATTACH_SECONDS:.0f} s")
            if isinstance(error, PulsarError):
                raise self._gone() if self.deleted else self.refused(error, f"cannot attach {self.title}") from error
            raise
        self.attached = True
        if self.high_watermark:
            self._listeners.tell_soon()

    async def _find_and_follow(self) -> None:
        await self.guard()
        found = await lookup.bounds(self)
        self.log_start_offset = max(found.start, min(self.engine.remembered(self, LOG_START), found.end))
        self.high_watermark = found.end
        self.first_ledger = -1 if found.first is None else found.first.position.ledger
        self._start_known_at = self.loop.time()
        for each in filter(None, (found.first, found.last)):
            self.marks.add(each.last, each.position)
        self.begin = EARLIEST
        if found.older:
            self.begin = found.end_position if found.first is None else found.first.position
            self._tell_of_older_entries()
        self._last = found.end_position
        last = found.last
        self.end_is_numbered = not found.older if last is None else last.position == found.end_position
        self.engine.cache.drop(self.tail)  # what is kept has no holes
        self._converter = self._make_converter()
        self._stream = stream = Stream(self._from_tail, self.tail_lost, self.numbering.place)
        await stream.start(
            self.client,
            self.partition_name,
            EARLIEST if found.end_position.entry < 0 else found.end_position,
            inclusive=found.end_position.entry < 0,
            guard=self.guard,
            budget=TAIL_BUDGET,
        )
        self.size_bytes = found.size
        if self.deleted:
            raise self._gone()
        if self._stream is not stream or stream.closed:
            raise BackendError(f"the tail of {self.title} ended while it began")

    def _tell_of_older_entries(self) -> None:
        self.engine.count("partitions_with_entries_older_than_index")
        self.engine.faults.tell(
            ("older", self.topic.topic_id),
            f"{self.title} has entries from before the brokers gave them an index: they have no offsets, its log "
            f"starts behind them, at {self.log_start_offset}. Pulsar clients can read them, or copy them to a new "
            "topic; kop.pulsar.offsets=packed gives offsets to all entries",
            "older",
        )

    def _make_converter(self) -> Converter:
        """Makes batches of what the tail brings. What is large is left to readers, whose memory is bounded together."""
        converter = Converter(
            self.title,
            self.high_watermark,
            self.numbering,
            append_time=self.policy.log_append_time,
            count=self.engine.count,
            max_message_bytes=min(self.policy.max_uncompressed_bytes, _LARGEST_AT_TAIL),
            unfit=Unfit(self),
        )
        converter.leaves_large = True
        return converter

    def _let_go_of_tail(self) -> None:
        stream, self._stream = self._stream, None
        self._asked_gaps.clear()
        self.engine.cache.drop(self.tail)
        if stream is not None:
            stream.closed = True  # at once: what it still brings must not be taken for the log's end
            self.spawn(stream.close())

    async def guard(self) -> None:
        """Before anything subscribes or produces: it would resurrect a topic that is gone. Raises then."""
        if self.deleted or not await self.engine.presence.may_attach(self):
            raise self._gone()

    def tail_lost(self, error: PulsarError | KopError) -> None:
        """The tail cannot go on: everything begins anew with the next one who asks."""
        if self.deleted:
            self.detach(self._gone())
            return
        text = f"the tail of {self.title} ended: {error}; attaching again"
        self.engine.faults.tell(("tail", self.title), text, "tail")
        self.engine.count("tails_lost")
        self.detach(BackendError(f"the tail of {self.title} ended: {error}"))

    def detach(self, error: KopError) -> None:
        """Follow the log no more; the next one who asks attaches again.

        Appends need no tail and go on, but those of a log that is gone, and the leader's: it has to read what it wrote.
        """
        self.attached = False
        self._readers.drop_all()
        if self.deleted:
            self.appends.fail_all(error)
        if self.deleted or self.leading.sender is not None:
            self._senders.fail(error)
        self.appends.tail_left()
        self._let_go_of_tail()
        self._listeners.tell_soon()

    # --- append

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> asyncio.Future[AppendResult]:
        """Send a batch; see `PartitionLog.append`. The order of calls is kept while the log attaches."""
        self._in_demand = True
        future: asyncio.Future[AppendResult] = self.loop.create_future()
        refusal = self._gone() if self.deleted else self.engine.refusal(len(batch))
        if self.topic.internal and self.leading.sender is None:
            refusal = BackendError(f"{self.title} is led by another gateway", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if refusal is not None:
            future.set_exception(refusal)
            return future
        owned = batch if isinstance(batch, bytearray) else bytearray(batch)
        append = Append(owned, header, future)
        self.engine.queued(len(owned), future)
        if self.attached and not self._waiting:
            self._senders.of(header).add(append)
            return future
        self._waiting.append(append)
        if self._give_up is None:
            self._give_up = self.loop.call_later(WAIT_SECONDS, self._give_up_waiting)
        if self._attaching is None:
            self._attaching = self.loop.create_task(self._attach())
            self._attaching.add_done_callback(self._attach_ended)
        return future

    async def lead(self, lost: Callable[[], None]) -> None:
        """Become the only writer; see `PartitionLog.lead`."""
        await self.leading.begin(lost)

    @property
    def leads(self) -> bool:
        """Whether this gateway surely leads now; see `PartitionLog.leads`."""
        return self.leading.sure

    async def verify_lead(self) -> None:
        """Ask Pulsar; see `PartitionLog.verify_lead`."""
        await self.leading.make_sure()

    async def resign(self) -> None:
        """Lead no more."""
        await self.leading.end()

    async def measure(self) -> int:
        """Bytes that Pulsar has of it."""
        return self.size_bytes if self.attached else await lookup.size(self)

    async def refresh(self) -> None:
        """Until the tail has brought what is the last entry now; see `PartitionLog.refresh`."""
        await self.attach()
        if self._stream is None:
            raise BackendError(f"the tail of {self.title} has ended")
        await lookup.until_end(self, self._stream)
        await self.attach()  # where the tail was stuck

    async def look_at_ends(self) -> None:
        """Find what nothing tells of: retention has moved the start, Pulsar has moved the tail past entries."""
        if self._stream is not None:
            await lookup.until_end(self, self._stream)
        if self.may_shrink:
            await self.ask_start()

    async def _ask_place(self, position: Position, count: int) -> EntryPlace:
        """Where a stored entry of `count` records lies. PulsarError, KopError."""
        head = await self.engine.admin.entry_head(self.partition_name, *position)
        return EntryPlace(self.numbering.stored_base(position, head.index, count), head.append_time)

    def sender_ended(self, sender: Sender) -> None:
        """It takes no more batches."""
        self._senders.ended(sender)

    # --- the tail

    def _from_tail(self, placed: Placed) -> None:
        if not placed.numbered:
            # What is written now has no offsets: nothing may be told to producers, or kept from consumers unsaid.
            self.tail_lost(KopError(INDEX_HELP, ErrorCode.KAFKA_STORAGE_ERROR))
            return
        self.end_is_numbered = True
        if placed.position <= self._last:
            self.appends.verify(placed)
            self.appends.follow()
            return
        entry = self.appends.at(placed) or self._senders.find(placed.info.producer_name, placed.info.sequence_id)
        end, before = self.high_watermark, self._last
        if entry is None or not self.appends.brought(entry, placed):
            for batch in self._converter.feed(placed):
                self._advance(placed.position, batch)
                if batch.missing:
                    self._gap_at_tail(batch, Gap(batch.base, batch.last, before, placed.position))
            if entry is not None:
                self.appends.settle_apart(entry, placed, end)
        self._last = placed.position
        self.appends.follow()

    def _gap_at_tail(self, batch: Batch, gap: Gap) -> None:
        """Entries between two that came did not come: transactions leave such gaps, else `Readers` looks why."""
        if gap.entry_before.ledger != gap.entry_behind.ledger:
            self.spawn(self.ask_start())  # retention may have taken whole ledgers before the tail
        if not gap.may_be_kept_back or not batch.data:
            self._asked_gaps.clear()
            self.engine.cache.drop(self.tail)  # what is kept has no holes
            return
        self.engine.cache.push(self.tail, batch.base, batch.last, batch.data)
        self._asked_gaps.append(gap)
        if self._asking_gaps is None:
            self._asking_gaps = self.loop.create_task(self._ask_about_gaps())
            self._asking_gaps.add_done_callback(self._gaps_are_known)

    async def _ask_about_gaps(self) -> None:
        while self._asked_gaps:
            asked = list(self._asked_gaps)[:MOST_AT_ONCE]
            await self.gaps.ask(asked)
            for gap in asked:
                if not self._asked_gaps or self._asked_gaps[0] is not gap:
                    break  # the tail began again meanwhile
                self._asked_gaps.popleft()
                if gap.last not in self.gaps:
                    self.engine.cache.drop(self.tail, gap.last + 1)  # there may be records
            self._listeners.tell_soon()

    async def _gap_is_known(self, offset: int) -> None:
        """Wait while Pulsar is asked about a gap at the tail that `offset` lies in."""
        if not self._asked_gaps:
            return
        known = asyncio.Event()
        undo = self.on_advance(known.set)
        try:
            while any(gap.base <= offset <= gap.last for gap in self._asked_gaps):
                known.clear()
                await known.wait()
        finally:
            undo()

    def _gaps_are_known(self, task: asyncio.Task[None]) -> None:
        self._asking_gaps = None
        if not task.cancelled() and task.exception() is not None:
            _log.error("gaps of %s cannot be asked about", self.title, exc_info=task.exception())
            self._asked_gaps.clear()
            self.engine.cache.drop(self.tail)
            self._listeners.tell_soon()

    def place(self, position: Position, batch: Batch) -> None:
        """Our own entry is the next one of the log."""
        self._converter.next_offset = batch.last + 1
        self._advance(position, batch)

    def _advance(self, position: Position, batch: Batch) -> None:
        self._last = max(self._last, position)
        end, self.high_watermark = self.high_watermark, batch.last + 1
        if batch.error is None and not batch.missing:
            self.size_bytes += len(batch.data)
            ahead = max_timestamp_of(batch.data) - time.time() * 1000
            if ahead > self.clock_ahead:
                self._clock_runs_ahead(int(ahead) + 1)
            self.engine.cache.push(self.tail, end, batch.last, batch.data)
        elif not batch.missing:
            self.engine.cache.drop(self.tail)  # what is kept has no holes
        self._since_mark += 1
        if self._since_mark >= _MARK_EVERY:
            self._since_mark = 0
            self.marks.add(batch.last, position)
            self.numbering.passed(self, position)
        self._listeners.tell_soon()

    def _clock_runs_ahead(self, ahead: int) -> None:
        """A record is of the future, by so many ms: look-ups by time have to begin earlier, on every gateway."""
        self.clock_ahead = 1 << ahead.bit_length()
        self.spawn(self.engine.remember(self, CLOCK_AHEAD, self.clock_ahead))

    def learn(self) -> None:
        """The topic's properties may have changed: another gateway moved the log start, or saw a clock run ahead."""
        self.clock_ahead = max(self.clock_ahead, self.engine.remembered(self, CLOCK_AHEAD))
        start = self.engine.remembered(self, LOG_START)
        if not self.attached or start <= self.log_start_offset:
            return
        if start > self.high_watermark:
            self.spawn(self._learn_when_refreshed())
        else:
            self._move_start(start)

    async def _learn_when_refreshed(self) -> None:
        """Another gateway deleted records that the tail has not brought yet."""
        await self.refresh()
        start = min(self.engine.remembered(self, LOG_START), self.high_watermark)
        if start > self.log_start_offset:
            self._move_start(start)

    # --- read

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        """What the tail cache holds from `offset` on; see `PartitionLog.read_cached`."""
        self._in_demand = True
        if offset > self.high_watermark and not self.deleted:
            return None  # another gateway may have given it out already: `read` asks Pulsar
        self._check(offset)
        if self.high_watermark in (offset, self.log_start_offset):
            return _EMPTY
        end = None
        gap = next((gap for gap in self._asked_gaps if gap.last >= offset), None)
        if gap is not None:
            if gap.base <= offset:  # whether there are records is being asked: who waits is told
                return _EMPTY if self.tail.holds(offset) else None
            end = gap.base
        found = self.tail.get(offset, max_bytes, min_one, end)
        return None if found is None else ReadResult(*found)

    async def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Batches from Pulsar; see `PartitionLog.read`."""
        await self.attach()
        if offset > self.high_watermark and not self.deleted:
            await self.refresh()
            self._check(offset)
        await self._gap_is_known(offset)
        cached = self.read_cached(offset, max_bytes, min_one=min_one)
        if cached is not None:
            return cached
        try:
            found = await self._readers.read(offset, max_bytes, min_one=min_one)
        except PulsarError as error:
            raise self.refused(error, f"cannot read {self.title}") from error
        self._check(offset)
        return found

    async def refresh_start(self) -> None:
        """Ask where the log begins, since retention takes the oldest ledgers; see `PartitionLog.refresh_start`.

        Who asks within a second of another one shares its answer.
        """
        await self.attach()
        if self._asking_start is None:
            now = self.loop.time()
            if now - self._start_known_at < _START_SECONDS:
                return
            self._asking_start = self.loop.create_task(self._share_start(now))
        await asyncio.shield(self._asking_start)

    async def _share_start(self, now: float) -> None:
        try:
            await self.ask_start()
            self._start_known_at = now
        finally:
            self._asking_start = None

    async def ask_start(self) -> None:
        """Ask Pulsar at this moment where the log begins."""
        try:
            start = await lookup.start(self)
        except PulsarError as error:
            raise self.refused(error, f"cannot read the start of {self.title}") from error
        if start > self.log_start_offset:
            self._move_start(start)

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = min(offset, self.high_watermark)
        self.marks.drop_before(self.log_start_offset)
        self.engine.cache.drop(self.tail, self.log_start_offset)
        self._listeners.tell()

    async def delete_records(self, before_offset: int) -> int:
        """Move the log start; it is kept in a property of the topic, Pulsar's own trimming goes by ledgers."""
        await self.refresh()
        if before_offset == -1:
            before_offset = self.high_watermark
        if not 0 <= before_offset <= self.high_watermark:
            raise PeerError(
                f"offset {before_offset} is not in 0 to {self.high_watermark}", ErrorCode.OFFSET_OUT_OF_RANGE
            )
        if before_offset > self.log_start_offset:
            await self.engine.remember(self, LOG_START, before_offset)
            if before_offset > self.log_start_offset:
                self._move_start(before_offset)
        return self.log_start_offset

    async def find_by_time(self, timestamp: int) -> TimestampOffset | None:
        """The first record at or after `timestamp` (ms), or None."""
        await self.refresh()
        return await self._look_up(lookup.by_time(self, timestamp))

    async def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp, or None where no record has one."""
        await self.refresh()
        return await self._look_up(lookup.max_timestamp(self))

    async def _look_up(self, search: Coroutine[Any, Any, TimestampOffset | None]) -> TimestampOffset | None:
        try:
            return await search
        except PulsarError as error:
            raise self.refused(error, f"cannot look up times in {self.title}") from error

    def producers(self) -> Sequence[ProducerView]:
        """Idempotent producers that this gateway serves now."""
        return self._senders.views()

    # --- listeners, upkeep

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the high watermark or the log start moves or the topic goes; returns the undo."""
        return self._listeners.add(callback)

    def close_idle(self, now: float, seconds: float) -> None:
        """Let producers and readers go that nobody used for a while: another gateway may want the names.

        The tail goes where nobody asked for the partition for longer still.
        """
        self._senders.close_idle(now, seconds)
        self._readers.close_idle(now, seconds)
        busy = self._listeners or self.appends or self._waiting or not self._senders.idle
        if self._in_demand or busy or self.leading.sender is not None:
            self._in_demand, self._demanded = False, now
        elif now - self._demanded > self.engine.settings.tail_seconds:
            error = BackendError(f"nobody asked for {self.title}")
            self._senders.fail(error)
            self.detach(error)

    def remove(self) -> None:
        """The topic was deleted: whoever waits is told, nothing works any more."""
        self.deleted, error = True, self._gone()
        self._end_waiting(error)
        self.detach(error)

    async def close(self) -> None:
        """Let go of everything; appends that are still under way fail."""
        for task in (self._attaching, self._asking_gaps, self._asking_start):
            if task is not None:
                task.cancel()
        await self.resign()
        await self._senders.close()
        await self._readers.close()
        if self._stream is not None:
            await self._stream.close()
        self.appends.close()

    def _check(self, offset: int) -> None:
        if self.deleted:
            raise self._gone()
        if self.log_start_offset <= offset <= self.high_watermark:
            return
        if offset > self.high_watermark or not self.numbering.reads_on(offset, self.log_start_offset):
            raise PeerError(
                f"offset {offset} is not in {self.log_start_offset} to {self.high_watermark}",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )

    def _gone(self) -> PeerError:
        return PeerError(f"topic {self.topic.name!r} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
