"""What the benchmarks share: a load in a process of its own, what a process has used, tables.

Must not know: servers.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
RECORD_BYTES = 1024


def load(script: str, *args: object) -> dict[str, float]:
    """Run one load, SCRIPT of this folder, in a process of its own; what it says it saw."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        raise SystemExit(f"the load failed (see above): {' '.join(map(str, (script, *args)))}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used so far, all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
