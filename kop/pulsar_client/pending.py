"""The entries that a producer was given and that have no receipt yet.

Owns: their order, which of them are not on the wire yet, which expire.
Must not know: sockets, what an entry means to who sends it, the clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.types import Position, Receipt


class PendingEntry:
    """An entry between its sending and its receipt. A user of producers has a class of its own for the consequences."""

    __slots__ = ("deadline", "frame", "highest_sequence_id", "producer_id", "sequence_id", "size")

    def __init__(self, frame: bytes, size: int, producer_id: int, sequence_id: int, highest_sequence_id: int) -> None:
        self.frame = frame
        """The whole SEND frame, kept to send it again. It names the producer `producer_id`."""
        self.size = size
        """The bytes of metadata and payload, which the broker's limit is about."""
        self.producer_id = producer_id
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.deadline = 0.0

    def stored(self, position: Position) -> None:
        """Handle that Pulsar has stored the entry at this position; DUPLICATE if it had it before."""
        raise NotImplementedError

    def failed(self, error: PulsarError) -> None:
        """Handle that Pulsar has refused the entry, or that it is not known if it is stored. Other entries may get the
        same `error`.
        """
        raise NotImplementedError


class AwaitedEntry(PendingEntry):
    """A pending entry whose sender waits for a future."""

    __slots__ = ("future",)

    def __init__(
        self,
        frame: bytes,
        size: int,
        producer_id: int,
        sequence_id: int,
        highest_sequence_id: int,
        future: asyncio.Future[Position],
    ) -> None:
        super().__init__(frame, size, producer_id, sequence_id, highest_sequence_id)
        self.future = future

    def stored(self, position: Position) -> None:
        """Set the position as the future's result."""
        if not self.future.done():
            self.future.set_result(position)

    def failed(self, error: PulsarError) -> None:
        """Set the error as the future's exception."""
        if not self.future.done():
            self.future.set_exception(error)


class PendingEntries:
    """The entries of one producer between sending and their receipts, in order."""

    __slots__ = ("_pending", "_unsent")

    def __init__(self) -> None:
        self._pending: dict[int, PendingEntry] = {}
        self._unsent: deque[PendingEntry] = deque()
        """The pending entries that are not written to the present connection yet."""

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._pending

    def add(self, item: PendingEntry, *, sent: bool) -> None:
        """Add an entry behind all others. `sent` is true if it is written to the connection now, as all before it
        were.
        """
        self._pending[item.sequence_id] = item
        if not sent:
            self._unsent.append(item)

    def next_unsent(self) -> PendingEntry | None:
        """Return the next entry to write to the connection, and count it as written; None if all are written."""
        while self._unsent:
            item = self._unsent.popleft()
            if self._pending.get(item.sequence_id) is item:
                return item
        return None

    @property
    def all_sent(self) -> bool:
        """True if every pending entry is written to the present connection."""
        return not self._unsent

    @property
    def none_on_wire(self) -> bool:
        """True if no entry that was written to the present connection waits for its receipt."""
        unsent = self._unsent
        while unsent and self._pending.get(unsent[0].sequence_id) is not unsent[0]:
            unsent.popleft()
        return not self._pending or (bool(unsent) and next(iter(self._pending.values())) is unsent[0])

    def rewind(self) -> None:
        """Count every pending entry as not written, so that all are sent, or sent again, in order."""
        self._unsent = deque(self._pending.values())

    def find(self, sequence_id: int) -> PendingEntry | None:
        """Return the pending entry whose first message has this sequence id; None if there is none."""
        return self._pending.get(sequence_id)

    def refused(self, sequence_id: int) -> PendingEntry | None:
        """Return the pending entry that a broker's refusal names by the sequence id of its first message, or of its
        last one, as brokers name batches; None if there is none.
        """
        item = self._pending.get(sequence_id)
        if item is None:
            return next((item for item in self._pending.values() if item.highest_sequence_id == sequence_id), None)
        return item

    def take(self, sequence_id: int) -> PendingEntry | None:
        """Remove the entry whose first message has this sequence id, since it was answered, and return it; None if
        there is none.
        """
        return self._pending.pop(sequence_id, None)

    def take_stored(self, receipts: Sequence[Receipt]) -> list[tuple[PendingEntry, int, int]]:
        """Remove the entries that receipts name; return each with its ledger and entry number. Receipts of entries that
        are not pending are passed over.
        """
        pop = self._pending.pop
        return [
            (item, ledger, entry)
            for _, sequence_id, _, ledger, entry in receipts
            if (item := pop(sequence_id, None)) is not None
        ]

    def put_back(self, items: Iterable[PendingEntry]) -> None:
        """Add entries, which were written to the connection, before all others, to wait for their receipts."""
        self._pending = {item.sequence_id: item for item in items} | self._pending

    def deadline(self) -> float | None:
        """Return the event loop's time at which the oldest entry expires; None without entries."""
        for item in self._pending.values():
            return item.deadline
        return None

    def all(self) -> list[PendingEntry]:
        """Return all pending entries, in order."""
        return list(self._pending.values())

    def clear(self) -> list[PendingEntry]:
        """Remove all entries, and return them in order."""
        items = self.all()
        self._pending.clear()
        self._unsent.clear()
        return items

    def expire(self, now: float) -> list[PendingEntry]:
        """Remove and return all entries, in order, if the oldest has expired at the loop's time `now`; else return
        none.

        All, because what stands behind it must not be stored without it: a retry of the oldest would then be dropped as
        a duplicate.
        """
        deadline = self.deadline()
        return self.clear() if deadline is not None and deadline <= now else []
