"""Processes that run code of users: forked from one that has the modules loaded, with their output in a pipe.

Owns: the fork server, what such a process does first, the last lines that it wrote.
Must not know: what runs in it.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any, Final

PRELOADED: Final = ("kop.cli.main", "kop.functions.forkserver_preload")
"""Modules of the fork server: no thread and no socket begins by their import. The first one is what multiprocessing
imports again in each process of a worker, since it is the main module's; the last one keeps all of them shared."""
TAIL_LINES: Final = 30
LINE_CHARACTERS: Final = 500


class LastLines:
    """The last lines of what a process wrote."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Append output, and drop all but the last 30 lines."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: LINE_CHARACTERS * 4]
        self._lines.extend(map(_text, lines[-TAIL_LINES:]))

    @property
    def lines(self) -> list[str]:
        """The last lines, the one that is not ended among them."""
        return [*self._lines, _text(self._rest)][-TAIL_LINES:] if self._rest else list(self._lines)


def _text(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip("\r")
    return text if len(text) <= LINE_CHARACTERS else f"{text[:LINE_CHARACTERS]}..."


def context() -> ForkServerContext:
    """Return multiprocessing's context with which processes are started: forked from a server that has kop's modules
    loaded.
    """
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(list(PRELOADED))
    return made


def warm_up() -> None:
    """Start the fork server, so that the first process need not wait for it."""
    context()
    forkserver.ensure_running()


def start(name: str, work: Callable[..., object], *given: Any) -> tuple[BaseProcess, Connection]:
    """Start `work(*given)` in a process of its own; returns the process, and the pipe with what it writes to stdout and
    stderr.

    The pipe has to be read: a process that has filled it waits.
    """
    made = context()
    reading, writing = made.Pipe(duplex=False)
    process = made.Process(target=_begin, args=(writing, work, *given), name=name)
    process.start()
    writing.close()
    return process, reading


def _begin(output: Connection, work: Callable[..., object], *given: Any) -> None:
    """Prepare a new process and run `work(*given)` in it: it leads a session, ignores SIGINT, and its output goes to
    the pipe.
    """
    gc.enable()
    os.setsid()  # whatever it starts is ended with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started it
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(all_threads=False)
    work(*given)


def kill(process: BaseProcess, number: int = signal.SIGKILL) -> None:
    """Send a signal, SIGKILL by default, to a process and to all that it has started in its group; do nothing if it has
    ended.
    """
    if process.pid is None:
        return
    for send in (os.killpg, os.kill):
        try:
            send(process.pid, number)
        except (ProcessLookupError, PermissionError):
            continue
        return


def ended(code: int | None) -> str:
    """Return in words how a process ended, by its exit code."""
    if code is None:
        return "the process has ended"
    if code >= 0:
        return f"the process ended itself, with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the process was ended by {name}"
