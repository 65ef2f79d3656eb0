"""The transaction coordinator: transactional ids, kept in memory and in the topic `__transactions`.

Owns: which transactional ids there are, carrying out what the machine decides, ends that are under way, timeouts.
Must not know: the wire, versions of requests, sockets, how the machine decides, how a marker is written.

- Nothing is answered before the record that the answer stands for is durable. An end is answered when its decision is:
  the markers follow, and a request that comes meanwhile is CONCURRENT_TRANSACTIONS.
- An end that was decided is carried through: markers are tried until they are written, by whichever broker coordinates
  the transactional id then. It is complete when they are; the record of that only spares a broker that loads the id to
  write them once more, so it comes a little later, with those of other ids, and not at all behind a newer record.
- Steps of one transactional id come one after another. Partitions that are added while others are being added wait for
  those, and a short time for the end of the transaction before; any other request is CONCURRENT_TRANSACTIONS meanwhile.
- Deadlines go by a clock that never goes back, which no step of the wall clock moves; what is written goes by the wall
  clock. For how long a transaction is open that another process began is told by the wall clock, once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from prometheus_client.core import Metric

from kop import clock
from kop.background import repeat, retried
from kop.cluster.client_topics import KAFKA_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kop.cluster.producer_ids import ProducerIds
from kop.coordination.coordinator import Coordinator
from kop.coordination.deadlines import Deadlines
from kop.coordination.failed_writes import answer_for
from kop.coordination.ownership import LeaderChoice
from kop.coordination.state_log import StateTopic
from kop.errors import ErrorCode, KopError, StateRecordError
from kop.metrics import Latencies, LatencyFamily, counter_family, counter_value, gauge_value
from kop.storage.base import EndedTransaction, Engine, TopicInfo, TransactionStorage
from kop.transactions import machine
from kop.transactions.machine import Decision, Partition, Transaction
from kop.transactions.settings import TransactionSettings
from kop.turns import with_pauses
from kop.wire.transaction_state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionStatus,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)

_EXPIRY_SECONDS: Final = 3600.0
"""The seconds between two looks for expired transactional ids: Kafka's
transaction.remove.expired.transaction.cleanup.interval.ms.
"""
_SEGMENT_BYTES: Final = "104857600"
"""The segment.bytes of the topic `__transactions`: Kafka's transaction.state.log.segment.bytes."""

PreparedPartition: TypeAlias = tuple[UUID | None, str, int]
"""The type of a partition that storage has prepared: topic id, topic and partition. For a later topic of the same name
nothing is prepared.
"""

ABORT_REASONS: Final = ("client", "timeout", "new_instance")
"""The reasons for which transactions are aborted, a metric's labels: EndTxn, the coordinator's clock,
InitProducerId.
"""

_READY_SECONDS: Final = 5.0
"""The seconds that the first request waits for the topic `__transactions` to be made."""
CONCURRENT_SECONDS: Final = 0.1
"""The seconds that a request which begins a transaction waits for the end of the one before: librdkafka asks again
after 20 ms, and that end often takes less.
"""
COMPLETE_SECONDS: Final = 0.05
"""The seconds that the record "complete" of a transaction waits for a newer record of the same id, which would take its
place.
"""
COMPLETE_AGAIN_SECONDS: Final = 1.0
"""The seconds after which that record is tried again if it could not be written."""
CONFIRM_MS: Final = 5000
"""The ms for which a transaction is open before storage is asked, ahead of its commit, if it still is: an operator, or
storage's own time limit, may have ended it. For a shorter one that costs more than it is worth.
"""
_FENCE_AGAIN_MS: Final = 1000
"""The ms after which the abort of a transaction that timed out is tried again if it could not be written; twice as long
after each further try.
"""
_FENCE_AGAIN_MOST_MS: Final = 10_000
_MOST_NAMED: Final = 10
"""The number of partitions that a log line names."""
_PREPARED: Final = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
_log = logging.getLogger(__name__)


class Markers(Protocol):
    """The means to end a transaction wherever it left something: in storage, in groups, in the verifications of
    brokers.
    """

    async def write(self, ended: EndedTransaction, taken_over_at: float, decided: float) -> None:
        """Carry out the end of a transaction. After a failure, a KopError, it is called again, which does no harm.

        `taken_over_at` is the time, by `clock.monotonic`, at which this broker took the transaction over from another
        coordinator; -inf if it began here. `decided` is the time from which no partition was verified to be in it.
        """


