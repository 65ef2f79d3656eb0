"""The driver of a mesh: a query for each component, source and sink, started, looked after, and stopped.

Owns: topics and start offsets before the first batch, how many tasks each query may have, restarts of queries that
failed, the order of an end, what becomes of changes of the definition, what is reported each second.
Must not know: flags and terminals, how tasks work, who decides what a mesh is.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from kop import clock
from kop.client.errors import ClientError, UnreachableError
from kop.client.keyed_topic import KeyedTopic
from kop.client.offsets import Offsets, TopicPartition
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.functions.acks import wait_seconds
from kop.functions.definitions import MeshDefinition
from kop.mesh import records
from kop.mesh.server_facts import made_topics
from kop.mesh.spec import Mesh, QueryPart
from kop.spark.listener import ProgressListener
from kop.spark.mesh.component import TaskComponent, Work
from kop.spark.mesh.counting import Counting, MinuteCounts
from kop.spark.mesh.cutting import components_of, topics_of
from kop.spark.mesh.drain_query import IN_BATCH, DrainQuery
from kop.spark.mesh.driver_election import SESSION_SECONDS, DriverElection
from kop.spark.mesh.edge_rates import EdgeRates, ReadingPart, edge_rate
from kop.spark.mesh.error_texts import told_of
from kop.spark.mesh.execution_order import phases
from kop.spark.mesh.followed_mesh import DefinedMesh, FollowedMesh
from kop.spark.mesh.link import Hub, TaskLine
from kop.spark.mesh.part_options import Part
from kop.spark.mesh.parts import PartQueries
from kop.spark.mesh.planning import Planner
from kop.spark.mesh.run_states import RunStates
from kop.spark.mesh.session import cores_for, cores_of, is_here
from kop.spark.mesh.share import Share
from kop.spark.mesh.source import NAME, WORK, MeshSource, encode
from kop.spark.mesh.starts import Starts

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
TURN_SECONDS: Final = 0.05
"""The seconds between two looks if it is this driver's turn: most have the mesh at once, and wait for nobody."""
ONCE_LOOK_SECONDS: Final = 0.05
"""The seconds between two looks if `once`: the end of the mesh waits for the last one."""
PARTITIONS_SECONDS: Final = 10.0
"""The seconds between two looks for topics and partitions that came later."""
REPORT_SECONDS: Final = 1.0
REPORT_PATIENCE_SECONDS: Final = 2.0
"""The seconds for which the driver tries again to write its report, the state of its parts for `kop mesh status`. The
next report has all that one has which was given up."""
END_SECONDS: Final = 30.0
"""The seconds that the calls that are under way may take when a mesh is to end."""
WELL_SECONDS: Final = 180.0
"""The seconds that a query has to run until its failures before are forgotten."""
DEATHS: Final = 2
"""The number of ends of its worker at one record after which a function runs apart from others."""
_KEPT_TEXTS: Final = 10
"""The number of ended calls of a function that are told."""
BATCH_END_SECONDS: Final = 1.0
"""The seconds that the end of queries waits for their batches; one of a source or a sink that is cut off is done again.
"""
COMMIT_SECONDS: Final = 2.0
"""The seconds that commits of what sinks and queries have read may take when a driver ends."""
BATCH_LOOK_SECONDS: Final = 0.01
NO_REVISION: Final = -1


@dataclass
class _Query:
    """The query of a component, a source, a query of the file, or a sink. That of a component is a DrainQuery with
    `once`; all others are streaming queries of Spark.
    """

    name: str
    kind: str
    begin: Callable[[str, str], Any]
    """Starts it, given the folder of its checkpoint and its name in Spark."""
    work: Work | None = None
    """The work of the tasks of a component; None for a part that is none."""
    planner: Planner | None = None
    """Counts what is left to do; None until the driver asks. The hub has planners of its own, which plan batches."""
    folder: str = ""
    """The folder of the checkpoint if that has to outlive the query; else empty."""
    part: Part | None = None
    query: Any = None
    state: str = records.STARTING
    reason: str = ""
    failures: int = 0
    starts: int = 0
    since: float = 0.0
    since_ms: int = field(default_factory=clock.wall_ms)
    """The time since which it is in its state, in milliseconds since the epoch."""
    next_start_ms: int | None = None
    """The time at which it is started again, if it has failed and waits for that."""
    due: float = 0.0
    """The time at which the query is started again, in seconds of the monotonic clock."""
    checkpoint: str = ""
    counted_batch: int = -1
    """The last batch of a source, query or sink that the driver has counted."""
    reached: Offsets = field(default_factory=dict)
    """The offsets up to which tasks have called messages that a function has to acknowledge itself, by partition."""
    is_stopped: bool = False
    """True if it is not to run: somebody has stopped its part."""

    @property
    def component(self) -> TaskComponent | None:
        """The component whose query it is; None for a part that is none."""
        return None if self.work is None else self.work.component

    def become(self, state: str, seconds: float | None = None) -> None:
        """Set the state, and the present time as that since which it holds. `seconds` are those until the query is
        started again; None if it does not wait for that.
        """
        self.state, self.since_ms = state, clock.wall_ms()
        self.next_start_ms = None if seconds is None else self.since_ms + int(1000 * seconds)

    def remove_checkpoint(self) -> None:
        """Remove the folder of the checkpoint, unless that has to outlive the query."""
        if self.checkpoint and not self.folder:
            shutil.rmtree(self.checkpoint, ignore_errors=True)

    @property
    def is_done(self) -> bool:
        """True if the query was started and has ended without a failure, as the queries of `once` do."""
        return self.query is not None and not self.query.isActive and self.query.exception() is None


