"""Pulsar's grants decide: for each of them Pulsar's own clients and Kafka's get the same yes or no.

One Pulsar with tokens and authorization, one gateway on it with a role of its own, which is an admin of the tenant.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import shutil
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pulsar as native
import pytest
from interop.interop_kit import run
from support.gateway import batch
from support.pulsar import OwnBroker, Pulsar, Urls
from support.pulsar_admin import PulsarAdmin
from support.pulsar_gateway import PulsarGateway
from support.tokens import KEY, guarded_settings, token
from support.waiting import SECONDS

from conformance.authorization.world import Connection
from kop.errors import ErrorCode
from kop.pulsar_client.admin import FOREVER
from kop.pulsar_client.auth import Token
from kop.pulsar_client.errors import PulsarError
from kop.security import records
from kop.security.dialing import BrokerLogin, Dialer
from kop.security.settings import PULSAR_AUTHORIZER
from kop.security.users import Mechanism, ScramCredential

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]  # `make test-grants`: it starts a Pulsar of its own

T = TypeVar("T")
MECHANISM = Mechanism.SCRAM_SHA_256
TENANT = f"t-{secrets.token_hex(4)}"
HOME, OTHER, STRANGE = f"{TENANT}/home", f"{TENANT}/other", "public/default"
ORDERS, PLAIN = "orders", "plain"
FOREIGN = f"{OTHER}/{ORDERS}"


@dataclass
class Role:
    """A role, and what it is granted."""

    namespace: tuple[str, ...] = ()
    topic: tuple[str, ...] = ()
    """On the partitioned topic `orders`."""
    other: tuple[str, ...] = ()
    """On the other namespace."""
    is_admin: bool = False


ROLES = {
    "nobody": Role(),
    "producer": Role(namespace=("produce",)),
    "consumer": Role(namespace=("consume",)),
    "both": Role(namespace=("produce", "consume")),
    "functions": Role(namespace=("functions", "sources", "sinks", "packages")),
    "topic-producer": Role(topic=("produce",)),
    "topic-consumer": Role(topic=("consume",)),
    "other-both": Role(other=("produce", "consume")),
    "admin": Role(is_admin=True),
    "member": Role(namespace=("consume",)),
}
SUBSCRIPTION, ITS_ROLE = "g1", "member"
"""A subscription for that role alone."""


@dataclass
class World:
    """The Pulsar, the gateway, and clients of each role."""

    urls: Urls
    gateway: PulsarGateway
    connections: dict[str, Connection] = field(default_factory=dict)

    def admin(self, role: str = "root") -> PulsarAdmin:
        return PulsarAdmin(self.urls.admin_url, Token(token(role)))

    def close(self) -> None:
        """Close the connections."""
        for conn in self.connections.values():
            conn.close()
        self.connections.clear()

    async def kafka(self, role: str) -> Connection:
        """A connection that is logged in as the role."""
        if role not in self.connections:
            dialer = Dialer(None, BrokerLogin(MECHANISM.text, role, "secret"), lambda: secrets.token_hex(9))
            self.connections[role] = Connection(*await dialer.open(*self.gateway.address))
        return self.connections[role]


async def make(urls: Urls) -> None:
    """Make the namespaces, the topics and the grants."""
    async with PulsarAdmin(urls.admin_url, Token(token("root"))) as admin:
        await admin.create_tenant(TENANT)
        await admin.set_tenant_admins(TENANT, ["kop", "admin"])
        for namespace in (HOME, OTHER):
            await admin.create_namespace(namespace)
            await admin.set_namespace_retention(namespace, FOREVER)
        for name in (f"{HOME}/{ORDERS}", f"{HOME}/{PLAIN}", FOREIGN):
            await admin.create_partitioned(f"persistent://{name}", 2, {})
        for role, given in ROLES.items():
            if given.namespace:
                await admin.grant(HOME, role, list(given.namespace))
            if given.other:
                await admin.grant(OTHER, role, list(given.other))
            if given.topic:
                await admin.grant_topic(f"persistent://{HOME}/{ORDERS}", role, list(given.topic))
        await admin.grant_subscription(HOME, SUBSCRIPTION, [ITS_ROLE])


@pytest.fixture(scope="module")
def world(pulsar_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    broker = OwnBroker(tmp_path_factory.mktemp("grants"), settings=guarded_settings(), token=token("root"))
    try:
        urls = broker.start()
        run(make(urls))
        gateway = PulsarGateway(
            Pulsar(*urls, HOME),
            kop_pulsar_auth=f"token:{token('kop')}",
            listeners="SASL_PLAINTEXT://127.0.0.1:0",
            sasl_jaas_config="org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="broker" password="secret";',
            sasl_enabled_mechanisms=f"PLAIN,{MECHANISM.text}",
            kop_pulsar_tokens="true",
            kop_pulsar_token_secret_key=f"data:;base64,{base64.b64encode(KEY).decode()}",
            authorizer_class_name=PULSAR_AUTHORIZER,
            super_users="User:broker",
        ).start()
        try:
            assert gateway.serving is not None
            credential = ScramCredential.of_password(MECHANISM, "secret")
            users = [records.of_user(name, MECHANISM, credential) for name in ("broker", *ROLES)]
            gateway.call(gateway.serving.gateway.security.write(lambda: users))
            yield World(urls, gateway)
        finally:
            gateway.stop()
    finally:
        broker.kill()
        shutil.rmtree(broker.directory, ignore_errors=True)


# --- what Pulsar says to its own clients


class PulsarSays:
    """One role's yes or no by Pulsar's own client, and by its REST for what that has no request for."""

    def __init__(self, world: World, role: str) -> None:
        self.admin = world.admin(role)
        self.client = native.Client(
            world.urls.service_url,
            authentication=native.AuthenticationToken(token(role)),
            logger=native.ConsoleLogger(native.LoggerLevel.Error),
        )

    def _tried(self, work: Any, *of: Any, **more: Any) -> bool:
        try:
            work(*of, **more).close()
        except native.AuthorizationError:
            return False
        return True

    def produce(self, topic: str) -> bool:
        return self._tried(self.client.create_producer, f"persistent://{topic}")

    def consume(self, topic: str, group: str) -> bool:
        return self._tried(
            self.client.subscribe, f"persistent://{topic}", group, consumer_type=native.ConsumerType.Shared
        )

    def describe(self, topic: str) -> bool:
        try:
            self.client.get_topic_partitions(f"persistent://{topic}")
        except native.AuthorizationError:
            return False
        return True

    async def may(self, work: Coroutine[Any, Any, Any]) -> bool:
        try:
            await work
        except PulsarError as error:
            if error.code not in {"Unauthorized", "Forbidden"}:
                raise
            return False
        return True

    async def all(self, namespace: str, topic: str) -> dict[str, bool]:
        full, new = f"persistent://{namespace}/{topic}", f"persistent://{namespace}/{topic}-{secrets.token_hex(4)}"
        said = {
            "produce": await asyncio.to_thread(self.produce, f"{namespace}/{topic}"),
            f"consume as {SUBSCRIPTION}": await asyncio.to_thread(self.consume, f"{namespace}/{topic}", SUBSCRIPTION),
            "consume as g9": await asyncio.to_thread(self.consume, f"{namespace}/{topic}", "g9"),
            "describe": await asyncio.to_thread(self.describe, f"{namespace}/{topic}"),
            "create": await self.may(self.admin.create_partitioned(new, 1, {})),
            "grow": await self.may(self.admin.grow(full, 2)),
            "read a policy": await self.may(self.admin.get_compaction_threshold(full)),
            "set a policy": await self.may(self.admin.set_compaction_threshold(full, 0)),
        }
        said["delete"] = await self.may(self.admin.delete_partitioned(new)) if said["create"] else False
        return said


# --- what a Kafka client is told

_REFUSED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def yes(code: int, *other: ErrorCode) -> bool:
    """Return false for a refusal. Any other error than those expected is a failure."""
    if code in _REFUSED:
        return False
    assert code in {ErrorCode.NONE, *other}, ErrorCode(code).name
    return True


async def produced(conn: Connection, name: str) -> int:
    data = [{"index": 0, "records": batch([b"value"], timestamp=int(time.time() * 1000))}]
    topics = [{"name": name, "partition_data": data}]
    answer = await conn.call(0, 9, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=topics)
    return int(answer.responses[0].partition_responses[0].error_code)


async def fetched(conn: Connection, name: str) -> int:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": name, "partitions": [partition]}]
    limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000}
    answer = await conn.call(1, 11, **limits, session_id=0, session_epoch=-1, topics=topics)
    return int(answer.responses[0].partitions[0].error_code)


async def committed(conn: Connection, group: str, name: str) -> tuple[int, int]:
    """The code of finding the group's coordinator, and that of a commit."""
    coordinator = await conn.call(10, 4, key_type=0, coordinator_keys=[group])
    row = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    member = {"group_id": group, "member_id": "", "generation_id_or_member_epoch": -1}
    answer = await conn.call(8, 8, **member, topics=[{"name": name, "partitions": [row]}])
    return int(coordinator.coordinators[0].error_code), int(answer.topics[0].partitions[0].error_code)


