"""Questions to instances, wherever in the cluster they run: status, state and triggers.

Owns: which instance has an answer, which worker is asked for it, what is said of instances that nobody knows of.
Must not know: HTTP, how instances run and answer.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kop.functions.assigned_instances import ASK_SECONDS, AssignedInstances, unknown
from kop.functions.definitions import Assignment, InstanceName, WorkerInfo
from kop.functions.group_lag import lag_of
from kop.functions.metadata import FunctionsMetadata
from kop.functions.other_workers import OtherWorkerError, OtherWorkers
from kop.functions.request_effects import WRONG
from kop.functions.spec import FunctionSpec
from kop.functions.triggers import ABSENT, TriggerError, place_for
from kop.functions.waiting import SEEN_SECONDS, until
from kop.records.partitioning import partition_of


@dataclass(frozen=True)
class InstanceQuestions:
    """The questions that come to one worker. `settings` are kafka-python's; `workers` returns those that live."""

    settings: Mapping[str, Any]
    worker_id: str
    metadata: FunctionsMetadata
    instances: AssignedInstances
    others: OtherWorkers
    workers: Callable[[], Sequence[WorkerInfo]]

    async def status(self, fqfn: str, instance: int | None) -> dict[int, dict[str, Any]]:
        """Return the InstanceStatus, as JSON, of the assigned instances of a function, by number, or of one only. Of an
        instance whose worker does not answer it has only that error, and the lag.
        """
        owned: dict[str, list[int]] = {}
        for (name, number), assignment in sorted(dict(self.metadata.assignments).items()):
            if name == fqfn and instance in {None, number}:
                owned.setdefault(assignment.worker, []).append(number)
        parts = await asyncio.gather(*(self._status_of(worker, fqfn, some) for worker, some in owned.items()))
        statuses = dict(sorted(item for part in parts for item in part.items()))
        await self._count_lag(fqfn, statuses)
        return statuses

    async def _count_lag(self, fqfn: str, statuses: Mapping[int, dict[str, Any]]) -> None:
        """Add the field `lag`, by TOPIC-NUMBER, to the statuses of instances that do not tell theirs, from the offsets
        of the function's group.
        """
        there, owners = self.metadata.definitions.get(fqfn), self._owners(fqfn)
        silent = {
            number: owners[number].partitions
            for number, status in statuses.items()
            if number in owners and not (status["stats"] or {}).get("lag")
        }
        places = [place for partitions in silent.values() for place in partitions]
        if there is None or not places:
            return
        lag = await asyncio.to_thread(lag_of, self.settings, there.spec.group, places)
        for number, partitions in silent.items():
            told = {f"{place[0]}-{place[1]}": lag[place] for place in partitions if place in lag}
            statuses[number]["lag"] = told

    async def _status_of(self, worker_id: str, fqfn: str, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        try:
            if worker_id == self.worker_id:
                local = await asyncio.to_thread(self.instances.status)
                told = {number: status for (name, number), status in local.items() if name == fqfn}
            else:
                told = await self.others.status(self._worker(worker_id), fqfn)
        except OtherWorkerError as error:
            return {number: unknown(str(error)) for number in numbers}
        return {number: told.get(number) or unknown(f"{worker_id} is about to start it") for number in numbers}

    def _worker(self, worker_id: str) -> WorkerInfo:
        living = next((worker for worker in self.workers() if worker.worker_id == worker_id), None)
        if living is None:
            raise OtherWorkerError(f"the worker {worker_id} is gone, and its instances are about to be given to others")
        return living

    def _owners(self, fqfn: str) -> dict[int, Assignment]:
        return {
            number: assignment for (name, number), assignment in dict(self.metadata.assignments).items() if name == fqfn
        }

    async def ask_here(self, fqfn: str, instance: int, question: dict[str, Any]) -> dict[str, Any]:
        """Ask an instance of this worker, and return its answer, or a field `error`. If its assignment has just
        changed, the question waits up to 2 s until it runs so.
        """
        name: InstanceName = (fqfn, instance)
        return await self.instances.ask(name, question, lambda: self.metadata.assignments.get(name))

    async def ask(self, fqfn: str, instance: int | None, question: dict[str, Any]) -> dict[str, Any]:
        """Ask an instance, wherever it runs, and return its answer, or a field `error` with a `status` of HTTP. Without
        a number it is the instance that has the partition or key asked for.
        """
        await until(lambda: bool(self._owners(fqfn)), SEEN_SECONDS)  # it may have been defined just now
        owners = self._owners(fqfn)
        there = self.metadata.definitions.get(fqfn)
        try:
            instance, question = _asked(owners, question, None if there is None else there.spec, instance)
        except TriggerError as error:
            return {"error": str(error), "status": WRONG}
        if instance not in owners:
            return {"error": f"no instance of {fqfn} runs that could answer: see its status", "status": ABSENT}
        worker = owners[instance].worker
        if worker == self.worker_id:
            return await self.ask_here(fqfn, instance, question)
        try:
            seconds = float(question.get("seconds", ASK_SECONDS))
            return await self.others.ask(self._worker(worker), fqfn, instance, question, seconds)
        except OtherWorkerError as error:
            return {"error": str(error), "status": ABSENT}


def _asked(
    owners: Mapping[int, Assignment], question: dict[str, Any], spec: FunctionSpec | None, instance: int | None
) -> tuple[int | None, dict[str, Any]]:
    """Return the number of the instance that has the answer, None if there is none, and the question for it.
    TriggerError if it is a message for a topic that is no input.

    If state belongs to partitions, a key's value is looked up in the partition of the key: a function with such state
    has one input.
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
    """Return the number of the instance that gets a message, and the question with the partition that the message goes
    to; None and the question as it is if no instance is there. TriggerError if the topic of the question is no input,
    or is missing while there are several.
    """
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
