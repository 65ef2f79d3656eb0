"""Over Pulsar a space of names is a namespace: what its clients make is there for Pulsar's own clients, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from interop.interop_kit import SECONDS, Interop, run
from support.pulsar_admin import PulsarAdmin
from support.pulsar_gateway import PulsarGateway
from support.side_by_side import TOPIC, side_by_side
from support.spaces import bootstrap, by_listener
from support.waiting import until

from conformance.authorization.world import Connection
from kop.app import Serving
from kop.errors import ErrorCode
from kop.pulsar_client.admin import FOREVER
from kop.security.tenants import Space, space_of

pytestmark = pytest.mark.pulsar


@pytest.fixture(scope="module")
def namespaces(interop: Interop) -> tuple[str, str]:
    """Two namespaces that are no gateway's home; they go with the home one."""
    names = f"{interop.pulsar.namespace}-first", f"{interop.pulsar.namespace}-second"

    async def make(admin: PulsarAdmin) -> None:
        for name in names:
            await admin.create_namespace(name)
            await admin.set_namespace_retention(name, FOREVER)

    interop.admin(make)
    return names


@pytest.fixture(scope="module")
def serving(interop: Interop, namespaces: tuple[str, str]) -> Iterator[Serving]:
    """A gateway with a listener for each of them, and one for a namespace that is not there."""
    absent = f"{interop.pulsar.namespace}-absent"
    listeners = zip(("FIRST", "SECOND", "ABSENT"), map(space_of, (*namespaces, absent)), strict=True)
    of_listeners: dict[str, Space] = dict(listeners)
    with by_listener(of_listeners) as settings:
        gateway = PulsarGateway(interop.pulsar, "spaces", **settings)
        gateway.start()
        try:
            assert gateway.serving is not None
            yield gateway.serving
        finally:
            gateway.stop()


@asynccontextmanager
async def clients(serving: Serving) -> AsyncIterator[list[Connection]]:
    """A client of the home space, and those of the others."""
    conns = [await Connection.open(*listener) for listener in serving.listeners]
    try:
        yield conns
    finally:
        for conn in conns:
            conn.close()


async def named(conn: Connection, *names: str, create: bool = False) -> dict[str, Any]:
    """Ask for topics by name, or for all; return the rows of the answer by name."""
    asked = [{"name": name, "topic_id": None} for name in names] or None
    answer = await conn.call(3, 12, topics=asked, allow_auto_topic_creation=create)
    return {topic.name: topic for topic in answer.topics}


def test_clients_of_two_namespaces_with_equal_names_see_nothing_of_one_another(
    interop: Interop, namespaces: tuple[str, str], serving: Serving
) -> None:
    run(side_by_side(bootstrap(serving, 1), bootstrap(serving, 2)))
    for number, namespace in enumerate(namespaces):
        messages = interop.receive(f"persistent://{namespace}/{TOPIC}-partition-0", 3)
        assert [message.data() for message in messages] == [f"{number} {index}".encode() for index in range(3)]


def test_all_topics_are_those_that_pulsar_has_in_the_namespace(
    interop: Interop, namespaces: tuple[str, str], serving: Serving
) -> None:
    first, _ = namespaces
    name = interop.name("theirs")

    async def main() -> None:
        async with clients(serving) as (_, conn, other, _):
            before = await named(conn)
            async with PulsarAdmin(interop.pulsar.admin_url, timeout=SECONDS) as admin:
                await admin.create_partitioned(f"persistent://{first}/{name}", 2, {})

            async def told() -> Any:
                return (await named(conn)).get(name)

            assert len((await until(told)).partitions) == 2
            assert (await named(conn)).keys() == before.keys() | {name}
            described = await conn.call(75, 0, topics=[], response_partition_limit=100, cursor=None)
            assert [topic.name for topic in described.topics] == sorted(before.keys() | {name})
            assert name not in await named(other)

    run(main())


def test_no_other_namespace_is_reached_by_a_long_name_or_an_id(
    interop: Interop, namespaces: tuple[str, str], serving: Serving
) -> None:
    _, second = namespaces
    topic = interop.name()

    async def main() -> None:
        async with clients(serving) as (home, first, theirs, _):
            made = [(await named(conn, topic, create=True))[topic] for conn in (home, theirs)]
            assert [row.error_code for row in made] == [0, 0]
            full = [f"{namespace}/{topic}" for namespace in (second, interop.pulsar.namespace)]
            names = [*full, *(f"persistent://{name}" for name in full)]
            told = await named(first, *names, create=True)
            assert {name: row.error_code for name, row in told.items()} == dict.fromkeys(
                names, ErrorCode.INVALID_TOPIC_EXCEPTION
            )
            ids = [UUID(int=row.topic_id.int ^ form) for row in made for form in range(3)]
            answer = await first.call(3, 12, topics=[{"name": None, "topic_id": each} for each in ids])
            assert {(row.name, row.error_code) for row in answer.topics} == {(None, ErrorCode.UNKNOWN_TOPIC_ID)}
            assert topic not in await named(first)

    run(main())


def test_a_namespace_that_is_not_there_has_no_topics_and_takes_none(serving: Serving) -> None:
    async def main() -> None:
        async with clients(serving) as (*_, conn):
            assert await named(conn) == {}
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            (row,) = (await conn.call(19, 7, topics=[topic], timeout_ms=10_000)).topics
            assert (row.name, row.error_code) == ("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert row.error_message.startswith("cannot create topic 't': Pulsar says NotFound")
            assert row.error_message.endswith("Namespace not found")

    run(main())
