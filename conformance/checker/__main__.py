"""Check transactions: python -m conformance.checker [--start-kop | --bootstrap HOST:PORT | ...] [--seed N] [--fast].

Owns: the order of a run (servers, topics, clients, faults, the end of the chains, reading, checks) and what it prints.
Must not know: what is right (checks.py).

The exit code is 0 where nothing is wrong, 1 with anomalies, 2 where the run could not be done.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.table import Table

from conformance.checker.checks import Anomaly, check
from conformance.checker.faults import SPACING, Executor, plan
from conformance.checker.history import Chain, Engine, History, Isolation, Place, Transaction, Writer, load, value_of
from conformance.checker.observer import Observer
from conformance.checker.recorder import Recorder
from conformance.checker.workload import (
    CHAINS,
    FAMILIES,
    TOPICS,
    WRITERS,
    ChainRole,
    Names,
    Settings,
    partitions_of,
)
from conformance.harness import tenants
from conformance.harness.admin import patiently
from conformance.harness.processes import Processes
from conformance.harness.run import (
    Length,
    add_options,
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
    write_plan,
)
from conformance.harness.targets import Target, add_targets, start
from conformance.progress import ProgressLine

LENGTH = Length(seconds=300.0, spacing=SPACING.usual, fast_seconds=30.0, fast_spacing=3.0)
STOP_SECONDS = 100.0
"""For clients to end, which try for ANSWER_SECONDS to end a transaction."""
BEGIN_SECONDS = 60.0
"""For the first producers to be initialized."""
CHAIN_SECONDS = 90.0
"""For a chain to come to the end of its input; transactions that a dead producer left open end within that, too."""
_ISOLATIONS: tuple[Isolation, ...] = ("committed", "uncommitted")


class Quiet(ProgressLine):
    """The progress of a run beside another one, whose progress is shown."""

    def say(self, text: str) -> None:
        """Show nothing."""

    def update(self, text: str) -> None:
        """Show nothing."""


class Tally:
    """What has been written down so far, by kind."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._read = dict.fromkeys(paths, 0)
        self.counts: Counter[str] = Counter()

    def update(self) -> None:
        for path, at in self._read.items():
            if path.exists():
                with path.open("rb") as file:
                    file.seek(at)
                    text = file.read()
                whole = text[: text.rfind(b"\n") + 1]
                self._read[path] = at + len(whole)
                self.counts.update(line[2 : line.index(b'"', 2)].decode() for line in whole.splitlines())


