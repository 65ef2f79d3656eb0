"""How soon, how fast and at what cost a mesh works, as ratios of one run.

    python -m conformance.mesh.speed [PART ...] [--rounds N] [--seconds S] [--records N] [--messages N]

latency    20 records a second through three functions, exactly once: `continuous`, `batch`, `batch` with `fuse: false`,
           and functions without Spark (`kop functions localrun`): one that does the same, and three in a row.
           All run side by side and are given records in turns, so that each has the same machine.
rates      a million records through three functions, exactly once: fused, and `mapInArrow` with the exactly-once sink,
           both of which write the result alone; and fused with the topics between the functions.
counters   20,000 messages with three words each, in one go: counters of a function beside transformWithStateInPandas,
           with 500 and with 20,000 words.
idle       the CPU that ten functions without records cost the gateway.

A gateway of this checkout, embedded, and the newest PySpark on two cores. What is printed are medians over rounds in
turns, and ratios: on a machine that does other work as well, only these say something. Needs Java 17, as `spark-kop`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from conformance.mesh.processes import Driver, end_session, of_sessions
from conformance.mesh.pyspark_python import add_options, python_of
from conformance.servers import Kop
from conformance.spark.speed import cpu
from conformance.suites import HERE

RATE = 20
WARM_SECONDS = 3.0
"""What is sent so early in a turn is not counted: the system was idle before."""
NAMES = ("first", "second", "third")
MESH = """\
name: {name}
trigger: {trigger}
fuse: {fuse}
functions:
"""
FUNCTION = """\
  - {{name: {name}, className: speed_functions.{code}, py: speed_functions.py, inputs: [{source}], output: {target},
      processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest, private: {private}}}
"""


def chain(mesh: str, trigger: str, *, fuse: bool = True, private: bool = False) -> str:
    """A mesh of three functions from MESH-in to MESH-out; if `private`, it does not write the topics between them."""
    topics = [f"{mesh}-in", f"{mesh}-1", f"{mesh}-2", f"{mesh}-out"]
    text = MESH.format(name=mesh, trigger=trigger, fuse=str(fuse).lower())
    return text + "".join(
        FUNCTION.format(
            name=f"{mesh}-{code}",
            code=code,
            source=source,
            target=target,
            private=str(private and target != topics[-1]).lower(),
        )
        for code, source, target in zip(NAMES, topics, topics[1:], strict=False)
    )


class Bench:
    """A gateway, a folder with the functions, and what runs on them until the end."""

    def __init__(self, python: str, stack: contextlib.ExitStack) -> None:
        self.python = python
        self._stack = stack
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="kop-mesh-speed-", ignore_cleanup_errors=True))
        self.folder = Path(name)
        (self.folder / "kop").mkdir()
        (self.folder / "speed_functions.py").write_text((HERE / "mesh" / "speed_functions.py").read_text())
        settings = {"num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
        self.gateway = Kop(self.folder / "kop", settings=settings)
        self.bootstrap = stack.enter_context(self.gateway)

    def topics(self, *names: str, partitions: int = 1) -> None:
        """Make topics."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        wanted = {"num_partitions": partitions, "replication_factor": 1}
        admin.create_topics(dict.fromkeys(names, wanted), wait_for_metadata=True)
        admin.close()

    def mesh(self, name: str, text: str, cores: int) -> Driver:
        """Run a mesh by the command; it has begun when this returns."""
        folder = self.folder / name
        folder.mkdir()
        file = self.folder / f"{name}.yaml"
        file.write_text(text)
        arguments = [str(file), "--bootstrap", self.bootstrap, "--master", f"local[{cores},4]"]
        driver = Driver(self.python, arguments, folder)
        self._stack.callback(driver.kill)
        driver.start()
        end = time.monotonic() + 180
        while " runs in " not in driver.log.read_text():
            assert driver.process is not None
            if driver.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{name} has not begun:\n{driver.tail(30)}")
            time.sleep(0.2)  # it says so in a file
        return driver

    def function(self, name: str, code: str, source: str, target: str) -> None:
        """Run a function without Spark."""
        command = [*self.gateway.command(), "functions", "localrun", "--py", "speed_functions.py", "--bootstrap"]
        command += [self.bootstrap, "--classname", f"speed_functions.{code}", "--name", name, "--inputs", source]
        command += ["--output", target, "--processing-guarantees", "EFFECTIVELY_ONCE"]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._stack.callback(end_session, process)


# -- how soon


