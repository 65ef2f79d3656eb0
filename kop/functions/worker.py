"""A worker: the parts that run functions and answer for them, put together, and what it tells of the cluster.

Owns: the order in which the parts begin and end; if this worker is one of all, and why not.
Must not know: paths of HTTP, how instances run, what a leader decides, how a request is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kop.client.errors import ClientError
from kop.functions.assigned_instances import AssignedInstances
from kop.functions.definitions import Assignment, Definition, InstanceName, WorkerInfo, out_of_reach
from kop.functions.instance_questions import InstanceQuestions
from kop.functions.leader_requests import ANSWER_SECONDS, LeaderRequests
from kop.functions.localrun import names_of
from kop.functions.metadata import FunctionsMetadata
from kop.functions.other_workers import OtherWorkers
from kop.functions.packages import Assembler, Package
from kop.functions.registry import Registry, membership_of
from kop.functions.rest import RestServer, serve
from kop.functions.triggers import ABSENT
from kop.functions.waiting import until
from kop.functions.worker_options import WorkerOptions, scheduler_named

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Parts:
    """The parts that a worker has once it knows the content of the topics."""

    registry: Registry
    requests: LeaderRequests
    questions: InstanceQuestions

    @property
    def metadata(self) -> FunctionsMetadata:
        """The content of the topics."""
        return self.registry.metadata


class Worker:
    """A worker, on the event loop that `start` is called on. `settings` are kafka-python's."""

    def __init__(self, settings: Mapping[str, Any], patience: float, options: WorkerOptions) -> None:
        self._settings = dict(settings)
        self._patience = patience
        self._options = options
        self._scheduler = scheduler_named(options.scheduler)
        self._others = OtherWorkers(options.token)
        self._me = options.announced(options.port)
        self._server: RestServer | None = None
        self._instances: AssignedInstances | None = None
        self._parts: _Parts | None = None
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._told_wrong: str | None = None

    # -- its life

    async def start(self) -> None:
        """Listen, join the other workers, and begin to run the assigned instances. ClientError if the worker cannot
        start, with the reason.
        """
        options, loop = self._options, asyncio.get_running_loop()

        def call(do: Callable[..., object], *args: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(do, *args)

        def changed() -> None:
            call(self._changed.set)

        code, packages = options.folder / "code", Assembler(options.folder / "parts")
        try:
            instances = self._instances = AssignedInstances(
                self._settings,
                self._patience,
                options.worker_id,
                packages,
                code,
                allow_index=options.allow_index,
                changed=changed,
            )
            self._server = await serve(self, options.host, options.port, options.token)
            self._me = options.announced(self._server.port)
            names = await asyncio.to_thread(names_of, self._settings, self._patience, options.topic_namespace)
            registry = Registry(
                self._settings,
                self._me,
                packages,
                membership_of(self._settings, self._me, changed, options.session_seconds),
                changed=changed,
                answered=lambda answer: call(requests.take_answer, answer),
                topic_names=names,
                scheduler=self._scheduler,
                patience=self._patience,
            )
            requests = LeaderRequests(registry, names, code, allow_index=options.allow_index)
            questions = InstanceQuestions(
                self._settings, options.worker_id, registry.metadata, instances, self._others, registry.workers
            )
            self._parts = _Parts(registry, requests, questions)
            await asyncio.to_thread(registry.start)
        except BaseException:
            await self.close()
            raise
        self._follower = asyncio.create_task(self._follow(instances, registry))

    async def close(self) -> None:
        """Stop: first end the instances, so that other workers go on where they have stopped, then leave the others."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        if self._instances is not None:
            await asyncio.to_thread(self._instances.close)
        if self._parts is not None:
            await asyncio.to_thread(self._parts.registry.close)
        await self._others.close()
        if self._server is not None:
            await self._server.close()

    async def _follow(self, instances: AssignedInstances, registry: Registry) -> None:
        """Run the instances that the topics of functions assign to this worker, and end others; never returns."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), instances.next_run())
            self._changed.clear()
            try:
                await asyncio.to_thread(self._run_assigned, instances, registry)
            except Exception:
                log.exception("what is assigned to this worker cannot be run")
                await asyncio.sleep(1.0)
                self._changed.set()

    def _run_assigned(self, instances: AssignedInstances, registry: Registry) -> None:
        wrong = self._out_of_place(registry)
        if wrong not in {None, self._told_wrong}:
            log.error("%s", wrong)
        self._told_wrong = wrong
        assignments = {} if registry.twin() is not None else dict(registry.metadata.assignments)
        instances.run(assignments, registry.metadata.definitions)

    def _out_of_place(self, registry: Registry) -> str | None:
        """Return why this worker cannot be one of the group: another one has its id, or others cannot reach it; None if
        it can.
        """
        twin = registry.twin()
        if twin is not None:
            return f"give this worker another id, by --worker-id: the one at {twin} is {self.worker_id}, too"
        return out_of_reach(self._me, registry.workers())

    # -- requests and questions

    def _begun(self) -> _Parts:
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

    async def local_ask(self, fqfn: str, instance: int, question: dict[str, Any]) -> dict[str, Any]:
        """Ask an instance of this worker, and return its answer, or a field `error`. If its assignment has just
        changed, the question waits up to 2 s until it runs so.
        """
        if self._parts is None:
            return {"error": "the worker has not started yet", "status": ABSENT}
        return await self._parts.questions.ask_here(fqfn, instance, question)

    def local(self) -> dict[InstanceName, dict[str, Any]]:
        """Return the InstanceStatus, as JSON, of the instances of this worker. It may block for a second."""
        return {} if self._instances is None else self._instances.status()

    async def history(self, fqfn: str, limit: int) -> list[dict[str, Any]]:
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
        return (
            []
            if self._parts is None
            else sorted(dict(self._parts.metadata.definitions).values(), key=lambda definition: definition.fqfn)
        )

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
