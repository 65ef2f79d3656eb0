"""Kills a mesh of a source of files, a query and a Parquet sink while rows flow, and counts what comes out.

    python -m conformance.mesh.rows [--kills N] [--seed N] [--trigger continuous|batch] [--pyspark newest|4.0]

Files of JSON come into a folder, ten rows each, five files a second; a source writes them to a topic, a query takes
each row from there to another topic, and a sink those to Parquet. In turns the driver and Python workers are killed,
and the gateway once in six kills; before each kill so many rows must have come through since the last one. Then Ctrl-C
ends the mesh while rows flow, which may leave no transaction open, and a run with `--once` does the rest. Each row has
to be in each topic once, and once in the Parquet as Spark reads it. Needs Java 17; PySpark goes into the venv of the
suite `spark-kop`. The exit code is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from conformance.mesh.__main__ import CTRL_C_SECONDS, SECONDS, left_open
from conformance.mesh.example import values
from conformance.mesh.processes import Driver, kill_and_start, kill_python_workers
from conformance.mesh.pyspark_python import add_options, python_of
from conformance.servers import Kop

BETWEEN = 100
"""How many rows have to come through between two kills."""
EACH = 10
"""The rows of a file."""
VICTIMS = ["driver", "worker", "driver", "worker", "gateway", "worker"]
MESH = """\
name: rows
trigger: {trigger}
batchSeconds: 1
sources:
  - {{name: files, format: json, schema: "id BIGINT, price INT", options: {{path: "{folder}/in"}}, output: raw}}
queries:
  - name: double
    sql: SELECT string(value.id % 7) AS key, value.id, 2 * value.price AS price FROM raw
    views:
      raw: {{valueFormat: json, valueSchema: "id BIGINT, price INT"}}
    output: doubled
sinks:
  - {{name: archive, inputs: [doubled], format: parquet, options: {{path: "{folder}/out"}}, valueFormat: string}}
"""
READ = """\
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(json.dumps([row.value for row in spark.read.parquet(sys.argv[1]).select("value").collect()]))
"""


class Files:
    """Files of rows that come into a folder until `stop`; each number is in one row."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._over = threading.Event()
        self.written = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.2):  # the rate
            numbers = range(self.written, self.written + EACH)
            path = self._folder / f"{self.written:08}.json"
            hidden = path.with_name(f".{path.name}")  # Spark takes what it sees for whole
            hidden.write_text("".join(json.dumps({"id": number, "price": number % 9}) + "\n" for number in numbers))
            hidden.rename(path)
            self.written += EACH

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self.written


def faults_of(name: str, rows: Iterable[Mapping[str, int]], written: int, factor: int) -> dict[str, int]:
    """What is wrong with the rows of a topic or of files; their prices are so many times those of the files."""
    made = [(row["id"], row["price"]) for row in rows]
    counts = collections.Counter(number for number, _ in made)
    return {
        f"missing in {name}": sum(1 for number in range(written) if number not in counts),
        f"twice in {name}": sum(count - 1 for count in counts.values()),
        f"wrong in {name}": sum(1 for number, price in made if price != factor * (number % 9)),
    }


def run(python: str, asked: argparse.Namespace) -> dict[str, int]:
    """Run the mesh while it is killed; what is wrong with what came out."""
    began = time.monotonic()
    chance = random.Random(asked.seed)
    killed: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="kop-mesh-rows-", ignore_cleanup_errors=True))
        folder = Path(name)
        (folder / "kop").mkdir()
        (folder / "mesh.yaml").write_text(MESH.format(trigger=asked.trigger, folder=folder))
        server = Kop(folder / "kop", settings={"num.partitions": "2", "group.initial.rebalance.delay.ms": "0"})
        bootstrap = stack.enter_context(server)
        arguments = [str(folder / "mesh.yaml"), "--bootstrap", bootstrap, "--checkpoints", str(folder / "checkpoints")]
        driver = Driver(python, [*arguments, "--master", "local[2,8]"], folder)
        stack.callback(driver.kill)
        files = Files(folder / "in")
        stack.callback(files.stop)
        driver.start()
        for victim in itertools.islice(itertools.cycle(VICTIMS), asked.kills):
            await_rows(bootstrap, len(values(bootstrap, "doubled")) + BETWEEN, driver)
            time.sleep(chance.random())  # a moment of a batch that nobody chooses
            if not kill_and_start(victim, driver, server):
                assert driver.process is not None
                while not kill_python_workers([driver.process.pid], chance):
                    time.sleep(0.1)  # until there are some
            killed[victim] += 1
            print(f"  {len(values(bootstrap, 'doubled'))} rows, then the {victim}", flush=True)
        await_rows(bootstrap, len(values(bootstrap, "doubled")) + BETWEEN, driver)
        seconds = driver.stop()
        faults = {"left open": left_open(bootstrap), "late ends": int(seconds > CTRL_C_SECONDS)}
        written = files.stop()
        rest = Driver(python, [*arguments, "--master", "local[2]", "--once"], folder)
        rest.run_to_end("the run that does the rest", SECONDS)
        for topic, factor in (("raw", 1), ("doubled", 2)):
            faults |= faults_of(topic, values(bootstrap, topic), written, factor)
        faults |= faults_of("Parquet", map(json.loads, parquet(python, folder / "out")), written, 2)
    victims = ", ".join(f"{victim} {count}" for victim, count in killed.items())
    told = ", ".join(f"{count} {what}" for what, count in faults.items())
    print(
        f"{asked.trigger}, PySpark {asked.pyspark}, seed {asked.seed}: {written} rows, killed: {victims}: {told}; "
        f"Ctrl-C took {seconds:.1f} s, all {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return faults


def await_rows(bootstrap: str, count: int, driver: Driver) -> None:
    """Wait until so many rows have come through."""
    end = time.monotonic() + SECONDS
    while (there := len(values(bootstrap, "doubled"))) < count:
        code = None if driver.process is None else driver.process.poll()
        if code is not None or time.monotonic() > end:
            why = f"the driver ended with {code}" if code is not None else f"no {count} rows within {SECONDS:g} s"
            sys.exit(f"{why}; there are {there}:\n{driver.tail(40)}")
        time.sleep(0.3)  # a topic does not say when it grows


def parquet(python: str, folder: Path) -> list[str]:
    """The values in the files, as Spark reads them."""
    command = [python, "-c", READ, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        sys.exit(f"the Parquet cannot be read:\n{done.stderr[-3000:]}")
    read: list[str] = json.loads(done.stdout)
    return read


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.mesh.rows", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--trigger", choices=["continuous", "batch"], default="continuous")
    parser.add_argument("--seed", type=int, default=1)
    add_options(parser)
    asked = parser.parse_args()
    return 1 if any(run(python_of(asked), asked).values()) else 0


if __name__ == "__main__":
    sys.exit(main())
