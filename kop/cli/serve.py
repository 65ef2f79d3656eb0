"""`kop serve`: settings in, then the server. The only command that loads it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Sequence
from typing import Any

import click

from kop.address import Address
from kop.cli.common import fail
from kop.cli.settings import load, settings_options
from kop.config import Config
from kop.errors import ConfigError, KopError

EPILOG = """\b
Flags win over KOP_* variables, those over the file.
`kop config` lists every setting.

\b
Examples:
  kop serve
  kop serve --listen 0.0.0.0:9092 --advertise kafka.example:9092
  kop serve --store sqlite:/var/lib/kop/kop.db --set num.partitions=3
  kop serve --store pulsar://pulsar:6650 --admin-url http://pulsar:8080
  KOP_LOG_RETENTION_HOURS=24 kop serve --config kop.toml"""

_BIND_FAULTS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})


_ADDRESS = frozenset({"--port", "--host", "--bind", "--address"})


class _Serve(click.Command):
    """The command with the option that is meant by names which other servers have for their address."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line. A usage error, which names the option that may be meant, if an option is unknown."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in _ADDRESS:
                raise
            raise click.UsageError(f"No such option '{error.option_name}'. Did you mean '--listen'?", ctx) from None


@click.command("serve", cls=_Serve, epilog=EPILOG)
@settings_options
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(context: click.Context, /, debug: bool, **flags: Any) -> None:
    """Serve Kafka clients until Ctrl-C or SIGTERM; both let requests in flight end and sync data.

    Records are kept in an SQLite database in your data directory unless --store says otherwise: in another one, or in
    an Apache Pulsar, whose clients share the topics.
    """
    context.find_root().meta["kop.debug"] = debug
    config = load(**flags)
    from kop.app import run, run_workers

    try:
        run(config) if config.kop_workers == 1 else run_workers(config)
    except KopError as error:
        if debug:
            raise
        fail(error.message or str(error))
    except ConfigError as error:  # a certificate, or a login between brokers, that cannot be used
        fail(str(error))
    except socket.gaierror as error:
        asked = ", ".join(str(address) for address in (*_listening(config), config.http) if address is not None)
        fail(f"cannot listen on {asked}: {error.strerror}")
    except OSError as error:
        match = re.search(r"\('([^']*)', (\d+)", str(error))
        if debug or error.errno not in _BIND_FAULTS or (match is None and error.errno != errno.EADDRINUSE):
            raise
        address = Address(match[1], int(match[2])) if match else None
        if error.errno == errno.EADDRINUSE:
            taken = [it for it in (*_listening(config), config.http) if it and (it == address or _is_taken(it))]
            if len(taken) > 1:
                fail(_all_taken(taken, config))
        where = str(address) if address is not None else "an address of --listen or --http"
        flag = "--listen (Kafka) or --http (metrics)"
        listening = _listening(config)
        if address is not None and (address in listening) != (address == config.http):
            kafka = "listeners" if config.listeners else "--listen"
            flag = kafka if address in listening else "--http, or none with --http ''"
        if error.errno != errno.EADDRINUSE:
            fail(f"cannot listen on {where}: {os.strerror(error.errno)}; choose another with {flag}")
        fail(f"{where} is in use by another program; choose another with {flag}")


def _is_taken(address: Address) -> bool:
    """Return true if another socket listens on the address, so that no server can be started there."""
    with contextlib.suppress(OSError):
        known = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, bound in known:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    trial.bind(bound)
                except OSError as error:
                    return error.errno == errno.EADDRINUSE
    return False


def _all_taken(taken: Sequence[Address], config: Config) -> str:
    """Return the error line for several addresses of the configuration that others listen on."""
    *some, last = dict.fromkeys(map(str, taken))
    flags = [
        ("listeners" if config.listeners else "--listen") + " (Kafka)" if set(taken) & set(_listening(config)) else "",
        "--http (metrics)" if config.http in taken else "",
    ]
    store = "; beside another kop serve it needs a --store of its own, too" if config.store.startswith("sqlite") else ""
    return (
        f"{', '.join(some)} and {last} are in use by other programs; choose others with "
        f"{' and '.join(filter(None, flags))}{store}"
    )


def _listening(config: Config) -> list[Address]:
    """Return the addresses that clients connect to, from the setting `listeners` if it is given, else from `listen`."""
    return [listener.address for listener in config.listeners] or list(config.listen)
