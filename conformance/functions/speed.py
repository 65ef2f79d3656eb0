"""The speed of one function: messages a second, latency, its start; what instances cost that do nothing.

Owns: the loads, the peers (a loop of confluent-kafka; Apache Pulsar's own instance for Python), the tables.
Must not know: how an instance does it.

One instance, one partition, texts of 100 bytes, the function `text + "!"`. A rate is timed from the start of the
process to the last output that a reader could get, and once more from the first output on; CPU is that of the
function's process. A latency is the time from the call of a producer's `produce` to the output in a consumer that reads
committed records; the first eighth of it does not count. PSS is the memory of a process where shared pages are divided
among those that share them.

    python -m conformance.functions.speed                    the embedded engine, five minutes
    python -m conformance.functions.speed --start-kop-pulsar beside Pulsar's own instance, on the same broker (Java)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pulsar
from confluent_kafka import Consumer, Producer, TopicPartition

from conformance.bench import client
from conformance.bench.measure import ROOT, cpu_seconds, machine, table
from conformance.servers import Kop, KopOverPulsar, StartFailed, free_port
from conformance.suites import Missing, python_clients

BYTES = 100
WAIT_SECONDS = 300.0
IDLE_SECONDS = 75.0
FETCH_WAIT_SECONDS = 25.0
"""The seconds for which a server holds a Fetch of an idle instance with the usual `request.timeout.ms`: five sixths of
30 s. Of two such times each has a whole number of Fetches.
"""
TURNS = 10
EMPTY_LOOP = f"""
import asyncio
async def main():
    while True:
        await asyncio.sleep(1 / {TURNS})
