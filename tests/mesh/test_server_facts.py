"""The facts of a server: who else writes, which topics are made, and the plan that follows from both."""

from __future__ import annotations

from typing import Any

import pytest
from mesh.mesh_kit import mesh_of

from kop.functions.definitions import Definition, MeshDefinition
from kop.mesh.file import draft_of
from kop.mesh.mesh_check import check
from kop.mesh.plan import plan
from kop.mesh.server_facts import OtherWriters, facts_before, made_topics, other_writers

NOBODY = OtherWriters()


def function(name: str, mesh: str = "", **config: Any) -> Definition:
    fqfn = f"public/default/{name}"
    given = {"name": name, "className": "f", "py": "f.py", "inputs": ["x"], **config}
    return Definition(fqfn=fqfn, config=given, revision=1, version=1, mesh=mesh)


def mesh(name: str, text: str) -> MeshDefinition:
    others = ("public/default/part",)
    return MeshDefinition(name=f"public/default/{name}", text=text, others=others, revision=1, version=1)


def writers(*defined: Definition | MeshDefinition) -> OtherWriters:
    meshes = {each.name: each for each in defined if isinstance(each, MeshDefinition)}
    functions = {each.fqfn: each for each in defined if isinstance(each, Definition)}
    return other_writers("public/default/m", meshes, functions)


def test_functions_and_other_meshes_write_and_the_own_parts_do_not_count() -> None:
    source = "{name: s, format: rate, output: rows}"
    query = "{name: q, sql: SELECT * FROM rows, output: found}"
    made = writers(
        function("z", output="t", logTopic="logs"),
        function("stopped", output="t", deadLetterTopic="dead", maxMessageRetries=1),
        function("a", "public/default/m", output="u"),
        function("b", "public/default/other", output="v"),
        mesh("m", "name: m\nsources: [{name: s, format: rate, output: own}]\n"),
        mesh("other", f"name: other\nsources: [{source}]\nqueries: [{query}]\n"),
    )
    assert made == OtherWriters(
        {
            "t": "the function public/default/stopped",
            "dead": "the function public/default/stopped",
            "logs": "the function public/default/z",
            "v": "the function public/default/b",
            "rows": "the source s of the mesh public/default/other",
            "found": "the query q of the mesh public/default/other",
        }
    )


def test_what_cannot_be_read_is_said() -> None:
    made = writers(function("z", output="t", parallelism="many"), mesh("other", "name: other\nparts: []\n"))
    assert made == OtherWriters({}, ("the function public/default/z", "the mesh public/default/other"))
    notes = check(
        draft_of("name: m\nfunctions: [{name: a, className: f, py: f.py, inputs: [in]}]\n", "mesh.yaml"),
        facts_before(mesh_of("a in -> t"), {"in": 1, "t": 1}, 1, made),
    ).notes
    assert notes[0].startswith("the function public/default/z is not readable by this version of kop")


def test_a_topic_that_others_write_cuts_the_component() -> None:
    own = mesh_of("a in -> t", "b t -> u")
    facts = facts_before(own, {"in": 1, "t": 1, "u": 1}, 1, writers(function("z", output="t")))
    (cut,) = plan(own, facts).cuts
    assert (cut.topic, cut.function, cut.reason) == ("t", "b", "the function public/default/z writes it, too")


@pytest.mark.parametrize(("default", "count"), [(2, 1), (1, 2), (None, 1)])
def test_the_plan_is_that_of_the_topics_as_they_will_be(default: int | None, count: int) -> None:
    """A state of each partition is called directly if both topics have as many partitions."""
    own = mesh_of("a in -> t keepsKey: true", "b t -> u stateScope: partition")
    assert made_topics(own) == ("in", "t", "u")
    facts = facts_before(own, {"in": 2}, default, NOBODY)
    assert len(plan(own, facts).components) == count
    assert facts.missing == {"t", "u"}
    assert bool(facts.notes) is (default is None)


def test_an_input_that_is_to_be_made_is_a_mistake_unless_the_mesh_is_about_to_run() -> None:
    text = "name: m\nfunctions: [{name: a, className: f, py: f.py, inputs: [in], output: t}]\n"
    draft = draft_of(text, "mesh.yaml")
    facts = facts_before(draft.mesh, {}, 1, NOBODY)
    (mistake,) = check(draft, facts).mistakes
    assert "in is not on the server, and no part writes it" in mistake.text
    made = check(draft, facts, makes_topics=True)
    assert (made.mistakes, made.notes) == ((), ("topics that others have to write: in",))
    named = draft_of(f"externalWriters: [other]\n{text}", "mesh.yaml")
    (mistake,) = check(named, facts, makes_topics=True).mistakes
    assert "in is written by no part, and externalWriters does not name it" in mistake.text
    assert check(named, facts_before(named.mesh, {"in": 1}, 1, NOBODY), makes_topics=True).mistakes == ()
    written = facts_before(draft.mesh, {"in": 1}, 1, writers(function("z", output="in")))
    assert check(draft, written).notes == ()
