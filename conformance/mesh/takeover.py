"""Pauses the driver of a mesh until another one has taken over, lets it go on, and counts what comes out.

    python -m conformance.mesh.takeover [--python PATH]

Two drivers of one mesh, the second of which waits. First the process of the first driver is paused, while Spark and its
tasks go on; then, the other way round, the second one with all of its processes. Each time the other one has to take
over, the one that wakes has to see that it has lost the mesh, and from then on no query may fail: two drivers that took
transactional ids from each other in turn would fail for ever. In the end each record has to be there once, with the
counts of its key in order. Needs Java 17; PySpark goes into the venv of the suite `spark-kop`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from conformance.mesh.__main__ import BETWEEN, MESH, PARTITIONS, SECONDS, Numbers, Output, faults_of
from conformance.mesh.processes import Driver, of_sessions
from conformance.mesh.pyspark_python import add_options, python_of
from conformance.servers import Kop
from conformance.suites import HERE

QUIET = 3 * BETWEEN
"""How many records have to come out, once both know who drives, without a failure of a query."""


class Paused(Driver):
    """A driver of which processes can be paused."""

    def __init__(self, python: str, arguments: list[str], folder: Path) -> None:
        folder.mkdir()
        super().__init__(python, arguments, folder)
        self.paused: list[int] = []

    def pause(self, *, whole: bool) -> None:
        """Pause the process of the driver, or all of its session."""
        assert self.process is not None
        self.paused = list(of_sessions([self.process.pid])) if whole else [self.process.pid]
        self._send(self.paused, signal.SIGSTOP)

    def wake(self) -> None:
        self._send(self.paused, signal.SIGCONT)
        self.paused = []

    @staticmethod
    def _send(numbers: Iterable[int], what: signal.Signals) -> None:
        for number in numbers:
            try:
                os.kill(number, what)
            except ProcessLookupError:
                continue

    def told(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_until(self, text: str, count: int = 1) -> None:
        """Wait until the driver has said something so often."""
        end = time.monotonic() + SECONDS
        while self.told().count(text) < count:
            if time.monotonic() > end:
                sys.exit(f"a driver has not said {text!r} {count} times:\n{self.told()[-3000:]}")
            time.sleep(0.3)  # a log does not say when it grows


def await_records(output: Output, count: int, driver: Driver) -> None:
    """Wait until so many records have come out."""
    end = time.monotonic() + SECONDS
    while output.read() < count:
        code = None if driver.process is None else driver.process.poll()
        if code is not None or time.monotonic() > end:
            why = f"the driver ended with {code}" if code is not None else f"no {count} records within {SECONDS:g} s"
            sys.exit(f"{why}; there are {output.read()}:\n{driver.tail(25)}")
        time.sleep(0.3)  # a topic does not say when it grows


def takeovers(python: str) -> dict[str, int]:
    """Pause each of two drivers in turn; what is wrong with what came out."""
    with tempfile.TemporaryDirectory(prefix="kop-mesh-takeover-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "kop").mkdir()
        (folder / "functions.py").write_text((HERE / "mesh" / "functions.py").read_text())
        (folder / "mesh.yaml").write_text(MESH.format(trigger="continuous", dice="dice", fuse="true"))
        settings = {"num.partitions": str(PARTITIONS), "group.initial.rebalance.delay.ms": "0"}
        with Kop(folder / "kop", settings=settings) as bootstrap:
            arguments = [str(folder / "mesh.yaml"), "--bootstrap", bootstrap]
            first, second = (Paused(python, arguments, folder / which) for which in ("first", "second"))
            output = Output(bootstrap)
            numbers = Numbers(bootstrap)
            try:
                first.start()
                await_records(output, BETWEEN, first)
                second.start()
                second.wait_until("waiting to take over")
                failures = 0
                for whole, paused, other in ((False, first, second), (True, second, first)):
                    paused.pause(whole=whole)
                    began = time.monotonic()
                    other.wait_until(" runs in ", 1 if other is second else 2)
                    await_records(output, output.read() + BETWEEN, other)
                    seconds = time.monotonic() - began
                    paused.wake()
                    paused.wait_until("has another driver now")
                    paused.wait_until("waiting to take over", 1 if paused is first else 2)
                    before = other.told().count("has failed")
                    await_records(output, output.read() + QUIET, other)
                    failures += other.told().count("has failed") - before
                    what = "all processes of a driver" if whole else "the process of a driver"
                    print(f"  {what} paused: the other one did {BETWEEN} records after {seconds:.1f} s", flush=True)
                sent = numbers.stop()
                await_records(output, sent, first)
                second.stop()
                first.stop()
            finally:
                numbers.stop()
                for driver in (first, second):
                    driver.wake()
                    driver.kill()
            output.read()
        faults = faults_of(output.values, sent) | {"failures once both knew": failures}
        print(
            f"{sent} records, 2 takeovers: {', '.join(f'{count} {what}' for what, count in faults.items())}", flush=True
        )
        return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.mesh.takeover", description=__doc__.partition("\n")[0])
    add_options(parser)
    python = python_of(parser.parse_args())
    return 1 if any(takeovers(python).values()) else 0


if __name__ == "__main__":
    sys.exit(main())
