"""`kop config`: every setting with its value, default and meaning."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from kop.cli.common import CliUsageError, bold, note
from kop.cli.notes import NOTES
from kop.cli.settings import load, settings_options
from kop.config import Config, suggest
from kop.values import SettingRow

EPILOG = """\b
Examples:
  kop config                        every setting; changed ones begin with *
  kop config log.retention.ms       one of them
  kop config --config kop.toml      what `kop serve` would use with that file
  kop config --changed              only what differs from the defaults"""


def _setting_names(_: click.Context, __: click.Parameter, begin: str) -> list[str]:
    return [row.name for row in Config().table() if row.name.startswith(begin)]


@click.command("config", epilog=EPILOG)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_setting_names)
@click.option("--changed", is_flag=True, help="Show only settings that are not at their default.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with an object for each setting.")
@settings_options
def command(names: tuple[str, ...], changed: bool, as_json: bool, **flags: Any) -> None:
    """Show each setting with its value and meaning, as `kop serve` with the same flags would use it.

    Names without `kop.` that have a dot are Kafka's own, and mean what they mean there.
    """
    rows = list(load(**flags).table())
    known = {row.name for row in rows}
    for name in names:
        if name not in known:
            raise CliUsageError(f"unknown setting {name}{suggest(name)}")
    rows = [row for row in rows if (not names or row.name in names) and (not changed or _is_changed(row))]
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    if not rows:
        note("every setting is at its default" if not names else "these settings are at their default")
    for row in rows:
        _show(row)
        if names and row.name in NOTES:
            click.echo()
            click.echo(click.wrap_text(NOTES[row.name], 78, "      ", "      ", preserve_paragraphs=True))


def _is_changed(row: SettingRow) -> bool:
    return row.origin != "default" and row.current != row.default


def _show(row: SettingRow) -> None:
    mark = "*" if _is_changed(row) else " "
    click.echo(f"{mark} {bold(row.name)} = {row.current}".rstrip())
    if row.origin != "default":
        click.echo(f"      set by {_origin(row)}; the default is {row.default or 'empty'}")
    click.echo(click.wrap_text(f"{row.doc} ({', '.join(filter(None, (row.type, row.env)))})", 78, "      ", "      "))


def _origin(row: SettingRow) -> str:
    return "a flag" if row.origin == "flag" else row.origin
