"""Decisions on requests: the first one that knows the definition as it is wins, the others are told who won.

Owns: what each kind of request does to definitions, which request was answered how, which workers are drained.
Must not know: topics, transactions, threads, where partitions and packages come from.

The leader's decisions are void unless the transaction with them is committed: then, and only then, it may decide
further; else it is forgotten as a whole, and another one is made from what the topics have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kop.client.offsets import TopicPartition
from kop.functions import mesh_requests
from kop.functions.definitions import (
    Definition,
    InstanceName,
    LeaderAnswer,
    MeshDefinition,
    Request,
    mesh_of,
    spec_of,
    updated,
)
from kop.functions.request_effects import DEFECT, LOST, NOT_THERE, OK, WRONG, Effects, lost, wrong
from kop.functions.scheduler import Wish
from kop.functions.spec import FunctionSpec, SpecError
from kop.functions.topics import HOME, TopicNames

KNOWN_REQUESTS: Final = 1_000
"""The number of the last requests that get their first answer again if they are sent again."""


class Leader:
    """The decisions of the leader. `answers` are the last ones that there are, in their order."""

    def __init__(
        self,
        definitions: Mapping[str, Definition],
        answers: Iterable[LeaderAnswer] = (),
        drained: Collection[str] = (),
        topic_names: TopicNames = HOME,
        meshes: Mapping[str, MeshDefinition] | None = None,
    ) -> None:
        self.definitions = dict(definitions)
        self.meshes = dict(meshes or {})
        self.drained = set(drained)
        self._topic_names = topic_names
        self._answers: dict[str, LeaderAnswer] = {}
        for answer in answers:
            self._note(answer)

    # -- requests

    def take(
        self,
        offset: int,
        request: Request,
        *,
        is_whole: Callable[[str], bool],
        workers: Collection[str],
        refused: tuple[int, str] | None = None,
    ) -> Effects:
        """Decide a request, note what it changes, and return its effects. A request that was decided before gets the
        same answer, and changes nothing. `offset` is that of the request, `workers` are those that live, and `is_whole`
        tells of a package's digest if all of it is there.

        `refused` is the status and the reason of a refusal by somebody else, such as a server.
        """
        before = self._answers.get(request.id)
        if before is not None:
            return Effects(before, schedules=False)
        try:
            effects = self._decide(offset, request, is_whole, workers, refused)
        except Exception as error:  # the requests behind it are not to wait for ever
            reason = f"nothing was changed, by a defect of the leader: {error!r}"
            effects = Effects(LeaderAnswer(request=request.id, status=DEFECT, reason=reason, offset=offset))
        for fqfn, definition in effects.definitions.items():
            if definition is None:
                del self.definitions[fqfn]
            else:
                self.definitions[fqfn] = definition
        for name, mesh in effects.meshes.items():
            if mesh is None:
                del self.meshes[name]
            else:
                self.meshes[name] = mesh
        for worker, drained in effects.drained.items():
            (self.drained.add if drained else self.drained.discard)(worker)
        self._note(effects.answer)
        return effects

    def _note(self, answer: LeaderAnswer) -> None:
        self._answers.setdefault(answer.request, answer)
        if len(self._answers) > KNOWN_REQUESTS:
            del self._answers[next(iter(self._answers))]

    def _decide(
        self,
        offset: int,
        request: Request,
        is_whole: Callable[[str], bool],
        workers: Collection[str],
        refusal: tuple[int, str] | None,
    ) -> Effects:
        def refused(status: int, reason: str) -> Effects:
            now = None if there is None else there.revision
            return Effects(LeaderAnswer(request=request.id, status=status, reason=reason, revision=now, offset=offset))

        there = self.definitions.get(request.fqfn)
        if request.kind in {"rebalance", "drain", "undrain"}:
            worker = request.worker
            if request.kind != "rebalance" and worker not in workers:
                return refused(NOT_THERE, f"there is no worker {worker}")
            if request.kind == "drain" and not set(self.workers(workers)) - {worker}:
                return refused(
                    LOST, f"no other worker is left to take the instances of {worker}: start one, or undrain one, first"
                )
            drained = {} if request.kind == "rebalance" else {worker: request.kind == "drain"}
            return Effects(LeaderAnswer(request=request.id, status=OK, offset=offset), drained=drained)
        mesh = mesh_of(request.fqfn)
        if mesh is not None:
            known = mesh_requests.Known(self.definitions, self.meshes, is_whole, self._topic_names)
            return mesh_requests.decide(offset, request, mesh, known)
        owner = next((mesh.name for mesh in self.meshes.values() if request.fqfn in mesh.parts), None)
        if owner is not None:
            return refused(LOST, f"{request.fqfn} is a part of the mesh {owner}: change that, by kop mesh")
        why = lost(request, there, "function", request.fqfn) or refusal
        if why is not None:
            return refused(*why)
        if request.kind == "delete":
            assert there is not None
            return self._deleted(offset, request, there)
        if request.kind in {"create", "update"}:
            try:
                made = _configured(offset, request, there, self._topic_names)
            except SpecError as error:
                return refused(WRONG, str(error))
            why = wrong(made, is_whole)
            if why is not None:
                return refused(*why)
            return self._changed(offset, request, there, made, {request.fqfn: _read_before(there, made.spec)})
        assert there is not None
        every = range(there.spec.parallelism)
        if request.instance is not None and request.instance not in every:
            return refused(NOT_THERE, f"{request.fqfn} has no instance {request.instance}, but {len(every)} from 0 on")
        chosen = set(every if request.instance is None else [request.instance])
        stopped, restarts = set(there.stopped), dict(there.restarts)
        if request.kind == "stop":
            stopped |= chosen
        else:
            stopped -= chosen
        if request.kind == "restart":
            restarts |= dict.fromkeys(chosen, offset)
        return self._changed(offset, request, there, replace(there, stopped=frozenset(stopped), restarts=restarts), {})

    def _changed(
        self,
        offset: int,
        request: Request,
        there: Definition | None,
        made: Definition,
        begins: Mapping[str, FunctionSpec | None],
    ) -> Effects:
        made = replace(made, revision=offset, kind=request.kind, by=request.by, at_ms=request.at_ms)
        return Effects(
            LeaderAnswer(request=request.id, status=OK, revision=offset, offset=offset),
            definitions={request.fqfn: made},
            begins=begins,
            packages=self._unnamed(there, made.package),
        )

    def _deleted(self, offset: int, request: Request, there: Definition) -> Effects:
        spec = there.spec
        others = {d.spec.group for fqfn, d in self.definitions.items() if fqfn != request.fqfn}
        return Effects(
            LeaderAnswer(request=request.id, status=OK, offset=offset),
            definitions={request.fqfn: None},
            cleaned=[spec.group] if spec.cleanup_subscription and spec.group not in others else [],
            packages=self._unnamed(there, ""),
        )

    def _unnamed(self, there: Definition | None, now: str) -> list[str]:
        """Return the digest of the package that a definition had, in a list, if no definition names it any more; else
        an empty one. `now` is the digest that the new definition has.
        """
        if there is None or there.package == now:
            return []
        others = (d.package for fqfn, d in self.definitions.items() if fqfn != there.fqfn)
        return [] if there.package in others else [there.package]

    # -- workers

    def workers(self, alive: Collection[str]) -> list[str]:
        """Return the workers among those alive that are not drained, that is, that may have instances."""
        return sorted(set(alive) - self.drained)

    def gone(self, alive: Collection[str]) -> set[str]:
        """Return the drained workers that are not alive any more, and forget that they were drained."""
        gone = self.drained - set(alive)
        self.drained -= gone
        return gone

    def wishes(self, partitions: Mapping[str, Collection[TopicPartition]]) -> dict[str, Wish]:
        """Return the needs of each function that workers run: its instances that are not stopped, with the revision
        that each runs, and the partitions to share among them.
        """
        return {
            fqfn: Wish(
                {n: definition.runs(n) for n in range(definition.spec.parallelism) if n not in definition.stopped},
                tuple(sorted(partitions.get(fqfn, ()))),
            )
            for fqfn, definition in self.deployed.items()
        }

    @property
    def deployed(self) -> dict[str, Definition]:
        """The functions that workers run; those of meshes run elsewhere."""
        return {fqfn: definition for fqfn, definition in self.definitions.items() if not definition.mesh}


def losers(current: Mapping[InstanceName, Any], then: Mapping[InstanceName, Any]) -> list[InstanceName]:
    """Return the instances that lose partitions in a new assignment. They have to be fenced before another one has
    those.
    """
    return sorted(
        name
        for name, assignment in current.items()
        if set(assignment.partitions) - set(then[name].partitions if name in then else ())
    )


def _configured(offset: int, request: Request, there: Definition | None, topic_names: TopicNames) -> Definition:
    """Return the definition that a create or an update makes, or `there` if an update changes nothing; an update
    changes only the fields that it gives. SpecError if an update makes it wrong; a create is not checked here.
    """
    given = request.config or {}
    if there is None:
        return Definition(
            fqfn=request.fqfn,
            config=updated({}, given),
            revision=offset,
            version=offset,
            version_ms=request.at_ms,
            package=request.package,
            package_name=request.package_name,
            topic_names=topic_names,
        )
    config = updated(there.config, given)
    package, name = request.package or there.package, request.package_name or there.package_name
    if (config, package) == (dict(there.config), there.package):
        return there
    every = range(spec_of(config, topic_names).parallelism)
    return replace(
        there,
        config=config,
        version=offset,
        version_ms=request.at_ms,
        package=package,
        package_name=name,
        stopped=frozenset(there.stopped.intersection(every)),
        restarts={},
        topic_names=topic_names,
    )


def _read_before(there: Definition | None, now: FunctionSpec) -> FunctionSpec | None:
    """Return the function as it was, if the new one has the same group, and so goes on from its offsets; else None."""
    return there.spec if there is not None and there.spec.group == now.group else None