async def kafka_says(world: World, role: str, namespace: str, topic: str) -> dict[str, bool]:
    conn = await world.kafka(role)
    name = topic if namespace == HOME else f"{namespace}/{topic}"
    prefix = "" if namespace == HOME else f"{namespace}/"
    new = f"{name}-{secrets.token_hex(4)}"
    seen = (await conn.call(3, 12, topics=[{"name": name, "topic_id": None}], allow_auto_topic_creation=False)).topics[
        0
    ]
    reads = yes(await fetched(conn, name), ErrorCode.KAFKA_STORAGE_ERROR)
    groups = {group: await committed(conn, prefix + group, name) for group in (SUBSCRIPTION, "g9")}
    made = await conn.call(
        19, 5, topics=[{"name": new, "num_partitions": 1, "replication_factor": 1}], timeout_ms=10_000
    )
    grown = await conn.call(37, 3, topics=[{"name": name, "count": 2, "assignments": None}], timeout_ms=10_000)
    described = await conn.call(32, 1, resources=[{"resource_type": 2, "resource_name": name, "config_names": None}])
    config = {"name": "retention.ms", "config_operation": 0, "value": "36000000"}
    altered = await conn.call(44, 0, resources=[{"resource_type": 2, "resource_name": name, "configs": [config]}])
    said = {
        "produce": yes(await produced(conn, name)),
        "describe": yes(seen.error_code),
        "create": yes(made.topics[0].error_code),
        "grow": yes(grown.results[0].error_code, ErrorCode.INVALID_PARTITIONS),
        "read a policy": yes(described.results[0].error_code),
        "set a policy": yes(altered.responses[0].error_code),
    }
    for group, (finds, commits) in groups.items():
        may = reads and yes(commits)
        assert may == yes(commits), "whoever may not read a topic commits no offset of it"
        assert finds == 0 or not may
        said[f"consume as {group}"] = may
    deleted = await conn.call(20, 5, topic_names=[new], timeout_ms=10_000)
    said["delete"] = yes(deleted.responses[0].error_code)
    return said


