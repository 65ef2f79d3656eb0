"""The brokers that serve together, and which of them leads a partition or coordinates a group.

Owns: the choice among the live brokers (rendezvous hashing: when a broker comes or goes, only its share moves).
Must not know: how brokers learn of one another; the engine tells.

Leadership of a topic's partition is a preference: every broker can serve it, and its leader has it in its cache. To
coordinate a partition of a state topic is a duty, which the engine fences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from uuid import UUID

from kop.storage.base import Brokers, LiveBroker


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The live brokers, as this one knows them."""

    broker_id: int
    """The id of this broker."""
    others: Sequence[LiveBroker]


class ClusterView:
    """The cluster as this broker sees it: the live brokers, itself always among them, and the partitions that each of
    them leads.
    """

    def __init__(self, brokers: Brokers, broker_id: int) -> None:
        self.broker_id = broker_id
        self.version = 0
        """A number that grows with every change, a key for cached answers."""
        self._brokers = brokers
        self._listeners: list[Callable[[], None]] = []
        self._leaders: dict[tuple[UUID, int], int] = {}
        self._ids: list[int] = [broker_id]
        self._others: dict[int, LiveBroker] = {}
        brokers.on_brokers(self._changed)
        self._changed()

    @property
    def alone(self) -> bool:
        """True if there can be no other broker. Known once this broker has joined."""
        return not self._brokers.brokers

    @property
    def ids(self) -> Sequence[int]:
        """The ids of the live brokers, ascending."""
        return self._ids

    def endpoints(self, own: tuple[str, int], listener: str = "") -> list[tuple[int, str, int]]:
        """Return id, host and port of each live broker that has the listener over which the asking client has
        connected; an empty name is for brokers whose listeners have none.

        `own` is this broker's address as the client knows it, which stands for this broker.
        """
        addresses = ((id_, self.address(id_, own, listener)) for id_ in self._ids)
        return [(id_, *address) for id_, address in addresses if address is not None]

    def _has(self, broker_id: int, listener: str) -> bool:
        other = self._others.get(broker_id)
        return other is None or other.address_of(listener) is not None

    def address(self, broker_id: int, own: tuple[str, int], listener: str = "") -> tuple[str, int] | None:
        """Return host and port of a live broker by a listener; None if it does not have that. `own` comes back for this
        broker, and for one that is not live.
        """
        other = self._others.get(broker_id)
        return own if other is None else other.address_of(listener)

    def leader_for(self, topic_id: UUID, partition: int, listener: str) -> int:
        """Return the id of the broker that a client of a listener is told to be a partition's leader: this one, if the
        leader does not have the listener.
        """
        leader = self.leader(topic_id, partition)
        return leader if self._has(leader, listener) else self.broker_id

    def peer_address(self, broker_id: int) -> tuple[str, int] | None:
        """Return host and port of another live broker, as it told the others; None if it is not live."""
        other = self._others.get(broker_id)
        return None if other is None else (other.host, other.port)

    def leader(self, topic_id: UUID, partition: int) -> int:
        """Return the id of the broker that leads a partition, or, for a partition of a state topic, coordinates it."""
        if not self._others:
            return self.broker_id
        leader = self._leaders.get((topic_id, partition))
        if leader is None:
            key = topic_id.bytes + partition.to_bytes(4, "big")
            leader = self._leaders[topic_id, partition] = max(
                self._ids, key=lambda broker_id: blake2b(broker_id.to_bytes(4, "big") + key, digest_size=8).digest()
            )
        return leader

    def is_leader(self, topic_id: UUID, partition: int) -> bool:
        """Return true if this broker is the one that leads or coordinates a partition."""
        return self.leader(topic_id, partition) == self.broker_id

    def snapshot(self) -> ClusterSnapshot:
        """Return the id of this broker, and the other live brokers with their addresses, for a status page."""
        return ClusterSnapshot(self.broker_id, tuple(self._others.values()))

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of the live brokers, and after some seconds in which nobody could tell
        whether there was one.
        """
        self._listeners.append(callback)

    def _changed(self) -> None:
        others = {broker.node_id: broker for broker in self._brokers.brokers if broker.node_id != self.broker_id}
        if others != self._others:
            self._others = others
            self._ids = sorted({self.broker_id, *others})
            self._leaders.clear()
            self.version += 1
        for callback in self._listeners:
            callback()
