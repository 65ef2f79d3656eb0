"""Which gateways serve together, and which of them a partition or a group is given to.

Owns: the choice among the live brokers (rendezvous hashing: when one comes or goes, only its share moves).
Must not know: how a gateway learns of the others; the engine tells.

Leadership of a topic's partition is a preference: every gateway can serve it, one has it in its cache. That of a
partition of `__offsets` is a duty, and the engine fences it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from uuid import UUID

from kop.storage.base import Member, Members


class Membership:
    """The live brokers, this one always among them."""

    def __init__(self, members: Members, node_id: int) -> None:
        self.node_id = node_id
        self.version = 0
        """Grows with every change: a key for cached answers."""
        self._members = members
        self._listeners: list[Callable[[], None]] = []
        self._leaders: dict[tuple[UUID, int], int] = {}
        self._ids: list[int] = [node_id]
        self._others: dict[int, Member] = {}
        members.on_members(self._changed)
        self._changed()

    @property
    def ids(self) -> Sequence[int]:
        """Ids of the live brokers, ascending."""
        return self._ids

    def nodes(self, own: tuple[str, int]) -> list[tuple[int, str, int]]:
        """Id, host and port of each; `own` is this broker's address as the asking client knows it."""
        return [(node, *self.address(node, own)) for node in self._ids]

    def address(self, node_id: int, own: tuple[str, int]) -> tuple[str, int]:
        """Host and port of a broker."""
        other = self._others.get(node_id)
        return own if other is None else (other.host, other.port)

    def leader(self, topic_id: UUID, partition: int) -> int:
        """The broker that a partition is given to."""
        if not self._others:
            return self.node_id
        found = self._leaders.get((topic_id, partition))
        if found is None:
            key = topic_id.bytes + partition.to_bytes(4, "big")
            found = self._leaders[topic_id, partition] = max(
                self._ids, key=lambda node: blake2b(node.to_bytes(4, "big") + key, digest_size=8).digest()
            )
        return found

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change, and when nobody could tell for some seconds whether there was one."""
        self._listeners.append(callback)

    def _changed(self) -> None:
        others = {member.node_id: member for member in self._members.members if member.node_id != self.node_id}
        if others != self._others:
            self._others = others
            self._ids = sorted({self.node_id, *others})
            self._leaders.clear()
            self.version += 1
        for callback in self._listeners:
            callback()
