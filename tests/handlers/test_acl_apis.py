"""ACLs and users through clients' requests: what each request answers is what Apache Kafka 4.3.1 answered to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin as librdkafka
from kafka.admin import KafkaAdminClient, UserScramCredentialUpsertion
from support.gateway import gateway, run

from conformance.authorization.world import Connection
from kop.app import Serving
from kop.errors import ErrorCode
from kop.security.acls import Acl, AclFilter
from kop.security.records import of_acl
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.settings import STANDARD_AUTHORIZER
from kop.security.tenants import Space
from kop.security.users import Mechanism, ScramCredential

ANONYMOUS = "User:ANONYMOUS"
PREFIXED, LITERAL, MATCH = PatternType.PREFIXED, PatternType.LITERAL, PatternType.MATCH
READ, ALLOW = AclOperation.READ, Permission.ALLOW


@asynccontextmanager
async def opened(path: Path, **settings: str) -> AsyncIterator[tuple[Serving, Connection]]:
    """A gateway, and a client."""
    async with gateway(path, **({"store": "memory:"} | settings)) as serving:
        conn = await Connection.open(*serving.listeners[0])
        try:
            yield serving, conn
        finally:
            conn.close()


def guarded(
    path: Path, supers: str = ANONYMOUS, **settings: str
) -> AbstractAsyncContextManager[tuple[Serving, Connection]]:
    """A gateway with ACLs, whose clients are super users unless others are, and a client."""
    return opened(path, super_users=supers, authorizer_class_name=STANDARD_AUTHORIZER, **settings)


def acl(**changed: Any) -> dict[str, Any]:
    return {
        "resource_type": ResourceType.TOPIC,
        "resource_name": "t",
        "resource_pattern_type": LITERAL,
        "principal": ANONYMOUS,
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    } | changed


def acl_filter(**changed: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    } | changed


async def created(conn: Connection, *acls: dict[str, Any], version: int = 3) -> list[tuple[int, str]]:
    answer = await conn.call(30, version, creations=list(acls))
    return [(each.error_code, each.error_message) for each in answer.results]


async def described(conn: Connection, version: int = 3, **changed: Any) -> list[tuple[str, int, str]]:
    answer = await conn.call(29, version, **acl_filter(**changed))
    assert (answer.error_code, answer.error_message) == (0, "")
    return [(row.resource_name, row.pattern_type, each.principal) for row in answer.resources for each in row.acls]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (dict(principal="nobody"), "Could not parse principal from `nobody` (no colon is present separating the principal "
     "type from the principal name)"),
    (dict(resource_name=""), "Invalid empty resource name"),
    (dict(resource_type=4, resource_name="x"), "The only valid name for the CLUSTER resource is kafka-cluster"),
    (dict(operation=99), "Invalid operation UNKNOWN"),
    (dict(operation=0), "Invalid operation UNKNOWN"),
    (dict(operation=1), "Invalid operation ANY"),
    (dict(resource_pattern_type=1), "Invalid patternType ANY"),
    (dict(resource_pattern_type=2), "Invalid patternType MATCH"),
    (dict(resource_pattern_type=9), "Invalid patternType UNKNOWN"),
    (dict(resource_type=1), "Invalid resourceType ANY"),
    (dict(resource_type=99), "Invalid resourceType UNKNOWN"),
    (dict(permission_type=0), "Invalid permissionType UNKNOWN"),
    (dict(permission_type=1), "Invalid permissionType ANY"),
    (dict(resource_name="x" * 40_000), "The resource name is longer than 32767 bytes"),
    (dict(principal="User:" + "ä" * 20_000), "The principal is longer than 32767 bytes"),
]  # fmt: skip
TAKEN: list[dict[str, Any]] = [
    dict(principal="User:"),
    dict(principal=":x"),
    dict(principal="Role:x"),
    dict(host=""),
    dict(host="some.host"),
    dict(host="10.0.0.0/8"),
    dict(operation=2),
    dict(resource_type=3, operation=4),
    dict(resource_type=4, resource_name="kafka-cluster", resource_pattern_type=4),
    dict(resource_type=7, resource_name="User:x", operation=13),
    dict(resource_name="*", resource_pattern_type=4),
]


def test_acls_are_taken_and_refused_as_kafka_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as (serving, conn):
            answers = await created(conn, *(acl(**changed) for changed, _ in REFUSED))
            assert answers == [(ErrorCode.INVALID_REQUEST, text) for _, text in REFUSED]
            assert not len(serving.gateway.security.acls)
            assert await created(conn, *(acl(**changed) for changed in TAKEN)) == [(0, "")] * len(TAKEN)
            assert len(serving.gateway.security.acls) == len(TAKEN)
            assert await created(conn, acl(**TAKEN[0]), acl(resource_name="")) == [
                (0, ""),
                (ErrorCode.INVALID_REQUEST, "Invalid empty resource name"),
            ]
            assert len(serving.gateway.security.acls) == len(TAKEN)

    run(main())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_described_and_deleted(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as (serving, conn):
            assert await described(conn, version) == []
            made = [
                acl(resource_name="orders"),
                acl(resource_name="orders", principal="User:a"),
                acl(resource_name="ord", resource_pattern_type=PREFIXED),
                acl(resource_name="*", permission_type=Permission.DENY),
                acl(resource_type=ResourceType.GROUP, resource_name="orders"),
            ]
            assert await created(conn, *made, made[0], version=version) == [(0, "")] * 6
            assert len(serving.gateway.security.acls) == 5
            of_topics = dict(resource_type_filter=ResourceType.TOPIC, resource_name_filter="orders")
            assert await described(conn, version, **of_topics) == [
                ("orders", LITERAL, ANONYMOUS),
                ("orders", LITERAL, "User:a"),
            ]
            matching = await described(conn, version, **of_topics, pattern_type_filter=MATCH)
            assert {name for name, _, _ in matching} == {"orders", "ord", "*"}
            assert await described(conn, version, permission_type=Permission.DENY) == [("*", LITERAL, ANONYMOUS)]
            assert await described(conn, version, resource_name_filter="") == []

            filters = [
                acl_filter(**of_topics),
                acl_filter(**of_topics, pattern_type_filter=MATCH),
                acl_filter(operation=0),
                acl_filter(resource_name_filter="nothing"),
            ]
            answer = await conn.call(31, version, filters=filters)
            assert [
                (each.error_code, sorted(gone.resource_name for gone in each.matching_acls))
                for each in answer.filter_results
            ] == [
                (0, ["orders", "orders"]),
                (0, ["*", "ord", "orders", "orders"]),
                (ErrorCode.INVALID_REQUEST, []),
                (0, []),
            ]
            gone = answer.filter_results[0].matching_acls[0]
            assert (gone.error_code, gone.principal, gone.host, gone.operation) == (0, ANONYMOUS, "*", READ)
            assert await described(conn, version) == [("orders", LITERAL, ANONYMOUS)]
            answer = await conn.call(29, version, **acl_filter(operation=99))
            assert (answer.error_code, answer.resources) == (ErrorCode.INVALID_REQUEST, [])

    run(main())


def test_there_are_no_more_acls_than_are_allowed(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path, kop_security_max_acls="3") as (_, conn):
            answers = await created(conn, *(acl(resource_name=str(number % 4)) for number in range(6)))
            full = (ErrorCode.INVALID_REQUEST, "There are 3 ACLs, and kop.security.max.acls allows no more")
            assert answers == [(0, ""), (0, ""), (0, ""), full, (0, ""), (0, "")]

    run(main())


async def _refusals(conn: Connection) -> list[int]:
    return [
        (await conn.call(29, 3, **acl_filter())).error_code,
        (await conn.call(30, 3, creations=[acl()])).results[0].error_code,
        (await conn.call(31, 3, filters=[acl_filter()])).filter_results[0].error_code,
    ]


def test_without_an_authorizer_there_are_no_acls(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, conn):
            assert await _refusals(conn) == [ErrorCode.SECURITY_DISABLED] * 3
            assert not len(serving.gateway.security.acls)

    run(main())


def test_acls_decide_on_open_connections_and_super_users_are_asked_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path, supers="User:admin") as (serving, conn):
            assert await _refusals(conn) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 3
            await serving.gateway.engine.topics.create("t", 1, {})

            async def seen() -> int:
                topics = [{"name": "t", "topic_id": None}]
                answer = await conn.call(3, 12, topics=topics, allow_auto_topic_creation=False)
                return answer.topics[0].error_code

            assert await seen() == ErrorCode.TOPIC_AUTHORIZATION_FAILED

            right = Acl(ResourceType.TOPIC, "t", LITERAL, ANONYMOUS, "127.0.0.1", READ, ALLOW)
            await serving.gateway.security.write(lambda: [of_acl(right)])
            assert await seen() == 0
            await serving.gateway.security.write(lambda: [of_acl(right, present=False)])
            assert await seen() == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    run(main())


# -- users


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, salted: bytes = b"x" * 32) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": b"s", "salted_password": salted}


def deletion(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


async def altered(
    conn: Connection, upsertions: Iterable[Any] = (), deletions: Iterable[Any] = ()
) -> dict[str, tuple[int, str | None]]:
    answer = await conn.call(51, 0, deletions=list(deletions), upsertions=list(upsertions))
    return {each.user: (each.error_code, each.error_message) for each in answer.results}


async def users(conn: Connection, *names: str) -> dict[str, tuple[int, str, list[tuple[int, int]]]]:
    answer = await conn.call(50, 0, users=[{"name": name} for name in names] or None)
    assert (answer.error_code, answer.error_message) == (0, "")
    return {
        each.user: (
            each.error_code,
            each.error_message,
            [(info.mechanism, info.iterations) for info in each.credential_infos],
        )
        for each in answer.results
    }


TWICE = (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
MISSING = (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
UNACCEPTABLE, UNKNOWN = ErrorCode.UNACCEPTABLE_CREDENTIAL, (33, "Unknown SCRAM mechanism")


def test_users_are_made_and_removed_as_in_kafka(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (_, conn):
            assert await users(conn) == {}
            assert await altered(conn, [upsertion("a", 1), upsertion("a", 2)]) == {"a": TWICE}
            assert await altered(conn, [upsertion("b")] * 3) == {"b": TWICE}
            done = (0, None)
            assert await altered(conn, [upsertion("b"), upsertion("c", 2, 16_384)]) == {"b": done, "c": done}
            assert await users(conn) == {"b": (0, "", [(1, 4096)]), "c": (0, "", [(2, 16_384)])}
            no_user = "Attempt to describe a user credential that does not exist: "
            twice = "Cannot describe SCRAM credentials for the same user twice in a single request: b"
            assert await users(conn, "b", "zz", "b", "") == {
                "zz": (ErrorCode.RESOURCE_NOT_FOUND, no_user + "zz", []),
                "": (ErrorCode.RESOURCE_NOT_FOUND, no_user, []),
                "b": (ErrorCode.DUPLICATE_RESOURCE, twice, []),
            }
            assert await altered(conn, [upsertion("b")], [deletion("b")]) == {"b": TWICE}
            assert await altered(conn, [upsertion("b", 2)], [deletion("b")]) == {"b": TWICE}
            assert await altered(conn, [upsertion("d")], [deletion("d")]) == {"d": MISSING}
            assert await altered(conn, (), [deletion("c", 2), deletion("c", 2)]) == {"c": TWICE}
            assert await altered(conn, (), [deletion("c", 1), deletion("zz")]) == {"c": MISSING, "zz": MISSING}
            assert list(await users(conn)) == ["b", "c"]
            bad = [
                upsertion("", 1),
                upsertion("d", 0),
                upsertion("e", 9),
                upsertion("f", 1, 4095),
                upsertion("g", 1, 16_385),
                upsertion("i", salted=b""),
                upsertion("k") | {"salt": b"s" * 1025},
                upsertion("x" * 1025),
                upsertion("good"),
            ]
            assert await altered(conn, bad, [deletion("b", 7)]) == {
                "b": UNKNOWN,
                "": (UNACCEPTABLE, "Username must not be empty"),
                "d": UNKNOWN,
                "e": UNKNOWN,
                "f": (UNACCEPTABLE, "Too few iterations"),
                "g": (UNACCEPTABLE, "Too many iterations"),
                "i": (UNACCEPTABLE, "The salted password must not be empty"),
                "k": (UNACCEPTABLE, "The salt is longer than 1024 bytes"),
                "x" * 1025: (UNACCEPTABLE, "Username is longer than 1024 characters"),
                "good": done,
            }
            assert await altered(conn, (), [deletion("b"), deletion("c", 2)]) == {"b": done, "c": done}
            assert list(await users(conn)) == ["good"]
            assert await altered(conn) == {}

    run(main())


def test_a_credential_is_that_of_the_password(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (serving, _):

            def alter() -> None:
                admin = KafkaAdminClient(bootstrap_servers="{}:{}".format(*serving.listeners[0]))
                try:
                    for mechanism in Mechanism:
                        wanted = UserScramCredentialUpsertion("alice", mechanism.name, "secret", salt=b"salt")
                        assert admin.alter_user_scram_credentials([wanted]) == {"alice": None}
                finally:
                    admin.close()

            await asyncio.to_thread(alter)
            for mechanism in Mechanism:
                known = serving.gateway.security.users.scram(mechanism, "alice")
                assert known == ScramCredential.of_password(mechanism, "secret", salt=b"salt")

    run(main())


def test_librdkafka_makes_and_removes_users(tmp_path: Path) -> None:
    """Its requests have a byte more than Kafka's."""

    async def main() -> None:
        async with opened(tmp_path) as (serving, _):

            def alter() -> None:
                admin = librdkafka.AdminClient({"bootstrap.servers": "{}:{}".format(*serving.listeners[0])})
                scram = librdkafka.ScramMechanism.SCRAM_SHA_256
                info = librdkafka.ScramCredentialInfo(scram, 4096)
                wanted = librdkafka.UserScramCredentialUpsertion("alice", info, b"secret", b"salt")
                removed = librdkafka.UserScramCredentialDeletion("alice", scram)
                for alteration in (wanted, removed, wanted):
                    for future in admin.alter_user_scram_credentials([alteration]).values():
                        future.result(60)

            await asyncio.to_thread(alter)
            known = serving.gateway.security.users.scram(Mechanism.SCRAM_SHA_256, "alice")
            assert known == ScramCredential.of_password(Mechanism.SCRAM_SHA_256, "secret", salt=b"salt")

    run(main())


