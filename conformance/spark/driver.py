"""The query of the crash test, in a process that is killed: numbers from files to a topic, exactly once.

    python driver.py BOOTSTRAP TOPIC FOLDER TASKS [--ignore-markers]

Reads FOLDER/input, one file a batch, each line `key,number`. Writes both by `format("kop")`, with its checkpoint in
FOLDER/checkpoint. It ends by itself when FOLDER/stop is there and all files are read.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from conformance.spark.faulty_source import FaultySource


def main(bootstrap: str, topic: str, folder: str, tasks: str, *flags: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("crashes")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": tasks,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultySource)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/input")
    rows = lines.selectExpr("split(value, ',')[0] AS key", "split(value, ',')[1] AS value")
    query = (
        rows.repartition(int(tasks), "key")
        .writeStream.format("kop-with-faults")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("deliveryGuarantee", "exactly-once")
        .option("exactlyOnceTasks", tasks)
        .option("faults.folder", folder)
        .option("faults.ignoreMarkers", str("--ignore-markers" in flags).lower())
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    while True:
        failed = query.exception()
        if failed is not None:
            sys.exit(f"the query failed: {failed}")
        if Path(folder, "stop").exists():
            query.processAllAvailable()
            query.stop()
            break
        time.sleep(0.1)  # neither a query nor a file says when it changes
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
