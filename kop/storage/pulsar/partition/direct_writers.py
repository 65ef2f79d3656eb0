"""The compiled writers of one producer each (`kop/_native/src/direct/`): what they take, hold and hand over.

Owns: how they look to Python code, and whether there are any.
Must not know: when a writer may be used, and what to do with what it hands over (`direct_batches.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from kop.compiled import compiled_only
from kop.pulsar_client.outgoing import Outgoing
from kop.pulsar_client.types import Receipt
from kop.storage.base import AppendWaiter, Buffer
from kop.storage.pulsar.partition.decompression import DirectCodecs

HeaderFields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of a `BatchHeader`."""
PlacedFields: TypeAlias = tuple[int, int, Buffer, int]
"""The fields of a `PlacedBatch`."""
_StoredFields: TypeAlias = tuple[HeaderFields, int, int]
_UnderWayFields: TypeAlias = tuple[HeaderFields, bytearray, int, bytes, int, float, int, AppendWaiter, int]


class DirectBudget(Protocol):
    """The bytes of all batches of an engine that compiled code holds, bounded; made with the bound."""

    used: int
    closed: bool
    """Nothing more is taken."""


class DirectWriter(Protocol):
    """What compiled code holds of one producer, and what it takes for it."""

    open: bool
    taken: int
    """Batches that were taken."""
    used: float
    """Loop time of the last one; 0 before the first."""
    in_flight: int
    awaited: int
    """The sequence id of the entry that the next receipt is for; -1 where none is waited for."""
    oldest: float | None
    next_sequence: int
    """The sequence of the next record, without the epoch."""
    sent_bytes: int
    answered_bytes: int
    highest: int
    stored_up_to: int

    def submit(
        self,
        batch: bytearray,
        waiter: AppendWaiter,
        place: int,
        now: float,
        now_ms: int,
        compacted: bool,
        before_max_ms: int,
        after_max_ms: int,
    ) -> int:
        """Send a checked batch; the limits are those of its records' timestamps. Returns to how many bytes a compressed
        one was inflated, 0 for others; -1 where the batch has to go the ordinary way: then nothing has happened."""

    def receipts(
        self,
        receipts: Sequence[Receipt],
        ledger: int,
        last_entry: int,
        end: int,
        log_start_offset: int,
        now: float,
    ) -> tuple[int, list[PlacedFields], float]:
        """Take receipts while they are of the next entries and lie directly behind `last_entry`; see writer.rs."""

    def answer(self) -> list[tuple[AppendWaiter, int, int, int]]:
        """Answer the batches that `receipts` took; returns the waiters that have to be told by Python code, each with
        its place, the base offset and the log start offset."""

    def hand_over(self) -> tuple[list[_StoredFields], list[_UnderWayFields]]:
        """Take nothing any more; what is stored lately, and what is on its way, as `SettledBatch` and `BatchUnderWay`
        have it."""


def direct_budget(most: int) -> DirectBudget | None:
    """The bound on what compiled code holds, in bytes; None without the compiled module."""
    native = compiled_only()
    if native is None:
        return None
    budget: DirectBudget = native.DirectBudget(most)
    return budget


def direct_writer(
    number: int,
    name: bytes,
    outgoing: Outgoing,
    budget: DirectBudget,
    size_limit: object,
    codecs: DirectCodecs,
    most_inflated: int,
    max_size: int,
    epoch: int | None,
    next_sequence: int,
) -> DirectWriter | None:
    """The writer of a producer with that number on its connection, and that name. None without the compiled module.

    `size_limit` says by `surely_taken` how large an entry may be, `max_size` what the connection takes. A compressed
    batch may inflate to `most_inflated` bytes. `epoch` is that of an idempotent producer; then `next_sequence` is
    without it.
    """
    native = compiled_only()
    if native is None or not isinstance(outgoing, native.Outgoing):
        return None
    writer: DirectWriter = native.DirectWriter(
        number, name, outgoing, budget, size_limit, codecs, most_inflated, max_size, epoch, next_sequence
    )
    return writer
