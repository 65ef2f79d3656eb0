"""Storage as handlers and coordinators know it, in their words: topics, partition logs, nothing of Kafka's wire.

Owns: the protocols that an engine fulfils and the plain values that cross them.
Must not know: an engine, a socket, a message class.

Rules for an engine
- Every method is called on the event loop's thread and never blocks it.
- Offsets are Kafka's: contiguous within a batch, never reused, exact after a restart.
- Records at and beyond `high_watermark` are not durable and are never handed out.
- A failed append leaves the log as if it had not been asked for.
- Every failure is a `kop.errors.KopError` with the code that the client shall see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from prometheus_client.core import Metric

from kop.errors import ErrorCode, KopError
from kop.metrics import gauge_value
from kop.read_budget import ReadBudget
from kop.records.batch import BatchHeader
from kop.records.entry_places import PlacedEntry
from kop.records.entry_schemas import SchemaRun
from kop.records.validation import NEAR_THE_CLOCK, TimeLimits
from kop.storage.transaction_index import AbortedTransaction

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its name, id, number of partitions and configs. A change makes a new value in the place of this one:
    hold it, never write to it.
    """

    name: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    """The configs that were set on the topic itself, by Kafka's names; defaults are not in it."""
    internal: bool = False


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A live broker on the same data, and where others reach it."""

    node_id: int
    host: str
    """Host of the listener by which brokers call one another; with `port`."""
    port: int
    endpoints: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of each listener that has a name."""

    def address_of(self, listener: str) -> tuple[str, int] | None:
        """Return host and port of a listener of the broker; None if it has none of that name.

        An empty name stands for the listener of a broker whose listeners have no names: None for a broker with named
        ones.
        """
        if not listener:
            return None if self.endpoints else (self.host, self.port)
        return next(((host, port) for name, host, port in self.endpoints if name == listener), None)


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """The part of a topic's effective configs (its own, then the broker's defaults) that an engine acts on."""

    delete: bool = True
    """True if cleanup.policy holds `delete`, so that retention_ms and retention_bytes apply."""
    compact: bool = False
    """True if cleanup.policy holds `compact`: only the newest record of each key has to stay (null keys were
    refused).
    """
    retention_ms: int = 604_800_000
    """The age in ms, by its max timestamp, at which a batch is deleted; -1 for no limit."""
    retention_bytes: int = -1
    """The bytes of a partition above which its oldest batches are deleted; -1 for no limit."""
    log_append_time: bool = False
    """True if message.timestamp.type is LogAppendTime."""
    delete_retention_ms: int = 86_400_000
    """The ms that a tombstone stays after the compaction that first saw it."""
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 9_223_372_036_854_775_807
    min_cleanable_dirty_ratio: float = 0.5
    raw_entries: bool = False
    """True if kop.entry.format is `kafka`: batches are stored as they came, even if other clients cannot read them
    then.

    Never with `compact`. An engine that always stores them so has nothing to do.
    """
    max_uncompressed_bytes: int = 64 << 20
    """The most bytes that a batch's records may decompress to, if they have to be decompressed and looked at."""
    max_message_bytes: int = 1_048_588
    """The largest batch in bytes that the topic accepts; the engine's caller checks that."""
    time_limits: TimeLimits = NEAR_THE_CLOCK
    """The limits for the timestamps of records, unless `log_append_time`. An engine that checks records keeps to it."""
    limits_messages: bool = False
    """True if max.message.bytes is the topic's own: an engine with other writers holds them to it, too."""


MOST_UNCOMPRESSED: Final = 2**31 - 1
"""The most bytes that the records of a stored batch may decompress to if an engine reads them again.

It is more than any topic's setting: what was accepted by the settings of its day has to be read for ever, or compaction
would let a tombstone go and keep what it deleted.
"""


class AppendResult(NamedTuple):
    """The result of an append: the offset at which the batch lies, and its times."""

    base_offset: int
    log_append_time: int
    """The append time in ms since the epoch for LogAppendTime topics, else -1."""
    log_start_offset: int
    throttle_ms: int = 0
    """The ms for which the client should send nothing, because the storage holds back what is under way (KIP-219)."""


