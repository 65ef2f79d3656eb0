"""Meshes for tests, from short texts and by chance."""

from __future__ import annotations

from random import Random
from typing import Any

from kop.functions.spec import FunctionSpec, Guarantee, InputSpec
from kop.mesh.file import read_mesh
from kop.mesh.spec import FunctionPart, Mesh, QueryPart, SinkPart, SourcePart, View


def mesh_of(*parts: str, **fields: Any) -> Mesh:
    """Return a mesh of functions written as `NAME INPUTS -> OUTPUT FIELDS`, with commas between inputs.

    Fields are those of a function, with commas between: `a x,y -> z stateScope: partition, keepsKey: true`.
    """
    lines = [f"{name}: {value}" for name, value in {"name": "m", **fields}.items()]
    lines.append("functions:")
    for part in parts:
        name, inputs, _, output, *given = part.split(" ", 4)
        lines.append(
            f"- {{name: {name}, className: f, py: f.py, inputs: [{inputs}], output: {output}, {''.join(given)}}}"
        )
    return read_mesh("\n".join(lines), "mesh.yaml")


def mesh_by_chance(chance: Random, most: int = 9) -> Mesh:
    """Return a mesh without cycles: topics go from parts to later parts."""
    functions: list[FunctionPart] = []
    topics = ["in-0", "in-1"]
    queries: list[QueryPart] = []
    for number in range(chance.randint(1, most)):
        name = f"f{number}"
        inputs = chance.sample(topics, chance.randint(1, min(3, len(topics))))
        readers: list[FunctionPart | QueryPart] = [*functions, *queries]
        read = {topic for part in readers for topic in part.inputs}
        shared = [part.spec.output for part in functions if part.spec.output not in {"", *read, *inputs}]
        output = chance.choice([f"t{number}", f"t{number}", f"t{number}", *shared, ""])
        scope = chance.choice(["", "", "", "function", "partition"])
        functions.append(
            FunctionPart(
                spec=FunctionSpec(
                    name=name,
                    class_name="f",
                    py="f.py",
                    inputs={topic: InputSpec() for topic in inputs},
                    output=output,
                    processing_guarantees=chance.choice([Guarantee.EFFECTIVELY_ONCE] * 4 + [Guarantee.ATLEAST_ONCE]),
                    retain_key_ordering=chance.random() < 0.15,
                    state_scope="partition" if scope == "partition" and len(inputs) == 1 else "function",
                    parallelism=chance.randint(1, 4),
                ),
                keeps_key=chance.random() < 0.6,
                is_private=chance.random() < 0.5,
                has_state=bool(scope),
            )
        )
        if output and output not in topics:
            topics.append(output)
        if chance.random() < 0.15:
            queries.append(QueryPart(name=f"q{number}", sql="", views={"t": View(topics[-1])}, output=f"u{number}"))
            topics.append(f"u{number}")
    chance.shuffle(functions)
    return Mesh(
        name="m",
        functions=tuple(functions),
        sources=(SourcePart(name="source", format="rate", output="in-0"),) if chance.random() < 0.5 else (),
        sinks=(SinkPart(name="sink", inputs=(topics[-1],), format="parquet"),) if chance.random() < 0.5 else (),
        queries=tuple(queries),
        fuse=chance.random() < 0.9,
        external_writers=frozenset(chance.sample(topics, 1) if chance.random() < 0.3 else ()),
    )
