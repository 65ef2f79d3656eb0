"""`kop mesh`: functions, sources and sinks between topics, run together by PySpark."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from kop import clock
from kop.cli import mesh_files
from kop.cli.common import (
    CliUsageError,
    Ordered,
    fail,
    json_option,
    print_json,
    print_table,
    quiet_client,
    servers,
)
from kop.cli.functions import connection_options, read_connection
from kop.cli.spark import checked_settings, spark_environment

EPILOG = """\b
Examples:
  kop mesh run orders.yaml
  kop mesh run orders.yaml --once
  kop mesh validate orders.yaml
  kop mesh draw orders.yaml --output orders.svg
  kop mesh status orders
  kop mesh stop orders

\b
docs/mesh.md says what a file may have, and what is guaranteed."""

STOP_SECONDS = 40.0
"""How long a stop waits for the calls that are under way."""
LOOK_SECONDS = 0.5


@click.group("mesh", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """Run meshes of functions, sources and sinks on PySpark."""


command.add_command(mesh_files.validate)
command.add_command(mesh_files.draw)


RUN_EPILOG = """\b
Examples:
  kop mesh run orders.yaml
  kop mesh run orders.yaml --once
  kop mesh run orders.yaml --bootstrap broker.example:9092 \\
      --master spark://there:7077 --conf spark.executor.memory=4g"""


@command.command("run", epilog=RUN_EPILOG, short_help="Run a mesh until Ctrl-C.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--once", is_flag=True, help="Do what there is, in batches, and end.")
@click.option(
    "--checkpoints",
    metavar="FOLDER",
    default="",
    help="Where checkpoints of sources and sinks are. Default: ~/.local/share/kop/meshes.",
)
@click.option("--master", metavar="URL", help="Where Spark runs: spark://HOST:7077, or local[4]. Default: here.")
@click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _context, _option, settings: checked_settings(settings),
    help="A setting of Spark; may be repeated.",
)
@connection_options
def run(
    bootstrap: str,
    client_config: str | None,
    topic_namespace: str,
    file: str,
    once: bool,
    checkpoints: str,
    master: str | None,
    settings: tuple[str, ...],
) -> None:
    """Run the mesh of a file on PySpark until Ctrl-C, which lets it finish what it has begun.

    Topics that are not there are made. Of several runs of a mesh one drives it, and another takes over if it ends.
    """
    quiet_client()
    _check(file)
    read_connection(bootstrap, client_config)
    environment = spark_environment(bootstrap, settings)
    given = {
        "file": str(Path(file).absolute()),
        "bootstrap": ",".join(servers(bootstrap)),
        "client_config": client_config,
        "topic_namespace": topic_namespace,
        "once": once,
        "checkpoints": checkpoints,
        "master": master,
        "settings": dict(setting.split("=", 1) for setting in settings),
    }
    sys.stdout.flush()
    arguments = [sys.executable, "-m", "kop.spark.mesh", json.dumps(given)]
    os.execve(sys.executable, arguments, environment)


def _check(file: str) -> None:
    """Say what is wrong with a file before Spark starts."""
    from kop.functions.topics import TopicNames
    from kop.mesh.file import draft_of
    from kop.mesh.mesh_check import check
    from kop.mesh.nodes import MeshError

    checked = check(draft_of(Path(file).read_text(), file, TopicNames(has_namespaces=True)))
    if checked.mistakes:
        raise CliUsageError(str(MeshError(file, checked.mistakes)))
    mesh = checked.mesh
    if not mesh.parts:
        raise CliUsageError(f"{file}: the mesh has nothing to run")


# -- what drivers say


@command.command("status", short_help="Show the state of a mesh and its functions, and their lag.")
@click.argument("mesh", metavar="MESH")
@json_option
@connection_options
def status(bootstrap: str, client_config: str | None, topic_namespace: str, mesh: str, as_json: bool) -> None:
    """Show what a mesh does: MESH is its name, or its file.

    The lag of an edge within a component is -, for there the records are passed on in memory.
    """
    quiet_client()
    settings, patience = read_connection(bootstrap, client_config)
    report = _report(settings, patience, _name_of(mesh))
    lags = _lags(settings, patience, report)
    shown = _status_json(report, lags)
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
    for part in shown["components"]:
        if part["reason"]:
            click.echo(f"{part['name']}: {part['reason']}")
        for text in part["ended_calls"]:
            click.echo(f"{part['name']}: {text}")
    for part in shown["parts"]:
        for failure in part["latest_exceptions"][-1:]:
            click.echo(f"{part['name'].rpartition('/')[2]}: {failure['text']}")


def _headline(shown: dict[str, Any]) -> str:
    state = shown["state"]
    where = f"on {shown['host']}, process {shown['pid']}"
    if state == "gone":
        seconds = (clock.wall_ms() - shown["at_ms"]) // 1000
        return f"{shown['mesh']}: no driver; the last one, {where}, has said nothing for {seconds} s"
    return f"{shown['mesh']}: {state} {where}, {shown['trigger']}"


