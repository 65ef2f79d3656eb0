"""One partition's log on Pulsar: its offsets, the tail, and what appends and readers meet there.

Owns: log start, high watermark, the chain of entries from which the offset of our own entry follows, listeners.
Must not know: how topics are made, other partitions.

Offsets are the broker's entry index. A receipt tells (ledger, entry) alone: where the entry before it in that
ledger has a known index, ours follows from it at once. Else the tail brings it. The tail sees every entry and checks
each that we had worked out; what it finds otherwise is counted and logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import EARLIEST, Client, Position, PulsarError
from kop.records import transcode
from kop.records.batch import BatchHeader, max_timestamp_of, stamp, stamp_log_append_time
from kop.storage.base import AppendResult, Buffer, LogPolicy, ProducerView, ReadResult, TimestampOffset, TopicInfo
from kop.storage.pulsar import lookup
from kop.storage.pulsar.catchup import Batch, Converter
from kop.storage.pulsar.errors import kafka_error
from kop.storage.pulsar.leading import Leading
from kop.storage.pulsar.listeners import Listeners
from kop.storage.pulsar.positions import Marks
from kop.storage.pulsar.readers import Readers
from kop.storage.pulsar.sender import Append, Piece, Sender, views
from kop.storage.pulsar.stream import Placed, Stream
from kop.storage.tail_cache import Tail

if TYPE_CHECKING:
    from kop.storage.pulsar.engine import PulsarEngine

LOG_START: Final = "log_start"
CLOCK_AHEAD: Final = "clock_ahead"
_CLOCK_TOLERANCE: Final = 1024
TAIL_BUDGET: Final = 1 << 20
ATTACH_SECONDS: Final = 25.0
_TAIL_SECONDS: Final = 10.0
"""How long the tail may stand where receipts say that there is more."""
_MOST_UNVERIFIED: Final = 100_000
"""Entries that the chain may be ahead of the tail."""
_MARK_EVERY: Final = 256
"""Entries from one mark of the tail to the next."""
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
        self._own: dict[Position, Piece] = {}
        """Stored by us, the chain does not reach them yet."""
        self._unverified: deque[tuple[Position, int]] = deque()
        """Worked out by the chain, to be seen by the tail: position, index."""
        self._converter = Converter(self.title, 0, append_time=False, count=engine.count)
        self._stream: Stream | None = None
        self._attaching: asyncio.Task[None] | None = None
        self._waiting: deque[Append] = deque()
        self._senders: dict[int, Sender] = {}
        self._readers = Readers(self)
        self._listeners = Listeners(self.loop)
        self._since_mark = 0
        self._watch: asyncio.TimerHandle | None = None
        self.leading = Leading(self)
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
    def producing(self) -> bool:
        """A Pulsar producer of ours is on it, or on its way."""
        return bool(self._senders) or self.leading.sender is not None

    @property
    def max_entry_bytes(self) -> int:
        """The most that metadata and payload of an entry may have."""
        return self.client.max_message_size

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run on the side; the engine waits for it when it closes."""
        self.engine.spawn(work)

    # --- attach

    async def attach(self) -> None:
        """Learn the bounds and follow the tail. Errors are KopErrors; the next call tries again."""
        while not self.attached:
            if self.deleted:
                raise self._gone()
            if self._attaching is None:
                self._attaching = self.loop.create_task(self._attach())
                self._attaching.add_done_callback(self._attach_ended)
            await asyncio.shield(self._attaching)

    def _attach_ended(self, task: asyncio.Task[None]) -> None:
        self._attaching = None
        error: KopError | None = None
        if self.deleted:
            error = self._gone()
            task.cancelled() or task.exception()
        elif task.cancelled():
            error = BackendError("the storage engine is closed")
        elif task.exception() is not None:
            failed = task.exception()
            error = failed if isinstance(failed, KopError) else BackendError(f"cannot attach {self.title}: {failed!r}")
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            if error is None:
                self._sender(append.header).add(append)
            else:
                append.error = error
                append.end(self.log_start_offset)

    async def _attach(self) -> None:
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await self._find_and_follow()
        except BaseException as error:
            self._let_go_of_tail()
            if isinstance(error, TimeoutError):
                error = PulsarError("Timeout", f"no answer within {ATTACH_SECONDS:.0f} s")
            if isinstance(error, PulsarError):
                raise self._gone() if self.deleted else kafka_error(error, f"cannot attach {self.title}") from error
            raise
        self.attached = True
        if self.high_watermark:
            self._listeners.tell_soon()

    async def _find_and_follow(self) -> None:
        await self.guard()
        start = await lookup.first_entry(self)
        if start is None:
            self.log_start_offset = self.high_watermark = await lookup.emptied_end(self)
            self._last, from_here, inclusive = Position(-1, -1), EARLIEST, True
        else:
            last = await lookup.last_entry(self, start)
            self.log_start_offset = max(start.base, min(self.engine.remembered(self, LOG_START), last.last + 1))
            self.high_watermark = last.last + 1
            self.marks.add(start.last, start.position)
            self.marks.add(last.last, last.position)
            self._last, from_here, inclusive = last.position, last.position, False
        self.engine.cache.drop(self.tail)  # what is kept has no holes
        self._converter = Converter(
            self.title, self.high_watermark, append_time=self.policy.log_append_time, count=self.engine.count
        )
        self._stream = stream = Stream(self._from_tail, self._tail_lost)
        await stream.start(
            self.client, self.partition_name, from_here, inclusive=inclusive, guard=self.guard, budget=TAIL_BUDGET
        )
        self.size_bytes = await lookup.size(self)
        if self.deleted:
            raise self._gone()
        if self._stream is not stream or stream.closed:
            raise BackendError(f"the tail of {self.title} ended while it began")

    def _let_go_of_tail(self) -> None:
        stream, self._stream = self._stream, None
        self.engine.cache.drop(self.tail)
        if stream is not None:
            stream.closed = True  # at once: what it still brings must not be taken for the log's end
            self.spawn(stream.close())

    async def guard(self) -> None:
        """Before anything subscribes or produces: it would resurrect a topic that is gone. Raises then."""
        if self.deleted or not await self.engine.presence.still_there(self):
            raise self._gone()

    def _tail_lost(self, error: PulsarError | KopError) -> None:
        """The tail cannot go on: everything begins anew with the next one who asks."""
        if self.deleted:
            self._detach(self._gone())
            return
        _log.warning("the tail of %s ended: %s; attaching again", self.title, error)
        self.engine.count("tails lost")
        # Retriable and "maybe stored" for what is under way, whatever the reason.
        self._detach(BackendError(f"the tail of {self.title} ended: {error}"))

    def _detach(self, error: KopError) -> None:
        self.attached = False
        self._readers.drop_all()
        own, self._own = self._own, {}
        self._unverified.clear()
        senders, self._senders = list(self._senders.values()), {}
        if self.leading.sender is not None:
            senders.append(self.leading.sender)
        for sender in senders:
            sender.fail(error)
            self.spawn(sender.close())
        for piece in own.values():
            self.piece_failed(piece, error)
        self._let_go_of_tail()
        self._listeners.tell_soon()

    # --- append

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> asyncio.Future[AppendResult]:
        """Send a batch; see `PartitionLog.append`. The order of calls is kept while the log attaches."""
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
            self._sender(header).add(append)
            return future
        self._waiting.append(append)
        if self._attaching is None:
            self._attaching = self.loop.create_task(self._attach())
            self._attaching.add_done_callback(self._attach_ended)
        return future

    def _sender(self, header: BatchHeader) -> Sender:
        producer_id = max(header.producer_id, -1)
        if self.leading.sender is not None:
            return self.leading.sender
        sender = self._senders.get(producer_id)
        if sender is None:
            name = self.engine.producer_name(producer_id)
            sender = self._senders[producer_id] = Sender(self, name, idempotent=producer_id >= 0)
        return sender

    async def lead(self, lost: Callable[[], None]) -> None:
        """Become the only writer; see `PartitionLog.lead`."""
        await self.leading.begin(lost)

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

    def sender_ended(self, sender: Sender) -> None:
        """It takes no more batches."""
        if self.leading.ended(sender):
            return
        for producer_id, known in self._senders.items():
            if known is sender:
                del self._senders[producer_id]
                return

    def piece_stored(self, piece: Piece, position: Position) -> None:
        """A receipt came."""
        if piece.done:
            return
        if position <= self._last:
            # The tail was faster; it did not know the entry for ours. Its offset is what the tail saw, if it is kept.
            self.engine.count("receipts behind the tail")
            self._tail_lost(BackendError("a receipt came for an entry that the tail had passed"))
            return
        self._own[position] = piece
        self._follow_chain()
        if self._own and self._watch is None:
            self._watch = self.loop.call_later(_TAIL_SECONDS, self._tail_stands, self._last)

    def _tail_stands(self, before: Position) -> None:
        """Receipts are here, the tail has to tell where they lie: does it move?"""
        self._watch = None
        if self._own and self._last != before:
            self._watch = self.loop.call_later(_TAIL_SECONDS, self._tail_stands, self._last)
        elif self._own and self.attached:
            self.engine.count("tails that stood still")
            for piece in self._own.values():
                self.piece_unknown(piece)
            self._tail_lost(BackendError(f"it brought nothing for {_TAIL_SECONDS:.0f} s of what is stored"))

    def piece_failed(self, piece: Piece, error: KopError) -> None:
        """It is not known to be stored."""
        if not piece.done:
            piece.append.error = error
            self._piece_done(piece)

    def piece_unknown(self, piece: Piece) -> None:
        """It is stored, nobody knows where."""
        if not piece.done:
            piece.append.unknown = True
            self._piece_done(piece)

    def _piece_done(self, piece: Piece) -> None:
        piece.done = True
        append = piece.append
        append.left -= 1
        if append.left <= 0:
            append.end(self.log_start_offset)

    def _follow_chain(self) -> None:
        """Take our own entries that follow the last known one without a gap."""
        if self.policy.log_append_time:
            return  # the tail tells the time
        last = self._last
        while self._own and len(self._unverified) < _MOST_UNVERIFIED:
            position = Position(last.ledger, last.entry + 1)
            piece = self._own.pop(position, None)
            if piece is None:
                return
            last = position
            base = self.high_watermark
            self._unverified.append((position, base + piece.count - 1))
            self._converter.next_offset = base + piece.count
            self._place(piece, position, base, -1)

    def _place(self, piece: Piece, position: Position, base: int, append_time: int) -> None:
        """An entry of ours has its offset: it is served in the bytes that came in."""
        piece.sender.pending.pop(piece.sequence_id, None)
        append = piece.append
        append.lies_at(base, piece)
        append.time = append_time
        data: Buffer
        if piece.whole:
            data = append.batch
            stamp(append.batch, base)
            if append_time >= 0:
                stamp_log_append_time(append.batch, append_time)
        else:
            assert piece.entry is not None
            found = transcode.to_batch(
                piece.entry.metadata,
                piece.entry.payload,
                base_offset=base,
                log_append_time=append_time if append_time >= 0 else None,
            )
            data = found if isinstance(found, bytes) else b"".join(found)
        self._advance(position, Batch(base, base + piece.count - 1, data))
        self._piece_done(piece)

    # --- the tail

    def _from_tail(self, placed: Placed) -> None:
        if placed.position <= self._last:
            self._verify(placed)
            self._follow_chain()
            return
        piece = self._own.pop(placed.position, None) or self._sent_by_us(placed)
        end = self.high_watermark
        if (
            piece is not None
            and not piece.done
            and placed.base == self.high_watermark
            and piece.count == placed.info.num_messages
        ):
            self._converter.next_offset = placed.last + 1
            append_time = placed.entry.broker_timestamp if self.policy.log_append_time else -1
            self._place(piece, placed.position, placed.base, append_time)
        else:
            for batch in self._converter.feed(placed):
                self._advance(placed.position, batch)
            if piece is not None and not piece.done:
                self._settle_apart(piece, placed, end)
        self._last = placed.position
        self._passed_over()
        self._follow_chain()

    def _passed_over(self) -> None:
        """Stored by us, and not brought by the tail though it is further on."""
        while self._own and (position := next(iter(self._own))) < self._last:
            piece = self._own.pop(position)
            piece.sender.pending.pop(piece.sequence_id, None)
            self.engine.count("entries that the tail passed over")
            self.piece_unknown(piece)

    def _settle_apart(self, piece: Piece, placed: Placed, end: int) -> None:
        """Ours, but behind a gap, or counted otherwise than we said."""
        piece.sender.pending.pop(piece.sequence_id, None)
        append = piece.append
        if end <= placed.base == placed.last - piece.count + 1:
            append.lies_at(placed.base, piece)
            append.time = placed.entry.broker_timestamp if self.policy.log_append_time else -1
        else:
            append.unknown = True
        self._piece_done(piece)

    def _sent_by_us(self, placed: Placed) -> Piece | None:
        """Ours whose receipt is not here yet, or was lost with a connection."""
        leader = self.leading.sender
        senders = self._senders.values() if leader is None else (leader,)
        for sender in senders:
            if sender.name == placed.info.producer_name:
                return sender.pending.get(placed.info.sequence_id)
        return None

    def _verify(self, placed: Placed) -> None:
        while self._unverified and self._unverified[0][0] < placed.position:
            self._unverified.popleft()
            self.engine.count("entries that the tail passed over")
        if self._unverified and self._unverified[0][0] == placed.position:
            _, index = self._unverified.popleft()
            if index != placed.last:
                self.engine.count("offsets that the chain got wrong")
                _log.error(
                    "%s: entry %d:%d has offset %d, %d had been told to its producer; attaching again",
                    self.title, placed.position.ledger, placed.position.entry, placed.last, index,
                )  # fmt: skip
                self._detach(BackendError("offsets had to be read anew"))

    def _advance(self, position: Position, batch: Batch) -> None:
        self._last = max(self._last, position)
        self.high_watermark = batch.last + 1
        if batch.error is None:
            self.size_bytes += len(batch.data)
            ahead = max_timestamp_of(batch.data) - time.time() * 1000
            if ahead > self.clock_ahead:
                self._clock_runs_ahead(int(ahead) + 1)
            self.engine.cache.push(self.tail, batch.base, batch.last, batch.data)
        else:
            self.engine.cache.drop(self.tail)  # what is kept has no holes
        self._since_mark += 1
        if self._since_mark >= _MARK_EVERY:
            self._since_mark = 0
            self.marks.add(batch.last, position)
        self._listeners.tell_soon()

    def _clock_runs_ahead(self, ahead: int) -> None:
        """A record is of the future, by so many ms: look-ups by time have to begin earlier, on every gateway."""
        self.clock_ahead = 1 << ahead.bit_length()
        self.spawn(self.engine.remember(self, CLOCK_AHEAD, self.clock_ahead))

    def learn(self) -> None:
        """The topic's properties may have changed: another gateway moved the log start, or saw a clock run ahead."""
        self.clock_ahead = max(self.clock_ahead, self.engine.remembered(self, CLOCK_AHEAD))
        start = self.engine.remembered(self, LOG_START)
        if self.attached and start > self.log_start_offset:
            self._move_start(start)

    # --- read

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        """What the tail cache holds from `offset` on; see `PartitionLog.read_cached`."""
        if offset > self.high_watermark and not self.deleted:
            return None  # another gateway may have given it out already: `read` asks Pulsar
        self._check(offset)
        if offset == self.high_watermark:
            return _EMPTY
        found = self.tail.get(offset, max_bytes, min_one)
        return None if found is None else ReadResult(*found)

    async def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Batches from Pulsar; see `PartitionLog.read`."""
        await self.attach()
        if offset > self.high_watermark and not self.deleted:
            await self.refresh()
            self._check(offset)
        cached = self.read_cached(offset, max_bytes, min_one=min_one)
        if cached is not None:
            return cached
        try:
            found, gap = await self._readers.read(offset, max_bytes, min_one=min_one)
        except PulsarError as error:
            raise kafka_error(error, f"cannot read {self.title}") from error
        if gap and offset >= self.log_start_offset:
            await self.refresh_start()
        self._check(offset)
        return found

    async def refresh_start(self) -> None:
        """Retention may have taken the oldest ledgers: ask where the log begins."""
        try:
            first = await lookup.first_entry(self)
        except PulsarError as error:
            raise kafka_error(error, f"cannot read the start of {self.title}") from error
        start = self.high_watermark if first is None else first.base
        if start > self.log_start_offset:
            self._move_start(start)

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = min(offset, self.high_watermark)
        self.marks.drop_before(self.log_start_offset)
        self.engine.cache.drop(self.tail, self.log_start_offset)
        self._listeners.tell()

    async def delete_records(self, before_offset: int) -> int:
        """Move the log start; it is kept in a property of the topic, Pulsar's own trimming goes by ledgers."""
        await self.attach()
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
        await self.attach()
        return await self._look_up(lookup.by_time(self, timestamp))

    async def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp, or None where no record has one."""
        await self.attach()
        return await self._look_up(lookup.max_timestamp(self))

    async def _look_up(self, search: Coroutine[Any, Any, TimestampOffset | None]) -> TimestampOffset | None:
        try:
            return await search
        except PulsarError as error:
            raise kafka_error(error, f"cannot look up times in {self.title}") from error

    def producers(self) -> Sequence[ProducerView]:
        """Idempotent producers that this gateway serves now."""
        return views(self._senders)

    # --- listeners, upkeep

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the high watermark or the log start moves or the topic goes; returns the undo."""
        return self._listeners.add(callback)

    def close_idle(self, now: float, seconds: float) -> None:
        """Let producers and readers go that nobody used for a while; another gateway may want the names."""
        for producer_id, sender in tuple(self._senders.items()):
            if producer_id >= 0 and sender.idle and now - sender.used > seconds:
                del self._senders[producer_id]
                self.spawn(sender.close())
        self._readers.close_idle(now, seconds)

    def remove(self) -> None:
        """The topic was deleted: whoever waits is told, nothing works any more."""
        self.deleted, error = True, self._gone()
        while self._waiting:
            append = self._waiting.popleft()
            append.error = error
            append.end(self.log_start_offset)
        self._detach(error)

    async def close(self) -> None:
        """Let go of everything; appends that are still under way fail."""
        if self._watch is not None:
            self._watch.cancel()
        if self._attaching is not None:
            self._attaching.cancel()
        await self.resign()
        for sender in tuple(self._senders.values()):
            await sender.close()
        await self._readers.close()
        if self._stream is not None:
            await self._stream.close()
        own, self._own = self._own, {}
        for piece in own.values():
            self.piece_failed(piece, BackendError("the storage engine is closed"))

    def _check(self, offset: int) -> None:
        if self.deleted:
            raise self._gone()
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise PeerError(
                f"offset {offset} is not in {self.log_start_offset} to {self.high_watermark}",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )

    def _gone(self) -> PeerError:
        return PeerError(f"topic {self.topic.name!r} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
