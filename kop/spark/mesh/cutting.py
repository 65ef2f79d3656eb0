"""The components of a mesh with all that their tasks need, made of its plan.

Owns: what travels to tasks: code, which topics each function reads from the server and which it is called with.
Must not know: where a mesh is cut (`kop.mesh.plan`), Spark, sockets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from kop.client.errors import ClientError
from kop.functions.packages import Package
from kop.functions.spec import FunctionSpec, Guarantee
from kop.mesh import plan as planned
from kop.mesh.spec import FunctionPart, Mesh
from kop.spark.mesh.component import Step, TaskComponent
from kop.spark.mesh.followed_mesh import DefinedMesh


def components_of(
    defined: DefinedMesh,
    partitions: Mapping[str, int],
    alone: Collection[str] = (),
    writers: Mapping[str, str] | None = None,
) -> list[TaskComponent]:
    """Return the components of a mesh, each behind those whose output it reads. `partitions` has the number of
    partitions of each topic that exists, `writers` who else writes a topic, in words.

    `alone`: names, within the mesh, of functions that get components of their own. ClientError if a function needs
    something that components do not have.
    """
    mesh = defined.mesh
    cut = planned.plan(mesh, planned.Facts(partitions, writers or {}), alone=frozenset(alone))
    return [_component(mesh, part, partitions, defined.packages) for part in cut.components]


def _component(
    mesh: Mesh, cut: planned.Component, partitions: Mapping[str, int], packages: Mapping[str, Package]
) -> TaskComponent:
    inner = {topic for topic in cut.calls if topic not in cut.inputs}
    steps = []
    for part in cut.functions:
        spec = part.spec
        inputs = tuple(topic for topic in topics_of(spec, partitions) if topic not in inner)
        inner_inputs = tuple(topic for topic in part.inputs if topic in inner)
        steps.append(Step(spec, packages[spec.fqfn], inputs, inner_inputs, _no_state(part)))
    topics = tuple(dict.fromkeys(topic for step in steps for topic in step.inputs))
    count = sum(partitions.get(topic, 1) for topic in topics)
    alone = [part for part in cut.functions if part.spec.window or (part.is_whole and count > 1)]
    if alone and len(steps) > 1:
        raise ClientError(
            f"let fuse of {mesh.full_name} be false: {alone[0].name} has windows or state of all partitions, and runs "
            f"alone, not together with {', '.join(part.name for part in cut.functions if part is not alone[0])}"
        )
    return TaskComponent(
        f"{mesh.full_name}/{cut.name}",
        tuple(steps),
        cut.guarantee,
        topics,
        frozenset(inner),
        frozenset(cut.unwritten),
        bool(alone) or cut.guarantee is Guarantee.MANUAL,
    )


def topics_of(spec: FunctionSpec, there: Collection[str]) -> list[str]:
    """Return the topics that a function reads: those that it names, and those in `there` that a pattern of its matches
    as a whole. A pattern leaves out the function's own topics and those that begin with `__`.
    """
    topics = [name for name, given in spec.inputs.items() if not given.is_regex]
    for pattern in [name for name, given in spec.inputs.items() if given.is_regex]:
        matching = [topic for topic in sorted(there) if re.fullmatch(pattern, topic)]
        topics += [topic for topic in matching if not spec.writes(topic) and not topic.startswith("__")]
    return list(dict.fromkeys(topics))


def _no_state(part: FunctionPart) -> str | None:
    """Return the reason that a function may have no state, in words; None if it may have some."""
    if part.has_state:
        return None
    return f"set stateScope of {part.spec.fqfn}: a function of a mesh has state only if its definition says of what"