class AppendWaiter(Protocol):
    """The submitter of batches, which is told of their ends; one object for all batches of a request. See
    `PartitionLog.submit`.

    `appended` and `append_failed` only take note and return: they raise nothing and ask nothing of a log.
    """

    def reserve(self, size: int) -> None:
        """Count `size` bytes to which a batch will be decompressed, in an engine that checks records
        (`Promises.checks_records`).

        A negative size gives bytes back: the batch had so many fewer than were counted. BackendError if the request has
        used up its share of memory: the batch is refused then.
        """

    def appended(self, place: int, result: AppendResult) -> None:
        """Handle that the batch that was submitted with `place` is durable."""

    def append_failed(self, place: int, error: KopError) -> None:
        """Handle that the batch that was submitted with `place` was refused, or that it is not known if it is stored.
        Other waiters may be given the same `error`: who keeps or raises it makes a `fresh_copy`.
        """


class ReadResult(NamedTuple):
    """The result of a read: whole batches, ready to send, with base offsets and epochs in their bytes."""

    buffers: Sequence[Buffer]
    size: int
    """The bytes of all batches."""
    places: Sequence[PlacedEntry] = ()
    """The entries of Pulsar that keep the batches, in their order, if the reader asked for them; a filled gap has
    none.
    """
    schemas: Sequence[SchemaRun] | None = ()
    """The versions of Pulsar's schemas that the batches name, if any do; None if that is not known, which a read with
    places tells.
    """


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """The answer to a look-up by time: timestamp and offset of one record."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerView:
    """An idempotent producer as a partition remembers it, for DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """The sequence of its last record; -1 if its epoch began with the end of a transaction and nothing came since."""
    last_timestamp: int
    """The max timestamp (ms) of its last batch or marker."""
    current_txn_start_offset: int = -1
    """The first offset of its open transaction, or -1."""
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """The guarantees of an engine beyond those that the protocols ask of every engine. Callers go by it."""

    checks_records: bool
    """True if `submit` checks the records, and refuses those that are malformed or, on a compacted topic, have no key
    (errors as of `kop.records.validation.check_records`); else its caller has to.
    """
    durable: bool
    """True if acknowledged records are still there after the process was killed."""
    writes_markers: bool
    """True if each log is a `MarkedLog`, in which markers end transactions."""


