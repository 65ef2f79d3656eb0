"""The picture of a mesh as plain values, for those who draw it by their own means.

Owns: the fields of these values.
Must not know: shapes, texts, lines.
"""

from __future__ import annotations

from typing import Any

from kop.mesh.draw import Box, Frame, drawn_size, picture_of
from kop.mesh.graph import Graph
from kop.mesh.plan import MeshPlan
from kop.mesh.spec import Mesh


def picture_json(mesh: Mesh, plan: MeshPlan) -> dict[str, Any]:
    """Return nodes, edges and components of a mesh as JSON values, with the places that nodes and components have in
    its picture, whose size this is, in pixels from its left upper corner.
    """
    picture = picture_of(mesh, plan)
    width, height = drawn_size(picture)
    component_of = {name: component.name for name, component in plan.of_function.items()}
    called = {
        (topic, name): component.name
        for component in plan.components
        for topic, names in component.calls.items()
        if topic not in component.inputs
        for name in names
    }
    inner = {topic: component for (topic, _), component in called.items()}
    graph = Graph(mesh.parts)
    reasons = {(cut.topic, cut.function): cut.reason for cut in plan.cuts}
    edges: list[dict[str, Any]] = []
    for topic in graph.topics:
        edges += [_edge(topic, name, "writes") for name in graph.writers[topic]]
        edges += [_edge(topic, name, "writes aside") for name in graph.side_writers.get(topic, ())]
        edges += [
            _edge(topic, name, "is called" if (topic, name) in called else "reads", reasons.get((topic, name)))
            for name in graph.readers[topic]
        ]
    return {
        "mesh": mesh.full_name,
        "width": _rounded(width),
        "height": _rounded(height),
        "nodes": [
            {
                "kind": "topic" if box.shape == "private" else box.shape,
                "name": box.name,
                "component": (inner if box.shape in {"topic", "private"} else component_of).get(box.name),
                "written": box.shape != "private" if box.shape in {"topic", "private"} else None,
                **_place(box),
            }
            for box in picture.boxes
        ],
        "components": [
            {
                "name": frame.component,
                "functions": [name for name, component in component_of.items() if component == frame.component],
                **_place(frame),
            }
            for frame in picture.frames
        ],
        "edges": edges,
    }


def _edge(topic: str, part: str, does: str, reason: str | None = None) -> dict[str, Any]:
    return {"topic": topic, "part": part, "does": does, "cut": reason}


def _place(item: Box | Frame) -> dict[str, float]:
    return {name: _rounded(getattr(item, name)) for name in ("x", "y", "width", "height")}


def _rounded(value: float) -> float:
    return round(value, 1)
