"""The catalogue: topics in memory, changed only after the change is durable.

Owns: names, ids, partition counts, the topics' own configs, and the SQL that keeps them.
Must not know: batches; a deleted topic's are the maintenance's to remove.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from bisect import insort
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

from kop.errors import ErrorCode, PeerError
from kop.storage.base import TopicInfo

if TYPE_CHECKING:
    from kop.storage.sqlite.engine import SqliteEngine

_log = logging.getLogger(__name__)

_LOGS_PER_INSERT = 500
T = TypeVar("T")
ChangeCallback = Callable[[TopicInfo | None, TopicInfo | None], None]


def new_uuid() -> UUID:
    """A random id that is none of Kafka's reserved ones and whose text form does not begin with a dash."""
    while (value := uuid4()).bytes[0] >> 2 == 62 or value.int < 256:
        pass
    return value


def frozen(configs: Mapping[str, str]) -> Mapping[str, str]:
    """A read-only copy."""
    return MappingProxyType(dict(configs))


class SqliteTopics:
    """`Topics` over the tables `topic` and `log`."""

    def __init__(self, engine: SqliteEngine, version: int, topics: Sequence[tuple[int, TopicInfo]]) -> None:
        self._engine = engine
        self._version = version
        self._by_name = {topic.name: topic for _, topic in topics}
        self._by_id = {topic.topic_id: topic for _, topic in topics}
        self._row = {topic.topic_id: row for row, topic in topics}
        self._names = sorted(self._by_name)
        self._turn = asyncio.Lock()
        self._listeners: list[ChangeCallback] = []

    @property
    def version(self) -> int:
        """Grows with every change of any topic; durable."""
        return self._version

    @property
    def namespace(self) -> None:
        """There are no namespaces."""

    async def find(self, names: Collection[str]) -> None:
        """All is in memory."""

    def missing(self, name: str) -> None:
        """All is in memory."""

    def get(self, name: str) -> TopicInfo | None:
        """The topic of that name, or None."""
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> TopicInfo | None:
        """The topic of that id, or None."""
        return self._by_id.get(topic_id)

    def all(self) -> Sequence[TopicInfo]:
        """Every topic, ordered by name."""
        return [self._by_name[name] for name in self._names]

    def on_change(self, callback: ChangeCallback) -> None:
        """Call `callback(old, new)` after each change."""
        self._listeners.append(callback)

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False
    ) -> TopicInfo:
        """Make a topic; TOPIC_ALREADY_EXISTS where the name is taken, INVALID_PARTITIONS for none."""
        return await self._change(self._create(TopicInfo(name, new_uuid(), partitions, frozen(configs), internal)))

    async def delete(self, topic_id: UUID) -> None:
        """Delete a topic. Its batches go in the background, also after a restart."""
        await self._change(self._delete(topic_id))

    async def grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        """Raise the number of partitions; INVALID_PARTITIONS where it would not grow."""
        return await self._change(self._grow(topic_id, partitions))

    async def set_configs(self, topic_id: UUID, configs: Mapping[str, str]) -> TopicInfo:
        """Replace the topic's own configs; in force when it returns."""
        return await self._change(self._set_configs(topic_id, frozen(configs)))

    async def held(self, topic_id: UUID) -> Mapping[str, str]:
        """None: nobody else changes what is here."""
        return {}

    async def refresh(self, topic_id: UUID) -> None:
        """Nothing to do: one process changes topics."""

    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        """Run one change at a time, to its end even where the caller goes away: memory has to follow the disk."""

        async def in_turn() -> T:
            async with self._turn:
                return await change

        return await self._engine.finish(in_turn())

    async def _create(self, topic: TopicInfo) -> TopicInfo:
        if topic.name in self._by_name:
            raise PeerError(f"topic {topic.name!r} already exists", ErrorCode.TOPIC_ALREADY_EXISTS)
        if topic.partitions < 1:
            raise PeerError(f"a topic of {topic.partitions} partitions", ErrorCode.INVALID_PARTITIONS)

        def write(conn: sqlite3.Connection) -> tuple[int, list[int], int]:
            row: int = conn.execute(
                "INSERT INTO topic (uuid, name, internal, configs) VALUES (?, ?, ?, ?) RETURNING id",
                (topic.topic_id.bytes, topic.name, topic.internal, json.dumps(dict(topic.configs))),
            ).fetchone()[0]
            return row, _insert_logs(conn, row, 0, topic.partitions), _next_version(conn)

        self._row[topic.topic_id], log_ids, version = await self._engine.writer.run(write)
        self._engine.add_logs(topic, log_ids)
        insort(self._names, topic.name)
        self._put(None, topic, version)
        return topic

    async def _delete(self, topic_id: UUID) -> None:
        topic = self._find(topic_id)
        row = self._row[topic_id]

        def write(conn: sqlite3.Connection) -> int:
            conn.execute("DELETE FROM topic WHERE id = ?", (row,))
            conn.execute("UPDATE log SET topic = NULL, producers = NULL WHERE topic = ?", (row,))
            return _next_version(conn)

        self._version = await self._engine.writer.run(write)
        del self._by_name[topic.name], self._by_id[topic_id], self._row[topic_id]
        self._names.remove(topic.name)
        self._engine.remove_logs(topic_id)
        self._tell(topic, None)

    async def _grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        topic = self._find(topic_id)
        row = self._row[topic_id]
        if partitions <= topic.partitions:
            raise PeerError(
                f"topic {topic.name!r} has {topic.partitions} partitions, {partitions} would be no growth",
                ErrorCode.INVALID_PARTITIONS,
            )
        log_ids, version = await self._engine.writer.run(
            lambda conn: (_insert_logs(conn, row, topic.partitions, partitions), _next_version(conn))
        )
        grown = replace(topic, partitions=partitions)
        self._engine.add_logs(grown, log_ids)
        self._put(topic, grown, version)
        return grown

    async def _set_configs(self, topic_id: UUID, configs: Mapping[str, str]) -> TopicInfo:
        topic = self._find(topic_id)
        row = self._row[topic_id]

        def write(conn: sqlite3.Connection) -> int:
            conn.execute("UPDATE topic SET configs = ? WHERE id = ?", (json.dumps(dict(configs)), row))
            return _next_version(conn)

        version = await self._engine.writer.run(write)
        changed = replace(topic, configs=configs)
        self._put(topic, changed, version)
        return changed

    def _find(self, topic_id: UUID) -> TopicInfo:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise PeerError("there is no such topic", ErrorCode.UNKNOWN_TOPIC_ID)
        return topic

    def _put(self, old: TopicInfo | None, new: TopicInfo, version: int) -> None:
        self._version = version
        self._by_name[new.name] = self._by_id[new.topic_id] = new
        self._engine.update_logs(new)
        self._tell(old, new)

    def _tell(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        for callback in self._listeners:
            try:
                callback(old, new)
            except Exception:
                _log.exception("a listener on topic changes failed")


def load(conn: sqlite3.Connection) -> list[tuple[int, TopicInfo]]:
    """Every topic with the id of its row."""
    rows = conn.execute(
        "SELECT id, uuid, name, internal, configs, (SELECT count(*) FROM log WHERE log.topic = topic.id) FROM topic"
    )
    return [
        (row, TopicInfo(name, UUID(bytes=uuid), partitions, frozen(json.loads(configs)), bool(internal)))
        for row, uuid, name, internal, configs, partitions in rows
    ]


def _insert_logs(conn: sqlite3.Connection, topic: int, first: int, end: int) -> list[int]:
    for start in range(first, end, _LOGS_PER_INSERT):
        indexes = range(start, min(start + _LOGS_PER_INSERT, end))
        conn.execute(
            f"INSERT INTO log (topic, partition) VALUES {','.join(['(?,?)'] * len(indexes))}",
            [value for index in indexes for value in (topic, index)],
        )
    rows = conn.execute("SELECT id FROM log WHERE topic = ? AND partition >= ? ORDER BY partition", (topic, first))
    return [row[0] for row in rows]


def _next_version(conn: sqlite3.Connection) -> int:
    version: int = conn.execute(
        "UPDATE meta SET value = value + 1 WHERE key = 'topics.version' RETURNING value"
    ).fetchone()[0]
    return version
