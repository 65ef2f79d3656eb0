"""Run a soak: python -m conformance.soak [--tenants] [--seconds N] [--seed N] [--fast].

Owns: the order of a run (Pulsar, topics, gateways, writers, faults, readers, checker) and what it prints.
Must not know: what is right (checker.py).

The exit code is 0 where nothing is wrong, 1 with anomalies, 2 where the run could not be done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.table import Table

from conformance.harness import tenants
from conformance.harness.admin import patiently
from conformance.harness.faults import Disturbance, Rest
from conformance.harness.processes import Processes
from conformance.harness.run import (
    Length,
    add_options,
    counted,
    enter,
    kept,
    perform,
    say_end,
    say_faults,
    tracebacks,
    under_faults,
    unperformed,
    wide_console,
    write_details,
)
from conformance.harness.targets import OverPulsar, gateways, make_namespaces, pulsar
from conformance.progress import ProgressLine
from conformance.servers import HERE, KopOverPulsar, StartFailed
from conformance.soak.broker_log import begun_anew, failed_commits, failed_recoveries
from conformance.soak.checker import Anomaly, check, done_by_pulsar, latencies
from conformance.soak.faults import AFTERMATH_SECONDS, BROKER_KINDS, KINDS, SPACING, Executor, plan
from conformance.soak.history import ABORTED, History, Stored, Write, stored_in, writer_of, writes_in
from conformance.soak.sampler import Sampler
from conformance.soak.workload import SIZE_LIMIT, TOPICS, Topic, Writer, specification, writers_of
from kop.pulsar_client import Client, TxnId
from kop.pulsar_client.admin import Admin

LENGTH = Length(seconds=600.0, spacing=SPACING.usual, fast_seconds=50.0, fast_spacing=2.5)
STOP_SECONDS = 120.0
"""For writers to end; they give their clients FLUSH_SECONDS."""
READ_SECONDS = 900.0
TRANSACTION_SECONDS = 60.0
"""For transactions that a dead producer left open; their own time limit is 30 s (TransactionWriters.java)."""
READERS = ("entries", "pulsar", "confluent", "aiokafka")
JAVA_CLIENTS = "4.3.1"
_JAVA = ("java", "transactions")
"""Families of writers in Java."""
_ENDED = re.compile(r"^ended (\d+):(\d+) (committed|aborted) (\S+) ([\d ]+)$", re.MULTILINE)
"""A line of TransactionWriters.java: the transaction, its end, its writer and the numbers of its records."""
_UNANSWERED = re.compile(r"End \[(COMMIT|ABORT)\] TXN \((\d+),(\d+)\) failed")
"""What Pulsar's client says of an end that it asked for in vain."""
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Soak:
    """All writers and readers of one namespace."""

    def __init__(
        self,
        options: argparse.Namespace,
        folder: Path,
        over: OverPulsar,
        gateways: list[KopOverPulsar],
        disturbances: list[Disturbance],
        *,
        user: str = "",
    ) -> None:
        """`gateways` are started, and `disturbances` noted, by others. `user`: the tenant whose namespace it is; empty:
        there are no tenants.
        """
        self._options = options
        self._folder = folder
        self._service, self._admin = over.urls
        self._user = user
        self.namespace = tenants.namespace_of(user) if user else over.namespace
        self._rest = over.rest
        self._cluster = over.cluster
        self._gateways = gateways
        self._disturbances = disturbances
        self._table = writers_of(user)
        self._writers: Processes | None = None
        self._mark: tenants.Mark | None = None
        self.problems: list[str] = []
        """What keeps the run from saying what it should: a writer that died, a partition that could not be read."""
        self.notes: list[str] = []
        """What Pulsar did to its own clients, and what was done about it."""
        self.sampler: Sampler | None = None

    @property
    def bootstrap(self) -> str:
        """Both gateways."""
        return ",".join(gateway.address for gateway in self._gateways)

    @property
    def _connection(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap} | tenants.librdkafka(self._user)

    def make_native(self) -> None:
        """Make the topics that are there before the gateways."""
        for topic in TOPICS:
            if topic.native:
                path = f"persistent/{self.namespace}/{topic.name}"
                if topic.partitions:
                    self._rest.call("PUT", f"{path}/partitions", topic.partitions)
                else:
                    self._rest.call("PUT", path)
                self._set_policies(topic)

    def prepare(self) -> None:
        """Make all other topics. StartFailed."""
        admin = AdminClient({**self._connection, "log_level": 0})
        ours = [topic for topic in TOPICS if not topic.native]
        made = [NewTopic(topic.name, topic.partitions, 1, config=dict(topic.configs)) for topic in ours]
        patiently(lambda: admin.create_topics(made).values())
        for topic in ours:
            self._set_policies(topic)
        self._await_topics(admin)
        if self._user:
            self._mark = tenants.Mark(self.bootstrap, self._user)
            self._mark.leave()

    def _set_policies(self, topic: Topic) -> None:
        for name, value in topic.policies.items():
            self._rest.call("POST", f"persistent/{self.namespace}/{topic.name}/{name}", value)

    def _await_topics(self, admin: AdminClient) -> None:
        end = time.monotonic() + 60
        wanted = {topic.name for topic in TOPICS}
        while time.monotonic() < end:
            try:
                if wanted <= set(admin.list_topics(timeout=10).topics):
                    return
            except KafkaException:
                pass  # asked again until the time is over
            time.sleep(0.5)
        raise StartFailed("the gateways do not find all topics within 60 s")

    # --- writers

    def start_writers(self, stack: ExitStack) -> None:
        """Let them write until `stop`."""
        families: dict[str, list[Writer]] = {}
        for writer in self._table:
            families.setdefault(writer.family, []).append(writer)
        # All are compiled before the first one writes.
        commands = {family: self._writer_command(family, writers) for family, writers in families.items()}
        self._writers = Processes(stack, self._folder, "writers")
        for family, writers in families.items():
            self._writers.start(family, commands[family])
            if family not in _JAVA:
                told = self._specification() | {"writers": [specification(writer) for writer in writers]}
                self._writers.tell(family, json.dumps(told))

    def _writer_command(self, family: str, writers: list[Writer]) -> list[str]:
        path = self._folder / f"writes-{family}.jsonl"
        if family in _JAVA:
            return self._java_command(family, path, writers)
        return [sys.executable, "-m", "conformance.soak.writers", family, str(path)]

    def _specification(self) -> dict[str, Any]:
        return {
            "bootstrap": self.bootstrap,
            "user": self._user,
            "service_url": self._service,
            "admin_url": self._admin,
            "namespace": self.namespace,
            "seed": self._options.seed,
            "topics": [asdict(topic) for topic in TOPICS],
        }

    def _java_command(self, family: str, path: Path, writers: list[Writer]) -> list[str]:
        """Compiles what it starts, where that was changed."""
        if family == "java":
            connection = self._folder / "java.properties"
            properties = {"bootstrap.servers": self.bootstrap} | tenants.java(self._user)
            connection.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
            main, first, more = "KafkaWriters", str(connection), []
            libraries = _output(str(HERE / "java" / "fetch.sh"), JAVA_CLIENTS)
        else:
            main, first, more = "TransactionWriters", self._service, [self.namespace]
            libraries = _output(str(HERE / "pulsar_server.sh"), "home") + "/lib"
        sources = HERE / "soak" / "src"
        classes = HERE / ".cache" / "soak" / family
        files = [sources / f"{name}.java" for name in (main, "SoakWriter", "SoakLog")]
        made = classes / f"{main}.class"
        if not made.exists() or made.stat().st_mtime < max(file.stat().st_mtime for file in files):
            classes.mkdir(parents=True, exist_ok=True)
            subprocess.run(["javac", "-nowarn", "-d", classes, "-cp", f"{libraries}/*", *files], check=True)
            made.touch()
        texts = [java_text(writer) for writer in writers]
        seed = str(self._options.seed)
        return ["java", *_JVM, "-cp", f"{classes}:{libraries}/*", main, first, str(path), seed, *more, *texts]

    # --- the run

    def sample(self, stop: threading.Event) -> None:
        """Compare acknowledgements with what is stored until `stop`."""
        self.sampler = Sampler(self._connection, self._paths(), self._options.seed)
        self.sampler.run(stop)

    def state(self) -> str:
        """How far it is, in a few words."""
        compared, wrong = (self.sampler.compared, len(self.sampler.anomalies)) if self.sampler else (0, 0)
        return f"{self.acknowledged()} answered, {compared} sampled ({wrong} wrong)"

    def stop(self) -> None:
        """Let the writers finish."""
        assert self._writers is not None
        self._writers.stop(STOP_SECONDS)
        self.problems += self._writers.problems

    def _paths(self) -> list[Path]:
        families = dict.fromkeys(writer.family for writer in self._table)
        return [self._folder / f"writes-{family}.jsonl" for family in families]

    def acknowledged(self) -> int:
        """Lines that the writers have left so far."""
        return sum(path.read_bytes().count(b"\n") for path in self._paths() if path.exists())

    def read(self, progress: ProgressLine) -> dict[str, tuple[list[Stored], list[tuple[str, int]]]]:
        """What each reader finds, one after the other, once no rate holds them back."""
        for name in ("dispatchRate", "publishRate"):
            for topic in TOPICS:
                self._rest.call("DELETE", f"persistent/{self.namespace}/{topic.name}/{name}")
        progress.say("open transactions end")
        self._await_transactions()
        views = {}
        for number, name in enumerate(READERS):
            progress.say(f"reading by {name}")
            path = self._folder / f"stored-{name}.jsonl"
            # Each Kafka consumer asks another gateway first; the partitions' leaders answer it.
            bootstrap = self._gateways[number % 2].address
            with (self._folder / f"reader-{name}.log").open("w") as errors:
                try:
                    done = subprocess.run(
                        [sys.executable, "-m", "conformance.soak.readers", name, str(path)],
                        input=json.dumps(self._specification() | {"bootstrap": bootstrap}),
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        cwd=HERE.parent,
                        timeout=READ_SECONDS,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    self.problems.append(f"the reader {name} did not end within {READ_SECONDS:g} s")
                    continue
            if done.returncode:
                self.problems.append(f"the reader {name} ended with {done.returncode}")
                continue
            told = json.loads(done.stdout.splitlines()[-1])
            for topic, partition, why in told["unread"]:
                self.problems.append(f"{name} could not read {topic} {partition}: {why}")
            views[name] = (stored_in(path), [(topic, partition) for topic, partition in told["read"]])
        if self._mark is not None:
            self.problems += self._mark.look({topic.name for topic in TOPICS})
        return views

    def _await_transactions(self) -> None:
        """Until no transaction hides what lies behind its first record."""
        names = {name for writer in self._table if writer.family == "transactions" for name in writer.topics}
        partitions = [
            topic.native_name(self.namespace, number)
            for topic in TOPICS
            for number in topic.numbers
            if topic.name in names
        ]
        for name in partitions:
            if not self._await_readable(name) and not (self._end_what_pulsar_lost(name) and self._await_readable(name)):
                self.problems.append(f"a transaction stays open on {name}: {self._transaction_buffer(name)}")

    def _await_readable(self, partition: str) -> bool:
        """Whether all entries of a partition can be read within the time that transactions may stay open."""
        end = time.monotonic() + TRANSACTION_SECONDS
        while time.monotonic() < end:
            path = partition.removeprefix("persistent://")
            last = self._rest.call("GET", f"persistent/{path}/internalStats")["lastConfirmedEntry"]
            if self._transaction_buffer(partition)["maxReadPosition"] == last:
                return True
            time.sleep(1)  # Pulsar tells nobody when a transaction has ended
        return False

    def _transaction_buffer(self, partition: str) -> dict[str, Any]:
        path = partition.removeprefix("persistent://")
        stats: dict[str, Any] = self._rest.call("GET", f"transactions/transactionBufferStats/{path}", root="admin/v3")
        return stats

    def _end_what_pulsar_lost(self, partition: str) -> bool:
        """End transactions of Pulsar's own client on a partition that did not hear of their end.

        Pulsar 4.0.8 answers that a transaction has ended while a partition is being unloaded, and does not end it
        there (`TransactionBufferHandlerImpl.endTxn`); where it does not answer, its coordinator does not try again. No
        gateway has a part in that; what lies behind is compared all the same when the transaction has ended as its
        writer was told, or wanted.
        """
        log = self._transactions_log()
        ends = [(TxnId(int(most), int(least)), how) for most, least, how, _, _ in _ENDED.findall(log)]
        wanted = {"COMMIT": "committed", "ABORT": "aborted"}
        ends += [(TxnId(int(most), int(least)), wanted[how]) for how, most, least in _UNANSWERED.findall(log)]
        lost = asyncio.run(self._carry_out(partition, ends))
        self.notes += [f"Pulsar kept a transaction open on {partition} that {end}" for end in lost]
        return bool(lost)

    async def _carry_out(self, partition: str, ends: list[tuple[TxnId, str]]) -> list[str]:
        client, admin = Client(self._service), Admin(self._admin)
        await client.start()
        try:
            async with admin:
                lost = [end for end in ends if (await admin.transaction_in_buffer(partition, end[0])).holds]
                for txn, how in lost:
                    await client.transactions().end_on_partition(txn, partition, commit=how == "committed")
        finally:
            await client.close()
        return [f"its client {how} ({txn.most}:{txn.least})" for txn, how in lost]

    def _transactions_log(self) -> str:
        """Return the output of the writers of transactions; empty if this namespace has none of them."""
        path = self._folder / "writers-transactions.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _commits_that_failed(self, broker_log: str) -> set[tuple[str, int]]:
        """Return the records of Pulsar's own client whose commit its broker could not carry out on a partition.

        The client was told of a commit all the same. No gateway has a part in such a transaction.
        """
        failed = failed_commits(broker_log)
        return {
            (writer, int(number))
            for most, least, how, writer, numbers in _ENDED.findall(self._transactions_log())
            if how == "committed" and (most, least) in failed
            for number in numbers.split()
        }

    def _aborts_that_were_forgotten(self, broker_log: str, writes: Iterable[Write]) -> set[tuple[str, int]]:
        """Return the records that Pulsar's own client aborted on partitions whose transaction buffer began anew."""
        names = {writer.name for writer in self._table if writer.family == "transactions"}
        anew = begun_anew(broker_log)
        partitions = {
            (topic.name, number)
            for topic in TOPICS
            for number in topic.numbers
            if topic.native_name(self.namespace, number) in anew
        }
        return {
            write.record
            for write in writes
            if write.error == ABORTED and write.writer in names and (write.topic, write.partition) in partitions
        }

    def history(self, views: dict[str, tuple[list[Stored], list[tuple[str, int]]]], broker_log: str) -> History:
        """All of it. What the entry reader could not read is left out of everything."""
        writes = [write for path in self._paths() for write in writes_in(path)]
        stored, read = views.pop("entries", ([], []))
        known = set(read)
        return History(
            idempotent={writer.name for writer in self._table if writer.idempotent},
            tells_offsets={writer.name for writer in self._table if writer.tells_offsets},
            references={
                writer.name for writer in self._table if writer.family == "native" and writer.sizes != "chunked"
            },
            limited={topic.name for topic in TOPICS if "maxMessageSize" in topic.policies}
            | {disturbance.target for disturbance in self._disturbances if disturbance.kind == "size_limit"},
            bumps_epoch={writer.name for writer in self._table if writer.idempotent and writer.family == "librdkafka"},
            writes=[write for write in writes if (write.topic, write.partition) in known],
            stored=stored,
            failed_commits=self._commits_that_failed(broker_log),
            forgotten_aborts=self._aborts_that_were_forgotten(broker_log, writes),
            views={name: rows for name, (rows, _) in views.items()},
            view_partitions={name: known & set(partitions) for name, (_, partitions) in views.items()},
            disturbances=[
                *self._disturbances,
                *failed_recoveries(broker_log, (self.namespace, self._cluster), AFTERMATH_SECONDS),
            ],
        )


def java_text(writer: Writer) -> str:
    """A writer as SoakWriter.java reads it."""
    topics = {topic.name: topic for topic in TOPICS}
    parts = {
        "name": writer.name,
        "topics": ",".join(f"{name}:{len(topics[name].numbers)}" for name in writer.topics),
        "idempotent": str(writer.idempotent).lower(),
        "burst": writer.burst,
        "pause": int(writer.pause * 1000),
        "sizes": writer.sizes,
        "limit": SIZE_LIMIT,
        **{f"set.{name}": value for name, value in writer.settings.items()},
    }
    return ";".join(f"{name}={value}" for name, value in parts.items())


def _output(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise StartFailed(f"{' '.join(command)} failed (see above)")
    return done.stdout.strip().splitlines()[-1]


# --- the report


def print_report(history: History, anomalies: list[Anomaly], problems: list[str], notes: list[str]) -> None:
    """The tables of a run."""
    console = wide_console(120)
    counts: Counter[tuple[str, str]] = Counter()
    errors: dict[str, Counter[str]] = {}
    by_writer: dict[str, Counter[str]] = {}
    for write in history.writes:
        writer = writer_of(write.writer)
        counts[writer, write.outcome] += 1
        if write.error:
            errors.setdefault(writer, Counter())[write.error] += 1
    for anomaly in anomalies:
        by_writer.setdefault(writer_of(anomaly.writer), Counter())[anomaly.kind] += 1
    writers = Table("writer", "acknowledged", "refused", "unknown", "errors", "anomalies", title="writers")
    for writer in sorted({name for name, _ in counts} | set(by_writer)):
        numbers = [str(counts[writer, outcome]) for outcome in ("acknowledged", "refused", "unknown")]
        writers.add_row(writer, *numbers, counted(errors.get(writer)), counted(by_writer.get(writer)))
    console.print(writers)
    times = Table("while", "acknowledged", "p50 s", "p99 s", "max s", title="from sending to acknowledgement")
    for kind, seconds in sorted(latencies(history).items()):
        figures = [seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)], seconds[-1]]
        times.add_row(kind, str(len(seconds)), *(f"{figure:.3f}" for figure in figures))
    console.print(times)
    console.print(f"faults done: {say_faults(history.disturbances)}")
    console.print(
        f"{sum(counts[name, 'acknowledged'] for name in {name for name, _ in counts})} acknowledged, "
        f"{len(history.stored)} stored, compared with {', '.join(history.views) or 'no other reader'}"
    )
    say_end(console, problems, anomalies, notes)


