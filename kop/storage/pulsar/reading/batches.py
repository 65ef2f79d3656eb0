"""Entries of Pulsar as Kafka batches.

Owns: the offsets of each batch, what stands for offsets of which nothing came, the rule by which such a gap is known to
hold no records, what stands for an entry that cannot be read.
Must not know: who reads the batches, who met a gap, how Pulsar is asked, the cache, appends.

What Pulsar does not hand out (transaction markers, aborted messages, what compaction took) still has its offsets: an
empty batch stands for them, so that positions and lag move on.

A Pulsar broker's dispatcher reads all entries in their order from where the reader's cursor stands. It leaves out
markers (of transactions, of replicated subscriptions), the entries of aborted transactions, and what it cannot parse or
is told to filter: no reader is ever sent these. An entry that could not be written may have taken an index, too. Each
of them has an offset, so a gap is there, and what it was made of need not be known.

There is one other way past entries: Pulsar moves cursors of readers as those of subscriptions, when messages expire
(message TTL, `expire-messages`), are skipped, cleared or truncated, and when retention takes ledgers. Whatever moves a
cursor sets its mark-delete position first, and its read position behind that (`ManagedCursorImpl`). The gateway's
readers acknowledge nothing, and a mark-delete position never goes back. So where it still lies before a gap when the
entry behind the gap is here, the dispatcher itself has read all entries in the gap and left them out. One answer of the
Pulsar broker serves all gaps that were met before it was asked.

What the dispatcher leaves out it acknowledges, so the mark-delete position may have come past a gap that directly
follows the place where a reader began. Then, too, nothing is taken for granted: the gap is read by another reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kop.errors import ErrorCode, KopError, PeerError
from kop.pulsar_client import Position, Received, position_in
from kop.records import transcode
from kop.records.entry_places import PlacedEntry
from kop.records.entry_schemas import NO_VERSION
from kop.storage.base import Buffer
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.offsets.mapping import OffsetMapping
from kop.storage.pulsar.reading.stream import Chunks, ChunksMissingError, MessageTooLargeError

log = logging.getLogger(__name__)


class UnreadableEntryError(PeerError):
    """An error CORRUPT_MESSAGE for the offsets of an entry that no Kafka client can get; the log goes on at
    `next_offset`.
    """

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message, ErrorCode.CORRUPT_MESSAGE)
        self.next_offset = next_offset


class Gap(NamedTuple):
    """A gap: the offsets `base` to `last` between two entries that came, and the positions of these two."""

    base: int
    last: int
    entry_before: Position
    entry_behind: Position

    @property
    def has_no_entries(self) -> bool:
        """True if the two entries directly follow each other in a ledger, so that no entry lies in the gap."""
        before, behind = self.entry_before, self.entry_behind
        return before.ledger == behind.ledger and before.entry + 1 == behind.entry

    def passed_over(self, mark_delete: Position | None) -> bool:
        """Return true if Pulsar may have moved the reader over entries in the gap that exist.

        `mark_delete` is the mark-delete position of the reader's cursor after `entry_behind` had come; None if it is
        not known.
        """
        return not self.has_no_entries and (mark_delete is None or mark_delete > self.entry_before)


class Batch(NamedTuple):
    """A batch; or, for an entry that cannot be read, the error that stands for its offsets."""

    base: int
    last: int
    data: Buffer
    error: KopError | None = None
    missing: bool = False
    """True if Pulsar handed out no entry for these offsets."""
    gap: Gap | None = None
    """The gap of missing offsets, if the entry before it was read."""
    place: PlacedEntry | None = None
    """The place of the entry in Pulsar, if the converter tells places."""
    schema: int = NO_VERSION
    """The version of its schema that the entry names."""


class Converter:
    """The converter of entries into Kafka batches, which leaves no record out: a gap becomes an empty batch, an
    unreadable entry an error.
    """

    def __init__(
        self,
        name: str,
        next_offset: int | None,
        mapping: OffsetMapping,
        *,
        append_time: bool,
        count: Callable[[Fault], None],
        max_message_bytes: int,
        on_keyless: Callable[[int], None] | None = None,
        on_raw: Callable[[], None] | None = None,
    ) -> None:
        """Begin at `next_offset`, or with None at the first entry, whatever its offset. `max_message_bytes`: the
        largest chunked message that is put together, stored and decompressed.

        `on_keyless(messages)` is called with an entry that has so many messages without a key, `on_raw()` with one that
        holds Kafka's batches as they came.
        """
        self.mapping = mapping
        self.next_offset = next_offset
        """The offset that is expected next; None if the first entry may have any offset."""
        self.append_time = append_time
        self._name = name
        self._count = count
        self._on_keyless = on_keyless
        self._on_raw = on_raw
        self._max_message_bytes = max_message_bytes
        self._chunks = Chunks(max_message_bytes)
        self._before = -1
        """The last offset of the entry before, if that entry was read; else -1."""
        self._position_before: Position | None = None
        self.torn: set[int] = set()
        """The offsets of chunked messages whose first chunks were not read."""
        self.looks_back = False
        """True if a message without its first chunks is read again from further back, and is no error yet."""
        self.tells_places = False
        """True if batches tell the places of their entries in Pulsar."""
        self.leaves_large = False
        """True if a message that is too large here is left to another reader, and is no error yet."""

    def feed(self, stored: EntryWithOffsets, data: Buffer | None = None) -> list[Batch]:
        """Return the batches of an entry: one, and one for a gap before it; an empty list if it lies before the next
        offset or has no offsets. An entry that cannot be read becomes a batch with its error, which is counted and
        logged.

        `data` is the batch of the entry, if the caller has it.
        """
        batches: list[Batch] = []
        if not stored.has_offsets:
            return batches
        base, last = stored.base, stored.last
        expected = base if self.next_offset is None else self.next_offset
        before, self._before = self._before, last
        position_before, self._position_before = self._position_before, stored.position
        if last < expected:
            if stored.info.num_chunks > stored.info.chunk_id + 1:  # the first chunks of the message that is wanted
                self._chunks.add(stored.info, stored.entry.payload)
            return batches
        # Whoever begins inside a batch gets it whole; one that begins inside the entry before it is miscounted.
        within, self._wanted_within = self._wanted_within and base > before, False
        if stored.error is not None:
            first = min(base, expected) if self.mapping.dense else base
            batches.append(self._unreadable(stored, first, stored.error.message))
            self.next_offset = last + 1
            return batches
        if base > expected:
            if self.mapping.skips(expected, stored):
                gap = position_before and Gap(before + 1, base - 1, position_before, stored.position)
                filler = self.mapping.filler(expected, base - 1)
                batches.append(Batch(expected, base - 1, filler, missing=True, gap=gap))
        elif base < expected and self.next_offset is not None and not within:
            self._count(Fault.ENTRIES_UNREADABLE_MISCOUNTED)
            text = (
                f"{self._name}: the entry at {stored.position.ledger}:{stored.position.entry} has "
                f"{stored.info.num_messages} messages, and Pulsar's index moved by {last - expected + 1}: a producer "
                "counted wrong, or batches were sent in a Pulsar transaction; only Pulsar clients can read these "
                "records"
            )
            log.error("%s", text)
            batches.append(Batch(expected, last, b"", UnreadableEntryError(text, last + 1)))
            self.next_offset = last + 1
            return batches
        self.next_offset = last + 1
        try:
            self.mapping.readable(stored)
            if data is None:
                data = self._convert(stored)
        except MessageTooLargeError as error:
            if self.leaves_large:
                batches.append(Batch(base, last, b"", UnreadableEntryError(error.message, last + 1)))
            else:
                batches.append(self._unreadable(stored, base, error.message))
        except ChunksMissingError as error:
            self.torn.add(last)
            if self.looks_back:
                batches.append(Batch(base, last, b"", UnreadableEntryError(error.message, last + 1)))
            else:
                batches.append(self._unreadable(stored, base, error.message))
        except KopError as error:
            batches.append(self._unreadable(stored, base, error.message))
        else:
            place = self._place(stored) if self.tells_places else None
            batches.append(Batch(base, last, data, place=place, schema=transcode.schema_version(stored.entry.metadata)))
        return batches

    def feed_usual(self, received: Sequence[Received], at: int) -> tuple[list[Batch], int, int]:
        """Return the batches of usual entries from place `at` on among those of one read, as many as follow one
        another.

        No batches if the first one is for `feed`, which knows all entries and makes the same of these. Also returned
        are the number of messages in the entries, and the bytes of their payload.
        """
        expected = self.next_offset
        tells = self.tells_places or self._on_keyless is not None
        if expected is None or self._wanted_within or tells or not self.mapping.dense:
            return [], 0, 0
        made, messages, size = transcode.usual_batches(received, at, expected, self.append_time)
        if made:
            self._position_before = position_in(received, at + len(made) - 1)
            self._before = made[-1][1]
            self.next_offset = self._before + 1
        return [Batch(*batch) for batch in made], messages, size

    @staticmethod
    def _place(stored: EntryWithOffsets) -> PlacedEntry:
        info = stored.info
        return PlacedEntry(stored.base, *stored.position, info.publish_time, info.batched or info.raw)

    def _unreadable(self, stored: EntryWithOffsets, first: int, why: str) -> Batch:
        """Return the error that stands for an entry that cannot be read, from offset `first` on. It is counted and
        logged.
        """
        text = f"{self._name}: entry {stored.position.ledger}:{stored.position.entry}: {why}"
        self._count(Fault.ENTRIES_UNREADABLE_NOT_DECODED)
        log.error("%s; Kafka consumers stop at this entry until they seek past it, or retention takes it", text)
        return Batch(first, stored.last, b"", UnreadableEntryError(text, stored.last + 1))

    @property
    def waiting_bytes(self) -> int:
        """The bytes of chunks whose message is not complete yet."""
        return self._chunks.size

    _wanted_within = False

    def start_within(self) -> None:
        """Accept that the expected offset lies inside of the first entry: the whole entry is then converted."""
        self._wanted_within = True

    def _convert(self, stored: EntryWithOffsets) -> Buffer:
        info, entry = stored.info, stored.entry
        payload: Buffer = entry.payload
        max_bytes = transcode.MAX_UNCOMPRESSED
        if info.num_chunks > 1:
            max_bytes = self._max_message_bytes
            whole = self._chunks.add(info, entry.payload)
            if whole is None:
                return transcode.empty_batch(stored.base, stored.last)
            payload = whole
        if info.raw and self._on_raw is not None:
            self._on_raw()
        time = stored.append_time if self.append_time else None
        return transcode.to_batch(
            entry.metadata,
            payload,
            base_offset=stored.base,
            log_append_time=time,
            view=info,
            max_bytes=max_bytes,
            on_keyless=self._on_keyless,
        )
