"""The appends of one partition, from the batch to its offset.

Owns: batches under way and their entries, receipts that have no offset yet, which offset each entry of ours has.
Must not know: how a producer is opened, Kafka's sequences, who reads.

A receipt tells an entry's position (ledger, entry) and not its offset. The first of these that knows tells the offset:

1. The chain: the entry lies directly behind the log's last one in the same ledger. This is the case of nearly all. The
   entry is placed: the log ends behind it, and it is served in the bytes that came in.
2. The tail brings the entry.
3. Pulsar's REST interface is asked for the entry, where the tail is late: a dispatch rate, an open transaction or a
   transaction buffer that is not recovered hold readers back, and not producers. Such an entry is answered and not
   placed: the log ends where readers may read. The chain goes on behind it, so that one question answers many entries.

An entry of a transaction is answered as one of which the tail is late, and never placed: readers may get it when the
transaction is committed, and that is when the tail brings it; its bytes are kept until then (`OpenBatches`). An
aborted one the tail never brings. Pulsar is asked for the offset of the fence before it as soon as that is stored:
mostly the chain goes on from there.

A receipt that says "duplicate" tells no position: an earlier copy is stored somewhere. The tail brings it, or the last
entries of the log are searched for it (`reading/stored_batches.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from kop.errors import BackendError, ErrorCode, KopError, PeerError, without_frames
from kop.pulsar_client import Position, PulsarError
from kop.pulsar_client.backoff import Backoff
from kop.pulsar_client.pending import PendingEntry
from kop.records import transcode
from kop.records.batch import BatchHeader, max_timestamp_of, stamp, stamp_log_append_time
from kop.storage.base import AppendResult, AppendWaiter, Buffer
from kop.storage.pulsar.faults import Fault, Faults
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.offsets.mapping import OffsetMapping
from kop.storage.pulsar.partition.write_budget import WriteBudget
from kop.storage.pulsar.reading.source import LogBounds
from kop.storage.pulsar.reading.stored_batches import Outcome, Stored, Wanted

LATE_TAIL_SECONDS: Final = 0.1
"""The seconds for which the tail is waited for before Pulsar is asked for an entry's place."""
PLACE_SECONDS: Final = 10.0
"""The seconds that a client waits for the offset of a batch that is stored; clients wait 30 s for an answer."""
QUESTION_SECONDS: Final = 3.0
"""The seconds that one question to Pulsar may take before it is asked again: those of a round wait for each other."""
_HELD_SECONDS: Final = 1.0
"""The seconds for which, after Pulsar told of an entry that the tail had not brought, questions are asked at once."""
_ASK_AT_ONCE: Final = 8
_MOST_UNVERIFIED: Final = 100_000
"""The most entries that the chain may be ahead of the tail."""

_NOTHING: Final = bytearray()
_log = logging.getLogger(__name__)


_BATCH_BYTES = 200
"""The bytes that a kept batch costs beside its own."""


class OpenBatches:
    """The batches of open transactions that this broker wrote, until the tail brings them: one object for all
    partitions.

    A batch of a transaction follows in the log when Pulsar hands it out, which is after the commit. Then it is served
    in the bytes that came in, as batches without a transaction are, and need not be made of Pulsar's entry again. One
    that is not kept any more, or was written by another broker, is made of its entry. A batch is known by its keeper,
    one object for each partition, and by its entry's position.
    """

    def __init__(self, max_bytes: int, on_change: Callable[[int], None] | None = None) -> None:
        """Keep at most so many bytes. `on_change(size)` is called with the bytes kept, each time they change."""
        self._max_bytes = max_bytes
        self._on_change = on_change
        self._kept: dict[tuple[object, Position], Buffer] = {}
        self.size = 0
        """The bytes kept, with an allowance for each batch."""

    def keep(self, owner: object, position: Position, data: Buffer) -> None:
        """Keep the batch of the entry at `position` in the partition of `owner`. The oldest ones of any partition are
        dropped to make room; this one is, too, if it alone has more bytes than may be kept.
        """
        self.take(owner, position)
        self._kept[owner, position] = data
        self.size += len(data) + _BATCH_BYTES
        while self.size > self._max_bytes:
            self.take(*next(iter(self._kept)))
        if self._on_change is not None:
            self._on_change(self.size)

    def take(self, owner: object, position: Position) -> Buffer | None:
        """Return a kept batch and drop it; None if it was not kept."""
        data = self._kept.pop((owner, position), None)
        if data is not None:
            self.size -= len(data) + _BATCH_BYTES
            if self._on_change is not None:
                self._on_change(self.size)
        return data


