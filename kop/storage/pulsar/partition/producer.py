"""Appends on their way to Pulsar through one producer of one partition.

Owns: the producer (opened at the first batch, closed when idle), sequence ids, the order of batches, their timestamps,
what a failure means.
Must not know: offsets; `appends.py` finds them when a receipt is here.

Each idempotent producer id has one Pulsar producer, and all other batches of this broker share one. Pulsar deduplicates
by the producer's name, so what is sent again after a lost connection is stored once.

When a batch of an idempotent producer fails and nothing is known of it, what was sent behind it must not pass: the
producer ends, its batches fail in order, and the next one asks Pulsar again what is stored. Where a Pulsar broker
refuses one entry for good, those behind it are stored all the same: they end with their own receipts. So what stands
behind an entry that Pulsar may refuse for its size waits until that one has its receipt (`entry_sizes.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from kop import clock
from kop.background import cancel
from kop.errors import BackendError, ErrorCode, KopError, PeerError, without_frames
from kop.pulsar_client import EntryRefusedError, Position, Producer, PulsarError, exclusive_holder
from kop.pulsar_client.errors import QUOTA_EXCEEDED
from kop.pulsar_client.types import Access
from kop.records import transcode
from kop.records.batch import BatchHeader, read_header, stamp_create_time
from kop.records.validation import refuse_times
from kop.storage.base import AppendWaiter, LogPolicy
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, Refused, kafka_error
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.partition.appends import Append, Appends, InFlightEntry, StoredEntry
from kop.storage.pulsar.partition.decompression import BATCH_MAY_INFLATE
from kop.storage.pulsar.partition.direct_batches import PAUSE_SECONDS, BatchUnderWay, DirectBatches, SettledBatch
from kop.storage.pulsar.partition.direct_writers import direct_writer
from kop.storage.pulsar.partition.entry_sizes import ENTRY_FRAMING, EntrySizeLimit
from kop.storage.pulsar.partition.sequences import SequenceWindow, StoredSequences
from kop.storage.pulsar.partition.services import PartitionServices, PartitionView
from kop.storage.pulsar.partition.throttle import PublishThrottle, still_to_wait
from kop.storage.pulsar.reading.source import LogBounds

if TYPE_CHECKING:
    from kop._native import DirectWriter

LIVE_HOLDER_SECONDS: Final = 15.0
"""The seconds that the only writer of a log waits for a predecessor whose broker is live before it pushes that one out.

See docs/quirks.md, "A broker that pushes a producer out may block two threads for ever". A live broker that hands a
partition over closes its producer; on a loaded machine it may need seconds for all that it led. One that does not know
that the partition is another's keeps it, and is pushed out after this time. A broker that is not live is pushed out at
once: it closes no producers, see `PartitionProducer.close`.
"""
UNKNOWN_HOLDER_SECONDS: Final = 2.5
"""The same as `LIVE_HOLDER_SECONDS` for a predecessor that may be live or not, because this broker has just started;
and for a former producer of this broker, of which Pulsar does not know yet that it is gone.
"""
BUSY_SECONDS: Final = 3.0
"""The seconds for which a broker tries to open a producer that another broker holds, before it tells the client to look
for a new leader.
"""
OPEN_SECONDS: Final = 25.0
"""The seconds that opening a producer may take with all that it needs; clients wait 30 s for an answer."""
_HEAR_SECONDS: Final = 3.0
"""The seconds for which closing waits for the answer to a producer that is being opened."""
END_SECONDS: Final = 5.0
"""The seconds that the tail may take to bring what is stored, before a producer goes on without it."""
ASK_AGAIN_AFTER: Final = (0.2, 1.0, 3.0)
"""The seconds after which Pulsar is asked again for its stored sequence, before a client is told that its own does not
fit.
"""

_OF_WHAT_IS_STORED: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
"""The codes of refusals that are wrong if another broker has stored more than this one knows."""

log = logging.getLogger(__name__)


class WrittenLog(PartitionView, LogBounds, Protocol):
    """The log that the producers of a partition write to, in the parts that they use."""

    followed_since: float
    """The loop's time from which on the tail brings all that is stored; infinite while the log is not attached."""

    @property
    def known_start(self) -> int:
        """The log start; -1 if it is not known yet."""


@dataclass(slots=True)
class WritePath:
    """The objects and functions that all producers of one partition share. `check_exists` raises if the topic is gone,
    see `Client.open_producer`; `refresh` is the log's.
    """

    context: PulsarContext
    services: PartitionServices
    log: WrittenLog
    appends: Appends
    throttle: PublishThrottle
    entry_size_limit: EntrySizeLimit
    stored: StoredSequences
    check_exists: Callable[[], Awaitable[None]]
    refresh: Callable[[], Awaitable[None]]


