"""What a worker tells those who ask it: REST, and its own parts.

Owns: where each answer comes from, and what it is before the worker has started; if this worker is one of all, and why
not.
Must not know: HTTP, in which order the parts begin and end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from kop.client.errors import ClientError
from kop.functions.assigned_instances import AssignedInstances
from kop.functions.definitions import Assignment, Definition, InstanceName, WorkerInfo, out_of_reach
from kop.functions.instance_questions import InstanceQuestions
from kop.functions.leader_requests import ANSWER_SECONDS, LeaderRequests
from kop.functions.metadata import FunctionsMetadata
from kop.functions.packages import Package
from kop.functions.registry import Registry
from kop.functions.triggers import ABSENT
from kop.functions.waiting import until
from kop.functions.worker_options import WorkerOptions

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Parts:
    """The parts that a worker has once it knows the content of the topics."""

    registry: Registry
    requests: LeaderRequests
    questions: InstanceQuestions

    @property
    def metadata(self) -> FunctionsMetadata:
        """The content of the topics."""
        return self.registry.metadata


class Service:
    """The services of a worker for those who ask it. `fqfn` is TENANT/NAMESPACE/NAME."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._me = options.announced(options.port)
        self._instances: AssignedInstances | None = None
        self._parts: Parts | None = None
        self._follower: asyncio.Task[None] | None = None
        """Set once the worker has started."""

    # -- requests and questions

    def _begun(self) -> Parts:
        if self._parts is None or self._follower is None:  # until then its clients are the start's alone
            raise ClientError("wait until the worker has started")
        return self._parts

    @property
    def requests(self) -> LeaderRequests:
        """The requests to the leader. ClientError if the worker has not started."""
        return self._begun().requests

    @property
    def questions(self) -> InstanceQuestions:
        """The questions to instances. ClientError if the worker has not started."""
        return self._begun().questions

    async def local_ask(self, fqfn: str, instance: int, question: Json) -> Json:
        """Ask an instance of this worker, and return its answer, or a field `error`. If its assignment has just
        changed, the question waits up to 2 s until it runs so.
        """
        if self._parts is None:
            return {"error": "the worker has not started yet", "status": ABSENT}
        return await self._parts.questions.ask_here(fqfn, instance, question)

    def local(self) -> dict[InstanceName, Json]:
        """Return the InstanceStatus, as JSON, of the instances of this worker. It may block for a second."""
        return {} if self._instances is None else self._instances.status()

    async def history(self, fqfn: str, limit: int) -> list[Json]:
        """Return the last `limit` requests for a function as JSON, each with its answer, if there is one yet; the
        oldest of them first.
        """
        return [
            {
                "at_ms": request.at_ms,
                "by": request.by,
                "kind": request.kind,
                "expects": request.expects,
                "instance": request.instance,
                "revision": answer.revision if answer is not None and answer.won else None,
                "status": None if answer is None else answer.status,
                "reason": "" if answer is None else answer.reason,
            }
            for request, answer in await asyncio.to_thread(self._begun().registry.history, fqfn, limit)
        ]

    # -- what there is

    @property
    def cluster(self) -> str:
        """The name of the cluster, for metrics."""
        return self._options.cluster

    @property
    def worker_id(self) -> str:
        """The name of this worker."""
        return self._options.worker_id

    @property
    def address(self) -> str:
        """The address at which the worker is asked, HOST:PORT."""
        return self._me.address

    def definition(self, fqfn: str) -> Definition | None:
        """Return the definition of a function; None if there is none."""
        return None if self._parts is None else self._parts.metadata.definitions.get(fqfn)

    def functions(self) -> list[Definition]:
        """Return all definitions, by their full names in order; none before the worker has started."""
        definitions = {} if self._parts is None else dict(self._parts.metadata.definitions)
        return [definition for _, definition in sorted(definitions.items())]

    def names(self, tenant: str, namespace: str) -> list[str]:
        """Return the names of the functions of a namespace."""
        start = f"{tenant}/{namespace}/"
        return [d.fqfn.removeprefix(start) for d in self.functions() if d.fqfn.startswith(start)]

    def assignments(self) -> Mapping[InstanceName, Assignment]:
        """Return the worker and the partitions of each instance that has some."""
        return {} if self._parts is None else dict(self._parts.metadata.assignments)

    def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers that live and run instances."""
        return () if self._parts is None else self._parts.registry.workers()

    def drained(self) -> Set[str]:
        """Return the ids of the workers that are given no instances."""
        return frozenset() if self._parts is None else frozenset(self._parts.metadata.drained)

    def leader(self) -> WorkerInfo | None:
        """Return who leads, a worker or the driver of a mesh; None if nobody does."""
        members = () if self._parts is None else self._parts.registry.members()
        return next((member for member in members if member.is_leader), None)

    def not_ready(self) -> str | None:
        """Return why the worker cannot do its work at the moment, or why no function runs; None if it can."""
        if self._parts is None or self._follower is None:
            return "it has not started yet"
        if (trouble := self._parts.registry.trouble()) is not None:
            return trouble
        if (wrong := self._out_of_place(self._parts.registry)) is not None:
            return wrong
        if self.worker_id not in {worker.worker_id for worker in self.workers()}:
            return "it has not joined the other workers yet"
        if self.leader() is None:
            return "no worker leads at the moment"
        if self.drained() >= {worker.worker_id for worker in self.workers()}:
            return "every worker is drained, and no function runs: kop functions workers --undrain WORKER"
        return None

    async def package(self, fqfn: str) -> Package | None:
        """Return the package of a function; None if there is no such function, or parts of its package are missing."""
        there = self.definition(fqfn)
        if there is None:
            return None
        return await asyncio.to_thread(self._begun().registry.packages.package, there.package, there.package_name)

    async def upload(self, path: str, data: bytes) -> None:
        """Store a file in the topic of packages under a path; a file that was there is replaced. TimeoutError if it is
        not readable there as a whole within 30 s.
        """
        package = Package(path.rpartition("/")[2], data)
        await asyncio.to_thread(self._begun().registry.upload, package, path)

        def seen() -> bool:
            registry = self._begun().registry
            return registry.metadata.uploads.get(path) == package.digest and registry.packages.is_whole(package.digest)

        if not await until(seen, ANSWER_SECONDS):
            raise TimeoutError(f"the file is not in its topic as a whole within {ANSWER_SECONDS:g} s")

    async def download(self, path: str) -> bytes | None:
        """Return a file that was uploaded under a path; None if there is none, or not as a whole."""
        registry = self._begun().registry
        digest = registry.metadata.uploads.get(path)
        if digest is None:
            return None
        package = await asyncio.to_thread(registry.packages.package, digest, path.rpartition("/")[2])
        return None if package is None else package.data

    def _out_of_place(self, registry: Registry) -> str | None:
        """Return why this worker cannot be one of the group: another one has its id, or others cannot reach it; None if
        it can.
        """
        twin = registry.twin()
        if twin is not None:
            return f"give this worker another id, by --worker-id: the one at {twin} is {self.worker_id}, too"
        return out_of_reach(self._me, registry.workers())