class Append:
    """A batch from `submit` until its offset is known, with the callers that wait for the offset."""

    __slots__ = (
        "base", "batch", "budget", "error", "from_zero", "header", "left", "place", "same", "scattered", "throttle_ms",
        "time", "txn", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        batch: bytearray,
        header: BatchHeader,
        txn: transcode.EntryTransaction | None,
        waiter: AppendWaiter,
        place: int,
        budget: WriteBudget,
        *,
        from_zero: bool = False,
    ) -> None:
        budget.take(len(batch))
        self.batch = batch
        """The bytes of the batch; empty when the append has ended, since its producer's window keeps the append
        longer.
        """
        self.header = header
        self.txn = txn
        """The Pulsar transaction that the batch belongs to; None for none."""
        self.waiter = waiter
        """The object that is told the offset or the error, with `place`."""
        self.place = place
        self.budget = budget
        self.from_zero = from_zero
        """True if the producer begins each of its epochs at sequence 0; see `PartitionLog.submit`."""
        self.same: list[Append] | None = None
        """The appends of the same batch, which its client sent again: they end as this one."""
        self.left = 0
        """The number of entries of the batch that have neither an offset nor an error yet."""
        self.base = -1
        """The offset of the first record; -1 while it is not known."""
        self.time = -1
        self.throttle_ms = 0
        self.scattered = False
        """True if other records lie between entries of the batch, so that no base offset tells the places of all its
        records.
        """
        self.error: KopError | None = None

    @classmethod
    def ended(cls, header: BatchHeader, base: int, budget: WriteBudget) -> Append:
        """Return an append that has ended with that offset, for its producer's window."""
        append = cls(_NOTHING, header, None, NOBODY, 0, budget)
        append.base = base
        return append

    def reserve(self, size: int) -> None:
        """Tell the waiter that the batch will be decompressed to `size` bytes, or to so many fewer than it was told, if
        below zero. BackendError if the request of the batch has used up its share of such bytes.
        """
        self.waiter.reserve(size)

    def end_as(self, original: Append) -> None:
        """End when `original` ends, and with the same result: both were sent the same batch."""
        if original.same is None:
            original.same = []
        original.same.append(self)

    @property
    def idempotent(self) -> bool:
        """True if the batch has a producer id, so that its client understands DUPLICATE_SEQUENCE_NUMBER."""
        return self.header.producer_id >= 0

    def has_sequences_of(self, header: BatchHeader) -> bool:
        """Return true if this batch and another one of the same producer and epoch have the same first and last
        sequence.
        """
        own = self.header
        return (own.base_sequence, own.last_sequence) == (header.base_sequence, header.last_sequence)

    @property
    def placed(self) -> bool:
        """True if the offset of the first record is known, and all others follow from it."""
        return self.base >= 0 and not self.scattered

    def lies_at(self, base: int, first: int) -> None:
        """Set the batch's offset by one of its entries: the entry that begins with the batch's record number `first`
        has the offset `base`. If another entry told another offset before, the batch is marked as scattered.
        """
        base -= first
        if self.base < 0:
            self.base = base
        elif base != self.base:
            self.scattered = True

    def refuse(self, error: KopError) -> None:
        """Let the batch fail with `error` once its last entry has ended."""
        self.error = without_frames(error)

    def end(self, log_start_offset: int) -> None:
        """Tell the waiter the offset, or the error of `refuse`, with the log's start, and drop all of the batch but its
        offset and sequences; its bytes are given back to the write budget.

        A batch whose entries lie apart has no offset: DUPLICATE_SEQUENCE_NUMBER if it is idempotent. Appends of the
        same batch, which its client sent again, end likewise.
        """
        error = self.error
        self.budget.give_back(len(self.batch))
        self.error, self.batch = None, _NOTHING
        if error is not None:
            self.base = -1
        elif self.scattered:
            self.base = -1
            if self.idempotent:
                error = PeerError(
                    "the batch is stored, but records of others lie between its own",
                    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                )
        try:
            if error is not None:
                self.waiter.append_failed(self.place, error)
            else:
                self.waiter.appended(self.place, AppendResult(self.base, self.time, log_start_offset, self.throttle_ms))
        except Exception:  # the other callers still have to be told
            _log.exception("a client could not be told what became of its batch")
        self.waiter = NOBODY
        if self.same is not None:
            same, self.same = self.same, None
            for append in same:
                append.base, append.time, append.throttle_ms = self.base, self.time, self.throttle_ms
                append.error = error
                append.end(log_start_offset)


class _Nobody:
    """The `AppendWaiter` of an append that has ended, so that the append keeps no request in memory."""

    def reserve(self, size: int) -> None:
        """Do nothing: the append has ended, and no request counts its bytes."""

    def appended(self, place: int, result: AppendResult) -> None:
        """Do nothing: the append has ended, and its waiter was told."""

    def append_failed(self, place: int, error: KopError) -> None:
        """Do nothing: the append has ended, and its waiter was told."""


NOBODY: Final = _Nobody()


class EntryProducer(Protocol):
    """The producer that sent an entry, as the entry knows it."""

    @property
    def name(self) -> str:
        """The producer's name in Pulsar."""

    def received(self, receipts: Sequence[tuple[InFlightEntry, int, int]]) -> None:
        """Handle receipts of entries, each with its ledger and entry number; both are -1 for an entry that was stored
        before.
        """

    def others_are_stored(self, entry: InFlightEntry) -> None:
        """Handle that Pulsar dropped an entry because other entries have its sequence ids."""

    def entry_failed(self, entry: InFlightEntry, error: PulsarError) -> None:
        """Handle that no receipt of an entry will come: EntryRefusedError if Pulsar refused it, so that it is not
        stored; with any other error it may be stored or not. The entry's append fails, unless Pulsar has a copy of it
        from before.
        """


