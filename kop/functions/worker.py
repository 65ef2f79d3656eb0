"""A worker: what the topics say is assigned to it runs here, and what people ask of functions is asked here.

Owns: the way of a request from a user to the leader and back; which of the assigned instances can run here; which
worker is asked for what.
Must not know: paths of HTTP, how instances run, what a leader decides.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from kop import clock
from kop.address import Address
from kop.client.errors import ClientError
from kop.functions.checking import check
from kop.functions.definitions import (
    NOT_YET,
    Assignment,
    Definition,
    InstanceName,
    Kind,
    LeaderAnswer,
    Request,
    WorkerInfo,
    is_worker_id,
    out_of_reach,
    spec_of,
    updated,
)
from kop.functions.function import CodePlace
from kop.functions.group_lag import lag_of
from kop.functions.leader import NO_PACKAGE, WRONG
from kop.functions.localrun import names_of
from kop.functions.other_workers import OtherWorkerError, OtherWorkers
from kop.functions.packages import Assembler, Package, PackageError, unpack
from kop.functions.process import InstanceStatus, Processes, WantedInstance
from kop.functions.refusals import RefusedFunctionError, concerning
from kop.functions.registry import SESSION_SECONDS, Registry, membership_of
from kop.functions.rest import RestServer, serve
from kop.functions.scheduler import Scheduler, schedule
from kop.functions.spec import FunctionSpec, SpecError
from kop.functions.topics import DEFAULT_NAMESPACE, HOME
from kop.functions.triggers import ABSENT, TriggerError, place_for
from kop.functions.unpacking import Unpacking
from kop.records.partitioning import partition_of

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 30.0
"""How long a request waits for its answer: longer than it takes until another worker leads."""
SEEN_SECONDS: Final = 2.0
"""How long it is waited for what an answer says to be seen here."""
LOOK_SECONDS: Final = 0.005
"""How often it is looked if it is."""
ASK_SECONDS: Final = 15.0
END_SECONDS: Final = 30.0
"""How long an end takes at most: longer than that of an instance, and of what is told the server."""
START_SECONDS: Final = 5.0
"""How long the end of a start takes at most."""
NOBODY: Final = 503


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What is said of a worker when it starts."""

    worker_id: str
    folder: Path
    """Where packages are kept."""
    host: str = "127.0.0.1"
    port: int = 6750
    advertise: Address | None = None
    """Where the other workers ask it, if that is another address than the one that it listens on."""
    allow_index: bool = False
    """True if dependencies that a package does not have may come from pip's index."""
    token: str | None = None
    scheduler: str = ""
    """Another scheduler, MODULE.FUNCTION."""
    topic_namespace: str = DEFAULT_NAMESPACE
    cluster: str = "kop"
    session_seconds: float = SESSION_SECONDS


def default_worker_id(port: int) -> str:
    """Return a name that the worker has after a restart, too, and no other one."""
    host = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in socket.gethostname())
    return f"{host or 'worker'}-{port}"


def scheduler_named(name: str) -> Scheduler:
    """Return the scheduler MODULE.FUNCTION; ClientError."""
    if not name:
        return schedule
    module, _, function = name.rpartition(".")
    try:
        scheduler: Scheduler = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ClientError(f"name a scheduler that can be imported, MODULE.FUNCTION: {name} cannot ({error})") from None
    return scheduler


