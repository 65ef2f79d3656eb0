"""One partition's log on Pulsar: the facade over its tail, its appends and its readers.

Owns: the log's bounds, attaching, and which part takes what is asked of the log or happens to it.
Must not know: how topics are made, other partitions, which offset an entry has (`offsets/mapping.py`).

The tail reads every entry. Entries that this broker wrote mostly have their offsets before that (`appends.py`); the
tail checks the offset of each.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import EARLIEST, Position, Producer, PulsarError
from kop.records.batch import BatchHeader, max_timestamp_of
from kop.storage.base import AppendWaiter, Buffer, LogPolicy, ProducerView, ReadResult, TimestampOffset, TopicInfo
from kop.storage.idempotence import IN_TRANSACTION
from kop.storage.partition import NOTHING_TO_READ, Partition
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, Refused
from kop.storage.pulsar.layout import CLOCK_AHEAD, LOG_START, transaction_of
from kop.storage.pulsar.offsets.entry import INDEX_HELP, EntryWithOffsets
from kop.storage.pulsar.offsets.mapping import LOOK_EVERY
from kop.storage.pulsar.partition.appends import Append, Appends, EntryPlace, PlacedFields
from kop.storage.pulsar.partition.producer import WritePath
from kop.storage.pulsar.partition.producers import PartitionProducers
from kop.storage.pulsar.partition.sequences import StoredSequences
from kop.storage.pulsar.partition.services import PartitionServices
from kop.storage.pulsar.partition.tail import LogTail
from kop.storage.pulsar.partition.tail_delays import TailDelays
from kop.storage.pulsar.partition.tail_demand import LOOK_SECONDS, TailDemand
from kop.storage.pulsar.partition.throttle import PublishThrottle
from kop.storage.pulsar.reading.batches import Batch, Gap
from kop.storage.pulsar.reading.cold_readers import ColdReaders
from kop.storage.pulsar.reading.search import PartitionSearch
from kop.storage.pulsar.reading.source import PartitionSource
from kop.storage.pulsar.reading.stored_batches import StoredBatches

_CLOCK_TOLERANCE: Final = 1024
ATTACH_SECONDS: Final = 25.0
"""The seconds that attaching may take, from its turn on: `PartitionServices.attaching` lets a few logs attach at a
time.
"""
WAIT_SECONDS: Final = 25.0
"""The seconds that a request waits for a log that attaches: clients give up after 30 s. The log keeps its turn."""
SEND_SECONDS: Final = 4.0
"""The seconds that batches wait for a log to attach for the first time, if it has its turn: with those that their
producer may take to open they are less than the 30 after which clients give up. A Produce names many partitions, and
its answer waits for the slowest of them.
"""
MARK_EVERY: Final = LOOK_EVERY
"""The number of entries at the tail from one that the sparse index takes to the next."""
_LATE_LOOK_SECONDS: Final = 30.0
"""The least seconds between two looks at a tail because it is late."""
_START_SECONDS: Final = 1.0
"""The seconds for which callers share an answer about the log's start."""


