"""Who runs what: loads differ by one at most, and no more moves than that needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.functions.definitions import Assignment, InstanceName
from kop.functions.scheduler import Wish, deal, mistake, schedule


def wish(instances: int, partitions: int, topic: str = "in", revision: int = 1) -> Wish:
    return Wish(dict.fromkeys(range(instances), revision), tuple((topic, number) for number in range(partitions)))


def workers_of(assignments: Mapping[InstanceName, Assignment]) -> dict[InstanceName, str]:
    return {name: assignment.worker for name, assignment in assignments.items()}


def fewest_moves(count: int, kept: Mapping[str, int]) -> int:
    """How many of `count` items have to move at least, by trying who keeps one more than others."""
    least, more = divmod(count, len(kept))
    return min(
        count - sum(min(held, least + (owner in chosen)) for owner, held in kept.items())
        for chosen in map(set, combinations(kept, more))
    )


@given(
    st.dictionaries(st.integers(0, 30), st.sampled_from(["a", "b", "c", "gone"]), max_size=25),
    st.sets(st.sampled_from(["a", "b", "c", "d", "e"]), min_size=1),
    st.sets(st.integers(31, 50)),
)
def test_dealing_moves_the_fewest(current: dict[int, str], owners: set[str], new: set[int]) -> None:
    items = sorted({*current, *new})
    then = deal(items, current, sorted(owners), alike=lambda item: item % 3)
    assert then.keys() == set(items)
    loads = Counter(dict.fromkeys(owners, 0)) + Counter(then.values())
    assert max(loads.values(), default=0) - min((loads[owner] for owner in owners), default=0) <= 1
    kept = {owner: sum(holder == owner for holder in current.values()) for owner in owners}
    moved = sum(current.get(item) != then[item] for item in items)
    assert moved == fewest_moves(len(items), kept)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=4),
    st.lists(st.sets(st.sampled_from(["a", "b", "c", "d"])), min_size=1, max_size=4),
)
def test_whatever_happens_each_partition_is_read_once(
    functions: list[tuple[int, int]], history: list[set[str]]
) -> None:
    current: Mapping[InstanceName, Assignment] = {}
    for turn, workers in enumerate(history):
        wishes = {
            f"t/n/f{number}": wish((instances + turn * number) % 5, partitions + turn)
            for number, (instances, partitions) in enumerate(functions)
        }
        then = schedule(wishes, current, workers)
        assert mistake(then, wishes, workers) is None
        assert all(assignment.partitions for assignment in then.values())
        loads = Counter(workers_of(then).values())
        assert max(loads.values(), default=0) - min((loads[w] for w in workers), default=0) <= 1
        for fqfn, wished in wishes.items():
            dealt = [len(a.partitions) for (name, _), a in then.items() if name == fqfn]
            assert not workers or not wished.instances or sum(dealt) == len(wished.partitions)
            assert max(dealt, default=0) - min(dealt, default=0) <= 1
        assert schedule(wishes, then, workers) == then
        current = then


def test_instances_beyond_the_partitions_are_idle() -> None:
    then = schedule({"t/n/f": wish(5, 2)}, {}, ["a"])
    assert {name: a.partitions for name, a in then.items()} == {
        ("t/n/f", 0): (("in", 0),),
        ("t/n/f", 1): (("in", 1),),
    }


def test_instances_of_a_function_are_spread() -> None:
    then = schedule({"t/n/f": wish(2, 2), "t/n/g": wish(2, 2)}, {}, ["a", "b"])
    assert {name for name, worker in workers_of(then).items() if worker == "a"} in (
        {("t/n/f", 0), ("t/n/g", 0)},
        {("t/n/f", 0), ("t/n/g", 1)},
    )


def test_a_worker_that_comes_is_given_its_part_and_nothing_else_moves() -> None:
    wishes = {f"t/n/f{number}": wish(1, 1) for number in range(6)}
    before = schedule(wishes, {}, ["a", "b"])
    then = schedule(wishes, before, ["a", "b", "c"])
    moved = {name for name in then if then[name].worker != before[name].worker}
    assert len(moved) == 2
    assert {then[name].worker for name in moved} == {"c"}


def test_a_worker_that_goes_loses_its_part_alone() -> None:
    wishes = {f"t/n/f{number}": wish(1, 1) for number in range(6)}
    before = schedule(wishes, {}, ["a", "b", "c"])
    then = schedule(wishes, before, ["a", "c"])
    assert all(then[name].worker == a.worker for name, a in before.items() if a.worker != "b")
    assert schedule(wishes, then, []) == {}


def test_more_instances_take_no_more_partitions_than_they_need() -> None:
    before = schedule({"t/n/f": wish(2, 6)}, {}, ["a"])
    then = schedule({"t/n/f": wish(3, 6)}, before, ["a"])
    assert {name[1]: len(a.partitions) for name, a in then.items()} == {0: 2, 1: 2, 2: 2}
    for name, assignment in before.items():
        assert set(then[name].partitions) < set(assignment.partitions)


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        ({}, "no instance of t/n/f has in-0"),
        ({("t/n/f", 0): ("a", 1, (("in", 0), ("in", 1))), ("t/n/f", 1): ("a", 1, (("in", 1),))}, "which is not free"),
        ({("t/n/f", 0): ("x", 1, (("in", 0),))}, "is on x, which may have none"),
        ({("t/n/f", 7): ("a", 1, (("in", 0),))}, "instance 7 of t/n/f is not wanted"),
        ({("t/n/f", 0): ("a", 2, (("in", 0),))}, "another number or revision"),
        ({("t/n/f", 0): ("a", 1, (("in", 0), ("in", 9)))}, "which is not free"),
    ],
)
def test_what_another_scheduler_does_wrong_is_told(
    assignments: dict[InstanceName, tuple[str, int, tuple[tuple[str, int], ...]]], why: str
) -> None:
    made = {
        name: Assignment(worker=worker, revision=revision, partitions=partitions, number=name[1])
        for name, (worker, revision, partitions) in assignments.items()
    }
    assert why in str(mistake(made, {"t/n/f": wish(2, 2)}, ["a"]))
