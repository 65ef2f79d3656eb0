"""What is broken when: a plan from a seed, and its execution.

Owns: the kinds of faults, their order, what undoes each.
Must not know: clients, and what is right.

| kind | what is done |
|---|---|
| kill | `kill -9` of a gateway, which is started again after a while |
| kill_all | the same for all gateways at once |
| terminate | SIGTERM, and a new start |
| pause | SIGSTOP, and SIGCONT after a while |
| cut_clients | all connections of clients to a gateway are reset |
| cut_answers | the same, after some more bytes of an answer |
| delay_clients | what goes between clients and a gateway takes a while |
| cut_pulsar | a gateway's connections to Pulsar are shut down |
| unload_topic | Pulsar unloads the topics of the run |
| unload_transactions | it unloads the gateways' topic of transactions |
| unload_offsets | it unloads the gateways' topic of groups |
| unload_pulsar_coordinator | it unloads the topics that stand for its own transaction coordinators |
| restart_pulsar | `kill -9` of Pulsar, and a new start |
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from conformance.checker.history import Disturbance
from conformance.checker.targets import Target
from conformance.servers import StartFailed
from conformance.soak.faults import cut_connections

USUAL_SPACING = 10.0
"""Seconds from one fault to the next."""
QUIET_SECONDS = 5.0
"""Before the first fault, and behind the last."""
_LASTS = {"kill": 3.0, "kill_all": 2.0, "pause": 8.0, "delay_clients": 6.0}
_DELAY_SECONDS = 0.25
_COORDINATOR = "pulsar/system/transaction_coordinator_assign"


class Fault(NamedTuple):
    """`at` and `lasts` in seconds, from the beginning of the load. `server`: the number of the one that it is about."""

    at: float
    kind: str
    server: int
    lasts: float


def plan(seed: int, seconds: float, spacing: float, kinds: Iterable[str], servers: int) -> list[Fault]:
    """The same for the same arguments. Each kind comes once before one comes again; one ends before the next begins.

    Faults last as `_LASTS` says, less where the spacing is below USUAL_SPACING. All is undone QUIET_SECONDS before the
    end.
    """
    rng = random.Random(seed)
    known = list(kinds)
    faults: list[Fault] = []
    left: list[str] = []
    at = QUIET_SECONDS
    while known and at + spacing <= seconds - QUIET_SECONDS:
        if not left:
            left = known.copy()
            rng.shuffle(left)
        kind = left.pop()
        lasts = round(_LASTS.get(kind, 0.0) * min(1.0, spacing / USUAL_SPACING), 1)
        faults.append(Fault(round(at, 1), kind, rng.randrange(max(1, servers)), lasts))
        at += max(spacing * rng.uniform(0.8, 1.2), lasts + 1.0)
    return faults


class Executor:
    """Performs a plan. `disturbances` has what was done, with the times at which it was."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._rng = random.Random(f"{seed} faults")
        self.disturbances: list[Disturbance] = []
        self.failures: list[str] = []
        """What could not be done, or undone: the run says less than it seems."""
        self.current = ""

    def run(self, faults: list[Fault], stop: Callable[[float], bool]) -> None:
        """Perform all at their times; `stop(seconds)` waits and says whether to end. What was begun is undone."""
        begin = time.monotonic()
        for fault in faults:
            if stop(max(0.0, begin + fault.at - time.monotonic())):
                return
            began = time.time()
            self.current = f"{fault.kind} {fault.server + 1}"
            self._perform(fault, self._begin)
            if fault.lasts:
                stop(fault.lasts)
            self._perform(fault, self._undo)
            self.disturbances.append(Disturbance(fault.kind, str(fault.server + 1), began, time.time()))

    def _perform(self, fault: Fault, step: Callable[[str, int], None]) -> None:
        try:
            step(fault.kind, fault.server)
        except (OSError, StartFailed) as error:
            self.failures.append(f"{fault.kind} {fault.server + 1}: {error}")

    def _begin(self, kind: str, number: int) -> None:
        server, links, over = self._target.servers[number], self._target.links, self._target.over
        if kind == "kill":
            server.kill()
        elif kind == "kill_all":
            for server in self._target.servers:
                server.kill()
        elif kind == "terminate":
            server.stop()
        elif kind == "pause":
            os.kill(server.pid, signal.SIGSTOP)
        elif kind == "cut_clients":
            assert links is not None
            links.change(number, lambda link: link.cut())
        elif kind == "cut_answers":
            assert links is not None
            count = self._rng.randrange(1, 400)
            links.change(number, lambda link: setattr(link, "cut_after", count))
        elif kind == "delay_clients":
            assert links is not None
            links.change(number, lambda link: setattr(link, "delay", _DELAY_SECONDS))
        elif kind == "cut_pulsar":
            assert over is not None
            cut_connections(server.pid, over.port)
        elif kind == "unload_topic":
            assert over is not None
            self._unload(over.namespace, "checker-")
        elif kind == "unload_transactions":
            assert over is not None
            self._unload(over.cluster, "__transactions")
        elif kind == "unload_offsets":
            assert over is not None
            self._unload(over.cluster, "__offsets")
        elif kind == "unload_pulsar_coordinator":
            assert over is not None
            # Its partitions are the coordinators; their logs are closed and opened with them.
            count = over.rest.call("GET", f"persistent/{_COORDINATOR}/partitions")["partitions"]
            for partition in range(count):
                over.rest.call("PUT", f"persistent/{_COORDINATOR}-partition-{partition}/unload")
        elif kind == "restart_pulsar":
            assert over is not None
            over.pulsar.restart()

    def _undo(self, kind: str, number: int) -> None:
        if kind in ("kill", "kill_all", "terminate"):
            for server in self._target.servers:
                if not server.running:
                    server.start()
        elif kind == "pause":
            os.kill(self._target.servers[number].pid, signal.SIGCONT)
        elif kind == "delay_clients":
            assert self._target.links is not None
            self._target.links.change(number, lambda link: setattr(link, "delay", 0.0))

    def _unload(self, namespace: str, start: str) -> None:
        """OSError where there is nothing to unload: the fault says less than it seems."""
        assert self._target.over is not None
        rest = self._target.over.rest
        topics = [
            topic.removeprefix("persistent://")
            for topic in rest.call("GET", f"persistent/{namespace}?includeSystemTopic=true")
            if topic.rpartition("/")[2].startswith(start)
        ]
        if not topics:
            raise OSError(f"no topic of {namespace} begins with {start}")
        for topic in topics:
            rest.call("PUT", f"persistent/{topic}/unload")
