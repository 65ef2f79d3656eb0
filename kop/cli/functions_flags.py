"""Flags that the commands of `kop functions` share: those of a definition, its name, and where a worker is asked.

Owns: names, metavars and help texts of these flags, and their order.
Must not know: what a field may hold, which `kop.functions.spec` checks; HTTP.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from kop.cli.common import CliUsageError, debug_option, options

DEFAULT_ADMIN_URL = "http://127.0.0.1:6750"


class _Kind(NamedTuple):
    """The notation of a flag's value: its name in the help, and arguments of click."""

    metavar: str
    settings: Mapping[str, Any] = {}


_SWITCH = _Kind("[true|false]", {"is_flag": False, "flag_value": "true", "type": click.BOOL})
_NUMBER = _Kind("N", {"type": click.INT})
_JSON = _Kind("JSON")
_TOPIC = _Kind("TOPIC")
_NAME = _Kind("NAME")

# The flags of `pulsar-admin functions`, in the order of the help. What they may be is checked with the file's fields.
FLAGS: Mapping[str, tuple[_Kind, str]] = {
    "--py": (_Kind("FILE"), "File with the function: .py, .whl or .zip."),
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
    "--log-topic": (_TOPIC, "Topic of what it logs and prints."),
    "--timeout-ms": (_NUMBER, "How long a call may take before the process is ended."),
    "--parallelism": (_NUMBER, "Number of instances; localrun has one."),
    "--forward-source-message-property": (_SWITCH, "Without effect, as in Pulsar."),
    "--cleanup-subscription": (_SWITCH, "Delete the offsets with the function. Default: true."),
    "--window-length-count": (_NUMBER, "Messages of a window, which process(list, context) gets."),
    "--window-length-duration-ms": (_NUMBER, "Milliseconds of a window, in the place of messages."),
    "--sliding-interval-count": (_NUMBER, "Messages between windows. Default: those of a window."),
    "--sliding-interval-duration-ms": (_NUMBER, "Milliseconds between windows. Default: those of a window."),
    "--cpu": (_Kind("N", {"type": click.FLOAT}), "Taken for Pulsar's sake."),
    "--ram": (_NUMBER, "Bytes of memory beyond which the process is ended."),
    "--disk": (_NUMBER, "Taken for Pulsar's sake."),
    "--batch-builder": (_NAME, "Taken for Pulsar's sake."),
    "--runtime-flags": (_Kind("TEXT"), "Taken for Pulsar's sake."),
    "--custom-runtime-options": (_Kind("TEXT"), "Taken for Pulsar's sake."),
    "--jar": (_Kind("FILE"), "Refused: functions in Java are not run."),
    "--go": (_Kind("FILE"), "Refused: functions in Go are not run."),
    "--function-type": (_NAME, "Refused: there are no built-in functions."),
}
_SHORT = {"--inputs": "-i", "--output": "-o", "--schema-type": "-st"}


function_options = options(
    click.option(
        "--function-config-file",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="Pulsar's FunctionConfig as YAML or JSON; flags win over it.",
    ),
    *(
        click.option(*filter(None, [_SHORT.get(flag)]), flag, metavar=kind.metavar, help=words, **kind.settings)
        for flag, (kind, words) in FLAGS.items()
    ),
)
"""Adds the flags that describe a function, and the one for a file with all of them."""


def given_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a definition that were given, by their names, with - for _."""
    return {name.replace("_", "-"): value for name, value in flags.items() if value is not None}


def config_file(path: str | None) -> tuple[str, str] | None:
    """Return text and name of the file with a definition; None if no file is named. A usage error if it is not
    UTF-8.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8"), path
    except UnicodeDecodeError as error:
        raise CliUsageError(f"{path}: is no text in UTF-8: {error.reason} at byte {error.start}") from None


# -- which function


_name_options = options(
    click.argument("function", metavar="NAME", required=False),
    click.option("--name", metavar="NAME", help="The same as NAME."),
    click.option("--tenant", metavar="NAME", help="Its tenant. Default: public."),
    click.option("--namespace", metavar="NAME", help="Its namespace. Default: default."),
    click.option("--fqfn", metavar="TENANT/NAMESPACE/NAME", help="TENANT/NAMESPACE/NAME at once."),
)


def function_name(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add NAME and Pulsar's flags for it to a command, which gets `fqfn`, TENANT/NAMESPACE/NAME. A usage error if no
    function is named, or more than one.
    """

    def run(*, fqfn: str | None, **options: Any) -> Any:
        if fqfn is None:
            raise CliUsageError("name a function: NAME, or TENANT/NAMESPACE/NAME")
        return command(fqfn=fqfn, **options)

    return function_name_if_any(functools.update_wrapper(run, command))


def function_name_if_any(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add NAME, as `function_name` does, for a command that works without a function; `fqfn` is None then."""

    @functools.wraps(command)
    def run(*, function: str | None, **options: Any) -> Any:
        parts = {part: options.pop(part) for part in ("tenant", "namespace", "name", "fqfn")}
        return command(fqfn=_fqfn(function, **parts), **options)

    return _name_options(run)


def _fqfn(
    function: str | None, *, tenant: str | None, namespace: str | None, name: str | None, fqfn: str | None
) -> str | None:
    named = [text for text in (function, name, fqfn) if text]
    if not named:
        return None
    if len(named) > 1:
        raise CliUsageError(f"name one function, not {' and '.join(named)}")
    parts = named[0].split("/")
    if len(parts) == 1 and not fqfn:
        parts = [tenant or "public", namespace or "default", named[0]]
    elif tenant or namespace:
        raise CliUsageError(f"{named[0]} has a tenant and a namespace: leave --tenant and --namespace out")
    if len(parts) != 3 or not all(parts):
        raise CliUsageError(f"{named[0]} must be NAME or TENANT/NAMESPACE/NAME")
    return "/".join(parts)


instance_option = click.option(
    "--instance-id", metavar="N", type=click.IntRange(0), help="One instance alone. Default: all."
)


# -- which worker


_worker_options = options(
    click.option(
        "--admin-url",
        metavar="URL",
        envvar="KOP_FUNCTIONS_URL",
        default=DEFAULT_ADMIN_URL,
        show_default=True,
        help="Address of a worker: any of them.",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        envvar="KOP_FUNCTIONS_TOKEN_FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="File with the token of the workers.",
    ),
    debug_option,
)


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that say which worker is asked; the command gets `worker`, a `WorkerRest`."""

    @functools.wraps(command)
    def run(*, admin_url: str, token_file: str | None, **options: Any) -> Any:
        from kop.cli.functions_rest import WorkerRest

        return command(worker=WorkerRest(admin_url, read_token(token_file)), **options)

    return _worker_options(run)


def read_token(path: str | None) -> str | None:
    """Return the token in a file; None if no file is named. A usage error if the file holds no token of one line."""
    if path is None:
        return None
    token = Path(path).read_text(encoding="ascii", errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise CliUsageError(f"{path} must hold a token, one line of printable letters")
    return token
