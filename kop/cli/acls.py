"""`kop acls`: add, list, remove the rights of principals, through a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from kop.cli import completion
from kop.cli.common import (
    Ordered,
    admin,
    ask_server,
    bootstrap_option,
    fail,
    fail_if_any,
    json_option,
    options,
    print_rows,
    rights_refused,
)

EPILOG = """\b
Examples:
  kop acls add User:alice read describe --topic orders
  kop acls add User:app write --topic pay --prefixed
  kop acls add User:mallory all --topic '*' --deny
  kop acls add User:app create-tokens --user-principal User:alice
  kop acls list --principal User:alice
  kop acls remove --principal User:alice --topic orders"""

TYPES: Final = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5, "delegation-token": 6, "user": 7}
OPERATIONS: Final = {
    name: code + 2
    for code, name in enumerate(
        (
            *("all", "read", "write", "create", "delete", "alter", "describe", "cluster-action", "describe-configs"),
            *("alter-configs", "idempotent-write", "create-tokens", "describe-tokens"),
        )
    )
}
PATTERNS: Final = {"any": 1, "match": 2, "literal": 3, "prefixed": 4}
PERMISSIONS: Final = {"any": 1, "deny": 2, "allow": 3}
ANY: Final = 1
CLUSTER: Final = "kafka-cluster"
FIELDS: Final = ("principal", "permission", "operation", "type", "name", "pattern", "host")


@click.group("acls", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """Add, list and remove rights (ACLs)."""


resource_options = options(
    click.option("--topic", multiple=True, metavar="NAME", shell_complete=completion.topics, help="* for all."),
    click.option("--group", multiple=True, metavar="NAME", shell_complete=completion.groups, help="* for all."),
    click.option(
        "--transactional-id",
        multiple=True,
        metavar="ID",
        shell_complete=completion.transactional_ids,
        help="* for all.",
    ),
    click.option("--cluster", is_flag=True, help="The cluster."),
    click.option("--delegation-token", multiple=True, metavar="ID", help="* for all."),
    click.option("--user-principal", "user", multiple=True, metavar="TYPE:NAME", help="The tokens of a user."),
)
"""Adds the options that name resources: topics, groups, transactional ids, the cluster, delegation tokens, tokens of
users.
"""


def _resources(kinds: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return Kafka's number of the type, and the name, of each resource that options name."""
    named = [
        (TYPES[kind.replace("_", "-")], name) for kind, names in kinds.items() if kind != "cluster" for name in names
    ]
    return named + ([(TYPES["cluster"], CLUSTER)] if kinds["cluster"] else [])


@command.command("add")
@click.argument("principal", metavar="PRINCIPAL")
@click.argument(
    "operations",
    metavar="OPERATION...",
    nargs=-1,
    required=True,
    type=click.Choice(list(OPERATIONS), case_sensitive=False),
)
@resource_options
@click.option("--prefixed", is_flag=True, help="The names are beginnings of names.")
@click.option("--host", default="*", show_default=True, help="The address that the client comes from.")
@click.option("--deny", is_flag=True, help="Deny it, whatever else allows it.")
@bootstrap_option
def add(
    bootstrap: str,
    principal: str,
    operations: tuple[str, ...],
    prefixed: bool,
    host: str,
    deny: bool,
    **kinds: Any,
) -> None:
    """Allow a principal (User:NAME) operations on resources.

    read, write, delete and alter allow describe, too; alter-configs allows describe-configs.
    """
    resources = _resources(kinds)
    if not resources:
        raise click.UsageError("give --topic, --group, --transactional-id, --cluster or another resource")
    pattern = PATTERNS["prefixed" if prefixed else "literal"]
    from kafka.protocol.admin import CreateAclsRequest

    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=PATTERNS["literal"] if kind == TYPES["cluster"] else pattern,
            principal=principal,
            host=host,
            operation=OPERATIONS[operation.lower()],
            permission_type=PERMISSIONS["deny" if deny else "allow"],
        )
        for kind, name in resources
        for operation in operations
    ]
    with admin(bootstrap) as made:
        results = ask_server(made, CreateAclsRequest(creations=creations)).results
    failures = []
    for creation, result in zip(creations, results, strict=True):
        resource = f"{_word(TYPES, creation.resource_type)} {creation.resource_name}"
        text = f"{principal} {_word(OPERATIONS, creation.operation)} {resource}"
        if result.error_code:
            failures.append(f"{text}: {rights_refused(result.error_code, result.error_message, 'alter')}")
        else:
            click.echo(f"{text}: {'denied' if deny else 'allowed'}")
    fail_if_any(failures)


