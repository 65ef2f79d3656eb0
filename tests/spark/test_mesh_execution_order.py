"""What of a mesh runs together if each part runs once to its end."""

from __future__ import annotations

import re
from pathlib import Path

from kop.mesh.file import read_mesh
from kop.mesh.plan import plan
from kop.spark.mesh.execution_order import phases

TEXT = """\
name: m
functions:
  - {name: f, className: f.f, py: f.py, inputs: [a], output: b, maxMessageRetries: 1,
      deadLetterTopic: dead}
  - {name: g, className: f.g, py: f.py, inputs: [b], output: c}
  - {name: h, className: f.h, py: f.py, inputs: [d], output: e}
queries:
  - {name: q, sql: SELECT * FROM c, output: d}
  - {name: other, sql: SELECT * FROM dead, output: x}
sources: [{name: s, format: rate, output: a}]
sinks: [{name: t, inputs: [e, b], format: parquet}]
"""


def phases_of(text: str) -> list[list[str]]:
    mesh = read_mesh(text, "mesh.yaml")
    components = {name: cut.name for cut in plan(mesh).components for name in cut.names}
    return phases(mesh, components)


def test_a_query_waits_for_what_is_before_it_and_what_is_behind_it_for_the_query() -> None:
    assert phases_of(TEXT) == [["s"], ["f"], ["q", "other"], ["h"], ["t"]]


def test_functions_run_together_though_they_are_several_components() -> None:
    text = TEXT.replace("FROM c", "FROM e").replace("inputs: [d]", "inputs: [c]") + "fuse: false\n"
    assert phases_of(text) == [["s"], ["f", "g", "h"], ["q", "other"], ["t"]]


def test_the_short_form_of_the_example_is_the_same_mesh() -> None:
    folder = Path(__file__).parents[2] / "deploy/examples/mesh"
    own, short = (read_mesh((folder / name).read_text(), folder / name) for name in ("mesh.yaml", "short.yaml"))

    def told(mesh: object) -> str:
        return re.sub(r"\bline=\d+", "", repr(mesh))

    assert told(own) == told(short)
