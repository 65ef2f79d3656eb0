"""What the benchmark shares: a load in a process of its own, what a process has used, tables.

Must not know: servers, rows.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LIBC = ctypes.CDLL(None)
ROOT = Path(__file__).parents[2]
LOAD_SECONDS = 600
IDLE_SECONDS = 15.0
"""So long at most a server may go on working for what was before."""


class LoadFailed(Exception):
    """A load did not do what it was asked for; the text says what it said."""


def load(module: str, *arguments: object) -> dict[str, Any]:
    """Run one load, a module of this folder, in a process of its own; what it says it saw. LoadFailed."""
    command = [sys.executable, "-m", f"conformance.bench.{module}", *map(str, arguments)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{module} {arguments} did not end within {LOAD_SECONDS} s") from None
    if done.returncode:
        raise LoadFailed("\n".join(done.stderr.splitlines()[-15:]) or f"{module} {arguments} failed")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used so far, all threads, user and system: the kernel's clock of it, in nanoseconds."""
    clock = ctypes.c_int()
    if code := _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(code, f"no process {pid}")
    return time.clock_gettime(clock.value)


def settle(pid: int) -> None:
    """Wait until a process is idle, so that what it still does is not counted for what comes next."""
    end = time.monotonic() + IDLE_SECONDS
    before = cpu_seconds(pid)
    while time.monotonic() < end:
        time.sleep(0.2)
        now = cpu_seconds(pid)
        if now - before < 0.01:
            return
        before = now


def twin(checkout: Path) -> str:
    """Whether the gateway of a checkout runs compiled code or its readable twin: figures of the two do not compare."""
    own = checkout / ".venv" / "bin" / "python"
    command = [str(own) if own.exists() else sys.executable, "-c"]
    command.append("from kop.records.transcode import NATIVE; print('compiled' if NATIVE else 'plain Python')")
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or "unknown"


def resident_mib(pid: int) -> float:
    """Memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise LookupError("no VmRSS")


def machine() -> str:
    """This machine in a line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in Markdown, the first is the head; numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("| " + " | ".join(cells) + " |")
    rule = ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])
