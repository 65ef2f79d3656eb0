"""The memory that this process may use: by the machine, by its control groups, by its own address space.

Owns: where Linux says so, cgroup v1 and v2.
Must not know: what the memory is for.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_V2_FILES: Final = ("memory.max", "memory.high")
_V1_FILES: Final = ("memory.limit_in_bytes",)


def usable_bytes(root: Path = Path("/")) -> int:
    """Return the least of the memory limits, in bytes, that hold for this process; 0 if the system tells none. `root`
    is the file system.

    A process in a container may see the name of its control group, and not the group itself: then the limits of those
    above it hold that are there, of which the container's own one is the highest.
    """
    limits = [*_machine(), *_address_space(), *_groups(root)]
    return min(limits, default=0)


def _machine() -> Iterator[int]:
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return


def _address_space() -> Iterator[int]:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield soft


def _groups(root: Path) -> Iterator[int]:
    try:
        rows = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for row in rows:
        _, controllers, path = (*row.split(":", 2), "", "")[:3]
        if not path:
            continue
        if not controllers:
            yield from _limits(mounts, path, _V2_FILES)
        elif "memory" in controllers.split(","):
            yield from _limits(mounts / "memory", path, _V1_FILES)


def _limits(mount: Path, path: str, names: tuple[str, ...]) -> Iterator[int]:
    """Yield the memory limits, in bytes, of the control group at `path` and of all groups above it, as far as files of
    these names are visible below `mount`.
    """
    inside = PurePosixPath(path.lstrip("/"))
    for group in (inside, *inside.parents):
        for name in names:
            try:
                yield int((mount / group / name).read_text())
            except (OSError, ValueError):  # none, or "max"
                continue
