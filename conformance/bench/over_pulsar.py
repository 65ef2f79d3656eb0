"""The gateway over Pulsar beside what goes to the same Pulsar without it.

In each round, one after the other over one broker: the gateway with confluent-kafka, `pulsar-perf` (the Java client's
own benchmark), a bare asyncio client that sends ready batches (what this language could do at best) and, for latency,
pulsar-client. Figures are the medians of the rounds. What matters are the ratios: all share one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.bench.measure import HERE, RECORD_BYTES, cpu_seconds, load, machine, resident_mib, table
from conformance.servers import KopOverPulsar, Pulsar, StartFailed

RATE = 1000
MEMORY = "-Xms1g -Xmx2g -XX:MaxDirectMemorySize=1g"
GATEWAYS = ("a", "b")
SETTINGS = "managedLedgerCacheSizeMB=256\n"
SAMPLE_SECONDS = 0.5
PERF_START_SECONDS = 60
HOT_RECORDS = 50_000
"""As many as the gateway's cache of the newest batches holds: a consumer that is slow on a busy machine stays hot."""
Figures = dict[str, list[float]]


class Rest:
    """The little of Pulsar's admin REST that a benchmark needs."""

    def __init__(self, url: str) -> None:
        self._base = f"{url}/admin/v2"

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The answer, from JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._base}/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def delete_namespace(self, name: str) -> None:
        """With all its topics: brokers do not allow that in one step unless told so."""
        for topic in self.call("GET", f"persistent/{name}/partitioned"):
            self.call("DELETE", f"{topic.replace('://', '/')}/partitions?force=true")
        for topic in self.call("GET", f"persistent/{name}"):
            self.call("DELETE", f"{topic.replace('://', '/')}?force=true")
        self.call("DELETE", f"namespaces/{name}")

    def counters(self, topic: str) -> dict[str, int]:
        """Messages and bytes that went in and out of a partitioned topic since it was loaded; 0 before it is there."""
        path = f"persistent/{topic}/partitioned-stats?perPartition=false"
        try:
            found = self.call("GET", path)
        except urllib.error.HTTPError:
            found = {}
        return {name: int(found.get(name, 0)) for name in ("msgInCounter", "msgOutCounter", "bytesOutCounter")}


