"""The processes of a mesh: its driver, and a standalone Spark with a master and workers, as found in /proc.

Owns: how they are started, ended and found. Must not know: what the mesh does, when something is to be killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from conformance.servers import StartFailed, free_ports
from conformance.suites import HERE

EXECUTOR = "CoarseGrainedExecutorBackend"
"""The class of Spark's executors, in their command lines."""
WORKERS = 2
_CLASSES = "org.apache.spark.deploy"


def of_sessions(leaders: Iterable[int]) -> dict[int, tuple[int, str]]:
    """The living processes of some sessions: their parents, and their command lines."""
    wanted = set(map(str, leaders))
    there: dict[int, tuple[int, str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[3] in wanted and fields[0] != "Z":
                command = (stat.parent / "cmdline").read_text().replace("\0", " ")
                there[int(stat.parent.name)] = int(fields[1]), command
    return there


def kill(numbers: Iterable[int]) -> int:
    """End processes by SIGKILL; how many there were."""
    count = 0
    for number in numbers:
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)
            count += 1
    return count


def end_session(process: subprocess.Popen[Any]) -> None:
    """End every process of a session by SIGKILL."""
    while left := of_sessions([process.pid]):
        kill(left)
    process.wait()


def kill_python_workers(leaders: Iterable[int], chance: random.Random, *, each: bool = False) -> int:
    """End some of the Python workers of these sessions by SIGKILL, or all, with `each` always; how many."""
    there = of_sessions(leaders)
    daemons = [number for number, (_, command) in there.items() if "pyspark.daemon" in command]
    working = [number for number in daemons if there[number][0] in daemons] or daemons
    return kill(chance.sample(working, len(working) if each else chance.randint(1, len(working)))) if working else 0


def kill_executor(leaders: Iterable[int], chance: random.Random) -> int:
    """End an executor by SIGKILL; how many."""
    there = [number for number, (_, command) in of_sessions(leaders).items() if EXECUTOR in command]
    return kill([chance.choice(there)]) if there else 0


class Killable(Protocol):
    """What can be killed and started again: a driver, or a server."""

    def kill(self) -> None:
        """End it by SIGKILL."""

    def start(self) -> object:
        """Start it, again if it was killed."""


def kill_and_start(victim: str, driver: Killable, server: Killable) -> bool:
    """Kill the driver or the gateway, whichever `victim` names, and start it again; false if it names something
    else.
    """
    killed = {"driver": driver, "gateway": server}.get(victim)
    if killed is None:
        return False
    killed.kill()
    killed.start()
    return True


class Driver:
    """The process of `kop mesh run --yes`, with its JVM and, without a cluster, its workers: all of its session.

    `folder` has its log, the file of what Spark prints, and in `tmp` the checkpoints of its components.
    """

    def __init__(self, python: str, arguments: Sequence[str], folder: Path, runs_in: Path | None = None) -> None:
        """`runs_in`: its working folder, if that is another one than ours."""
        self.log = folder / "driver.log"
        self._runs_in = runs_in
        self.folder = folder
        self._command = [python, "-m", "kop.cli.main", "mesh", "run", "--yes", *arguments]
        self.checkpoints = folder / "tmp"
        self.checkpoints.mkdir(exist_ok=True)
        self._environment = os.environ | {
            "PYTHONPATH": str(HERE.parent),
            "TMPDIR": str(self.checkpoints),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._runs_in,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End every process of the session by SIGKILL."""
        if self.process is not None:
            end_session(self.process)
            self.process = None

    def run_to_end(self, what: str, seconds: float) -> None:
        """Start it, wait for its end, and kill what is left of it then. Ends this process with the reason if it fails
        or takes longer; `what` names the run.
        """
        self.start()
        assert self.process is not None
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(seconds)
        finally:
            self.kill()
        if code != 0:
            why = f"did not end within {seconds:g} s" if code is None else f"ended with {code}"
            sys.exit(f"{what} {why}:\n{self.tail(40)}")

    def stop(self) -> float:
        """End it as Ctrl-C does, which all processes of the terminal get, unless it has ended by itself; how many
        seconds that took.
        """
        assert self.process is not None
        began = time.monotonic()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(60)
        seconds = time.monotonic() - began
        if code:
            sys.exit(f"kop mesh run ended with {code}:\n{self.tail(40)}")
        end_session(self.process)
        self.process = None
        return seconds

    def tail(self, lines: int) -> str:
        """The last lines of what it has said, and of what Spark and the functions have printed."""
        printed = sorted((self.folder / "cache").glob("kop/meshes/*.log"))
        texts = [
            path.read_text(errors="replace").splitlines()[-lines:] for path in [self.log, *printed] if path.exists()
        ]
        return "\n".join(line[:300] for text in texts for line in text)


class Standalone:
    """A master and workers of Spark on 127.0.0.1, from PySpark's own jars: a context manager that gives its URL."""

    def __init__(self, python: str, folder: Path, cores: int) -> None:
        """`cores`: of each worker."""
        self._folder = folder
        self._cores = cores
        (package,) = Path(python).parents[1].glob("lib/python*/site-packages/pyspark")
        self._package = package
        self._python = python
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def leaders(self) -> list[int]:
        """The leaders of the sessions of workers."""
        return [process.pid for process in self._processes[1:]]

    @property
    def settings(self) -> Mapping[str, str]:
        """What a driver has to be told of it."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(HERE.parent),
        }

    def _start(self, name: str, *arguments: str) -> None:
        environment = os.environ | {
            "SPARK_HOME": str(self._package),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": self._python,
            "XDG_CACHE_HOME": str(self._folder / "cache"),
        }
        with (self._folder / f"spark-{len(self._processes)}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    ["bash", str(self._package / "bin" / "spark-class"), f"{_CLASSES}.{name}", *arguments],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def __enter__(self) -> str:
        port = free_ports(2)
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(port + 1))
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if self._processes[0].poll() is not None or time.monotonic() > end:
                    self.__exit__()
                    raise StartFailed((self._folder / "spark-0.log").read_text()[-2000:]) from None
                time.sleep(0.2)  # it does not say when it listens
        url = f"spark://127.0.0.1:{port}"
        for number in range(WORKERS):
            work = self._folder / f"work-{number}"
            given = ["-c", str(self._cores), "-m", "1g", "--host", "127.0.0.1", "--webui-port", "0", "-d", str(work)]
            self._start("worker.Worker", *given, url)
        return url

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            end_session(process)
        self._processes.clear()