def details(path: Path, history: History, anomalies: list[Anomaly]) -> None:
    """What its writer was told of the record of each anomaly stands beside it."""
    sent = {write.record: write for write in history.writes}

    def write_of(anomaly: Anomaly) -> Write | None:
        return sent.get((anomaly.writer, anomaly.number))

    def at(anomaly: Anomaly) -> float:
        write = write_of(anomaly)
        return anomaly.at or (write.done if write else 0.0)

    def told(anomaly: Anomaly) -> dict[str, Any]:
        write = write_of(anomaly)
        return {"sent": write.sent, "done": write.done, "error": write.error} if write else {}

    write_details(path, history.disturbances, anomalies, at, told)


def forget_namespaces(rest: Rest, namespaces: Iterable[str]) -> None:
    """For those who go on using this Pulsar; one of our own goes with all that is in it."""
    for namespace in namespaces:
        try:
            for topic in rest.call("GET", f"persistent/{namespace}/partitioned"):
                path = topic.replace("://", "/")
                rest.call("DELETE", f"{path}/partitions?force=true", seconds=10)
            for topic in rest.call("GET", f"persistent/{namespace}"):
                rest.call("DELETE", f"{topic.replace('://', '/')}?force=true", seconds=10)
            rest.call("DELETE", f"namespaces/{namespace}", seconds=10)
        except OSError as error:
            print(f"the namespace {namespace} stays: {error}", file=sys.stderr)


