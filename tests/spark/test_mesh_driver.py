"""The driver of a mesh without Spark: what becomes of queries when the server is away, parts are refused, restarted."""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spark.pyspark_names import pyspark_names
from support.waiting import wait_until

from kop.client.errors import ClientError, UnreachableError
from kop.client.keyed_topic import KeyedTopic
from kop.client.write_client import WriteClient
from kop.functions.definitions import MeshDefinition
from kop.functions.packages import Package
from kop.mesh import records
from kop.mesh.file import read_mesh
from kop.mesh.server_facts import OtherWriters
from kop.spark.group_progress import GroupProgress
from kop.spark.mesh.component import Work
from kop.spark.mesh.followed_mesh import DefinedMesh
from kop.spark.mesh.link import DriverLink
from kop.spark.mesh.share import Share
from kop.testing import Broker

with pyspark_names():
    from pyspark.errors import AnalysisException

    from kop.spark.listener import ProgressListener
    from kop.spark.mesh import driver
    from kop.spark.mesh.driver import DEATHS, MeshDriver
    from kop.spark.mesh.parts import PartQueries
    from kop.spark.mesh.source import WORK

TWO = """\
name: {name}
functions:
- {{name: {name}-a, className: f, py: f.py, inputs: [{name}-in], output: {name}-t}}
- {{name: {name}-b, className: f, py: f.py, inputs: [{name}-t], output: {name}-u}}
"""
SINK = "sinks: [{{name: {name}-s, inputs: [{name}-u], format: noop}}]\n"
QUERY = "queries: [{{name: {name}-q, sql: select * from `{name}-u`, output: {name}-w}}]\n"


class QueryOfTest:
    """A query of Spark that runs until it is stopped, or fails."""

    def __init__(self) -> None:
        self.isActive = True
        self.status = {"isTriggerActive": False}
        self.recentProgress: list[dict[str, Any]] = []
        self.failure: Exception | None = None

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """What it has told last."""
        return self.recentProgress[-1] if self.recentProgress else None

    def read(self, batch: int, rows: int, **ends: int) -> None:
        """Tell a batch, which has read up to these offsets of the first partitions of topics."""
        source = {"endOffset": {topic: {"0": end} for topic, end in ends.items()}}
        self.recentProgress.append(
            {"batchId": batch, "numInputRows": rows, "processedRowsPerSecond": 1.0, "sources": [source]}
        )

    def exception(self) -> Exception | None:
        """Return why it has failed."""
        return self.failure

    def stop(self) -> None:
        """End it."""
        self.isActive = False


class SparkOfTest:
    """A session whose queries do nothing."""

    def __init__(self) -> None:
        self.conf = {"spark.master": "local[8,4]"}
        self.sparkContext = SimpleNamespace(
            defaultParallelism=8, setJobGroup=lambda *_: None, cancelJobGroup=lambda _: None
        )
        self.dataSource = SimpleNamespace(register=lambda _: None)
        self.folders: list[str] = []
        """The checkpoints of the queries of components that were started."""
        self.queries: list[QueryOfTest] = []
        self.works: list[Work] = []
        self.shares: list[tuple[Share, ...]] = []
        """The shares of tasks in each of `works`; none for a stream."""
        self.job: Callable[[], None] = lambda: None

    def save(self) -> None:
        """Run a job."""
        self.job()

    @property
    def readStream(self) -> SparkOfTest:
        """A reader, which is a writer, too, as all that this returns."""
        return self

    load = format = queryName = writeStream = read = write = mode = None

    def start(self) -> QueryOfTest:
        """Start a query."""
        self.queries.append(QueryOfTest())
        return self.queries[-1]


def chained(spark: SparkOfTest) -> SparkOfTest:
    def option(name: str, value: str) -> SparkOfTest:
        if name == WORK:
            query = pickle.loads(base64.b64decode(value))
            spark.works.append(pickle.loads(query.work))
            spark.shares.append(query.shares)
        if name == "checkpointLocation":
            spark.folders.append(value)
        return spark

    made: Any = spark
    made.format = made.queryName = made.mode = lambda _: spark
    made.load = lambda: spark
    made.option, made.writeStream, made.read, made.write = option, spark, spark, spark
    return spark


