"""Topics of other namespaces. The gateway knows one from the moment that a client names it, and follows it from then
on.

Owns: which of these topics are known, the search for an unknown one, why one was not found, and the watches on their
namespaces.
Must not know: how a topic is read or made.

Another namespace is listed for clients alone to whom it is their own, and who ask for all topics: it may be large, to
others it is somebody else's, and its topics get an id of ours only where a client wants them. What has been named is
kept in the properties of the gateway's own topic, so that all brokers know the same ones, also after a restart: clients
come with ids and commits then, not with names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kop.errors import ErrorCode, KopError, PeerError
from kop.pulsar_client import PulsarError
from kop.pulsar_client.errors import NOT_THERE
from kop.pulsar_client.watch import Watch
from kop.storage.base import TopicInfo
from kop.storage.pulsar.cluster.cluster_topic import ClusterTopic
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, kafka_error
from kop.storage.pulsar.layout import PERSISTENT, may_be_named, topic_of

_MISSING_SECONDS: Final = 5.0
"""The seconds for which a topic that was not found is not looked for again, and one that was refused is not created
again.
"""
_MOST_MISSING: Final = 10_000
_LISTED_SECONDS: Final = 5.0
"""The seconds for which a namespace that was listed is not listed again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Missing:
    until: float
    error: KopError
    refused: bool
    """True if making the topic failed; false if looking for it did."""


class Table(Protocol):
    """The table of topics, in the parts that topics of other namespaces need."""

    def get(self, name: str) -> TopicInfo | None:
        """Return the topic of that name; None if it is not known."""

    def on_change(self, callback: Callable[[TopicInfo | None, TopicInfo | None], None]) -> None:
        """Call `callback(old, new)` after each change of a topic."""

    async def look_for(self, full_names: Collection[str]) -> Mapping[str, PulsarError]:
        """Look at topics of these names, Pulsar's full ones; return those that could not be read, with their errors."""

    def watched(self, snapshot: Sequence[str] | None, added: Iterable[str], removed: Iterable[str]) -> None:
        """Have these topics or partitions, by Pulsar's full names, looked at again soon: those that were added or
        removed, and all of a `snapshot`, if it is not None.
        """


