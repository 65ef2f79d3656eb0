"""The check of a whole mesh: how its parts fit together, its code, and the machine that it is to run on.

Owns: what is a mistake of the whole, with line, name and remedy.
Must not know: files, how code is imported, servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kop.functions.topics import DEFAULT_NAMESPACE
from kop.mesh.file import Draft
from kop.mesh.graph import Graph
from kop.mesh.nodes import Mistake, Mistakes, is_slip, near
from kop.mesh.plan import Facts, MeshPlan, plan
from kop.mesh.spec import FunctionPart, Mesh, Outline, Part
from kop.mesh.written_schema import difference, written_schema

CodeCheck: TypeAlias = Callable[[FunctionPart], Sequence[str]]
"""Returns what is wrong with the code of a function."""


@dataclass(frozen=True)
class Checked:
    """A mesh that was checked."""

    mesh: Mesh
    mistakes: tuple[Mistake, ...]
    """In the order of lines."""
    notes: tuple[str, ...]
    plan: MeshPlan | None
    """None if there are mistakes of the file or of the graph."""


def check(
    draft: Draft,
    facts: Facts | None = None,
    cores: int | None = None,
    code: CodeCheck | None = None,
    *,
    makes_topics: bool = False,
) -> Checked:
    """Return everything that is wrong with a mesh, and its plan if file and graph have no mistakes.

    `facts` are what a server knows: a topic that is not among its partitions, or is missing, does not exist. None: no
    server was asked. `cores` is the number of tasks that may run at once; None: unknown. Without `code` the code of
    functions is not checked. With `makes_topics` an input that does not exist is no mistake, since the mesh makes it,
    unless the file has externalWriters and does not name it there.
    """
    check_of = _Check(draft, facts, makes_topics)
    made = check_of.graph_and_plan()
    if code is not None and not draft.without_code:
        for part in draft.mesh.functions:
            for mistake in code(part):
                check_of.wrong(part, f"code: {mistake}")
    if made is not None and cores is not None:
        check_of.cores(made, cores)
    mistakes = tuple(sorted({*draft.mistakes, *check_of.mistakes}))
    return Checked(draft.mesh, mistakes, (*draft.mesh.notes, *check_of.notes), made)


class _Check:
    def __init__(self, draft: Draft, facts: Facts | None, makes_topics: bool) -> None:
        self.mistakes = Mistakes()
        self._known = facts or Facts()
        self.notes = [*self._known.notes]
        self._makes_topics = makes_topics
        self._draft = draft
        self._mesh = draft.mesh
        self._facts = facts
        parts: list[Part | Outline] = [*draft.mesh.parts, *(part for part in draft.outlines if part.name)]
        self._parts = tuple(sorted(parts, key=lambda part: part.line))
        self._graph = Graph(self._parts)

    def wrong(self, part: Part | Outline, text: str) -> None:
        """Note a mistake of a part."""
        self.mistakes.add(part.line, f"{part.kind} {part.name}: {text}")

    def graph_and_plan(self) -> MeshPlan | None:
        """Note every mistake in how the parts fit together, and return the plan of components; None if there are
        mistakes of the file or of the graph. Private topics are checked by the plan, which is returned even if they are
        wrong.
        """
        self._names()
        self._groups()
        self._forms()
        self._cycles()
        self._inputs()
        self._schemas()
        for part in self._mesh.functions:
            if part.has_state and part.is_whole and part.spec.parallelism > 1:
                told = f"parallelism {part.spec.parallelism} has no state of the whole function"
                self.wrong(part, f"stateScope: {told}: let it be partition, or parallelism 1")
        if self._draft.mistakes or self.mistakes:
            return None
        made = plan(self._mesh, self._facts)
        self._private(made)
        return made

    def _names(self) -> None:
        first: dict[str, Part | Outline] = {}
        for part in self._parts:
            if part.name in first:
                other = first[part.name]
                self.wrong(part, f"name: line {other.line} has a {other.kind} of this name: a name is once in a mesh")
            first.setdefault(part.name, part)

    def _groups(self) -> None:
        """Note a mistake for each function that reads a topic in the consumer group of another one before it: each
        would miss what the other one has done.
        """
        first: dict[tuple[str, str], str] = {}
        for name, part in self._graph.parts.items():
            for topic in self._graph.inputs[name] if isinstance(part, FunctionPart) else ():
                assert isinstance(part, FunctionPart)
                other = first.setdefault((part.spec.group, topic), name)
                if other != name and part.name != self._graph.parts[other].name:
                    told = f"{other} reads {topic} in the group {part.spec.group}, too"
                    self.wrong(part, f"subName: {told}: give each its own, for one would miss what the other has done")
                    break

    def _forms(self) -> None:
        """Note topics that are named with namespace and without: a gateway over Pulsar may take them for one, and the
        graph takes them for two.
        """
        for topic in self._graph.topics:
            short = topic.removeprefix(f"{DEFAULT_NAMESPACE}/")
            if short != topic and short in self._graph.topics:
                self.notes.append(
                    f"{short} and {topic} are taken for two topics: if they are one, write one of both names"
                )

    def _cycles(self) -> None:
        for cycle in self._graph.cycles:
            steps: list[str] = []
            for name, after in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                topic = next(topic for topic in self._graph.parts[name].outputs if after in self._graph.readers[topic])
                steps.append(f"{name} -({topic})-> ")
            told = "".join(steps) + cycle[0]
            self.wrong(self._graph.parts[cycle[0]], f"a cycle, {told}: let one of them write another topic")

    def _inputs(self) -> None:
        """Check the topics that parts read and no part writes, and that messages reach every part. A topic is a mistake
        if it is not on the server that was asked (unless the mesh makes topics), or is neither there nor among the
        externalWriters that are given. Those on the server, or that somebody else is known to write, are right; others
        are told in a note.
        """
        graph, mesh = self._graph, self._mesh
        side = graph.side_writers
        outside = [
            topic for topic in graph.topics if graph.readers[topic] and not graph.writers[topic] and topic not in side
        ]
        missing: set[str] = set()
        told: list[str] = []
        for topic in outside:
            if topic in mesh.external_writers or topic in self._known.writers:
                continue
            others = [other for other in graph.topics if graph.writers[other]]
            nearest = _near_topic(topic, [*others, *mesh.external_writers])
            exists = topic in self._known.partitions and topic not in self._known.missing
            if self._facts is not None and not self._makes_topics and not exists:
                missing.add(topic)
                why = "is not on the server, and no part writes it"
            elif not exists and mesh.external_writers:
                missing.add(topic)
                why = "is written by no part, and externalWriters does not name it"
            else:
                if self._facts is not None and exists:
                    continue
                told.append(topic + (f" ({nearest.removeprefix('; ')})" if nearest else ""))
                continue
            remedy = nearest or f"; name {topic} in externalWriters if others write it"
            for name in graph.readers[topic]:
                part = graph.parts[name]
                if topic in part.inputs:
                    self.wrong(part, f"inputs: {topic} {why}{remedy}")
        if told:
            self.notes.append(f"topics that others have to write: {', '.join(told)}")
        self._reached(missing)

    def _reached(self, missing: set[str]) -> None:
        graph = self._graph
        knotted = {name for knot in graph.cycles for name in knot}
        alive = {topic for topic in graph.topics if not graph.writers[topic] and topic not in missing}
        alive |= self._mesh.external_writers | graph.side_writers.keys() | self._known.writers.keys()
        reached: set[str] = set()
        while True:
            more = {
                name
                for name, part in graph.parts.items()
                if name not in reached and (_needs_nothing(part) or alive.intersection(graph.inputs[name]))
            }
            if not more:
                break
            reached |= more
            alive |= {topic for name in more for topic in graph.parts[name].outputs}
        for name, part in graph.parts.items():
            if name not in reached | knotted and not missing.intersection(part.inputs):
                before = sorted({writer for topic in graph.inputs[name] for writer in graph.writers[topic]})
                told = f"nothing reaches it: {', '.join(before)} before it {'get' if len(before) > 1 else 'gets'}"
                self.wrong(part, f"{told} no messages")

    def _schemas(self) -> None:
        for topic, writers in self._graph.writers.items():
            known = [
                (name, schema) for name in writers if (schema := written_schema(self._graph.parts[name], self._mesh))
            ]
            for at, (name, schema) in enumerate(known):
                for first, other in known[:at]:
                    apart = difference(schema, other)
                    if apart is not None:
                        told = f"{topic} gets {apart[0]} of it, and {apart[1]} of {first}"
                        remedy = "let both write the same, or give each a topic of its own"
                        self.wrong(self._graph.parts[name], f"output: {told}: {remedy}")
                        break

    def _private(self, made: MeshPlan) -> None:
        """Note a mistake for each function whose private output is read by nobody, or is needed as a topic."""
        for part in self._mesh.functions:
            component = made.of_function[part.name]
            topic = part.spec.output
            if not part.is_private or not self._mesh.fuse or topic in component.unwritten:
                continue
            readers = self._graph.readers[topic]
            cuts = [cut for cut in made.cuts if cut.topic == topic]
            others = [name for name in self._graph.writers[topic] if name not in component.names]
            if not readers:
                self.wrong(part, f"private: nobody reads {topic}: leave private away, or its messages would be lost")
            elif cuts:
                told = f"{cuts[0].function} needs the topic {topic}: {cuts[0].reason}"
                self.wrong(part, f"private: {told}: leave private away")
            elif away := [name for name in readers if name not in component.names]:
                reader = self._graph.parts[away[0]]
                self.wrong(
                    part, f"private: the {reader.kind} {reader.name} needs the topic {topic}: leave private away"
                )
            else:
                open_one = next(
                    name
                    for name in (*others, *self._graph.writers[topic])
                    if not getattr(self._graph.parts[name], "is_private", False)
                )
                self.wrong(part, f"private: {open_one} writes {topic}, too, and does not call it private: both or none")

    def cores(self, made: MeshPlan, cores: int) -> None:
        """Note a mistake if the trigger is continuous, so that all run at once, and there are fewer `cores` than one
        for each component and one for the sources, sinks and queries, if there are any.
        """
        if self._mesh.trigger != "continuous":
            return
        told = [component.name for component in made.components]
        told += ["sources, sinks and queries"] if self._mesh.sources or self._mesh.sinks or self._mesh.queries else []
        needed = len(told)
        if needed > cores:
            self.mistakes.add(
                self._mesh.line,
                f"trigger: {needed} cores are needed, of {cores}, one at all times for each of {', '.join(told)}: "
                f"--master local[{needed}], or trigger: batch",
            )


def _near_topic(topic: str, topics: Sequence[str]) -> str:
    """Return the remedy that names the topic of the same namespace which is nearest by its name there; empty if none
    is so near that it may be a slip. Namespaces are left out because they would make all names alike.
    """
    namespace, slash, name = topic.rpartition("/")
    beside = [other.rpartition("/")[2] for other in topics if other.rpartition("/")[0] == namespace]
    return near(name, [other for other in beside if is_slip(name, other)]).replace(
        "; is it ", f"; is it {namespace}{slash}", 1
    )


def _needs_nothing(part: Part | Outline) -> bool:
    """Return if a part may get messages without a topic that its file names: a source, a function with a pattern, or a
    part of which no input could be read.
    """
    if isinstance(part, FunctionPart):
        return any(given.is_regex for given in part.spec.inputs.values())
    return not part.inputs