class Run:
    """One run against one target."""

    def __init__(
        self,
        options: argparse.Namespace,
        folder: Path,
        target: Target,
        names: Names,
        *,
        user: str = "",
        breaks: bool = True,
    ) -> None:
        """`user` is the tenant whose run it is; empty: there are no tenants. `breaks`: this run has the faults."""
        self._options = options
        self._folder = folder
        self.target = target
        self._user = user
        self._connection = {"bootstrap.servers": target.bootstrap} | tenants.librdkafka(user)
        self._names = names
        self._recorder = Recorder(folder / "history-observer.jsonl")
        self._observer = Observer(self._connection, self._names, self._recorder)
        kinds = [kind for kind in target.kinds if kind in options.faults] if options.faults else target.kinds
        self.faults = plan(options.seed, options.seconds, options.spacing, kinds, len(target.servers)) if breaks else []
        self.executor = Executor(target, options.seed)
        self.problems: list[str] = []
        """What keeps the run from saying what it should."""

    def all(self, progress: ProgressLine) -> None:
        """From the topics to the last reading; the history is in files then."""
        self._make_topics()
        self._recorder.add(Engine(self.target.over is not None))
        settings = Settings(self.target.bootstrap, self._names.prefix, self._options.seed, self._user)
        with ExitStack() as stack:
            clients = Processes(stack, self._folder, "clients")
            paths = {family: self._folder / f"history-{family}.jsonl" for family in FAMILIES}
            for family, path in paths.items():
                command = [sys.executable, "-m", "conformance.checker.clients", family, str(path)]
                clients.start(family, command, answers=True)
                clients.tell(family, json.dumps(settings._asdict()))
            done = threading.Event()
            watching = threading.Thread(target=self._observer.run, args=(done,))
            watching.start()
            try:
                tally = Tally(paths.values())
                self._await_producers(tally, progress)
                self._load(tally, progress)
                progress.say("writers end what they have begun")
                for family in FAMILIES:
                    clients.tell(family, "stop writing")
                clients.heard("written", "writers of {} did not end")
                for role in CHAINS:
                    progress.say(f"the chain {role.name} comes to its end")
                    self._finish(role)
            finally:
                done.set()
                watching.join()
            progress.say("clients end")
            clients.stop(STOP_SECONDS)
            self.problems += clients.problems
        for role in CHAINS:
            chain = self._names.chain(role)
            self._recorder.add(chain)
            self._observer.committed(chain.group, chain.inputs)
        for isolation in _ISOLATIONS:
            self.problems += self._observer.read(isolation, progress.say)
        for disturbance in self.executor.disturbances:
            self._recorder.add(disturbance)
        self._recorder.close()
        self.problems += unperformed(self.executor)
        self.problems += tracebacks(self.target.servers if self.target.has_tracebacks else ())

    def _make_topics(self) -> None:
        admin = AdminClient({**self._connection, "log_level": 0})
        made = [NewTopic(self._names.of(topic.name), topic.partitions, 1) for topic in TOPICS]
        patiently(lambda: admin.create_topics(made).values())

    def forget_topics(self) -> None:
        """For those who go on using this server."""
        admin = AdminClient({**self._connection, "log_level": 0})
        for topic, future in admin.delete_topics([self._names.of(topic.name) for topic in TOPICS]).items():
            try:
                future.result(60)
            except KafkaException as error:
                print(f"the topic {topic} stays: {error}", file=sys.stderr)

    def _await_producers(self, tally: Tally, progress: ProgressLine) -> None:
        """The load begins when each transactional id has a producer: the first ones take long on a slow machine."""
        ids = sum(role.promise == "transactional" for role in WRITERS) + sum(role.workers for role in CHAINS)
        until = time.monotonic() + BEGIN_SECONDS
        while tally.counts["instance"] < ids and time.monotonic() < until:
            progress.update(f"{tally.counts['instance']} of {ids} transactional ids have a producer")
            time.sleep(0.2)  # the clients write to files, which are looked at again then
            tally.update()

    def _load(self, tally: Tally, progress: ProgressLine) -> None:
        def state() -> str:
            tally.update()
            return (
                f"{tally.counts['send']} records, {tally.counts['transaction'] // 2} transactions, "
                f"{tally.counts['poll']} polls, {self._observer.answers} ends and offsets"
            )

        under_faults(self._options.seconds, self.executor, self.faults, progress, state)

    def _finish(self, role: ChainRole) -> None:
        """Put a record at the end of each input partition, and wait until the chain has committed what is behind it."""
        chain = self._names.chain(role)
        ends = self._plug(role)
        until = time.monotonic() + CHAIN_SECONDS
        told: dict[Place, int] = {}
        while time.monotonic() < until:
            told = self._observer.committed(chain.group, chain.inputs) or told
            if ends and all(told.get(place, -1) >= end for place, end in ends.items()):
                return
            time.sleep(0.3)  # until the broker is asked again: it tells nobody of commits
        self.problems.append(f"the chain {role.name} is at {sorted(told.values())} of {sorted(ends.values())}")

    def _plug(self, role: ChainRole) -> dict[Place, int]:
        """The offset behind the last record of each partition of its input."""
        ends: dict[Place, int] = {}
        topic, name = self._names.of(role.source), f"last-{role.name}"
        self._recorder.add(Writer(name, True))

        def delivered(error: KafkaError | None, message: Message) -> None:
            number, offset = message.partition(), message.offset()
            assert number is not None
            self._recorder.done(name, number, -1 if offset is None else offset, error.name() if error else "")
            if error is None and offset is not None:
                ends[topic, number] = offset + 1

        producer = Producer({**self._connection, "enable.idempotence": True, "log_level": 0})
        for partition in range(partitions_of(role.source)):
            self._recorder.sent(name, partition, (topic, partition))
            producer.produce(topic, value_of(name, partition), partition=partition, on_delivery=delivered)
        producer.flush(60)
        return ends


# --- the report


def report(history: History, anomalies: list[Anomaly], problems: list[str]) -> None:
    """The closing table, and what does not fit into it."""
    console = wide_console()
    last = {transaction.name: transaction for transaction in history.transactions}
    by_writer: dict[str, list[Transaction]] = {}
    for transaction in last.values():
        by_writer.setdefault(_role(transaction.name), []).append(transaction)
    sends: Counter[tuple[str, bool]] = Counter()
    for send in history.sends:
        sends[_role(send.writer), send.acknowledged] += 1
    named: Counter[str] = Counter(_role(anomaly.who) for anomaly in anomalies)
    table = Table("writer", "acknowledged", "not", "committed", "aborted", "unknown", "anomalies", title="the history")
    for writer in sorted({name for name, _ in sends}):
        outcomes = Counter(transaction.outcome for transaction in by_writer.get(writer, ()))
        figures = [outcomes["committed"], outcomes["aborted"], outcomes["unknown"], named[writer]]
        table.add_row(writer, str(sends[writer, True]), str(sends[writer, False]), *map(str, figures))
    console.print(table)
    given = sum(len(poll.records) for poll in history.polls)
    console.print(
        f"{len(history.sends)} records sent, {given} given to consumers in {len({p.session for p in history.polls})} "
        f"sessions, {len(history.ends)} ends of logs, {len(history.committed)} answers about committed offsets; "
        f"faults: {say_faults(history.disturbances)}"
    )
    say_end(console, problems, anomalies)


