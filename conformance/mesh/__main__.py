"""Kills the driver of a mesh, executors, Python workers and the gateway while records flow, and counts what comes out.

    python -m conformance.mesh [--kills N] [--batches N] [--trigger continuous|batch|once] [--seed N]
        [--spark local|standalone] [--server kop|pulsar|kafka] [--apart] [--proof] [--pyspark newest|4.0]

Three functions run as one component (`functions.py`), or each as one with `--apart`: a random number is appended to
each message, the messages of a key are counted in state of the partition, and the end. A producer writes 100 records a
second of 20 keys to two partitions. Before each kill so many records must have come out since the last one: a driver
that has done nothing yet proves nothing. In the end each record has to be there once, with the counts of its key in
order, and Ctrl-C has to end the mesh within 5 s and leave no transaction open.

With the trigger `once` the mesh runs with `--once`, and is started again each time that it has done all there was.
Spark notes no batches then, and if the mesh is done at the end there is no Ctrl-C.

`local` is `local[2,8]`, `standalone` a master with two workers of PySpark's own jars, each with an executor. In ten
kills the checkpoints are deleted once while the mesh runs. With `--server kafka` an Apache Kafka is in the gateway's
place, and is killed as it is; with `pulsar` the gateway is over an Apache Pulsar.

The same with committed offsets ignored has to show duplicates, else this test could not fail (`--proof`).
Needs Java 17; PySpark goes into the venv of the suite `spark-kop`. The exit code is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from conformance.mesh.open_transactions import open_transactions
from conformance.mesh.processes import Driver, Standalone, kill_and_start, kill_executor, kill_python_workers
from conformance.mesh.pyspark_python import add_options, python_of
from conformance.servers import Kafka, Kop, KopOverPulsar
from conformance.suites import HERE

KEYS = 20
RATE = 100
PARTITIONS = 2
BETWEEN = 100
"""How many records have to come out between two kills."""
SECONDS = 600.0
"""How long it may take until so many have come out."""
CTRL_C_SECONDS = 20.0
"""How long Ctrl-C may take here: 2 s on a machine that does nothing else. A driver that does not end by itself is
stopped after 30 s.
"""
LOCAL = "local[2,8]"
CHECKPOINT = "checkpoint"
ONCE = "once"
VICTIMS = {
    "local": "driver worker driver worker gateway worker checkpoint driver worker gateway worker",
    "standalone": "driver executor worker executor gateway worker checkpoint driver executor gateway worker",
}
"""What is killed, in turns; a checkpoint that is deleted is no kill."""
MESH = """\
name: crash
trigger: {trigger}
batchSeconds: 3
fuse: {fuse}
functions:
  - {{name: dice, className: functions.{dice}, py: functions.py, inputs: [numbers], output: diced,
      keepsKey: true, processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
  - {{name: count, className: functions.count, py: functions.py, inputs: [diced], output: counted, keepsKey: true,
      stateScope: partition, processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
  - {{name: end, className: functions.end, py: functions.py, inputs: [counted], output: ended, keepsKey: true,
      processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
"""


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


class Batches:
    """How many batches Spark has noted as done: the files of `commits` of all checkpoints, which come and go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[Path] = set()

    def count(self) -> int:
        """How many there have been until now."""
        self._seen.update(path for path in self._folder.glob("kop-mesh-*/commits/*") if path.name.isdecimal())
        return len(self._seen)

    def delete(self) -> int:
        """Delete the checkpoints that there are; how many."""
        self.count()
        there = [path for path in self._folder.glob("kop-mesh-*") if (path / "offsets").exists()]
        for path in there:
            shutil.rmtree(path, ignore_errors=True)
        return len(there)


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


class Crashes:
    """A mesh that is killed; what is asked of it are the flags of the command."""

    def __init__(self, python: str, asked: argparse.Namespace, *, blind: bool) -> None:
        self._python = python
        self._asked = asked
        self._blind = blind
        self._chance = random.Random(asked.seed)
        self._killed: collections.Counter[str] = collections.Counter()
        self._began = time.monotonic()

    def run(self) -> dict[str, int]:
        """Run the mesh while it is killed; what is wrong with what came out."""
        asked = self._asked
        with contextlib.ExitStack() as stack:
            name = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="kop-mesh-crashes-", ignore_cleanup_errors=True)
            )
            folder = Path(name)
            dice = "blind" if self._blind else "dice"
            (folder / "functions.py").write_text((HERE / "mesh" / "functions.py").read_text())
            trigger = "batch" if asked.trigger == ONCE else asked.trigger
            text = MESH.format(trigger=trigger, dice=dice, fuse="false" if asked.apart else "true")
            (folder / "mesh.yaml").write_text(text)
            server = server_of(asked.server, folder / "server")
            bootstrap = stack.enter_context(server)
            arguments = [str(folder / "mesh.yaml"), "--bootstrap", bootstrap, *["--once"] * (asked.trigger == ONCE)]
            self._cluster = None
            if asked.spark == "standalone":
                self._cluster = Standalone(self._python, folder, 2 if asked.apart else 1)
                master, settings = stack.enter_context(self._cluster), self._cluster.settings
            else:
                master, settings = (LOCAL.replace("2", "4") if asked.apart else LOCAL), {}
            self._driver = Driver(self._python, [*arguments, *flags(master, settings)], folder)
            stack.callback(self._driver.kill)
            self._driver.start()
            self._output = Output(bootstrap)
            self._batches = Batches(self._driver.checkpoints)
            numbers = Numbers(bootstrap)
            stack.callback(numbers.stop)
            stack.push(self._tell_so_far)
            self._kill_all(server)
            if self._blind:  # what is done again comes once Spark has started the tasks anew
                self._wait(self._output.read() + 10 * BETWEEN, 0)
            else:
                self._wait(self._output.read() + BETWEEN, asked.batches)
            sent = numbers.stop()
            if not self._blind:  # else what came out says nothing about what is missing
                self._wait(sent, 0)
            seconds = self._driver.stop()
            faults = {"left open": left_open(bootstrap), "late ends": int(seconds > CTRL_C_SECONDS)}
            self._output.read()
            faults = faults_of(self._output.values, sent) | faults
            self._tell(sent, faults, seconds)
        return faults

    def _tell_so_far(self, kind: type[BaseException] | None, *_: object) -> None:
        """Say what has come out until now if the run ends before its end; what is missing is not known then."""
        if kind is not None:
            so_far = {name: count for name, count in faults_of(self._output.values, 0).items() if name != "missing"}
            self._tell(self._output.read(), so_far, 0.0)

    def _tell(self, sent: int, faults: Mapping[str, int], seconds: float) -> None:
        asked = self._asked
        told = ", ".join(f"{count} {what}" for what, count in faults.items())
        victims = ", ".join(f"{victim} {count}" for victim, count in self._killed.items())
        how = [asked.trigger, asked.spark, asked.server, f"PySpark {asked.pyspark}", f"seed {asked.seed}"]
        how += ["apart"] * asked.apart + ["committed offsets ignored"] * self._blind
        print(
            f"{', '.join(how)}: {sent} records in {self._batches.count()} batches, killed: {victims}: {told}; "
            f"Ctrl-C took {seconds:.1f} s, all {time.monotonic() - self._began:.0f} s",
            flush=True,
        )

    def _kill_all(self, server: Any) -> None:
        kills = 1 if self._blind else self._asked.kills
        batches_each = 0.0 if self._blind else self._asked.batches / kills
        done = 0
        for victim in self._victims():
            if done >= kills:
                break
            self._wait(self._output.read() + BETWEEN, int((done + 1) * batches_each))
            time.sleep(self._chance.random())  # a moment of a transaction that nobody chooses
            if not self._kill(victim, server):
                continue
            self._killed[victim] += 1
            done += victim != CHECKPOINT
            print(f"  {self._output.read()} records, {self._batches.count()} batches, then the {victim}", flush=True)

    def _victims(self) -> Iterator[str]:
        return itertools.repeat("worker") if self._blind else itertools.cycle(VICTIMS[self._asked.spark].split())

    def _kill(self, victim: str, server: Any) -> int:
        """Kill something; how many processes that were."""
        driver = self._driver
        if kill_and_start(victim, driver, server):
            return 1
        if victim == CHECKPOINT:
            return self._batches.delete()
        if victim == "executor":
            assert self._cluster is not None
            return kill_executor(self._cluster.leaders, self._chance)
        leaders = [] if driver.process is None else [driver.process.pid]
        leaders += [] if self._cluster is None else self._cluster.leaders
        return kill_python_workers(leaders, self._chance, each=self._blind)

    def _wait(self, records: int, batches: int) -> None:
        """Wait until so many records have come out, and so many batches have been."""
        end = time.monotonic() + SECONDS
        while self._output.read() < records or self._batches.count() < batches:
            process = self._driver.process
            code = None if process is None else process.poll()
            if code == 0 and self._asked.trigger == ONCE:
                self._driver.kill()  # what is left of its session
                self._driver.start()
            elif code is not None or time.monotonic() > end:
                wanted = f"{records} records in {batches} batches"
                why = f"the driver ended with {code}" if code is not None else f"no {wanted} within {SECONDS:g} s"
                there = f"there are {self._output.read()} in {self._batches.count()}"
                if os.environ.get("KEEP_LOGS"):
                    shutil.copytree(self._driver.folder, os.environ["KEEP_LOGS"], dirs_exist_ok=True)
                sys.exit(f"{why}; {there}:\n{self._driver.tail(40)}")
            time.sleep(0.3)  # a topic does not say when it grows


def left_open(bootstrap: str) -> int:
    """Return how many transactions the mesh has left open, and say which."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        left = open_transactions(admin)
    finally:
        admin.close()
    for name in left:
        print(f"  left open: {name}", flush=True)
    return len(left)


def server_of(kind: str, folder: Path) -> Any:
    """The server below the mesh."""
    folder.mkdir()
    settings = {"num.partitions": str(PARTITIONS), "group.initial.rebalance.delay.ms": "0"}
    if kind == "pulsar":
        return KopOverPulsar(folder=folder, settings=settings)
    if kind == "kafka":
        file = folder.with_suffix(".properties")
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return Kafka(folder, KAFKA_SETTINGS=str(file))
    return Kop(folder, settings=settings)


def flags(master: str, settings: Mapping[str, str]) -> list[str]:
    """The flags of `kop mesh run` for a master and settings of Spark."""
    return ["--master", master, *(text for item in settings.items() for text in ("--conf", "=".join(item)))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.mesh", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--batches", type=int, default=0, help="how many batches there have to be at least (0)")
    parser.add_argument("--trigger", choices=["continuous", "batch", ONCE], default="continuous")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spark", choices=[*VICTIMS], default="local")
    parser.add_argument("--server", choices=["kop", "pulsar", "kafka"], default="kop")
    parser.add_argument("--apart", action="store_true", help="each function is a component")
    parser.add_argument("--proof", action="store_true", help="show that ignored offsets give duplicates, too")
    add_options(parser)
    asked = parser.parse_args()
    python = python_of(asked)
    faults = Crashes(python, asked, blind=False).run()
    if asked.proof and not Crashes(python, asked, blind=True).run()["twice"]:
        print("the mesh that ignores committed offsets shows no duplicates: this test cannot tell right from wrong")
        return 1
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