class InFlightEntry(PendingEntry):
    """One entry of a batch from sending to its offset; most batches are one entry.

    The entry is in the queue of its Pulsar producer until its receipt comes, and in `Appends` from then on.
    """

    __slots__ = ("append", "before", "done", "first", "is_stored", "producer", "sent", "sent_again", "since", "whole")

    def __init__(
        self,
        append: Append,
        made: transcode.SendFrame,
        producer_id: int,
        sequence_id: int,
        whole: bool,
        producer: EntryProducer,
        sent: float,
        before: int,
    ) -> None:
        super().__init__(made.frame, made.entry_size, producer_id, sequence_id, sequence_id + made.num_messages - 1)
        self.append = append
        self.first = made.first
        self.whole = whole
        """True if the batch is this one entry. The frame of an entry of a split batch is kept until it is served."""
        self.done = False
        self.is_stored = False
        """True if Pulsar has said that the entry is stored, so that only its offset is missing."""
        self.producer = producer
        self.sent = sent
        """The loop's time at which the entry was sent."""
        self.before = before
        """The bytes of this producer's entries that Pulsar had answered when this one was sent."""
        self.sent_again = False
        """True if Pulsar may have a copy already: the entry is sent to learn if that is so."""
        self.since = 0.0
        """The loop's time from which on the entry waits for its offset."""

    @property
    def in_transaction(self) -> bool:
        """True if the entry belongs to a transaction: readers get it when that is committed."""
        return self.append.txn is not None

    @property
    def count(self) -> int:
        """The number of records in the entry."""
        return self.highest_sequence_id - self.sequence_id + 1

    @property
    def stored_range(self) -> tuple[int, int]:
        """The sequence id and the number of the records of which an earlier copy is looked for.

        They are those of the entry; if it was sent again to learn if Pulsar has a copy, those of its whole batch, which
        may have been split otherwise when it was stored.
        """
        if self.sent_again:
            return self.sequence_id - self.first, self.append.header.last_offset_delta + 1
        return self.sequence_id, self.count

    def stored(self, position: Position) -> None:
        """Hand the entry's receipt to its producer."""
        self.producer.received(((self, *position),))

    def failed(self, error: PulsarError) -> None:
        """Tell the entry's producer that no receipt will come."""
        self.producer.entry_failed(self, error)


class EntryPlace(NamedTuple):
    """The offset and the time of a stored entry, as Pulsar tells them."""

    base: int
    """The offset of the entry's first message."""
    append_time: int
    """The time at which the Pulsar broker took the entry, in ms."""


class PlacedBatch(NamedTuple):
    """An entry of this broker that follows as the next one in its log."""

    entry: int
    """The entry's number in its ledger."""
    last: int
    """The offset of the entry's last record."""
    data: Buffer
    max_timestamp: int
    """The largest timestamp in the entry, in ms."""


PlacedFields: TypeAlias = tuple[int, int, Buffer, int]
"""The type of a plain tuple with the fields of a `PlacedBatch`."""
StoredEntry: TypeAlias = tuple[InFlightEntry, Position]
"""The type of an entry that Pulsar stored, with its position."""


class LogEnd(LogBounds, Protocol):
    """The end of the log, behind which appends are placed."""

    attached: bool
    end_has_offset: bool
    """True if the entry at `last_position` has offsets, from which the next entry's offset follows."""

    @property
    def title(self) -> str:
        """The partition as log lines name it."""

    def place(self, ledger: int, batches: Sequence[PlacedFields]) -> None:
        """Put entries of that ledger, which this broker wrote, behind the log's end."""

    def detach(self, error: KopError) -> None:
        """Make the log attach again, because its end as it is known is wrong."""

    @property
    def known_start(self) -> int:
        """The log start; -1 if it is not known yet."""

    def look_at_clock(self, max_timestamp: int) -> None:
        """Note if a stored record's timestamp, in ms, is ahead of Pulsar's clock."""


