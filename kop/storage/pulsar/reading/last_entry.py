"""The last entry of a partition that readers are given, where Pulsar is slow to name it.

Owns: how long Pulsar is waited for, and the search at the end of the log.
Must not know: offsets, the tail, what is done with the entry.

See docs/quirks.md, "The last entry behind aborted transactions is slow to be named".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from kop.errors import KopError
from kop.pulsar_client import Position, PulsarError
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.offsets.sparse_index import Ledgers, ledgers_with_entries
from kop.storage.pulsar.reading.source import PartitionSource, stats_position
from kop.storage.pulsar.reading.stream import Stream

LAST_SECONDS: Final = 2.0
"""The seconds that Pulsar may take to name the last entry before the end of the log is searched for it."""
_NAMED_SECONDS: Final = 30.0
"""The seconds that Pulsar may take to name it after all; a caller may have less time. docs/quirks.md, "A transaction
buffer is recovered late, or not".
"""
_PERMITS: Final = 100
"""The number of entries that Pulsar reads at a time for a reader that gets none of them."""
_NO_ENTRY: Final = Position(-1, -1)

T = TypeVar("T")


async def named_or_looked_for(
    stream: Stream, look: Callable[[], Awaitable[T | None]], *, within: float | None = None
) -> Position | T:
    """Return the last entry as Pulsar names it to `stream`; or the result of `look`, if Pulsar is slow or answers with
    an error.

    `look` is called after 2 seconds or at Pulsar's error. Whichever is sooner counts; a result of None leaves it to
    Pulsar, which may take the seconds of `within`, None for those of any request. Raises Pulsar's PulsarError if
    neither gives anything.
    """
    asking = asyncio.ensure_future(stream.last_position(within=within))
    looking: asyncio.Future[T | None] | None = None
    try:
        await asyncio.wait({asking}, timeout=LAST_SECONDS)
        if not _has_answer(asking):
            looking = asyncio.ensure_future(look())
            await asyncio.wait({asking, looking}, return_when=asyncio.FIRST_COMPLETED)
            if not _has_answer(asking) and (result := await looking) is not None:
                return result
        return await asking
    finally:
        asking.cancel()
        if looking is not None:
            looking.cancel()


def _has_answer(asking: asyncio.Future[Position]) -> bool:
    """Return true if Pulsar has named the last entry; false if it has answered with an error, or not yet."""
    return asking.done() and asking.exception() is None


class LastEntry:
    """The last entry of one partition, for callers that do not follow its tail."""

    def __init__(self, source: PartitionSource) -> None:
        self._source = source

    async def position(self, stream: Stream) -> Position:
        """Return the position of the last entry that readers get; its entry number is -1 if there is none.

        Pulsar names it to `stream`, or it is found at the end of the log, whichever is sooner. PulsarError if Pulsar
        refuses it or does not answer.
        """
        return await named_or_looked_for(stream, self.at_end_of_log, within=_NAMED_SECONDS)

    async def at_end_of_log(self) -> Position | None:
        """Search the end of the log for the last entry that readers get, by REST and with a reader; its entry number is
        -1 if there is none.

        None if Pulsar does not tell enough, or if the log is trimmed meanwhile.
        """
        try:
            stats = await self._source.internal_stats()
            last = min(stats_position(stats["lastConfirmedEntry"]), await self._source.last_readable())
            line = Ledgers(ledgers_with_entries(stats))
            end = line.place(last)
            if end is None:
                return None
            low = -1
            while True:
                low = await self._edge(line, low, end)
                given = await self._next_given(line.position(low + 1), last) if low < end else None
                if given is None:
                    return _NO_ENTRY if low < 0 else line.position(low)
                place = line.place(given)
                if place is None:
                    return None
                low = place
        except (PulsarError, KopError):
            return None

    async def _edge(self, line: Ledgers, low: int, end: int) -> int:
        """Return a place, a number on the `line` of all entries, from `low` to `end` whose entry readers get, while
        they do not get the next one.

        `low` is of such an entry, or -1; it is returned if no other is met. The steps back from the end double, so that
        entries which are all alike before those of the last transactions cost little, however many there are.
        """
        above, step, at = end + 1, 1, end
        while at > low and not await self._is_given(line.position(at)):
            above, step = at, step * 2
            at = max(end - step, low)
        low = max(low, at)
        while above - low > 1:
            at = (low + above) // 2
            if await self._is_given(line.position(at)):
                low = at
            else:
                above = at
        return low

    async def _is_given(self, position: Position) -> bool:
        """Return true if readers get the entry at `position`; false if they do not, or Pulsar does not tell."""
        try:
            return not (await self._source.context.admin.entry_head(self._source.partition_name, *position)).hidden
        except PulsarError:
            return False

    async def _next_given(self, start: Position, last: Position) -> Position | None:
        """Return the position of the first entry from `start` on that a reader gets; None if there is none up to
        `last`. PulsarError or KopError if it cannot be read.
        """
        source = self._source
        given: asyncio.Future[Position] = source.context.loop.create_future()

        def on_entry(stored: EntryWithOffsets) -> None:
            if not given.done():
                given.set_result(stored.position)
                stream.pause()

        def on_lost(error: Any) -> None:
            if not given.done():
                given.set_exception(error)

        stream = Stream(source, on_entry, on_lost)
        try:
            await stream.start(start, budget=1, permits=_PERMITS)
            while not given.done():
                if await stream.has_read_to(last) and not given.done():
                    return None
            position = given.result()
            return position if position <= last else None
        finally:
            await stream.close()
