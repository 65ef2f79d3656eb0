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
"""Kafka's transaction.remove.expired.transaction.cleanup.interval.ms."""
_SEGMENT_BYTES: Final = "104857600"
"""Kafka's transaction.state.log.segment.bytes."""

PreparedPartition: TypeAlias = tuple[UUID | None, str, int]
"""Topic id, topic and partition: of a topic of the same name that was made since, storage has prepared nothing."""

ABORT_REASONS: Final = ("client", "timeout", "new_instance")
"""Who aborts a transaction: EndTxn, the coordinator's clock, or InitProducerId."""

_EXPIRY_SLICE: Final = 200
"""Transactional ids that are looked at before other work of the event loop gets its turn."""
_READY_SECONDS: Final = 5.0
"""How long the first request that needs the topic waits for it."""
CONCURRENT_SECONDS: Final = 0.1
"""How long a request that begins a transaction waits for the end of the one before: librdkafka asks again after 20 ms,
and that end often takes less."""
COMPLETE_SECONDS: Final = 0.05
"""How long the record that a transaction is complete waits for a newer one of the same id, which takes its place."""
COMPLETE_AGAIN_SECONDS: Final = 1.0
"""After how long it is tried again where it could not be written."""
CONFIRM_MS: Final = 5000
"""A transaction that is open for so long is confirmed by storage before it is committed: an operator, or storage's own
time limit, may have ended it. For a shorter one that costs more than it is worth."""
_FENCE_AGAIN_MS: Final = 1000
"""After how long it is tried again to abort a transaction that timed out, where that could not be written; twice as
long after each further try."""
_FENCE_AGAIN_MOST_MS: Final = 10_000
_MOST_NAMED: Final = 10
"""Partitions that a line in the log names."""
_PREPARED: Final = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
_log = logging.getLogger(__name__)


class Markers(Protocol):
    """Ends a transaction wherever it left something: in storage, in groups, in what brokers remember of it."""

    async def write(self, ended: EndedTransaction, taken_over_at: float, decided: float) -> None:
        """Carry out the end. After a failure, a KopError, it is called again: that does no harm.

        `taken_over_at`: when this broker took the transaction over from another coordinator, by `clock.monotonic`;
        -inf where it began here. `decided`: when no partition was verified to be in it any more.
        """


class VerifiedPartitions(NamedTuple):
    """Which partitions are in a producer's open transaction, and may be written to."""

    error: ErrorCode = ErrorCode.NONE
    """Of all of them."""
    errors: Mapping[Partition, ErrorCode] = MappingProxyType({})
    """Of each, where there is no error of all."""
    storage_transaction: bytes = b""
    """What storage calls the transaction."""
    topics: Mapping[str, UUID] = MappingProxyType({})
    """The topics of which storage prepared them, where that is known. To whom one is another topic, that has to ask
    again: it was deleted and made again, and not every broker has seen it yet.
    """
    passes: bool = False
    """Whoever coordinates the transaction may not reach this broker when it ends: ask again after a while."""