class PulsarLog(Partition):
    """The log of one partition in Pulsar, a `PartitionLog`. It costs little memory until it is attached."""

    sole_writer = False
    """False: Pulsar's own clients and other brokers write to the log, too."""
    reads_ahead = True
    """True: its readers do (`reading.cold_readers`)."""

    def __init__(
        self,
        context: PulsarContext,
        services: PartitionServices,
        topic: TopicInfo,
        index: int,
        partition_name: str,
        policy: LogPolicy,
    ) -> None:
        super().__init__(topic, index, policy)
        self.context = context
        self.services = services
        self.loop = context.loop
        self.partition_name = partition_name
        self.attached = False
        self.followed_since = math.inf
        """The loop's time from which on the tail brings all that is stored; infinite while the log is not attached."""
        self.size_bytes = 0
        self.end_has_offset = True
        """True if the entry at `last_position` has offsets, from which the next entry's offset follows."""
        self.clock_ahead = _CLOCK_TOLERANCE
        """The ms by which a record may be older in the log than by its timestamp: look-ups by time begin earlier."""
        self._last = Position(-1, -1)
        self._mapping = mapping = services.mapping
        self._cache = services.cache
        self._source = PartitionSource(context, partition_name, self.title, mapping, self.check_exists)
        self.search = PartitionSearch(self._source, self)
        self._delays = delays = TailDelays(self._source)
        self.tail = LogTail(self._source, services.cache, delays, self)
        self._readers = ColdReaders(self._source, self.search, self, services.read_budget, self.ask_start)
        self.appends = Appends(
            self,
            context.loop,
            mapping,
            services.open_batches,
            faults=context.faults,
            ask_place=self._ask_place,
            search=StoredBatches(self._source).find,
            tail_is_late=self._tail_is_late,
            needs_tail=self._need_tail,
        )
        self.entry_size_limit = services.entry_size_limit(topic.topic_id)
        topic_name = partition_name.removesuffix(f"-partition-{index}")
        questions = None if topic.internal else services.rate_questions
        throttle = PublishThrottle(context, partition_name, topic_name, self.title, self._move_producers, questions)
        path = WritePath(
            context,
            services,
            self,
            self.appends,
            throttle,
            self.entry_size_limit,
            StoredSequences(),
            self.check_exists,
            self.refresh,
        )
        self._producers = PartitionProducers(path, self.attach)
        self._lease = self._producers.lease
        self._attaching: asyncio.Task[None] | None = None
        self._sends_unattached = False
        """True if batches are sent while the log is not attached: it was attached before, or is long about it."""
        self._has_turn = False
        """True if attaching has had its turn: if it is long then, Pulsar is."""
        self._waiting: deque[Append] = deque()
        """The appends that wait for the log to attach."""
        self._stop_waiting: asyncio.TimerHandle | None = None
        """The timer that sends the appends in `_waiting` if attaching takes too long for them."""
        self._in_demand = True
        """True if somebody has asked for the partition since the last call of `close_idle`."""
        self._demanded = self.loop.time()
        self._asking_start: asyncio.Task[None] | None = None
        self._start_known_at = 0.0
        """The loop's time at which Pulsar was last asked for the log start."""
        self._late_look = float("-inf")
        """The loop's time of the last look at a tail that was late."""
        self._since_mark = 0
        self._demand = TailDemand(self.loop.time())
        self._looking: asyncio.TimerHandle | None = None
        """The timer of the next look if the tail, which pauses, has to go on."""
        self._telling = False
        """True if the callbacks for moved bounds will be called in the loop's next turn."""

    @property
    def last_position(self) -> Position:
        """The position of the entry before the high watermark."""
        return self._last

    @property
    def known_start(self) -> int:
        """The log start; -1 until the log has attached for the first time."""
        return self.log_start_offset if self._start_known_at else -1

    @property
    def may_shrink(self) -> bool:
        """True if retention may move the log start: the log holds records, and its policy deletes."""
        return self.attached and not self.deleted and self.policy.delete and self.log_start_offset < self.high_watermark

    @property
    def producing(self) -> bool:
        """True if a Pulsar producer of this broker is attached to the partition, or being opened."""
        return bool(self._producers) or self._lease.producer is not None

    @property
    def holds_lease(self) -> bool:
        """True if this broker holds the log's exclusive producer, as far as it knows."""
        return self._lease.producer is not None

    def _move_producers(self) -> None:
        self._producers.move()

    # --- attach

    async def attach(self) -> None:
        """Learn the log's bounds from Pulsar and follow its tail, unless that is done already. Calls at the same time
        share the work.

        Waits 25 seconds at most; the work goes on after that. Errors are KopErrors; the next call tries again.
        """
        self._in_demand = True
        while not self.attached:
            if self.deleted:
                raise self.gone()
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await asyncio.shield(self._begin_attaching())
            except TimeoutError:
                late = PulsarError("Timeout", f"its end is not known after {WAIT_SECONDS:.0f} s, the search goes on")
                raise self._source.refused(late, f"cannot open {self.title}") from None

    def _begin_attaching(self) -> asyncio.Task[None]:
        if self._attaching is None:
            self._has_turn = False
            self._attaching = self.loop.create_task(self._attach())
            self._attaching.add_done_callback(self._attach_ended)
        return self._attaching

    def _fail_waiting(self, error: KopError) -> None:
        """Fail the appends that wait for the log to attach: none of them was sent."""
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            append.refuse(error)
            append.end(self.known_start)

    def _send_waiting(self) -> None:
        """Send the appends that wait for the log to attach, and let later ones not wait any more."""
        self._sends_unattached = True
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            self._producers.of(append.header).add(append)

    def _have_waited(self, most: float) -> None:
        """Send the appends that wait for the log to attach, unless its turn has not come, at the loop's time `most` at
        the latest.
        """
        if self._has_turn or self.loop.time() >= most:
            self._send_waiting()
        else:
            self._stop_waiting = self.loop.call_later(SEND_SECONDS, self._have_waited, most)

    def _attach_ended(self, task: asyncio.Task[None]) -> None:
        self._attaching = None
        if self._stop_waiting is not None:
            self._stop_waiting.cancel()
            self._stop_waiting = None
        error: KopError | None = None
        if self.deleted:
            error = self.gone()
            task.cancelled() or task.exception()
        elif task.cancelled():
            error = BackendError("the storage engine is closed")
        elif task.exception() is not None:
            failed = task.exception()
            error = failed if isinstance(failed, KopError) else BackendError(f"cannot open {self.title}: {failed!r}")
        if error is not None:
            self._fail_waiting(error)
        else:
            self._send_waiting()

    async def _attach(self) -> None:
        try:
            async with AsyncExitStack() as held:
                if not self.topic.internal:  # coordinators do not wait behind others
                    await held.enter_async_context(self.services.attaching.turn())
                self._has_turn = True
                async with asyncio.timeout(ATTACH_SECONDS):
                    await self._find_and_follow()
        except BaseException as error:
            self.tail.let_go()
            if isinstance(error, TimeoutError):
                error = PulsarError("Timeout", f"its end is not known after {ATTACH_SECONDS:.0f} s")
            if isinstance(error, PulsarError):
                raise (
                    self.gone() if self.deleted else self._source.refused(error, f"cannot open {self.title}")
                ) from error
            raise
        self.attached, self.followed_since = True, self.loop.time()
        if self.high_watermark:
            self.tell_soon()

    async def _find_and_follow(self) -> None:
        await self.check_exists()
        ends = await self.search.ends()
        self.log_start_offset = max(ends.start, min(self._kept_number(LOG_START), ends.end))
        self.high_watermark = ends.end
        self.search.first_ledger = -1 if ends.first is None else ends.first.position.ledger
        self._start_known_at = self.loop.time()
        for each in filter(None, (ends.first, ends.last)):
            self.search.index.add(each.last, each.position)
        self.search.begin = EARLIEST
        if ends.older:
            self.search.begin = ends.end_position if ends.first is None else ends.first.position
            self._tell_of_older_entries()
        self._last = ends.end_position
        last = ends.last
        self.end_has_offset = not ends.older if last is None else last.position == ends.end_position
        await self.tail.begin(self.high_watermark, ends.end_position)
        self.size_bytes = ends.size
        if self.deleted:
            raise self.gone()
        if not self.tail.following:
            raise BackendError(f"the gateway's reader of the end of {self.title} failed while it was opened")

    def _tell_of_older_entries(self) -> None:
        self.context.faults.count(Fault.ENTRIES_UNREADABLE_OLDER_THAN_INDEX)
        self.context.faults.tell(
            ("older", self.topic.topic_id),
            f"{self.title} has entries from before the Pulsar brokers gave them an index: they have no offsets, "
            f"its log starts behind them, at {self.log_start_offset}. Pulsar clients can read them, or copy them to a "
            "new topic; kop.pulsar.offsets=packed gives offsets to all entries",
            "older",
        )

    async def check_exists(self) -> None:
        """Raise UNKNOWN_TOPIC_OR_PARTITION if the topic is gone, being deleted, or not made yet: subscribing or
        producing would bring it back. PulsarError if Pulsar does not answer.
        """
        if self.deleted:
            raise self.gone()
        if not await self.services.may_attach(self):
            text = f"{self.title} is not in Pulsar: its topic is being deleted, or another broker is making it"
            raise PeerError(text, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def confirm(self, producer: Producer) -> None:
        """Raise a KopError if a producer, which was attached just now, brought back a topic that is gone."""
        await self.services.confirm(self, producer)

    def tail_lost(self, error: PulsarError | KopError, why: Fault = Fault.TAIL_LOST_FAILED) -> None:
        """Detach, because the tail cannot go on; this is logged, and counted as `why`, unless an outage of Pulsar is
        the cause. The log attaches again when somebody asks for it the next time.
        """
        if self.deleted:
            self.detach(self.gone())
            return
        text = (
            f"the gateway's reader of the end of {self.title} failed: {error}; the next request for it opens "
            "another one. Look at the Pulsar broker, if this goes on"
        )
        if not self.context.faults.takes(error):
            self.context.faults.tell(("tail", self.title), text, "tail")
            self.context.faults.count(why)
        self.detach(BackendError(f"the gateway's reader of the end of {self.title} failed: {error}"))

    def detach(self, error: KopError) -> None:
        """Stop following the tail. The log attaches again when somebody asks for it the next time.

        Appends need no tail and go on. They fail if the topic is gone, or if this broker leads the log: a leader has to
        read what it wrote.
        """
        self.attached, self.followed_since = False, math.inf
        self._producers.end_direct()  # the next batch has to begin attaching
        self._need_tail()
        self._readers.drop_all()
        if self.deleted:
            self.appends.fail_all(error)
        if self.deleted or self._lease.producer is not None:
            self._producers.fail(error)
        self.appends.tail_left()
        self.tail.let_go()
        self.tell_soon()

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
        """Send a batch to Pulsar in the background; `waiter` is told its offset or the error, with `place`, maybe
        before this returns. The order of calls is kept. `from_zero`: the producer begins each of its epochs at sequence
        0.

        Batches wait while the log attaches for the first time, for 4 seconds if it has its turn, for 29 at most. Later
        they do not: Pulsar tells their offsets. Refused at once is a batch for which memory lacks room, one to a log
        that another broker leads, and one of a transaction that this log does not know.
        """
        self._in_demand = True
        budget = self.services.write_budget
        refusal = self.gone() if self.deleted else budget.refusal(len(batch))
        if self.topic.internal and self._lease.producer is None:
            refusal = BackendError(f"{self.title} is led by another broker", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        txn = self._producers.transaction_of(header) if header.transactional else None
        if header.transactional and txn is None and refusal is None:
            text = f"{self.title}: producer {header.producer_id} has to be asked for its transaction again"
            refusal = BackendError(text, ErrorCode.NOT_LEADER_OR_FOLLOWER)  # the client sends the batch again
        if not header.transactional and self._producers.in_transaction(header.producer_id, header.producer_epoch):
            text = f"{self.title}: producer {header.producer_id} {IN_TRANSACTION}"
            refusal = refusal or PeerError(text, ErrorCode.INVALID_TXN_STATE)
        if refusal is not None:
            waiter.append_failed(place, refusal)
            return
        owned = batch if isinstance(batch, bytearray) else bytearray(batch)
        if self._producers.submit_directly(owned, header, waiter, place):
            return
        append = Append(owned, header, txn, waiter, place, budget, from_zero=from_zero)
        if not self.attached:
            self._begin_attaching()
        if self._sends_unattached and not self._waiting:
            self._producers.of(header).add(append)
            return
        self._waiting.append(append)
        if self._stop_waiting is None:
            most = self.loop.time() + WAIT_SECONDS
            self._stop_waiting = self.loop.call_later(SEND_SECONDS, self._have_waited, most)

    def direct_writer(self, header: BatchHeader) -> object | None:
        """Return the object that compiled code gives further batches of this one's producer to, instead of `submit`;
        None if all have to go to `submit`.
        """
        policy = self.policy
        if not self.attached or self.deleted or self._waiting or self.topic.internal:
            return None
        if policy.log_append_time or policy.raw_entries or not self.appends.places_directly:
            return None
        return self._producers.direct_writer(header)

    def end_direct(self) -> None:
        """Make all batches go to `submit` from now on, until `direct_writer` is called the next time; those that
        compiled code has sent get their results all the same.
        """
        self._producers.end_direct()

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return true if transactional batches of that producer id and epoch may be submitted without asking the
        coordinator.
        """
        return self._producers.in_transaction(producer_id, producer_epoch)

    def join_transaction(self, producer_id: int, producer_epoch: int, storage_transaction: bytes) -> None:
        """Write transactional batches of that producer id and epoch into the Pulsar transaction that
        `storage_transaction` names (`transaction_name`) from now on. Nothing happens if it names none.
        """
        txn = transaction_of(storage_transaction)
        if txn is not None:
            self._producers.join(producer_id, producer_epoch, txn)

    async def nobody_else_writes(self, producer_id: int) -> bool:
        """Return true once no other broker has the Pulsar producer of a producer id; false if Pulsar does not tell. It
        waits until the name is free, for as long as the caller does.
        """
        return await self._producers.nobody_else_writes(producer_id)

    def fenced(self, position: Position) -> None:
        """Handle that a fence of this broker is stored at this position: its offset is asked for in the background,
        since batches of its transaction come behind it.
        """
        self.appends.fenced(position)

    async def lead(self, lost: Callable[[], None]) -> None:
        """Become the only writer of the log, by Pulsar's exclusive producer, and wait until all that others wrote is
        read. `lost` is called when another broker becomes the writer, or this one's producer fails. KopError or
        PulsarError if this fails.
        """
        await self._lease.begin(lost)

    @property
    def leads(self) -> bool:
        """True if this broker surely leads the log now: Pulsar has said so within the last 4 seconds."""
        return self._lease.confirmed

    async def verify_lead(self) -> None:
        """Ask Pulsar if this broker still leads the log; `leads` has the answer afterwards. A failure is logged and
        counted, and raises nothing.
        """
        await self._lease.make_sure()

    async def resign(self) -> None:
        """Give up the lead of the log, and close its producer, in which batches that wait fail. Do nothing if this
        broker does not lead it.
        """
        await self._lease.end()

    async def measure(self) -> int:
        """Return about how many bytes Pulsar stores of the partition: while the log is attached, what it had then and
        what has come since; else Pulsar is asked, KopError if it does not tell.
        """
        return self.size_bytes if self.attached else await self.search.size()

    async def refresh(self) -> None:
        """Wait until the log ends behind the entry that is the partition's last one now, whoever wrote it; attach it
        first if need be. If Pulsar holds the tail back, the end is moved there before the tail comes. KopError if that
        fails.
        """
        await self.attach()
        if not self.tail.following:
            raise BackendError(f"the gateway's reader of the end of {self.title} has failed")
        held = await self.tail.until_end()
        if held is not None:
            await self._end_behind(held)
        await self.attach()  # where the tail was given up

    async def _end_behind(self, last: Position) -> None:
        """Move the log's end behind an entry that the tail brings later, and drop the cached batches. KopError if that
        fails.

        The tail goes on. Records before the entry are read by readers, as Pulsar lets them.
        """
        with self.context.faults.refusing(Refused.READS, f"cannot find the end of {self.title}"):
            entry = await self.search.at(last)
        if not self.attached or last <= self._last:
            return
        self._last, self.high_watermark, self.end_has_offset = last, entry.last + 1, True
        self.tail.converter.next_offset = self.high_watermark
        self.tail.drop_all()
        self.context.faults.count(Fault.TAIL_LATE_END_ASKED)
        self.appends.follow()
        self.tell_soon()

    async def look_at_ends(self) -> None:
        """Ask Pulsar if retention has moved the log start, and move it then; give the tail up, so that the log attaches
        again when it is needed, if the tail does not go on. KopError if that cannot be found out.

        It does not go on if Pulsar has moved it past entries, or serves it no more.
        """
        await self._look_at_tail()
        if self.may_shrink:
            await self.ask_start()

    async def _look_at_tail(self) -> None:
        """Give the tail up, so that the log attaches again, if it does not go on. KopError if that cannot be found out.

        Pulsar may name an old entry as the last one to a tail that it serves no more. So Pulsar is asked if it serves
        the tail, if somebody waits for entries, or if entries are known to be stored that the tail has not brought.
        """
        await self.tail.until_end()
        if self.observed or self.appends.ahead_of_tail:
            await self.tail.gave_up_unserved()

    def _tail_is_late(self) -> None:
        """Ask in the background for the reason why the tail did not bring an entry in time, and look if it goes on;
        each every 30 seconds at most.
        """
        self._delays.late()
        now = self.loop.time()
        if now - self._late_look >= _LATE_LOOK_SECONDS:
            self._late_look = now
            self.context.spawn(self._look_at_tail())

    async def _ask_place(self, position: Position, count: int) -> EntryPlace:
        """Return offset and time of a stored entry of `count` records, asked of Pulsar. PulsarError or KopError if that
        fails.
        """
        head = await self.context.admin.entry_head(self.partition_name, *position)
        return EntryPlace(self._mapping.stored_base(position, head.index, count), head.append_time)

    # --- the tail

    def from_tail(self, stored: EntryWithOffsets) -> None:
        """Put an entry that the tail read into the log: one that this broker wrote, whose client is answered, or
        somebody else's. If this broker has told the entry's offset already, that is compared. Without an offset of the
        entry the log detaches.
        """
        if not stored.has_offsets:
            # What is written now has no offsets. Producers must not be given any, and consumers must get an error.
            self.tail_lost(KopError(INDEX_HELP, ErrorCode.KAFKA_STORAGE_ERROR))
            return
        self.end_has_offset = True
        if stored.position <= self._last:
            self.appends.verify(stored)
            self.appends.follow()
            return
        if self._producers.brought_directly(stored):
            self.appends.verify(stored)
            self.appends.follow()
            return
        kept = self.appends.kept(stored)
        entry, info = self.appends.at(stored), stored.info
        if entry is None:
            entry = self._producers.brought(info.producer_name, info.sequence_id, info.num_messages)
        end, before = self.high_watermark, self._last
        if entry is None or not self.appends.brought(entry, stored):
            if entry is None:
                self._need_tail()  # only the tail brings the entries of others
            for batch in self.tail.converter.feed(stored, kept):
                self._advance(stored.position, batch)
                if batch.missing:
                    if before.ledger != stored.position.ledger:
                        self.context.spawn(self.ask_start())  # retention may have taken whole ledgers before the tail
                    self.tail.met_gap(Gap(batch.base, batch.last, before, stored.position), batch.data)
            if entry is not None:
                self.appends.settle_apart(entry, stored, end)
        self._last = stored.position
        self.appends.follow()

    def place(self, ledger: int, batches: Sequence[PlacedFields]) -> None:
        """Put entries of that ledger, which this broker wrote, behind the log's end, and their bytes into the cache for
        readers; callbacks for moved bounds follow in the loop's next turn.
        """
        cache, cached = self._cache, self.tail.cached
        end, latest = self.high_watermark, -1
        self._in_demand = True
        for entry, last, data, max_timestamp in batches:
            cache.push(cached, end, last, data)
            end = last + 1
            self.size_bytes += len(data)
            latest = max(latest, max_timestamp)
            self._since_mark += 1
            if self._since_mark >= MARK_EVERY:
                self._last, self.high_watermark = Position(ledger, entry), end
                self._mark(self._last, last)
        self._last, self.high_watermark = Position(ledger, entry), end
        self.tail.converter.next_offset = end
        self.look_at_clock(latest)
        self.tell_soon()
        self._producers.placed()

    def _advance(self, position: Position, batch: Batch) -> None:
        """Move the log's end behind a batch that the tail brought, and keep the batch in the cache."""
        self._last = max(self._last, position)
        end, self.high_watermark = self.high_watermark, batch.last + 1
        if batch.error is None and not batch.missing:
            self.size_bytes += len(batch.data)
            self.look_at_clock(max_timestamp_of(batch.data))
            self._cache.push(self.tail.cached, end, batch.last, batch.data, batch.schema)
        elif not batch.missing:
            self.tail.drop()  # what is kept has no holes
        self._since_mark += 1
        if self._since_mark >= MARK_EVERY:
            self._mark(position, batch.last)
        self.tell_soon()

    def _mark(self, position: Position, last: int) -> None:
        """Do the work that is due once in 256 entries: index this one, close a ledger, pause the tail. `last` is the
        last offset of this entry, the log's last now.
        """
        self._since_mark = 0
        self.search.index.add(last, position)
        self._pause_tail_if_not_needed()
        if self._mapping.closes_ledger(position):
            self.context.spawn(self._source.close_ledger(position.ledger))

    def look_at_clock(self, max_timestamp: int) -> None:
        """Note if a stored record's timestamp, in ms, is ahead of Pulsar's clock: look-ups by time begin earlier."""
        ahead = max_timestamp - self.context.admin.now_ms()
        if ahead > self.clock_ahead:
            self._clock_runs_ahead(ahead + 1)

    # --- the tail on demand

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the log's bounds move; return the function that ends this. The tail goes on, since
        entries of others count, too.
        """
        self._need_tail()
        return super().on_advance(callback)

    @property
    def tail_pauses(self) -> bool:
        """True if the tail pauses because nobody needs it, and so brings nothing."""
        return self._demand.paused

    def _need_tail(self) -> None:
        if self._demand.needed(self.loop.time()):
            self._resume_tail()

    def _pause_tail_if_not_needed(self) -> None:
        """Let the tail pause if nobody needs it. Logs with append times keep their tails."""
        if self.policy.log_append_time or not self.attached:
            return
        if self.observed or self.appends or not self.tail.delivers:
            return
        if self._demand.chained(self.loop.time(), self.high_watermark):
            self.tail.pause()
            self.appends.tail_pauses()
            self._looking = self.loop.call_later(LOOK_SECONDS, self._look_whether_tail_is_needed)

    def _look_whether_tail_is_needed(self) -> None:
        if self._demand.look(self.loop.time(), self.high_watermark):
            self._resume_tail()
        else:
            self._looking = self.loop.call_later(LOOK_SECONDS, self._look_whether_tail_is_needed)

    def _resume_tail(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self.appends.tail_goes_on()
        self.tail.go_on_behind(self._last)

    def _clock_runs_ahead(self, ahead: int) -> None:
        """Keep, in the topic's properties for all brokers, that a record's timestamp is `ahead` ms in the future,
        rounded up to a power of two: look-ups by time begin so much earlier.
        """
        self.clock_ahead = 1 << ahead.bit_length()
        self.context.spawn(self.services.keep_number(self.topic, self.index, CLOCK_AHEAD, self.clock_ahead))

    def learn(self) -> None:
        """Move the log start, and the begin of look-ups by time, as the topic's properties say: another broker may have
        deleted records, or seen a clock run ahead.
        """
        self.clock_ahead = max(self.clock_ahead, self._kept_number(CLOCK_AHEAD))
        start = self._kept_number(LOG_START)
        if not self.attached or start <= self.log_start_offset:
            return
        if start > self.high_watermark:
            self.context.spawn(self._learn_when_refreshed())
        else:
            self._move_start(start)

    def _kept_number(self, kind: str) -> int:
        """Return the largest number of a kind that a broker kept of this partition, or 0."""
        return self.services.kept_number(self.topic.topic_id, self.index, kind)

    async def _learn_when_refreshed(self) -> None:
        """Move the log start as another broker has, once the tail has come so far: that broker deleted records that
        this one has not read yet.
        """
        await self.refresh()
        start = min(self._kept_number(LOG_START), self.high_watermark)
        if start > self.log_start_offset:
            self._move_start(start)

    # --- read

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        """Return the batches that the tail cache, or a reader ahead, has from `offset` on, up to `max_bytes`; an empty
        result at the log's end. None if Pulsar has to be read. OFFSET_OUT_OF_RANGE before the log start.

        With `min_one` the first batch is returned whatever its size.
        """
        self._in_demand = True
        if offset > self.high_watermark and not self.deleted:
            return None  # another broker may have given it out already: `read` asks Pulsar
        self.check_offset(offset)
        if self.high_watermark in (offset, self.log_start_offset):
            self._need_tail()
            return NOTHING_TO_READ
        cached = self.tail.read_cached(offset, max_bytes, min_one=min_one)
        return self._readers.at_hand(offset, max_bytes, min_one=min_one) if cached is None else cached

    async def read(self, offset: int, max_bytes: int, *, min_one: bool, places: bool = False) -> ReadResult:
        """Return batches from the one that holds `offset` on, from memory or from Pulsar, up to `max_bytes`; the log is
        attached first. With `min_one` the first batch is returned whatever its size; with `places` the result tells
        where Pulsar keeps the records. Errors are KopErrors, OFFSET_OUT_OF_RANGE among them.
        """
        await self.attach()
        if offset > self.high_watermark and not self.deleted:
            await self.refresh()
            self.check_offset(offset)
        await self.tail.gap_is_known(offset)
        cached = self.read_cached(offset, max_bytes, min_one=min_one)
        if cached is not None and not (places and cached.size):  # memory does not know the places of all
            return cached
        try:
            result = await self._readers.read(offset, max_bytes, min_one=min_one, places=places)
        except PulsarError as error:
            raise self._source.refused(error, f"cannot read {self.title}") from error
        self.check_offset(offset)
        return result

    async def refresh_start(self) -> None:
        """Ask Pulsar for the log's start, since retention takes the oldest ledgers, and move the log start there. The
        log is attached first. Errors are KopErrors.

        Callers within a second share an answer.
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
        """Ask Pulsar for the log's start at this moment, and move the log start there; if all records are gone, the
        log's end too. KopError if Pulsar does not tell.
        """
        with self.context.faults.refusing(Refused.READS, f"cannot read the start of {self.title}"):
            start = await self.search.start()
        if start > self.high_watermark:
            self._end_at_start(start)
        if start > self.log_start_offset:
            self._move_start(start)

    def _end_at_start(self, start: int) -> None:
        """Move the log's end to `start`: no entry is left but those of open or aborted transactions."""
        self.high_watermark, self.end_has_offset = start, False
        self.tail.converter.next_offset = start
        self.tail.drop_all()

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = min(offset, self.high_watermark)
        self.search.index.drop_before(self.log_start_offset)
        self.tail.drop(self.log_start_offset)
        self.tell()

    async def delete_records(self, before_offset: int) -> int:
        """Move the log start to `before_offset` (-1: the log's end) for all brokers, and return the log start then. It
        is kept in a property of the topic, since Pulsar's own trimming goes by ledgers. OFFSET_OUT_OF_RANGE beyond the
        log's end; below the log start nothing changes.
        """
        await self.refresh()
        before_offset = self.deletable(before_offset)
        if before_offset > self.log_start_offset:
            await self.services.keep_number(self.topic, self.index, LOG_START, before_offset)
            if before_offset > self.log_start_offset:
                self._move_start(before_offset)
        return self.log_start_offset

    async def find_by_time(self, timestamp: int) -> TimestampOffset | None:
        """Return timestamp and offset of the first record at or after `timestamp` (ms), up to the partition's end of
        now; None if there is none. Errors are KopErrors.
        """
        await self.refresh()
        with self.context.faults.refusing(Refused.READS, f"cannot look up times in {self.title}"):
            return await self.search.by_time(timestamp, self.clock_ahead)

    async def max_timestamp(self) -> TimestampOffset | None:
        """Return timestamp and offset of the first record with the largest timestamp, up to the partition's end of now;
        None if no record has one. Errors are KopErrors.
        """
        await self.refresh()
        with self.context.faults.refusing(Refused.READS, f"cannot look up times in {self.title}"):
            return await self.search.max_timestamp()

    def producers(self) -> Sequence[ProducerView]:
        """Return the idempotent producers that this broker serves now. Their batches go to `submit` for a while from
        now on.
        """
        return self._producers.views()

    # --- listeners, upkeep

    def tell_soon(self) -> None:
        """Call the callbacks for moved bounds in the loop's next turn, once for all moves of this one."""
        if self._observers is not None and not self._telling:
            self._telling = True
            self.loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        self.tell()

    def check_offset(self, offset: int) -> None:
        """Raise OFFSET_OUT_OF_RANGE for an offset that cannot be read, UNKNOWN_TOPIC_OR_PARTITION if the topic is gone.
        A packed offset before the log start may be read on from the start.
        """
        if offset < self.log_start_offset and self._mapping.reads_on(offset, self.log_start_offset):
            self.check_there()
        else:
            super().check_offset(offset)

    def close_idle(self, now: float, seconds: float) -> None:
        """Close producers and readers that nobody used for `seconds`, so that another broker may use the producers'
        names; `now` is the loop's time.

        If nobody asked for the partition for `tail_seconds` of the settings, the log detaches, and the producer for
        batches without an id is closed, too. A log without a tail may have producers all the same.
        """
        if self._waiting or not (self.attached or self._producers or self._producers.in_transactions):
            return  # batches wait for the first attaching, and have no producers yet; or nothing is held, as mostly
        self._producers.close_idle(now, seconds)
        self._readers.close_idle(now, seconds)
        busy = self.observed or self.appends or self._attaching or not self._producers.idle
        if self._in_demand or busy or self._lease.producer is not None:
            self._in_demand, self._demanded = False, now
        elif now - self._demanded > self.context.settings.tail_seconds:
            error = BackendError(f"nobody used {self.title} for a while")
            self._producers.fail(error)
            self.detach(error)

    def remove(self) -> None:
        """Close the log of a deleted topic: all waiting requests fail, and later ones are refused."""
        self.deleted, error = True, self.gone()
        self._fail_waiting(error)
        self.detach(error)
        super().remove()

    async def close(self) -> None:
        """Close all producers, readers and the tail. Appends that are still under way fail."""
        for task in (self._attaching, self._asking_start):
            if task is not None:
                task.cancel()
        if self._looking is not None:
            self._looking.cancel()
        await self.resign()
        await self._producers.close()
        await self._readers.close()
        await self.tail.close()
        self.appends.close()
