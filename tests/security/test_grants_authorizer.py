"""What Pulsar's grants allow to Kafka's operations, without a Pulsar."""

from __future__ import annotations

import tracemalloc

import pytest
from support.grants import Known

from kop.errors import BackendError
from kop.security.grants import GrantsAuthorizer
from kop.security.rights import CLUSTER_NAME, AclOperation, ResourceType
from kop.storage.base import NamespaceGrants

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE
DELETE, ALTER, ALTER_CONFIGS = AclOperation.DELETE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS
DESCRIBE_CONFIGS = AclOperation.DESCRIBE_CONFIGS
OF_TOPICS = {READ, WRITE, DESCRIBE, CREATE, DELETE, ALTER, ALTER_CONFIGS, DESCRIBE_CONFIGS}
PRODUCE, CONSUME = frozenset({"produce"}), frozenset({"consume"})


GIVEN = Known(
    app=NamespaceGrants(
        roles={"writer": PRODUCE, "reader": CONSUME, "jobs": frozenset({"functions"})},
        topics={"orders": {"ordering": PRODUCE, "billing": CONSUME}},
        subscriptions={"g1": frozenset({"reader"})},
    ),
    strict=NamespaceGrants(roles={"reader": CONSUME}, begins_with_role=True),
)


def authorizer(grants: Known = GIVEN) -> GrantsAuthorizer:
    return GrantsAuthorizer(grants, ["User:root"], lambda name: name == "__consumer_offsets")


def allowed(role: str, resource: ResourceType, name: str) -> set[AclOperation]:
    decides = authorizer()
    return {op for op in OF_TOPICS if decides.allows(f"User:{role}", "192.0.2.1", op, resource, name)}


@pytest.mark.parametrize(
    ("role", "name", "operations"),
    [
        ("writer", "orders", {WRITE, DESCRIBE}),
        ("writer", "any", {WRITE, DESCRIBE}),
        ("writer", "team/app/any", {WRITE, DESCRIBE}),
        ("writer", "team/strict/any", set()),
        ("reader", "any", {READ, DESCRIBE}),
        ("jobs", "any", set()),
        ("ordering", "orders", {WRITE, DESCRIBE}),
        ("ordering", "any", set()),
        ("ordering", "orders-2", set()),
        ("billing", "orders", {READ, DESCRIBE}),
        ("nobody", "orders", set()),
        ("", "orders", set()),
        ("boss", "any", OF_TOPICS),
        ("boss", "team/strict/any", OF_TOPICS),
        ("boss", "others/app/any", set()),
        ("boss", "__consumer_offsets", set()),
        ("reader", "__consumer_offsets", set()),
        ("root", "__consumer_offsets", OF_TOPICS),
        ("root", "others/app/any", OF_TOPICS),
        ("writer", f"{'t' * 200}/{'n' * 200}/any", set()),
    ],
)
def test_topics(role: str, name: str, operations: set[AclOperation]) -> None:
    assert allowed(role, TOPIC, name) == operations


@pytest.mark.parametrize(
    ("role", "group", "operations"),
    [
        ("writer", "g9", {READ, WRITE, DESCRIBE, DELETE}),
        ("ordering", "g9", {READ, WRITE, DESCRIBE, DELETE}),
        ("ordering", "g1", {WRITE, DESCRIBE}),
        ("reader", "g1", {READ, WRITE, DESCRIBE, DELETE}),
        ("reader", "team/app/g1", {READ, WRITE, DESCRIBE, DELETE}),
        ("writer", "team/app/g1", {WRITE, DESCRIBE}),
        ("boss", "g1", OF_TOPICS),
        ("jobs", "g9", set()),
        ("nobody", "g9", set()),
        ("writer", "team/strict/g", set()),
        ("reader", "team/strict/reader-1", {READ, WRITE, DESCRIBE, DELETE}),
        ("reader", "team/strict/g", {WRITE, DESCRIBE}),
        ("reader", "/a/b", {READ, WRITE, DESCRIBE, DELETE}),
        ("reader", "a/b", {READ, WRITE, DESCRIBE, DELETE}),
    ],
)
def test_groups_are_of_those_who_have_a_grant_in_their_namespace_and_their_subscription(
    role: str, group: str, operations: set[AclOperation]
) -> None:
    assert allowed(role, GROUP, group) == operations


def test_transactional_ids_are_of_those_who_have_a_grant_in_their_namespace() -> None:
    for role in ("writer", "reader", "ordering", "billing"):
        assert {WRITE, DESCRIBE} <= allowed(role, TRANSACTION, "id")
        assert not (role == "writer" and allowed(role, TRANSACTION, "team/strict/id"))
    assert not allowed("nobody", TRANSACTION, "id") | allowed("jobs", TRANSACTION, "id")


