"""Incremental fetch sessions (KIP-227): what a consumer asked for last time need not be asked again.

Owns: sessions, their epochs and their eviction, the memory that they take together.
Must not know: logs, sockets.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Final
from uuid import UUID

from kop import clock
from kop.errors import ErrorCode, PeerError
from kop.metrics import Metrics
from kop.wire.fetch import FetchCall, FetchPartition, FetchPartitionAnswer

Key = tuple[str | UUID, int]

_INVALID_SESSION_ID = 0
_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_MAX_EPOCH = 0x7FFFFFFF
EVICT_AFTER_MS = 120_000
"""The ms without use after which a session makes room for a new one (Kafka's
min.incremental.fetch.session.eviction.ms).
"""
MOST_BYTES: Final = 96 * 1024 * 1024
"""The most bytes of memory that all sessions take together: enough for twice the number of partitions that there may be
by default. Kafka bounds the number of sessions alone.
"""
_PARTITION_BYTES: Final = 320
"""The bytes that a partition of a session takes beside its topic's name."""


class SessionPartition:
    """One partition of a fetch session: the client's wishes for it, and the values of its last answer."""

    __slots__ = ("high_watermark", "last_stable_offset", "log_start_offset", "topic_name", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.topic_name: str | None = None
        """The name that the topic's id had when a request last named the partition; None if the session goes by
        names.
        """
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1

    def news(self, answer: FetchPartitionAnswer) -> bool:
        """Return true if the answer of this partition has records, an error, or log ends that the client does not know
        yet; the ends count as known to it from now on.

        An answer of a partition that is not read yet (no error, no high watermark) has nothing new.
        """
        if answer.high_watermark < 0 and not answer.error_code:
            return False
        changed = bool(
            answer.size
            or answer.error_code
            or answer.high_watermark != self.high_watermark
            or answer.last_stable_offset != self.last_stable_offset
            or answer.log_start_offset != self.log_start_offset
        )
        self.high_watermark = -1 if answer.error_code else answer.high_watermark
        self.last_stable_offset = answer.last_stable_offset
        self.log_start_offset = answer.log_start_offset
        return changed


class FetchSession:
    """A fetch session: a client's partitions, in the order in which they get their turn."""

    __slots__ = ("by_id", "epoch", "last_used_ms", "owner", "partitions", "session_id", "size")

    def __init__(self, session_id: int, by_id: bool, now_ms: int, owner: str) -> None:
        self.session_id = session_id
        self.owner = owner
        """The client that began it, and the space of names in which that works. No other client is served by it."""
        self.by_id = by_id
        self.epoch = 1
        self.last_used_ms = now_ms
        self.partitions: dict[Key, SessionPartition] = {}
        self.size = 0
        """The bytes of memory that its partitions take."""

    def update(self, call: FetchCall) -> None:
        """Apply a request to the session's partitions: those that it names are added or changed, those that it forgets
        are removed.
        """
        for wanted in call.partitions:
            key = (wanted.topic, wanted.partition)
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = SessionPartition(wanted)
                self.size += _size_of(wanted.topic)
            else:
                known.wanted = wanted
        for key in call.forgotten:
            if self.partitions.pop(key, None) is not None:
                self.size -= _size_of(key[0])

    def rotate(self, served: list[Key]) -> None:
        """Put the partitions `served`, which gave records, behind all others of the session, so that those come first
        next time.
        """
        for key in served:
            partition = self.partitions.pop(key, None)
            if partition is not None:
                self.partitions[key] = partition


class FetchSessions:
    """The sessions of this broker, `slots` at most, which take `MOST_BYTES` of memory at most."""

    def __init__(self, slots: int, metrics: Metrics) -> None:
        self._slots = slots
        self._metrics = metrics
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """The sessions by their ids, the one that was not used for the longest time first."""
        self._size = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, call: FetchCall, *, by_id: bool, now_ms: int, owner: str) -> FetchSession | None:
        """Return the session that a Fetch belongs to, updated by it and with its next epoch; None for a Fetch without
        one. `owner` names the client, `by_id` is true if it goes by topic ids.

        Epoch 0 ends the client's session of that id and begins a new one; None if the Fetch names no partition, or
        there is no room and no session was unused for two minutes. Epoch -1 only ends it. A session that loses its last
        partition, or for whose new ones there is no room, ends, too, and the answer says so by the session id 0.
        PeerError: FETCH_SESSION_ID_NOT_FOUND if it was
        evicted or is another client's, INVALID_FETCH_SESSION_EPOCH if requests got lost, FETCH_SESSION_TOPIC_ID_ERROR
        if names and ids are mixed in one session.
        """
        if call.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            if call.session_id != _INVALID_SESSION_ID and self._of(call, owner) is not None:
                self._drop(call.session_id)
            if call.session_epoch == _FINAL_EPOCH:
                return None
            return self._create(call, by_id, now_ms, owner)
        session = self._of(call, owner)
        if session is None:
            raise PeerError("no such fetch session", ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != call.session_epoch:
            raise PeerError(
                f"fetch session epoch {call.session_epoch} where {session.epoch} was expected",
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            )
        if session.by_id != by_id:
            raise PeerError("a fetch session goes by names or by ids", ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._size -= session.size
        session.update(call)
        self._size += session.size
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        if not session.partitions or not self._make_room(now_ms, slots=self._slots):
            self._drop(session.session_id)
            return None
        return session

    def end(self, session: FetchSession) -> None:
        """End a session that its client is not told of."""
        if self._sessions.get(session.session_id) is session:
            self._drop(session.session_id)

    def _of(self, call: FetchCall, owner: str) -> FetchSession | None:
        session = self._sessions.get(call.session_id)
        return session if session is not None and session.owner == owner else None

    def _create(self, call: FetchCall, by_id: bool, now_ms: int, owner: str) -> FetchSession | None:
        if not call.partitions:
            return None
        size = sum([_size_of(wanted.topic) for wanted in call.partitions])
        if not self._make_room(now_ms, slots=self._slots - 1, size=size):
            return None
        session_id = clock.chance.randint(1, 0x7FFFFFFF)
        while session_id in self._sessions:
            session_id = clock.chance.randint(1, 0x7FFFFFFF)
        session = FetchSession(session_id, by_id, now_ms, owner)
        session.update(call)
        self._sessions[session_id] = session
        self._size += session.size
        self._metrics.fetch_sessions.set(len(self._sessions))
        return session

    def _make_room(self, now_ms: int, *, slots: int, size: int = 0) -> bool:
        """Evict sessions that were unused for two minutes, as many as it takes for at most `slots` to be left, and for
        `size` more bytes; return true if that was enough.
        """
        most = MOST_BYTES - size
        if slots < 0 or most < 0:
            return False
        while len(self._sessions) > slots or self._size > most:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms < EVICT_AFTER_MS:
                return False
            self._drop(oldest.session_id)
            self._metrics.fetch_sessions_evicted.inc()
        return True

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._size -= session.size
        self._metrics.fetch_sessions.set(len(self._sessions))


def _size_of(topic: str | UUID) -> int:
    """Return the bytes of memory that a partition of a topic takes in a session, by the topic's name or id. Each counts
    the name twice, as the key and in the client's last wish: requests may name a topic once for each partition.
    """
    return _PARTITION_BYTES + 2 * sys.getsizeof(topic)
