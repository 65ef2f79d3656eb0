"""`kop mesh validate`: what can be said of a mesh's file without running it."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from kop.cli.common import fail, json_option, note, print_json, print_table, quiet_client
from kop.cli.functions import ServerOptions, connection_options, read_connection

if TYPE_CHECKING:
    from kop.functions.topics import TopicNames
    from kop.mesh.file import Draft
    from kop.mesh.mesh_check import Checked, CodeCheck
    from kop.mesh.plan import Facts
    from kop.mesh.spec import FunctionPart, Mesh

VALIDATE_EPILOG = """\b
Examples:
  kop mesh validate orders.yaml
  kop mesh validate orders.yaml --master local[4]
  kop mesh validate orders.yaml --bootstrap broker.example:9092

\b
Exit code 0: the mesh may run. 1: there are mistakes, each with its line."""

_AT_ONCE = 4
"""The number of processes that look at code at a time."""
_DEFAULT_PARTITIONS = "num.partitions"
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
code_option = click.option("--no-code", is_flag=True, help="Do not import the code of its functions.")


@click.command("validate", epilog=VALIDATE_EPILOG, short_help="Say everything that is wrong with a mesh's file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--master", metavar="URL", help="Where it is to run: local[4] has 4 cores for its tasks.")
@click.option(
    "--cores", metavar="N", type=click.IntRange(min=1), help="Cores of a cluster, if --master does not say it."
)
@code_option
@json_option
@connection_options
@click.pass_context
def validate(
    context: click.Context,
    server: ServerOptions,
    file: str,
    master: str | None,
    cores: int | None,
    no_code: bool,
    as_json: bool,
) -> None:
    """Check a mesh's file, and show what it is: parts, and the components that run as one.

    No server is needed. With --bootstrap or --client-config it is asked which topics there are, how many partitions
    they have, and which other functions and meshes write them.
    """
    from kop.mesh.nodes import MeshError

    quiet_client()
    asked = None
    if server.client_config is not None or context.get_parameter_source("bootstrap") is not ParameterSource.DEFAULT:
        asked = asked_server(server)
    local = cores_of(master)
    checked = check_file(file, asked, cores if local is None else local, looks_at_code=not no_code)
    if as_json:
        print_json(_as_json(file, checked))
        if checked.mistakes:
            context.exit(1)
        return
    for text in checked.notes:
        note(f"{file}: {text}")
    if checked.mistakes:
        count = len(checked.mistakes)
        fail(f"{MeshError(file, checked.mistakes)}\n{file}: {count} mistake{'s' if count > 1 else ''}")
    _show(checked)


def cores_of(master: str | None) -> int | None:
    """Return the number of cores that a master URL of Spark gives to tasks on this machine: `local` is 1, `local[*]`
    all. None if it is another URL, or none.
    """
    local = _LOCAL.fullmatch(master or "")
    if local is None:
        return None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)


class AskedServer(NamedTuple):
    """The server that is asked about a mesh. `settings` are kafka-python's."""

    settings: dict[str, Any]
    patience: float
    topic_names: TopicNames


def asked_server(server: ServerOptions) -> AskedServer:
    """Return the server of a command's options, which is asked for the kind of topic names that it takes. Silences the
    client's log. An error ends the command with one line.
    """
    from kop.client.errors import ClientError, UnreachableError
    from kop.functions.localrun import names_of

    quiet_client()
    settings, patience = read_connection(server)
    try:
        return AskedServer(settings, patience, names_of(settings, patience, server.topic_namespace))
    except (ClientError, UnreachableError) as error:
        fail(str(error))


def check_file(
    file: str,
    server: AskedServer | None = None,
    cores: int | None = None,
    *,
    looks_at_code: bool = False,
    makes_topics: bool = False,
) -> Checked:
    """Return all mistakes in a mesh's file, its notes and its plan. `server` is asked for topics and those who write
    them, unless it is None; `cores` is the number of tasks that may run at once, None: unknown. With `looks_at_code`
    the code of functions is imported, in processes of its own.

    With `makes_topics` a topic that is not there is no mistake, unless the file has externalWriters and does not name
    it there. A file that is not UTF-8 has that mistake alone.
    """
    from kop.mesh.mesh_check import check

    draft = _draft(file, server)
    facts = None if server is None else facts_of(draft.mesh, server.settings, server.patience)
    code = _wrong_codes(draft.mesh) if looks_at_code and not draft.without_code else None
    return check(draft, facts, cores, code, makes_topics=makes_topics)


