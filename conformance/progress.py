"""How far a long run is: one line on a terminal; elsewhere a line every ten seconds.

Must not know: what runs.
"""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn


class ProgressLine:
    """One line on a terminal; elsewhere a line every ten seconds."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._terminal = console.is_terminal
        columns = (TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console, disable=not self._terminal)
        self._task = self._progress.add_task("")
        self._last = 0.0

    def __enter__(self) -> ProgressLine:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def due(self) -> bool:
        """Whether `update` would be seen now."""
        return self._terminal or time.monotonic() - self._last >= 10

    def update(self, text: str) -> None:
        """The state of a step that goes on."""
        if self.due:
            self._last = time.monotonic()
            self.say(text)

    def say(self, text: str) -> None:
        """Another step."""
        if self._terminal:
            self._progress.update(self._task, description=text)
        else:
            print(text, file=sys.stderr, flush=True)
