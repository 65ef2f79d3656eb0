"""The components of a mesh: the functions that run together, and the reason for each cut between them.

Owns: what may be fused so that results are those of functions that run by themselves.
Must not know: Spark, servers, transactions.

An edge is a topic and a function that reads it. A fused edge is a call: the writers of the topic and its reader are in
one component. Along a cut edge the reader reads the real topic. Every function is in one component; components are cut
so that they follow each other: none reads what comes of its own outputs by way of others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from kop.functions.spec import Guarantee
from kop.mesh.graph import Graph, ordered, reachable
from kop.mesh.spec import FunctionPart, Mesh

Edge: TypeAlias = tuple[str, str]
"""A topic and the name of a function that reads it."""


@dataclass(frozen=True)
class Facts:
    """The known facts about the topics of a server; nothing has to be known."""

    partitions: Mapping[str, int] = field(default_factory=dict)
    """Topic to the number of its partitions."""
    writers: Mapping[str, str] = field(default_factory=dict)
    """Topic to somebody outside of the mesh who writes it."""
    missing: frozenset[str] = frozenset()
    """The topics that do not exist yet, and are made when the mesh starts; their partitions are what they will have."""
    notes: tuple[str, ...] = ()
    """What is not known of the server, for the author of the mesh."""


@dataclass(frozen=True)
class Cut:
    """An edge within the mesh that is not fused."""

    topic: str
    function: str
    """The one that reads the topic."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Component:
    """Functions that are called in one process, one behind the other."""

    name: str
    """The name of the first function."""
    functions: tuple[FunctionPart, ...]
    """Each behind those that it reads of."""
    inputs: tuple[str, ...]
    """The topics that are read. Those that patterns of a function match beside them are not named."""
    calls: Mapping[str, tuple[str, ...]]
    """Topic to the functions that are called with its messages: read ones, and those written within."""
    written: tuple[str, ...]
    """Outputs that are written."""
    unwritten: tuple[str, ...] = ()
    """Private outputs: only called with."""
    guarantee: Guarantee
    is_whole: bool
    """True if one task has to have all partitions: state or windows of a function as a whole are in it."""
    cuts: tuple[Cut, ...] = ()
    """The cut edges to functions of the component, each with the reason."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its functions."""
        return tuple(part.name for part in self.functions)


@dataclass(frozen=True)
class MeshPlan:
    """A mesh in components, each behind those that it reads of."""

    components: tuple[Component, ...]

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """All cuts."""
        return tuple(cut for component in self.components for cut in component.cuts)

    @cached_property
    def of_function(self) -> dict[str, Component]:
        """Function to its component."""
        return {name: component for component in self.components for name in component.names}


def plan(mesh: Mesh, facts: Facts | None = None, alone: Collection[str] = ()) -> MeshPlan:
    """Return the components of a mesh without cycles whose parts have different names. `facts` has what is known of the
    server's topics; None: nothing.

    `alone` are the names of functions that have to be components of their own because they have ended the process that
    they ran in.
    """
    return _Planner(mesh, facts or Facts(), alone).plan()


