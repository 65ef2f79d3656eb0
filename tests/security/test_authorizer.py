"""Who may do what by ACLs: the decisions of Kafka's StandardAuthorizer, each by a case of its own."""

from __future__ import annotations

import timeit
from itertools import count
from typing import NamedTuple

import pytest

from kop.security import authorizer as module
from kop.security.acls import Acl, Acls
from kop.security.authorizer import AclAuthorizer
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType

Op = AclOperation
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ALICE, HOST = "User:alice", "10.0.0.1"


def operation(name: str) -> AclOperation:
    return AclOperation.__members__[name]


def acl(text: str, resource: ResourceType = TOPIC) -> Acl:
    """An ACL as `allow alice READ orders`, with `pay*` for a prefix and `@host` behind the name."""
    permission, who, action, name = text.split()
    name, _, host = name.partition("@")
    pattern = PatternType.PREFIXED if name.endswith("*") and name != "*" else PatternType.LITERAL
    if pattern is PatternType.PREFIXED:
        name = name[:-1]
    principal = who if ":" in who else f"User:{who}"
    return Acl(resource, name, pattern, principal, host or "*", operation(action), Permission[permission.upper()])


def authorizer(*acls: str, supers: tuple[str, ...] = (), open_: bool = False) -> AclAuthorizer:
    made = Acls()
    for text in acls:
        made.add(acl(text))
    return AclAuthorizer(made, supers, open_)


class Case(NamedTuple):
    acls: list[str]
    allowed: list[str]
    """Operations and names that alice may."""
    denied: list[str]


