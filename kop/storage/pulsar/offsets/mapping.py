"""The Kafka offset of an entry: by the Pulsar brokers' index, or packed from its place in Pulsar.

Owns: the two ways, and all in which they differ.
Must not know: the tail, appends, sockets.

By the index offsets are dense: what comes next follows from what was before, a hole is filled with an empty batch, and
a position is searched for. Packed ones (`kop.pulsar_client.packed`) are a pure function of the position: nothing has to
be known or searched, but every batch and every ledger leaves a gap behind it, as compaction does in Kafka. A fetch at
an offset in a gap is answered with the batch behind it; nothing stands for the gap itself.

The end of a packed log is the number behind its last record. The next record's is higher, so somebody who has read to
the end of a ledger stands in a gap, and when retention takes that ledger, before the log start, with nothing missed:
nobody can tell later what was the ledger's last entry. OFFSET_OUT_OF_RANGE would make most consumers jump over all that
is there, so a log start that is the beginning of a ledger answers older offsets, too; it is counted and logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import EARLIEST, Entry, Position
from kop.pulsar_client.packed import (
    ENTRY_BITS,
    LAST_ENTRY,
    LEDGER_BITS,
    LEDGER_NUMBERS,
    MOST_LEDGERS,
    MOST_MESSAGES,
    PLACE_BITS,
    fits,
    pack,
    unpack,
)
from kop.records import transcode
from kop.storage.pulsar.faults import Fault, Faults
from kop.storage.pulsar.offsets.entry import INDEX_HELP, NOTHING, EntryWithOffsets, view_of
from kop.storage.pulsar.offsets.sparse_index import Ledgers

CLOSE_AT: Final = LAST_ENTRY // 4 * 3
"""The number of entries at which a ledger is closed by unloading the partition."""
REFUSE_AT: Final = LAST_ENTRY // 16 * 15
"""The number of entries at which nothing more is sent to a ledger that did not close."""
LOOK_EVERY: Final = 256
"""The number of entries for which `closes_ledger` is asked once."""
_ASK_EVERY: Final = 1 << 14
"""The number of entries after which closing a ledger is tried again."""


class PartitionEntries(Protocol):
    """The entries of one partition, in the ways that a mapping asks about them. All of it may raise PulsarError and
    KopError.
    """

    @property
    def title(self) -> str:
        """The name of the partition in log lines."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    async def nearest(self, offset: int) -> Position:
        """Return a position from which a reader meets the entry that holds `offset` after a few others at most."""

    async def ledgers(self) -> Ledgers:
        """Ask Pulsar which ledgers the partition has, and return its entries over all of them as one line, on which
        each position has a place.
        """

    async def end_by_index(self) -> int:
        """Return the offset behind the last message that ever was, by the Pulsar brokers' index."""


