"""The set of ACLs: which of them a filter finds, and which apply to a name, whatever was added and removed before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.security.acls import Acl, AclFilter, Acls, plain_host
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType

NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "bc"])
ACLS = st.builds(
    Acl,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:a", "User:b", "User:*"]),
    st.sampled_from(["*", "127.0.0.1"]),
    st.sampled_from([AclOperation.READ, AclOperation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


def topic(name: str, pattern: PatternType = PatternType.LITERAL, principal: str = "User:a") -> Acl:
    return Acl(ResourceType.TOPIC, name, pattern, principal, "*", AclOperation.READ, Permission.ALLOW)


def applying(acls: Acls, resource: ResourceType, name: str) -> list[Acl]:
    return sorted(acl for by in acls.of(resource, name) for some in by.values() for acl in some)


def applies(acl: Acl, resource: ResourceType, name: str) -> bool:
    by_name = name.startswith(acl.name) if acl.pattern == PatternType.PREFIXED else acl.name in {"*", name}
    return acl.resource == resource and by_name


@given(st.lists(st.tuples(st.booleans(), ACLS), max_size=30), st.lists(ACLS, max_size=10))
def test_what_applies_to_a_name_is_what_its_text_says(changes: list[tuple[bool, Acl]], others: list[Acl]) -> None:
    acls, known = Acls(), set[Acl]()
    for added, acl in changes:
        before = acls.version
        (acls.add if added else acls.remove)(acl)
        assert (acls.version != before) == ((acl in known) != added)
        (known.add if added else known.discard)(acl)
    for all_of_them in (known, set(others)):
        acls.replace(all_of_them)
        assert set(acls) == all_of_them
        assert len(acls) == len(all_of_them)
        for resource in (ResourceType.TOPIC, ResourceType.GROUP):
            for name in ("*", "a", "ab", "abcd", "b", "c", ""):
                assert applying(acls, resource, name) == sorted(a for a in all_of_them if applies(a, resource, name))


FILTERS = [
    (AclFilter(), {"*", "t", "to", "x"}),
    (AclFilter(ResourceType.GROUP), set()),
    (AclFilter(name="t", pattern=PatternType.LITERAL), {"t"}),
    (AclFilter(name="to", pattern=PatternType.ANY), {"to"}),
    (AclFilter(name="to", pattern=PatternType.LITERAL), set()),
    (AclFilter(name="t", pattern=PatternType.MATCH), {"t", "*"}),
    (AclFilter(name="topic", pattern=PatternType.MATCH), {"to", "*"}),
    (AclFilter(name="*", pattern=PatternType.MATCH), {"*"}),
    (AclFilter(pattern=PatternType.PREFIXED), {"to"}),
    (AclFilter(principal="User:b"), {"x"}),
    (AclFilter(principal="User"), set()),
    (AclFilter(host="*", operation=AclOperation.READ, permission=Permission.ALLOW), {"*", "t", "to", "x"}),
    (AclFilter(host="1.2.3.4"), set()),
    (AclFilter(operation=AclOperation.ALL), set()),
    (AclFilter(permission=Permission.DENY), set()),
]


@pytest.mark.parametrize(("which", "names"), FILTERS, ids=[str(number) for number in range(len(FILTERS))])
def test_a_filter_finds_what_kafkas_does(which: AclFilter, names: set[str]) -> None:
    acls = Acls()
    acls.replace([topic("*"), topic("t"), topic("to", PatternType.PREFIXED), topic("x", principal="User:b")])
    assert {acl.name for acl in acls.matching(which)} == names


def test_a_filter_with_a_name_finds_what_a_look_at_all_does() -> None:
    acls = Acls()
    names, patterns = ("*", "t", "to", "top", "u"), (PatternType.LITERAL, PatternType.PREFIXED)
    acls.replace(topic(name, pattern, who) for name in names for pattern in patterns for who in ("User:a", "User:b"))
    for name in (*names, "topic", "x", None):
        for pattern in set(PatternType) - {0}:
            for resource in (ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP):
                which = AclFilter(resource=resource, name=name, pattern=pattern, principal="User:a")
                assert acls.matching(which) == sorted(filter(which.finds, acls)), which


def test_a_host_has_one_text() -> None:
    assert plain_host("::ffff:127.0.0.1") == plain_host("127.0.0.1") == "127.0.0.1"
    assert plain_host("0:0:0:0:0:0:0:1") == plain_host("::1") == "::1"
    assert plain_host("fe80:0:0:0:0:0:0:1%eth0") == plain_host("fe80::1")
    assert plain_host("some.host") == "some.host"
    assert plain_host("10.0.0.0/8") == "10.0.0.0/8"
