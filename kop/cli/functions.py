"""`kop functions`: Pulsar's Python functions, on the topics of any Kafka server."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kop.cli.common import (
    CliUsageError,
    Ordered,
    StopSignals,
    bootstrap_option,
    client_id,
    fail,
    note,
    quiet_client,
    reach,
    servers,
)

if TYPE_CHECKING:
    from kop.functions.spec import FunctionSpec

EPILOG = """\b
Examples:
  kop functions localrun --py shout.py --classname shout --inputs a --output b
  kop functions localrun --function-config-file shout.yaml --reload

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
  sasl.mechanism=PLAIN
  sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \\
      required username="me" password="...";"""

STATUS_SECONDS = 0.2
"""How often a running function is looked at, and its file."""


@click.group("functions", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """Run Pulsar's Python functions on the topics of any Kafka server."""


class _Kind(NamedTuple):
    """How the value of a flag is written."""

    metavar: str
    settings: Mapping[str, Any] = {}


_SWITCH = _Kind("[true|false]", {"is_flag": False, "flag_value": "true", "type": click.BOOL})
_NUMBER = _Kind("N", {"type": click.INT})
_JSON = _Kind("JSON")
_TOPIC = _Kind("TOPIC")
_NAME = _Kind("NAME")

# The flags of `pulsar-admin functions`, in the order of the help. What they may be is checked with the file's fields.
FLAGS: Mapping[str, tuple[_Kind, str]] = {
    "--py": (_Kind("FILE"), "File with the function."),
    "--classname": (_NAME, "Class, function or module in it: FILE.CLASS, FILE.FUNCTION or FILE."),
    "--inputs": (_Kind("TOPIC,..."), "Topics whose messages it gets."),
    "--output": (_TOPIC, "Topic of its results."),
    "--name": (_NAME, "Name of the function. Default: that of the class."),
    "--tenant": (_NAME, "Its tenant. Default: public."),
    "--namespace": (_NAME, "Its namespace. Default: default."),
    "--fqfn": (_Kind("TENANT/NAMESPACE/NAME"), "All three at once."),
    "--processing-guarantees": (
        _Kind("GUARANTEE"),
        "ATLEAST_ONCE, ATMOST_ONCE, EFFECTIVELY_ONCE or MANUAL. Default: ATLEAST_ONCE.",
    ),
    "--user-config": (_JSON, "What the function finds by get_user_config_value."),
    "--secrets": (_JSON, 'What it finds by get_secret: {"NAME": {"env": VARIABLE}}, or "file": PATH.'),
    "--topics-pattern": (_Kind("REGEX"), "Topics whose messages it gets, by a pattern."),
    "--input-specs": (_JSON, "By topic: schemaType, serdeClassName, isRegexPattern."),
    "--custom-serde-inputs": (_JSON, "Class of the serde, by topic."),
    "--custom-schema-inputs": (_JSON, "Type of the schema, by topic."),
    "--input-type-class-name": (_NAME, "Class of inputs with a schema."),
    "--output-serde-classname": (_NAME, "Class of the serde of results."),
    "--schema-type": (_Kind("TYPE"), "Schema of results: string, json, bytes or avro."),
    "--custom-schema-outputs": (_JSON, "The same, by topic."),
    "--output-type-class-name": (_NAME, "Class of results with a schema."),
    "--producer-config": (_JSON, "compressionType of results."),
    "--subs-name": (_Kind("GROUP"), "Group that keeps the offsets. Default: TENANT/NAMESPACE/NAME."),
    "--subs-position": (_Kind("POSITION"), "Where a new group begins: Latest or Earliest. Default: Latest."),
    "--skip-to-latest": (_SWITCH, "Begin at the end at each start."),
    "--max-message-retries": (_NUMBER, "How often a failed message is tried again. Default: for ever."),
    "--dead-letter-topic": (_TOPIC, "Topic of messages that fail more often."),
    "--retain-ordering": (_SWITCH, "A failed message holds up its partition."),
    "--retain-key-ordering": (_SWITCH, "A failed message holds up its key."),
    "--auto-ack": (_SWITCH, "false goes with the guarantee MANUAL alone."),
    "--log-topic": (_TOPIC, "Not there yet: the log goes to stderr."),
    "--timeout-ms": (_NUMBER, "Not there yet: without effect."),
    "--parallelism": (_NUMBER, "Number of instances; localrun has one."),
    "--forward-source-message-property": (_SWITCH, "Taken for Pulsar's sake."),
    "--cleanup-subscription": (_SWITCH, "Not there yet: without effect."),
    "--window-length-count": (_NUMBER, "Refused: windows are not there yet."),
    "--window-length-duration-ms": (_NUMBER, "Refused: windows are not there yet."),
    "--sliding-interval-count": (_NUMBER, "Refused: windows are not there yet."),
    "--sliding-interval-duration-ms": (_NUMBER, "Refused: windows are not there yet."),
    "--cpu": (_Kind("N", {"type": click.FLOAT}), "Taken for Pulsar's sake."),
    "--ram": (_NUMBER, "Not there yet: without effect."),
    "--disk": (_NUMBER, "Taken for Pulsar's sake."),
    "--batch-builder": (_NAME, "Taken for Pulsar's sake."),
    "--runtime-flags": (_Kind("TEXT"), "Taken for Pulsar's sake."),
    "--custom-runtime-options": (_Kind("TEXT"), "Taken for Pulsar's sake."),
    "--jar": (_Kind("FILE"), "Refused: functions in Java are not run."),
    "--go": (_Kind("FILE"), "Refused: functions in Go are not run."),
    "--function-type": (_NAME, "Refused: there are no built-in functions."),
}
_SHORT = {"--inputs": "-i", "--output": "-o", "--schema-type": "-st"}


