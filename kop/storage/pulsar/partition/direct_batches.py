"""Batches that compiled code carries from the frame of their request to its answer, for one Pulsar producer.

Owns: what Python code has to do with such batches: their receipts, one read of the socket at a time, and taking over
those that are on their way when something unusual happens. The rest is in `kop/_native/src/direct/`.
Must not know: when a producer may be written to so (`producer.py`), requests, topics.

What is unusual goes one way, the ordinary one. A batch that may be a duplicate, an entry that is not the next one of
the log, a Pulsar broker that refuses one or is gone: compiled code hands everything over, and takes nothing any more.
After a while the producer may begin again. Without the compiled module all batches go the ordinary way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kop.pulsar_client.pending import PendingEntry
from kop.pulsar_client.producer import HandedEntries
from kop.pulsar_client.types import Receipt
from kop.records.batch import BatchHeader
from kop.storage.base import AppendResult, AppendWaiter
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.partition.appends import Appends
from kop.storage.pulsar.partition.throttle import LATE_SECONDS, PublishThrottle
from kop.storage.pulsar.reading.source import LogBounds

if TYPE_CHECKING:
    from kop._native import DirectWriter

_ENTRY: Final = 4
"""The index of the entry's number in a `Receipt`."""
PAUSE_SECONDS: Final = 1.0
"""The seconds for which batches go the ordinary way after something unusual happened to those of compiled code."""

_log = logging.getLogger(__name__)


class SettledBatch(NamedTuple):
    """A batch that has its offset, as the window of its producer remembers it."""

    header: BatchHeader
    sequence_id: int
    base_offset: int


class BatchUnderWay(NamedTuple):
    """A batch that was sent as one entry, and has no receipt."""

    header: BatchHeader
    batch: bytearray
    sequence_id: int
    frame: bytes
    entry_size: int
    sent: float
    """The loop's time at which the batch was sent."""
    before: int
    """The bytes of the producer's entries that Pulsar had answered by then, since compiled code began."""
    waiter: AppendWaiter
    place: int