CASES = {
    "nothing": Case([], [], ["READ orders"]),
    "literal": Case(["allow alice READ orders"], ["READ orders"], ["READ order", "READ orders2", "WRITE orders"]),
    "another": Case(["allow bob READ orders"], [], ["READ orders"]),
    "everybody": Case(["allow * READ orders"], ["READ orders"], []),
    "another type": Case(["allow Role:alice READ orders", "allow Role:* READ orders"], [], ["READ orders"]),
    "wildcard": Case(["allow alice READ *"], ["READ orders", "READ x"], []),
    "prefix": Case(["allow alice READ ord*"], ["READ ord", "READ orders"], ["READ or", "READ xord"]),
    "all": Case(["allow alice ALL orders"], ["READ orders", "ALTER_CONFIGS orders", "DESCRIBE orders"], []),
    "deny first": Case(["allow alice ALL *", "deny alice READ orders"], ["WRITE orders", "READ x"], ["READ orders"]),
    "deny by prefix": Case(["allow alice READ orders", "deny * READ ord*"], [], ["READ orders"]),
    "deny by wildcard": Case(["allow alice READ orders", "deny alice READ *"], [], ["READ orders"]),
    "deny all": Case(["allow alice READ orders", "deny alice ALL orders"], [], ["READ orders"]),
    "deny another": Case(["allow alice READ orders", "deny bob READ orders"], ["READ orders"], []),
    "read implies": Case(["allow alice READ t"], ["DESCRIBE t"], ["DESCRIBE_CONFIGS t"]),
    "write implies": Case(["allow alice WRITE t"], ["DESCRIBE t"], ["READ t"]),
    "delete implies": Case(["allow alice DELETE t"], ["DESCRIBE t"], []),
    "alter implies": Case(["allow alice ALTER t"], ["DESCRIBE t"], ["ALTER_CONFIGS t"]),
    "create implies nothing": Case(["allow alice CREATE t"], ["CREATE t"], ["DESCRIBE t"]),
    "alter_configs implies": Case(["allow alice ALTER_CONFIGS t"], ["DESCRIBE_CONFIGS t"], ["DESCRIBE t"]),
    "describe implies nothing": Case(["allow alice DESCRIBE t"], ["DESCRIBE t"], ["READ t", "DESCRIBE_CONFIGS t"]),
    "a deny implies nothing": Case(["allow alice ALL *", "deny alice READ t"], ["DESCRIBE t"], ["READ t"]),
    "deny what is implied": Case(["allow alice READ *", "deny alice DESCRIBE t"], ["READ t"], ["DESCRIBE t"]),
    "host": Case([f"allow alice READ a@{HOST}", "allow alice READ b@10.0.0.2"], ["READ a"], ["READ b"]),
    "host denied": Case(["allow alice READ a", f"deny alice READ a@{HOST}"], [], ["READ a"]),
    "host names never match": Case(["allow alice READ a@localhost", "allow alice READ b@10.0.0.0/8"], [], ["READ a"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_decision_is_kafkas(case: Case) -> None:
    made = authorizer(*case.acls)
    for _ in range(2):  # what is remembered is the same
        for expected, texts in ((True, case.allowed), (False, case.denied)):
            for text in texts:
                action, name = text.split()
                assert made.allows(ALICE, HOST, operation(action), TOPIC, name) == expected, text


def test_a_super_user_is_stopped_by_nothing() -> None:
    made = authorizer("deny alice ALL *", supers=(ALICE,))
    assert made.allows(ALICE, HOST, Op.READ, TOPIC, "orders")
    assert made.allows_any(ALICE, HOST, Op.WRITE, TOPIC)
    assert not made.allows("User:Alice", HOST, Op.READ, TOPIC, "orders")


def test_what_no_acl_is_about_may_be_open() -> None:
    made = authorizer("allow bob READ orders", "allow bob READ pay*", open_=True)
    assert made.allows(ALICE, HOST, Op.READ, TOPIC, "others")
    assert made.allows(ALICE, HOST, Op.READ, GROUP, "orders")
    assert not made.allows(ALICE, HOST, Op.READ, TOPIC, "orders")
    assert not made.allows(ALICE, HOST, Op.WRITE, TOPIC, "payments")


def test_addresses_match_however_they_are_written() -> None:
    made = authorizer("allow alice READ a@0:0:0:0:0:0:0:1", "allow alice READ b@127.0.0.1")
    assert made.allows(ALICE, "::1", Op.READ, TOPIC, "a")
    assert made.allows(ALICE, "::ffff:127.0.0.1", Op.READ, TOPIC, "b")


ANY = {
    "nothing": ([], False),
    "literal": (["allow alice WRITE t"], True),
    "prefix": (["allow alice WRITE t*"], True),
    "wildcard": (["allow alice WRITE *"], True),
    "all": (["allow alice ALL t"], True),
    "another operation": (["allow alice READ t"], False),
    "another principal": (["allow bob WRITE t"], False),
    "another host": (["allow alice WRITE t@10.0.0.2"], False),
    "everybody": (["allow * WRITE t"], True),
    "denied": (["allow alice WRITE t", "deny alice WRITE t"], False),
    "denied all": (["allow alice WRITE t", "deny alice ALL t"], False),
    "denied by a prefix": (["allow alice WRITE tt", "deny alice WRITE t*"], False),
    "a prefix denied by itself": (["allow alice WRITE t*", "deny alice WRITE t*"], False),
    "a prefix denied in part": (["allow alice WRITE t*", "deny alice WRITE tt*", "deny alice WRITE t"], True),
    "denied everywhere": (["allow alice WRITE *", "deny * WRITE *"], False),
    "one of two denied": (["allow alice WRITE t", "allow alice WRITE u", "deny alice WRITE t"], True),
    "a wildcard denied in part": (["allow alice WRITE *", "deny alice WRITE t*"], True),
}


@pytest.mark.parametrize(("acls", "expected"), ANY.values(), ids=ANY)
def test_a_right_to_some_resource_is_found_as_kafka_finds_it(acls: list[str], expected: bool) -> None:
    made = authorizer(*acls)
    assert made.allows_any(ALICE, HOST, Op.WRITE, TOPIC) == expected
    assert not made.allows_any(ALICE, HOST, Op.WRITE, GROUP)


def test_a_change_is_felt_at_once() -> None:
    acls = Acls()
    made = AclAuthorizer(acls, (), False)
    right = acl("allow alice READ orders")
    before = made.version
    assert not made.allows(ALICE, HOST, Op.READ, TOPIC, "orders")
    acls.add(right)
    assert made.version > before
    assert made.allows(ALICE, HOST, Op.READ, TOPIC, "orders")
    assert not made.allows_any(ALICE, HOST, Op.WRITE, TOPIC)
    acls.remove(right)
    assert not made.allows(ALICE, HOST, Op.READ, TOPIC, "orders")


def test_decisions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 10)
    made = authorizer("allow alice READ t*")
    for number in range(100):
        assert made.allows(ALICE, HOST, Op.READ, TOPIC, f"t{number}")
    assert made.remembered <= 10


def test_decisions_about_long_names_are_not_remembered() -> None:
    made = authorizer("allow alice READ t*")
    for name in ("t" * 10_000, "u" * 10_000):
        assert made.allows(ALICE, HOST, Op.READ, TOPIC, name) == name.startswith("t")
    assert made.remembered == 0
    assert made.allows(ALICE, HOST, Op.READ, TOPIC, "t" * 249)
    assert made.remembered == 1


def test_a_check_costs_the_same_with_many_acls() -> None:
    acls = Acls()
    acls.add(acl("allow alice READ orders"))
    few, many = authorizer("allow alice READ orders"), AclAuthorizer(acls, (), False)
    for number in range(10_000):
        kind = "*" if number % 2 else ""
        acls.add(acl(f"allow user{number % 100} READ topic-{number}{kind}"))
    names = count()

    def cost(made: AclAuthorizer, *, cold: bool) -> float:
        def ask() -> None:
            made.allows(ALICE, HOST, Op.READ, TOPIC, f"name-{next(names)}" if cold else "orders")

        return min(timeit.repeat(ask, number=300, repeat=5))

    for cold in (False, True):
        assert cost(many, cold=cold) < 30 * cost(few, cold=cold), "the ACLs of other names are looked at"
