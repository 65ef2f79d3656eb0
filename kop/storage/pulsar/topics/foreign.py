"""Topics of other namespaces: known once somebody names them, and followed from then on.

Owns: which of them are known, the look for one that is not, why one was not found, the watches on their namespaces.
Must not know: how a topic is read or made.

Another namespace is never listed: it may be large, it is somebody else's, and its topics get an id of ours only where
a client wants them. What has been named is kept in the properties of the gateway's own topic, so that all gateways
know the same ones, also after a restart: clients come with ids and commits then, not with names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kop.errors import ErrorCode, KopError, PeerError
from kop.pulsar_client import PulsarError
from kop.storage.base import TopicInfo
from kop.storage.pulsar.faults import kafka_error
from kop.storage.pulsar.layout import NAMED_PREFIX, PERSISTENT, may_be_named, topic_of

if TYPE_CHECKING:
    from kop.pulsar_client.watch import Watch
    from kop.storage.pulsar.engine import PulsarEngine

_MISSING_SECONDS: Final = 5.0
"""How long nobody looks again for what was not there, or tries again to make what was refused."""
_MOST_MISSING: Final = 10_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Missing:
    until: float
    error: KopError
    refused: bool
    """Making it failed."""


class Elsewhere:
    """The other namespaces of one engine."""

    def __init__(self, engine: PulsarEngine) -> None:
        self._engine = engine
        self._missing: dict[str, _Missing] = {}
        self._watches: dict[str, Watch] = {}
        self._known: dict[str, set[str]] = {}
        """Names by namespace."""
        self._kept: set[str] = set()
        """Names that are in the properties."""
        engine.topics.on_change(self._changed)

    async def named(self) -> set[str]:
        """Pulsar's names of what was named, here or at another gateway. PulsarError."""
        properties = await self._engine.own_properties()
        self._kept = {key.removeprefix(NAMED_PREFIX) for key in properties if key.startswith(NAMED_PREFIX)}
        for names in self._known.values():
            for name in names - self._kept:
                self._engine.spawn(self._keep(name))
        return {PERSISTENT + name for name in self._kept}

    async def find(self, names: Collection[str]) -> None:
        """Look for topics that are not known; `missing` says why one is not known afterwards."""
        good = [name for name in names if may_be_named(name) and self._engine.kafka_name(PERSISTENT + name)]
        for name in set(names).difference(good):
            error = PeerError(f"topic {name!r} is not for Kafka clients", ErrorCode.INVALID_TOPIC_EXCEPTION)
            self._note(name, error, refused=True)
        topics = self._engine.topics
        failed = await topics.look_for({PERSISTENT + name for name in good if self._unsought(name)})
        for name in good:
            found = failed.get(PERSISTENT + name)
            if found is not None:
                self._failed(name, kafka_error(found, f"cannot look for topic {name!r}"), refused=False)
            elif self._unsought(name):
                absent = PeerError(f"there is no topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                self._note(name, absent, refused=False)

    def missing(self, name: str) -> ErrorCode | None:
        """Why a topic was not found, or could not be made, in the last seconds."""
        found = self._fresh(name)
        return None if found is None else found.error.code

    def check(self, name: str) -> None:
        """Before a topic is made. KopError where that was refused a moment ago, or no client may have that name."""
        if not may_be_named(name) or self._engine.kafka_name(PERSISTENT + name) != (name, False):
            raise PeerError(f"topic {name!r} is not for Kafka clients", ErrorCode.INVALID_TOPIC_EXCEPTION)
        found = self._fresh(name)
        if found is not None and found.refused:
            raise found.error

    def refused(self, name: str, error: KopError) -> None:
        """A topic could not be made."""
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            self._failed(name, error, refused=True)

    def unreadable(self, full_name: str, error: Exception) -> bool:
        """A topic cannot be read. True where that is told here: Pulsar refuses one of another namespace."""
        if not isinstance(error, PulsarError):
            return False
        name = full_name.removeprefix(PERSISTENT)
        if not may_be_named(name) or self._engine.kafka_name(full_name) != (name, False):
            return False
        log.warning("%s", kafka_error(error, f"cannot read topic {name!r}").message)
        self._engine.count("foreign_topics_not_read")
        return True

    async def close(self) -> None:
        """Watch nothing any more."""
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            await watch.close()

    # --- inside

    def _unsought(self, name: str) -> bool:
        return self._engine.topics.get(name) is None and self._fresh(name) is None

    def _fresh(self, name: str) -> _Missing | None:
        found = self._missing.get(name)
        return found if found is not None and self._engine.loop.time() < found.until else None

    def _failed(self, name: str, error: KopError, *, refused: bool) -> None:
        log.warning("%s", error.message)
        self._engine.count("foreign_topics_refused")
        final = {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        if not refused and error.code not in final:
            error = KopError(error.message, ErrorCode.LEADER_NOT_AVAILABLE)  # every client asks again
        self._note(name, error, refused=refused)

    def _note(self, name: str, error: KopError, *, refused: bool) -> None:
        now = self._engine.loop.time()
        if len(self._missing) >= _MOST_MISSING:
            self._missing = {name: one for name, one in self._missing.items() if now < one.until}
            if len(self._missing) >= _MOST_MISSING:
                self._missing.clear()
        self._missing[name] = _Missing(now + _MISSING_SECONDS, error, refused)

    def _changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        """Follow a namespace while a topic of it is known."""
        topic = new or old
        if topic is None or "/" not in topic.name:
            return
        namespace = topic.name.rpartition("/")[0]
        known = self._known.setdefault(namespace, set())
        if new is not None:
            self._missing.pop(new.name, None)
            known.add(new.name)
            if new.name not in self._kept:
                self._engine.spawn(self._keep(new.name))
        else:
            known.discard(topic.name)
            self._engine.spawn(self._drop(topic.name))
        if known and namespace not in self._watches:
            self._watches[namespace] = self._engine.client.watch(
                namespace,
                f"{PERSISTENT}{namespace}/.*",
                lambda snapshot, added, removed: self._watched(namespace, snapshot, added, removed),
            )
        elif not known:
            del self._known[namespace]
            if (watch := self._watches.pop(namespace, None)) is not None:
                self._engine.spawn(watch.close())

    def _watched(
        self, namespace: str, snapshot: Sequence[str] | None, added: Iterable[str], removed: Iterable[str]
    ) -> None:
        """The watcher's callback: only what was named matters."""
        known = {PERSISTENT + name for name in self._known.get(namespace, ())}
        there = {topic_of(name) for name in (*(snapshot or ()), *added)}
        for name in there:
            self._missing.pop(name.removeprefix(PERSISTENT), None)
        changed = there & known
        if snapshot is not None:
            changed |= known - there
        self._engine.topics.watched(None, changed, [name for name in removed if topic_of(name) in known])

    async def _keep(self, name: str) -> None:
        try:
            await self._engine.admin.set_properties(self._engine.own_name, {NAMED_PREFIX + name: "1"})
            self._kept.add(name)
            self._engine.announce(PERSISTENT + name)
        except PulsarError as error:
            log.warning("other gateways are not told for now that topic %s is in use: %s", name, error)

    async def _drop(self, name: str) -> None:
        if self._engine.topics.get(name) is not None:
            return
        try:
            await self._engine.admin.remove_property(self._engine.own_name, NAMED_PREFIX + name)
            self._kept.discard(name)
        except PulsarError as error:
            log.warning("cannot forget that topic %s was in use: %s", name, error)
