"""`format("kop")` in a Spark Connect session: a process of its own, as PySpark has either that or a classic session.

    spark_connect.py OPTIONS TOPIC COPY CHECKPOINT

Writes ten rows to TOPIC, reads them back, and copies them to COPY exactly once; prints what it read as JSON.
The server of Connect is started by the session, and runs in the same Python environment.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession


def main(options: str, topic: str, copy: str, checkpoint: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    servers: dict[str, str] = json.loads(options)
    rows = spark.createDataFrame([(f"k{n}", f"{n}") for n in range(10)], "key string, value string")
    rows.write.format("kop").options(**servers, topic=topic).mode("append").save()
    read = spark.read.format("kop").options(**servers, subscribe=topic).load()
    values = sorted(int(row.value) for row in read.collect())

    source = spark.readStream.format("kop").options(**servers, subscribe=topic, startingOffsets="earliest").load()
    writer = (
        source.select("key", "value").repartition(2, "key").writeStream.format("kop").options(**servers, topic=copy)
    )
    once = {"deliveryGuarantee": "exactly-once", "exactlyOnceTasks": "2", "checkpointLocation": checkpoint}
    query = writer.options(**once).trigger(availableNow=True).start()
    query.awaitTermination()
    print(json.dumps({"session": type(spark).__module__, "values": values}), flush=True)
    os._exit(0)  # the end of a Connect server in the process may hang; what was to be written is written


if __name__ == "__main__":
    main(*sys.argv[1:])
