"""The parts that commands share: options, the connection to a server, tables, and errors of one line.

Owns: exit codes (0 done, 1 failed, 2 wrong use or settings) and how things look, on a terminal and in a pipe.
Must not know: kop's server side; commands talk to a server through kafka-python's clients only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, TypeAlias, TypeVar

import click

from kop import clock
from kop.address import Address, parse_address
from kop.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from kop.client.properties import ConnectionProperties

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_OF_SECURITY = ("security_", "ssl_", "sasl_")
CONNECT_SECONDS = 3.0
BOOTSTRAP_MS = 10_000
"""The time in ms that a server may take to answer a command's first requests."""
CLOSE_MS = 500
"""The time in ms that a consumer may take to leave its group at the end of a command."""
SAY_SECONDS = 5.0
"""The seconds without an answer after which a command says that it waits."""
SAY_AGAIN_SECONDS = 30.0
_IF_SECURED = "if it asks for TLS or a login, give a --client-config"
LOCAL_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})

T = TypeVar("T")
Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


class CliError(click.ClickException):
    """A failure that the user reads as one line; exit code 1."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Print the line, or lines, to stderr."""
        for line in self.message.splitlines():
            click.echo(f"kop: {line}", err=True, file=file)


class CliUsageError(CliError):
    """Wrong use of a command, or wrong settings: shown as one line, exit code 2."""

    exit_code = 2


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and this line on stderr."""
    raise CliError(message)


def fail_if_any(failures: Sequence[str]) -> None:
    """End the command with exit code 1 and these lines on stderr; do nothing if there are none."""
    if failures:
        fail("\n".join(failures))


def note(message: str, file: TextIO | None = None) -> None:
    """Print a message to stderr, apart from the command's result, so that a pipe gets only the result.

    `file` is stderr as it was, if somebody else has replaced it.
    """
    click.echo(message, file, err=True)


class Suggesting(click.Group):
    """A group that names the command which a misspelt one may mean."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command that `args` begin with; return its name, the command, and the rest. End with a usage
        error, which names the command that may be meant, if there is none.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            commands = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], commands, 1)
            close = close or [name for name in commands if name.startswith(args[0])]
            if not close or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{close[0]}'?", ctx) from None


class Ordered(Suggesting):
    """A group that lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all sub-commands in the order of their definition."""
        return list(self.commands)


# -- options


def options(*added: Decorator) -> Decorator:
    """Return the decorator that adds these options to a command, in the order of its help."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(added):
            command = option(command)
        return command

    return add


def _remember_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().meta["kop.debug"] = True
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def _remember_connection(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is None or context.resilient_parsing:
        return
    properties, made = read_client_config(value, DEFAULT_BOOTSTRAP)
    meta = context.find_root().meta
    meta["kop.security"] = {name: it for name, it in made.settings.items() if name.startswith(_OF_SECURITY)}
    meta["kop.servers"] = properties.get("bootstrap.servers")


def read_client_config(file: str | None, servers: str) -> tuple[Mapping[str, str], ConnectionProperties]:
    """Return the properties of a file, none if there is no file, and the connection that they describe, to `servers`
    unless the file names others. Properties that have no effect are told on stderr. A usage error if one is wrong.
    """
    from kop.client.errors import ClientError
    from kop.client.properties import connection, read_properties

    try:
        properties = {} if file is None else read_properties(file)
        made = connection({"bootstrap.servers": servers} | properties, client_id())
    except ClientError as error:
        raise CliUsageError(str(error) if file is None else f"{file}: {error}") from None
    if made.unused:
        note(f"{file}: {', '.join(made.unused)} has nothing to do with a connection, and no effect")
    return properties, made


def security() -> dict[str, Any]:
    """Return kafka-python's settings of TLS and SASL that `--client-config` has; none without that option."""
    context = click.get_current_context(silent=True)
    settings: dict[str, Any] = {} if context is None else context.find_root().meta.get("kop.security", {})
    return settings


