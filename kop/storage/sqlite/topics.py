"""The table of topics in memory, changed only after the change is durable.

Owns: names, ids, partition counts, the topics' own configs, and the SQL that keeps them.
Must not know: batches; a deleted topic's are the maintenance's to remove.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from kop.storage.base import TopicInfo
from kop.storage.local import LocalTopics, frozen
from kop.storage.sqlite.log import SqliteLogTable
from kop.storage.sqlite.writer import Writer
from kop.storage.topic_table import new_uuid

_log = logging.getLogger(__name__)

_LOGS_PER_INSERT = 500
T = TypeVar("T")
Finish: TypeAlias = Callable[[Coroutine[Any, Any, T]], Coroutine[Any, Any, T]]
"""The type of a function that runs work to its end even if the caller goes away."""


class SqliteTopics(LocalTopics):
    """The table of topics, kept in the SQL tables `topic` and `log`."""

    def __init__(
        self,
        version: int,
        topics: Sequence[tuple[int, TopicInfo]],
        *,
        writer: Writer,
        logs: SqliteLogTable,
        finish: Finish[Any],
        on_removed: Callable[[], None],
    ) -> None:
        """Keep the parts that changes use. `on_removed` is called after a topic was deleted: its batches are still on
        the disk.
        """
        super().__init__(version, (topic for _, topic in topics))
        self._writer = writer
        self._logs = logs
        self._finish = finish
        self._on_removed = on_removed
        self._row = {topic.topic_id: row for row, topic in topics}
        self._turn = asyncio.Lock()

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, internal: bool = False
    ) -> TopicInfo:
        """Make a topic, durably, and return it; TOPIC_ALREADY_EXISTS if the name is taken, INVALID_PARTITIONS for a
        number below 1.
        """
        return await self._change(self._create(TopicInfo(name, new_uuid(), partitions, frozen(configs), internal)))

    async def delete(self, topic_id: UUID) -> None:
        """Delete a topic; UNKNOWN_TOPIC_ID if it does not exist. Its batches are deleted in the background, also after
        a restart.
        """
        await self._change(self._delete(topic_id))

    async def grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        """Raise the number of a topic's partitions, and return the topic; INVALID_PARTITIONS if it would not grow,
        UNKNOWN_TOPIC_ID if it does not exist.
        """
        return await self._change(self._grow(topic_id, partitions))

    async def set_configs(self, topic_id: UUID, configs: Mapping[str, str], named: Collection[str] = ()) -> TopicInfo:
        """Replace the topic's own configs, and return the topic; durable and in force when this returns.
        UNKNOWN_TOPIC_ID if it does not exist.
        """
        return await self._change(self._set_configs(topic_id, frozen(configs)))

    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        """Make one change of topics at a time, to its end even if the caller goes away: memory has to follow the
        disk.
        """

        async def in_turn() -> T:
            async with self._turn:
                return await change

        result: T = await self._finish(in_turn())
        return result

    async def _create(self, topic: TopicInfo) -> TopicInfo:
        self._check_new(topic)

        def write(conn: sqlite3.Connection) -> tuple[int, list[int], int]:
            row: int = conn.execute(
                "INSERT INTO topic (uuid, name, internal, configs) VALUES (?, ?, ?, ?) RETURNING id",
                (topic.topic_id.bytes, topic.name, topic.internal, json.dumps(dict(topic.configs))),
            ).fetchone()[0]
            return row, _insert_logs(conn, row, 0, topic.partitions), _next_version(conn)

        self._row[topic.topic_id], log_ids, version = await self._writer.run(write)
        self._logs.add(topic, log_ids)
        self._put(None, topic, version)
        return topic

    async def _delete(self, topic_id: UUID) -> None:
        topic = self._find(topic_id)
        row = self._row[topic_id]

        def write(conn: sqlite3.Connection) -> int:
            conn.execute("DELETE FROM topic WHERE id = ?", (row,))
            conn.execute("UPDATE log SET topic = NULL, producers = NULL WHERE topic = ?", (row,))
            return _next_version(conn)

        self._version = await self._writer.run(write)
        self._strike(topic)
        del self._row[topic_id]
        self._logs.remove(topic_id)
        self._on_removed()
        self._tell(topic, None)

    async def _grow(self, topic_id: UUID, partitions: int) -> TopicInfo:
        topic = self._find(topic_id)
        row = self._row[topic_id]
        self._check_growth(topic, partitions)
        log_ids, version = await self._writer.run(
            lambda conn: (_insert_logs(conn, row, topic.partitions, partitions), _next_version(conn))
        )
        grown = replace(topic, partitions=partitions)
        self._logs.add(grown, log_ids)
        self._put(topic, grown, version)
        return grown

    async def _set_configs(self, topic_id: UUID, configs: Mapping[str, str]) -> TopicInfo:
        topic = self._find(topic_id)
        if configs == topic.configs:
            return topic
        row = self._row[topic_id]

        def write(conn: sqlite3.Connection) -> int:
            conn.execute("UPDATE topic SET configs = ? WHERE id = ?", (json.dumps(dict(configs)), row))
            return _next_version(conn)

        version = await self._writer.run(write)
        changed = replace(topic, configs=configs)
        self._put(topic, changed, version)
        return changed

    def _put(self, old: TopicInfo | None, new: TopicInfo, version: int) -> None:
        self._version = version
        self._enter(new)
        self._logs.update(new)
        self._tell(old, new)


def load(conn: sqlite3.Connection) -> list[tuple[int, TopicInfo]]:
    """Return every topic in the database, with the id of its row."""
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
