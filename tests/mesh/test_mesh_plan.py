"""Components: what is fused, what is not, and why."""

from __future__ import annotations

from random import Random

import pytest
from mesh.mesh_kit import mesh_by_chance, mesh_of

from kop.mesh.graph import Graph, knots
from kop.mesh.plan import Component, Facts, MeshPlan, plan
from kop.mesh.spec import Mesh


def groups(made: MeshPlan) -> list[tuple[str, ...]]:
    return [component.names for component in made.components]


def test_functions_with_topics_between_them_are_one_component() -> None:
    (component,) = plan(mesh_of("b t -> u", "a in -> t", "c t,u -> out")).components
    assert component.name == "a"
    assert component.names == ("a", "b", "c")
    assert component.inputs == ("in",)
    assert component.calls == {"in": ("a",), "t": ("b", "c"), "u": ("c",)}
    assert (component.written, component.unwritten, component.cuts) == (("t", "u", "out"), (), ())


def test_what_nothing_connects_is_apart_and_follows_its_order() -> None:
    assert groups(plan(mesh_of("a in -> t", "x other -> y", "b t -> u"))) == [("a", "b"), ("x",)]


def test_functions_are_apart_without_fusing() -> None:
    made = plan(mesh_of("a in -> t private: true", "b t -> u", fuse="false"))
    assert groups(made) == [("a",), ("b",)]
    assert made.cuts[0].reason == "fuse is false"
    assert made.of_function["a"].written == ("t",)


@pytest.mark.parametrize(
    ("first", "second", "fields", "facts", "reason"),
    [
        ("a in -> t", "b t -> u", {"externalWriters": "[t]"}, Facts(), "others write it, too: externalWriters"),
        ("a in -> t", "b t -> u", {}, Facts(writers={"t": "the function z"}), "the function z writes it, too"),
        ("a in -> t", "b t -> u processingGuarantees: MANUAL", {}, Facts(), "b is MANUAL and a is ATLEAST_ONCE"),
        (
            "a in -> t processingGuarantees: MANUAL",
            "b t -> u processingGuarantees: MANUAL",
            {},
            Facts(),
            "b is MANUAL, and runs by itself",
        ),
        ("a in -> t", "b x -> u topicsPattern: t*", {}, Facts(), "b reads it by a pattern"),
        (
            "a in -> t",
            "b t -> u stateScope: partition",
            {},
            Facts(),
            "b has state, and a has no keepsKey: true",
        ),
        (
            "a in -> t",
            "b t -> u stateScope: function",
            {},
            Facts(),
            "b has state of the whole function, and in may have several partitions",
        ),
        (
            "a in -> t keepsKey: true",
            "b t -> u windowConfig: {windowLengthCount: 3}",
            {},
            Facts({"in": 2}),
            "b has windows, and runs by itself",
        ),
        (
            "a in,more -> t keepsKey: true",
            "b t -> u retainKeyOrdering: true",
            {},
            Facts(),
            "b has key order, and its messages come of several topics (in, more)",
        ),
        (
            "a in -> t keepsKey: true",
            "b t -> u stateScope: partition",
            {},
            Facts({"in": 2, "t": 3}),
            "b has state of each partition; t has 3 and in 2",
        ),
        (
            "a in -> t deadLetterTopic: d, maxMessageRetries: 1",
            "b t -> d2",
            {"sources": "[{name: s, format: rate, output: t}]"},
            Facts(),
            "the source s writes it, too",
        ),
    ],
)
def test_what_is_cut_says_why(first: str, second: str, fields: dict[str, str], facts: Facts, reason: str) -> None:
    made = plan(mesh_of(first, second, **fields), facts)
    assert groups(made) == [("a",), ("b",)]
    assert [(cut.topic, cut.function, cut.reason) for cut in made.cuts] == [("t", "b", reason)]