class VerifiedPartitions(NamedTuple):
    """The answer of a transaction's coordinator about partitions: those without an error are in the open transaction,
    and may be written to.
    """

    error: ErrorCode = ErrorCode.NONE
    """The error of all partitions together."""
    errors: Mapping[Partition, ErrorCode] = MappingProxyType({})
    """The errors of single partitions, if there is no error of all."""
    storage_transaction: bytes = b""
    """The name of the transaction in storage; empty if storage needs none."""
    topics: Mapping[str, UUID] = MappingProxyType({})
    """The ids of the topics that storage prepared, by name, if they are known. A broker that has another id for a name
    has to ask again: the topic was deleted and made again, and not every broker has seen it yet.
    """
    passes: bool = False
    """True if the answer expires after `verification.LEASE_SECONDS`, because the transaction's coordinator may be
    unable to reach this broker when the transaction ends.
    """


class ProducerIdentity(NamedTuple):
    """The answer to InitProducerId or EndTxn: the producer id and epoch from now on, or an error."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(slots=True)
class _Age:
    """The age of an open transaction, and the tries to abort it. Times are in ms of the clock that never goes back."""

    began: int
    told: bool = False
    """True if a log line has told that the transaction is open for long."""
    pause: int = 0
    """The ms between the last try to abort it and the next."""
    not_before: int = 0
    """The time from which the abort may be tried again."""

    def tried(self, now: int) -> None:
        """Set the pause until the next try, because the transaction could not be aborted: a second, and twice as long
        after each further try, up to ten. `now` is in ms of the clock that never goes back.
        """
        self.pause = min(max(2 * self.pause, _FENCE_AGAIN_MS), _FENCE_AGAIN_MOST_MS)
        self.not_before = now + self.pause


class _Begun(NamedTuple):
    """A transaction that is open in storage, and not in any record of the coordinator yet."""

    storage_transaction: bytes
    timeout_ms: int
    at: int
    """The time at which it began, by the clock that never goes back."""

    def suits(self, timeout_ms: int, now: int) -> bool:
        """Return true if the next transaction may use this one, which storage has begun already: it has the same
        timeout, which is not over yet.
        """
        return timeout_ms == self.timeout_ms and now - self.at < self.timeout_ms


@dataclass(slots=True, eq=False, repr=False)
class _Entry:
    transactional_id: str
    partition: int
    """The partition of `__transactions`."""
    term: int
    """The term of that partition (`Ownership.term`) in which the entry is valid."""
    transaction: Transaction
    adding: asyncio.Task[ErrorCode] | None = None
    """The task that adds partitions to the transaction; None if none does."""
    ending: asyncio.Task[None] | None = None
    """The task that writes the markers of an end; None if none does."""
    prepared: set[PreparedPartition] = field(default_factory=set)
    """The partitions that storage has prepared for the open transaction."""
    callers: set[asyncio.Task[None]] = field(default_factory=set)
    age: _Age | None = None
    """The age of the open transaction; None if none is open."""
    begun: _Begun | None = None
    """The transaction in storage that is left over because its record could not be written; the next transaction uses
    it.
    """
    taken_over_at: float = -math.inf
    """The time, by `clock.monotonic`, at which this broker took the transaction over from another coordinator; -inf if
    it began here.
    """

    def __repr__(self) -> str:
        return f"transactional id {self.transactional_id!r}"


@dataclass(frozen=True, slots=True)
class TransactionsSnapshot:
    """The numbers of the transactions of this broker's transactional ids. Times are milliseconds."""

    open: int
    oldest_open_ms: int
    """The ms for which the oldest open transaction is open; 0 if there is none."""
    committed: int
    aborted: Mapping[str, int]
    """The number of aborted transactions, by reason: one of `ABORT_REASONS`."""
    waiting_for: str | None
    """One line for an operator about transactional ids that are not served yet, and why; None if all are served."""


