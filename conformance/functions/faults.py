"""What a run breaks beside its servers, and how.

Owns: the kinds of faults of instances, which function each is about.
Must not know: clients, and what is right.

| kind | what is done |
|---|---|
| kill_instance | `kill -9` of an instance, and a start of another one |
| stop_instance | SIGTERM, and a start of another one when it has ended |
| pause_instance | SIGSTOP, a start of another one, and SIGCONT of the first after a while |
| second_start | a start of another one beside the one that works |

Those of servers are in conformance/checker/faults.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from conformance.checker import faults as of_servers
from conformance.functions.instances import Instances
from conformance.harness import faults
from conformance.harness.faults import Fault, Spacing
from conformance.harness.targets import Target

KINDS = ("kill_instance", "stop_instance", "pause_instance", "second_start")
SERVER_KINDS = ("kill", "terminate", "cut_clients", "cut_answers")
"""Those that a run has by default: what is left to instances is more than the half."""
OVERLAPPING = ("pause_instance",)
SPACING = Spacing(
    usual=3.0, quiet=2.0, lasts={"kill": 1.0, "pause": 5.0, "pause_instance": 7.0}, overlapping=OVERLAPPING
)


def plan(
    seed: int, seconds: float, spacing: float, kinds: Iterable[str], functions: Sequence[str], servers: int
) -> list[Fault]:
    """See `harness.faults.plan`. The target is a function's name, in turns, or a server, counted from 1."""
    left: list[str] = []

    def target(rng: random.Random, kind: str) -> str:
        if kind not in KINDS:
            return str(1 + rng.randrange(max(1, servers)))
        if not left:
            left.extend(rng.sample(functions, len(functions)))
        return left.pop()

    return faults.plan(SPACING, seed, seconds, spacing, kinds, target)


class Executor(of_servers.Executor):
    """Performs a plan."""

    def __init__(self, target: Target, seed: int, functions: Mapping[str, Instances], topics: str) -> None:
        super().__init__(target, seed, topics=topics, overlapping=OVERLAPPING)
        self._functions = functions
        self._paused: dict[Fault, int] = {}

    def _begin(self, fault: Fault) -> None:
        if fault.kind not in KINDS:
            super()._begin(fault)
            return
        function = self._functions[fault.target]
        if fault.kind == "kill_instance":
            function.kill()
        elif fault.kind == "stop_instance":
            function.stop()
        elif fault.kind == "pause_instance":
            self._paused[fault] = function.pause()
        elif fault.kind == "second_start":
            function.start_beside()

    def _undo(self, fault: Fault) -> None:
        if fault.kind not in KINDS:
            super()._undo(fault)
        elif fault in self._paused:
            self._functions[fault.target].wake(self._paused.pop(fault))
