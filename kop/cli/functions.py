"""`kop functions`: Pulsar's Python functions, on the topics of any Kafka server."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from kop.address import parse_address
from kop.cli import functions_admin, lines
from kop.cli.common import (
    CliUsageError,
    Ordered,
    StopSignals,
    debug_option,
    fail,
    json_option,
    naming,
    note,
    options,
    print_json,
    print_table,
    quiet_client,
    reach,
    read_client_config,
    server_option,
    servers,
)
from kop.cli.functions_flags import config_file, function_options, given_flags, read_token

if TYPE_CHECKING:
    from kop.functions.spec import FunctionSpec
    from kop.functions.try_out import Tried, TryOut

EPILOG = """\b
Examples:
  kop functions localrun --py shout.py --classname shout --inputs a --output b
  kop functions test --py shout.py --classname shout --input samples.jsonl
  kop functions worker
  kop functions create --py shout.py --classname shout --inputs a --output b
  kop functions status shout

\b
docs/functions.md says what functions may use, and what is guaranteed."""

LOCALRUN_EPILOG = """\b
Examples:
  kop functions localrun --py shout.py --classname shout --inputs a --output b
  kop functions localrun --py words.py --classname words.Count -i a,b -o c \\
      --processing-guarantees EFFECTIVELY_ONCE --reload
  kop functions localrun --function-config-file shout.yaml \\
      --client-config client.properties

\b
A file of --client-config has Kafka's client properties:
  bootstrap.servers=broker.example:9093
  security.protocol=SASL_SSL
  sasl.mechanism=SCRAM-SHA-512
  sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule \\
      required username="me" password="...";

\b
With PLAIN: org.apache.kafka.common.security.plain.PlainLoginModule."""

STATUS_SECONDS = 0.2
"""The seconds between two looks at a running function and its file."""


class _Grouped(Ordered):
    """A group that lists its commands by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings."""
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=100)) for name in names])


HEADINGS = {
    "Without workers": ["localrun", "test"],
    "Workers": ["worker", "workers"],
    "Definitions": ["create", "update", "get", "list", "delete", "history", "upload", "download"],
    "Instances": ["status", "stats", "start", "stop", "restart"],
    "Messages and state": ["trigger", "querystate", "putstate"],
}
"""The headings of the help with their commands; all but the first three commands ask a worker."""


@click.group("functions", cls=_Grouped, epilog=EPILOG)
def command() -> None:
    """Run Pulsar's Python functions on the topics of any Kafka server."""


class ServerOptions(NamedTuple):
    """The options that say where Kafka is."""

    bootstrap: str
    client_config: str | None
    topic_namespace: str


