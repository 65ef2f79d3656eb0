"""The topics that an engine knows, in memory: what the engines' tables of topics have in common.

Owns: names, ids and their order, who hears of changes, which changes are refused; ids that may be given.
Must not know: where topics are kept.
"""

from __future__ import annotations

import base64
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from kop import clock
from kop.errors import ErrorCode, PeerError
from kop.storage.base import TopicInfo

ChangeCallback = Callable[[TopicInfo | None, TopicInfo | None], None]

log = logging.getLogger(__name__)


def is_usable(value: UUID) -> bool:
    """Return true if a topic may have the id: it is none of Kafka's reserved ones, and its text does not begin with a
    dash.
    """
    return value.bytes[0] >> 2 != 62 and value.int >= 256


def new_uuid() -> UUID:
    """Return a random id that a topic may have."""
    while not is_usable(value := clock.uuid4()):
        pass
    return value


def new_cluster_id() -> str:
    """Return a random cluster id as Kafka writes it: 22 characters, the first of them no dash."""
    return base64.urlsafe_b64encode(new_uuid().bytes).decode().rstrip("=")


class TopicTable:
    """The reading half of `kop.storage.base.Topics`; an engine's own class adds the changes."""

    def __init__(self, version: int, topics: Iterable[TopicInfo] = ()) -> None:
        self._version = version
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self._names = sorted(self._by_name)
        self._listeners: list[ChangeCallback] = []

    @property
    def version(self) -> int:
        """A number that grows with every change of any topic, also over restarts."""
        return self._version

    def get(self, name: str) -> TopicInfo | None:
        """Return the topic of that name; None if it is not known."""
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> TopicInfo | None:
        """Return the topic of that id; None if it is not known."""
        return self._by_id.get(topic_id)

    def all(self) -> Sequence[TopicInfo]:
        """Return every topic, ordered by name."""
        return [self._by_name[name] for name in self._names]

    def on_change(self, callback: ChangeCallback) -> None:
        """Call `callback(old, new)` after each change of a topic; `old` is None for a new topic, `new` for a deleted
        one.
        """
        self._listeners.append(callback)

    # --- for the engine's part

    def _find(self, topic_id: UUID) -> TopicInfo:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise PeerError("there is no such topic", ErrorCode.UNKNOWN_TOPIC_ID)
        return topic

    def _check_new(self, topic: TopicInfo) -> None:
        if topic.name in self._by_name:
            raise PeerError(f"topic {topic.name!r} already exists", ErrorCode.TOPIC_ALREADY_EXISTS)
        if topic.partitions < 1:
            raise PeerError(f"a topic of {topic.partitions} partitions", ErrorCode.INVALID_PARTITIONS)

    def _check_growth(self, topic: TopicInfo, partitions: int) -> None:
        if partitions <= topic.partitions:
            raise PeerError(
                f"topic {topic.name!r} has {topic.partitions} partitions, {partitions} would be no growth",
                ErrorCode.INVALID_PARTITIONS,
            )

    def _enter(self, topic: TopicInfo) -> None:
        """Put a new topic, or the new value of a known one, into the table."""
        if topic.name not in self._by_name:
            insort(self._names, topic.name)
        self._by_name[topic.name] = self._by_id[topic.topic_id] = topic

    def _strike(self, topic: TopicInfo) -> None:
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        del self._names[bisect_left(self._names, topic.name)]

    def _tell(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        for callback in self._listeners:
            try:
                callback(old, new)
            except Exception:
                log.exception("a listener on topic changes failed")
