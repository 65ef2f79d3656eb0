"""How fast typed columns of `format("kop")` are read, beside columns of bytes: rate, CPU of Spark.

    python -m conformance.spark.typed [--records N] [--rounds N]

A gateway of this checkout, embedded, and one session of the newest PySpark with two cores. The same records of nine
fields (a nested one, a list, a union with null, a time and a date among them) lie in a topic of each format; each round
reads every topic as bytes and as what it is, in turns, all columns and all rows, and Avro once more by a `decoder` that
calls fastavro. The first round is not counted. What is printed are medians, and how they compare to those of the same
topic's bytes: on a machine that does other work as well, only that says something.

If this environment has the compiled reader of Avro (`make schemas`), a second session reads by it. Needs Java 17.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.servers import Kop
from conformance.spark.speed import cpu, session_of
from conformance.stub_registry import StubRegistry
from conformance.suites import HERE, Missing, python_clients

WORK = ("json bytes", "json", "avro bytes", "avro", "protobuf bytes", "protobuf", "avro decoder")
WANTED = {"json": 0.6, "avro": 0.6, "protobuf": 0.35}
"""The share of the rate of bytes that each is to have."""


def drive(
    python: str, bootstrap: str, registry: str, modules: str, asked: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """Run the rounds of one session; for each kind of work what each counted round took."""
    driver = subprocess.Popen(
        [python, str(Path(__file__).with_name("typed_driver.py")), bootstrap, registry, str(asked.records)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE.parent), modules)))},
        start_new_session=True,
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in WORK}
    try:
        for line in driver.stdout:
            if line.startswith("ready"):
                break
        for number in range(asked.rounds + 1):
            for name in WORK:
                before = cpu(session_of(driver.pid))
                driver.stdin.write(f"{name}\n")
                driver.stdin.flush()
                for line in driver.stdout:
                    if line.startswith("{"):
                        break
                else:
                    sys.exit("the driver ended: its error is above")
                took = json.loads(line)
                took["spark"] = cpu(session_of(driver.pid)) - before
                print(f"round {number}, {name}: {json.dumps(took)}", file=sys.stderr, flush=True)
                if number:
                    rounds[name].append(took)
    finally:
        driver.stdin.close()
        driver.wait(60)
    return rounds


def show(title: str, rounds: dict[str, list[dict[str, float]]], records: int) -> None:
    print(f"\n{title}\n{'':14} thousand rows/s  CPU us/row   of its bytes: rate  by CPU  wanted")
    medians = {
        name: {of: statistics.median(took[of] for took in rounds[name]) for of in ("seconds", "spark")} for name in WORK
    }
    for name, took in medians.items():
        base = medians[f"{name.split()[0]} bytes"]
        rate, share = records / took["seconds"] / 1000, base["seconds"] / took["seconds"]
        row = f"{name:14} {rate:15.1f} {took['spark'] * 1e6 / records:11.2f} {share:20.2f}"
        print(f"{row} {base['spark'] / took['spark']:7.2f} {WANTED.get(name, ''):>7}")
    decoder, avro = medians["avro decoder"], medians["avro"]
    times, cpu_times = decoder["seconds"] / avro["seconds"], decoder["spark"] / avro["spark"]
    print(f"avro beside the decoder: {times:.1f} times the rate (4 wanted), {cpu_times:.1f} by CPU", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.spark.typed", description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    try:
        python = str(python_clients("venv-spark-newest", "requirements-spark-newest.txt"))
    except Missing as error:
        sys.exit(f"PySpark cannot be installed: {error}")
    native = importlib.util.find_spec("kop_schemas")
    with tempfile.TemporaryDirectory(prefix="kop-typed-") as folder, Kop() as bootstrap, StubRegistry() as registry:
        if native is not None and native.origin is not None:
            shutil.copy(native.origin, folder)
            rounds = drive(python, bootstrap, registry.url, folder, asked)
            show(f"{asked.records} records, Avro by compiled code", rounds, asked.records)
        else:
            print("the compiled reader of Avro is not there: make schemas")
        rounds = drive(python, bootstrap, registry.url, "", asked)
        show(f"{asked.records} records, Avro in Python", rounds, asked.records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