@pytest.mark.parametrize(
    ("first", "second", "facts"),
    [
        ("a in -> t keepsKey: true", "b t -> u stateScope: partition", Facts()),
        ("a in -> t keepsKey: true", "b t -> u retainKeyOrdering: true", Facts({"in": 5, "t": 3})),
        ("a in -> t", "b t -> u stateScope: partition", Facts({"in": 1})),
        ("a in -> t", "b t -> u stateScope: function", Facts({"in": 1, "t": 4})),
        ("a in -> t", "b t -> u retainOrdering: true", Facts()),
    ],
)
def test_state_and_order_are_fused_where_keys_stay(first: str, second: str, facts: Facts) -> None:
    assert groups(plan(mesh_of(first, second), facts)) == [("a", "b")]


def test_a_key_is_lost_by_any_function_on_the_way() -> None:
    made = plan(mesh_of("a in -> t", "b t -> u keepsKey: true", "c u -> v stateScope: partition"))
    assert groups(made) == [("a", "b"), ("c",)]
    assert "a has no keepsKey" in made.cuts[0].reason
    kept = ("a in -> t keepsKey: true", "b t -> u keepsKey: true", "c u -> v stateScope: partition")
    assert groups(plan(mesh_of(*kept))) == [("a", "b", "c")]


def test_no_component_reads_what_comes_back_of_its_own_outputs() -> None:
    """The second way to `d` is cut: else `b` would be with `a`, or the component would read its own topic."""
    made = plan(mesh_of("a in -> t", "b t -> u stateScope: partition", "c t -> v", "d u,v -> w"))
    assert groups(made) == [("a", "c"), ("b", "d")]
    assert [(cut.topic, cut.function) for cut in made.cuts] == [("t", "b"), ("v", "d")]


def test_a_query_between_functions_keeps_them_apart() -> None:
    queries = "[{name: q, sql: select value from t, output: u}]"
    made = plan(mesh_of("a in -> t", "b u,t -> v", queries=queries))
    assert groups(made) == [("a",), ("b",)]
    assert made.cuts[0].reason == "what they write comes back by way of q, which is another component"


def test_a_private_output_is_written_if_it_is_read_elsewhere() -> None:
    read = "c t -> v stateScope: function"
    assert plan(mesh_of("a in -> t private: true", "b t -> u")).components[0].unwritten == ("t",)
    assert plan(mesh_of("a in -> t private: true", "b t -> u", read)).components[0].unwritten == ()
    assert plan(mesh_of("a in -> t private: true", "b t -> u", "x in -> t")).components[0].unwritten == ()
    sinks = "[{name: s, inputs: t, format: parquet}]"
    assert plan(mesh_of("a in -> t private: true", "b t -> u", sinks=sinks)).components[0].unwritten == ()
    assert plan(mesh_of("a in -> t private: true")).components[0].unwritten == ()


def test_one_task_has_all_partitions_if_state_is_the_functions() -> None:
    mesh = mesh_of("a in -> t", "b t -> u stateScope: function", "c u -> v")
    first, second, third = plan(mesh).components
    assert (first.names, first.is_whole) == (("a",), False)
    assert (second.names, second.is_whole) == (("b",), True)
    assert (third.names, third.is_whole) == (("c",), False)
    assert third.cuts[0].reason == "b has state of the whole function, and runs by itself"
    assert groups(plan(mesh, Facts({"t": 1}))) == [("a",), ("b", "c")]
    assert groups(plan(mesh, Facts({"in": 1}))) == [("a", "b", "c")]


def test_a_function_that_runs_by_itself() -> None:
    mesh = mesh_of("a in -> t", "b t -> u", "c u -> v", "d t -> w")
    made = plan(mesh, alone={"b"})
    assert groups(made) == [("a", "d"), ("b",), ("c",)]
    assert {cut.reason for cut in made.cuts} == {"b has ended its process at a message, and runs by itself"}
    windows = mesh_of("a in -> t windowConfig: {windowLengthCount: 2}", "b t -> u")
    assert groups(plan(windows, Facts({"in": 1, "t": 1}))) == [("a",), ("b",)]


def test_a_topic_for_dead_letters_is_read_as_it_is() -> None:
    made = plan(mesh_of("a in -> t deadLetterTopic: d, maxMessageRetries: 1", "b d,t -> u"))
    assert made.components[0].inputs == ("in", "d")


