"""Rights of tenants: recorded requests of clients of a namespace with ACLs, the ACLs and quotas that a tenant's admin
makes, and what no tenant may.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handlers.authorized_gateway import Place, changed
from handlers.test_authorization import VECTORS, expected, name_of, shown
from support.examples import ALL_EXAMPLES
from support.gateway import run
from support.tenants import connected, give, logged_in, tenants

from conformance.authorization.world import Closed, Connection, World
from kop.errors import ErrorCode
from kop.security.acls import Acl
from kop.security.quotas import Entity, QuotaKind
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.tenants import space_of

NEWEST = {(vector["key"], vector["request"]): vector["version"] for vector in VECTORS}
SENT = [vector for vector in VECTORS if ALL_EXAMPLES or NEWEST[vector["key"], vector["request"]] == vector["version"]]
STATE = {"__offsets", "__transactions", "__kop_security"}
"""Topics of the gateway's own."""
OF_BROKERS = {27, 35, 43, 46, 50, 51, 55, 57, 74}
"""APIs that are about brokers, and those requests that only brokers send."""
REQUESTS_OF_BROKERS = {"replica", "shares", "broker"}
SOME_OF_BROKERS = {32, 33, 44}
"""APIs that are about brokers in some of their rows."""


def _case(vector: Mapping[str, Any], *, everything: bool) -> Mapping[str, Any]:
    """Return the recorded case that a client of a tenant is to be answered as."""
    cases = {case["case"]: case for case in vector["cases"]}
    if not everything or vector["key"] in OF_BROKERS or vector["request"] in REQUESTS_OF_BROKERS:
        return cases.get("nothing", cases["all"])
    if vector["key"] in SOME_OF_BROKERS:
        without = [name for name in cases if name.startswith("without") and "CLUSTER" in name]
        return cases[without[0] if without else "all"]
    return cases["all"]


