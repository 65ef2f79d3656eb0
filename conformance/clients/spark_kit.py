"""What the cases of PySpark share: the session, reads and writes of one format, and a stream that collects.

Owns: which Spark and which format, and how small they run. KOP_SPARK_FORMAT names the format: `kafka`, Spark's own, or
`kop`, for which the same cases have to give the same rows. kafka-python fills the topics and looks at what Spark wrote,
so no case has Spark alone vouch for Spark.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from kafka_python_kit import clean, fill, make_topic, producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from suite import Run, Suite, eventually, same

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Of PySpark's minor version, or streams die of NoSuchMethodError; 4.0 is the newest whose jars all resolve."""
JARS = Path(__file__).resolve().parents[1] / ".cache" / "ivy"
ROW = "array<struct<key:string,value:binary>>"

FORMAT = os.environ.get("KOP_SPARK_FORMAT", "kafka")
KOP = FORMAT == "kop"
LIMITS = not KOP or pyspark.__version__ >= "4.2"
"""Whether batches are limited with every trigger: before PySpark 4.2 a Python source is not told of AvailableNow."""
BOUNDED = {} if LIMITS else {"neverAvailableNow": "true"}
"""What a stream with limits has to say as well, and a trigger of processing time then."""

MASTER = os.environ.get("KOP_SPARK_MASTER", "local[2]")
"""Where tasks run: `local-cluster[2,1,1024]` gives them processes of their own."""

PATIENCE = float(os.environ.get("KOP_SPARK_PATIENCE", "1"))
"""How many times longer everything may take: on a machine that does other work a Python worker may start for 10 s."""

_version = f"{pyspark.__version__}, " + ('format("kop")' if KOP else f"connector {CONNECTOR.rpartition(':')[2]}")
suite = Suite(os.environ.get("KOP_SPARK_SUITE", "spark"), _version, workers=2)
suite.cleanup = clean


