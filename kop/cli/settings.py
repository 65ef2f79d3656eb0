"""The options that make a Config, shared by `kop serve` and `kop config`.

Owns: the named flags and --set.
Must not know: which settings there are, beyond those with a flag of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from kop.cli.common import options, pairs
from kop.config import Config

settings_options = options(
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
"""Adds the flags of the settings; the command gets them as keyword arguments for `load`."""

_SETTINGS: Final = {
    "listen": "listen",
    "advertise": "advertise",
    "store": "store",
    "admin_url": "kop.pulsar.admin.url",
    "workers": "kop.workers",
    "cluster": "kop.pulsar.metadata.namespace",
    "http": "http",
}
"""The settings that have a flag of their own, by the flag's parameter."""


def load(file: str | None, sets: Sequence[str], **flags: Any) -> Config:
    """Return the Config of these flags, the environment and the file. ConfigError if a setting is wrong, with all
    problems; a usage error if a setting is given by its flag and by --set.
    """
    overrides: dict[str, Any] = dict(pairs(sets, "--set"))
    for flag, name in _SETTINGS.items():
        value = flags[flag]
        if value is None or value == ():
            continue
        if name in overrides:
            raise click.UsageError(f"--{flag.replace('_', '-')} and --set {name}=... are both given")
        overrides[name] = value
    return Config.load(file, overrides)