def _draft(file: str, server: AskedServer | None) -> Draft:
    from kop.functions.topics import TopicNames
    from kop.mesh.file import Draft, draft_of, text_of
    from kop.mesh.nodes import MeshError, Mistakes
    from kop.mesh.spec import Mesh

    try:
        text = text_of(file)
    except MeshError as error:
        return Draft(Mesh(name=""), (), Mistakes(error.mistakes))
    return draft_of(text, file, TopicNames(has_namespaces=True) if server is None else server.topic_names)


def facts_of(mesh: Mesh, settings: dict[str, Any], patience: float) -> Facts:
    """Return what the driver of a mesh will find on a server: the partitions of the mesh's topics, and who else writes
    them. If this user may not read who does, a note in the facts says so. Any other error of the client ends the
    command with one line. `patience`: the seconds for which requests are tried again.
    """
    from kop.client.errors import RIGHTS, ClientError, UnreachableError
    from kop.client.read_client import ReadClient
    from kop.functions.topic_requests import read_definitions
    from kop.mesh.server_facts import OtherWriters, facts_before, made_topics, other_writers

    client = ReadClient(settings, int(patience * 1000))
    try:
        topics = client.topics(made_topics(mesh))
        default = client.server_configs([_DEFAULT_PARTITIONS]).get(_DEFAULT_PARTITIONS, "")
        try:
            writers = other_writers(mesh.full_name, *read_definitions(settings, patience))
        except RIGHTS:
            writers = OtherWriters(unknown=("who else writes",))
    except (ClientError, UnreachableError) as error:
        fail(str(error))
    finally:
        client.close()
    there = {name: len(topic.leaders) for name, topic in topics.items()}
    return facts_before(mesh, there, int(default) if default.isdecimal() else None, writers)


def _wrong_codes(mesh: Mesh) -> CodeCheck:
    """Check the code of all functions at once, at most four at a time, and return a callable that gives the mistakes of
    one of these functions.
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        wrong = dict(zip((id(part) for part in mesh.functions), threads.map(_wrong_code, mesh.functions), strict=True))
    return lambda part: wrong[id(part)]


def _wrong_code(part: FunctionPart) -> list[str]:
    """Return the mistakes in the code of a function, which is imported in a process of its own; a package is unpacked
    into the user's cache before. State that is used without stateScope is a mistake, too.
    """
    from kop.functions.code_check import check
    from kop.functions.function import CodePlace
    from kop.functions.packages import PackageError, read_package, unpack
    from kop.mesh.state_calls import state_call

    path = Path(part.spec.py)
    if not path.is_file():
        return [f"there is no file {path}"]
    if path.suffix == ".py":
        place = CodePlace(str(path.absolute()))
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kop" / "functions"
        try:
            place = unpack(read_package(str(path)), cache)
        except PackageError as error:
            return [str(error)]
    wrong = check(part.spec, place)
    if not wrong and not part.has_state and path.suffix == ".py":
        call = state_call(path.read_text(encoding="utf-8", errors="replace"), part.spec.class_name)
        if call is not None:
            name, line = call
            wrong.append(
                f"{path.name}, line {line}: {name} needs state: give the function stateScope: partition, or function"
            )
    return wrong


def _as_json(file: str, checked: Checked) -> dict[str, Any]:
    components = [] if checked.plan is None else checked.plan.components
    return {
        "file": file,
        "mesh": checked.mesh.full_name if checked.mesh.name else None,
        "mistakes": [{"line": mistake.line, "text": mistake.text} for mistake in checked.mistakes],
        "notes": list(checked.notes),
        "components": [
            {
                "name": component.name,
                "functions": list(component.names),
                "inputs": list(component.inputs),
                "outputs": list(component.written),
                "private": list(component.unwritten),
                "guarantee": component.guarantee.value,
                "cuts": [{"topic": c.topic, "function": c.function, "reason": c.reason} for c in component.cuts],
            }
            for component in components
        ],
    }


def _show(checked: Checked) -> None:
    mesh, plan = checked.mesh, checked.plan
    assert plan is not None
    count = len(plan.components)
    click.echo(
        f"{mesh.full_name}: {len(mesh.parts)} parts, {count} component{'' if count == 1 else 's'}, {mesh.trigger}"
    )
    rows = [
        (
            part.name,
            part.kind,
            plan.of_function[part.name].name if part.name in plan.of_function else "-",
            ", ".join(part.inputs) or "-",
            ", ".join(part.outputs) or "-",
        )
        for part in mesh.parts
    ]
    print_table(["PART", "KIND", "COMPONENT", "READS", "WRITES"], rows)
    for cut in plan.cuts:
        click.echo(f"{cut.function} reads {cut.topic} from the server: {cut.reason}")
