"""Apache Flink's KafkaSource and its KafkaSink with EXACTLY_ONCE: jobs that fail, are killed and go on, each in a JVM.

Owns: the input, when a job or the server is killed, the comparison of what another client reads with read_committed.
Must not know: how a server is started; the job is flink/src/Count.java.

KEEP_LOGS=1 keeps the folders of checkpoints and logs, which are named on standard error.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from suite import Run, Skip, Suite, eventually, same

from conformance.suites import FLINK

HOME = Path(__file__).resolve().parents[1] / "flink"
NEWEST, OLDER = FLINK
NAMINGS = ("POOLING", "INCREMENTING")
KEYS, EACH = 12, 400
PARTITIONS = 3

suite = Suite("flink", f"{NEWEST.replace(' ', ', connector ')}; {OLDER.replace(' ', ', connector ')}", workers=1)


class Job:
    """A JVM with the job of a case. `options` are the job's; what it logs is in `log`."""

    def __init__(self, folder: Path, versions: str, options: dict[str, str]) -> None:
        self.log = folder / "flink.log"
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        command = [str(HOME / "job.sh"), *versions.split(), *(f"{name}={value}" for name, value in options.items())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line.strip())
        self._lines.put(None)

    def says(self, beginning: str, seconds: float = 60) -> str:
        """The rest of the next line that begins so."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"the job does not say {beginning!r} within {seconds:g} s: {self.last()}"
                ) from None
            if line is None:
                raise AssertionError(f"the job ended without {beginning!r}: {self.last()}")
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()

    def ends(self, seconds: float = 60) -> int:
        """Its exit code; 137 where it halted itself."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job has not ended after {seconds:g} s: {self.last()}") from None

    def troubles(self) -> int:
        """How often it threw on purpose; it has ended."""
        return sum(line.startswith("throw-at-") for line in iter(lambda: self._lines.get(timeout=10), None) if line)

    def stop(self) -> str:
        """End it with a savepoint: its folder."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        savepoint = self.says("savepoint").removeprefix("file:")
        self.ends()
        return savepoint

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def last(self) -> str:
        """The end of what it logged."""
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-3:])[-400:]


class Case:
    """The topics of a case, its folder, its jobs."""

    def __init__(self, run: Run, naming: str, versions: str) -> None:
        self.input, self.output, self.group = run.name("in"), run.name("out"), run.group()
        self.folder = Path(tempfile.mkdtemp(prefix="flink-conformance-"))
        self._run, self._naming, self._versions = run, naming, versions
        self._jobs: list[Job] = []
        self._admin = AdminClient(run.librdkafka)
        self.create(self.input)
        self.create(self.output)
        self.fill(self.input)

    def create(self, topic: str) -> None:
        """A topic, ready."""
        for future in self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=20).values():
            future.result(25)

    def fill(self, topic: str) -> None:
        """Each key with the values 0, 1, ..."""
        producer = Producer(self._run.librdkafka | {"enable.idempotence": True, "linger.ms": 5})
        for value in range(EACH):
            for key in range(KEYS):
                producer.produce(topic, str(value), key=f"k{key}")
            producer.poll(0)
        same(producer.flush(20), 0, "records of the input without an acknowledgement")

    def job(self, **options: object) -> Job:
        """Start it; underscores of names become hyphens."""
        ours = {
            "bootstrap": self._run.bootstrap,
            "input": self.input,
            "output": self.output,
            "group": self.group,
            "prefix": self.output,
            "naming": self._naming,
            "checkpoints": str(self.folder),
        }
        if self._run.security is not None:
            ours |= {f"kafka.{name}": value for name, value in self._run.security.java().items()}
        given = {name.replace("_", "-"): str(value) for name, value in options.items()}
        self._jobs.append(Job(self.folder, self._versions, ours | given))
        return self._jobs[-1]

    def checkpoint(self) -> str:
        """The folder of the latest checkpoint that is complete."""
        complete = list(self.folder.glob("*/chk-*/_metadata"))
        assert complete, f"no checkpoint was completed: {self._jobs[-1].last()}"
        return str(max(complete, key=lambda path: path.stat().st_mtime_ns).parent)

    def read(self, seconds: float = 20) -> dict[str, list[str]]:
        """The committed values of each key, in the order of the log."""
        consumer = Consumer(
            self._run.librdkafka
            | {
                "group.id": f"{self.group}-read",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(self.output, partition, 0) for partition in range(PARTITIONS)])
        values: dict[str, list[str]] = {}
        ended: set[int | None] = set()
        end = time.monotonic() + seconds
        try:
            while len(ended) < PARTITIONS:
                assert time.monotonic() < end, f"the end of the output was not reached in {seconds:g} s"
                message = consumer.poll(0.5)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    if error.name() == "_PARTITION_EOF":
                        ended.add(message.partition())
                    else:
                        assert error.retriable() or error.code() < 0, error.str()
                    continue
                values.setdefault((message.key() or b"").decode(), []).append((message.value() or b"").decode())
            return values
        finally:
            consumer.close()

    def all_there(self, seconds: float = 60) -> None:
        """Wait until as many records are committed as there have to be."""
        eventually(lambda: sum(map(len, self.read().values())) >= KEYS * EACH, seconds, every=0.5)

    def right(self) -> None:
        """Nothing is lost, nothing there twice, each key in its order."""
        read = self.read()
        wanted = [f"{value}/{value + 1}" for value in range(EACH)]
        for key in (f"k{number}" for number in range(KEYS)):
            got = read.pop(key, [])
            missing, twice = sorted(set(wanted) - set(got), key=wanted.index), len(got) - len(set(got))
            assert got == wanted, (
                f"{key}: {len(missing)} missing (as {missing[:3]}), {twice} twice, "
                f"{len(set(got) - set(wanted))} strange, of {len(got)}; in order: {got == sorted(got, key=_number)}"
            )
        same(read, {}, "keys that were never written")

    def end(self) -> None:
        """Kill what runs still."""
        for job in self._jobs:
            job.kill()
        if os.environ.get("KEEP_LOGS"):
            print(self.folder, file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def _number(value: str) -> int:
    return int(value.partition("/")[0])


@contextmanager
def _case(run: Run, naming: str, versions: str = NEWEST) -> Iterator[Case]:
    case = Case(run, naming, versions)
    try:
        yield case
    finally:
        case.end()


@contextmanager
def _door() -> Iterator[socket.SocketIO]:
    """To the server's, by which it is killed and started again (conformance/door.py)."""
    address = os.environ.get("CONFORMANCE_DOOR", "")
    if not address:
        raise Skip("the server was started by somebody else: it cannot be killed")
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 120) as connection:
        yield connection.makefile("rwb", buffering=0)