def _role(name: str) -> str:
    return name.partition("#")[0]


def judge(folder: Path, problems: list[str]) -> tuple[int, History, list[Anomaly]]:
    """The exit code for what the files of a folder tell."""
    history = load(sorted(folder.glob("history-*.jsonl")))
    # A run that shows nothing must not look like one in which nothing is wrong.
    outcomes = Counter(
        transaction.outcome
        for transaction in {transaction.name: transaction for transaction in history.transactions}.values()
    )
    missing = [what for what in ("committed", "aborted") if not outcomes[what]]
    all_problems = [*problems, *(f"no transaction was {what}" for what in missing)]
    all_problems += [f"the chain {chain.name} wrote nothing" for chain in history.chains if not _wrote(history, chain)]
    anomalies = check(history)
    write_details(folder / "anomalies.jsonl", history.disturbances, anomalies, lambda anomaly: anomaly.at)
    report(history, anomalies, all_problems)
    return int(bool(anomalies or all_problems)), history, anomalies


def _wrote(history: History, chain: Chain) -> bool:
    return any(send.topic == chain.output and send.source and send.acknowledged for send in history.sends)


def run(options: argparse.Namespace, folder: Path) -> int:
    """All of it; the exit code."""
    with ExitStack() as stack:
        progress = stack.enter_context(ProgressLine())
        progress.say("the servers start")
        count, restart = options.gateways, options.restart_pulsar
        target = start(options, stack, folder, gateways=count, restart=restart, tenants=options.tenants)
        names = Names(f"checker-{secrets.token_hex(4)}")
        if options.tenants:
            problems = _of_tenants(options, folder, target, names, progress)
        else:
            running = Run(options, folder, target, names)
            write_plan(folder / "plan.json", running.faults)
            running.all(progress)
            if options.bootstrap:
                running.forget_topics()
    return _end_tenants(options, folder, problems) if options.tenants else _end(options, folder, running.problems)


def _of_tenants(
    options: argparse.Namespace, folder: Path, target: Target, names: Names, progress: ProgressLine
) -> dict[str, list[str]]:
    """A run of each tenant at the same time, with equal names; the problems of each."""
    tenants.admit(target.bootstrap)
    runs: list[Run] = []
    for tenant in tenants.TENANTS:
        (folder / tenant).mkdir()
        runs.append(Run(options, folder / tenant, target, names, user=tenant, breaks=not runs))
    write_plan(folder / "plan.json", runs[0].faults)
    with ThreadPoolExecutor(len(runs)) as threads:
        ends = [threads.submit(run.all, progress if run is runs[0] else Quiet()) for run in runs]
        for end in ends:
            end.result()
    return {tenant: run.problems for tenant, run in zip(tenants.TENANTS, runs, strict=True)}


def _end_tenants(options: argparse.Namespace, folder: Path, problems: dict[str, list[str]]) -> int:
    """Judge each tenant alone; the worst exit code."""
    codes = []
    for tenant, of_tenant in problems.items():
        print(f"tenant {tenant}, namespace {tenants.namespace_of(tenant)}:")
        codes.append(_end(options, folder / tenant, of_tenant))
    if not any(codes):
        kept(folder, options, failed=False)
    return max(codes)


def _end(options: argparse.Namespace, folder: Path, problems: list[str]) -> int:
    code, history, anomalies = judge(folder, problems)
    left = kept(folder, options, bool(code))
    print(
        f"{len({transaction.name for transaction in history.transactions})} transactions, "
        f"{len(history.sends)} records, "
        f"{len(anomalies)} anomalies; seed {options.seed}, {options.seconds:g} s"
        + (f"; histories and logs: {left}; again: --check {left}" if left else "")
    )
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.checker",
        description=__doc__.partition("\n\n")[0],
        epilog="Kinds of faults and of anomalies are in the tables of conformance/checker/faults.py and checks.py.",
    )
    where = add_targets(parser)
    where.add_argument("--check", type=Path, metavar="PATH", help="look through the histories of a run once more")
    parser.add_argument("--gateways", type=int, default=2, metavar="N", help="over Pulsar (2)")
    parser.add_argument("--restart-pulsar", action="store_true", help="kill -9 of Pulsar too, where it is our own")
    parser.add_argument("--tenants", action="store_true", help="two tenants with equal names side by side; kop alone")
    parser.add_argument("--faults", metavar="A,B", type=lambda text: text.split(","), help="these kinds alone; none")
    add_options(parser, LENGTH)
    options = parser.parse_args()
    if options.check:
        return judge(options.check, [])[0]
    return perform("checker", options, LENGTH, lambda folder: run(options, folder))


if __name__ == "__main__":
    enter(main)
