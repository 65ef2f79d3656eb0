"""What is told of the change from a mesh to another one."""

from __future__ import annotations

from random import Random
from typing import Any

from mesh.mesh_kit import mesh_by_chance, mesh_of

from kop.mesh.diff import changes
from kop.mesh.plan import plan
from kop.mesh.spec import Mesh

FIRST = ("a in -> t", "b t -> u", "c u -> v stateScope: partition")


def told(old: Mesh, new: Mesh) -> list[str]:
    return [f"{each.of} {each.name}: {each.what}" for each in changes(old, plan(old), new, plan(new))]


def test_nothing_changes_between_a_mesh_and_itself() -> None:
    for seed in range(20):
        assert told(mesh_by_chance(Random(seed)), mesh_by_chance(Random(seed))) == []


def test_parts_and_fields() -> None:
    others: dict[str, Any] = {"sinks": "[{name: s, inputs: v, format: parquet, options: {path: a}}]", "batchSeconds": 5}
    new = mesh_of(
        "a in -> t parallelism: 3", "b t -> u", "d u -> w", sinks="[{name: s, inputs: v, format: csv}]", fuse=True
    )
    rows = told(mesh_of(*FIRST, **others), new)
    assert rows == [
        "mesh batchSeconds: 5.0 -> 10.0",
        "part c: goes: function",
        "part a: parallelism: none -> 3",
        "part d: comes: function",
        "part s: format: parquet -> csv",
        "part s: options: path: a -> none",
        "component a: a, b -> a, b, d",
        "component c: goes: c",
        "offsets c: those of the group public/default/c are deleted with it",
        "state c: stays in its topic, and is used no more",
    ]


def test_components_that_are_joined_and_cut() -> None:
    kept = ("a in -> t keepsKey: true", "b t -> u keepsKey: true", FIRST[2])
    joined = told(mesh_of(*FIRST), mesh_of(*kept))
    assert joined[2:] == [
        "component a: is joined of a, c: a, b, c",
        "offsets c, u: was read, and is called once its lag is done: nothing is missed",
        "state c: was of the partitions of u, and is of those of in: keys have to be in the same partitions of both",
    ]
    cut = told(mesh_of(*kept), mesh_of(*FIRST))
    assert cut[2:] == [
        "component a: a, b, c -> a, b",
        "component c: is cut from a: c; c has state, and b has no keepsKey: true",
        "offsets c, u: was called, and reads the topic from its end on: nothing is done twice",
        "state c: was of the partitions of in, and is of those of u: keys have to be in the same partitions of both",
    ]


def test_offsets_of_new_inputs_groups_and_parts() -> None:
    old = mesh_of("a in,more -> t", "b t -> u cleanupSubscription: false")
    new = mesh_of("a in -> t subName: g", "c other -> w subscriptionPosition: Earliest")
    assert [row for row in told(old, new) if row.startswith("offsets")] == [
        "offsets a, in: group public/default/a -> g: begins at the end of the topic",
        "offsets a, more: is read no more: what waits there is not done",
        "offsets c, other: begins at the first record of the topic",
        "offsets a: those of the group public/default/a are deleted",
        "offsets b: those of the group public/default/b stay: cleanupSubscription is false",
    ]


def test_offsets_of_a_group_that_another_part_has_are_not_told_as_deleted() -> None:
    old = mesh_of("a in -> t subName: g", "b t -> u")
    new = mesh_of("c in -> t subName: g", "b t -> u")
    assert [row for row in told(old, new) if row.startswith("offsets")] == [
        "offsets c, in: begins at the end of the topic"
    ]


def test_another_scope_is_another_state() -> None:
    rows = told(mesh_of("a in -> t stateScope: function"), mesh_of("a in -> t stateScope: partition"))
    assert "state a: begins anew: stateScope function -> partition is another state" in rows
    windows = [mesh_of(f"a in -> t windowConfig: {{windowLengthCount: {count}}}") for count in (2, 3)]
    assert "state a: open windows begin anew" in told(*windows)
