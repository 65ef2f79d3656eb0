"""The memory engine with logs that compiled code writes to, over a Pulsar that is played.

A SEND frame is taken as soon as it is there, and its receipt is given later: in the loop's next turn, or before
anything else takes a place in the log, so that the order is that of arrival. Now and then the writer is handed over
instead, and what was under way is stored by the ordinary path. Every frame is compared with that of the ordinary path.

    store = DirectStore(random.Random(1))
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)
    async with gateway(tmp_path, store="memory:") as serving:
        store.offers = False  # all batches go the ordinary way
        store.refuses["t"] = PeerError(...)  # what is submitted, or under way, is refused
        store.hold()  # no receipts ...
        store.release()  # ... until now
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kop.compiled import compiled_only
from kop.errors import KopError
from kop.records import transcode
from kop.records.batch import BatchHeader, read_header
from kop.records.validation import check_records
from kop.storage.base import AppendResult, AppendWaiter, Buffer, LogPolicy, TopicInfo
from kop.storage.memory.engine import Memory, MemoryEngine
from kop.storage.memory.log import LogMemory, MemoryLog
from kop.storage.memory.settings import MemorySettings
from kop.storage.pulsar.partition.appends import NOBODY
from kop.storage.pulsar.partition.decompression import BATCH_MAY_INFLATE, DecompressionTurns, DirectCodecs
from kop.storage.pulsar.partition.direct_writers import direct_budget, direct_writer
from kop.storage.pulsar.partition.producer import checked_times

if TYPE_CHECKING:
    from kop._native import DirectWriter

_NUMBER = 12
_NAME = b"a producer"
_MAX_SIZE = 5 * 1024 * 1024
_LEDGER = 3


class DirectStore:
    """What the logs of one engine have in common."""

    def __init__(self, rng: random.Random, *, most: int = 1 << 30) -> None:
        self.rng = rng
        self.offers = True
        self.refuses: dict[str, KopError] = {}
        """Errors of all batches, by topic."""
        self.hands_over = 0.08
        """How often a writer ends instead of getting receipts."""
        self.surely_taken = sys.maxsize
        budget = direct_budget(most)
        assert budget is not None
        self.budget = budget
        self.turns: DecompressionTurns
        self.writers = 0
        """Writers that were made."""
        self.directly = 0
        """Batches that writers took."""
        self.handed_over = 0
        """Batches that were under way when their writer ended."""
        self._held: list[DirectLog] | None = None

    async def open(
        self,
        *,
        policy: Callable[[TopicInfo], LogPolicy] = lambda _: LogPolicy(),
        settings: MemorySettings | None = None,
    ) -> DirectEngine:
        """An engine without a past. Called as `memory.open_engine` is."""
        self.turns = DecompressionTurns(asyncio.get_running_loop())
        return DirectEngine(self, policy)

    def settle_soon(self, log: DirectLog) -> None:
        """Give the receipts of a log's entries in the loop's next turn, or at `release`."""
        if self._held is None:
            asyncio.get_running_loop().call_soon(log.settle)
        else:
            self._held.append(log)

    def hold(self) -> None:
        """Give receipts only where order asks for it."""
        self._held = []

    def release(self) -> None:
        """Give all receipts."""
        held, self._held = self._held or [], None
        for log in held:
            log.settle()


class DirectEngine(MemoryEngine):
    """Its logs offer writers."""

    def __init__(self, store: DirectStore, policy: Callable[[TopicInfo], LogPolicy]) -> None:
        self._store = store
        self.promises = dataclasses.replace(self.promises, checks_records=True)
        super().__init__(Memory(), policy, MemorySettings(maintain=False))

    def new_log(self, space: LogMemory, topic: TopicInfo, index: int, policy: LogPolicy) -> MemoryLog:
        return DirectLog(self._store, space, topic, index, policy)


class PlayedWriter:
    """A compiled writer, and the frames that it has sent."""

    def __init__(self, log: DirectLog, store: DirectStore, epoch: int | None, next_sequence: int) -> None:
        self._log = log
        self.frames: list[bytes] = []
        native: Any = compiled_only()
        self._outgoing = native.Outgoing(0, lambda: None, self._pushed)
        codecs = DirectCodecs(store.turns)
        writer = direct_writer(
            _NUMBER,
            _NAME,
            self._outgoing,
            store.budget,
            store,
            codecs,
            BATCH_MAY_INFLATE,
            _MAX_SIZE,
            epoch,
            next_sequence,
        )
        assert writer is not None
        self.writer: DirectWriter = writer

    def _pushed(self) -> None:
        self.frames += self._outgoing.take()
        self._log.pushed(self)


class Answers:
    """Has a writer answer its batches once they are readable."""

    def __init__(self, writer: DirectWriter) -> None:
        self._writer = writer

    def reserve(self, size: int) -> None:
        """Nothing is decompressed here."""

    def appended(self, place: int, result: AppendResult) -> None:
        for waiter, each, base, log_start_offset in self._writer.answer():
            waiter.appended(each, AppendResult(base, -1, log_start_offset))

    def append_failed(self, place: int, error: KopError) -> None:
        self._writer.answer()


class DirectLog(MemoryLog):
    """One partition."""

    def __init__(self, store: DirectStore, space: LogMemory, topic: TopicInfo, index: int, policy: LogPolicy) -> None:
        super().__init__(space, topic, index, policy)
        self._shared = store
        """`_store` is a method of all logs in memory."""
        self._writers: dict[int, PlayedWriter] = {}
        self._under_way: PlayedWriter | None = None
        """The writer whose entries have no receipt yet."""
        self._entry = -1
        """The number of the last entry."""

    @property
    def _error(self) -> KopError | None:
        return self._shared.refuses.get(self.topic.name)

    # --- what a log over Pulsar does

    def direct_writer(self, header: BatchHeader) -> object | None:
        if not self._shared.offers or self.policy.log_append_time or self.deleted or self.topic.internal:
            return None
        producer_id = max(header.producer_id, -1)
        played = self._writers.get(producer_id)
        if played is None:
            epoch, sequence = None, 0
            if producer_id >= 0:
                known = {view.producer_id: view for view in self.producers()}.get(producer_id)
                if known is None or known.last_sequence < 0:
                    return None
                epoch, sequence = known.producer_epoch, known.last_sequence + 1
            played = self._writers[producer_id] = PlayedWriter(self, self._shared, epoch, sequence)
            self._shared.writers += 1
        return played.writer

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
        played = self._writers.get(max(header.producer_id, -1))
        if played is not None:
            if not header.transactional and self._sent_directly(played.writer, batch, header, now_ms, waiter, place):
                return
            self.end(played)
        self.settle()
        if self._error is not None:
            waiter.append_failed(place, self._error)
            return
        batch = bytearray(batch)
        try:
            checked = check_records(batch, header, False, self.policy.max_uncompressed_bytes)
            header = checked_times(
                batch, header, checked.earliest, checked.latest, self.policy, now_ms=now_ms, reserve=waiter.reserve
            )
        except KopError as error:
            waiter.append_failed(place, error)
            return
        super().submit(batch, header, now_ms=now_ms, waiter=waiter, place=place, from_zero=from_zero)

    def _sent_directly(
        self, writer: DirectWriter, batch: Buffer, header: BatchHeader, now_ms: int, waiter: AppendWaiter, place: int
    ) -> bool:
        if self._error is not None or self.policy.log_append_time:
            return False
        owned = batch if isinstance(batch, bytearray) else bytearray(batch)
        return writer.submit(owned, waiter, place, 0.0, now_ms, self.policy.compact, *self.policy.time_limits) >= 0

    # --- what Pulsar does

    def pushed(self, played: PlayedWriter) -> None:
        """A writer has sent an entry behind all others of the log."""
        self._shared.directly += 1
        if self._under_way is not played:
            self.settle()
            self._under_way = played
            self._shared.settle_soon(self)

    def settle(self) -> None:
        """Store what is under way."""
        played, self._under_way = self._under_way, None
        if played is None:
            return
        if self._error is not None or self._shared.rng.random() < self._shared.hands_over:
            self.end(played)
            return
        frames, played.frames = played.frames, []
        entries = [transcode.parse_entry(transcode.entry_in(frame)[0]) for frame in frames]
        receipts = [
            (_NUMBER, entry.sequence_id, entry.highest_sequence_id, _LEDGER, self._entry + 1 + index)
            for index, entry in enumerate(entries)
        ]
        taken, placed, _ = played.writer.receipts(receipts, _LEDGER, self._entry, self._end, self.log_start_offset, 0.0)
        assert taken == len(receipts) == len(placed)
        for (number, last, batch, max_timestamp), frame in zip(placed, frames, strict=True):
            header = read_header(batch)
            assert (number, header.base_offset, header.last_offset) == (self._entry + 1, self._end, last)
            assert max_timestamp == header.max_timestamp
            self._keep(batch, header, frame, NOBODY, 0)
        self._answer_soon(Answers(played.writer), 0, AppendResult(0, -1, 0))

    def end(self, played: PlayedWriter) -> None:
        """Take a writer's batches over, as the ordinary path does."""
        if self._under_way is played:
            self._under_way = None
        else:
            self.settle()
        self._writers = {number: each for number, each in self._writers.items() if each is not played}
        frames, played.frames = played.frames, []
        _, under_way = played.writer.hand_over()
        assert [sent[3] for sent in under_way] == frames
        self._shared.handed_over += len(under_way)
        for fields, batch, _, frame, _, _, _, waiter, place in under_way:
            if self._error is not None:
                waiter.append_failed(place, self._error)
                continue
            self._keep(batch, BatchHeader._make(fields), frame, waiter, place)

    def _keep(self, batch: Buffer, header: BatchHeader, frame: bytes, waiter: AppendWaiter, place: int) -> None:
        """Store a batch, and look that the frame holds it as the ordinary path would have sent it."""
        entry = transcode.parse_entry(transcode.entry_in(frame)[0])
        (made,) = transcode.to_frames(
            batch,
            header,
            producer_id=_NUMBER,
            producer_name=_NAME.decode(),
            sequence_base=entry.sequence_id,
            publish_time=entry.publish_time,
            max_size=_MAX_SIZE,
            compacted=self.policy.compact,
        )
        assert made.frame == frame
        if header.producer_id >= 0:
            assert entry.sequence_id >> 47 == header.producer_epoch
        self._entry += 1
        self._append(batch, header, entry.publish_time, waiter, place)
