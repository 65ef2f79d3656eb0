"""What is broken when: a plan from a seed, its execution, and what was done.

Owns: the order of faults, who undoes them, how the servers of a run are broken.
Must not know: clients, which kinds of faults a run has beside those of its servers, and what is right.
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
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from conformance.servers import StartFailed

_SYS_PIDFD_GETFD = 438


class Fault(NamedTuple):
    """`at` and `lasts` in seconds, from the beginning of the load. `target`: a topic, or a server by its number."""

    at: float
    kind: str
    target: str
    lasts: float


class Disturbance(NamedTuple):
    """A time in which something was broken, its aftermath included. `target` is empty where it concerns all."""

    kind: str
    target: str
    begin: float
    end: float


class Spacing(NamedTuple):
    """How the faults of a plan follow each other. Times are in seconds."""

    usual: float
    """Time from one fault to the next, for which `lasts` is meant: faults that are closer last for less."""
    quiet: float
    """Time before the first fault, and behind the last."""
    lasts: Mapping[str, float]
    """How long a fault of a kind lasts; 0 for others."""
    round_quiet: float = 0.0
    """Time behind each round of all kinds, in plans of the usual spacing: what is slow then has no excuse."""
    overlapping: Collection[str] = ()
    """Kinds that overlap with what follows them; all others end before the next fault begins."""


def plan(
    spacing: Spacing,
    seed: int,
    seconds: float,
    between: float,
    kinds: Iterable[str],
    target: Callable[[random.Random, str], str],
) -> list[Fault]:
    """The same for the same arguments. Each kind comes once before one comes again.

    `target(rng, kind)` says what a fault is about. All is undone `spacing.quiet` seconds before the end.
    """
    rng = random.Random(seed)
    known = list(kinds)
    faults: list[Fault] = []
    left: list[str] = []
    at = spacing.quiet
    while known and at + between <= seconds - spacing.quiet:
        if not left:
            if faults and between >= spacing.usual:
                at += spacing.round_quiet
            left = known.copy()
            rng.shuffle(left)
        kind = left.pop()
        about = target(rng, kind)
        lasts = spacing.lasts.get(kind, 0.0) * min(1.0, between / spacing.usual)
        lasts = min(round(lasts, 1), seconds - spacing.quiet - at)
        faults.append(Fault(round(at, 1), kind, about, lasts))
        at += max(between * rng.uniform(0.8, 1.2), (0.0 if kind in spacing.overlapping else lasts) + 1.0)
    return faults


def nearest(disturbances: Iterable[Disturbance], at: float) -> Disturbance | None:
    """The disturbance that began last before `at`, else the first one."""
    ordered = sorted(disturbances, key=lambda disturbance: disturbance.begin)
    if not at or not ordered:
        return None
    return ordered[max(0, bisect_left([disturbance.begin for disturbance in ordered], at) - 1)]


class Server(Protocol):
    """A process that can be ended and started again, on the port that it had."""

    @property
    def pid(self) -> int: ...
    @property
    def running(self) -> bool: ...
    @property
    def log(self) -> Path: ...
    def start(self) -> str: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...


class Executor(ABC):
    """Performs a plan. `disturbances` has what was done, with the times at which it was."""

    def __init__(self, servers: Sequence[Server], *, overlapping: Collection[str] = (), aftermath: float = 0.0) -> None:
        """`overlapping`: see `Spacing`. For `aftermath` seconds a fault is felt once it is undone."""
        self._servers = servers
        self._overlapping = overlapping
        self._aftermath = aftermath
        self.disturbances: list[Disturbance] = []
        self.failures: list[str] = []
        """What could not be done, or undone: the run says less than it seems."""
        self.current = ""

    def run(self, faults: Iterable[Fault], stop: Callable[[float], bool]) -> None:
        """Perform all at their times; `stop(seconds)` waits and says whether to end. All is undone at the end."""
        begin = time.monotonic()
        open_faults: list[tuple[float, Fault, float]] = []
        """By the time at which they are undone, with the time at which they began."""

        def wait(until: float) -> bool:
            """Wait, and undo what is due; True where the run ends."""
            while open_faults and open_faults[0][0] <= until:
                due, fault, began = open_faults.pop(0)
                stop(max(0.0, due - time.monotonic()))
                self._perform(fault, self._undo)
                end = time.time() + self._aftermath
                self.disturbances.append(Disturbance(fault.kind, self._concerned(fault), began, end))
            return stop(max(0.0, until - time.monotonic()))

        for fault in faults:
            if wait(begin + fault.at):
                break
            began = time.time()
            self.current = f"{fault.kind} {fault.target}"
            self._perform(fault, self._begin)
            due = time.monotonic() + fault.lasts
            open_faults.append((due, fault, began))
            open_faults.sort(key=lambda each: each[0])
            if fault.kind not in self._overlapping:
                wait(due)
        wait(max((due for due, _, _ in open_faults), default=0.0))

    def _perform(self, fault: Fault, step: Callable[[Fault], None]) -> None:
        try:
            step(fault)
        except (OSError, StartFailed) as error:
            self.failures.append(f"{fault.kind} {fault.target}: {error}")

    @abstractmethod
    def _begin(self, fault: Fault) -> None:
        """Break something. OSError, StartFailed."""

    @abstractmethod
    def _undo(self, fault: Fault) -> None:
        """Mend what `_begin` has broken. OSError, StartFailed."""

    def _concerned(self, fault: Fault) -> str:
        """The target of the disturbance that a fault is."""
        return fault.target

    def _kill_all(self) -> None:
        for server in self._servers:
            server.kill()

    def _start_again(self) -> None:
        for server in self._servers:
            if not server.running:
                server.start()

    def _pause(self, number: int) -> None:
        os.kill(self._servers[number].pid, signal.SIGSTOP)

    def _go_on(self, number: int) -> None:
        os.kill(self._servers[number].pid, signal.SIGCONT)


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
