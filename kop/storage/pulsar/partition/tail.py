"""The end of one partition's log: the stream of its new entries, and what of them is kept in memory.

Owns: the stream at the tail, the converter of what it brings, the cached batches, gaps at the tail that Pulsar is asked
about, entries that are worth a warning, waiting until the tail has come to the last entry, and when a tail that does
not come is given up.
Must not know: appends, readers, which offset the log begins with.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from kop.errors import BackendError, KopError
from kop.pulsar_client import EARLIEST, Position, PulsarError
from kop.records.batch import next_offset_of
from kop.storage.base import Buffer, ReadResult, TopicInfo
from kop.storage.partition import NOTHING_TO_READ
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.partition.tail_delays import TailDelays
from kop.storage.pulsar.reading.batches import Converter, Gap
from kop.storage.pulsar.reading.last_entry import named_or_looked_for
from kop.storage.pulsar.reading.source import LogBounds, PartitionSource, stats_position
from kop.storage.pulsar.reading.stream import Stream
from kop.storage.tail_cache import Tail, TailCache

TAIL_BUDGET: Final = 1 << 20
_LARGEST_AT_TAIL: Final = 8 << 20
"""The bytes of the largest chunked message that the tail puts together."""
LATE_SECONDS: Final = 3.0
"""The seconds that the tail may take to reach the last entry before Pulsar is asked for the reason."""
_HELD_SECONDS: Final = 0.1
"""The seconds that a tail may take before Pulsar is asked if it brings the entry at all, and at most if Pulsar held it
back a short while ago.
"""
_HOLDS_SECONDS: Final = 30.0
"""The seconds for which Pulsar's answer that it holds the tail back is believed."""
STUCK_SECONDS: Final = 17.0
"""The seconds after that question in which a tail may deliver nothing although nothing holds it back."""
_QUESTION_SECONDS: Final = 5.0
_PASSING_SECONDS: Final = 20.0
"""The seconds that Pulsar may take to pass over the entries of aborted transactions for the tail."""

_log = logging.getLogger(__name__)


class FollowedLog(LogBounds, Protocol):
    """The log that follows its tail, in the parts that the tail uses."""

    topic: TopicInfo
    attached: bool

    def from_tail(self, stored: EntryWithOffsets) -> None:
        """Put an entry that the tail brought into the log."""

    def tail_lost(self, error: PulsarError | KopError, why: Fault = Fault.TAIL_LOST_FAILED) -> None:
        """Handle that the tail cannot go on: the log has to attach again. `why` is counted."""

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the log's bounds move; return the function that ends this."""

    def tell_soon(self) -> None:
        """Call the callbacks for moved bounds in the loop's next turn."""


