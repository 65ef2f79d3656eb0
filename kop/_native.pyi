"""The compiled half as Python code sees it: built from `kop/_native/src`, found by `kop.compiled`.

Functions and classes with a readable twin have its signatures, so they are named here as those of the twin; what a
twin's docstring promises holds for both. The other classes carry a Produce from its frame to its answer
(`kop/_native/src/direct/`) and are twins of nothing. tests/test_compiled.py compares this with a built module.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from kop.errors import KopError
from kop.functions._pure_calls import call_each as call_each
from kop.handlers.api import Answer
from kop.handlers.direct_produce import DirectProduce
from kop.handlers.produce_request import HeaderFields
from kop.handlers.produce_request import read_produce as read_produce
from kop.metrics import Latencies
from kop.pulsar_client._pure import read_frames as read_frames
from kop.pulsar_client.outgoing import Outgoing as Outgoing
from kop.pulsar_client.types import Receipt
from kop.records._pure import (
    pack as pack,
)
from kop.records._pure import (
    parse_entry as parse_entry,
)
from kop.records._pure import (
    plain_batch as plain_batch,
)
from kop.records._pure import (
    send_frame as send_frame,
)
from kop.records._pure import (
    send_frames as send_frames,
)
from kop.records._pure import (
    unpack as unpack,
)
from kop.records._pure import (
    unpack_one as unpack_one,
)
from kop.records._pure import (
    usual_batches as usual_batches,
)
from kop.records._pure import (
    walk as walk,
)
from kop.records._pure_arrow import (
    RowBuilder as RowBuilder,
)
from kop.records._pure_arrow import (
    digest_of as digest_of,
)
from kop.records._pure_arrow import (
    encode_rows as encode_rows,
)
from kop.records._pure_arrow import (
    partitions_of as partitions_of,
)
from kop.records.arrow_layout import (
    column_of as column_of,
)
from kop.records.arrow_layout import (
    items_of as items_of,
)
from kop.records.arrow_layout import (
    repeated_offsets as repeated_offsets,
)
from kop.storage.base import AppendResult, AppendWaiter
from kop.storage.pulsar.partition.appends import PlacedFields
from kop.storage.pulsar.partition.decompression import DirectCodecs
from kop.wire.frame import read_header as read_header

FORMAT: Final[int]

_StoredFields: TypeAlias = tuple[HeaderFields, int, int]
_UnderWayFields: TypeAlias = tuple[HeaderFields, bytearray, int, bytes, int, float, int, AppendWaiter, int]

class DirectRequests:
    """The table of writers: topics and partitions to which Produce requests may go without Python code for each of
    them.
    """

    def __init__(self, handler: DirectProduce, latencies: Latencies) -> None: ...
    def add(
        self,
        topic: str | bytes,
        partition: int,
        producer_id: int,
        writer: object,
        max_message_bytes: int,
        before_max_ms: int,
        after_max_ms: int,
        compact: bool,
        any_codec: bool,
    ) -> None:
        """Let batches of a producer to a partition go to `writer`, a `DirectWriter`. `topic` is a name, or the 16 bytes
        of an id.
        """

    def prune(self) -> None:
        """Forget the writers that accept no more batches."""

    def clear(self) -> None:
        """Forget all topics and their writers."""

    @property
    def writers(self) -> int:
        """The number of writers that are known."""

    def counted(self) -> tuple[int, int, list[int]]:
        """Return the numbers of records, bytes, and requests by version that were accepted since the last call."""

    def take(self, frame: memoryview, started: float, now: float, now_ms: int) -> DirectAnswer | None:
        """Take a Produce, a frame without its size; return None, with nothing done, if it has to go the ordinary way.
        See `kop.handlers.direct_produce.TakeRequest`.
        """

class DirectAnswer(Answer):
    """The answer to a Produce that compiled code carries. It has the members of `Answer`, and is no subclass when the
    gateway runs.

    It is an `AppendWaiter` for batches that the ordinary way took over.
    """

    def reserve(self, size: int) -> None:
        """Do nothing: batches that the ordinary way took over are not decompressed for this request any more."""

    def appended(self, place: int, result: AppendResult) -> None:
        """Put the offset at which a batch is stored into the answer."""

    def append_failed(self, place: int, error: KopError) -> None:
        """Put the error of a batch that was refused into the answer."""

class DirectBudget:
    """The bound `most` on the bytes of all batches of an engine that compiled code holds."""

    def __init__(self, most: int) -> None: ...
    @property
    def used(self) -> int:
        """The bytes that are held now."""
    closed: bool
    """True if no more batches are accepted."""

class DirectWriter:
    """The compiled writer of one Pulsar producer of one partition: its batches from the SEND frame to the offset."""

    def __init__(
        self,
        number: int,
        name: bytes,
        outgoing: Outgoing,
        budget: DirectBudget,
        size_limit: object,
        codecs: DirectCodecs,
        most_inflated: int,
        room: int,
        window: int,
        epoch: int | None,
        base: int,
        next: int,
    ) -> None: ...
    @property
    def open(self) -> bool:
        """True if the writer accepts batches."""

    @property
    def taken(self) -> int:
        """The number of batches that were accepted."""

    @property
    def used(self) -> float:
        """The loop's time of the last batch; 0 before the first."""

    @property
    def in_flight(self) -> int:
        """The number of entries without a receipt."""

    @property
    def awaited(self) -> int:
        """The sequence id of the entry that the next receipt is for; -1 if none is waited for."""

    @property
    def oldest(self) -> float | None:
        """The loop's time at which the oldest entry without a receipt was sent."""

    @property
    def next_sequence(self) -> int:
        """The sequence of the next record, without the epoch."""

    @property
    def sent_bytes(self) -> int:
        """The bytes of all entries that were sent."""

    @property
    def answered_bytes(self) -> int:
        """The bytes of all entries that have a receipt."""

    @property
    def highest(self) -> int:
        """The highest sequence id that was sent; -1 for none."""

    @property
    def stored_up_to(self) -> int:
        """The highest sequence id that has a receipt; -1 for none."""

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
        """Send a checked batch; the limits are those of its records' timestamps.

        Returns the bytes to which a compressed one was inflated, 0 for others; -1 if the batch has to go the ordinary
        way: then nothing has happened.
        """

    def receipts(
        self, receipts: Sequence[Receipt], ledger: int, last_entry: int, end: int, log_start_offset: int, now: float
    ) -> tuple[int, list[PlacedFields], float]:
        """Take receipts as long as they are of the next entries and lie directly behind `last_entry`; see writer.rs."""

    def answer(self) -> list[tuple[AppendWaiter, int, int, int]]:
        """Answer the batches that `receipts` took.

        Returns the waiters that Python code has to tell, each with its place, the base offset and the log start offset.
        """

    def hand_over(self) -> tuple[list[_StoredFields], list[_UnderWayFields]]:
        """Accept no more batches; return the fields of each `SettledBatch` and `BatchUnderWay`."""