class PartitionProducer:
    """A Pulsar producer of one partition, with the batches that wait for it. `on_ended` is called once, when it takes
    no more batches; for `park` see `DirectBatches`.
    """

    def __init__(
        self,
        path: WritePath,
        name: str,
        *,
        idempotent: bool,
        exclusive: bool = False,
        transactional: bool = False,
        on_ended: Callable[[PartitionProducer], None],
        park: Callable[[int, DirectBatches], None],
    ) -> None:
        self.name = name
        self._encoded_name = name.encode()
        self.exclusive = exclusive
        """True if this is the only writer of the log, which fences the writer before it when it opens."""
        self.transactional = transactional
        """True if its batches are of transactions. One that may have been stored is not sent again by itself: the
        transaction may have ended meanwhile. Its client sends it again, and then Pulsar is asked if the transaction is
        open.
        """
        self._used = 0.0
        self.idempotent = idempotent
        self.sequences: SequenceWindow | None = None
        self.ended = False
        self._stored_up_to = -1
        """The highest sequence id of which a receipt told the position; -1 for none."""
        self.taken_bytes = 0
        """The bytes of the entries that Pulsar has answered."""
        self._sent_bytes = 0
        self._path = path
        self._log = path.log
        self._context = path.context
        self._services = path.services
        self._appends = path.appends
        self._throttle = path.throttle
        self._loop = path.context.loop
        self._on_ended = on_ended
        self._park = park
        self._next = 0
        self._producer: Producer | None = None
        self._lane = ""
        """The lane of the producer, which picks one of this broker's connections to the Pulsar broker."""
        self._queue: deque[Append] = deque()
        self._doubtful: set[InFlightEntry] = set()
        """The entries without a receipt that Pulsar may refuse for their size: nothing is sent behind them."""
        self._direct: DirectBatches | None = None
        self._direct_from = 0.0
        """The loop's time from which on compiled code may take batches."""
        self._opening: asyncio.Task[None] | None = None
        self._refused: KopError | None = None

    @property
    def used(self) -> float:
        """The loop's time at which the last batch was added."""
        return self._used if self._direct is None else max(self._used, self._direct.writer.used)

    @property
    def idle(self) -> bool:
        """True if no batch waits in the producer, also for its receipt, and the producer is not being opened."""
        waits = self._producer is not None and self._producer.pending
        return not waits and not self._queue and self._opening is None

    def find(self, sequence_id: int, count: int) -> InFlightEntry | None:
        """Return the entry that begins with this sequence id and has `count` records, if it has no receipt, or one that
        says "duplicate" because an earlier one was lost; else None.
        """
        sent = self._under_way(sequence_id)
        if sent is not None and sent.count == count:
            return sent
        return self._appends.searched(self.name, sequence_id, count)

    def _under_way(self, sequence_id: int) -> InFlightEntry | None:
        """Return the entry without a receipt that begins with this sequence id; None if there is none."""
        sent = None if self._producer is None else self._producer.find(sequence_id)
        return sent if isinstance(sent, InFlightEntry) and not sent.done else None

    @property
    def sure_at(self) -> float:
        """The latest time of the loop at which the producer was surely not fenced, that is, replaced by another
        broker's.
        """
        return float("-inf") if self._producer is None else self._producer.sure_at

    @property
    def connected(self) -> bool:
        """True if the producer is attached: no other broker has its name now."""
        return self._producer is not None and self._producer.connected

    async def verify(self) -> None:
        """Ask Pulsar if the producer, if there is one, is fenced. PulsarError if it is, or Pulsar does not answer."""
        if self._producer is not None:
            await self._producer.verify()

    def move(self) -> None:
        """Use the connection that the partition is written over now, because its lane, the name of that connection, has
        changed.
        """
        lane = self._path.throttle.lane
        if self._producer is not None and lane != self._lane:
            self._lane = lane
            self._context.client.move_producer(self._producer, lane)

    def add(self, append: Append) -> None:
        """Send a batch, or let it wait: until the producer is open, which begins here, behind an entry that Pulsar may
        refuse for its size, or for its turn to be decompressed. Compiled code gets no more batches.
        """
        self._used = self._loop.time()
        if self._direct is not None:
            self.end_direct()
        at_once = self._producer is not None and not self._queue and not self._doubtful and not self.ended
        if at_once and not append.header.codec:
            self._send(append)
            return
        self._queue.append(append)
        if self._producer is not None:
            self._send_queued()
        elif self._opening is None:
            self._opening = self._loop.create_task(self._open())

    async def open(self) -> None:
        """Open the producer now. KopError, with the reason, if it cannot be opened."""
        await self._open()
        if self._producer is None:
            raise self._refused or BackendError(f"cannot write to {self._log.title}")

    async def close(self) -> None:
        """Close the producer, so that another broker may have its name. The batches that wait in it fail.

        The only writer of a log is not closed if the other brokers may take this one for dead and push it out at the
        same moment (`LIVE_HOLDER_SECONDS`): its connection is dropped instead.
        """
        self.fail(BackendError(f"the producer of {self._log.title} was closed"))
        opening, self._opening = self._opening, None
        if opening is not None:
            # A producer that is being opened may bring back a deleted topic. That is mended by whoever gets the answer.
            await asyncio.wait({opening}, timeout=_HEAR_SECONDS)
            await cancel(opening)
        if self._producer is not None:
            await self._give_back(self._producer)

    async def _give_back(self, producer: Producer) -> None:
        await producer.close(drops_connection=self.exclusive and not self._services.counts_as_live())

    def fail(self, error: KopError) -> None:
        """End the producer for good and call `on_ended`, the first time: every batch that waits in it, or for its
        receipt, fails with `error`. The producer in Pulsar stays open until `close`.
        """
        self.end_direct()
        if not self.ended:
            self._refused = error = without_frames(error)
            self.ended = True
            self._path.stored.add(self.name, self._stored_up_to)
            self._on_ended(self)
        for entry in () if self._producer is None else self._producer.unanswered():
            if isinstance(entry, InFlightEntry):
                self._unanswered(entry, error)
        while self._queue:
            append = self._queue.popleft()
            append.refuse(error)
            append.end(self._log.known_start)

    async def _open(self) -> None:
        refused: KopError
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                producer = await self._opened()
                if self.idempotent and not self.transactional and self.name in self._path.stored:
                    await self._look_at_end(self._path.refresh)
                for pause in ASK_AGAIN_AFTER:
                    if not self._is_behind(producer):
                        break
                    await producer.close()
                    await asyncio.sleep(pause)
                    producer = await self._opened()
                sequences = await self._known_sequences(producer) if self.idempotent else None
                self._producer = producer
        except PulsarError as error:
            refused = self._refusal(error)
        except TimeoutError:
            refused = self._refusal(PulsarError("Timeout", f"no producer within {OPEN_SECONDS:.0f} s"))
        except KopError as error:
            refused = error
        except Exception as error:
            log.exception("cannot write to %s", self._log.title)
            refused = BackendError(f"cannot write to {self._log.title}: {error!r}")
        else:
            self._opening = None
            if self.ended:
                await self._give_back(producer)
                return
            if sequences is not None:
                self.sequences = sequences
                log.debug("%s: %s begins behind %d", self._log.title, self.name, producer.last_sequence_id)
            else:
                self._next = producer.last_sequence_id + 1
            self._send_queued()
            return
        self._opening = None
        self.fail(refused)

    async def _known_sequences(self, producer: Producer) -> SequenceWindow:
        """Return the sequence window of the producer, by the last stored sequence id. PulsarError or KopError if that
        cannot be found out.

        Pulsar's answer may be older than the log (`StoredSequences`). Then the log is right.
        """
        sequences = self._sequences(producer)
        if (seen := self._path.stored.of(self.name)) > producer.last_sequence_id:
            self._tell_what_pulsar_forgot(producer, seen)
        if self._misfit(sequences) is not None:
            last = sequences.directly_before(self._queue[0].header)
            if await self._appends.is_stored(self.name, last, hidden=self.transactional):
                self._tell_what_pulsar_forgot(producer, last)
                return SequenceWindow(last, complete=sequences.complete)
        return sequences

    def _tell_what_pulsar_forgot(self, producer: Producer, stored: int) -> None:
        self._context.faults.count(Fault.SEQUENCES_FORGOTTEN_BY_PULSAR)
        log.log(  # a Pulsar broker that was killed forgets some of each producer
            logging.DEBUG if self._context.faults.outage.active else logging.INFO,
            "%s: Pulsar's deduplication knows sequence ids of producer %s up to %d, and the topic holds %d: the "
            "gateway goes on behind what the topic holds",
            self._log.title, self.name, producer.last_sequence_id, stored,
        )  # fmt: skip

    def _misfit(self, sequences: SequenceWindow) -> PeerError | None:
        """Return the error if no waiting batch follows on Pulsar's stored sequence; None if one does, if none waits, or
        if the error does not depend on what is stored.

        A client that pipelines sends the batch that comes next once more, behind others, if it alone was refused.
        """
        if not self._queue or any(sequences.comes_next(append.header) for append in self._queue):
            return None
        first = self._queue[0]
        error = sequences.check(first.header, from_zero=first.from_zero).error
        return error if error is not None and error.code in _OF_WHAT_IS_STORED else None

    def _is_behind(self, producer: Producer) -> bool:
        """Return true if a client knows of more stored batches than Pulsar's deduplication, which is counted and
        logged: docs/quirks.md, "Deduplication forgets while a topic is loaded".
        """
        if not self.idempotent:
            return False
        error = self._misfit(self._sequences(producer))
        if error is None:
            return False
        self._context.faults.count(Fault.SEQUENCES_AHEAD_OF_PULSAR)
        self._context.faults.tell(
            (self._log.title, self.name),
            f"{self._log.title}: Pulsar knows sequence ids of producer {self.name} up to {producer.last_sequence_id}, "
            f"and its client goes on behind others: Pulsar is asked again ({error.message})",
        )
        return True

    def _sequences(self, producer: Producer) -> SequenceWindow:
        complete = self._services.knows_all_producers(self._log.topic.topic_id)
        return SequenceWindow(max(producer.last_sequence_id, self._path.stored.of(self.name)), complete=complete)

    async def _confirm(self, producer: Producer) -> None:
        """Look at the topic of a producer that was attached just now, and drop those of its entries that are stored.
        KopError if attaching brought back a topic that is gone.

        They are not sent again, since Pulsar's deduplication may have forgotten them (`StoredSequences`).
        """
        await self._services.confirm(self._log, producer)
        if self.exclusive or not producer.pending:
            return
        await self._look_at_end(self._path.refresh)
        since = self._log.followed_since
        pending = [entry for entry in producer.unanswered() if isinstance(entry, InFlightEntry)]
        unseen = [entry for entry in pending if not entry.done and entry.sent <= since]
        if unseen:
            await self._look_at_end(lambda: self._appends.answer_stored(unseen))
        for entry in pending:
            if entry.done:
                producer.withdraw(entry.sequence_id)
                self._left(entry)

    async def _look_at_end(self, look: Callable[[], Awaitable[None]]) -> None:
        """Wait for `look`, which answers entries that are stored: once the tail has brought all that is stored now, or,
        for those that were sent before the tail began, by a search. If that takes 5 seconds or fails, it is logged, and
        Pulsar's deduplication decides alone.

        Entries behind an open transaction come later, too: Pulsar gives them to no reader before it ends.
        """
        try:
            async with asyncio.timeout(END_SECONDS):
                await look()
        except (KopError, PulsarError, TimeoutError) as error:
            log.info(
                "%s: the end of the log was not read within %.0f s, so that Pulsar's deduplication alone tells what of "
                "producer %s is stored: %r", self._log.title, END_SECONDS, self.name, error
            )  # fmt: skip

    async def _opened(self) -> Producer:
        path, services, owner = self._path, self._services, self._log
        topic_id = owner.topic.topic_id
        begun = self._loop.time()
        pause = 0.02
        await path.check_exists()
        await services.retains(topic_id)
        if self.idempotent:
            await services.deduplicates(topic_id)
        await path.entry_size_limit.learn()
        if owner.policy.raw_entries:
            await services.mark_raw(topic_id)
        # A fenced producer loses its connection: it must not be the one that others send on.
        self._lane = "coordinators" if self.exclusive else path.throttle.lane
        access: Access = "exclusive" if self.exclusive else "shared"
        while True:
            try:
                return await self._context.client.open_producer(
                    owner.partition_name,
                    name=self.name,
                    before_attach=path.check_exists,
                    confirm=self._confirm,
                    on_lost=self._lost,
                    access=access,
                    lane=self._lane,
                    resend=not self.transactional,
                    on_stored=self.received,
                )
            except PulsarError as error:
                held = error.code == "ProducerBusy" or (access == "exclusive" and error.code == "ProducerFenced")
                if not held or self.ended or (access != "exclusive" and self._loop.time() > begun + BUSY_SECONDS):
                    raise
                if access == "exclusive" and self._loop.time() >= begun + self._patience(exclusive_holder(error)):
                    access, begun = "exclusive_with_fencing", self._loop.time()
                    continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    def _patience(self, holder: str | None) -> float:
        """Return the seconds that the producer named `holder` has to leave before this one pushes it out: 15 if its
        broker is live, 0 if it is not, 2.5 if that is not known, or it is a former one of this broker.
        """
        live = None if holder is None or holder == self.name else self._services.leader_is_live(holder)
        if live is None:
            return UNKNOWN_HOLDER_SECONDS
        return LIVE_HOLDER_SECONDS if live else 0.0

    def _refusal(self, error: PulsarError) -> KopError:
        """Count and log a refusal by Pulsar, and return the error for the client. If it is a backlog quota, the
        subscription that is behind is logged, too.
        """
        if error.code == QUOTA_EXCEEDED:
            self._services.over_quota(self._log.partition_name, self._log.title)
        return self._context.faults.refused(error, Refused.WRITES, f"cannot write to {self._log.title}")

    def _send_queued(self) -> None:
        """Send the batches that wait, in order, as long as none behind an entry that Pulsar may refuse. A compressed
        one, and all behind it, may wait for the loop's next turn.

        So may batches that waited together, as for a producer that was slow to open: there may be 256 MiB of them.
        """
        queue, turns = self._queue, self._services.decompression
        while queue and not self.ended and not self._doubtful:
            header = queue[0].header
            if turns.is_over and (header.codec or len(queue) > 1):
                turns.wait(self._send_queued)
                return
            self._send(queue.popleft())
            if queue and not header.codec:
                turns.add(header.size)

    def _send(self, append: Append) -> None:
        try:
            self._send_checked(append)
        except Exception as error:
            log.exception("cannot write to %s", self._log.title)
            refused = BackendError(f"cannot write to {self._log.title}: {error!r}")
            append.refuse(refused)
            append.end(self._log.known_start)
            self._end(refused)

    def _send_checked(self, append: Append) -> None:
        header, known = append.header, False
        if append.txn is not None and append.txn in self._services.ended_transactions:
            # The client sends it again, and its coordinator is asked.
            text = f"{self._log.title}: a batch of producer {header.producer_id} waited until its transaction ended"
            append.refuse(BackendError(text, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            append.end(self._log.known_start)
            return
        if self.sequences is not None:
            verdict = self.sequences.check(header, from_zero=append.from_zero)
            if verdict.original is not None:
                original: Append = verdict.original.owner
                if original.left:
                    append.end_as(original)
                elif original.placed:
                    append.base, append.time = original.base, original.time
                    append.end(self._log.known_start)
                else:
                    self._appends.find_again(append, self, verdict.original.sequence_id)
                return
            if verdict.error is not None:
                assert self._producer is not None
                if not self._producer.connected and verdict.error.code in _OF_WHAT_IS_STORED:
                    # Another broker may have written for this client since the connection was lost. The next producer
                    # asks Pulsar what is stored.
                    text = f"{self._log.title}: no connection to Pulsar to ask what {self.name} has stored"
                    unsure = BackendError(f"{text}: {verdict.error.message}")
                    append.refuse(unsure)
                    append.end(self._log.known_start)
                    self._end(unsure)
                    return
                log.info("%s: a batch of producer %s is refused: %s", self._log.title, self.name, verdict.error)
                append.refuse(verdict.error)
                append.end(self._log.known_start)
                return
            assert verdict.sequence_id is not None
            first, known = verdict.sequence_id, verdict.known
            if known and (in_flight := self._under_way(first)) is not None:
                if in_flight.append.has_sequences_of(header):
                    append.end_as(in_flight.append)
                else:  # other records, and Pulsar is asked under one sequence id for one batch at a time
                    self._appends.find_again(append, self, first)
                return
            if known and (
                first + header.last_offset_delta <= self._path.stored.of(self.name)
                or self._appends.searched(self.name, first, header.last_offset_delta + 1) is not None
            ):
                self._appends.find_again(append, self, first)
                return
        else:
            first = self._next
        producer = self._producer
        assert producer is not None
        try:
            frames = self._frames(append, first, producer.id, confirm=known)
            self._check_times(append, frames[0])
            self._services.mapping.check(frames, self._log.last_position)
            if self._path.entry_size_limit.bytes and not known:
                self._check_sizes(frames)
        except KopError as error:
            append.refuse(error)
            append.end(self._log.known_start)
            return
        header = append.header
        if self.sequences is None:
            self._next = first + header.last_offset_delta + 1
        elif not known:
            self.sequences.take(header, first, append)
        whole = len(frames) == 1
        append.left = len(frames)
        for made in frames:
            self._sent_bytes += made.entry_size
            entry = InFlightEntry(
                append, made, producer.id, first + made.first, whole, self, self._used, self.taken_bytes
            )
            entry.sent_again = known
            if self._may_be_refused(entry):
                self._doubtful.add(entry)
            producer.submit(entry)
            if (
                self.ended and append.left
            ):  # a batch was refused before it was sent, and the next ones must not overtake it
                append.refuse(
                    append.error or self._refused or BackendError(f"the producer of {self._log.title} has ended")
                )
                append.end(self._log.known_start)
                return

    # --- batches that compiled code takes

    def direct_writer(self) -> DirectWriter | None:
        """Return the compiled writer, for batches behind all that `add` was given; None if they have to go to `add`."""
        if self._direct is not None:
            return self._direct.writer
        budget, now = self._services.write_budget.direct, self._loop.time()
        if budget is None or self.exclusive or self.transactional or self.ended or now < self._direct_from:
            return None
        producer, sequences = self._producer, self.sequences
        if producer is None or self._queue or self._doubtful or self._throttle.holds_back(now):
            return None
        if sequences is not None and not sequences.unbroken:
            return None
        outgoing = producer.direct_outgoing
        if outgoing is None:
            return None
        writer = direct_writer(
            producer.id,
            self._encoded_name,
            outgoing,
            budget,
            self._path.entry_size_limit,
            self._services.direct_codecs,
            self._most_inflated,
            self._context.client.max_message_size,
            None if sequences is None else sequences.epoch,
            self._next if sequences is None else sequences.next_sequence,
        )
        if writer is not None:
            self._direct = DirectBatches(
                writer,
                self._log,
                self._appends,
                self._throttle,
                self._loop.time,
                park=self._park,
                end=self.end_direct,
                take_over=self._take_over,
            )
            producer.begin_direct(self._direct)
        return writer

    def end_direct(self) -> None:
        """Make all batches go to `add` from now on, and wait here for the receipts of those that compiled code holds.
        It may get batches again a second later at the earliest.
        """
        if self._direct is not None and self._producer is not None:
            self._producer.end_direct()

    def submit_directly(self, batch: bytearray, header: BatchHeader, waiter: AppendWaiter, place: int) -> bool:
        """Give a batch to compiled code; return false if that does not accept it."""
        policy = self._log.policy
        if self._direct is None or header.transactional or policy.raw_entries:
            return False
        most = self._most_inflated if header.codec else 0
        if most:
            try:
                waiter.reserve(most)
            except KopError:
                return False  # the ordinary way says so to the client
        now, now_ms = self._loop.time(), clock.wall_ms()
        inflated = self._direct.writer.submit(batch, waiter, place, now, now_ms, policy.compact, *policy.time_limits)
        if most:
            waiter.reserve(max(inflated, 0) - most)
        return inflated >= 0

    @property
    def _most_inflated(self) -> int:
        """The bytes that compiled code may inflate a batch to."""
        return min(BATCH_MAY_INFLATE, self._log.policy.max_uncompressed_bytes)

    def brought_directly(self, stored: EntryWithOffsets) -> bool:
        """Give compiled code an entry of this producer that the tail brought before its receipt came; return true if it
        was the next one and is placed.
        """
        return self._direct is not None and self._appends.places_directly and self._direct.brought(stored)

    def _take_over(
        self, writer: DirectWriter, settled: list[SettledBatch], under_way: list[BatchUnderWay]
    ) -> Sequence[InFlightEntry]:
        """Take over the entries that compiled code sent and the state of its sequences, and wait for the receipts here;
        return these entries. Compiled code gets no batches for a second.
        """
        budget = self._services.write_budget
        self._direct = None
        self._direct_from = self._loop.time() + PAUSE_SECONDS
        self._used = max(self._used, writer.used)
        self._stored_up_to = max(self._stored_up_to, writer.stored_up_to)
        answered_before = self.taken_bytes
        self.taken_bytes += writer.answered_bytes
        self._sent_bytes += writer.sent_bytes
        if self.sequences is None:
            self._next = writer.next_sequence
        else:
            for stored in settled:
                ended = Append.ended(stored.header, stored.base_offset, budget)
                self.sequences.take(stored.header, stored.sequence_id, ended)
        number = 0 if self._producer is None else self._producer.id
        entries: list[InFlightEntry] = []
        for sent in under_way:
            append = Append(sent.batch, sent.header, None, sent.waiter, sent.place, budget)
            append.left = 1
            made = transcode.SendFrame(sent.frame, sent.header.record_count, 0, sent.entry_size)
            entry = InFlightEntry(
                append, made, number, sent.sequence_id, True, self, sent.sent, answered_before + sent.before
            )
            entry.deadline = sent.sent
            entries.append(entry)
            if self.sequences is not None:
                self.sequences.take(sent.header, sent.sequence_id, append)
        return entries

    def settled_sequences(self) -> SequenceWindow | None:
        """Return the sequence window, with the batches that compiled code has settled; None if the producer is not
        idempotent, or not open yet. Batches go to `add` from now on.
        """
        self.end_direct()
        return self.sequences

    def _may_be_refused(self, entry: InFlightEntry) -> bool:
        """Return true if Pulsar may refuse an entry for its size while later batches of its client must not be stored
        without it.

        A batch of a transaction holds nothing up: its transaction may end before what waits is sent.
        """
        if self.sequences is None or entry.sent_again or entry.in_transaction:
            return False
        return entry.size > self._path.entry_size_limit.surely_taken

    def _check_sizes(self, frames: Sequence[transcode.SendFrame]) -> None:
        """Raise MESSAGE_TOO_LARGE if the topic's own limit forbids an entry, before the batch takes a sequence. Pulsar
        is then asked in the background if the limit has changed.
        """
        limit = self._path.entry_size_limit
        for made in frames:
            size = made.entry_size + ENTRY_FRAMING
            if size > limit.bytes:
                limit.doubt()
                raise self._refusal(
                    PulsarError(
                        "NotAllowedError",
                        f"Exceed maximum message size: an entry of {size} bytes, the topic takes {limit.bytes}",
                    )
                )

    def _check_times(self, append: Append, made: transcode.SendFrame) -> None:
        """Check the timestamps that the records of a batch have, and correct the largest one in its header.
        INVALID_TIMESTAMP if the topic does not allow them.
        """
        append.header = checked_times(
            append.batch,
            append.header,
            made.earliest,
            made.latest,
            self._log.policy,
            now_ms=clock.wall_ms(),
            reserve=append.reserve,
        )

    def _frames(self, append: Append, first: int, producer_id: int, *, confirm: bool) -> Sequence[transcode.SendFrame]:
        """Encode a batch as SEND frames, in the topic's entry format; its first record has the sequence id `first`.
        `confirm`: it is sent to learn if Pulsar has a copy, so that it is not split for being there in part.

        The bytes to which a compressed batch is decompressed count: BackendError if its request had its share of that.
        """
        policy = self._log.policy
        if not append.header.codec and not policy.raw_entries:
            return transcode.plain_frames(
                append.batch,
                append.header,
                producer_id,
                self._encoded_name,
                first,
                clock.wall_ms(),
                self._context.client.max_message_size,
                policy.compact,
                append.txn,
            )
        max_bytes = min(policy.max_uncompressed_bytes, transcode.MAX_UNCOMPRESSED)
        if not append.header.codec:
            return self._converted(append, first, producer_id, max_bytes, confirm=confirm)
        append.reserve(max_bytes)
        self._services.decompression.add(max_bytes)
        frames = self._converted(append, first, producer_id, max_bytes, confirm=confirm)
        spared = sum(made.decompressed for made in frames) - max_bytes
        append.reserve(spared)
        self._services.decompression.add(spared)
        return frames

    def _converted(
        self, append: Append, first: int, producer_id: int, max_bytes: int, *, confirm: bool
    ) -> Sequence[transcode.SendFrame]:
        """Encode a batch that is compressed, or kept as it came, as SEND frames for `_frames`; it may be decompressed
        to `max_bytes` at most.
        """
        owner, header = self._log, append.header
        policy, publish_time = owner.policy, clock.wall_ms()
        max_size = self._context.client.max_message_size
        # A batch that Pulsar has in part was split. In one entry the rest of it would be dropped with that part.
        in_part = not confirm and self.sequences is not None and self.sequences.known(first)
        in_pieces = in_part or (append.txn is not None and append.txn.sent_in)
        if not in_pieces and policy.raw_entries and self._services.may_write_raw(owner.topic.topic_id):
            made = transcode.to_raw_frame(
                append.batch,
                header,
                producer_id=producer_id,
                producer_name=self.name,
                sequence_base=first,
                publish_time=publish_time,
                max_size=max_size,
                max_bytes=max_bytes,
                txn=append.txn,
            )
            return (made,)
        return transcode.to_frames(
            append.batch,
            header,
            producer_id=producer_id,
            producer_name=self.name,
            sequence_base=first,
            publish_time=publish_time,
            max_size=max_size,
            max_bytes=max_bytes,
            compacted=policy.compact,
            txn=append.txn,
        )

    def received(self, receipts: Sequence[tuple[InFlightEntry, int, int]]) -> None:
        """Handle receipts of entries: hand stored entries to `Appends`, and look for earlier copies of duplicates. The
        batches of late entries that a publish rate holds back get their throttle time here.
        """
        now = self._loop.time()
        stored: list[StoredEntry] = []
        for entry, ledger, number in receipts:
            self._answered(entry, now)
            if ledger >= 0:
                self._stored_up_to = entry.highest_sequence_id
                stored.append((entry, Position(ledger, number)))
            else:
                old = self.sequences is not None and self.sequences.known(entry.sequence_id)
                self._appends.duplicate(entry, old=old)
        if stored:
            self._appends.stored(stored)

    def _left(self, entry: InFlightEntry) -> None:
        """Stop waiting for an entry's receipt; batches that waited behind the entry are sent in the loop's next
        turn.
        """
        self.taken_bytes += entry.size
        if entry in self._doubtful:
            self._doubtful.discard(entry)
            if not self._doubtful and self._queue:
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._used = self._loop.time()
        self._send_queued()

    def _answered(self, entry: InFlightEntry, now: float) -> None:
        self._left(entry)
        waited = now - entry.sent
        if self._throttle.received(now, waited):
            taken, behind = self.taken_bytes - entry.before, self._sent_bytes - self.taken_bytes
            entry.append.throttle_ms = still_to_wait(waited, taken, entry.size + behind)

    def others_are_stored(self, entry: InFlightEntry) -> None:
        """End the producer, so that a new one begins behind what is stored: its window has taken a batch whose sequence
        ids others have.
        """
        if not entry.sent_again and not self.ended:
            self._end(BackendError(f"{self._log.title}: what {self.name} has stored is asked again"))

    def entry_failed(self, entry: InFlightEntry, error: PulsarError) -> None:
        """Fail the append of an entry of which no receipt will come, or look for the copy that Pulsar had before. An
        idempotent producer ends if it is not known if the entry is stored.
        """
        self._answered(entry, self._loop.time())
        if entry.done:
            return
        if self.ended:
            self._unanswered(entry, self._refused or BackendError(f"the producer of {self._log.title} has ended"))
            return
        if isinstance(error, EntryRefusedError) and self._had_before(entry):
            # A Pulsar broker looks at an entry's size before it looks for duplicates.
            self._path.entry_size_limit.doubt()
            self._appends.duplicate(entry, old=True, refused=True)
            return
        refusal = self._refusal(error)
        if self.idempotent and not isinstance(error, EntryRefusedError):
            self._unanswered(entry, refusal)
            self._end(refusal)
            return
        if isinstance(error, EntryRefusedError):
            self._path.entry_size_limit.doubt()
        if self.sequences is not None:
            self.sequences.refuse(entry.sequence_id, entry.count, entry.append)
        self._appends.failed(entry, refusal)

    def _had_before(self, entry: InFlightEntry) -> bool:
        """Return true if Pulsar has said that it has a copy of an entry: before it was sent, or when the connection
        came back.

        A limit on sizes may have been lowered since that copy was stored.
        """
        if self._producer is None or not self.idempotent:
            return False
        return entry.sent_again or entry.highest_sequence_id <= self._producer.last_sequence_id

    def _unanswered(self, entry: InFlightEntry, error: KopError) -> None:
        """Fail the append of an entry that was sent, and of which nobody will tell if it is stored.

        Its error is never NOT_LEADER_OR_FOLLOWER, which says that the entry is not stored.
        """
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            error = BackendError(error.message, ErrorCode.KAFKA_STORAGE_ERROR)
        self._appends.failed(entry, error)

    def _end(self, error: KopError) -> None:
        self.fail(error)
        if self._producer is not None:
            self._context.spawn(self._give_back(self._producer))

    def _lost(self, error: PulsarError) -> None:
        if self.ended:
            return
        if self.idle:  # nobody is refused by that: the next batch has a producer opened, and hears why it cannot be
            self.fail(kafka_error(error, f"cannot write to {self._log.title}"))
        else:
            self.fail(self._refusal(error))


def checked_times(
    batch: bytearray,
    header: BatchHeader,
    earliest: int,
    latest: int,
    policy: LogPolicy,
    *,
    now_ms: int,
    reserve: Callable[[int], None],
) -> BatchHeader:
    """Check the timestamps of a batch, the smallest and the largest of which (ms) are given, and return its header.
    INVALID_TIMESTAMP if the topic's limits, from `now_ms` on, do not allow them.

    Producers of others leave the largest timestamp of their batches unset. Kafka takes that of the records, and so does
    this, and corrects the header in `batch`: retention aside, look-ups by time go by it. On a LogAppendTime topic
    nothing is done: the timestamps are replaced.
    """
    if policy.log_append_time:
        return header
    if not policy.time_limits.take(earliest, latest, now_ms):
        refuse_times(
            batch, header, policy.time_limits, now_ms, reserve=reserve, max_bytes=policy.max_uncompressed_bytes
        )
    if latest == header.max_timestamp:
        return header
    stamp_create_time(batch, latest)
    return read_header(batch)
