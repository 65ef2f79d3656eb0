"""The session that `overhead.py` measures: small batches to each sink in turn, then a query that has nothing to read.

python overhead_driver.py BOOTSTRAP BATCHES FOLDER

A line of JSON for each sink: its name, and how many milliseconds each batch took. Then the line `idle`, and a query is
left alone until standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from kafka import KafkaAdminClient
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

WRITTEN, EMPTY = "overhead", "overhead-empty"
TASKS = 2
WARM = 5
"""Batches of a query that are not counted: the first ones load classes and make connections."""
SINKS = ("noop", "noop-python", "kop", "kop once")


class Drain(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is not where types are checked
    """Takes all rows and writes none: what any sink that is written in Python costs."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Take the rows of a task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Nothing was written."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing was written."""


class PythonNoop(DataSource):  # type: ignore[misc]
    """Spark's noop, in Python."""

    @classmethod
    def name(cls) -> str:
        """What the sink is called."""
        return "noop-python"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Drain:
        """The sink of a query."""
        return Drain()


def main(bootstrap: str, batches: str, folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{TASKS}]").appName("overhead")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(PythonNoop)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    wanted = {"num_partitions": TASKS, "replication_factor": 1}
    admin.create_topics({WRITTEN: wanted, EMPTY: wanted}, wait_for_metadata=True)
    admin.close()
    for turn in range(2):  # the first turn of all sinks is not counted
        for sink in SINKS:
            took = run(spark, bootstrap, sink, int(batches), f"{folder}/{turn}-{sink.replace(' ', '-')}")
            if turn:
                print(json.dumps({"sink": sink, "milliseconds": took}), flush=True)
    empty = spark.readStream.format("kop").option("kafka.bootstrap.servers", bootstrap).option("subscribe", EMPTY)
    query = empty.load().writeStream.format("noop").option("checkpointLocation", f"{folder}/idle").start()
    wait(query, 0)
    print("idle", flush=True)
    sys.stdin.read()
    query.stop()
    spark.stop()


def run(spark: SparkSession, bootstrap: str, sink: str, batches: int, checkpoint: str) -> list[int]:
    """Write batches of one row a task, one directly behind another; how many milliseconds each took."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", TASKS).option("numPartitions", TASKS)
    writer = rows.load().selectExpr("cast(value AS string) value").writeStream.format(sink.partition(" ")[0])
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", WRITTEN)
    if sink == "kop once":
        writer = writer.option("deliveryGuarantee", "exactly-once").option("exactlyOnceTasks", TASKS)
    query = writer.option("checkpointLocation", checkpoint).start()
    wait(query, WARM + batches)
    query.stop()
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    return [each["durationMs"]["triggerExecution"] for each in progress[WARM : WARM + batches]]


def wait(query: StreamingQuery, batches: int) -> None:
    """Wait until a query has had so many batches with rows, or at least one trigger."""
    while not query.recentProgress or sum(1 for each in query.recentProgress if each["numInputRows"]) < batches:
        failed = query.exception()
        if failed is not None:
            sys.exit(f"the query failed: {failed}")
        time.sleep(0.1)  # a query tells progress to listeners alone, in another thread


if __name__ == "__main__":
    main(*sys.argv[1:])
