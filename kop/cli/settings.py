"""The options that make a Config, shared by `kop serve` and `kop config`.

Owns: the named flags and --set.
Must not know: which settings there are, beyond those with a flag of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kop.cli.common import pairs
from kop.config import Config

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    """Add the flags of the settings; the command gets them as keyword arguments for `load`."""
    options = (
        click.option(
            "--listen",
            metavar="HOST:PORT",
            multiple=True,
            help="Address that Kafka clients connect to; may be repeated.",
        ),
        click.option(
            "--advertise",
            metavar="HOST:PORT",
            multiple=True,
            help="Address that clients are told to connect to, if it differs.",
        ),
        click.option(
            "--store",
            metavar="sqlite:PATH|memory:|pulsar://HOST:PORT",
            help="Where data is kept: SQLite, memory, or Apache Pulsar.",
        ),
        click.option("--admin-url", metavar="URL", help="Address of Pulsar's admin REST, with --store pulsar://..."),
        click.option(
            "--workers", metavar="N", help="Number of processes that serve, each a broker of its own (with Pulsar)."
        ),
        click.option(
            "--cluster",
            metavar="TENANT/NAMESPACE",
            help="Pulsar namespace in which the brokers of one cluster find one another.",
        ),
        click.option(
            "--http", metavar="HOST:PORT", help='Address of the pages /metrics, /healthz and /readyz; "" for none.'
        ),
        click.option(
            "--config",
            "file",
            metavar="FILE",
            envvar="KOP_CONFIG",
            show_envvar=True,
            help="Read settings from this TOML file.",
        ),
        click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="Set any setting; may be repeated."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def load(
    file: str | None,
    sets: Sequence[str],
    listen: Sequence[str],
    advertise: Sequence[str],
    store: str | None,
    admin_url: str | None,
    workers: str | None,
    cluster: str | None,
    http: str | None,
) -> Config:
    """Return the Config of these flags, the environment and the file. ConfigError if a setting is wrong, with all
    problems; a usage error if a setting is given by its flag and by --set.
    """
    overrides: dict[str, Any] = dict(pairs(sets, "--set"))
    named: tuple[tuple[str, str, Any], ...] = (
        ("--listen", "listen", listen or None),
        ("--advertise", "advertise", advertise or None),
        ("--store", "store", store),
        ("--admin-url", "kop.pulsar.admin.url", admin_url),
        ("--workers", "kop.workers", workers),
        ("--cluster", "kop.pulsar.metadata.namespace", cluster),
        ("--http", "http", http),
    )
    for flag, name, value in named:
        if value is None:
            continue
        if name in overrides:
            raise click.UsageError(f"{flag} and --set {name}=... are both given")
        overrides[name] = value
    return Config.load(file, overrides)
