"""The catalogue over Pulsar: partitioned and plain topics of the home namespace, the gateway's own, and named others.

Owns: names there and here, topic ids, the properties that hold them, how other people's changes are learned.
Must not know: entries, offsets.

A topic's id and its Kafka configs lie in the Pulsar topic's properties, written in the same request that makes it. A
topic that somebody else made gets an id when it is first seen. The watcher tells of creation, deletion and growth; a
slow full listing finds what it missed and configs changed by another gateway.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5
from weakref import WeakValueDictionary

from kop.errors import ErrorCode, KopError, PeerError
from kop.pulsar_client import PulsarError
from kop.storage.base import TopicInfo
from kop.storage.pulsar import policies
from kop.storage.pulsar.elsewhere import topic_of
from kop.storage.pulsar.properties import (
    CONFIGS_PROPERTY,
    CREATED_PROPERTY,
    DELETING_PROPERTY,
    ID_PROPERTY,
    NAME_PROPERTY,
    RAW_PROPERTY,
    UNFINISHED_PROPERTY,
    number,
)
from kop.storage.topic_table import TopicTable, is_usable, new_uuid

if TYPE_CHECKING:
    from kop.storage.pulsar.engine import PulsarEngine

_ABANDONED_MS: Final = 60_000
_AT_ONCE = 16
"""Topics that are changed or looked at side by side."""
_NAMING_ROUNDS = 5
_APART = 0.2
_OTHERS_NAME = (0.1, 0.1, 0.2, 0.4, 0.8)
"""Seconds to wait for the gateway that gives a topic its id, before another one does."""
_LOOK_AGAIN = (0.2, 1.0, 5.0)
"""Seconds after a partition was removed."""

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PulsarTopic:
    """What the engine knows of a topic beside its `TopicInfo`."""

    full_name: str
    """`persistent://tenant/namespace/name`."""
    plain: bool
    """Not partitioned: the one partition goes by the topic's own name."""
    properties: Mapping[str, str]

    def partition(self, index: int) -> str:
        """Pulsar's name of a partition."""
        return self.full_name if self.plain else f"{self.full_name}-partition-{index}"


