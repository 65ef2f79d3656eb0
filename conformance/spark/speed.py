"""How fast PySpark reads and writes by `format("kop")` beside `format("kafka")`: wall time, CPU of Spark and gateway.

    python -m conformance.spark.speed [--records N] [--size BYTES] [--codec NAME] [--rounds N]

A gateway of this checkout, embedded, and one session of PySpark 4.0.0 (the newest whose Kafka connector resolves), with
two cores. Both formats read the same topic of four partitions, and write the same rows by two tasks, in turns; so does
`format("kop-rows")`, which is kop's reader without Arrow. The first round of each is not counted. What is printed are
medians, and how they compare to those of `format("kafka")`: on a machine that does other work as well, only that says
something.

Needs Java 17 and Maven Central, as the suite `spark`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from conformance.servers import Kop
from conformance.suites import HERE, Missing, python_clients

TICKS = os.sysconf("SC_CLK_TCK")
WORK = ("read kafka", "read kop", "read kop-rows", "write kafka", "write kop", "write kop once")
MEASURES = ("seconds", "spark", "gateway")


def cpu(pids: list[int]) -> float:
    """Seconds of CPU that some processes and their children that have ended took."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / TICKS


def session_of(pid: int) -> list[int]:
    """All processes of a session: a driver, its JVM and its workers."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] == str(pid):
            pids.append(int(stat.parent.name))
    return pids


def drive(python: str, bootstrap: str, gateway: int, asked: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Run the rounds; for each kind of work what each counted round took."""
    arguments = [bootstrap, str(asked.records), str(asked.size), asked.codec]
    driver = subprocess.Popen(
        [python, str(Path(__file__).with_name("speed_driver.py")), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
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
                spark_before, gateway_before = cpu(session_of(driver.pid)), cpu([gateway])
                driver.stdin.write(f"{name}\n")
                driver.stdin.flush()
                for line in driver.stdout:
                    if line.startswith("{"):
                        break
                else:
                    sys.exit("the driver ended: its error is above")
                took = json.loads(line)
                took["spark"] = cpu(session_of(driver.pid)) - spark_before
                took["gateway"] = cpu([gateway]) - gateway_before
                print(f"round {number}, {name}: {json.dumps(took)}", file=sys.stderr, flush=True)
                if number:
                    rounds[name].append(took)
    finally:
        driver.stdin.close()
        driver.wait(60)
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.spark.speed", description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value (100)")
    parser.add_argument("--codec", default="none", help="none, gzip, snappy, lz4, zstd")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    try:
        python = str(python_clients("venv-spark", "requirements-spark.txt"))
    except Missing as error:
        sys.exit(f"PySpark cannot be installed: {error}")
    kop = Kop()
    with kop as bootstrap:
        rounds = drive(python, bootstrap, kop.pid, asked)
    print(f"{asked.records} records of {asked.size} bytes, {asked.codec}, medians of {asked.rounds} rounds")
    print("                thousand rows/s  CPU us/row: Spark  gateway   of format(kafka): rate   CPU of Spark")
    medians = {name: {of: statistics.median(r[of] for r in rounds[name]) for of in MEASURES} for name in WORK}
    per_row = 1e6 / asked.records
    for name, took in medians.items():
        base = medians[f"{name.split()[0]} kafka"]
        rate = asked.records / took["seconds"] / 1000
        row = f"{name:15} {rate:16.1f} {took['spark'] * per_row:18.2f} {took['gateway'] * per_row:8.2f}"
        print(f"{row} {base['seconds'] / took['seconds']:24.2f} {took['spark'] / base['spark']:14.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
