"""What clients of a space of names may try to reach another one: long names, ids, sessions, kept answers; and what
their own names may be.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from handlers.authorized_gateway import NATIVE, Client
from support.direct_engine import DirectStore
from support.gateway import RawClient, batch, fetch_fields, log_of, produce_fields, run
from support.side_by_side import TOPIC
from support.spaces import FIRST, SECOND, spaces

from conformance.authorization.world import Connection
from kop.app import Serving
from kop.errors import ErrorCode
from kop.handlers.access import ANONYMOUS
from kop.security.tenants import HOME
from kop.server.request import RequestPipeline

LONG_NAMES = [f"{SECOND.prefix}{TOPIC}", f"persistent://{SECOND.prefix}{TOPIC}", f"persistent://{FIRST.prefix}{TOPIC}"]
UNKNOWN, UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID
ILLEGAL = ErrorCode.INVALID_TOPIC_EXCEPTION


class Clients:
    """A client of the home space, and those of two others."""

    def __init__(self, serving: Serving, home: Connection, first: Connection, second: Connection) -> None:
        self.serving = serving
        self.home, self.first, self.second = self.all = (home, first, second)


@asynccontextmanager
async def clients(path: Path, **settings: str) -> AsyncIterator[Clients]:
    """Connect to a gateway on which each client has a topic of the same name, with a record in it."""
    async with spaces(path, **({"store": "memory:"} | settings)) as serving:
        connections = [await Connection.open(*listener) for listener in serving.listeners]
        try:
            yield Clients(serving, *connections)
        finally:
            for each in connections:
                each.close()


async def made(conn: Connection, *names: str) -> list[Any]:
    """Make topics; return the rows of the answer."""
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    return list((await conn.call(19, 7, topics=topics, timeout_ms=10_000)).topics)


async def metadata(conn: Connection, *names: str, version: int = 12, create: bool = False) -> dict[str, Any]:
    """Ask for topics by name, or for all of them; return the rows of the answer by name."""
    asked = [{"name": name, "topic_id": None} for name in names] or None
    answer = await conn.call(3, version, topics=asked, allow_auto_topic_creation=create)
    return {topic.name: topic for topic in answer.topics}


def test_no_long_name_is_that_of_a_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            await made(at.first, TOPIC)
            await made(at.second, TOPIC)
            told = await metadata(at.first, *LONG_NAMES, create=True)
            assert {name: row.error_code for name, row in told.items()} == dict.fromkeys(LONG_NAMES, ILLEGAL)
            answers = await made(at.first, *LONG_NAMES)
            assert {row.name: row.error_code for row in answers} == dict.fromkeys(LONG_NAMES, ILLEGAL)
            assert not any(FIRST.prefix * 2 in row.error_message for row in answers)
            deleted = await at.first.call(20, 5, topic_names=LONG_NAMES, timeout_ms=10_000)
            assert {row.error_code for row in deleted.responses} == {UNKNOWN}
            offsets = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]} for name in LONG_NAMES]
            listed = await at.first.call(2, 7, topics=offsets)
            assert {row.name: row.partitions[0].error_code for row in listed.topics} == dict.fromkeys(
                LONG_NAMES, UNKNOWN
            )

    run(main())


@pytest.mark.parametrize("name", LONG_NAMES)
def test_nothing_is_written_or_read_by_a_long_name(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            await made(at.first, TOPIC)
            await made(at.second, TOPIC)
            raw = await RawClient.open(*at.serving.listeners[1])
            answer = await raw.call(0, 9, **produce_fields(name, batch([b"x"]), version=9))
            assert answer.responses[0].name == name
            assert answer.responses[0].partition_responses[0].error_code == UNKNOWN
            fetched = await raw.call(1, 12, **fetch_fields(name, 0, version=12))
            assert (fetched.responses[0].topic, fetched.responses[0].partitions[0].error_code) == (name, UNKNOWN)
            await raw.close()
            assert (await metadata(at.second)).keys() == {TOPIC}

    run(main())


def test_the_id_of_a_topic_of_another_space_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            await made(at.first, TOPIC)
            (topic,) = await made(at.second, TOPIC)
            topic_id = topic.topic_id
            asked = [{"name": None, "topic_id": topic_id}]
            told = await at.first.call(3, 12, topics=asked)
            assert [(row.name, row.error_code) for row in told.topics] == [(None, UNKNOWN_ID)]
            deleted = await at.first.call(20, 6, topics=asked, timeout_ms=10_000)
            assert [(row.name, row.error_code) for row in deleted.responses] == [(None, UNKNOWN_ID)]
            partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
            of_topic = {"topic_id": topic_id, "partitions": [partition]}
            committed = await at.first.call(
                8, 10, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[of_topic]
            )
            assert committed.topics[0].partitions[0].error_code == UNKNOWN_ID
            raw = await RawClient.open(*at.serving.listeners[1])
            answer = await raw.call(0, 13, **produce_fields(topic_id, batch([b"x"]), version=13))
            assert answer.responses[0].partition_responses[0].error_code == UNKNOWN_ID
            fetched = await raw.call(1, 13, **fetch_fields(topic_id, 0, version=13))
            assert fetched.responses[0].partitions[0].error_code == UNKNOWN_ID
            await raw.close()
            assert (await metadata(at.second)).keys() == {TOPIC}

    run(main())


def test_a_fetch_session_is_of_the_space_that_began_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            await made(at.second, TOPIC)
            begun = fetch_fields(TOPIC, 0, version=12, session_epoch=0)
            opened = [await RawClient.open(*listener) for listener in at.serving.listeners]
            session = await opened[2].call(1, 12, **begun)
            assert (session.responses[0].topic, session.session_id != 0) == (TOPIC, True)
            again = begun | {"session_id": session.session_id, "session_epoch": 1, "topics": []}
            codes = [(await client.call(1, 12, **again)).error_code for client in opened]
            assert codes == [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0]
            for client in opened:
                await client.close()

    run(main())


def test_an_answer_that_is_kept_is_of_one_space(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            ids = [(await made(conn, TOPIC))[0].topic_id for conn in at.all]
            assert len(set(ids)) == len(ids)
            for _ in range(2):
                told = [await metadata(conn, TOPIC) for conn in at.all]
                assert [row[TOPIC].topic_id for row in told] == ids
                told = [await metadata(conn) for conn in at.all]
                assert [row[TOPIC].topic_id for row in told] == ids
                assert [row.keys() for row in told[1:]] == [{TOPIC}] * 2

    run(main())


def test_what_is_kept_for_a_client_is_kept_by_its_space(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            (topic,) = await made(at.first, TOPIC)
            pipeline = RequestPipeline(at.serving.gateway)
            # Clients of one principal, from one place, who came by one listener.
            told = []
            for space in (FIRST, SECOND, FIRST, HOME):
                client = Client(pipeline, ANONYMOUS)
                client.conn.space = space
                answer = await client.call(3, 12, topics=None, allow_auto_topic_creation=False)
                told.append({row.topic_id for row in answer.topics if not row.is_internal})
                assert await client.produce(TOPIC) == (0 if space is FIRST else UNKNOWN)
                assert await client.produce(topic.topic_id) == (0 if space in {FIRST, HOME} else UNKNOWN_ID)
            assert told == [{topic.topic_id}, set(), {topic.topic_id}, set()]

    run(main())


@pytest.mark.skipif(NATIVE is None, reason="kop._native was not built: nothing goes this way")
def test_a_compiled_produce_goes_into_the_space_of_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectStore(random.Random(1))
    store.hands_over = 0
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)

    async def main() -> None:
        async with clients(tmp_path) as at:
            for conn in at.all[:2]:
                await made(conn, TOPIC)
            pipeline = RequestPipeline(at.serving.gateway)
            ends = {HOME.inward(TOPIC): 0, FIRST.inward(TOPIC): 0}
            for space in (HOME, FIRST, SECOND, HOME, FIRST, SECOND):
                client = Client(pipeline, ANONYMOUS)
                client.conn.space = space
                before = client.directly
                for _ in range(4):
                    assert await client.produce(TOPIC) == (UNKNOWN if space is SECOND else 0)
                    if space is not SECOND:
                        ends[space.inward(TOPIC)] += 1
                assert (client.directly > before) == (space is not SECOND)
                assert {name: log_of(at.serving, name).high_watermark for name in ends} == ends

    run(main())


def test_names_have_the_same_limits_in_every_space(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            longest = "x" * 249
            for conn in at.all:
                codes = [row.error_code for row in await made(conn, longest, longest + "x", "..", "")]
                assert codes == [0, ILLEGAL, ILLEGAL, ILLEGAL]
                told = await metadata(conn, longest, longest + "x", "bad name")
                assert [row.error_code for row in told.values()] == [0, ILLEGAL, ILLEGAL]
                # A name is alike to others of its own space alone, and that is told in the client's words.
                assert [row.error_code for row in await made(conn, "a.b")] == [0]
                (refused,) = await made(conn, "a_b")
                assert (refused.error_code, refused.error_message) == (
                    ILLEGAL,
                    "Topic 'a_b' collides with existing topic: a.b",
                )

    run(main())


def test_a_topic_that_is_asked_for_is_made_in_the_space(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            assert (await metadata(at.first, "new", create=True))["new"].error_code == 0
            assert [(await metadata(conn)).keys() for conn in at.all[1:]] == [{"new"}, set()]
            assert "new" not in await metadata(at.home)

    run(main())


def test_thousands_of_names_come_back_as_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            names = [f"{number:04}" * 20 for number in range(600)]
            await made(at.first, names[0])
            told = await metadata(at.first, *names)
            assert list(told) == names
            assert [row.error_code for row in told.values()] == [0] + [UNKNOWN] * 599
            described = await at.first.call(15, 5, groups=names)
            assert [group.group_id for group in described.groups] == names

    run(main())


def test_super_users_are_told_of_all_spaces_by_full_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path, super_users="User:ANONYMOUS") as at:
            for conn in at.all:
                await made(conn, TOPIC)
            own = {name for name in await metadata(at.home) if not name.startswith("__")}
            assert own == {TOPIC, FIRST.inward(TOPIC), SECOND.inward(TOPIC)}
            raw = await RawClient.open(*at.serving.listeners[0])
            answer = await raw.call(0, 9, **produce_fields(FIRST.inward(TOPIC), batch([b"x"]), version=9))
            assert answer.responses[0].partition_responses[0].error_code == 0
            await raw.close()

    run(main())


def test_transactional_ids_are_listed_by_a_pattern_of_the_clients_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with clients(tmp_path) as at:
            for conn in at.all:
                begun = await conn.call(
                    22, 4, transactional_id="writer", transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
                )
                assert begun.error_code == 0
            for pattern, listed in (("wri.*", ["writer"]), (".*/writer", []), ("x)|(.*", [])):
                answer = await at.first.call(66, 2, transactional_id_pattern=pattern)
                assert [row.transactional_id for row in answer.transaction_states] == listed

    run(main())


def test_what_is_of_a_space_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        store = f"sqlite:{tmp_path / 'kop.db'}"
        ids: list[UUID] = []
        for _ in range(2):
            async with clients(tmp_path, store=store) as at:
                if not ids:
                    ids = [(await made(conn, TOPIC))[0].topic_id for conn in at.all]
                told = [await metadata(conn) for conn in at.all]
                assert [row[TOPIC].topic_id for row in told] == ids
                assert [row.keys() for row in told[1:]] == [{TOPIC}] * 2

    run(main())
