"""The processes of a run's clients, one for each family: told on stdin, ended by its end.

Owns: how a process is started, and what it is a problem that it does.
Must not know: what a process is told, and what it does.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from conformance.servers import HERE


class Processes:
    """The processes; they go with `stack`. `who` names them in problems, and in the names of their logs."""

    def __init__(self, stack: ExitStack, folder: Path, who: str) -> None:
        self._stack = stack
        self._folder = folder
        self._who = who
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.problems: list[str] = []

    def start(self, family: str, command: Sequence[str], *, answers: bool = False) -> None:
        """Start one. With `answers` its stdout is for `heard`, else it goes to its log."""
        errors = self._stack.enter_context((self._folder / f"{self._who}-{family}.log").open("w"))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else errors,
            stderr=errors,
            text=True,
            cwd=HERE.parent,
        )
        self._stack.callback(process.kill)
        self._processes[family] = process

    def tell(self, family: str, line: str) -> None:
        """Write a line to its stdin. One that has died is told of by `stop`."""
        stdin = self._processes[family].stdin
        assert stdin is not None
        try:
            stdin.write(line + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass

    def heard(self, line: str, problem: str) -> None:
        """Wait until each has said this line; it is a problem where one does not."""
        for family, process in self._processes.items():
            assert process.stdout is not None
            if process.stdout.readline() != line + "\n":
                self.problems.append(f"the {problem.format(family)}")

    def stop(self, seconds: float) -> None:
        """End all of them within so many seconds."""
        for process in self._processes.values():
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        until = time.monotonic() + seconds
        for family, process in self._processes.items():
            try:
                if process.wait(max(1.0, until - time.monotonic())):
                    self.problems.append(f"the {self._who} of {family} ended with {process.returncode}, see their log")
            except subprocess.TimeoutExpired:
                process.kill()
                self.problems.append(f"the {self._who} of {family} did not end within {seconds:g} s")
