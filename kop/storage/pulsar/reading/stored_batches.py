"""Finding batches that are stored already, by the name of their producer and its sequence ids.

Owns: the search backwards from the end of a partition, its bounds, what its result proves.
Must not know: who asks, Kafka's sequences.

Entries of one producer lie in the order of their sequence ids: Pulsar's deduplication drops what comes later with a
lower one. So a range of sequence ids that is missing between two entries of its producer, in a stretch of the log
without gaps, was never stored.

A batch is stored only where its range is that of whole entries: of one, or of several that it was split into. Where
entries of its producer reach over an end of the range, they hold other batches, which have its sequence ids.

The last entries are read by a reader of its own, which is fast. Where the Pulsar broker holds readers back (a dispatch
rate, an open transaction), and for batches of transactions, fewer of them are looked at by REST, one request for each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from kop.errors import KopError
from kop.pulsar_client import Position, PulsarError
from kop.pulsar_client.admin import EntryHead
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.offsets.sparse_index import Ledgers
from kop.storage.pulsar.reading.source import PartitionSource, stats_position
from kop.storage.pulsar.reading.stream import Stream

SEARCH_SECONDS: Final = 15.0
"""The time limit of one search."""
STANDS_SECONDS: Final = 2.0
_FEWEST: Final = 64
"""The number of entries below which a reader that brings no more in so many seconds counts as held back: then REST is
asked. A dispatch rate lets some entries come, and a search that waited for the rest would not end.
"""
_STEPS: Final = (256, 8192)
"""The numbers of the log's last entries that are read: first a few, then more."""
_MOST_BYTES: Final = 64 << 20
_BUDGET: Final = 1 << 20
_MOST_ASKED: Final = 4096
_ASK_AT_ONCE: Final = 16


class Wanted(NamedTuple):
    """The messages of a producer that are looked for, by their sequence ids."""

    producer_name: str
    sequence_id: int
    """The sequence id of the first message."""
    num_messages: int
    hidden: bool = False
    """True if they are of a transaction: while that is open, and after it was aborted, no reader gets them."""


class Outcome(Enum):
    """The outcome of a search for stored messages."""

    FOUND = "found"
    SCATTERED = "scattered"
    """All messages are stored, with other messages between them, so that no one base offset tells their offsets."""
    OTHERS = "others"
    """Other messages are stored with these sequence ids: there are entries that reach over an end of the range."""
    ABSENT = "absent"
    """Not all messages are stored, and they never will be, because later messages of the producer are."""
    UNKNOWN = "unknown"
    """The messages are not among the entries that were looked at."""
    UNFINISHED = "unfinished"
    """The search did not come to its end."""


class Stored(NamedTuple):
    """The answer of a search for one range of messages."""

    outcome: Outcome
    base: int = -1
    """The offset of the first message; -1 if it was not found."""
    append_time: int = -1
    """The time at which the Pulsar broker took the last message, in ms; -1 if it is not known."""


class _StoredEntry(NamedTuple):
    order: int
    sequence_id: int
    num_messages: int
    base: int
    append_time: int


class Stretch:
    """The entries of a part of a log, in their order, by producer. A pure machine.

    `from_beginning`: nothing was ever stored before its first entry.
    """

    def __init__(self, *, from_beginning: bool) -> None:
        self._by_producer: dict[str, list[_StoredEntry]] = {}
        self._order = 0
        self._gaps: list[int] = [] if from_beginning else [0]
        """The numbers of entries before which other entries may be missing."""

    def __len__(self) -> int:
        return self._order

    def add(
        self, producer_name: str, sequence_id: int, count: int, base: int, append_time: int, *, gap: bool = False
    ) -> None:
        """Add the next entry: its producer, the sequence id of its first message, the number of messages, the offset of
        the first, and the time in ms at which the Pulsar broker took it. `gap` is true if other entries may lie between
        it and the one before.
        """
        if gap and self._order:
            self._gaps.append(self._order)
        entry = _StoredEntry(self._order, sequence_id, count, base, append_time)
        self._by_producer.setdefault(producer_name, []).append(entry)
        self._order += 1

    def cut_off(self) -> None:
        """Mark the end of the stretch as a gap: other entries may lie behind its last one."""
        self._gaps.append(self._order)

    def find(self, wanted: Wanted) -> Stored:
        """Look for the messages of `wanted` among the entries; return the outcome, and the offset of the first message
        if all are stored and no others lie between them.
        """
        first, behind = wanted.sequence_id, wanted.sequence_id + wanted.num_messages
        at, base, scattered, others = first, -1, False, False
        before = after = None
        for entry in self._by_producer.get(wanted.producer_name, ()):
            if entry.sequence_id > at:
                after = after or entry
                continue
            before, end = entry, entry.sequence_id + entry.num_messages
            if end > behind or entry.sequence_id < first < end:
                others = True
            elif end > at:
                here = entry.base + first - entry.sequence_id
                scattered = scattered or base not in {-1, here}
                base, at = here, end
                if at == behind:
                    outcome = Outcome.SCATTERED if scattered else Outcome.FOUND
                    return Stored(outcome, -1 if scattered else base, entry.append_time)
        if others:
            return Stored(Outcome.OTHERS)
        low = 0 if before is None else before.order + 1
        # Pulsar goes by the first sequence id of an entry: one that begins with a stored message is dropped as a whole.
        high = after.order if after is not None else self._order if at > first else -1
        if high >= 0 and not any(low <= gap <= high for gap in self._gaps):
            return Stored(Outcome.ABSENT)
        return Stored(Outcome.UNKNOWN)


