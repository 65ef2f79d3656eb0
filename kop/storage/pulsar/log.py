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
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import EARLIEST, Client, Position, PulsarError
from kop.records import transcode
from kop.records.batch import BatchHeader, stamp, stamp_log_append_time
from kop.storage.base import AppendResult, Buffer, LogPolicy, ProducerView, ReadResult, TimestampOffset, TopicInfo
from kop.storage.pulsar import lookup
from kop.storage.pulsar.catchup import Batch, CatchUp, Converter
from kop.storage.pulsar.errors import kafka_error
from kop.storage.pulsar.positions import Marks
from kop.storage.pulsar.sender import Append, Piece, Sender
from kop.storage.pulsar.stream import Placed, Stream
from kop.storage.tail_cache import Tail

if TYPE_CHECKING:
    from kop.storage.pulsar.engine import PulsarEngine

TAIL_BUDGET: Final = 1 << 20
READ_BUDGET: Final = 4 << 20
READ_SECONDS: Final = 20.0
_MARK_EVERY: Final = 256
"""Entries from one mark of the tail to the next."""
_READERS: Final = 8
"""Readers behind the tail, kept for whoever reads on."""
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
        self._readers: list[CatchUp] = []
        self._listeners: list[Callable[[], None]] = []
        self._telling = False
        self._since_mark = 0

    @property
    def title(self) -> str:
        """For logs."""
        return f"{self.topic.name}-{self.index}"

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
            await self.guard()
            start = await lookup.first_entry(self)
            if start is None:
                self.log_start_offset = self.high_watermark = await lookup.emptied_end(self)
                self._last, from_here, inclusive = Position(-1, -1), EARLIEST, True
            else:
                last = await lookup.last_entry(self, start)
                self.log_start_offset = max(start.base, min(self.engine.remembered_start(self), last.last + 1))
                self.high_watermark = last.last + 1
                self.marks.add(start.base, start.position)
                self.marks.add(last.base, last.position)
                self._last, from_here, inclusive = last.position, last.position, False
            self._converter = Converter(
                self.title, self.high_watermark, append_time=self.policy.log_append_time, count=self.engine.count
            )
            self._stream = Stream(self._from_tail, self._tail_lost)
            await self._stream.start(
                self.client,
                self.partition_name,
                from_here,
                inclusive=inclusive,
                guard=self.guard,
                budget=TAIL_BUDGET,
            )
            self.size_bytes = await lookup.size(self)
        except PulsarError as error:
            raise self._gone() if self.deleted else kafka_error(error, f"cannot attach {self.title}") from error
        if self.deleted:
            raise self._gone()
        self.attached = True
        if self.high_watermark:
            self._tell_soon()

    async def guard(self) -> None:
        """Before anything subscribes or produces: it would resurrect a topic that is gone. Raises then."""
        if self.deleted or not await self.engine.still_there(self):
            raise self._gone()

    def _tail_lost(self, error: PulsarError | KopError) -> None:
        """The tail cannot go on: everything begins anew with the next one who asks."""
        if self.deleted:
            return
        _log.warning("the tail of %s ended: %s; attaching again", self.title, error)
        self.engine.count("tails lost")
        self._detach(error if isinstance(error, KopError) else kafka_error(error, f"the tail of {self.title}"))

    def _detach(self, error: KopError) -> None:
        self.attached = False
        self._drop_readers()
        self.engine.cache.drop(self.tail)
        self._own.clear()
        self._unverified.clear()
        senders, self._senders = list(self._senders.values()), {}
        for sender in senders:
            sender.fail(error)
            self.spawn(sender.close())
        if self._stream is not None:
            self.spawn(self._stream.close())
            self._stream = None
        self.loop.call_soon(self.tell)

    # --- append

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> asyncio.Future[AppendResult]:
        """Send a batch; see `PartitionLog.append`. The order of calls is kept while the log attaches."""
        future: asyncio.Future[AppendResult] = self.loop.create_future()
        refusal = self._gone() if self.deleted else self.engine.refusal(len(batch))
        if refusal is not None:
            future.set_exception(refusal)
            return future
        owned = batch if isinstance(batch, bytearray) else bytearray(batch)
        append = Append(owned, header, future)
        self.engine.queued(len(owned), future)
        if self.attached:
            self._sender(header).add(append)
            return future
        self._waiting.append(append)
        if self._attaching is None:
            self._attaching = self.loop.create_task(self._attach())
            self._attaching.add_done_callback(self._attach_ended)
        return future

    def _sender(self, header: BatchHeader) -> Sender:
        producer_id = max(header.producer_id, -1)
        sender = self._senders.get(producer_id)
        if sender is None:
            name = self.engine.producer_name(producer_id)
            sender = self._senders[producer_id] = Sender(self, name, idempotent=producer_id >= 0)
        return sender

    def sender_ended(self, sender: Sender) -> None:
        """It takes no more batches."""
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
        if not self.policy.log_append_time:
            self._follow_chain()

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
        last = self._last
        while self._own:
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
        if append.base < 0 or base < append.base:
            append.base = base
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
            return
        piece = self._own.pop(placed.position, None) or self._sent_by_us(placed)
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
                self._settle_apart(piece, placed)
        self._last = placed.position
        self._follow_chain_or_wait()

    def _settle_apart(self, piece: Piece, placed: Placed) -> None:
        """Ours, but behind a gap, or counted otherwise than we said."""
        piece.sender.pending.pop(piece.sequence_id, None)
        if placed.last - piece.count + 1 == placed.base:
            append = piece.append
            append.base = placed.base if append.base < 0 else min(append.base, placed.base)
            append.time = placed.entry.broker_timestamp if self.policy.log_append_time else -1
        else:
            piece.append.unknown = True
        self._piece_done(piece)

    def _follow_chain_or_wait(self) -> None:
        if not self.policy.log_append_time:
            self._follow_chain()

    def _sent_by_us(self, placed: Placed) -> Piece | None:
        """Ours whose receipt is not here yet, or was lost with a connection."""
        for sender in self._senders.values():
            if sender.name == placed.info.producer_name:
                return sender.pending.get(placed.info.sequence_id)
        return None

    def _verify(self, placed: Placed) -> None:
        while self._unverified and self._unverified[0][0] < placed.position:
            self._unverified.popleft()
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
            self.engine.cache.push(self.tail, batch.base, batch.last, batch.data)
        else:
            self.engine.cache.drop(self.tail)  # what is kept has no holes
        self._since_mark += 1
        if self._since_mark >= _MARK_EVERY:
            self._since_mark = 0
            self.marks.add(batch.base, position)
        self._tell_soon()

    # --- read

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        """What the tail cache holds from `offset` on; see `PartitionLog.read_cached`."""
        self._check(offset)
        if offset == self.high_watermark:
            return _EMPTY
        found = self.tail.get(offset, max_bytes, min_one)
        return None if found is None else ReadResult(*found)

    async def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Batches from Pulsar; see `PartitionLog.read`."""
        if not self.attached:
            await self.attach()
        cached = self.read_cached(offset, max_bytes, min_one=min_one)
        if cached is not None:
            return cached
        try:
            reader = await self._reader(offset)
        except PulsarError as error:
            raise kafka_error(error, f"cannot read {self.title}") from error
        try:
            await reader.wait(READ_SECONDS)
            if reader.next_offset <= offset and not reader.holds(offset) and not reader.failed:
                raise BackendError(f"the reader of {self.title} lost its place")
            found = reader.take(self.high_watermark, max_bytes, min_one)
        except BaseException:
            self._drop(reader)
            raise
        finally:
            reader.busy = False
            reader.used = self.loop.time()
        if reader.first is not None and reader.first.base > offset >= self.log_start_offset:
            await self.refresh_start()
        self._check(offset)
        return found

    async def _reader(self, offset: int) -> CatchUp:
        """One that stands at `offset`, or a new one."""
        for reader in self._readers:
            if not reader.busy and not reader.failed and reader.holds(offset):
                reader.busy = True
                return reader
        position = await lookup.locate(self, offset)
        converter = Converter(self.title, offset, append_time=self.policy.log_append_time, count=self.engine.count)
        converter.start_within()
        reader = CatchUp(converter, READ_BUDGET)
        reader.busy = True
        reader.used = self.loop.time()
        idle = sorted((one for one in self._readers if not one.busy), key=lambda one: one.used)
        for one in idle[: max(0, len(self._readers) - _READERS + 1)]:
            self._drop(one)
        self._readers.append(reader)
        try:
            reader.stream = Stream(reader.on_entry, reader.on_lost)
            await reader.stream.start(
                self.client,
                self.partition_name,
                position,
                guard=self.guard,
                compacted=self.policy.compact,
                budget=READ_BUDGET,
            )
        except BaseException:
            self._drop(reader)
            raise
        return reader

    def _drop(self, reader: CatchUp) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        self.spawn(reader.close())

    def _drop_readers(self) -> None:
        for reader in tuple(self._readers):
            self._drop(reader)

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
        self.tell()

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
            await self.engine.remember_start(self, before_offset)
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
        return [
            ProducerView(producer_id, sender.sequences.epoch, sender.sequences.last_sequence, -1)
            for producer_id, sender in sorted(self._senders.items())
            if sender.sequences is not None and sender.sequences.epoch >= 0
        ]

    # --- listeners, upkeep

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the high watermark or the log start moves or the topic goes; returns the undo."""
        self._listeners.append(callback)

        def undo() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return undo

    def _tell_soon(self) -> None:
        if self._listeners and not self._telling:
            self._telling = True
            self.loop.call_soon(self.tell)

    def tell(self) -> None:
        """Call the listeners."""
        self._telling = False
        for callback in tuple(self._listeners):
            try:
                callback()
            except Exception:
                _log.exception("a listener on %s failed", self.title)

    def close_idle(self, now: float, seconds: float) -> None:
        """Let producers and readers go that nobody used for a while; another gateway may want the names."""
        for producer_id, sender in tuple(self._senders.items()):
            if producer_id >= 0 and sender.idle and now - sender.used > seconds:
                del self._senders[producer_id]
                self.spawn(sender.close())
        for reader in tuple(self._readers):
            if not reader.busy and now - reader.used > seconds:
                self._drop(reader)

    def remove(self) -> None:
        """The topic was deleted: whoever waits is told, nothing works any more."""
        self.deleted = True
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            append.error = self._gone()
            append.end(self.log_start_offset)
        self._detach(self._gone())

    async def close(self) -> None:
        """Let go of everything; appends under way have ended."""
        if self._attaching is not None:
            self._attaching.cancel()
        for sender in tuple(self._senders.values()):
            await sender.close()
        for reader in tuple(self._readers):
            await reader.close()
        if self._stream is not None:
            await self._stream.close()

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