def test_there_are_no_more_users_than_are_allowed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, kop_security_max_users="2") as (_, conn):
            answers = await altered(conn, map(upsertion, "abc"))
            full = (ErrorCode.INVALID_REQUEST, "There are as many users as kop.security.max.users allows")
            assert answers == {"a": (0, None), "b": (0, None), "c": full}
            assert await altered(conn, [upsertion("a", 2)]) == {"a": (0, None)}

    run(main())


def test_only_a_super_user_changes_the_credentials_of_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path, supers="User:admin; User:root") as (serving, conn):
            for operation in (AclOperation.ALTER, AclOperation.ALL):
                right = Acl(ResourceType.CLUSTER, "kafka-cluster", LITERAL, ANONYMOUS, "*", operation, ALLOW)
                await serving.gateway.security.write(lambda right=right: [of_acl(right)])  # type: ignore[misc]
                answers = await altered(conn, [upsertion("root"), upsertion("bob")], [deletion("admin")])
                refused = (
                    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                    "Only a super user changes the credentials of a super user",
                )
                assert answers == {"root": refused, "admin": refused, "bob": (0, None)}
            assert list(serving.gateway.security.users.names()) == ["bob"]

        async with guarded(tmp_path, supers=f"User:admin;{ANONYMOUS}") as (serving, conn):
            assert await altered(conn, [upsertion("admin")]) == {"admin": (0, None)}

    run(main())