class FollowedOfTest:
    """The definition of a mesh, which a test changes."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.revision = 0
        self.groups: set[str] = set()
        self.define(text)

    def define(self, text: str, **fields: Any) -> None:
        """Send another definition."""
        self.revision += 1
        given: dict[str, Any] = {"version": self.revision, **fields}
        self.text = text
        self.definition = MeshDefinition(name=self.name, text=text, revision=self.revision, **given)

    def defined(self, definition: MeshDefinition) -> DefinedMesh:
        """Return the mesh of a definition."""
        mesh = read_mesh(definition.text, "mesh.yaml")
        return DefinedMesh(mesh, {part.spec.fqfn: Package("f.py", b"") for part in mesh.functions})

    def other_writers(self) -> OtherWriters:
        """Return that nobody else writes."""
        return OTHERS

    def other_groups(self) -> set[str]:
        """Return the groups that a test has named."""
        return self.groups

    def close(self) -> None:
        """Do nothing."""


OTHERS = OtherWriters()


class Drive:
    """A driver that runs on a thread."""

    def __init__(self, broker: Broker, folder: Path, name: str, text: str, *, once: bool = False) -> None:
        broker.create_topic(f"{name}-in", partitions=1)
        self.broker = broker
        self.settings = {"bootstrap_servers": [broker.bootstrap]}
        self.said: list[str] = []
        self.spark = chained(SparkOfTest())
        self.followed = FollowedOfTest(f"public/default/{name}", text.format(name=name))
        self.driver = MeshDriver(
            self.spark,
            self.followed,  # type: ignore[arg-type]
            self.settings,
            20.0,
            self.said.append,
            properties={"bootstrap.servers": broker.bootstrap},
            checkpoints=str(folder),
            once=once,
        )
        self.failures: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.driver.start()
            self.driver.run()
        except BaseException as error:
            self.failures.append(error)

    def begin(self) -> None:
        """Run the driver until its mesh runs."""
        self.thread.start()
        self.wait_for(lambda: self.driver.report()["state"] == records.RUNNING, "the mesh to run")

    def wait_for(self, is_there: Any, what: str) -> None:
        """Wait, but not longer than the driver runs."""
        wait_until(lambda: is_there() or not self.thread.is_alive(), what, 30.0)
        assert not self.failures
        assert is_there()

    def has_said(self, text: str) -> bool:
        """Return if a line for people has this text."""
        return any(text in line for line in self.said)

    def components(self) -> list[str]:
        """Return the names of the components that run."""
        return [made["name"] for made in self.driver.report()["components"] if made["state"] == records.RUNNING]

    def last_report(self) -> dict[str, Any]:
        """Return what `kop mesh status` reads of it."""
        with closing(KeyedTopic(self.settings, records.TOPIC, 20.0)) as topic:
            return records.decode(topic.read()[records.key(records.REPORT, self.followed.name)])

    def kill(self, function: str) -> None:
        """Tell the driver, as tasks do, that a function has ended its worker so often that it is to run apart."""
        work = self.spark.works[-1]
        link = DriverLink(work.hub, work.token, work.component.name, lambda: None)
        for _ in range(DEATHS):
            link.tell(killed=f"public/default/{function}", text="it has ended", at=["x", 0, 1], suspect=None)
        link.close()

    def end(self) -> None:
        """End the driver."""
        self.driver.stop()
        if self.thread.ident is not None:
            self.thread.join(30.0)
        self.driver.close(stops_queries=True)


@pytest.fixture
def drives(kop_shared_broker: Broker, tmp_path: Path) -> Iterator[Any]:
    made: list[Drive] = []

    def new(name: str, text: str, **options: Any) -> Drive:
        made.append(Drive(kop_shared_broker, tmp_path, name, text, **options))
        return made[-1]

    yield new
    for drive in made:
        drive.end()


def test_a_mesh_is_begun_anew_if_the_server_is_away_when_a_function_is_set_apart(
    drives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = drives("apart", TWO)
    drive.begin()
    assert drive.components() == ["apart-a"]
    make, away = WriteClient.make_topic, [True]

    def make_topic(client: WriteClient, *given: Any, **more: Any) -> Any:
        if away:
            away.pop()
            raise UnreachableError("the server has gone")
        return make(client, *given, **more)

    monkeypatch.setattr(WriteClient, "make_topic", make_topic)
    drive.kill("apart-b")
    drive.wait_for(lambda: drive.has_said("begins anew: the server has gone"), "the failure")
    drive.wait_for(lambda: drive.components() == ["apart-a"], "the mesh to run again")
    drive.kill("apart-b")
    drive.wait_for(lambda: drive.components() == ["apart-a", "apart-b"], "the function to be apart")


ONE = """\
name: {name}
functions:
- {{name: {name}-a, className: f, py: f.py, inputs: [{name}-in], output: {name}-t, subscriptionPosition: Earliest}}
"""


def test_a_mesh_that_drains_once_has_jobs_and_ends(drives: Any) -> None:
    drive = drives("drained", ONE, once=True)
    place = "drained-in", 0
    drive.broker.produce("drained-in", ["1", "2"])
    ends: list[int] = []

    def job() -> None:
        (share,) = drive.spark.shares[-1]
        ends.append(share.ends[place])
        if len(ends) == 1:
            raise RuntimeError("job aborted\nCaused by: java.io.IOException: the worker is gone")
        with closing(WriteClient(drive.settings, 20.0)) as client:
            client.commit("public/default/drained-a", share.ends)

    drive.spark.job = job
    drive.thread.start()
    wait_until(lambda: not drive.thread.is_alive(), "the end of the mesh", 30.0)
    assert not drive.failures
    assert ends == [2, 2], "the job that failed was done again"
    assert not drive.spark.queries, "nothing is a stream"
    assert drive.has_said("drained-a has failed, and starts again in 1 s: IOException: the worker is gone")
    assert drive.last_report()["state"] == records.STOPPED


def test_a_mesh_that_drains_once_ends_if_spark_cannot_read_its_source(drives: Any) -> None:
    drive = drives("unread", ONE, once=True)
    drive.broker.produce("unread-in", ["1"])

    def job() -> None:
        raise AnalysisException("kop-mesh cannot be had")

    drive.spark.job = job
    drive.thread.start()
    wait_until(lambda: not drive.thread.is_alive(), "the end of the mesh", 30.0)
    (failure,) = drive.failures
    assert isinstance(failure, ClientError)
    assert "kop-mesh cannot be had" in str(failure)
    drive.failures.clear()


@pytest.fixture
def part_queries(monkeypatch: pytest.MonkeyPatch) -> list[QueryOfTest]:
    """The queries of sources, sinks and queries of the file that were started."""
    started: list[QueryOfTest] = []

    def start(_: PartQueries, *__: Any, **___: Any) -> QueryOfTest:
        started.append(QueryOfTest())
        return started[-1]

    monkeypatch.setattr(PartQueries, "start", start)
    return started


def test_the_rows_of_a_sink_are_counted_on_after_an_update(drives: Any, part_queries: list[QueryOfTest]) -> None:
    drive = drives("rows", TWO + SINK)

    def received() -> tuple[int, int]:
        part = drive.driver.report()["parts"][0]
        assert part["name"] == "public/default/rows-s"
        return part["received"], part["received_1min"]

    drive.begin()
    part_queries[0].read(4, 100)
    assert received()[0] == 100
    drive.followed.define(drive.followed.text)
    drive.wait_for(lambda: len(part_queries) == 2, "the mesh to be begun anew")
    drive.wait_for(lambda: drive.driver.report()["state"] == records.RUNNING, "the mesh to run")
    part_queries[1].read(5, 10)
    count, of_minute = received()
    assert count == 110
    assert of_minute >= 0


def test_what_a_sink_has_read_is_committed_though_spark_has_not_told_it_when_the_mesh_ends(
    drives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = drives("told", TWO.replace("{name}-u", "told") + SINK.replace("{name}-u", "told"))
    started: list[QueryOfTest] = []

    def start(parts: PartQueries, *_: Any, name: str, group: str, **__: Any) -> QueryOfTest:
        listener = ProgressListener(GroupProgress(drive.settings, group), name)
        made: Any = parts
        vars(made)["_listeners"][name] = None, listener
        started.append(QueryOfTest())
        return started[-1]

    monkeypatch.setattr(PartQueries, "start", start)
    drive.begin()
    started[0].read(0, 6, told=6)
    drive.driver.stop()
    drive.thread.join(30.0)
    assert drive.last_report()["ended"] is True
    assert drive.broker.committed("public/default/told-s") == {("told", 0): 6}


def test_the_offsets_of_a_query_that_is_taken_out_are_deleted(drives: Any, part_queries: list[QueryOfTest]) -> None:
    drive = drives("out", TWO + QUERY)
    drive.begin()
    with closing(WriteClient(drive.settings, 20.0)) as writer:
        writer.commit("public/default/out-q", {("out-u", 0): 0})
    assert drive.broker.committed("public/default/out-q") == {("out-u", 0): 0}
    drive.followed.define(TWO.format(name="out"))
    drive.wait_for(lambda: not drive.broker.committed("public/default/out-q"), "the offsets to be gone")
    assert len(part_queries) == 1


@pytest.mark.parametrize("who_has_it", ["nobody", "part", "function"])
def test_the_offsets_of_the_group_that_a_part_had_are_deleted_unless_another_one_has_it(
    drives: Any, who_has_it: str
) -> None:
    name = f"moved-{who_has_it}"
    old, new, first = f"{name}-old", f"{name}-new", f"{{name: {name}-a, "
    drive = drives(name, TWO.replace("{{name: {name}-a, ", f"{{{{name: {{name}}-a, subName: {old}, "))
    drive.begin()
    in_old = {(f"{name}-in", 0): 0}
    assert drive.broker.committed(old) == in_old
    text = TWO.format(name=name).replace(first, f"{first}subName: {new}, ")
    if who_has_it == "function":
        drive.followed.groups.add(old)
    if who_has_it == "part":
        second = f"{{name: {name}-b, "
        text = text.replace(second, f"{second}subName: {old}, ")
    drive.followed.define(text)
    drive.wait_for(lambda: drive.broker.committed(new), "the offsets of the new group")
    if who_has_it != "nobody":
        drive.wait_for(lambda: len(drive.spark.queries) == 2, "the mesh to run again")
        assert drive.broker.committed(old).items() >= in_old.items()
    else:
        drive.wait_for(lambda: not drive.broker.committed(old), "the offsets of the old group to be gone")


def test_a_part_that_starts_again_leaves_no_checkpoint_and_does_not_wait_after_a_failure(
    drives: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = drives("again", TWO)
    drive.begin()
    drive.followed.define(drive.followed.text, version=1, restarts={"again-a": 2})
    drive.wait_for(lambda: len(drive.spark.folders) == 2, "the part to start again")
    first, second = map(Path, drive.spark.folders)
    assert not first.exists()
    assert second.is_dir()
    monkeypatch.setattr(driver, "wait_seconds", lambda _: 600.0)
    drive.spark.queries[-1].failure = ValueError("no")
    drive.spark.queries[-1].stop()
    drive.wait_for(lambda: drive.has_said("again-a has failed"), "the failure")
    drive.followed.define(drive.followed.text, version=1, restarts={"again-a": 3})
    drive.wait_for(lambda: len(drive.spark.folders) == 3, "the part to start at once")
    drive.wait_for(lambda: drive.components() == ["again-a"], "the part to run")
