"""The readers of one partition behind its tail: one for each place in the log where somebody goes on reading.

Owns: which reader serves an offset, how many there are, when an idle one goes; the batches that each has read ahead,
and those that it handed out a moment ago.
Must not know: the tail, the cache.

Those who read the same place at the same time share one reader, whichever of them comes first: the others wait for it,
and get the same batches out of the window that it keeps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import PulsarError, Received
from kop.read_budget import BudgetShare, ReadBudget
from kop.records.batch import read_header
from kop.records.entry_places import PlacedEntry
from kop.records.entry_schemas import SchemaRun, add_run
from kop.storage.base import Buffer, ReadResult
from kop.storage.pulsar.faults import Fault, kafka_error
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.reading.batches import Batch, Converter
from kop.storage.pulsar.reading.search import PartitionSearch
from kop.storage.pulsar.reading.source import LogBounds, PartitionSource
from kop.storage.pulsar.reading.stream import FIRST_PERMITS, Stream

_SOON: Final = 0.5
"""The seconds without an entry after which the reason is looked for."""
_SECONDS: Final = 20.0
"""The seconds that the first entry may take."""
_MOST: Final = 8
_BEYOND_ALL: Final = 2**63 - 1
"""An offset that is beyond every log."""
_MOST_MESSAGE: Final = 64 << 20
"""The bytes of the largest chunked message that is put together. Clients take no answer that is much larger."""
_MOST_CHUNKS: Final = 200
"""The number of entries from the last chunk of a message back to its first, with those of others between them, that are
looked at.
"""


class ColdReader:
    """A reader of one place of a log: a stream, and a window of the batches of the entries that it read. `take` hands
    them out in order.

    Batches that were handed out stay in the window for a while, for others who read the same place.
    """

    def __init__(self, converter: Converter, share: BudgetShare) -> None:
        self.converter = converter
        self.share = share
        self.wanted = converter.next_offset or 0
        """The offset that it was opened for, or that is read from it now."""
        self.far_back = False
        """True if the reader began well before the wanted offset, to read the first chunks of its message."""
        self.used = 0.0
        """The loop's time of the last use."""
        self.worked = False
        """True if the reader has read an entry."""
        self.taken = False
        """True if batches were taken from the reader."""
        self.took_records = False
        """True if the batches that were taken last held records."""
        self.stream: Stream | None = None
        self._free = asyncio.Event()
        """An event that is set while nobody reads from this reader."""
        self._behind: deque[Batch] = deque()
        """The batches of the window that were handed out."""
        self._behind_size = 0
        self._batches: deque[Batch] = deque()
        """The batches of the window that come next."""
        self._size = 0
        self._begin = converter.next_offset or 0
        """The offset at which the window begins; the next batch may lie behind a gap."""
        self._end = _BEYOND_ALL
        """The log's end when batches were last taken."""
        self._sure_until = -1
        """The offset up to which gaps are known to hold no records."""
        self._error: KopError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """True while a read uses this reader."""
        return not self._free.is_set()

    def claim(self, offset: int) -> None:
        """Reserve the reader for one read, while no other uses it, and have `take` begin at `offset`, which it `holds`.
        It is not closed for lack of room until `release`.
        """
        self._free.clear()
        self.share.busy()
        self.wanted = offset
        while self._behind and self._behind[-1].last >= offset:
            batch = self._behind.pop()
            self._behind_size -= len(batch.data)
            self._batches.appendleft(batch)
            self._size += len(batch.data)
        while self._batches and self._batches[0].last < offset:
            self._pass()

    def release(self, now: float) -> None:
        """Let other reads use the reader, and let it be closed if its room is needed; `now` is the loop's time."""
        self.used = now
        self._free.set()
        self.share.idle()

    async def until_free(self) -> None:
        """Wait until no read uses the reader."""
        await self._free.wait()

    @property
    def next_offset(self) -> int:
        """The offset at which `take` would begin."""
        if self._batches:
            return self._batches[0].base
        return self.converter.next_offset or 0

    @property
    def ready(self) -> bool:
        """True if the window has a batch that was not handed out."""
        return bool(self._batches)

    @property
    def gap(self) -> Batch | None:
        """The next batch, if it stands for offsets of which nothing came for an unknown reason; else None."""
        if not self._batches or not self._batches[0].missing or (self.stream is not None and self.stream.compacted):
            return None
        return None if self._batches[0].last < self._sure_until else self._batches[0]

    async def was_moved(self) -> bool | None:
        """Return true if Pulsar moved this reader over entries in the `gap` that comes next; None if that cannot be
        known.

        If it did not, that one answer holds for all gaps in what was read ahead: none is a `gap` any more.
        """
        begin, until = self.gap, self.converter.next_offset
        if begin is None:
            return False
        if begin.gap is None or self.stream is None or until is None:
            return None
        mark_delete = None if begin.gap.has_no_entries else await self.stream.mark_delete_position()
        if begin.gap.passed_over(mark_delete):
            return None if mark_delete is None else True
        self._sure_until = begin.last + 1 if begin.gap.has_no_entries else until
        return False

    def trust(self) -> None:
        """Count the `gap` that comes next as one without records from now on."""
        if self.gap is not None:
            self._sure_until = self.gap.last + 1

    @property
    def failed(self) -> bool:
        """True if the stream has ended."""
        return self._error is not None

    def holds(self, offset: int) -> bool:
        """Return true if `take` can begin at `offset`, with a batch of the window or with the next one from the
        stream.
        """
        if self.converter.next_offset == offset:
            return True
        if not self._behind and not self._batches:
            return False
        first = self._behind[0] if self._behind else self._batches[0]
        last = self._batches[-1] if self._batches else self._behind[-1]
        return min(self._begin, first.base) <= offset <= last.last

    def on_entry(self, stored: EntryWithOffsets) -> None:
        """Put the batches of an entry of the stream into the window, and wake the read that waits for them. The stream
        pauses if the window is full.
        """
        self._hold(self.converter.feed(stored))

    def on_many(self, received: Sequence[Received], at: int) -> tuple[int, int, int]:
        """Put the batches of several usual entries of the stream, from place `at` on, into the window at once; return
        the numbers of entries that were taken, of their messages, and of bytes of their payload.
        """
        batches, messages, size = self.converter.feed_usual(received, at)
        if batches:
            self._hold(batches)
        return len(batches), messages, size

    def _hold(self, batches: list[Batch]) -> None:
        self.worked = True
        for batch in batches:
            self._batches.append(batch)
            self._size += len(batch.data)
        if self._size > self.share.ahead and self.stream is not None:
            self.stream.pause()
        self._count()
        if self._waiter is not None and self._batches:
            self._wake()

    @property
    def usual_size(self) -> int:
        """The average bytes of a batch in the window; 0 if it is empty."""
        return (self._size + self._behind_size) // max(len(self._batches) + len(self._behind), 1)

    def _count(self) -> None:
        """Tell the read budget the bytes that this reader holds, and those that it has asked for and not got."""
        ended = (self.converter.next_offset or 0) >= self._end
        due = 0 if self.stream is None or ended else self.stream.due
        self.share.holds(self._size + self._behind_size + self.converter.waiting_bytes + due)

    def _pass(self) -> Batch:
        """Move the next batch to the part of the window that was handed out, and return it."""
        batch = self._batches.popleft()
        self._size -= len(batch.data)
        self._behind.append(batch)
        self._behind_size += len(batch.data)
        return batch

    def on_lost(self, error: PulsarError | KopError) -> None:
        """Keep the error with which the stream has ended, for reads that wait."""
        self._error = error if isinstance(error, KopError) else kafka_error(error, "cannot read")
        self._wake()

    async def wait(self, seconds: float) -> None:
        """Wait until there is a batch to take. REQUEST_TIMED_OUT if none comes within `seconds`; the stream's error if
        it has ended.
        """
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
                f"Pulsar sent nothing for {seconds:.0f} s to a reader that is not at the end of its log",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None
        finally:
            self._waiter = None
        if not self._batches and self._error is not None:
            raise self._error

    async def fill(self, end: int) -> None:
        """Add an empty batch up to offset `end`, if Pulsar has no more entries and none is to be taken: compaction
        removed the last ones. PulsarError if Pulsar does not tell.
        """
        if self.stream is None or not await self.stream.exhausted():
            return
        begin = self.converter.next_offset
        if not self._batches and begin is not None and begin < end:
            self._batches.append(Batch(begin, end - 1, self.converter.mapping.end_filler(begin, end - 1)))
            self.converter.next_offset = end

    @property
    def next_is_sure(self) -> bool:
        """True if there is a batch to take, and it is no gap of unknown reason."""
        return bool(self._batches) and self.gap is None

    @property
    def next_is_whole(self) -> bool:
        """True if the next one is a batch, and neither an error nor a gap."""
        return bool(self._batches) and self._batches[0].error is None and not self._batches[0].missing

    def take(self, end: int, max_bytes: int, min_one: bool) -> ReadResult:
        """Return the batches before offset `end`, up to `max_bytes`, and go on behind them; with `min_one` the first
        one whatever its size. Raises the error that stands for the first one, if it is unreadable.

        `took_records` tells afterwards if any holds a record. They stay in the window for others, as long as there is
        room. The stream goes on if the window is half empty.
        """
        batches: list[Buffer] = []
        places: list[PlacedEntry] = []
        schemas: list[SchemaRun] = []
        size = 0
        self.taken = True
        self.took_records = False
        self._end = end
        while self._batches and not (batches and self.gap):  # whoever reads on asks why there is a gap
            batch = self._batches[0]
            if batch.error is not None:
                if batches:
                    break
                raise batch.error
            if batch.last >= end or (size + len(batch.data) > max_bytes and (batches or not min_one)):
                break
            self._pass()
            if batch.data:  # a gap of packed offsets has none
                batches.append(batch.data)
                self.took_records = self.took_records or read_header(batch.data).record_count > 0
                if batch.place is not None:
                    places.append(batch.place)
                    add_run(schemas, batch.base, batch.schema)
            size += len(batch.data)
        ahead = self.share.ahead
        while self._behind_size > ahead:
            oldest = self._behind.popleft()
            self._behind_size -= len(oldest.data)
            self._begin = oldest.last + 1
        if self.stream is not None:
            self.stream.budget = ahead
            if self._size <= ahead // 2:
                self.stream.go_on()
        self._count()
        return ReadResult(batches, size, tuple(places), tuple(schemas) if self.converter.tells_places else None)

    def drop(self) -> None:
        """Drop all batches and give back the room in the read budget; the reader is of no use any more, and `close` has
        yet to close its stream. A read that waits for a batch gets the stream's error, or else a BackendError.
        """
        self._error = self._error or BackendError("the reader was closed")
        self._batches.clear()
        self._behind.clear()
        self._size = self._behind_size = 0
        self.share.end()
        self._free.set()
        self._wake()

    async def close(self) -> None:
        """Close the stream, and drop all batches."""
        self.drop()
        if self.stream is not None:
            await self.stream.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ColdReaders:
    """The cold readers of one partition: one for each place behind the tail where somebody reads on.

    `ask_start()` brings the log start up to date. `budget` bounds what all readers of this broker hold.
    """

    def __init__(
        self,
        source: PartitionSource,
        search: PartitionSearch,
        log: LogBounds,
        budget: ReadBudget,
        ask_start: Callable[[], Awaitable[None]],
    ) -> None:
        self._source = source
        self._search = search
        self._log = log
        self._budget = budget
        self._ask_start = ask_start
        self._readers: list[ColdReader] = []
        self._usual_size = 0
        """The average bytes of a batch in the reader that was used last; 0 before the first."""

    def at_hand(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        """Return the batches that a reader at `offset` has read ahead, up to `max_bytes` (`min_one`: the first one
        whatever its size); None if `read` has to be called.

        That is so, too, if the next batch is in doubt, an error, or without records.
        """
        for reader in self._readers:
            if reader.busy or reader.failed or not reader.holds(offset):
                continue
            reader.claim(offset)
            try:
                if not reader.next_is_whole or offset in reader.converter.torn:
                    return None
                result = reader.take(self._log.high_watermark, max_bytes, min_one)
            finally:
                reader.release(self._source.context.loop.time())
            fits_not = not result.size and not min_one
            return result if reader.took_records or fits_not else None
        return None

    async def read(self, offset: int, max_bytes: int, *, min_one: bool, places: bool = False) -> ReadResult:
        """Return batches from the one that holds `offset` on, up to `max_bytes`; with `min_one` the first one whatever
        its size, with `places` also where Pulsar keeps them. Reads of one place at the same time follow each other.

        OFFSET_OUT_OF_RANGE if retention took it, REQUEST_TIMED_OUT if Pulsar sends nothing for 20 seconds; other errors
        are KopErrors, or PulsarErrors if Pulsar refuses a reader.
        """
        reader = await self._at(offset, places)
        try:
            if not await self._comes_soon(reader, offset):
                self._drop(reader)
                reader = await self._new(offset, places)
                await reader.wait(_SECONDS)
            if offset in reader.converter.torn and not reader.far_back:
                self._drop(reader)
                reader = await self._new(offset, places, back=_MOST_CHUNKS)
                await reader.wait(_SECONDS)
            if reader.next_offset <= offset and not reader.holds(offset) and not reader.failed:
                raise BackendError(
                    f"the reader of {self._source.title} is not at the offset that it was opened at: clients try again"
                )
            reader = await self._without_doubt(reader, offset)
            result = await self._with_records(reader, max_bytes, min_one)
        except Exception:
            self._drop(reader)
            raise
        finally:  # also where this read is cancelled: others may wait for the reader
            self._usual_size = reader.usual_size or self._usual_size
            reader.release(self._source.context.loop.time())
        return result

    async def _with_records(self, reader: ColdReader, max_bytes: int, min_one: bool) -> ReadResult:
        """Return the batches of the reader, and if these have no record, such as parts of a chunked message, those that
        follow.

        librdkafka takes an answer without any record for one that did not fit: it asks for twice as much each time, and
        gives up at 1 GiB.
        """
        taken = reader.take(self._log.high_watermark, max_bytes, min_one)
        buffers, size, places = list(taken.buffers), taken.size, list(taken.places)
        schemas = None if taken.schemas is None else list(taken.schemas)
        while buffers and not reader.took_records and reader.next_offset < self._log.high_watermark:
            if not reader.next_is_sure:
                try:
                    await reader.wait(_SOON)
                except BackendError:
                    break
                if not reader.next_is_sure:
                    break
            more = reader.take(self._log.high_watermark, max_bytes, True)
            if not more.buffers:
                break
            buffers += more.buffers
            size += more.size
            places += more.places
            if schemas is not None:
                for run in more.schemas or ():
                    add_run(schemas, *run)
        return ReadResult(buffers, size, tuple(places), schemas)

    async def _without_doubt(self, reader: ColdReader, offset: int) -> ColdReader:
        """Return the reader, or a new one if Pulsar may have moved it past entries that exist between the batch before
        `offset` and the next that it brought. KopError if that cannot be found out.

        Entries that a new reader, which was not moved, does not get either are really missing.
        """
        gap = reader.gap
        if gap is None or not gap.base <= offset <= gap.last:
            return reader
        moved = await reader.was_moved()
        if moved is False:
            return reader
        await self._still_kept(offset)
        if moved is None and not reader.taken and not reader.failed:
            reader.trust()
            return reader
        self._drop(reader)
        reader = await self._new(offset, reader.converter.tells_places)
        await reader.wait(_SECONDS)
        if reader.gap is None or reader.gap.last < gap.last:
            faults = self._source.context.faults
            faults.count(Fault.ENTRIES_PASSED_OVER_READER)
            faults.tell(
                ("moved", self._source.title),
                f"Pulsar moved a reader of {self._source.title} past entries that are there, now they are read again: "
                "see message TTL (pulsar-admin topics get-message-ttl --applied); Kafka topics keep records by "
                "retention",
            )
        elif await reader.was_moved():
            text = f"Pulsar moves readers of {self._source.title} past entries as soon as they begin"
            raise BackendError(text, ErrorCode.REQUEST_TIMED_OUT)
        elif reader.failed:
            text = f"a reader of {self._source.title} ended before it was known why entries are missing"
            raise BackendError(text, ErrorCode.REQUEST_TIMED_OUT)
        else:
            reader.trust()
        return reader

    async def _still_kept(self, offset: int) -> None:
        """Bring the log start up to date, and raise OFFSET_OUT_OF_RANGE if retention has taken the offset meanwhile.
        KopError if Pulsar does not tell.
        """
        await self._ask_start()
        start = self._log.log_start_offset
        if offset < start and not self._source.mapping.reads_on(offset, start):
            text = f"retention took offset {offset} of {self._source.title}"
            raise PeerError(text, ErrorCode.OFFSET_OUT_OF_RANGE)

    async def _comes_soon(self, reader: ColdReader, offset: int) -> bool:
        """Wait for the next batch; return true if there is one. If none comes within half a second there may be a
        reason, which is looked for: compaction (then an empty batch is added) or retention (OFFSET_OUT_OF_RANGE) took
        the entries.

        False for a reader that worked before and is silent: truncating a topic moves the cursors of all its readers. A
        new one has 20 seconds.
        """
        end, worked = self._log.high_watermark, reader.worked
        try:
            await reader.wait(_SOON)
            return True
        except BackendError as error:
            if error.code != ErrorCode.REQUEST_TIMED_OUT:
                raise
        if self._log.policy.compact:
            await reader.fill(end)
        else:
            await self._still_kept(offset)
        if not worked:
            await reader.wait(_SECONDS)
        return reader.ready

    def close_idle(self, now: float, seconds: float) -> None:
        """Close the readers that no read has used for `seconds`; `now` is the loop's time."""
        for reader in tuple(self._readers):
            if not reader.busy and now - reader.used > seconds:
                self._drop(reader)

    def drop_all(self) -> None:
        """Close all readers. Reads that wait in one of them fail."""
        for reader in tuple(self._readers):
            self._drop(reader)

    async def close(self) -> None:
        """Close all readers, and wait until they are closed."""
        readers, self._readers = self._readers, []
        for reader in readers:
            await reader.close()

    async def _at(self, offset: int, places: bool) -> ColdReader:
        """Return a reader at `offset`, reserved for this read: a free one that holds it, one that is busy there once it
        is free, or a new one. It tells `places` if they are wanted.
        """
        while True:
            at_work = None
            for reader in self._readers:
                if reader.failed or (places and not reader.converter.tells_places):
                    continue
                if not reader.busy:
                    if reader.holds(offset):
                        reader.claim(offset)
                        return reader
                elif reader.wanted == offset:
                    at_work = reader
            if at_work is None:
                return await self._new(offset, places)
            await at_work.until_free()

    async def _new(self, offset: int, places: bool, *, back: int = 0) -> ColdReader:
        source, policy = self._source, self._log.policy
        converter = Converter(
            source.title,
            offset,
            source.mapping,
            append_time=policy.log_append_time,
            count=source.context.faults.count,
            max_message_bytes=min(policy.max_uncompressed_bytes, _MOST_MESSAGE),
        )
        converter.start_within()
        converter.looks_back = not back
        converter.tells_places = places
        share = BudgetShare(self._budget, lambda: self._drop(reader))
        reader = ColdReader(converter, share)
        reader.far_back = back > 0
        reader.used = source.context.loop.time()
        idle = sorted((other for other in self._readers if not other.busy), key=lambda other: other.used)
        for other in idle[: max(0, len(self._readers) - _MOST + 1)]:
            self._drop(other)
        self._readers.append(reader)
        try:
            position = await source.mapping.locate(self._search, offset, back)
            reader.stream = Stream(source, reader.on_entry, reader.on_lost, reader.on_many)
            ahead = self._budget.ahead
            await reader.stream.start(position, compacted=policy.compact, budget=ahead, permits=0)
            # Not before: what waits for a Pulsar broker without an answer would keep the readers of others waiting.
            await share.take(ahead + source.context.client.max_message_size)
            reader.stream.begin(min(FIRST_PERMITS, max(ahead // max(self._usual_size, 1), 1)))
        except BaseException:
            self._drop(reader)
            raise
        return reader

    def _drop(self, reader: ColdReader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        reader.drop()
        self._source.context.spawn(reader.close())