# -- the state topic


def test_no_client_sees_the_state_topic(tmp_path: Path) -> None:
    name = "__kop_security"

    async def main() -> None:
        async with opened(tmp_path) as (serving, conn):
            state_topic = serving.engine.topics.get(name)
            assert state_topic is not None
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topic_id = state_topic.topic_id
            listed = await conn.call(3, 12, topics=None, allow_auto_topic_creation=True)
            assert [topic.name for topic in listed.topics] == ["__consumer_offsets"]
            asked = [{"name": name, "topic_id": None}]
            for _ in range(2):
                by_name = await conn.call(3, 12, topics=asked, allow_auto_topic_creation=True)
                assert [topic.error_code for topic in by_name.topics] == [unknown]
            by_id = await conn.call(
                3, 12, topics=[{"name": None, "topic_id": topic_id}], allow_auto_topic_creation=False
            )
            assert [topic.error_code for topic in by_id.topics] == [ErrorCode.UNKNOWN_TOPIC_ID]
            part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            fetched = await conn.call(
                1, 13, max_wait_ms=0, min_bytes=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
                topics=[{"topic_id": topic_id, "partitions": [part]}],
            )  # fmt: skip
            assert fetched.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
            made = await conn.call(
                19, 7, timeout_ms=1000, topics=[{"name": name, "num_partitions": 1, "replication_factor": 1}]
            )
            assert made.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            gone = await conn.call(20, 6, topics=[{"name": None, "topic_id": topic_id}], timeout_ms=1000)
            assert gone.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
            configs = await conn.call(
                32, 4, resources=[{"resource_type": 2, "resource_name": name, "configuration_keys": None}]
            )
            assert configs.results[0].error_code == unknown
            sizes = await conn.call(35, 4, topics=None)
            assert name not in [topic.name for topic in sizes.results[0].topics]
            assert name not in "".join(str(each.samples) for each in serving.gateway.topics.collect())
            assert serving.engine.topics.get(name) == state_topic

    run(main())


def test_filters_let_others_have_their_turn_and_find_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broad = acl_filter()
    turns, seen = 0, list[int]()

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with guarded(tmp_path, kop_security_max_acls="20") as (serving, conn):
            await conn.call(30, 3, creations=[acl(resource_name=str(number)) for number in range(15)])
            acls = serving.gateway.security.acls
            matching = acls.matching

            def noted(which: AclFilter, space: Space) -> list[Acl]:
                seen.append(turns)
                return matching(which, space)

            monkeypatch.setattr(acls, "matching", noted)
            turning = asyncio.create_task(turn())
            others = [acl_filter(principal_filter="User:nobody")] * 20
            answer = await conn.call(31, 3, filters=[*others, broad, broad])
            turning.cancel()
            assert sorted(set(seen)) == seen, "something else runs between two filters"
            # What two filters find is named twice: the answer has a bound.
            assert [row.error_code for row in answer.filter_results] == [0] * 21 + [ErrorCode.INVALID_REQUEST]
            assert [len(row.matching_acls) for row in answer.filter_results] == [0] * 20 + [15, 0]
            assert not len(acls)

    run(main())
