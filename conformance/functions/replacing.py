"""Functions whose instances are killed, paused, replaced and started twice, one function for each guarantee.

Owns: the order of this part of a run (topics, instances, load and faults, the end of all, reading) and what it tells.
Must not know: what is right (oracle.py).
"""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from conformance.functions.clients import Reader, Source
from conformance.functions.faults import KINDS, SERVER_KINDS, Executor, plan
from conformance.functions.instances import Instances, flags
from conformance.functions.native import Native
from conformance.functions.oracle import (
    Anomaly,
    Output,
    Place,
    Promise,
    Topics,
    Verdict,
    check,
    check_ends,
    check_lives,
    check_offsets,
    check_views,
)
from conformance.functions.part import Part
from conformance.harness.run import under_faults, unperformed
from conformance.harness.targets import Target
from conformance.progress import ProgressLine

RATE = 600.0
"""Messages a second."""
DONE_SECONDS = 60.0
"""For functions to come to the end of their inputs."""
REPLACED_SECONDS = 75.0
"""For instances to end that were replaced, once all is done."""
PLAIN, KEYED, NATIVE, RESULTS, PUBLISHED = 3, 2, 2, 3, 4
"""Partitions of the topics."""


class Function(NamedTuple):
    """One of the functions of a run. `weight`: how many of the faults of instances are about it."""

    guarantee: str
    promise: Promise
    weight: int = 1
    ordered: bool = False
    """It has retainOrdering."""


FUNCTIONS = (
    Function("EFFECTIVELY_ONCE", Promise("once", keeps=True, repeats=False, counts=True), weight=2),
    Function("ATLEAST_ONCE", Promise("at-least", keeps=True, repeats=True, counts=False)),
    # With state a batch is one transaction: it is as good as EFFECTIVELY_ONCE then, for readers of committed records.
    Function("ATLEAST_ONCE", Promise("counted", keeps=True, repeats=False, counts=True), ordered=True),
    Function("ATMOST_ONCE", Promise("at-most", keeps=False, repeats=False, counts=False)),
)


class Row(NamedTuple):
    """What is told of a function."""

    function: Function
    verdict: Verdict
    instances: int
    longest: float
    """Seconds from one output to the next."""