# -- by chance

COUNT = 200


def facts_by_chance(chance: Random) -> Facts:
    known = chance.sample(["in-0", "in-1", "t0", "t1", "t2"], chance.randint(0, 5))
    others = {chance.choice(["t0", "t1", "t2"]): "another mesh"} if chance.random() < 0.2 else {}
    return Facts({topic: chance.randint(1, 3) for topic in known}, others)


def roots_of(component: Component, name: str, mesh: Mesh) -> tuple[set[str], bool]:
    """Return the topics that the messages of a function come of, and if the functions between keep the key."""
    parts = {part.name: part for part in component.functions}
    roots: set[str] = set()
    keeps = True
    for topic in parts[name].inputs:
        writers = [part for part in component.functions if topic in part.outputs]
        if topic in component.inputs:
            roots.add(topic)
            continue
        for part in writers:
            more, kept = roots_of(component, part.name, mesh)
            roots |= more
            keeps = keeps and kept and part.keeps_key
    return roots, keeps


@pytest.mark.parametrize("start", range(4))
def test_nothing_is_fused_that_would_change_results_and_nothing_cut_without_need(start: int) -> None:
    for seed in range(start, COUNT, 4):
        chance = Random(seed)
        check(mesh_by_chance(chance), facts_by_chance(chance))


def test_an_edge_that_a_circle_cuts_may_be_why_another_one_is_cut() -> None:
    """In this mesh messages come of another topic once a circle is cut, behind functions that were looked at before."""
    chance = Random(10215)
    check(mesh_by_chance(chance, 12), facts_by_chance(chance))


def check(mesh: Mesh, known: Facts) -> None:
    made = plan(mesh, known)
    names = [name for component in made.components for name in component.names]
    assert sorted(names) == sorted(part.name for part in mesh.functions)
    assert len({(cut.topic, cut.function) for cut in made.cuts}) == len(made.cuts)
    graph = Graph(mesh.parts)
    for component in made.components:
        inner = {topic for topic in component.calls if topic not in component.inputs}
        assert len({part.spec.processing_guarantees for part in component.functions}) == 1
        assert not inner & (mesh.external_writers | known.writers.keys())
        assert not set(component.inputs) & {*component.written, *component.unwritten}
        assert {topic: set(called) for topic, called in component.calls.items()} == {
            topic: {part.name for part in component.functions if topic in part.inputs} for topic in component.calls
        }
        for topic in inner:
            assert set(graph.writers[topic]) <= set(component.names)
        for topic in component.unwritten:
            assert set(graph.readers[topic]) <= set(component.names)
        for part in component.functions:
            before = [topic for topic in part.inputs if topic in inner]
            if not before or not part.holds_order:
                continue
            roots, keeps = roots_of(component, part.name, mesh)
            assert len(roots) == 1
            one_partition = known.partitions.get(*roots) == 1
            assert one_partition or (keeps and not part.is_whole)
        assert component.is_whole == any(part.is_whole for part in component.functions)
        if component.is_whole and len(component.names) > 1:
            assert [known.partitions.get(topic) for topic in component.inputs] == [1]
    owner = {name: component.name for component in made.components for name in component.names}
    owner |= {query.name: query.name for query in mesh.queries}
    arrows = {
        group: {owner[o] for n in owner if owner[n] == group for o in graph.after[n] if o in owner} - {group}
        for group in owner.values()
    }
    assert knots({group: sorted(after) for group, after in arrows.items()}) == []
    order = [component.name for component in made.components]
    assert all(order.index(name) < order.index(o) for name in order for o in arrows[name] if o in order)
    if not mesh.fuse:
        assert all(len(component.names) == 1 for component in made.components)
    free = all(not part.holds_order for part in mesh.functions) and not mesh.queries and not mesh.sources
    alike = len({part.spec.processing_guarantees for part in mesh.functions}) == 1
    if free and alike and mesh.fuse and not known.writers and not mesh.external_writers:
        assert made.cuts == ()