def run(options: argparse.Namespace, folder: Path) -> int:
    """All of it; the exit code."""
    users = tenants.TENANTS if options.tenants else ("",)
    servers: list[KopOverPulsar] = []
    with ExitStack() as stack:
        over = pulsar(stack, folder, "soak")
        progress = stack.enter_context(ProgressLine())
        if options.tenants:
            make_namespaces(over)
        namespaces = [tenants.namespace_of(user) if user else over.namespace for user in users]
        stack.callback(forget_namespaces, over.rest, {*namespaces, over.namespace, over.cluster})
        kinds = KINDS + (BROKER_KINDS if options.kill_broker and over.pulsar.own else ())
        faults = plan(options.seed, options.seconds, options.spacing, [topic.name for topic in TOPICS], kinds)
        executor = Executor(servers, over, TOPICS, namespaces)
        soaks = []
        for user in users:
            place = folder / user
            place.mkdir(exist_ok=True)
            soaks.append(Soak(options, place, over, servers, executor.disturbances, user=user))
        for soak in soaks:
            soak.make_native()
        servers += gateways(over, stack, folder, 2, None, tenants=options.tenants)
        if options.tenants:
            tenants.admit(soaks[0].bootstrap)
        for soak in soaks:
            soak.prepare()
        # At first everything attaches at once, while the clients' own processes start.
        begin = time.time()
        executor.disturbances.append(Disturbance("start", "", begin, begin + AFTERMATH_SECONDS))
        for soak in soaks:
            soak.start_writers(stack)

        def state() -> str:
            return "; ".join(soak.state() for soak in soaks)

        under_faults(options.seconds, executor, faults, progress, state, *(soak.sample for soak in soaks))
        progress.say("writers finish")
        with ThreadPoolExecutor(len(soaks)) as threads:
            for end in [threads.submit(soak.stop) for soak in soaks]:
                end.result()
        views = [soak.read(progress) for soak in soaks]
        broker_log = over.pulsar.log()
    (folder / "plan.json").write_text(json.dumps([*faults, *executor.disturbances], indent=1))
    of_all = [*tracebacks(servers), *unperformed(executor)]
    failed = False
    for user, soak, seen in zip(users, soaks, views, strict=True):
        if user:
            print(f"tenant {user}, namespace {soak.namespace}:")
        failed |= judge(soak, seen, broker_log, of_all, options, folder / user)
    left = kept(folder, options, failed)
    if left:
        print(f"histories and logs of both gateways and of Pulsar: {left}")
    return int(failed)


