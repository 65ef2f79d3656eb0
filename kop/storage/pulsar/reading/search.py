"""Searches in a partition on Pulsar: for its ends, an offset, a time.

Owns: the probes, the sparse index of entries that they met, and when a search reads on instead of probing.
Must not know: the tail, appends.

A probe asks Pulsar's REST interface where an entry lies. Where that does not tell, a reader that begins at the entry
does; a dispatch rate holds readers back, and not REST.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple, Protocol

from kop.errors import BackendError, ErrorCode, KopError
from kop.pulsar_client import EARLIEST, Position, PulsarError
from kop.pulsar_client.errors import NOT_THERE, Ignoring
from kop.records.batch import BatchHeader, first_at_or_after, iter_batches, max_timestamp_record
from kop.records.validation import check_records
from kop.storage.base import Buffer, ReadResult, TimestampOffset
from kop.storage.pulsar.faults import Refused
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.offsets.sparse_index import Ledgers, SparseIndex, ledgers_with_entries, next_probe
from kop.storage.pulsar.reading.batches import UnreadableEntryError
from kop.storage.pulsar.reading.last_entry import LastEntry
from kop.storage.pulsar.reading.source import LogBounds, PartitionSource, stats_position
from kop.storage.pulsar.reading.stream import Stream

_PROBE_SECONDS: Final = 10.0
_REST_SECONDS: Final = 3.0
"""The seconds that REST may take to tell of one entry before a reader is opened for it."""
_READ_BYTES: Final = 1 << 20
_MOST_INFLATED: Final = 256 << 20
_FEW_OFFSETS: Final = 64
_MOST_HIDDEN: Final = 64
"""The number of hidden entries at the end of a log that are asked for one by one."""


class SearchedLog(LogBounds, Protocol):
    """The log that is searched, in the part that searches use."""

    async def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Return batches of the log from the one that holds `offset` on, up to `max_bytes`; with `min_one` the first
        one whatever its size. Errors are KopErrors.
        """


class ProbedEntry(NamedTuple):
    """An entry, and the offsets of its first and its last message; -1 if it has none."""

    position: Position
    base: int
    last: int
    hidden: bool = False
    """True if readers do not get the entry: it is a marker, a fence, or of an aborted transaction."""

    @property
    def has_offsets(self) -> bool:
        """True if the entry has offsets; false if the Pulsar broker gave it no index."""
        return self.base >= 0


class PartitionEnds(NamedTuple):
    """The two ends of a partition: offsets, entries, size."""

    start: int
    """The first offset that can be read."""
    end: int
    """The offset after the last message that there ever was."""
    first: ProbedEntry | None
    """The oldest entry in the log that has offsets, even if readers do not get it; None if there is none."""
    last: ProbedEntry | None
    """The newest entry that readers may have; None if there is none."""
    older: bool
    """True if there are entries without offsets, from before the Pulsar brokers gave each an index."""
    size: int
    """The bytes that Pulsar has of the partition."""
    end_position: Position
    """The position of the last entry, which may have no offset. If there is none, the entry is -1, of the ledger that
    takes the next one.
    """