class OffsetMapping:
    """The mapping between entries and offsets: by the Pulsar brokers' index of messages; or packed, by its subclass.
    All logs of an engine use the same one, and so do all brokers on the same data.
    """

    claim: str = "index"
    """The name of the mapping, on which all brokers have to agree: `index` or `packed`."""
    dense: bool = True
    """True if each offset below the log end belongs to an entry, unless that entry is missing."""
    last_entry: int = 2**63 - 1
    """The number of the last entry of a ledger whose offset may follow from its receipt."""

    def place(self, entry: Entry) -> EntryWithOffsets:
        """Return an entry with its offsets. An entry without an index has none by the index: both are -1. If its
        metadata does not parse, the result has the error. KAFKA_STORAGE_ERROR if the cluster can give no offsets.
        """
        if entry.index is None:
            return EntryWithOffsets(entry.position, -1, -1, entry, NOTHING)
        info, error = view_of(entry)
        # Each chunk moves the index by one, and so does an entry inside a Pulsar transaction, whatever it holds.
        count = info.num_messages if info.num_chunks <= 1 else 1
        return EntryWithOffsets(entry.position, max(entry.index - count + 1, 0), entry.index, entry, info, error)

    def next_base(self, position: Position, end: int) -> int:
        """Return the base offset of an entry at `position` that lies directly behind the log's last one, in the same
        ledger; `end` is the log end before it.
        """
        return end

    def stored_base(self, position: Position, index: int | None, count: int) -> int:
        """Return the base offset of a stored entry of `count` messages, to the last of which the Pulsar broker gave
        `index`.

        KAFKA_STORAGE_ERROR if it can have none.
        """
        if index is None:
            raise KopError(INDEX_HELP, ErrorCode.KAFKA_STORAGE_ERROR)
        return index - count + 1

    def follows(self, end: int, stored: EntryWithOffsets) -> bool:
        """Return true if no offset that could hold a record lies between the log end and an entry."""
        return stored.base == end

    def skips(self, expected: int, stored: EntryWithOffsets) -> bool:
        """Return true if entries are missing before this one: retention or Pulsar itself may have skipped them.
        `expected` is the offset at which the next entry was expected.
        """
        return stored.base > expected

    def filler(self, first: int, last: int) -> bytes:
        """Return the batch without records that stands for the offsets `first` to `last`, where entries are missing;
        empty bytes if none is needed.
        """
        return transcode.empty_batch(first, last)

    def end_filler(self, first: int, last: int) -> bytes:
        """Return the batch without records that brings readers over the offsets `first` to `last` at the end of a
        compacted log.
        """
        return transcode.empty_batch(first, last)

    def readable(self, stored: EntryWithOffsets) -> None:
        """Raise CORRUPT_MESSAGE, and count that, if an entry's messages have no offsets of their own."""

    def reads_on(self, offset: int, start: int) -> bool:
        """Return true if a read from an offset before the log start (`start`) is answered with the records from the
        start on.
        """
        return False

    async def locate(self, entries: PartitionEntries, offset: int, back: int) -> Position:
        """Return the position from which a reader meets the entry that holds `offset`, and chunks up to `back` entries
        before it. An offset before the log start counts as the start.
        """
        return await entries.nearest(max(offset - back, entries.log_start_offset))

    async def emptied_end(self, entries: PartitionEntries) -> int:
        """Return the log end of a partition without entries."""
        return await entries.end_by_index()

    def check(self, entries: Sequence[transcode.SendFrame], last: Position) -> None:
        """Check that a batch, which is to be sent as these entries behind the entry at `last`, can have offsets. If
        not, that is counted and logged, and MESSAGE_TOO_LARGE or KAFKA_STORAGE_ERROR is raised.
        """

    def first_id(self, position: Position, count: int) -> int | None:
        """Return the first of `count` numbers that belong to the entry at `position` alone; None if only the index of
        that entry tells them. BackendError if it can have none.
        """
        return None

    def closes_ledger(self, position: Position) -> bool:
        """Return true if the ledger of the entry at `position` has to be closed now, because it would get more entries
        than offsets can number. If the ledger does not close, it is true again 16,384 entries later.
        """
        return False


