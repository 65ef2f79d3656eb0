"""The facts of a server from which components are planned, for the driver and for commands that tell of it before.

Owns: which topics a mesh has made, and who else writes topics, as far as definitions on the server say so.
Must not know: sockets; what the server has is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kop.functions.definitions import Definition, MeshDefinition
from kop.functions.spec import SpecError
from kop.mesh.definition import defined_mesh
from kop.mesh.nodes import MeshError
from kop.mesh.plan import Facts
from kop.mesh.spec import Mesh


@dataclass(frozen=True)
class OtherWriters:
    """Those who write topics beside a mesh."""

    by_topic: Mapping[str, str] = field(default_factory=dict)
    """Topic to one who writes it, in words."""
    unknown: tuple[str, ...] = ()
    """Those of whom it is not known which topics they write, in words."""


def other_writers(mesh: str, meshes: Mapping[str, MeshDefinition], functions: Mapping[str, Definition]) -> OtherWriters:
    """Return who writes topics, of all functions and meshes of a server but the mesh with the full name `mesh`. Of
    several writers of a topic one is named. Those whose definition this version of kop cannot read are unknown.

    A function counts if it is stopped, too: somebody may start it. What a function gives to `context.publish` alone is
    not known here.
    """
    by_topic: dict[str, str] = {}
    unknown: list[str] = []
    for name, definition in sorted(functions.items()):
        if definition.mesh == mesh:
            continue
        try:
            topics = definition.spec.own_topics - {""}
        except SpecError:
            unknown.append(f"the function {name}")
            continue
        for topic in sorted(topics):
            by_topic.setdefault(topic, f"the function {name}")
    for name, other in sorted(meshes.items()):
        if name == mesh or not other.others:
            continue
        try:
            parts = defined_mesh(other).parts
        except MeshError:
            unknown.append(f"the mesh {name}")
            continue
        for part in parts:
            for topic in part.outputs if part.kind != "function" else ():
                by_topic.setdefault(topic, f"the {part.kind} {part.name} of the mesh {name}")
    return OtherWriters(by_topic, tuple(unknown))


def made_topics(mesh: Mesh) -> tuple[str, ...]:
    """Return the topics that the driver of a mesh makes if they are not there: all that its parts name as inputs and
    outputs, without patterns, topics for logs, dead letters and late messages.
    """
    return tuple(dict.fromkeys(topic for part in mesh.parts for topic in (*part.inputs, *part.outputs)))


def facts_before(mesh: Mesh, there: Mapping[str, int], default: int | None, writers: OtherWriters) -> Facts:
    """Return the facts that the driver of a mesh will find once it has made its topics; their notes tell what is not
    known.

    `there` has the number of partitions of each topic that exists, `default` is that of topics that are made; None: not
    known.
    """
    missing = tuple(topic for topic in made_topics(mesh) if topic not in there)
    notes = [
        f"{who} is not readable by this version of kop: the topics it writes are not known" for who in writers.unknown
    ]
    if missing and default is None:
        notes.append(
            f"the server does not say how many partitions new topics get ({', '.join(missing)}): components may be cut "
            "in another way"
        )
    made = {} if default is None else dict.fromkeys(missing, default)
    return Facts({**there, **made}, writers.by_topic, frozenset(missing), tuple(notes))
