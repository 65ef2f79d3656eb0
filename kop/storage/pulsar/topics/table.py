"""The table of topics in Pulsar: those of the home namespace, internal ones, and those of other namespaces in use.

Owns: a topic's name in Pulsar and in Kafka, its id, the properties that hold it, and how changes by others are seen.
Must not know: entries, offsets.

A topic's id and its Kafka configs lie in the Pulsar topic's properties, written in the same request that makes it. A
topic that somebody else made gets an id when it is first seen. The watcher tells of creation, deletion and growth; a
slow full listing finds what it missed and configs changed by another broker.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from kop import background, clock
from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import PulsarError
from kop.pulsar_client.backoff import Backoff
from kop.pulsar_client.errors import NOT_THERE
from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.pulsar.cluster.broker_registry import BrokerRegistry
from kop.storage.pulsar.cluster.cluster_topic import ClusterTopic
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, Refused, kafka_error
from kop.storage.pulsar.layout import (
    ABANDONED_SECONDS,
    CONFIGS_PROPERTY,
    CREATED_PROPERTY,
    DELETING_PROPERTY,
    ID_PROPERTY,
    NAME_PROPERTY,
    RAW_PROPERTY,
    UNFINISHED_PROPERTY,
    PulsarTopic,
    configs_of,
    id_of,
    is_copied,
    may_be_pulsars,
    repaired,
    topic_of,
)
from kop.storage.pulsar.partition.log_table import LogTable
from kop.storage.pulsar.topics import policies
from kop.storage.pulsar.topics.foreign import ForeignTopics
from kop.storage.pulsar.topics.ids import TopicIds
from kop.storage.pulsar.topics.strays import StrayPartitions
from kop.storage.topic_table import TopicTable, new_uuid

MAKER_SECONDS: Final = 15.0
"""The seconds for which loading a partition waits for the broker that makes its topic."""
SEEN_SECONDS: Final = 5.0
"""The seconds for which a topic that another broker has made may stay unseen."""
_AT_ONCE = 16
"""The number of topics that are changed, and of those that are looked at, side by side."""
_RETRIES_AT_ONCE = 4
SCANNED_A_LISTING: Final = 100
"""The number of topics that are looked at in each listing although nothing tells of a change: 10,000 take a hundred
listings.
"""
FIRST_SECONDS: Final = 60.0
"""The seconds for which a broker that starts waits for topics that cannot be read."""
FRESH_SECONDS: Final = 30.0
RETRY_FIRST: Final = 1.0
RETRY_MOST: Final = 60.0
_PARTINGS: Final = 5
_MEND: Final[Mapping[str, str]] = MappingProxyType(
    {
        ID_PROPERTY: "; it is written again",
        CONFIGS_PROPERTY: "; altering the topic's configs by a Kafka client writes it again, or remove it "
        "(pulsar-admin topics remove-properties)",
    }
)
"""The advice for operators about each property that does not parse."""
_LOOK_AGAIN = (0.2, 1.0, 5.0)
"""The seconds after a partition was removed at which its topic is looked at."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class PulsarTopics(TopicTable):
    """The table of topics in Pulsar, over its admin API."""

    def __init__(
        self,
        context: PulsarContext,
        cluster_topic: ClusterTopic,
        brokers: BrokerRegistry,
        logs: LogTable,
        policy: Callable[[TopicInfo], LogPolicy],
        strays: StrayPartitions,
    ) -> None:
        super().__init__(clock.wall_ms())  # so that the version grows over restarts, too
        self._context = context
        self._brokers = brokers
        self._logs = logs
        self._policy = policy
        self._strays = strays
        self._pulsar: dict[UUID, PulsarTopic] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changes = asyncio.Semaphore(_AT_ONCE)
        self._looks = asyncio.Semaphore(_AT_ONCE)
        self._retries = asyncio.Semaphore(_RETRIES_AT_ONCE)
        """The bound on topics that are read at a time although they could not be read last time."""
        self._ids = TopicIds(context.admin, brokers.is_chosen)
        self._loaded = False
        self._awaited: set[str] = set()
        """Pulsar's names of topics of the first listing that were not looked at yet."""
        self._being_made: dict[UUID, asyncio.Task[None]] = {}
        """The waits for the brokers that make new topics, by the topics' ids."""
        self._unread: dict[str, Backoff] = {}
        """Pulsar's names of topics that could not be read, with the waits before they are tried again."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._passed_over: set[str] = set()
        """Topics of the two namespaces that are Pulsar's own."""
        self._scanned = 0
        self._listed_at = float("-inf")
        """The loop's time at which the last listing began."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: set[str] = set()
        """Pulsar's names of topics that the watcher has named, and that were not looked at yet."""
        self._wake = asyncio.Event()
        self._foreign = ForeignTopics(context, cluster_topic, self, brokers.announce)

    @property
    def namespace(self) -> str:
        """The namespace of topics without one in their names."""
        return self._context.naming.namespace

    async def find(self, names: Collection[str]) -> None:
        """Look for topics of other namespaces that are not known, and look again at all other ones of these names.
        Afterwards `get` knows those that exist, and `missing` has the error of others.
        """
        others = {name for name in names if "/" in name and self.get(name) is None}
        again = {self._context.naming.full_name(name, False) for name in set(names) - others}
        await asyncio.gather(self._look_at(again), self._foreign.find(others))

    def is_listed(self, namespace: str) -> bool:
        """Return true if the namespace is the home one, or another whose topics were listed in the last 5 seconds."""
        return namespace == self.namespace or self._foreign.is_listed(namespace)

    async def list_namespace(self, namespace: str) -> None:
        """Find all topics of another namespace that are not known, so that they become known. BackendError if it cannot
        be listed.
        """
        await self._foreign.list_namespace(namespace)

    def missing(self, name: str) -> ErrorCode | None:
        """Return the error for a topic that is not known: LEADER_NOT_AVAILABLE if it may exist and could not be read;
        of a topic of another namespace, the error of the last 5 seconds; else None.
        """
        full_name = self._context.naming.full_name(name, False)
        if full_name in self._unread or full_name in self._awaited:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return self._foreign.missing(name)

    def pulsar(self, topic_id: UUID) -> PulsarTopic:
        """Return the Pulsar side of a topic; UNKNOWN_TOPIC_ID if it is gone."""
        topic = self._pulsar.get(topic_id)
        if topic is None:
            raise PeerError("there is no such topic", ErrorCode.UNKNOWN_TOPIC_ID)
        return topic

    def update_logs(self) -> None:
        """Give every log its policy again, after the broker's defaults changed."""
        for topic in self.all():
            self._logs.update(topic, self.pulsar(topic.topic_id).partition)

    # --- changes by this broker

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False
    ) -> TopicInfo:
        """Make a partitioned topic, with its policies in force, and tell the other brokers; an `internal` one is in the
        metadata namespace. TOPIC_ALREADY_EXISTS if it exists; other errors are KopErrors.

        If only the policies cannot be set for now, the topic may stay, and they are set in the background: the error is
        raised then, too.
        """
        topic = TopicInfo(name, new_uuid(), partitions, MappingProxyType(dict(configs)), internal)
        return await self._change(self._context.naming.full_name(name, internal), partial(self._create, topic))

    async def delete(self, topic_id: UUID) -> None:
        """Delete a topic in Pulsar with its records and subscriptions, remove its logs, and tell the other brokers.
        UNKNOWN_TOPIC_ID if it is not known; KopError if Pulsar refuses it, and the topic stays.
        """
        await self._change(self.pulsar(topic_id).full_name, partial(self._delete, topic_id))

    async def grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        """Raise the number of partitions to `partitions`, tell the other brokers, and return the topic as it is then.
        INVALID_PARTITIONS if it would not grow, or if the topic is not partitioned.
        """
        return await self._change(self.pulsar(topic_id).full_name, partial(self._grow, topic_id, partitions))

    async def set_configs(self, topic_id: UUID, configs: Mapping[str, str], named: Collection[str] = ()) -> TopicInfo:
        """Replace the topic's own configs, in Pulsar's properties and policies, tell the other brokers, and return the
        topic as it is then; in force when this returns. KopError if Pulsar refuses it.

        `named` are the configs that the client named: their policies are set again if Pulsar's own tools have changed
        them. INVALID_CONFIG if a topic that may hold batches as they came is to be compacted.
        """
        full_name = self.pulsar(topic_id).full_name
        wanted = MappingProxyType(dict(configs))
        return await self._change(full_name, partial(self._set_configs, topic_id, wanted, named))

    async def set_property(self, topic_id: UUID, key: str, value: str) -> None:
        """Set a property of the topic in Pulsar, in which brokers keep a small value, and in memory, and tell the other
        brokers. KopError if Pulsar refuses it.
        """
        known = self.pulsar(topic_id)
        await self._ask("cannot keep a property", self._context.admin.set_properties(known.full_name, {key: value}))
        now = self._pulsar.get(topic_id)
        if now is not None:  # the properties that others set meanwhile stay
            self._pulsar[topic_id] = replace(now, properties={**now.properties, key: value})
            self._brokers.announce(known.full_name)

    async def properties_now(self, topic_id: UUID) -> Mapping[str, str]:
        """Return the properties of a topic as they are in Pulsar at this moment; what memory has of them stays.
        KopError if Pulsar refuses it.
        """
        call = self._ids.metadata(self.pulsar(topic_id).full_name)
        return (await self._ask("cannot read properties", call))[1]

    async def remove_properties(self, topic_id: UUID, keys: Collection[str]) -> None:
        """Remove properties of a topic in Pulsar that mean nothing any more; memory keeps them until the next look.
        KopError if Pulsar refuses it.
        """
        known = self.pulsar(topic_id)
        for key in keys:
            await self._ask("cannot remove a property", self._context.admin.remove_property(known.full_name, key))

    async def _change(self, full_name: str, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make one change of a topic at a time, to its end even if the caller is cancelled: memory has to follow
        Pulsar. Return its result.
        """
        return await self._context.finish(self.in_turn(full_name, change))

    async def in_turn(
        self, full_name: str, work: Callable[[], Coroutine[Any, Any, T]], gate: asyncio.Semaphore | None = None
    ) -> T:
        """Run `work` on the topic `full_name` while this broker neither makes, changes, deletes nor reads it; return
        its result. `gate` bounds the topics at work side by side: without it, 16 changes.
        """
        turn = self._turns.setdefault(full_name, asyncio.Lock())
        async with turn, gate or self._changes:
            return await work()

    async def _ask(self, doing: str, call: Coroutine[Any, Any, T]) -> T:
        with self._context.faults.refusing(Refused.TOPIC_CHANGES, doing):
            return await call

    async def _create(self, topic: TopicInfo) -> TopicInfo:
        self._check_new(topic)
        full_name = self._context.naming.full_name(topic.name, topic.internal)
        if full_name in self._unread or full_name in self._awaited:
            text = f"topic {topic.name!r} may be there, and could not be read from Pulsar yet"
            raise KopError(text, ErrorCode.LEADER_NOT_AVAILABLE)
        if "/" not in topic.name:
            return await self._create_as(topic, full_name)
        self._foreign.check(topic.name)
        try:
            return await self._create_as(topic, full_name)
        except KopError as error:
            self._foreign.refused(topic.name, error)
            raise

    async def _create_as(self, topic: TopicInfo, full_name: str) -> TopicInfo:
        properties = {
            ID_PROPERTY: str(topic.topic_id),
            NAME_PROPERTY: full_name,
            CONFIGS_PROPERTY: json.dumps(dict(topic.configs)),
            CREATED_PROPERTY: str(self._context.admin.now_ms()),
            UNFINISHED_PROPERTY: "true",
        }
        if self._policy(topic).raw_entries:
            properties[RAW_PROPERTY] = "true"
        doing = f"cannot create topic {topic.name!r}"
        await self._ask(doing, self._create_partitioned(full_name, topic.partitions, properties))
        known = PulsarTopic(full_name, False, properties)
        refused: KopError | None = None
        try:
            await self._set_policies(topic, known)
            known = _finished(known)
        except PulsarError as error:
            refused = self._context.faults.refused(error, Refused.TOPIC_CHANGES, doing)
            if not error.retriable and await self._taken_back(full_name):
                raise refused from error
        except KopError as error:
            if await self._taken_back(full_name):
                raise
            refused = error
        if refused is not None:
            level = logging.INFO if refused.told else logging.WARNING
            log.log(
                level, "topic %s has not all of its policies yet, they are set later: %s", topic.name, refused.message
            )
            self._start(self._finish(topic.topic_id, full_name))
        self._put(None, topic, known)
        self._brokers.announce(full_name)
        if refused is not None:
            raise refused
        return topic

    async def _finish(self, topic_id: UUID, full_name: str) -> None:
        """Set the policies of a new topic as soon as Pulsar lets this broker, and tell the other brokers. It tries for
        60 seconds; from then on others may do it, too.
        """

        async def finish() -> None:
            if await self._set_missing_policies(topic_id):
                self._brokers.announce(full_name)

        end = self._context.loop.time() + ABANDONED_SECONDS
        backoff = Backoff(0.5, 5.0)
        while self._context.loop.time() < end:
            await asyncio.sleep(backoff.next())
            if topic_id not in self._pulsar:
                return  # it was deleted
            try:
                await self.in_turn(full_name, finish)
                return
            except (PulsarError, KopError) as error:
                log.info("topic %s has not all of its policies yet: %s; trying again", full_name, error)

    async def until_made(self, topic_id: UUID) -> None:
        """Wait until a new topic has its policies: nobody may load its partitions before. LEADER_NOT_AVAILABLE if that
        takes more than 15 seconds.

        See docs/quirks.md, "Policies that are set while partitions load block two threads for ever".
        """
        if not self._is_being_made(topic_id):
            return
        waiting = self._being_made.get(topic_id)
        if waiting is None:
            waiting = self._being_made[topic_id] = self._start(self._await_maker(topic_id))
            waiting.add_done_callback(lambda _: self._being_made.pop(topic_id, None))
        await asyncio.wait({waiting})
        if self._is_being_made(topic_id):
            text = f"topic {self._by_id[topic_id].name!r} has not all of its policies yet; clients try again"
            raise BackendError(text, ErrorCode.LEADER_NOT_AVAILABLE)

    def _is_being_made(self, topic_id: UUID) -> bool:
        known = self._pulsar.get(topic_id)
        return known is not None and known.is_being_made(self._context.admin.now_ms())

    async def _await_maker(self, topic_id: UUID) -> None:
        end = self._context.loop.time() + MAKER_SECONDS
        backoff = Backoff(0.05, 0.5)
        while self._is_being_made(topic_id) and self._context.loop.time() < end:
            await asyncio.sleep(backoff.next())
            if topic_id in self._pulsar:
                await self.look_for({self._pulsar[topic_id].full_name})

    async def _taken_back(self, full_name: str) -> bool:
        """Delete a topic again that cannot get its policies: without retention Pulsar drops what no subscription holds.
        Return true if it is gone.

        False if it stays, because another broker has found it meanwhile: records that it stored must not be lost.
        """
        try:
            await self._context.admin.delete_partitioned(full_name, force=False)
        except PulsarError as error:
            return error.code == "NotFound"
        return True

    async def _set_policies(self, topic: TopicInfo, known: PulsarTopic) -> None:
        """Set all policies of a new topic, and note in Pulsar that it has them. PulsarError if Pulsar refuses it."""
        await self._apply_policies(topic, known)
        await self._context.admin.remove_property(known.full_name, UNFINISHED_PROPERTY)

    async def _set_missing_policies(self, topic_id: UUID) -> bool:
        """Set the policies of a topic that is known to lack some, by its configs of now, in its turn. Return true if
        that was done, false if it is gone or has them. PulsarError if Pulsar refuses it.
        """
        topic, known = self._by_id.get(topic_id), self._pulsar.get(topic_id)
        if topic is None or known is None or UNFINISHED_PROPERTY not in known.properties:
            return False
        await self._set_policies(topic, known)
        now = self._pulsar.get(topic_id)
        if now is not None:  # the properties that others set meanwhile stay
            self._pulsar[topic_id] = _finished(now)
        return now is not None

    async def _apply_policies(
        self, topic: TopicInfo, known: PulsarTopic, before: TopicInfo | None = None, named: Collection[str] = ()
    ) -> None:
        """Set Pulsar's policies of a topic by its configs, and wait until they are in force: those that differ from
        `before` (None: all) or stand for the configs `named`. PulsarError if Pulsar refuses that.
        """
        await policies.apply(
            self._context.admin,
            known.full_name,
            self._policy(topic),
            None if before is None else self._policy(before),
            named=named,
            largest=self._context.client.max_message_size,
            internal=topic.internal,
        )

    async def _finish_abandoned(self) -> None:
        """Set the policies of topics that have not all of them after 60 seconds, since their broker died before it set
        them, or got no answer: else Pulsar would drop records. A failure is logged, and the next call tries again.
        """
        for topic_id, known in list(self._pulsar.items()):
            if UNFINISHED_PROPERTY not in known.properties or self._is_being_made(topic_id):
                continue
            try:
                async with self._turns.setdefault(known.full_name, asyncio.Lock()):
                    if await self._set_missing_policies(topic_id):
                        log.info(
                            "topic %s had not all of its policies, since the broker that made it died or Pulsar did "
                            "not answer it: they are set now",
                            known.full_name,
                        )
            except (PulsarError, KopError) as error:
                if self._context.faults.takes(error):
                    continue
                log.warning(
                    "retention and other policies of topic %s cannot be set yet: %s; trying again",
                    known.full_name,
                    error,
                )

    async def _create_partitioned(self, full_name: str, partitions: int, properties: Mapping[str, str]) -> None:
        try:
            await self._context.admin.create_partitioned(full_name, partitions, properties)
        except PulsarError as error:
            # Pulsar takes a partition that was re-created after the deletion for the whole topic.
            if error.code != "Conflict":
                raise
            if not await self._strays.clear(full_name):
                await self._look_until_seen(full_name)  # another broker was faster: whoever hears of that finds it
                raise
            try:
                await self._context.admin.create_partitioned(full_name, partitions, properties)
            except PulsarError:
                await self._strays.complete(full_name)
                raise

    async def _look_until_seen(self, full_name: str) -> None:
        """Look at a topic that Pulsar says exists until it is in the table, for 5 seconds at most: Pulsar may say so
        before it shows the topic.
        """
        end = self._context.loop.time() + SEEN_SECONDS
        backoff = Backoff(0.05, 0.5)
        await self._look(full_name)
        while all(known.full_name != full_name for known in self._pulsar.values()) and self._context.loop.time() < end:
            await asyncio.sleep(backoff.next())
            await self._look(full_name)

    async def _delete(self, topic_id: UUID) -> None:
        topic = self._find(topic_id)
        known = self.pulsar(topic_id)
        self._logs.deleting(topic_id)
        admin = self._context.admin
        try:
            if known.plain:
                await admin.delete_plain(known.full_name)
            else:
                await admin.set_properties(known.full_name, {DELETING_PROPERTY: str(admin.now_ms())})
                await admin.delete_partitioned(known.full_name)
        except PulsarError as error:
            if error.code not in NOT_THERE:
                self._logs.deleting(topic_id, undone=True)
                if not known.plain:
                    with suppress(PulsarError):  # it is obeyed for a minute only
                        await admin.remove_property(known.full_name, DELETING_PROPERTY)
                doing = f"cannot delete topic {topic.name!r}"
                raise self._context.faults.refused(error, Refused.TOPIC_CHANGES, doing) from error
        self._remove(topic)
        self._brokers.announce(known.full_name)

    async def _grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        topic = self._find(topic_id)
        known = self.pulsar(topic_id)
        self._check_growth(topic, partitions)
        if known.plain:
            raise PeerError(
                f"topic {topic.name!r} is not partitioned in Pulsar: it cannot grow", ErrorCode.INVALID_PARTITIONS
            )
        doing = f"cannot add partitions to topic {topic.name!r}"
        await self._ask(doing, self._context.admin.grow(known.full_name, partitions))
        grown = replace(topic, partitions=partitions)
        self._put(topic, grown, self.pulsar(topic_id))  # the properties that others set meanwhile stay
        self._brokers.announce(known.full_name)
        return grown

    async def _set_configs(self, topic_id: UUID, configs: Mapping[str, str], named: Collection[str]) -> TopicInfo:
        topic = self._find(topic_id)
        known = self.pulsar(topic_id)
        changed = replace(topic, configs=configs)
        before, policy = self._policy(topic), self._policy(changed)
        if RAW_PROPERTY in known.properties and policy.compact and not before.compact:
            raise PeerError(
                f"topic {topic.name!r} has or had kop.entry.format=kafka: Pulsar finds no keys in such batches and "
                "cannot compact it, a new topic can be",
                ErrorCode.INVALID_CONFIG,
            )
        properties = {CONFIGS_PROPERTY: json.dumps(dict(configs))}
        if policy.raw_entries:
            properties[RAW_PROPERTY] = "true"
        doing = f"cannot change the configs of topic {topic.name!r}"
        await self._ask(doing, self._apply_policies(changed, known, before=topic, named=named))
        if properties.items() <= known.properties.items():
            return topic
        await self._ask(doing, self._context.admin.set_properties(known.full_name, properties))
        known = self.pulsar(topic_id)  # the properties that others set meanwhile stay
        known = replace(known, properties={**known.properties, **properties})
        self._put(topic, changed, known)
        self._brokers.announce(known.full_name)
        return changed

    # --- following the topics in Pulsar

    async def load(self) -> None:
        """List the namespaces, then look at topics that the listing shows as changed, and at 100 of the others in turn;
        the first time at all. Policies that a broker which died has not set are set, too.

        PulsarError if they cannot be listed. A topic that cannot be read keeps no other one away.
        """
        self._listed_at = self._context.loop.time()
        listed = await self._list()
        named = await self._foreign.named()
        self._passed_over &= listed.keys()
        if not self._loaded:
            await self._load_first(listed.keys() | named)
            return
        known = {topic.full_name: (topic_id, topic) for topic_id, topic in self._pulsar.items()}
        due = set(listed.keys() | named).difference(known, self._unread, self._passed_over)
        for name, (topic_id, topic) in known.items():
            there = listed.get(name)
            if there is None:
                if self._by_id[topic_id].name.count("/") == 0:
                    due.add(name)
            elif topic.plain != (there == 0) or there > self._by_id[topic_id].partitions:
                due.add(name)
        due.update(self._next_to_scan(sorted(known)))
        await self._look_at(due)
        await self._finish_abandoned()

    async def _load_first(self, names: Set[str]) -> None:
        """Look at every topic at the start. After 60 seconds, with a warning, this broker serves those that it has
        read; the others follow.
        """
        self._awaited = set(names)
        looks = self._start(self._look_at(names))
        await asyncio.wait({looks}, timeout=FIRST_SECONDS)
        if looks.done():
            await looks
            await self._finish_abandoned()
        else:
            self._context.faults.count(Fault.TOPICS_NOT_READ_AT_START)
            log.warning(
                "%d of %d topics have not been read from Pulsar within %.0f s: this broker begins without them, and "
                "clients are told to try again. See whether all Pulsar brokers answer",
                len(self._awaited),
                len(names),
                FIRST_SECONDS,
            )
        self._loaded = True

    def _next_to_scan(self, known: Sequence[str]) -> Sequence[str]:
        """Return the next 100 of the known topics, in turn, which are looked at although the listing shows no change:
        another broker may have failed to announce one, or pulsar-admin made one.
        """
        begin = self._scanned % max(len(known), 1)
        self._scanned = begin + SCANNED_A_LISTING
        return known[begin : begin + SCANNED_A_LISTING]

    async def look_for(self, full_names: Collection[str]) -> Mapping[str, PulsarError]:
        """Look at topics of these names, Pulsar's full ones, that may not be known, so that they become known; return
        those that could not be read, with their errors.
        """
        failed: dict[str, PulsarError] = {}
        if full_names:
            await self._look_at(full_names, failed)
        return failed

    async def differing_configs(self, topic_id: UUID) -> Mapping[str, str]:
        """Return the configs that say what Pulsar's policies of a topic are, where these differ from the topic's
        configs: they were set by pulsar-admin, or in its namespace. Empty for internal topics. KopError if Pulsar does
        not tell.
        """
        topic, known = self._find(topic_id), self.pulsar(topic_id)
        if topic.internal:
            return {}
        admin, largest = self._context.admin, self._context.client.max_message_size
        reading = policies.differing_configs(admin, known.full_name, self._policy(topic), largest=largest)
        return await self._ask(f"cannot read the policies of {topic.name!r}", reading)

    async def refresh(self, topic_id: UUID) -> None:
        """Look at one topic again: an answer of Pulsar does not fit it, or a broker may have changed it. Nothing is
        done if the topic is not known; KopError if it cannot be read.
        """
        if topic_id in self._pulsar:
            failed = await self.look_for({self._pulsar[topic_id].full_name})
            for error in failed.values():
                raise self._context.faults.refused(error, Refused.REQUESTS, "cannot read a topic") from error

    def watched(
        self, snapshot: Sequence[str] | None, added: Iterable[str], removed: Iterable[str], *, namespace: str = ""
    ) -> None:
        """Note the watcher's news, names of Pulsar's topics and partitions, to look at them soon. `snapshot`, if not
        None, has all names of `namespace`.
        """
        names = [*added, *removed]
        for name in map(topic_of, removed):
            for delay in _LOOK_AGAIN:
                self._context.loop.call_later(delay, self._look_again, name)
        if snapshot is not None:
            present = {topic_of(name) for name in snapshot}
            known = {topic.full_name for topic in self._pulsar.values() if f"://{namespace}/" in topic.full_name}
            names += known - present
            # Later snapshots follow a time in which nobody watched: any of the topics may have been made again.
            just_listed = self._context.loop.time() - self._listed_at < FRESH_SECONDS
            names += present - known - self._passed_over if just_listed else present
        self._dirty.update(map(topic_of, names))
        self._wake.set()

    def _look_again(self, name: str) -> None:
        """Have `follow` look at a topic soon. This is called some seconds after a partition was removed, too: when the
        watcher tells of that, the topic still exists.
        """
        self._dirty.add(name)
        self._wake.set()

    async def follow(self) -> None:
        """Look at the topics that the watcher or `_look_again` names, a moment later and in the background, until the
        caller cancels this.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0.02)  # one event comes for each partition
            names, self._dirty = self._dirty, set()
            # Nobody waits for these: a Pulsar broker that does not answer for one topic keeps no other one away.
            for name in names:
                self._start(self._look_at((name,)))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in the background, until it ends or the table is closed."""
        task = self._context.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End the background work of the table of topics."""
        await self._foreign.close()
        for timer in self._timers.values():
            timer.cancel()
        await background.cancel(*self._tasks)

    async def _list(self) -> dict[str, int]:
        """Return the topics of both namespaces by full name, with the number of partitions up to the last one that
        exists, 1 if none does; 0 for topics that are not partitioned. PulsarError if they cannot be listed.
        """
        partitions: dict[str, int] = {}
        for namespace in self._context.naming.namespaces:
            partitions |= dict.fromkeys(await self._context.admin.list_partitioned(namespace), 1)
            for name in await self._context.client.topics(namespace):
                base = topic_of(name)
                if base == name:
                    partitions.setdefault(name, 0)
                else:
                    partitions[base] = max(partitions.get(base, 0), int(name.rpartition("-")[2]) + 1)
        return {name: count for name, count in partitions.items() if self._context.naming.kafka_name(name) is not None}

    async def _look_at(self, names: Iterable[str], failed: dict[str, PulsarError] | None = None) -> None:
        """Compare each of Pulsar's topics with what is known of it, and take over what has changed. No failure of one
        keeps the others away, and none is raised.

        Topics that Pulsar does not let be read are put into `failed`; without it, and after other failures, they are
        tried again later.
        """

        async def look(name: str) -> None:
            gate = self._retries if name in self._unread else self._looks
            try:
                await self.in_turn(name, partial(self._look, name), gate=gate)
                self._was_read(name)
            except Exception as error:
                if failed is not None and isinstance(error, PulsarError):
                    failed[name] = error
                else:
                    self._not_read(name, error)
            self._awaited.discard(name)

        await asyncio.gather(*(look(name) for name in sorted(names)))

    def _not_read(self, name: str, error: Exception) -> None:
        """Keep the old values of a topic that cannot be read, count and log that, and plan to read it again: after a
        second at first, a minute at most.
        """
        if not self._context.faults.takes(error) and not self._foreign.unreadable(name, error):
            self._context.faults.count(Fault.TOPICS_NOT_READ_OWN)
            if isinstance(error, PulsarError):
                text = kafka_error(error, f"cannot read topic {name}").message
                self._context.faults.tell(("not read", name), f"{text}; trying again", "not read")
            else:
                background.tell(f"reading topic {name}", error, kind="reading a topic")
        wait = self._unread.get(name)
        if wait is None:
            wait = self._unread[name] = Backoff(RETRY_FIRST, RETRY_MOST)
            self._version += 1  # other answers about it, from now on
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        self._timers[name] = self._context.loop.call_later(wait.next(), self._look_again, name)

    def _was_read(self, name: str) -> None:
        if self._unread.pop(name, None) is not None:
            self._version += 1
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    async def _look(self, full_name: str) -> None:
        """Compare one topic with what is known of it, and take over what has changed. Of two topics that carry one id,
        each as its own, the first by name keeps it, and the other one gets its own: somebody has written it to the
        other. PulsarError if it cannot be read.
        """
        for _ in range(_PARTINGS):
            read = await self._read(full_name)
            rival = None if read is None else self._rival(full_name, read[0].topic_id)
            if read is None or rival is None:
                self._enter_read(full_name, read)
                return
            topic_id = read[0].topic_id
            if rival.full_name < full_name:
                self._tell_of_copy(full_name, rival.full_name)
                await self._ids.give(full_name, read[1].plain, read[1].properties, topic_id)
            else:
                self._remove(self._by_id[topic_id])  # it is looked at at once, and gets an id of its own then
                self._look_again(rival.full_name)
        raise PulsarError(
            "Conflict", f"{full_name} has the id of another topic again whenever it is given its own", retriable=True
        )

    def _rival(self, full_name: str, topic_id: UUID) -> PulsarTopic | None:
        """Return another topic that has the same id in memory; None if there is none."""
        known = self._pulsar.get(topic_id)
        return None if known is None or known.full_name == full_name else known

    def _tell_of_copy(self, full_name: str, original: str) -> None:
        self._context.faults.count(Fault.TOPIC_SETTINGS_ID_COPIED)
        self._context.faults.tell(
            ("copied", full_name),
            f"{full_name} carries the {ID_PROPERTY} of {original}, from where its properties were copied: it gets an "
            "id of its own. Leave the properties that begin with kop. out when topics are cloned",
        )

    async def _read(self, full_name: str) -> tuple[TopicInfo, PulsarTopic] | None:
        named = self._context.naming.kafka_name(full_name)
        if named is None:
            return None
        name, internal = named
        before = self._known(full_name)
        try:
            partitions, raw = await self._ids.metadata(full_name)
            plain = partitions == 0
            if ID_PROPERTY not in raw and (internal or may_be_pulsars(full_name)):
                self._passed_over.add(full_name)
                return None  # Pulsar's own, such as __transaction_buffer_snapshot
            properties = await self._usable(full_name, plain, raw)
        except PulsarError as error:
            if error.code in NOT_THERE:
                return None
            raise
        if before is not None and (now := self._known(full_name)) is not None:
            # What this broker set meanwhile stays: the answer may be older.
            properties = {**properties, **dict(now.properties.items() - before.properties.items())}
        topic_id, configs = id_of(properties), configs_of(properties)
        if topic_id is None or configs is None:
            raise PulsarError(
                "BadAnswer", f"Pulsar does not show the id that was given to topic {full_name}", retriable=True
            )
        info = TopicInfo(name, topic_id, max(partitions, 1), MappingProxyType(configs), internal)
        return info, PulsarTopic(full_name, plain, properties)

    async def _usable(self, full_name: str, plain: bool, raw: Mapping[str, str]) -> Mapping[str, str]:
        """Return a topic's properties, mended if they do not parse, which is counted and logged, with an id of the
        topic's own, which is written to Pulsar if it is new. PulsarError if that fails.
        """
        known = self._known(full_name)
        before = {} if known is None else known.properties
        known_id = id_of(before)
        nameless = id_of(raw) is not None and NAME_PROPERTY not in raw
        if nameless and known_id is None:
            raise PulsarError(
                "UnreleasedFormat",
                f"an unreleased kop wrote {ID_PROPERTY} without {NAME_PROPERTY}. Set {NAME_PROPERTY}={full_name} "
                f"(pulsar-admin topics update-properties) to keep the id, or remove {ID_PROPERTY} (remove-properties): "
                "then the topic gets a new id, and committed offsets of the old one do not count",
                retriable=True,
            )
        if is_copied(raw, full_name):
            self._tell_of_copy(full_name, raw[NAME_PROPERTY])
        if is_copied(raw, full_name) or nameless:
            if known_id is None:
                raw = await self._ids.give(full_name, plain, raw, id_of(raw))
            else:
                await self._ids.write(full_name, known_id)
                _, raw = await self._ids.metadata(full_name)
        good, wrong = repaired(raw, before)
        for key in wrong:
            self._context.faults.count(Fault.TOPIC_SETTINGS_PROPERTY_NOT_PARSED)
            self._context.faults.tell(
                ("property", full_name, key),
                f"the property {key} of topic {full_name} does not parse: {raw[key]!r:.100}; "
                + ("its last good value is used" if key in good else "the topic is used as if it were not there")
                + _MEND.get(key, "; remove it (pulsar-admin topics remove-properties)"),
            )
        if ID_PROPERTY in wrong and known_id is not None:
            await self._ids.write(full_name, known_id)
        elif ID_PROPERTY not in good:
            good, _ = repaired(await self._ids.give(full_name, plain, raw), before)
        return good

    def _enter_read(self, full_name: str, read: tuple[TopicInfo, PulsarTopic] | None) -> None:
        """Put a topic as it was read into the table, with its logs; if Pulsar does not have it (`read` is None), or has
        another one of that name, the old one is removed with its logs.
        """
        named = self._context.naming.kafka_name(full_name)
        if named is None:
            return
        old = self._by_name.get(named[0])
        if old is not None and (read is None or read[0].topic_id != old.topic_id):
            self._remove(old)
            old = None
        if read is None:
            return
        topic, known = read
        if old is None or old != topic:
            self._put(old, topic, known)
        else:
            self._pulsar[topic.topic_id] = known
            self._logs.update(topic, known.partition)

    def _known(self, full_name: str) -> PulsarTopic | None:
        named = self._context.naming.kafka_name(full_name)
        topic = None if named is None else self._by_name.get(named[0])
        return None if topic is None else self._pulsar.get(topic.topic_id)

    # --- the table in memory

    def _put(self, old: TopicInfo | None, new: TopicInfo, known: PulsarTopic) -> None:
        self._version += 1
        self._enter(new)
        self._pulsar[new.topic_id] = known
        self._logs.update(new, known.partition)
        self._tell(old, new)

    def _remove(self, topic: TopicInfo) -> None:
        self._version += 1
        self._strike(topic)
        del self._pulsar[topic.topic_id]
        self._logs.remove(topic.topic_id)
        self._tell(topic, None)


def _finished(known: PulsarTopic) -> PulsarTopic:
    """Return a topic that has all of its policies, but for that as `known`."""
    rest = {key: value for key, value in known.properties.items() if key != UNFINISHED_PROPERTY}
    return replace(known, properties=rest)
