"""The schedule: a pure function of what is wanted, what is, and who is there, to who runs what on which partitions.

Owns: that loads differ by one at most, and that no more moves than that needs.
Must not know: topics, requests, time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kop.client.offsets import TopicPartition
from kop.functions.definitions import Assignment, InstanceName

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


@dataclass(frozen=True)
class Wish:
    """The needs of a function."""

    instances: Mapping[int, int]
    """Those that shall run, and the revision that each runs."""
    partitions: tuple[TopicPartition, ...]


Assignments: TypeAlias = Mapping[InstanceName, Assignment]
Scheduler: TypeAlias = Callable[[Mapping[str, Wish], Assignments, Collection[str]], Assignments]
"""Functions by their full names, the assignments that there are, the workers that may have some -> the assignments
from now on. An instance without partitions is in none, and idle."""


def schedule(wishes: Mapping[str, Wish], current: Assignments, workers: Collection[str]) -> Assignments:
    """Return new assignments: partitions to instances, and instances to workers. Instances without partitions are in
    none; without workers there are no assignments.

    The numbers of partitions of a function's instances, and of instances of the workers, differ by one at most, and as
    little as possible moves. What has to move goes to where the function has the fewest instances.
    """
    if not workers:
        return {}
    held: dict[str, dict[TopicPartition, int]] = {}
    for (fqfn, number), assignment in current.items():
        held.setdefault(fqfn, {}).update(dict.fromkeys(assignment.partitions, number))
    dealt: dict[InstanceName, list[TopicPartition]] = {}
    for fqfn, wish in sorted(wishes.items()):
        for partition, number in deal(sorted(wish.partitions), held.get(fqfn, {}), sorted(wish.instances)).items():
            dealt.setdefault((fqfn, number), []).append(partition)
    owners = {name: assignment.worker for name, assignment in current.items() if name in dealt}
    placed = deal(list(dealt), owners, sorted(workers), alike=lambda name: name[0])
    return {
        name: Assignment(
            worker=worker,
            revision=wishes[name[0]].instances[name[1]],
            partitions=tuple(sorted(dealt[name])),
            number=name[1],
        )
        for name, worker in placed.items()
    }


def deal(
    items: Sequence[I], current: Mapping[I, O], owners: Sequence[O], alike: Callable[[Any], object] = lambda item: None
) -> dict[I, O]:
    """Return an owner for each item, so that the owners' counts differ by one at most and the fewest items move away
    from their owners in `current`; empty without owners.

    `alike` returns the kind of an item. An item that moves goes to one of the owners with the fewest of its kind, and
    of an owner that has too many, items go first whose kind it has most of.
    """
    if not owners:
        return {}
    kept: dict[O, list[I]] = {owner: [] for owner in owners}
    loose: list[I] = []
    for item in items:
        holder = current.get(item)
        if holder is not None and holder in kept:
            kept[holder].append(item)
        else:
            loose.append(item)
    least, more = divmod(len(items), len(owners))
    # The owners of most keep one more than the others: nothing moves that need not.
    by_load = sorted(range(len(owners)), key=lambda index: (-len(kept[owners[index]]), index))
    room = {owners[index]: least + (place < more) for place, index in enumerate(by_load)}
    kinds = {owner: Counter(map(alike, some)) for owner, some in kept.items()}
    for owner, some in kept.items():
        while len(some) > room[owner]:
            out = max(range(len(some)), key=lambda index: (kinds[owner][alike(some[index])], index))
            item = some.pop(out)
            kinds[owner][alike(item)] -= 1
            loose.append(item)
    for item in loose:
        kind = alike(item)
        free = [owner for owner in owners if len(kept[owner]) < room[owner]]
        owner = min(free, key=lambda owner: (kinds[owner][kind], len(kept[owner])))
        kept[owner].append(item)
        kinds[owner][kind] += 1
    return {item: owner for owner, some in kept.items() for item in some}


def mistake(assignments: Assignments, wishes: Mapping[str, Wish], workers: Collection[str]) -> str | None:
    """Return what is wrong with the assignments that a scheduler made, the first mistake; None if they are right."""
    dealt: dict[tuple[str, TopicPartition], int] = {}
    for (fqfn, number), assignment in assignments.items():
        wish = wishes.get(fqfn)
        if wish is None or number not in wish.instances:
            return f"instance {number} of {fqfn} is not wanted"
        if assignment.worker not in workers:
            return f"instance {number} of {fqfn} is on {assignment.worker}, which may have none"
        if (assignment.number, assignment.revision) != (number, wish.instances[number]):
            return f"instance {number} of {fqfn} has another number or revision"
        for partition in assignment.partitions:
            other = dealt.setdefault((fqfn, partition), number)
            if other != number or partition not in wish.partitions:
                return f"instance {number} of {fqfn} has {partition[0]}-{partition[1]}, which is not free"
    for fqfn, wish in wishes.items():
        for partition in wish.partitions:
            if workers and wish.instances and (fqfn, partition) not in dealt:
                return f"no instance of {fqfn} has {partition[0]}-{partition[1]}"
    return None
