"""The order in which the parts of a mesh are run to their ends: what feeds others first.

Owns: this order. Must not know: Spark, how a part runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from kop.mesh.graph import Graph
from kop.mesh.spec import Mesh


def phases(mesh: Mesh, components: Mapping[str, str]) -> list[list[str]]:
    """Return names in groups: those of a group run at the same time, the groups one after the other. Sources come
    first, sinks last, each query between what it reads and what reads it.

    A function is there by the name of its component, which `components` has by the function's; any other part by its
    own. Components with no query between them are in one group.
    """
    graph = Graph(mesh.parts)
    kinds = {components.get(part.name, part.name): part.kind for part in mesh.parts}
    edges = {(name, other) for name, others in graph.after.items() for other in others}
    edges |= {(name, other) for topic, names in graph.side_writers.items() for name in names
              for other in graph.readers.get(topic, ())}  # fmt: skip
    moves = {(components.get(name, name), components.get(other, other)) for name, other in edges}
    number = {name: 0 if kind == "source" else 1 for name, kind in kinds.items()}
    for _ in kinds:
        for name, other in moves:
            apart = {kinds[name], kinds[other]} != {"function"}
            if name != other:
                number[other] = max(number[other], number[name] + apart)
    last = max(number.values(), default=0) + 1
    number |= {name: last for name, kind in kinds.items() if kind == "sink"}
    return [[name for name in kinds if number[name] == each] for each in sorted({*number.values()})]