class _Planner:
    def __init__(self, mesh: Mesh, facts: Facts, alone: Collection[str]) -> None:
        self._mesh = mesh
        self._facts = facts
        self._alone = alone
        self._graph = Graph(mesh.parts)
        self._functions = {part.name: part for part in mesh.functions}
        self._order = [name for name in self._graph.order if name in self._functions]
        self._edges: list[Edge] = [
            (topic, name)
            for name in self._order
            for topic in self._graph.inputs[name]
            if any(writer in self._functions for writer in self._graph.writers[topic])
        ]
        """The edges behind functions of the mesh."""

    def plan(self) -> MeshPlan:
        cut = {edge: reason for edge in self._edges if (reason := self._always(edge))}
        self._hold_order(cut, cut)
        while True:
            joined, circles = self._join(cut)
            all_cut = cut | circles
            if not self._hold_order(cut, all_cut) and not self._keep_whole(joined, cut, all_cut):
                return self._planned(joined, all_cut)

    # -- edges

    def _always(self, edge: Edge) -> str:
        """Return why an edge has to be cut (written to a topic, not called through) independently of other edges; empty
        if it has not.
        """
        topic, name = edge
        reader, graph = self._functions[name], self._graph
        if not self._mesh.fuse:
            return "fuse is false"
        for end in (reader, *(self._functions[n] for n in graph.writers[topic] if n in self._functions)):
            if end.spec.window is not None:
                return f"{end.name} has windows, and runs by itself"
            if end.name in self._alone:
                return f"{end.name} has ended its process at a message, and runs by itself"
        if topic not in reader.inputs:
            return f"{name} reads it by a pattern"
        if topic in self._mesh.external_writers:
            return "others write it, too: externalWriters"
        if topic in self._facts.writers:
            return f"{self._facts.writers[topic]} writes it, too"
        for writer in graph.writers[topic]:
            part = self._functions.get(writer)
            if part is None:
                return f"the {graph.parts[writer].kind} {writer} writes it, too"
            if part.spec.processing_guarantees is not reader.spec.processing_guarantees:
                theirs, own = part.spec.processing_guarantees.value, reader.spec.processing_guarantees.value
                return f"{name} is {own} and {writer} is {theirs}"
        if reader.spec.processing_guarantees is Guarantee.MANUAL:
            return f"{name} is MANUAL, and runs by itself"
        for writer in graph.side_writers.get(topic, ()):
            return f"{writer} writes messages aside to it"
        return ""

    def _hold_order(self, cut: dict[Edge, str], all_cut: Mapping[Edge, str]) -> bool:
        """Cut the edges to functions that would get the messages of one key, or of one state, in several tasks.
        `all_cut` has every edge that is not fused. Return True if any was cut; those are put into `cut` with their
        reasons.
        """
        roots: dict[str, frozenset[str]] = {}
        keyed: dict[str, str] = {}
        """Function to the one before it that does not keep keys; empty if all do."""
        fusible = set(self._edges) - all_cut.keys()
        changed = False
        for name in self._order:
            fused = [topic for topic in self._graph.inputs[name] if (topic, name) in fusible]
            real = [topic for topic in self._graph.inputs[name] if topic not in fused]
            writers = [writer for topic in fused for writer in self._graph.writers[topic]]
            roots[name] = frozenset(real).union(*(roots[writer] for writer in writers))
            loses = [writer if not self._functions[writer].keeps_key else keyed[writer] for writer in writers]
            keyed[name] = next(filter(None, loses), "")
            reason = self._breaks(self._functions[name], fused, roots[name], keyed[name]) if fused else ""
            if reason:
                changed = True
                cut |= dict.fromkeys(((topic, name) for topic in fused), reason)
                roots[name] = frozenset(self._graph.inputs[name])
                keyed[name] = ""
            if (reason or not fused) and self._is_alone(self._functions[name]):
                behind = {edge for edge in fusible if name in self._graph.writers[edge[0]]}
                changed = changed or bool(behind)
                fusible -= behind
                cut |= dict.fromkeys(behind, f"{name} has state of the whole function, and runs by itself")
        return changed

    def _keep_whole(
        self, joined: Mapping[str, frozenset[str]], cut: dict[Edge, str], all_cut: Mapping[Edge, str]
    ) -> bool:
        """Cut all edges of functions whose state is that of the whole function if their component would read more than
        one partition; a topic whose partitions are not known counts as several. `joined` has the component of each
        function. Return True if any was cut; those are put into `cut` with their reasons.
        """
        before = len(cut)
        fused = set(self._edges) - all_cut.keys()
        for name in self._order:
            if not self._functions[name].is_whole or len(joined[name]) == 1:
                continue
            real = {
                topic for other in joined[name] for topic in self._graph.inputs[other] if (topic, other) not in fused
            }
            if sum(self._facts.partitions.get(topic, 2) for topic in real) != 1:
                around = {edge for edge in fused if name == edge[1] or name in self._graph.writers[edge[0]]}
                cut |= dict.fromkeys(around, f"{name} has state of the whole function, and runs by itself")
        return len(cut) > before

    def _is_alone(self, part: FunctionPart) -> bool:
        """Return if one task has to read all partitions of a function's inputs, and there may be several."""
        count = self._facts.partitions.get(part.inputs[0]) if len(part.spec.inputs) == 1 and part.inputs else None
        return part.is_whole and count != 1

    def _breaks(self, part: FunctionPart, fused: list[str], roots: frozenset[str], loses: str) -> str:
        """Return why a function cannot be called directly by those before it; empty if it can. `fused` are its inputs
        that would not be read, `roots` the topics that would be read instead, `loses` the function before it that does
        not keep keys, or empty.
        """
        why = part.holds_order
        if not why:
            return ""
        told = f"{part.name} has {why}"
        if len(roots) != 1:
            return f"{told}, and its messages come of several topics ({', '.join(sorted(roots))})"
        (root,) = roots
        count = self._facts.partitions.get(root)
        if part.is_whole:
            return "" if count == 1 else f"{told} of the whole function, and {root} may have several partitions"
        if why != "key order":
            for topic in fused:
                own = self._facts.partitions.get(topic)
                if own is not None and count is not None and own != count:
                    return f"{told} of each partition; {topic} has {own} and {root} {count}"
        if loses and count != 1:
            return f"{told}, and {loses} has no keepsKey: true"
        return ""

    # -- components

    def _join(self, cut: Mapping[Edge, str]) -> tuple[dict[str, frozenset[str]], dict[Edge, str]]:
        """Return, by part, the parts that are in one component with it, if edges in `cut` are not fused; and further
        edges that had to be cut, each with the reason, so that no component reads what comes of its own outputs by
        others.
        """
        joined = {name: frozenset([name]) for name in self._graph.parts}
        circles: dict[Edge, str] = {}
        apart = {(writer, name) for topic, name in cut for writer in self._graph.writers[topic]}
        for topic, name in self._edges:
            if (topic, name) in cut:
                continue
            writers = self._graph.writers[topic]
            together = joined[name].union(*(joined[writer] for writer in writers))
            reason = self._closes(together, joined, apart)
            if reason:
                circles[topic, name] = reason
                apart |= {(writer, name) for writer in writers}
            else:
                joined |= dict.fromkeys(together, together)
        return joined, circles

    def _closes(
        self, together: frozenset[str], joined: Mapping[str, frozenset[str]], apart: set[tuple[str, str]]
    ) -> str:
        """Return why the parts in `together` cannot be one component; empty if they can. `joined` has the component of
        each part so far, `apart` the writer and the reader of each edge that is cut.
        """
        for writer, reader in sorted(apart):
            if writer in together and reader in together:
                return f"{reader} is cut from {writer}, and would come together with it"
        after = {
            group: tuple(joined[other] for name in group for other in self._graph.after[name])
            for group in set(joined.values())
        }
        inside = {joined[name] for name in together}
        outside = {other for group in inside for other in after[group] if other not in inside}
        back = reachable(outside, after) & inside
        if not back:
            return ""
        on_the_way = sorted(
            name
            for group in reachable(outside, after) - inside
            if reachable(after[group], after) & inside
            for name in group
        )
        return f"what they write comes back by way of {', '.join(on_the_way)}, which is another component"

    def _planned(self, joined: Mapping[str, frozenset[str]], cut: Mapping[Edge, str]) -> MeshPlan:
        after = {
            group: {joined[other] for name in group for other in self._graph.after[name]} - {group}
            for group in dict.fromkeys(joined[name] for name in self._graph.order)
        }
        return MeshPlan(
            tuple(self._component(group, cut) for group in ordered(after) if not group.isdisjoint(self._functions))
        )

    def _component(self, group: frozenset[str], cut: Mapping[Edge, str]) -> Component:
        functions = tuple(self._functions[name] for name in self._order if name in group)
        fused = {edge for edge in self._edges if edge[1] in group and edge not in cut}
        calls: dict[str, tuple[str, ...]] = {}
        inputs: dict[str, None] = {}
        cuts: list[Cut] = []
        for part in functions:
            for topic in self._graph.inputs[part.name]:
                calls[topic] = (*calls.get(topic, ()), part.name)
                if (topic, part.name) not in fused:
                    inputs[topic] = None
                if (topic, part.name) in cut:
                    cuts.append(Cut(topic, part.name, cut[topic, part.name]))
        outputs = tuple(dict.fromkeys(topic for part in functions for topic in part.outputs))
        unwritten = tuple(topic for topic in outputs if self._is_unwritten(topic, fused))
        is_whole = any(part.is_whole for part in functions)
        return Component(
            name=functions[0].name,
            functions=functions,
            inputs=tuple(inputs),
            calls=calls,
            written=tuple(topic for topic in outputs if topic not in unwritten),
            unwritten=unwritten,
            guarantee=functions[0].spec.processing_guarantees,
            is_whole=is_whole,
            cuts=tuple(cuts),
        )

    def _is_unwritten(self, topic: str, fused: set[Edge]) -> bool:
        """Return if a topic needs no records: all functions that write it call it private, it has readers, and all of
        these are called directly, by edges in `fused`.
        """
        readers = self._graph.readers[topic]
        writers = [self._functions[name] for name in self._graph.writers[topic] if name in self._functions]
        return (
            bool(readers)
            and all((topic, name) in fused for name in readers)
            and all(part.is_private for part in writers)
        )
