"""A second attempt of the few tests that failed: `pytest` runs, and again, alone, with no more than three failures.

Thousands of tests with real clients, processes and clocks share two cores; a test that only then fails is a defect of
that test, and does not hold back the work of everybody. It is named in the last line, so that somebody mends it. More
failures than three, or one that fails again, fail the run. Kafka and Pulsar run their own suites so.

    python tests/support/second_attempt.py [arguments of pytest]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 3
"""A second attempt is for chance: more failures than these have a cause."""


def failed(cache: Path) -> list[str]:
    """Return the names of the tests that failed in the run that had this folder as its cache."""
    names = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(names.read_text())) if names.exists() else []


def without_workers(arguments: list[str]) -> list[str]:
    """Return the arguments without `-n NUMBER` and `--dist HOW`: the second attempt is alone."""
    kept = list(arguments)
    for option in ("-n", "--dist"):
        while option in kept:
            place = kept.index(option)
            del kept[place : place + 2]
    return kept


def main(arguments: list[str]) -> int:
    """Run pytest, and again what failed; return its exit code."""
    with tempfile.TemporaryDirectory(prefix="kop-tests-") as folder:
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={folder}"]
        status = subprocess.run([*pytest, *arguments], check=False).returncode
        names = failed(Path(folder))
        if status != 1 or not 0 < len(names) <= MOST:
            return status
        print(f"\nA second attempt, alone, of {len(names)}:", *names, sep="\n  ", flush=True)
        second = [*pytest, "--last-failed", "--last-failed-no-failures", "none", *without_workers(arguments)]
        status = subprocess.run(second, check=False).returncode
        if status == 0:
            print(f"passed at the second attempt alone, and is to be mended: {', '.join(names)}")
        return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
