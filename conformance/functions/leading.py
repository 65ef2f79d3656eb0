"""Workers of functions, while writers make, change and delete functions, and the leader is killed and paused.

Owns: the order of this part of a run (workers, writers, faults, the end of all, reading) and what it tells.
Must not know: what is right (leader_oracle.py).
"""

from __future__ import annotations

import json
import random
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from os import kill
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from conformance.checker import faults as of_servers
from conformance.functions.clients import Reader, Source
from conformance.functions.instances import PROGRAM
from conformance.functions.leader_oracle import (
    Call,
    Record,
    check_assignments,
    check_calls,
    check_definitions,
    check_log,
    check_outputs,
    check_packages,
    latest,
    log_of,
)
from conformance.functions.oracle import Anomaly, Place, Promise, Topics, check, check_offsets
from conformance.functions.part import Part
from conformance.functions.workers import RestAnswer, WorkerProcess, config_part
from conformance.harness import faults
from conformance.harness.faults import Fault, Spacing
from conformance.harness.run import under_faults
from conformance.harness.targets import Target, free_port
from conformance.progress import ProgressLine

WORKERS, WRITERS, NAMES, PARTITIONS = 3, 4, 6, 3
KINDS = ("kill_leader", "pause_leader", "kill_worker")
"""`kill -9` of the worker that leads, SIGSTOP of it for longer than a session, `kill -9` of another one."""
SERVER_KINDS = ("kill",)
SPACING = Spacing(
    usual=6.0, quiet=3.0, lasts={"kill": 1.0, "kill_leader": 3.0, "kill_worker": 3.0, "pause_leader": 9.0}
)
SETTLE_SECONDS = 40.0
"""For requests to be answered and instances to be where they should be, once all workers live."""
REQUESTS, DEFINITIONS = "__kop_functions_requests", "__kop_functions"
ASSIGNMENTS, PACKAGES = "__kop_functions_assignments", "__kop_functions_packages"
CODE = b"def process(text: str) -> str:\n    return text\n"
MESSAGES = 12
STEADY = Promise("steady", keeps=True, repeats=False, counts=True)
"""What is promised of the function that works all the time, whose partitions move."""
STEADY_PARTITIONS = 4
MOVE_SECONDS = 3.0
RATE = 100.0
"""Messages a second."""


class Executor(of_servers.Executor):
    """Performs a plan."""

    def __init__(self, target: Target, seed: int, workers: Sequence[WorkerProcess]) -> None:
        super().__init__(target, seed, topics="__kop_functions")
        self._workers = workers
        self._leader_rng = random.Random(f"{seed} workers")
        self._hit: dict[Fault, WorkerProcess] = {}

    def _begin(self, fault: Fault) -> None:
        if fault.kind not in KINDS:
            super()._begin(fault)
            return
        leader = self._leader()
        others = [worker for worker in self._workers if worker is not leader]
        worker = self._hit[fault] = self._leader_rng.choice(others) if fault.kind == "kill_worker" else leader
        if fault.kind == "pause_leader":
            kill(worker.pid, signal.SIGSTOP)
        else:
            worker.kill()

    def _undo(self, fault: Fault) -> None:
        if fault.kind not in KINDS:
            super()._undo(fault)
        elif fault.kind == "pause_leader":
            kill(self._hit.pop(fault).pid, signal.SIGCONT)
        elif fault in self._hit:
            self._hit.pop(fault).start()

    def _leader(self) -> WorkerProcess:
        """Return the worker that leads. OSError if nobody does for long."""
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until:
            names = {worker.name: worker for worker in self._workers if worker.running}
            for worker in names.values():
                if (name := worker.leader()) in names:
                    return names[name]
            time.sleep(0.3)  # until they are asked again
        raise OSError("no worker leads")


class Mover:
    """One that changes how many instances a function has, so that its partitions move, while the function works."""

    def __init__(self, fqfn: str, workers: Sequence[WorkerProcess]) -> None:
        self.calls: list[Call] = []
        self._fqfn = fqfn
        self._path = f"/admin/v3/functions/{fqfn}"
        self._workers = workers

    def create(self, config: Mapping[str, Any]) -> None:
        """Make the function. OSError if that is refused."""
        form = {"functionConfig": config_part(config), "data": (PROGRAM.name, PROGRAM.read_bytes())}
        answer = self._call("create", None, "POST", form)
        if answer.status >= 300 or not answer.status:
            raise OSError(f"the function {self._fqfn} cannot be made: {answer.status} {answer.reason}")

    def run(self, stop: threading.Event) -> None:
        """Change it until `stop`."""
        while not stop.wait(MOVE_SECONDS):
            worker = self._workers[len(self.calls) % len(self._workers)]
            status, revision = worker.revision(self._fqfn)
            if status == 200:
                changed = {"parallelism": 1 + len(self.calls) % 3}
                self._call("update", revision, "PUT", {"functionConfig": config_part(changed)})

    def _call(self, kind: str, expects: int | None, method: str, form: Mapping[str, tuple[str, bytes]]) -> RestAnswer:
        worker, who = self._workers[len(self.calls) % len(self._workers)], f"mover-{len(self.calls)}"
        begin = time.time()
        answer = worker.ask(method, self._path, form=form, who=who, revision=expects)
        told = answer.status, answer.revision, answer.reason
        self.calls.append(Call(who, worker.name, kind, self._fqfn, expects, *told, begin, time.time()))
        return answer


