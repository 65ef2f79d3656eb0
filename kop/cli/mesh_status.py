"""Commands of `kop mesh` that show what meshes do: `list`, `status`, `stats`.

Owns: what is shown of definitions, of drivers' reports and of groups' offsets.
Must not know: how meshes run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from kop import clock
from kop.cli.common import fail, json_option, named, print_json, print_rows, print_table, quiet_client
from kop.cli.functions import ServerOptions, connection_options, read_connection
from kop.cli.mesh_definitions import existing, mesh_argument, name_of
from kop.cli.mesh_reports import is_driven, read_reports, state_of
from kop.cli.times import iso_time

if TYPE_CHECKING:
    from kop.functions.definitions import MeshDefinition

Place = tuple[str, int]


class ShownMesh:
    """A mesh as the server tells of it now."""

    def __init__(self, settings: Mapping[str, Any], patience: float, name: str) -> None:
        from kop.functions.topic_requests import read_definitions

        meshes, _ = read_definitions(settings, patience)
        reports = read_reports(settings, patience)
        self.name = name
        self.definition = existing(meshes, name)
        self.report: Mapping[str, Any] = reports.get(name, {})
        self.state = shown_state(self.definition, self.report)
        self.lags = _lags(settings, patience, self.report)

    def as_json(self) -> dict[str, Any]:
        """Return the data that `status` shows, as JSON values: the mesh, its components, parts, edges and conditions,
        as definition, report and offsets had them when this object was made.
        """
        report, state = self.report, self.state
        components = {part["name"]: part for part in report.get("components", ())}
        parts = [
            {
                "name": part["name"],
                "kind": part["kind"],
                "component": part["component"],
                **_run_of(components[part["component"]] if is_driven(report) else {"state": state}),
                "guarantee": part.get("guarantee"),
                "inputs": part["inputs"],
                "output": part["output"],
                "received": part.get("received", 0),
                "processed": part.get("processed", 0),
                "exceptions": part.get("user_exceptions", 0) + part.get("system_exceptions", 0),
                "rate": part.get("rate", 0.0) if state == "running" else 0.0,
                "lag": self._lag(part),
                "last_ms": part.get("last_invocation_ms") or None,
                "at": _at(part.get("at")),
                "latest_exceptions": [
                    *part.get("latest_user_exceptions", ()),
                    *part.get("latest_system_exceptions", ()),
                ],
            }
            for part in report.get("parts", ())
        ]
        return {
            "mesh": self.name,
            "state": state,
            "reason": report.get("reason") or "",
            "revision": self.definition.revision,
            **{name: report.get(name) for name in ("host", "pid", "started_ms", "at_ms", "trigger")},
            "ended": bool(report.get("ended")),
            "components": list(components.values()),
            "parts": parts,
            "edges": self.edges(),
            "conditions": conditions(state, self.definition, parts),
        }

    def _lag(self, part: Mapping[str, Any]) -> int | None:
        lags = [lag for (name, _), lag in self.lags.items() if name == part["name"]]
        return sum(lags) if lags else None

    def edges(self) -> list[dict[str, Any]]:
        """Return each topic with each part that reads it: the rate in messages a second, 0 if the mesh does not run,
        None if it is not known, and the lag in messages.

        The lag is None within a component, whose messages are passed on in memory, and if the part has no consumer
        group.
        """
        rates = {(edge["part"], edge["topic"]): edge["rate"] for edge in self.report.get("edges", ())}
        return [
            {
                "topic": topic,
                "part": part["name"],
                "rate": (rates.get((part["name"], topic)) if self.state == "running" else 0.0),
                "lag": self.lags.get((part["name"], topic)),
            }
            for part in self.report.get("parts", ())
            for topic in part["inputs"]
        ]


def _run_of(component: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the run of a part, which is that of its component, in the fields that the status of
    functions has, too.
    """
    from kop.mesh import records

    return {
        "state": component["state"],
        "running": component["state"] == records.RUNNING,
        "since_ms": component.get("since_ms"),
        "next_start_ms": component.get("next_start_ms"),
        "restarts": component.get("restarts", 0),
        "error": component.get("reason") or None,
    }


def _at(place: Sequence[Any] | None) -> dict[str, Any] | None:
    """Return topic, partition and offset of the record that a function is called with; None if there is none."""
    return None if not place else dict(zip(("topic", "partition", "offset"), place, strict=True))


