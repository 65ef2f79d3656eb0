"""What a run of the checker breaks, and how.

Owns: the kinds of faults, what undoes each.
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

import random
from collections.abc import Collection, Iterable

from conformance.harness import faults
from conformance.harness.faults import Fault, Spacing, cut_connections
from conformance.harness.targets import Target

SPACING = Spacing(usual=10.0, quiet=5.0, lasts={"kill": 3.0, "kill_all": 2.0, "pause": 8.0, "delay_clients": 6.0})
_DELAY_SECONDS = 0.25
_COORDINATOR = "pulsar/system/transaction_coordinator_assign"


def plan(seed: int, seconds: float, spacing: float, kinds: Iterable[str], servers: int) -> list[Fault]:
    """See `harness.faults.plan`. The target is a server, counted from 1."""
    return faults.plan(SPACING, seed, seconds, spacing, kinds, lambda rng, _: str(1 + rng.randrange(max(1, servers))))


class Executor(faults.Executor):
    """Performs a plan. `topics` is what the names of the run's topics begin with."""

    def __init__(
        self, target: Target, seed: int, *, topics: str = "checker-", overlapping: Collection[str] = ()
    ) -> None:
        super().__init__(target.servers, overlapping=overlapping)
        self._target = target
        self._topics = topics
        self._rng = random.Random(f"{seed} faults")

    def _begin(self, fault: Fault) -> None:
        kind, number = fault.kind, int(fault.target) - 1
        server, links, over = self._target.servers[number], self._target.links, self._target.over
        if kind == "kill":
            server.kill()
        elif kind == "kill_all":
            self._kill_all()
        elif kind == "terminate":
            server.stop()
        elif kind == "pause":
            self._pause(number)
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
            self._unload(over.namespace, self._topics)
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

    def _undo(self, fault: Fault) -> None:
        kind, number = fault.kind, int(fault.target) - 1
        if kind in ("kill", "kill_all", "terminate"):
            self._start_again()
        elif kind == "pause":
            self._go_on(number)
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