class TransactionCoordinator(Coordinator[Mapping[str, Transaction]]):
    """The coordinator of all transactional ids. Call `start` once; until it has ended all ids are being loaded."""

    def __init__(
        self,
        engine: Engine,
        producer_ids: ProducerIds,
        markers: Markers,
        settings: TransactionSettings | None = None,
        *,
        clock: Callable[[], int] | None = None,
        wall: Callable[[], int] | None = None,
        leader_choice: LeaderChoice | None = None,
    ) -> None:
        """`clock` and `wall` give milliseconds since the epoch; the former never goes back.

        Without a `leader_choice` this broker coordinates all transactional ids.
        """
        self.settings = settings or TransactionSettings()
        super().__init__(engine, _state_topic(self.settings), clock=clock, wall=wall, leader_choice=leader_choice)
        self._engine = engine
        self._producer_ids = producer_ids
        self._markers = markers
        self._storage: TransactionStorage = engine.transactions
        self.deadlines = Deadlines[_Entry](self._clock, self._due)
        """The deadlines of the open transactions: the times at which they time out, or at which a log line is due."""
        self._entries: dict[str, _Entry] = {}
        self._expiry: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        """The task that opens the topic and loads it; None until somebody needs it."""
        self._stopped = False
        self._incomplete: dict[_Entry, Transaction] = {}
        """The ended transactions whose record "complete" is not written yet."""
        self._completing: asyncio.TimerHandle | None = None
        self.aborted: Counter[str] = Counter()
        """The number of aborted transactions, by reason: one of `ABORT_REASONS`."""
        self.committed = 0
        self.ends = Latencies()
        """The histogram of the durations from the decision of an end until it is complete."""

    # -- life

    async def start(self) -> None:
        """Load the transactional ids of this broker's partitions, and go on with ends that were decided.

        If there is no topic `__transactions` yet, this is done when the first transactional id is asked for. Errors and
        time limits as of `Ownership.start`.
        """
        topics = self._engine.topics
        topics.on_change(self._topic_changed)
        if topics.get(TRANSACTIONS_TOPIC) is not None:
            await asyncio.shield(self._begin())

    async def ready(self) -> bool:
        """Make the topic `__transactions` if there is none, and wait for it for five seconds at most; return false if
        it takes longer, or if the coordinator is stopped.

        If storage has no transactions there is nothing to wait for: true.
        """
        if self.state_log.partitions or self._storage.refusal is not None:
            return True
        if not self._stopped:
            await asyncio.wait({self._begin()}, timeout=_READY_SECONDS)
        return self.state_log.partitions > 0

    def _begin(self) -> asyncio.Task[None]:
        if self._beginning is None or (self._beginning.done() and not self.state_log.partitions):
            self._beginning = asyncio.get_running_loop().create_task(self._load_all())
            self._beginning.add_done_callback(_tell_failure)
        return self._beginning

    async def _load_all(self) -> None:
        await self.ownership.start()
        self._expiry = asyncio.get_running_loop().create_task(
            repeat("the expiry of transactional ids", self.expire, every=_EXPIRY_SECONDS)
        )

    def _topic_changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        """Load this broker's partitions of the topic `__transactions`, because another broker has made it."""
        if old is None and new is not None and new.name == TRANSACTIONS_TOPIC and not self._stopped:
            self._begin()

    @property
    def waiting_for(self) -> str | None:
        """One line for an operator about transactional ids that are not served yet and why, and about a refusal by
        storage; None if there is nothing to say, or no id was asked for yet.
        """
        loading = None if self._beginning is None else super().waiting_for
        refusal = self._storage.refusal
        refused = None if refusal is None else f"transactions are refused: {refusal}"
        return "; ".join(filter(None, (loading, refused))) or None

    async def stop(self) -> None:
        """Refuse all requests, and hand what is queued to storage. An end that is under way goes on after the next
        start.
        """
        self._stopped = True
        self._write_complete()
        if self._completing is not None:
            self._completing.cancel()
        self.ownership.close()
        self.deadlines.stop()
        tasks = [
            task for entry in self._entries.values() for task in (entry.ending, entry.adding, *entry.callers) if task
        ]
        tasks += [task for task in (self._expiry, self._beginning) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.ownership.stop()

    async def _load(self, partition: int) -> Mapping[str, Transaction]:
        loaded: dict[str, Transaction] = {}
        for raw_key, raw_value in (await self.state_log.read(partition)).items():
            transactional_id = decode_transaction_key(raw_key)
            if transactional_id is None:
                _log.warning("a record of another kind in the topic %s is left as it is", TRANSACTIONS_TOPIC)
            elif raw_value is not None:
                loaded[transactional_id] = Transaction.of(decode_transaction_value(raw_value))
        return loaded

    def _install(self, partition: int, loaded: Mapping[str, Transaction]) -> None:
        term, now = self.ownership.term(partition), clock.monotonic()
        for transactional_id, transaction in loaded.items():
            entry = _Entry(transactional_id, partition, term, transaction, taken_over_at=now)
            self._entries[transactional_id] = entry
            self._follow(entry)

    def _unload(self, partition: int) -> None:
        """Forget the ids of a partition that another broker coordinates: it goes on with those that are being ended."""
        for transactional_id, entry in list(self._entries.items()):
            if entry.partition == partition:
                del self._entries[transactional_id]
                self._incomplete.pop(entry, None)
                self.deadlines.disarm(entry)
                if entry.ending is not None:
                    entry.ending.cancel()

    # -- requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None = None
    ) -> ProducerIdentity:
        """Handle InitProducerId: fence earlier instances, and return the producer's id and epoch, or the error.

        INVALID_REQUEST for an empty id, INVALID_TRANSACTION_TIMEOUT for one below 1 ms or beyond
        transaction.max.timeout.ms, TRANSACTIONAL_ID_AUTHORIZATION_FAILED if storage has no transactions.
        """
        if not transactional_id:
            return ProducerIdentity(ErrorCode.INVALID_REQUEST)
        if (why := self._storage.refusal) is not None:
            _log.warning("transactional id %r is refused: %s", transactional_id, why)
            return ProducerIdentity(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            return ProducerIdentity(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        await self.ready()
        fresh_id: int | None = None
        while True:
            if refusal := self.refusal_of(transactional_id):
                return ProducerIdentity(refusal)
            entry = self._entries.get(transactional_id)
            if entry is None:
                if fresh_id is None:
                    fresh_id = await self._producer_ids.take()
                    continue  # another request may have made it meanwhile, or the lead was lost
                entry, fresh_id = self._add(transactional_id, fresh_id), None
            decision = machine.init_producer_id(
                entry.transaction, self._wall(), timeout_ms=timeout_ms, expected=expected, fresh_id=fresh_id
            )
            if not decision.needs_producer_id:
                break
            fresh_id = await self._producer_ids.take()
        if decision.next is None:
            return ProducerIdentity(decision.error)
        error = await self._write(entry, decision)
        if decision.fences and error is decision.error:
            self.aborted["new_instance"] += 1
        return ProducerIdentity(error) if error else _identity(decision.next)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[Partition],
        client_version: int,
    ) -> ErrorCode:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn: add partitions to the transaction, which begins if none is
        open; return NONE once that is durable and storage has prepared them, or the error. It waits shortly for the end
        of the transaction before.
        """
        waited = False
        while True:
            entry, error = self._find(transactional_id)
            if entry is None:
                return error
            if entry.adding is not None:
                await asyncio.wait({entry.adding})
                continue
            decision = machine.add_partitions(
                entry.transaction,
                self._wall(),
                producer_id=producer_id,
                epoch=epoch,
                partitions=partitions,
                client_version=client_version,
            )
            if decision.error is not ErrorCode.CONCURRENT_TRANSACTIONS or entry.ending is None or waited:
                break
            waited = True
            await asyncio.wait({entry.ending}, timeout=CONCURRENT_SECONDS)
        if decision.error or (decision.next is None and self._is_prepared(entry, partitions)):
            return decision.error
        entry.adding = asyncio.get_running_loop().create_task(
            self._add_partitions(entry, entry.transaction, decision, partitions)
        )
        entry.adding.add_done_callback(lambda _: setattr(entry, "adding", None))
        return await asyncio.shield(entry.adding)

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[Partition]
    ) -> VerifiedPartitions:
        """Return which partitions are in the open transaction, with an error for each that is not.

        Those that are may be written to when this has ended. It is an answer from memory: if another broker may have
        taken the transactional id over, storage is asked first. That one may have ended the transaction, and what is
        written into it from then on is lost.
        """
        while True:
            entry, error = self._find(transactional_id)
            if entry is None:
                return VerifiedPartitions(error)
            if in_doubt := self.in_doubt([transactional_id]):
                await self.verify(in_doubt)
                if refusal := self.refusal_of(transactional_id, surely=True):
                    return VerifiedPartitions(refusal)
                continue
            verified = machine.verify_partitions(
                entry.transaction, producer_id=producer_id, epoch=epoch, partitions=partitions
            )
            if isinstance(verified, ErrorCode):
                return VerifiedPartitions(verified)
            inside = [partition for partition, code in verified.items() if not code]
            if self._is_prepared(entry, inside):
                topics = {name: topic_id for topic_id, name, _ in self._stored(inside).values() if topic_id is not None}
                name_in_storage = entry.transaction.storage_transaction
                return VerifiedPartitions(errors=verified, storage_transaction=name_in_storage, topics=topics)
            # Another broker coordinated the transactional id when they were added.
            if error := await self.add_partitions(
                transactional_id, producer_id, epoch, inside, entry.transaction.client_version
            ):
                return VerifiedPartitions(error)

    async def end(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, client_version: int
    ) -> ProducerIdentity:
        """Handle EndTxn; the answer comes when the decision is durable, with the producer's id and epoch from then on,
        or with the error. The markers are written afterwards.
        """
        fresh_id: int | None = None
        confirmed = not commit
        while True:
            entry, error = self._find(transactional_id)
            if entry is None:
                return ProducerIdentity(error)
            decision = machine.end(
                entry.transaction,
                self._wall(),
                producer_id=producer_id,
                epoch=epoch,
                commit=commit,
                client_version=client_version,
                fresh_id=fresh_id,
            )
            if decision.needs_producer_id:
                fresh_id = await self._producer_ids.take()
            elif confirmed or decision.next is None or not self._may_have_ended(entry):
                break
            elif error := await self._confirm(entry):
                return ProducerIdentity(error)
            else:
                confirmed = True
        if decision.next is None:
            return _identity(entry.transaction) if not decision.error else ProducerIdentity(decision.error)
        after = _identity(machine.completed(decision.next, 0))
        error = await self._write(entry, decision)
        if not error and not commit:
            self.aborted["client"] += 1
        return ProducerIdentity(error) if error else after

    def all(self) -> Sequence[tuple[str, Transaction]]:
        """Return the name and the present state of every transactional id that this broker coordinates."""
        return [
            (name, entry.transaction) for name, entry in self._entries.items() if entry.transaction.producer_epoch >= 0
        ]

    async def described(self, transactional_id: str) -> tuple[Transaction | None, ErrorCode]:
        """Return the present state of a transactional id, or the error for which it cannot be told, such as
        TRANSACTIONAL_ID_NOT_FOUND.

        It is an answer from memory: if another broker may coordinate the id by now, storage is asked first.
        """
        if transactional_id and self._storage.refusal is not None:
            return None, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        await self.verify(self.in_doubt([transactional_id]))
        entry, error = self._find(transactional_id)
        if entry is None and error is not ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return None, error
        if refusal := self.refusal_of(transactional_id, surely=True):
            return None, refusal
        return (None, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND) if entry is None else (entry.transaction, ErrorCode.NONE)

    def listed(self) -> tuple[Sequence[tuple[str, Transaction]], ErrorCode]:
        """Return the name and the state of all transactional ids that this broker coordinates, and NONE; if some are
        still being loaded, none of them, and an error.
        """
        error = ErrorCode.NONE if self._beginning is None and not self._stopped else self.refusal
        return ((), error) if error else (self.all(), ErrorCode.NONE)

    def open_for(self) -> Sequence[int]:
        """Return the ms for which each open transaction of this broker's transactional ids is open."""
        now = self._clock()
        return [
            now - entry.age.began
            for entry in self._entries.values()
            if entry.age is not None and entry.transaction.status is TransactionStatus.ONGOING
        ]

    def snapshot(self) -> TransactionsSnapshot:
        """Return the numbers of open and ended transactions for a status page."""
        open_for = self.open_for()
        aborted = {reason: self.aborted[reason] for reason in ABORT_REASONS}
        return TransactionsSnapshot(len(open_for), max(open_for, default=0), self.committed, aborted, self.waiting_for)

    def collect(self) -> Iterable[Metric]:
        """Return metrics of the numbers of transactions, for a scrape."""
        now = self.snapshot()
        aborted = counter_family(
            "kop_transactions_aborted", "Transactions that were aborted, by who did it.", ["reason"]
        )
        for reason, times in now.aborted.items():
            aborted.add_metric([reason], times)
        ends = LatencyFamily(
            "kop_transaction_end_latency_seconds",
            "From the durable decision to commit or abort until all of its markers are durable, too.",
            [],
            {(): self.ends},
        )
        return (
            gauge_value(
                "kop_transactions_open", "Open transactions of the transactional ids coordinated here.", now.open
            ),
            gauge_value(
                "kop_transaction_oldest_open_seconds",
                "How long the oldest of them is open; 0 for none.",
                now.oldest_open_ms / 1000,
            ),
            aborted,
            counter_value("kop_transactions_committed", "Committed transactions.", now.committed),
            *ends.collect(),
        )

    async def expire(self) -> None:
        """Forget transactional ids that nobody used for transactional.id.expiration.ms."""
        async for entry in with_pauses(list(self._entries.values())):
            if self.ownership.closed or self._entries.get(entry.transactional_id) is not entry:
                continue
            at = machine.expires_at(entry.transaction, self.settings.transactional_id_expiration_ms)
            if at is not None and at <= self._wall():
                self._forget(entry)

    # -- inside

    def _find(self, transactional_id: str) -> tuple[_Entry, ErrorCode] | tuple[None, ErrorCode]:
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        if self._beginning is None and not self._stopped:  # the client has to ask for the coordinator first
            return None, ErrorCode.NOT_COORDINATOR
        if refusal := self.refusal_of(transactional_id):
            return None, refusal
        entry = self._entries.get(transactional_id)
        if entry is None or entry.transaction.producer_epoch < 0:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return entry, ErrorCode.NONE

    def _add(self, transactional_id: str, producer_id: int) -> _Entry:
        partition = self.state_log.partition_of(transactional_id)
        entry = _Entry(transactional_id, partition, self.ownership.term(partition), Transaction(producer_id))
        self._entries[transactional_id] = entry
        return entry

    def _is_prepared(self, entry: _Entry, partitions: Collection[Partition]) -> bool:
        """Return true if storage has prepared these partitions. Those of groups' offsets need nothing."""
        return entry.prepared.issuperset(self._stored(partitions).values())

    def _stored(self, partitions: Collection[Partition]) -> dict[Partition, PreparedPartition]:
        """Return the partitions of records, without those of `__consumer_offsets`, each with the topic id that it has
        in storage now; None for the id of a topic that is not known.
        """
        stored: dict[Partition, PreparedPartition] = {}
        for name, index in partitions:
            if name != KAFKA_OFFSETS_TOPIC:
                topic = self._engine.topics.get(name)
                stored[name, index] = None if topic is None else topic.topic_id, name, index
        return stored

    async def _add_partitions(
        self, entry: _Entry, before: Transaction, decision: Decision, partitions: Collection[Partition]
    ) -> ErrorCode:
        """Write the record that partitions are in the transaction, then have storage prepare them; return NONE, or the
        error.

        `before` is the state that the decision was made about. If another request came first, nothing is written, and
        the error is CONCURRENT_TRANSACTIONS: a record of an open transaction would follow that of its end.
        """
        if entry.transaction is not before:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if decision.next is not None:
            if before.status is not TransactionStatus.ONGOING:
                if entry.begun is None or not entry.begun.suits(before.timeout_ms, self._clock()):
                    entry.transaction = replace(before, pending=True)
                    try:
                        name = await self._storage.begin(before.timeout_ms)
                    except KopError as why:
                        return self._refused(entry, why)
                    finally:
                        entry.transaction = before
                    if not self._is_current(entry):
                        return self.refusal_of(entry.transactional_id) or ErrorCode.CONCURRENT_TRANSACTIONS
                    entry.begun = _Begun(name, before.timeout_ms, self._clock())
                storage_transaction = entry.begun.storage_transaction
                decision = decision._replace(next=replace(decision.next, storage_transaction=storage_transaction))
                entry.prepared.clear()
                entry.age = _Age(self._clock())
                entry.taken_over_at = -math.inf
            if error := await self._write(entry, decision):
                return error
            if not self._is_current(entry):  # the record is written; the coordinator of now prepares the partitions
                return self.refusal_of(entry.transactional_id) or ErrorCode.CONCURRENT_TRANSACTIONS
            entry.begun = None
        transaction = entry.transaction
        wanted = {
            partition: stored for partition, stored in self._stored(partitions).items() if stored not in entry.prepared
        }
        if wanted:
            try:
                await self._storage.add(transaction.storage_transaction, list(wanted))
            except KopError as why:
                return self._refused(entry, why)
            if entry.transaction is not transaction:  # it was ended meanwhile, or the lead was lost
                return self.refusal_of(entry.transactional_id) or ErrorCode.CONCURRENT_TRANSACTIONS
            entry.prepared.update(wanted.values())
        return ErrorCode.NONE

    def _may_have_ended(self, entry: _Entry) -> bool:
        """Return true if an open transaction is open for 5 s or more, so that storage may have ended it; false if it
        has no name in storage.
        """
        if entry.age is None or not entry.transaction.storage_transaction:
            return False
        return self._clock() - entry.age.began >= CONFIRM_MS

    async def _confirm(self, entry: _Entry) -> ErrorCode:
        """Ask storage if the transaction is still open; return NONE, or the error if it is not, which is logged. No
        other request of the id passes meanwhile.
        """
        before = entry.transaction
        entry.transaction = replace(before, pending=True)
        records = [partition for partition in before.partitions if partition[0] != KAFKA_OFFSETS_TOPIC]
        try:
            await self._storage.confirm(before.storage_transaction, records)
        except KopError as why:
            _log.warning("the transaction of %r cannot be committed: %s", entry, why)
            return answer_for(why.code)
        finally:
            entry.transaction = before
            if self._is_current(entry):
                self._arm(entry)
        return ErrorCode.NONE

    def _refused(self, entry: _Entry, error: KopError) -> ErrorCode:
        level = logging.DEBUG if error.told else logging.WARNING
        _log.log(level, "partitions cannot be added to the transaction of %r: %s", entry, error)
        return answer_for(error.code)

    def _is_current(self, entry: _Entry) -> bool:
        """Return true if the entry's partition is still led in the term in which the entry was loaded or made."""
        return entry.term == self.ownership.term(entry.partition)

    def _write(self, entry: _Entry, decision: Decision) -> asyncio.Future[ErrorCode]:
        """Write the state that was decided, and put it in force once it is durable; the future has the error for the
        client. Until then the id's transaction is pending; if the write fails, the former state is in force again.

        It goes on if nobody waits for it any more.
        """
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        before, after = entry.transaction, decision.next
        assert after is not None
        entry.transaction = replace(before, pending=True)

        def persisted(code: ErrorCode) -> None:
            if self._is_current(entry):
                if not code:
                    self._incomplete.pop(entry, None)
                    entry.transaction = replace(after, pending=after.status in _PREPARED)
                    self._follow(entry)
                else:
                    entry.transaction = before
                    if decision.fences and entry.age is not None:
                        entry.age.tried(self._clock())
                    self._follow(entry)
                    self._drop_untouched(entry)
            if not answer.done():
                answer.set_result(answer_for(code) or decision.error)

        self._put(entry, after, persisted)
        return answer

    def _put(self, entry: _Entry, transaction: Transaction | None, persisted: Callable[[ErrorCode], None]) -> None:
        """Write the record of a transactional id, or its tombstone (None); `persisted` is called later with the
        outcome, also if no record can hold it.
        """
        try:
            key = encode_transaction_key(entry.transactional_id)
            value = None if transaction is None else encode_transaction_value(transaction.value)
        except StateRecordError as error:
            _log.warning("%r cannot be stored: %s", entry, error)
            asyncio.get_running_loop().call_soon(persisted, error.code)
        else:
            self.state_log.write(entry.partition, [(key, value)], persisted)

    def _drop_untouched(self, entry: _Entry) -> None:
        """Forget an id whose first InitProducerId has failed: it was made for that."""
        if entry.transaction.producer_epoch < 0 and self._entries.get(entry.transactional_id) is entry:
            del self._entries[entry.transactional_id]

    def _follow(self, entry: _Entry) -> None:
        """Do the work that the state of a transactional id asks for: begin to write its markers, or watch its
        deadline.
        """
        transaction = entry.transaction
        if transaction.status is not TransactionStatus.ONGOING:
            entry.age = None
        elif entry.age is None:
            entry.age = _Age(self._clock() - max(self._wall() - transaction.start_timestamp, 0))
        self._arm(entry)
        if transaction.status in _PREPARED and entry.ending is None:
            entry.ending = asyncio.get_running_loop().create_task(self._end(entry, transaction))

    def _arm(self, entry: _Entry) -> None:
        """Set the deadline at which the open transaction is to be aborted, or before that the one at which a log line
        is due.
        """
        age, after = entry.age, machine.times_out_after(entry.transaction)
        if age is None or after is None:
            self.deadlines.disarm(entry)
            return
        if not age.told:
            after = machine.is_long_open_after(entry.transaction) or after
        self.deadlines.arm(entry, max(age.began + after, age.not_before))

    async def _end(self, entry: _Entry, transaction: Transaction) -> None:
        """Write the markers of a decided end, after which it is complete. It is tried until it succeeds.

        Partitions that storage still prepares come first: behind the end they would open the transaction again.
        """
        began, decided = clock.perf_counter(), clock.monotonic()
        if entry.adding is not None:
            await asyncio.wait({entry.adding})
        ended = EndedTransaction(
            entry.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.partitions,
            transaction.status is TransactionStatus.PREPARE_COMMIT,
            transaction.client_version,
            transaction.storage_transaction,
        )
        if ended.partitions or ended.storage_transaction:
            await retried(
                f"end the transaction of {entry!r}",
                lambda: self._write_markers(entry, ended, decided),
                passes=_passes,
                seconds=math.inf,
            )
        if not self._is_current(entry):
            return
        entry.transaction = after = machine.completed(transaction, self._wall())
        entry.ending = None
        self._follow(entry)
        self._incomplete[entry] = after
        self._write_complete_in(COMPLETE_SECONDS)
        self.ends.observe(clock.perf_counter() - began)
        if ended.commit:
            self.committed += 1

    async def _write_markers(self, entry: _Entry, ended: EndedTransaction, decided: float) -> None:
        """Write the markers of a decided end. KopError if it is not sure that this broker still coordinates the
        transactional id, or if they cannot be written.

        A broker that was stopped for a while may have a successor, who has ended the transaction. Under versions 0 and
        1 the producer's next transaction has the same epoch, so that its offsets would be taken for those of this one.
        """
        await self.verify(self.in_doubt([entry.transactional_id]))
        if refusal := self.refusal_of(entry.transactional_id, surely=True):
            raise KopError("it is not sure that this broker still coordinates it", refusal)
        await self._markers.write(ended, entry.taken_over_at, decided)

    def _write_complete_in(self, seconds: float) -> None:
        if self._completing is None and self._incomplete and not self._stopped:
            self._completing = asyncio.get_running_loop().call_later(seconds, self._write_complete)

    def _write_complete(self) -> None:
        """Write the records "complete" of ended transactions, except those of which a newer record is being written."""
        self._completing = None
        for entry, after in list(self._incomplete.items()):
            if entry.transaction.pending:
                continue
            del self._incomplete[entry]
            if entry.transaction is after:
                self._put(entry, after, partial(self._complete_written, entry, after))
        self._write_complete_in(COMPLETE_SECONDS)

    def _complete_written(self, entry: _Entry, after: Transaction, code: ErrorCode) -> None:
        if code and entry.transaction is after and self._is_current(entry):
            self._incomplete[entry] = after
            self._write_complete_in(COMPLETE_AGAIN_SECONDS)

    def _due(self, entry: _Entry, now: int) -> None:
        """Begin to abort the open transaction of an id if it has timed out; else log it if it is open for long, and set
        its next deadline. `now` is in ms of the clock that never goes back.
        """
        transaction = entry.transaction
        age, after = entry.age, machine.times_out_after(transaction)
        if age is None or after is None or transaction.pending or not self._is_current(entry):
            return  # what is being written arms the deadline again
        if now < max(age.began + after, age.not_before):
            self._tell_of_long_open(entry, age, now - age.began)
            self._arm(entry)
            return
        task = asyncio.get_running_loop().create_task(self._time_out(entry))
        entry.callers.add(task)
        task.add_done_callback(entry.callers.discard)

    def _tell_of_long_open(self, entry: _Entry, age: _Age, open_for: int) -> None:
        transaction = entry.transaction
        after = machine.is_long_open_after(transaction)
        if after is None or open_for < after or age.told:
            return
        age.told = True
        named = [f"{topic}-{partition}" for topic, partition in sorted(transaction.partitions)]
        _log.warning(
            "the transaction of %r, producer id %d, is open for %d s and holds readers back: %s; it is aborted when it "
            "is open for %d s, or with: kop transactions abort",
            entry,
            transaction.producer_id,
            open_for // 1000,
            ", ".join(named[:_MOST_NAMED]) + (f" and {len(named) - _MOST_NAMED} more" if named[_MOST_NAMED:] else ""),
            transaction.timeout_ms // 1000,
        )

    async def _time_out(self, entry: _Entry) -> None:
        """Abort the open transaction of an id that has timed out. If that cannot be written, the deadline is set for
        another try.
        """
        fresh_id: int | None = None
        while True:
            transaction = entry.transaction
            if transaction.status is not TransactionStatus.ONGOING or transaction.pending:
                return
            if not self._is_current(entry):  # the lead was lost while a producer id was taken
                return
            decision = machine.fence(transaction, self._wall(), fresh_id=fresh_id)
            if not decision.needs_producer_id:
                break
            try:
                fresh_id = await self._producer_ids.take()
            except Exception as why:  # whatever it is, nobody else would arm the deadline
                fault = None if isinstance(why, KopError) else why
                _log.warning("the transaction of %r timed out and cannot be aborted: %s", entry, why, exc_info=fault)
                if entry.age is not None:
                    entry.age.tried(self._clock())
                self._arm(entry)
                return
        if await self._write(entry, decision):
            return
        _log.warning(
            "the transaction of %r is aborted: it is open for more than its transaction.timeout.ms of %d; "
            "it has %d partitions",
            entry,
            transaction.timeout_ms,
            len(transaction.partitions),
        )
        self.aborted["timeout"] += 1

    def _forget(self, entry: _Entry) -> None:
        """Write the tombstone of an id that has expired. A request that comes meanwhile is CONCURRENT_TRANSACTIONS."""
        before = entry.transaction
        entry.transaction = replace(before, pending=True)

        def persisted(code: ErrorCode) -> None:
            if not self._is_current(entry):
                return
            if code:
                entry.transaction = before
            elif self._entries.get(entry.transactional_id) is entry:
                _log.info("%r has expired", entry)
                self._incomplete.pop(entry, None)
                del self._entries[entry.transactional_id]

        self._put(entry, None, persisted)


def _identity(transaction: Transaction) -> ProducerIdentity:
    return ProducerIdentity(ErrorCode.NONE, transaction.producer_id, transaction.producer_epoch)


def _tell_failure(task: asyncio.Task[None]) -> None:
    """Log the reason for which the topic `__transactions` cannot be opened. The next request that needs it tries
    again.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("transactions are not served, the topic %s cannot be opened: %s", TRANSACTIONS_TOPIC, error)


def _passes(error: BaseException) -> bool:
    """Return true, to try again, after any failure of a decided end but the cancellation of its task: it is tried until
    it succeeds.
    """
    return isinstance(error, Exception)


def _state_topic(settings: TransactionSettings) -> StateTopic:
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": _SEGMENT_BYTES,
    }
    return StateTopic(TRANSACTIONS_TOPIC, settings.transaction_state_log_num_partitions, configs)