def latencies(bench: Bench, name: str, seconds: float) -> list[float]:
    """Send records to a system for a time; how many milliseconds each took that counts."""
    place = TopicPartition(f"{name}-out", 0)
    took: list[float] = []
    consumer = KafkaConsumer(bootstrap_servers=bench.bootstrap, isolation_level="read_committed")
    consumer.assign([place])
    consumer.seek(place, consumer.end_offsets([place])[place])
    wanted = int(seconds * RATE)
    counted_from = time.monotonic() + WARM_SECONDS

    def send() -> None:
        with KafkaProducer(bootstrap_servers=bench.bootstrap, acks="all") as producer:
            due = time.monotonic()
            for _ in range(wanted):
                time.sleep(max(0.0, due - time.monotonic()))  # the rate
                producer.send(f"{name}-in", repr(time.monotonic()).encode())
                due += 1 / RATE

    sender = threading.Thread(target=send)
    sender.start()
    count = 0
    end = time.monotonic() + seconds + 60
    while count < wanted and time.monotonic() < end:
        for records in consumer.poll(timeout_ms=500).values():
            now = time.monotonic()
            for record in records:
                count += 1
                sent = float(record.value.decode().rstrip("abc"))
                if sent >= counted_from:
                    took.append((now - sent) * 1000)
    sender.join()
    consumer.close()
    if count < wanted:
        sys.exit(f"{name}: {count} of {wanted} records came out")
    return took


def latency(bench: Bench, asked: argparse.Namespace) -> None:
    """Measure how long a record takes."""
    systems = ("continuous", "batch", "apart", "function", "functions")
    for name in systems:
        bench.topics(f"{name}-in", f"{name}-1", f"{name}-2", f"{name}-out")
    bench.mesh("continuous", chain("continuous", "continuous"), 2)
    bench.mesh("batch", chain("batch", "batch"), 2)
    bench.mesh("apart", chain("apart", "batch", fuse=False), 2)
    bench.function("function", "together", "function-in", "function-out")
    steps = ["functions-in", "functions-1", "functions-2", "functions-out"]
    for code, source, target in zip(NAMES, steps, steps[1:], strict=False):
        bench.function(f"functions-{code}", code, source, target)
    took: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(asked.rounds + 1):
        for name in systems:
            some = latencies(bench, name, asked.seconds)
            if number:
                took[name] += some
            print(f"round {number}, {name}: p50 {statistics.median(some):.0f} ms", file=sys.stderr, flush=True)
    print(f"\nlatency: three functions, exactly once, {RATE} records a second, {asked.rounds} rounds of "
          f"{asked.seconds - WARM_SECONDS:g} s")  # fmt: skip
    print("system        p50 ms   p95 ms   p99 ms")
    for name in systems:
        parts = statistics.quantiles(took[name], n=100)
        print(f"{name:12} {parts[49]:7.0f} {parts[94]:8.0f} {parts[98]:8.0f}")
    middle = {name: statistics.median(some) for name, some in took.items()}
    print(f"p50 of continuous: {middle['continuous'] / middle['batch']:.2f} of batch, "
          f"{middle['continuous'] / middle['function']:.2f} of a function by itself, "
          f"{middle['continuous'] / middle['functions']:.2f} of three functions by themselves")  # fmt: skip
    print(f"p50 of batch: {middle['batch'] / middle['apart']:.2f} of batch with fuse: false", flush=True)


# -- how fast, in a session


