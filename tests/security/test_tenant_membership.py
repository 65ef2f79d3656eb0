"""Where clients belong: by rules, by claims and by their own word."""

from __future__ import annotations

import asyncio

import pytest
from support.grants import Known

from kop.errors import ConfigError
from kop.security.acls import Acl, Acls
from kop.security.authorizer import AclAuthorizer
from kop.security.grants import GrantsAuthorizer
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.sasl.exchange import AuthenticationError, NamespaceClaim
from kop.security.tenant_membership import TenantMembership
from kop.security.tenants import HOME, Space, space_of
from kop.storage.base import NamespaceGrants

RULES = r"RULE:^User:(\w+)-svc$/acme\/$1/, RULE:^User:CN=.*,OU=(\w+)$/acme\/$1/L, RULE:^User:odd(.*)$/$1/, DEFAULT"
SALES = space_of("acme/sales")


class Rights:
    """Rights in spaces that a test knows."""

    def __init__(self, *allowed: tuple[str, str]) -> None:
        self.allowed = set(allowed)
        self.followed: list[str] = []
        self.why_nobody = ""

    async def enter(self, principal: str, space: Space, *, proven: bool) -> str:
        return self.why_nobody or ("" if proven or (principal, space.name) in self.allowed else "it has no right")

    def follow(self, space: Space) -> None:
        self.followed.append(space.name)


def membership(rules: str = RULES, rights: Rights | None = None) -> TenantMembership:
    reserved = ["public/__kop", "pulsar"]
    return TenantMembership(rules, ["User:root-svc"], "public/default", reserved, rights or Rights())


def space(principal: str, claim: NamespaceClaim | None = None, rights: Rights | None = None) -> Space:
    return asyncio.run(membership(rights=rights).of(principal, claim))


@pytest.mark.parametrize(
    ("principal", "name"),
    [
        ("User:sales-svc", "acme/sales"),
        ("User:CN=ann,OU=HR", "acme/hr"),
        ("User:ann", ""),
        ("User:root-svc", ""),  # a super user
        ("User:a/b", ""),  # by DEFAULT, which gives the name itself
        ("User:oddpublic/default", ""),
    ],
)
def test_rules_over_the_principal(principal: str, name: str) -> None:
    rights = Rights()

    assert space(principal).name == name
    assert membership(rights=rights).at_once(principal).name == name
    assert rights.followed == [name]


