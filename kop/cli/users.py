"""`kop users`: users with SCRAM credentials, through a broker or in a store that nothing serves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from kop import clock
from kop.cli.common import (
    CliUsageError,
    Ordered,
    admin,
    ask_server,
    bootstrap_option,
    fail,
    fail_if_any,
    json_option,
    print_rows,
    rights_refused,
)

EPILOG = """\b
Examples:
  kop users create alice
  kop users create admin --store sqlite:/var/lib/kop/kop.db
  kop users create app --password-file /run/secrets/app -m SCRAM-SHA-512
  kop users list
  kop users delete alice"""

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16_384

Change = tuple[str, int, str | None]
"""A user, a mechanism, and the password; None: the credential goes."""


@click.group("users", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """Create, list and delete users with passwords (SCRAM)."""


store_option = click.option(
    "--store",
    metavar="URL",
    help="Work in this store (sqlite:PATH), which no broker has open, instead of asking a broker.",
)
"""Adds `--store`: the command gets `store`, the URL of a store to work in, or None."""


def mechanism_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that adds `--mechanism` with `text` as its help; the command gets `mechanisms`, those that
    were given.
    """
    return click.option(
        "-m", "--mechanism", "mechanisms", multiple=True, type=click.Choice(list(MECHANISMS)), help=text
    )


@command.command("create")
@click.argument("name", metavar="NAME")
@mechanism_option("The mechanism that the user may log in with; repeat it for more. Both if none is given.")
@click.option(
    "--password-file",
    metavar="FILE",
    help="Read the password from a file, or from stdin (-), without the line's end. Else it is asked for.",
)
@click.option(
    "-i",
    "--iterations",
    type=click.IntRange(LEAST_ITERATIONS, MOST_ITERATIONS),
    default=LEAST_ITERATIONS,
    show_default=True,
    help="Rounds of hashing.",
)
@store_option
@bootstrap_option
def create(
    bootstrap: str,
    name: str,
    mechanisms: tuple[str, ...],
    password_file: str | None,
    iterations: int,
    store: str | None,
) -> None:
    """Create a user, or give one another password."""
    if not name:
        raise CliUsageError("the user's name must not be empty")
    password = _password(password_file)
    wanted = [(name, MECHANISMS[mechanism], password) for mechanism in mechanisms or MECHANISMS]
    _alter(bootstrap, store, wanted, iterations)
    click.echo(f"{name}: created, {' and '.join(mechanisms or MECHANISMS)}")