_server_options = options(
    click.option(
        "--client-config",
        metavar="FILE",
        envvar="KOP_CLIENT_CONFIG",
        type=click.Path(exists=True, dir_okay=False),
        help="Kafka's client properties, TLS and SASL too. Its bootstrap.servers wins over --bootstrap.",
    ),
    click.option(
        "--topic-namespace",
        metavar="TENANT/NAMESPACE",
        default="public/default",
        show_default=True,
        help="Pulsar's namespace whose topics are the server's, if it has no namespaces.",
    ),
    server_option,
)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that say where Kafka is: --client-config, --topic-namespace, --bootstrap, and --debug. The command
    gets `server`, a `ServerOptions`.
    """

    @functools.wraps(command)
    def run(*args: Any, bootstrap: str, client_config: str | None, topic_namespace: str, **others: Any) -> Any:
        return command(*args, server=ServerOptions(bootstrap, client_config, topic_namespace), **others)

    return _server_options(run)


@command.command("localrun", epilog=LOCALRUN_EPILOG, short_help="Run a function here until Ctrl-C.")
@function_options
@click.option("--reload", is_flag=True, help="Start the function anew when its file changes.")
@connection_options
def localrun(server: ServerOptions, reload: bool, function_config_file: str | None, **flags: Any) -> None:
    """Run a function in this process, one instance with all partitions, until Ctrl-C.

    Topics that are not there are made. Ctrl-C finishes the message that is being processed, commits, and exits with 0.
    """
    given = given_flags(flags)
    quiet_client()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)
    from kop.client.errors import ClientError, FencedError, UnreachableError
    from kop.functions import stand_in
    from kop.functions.config_reading import from_flags
    from kop.functions.function import FunctionLoadError
    from kop.functions.localrun import Changes, Running, load_here, names_of
    from kop.functions.packages import PackageError
    from kop.functions.serdes import SerdeError
    from kop.functions.spec import SpecError
    from kop.functions.topics import TopicNameError, TopicNames, check_namespace

    file = config_file(function_config_file)
    _log_to_stderr()
    try:
        # The server says which names it has; what is wrong with the rest is said without it.
        spec, _ = from_flags(given, file, TopicNames(check_namespace(server.topic_namespace), has_namespaces=True))
        if not Path(spec.py).is_file():
            raise CliUsageError(f"{spec.py}: there is no such file")
        settings, patience = read_connection(server)
        spec, notes = from_flags(given, file, names_of(settings, patience, server.topic_namespace))
    except TopicNameError as error:
        raise CliUsageError(f"--topic-namespace: {error}") from None
    except SpecError as error:
        raise CliUsageError(str(error)) from None
    except UnreachableError as error:
        fail(str(error))
    for line in notes:
        note(line)
    stand_in.install()
    changes = Changes(spec.py)
    stderr = sys.stderr  # what comes to it later goes to the log topic of the function, too
    try:
        running = Running(spec, load_here(spec), settings, note, patience=patience, alone=True).start()
        stop = StopSignals()  # before, there is no message that has to be finished
        taken = f"{', '.join(spec.inputs)}{f' to {spec.output}' if spec.output else ''}"
        note(f"{spec.fqfn} takes {taken}, {spec.processing_guarantees.value}; Ctrl-C ends it", stderr)
        while not stop.came and not (reload and changes.came()):
            if running.wait(STATUS_SECONDS):
                break
        running.stop()
        done = f"{running.processed} message{'' if running.processed == 1 else 's'} done"
        note(f"{spec.fqfn} has ended: {done}, offsets committed")
    except (ClientError, FencedError, UnreachableError, SerdeError) as error:
        fail(str(error))
    except (FunctionLoadError, PackageError) as error:
        if not reload:
            fail(str(error))
        note(f"{error}; waiting for another {spec.py}")
        stop = StopSignals()
        while not stop.came and not changes.came():
            time.sleep(STATUS_SECONDS)
    if not stop.came:
        note(f"{spec.py} has changed")
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _end_at_once(_number: int, _frame: object) -> NoReturn:
    """End the process with exit code 1: no message is being processed yet, and kafka-python swallows what a signal
    handler raises.
    """
    os.write(2, b"kop: interrupted\n")
    os._exit(1)


def read_connection(server: ServerOptions) -> tuple[dict[str, Any], float]:
    """Return kafka-python's settings, and the seconds for which requests that fail for a time are tried again.
    Properties of the file that have no effect, and the servers in question, are told on stderr. A usage error if a
    property is wrong; the command ends if no server accepts a connection.
    """
    _, made = read_client_config(server.client_config, ",".join(servers(server.bootstrap)))
    addresses = ",".join(made.settings["bootstrap_servers"])
    if server.client_config is not None:
        note(f"connecting to {addresses} by {made.settings.get('security_protocol', 'PLAINTEXT')}")
    reach(addresses)
    return dict(made.settings), made.patience_ms / 1000


def _log_to_stderr() -> None:
    """Show on stderr what functions log, and what is logged about them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    for name in ("kop.functions", "kop.client"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


# -- a worker

WORKER_EPILOG = """\b
Examples:
  kop functions worker
  kop functions worker --bootstrap broker.example:9092 \\
      --listen 0.0.0.0:6750 --advertise w1.example:6750 --token-file token

\b
Whoever reaches its address may run code on it, and so may whoever may write
the topics __kop_functions... of the server."""


@command.command("worker", epilog=WORKER_EPILOG, short_help="Run a worker until Ctrl-C.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:6750",
    show_default=True,
    help="Where it is asked by REST; not on this machine alone only with --token-file.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Where other workers ask it. Default: --listen, by the name of the machine if that is every address.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    envvar="KOP_FUNCTIONS_TOKEN_FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the token of all workers.",
)
@click.option("--worker-id", metavar="NAME", help="Its name, the same at each start. Default: HOST-PORT.")
@click.option(
    "--folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it unpacks code. Default: ~/.cache/kop/functions.",
)
@click.option("--allow-index", is_flag=True, help="Let packages get dependencies from pip's index.")
@click.option("--scheduler", metavar="MODULE.FUNCTION", default="", help="What deals instances, in place of ours.")
@click.option("--cluster", metavar="NAME", default="kop", show_default=True, help="Its cluster, for metrics.")
@connection_options
def worker(
    server: ServerOptions,
    listen: str,
    advertise: str | None,
    token_file: str | None,
    worker_id: str | None,
    folder: Path | None,
    **options: Any,
) -> None:
    """Run a worker: it has its share of the functions of the cluster, and answers `kop functions` and pulsar-admin."""
    with naming("--listen"):
        address = parse_address(listen)
    with naming("--advertise"):
        announced = None if advertise is None else parse_address(advertise)
    if announced is not None and announced.host in {"", "0.0.0.0", "::"}:
        raise CliUsageError(f"--advertise: {advertise} is no address that others reach: name a host")
    token = read_token(token_file)
    quiet_client()
    from kop.client.errors import ClientError, UnreachableError
    from kop.functions.topics import TopicNameError, check_namespace
    from kop.functions.worker_options import WorkerOptions, default_worker_id
    from kop.functions.worker_process import run_worker

    try:
        check_namespace(server.topic_namespace)
    except TopicNameError as error:
        raise CliUsageError(f"--topic-namespace: {error}") from None
    settings, patience = read_connection(server)
    name = worker_id or default_worker_id(address.port)
    cache = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kop" / "functions"
    _log_to_stderr()
    try:
        run_worker(
            settings,
            patience,
            WorkerOptions(
                worker_id=name,
                folder=cache / name,
                host=address.host,
                port=address.port,
                advertise=announced,
                token=token,
                topic_namespace=server.topic_namespace,
                **options,
            ),
            note,
        )
    except (ClientError, UnreachableError) as error:
        fail(str(error))


# -- a function tried out

TEST_EPILOG = """\b
Examples:
  kop functions test --py shout.py --classname shout --input samples.jsonl
  kop consume orders -n 20 --json | kop functions test --py shout.py \\
      --classname shout --input -

\b
A line of the file is a record, as `kop consume --json` prints it:
  {"key": "k", "value": "hello", "headers": [{"name": "h", "value": "v"}]}
Without a topic it is of the first input."""


@command.command("test", epilog=TEST_EPILOG, short_help="Run a function on records of a file.")
@function_options
@click.option("--input", "samples", metavar="FILE", required=True, type=click.File("rb"), help="Records; - is stdin.")
@debug_option
@json_option
def test(samples: Any, as_json: bool, function_config_file: str | None, **flags: Any) -> None:
    """Run a function on records, without a server, and print outputs, publishes and the state that it leaves.

    Exits with 1 if a call fails. Without --inputs and --output the topics are `input` and `output`.
    """
    from kop.client.errors import ClientError
    from kop.functions import stand_in
    from kop.functions.config_reading import from_flags
    from kop.functions.function import FunctionLoadError
    from kop.functions.localrun import load_here
    from kop.functions.packages import PackageError
    from kop.functions.serdes import SerdeError
    from kop.functions.spec import SpecError
    from kop.functions.topics import TopicNames
    from kop.functions.try_out import TryOut

    given, file = given_flags(flags), config_file(function_config_file)
    if file is None:
        if not given.keys() & {
            "inputs",
            "topics-pattern",
            "input-specs",
            "custom-serde-inputs",
            "custom-schema-inputs",
        }:
            given["inputs"] = "input"
        given.setdefault("output", "output")
    try:
        spec, notes = from_flags(given, file, TopicNames(has_namespaces=True))
    except SpecError as error:
        raise CliUsageError(str(error)) from None
    for line in notes:
        note(line)
    _log_to_stderr()
    stand_in.install()
    try:
        tries = TryOut(spec, load_here(spec))
        tried = _try(tries, spec, samples)
    except (ClientError, FunctionLoadError, PackageError, SerdeError) as error:
        fail(str(error))
    if as_json:
        print_json(_tried_json(spec, tries, tried))
    else:
        _print_tried(spec, tries, tried)
    failed = sum(outcome.error is not None for _, outcome in tried)
    if failed:
        fail(f"{failed} of {len(tried)} calls failed")


def _try(tries: TryOut, spec: FunctionSpec, samples: Any) -> list[tuple[lines.LineRecord, Tried]]:
    """Call the function with each line of a file; return the lines as records with the results. A usage error if a line
    is no record, or names no topic where one is needed.
    """
    tried = []
    for offset, line in enumerate(line for line in samples if line.strip()):
        try:
            record = lines.from_json(line)
            topic = lines.topic_of(line)
        except lines.LineError as error:
            raise CliUsageError(f"{samples.name}, record {offset + 1}: {error}") from None
        topic = topic or next((name for name, given in spec.inputs.items() if not given.is_regex), "")
        if not topic:
            raise CliUsageError(f"{samples.name}, record {offset + 1}: has no topic, and the inputs are a pattern")
        headers = [(name.decode(), value) for name, value in record.headers]
        timestamp = -1 if record.timestamp is None else record.timestamp
        given = offset, timestamp, record.key, record.value, headers
        tried.append((record, tries.call(topic, record.partition or 0, given)))
    return tried


def _tried_json(spec: FunctionSpec, tries: TryOut, tried: list[tuple[lines.LineRecord, Tried]]) -> dict[str, Any]:
    return {
        "records": [
            {
                "input": {**lines.shown("key", record.key), **lines.shown("value", record.value)},
                "output": None
                if outcome.output is None
                else {"topic": spec.output, **lines.shown("value", outcome.output)},
                "publishes": [
                    {
                        "topic": publish.topic,
                        **lines.shown("key", publish.key),
                        **lines.shown("value", publish.value),
                        "headers": [{"name": name, **lines.shown("value", value)} for name, value in publish.headers],
                    }
                    for publish in outcome.publishes
                ],
                "acked": outcome.acked,
                "error": outcome.error,
            }
            for record, outcome in tried
        ],
        "state": {key: _state_shown(value) for key, value in tries.state.items()},
        "metrics": {name: {"count": count, "sum": total} for name, (count, total) in tries.metrics.items()},
    }


def _print_tried(spec: FunctionSpec, tries: TryOut, tried: list[tuple[lines.LineRecord, Tried]]) -> None:
    rows: list[tuple[object, ...]] = []
    for number, (record, outcome) in enumerate(tried, 1):
        given = number, _cell(record.value)
        if outcome.error is not None:
            rows.append((*given, "failed", None, None, outcome.error))
            continue
        before = len(rows)
        if outcome.output is not None:
            rows.append((*given, "output", spec.output, None, _cell(outcome.output)))
        rows += [
            (*given, "publish", publish.topic, _cell(publish.key), _cell(publish.value))
            for publish in outcome.publishes
        ]
        if len(rows) == before:
            rows.append((*given, "nothing", None, None, None))
    print_table([">#", "INPUT", "GAVE", "TOPIC", "KEY", "VALUE"], rows)
    if tries.state:
        click.echo()
        print_table(["STATE", "VALUE"], [(key, _state_shown(value)) for key, value in sorted(tries.state.items())])
    if tries.metrics:
        click.echo()
        rows = [(name, count, f"{total:g}") for name, (count, total) in sorted(tries.metrics.items())]
        print_table(["METRIC", ">COUNT", ">SUM"], rows)


def _cell(value: bytes | None) -> str | None:
    """Return bytes as text that fits into a table, of 60 characters at most; None for None."""
    if value is None:
        return None
    text = value.decode(errors="backslashreplace")
    return text if len(text) <= 60 else f"{text[:57]}..."


def _state_shown(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


for _member in functions_admin.COMMANDS:
    command.add_command(_member)