filter_options = options(
    resource_options,
    click.option("--principal", metavar="TYPE:NAME", help="Only of this principal."),
    click.option(
        "--pattern",
        type=click.Choice(list(PATTERNS)),
        default="any",
        show_default=True,
        help="match: all that apply to the resource, prefixes and * among them.",
    ),
    click.option(
        "--operation",
        metavar="OPERATION",
        type=click.Choice(list(OPERATIONS), case_sensitive=False),
        help="Only of this operation, such as read.",
    ),
    click.option("--host", help="Only of this address."),
    click.option("--allow", "permission", flag_value="allow", help="Only what is allowed."),
    click.option("--deny", "permission", flag_value="deny", help="Only what is denied."),
)
"""Adds the options by which ACLs are chosen: those of `resource_options`, principal, pattern, operation, host, and if
they allow or deny.
"""


def _filters(pattern: str, options: Mapping[str, str | None], kinds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    operation, permission = options["operation"], options["permission"]
    chosen: list[tuple[int, str | None]] = [*_resources(kinds)]
    for kind, name in chosen or [(ANY, None)]:
        yield {
            "resource_type_filter": kind,
            "resource_name_filter": name,
            "pattern_type_filter": PATTERNS[pattern],
            "principal_filter": options["principal"],
            "host_filter": options["host"],
            "operation": ANY if operation is None else OPERATIONS[operation.lower()],
            "permission_type": ANY if permission is None else PERMISSIONS[permission],
        }


@command.command("list")
@filter_options
@json_option
@bootstrap_option
def list_acls(
    bootstrap: str,
    as_json: bool,
    pattern: str,
    principal: str | None,
    operation: str | None,
    host: str | None,
    permission: str | None,
    **kinds: Any,
) -> None:
    """List rights; all of them unless options say which."""
    options = {"principal": principal, "operation": operation, "host": host, "permission": permission}
    from kafka.protocol.admin import DescribeAclsRequest

    rows: set[tuple[str, ...]] = set()
    with admin(bootstrap) as made:
        for fields in _filters(pattern, options, kinds):
            answer = ask_server(made, DescribeAclsRequest(**fields))
            if answer.error_code:
                fail(rights_refused(answer.error_code, answer.error_message, "describe"))
            rows |= {
                _row(acl, resource.resource_type, resource.resource_name, resource.pattern_type)
                for resource in answer.resources
                for acl in resource.acls
            }
    _show(
        sorted(rows),
        as_json,
        "there are no such ACLs" if any(options.values()) or _resources(kinds) else "there are no ACLs",
    )


@command.command("remove")
@filter_options
@click.option("--all", "everything", is_flag=True, help="Remove every ACL that there is.")
@json_option
@bootstrap_option
def remove(
    bootstrap: str,
    as_json: bool,
    everything: bool,
    pattern: str,
    principal: str | None,
    operation: str | None,
    host: str | None,
    permission: str | None,
    **kinds: Any,
) -> None:
    """Remove the rights that the options describe, and list them."""
    options = {"principal": principal, "operation": operation, "host": host, "permission": permission}
    chosen = bool(any(options.values()) or _resources(kinds))
    if chosen == everything:
        raise click.UsageError("say which rights, or --all")
    from kafka.protocol.admin import DeleteAclsRequest

    filters = [DeleteAclsRequest.DeleteAclsFilter(**fields) for fields in _filters(pattern, options, kinds)]
    rows: set[tuple[str, ...]] = set()
    with admin(bootstrap) as made:
        for result in ask_server(made, DeleteAclsRequest(filters=filters)).filter_results:
            if result.error_code:
                fail(rights_refused(result.error_code, result.error_message, "alter"))
            rows |= {_row(acl, acl.resource_type, acl.resource_name, acl.pattern_type) for acl in result.matching_acls}
    if not rows:
        fail("there are no such ACLs")
    _show(sorted(rows), as_json, "")


def _word(table: Mapping[str, int], code: int) -> str:
    return next((word for word, known in table.items() if known == code), str(code))


def _row(acl: Any, kind: int, name: str, pattern: int) -> tuple[str, ...]:
    return (
        acl.principal,
        _word(PERMISSIONS, acl.permission_type),
        _word(OPERATIONS, acl.operation),
        _word(TYPES, kind),
        name,
        _word(PATTERNS, pattern),
        acl.host,
    )


def _show(rows: Sequence[tuple[str, ...]], as_json: bool, empty: str) -> None:
    columns = {field: field.upper() for field in FIELDS}
    print_rows([dict(zip(FIELDS, row, strict=True)) for row in rows], as_json, columns, empty)
