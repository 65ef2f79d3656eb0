"""What is broken when: a plan from a seed, and its execution.

Owns: the kinds of faults, their order, what undoes each, how long each may be felt.
Must not know: writers, and what is right.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from conformance.servers import KopOverPulsar, Pulsar, StartFailed
from conformance.soak.history import Disturbance
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
USUAL_SPACING = 11.0
"""Seconds from one fault to the next."""
QUIET_SECONDS = 8.0
"""Before the first fault, and behind the last."""
ROUND_QUIET_SECONDS = 40.0
"""Behind each round of all kinds, in plans of the usual spacing: what is slow then has no excuse."""
AFTERMATH_SECONDS = 15.0
"""For which a fault excuses slow answers once it is undone: clients wait before they try again."""
_OF_ONE_TOPIC = frozenset({"unload_topic", "size_limit", "dispatch_rate"})
_LASTS = {
    "dispatch_rate": 20.0,
    "publish_rate": 8.0,
    "size_limit": 15.0,
    "kill_gateway": 3.0,
    "kill_both_gateways": 2.0,
    "pause_gateway": 8.0,
}
_SYS_PIDFD_GETFD = 438


class Fault(NamedTuple):
    """`at` and `lasts` in seconds, from the beginning of the load. `target`: a topic, or the number of a gateway."""

    at: float
    kind: str
    target: str
    lasts: float


def plan(seed: int, seconds: float, spacing: float, topics: Iterable[str], kinds: Iterable[str] = KINDS) -> list[Fault]:
    """The same for the same arguments. Each kind comes once before one comes again.

    Faults last as `_LASTS` says, less where the spacing is below USUAL_SPACING. Rates and size limits overlap with what
    follows them; all is undone QUIET_SECONDS before the end.
    """
    rng = random.Random(seed)
    names = sorted(topics)
    faults: list[Fault] = []
    left: list[str] = []
    at = QUIET_SECONDS
    while at + spacing <= seconds - QUIET_SECONDS:
        if not left:
            if faults and spacing >= USUAL_SPACING:
                at += ROUND_QUIET_SECONDS
            left = list(kinds)
            rng.shuffle(left)
        kind = left.pop()
        target = rng.choice(names) if kind in _OF_ONE_TOPIC or kind == "publish_rate" else str(rng.randrange(2))
        if kind == "size_limit":
            target = "limited"
        lasts = _LASTS.get(kind, 0.0) * min(1.0, spacing / USUAL_SPACING)
        lasts = min(round(lasts, 1), seconds - QUIET_SECONDS - at)
        faults.append(Fault(round(at, 1), kind, target, lasts))
        pause = lasts if kind in ("pause_gateway", "kill_gateway", "kill_both_gateways") else 0.0
        at += max(spacing * rng.uniform(0.8, 1.2), pause + 1.0)
    return faults


class Rest:
    """Calls of Pulsar's admin REST that are repeated until they are answered."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, body: Any = None, *, root: str = "admin/v2", seconds: float = 60) -> Any:
        """The decoded answer. OSError, or HTTPError for what is refused."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        end = time.monotonic() + seconds
        while True:
            request = urllib.request.Request(f"{self._url}/{root}/{path}", data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=15) as answer:
                    text = answer.read()
                    return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()
            except urllib.error.HTTPError as error:
                if error.code < 500 or time.monotonic() > end:
                    raise
            except OSError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.5)


class Executor:
    """Performs a plan. `disturbances` has what was done, with the times at which it was."""

    def __init__(
        self,
        rest: Rest,
        namespace: str,
        topics: Iterable[Topic],
        gateways: list[KopOverPulsar],
        pulsar: Pulsar,
        broker_port: int,
    ) -> None:
        self._rest = rest
        self._namespace = namespace
        self._topics = {topic.name: topic for topic in topics}
        self._gateways = gateways
        self._pulsar = pulsar
        self._broker_port = broker_port
        self.disturbances: list[Disturbance] = []
        self.failures: list[str] = []
        """What could not be done, or undone: the run says less than it seems."""
        self.current = ""

    def run(self, faults: list[Fault], stop: Callable[[float], bool]) -> None:
        """Perform all at their times; `stop(seconds)` waits and says whether to end. All is undone at the end."""
        begin = time.monotonic()
        steps = [(fault.at, "begin", fault) for fault in faults] + [
            (fault.at + fault.lasts, "end", fault) for fault in faults
        ]
        began: dict[Fault, float] = {}
        stopped = False
        for at, what, fault in sorted(steps, key=lambda step: step[0]):
            stopped = stopped or stop(max(0.0, begin + at - time.monotonic()))
            if what == "begin" and not stopped:
                began[fault] = time.time()
                self.current = f"{fault.kind} {fault.target}"
                self._perform(fault, self._begin)
            elif what == "end" and fault in began:
                self._perform(fault, self._undo)
                topic = fault.target if fault.kind in _OF_ONE_TOPIC else ""
                self.disturbances.append(Disturbance(fault.kind, topic, began[fault], time.time() + AFTERMATH_SECONDS))

    def _perform(self, fault: Fault, step: Callable[[Fault], None]) -> None:
        try:
            step(fault)
        except (OSError, StartFailed) as error:
            self.failures.append(f"{fault.kind} {fault.target}: {error}")

    def _begin(self, fault: Fault) -> None:
        kind = fault.kind
        if kind == "unload_topic":
            self._rest.call("PUT", f"persistent/{self._namespace}/{fault.target}/unload")
        elif kind == "unload_namespace":
            self._rest.call("PUT", f"namespaces/{self._namespace}/unload")
        elif kind == "unload_gateways_namespace":
            self._rest.call("PUT", f"namespaces/{self._namespace}-kop/unload")
        elif kind == "unload_bundle":
            self._unload_bundle()
        elif kind == "dispatch_rate":
            self._policy("POST", fault.target, "dispatchRate", DISPATCH_POLICY)
        elif kind == "publish_rate":
            self._policy("POST", fault.target, "publishRate", PUBLISH_POLICY)
        elif kind == "size_limit":  # raised while it lasts
            self._policy("POST", fault.target, "maxMessageSize", 4 * SIZE_LIMIT)
        elif kind == "kill_gateway":
            self._gateways[int(fault.target)].kill()
        elif kind == "kill_both_gateways":
            for gateway in self._gateways:
                gateway.kill()
        elif kind == "pause_gateway":
            os.kill(self._gateways[int(fault.target)].pid, signal.SIGSTOP)
        elif kind == "cut_connections":
            for gateway in self._gateways:
                cut_connections(gateway.pid, self._broker_port)
        elif kind == "kill_broker":
            self._pulsar.restart()

    def _undo(self, fault: Fault) -> None:
        kind = fault.kind
        if kind in ("dispatch_rate", "publish_rate"):
            name = {"dispatch_rate": "dispatchRate", "publish_rate": "publishRate"}[kind]
            fixed = self._topics[fault.target].policies.get(name)
            self._policy("POST" if fixed else "DELETE", fault.target, name, fixed)
        elif kind == "size_limit":
            self._policy("POST", fault.target, "maxMessageSize", SIZE_LIMIT)
        elif kind in ("kill_gateway", "kill_both_gateways"):
            for gateway in self._gateways:
                if not gateway.running:
                    gateway.start()
        elif kind == "pause_gateway":
            os.kill(self._gateways[int(fault.target)].pid, signal.SIGCONT)

    def _policy(self, method: str, topic: str, name: str, value: Any) -> None:
        self._rest.call(method, f"persistent/{self._namespace}/{topic}/{name}", value)

    def _unload_bundle(self) -> None:
        topic = self._topics["kafka"].native_name(self._namespace, 0).removeprefix("persistent://")
        bundle = self._rest.call("GET", f"topic/persistent/{topic}/bundle", root="lookup/v2")
        self._rest.call("PUT", f"namespaces/{self._namespace}/{str(bundle).strip(chr(34))}/unload")


def cut_connections(pid: int, port: int) -> int:
    """Shut every TCP connection of a child process to a port down, on Linux 5.6 and newer; how many there were."""
    if sys.platform != "linux":
        raise OSError("connections of another process can be cut on Linux only")
    library = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    count = 0
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                if not os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                    continue
            except FileNotFoundError:
                continue
            copy = library.syscall(_SYS_PIDFD_GETFD, process, int(number), 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            with socket.socket(fileno=copy) as connection:
                try:
                    if connection.getpeername()[1] == port:
                        connection.shutdown(socket.SHUT_RDWR)
                        count += 1
                except (OSError, IndexError):
                    continue  # it listens, or is no TCP connection
    finally:
        os.close(process)
    return count