class _PackedMapping(OffsetMapping):
    """The mapping by which offsets are packed from message ids. Its faults are counted and logged by `faults`."""

    claim = f"packed-{LEDGER_BITS}-{ENTRY_BITS}-{PLACE_BITS}"
    dense = False
    last_entry = LAST_ENTRY - 1

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._count = faults.count

    def place(self, entry: Entry) -> EntryWithOffsets:
        position = entry.position
        info, error = view_of(entry)
        if not fits(position):
            _refuse_ledger(position)
            last = pack(Position(position.ledger, LAST_ENTRY), MOST_MESSAGES - 1)
            return EntryWithOffsets(position, last, last, entry, info, error)
        base = pack(position)
        count = info.num_messages if info.num_chunks <= 1 else 1
        return EntryWithOffsets(position, base, base + min(count, MOST_MESSAGES) - 1, entry, info, error)

    def next_base(self, position: Position, end: int) -> int:
        return pack(position)

    def stored_base(self, position: Position, index: int | None, count: int) -> int:
        if not fits(position):
            _refuse_ledger(position)
            raise BackendError(f"entry {position.entry} of ledger {position.ledger} has no offsets")
        return pack(position)

    def follows(self, end: int, stored: EntryWithOffsets) -> bool:
        return stored.base >= end and fits(stored.position)

    def skips(self, expected: int, stored: EntryWithOffsets) -> bool:
        if stored.base <= expected or expected < 1:
            return False
        before, _ = unpack(expected - 1)
        return stored.position != Position(before.ledger, before.entry + 1)

    def filler(self, first: int, last: int) -> bytes:
        return b""

    def end_filler(self, first: int, last: int) -> bytes:
        # Consumers go on behind the last offset of a batch, wherever it begins; all of the gap may be too much for one.
        return transcode.empty_batch(last, last)

    def readable(self, stored: EntryWithOffsets) -> None:
        if not fits(stored.position):
            text = (
                f"a ledger has offsets for {LAST_ENTRY} entries, then none until it is closed: unload the topic "
                "(pulsar-admin topics unload); these records can be read by Pulsar clients only"
            )
        elif stored.info.num_messages > MOST_MESSAGES:
            text = (
                f"{stored.info.num_messages} messages in one entry, packed offsets are there for {MOST_MESSAGES}: let "
                "its producer make smaller batches (batchingMaxMessages); these can be read by Pulsar clients only"
            )
        else:
            return
        self._count(Fault.PACKED_OFFSETS_ENTRY_BEYOND)
        raise PeerError(text, ErrorCode.CORRUPT_MESSAGE)

    def reads_on(self, offset: int, start: int) -> bool:
        return offset >= 0 and start % LEDGER_NUMBERS == 0

    async def locate(self, entries: PartitionEntries, offset: int, back: int) -> Position:
        start = entries.log_start_offset
        if offset < start:
            self._count(Fault.PACKED_OFFSETS_READ_BEFORE_LOG_START)
            self._faults.tell(
                ("before the start", entries.title),
                f"{entries.title}: offset {offset} is older than the log start {start}, the oldest records answer: "
                "retention took a ledger since, whether with records behind that offset is not known",
            )
        position, _ = unpack(max(offset, start))
        if not back:
            return position
        ledgers = await entries.ledgers()
        at = ledgers.place(position)
        return EARLIEST if at is None or at < back else ledgers.position(at - back)

    async def emptied_end(self, entries: PartitionEntries) -> int:
        """Return the beginning of the newest ledger: behind all records that were there, and not behind those that
        come.
        """
        newest = (await entries.ledgers()).newest
        _refuse_ledger(Position(newest, 0))
        return pack(Position(newest, 0))

    def check(self, entries: Sequence[transcode.SendFrame], last: Position) -> None:
        # All records of a batch have one base offset, and entries have gaps between them: a batch in pieces has none.
        records = entries[-1].first + entries[-1].num_messages
        error: KopError
        if len(entries) > 1:
            error = PeerError(
                f"the batch of {records} records is larger than a Pulsar entry may be, and with packed offsets it "
                "cannot be split: send smaller ones (batch.size, batch.num.messages)",
                ErrorCode.MESSAGE_TOO_LARGE,
            )
        elif records > MOST_MESSAGES:
            error = PeerError(
                f"the batch has {records} records, and with packed offsets it may have {MOST_MESSAGES}: send smaller "
                "ones (batch.size, batch.num.messages)",
                ErrorCode.MESSAGE_TOO_LARGE,
            )
        elif last.entry >= REFUSE_AT:
            error = BackendError(
                f"ledger {last.ledger} has {last.entry + 1} entries, packed offsets can number {LAST_ENTRY + 1}, and "
                "Pulsar has not closed the ledger: see the warnings before this one; clients try again"
            )
        else:
            return
        self._count(Fault.PACKED_OFFSETS_BATCH_BEYOND)
        self._faults.tell(("refused", error.code), f"a batch is refused: {error.message}")
        raise error

    def first_id(self, position: Position, count: int) -> int | None:
        _refuse_ledger(position)
        if not fits(position):
            raise BackendError("the ledger of the gateway's own topic is full: unload it (pulsar-admin topics unload)")
        if count > MOST_MESSAGES:
            raise BackendError(
                f"{count} producer ids at once are too many: with packed offsets {MOST_MESSAGES} are possible"
            )
        return pack(position)

    def closes_ledger(self, position: Position) -> bool:
        return position.entry >= CLOSE_AT and position.entry % _ASK_EVERY < LOOK_EVERY


def _refuse_ledger(position: Position) -> None:
    if position.ledger >= MOST_LEDGERS:
        raise KopError(
            f"ledger {position.ledger} is beyond what packed offsets can hold ({MOST_LEDGERS - 1}): this cluster needs "
            "kop.pulsar.offsets=index",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )


def offset_mapping(name: str, faults: Faults) -> OffsetMapping:
    """Return the mapping between entries and offsets of that name, `index` or `packed`."""
    return _PackedMapping(faults) if name == "packed" else OffsetMapping()