asyncio.run(main())
"""
"""A process that does nothing but wake up: that alone is dear where the processor of a virtual machine halts."""
GUARANTEES = {"at least once": "ATLEAST_ONCE", "effectively once": "EFFECTIVELY_ONCE"}
ON_VALUES = "def process(text: str) -> str:\n    return text + '!'\n"
ON_BATCHES = (
    "import pyarrow as pa\nimport pyarrow.compute as pc\n\n\nclass Shout:\n"
    "    def process_batch(self, batch, context):\n"
    "        return pc.binary_join_element_wise(pc.cast(batch['value'], pa.string()), '!', '')\n"
)
ON_PULSAR = (
    "from pulsar import Function\n\n\nclass Shout(Function):\n"
    "    def process(self, input, context):\n        return input + '!'\n"
)
LOOP = "the loop of confluent-kafka"
BATCHES = "at least once, process_batch"
PULSAR = "Pulsar's instance"


class Failed(Exception):
    """A function did not do what was asked; the text says what it said."""


class Bench:
    """One server, a folder, and what is run against it."""

    def __init__(self, server: Kop, bootstrap: str, folder: Path) -> None:
        self._server = server
        self._bootstrap = bootstrap
        self._folder = folder
        self._number = 0
        for name, text in (("values", ON_VALUES), ("batches", ON_BATCHES), ("onpulsar", ON_PULSAR)):
            (folder / f"{name}.py").write_text(text)
        behind = server.behind.split(",") if isinstance(server, KopOverPulsar) else []
        self._admin, self._namespace, self._service = behind or ("", "", "")

    @property
    def modes(self) -> list[str]:
        """What is compared, the peer last."""
        if self._service:
            return [*GUARANTEES, *(f"{PULSAR}, {name}" for name in GUARANTEES)]
        return [*GUARANTEES, BATCHES, LOOP]

    def topic(self) -> str:
        """Return a new topic of one partition; over Pulsar one that is not partitioned, as its users have them."""
        self._number += 1
        name = f"speed-{self._number}"
        if self._service:
            url = f"{self._admin}/admin/v2/persistent/{self._namespace}/{name}"
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=30).close()
        else:
            client.create(self._bootstrap, name, 1)
        return name

    @contextlib.contextmanager
    def function(self, mode: str, source: str, output: str, messages: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """Run a function, or the peer, from `source` (from its beginning) to `output`, until the block ends."""
        log = self._folder / f"{output}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self._command(mode, source, output, messages), stdout=file, stderr=subprocess.STDOUT, cwd=ROOT
            )
            try:
                yield process
                if process.poll():
                    raise Failed(f"{mode} ended with {process.returncode}:\n{log.read_text()[-1500:]}")
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _command(self, mode: str, source: str, output: str, messages: int) -> list[str]:
        if mode == LOOP:
            return [
                sys.executable,
                "-m",
                "conformance.functions.speed",
                "loop",
                self._bootstrap,
                source,
                output,
                str(messages),
            ]
        if mode.startswith(PULSAR):
            return self._instance(GUARANTEES[mode.partition(", ")[2]], source, output)
        module, name = ("batches", "batches.Shout") if mode == BATCHES else ("values", "values")
        command = [*self._server.command(), "functions", "localrun", "--bootstrap", self._bootstrap]
        command += ["--py", str(self._folder / f"{module}.py"), "--classname", name, "--name", output]
        command += ["--inputs", source, "--output", output, "--subs-position", "Earliest"]
        return [*command, "--processing-guarantees", GUARANTEES.get(mode, "ATLEAST_ONCE")]

    def _instance(self, guarantee: str, source: str, output: str) -> list[str]:
        """Return the command of Pulsar's own instance, as its worker starts it."""
        distribution = Path(os.environ.get("PULSAR_DIST") or self._home())
        python = python_clients("venv-pulsar-instance", "requirements-pulsar-instance.txt")
        places = {name: f"persistent://{self._namespace}/{name}" for name in (source, output)}
        details = {
            "tenant": "public",
            "namespace": "default",
            "name": output,
            "className": "onpulsar.Shout",
            "autoAck": True,
            "parallelism": 1,
            "processingGuarantees": guarantee,
            "source": {
                "subscriptionType": "FAILOVER" if guarantee == "EFFECTIVELY_ONCE" else "SHARED",
                "subscriptionName": output,
                "subscriptionPosition": "EARLIEST",
                "inputSpecs": {places[source]: {}},
            },
            "sink": {"topic": places[output], "forwardSourceMessageProperty": True},
            "runtime": "PYTHON",
        }
        flags = {
            "function_details": json.dumps(details),
            "py": self._folder / "onpulsar.py",
            "instance_id": 0,
            "function_id": output,
            "function_version": 1,
            "pulsar_serviceurl": self._service,
            "port": free_port(),
            "metrics_port": free_port(),
            "max_buffered_tuples": 1000,
            "logging_directory": self._folder,
            "logging_file": output,
            "logging_config_file": distribution / "conf/functions-logging/console_logging_config.ini",
            "expected_healthcheck_interval": -1,
            "cluster_name": "standalone",
            "use_tls": "false",
            "secrets_provider": "secretsprovider.ClearTextSecretsProvider",
        }
        command = [str(python), str(distribution / "instances/python-instance/python_instance_main.py")]
        return command + [text for name, value in flags.items() for text in (f"--{name}", str(value))]

    @staticmethod
    def _home() -> str:
        script = Path(__file__).parents[1] / "pulsar_server.sh"
        return subprocess.run([str(script), "home"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def rates(self, messages: int, rounds: int) -> list[list[str]]:
        """Return the table of rates: the best of `rounds` turns each, all of one input."""
        source = self.topic()
        if self._service:
            _fill_pulsar(self._service, f"persistent://{self._namespace}/{source}", messages)
        else:
            _fill(self._bootstrap, source, messages)
        best: dict[str, tuple[float, float, float, float]] = {}
        for turn in range(rounds):
            for mode in self.modes if turn % 2 else self.modes[::-1]:
                seen = self._rate(mode, source, messages)
                best[mode] = min(best.get(mode, seen), seen)
                print(f"  {mode}: {messages / seen[0]:,.0f}/s", file=sys.stderr, flush=True)
        rows = [["one function", "messages/s", "after the first", "CPU us/message", "first output, s", "beside"]]
        for mode, (whole, after, cpu, first) in best.items():
            peer = best[f"{PULSAR}, {mode}" if self._service and mode in GUARANTEES else self.modes[-1]]
            figures = (
                f"{messages / whole:,.0f}",
                f"{messages / after:,.0f}",
                f"{cpu / messages * 1e6:.2f}",
                f"{first:.2f}",
            )
            beside = (peer[1] / after) if self._service else (peer[0] / whole)
            rows.append([mode, *figures, f"{beside:.2f}"])
        return rows

    def _rate(self, mode: str, source: str, messages: int) -> tuple[float, float, float, float]:
        """Return the seconds of a turn, those after its first output, CPU seconds, and when the first output came."""
        output = self.topic()
        config = {"bootstrap.servers": self._bootstrap, "group.id": output}
        with closing(Consumer(config)) as looking:
            began, first = time.monotonic(), 0.0
            with self.function(mode, source, output, messages) as process:
                while True:
                    end = looking.get_watermark_offsets(TopicPartition(output, 0), timeout=30)[1]
                    now = time.monotonic() - began
                    if end and not first:
                        first = now
                    # A transaction's marker takes an offset, too: at the end there are at least so many.
                    if end >= messages:
                        return now, max(now - first, 0.001), cpu_seconds(process.pid), first
                    if now > WAIT_SECONDS or process.poll() is not None:
                        raise Failed(f"{mode}: {end} of {messages} outputs after {now:.0f} s")
                    time.sleep(0.02)  # the end of a topic is asked for, not told

    def latencies(self, rate: int, seconds: float) -> list[list[str]]:
        """Return the table of latencies at `rate` messages a second."""
        rows = [[f"{rate:,}/s, ms", "p50", "p95", "p99", "messages"]]
        for mode in self.modes:
            if mode in (LOOP, BATCHES):
                continue
            seen = self._latency(mode, rate, seconds)
            rows.append([mode, *(f"{seen[int(len(seen) * share)]:.1f}" for share in (0.5, 0.95, 0.99)), str(len(seen))])
            print(f"  {rows[-1]}", file=sys.stderr, flush=True)
        return rows

    def _latency(self, mode: str, rate: int, seconds: float) -> list[float]:
        source, output = self.topic(), self.topic()
        stop = threading.Event()
        seen: list[float] = []
        to_pulsar = self._service if self._service else ""
        read = _read_pulsar if to_pulsar else _read_kafka
        where = (to_pulsar, f"persistent://{self._namespace}/{output}") if to_pulsar else (self._bootstrap, output)
        reader = threading.Thread(target=read, args=(*where, stop, seen))
        with self.function(mode, source, output):
            time.sleep(6 if mode.startswith(PULSAR) else 3)  # its start is no part of a latency
            reader.start()
            time.sleep(1)  # nor is the reader's
            if to_pulsar:
                _pace_pulsar(to_pulsar, f"persistent://{self._namespace}/{source}", rate, seconds)
            else:
                _pace_kafka(self._bootstrap, source, rate, seconds)
            time.sleep(2)  # for the last outputs
            stop.set()
            reader.join()
        if len(seen) < rate * seconds * 0.9:
            raise Failed(f"{mode}: {len(seen)} outputs of {rate * seconds:.0f}")
        return sorted(seen[len(seen) // 8 :])

    def idle(self, instances: int, seconds: float) -> list[list[str]]:
        """Return the table of what so many instances with nothing to do cost, the server included."""
        client.create(self._bootstrap, "idle", instances)
        at = f"127.0.0.1:{free_port()}"
        command = [*self._server.command(), "functions"]
        with (self._folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [*command, "worker", "--bootstrap", self._bootstrap, "--listen", at], stdout=log, stderr=log
            )
        try:
            flags = ["--admin-url", f"http://{at}", "--py", str(self._folder / "values.py"), "--classname", "values"]
            flags += ["--name", "idle", "--inputs", "idle", "--output", "idle-out", "--parallelism", str(instances)]
            _until_it_works([*command, "create", *flags])
            processes = _when_idle(worker.pid, instances)
            loop = subprocess.Popen([sys.executable, "-c", EMPTY_LOOP])
            try:
                parts = {"instances": processes[1:], "worker": [worker.pid], "server": [self._server.pid]}
                counted = {**parts, f"an empty loop of asyncio, {TURNS} turns a second": [loop.pid]}
                before = {name: sum(map(cpu_seconds, pids)) for name, pids in counted.items()}
                time.sleep(seconds)  # it is a share of time
                used = {name: sum(map(cpu_seconds, pids)) - before[name] for name, pids in counted.items()}
            finally:
                loop.kill()
                loop.wait()
            memory = sorted(map(_pss_mib, processes))[-instances:]
        finally:
            worker.terminate()
            worker.wait(60)
        used |= {"together": sum(used[name] for name in parts)}
        mean = {"instances": f"{sum(memory) / len(memory):.1f}"}
        rows = [[name, mean.get(name, ""), f"{spent / seconds * 100:.1f}"] for name, spent in used.items()]
        return [[f"{instances} idle instances", "PSS MiB each", "CPU, % of a core"], *rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    if arguments is None and sys.argv[1:2] == ["loop"]:
        bootstrap, source, output, count = sys.argv[2:]
        _loop(bootstrap, source, output, int(count))
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m conformance.functions.speed", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--start-kop-pulsar", action="store_true", help="over Apache Pulsar, beside its own instance")
    parser.add_argument("--messages", type=int, default=0, metavar="N", help="of a rate (1,000,000; Pulsar 100,000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of a rate, the best counts (3)")
    parser.add_argument("--rate", type=int, default=1000, metavar="N", help="messages a second of a latency (1000)")
    parser.add_argument("--seconds", type=float, default=15, metavar="N", help="of a latency (15)")
    parser.add_argument("--idle", type=int, default=200, metavar="N", help="idle instances, 0: none (200)")
    options = parser.parse_args(arguments)
    print(machine(), flush=True)
    quiet = {"kop.log.level": "warning"}
    messages = options.messages or (100_000 if options.start_kop_pulsar else 1_000_000)
    try:
        with tempfile.TemporaryDirectory(prefix="functions-speed-") as folder, ExitStack() as stack:
            server: Kop = KopOverPulsar(settings=quiet) if options.start_kop_pulsar else Kop(settings=quiet)
            bench = Bench(server, stack.enter_context(server), Path(folder))
            print("\n" + table(bench.rates(messages, options.rounds)), flush=True)
            print("\n" + table(bench.latencies(options.rate, options.seconds)), flush=True)
            if options.idle:
                print("\n" + table(bench.idle(options.idle, 2 * FETCH_WAIT_SECONDS)), flush=True)
    except (StartFailed, Missing, Failed) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _fill(bootstrap: str, topic: str, messages: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 2_000_000})
    for number in range(messages):
        producer.produce(topic, b"%0*d" % (BYTES, number))
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise Failed("the input could not be written")


def _fill_pulsar(service: str, topic: str, messages: int) -> None:
    with closing(_pulsar_client(service)) as connected:
        producer = connected.create_producer(
            topic, block_if_queue_full=True, batching_enabled=True, max_pending_messages=20_000
        )
        for number in range(messages):
            producer.send_async(b"%0*d" % (BYTES, number), lambda *_: None)
        producer.flush()


def _loop(bootstrap: str, source: str, output: str, messages: int) -> None:
    """Do what the function does, as somebody would write it with confluent-kafka."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": output, "enable.auto.commit": True})
    consumer.assign([TopicPartition(source, 0, 0)])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    done = 0
    while done < messages:
        message = consumer.poll(0.1)
        if message is None:
            continue
        while True:
            try:
                producer.produce(output, (message.value().decode() + "!").encode())
                break
            except BufferError:
                producer.poll(0.01)
        done += 1
        producer.poll(0)
    producer.flush()
    time.sleep(WAIT_SECONDS)  # until it is ended, as a function


def _stamp() -> bytes:
    return (b"%017.6f" % time.time()).ljust(BYTES, b"x")


def _pace_kafka(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    for _ in _paced(rate, seconds):
        producer.produce(topic, _stamp())
        producer.poll(0)
    producer.flush(30)


def _pace_pulsar(service: str, topic: str, rate: int, seconds: float) -> None:
    with closing(_pulsar_client(service)) as connected:
        producer = connected.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        for _ in _paced(rate, seconds):
            producer.send_async(_stamp(), lambda *_: None)
        producer.flush()


def _paced(rate: int, seconds: float) -> Iterator[int]:
    """Give a number whenever a message is due."""
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * rate:
            yield sent
            sent += 1
        time.sleep(0.0003)


def _pulsar_client(service: str) -> pulsar.Client:
    return pulsar.Client(service, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def _read_kafka(bootstrap: str, topic: str, stop: threading.Event, seen: list[float]) -> None:
    config = {"bootstrap.servers": bootstrap, "group.id": "speed", "enable.auto.commit": False}
    with closing(Consumer(config | {"isolation.level": "read_committed", "fetch.error.backoff.ms": 5})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                seen.append((time.time() - float(message.value()[:17])) * 1000)


def _read_pulsar(service: str, topic: str, stop: threading.Event, seen: list[float]) -> None:
    with closing(_pulsar_client(service)) as connected:
        consumer = connected.subscribe(topic, "speed", initial_position=pulsar.InitialPosition.Earliest)
        while not stop.is_set():
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            seen.append((time.time() - float(message.data()[:17])) * 1000)
            consumer.acknowledge(message)


def _until_it_works(command: list[str]) -> None:
    """Run a command until it ends well: the worker has just been started. Failed after a minute."""
    until = time.monotonic() + 60
    while (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        if time.monotonic() > until:
            raise Failed(f"{done.stdout}{done.stderr}")
        time.sleep(0.5)


def _when_idle(pid: int, instances: int) -> list[int]:
    """Return the worker and all that it started, a while after so many instances run: what begins costs more."""
    until = time.monotonic() + WAIT_SECONDS
    while len(family := _family(pid)) < instances + 2:
        if time.monotonic() > until:
            raise Failed(f"{len(family)} processes of {instances} instances")
        time.sleep(1)  # a worker does not say when the last one runs
    time.sleep(IDLE_SECONDS)  # until they have begun
    return _family(pid)


def _family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return family


def _pss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