def _name_of(mesh: str) -> str:
    """Return the full name of a mesh, which may be given by its file."""
    from kop.functions.topics import TopicNames
    from kop.mesh import records
    from kop.mesh.file import read_mesh
    from kop.mesh.nodes import MeshError

    if Path(mesh).is_file():
        try:
            return read_mesh(Path(mesh).read_text(), mesh, TopicNames(has_namespaces=True)).full_name
        except MeshError as error:
            raise CliUsageError(str(error)) from None
    if mesh.endswith((".yaml", ".yml")):
        raise CliUsageError(f"{mesh}: there is no such file")
    return records.full_name(mesh)


def _read(settings: dict[str, Any], patience: float) -> dict[str, bytes]:
    from kop.client.keyed_topic import KeyedTopic
    from kop.mesh import records

    topic = KeyedTopic(settings, records.TOPIC, patience)
    try:
        return topic.read()
    finally:
        topic.close()


def _report(settings: dict[str, Any], patience: float, full_name: str) -> dict[str, Any]:
    from kop.mesh import records

    there = _read(settings, patience)
    report = there.get(records.key(records.REPORT, full_name))
    if report is None:
        known = sorted(name for kind, name in map(records.split_key, there) if kind == records.REPORT)
        hint = f"; there is {', '.join(known[:5])}" if known else "; kop mesh run FILE runs the first one"
        fail(f"no mesh {full_name} has run here{hint}")
    return records.decode(report)


def _lags(settings: dict[str, Any], patience: float, report: dict[str, Any]) -> dict[str, int]:
    """Return how many offsets each function has not done that reads a topic."""
    from kop.client.offsets import LATEST
    from kop.client.read_client import ReadClient
    from kop.client.write_client import WriteClient

    reader, writer = ReadClient(settings, int(patience * 1000)), WriteClient(settings, patience)
    lags: dict[str, int] = {}
    try:
        for part in report.get("parts", ()):
            inputs = [topic for topic in part["inputs"] if topic not in part["inner_inputs"]]
            if not part["group"] or not inputs:
                continue
            topics = reader.topics(set(inputs))
            places = [(name, number) for name, topic in topics.items() for number in topic.leaders]
            ends = reader.list_offsets(dict.fromkeys(places, LATEST), 1)
            done = writer.committed(part["group"], places, may_be_open=places)
            lags[part["name"]] = sum(max(0, ends[place] - done.get(place, (0, ""))[0]) for place in places)
    finally:
        reader.close()
        writer.close()
    return lags


def _status_json(report: dict[str, Any], lags: dict[str, int]) -> dict[str, Any]:
    """Return what is shown of a report."""
    from kop.mesh import records

    state = records.state_of(report, clock.wall_ms())
    components = {part["name"]: part for part in report.get("components", ())}
    parts = [
        {
            "name": part["name"],
            "kind": part["kind"],
            "component": part["component"],
            "state": components[part["component"]]["state"] if state != "gone" else state,
            "guarantee": part.get("guarantee"),
            "inputs": part["inputs"],
            "output": part["output"],
            "received": part.get("received", 0),
            "processed": part.get("processed", 0),
            "exceptions": part.get("user_exceptions", 0) + part.get("system_exceptions", 0),
            "rate": part.get("rate", 0.0) if state == records.RUNNING else 0.0,
            "lag": lags.get(part["name"]),
            "latest_exceptions": [
                *part.get("latest_user_exceptions", ()),
                *part.get("latest_system_exceptions", ()),
            ],
        }
        for part in report.get("parts", ())
    ]
    return {
        **{name: report.get(name) for name in ("mesh", "host", "pid", "started_ms", "at_ms", "trigger")},
        "state": state,
        "components": list(components.values()),
        "parts": parts,
    }


@command.command("list", short_help="List the meshes that have run, with their states.")
@json_option
@connection_options
def list_meshes(bootstrap: str, client_config: str | None, topic_namespace: str, as_json: bool) -> None:
    """List the meshes that have run on this server."""
    from kop.mesh import records

    quiet_client()
    settings, patience = read_connection(bootstrap, client_config)
    now = clock.wall_ms()
    rows = []
    for key, value in sorted(_read(settings, patience).items()):
        kind, full_name = records.split_key(key)
        if kind == records.REPORT:
            report = records.decode(value)
            rows.append(
                {
                    "mesh": full_name,
                    "state": records.state_of(report, now),
                    "host": report.get("host"),
                    "parts": len(report.get("parts", ())),
                }
            )
    if as_json:
        print_json(rows)
    else:
        print_table(["MESH", "STATE", "HOST", ">PARTS"], [tuple(row.values()) for row in rows])