class PartitionLog(Protocol):
    """The log of one partition. Errors of append, read and look-ups are KopErrors."""

    topic: TopicInfo
    """The partition's topic in its newest value, with configs that were changed a moment ago."""
    index: int

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read. Exact once `attach` has ended."""

    @property
    def high_watermark(self) -> int:
        """The offset after the last durable record. Exact once `attach` has ended."""

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which readers of committed records may read: the oldest open transaction's first, else the
        high watermark.

        It is the high watermark in a storage that shows readers no record of a transaction that has not ended.
        """

    def aborted_between(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions of which records may lie from the offset `start` on and before `end`.

        Readers of committed records skip those records. Empty in a storage that shows readers no such records.
        """

    @property
    def size_bytes(self) -> int:
        """The bytes of the stored batches. Known once `attach` has ended; see `measure`."""

    @property
    def attached(self) -> bool:
        """True if the log's bounds and `read_cached` may be used. Always true of the embedded engine.

        `submit` needs no attaching: an engine that has to attach first keeps the order of the calls.
        """

    @property
    def sole_writer(self) -> bool:
        """True if nobody but this process writes to the log or deletes from it, so that `refresh` has nothing to
        bring.
        """

    @property
    def reads_ahead(self) -> bool:
        """True if its storage reads ahead of readers by itself."""

    async def attach(self) -> None:
        """Make the log ready to serve: bounds and the end of the log are known afterwards. Cheap to call again."""

    async def measure(self) -> int:
        """Return the bytes of the stored batches, without attaching the log."""

    async def refresh(self) -> None:
        """Bring `high_watermark` up to all that is durable now, whoever wrote it. Attaches the log if need be."""

    async def refresh_start(self) -> None:
        """Bring `log_start_offset` up to the present start of the log, whoever deleted from it. Attaches the log if
        need be.
        """

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
        """Accept one validated RecordBatch v2, to be stored; `waiter` is called once, with `place`, when it is durable
        or has failed.

        It may be called before this returns. The order of calls is the order in the log. The engine keeps `batch` (no
        view into a buffer that is used again), writes the base offset and leader epoch 0 into it or into a copy, and on
        a LogAppendTime topic the append time. Idempotent producers are checked here (`kop.storage.idempotence`): a
        duplicate ends with the original's result once that is durable. `from_zero`: the producer begins each of its
        epochs at sequence 0, so that another batch of an unknown producer is OUT_OF_ORDER_SEQUENCE_NUMBER: the first
        one comes again.

        Errors go to `waiter`, nothing is raised: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, ...
        """

    def direct_writer(self, header: BatchHeader) -> object | None:
        """Return the object that compiled code gives batches to instead of `submit`, as long as its `open` is true;
        None if all have to go to `submit`.

        It accepts batches of the producer of `header`, or of all that have none, compressed or not, and none of a
        transaction. They follow those that `submit` was given.
        """

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> asyncio.Future[AppendResult]:
        """Submit one batch, and return a future of its result or KopError; rules as of `submit`."""

    def read_cached(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult | None:
        """Return the batches in memory from the one that holds `offset` on; None if storage has to be read.

        Takes whole batches up to `max_bytes`; with `min_one` the first batch is taken whatever its size. An offset at
        the high watermark gives an empty result, one out of range raises OFFSET_OUT_OF_RANGE. None also for an offset
        beyond the high watermark, if that may have moved on meanwhile because another broker wrote.
        """

    async def read(self, offset: int, max_bytes: int, *, min_one: bool, places: bool = False) -> ReadResult:
        """Read batches from storage, by the rules of `read_cached`. If compaction took the batch of `offset`, the next
        one answers. With `places` the result also has the positions of the batches' entries, if the engine keeps its
        records in Pulsar.
        """

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return true if transactional batches of that producer id and epoch may be submitted without asking the
        coordinator.

        Else the coordinator has to be asked, and `join_transaction` to be called, even if it was called before: storage
        may have lost its knowledge of the producer.
        """

    def join_transaction(self, producer_id: int, producer_epoch: int, storage_transaction: bytes) -> None:
        """Note that the partition is in the open transaction of that producer, and was prepared
        (`TransactionStorage.add`).

        Transactional batches of that producer id and epoch that are submitted from now on belong to
        `storage_transaction`, until the next call for the same producer id and epoch. The caller submits none before
        this was called.
        """

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each time one of the log's bounds moves, or the topic is deleted; return the function that
        ends this.

        The bounds are the log start, the high watermark and the last stable offset.
        """

    async def find_by_time(self, timestamp: int) -> TimestampOffset | None:
        """Return timestamp and offset of the first record at or after `timestamp` (ms); None if there is none."""

    async def max_timestamp(self) -> TimestampOffset | None:
        """Return timestamp and offset of the first record with the largest timestamp; None if no record has a
        timestamp, as on an empty log (KIP-734).
        """

    async def delete_records(self, before_offset: int) -> int:
        """Move the log start to `before_offset` (-1: the high watermark); return the new log start.

        OFFSET_OUT_OF_RANGE beyond the high watermark; below the log start nothing changes.
        """

    def producers(self) -> Sequence[ProducerView]:
        """Return the idempotent producers that the log remembers now."""

    # The leadership of a log: whoever keeps state in it has to be its only writer.

    async def lead(self, lost: Callable[[], None]) -> None:
        """Become the only writer of the log: appends of another broker fail from now on.

        `lost` is called once when another one leads, or the log can be written no more. Reads after this has ended
        bring all that was ever acknowledged. An engine of one process has nothing to do.
        """

    @property
    def leads(self) -> bool:
        """True if this broker leads the log since `lead`, and surely no other broker has taken the lead.

        False some seconds after storage was last asked, since what is in memory may be out of date then.
        """

    async def verify_lead(self) -> None:
        """Ask storage who leads the log; afterwards `leads` is true, or `lost` was called because another broker leads.
        If storage does not answer, nothing has changed, and nothing is raised.
        """

    async def resign(self) -> None:
        """Give up the lead of the log. Do nothing if this broker does not lead it."""


class MarkedLog(PartitionLog, Protocol):
    """A log in which markers end transactions, as in Kafka. Each buffer that it reads has one batch."""

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        bumps_epoch: bool,
        now_ms: int,
    ) -> asyncio.Future[AppendResult]:
        """Write the marker that ends a producer's transaction; the future ends when it is durable. Its result tells
        nothing more.

        The marker's `producer_epoch` is the producer's from now on: batches of an earlier epoch are refused.
        `bumps_epoch`: the producer's client goes by version 2 of transactions, whose ends have an epoch above that of
        their data (KIP-890). A marker that was written before is not written again. Errors, on the future:
        INVALID_PRODUCER_EPOCH, or of storage.
        """


EPOCH_BUMPED_AT_END: Final = 2
"""The version of transactions from which on each end bumps the producer's epoch (KIP-890, part 2)."""


class EndedTransaction(NamedTuple):
    """A transaction whose end was decided and is durable: storage has to carry it out."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    """The epoch of the markers: above that of the data if the end bumped the epoch."""
    partitions: frozenset[tuple[str, int]]
    """The transaction's partitions: topics, by the names of `Topics`, and partition numbers."""
    commit: bool
    client_version: int
    """The version of transactions that the client goes by (KIP-890). See `EPOCH_BUMPED_AT_END`."""
    storage_transaction: bytes = b""
    """The name of the transaction in storage, which `TransactionStorage.begin` gave."""


class TransactionStorage(Protocol):
    """The part of storage that makes the records of a transaction readable all at once, or never.

    The transaction coordinator decides, and keeps its decisions. After a failure a method is called again, maybe by
    another broker: that does no harm. Errors are KopErrors.
    """

    @property
    def refusal(self) -> str | None:
        """None if storage has transactions; else one line that says why not, and what to do about it."""

    async def begin(self, timeout_ms: int) -> bytes:
        """Begin a transaction that the coordinator ends within `timeout_ms` of the client, or soon after.

        Returns its name in storage, which the coordinator keeps in its record; empty if storage needs no name.
        """

    async def add(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        """Prepare partitions, before a producer appends to them: see `PartitionLog.join_transaction`.

        Topics are named as in `Topics`. UNKNOWN_TOPIC_OR_PARTITION if one does not exist.
        """

    async def confirm(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        """Raise TRANSACTION_ABORTABLE if storage, or somebody else than the coordinator, has ended the transaction, so
        that nothing of it can be committed any more.

        `partitions`: those that were added.
        """

    def stop_writes(self, storage_transaction: bytes) -> None:
        """Refuse all further writes into the transaction of that name, and what was submitted and still waits: its end
        is decided, here or by another broker. Do nothing for an empty name.
        """

    async def nobody_else_writes(self, ended: EndedTransaction) -> bool:
        """Return true if surely no other process can write into the transaction any more; false if that is not known,
        also after an error.

        It may take long, and does no harm if it is cancelled.
        """

    async def end(self, ended: EndedTransaction) -> None:
        """Make the records of a transaction readable, or hide them for good. Partitions that do not exist any more are
        skipped.
        """


class Topics(Protocol):
    """The table of topics. Reads are from memory; changes end when they are durable and visible to `get`."""

    @property
    def version(self) -> int:
        """A number that grows with every change of any topic, a key for cached answers."""

    @property
    def namespace(self) -> str | None:
        """The namespace `tenant/namespace` of topics without one in their names; None if no name may have one."""

    def get(self, name: str) -> TopicInfo | None:
        """Return the topic of that name; None if it is not known. A topic of another namespace is named
        `tenant/namespace/topic`.
        """

    async def find(self, names: Collection[str]) -> None:
        """Look at topics in storage: those of other namespaces that `get` does not know, and all those that another
        broker may have made, deleted or made again a moment ago. Then `get` knows them, or `missing` has the error.
        """

    def is_listed(self, namespace: str) -> bool:
        """Return true if all topics of a namespace are known, or were when it was last listed, some seconds ago."""

    async def list_namespace(self, namespace: str) -> None:
        """Find all topics of a namespace that are not known. BackendError if it cannot be listed."""

    def missing(self, name: str) -> ErrorCode | None:
        """Return the error for which `find` did not find that topic, some seconds ago; None if it did not look since,
        or has found the topic.
        """

    def by_id(self, topic_id: UUID) -> TopicInfo | None:
        """Return the topic of that id; None if it is not known. A deleted and recreated topic has a new id."""

    def all(self) -> Sequence[TopicInfo]:
        """Return every topic, internal ones among them, ordered by name."""

    async def differing_configs(self, topic_id: UUID) -> Mapping[str, str]:
        """Return the configs that have other values in storage than in the topic's configs, because somebody changed
        them there.
        """

    async def refresh(self, topic_id: UUID) -> None:
        """Read a topic from storage again, since another process may have changed it this moment."""

    def on_change(self, callback: Callable[[TopicInfo | None, TopicInfo | None], None]) -> None:
        """Call `callback(old, new)` after each change: (None, t) created, (t, None) deleted, (t, t') changed."""

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False
    ) -> TopicInfo:
        """Make a topic, and return it. TOPIC_ALREADY_EXISTS if the name is taken, INVALID_PARTITIONS for a number below
        1.
        """

    async def delete(self, topic_id: UUID) -> None:
        """Delete a topic and its records; waits on its logs end. UNKNOWN_TOPIC_ID if it does not exist."""

    async def grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        """Raise the number of a topic's partitions to `partitions`; return the topic. INVALID_PARTITIONS if it would
        not grow, UNKNOWN_TOPIC_ID if it does not exist.
        """

    async def set_configs(self, topic_id: UUID, configs: Mapping[str, str], named: Collection[str] = ()) -> TopicInfo:
        """Replace the topic's own configs by `configs`, all of them, and return the topic; in force when it returns.
        UNKNOWN_TOPIC_ID if it does not exist.

        `named`: those that a client asks for. They are brought into force also if the topic has them already, and
        somebody gave the storage other values (`differing_configs`).
        """


class SmallValues(Protocol):
    """The small durable values that all brokers share, such as altered broker configs, by key."""

    async def get_state(self, key: str) -> str | None:
        """Return the value of a key; None if it has none."""

    async def put_state(self, key: str, value: str | None) -> None:
        """Set the value of a key, or with None remove it; durable when this returns."""

    def on_state(self, callback: Callable[[], None]) -> None:
        """Call `callback` when another process may have changed one of the values."""


class Brokers(Protocol):
    """The live brokers on the same data."""

    @property
    def brokers(self) -> Sequence[LiveBroker]:
        """The live brokers, this one among them once it has joined. Empty if there can be no other broker."""

    @property
    def brokers_fresh(self) -> bool:
        """True if `brokers` is up to date; while it is not, another broker may have taken over what this one leads."""

    def on_brokers(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of `brokers`, and after a time in which there may have been one."""

    async def join(self, broker: LiveBroker) -> None:
        """Become one of `brokers`, until `close`. BROKER_ID_NOT_REGISTERED if another live broker has the id."""


TOPIC_ACTIONS: Final = frozenset({"produce", "consume"})
"""The actions of grants that are about records of topics."""


@dataclass(frozen=True)
class NamespaceGrants:
    """The grants of the roles of a namespace, of an engine whose server has grants, as Pulsar has."""

    roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The actions that a role may do with each topic of the namespace: "produce", "consume" and others."""
    topics: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """The actions that a role may do with a topic, by the topic's name in its namespace."""
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The roles that alone may use a subscription, by its name. Any role may use one that is not here."""
    begins_with_role: bool = False
    """True if the name of each subscription has to begin with the role that uses it."""
    is_there: bool = True
    """False if the server has no such namespace."""

    @cached_property
    def users(self) -> frozenset[str]:
        """The roles that may produce to, or consume from, some topic of the namespace."""
        grants = (self.roles, *self.topics.values())
        return frozenset(
            role for given in grants for role, actions in given.items() if not TOPIC_ACTIONS.isdisjoint(actions)
        )


class Grants(Protocol):
    """The grants of roles by the server behind an engine, read again and again. Look-ups are from memory."""

    @property
    def version(self) -> int:
        """A number that grows with each change of what is known of the namespaces that are followed."""

    @property
    def home(self) -> str:
        """The namespace `tenant/namespace` of topics without one in their names."""

    async def open(self) -> None:
        """Read the grants of the home namespace for the first time, and go on reading until the engine is closed.

        Waits for as long as the server does not answer. KopError if this gateway may not read them.
        """

    def of(self, namespace: str) -> NamespaceGrants | None:
        """Return the grants of a namespace; None if they are not known now. A namespace that the server does not have
        gives grants without any role.
        """

    def admins(self, tenant: str) -> Collection[str] | None:
        """Return the roles that administer a tenant; None if they are not known now."""

    def unread(self, namespaces: Collection[str]) -> Collection[str]:
        """Return those of the namespaces that have to be read before anything is decided by their grants."""

    async def read(self, namespaces: Collection[str]) -> None:
        """Read the grants of these namespaces from the server. Those that cannot be read keep their last answer for 30
        seconds, and are not known then.
        """

    def follow(self, namespace: str) -> None:
        """Read the grants of a namespace again and again from now on, until the engine is closed."""

    def follows(self, namespace: str) -> bool:
        """Return true if the grants of a namespace are read again and again."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine's state for a status page; see the engine's properties of the same names."""

    healthy: str | None
    about: str | None
    losses: str | None

    def collect(self) -> Iterable[Metric]:
        """Return the metric that every engine has: a gauge that is 1 while records can be written, else 0."""
        return (gauge_value("kop_storage_writable", "1 while records can be written.", self.healthy is None),)


class TokenAuthority(Protocol):
    """The server behind an engine, as far as it says which tokens its own clients may log in with."""

    async def accepts(self, token: str) -> bool:
        """Return true if the server takes the token. BackendError if it cannot be asked."""


class Engine(SmallValues, Brokers, Protocol):
    """A storage engine. Made by its `open_engine`; one for the process."""

    @property
    def promises(self) -> Promises:
        """The guarantees of this engine beyond the protocols of every engine."""

    @property
    def topics(self) -> Topics:
        """The engine's table of topics."""

    @property
    def transactions(self) -> TransactionStorage:
        """The part of the engine that carries out transactions."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster: 22 characters, stable for the life of the data."""

    @property
    def grants(self) -> Grants | None:
        """The grants of the server that has the data; None if it has no such thing."""

    @property
    def read_budget(self) -> ReadBudget:
        """The bound on the memory that reads hold: for what is read ahead, and for results that wait for their
        reader.
        """

    @property
    def directory(self) -> Path | None:
        """The directory of this machine in which the data is; None if it is on no disk of this machine."""

    @property
    def token_authority(self) -> TokenAuthority | None:
        """The authority that says which tokens are good; None if no server is behind the engine."""

    def log(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        """Return the log of a partition, the same object each time; None if there is no such partition."""

    async def reserve_producer_ids(self) -> range:
        """Reserve a block of producer ids for good, none of which was given before. Its size is the engine's choice."""

    def policies_changed(self) -> None:
        """Ask for the policy of every topic again, because a broker default was altered."""

    async def maintain(self, now_ms: int) -> None:
        """Do all that is due at `now_ms`, such as retention and compaction. Storage may go by its own clock instead."""

    def snapshot(self) -> EngineSnapshot:
        """Return the engine's state for a status page."""

    def collect(self) -> Iterable[Metric]:
        """Return metrics of the engine for a scrape: those of every engine, and those that only this one has."""

    @property
    def healthy(self) -> str | None:
        """None while records can be written; else one line that says why not, for /readyz and the log."""

    @property
    def about(self) -> str | None:
        """One line for the person at the terminal about the server that has the data; None if there is no such
        server.
        """

    @property
    def losses(self) -> str | None:
        """One line about stored records that this start has found to be lost; None if none are."""

    async def close(self) -> None:
        """Finish the appends that were submitted, sync, and release all resources. Later appends fail."""