def judge(
    soak: Soak,
    views: dict[str, tuple[list[Stored], list[tuple[str, int]]]],
    broker_log: str,
    of_all: list[str],
    options: argparse.Namespace,
    folder: Path,
) -> bool:
    """Print what is wrong; True if anything is. `of_all`: the problems of the servers and of the faults."""
    history = soak.history(views, broker_log)
    assert soak.sampler is not None
    anomalies = [*check(history), *soak.sampler.anomalies]
    details(folder / "anomalies.jsonl", history, anomalies)
    problems = [*soak.problems, *of_all]
    print_report(history, anomalies, problems, [*soak.notes, *done_by_pulsar(history)])
    print(
        f"{sum(not write.error for write in history.writes)} acknowledgements compared, {len(anomalies)} anomalies; "
        f"seed {options.seed}, {options.seconds:g} s"
    )
    return bool(anomalies or problems)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.soak",
        description=__doc__.partition("\n\n")[0],
        epilog="Starts an Apache Pulsar (Java 17, and Maven once), or takes KOP_TEST_PULSAR=pulsar://...,http://...",
    )
    parser.add_argument("--kill-broker", action="store_true", help="kill -9 the broker too, where it is our own")
    parser.add_argument("--tenants", action="store_true", help="two tenants with equal names side by side")
    add_options(parser, LENGTH)
    options = parser.parse_args()
    return perform("soak", options, LENGTH, lambda folder: run(options, folder))


if __name__ == "__main__":
    enter(main)
