"""The session that `speed.py` measures: does the work that each line of its standard input names.

python speed_session.py BOOTSTRAP rates RECORDS | counters MESSAGES
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # the venv of PySpark has it
import pyarrow as pa
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

from conformance.mesh import speed_functions as code
from conformance.mesh.speed import chain
from kop.spark import run_mesh, write_stream

TASKS = 2
PARTITIONS = 4
SIZE = 95
CONFIG = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(TASKS),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
COUNTERS = """\
name: {name}
trigger: batch
functions:
  - {{name: {name}, className: speed_functions.count, py: speed_functions.py, inputs: [{source}],
      stateScope: partition, processingGuarantees: EFFECTIVELY_ONCE, subscriptionPosition: Earliest}}
"""


class WordCounter(StatefulProcessor):  # type: ignore[misc]  # pyspark is not where types are checked
    """Counts the rows of a word."""

    def init(self, handle: Any) -> None:
        """Make the state."""
        self._count = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add what has come."""
        count = sum(len(some) for some in rows) + (self._count.get()[0] if self._count.exists() else 0)
        self._count.update((count,))
        yield pd.DataFrame({"word": [key[0]], "n": [count]})

    def close(self) -> None:
        """Nothing is open."""


class Works:
    """What can be asked for."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": bootstrap}
        self._bootstrap = bootstrap

    def topics(self, *names: str, partitions: int) -> None:
        """Make topics."""
        admin = KafkaAdminClient(bootstrap_servers=self._bootstrap)
        wanted = {"num_partitions": partitions, "replication_factor": 1}
        admin.create_topics(dict.fromkeys(names, wanted), wait_for_metadata=True)
        admin.close()

    def stream(self, topic: str) -> Any:
        """The committed records of a topic as a stream."""
        options = self._options | {"subscribe": topic, "startingOffsets": "earliest"}
        return self._spark.readStream.format("kop").options(**options, **{"kafka.isolation.level": "read_committed"})


class Rates(Works):
    """Many records that are there, from `rates` through three functions."""

    def prepare(self, records: int) -> None:
        """Write the records."""
        self.topics("rates", partitions=PARTITIONS)
        value = f"substring(repeat(sha2(cast(id as string), 256), {SIZE // 64 + 1}), 1, {SIZE}) value"
        rows = self._spark.range(0, records, 1, TASKS).selectExpr("cast(id as string) key", value)
        rows.write.format("kop").options(**self._options, topic="rates").mode("append").save()

    def fused(self, number: int) -> None:
        """Run a mesh over all records, once; what is between its functions is not written."""
        self._mesh(f"fused{number}", private=True)

    def written(self, number: int) -> None:
        """Run a mesh over all records, once; what is between its functions is written, too."""
        self._mesh(f"written{number}", private=False)

    def _mesh(self, name: str, *, private: bool) -> None:
        self.topics(*(f"{name}-{part}" for part in ("1", "2", "out")), partitions=PARTITIONS)
        file = Path(f"{name}.yaml")
        file.write_text(chain(name, "batch", private=private).replace(f"[{name}-in]", "[rates]"))
        run_mesh(self._spark, str(file), options=self._options, once=True).wait()

    def mapInArrow(self, number: int) -> None:
        """Run the functions by mapInArrow, once; what is between them is not written."""
        target = f"mapped{number}"
        self.topics(target, partitions=PARTITIONS)

        def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                values = [
                    code.third(code.second(code.first(value.decode()))).encode()
                    for value in batch.column("value").to_pylist()
                ]
                yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])

        rows = self.stream("rates").load().select("value").mapInArrow(through, "value binary")
        options = self._options | {"topic": target, "deliveryGuarantee": "exactly-once", "exactlyOnceTasks": str(TASKS)}
        with tempfile.TemporaryDirectory() as checkpoint:
            query = write_stream(
                rows, options=options | {"exactlyOnceId": target}, checkpoint=checkpoint, trigger={"availableNow": True}
            )
            query.awaitTermination()


class Counters(Works):
    """Batches of words, counted by a function and by Spark."""

    def prepare(self, messages: int) -> None:
        """Start both, for few and for many words."""
        self._messages = messages
        self._meshes: dict[str, Any] = {}
        self._queries: dict[str, Any] = {}
        for keys in ("500", "20000"):
            self.topics(f"words-{keys}", f"spark-words-{keys}", partitions=TASKS)
            file = Path(f"counters{keys}.yaml")
            file.write_text(COUNTERS.format(name=f"counters{keys}", source=f"words-{keys}"))
            self._meshes[keys] = run_mesh(self._spark, str(file), options=self._options)
            words = self.stream(f"spark-words-{keys}").load()
            words = words.selectExpr("explode(split(string(value), ' ')) word").groupBy("word")
            counted = words.transformWithStateInPandas(
                statefulProcessor=WordCounter(),
                outputStructType="word STRING, n BIGINT",
                outputMode="Update",
                timeMode="None",
            )
            self._queries[keys] = (
                counted.writeStream.format("noop")
                .outputMode("update")
                .option("checkpointLocation", tempfile.mkdtemp())
                .start()
            )
        while any(mesh.status()["state"] != "running" for mesh in self._meshes.values()):
            time.sleep(0.2)  # they start on threads of their own

    def write(self, topic: str, keys: str, number: int) -> None:
        """Write a batch in one transaction."""
        word = f"concat('w', pmod(hash(id, {number}, {{0}}), {keys}))"
        value = f"concat_ws(' ', {', '.join(word.format(n) for n in range(3))}) value"
        rows = self._spark.range(0, self._messages, 1, 1).selectExpr(value)
        options = self._options | {"topic": topic, "deliveryGuarantee": "exactly-once", "exactlyOnceTasks": "1"}
        options["exactlyOnceId"] = f"{topic}-{number}"
        rows.write.format("kop").options(**options).mode("append").save()

    def processed(self, keys: str) -> int:
        """How many messages the function has had."""
        return sum(int(part.get("processed", 0)) for part in self._meshes[keys].status()["parts"])

    def count(self, keys: str, number: int) -> float:
        """Let the function count a batch; how many seconds that took."""
        wanted = self.processed(keys) + self._messages
        self.write(f"words-{keys}", keys, number)
        began = time.perf_counter()
        while self.processed(keys) < wanted:
            time.sleep(0.01)  # tasks tell what they have done
        return time.perf_counter() - began

    def transform(self, keys: str, number: int) -> float:
        """Let Spark count a batch; how many seconds that took."""
        self.write(f"spark-words-{keys}", keys, number)
        began = time.perf_counter()
        self._queries[keys].processAllAvailable()
        return time.perf_counter() - began


def main(bootstrap: str, kind: str, count: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{TASKS},4]").appName("speed")
    for name, value in CONFIG.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    works: Any = Rates(spark, bootstrap) if kind == "rates" else Counters(spark, bootstrap)
    works.prepare(int(count))
    print("{}", flush=True)
    for line in sys.stdin:
        what, number = line.split()
        began = time.perf_counter()
        seconds = None
        if kind == "rates":
            getattr(works, what)(int(number))
        else:
            way, _, keys = what.partition("-")
            seconds = (works.count if way == "counters" else works.transform)(keys, int(number))
        print(json.dumps({"seconds": seconds or time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
