"""How much memory a process may use, as Linux tells it: from files that the test writes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kop.memory_limit import usable_bytes

MIB = 2**20
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
UNLIMITED_V1 = "9223372036854771712"


def system(root: Path, groups: str, files: dict[str, object]) -> Path:
    """A file system with the list of a process's groups, and with limits, in files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, value in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": 512 * MIB}, 512 * MIB),
        ("0::/\n", {"memory.max": "max"}, MACHINE),
        ("0::/\n", {"memory.max": "max", "memory.high": 300 * MIB}, 300 * MIB),
        ("0::/\n", {}, MACHINE),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": 200 * MIB, "memory.max": 400 * MIB}, 200 * MIB),
        ("0::/not/seen/from/here\n", {"memory.max": 100 * MIB}, 100 * MIB),
        ("0::/../../sibling\n", {"memory.max": 100 * MIB}, 100 * MIB),
        ("5:cpu:/c\n4:memory:/c\n", {"memory/c/memory.limit_in_bytes": 128 * MIB}, 128 * MIB),
        ("4:hugetlb,memory:/c\n0::/\n", {"memory/memory.limit_in_bytes": 64 * MIB}, 64 * MIB),
        ("4:memory:/c\n", {"memory/c/memory.limit_in_bytes": UNLIMITED_V1}, MACHINE),
        ("0::/\n", {"memory.max": 2**60}, MACHINE),
        ("0::/\n", {"memory.max": "no number"}, MACHINE),
        ("no line of this form", {"memory.max": 1}, MACHINE),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, groups: str, files: dict[str, object], expected: int) -> None:
    assert usable_bytes(system(tmp_path, groups, files)) == expected


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    assert usable_bytes(tmp_path) == MACHINE


def test_a_limit_of_the_address_space_counts(tmp_path: Path) -> None:
    code = f"from kop.memory_limit import *; print(usable_bytes(Path({str(tmp_path)!r})))"
    limit = MACHINE // 2

    def narrow() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    done = subprocess.run([sys.executable, "-c", code], preexec_fn=narrow, capture_output=True, text=True, check=True)
    assert int(done.stdout) == limit