def all_known(answers: Sequence[Stored]) -> bool:
    """Return true if every search has an outcome that further looking would not change."""
    return all(each.outcome not in {Outcome.UNKNOWN, Outcome.UNFINISHED} for each in answers)


class StoredBatches:
    """The search for stored batches in one partition."""

    def __init__(self, source: PartitionSource) -> None:
        self._source = source

    async def find(self, wanted: Sequence[Wanted]) -> list[Stored]:
        """Look for all of these messages, each as far back as the bounds allow: 15 seconds, and the last 8192 entries,
        or 4096 if REST is asked. Return the outcomes in their order. PulsarError or KopError if the log cannot be read.
        """
        answers = [Stored(Outcome.UNKNOWN)] * len(wanted)
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                stats = await self._source.internal_stats()
                ledgers = Ledgers([(ledger["ledgerId"], ledger["entries"]) for ledger in stats["ledgers"]])
                end = stats_position(stats["lastConfirmedEntry"])
                last = ledgers.place(end)
                if last is None:  # the partition moves to another broker
                    return _unfinished(answers)
                if last < 0:
                    return answers
                end = ledgers.position(last)  # a ledger that has no entry yet is not the end
                average = max(int(stats["totalSize"]) // max(int(stats["numberOfEntries"]), 1), 1)
                most = max(_MOST_BYTES // average, 1)
                hidden = any(each.hidden for each in wanted)
                for step in _STEPS:
                    count = min(step, most, last + 1)
                    start = ledgers.position(last + 1 - count)
                    stretch = None if hidden else await self._read(start, end, whole=count == last + 1)
                    if stretch is None:
                        async for answers in self._ask(ledgers, last + 1, wanted):
                            if all_known(answers):
                                break
                        break
                    answers = [stretch.find(each) for each in wanted]
                    if all_known(answers) or count < step:
                        break
        except TimeoutError:  # the answer is then what is known so far
            return _unfinished(answers)
        return answers

    async def _read(self, start: Position, end: Position, *, whole: bool) -> Stretch | None:
        """Return the entries from `start` to `end`, read by a reader; None if the Pulsar broker holds them back, or the
        reader is lost. `whole`: the log has no entry before `start`.
        """
        mapping = self._source.mapping
        stretch: Stretch | None = None
        expected = -1
        came = 0
        lost = False
        ended = asyncio.Event()

        def on_entry(stored: EntryWithOffsets) -> None:
            nonlocal stretch, expected, came
            came += 1
            if stored.position <= end:
                if stretch is None:
                    stretch = Stretch(from_beginning=whole and stored.base == 0)
                info = stored.info
                stretch.add(
                    info.producer_name,
                    info.sequence_id,
                    info.num_messages,
                    stored.base,
                    stored.append_time,
                    gap=mapping.skips(expected, stored),
                )
                expected = stored.last + 1
            if stored.position >= end:
                ended.set()
                stream.pause()

        def on_lost(error: Any) -> None:
            nonlocal lost
            lost = True
            ended.set()

        stream = Stream(self._source, on_entry, on_lost)
        try:
            await stream.start(start, budget=_BUDGET)
            while not ended.is_set():
                before = came
                try:
                    async with asyncio.timeout(STANDS_SECONDS):
                        await ended.wait()
                except TimeoutError:
                    if came - before < _FEWEST:
                        return None
        finally:
            await stream.close()
        return None if lost else stretch

    async def _ask(self, ledgers: Ledgers, end: int, wanted: Sequence[Wanted]) -> AsyncIterator[list[Stored]]:
        """Look over REST, backwards from the entry before the place `end`, as `ledgers` counts entries; yield the
        answers after each step, in the order of `wanted`.

        If Pulsar gave no answer for an entry that exists, messages that are not found have the outcome UNFINISHED.
        """
        heads: deque[tuple[Position, EntryHead | None]] = deque()
        looked_at = 0
        for last in range(end, max(end - _MOST_ASKED, 0), -_ASK_AT_ONCE):
            positions = [ledgers.position(place) for place in range(max(last - _ASK_AT_ONCE, 0), last)]
            heads.extendleft(reversed(await asyncio.gather(*map(self._head, positions))))
            if len(heads) < 2 * looked_at and last > _ASK_AT_ONCE and len(heads) < _MOST_ASKED:
                continue
            looked_at = len(heads)
            stretch = Stretch(from_beginning=False)
            gap = False
            for position, head in heads:
                if head is None:
                    gap = True
                    continue
                count = head.num_messages
                try:
                    base = self._source.mapping.stored_base(position, head.index, count)
                except KopError:  # an entry without an offset is none of those that are looked for
                    gap = True
                    continue
                stretch.add(head.producer_name, head.sequence_id, count, base, head.append_time, gap=gap)
                gap = False
            if gap:
                stretch.cut_off()
            answers = [stretch.find(each) for each in wanted]
            yield _unfinished(answers) if any(head is None for _, head in heads) else answers

    async def _head(self, position: Position) -> tuple[Position, EntryHead | None]:
        """Return a position with the metadata of the entry there, or with None if that is not known.

        Pulsar's answer that it does not exist proves nothing: it comes for each entry of a topic that is being
        unloaded.
        """
        try:
            source = self._source
            return position, await source.context.admin.entry_head(source.partition_name, *position)
        except PulsarError:
            return position, None


def _unfinished(answers: Sequence[Stored]) -> list[Stored]:
    """Return the answers of a search that did not see all entries within its bounds: UNFINISHED in the place of
    UNKNOWN.
    """
    unfinished = Stored(Outcome.UNFINISHED)
    return [unfinished if answer.outcome is Outcome.UNKNOWN else answer for answer in answers]
