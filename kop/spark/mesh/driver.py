"""The driver of a mesh: a streaming query for each component, started, looked after, and stopped.

Owns: topics and start offsets before the first batch, how many tasks each query may have, restarts of queries that
failed, the order of an end, what is reported each second.
Must not know: flags and terminals, how tasks work.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from kop import clock
from kop.client.errors import ClientError
from kop.client.keyed_topic import KeyedTopic
from kop.client.membership import Membership
from kop.client.offsets import EARLIEST, LATEST
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.functions.acks import wait_seconds
from kop.functions.reading import READ_COMMITTED
from kop.mesh import records
from kop.mesh.spec import Mesh
from kop.spark.mesh.component import Component, Work
from kop.spark.mesh.counting import Counting
from kop.spark.mesh.cutting import components_of
from kop.spark.mesh.link import Hub, TaskLine
from kop.spark.mesh.planning import Planner
from kop.spark.mesh.source import NAME, WORK, MeshSource, encode

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
REPORT_SECONDS: Final = 1.0
END_SECONDS: Final = 30.0
"""How long the calls that are under way may take when a mesh is to end."""
WELL_SECONDS: Final = 180.0
"""How long a query has to run until its failures before are forgotten."""
SESSION_SECONDS: Final = 6.0
"""As short as Kafka's default allows: so long a mesh stands still after its driver was killed."""
_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit)): (.+)", re.MULTILINE)


@dataclass
class _Query:
    """The query of a component."""

    component: Component
    work: Work
    planner: Planner
    query: Any = None
    state: str = records.STARTING
    reason: str = ""
    failures: int = 0
    restarts: int = 0
    since: float = 0.0
    due: float = 0.0
    """When it is started again."""
    folder: str = ""
    ended: list[str] = field(default_factory=list)
    """The last calls that had to be ended, with function and record."""


