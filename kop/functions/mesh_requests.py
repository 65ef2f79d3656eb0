"""Requests for meshes: the first one that knows the mesh as it is wins, as with functions.

Owns: what each kind of request does to the definitions of a mesh and of its functions, which names are taken.
Must not know: what is in the file of a mesh, how a mesh runs, topics, transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kop.functions.definitions import Definition, LeaderAnswer, MeshDefinition, Request, WantedMesh
from kop.functions.request_effects import LOST, MAX_BYTES, NOT_THERE, OK, WRONG, Effects, lost, wrong
from kop.functions.topics import TopicNames


@dataclass(frozen=True)
class Known:
    """The facts by which the leader decides: definitions, meshes, packages, names of topics."""

    definitions: Mapping[str, Definition]
    meshes: Mapping[str, MeshDefinition]
    is_whole: Callable[[str], bool]
    """Tells of a digest if its package is there."""
    topic_names: TopicNames


class _RefusedError(Exception):
    """A request that is not done, with the status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def decide(offset: int, request: Request, name: str, known: Known) -> Effects:
    """Decide a request for the mesh of this full name, and return its effects, which are only the answer if it is
    refused. `offset` is that of the request; `known` is what is defined already.
    """
    there = known.meshes.get(name)
    try:
        why = lost(request, there, "mesh", name)
        if why is not None:
            raise _RefusedError(*why)
        if request.kind in {"create", "update"}:
            return _configured(offset, request, name, there, known)
        assert there is not None
        if request.kind == "delete":
            return _deleted(offset, request, there, known)
        made = _switched(offset, request, there)
    except _RefusedError as refused:
        now = None if there is None else there.revision
        answer = LeaderAnswer(
            request=request.id, status=refused.status, reason=refused.reason, revision=now, offset=offset
        )
        return Effects(answer, schedules=False)
    return Effects(_won(offset, request), meshes={name: _made(made, offset, request)}, schedules=False)


def _won(offset: int, request: Request) -> LeaderAnswer:
    return LeaderAnswer(request=request.id, status=OK, revision=offset, offset=offset)


def _made(mesh: MeshDefinition, offset: int, request: Request) -> MeshDefinition:
    return replace(mesh, revision=offset, kind=request.kind, by=request.by, at_ms=request.at_ms)


def _switched(offset: int, request: Request, there: MeshDefinition) -> MeshDefinition:
    """Return the mesh as a stop, start or restart makes it. Without a part, a stop stops the mesh, and the others start
    it with all parts; with one, the request concerns that part alone. After a restart the part, or all, begin anew.
    _RefusedError for another kind of request, if the mesh has no such part, and for the start or restart of a part if
    the mesh is stopped.
    """
    if request.kind not in {"stop", "start", "restart"}:
        raise _RefusedError(WRONG, f"there is no such request for a mesh: {request.kind}")
    names = _part_names(there)
    if request.part and request.part not in names:
        raise _RefusedError(NOT_THERE, f"{there.name} has no part {request.part}; it has {', '.join(sorted(names))}")
    if request.kind == "stop":
        if request.part:
            return replace(there, stopped=there.stopped | {request.part})
        return replace(there, is_stopped=True)
    if request.part and there.is_stopped:
        told = f"kop mesh start {there.name} starts it with all parts"
        raise _RefusedError(LOST, f"{there.name} is stopped as a whole: {told}")
    stopped = there.stopped - {request.part} if request.part else frozenset()
    restarts = {**there.restarts, request.part: offset} if request.kind == "restart" else there.restarts
    return replace(there, is_stopped=False, stopped=stopped, restarts=restarts)


def _part_names(mesh: MeshDefinition) -> set[str]:
    return {full_name.rpartition("/")[2] for full_name in mesh.parts}


def _deleted(offset: int, request: Request, there: MeshDefinition, known: Known) -> Effects:
    specs = [known.definitions[fqfn].spec for fqfn in there.functions if fqfn in known.definitions]
    kept = {made.spec.group for fqfn, made in known.definitions.items() if fqfn not in there.functions}
    cleaned = {spec.group for spec in specs if spec.cleanup_subscription} | set(there.others)
    return Effects(
        LeaderAnswer(request=request.id, status=OK, offset=offset),
        definitions=dict.fromkeys(fqfn for fqfn in there.functions if fqfn in known.definitions),
        meshes={there.name: None},
        cleaned=sorted(cleaned - kept),
        packages=_packages(there, known),
        schedules=False,
    )


def _packages(there: MeshDefinition | None, known: Known) -> list[str]:
    functions = () if there is None else there.functions
    return sorted({known.definitions[fqfn].package for fqfn in functions if fqfn in known.definitions})


def _configured(offset: int, request: Request, name: str, there: MeshDefinition | None, known: Known) -> Effects:
    wanted = request.mesh
    if wanted is None:
        raise _RefusedError(WRONG, f"the request for {name} has no mesh")
    _check_names(name, wanted, known)
    definitions: dict[str, Definition | None] = {}
    for fqfn, function in wanted.functions.items():
        made = Definition(
            fqfn=fqfn,
            config=function.config,
            revision=offset,
            version=offset,
            version_ms=request.at_ms,
            package=function.package,
            package_name=function.package_name,
            topic_names=known.topic_names,
            mesh=name,
            kind=request.kind,
            by=request.by,
            at_ms=request.at_ms,
        )
        why = wrong(made, known.is_whole)
        if why is not None:
            raise _RefusedError(*why)
        before = known.definitions.get(fqfn)
        if before is None or _content(before) != _content(made):
            definitions[fqfn] = made
    mesh = MeshDefinition(
        name=name,
        text=wanted.text,
        functions=tuple(wanted.functions),
        others=wanted.others,
        revision=offset,
        version=offset,
        is_stopped=there is not None and there.is_stopped,
        topic_names=known.topic_names,
    )
    if there is not None:
        mesh = replace(mesh, stopped=there.stopped & _part_names(mesh))
    # The groups of functions that are gone are not cleaned here: they may be called still, and would commit again. Who
    # runs the mesh deletes them once they have ended.
    gone = [] if there is None else [fqfn for fqfn in there.functions if fqfn not in wanted.functions]
    definitions |= dict.fromkeys(fqfn for fqfn in gone if fqfn in known.definitions)
    if there is not None and not definitions and (there.text, there.parts) == (mesh.text, mesh.parts):
        mesh = there
    if len(mesh.to_json()) > MAX_BYTES:
        raise _RefusedError(WRONG, f"the file of {name} takes more than {MAX_BYTES} bytes")
    return Effects(
        _won(offset, request),
        definitions=definitions,
        meshes={name: _made(mesh, offset, request)},
        packages=_packages(there, known),
        schedules=False,
    )


def _content(made: Definition) -> tuple[object, ...]:
    return dict(made.config), made.package, made.package_name, made.topic_names, made.mesh


def _check_names(name: str, wanted: WantedMesh, known: Known) -> None:
    """Check that no function of workers and no other mesh has the names of a mesh's parts: each is that of a consumer
    group, too. _RefusedError if one has.
    """
    for full_name in (*wanted.functions, *wanted.others):
        function = known.definitions.get(full_name)
        if function is not None and not function.mesh:
            raise _RefusedError(
                LOST, f"{full_name} is a function that workers run: name the part of the mesh otherwise, or delete it"
            )
        for other in known.meshes.values():
            if other.name != name and full_name in other.parts:
                raise _RefusedError(LOST, f"{full_name} is a part of the mesh {other.name}: name one of both otherwise")