class ProducerIdentity(NamedTuple):
    """The answer to InitProducerId and EndTxn: who the producer is from now on, or an error."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(slots=True)
class _Age:
    """How old an open transaction is, and what comes of that. Times are of the clock that never goes back."""

    began: int
    told: bool = False
    """True if the log says that the transaction is open for long."""
    pause: int = 0
    """Milliseconds between the last try to abort it and the next."""
    not_before: int = 0
    """When it may be tried again to abort it."""

    def tried(self, now: int) -> None:
        """Note that the transaction could not be aborted."""
        self.pause = min(max(2 * self.pause, _FENCE_AGAIN_MS), _FENCE_AGAIN_MOST_MS)
        self.not_before = now + self.pause


class _Begun(NamedTuple):
    """A transaction that is open in storage, and is in no record."""

    storage_transaction: bytes
    timeout_ms: int
    at: int
    """By the clock that never goes back."""

    def suits(self, timeout_ms: int, now: int) -> bool:
        """Return true if a transaction that begins now may have it: storage keeps it open for long enough."""
        return timeout_ms == self.timeout_ms and now - self.at < self.timeout_ms


@dataclass(slots=True, eq=False, repr=False)
class _Entry:
    transactional_id: str
    partition: int
    """Of `__transactions`."""
    term: int
    """Of that partition (`Ownership.term`): in another one this entry is void."""
    transaction: Transaction
    adding: asyncio.Task[ErrorCode] | None = None
    """Partitions are being added."""
    ending: asyncio.Task[None] | None = None
    """The markers of an end are being written."""
    prepared: set[PreparedPartition] = field(default_factory=set)
    """Partitions of the open transaction that storage has prepared."""
    callers: set[asyncio.Task[None]] = field(default_factory=set)
    age: _Age | None = None
    """Of the open transaction."""
    begun: _Begun | None = None
    """Left over by a transaction whose record could not be written; the next one takes it."""
    taken_over_at: float = -math.inf
    """See `Markers.write`."""

    def __repr__(self) -> str:
        return f"transactional id {self.transactional_id!r}"


@dataclass(frozen=True, slots=True)
class TransactionsSnapshot:
    """The transactions of the transactional ids that this broker coordinates. Times are milliseconds."""

    open: int
    oldest_open_ms: int
    """For how long the oldest open transaction is open; 0 if there is none."""
    committed: int
    aborted: Mapping[str, int]
    """By who did it: one of `ABORT_REASONS`."""
    waiting_for: str | None
    """See `TransactionCoordinator.waiting_for`."""


class TransactionCoordinator(Coordinator[Mapping[str, Transaction]]):
    """All transactional ids. Call `start` once; until it has ended everything is being loaded."""

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
        """Deadlines of the open transactions: the times at which they time out."""
        self._entries: dict[str, _Entry] = {}
        self._expiry: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        """Opens the topic and loads what is in it; None until somebody needs it."""
        self._stopped = False
        self._incomplete: dict[_Entry, Transaction] = {}
        """Complete transactions of which the topic does not say that they are."""
        self._completing: asyncio.TimerHandle | None = None
        self.aborted: Counter[str] = Counter()
        """Transactions that were aborted, by who did it: one of `ABORT_REASONS`."""
        self.committed = 0
        self.ends = Latencies()
        """From the decision of each end to the time at which it is complete."""

    # -- life

    async def start(self) -> None:
        """Load the transactional ids of our partitions, and go on with ends that were decided.

        Where there is no topic yet, this is done when the first transactional id is asked for. Errors and time limits
        as of `Ownership.start`.
        """
        topics = self._engine.topics
        topics.on_change(self._topic_changed)
        if topics.get(TRANSACTIONS_TOPIC) is not None:
            await asyncio.shield(self._begin())

    async def ready(self) -> bool:
        """Make the topic where there is none, and wait a little for it. False where it takes longer.

        Where storage has no transactions there is nothing to wait for.
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
        """Note that another broker made the topic: some of its partitions are given to this one."""
        if old is None and new is not None and new.name == TRANSACTIONS_TOPIC and not self._stopped:
            self._begin()

    @property
    def waiting_for(self) -> str | None:
        """See `Coordinator.waiting_for`, nothing if no transactional id was asked for yet; and why storage refuses."""
        loading = None if self._beginning is None else super().waiting_for
        refusal = self._storage.refusal
        refused = None if refusal is None else f"transactions are refused: {refusal}"
        return "; ".join(filter(None, (loading, refused))) or None

    async def stop(self) -> None:
        """Take nothing more, hand over what is queued. An end that is under way goes on after the next start."""
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
        """Note that another broker coordinates the partition: it goes on with what is being ended."""
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
        """InitProducerId; see `machine.init_producer_id`.

        INVALID_REQUEST for an empty id, INVALID_TRANSACTION_TIMEOUT beyond transaction.max.timeout.ms,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED where storage has no transactions.
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
        """Add partitions to the transaction, which begins with the first; see `machine.add_partitions`."""
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
        """Return true if the partitions are in the open transaction; see `machine.verify_partitions`.

        Those that are may be written to when this has ended. It is an answer from memory: where another broker may have
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
        """EndTxn; see `machine.end`. It ends when the decision is durable, with who the producer is from then on."""
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

    def get(self, transactional_id: str) -> Transaction | None:
        """Return the transactional id as it is now, or None where it is not known here."""
        entry = self._entries.get(transactional_id)
        return None if entry is None or entry.transaction.producer_epoch < 0 else entry.transaction

    def all(self) -> Sequence[tuple[str, Transaction]]:
        """Return every transactional id that this broker coordinates."""
        return [
            (name, entry.transaction) for name, entry in self._entries.items() if entry.transaction.producer_epoch >= 0
        ]

    async def described(self, transactional_id: str) -> tuple[Transaction | None, ErrorCode]:
        """Return the transactional id as it is now, or why it cannot be told of: TRANSACTIONAL_ID_NOT_FOUND, ...

        It is an answer from memory: see `verify_partitions`.
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
        """`all`, or why it cannot be told now: some are still being loaded."""
        error = ErrorCode.NONE if self._beginning is None and not self._stopped else self.refusal
        return ((), error) if error else (self.all(), ErrorCode.NONE)

    def open_for(self) -> Sequence[int]:
        """For how many milliseconds each open transaction of this broker's transactional ids is open."""
        now = self._clock()
        return [
            now - entry.age.began
            for entry in self._entries.values()
            if entry.age is not None and entry.transaction.status is TransactionStatus.ONGOING
        ]

    def snapshot(self) -> TransactionsSnapshot:
        """Return how many transactions are open, and how many have ended since the start."""
        open_for = self.open_for()
        aborted = {reason: self.aborted[reason] for reason in ABORT_REASONS}
        return TransactionsSnapshot(len(open_for), max(open_for, default=0), self.committed, aborted, self.waiting_for)

    def collect(self) -> Iterable[Metric]:
        """Return the numbers of transactions as they stand at a scrape."""
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

    def tick(self) -> None:
        """Do what is due now. The coordinator's timer calls it; to call it early does no harm."""
        self.deadlines.tick()

    async def expire(self) -> None:
        """Forget transactional ids that nobody used for transactional.id.expiration.ms."""
        for index, entry in enumerate(list(self._entries.values())):
            if index % _EXPIRY_SLICE == _EXPIRY_SLICE - 1:
                await asyncio.sleep(0)
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
        """Return the partitions of records, as they are in storage now."""
        stored: dict[Partition, PreparedPartition] = {}
        for name, index in partitions:
            if name != KAFKA_OFFSETS_TOPIC:
                topic = self._engine.topics.get(name)
                stored[name, index] = None if topic is None else topic.topic_id, name, index
        return stored

    async def _add_partitions(
        self, entry: _Entry, before: Transaction, decision: Decision, partitions: Collection[Partition]
    ) -> ErrorCode:
        """Make durable that partitions are in the transaction, then have storage prepare them.

        `before` is what was decided about. Where another request came first it is over: a record of an open transaction
        would follow that of its end.
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
        """Return true if an open transaction is open for so long that storage may have ended it."""
        if entry.age is None or not entry.transaction.storage_transaction:
            return False
        return self._clock() - entry.age.began >= CONFIRM_MS

    async def _confirm(self, entry: _Entry) -> ErrorCode:
        """Ask storage whether the transaction is open still. No other request passes meanwhile."""
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
        """Return true if the entry is of the term in which its partition is led now."""
        return entry.term == self.ownership.term(entry.partition)

    def _write(self, entry: _Entry, decision: Decision) -> asyncio.Future[ErrorCode]:
        """Make a decision durable and put it in force; the result is what the client is told.

        It goes on where nobody waits for it any more.
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
        """Write the record of a transactional id, or its tombstone."""
        try:
            key = encode_transaction_key(entry.transactional_id)
            value = None if transaction is None else encode_transaction_value(transaction.value)
        except StateRecordError as error:
            _log.warning("%r cannot be stored: %s", entry, error)
            asyncio.get_running_loop().call_soon(persisted, error.code)
        else:
            self.state_log.write(entry.partition, [(key, value)], persisted)

    def _drop_untouched(self, entry: _Entry) -> None:
        """Forget an id that was made for a request that then failed."""
        if entry.transaction.producer_epoch < 0 and self._entries.get(entry.transactional_id) is entry:
            del self._entries[entry.transactional_id]

    def _follow(self, entry: _Entry) -> None:
        """Do what the state of a transactional id asks for: write its markers, or watch its deadline."""
        transaction = entry.transaction
        if transaction.status is not TransactionStatus.ONGOING:
            entry.age = None
        elif entry.age is None:
            entry.age = _Age(self._clock() - max(self._wall() - transaction.start_timestamp, 0))
        self._arm(entry)
        if transaction.status in _PREPARED and entry.ending is None:
            entry.ending = asyncio.get_running_loop().create_task(self._end(entry, transaction))

    def _arm(self, entry: _Entry) -> None:
        """Watch when the open transaction is to be aborted, and before that when it is worth a line in the log."""
        age, after = entry.age, machine.times_out_after(entry.transaction)
        if age is None or after is None:
            self.deadlines.disarm(entry)
            return
        if not age.told:
            after = machine.is_long_open_after(entry.transaction) or after
        self.deadlines.arm(entry, max(age.began + after, age.not_before))

    async def _end(self, entry: _Entry, transaction: Transaction) -> None:
        """Write the markers of a decided end, after which it is complete. It is tried until it succeeds.

        What storage still prepares comes first: behind the end it would open the transaction again.
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
        """Write the markers, where this broker surely coordinates the id still.

        One that was stopped for a while may have a successor, who has ended the transaction. Under versions 0 and 1 the
        producer's next one has the same epoch, so that its offsets would be taken for those of this one.
        """
        await self.verify(self.in_doubt([entry.transactional_id]))
        if refusal := self.refusal_of(entry.transactional_id, surely=True):
            raise KopError("it is not sure that this broker still coordinates it", refusal)
        await self._markers.write(ended, entry.taken_over_at, decided)

    def _write_complete_in(self, seconds: float) -> None:
        if self._completing is None and self._incomplete and not self._stopped:
            self._completing = asyncio.get_running_loop().call_later(seconds, self._write_complete)

    def _write_complete(self) -> None:
        """Write that transactions are complete, but for those of which a newer record is being written."""
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
        """Note that the open transaction of an id may have timed out."""
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
        """Abort the open transaction of an id. Where that cannot be written, the deadline is armed for another try."""
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
    """Log why the topic cannot be opened. The next request that needs it tries again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("transactions are not served, the topic %s cannot be opened: %s", TRANSACTIONS_TOPIC, error)


def _passes(error: BaseException) -> bool:
    """Return what was decided is tried until it succeeds, whatever stands in its way."""
    return isinstance(error, Exception)


def _state_topic(settings: TransactionSettings) -> StateTopic:
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": _SEGMENT_BYTES,
    }
    return StateTopic(TRANSACTIONS_TOPIC, settings.transaction_state_log_num_partitions, configs)