class Replacing:
    """This part of a run, against one target. `problems` are what keeps it from saying what it should."""

    def __init__(self, part: Part, folder: Path, target: Target) -> None:
        self._part = part
        self._folder = folder
        self._target = target
        self._prefix = f"functions-{secrets.token_hex(4)}"
        self._plain = self._places(f"{self._prefix}-plain", PLAIN)
        self._keyed = self._places(f"{self._prefix}-keyed", KEYED)
        self._native = None if target.over is None else Native(target.over)
        self._written_natively = self._places(f"{self._prefix}-native", NATIVE if self._native else 0)
        self._inputs = self._plain + self._keyed + self._written_natively
        self._functions = {each.promise.name: self._instances(each) for each in FUNCTIONS}
        self._stopped = threading.Event()
        """Instances that end are not started again any more."""
        known = part.kinds or (*KINDS, *SERVER_KINDS)
        kinds = [kind for kind in (*KINDS, *KINDS, *target.kinds) if kind in known]
        names = [each.promise.name for each in FUNCTIONS for _ in range(each.weight)]
        self.faults = plan(part.seed, part.seconds, part.spacing, kinds, names, len(target.servers))
        self.executor = Executor(target, part.seed, self._functions, self._prefix)
        self.problems: list[str] = []
        self.anomalies: list[Anomaly] = []
        self.rows: list[Row] = []

    @staticmethod
    def _places(topic: str, count: int) -> list[Place]:
        return [(topic, partition) for partition in range(count)]

    def _topics(self, function: Function) -> Topics:
        return Topics(*(f"{self._prefix}-{function.promise.name}-{what}" for what in ("results", "published")))

    def _outputs(self, function: Function) -> list[Place]:
        topics = self._topics(function)
        return self._places(topics.results, RESULTS) + self._places(topics.published, PUBLISHED)

    def _group(self, function: Function) -> str:
        return f"public/{self._prefix}/{function.promise.name}"

    def _instances(self, function: Function) -> Instances:
        topics = self._topics(function)
        described: dict[str, object] = {
            "classname": "program.Transform",
            "fqfn": self._group(function),
            "inputs": ",".join(dict.fromkeys(topic for topic, _ in self._inputs)),
            "output": topics.results,
            "processing-guarantees": function.guarantee,
            "retain-ordering": "true" if function.ordered else "false",
            "user-config": {"published": topics.published, "counts": function.promise.counts},
        }
        return Instances(function.promise.name, flags(described), self._target.bootstrap, self._folder)

    def all(self, progress: ProgressLine) -> None:
        """From the topics to the verdict."""
        self._make_topics()
        with ExitStack() as stack:
            for instances in self._functions.values():
                stack.callback(instances.end_all)
                instances.start()
            watching = threading.Thread(target=self._keep_running)
            stack.callback(watching.join)
            stack.callback(self._stopped.set)
            watching.start()
            progress.say("the functions start")
            for instances in self._functions.values():
                instances.await_start()
            source = self._load(progress)
            self._let_replaced_hear(source)
            reader = Reader(self._target.bootstrap)
            self._finish(reader, progress)
            self._stopped.set()
            progress.say("the functions end")
            with ThreadPoolExecutor() as pool:
                list(pool.map(_end, self._functions.values()))
        self._judge(reader, progress)
        self.problems += unperformed(self.executor)
        self.problems += _unplanned(sorted(self._folder.glob("*.log")))

    def report(self, console: Console) -> str:
        """Print a table, and return what is said of it in a line."""
        table = Table("function", "outputs wanted", "lost", "repeated", "instances", "longest pause", "anomalies")
        named = Counter(anomaly.function for anomaly in self.anomalies)
        for function, verdict, instances, longest in self.rows:
            figures = [verdict.messages, verdict.lost, verdict.repeated, instances]
            name = function.promise.name
            table.add_row(f"{name} ({function.guarantee})", *map(str, figures), f"{longest:.1f} s", str(named[name]))
        console.print(table)
        outputs = sum(row.verdict.messages for row in self.rows)
        return f"{outputs} outputs of {sum(row.instances for row in self.rows)} instances"

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._target.bootstrap, "log_level": 0})
        places = self._inputs + [place for each in FUNCTIONS for place in self._outputs(each)]
        counts = Counter(topic for topic, _ in places)
        made = [NewTopic(topic, count, 1) for topic, count in counts.items()]
        for future in admin.create_topics(made).values():
            future.result(60)

    def _keep_running(self) -> None:
        while not self._stopped.wait(0.2):
            for instances in self._functions.values():
                instances.keep_running()

    def _load(self, progress: ProgressLine) -> Source:
        plain, keyed = (self._plain[0][0], PLAIN), (self._keyed[0][0], KEYED)
        source = Source(self._target.bootstrap, plain, keyed, self._part.seed, RATE)

        native = self._native

        def state() -> str:
            counts = ", ".join(f"{each.count} of {name}" for name, each in self._functions.items())
            return f"{source.sent + (native.sent if native else 0)} messages, instances: {counts}"

        beside = [source.write_plain, source.write_keyed]
        if native is not None:
            topic = self._written_natively[0][0], NATIVE
            beside.append(lambda stop: native.write(topic, source.pause, stop))
        under_faults(self._part.seconds, self.executor, self.faults, progress, state, *beside)
        return source

    def _let_replaced_hear(self, source: Source) -> None:
        """Write until the instances have ended that were replaced: an idle one hears of it only when it renews its
        offsets, in ten minutes. The last one may begin when nothing else is written any more.
        """
        until = time.monotonic() + REPLACED_SECONDS
        while any(instances.has_replaced for instances in self._functions.values()) and time.monotonic() < until:
            source.write_last()
            time.sleep(1)  # they say nothing of what they have heard until they end

    def _finish(self, reader: Reader, progress: ProgressLine) -> None:
        """Wait until all functions have committed the ends of their inputs."""
        until = time.monotonic() + DONE_SECONDS
        ends = reader.ends(self._inputs, stable=False)
        for function in FUNCTIONS:
            progress.say(f"{function.promise.name} comes to its end")
            while reader.committed(self._group(function)) != ends and time.monotonic() < until:
                time.sleep(0.2)  # until the server is asked again: it tells nobody of commits

    def _judge(self, reader: Reader, progress: ProgressLine) -> None:
        progress.say("reading inputs")
        messages = reader.messages(self._inputs)
        if len({message.text for message in messages}) < len(messages):
            self.problems.append("a message was written twice: the run says less than it seems")
        ends = reader.ends(self._inputs, stable=False)
        _dump(self._folder / "messages.jsonl", messages)
        for function in FUNCTIONS:
            name, places = function.promise.name, self._outputs(function)
            progress.say(f"reading outputs of {name}")
            outputs = reader.outputs(places)
            _dump(self._folder / f"outputs-{name}.jsonl", outputs)
            verdict = check(function.promise, self._topics(function), messages, outputs)
            lives = self._functions[name].lives()
            _dump(self._folder / f"instances-{name}.jsonl", lives)
            self.anomalies += verdict.anomalies
            self.anomalies += check_offsets(name, reader.committed(self._group(function)), ends)
            self.anomalies += check_ends(name, reader.ends(places, stable=True), reader.ends(places, stable=False))
            self.anomalies += check_lives(name, lives)
            if self._native is not None:
                self.anomalies += check_views(name, outputs, self._native.texts(places))
            self.rows.append(Row(function, verdict, len(lives), _longest(outputs)))
            if not outputs:
                self.problems.append(f"{name} has written nothing")


def _end(instances: Instances) -> None:
    instances.await_replaced(REPLACED_SECONDS)
    instances.finish()


def _dump(path: Path, rows: Iterable[Any]) -> None:
    with path.open("w") as out:
        out.writelines(json.dumps(row._asdict()) + "\n" for row in rows)


def _longest(outputs: Sequence[Output]) -> float:
    times = sorted(output.at for output in outputs)
    return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def _unplanned(logs: Sequence[Path]) -> Iterator[str]:
    """Tell of instances that failed inside, otherwise than their function does on purpose."""
    for log in logs:
        text = log.read_text(errors="replace")
        planned = sum("PlannedError: " in line and line[0] != " " for line in text.splitlines() if line)
        if (count := text.count("Traceback (most recent call last)") - planned) > 0:
            yield f"{count} tracebacks in {log}"