def _ask(door: socket.SocketIO, deed: str) -> None:
    door.write(deed.encode() + b"\n")
    same(door.readline().decode().strip(), "done", deed)


def _clean(run: Run, topics: list[str]) -> None:
    for future in AdminClient(run.librdkafka).delete_topics(topics, request_timeout=20).values():
        future.exception(20)


suite.cleanup = _clean


@suite.case(limit=115, naming=NAMINGS, versions=(NEWEST, OLDER))
def job_that_throws_before_commits_and_at_snapshots_writes_each_record_once(
    run: Run, naming: str, versions: str
) -> None:
    with _case(run, naming, versions) as case:
        job = case.job(
            bounded=True, throw_at_commit="3,8", throw_at_snapshot="4,13", throw_at_record="1200,3900", pace=3
        )
        same(job.ends(100), 0, f"exit code, {job.last()}")
        same(job.troubles(), 6, "troubles that came")
        case.right()


@suite.case(limit=115, naming=NAMINGS, versions=(NEWEST, OLDER))
def job_killed_between_precommit_and_commit_commits_after_its_restart(run: Run, naming: str, versions: str) -> None:
    with _case(run, naming, versions) as case:
        same(case.job(halt_at_commit=5).ends(), 137, "exit code")
        same(case.job(halt_at_commit=6, restore=case.checkpoint()).ends(), 137, "exit code")
        job = case.job(restore=case.checkpoint(), pace=0)
        case.all_there()
        job.stop()
        case.right()


@suite.case(limit=115, naming=NAMINGS)
def job_killed_behind_a_commit_that_it_did_not_note_commits_once(run: Run, naming: str) -> None:
    with _case(run, naming) as case:
        job = case.job()
        eventually(lambda: sum(map(len, case.read().values())), 60)
        job.kill()  # at any moment
        # Behind the commit of one of two subtasks: the other's transaction is open, and this one is committed twice.
        same(case.job(halt_at_commit=2, restore=case.checkpoint()).ends(), 137, "exit code")
        same(case.job(halt_at_commit=4, restore=case.checkpoint()).ends(), 137, "exit code")
        job = case.job(restore=case.checkpoint(), pace=0)
        case.all_there()
        job.stop()
        case.right()


@suite.case(limit=115, naming=NAMINGS)
def job_goes_on_from_a_savepoint_with_more_and_with_fewer_subtasks(run: Run, naming: str) -> None:
    with _case(run, naming) as case:
        job = case.job()
        eventually(lambda: sum(map(len, case.read().values())), 60)
        savepoint = job.stop()
        same(case.job(restore=savepoint, parallelism=3, halt_at_commit=7).ends(), 137, "exit code")
        job = case.job(restore=case.checkpoint(), parallelism=1, pace=0)
        case.all_there()
        job.stop()
        case.right()


@suite.case(limit=115, naming=NAMINGS)
def open_transactions_of_a_killed_job_are_aborted_by_one_that_starts_afresh(run: Run, naming: str) -> None:
    with _case(run, naming) as case:
        other = run.name("other")
        case.create(other)
        case.fill(other)
        # Its first commit never comes: nothing is committed, and all of the output's partitions have open transactions.
        same(case.job(input=other, halt_at_commit=1, timeout=800_000).ends(), 137, "exit code")
        job = case.job(bounded=True, pace=0, group=run.group())
        same(job.ends(80), 0, f"exit code, {job.last()}")
        case.right()


@suite.case(limit=118, naming=NAMINGS)
def server_killed_under_a_job_and_while_its_transactions_wait_loses_nothing(run: Run, naming: str) -> None:
    with _door() as door, _case(run, naming) as case:
        job = case.job(pace=5)
        eventually(lambda: sum(map(len, case.read().values())), 60)
        _ask(door, "kill")
        time.sleep(1)  # the job sees that nobody answers
        _ask(door, "start")
        before = sum(map(len, eventually(case.read, 30).values()))
        more = min(before + 1, KEYS * EACH)
        eventually(lambda: sum(map(len, case.read().values())) >= more, 40)
        job.kill()
        same(case.job(halt_at_commit=3, restore=case.checkpoint()).ends(), 137, "exit code")
        _ask(door, "kill")  # what was pre-committed stays open over it
        _ask(door, "start")
        job = case.job(restore=case.checkpoint(), pace=0)
        case.all_there()
        job.stop()
        case.right()


if __name__ == "__main__":
    suite.main()
