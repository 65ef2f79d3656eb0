"""The engine over Apache Pulsar: puts client, admin, catalogue and logs together; opens and closes them.

Owns: `open_engine`, the settings, names in Pulsar, the logs by topic, producer ids, the gateway's own small values.
Must not know: what an entry holds, how offsets are found.

What is the gateway's own lies in one topic of the metadata namespace, `__kop`: its topic id is the cluster id, its
properties are the small values, and the index of its entries counts producer ids: each message is a block of them.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from kop.errors import BackendError, ErrorCode, KopError
from kop.pulsar_client import Client, Entry, PulsarError
from kop.pulsar_client.admin import FOREVER, Admin
from kop.records import transcode
from kop.records.batch import build, read_header
from kop.records.record import Record
from kop.storage.base import AppendResult, LogPolicy, Member, TopicInfo
from kop.storage.pulsar import policies
from kop.storage.pulsar.access import Access
from kop.storage.pulsar.errors import kafka_error
from kop.storage.pulsar.log import PulsarLog
from kop.storage.pulsar.members import TOPIC as MEMBERS_TOPIC
from kop.storage.pulsar.members import Gateways
from kop.storage.pulsar.presence import ID_PROPERTY, Presence
from kop.storage.pulsar.topics import CONFIGS_PROPERTY, CREATED_PROPERTY, PulsarTopic, PulsarTopics, new_uuid
from kop.storage.tail_cache import TailCache

_OWN_TOPIC: Final = "__kop"
_STATE: Final = "kop.state."
_BLOCK: Final = 1000
"""Producer ids that a message of our own topic stands for."""
_CLOSE_SECONDS: Final = 10.0
_YOUNG_SECONDS: Final = 3600.0
_PREFIX: Final = "persistent://"

INDEX_HELP: Final = (
    "the Pulsar brokers send no entry index, so there are no offsets. Add to broker.conf (or standalone.conf) and "
    "restart:\n"
    "  brokerEntryMetadataInterceptors=org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor,"
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor\n"
    "  exposingBrokerEntryMetadataToClientEnabled=true"
)

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be set of the engine over Pulsar. Sizes in bytes, times in seconds."""

    namespace: str = "public/default"
    """`tenant/namespace` whose topics Kafka clients see."""
    metadata_namespace: str = "public/kafka"
    """Where `__offsets` and the gateway's own topic lie."""
    cache_bytes: int = 64 << 20
    max_queued_bytes: int = 256 << 20
    idle_seconds: float = 10.0
    """After it a producer of an idempotent producer id is closed, so that another gateway may have its name."""
    list_seconds: float = 60.0
    """Time between full listings, which find what the watcher missed."""


