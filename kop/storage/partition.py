"""The part of a partition log that is the same in every engine, whatever keeps its batches.

Owns: which offsets may be read and which may be deleted up to, who hears when the bounds move, the end of a log whose
topic was deleted, what an append writes into a batch, the future of one who waits for a single batch.
Must not know: where batches are kept, the engine.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence

from kop.errors import ErrorCode, KopError, PeerError
from kop.records.batch import BatchHeader, stamp, stamp_log_append_time
from kop.storage.base import AppendResult, AppendWaiter, Buffer, LogPolicy, ReadResult, TopicInfo
from kop.storage.transaction_index import AbortedTransaction

NOTHING_TO_READ = ReadResult((), 0)
"""The result of a read at the high watermark: no batches."""

_log = logging.getLogger(__name__)


class AppendFuture:
    """An `AppendWaiter` for one batch, with a future of its result."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()

    def reserve(self, size: int) -> None:
        """Do nothing: the bytes of a single batch need no bound across a request."""

    def appended(self, place: int, result: AppendResult) -> None:
        """Set the append's result on the future, unless it was cancelled."""
        if not self.future.done():
            self.future.set_result(result)

    def append_failed(self, place: int, error: KopError) -> None:
        """Set the append's error on the future, as a copy of its own, since it will be raised."""
        if not self.future.done():
            self.future.set_exception(error.fresh_copy())


class Partition:
    """The bounds of one partition's log and the callbacks for their moves; an engine's `PartitionLog` derives from
    it.
    """

    __slots__ = ("_observers", "deleted", "high_watermark", "index", "log_start_offset", "policy", "topic")

    def __init__(self, topic: TopicInfo, index: int, policy: LogPolicy) -> None:
        self.topic = topic
        self.index = index
        self.policy = policy
        self.deleted = False
        self.log_start_offset = 0
        self.high_watermark = 0
        self._observers: list[Callable[[], None]] | None = None  # most partitions have none

    @property
    def title(self) -> str:
        """The partition as log lines name it: `topic-index`."""
        return f"{self.topic.name}-{self.index}"

    # --- append

    @abstractmethod
    def submit(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        now_ms: int,
        waiter: AppendWaiter,
        place: int,
        from_zero: bool = False,
    ) -> None:
        """Accept a batch, to be stored; `waiter` is told once, with `place`, when it is durable or has failed. See
        `PartitionLog.submit`.
        """

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> asyncio.Future[AppendResult]:
        """Accept a batch and return a future of its result; see `PartitionLog.append`."""
        waiter = AppendFuture()
        self.submit(batch, header, now_ms=now_ms, waiter=waiter, place=0)
        return waiter.future

    def direct_writer(self, header: BatchHeader) -> object | None:
        """Return None: batches have to go to `submit`, unless an engine's log has a writer for compiled code."""
        return None

    # --- transactions

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset; the high watermark, unless an engine's log knows open transactions."""
        return self.high_watermark

    def aborted_between(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return no aborted transactions, unless an engine's log knows some; see `PartitionLog.aborted_between`."""
        return ()

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return true: a batch itself names its producer's transaction, so none has to be joined first."""
        return True

    def join_transaction(self, producer_id: int, producer_epoch: int, storage_transaction: bytes) -> None:
        """Do nothing: a batch itself names its producer's transaction."""

    # --- offsets

    def check_there(self) -> None:
        """Raise UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted."""
        if self.deleted:
            raise self.gone()

    def check_offset(self, offset: int) -> None:
        """Raise OFFSET_OUT_OF_RANGE for an offset that cannot be read, and UNKNOWN_TOPIC_OR_PARTITION if the topic was
        deleted. The high watermark can be read, and gives nothing.
        """
        if self.log_start_offset <= offset <= self.high_watermark and not self.deleted:
            return
        self.check_there()
        raise self._out_of_range(offset, self.log_start_offset)

    def deletable(self, before_offset: int) -> int:
        """Return the log start that a DeleteRecords with `before_offset` asks for; -1 is the high watermark.

        Raises OFFSET_OUT_OF_RANGE for an offset beyond the high watermark or below 0 (but for -1),
        UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted. An offset below the log start comes back as it is: the
        caller has nothing to do then.
        """
        self.check_there()
        if before_offset == -1:
            return self.high_watermark
        if not 0 <= before_offset <= self.high_watermark:
            raise self._out_of_range(before_offset, 0)
        return before_offset

    def gone(self) -> PeerError:
        """Return the error UNKNOWN_TOPIC_OR_PARTITION for requests to a log whose topic was deleted."""
        return PeerError(f"topic {self.topic.name!r} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _out_of_range(self, offset: int, first: int) -> PeerError:
        return PeerError(
            f"offset {offset} of {self.title} is not in {first} to {self.high_watermark}", ErrorCode.OFFSET_OUT_OF_RANGE
        )

    # --- observers

    @property
    def observed(self) -> bool:
        """True if a callback waits for the log's bounds to move."""
        return self._observers is not None

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the high watermark or the log start moves or the topic is deleted; return the function
        that ends this.
        """
        if self._observers is None:
            self._observers = []
        self._observers.append(callback)

        def undo() -> None:
            if self._observers is not None and callback in self._observers:
                self._observers.remove(callback)
                if not self._observers:
                    self._observers = None

        return undo

    def tell(self) -> None:
        """Call the callbacks for moved bounds. One that fails is logged and does not keep the others from being
        called.
        """
        for callback in tuple(self._observers or ()):
            try:
                callback()
            except Exception:
                _log.exception("an observer of %s failed", self.title)

    def remove(self) -> None:
        """End the log of a deleted topic: callbacks are called for the last time, and later requests are refused."""
        self.deleted = True
        self.tell()
        self._observers = None


def stamped(batch: Buffer, base_offset: int, append_time_ms: int) -> Buffer:
    """Return the batch as it is stored: with its base offset, leader epoch 0 and, unless -1, the append time.

    A writable `batch` is changed in place and comes back itself, anything else is copied.
    """
    if isinstance(batch, bytes) or (isinstance(batch, memoryview) and batch.readonly):
        batch = bytearray(batch)
    stamp(batch, base_offset)
    if append_time_ms >= 0:
        stamp_log_append_time(batch, append_time_ms)
    return batch