def _function_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that describe a function, and the one for a file with all of them."""
    for flag, (kind, words) in reversed(list(FLAGS.items())):
        short = [_SHORT[flag]] if flag in _SHORT else []
        command = click.option(*short, flag, metavar=kind.metavar, help=words, **kind.settings)(command)
    return click.option(
        "--function-config-file",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="Pulsar's FunctionConfig as YAML or JSON; flags win over it.",
    )(command)


@command.command("localrun", epilog=LOCALRUN_EPILOG, short_help="Run a function here until Ctrl-C.")
@_function_options
@click.option(
    "--client-config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Kafka's client properties, TLS and SASL too. Its bootstrap.servers wins over --bootstrap.",
)
@click.option(
    "--topic-namespace",
    metavar="TENANT/NAMESPACE",
    default="public/default",
    show_default=True,
    help="Pulsar's namespace whose topics are the server's, if it has no namespaces.",
)
@click.option("--reload", is_flag=True, help="Start the function anew when its file changes.")
@bootstrap_option
def localrun(
    bootstrap: str,
    client_config: str | None,
    topic_namespace: str,
    reload: bool,
    function_config_file: str | None,
    **flags: Any,
) -> None:
    """Run a function in this process, one instance with all partitions, until Ctrl-C.

    Topics that are not there are made. Ctrl-C finishes the message that is being processed, commits, and exits with 0.
    """
    given = {name.replace("_", "-"): value for name, value in flags.items() if value is not None}
    quiet_client()
    stop = StopSignals()
    from kop.client.errors import ClientError, FencedError, UnreachableError
    from kop.functions import stand_in
    from kop.functions.function import FunctionLoadError, load
    from kop.functions.localrun import Changes, Running, names_of
    from kop.functions.serdes import SerdeError
    from kop.functions.spec import SpecError, from_flags
    from kop.functions.topics import TopicNameError, TopicNames, check_namespace

    file = None
    if function_config_file is not None:
        file = Path(function_config_file).read_text(), function_config_file
    try:
        # The server says which names it has; what is wrong with the rest is said without it.
        spec, _ = from_flags(given, file, TopicNames(check_namespace(topic_namespace), has_namespaces=True))
        if not Path(spec.py).is_file():
            raise CliUsageError(f"{spec.py}: there is no such file")
        settings, patience = _connection(bootstrap, client_config)
        spec, notes = from_flags(given, file, names_of(settings, patience, topic_namespace))
    except TopicNameError as error:
        raise CliUsageError(f"--topic-namespace: {error}") from None
    except SpecError as error:
        raise CliUsageError(str(error)) from None
    except UnreachableError as error:
        fail(str(error))
    for line in notes:
        note(line)
    _log_to_stderr()
    stand_in.install()
    changes = Changes(spec.py)
    try:
        code = load(spec.py, spec.class_name)
        running = Running(spec, code, settings, note, patience=patience).start()
        note(_begun(spec))
        while not stop.came and not (reload and changes.came()):
            if running.wait(STATUS_SECONDS):
                break
        running.stop()
        note(f"{spec.fqfn} has ended: {running.processed} messages done, their offsets committed")
    except (ClientError, FencedError, UnreachableError, SerdeError) as error:
        fail(str(error))
    except FunctionLoadError as error:
        if not reload:
            fail(str(error))
        note(f"{error}; waiting for another {spec.py}")
        while not stop.came and not changes.came():
            time.sleep(STATUS_SECONDS)
    if not stop.came:
        note(f"{spec.py} has changed")
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _begun(spec: FunctionSpec) -> str:
    output = f" to {spec.output}" if spec.output else ""
    return f"{spec.fqfn} takes {', '.join(spec.inputs)}{output}, {spec.processing_guarantees.value}; Ctrl-C ends it"


def _connection(bootstrap: str, client_config: str | None) -> tuple[dict[str, Any], float]:
    """Return kafka-python's settings, and for how many seconds what fails for a time is tried again."""
    from kop.client.errors import ClientError
    from kop.client.properties import connection, parse_properties

    given = {"bootstrap.servers": ",".join(servers(bootstrap))}
    try:
        if client_config is not None:
            given |= parse_properties(Path(client_config).read_text())
        made = connection(given, client_id())
    except ClientError as error:
        where = "" if client_config is None else f"{client_config}: "
        raise CliUsageError(f"{where}{error}") from None
    if made.unused:
        note(f"{client_config}: {', '.join(made.unused)} has nothing to do with a connection, and no effect")
    if client_config is None:
        reach(bootstrap)
    return dict(made.settings), made.patience_ms / 1000


def _log_to_stderr() -> None:
    """Let people see what functions log, and what is said of them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("kop.functions")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
