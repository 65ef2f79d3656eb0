"""The graph of a mesh: who writes and who reads each topic, in which order parts follow each other.

Owns: what is an edge, cycles.
Must not know: how parts run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from kop.mesh.spec import FunctionPart, Outline, Part

N = TypeVar("N", bound=Hashable)


@dataclass(frozen=True)
class Graph:
    """Parts by their names, which are names once in a mesh."""

    all_parts: tuple[Part | Outline, ...]

    @cached_property
    def parts(self) -> dict[str, Part | Outline]:
        """Every part by its name; if two have one name, the second is named with its line."""
        parts: dict[str, Part | Outline] = {}
        for part in self.all_parts:
            parts[f"{part.name} (line {part.line})" if part.name in parts else part.name] = part
        return parts

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The topics that parts name as inputs or outputs, in the order of the file."""
        names: dict[str, None] = {}
        for part in self.parts.values():
            names |= dict.fromkeys((*part.inputs, *part.outputs))
        return tuple(names)

    @cached_property
    def writers(self) -> dict[str, tuple[str, ...]]:
        """Topic to the parts whose output it is."""
        return {topic: tuple(n for n, part in self.parts.items() if topic in part.outputs) for topic in self.topics}

    @cached_property
    def side_writers(self) -> dict[str, tuple[str, ...]]:
        """Topic to the functions that write their log, dead letters or late messages to it."""
        sides: dict[str, tuple[str, ...]] = {}
        for part in self.parts.values():
            if not isinstance(part, FunctionPart):
                continue
            for topic in sorted(part.spec.own_topics - {part.spec.output, ""}):
                sides[topic] = (*sides.get(topic, ()), part.name)
        return sides

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Topic to the parts that read it, by its name or by a pattern."""
        return {topic: tuple(n for n, part in self.parts.items() if reads(part, topic)) for topic in self.topics}

    @cached_property
    def inputs(self) -> dict[str, tuple[str, ...]]:
        """Part to the topics of the mesh that it reads, by name or by pattern."""
        return {name: tuple(t for t in self.topics if name in self.readers[t]) for name in self.parts}

    @cached_property
    def after(self) -> dict[str, tuple[str, ...]]:
        """Part to the parts that read what it writes as its output."""
        after: dict[str, dict[str, None]] = {name: {} for name in self.parts}
        for topic, writers in self.writers.items():
            for writer in writers:
                after[writer] |= dict.fromkeys(self.readers[topic])
        return {name: tuple(others) for name, others in after.items()}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The parts, each behind those that it reads of, as far as there is no cycle; else in the order of the file."""
        return ordered(self.after)

    @cached_property
    def cycles(self) -> tuple[tuple[str, ...], ...]:
        """The cycles: of each set of parts that all lead to each other, a shortest one. The first name is not repeated
        at the end.
        """
        return tuple(_path(knot, self.after) for knot in knots(self.after))


def reads(part: Part | Outline, topic: str) -> bool:
    """Return if a part reads a topic of the mesh, by name or by a pattern. A pattern does not match the topics that the
    function itself writes.
    """
    if topic in part.inputs:
        return True
    if not isinstance(part, FunctionPart) or part.spec.writes(topic):
        return False
    return any(given.is_regex and re.fullmatch(pattern, topic) for pattern, given in part.spec.inputs.items())


def ordered(after: Mapping[N, Collection[N]]) -> tuple[N, ...]:
    """Return nodes so that each is behind all from which an arrow leads to it; if several are possible next, the first
    given one.

    Nodes of a cycle, and those behind one, come at the end.
    """
    waits = dict.fromkeys(after, 0)
    for others in after.values():
        for other in others:
            waits[other] += 1
    order: dict[N, None] = {}
    place = {node: number for number, node in enumerate(after)}
    ready = [node for node, count in waits.items() if not count]
    while ready:
        node = min(ready, key=place.__getitem__)
        ready.remove(node)
        order[node] = None
        for other in after[node]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return (*order, *(node for node in after if node not in order))


def reachable(starts: Iterable[N], after: Mapping[N, Collection[N]]) -> set[N]:
    """Return the nodes that arrows lead to from the starts, and the starts themselves."""
    reached = set(starts)
    left = list(reached)
    while left:
        for other in after[left.pop()]:
            if other not in reached:
                reached.add(other)
                left.append(other)
    return reached


def knots(after: Mapping[N, Sequence[N]]) -> list[list[N]]:
    """Return the sets of nodes that all lead to each other: more than one node, or one that leads to itself."""
    reach = {node: reachable(after[node], after) for node in after}
    knotted: list[list[N]] = []
    seen: set[N] = set()
    for node in after:
        if node in reach[node] and node not in seen:
            knot = [other for other in after if other in reach[node] and node in reach[other]]
            seen |= set(knot)
            knotted.append(knot)
    return knotted


def _path(knot: Sequence[N], after: Mapping[N, Sequence[N]]) -> tuple[N, ...]:
    """Return a shortest cycle through the first node of a knot, which is not repeated at the end."""
    start = knot[0]
    paths: list[tuple[N, ...]] = [(start,)]
    seen: set[N] = set()
    for path in paths:
        for other in after[path[-1]]:
            if other == start:
                return path
            if other in knot and other not in seen:
                seen.add(other)
                paths.append((*path, other))
    raise AssertionError("the nodes of a knot lead to each other")