class Appends:
    """The appends of one log that have no offset yet.

    `ask_place(position, count)` asks Pulsar where a stored entry of `count` records lies, `search(wanted)` finds stored
    entries by producer and sequence id; both may raise PulsarError and KopError. `tail_is_late()` is called where an
    entry was answered that the tail did not bring in time, `needs_tail()` where an entry waits for what it brings.
    """

    def __init__(
        self,
        log: LogEnd,
        loop: asyncio.AbstractEventLoop,
        mapping: OffsetMapping,
        open_batches: OpenBatches,
        *,
        faults: Faults,
        ask_place: Callable[[Position, int], Awaitable[EntryPlace]],
        search: Callable[[Sequence[Wanted]], Awaitable[Sequence[Stored]]],
        tail_is_late: Callable[[], None],
        needs_tail: Callable[[], None],
    ) -> None:
        self._log = log
        self._loop = loop
        self._mapping = mapping
        self._open_batches = open_batches
        self._faults = faults
        self._count = faults.count
        self._ask_place = ask_place
        self._search = search
        self._tail_is_late = tail_is_late
        self._needs_tail = needs_tail
        self._stored: dict[Position, InFlightEntry] = {}
        """The entries that are stored and have no offset yet, by position: neither the chain nor the tail has reached
        them.
        """
        self.verified_by_tail = True
        """True if the tail will bring the placed entries, so that offsets can be compared. It does not while it
        pauses.
        """
        self._unverified: deque[tuple[Position, int]] = deque()
        """The entries that the chain has placed and the tail has not brought yet: position, last offset."""
        self._answered: dict[Position, int] = {}
        """The last offsets of entries, by position, that were answered before the tail came so far, and are not
        placed.
        """
        self._anchor: tuple[Position, int] | None = None
        """The position of an entry ahead of the log's end that has a known offset, and the offset behind it."""
        self._duplicates: dict[InFlightEntry, None] = {}
        """The entries of which Pulsar has an earlier copy, at a position that is not known yet."""
        self._met_gap = False
        """True if the loop's next turn looks for others' entries between the log's end and an entry of this broker."""
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asking_fences: dict[Position, asyncio.Task[None]] = {}
        self._searching: asyncio.Task[None] | None = None
        self._held_until = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._stored or self._duplicates)

    @property
    def ahead_of_tail(self) -> bool:
        """True if entries were answered that lie behind the log's end: the tail has to bring them."""
        return bool(self._answered)

    # --- what becomes of an entry

    def stored(self, stored: Sequence[StoredEntry]) -> None:
        """Handle receipts: place the entries whose offsets follow from them, and end the append of a batch with its
        last entry. Other entries are kept until the tail or a question to Pulsar tells their offsets.
        """
        chained = self._chain_together(stored)
        for entry, position in stored[chained:]:
            self._stored_apart(entry, position)

    def _chain_together(self, stored: Sequence[StoredEntry]) -> int:
        """Place as many of the first of these entries as follow one another directly behind the log's end, and end
        their appends; return their number.

        It does for them together what `_stored_apart` does for each, in the case of nearly all.
        """
        log, mapping = self._log, self._mapping
        if self._stored or not self._may_chain():
            return 0
        last, end = log.last_position, log.high_watermark
        placed: list[PlacedBatch] = []
        for entry, position in stored[: _MOST_UNVERIFIED - len(self._unverified)]:
            append = entry.append
            if (
                position.entry != last.entry + 1
                or position.ledger != last.ledger
                or last.entry >= mapping.last_entry
                or not entry.whole
                or append.txn is not None
                or entry.done
            ):
                break
            last = position
            base = end if mapping.dense else mapping.next_base(position, end)
            end = base + entry.count
            append.lies_at(base, 0)
            stamp(append.batch, base)
            placed.append(PlacedBatch(position.entry, end - 1, append.batch, append.header.max_timestamp))
        if placed:
            self.place_directly(last.ledger, placed)
            for entry, _ in stored[: len(placed)]:
                entry.is_stored = True
                self._done(entry)
        return len(placed)

    def place_directly(self, ledger: int, placed: Sequence[PlacedFields]) -> None:
        """Place entries of a ledger that directly follow the log's last one and each other, so that their offsets are
        known. While the tail runs, these offsets are kept, to be compared with those of the entries that it brings.
        """
        if self.verified_by_tail:
            self._unverified += [(Position(ledger, entry), last) for entry, last, _, _ in placed]
        self._log.place(ledger, placed)

    @property
    def places_directly(self) -> bool:
        """True if an entry of this broker directly behind the log's last one has its offset by its place, and no entry
        waits for its offset; see `place_directly`.
        """
        return not self._stored and self._mapping.dense and self._may_chain()

    def _stored_apart(self, entry: InFlightEntry, position: Position) -> None:
        """Handle one receipt: place its entry, and those that waited for it, if their offsets follow from that.
        Otherwise the entry is kept, and the tail has to tell its offset, or Pulsar is asked for it.
        """
        if entry.done:
            return
        entry.is_stored = True
        if entry.whole:
            entry.frame = b""
        if not entry.in_transaction and self._comes_next(position):
            self._chain(entry, position)
            if not self._stored:
                return
        else:
            self._stored[position] = entry
        self.follow()
        if self._stored and not entry.done:
            entry.since = self._loop.time()
            if not self._met_gap:
                self._met_gap = True
                self._loop.call_soon(self._look_at_gap)

    def _look_at_gap(self) -> None:
        """Let the tail bring the missing entries, if any entry still waits for its offset once all receipts of one read
        of the socket were handled; if the tail is late, Pulsar is asked.

        Receipts come producer by producer, so that a later entry may get its receipt before an earlier one.
        """
        self._met_gap = False
        if self._stored:
            self._needs_tail()
            self._wait_for_tail(min(self._stored))

    def duplicate(self, entry: InFlightEntry, *, old: bool, refused: bool = False) -> None:
        """Look for the earlier copy of an entry whose receipt says that it is a duplicate.

        `refused`: Pulsar refused the entry now, and is known to have stored a copy before. `old`: the tail will not
        bring that copy any more.
        """
        if entry.done:
            return
        entry.is_stored = not refused
        entry.since = self._loop.time() - (LATE_TAIL_SECONDS if old else 0)
        self._duplicates[entry] = None
        self._needs_tail()
        if self._searching is None:
            self._searching = self._loop.create_task(self._find_duplicates())

    def searched(self, producer_name: str, sequence_id: int, count: int) -> InFlightEntry | None:
        """Return the entry with this sequence id and number of records whose earlier copy is being looked for; None if
        there is none.
        """
        for entry in self._duplicates:
            if (entry.sequence_id, entry.count) == (sequence_id, count) and entry.producer.name == producer_name:
                return entry
        return None

    def failed(self, entry: InFlightEntry, error: KopError) -> None:
        """Fail the append of an entry that was refused, or of which nobody knows if it is stored: its client is told
        `error` once all entries of the batch have ended. Nothing happens to an entry that has ended.
        """
        if not entry.done:
            entry.append.refuse(error)
            self._done(entry)

    def fail_all(self, error: KopError) -> None:
        """Fail the entries that are stored and have no offset with `error`: the topic is gone, or the engine closes."""
        entries = [*self._stored.values(), *self._duplicates]
        self._stored.clear()
        self._duplicates.clear()
        for entry in entries:
            self.failed(entry, error)

    def close(self) -> None:
        """Fail all entries that wait for an offset, since the engine is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in (self._asking, self._searching, *self._asking_fences.values()):
            if task is not None:
                task.cancel()
        self.fail_all(BackendError("the storage engine is closed"))
        self._forget_answered()

    def _done(self, entry: InFlightEntry) -> None:
        entry.done = True
        if entry.is_stored:
            entry.frame = b""
        append = entry.append
        append.left -= 1
        if append.left <= 0:
            append.end(self._log.known_start)

    def _give_up(self, entry: InFlightEntry, text: str) -> None:
        """Fail an entry whose offset was not found in time with REQUEST_TIMED_OUT and the reason `text`, and count
        that. The client sends it again, and may get the offset then.
        """
        self._count(Fault.OFFSETS_UNKNOWN_NOT_FOUND_IN_TIME)
        self.failed(entry, BackendError(f"{self._log.title}: {text}", ErrorCode.REQUEST_TIMED_OUT))

    # --- the chain

    def _comes_next(self, position: Position) -> bool:
        """Return true if an entry of this broker at this position directly follows the log's end, so that its offset is
        known.
        """
        log = self._log
        last = log.last_position
        return (
            position.entry == last.entry + 1
            and position.ledger == last.ledger
            and last.entry < self._mapping.last_entry
            and self._may_chain()
        )

    def _may_chain(self) -> bool:
        """Return true if the offset of an entry directly behind the log's end follows from its place."""
        log = self._log
        return (
            log.attached
            and log.end_has_offset
            and len(self._unverified) < _MOST_UNVERIFIED
            and not log.policy.log_append_time  # only the tail, or Pulsar when it is asked, knows the append time
        )

    def _chain(self, entry: InFlightEntry, position: Position) -> None:
        base = self._mapping.next_base(position, self._log.high_watermark)
        if self.verified_by_tail:
            self._unverified.append((position, base + entry.count - 1))
        self._place(entry, position, base, -1)

    def follow(self) -> None:
        """Give offsets to waiting entries that directly follow an entry with a known offset, and answer them. Those
        that directly follow the log's end are placed, up to the first one of a transaction; those behind it are
        answered only.
        """
        log = self._log
        while self._stored:
            last = log.last_position
            position = Position(last.ledger, last.entry + 1)
            entry = self._stored.get(position)
            if entry is None or not self._comes_next(position):
                break
            if entry.in_transaction:
                if self._anchor is None or self._anchor[0] < last:
                    self._anchor = last, log.high_watermark
                break
            self._chain(self._stored.pop(position), position)
        if self._anchor is not None and not log.policy.log_append_time:
            self._follow_anchor(*self._anchor)

    def _follow_anchor(self, last: Position, end: int) -> None:
        log, mapping = self._log, self._mapping
        if log.attached and last < log.last_position:
            self._anchor = None
            return
        while self._stored and last.entry < mapping.last_entry:
            position = Position(last.ledger, last.entry + 1)
            entry = self._stored.pop(position, None)
            if entry is None:
                break
            base = mapping.next_base(position, end)
            last, end = position, base + entry.count
            self._anchor = last, end
            self._answer(entry, position, base, -1)

    def tail_pauses(self) -> None:
        """Expect no entries from the tail, which pauses, until `tail_goes_on`; told offsets are not compared then."""
        self.verified_by_tail = False
        self._unverified.clear()

    def tail_goes_on(self) -> None:
        """Expect the tail to bring all entries that are placed from now on."""
        self.verified_by_tail = True

    def tail_left(self) -> None:
        """Go on after the loss of the tail. Offsets that are known stay known; Pulsar is asked for others."""
        log = self._log
        if log.end_has_offset and (self._anchor is None or self._anchor[0] < log.last_position):
            self._anchor = log.last_position, log.high_watermark
        self._unverified.clear()
        self._forget_answered()
        self.follow()
        for position in self._stored:
            self._wait_for_tail(position)
            break

    def _forget_answered(self) -> None:
        for position in self._answered:
            self._open_batches.take(self, position)
        self._answered.clear()

    # --- the tail's word

    def verify(self, tail_entry: EntryWithOffsets) -> None:
        """Compare the offset of an entry that the tail brought with the one that this broker told for it, if it told
        one; detach the log, with a log line, if they differ. Placed entries that the tail left out are counted as a
        fault.
        """
        while self._unverified and self._unverified[0][0] < tail_entry.position:
            self._unverified.popleft()
            self._count(Fault.ENTRIES_PASSED_OVER_ACKNOWLEDGED)
        if self._unverified and self._unverified[0][0] == tail_entry.position:
            _, last = self._unverified.popleft()
            self._compare(tail_entry, last)
        else:
            self._verify_answer(tail_entry)

    def _verify_answer(self, tail_entry: EntryWithOffsets) -> None:
        answered, position = self._answered, tail_entry.position
        if answered and (last := answered.pop(position, None)) is not None:
            self._compare(tail_entry, last)
        while answered and (first := next(iter(answered))) < position:
            del answered[first]  # the transaction of this entry was aborted, so the tail does not bring it
            self._open_batches.take(self, first)

    def kept(self, tail_entry: EntryWithOffsets) -> Buffer | None:
        """Return the batch of this broker's entry that the tail brought, in the bytes that the client sent, if they are
        kept and the offset that was told is right; else None. In any case they are not kept any more.
        """
        position = tail_entry.position
        data = self._open_batches.take(self, position)
        return data if self._answered.get(position) == tail_entry.last else None

    def at(self, tail_entry: EntryWithOffsets) -> InFlightEntry | None:
        """Return this broker's entry that the tail brought, if its receipt came before and it still waits for its
        offset, and let it wait no longer; else None. If its offset was told already, that is compared as by `verify`.
        """
        self._verify_answer(tail_entry)
        return self._stored.pop(tail_entry.position, None)

    def _compare(self, tail_entry: EntryWithOffsets, last: int) -> None:
        if last == tail_entry.last:
            return
        self._count(Fault.OFFSETS_TOLD_WRONG)
        _log.error(
            "%s: entry %d:%d has offset %d, and its producer was told %d: all offsets are read from Pulsar again",
            self._log.title, tail_entry.position.ledger, tail_entry.position.entry, tail_entry.last, last,
        )  # fmt: skip
        self._log.detach(BackendError(f"the offsets of {self._log.title} are read from Pulsar again"))
        self._anchor = None

    def brought(self, entry: InFlightEntry, tail_entry: EntryWithOffsets) -> bool:
        """Place an entry of this broker that the tail brought, in the bytes that the client sent; return true if that
        was done.

        It is not done if the entry lies behind a gap, or if Pulsar counts its records otherwise.
        """
        log = self._log
        if (
            entry.done
            or entry.in_transaction
            or entry.count != tail_entry.info.num_messages
            or not self._mapping.follows(log.high_watermark, tail_entry)
        ):
            return False
        self._stop_search(entry)
        self._place(entry, tail_entry.position, tail_entry.base, self._append_time(tail_entry))
        return True

    def settle_apart(self, entry: InFlightEntry, tail_entry: EntryWithOffsets, end: int) -> None:
        """Answer an entry of this broker that the tail brought, but do not place it; `end` was the log end before it.

        If its records have no offsets of their own there, the append of an idempotent producer ends without an offset
        (DUPLICATE_SEQUENCE_NUMBER), any other one fails.
        """
        if entry.done:
            return
        self._stop_search(entry)
        append = entry.append
        if end <= tail_entry.base == tail_entry.last - entry.count + 1:
            append.lies_at(tail_entry.base, entry.first)
            append.time = self._append_time(tail_entry)
        elif append.idempotent:
            append.scattered = True
        else:
            text = f"{self._log.title}: the batch is stored, but its records have no offsets of their own"
            append.refuse(BackendError(text))
        self._done(entry)

    def _stop_search(self, entry: InFlightEntry) -> None:
        """End the search for an earlier copy of the entry, because the copy's position is known."""
        self._duplicates.pop(entry, None)

    def _append_time(self, tail_entry: EntryWithOffsets) -> int:
        return tail_entry.append_time if self._log.policy.log_append_time else -1

    def _place(self, entry: InFlightEntry, position: Position, base: int, append_time: int) -> None:
        """Place an entry of this broker as the log's next one, to be served in the bytes that the client sent."""
        append = entry.append
        append.lies_at(base, entry.first)
        append.time = append_time
        data: Buffer
        if entry.whole:
            data = append.batch
            stamp(append.batch, base)
            if append_time >= 0:
                stamp_log_append_time(append.batch, append_time)
        else:
            metadata, payload = transcode.entry_in(entry.frame)
            data = transcode.to_batch(
                metadata, payload, base_offset=base, log_append_time=append_time if append_time >= 0 else None
            )
        batch = PlacedBatch(position.entry, base + entry.count - 1, data, max_timestamp_of(data))
        self._log.place(position.ledger, (batch,))
        self._done(entry)

    # --- asking Pulsar where an entry lies

    def _answer(self, entry: InFlightEntry, position: Position, base: int, append_time: int) -> None:
        """Answer an entry of this broker, whose offset is known, without placing it: the log does not end behind it
        yet. The offset is kept until the tail brings the entry, to be compared, and so are the bytes of a batch of a
        transaction.
        """
        log = self._log
        if log.attached and position > log.last_position and len(self._answered) < _MOST_UNVERIFIED:
            self._answered[position] = base + entry.count - 1
            if entry.in_transaction and entry.whole and not entry.append.scattered and not log.policy.log_append_time:
                stamp(entry.append.batch, base)
                self._open_batches.keep(self, position, entry.append.batch)
        elif not log.policy.log_append_time:
            log.look_at_clock(entry.append.header.max_timestamp)  # the tail may never bring it
        entry.append.lies_at(base, entry.first)
        entry.append.time = append_time
        self._done(entry)

    def _wait_for_tail(self, position: Position) -> None:
        if self._asking is not None or self._timer is not None:
            return
        self._timer = self._loop.call_later(self._patience(position, self._loop.time()), self._tail_was_late)

    def _patience(self, position: Position, now: float) -> float:
        """Return the seconds for which the tail may still bring an entry before Pulsar is asked: 0.1, or 0 if the tail
        will not bring it, or was late for other entries within the last second.
        """
        log = self._log
        entry = self._stored.get(position)
        brings = log.attached and position > log.last_position and not (entry is not None and entry.in_transaction)
        return LATE_TAIL_SECONDS if brings and now >= self._held_until else 0.0

    def _tail_was_late(self) -> None:
        self._timer = None
        if self._stored and self._asking is None:
            self._asking = self._loop.create_task(self._ask())

    async def _ask(self) -> None:
        """Ask Pulsar for the offsets of entries, again and again, until no entry waits for its offset any more. An
        entry that has waited for 10 seconds fails.
        """
        backoff = Backoff(0.05, 1.0)
        try:
            while self._stored:
                now = self._loop.time()
                for position, entry in tuple(self._stored.items()):
                    if now - entry.since > PLACE_SECONDS:
                        del self._stored[position]
                        self._give_up(entry, f"the batch is stored, its offset was not told for {PLACE_SECONDS:.0f} s")
                waits = self._due(now)
                if isinstance(waits, float):
                    await asyncio.sleep(waits)
                    continue
                known = await asyncio.gather(*(self._ask_one(*each) for each in waits))
                if any(known):
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next())
        finally:
            self._asking = None

    def _due(self, now: float) -> list[tuple[Position, InFlightEntry]] | float:
        """Return up to 8 entries to ask Pulsar about at the time `now`, the oldest first, or the seconds until there is
        one. Entries whose offsets follow from the answer for another one are left out.
        """
        chained = not self._log.policy.log_append_time
        due: list[tuple[Position, InFlightEntry]] = []
        soonest = LATE_TAIL_SECONDS
        for position, entry in sorted(self._stored.items(), key=lambda item: item[0]):
            before = Position(position.ledger, position.entry - 1)
            if chained and (before in self._stored or before in self._asking_fences):
                continue  # its offset follows from the one of the entry before
            left = entry.since + self._patience(position, now) - now
            if left <= 0:
                due.append((position, entry))
            else:
                soonest = min(soonest, left)
        return due[:_ASK_AT_ONCE] or soonest

    def fenced(self, position: Position) -> None:
        """Ask Pulsar in the background for the offset of a stored fence of this broker: those of the batches behind it
        follow from it. Nothing is asked if the log is not attached, or of more than 8 fences at a time.
        """
        log = self._log
        if log.attached and not log.policy.log_append_time and len(self._asking_fences) < _ASK_AT_ONCE:
            self._asking_fences[position] = self._loop.create_task(self._ask_fence(position))

    async def _ask_fence(self, position: Position) -> None:
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                place = await self._ask_place(position, 1)
        except (PulsarError, KopError, TimeoutError):
            return  # Pulsar is then asked for the first batch behind the fence
        finally:
            del self._asking_fences[position]
        if self._anchor is None or self._anchor[0] < position:
            self._anchor = position, place.base + 1
        self.follow()

    async def _ask_one(self, position: Position, entry: InFlightEntry) -> bool:
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                place = await self._ask_place(position, entry.count)
        except Exception as error:  # `_ask` asks again until no entry waits
            known = isinstance(error, PulsarError | KopError | TimeoutError)
            level = logging.DEBUG if known else logging.ERROR
            if not self._faults.takes(error):
                self._count(Fault.OFFSETS_UNKNOWN_REQUEST_FAILED)
            _log.log(
                level,
                "%s: Pulsar cannot be asked yet which offset entry %d:%d has: %r",
                self._log.title,
                *position,
                error,
            )
            return False
        if self._stored.get(position) is not entry:
            return True  # the tail brought it meanwhile, or the log was closed
        del self._stored[position]
        log = self._log
        late = not log.attached or position > log.last_position
        if late:
            self._held_until = self._loop.time() + _HELD_SECONDS
            if not entry.in_transaction:
                self._count(Fault.TAIL_LATE_OFFSET_ASKED)
            if self._anchor is None or self._anchor[0] < position:
                self._anchor = position, place.base + entry.count
        self._answer(entry, position, place.base, place.append_time if log.policy.log_append_time else -1)
        self.follow()
        if late and log.attached and not entry.in_transaction:
            self._tail_is_late()
        return True

    # --- earlier copies

    def find_again(self, append: Append, producer: EntryProducer, sequence_id: int) -> None:
        """Search for a batch that is stored under this sequence id, and whose offset was not found in time the last
        time; the append ends with the result. If the same search is under way it ends as that one.
        """
        count = append.header.last_offset_delta + 1
        asked = self.searched(producer.name, sequence_id, count)
        if asked is not None and asked.whole:
            append.end_as(asked.append)
            return
        append.left = 1
        nothing = transcode.SendFrame(b"", count, 0, 0)
        entry = InFlightEntry(append, nothing, 0, sequence_id, True, producer, 0.0, 0)
        entry.sent_again = True
        self.duplicate(entry, old=True)

    async def is_stored(self, producer_name: str, sequence_id: int, *, hidden: bool) -> bool:
        """Return true if a record with this producer name and sequence id is among the last entries of the log.
        `hidden`: it is of a transaction, so that readers may not get it. PulsarError or KopError if the entries cannot
        be read.
        """
        (stored,) = await self._search([Wanted(producer_name, sequence_id, 1, hidden)])
        return stored.outcome in {Outcome.FOUND, Outcome.OTHERS}

    async def answer_stored(self, entries: Sequence[InFlightEntry]) -> None:
        """Search for entries that have no receipt among the last ones of the log, and answer those that are stored.
        PulsarError or KopError if the log's entries cannot be read.
        """
        wanted = [Wanted(entry.producer.name, *entry.stored_range, entry.in_transaction) for entry in entries]
        for entry, stored in zip(entries, await self._search(wanted), strict=True):
            if stored.outcome in {Outcome.FOUND, Outcome.SCATTERED} and not entry.done:
                self._end_search(entry, stored)

    async def _find_duplicates(self) -> None:
        backoff, told = Backoff(0.1, 1.0), False
        try:
            while self._duplicates:
                now = self._loop.time()
                due = [entry for entry in self._duplicates if entry.since + LATE_TAIL_SECONDS <= now]
                if not due:
                    await asyncio.sleep(LATE_TAIL_SECONDS / 2)
                    continue
                wanted = [Wanted(entry.producer.name, *entry.stored_range, entry.in_transaction) for entry in due]
                try:
                    answers = await self._search(wanted)
                except Exception as error:  # whatever it is, the clients that wait have to be answered
                    level = logging.INFO if isinstance(error, PulsarError | KopError) else logging.ERROR
                    quiet, told = self._faults.takes(error) or told, True
                    _log.log(
                        logging.DEBUG if quiet and level == logging.INFO else level,
                        "%s: cannot search Pulsar for the first copy of a batch that was sent twice: %r",
                        self._log.title,
                        error,
                    )
                    answers = [Stored(Outcome.UNFINISHED)] * len(due)
                again = False
                now = self._loop.time()
                for entry, stored in zip(due, answers, strict=True):
                    if entry not in self._duplicates:  # the tail has brought it meanwhile
                        continue
                    if stored.outcome is Outcome.UNFINISHED and now < entry.since + PLACE_SECONDS:
                        again = True  # librdkafka takes the next batch's answer for this one's, without an offset
                        continue
                    self._stop_search(entry)
                    self._end_search(entry, stored)
                if again:
                    await asyncio.sleep(backoff.next())
        finally:
            self._searching = None

    def _end_search(self, entry: InFlightEntry, stored: Stored) -> None:
        append = entry.append
        if stored.outcome is Outcome.FOUND:
            self._count(Fault.SEQUENCES_DUPLICATE_FOUND)
            append.lies_at(stored.base, 0 if entry.sent_again else entry.first)
            append.time = stored.append_time if self._log.policy.log_append_time else -1
        elif stored.outcome is Outcome.SCATTERED:
            append.scattered = True
        elif stored.outcome is Outcome.OTHERS and append.idempotent:
            self._count(Fault.SEQUENCES_DUPLICATE_NOT_STORED)
            text = f"other records of the producer are stored with sequences from {append.header.base_sequence} on"
            _log.info("%s: a batch of producer %s is refused: %s", self._log.title, entry.producer.name, text)
            append.refuse(PeerError(text, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
            entry.producer.others_are_stored(entry)
        elif stored.outcome in {Outcome.ABSENT, Outcome.OTHERS}:
            # Pulsar drops it as a duplicate, because its first records, or later entries of its producer, are stored.
            self._count(Fault.SEQUENCES_DUPLICATE_NOT_STORED)
            text = "the batch, or a part of it, was refused when it was sent first, and what came behind is stored"
            if append.idempotent:
                append.refuse(PeerError(text, ErrorCode.UNKNOWN_PRODUCER_ID))
            else:
                append.refuse(BackendError(f"{self._log.title}: {text}"))
        else:
            self._count(Fault.SEQUENCES_DUPLICATE_NOT_FOUND)
            text = f"{self._log.title}: the batch is stored, its offset was not found"
            if not entry.is_stored:
                text = f"{self._log.title}: Pulsar refuses a batch that it may have stored before; no copy was found"
            if append.idempotent and stored.outcome is Outcome.UNKNOWN and entry.is_stored:
                append.refuse(PeerError(text, ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
            else:
                append.refuse(BackendError(text, ErrorCode.REQUEST_TIMED_OUT))
        self._done(entry)
