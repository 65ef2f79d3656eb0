"""What goes to the Apache Pulsar without a gateway: its admin REST, and `pulsar-perf`, the Java client's own benchmark.

Must not know: gateways, Kafka.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.bench.figures import Run
from conformance.bench.kafka_frames import values
from conformance.bench.measure import LoadFailed
from conformance.bench.rows import RECORD_BYTES, Row

SCRIPT = Path(__file__).parents[1] / "pulsar_server.sh"
RUN_SECONDS = 300
READ_SECONDS = 180
SAMPLE_SECONDS = 0.1


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

    def create_namespace(self, name: str) -> None:
        """One that keeps what it is given."""
        self.call("PUT", f"namespaces/{name}")
        self.call("POST", f"namespaces/{name}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})

    def delete_namespace(self, name: str) -> None:
        """With all its topics: brokers do not allow that in one step unless told so."""
        for topic in self.call("GET", f"persistent/{name}/partitioned"):
            self.call("DELETE", f"{topic.replace('://', '/')}/partitions?force=true")
        for topic in self.call("GET", f"persistent/{name}"):
            self.call("DELETE", f"{topic.replace('://', '/')}?force=true")
        self.call("DELETE", f"namespaces/{name}")

    def create_topic(self, name: str, partitions: int) -> None:
        """NAME is TENANT/NAMESPACE/TOPIC."""
        self.call("PUT", f"persistent/{name}/partitions", partitions)

    def delete_topic(self, name: str) -> None:
        """Its disk is needed."""
        self.call("DELETE", f"persistent/{name}/partitions?force=true")

    def counter(self, topic: str, name: str) -> int:
        """A counter of a partitioned topic since it was loaded; 0 before it is there."""
        try:
            return int(self.call("GET", f"persistent/{topic}/partitioned-stats?perPartition=false").get(name, 0))
        except urllib.error.HTTPError:
            return 0


class PulsarPerf:
    """`pulsar-perf` against one Pulsar, counted by the broker.

    A run is timed from when it opens its client to its end: the start of its JVM is left out, as that of Python is, and
    the time in which its code is not compiled yet is inside.
    """

    def __init__(self, service: str, rest: Rest) -> None:
        done = subprocess.run([str(SCRIPT), "home"], stdout=subprocess.PIPE, text=True, check=False)
        self._command = str(Path(done.stdout.strip()) / "bin" / "pulsar-perf")
        if done.returncode or not Path(self._command).exists():
            raise LoadFailed("there is no pulsar-perf: it comes with Pulsar's distribution, see above")
        self._service, self._rest = service, rest

    def produce(self, row: Row, topic: str, seconds: float) -> Run:
        """Send for `seconds` as many records a batch as the row has. TOPIC is TENANT/NAMESPACE/TOPIC."""
        self._rest.create_topic(topic, row.partitions)
        outstanding = 1 if row.connections > 1 else 10_000
        settings: list[object] = [
            "-s",
            row.record_bytes,
            "-r",
            10_000_000,
            "-n",
            row.connections,
            "-time",
            f"{seconds:g}",
        ]
        settings += ["-o", outstanding, "-p", outstanding * row.partitions]
        settings += ["-db"] if row.records == 1 else ["-b", 5, "-bm", row.records, "-bb", row.batch_bytes * 2]
        with tempfile.NamedTemporaryFile("w") as payload:
            if row.codec != "none":
                payload.write("\n".join(value.decode() for value in values(row.records, row.record_bytes, True)))
                payload.flush()
                settings += ["-z", row.codec.upper(), "-f", payload.name]
            with self._run("produce", [*settings, f"persistent://{topic}"]) as lines:
                began = wait_for_line(lines, "publishers on topic")
                ended = wait_for_line(lines, "DONE")
                count = self._rest.counter(topic, "msgInCounter")
        self._rest.delete_topic(topic)
        return Run(ended - began, count, bytes=count * row.record_bytes)

    def consume(self, topic: str, records: int) -> Run:
        """Read the first so many records of a topic, which stays."""
        begun = self._rest.counter(topic, "msgOutCounter")
        settings = ["-sp", "Earliest", "-ss", f"bench-{time.time_ns()}", f"persistent://{topic}"]
        with self._run("consume", settings) as lines:
            began = wait_for_line(lines, "consumers per subscription")
            while (count := self._rest.counter(topic, "msgOutCounter") - begun) < records:
                if time.monotonic() > began + READ_SECONDS:
                    raise LoadFailed(f"pulsar-perf read {count} of {records} records in {READ_SECONDS} s")
                time.sleep(SAMPLE_SECONDS)
            ended = time.monotonic()
        return Run(ended - began, count, bytes=count * RECORD_BYTES)

    @contextmanager
    def _run(self, what: str, settings: Sequence[object]) -> Iterator[Iterator[str]]:
        """The lines that it prints while it runs."""
        command = [self._command, what, "-u", self._service, *map(str, settings)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            limit = threading.Timer(RUN_SECONDS, process.kill)
            limit.start()
            try:
                yield iter(process.stdout)
            finally:
                limit.cancel()
                process.kill()  # it would take ten seconds to say goodbye
                process.stdout.close()


def wait_for_line(lines: Iterator[str], text: str) -> float:
    """When a line with `text` comes. LoadFailed where it ends before."""
    last = ""
    for line in lines:
        if text in line:
            return time.monotonic()
        last = line
    raise LoadFailed(f"pulsar-perf ended before it said {text!r}: {last.strip()}")