@pytest.mark.parametrize(
    ("principal", "why"),
    [
        ("User:oddacme", "kop.tenant.rules are wrong about 'User:oddacme': 'acme' is no namespace"),
        ("User:oddpulsar/system", "the namespace pulsar/system is not for clients"),
        ("User:oddpublic/__kop", "the namespace public/__kop is not for clients"),
        ("User:" + "x" * 1020, "cannot be tried"),
        ("User:x\ny", "cannot be tried"),
    ],
)
def test_a_principal_of_whom_the_rules_make_nothing_is_refused(principal: str, why: str) -> None:
    with pytest.raises(AuthenticationError, match=why):
        space(principal)
    with pytest.raises(ValueError, match=why):
        membership().at_once(principal)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("RULE:.*", "kop.tenant.rules has 'RULE:.\\*', which is not RULE:PATTERN/REPLACEMENT/"),
        ("acme/sales", "begins neither with RULE: nor with DEFAULT"),
        (r"RULE:.*/acme/", "kop.tenant.rules 'acme' is no namespace: TENANT/NAMESPACE"),
        (r"RULE:^User:(/acme\/x/", "cannot be read"),
        (r"RULE:.*/pulsar\/system/", "is not for clients"),
    ],
)
def test_a_bad_rule_is_told_at_the_start(rules: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        membership(rules)


def test_a_rule_for_everybody_makes_its_namespace_once() -> None:
    assert membership(r"RULE:.*/acme\/sales/").at_once("User:ann") == SALES


def test_a_claim_counts_as_it_is() -> None:
    assert space("User:ann", NamespaceClaim("acme/sales")) == SALES
    assert space("User:hr-svc", NamespaceClaim("acme/sales")) == SALES
    assert space("User:ann", NamespaceClaim("public/default")) == HOME
    assert space("User:root-svc", NamespaceClaim("acme/sales")) == HOME


def test_the_clients_own_word_counts_if_it_has_a_right_there() -> None:
    word = NamespaceClaim("acme/sales", is_own_word=True)

    assert space("User:ann", word, Rights(("User:ann", "acme/sales"))) == SALES
    assert space("User:sales-svc", word) == SALES  # a rule says so, too
    assert space("User:root-svc", word) == HOME
    for principal in ("User:bob", "User:hr-svc"):
        with pytest.raises(AuthenticationError, match="the client cannot be of acme/sales: it has no right"):
            space(principal, word)


def test_the_home_space_is_for_those_whom_no_rule_puts_elsewhere() -> None:
    word = NamespaceClaim("public/default", is_own_word=True)

    assert space("User:ann", word) == HOME
    with pytest.raises(AuthenticationError, match="the client is of acme/hr, not of public/default"):
        space("User:hr-svc", word)


def test_nobody_is_of_a_namespace_that_is_not_there() -> None:
    rights = Rights()
    rights.why_nobody = "Pulsar has no namespace acme/sales"

    with pytest.raises(AuthenticationError, match="Pulsar has no namespace acme/sales"):
        space("User:sales-svc", None, rights)


def acl(name: str, principal: str = "User:ann", permission: Permission = Permission.ALLOW, *more: PatternType) -> Acl:
    pattern = more[0] if more else PatternType.LITERAL
    return Acl(ResourceType.TOPIC, name, pattern, principal, "*", AclOperation.READ, permission)


@pytest.mark.parametrize(
    ("given", "enters"),
    [
        (acl("acme/sales/orders"), True),
        (acl("acme/sales/", "User:ann", Permission.ALLOW, PatternType.PREFIXED), True),
        (acl("acme/sales/orders", "User:*"), True),
        (acl("acme/sales/orders", "User:ann", Permission.DENY), False),
        (acl("acme/sales/orders", "User:bob"), False),
        (acl("acme/salesmen/orders"), False),
        (acl("orders"), False),
    ],
)
def test_an_acl_in_the_space_proves_the_clients_word(given: Acl, enters: bool) -> None:
    acls = Acls()
    acls.add(given)
    authorizer = AclAuthorizer(acls, (), True)

    why_not = asyncio.run(authorizer.enter("User:ann", SALES, proven=False))
    assert why_not == ("" if enters else "no ACL allows User:ann anything in acme/sales")
    assert asyncio.run(authorizer.enter("User:ann", SALES, proven=True)) == ""


READS = frozenset({"consume"})


@pytest.mark.parametrize(
    ("role", "given", "proven", "why_not"),
    [
        ("ann", NamespaceGrants(roles={"ann": READS}), False, ""),
        ("ann", NamespaceGrants(topics={"orders": {"ann": READS}}), False, ""),
        ("boss", NamespaceGrants(), False, ""),
        ("ann", NamespaceGrants(roles={"bob": READS}), False, "the role ann holds no grant in team/sales"),
        ("ann", NamespaceGrants(), True, ""),
        ("ann", NamespaceGrants(is_there=False), True, "Pulsar has no namespace team/sales"),
        ("boss", NamespaceGrants(is_there=False), False, "Pulsar has no namespace team/sales"),
        ("ann", None, False, "Pulsar's grants in team/sales cannot be read now"),
        ("ann", None, True, ""),
    ],
)
def test_a_grant_in_the_namespace_proves_the_clients_word(
    role: str, given: NamespaceGrants | None, proven: bool, why_not: str
) -> None:
    known = Known(app=NamespaceGrants(), **({} if given is None else {"sales": given}))
    authorizer = GrantsAuthorizer(known, (), lambda _: False)

    assert asyncio.run(authorizer.enter(f"User:{role}", space_of("team/sales"), proven=proven)) == why_not
    assert known.followed == (set() if why_not else {"team/sales"})
