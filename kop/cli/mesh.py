"""`kop mesh`: functions, sources and sinks between topics, run together by PySpark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from kop.cli import mesh_definitions, mesh_draw, mesh_files, mesh_status
from kop.cli.common import Ordered, quiet_client, servers
from kop.cli.functions import ServerOptions, connection_options, read_connection
from kop.cli.mesh_definitions import agreed_change, checked_mesh, name_of
from kop.cli.mesh_files import code_option, cores_of
from kop.cli.spark import conf_option, given_settings, spark_environment

EPILOG = """\b
Examples:
  kop mesh run orders.yaml
  kop mesh run orders.yaml --once
  kop mesh validate orders.yaml
  kop mesh draw orders.yaml --output orders.svg
  kop mesh update orders.yaml
  kop mesh status orders
  kop mesh stop orders

\b
docs/mesh.md says what a file may have, and what is guaranteed."""


@click.group("mesh", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """Run meshes of functions, sources and sinks on PySpark."""


command.add_command(mesh_files.validate)
command.add_command(mesh_draw.draw)
for added in (*mesh_definitions.COMMANDS, *mesh_status.COMMANDS):
    command.add_command(added)


RUN_EPILOG = """\b
Examples:
  kop mesh run orders.yaml
  kop mesh run orders.yaml --once
  kop mesh run orders
  kop mesh run orders.yaml --bootstrap broker.example:9092 \\
      --master spark://there:7077 --conf spark.executor.memory=4g"""


@command.command("run", epilog=RUN_EPILOG, short_help="Run a mesh until Ctrl-C.")
@click.argument("mesh", metavar="MESH")
@click.option("--once", is_flag=True, help="Do what there is, in batches, and end.")
@click.option(
    "--checkpoints",
    metavar="FOLDER",
    default="",
    help="Where checkpoints of sources and sinks are. Default: ~/.local/share/kop/meshes.",
)
@click.option("--master", metavar="URL", help="Where Spark runs: spark://HOST:7077, or local[4]. Default: here.")
@conf_option
@code_option
@click.option("--yes", is_flag=True, help="Do not ask before the mesh that is there loses parts, offsets or state.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON to stdout for each change of a state.")
@connection_options
def run(
    server: ServerOptions,
    mesh: str,
    once: bool,
    checkpoints: str,
    master: str | None,
    settings: tuple[str, ...],
    no_code: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Run a mesh on PySpark until Ctrl-C, which lets it finish what it has begun.

    MESH is a file, or the name of a mesh that was created. A file is checked as kop mesh validate does, and its mesh is
    created or updated first; if there are mistakes, nothing starts. If that takes parts, offsets or state from the mesh
    that is there, the command shows what changes, and asks. Topics that are not there are made. Of several runs of a
    mesh one drives it, and another takes over if it ends.
    """
    quiet_client()
    is_file = Path(mesh).is_file()
    seen = None
    if is_file:
        cores = None if once else cores_of(master)
        seen = agreed_change(mesh, checked_mesh(mesh, server, cores, looks_at_code=not no_code), yes=yes)
    else:
        read_connection(server)
    environment = spark_environment(server.bootstrap, settings)
    given = {
        "file": str(Path(mesh).absolute()) if is_file else "",
        "seen": seen,
        "mesh": "" if is_file else name_of(mesh),
        "bootstrap": ",".join(servers(server.bootstrap)),
        "client_config": server.client_config,
        "topic_namespace": server.topic_namespace,
        "once": once,
        "checkpoints": checkpoints,
        "master": master,
        "settings": given_settings(settings),
        "json": as_json,
    }
    sys.stdout.flush()
    arguments = [sys.executable, "-m", "kop.spark.mesh", json.dumps(given)]
    os.execve(sys.executable, arguments, environment)
