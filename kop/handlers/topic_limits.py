"""The limits on new topics and partitions, whoever asks for them: CreateTopics, CreatePartitions, Metadata.

Owns: names that are reserved or differ from another one only in '.' and '_', the limits on partitions, and what is
being made at this moment, which counts already. Must not know: requests, how a topic is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kop.cluster.client_topics import RESERVED, ClientTopics
from kop.errors import ErrorCode, PeerError

_MOST_OF_REQUEST: Final = 10_000
"""The most partitions that one request may make, as in Kafka."""
_METADATA_TOPIC: Final = "__cluster_metadata"


class TopicLimits:
    """The limits of one gateway on topics and partitions. Those that other gateways make count once this one has heard
    of them.
    """

    def __init__(self, topics: ClientTopics, most_partitions: int) -> None:
        """Begin with nothing in the making. `most_partitions` is the setting kop.max.partitions."""
        self._topics = topics
        self._most = most_partitions
        self._version: object = None
        """The version of the topics at which `_alike` and `_partitions` were counted."""
        self._alike: dict[str, str] = {}
        """The names of topics that have a '.' or '_', by the same name with each '.' replaced by '_'."""
        self._partitions = 0
        """The number of partitions of all topics."""
        self._names_in_making: list[str] = []
        self._in_making = 0
        """The number of partitions that are being made."""

    def check_name(self, name: str) -> None:
        """Raise PeerError if no topic of that name may be made: TOPIC_ALREADY_EXISTS, or INVALID_TOPIC_EXCEPTION if it
        is not legal, reserved, or differs from another topic's only in '.' and '_'; INVALID_REQUEST for Kafka's
        metadata topic.
        """
        if name == _METADATA_TOPIC:
            raise PeerError(f"Creation of internal topic {name} is prohibited.")
        if self._topics.get(name) is not None:
            raise PeerError(f"Topic '{name}' already exists.", ErrorCode.TOPIC_ALREADY_EXISTS)
        self._topics.check_name(name)
        if name in RESERVED:
            raise PeerError(f"Creation of internal topic {name} is prohibited.", ErrorCode.INVALID_TOPIC_EXCEPTION)
        canonical = self._topics.canonical_name(name)
        if not _folds(canonical):
            return
        folded = _folded(canonical)
        self._learn()
        other = self._alike.get(folded) or next(
            (each for each in self._names_in_making if each != canonical and _folded(each) == folded), None
        )
        if other is not None:
            raise PeerError(f"Topic '{name}' collides with existing topic: {other}", ErrorCode.INVALID_TOPIC_EXCEPTION)

    def making(self) -> InMaking:
        """Return an object that counts the topics and partitions that one request makes."""
        return InMaking(self)

    def take(self, partitions: int, name: str | None) -> None:
        """Count partitions that are about to be made, those of a new topic if a name is given. PeerError
        (POLICY_VIOLATION) if there would be more than kop.max.partitions in all.

        Called by `InMaking`, which gives all of them back at its end.
        """
        self._learn()
        if partitions > self._most - self._partitions - self._in_making:
            raise PeerError(f"kop.max.partitions allows {self._most} in all.", ErrorCode.POLICY_VIOLATION)
        self._in_making += partitions
        if name is not None and _folds(canonical := self._topics.canonical_name(name)):
            self._names_in_making.append(canonical)

    def give_back(self, partitions: int, name: str | None) -> None:
        """Stop counting the partitions that `take` counted with the same values: they are made, or their making has
        failed.
        """
        self._in_making -= partitions
        if name is not None and _folds(canonical := self._topics.canonical_name(name)):
            self._names_in_making.remove(canonical)

    def _learn(self) -> None:
        version = self._topics.version
        if self._version != version:
            self._version = version
            topics = self._topics.all()
            self._alike = {_folded(topic.name): topic.name for topic in topics if _folds(topic.name)}
            self._partitions = sum(topic.partitions for topic in topics)


class InMaking:
    """The topics and partitions that one request makes."""

    def __init__(self, limits: TopicLimits) -> None:
        self._limits = limits
        self._unsettled: dict[Callable[[], None], None] = {}
        self._partitions = 0

    def add(self, partitions: int, name: str | None = None) -> Callable[[], None]:
        """Add a new topic's partitions, or without a name those by which one grows. PeerError (POLICY_VIOLATION) if
        they are more than 10,000 in one request, or too many in all.

        They count until the returned function is called, because they are made or have failed, or until the `with`
        block ends.
        """
        if partitions > _MOST_OF_REQUEST - self._partitions:
            raise PeerError("Excessively large number of partitions per request.", ErrorCode.POLICY_VIOLATION)
        self._limits.take(partitions, name)
        self._partitions += partitions

        def settle() -> None:
            del self._unsettled[settle]
            self._limits.give_back(partitions, name)

        self._unsettled[settle] = None
        return settle

    def __enter__(self) -> InMaking:
        """Return this object, for a block at whose end all that was added is counted no more."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop counting all that was added and is not settled: nothing of the request is being made any more."""
        for settle in tuple(self._unsettled):
            settle()


def _folds(name: str) -> bool:
    local = name.rpartition("/")[2]
    return "." in local or "_" in local


def _folded(name: str) -> str:
    namespace, slash, local = name.rpartition("/")
    return namespace + slash + local.replace(".", "_")
