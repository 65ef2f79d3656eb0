"""Kills the driver of a mesh, its Python workers and its gateway while records flow, and counts what comes out.

    python -m conformance.mesh [--kills N] [--trigger continuous|batch] [--seed N] [--python PATH]

Three functions run as one component (`functions.py`): a random number is appended to each message, the messages of a
key are counted in state of the partition, and the end. A producer writes 100 records a second of 20 keys to two
partitions. Before each kill so many records must have come out since the last one: a driver that has done nothing yet
proves nothing. In the end each record has to be there once, with the counts of its key in order.

The same with committed offsets ignored has to show duplicates, else this test could not fail (`--proof`).
Needs Java 17; PySpark goes into the venv of the suite `spark-kop`. The exit code is 1 if something is missing or twice.
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
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from conformance.servers import Kop
from conformance.suites import HERE, Missing, python_clients

KEYS = 20
RATE = 100
PARTITIONS = 2
BETWEEN = 100
"""How many records have to come out between two kills."""
SECONDS = 300.0
"""How long it may take until so many have come out."""
VICTIMS = ("driver", "worker", "driver", "worker", "gateway")
MESH = """\
name: crash
trigger: {trigger}
batchSeconds: 3
functions:
  - {{name: dice, className: functions.{dice}, py: functions.py, inputs: [numbers], output: diced,
      keepsKey: true, processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
  - {{name: count, className: functions.count, py: functions.py, inputs: [diced], output: counted, keepsKey: true,
      stateScope: partition, processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
  - {{name: end, className: functions.end, py: functions.py, inputs: [counted], output: ended, keepsKey: true,
      processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
"""


class Driver:
    """The process of `kop mesh run`, with its JVM and its workers: all of its session."""

    def __init__(self, python: str, arguments: list[str], log: Path, folder: Path | None = None) -> None:
        self._command = [python, "-m", "kop.cli.main", "mesh", "run", *arguments]
        self._environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
        self._log = log
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _processes(self) -> Iterator[tuple[int, str]]:
        """The processes of the session, with their command lines."""
        assert self.process is not None
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if fields[3] == str(self.process.pid) and fields[0] != "Z":
                    yield int(stat.parent.name), (stat.parent / "cmdline").read_text().replace("\0", " ")

    def kill(self) -> None:
        """End every process of the session by SIGKILL."""
        if self.process is None:
            return
        while left := list(self._processes()):
            for number, _ in left:
                with contextlib.suppress(OSError):
                    os.kill(number, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def kill_workers(self) -> int:
        """End the Python workers that do tasks by SIGKILL; how many there were."""
        workers = [number for number, command in self._processes() if "pyspark.daemon" in command]
        parents = {number: _parent(number) for number in workers}
        tasks = [number for number in workers if parents[number] in workers] or workers
        for number in tasks:
            with contextlib.suppress(OSError):
                os.kill(number, signal.SIGKILL)
        return len(tasks)

    def stop(self) -> float:
        """End it as Ctrl-C does; returns how many seconds that took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        if code:
            sys.exit(f"kop mesh run ended with {code}:\n{self._log.read_text(errors='replace')[-3000:]}")
        self.process = None
        return time.monotonic() - began


def _parent(number: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


class Numbers:
    """A producer of numbers that goes on until `stop`: `KEY NUMBER`, each number once."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._over = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with KafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True, delivery_timeout_ms=120_000
        ) as producer:
            while not self._over.wait(0.1):  # the rate
                for _ in range(RATE // 10):
                    key = f"k{self.sent % KEYS}"
                    producer.send("numbers", f"{key} {self.sent}".encode(), key.encode())
                    self.sent += 1
            producer.flush()

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self.sent


class Output:
    """What has come out so far, as a reader of committed records sees it."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.values: dict[int, list[str]] = collections.defaultdict(list)
        self._next: dict[int, int] = collections.defaultdict(int)

    def read(self) -> int:
        """Take what is new; how many records there are."""
        with (
            contextlib.suppress(Exception),
            KafkaConsumer(
                bootstrap_servers=self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
            ) as consumer,
        ):
            places = [TopicPartition("ended", number) for number in consumer.partitions_for_topic("ended") or ()]
            consumer.assign(places)
            for place in places:
                consumer.seek(place, self._next[place.partition])
            ends = consumer.end_offsets(places)
            patience = time.monotonic() + 5
            while any(consumer.position(p) < ends[p] for p in places) and time.monotonic() < patience:
                for place, records in consumer.poll(timeout_ms=200).items():
                    self.values[place.partition] += [record.value.decode() for record in records]
                    self._next[place.partition] = consumer.position(place)
        return sum(map(len, self.values.values()))


def faults_of(values: dict[int, list[str]], sent: int) -> dict[str, int]:
    """What is wrong with the values that came out."""
    numbers = collections.Counter(int(value.split()[1]) for some in values.values() for value in some)
    faults = {
        "missing": sum(1 for number in range(sent) if number not in numbers),
        "twice": sum(count - 1 for count in numbers.values()),
        "wrong counts": 0,
        "out of order": 0,
    }
    for some in values.values():
        counts: dict[str, int] = collections.defaultdict(int)
        last: dict[str, int] = collections.defaultdict(lambda: -1)
        for value in some:
            key, number, _, count = value.split()
            counts[key] += 1
            faults["wrong counts"] += int(count) != counts[key]
            faults["out of order"] += int(number) <= last[key]
            last[key] = int(number)
    return faults


def crashes(python: str, kills: int, trigger: str, seed: int, *, blind: bool = False) -> dict[str, int]:
    """Run the mesh while it is killed; what is wrong with what came out."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kop-mesh-crashes-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "kop").mkdir()
        (folder / "functions.py").write_text((HERE / "mesh" / "functions.py").read_text())
        (folder / "mesh.yaml").write_text(MESH.format(trigger=trigger, dice="blind" if blind else "dice"))
        settings = {"num.partitions": str(PARTITIONS), "group.initial.rebalance.delay.ms": "0"}
        gateway = Kop(folder / "kop", settings=settings)
        with gateway as bootstrap:
            driver = Driver(python, [str(folder / "mesh.yaml"), "--bootstrap", bootstrap], folder / "driver.log")
            driver.start()
            output = Output(bootstrap)
            numbers = Numbers(bootstrap)
            killed: collections.Counter[str] = collections.Counter()
            try:
                for kill in range(kills):
                    _wait(output, output.read() + BETWEEN, driver, folder)
                    victim = "worker" if blind else VICTIMS[kill % len(VICTIMS)]
                    time.sleep(chance.random())  # a moment of a transaction that nobody chooses
                    if victim == "driver":
                        driver.kill()
                        driver.start()
                    elif victim == "worker":
                        if not driver.kill_workers():
                            continue
                    else:
                        gateway.kill()
                        gateway.start()
                    killed[victim] += 1
                    print(f"  {output.read()} records, then the {victim} was killed", flush=True)
                sent = numbers.stop()
                if blind:
                    _wait(output, output.read() + BETWEEN, driver, folder)
                else:
                    _wait(output, sent, driver, folder)
                seconds = driver.stop()
            finally:
                numbers.stop()
                driver.kill()
            output.read()
        faults = faults_of(output.values, sent)
        told = ", ".join(f"{count} {what}" for what, count in faults.items())
        victims = ", ".join(f"{count} kills of the {victim}" for victim, count in killed.items())
        how = f"{trigger}{', committed offsets ignored' if blind else ''}"
        print(f"{how}: {sent} records, {victims}: {told}; Ctrl-C took {seconds:.1f} s", flush=True)
        return faults


def _wait(output: Output, count: int, driver: Driver, folder: Path) -> None:
    """Wait until so many records have come out."""
    end = time.monotonic() + SECONDS
    while output.read() < count:
        code: Any = driver.process.poll() if driver.process is not None else None
        if code is not None or time.monotonic() > end:
            tail = (folder / "driver.log").read_text(errors="replace").splitlines()[-25:]
            why = f"the driver ended with {code}" if code is not None else f"no {count} records within {SECONDS:g} s"
            sys.exit("\n  ".join([f"{why}; there are {output.read()}:", *tail]))
        time.sleep(0.3)  # a topic does not say when it grows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.mesh", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--trigger", choices=["continuous", "batch"], default="continuous")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--proof", action="store_true", help="show that ignored offsets give duplicates, too")
    parser.add_argument("--python", help="an interpreter with pyspark and what kop needs")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what it has started ends with it
    try:
        python = asked.python or str(python_clients("venv-spark-newest", "requirements-spark-newest.txt"))
    except Missing as error:
        sys.exit(f"PySpark cannot be installed: {error}")
    faults = crashes(python, asked.kills, asked.trigger, asked.seed)
    if asked.proof and not crashes(python, 1, asked.trigger, asked.seed, blind=True)["twice"]:
        print("the mesh that ignores committed offsets shows no duplicates: this test cannot tell right from wrong")
        return 1
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