class Bench:
    """One Pulsar, its gateways, and the figures of all rounds."""

    def __init__(self, options: argparse.Namespace, urls: tuple[str, str], perf: Path | None, namespace: str) -> None:
        self.options = options
        self.service, self.admin_url = urls
        self.rest = Rest(self.admin_url)
        self.perf = perf
        self.namespace = namespace
        self.found: Figures = {}
        self.gateway: tuple[str, int] = ("", 0)
        self.cold: tuple[str, int] = ("", 0)

    def note(self, what: str, value: float) -> None:
        """Keep a figure."""
        self.found.setdefault(what, []).append(value)

    def steps(self, number: int) -> Iterator[str]:
        """One round; yields what comes next."""
        for partitions in self.options.partitions:
            name = f"{partitions}p"
            yield f"gateway, {name}"
            self._gateway(partitions, f"kop-{name}-{number}")
            yield f"bare client, {name}"
            self._bare(partitions, f"bare-{name}-{number}")
            if self.perf is not None:
                yield f"pulsar-perf, {name}"
                self._pulsar_perf(self.perf, partitions, f"perf-{name}-{number}")
        for groups in (1, 2):
            yield f"groups: {groups}"
            self._groups(groups, f"groups-{groups}-{number}")
        yield "latency, gateway"
        self._gateway_latency(f"latency-kop-{number}")
        yield "latency, pulsar-client"
        self._native_latency(f"latency-native-{number}")
        self.note("gateway memory MiB", resident_mib(self.gateway[1]))

    # --- one peer each

    def _gateway(self, partitions: int, topic: str) -> None:
        address, pid = self.gateway
        records = self.options.records
        load("client.py", "create", address, topic, partitions)

        def run(what: str, label: str, address: str, pid: int, *extra: int) -> None:
            before = cpu_seconds(pid)
            result = load("client.py", what, address, topic, records, *extra)
            self.note(f"{label} {partitions}p gateway", result["mib_s"])
            self.note(f"{label} {partitions}p gateway cpu", (cpu_seconds(pid) - before) / records * 1e6)

        run("produce", "in", address, pid, self.options.batch)
        run("consume", "out", address, pid)
        run("consume", "out, cold", *self.cold)
        self._forget(topic)

    def _bare(self, partitions: int, topic: str) -> None:
        self._create(topic, partitions)
        full = f"persistent://{self.namespace}/{topic}"
        records = self.options.records
        for what, label, extra in (("produce", "in", [self.options.batch]), ("consume", "out", [])):
            result = load("native.py", what, self.service, full, partitions, records, *extra)
            self.note(f"{label} {partitions}p bare", result["mib_s"])
            self.note(f"{label} {partitions}p bare cpu", result["cpu_us"])
        self._forget(topic)

    def _pulsar_perf(self, perf: Path, partitions: int, topic: str) -> None:
        self._create(topic, partitions)
        full = f"persistent://{self.namespace}/{topic}"
        batching = ["-b", "5", "-bb", str(self.options.batch), "-bm", "1000"]
        common = [str(perf), "produce", "-u", self.service, "-s", str(RECORD_BYTES)]
        unbounded = ["-r", "10000000", "-o", "10000", "-p", str(10_000 * partitions)]
        self._watch([*common, *batching, *unbounded, full], topic, "msgInCounter", f"in {partitions}p perf")
        reading = [str(perf), "consume", "-u", self.service, "-sp", "Earliest", "-ss", "bench", full]
        self._watch(reading, topic, "msgOutCounter", f"out {partitions}p perf")
        self._forget(topic)

    def _watch(self, command: list[str], topic: str, counter: str, label: str) -> None:
        """Its rate in the second half of its time, by the broker's counter: a JVM that has just started is slow."""
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
        ):
            try:
                samples = self._samples(process, f"{self.namespace}/{topic}", counter)
            finally:
                process.kill()  # it would take ten seconds to say goodbye
            if len(samples) < 2:
                log.seek(0)
                lines = log.read().decode(errors="replace").splitlines()[-15:]
                raise SystemExit("\n".join([" ".join(command[:2]) + " moved nothing:", *lines]))
        (begin, first), (end, last) = samples[(len(samples) - 1) // 2], samples[-1]
        self.note(label, (last - first) / (end - begin) * RECORD_BYTES / 2**20)

    def _samples(self, process: subprocess.Popen[bytes], topic: str, counter: str) -> list[tuple[float, int]]:
        """(time, count) from when it begins to move until its time is over, or all that was written is read."""
        counters = self.rest.counters(topic)
        written, reads = counters["msgInCounter"], counter == "msgOutCounter"
        limit = time.monotonic() + PERF_START_SECONDS
        samples = [(time.monotonic(), counters[counter])]
        while time.monotonic() < limit and process.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            asked = time.monotonic()
            count = self.rest.counters(topic)[counter]
            now = (asked + time.monotonic()) / 2
            if count == samples[0][1]:
                samples = [(now, count)]
                continue
            if len(samples) == 1:
                limit = now + self.options.seconds
            if reads and count >= written and len(samples) > 2:
                break  # idle for a part of this sample
            samples.append((now, count))
            if reads and count >= written:
                break
        return samples

    def _groups(self, groups: int, topic: str) -> None:
        """How often Pulsar sends a record that several groups follow at the gateway."""
        address, pid = self.gateway
        records = min(self.options.records, HOT_RECORDS)
        load("client.py", "create", address, topic, max(self.options.partitions))
        with ExitStack() as stack:
            followers: list[subprocess.Popen[str]] = []
            for i in range(groups):
                command = [
                    sys.executable,
                    str(HERE / "client.py"),
                    "group",
                    address,
                    topic,
                    str(records),
                    f"{topic}-{i}",
                ]
                follower = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                stack.callback(follower.kill)
                followers.append(follower)
            for follower in followers:
                assert follower.stdout is not None
                if follower.stdout.readline() != "ready\n":
                    raise SystemExit("a consumer got no partitions")
            before = cpu_seconds(pid)
            load("client.py", "produce", address, topic, records, self.options.batch)
            for follower in followers:
                if follower.communicate(timeout=180) and follower.returncode:
                    raise SystemExit("a consumer failed (see above)")
            cpu = cpu_seconds(pid) - before
        counters = self._settled(f"{self.namespace}/{topic}")
        self.note(f"{groups} groups cpu", cpu / (records * groups) * 1e6)
        self.note(f"{groups} groups sent", counters["msgOutCounter"] / counters["msgInCounter"])
        self.note(f"{groups} groups bytes", counters["bytesOutCounter"] / counters["msgInCounter"])
        self._forget(topic)

    def _settled(self, topic: str) -> dict[str, int]:
        """The counters when they stand still."""
        seen = self.rest.counters(topic)
        while True:
            time.sleep(0.3)
            last, seen = seen, self.rest.counters(topic)
            if seen == last:
                return seen

    def _gateway_latency(self, topic: str) -> None:
        address, _ = self.gateway
        load("client.py", "create", address, topic, 1)
        self._latency("gateway", load("client.py", "latency", address, topic, self.options.seconds, RATE))

    def _native_latency(self, topic: str) -> None:
        full = f"{self.namespace}/{topic}"
        self.rest.call("PUT", f"persistent/{full}")
        self._latency("native", load("native.py", "latency", self.service, full, self.options.seconds, RATE))

    def _latency(self, who: str, result: dict[str, float]) -> None:
        for name in ("p50_ms", "p99_ms"):
            self.note(f"{name} {who}", result[name])

    def _create(self, topic: str, partitions: int) -> None:
        self.rest.call("PUT", f"persistent/{self.namespace}/{topic}/partitions", partitions)

    def _forget(self, topic: str) -> None:
        """Its disk is needed."""
        self.rest.call("DELETE", f"persistent/{self.namespace}/{topic}/partitions?force=true")

    # --- the report

    def median(self, what: str) -> float | None:
        """Of all rounds."""
        values = self.found.get(what)
        return statistics.median(values) if values else None

    def report(self) -> str:
        """All tables."""
        return "\n\n".join([self._throughput(), self._latencies(), self._second_group()])

    def _throughput(self) -> str:
        head = ["1 KiB records", "gateway MiB/s", "gateway msg/s", "pulsar-perf msg/s", "bare client msg/s"]
        rows = [[*head, "of pulsar-perf", "of bare client", "gateway CPU us/record", "bare CPU us/record"]]
        for label in ("in", "out", "out, cold"):
            for partitions in self.options.partitions:
                load_name = f"{label} {partitions}p"
                native = f"{label.partition(',')[0]} {partitions}p"
                gateway = self.median(f"{load_name} gateway")
                perf, bare = self.median(f"{native} perf"), self.median(f"{native} bare")
                cpu, bare_cpu = self.median(f"{load_name} gateway cpu"), self.median(f"{native} bare cpu")
                rows.append(
                    [
                        f"{label}, {partitions} p",
                        number(gateway, 0),
                        *(number(value and value * 2**20 / RECORD_BYTES, 0) for value in (gateway, perf, bare)),
                        ratio(gateway, perf),
                        ratio(gateway, bare),
                        number(cpu, 2),
                        number(bare_cpu, 2),
                    ]
                )
        return table(rows)

    def _latencies(self) -> str:
        rows = [[f"end to end at {RATE:,} records/s", "gateway ms", "pulsar-client ms", "gateway / pulsar-client"]]
        for name in ("p50", "p99"):
            gateway, native = self.median(f"{name}_ms gateway"), self.median(f"{name}_ms native")
            rows.append([name, number(gateway, 2), number(native, 2), ratio(gateway, native)])
        return table(rows)

    def _second_group(self) -> str:
        rows = [["groups on a hot topic", "sent by Pulsar per record", "bytes", "gateway CPU us/record delivered"]]
        for groups in (1, 2):
            columns = (("sent", 2), ("bytes", 0), ("cpu", 2))
            values = [number(self.median(f"{groups} groups {what}"), digits) for what, digits in columns]
            rows.append([str(groups), *values])
        return table(rows)


def number(value: float | None, digits: int) -> str:
    """A figure, or a dash for one that is not there."""
    return "-" if value is None else f"{value:,.{digits}f}"


def ratio(value: float | None, of: float | None) -> str:
    """How many times `of` it is."""
    return "-" if value is None or not of else f"{value / of:.2f}"


def find_perf() -> Path | None:
    """bin/pulsar-perf of the distribution; says what is missing where there is none."""
    done = subprocess.run(
        [str(HERE.parent / "pulsar_server.sh"), "home"], stdout=subprocess.PIPE, text=True, check=False
    )
    perf = Path(done.stdout.strip()) / "bin" / "pulsar-perf"
    if done.returncode or not perf.exists():
        print("pulsar-perf is left out: it comes with Pulsar's distribution, see above", file=sys.stderr)
        return None
    return perf


@contextmanager
def namespace_for(rest: Rest) -> Iterator[str]:
    """A namespace that keeps what it is given; it goes with all that is in it."""
    name = f"public/bench-{os.getpid()}-{int(time.time())}"
    rest.call("PUT", f"namespaces/{name}")
    rest.call("POST", f"namespaces/{name}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    try:
        yield name
    finally:
        for namespace in (name, *(f"{name}-{gateway}" for gateway in GATEWAYS)):
            try:
                rest.delete_namespace(namespace)
            except OSError as error:
                print(f"the namespace {namespace} could not be deleted: {error}", file=sys.stderr)


def run(options: argparse.Namespace, stack: ExitStack) -> Bench:
    """All rounds."""
    settings = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "extra.conf"
    settings.write_text(SETTINGS)
    perf = None if options.no_perf else find_perf()
    urls = stack.enter_context(Pulsar(MEM=os.environ.get("MEM", MEMORY), EXTRA_CONF=str(settings)))
    namespace = stack.enter_context(namespace_for(Rest(urls[1])))
    bench = Bench(options, urls, perf, namespace)
    gateway, cold = (KopOverPulsar(urls, namespace, f"{namespace}-{name}") for name in GATEWAYS)
    bench.gateway = (stack.enter_context(gateway), gateway.pid)
    bench.cold = (stack.enter_context(cold), cold.pid)
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    parts = len(options.partitions) * (3 if perf else 2) + 4
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=parts * options.rounds)
        for number_of_round in range(1, options.rounds + 1):
            done = False
            for step in bench.steps(number_of_round):
                if done:
                    progress.advance(task)
                done = True
                text = f"round {number_of_round} of {options.rounds}: {step}"
                progress.update(task, description=text)
                if not console.is_terminal:
                    print(f"{text}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            progress.advance(task)
    return bench


def main() -> int:
    """Run the benchmark and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.bench.over_pulsar",
        description=__doc__.partition("\n\n")[2],
        epilog="Starts an Apache Pulsar (Java 17, and Maven once), or takes KOP_TEST_PULSAR=pulsar://...,http://...",
    )
    parser.add_argument(
        "--records", type=int, default=300_000, metavar="N", help="records of 1 KiB a load (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds to take the median of (%(default)s)")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 8], metavar="N", help="topics' sizes (1 8)")
    parser.add_argument("--batch", type=int, default=65_536, metavar="N", help="bytes of a batch (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=7.0, metavar="S", help="of pulsar-perf and of latencies (%(default)s)"
    )
    parser.add_argument("--no-perf", action="store_true", help="leave pulsar-perf out")
    parser.add_argument("--quick", action="store_true", help="one round of 100,000 records: about a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.records = 1, 100_000
    began = time.monotonic()
    with ExitStack() as stack:
        try:
            bench = run(options, stack)
        except StartFailed as error:
            print(error, file=sys.stderr)
            return 2
    print(
        f"{machine()}; median of {options.rounds}, {options.records:,} records of 1 KiB in batches of {options.batch:,}"
    )
    print(f"bytes, acks=all; {time.monotonic() - began:.0f} s in all\n")
    print(bench.report())
    print(f"\nmemory of the gateway after it: {number(bench.median('gateway memory MiB'), 0)} MiB")
    print(
        "in: confluent-kafka, linger 5 ms. out: from the start of what was just written; cold: at a gateway that has\n"
        "nothing in memory, every byte from Pulsar."
    )
    if options.json:
        options.json.write_text(json.dumps(bench.found, indent=1))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop what was started, too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