def _check_bootstrap(context: click.Context, __: click.Parameter, value: str) -> str:
    if context.get_parameter_source("bootstrap") is not click.core.ParameterSource.COMMANDLINE:
        value = context.find_root().meta.get("kop.servers") or value
    for item in value.split(","):
        try:
            address = parse_address(item)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        if not address.host or not address.port:
            raise click.BadParameter(f"needs a host and a port: {item}")
    return value


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_remember_debug,
    help="Show tracebacks and the client's log.",
)
"""Adds the flag `--debug` to a command, which does not get it: it shows tracebacks of failures, and the client's log on
stderr.
"""
server_option = options(
    click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar="KOP_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        callback=_check_bootstrap,
        help="Kafka servers to talk to, with commas between them.",
    ),
    debug_option,
)
"""Adds `--bootstrap`, which the command gets checked, and `--debug`, for commands that have a file of client properties
in another way.
"""
bootstrap_option = options(
    server_option,
    click.option(
        "--client-config",
        metavar="FILE",
        envvar="KOP_CLIENT_CONFIG",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_remember_connection,
        help="Kafka's client properties: servers, TLS, user and password.",
    ),
)
"""Adds `--bootstrap`, `--client-config` and `--debug` to a command. It gets `bootstrap` alone, checked; what the file
of --client-config says of TLS and logins is kept for `security`.
"""
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, with the field names of docs/commands.md."
)
"""Adds the option `--json` to a command."""


def is_server_given() -> bool:
    """Return true if the user has named the servers of the command: by --bootstrap, in the environment, or in the file
    of --client-config.
    """
    context = click.get_current_context()
    given = context.get_parameter_source("bootstrap") is not click.core.ParameterSource.DEFAULT
    return given or context.find_root().meta.get("kop.servers") is not None


def pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """Return the pairs of an option NAME=VALUE that may be given several times, as a dict. A usage error, which names
    `option`, if one has another form or a name is given twice.
    """
    result: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            shown, colon, _ = value.partition(":")  # it may be a secret, misspelt
            raise click.BadParameter(f"must be NAME=VALUE, got {shown + colon!r}", param_hint=option)
        if name.strip() in result:
            raise click.BadParameter(f"{name.strip()} is given twice", param_hint=option)
        result[name.strip()] = text.strip()
    return result


# -- errors


@contextlib.contextmanager
def naming(option: str) -> Iterator[None]:
    """End the command with a usage error that names the option if the block raises a ValueError."""
    try:
        yield
    except ValueError as error:
        raise CliUsageError(f"{option}: {error}") from None


def quiet_client() -> None:
    """Silence kafka-python's log unless --debug asks for it: a command prints errors as lines of its own."""
    context = click.get_current_context(silent=True)
    debug = context is not None and context.find_root().meta.get("kop.debug")
    logging.getLogger("kafka").setLevel(logging.INFO if debug else logging.CRITICAL + 1)


