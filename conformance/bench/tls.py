"""What TLS costs: the CPU of a server for a GiB produced and fetched, with TLS and without, beside Apache Kafka.

Owns: the two servers, each with a PLAINTEXT and an SSL listener and the same certificate; the turns; the table.
Must not know: how a server does it.

Both servers run from the start, and are warmed up by a first round that does not count. In each round each server has
a turn with TLS and one without, in the opposite order every second time, with the same client: Java's performance tools
and librdkafka. What TLS adds is the difference of the two turns, and a figure the median of the rounds.

    python -m conformance.bench.tls                          Java 17, and Maven once
    python -m conformance.bench.tls --clients java --mib 512
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from conformance.bench import client
from conformance.bench.measure import LoadFailed, cpu_seconds, load, machine, settle, table
from conformance.servers import HERE, Kafka, Kop, StartFailed, free_ports

RECORD_BYTES = 1024
PARTITIONS = 4
CLIENTS = ("java", "librdkafka")
DEEDS = ("produce", "fetch")
RANDOM = 16
"""Different values of records: nothing is compressed, all the same."""


@dataclass
class Server:
    """A server, and where it is reached, with TLS and without."""

    name: str
    process: Kop | Kafka
    addresses: dict[bool, str]


def main() -> int:
    """Measure and print."""
    if len(sys.argv) == 3 and sys.argv[1] in DEEDS:
        print(json.dumps((_produce if sys.argv[1] == "produce" else _fetch)(**json.loads(sys.argv[2]))))
        return 0
    parser = argparse.ArgumentParser(prog="python -m conformance.bench.tls", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS), help="(both)")
    parser.add_argument("--mib", type=int, default=384, metavar="N", help="of each turn (384)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="that count (5)")
    options = parser.parse_args()
    print(machine(), flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-tls-") as folder, ExitStack() as stack:
            servers = _servers(Path(folder), stack)
            print("\n" + table(_measure(servers, options.clients, options.mib, options.rounds, Path(folder))))
    except (StartFailed, LoadFailed) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _servers(folder: Path, stack: ExitStack) -> list[Server]:
    """Both, started; the client's properties of each kind are files in `folder`."""
    kop = Kop()
    made = subprocess.run([*kop.command(), "certs", str(folder)], capture_output=True, text=True, check=False)
    if made.returncode:
        raise StartFailed(made.stderr)
    first = free_ports(4)
    kop_at, kafka_at = ({False: f"127.0.0.1:{port}", True: f"127.0.0.1:{port + 1}"} for port in (first, first + 2))
    keystore = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "broker.pem")}
    kop.address = kop_at[False]
    kop.more_settings = {"listeners": f"PLAINTEXT://{kop_at[False]},SSL://{kop_at[True]}"} | keystore
    controller = f"127.0.0.1:{free_ports(1)}"
    of_kafka = keystore | {
        "listeners": f"PLAINTEXT://{kafka_at[False]},SSL://{kafka_at[True]},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{kafka_at[False]},SSL://{kafka_at[True]}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@{controller}",
    }
    (folder / "kafka.properties").write_text(_properties(of_kafka))
    truststore = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder / "ca.pem")}
    (folder / "java-True").write_text(_properties({"security.protocol": "SSL"} | truststore))
    (folder / "java-False").write_text("")
    kafka = Kafka(KAFKA_SETTINGS=str(folder / "kafka.properties"), KAFKA_PORT=kafka_at[False].rpartition(":")[2])
    servers = [Server("kop", kop, kop_at), Server("Apache Kafka", kafka, kafka_at)]
    for server in servers:
        stack.enter_context(server.process)
    return servers


