"""`kop config`: every setting with its value, default and meaning."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping
from typing import Any, Final

import click

from kop.cli.common import CliUsageError, bold, note
from kop.cli.settings import load, settings_options
from kop.config import Config, suggest
from kop.values import SettingRow

_OFFSETS: Final = """\
Index is exact: offsets are dense, Kafka's in every respect. The Pulsar brokers have to send it; where they do not, the
gateway says which two settings of the Pulsar brokers are missing and does not start.

Packed is for Pulsar brokers whose settings cannot be changed. An offset is 30 bits of ledger id, 19 of entry and 14 of
place in the batch. Every request works, with these limits:

- A topic's first offset is not 0, and there is a gap behind every batch and every ledger. Consumers step over gaps as
in a compacted topic, but numbers of records taken from offsets mean nothing, lag among them; a lag of 0 is none.

- From ledger 1048576 on offsets exceed 2^53: tools that keep them as floating point round them.

- A batch has to fit one Pulsar entry (maxMessageSize, before compression) and have 16384 records at most; others are
MESSAGE_TOO_LARGE. Java producers split such a batch by themselves, others need a smaller batch.size or
batch.num.messages.

- A ledger has offsets for 524287 entries. The gateway unloads a partition that comes near, which closes the ledger;
its role has to be an admin of the tenant for that. Where that fails, writes are refused before the end
(KAFKA_STORAGE_ERROR), and what Pulsar clients write behind the end only they can read.

- Entries of Pulsar clients with more than 16384 messages are CORRUPT_MESSAGE: consumers have to seek over them.

- On a cluster with ledger ids above 1073741823 the gateway does not start.

- A consumer that stood in a ledger which retention took goes on with the oldest record; it is not told
OFFSET_OUT_OF_RANGE. It is logged and counted (packed_offsets/read_before_log_start).

- LogAppendTime is when the entry was sent by its sender's clock (a Kafka broker's, for Kafka clients), and
look-ups by time go by those clocks.

The first broker on a kop.pulsar.metadata.namespace chooses for all of them; one that is set otherwise does not start.
To change it, name another namespace: committed offsets do not come along."""

NOTES: Final[Mapping[str, str]] = {"kop.pulsar.offsets": _OFFSETS}
"""Further paragraphs on a setting, which `kop config NAME` prints below its one line of meaning; by the setting's
name.
"""


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
        origin = "a flag" if row.origin == "flag" else row.origin
        click.echo(f"      set by {origin}; the default is {row.default or 'empty'}")
    meaning = f"{row.doc} ({', '.join(filter(None, (row.type, row.env)))})"
    margin = " " * 6
    click.echo(
        textwrap.fill(
            meaning, 78, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
        )
    )
