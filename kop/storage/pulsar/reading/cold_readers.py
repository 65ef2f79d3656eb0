"""The readers of one partition behind its tail: one for each place where somebody reads on.

Owns: which reader serves an offset, how many there are, when an idle one goes.
Must not know: the tail, the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kop.errors import BackendError, ErrorCode, PeerError
from kop.storage.base import ReadResult
from kop.storage.pulsar.reading.batches import CatchUp, Converter
from kop.storage.pulsar.reading.budget import Share
from kop.storage.pulsar.reading.gaps import MOST_AT_ONCE
from kop.storage.pulsar.reading.stream import Stream

if TYPE_CHECKING:
    from kop.storage.pulsar.partition.log import PulsarLog

_BUDGET: Final = 4 << 20
"""Bytes that a reader reads ahead."""
_SOON: Final = 0.5
"""Seconds after which somebody looks why nothing comes."""
_SECONDS: Final = 20.0
"""How long the first entry may take."""
_MOST: Final = 8
_MOST_MESSAGE: Final = 64 << 20
"""Bytes of the largest chunked message that is put together. Clients take no answer that is much larger."""
_MOST_CHUNKS: Final = 200
"""Entries from the last chunk of a message back to its first, with those of others between them."""


class Readers:
    """Readers of one log."""

    def __init__(self, log: PulsarLog) -> None:
        self._log = log
        self._readers: list[CatchUp] = []

    async def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Batches from the one that holds `offset` on. OFFSET_OUT_OF_RANGE where retention took it."""
        reader = await self._at(offset)
        try:
            if not await self._comes_soon(reader, offset):
                self._drop(reader)
                reader = await self._new(offset)
                await reader.wait(_SECONDS)
            if offset in reader.converter.torn and not reader.far_back:
                self._drop(reader)
                reader = await self._new(offset, back=_MOST_CHUNKS)
                await reader.wait(_SECONDS)
            if reader.next_offset <= offset and not reader.holds(offset) and not reader.failed:
                raise BackendError(f"the reader of {self._log.title} lost its place")
            reader = await self._without_doubt(reader, offset)
            found = await self._with_records(reader, max_bytes, min_one)
        except BaseException:
            self._drop(reader)
            raise
        finally:
            reader.busy = False
            reader.used = self._log.loop.time()
            reader.share.idle()
        return found

    async def _with_records(self, reader: CatchUp, max_bytes: int, min_one: bool) -> ReadResult:
        """What the reader has, together with what follows where that has no record, as the parts of a chunked message.

        librdkafka takes an answer without any record for one that did not fit: it asks for twice as much each time, and
        gives up at 1 GiB.
        """
        taken = reader.take(self._log.high_watermark, max_bytes, min_one)
        buffers, size = list(taken.buffers), taken.size
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
        return ReadResult(buffers, size)

    async def _without_doubt(self, reader: CatchUp, offset: int) -> CatchUp:
        """The reader itself, or another one where it passed over what is there.

        Pulsar moves the cursors of readers on as those of subscriptions: when messages expire (message TTL), by an
        operator's `expire-messages`. What a new reader does not get either is really missing: markers of transactions,
        entries that failed when they were written. Transactions are the most frequent reason and asked about first.
        """
        gap = reader.gap
        if gap is None or not gap.base <= offset <= gap.last:
            return reader
        gaps = self._log.gaps
        await gaps.ask(reader.gaps(MOST_AT_ONCE))  # one answer for all that was read ahead
        if gap.last in gaps:
            return reader
        await self._still_kept(offset)
        if reader.taken:
            self._drop(reader)
            reader = await self._new(offset)
            await reader.wait(_SECONDS)
        if reader.gap is None or reader.gap.last < gap.last:
            engine = self._log.engine
            engine.count("readers_moved_past_entries")
            engine.faults.tell(
                ("moved", self._log.title),
                f"Pulsar moved a reader of {self._log.title} past entries that are there, now they are read again: see "
                "message TTL (pulsar-admin topics get-message-ttl --applied); Kafka topics keep records by retention",
            )
        else:
            gaps.add(gap.last)
        return reader

    async def _still_kept(self, offset: int) -> None:
        """OFFSET_OUT_OF_RANGE where retention has taken the offset meanwhile."""
        await self._log.ask_start()
        start = self._log.log_start_offset
        if offset < start and not self._log.numbering.reads_on(offset, start):
            text = f"retention took offset {offset} of {self._log.title}"
            raise PeerError(text, ErrorCode.OFFSET_OUT_OF_RANGE)

    async def _comes_soon(self, reader: CatchUp, offset: int) -> bool:
        """Wait for the next batch. Where none comes there may be a reason: compaction or retention took what was.

        False for a reader that worked before and is silent: truncating a topic moves the cursors of all its readers.
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
        """Let those go that nobody used for a while."""
        for reader in tuple(self._readers):
            if not reader.busy and now - reader.used > seconds:
                self._drop(reader)

    def drop_all(self) -> None:
        """Let all go; who waits in one is told."""
        for reader in tuple(self._readers):
            self._drop(reader)

    async def close(self) -> None:
        """As `drop_all`, to the end."""
        readers, self._readers = self._readers, []
        for reader in readers:
            await reader.close()

    async def _at(self, offset: int) -> CatchUp:
        """One that stands at `offset`, or a new one."""
        for reader in self._readers:
            if not reader.busy and not reader.failed and reader.holds(offset):
                reader.busy = True
                reader.share.busy()
                return reader
        return await self._new(offset)

    async def _new(self, offset: int, *, back: int = 0) -> CatchUp:
        log = self._log
        share = await log.engine.read_ahead.share(_BUDGET + log.client.max_message_size, lambda: self._drop(reader))
        try:
            reader = await self._open(offset, share, back)
        except BaseException:
            share.end()
            raise
        return reader

    async def _open(self, offset: int, share: Share, back: int) -> CatchUp:
        log = self._log
        position = await log.numbering.locate(log, offset, back)
        append_time = log.policy.log_append_time
        converter = Converter(
            log.title,
            offset,
            log.numbering,
            append_time=append_time,
            count=log.engine.count,
            max_message_bytes=min(log.policy.max_uncompressed_bytes, _MOST_MESSAGE),
        )
        converter.start_within()
        converter.looks_back = not back
        reader = CatchUp(converter, _BUDGET, share, log.gaps)
        reader.busy = True
        reader.far_back = back > 0
        reader.used = log.loop.time()
        idle = sorted((one for one in self._readers if not one.busy), key=lambda one: one.used)
        for one in idle[: max(0, len(self._readers) - _MOST + 1)]:
            self._drop(one)
        self._readers.append(reader)
        try:
            reader.stream = Stream(reader.on_entry, reader.on_lost, log.numbering.place)
            await reader.stream.start(
                log.client,
                log.partition_name,
                position,
                guard=log.guard,
                compacted=log.policy.compact,
                budget=_BUDGET,
            )
        except BaseException:
            self._drop(reader)
            raise
        return reader

    def _drop(self, reader: CatchUp) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        reader.share.end()
        self._log.spawn(reader.close())
