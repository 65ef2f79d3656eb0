"""Runs suites, each in a process group of its own, and collects what they print.

Owns: processes, silence and time limits, the order of suites. Must not know: what a result means for the run.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from conformance.protocol import Collector, Result
from conformance.suites import Missing, Suite

SILENCE = 300.0
"""Seconds without a line after which a suite is stopped."""
TOTAL = 3600.0
"""Seconds after which a suite is stopped whatever it prints."""

Listener = Callable[[Result], None]

_running: set[subprocess.Popen[str]] = set()
_stopped = threading.Event()


def run_all(suites: Sequence[Suite], arguments: Sequence[str], jobs: int, listener: Listener) -> list[Collector]:
    """Every suite with these arguments, `jobs` at a time; the collectors in the order in which they began."""
    together = [suite for suite in suites if not suite.last]
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        try:
            return list(pool.map(lambda suite: run(suite, arguments, listener), together)) + [
                run(suite, arguments, listener) for suite in suites if suite.last
            ]
        except BaseException:  # Ctrl-C: the pool waits for its threads, they wait for their suites
            pool.shutdown(wait=False, cancel_futures=True)
            _stopped.set()
            for process in list(_running):
                _kill(process)
            raise


def run(suite: Suite, arguments: Sequence[str], listener: Listener) -> Collector:
    """One suite from its installation to its last line."""
    collector = Collector(suite.name)
    try:
        command = [*suite.prepare(), *arguments]
    except Missing as reason:
        collector.missing = str(reason)
        return collector
    with tempfile.TemporaryFile("w+") as noise:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
            errors="replace",
            env=os.environ | suite.environment | {"PYTHONWARNINGS": "ignore"},
            start_new_session=True,
        )
        _running.add(process)
        try:
            why = _listen(process, collector, listener)
        finally:
            _kill(process)
            _running.discard(process)
        if process.returncode and not collector.results and collector.missing is None:
            noise.seek(0)
            lines = noise.read().strip().splitlines()
            why += f" ({lines[-1]})" if lines else ""
    if _stopped.is_set():
        return collector
    for lost in collector.finish(why):
        listener(lost)
    if not collector.results and collector.missing is None:
        collector.results[""] = Result(suite.name, "suite starts", False, why)
        listener(collector.results[""])
    return collector


def _listen(process: subprocess.Popen[str], collector: Collector, listener: Listener) -> str:
    """Read until the suite ends or is stopped; returns why it ended."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
    end = time.monotonic() + TOTAL
    try:
        while True:
            try:
                line = lines.get(timeout=min(SILENCE, max(0.1, end - time.monotonic())))
            except queue.Empty:
                return f"the suite was stopped after {SILENCE:g} s of silence"
            if line is None:
                process.wait(10)
                return f"the suite ended with exit code {process.returncode}"
            result = collector.feed(line)
            if result is not None:
                listener(result)
            if time.monotonic() > end:
                return f"the suite was stopped after {TOTAL:g} s"
    except subprocess.TimeoutExpired:
        return "the suite closed its output and went on"


def _kill(process: subprocess.Popen[str]) -> None:
    """End a suite, and with it the clients that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _pump(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
