"""The components of a mesh, with all that their tasks need: what each reads, which functions it calls in which order.

Owns: what travels to tasks, made of the parts of a mesh. Must not know: Spark, sockets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from kop.functions.packages import Package, read_package
from kop.functions.spec import FunctionSpec
from kop.mesh.spec import FunctionPart, Mesh
from kop.spark.mesh.component import Component, Step


def components_of(mesh: Mesh, partitions: Mapping[str, int], alone: Collection[str] = ()) -> list[Component]:
    """Return the components of a mesh, those that feed others first. `partitions` has the topics that are there.

    `alone`: names of functions that get a component of their own.
    """
    parts = in_order(mesh.functions)
    writers: dict[str, list[FunctionPart]] = {}
    for part in parts:
        for topic in part.outputs:
            writers.setdefault(topic, []).append(part)
    outside = set(mesh.external_writers)
    outside |= {topic for other in (*mesh.sources, *mesh.queries) for topic in other.outputs}
    of: dict[str, str] = {part.name: part.name for part in parts}

    def joins(writer: FunctionPart, reader: FunctionPart) -> bool:
        topic = writer.spec.output
        if topic in outside or any(not _like(reader, other, alone) for other in writers[topic]):
            return False
        return mesh.fuse and not any(given.is_regex for given in reader.spec.inputs.values())

    for reader in parts:
        own = [topic for topic in reader.inputs if topic in writers]
        if own and set(own) == set(reader.inputs) and all(joins(w, reader) for topic in own for w in writers[topic]):
            for writer in (w for topic in own for w in writers[topic]):
                old, new = of[reader.name], of[writer.name]
                of = {name: new if component == old else component for name, component in of.items()}
    packages: dict[str, Package] = {}
    made = []
    for name in dict.fromkeys(of.values()):
        members = [part for part in parts if of[part.name] == name]
        made.append(_component(mesh, members, partitions, packages))
    return made


def _like(reader: FunctionPart, writer: FunctionPart, alone: Collection[str]) -> bool:
    """Return if two functions may be called one after the other."""
    return (
        reader.spec.processing_guarantees is writer.spec.processing_guarantees
        and not reader.holds_order
        and not writer.spec.window
        and reader.name not in alone
        and writer.name not in alone
    )


def in_order(parts: Collection[FunctionPart]) -> list[FunctionPart]:
    """Return functions so that each comes behind those whose outputs it reads."""
    left, ordered = list(parts), list[FunctionPart]()
    while left:
        written = {topic for part in left for topic in part.outputs}
        ready = [part for part in left if not written.intersection(part.inputs)] or left
        ordered += ready
        left = [part for part in left if part not in ready]
    return ordered


def _component(
    mesh: Mesh, members: Collection[FunctionPart], partitions: Mapping[str, int], packages: dict[str, Package]
) -> Component:
    inner = {topic for part in members for topic in part.outputs} & {t for part in members for t in part.inputs}
    steps = []
    for part in members:
        if part.spec.py not in packages:
            packages[part.spec.py] = read_package(part.spec.py)
        spec = part.spec
        inputs = tuple(topic for topic in topics_of(spec, partitions) if topic not in inner)
        steps.append(
            Step(spec, packages[spec.py], inputs, tuple(t for t in part.inputs if t in inner), _no_state(part))
        )
    topics = tuple(dict.fromkeys(topic for step in steps for topic in step.inputs))
    count = sum(partitions.get(topic, 1) for topic in topics)
    (first, *_) = members
    is_whole = len(steps) == 1 and (first.spec.window is not None or (first.is_whole and count > 1))
    return Component(
        f"{mesh.full_name}/{first.name}",
        tuple(steps),
        first.spec.processing_guarantees,
        topics,
        frozenset(inner),
        frozenset(part.spec.output for part in members if part.is_private and part.spec.output in inner),
        is_whole,
    )


def topics_of(spec: FunctionSpec, partitions: Collection[str]) -> list[str]:
    """Return the topics that a function reads, of those that are there."""
    topics = [name for name, given in spec.inputs.items() if not given.is_regex]
    for name, given in spec.inputs.items():
        if given.is_regex:
            own = [topic for topic in sorted(partitions) if re.fullmatch(name, topic)]
            topics += [topic for topic in own if topic not in spec.own_topics and not topic.startswith("__")]
    return list(dict.fromkeys(topics))


def _no_state(part: FunctionPart) -> str | None:
    if part.has_state:
        return None
    return f"set stateScope of {part.spec.fqfn}: a function of a mesh has state only if its definition says of what"