class PartitionSearch:
    """The searches in one partition: for its ends, for an offset, for a time."""

    def __init__(self, source: PartitionSource, log: SearchedLog) -> None:
        self._source = source
        self._log = log
        self.index = SparseIndex()
        """The entries that were seen, with their offsets."""
        self.begin = EARLIEST
        """The position at which readers from the log start begin: behind entries that have no offsets, if there are
        some.
        """
        self.first_ledger = -1
        """The ledger in which the log began when that was last asked; -1 if it is not known."""
        self._last_entry = LastEntry(source)
        self._largest_timestamp: tuple[int, TimestampOffset | None] = 0, None
        """The record with the largest timestamp among those before an offset, as far as look-ups came; with that
        offset.
        """

    @property
    def title(self) -> str:
        """The partition as log lines name it."""
        return self._source.title

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log.log_start_offset

    async def ends(self) -> PartitionEnds:
        """Ask Pulsar for both ends of the partition, and return them. PulsarError or KopError if it does not tell."""
        # REST is asked whether there is an entry: docs/quirks.md, "A transaction buffer is recovered late, or not"
        stats = await self._source.internal_stats()
        oldest, newest = await self._oldest_and_newest(stats) if stats["numberOfEntries"] else (None, EARLIEST)
        first = oldest if oldest is None or oldest.has_offsets else await self._first_with_offsets(stats)
        older = oldest is not None and not oldest.has_offsets
        size = int(stats["totalSize"])
        last = first
        if first is not None and newest > first.position:
            last = await self._probe(newest, maybe_empty=False)
        if last is not None and last.hidden and newest.entry >= 0:
            newest = await self._before_hidden(newest, Position(-1, -1) if oldest is None else oldest.position)
            last = None if newest.entry < 0 else await self._probe(newest, maybe_empty=False)
        if oldest is not None and newest.entry < 0 and first is not None:
            # All is of transactions that are open or were aborted: the tail reads on from the first entry.
            end = first.base
            return PartitionEnds(await self._start(first, end), end, first, None, older, size, Position(-1, -1))
        if last is not None and not last.has_offsets:
            last = await self._last_with_offsets(stats)
        end = await self._source.mapping.emptied_end(self) if last is None else last.last + 1
        if oldest is not None:
            end_position = max(newest, oldest.position)
        else:
            confirmed = stats_position(stats["lastConfirmedEntry"])
            end_position = confirmed if confirmed.entry < 0 else Position(-1, -1)  # else it was emptied just now
        return PartitionEnds(await self._start(first, end), end, first, last, older, size, end_position)

    async def _before_hidden(self, last: Position, oldest: Position) -> Position:
        """Return the position of the last entry before the hidden ones at the end of a log, of which `last` is the
        last: a reader at its end waits for nothing that never comes.

        A broker names such a one as its last if it came after the end of its transaction, which was aborted. Before it
        lie fences and markers, which are hidden, too. The entry is -1 if all are, down to the `oldest`.
        """
        for entry in range(last.entry - 1, max(last.entry - _MOST_HIDDEN, 0) - 1, -1):
            probed = await self._asked(Position(last.ledger, entry))
            if probed is None:
                break
            if not probed.hidden:
                return probed.position
            if probed.position == oldest:
                return Position(-1, -1)
        if last == oldest:
            return Position(-1, -1)
        return await self._last_entry.at_end_of_log() or last

    async def _has_index(self, ledger: int) -> bool:
        """Return true if the entries of a ledger have an index: a Pulsar broker begins to give it at a restart, which
        begins another ledger.
        """
        return (await self._source.context.admin.entry(self._source.partition_name, ledger, 0)).index is not None

    async def _first_with_offsets(self, stats: dict[str, Any]) -> ProbedEntry | None:
        """Return the oldest entry with offsets, if the oldest one of all has none; None if none has."""
        ledgers = [ledger for ledger, _ in ledgers_with_entries(stats)]
        if not ledgers:
            return None
        low, high = 0, len(ledgers) - 1
        if not await self._has_index(ledgers[high]):
            index = await self._source.context.admin.closed_index(self._source.partition_name)
            if index is None or index < 0:
                return None  # there never was one
        else:
            while high - low > 1:
                middle = (low + high) // 2
                if await self._has_index(ledgers[middle]):
                    high = middle
                else:
                    low = middle
            beginning = await self._probe(Position(ledgers[high], 0), maybe_empty=False)
            if beginning is not None and beginning.base == 0:
                return beginning
        # The Pulsar brokers gave an index before that and were told not to in between. No entry with an offset may be
        # passed over.
        for ledger in ledgers:
            if await self._has_index(ledger):
                return await self._probe(Position(ledger, 0), maybe_empty=False)
        return None

    async def _last_with_offsets(self, stats: dict[str, Any]) -> ProbedEntry | None:
        """Return the newest entry with offsets, if the newest one of all has none; None if none has."""
        for ledger, entries in reversed(ledgers_with_entries(stats)):
            if await self._has_index(ledger):
                return await self._probe(Position(ledger, entries - 1), maybe_empty=False)
        return None

    async def _oldest_and_newest(self, stats: dict[str, Any]) -> tuple[ProbedEntry | None, Position]:
        """Return the oldest entry, and the position of the newest that readers may have, with entry -1 if none is.

        None if the log was emptied just now. Only a reader tells the newest: REST names entries of open transactions.
        Only REST tells the oldest if readers do not get it: the log starts there all the same, so that it starts at one
        offset for all who ask, before and after the transaction ends.
        """
        stream, arrived = await self._open(EARLIEST)
        try:
            newest = await self._last_entry.position(stream)
            oldest = _oldest_position(stats)
            if arrived.done() and arrived.result().position == oldest:
                return arrived.result(), newest
            if (entry := await self._asked(oldest)) is not None:
                return entry, newest
            if newest.entry < 0 and not arrived.done():
                return None, newest
            first = await self._arrival(arrived, EARLIEST)
            return await self._asked(Position(first.position.ledger, 0)) or first, newest
        finally:
            await stream.close()

    async def end_by_index(self) -> int:
        """Return the log end of a partition without entries, by the index: messages that are gone have been counted,
        too.
        """
        index = await self._source.context.admin.closed_index(self._source.partition_name)
        return 0 if index is None else index + 1

    async def start(self) -> int:
        """Ask Pulsar for the first offset that can be read, and return it: the log start that is known, if retention
        has taken no ledger or Pulsar does not tell enough; if no entry is left, the high watermark before Pulsar was
        asked. PulsarError or KopError if it does not answer.
        """
        end = self._log.high_watermark  # what comes while Pulsar is asked lies behind it
        stats = await self._source.internal_stats()
        if any(each["ledgerId"] == self.first_ledger for each in stats["ledgers"]) and not self._log.policy.compact:
            return self._log.log_start_offset  # retention takes whole ledgers, the oldest first
        first = await self._asked(_oldest_position(stats))
        if first is None and stats["numberOfEntries"]:
            first = await self._probe(EARLIEST, maybe_empty=True)
            if first is not None and first.position.entry > 0:  # hidden entries may lie before it
                first = await self._asked(Position(first.position.ledger, 0))
                if first is None:
                    return self._log.log_start_offset  # REST does not tell: the next question may know more
        if first is not None and not first.has_offsets:
            first = await self._first_with_offsets(stats)
        self.first_ledger = -1 if first is None else first.position.ledger
        return await self._start(first, end)

    async def _start(self, first: ProbedEntry | None, end: int) -> int:
        """Return the first offset, by the log's oldest entry (`end` if there is none) or, of a compacted topic, by the
        compacted ledger, which has the newest record of each key even after retention.
        """
        start = end if first is None else first.base
        if start and self._log.policy.compact and not self._log.policy.delete:
            stats = await self._source.internal_stats()
            if stats.get("compactedLedger", {}).get("entries", 0) > 0:
                kept = await self._probe(EARLIEST, maybe_empty=False, compacted=True)
                assert kept is not None
                start = min(start, kept.base)
        return start

    async def _asked(self, position: Position) -> ProbedEntry | None:
        """Return the entry at `position` as REST tells it; None if REST tells nothing, or the entry has no offsets."""
        if position.entry < 0:
            return None
        source = self._source
        try:
            async with asyncio.timeout(_REST_SECONDS):
                head = await source.context.admin.entry_head(source.partition_name, *position)
            base = source.mapping.stored_base(position, head.index, head.num_messages)
        except (PulsarError, KopError, TimeoutError):
            return None
        return ProbedEntry(position, max(base, 0), base + head.num_messages - 1, head.hidden)

    async def at(self, position: Position) -> ProbedEntry:
        """Return the entry at `position`, which exists. KopError if it has no offsets, or Pulsar does not tell;
        PulsarError if Pulsar refuses to.
        """
        probed = await self._probe(position, maybe_empty=False)
        if probed is None or not probed.has_offsets or probed.position != position:
            text = f"Pulsar does not tell which offset entry {position.ledger}:{position.entry} of {self.title} has"
            raise BackendError(text)
        return probed

    async def _probe(self, position: Position, *, maybe_empty: bool, compacted: bool = False) -> ProbedEntry | None:
        """Return the entry at `position`; if it does not exist, or cannot be asked for, the next one that a reader
        gets, of the compacted log if `compacted`. With `maybe_empty` None if the log holds none; otherwise
        REQUEST_TIMED_OUT if none comes within 10 seconds.
        """
        if not compacted and (entry := await self._asked(position)) is not None:
            return entry
        stream, arrived = await self._open(position, compacted=compacted)
        try:
            if maybe_empty and not arrived.done() and (await stream.last_position()).entry < 0 and not arrived.done():
                return None
            return await self._arrival(arrived, position)
        finally:
            await stream.close()

    async def _arrival(self, arrived: asyncio.Future[ProbedEntry], position: Position) -> ProbedEntry:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return await arrived
        except TimeoutError:
            raise BackendError(
                f"Pulsar sent no entry of {self._source.title} from {position.ledger}:{position.entry} on",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None

    async def _open(self, position: Position, *, compacted: bool = False) -> tuple[Stream, asyncio.Future[ProbedEntry]]:
        arrived: asyncio.Future[ProbedEntry] = self._source.context.loop.create_future()

        def on_entry(entry: EntryWithOffsets) -> None:
            if not arrived.done():
                arrived.set_result(ProbedEntry(entry.position, entry.base, entry.last))
                stream.pause()

        def on_lost(error: Any) -> None:
            if not arrived.done():
                arrived.set_exception(error)

        stream = Stream(self._source, on_entry, on_lost)
        await stream.start(position, compacted=compacted, budget=1, permits=1)
        return stream, arrived

    async def nearest(self, offset: int) -> Position:
        """Return a position from which a reader meets the entry that holds `offset` after a few others at most."""
        ledgers: Ledgers | None = None
        halve = False
        while True:
            low, high = self.index.floor(offset), self.index.above(offset)
            if low is None:
                return self.begin
            if high is None or offset - low[0] < _FEW_OFFSETS:
                return low[1]
            if ledgers is None:
                ledgers = await self.ledgers()
            position = next_probe(low, high, offset, ledgers, halve=halve)
            if position is None:
                return low[1]
            probed = await self._probe(position, maybe_empty=False)
            assert probed is not None
            if not low[0] < probed.last < high[0]:
                # Nothing lies between, or nothing with an offset, or it was trimmed just now.
                return low[1]
            self.index.add(probed.last, probed.position)
            halve = not halve

    async def ledgers(self) -> Ledgers:
        """Return the entries of the partition as one line of ledgers, in which every position has a place."""
        stats = await self._source.internal_stats()
        return Ledgers([(ledger["ledgerId"], ledger["entries"]) for ledger in stats["ledgers"]])

    async def size(self) -> int:
        """Return the bytes that Pulsar has of the partition. KopError if it does not tell."""
        with self._source.context.faults.refusing(Refused.READS, f"cannot measure {self._source.title}"):
            stats = await self._source.internal_stats()
        return int(stats.get("totalSize", 0))

    async def _batches(self, offset: int) -> AsyncIterator[Buffer]:
        while offset < self._log.high_watermark:
            try:
                result = await self._log.read(offset, _READ_BYTES, min_one=True)
            except UnreadableEntryError as unreadable:  # it has no time that anybody could look for
                offset = unreadable.next_offset
                continue
            if not result.size:
                return
            for buffer in result.buffers:
                for start, header in iter_batches(buffer):
                    offset = header.next_offset
                    if header.record_count:
                        yield memoryview(buffer)[start : start + header.size]

    async def _from_time(self, timestamp: int, clock_ahead: int) -> int:
        """Return the offset of an entry before which no record has a timestamp of `timestamp` (ms) or more; the log's
        end if nothing was taken since then. PulsarError or KopError if Pulsar does not tell.

        No record is newer than the time at which the Pulsar broker took it, but for those of producers whose clocks run
        ahead; `clock_ahead` is the largest such lead in ms.
        """
        position = EARLIEST
        with Ignoring(*NOT_THERE):
            position = Position(
                *await self._source.context.admin.message_id_by_time(
                    self._source.partition_name, max(timestamp - clock_ahead, 0)
                )
            )
        if position.entry < 0:
            return self._log.log_start_offset
        if position > self._log.last_position:  # behind the last entry: nothing was taken since
            return self._log.high_watermark
        if position < self.begin:
            return self._log.log_start_offset
        probed = await self._probe(position, maybe_empty=True)
        if probed is None or not probed.has_offsets:
            return self._log.log_start_offset
        return max(min(probed.base, self._log.high_watermark), self._log.log_start_offset)

    async def by_time(self, timestamp: int, clock_ahead: int) -> TimestampOffset | None:
        """Return offset and timestamp of the first record at or after `timestamp` (ms), by the records' own timestamps;
        None if there is none. `clock_ahead` is the most ms by which a record is older in the log than by its timestamp.
        PulsarError or KopError if the log cannot be read.

        The search begins at the entries that the Pulsar broker took at that time: it takes a record when that was made,
        or later.
        """
        if self._log.log_start_offset >= self._log.high_watermark:
            return None
        from_offset = await self._from_time(timestamp, clock_ahead)
        async for batch in self._batches(from_offset):
            _, header = next(iter_batches(batch))
            if _largest_timestamp(batch, header) >= timestamp:
                record = first_at_or_after(
                    batch, header, timestamp, max_bytes=_MOST_INFLATED, from_offset=self._log.log_start_offset
                )
                if record is not None:
                    return TimestampOffset(*record)
        return None

    async def max_timestamp(self) -> TimestampOffset | None:
        """Return offset and timestamp of the first record with the largest timestamp; None if no record has one.

        All records have to be looked at. The progress is kept here, so that the next look-up goes on with one that its
        client gave up.
        """
        begin, best = self._largest_timestamp
        if best is not None and (self._log.policy.compact or best.offset < self._log.log_start_offset):
            begin, best = 0, None  # that record may be gone
        async for batch in self._batches(max(begin, self._log.log_start_offset)):
            _, header = next(iter_batches(batch))
            if best is None or _largest_timestamp(batch, header) > best.timestamp:
                record = max_timestamp_record(
                    batch, header, max_bytes=_MOST_INFLATED, from_offset=self._log.log_start_offset
                )
                if record is not None and record[1] >= 0 and (best is None or record[1] > best.timestamp):
                    best = TimestampOffset(*record)
            self._largest_timestamp = header.next_offset, best
        return best


def _largest_timestamp(batch: Buffer, header: BatchHeader) -> int:
    """Return the largest timestamp of a batch's records, in ms.

    The header of a compressed batch is not believed: one that is stored as it came may have a producer's mistake.
    """
    if not header.codec or header.log_append_time:
        return header.max_timestamp
    try:
        return check_records(batch, header, False, _MOST_INFLATED).latest
    except KopError:  # it has gaps, which Pulsar's compaction left: such a batch was made of an entry's messages
        return header.max_timestamp


def _oldest_position(stats: dict[str, Any]) -> Position:
    """Return the position of the oldest entry by Pulsar's internal statistics; its entry is -1 if there is none."""
    ledgers = ledgers_with_entries(stats)
    return Position(ledgers[0][0], 0) if ledgers else Position(-1, -1)