class ForeignTopics:
    """The topics of namespaces other than the home namespace that clients have named."""

    def __init__(
        self, context: PulsarContext, cluster_topic: ClusterTopic, table: Table, announce: Callable[[str], None]
    ) -> None:
        """Begin with none known. `announce` tells the other brokers to look at a topic, by Pulsar's full name."""
        self._context = context
        self._cluster_topic = cluster_topic
        self._table = table
        self._announce = announce
        self._missing: dict[str, _Missing] = {}
        self._listings: dict[str, asyncio.Task[None]] = {}
        """The listings of namespaces that are under way."""
        self._listed: dict[str, float] = {}
        """The loop's time until which a namespace need not be listed again."""
        self._watches: dict[str, Watch] = {}
        self._known: dict[str, set[str]] = {}
        """The names of known topics, by namespace."""
        self._kept: set[str] = set()
        """The names that are kept in the properties of the gateway's own topic."""
        table.on_change(self._changed)

    async def named(self) -> set[str]:
        """Return Pulsar's names of the topics of other namespaces that clients of this or another broker have named,
        and keep the names that are known here and not kept yet, in the background. PulsarError if Pulsar refuses it or
        does not answer.
        """
        self._kept = await self._cluster_topic.named_topics()
        for names in self._known.values():
            for name in names - self._kept:
                self._context.spawn(self._keep(name))
        return {PERSISTENT + name for name in self._kept}

    async def find(self, names: Collection[str]) -> None:
        """Look for topics of other namespaces that are not known, unless that failed in the last 5 seconds; afterwards
        they are in the table, or `missing` has the error of each that is not. Nothing is raised.
        """
        good = [name for name in names if may_be_named(name) and self._context.naming.kafka_name(PERSISTENT + name)]
        for name in set(names).difference(good):
            error = PeerError(f"topic {name!r} is not for Kafka clients", ErrorCode.INVALID_TOPIC_EXCEPTION)
            self._note(name, error, refused=True)
        failed = await self._table.look_for({PERSISTENT + name for name in good if self._unsought(name)})
        for name in good:
            failure = failed.get(PERSISTENT + name)
            if failure is not None:
                self._failed(name, kafka_error(failure, f"cannot look for topic {name!r}"), refused=False)
            elif self._unsought(name):
                absent = PeerError(f"there is no topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                self._note(name, absent, refused=False)

    def is_listed(self, namespace: str) -> bool:
        """Return true if all topics of a namespace were looked for in the last 5 seconds."""
        return self._context.loop.time() < self._listed.get(namespace, float("-inf"))

    async def list_namespace(self, namespace: str) -> None:
        """Look at all topics of a namespace that are not known, so that they become known. BackendError if the
        namespace cannot be listed; one that does not exist has no topics.

        Calls at the same time share one listing.
        """
        listing = self._listings.get(namespace)
        if listing is None:
            listing = self._listings[namespace] = self._context.loop.create_task(self._list(namespace))
            listing.add_done_callback(lambda _: self._listings.pop(namespace))
        await asyncio.shield(listing)

    async def _list(self, namespace: str) -> None:
        began = self._context.loop.time()
        try:
            names = await self._context.admin.list_partitioned(namespace)
            names += await self._context.client.topics(namespace)
        except PulsarError as error:
            if error.code not in NOT_THERE:
                raise kafka_error(error, f"cannot list the topics of namespace {namespace!r}") from None
            names = []  # there is no such namespace
        own = {topic_of(name).removeprefix(PERSISTENT) for name in names if name.startswith(PERSISTENT)}
        await self.find({name for name in own if may_be_named(name) and self._unsought(name)})
        self._listed[namespace] = began + _LISTED_SECONDS

    def missing(self, name: str) -> ErrorCode | None:
        """Return the error for which a topic was not found, or could not be made, in the last 5 seconds; None if there
        was none.
        """
        failure = self._fresh(name)
        return None if failure is None else failure.error.code

    def check(self, name: str) -> None:
        """Raise a KopError if a topic may not be made: that was refused in the last 5 seconds, or the name is not
        allowed.
        """
        if not may_be_named(name) or self._context.naming.kafka_name(PERSISTENT + name) != (name, False):
            raise PeerError(f"topic {name!r} is not for Kafka clients", ErrorCode.INVALID_TOPIC_EXCEPTION)
        failure = self._fresh(name)
        if failure is not None and failure.refused:
            raise failure.error

    def refused(self, name: str, error: KopError) -> None:
        """Remember for 5 seconds, log and count the error for which a topic could not be made; TOPIC_ALREADY_EXISTS is
        no such error.
        """
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            self._failed(name, error, refused=True)

    def unreadable(self, full_name: str, error: Exception) -> bool:
        """Log and count an error with which Pulsar refuses to let a topic of another namespace be read; return true if
        that was done: false, and nothing is done, for any other topic, or an error that is not Pulsar's.
        """
        if not isinstance(error, PulsarError):
            return False
        name = full_name.removeprefix(PERSISTENT)
        if not may_be_named(name) or self._context.naming.kafka_name(full_name) != (name, False):
            return False
        log.warning("%s", kafka_error(error, f"cannot read topic {name!r}").message)
        self._context.faults.count(Fault.TOPICS_NOT_READ_FOREIGN)
        return True

    async def close(self) -> None:
        """End the watches and listings of all namespaces."""
        for listing in tuple(self._listings.values()):
            listing.cancel()
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            await watch.close()

    # --- inside

    def _unsought(self, name: str) -> bool:
        return self._table.get(name) is None and self._fresh(name) is None

    def _fresh(self, name: str) -> _Missing | None:
        failure = self._missing.get(name)
        return failure if failure is not None and self._context.loop.time() < failure.until else None

    def _failed(self, name: str, error: KopError, *, refused: bool) -> None:
        if not self._context.faults.takes(error):
            log.warning("%s", error.message)
            self._context.faults.count(Fault.TOPICS_NOT_READ_FOREIGN_REFUSED)
        final = {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        if not refused and error.code not in final:
            error = KopError(error.message, ErrorCode.LEADER_NOT_AVAILABLE)  # clients retry this error
        self._note(name, error, refused=refused)

    def _note(self, name: str, error: KopError, *, refused: bool) -> None:
        now = self._context.loop.time()
        if len(self._missing) >= _MOST_MISSING:
            self._missing = {name: missing for name, missing in self._missing.items() if now < missing.until}
            if len(self._missing) >= _MOST_MISSING:
                self._missing.clear()
        self._missing[name] = _Missing(now + _MISSING_SECONDS, error, refused)

    def _changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        """Watch a namespace while a topic of it is known, and keep the names of its known topics for all brokers;
        called after each change of a topic.
        """
        topic = new or old
        if topic is None or "/" not in topic.name:
            return
        namespace = topic.name.rpartition("/")[0]
        known = self._known.setdefault(namespace, set())
        if new is not None:
            self._missing.pop(new.name, None)
            known.add(new.name)
            if new.name not in self._kept:
                self._context.spawn(self._keep(new.name))
        else:
            known.discard(topic.name)
            self._context.spawn(self._drop(topic.name))
        if known and namespace not in self._watches:
            self._watches[namespace] = self._context.client.watch(
                namespace,
                f"{PERSISTENT}{namespace}/.*",
                lambda snapshot, added, removed: self._watched(namespace, snapshot, added, removed),
            )
        elif not known:
            del self._known[namespace]
            if (watch := self._watches.pop(namespace, None)) is not None:
                self._context.spawn(watch.close())

    def _watched(
        self, namespace: str, snapshot: Sequence[str] | None, added: Iterable[str], removed: Iterable[str]
    ) -> None:
        """Pass on the watcher's news of topics that clients have named, and ignore the rest of the namespace."""
        known = {PERSISTENT + name for name in self._known.get(namespace, ())}
        there = {topic_of(name) for name in (*(snapshot or ()), *added)}
        for name in there:
            self._missing.pop(name.removeprefix(PERSISTENT), None)
        changed = there & known
        if snapshot is not None:
            changed |= known - there
        self._table.watched(None, changed, [name for name in removed if topic_of(name) in known])

    async def _keep(self, name: str) -> None:
        try:
            await self._cluster_topic.add_named(name)
            self._kept.add(name)
            self._announce(PERSISTENT + name)
        except PulsarError as error:
            if not self._context.faults.takes(error):
                log.warning("other brokers are not told for now that topic %s is in use: %s", name, error)

    async def _drop(self, name: str) -> None:
        if self._table.get(name) is not None:
            return
        try:
            await self._cluster_topic.remove_named(name)
            self._kept.discard(name)
        except PulsarError as error:
            if not self._context.faults.takes(error):
                log.warning("cannot forget that topic %s was in use: %s", name, error)