def _properties(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _measure(servers: list[Server], clients: list[str], mib: int, rounds: int, folder: Path) -> list[list[str]]:
    """The table: seconds of CPU for a GiB."""
    seen: dict[tuple[str, str, str, bool], list[float]] = {}
    turns = [(server, tls) for server in servers for tls in (False, True)]
    for number in range(rounds + 1):
        for name in clients:
            for server, tls in turns if number % 2 else turns[::-1]:
                for deed, seconds in _turn(server, name, tls, mib, folder).items():
                    if number:
                        seen.setdefault((name, deed, server.name, tls), []).append(seconds / mib * 1024)
        print(f"round {number} of {rounds}{'' if number else ', to warm up'}", file=sys.stderr, flush=True)
    rows = [["CPU, s/GiB", *(f"{server.name}{how}" for server in servers for how in ("", " TLS", " added")), "ratio"]]
    for name in clients:
        for deed in DEEDS:
            row, added = [f"{deed}, {name}"], []
            for server in servers:
                plain, secure = (seen[name, deed, server.name, with_tls] for with_tls in (False, True))
                added.append(statistics.median(b - a for a, b in zip(plain, secure, strict=True)))
                row += [f"{figure:.2f}" for figure in (statistics.median(plain), statistics.median(secure), added[-1])]
            rows.append([*row, f"{added[0] / added[1]:.2f}" if added[1] > 0 else "-"])
    return rows


def _turn(server: Server, name: str, tls: bool, mib: int, folder: Path) -> dict[str, float]:
    """Seconds of CPU of a topic that is written and then read."""
    topic, records = f"tls-{time.monotonic_ns()}", mib * 2**20 // RECORD_BYTES
    plain, address = server.addresses[False], server.addresses[tls]
    client.create(plain, topic, PARTITIONS)
    used = {}
    for deed in DEEDS:
        settle(server.process.pid)
        before = cpu_seconds(server.process.pid)
        if name == "java":
            _java(deed, address, topic, records, folder / f"java-{tls}")
        else:
            ca = {"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.pem")} if tls else {}
            config = {"bootstrap.servers": address} | ca
            load("tls", deed, json.dumps({"config": config, "topic": topic, "records": records}))
        used[deed] = cpu_seconds(server.process.pid) - before
    client.delete(plain, topic)
    return used


def _java(deed: str, address: str, topic: str, records: int, config: Path) -> None:
    """Kafka's own performance tools."""
    libs = subprocess.run([str(HERE / "kafka_server.sh"), "libs"], capture_output=True, text=True, check=False)
    java = shutil.which("java")
    if libs.returncode or java is None:
        raise StartFailed(libs.stderr or "no java on PATH")
    tool = f"org.apache.kafka.tools.{'ProducerPerformance' if deed == 'produce' else 'ConsumerPerformance'}"
    command = [java, "-Xmx512m", "-Dlog4j2.level=ERROR", "-cp", f"{libs.stdout.strip()}/*", tool]
    command += ["--bootstrap-server", address, "--topic", topic, "--num-records", str(records)]
    command += ["--command-config", str(config)]
    if deed == "produce":
        command += ["--record-size", str(RECORD_BYTES), "--throughput", "-1"]
    else:
        command += ["--timeout", "60000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode or "exception" in done.stderr.lower():
        raise LoadFailed(f"{tool}: {done.stderr[-1000:]}")


def _produce(config: dict[str, Any], topic: str, records: int) -> dict[str, float]:
    producer = Producer(config | {"linger.ms": 5, "acks": "all"})
    failed: list[object] = []
    values = [bytes([number]) * RECORD_BYTES for number in range(RANDOM)]
    delivered: Callable[[Any, Any], None] = lambda error, _: failed.append(error) if error else None  # noqa: E731
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % RANDOM], partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(300) or failed:
        raise SystemExit(f"{len(failed)} records failed, as {failed[:1]}")
    return {"records": records}


def _fetch(config: dict[str, Any], topic: str, records: int) -> dict[str, float]:
    consumer = Consumer(config | {"group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    read, end = 0, time.monotonic() + 300
    while read < records:
        if time.monotonic() > end:
            raise SystemExit(f"{read} of {records} records were read")
        read += sum(message.error() is None for message in consumer.consume(10_000, 1))
    consumer.close()
    return {"records": read}


if __name__ == "__main__":
    sys.exit(main())
