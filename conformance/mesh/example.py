"""Runs the mesh of `deploy/examples/mesh` and its short form, each with a server of its own, and compares the results.

    python -m conformance.mesh.example [--python PATH]

Both have to give the same topics, the same Parquet and the same table, and those that their README tells of; a second
run changes nothing. Needs Java 17; PySpark goes into the venv of the suite `spark-kop`. The exit code is 1 if a result
is another one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from conformance.mesh.processes import Driver
from conformance.mesh.pyspark_python import add_options, python_of
from conformance.servers import Kop
from conformance.suites import HERE

EXAMPLE = HERE.parent / "deploy" / "examples" / "mesh"
TOPICS = ("customers", "letters", "items", "bills", "no-orders")
WANTED: dict[str, list[Any]] = {
    "customers": [
        {"customer": "Ann", "spent": 6},
        {"customer": "Ann", "spent": 30},
        {"customer": "Bob", "spent": 25},
        {"customer": "Cid", "spent": 3},
    ],
    "items": [
        {"item": "cake", "count": 5, "price": 25},
        {"item": "coffee", "count": 6, "price": 24},
        {"item": "tea", "count": 3, "price": 9},
    ],
    "letters": ["Dear Ann, thank you for 6 x coffee!", "Dear Bob, thank you for 5 x cake!"],
    "no-orders": ["this is no order"],
    "ledger": [[1, "Ann", 6], [2, "Bob", 25], [3, "Ann", 24], [4, "Cid", 3]],
}
SECONDS = 900
"""How long a run may take on a machine that does other work, too."""
READ = """\
import json
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
parquet = [row.value for row in spark.read.parquet("bills.parquet").collect()]
ledger = {"url": "jdbc:derby:ledger", "driver": "org.apache.derby.jdbc.EmbeddedDriver", "dbtable": "bills"}
rows = spark.read.format("jdbc").options(**ledger).load().select("bill", "customer", "price").collect()
print(json.dumps({"parquet": sorted(parquet), "ledger": sorted(list(row) for row in rows)}))
"""


def results(python: str, file: str) -> list[dict[str, Any]]:
    """What a file of the example gives when it is run, and when it is run again."""
    with tempfile.TemporaryDirectory(prefix="kop-mesh-example-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shutil.copytree(EXAMPLE, folder / "mesh")
        (folder / "kop").mkdir()
        given = []
        settings = {"num.partitions": "1"}  # a sum is that of a partition, and orders have no key
        with Kop(folder / "kop", settings=settings) as bootstrap:
            for _ in range(2):
                arguments = [file, "--once", "--checkpoints", "checkpoints", "--bootstrap", bootstrap]
                driver = Driver(python, [*arguments, "--master", "local[2]"], folder, folder / "mesh")
                driver.run_to_end(file, SECONDS)
                command = [python, "-c", READ]
                read = subprocess.run(
                    command, cwd=folder / "mesh", capture_output=True, text=True, timeout=SECONDS, check=False
                )
                if read.returncode:
                    sys.exit(f"the tables of {file} cannot be read:\n{read.stderr[-3000:]}")
                given.append({topic: values(bootstrap, topic) for topic in TOPICS} | json.loads(read.stdout))
        return given


def values(bootstrap: str, topic: str) -> list[Any]:
    """The committed values of a topic, in one order: what is JSON as what it says."""
    made: list[Any] = []
    with KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for records in consumer.poll(timeout_ms=200).values():
                made += [record.value.decode() for record in records]
    return [json.loads(value) if value.startswith("{") else value for value in sorted(made)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.mesh.example", description=__doc__.partition("\n")[0])
    add_options(parser)
    python = python_of(parser.parse_args())
    (own, again), (short, _) = results(python, "mesh.yaml"), results(python, "short.yaml")
    other = {name: wanted for name, wanted in WANTED.items() if _sorted(own[name]) != _sorted(wanted)}
    faults = [f"{name}: {own[name]}, not {wanted}" for name, wanted in other.items()]
    faults += [f"{name}: the second run makes it {again[name]}" for name in own if again[name] != own[name]]
    faults += [f"{name}: the short form makes it {short[name]}" for name in own if short[name] != own[name]]
    for fault in faults:
        print(fault)
    bills = [json.dumps(bill) for bill in own["bills"]]
    if sorted(json.dumps(json.loads(bill)) for bill in own["parquet"]) != sorted(bills):
        faults.append("parquet")
        print(f"parquet: {own['parquet']}, not {bills}")
    told = {name: len(rows) for name, rows in own.items()}
    print(f"the example, twice, and its short form: {'wrong' if faults else 'the same'} ({told})")
    return 1 if faults else 0


def _sorted(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
