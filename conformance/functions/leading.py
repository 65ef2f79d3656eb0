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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from os import kill
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from conformance.checker import faults as of_servers
from conformance.functions.clients import Reader, Source
from conformance.functions.compacting import await_compacted, compact, compact_eagerly
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
from conformance.harness.run import under_faults, unperformed
from conformance.harness.targets import Target, free_port
from conformance.progress import ProgressLine

WORKERS, WRITERS, PARTITIONS = 3, 4, 3
NAMES = tuple(f"f{number}" for number in range(6))
LAST = "last"
"""The function that is made when the load is over: behind its records all that came before can be compacted."""
KINDS = ("kill_leader", "pause_leader", "kill_worker")
"""`kill -9` of the worker that leads, SIGSTOP of it for longer than a session, `kill -9` of another one."""
SERVER_KINDS = ("kill",)
SPACING = Spacing(
    usual=6.0, quiet=2.0, lasts={"kill": 1.0, "kill_leader": 3.0, "kill_worker": 3.0, "pause_leader": 9.0}
)
ORPHAN_SECONDS = 15.0
"""For the instances of a worker to end once it has: within a second on a machine that does nothing else."""
_ENOUGH_CALLS = 40
"""Calls from which on some have to lose against others. A start that takes long leaves time for fewer."""
SETTLE_SECONDS = 40.0
"""For requests to be answered and instances to be where they should be, once all workers live."""
REQUESTS, DEFINITIONS = "__kop_functions_requests", "__kop_functions"
ASSIGNMENTS, PACKAGES = "__kop_functions_assignments", "__kop_functions_packages"
COMPACTED = (DEFINITIONS, ASSIGNMENTS, PACKAGES)
SUPERSEDED = 12
"""How many old records a compacted topic may have: the newest batch, and the newest segment, are left as they are."""
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
        elif fault in self._hit:  # else nobody led: it has not begun
            worker = self._hit.pop(fault)
            if fault.kind == "pause_leader":
                kill(worker.pid, signal.SIGCONT)
            else:
                worker.start()

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

    def make_last(self) -> None:
        """Make a function of code that no other one has."""
        self._call(self._workers[0], f"{self._prefix}/{LAST}", "create", None, b"# the last one\n" + CODE)

    def _step(self) -> None:
        rng, worker = self._rng, self._rng.choice(self._workers)
        name = f"{self._prefix}/{rng.choice(NAMES)}"
        if name not in self._known or rng.random() < 0.7:  # else: what it knew, which others may have changed
            status, revision = worker.revision(name)
            if status not in (200, 404):
                return
            self._known[name] = revision
        expects = self._known[name]
        kind = "create" if expects is None else rng.choice(("update", "update", "stop", "start", "restart", "delete"))
        self._call(worker, name, kind, expects)

    def _call(self, worker: WorkerProcess, name: str, kind: str, expects: int | None, code: bytes = CODE) -> None:
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
            form = {"functionConfig": config_part(config), "data": ("program.py", code)}
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
            stack.callback(lambda: _each(self._workers, WorkerProcess.kill))
            progress.say("the workers start")
            self._start()
            if self._target.servers:
                compact_eagerly(self._target.bootstrap, COMPACTED)
            self._make_steady()
            self._load(progress)
            _each(self._workers, WorkerProcess.await_ready)
            self.writers[0].make_last()
            progress.say("all requests are answered, all instances dealt")
            self._await(lambda: self._judge(inputs))
            progress.say("workers are asked")
            self._await(lambda: self._judge_workers("had it"))
            progress.say("functions are asked")
            self._await(self._asked(inputs, "before"))
            progress.say("the function whose partitions moved comes to its end")
            self._await(self._judge_steady)
            progress.say("the workers end")
            _each(self._workers, WorkerProcess.stop)
            self._await(self._judge_orphans, ORPHAN_SECONDS)
            if self._target.servers:
                progress.say("topics are compacted")
                self._compact()
            progress.say("the workers start again, a new one among them")
            self._workers[0] = WorkerProcess(f"w{WORKERS + 1}", self._target.bootstrap, free_port(), self._folder)
            self._start()
            self._await(lambda: self._judge(inputs))
            self._await(lambda: self._judge_workers("has it after its start"))
            self._await(self._asked(inputs, "after"))
            progress.say("the workers end")
            _each(self._workers, WorkerProcess.stop)
        self._count()
        self.anomalies = list(dict.fromkeys(self.anomalies))
        self.problems += unperformed(self.executor)
        self.problems += [text for worker in self._workers for text in _tracebacks(worker.log)]

    def report(self, console: Console) -> str:
        """Print figures, and return what is said of them in a line."""
        counts = self.counts
        console.print(
            f"workers: {counts['won']} requests won, {counts['lost']} lost; {counts['unknown']} of {counts['calls']} "
            f"calls had no answer; answers took {counts['median_ms']} ms, at most {counts['longest_ms']} ms; "
            f"{counts['functions']} functions in the end; {counts['steady']} messages of the one that moved; "
            f"{counts['revived']} workers ended by themselves",
            highlight=False,
        )
        return f"{counts['won'] + counts['lost']} requests"

    def _make_topics(self, *topics: Sequence[Place]) -> None:
        admin = AdminClient({"bootstrap.servers": self._target.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(places[0][0], len(places), 1) for places in topics]).values():
            future.result(60)

    def _start(self) -> None:
        for worker in self._workers:
            worker.start()
        _each(self._workers, WorkerProcess.await_ready)

    def _compact(self) -> None:
        """Have the topics compacted, so that whoever starts now cannot read what was there before."""
        compact(self._target, COMPACTED)
        left = await_compacted(self._reader, COMPACTED, SUPERSEDED)
        self.problems += [f"{topic} is not compacted: {count} of its records are old" for topic, count in left.items()]
        kept = len(self._records(DEFINITIONS))
        if kept >= self.counts["won"]:
            self.problems.append(f"nothing was compacted: {kept} definitions are there of {self.counts['won']}")

    def _judge_orphans(self) -> list[Anomaly]:
        return [
            Anomaly("orphan", "", "", 0, -1, f"{len(left)} processes of {worker.name} live on: {left}")
            for worker in self._workers
            if (left := worker.orphans())
        ]

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
        beside = [*(writer.run for writer in self.writers), self._mover.run, source.write_plain, self._keep_workers]
        under_faults(self._part.seconds, self.executor, self.faults, progress, state, *beside)

    def _keep_workers(self, stop: threading.Event) -> None:
        """Start workers again that ended by themselves, until stop."""
        while not stop.wait(1.0):
            for worker in self._workers:
                worker.revive()

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

    def _await(self, judge: Callable[[], list[Anomaly]], seconds: float = SETTLE_SECONDS) -> None:
        """Judge until nothing is wrong, or for so long that it is an anomaly."""
        until = time.monotonic() + seconds
        while True:
            is_last = time.monotonic() >= until  # before it is judged: a judgement from before a pause is an old one
            if not (anomalies := judge()) or is_last:
                break
            time.sleep(0.2)  # until it is looked at again
        self.anomalies += anomalies

    def _records(self, topic: str) -> list[Record]:
        records = [
            Record(offset, at, key.decode(), None if value is None else value.decode())
            for offset, at, key, value in self._reader.records([(topic, 0)])[topic, 0]
        ]
        with (self._folder / f"{topic}.jsonl").open("w") as out:
            out.writelines(json.dumps(record._asdict()) + "\n" for record in records)
        return records

    def _keys(self, topic: str) -> dict[str, bool]:
        """Return the keys that a compacted topic has."""
        there: dict[str, bool] = {}
        for _, _, key, value in self._reader.records([(topic, 0)])[topic, 0]:
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
        names = [self._steady, *(f"public/{self._name}/{name}" for name in (*NAMES, LAST))]
        anomalies = []
        for worker in self._workers:
            answers = {name: worker.revision(name) for name in names}
            told = {name: revision for name, (status, revision) in answers.items() if status == 200}
            anomalies += check_definitions(outcome.revisions, told, f"{worker.name}, when it {when},")
        return anomalies

    def _asked(self, inputs: Sequence[Place], when: str) -> Callable[[], list[Anomaly]]:
        """Send messages; what is returned looks who has answered them."""
        definitions = latest(self._records(DEFINITIONS))
        texts = [f"{when}-{number}" for number in range(MESSAGES)]
        sent = {
            fqfn: texts
            for fqfn, definition in definitions.items()
            if fqfn != self._steady
            and len(definition.get("stopped", ())) < int(definition["config"].get("parallelism") or 1)
        }
        topics = {fqfn: definitions[fqfn]["config"]["output"] for fqfn in sent}
        self._send(inputs, texts)

        def judge() -> list[Anomaly]:
            outputs = self._reader.outputs(self._places(topics.values()))
            given = {fqfn: [output.text for output in outputs if output.topic == topics[fqfn]] for fqfn in sent}
            return check_outputs(sent, given)

        return judge

    def _send(self, inputs: Sequence[Place], texts: Iterable[str]) -> None:
        producer = Producer({"bootstrap.servers": self._target.bootstrap, "log_level": 0})
        for number, text in enumerate(texts):
            topic, partition = inputs[number % len(inputs)]
            producer.produce(topic, text, partition=partition)
        producer.flush(30)

    def _places(self, topics: Iterable[str]) -> list[Place]:
        """Return the partitions of topics; none of one that is not there yet."""
        admin = AdminClient({"bootstrap.servers": self._target.bootstrap, "log_level": 0})
        known = admin.list_topics(timeout=30).topics
        return [(topic, number) for topic in topics if topic in known for number in known[topic].partitions]

    def _count(self) -> None:
        calls = self._calls()
        with (self._folder / "calls.jsonl").open("w") as out:
            out.writelines(json.dumps(call._asdict()) + "\n" for call in calls)
        self.counts["calls"] = len(calls)
        self.counts["revived"] = sum(worker.revived for worker in self._workers)
        self.counts["unknown"] = sum(not call.status or call.status >= 500 for call in calls)
        took = sorted(call.end - call.begin for call in calls if 0 < call.status < 500)
        if not self.counts["won"] or (len(calls) >= _ENOUGH_CALLS and not self.counts["lost"]):
            self.problems.append("nobody won, or nobody lost: the run says less than it seems")
        if took:
            self.counts["median_ms"] = int(1000 * took[len(took) // 2])
            self.counts["longest_ms"] = int(1000 * took[-1])


def _each(workers: Iterable[WorkerProcess], do: Callable[[WorkerProcess], object]) -> None:
    """Do something with each, side by side. OSError, StartFailed."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(do, workers))


def _tracebacks(log: Path) -> Iterable[str]:
    count = log.read_text(errors="replace").count("Traceback (most recent call last)")
    return [f"{count} tracebacks in {log}"] if count else []
