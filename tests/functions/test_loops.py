"""Loops of functions through topics."""

from __future__ import annotations

from typing import Any

import pytest

from kop.functions.definitions import Definition
from kop.functions.loops import loop_of


def defined(**functions: tuple[Any, ...]) -> dict[str, Definition]:
    """Functions by their names: inputs, output, and further fields."""
    made = {}
    for at_ms, (name, (inputs, output, *more)) in enumerate(functions.items()):
        fields: dict[str, Any] = {"className": "f", "py": "f.py", "name": name, "inputs": inputs, "output": output}
        for given in more:
            fields |= given
        fqfn = f"public/default/{name}"
        made[fqfn] = Definition(fqfn=fqfn, config=fields, revision=1, version=1, version_ms=at_ms)
    return made


LOGS = {"topicsPattern": "log-.*"}


@pytest.mark.parametrize(
    ("functions", "written"),
    [
        (defined(f=(["a"], "b"), g=(["b"], "c")), None),
        (defined(f=(["a"], "b"), g=(["b"], "a")), ["b", "a"]),
        (defined(f=(["a"], "b"), g=(["b"], "c"), h=(["c", "x"], "a")), ["b", "c", "a"]),
        (defined(g=(["b"], "b2"), h=(["b2"], "b"), f=(["a"], "b")), None),
        (defined(f=(["a"], "log-f"), g=([], "a", LOGS)), ["log-f", "a"]),
        (defined(f=([], "b", LOGS | {"logTopic": "log-f"})), None),
        (defined(f=([], "log-f", LOGS), g=([], "log-g", LOGS)), ["log-f", "log-g"]),
        (defined(f=(["a"], "", {"maxMessageRetries": 1, "deadLetterTopic": "a"})), ["a"]),
        (defined(f=(["a"], "b", {"logTopic": "l"}), g=(["l"], "a")), ["l", "a"]),
        (defined(f=(["a"], "b"), g=(["b"], "c"), h=(["c"], "a"), i=(["b"], "a")), ["b", "a"]),
        (defined(f=(["a"], "b"), bad=(["b"], 5)), None),
        ({}, None),
    ],
)
def test_the_shortest_loop_is_told(functions: dict[str, Definition], written: list[str] | None) -> None:
    loop = loop_of("public/default/f", functions)
    if written is None:
        assert loop is None
        return
    assert loop is not None
    steps = loop.text.partition(" comes back to it: ")[2].replace(" and reads it", "").split(", ")
    assert [step.split()[2] for step in steps if " writes " in step] == written
    on_the_way = [functions[step.split()[0]].version_ms for step in steps if " writes " in step]
    assert loop.since_ms == max(on_the_way), "since the last of them was made"
