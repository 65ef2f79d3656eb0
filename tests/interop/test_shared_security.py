"""ACLs and users of two gateways on one Pulsar: what one of them changes is in force on the other within a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from interop.interop_kit import SECONDS, Interop, run
from support.pulsar_gateway import PulsarGateway

from conformance.authorization.world import Connection
from kop.errors import ErrorCode
from kop.security.settings import STANDARD_AUTHORIZER


@pytest.fixture(scope="module")
def guarded(interop: Interop) -> Iterator[Interop]:
    """Two gateways of one cluster, whose clients may do everything that no ACL is about."""
    settings = {"authorizer_class_name": STANDARD_AUTHORIZER, "allow_everyone_if_no_acl_found": "true"}
    gateways = [PulsarGateway(interop.pulsar, "guarded", node_id=str(number), **settings) for number in (1, 2)]
    for gateway in gateways:
        gateway.start()
    yield replace(interop, gateway=gateways[0], other=gateways[1])
    for gateway in gateways:
        gateway.stop()


def binding(name: str, pattern: ResourcePatternType = ResourcePatternType.LITERAL) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, name, pattern, "User:nobody", "*", AclOperation.READ, AclPermissionType.ALLOW)


def create(client: AdminClient, acl: AclBinding) -> None:
    for future in client.create_acls([acl]).values():
        future.result(SECONDS)


def delete(client: AdminClient, acl: AclBinding) -> None:
    which = AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )
    for future in client.delete_acls([which]).values():
        assert future.result(SECONDS) == [acl]


async def in_force(condition: Callable[[], Awaitable[bool]]) -> float:
    """Wait until a change is in force; return the seconds that it took, of which one is promised.

    A loaded machine takes longer now and then: the least of several changes tells.
    """
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < SECONDS
        await asyncio.sleep(0.01)  # asked again and again
    return time.monotonic() - began


ACL = {
    "resource_pattern_type": 3,
    "resource_type": 2,
    "principal": "User:nobody",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER = {"resource_type_filter": 2, "pattern_type_filter": 3, "principal_filter": None, "host_filter": None}


def test_a_change_on_one_gateway_is_in_force_on_the_other_within_a_second(guarded: Interop) -> None:
    topic = guarded.create(guarded.name())
    guarded.known(topic, guarded.other)
    asked = [{"name": topic, "topic_id": None}]

    async def may_see(conn: Connection) -> bool:
        answer = await conn.call(3, 12, topics=asked, allow_auto_topic_creation=False)
        return answer.topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED

    async def may_not_see(conn: Connection) -> bool:
        return not await may_see(conn)

    async def main() -> None:
        conns = [await Connection.open(*gateway.address) for gateway in (guarded.gateway, guarded.other)]
        took = []
        for writer, reader in (conns, conns[::-1], conns):
            assert await may_see(reader)
            created = await writer.call(30, 3, creations=[ACL | {"resource_name": topic}])
            assert created.results[0].error_code == 0
            assert await may_not_see(writer)
            took.append(await in_force(partial(may_not_see, reader)))
            which = FILTER | {"resource_name_filter": topic, "operation": 1, "permission_type": 1}
            deleted = await writer.call(31, 3, filters=[which])
            assert len(deleted.filter_results[0].matching_acls) == 1
            assert await may_see(writer)
            took.append(await in_force(partial(may_see, reader)))
        assert min(took) < 1, took
        for conn in conns:
            conn.close()

    run(main())


def test_a_user_made_on_one_gateway_is_known_to_the_other_within_a_second(guarded: Interop) -> None:
    name = guarded.name("user")
    user = {"name": name, "mechanism": 2}

    async def main() -> None:
        conns = [await Connection.open(*gateway.address) for gateway in (guarded.gateway, guarded.other)]

        async def has(conn: Connection, *credentials: tuple[int, int]) -> bool:
            answer = await conn.call(50, 0, users=[{"name": name}])
            infos = answer.results[0].credential_infos
            return [(info.mechanism, info.iterations) for info in infos] == list(credentials)

        took = []
        for number, (writer, reader) in enumerate((conns, conns[::-1])):
            upsertion = user | {"iterations": 5000 + number, "salt": b"salt", "salted_password": b"x" * 64}
            answer = await writer.call(51, 0, deletions=[], upsertions=[upsertion])
            assert answer.results[0].error_code == 0
            assert await has(writer, (2, 5000 + number))
            took.append(await in_force(partial(has, reader, (2, 5000 + number))))
        answer = await conns[0].call(51, 0, deletions=[user], upsertions=[])
        assert answer.results[0].error_code == 0
        took.append(await in_force(partial(has, conns[1])))
        assert min(took) < 1, took
        for conn in conns:
            conn.close()

    run(main())


def test_the_gateways_have_one_secret(guarded: Interop) -> None:
    gateways = (guarded.gateway, guarded.other)
    secrets = {gateway.serving.gateway.security.secret for gateway in gateways if gateway.serving is not None}
    assert [len(secret) for secret in secrets] == [32]


def test_a_topic_has_one_name_in_acls(guarded: Interop) -> None:
    topic, home, prefixed = guarded.name(), guarded.pulsar.namespace, ResourcePatternType.PREFIXED
    client = AdminClient({"bootstrap.servers": guarded.gateway.bootstrap})
    for name in (topic, f"{home}/{topic}", f"persistent://{home}/{topic}"):
        create(client, binding(name))
        delete(client, binding(topic))
        create(client, binding(name, prefixed))
        delete(client, binding(topic, prefixed))
    create(client, binding("persistent://other/namespace/x", prefixed))
    delete(client, binding("other/namespace/x", prefixed))
    for everything in (f"{home}/", f"persistent://{home}/", "persistent://", home.partition("/")[0] + "/"):
        with pytest.raises(KafkaException, match="means all topics of"):
            create(client, binding(everything, prefixed))
