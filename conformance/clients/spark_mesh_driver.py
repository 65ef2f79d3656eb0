"""Meshes whose driver runs while numbers flow: what the commands of `kop mesh` do to it, a run by name, and Ctrl-C.

Each number has to come out once, with the count of its partition's messages, whatever was asked for meanwhile.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka import TopicPartition
from kafka_python_kit import admin, consumer, make_topic, producer
from spark_kit import PATIENCE, case, folder, session
from suite import Run, eventually, same

from conformance.mesh.open_transactions import open_transactions
from conformance.mesh.processes import Driver

CODE = """\
def mark(text: str) -> str:
    return f"{{text}} {word}"

def count(text: str, context) -> str:
    context.incr_counter("all", 1)
    return f"{{text}} {{context.get_counter('all')}}"

def end(text: str) -> str:
    return text
"""
MESH = """\
name: {name}
batchSeconds: 2
fuse: {fuse}
functions:
  - {{name: {name}-mark, className: flows.mark, py: flows.py, inputs: [{source}], output: {middle}, keepsKey: true,
      private: {private}, processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
  - {{name: {name}-count, className: flows.count, py: flows.py, inputs: [{middle}], output: {target}, keepsKey: true,
      stateScope: partition, processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
"""
ADDED = """\
  - {{name: {name}-end, className: flows.end, py: flows.py, inputs: [{target}], output: {last}, keepsKey: true,
      processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
"""
KEYS = 7
SOME = 40
"""How many records have to come out until it is believed that they flow."""
STILL_SECONDS = 3.0
"""How long nothing may come out of what is stopped: more than a batch."""
CTRL_C_SECONDS = 2.0


class Flow:
    """Numbers into two functions, the second of which counts; its mesh is in a file of this folder."""

    def __init__(self, run: Run, path: str, *, fuse: str = "true", private: str = "false") -> None:
        self.run = run
        hints = "source", "middle", "target", "last"
        self.topics = {hint: make_topic(run, hint, partitions=2) for hint in hints}
        self.name = self.topics["source"]
        self.file = Path(path, "mesh.yaml")
        self._forms = {"fuse": fuse, "private": private}
        self._over = threading.Event()
        self.sent = 0
        self.define()

    def define(self, word: str = "old", more: str = "") -> None:
        """Write the files of the mesh: `word` is what `mark` appends, `more` further functions."""
        self.file.with_name("flows.py").write_text(CODE.format(word=word))
        text = (MESH + more).format(name=self.name, **self._forms, **self.topics)
        self.file.write_text(text)

    @contextmanager
    def numbers(self) -> Iterator[None]:
        """Send numbers, fifty a second, until `stop`, or the end of the block."""
        thread = threading.Thread(target=self._send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _send(self) -> None:
        with producer(self.run) as p:
            while not self._over.wait(0.1):  # the rate
                for _ in range(5):
                    p.send(self.topics["source"], b"%d" % self.sent, b"k%d" % (self.sent % KEYS))
                    self.sent += 1
                p.flush()

    def values(self, hint: str = "target") -> dict[int, list[str]]:
        """The committed values of a topic, by partition."""
        made: dict[int, list[str]] = {0: [], 1: []}
        with consumer(self.run, isolation_level="read_committed", auto_offset_reset="earliest") as client:
            places = [TopicPartition(self.topics[hint], number) for number in made]
            client.assign(places)
            ends = client.end_offsets(places)
            while any(client.position(place) < ends[place] for place in places):
                for place, some in client.poll(timeout_ms=500).items():
                    made[place.partition] += [record.value.decode() for record in some]
        return made

    def count(self, hint: str = "target") -> int:
        return sum(map(len, self.values(hint).values()))

    def goes_on(self, hint: str = "target") -> None:
        """Wait until so many further records have come out that they flow."""
        before = self.count(hint)
        eventually(lambda: self.count(hint) >= before + SOME, 60 * PATIENCE)

    def stands_still(self, hint: str = "target") -> None:
        """Check that nothing comes out of a part, although there is something to do."""
        before, sent = self.count(hint), self.sent
        time.sleep(STILL_SECONDS)  # nothing may come: there is no event to wait for
        same(self.count(hint), before, "records that have come out of what is stopped")
        same(self.sent > sent, True, "records flow")

    def ends_well(self) -> dict[int, list[str]]:
        """Stop the numbers, wait for all of them; each has to be there once, in order, with its count."""
        self._over.set()
        eventually(lambda: self.count() >= self.sent, 90 * PATIENCE)
        values = self.values()
        self.is_right(values)
        numbers = sorted(int(value.split()[0]) for some in values.values() for value in some)
        same(numbers, list(range(self.sent)), "the numbers, each once")
        return values

    def is_right(self, values: dict[int, list[str]]) -> None:
        """Check that no count is missing or twice, and that numbers ascend."""
        for some in values.values():
            same([int(value.split()[2]) for value in some], list(range(1, len(some) + 1)), "the counts of a partition")
            numbers = [int(value.split()[0]) for value in some]
            same(numbers, sorted(numbers), "the order")

    def start(self) -> Any:
        """Run the mesh in the session, and wait until it runs."""
        from kop.spark import run_mesh

        mesh: Any = run_mesh(session(), str(self.file), options={"kafka.bootstrap.servers": self.run.bootstrap})
        eventually(lambda: mesh.status()["state"] == "running", 60 * PATIENCE)
        return mesh

    def kop(self, *arguments: str, given: str = "", code: int = 0) -> str:
        """Run `kop mesh`; what it printed. It has to end with this code."""
        command = [sys.executable, "-m", "kop.cli.main", "mesh", *arguments, "--bootstrap", self.run.bootstrap]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60 * PATIENCE)
        same((done.returncode, done.stderr if done.returncode != code else ""), (code, ""), " ".join(arguments))
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.kop("status", self.name, "--json"))
        return made

    def lag(self, code: str) -> int | None:
        """How many offsets a part has not processed."""
        lags: dict[str, int | None] = {part["name"].rpartition("-")[2]: part["lag"] for part in self.status()["parts"]}
        return lags[code]

    def states(self) -> dict[str, str]:
        """The states of its parts, by the names of their code."""
        return {part["name"].rpartition("-")[2]: part["state"] for part in self.status()["parts"]}


@contextmanager
def running(run: Run, *, fuse: str = "true", private: str = "false") -> Iterator[tuple[Flow, Any]]:
    """Run a mesh in the session while numbers flow through it, and stop it at the end of the block."""
    with folder() as path:
        flow = Flow(run, path, fuse=fuse, private=private)
        mesh = flow.start()
        try:
            with flow.numbers():
                flow.goes_on()
                yield flow, mesh
        finally:
            mesh.stop()


@case(kop=True, kafka=False, limit=240, alone=True)
def a_running_mesh_takes_up_other_code_and_a_further_function(run: Run) -> None:
    with running(run) as (flow, mesh):
        revision = flow.status()["revision"]
        flow.define("new", ADDED)
        told = flow.kop("update", str(flow.file), given="n\n", code=1)
        for text in (f"{flow.name}-mark", "has other code", f"{flow.name}-end", "[y/N]"):
            same(text in told, True, f"{text!r} in {told}")
        flow.goes_on()
        same(flow.status()["revision"], revision, "the revision after no")
        same({value.split()[1] for some in flow.values().values() for value in some}, {"old"}, "after no")
        same("updated (revision" in flow.kop("update", str(flow.file), given="y\n"), True, "it is updated")
        eventually(lambda: mesh.status()["revision"] > revision, 60 * PATIENCE)
        flow.goes_on("last")
        same(flow.states(), dict.fromkeys(("mark", "count", "end"), "running"), "its parts")
        values = flow.ends_well()
        for some in values.values():
            words = [value.split()[1] for value in some]
            same(words, sorted(words, reverse=True), "new behind old")
            same(set(words), {"old", "new"}, "words")
        eventually(lambda: flow.count("last") >= flow.sent, 60 * PATIENCE)
        same(flow.values("last"), values, "what the added function gives")


@case(kop=True, kafka=False, limit=240, alone=True)
def a_running_mesh_stops_starts_and_starts_a_part_anew(run: Run) -> None:
    with running(run, fuse="false") as (flow, mesh):
        flow.kop("stop", flow.name)
        same(flow.status()["state"], "stopped", "its state")
        same(flow.states(), {"mark": "stopped", "count": "stopped"}, "its parts")
        flow.stands_still("middle")
        flow.stands_still()
        flow.kop("start", flow.name)
        flow.goes_on()
        same(flow.states(), {"mark": "running", "count": "running"}, "its parts")

        def restarts() -> dict[str, int]:
            return {part["name"].rpartition("-")[2]: part["restarts"] for part in mesh.status()["components"]}

        before = restarts()
        flow.kop("restart", flow.name, f"{flow.name}-count")
        eventually(lambda: restarts() == before | {"count": before["count"] + 1}, 60 * PATIENCE)
        flow.goes_on()
        flow.kop("restart", flow.name)
        eventually(lambda: restarts() == {"mark": before["mark"] + 1, "count": before["count"] + 2}, 60)
        flow.goes_on()
        flow.ends_well()
        same(flow.count("middle"), flow.sent, "records between the functions")


@case(kop=True, kafka=False, limit=240, alone=True)
def a_part_of_a_running_mesh_is_stopped_and_started(run: Run) -> None:
    with running(run, private="true") as (flow, _):
        same(flow.count("middle"), 0, "records of a private topic")
        flow.kop("stop", flow.name, f"{flow.name}-count")
        same(flow.states(), {"mark": "running", "count": "stopped"}, "its parts")
        same(flow.status()["state"], "running", "its state")
        flow.goes_on("middle")
        flow.stands_still()
        flow.kop("start", flow.name, f"{flow.name}-count")
        flow.goes_on()
        same(flow.states(), {"mark": "running", "count": "running"}, "its parts")
        flow.kop("stop", flow.name, f"{flow.name}-mark")
        same(flow.states(), {"mark": "stopped", "count": "running"}, "its parts")
        flow.stands_still("middle")
        eventually(lambda: flow.lag("count") == 0, 60 * PATIENCE)
        flow.stands_still()
        flow.kop("restart", flow.name, f"{flow.name}-mark")
        flow.goes_on()
        flow.ends_well()


def nothing_is_open(run: Run) -> None:
    """Check that no transaction of a mesh is open."""
    with admin(run) as client:
        same(open_transactions(client), [], "open transactions")


@case(kop=True, kafka=False, limit=240, alone=True)
def a_mesh_is_run_by_its_name_elsewhere_and_ends_at_once(run: Run) -> None:
    with folder() as path, folder() as elsewhere:
        flow = Flow(run, path)
        flow.kop("create", str(flow.file))
        shutil.rmtree(path)
        Path(elsewhere, "empty").mkdir()
        arguments = [flow.name, "--bootstrap", run.bootstrap, "--master", "local[2]"]
        driver = Driver(sys.executable, arguments, Path(elsewhere), Path(elsewhere, "empty"))
        try:
            driver.start()
            with flow.numbers():
                flow.goes_on()
                seconds = driver.stop()
                nothing_is_open(run)
                same(seconds <= CTRL_C_SECONDS * PATIENCE, True, f"Ctrl-C took {seconds:.2f} s")
                flow.is_right(flow.values())
                same("gone" if flow.status()["state"] == "running" else "ended", "ended", "its state")
                driver.start()
                flow.goes_on()
                flow.ends_well()
                driver.stop()
                nothing_is_open(run)
        finally:
            driver.kill()