class PulsarTopics(TopicTable):
    """`Topics` over Pulsar's admin API."""

    def __init__(self, engine: PulsarEngine) -> None:
        super().__init__(time.time_ns() // 1_000_000)  # so that the version grows over restarts, too
        self._engine = engine
        self._pulsar: dict[UUID, PulsarTopic] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._dirty: set[str] = set()
        """Pulsar names that the watcher named and nobody has looked at yet."""
        self._wake = asyncio.Event()

    @property
    def namespace(self) -> str:
        """Of the topics that have none in their names."""
        return self._engine.settings.namespace

    async def find(self, names: Collection[str]) -> None:
        """Look for topics of other namespaces that are not known."""
        await self._engine.elsewhere.find(names)

    def missing(self, name: str) -> ErrorCode | None:
        """Why such a topic was not found a moment ago."""
        return self._engine.elsewhere.missing(name)

    def pulsar(self, topic_id: UUID) -> PulsarTopic:
        """The Pulsar side of a topic; UNKNOWN_TOPIC_ID where it is gone."""
        found = self._pulsar.get(topic_id)
        if found is None:
            raise PeerError("there is no such topic", ErrorCode.UNKNOWN_TOPIC_ID)
        return found

    # --- changes of our own

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False
    ) -> TopicInfo:
        """Make a partitioned topic; its policies are in force when this returns. TOPIC_ALREADY_EXISTS where it is."""
        topic = TopicInfo(name, new_uuid(), partitions, MappingProxyType(dict(configs)), internal)
        return await self._change(self._engine.full_name(name, internal), partial(self._create, topic))

    async def delete(self, topic_id: UUID) -> None:
        """Delete a topic with its subscriptions."""
        await self._change(self.pulsar(topic_id).full_name, partial(self._delete, topic_id))

    async def grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        """Raise the number of partitions; INVALID_PARTITIONS where it would not grow, or is a plain topic."""
        return await self._change(self.pulsar(topic_id).full_name, partial(self._grow, topic_id, partitions))

    async def set_configs(self, topic_id: UUID, configs: Mapping[str, str]) -> TopicInfo:
        """Replace the topic's own configs; in force when it returns."""
        full_name = self.pulsar(topic_id).full_name
        return await self._change(full_name, partial(self._set_configs, topic_id, MappingProxyType(dict(configs))))

    async def set_property(self, topic_id: UUID, key: str, value: str) -> None:
        """Keep a small value beside the topic."""
        known = self.pulsar(topic_id)
        await self._ask("cannot keep a property", self._engine.admin.set_properties(known.full_name, {key: value}))
        now = self._pulsar.get(topic_id)
        if now is not None:  # with what else was set meanwhile
            self._pulsar[topic_id] = replace(now, properties={**now.properties, key: value})
            self._engine.announce(known.full_name)

    async def properties_now(self, topic_id: UUID) -> Mapping[str, str]:
        """The properties that lie beside a topic in Pulsar at this moment."""
        call = self._metadata(self.pulsar(topic_id).full_name)
        return (await self._ask("cannot read properties", call))[1]

    async def remove_properties(self, topic_id: UUID, keys: Collection[str]) -> None:
        """Remove small values beside a topic that mean nothing any more."""
        known = self.pulsar(topic_id)
        for key in keys:
            await self._ask("cannot remove a property", self._engine.admin.remove_property(known.full_name, key))

    async def _change(self, full_name: str, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """One change of a topic at a time, to its end even where the caller goes away: memory has to follow Pulsar."""
        return await self._engine.finish(self.in_turn(full_name, change))

    async def in_turn(self, full_name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something to a topic while this gateway neither makes, changes nor deletes it."""
        turn = self._turns.setdefault(full_name, asyncio.Lock())
        async with turn, self._gate:
            return await work()

    async def _ask(self, doing: str, call: Coroutine[Any, Any, T]) -> T:
        try:
            return await call
        except PulsarError as error:
            raise self._engine.troubles.refused(error, "topic changes", doing) from error

    async def _create(self, topic: TopicInfo) -> TopicInfo:
        self._check_new(topic)
        full_name = self._engine.full_name(topic.name, topic.internal)
        if "/" not in topic.name:
            return await self._create_as(topic, full_name)
        self._engine.elsewhere.check(topic.name)
        try:
            return await self._create_as(topic, full_name)
        except KopError as error:
            self._engine.elsewhere.refused(topic.name, error)
            raise

    async def _create_as(self, topic: TopicInfo, full_name: str) -> TopicInfo:
        properties = {
            ID_PROPERTY: str(topic.topic_id),
            NAME_PROPERTY: full_name,
            CONFIGS_PROPERTY: json.dumps(dict(topic.configs)),
            CREATED_PROPERTY: str(int(time.time() * 1000)),
            UNFINISHED_PROPERTY: "true",
        }
        if self._engine.policy(topic).raw_entries:
            properties[RAW_PROPERTY] = "true"
        doing = f"cannot create topic {topic.name!r}"
        await self._ask(doing, self._create_partitioned(full_name, topic.partitions, properties))
        known = PulsarTopic(full_name, False, properties)
        try:
            known = await self._ask(doing, self._with_policies(topic, known))
        except KopError:
            # Without its retention Pulsar would drop what no subscription holds: no topic is better than that one.
            await self._ask(doing, self._engine.admin.delete_partitioned(full_name))
            raise
        self._put(None, topic, known)
        self._engine.announce(full_name)
        return topic

    async def _with_policies(self, topic: TopicInfo, known: PulsarTopic) -> PulsarTopic:
        await self._engine.apply_policies(topic, known)
        await self._engine.admin.remove_property(known.full_name, UNFINISHED_PROPERTY)
        rest = {key: value for key, value in known.properties.items() if key != UNFINISHED_PROPERTY}
        return replace(known, properties=rest)

    async def _finish_abandoned(self) -> None:
        """A gateway died between making a topic and giving it its policies: Pulsar would keep nothing of it."""
        now = time.time() * 1000
        for topic_id, known in list(self._pulsar.items()):
            if UNFINISHED_PROPERTY not in known.properties:
                continue
            if now - number(known.properties, CREATED_PROPERTY) < _ABANDONED_MS:
                continue
            try:
                async with self._turns.setdefault(known.full_name, asyncio.Lock()):
                    if (topic := self._by_id.get(topic_id)) is not None:
                        self._pulsar[topic_id] = await self._with_policies(topic, known)
                        log.warning("topic %s had been made by half: it has its policies now", topic.name)
            except PulsarError as error:
                log.warning("topic %s has no policies yet: %s; trying again", known.full_name, error)

    async def _create_partitioned(self, full_name: str, partitions: int, properties: Mapping[str, str]) -> None:
        try:
            await self._engine.admin.create_partitioned(full_name, partitions, properties)
        except PulsarError as error:
            # A partition that came back behind a deletion looks to Pulsar like the whole topic.
            if error.code != "Conflict":
                raise
            if not await self._engine.presence.clear(full_name):
                await self._look(full_name)  # another gateway was faster: whoever hears of that finds it at once
                raise
            try:
                await self._engine.admin.create_partitioned(full_name, partitions, properties)
            except PulsarError:
                await self._engine.presence.complete(full_name)
                raise

    async def _delete(self, topic_id: UUID) -> None:
        topic = self._find(topic_id)
        known = self.pulsar(topic_id)
        self._engine.deleting(topic_id)
        admin = self._engine.admin
        try:
            if known.plain:
                await admin.delete_plain(known.full_name)
            else:
                await admin.set_properties(known.full_name, {DELETING_PROPERTY: str(int(time.time() * 1000))})
                await admin.delete_partitioned(known.full_name)
        except PulsarError as error:
            if error.code not in {"NotFound", "TopicNotFound"}:
                self._engine.deleting(topic_id, undone=True)
                if not known.plain:
                    with suppress(PulsarError):  # it is obeyed for a minute only
                        await admin.remove_property(known.full_name, DELETING_PROPERTY)
                doing = f"cannot delete topic {topic.name!r}"
                raise self._engine.troubles.refused(error, "topic changes", doing) from error
        self._remove(topic)
        self._engine.announce(known.full_name)

    async def _grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        topic = self._find(topic_id)
        known = self.pulsar(topic_id)
        self._check_growth(topic, partitions)
        if known.plain:
            raise PeerError(
                f"topic {topic.name!r} is not partitioned in Pulsar: it cannot grow", ErrorCode.INVALID_PARTITIONS
            )
        doing = f"cannot add partitions to topic {topic.name!r}"
        await self._ask(doing, self._engine.admin.grow(known.full_name, partitions))
        grown = replace(topic, partitions=partitions)
        self._put(topic, grown, known)
        self._engine.announce(known.full_name)
        return grown

    async def _set_configs(self, topic_id: UUID, configs: Mapping[str, str]) -> TopicInfo:
        topic = self._find(topic_id)
        known = self.pulsar(topic_id)
        changed = replace(topic, configs=configs)
        before, policy = self._engine.policy(topic), self._engine.policy(changed)
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
        await self._ask(doing, self._engine.apply_policies(changed, known, before=topic))
        await self._ask(doing, self._engine.admin.set_properties(known.full_name, properties))
        known = self.pulsar(topic_id)  # with what else was set meanwhile
        known = replace(known, properties={**known.properties, **properties})
        self._put(topic, changed, known)
        self._engine.announce(known.full_name)
        return changed

    # --- what is there

    async def load(self) -> None:
        """Read the namespaces whole. PulsarError where that is not possible."""
        found = await self._list() | await self._engine.elsewhere.named()
        await self._look_at(found | set(map(self._name_of, self._by_id)))
        await self._finish_abandoned()

    async def look_for(self, full_names: Collection[str]) -> Mapping[str, PulsarError]:
        """Look at topics that nobody has told of; returns those that could not be read."""
        failed: dict[str, PulsarError] = {}
        if full_names:
            await self._look_at(full_names, failed)
        return failed

    async def held(self, topic_id: UUID) -> Mapping[str, str]:
        """What Pulsar's policies of a topic say otherwise than its configs: by pulsar-admin, or from its namespace."""
        topic, known = self._find(topic_id), self.pulsar(topic_id)
        if topic.internal:
            return {}
        engine = self._engine
        largest = engine.client.max_message_size
        found = policies.held(engine.admin, known.full_name, engine.policy(topic), largest=largest)
        return await self._ask(f"cannot read the policies of {topic.name!r}", found)

    async def refresh(self, topic_id: UUID) -> None:
        """Look at one topic anew: Pulsar said something of it that does not fit, or a gateway may have changed it."""
        if topic_id in self._pulsar:
            await self._ask("cannot read a topic", self._look_at({self._name_of(topic_id)}))

    def watched(self, snapshot: Sequence[str] | None, added: Iterable[str], removed: Iterable[str]) -> None:
        """The watcher's callback: names of Pulsar's topics, partitions among them."""
        names = [*added, *removed]
        for name in map(topic_of, removed):
            for delay in _LOOK_AGAIN:
                self._engine.loop.call_later(delay, self._look_again, name)
        if snapshot is not None:
            present = {topic_of(name) for name in snapshot}
            names += [name for name in map(self._name_of, self._by_id) if name not in present] + [*snapshot]
        self._dirty.update(map(topic_of, names))
        self._wake.set()

    def _look_again(self, name: str) -> None:
        """Partitions go first: when the watcher tells of that, the topic itself is still there."""
        self._dirty.add(name)
        self._wake.set()

    async def follow(self) -> None:
        """Look at what the watcher names, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0.02)  # one event comes for each partition
            names, self._dirty = self._dirty, set()
            try:
                await self._look_at(names)
            except PulsarError as error:
                self._engine.troubles.refused(error, "requests", "cannot read topics that changed, trying again")
                self._dirty |= names
                await asyncio.sleep(1)
                self._wake.set()

    async def _list(self) -> set[str]:
        found: set[str] = set()
        for namespace in self._engine.namespaces:
            found.update(await self._engine.admin.list_partitioned(namespace))
            found.update(map(topic_of, await self._engine.client.topics(namespace)))
        return {name for name in found if self._engine.kafka_name(name) is not None}

    async def _look_at(self, names: Iterable[str], failed: dict[str, PulsarError] | None = None) -> None:
        """Compare each of Pulsar's topics with what is known of it.

        What could not be read comes into `failed`; without it, PulsarError, but not for topics of other namespaces.
        """

        async def one(name: str) -> None:
            try:
                await self.in_turn(name, partial(self._look, name))
            except PulsarError as error:
                if failed is not None:
                    failed[name] = error
                elif not self._engine.elsewhere.unreadable(name, error):
                    raise

        await asyncio.gather(*(one(name) for name in sorted(names)))

    async def _look(self, full_name: str) -> None:
        self._found(full_name, await self._read(full_name))

    async def _read(self, full_name: str) -> tuple[TopicInfo, PulsarTopic] | None:
        named = self._engine.kafka_name(full_name)
        if named is None:
            return None
        name, internal = named
        try:
            partitions, properties = await self._metadata(full_name)
            plain = partitions == 0
            if ID_PROPERTY not in properties:
                if internal:
                    return None  # Pulsar's own, such as __transaction_buffer_snapshot
                properties = await self._name(full_name, plain)
            topic_id = UUID(properties[ID_PROPERTY])
            configs = json.loads(properties.get(CONFIGS_PROPERTY, "{}"))
        except PulsarError as error:
            if error.code in {"NotFound", "TopicNotFound"}:
                return None
            raise
        except (ValueError, KeyError) as error:
            log.error("topic %s is left out: its properties cannot be read: %s", full_name, error)
            return None
        info = TopicInfo(name, topic_id, max(partitions, 1), MappingProxyType(configs), internal)
        return info, PulsarTopic(full_name, plain, properties)

    async def _name(self, full_name: str, plain: bool) -> Mapping[str, str]:
        """Give somebody else's topic an id: one of the gateways does, the others read that.

        Side by side on a topic that is not partitioned, Pulsar 4.0.8 carries one of the requests out 0.1 s later. Where
        the topic was deleted and made again meanwhile, it then writes the old one's state over the new one's.
        """
        # Gateways of another cluster on the same namespace do not know of this one: they are not to come at once.
        first = (random.random() * _APART,) if plain else ()
        for pause in first if self._engine.names(full_name) else _OTHERS_NAME:
            await asyncio.sleep(pause)
            _, properties = await self._metadata(full_name)
            if ID_PROPERTY in properties:
                return properties
        found = await self._foreign_id(full_name, plain)
        for _ in range(_NAMING_ROUNDS):
            await self._engine.admin.set_properties(full_name, {ID_PROPERTY: str(found or new_uuid())})
            _, properties = await self._metadata(full_name)
            # The topic may have been deleted and made again meanwhile: the new one must not keep the old one's id.
            before, found = found, await self._foreign_id(full_name, plain)
            if found == before:
                break
        return properties

    async def _foreign_id(self, full_name: str, plain: bool) -> UUID | None:
        """The same from each gateway that asks at this moment; None where Pulsar does not say enough for that.

        It follows from the topic's oldest ledger, so a topic that is deleted and made again has another.
        """
        try:
            stats = await self._engine.admin.internal_stats(full_name if plain else f"{full_name}-partition-0")
        except PulsarError as error:
            if plain or error.code not in {"NotFound", "TopicNotFound"}:
                raise
            return None  # a partition that no client has used yet
        if not stats.get("ledgers"):
            return None
        seed = f"{full_name}#{stats['ledgers'][0]['ledgerId']}"
        while not is_usable(found := uuid5(NAMESPACE_URL, seed)):
            seed += "+"
        return found

    async def _metadata(self, full_name: str) -> tuple[int, Mapping[str, str]]:
        found = await self._engine.admin.partitioned_metadata(full_name)
        if found.partitions:
            return found.partitions, found.properties
        return 0, await self._engine.admin.properties(full_name)

    def _found(self, full_name: str, found: tuple[TopicInfo, PulsarTopic] | None) -> None:
        named = self._engine.kafka_name(full_name)
        if named is None:
            return
        old = self._by_name.get(named[0])
        if old is not None and (found is None or found[0].topic_id != old.topic_id):
            self._remove(old)
            old = None
        if found is None:
            return
        topic, known = found
        if old is None or old != topic:
            self._put(old, topic, known)
        else:
            self._pulsar[topic.topic_id] = known
            self._engine.update_logs(topic, known)

    def _name_of(self, topic_id: UUID) -> str:
        return self._pulsar[topic_id].full_name

    # --- memory

    def _put(self, old: TopicInfo | None, new: TopicInfo, known: PulsarTopic) -> None:
        self._version += 1
        self._enter(new)
        self._pulsar[new.topic_id] = known
        self._engine.update_logs(new, known)
        self._tell(old, new)

    def _remove(self, topic: TopicInfo) -> None:
        self._version += 1
        self._strike(topic)
        del self._pulsar[topic.topic_id]
        self._engine.remove_logs(topic.topic_id)
        self._tell(topic, None)
