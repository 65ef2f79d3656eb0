"""Meshes for tests, from short texts and by chance."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kop.functions.spec import FunctionSpec, Guarantee, InputSpec
from kop.mesh.file import read_mesh
from kop.mesh.spec import FunctionPart, Mesh, QueryPart, SinkPart, SourcePart


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


@st.composite
def meshes(draw: st.DrawFn, most: int = 9) -> Mesh:
    """Draw meshes without cycles: topics go from parts to later parts."""
    count = draw(st.integers(1, most))
    functions: list[FunctionPart] = []
    topics = ["in-0", "in-1"]
    sources = [SourcePart(name="source", format="rate", output="in-0")] if draw(st.booleans()) else []
    queries: list[QueryPart] = []
    for number in range(count):
        name = f"f{number}"
        inputs = draw(st.lists(st.sampled_from(topics), min_size=1, max_size=3, unique=True))
        old = [part.spec.output for part in functions if part.spec.output and part.spec.output not in inputs]
        later = [topic for topic in old if not any(topic in part.inputs for part in [*functions, *queries])]
        output = draw(st.sampled_from([f"t{number}", f"t{number}", f"t{number}", *later, ""]))
        scope = draw(st.sampled_from(["", "", "", "function", "partition"]))
        functions.append(
            FunctionPart(
                spec=FunctionSpec(
                    name=name,
                    class_name="f",
                    py="f.py",
                    inputs={topic: InputSpec() for topic in inputs},
                    output=output,
                    processing_guarantees=draw(
                        st.sampled_from([Guarantee.EFFECTIVELY_ONCE] * 4 + [Guarantee.ATLEAST_ONCE])
                    ),
                    retain_key_ordering=draw(st.integers(0, 5)) == 0,
                    state_scope="partition" if scope == "partition" and len(inputs) == 1 else "function",
                    parallelism=draw(st.integers(1, 4)),
                ),
                keeps_key=draw(st.booleans()),
                is_private=draw(st.booleans()),
                has_state=bool(scope),
            )
        )
        if output and output not in topics:
            topics.append(output)
        if draw(st.integers(0, 6)) == 0:
            queries.append(QueryPart(name=f"q{number}", sql="", inputs=(topics[-1],), output=f"u{number}"))
            topics.append(f"u{number}")
    sinks = [SinkPart(name="sink", inputs=(topics[-1],), format="parquet")] if draw(st.booleans()) else []
    return Mesh(
        name="m",
        functions=tuple(draw(st.permutations(functions))),
        sources=tuple(sources),
        sinks=tuple(sinks),
        queries=tuple(queries),
        fuse=draw(st.integers(0, 9)) > 0,
        external_writers=frozenset(draw(st.lists(st.sampled_from(topics), max_size=1))),
    )
