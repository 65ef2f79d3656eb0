"""The settings of the authorizer. Owns: these settings, with their defaults and limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import AfterValidator

from kop.values import Int, Long, Secret, Settings, setting

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PULSAR_AUTHORIZER: Final = "pulsar"
"""The authorizer.class.name by which Pulsar's grants decide."""


def _authorizer(value: str) -> str:
    if value not in {"", STANDARD_AUTHORIZER, PULSAR_AUTHORIZER}:
        raise ValueError(f"must be {STANDARD_AUTHORIZER}, {PULSAR_AUTHORIZER}, or empty")
    return value


def _principals(value: str) -> str:
    for principal in principals_of(value):
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"must be principals such as User:admin, with ; between them, and {principal!r} is none")
    return value


def principals_of(value: str) -> list[str]:
    """Return the principals that the text of super.users names, with semicolons between them."""
    return [text for item in value.split(";") if (text := item.strip())]


class SecuritySettings(Settings):
    """The settings of the authorizer, super users and tokens."""

    authorizer_class_name: Annotated[str, AfterValidator(_authorizer)] = setting(
        "authorizer.class.name",
        "",
        f"Who decides: {STANDARD_AUTHORIZER}, by ACLs; {PULSAR_AUTHORIZER}, by Pulsar's grants; empty: nobody, so all "
        "is allowed.",
    )
    super_users: Annotated[str, AfterValidator(_principals)] = setting(
        "super.users", "", "Principals that may do everything, such as User:admin, with ; between them."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found", False, "Allow everybody what no ACL is about."
    )
    kop_security_max_acls: Int = setting("kop.security.max.acls", 10_000, "ACLs that there may be.", ge=0)
    kop_security_max_quotas: Int = setting("kop.security.max.quotas", 10_000, "Quotas that there may be.", ge=0)
    kop_security_max_users: Int = setting(
        "kop.security.max.users", 10_000, "Users with SCRAM credentials that there may be.", ge=0
    )
    kop_security_max_tokens: Int = setting(
        "kop.security.max.tokens", 10_000, "Delegation tokens that there may be.", ge=0
    )
    delegation_token_secret_key: Secret = setting(
        "delegation.token.secret.key",
        "",
        "Secret that the passwords of delegation tokens are made by, the same on all brokers; empty: no tokens.",
    )
    delegation_token_max_lifetime_ms: Long = setting(
        "delegation.token.max.lifetime.ms",
        7 * 24 * 3_600_000,
        "How long a delegation token lives at most, however often it is renewed.",
        ge=1,
    )
    delegation_token_expiry_time_ms: Long = setting(
        "delegation.token.expiry.time.ms",
        24 * 3_600_000,
        "How long a delegation token lives from one renewal to the next at most.",
        ge=1,
    )
    delegation_token_expiry_check_interval_ms: Long = setting(
        "delegation.token.expiry.check.interval.ms",
        3_600_000,
        "Time between two looks for delegation tokens that have expired, which are removed then.",
        ge=1,
    )

    kop_security_users_file: str = setting(
        "kop.security.users.file",
        "",
        "File of users, NAME:PASSWORD in each line, that are made at the start if they are missing.",
    )
    kop_pulsar_tokens: bool = setting(
        "kop.pulsar.tokens",
        False,
        "Let clients log in with Pulsar's tokens, by PLAIN (password token:TOKEN) and OAUTHBEARER; over Pulsar.",
    )
    kop_pulsar_token_secret_key: Secret = setting(
        "kop.pulsar.token.secret.key",
        "",
        "Secret by which such tokens are checked: a file, or data:;base64,TEXT; without any key Pulsar is asked.",
    )
    kop_pulsar_token_public_key: str = setting(
        "kop.pulsar.token.public.key", "", "Public key by which they are checked, instead of a secret: likewise."
    )
    kop_pulsar_token_auth_claim: str = setting(
        "kop.pulsar.token.auth.claim", "sub", "The claim of such tokens that has the role."
    )
    kop_pulsar_token_audience: str = setting(
        "kop.pulsar.token.audience", "", "The audience that such tokens have to be for; empty: any."
    )
    kop_pulsar_token_audience_claim: str = setting(
        "kop.pulsar.token.audience.claim", "aud", "The claim of such tokens that has their audience."
    )
    kop_tenant_rules: str = setting(
        "kop.tenant.rules",
        "",
        "Rules as of ssl.principal.mapping.rules that give for a principal, User:NAME, its TENANT/NAMESPACE.",
    )
    kop_tenant_claim: str = setting(
        "kop.tenant.claim",
        "",
        "The claim of tokens that has the TENANT/NAMESPACE of their bearer; empty: none does.",
    )
    kop_audit_file: str = setting(
        "kop.audit.file", "", "File of the audit, a line of JSON for each denial and change; empty: the log."
    )
    kop_audit_allowed: bool = setting("kop.audit.allowed", False, "Audit lines for what was allowed, too.")

    @property
    def has_tenants(self) -> bool:
        """True if clients may belong to tenants: rules, a claim of tokens, or tokens of Pulsar say to which, and there
        is an authorizer, without which nothing would keep tenants apart.
        """
        given = self.kop_tenant_rules or self.kop_tenant_claim or self.kop_pulsar_tokens
        return bool(self.authorizer_class_name and given)

    def problems(self) -> Iterable[str]:
        """Yield a line for each contradiction: ACLs decide and there is nobody who could make the first one, or tenants
        are told apart and nothing decides what they may do.
        """
        yield from super().problems()
        decides = self.authorizer_class_name == STANDARD_AUTHORIZER
        if decides and not principals_of(self.super_users) and not self.allow_everyone_if_no_acl_found:
            yield "authorizer.class.name needs super.users: without one nobody may create the first ACL"
        if not self.authorizer_class_name:
            for name in ("kop.tenant.rules", "kop.tenant.claim"):
                if getattr(self, name.replace(".", "_")):
                    yield f"{name} needs authorizer.class.name: without one nothing keeps tenants apart"
