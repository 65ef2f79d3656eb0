"""Commands of `kop mesh` that change what a mesh is, or is to do.

Owns: what they print, and what they ask before they change something.
Must not know: who decides (`kop.functions.leader`), how meshes run.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kop import clock
from kop.cli.common import CliError, CliUsageError, fail, json_option, note, print_json, print_table
from kop.cli.functions import ServerOptions, connection_options
from kop.cli.mesh_files import AskedServer, asked_server, check_file, code_option, facts_of
from kop.cli.mesh_reports import is_at_work, is_driven, read_reports, state_of

if TYPE_CHECKING:
    from kop.functions.definitions import Definition, LeaderAnswer, MeshDefinition, WantedMesh
    from kop.functions.topic_requests import TopicRequests
    from kop.functions.topics import TopicNames
    from kop.mesh.diff import MeshChange
    from kop.mesh.spec import Mesh

STOP_SECONDS = 40.0
"""The seconds that a stop waits for the calls that are under way."""
LOOK_SECONDS = 0.3
_CHANGE = ("WHAT", "NAME", "CHANGE")
"""The columns of what changes."""
mesh_argument = click.argument("mesh", metavar="MESH")
part_argument = click.argument("part", required=False, default="")
file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False))


@contextmanager
def _requests(server: AskedServer) -> Iterator[TopicRequests]:
    """Yield an object that asks the leader of the workers for changes of meshes; it is closed behind the block. An
    error of a client or of a package in the block ends the command with one line.
    """
    from kop.client.errors import ClientError, UnreachableError
    from kop.functions.packages import PackageError
    from kop.functions.topic_requests import TopicRequests

    try:
        by = f"kop mesh on {socket.gethostname()}"
        with TopicRequests(server.settings, server.patience, server.topic_names, by) as asking:
            yield asking
    except (ClientError, UnreachableError, PackageError) as error:
        fail(str(error))


def checked_mesh(file: str, given: ServerOptions, cores: int | None = None, *, looks_at_code: bool) -> AskedServer:
    """Check a mesh's file by what its server has, and return the server. Mistakes in the file, a mesh without parts,
    and a server that does not answer end the command; the mistakes that are seen without a server go first. What else
    the author of the file should know is told on stderr.

    `cores` is the number of tasks that may run at once; None: as many as are needed. `looks_at_code`: True if the code
    of functions is imported, in processes of its own.
    """
    from kop.mesh.nodes import MeshError

    server: AskedServer | None = None
    failure: CliError | None = None
    try:
        server = asked_server(given)
    except CliUsageError:
        raise
    except CliError as error:  # the file may have mistakes all the same
        failure = error
    checked = check_file(file, server, cores, looks_at_code=looks_at_code, makes_topics=True)
    if checked.mistakes:
        raise CliUsageError(str(MeshError(file, checked.mistakes)))
    if not checked.mesh.parts:
        raise CliUsageError(f"{file}: the mesh has nothing to run")
    if server is None:
        assert failure is not None
        raise failure
    for text in checked.notes:
        note(f"{file}: {text}")
    return server


def name_of(mesh: str) -> str:
    """Return the full name of a mesh, which may be given by its file or by its name; a name without tenant and
    namespace is one of public/default. A usage error if the file has mistakes, a name that ends as a file's is none, or
    it is neither a file nor a name.
    """
    from kop.functions.topics import TopicNames
    from kop.mesh import records

    if Path(mesh).is_file():
        return _read_file(mesh, TopicNames(has_namespaces=True))[0].full_name
    if mesh.endswith((".yaml", ".yml")):
        raise CliUsageError(f"{mesh}: there is no such file")
    if mesh.count("/") not in {0, 2} or not all(mesh.split("/")):
        raise CliUsageError(f"{mesh!r} is no name of a mesh, which is NAME or TENANT/NAMESPACE/NAME, and no file")
    return records.full_name(mesh)


def _read_file(file: str, names: TopicNames) -> tuple[Mesh, str]:
    from kop.mesh.file import read_mesh, text_of
    from kop.mesh.nodes import MeshError

    try:
        text = text_of(file)
        return read_mesh(text, file, names), text
    except MeshError as error:
        raise CliUsageError(str(error)) from None


def _granted(answer: LeaderAnswer) -> LeaderAnswer:
    if not answer.won:
        fail(answer.reason)
    return answer


def _done(name: str, what: str, answer: LeaderAnswer, as_json: bool) -> None:
    if as_json:
        print_json({"mesh": name, "revision": answer.revision})
    else:
        click.echo(f"{name}: {what}" + ("" if answer.revision is None else f" (revision {answer.revision})"))


@click.command("create", short_help="Define the mesh of a file, without running it here.")
@file_argument
@code_option
@json_option
@connection_options
def create(server: ServerOptions, file: str, no_code: bool, as_json: bool) -> None:
    """Define the mesh of a file on the server: kop mesh run NAME drives it, on any machine."""
    from kop.mesh.definition import wanted_mesh

    asked = checked_mesh(file, server, looks_at_code=not no_code)
    with _requests(asked) as asking:
        mesh, text = _read_file(file, asked.topic_names)
        answer = _granted(asking.apply(mesh.full_name, *wanted_mesh(mesh, text), None))
        _done(mesh.full_name, f"created; kop mesh run {mesh.full_name} runs it", answer, as_json)


@click.command("update", short_help="Change a mesh to what its file says now.")
@file_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show the change, and leave it.")
@click.option("--revision", metavar="N", type=click.IntRange(0), help="Only if the mesh is of this revision.")
@code_option
@json_option
@connection_options
def update(
    server: ServerOptions,
    file: str,
    yes: bool,
    dry_run: bool,
    revision: int | None,
    no_code: bool,
    as_json: bool,
) -> None:
    """Show what changes (parts, components, offsets, state), ask, and change the mesh to what its file says.

    A driver that runs it takes that up at the end of its batch.
    """
    from kop.mesh.definition import wanted_mesh

    if as_json and not (yes or dry_run):
        raise CliUsageError("--json does not ask: add --yes, or --dry-run")
    asked = checked_mesh(file, server, looks_at_code=not no_code)
    with _requests(asked) as asking:
        mesh, text = _read_file(file, asked.topic_names)
        there, functions = _there(asked, mesh.full_name)
        wanted, packages = wanted_mesh(mesh, text)
        rows = _changes(there, functions, wanted, asked)
        if not as_json:
            print_table(_CHANGE, _cells(rows))
        is_applied = bool(rows) and not dry_run
        answer = None
        if is_applied:
            if not yes:
                click.confirm(f"Change {mesh.full_name}?", abort=True, err=True)
            given = there if revision is None else replace(there, revision=revision)
            answer = _granted(asking.apply(mesh.full_name, wanted, packages, given))
        if as_json:
            now = there.revision if answer is None else answer.revision
            changed = [{"of": row.of, "name": row.name, "what": row.what} for row in rows]
            print_json({"mesh": mesh.full_name, "revision": now, "applied": is_applied, "changes": changed})
        elif answer is not None:
            _done(mesh.full_name, "updated", answer, as_json)
        elif not rows:
            click.echo(f"{mesh.full_name}: nothing changes")


def _there(server: AskedServer, name: str) -> tuple[MeshDefinition, dict[str, Definition]]:
    from kop.functions.topic_requests import read_definitions

    meshes, functions = read_definitions(server.settings, server.patience)
    return existing(meshes, name), functions


def existing(meshes: Mapping[str, MeshDefinition], name: str) -> MeshDefinition:
    """Return the mesh of that full name; the command ends, with the names of some, if there is none."""
    if name not in meshes:
        known = ", ".join(sorted(meshes)[:5])
        fail(f"there is no mesh {name}; {f'there is {known}' if known else 'kop mesh run FILE makes the first one'}")
    return meshes[name]


def agreed_change(file: str, server: AskedServer, *, yes: bool) -> int | None:
    """Return the revision that the mesh of a file has on the server now; None if there is no such mesh. If the mesh
    would lose parts, offsets or state by becoming what the file says, show on stderr what changes, and ask first,
    unless `yes`. The command ends if the answer is no, or if there is no terminal to ask on.
    """
    from kop.functions.topic_requests import is_same, read_definitions
    from kop.mesh.definition import wanted_mesh

    with _requests(server):
        mesh, text = _read_file(file, server.topic_names)
        meshes, functions = read_definitions(server.settings, server.patience)
        there = meshes.get(mesh.full_name)
        if there is None:
            return None
        wanted, _ = wanted_mesh(mesh, text)
        rows = [] if is_same(wanted, there, functions) else _changes(there, functions, wanted, server)
        if any(row.is_loss for row in rows):
            print_table(_CHANGE, _cells(rows), is_result=False)
            if not (yes or has_terminal()):
                fail(
                    f"{mesh.full_name} would be replaced as above, and there is no terminal to ask on: add --yes, or "
                    "give the mesh of the file another name"
                )
            if not yes:
                click.confirm(f"Change {mesh.full_name}?", abort=True, err=True)
        return there.revision


def has_terminal() -> bool:
    """Return if somebody can answer a question on standard input."""
    return sys.stdin.isatty()


def _cells(rows: Iterable[MeshChange]) -> list[tuple[str, str, str]]:
    return [(row.of, row.name, row.what) for row in rows]


def _changes(
    there: MeshDefinition, functions: Mapping[str, Definition], wanted: WantedMesh, server: AskedServer
) -> list[MeshChange]:
    """Return what changes if the mesh `there`, with these `functions`, becomes the wanted one. If this version of kop
    cannot read the mesh that is there, that is told on stderr, and the one change is that the mesh is made anew.
    """
    from kop.mesh.definition import WHERE, defined_mesh
    from kop.mesh.diff import MeshChange, changes
    from kop.mesh.file import read_mesh
    from kop.mesh.nodes import MeshError
    from kop.mesh.plan import plan

    new = read_mesh(wanted.text, WHERE, server.topic_names)
    rows: list[MeshChange] = []
    try:
        old = defined_mesh(there)
    except MeshError as error:
        note(f"the mesh that is there cannot be read by this version of kop: {error}")
        rows.append(MeshChange("mesh", there.name, "is made anew", is_loss=True))
    else:
        facts = facts_of(new, server.settings, server.patience)
        before = facts_of(old, server.settings, server.patience)
        rows += changes(old, plan(old, before), new, plan(new, facts))
    rows += [
        MeshChange("part", fqfn.rpartition("/")[2], "has other code")
        for fqfn, function in wanted.functions.items()
        if fqfn in functions and functions[fqfn].package != function.package
    ]
    return rows


def _changed(kind: str, what: str, mesh: str, part: str, as_json: bool, given: ServerOptions) -> None:
    """Ask for a change (`kind`: start, stop or restart) of an existing mesh or of its `part`, and print `what` has
    become of it. After a stop, wait first, at most 40 s, until the driver has carried it out; without a driver do not
    wait. After a start or restart, do not wait, but print a note if the mesh has no driver. A mesh that is not there,
    a refusal, and a stop that takes longer end the command with one line.
    """
    name, server = name_of(mesh), asked_server(given)
    with _requests(server) as asking:
        there, _ = _there(server, name)
        answer = _granted(asking.change(kind, name, there.revision, part))
        report = read_reports(server.settings, server.patience).get(name)
        if kind == "stop":
            _wait_until_stopped(server.settings, server.patience, name, part, answer.revision)
        elif not is_driven(report):
            note(f"{name} has no driver at the moment: kop mesh run {name}")
        _done(name, what, answer, as_json)


def _wait_until_stopped(settings: dict[str, Any], patience: float, name: str, part: str, revision: int | None) -> None:
    """Wait until a driver of the mesh, if there is one, has stopped it, or has taken up the stop of its `part`: its
    report has the revision of the stop, `revision`, or a later one. Ends the command with one line after 40 s.
    """
    from kop.mesh import records

    end = clock.monotonic() + STOP_SECONDS
    while clock.monotonic() < end:
        report = read_reports(settings, patience).get(name)
        if not is_at_work(report):
            return
        if part and report and state_of(report) == records.RUNNING and (report.get("revision") or 0) >= (revision or 0):
            return
        time.sleep(LOOK_SECONDS)
    fail(f"{part or name} was asked to stop, and has not within {STOP_SECONDS:g} s: a call takes long")


def _state_change(kind: str, done: str, short: str, text: str, whole: str = "") -> click.Command:
    """Return the command `kop mesh KIND`, which asks for a change of a mesh, or of one part of it; `done` says what has
    become of that then, `whole` what goes before it for a whole mesh, `short` and `text` are its help.
    """

    @click.command(kind, short_help=short, help=text)
    @mesh_argument
    @part_argument
    @json_option
    @connection_options
    def change(server: ServerOptions, mesh: str, part: str, as_json: bool) -> None:
        what = f"{part or whole} {done}".lstrip()
        _changed(kind, what, mesh, part, as_json, server)

    return change


start = _state_change(
    "start",
    "started",
    "Let a mesh run again that was stopped, or one part.",
    """Start a mesh that was stopped, with all parts, wherever its driver waits; with PART that part alone, if the mesh
    is not stopped as a whole.""",
)
stop = _state_change(
    "stop",
    "stopped",
    "Let a mesh, or one part, commit what it has begun, and stand still.",
    """Stop a mesh, wherever its driver runs; returns once it has stopped. Its drivers wait for a start.

    With PART the other parts go on, and what they write for it waits in its topics.""",
)


restart = _state_change(
    "restart",
    "will start again in a moment",
    "Start the queries of a mesh again, or that of one part.",
    "Start the queries of a mesh again: all, or the one with PART. What they have begun is committed first.",
    whole="all parts",
)


@click.command("delete", short_help="Forget a mesh that does not run, with its offsets.")
@mesh_argument
@json_option
@connection_options
def delete(server: ServerOptions, mesh: str, as_json: bool) -> None:
    """Delete a mesh that does not run, the offsets of its parts too. Topics and state stay. Its drivers end."""
    from kop.client.keyed_topic import KeyedTopic
    from kop.mesh import records

    name, asked = name_of(mesh), asked_server(server)
    settings, patience = asked.settings, asked.patience
    with _requests(asked) as asking:
        there, _ = _there(asked, name)
        report = read_reports(settings, patience).get(name)
        if is_at_work(report):
            fail(f"{name} runs: kop mesh stop {name} first")
        answer = _granted(asking.change("delete", name, there.revision))
        if read_reports(settings, patience):
            with closing(KeyedTopic(settings, records.TOPIC, patience)) as topic:
                left = records.decode(topic.read().get(records.key(records.GROUPS, name), b""))
                _clean(asked, {str(group) for part, group in left.items() if part not in there.parts})
                kinds = (records.REPORT, records.LAYOUT, records.GROUPS)
                topic.put({records.key(kind, name): None for kind in kinds})
        _done(name, "deleted; its topics and the state of its functions are still there", answer, as_json)


def _clean(server: AskedServer, groups: set[str]) -> None:
    """Delete the offsets of parts that a deleted mesh had lost before, and no driver has started it since; not those of
    groups that others have by now.
    """
    from kafka.errors import KafkaError

    from kop.client.write_client import WriteClient
    from kop.functions.topic_requests import read_definitions

    meshes, functions = read_definitions(server.settings, server.patience)
    groups -= {definition.spec.group for definition in functions.values()}
    groups -= {part for mesh in meshes.values() for part in mesh.parts}
    with closing(WriteClient(server.settings, server.patience)) as writer:
        for group in sorted(groups):
            try:
                writer.delete_group(group)
            except KafkaError as error:
                note(f"its offsets are still there: kop groups delete {group} ({error!r})")


@click.command("get", short_help="Print the file of a mesh as it is defined.")
@mesh_argument
@json_option
@connection_options
def get(server: ServerOptions, mesh: str, as_json: bool) -> None:
    """Print the file of a mesh; with --json its revision, who made it what it is, and the configs of its functions."""
    name, asked = name_of(mesh), asked_server(server)
    with _requests(asked):
        there, functions = _there(asked, name)
    if not as_json:
        click.echo(there.text, nl=False)
        return
    print_json(
        {
            "mesh": name,
            "revision": there.revision,
            "stopped": there.is_stopped,
            "stopped_parts": sorted(there.stopped),
            "by": there.by,
            "at_ms": there.at_ms,
            "functions": {fqfn: dict(functions[fqfn].config) for fqfn in there.functions if fqfn in functions},
            "file": there.text,
        }
    )


COMMANDS = (create, update, start, stop, restart, delete, get)