def shown_state(definition: MeshDefinition, report: Mapping[str, Any]) -> str:
    """Return the state of a mesh as of now, in a word: `stopped` if it was stopped and does not run any more, else that
    of its report, and `waiting` if no driver has run it.
    """
    from kop.mesh import records

    if definition.is_stopped and state_of(report) != records.RUNNING:
        return records.STOPPED
    return state_of(report) or records.WAITING


def conditions(state: str, definition: MeshDefinition, parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the conditions that Function Mesh has in the status of a mesh: that of the mesh, of each part by kind and
    name, and the revision of the definition. A condition is True if the state is running, False if it is stopped or
    failed, else Unknown.
    """
    told: dict[str, dict[str, Any]] = {"function": {}, "source": {}, "sink": {}, "query": {}}
    for part in parts:
        name = part["name"].rpartition("/")[2]
        told[part["kind"]][name] = _condition(f"{part['kind'].capitalize()}Ready", part["state"])
    return {
        "condition": _condition("MeshReady", state),
        **{f"{kind}Conditions": some for kind, some in told.items()},
        "observedGeneration": definition.revision,
    }


def _condition(what: str, state: str) -> dict[str, str]:
    from kop.mesh import records

    status = {records.RUNNING: "True", records.STOPPED: "False", records.FAILED: "False"}.get(state, "Unknown")
    return {"condition": what, "status": status, "action": "NoAction" if status == "True" else "Wait"}


def _lags(settings: Mapping[str, Any], patience: float, report: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return, by part and topic, the number of offsets between what the part's consumer group has committed and the end
    of the topic, of all partitions together. Left out are parts without a group, and topics whose messages a component
    passes on in memory.
    """
    from kop.client.offsets import LATEST
    from kop.client.read_client import ReadClient
    from kop.client.write_client import WriteClient

    reading = [
        (part, [topic for topic in part["inputs"] if topic not in part["inner_inputs"]])
        for part in report.get("parts", ())
        if part["group"]
    ]
    topics = {topic for _, inputs in reading for topic in inputs}
    if not topics:
        return {}
    lags: dict[tuple[str, str], int] = {}
    with (
        closing(ReadClient(settings, int(patience * 1000))) as reader,
        closing(WriteClient(settings, patience)) as writer,
    ):
        places = [(name, number) for name, topic in reader.topics(topics).items() for number in topic.leaders]
        ends = reader.list_offsets(dict.fromkeys(places, LATEST), 1)
        for part, inputs in reading:
            own = [place for place in places if place[0] in inputs]
            done = writer.committed(part["group"], own, may_be_open=own) if own else {}
            for topic in inputs:
                lags[part["name"], topic] = sum(
                    max(0, ends[place] - done.get(place, (0, ""))[0]) for place in own if place[0] == topic
                )
    return lags


@contextmanager
def _telling_rights() -> Iterator[None]:
    """End the command with one line if the block fails since the user may not do what it asks for."""
    from kop.client.errors import RIGHTS

    try:
        yield
    except Exception as error:
        if not isinstance(error, RIGHTS):
            raise
        fail(f"let this user read what meshes write: {named(str(error))}; docs/mesh.md says which rights that needs")


@click.command("status", short_help="Show the state of a mesh and its functions, and their lag.")
@mesh_argument
@json_option
@connection_options
@_telling_rights()
def status(server: ServerOptions, mesh: str, as_json: bool) -> None:
    """Show what a mesh does: MESH is its name, or its file.

    The lag of an edge within a component is -, for there the records are passed on in memory.
    """
    quiet_client()
    shown = ShownMesh(*read_connection(server), name_of(mesh)).as_json()
    if as_json:
        print_json(shown)
        return
    click.echo(_headline(shown))
    rows = [
        (part["name"].rpartition("/")[2], part["kind"], part["component"], part["state"], part["received"],
         part["processed"], part["exceptions"], f"{part['rate']:.1f}", part["lag"])
        for part in shown["parts"]
    ]  # fmt: skip
    print_table(
        ["PART", "KIND", "COMPONENT", "STATE", ">RECEIVED", ">PROCESSED", ">EXCEPTIONS", ">RATE/S", ">LAG"], rows
    )
    for component in shown["components"]:
        since = iso_time(component.get("since_ms"))
        if component["reason"]:
            click.echo(f"{component['name']}: {component['reason']}{f', since {since}' if since else ''}")
        if next_start := iso_time(component.get("next_start_ms")):
            click.echo(f"{component['name']}: next start at {next_start}")
        for text in component["ended_calls"]:
            click.echo(f"{component['name']}: {text}")
    for part in shown["parts"]:
        for failure in part["latest_exceptions"][-1:]:
            click.echo(f"{part['name'].rpartition('/')[2]}: {failure['text']}")


def _headline(shown: Mapping[str, Any]) -> str:
    state, mesh = shown["state"], f"{shown['mesh']} (revision {shown['revision']})"
    if shown["at_ms"] is None:
        return f"{mesh}: {state}, no driver has run it: kop mesh run {shown['mesh']}"
    where = f"on {shown['host']}, process {shown['pid']}"
    seconds = max(0, clock.wall_ms() - shown["at_ms"]) // 1000
    why = f": {shown['reason']}" if shown["reason"] else ""
    if shown["ended"]:
        return f"{mesh}: {state}, no driver; the last one, on {shown['host']}, ended {seconds} s ago{why}"
    if not is_driven(shown):
        return f"{mesh}: {state}, no driver; the last one, {where}, has said nothing for {seconds} s"
    return f"{mesh}: {state} {where}, {shown['trigger']}{why}"


@click.command("stats", short_help="Show the counts of a mesh's parts, and what goes along its edges.")
@mesh_argument
@json_option
@connection_options
@_telling_rights()
def stats(server: ServerOptions, mesh: str, as_json: bool) -> None:
    """Show what each part has done since its driver began, and in the last whole minute (1M); then rate and lag of each
    topic with each part that reads it.

    Within a component an edge has no lag: the records are passed on in memory.
    """
    quiet_client()
    shown = ShownMesh(*read_connection(server), name_of(mesh))
    parts = [_stats_of(part) for part in shown.report.get("parts", ())]
    if as_json:
        print_json({"mesh": shown.name, "state": shown.state, "parts": parts, "edges": shown.edges()})
        return
    print_table(
        ["PART", "KIND", ">RECEIVED", ">PROCESSED", ">USER EXC.", ">SYSTEM EXC.", ">AVG MS", ">RATE/S", ">RECEIVED 1M",
         ">PROCESSED 1M", ">AVG MS 1M"],
        [
            (part["name"].rpartition("/")[2], part["kind"], part["received"], part["processed"],
             part["user_exceptions"], part["system_exceptions"], _rounded(part["average_ms"], 2),
             _rounded(part["rate"] if shown.state == "running" else 0.0, 1), part["received_1min"],
             part["processed_1min"], _rounded(part["average_ms_1min"], 2))
            for part in parts
        ],
    )  # fmt: skip
    click.echo()
    print_table(
        ["TOPIC", "PART", ">RATE/S", ">LAG"],
        [
            (edge["topic"], edge["part"].rpartition("/")[2], _rounded(edge["rate"], 1), edge["lag"])
            for edge in shown.edges()
        ],
    )


def _rounded(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _average(part: Mapping[str, Any], span: str) -> float | None:
    count = part.get(f"latency_count{span}", 0)
    return part.get(f"latency_sum_ms{span}", 0) / count if count else None


def _stats_of(part: Mapping[str, Any]) -> dict[str, Any]:
    metrics = part.get("user_metrics") or {}
    return {
        "name": part["name"],
        "kind": part["kind"],
        **{name: part.get(name, 0) for name in ("received", "processed", "user_exceptions", "system_exceptions")},
        "average_ms": _average(part, ""),
        "rate": part.get("rate", 0.0),
        "received_1min": part.get("received_1min", 0),
        "processed_1min": part.get("processed_1min", 0),
        "average_ms_1min": _average(part, "_1min"),
        "last_ms": part.get("last_invocation_ms") or None,
        "user_metrics": {name: total / number if number else 0.0 for name, (number, total) in metrics.items()},
    }


@click.command("list", short_help="List the meshes that are defined, with their states.")
@json_option
@connection_options
@_telling_rights()
def list_meshes(server: ServerOptions, as_json: bool) -> None:
    """List the meshes of this server."""
    from kop.functions.topic_requests import read_definitions

    quiet_client()
    settings, patience = read_connection(server)
    meshes, _ = read_definitions(settings, patience)
    reports = read_reports(settings, patience)
    rows = [
        {
            "mesh": name,
            "state": shown_state(definition, reports.get(name, {})),
            "revision": definition.revision,
            "host": reports.get(name, {}).get("host"),
            "parts": len(definition.parts),
        }
        for name, definition in sorted(meshes.items())
    ]
    columns = {"mesh": "MESH", "state": "STATE", "revision": ">REVISION", "host": "HOST", "parts": ">PARTS"}
    print_rows(rows, as_json, columns, "there are no meshes; define one with: kop mesh create FILE")


COMMANDS = (list_meshes, status, stats)
