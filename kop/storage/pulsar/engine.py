"""The engine over Apache Pulsar: puts client, admin, catalogue and logs together; opens and closes them.

Owns: `open_engine`, the settings, names in Pulsar, the logs by topic, producer ids, the gateway's own small values.
Must not know: what an entry holds, how offsets are found.

What is the gateway's own lies in one topic of the metadata namespace, `__kop`: its topic id is the cluster id, its
properties are the small values, and the index of its entries counts producer ids: each message is a block of them. With
packed offsets an entry's own numbers are the block.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID
from zlib import crc32

from prometheus_client.core import Metric

from kop.background import retried
from kop.errors import BackendError, KopError
from kop.metrics import counter_family
from kop.pulsar_client import Client, PulsarError
from kop.pulsar_client.admin import FOREVER, Admin
from kop.storage.base import AppendResult, LiveBroker, LogPolicy, Promises, TopicInfo
from kop.storage.pulsar.access import Access
from kop.storage.pulsar.cluster.broker_registry import Answers, Gateways
from kop.storage.pulsar.cluster.compaction import Compactions
from kop.storage.pulsar.cluster.producer_ids import ProducerIds
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import kafka_error
from kop.storage.pulsar.layout import (
    CREATED_PROPERTY,
    ID_PROPERTY,
    OFFSETS_PROPERTY,
    PERSISTENT,
    RAW_PROPERTY,
    STATE_PREFIX,
    ProducerNaming,
    all_remembered,
    id_of,
    largest_remembered,
    number,
    outdated,
    remembered,
)
from kop.storage.pulsar.offsets import mapping as numbering
from kop.storage.pulsar.partition.entry_sizes import EntrySizeLimit
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.reading.budget import ReadAhead
from kop.storage.pulsar.settings import Settings
from kop.storage.pulsar.topics import policies
from kop.storage.pulsar.topics.deletion import Presence
from kop.storage.pulsar.topics.foreign import Elsewhere
from kop.storage.pulsar.topics.table import PulsarTopic, PulsarTopics
from kop.storage.pulsar.topics.write_checks import WriteChecks
from kop.storage.pulsar.upkeep import Upkeep
from kop.storage.tail_cache import TailCache
from kop.storage.topic_table import new_uuid
from kop.turns import Turns

_REMEMBER_TRIES: Final = 5
"""How often a number is written until it is read back."""
_START_SECONDS: Final = 60.0
"""How long each step of the start is tried again while its failure may pass."""
_NOBODY_ANSWERS: Final = frozenset({"ConnectionLost", "Timeout"})
_CLOSE_SECONDS: Final = 10.0
_YOUNG_SECONDS: Final = 3600.0

log = logging.getLogger(__name__)
_ATTACH_AT_ONCE: Final = 64

T = TypeVar("T")


class PulsarEngine:
    """An `Engine` over a Pulsar cluster. Made by `open_engine`."""

    promises = Promises(
        checks_records=True,
        durable=True,
        upkeep_on_request=False,
        remembers_producers=False,
        append_time_of_caller=False,
        exact_sizes=False,
        orders_producers=False,
    )
    directory = None

    topics: PulsarTopics

    def __init__(
        self,
        client: Client,
        admin: Admin,
        policy: Callable[[TopicInfo], LogPolicy],
        settings: Settings,
        answers: Answers | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        self.context = context = PulsarContext(client, admin, settings)
        self.loop = context.loop
        self.client = client
        self.waiting = waiting
        """Called with what the start waits for, where it has to."""
        self.admin = admin
        self.settings = settings
        self.cluster_id = ""
        self.cache = TailCache(settings.cache_bytes)
        self.read_ahead = ReadAhead(settings.read_ahead_bytes)
        self.attaching = Turns(_ATTACH_AT_ONCE)
        """Of the partitions that wait for it, so many attach at a time."""
        self.faults = context.faults
        self.numbering = numbering.make(settings.offsets, self.faults)
        self.topics = PulsarTopics(self)
        self.elsewhere = Elsewhere(self)
        self.compactions = Compactions(self)
        self.write_checks = WriteChecks(self)
        self.namespaces = (settings.namespace, settings.metadata_namespace)
        self.policy = policy
        """What the gateway makes of a topic's configs."""
        self._logs: dict[UUID, list[PulsarLog]] = {}
        self._queued = 0
        self._nothing_queued = asyncio.Event()
        self._nothing_queued.set()
        self._instance = secrets.token_hex(8)
        self.own_name = context.naming.own_topic
        self._state_listeners: list[Callable[[], None]] = []
        self.presence = Presence(self)
        self._following: asyncio.Task[None] | None = None
        self._watches: list[Any] = []
        self._begin_raw: set[UUID] = set()
        self._remembered: dict[UUID, tuple[Mapping[str, str], dict[tuple[str, int], int]]] = {}
        """What properties say of partitions, with the properties that say it."""
        self._entry_size_limits: dict[UUID, EntrySizeLimit] = {}
        self._gateways = Gateways(
            client,
            admin,
            context.naming.brokers_topic,
            self._announced,
            self.faults,
            answers,
        )
        self._ids = ProducerIds(client, self.numbering, f"{self.own_name}-partition-0", f"kop-ids-{self._instance}")
        self.upkeep = Upkeep(self)

    # --- for handlers and coordinators: see kop.storage.base.Engine

    def log(self, topic_id: UUID, partition: int) -> PulsarLog | None:
        """The log of a partition, or None; the same object each time."""
        logs = self._logs.get(topic_id)
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    async def allocate_producer_ids(self, count: int) -> int:
        """Reserve `count` producer ids; returns the first."""
        if self.context.closed:
            raise BackendError("the storage engine is closed")
        try:
            return await self._ids.take(count)
        except PulsarError as error:
            raise self.faults.refused(error, "requests", "cannot reserve producer ids") from error

    async def get_state(self, key: str) -> str | None:
        """A small durable value, or None."""
        try:
            if self._gateways.own is None:  # while the gateway starts nobody would ask again
                properties = await self._tried("read a setting", self.own_properties)
            else:
                properties = await self.own_properties()
            return properties.get(STATE_PREFIX + key)
        except PulsarError as error:
            raise self.faults.refused(error, "requests", "cannot read a setting") from error

    async def put_state(self, key: str, value: str | None) -> None:
        """Set or remove such a value."""
        try:
            if value is None:
                await self.admin.remove_property(self.own_name, STATE_PREFIX + key)
            else:
                await self.admin.set_properties(self.own_name, {STATE_PREFIX + key: value})
        except PulsarError as error:
            raise self.faults.refused(error, "requests", "cannot keep a setting") from error
        self.announce(self.own_name)

    def on_state(self, callback: Callable[[], None]) -> None:
        """Call `callback` when another gateway has changed such a value."""
        self._state_listeners.append(callback)

    @property
    def brokers(self) -> Sequence[LiveBroker]:
        """The live brokers, as `members.py` sees them."""
        return self._gateways.brokers

    def names(self, full_name: str) -> bool:
        """Whether this gateway is the one to give somebody else's topic an id."""
        brokers, own = self._gateways.brokers, self._gateways.own
        return own is None or not brokers or brokers[crc32(full_name.encode()) % len(brokers)].node_id == own.node_id

    @property
    def brokers_fresh(self) -> bool:
        """Whether `brokers` is of these last seconds."""
        return self._gateways.fresh

    def on_brokers(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of `brokers`."""
        self._gateways.on_change(callback)

    async def join(self, broker: LiveBroker) -> None:
        """Become one of the gateways; BROKER_ID_NOT_REGISTERED where the id is taken."""
        try:
            await self._tried("join the gateways", lambda: self._gateways.join(broker))
        except PulsarError as error:
            raise self.faults.refused(error, "requests", "cannot join the gateways") from error

    @property
    def healthy(self) -> str | None:
        """None while Pulsar answers, else what it last said."""
        return "the storage engine is closed" if self.context.closed else self.upkeep.failure

    def entry_size_limit(self, topic_id: UUID) -> EntrySizeLimit:
        """How large an entry a topic takes; one object for all of its partitions."""
        limit = self._entry_size_limits.get(topic_id)
        if limit is None:

            async def ask() -> int | None:
                return await self.admin.get_max_message_size(self.topics.pulsar(topic_id).full_name, applied=True)

            limit = self._entry_size_limits[topic_id] = EntrySizeLimit(self.loop.time, ask, self.spawn)
        return limit

    def policies_changed(self) -> None:
        """The broker's defaults changed: the logs take them over."""
        for topic in self.topics.all():
            self.update_logs(topic, self.topics.pulsar(topic.topic_id))

    async def close(self) -> None:
        """Wait for what was taken, let go of everything. Appends after it fail."""
        if self.context.closed:
            return
        self.context.closed = True
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._nothing_queued.wait()
        except TimeoutError:
            log.warning("batches of %d bytes are given up: Pulsar did not answer in time", self._queued)
        await self.upkeep.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._gateways.close()
        await self.elsewhere.close()
        await self.topics.close()
        for watch in self._watches:
            await watch.close()
        await asyncio.gather(*(one.close() for one in self.logs()), return_exceptions=True)
        await self.presence.close()
        await self.context.wait_for_work()
        await self.client.close()
        await self.admin.close()

    # --- for the rooms of this engine

    def full_name(self, name: str, internal: bool) -> str:
        """Pulsar's name of a topic; see `TopicNaming.full_name`."""
        return self.context.naming.full_name(name, internal)

    def kafka_name(self, full_name: str) -> tuple[str, bool] | None:
        """Name and whether it is internal; see `TopicNaming.kafka_name`."""
        return self.context.naming.kafka_name(full_name)

    async def own_properties(self) -> Mapping[str, str]:
        """Of the gateway's own topic. PulsarError."""
        return (await self.admin.partitioned_metadata(self.own_name)).properties

    @property
    def producer_naming(self) -> ProducerNaming:
        """Names of the Pulsar producers of this gateway. For use after the start, which reads the cluster id."""
        return ProducerNaming(self.cluster_id, self._instance)

    def announce(self, full_name: str) -> None:
        """A topic's properties changed: the other gateways have to look."""
        self._gateways.announce(full_name)

    def _announced(self, names: Sequence[str]) -> None:
        if self.own_name in names:
            for callback in self._state_listeners:
                callback()
        self.topics.watched(None, names, ())

    async def maintain(self, now_ms: int) -> None:
        """Nothing to do: Pulsar takes whole ledgers by its own clock, and is told from time to time to compact."""

    def collect(self) -> Iterable[Metric]:
        """What went wrong between gateway and Pulsar, and what no compaction has seen."""
        faults = counter_family("kop_pulsar_faults", "What went wrong between gateway and Pulsar.", ["fault"])
        for what, times in self.counts.items():
            faults.add_metric([what], times)
        return faults, *self.compactions.collect()

    @property
    def counts(self) -> Mapping[str, int]:
        """What went wrong and how often, for the metrics."""
        return self.faults.counts

    def count(self, what: str) -> None:
        """One more of something that went wrong."""
        self.faults.count(what)

    def refusal(self, size: int) -> KopError | None:
        """Why a batch cannot be taken now."""
        if self.context.closed:
            return BackendError("the storage engine is closed")
        if self._queued + size > self.settings.max_queued_bytes:
            return BackendError("more is waiting for Pulsar than memory is given for")
        return None

    def queued(self, size: int, future: asyncio.Future[AppendResult]) -> None:
        """A batch was taken: it counts until its future ends."""
        self._queued += size
        self._nothing_queued.clear()

        def gone(_: object) -> None:
            self._queued -= size
            if not self._queued:
                self._nothing_queued.set()

        future.add_done_callback(gone)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run on the side; see `PulsarContext.spawn`."""
        self.context.spawn(work)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end even where the caller goes away; see `PulsarContext.finish`."""
        return await self.context.finish(work)

    async def apply_policies(self, topic: TopicInfo, known: PulsarTopic, before: TopicInfo | None = None) -> None:
        """Bring Pulsar's policies to what the topic's configs say."""
        old = None if before is None else self.policy(before)
        largest = self.client.max_message_size
        await policies.apply(
            self.admin, known.full_name, self.policy(topic), old, largest=largest, internal=topic.internal
        )

    def logs(self) -> list[PulsarLog]:
        """Every partition's log."""
        return [one for logs in self._logs.values() for one in logs]

    def update_logs(self, topic: TopicInfo, known: PulsarTopic) -> None:
        """A topic is new or changed."""
        logs = self._logs.setdefault(topic.topic_id, [])
        policy = self.policy(topic)
        for one in logs:
            one.topic, one.policy = topic, policy
        for index in range(len(logs), topic.partitions):
            logs.append(PulsarLog(self, topic, index, known.partition(index), policy))
        for one in logs:
            one.learn()

    def deleting(self, topic_id: UUID, *, undone: bool = False) -> None:
        """A topic is about to go: its readers and producers must not bring it back."""
        for one in self._logs.get(topic_id, ()):
            one.deleted = not undone

    def remove_logs(self, topic_id: UUID) -> None:
        """A topic is gone."""
        self._remembered.pop(topic_id, None)
        self._entry_size_limits.pop(topic_id, None)
        self.write_checks.forget(topic_id)
        self.presence.forget(topic_id)
        for one in self._logs.pop(topic_id, ()):
            self.presence.removed(one)
            one.remove()

    async def deduplicates(self, topic_id: UUID) -> None:
        """Before an idempotent producer is opened: see to it that the topic deduplicates. PulsarError."""
        await self.write_checks.deduplicates(topic_id)

    async def retains(self, topic_id: UUID) -> None:
        """Before any producer is opened: see to it that Pulsar keeps what is written. KopError, PulsarError."""
        await self.write_checks.retains(topic_id)

    async def begin_raw(self, topic_id: UUID) -> None:
        """Keep beside a topic that batches are stored as they came: Pulsar can never compact it any more."""
        if RAW_PROPERTY in self.topics.pulsar(topic_id).properties or topic_id in self._begin_raw:
            return
        self._begin_raw.add(topic_id)
        try:
            await self.topics.set_property(topic_id, RAW_PROPERTY, "true")
        finally:
            self._begin_raw.discard(topic_id)

    def writes_raw(self, one: PulsarLog) -> bool:
        """Whether a batch is to be stored as it came. That is kept beside the topic first: until then it is not."""
        if not one.policy.raw_entries:
            return False
        if RAW_PROPERTY in self.topics.pulsar(one.topic.topic_id).properties:
            return True
        self.spawn(self.begin_raw(one.topic.topic_id))
        return False

    def knows_all_producers(self, topic_id: UUID) -> bool:
        """True where Pulsar cannot have forgotten a producer yet: the topic is young, and deduplicated from the first.

        It forgets after 6 idle hours (brokerDeduplicationProducerInactivityTimeoutMinutes).
        """
        created = number(self.topics.pulsar(topic_id).properties, CREATED_PROPERTY, -1)
        return created >= 0 and time.time() - created / 1000 < _YOUNG_SECONDS

    def remembered(self, one: PulsarLog, what: str) -> int:
        """The largest number that a gateway kept beside a partition, or 0."""
        topic_id = one.topic.topic_id
        properties = self.topics.pulsar(topic_id).properties
        known = self._remembered.get(topic_id)
        if known is None or known[0] is not properties:
            known = self._remembered[topic_id] = properties, all_remembered(properties)
        return known[1].get((what, one.index), 0)

    async def remember(self, one: PulsarLog, what: str, value: int) -> None:
        """Keep a number beside a partition, for all gateways; of those that are kept the largest counts."""
        topic_id = one.topic.topic_id
        name = remembered(what, one.index, value)
        for _ in range(_REMEMBER_TRIES):
            await self.topics.set_property(topic_id, name, str(value))
            kept = await self.topics.properties_now(topic_id)
            largest = largest_remembered(kept, what, one.index)
            if largest >= value:
                break
        else:
            self.count("properties_not_kept")
            raise BackendError(f"Pulsar does not keep the property {name} of {one.topic.name}: clients try again")
        # Also what this gateway wrote, where another one has kept a larger number meanwhile.
        old = outdated(kept, what, one.index, largest)
        if old and remembered(what, one.index, largest) in kept:
            self.spawn(self.topics.remove_properties(topic_id, old))

    # --- open, upkeep

    async def start(self) -> None:
        """Read what is there and follow it. KopError with what to do where the cluster does not fit.

        What passes is tried again for a minute: brokers restart, topics move. An address where nobody answers is taken
        for a wrong one: that ends the start at once, as refused credentials do.
        """
        await self._tried("connect to Pulsar", self.client.start, answered=False)
        await self._tried("look for the namespace over REST", self._look_for_namespace, answered=False)
        await self._tried("make the namespace of the gateways", self._own_namespace)
        self.cluster_id = await self._tried("read the gateways' own topic", self._own_topic)
        await self._tried("take a block of producer ids", self._ids.start)
        await self._tried("agree on what offsets are made of", self._claim_numbering)
        await self._tried("list the topics", self.topics.load)
        for namespace in self.namespaces:
            watched = partial(self.topics.watched, namespace=namespace)
            self._watches.append(self.client.watch(namespace, f"{PERSISTENT}{namespace}/.*", watched))
        self._following = self.loop.create_task(self.topics.follow())
        self.upkeep.start()

    async def _tried(self, what: str, work: Callable[[], Awaitable[T]], *, answered: bool = True) -> T:
        """Do a step of the start. `answered`: somebody has answered at this address before."""

        def passes(error: BaseException) -> bool:
            cause = error.__cause__ if isinstance(error, KopError) else error
            if not isinstance(cause, PulsarError) or not cause.retriable:
                return False
            return answered or cause.code not in _NOBODY_ANSWERS

        return await retried(what, work, passes=passes, seconds=_START_SECONDS, waiting=self.waiting)

    async def _look_for_namespace(self) -> None:
        if not await self.admin.namespace_exists(self.settings.namespace):
            raise BackendError(
                f"namespace {self.settings.namespace} is not there: create it "
                f"(pulsar-admin namespaces create {self.settings.namespace}) or name another with kop.pulsar.namespace"
            )

    async def _own_namespace(self) -> None:
        if not await self.admin.namespace_exists(self.settings.metadata_namespace):
            try:
                await self.admin.create_namespace(self.settings.metadata_namespace)
            except PulsarError as error:
                if error.code != "Conflict":  # of gateways that start at once, one makes it
                    raise
        await self.admin.set_namespace_retention(self.settings.metadata_namespace, FOREVER)

    async def _own_topic(self) -> str:
        try:
            properties = await self.own_properties()
        except PulsarError as error:
            if error.code not in {"NotFound", "TopicNotFound"}:
                raise
            try:
                await self.admin.create_partitioned(self.own_name, 1, {ID_PROPERTY: str(new_uuid())})
            except PulsarError as raced:
                if raced.code != "Conflict":
                    raise
            properties = await self.own_properties()
        await self.admin.keep_when_idle(self.own_name)  # whoever made it may not have come so far
        cluster_id = id_of(properties)
        if cluster_id is None:
            raise BackendError(
                f"the property {ID_PROPERTY} of {self.own_name} is {properties.get(ID_PROPERTY)!r}, which is no id: it "
                "is the id of this cluster, and all gateways have to know the same one. Write it again (pulsar-admin "
                f"topics update-properties -p {ID_PROPERTY}=UUID); a running gateway tells it as cluster id, in base64"
            )
        return base64.urlsafe_b64encode(cluster_id.bytes).decode().rstrip("=")

    async def _claim_numbering(self) -> None:
        """All gateways on the same data give the same offsets: the first one says which, for good."""
        ours = self.numbering.claim
        properties = await self.own_properties()
        if OFFSETS_PROPERTY not in properties:
            await self.admin.set_properties(self.own_name, {OFFSETS_PROPERTY: ours})
            properties = (await self.admin.partitioned_metadata(self.own_name)).properties
        if (theirs := properties[OFFSETS_PROPERTY]) != ours:
            raise BackendError(
                f"offsets here are by {theirs}, as the first gateway on {self.settings.metadata_namespace} had it; "
                f"{ours} would give the same records others, and committed offsets would mean nothing. Set "
                f"kop.pulsar.offsets={theirs.partition('-')[0]}, or name another kop.pulsar.metadata.namespace"
            )


async def open_engine(
    service_url: str,
    admin_url: str,
    *,
    policy: Callable[[TopicInfo], LogPolicy],
    settings: Settings | None = None,
    access: Access | None = None,
    answers: Answers | None = None,
    waiting: Callable[[str], None] | None = None,
) -> PulsarEngine:
    """Connect to a cluster and read its topics. KopError with what to do where that cannot be.

    `answers` asks another gateway whether it serves Kafka clients; see `members.Gateways`. `waiting` is called with one
    line for each failure that is tried again.
    """
    access = access or Access()
    access.check(service_url, admin_url)
    auth, tls = access.credentials(), access.tls()
    client = Client(service_url, auth=auth, tls=tls)
    admin = Admin(admin_url, auth=auth, tls=tls)
    engine = PulsarEngine(client, admin, policy, settings or Settings(), answers, waiting)
    try:
        await engine.start()
    except PulsarError as error:
        await engine.close()
        raise kafka_error(error, f"cannot use Pulsar at {service_url} and {admin_url}") from error
    except BaseException:
        await engine.close()
        raise
    return engine