class DirectBatches:
    """The batches of one producer that compiled code holds; see `kop.pulsar_client.producer.DirectEntries`.

    `park(entry, self)` has `go_on` called once the log ends before that entry, and `give_up` at the end of this turn of
    the loop. `end` has all batches go the ordinary way. `take_over` is given then, with the writer, the last batches of
    an idempotent producer that have offsets, for its window, and those under way, of which it makes entries.
    """

    def __init__(
        self,
        writer: DirectWriter,
        log: LogBounds,
        appends: Appends,
        throttle: PublishThrottle,
        clock: Callable[[], float],
        *,
        park: Callable[[int, DirectBatches], None],
        end: Callable[[], None],
        take_over: Callable[[DirectWriter, list[SettledBatch], list[BatchUnderWay]], Sequence[PendingEntry]],
    ) -> None:
        self.writer = writer
        self._log = log
        self._appends = appends
        self._throttle = throttle
        self._clock = clock
        self._park = park
        self._parked: list[Receipt] = []
        """The receipts of entries before which entries of others lie, whose receipts may come yet."""
        self._end = end
        self._take_over = take_over

    @property
    def in_flight(self) -> int:
        """The number of batches that have no receipt."""
        return self.writer.in_flight

    @property
    def oldest(self) -> float | None:
        """The loop's time at which the oldest batch without a receipt was sent; None if there is none."""
        return self.writer.oldest

    def received(self, receipts: Sequence[Receipt]) -> int:
        """Place the entries of receipts that follow in the log, and answer their clients. If entries of others have to
        come first, the receipts are kept and `park` is called for them.

        Return the number of receipts handled or kept. If that is not all, everything goes the ordinary way by then, and
        the rest are for that.
        """
        if self._parked:
            self._parked += receipts
            return len(receipts)
        taken = self._take(receipts)
        left = receipts[taken:]
        if left and self.writer.open:
            if not self._comes_later(left[0]):
                self._end()
                return taken
            self._parked = list(left)
            self._park(left[0][_ENTRY], self)
        return len(receipts) if self.writer.open else taken

    def go_on(self) -> None:
        """Handle the receipts that wait, because the log ends directly before the first one's entry now. If entries of
        others lie before the rest, it waits again; if something unusual lies there, all batches go the ordinary way.
        """
        parked = self._parked
        while parked and self.writer.open:
            more = self._take_together(parked)
            if not more:
                break
            del parked[:more]
        if parked and self.writer.open:
            if self._comes_later(parked[0]):
                self._park(parked[0][_ENTRY], self)
            else:
                self._end()

    def give_up(self) -> None:
        """Hand the batches whose receipts still wait, and all others with them, to the ordinary path."""
        if self._parked:
            self._end()

    def _comes_later(self, receipt: Receipt) -> bool:
        """Return true if others' entries lie between the log's end and the entry that a receipt names, in its ledger.

        Their receipts may come behind this one: those of one read come producer by producer.
        """
        _, sequence_id, _, ledger, entry = receipt
        last = self._log.last_position
        return sequence_id == self.writer.awaited and ledger == last.ledger and entry > last.entry + 1

    def _take(self, receipts: Sequence[Receipt]) -> int:
        """Place the entries of receipts that follow in the log, also those that follow after others were placed between
        them; return the number of receipts used.
        """
        taken = 0
        while taken < len(receipts) and self.writer.open:
            more = self._take_together(receipts[taken:])
            if not more:
                break
            taken += more
        return taken

    def _take_together(self, receipts: Sequence[Receipt]) -> int:
        log, writer = self._log, self.writer
        if not self._appends.places_directly:
            self._end()
            return 0
        ledger, last_entry = log.last_position
        now = self._clock()
        taken, placed, waited = writer.receipts(
            receipts, ledger, last_entry, log.high_watermark, log.log_start_offset, now
        )
        try:
            if placed:
                self._appends.place_directly(ledger, placed)
        finally:  # the entries are stored, whatever went wrong with showing them to readers
            for waiter, place, base_offset, log_start_offset in writer.answer():
                self._tell(waiter, place, AppendResult(base_offset, -1, log_start_offset))
        if taken and (waited > LATE_SECONDS or self._throttle.late) and self._look_at_rate(taken, now, waited):
            self._end()
        return taken

    @staticmethod
    def _tell(waiter: AppendWaiter, place: int, result: AppendResult) -> None:
        try:
            waiter.appended(place, result)
        except Exception:  # the other waiters still have to be told
            _log.exception("a client could not be told what became of its batch")

    def brought(self, stored: EntryWithOffsets) -> bool:
        """Place an entry that the tail brought before its receipt came; return false if it is not the next one without
        a receipt.

        The log has to end directly before the entry.
        """
        ledger, last_entry = self._log.last_position
        position, info = stored.position, stored.info
        if (
            info.sequence_id != self.writer.awaited
            or position != (ledger, last_entry + 1)
            or stored.base != self._log.high_watermark
        ):
            return False
        if self._parked:  # its receipt has come, before what lies in front of it
            self.go_on()
        else:
            self.received([(0, info.sequence_id, 0, *position)])
        return position <= self._log.last_position

    def _look_at_rate(self, taken: int, now: float, waited: float) -> bool:
        """Tell the throttle of `taken` receipts that came after `waited` seconds each. Return true if a publish rate of
        Pulsar holds the entries back: then their answers need a throttle time, which the ordinary path gives.
        """
        held_back = False
        for _ in range(taken):
            held_back = self._throttle.received(now, waited)
        return held_back

    def hand_over(self) -> HandedEntries:
        """Stop for good, have `take_over` make entries of the batches without a receipt, and return these entries, the
        receipts that wait, and the highest sequence id that was sent.
        """
        stored, under_way = self.writer.hand_over()
        parked, self._parked = self._parked, []
        entries = self._take_over(
            self.writer,
            [SettledBatch(BatchHeader._make(settled[0]), *settled[1:]) for settled in stored],
            [BatchUnderWay(BatchHeader._make(sent[0]), *sent[1:]) for sent in under_way],
        )
        return HandedEntries(entries, parked, self.writer.highest)
