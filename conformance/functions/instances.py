"""The instances of a function, one after the other or side by side, as `kop functions localrun` starts them.

Owns: which instance is the one that works, what was done to each, when one that ended by itself gets a successor.
Must not know: what is done when, and what is right.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from conformance.functions.oracle import Life
from conformance.servers import HERE

PROGRAM = HERE / "functions" / "program.py"
START_SECONDS = 60.0
"""For an instance to take messages."""
STOP_SECONDS = 30.0
"""For one to end that was told to."""


class NotStartedError(OSError):
    """An instance takes no messages: what should be done to it is not done."""


@dataclass
class _Instance:
    number: int
    process: subprocess.Popen[bytes]
    log: Path
    how: str = ""
    at: float = 0.0
    paused: bool = False

    def text(self) -> str:
        """What it has said."""
        return self.log.read_text(errors="replace")

    @property
    def takes(self) -> bool:
        """True once it misses nothing."""
        return "; Ctrl-C ends it" in self.text()

    def life(self) -> Life:
        """Return what became of it."""
        lines = self.text().splitlines()
        return Life(self.number, self.how, self.at, self.process.poll(), lines[-1] if lines else "")


class Instances:
    """All instances of a function. `command` are the flags of `localrun`; for one thread, but for `keep_running`."""

    def __init__(self, name: str, flags: list[str], bootstrap: str, folder: Path) -> None:
        self.name = name
        self._command = [sys.executable, "-m", "kop.cli.main", "functions", "localrun", "--py", str(PROGRAM), *flags]
        self._command += ["--bootstrap", bootstrap]
        self._folder = folder
        self._all: list[_Instance] = []
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many were started."""
        return len(self._all)

    @property
    def current(self) -> _Instance:
        """The one that works."""
        return self._all[-1]

    def start(self) -> None:
        """Start another one; the one before is nobody's concern any more."""
        number = len(self._all) + 1
        path = self._folder / f"{self.name}-{number}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=HERE.parent,
                env=os.environ | {"PYTHONFAULTHANDLER": "1"},
                start_new_session=True,
            )
        self._all.append(_Instance(number, process, path))

    def await_start(self, seconds: float = START_SECONDS) -> None:
        """Wait until the one that works takes messages. NotStartedError."""
        until = time.monotonic() + seconds
        while not self.current.takes:
            if time.monotonic() > until:
                raise NotStartedError(f"instance {self.current.number} of {self.name} does not start")
            self.keep_running()
            time.sleep(0.1)  # until its log is looked at again

    def kill(self) -> None:
        """End the one that works by SIGKILL, and start another one."""
        with self._lock:
            self._mark("killed")
            self.current.process.kill()
            self.current.process.wait()
            self.start()

    def stop(self) -> None:
        """End the one that works by SIGTERM, and start another one when it has ended."""
        self.await_start()
        with self._lock:
            self._end()
            self.start()

    def pause(self) -> int:
        """Stop the one that works by SIGSTOP, and start another one; returns its number for `wake`."""
        self.await_start()
        with self._lock:
            self._mark("replaced")
            self.current.paused = True
            os.kill(self.current.process.pid, signal.SIGSTOP)
            number = self.current.number
            self.start()
        return number

    def wake(self, number: int) -> None:
        """Let one go on that was paused: from here on it should end."""
        instance = self._all[number - 1]
        instance.at, instance.paused = time.time(), False
        os.kill(instance.process.pid, signal.SIGCONT)

    def start_beside(self) -> None:
        """Start another one beside the one that works."""
        self.await_start()
        with self._lock:
            self._mark("replaced")
            self.start()

    def keep_running(self) -> None:
        """Start another one if the one that works has ended by itself."""
        with self._lock:
            if self.current.process.poll() is not None:
                self._mark("")
                self.start()

    def finish(self) -> None:
        """End the one that works; the others have had their time."""
        with self._lock:
            self._end()

    @property
    def has_replaced(self) -> bool:
        """True if one that was replaced has not ended."""
        return any(each.how == "replaced" and each.process.poll() is None for each in self._all)

    def await_replaced(self, seconds: float) -> None:
        """Wait until those have ended that were replaced; after so many seconds they are ended."""
        until = time.monotonic() + seconds
        for each in self._all:
            if each.how == "replaced":
                _await(each, max(0.1, until - time.monotonic()))

    def end_all(self) -> None:
        """End by SIGKILL what is left."""
        for instance in self._all:
            instance.process.kill()
            instance.process.wait()

    def lives(self) -> list[Life]:
        """Return what became of each."""
        return [instance.life() for instance in self._all]

    def _mark(self, how: str) -> None:
        self.current.how, self.current.at = how, time.time()

    def _end(self) -> None:
        self._mark("stopped")
        self.current.process.terminate()
        _await(self.current, STOP_SECONDS)


def _await(instance: _Instance, seconds: float) -> None:
    """Wait until one has ended; after so many seconds let it say where its threads are, and end."""
    try:
        instance.process.wait(seconds)
    except subprocess.TimeoutExpired:
        instance.process.send_signal(signal.SIGABRT)
        instance.process.wait()


def flags(values: dict[str, object]) -> list[str]:
    """Return what describes a function on a command line."""
    return [
        part
        for name, value in values.items()
        for part in (f"--{name}", value if isinstance(value, str) else json.dumps(value))
    ]
