"""Our own entries on their way into a log: stored, but not placed yet; placed, but not yet seen by the tail.

Owns: receipts that wait, the chain of entries by which one is placed behind the one before it, and its check.
Must not know: how entries are sent, who reads.

A receipt tells (ledger, entry) alone. Where the entry before it in that ledger is the log's last one, ours is the next
and has its offset at once; else the tail brings it. So an append is answered when the log end is behind it, not before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from kop.errors import BackendError, KopError
from kop.pulsar_client import Position
from kop.records import transcode
from kop.records.batch import stamp, stamp_log_append_time
from kop.storage.base import Buffer
from kop.storage.pulsar.catchup import Batch
from kop.storage.pulsar.sender import Piece
from kop.storage.pulsar.stream import Placed

if TYPE_CHECKING:
    from kop.storage.pulsar.log import PulsarLog

TAIL_SECONDS: Final = 10.0
"""How long the tail may stand where receipts say that there is more."""
_MOST_UNVERIFIED: Final = 100_000
"""Entries that the chain may be ahead of the tail."""

_log = logging.getLogger(__name__)


class Own:
    """Those of one log."""

    def __init__(self, log: PulsarLog) -> None:
        self._log = log
        self._stored: dict[Position, Piece] = {}
        """Stored by us, the chain does not reach them yet."""
        self._unverified: deque[tuple[Position, int]] = deque()
        """Placed by the chain, to be seen by the tail: position, last offset."""
        self._watch: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._stored)

    # --- what becomes of a piece

    def stored(self, piece: Piece, position: Position) -> None:
        """A receipt came."""
        log = self._log
        if piece.done:
            return
        if position <= log.last_position:
            # The tail was faster; it did not know the entry for ours. Its offset is what the tail saw, if it is kept.
            log.engine.count("receipts behind the tail")
            log.tail_lost(BackendError("a receipt came for an entry that the tail had passed"))
            return
        self._stored[position] = piece
        self.follow_chain()
        if self._stored and self._watch is None:
            self._watch = log.loop.call_later(TAIL_SECONDS, self._tail_stands, log.last_position)

    def _tail_stands(self, before: Position) -> None:
        """Receipts are here, the tail has to tell where they lie: does it move?"""
        self._watch = None
        log = self._log
        if self._stored and log.last_position != before:
            self._watch = log.loop.call_later(TAIL_SECONDS, self._tail_stands, log.last_position)
        elif self._stored and log.attached:
            log.engine.count("tails that stood still")
            for piece in self._stored.values():
                self.unknown(piece)
            log.tail_lost(BackendError(f"it brought nothing for {TAIL_SECONDS:.0f} s of what is stored"))

    def failed(self, piece: Piece, error: KopError) -> None:
        """It is not known to be stored."""
        if not piece.done:
            piece.append.error = error
            self._done(piece)

    def unknown(self, piece: Piece) -> None:
        """It is stored, nobody knows where."""
        if not piece.done:
            piece.append.unknown = True
            self._done(piece)

    def _done(self, piece: Piece) -> None:
        piece.done = True
        append = piece.append
        append.left -= 1
        if append.left <= 0:
            append.end(self._log.log_start_offset)

    def take_all(self) -> list[Piece]:
        """The log begins anew: what waits here, which is nowhere then."""
        pieces, self._stored = list(self._stored.values()), {}
        self._unverified.clear()
        return pieces

    def close(self) -> None:
        """Fail what waits."""
        if self._watch is not None:
            self._watch.cancel()
        for piece in self.take_all():
            self.failed(piece, BackendError("the storage engine is closed"))

    # --- the chain

    def follow_chain(self) -> None:
        """Place those that lie directly behind the log's last entry."""
        log = self._log
        if log.policy.log_append_time:
            return  # the tail tells the time
        numbering = log.numbering
        last = log.last_position
        while self._stored and len(self._unverified) < _MOST_UNVERIFIED and last.entry < numbering.last_entry:
            position = Position(last.ledger, last.entry + 1)
            piece = self._stored.pop(position, None)
            if piece is None:
                return
            last = position
            base = numbering.next_base(position, log.high_watermark)
            self._unverified.append((position, base + piece.count - 1))
            self._place(piece, position, base, -1)

    def verify(self, placed: Placed) -> None:
        """The tail brought an entry that the chain had passed."""
        log = self._log
        while self._unverified and self._unverified[0][0] < placed.position:
            self._unverified.popleft()
            log.engine.count("entries that the tail passed over")
        if self._unverified and self._unverified[0][0] == placed.position:
            _, last = self._unverified.popleft()
            if last != placed.last:
                log.engine.count("offsets that the chain got wrong")
                _log.error(
                    "%s: entry %d:%d has offset %d, %d had been told to its producer; attaching again",
                    log.title, placed.position.ledger, placed.position.entry, placed.last, last,
                )  # fmt: skip
                log.detach(BackendError("offsets had to be read anew"))

    # --- the tail's word

    def at(self, position: Position) -> Piece | None:
        """Ours, if its receipt came before the tail."""
        return self._stored.pop(position, None)

    def brought(self, piece: Piece, placed: Placed) -> bool:
        """The tail brought the entry of a piece. True where it is placed, in the bytes that came in.

        Not where it lies behind a gap or is counted otherwise than we said.
        """
        log = self._log
        if (
            piece.done
            or piece.count != placed.info.num_messages
            or not log.numbering.follows(log.high_watermark, placed)
        ):
            return False
        self._place(piece, placed.position, placed.base, self._append_time(placed))
        return True

    def settle_apart(self, piece: Piece, placed: Placed, end: int) -> None:
        """As `brought` without placing it; `end` was the log end before its entry."""
        if piece.done:
            return
        piece.sender.pending.pop(piece.sequence_id, None)
        append = piece.append
        if end <= placed.base == placed.last - piece.count + 1:
            append.lies_at(placed.base, piece)
            append.time = self._append_time(placed)
        else:
            append.unknown = True
        self._done(piece)

    def passed_over(self) -> None:
        """What the tail did not bring though it is further on."""
        while self._stored and (position := next(iter(self._stored))) < self._log.last_position:
            piece = self._stored.pop(position)
            piece.sender.pending.pop(piece.sequence_id, None)
            self._log.engine.count("entries that the tail passed over")
            self.unknown(piece)

    def _append_time(self, placed: Placed) -> int:
        return self._log.numbering.append_time(placed) if self._log.policy.log_append_time else -1

    def _place(self, piece: Piece, position: Position, base: int, append_time: int) -> None:
        """An entry of ours has its offset: it is served in the bytes that came in."""
        piece.sender.pending.pop(piece.sequence_id, None)
        append = piece.append
        append.lies_at(base, piece)
        append.time = append_time
        data: Buffer
        if piece.whole:
            data = append.batch
            stamp(append.batch, base)
            if append_time >= 0:
                stamp_log_append_time(append.batch, append_time)
        else:
            assert piece.entry is not None
            found = transcode.to_batch(
                piece.entry.metadata,
                piece.entry.payload,
                base_offset=base,
                log_append_time=append_time if append_time >= 0 else None,
            )
            data = found if isinstance(found, bytes) else b"".join(found)
        self._log.place(position, Batch(base, base + piece.count - 1, data))
        self._done(piece)
