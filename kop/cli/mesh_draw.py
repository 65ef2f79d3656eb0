"""`kop mesh draw`: the picture of a mesh, once, or with what goes along its edges now.

Owns: where the picture goes, what is told beside it.
Must not know: what a picture looks like (`kop.mesh.draw`), how a page is served (`mesh_live`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kop.address import Address, parse_address
from kop.cli.common import CliUsageError, fail, quiet_client
from kop.cli.functions import ServerOptions, connection_options, read_connection
from kop.cli.mesh_definitions import name_of
from kop.cli.mesh_files import check_file, facts_of
from kop.cli.mesh_live import Live, serve
from kop.cli.mesh_status import ShownMesh

DRAW_EPILOG = """\b
Examples:
  kop mesh draw orders.yaml --output orders.svg
  kop mesh draw orders.yaml > orders.svg
  kop mesh draw orders.yaml --json
  kop mesh draw orders --live"""


def _address(_context: click.Context, _option: click.Parameter, text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("draw", epilog=DRAW_EPILOG, short_help="Draw a mesh as SVG.")
@click.argument("mesh", metavar="MESH")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where the picture goes. Default: standard output.")
@click.option("--live", is_flag=True, help="Serve it for a browser here, with rates and lag, until Ctrl-C.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:0",
    callback=_address,
    help="Where --live serves it: an address of this machine alone. Default: a free port.",
)
@click.option("--json", "as_json", is_flag=True, help="Give nodes, edges and places as JSON, not a picture.")
@connection_options
def draw(
    server: ServerOptions,
    mesh: str,
    output: str,
    live: bool,
    listen: Address,
    as_json: bool,
) -> None:
    """Draw the mesh of a file as SVG, from left to right; with --live a mesh of the server, by its name or its file.

    A frame is around functions that run as one. The code of functions is not imported. Without --live no server is
    asked.
    """
    if live and as_json:
        raise CliUsageError("--live serves JSON beside the picture, at /mesh.json: leave --json out")
    if live:
        quiet_client()
        serve(live_mesh(*read_connection(server), name_of(mesh)), listen)
        return
    from kop.mesh.draw import draw as drawn
    from kop.mesh.nodes import MeshError
    from kop.mesh.picture_json import picture_json

    if not Path(mesh).is_file():
        raise CliUsageError(f"{mesh}: there is no such file; --live draws a mesh of the server by its name")
    checked = check_file(mesh)
    if checked.plan is None:
        raise CliUsageError(str(MeshError(mesh, checked.mistakes)))
    if as_json:
        text = f"{json.dumps(picture_json(checked.mesh, checked.plan), indent=2, ensure_ascii=False)}\n"
    else:
        text = drawn(checked.mesh, checked.plan)
    if output == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{output}: {error.strerror}")


def live_mesh(settings: dict[str, Any], patience: float, name: str) -> Live:
    """Return an object that gives the state and the picture of a mesh of a server, by its full name, as they are at the
    time of asking. The command ends with one line if the mesh is not there at first.
    """
    from kop.mesh.definition import defined_mesh
    from kop.mesh.draw import Flow
    from kop.mesh.draw import draw as drawn
    from kop.mesh.plan import plan

    def look() -> tuple[str, str, Mapping[str, Any]]:
        shown = ShownMesh(settings, patience, name)
        mesh = defined_mesh(shown.definition)
        flows = {
            (edge["topic"], edge["part"].rpartition("/")[2]): Flow(edge["rate"], edge["lag"]) for edge in shown.edges()
        }
        picture = drawn(mesh, plan(mesh, facts_of(mesh, settings, patience)), flows)
        return f"{name}: {shown.state}", picture, shown.as_json()

    ShownMesh(settings, patience, name)  # what is not there is told before a page is served
    return Live(name, look)