def case(
    *, kop: bool = False, kafka: bool = True, slow: bool = True, **declared: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a case; those that say `kop` are cases of format("kop"), too, or alone where `kafka` is false."""
    if not (kop if KOP else kafka):
        return lambda body: body
    declared["limit"] = declared.get("limit", 90) * PATIENCE
    declare = suite.case(slow=slow, **declared)
    return lambda body: declare(_again_where_a_worker_came_late(body))


def _again_where_a_worker_came_late(body: Callable[..., Any]) -> Callable[..., Any]:
    """Spark gives a Python worker 10 s to start, which no setting changes: on a busy machine that is too short."""

    @functools.wraps(body)
    def again(run: Run, **values: Any) -> Any:
        for _ in range(2):
            try:
                return body(run, **values)
            except (Exception, Died) as error:
                if "Python worker failed to connect back" not in str(error):
                    raise
        return body(run, **values)

    return again


def identifier(topic: str) -> str:
    """The name of a topic as SQL and Python take it."""
    return re.sub(r"\W", "_", topic)


quick = functools.partial(case, slow=False)
"""The few cases that --fast keeps: one of each kind."""
_lock = threading.Lock()


def spread(run: Run, counts: list[int], hint: str = "t", **configs: str) -> str:
    """A topic with so many records in each partition: v0 is first in every one."""
    topic = make_topic(run, hint, partitions=len(counts), **configs)
    for partition, count in enumerate(counts):
        fill(run, topic, count, partition)
    return topic


def offsets(topic: str, **by_partition: Any) -> str:
    """Spark's JSON of offsets or times: offsets(t, p0=3, p1=-2)."""
    return json.dumps({topic: {name[1:]: value for name, value in by_partition.items()}})


class Record(NamedTuple):
    """A row of the source, in Python's types; `ms` is the timestamp, `kind` 0 for CreateTime, 1 for LogAppendTime."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    ms: int
    kind: int
    headers: list[tuple[str, bytes | None]]


def session() -> SparkSession:
    """The one session; the first call fetches the connector and starts a JVM (5 to 25 s)."""
    with _lock:
        return _session()


@functools.cache
def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(MASTER).appName("conformance")
    connector = {"spark.jars.packages": CONNECTOR, "spark.jars.ivy": str(JARS)}
    for name, value in ({} if KOP else connector).items() | {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-Dderby.stream.error.file=/dev/null",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.pyspark.jvmStacktrace.enabled": "true",  # the connector's own words are in the cause
        "spark.task.maxFailures": "1",
        # Before PySpark 4.2 a query of AvailableNow would end before the batch that its watermark closes windows in.
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    }.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")  # failures are what many cases are about; they are asserted, not read
    return made


def read(run: Run, topic: str | None = None, spark: SparkSession | None = None, **options: Any) -> DataFrame:
    """A batch read; options with a dot in the name go in as `**{"kafka.x": 1}`."""
    named: dict[str, Any] = run.spark | ({"subscribe": topic} if topic else {})
    return (spark or session()).read.format(FORMAT).options(**named | options).load()


def records(frame: DataFrame) -> list[Record]:
    """All rows in order of topic, partition and offset."""
    columns = ["key", "value", "topic", "partition", "offset", "unix_millis(timestamp)", "timestampType"]
    columns += ["headers"] if "headers" in frame.columns else []
    made = []
    for row in frame.selectExpr(*columns).collect():
        key, value, topic, partition, offset, ms, kind, *rest = row
        headers = [(h.key, None if h.value is None else bytes(h.value)) for h in (rest[0] if rest else None) or []]
        key, value = (None if field is None else bytes(field) for field in (key, value))
        made.append(Record(key, value, topic, partition, offset, ms, kind, headers))
    return sorted(made, key=lambda r: (r.topic, r.partition, r.offset))


def places(rows: list[Record]) -> dict[int, list[int]]:
    """Partition -> its offsets, in the order found."""
    out: dict[int, list[int]] = {}
    for record in rows:
        out.setdefault(record.partition, []).append(record.offset)
    return out


def write(run: Run, frame: DataFrame, topic: str | None = None, **options: Any) -> None:
    """A batch write; without `topic` the frame has a topic column. kafka-python writes where it is the reads' turn."""
    if KOP:
        with producer(run) as p:
            for row in frame.collect():
                key, value = (None if field is None else bytes(field) for field in (row.key, row.value))
                p.send(topic or row.topic, value, key)
        return
    named: dict[str, Any] = run.spark | ({"topic": topic} if topic else {})
    frame.write.format("kafka").options(**named | options).save()


def numbers(count: int, partitions: int = 1, value: str = "concat('v', id)", *more: str) -> DataFrame:
    """`count` rows to write: key kN, value vN or an expression of `id`."""
    frame = session().range(0, count, 1, partitions)
    return frame.selectExpr("cast(concat('k', id) as binary) key", f"cast({value} as binary) value", *more)


def refused(words: str | tuple[str, ...], call: Callable[[], Any]) -> str:
    """Whether a call fails with an error (or a cause) that has one of these words; its text."""
    wanted = (words,) if isinstance(words, str) else words
    try:
        got = call()
    except Exception as error:
        text = str(error)
        if not any(word in text for word in wanted):
            raise AssertionError(f"failed otherwise than by {wanted}: {text[:300]}") from error
        return text
    raise AssertionError(f"not refused: {str(got)[:100]}")


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A place for checkpoints, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kop-spark-", ignore_cleanup_errors=True) as path:
        yield path


class Stream:
    """A query that keeps what each micro-batch brought, by batch id: a batch that is replayed counts once.

    `start` and `stop` may alternate: the checkpoint stays.
    """

    def __init__(self, run: Run, path: str, topic: str | None = None, **options: Any) -> None:
        self.options = run.spark | {"startingOffsets": "earliest"} | options
        if topic:
            self.options["subscribe"] = topic
        self.path = path
        self.batches: dict[int, list[Record]] = {}
        self.query: StreamingQuery | None = None

    def start(self, spark: SparkSession | None = None, **trigger: Any) -> Stream:
        """Begin or resume; without a trigger every 200 ms."""
        source = (spark or session()).readStream.format(FORMAT).options(**self.options).load()
        writer = source.writeStream.foreachBatch(self._keep).option("checkpointLocation", f"{self.path}/collect")
        self.query = writer.trigger(**trigger or {"processingTime": "200 milliseconds"}).start()
        return self

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = records(frame)

    def drain(self, seconds: int = 60) -> None:
        """Trigger.AvailableNow: read all there is, to the end of the query."""
        self.start(availableNow=True)
        finish(self.query, seconds)

    @property
    def records(self) -> list[Record]:
        return [record for batch in sorted(self.batches) for record in self.batches[batch]]

    @property
    def progress(self) -> list[Any]:
        """What Spark has reported of the latest micro-batches, oldest first."""
        return [] if self.query is None else list(self.query.recentProgress)

    @property
    def sizes(self) -> list[int]:
        """Records of each micro-batch that had any."""
        return [len(self.batches[batch]) for batch in sorted(self.batches) if self.batches[batch]]

    def wait(self, count: int, seconds: float = 45) -> list[Record]:
        """Until there are so many records, and no more."""

        def enough() -> bool:
            if self.query and self.query.exception():
                raise Died(str(self.query.exception()))
            return len(self.records) >= count

        try:
            eventually(enough, seconds * PATIENCE)
        except AssertionError:
            same(len(self.records), count, "records that came")
        same(len(self.records), count, "records that came")
        return self.records

    def stop(self) -> None:
        if self.query:
            self.query.stop()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Died(BaseException):
    """A query ended with an error: nothing to wait for."""


def finish(query: StreamingQuery | None, seconds: int = 60) -> None:
    """Wait for a query that ends by itself; stop it and complain if it does not."""
    assert query is not None
    if not query.awaitTermination(int(seconds * PATIENCE)):
        status = query.status
        query.stop()
        raise AssertionError(f"no end of the query after {seconds} s: {status}")
