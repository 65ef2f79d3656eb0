"""`kop completion`: what makes a shell complete commands and, from the server, names of topics, groups and others.

Owns: the scripts' printing, and how long a server may take.
Must not know: what the commands do with a name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import get_completion_class

from kop.cli.common import DEFAULT_BOOTSTRAP, client

SECONDS = 0.8
"""The longest time, in seconds, that a shell waits for the names that a server has."""

EPILOG = """\b
Examples:
  eval "$(kop completion bash)"          in ~/.bashrc
  eval "$(kop completion zsh)"           in ~/.zshrc, behind compinit
  kop completion fish | source           in ~/.config/fish/config.fish"""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that makes a shell complete `kop`.

    Names of topics, groups and transactional ids come from the server of --bootstrap or KOP_BOOTSTRAP, if it answers
    within a second.
    """
    made = get_completion_class(shell)
    assert made is not None
    root = click.get_current_context().find_root()
    click.echo(made(root.command, {}, "kop", "_KOP_COMPLETE").source())


Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(ask: Callable[[Any], Iterable[str]]) -> Complete:
    """Return the completion of an option or argument by names that `ask` gets from a server; it gives none if the
    server does not answer within 0.8 s, or on any other error.
    """

    def complete(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
        bootstrap = context.params.get("bootstrap") or os.environ.get("KOP_BOOTSTRAP") or DEFAULT_BOOTSTRAP
        logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
        names: list[str] = []

        def look() -> None:
            with contextlib.suppress(BaseException), client("KafkaAdminClient", bootstrap) as made:
                names.extend(ask(made))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(SECONDS)
        return sorted(name for name in names if name.startswith(begin))

    return complete


topics = _completing(lambda made: [topic["name"] for topic in made.describe_topics() if not topic["is_internal"]])
groups = _completing(lambda made: [group["group_id"] for group in made.list_groups()])
transactional_ids = _completing(
    lambda made: [row.transactional_id for rows in made.list_transactions().values() for row in rows]
)