class Worker:
    """A worker, on the event loop that `start` is called on. `settings` are kafka-python's."""

    def __init__(self, settings: Mapping[str, Any], patience: float, options: WorkerOptions) -> None:
        if not is_worker_id(options.worker_id):
            raise ClientError(
                f"give the worker another id: {options.worker_id!r} may have letters, digits and -_. only"
            )
        self._settings = dict(settings)
        self._patience = patience
        self._options = options
        self._scheduler = scheduler_named(options.scheduler)
        self._names = HOME
        self._processes: Processes | None = None
        self._server: RestServer | None = None
        self._registry: Registry | None = None
        self._others = OtherWorkers(options.token)
        self._me = _announced(options, options.port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, asyncio.Future[LeaderAnswer]] = {}
        self._changed = asyncio.Event()
        self._unpacking = Unpacking(self._place, lambda: self._call(self._changed.set))
        self._follower: asyncio.Task[None] | None = None
        self._is_closing = False
        # of `_follow`
        self._told_wrong: str | None = None
        self._wanted: dict[InstanceName, WantedInstance] = {}
        self._unusable: dict[InstanceName, InstanceStatus] = {}
        """Instances whose code cannot be had."""

    # -- its life

    async def start(self) -> None:
        """Serve, join the others, and run what is assigned; ClientError says why that cannot be."""
        self._loop = asyncio.get_running_loop()

        def changed() -> None:
            self._call(self._changed.set)

        try:
            self._processes = Processes(self._settings, patience=self._patience)
            self._server = await serve(self, self._options.host, self._options.port, self._options.token)
            self._me = _announced(self._options, self._server.port)
            self._names = await asyncio.to_thread(
                names_of, self._settings, self._patience, self._options.topic_namespace
            )
            self._registry = Registry(
                self._settings,
                self._me,
                Assembler(self._options.folder / "parts"),
                membership_of(self._settings, self._me, changed, self._options.session_seconds),
                changed=changed,
                answered=lambda answer: self._call(self._take_answer, answer),
                topic_names=self._names,
                scheduler=self._scheduler,
                patience=self._patience,
            )
            await asyncio.to_thread(self._registry.start)
        except BaseException:
            await self.close()
            raise
        self._follower = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """End: instances first, so that others begin where they have stopped; then leave the others."""
        self._is_closing = True
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        self._unpacking.close()
        if self._processes is not None:
            await asyncio.to_thread(self._processes.close)
        if self._registry is not None:
            await asyncio.to_thread(self._registry.close)
        await self._others.close()
        if self._server is not None:
            await self._server.close()

    def _call(self, do: Callable[..., object], *args: object) -> None:
        """Have the event loop do something; called on other threads."""
        assert self._loop is not None
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(do, *args)

    def _take_answer(self, answer: LeaderAnswer) -> None:
        future = self._waiting.pop(answer.request, None)
        if future is not None and not future.done():
            future.set_result(answer)

    async def _follow(self) -> None:
        """Run what the topics say."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._unpacking.next_try())
            self._changed.clear()
            try:
                await asyncio.to_thread(self._run_assigned)
            except Exception:
                log.exception("what is assigned to this worker cannot be run")
                await asyncio.sleep(1.0)
                self._changed.set()

    def _run_assigned(self) -> None:
        assert self._registry is not None
        assert self._processes is not None
        wrong = self._out_of_place()
        if wrong not in {None, self._told_wrong}:
            log.error("%s", wrong)
        self._told_wrong = wrong
        metadata = self._registry.metadata
        wanted: dict[InstanceName, WantedInstance] = {}
        unusable: dict[InstanceName, InstanceStatus] = {}
        mine: dict[InstanceName, tuple[Assignment, Definition]] = {}
        for name, assignment in dict(metadata.assignments if self._twin() is None else {}).items():
            if assignment.worker != self._options.worker_id:
                continue
            definition = metadata.definitions.get(name[0])
            if definition is not None and definition.runs(name[1]) == assignment.revision:
                mine[name] = assignment, definition
            elif name in self._wanted:  # its definition comes in a moment: it is of the same transaction
                wanted[name] = self._wanted[name]
        self._unpacking.want({(made.package, made.package_name) for _, made in mine.values()})
        for name, (assignment, definition) in mine.items():
            reason, before = "its package is being unpacked", self._wanted.get(name)
            try:
                place = self._unpacking.place((definition.package, definition.package_name))
            except PackageError as error:
                place, reason, before = None, str(error), None
            if place is not None:
                wanted[name] = WantedInstance(
                    definition.spec, place, assignment.partitions, assignment.revision, assignment.number
                )
            elif before is not None and before.partitions == assignment.partitions:
                wanted[name] = before  # until the new code is there
            else:
                failed = self._unusable.get(name)
                since = clock.wall_ms() if failed is None else failed.since_ms
                unusable[name] = InstanceStatus(False, reason, None, since, 0, [], None)
        if not self._is_closing:
            self._processes.want(wanted)
        self._wanted, self._unusable = wanted, unusable

    def _place(self, digest: str, name: str) -> CodePlace:
        """Return where the code of a package lies here; PackageError."""
        assert self._registry is not None
        package = self._registry.packages.package(digest, name)
        if package is None:
            raise PackageError(
                f"the package {name} ({digest[:12]}) is not in its topic as a whole: update the function"
            )
        return unpack(package, self._options.folder / "code", self._options.allow_index)

    def _out_of_place(self) -> str | None:
        """Return why this worker cannot be one of all; None if it can."""
        twin = self._twin()
        if twin is not None:
            return f"give this worker another id, by --worker-id: the one at {twin} is {self.worker_id}, too"
        return out_of_reach(self._me, self.workers())

    def _twin(self) -> str | None:
        return None if self._registry is None else self._registry.twin()

    # -- requests

    async def request(
        self,
        kind: str,
        fqfn: str,
        *,
        expects: int | None = None,
        config: dict[str, Any] | None = None,
        package: Package | None = None,
        instance: int | None = None,
        by: str,
    ) -> LeaderAnswer:
        """Ask the leader for something, once the code was tried here; what it answers."""
        if expects is not None:  # another worker may have told of it, a moment before it is seen here
            await _until(lambda: self._revision(fqfn) >= expects, SEEN_SECONDS)
        there = self.definition(fqfn)
        made = Request(
            id=clock.uuid4().hex,
            kind=cast(Kind, kind),
            fqfn=fqfn,
            expects=expects,
            package="" if package is None else package.digest,
            package_name="" if package is None else package.name,
            instance=instance,
            by=by,
            at_ms=clock.wall_ms(),
        )
        if kind in {"create", "update"}:
            tenant, namespace, name = fqfn.split("/")
            given = {field: value for field, value in (config or {}).items() if field != "fqfn"}
            given |= {"tenant": tenant, "namespace": namespace, "name": name}
            made = replace(made, config=given)
            if (kind == "create") is (there is None):  # else the leader says who was first
                wrong = await asyncio.to_thread(self._prepare, given, there, package)
                if wrong is not None:
                    return LeaderAnswer(request=made.id, status=wrong[0], reason=wrong[1])
        answer = await self._ask_leader(made)
        if answer.status == NO_PACKAGE and package is not None:  # it was deleted meanwhile, since nobody named it
            await asyncio.to_thread(self._open().upload, package)
            answer = await self._ask_leader(replace(made, id=clock.uuid4().hex))
        return answer

    def _open(self) -> Registry:
        if self._registry is None:
            raise ClientError("wait until the worker has started")
        return self._registry

    def _prepare(
        self, given: Mapping[str, Any], there: Definition | None, package: Package | None
    ) -> tuple[int, str] | None:
        """Try the code, and make what the function needs; status and reason if something is wrong with it."""
        registry = self._open()
        config = updated({} if there is None else there.config, given)
        try:
            spec = spec_of(config, self._names)
            if package is None and there is not None:
                package = registry.packages.package(there.package, there.package_name)
            if package is None:
                return WRONG, "the package is missing: send the file with the function"
            place = unpack(package, self._options.folder / "code", self._options.allow_index)
        except (SpecError, PackageError) as error:
            return WRONG, str(error)
        mistakes = check(spec, place)
        if mistakes:
            return WRONG, "\n".join(mistakes)
        try:
            with concerning(spec.fqfn):
                made = registry.make_topics(spec)
        except RefusedFunctionError as refusal:
            return refusal.status, refusal.reason
        for topic in made:
            log.info("made the topic %s for %s", topic, spec.fqfn)
        if not registry.packages.is_whole(package.digest):
            registry.upload(package)
        return None

    async def _ask_leader(self, request: Request) -> LeaderAnswer:
        registry = self._open()
        future: asyncio.Future[LeaderAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        try:
            await asyncio.to_thread(registry.send, request)
            answer = await asyncio.wait_for(future, ANSWER_SECONDS)
        except TimeoutError:
            reason = (
                f"no worker that leads has answered within {ANSWER_SECONDS:g} s. What was asked for may still be done: "
                "look before you ask again"
            )
            return LeaderAnswer(request=request.id, status=NOBODY, reason=reason)
        finally:
            self._waiting.pop(request.id, None)
        if answer.won:  # until that is seen here, too: the topics are read side by side
            after = answer.revision
            await _until(
                lambda: (
                    self.definition(request.fqfn) is None if after is None else self._revision(request.fqfn) >= after
                ),
                SEEN_SECONDS,
            )
        return answer

    def _revision(self, fqfn: str) -> int:
        there = self.definition(fqfn)
        return NOT_YET if there is None else there.revision

    async def rebalance(self) -> LeaderAnswer:
        """Deal the instances anew."""
        return await self._ask_leader(Request(id=clock.uuid4().hex, kind="rebalance", at_ms=clock.wall_ms()))

    async def drain(self, worker_id: str, *, drained: bool = True) -> LeaderAnswer:
        """Give the instances of a worker to others; or let it have some again."""
        kind: Kind = "drain" if drained else "undrain"
        made = Request(id=clock.uuid4().hex, kind=kind, worker=worker_id, at_ms=clock.wall_ms())
        answer = await self._ask_leader(made)
        if answer.won:
            await _until(lambda: (worker_id in self.drained()) is drained, SEEN_SECONDS)
        return answer

    async def history(self, fqfn: str) -> list[dict[str, Any]]:
        """Return all requests for a function and their answers, the oldest first."""
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
            for request, answer in await asyncio.to_thread(self._open().history, fqfn)
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
        """Where it is asked, HOST:PORT."""
        return self._me.address

    def definition(self, fqfn: str) -> Definition | None:
        """Return the definition of a function; None if there is none."""
        return None if self._registry is None else self._registry.metadata.definitions.get(fqfn)

    def functions(self) -> list[Definition]:
        """Return all definitions."""
        return (
            []
            if self._registry is None
            else sorted(dict(self._registry.metadata.definitions).values(), key=lambda definition: definition.fqfn)
        )

    def names(self, tenant: str, namespace: str) -> list[str]:
        """Return the names of the functions of a namespace."""
        start = f"{tenant}/{namespace}/"
        return [d.fqfn.removeprefix(start) for d in self.functions() if d.fqfn.startswith(start)]

    def assignments(self) -> Mapping[InstanceName, Assignment]:
        """Return which worker has which instance."""
        return {} if self._registry is None else dict(self._registry.metadata.assignments)

    def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers that live."""
        return () if self._registry is None else self._registry.workers()

    def drained(self) -> Set[str]:
        """Return the workers that are given no instances."""
        return frozenset() if self._registry is None else frozenset(self._registry.metadata.drained)

    def leader(self) -> WorkerInfo | None:
        """Return the worker that leads; None if nobody does."""
        return next((worker for worker in self.workers() if worker.is_leader), None)

    def not_ready(self) -> str | None:
        """Return why the worker does not work; None if it does."""
        if self._registry is None or self._follower is None:
            return "it has not started yet"
        if (trouble := self._registry.trouble()) is not None:
            return trouble
        if (wrong := self._out_of_place()) is not None:
            return wrong
        if self.worker_id not in {worker.worker_id for worker in self.workers()}:
            return "it has not joined the other workers yet"
        if self.leader() is None:
            return "no worker leads at the moment"
        if self.drained() >= {worker.worker_id for worker in self.workers()}:
            return "every worker is drained, and no function runs: kop functions workers --undrain WORKER"
        return None

    async def package(self, fqfn: str) -> Package | None:
        """Return the package of a function."""
        there = self.definition(fqfn)
        if there is None:
            return None
        return await asyncio.to_thread(self._open().packages.package, there.package, there.package_name)

    async def upload(self, path: str, data: bytes) -> None:
        """Keep a file under a path."""
        package = Package(path.rpartition("/")[2], data)
        await asyncio.to_thread(self._open().upload, package, path)

        def seen() -> bool:
            registry = self._open()
            return registry.metadata.uploads.get(path) == package.digest and registry.packages.is_whole(package.digest)

        if not await _until(seen, ANSWER_SECONDS):
            raise TimeoutError(f"the file is not in its topic as a whole within {ANSWER_SECONDS:g} s")

    async def download(self, path: str) -> bytes | None:
        """Return a file that was uploaded; None if there is none."""
        registry = self._open()
        digest = registry.metadata.uploads.get(path)
        if digest is None:
            return None
        package = await asyncio.to_thread(registry.packages.package, digest, path.rpartition("/")[2])
        return None if package is None else package.data

    # -- what runs

    def local(self) -> dict[InstanceName, dict[str, Any]]:
        """Return the InstanceStatus, as JSON, of the instances of this worker. It may take a second."""
        if self._processes is None:
            return {}
        return {name: asdict(status) for name, status in {**self._processes.status(), **self._unusable}.items()}

    async def local_ask(self, fqfn: str, instance: int, question: dict[str, Any]) -> dict[str, Any]:
        """Ask an instance of this worker. What is assigned to it now is waited for."""
        if self._processes is None:
            return {"error": "the worker has not started yet", "status": ABSENT}
        await _until(lambda: self._is_applied((fqfn, instance)), SEEN_SECONDS)
        seconds = float(question.get("seconds", ASK_SECONDS))
        return await asyncio.to_thread(self._processes.ask, (fqfn, instance), question, seconds)

    def _is_applied(self, name: InstanceName) -> bool:
        """Return if the processes know what is assigned of an instance."""
        assignment, wanted = self.assignments().get(name), self._wanted.get(name)
        if assignment is None or assignment.worker != self.worker_id or name in self._unusable:
            return wanted is None
        return wanted is not None and (wanted.revision, wanted.partitions) == (
            assignment.revision,
            assignment.partitions,
        )

    async def status(self, fqfn: str, instance: int | None) -> dict[int, dict[str, Any]]:
        """Return the InstanceStatus, as JSON, of all assigned instances of a function or of one."""
        owned: dict[str, list[int]] = {}
        for (name, number), assignment in sorted(self.assignments().items()):
            if name == fqfn and instance in {None, number}:
                owned.setdefault(assignment.worker, []).append(number)
        parts = await asyncio.gather(*(self._status_of(worker, fqfn, some) for worker, some in owned.items()))
        statuses = dict(sorted(item for part in parts for item in part.items()))
        await self._count_lag(fqfn, statuses)
        return statuses

    async def _count_lag(self, fqfn: str, statuses: Mapping[int, dict[str, Any]]) -> None:
        """Add the lag of instances that do not tell it: `lag`, by TOPIC-NUMBER."""
        there, owners = self.definition(fqfn), self._owners(fqfn)
        silent = {
            number: owners[number].partitions
            for number, status in statuses.items()
            if number in owners and not (status["stats"] or {}).get("lag")
        }
        places = [place for partitions in silent.values() for place in partitions]
        if there is None or not places:
            return
        lag = await asyncio.to_thread(lag_of, self._settings, there.spec.group, places)
        for number, partitions in silent.items():
            told = {f"{place[0]}-{place[1]}": lag[place] for place in partitions if place in lag}
            statuses[number]["lag"] = told

    async def _status_of(self, worker_id: str, fqfn: str, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        try:
            if worker_id == self.worker_id:
                local = await asyncio.to_thread(self.local)
                told = {number: status for (name, number), status in local.items() if name == fqfn}
            else:
                told = await self._others.status(self._worker(worker_id), fqfn)
        except OtherWorkerError as error:
            return {number: _unknown(str(error)) for number in numbers}
        return {number: told.get(number) or _unknown(f"{worker_id} is about to start it") for number in numbers}

    def _worker(self, worker_id: str) -> WorkerInfo:
        living = next((worker for worker in self.workers() if worker.worker_id == worker_id), None)
        if living is None:
            raise OtherWorkerError(f"the worker {worker_id} is gone, and its instances are about to be given to others")
        return living

    def _owners(self, fqfn: str) -> dict[int, Assignment]:
        return {number: assignment for (name, number), assignment in self.assignments().items() if name == fqfn}

    async def ask(self, fqfn: str, instance: int | None, question: dict[str, Any]) -> dict[str, Any]:
        """Ask an instance, the one that has the answer if none is named."""
        await _until(lambda: bool(self._owners(fqfn)), SEEN_SECONDS)  # it may have been defined just now
        owners = self._owners(fqfn)
        there = self.definition(fqfn)
        try:
            instance, question = _asked(owners, question, None if there is None else there.spec, instance)
        except TriggerError as error:
            return {"error": str(error), "status": WRONG}
        if instance not in owners:
            return {"error": f"no instance of {fqfn} runs that could answer: see its status", "status": ABSENT}
        worker = owners[instance].worker
        if worker == self.worker_id:
            return await self.local_ask(fqfn, instance, question)
        try:
            seconds = float(question.get("seconds", ASK_SECONDS))
            return await self._others.ask(self._worker(worker), fqfn, instance, question, seconds)
        except OtherWorkerError as error:
            return {"error": str(error), "status": ABSENT}


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        if condition():
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False


def _unknown(error: str) -> dict[str, Any]:
    return asdict(InstanceStatus(False, error, None, clock.wall_ms(), 0, [], None))


def _asked(
    owners: Mapping[int, Assignment], question: dict[str, Any], spec: FunctionSpec | None, instance: int | None
) -> tuple[int | None, dict[str, Any]]:
    """Return which instance has the answer, and what it is asked; TriggerError for a message that no input takes.

    State that belongs to partitions is in that of its key, since a function with such state has one input.
    """
    if spec is not None and question.get("ask") == "trigger":
        return _triggered(owners, question, spec, instance)
    if instance is not None:
        return instance, question
    if spec is not None and spec.state_scope == "partition":
        places = [place for assignment in owners.values() for place in assignment.partitions]
        partition = question.get("partition")
        if partition is None:
            partition = partition_of(str(question.get("key", "")).encode(), len(places))
        for number, assignment in owners.items():
            if partition in {place[1] for place in assignment.partitions}:
                return number, {**question, "partition": partition}
        return None, question
    return next(iter(sorted(owners)), None), question


def _triggered(
    owners: Mapping[int, Assignment], question: dict[str, Any], spec: FunctionSpec, instance: int | None
) -> tuple[int | None, dict[str, Any]]:
    """Return which instance gets a message, and in which partition."""
    given = question.get("key")
    key = None if given is None else base64.b64decode(given)
    having = {
        place: number
        for number, assignment in owners.items()
        for place in assignment.partitions
        if instance in {None, number}
    }
    if not having:
        return None, question
    place = place_for(spec, question.get("topic"), key, having)
    return having[place], {**question, "topic": place[0], "partition": place[1]}


def _announced(options: WorkerOptions, port: int) -> WorkerInfo:
    """Return what a worker that listens on this port tells the others of itself."""
    given = options.advertise
    if given is not None:
        return WorkerInfo(options.worker_id, given.host, given.port or port)
    host = socket.gethostname() if options.host in {"", "0.0.0.0", "::"} else options.host
    return WorkerInfo(options.worker_id, host, port)


def run_worker(
    settings: Mapping[str, Any], patience: float, options: WorkerOptions, say: Callable[[str], None]
) -> None:
    """Run a worker until SIGTERM or SIGINT. `settings` are kafka-python's; ClientError says why it cannot start.

    A second signal ends it at once: its instances end by themselves then, and others begin where they have committed.
    """

    async def work() -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        worker = Worker(settings, patience, options)
        starting = asyncio.create_task(worker.start())

        def end(number: int) -> None:
            if over.is_set():
                say(f"worker {options.worker_id} ends at once")
                os._exit(128 + number)
            over.set()
            threading.Thread(
                target=give_up, args=(END_SECONDS if starting.done() else START_SECONDS,), daemon=True
            ).start()

        def give_up(seconds: float) -> None:
            time.sleep(seconds)
            say(f"worker {options.worker_id} has not ended within {seconds:g} s, and ends now")
            os._exit(1)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        ending = asyncio.create_task(over.wait())
        await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            say(f"worker {options.worker_id} is at http://{worker.address}; Ctrl-C ends it")
            await ending
        else:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
        ending.cancel()
        await worker.close()
        say(f"worker {options.worker_id} has ended")

    asyncio.run(work())