def reason(code: int, message: str | None = None) -> str:
    """Return Kafka's name of an error code and the server's words, or kafka-python's where the server has none."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error {code}"
    if not message:
        from kafka import errors

        message = getattr(errors.for_code(code), "description", "") or ""
    return f"{name}: {one_line(message)}" if message else name


_REFUSALS: Final = {
    ErrorCode.SECURITY_DISABLED: (
        "a server has them with kop serve --set "
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer, see docs/security.md"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "this needs the right {right} on the cluster: kop acls add PRINCIPAL {right} --cluster"
    ),
}


def rights_refused(code: int, message: str | None, right: str) -> str:
    """Return the error line of a request about users or rights, which needs the right `right` on the cluster: the
    server's words, and what to do if this user has not that right, or the server has no rights at all.
    """
    remedy = next((text for known, text in _REFUSALS.items() if known == code), None)
    told = reason(code, message)
    return f"{told.removesuffix('.')}; {remedy.format(right=right)}" if remedy else told


def named(text: str) -> str:
    """Return the error text of an admin call, `[Error 40] InvalidConfigurationError: words`, with Kafka's name of the
    code in the place of its beginning; any other text on one line.
    """
    match = re.match(r"\[Error (-?\d+)\] \w+:?\s*(.*)", text, re.DOTALL)
    if match is None:
        return one_line(text)
    # Some of kafka-python's messages are the whole request and response: Kafka's own words say more.
    return reason(int(match[1]), None if match[2].startswith("Request '") else match[2])


def explain(error: BaseException) -> str | None:
    """Return an exception as one line for users; None if it is no known failure but a defect of the command."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, BrokenPipeError):
        return None
    if "kop.client.errors" in sys.modules:
        from kop.client.errors import ClientError, FencedError, UnreachableError

        if isinstance(error, (ClientError, FencedError, UnreachableError)):
            return str(error)
    if "kafka.errors" in sys.modules:
        from kafka import errors

        if isinstance(error, errors.BrokerResponseError):
            return named(str(error))
        if isinstance(error, errors.KafkaTimeoutError):
            return f"the server did not answer in time ({one_line(_bare(error))})"
        if isinstance(error, errors.KafkaConnectionError | errors.NodeNotReadyError):
            return f"the connection to the server failed ({one_line(_bare(error))})"
        if isinstance(error, errors.KafkaError):
            return one_line(_bare(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return None


def _bare(error: BaseException) -> str:
    return str(error).removeprefix(f"{type(error).__name__}: ").strip() or type(error).__name__


def one_line(text: str, limit: int = 200) -> str:
    """Return `text` on one line, cut to `limit` characters, the last three of them dots, if it is longer."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


class StopSignals:
    """SIGINT and SIGTERM, which are noted from now on instead of raising KeyboardInterrupt.

    A client has threads and locks: an exception in the middle of its code may leave a lock taken that closing it waits
    for. A second signal raises KeyboardInterrupt all the same, for whoever does not want to wait.
    """

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True


# -- connection


def addresses(bootstrap: str) -> list[Address]:
    """Return the host and port of each address in a --bootstrap value."""
    return [parse_address(item) for item in bootstrap.split(",")]


def reach(bootstrap: str) -> None:
    """End the command with an error line if none of the servers accepts a TCP connection, each within 3 s: kafka-python
    would retry in silence.
    """
    problems = []
    for address in addresses(bootstrap):
        problem = unreachable(address)
        if problem is None:
            return
        problems.append(f"{address} ({problem})")
    hint = "; start a server with: kop serve" if all(a.host in LOCAL_HOSTS for a in addresses(bootstrap)) else ""
    fail(f"cannot connect to {', '.join(problems)}{hint}")


def unreachable(address: Address) -> str | None:
    """Return the reason why no TCP connection to `address` can be made within 3 s; None if one can."""
    try:
        with socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS):
            return None
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS:.0f} s"
    except socket.gaierror:
        return "no such host"
    except OSError as error:
        return (error.strerror or str(error)).lower()


@contextlib.contextmanager
def client(kind: str, bootstrap: str, **settings: Any) -> Iterator[Any]:
    """Make a client of kafka-python (`KafkaAdminClient`, `KafkaProducer`, `KafkaConsumer`), connected; it is closed at
    the end of the block.

    Ends the command with an error line if no server answers, or if the block fails since a broker cannot be reached at
    the address that the server names.
    """
    quiet_client()
    reach(bootstrap)
    import kafka

    from kop.cli import codecs

    codecs.install()
    from kop.client.first_connection import TellingClient

    connecting = partial(TellingClient, limit_ms=BOOTSTRAP_MS, learns=kind == "KafkaConsumer")
    settings = {"client_id": client_id(), "reconnect_backoff_max_ms": 1000} | security() | settings
    try:
        made = getattr(kafka, kind)(
            bootstrap_servers=servers(bootstrap),
            bootstrap_timeout_ms=BOOTSTRAP_MS,
            kafka_client=connecting,
            **settings,
        )
    except kafka.errors.KafkaTimeoutError:
        fail(no_kafka(bootstrap))
    try:
        with watched(made):
            yield made
    except (kafka.errors.KafkaConnectionError, kafka.errors.KafkaTimeoutError):
        for broker, address in brokers(made):
            if problem := unreachable(address):
                fail(misadvertised(broker, address, problem))
        raise
    finally:
        with contextlib.suppress(Exception):
            made.close(**({"autocommit": False, "timeout_ms": CLOSE_MS} if kind == "KafkaConsumer" else {}))


def servers(bootstrap: str) -> list[str]:
    """Return the addresses of a --bootstrap value as kafka-python takes them."""
    return [str(address) for address in addresses(bootstrap)]


def client_id() -> str:
    """Return the client id that the requests of this command carry."""
    return f"kop-{os.getpid()}"


def no_kafka(bootstrap: str) -> str:
    """Return the error line for a server that accepts connections, but does not answer Kafka's requests."""
    hint = "see that its protocol, user, password and CA are this listener's" if security() else _IF_SECURED
    return f"{bootstrap} accepts connections but does not answer as a Kafka server ({BOOTSTRAP_MS // 1000} s); {hint}"


def _manager(made: Any) -> Any:
    """Return the connection manager inside of a client of kafka-python."""
    return made._sender._client._manager if hasattr(made, "_sender") else made._client._manager


def ask_server(made: Any, request: Any) -> Any:
    """Return the answer of any broker to a request of kafka-python's, sent by the client `made`. Raises kafka-python's
    errors.
    """
    manager = _manager(made)
    return manager.run(manager.send, request)


def brokers(made: Any) -> list[tuple[int, Address]]:
    """Return id and address of each broker, as the server named them when the client connected."""
    return [(broker.node_id, Address(broker.host, broker.port)) for broker in _manager(made).cluster.brokers()]


@contextlib.contextmanager
def watched(made: Any) -> Iterator[None]:
    """Run the block, and print to stderr which server a client waits for in vain, after 5 s and each 30 s: kafka-python
    retries in silence.
    """
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(made, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(made: Any, over: threading.Event) -> None:
    said: dict[int, float] = {}
    since: dict[int, float] = {}
    while not over.wait(0.5):
        now = clock.monotonic()
        silent = troubles(made)
        for broker in since.keys() - silent.keys():
            del since[broker]
            said.pop(broker, None)
        for broker, (begun, address) in silent.items():
            begin = since.setdefault(broker, begun)
            if now - begin < SAY_SECONDS or now - said.get(broker, 0.0) < SAY_AGAIN_SECONDS:
                continue
            problem = unreachable(address)
            if not over.is_set():
                what = f"no connection to {address} ({problem})" if problem else f"{address} does not answer"
                note(f"{what}; waiting since {now - begin:.0f} s (Ctrl-C ends)")
            said[broker] = now


def troubles(made: Any) -> dict[int, tuple[float, Address]]:
    """Return the brokers that a client cannot reach, or that have owed it an answer for more than a second: each with
    the monotonic time in seconds since which this lasts (of those out of reach, now) and its address.
    """
    manager = _manager(made)
    now = clock.monotonic()
    silent: dict[int, tuple[float, Address]] = {}
    known = dict(brokers(made))
    for broker, connection in list(manager._conns.items()):
        with contextlib.suppress(IndexError):  # answered by now
            begin = connection.in_flight_requests[0][2]
            if now - begin > 1 and broker in known:
                silent[broker] = begin, known[broker]
    for broker in list(manager._backoff):
        if broker in known:
            silent[broker] = now, known[broker]
    return silent


def misadvertised(broker: int, address: Address, problem: str) -> str:
    """Return the error line for a server that answers, but names a broker address to its clients that they cannot
    reach.
    """
    return (
        f"broker {broker} tells clients to connect to {address}, which does not work from here ({problem}); "
        "it has to advertise another address"
    )


def partitions_of(made: Any, topics: Iterable[str]) -> dict[str, set[int]]:
    """Return the partitions of topics, asked for by their names through the client `made`: a server lists those of its
    own namespace only.

    A topic that does not exist has none; any other error ends the command.
    """
    from kafka import errors
    from kafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    partitions: dict[str, set[int]] = {}
    for topic in ask_server(made, request).topics:
        if topic.error_code not in {0, errors.UnknownTopicOrPartitionError.errno}:
            is_illegal = topic.error_code == errors.InvalidTopicError.errno
            fail(illegal_name(topic.name) if is_illegal else f"{topic.name}: {reason(topic.error_code)}")
        partitions[topic.name] = {partition.partition_index for partition in topic.partitions}
    return partitions


admin = partial(client, "KafkaAdminClient")
"""Makes a KafkaAdminClient of kafka-python, as `client` does."""


def retrying(ask: Callable[..., T], *args: Any, seconds: float = 15.0, **kwargs: Any) -> T:
    """Call `ask` with these arguments and return its result; call it again while a coordinator is being found or is
    loading, as the admin client does not by itself. After so many seconds the error is raised, any other one at once.
    """
    from kafka import errors

    end = clock.monotonic() + seconds
    while True:
        try:
            return ask(*args, **kwargs)
        except (errors.CoordinatorNotAvailableError, errors.CoordinatorLoadInProgressError, errors.NotCoordinatorError):
            if clock.monotonic() > end:
                raise
            time.sleep(0.2)


def topic_names(bootstrap: str) -> list[str]:
    """Return the topics of a server, internal ones left out."""
    with admin(bootstrap) as made:
        return [topic["name"] for topic in made.describe_topics() if not is_internal(topic)]


def is_internal(topic: Mapping[str, Any]) -> bool:
    """Return true if a topic, as kafka-python describes it, is the server's own, or one that keeps the state of kop's
    functions, meshes and Spark sinks, which is no internal one for the server.
    """
    name: str = topic["name"]
    return bool(topic["is_internal"]) or name.rpartition("/")[2].startswith("__kop_")


def no_topic(name: str, known: Iterable[str]) -> str:
    """Return the error line for a topic that does not exist; it names those of `known` that may be meant."""
    import difflib

    close = difflib.get_close_matches(name, list(known), 3)
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{name}: {reason(3)} ({guess}`kop topics list` shows what there is)"


def illegal_name(topic: str) -> str:
    """Return the error line for a topic whose name the server does not take."""
    slash = "; names have a slash only over Pulsar, as TENANT/NAMESPACE/TOPIC" if "/" in topic else ""
    return f"{topic}: {reason(17, 'this server has no topics of such a name, or it is an internal one')}{slash}"


# -- output


def print_json(value: object) -> None:
    """Print a JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, columns: Mapping[str, str], empty: str = "") -> None:
    """Print rows as JSON, or as a table of some fields, whose `columns` are the heads above them. If there are no rows,
    the text `empty`, if it is one, is printed to stderr in the place of the table.
    """
    if as_json:
        print_json(rows)
    elif empty and not rows:
        note(empty)
    else:
        print_table(list(columns.values()), [[row[name] for name in columns] for row in rows])


def print_blocks(blocks: Sequence[T], as_json: bool, show: Callable[[T], None]) -> None:
    """Print values as JSON, or each by `show`, with an empty line between two."""
    if as_json:
        print_json(blocks)
    for number, block in enumerate(() if as_json else blocks):
        if number:
            click.echo()
        show(block)


def wrapped(text: str, column: int = 0) -> str:
    """Return `text`, which begins in this column, broken at words for the terminal; as it is in a pipe.

    Lines behind the first one are for pasting: they stay whole, at the left margin.
    """
    words, newline, lines = text.partition("\n")
    if is_terminal():
        indent = " " * column
        room = max(shutil.get_terminal_size().columns, column + 20)
        words = textwrap.fill(
            indent + words, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )[column:]
    return words + newline + lines


def is_terminal() -> bool:
    """Return true if the command's results go to a terminal, not to a pipe or file."""
    return sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, is_result: bool = True) -> None:
    """Print aligned columns under a head, one line a row; on stderr if they are no result of the command.

    On a terminal that is too narrow each row becomes a block, a line a column: no name is ever broken. A column whose
    name begins with ">" is aligned to the right.
    """
    heads = [column.lstrip(">") for column in columns]
    right = [column.startswith(">") for column in columns]
    body = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [heads, *body]) for i in range(len(heads))]
    if is_terminal() and sum(widths) + 2 * (len(widths) - 1) > shutil.get_terminal_size().columns:
        margin = max(map(len, heads))
        for number, row in enumerate(body):
            if number:
                click.echo(err=not is_result)
            for head, cell in zip(heads, row, strict=True):
                click.echo(f"{bold(head.ljust(margin))}  {cell}", err=not is_result)
        return
    for number, line in enumerate([heads, *body]):
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        text = "  ".join(cells).rstrip()
        click.echo(text if number else bold(text), err=not is_result)


def _cell(value: object) -> str:
    """Return the text of a table's cell, `yes` or `no` for a bool; a character that would move the cursor of a terminal
    is shown by its escape.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "-" if value is None else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def bold(text: str) -> str:
    """Return `text` in bold for a terminal; in a pipe click takes the codes out again."""
    return click.style(text, bold=True)


def size(count: int | None) -> str | None:
    """Return a number of bytes as people read it: 512 B, 1.4 MiB."""
    if count is None:
        return None
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
