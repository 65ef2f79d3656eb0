"""A reader behind the tail: what it has read ahead waits here as Kafka batches.

Owns: one stream, the batches read ahead, the order in which they are taken.
Must not know: the tail, the cache, appends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import Position, PulsarError
from kop.records import transcode
from kop.records.batch import read_header
from kop.storage.base import Buffer, ReadResult
from kop.storage.pulsar.faults import kafka_error
from kop.storage.pulsar.partition.compaction_warnings import Unfit
from kop.storage.pulsar.reading.budget import Share
from kop.storage.pulsar.reading.gaps import Gap
from kop.storage.pulsar.reading.stream import Chunks, ChunksMissingError, MessageTooLargeError, Placed, Stream

if TYPE_CHECKING:
    from kop.storage.pulsar.offsets.mapping import Numbering

log = logging.getLogger(__name__)


class UnreadableEntryError(PeerError):
    """CORRUPT_MESSAGE for the offsets of an entry that no Kafka client can get; the log goes on at `next_offset`."""

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message, ErrorCode.CORRUPT_MESSAGE)
        self.next_offset = next_offset


class Batch(NamedTuple):
    """A batch or, where an entry cannot be read, the error that stands for its offsets."""

    base: int
    last: int
    data: Buffer
    error: KopError | None = None
    missing: bool = False
    """Nothing came for these offsets."""
    gap: Gap | None = None
    """Then the gap that they belong to, where the entry before it came."""


class Converter:
    """Entries in, Kafka batches out, no record left out: gaps are empty batches, what cannot be read is an error."""

    def __init__(
        self,
        name: str,
        next_offset: int | None,
        numbering: Numbering,
        *,
        append_time: bool,
        count: Callable[[str], None],
        max_message_bytes: int,
        unfit: Unfit | None = None,
    ) -> None:
        """`max_message_bytes`: the largest chunked message that is put together, stored and decompressed."""
        self.numbering = numbering
        self.next_offset = next_offset
        """The offset that comes next; None: whatever comes first."""
        self.append_time = append_time
        self._name = name
        self._count = count
        self._unfit = unfit
        self._on_keyless = None if unfit is None else unfit.keyless
        self._max_message_bytes = max_message_bytes
        self._chunks = Chunks(max_message_bytes)
        self._before = -1
        """Last offset of the entry before, where that was seen."""
        self._position_before: Position | None = None
        self.torn: set[int] = set()
        """Offsets of chunked messages whose first chunks did not come."""
        self.looks_back = False
        """Such a message is read again from further back: that they did not come is no trouble yet."""
        self.leaves_large = False
        """A message that is too large here is put together by a reader that may: that is no trouble yet."""

    def feed(self, placed: Placed) -> list[Batch]:
        """What an entry makes of the log: nothing where it lies behind, else up to two batches."""
        found: list[Batch] = []
        if not placed.numbered:
            return found
        base, last = placed.base, placed.last
        expected = base if self.next_offset is None else self.next_offset
        before, self._before = self._before, last
        position_before, self._position_before = self._position_before, placed.position
        if last < expected:
            if placed.info.num_chunks > placed.info.chunk_id + 1:  # the first chunks of the message that is wanted
                self._chunks.add(placed.info, placed.entry.payload)
            return found
        # Whoever begins inside a batch gets it whole; one that begins inside the entry before it is miscounted.
        within, self._wanted_within = self._wanted_within and base > before, False
        if placed.error is not None:
            first = min(base, expected) if self.numbering.dense else base
            found.append(self._unreadable(placed, first, placed.error.message))
            self.next_offset = last + 1
            return found
        if base > expected:
            if self.numbering.skips(expected, placed):
                gap = position_before and Gap(before + 1, base - 1, position_before, placed.position)
                filler = self.numbering.filler(expected, base - 1)
                found.append(Batch(expected, base - 1, filler, missing=True, gap=gap))
        elif base < expected and self.next_offset is not None and not within:
            self._count("miscounted_entries")
            text = (
                f"{self._name}: the entry at {placed.position.ledger}:{placed.position.entry} has "
                f"{placed.info.num_messages} messages, the index moved by {last - expected + 1}: a producer counted "
                "wrong, or batches were sent in a Pulsar transaction; these records can be read by Pulsar clients only"
            )
            log.error("%s", text)
            found.append(Batch(expected, last, b"", UnreadableEntryError(text, last + 1)))
            self.next_offset = last + 1
            return found
        self.next_offset = last + 1
        try:
            data = self._convert(placed)
        except MessageTooLargeError as error:
            if self.leaves_large:
                found.append(Batch(base, last, b"", UnreadableEntryError(error.message, last + 1)))
            else:
                found.append(self._unreadable(placed, base, error.message))
        except ChunksMissingError as error:
            self.torn.add(last)
            if self.looks_back:
                found.append(Batch(base, last, b"", UnreadableEntryError(error.message, last + 1)))
            else:
                found.append(self._unreadable(placed, base, error.message))
        except KopError as error:
            found.append(self._unreadable(placed, base, error.message))
        else:
            found.append(Batch(base, last, data))
        return found

    def _unreadable(self, placed: Placed, first: int, why: str) -> Batch:
        """What stands for an entry that cannot be read, from offset `first` on. It is counted and told."""
        text = f"{self._name}: entry {placed.position.ledger}:{placed.position.entry}: {why}"
        self._count("unreadable_entries")
        log.error("%s; consumers stop there until it is skipped or trimmed", text)
        return Batch(first, placed.last, b"", UnreadableEntryError(text, placed.last + 1))

    @property
    def waiting_bytes(self) -> int:
        """Of chunks whose message is not whole yet."""
        return self._chunks.size

    _wanted_within = False

    def start_within(self) -> None:
        """The offset that comes next may lie inside an entry: the whole entry is taken."""
        self._wanted_within = True

    def _convert(self, placed: Placed) -> Buffer:
        found = self._transcode(placed)
        return found if isinstance(found, bytes) else b"".join(found)

    def _transcode(self, placed: Placed) -> bytes | list[bytes]:
        info, entry = placed.info, placed.entry
        self.numbering.readable(placed)
        payload: Buffer = entry.payload
        max_bytes = transcode.MAX_UNCOMPRESSED
        if info.num_chunks > 1:
            max_bytes = self._max_message_bytes
            whole = self._chunks.add(info, entry.payload)
            if whole is None:
                return transcode.empty_batch(placed.base, placed.last)
            payload = whole
        if info.raw and self._unfit is not None:
            self._unfit.raw()
        time = self.numbering.append_time(placed) if self.append_time else None
        return transcode.to_batch(
            entry.metadata,
            payload,
            base_offset=placed.base,
            log_append_time=time,
            max_bytes=max_bytes,
            on_keyless=self._on_keyless,
        )


class CatchUp:
    """One reader. `start` it at or before `offset`; `take` goes on from there."""

    def __init__(self, converter: Converter, budget: int, share: Share, explained: Container[int] = ()) -> None:
        """`explained`: last offsets of gaps from which nothing can be read."""
        self.converter = converter
        self._explained = explained
        self.share = share
        self.busy = False
        self.far_back = False
        """It began well before what was wanted, for the first chunks of that."""
        self.used = 0.0
        """Loop time of the last use."""
        self.worked = False
        """Entries came."""
        self.taken = False
        """Batches were taken from it."""
        self.took_records = False
        """Records were in what was taken last."""
        self.stream: Stream | None = None
        self._budget = budget
        self._batches: deque[Batch] = deque()
        self._at = converter.next_offset or 0
        """Where `take` goes on; the next batch may lie behind a gap."""
        self._size = 0
        self._error: KopError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def next_offset(self) -> int:
        """Where `take` would begin."""
        if self._batches:
            return self._batches[0].base
        return self.converter.next_offset or 0

    @property
    def ready(self) -> bool:
        """There is something to take."""
        return bool(self._batches)

    @property
    def gap(self) -> Batch | None:
        """What comes next, where that stands for offsets of which nothing came and nothing explains that."""
        if not self._batches or not self._batches[0].missing or (self.stream is not None and self.stream.compacted):
            return None
        return None if self._batches[0].last in self._explained else self._batches[0]

    def gaps(self, most: int) -> list[Gap]:
        """Gaps in what was read ahead, the first ones."""
        return list(islice((batch.gap for batch in self._batches if batch.gap is not None), most))

    @property
    def failed(self) -> bool:
        """It will not go on."""
        return self._error is not None

    def holds(self, offset: int) -> bool:
        """True where `take` can begin at `offset` with no detour."""
        if self._batches:
            return min(self._at, self._batches[0].base) <= offset <= self._batches[0].last
        return self.converter.next_offset == offset

    def on_entry(self, placed: Placed) -> None:
        """The stream's callback."""
        self.worked = True
        for batch in self.converter.feed(placed):
            self._batches.append(batch)
            self._size += len(batch.data)
        self.share.holds(self._size + self.converter.waiting_bytes)
        if self._size > self._budget and self.stream is not None:
            self.stream.pause()
        if self._batches:
            self._wake()

    def on_lost(self, error: PulsarError | KopError) -> None:
        """The stream's other callback."""
        self._error = error if isinstance(error, KopError) else kafka_error(error, "cannot read")
        self._wake()

    async def wait(self, seconds: float) -> None:
        """Until there is a batch; REQUEST_TIMED_OUT where none comes."""
        if self._batches:
            return
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._waiter
        except TimeoutError:
            raise BackendError(
                f"Pulsar sent nothing for {seconds:.0f} s where records are", ErrorCode.REQUEST_TIMED_OUT
            ) from None
        finally:
            self._waiter = None
        if not self._batches and self._error is not None:
            raise self._error

    async def fill(self, end: int) -> None:
        """Where compaction took the last entries before offset `end`, nothing comes: an empty batch stands for them."""
        if self.stream is None or not await self.stream.exhausted():
            return
        begin = self.converter.next_offset
        if not self._batches and begin is not None and begin < end:
            self._batches.append(Batch(begin, end - 1, self.converter.numbering.end_filler(begin, end - 1)))
            self.converter.next_offset = end

    @property
    def next_is_sure(self) -> bool:
        """There is something to take, and no gap that nothing explains comes first."""
        return bool(self._batches) and self.gap is None

    def take(self, end: int, max_bytes: int, min_one: bool) -> ReadResult:
        """Batches that lie before offset `end`; they are gone from here. `took_records` tells whether any has one."""
        found: list[Buffer] = []
        size = 0
        self.taken = True
        self.took_records = False
        while self._batches and not (found and self.gap):  # whoever reads on asks why there is a gap
            batch = self._batches[0]
            if batch.error is not None:
                if found:
                    break
                raise batch.error
            if batch.last >= end or (size + len(batch.data) > max_bytes and (found or not min_one)):
                break
            self._batches.popleft()
            self._at = batch.last + 1
            if batch.data:  # a gap of packed offsets has none
                found.append(batch.data)
                self.took_records = self.took_records or read_header(batch.data).record_count > 0
            size += len(batch.data)
        self._size -= size
        self.share.holds(self._size)
        if self._size <= self._budget // 2 and self.stream is not None:
            self.stream.go_on()
        return ReadResult(found, size)

    async def close(self) -> None:
        """Let go of the reader."""
        self._error = self._error or BackendError("the reader was closed")
        self.share.end()
        self._wake()
        if self.stream is not None:
            await self.stream.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
