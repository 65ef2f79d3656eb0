"""What can be set of the authorizer. Owns: these settings, with their defaults and limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import AfterValidator

from kop.values import Int, Settings, setting

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
    """Return the principals that the text of super.users names."""
    return [text for item in value.split(";") if (text := item.strip())]


class SecuritySettings(Settings):
    """Who decides what clients may do, and whom nobody stops."""

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
    kop_security_max_users: Int = setting(
        "kop.security.max.users", 10_000, "Users with SCRAM credentials that there may be.", ge=0
    )

    def problems(self) -> Iterable[str]:
        """Return a line if nobody could ever give a right."""
        yield from super().problems()
        decides = self.authorizer_class_name == STANDARD_AUTHORIZER
        if decides and not principals_of(self.super_users) and not self.allow_everyone_if_no_acl_found:
            yield "authorizer.class.name needs super.users: without one nobody may create the first ACL"
