"""The engine over Apache Pulsar: puts its parts together, opens and closes them.

Owns: `open_engine`, the order of start and end, what `kop.storage.base.Engine` promises in terms of the parts.
Must not know: what an entry holds, how offsets are found, what lies in Pulsar under which name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from prometheus_client.core import Metric

from kop import clock
from kop.background import cancel, retried
from kop.errors import BackendError, KopError
from kop.metrics import counter_family
from kop.pulsar_client import Client, PulsarError
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.watch import Watch
from kop.read_budget import ReadBudget
from kop.storage.base import EngineSnapshot, LiveBroker, LogPolicy, Promises, TopicInfo
from kop.storage.pulsar.access import check_access, credentials_of, tls_of
from kop.storage.pulsar.cluster.broker_registry import Answers, BrokerRegistry
from kop.storage.pulsar.cluster.cluster_topic import ClusterTopic
from kop.storage.pulsar.cluster.producer_ids import ProducerIdBlocks
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, Refused, kafka_error
from kop.storage.pulsar.grants import PulsarGrants
from kop.storage.pulsar.layout import PERSISTENT, TRANSACTIONS_TOPIC, WHOLE_BATCHES_FIT, ProducerNaming
from kop.storage.pulsar.offsets.mapping import offset_mapping
from kop.storage.pulsar.partition.appends import OpenBatches
from kop.storage.pulsar.partition.decompression import DecompressionTurns
from kop.storage.pulsar.partition.ended_transactions import EndedTransactions
from kop.storage.pulsar.partition.entry_sizes import EntrySizeLimits
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.partition.log_table import LogTable
from kop.storage.pulsar.partition.services import PartitionServices
from kop.storage.pulsar.partition.throttle import BacklogTeller
from kop.storage.pulsar.partition.write_budget import WriteBudget
from kop.storage.pulsar.settings import PulsarSettings
from kop.storage.pulsar.token_checks import TokenChecks
from kop.storage.pulsar.topics.compaction import Compactions
from kop.storage.pulsar.topics.deletion import DeletionGuard
from kop.storage.pulsar.topics.partition_numbers import PartitionNumbers
from kop.storage.pulsar.topics.strays import StrayPartitions
from kop.storage.pulsar.topics.table import PulsarTopics
from kop.storage.pulsar.topics.write_checks import WriteChecks
from kop.storage.pulsar.transactions.fences import Fences
from kop.storage.pulsar.transactions.probe import whole_batches_unfit
from kop.storage.pulsar.transactions.storage import PulsarTransactions
from kop.storage.pulsar.upkeep import Upkeep
from kop.storage.tail_cache import TailCache, reads_bytes
from kop.turns import Turns

_START_SECONDS: Final = 60.0
"""The seconds for which each step of the start is tried again while its failure may pass."""
_NOBODY_ANSWERS: Final = frozenset({"ConnectionLost", "Timeout"})
_CLOSE_SECONDS: Final = 10.0
_ATTACH_AT_ONCE: Final = 64

T = TypeVar("T")

log = logging.getLogger(__name__)


class PulsarEngine:
    """An `Engine` over a Pulsar cluster. Made by `open_engine`."""

    promises = Promises(
        checks_records=True,
        durable=True,
        writes_markers=False,
    )
    directory = None

    def __init__(
        self,
        client: Client,
        admin: Admin,
        policy: Callable[[TopicInfo], LogPolicy],
        settings: PulsarSettings,
        answers: Answers | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        """Make the parts of the engine, without connecting. `policy` gives the effective configs of a topic, `answers`
        asks another broker if it serves Kafka clients, and `waiting` is called with one line for each failure that is
        tried again.
        """
        self.context = context = PulsarContext(client, admin, settings)
        self.loop, self.client, self.admin = context.loop, client, admin
        self.settings, self.faults = settings, context.faults
        self.token_authority = TokenChecks(client)
        self._waiting = waiting
        self._instance = clock.token_hex(8)
        self.cluster_id = ""
        self.about = f"namespace {settings.kop_pulsar_namespace}"
        self.mapping = offset_mapping(settings.kop_pulsar_offsets, self.faults)
        self.cache = TailCache(settings.kop_cache_bytes)
        self.read_budget = ReadBudget(
            reads_bytes(settings.kop_cache_bytes), on_change=partial(self.cache.leave, "reads")
        )
        self._registry = BrokerRegistry(context, self._instance, self._announced, answers)
        self._cluster_topic = ClusterTopic(admin, context.naming, self._registry.announce)
        self.producer_id_blocks = ProducerIdBlocks(
            client, self._cluster_topic.partition, f"kop-ids-{self._instance}", self.mapping.first_id
        )
        self._logs = LogTable(self._make_log, policy, self._removing_log)
        strays = StrayPartitions(context)
        self.topics = PulsarTopics(context, self._cluster_topic, self._registry, self._logs, policy, strays)
        self.topics.on_change(self._topic_changed)
        self.deletion_guard = DeletionGuard(context, self.topics, strays)
        self.write_checks = WriteChecks(context, self.topics, policy)
        self.partition_numbers = PartitionNumbers(context, self.topics)
        self._entry_size_limits = EntrySizeLimits(context, lambda topic_id: self.topics.pulsar(topic_id).full_name)
        self.services = PartitionServices(
            mapping=self.mapping,
            cache=self.cache,
            open_batches=OpenBatches(settings.kop_cache_bytes // 4, partial(self.cache.leave, "open batches")),
            read_budget=self.read_budget,
            attaching=Turns(_ATTACH_AT_ONCE),
            write_budget=WriteBudget(context),
            ended_transactions=EndedTransactions(context.loop.time),
            decompression=DecompressionTurns(context.loop),
            producer_naming=lambda: self.producer_naming,
            leader_is_live=self._leader_is_live,
            counts_as_live=lambda: self._registry.counts_as_live,
            over_quota=BacklogTeller(context).refused,
            may_attach=self.deletion_guard.may_attach,
            confirm=self.deletion_guard.confirm,
            retains=self.write_checks.retains,
            deduplicates=self.write_checks.deduplicates,
            knows_all_producers=lambda topic_id: self.topics.pulsar(topic_id).is_young(admin.now_ms()),
            mark_raw=self.write_checks.mark_raw,
            may_write_raw=self.write_checks.may_write_raw,
            entry_size_limit=self._entry_size_limits.of,
            kept_number=self.partition_numbers.largest,
            keep_number=self.partition_numbers.keep,
        )
        self.grants = PulsarGrants(context, self.topics, waiting)
        self._native_transactions = native = client.transactions()
        self.transactions = PulsarTransactions(
            context,
            native,
            Fences(context, lambda: self.producer_naming.fences),
            self._partition,
            self.services.ended_transactions,
            probe=self._whole_batches_unfit,
            packed=not self.mapping.dense,
        )
        self.compactions = Compactions(context, self._logs.all, self.topics.pulsar)
        self._upkeep = Upkeep(
            context,
            self._cluster_topic,
            self._logs.all,
            look_at_retention=self.write_checks.look_again,
            look_at_compactions=self.compactions.look,
            list_topics=self.topics.load,
            close_idle=self.transactions.close_idle,
        )
        self._following: asyncio.Task[None] | None = None
        self._watches: list[Watch] = []

    # --- for handlers and coordinators: see kop.storage.base.Engine

    def log(self, topic_id: UUID, partition: int) -> PulsarLog | None:
        """Return the log of a partition, the same object each time; None if there is none."""
        return self._logs.get(topic_id, partition)

    async def reserve_producer_ids(self) -> range:
        """Return a block of producer ids that nobody else gets, for good. KopError if Pulsar refuses it or the engine
        is closed.
        """
        if self.context.closed:
            raise BackendError("the storage engine is closed")
        with self.faults.refusing(Refused.REQUESTS, "cannot reserve producer ids"):
            return await self.producer_id_blocks.take()

    async def get_state(self, key: str) -> str | None:
        """Return a small durable value by its key; None if there is none. KopError if it cannot be read; before this
        broker joins, failures that may pass are retried for a minute first.
        """
        read = partial(self._cluster_topic.get_state, key)
        with self.faults.refusing(Refused.REQUESTS, "cannot read a setting"):
            if self._registry.own is None:  # no client is there that would retry while the broker starts
                return await self._tried("read a setting", read)
            return await read()

    async def put_state(self, key: str, value: str | None) -> None:
        """Set a small durable value by its key, or remove it with None, and tell the other brokers. KopError if Pulsar
        refuses it.
        """
        with self.faults.refusing(Refused.REQUESTS, "cannot keep a setting"):
            await self._cluster_topic.put_state(key, value)

    def on_state(self, callback: Callable[[], None]) -> None:
        """Call `callback` when another broker may have changed a small durable value."""
        self._cluster_topic.on_state(callback)

    @property
    def brokers(self) -> Sequence[LiveBroker]:
        """The live brokers by id, this one among them, as Pulsar showed them last; empty before this one joins."""
        return self._registry.brokers

    @property
    def brokers_fresh(self) -> bool:
        """True if Pulsar told within the last 15 seconds which brokers are live; also true before this broker joins."""
        return self._registry.fresh

    def on_brokers(self, callback: Callable[[], None]) -> None:
        """Call `callback` from now on after each change of `brokers`, and after a time in which there may have been
        one.
        """
        self._registry.on_change(callback)

    async def join(self, broker: LiveBroker) -> None:
        """Become one of the live brokers, with the id and the addresses of `broker`. BROKER_ID_NOT_REGISTERED if
        another live broker has the id; failures that may pass are retried for a minute before they become another
        KopError.
        """
        with self.faults.refusing(Refused.REQUESTS, "cannot join the brokers"):
            await self._tried("join the brokers", lambda: self._registry.join(broker))

    @property
    def healthy(self) -> str | None:
        """None while records can be written, as far as is known; else one line that says why not: Pulsar does not
        answer, its REST refuses this broker, or the engine is closed.
        """
        return "the storage engine is closed" if self.context.closed else self._upkeep.failure

    losses = None
    """None: Pulsar keeps all that it has acknowledged."""

    def policies_changed(self) -> None:
        """Give the logs their policies again, because the broker's defaults have changed."""
        self.topics.update_logs()

    async def maintain(self, now_ms: int) -> None:
        """Do nothing: Pulsar drops whole ledgers by its own clock, and upkeep tells it now and then to compact."""

    def snapshot(self) -> EngineSnapshot:
        """Return the engine's state for a status page."""
        return EngineSnapshot(self.healthy, self.about, self.losses)

    def collect(self) -> Iterable[Metric]:
        """Return metrics of the engine: those of every engine, faults with Pulsar, bytes that no compaction has seen,
        and those of the grants that are read again and again.
        """
        faults = counter_family("kop_pulsar_faults", "What went wrong between gateway and Pulsar.", ["fault", "detail"])
        for name, times in self.counts.items():
            fault, _, detail = name.partition("/")
            faults.add_metric([fault, detail], times)
        return *self.snapshot().collect(), faults, *self.compactions.collect(), *self.grants.collect()

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of times that each fault occurred, by its name in the metrics, with the outages of Pulsar."""
        outages = self.client.outage.times
        return {**self.faults.counts, Fault.OUTAGES_PULSAR: outages} if outages else self.faults.counts

    async def close(self) -> None:
        """Wait up to 10 seconds for the results of appends that were submitted, then close everything, with the
        connections to Pulsar. Later appends fail. A second call does nothing.
        """
        if self.context.closed:
            return
        self.context.closed = True
        self.services.write_budget.close()
        for each in self._logs.all():
            each.end_direct()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.services.write_budget.wait_until_empty()
        except TimeoutError:
            log.warning(
                "stopping without %d bytes of batches that Pulsar has not confirmed: their clients get no answer",
                self.services.write_budget.bytes,
            )
        await self._upkeep.close()
        await cancel(self._following)
        await self.transactions.close()
        await self._registry.close()
        await self.topics.close()
        await self.grants.close()
        for watch in self._watches:
            await watch.close()
        await asyncio.gather(*(each.close() for each in self._logs.all()), return_exceptions=True)
        await self.deletion_guard.close()
        await self.context.wait_for_work()
        await self.client.close()
        await self.admin.close()

    # --- callbacks between the parts

    async def _whole_batches_unfit(self) -> str | None:
        """Return the reason why whole batches cannot be in Pulsar's transactions, None if they can; see
        `whole_batches_unfit`.

        If they were seen to fit, the cluster remembers the version of Pulsar: a start need not try that one again.
        """
        version = ""
        with suppress(PulsarError):  # then it is tried, and not remembered
            version = await self.admin.version()
            if await self._cluster_topic.get_state(WHOLE_BATCHES_FIT) == version:
                return None
        topic = self.context.naming.probe_topic(clock.token_hex(8))
        unfit = await whole_batches_unfit(self.context, self._native_transactions, topic)
        if unfit is None and version:
            with suppress(PulsarError):
                await self._cluster_topic.put_state(WHOLE_BATCHES_FIT, version)
        return unfit

    def _partition(self, topic_name: str, partition: int) -> PulsarLog | None:
        topic = self.topics.get(topic_name)
        return None if topic is None else self.log(topic.topic_id, partition)

    def _make_log(self, topic: TopicInfo, index: int, partition_name: str, policy: LogPolicy) -> PulsarLog:
        return PulsarLog(self.context, self.services, topic, index, partition_name, policy)

    def _removing_log(self, log_removed: PulsarLog) -> None:
        self.deletion_guard.removed(log_removed)

    def _announced(self, full_names: Sequence[str]) -> None:
        """Look soon at topics (Pulsar's full names) whose properties another broker says that it has changed. If the
        topic of small values is among them, call the callbacks of `on_state`.
        """
        self._cluster_topic.announced(full_names)
        self.topics.watched(None, full_names, ())

    def _topic_changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        if new is None and old is not None:
            for part in (self.partition_numbers, self._entry_size_limits, self.write_checks, self.deletion_guard):
                part.forget(old.topic_id)

    @property
    def producer_naming(self) -> ProducerNaming:
        """The names of this broker's Pulsar producers. They are known after the start, which reads the cluster id."""
        return ProducerNaming(self.cluster_id, self._instance)

    def _leader_is_live(self, producer: str) -> bool | None:
        instance = self.producer_naming.leaders_instance(producer)
        return None if instance is None else self._registry.is_live(instance)

    # --- open

    async def start(self) -> None:
        """Connect, read the topics of the cluster, follow their changes, and begin the background work. KopError if the
        cluster is not set up for the gateway, with advice; PulsarError if Pulsar refuses something.

        A failure that may pass is retried for a minute in each step, because Pulsar brokers restart and topics move. An
        address where nobody answers counts as a wrong one: the start then ends at once, as it does for refused
        credentials.
        """
        cluster_topic = self._cluster_topic
        await self._tried("connect to Pulsar", self.client.start, answered=False)
        await self._tried("look for the namespace over REST", self._look_for_namespace, answered=False)
        await self._tried("make the namespace of the brokers", cluster_topic.make_namespace)
        self.cluster_id = await self._tried("read the gateway's own topic", cluster_topic.open)
        await self._tried("take a block of producer ids", self.producer_id_blocks.start)
        claim = partial(cluster_topic.claim_offsets, self.mapping.claim)
        await self._tried("agree on what offsets are made of", claim)
        await self._tried("list the topics", self.topics.load)
        await self.transactions.start(used=self.topics.get(TRANSACTIONS_TOPIC) is not None)
        for namespace in self.context.naming.namespaces:
            watched = partial(self.topics.watched, namespace=namespace)
            self._watches.append(self.client.watch(namespace, f"{PERSISTENT}{namespace}/.*", watched))
        self._following = self.loop.create_task(self.topics.follow())
        with suppress(PulsarError):  # whoever may not ask sees the namespace alone
            version, clusters = await self.admin.version(), await self.admin.clusters()
            self.about = f"{version}, cluster {', '.join(clusters)}, {self.about}"
        self._upkeep.start()

    async def _tried(self, what: str, work: Callable[[], Awaitable[T]], *, answered: bool = True) -> T:
        """Run a step of the start (`work`) and return its result; retry it for a minute while its failure may pass,
        then raise that. `what` completes "cannot ..." in log lines. `answered`: somebody has answered at this address
        before; if not, silence counts as a wrong address, and is not retried.
        """

        def passes(error: BaseException) -> bool:
            cause = error.__cause__ if isinstance(error, KopError) else error
            if not isinstance(cause, PulsarError) or not cause.retriable:
                return False
            return answered or cause.code not in _NOBODY_ANSWERS

        return await retried(what, work, passes=passes, seconds=_START_SECONDS, waiting=self._waiting)

    async def _look_for_namespace(self) -> None:
        if not await self.admin.namespace_exists(self.settings.kop_pulsar_namespace):
            name = self.settings.kop_pulsar_namespace
            raise BackendError(
                f"namespace {name} is not there: create it (pulsar-admin namespaces create {name}) or name another "
                "with kop.pulsar.namespace"
            )


async def open_engine(
    service_url: str,
    admin_url: str,
    *,
    policy: Callable[[TopicInfo], LogPolicy],
    settings: PulsarSettings | None = None,
    answers: Answers | None = None,
    waiting: Callable[[str], None] | None = None,
) -> PulsarEngine:
    """Connect to a cluster and read its topics. KopError if that fails, with advice.

    `answers` asks another broker if it serves Kafka clients; see `BrokerRegistry`. `waiting` is called with one line
    for each failure that is tried again.
    """
    settings = settings or PulsarSettings()
    check_access(settings, service_url, admin_url)
    auth, tls = credentials_of(settings), tls_of(settings)
    client = Client(service_url, auth=auth, tls=tls)
    admin = Admin(admin_url, auth=auth, tls=tls)
    engine = PulsarEngine(client, admin, policy, settings, answers, waiting)
    try:
        await engine.start()
    except PulsarError as error:
        await engine.close()
        raise kafka_error(error, f"cannot use Pulsar at {service_url} and {admin_url}") from error
    except BaseException:
        await engine.close()
        raise
    return engine