@command.command("get", short_help="Print the file of a mesh as it ran last.")
@click.argument("mesh", metavar="MESH")
@connection_options
def get(bootstrap: str, client_config: str | None, topic_namespace: str, mesh: str) -> None:
    """Print the file with which a mesh was run last."""
    from kop.mesh import records

    quiet_client()
    settings, patience = read_connection(bootstrap, client_config)
    full_name = _name_of(mesh)
    text = _read(settings, patience).get(records.key(records.DEFINITION, full_name))
    if text is None:
        fail(f"no mesh {full_name} has run here")
    click.echo(text.decode(), nl=False)


@command.command("stop", short_help="Let a mesh commit what it has begun, and end.")
@click.argument("mesh", metavar="MESH")
@connection_options
def stop(bootstrap: str, client_config: str | None, topic_namespace: str, mesh: str) -> None:
    """Stop a mesh, wherever its driver runs; returns once it has stopped."""
    from kop.mesh import records

    quiet_client()
    settings, patience = read_connection(bootstrap, client_config)
    full_name = _name_of(mesh)
    _needs_driver(settings, patience, full_name)
    _ask(settings, patience, full_name, {"what": records.STOP})
    end = clock.monotonic() + STOP_SECONDS
    while clock.monotonic() < end:
        state = records.state_of(_report(settings, patience, full_name), clock.wall_ms())
        if state != records.RUNNING:
            click.echo(f"{full_name}: {state}")
            return
        time.sleep(LOOK_SECONDS)
    fail(f"{full_name} was asked to stop, and has not within {STOP_SECONDS:g} s: a call takes long")


@command.command("restart", short_help="Start the queries of a mesh again, or that of one part.")
@click.argument("mesh", metavar="MESH")
@click.argument("part", required=False, default="")
@connection_options
def restart(bootstrap: str, client_config: str | None, topic_namespace: str, mesh: str, part: str) -> None:
    """Start the queries of a mesh again: all, or the one with PART. What they have begun is committed first."""
    from kop.mesh import records

    quiet_client()
    settings, patience = read_connection(bootstrap, client_config)
    full_name = _name_of(mesh)
    report = _needs_driver(settings, patience, full_name)
    known = {part["name"].rpartition("/")[2] for part in report["parts"]}
    known |= {component["name"] for component in report["components"]}
    if part and part not in known:
        raise CliUsageError(f"{full_name} has no part {part}; it has {', '.join(sorted(known))}")
    _ask(settings, patience, full_name, {"what": records.RESTART, "part": part})
    click.echo(f"{full_name}: {part or 'all parts'} will start again in a moment")


@command.command("delete", short_help="Forget a mesh that does not run, with its offsets.")
@click.argument("mesh", metavar="MESH")
@connection_options
def delete(bootstrap: str, client_config: str | None, topic_namespace: str, mesh: str) -> None:
    """Delete what the server keeps of a mesh that does not run, the offsets of its parts too. Topics and state stay."""
    from kop.client.keyed_topic import KeyedTopic
    from kop.client.write_client import WriteClient
    from kop.mesh import records

    quiet_client()
    settings, patience = read_connection(bootstrap, client_config)
    full_name = _name_of(mesh)
    report = _report(settings, patience, full_name)
    if records.state_of(report, clock.wall_ms()) == records.RUNNING:
        fail(f"{full_name} runs: kop mesh stop {mesh} first")
    writer = WriteClient(settings, patience)
    topic = KeyedTopic(settings, records.TOPIC, patience)
    try:
        for group in sorted({part["group"] for part in report.get("parts", ())} - {""}):
            writer.delete_group(group)
        kinds = (records.REPORT, records.DEFINITION, records.LAYOUT, records.REQUEST)
        topic.put({records.key(kind, full_name): None for kind in kinds})
    finally:
        topic.close()
        writer.close()
    click.echo(f"{full_name}: deleted; its topics and the state of its functions are still there")


def _needs_driver(settings: dict[str, Any], patience: float, full_name: str) -> dict[str, Any]:
    """Return the report of a mesh that runs; fails if it does not."""
    from kop.mesh import records

    report = _report(settings, patience, full_name)
    state = records.state_of(report, clock.wall_ms())
    if state != records.RUNNING:
        fail(f"{full_name} does not run: {_headline(_status_json(report, {}))}")
    return report


def _ask(settings: dict[str, Any], patience: float, full_name: str, request: dict[str, Any]) -> None:
    from kop.client.keyed_topic import KeyedTopic
    from kop.mesh import records

    topic = KeyedTopic(settings, records.TOPIC, patience)
    try:
        asked = {**request, "at_ms": clock.wall_ms()}
        topic.put({records.key(records.REQUEST, full_name): records.encode(asked)})
    finally:
        topic.close()
