"""Finding things in a partition on Pulsar: its ends, an offset, a time.

Owns: the probes, and when a search reads on instead of probing.
Must not know: the tail, appends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kop.errors import BackendError, ErrorCode
from kop.pulsar_client import EARLIEST, Position, PulsarError
from kop.records.batch import first_at_or_after, iter_batches, max_timestamp_record
from kop.storage.base import Buffer, TimestampOffset
from kop.storage.pulsar.offsets.sparse_index import Ledgers, next_probe
from kop.storage.pulsar.reading.batches import UnreadableEntryError
from kop.storage.pulsar.reading.stream import Placed, Stream

if TYPE_CHECKING:
    from kop.storage.pulsar.partition.log import PulsarLog

_PROBE_SECONDS: Final = 10.0
_TAIL_SECONDS: Final = 20.0
_STANDS_SECONDS: Final = 3.0
"""How long the tail may bring nothing where there is more."""
_READ_BYTES: Final = 1 << 20
_MOST_INFLATED: Final = 256 << 20
_FEW_OFFSETS: Final = 64


class Bounds(NamedTuple):
    """What a partition holds."""

    start: int
    """The first offset that can be read."""
    end: int
    """The offset after the last message that there ever was."""
    first: Placed | None
    last: Placed | None
    """The oldest and the newest entry of the log itself that have offsets; None where it holds none."""
    older: bool
    """There are entries without offsets, from before brokers gave them an index."""
    size: int
    """Bytes that Pulsar has of it."""
    end_position: Position
    """Of the last entry, which may have no offset. Where there is none, the entry is -1: of the ledger that takes the
    next one."""


async def bounds(log: PulsarLog) -> Bounds:
    """Look at both ends."""
    # Whether there is anything is asked by REST: brokers with transactions answer the protocol's question only when the
    # topic's transaction buffer is recovered, which stood still for 30 s at a time in new namespaces (4.0.8, loaded).
    stats = await log.engine.admin.internal_stats(log.partition_name)
    oldest, newest = await _ends(log) if stats["numberOfEntries"] else (None, EARLIEST)
    first = oldest if oldest is None or oldest.numbered else await _first_numbered(log, stats)
    last = first
    if first is not None and newest > first.position:
        last = await _probe(log, newest, maybe_empty=False)
        if last is not None and not last.numbered:
            last = await _last_numbered(log, stats)
    end = await log.numbering.emptied_end(log) if last is None else last.last + 1
    if oldest is not None:
        end_position = max(newest, oldest.position)
    else:
        confirmed = Position(*map(int, stats["lastConfirmedEntry"].split(":")))
        end_position = confirmed if confirmed.entry < 0 else Position(-1, -1)  # else it was emptied just now
    older = oldest is not None and not oldest.numbered
    return Bounds(await _start(log, first, end), end, first, last, older, int(stats["totalSize"]), end_position)


def _ledgers_with_entries(stats: dict[str, Any]) -> list[tuple[int, int]]:
    """Ids and numbers of entries. That of the newest one follows from the last entry, while it is open."""
    found = [(int(one["ledgerId"]), int(one["entries"])) for one in stats["ledgers"]]
    if found and not found[-1][1]:
        ledger, _, entry = str(stats.get("lastConfirmedEntry", "-1:-1")).partition(":")
        if int(ledger) == found[-1][0]:
            found[-1] = found[-1][0], int(entry) + 1
    return [one for one in found if one[1] > 0]


async def _numbered(log: PulsarLog, ledger: int) -> bool:
    """Whether the entries of a ledger have an index: brokers are told by a restart, which begins another ledger."""
    return (await log.engine.admin.entry(log.partition_name, ledger, 0)).index is not None


async def _first_numbered(log: PulsarLog, stats: dict[str, Any]) -> Placed | None:
    """The oldest entry with offsets, where the oldest one of all has none."""
    ledgers = [ledger for ledger, _ in _ledgers_with_entries(stats)]
    if not ledgers:
        return None
    low, high = 0, len(ledgers) - 1
    if not await _numbered(log, ledgers[high]):
        index = await log.engine.admin.closed_index(log.partition_name)
        if index is None or index < 0:
            return None  # there never was one
    else:
        while high - low > 1:
            middle = (low + high) // 2
            if await _numbered(log, ledgers[middle]):
                high = middle
            else:
                low = middle
        found = await _probe(log, Position(ledgers[high], 0), maybe_empty=False)
        if found is not None and found.base == 0:
            return found
    # Brokers counted before that: they were told not to in between. Nothing is passed over that has an offset.
    for ledger in ledgers:
        if await _numbered(log, ledger):
            return await _probe(log, Position(ledger, 0), maybe_empty=False)
    return None


async def _last_numbered(log: PulsarLog, stats: dict[str, Any]) -> Placed | None:
    """The newest entry with offsets, where the newest one of all has none."""
    for ledger, entries in reversed(_ledgers_with_entries(stats)):
        if await _numbered(log, ledger):
            return await _probe(log, Position(ledger, entries - 1), maybe_empty=False)
    return None


async def _ends(log: PulsarLog) -> tuple[Placed | None, Position]:
    """The oldest entry, and where the newest is; None where the log was emptied just now."""
    stream, arrived = await _open(log, EARLIEST)
    try:
        newest = await stream.last_position()
        if newest.entry < 0 and not arrived.done():
            return None, newest
        return await _arrival(log, arrived, EARLIEST), newest
    finally:
        await stream.close()


async def emptied_end(log: PulsarLog) -> int:
    """The log end of a partition without entries, by the index: what was there and is gone has been counted."""
    index = await log.engine.admin.closed_index(log.partition_name)
    return 0 if index is None else index + 1


async def start(log: PulsarLog) -> int:
    """The first offset that can be read; the high watermark where there is none."""
    stats = await log.engine.admin.internal_stats(log.partition_name)
    if any(one["ledgerId"] == log.first_ledger for one in stats["ledgers"]) and not log.policy.compact:
        return log.log_start_offset  # retention takes whole ledgers, the oldest first
    first = await _probe(log, EARLIEST, maybe_empty=True) if stats["numberOfEntries"] else None
    if first is not None and not first.numbered:
        first = await _first_numbered(log, stats)
    log.first_ledger = -1 if first is None else first.position.ledger
    return await _start(log, first, log.high_watermark)


async def _start(log: PulsarLog, first: Placed | None, end: int) -> int:
    """Compaction keeps the newest of each key beside the log, where retention does not reach."""
    found = end if first is None else first.base
    if found and log.policy.compact and not log.policy.delete:
        stats = await log.engine.admin.internal_stats(log.partition_name)
        if stats.get("compactedLedger", {}).get("entries", 0) > 0:
            kept = await _probe(log, EARLIEST, maybe_empty=False, compacted=True)
            assert kept is not None
            found = min(found, kept.base)
    return found


async def _probe(log: PulsarLog, position: Position, *, maybe_empty: bool, compacted: bool = False) -> Placed | None:
    stream, arrived = await _open(log, position, compacted=compacted)
    try:
        if maybe_empty and not arrived.done() and (await stream.last_position()).entry < 0 and not arrived.done():
            return None
        return await _arrival(log, arrived, position)
    finally:
        await stream.close()


async def _arrival(log: PulsarLog, arrived: asyncio.Future[Placed], position: Position) -> Placed:
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            return await arrived
    except TimeoutError:
        raise BackendError(
            f"Pulsar sent no entry of {log.title} from {position.ledger}:{position.entry} on",
            ErrorCode.REQUEST_TIMED_OUT,
        ) from None


async def _open(
    log: PulsarLog, position: Position, *, compacted: bool = False
) -> tuple[Stream, asyncio.Future[Placed]]:
    arrived: asyncio.Future[Placed] = log.loop.create_future()

    def on_entry(placed: Placed) -> None:
        if not arrived.done():
            arrived.set_result(placed)
            stream.pause()

    def on_lost(error: Any) -> None:
        if not arrived.done():
            arrived.set_exception(error)

    stream = Stream(on_entry, on_lost, log.numbering.place)
    await stream.start(
        log.client, log.partition_name, position, guard=log.guard, compacted=compacted, budget=1, permits=1
    )
    return stream, arrived


async def until_end(log: PulsarLog, tail: Stream) -> None:
    """Wait until the tail has brought what is the last entry in Pulsar now."""
    try:
        last = await tail.last_position()
    except PulsarError as error:
        raise log.refused(error, f"cannot read {log.title}") from error
    if last.entry < 0:
        return  # emptied, or never written to
    moved = asyncio.Event()
    undo = log.on_advance(moved.set)
    try:
        async with asyncio.timeout(_TAIL_SECONDS):
            while log.last_position < last and log.attached:
                if not await _set_within(moved, _STANDS_SECONDS):
                    # Truncating a topic, or message TTL, moves readers' cursors, too: they wait for what comes next.
                    log.engine.count("tails_moved_past_entries")
                    log.tail_lost(BackendError("it does not come to the last entry"))
                moved.clear()
    except TimeoutError:
        text = f"the tail of {log.title} does not come to its end"
        raise BackendError(text, ErrorCode.REQUEST_TIMED_OUT) from None
    finally:
        undo()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def locate(log: PulsarLog, offset: int) -> Position:
    """A position from which a reader meets the entry that holds `offset` after a few others at most."""
    ledgers: Ledgers | None = None
    halve = False
    while True:
        low, high = log.marks.floor(offset), log.marks.above(offset)
        if low is None:
            return log.begin
        if high is None or offset - low[0] < _FEW_OFFSETS:
            return low[1]
        if ledgers is None:
            ledgers = await ledgers_of(log)
        position = next_probe(low, high, offset, ledgers, halve=halve)
        if position is None:
            return low[1]
        placed = await _probe(log, position, maybe_empty=False)
        assert placed is not None
        if not low[0] < placed.last < high[0]:
            # Nothing lies between, or nothing with an offset, or it was trimmed just now.
            return low[1]
        log.marks.add(placed.last, placed.position)
        halve = not halve


async def ledgers_of(log: PulsarLog) -> Ledgers:
    """The entries of the partition as one line."""
    stats = await log.engine.admin.internal_stats(log.partition_name)
    return Ledgers([(ledger["ledgerId"], ledger["entries"]) for ledger in stats["ledgers"]])


async def size(log: PulsarLog) -> int:
    """Bytes that the partition has in Pulsar."""
    try:
        stats = await log.engine.admin.internal_stats(log.partition_name)
    except PulsarError as error:
        raise log.refused(error, f"cannot measure {log.title}") from error
    return int(stats.get("totalSize", 0))


async def _batches(log: PulsarLog, offset: int) -> AsyncIterator[Buffer]:
    while offset < log.high_watermark:
        try:
            found = await log.read(offset, _READ_BYTES, min_one=True)
        except UnreadableEntryError as unreadable:  # it has no time that anybody could look for
            offset = unreadable.next_offset
            continue
        if not found.size:
            return
        for buffer in found.buffers:
            for start, header in iter_batches(buffer):
                offset = header.next_offset
                if header.record_count:
                    yield memoryview(buffer)[start : start + header.size]


async def _from_time(log: PulsarLog, timestamp: int) -> int:
    """The offset of an entry before which no record has `timestamp`: none is older than when the broker took it.

    Unless its producer's clock ran ahead; the log knows by how much any did that a gateway has seen.
    """
    try:
        ledger, entry = await log.engine.admin.message_id_by_time(
            log.partition_name, max(timestamp - log.clock_ahead, 0)
        )
    except PulsarError as error:
        if error.code in {"NotFound", "TopicNotFound"}:
            return log.log_start_offset
        raise
    position = Position(ledger, entry)
    if entry < 0:
        return log.log_start_offset
    if position > log.last_position:  # behind the last entry: nothing was taken since
        return log.high_watermark
    if position < log.begin:
        return log.log_start_offset
    placed = await _probe(log, position, maybe_empty=True)
    if placed is None or not placed.numbered:
        return log.log_start_offset
    return max(min(placed.base, log.high_watermark), log.log_start_offset)


async def by_time(log: PulsarLog, timestamp: int) -> TimestampOffset | None:
    """The first record at or after `timestamp`, by the records' own timestamps.

    Looked for from the entries on that the broker took at that time: a record is there when it was made, or later.
    """
    if log.log_start_offset >= log.high_watermark:
        return None
    from_offset = await _from_time(log, timestamp)
    async for batch in _batches(log, from_offset):
        _, header = next(iter_batches(batch))
        if header.max_timestamp >= timestamp:
            found = first_at_or_after(
                batch, header, timestamp, max_bytes=_MOST_INFLATED, from_offset=log.log_start_offset
            )
            if found is not None:
                return TimestampOffset(*found)
    return None


async def max_timestamp(log: PulsarLog) -> TimestampOffset | None:
    """The first record with the largest timestamp.

    All records have to be looked at. How far that came is kept with the log, so that a look-up that its client gave up
    is gone on with by the next one.
    """
    begin, best = log.largest_timestamp
    if best is not None and (log.policy.compact or best.offset < log.log_start_offset):
        begin, best = 0, None  # that record may be gone
    async for batch in _batches(log, max(begin, log.log_start_offset)):
        _, header = next(iter_batches(batch))
        if best is None or header.max_timestamp > best.timestamp:
            found = max_timestamp_record(batch, header, max_bytes=_MOST_INFLATED, from_offset=log.log_start_offset)
            if found is not None and found[1] >= 0 and (best is None or found[1] > best.timestamp):
                best = TimestampOffset(*found)
        log.largest_timestamp = header.next_offset, best
    return best
