"""Entries of one partition from a position on, as Pulsar sends them.

Owns: how many entries are asked for, within a budget of bytes; putting chunked messages together.
Must not know: Kafka batches, who reads, what is cached, appends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from kop.errors import ErrorCode, KopError, PeerError
from kop.pulsar_client import EARLIEST, Entry, Position, PulsarError, Reader, Received, position_in
from kop.records import transcode
from kop.storage.base import Buffer
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.reading.source import PartitionSource, stats_position

FIRST_PERMITS: Final = 16
"""The number of entries that may come at once at first: the Pulsar broker's first read ignores how many messages an
entry holds.
"""
MOST_PERMITS: Final = 1000
_LOOK_SECONDS: Final = 0.1
"""The seconds between two questions how far Pulsar has read for a stream."""
OnMany: TypeAlias = Callable[[Sequence[Received], int], tuple[int, int, int]]
"""The type of a callback for entries that came together, from a place on: it returns the number of entries that it
took, of their messages, and of the bytes of their payload.
"""


class ChunksMissingError(PeerError):
    """An error for a message whose last chunk was read without its first ones: the reader may have begun between
    them.
    """


class MessageTooLargeError(PeerError):
    """An error for a chunked message that is larger than is put together here."""


class Chunks:
    """The chunks of messages that are not complete yet. Bounded: a message that does not end in time is given up, a
    large one refused.
    """

    _MOST_MESSAGES: Final = 100

    def __init__(self, max_bytes: int) -> None:
        """Begin without chunks. `max_bytes` bounds one message, as it is stored, and all that wait together unless it
        is one.
        """
        self._max_bytes = max_bytes
        self._parts: dict[str, list[bytes]] = {}
        self.size = 0
        """The bytes of the chunks that wait for others."""

    def add(self, info: transcode.EntryView, payload: memoryview) -> Buffer | None:
        """Add a chunk: return the whole payload with the last chunk, None before it.

        Of an encrypted message, which nobody here can put together, the last chunk stands for the whole payload.
        CORRUPT_MESSAGE with the last chunk if chunks before it are missing, or the message is larger than may be.
        """
        ends = info.chunk_id + 1 >= info.num_chunks
        if info.encrypted:  # each chunk by itself, so that they are larger than they say
            return payload if ends else None
        if info.total_chunk_size > self._max_bytes:
            if not ends:
                return None
            raise MessageTooLargeError(
                f"a message in {info.num_chunks} chunks of {info.total_chunk_size} bytes in all, the limit is "
                f"{self._max_bytes}: Pulsar clients can read it",
                ErrorCode.CORRUPT_MESSAGE,
            )
        if info.chunk_id == 0:
            self._forget(info.uuid)
            self._parts[info.uuid] = []
        parts = self._parts.get(info.uuid)
        if parts is None or len(parts) != info.chunk_id:
            if not ends:
                return None
            raise ChunksMissingError("the first chunks of a chunked message are missing", ErrorCode.CORRUPT_MESSAGE)
        parts.append(bytes(payload))
        self.size += len(payload)
        while (self.size > self._max_bytes or len(self._parts) > self._MOST_MESSAGES) and len(self._parts) > 1:
            self._forget(next(iter(self._parts)))
        if sum(map(len, parts)) > info.total_chunk_size:
            self._forget(info.uuid)  # it is not what it says: with the last chunk its first ones are missing
            return self.add(info, payload) if ends else None
        if not ends:
            return None
        whole = b"".join(parts)
        parts = None
        self._forget(info.uuid)
        return whole

    def _forget(self, uuid: str) -> None:
        self.size -= sum(map(len, self._parts.pop(uuid, ())))


class Stream:
    """A stream of entries from a position on, handed to `on_entry` as they come, after `start`.

    It asks for as many as keep about `budget` bytes under way; `pause` and `go_on` stop and resume that.
    """

    def __init__(
        self,
        source: PartitionSource,
        on_entry: Callable[[EntryWithOffsets], None],
        on_lost: Callable[[PulsarError | KopError], None],
        on_many: OnMany | None = None,
    ) -> None:
        """Make a stream of a partition that is not started. `on_entry` gets each entry; `on_many` may handle several
        that came together, and the rest goes to `on_entry`. `on_lost` gets the error that ends the stream.
        """
        self._source = source
        self._on_entry = on_entry
        self._on_many = on_many
        self._on_lost = on_lost
        self._place = source.mapping.place
        self._reader: Reader | None = None
        self.budget = 0
        """The bytes that are kept under way; see `start`."""
        self._bytes = 0
        self._messages = 0
        self._ask_at = MOST_PERMITS
        """The number of permits left at which more are asked for."""
        self._paused = False
        self.closed = False
        self.compacted = False
        """True if the stream reads the compacted log."""
        self._start = self._came = EARLIEST
        """The position at which the stream began; and that of the last entry that it read since then."""

    async def start(
        self,
        start: Position,
        *,
        inclusive: bool = True,
        compacted: bool = False,
        budget: int,
        permits: int = FIRST_PERMITS,
    ) -> None:
        """Subscribe at `start` (`inclusive`: with the entry there), if the topic exists, and ask for `permits` messages
        first; with 0 `begin` asks for them. PulsarError or KopError if that fails.

        `compacted`: the compacted log is read. About `budget` bytes are kept under way.
        """
        self.budget = budget
        self.compacted = compacted
        self._start = start
        source = self._source
        self._reader = await source.context.client.open_reader(
            source.partition_name,
            start,
            inclusive=inclusive,
            read_compacted=compacted,
            permits=permits,
            on_entry=self._entry,
            on_many=None if self._on_many is None else self._many,
            damaged=True,
            borrow=True,  # a batch is made of it at once, or only its place is looked at
            before_attach=source.check_exists,
            on_lost=self._lost,
        )
        if self.closed:
            await self._reader.close()

    def begin(self, permits: int) -> None:
        """Ask for so many first messages, for a stream that was started with 0 permits."""
        if self._reader is not None and not self.closed:
            self._reader.flow(permits)

    @property
    def came(self) -> Position:
        """The position of the last entry that was read; EARLIEST before the first."""
        return self._came

    @property
    def due(self) -> int:
        """The bytes, roughly, that were asked for and have not come yet."""
        if self._reader is None or not self._messages:
            return self.budget
        return min(max(self._reader.permits, 0) * self._bytes // self._messages, self.budget)

    @property
    def cursor(self) -> str:
        """The name of the stream's cursor in Pulsar's internal statistics of the topic."""
        return "" if self._reader is None else self._reader.cursor

    @property
    def connected(self) -> bool:
        """True if a Pulsar broker has the stream's consumer, as far as is known."""
        return self._reader is not None and self._reader.connected

    async def last_position(self, *, within: float | None = None) -> Position:
        """Return the position of the last entry in the topic that Pulsar names to readers; its entry number is -1 if
        there is none. PulsarError if Pulsar refuses it or does not answer.

        `within` is the time limit in seconds; None for that of any request.
        """
        assert self._reader is not None
        return await self._reader.last_position(within=within)

    async def mark_delete_position(self) -> Position | None:
        """Return the position up to which Pulsar counts entries as acknowledged by this stream; None if it does not
        tell.
        """
        try:
            return None if self._reader is None else await self._reader.mark_delete_position()
        except PulsarError:
            return None

    async def exhausted(self) -> bool:
        """Return true if Pulsar names no entry behind the last one that was read. In a compacted topic the last entries
        may be gone. PulsarError if it does not answer.
        """
        last = await self.last_position()
        return last.entry < 0 or last < self._start or last <= self._came

    async def has_read_to(self, last: Position) -> bool:
        """Ask Pulsar if it has read beyond `last` for the stream, and wait 0.1 seconds; return true if it has, and the
        stream brought nothing in that time, so that all of that was handed out.

        PulsarError if Pulsar refuses it or does not answer.
        """
        cursor = (await self._source.internal_stats()).get("cursors", {}).get(self.cursor)
        came = self._came
        await asyncio.sleep(_LOOK_SECONDS)  # what was read is on its way
        return cursor is not None and stats_position(cursor["readPosition"]) > last and self._came == came

    def pause(self) -> None:
        """Ask for no more entries. Those that are under way still come."""
        self._paused = True

    def go_on(self) -> None:
        """Ask for entries again, after `pause`."""
        if self._paused:
            self._paused = False
            self._ask()

    async def go_on_behind(self, position: Position) -> None:
        """Ask for entries again, from the one behind `position` on: those before it are not handed out.

        If the Pulsar broker does not answer, the stream comes back by itself, or is lost.
        """
        self._paused = False
        if self._reader is None or self.closed:
            return
        with suppress(PulsarError):  # it comes back with what is asked for now, or its end is told
            await self._reader.seek(position, inclusive=False)
        self._ask()

    async def close(self) -> None:
        """Close the stream. No entry is handed out afterwards."""
        self.closed = True
        if self._reader is not None:
            await self._reader.close()

    def _entry(self, entry: Entry) -> None:
        if self.closed:
            return
        try:
            stored = self._place(entry)
        except KopError as error:
            self._lost(error)
            return
        self._came = entry.position
        self._measure(max(stored.info.num_messages, 1), len(entry.payload))
        self._on_entry(stored)
        if not self._paused and self._reader is not None and self._reader.permits <= self._ask_at:
            self._ask()

    def _many(self, received: Sequence[Received], at: int) -> tuple[int, int]:
        """Hand out as many entries of a read as `on_many` takes at once; return the numbers of entries and of
        messages.
        """
        if self.closed or self._on_many is None:
            return 0, 0
        taken, messages, size = self._on_many(received, at)
        if taken:
            self._came = position_in(received, at + taken - 1)
            self._measure(messages, size)
            if not self._paused and self._reader is not None and self._reader.permits - messages <= self._ask_at:
                self._ask(messages)
        return taken, messages

    def _measure(self, messages: int, size: int) -> None:
        self._messages += messages
        self._bytes += size
        if self._messages > 100_000:  # so that the estimate follows what comes
            self._messages //= 2
            self._bytes //= 2

    def _ask(self, uncounted: int = 0) -> None:
        """Ask for more entries if fewer than wanted are under way; `uncounted` messages have come that the reader has
        not counted yet.
        """
        if self.closed or self._reader is None:
            return
        each = max(self._bytes // max(self._messages, 1), 1)
        wanted = min(max(self.budget // each, 1), max(MOST_PERMITS, self._messages // 4))
        # Below zero after the Pulsar broker's first read: that has to be made good, too.
        permits = self._reader.permits - uncounted
        self._ask_at = wanted // 2
        if permits <= self._ask_at:
            self._reader.flow(wanted - permits)

    def _lost(self, error: PulsarError | KopError) -> None:
        if not self.closed:
            self.closed = True
            self._on_lost(error)
