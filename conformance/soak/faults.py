"""What a soak breaks, and how.

Owns: the kinds of faults, what undoes each, how long each may be felt.
Must not know: writers, and what is right.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from conformance.harness import faults
from conformance.harness.faults import Fault, Server, Spacing, cut_connections
from conformance.harness.targets import OverPulsar
from conformance.soak.workload import DISPATCH_POLICY, PUBLISH_POLICY, SIZE_LIMIT, Topic

KINDS = (
    "unload_topic",
    "dispatch_rate",
    "kill_gateway",
    "size_limit",
    "unload_bundle",
    "pause_gateway",
    "publish_rate",
    "unload_namespace",
    "cut_connections",
    "kill_both_gateways",
    "unload_gateways_namespace",
)
BROKER_KINDS = ("kill_broker",)
ROUND_QUIET_SECONDS = 40.0
AFTERMATH_SECONDS = 15.0
"""For which a fault excuses slow answers once it is undone: clients wait before they try again."""
_OF_ONE_TOPIC = frozenset({"unload_topic", "size_limit", "dispatch_rate"})
SPACING = Spacing(
    usual=11.0,
    quiet=8.0,
    lasts={
        "dispatch_rate": 20.0,
        "publish_rate": 8.0,
        "size_limit": 15.0,
        "kill_gateway": 3.0,
        "kill_both_gateways": 2.0,
        "pause_gateway": 8.0,
    },
    round_quiet=ROUND_QUIET_SECONDS,
    overlapping=("dispatch_rate", "publish_rate", "size_limit"),
)


def plan(seed: int, seconds: float, spacing: float, topics: Iterable[str], kinds: Iterable[str] = KINDS) -> list[Fault]:
    """See `harness.faults.plan`. The target is a topic, or the number of a gateway."""
    names = sorted(topics)

    def target(rng: random.Random, kind: str) -> str:
        about = rng.choice(names) if kind in _OF_ONE_TOPIC or kind == "publish_rate" else str(rng.randrange(2))
        return "limited" if kind == "size_limit" else about

    return faults.plan(SPACING, seed, seconds, spacing, kinds, target)


class Executor(faults.Executor):
    """Performs a plan, in each of the namespaces that have the topics. Disturbances are by topics."""

    def __init__(
        self, servers: Sequence[Server], over: OverPulsar, topics: Iterable[Topic], namespaces: Sequence[str]
    ) -> None:
        super().__init__(servers, overlapping=SPACING.overlapping, aftermath=AFTERMATH_SECONDS)
        self._over = over
        self._rest = over.rest
        self._namespaces = namespaces
        self._topics = {topic.name: topic for topic in topics}

    def _concerned(self, fault: Fault) -> str:
        return fault.target if fault.kind in _OF_ONE_TOPIC else ""

    def _begin(self, fault: Fault) -> None:
        kind = fault.kind
        if kind == "unload_topic":
            for namespace in self._namespaces:
                self._rest.call("PUT", f"persistent/{namespace}/{fault.target}/unload")
        elif kind == "unload_namespace":
            for namespace in self._namespaces:
                self._rest.call("PUT", f"namespaces/{namespace}/unload")
        elif kind == "unload_gateways_namespace":
            self._rest.call("PUT", f"namespaces/{self._over.cluster}/unload")
        elif kind == "unload_bundle":
            for namespace in self._namespaces:
                self._unload_bundle(namespace)
        elif kind == "dispatch_rate":
            self._policy("POST", fault.target, "dispatchRate", DISPATCH_POLICY)
        elif kind == "publish_rate":
            self._policy("POST", fault.target, "publishRate", PUBLISH_POLICY)
        elif kind == "size_limit":  # raised while it lasts
            self._policy("POST", fault.target, "maxMessageSize", 4 * SIZE_LIMIT)
        elif kind == "kill_gateway":
            self._servers[int(fault.target)].kill()
        elif kind == "kill_both_gateways":
            self._kill_all()
        elif kind == "pause_gateway":
            self._pause(int(fault.target))
        elif kind == "cut_connections":
            for server in self._servers:
                cut_connections(server.pid, self._over.port)
        elif kind == "kill_broker":
            self._over.pulsar.restart()

    def _undo(self, fault: Fault) -> None:
        kind = fault.kind
        if kind in ("dispatch_rate", "publish_rate"):
            name = {"dispatch_rate": "dispatchRate", "publish_rate": "publishRate"}[kind]
            fixed = self._topics[fault.target].policies.get(name)
            self._policy("POST" if fixed else "DELETE", fault.target, name, fixed)
        elif kind == "size_limit":
            self._policy("POST", fault.target, "maxMessageSize", SIZE_LIMIT)
        elif kind in ("kill_gateway", "kill_both_gateways"):
            self._start_again()
        elif kind == "pause_gateway":
            self._go_on(int(fault.target))

    def _policy(self, method: str, topic: str, name: str, value: Any) -> None:
        for namespace in self._namespaces:
            self._rest.call(method, f"persistent/{namespace}/{topic}/{name}", value)

    def _unload_bundle(self, namespace: str) -> None:
        topic = self._topics["kafka"].native_name(namespace, 0).removeprefix("persistent://")
        bundle = self._rest.call("GET", f"topic/persistent/{topic}/bundle", root="lookup/v2")
        self._rest.call("PUT", f"namespaces/{namespace}/{str(bundle).strip(chr(34))}/unload")