def test_the_cluster_is_of_super_users() -> None:
    assert {role for role in ("root", "boss", "writer") if allowed(role, CLUSTER, CLUSTER_NAME)} == {"root"}


def test_other_kinds_of_principals_have_no_role() -> None:
    decides = authorizer()
    for principal in ("Group:writer", "writer", "User:", "user:writer"):
        assert not decides.allows(principal, "192.0.2.1", WRITE, TOPIC, "orders")


def test_a_producer_id_is_anybodys_and_the_rule_is_told() -> None:
    decides = authorizer()
    assert decides.allows_any("User:nobody", "192.0.2.1", WRITE, TOPIC)
    asked = {
        ("User:root", WRITE, TOPIC, "orders"): "super.users",
        ("User:boss", WRITE, TOPIC, "orders"): "admin of tenant team",
        ("User:writer", WRITE, TOPIC, "orders"): "produce on namespace team/app",
        ("User:billing", DESCRIBE, TOPIC, "orders"): "consume on topic team/app/orders",
        ("User:reader", READ, GROUP, "g1"): "a grant in namespace team/app",
        ("User:reader", WRITE, TOPIC, "orders"): "no grant",
        ("User:reader", WRITE, TOPIC, "others/app/orders"): "the grants are not known",
        ("User:reader", WRITE, TOPIC, None): "a producer id needs no grant",
    }
    for (principal, operation, resource, name), rule in asked.items():
        assert decides.rule(principal, "192.0.2.1", operation, resource, name) == rule


def test_what_is_not_known_is_refused() -> None:
    nothing = Known()
    decides = authorizer(nothing)
    assert not decides.knows(TOPIC, "orders")
    assert not decides.knows(GROUP, "g")
    assert decides.knows(CLUSTER, CLUSTER_NAME)
    assert not decides.allows("User:boss", "192.0.2.1", READ, TOPIC, "orders")
    assert decides.allows("User:root", "192.0.2.1", READ, TOPIC, "orders")
    with pytest.raises(BackendError):
        decides.allows_any("User:boss", "192.0.2.1", WRITE, TOPIC)
    assert decides.unread([(TOPIC, "a/b/c"), (GROUP, "team/app/g"), (CLUSTER, "x/y/z")]) == {"a/b", "team/app"}
    assert decides.unread([(TOPIC, f"{'t' * 300}/n/x")]) == ()
    nothing.namespaces = {"team/app": NamespaceGrants()}
    nothing.tenants = {}
    assert not decides.knows(TOPIC, "orders")


def test_decisions_about_long_names_are_not_remembered() -> None:
    decides = authorizer()
    tracemalloc.start()
    try:
        for number in range(100):
            assert decides.allows("User:writer", "192.0.2.1", WRITE, TOPIC, f"{number}" + "x" * 30_000)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_decision_is_remembered_until_the_next_change() -> None:
    grants = Known(app=NamespaceGrants(roles={"r": PRODUCE}))
    decides = authorizer(grants)
    for name in ("orders", "team/app/orders"):
        assert decides.allows("User:r", "192.0.2.1", WRITE, TOPIC, name)
    grants.namespaces = {"team/app": NamespaceGrants()}
    grants.version += 1
    for name in ("orders", "team/app/orders"):
        assert not decides.allows("User:r", "192.0.2.1", WRITE, TOPIC, name)
    assert decides.rule("User:r", "192.0.2.1", READ, TOPIC, "__consumer_offsets") == "not in super.users"


def test_a_remembered_decision_asks_nothing_of_topics() -> None:
    asked: list[str] = []

    def is_internal(name: str) -> bool:
        asked.append(name)
        return name == "__consumer_offsets"

    grants = Known(app=NamespaceGrants(roles={"writer": PRODUCE}), sales=NamespaceGrants(roles={"writer": PRODUCE}))
    decides = GrantsAuthorizer(grants, ["User:root"], is_internal)
    grants.follow("team/sales")
    names = ("orders", "team/app/orders", "team/sales/orders")
    for _ in range(3):
        for name in names:
            assert decides.allows("User:writer", "192.0.2.1", WRITE, TOPIC, name)
            assert not decides.allows("User:writer", "192.0.2.1", READ, TOPIC, name)
        assert not decides.allows("User:boss", "192.0.2.1", READ, TOPIC, "__consumer_offsets")
    assert [asked.count(name) for name in names] == [2, 2, 2]


def test_what_is_decided_in_namespaces_that_nobody_follows_is_not_remembered() -> None:
    grants = Known(app=NamespaceGrants())
    decides = authorizer(grants)
    for given in (None, NamespaceGrants(roles={"r": PRODUCE}), NamespaceGrants()):
        if given is not None:
            grants.namespaces = {"team/asked": given}
        assert decides.allows("User:r", "192.0.2.1", WRITE, TOPIC, "team/asked/orders") == bool(given and given.roles)