@pytest.mark.parametrize("role", ROLES)
def test_kafka_clients_may_do_what_pulsars_own_may(world: World, role: str) -> None:
    async def main() -> None:
        says = PulsarSays(world, role)
        try:
            for namespace, topic in ((HOME, ORDERS), (HOME, PLAIN), (OTHER, ORDERS)):
                kafka = await kafka_says(world, role, namespace, topic)
                pulsars = await says.all(namespace, topic)
                assert kafka == pulsars, f"{role} {namespace}/{topic}"
        finally:
            await says.admin.close()
            says.client.close()
            world.close()

    run(main())


async def seconds_until(conn: Connection, name: str, code: ErrorCode) -> float:
    began = time.monotonic()
    while await produced(conn, name) != code:
        assert time.monotonic() - began < SECONDS
        await asyncio.sleep(0.02)  # asked again and again
    return time.monotonic() - began


def test_what_is_taken_away_or_given_is_felt_on_an_open_connection_within_two_seconds(world: World) -> None:
    async def main() -> None:
        conn = await world.kafka("nobody")
        took = []
        try:
            async with world.admin() as admin:
                for namespace, name in ((HOME, ORDERS), (OTHER, FOREIGN)):
                    assert await produced(conn, name) != ErrorCode.NONE
                    await admin.grant(namespace, "nobody", ["produce"])
                    if name == FOREIGN:
                        asked = [{"name": name, "topic_id": None}]
                        await conn.call(3, 12, topics=asked, allow_auto_topic_creation=False)
                    took.append(await seconds_until(conn, name, ErrorCode.NONE))
                    await admin.revoke(namespace, "nobody")
                    took.append(await seconds_until(conn, name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        finally:
            world.close()
        assert min(took) < 2, f"a loaded machine takes longer now and then: {took}"

    run(main())


async def of_tenant(world: World, role: str, namespace: str) -> tuple[Connection, str]:
    """A connection of a role that says by PLAIN that it is of a namespace, and why its login has failed."""
    conn = await Connection.open(*world.gateway.address)
    assert (await conn.call(17, 1, mechanism="PLAIN")).error_code == 0
    answer = await conn.call(36, 2, auth_bytes=f"\0{namespace}\0token:{token(role)}".encode())
    return conn, answer.error_message or ""


@pytest.mark.parametrize(
    ("role", "namespace", "why"),
    [
        ("other-both", OTHER, ""),
        ("admin", OTHER, ""),
        ("producer", HOME, ""),
        ("producer", OTHER, f"the client cannot be of {OTHER}: the role producer holds no grant in {OTHER}"),
        ("admin", f"{TENANT}/missing", f"the client cannot be of {TENANT}/missing: Pulsar has no namespace"),
        ("root", "pulsar/system", "the namespace pulsar/system is not for clients"),
    ],
)
def test_a_client_is_of_the_namespace_that_it_names_if_its_role_holds_a_grant(
    world: World, role: str, namespace: str, why: str
) -> None:
    async def main() -> None:
        conn, told = await of_tenant(world, role, namespace)
        assert told.startswith(why)
        assert bool(told) == bool(why)
        conn.close()

    run(main())


def test_a_tenant_works_by_its_own_names_within_its_grants(world: World) -> None:
    async def main() -> None:
        conn, _ = await of_tenant(world, "other-both", OTHER)
        boss, _ = await of_tenant(world, "admin", OTHER)
        other = PulsarSays(world, "other-both")
        try:
            await works(conn, boss, other)
        finally:
            for each in (conn, boss):
                each.close()
            await other.admin.close()
            await asyncio.to_thread(other.client.close)

    async def works(conn: Connection, boss: Connection, other: PulsarSays) -> None:
        named = f"tenant-{secrets.token_hex(4)}"
        reader = await asyncio.to_thread(other.client.subscribe, f"persistent://{FOREIGN}", named)
        asked = [{"name": ORDERS, "topic_id": None}]  # every client asks that first: the gateway finds the topic by it
        await conn.call(3, 12, topics=asked, allow_auto_topic_creation=False)
        assert await produced(conn, ORDERS) == ErrorCode.NONE
        message = await asyncio.to_thread(reader.receive, 20_000)
        assert message.data() == b"value"
        assert await produced(conn, FOREIGN) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await fetched(conn, ORDERS) == ErrorCode.NONE
        assert await committed(conn, "readers", ORDERS) == (0, 0)
        for each in (conn, boss):
            seen = await each.call(3, 12, topics=None, allow_auto_topic_creation=False)
            assert {topic.name for topic in seen.topics} == {ORDERS}
        assert "readers" in {group.group_id for group in (await boss.call(16, 4, states_filter=[])).groups}
        wanted = {"name": "made", "num_partitions": 1, "replication_factor": 1}
        for each, code in ((conn, ErrorCode.TOPIC_AUTHORIZATION_FAILED), (boss, ErrorCode.NONE)):
            made = await each.call(19, 5, topics=[wanted], timeout_ms=10_000)
            assert made.topics[0].error_code == code
        assert (await boss.call(20, 5, topic_names=["made"], timeout_ms=10_000)).responses[0].error_code == 0
        ops = [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]
        entry = {"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": ops}
        altered = await boss.call(49, 1, entries=[entry], validate_only=False)
        assert altered.entries[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert (await boss.call(48, 1, components=[], strict=False)).error_code == 0
        async with world.admin() as admin:
            await admin.revoke(OTHER, "other-both")
            took = [await seconds_until(conn, ORDERS, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
            await admin.grant(OTHER, "other-both", ["produce", "consume"])
            took.append(await seconds_until(conn, ORDERS, ErrorCode.NONE))
            assert min(took) < 2, took

    run(main())


def test_requests_about_acls_are_refused_and_the_cluster_is_for_super_users(world: World) -> None:
    async def main() -> None:
        any_acl = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        nulls = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
        codes = {}
        for role in ("broker", "admin"):
            conn = await world.kafka(role)
            described = await conn.call(29, 1, **any_acl, **nulls)
            groups = await conn.call(16, 3)
            codes[role] = described.error_code, groups.error_code
        assert codes == dict.fromkeys(codes, (ErrorCode.SECURITY_DISABLED, 0))
        world.close()

    run(main())