class Session:
    """The process of `speed_session.py`: it does what a line asks for, and answers with a line of JSON."""

    def __init__(self, bench: Bench, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [bench.python, str(Path(__file__).with_name("speed_session.py")), bench.bootstrap, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(bench.folder / "session.log").open("ab"),
            text=True,
            cwd=bench.folder,
            env=os.environ | {"PYTHONPATH": str(HERE.parent), "XDG_CACHE_HOME": str(bench.folder / "cache")},
            start_new_session=True,
        )
        self._log = bench.folder / "session.log"
        self._gateway = bench.gateway.pid
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
        sys.exit(f"the session has ended:\n{self._log.read_text(errors='replace')[-4000:]}")

    def ask(self, line: str) -> dict[str, float]:
        """What a piece of work took: seconds, and the CPU time of Spark and of the gateway."""
        assert self._process.stdin is not None
        spark, gateway = cpu([*of_sessions([self._process.pid])]), cpu([self._gateway])
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        took: dict[str, float] = self._answer()
        took["spark"] = cpu([*of_sessions([self._process.pid])]) - spark
        took["gateway"] = cpu([self._gateway]) - gateway
        return took

    def close(self) -> None:
        """End it."""
        end_session(self._process)


@contextlib.contextmanager
def session(bench: Bench, *arguments: str) -> Iterator[Session]:
    """A session until the end of the block."""
    made = Session(bench, *arguments)
    try:
        yield made
    finally:
        made.close()


def rounds_of(made: Session, works: tuple[str, ...], asked: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Do works in turns; the medians of each."""
    took: dict[str, list[dict[str, float]]] = {work: [] for work in works}
    for number in range(asked.rounds + 1):
        for work in works:
            some = made.ask(f"{work} {number}")
            print(f"round {number}, {work}: {json.dumps(some)}", file=sys.stderr, flush=True)
            if number:
                took[work].append(some)
    return {
        work: {of: statistics.median(each[of] for each in some) for of in ("seconds", "spark", "gateway")}
        for work, some in took.items()
    }


def rates(bench: Bench, asked: argparse.Namespace) -> None:
    """Measure how long many records take that are there already."""
    with session(bench, "rates", str(asked.records)) as made:
        medians = rounds_of(made, ("fused", "mapInArrow", "written"), asked)
    print(f"\nrates: {asked.records} records of 95 bytes, 4 partitions, three functions, exactly once, medians of "
          f"{asked.rounds} rounds")  # fmt: skip
    print("              thousand records/s   CPU us a record: Spark   gateway")
    for work, took in medians.items():
        each = 1e6 / asked.records
        rate = asked.records / took["seconds"] / 1000
        print(f"{work:12} {rate:19.1f} {took['spark'] * each:24.2f} {took['gateway'] * each:9.2f}")
    fused, other = medians["fused"], medians["mapInArrow"]
    print(f"fused beside mapInArrow: {other['seconds'] / fused['seconds']:.2f} of the rate, "
          f"{fused['spark'] / other['spark']:.2f} of the CPU of Spark", flush=True)  # fmt: skip


def counters(bench: Bench, asked: argparse.Namespace) -> None:
    """Measure counters of functions beside Spark's own state."""
    with session(bench, "counters", str(asked.messages)) as made:
        works = tuple(f"{kind}-{keys}" for keys in (500, 20_000) for kind in ("counters", "transformWithState"))
        medians = rounds_of(made, works, asked)
    print(f"\ncounters: batches of {asked.messages} messages with 3 words, medians of {asked.rounds} rounds")
    print("                          thousand increments/s   CPU us an increment: Spark")
    for work, took in medians.items():
        rate = 3 * asked.messages / took["seconds"] / 1000
        print(f"{work:24} {rate:22.1f} {took['spark'] * 1e6 / 3 / asked.messages:28.2f}")
    for keys in ("500", "20000"):
        own, other = medians[f"counters-{keys}"], medians[f"transformWithState-{keys}"]
        print(f"{keys} words: {other['seconds'] / own['seconds']:.2f} of the rate, {own['spark'] / other['spark']:.2f} "
              "of the CPU of Spark", flush=True)  # fmt: skip


# -- at what cost


def idle(bench: Bench, asked: argparse.Namespace) -> None:
    """Measure what functions cost the gateway that have nothing to do."""
    print("\nidle: ten functions with inputs of their own, no records")
    time.sleep(5)  # what came before is over in the gateway, too
    before = share(bench, asked.seconds)
    print(f"the gateway without them: {before:.1%} of a core")
    for trigger in ("continuous", "batch"):
        text = MESH.format(name=f"idle-{trigger}", trigger=trigger, fuse="true") + "".join(
            FUNCTION.format(
                name=f"{trigger}-{n}",
                code="first",
                source=f"idle-{trigger}-{n}",
                target=f"{trigger}-{n}",
                private="false",
            )
            for n in range(10)
        )
        driver = bench.mesh(f"idle-{trigger}", text, 10)
        time.sleep(15)  # the queries start one after the other
        print(f"{trigger}: {share(bench, asked.seconds):.1%} of a core of the gateway", flush=True)
        driver.stop()


def share(bench: Bench, seconds: float) -> float:
    """The share of a core that the gateway takes."""
    before, began = cpu([bench.gateway.pid]), time.monotonic()
    time.sleep(seconds)  # the span that is measured
    return (cpu([bench.gateway.pid]) - before) / (time.monotonic() - began)


PARTS = {"latency": latency, "rates": rates, "counters": counters, "idle": idle}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.mesh.speed", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    parser.add_argument("--rounds", type=int, default=3, help="that are counted (3)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a turn of latency, and of idle (15)")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=20_000, help="of a batch of counters (20,000)")
    add_options(parser)
    asked = parser.parse_args()
    if unknown := set(asked.parts) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}")
    python = python_of(asked)
    for name, part in PARTS.items():
        if not asked.parts or name in asked.parts:
            with contextlib.ExitStack() as stack:
                part(Bench(python, stack), asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