def _password(path: str | None) -> str:
    from kop.security.sasl.exchange import LONGEST_PASSWORD

    if path is None:
        if not sys.stdin.isatty():
            raise CliUsageError("no terminal to ask for the password at: give it by --password-file")
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        try:
            raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
            password = raw.decode().removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise CliUsageError(f"--password-file: {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise CliUsageError("--password-file: the password is not UTF-8") from None
    if not password:
        raise CliUsageError("the password must not be empty")
    if len(password) > LONGEST_PASSWORD:
        raise CliUsageError(f"the password has {len(password)} characters, and {LONGEST_PASSWORD} is the most")
    return password


@command.command("list")
@json_option
@store_option
@bootstrap_option
def list_users(bootstrap: str, as_json: bool, store: str | None) -> None:
    """List users with their mechanisms."""
    rows = _listed(bootstrap, store)
    columns = {"user": "USER", "mechanism": "MECHANISM", "iterations": ">ITERATIONS"}
    print_rows([dict(zip(columns, row, strict=True)) for row in rows], as_json, columns, "there are no users")


@command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@mechanism_option("Take this mechanism alone from the users; repeat it for more.")
@store_option
@bootstrap_option
def delete(bootstrap: str, names: tuple[str, ...], mechanisms: tuple[str, ...], store: str | None) -> None:
    """Delete users."""
    rows = _listed(bootstrap, store)
    failures = []
    for name in dict.fromkeys(names):
        has = [mechanism for user, mechanism, _ in rows if user == name]
        gone = [mechanism for mechanism in has if mechanism in (mechanisms or MECHANISMS)]
        if not gone:
            failures.append(f"{name}: there is no such user" + (f" with {' or '.join(mechanisms)}" if has else ""))
            continue
        _alter(bootstrap, store, [(name, MECHANISMS[mechanism], None) for mechanism in gone])
        click.echo(f"{name}: deleted" + (f", {' and '.join(gone)}" if len(gone) < len(has) else ""))
    fail_if_any(failures)


def _listed(bootstrap: str, store: str | None) -> list[tuple[str, str, int]]:
    """Return user, mechanism and iterations of each SCRAM credential, ordered by user, of the store if one is named,
    else of the server. The command ends if they cannot be read.
    """
    if store is not None:

        def read(security: Any) -> list[tuple[str, str, int]]:
            users = security.users
            return [(name, key.text, each.iterations) for name in users.names() for key, each in users.of(name).items()]

        return sorted(_in_store(store, read))

    from kafka.protocol.admin import DescribeUserScramCredentialsRequest

    with admin(bootstrap) as made:
        answer = ask_server(made, DescribeUserScramCredentialsRequest(users=None))
    if answer.error_code:
        fail(rights_refused(answer.error_code, answer.error_message, "describe"))
    names = {code: mechanism for mechanism, code in MECHANISMS.items()}
    return sorted(
        (row.user, names.get(info.mechanism, str(info.mechanism)), info.iterations)
        for row in answer.results
        for info in row.credential_infos
    )


def _alter(bootstrap: str, store: str | None, changes: Iterable[Change], iterations: int = LEAST_ITERATIONS) -> None:
    """Make changes of users in the store if one is named, else by the server, each by a request of its own: Kafka
    accepts one mechanism of a user in a request. The command ends with the first one that is refused.
    """
    if store is not None:
        _in_store(store, lambda security: _write(security, changes, iterations))
        return

    from kafka.protocol.admin import AlterUserScramCredentialsRequest as Request

    from kop.security.users import SALT_BYTES, Mechanism

    with admin(bootstrap) as made:
        for name, mechanism, password in changes:
            if password is None:
                request = Request(deletions=[Request.ScramCredentialDeletion(name=name, mechanism=mechanism)])
                request.upsertions = []
            else:
                salt = bytes.fromhex(clock.token_hex(SALT_BYTES))
                upsertion = Request.ScramCredentialUpsertion(
                    name=name,
                    mechanism=mechanism,
                    iterations=iterations,
                    salt=salt,
                    salted_password=Mechanism(mechanism).salted(password, salt, iterations),
                )
                request = Request(deletions=[], upsertions=[upsertion])
            for row in ask_server(made, request).results:
                if row.error_code:
                    fail(f"{name}: {rights_refused(row.error_code, row.error_message, 'alter')}")


# -- a store that nothing serves


async def _write(security: Any, changes: Iterable[Change], iterations: int) -> None:
    from kop.security.records import of_user
    from kop.security.sasl.exchange import LONGEST_NAME
    from kop.security.users import Mechanism, ScramCredential

    records = []
    for name, code, password in changes:
        mechanism = Mechanism(code)
        if password is not None and len(name) > LONGEST_NAME:
            fail(f"{name}: Username is longer than {LONGEST_NAME} characters")
        made = None if password is None else ScramCredential.of_password(mechanism, password, iterations)
        records.append(of_user(name, mechanism, made))
    await security.write(lambda: records)


def _in_store(store: str, work: Callable[[Any], Any]) -> Any:
    """Run `work` with the users and ACLs of a store that no broker has open; return its result. The command ends if the
    store cannot be used.
    """
    import asyncio

    from kop.app import with_security
    from kop.config import Config
    from kop.errors import ConfigError, KopError

    try:
        config = Config.load(overrides={"store": store}, environ={})
    except ConfigError as error:
        raise CliUsageError("\n".join(f"--{problem}" for problem in error.problems)) from None
    if config.store == "memory:":
        raise CliUsageError("--store: memory: keeps nothing")
    try:
        return asyncio.run(with_security(config, work))
    except KopError as error:
        fail(error.message or str(error))
