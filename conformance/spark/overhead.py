"""What a small batch of a stream and an idle query cost by `format("kop")`; sinks that do nothing stand beside.

    python -m conformance.spark.overhead [--batches N] [--seconds S]

A gateway of this checkout, embedded, and one session of the newest PySpark with two cores. A batch is one row for each
of two tasks: nearly all of its time is Spark's own. `noop` is Spark's sink that does nothing, in Java; `noop-python` is
such a one in Python, so that what lies between them is what Spark takes for any sink in Python. Then a query waits for
rows that nobody writes, and the CPU time of the gateway is read from the kernel's accounting.

Needs Java 17, as the suite `spark-kop`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from conformance.servers import Kop
from conformance.spark.speed import cpu
from conformance.suites import HERE, Missing, python_clients


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.spark.overhead", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--batches", type=int, default=40, help="of each sink (40)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which the idle query is watched (20)")
    asked = parser.parse_args()
    try:
        python = str(python_clients("venv-spark-newest", "requirements-spark-newest.txt"))
    except Missing as error:
        sys.exit(f"PySpark cannot be installed: {error}")
    kop = Kop()
    with kop as bootstrap, tempfile.TemporaryDirectory(prefix="kop-spark-overhead-") as folder:
        driver = subprocess.Popen(
            [python, str(Path(__file__).with_name("overhead_driver.py")), bootstrap, str(asked.batches), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(HERE.parent)},
            start_new_session=True,
        )
        assert driver.stdin is not None
        assert driver.stdout is not None
        idle = None
        medians: dict[str, float] = {}
        try:
            for line in driver.stdout:
                if line.startswith("{"):
                    took = json.loads(line)
                    medians[took["sink"]] = statistics.median(took["milliseconds"])
                elif line.startswith("idle"):
                    time.sleep(2)  # what came before is over in the gateway, too
                    before, begun = cpu([kop.pid]), time.perf_counter()
                    time.sleep(asked.seconds)  # the span that is measured
                    idle = (cpu([kop.pid]) - before) / (time.perf_counter() - begun)
                    break
        finally:
            driver.stdin.close()
            driver.wait(60)
        if idle is None:
            sys.exit("the driver ended: its error is above")
    print(f"batches of two rows, PySpark's newest, medians of {asked.batches}")
    print("sink          ms a batch   of noop   of noop-python")
    for sink, took in medians.items():
        print(f"{sink:13} {took:10.0f} {took / medians['noop']:9.2f} {took / medians['noop-python']:16.2f}")
    print(f"a query with nothing to read takes {idle:.1%} of a core of the gateway")
    return 0


if __name__ == "__main__":
    sys.exit(main())
