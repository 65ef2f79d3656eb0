"""Processes of `kop`, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cli.preloaded import Outcome, Preloaded
from click.testing import Result
from support.waiting import SECONDS

REPOSITORY = Path(__file__).parents[2]


def environment(**extra: str) -> dict[str, str]:
    """The environment of a fresh user: no variable of ours or of Python, 80 columns."""
    ours = ("KOP_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"COLUMNS": "80", "PYTHONPATH": str(REPOSITORY)} | extra


class Invoke(Protocol):
    """Runs a command that talks to no server, in this process."""

    def __call__(self, *arguments: str, **settings: Any) -> Result: ...


class Reset(Protocol):
    """Runs `kop groups reset-offsets` of one group: committed and new offset by partition."""

    def __call__(self, *arguments: str) -> dict[int, tuple[int, int]]: ...


@dataclass
class Kop:
    """Runs `kop COMMAND` against one server."""

    bootstrap: str
    preloaded: Preloaded

    def start(self, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
        """A command that goes on beside the test."""
        return subprocess.Popen(
            [sys.executable, "-m", "kop.cli.main", *arguments],
            env=environment(KOP_BOOTSTRAP=self.bootstrap),
            stdin=settings.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **settings,
        )

    def __call__(self, *arguments: str, given: bytes = b"") -> Outcome:
        outcome = self.preloaded.run(arguments, environment(KOP_BOOTSTRAP=self.bootstrap), given, SECONDS)
        assert "Traceback" not in outcome.err, outcome.err
        return outcome

    def ok(self, *arguments: str, given: bytes = b"") -> str:
        """Run, insist on exit code 0, return what it printed."""
        outcome = self(*arguments, given=given)
        assert outcome.code == 0, outcome
        return outcome.out