class PulsarEngine:
    """An `Engine` over a Pulsar cluster. Made by `open_engine`."""

    topics: PulsarTopics

    def __init__(
        self, client: Client, admin: Admin, policy: Callable[[TopicInfo], LogPolicy], settings: Settings
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.client = client
        self.admin = admin
        self.settings = settings
        self.cluster_id = ""
        self.cache = TailCache(settings.cache_bytes)
        self.topics = PulsarTopics(self)
        self.namespaces = (settings.namespace, settings.metadata_namespace)
        self.counts: dict[str, int] = {}
        """What went wrong and how often, for the metrics."""
        self._policy = policy
        self._logs: dict[UUID, list[PulsarLog]] = {}
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._queued = 0
        self._nothing_queued = asyncio.Event()
        self._nothing_queued.set()
        self._failure: str | None = None
        self._instance = secrets.token_hex(4)
        self._own_name = f"{_PREFIX}{settings.metadata_namespace}/{_OWN_TOPIC}"
        self._blocks: list[int] = []
        self._state_listeners: list[Callable[[], None]] = []
        self.presence = Presence(self)
        self._background: list[asyncio.Task[None]] = []
        self._watches: list[Any] = []
        self._deduplicating: set[UUID] = set()
        self._gateways = Gateways(
            client, admin, f"{_PREFIX}{settings.metadata_namespace}/{MEMBERS_TOPIC}", self._announced
        )
        self._producer: Any = None

    # --- for handlers and coordinators: see kop.storage.base.Engine

    def log(self, topic_id: UUID, partition: int) -> PulsarLog | None:
        """The log of a partition, or None; the same object each time."""
        logs = self._logs.get(topic_id)
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    async def allocate_producer_ids(self, count: int) -> int:
        """Reserve `count` producer ids; returns the first."""
        if self._closed:
            raise BackendError("the storage engine is closed")
        blocks = -(-count // _BLOCK)
        if blocks == 1 and self._blocks:
            return self._blocks.pop()
        try:
            return await self._take_blocks(blocks)
        except PulsarError as error:
            raise kafka_error(error, "cannot reserve producer ids") from error

    async def get_state(self, key: str) -> str | None:
        """A small durable value, or None."""
        try:
            return (await self.admin.partitioned_metadata(self._own_name)).properties.get(_STATE + key)
        except PulsarError as error:
            raise kafka_error(error, "cannot read a setting") from error

    async def put_state(self, key: str, value: str | None) -> None:
        """Set or remove such a value."""
        try:
            if value is None:
                await self.admin.remove_property(self._own_name, _STATE + key)
            else:
                await self.admin.set_properties(self._own_name, {_STATE + key: value})
        except PulsarError as error:
            raise kafka_error(error, "cannot keep a setting") from error
        self.announce(self._own_name)

    def on_state(self, callback: Callable[[], None]) -> None:
        """Call `callback` when another gateway has changed such a value."""
        self._state_listeners.append(callback)

    @property
    def members(self) -> Sequence[Member]:
        """The live gateways, as `members.py` sees them."""
        return self._gateways.members

    @property
    def members_fresh(self) -> bool:
        """Whether `members` is of these last seconds."""
        return self._gateways.fresh

    def on_members(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of `members`."""
        self._gateways.on_change(callback)

    async def join(self, member: Member) -> None:
        """Become one of the gateways; BROKER_ID_NOT_REGISTERED where the id is taken."""
        try:
            await self._gateways.join(member)
        except PulsarError as error:
            raise kafka_error(error, "cannot join the gateways") from error

    @property
    def healthy(self) -> str | None:
        """None while Pulsar answers, else what it last said."""
        return "the storage engine is closed" if self._closed else self._failure

    def policies_changed(self) -> None:
        """The broker's defaults changed: the logs take them over."""
        for topic in self.topics.all():
            self.update_logs(topic, self.topics.pulsar(topic.topic_id))

    async def close(self) -> None:
        """Wait for what was taken, let go of everything. Appends after it fail."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._nothing_queued.wait()
        except TimeoutError:
            log.warning("batches of %d bytes are given up: Pulsar did not answer in time", self._queued)
        for task in self._background:
            task.cancel()
        await self._gateways.close()
        for watch in self._watches:
            await watch.close()
        logs = [one for logs in self._logs.values() for one in logs]
        await asyncio.gather(*(one.close() for one in logs), return_exceptions=True)
        await self.presence.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.client.close()
        await self.admin.close()

    # --- for the rooms of this engine

    def full_name(self, name: str, internal: bool) -> str:
        """Pulsar's name of a topic."""
        namespace = self.settings.metadata_namespace if internal else self.settings.namespace
        return f"{_PREFIX}{namespace}/{name}"

    def kafka_name(self, full_name: str) -> tuple[str, bool] | None:
        """Name and whether it is internal; None for what Kafka clients do not see."""
        namespace, _, local = full_name.removeprefix(_PREFIX).rpartition("/")
        if not full_name.startswith(_PREFIX) or not local:
            return None
        if namespace == self.settings.metadata_namespace:
            return None if local in {_OWN_TOPIC, MEMBERS_TOPIC} else (local, True)
        if namespace == self.settings.namespace:
            return None if local.startswith("__") else (local, False)
        return None

    def producer_name(self, producer_id: int) -> str:
        """Of the Pulsar producer for a Kafka producer id; -1: the gateway's own for plain batches."""
        return f"kop-pid-{producer_id}" if producer_id >= 0 else f"kop-gateway-{self._instance}"

    @property
    def leader_name(self) -> str:
        """Of the Pulsar producer that leads a log."""
        return f"kop-leader-{self._instance}"

    def announce(self, full_name: str) -> None:
        """A topic's properties changed: the other gateways have to look."""
        self._gateways.announce(full_name)

    def _announced(self, names: Sequence[str]) -> None:
        if self._own_name in names:
            for callback in self._state_listeners:
                callback()
        self.topics.watched(None, names, ())

    def count(self, what: str) -> None:
        """One more of something that went wrong."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def refusal(self, size: int) -> KopError | None:
        """Why a batch cannot be taken now."""
        if self._closed:
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
        """Run on the side."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.DEBUG if isinstance(error, PulsarError | KopError) else logging.ERROR
            log.log(level, "work on the side failed: %r", error, exc_info=error)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end even where the caller goes away."""
        if self._closed:
            work.close()
            raise BackendError("the storage engine is closed")
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def apply_policies(self, topic: TopicInfo, known: PulsarTopic, before: TopicInfo | None = None) -> None:
        """Bring Pulsar's policies to what the topic's configs say."""
        old = None if before is None else self._policy(before)
        await policies.apply(self.admin, known.full_name, self._policy(topic), old)

    def update_logs(self, topic: TopicInfo, known: PulsarTopic) -> None:
        """A topic is new or changed."""
        logs = self._logs.setdefault(topic.topic_id, [])
        policy = self._policy(topic)
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
        self.presence.forget(topic_id)
        for one in self._logs.pop(topic_id, ()):
            self.presence.removed(one)
            one.remove()

    async def deduplicates(self, topic_id: UUID) -> None:
        """See to it that a topic that was made elsewhere deduplicates: idempotent producers rest on it."""
        known = self.topics.pulsar(topic_id)
        if CONFIGS_PROPERTY in known.properties or topic_id in self._deduplicating:
            return
        if not await self.admin.get_deduplication(known.full_name, applied=True):
            log.info("deduplication is turned on for %s: an idempotent producer writes to it", known.full_name)
            await self.admin.set_deduplication(known.full_name, True)
            await policies.wait_for(lambda: self.admin.get_deduplication(known.full_name, applied=True), True)
        self._deduplicating.add(topic_id)

    def knows_all_producers(self, topic_id: UUID) -> bool:
        """True where Pulsar cannot have forgotten a producer yet: the topic is young, and deduplicated from the first.

        It forgets after 6 idle hours (brokerDeduplicationProducerInactivityTimeoutMinutes).
        """
        created = self.topics.pulsar(topic_id).properties.get(CREATED_PROPERTY)
        return created is not None and time.time() - int(created) / 1000 < _YOUNG_SECONDS

    def remembered(self, one: PulsarLog, what: str) -> int:
        """A number that a gateway kept beside a partition, or 0."""
        return int(self.topics.pulsar(one.topic.topic_id).properties.get(f"kop.{what}.{one.index}", "0"))

    async def remember(self, one: PulsarLog, what: str, value: int) -> None:
        """Keep a number beside a partition, for all gateways."""
        await self.topics.set_property(one.topic.topic_id, f"kop.{what}.{one.index}", str(value))

    # --- open, upkeep

    async def start(self) -> None:
        """Read what is there and follow it. KopError with what to do where the cluster does not fit."""
        await self.client.start()
        await self._namespaces()
        self.cluster_id = await self._own_topic()
        self._blocks.append(await self._take_blocks(1))
        await self.topics.load()
        for namespace in self.namespaces:
            self._watches.append(self.client.watch(namespace, f"{_PREFIX}{namespace}/.*", self.topics.watched))
        self._background = [
            self.loop.create_task(self.topics.follow()),
            self.loop.create_task(self._upkeep()),
        ]

    async def _namespaces(self) -> None:
        if not await self.admin.namespace_exists(self.settings.namespace):
            raise BackendError(
                f"namespace {self.settings.namespace} is not there: create it "
                f"(pulsar-admin namespaces create {self.settings.namespace}) or name another with kop.pulsar.namespace"
            )
        if not await self.admin.namespace_exists(self.settings.metadata_namespace):
            await self.admin.create_namespace(self.settings.metadata_namespace)
        await self.admin.set_namespace_retention(self.settings.metadata_namespace, FOREVER)

    async def _own_topic(self) -> str:
        try:
            properties = (await self.admin.partitioned_metadata(self._own_name)).properties
        except PulsarError as error:
            if error.code not in {"NotFound", "TopicNotFound"}:
                raise
            try:
                await self.admin.create_partitioned(self._own_name, 1, {ID_PROPERTY: str(new_uuid())})
            except PulsarError as raced:
                if raced.code != "Conflict":
                    raise
            await self.admin.keep_when_idle(self._own_name)
            properties = (await self.admin.partitioned_metadata(self._own_name)).properties
        return base64.urlsafe_b64encode(UUID(properties[ID_PROPERTY]).bytes).decode().rstrip("=")

    async def _take_blocks(self, blocks: int) -> int:
        """Write messages to our own topic; their index, which the broker gives once, is the number of a block."""
        partition = f"{self._own_name}-partition-0"
        if self._producer is None:
            self._producer = await self.client.open_producer(partition, name=f"kop-ids-{self._instance}")
        batch = build([Record(index, 0, None, b"") for index in range(blocks)])
        sequence = getattr(self, "_id_sequence", 0)
        self._id_sequence = sequence + blocks
        (entry,) = transcode.to_entries(
            batch,
            read_header(batch),
            producer_name=self._producer.name,
            sequence_base=sequence,
            publish_time=int(time.time() * 1000),
            max_size=self.client.max_message_size,
        )
        position = await self._producer.send(
            entry.metadata,
            entry.payload,
            sequence_id=sequence,
            highest_sequence_id=sequence + blocks - 1,
            num_messages=blocks,
        )
        if position.ledger < 0:
            raise BackendError(
                "Pulsar took a new block of producer ids for a duplicate", ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        arrived: asyncio.Future[Entry] = self.loop.create_future()

        def on_entry(found: Entry) -> None:
            if not arrived.done():
                arrived.set_result(found)

        reader = await self.client.open_reader(partition, position, permits=1, on_entry=on_entry)
        try:
            async with asyncio.timeout(10):
                found = await arrived
        except TimeoutError:
            raise BackendError("Pulsar did not hand out a new block of producer ids") from None
        finally:
            await reader.close()
        if found.index is None:
            raise BackendError(INDEX_HELP)
        return (found.index - blocks + 1) * _BLOCK

    async def _upkeep(self) -> None:
        """Every few seconds: idle producers and readers, log starts, ends to remember; a full listing now and then."""
        listed = looked = self.loop.time()
        while True:
            await asyncio.sleep(min(self.settings.idle_seconds / 2, 5.0))
            now = self.loop.time()
            for logs in tuple(self._logs.values()):
                for one in logs:
                    if one.attached:
                        one.close_idle(now, self.settings.idle_seconds)
            try:
                await self.client.partitions(self._own_name)
                self._failure = None
                if now - looked > self.settings.list_seconds / 2:
                    looked = now
                    await self._look_at_starts()
                if now - listed > self.settings.list_seconds:
                    listed = now
                    await self.topics.load()
            except (PulsarError, KopError) as error:
                self._failure = f"Pulsar does not answer: {error}"
                log.warning("upkeep failed: %s; trying again", error)

    async def _look_at_starts(self) -> None:
        for logs in tuple(self._logs.values()):
            for one in logs:
                if one.attached and not one.deleted and one.policy.delete and one.log_start_offset < one.high_watermark:
                    try:
                        await one.refresh_start()
                    except KopError as error:
                        log.warning("cannot look at the start of %s: %s", one.title, error)


async def open_engine(
    service_url: str,
    admin_url: str,
    *,
    policy: Callable[[TopicInfo], LogPolicy],
    settings: Settings | None = None,
    access: Access | None = None,
) -> PulsarEngine:
    """Connect to a cluster and read its topics. KopError with what to do where that cannot be."""
    access = access or Access()
    auth, tls = access.credentials(), access.tls()
    client = Client(service_url, auth=auth, tls=tls)
    admin = Admin(admin_url, auth=auth, tls=tls)
    engine = PulsarEngine(client, admin, policy, settings or Settings())
    try:
        await engine.start()
    except PulsarError as error:
        await engine.close()
        raise kafka_error(error, f"cannot use Pulsar at {service_url} and {admin_url}") from error
    except BaseException:
        await engine.close()
        raise
    return engine
