"""The instances that are assigned to a worker: their code unpacked here, their processes told to run.

Owns: which of the assigned instances can run here, and why others cannot.
Must not know: who assigns them, how a process runs, other workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kop import clock
from kop.functions.definitions import Assignment, Definition, InstanceName
from kop.functions.function import CodePlace
from kop.functions.packages import Assembler, PackageError, unpack
from kop.functions.process import InstanceStatus, Processes, WantedInstance
from kop.functions.unpacking import Unpacking
from kop.functions.waiting import SEEN_SECONDS, until

ASK_SECONDS: Final = 15.0
"""The seconds that an instance may take to answer, unless the question says another time."""


def unknown(error: str) -> dict[str, Any]:
    """Return the InstanceStatus, as JSON, of an instance of which only this error is known."""
    return asdict(InstanceStatus(False, error, None, clock.wall_ms(), 0, [], None))


class AssignedInstances:
    """The instances of one worker. `settings` are kafka-python's; `packages` has the code, `folder` is for it unpacked.

    `changed` is called on any thread if `run` has to be called again: a package was unpacked meanwhile.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        patience: float,
        worker_id: str,
        packages: Assembler,
        folder: Path,
        *,
        allow_index: bool,
        changed: Callable[[], None],
    ) -> None:
        self._worker_id = worker_id
        self._packages = packages
        self._folder = folder
        self._allow_index = allow_index
        self._processes = Processes(settings, patience=patience)
        self._unpacking = Unpacking(self._place, changed)
        self._is_closing = False
        self._wanted: dict[InstanceName, WantedInstance] = {}
        self._unusable: dict[InstanceName, InstanceStatus] = {}
        """Instances whose code cannot be had."""

    def close(self) -> None:
        """End all processes; returns when they have ended."""
        self._is_closing = True
        self._unpacking.close()
        self._processes.close()

    def next_run(self) -> float | None:
        """Return in how many seconds `run` has to be called, if nothing changes before; None for never."""
        return self._unpacking.next_try()

    def run(self, assignments: Mapping[InstanceName, Assignment], definitions: Mapping[str, Definition]) -> None:
        """Let the instances that are assigned to this worker run, and end others: their processes are started and ended
        in the background. One whose code is not unpacked yet keeps its earlier code meanwhile. For one thread; it may
        take a second.
        """
        wanted: dict[InstanceName, WantedInstance] = {}
        unusable: dict[InstanceName, InstanceStatus] = {}
        mine: dict[InstanceName, tuple[Assignment, Definition]] = {}
        for name, assignment in assignments.items():
            if assignment.worker != self._worker_id:
                continue
            definition = definitions.get(name[0])
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
        """Return where the code of a package lies on this machine, unpacked here if it was not before. PackageError if
        it cannot be unpacked, or is not in its topic as a whole.
        """
        package = self._packages.package(digest, name)
        if package is None:
            raise PackageError(
                f"the package {name} ({digest[:12]}) is not in its topic as a whole: update the function"
            )
        return unpack(package, self._folder, self._allow_index)

    def status(self) -> dict[InstanceName, dict[str, Any]]:
        """Return the InstanceStatus, as JSON, of each instance of this worker. For any thread; it may take a second."""
        return {name: asdict(status) for name, status in {**self._processes.status(), **self._unusable}.items()}

    async def ask(
        self, name: InstanceName, question: dict[str, Any], assigned: Callable[[], Assignment | None]
    ) -> dict[str, Any]:
        """Return the answer of an instance to a question, or a field `error`, within the question's `seconds`, 15 by
        default.

        `assigned` returns the instance's assignment, None if it is not assigned here. Until the processes have it as
        `assigned` says, the question waits, for 2 s at most.
        """
        await until(lambda: self._is_applied(name, assigned()), SEEN_SECONDS)
        seconds = float(question.get("seconds", ASK_SECONDS))
        return await asyncio.to_thread(self._processes.ask, name, question, seconds)

    def _is_applied(self, name: InstanceName, assignment: Assignment | None) -> bool:
        """Return True if the processes run an instance as it is assigned now: if `assignment` is None, or another
        worker's, or if its code cannot be had, that they do not run it.
        """
        wanted = self._wanted.get(name)
        if assignment is None or assignment.worker != self._worker_id or name in self._unusable:
            return wanted is None
        return wanted is not None and (wanted.revision, wanted.partitions) == (
            assignment.revision,
            assignment.partitions,
        )
