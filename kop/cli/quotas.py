"""`kop quotas`: list, set, remove how much clients may take, through a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from kop.cli.common import (
    Ordered,
    admin,
    ask_server,
    bootstrap_option,
    fail,
    json_option,
    note,
    options,
    print_json,
    print_table,
    reason,
)

EPILOG = """\b
Examples:
  kop quotas set producer_byte_rate=1048576 --user alice
  kop quotas set request_percentage=20 --user-defaults --client-id app
  kop quotas set connection_creation_rate=10 --ip-defaults
  kop quotas list
  kop quotas remove --user alice"""

KEYS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
TYPES: Final = ("user", "client-id", "ip")
EXACT, DEFAULT = 0, 1
Entity = Mapping[str, str | None]
"""Names by Kafka's types; None is the default."""


@click.group("quotas", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """List, set and remove how much clients may take (quotas)."""


entity_options = options(
    click.option("--user", metavar="NAME", help="A user; ANONYMOUS if nobody logs in."),
    click.option("--user-defaults", is_flag=True, help="Each user without an own quota."),
    click.option("--client-id", metavar="NAME", help="A client id; with a user, of that user."),
    click.option("--client-defaults", is_flag=True, help="Each client id without an own quota."),
    click.option("--ip", metavar="ADDRESS", help="An address that connections come from."),
    click.option("--ip-defaults", is_flag=True, help="Each address without an own quota."),
)
"""Adds the options that say whose quotas are meant: a user, a client id, an address, or the defaults of one of them."""


def _entity(options: Mapping[str, Any]) -> dict[str, str | None]:
    entity: dict[str, str | None] = {}
    for kind, default in zip(TYPES, ("user_defaults", "client_defaults", "ip_defaults"), strict=True):
        name = options[kind.replace("-", "_")]
        if name is not None and options[default]:
            raise click.UsageError(f"give --{kind} or --{default.replace('_', '-')}, not both")
        if name is not None or options[default]:
            entity[kind] = name
    return entity


def _needed(options: Mapping[str, Any]) -> dict[str, str | None]:
    entity = _entity(options)
    if not entity:
        raise click.UsageError("say whose: --user, --client-id, --ip or one of the defaults")
    return entity


@command.command("list")
@entity_options
@json_option
@bootstrap_option
def list_quotas(bootstrap: str, as_json: bool, **options: Any) -> None:
    """List quotas; all of them unless options say whose."""
    entity = _entity(options)
    rows = _described(bootstrap, entity, strict=False)
    if as_json:
        print_json([{"entity": dict(whose), "quota": key, "value": value} for whose, key, value in rows])
    elif rows:
        table = [[*(_shown(whose, kind) for kind in TYPES), key, value] for whose, key, value in rows]
        print_table(["USER", "CLIENT-ID", "IP", "QUOTA", ">VALUE"], table)
    else:
        note("there are no such quotas" if entity else "there are no quotas")


def _shown(entity: Entity, kind: str) -> str:
    if kind not in entity:
        return "-"
    name = entity[kind]
    return "<default>" if name is None else name


def _values(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for text in texts:
        key, equals, number = text.partition("=")
        if not equals or key not in KEYS:
            raise click.BadParameter(f"must be QUOTA=NUMBER with one of {', '.join(KEYS)}; got {text!r}")
        if key in values:
            raise click.BadParameter(f"{key} is given twice")
        try:
            values[key] = float(number)
        except ValueError:
            raise click.BadParameter(f"{number!r} is no number") from None
    return values


@command.command("set")
@click.argument("values", metavar="QUOTA=NUMBER...", nargs=-1, required=True, callback=_values)
@entity_options
@click.option("--dry-run", is_flag=True, help="Let the server check it and change nothing.")
@bootstrap_option
def set_quotas(bootstrap: str, values: dict[str, float], dry_run: bool, **options: Any) -> None:
    """Set quotas of a user, a client id, both, or an address.

    \b
    producer_byte_rate, consumer_byte_rate  bytes a second
    request_percentage                      of the time of a broker
    controller_mutation_rate                partitions made or deleted a second
    connection_creation_rate                connections a second, of an address

    Each broker, and each worker of one, allows that much.
    """
    entity = _needed(options)
    _alter(bootstrap, entity, values, dry_run=dry_run)
    for key, value in values.items():
        click.echo(f"{_named(entity)}: {key} {'would be' if dry_run else 'is'} {_number(value)}")


@command.command("remove")
@click.argument("keys", metavar="[QUOTA]...", nargs=-1, type=click.Choice(KEYS))
@entity_options
@bootstrap_option
def remove(bootstrap: str, keys: tuple[str, ...], **options: Any) -> None:
    """Remove quotas; all of those named by the options if none is given."""
    entity = _needed(options)
    known = [key for _, key, _ in _described(bootstrap, entity, strict=True)]
    doomed = [key for key in known if not keys or key in keys]
    if missing := [key for key in keys if key not in known]:
        fail(f"{_named(entity)}: there is no {', '.join(missing)}")
    if not doomed:
        fail(f"{_named(entity)}: there are no quotas")
    _alter(bootstrap, entity, dict.fromkeys(doomed))
    click.echo(f"{_named(entity)}: removed {', '.join(doomed)}")


def _named(entity: Entity) -> str:
    return ", ".join(f"{kind} {_shown(entity, kind)}" for kind in TYPES if kind in entity)


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _alter(bootstrap: str, entity: Entity, values: Mapping[str, float | None], dry_run: bool = False) -> None:
    """Set the quotas of an entity; a value of None removes one. With `dry_run` the server only checks that. The command
    ends if it refuses.
    """
    from kafka.protocol.admin import AlterClientQuotasRequest as Request

    parts = [Request.EntryData.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    ops = [Request.EntryData.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()]
    entry = Request.EntryData(entity=parts, ops=ops)
    with admin(bootstrap) as made:
        answer = ask_server(made, Request(entries=[entry], validate_only=dry_run))
    for row in answer.entries:
        if row.error_code:
            fail(f"{_named(entity)}: {reason(row.error_code, row.error_message)}")


def _described(bootstrap: str, entity: Entity, strict: bool) -> list[tuple[dict[str, str | None], str, int | float]]:
    """Return entity, key and value of each quota: of this entity alone if `strict`, else of all whose names these are
    among. The command ends if the server refuses that.
    """
    from kafka.protocol.admin import DescribeClientQuotasRequest as Request

    components = [
        Request.ComponentData(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in entity.items()
    ]
    with admin(bootstrap) as made:
        answer = ask_server(made, Request(components=components, strict=strict))
    if answer.error_code:
        fail(reason(answer.error_code, answer.error_message))
    return [
        ({part.entity_type: part.entity_name for part in row.entity}, each.key, _number(each.value))
        for row in answer.entries or ()
        for each in row.values
    ]