class MeshDriver:
    """Runs a mesh in a session of Spark. `settings` are kafka-python's; `say` is given lines for people.

    `once`: batches, until all that there is is done. `run` and what it does is for one thread, `stop` for any.
    """

    def __init__(
        self,
        spark: SparkSession,
        followed: FollowedMesh,
        settings: Mapping[str, Any],
        patience: float,
        say: Callable[[str], None],
        *,
        once: bool = False,
        properties: Mapping[str, str] | None = None,
        checkpoints: str = "",
        spare: int = 0,
        changed: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        """`followed` is started before `run`. `properties` are Kafka's client properties, as `settings` were made of;
        `checkpoints` is the folder for those of sources and sinks. `spare`: how many cores are left to others of the
        session at all times with the trigger continuous, if there are enough. `changed` is told each change of a state.
        """
        self._spare = spare
        self._kafka = {f"kafka.{name}": value for name, value in (properties or {}).items()}
        self._checkpoints = checkpoints or str(checkpoints_folder())
        self._spark = spark
        self._followed = followed
        self._name = followed.name
        self._settings = dict(settings)
        self._patience = patience
        self._say = say
        self._once = once
        self._counting = Counting()
        self._minutes = MinuteCounts()
        self._rows: dict[str, int] = {}
        """The rows that each source, query and sink has read since this driver began, by its full name."""
        self._cut_by: dict[str, int] = {}
        """The number of partitions of each topic when the components were cut."""
        self._partitions_looked = float("-inf")
        self._looked_at: Mapping[str, str] = {}
        """Other writers by topic, as they were compared with the components last."""
        self._stopping = threading.Event()
        self._topic = KeyedTopic(settings, records.TOPIC, patience)
        self._reports = KeyedTopic(settings, records.TOPIC, REPORT_PATIENCE_SECONDS)
        self._edges = EdgeRates(settings)
        self._rates: Mapping[tuple[str, str], float] = {}
        self._states = RunStates(self._name, changed)
        self._started_ms = clock.wall_ms()
        self._reported = float("-inf")
        self._state = records.STARTING
        self._reason = ""
        self._has_ended = False
        """True once this driver does nothing more, and leaves the mesh to others."""
        self._refused = NO_REVISION
        """The revision of the definition that cannot be run."""
        is_local = is_here(spark)
        host = "127.0.0.1" if is_local else str(spark.conf.get("spark.driver.host", socket.gethostname()))
        self._election = DriverElection(settings, patience, self._name)
        self._hub = Hub(
            "127.0.0.1" if is_local else "", self._told, self._over, self._election.may_begin, self._new_planner
        )
        self._address = host, self._hub.port
        self._listeners: dict[str, tuple[Any, ProgressListener]] = {}
        """The session and the listener of each query of a sink or a query of the file, by its name in Spark."""
        # of what runs now
        self._definition: MeshDefinition | None = None
        self._defined: DefinedMesh | None = None
        self._queries: list[_Query] = []
        self._alone: set[str] = set()
        """The functions that get a component of their own."""
        self._in_turns = False
        """True if a task ends when it has done what was there when it began, so that others get its core."""
        self._ended_calls: dict[tuple[str, str], int] = {}
        """The number of times that a call had to be ended, by function and record."""
        self._ended_texts: dict[str, deque[str]] = {}
        """What was told of the last calls that had to be ended, by function."""
        self._suspects: dict[TopicPartition, int] = {}
        """The last such record of each partition."""

    # -- for whoever runs it

    @property
    def _mesh(self) -> Mesh:
        assert self._defined is not None
        return self._defined.mesh

    @property
    def _stopped(self) -> frozenset[str]:
        """The names of the parts that are not to run."""
        return frozenset() if self._definition is None else self._definition.stopped

    @property
    def _is_batch(self) -> bool:
        return self._once or (self._defined is not None and self._mesh.trigger == "batch")

    def stop(self) -> None:
        """Ask the mesh to end, without waiting: `run` returns once the work that was begun is committed, for which it
        waits up to 30 s.
        """
        self._stopping.set()

    def start(self) -> None:
        """Make the topic of reports, and begin to join the group in which the drivers of the mesh decide which one runs
        it. Does not wait for the group, which takes some tenths of a second: the mesh can be defined meanwhile.
        ClientError and UnreachableError if the server does not answer.
        """
        self._topic.make()
        self._election.start()

    def run(self) -> bool:
        """Run until `stop`, until the mesh is deleted, or, with `once`, until all records are done or another driver
        has the mesh. Returns True if all work that was begun was committed within 30 s. The mesh is this driver's until
        `close`, or with `once` until all is done. To be called after `start`, and once the mesh is defined.

        Requests of others are carried out meanwhile: another definition, a stop, a start. ClientError and
        UnreachableError if the first definition cannot be run, or the server does not answer; a later definition that
        cannot be run is told, and another one waited for.
        """
        is_whole = True
        while (definition := self._wait_for_turn()) is not None:
            if not self._take_up(definition):
                continue
            is_over = self._look_after()
            if is_over:  # it takes some tenths of a second to leave the workers, as the end of a batch does
                threading.Thread(target=self._followed.close, name="kop-mesh-leave", daemon=True).start()
            is_whole = self._end(is_over)
            if is_over:
                if self._once and is_whole and not self._stopping.is_set():
                    self._election.leave()  # all is done, or another driver has the mesh
                break
            self._end_queries()
        return is_whole

    def _wait_for_turn(self) -> MeshDefinition | None:
        """Wait until this driver is the one of the mesh and the mesh is to run, and return its definition; None if
        `stop` was called or the mesh is deleted. If the definition could not be run before, waits for another one, too.
        Says what it waits for, and reports the state each second if the mesh is this driver's.
        """
        told = ""
        since = clock.monotonic()
        while not self._stopping.is_set():
            definition = self._followed.definition
            why = ""
            if definition is None:
                self._say(f"{self._name} is deleted")
                return None
            if not self._election.is_mine:
                if clock.monotonic() > since + 3 * SESSION_SECONDS or self._election.is_lost:
                    why = f"is driven by {self._election.who()}; waiting to take over"
            elif definition.is_stopped:
                why = f"is stopped; waiting for: kop mesh start {self._name}"
                self._state, self._reason = records.STOPPED, ""
            elif definition.revision != self._refused:
                return definition
            if self._election.is_mine:
                self._report_if_due(clock.monotonic())
            self._tell_changes("" if self._election.is_mine else why)
            if why and why != told:
                told = why
                self._say(f"{self._name} {why}")
            self._stopping.wait(TURN_SECONDS)
        if self._election.is_mine:
            self._state, self._has_ended = records.STOPPED, True
            self._report()
        return None

    # -- its beginning

    def _take_up(self, definition: MeshDefinition) -> bool:
        """Start the mesh of a definition, with all counts of ended calls at zero; returns True if it runs. False if it
        cannot be run, so that its revision is not tried again, or the server is away, both with a line for people, or
        if its code is not there yet. The errors of the first two are raised if no definition was taken up before.
        """
        is_first = self._definition is None
        try:
            defined = self._followed.defined(definition)
            if defined is None:
                self._stopping.wait(LOOK_SECONDS)
                return False
            self._definition, self._defined = definition, defined
            self._queries, self._suspects = [], {}
            self._alone = {part.name for part in defined.mesh.functions} & definition.stopped
            self._ended_calls, self._ended_texts = {}, {}
            self._begin()
        except ClientError as error:
            self._refused, self._state, self._reason = definition.revision, records.FAILED, str(error)
            if is_first:
                self._has_ended = True
                self._report()
                raise
            self._say(f"{self._name} does not run as it is defined now, and waits for another update: {error}")
            return False
        except UnreachableError as error:
            if is_first:
                raise
            self._say(f"{self._name} is begun again in a moment: {error}")
            return False
        return True

    def _begin(self) -> None:
        mesh = self._mesh
        sources, queries, sinks = (
            [self._of_part(part) for part in parts] for parts in (mesh.sources, mesh.queries, mesh.sinks)
        )  # first: if a part is refused, nothing has been made yet
        components = self._lay_out()
        each = self._share_cores(components)
        self._spark.dataSource.register(MeshSource)
        self._queries = [
            *sources,
            *(self._of_component(component, each) for component in components),
            *queries,
            *sinks,
        ]
        if not self._once:
            for query in self._queries:
                if not query.is_stopped:
                    self._start(query)
        self._state, self._reason = records.RUNNING, ""
        running = [query for query in self._queries if not query.is_stopped]
        names = [query.name for query in running if query.part is None]
        count = "1 component" if len(names) == 1 else f"{len(names)} components"
        told = [f"{count} ({', '.join(names)})" if names else count]
        told += [f"{query.kind} {query.name}" for query in running if query.part is not None]
        stopped = ", ".join(query.name for query in self._queries if query.is_stopped)
        told += ["batch" if self._is_batch else "continuous"]
        self._say(f"{mesh.full_name} runs in {', '.join(told)}{f'; stopped: {stopped}' if stopped else ''}")

    def _of_component(self, component: TaskComponent, tasks: int) -> _Query:
        work = Work(
            component,
            self._settings,
            self._patience,
            self._address,
            self._hub.token,
            tasks,
            None if self._in_turns else self._mesh.batch_seconds,
            self._once,
            {topic: self._cut_by[topic] for topic in component.inputs if topic in self._cut_by},
        )

        def job_of(shares: Sequence[Share]) -> Callable[[], None]:
            rows = self._spark.read.format(NAME).option(WORK, encode(self._with_suspects(work), shares)).load()
            save: Callable[[], None] = rows.write.format("noop").mode("overwrite").save
            return save

        def begin(checkpoint: str, name: str) -> Any:
            self._hub.allow(component.name)
            if self._once:
                context, may_begin = self._spark.sparkContext, lambda: not self._hub.is_ending(component.name)
                return DrainQuery(context, name, lambda: Planner(work), job_of, may_begin)
            rows = self._spark.readStream.format(NAME).option(WORK, encode(self._with_suspects(work))).load()
            return rows.writeStream.format("noop").queryName(name).option("checkpointLocation", checkpoint).start()

        made = _Query(component.name, "component", begin, work)
        return _stopped(made) if self._is_to_stand(component) else made

    def _is_to_stand(self, component: TaskComponent) -> bool:
        """Return if a component is not to be started, since a function of it is stopped: that function has the
        component for itself.
        """
        return any(step.spec.name in self._stopped for step in component.steps)

    def _with_suspects(self, work: Work) -> Work:
        suspects = {
            place: offset for place, offset in list(self._suspects.items()) if place[0] in work.component.inputs
        }
        return replace(work, suspects=suspects)

    def _of_part(self, part: Part) -> _Query:
        parts = PartQueries(self._spark, self._kafka, self._mesh.kop_options, self._listeners)
        parts.check(part)
        trigger, group = self._trigger(part), self._group(part)

        def begin(checkpoint: str, name: str) -> Any:
            return parts.start(part, checkpoint=checkpoint, trigger=trigger, name=name, group=group)

        made = _Query(part.name, part.kind, begin, folder=self._folder(part), part=part)
        return _stopped(made) if part.name in self._stopped else made

    def _trigger(self, part: Part) -> dict[str, Any]:
        if self._once:
            return {"availableNow": True}
        is_long = isinstance(part, QueryPart) and not self._is_batch
        return {"processingTime": f"{int(1000 * self._mesh.batch_seconds) if is_long else 1000} milliseconds"}

    def _folder(self, part: Part) -> str:
        return f"{self._checkpoints}/{self._mesh.full_name}/{part.name}"

    def _group(self, part: Part) -> str:
        return f"{self._mesh.tenant}/{self._mesh.namespace}/{part.name}"

    def _share_cores(self, components: Sequence[TaskComponent]) -> int:
        """Return the number of tasks that each component may have at once, at least 1, and set if components take
        turns. Waits for the cores of a cluster, up to 60 s. Components that are stopped take no cores. ClientError if
        all others are to run at all times, and there are too few cores for those that the mesh is cut into.

        A function that is set apart while the mesh runs must not end the others: if that makes one component too many,
        they take turns, as with the trigger batch.
        """
        mesh, count = self._mesh, sum(1 for component in components if not self._is_to_stand(component))
        others = any(part.name not in self._stopped for part in (*mesh.sources, *mesh.queries, *mesh.sinks))
        cores = cores_of(self._spark, 1 if self._is_batch else count + others, self._stopping.wait)
        spare = 0 if self._is_batch else self._spare
        slots = cores_for(count, cores, others=others, spare=spare)
        self._in_turns = self._is_batch or slots < count
        if self._in_turns and not self._is_batch:
            if not self._alone:
                more = " and one for sources and sinks" if others else ""
                raise ClientError(
                    f"give the mesh {count + others} cores (--master local[{count + others}], or more executors), or "
                    f"let trigger be batch: each of its {count} components has one at all times{more}, and Spark has "
                    f"{cores}"
                )
            self._say(
                f"{self._name} takes turns from now on, since {cores} cores are too few for {count} components at all "
                f"times: give it {count + others} cores (--master local[{count + others}], or more executors)"
            )
        return max(1, slots if self._in_turns else slots // max(1, count))

    def _make(self, writer: WriteClient, topics: Iterable[str]) -> None:
        for topic in dict.fromkeys(topics):
            if writer.make_topic(topic):
                self._say(f"made the topic {topic}")

    def _lay_out(self) -> list[TaskComponent]:
        """Make the topics, cut the mesh into components, commit the offsets at which functions begin, so that no record
        is missed or done twice, and return the components. To be called while no query of the mesh runs.

        A function that still has records of a topic to read that others would hand to it gets a component of its own.
        Writes both the topics that functions are called with and the groups of parts to the topic of records of meshes,
        and deletes the offsets of groups that parts had and do not have any more.
        """
        writer = WriteClient(self._settings, self._patience)
        reader = ReadClient(self._settings, int(self._patience * 1000))
        try:
            self._make(writer, made_topics(self._mesh))
            there = _counts(reader)
            key, groups = (records.key(kind, self._name) for kind in (records.LAYOUT, records.GROUPS))
            known = self._topic.read()
            before = records.decode(known.get(key, b""))
            assert self._defined is not None
            starts = Starts(reader, writer, before)
            others = self._followed.other_writers()
            for who in others.unknown:
                self._say(f"{who} is not readable by this version of kop: the topics it writes are not known")
            while True:
                components = components_of(self._defined, there, self._alone, others.by_topic)
                late = starts.not_drained(components)
                if not late:
                    break
                for name, (topic, count) in late.items():
                    self._say(f"{name} has {count} records of {topic} to do: it runs apart until the next start")
                self._alone |= late.keys()
            self._cut_by = there
            starts.commit(components)
            inner = {step.spec.fqfn: list(step.inner_inputs) for part in components for step in part.steps}
            own = self._own_groups()
            self._topic.put({key: records.encode(inner), groups: records.encode(own)})
            self._clean(writer, records.decode(known.get(groups, b"")), own)
            return components
        finally:
            reader.close()
            writer.close()

    def _own_groups(self) -> dict[str, str]:
        """Return, by full name, the consumer groups whose offsets are deleted when their part is gone or has another
        group: those of sinks and queries, and of functions with cleanupSubscription.
        """
        own = {part.spec.fqfn: part.spec.group for part in self._mesh.functions if part.spec.cleanup_subscription}
        others: list[Part] = [*self._mesh.sinks, *self._mesh.queries]
        return own | {self._group(part): self._group(part) for part in others}

    def _clean(self, writer: WriteClient, before: Mapping[str, Any], own: Mapping[str, str]) -> None:
        """Delete the offsets of groups of parts that do not exist any more or have another group now: those in `before`
        that the part does not have in `own`, unless a part, another function or another mesh has the group, or the part
        has no cleanupSubscription now. A group that cannot be deleted is logged and left.
        """
        kept = {part.spec.group for part in self._mesh.functions} | set(own.values()) | self._followed.other_groups()
        stays = {part.spec.fqfn for part in self._mesh.functions} - own.keys()
        gone = {str(group) for name, group in before.items() if own.get(name) != group and name not in stays}
        for group in gone - kept:
            try:
                writer.delete_group(group)
            except Exception as error:
                log.warning("delete the offsets that no part has any more: kop groups delete %s (%r)", group, error)

    def _start(self, query: _Query) -> None:
        """Start a query. The checkpoint of a component is new each time, since the offsets are those of groups. A query
        that cannot be started is marked as failed, to be started again later; with `once`, ClientError if another
        attempt would fail as well.
        """
        is_stream = query.part is not None or not self._once
        query.checkpoint = query.folder or (tempfile.mkdtemp(prefix="kop-mesh-") if is_stream else "")
        query.starts += 1
        mark = f" {query.starts}" if query.component is not None else ""
        try:
            query.query = query.begin(query.checkpoint, f"{self._mesh.full_name}/{query.name}{mark}")
        except Exception as error:
            reason = str(error) if isinstance(error, ClientError) else told_of(error)
            if self._once and isinstance(error, ClientError | AnalysisException):
                raise ClientError(reason) from None  # another attempt would end as this one, and the others wait for it
            self._failed(query, reason, clock.monotonic())
            return
        query.since = clock.monotonic()
        query.become(records.RUNNING)

    # -- while it runs

    def _look_after(self) -> bool:
        """Restart failed queries, report, and with `once` start the next queries when those before them are done, until
        the mesh is to be begun anew, stopped or ended, or another driver has it. Returns True if this driver is to end:
        `stop` was called, or with `once` all is done or another driver has the mesh.
        """
        left = self._phases()
        current: list[_Query] = [] if self._once else self._queries
        seconds = 0.0
        while not self._is_stopped_within(seconds):
            seconds = ONCE_LOOK_SECONDS if self._once else LOOK_SECONDS
            now = clock.monotonic()
            if self._election.is_lost:
                self._say(f"{self._name} has another driver now, {self._election.who()}")
                return self._once
            if self._is_changed() or (not self._once and (self._has_other_topics(now) or self._has_other_writers())):
                return False
            for query in current:
                self._look_at(query, now)
            if current is self._queries and (apart := self._to_set_apart()):
                try:
                    self._set_apart(apart)
                except (ClientError, UnreachableError) as error:
                    self._say(f"{self._name} begins anew: {error}")
                    return False
                current = self._queries
            if self._once and self._are_done(current):
                for query in current:
                    self._hub.end_tasks(query.name)
                if not left:
                    return True
                current = [query for query in left.pop(0) if not query.is_stopped]
                for query in current:
                    self._start(query)
            self._report_if_due(now)
            self._tell_changes()
        return True

    def _is_stopped_within(self, seconds: float) -> bool:
        """Wait for so many seconds, or until `stop` is called; with `once` not longer than until the last task ends.
        Returns True if `stop` was called.
        """
        if self._once and self._hub.tasks():
            self._hub.wait_until_none(seconds)
            seconds = 0.0
        return self._stopping.wait(seconds)

    def _phases(self) -> list[list[_Query]]:
        """Return the queries in groups, for a mesh in which each runs once to its end: those of a group run at the same
        time, the groups one after the other.
        """
        components = {
            step.spec.name: query.name
            for query in self._queries
            if query.component is not None
            for step in query.component.steps
        }
        by_name = {query.name: query for query in self._queries}
        return [[by_name[name] for name in names] for names in phases(self._mesh, components)]

    def _is_changed(self) -> bool:
        """Return True if all queries have to end: the mesh was deleted, stopped or defined anew, or other parts of it
        are to stand still than before. Else restart the parts for which somebody has asked that, and return False.
        """
        before, now = self._definition, self._followed.definition
        assert before is not None
        if now is None or now.is_stopped:
            return True
        if now.stopped != before.stopped:
            told = [
                f"{what} {', '.join(sorted(parts))}"
                for what, parts in (
                    ("stopped", now.stopped - before.stopped),
                    ("started", before.stopped - now.stopped),
                )
                if parts
            ]
            self._say(f"{self._name} begins anew: {now.by} has {' and '.join(told)}")
            return True
        if now.version != before.version:
            self._say(f"{self._name} begins anew: {now.by} has changed it (revision {now.revision})")
            return True
        for part, revision in now.restarts.items():
            if before.restarts.get(part) != revision:
                self._restart(part)
        self._definition = now
        return False

    def _has_other_topics(self, now: float) -> bool:
        """Return if an input has more partitions than when the components were cut, or a new topic matches a pattern;
        says which. Asks the server every 10 s, and returns False in between or if it does not answer.
        """
        if now < self._partitions_looked + PARTITIONS_SECONDS or self._defined is None:
            return False
        self._partitions_looked = now
        try:
            reader = ReadClient(self._settings, int(REPORT_PATIENCE_SECONDS * 1000))
            try:
                there = _counts(reader)
            finally:
                reader.close()
        except Exception as error:
            log.info("further partitions of inputs are looked for again in a moment: %s", error)
            return False
        components = [query.component for query in self._queries if query.component is not None]
        steps = [step for component in components for step in component.steps]
        read = {topic for step in steps for topic in (*step.inputs, *step.inner_inputs)}
        grown = {topic for topic in read if there.get(topic, 0) > self._cut_by.get(topic, there.get(topic, 0))}
        grown |= {topic for step in steps for topic in topics_of(step.spec, there)} - read
        if grown:
            self._say(f"{self._name} begins anew with the further partitions of {', '.join(sorted(grown))}")
        return bool(grown)

    def _has_other_writers(self) -> bool:
        """Return if somebody else writes a topic that goes from function to function within a component, so that the
        components have to be cut anew; says who. False if the other writers are those of the last call.
        """
        others = self._followed.other_writers().by_topic
        if others is self._looked_at:
            return False
        self._looked_at = others
        components = [query.component for query in self._queries if query.component is not None]
        for topic in sorted({topic for component in components for topic in component.inner} & others.keys()):
            self._say(f"{self._name} begins anew: {others[topic]} writes {topic}, too")
            return True
        return False

    def _restart(self, part: str) -> None:
        """End the query that runs a part, so that `_look_at` starts it again; all queries if `part` is empty. Waits up
        to 30 s for the tasks of each. One that waits after a failure is started without that delay; one that is not
        started yet, or is stopped, is left.
        """
        for query in self._queries:
            functions = [] if query.component is None else [step.spec.name for step in query.component.steps]
            is_begun = query.query is not None or query.next_start_ms is not None
            if part in {"", query.name, *functions} and is_begun:
                self._say(f"{query.name} starts again, as somebody has asked for")
                self._hub.end_tasks(query.name)
                self._hub.wait_until_none(END_SECONDS, query.name)
                if query.query is not None:
                    _stop(query, clock.monotonic() + BATCH_END_SECONDS)
                query.remove_checkpoint()
                query.query, query.due = None, 0.0

    def _to_set_apart(self) -> set[str]:
        """Return the names of the functions that have ended their worker twice at the same record and share a component
        with other functions.
        """
        guilty = {name for (name, _), count in list(self._ended_calls.items()) if count >= DEATHS}
        return {
            step.spec.name
            for query in self._queries
            if query.component is not None and len(query.component.steps) > 1
            for step in query.component.steps
            if step.spec.fqfn in guilty
        }

    def _set_apart(self, names: set[str]) -> None:
        """Give functions components of their own: end the queries of all components, cut the mesh anew, and start those
        that are not stopped. Sources, queries and sinks go on. ClientError and UnreachableError if the server does not
        do its part: the queries of components have ended then, and the mesh is to be begun anew.
        """
        self._say(
            f"{', '.join(sorted(names))} gets a query of its own: it has ended its worker {DEATHS} times at a record"
        )
        old = [query for query in self._queries if query.component is not None]
        end = clock.monotonic() + BATCH_END_SECONDS
        for query in old:
            self._hub.end_tasks(query.name)
            if query.query is not None:
                _stop(query, end)
            query.remove_checkpoint()
        self._hub.wait_until_none(END_SECONDS)
        self._alone |= names
        components = self._lay_out()
        each = self._share_cores(components)
        new = [self._of_component(component, each) for component in components]
        self._queries = [query for query in self._queries if query.component is None] + new
        for query in new:
            if not query.is_stopped:
                self._start(query)

    def _look_at(self, query: _Query, now: float) -> None:
        """Start a query that is not running, once its delay is over. If it has ended, mark it as failed, to be started
        again later, unless it has ended well with `once`. If it has run for 180 s, forget its failures. A stopped one
        is left. With `once`, ClientError if Spark cannot read the query's source: another attempt would fail as well.
        """
        if query.is_stopped:
            return
        if query.query is None:
            if now >= query.due:
                self._start(query)
            return
        if query.failures and now > query.since + WELL_SECONDS:
            query.failures, query.reason = 0, ""
        if query.query.isActive or (self._once and query.is_done):
            return
        error = query.query.exception()
        reason = "its query has ended" if error is None else told_of(error)
        if self._once and isinstance(error, AnalysisException):
            raise ClientError(reason)
        self._failed(query, reason, now)

    def _failed(self, query: _Query, reason: str, now: float) -> None:
        query.reason = reason
        query.failures += 1
        seconds = max(1.0, wait_seconds(query.failures + 2))
        query.query, query.due = None, now + seconds
        query.become(records.FAILED, seconds)
        query.remove_checkpoint()
        self._say(f"{query.name} has failed, and starts again in {seconds:.0f} s: {query.reason}")

    def _are_done(self, queries: Sequence[_Query]) -> bool:
        """Return if none of these queries has anything left to do, and no task of the mesh runs. A component is done
        when its groups have committed all, or its function was called with all that it has to acknowledge itself.
        """
        for query in queries:
            if query.work is None:
                if not query.is_done:
                    return False
                continue
            if query.query is None or self._hub.tasks():
                return False
            query.planner = query.planner or Planner(query.work)
            if query.planner.left(query.reached):
                return False
        return not self._hub.tasks()

    def _new_planner(self, component: str) -> Planner:
        works = [query.work for query in self._queries if query.work is not None and query.name == component]
        if not works:
            raise ClientError(f"the mesh has no component {component} any more")
        return Planner(works[0])

    def _told(self, line: TaskLine) -> None:
        told = line.told
        if "functions" in told:
            self._counting.told(line, told["functions"])
        if "reached" in told:
            reached = {(str(topic), int(number)): int(offset) for topic, number, offset in told["reached"]}
            for query in self._queries:
                if query.name == line.component:
                    query.reached |= reached
        if "killed" in told:
            self._say(str(told["text"]))
            if told["suspect"] is not None:
                topic, partition, offset = told["suspect"]
                self._suspects[str(topic), int(partition)] = int(offset)
            place = str(told["killed"]), str(told["at"])
            self._ended_calls[place] = self._ended_calls.get(place, 0) + 1
            texts = self._ended_texts.setdefault(place[0], deque(maxlen=_KEPT_TEXTS))
            texts.append(str(told["text"]))

    def _told_of(self, query: _Query) -> list[str]:
        steps = () if query.component is None else query.component.steps
        return [text for step in steps for text in list(self._ended_texts.get(step.spec.fqfn, ()))]

    def _over(self, line: TaskLine) -> None:
        self._counting.over(line)

    def _report_if_due(self, now: float) -> None:
        if now >= self._reported + REPORT_SECONDS:
            self._reported = now
            self._report()

    def _report(self) -> None:
        reading = [
            ReadingPart(step.spec.fqfn, step.spec.group, step.inputs)
            for query in self._queries
            if query.component is not None
            for step in query.component.steps
            if len(step.inputs) + len(step.inner_inputs) > 1
        ]
        self._rates = self._edges.rates(reading, clock.monotonic())
        try:
            value = records.encode(self.report())
            self._reports.put({records.key(records.REPORT, self._name): value})
        except Exception as error:
            log.warning("the report of %s is written again in a moment: %s", self._name, error)

    def _tell_changes(self, waits: str = "") -> None:
        """Give the state of the mesh and its components to `changed` if they differ from what it was given last.
        `waits` says why this driver does not run the mesh; empty if it does.
        """
        revision = None if self._definition is None else self._definition.revision
        state, reason = (records.WAITING, waits) if waits else (self._state, self._reason)
        self._states.look(state, reason, revision, ((q.name, q.state, q.reason) for q in self._queries))

    def report(self) -> dict[str, Any]:
        """Return the state of the mesh and its components, counts and rates of its parts, and rates of its edges, as
        plain values. The counts are kept for the rates of the next report.
        """
        counts = self._counting.functions(clock.monotonic())
        parts = [part | self._minutes.of(part["name"], part) for part in self._part_reports(counts)]
        return {
            "mesh": self._name,
            "state": self._state,
            "reason": self._reason,
            "revision": None if self._definition is None else self._definition.revision,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_ms": self._started_ms,
            "at_ms": clock.wall_ms(),
            "trigger": "batch" if self._is_batch else "continuous",
            "drives": True,
            "ended": self._has_ended,
            "components": [
                {
                    "name": query.name,
                    "kind": query.kind,
                    "state": query.state,
                    "reason": query.reason,
                    "since_ms": query.since_ms,
                    "next_start_ms": query.next_start_ms,
                    "restarts": max(0, query.starts - 1),
                    "tasks": self._hub.tasks(query.name),
                    "functions": [step.spec.fqfn for step in query.component.steps] if query.component else [],
                    "ended_calls": self._told_of(query),
                }
                for query in self._queries
            ],
            "parts": parts,
            "edges": [
                {"part": part["name"], "topic": topic, "rate": edge_rate(part, topic, self._rates)}
                for part in parts
                for topic in part["inputs"]
            ],
        }

    def _part_reports(self, counts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            *(self._part_report(query, query.part) for query in self._queries if query.part),
            *(
                {
                    "name": step.spec.fqfn,
                    "kind": "function",
                    "component": query.name,
                    "guarantee": step.spec.processing_guarantees.value,
                    "inputs": [*step.inputs, *step.inner_inputs],
                    "inner_inputs": list(step.inner_inputs),
                    "output": step.spec.output,
                    "group": step.spec.group if step.inputs else "",
                    **counts.get(step.spec.fqfn, {}),
                }
                for query in self._queries
                if query.component is not None
                for step in query.component.steps
            ),
        ]

    def _part_report(self, query: _Query, part: Part) -> dict[str, Any]:
        name = self._group(part)
        progress = None if query.query is None else query.query.lastProgress
        if query.query is not None:
            for some in query.query.recentProgress:
                if some["numInputRows"] and int(some["batchId"]) > query.counted_batch:
                    query.counted_batch = int(some["batchId"])
                    self._rows[name] = self._rows.get(name, 0) + int(some["numInputRows"])
        rows = self._rows.get(name, 0)
        rate = 0.0 if progress is None else float(progress["processedRowsPerSecond"] or 0.0)
        return {
            "name": name,
            "kind": part.kind,
            "component": query.name,
            "inputs": list(part.inputs),
            "inner_inputs": [],
            "output": part.outputs[0] if part.outputs else "",
            "group": name if part.inputs else "",
            "received": rows,
            "processed": rows,
            "rate": rate if query.query is not None and query.query.isActive else 0.0,
        }

    # -- its end

    def _end(self, is_over: bool) -> bool:
        """Tell all tasks to commit what they have begun and to end, and wait for that, up to 30 s; returns True if all
        have. Batches of sources, queries and sinks get 1 s. Spark's queries themselves are left to `_end_queries`.

        Reports all queries as stopped, unless another driver has the mesh, and the mesh as starting if it begins anew,
        else as stopped. It does not begin anew if the driver ends (`is_over`), another one has it, or it is to be
        stopped or deleted.
        """
        for query in self._queries:
            self._hub.end_tasks(query.name)
        others = [query.query for query in self._queries if query.part is not None and query.query is not None]
        end = clock.monotonic() + BATCH_END_SECONDS
        while any(query.isActive and query.status["isTriggerActive"] for query in others) and clock.monotonic() < end:
            threading.Event().wait(0.05)  # Spark does not say when a batch ends
        is_whole = self._hub.wait_until_none(END_SECONDS)
        if is_over:
            self._commit_progress()
        wanted = self._followed.definition
        begins_anew = not (is_over or self._election.is_lost or wanted is None or wanted.is_stopped)
        self._state = records.STARTING if begins_anew else records.STOPPED
        self._has_ended = is_over
        for query in self._queries:
            query.become(records.STOPPED)
        if not self._election.is_lost:
            self._report()
        self._tell_changes()
        self._close_planners()
        return is_whole

    def _commit_progress(self) -> None:
        """Commit what sinks and queries have read to their groups, for which each has 1 s, and all have 2 s: who ends
        Spark now does not hear of their last batches any more.
        """
        end = clock.monotonic() + COMMIT_SECONDS
        for query in self._queries:
            if clock.monotonic() > end:
                return  # the server is away: a lag that is told too large goes with the next run
            _, listener = self._listeners.get(f"{self._mesh.full_name}/{query.name}", (None, None))
            progress = None if listener is None or query.query is None else query.query.lastProgress
            if listener is not None and progress is not None:
                listener.finish(progress)

    def _close_planners(self) -> None:
        for query in self._queries:
            planner, query.planner = query.planner, None
            if planner is not None:
                planner.close()

    def _end_queries(self) -> None:
        """End the queries of the mesh in Spark, so that others can start, and remove the checkpoints of components.
        Reports still name the queries.
        """
        end = clock.monotonic() + BATCH_END_SECONDS
        for query in self._queries:
            if query.query is not None:
                _stop(query, end)
            query.query = None
        self._remove_checkpoints()

    def _remove_checkpoints(self) -> None:
        for query in self._queries:
            query.remove_checkpoint()

    def close(self, *, stops_queries: bool) -> None:
        """Let another driver have the mesh, and close all connections; to be called after `run`, or instead of it.
        `stops_queries`: True if the session goes on, so that the queries are ended first; False if Spark has ended, and
        what its queries had not finished is done again by the next driver.
        """
        if stops_queries:
            self._end_queries()
        else:
            self._remove_checkpoints()
        self._close_planners()
        self._election.close()
        for other in (self._hub, self._topic, self._reports, self._edges):
            other.close()


def _stop(query: _Query, end: float) -> None:
    """Stop a query in Spark. The batch of a component, whose tasks have ended, is waited for before, until `end`, in
    seconds of the monotonic clock, at most: Spark ends the Python workers of a batch that it breaks off, and the next
    query would have to wait for new ones.
    """
    with suppress(Exception):
        while query.component and query.query.status["message"] == IN_BATCH and clock.monotonic() < end:
            threading.Event().wait(BATCH_LOOK_SECONDS)  # Spark does not say when a batch ends
    with suppress(Exception):
        query.query.stop()


def _stopped(query: _Query) -> _Query:
    """Return a copy of the query that is marked as stopped, so that it is not started."""
    return replace(query, is_stopped=True, state=records.STOPPED)


def checkpoints_folder() -> Path:
    """Return the default folder of the checkpoints of sources, queries and sinks, below the user's XDG_DATA_HOME."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "kop" / "meshes"


def _counts(reader: ReadClient) -> dict[str, int]:
    """Return the number of partitions of each topic that the server does not call internal."""
    return {name: len(topic.leaders) for name, topic in reader.topics(None).items() if not topic.internal}
