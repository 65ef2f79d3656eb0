"""Copy exactly once under kills: python -m conformance.copier [--seed N] [--kills N] [--records N] [--embedded].

Kafka's own system test of transactions, with its own program: `TransactionalMessageCopier` of kafka-tools copies each
partition of a topic in transactions, some of which it aborts. Meanwhile copiers and gateways are killed by SIGKILL and
started again. In the end what is committed in the output is the input: each record once, in its order.

Owns: the topics, when who is killed, the comparison.
Must not know: how a copier works, how a gateway is started.

The exit code is 0 where the output is right, 1 where it is not, 2 where the run could not be done.
"""

from __future__ import annotations

import argparse
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.harness.targets import Target, embedded, over_pulsar
from conformance.servers import HERE, StartFailed

PARTITIONS = 2
TRANSACTION_SIZE = 50
TRANSACTION_TIMEOUT_MS = 10_000
SPACING = 1.0, 6.0
"""Seconds between kills."""
AWAY = 0.5, 3.0
"""For how long a killed gateway is away."""
DONE_SECONDS = 240.0
"""For the copiers to come to the end of the input after the last kill."""


class Copier:
    """Kafka's copier of one partition; it is started again until it has come to the end."""

    def __init__(self, libs: str, bootstrap: str, run: str, partition: int, folder: Path) -> None:
        self._command = [
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{libs}/*",
            f"-Dlog4j2.configurationFile={HERE}/java/src/log4j2.properties",
            "org.apache.kafka.tools.TransactionalMessageCopier", "--broker-list", bootstrap,
            "--input-topic", f"{run}-in", "--input-partition", str(partition), "--output-topic", f"{run}-out",
            "--consumer-group", f"{run}-{partition}", "--transactional-id", f"{run}-{partition}",
            "--transaction-size", str(TRANSACTION_SIZE), "--transaction-timeout", str(TRANSACTION_TIMEOUT_MS),
            "--enable-random-aborts", "--use-group-metadata",
        ]  # fmt: skip
        self._log = folder / f"copier-{partition}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def done(self) -> bool:
        """Whether it has come to the end of its input."""
        return self._process is not None and self._process.poll() == 0

    def keep_running(self) -> None:
        """Start it, unless it runs or has come to the end."""
        if self._process is None or self._process.poll() not in (None, 0):
            self.starts += 1
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def fill(bootstrap: str, run: str, records: int) -> None:
    """Make the topics, and write the input: partition `p` has the values p-0, p-1, ..."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"{run}-{name}", PARTITIONS, 1) for name in ("in", "out")]
    for future in admin.create_topics(topics, operation_timeout=60).values():
        future.result(90)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for index in range(records):
        for partition in range(PARTITIONS):
            producer.produce(f"{run}-in", f"{partition}-{index}", partition=partition)
        producer.poll(0)
    if left := producer.flush(60):
        raise StartFailed(f"{left} records of the input were not acknowledged")


def copied(bootstrap: str, run: str, partition: int) -> list[str]:
    """What is committed in a partition of the output, to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{run}-read",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(f"{run}-out", partition, 0)])
    values: list[str] = []
    try:
        while True:
            message = consumer.poll(60)
            if message is None:
                raise KafkaException(f"nothing comes of {run}-out-{partition} for 60 s, not even its end")
            if (error := message.error()) is not None:
                if error.name() == "_PARTITION_EOF":
                    return values
                if not error.retriable():
                    raise KafkaException(error)
                continue
            value = message.value()
            assert value is not None
            values.append(value.decode())
    finally:
        consumer.close()


def differences(expected: Sequence[str], copied: Sequence[str]) -> list[str]:
    """In what the output differs from the input; nothing where they are the same."""
    counts, wanted = Counter(copied), set(expected)
    missing = [value for value in expected if value not in counts]
    twice = [value for value, count in counts.items() if count > 1]
    strange = [value for value in counts if value not in wanted]
    told = [
        f"{len(values)} {what}, as {', '.join(values[:5])}"
        for what, values in (("missing", missing), ("more than once", twice), ("never written", strange))
        if values
    ]
    return told or ([] if list(copied) == list(expected) else ["another order"])


def kill_some(target: Target, copiers: list[Copier], rng: random.Random, kills: int) -> None:
    """Kill copiers and gateways in turn, at random times, and start them again."""
    for number in range(kills):
        pause = time.monotonic() + rng.uniform(*SPACING)
        while time.monotonic() < pause:
            for copier in copiers:
                copier.keep_running()
            time.sleep(0.1)  # how often it is looked whether a copier has to be started again
        if all(copier.done for copier in copiers):
            print(f"the copiers came to the end after {number} kills: more --records leave more time")
            return
        if number % 2:
            server = rng.choice(target.servers)
            print(f"kill -9 of gateway {target.servers.index(server) + 1}", flush=True)
            server.kill()
            time.sleep(rng.uniform(*AWAY))  # for so long the gateway is away
            server.start()
        else:
            copier = rng.choice([each for each in copiers if not each.done])
            print(f"kill -9 of the copier of partition {copiers.index(copier)}", flush=True)
            copier.kill()


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000), help="repeats the plan of kills")
    parser.add_argument("--kills", type=int, default=12, help="of copiers and gateways, in turn (12)")
    parser.add_argument("--records", type=int, default=20_000, help="of each of two partitions (20000)")
    parser.add_argument("--embedded", action="store_true", help="one gateway with the embedded engine")
    parser.add_argument("--folder", type=Path, help="for logs (a new one in /tmp)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="copier-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}, folder {folder}", flush=True)
    libs = subprocess.run([f"{HERE}/java/fetch.sh", "tools"], stdout=subprocess.PIPE, text=True, check=False)
    if libs.returncode:
        print("the jars of Apache Kafka could not be fetched (Java 17, Maven)", file=sys.stderr)
        return 2
    rng, run, began = random.Random(given.seed), f"copy-{secrets.token_hex(3)}", time.monotonic()
    try:
        with ExitStack() as stack:
            target = embedded(stack, folder) if given.embedded else over_pulsar(stack, folder, 2, restart=False)
            fill(target.bootstrap, run, given.records)
            copiers = [
                Copier(libs.stdout.strip(), target.bootstrap, run, partition, folder) for partition in range(PARTITIONS)
            ]
            for copier in copiers:
                stack.callback(copier.kill)
            kill_some(target, copiers, rng, given.kills)
            end = time.monotonic() + DONE_SECONDS
            while not all(copier.done for copier in copiers):
                if time.monotonic() > end:
                    print(f"the copiers have not come to the end after {DONE_SECONDS:.0f} s", file=sys.stderr)
                    return 1
                for copier in copiers:
                    copier.keep_running()
                time.sleep(0.2)  # how often it is looked whether a copier has ended
            wrong = [
                f"partition {partition}: {each}"
                for partition in range(PARTITIONS)
                for each in differences(
                    [f"{partition}-{index}" for index in range(given.records)],
                    copied(target.bootstrap, run, partition),
                )
            ]
    except (StartFailed, KafkaException) as error:
        print(f"the run could not be done: {error}", file=sys.stderr)
        return 2
    starts = sum(copier.starts for copier in copiers)
    print(
        f"{PARTITIONS * given.records} records, {starts} starts of copiers, {time.monotonic() - began:.0f} s, "
        f"seed {given.seed}: {'; '.join(wrong) or 'each record once, in its order'}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
