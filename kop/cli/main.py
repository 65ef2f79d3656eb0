"""`kop`: finds the sub-command, loads only its module, and turns every failure into one line.

Owns: the list of commands and the last word on errors.
Must not know: what a command does.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

import kop
from kop.cli.common import CliError, CliUsageError, Suggesting, explain
from kop.errors import ConfigError

COMMANDS = {
    "serve": "Serve Kafka clients.",
    "config": "Show each setting with its value and meaning.",
    "topics": "List, create, describe, alter, delete topics and records.",
    "brokers": "List the brokers of a cluster.",
    "groups": "List, describe, reset and delete consumer groups.",
    "transactions": "List, describe and abort transactions.",
    "users": "Create, list and delete users with passwords.",
    "acls": "Add, list and remove rights of users.",
    "quotas": "List, set and remove how much clients may take.",
    "certs": "Make a CA and certificates to try out.",
    "produce": "Send lines of stdin or a file as records.",
    "consume": "Print records.",
    "offsets": "Turn Pulsar's message ids into offsets and back.",
    "spark": 'Run PySpark with format("kop").',
    "functions": "Run Pulsar's Python functions.",
    "mesh": "Run meshes of functions on PySpark.",
    "check": "Run a round trip against a server and say what works.",
    "completion": "Print the script by which bash, zsh or fish completes kop.",
}

EPILOG = """\b
Examples:
  kop serve
  kop topics create orders --partitions 3
  echo hello | kop produce orders
  kop consume orders --from-beginning
  kop groups describe billing
  kop check --bootstrap broker.example:9092

\b
Exit codes: 0 done, 1 failed, 2 wrong use or settings.
`kop COMMAND --help` says more."""


class Commands(Suggesting):
    """The group of `kop`'s sub-commands: each is the `command` of a module `kop.cli.NAME`, imported only if it is asked
    for.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"kop.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of sub-commands into the help without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. An exception becomes one line on stderr and the exit code 1, or 2 for wrong settings; a
        traceback is shown only with --debug. A reader of the output that has gone ends it with 0.
        """
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):  # a prompt makes the one of the other
            raise CliError("interrupted") from None
        except BrokenPipeError:  # the reader of our output has gone (`| head`): that is a way to end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ctx.exit(0)
        except Exception as error:
            if ctx.meta.get("kop.debug"):
                raise
            text = explain(error)
            if text is None:
                text = f"{type(error).__name__}: {error}; this is a bug of kop, --debug shows where"
            raise (CliUsageError if isinstance(error, ConfigError) else CliError)(text) from None


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.version_option(kop.__version__, "--version", message="kop %(version)s")
def cli() -> None:
    """Serve unmodified Kafka clients from Apache Pulsar or one durable file, and talk to any Kafka server."""
    if os.environ.get("NO_COLOR"):
        click.get_current_context().color = False


def main() -> None:
    """Run the `kop` script: its entry point."""
    cli(prog_name="kop")


if __name__ == "__main__":
    main()