class LogTail:
    """The tail of one log: the reader that follows its end. `begin` and `let_go` may follow each other any number of
    times.
    """

    def __init__(
        self,
        source: PartitionSource,
        cache: TailCache,
        delays: TailDelays,
        log: FollowedLog,
    ) -> None:
        self._source = source
        self._cache = cache
        self._delays = delays
        self._log = log
        self.cached = Tail()
        """The newest batches of the log, without holes."""
        self.stream: Stream | None = None
        """The stream at the tail; None while the log follows no tail."""
        self.converter = self._make_converter(0)
        """The converter that makes batches of the entries that the tail brings."""
        self._asked_gaps: deque[Gap] = deque()
        """The gaps at the tail of which it is not known yet if they hold entries."""
        self._asking: asyncio.Task[None] | None = None
        self._begun_behind = EARLIEST
        """The position of the log's last entry when the stream began, or went on after a pause."""
        self._held_until = float("-inf")
        """The loop's time until which Pulsar's answer that it holds the tail back is believed."""
        self._slow_until = float("-inf")
        """The loop's time until which Pulsar is taken to be slow in naming the last entry."""

    # --- the stream

    @property
    def following(self) -> bool:
        """True if a stream is at the tail."""
        return self.stream is not None and not self.stream.closed

    async def begin(self, next_offset: int, last: Position) -> None:
        """Drop what is cached, and follow the log from the entry behind `last` on, whose first offset is `next_offset`.
        PulsarError or KopError if the stream cannot be opened; BackendError if it ended at once.

        The entry of `last` is -1 if there is none: then all entries are read.
        """
        self.drop()
        self.converter = self._make_converter(next_offset)
        self.stream = stream = Stream(self._source, self._log.from_tail, self._log.tail_lost)
        self._begun_behind = last
        empty = last.entry < 0
        await stream.start(EARLIEST if empty else last, inclusive=empty, budget=TAIL_BUDGET)

    def let_go(self) -> None:
        """Stop following the tail, and drop the cached batches."""
        stream, self.stream = self.stream, None
        self.drop_all()
        if stream is not None:
            stream.closed = True  # at once: what it still brings must not be taken for the log's end
            self._source.context.spawn(stream.close())

    @property
    def delivers(self) -> bool:
        """True if the stream has brought entries since it began, or went on after a pause."""
        return self.stream is not None and self.stream.came > self._begun_behind

    def pause(self) -> None:
        """Ask for no more entries, until `go_on_behind`. Those that are under way still come."""
        if self.stream is not None:
            self.stream.pause()

    def go_on_behind(self, last: Position) -> None:
        """Go on after a pause, from the entry behind `last` on."""
        self._begun_behind = last
        if self.stream is not None:
            self._source.context.spawn(self.stream.go_on_behind(last))

    async def close(self) -> None:
        """Close the stream, and wait until it is closed."""
        if self._asking is not None:
            self._asking.cancel()
        if self.stream is not None:
            await self.stream.close()

    def _make_converter(self, next_offset: int) -> Converter:
        """Return a converter that makes batches of the tail's entries. Large messages are left to readers, whose memory
        is bounded together.
        """
        source, policy = self._source, self._log.policy
        converter = Converter(
            source.title,
            next_offset,
            source.mapping,
            append_time=policy.log_append_time,
            count=source.context.faults.count,
            max_message_bytes=min(policy.max_uncompressed_bytes, _LARGEST_AT_TAIL),
            on_keyless=self._keyless,
            on_raw=self._raw,
        )
        converter.leaves_large = True
        return converter

    # Entries that Pulsar's compaction treats otherwise than Kafka's would. Kafka clients cannot write such entries to a
    # compacted topic, Pulsar's own can: there is one line for each topic, a count for each entry.

    def _keyless(self, messages: int) -> None:
        """If the topic is compacted, count an entry that has `messages` messages without a key, and warn of it."""
        if self._log.policy.compact:
            self._warn(
                Fault.COMPACTION_KEYLESS_MESSAGE,
                f"a Pulsar client writes messages without a key ({messages} in this entry): compaction will drop them. "
                "Let it set a key, or topicCompactionRetainNullKey=true in Pulsar's broker.conf",
            )

    def _raw(self) -> None:
        """If the topic is compacted, count an entry that holds Kafka's batches as they came (kop.entry.format=kafka),
        and warn of it.
        """
        if self._log.policy.compact:
            self._warn(
                Fault.COMPACTION_RAW_BATCH,
                "somebody writes batches in KoP's kafka entry format, on which Pulsar's compaction fails: "
                "nothing of the topic will be compacted. Write with kop.entry.format=pulsar",
            )

    def _warn(self, what: Fault, text: str) -> None:
        topic, faults = self._log.topic, self._source.context.faults
        faults.count(what)
        faults.tell((topic.topic_id, what), f"topic {topic.name}: {text}")

    async def until_end(self) -> Position | None:
        """Wait until the tail has brought the entry that is Pulsar's last now. KopError if Pulsar does not tell that
        entry.

        Returns None then, and also if the tail is found not to go on, so that the log has to attach again. Returns the
        position of that entry if Pulsar holds the tail back: the tail brings it later, which may take for as long as a
        dispatch rate says.
        """
        source, stream = self._source, self.stream
        if stream is None:
            return None
        try:
            last = await self._last_position(stream)
        except PulsarError as error:
            if await self.gave_up_unserved():
                return None
            raise source.refused(error, f"cannot read {source.title}") from error
        if last is None or last.entry < 0:
            return None  # all has come; or it was emptied, or never written to
        now, came = source.context.loop.time, stream.came
        if await self._comes_to(stream, last, _HELD_SECONDS) or await source.is_aborted(last):
            return None
        if now() >= self._held_until and await self._comes_to(stream, last, LATE_SECONDS):
            return None
        if await self._is_past(stream, last):
            text = "Pulsar moved it past entries, as truncating a topic and message TTL do"
            self._give_up(stream, Fault.ENTRIES_PASSED_OVER_TAIL, text)
            return None
        if await self._delays.held(last):
            self._held_until = now() + _HOLDS_SECONDS
        elif await self._comes_to(stream, last, STUCK_SECONDS):
            return None
        elif stream.came == came:
            self._give_up(stream, Fault.TAIL_LOST_STUCK, "it brings nothing, and Pulsar gives no reason")
            return None
        return last

    def _give_up(self, stream: Stream, why: Fault, text: str) -> None:
        """Make the log attach again, unless it follows another stream than `stream` by now. The reason `text` is
        logged, and counted as `why`.
        """
        if self.stream is stream:
            self._log.tail_lost(BackendError(text), why)

    async def gave_up_unserved(self) -> bool:
        """Make the log attach again if Pulsar serves the tail no more, now and a moment (3 seconds at most) later.
        Return true if that was done.

        See docs/quirks.md, "A reader is left behind at a topic that was opened anew".
        """
        stream = self.stream
        if stream is None:
            return False
        cursor = stream.cursor
        missed = await self._not_served(stream)
        if missed is None or await self._comes_to(stream, missed, LATE_SECONDS):
            return False
        if await self._not_served(stream) is None or stream.cursor != cursor:
            return False
        self._give_up(stream, Fault.TAIL_LOST_NOT_SERVED, "Pulsar has opened the topic anew without it")
        return True

    async def _not_served(self, stream: Stream) -> Position | None:
        """Return the position of an entry behind the log's end that readers may have, if Pulsar has no cursor of
        `stream`.

        None if there is none, if the stream is coming back to Pulsar, or if Pulsar does not tell.
        """
        source = self._source
        if not stream.connected:
            return None
        try:
            async with asyncio.timeout(_QUESTION_SECONDS):
                stats = await source.internal_stats()
                last = stats_position(stats["lastConfirmedEntry"])
                if last <= self._log.last_position or stream.cursor in stats.get("cursors", {}):
                    return None
                try:
                    last = min(last, await source.last_readable())
                except PulsarError as error:
                    if error.retriable:
                        return None  # a new reader would be given nothing
        except (PulsarError, TimeoutError):
            return None
        return last if last > self._log.last_position else None

    async def _last_position(self, stream: Stream) -> Position | None:
        """Return the position of the last entry that readers get, entry -1 if there is none. PulsarError if Pulsar
        refuses it or does not answer.

        None if the log ends behind all that is stored, while Pulsar names no last entry: it does not before the topic's
        transaction buffer is recovered. None, too, if entries of aborted transactions are the last ones, so many that
        Pulsar takes long to go back over them or gives that up with an error, and it has handed the tail all that lies
        before.
        """
        loop = self._source.context.loop

        async def look() -> bool | None:
            return await self._ends_behind_all() or await self._ends_in_aborted(stream) or None

        if loop.time() < self._slow_until and await look():
            return None

        last = await named_or_looked_for(stream, look)
        if isinstance(last, Position):
            return last
        self._slow_until = loop.time() + _HOLDS_SECONDS
        return None

    async def _ends_behind_all(self) -> bool:
        """Return true if the log ends behind the last entry that is stored. False if Pulsar does not tell."""
        try:
            async with asyncio.timeout(_PASSING_SECONDS):
                stats = await self._source.internal_stats()
        except (PulsarError, TimeoutError):
            return False
        return self._log.attached and self._log.last_position >= stats_position(stats["lastConfirmedEntry"])

    async def _ends_in_aborted(self, stream: Stream) -> bool:
        """Return true if the last entry is of an aborted transaction, and Pulsar has handed the tail all that lies
        before.

        False if Pulsar does not tell.
        """
        try:
            async with asyncio.timeout(_PASSING_SECONDS):
                stats = await self._source.internal_stats()
                last = min(stats_position(stats["lastConfirmedEntry"]), await self._source.last_readable())
                if last.entry < 0 or not await self._source.is_aborted(last):
                    return False
                await self._until_read_to(stream, last)
                return True
        except (PulsarError, TimeoutError):
            return False

    async def _until_read_to(self, stream: Stream, last: Position) -> None:
        """Wait until Pulsar has read up to `last` for the tail, and handed out what it read, or the log follows
        `stream` no more. PulsarError if Pulsar refuses it or does not answer.
        """
        log = self._log
        undo = log.on_advance(lambda: None)  # so that the tail goes on where it pauses
        try:
            while log.last_position < last and log.attached and self.stream is stream:
                if await stream.has_read_to(last):
                    return
        finally:
            undo()

    async def _comes_to(self, stream: Stream, last: Position, seconds: float) -> bool:
        """Wait until the log ends behind `last`, or follows this stream no more; return false if it does neither within
        `seconds`.
        """
        log = self._log
        if log.last_position >= last:
            return True
        moved = asyncio.Event()
        undo = log.on_advance(moved.set)
        try:
            async with asyncio.timeout(seconds):
                while log.last_position < last and log.attached and self.stream is stream:
                    moved.clear()
                    await moved.wait()
        except TimeoutError:
            return False
        finally:
            undo()
        return True

    async def _is_past(self, stream: Stream, last: Position) -> bool:
        """Return true if Pulsar has moved the reader behind `last` without handing that entry out. False if it does not
        tell.
        """
        try:
            async with asyncio.timeout(_QUESTION_SECONDS):
                stats = await self._source.internal_stats()
        except (PulsarError, TimeoutError):
            return False
        cursor = stats.get("cursors", {}).get(stream.cursor)
        if cursor is None:
            return False  # the topic moves to another broker
        # Readers acknowledge nothing: what Pulsar holds for acknowledged was taken away from them.
        return stats_position(cursor["markDeletePosition"]) >= last

    # --- the cache

    def drop(self, before: int | None = None) -> None:
        """Drop the cached batches before an offset, or all: the rest has no holes."""
        self._cache.drop(self.cached, before)

    def drop_all(self) -> None:
        """Drop the cached batches, and the questions about gaps between them."""
        self._asked_gaps.clear()
        self.drop()

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        """Return the batches in the cache from `offset` on, up to `max_bytes`; an empty result while Pulsar is asked if
        entries are missing at `offset`. None if the cache does not hold that offset.
        """
        end = None
        gap = next((gap for gap in self._asked_gaps if gap.last >= offset), None)
        if gap is not None:
            if gap.base <= offset:  # whether there are records is being asked: who waits is told
                return NOTHING_TO_READ if self.cached.holds(offset) else None
            end = gap.base
        in_memory = self.cached.get(offset, max_bytes, min_one, end)
        if in_memory is None:
            return None
        buffers, size = in_memory
        schemas = self.cached.schemas_between(offset, next_offset_of(buffers[-1])) if size else ()
        return ReadResult(buffers, size, (), schemas)

    # --- gaps

    def met_gap(self, gap: Gap, filler: Buffer) -> None:
        """Put `filler` into the cache for the offsets between two entries for which nothing came. If it is empty, drop
        the cache instead, which must have no holes.

        Pulsar is asked in the background if it moved the tail past entries that are there. If it may have, what is
        cached up to the gap is dropped, and a reader reads it.
        """
        if not filler:
            self.drop_all()
            return
        self._cache.push(self.cached, gap.base, gap.last, filler)
        if gap.has_no_entries:
            return
        self._asked_gaps.append(gap)
        if self._asking is None:
            self._begin_to_ask()

    def _begin_to_ask(self) -> None:
        self._asking = self._source.context.loop.create_task(self._ask_about_gaps())
        self._asking.add_done_callback(self._gaps_are_known)

    async def gap_is_known(self, offset: int) -> None:
        """Wait while Pulsar is asked about a gap in which `offset` lies."""
        if not self._asked_gaps:
            return
        known = asyncio.Event()
        undo = self._log.on_advance(known.set)
        try:
            while any(gap.base <= offset <= gap.last for gap in self._asked_gaps):
                known.clear()
                await known.wait()
        finally:
            undo()

    async def _ask_about_gaps(self) -> None:
        while self._asked_gaps:
            asked = list(self._asked_gaps)
            assert self.stream is not None  # without a stream no gaps are asked about
            mark_delete = await self.stream.mark_delete_position()
            for gap in asked:
                if not self._asked_gaps or self._asked_gaps[0] is not gap:
                    break  # the tail began again meanwhile
                self._asked_gaps.popleft()
                if gap.passed_over(mark_delete):
                    self.drop(gap.last + 1)  # there may be records
            self._log.tell_soon()

    def _gaps_are_known(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and task.exception() is not None:
            _log.error(
                "Pulsar cannot be asked why offsets of %s are missing: they are read again; please report this with "
                "its traceback",
                self._source.title,
                exc_info=task.exception(),
            )
            self.drop_all()
            self._log.tell_soon()
        elif self._asked_gaps and not task.cancelled():  # it was met between the last answer and this call
            self._begin_to_ask()