async def _answer(conn: Connection, world: World, vector: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    frame = world.filled(bytes.fromhex(vector["frame"]))
    try:
        conn.send(frame)
        if not vector["answered"]:
            await conn.call(18, 0)
            return {"codes": {}, "told": []}, b""
        answer = await conn.receive()
    except Closed:
        return {"closed": True}, b""
    return world.described(vector["key"], vector["version"], frame, answer), answer


EVERYTHING = [
    f"ALL {resource} {{}}{name}"
    for resource, name in (("TOPIC", "*"), ("GROUP", "*"), ("TRANSACTIONAL_ID", "*"), ("CLUSTER", "kafka-cluster"))
]


async def _differing(path: Path) -> list[str]:
    """Send each request without a right and with all of them, in a namespace of its own once one has changed it."""
    wrong: list[str] = []
    names = [f"acme.w{number}.app" for number in range(len(SENT))]
    async with tenants(path, *names) as serving:
        place = Place(serving, World())
        name = ""
        for vector in SENT:
            if not name:
                name = names.pop()
                world, space = World(), space_of("/".join(name.split(".")[:2]))
                everything = [right.format(space.prefix) for right in EVERYTHING]
                await give(serving, name, *everything)
                conn = await logged_in(serving, name)
                await world.make(conn)
            for with_all in (False, True):
                await give(serving, name, *everything, present=with_all)
                before = await place.state()
                answer, raw = await _answer(conn, world, vector)
                if "closed" in answer:
                    conn.close()
                    conn = await logged_in(serving, name)
                what = f"{name_of(vector)} {'with all' if with_all else 'without'}"
                wanted = expected(vector, _case(vector, everything=with_all))
                if "operations" in str(answer) or vector["request"] == "brokers":
                    for each in (answer, wanted):
                        each["codes"] = {at: code for at, code in each["codes"].items() if "operations" not in at}
                if answer != wanted:
                    wrong.append(f"{what}: {shown(answer, wanted)}")
                if re.search(rb"acme/\w+/", raw):
                    wrong.append(f"{what}: a stored name is told: {raw!r}")
                done = [each for each in changed(before, await place.state()) if each[1] not in STATE]
                strange = [each for each in done if not _is_of(space.prefix, each)]
                if strange or (done and not with_all):
                    wrong.append(f"{what}: done {done}")
            if done:
                conn.close()
                name = ""
        conn.close()
        wrong += [f"{place.internal_errors()} internal errors"] * bool(place.internal_errors())
    return wrong


def _is_of(prefix: str, place: tuple[str, ...]) -> bool:
    return any(prefix in part for part in place)


def test_recorded_requests_are_answered_to_tenants_by_their_acls(tmp_path: Path) -> None:
    wrong = run(_differing(tmp_path))
    assert not wrong, "\n".join(wrong)


LITERAL, PREFIXED, ALLOW = PatternType.LITERAL, PatternType.PREFIXED, Permission.ALLOW
ADMIN, HR = "acme.sales.admin", "acme.hr.admin"


def acl(name: str, resource: ResourceType = ResourceType.TOPIC, pattern: PatternType = LITERAL) -> dict[str, Any]:
    return {
        "resource_type": resource,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": "User:acme.sales.app",
        "host": "*",
        "operation": AclOperation.READ,
        "permission_type": ALLOW,
    }


def acl_filter(**changed: Any) -> dict[str, Any]:
    names = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    return {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1} | names | changed


async def described(conn: Connection, **changed: Any) -> set[tuple[int, str, int]]:
    answer = await conn.call(29, 3, **acl_filter(**changed))
    assert answer.error_code == 0, answer.error_message
    return {(row.resource_type, row.resource_name, row.pattern_type) for row in answer.resources}


TOPIC, GROUP, CLUSTER, USER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.USER
MADE = [
    (acl("orders"), (TOPIC, "acme/sales/orders", LITERAL)),
    (acl("or", TOPIC, PREFIXED), (TOPIC, "acme/sales/or", PREFIXED)),
    (acl("*"), (TOPIC, "acme/sales/", PREFIXED)),
    (acl("*", TOPIC, PREFIXED), (TOPIC, "acme/sales/*", PREFIXED)),
    (acl("a/b", GROUP), (GROUP, "acme/sales/a/b", LITERAL)),
    (acl("kafka-cluster", CLUSTER), (CLUSTER, "acme/sales/kafka-cluster", LITERAL)),
]
"""ACLs that a tenant's admin makes, and how a super user sees them."""
REFUSED = [
    (acl("a/b"), "The name of a topic has a slash, and topics of acme/sales have none"),
    (acl("User:bob", USER), "ACLs of USER are not of acme/sales alone: super users make them"),
    (acl("acme/sales/kafka-cluster", CLUSTER), "The only valid name for the CLUSTER resource is kafka-cluster"),
]


def test_a_tenants_admin_makes_and_sees_acls_of_its_namespace_by_its_own_names(tmp_path: Path) -> None:
    async def main() -> None:
        names = ("root", ADMIN, HR)
        async with tenants(tmp_path, ADMIN, HR) as serving, connected(serving, *names) as (root, admin, other):
            denied = await admin.call(30, 3, creations=[acl("orders")])
            assert denied.results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            for name in (ADMIN, HR):
                cluster = "/".join(name.split(".")[:2]) + "/kafka-cluster"
                rights = acl(cluster, CLUSTER) | {"principal": f"User:{name}", "operation": AclOperation.ALTER}
                assert (await root.call(30, 3, creations=[rights])).results[0].error_code == 0
            at_first = await described(root)

            answer = await admin.call(30, 3, creations=[made for made, _ in MADE] + [wrong for wrong, _ in REFUSED])
            assert [each.error_code for each in answer.results] == [0] * len(MADE) + [42] * len(REFUSED)
            assert [each.error_message for each in answer.results[len(MADE) :]] == [text for _, text in REFUSED]
            assert await described(root) - at_first == {seen for _, seen in MADE if seen[0] != CLUSTER}
            own = {(made["resource_type"], made["resource_name"], made["resource_pattern_type"]) for made, _ in MADE}
            assert await described(admin) == own
            assert await described(other) == {(CLUSTER, "kafka-cluster", LITERAL)}

            of_orders = {(TOPIC, "orders", LITERAL), (TOPIC, "or", PREFIXED), (TOPIC, "*", LITERAL)}
            match = {"resource_type_filter": 2, "resource_name_filter": "orders", "pattern_type_filter": 2}
            assert await described(admin, **match) == of_orders
            wildcard = {"resource_name_filter": "*", "pattern_type_filter": LITERAL}
            assert await described(admin, **wildcard) == {(TOPIC, "*", LITERAL)}
            assert await described(other, **match) == set()

            for conn, left in ((other, own), (admin, own - {(TOPIC, "*", LITERAL)})):
                deleted = await conn.call(31, 3, filters=[acl_filter(**wildcard)])
                rows = deleted.filter_results[0].matching_acls
                assert [(row.resource_name, row.pattern_type) for row in rows] == [("*", LITERAL)] * (conn is admin)
                assert await described(admin) == left

    run(main())


def test_a_right_to_all_names_ends_at_the_border_of_the_namespace(tmp_path: Path) -> None:
    """A wildcard of a tenant reaches no other one, and one of no tenant reaches none."""

    async def main() -> None:
        async with tenants(tmp_path, ADMIN, HR, "op") as serving:
            everybodys = Acl(TOPIC, "*", LITERAL, "User:*", "*", AclOperation.ALL, ALLOW)
            serving.gateway.security.acls.add(everybodys)
            await give(serving, ADMIN, "ALL TOPIC acme/sales/*", "CREATE CLUSTER acme/sales/kafka-cluster")
            await give(serving, "op", *(f"{each} CLUSTER kafka-cluster" for each in ("CREATE", "DELETE", "DESCRIBE")))
            async with connected(serving, ADMIN, HR, "op", "root") as (admin, other, op, root):
                wanted = {"num_partitions": 1, "replication_factor": 1}
                made = await admin.call(19, 7, topics=[{"name": "orders"} | wanted], timeout_ms=10_000)
                assert made.topics[0].error_code == 0
                of_kafka = "__consumer_offsets"
                for conn, names in (
                    (admin, {"orders"}),
                    (other, set()),
                    (op, {of_kafka}),
                    (root, {of_kafka, "acme/sales/orders"}),
                ):
                    answer = await conn.call(3, 12, topics=None, allow_auto_topic_creation=False)
                    assert {topic.name for topic in answer.topics} == names
                refused = await op.call(
                    20, 6, topics=[{"name": None, "topic_id": made.topics[0].topic_id}], timeout_ms=9
                )
                assert refused.responses[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                for name in ("acme/sales/more", "acme/hr/more"):
                    answer = await op.call(19, 7, topics=[{"name": name} | wanted], timeout_ms=10_000)
                    assert answer.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    run(main())


async def altered(conn: Connection, entity: dict[str, str | None], value: float) -> tuple[int, str]:
    ops = [{"key": "producer_byte_rate", "value": value, "remove": False}]
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    answer = await conn.call(49, 1, entries=[{"entity": parts, "ops": ops}], validate_only=False)
    return answer.entries[0].error_code, answer.entries[0].error_message


async def quotas(conn: Connection) -> dict[tuple[str | None, ...], float]:
    answer = await conn.call(48, 1, components=[], strict=False)
    assert answer.error_code == 0, answer.error_message
    return {tuple(part.entity_name for part in row.entity): row.values[0].value for row in answer.entries}


def test_quotas_of_a_tenant_are_set_and_seen_by_its_own_names_and_hold_for_its_clients(tmp_path: Path) -> None:
    async def main() -> None:
        async with tenants(tmp_path, ADMIN, HR) as serving:
            for name in (ADMIN, HR):
                cluster = "/".join(name.split(".")[:2]) + "/kafka-cluster"
                await give(serving, name, f"ALTER_CONFIGS CLUSTER {cluster}", f"DESCRIBE_CONFIGS CLUSTER {cluster}")
            async with connected(serving, "root", ADMIN, HR) as (root, admin, other):
                assert await altered(root, {"user": None}, 7000.0) == (0, None)
                assert await altered(admin, {"user": "ann"}, 1000.0) == (0, None)
                assert await altered(admin, {"user": None}, 2000.0) == (0, None)
                assert await altered(admin, {"user": "ann", "client-id": "c"}, 3000.0) == (0, None)
                assert await altered(admin, {"ip": "192.0.2.1"}, 1.0) == (
                    ErrorCode.INVALID_REQUEST,
                    "Quotas of addresses are not of acme/sales alone: super users set them",
                )
                assert await quotas(admin) == {("ann",): 1000.0, (None,): 2000.0, ("ann", "c"): 3000.0}
                assert await quotas(other) == {}
                full = "acme/sales/"
                assert await quotas(root) == {
                    (None,): 7000.0,
                    (full,): 2000.0,
                    (f"{full}ann",): 1000.0,
                    (f"{full}ann", f"{full}c"): 3000.0,
                }
                limit = serving.gateway.security.quotas.limit
                sales, hr = space_of("acme/sales"), space_of("acme/hr")
                held = [
                    limit(QuotaKind.PRODUCED, user, client_id, space)
                    for user, client_id, space in (
                        ("ann", "c", sales),
                        ("ann", "", sales),
                        ("bob", "c", sales),
                        ("ann", "c", hr),
                    )
                ]
                assert [each and each[0] for each in held] == [3000.0, 1000.0, 2000.0, 7000.0]
                assert len({each and each[1] for each in held}) == len(held)  # none shares with another
                assert serving.gateway.security.quotas.of(Entity("ann")) == {}

    run(main())