class Writer:
    """One that makes, changes and deletes functions, and notes what it is told."""

    def __init__(self, number: int, seed: int, prefix: str, workers: Sequence[WorkerProcess]) -> None:
        self.calls: list[Call] = []
        self._number = number
        self._rng = random.Random(f"{seed} writer {number}")
        self._prefix = prefix
        self._workers = workers
        self._known: dict[str, int | None] = {}

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`."""
        while not stop.wait(self._rng.uniform(0.0, 0.2)):
            self._step()

    def _step(self) -> None:
        rng, worker = self._rng, self._rng.choice(self._workers)
        name = f"{self._prefix}/f{rng.randrange(NAMES)}"
        if name not in self._known or rng.random() < 0.7:  # else: what it knew, which others may have changed
            status, revision = worker.revision(name)
            if status not in (200, 404):
                return
            self._known[name] = revision
        expects = self._known[name]
        kind = "create" if expects is None else rng.choice(("update", "update", "stop", "start", "restart", "delete"))
        self._call(worker, name, kind, expects)

    def _call(self, worker: WorkerProcess, name: str, kind: str, expects: int | None) -> None:
        rng, path = self._rng, f"/admin/v3/functions/{name}"
        who = f"writer{self._number}-{len(self.calls)}"
        begin = time.time()
        topics = self._prefix.partition("/")[2]
        if kind == "create":
            config = {
                "className": "program",
                "inputs": [f"{topics}-in"],
                "output": f"{topics}-out-{name.rpartition('/')[2]}",
                "parallelism": rng.randint(1, 2),
            }
            form = {"functionConfig": config_part(config), "data": ("program.py", CODE)}
            answer = worker.ask("POST", path, form=form, who=who)
        elif kind == "update":
            changed = {"userConfig": {"by": who}} | ({"parallelism": rng.randint(1, 3)} if rng.random() < 0.3 else {})
            answer = worker.ask("PUT", path, form={"functionConfig": config_part(changed)}, who=who, revision=expects)
        elif kind == "delete":
            answer = worker.ask("DELETE", path, who=who, revision=expects)
        else:
            answer = worker.ask("POST", f"{path}/{kind}", who=who, revision=expects)
        if 200 <= answer.status < 300:
            self._known[name] = answer.revision
        else:
            self._known.pop(name, None)
        told = answer.status, answer.revision, answer.reason
        self.calls.append(Call(who, worker.name, kind, name, expects, *told, begin, time.time()))


class Leading:
    """This part of a run, against one target. `problems` are what keeps it from saying what it should."""

    def __init__(self, part: Part, folder: Path, target: Target) -> None:
        self._part = part
        self._folder = folder
        self._target = target
        self._name = f"leading{secrets.token_hex(4)}"
        self._workers = [
            WorkerProcess(f"w{number}", target.bootstrap, free_port(), folder) for number in range(1, WORKERS + 1)
        ]
        prefix = f"public/{self._name}"
        self.writers = [Writer(number, part.seed, prefix, self._workers) for number in range(WRITERS)]
        self._steady = f"{prefix}/steady"
        self._mover = Mover(self._steady, self._workers)
        self._steady_inputs = [(f"{self._name}-steady-in", number) for number in range(STEADY_PARTITIONS)]
        self._steady_outputs = [(f"{self._name}-steady-out", number) for number in range(STEADY_PARTITIONS)]
        known = part.kinds or (*KINDS, *SERVER_KINDS)
        kinds = [kind for kind in (*KINDS, *KINDS[:2], *KINDS[:2], *target.kinds) if kind in known]
        self.faults = faults.plan(SPACING, part.seed, part.seconds, part.spacing, kinds, lambda rng, kind: "1")
        self.executor = Executor(target, part.seed, self._workers)
        self.problems: list[str] = []
        self.anomalies: list[Anomaly] = []
        self.counts: Counter[str] = Counter()
        self._reader = Reader(target.bootstrap)

    def all(self, progress: ProgressLine) -> None:
        """From the workers to the verdict."""
        inputs = [(f"{self._name}-in", partition) for partition in range(PARTITIONS)]
        self._make_topics(inputs, self._steady_inputs, self._steady_outputs)
        with ExitStack() as stack:
            progress.say("the workers start")
            for worker in self._workers:
                stack.callback(worker.kill)
                worker.start()
            for worker in self._workers:
                worker.await_ready()
            self._make_steady()
            self._load(progress)
            for worker in self._workers:
                worker.await_ready()
            progress.say("all requests are answered, all instances dealt")
            self._await(lambda: self._judge(inputs))
            progress.say("workers are asked")
            self._await(lambda: self._judge_workers("had it"))
            progress.say("functions are asked")
            self.anomalies += self._judge_outputs(inputs)
            progress.say("the function whose partitions moved comes to its end")
            self._await(self._judge_steady)
            progress.say("the workers end, and start again")
            for worker in self._workers:
                worker.stop()
            time.sleep(1.0)  # what they have started may take so long to end
            for worker in self._workers:
                if left := worker.orphans():
                    detail = f"{len(left)} processes of {worker.name} live on: {left}"
                    self.anomalies.append(Anomaly("orphan", "", "", 0, -1, detail))
            for worker in self._workers:
                worker.start()
            for worker in self._workers:
                worker.await_ready()
            self._await(lambda: self._judge(inputs))
            self._await(lambda: self._judge_workers("has it after its start"))
            for worker in self._workers:
                worker.stop()
        self._count()
        self.anomalies = list(dict.fromkeys(self.anomalies))
        self.problems += [f"a fault could not be performed: {text}" for text in self.executor.failures]
        self.problems += [text for worker in self._workers for text in _tracebacks(worker.log)]

    def report(self, console: Console) -> str:
        """Print figures, and return what is said of them in a line."""
        counts = self.counts
        console.print(
            f"workers: {counts['won']} requests won, {counts['lost']} lost; {counts['unknown']} of {counts['calls']} "
            f"calls had no answer; answers took {counts['median_ms']} ms, at most {counts['longest_ms']} ms; "
            f"{counts['functions']} functions in the end; {counts['steady']} messages of the one that moved",
            highlight=False,
        )
        return f"{counts['won'] + counts['lost']} requests"

    def _make_topics(self, *topics: Sequence[Place]) -> None:
        admin = AdminClient({"bootstrap.servers": self._target.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(places[0][0], len(places), 1) for places in topics]).values():
            future.result(60)

    def _make_steady(self) -> None:
        """Make the function that works all the time."""
        self._mover.create(
            {
                "className": "program.Transform",
                "inputs": [self._steady_inputs[0][0]],
                "output": self._steady_outputs[0][0],
                "processingGuarantees": "EFFECTIVELY_ONCE",
                "parallelism": 2,
                "stateScope": "partition",
                "userConfig": {"counts": True},
            }
        )

    def _load(self, progress: ProgressLine) -> None:
        def state() -> str:
            calls = list(self._calls())
            return f"{len(calls)} calls, {sum(200 <= call.status < 300 for call in calls)} won"

        steady = self._steady_inputs[0][0], STEADY_PARTITIONS
        source = Source(self._target.bootstrap, steady, steady, self._part.seed, 2 * RATE)
        beside = [*(writer.run for writer in self.writers), self._mover.run, source.write_plain]
        under_faults(self._part.seconds, self.executor, self.faults, progress, state, *beside)

    def _calls(self) -> list[Call]:
        return [*self._mover.calls, *(call for writer in self.writers for call in list(writer.calls))]

    def _judge_steady(self) -> list[Anomaly]:
        """Compare what the steady function has written with a run without faults."""
        messages, outputs = self._reader.messages(self._steady_inputs), self._reader.outputs(self._steady_outputs)
        topics = Topics(self._steady_outputs[0][0], "")
        verdict = check(STEADY, topics, messages, outputs)
        self.counts["steady"] = verdict.messages
        ends = self._reader.ends(self._steady_inputs, stable=False)
        return verdict.anomalies + check_offsets(STEADY.name, self._reader.committed(self._steady), ends)

    def _await(self, judge: Callable[[], list[Anomaly]]) -> None:
        """Judge until nothing is wrong, or for so long that it is an anomaly."""
        until = time.monotonic() + SETTLE_SECONDS
        while (anomalies := judge()) and time.monotonic() < until:
            time.sleep(0.5)  # until it is looked at again
        self.anomalies += anomalies

    def _records(self, topic: str) -> list[Record]:
        records = [
            Record(offset, at / 1000, key.decode(), None if value is None else value.decode())
            for offset, at, key, value in self._reader.records((topic, 0))
        ]
        with (self._folder / f"{topic}.jsonl").open("w") as out:
            out.writelines(json.dumps(record._asdict()) + "\n" for record in records)
        return records

    def _keys(self, topic: str) -> dict[str, bool]:
        """Return the keys that a compacted topic has."""
        there: dict[str, bool] = {}
        for _, _, key, value in self._reader.records((topic, 0)):
            there.pop(key.decode(), None)
            if value is not None:
                there[key.decode()] = True
        return there

    def _judge(self, inputs: Sequence[Place]) -> list[Anomaly]:
        """Look through the topics."""
        log = log_of(self._records(REQUESTS))
        outcome = check_log(log)
        self.counts |= Counter({"won": outcome.won, "lost": outcome.lost, "functions": len(outcome.revisions)})
        definitions = latest(self._records(DEFINITIONS))
        assignments = latest(self._records(ASSIGNMENTS))
        told = {fqfn: definition["revision"] for fqfn, definition in definitions.items()}
        calls = self._calls()
        read = {fqfn: self._steady_inputs if fqfn == self._steady else inputs for fqfn in definitions}
        return [
            *outcome.anomalies,
            *check_calls(calls, log),
            *check_definitions(outcome.revisions, told, "the topic"),
            *check_packages(definitions, self._keys(PACKAGES)),
            *check_assignments(definitions, assignments, read, [worker.name for worker in self._workers]),
        ]

    def _judge_workers(self, when: str) -> list[Anomaly]:
        """Ask each worker for each function."""
        outcome = check_log(log_of(self._records(REQUESTS)))
        names = [self._steady, *(f"public/{self._name}/f{number}" for number in range(NAMES))]
        anomalies = []
        for worker in self._workers:
            answers = {name: worker.revision(name) for name in names}
            told = {name: revision for name, (status, revision) in answers.items() if status == 200}
            anomalies += check_definitions(outcome.revisions, told, f"{worker.name}, when it {when},")
        return anomalies

    def _judge_outputs(self, inputs: Sequence[Place]) -> list[Anomaly]:
        """Send messages, and look who answers them."""
        definitions = latest(self._records(DEFINITIONS))
        texts = [f"message-{number}" for number in range(MESSAGES)]
        sent = {
            fqfn: texts
            for fqfn, definition in definitions.items()
            if fqfn != self._steady
            and len(definition.get("stopped", ())) < int(definition["config"].get("parallelism") or 1)
        }
        self._send(inputs, texts)
        anomalies: list[Anomaly] = []

        def judge() -> list[Anomaly]:
            given: dict[str, list[str]] = {}
            for fqfn in sent:
                topic = definitions[fqfn]["config"]["output"]
                places = [(topic, number) for number in range(self._partitions(topic))]
                given[fqfn] = [output.text for output in self._reader.outputs(places)]
            return check_outputs(sent, given)

        until = time.monotonic() + SETTLE_SECONDS
        while (anomalies := judge()) and time.monotonic() < until:
            time.sleep(0.5)  # until it is looked at again
        return anomalies

    def _send(self, inputs: Sequence[Place], texts: Iterable[str]) -> None:
        producer = Producer({"bootstrap.servers": self._target.bootstrap, "log_level": 0})
        for number, text in enumerate(texts):
            topic, partition = inputs[number % len(inputs)]
            producer.produce(topic, text, partition=partition)
        producer.flush(30)

    def _partitions(self, topic: str) -> int:
        admin = AdminClient({"bootstrap.servers": self._target.bootstrap, "log_level": 0})
        return len(admin.list_topics(topic, timeout=30).topics[topic].partitions)

    def _count(self) -> None:
        calls = self._calls()
        with (self._folder / "calls.jsonl").open("w") as out:
            out.writelines(json.dumps(call._asdict()) + "\n" for call in calls)
        self.counts["calls"] = len(calls)
        self.counts["unknown"] = sum(not call.status or call.status >= 500 for call in calls)
        took = sorted(call.end - call.begin for call in calls if 0 < call.status < 500)
        if not self.counts["won"] or not self.counts["lost"]:
            self.problems.append("nobody won, or nobody lost: the run says less than it seems")
        if took:
            self.counts["median_ms"] = int(1000 * took[len(took) // 2])
            self.counts["longest_ms"] = int(1000 * took[-1])


def _tracebacks(log: Path) -> Iterable[str]:
    count = log.read_text(errors="replace").count("Traceback (most recent call last)")
    return [f"{count} tracebacks in {log}"] if count else []
