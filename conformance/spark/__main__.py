"""Kills the driver of a PySpark query, its workers and its gateway, and counts what the topic holds in the end.

    python -m conformance.spark [--batches N] [--seed N] [--python PATH]

A query of kop's exactly-once sink writes numbers, while it is killed at the worst moments (`faulty_source.py` has the
table) and started again, and so are its workers and the gateway, with `kill -9` each. Then a consumer with
read_committed reads the topic: every number has to be there once. The same with tasks that do not look at their markers
has to show duplicates: else this test could not fail. The gateway is `kop serve` of this checkout, embedded.

Needs Java 17; PySpark goes into the venv of the suite `spark`. The exit code is 1 where a number is missing or twice.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from conformance.servers import Kop
from conformance.suites import HERE, Missing, python_clients

TASKS = 2
ROWS = 60
PLAN = (
    "batch driver",
    "produced gateway",
    "ended worker",
    "ended driver",
    "marked gateway",
    "produced worker",
    "produced driver",
    "marked driver",
)
"""Point and victim, in the order of the batches."""
VICTIMS = ("driver", "worker", "gateway")
SECONDS = 420
"""How long a driver may take to come to its next point: to start a session and write some batches."""


class Driver:
    """The process of the query, with its JVM and its workers: all of its session."""

    def __init__(self, python: str, arguments: list[str], log: Path) -> None:
        here = Path(__file__).resolve().parent
        environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
        self._command = [python, str(here / "driver.py"), *arguments]
        self._environment = environment
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self) -> None:
        """End every process of the session by SIGKILL; Spark's workers have a group of their own, not a session."""
        if self.process is None:
            return
        left = True
        while left:
            left = False
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):
                    fields = stat.read_text().rpartition(")")[2].split()
                    if fields[3] == str(self.process.pid) and fields[0] != "Z":
                        os.kill(int(stat.parent.name), signal.SIGKILL)
                        left = True
        self.process.wait()
        self.process = None


def crashes(
    python: str, batches: int, seed: int, plan: Mapping[int, str], *, ignore_markers: bool
) -> tuple[int, int, int]:
    """Run a query to its end, whatever is killed; how many numbers were written, are missing, and are there twice."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kop-spark-crashes-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for part in ("input", "plan", "at", "kop"):
            (folder / part).mkdir()
        wanted = 0
        for batch in range(batches):
            if batch in plan:
                (folder / "plan" / str(batch)).write_text(plan[batch])
            lines = [f"key-{chance.randrange(20)},{wanted + number}" for number in range(ROWS)]
            path = folder / "input" / f"{batch:04}.txt"
            path.write_text("\n".join(lines) + "\n")
            os.utime(path, (batch + 1, batch + 1))  # Spark reads files in the order of their times
            wanted += ROWS
        (folder / "stop").touch()
        gateway = Kop(folder / "kop")
        with gateway as bootstrap:
            flags = ["--ignore-markers"] if ignore_markers else []
            driver = Driver(python, [bootstrap, "numbers", name, str(TASKS), *flags], folder / "driver.log")
            driver.start()
            try:
                kills = _serve_points(folder, gateway, driver)
            finally:
                driver.kill()
            counts = collections.Counter(_read(bootstrap, "numbers"))
    missing = sum(1 for number in range(wanted) if str(number) not in counts)
    twice = sum(count - 1 for count in counts.values())
    killed = ", ".join(f"{kills[victim]} kills of the {victim}" for victim in VICTIMS)
    print(f"{batches} batches, {killed}: ", end="")
    print(f"{wanted} rows, {missing} missing, {twice} duplicates{' without markers' if ignore_markers else ''}")
    return wanted, missing, twice


def _serve_points(folder: Path, gateway: Kop, driver: Driver) -> collections.Counter[str]:
    """Kill who is to be killed, and start it again, until the driver ends by itself."""
    kills: collections.Counter[str] = collections.Counter()
    end = time.monotonic() + SECONDS
    while True:
        assert driver.process is not None
        code = driver.process.poll()
        if code == 0:
            return kills
        if code is not None or time.monotonic() > end:
            tail = (folder / "driver.log").read_text(errors="replace").splitlines()[-25:]
            why = f"the driver ended with {code}" if code is not None else f"no end and no point within {SECONDS} s"
            sys.exit("\n  ".join([f"{why}:", *tail, *gateway.warnings()]))
        for victim in VICTIMS:
            at = folder / "at" / victim
            if not at.exists():
                continue
            kills[victim] += 1
            end = time.monotonic() + SECONDS
            if victim == "driver":
                driver.kill()
                at.unlink()
                driver.start()
            elif victim == "worker":
                at.unlink()  # it has killed itself
            else:
                gateway.kill()
                gateway.start()
                at.unlink()
        time.sleep(0.02)  # neither files nor the process can be waited for together


def _read(bootstrap: str, topic: str) -> list[str]:
    with KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        places = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        texts = []
        while any(consumer.position(place) < ends[place] for place in places):
            texts += [r.value.decode() for records in consumer.poll(timeout_ms=500).values() for r in records]
        return texts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.spark", description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=8, help="batches to write (8)")
    parser.add_argument("--kills", type=int, help="how many of them have a kill (batches - 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", help="an interpreter with pyspark and pyarrow instead of the suite's own venv")
    asked = parser.parse_args()
    try:
        python = asked.python or str(python_clients("venv-spark", "requirements-spark.txt"))
    except Missing as error:
        sys.exit(f"PySpark cannot be installed: {error}")
    kills = asked.batches - 1 if asked.kills is None else asked.kills
    plan = {number * asked.batches // kills: PLAN[number % len(PLAN)] for number in range(kills)}
    _, missing, twice = crashes(python, asked.batches, asked.seed, plan, ignore_markers=False)
    _, _, seen = crashes(python, 3, asked.seed, {0: "batch driver"}, ignore_markers=True)
    if not seen:
        print("the query without markers shows no duplicates: this test cannot tell right from wrong")
    return 1 if missing or twice or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