class MeshDriver:
    """Runs a mesh in a session of Spark. `settings` are kafka-python's; `say` is given lines for people.

    `once`: batches, until all that there is is done. `start` and what follows is for one thread, `stop` for any.
    """

    def __init__(
        self,
        spark: SparkSession,
        mesh: Mesh,
        settings: Mapping[str, Any],
        patience: float,
        say: Callable[[str], None],
        *,
        once: bool = False,
        text: str = "",
    ) -> None:
        self._spark = spark
        self._mesh = mesh
        self._settings = dict(settings)
        self._patience = patience
        self._say = say
        self._once = once
        self._text = text
        self._is_batch = once or mesh.trigger == "batch"
        self._counting = Counting()
        self._stopping = threading.Event()
        self._queries: list[_Query] = []
        self._topic = KeyedTopic(settings, records.TOPIC, patience)
        self._started_ms = clock.wall_ms()
        self._reported = float("-inf")
        self._state = records.STARTING
        master = str(spark.conf.get("spark.master", ""))
        is_local = master.startswith("local[") or master == "local"
        host = "127.0.0.1" if is_local else str(spark.conf.get("spark.driver.host", socket.gethostname()))
        self._hub = Hub("127.0.0.1" if is_local else "", self._told, self._over)
        self._address = host, self._hub.port
        self._membership = Membership(
            settings,
            f"kop-mesh-{socket.gethostname()}-{os.getpid()}",
            f"{records.GROUP_PREFIX}{mesh.full_name}",
            records.TOPIC,
            lambda: None,
            SESSION_SECONDS,
        )

    # -- for whoever runs it

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self._mesh

    def stop(self) -> None:
        """Let the mesh end: `run` returns once all that was begun is committed."""
        self._stopping.set()

    def run(self) -> bool:
        """Run until `stop`, or, with `once`, until all is done; returns if all was done that was begun."""
        self._topic.make()
        self._membership.start()
        try:
            if not self._wait_for_turn():
                return True
            self._begin()
            return self._look_after()
        finally:
            self._membership.close(1.0)
            self._hub.close()
            self._topic.close()

    def _wait_for_turn(self) -> bool:
        """Wait until this driver has the mesh; False: it is to end."""
        told = False
        since = clock.monotonic()
        while self._membership.holding() is None:
            if not told and clock.monotonic() > since + 3 * SESSION_SECONDS:
                told = True
                others = [peer.client_id for peer in self._membership.peers() if peer.holds]
                who = others[0].removeprefix("kop-mesh-") if others else self._membership.failure or "nobody yet"
                self._say(f"{self._mesh.full_name} is driven by {who}; waiting to take over")
            if self._stopping.wait(LOOK_SECONDS):
                return False
        return True

    # -- its beginning

    def _begin(self) -> None:
        mesh = self._mesh
        writer = WriteClient(self._settings, self._patience)
        reader = ReadClient(self._settings, int(self._patience * 1000))
        try:
            self._make_topics(writer)
            there = {name: len(topic.leaders) for name, topic in reader.topics(None).items() if not topic.internal}
            components = components_of(mesh, there)
            self._commit_starts(components, reader, writer)
        finally:
            reader.close()
            writer.close()
        slots = self._spark.sparkContext.defaultParallelism
        each = self._tasks_each(len(components), slots)
        self._spark.dataSource.register(MeshSource)
        for component in components:
            work = Work(
                component,
                self._settings,
                self._patience,
                self._address,
                self._hub.token,
                each,
                None if self._is_batch else mesh.batch_seconds,
            )
            self._queries.append(_Query(component, work, Planner(work)))
        if self._text:
            self._topic.put({records.key(records.DEFINITION, mesh.full_name): self._text.encode()})
        for query in self._queries:
            self._start(query)
        self._state = records.RUNNING
        names = ", ".join(query.component.name for query in self._queries)
        one = "1 component" if len(components) == 1 else f"{len(components)} components"
        self._say(f"{mesh.full_name} runs in {one} ({names}), {'batch' if self._is_batch else 'continuous'}")

    def _tasks_each(self, count: int, slots: int) -> int:
        """Return how many tasks each component may have at once; ClientError if there is no room."""
        if self._is_batch:
            return slots
        if count > slots:
            raise ClientError(
                f"give the mesh {count} cores (--master local[{count}], or more executors), or let trigger be batch: "
                f"each of its {count} components has a task at all times, and Spark has {slots} cores"
            )
        return slots // count

    def _make_topics(self, writer: WriteClient) -> None:
        inner = {topic for part in self._mesh.functions for topic in part.inputs}
        for part in self._mesh.functions:
            private = {part.spec.output} if part.is_private and part.spec.output in inner else set()
            for topic in [*part.inputs, *part.outputs]:
                if topic not in private and writer.make_topic(topic):
                    self._say(f"made the topic {topic}")

    def _commit_starts(self, components: Sequence[Component], reader: ReadClient, writer: WriteClient) -> None:
        """Commit where the functions begin that have no offsets, so that no record is missed from here on.

        What the mesh itself writes is read from its beginning.
        """
        written = {topic for part in self._mesh.parts for topic in part.outputs}
        topics = reader.topics({topic for component in components for topic in component.inputs})
        for step in (step for component in components for step in component.steps):
            places = [(topic, number) for topic in step.inputs if topic in topics for number in topics[topic].leaders]
            if not places or step.spec.window is not None:
                continue
            known = writer.committed(step.spec.group, places)
            missing = [place for place in places if place not in known]
            if not missing:
                continue
            latest = step.spec.subscription_position == "Latest" and not known
            wanted = {place: LATEST if latest and place[0] not in written else EARLIEST for place in missing}
            starts = reader.list_offsets(wanted, READ_COMMITTED)
            for error in writer.commit(step.spec.group, starts).values():
                raise error

    def _start(self, query: _Query) -> None:
        """Start the query of a component; its checkpoint is new, since the offsets are those of groups."""
        query.folder = tempfile.mkdtemp(prefix="kop-mesh-")
        self._hub.allow(query.component.name)
        rows = self._spark.readStream.format(NAME).option(WORK, encode(query.work)).load()
        writer = rows.writeStream.format("noop").queryName(f"{query.component.full_name} {query.restarts}")
        query.query = writer.option("checkpointLocation", query.folder).start()
        query.state, query.since = records.RUNNING, clock.monotonic()

    # -- while it runs

    def _look_after(self) -> bool:
        while not self._stopping.wait(LOOK_SECONDS):
            now = clock.monotonic()
            for query in self._queries:
                self._look_at(query, now)
            if self._membership.holding() is None and self._others_hold():
                self._say(f"{self._mesh.full_name} has another driver now; this one ends")
                break
            if now >= self._reported + REPORT_SECONDS:
                self._reported = now
                self._report()
            if self._once and self._is_drained():
                break
        return self._end()

    def _others_hold(self) -> bool:
        return any(peer.holds for peer in self._membership.peers())

    def _look_at(self, query: _Query, now: float) -> None:
        """Start a query again that has failed."""
        if query.query is None:
            if now >= query.due:
                query.restarts += 1
                self._start(query)
            return
        if query.failures and now > query.since + WELL_SECONDS:
            query.failures, query.reason = 0, ""
        if query.query.isActive:
            return
        error = query.query.exception()
        query.reason = told(str(error)) if error is not None else "its query has ended"
        query.failures += 1
        seconds = max(1.0, wait_seconds(query.failures + 2))
        query.state, query.query, query.due = records.FAILED, None, now + seconds
        shutil.rmtree(query.folder, ignore_errors=True)
        self._say(f"{query.component.name} has failed, and starts again in {seconds:.0f} s: {query.reason}")

    def _is_drained(self) -> bool:
        """Return if no component has anything to do, those first that feed others."""
        for query in self._queries:
            if query.query is None or self._hub.tasks() or query.planner.lag():
                return False
        return not self._hub.tasks()

    def _told(self, line: TaskLine) -> None:
        told = line.told
        if "functions" in told:
            self._counting.told(line, told["functions"])
        if "killed" in told:
            self._say(str(told["text"]))
            for query in self._queries:
                if query.component.name == line.component:
                    query.ended = [*query.ended[-9:], str(told["text"])]

    def _over(self, line: TaskLine) -> None:
        self._counting.over(line)

    def _report(self) -> None:
        try:
            value = records.encode(self.report())
            self._topic.put({records.key(records.REPORT, self._mesh.full_name): value})
        except Exception as error:
            log.warning("the report of %s is written again in a moment: %s", self._mesh.full_name, error)

    def report(self) -> dict[str, Any]:
        """Return what the mesh does, as plain values."""
        mesh = self._mesh
        counts = self._counting.functions(clock.monotonic())
        return {
            "mesh": mesh.full_name,
            "state": self._state,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_ms": self._started_ms,
            "at_ms": clock.wall_ms(),
            "trigger": "batch" if self._is_batch else "continuous",
            "components": [
                {
                    "name": query.component.name,
                    "state": query.state,
                    "reason": query.reason,
                    "restarts": query.restarts,
                    "tasks": self._hub.tasks(query.component.name),
                    "inputs": list(query.component.inputs),
                    "functions": [step.spec.fqfn for step in query.component.steps],
                    "ended_calls": query.ended,
                }
                for query in self._queries
            ],
            "functions": [
                {
                    "name": step.spec.fqfn,
                    "component": query.component.name,
                    "guarantee": step.spec.processing_guarantees.value,
                    "inputs": [*step.inputs, *step.inner_inputs],
                    "inner_inputs": list(step.inner_inputs),
                    "output": step.spec.output,
                    "group": step.spec.group if step.inputs else "",
                    **counts.get(step.spec.fqfn, {}),
                }
                for query in self._queries
                for step in query.component.steps
            ],
        }

    # -- its end

    def _end(self) -> bool:
        """Let all tasks commit what they have begun, and end the queries; returns if they did."""
        for query in self._queries:
            self._hub.end_tasks(query.component.name)
        is_whole = self._hub.wait_until_none(END_SECONDS)
        self._state = records.STOPPED
        for query in self._queries:
            query.state = records.STOPPED
        self._report()
        for query in self._queries:
            query.planner.close()
        return is_whole

    def close(self, *, stops_queries: bool) -> None:
        """End the queries, in a session that goes on, and remove their checkpoints; after `run`."""
        for query in self._queries:
            if stops_queries and query.query is not None:
                with suppress(Exception):
                    query.query.stop()
            shutil.rmtree(query.folder, ignore_errors=True)


def told(text: str) -> str:
    """Return what an error of a query says: that of the task, without the stacks around it."""
    errors = [f"{name}: {rest}" for name, rest in _ERROR.findall(text) if not name.startswith("Py4J")]
    lines = text.strip().splitlines()
    return (errors[-1] if errors else lines[0] if lines else "no reason is known")[:1000]
